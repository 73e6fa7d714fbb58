//! The file system calls of a save, behind a trait, so that tests can interrupt a save at each call.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tidewater_protocol::mutants::{self, Mutant};

/// The file system operations by which a save changes a directory. Saves change directories in no other way.
pub trait Disk: Send {
    /// Creates a new file and opens it for writing. Fails if a file of that name exists.
    ///
    /// # Errors
    /// Error of the operating system.
    fn create(&mut self, path: &Path) -> io::Result<File>;

    /// Appends all bytes to a file that [`Disk::create`] returned.
    ///
    /// # Errors
    /// Error of the operating system; a prefix may be written.
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's content durable (fsync).
    ///
    /// # Errors
    /// Error of the operating system: the bytes may be lost.
    fn sync(&mut self, file: &File, path: &Path) -> io::Result<()>;

    /// Renames a file within its directory, atomically. An existing file of the new name is replaced.
    ///
    /// # Errors
    /// Error of the operating system.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes a second name `to` for the file `from` in another directory (hard link). Fails if `to` exists.
    ///
    /// # Errors
    /// Error of the operating system. Some file systems have no hard links, or none between directories.
    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the entries of a directory durable: fsync of the directory after files were created or renamed.
    ///
    /// # Errors
    /// Error of the operating system.
    fn sync_dir(&mut self, dir: &Path) -> io::Result<()>;

    /// Removes a file by its path.
    ///
    /// # Errors
    /// Error of the operating system.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
}

/// [`Disk`] that calls the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsDisk;

impl Disk for OsDisk {
    fn create(&mut self, path: &Path) -> io::Result<File> {
        File::create_new(path)
    }

    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&mut self, file: &File, _path: &Path) -> io::Result<()> {
        if mutants::on(Mutant::ModelNotSynced) {
            return Ok(());
        }
        file.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        if mutants::on(Mutant::ModelNotSynced) {
            return Ok(());
        }
        File::open(dir)?.sync_all()
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

/// Makes a directory and those above it that are missing, durably: each one's entry is in its parent after a crash
/// of the host.
///
/// # Errors
/// Error of the operating system.
pub fn make_dir(disk: &mut dyn Disk, dir: &Path) -> io::Result<()> {
    let missing = dir.ancestors().take_while(|dir| !dir.exists());
    let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    fs::create_dir_all(dir)?;
    let parents = missing.iter().rev().filter_map(|dir| dir.parent());
    // The parent of a relative path of one name is empty.
    let parents = parents.map(|parent| match parent.as_os_str().is_empty() {
        true => Path::new("."),
        false => parent,
    });
    parents
        .into_iter()
        .try_for_each(|parent| disk.sync_dir(parent))
}

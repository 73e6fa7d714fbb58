//! The file system calls of a save, behind a trait: tests interrupt a save at each.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use tidewater_protocol::mutants::{self, Mutant};

/// The changes that a save makes to a directory. No other code changes it.
pub trait Disk: Send {
    /// Makes a new file for writing; one of that name is an error.
    ///
    /// # Errors
    /// Error of the operating system.
    fn create(&mut self, path: &Path) -> io::Result<File>;

    /// Appends bytes to a file made by [`Disk::create`].
    ///
    /// # Errors
    /// Error of the operating system; a prefix may be written.
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's bytes durable.
    ///
    /// # Errors
    /// Error of the operating system: the bytes may be lost.
    fn sync(&mut self, file: &File, path: &Path) -> io::Result<()>;

    /// Renames a file within its directory, atomically, and replaces a file of the new name.
    ///
    /// # Errors
    /// Error of the operating system.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes a directory's names durable.
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

/// The real file system of the host.
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

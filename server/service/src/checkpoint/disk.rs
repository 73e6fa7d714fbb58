//! The steps by which saves change the file system, behind a trait: tests cut a save at each.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use tidewater_protocol::mutants::{self, Mutant};

/// What a save does to a directory. Nothing else touches it.
pub trait Disk: Send {
    /// Makes a new file for writing; one of that name is an error.
    ///
    /// # Errors
    /// The system's.
    fn create(&mut self, path: &Path) -> io::Result<File>;

    /// Appends bytes to a file made by [`Disk::create`].
    ///
    /// # Errors
    /// The system's; a prefix may be written.
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's bytes durable.
    ///
    /// # Errors
    /// The system's: the bytes may be lost.
    fn sync(&mut self, file: &File, path: &Path) -> io::Result<()>;

    /// Gives a file another name of the same directory, atomically, in place of what has it.
    ///
    /// # Errors
    /// The system's.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes a directory's names durable.
    ///
    /// # Errors
    /// The system's.
    fn sync_dir(&mut self, dir: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The system's.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
}

/// The operating system's files.
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

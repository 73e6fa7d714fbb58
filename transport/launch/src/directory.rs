//! Rendezvous in a directory that all processes see: rank 0 writes its bootstrap record there.
//!
//! The record is a file of mode 0600, written under another name and renamed, so that a reader always finds
//! it complete. It stays there until all have registered. A stale record does no harm: its reader finds no
//! process at its addresses, or another size of the job, and reads again. Rank 0 replaces it, after it has checked
//! whether a process still listens there.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::bootstrap::{BootstrapError, BootstrapRecord};
use tidewater_protocol::limits::BOOTSTRAP_BYTES_MAX;

/// File name of the bootstrap record in the directory.
const NAME: &str = "card";

/// Reason why a directory cannot be used for a rendezvous, or its bootstrap record not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// A system call failed.
    #[error(
        "cannot {operation} {}: {source}; name a directory that all processes can write to \
         (--rendezvous, TIDEWATER_RENDEZVOUS)",
        path.display()
    )]
    System {
        /// Operation that was tried.
        operation: &'static str,
        /// Path of the operation.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Another user could have written the record, or can read it.
    #[error(
        "{} is not a private file of yours (mode {mode:04o}, owner {owner}): it holds a secret. \
         Remove it, and meet in a directory of your own",
        path.display()
    )]
    Exposed {
        /// Path of the file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
        /// User id of its owner.
        owner: u32,
    },
    /// The file there is no bootstrap record.
    #[error("{}: {source}; remove the file, or meet in another directory", path.display())]
    NoRecord {
        /// Path of the file.
        path: PathBuf,
        /// Defect of the file.
        source: BootstrapError,
    },
}

/// A bootstrap record that this process wrote into a directory. Dropping it removes the file, and the directory
/// if it is empty then.
#[derive(Debug)]
pub struct Posted {
    directory: PathBuf,
    record: String,
}

/// Writes a bootstrap record into the directory, replacing an existing one. Creates the directory, for its
/// owner alone.
///
/// # Errors
/// [`DirectoryError::System`].
pub fn post(directory: &Path, record: &BootstrapRecord) -> Result<Posted, DirectoryError> {
    let mut make = fs::DirBuilder::new();
    make.recursive(true).mode(0o700);
    make.create(directory)
        .map_err(system("make the directory", directory))?;
    let name = directory.join(NAME);
    let beside = directory.join(format!("{NAME}.{}", std::process::id()));
    // A file of this name comes from a process that died in the middle of this.
    let _ = fs::remove_file(&beside);
    let record = record.encode();
    let written = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| {
            file.write_all(format!("{record}\n").as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&beside, &name));
    if let Err(source) = written {
        let _ = fs::remove_file(&beside);
        return Err(system("write", &name)(source));
    }
    let directory = directory.to_owned();
    Ok(Posted { directory, record })
}

/// Reads the bootstrap record in the directory and its modification time, in seconds since 1970; `None` if
/// there is no record.
///
/// # Errors
/// The file there is no record, or not private.
///
/// # Cost
/// Six system calls; never waits.
pub fn read(directory: &Path) -> Result<Option<(BootstrapRecord, i64)>, DirectoryError> {
    // Over NFS the listing makes the client ask the server for new entries.
    let _ = fs::read_dir(directory).map(Iterator::count);
    let path = directory.join(NAME);
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
    let opened = File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(&path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // The file was replaced over NFS just now.
        Err(error) if error.kind() == io::ErrorKind::StaleNetworkFileHandle => return Ok(None),
        Err(error) => return Err(system("open", &path)(error)),
    };
    let found = file.metadata().map_err(system("look at", &path))?;
    let (mode, owner) = (found.mode() & 0o7777, found.uid());
    let is_mine = owner == rustix::process::geteuid().as_raw();
    if !found.is_file() || mode & 0o077 != 0 || !is_mine {
        return Err(DirectoryError::Exposed { path, mode, owner });
    }
    let mut text = Vec::new();
    file.take(BOOTSTRAP_BYTES_MAX as u64 + 2)
        .read_to_end(&mut text)
        .map_err(system("read", &path))?;
    match BootstrapRecord::parse(&text) {
        Ok(record) => Ok(Some((record, found.mtime()))),
        Err(source) => Err(DirectoryError::NoRecord { path, source }),
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        // A record of a later process stays.
        if let Ok(Some((record, _))) = read(&self.directory)
            && record.encode() == self.record
        {
            let _ = fs::remove_file(self.directory.join(NAME));
            // The last process removes the folders: these calls fail while other files are there.
            let _ = fs::remove_dir(&self.directory);
            let parent = self.directory.parent();
            let ours = parent.filter(|parent| parent.ends_with(".tidewater"));
            let _ = ours.map(fs::remove_dir);
        }
    }
}

fn system<'a>(
    operation: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> DirectoryError + 'a {
    move |source| DirectoryError::System {
        operation,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewater_protocol::wire::handshake::JobToken;

    use std::os::unix::fs::PermissionsExt as _;

    fn record(port: u16) -> BootstrapRecord {
        BootstrapRecord::new(2, JobToken::new([3; 32]), [format!("127.0.0.1:{port}")])
    }

    #[test]
    fn record_private_complete_gone_with_owner() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join(".tidewater/job");
        assert!(read(&place).unwrap().is_none(), "no directory");
        let posted = post(&place, &record(7)).unwrap();
        let file = fs::metadata(place.join(NAME)).unwrap();
        assert_eq!(file.mode() & 0o7777, 0o600);
        assert_eq!(fs::metadata(&place).unwrap().mode() & 0o077, 0);
        assert_eq!(read(&place).unwrap().unwrap().0.addresses, ["127.0.0.1:7"]);
        assert_eq!(
            fs::read_dir(&place).unwrap().count(),
            1,
            "nothing beside it"
        );
        drop(posted);
        assert!(!home.path().join(".tidewater").exists(), "nothing is left");
    }

    #[test]
    fn who_comes_later_replaces_it_and_it_is_not_removed_by_the_earlier_one() {
        let place = tempfile::tempdir().unwrap();
        let earlier = post(place.path(), &record(7)).unwrap();
        let later = post(place.path(), &record(8)).unwrap();
        drop(earlier);
        assert_eq!(
            read(place.path()).unwrap().unwrap().0.addresses,
            ["127.0.0.1:8"]
        );
        drop(later);
        assert!(read(place.path()).unwrap().is_none());
    }

    #[test]
    fn what_others_could_have_laid_there_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let name = place.path().join(NAME);
        let posted = post(place.path(), &record(7)).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&name, fs::Permissions::from_mode(mode)).unwrap();
            let error = read(place.path()).unwrap_err();
            assert!(matches!(error, DirectoryError::Exposed { .. }), "{error}");
        }
        drop(posted);
        fs::remove_file(&name).unwrap();
        fs::write(&name, "something else").unwrap();
        fs::set_permissions(&name, fs::Permissions::from_mode(0o600)).unwrap();
        let error = read(place.path()).unwrap_err();
        assert!(matches!(error, DirectoryError::NoRecord { .. }), "{error}");
        fs::remove_file(&name).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &name).unwrap();
        assert!(read(place.path()).is_err(), "a link leads elsewhere");
    }
}

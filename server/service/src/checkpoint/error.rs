//! Why a model could not be saved or loaded.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

/// A save or load that failed. A failed save leaves the previous one as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system said no.
    #[error("{operation} {}: {source}; check the directory, its rights and its free space", .path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no saved model, or a file of it is missing.
    #[error("{} is missing: the directory holds no whole saved model; restore it from a copy", .path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Another save or load works in the directory.
    #[error("{} is in use by another save or load; wait for it, or save into another directory", .path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// It is of a version this program does not know.
    #[error("{} has format version {found}, this program reads {expected}; use the release that wrote it", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// Ours.
        expected: u64,
    },
    /// A file has the wrong length.
    #[error("{} has {found} bytes where the manifest says {expected}: it was cut; restore it from a copy", .path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// As saved.
        expected: u64,
    },
    /// Bytes are not what was written.
    #[error("{} is damaged at byte {at}: {what}; restore it from a copy", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        at: u64,
        /// What does not hold.
        what: &'static str,
    },
    /// The manifest says something that cannot be.
    #[error("{}: {what}; restore it from a copy", .path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What.
        what: String,
    },
    /// The model has no such table, or one with another definition.
    #[error("{} holds no table \"{table}\" with this definition: {what}", .path.display())]
    Table {
        /// The manifest.
        path: PathBuf,
        /// The table.
        table: String,
        /// How it differs.
        what: String,
    },
    /// A record could not be read from, or put into, its table.
    #[error("table {table}: {what}")]
    Store {
        /// Number of the table.
        table: u32,
        /// The store's words.
        what: String,
    },
    /// The applier that owns the rows has ended.
    #[error("applier {applier} has ended; look at the server's log")]
    ApplierGone {
        /// Its number.
        applier: u16,
    },
}

impl CheckpointError {
    /// A failed system call; a file that is not there is [`Self::Missing`].
    pub(crate) fn io(
        operation: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Io {
            operation,
            path,
            source,
        }
    }
}

impl From<CheckpointError> for Refusal {
    fn from(error: CheckpointError) -> Self {
        let (code, number) = match &error {
            CheckpointError::Io { source, .. } => {
                let errno = Errno::from_io_error(source).map_or(0, Errno::raw_os_error);
                (RefusalCode::Io, u64::from(errno.unsigned_abs()))
            }
            CheckpointError::Locked { .. } => (RefusalCode::BadRequest, 0),
            CheckpointError::Store { .. } => (RefusalCode::OutOfMemory, 0),
            CheckpointError::ApplierGone { applier } => {
                (RefusalCode::BadRequest, (*applier).into())
            }
            _ => (RefusalCode::BadCheckpoint, 0),
        };
        Self::new(code, [number, 0, 0, 0]).with_text(error)
    }
}

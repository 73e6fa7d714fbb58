//! Errors of saving and loading a model.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

/// Reason why a save or load of a model failed. After a failed save the directory still holds the model
/// saved before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file system call failed.
    #[error("{operation} {}: {source}; check the directory, its rights and its free space", .path.display())]
    Io {
        /// Operation that was tried.
        operation: &'static str,
        /// File or directory of the operation.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Records could not be written: the disk is full, or a limit of the process or user is reached.
    #[error(
        "write {bytes} bytes at byte {at} of {}: {source}; the model saved before is unchanged; check the \
         directory's free space, its quota and its rights",
        .path.display()
    )]
    Write {
        /// File of the operation.
        path: PathBuf,
        /// Bytes of the failed write.
        bytes: u64,
        /// Bytes of the file that were written before.
        at: u64,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The appliers did not deliver their records within the time limit of a save.
    #[error(
        "appliers {appliers:?} did not finish the save within {seconds} s; look whether workers have \
         reached the clock of the caller, and whether the file system hangs"
    )]
    Stalled {
        /// Numbers of the appliers with records that are not copied.
        appliers: Vec<u16>,
        /// Time limit in seconds.
        seconds: u64,
    },
    /// The coordinator cancelled the save, or the save was dropped.
    #[error("the save into {} was ended: another save, a table or the end of the job came between", .path.display())]
    Cancelled {
        /// Directory of the save.
        path: PathBuf,
    },
    /// Every checkpoint of a job is cut or damaged, although at least one was complete before.
    #[error("{}: none of the checkpoints is complete ({what}); remove the directory to begin again", .path.display())]
    NoCheckpoint {
        /// Directory of the job's checkpoints.
        path: PathBuf,
        /// Error of the newest checkpoint.
        what: String,
    },
    /// The directory has no manifest, or a file that the manifest names is missing.
    #[error("{} is missing: the directory holds no complete saved model; restore it from a copy", .path.display())]
    Missing {
        /// Path of the missing file.
        path: PathBuf,
    },
    /// Another save or load uses the directory.
    #[error("{} is in use by another save or load; wait for it, or save into another directory", .path.display())]
    Locked {
        /// Path of the directory.
        path: PathBuf,
    },
    /// Another coordinator takes the checkpoints of the job.
    #[error(
        "{}: another coordinator keeps the checkpoints of a job there; end it, or give this job a namespace or a \
         directory of its own",
        .path.display()
    )]
    Kept {
        /// Directory of the job's checkpoints.
        path: PathBuf,
    },
    /// This program cannot read the file's format version.
    #[error("{} has format version {found}, this program reads {expected}; use the release that wrote it", .path.display())]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Format version of the file.
        found: u64,
        /// Latest format version that this program reads.
        expected: u64,
    },
    /// A part file is shorter or longer than its manifest says.
    #[error("{} has {found} bytes where the manifest says {expected}: it was cut; restore it from a copy", .path.display())]
    Length {
        /// Path of the file.
        path: PathBuf,
        /// Bytes that the file has.
        found: u64,
        /// Bytes that the manifest gives.
        expected: u64,
    },
    /// A checksum or a length within a part file does not match its content.
    #[error("{} is damaged at byte {at}: {what}; restore it from a copy", .path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Position of the damage, in bytes.
        at: u64,
        /// The check that failed.
        what: &'static str,
    },
    /// The manifest contains a value that is not valid.
    #[error("{}: {what}; restore it from a copy", .path.display())]
    Manifest {
        /// Path of the manifest.
        path: PathBuf,
        /// The value, and the rule that it breaks.
        what: String,
    },
    /// The saved model has no table of this name, or its definition differs from the requested one.
    #[error("{} holds no table \"{table}\" with this definition: {what}", .path.display())]
    Table {
        /// Path of the manifest.
        path: PathBuf,
        /// Name of the table.
        table: String,
        /// How the definition differs.
        what: String,
    },
    /// A server's table store failed to return or to accept a record.
    #[error("table {table}: {what}")]
    Store {
        /// Number of the table.
        table: u32,
        /// Text of the store's error.
        what: String,
    },
    /// A checkpoint extends another one, and a server has not noted all changes since.
    #[error("table {table}: {what}")]
    ChangesUnknown {
        /// Number of the table.
        table: u32,
        /// What is not known.
        what: String,
    },
    /// The thread of the applier that owns the rows has ended.
    #[error("applier {applier} has ended; look at the server's log")]
    ApplierGone {
        /// Number of the applier.
        applier: u16,
    },
}

impl CheckpointError {
    /// Returns a closure for `map_err` that wraps an I/O error with the operation's name and the path. Always
    /// makes [`Self::Io`].
    pub fn io(operation: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
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
            CheckpointError::Io { source, .. } | CheckpointError::Write { source, .. } => {
                let errno = Errno::from_io_error(source).map_or(0, Errno::raw_os_error);
                (RefusalCode::Io, u64::from(errno.unsigned_abs()))
            }
            CheckpointError::Stalled { seconds, .. } => (RefusalCode::Timeout, *seconds),
            CheckpointError::Cancelled { .. } => (RefusalCode::ShuttingDown, 0),
            CheckpointError::Locked { .. } | CheckpointError::Kept { .. } => {
                (RefusalCode::BadRequest, 0)
            }
            CheckpointError::Store { .. } => (RefusalCode::OutOfMemory, 0),
            CheckpointError::ChangesUnknown { table, .. } => {
                (RefusalCode::ChangesUnknown, (*table).into())
            }
            CheckpointError::ApplierGone { applier } => {
                (RefusalCode::BadRequest, (*applier).into())
            }
            _ => (RefusalCode::BadCheckpoint, 0),
        };
        Self::new(code, [number, 0, 0, 0]).with_text(error)
    }
}

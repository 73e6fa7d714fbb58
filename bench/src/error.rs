//! Errors of a run, and their exit codes.

use std::io;
use std::path::PathBuf;

use tidewater::ClientError;

/// Cause of a run's early end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Options that contradict each other.
    #[error("{0}; see --help")]
    Usage(String),
    /// The system denies a resource that the run needs.
    #[error("{what}: {source}")]
    System {
        /// Description of the attempted operation.
        what: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A file cannot be read or written.
    #[error("{}: {why}; choose another file", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system, or the defect of the content.
        why: String,
    },
    /// A process of the run ended, or sent an unexpected answer.
    #[error("{name} failed: {why}; its own message may be above")]
    Process {
        /// Name of the process.
        name: String,
        /// Description of the failure.
        why: String,
    },
    /// A call failed while it was measured.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The store of an applier without a server cannot be created, or it rejected a row.
    #[error("{0}")]
    Store(String),
}

impl BenchError {
    /// Exit code: 2 for usage, 3 for the environment, 4 for a peer.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::System { .. } | Self::File { .. } | Self::Store(_) => 3,
            Self::Process { .. } | Self::Client(_) => 4,
        }
    }
}

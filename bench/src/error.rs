//! What a run can fail with, and the exit code of each.

use std::io;
use std::path::PathBuf;

use tidewater_client::ClientError;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Options that contradict each other.
    #[error("{0}; see --help")]
    Usage(String),
    /// The machine does not give what the run needs.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: String,
        /// The system's words.
        source: io::Error,
    },
    /// A report cannot be written.
    #[error("cannot write {}: {source}; choose another file", path.display())]
    Write {
        /// Where to.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The server process ended or said something else than its address.
    #[error("the server process did not come up: {0}")]
    Server(String),
    /// A call failed while it was measured.
    #[error("{0}")]
    Client(#[from] ClientError),
}

impl BenchError {
    /// Exit code: 2 usage, 3 environment, 4 peer.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::System { .. } | Self::Write { .. } => 3,
            Self::Server(_) | Self::Client(_) => 4,
        }
    }
}

//! What a run can fail with, and the exit code of each.

use std::io;
use std::path::PathBuf;

use tidewater::ClientError;

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
    /// A file cannot be read or written.
    #[error("{}: {why}; choose another file", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's words, or what is wrong with its content.
        why: String,
    },
    /// A process of the run ended, or said something else than it should.
    #[error("{name} failed: {why}; its own message may be above")]
    Process {
        /// Which.
        name: String,
        /// What happened.
        why: String,
    },
    /// A call failed while it was measured.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The memory of an applier without a server cannot be had, or it refused a row.
    #[error("{0}")]
    Store(String),
}

impl BenchError {
    /// Exit code: 2 usage, 3 environment, 4 peer.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::System { .. } | Self::File { .. } | Self::Store(_) => 3,
            Self::Process { .. } | Self::Client(_) => 4,
        }
    }
}

//! Errors of a run, and their exit codes.

use std::error::Error;
use std::path::PathBuf;

use tidewater::ClientError;

/// Error of the system or of a library, or a text where neither has one.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Cause of a run's early end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Options that contradict each other, or a value that is not possible.
    #[error("{0}; see --help")]
    Usage(String),
    /// The system denies a resource that the run needs.
    #[error("{what}: {source}")]
    System {
        /// Description of the attempted operation.
        what: String,
        /// Error of the system.
        source: Cause,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}; choose another file", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system, or the defect of the content.
        source: Cause,
    },
    /// A process of the run ended, or sent an unexpected answer.
    #[error("{name} failed: {source}; its own message may be above")]
    Process {
        /// Name of the process.
        name: String,
        /// Failure of the process.
        source: Cause,
    },
    /// A call failed while it was measured.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The store of an applier without a server cannot be created, or the applier rejected a frame. In a chaos
    /// run also an unusable token, or a wrong row of a training.
    #[error("{0}")]
    Store(#[source] Cause),
}

impl BenchError {
    /// Makes the error of an operation that the system or a library denies.
    pub fn system(what: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self::System {
            what: what.into(),
            source: source.into(),
        }
    }

    /// Makes the error of a file.
    pub fn file(path: impl Into<PathBuf>, source: impl Into<Cause>) -> Self {
        Self::File {
            path: path.into(),
            source: source.into(),
        }
    }

    /// Makes the error of a process.
    pub fn process(name: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self::Process {
            name: name.into(),
            source: source.into(),
        }
    }

    /// Exit code: 2 for `Usage`; 3 for `System`, `File` and `Store`; 4 for `Process` and `Client`.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::System { .. } | Self::File { .. } | Self::Store(_) => 3,
            Self::Process { .. } | Self::Client(_) => 4,
        }
    }
}

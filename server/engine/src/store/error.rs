//! What can go wrong in the store.

use tidewater_lanes::fabric::ExportError;
use tidewater_runtime::mem::MemError;

use super::hugepages::{Hugepages, Shortfall};

/// Why the store could not do it. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The server's memory is used up.
    #[error(
        "{what} needs {bytes} bytes, but {used} of the {capacity} bytes of {memory} memory are in \
         use; start the server with a larger --capacity"
    )]
    NoMemory {
        /// For what.
        what: &'static str,
        /// Which of the two.
        memory: &'static str,
        /// Bytes asked for.
        bytes: usize,
        /// Bytes given out.
        used: usize,
        /// Bytes there are.
        capacity: usize,
    },
    /// A limit of the format.
    #[error("{what}: {have} is over the limit of {limit}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// Asked for.
        have: u64,
        /// Allowed.
        limit: u64,
    },
    /// Hugepages of a size were asked for that cannot be had.
    #[error("--hugepages {asked}: {shortfall}; or say --hugepages auto, which does without")]
    Hugepages {
        /// What was asked for.
        asked: Hugepages,
        /// What is missing, and how to get it.
        shortfall: Shortfall,
    },
    /// Memory could not be mapped or made present.
    #[error(transparent)]
    Mem(#[from] MemError),
    /// Memory could not be made accessible to clients.
    #[error(transparent)]
    RegisteredRegion(#[from] ExportError),
}

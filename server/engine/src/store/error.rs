//! Errors of the store.

use tidewater_lanes::fabric::ExportError;
use tidewater_protocol::layout::reject::RowResource;
use tidewater_runtime::mem::MemError;

use super::hugepages::{Hugepages, Shortfall};

/// Error of an operation of the store. Nothing was changed, unless the operation states otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The server's public or private memory is used up.
    #[error(
        "{what} needs {bytes} bytes, but {used} of the {capacity} bytes of {memory} memory are in \
         use; start the server with a larger --capacity"
    )]
    NoMemory {
        /// What the memory is for.
        what: &'static str,
        /// Name of the memory, public or private.
        memory: &'static str,
        /// Bytes that were requested.
        bytes: usize,
        /// Bytes of the memory in use.
        used: usize,
        /// Bytes of the memory.
        capacity: usize,
    },
    /// A number exceeds a limit of the format.
    #[error("{what}: {have} is over the limit of {limit}")]
    Limit {
        /// Name of the number.
        what: &'static str,
        /// Value that was requested.
        have: u64,
        /// Largest value that is allowed.
        limit: u64,
    },
    /// The directory of a memory is full (`MEMORY_BLOCKS_MAX`).
    #[error(
        "{memory} memory has {limit} blocks, as many as its directory holds; use fewer tables, or more \
         servers"
    )]
    Blocks {
        /// Name of the memory, public or private.
        memory: &'static str,
        /// Number of blocks that the directory holds.
        limit: usize,
    },
    /// A table has as much of a resource on one applier as the format allows.
    #[error("the table has {limit} {} on one applier, the most there are; {}", resource.name(), resource.remedy())]
    TableFull {
        /// What is used up.
        resource: RowResource,
        /// Amount of the resource that the format allows.
        limit: u64,
    },
    /// Hugepages of the requested size are not available.
    #[error("--hugepages {asked}: {shortfall}; or say --hugepages auto, which does without")]
    Hugepages {
        /// Setting that was requested.
        asked: Hugepages,
        /// What is missing, and how to get it.
        shortfall: Shortfall,
    },
    /// Memory could not be mapped, locked or made present, or an access lies outside the memory.
    #[error(transparent)]
    Mem(#[from] MemError),
    /// Memory could not be registered, so that clients could access it.
    #[error(transparent)]
    RegisteredRegion(#[from] ExportError),
}

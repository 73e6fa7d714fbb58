//! Errors of operations on a range of blocks.

use crate::store::StoreError;

/// Error of an operation on a range of blocks. Nothing was changed, unless memory ran out in the middle of
/// a range of several blocks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlocksError {
    /// The range is empty, or not inside one partition of this applier.
    #[error(
        "elements {first}..+{count} of {elements} are not in one partition of this applier; cut \
         the range where partitions begin"
    )]
    NotOwned {
        /// First element of the range.
        first: u64,
        /// Number of elements in the range.
        count: u64,
        /// Number of elements of the table.
        elements: u64,
    },
    /// The number of bytes does not suit the range or block.
    #[error(
        "{what}: {have} bytes where {want} are needed; send whole elements of the table's type"
    )]
    Length {
        /// Name of the buffer.
        what: &'static str,
        /// Bytes that were given.
        have: usize,
        /// Bytes that are needed.
        want: usize,
    },
    /// The call does not suit the state of the snapshot's epochs.
    #[error("{what}: epoch {have}, expected {expected}; begin an epoch, step, then flip it")]
    Epoch {
        /// Name of the call.
        what: &'static str,
        /// Epoch that the call names, or the open one (the front if none is open).
        have: u64,
        /// Epoch that would suit: the next one to begin, or the open one (the front if none is open).
        expected: u64,
    },
    /// The step counts of a saved block are not valid.
    #[error(
        "the step counts of block {block} are not those of its elements; the saved model is damaged: \
         load another"
    )]
    Steps {
        /// Number of the block.
        block: u64,
    },
    /// The memory or the redo area refused the operation.
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub(super) const fn length(what: &'static str, have: usize, want: usize) -> BlocksError {
    BlocksError::Length { what, have, want }
}

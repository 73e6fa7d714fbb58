//! Errors of operations on a range of blocks.

use crate::store::StoreError;

/// Why a range of blocks was not written or read. Nothing was changed, unless a range of several
/// blocks met the end of memory in between.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlocksError {
    /// A range that is not inside one partition of this applier.
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
    /// The number of bytes does not fit the range or block.
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
    /// A call that does not fit the snapshot's epoch.
    #[error("{what}: epoch {have}, expected {expected}; begin an epoch, step, then flip it")]
    Epoch {
        /// Name of the call.
        what: &'static str,
        /// Epoch that the call names, or the open one.
        have: u64,
        /// The only epoch that is allowed.
        expected: u64,
    },
    /// Step counts of a saved block that are not valid.
    #[error(
        "the step counts of block {block} are not those of its elements; the saved model is damaged: \
         load another"
    )]
    Steps {
        /// Number of the block.
        block: u64,
    },
    /// Memory or redo record refused the operation.
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub(super) const fn length(what: &'static str, have: usize, want: usize) -> BlocksError {
    BlocksError::Length { what, have, want }
}

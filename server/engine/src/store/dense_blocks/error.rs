//! What can go wrong with a range of blocks.

use crate::apply::kernels::KernelError;
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
        /// First element.
        first: u64,
        /// Elements.
        count: u64,
        /// Elements of the table.
        elements: u64,
    },
    /// Bytes that are not what the range or block holds.
    #[error(
        "{what}: {have} bytes where {want} are needed; send whole elements of the table's type"
    )]
    Length {
        /// Of what.
        what: &'static str,
        /// Given.
        have: usize,
        /// Needed.
        want: usize,
    },
    /// A call that does not fit the snapshot's epoch.
    #[error("{what}: epoch {have}, expected {expected}; begin an epoch, step, then flip it")]
    Epoch {
        /// The call.
        what: &'static str,
        /// The epoch it names, or the open one.
        have: u64,
        /// The only one it may.
        expected: u64,
    },
    /// Step counts of a saved block that cannot be.
    #[error(
        "the step counts of block {block} are not those of its elements; the saved model is damaged: \
         load another"
    )]
    Steps {
        /// The block.
        block: u64,
    },
    /// Memory or redo.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No kernel of that length; never for a table that was made.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

pub(super) const fn length(what: &'static str, have: usize, want: usize) -> BlocksError {
    BlocksError::Length { what, have, want }
}

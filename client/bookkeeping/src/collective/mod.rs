//! Collective calls of workers, without I/O: the rows in which values travel, reductions, errors.

mod error;
mod fold;
mod rows;

pub use error::CollectiveError;
pub use fold::fold;
pub use rows::{Call, Header, Kind, RowsOf, agree, in_step};

/// Reduction of a collective call, element by element in rank order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum, beginning with the value of rank 0. Integers wrap.
    Sum,
    /// The least value. NaN if any is NaN; of equal values (0 and -0) that of the lowest rank.
    Min,
    /// The greatest value. NaN if any is NaN; of equal values (0 and -0) that of the lowest rank.
    Max,
    /// The product, beginning with the value of rank 0. Integers wrap.
    Product,
    /// The bits that are set in all values, of integers only.
    BitAnd,
    /// The bits that are set in any value, of integers only.
    BitOr,
    /// The bits that are set in an odd number of values, of integers only.
    BitXor,
}

//! Why a kernel or an initialiser cannot be made.

use tidewater_protocol::table::DType;

/// A table asks for arithmetic that makes no sense. Found once, when the table is created.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A gradient rule on a table of integers.
    #[error(
        "{rule} needs floating-point elements and the table holds {dtype:?}; make it F32 or F64, \
         or use no optimizer and push sums"
    )]
    IntegerGradient {
        /// The optimizer.
        rule: &'static str,
        /// The table's element type.
        dtype: DType,
    },
    /// A hyper-parameter out of its range, as given or once rounded to the table's type.
    #[error("{rule}: {name} = {value:e} does not fit {dtype:?}; it must be {range}")]
    HyperParameter {
        /// The optimizer.
        rule: &'static str,
        /// The hyper-parameter.
        name: &'static str,
        /// What was given.
        value: f64,
        /// The table's element type.
        dtype: DType,
        /// What is allowed.
        range: &'static str,
    },
    /// An initial distribution that has no values of the table's type.
    #[error("initial values {kind}({first:e}, {second:e}) do not fit {dtype:?}; {remedy}")]
    Init {
        /// The distribution.
        kind: &'static str,
        /// Its first parameter.
        first: f64,
        /// Its second parameter, 0 where there is none.
        second: f64,
        /// The table's element type.
        dtype: DType,
        /// What to give instead.
        remedy: &'static str,
    },
    /// A row of no elements, or of too many.
    #[error("a row of {dim} elements; give it 1 to {max}")]
    Dim {
        /// Elements asked for.
        dim: usize,
        /// [`tidewater_protocol::limits::ROW_DIM_MAX`].
        max: u32,
    },
}

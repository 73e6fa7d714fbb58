//! Errors of making a kernel or an initialiser.

use tidewater_protocol::table::DType;

/// Error of a table with arithmetic that is not defined. Detected when the table is created or its
/// hyper-parameters are set.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// Optimizer on a table of integers: gradients need floats.
    #[error(
        "{rule} needs floating-point elements and the table holds {dtype:?}; make it F32 or F64, \
         or use no optimizer and push sums"
    )]
    IntegerGradient {
        /// Name of the optimizer.
        rule: &'static str,
        /// Element type of the table.
        dtype: DType,
    },
    /// Hyper-parameter or gradient option out of its range, as given or once rounded to the table's type.
    #[error("{rule}: {name} = {value:e} does not fit {dtype:?}; it must be {range}")]
    HyperParameter {
        /// Name of the optimizer.
        rule: &'static str,
        /// Name of the hyper-parameter or gradient option.
        name: &'static str,
        /// Value that was given.
        value: f64,
        /// Element type of the table.
        dtype: DType,
        /// The allowed range, in words.
        range: &'static str,
    },
    /// Initial distribution that has no values of the table's type.
    #[error("initial values {kind}({first:e}, {second:e}) do not fit {dtype:?}; {remedy}")]
    Init {
        /// Name of the distribution.
        kind: &'static str,
        /// First parameter of the distribution.
        first: f64,
        /// Second parameter of the distribution; 0 if it has only one.
        second: f64,
        /// Element type of the table.
        dtype: DType,
        /// What to give instead, in words.
        remedy: &'static str,
    },
    /// Row without elements, or with too many.
    #[error("a row of {dim} elements; give it 1 to {max}")]
    Dim {
        /// Number of elements asked for.
        dim: usize,
        /// Limit of elements, [`tidewater_protocol::limits::ROW_DIM_MAX`].
        max: u32,
    },
}

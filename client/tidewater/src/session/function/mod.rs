//! Functions that run where the data is: expressions over tables, reductions, and functions that the
//! servers' program registered by name.

mod call;
pub(crate) mod exchange;
pub(crate) mod keyed;
pub(crate) mod pieces;

use std::ops::Range;

use tidewater_expression::{ExpressionError, Program};
pub use tidewater_expression::{Reduction, Scalar};
use tidewater_protocol::layout::function::{FUNCTION_INPUTS_MAX, FUNCTION_PARAMETERS_MAX};
use tidewater_protocol::table::DType;

use crate::error::ClientError;
use crate::table::{Element, Table};

/// Typed expression over elements of tables: compiled once, sent with each call.
///
/// `x`, `y` and `z` are the elements of up to three tables at the same place, `p0` to `p15` numbers that
/// a call gives, and `index` the element's index in its table, row-major (in sparse tables, its column).
/// The crate `tidewater-expression` documents the language.
///
/// ```
/// use tidewater::Expression;
///
/// let relu = Expression::<f32>::parse("max(p0 * x + y, 0)")?;
/// assert_eq!((relu.inputs(), relu.parameters()), (2, 1));
/// let error = Expression::<f32>::parse("x + ").unwrap_err();
/// assert!(error.to_string().contains('4')); // the position
/// # Ok::<(), tidewater::ClientError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Expression<T> {
    pub(crate) encoded: Vec<u8>,
    inputs: usize,
    parameters: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Expression<T> {
    /// Compiles the text of an expression for tables with elements of type `T`.
    ///
    /// # Errors
    /// [`ClientError::Expression`] with the position of the first defect.
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        let program = Program::parse(text, T::DTYPE);
        let program = program.map_err(|source| wrong_expression(text, source))?;
        let mut encoded = Vec::new();
        program.encode(&mut encoded);
        Ok(Self {
            encoded,
            inputs: program.inputs(),
            parameters: program.parameters(),
            element: std::marker::PhantomData,
        })
    }

    /// Number of input tables that the expression needs: 3 if it names `z`, 2 if `y`, 1 if `x`.
    pub const fn inputs(&self) -> usize {
        self.inputs
    }

    /// Number of parameters that a call must give: 1 more than the largest number of those named (`p0`, `p1`,
    /// ...).
    pub const fn parameters(&self) -> usize {
        self.parameters
    }
}

/// Whether a parameter's value can be represented in the element type in which expressions compute.
fn holds(dtype: DType, value: f64) -> bool {
    match dtype {
        DType::F32 => !value.is_finite() || value.abs() <= f64::from(f32::MAX),
        DType::F64 => true,
        DType::I32 => {
            let range = f64::from(i32::MIN)..=f64::from(i32::MAX);
            value.fract() == 0.0 && range.contains(&value)
        }
        DType::I64 => value.fract() == 0.0 && value.abs() < (1_u64 << 63) as f64,
    }
}

fn wrong_expression(text: &str, source: ExpressionError) -> ClientError {
    ClientError::Expression {
        text: text.to_owned(),
        source,
    }
}

/// Inputs of a call of an expression or function: tables, parameters and range. The default covers all of the
/// target, with the target as `x`.
///
/// # Example
/// ```
/// # use tidewater::{ClientError, Expression, FunctionArgs, JoinOptions};
/// # use tidewater::{Reduction, Scalar, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let x = client.create_table::<f64>(TableBuilder::range::<f64>("x", 1, 4).spec())?;
/// let y = client.create_table::<f64>(TableBuilder::range::<f64>("y", 1, 4).spec())?;
/// let args = FunctionArgs { inputs: &[&x, &y], parameters: &[2.0], range: Some(0..3) };
/// client.update(&x, &Expression::parse("x + y + p0")?, &args)?;
/// let all = FunctionArgs::default();
/// let sum = client.reduce(&x, &Expression::parse("x")?, Reduction::Sum, &all)?;
/// assert_eq!(sum, Some(Scalar::Float(6.0)));
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FunctionArgs<'a, T> {
    /// Tables of `x`, `y` and `z`. They have the target's shape, element type, number of partitions,
    /// [`partition_servers`](tidewater_protocol::table::TableSpec::partition_servers) and
    /// [`partition_starts`](tidewater_protocol::table::TableSpec::partition_starts); a sparse table is only combined with itself. Empty: `x` is the target.
    pub inputs: &'a [&'a Table<T>],
    /// Values of the parameters `p0`, `p1`, ...
    pub parameters: &'a [f64],
    /// Elements of a range table, or rows of layout `rows`, that the call covers. `None`: all.
    pub range: Option<Range<u64>>,
}

impl<T> Default for FunctionArgs<'_, T> {
    fn default() -> Self {
        Self {
            inputs: &[],
            parameters: &[],
            range: None,
        }
    }
}

impl<T: Element> FunctionArgs<'_, T> {
    /// Checks inputs and parameters of a call against its expression: their numbers, and that values fit the element
    /// type. `Err` describes the defect.
    pub(crate) fn check(&self, expression: &Expression<T>) -> Result<(), String> {
        let inputs = self.inputs.len().max(1);
        if inputs < expression.inputs {
            return Err(format!(
                "the expression has {} inputs and the call {inputs}",
                expression.inputs
            ));
        }
        if self.parameters.len() != expression.parameters {
            return Err(format!(
                "the expression has {} parameters (up to p{}) and the call {}",
                expression.parameters,
                expression.parameters.saturating_sub(1),
                self.parameters.len()
            ));
        }
        if let Some(value) = self
            .parameters
            .iter()
            .find(|value| !holds(T::DTYPE, **value))
        {
            return Err(format!(
                "parameter {value} is no {:?}, the type of the elements",
                T::DTYPE
            ));
        }
        self.check_limits()
    }

    /// Checks the inputs of a call of a named function: it takes argument bytes, and no parameters. `Err` describes
    /// the defect.
    pub(crate) fn check_named(&self) -> Result<(), String> {
        match self.parameters.len() {
            0 => self.check_limits(),
            given => Err(format!(
                "{given} parameters; functions by name have arguments, expressions have parameters"
            )),
        }
    }

    pub(crate) fn check_limits(&self) -> Result<(), String> {
        let (inputs, parameters) = (self.inputs.len(), self.parameters.len());
        match inputs <= FUNCTION_INPUTS_MAX && parameters <= FUNCTION_PARAMETERS_MAX {
            true => Ok(()),
            false => Err(format!(
                "{inputs} inputs and {parameters} parameters; the most are {FUNCTION_INPUTS_MAX} and \
                 {FUNCTION_PARAMETERS_MAX}"
            )),
        }
    }
}

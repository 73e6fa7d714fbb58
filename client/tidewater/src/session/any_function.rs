//! Functions on tables with an element type known at run time, for bindings and tools.

use std::ops::Range;

use super::Client;
use crate::error::ClientError;
use crate::push::Ticket;
use crate::session::function::{Expression, FunctionArgs, Reduction, Scalar};
use crate::table::{AnyTable, Element, Table};

/// Inputs of a call of an expression or function on an [`AnyTable`]: tables, parameters and range, as
/// [`FunctionArgs`].
///
/// # Example
/// ```
/// # use tidewater::{AnyFunctionArgs, AnyTable, ClientError, JoinOptions};
/// # use tidewater::{Reduction, Scalar, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let of = |name| TableBuilder::range::<f64>(name, 1, 4);
/// let x = AnyTable::create(&mut client, of("x").spec())?;
/// let y = AnyTable::create(&mut client, of("y").spec())?;
/// let args = AnyFunctionArgs { inputs: &[x, y], parameters: &[2.0], range: Some(0..3) };
/// x.update(&mut client, "x + y + p0", &args)?;
/// let sum = x.reduce(&mut client, "x", Reduction::Sum, &AnyFunctionArgs::default())?;
/// assert_eq!(sum, Some(Scalar::Float(6.0)));
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct AnyFunctionArgs<'a> {
    /// Tables of `x`, `y` and `z`, of the target's element type. Empty: `x` is the target.
    pub inputs: &'a [AnyTable],
    /// Values of the parameters `p0`, `p1`, ...
    pub parameters: &'a [f64],
    /// Elements of a range table, or rows of layout `rows`, that the call covers. `None`: all.
    pub range: Option<Range<u64>>,
}

/// Element type that has a variant in [`AnyTable`].
trait Typed: Element {
    /// The table with its static element type; `None` if its type is another one.
    fn of(table: AnyTable) -> Option<Table<Self>>;
}

macro_rules! typed {
    ($($element:ty => $name:ident),*) => {
        $(
            impl Typed for $element {
                fn of(table: AnyTable) -> Option<Table<Self>> {
                    match table {
                        AnyTable::$name(table) => Some(table),
                        _ => None,
                    }
                }
            }
        )*
    };
}

typed!(f32 => F32, f64 => F64, i32 => I32, i64 => I64);

/// Macro: runs an expression with the typed table of an [`AnyTable`], and with arguments converted to its element
/// type.
macro_rules! with_typed {
    ($any:expr, $client:expr, $op:expr, $args:expr, ($table:ident, $typed:ident) => $do:expr) => {
        with_typed!(@ $any, $client, $op, $args, ($table, $typed) => $do; F32, F64, I32, I64)
    };
    (@ $any:expr, $client:expr, $op:expr, $args:expr, ($table:ident, $typed:ident) => $do:expr;
        $($name:ident),*) => {
        match $any {
            $(AnyTable::$name($table) => {
                let inputs = inputs_of($client, $op, &$table, $args.inputs)?;
                let inputs: Vec<_> = inputs.iter().collect();
                let $typed = FunctionArgs {
                    inputs: &inputs,
                    parameters: $args.parameters,
                    range: $args.range.clone(),
                };
                $do
            })*
        }
    };
}

/// Converts the input tables of a call to the element type of its target. Fails with `ClientError::Argument` for an
/// input of another type.
fn inputs_of<T: Typed>(
    client: &Client,
    op: &'static str,
    target: &Table<T>,
    inputs: &[AnyTable],
) -> Result<Vec<Table<T>>, ClientError> {
    let typed = inputs.iter().enumerate().map(|(n, &input)| {
        T::of(input).ok_or_else(|| ClientError::Argument {
            op,
            table: client.spec(target).map_or_else(String::new, |spec| spec.name.clone()),
            what: format!(
                "input {n} holds {:?} and the table {:?}; inputs have the element type of the target",
                input.dtype(),
                T::DTYPE
            ),
        })
    });
    typed.collect()
}

impl AnyTable {
    /// Compiles the expression `text` and runs [`Client::update`] with this table as target: sets each element to
    /// its value.
    ///
    /// ```
    /// # use tidewater::{AnyFunctionArgs, AnyTable, JoinOptions, Reduction, Scalar, SyncMode, TableBuilder};
    /// # fn main() -> Result<(), tidewater::ClientError> {
    /// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
    /// # let mut client = job.client_of(0, SyncMode::Asp)?;
    /// let spec = TableBuilder::range::<f64>("x", 1, 4);
    /// let table = AnyTable::create(&mut client, spec.spec())?;
    /// let args = AnyFunctionArgs::default();
    /// table.update(&mut client, "index + 1", &args)?;
    /// let sum = table.reduce(&mut client, "x", Reduction::Sum, &args)?;
    /// assert_eq!(sum, Some(Scalar::Float(10.0)));
    /// # client.finish()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::update`]; [`ClientError::Expression`] for a wrong text; [`ClientError::Argument`] for
    /// an input of another element type.
    pub fn update(
        self,
        client: &mut Client,
        text: &str,
        args: &AnyFunctionArgs<'_>,
    ) -> Result<Ticket, ClientError> {
        with_typed!(self, client, "update", args, (table, typed) => {
            client.update(&table, &Expression::parse(text)?, &typed)
        })
    }

    /// Compiles the expression `text` and runs [`Client::reduce`] with this table as target: combines its values
    /// over all elements. `None` without elements.
    ///
    /// # Errors
    /// As [`Client::reduce`] and [`AnyTable::update`].
    pub fn reduce(
        self,
        client: &mut Client,
        text: &str,
        reduction: Reduction,
        args: &AnyFunctionArgs<'_>,
    ) -> Result<Option<Scalar>, ClientError> {
        with_typed!(self, client, "reduce", args, (table, typed) => {
            client.reduce(&table, &Expression::parse(text)?, reduction, &typed)
        })
    }

    /// Runs [`Client::call_update`] with this table as target: the servers' update function `name` changes its
    /// elements.
    ///
    /// # Errors
    /// As [`Client::call_update`]; [`ClientError::Argument`] for an input of another element type.
    pub fn call_update(
        self,
        client: &mut Client,
        name: &str,
        arguments: &[u8],
        args: &AnyFunctionArgs<'_>,
    ) -> Result<Ticket, ClientError> {
        with_typed!(self, client, "call_update", args, (table, typed) => {
            client.call_update(&table, name, arguments, &typed)
        })
    }

    /// Runs [`Client::call_reduce`] with this table as target: returns the results of the servers' function `name`
    /// for all pieces.
    ///
    /// # Errors
    /// As [`Client::call_reduce`]; [`ClientError::Argument`] for an input of another element type.
    pub fn call_reduce(
        self,
        client: &mut Client,
        name: &str,
        arguments: &[u8],
        args: &AnyFunctionArgs<'_>,
    ) -> Result<Vec<Vec<u8>>, ClientError> {
        with_typed!(self, client, "call_reduce", args, (table, typed) => {
            client.call_reduce(&table, name, arguments, &typed)
        })
    }
}

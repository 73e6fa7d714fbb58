//! Functions that run where the data is: arguments and results of `Session.update` and its like.

use std::ops::Range;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyRange;
use tidewater::{AnyFunctionArgs, AnyTable, Scalar};

use crate::table::Table;

/// Number that an expression has as p0, p1, ...: a float, or an integer that a float holds exactly.
pub(crate) struct Parameter(f64);

impl<'py> FromPyObject<'_, 'py> for Parameter {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let value: f64 = given.extract()?;
        let float = value.into_pyobject(given.py())?.into_any();
        // Integers of Python and numpy have it, floats do not. Compared as one of Python, which rounds neither.
        let whole = given.call_method0("__index__").ok();
        if whole.is_some_and(|whole| !float.eq(whole).unwrap_or(false)) {
            return Err(PyValueError::new_err(format!(
                "parameter {} is no exact float; write it in the expression, or give a float",
                given.str()?
            )));
        }
        Ok(Self(value))
    }
}

/// Keywords of a call, as Rust values.
pub(crate) struct Inputs {
    tables: Vec<AnyTable>,
    parameters: Vec<f64>,
    range: Option<Range<u64>>,
}

impl Inputs {
    pub(crate) fn new(
        inputs: &[PyRef<'_, Table>],
        parameters: Vec<Parameter>,
        range: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self {
            tables: inputs.iter().map(|table| table.any()).collect(),
            parameters: parameters
                .into_iter()
                .map(|Parameter(value)| value)
                .collect(),
            range: range.map(elements).transpose()?,
        })
    }

    /// Arguments of the client's calls.
    pub(crate) fn args(&self) -> AnyFunctionArgs<'_> {
        AnyFunctionArgs {
            inputs: &self.tables,
            parameters: &self.parameters,
            range: self.range.clone(),
        }
    }
}

/// Converts `range(first, end)` or `(first, end)`.
fn elements(given: &Bound<'_, PyAny>) -> PyResult<Range<u64>> {
    let (first, end): (i64, i64) = if let Ok(range) = given.cast::<PyRange>() {
        let step: i64 = range.getattr("step")?.extract()?;
        if step != 1 {
            let what = format!("range has step {step}; functions cover ranges of step 1");
            return Err(PyValueError::new_err(what));
        }
        (
            range.getattr("start")?.extract()?,
            range.getattr("stop")?.extract()?,
        )
    } else {
        let wrong = |_| PyTypeError::new_err("range is range(first, end), (first, end) or None");
        given.extract().map_err(wrong)?
    };
    match (u64::try_from(first), u64::try_from(end)) {
        (Ok(first), Ok(end)) if first <= end => Ok(first..end),
        _ => Err(PyValueError::new_err(format!(
            "range is {first} to {end}; elements count from 0, and the end is not below the first"
        ))),
    }
}

/// Converts a result: a float, an int, or None if there is no element.
pub(crate) fn number(py: Python<'_>, result: Option<Scalar>) -> PyResult<Py<PyAny>> {
    Ok(match result {
        Some(Scalar::Float(value)) => value.into_pyobject(py)?.into_any().unbind(),
        Some(Scalar::Integer(value)) => value.into_pyobject(py)?.into_any().unbind(),
        None => py.None(),
    })
}

//! Collective calls over numpy arrays.

use numpy::{PyUntypedArray, PyUntypedArrayMethods as _};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use tidewater::{Element, ReduceOp};
use tidewater_protocol::table::DType;

use crate::arrays::{Read, Shape, Written};
use crate::options;
use crate::session::Session;

/// Evaluates an expression with the element type of an array, which is named `T` in it.
macro_rules! with_dtype {
    ($dtype:expr, $T:ident => $do:expr) => {
        match $dtype {
            DType::F32 => {
                type $T = f32;
                $do
            }
            DType::F64 => {
                type $T = f64;
                $do
            }
            DType::I32 => {
                type $T = i32;
                $do
            }
            DType::I64 => {
                type $T = i64;
                $do
            }
        }
    };
}

/// The array as numpy's, and its element type.
fn typed<'a, 'py>(
    values: &'a Bound<'py, PyAny>,
) -> PyResult<(&'a Bound<'py, PyUntypedArray>, DType)> {
    let Ok(array) = values.cast::<PyUntypedArray>() else {
        let kind = values.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "values is a {kind}; give a numpy.ndarray (of a CPU tensor: its numpy())"
        )));
    };
    let dtype = options::dtype(array.dtype().as_any())?;
    Ok((array, dtype))
}

/// Values of all workers: a new array of shape (workers, *shape of `values`).
pub(crate) fn all_gather<'py>(
    session: &Session,
    values: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = values.py();
    let (array, dtype) = typed(values)?;
    let all = with_dtype!(dtype, T => {
        let array = Read::<T>::new(values, Shape::Any)?;
        let from = array.slice()?;
        let all = session.with(py, |client| client.all_gather(from))?;
        numpy::PyArray1::from_vec(py, all).into_any()
    });
    let workers = session.with(py, |client| Ok(client.collective_ranks().len()))?;
    let mut shape = vec![workers];
    shape.extend_from_slice(array.shape());
    all.call_method1("reshape", (shape,))
}

/// Replaces `values` by their reduction over all workers.
pub(crate) fn all_reduce(
    session: &Session,
    values: &Bound<'_, PyAny>,
    op: ReduceOp,
) -> PyResult<()> {
    fn reduce<T: Element + numpy::Element>(
        session: &Session,
        values: &Bound<'_, PyAny>,
        op: ReduceOp,
    ) -> PyResult<()> {
        let mut array = Written::<T>::new(values, Shape::Any)?;
        let to = array.slice(&[])?;
        session.with(values.py(), |client| client.all_reduce(to, op))
    }
    let (_, dtype) = typed(values)?;
    with_dtype!(dtype, T => reduce::<T>(session, values, op))
}

/// Replaces `values` by those of worker `root`.
pub(crate) fn broadcast(session: &Session, values: &Bound<'_, PyAny>, root: u32) -> PyResult<()> {
    fn broadcast<T: Element + numpy::Element>(
        session: &Session,
        values: &Bound<'_, PyAny>,
        root: u32,
    ) -> PyResult<()> {
        let mut array = Written::<T>::new(values, Shape::Any)?;
        let to = array.slice(&[])?;
        session.with(values.py(), |client| client.broadcast(root, to))
    }
    let (_, dtype) = typed(values)?;
    with_dtype!(dtype, T => broadcast::<T>(session, values, root))
}

//! Checked access to numpy arrays and DLPack tensors as slices: type, order, shape and write
//! permission.

use numpy::{
    BorrowError, PyArrayDescrMethods as _, PyArrayDyn, PyArrayMethods as _, PyReadonlyArrayDyn,
    PyReadwriteArrayDyn, PyUntypedArray, PyUntypedArrayMethods as _,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use tidewater::Element;
use tidewater_protocol::table::DType;

use crate::dlpack::Tensor;

/// The numpy name of an element type.
pub(crate) const fn numpy_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::I32 => "int32",
        DType::I64 => "int64",
    }
}

/// Required shape of an array.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    /// `(rows, cols)`; with one column also `(rows,)`.
    Rows(usize, usize),
    /// Any shape; the elements are used in C order.
    Any,
}

impl Shape {
    /// Fails unless `given` has this shape.
    pub(crate) fn check(self, what: &str, given: &[usize]) -> PyResult<()> {
        let Self::Rows(rows, cols) = self else {
            return Ok(());
        };
        if given == [rows, cols] || (cols == 1 && given == [rows]) {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "{what} has shape {}; {rows} keys of a table with {cols} columns need ({rows}, {cols})",
            tuple(given)
        )))
    }
}

/// An array that a call writes, borrowed until the value is dropped.
pub(crate) enum Written<'py, T: numpy::Element> {
    Array(PyReadwriteArrayDyn<'py, T>),
    Tensor(Tensor<'py>),
}

impl<'py, T: Element + numpy::Element> Written<'py, T> {
    pub(crate) fn new(array: &Bound<'py, PyAny>, shape: Shape) -> PyResult<Self> {
        if let Some(tensor) = tensor::<T>(array, "out", shape)? {
            return Ok(Self::Tensor(tensor));
        }
        let array = checked::<T>(array, "out", shape)?;
        let borrowed = array.try_readwrite().map_err(|e| match e {
            BorrowError::NotWriteable => PyValueError::new_err("out is read-only"),
            _ => in_use("out"),
        });
        borrowed.map(Self::Array)
    }

    /// Its elements; fails if they overlap `keys`.
    pub(crate) fn slice(&mut self, keys: &[u64]) -> PyResult<&mut [T]> {
        match self {
            // numpy tracks the borrows of its own arrays.
            Self::Array(array) => Ok(array.as_slice_mut()?),
            Self::Tensor(tensor) => tensor.write("out", keys),
        }
    }
}

/// An array that a call reads, borrowed until the value is dropped.
pub(crate) enum Read<'py, T: numpy::Element> {
    Array(PyReadonlyArrayDyn<'py, T>),
    Tensor(Tensor<'py>),
}

impl<'py, T: Element + numpy::Element> Read<'py, T> {
    pub(crate) fn new(array: &Bound<'py, PyAny>, shape: Shape) -> PyResult<Self> {
        if let Some(tensor) = tensor::<T>(array, "values", shape)? {
            return Ok(Self::Tensor(tensor));
        }
        let array = checked::<T>(array, "values", shape)?;
        array
            .try_readonly()
            .map(Self::Array)
            .map_err(|_| in_use("values"))
    }

    /// Elements of the array, in C order.
    pub(crate) fn slice(&self) -> PyResult<&[T]> {
        match self {
            Self::Array(array) => Ok(array.as_slice()?),
            Self::Tensor(tensor) => Ok(tensor.read()),
        }
    }
}

/// Wraps an object that is no numpy array as a tensor of another library, if it is one.
fn tensor<'py, T: Element>(
    array: &Bound<'py, PyAny>,
    what: &str,
    shape: Shape,
) -> PyResult<Option<Tensor<'py>>> {
    if array.cast::<PyUntypedArray>().is_ok() {
        return Ok(None);
    }
    Tensor::of::<T>(array, what, shape)
}

/// Keys: a uint64 array is borrowed; int64 and other sequences of integers are copied.
pub(crate) enum Keys<'py> {
    Borrowed(PyReadonlyArrayDyn<'py, u64>),
    Copied(Vec<u64>),
}

impl<'py> Keys<'py> {
    pub(crate) fn new(keys: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(array) = keys.cast::<PyArrayDyn<u64>>() {
            one_dimension(array.shape())?;
            aligned::<u64>(array.as_untyped(), "keys")?;
            if array.is_c_contiguous() {
                return Ok(Self::Borrowed(
                    array.try_readonly().map_err(|_| in_use("keys"))?,
                ));
            }
        }
        if let Ok(array) = keys.cast::<PyUntypedArray>() {
            one_dimension(array.shape())?;
        }
        keys.extract::<Vec<u64>>().map(Self::Copied).map_err(|e| {
            let what = format!("keys are integers from 0 to 2**64 - 1: {e}");
            PyValueError::new_err(what)
        })
    }

    pub(crate) fn slice(&self) -> PyResult<&[u64]> {
        match self {
            Self::Borrowed(array) => array.as_slice().map_err(|_| not_contiguous("keys", &[])),
            Self::Copied(keys) => Ok(keys),
        }
    }
}

fn one_dimension(shape: &[usize]) -> PyResult<()> {
    if shape.len() == 1 {
        return Ok(());
    }
    let what = format!("keys has shape {}; it has one dimension", tuple(shape));
    Err(PyValueError::new_err(what))
}

fn checked<'a, 'py, T: Element + numpy::Element>(
    array: &'a Bound<'py, PyAny>,
    what: &str,
    shape: Shape,
) -> PyResult<&'a Bound<'py, PyArrayDyn<T>>> {
    let Ok(untyped) = array.cast::<PyUntypedArray>() else {
        let kind = array.get_type().name()?;
        let due = numpy_name(T::DTYPE);
        return Err(PyTypeError::new_err(format!(
            "{what} is a {kind}; give a numpy.ndarray of {due}, or a tensor that has __dlpack__"
        )));
    };
    let Ok(typed) = array.cast::<PyArrayDyn<T>>() else {
        let given = untyped.dtype().str()?;
        let order = if untyped.dtype().is_native_byteorder() == Some(false) {
            " in foreign byte order"
        } else {
            ""
        };
        return Err(PyTypeError::new_err(format!(
            "{what} holds {given}{order}, the table {}",
            numpy_name(T::DTYPE)
        )));
    };
    aligned::<T>(untyped, what)?;
    if !untyped.is_c_contiguous() {
        return Err(not_contiguous(what, untyped.strides()));
    }
    shape.check(what, untyped.shape())?;
    Ok(typed)
}

fn aligned<T>(array: &Bound<'_, PyUntypedArray>, what: &str) -> PyResult<()> {
    if array.is_aligned() {
        return Ok(());
    }
    let bytes = align_of::<T>();
    Err(PyValueError::new_err(format!(
        "{what} is not aligned to {bytes} bytes; a copy is: {what}.copy()"
    )))
}

fn not_contiguous(what: &str, strides: &[isize]) -> PyErr {
    PyValueError::new_err(format!(
        "{what} is not C-contiguous (strides {strides:?}); a copy is: numpy.ascontiguousarray"
    ))
}

fn in_use(what: &str) -> PyErr {
    PyValueError::new_err(format!("{what} is in use by another call"))
}

fn tuple(shape: &[usize]) -> String {
    let each: Vec<String> = shape.iter().map(usize::to_string).collect();
    match &each[..] {
        [one] => format!("({one},)"),
        all => format!("({})", all.join(", ")),
    }
}

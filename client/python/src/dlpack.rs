//! Tensors of other libraries by DLPack. `__dlpack__` returns a capsule with a pointer to a C struct
//! that describes the elements and their address.
//!
//! The capsule is not consumed but kept for the time of a call: its producer frees the tensor's view
//! when the capsule is dropped. The fields of the struct are checked before an element is touched. That
//! they describe the producer's memory truly is trusted, as it is with numpy's arrays.

use std::ffi::c_void;
use std::ptr::{NonNull, without_provenance_mut};
use std::slice;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use tidewater::Element;
use tidewater_protocol::table::DType;

use crate::arrays::{Shape, numpy_name};

/// Most dimensions of a tensor: as many as numpy's arrays.
const NDIM_MAX: usize = 64;
/// Major version of the layout; minor versions only add types.
const MAJOR: u32 = 1;
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;
const CPU: i32 = 1;

/// `DLTensor` as declared in dlpack.h.
#[derive(Clone, Copy)]
#[repr(C)]
struct Raw {
    data: *mut c_void,
    device: (i32, i32),
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// Head of `DLManagedTensorVersioned`, as declared in dlpack.h.
#[derive(Clone, Copy)]
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    manager: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: Raw,
}

/// A tensor in the CPU's memory, C-contiguous and aligned. It lives as long as its capsule.
pub(crate) struct Tensor<'py> {
    _capsule: Bound<'py, PyCapsule>,
    data: NonNull<c_void>,
    dtype: (u8, u8, u16),
    shape: Vec<usize>,
    flags: u64,
}

impl<'py> Tensor<'py> {
    /// Wraps an object as a tensor for a table of `T`; `None` if it does not support DLPack.
    pub(crate) fn of<T: Element>(
        object: &Bound<'py, PyAny>,
        what: &str,
        shape: Shape,
    ) -> PyResult<Option<Self>> {
        if !object.hasattr("__dlpack__")? || !object.hasattr("__dlpack_device__")? {
            return Ok(None);
        }
        let (kind, number) = object
            .call_method0("__dlpack_device__")?
            .extract::<(i32, i32)>()?;
        on_the_cpu(what, kind, number)?;
        let tensor = Self::parse(capsule(object)?, what)?;
        if tensor.dtype != dlpack_type(T::DTYPE) {
            let (given, due) = (tensor.dtype_name(), numpy_name(T::DTYPE));
            let text = format!("{what} holds {given}, the table {due}");
            return Err(PyTypeError::new_err(text));
        }
        shape.check(what, &tensor.shape)?;
        if !tensor.data.cast::<T>().is_aligned() {
            let (at, due) = (tensor.data, align_of::<T>());
            let text = format!("{what} at {at:p} is not aligned to {due} bytes");
            return Err(PyValueError::new_err(text));
        }
        Ok(Some(tensor))
    }

    /// Checks the struct of a capsule and wraps it.
    fn parse(capsule: Bound<'py, PyCapsule>, what: &str) -> PyResult<Self> {
        let (raw, flags) = read(&capsule)?;
        // Some producers state the device in the struct only.
        on_the_cpu(what, raw.device.0, raw.device.1)?;
        let nonsense = |why: String| PyValueError::new_err(format!("{what} is no tensor: {why}"));
        let ndim = usize::try_from(raw.ndim)
            .ok()
            .filter(|&ndim| ndim <= NDIM_MAX)
            .ok_or_else(|| nonsense(format!("{} dimensions", raw.ndim)))?;
        if ndim > 0 && raw.shape.is_null() {
            return Err(nonsense("it has no shape".into()));
        }
        let of = |numbers: *const i64| -> Vec<i64> {
            // SAFETY: not null where this is called with dimensions; the producer's struct says that
            // there are `ndim` numbers, and `ndim` is small.
            (0..ndim)
                .map(|n| unsafe { *numbers.wrapping_add(n) })
                .collect()
        };
        let shape = of(raw.shape);
        let bytes = usize::from(raw.bits.div_ceil(8)).saturating_mul(raw.lanes.into());
        let bytes = elements(&shape).and_then(|n| n.checked_mul(bytes));
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok());
        let Some(bytes) = bytes else {
            return Err(nonsense(format!("its shape is {shape:?}")));
        };
        if !raw.strides.is_null() {
            let strides = of(raw.strides);
            if bytes > 0 && !contiguous(&shape, &strides) {
                let text = format!(
                    "{what} is not C-contiguous (strides {strides:?} elements); a copy is: \
                     its contiguous()"
                );
                return Err(PyValueError::new_err(text));
            }
        }
        let offset = usize::try_from(raw.byte_offset).unwrap_or(usize::MAX);
        let data = if bytes == 0 {
            // There may be no memory: any aligned address will do.
            NonNull::new(without_provenance_mut(64))
        } else if raw.data.is_null() || raw.data.addr().checked_add(offset).is_none() {
            None
        } else {
            NonNull::new(raw.data.wrapping_byte_add(offset))
        };
        Ok(Self {
            _capsule: capsule,
            data: data.ok_or_else(|| nonsense("it has no memory".into()))?,
            dtype: (raw.code, raw.bits, raw.lanes),
            shape: shape.iter().map(|&n| n.unsigned_abs() as usize).collect(),
            flags,
        })
    }

    /// Elements of the tensor, in C order.
    pub(crate) fn read<T: Element>(&self) -> &[T] {
        debug_assert_eq!(self.dtype, dlpack_type(T::DTYPE));
        // SAFETY: `of` has checked type, alignment, order and size; the memory lives as long as the
        // capsule; the caller must ensure that nothing writes to it during the call.
        unsafe { slice::from_raw_parts(self.data.cast().as_ptr(), self.len()) }
    }

    /// Like [`Tensor::read`], for writing; fails if it is read-only, a copy, or overlaps `keys`.
    pub(crate) fn write<T: Element>(&mut self, what: &str, keys: &[u64]) -> PyResult<&mut [T]> {
        debug_assert_eq!(self.dtype, dlpack_type(T::DTYPE));
        if self.flags & READ_ONLY != 0 {
            return Err(PyValueError::new_err(format!("{what} is read-only")));
        }
        if self.flags & IS_COPIED != 0 {
            let text = format!("{what} would be a copy: its library cannot hand it over as it is");
            return Err(PyValueError::new_err(text));
        }
        let (at, bytes) = (self.data.addr().get(), self.len() * size_of::<T>());
        let (key, key_bytes) = (keys.as_ptr().addr(), size_of_val(keys));
        if bytes > 0 && key_bytes > 0 && at < key + key_bytes && key < at + bytes {
            return Err(PyValueError::new_err(format!("{what} overlaps keys")));
        }
        // SAFETY: as in `read`; and it is no memory that this call reads.
        Ok(unsafe { slice::from_raw_parts_mut(self.data.cast().as_ptr(), self.len()) })
    }

    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    fn dtype_name(&self) -> String {
        let (code, bits, lanes) = self.dtype;
        let kind = match code {
            0 => "int",
            1 => "uint",
            2 => "float",
            4 => "bfloat",
            5 => "complex",
            6 => "bool",
            _ => return format!("elements of DLPack type {code}"),
        };
        let vector = if lanes == 1 {
            String::new()
        } else {
            format!("x{lanes}")
        };
        format!("{kind}{bits}{vector}")
    }
}

/// Requests a capsule of version 1; falls back to the older layout if the object does not know it.
fn capsule<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCapsule>> {
    let py = object.py();
    let options = PyDict::new(py);
    options.set_item("max_version", (MAJOR, 0))?;
    let capsule = match object.call_method("__dlpack__", (), Some(&options)) {
        Err(e) if e.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__")?,
        told => told?,
    };
    let kind = capsule.get_type();
    capsule
        .cast_into::<PyCapsule>()
        .map_err(|_| PyTypeError::new_err(format!("__dlpack__ gave a {kind}, which is no capsule")))
}

/// Reads the struct of a capsule, and its flags.
fn read(capsule: &Bound<'_, PyCapsule>) -> PyResult<(Raw, u64)> {
    if let Ok(pointer) = capsule.pointer_checked(Some(c"dltensor")) {
        // SAFETY: a capsule of that name holds a `DLManagedTensor`, which begins with a tensor; it
        // lives as long as the capsule.
        return Ok((unsafe { pointer.cast::<Raw>().read() }, 0));
    }
    let pointer = capsule.pointer_checked(Some(c"dltensor_versioned"))?;
    // SAFETY: a capsule of that name begins with its version, whatever that is.
    let [major, minor] = unsafe { pointer.cast::<[u32; 2]>().read() };
    if major != MAJOR {
        let text = format!("a tensor of DLPack {major}.{minor}, where {MAJOR} was asked for");
        return Err(PyValueError::new_err(text));
    }
    // SAFETY: of this version it is such a struct; it lives as long as the capsule.
    let versioned = unsafe { pointer.cast::<Versioned>().read() };
    Ok((versioned.tensor, versioned.flags))
}

fn on_the_cpu(what: &str, kind: i32, number: i32) -> PyResult<()> {
    let name = match kind {
        CPU => return Ok(()),
        2 => "CUDA",
        3 => "pinned CUDA",
        8 => "Metal",
        10 => "ROCm",
        11 => "pinned ROCm",
        14 => "oneAPI",
        _ => "other",
    };
    Err(PyValueError::new_err(format!(
        "{what} is on {name} device {number} (DLPack type {kind}), not on the CPU; a copy is: its cpu()"
    )))
}

/// DLPack code, bits and lanes of an element type.
const fn dlpack_type(dtype: DType) -> (u8, u8, u16) {
    match dtype {
        DType::F32 => (2, 32, 1),
        DType::F64 => (2, 64, 1),
        DType::I32 => (0, 32, 1),
        DType::I64 => (0, 64, 1),
    }
}

/// Number of elements of a shape; `None` if it is negative or overflows.
fn elements(shape: &[i64]) -> Option<usize> {
    let mut lengths = shape.iter().map(|&n| usize::try_from(n).ok());
    lengths.try_fold(1usize, |all, n| all.checked_mul(n?))
}

/// Whether rows follow each other without gaps. A dimension of one element may have any stride.
fn contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut due = 1;
    shape.iter().zip(strides).rev().all(|(&n, &stride)| {
        let fits = n == 1 || stride == due;
        due *= n;
        fits
    })
}

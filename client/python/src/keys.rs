//! Lists of the stored keys of a table.

use std::sync::Mutex;

use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PySlice, PyTuple};
use tidewater::{AnyTable, ScanCursor};

use crate::arrays::{Shape, Written};
use crate::table::{Table, with_table};

/// Most keys of an array.
const BATCH_MAX: usize = 1 << 24;

/// Iterator over the keys of a table, in arrays of up to `batch` keys.
#[pyclass(frozen, module = "tidewater")]
pub(crate) struct Scan {
    table: Py<Table>,
    batch: usize,
    rows: bool,
    cursor: Mutex<ScanCursor>,
}

impl Scan {
    /// A scan of some partitions, or of all.
    pub(crate) fn new(
        table: Py<Table>,
        batch: usize,
        rows: bool,
        partitions: Option<(u32, u32)>,
    ) -> PyResult<Self> {
        if !(1..=BATCH_MAX).contains(&batch) {
            let what = format!("batch is {batch}; it is 1 to {BATCH_MAX}");
            return Err(PyValueError::new_err(what));
        }
        let (first, end) = partitions.unwrap_or((0, u32::MAX));
        Ok(Self {
            table,
            batch,
            rows,
            cursor: Mutex::new(ScanCursor::of_partitions(first..end)),
        })
    }
}

#[pymethods]
impl Scan {
    const fn __iter__(it: PyRef<'_, Self>) -> PyRef<'_, Self> {
        it
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let busy = || PyValueError::new_err("the scan is in use by another thread");
        let mut cursor = self.cursor.try_lock().map_err(|_| busy())?;
        let cursor = &mut *cursor;
        let table = self.table.get();
        let session = table.session(py);
        let session = session.get();
        let mut keys = vec![0; self.batch];
        let any = table.any();
        if !self.rows {
            let n = session.with(py, |client| any.scan_keys(client, cursor, &mut keys))?;
            let keys = PyArray1::from_slice(py, &keys[..n]);
            return Ok((n > 0).then(|| keys.into_any()));
        }
        let values = table.new_array(py, Some(&keys))?;
        let n = with_table!(any, (table, T) => {
            let mut array = Written::<T>::new(&values, Shape::Any)?;
            let to = array.slice(&[])?;
            session.with(py, |client| client.scan_rows(&table, cursor, &mut keys, to))?
        });
        let keys = PyArray1::from_slice(py, &keys[..n]);
        let values = values.get_item(PySlice::new(py, 0, n as isize, 1))?;
        let both = PyTuple::new(py, [keys.into_any(), values])?;
        Ok((n > 0).then(|| both.into_any()))
    }
}

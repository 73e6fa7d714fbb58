//! Push buffers and cached tables: rows that a worker keeps between calls.
//!
//! Their locks are taken without the interpreter lock only. A call that waits for a server holds one, and
//! takes the interpreter lock for signal handlers: a thread that waited for it with that lock would block
//! both.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tidewater::{self as client, AnyPushBuffer, AnyTable, Client, ClientError};
use tidewater_protocol::table::PushOp;

use crate::arrays::{Keys, Read, Written};
use crate::options;
use crate::table::{Table, Ticket};

/// Updates of a table's rows, merged by key before they are pushed together.
#[pyclass(frozen, module = "tidewater")]
pub(crate) struct PushBuffer {
    table: Py<Table>,
    buffer: Mutex<AnyPushBuffer>,
}

impl PushBuffer {
    fn buffer(&self) -> MutexGuard<'_, AnyPushBuffer> {
        // A panic inside a call poisons the session too, so that no later call uses the buffer.
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `body` with the buffer, without the interpreter lock.
    fn look<R: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut AnyPushBuffer) -> R + Send,
    ) -> PyResult<R> {
        self.table.get().session(py).get().check_caller()?;
        Ok(py.detach(|| body(&mut self.buffer())))
    }

    fn push(
        &self,
        py: Python<'_>,
        push: impl FnOnce(&mut AnyPushBuffer, &mut Client) -> Result<client::Ticket, ClientError> + Send,
    ) -> PyResult<Ticket> {
        let session = self.table.get().session(py);
        let pushed = session
            .get()
            .with(py, |client| push(&mut self.buffer(), client))?;
        Ok(Ticket::new(session, pushed))
    }
}

#[pymethods]
impl PushBuffer {
    #[new]
    #[pyo3(signature = (table, op="sum", *, rows_max=None, bytes_max=None, threshold=0.0, weight=1.0))]
    fn new(
        table: Py<Table>,
        op: &str,
        rows_max: Option<usize>,
        bytes_max: Option<usize>,
        threshold: f64,
        weight: f64,
    ) -> PyResult<Self> {
        table.get().check_by_rows("PushBuffer")?;
        let any = table.get().any();
        let mut buffer = match options::op(op)? {
            PushOp::Sum => AnyPushBuffer::sum(any),
            PushOp::Gradient => AnyPushBuffer::gradient(any),
            PushOp::Min => AnyPushBuffer::min(any),
            PushOp::Max => AnyPushBuffer::max(any),
            PushOp::Assign => {
                let what =
                    "op is 'assign'; a buffer merges updates, by 'sum', 'gradient', 'min' or 'max'";
                return Err(PyValueError::new_err(what));
            }
        };
        if let Some(rows) = rows_max {
            buffer = buffer.rows_max(rows);
        }
        if let Some(bytes) = bytes_max {
            buffer = buffer.bytes_max(bytes);
        }
        let buffer = Mutex::new(buffer.threshold(threshold).weight(weight));
        Ok(Self { table, buffer })
    }

    #[getter]
    fn table(&self, py: Python<'_>) -> Py<Table> {
        self.table.clone_ref(py)
    }

    /// Number of distinct rows in the buffer.
    #[getter]
    fn rows(&self, py: Python<'_>) -> PyResult<usize> {
        self.look(py, |buffer| buffer.rows())
    }

    /// Bytes of the keys and values in the buffer.
    #[getter]
    fn bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.look(py, |buffer| buffer.bytes())
    }

    /// Adds updates of rows; pushes the buffer when it is full.
    fn add(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let table = self.table.get();
        let keys = Keys::new(keys)?;
        let keys = keys.slice()?;
        let shape = table.shape(Some(keys));
        let session = table.session(py);
        macro_rules! add {
            ($name:ident) => {{
                let array = Read::new(values, shape)?;
                let from = array.slice()?;
                session.get().with(py, |client| match &mut *self.buffer() {
                    AnyPushBuffer::$name(buffer) => buffer.add(client, keys, from),
                    _ => Err(other_type()),
                })
            }};
        }
        match table.any() {
            AnyTable::F32(_) => add!(F32),
            AnyTable::F64(_) => add!(F64),
            AnyTable::I32(_) => add!(I32),
            AnyTable::I64(_) => add!(I64),
        }
    }

    /// Pushes the rows of at least the threshold.
    fn flush(&self, py: Python<'_>) -> PyResult<Ticket> {
        self.push(py, AnyPushBuffer::flush)
    }

    /// Pushes all rows, whatever their magnitude.
    fn flush_all(&self, py: Python<'_>) -> PyResult<Ticket> {
        self.push(py, AnyPushBuffer::flush_all)
    }

    /// Drops all rows and returns their number.
    fn clear(&self, py: Python<'_>) -> PyResult<usize> {
        self.look(py, AnyPushBuffer::clear)
    }
}

/// Failure of a call with an array of another type than the buffer. `Read` and `Written` check the types first.
fn other_type() -> ClientError {
    ClientError::Environment("rows of another element type: a defect, please report it".into())
}

/// A cache of any element type.
enum AnyCached {
    F32(tidewater::CachedTable<f32>),
    F64(tidewater::CachedTable<f64>),
    I32(tidewater::CachedTable<i32>),
    I64(tidewater::CachedTable<i64>),
}

/// Evaluates an expression with a cache of any type.
macro_rules! each {
    ($any:expr, $cached:ident => $do:expr) => {
        match $any {
            AnyCached::F32($cached) => $do,
            AnyCached::F64($cached) => $do,
            AnyCached::I32($cached) => $do,
            AnyCached::I64($cached) => $do,
        }
    };
}

/// Rows of a table that are pulled again when they are older than the staleness allows.
#[pyclass(frozen, module = "tidewater")]
pub(crate) struct CachedTable {
    table: Py<Table>,
    cached: Mutex<AnyCached>,
}

impl CachedTable {
    fn cached(&self) -> MutexGuard<'_, AnyCached> {
        // As of `PushBuffer::buffer`.
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `body` with the cache, without the interpreter lock.
    fn look<R: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut AnyCached) -> R + Send,
    ) -> PyResult<R> {
        self.table.get().session(py).get().check_caller()?;
        Ok(py.detach(|| body(&mut self.cached())))
    }
}

#[pymethods]
impl CachedTable {
    #[new]
    fn new(table: Py<Table>, rows: usize) -> PyResult<Self> {
        table.get().check_by_rows("CachedTable")?;
        let cached = match &table.get().any() {
            AnyTable::F32(table) => AnyCached::F32(tidewater::CachedTable::new(table, rows)),
            AnyTable::F64(table) => AnyCached::F64(tidewater::CachedTable::new(table, rows)),
            AnyTable::I32(table) => AnyCached::I32(tidewater::CachedTable::new(table, rows)),
            AnyTable::I64(table) => AnyCached::I64(tidewater::CachedTable::new(table, rows)),
        };
        let cached = Mutex::new(cached);
        Ok(Self { table, cached })
    }

    #[getter]
    fn table(&self, py: Python<'_>) -> Py<Table> {
        self.table.clone_ref(py)
    }

    /// Pulls rows into `out`, those of the cache without a read; returns `out`.
    #[pyo3(signature = (keys, out=None, *, mode="consistent", missing="create", timeout=None))]
    fn pull<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
        mode: &str,
        missing: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let table = self.table.get();
        let keys = Keys::new(keys)?;
        let keys = keys.slice()?;
        let session = table.session(py);
        let options = options::pull(mode, missing, timeout, session.get().timeout)?;
        let shape = table.shape(Some(keys));
        let out = match out {
            Some(out) => out,
            None => table.new_array(py, Some(keys))?,
        };
        macro_rules! pull {
            ($name:ident) => {{
                let mut array = Written::new(&out, shape)?;
                let to = array.slice(keys)?;
                session.get().with(py, |client| match &mut *self.cached() {
                    AnyCached::$name(cached) => cached.pull_rows(client, keys, to, options),
                    _ => Err(other_type()),
                })?;
            }};
        }
        match table.any() {
            AnyTable::F32(_) => pull!(F32),
            AnyTable::F64(_) => pull!(F64),
            AnyTable::I32(_) => pull!(I32),
            AnyTable::I64(_) => pull!(I64),
        }
        Ok(out)
    }

    /// Pushes values that the servers add up, and adds them, times the weight, to the rows of the cache.
    #[pyo3(signature = (values, keys, *, weight=1.0))]
    fn push(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        weight: f64,
    ) -> PyResult<Ticket> {
        let table = self.table.get();
        let keys = Keys::new(keys)?;
        let keys = keys.slice()?;
        let shape = table.shape(Some(keys));
        let session = table.session(py);
        let options = client::PushOptions::default().weight(weight);
        macro_rules! push {
            ($name:ident) => {{
                let array = Read::new(values, shape)?;
                let from = array.slice()?;
                session.get().with(py, |client| match &mut *self.cached() {
                    AnyCached::$name(cached) => cached.push_rows(client, keys, from, options),
                    _ => Err(other_type()),
                })?
            }};
        }
        let pushed = match table.any() {
            AnyTable::F32(_) => push!(F32),
            AnyTable::F64(_) => push!(F64),
            AnyTable::I32(_) => push!(I32),
            AnyTable::I64(_) => push!(I64),
        };
        Ok(Ticket::new(session, pushed))
    }

    /// Drops rows, so that the next call pulls them.
    fn forget(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let keys = Keys::new(keys)?;
        let keys = keys.slice()?;
        self.look(py, |any| each!(any, cached => cached.forget(keys)))
    }

    /// Number of rows that calls took from the cache.
    #[getter]
    fn hits(&self, py: Python<'_>) -> PyResult<u64> {
        self.look(py, |any| each!(any, cached => cached.hits()))
    }

    /// Number of rows that calls had to pull.
    #[getter]
    fn misses(&self, py: Python<'_>) -> PyResult<u64> {
        self.look(py, |any| each!(any, cached => cached.misses()))
    }

    /// Number of rows in the cache, usable or not.
    #[getter]
    fn rows(&self, py: Python<'_>) -> PyResult<usize> {
        self.look(py, |any| each!(any, cached => cached.rows()))
    }
}

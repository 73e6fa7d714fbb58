//! Tables over numpy arrays, and tickets of pushes.

use std::sync::Mutex;

use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tidewater::{self as client, AnyTable, GroupRange};
use tidewater_protocol::table::{DenseLayout, Shape, TableSpec};
use tidewater_runtime::clock::Deadline;

use crate::arrays::{self, Keys, Read, Written};
use crate::keys::Scan;
use crate::options;
use crate::pull::Pull;
use crate::schedule::Schedule;
use crate::session::Session;

/// Evaluates an expression with a table of any type, which is named `T` in it.
macro_rules! with_table {
    ($any:expr, ($table:ident, $T:ident) => $do:expr) => {
        match $any {
            AnyTable::F32($table) => {
                type $T = f32;
                $do
            }
            AnyTable::F64($table) => {
                type $T = f64;
                $do
            }
            AnyTable::I32($table) => {
                type $T = i32;
                $do
            }
            AnyTable::I64($table) => {
                type $T = i64;
                $do
            }
        }
    };
}

/// Versions of the elements of a pull.
#[pyclass(frozen, get_all, module = "tidewater")]
pub(crate) struct Pulled {
    version: Option<u64>,
    stores: Option<(u64, u64)>,
}

#[pymethods]
impl Pulled {
    fn __repr__(&self) -> String {
        let version = self
            .version
            .map_or_else(|| "None".into(), |v| v.to_string());
        match self.stores {
            Some((smallest, largest)) => {
                format!("Pulled(version={version}, stores=({smallest}, {largest}))")
            }
            None => format!("Pulled(version={version}, stores=None)"),
        }
    }
}

/// A new array of one of the element types, for a range of a group.
enum AnyWritten<'py> {
    F32(Written<'py, f32>),
    F64(Written<'py, f64>),
    I32(Written<'py, i32>),
    I64(Written<'py, i64>),
}

/// Pulls all of several range tables as of one version; returns the arrays and the version.
pub(crate) fn pull_group<'py>(
    session: &Session,
    py: Python<'py>,
    tables: &[PyRef<'_, Table>],
    timeout: Option<f64>,
) -> PyResult<(Vec<Bound<'py, PyAny>>, Option<u64>)> {
    let options = options::pull("snapshot", "create", timeout, session.timeout)?;
    let (mut arrays, mut written) = (Vec::new(), Vec::new());
    for table in tables {
        let array = table.new_array(py, None)?;
        let any = arrays::Shape::Any;
        written.push(match table.any {
            AnyTable::F32(_) => AnyWritten::F32(Written::new(&array, any)?),
            AnyTable::F64(_) => AnyWritten::F64(Written::new(&array, any)?),
            AnyTable::I32(_) => AnyWritten::I32(Written::new(&array, any)?),
            AnyTable::I64(_) => AnyWritten::I64(Written::new(&array, any)?),
        });
        arrays.push(array);
    }
    let mut ranges = Vec::new();
    for (table, written) in tables.iter().zip(&mut written) {
        ranges.push(match (table.any, written) {
            (AnyTable::F32(t), AnyWritten::F32(to)) => GroupRange::new(&t, 0, to.slice(&[])?),
            (AnyTable::F64(t), AnyWritten::F64(to)) => GroupRange::new(&t, 0, to.slice(&[])?),
            (AnyTable::I32(t), AnyWritten::I32(to)) => GroupRange::new(&t, 0, to.slice(&[])?),
            (AnyTable::I64(t), AnyWritten::I64(to)) => GroupRange::new(&t, 0, to.slice(&[])?),
            _ => unreachable!("the array was made for the table's type"),
        });
    }
    let pulled = session.with(py, |client| client.pull_group(&mut ranges, options))?;
    drop(ranges);
    drop(written);
    Ok((arrays, pulled.version))
}
pub(crate) use with_table;

/// A table of a session.
#[pyclass(frozen, module = "tidewater")]
pub(crate) struct Table {
    session: Py<Session>,
    any: AnyTable,
    spec: TableSpec,
}

impl Table {
    pub(crate) const fn new(session: Py<Session>, any: AnyTable, spec: TableSpec) -> Self {
        Self { session, any, spec }
    }

    /// The table's handle, of any element type.
    pub(crate) const fn any(&self) -> AnyTable {
        self.any
    }

    /// Session that opened the table.
    pub(crate) fn session(&self, py: Python<'_>) -> Py<Session> {
        self.session.clone_ref(py)
    }

    /// Gives up a pull at the session's next call.
    pub(crate) fn abandon(&self, pull: client::PullTicket) {
        self.session.get().abandon(pull);
    }

    /// Fails unless the table is addressed by rows.
    pub(crate) fn check_by_rows(&self, what: &str) -> PyResult<()> {
        if !self.is_ranges() {
            return Ok(());
        }
        let name = &self.spec.name;
        Err(PyValueError::new_err(format!(
            "table \"{name}\" is by ranges; {what} is for kinds \"sparse\" and \"rows\""
        )))
    }

    fn is_ranges(&self) -> bool {
        let layout = match self.spec.shape {
            Shape::Dense { layout, .. } => layout,
            Shape::Sparse { .. } => return false,
        };
        matches!(layout, DenseLayout::Blocks { .. })
    }

    /// Fails when a call by rows has no keys, or one by ranges has some.
    fn keys<'py>(&self, keys: Option<&Bound<'py, PyAny>>) -> PyResult<Option<Keys<'py>>> {
        match (keys, self.is_ranges()) {
            (Some(keys), false) => Keys::new(keys).map(Some),
            (None, true) => Ok(None),
            (None, false) => Err(PyValueError::new_err(format!(
                "table \"{}\" has rows: say which by keys",
                self.spec.name
            ))),
            (Some(_), true) => Err(PyValueError::new_err(format!(
                "table \"{}\" is by ranges: say where by first, not by keys",
                self.spec.name
            ))),
        }
    }

    /// Shape of an array that holds these rows.
    pub(crate) fn shape(&self, keys: Option<&[u64]>) -> arrays::Shape {
        keys.map_or(arrays::Shape::Any, |keys| {
            arrays::Shape::Rows(keys.len(), self.spec.dim())
        })
    }

    /// Columns of a row.
    pub(crate) fn dim(&self) -> usize {
        self.spec.dim()
    }

    /// Makes a new array of rows, or of elements of a range.
    pub(crate) fn array_of<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        is_range: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dtype = arrays::numpy_name(self.spec.dtype);
        let numpy = py.import("numpy")?;
        match is_range {
            true => numpy.call_method1("empty", (count, dtype)),
            false => numpy.call_method1("empty", ((count, self.dim()), dtype)),
        }
    }

    /// Makes a new array for a pull without `out`: of the keys' rows, or of the whole table.
    pub(crate) fn new_array<'py>(
        &self,
        py: Python<'py>,
        keys: Option<&[u64]>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let rows = match (keys, &self.spec.shape) {
            (Some(keys), _) => keys.len() as u64,
            (None, Shape::Dense { rows, .. }) => *rows,
            (None, Shape::Sparse { .. }) => 0,
        };
        let dtype = arrays::numpy_name(self.spec.dtype);
        let shape = (rows, self.spec.dim());
        py.import("numpy")?.call_method1("empty", (shape, dtype))
    }
}

#[pymethods]
impl Table {
    #[getter]
    fn name(&self) -> &str {
        &self.spec.name
    }

    #[getter]
    fn cols(&self) -> usize {
        self.spec.dim()
    }

    #[getter]
    const fn rows(&self) -> Option<u64> {
        match self.spec.shape {
            Shape::Dense { rows, .. } => Some(rows),
            Shape::Sparse { .. } => None,
        }
    }

    #[getter]
    const fn partitions(&self) -> u32 {
        self.spec.partitions
    }

    #[getter]
    fn partition_servers(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let any = self.any;
        let session = self.session(py);
        let owners = session
            .get()
            .with(py, |client| any.partition_owners(client))?;
        Ok(owners.iter().map(|owner| owner.server.0).collect())
    }

    /// First row or element of each partition; None for a sparse table.
    #[getter]
    fn partition_starts(&self, py: Python<'_>) -> PyResult<Option<Vec<u64>>> {
        if matches!(self.spec.shape, Shape::Sparse { .. }) {
            return Ok(None);
        }
        let any = self.any;
        let session = self.session(py);
        let ranges = session
            .get()
            .with(py, |client| any.partition_ranges(client))?;
        Ok(Some(ranges.into_iter().map(|range| range.start).collect()))
    }

    #[getter]
    fn kind(&self) -> &'static str {
        match (&self.spec.shape, self.is_ranges()) {
            (Shape::Sparse { .. }, _) => "sparse",
            (_, false) => "rows",
            (_, true) => "range",
        }
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let name = arrays::numpy_name(self.spec.dtype);
        py.import("numpy")?.call_method1("dtype", (name,))
    }

    #[getter(session)]
    fn its_session(&self, py: Python<'_>) -> Py<Session> {
        self.session(py)
    }

    /// Pulls rows by `keys`, or elements from `first` on, into `out`; returns `out`.
    #[pyo3(signature = (keys=None, out=None, *, first=0, mode="consistent", missing="create",
        timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn pull<'py>(
        &self,
        py: Python<'py>,
        keys: Option<&Bound<'py, PyAny>>,
        out: Option<Bound<'py, PyAny>>,
        first: i64,
        mode: &str,
        missing: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let pulled = self.pull_with_versions(py, keys, out, first, mode, missing, timeout);
        pulled.map(|(out, _)| out)
    }

    /// Pulls like `pull`; returns `out` and the versions of its elements.
    #[pyo3(signature = (keys=None, out=None, *, first=0, mode="consistent", missing="create",
        timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn pull_with_versions<'py>(
        &self,
        py: Python<'py>,
        keys: Option<&Bound<'py, PyAny>>,
        out: Option<Bound<'py, PyAny>>,
        first: i64,
        mode: &str,
        missing: &str,
        timeout: Option<f64>,
    ) -> PyResult<(Bound<'py, PyAny>, Pulled)> {
        let keys = self.keys(keys)?;
        let keys = keys.as_ref().map(Keys::slice).transpose()?;
        let first = options::first(first)?;
        let session = self.session.get();
        let options = options::pull(mode, missing, timeout, session.timeout)?;
        let out = match out {
            Some(out) => out,
            None => self.new_array(py, keys)?,
        };
        let pulled = with_table!(self.any, (table, T) => {
            let mut array = Written::<T>::new(&out, self.shape(keys))?;
            let to = array.slice(keys.unwrap_or_default())?;
            session.with(py, |client| match keys {
                Some(keys) => client.pull_rows(&table, keys, to, options),
                None => client.pull_range(&table, first, to, options),
            })?
        });
        let stores = pulled
            .stores
            .map(|stores| (stores.smallest, stores.largest));
        let version = pulled.version;
        Ok((out, Pulled { version, stores }))
    }

    /// Starts a pull of rows by `keys`, or of `count` elements from `first` on.
    #[pyo3(signature = (keys=None, *, first=0, count=None, mode="consistent", missing="create",
        timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn start_pull(
        me: &Bound<'_, Self>,
        keys: Option<&Bound<'_, PyAny>>,
        first: i64,
        count: Option<usize>,
        mode: &str,
        missing: &str,
        timeout: Option<f64>,
    ) -> PyResult<Pull> {
        let (py, table) = (me.py(), me.get());
        let keys = table.keys(keys)?;
        let keys = keys.as_ref().map(Keys::slice).transpose()?;
        let first = options::first(first)?;
        let session = table.session.get();
        let options = options::pull(mode, missing, timeout, session.timeout)?;
        let elements = table.rows().unwrap_or_default() * table.dim() as u64;
        let to_end = usize::try_from(elements.saturating_sub(first)).unwrap_or(usize::MAX);
        let count = match (keys, count) {
            (Some(_), Some(_)) => {
                return Err(PyValueError::new_err(
                    "count is of ranges; keys say how many rows",
                ));
            }
            (Some(keys), None) => keys.len(),
            (None, count) => count.unwrap_or(to_end),
        };
        let ticket = with_table!(table.any, (table, T) => {
            session.with(py, |client| match keys {
                Some(keys) => client.start_pull_rows::<T>(&table, keys, options),
                None => client.start_pull_range::<T>(&table, first, count, options),
            })?
        });
        Ok(Pull::new(
            me.clone().unbind(),
            ticket,
            (count, keys.is_none()),
        ))
    }

    /// Pins a version, or the newest; returns its number.
    #[pyo3(signature = (version=None))]
    fn pin(&self, py: Python<'_>, version: Option<u64>) -> PyResult<u64> {
        let session = self.session.get();
        session.with(py, |client| self.any.pin(client, version))
    }

    /// Ends a pin of this session.
    fn unpin(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        let session = self.session.get();
        session.with(py, |client| self.any.unpin(client, version))
    }

    /// Pulls elements from `first` on of a pinned version into `out`; returns `out`.
    #[pyo3(signature = (version, out=None, *, first=0, timeout=None))]
    fn pull_pinned<'py>(
        &self,
        py: Python<'py>,
        version: u64,
        out: Option<Bound<'py, PyAny>>,
        first: i64,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let first = options::first(first)?;
        let session = self.session.get();
        let options = options::pull("snapshot", "create", timeout, session.timeout)?;
        let out = match out {
            Some(out) => out,
            None => self.new_array(py, None)?,
        };
        with_table!(self.any, (table, T) => {
            let mut array = Written::<T>::new(&out, self.shape(None))?;
            let to = array.slice(&[])?;
            session.with(py, |client| client.pull_pinned(&table, version, first, to, options))?;
        });
        Ok(out)
    }

    /// Waits for a version that is newer than `version`; returns the newest that is complete.
    #[pyo3(signature = (version, timeout=None))]
    fn wait_newer(&self, py: Python<'_>, version: u64, timeout: Option<f64>) -> PyResult<u64> {
        let session = self.session.get();
        let timeout = options::seconds("timeout", timeout)?.unwrap_or(session.timeout);
        session.with(py, |client| self.any.wait_newer(client, version, timeout))
    }

    /// Waits for version `tick` or a newer one; returns the newest that is complete.
    #[pyo3(signature = (tick, timeout=None))]
    fn wait_until(&self, py: Python<'_>, tick: u64, timeout: Option<f64>) -> PyResult<u64> {
        let session = self.session.get();
        let timeout = options::seconds("timeout", timeout)?.unwrap_or(session.timeout);
        session.with(py, |client| self.any.wait_until(client, tick, timeout))
    }

    /// Pushes rows by `keys`, or elements from `first` on.
    #[pyo3(signature = (values, keys=None, *, first=0, op="sum", weight=1.0, encoding="exact", block=64))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn push<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        keys: Option<&Bound<'py, PyAny>>,
        first: i64,
        op: &str,
        weight: f64,
        encoding: &str,
        block: u32,
    ) -> PyResult<Ticket> {
        let keys = self.keys(keys)?;
        let keys = keys.as_ref().map(Keys::slice).transpose()?;
        let (first, op) = (options::first(first)?, options::op(op)?);
        let options = options::push(weight, encoding, block)?;
        let session = self.session.get();
        let pushed = with_table!(self.any, (table, T) => {
            let array = Read::<T>::new(values, self.shape(keys))?;
            let from = array.slice()?;
            session.with(py, |client| match keys {
                Some(keys) => client.push_rows_with(&table, keys, from, op, options),
                None => client.push_range_with(&table, first, from, op, options),
            })?
        });
        Ok(Ticket::new(self.session.clone_ref(py), pushed))
    }

    /// Sets the numbers of the table's rule, as of its `optimizer`.
    fn set_optimizer(&self, py: Python<'_>, optimizer: &Bound<'_, PyAny>) -> PyResult<Ticket> {
        let rule = options::optimizer(Some(optimizer), self.spec.dtype)?;
        let session = self.session.get();
        let pushed = session.with(py, |client| self.any.set_optimizer(client, rule))?;
        Ok(Ticket::new(self.session.clone_ref(py), pushed))
    }

    /// Sets the learning rate that a schedule has in `iteration`.
    fn schedule(&self, py: Python<'_>, schedule: &Schedule, iteration: u64) -> PyResult<Ticket> {
        let session = self.session.get();
        let schedule = schedule.0;
        let pushed = session.with(py, |client| self.any.schedule(client, &schedule, iteration))?;
        Ok(Ticket::new(self.session.clone_ref(py), pushed))
    }

    /// Deletes the rows of `keys`.
    fn delete(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Ticket> {
        let keys = Keys::new(keys)?;
        let keys = keys.slice()?;
        let session = self.session.get();
        let deleted = session.with(py, |client| self.any.delete_keys(client, keys))?;
        Ok(Ticket::new(self.session.clone_ref(py), deleted))
    }

    /// Whether each of `keys` has a row.
    fn exists<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let keys = Keys::new(keys)?;
        let keys = keys.slice()?;
        let session = self.session.get();
        let stored = session.with(py, |client| self.any.exists(client, keys))?;
        Ok(PyArray1::from_vec(py, stored))
    }

    /// Number of stored keys, over all servers.
    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        let session = self.session.get();
        session.with(py, |client| self.any.count_keys(client))
    }

    /// Iterates over the stored keys, with their rows if requested.
    #[pyo3(signature = (*, batch=4096, rows=false, partitions=None))]
    fn scan(
        it: &Bound<'_, Self>,
        batch: usize,
        rows: bool,
        partitions: Option<(u32, u32)>,
    ) -> PyResult<Scan> {
        Scan::new(it.clone().unbind(), batch, rows, partitions)
    }

    /// Releases the table for all workers.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.session.get();
        session.with(py, |client| self.any.release(client))
    }

    /// Pickles the table as session, name and type.
    fn __reduce__(&self, py: Python<'_>) -> PyResult<Py<PyTuple>> {
        let restore = py.import("tidewater")?.getattr("_restore_table")?;
        let dtype = arrays::numpy_name(self.spec.dtype);
        let told = (self.session.clone_ref(py), self.name(), dtype);
        Ok((restore, told).into_pyobject(py)?.unbind())
    }

    fn __repr__(&self) -> String {
        let dtype = arrays::numpy_name(self.spec.dtype);
        let (name, kind, cols) = (self.name(), self.kind(), self.cols());
        format!("<tidewater.Table \"{name}\", {kind}, {cols} x {dtype}>")
    }
}

/// Ticket of a push that is under way.
#[pyclass(frozen, module = "tidewater")]
pub(crate) struct Ticket {
    session: Py<Session>,
    pushed: Mutex<client::Ticket>,
}

impl Ticket {
    pub(crate) const fn new(session: Py<Session>, pushed: client::Ticket) -> Self {
        let pushed = Mutex::new(pushed);
        Self { session, pushed }
    }

    fn pushed(&self) -> PyResult<client::Ticket> {
        let pushed = self.pushed.lock();
        let defect = |_| PyValueError::new_err("the ticket is lost: an earlier call failed inside");
        Ok(pushed.map_err(defect)?.clone())
    }
}

#[pymethods]
impl Ticket {
    /// Waits until the push is applied.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let pushed = self.pushed()?;
        let session = self.session.get();
        let timeout = options::seconds("timeout", timeout)?.unwrap_or(session.timeout);
        session.with(py, |client| {
            client.wait_applied_until(&pushed, Deadline::after(timeout))
        })
    }

    /// Whether the push is applied.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let pushed = self.pushed()?;
        let session = self.session.get();
        session.with(py, |client| client.try_applied(&pushed))
    }
}

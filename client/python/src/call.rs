//! Calls to the coordinator that are under way while the program goes on.

use std::sync::Mutex;

use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tidewater::PendingCall;

use crate::session::Session;

/// What a call returns.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Rows and bytes written.
    Save,
    /// Names of the loaded tables.
    Load,
    /// It returns no value.
    Barrier,
}

/// A save, load or barrier that was started.
#[pyclass(frozen, module = "tidewater")]
pub(crate) struct Call {
    session: Py<Session>,
    /// `None` once it is finished.
    call: Mutex<Option<PendingCall>>,
    kind: Kind,
}

impl Call {
    pub(crate) const fn new(session: Py<Session>, call: PendingCall, kind: Kind) -> Self {
        let call = Mutex::new(Some(call));
        Self {
            session,
            call,
            kind,
        }
    }

    /// Takes the call out: another thread that uses it meanwhile gets an error.
    fn take(&self) -> PyResult<PendingCall> {
        let call = self.call.lock().ok().and_then(|mut call| call.take());
        call.ok_or_else(|| {
            PyValueError::new_err("the call is finished, or another thread waits for it")
        })
    }
}

#[pymethods]
impl Call {
    /// Whether it is done: `finish` then returns at once. Waits up to 1 ms.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        let mut call = self.take()?;
        let session = self.session.get();
        let tested = session.with(py, |client| client.test_call(&mut call));
        if let Ok(mut place) = self.call.lock() {
            *place = Some(call);
        }
        tested
    }

    /// Waits until it is done, and returns what the call without `start_` returns.
    fn finish(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let call = self.take()?;
        let session = self.session.get();
        match self.kind {
            Kind::Save => {
                let saved = session.with(py, |client| client.finish_save(call))?;
                (saved.rows, saved.bytes).into_py_any(py)
            }
            Kind::Load => session
                .with(py, |client| client.finish_load(call))?
                .tables
                .into_py_any(py),
            Kind::Barrier => {
                session.with(py, |client| client.finish_barrier(call))?;
                Ok(py.None())
            }
        }
    }
}

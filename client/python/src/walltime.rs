//! Ends a run before its batch system does.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tidewater::{Client, ClientError, walltime};

use crate::session::Session;

/// Watches for SIGTERM and SIGUSR1 in a job; all its workers must do so.
#[pyclass(frozen, module = "tidewater")]
pub(crate) struct Walltime {
    session: Py<Session>,
    watch: Mutex<walltime::Walltime>,
}

impl Walltime {
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut walltime::Walltime, &mut Client) -> Result<R, ClientError> + Send,
    ) -> PyResult<R> {
        self.session.get().with(py, |client| {
            let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
            body(&mut watch, client)
        })
    }
}

#[pymethods]
impl Walltime {
    #[new]
    #[pyo3(signature = (session, every=1))]
    fn watch(py: Python<'_>, session: Py<Session>, every: u32) -> PyResult<Self> {
        let watch = session
            .get()
            .with(py, |client| walltime::Walltime::watch(client, every))?;
        let watch = Mutex::new(watch);
        Ok(Self { session, watch })
    }

    /// Returns whether the run ends here; called at the start of each step.
    fn over(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, walltime::Walltime::over)
    }

    /// Returns the signal that ended the run; called after the last step.
    fn end(&self, py: Python<'_>) -> PyResult<Option<i32>> {
        self.with(py, walltime::Walltime::end)
    }
}

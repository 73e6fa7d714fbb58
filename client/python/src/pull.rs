//! Pulls that are under way while the program goes on.

use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tidewater::{AnyTable, PullTicket};

use crate::arrays::{Shape, Written};
use crate::table::{Table, with_table};

/// A pull that was started.
#[pyclass(frozen, module = "tidewater")]
pub(crate) struct Pull {
    table: Py<Table>,
    /// `None` once it is finished or given up.
    ticket: Mutex<Option<PullTicket>>,
    /// Rows of a pull by keys, elements of a range.
    count: usize,
    is_range: bool,
}

impl Pull {
    pub(crate) const fn new(
        table: Py<Table>,
        ticket: PullTicket,
        (count, is_range): (usize, bool),
    ) -> Self {
        Self {
            table,
            ticket: Mutex::new(Some(ticket)),
            count,
            is_range,
        }
    }

    /// Takes the ticket out: another thread that uses it meanwhile gets an error.
    fn take(&self) -> PyResult<PullTicket> {
        let ticket = self.ticket.lock().ok().and_then(|mut ticket| ticket.take());
        ticket.ok_or_else(|| {
            PyValueError::new_err("the pull is finished, or another thread waits for it")
        })
    }

    fn put_back(&self, ticket: PullTicket) {
        if let Ok(mut place) = self.ticket.lock() {
            *place = Some(ticket);
        }
    }

    fn write(&self, out: &Bound<'_, PyAny>, ticket: PullTicket) -> PyResult<()> {
        let (py, table) = (out.py(), self.table.get());
        let shape = match self.is_range {
            true => Shape::Any,
            false => Shape::Rows(self.count, table.dim()),
        };
        let session = table.session(py);
        with_table!(table.any(), (_table, T) => {
            let mut array = Written::<T>::new(out, shape)?;
            let to = array.slice(&[])?;
            session.get().with(py, |client| client.finish_pull(ticket, to))
        })
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        if let Ok(Some(ticket)) = self.ticket.get_mut().map(Option::take) {
            self.table.get().abandon(ticket);
        }
    }
}

#[pymethods]
impl Pull {
    /// Whether `finish` would return without waiting for reads that are under way.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        let ticket = self.take()?;
        self.put_back(ticket);
        let session = self.table.get().session(py);
        session.get().with(py, |client| client.try_pull(ticket))
    }

    /// Waits for the pull and writes it to `out`; returns `out`. After an exception it may be repeated.
    #[pyo3(signature = (out=None))]
    fn finish<'py>(
        &self,
        py: Python<'py>,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let table = self.table.get();
        let out = match out {
            Some(out) => out,
            None => table.array_of(py, self.count, self.is_range)?,
        };
        let ticket = self.take()?;
        let written = self.write(&out, ticket);
        if written.is_err() {
            self.put_back(ticket);
        }
        written.map(|()| out)
    }

    /// Gives the pull up.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let ticket = self.take()?;
        let session = self.table.get().session(py);
        session.get().with(py, |client| client.cancel_pull(ticket))
    }
}

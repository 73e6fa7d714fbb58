//! Sessions of jobs with servers in this process: `tidewater.local` and `tidewater.begin`.

use std::ffi::OsString;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tidewater::ClientError;
use tidewater_launch::{Decision, Explicit, LaunchEnv, detect};

use crate::failure::Error;
use crate::options;
use crate::session::{JoinOptions, Session};

/// Starts a cluster on threads of this process and opens its only worker's session. The end of the session
/// ends the cluster.
///
/// # Errors
/// `tidewater.Error` in a process of a job or of a launch of several, where each one would have a cluster
/// of its own; `ValueError` for 0 servers, appliers or bytes.
#[pyfunction]
#[pyo3(signature = (servers=1, *, appliers=1, capacity=None, sync="asp", transport=None, timeout=None,
    clock_timeout=None))]
#[allow(clippy::too_many_arguments, reason = "keywords of Python")]
pub(crate) fn local(
    py: Python<'_>,
    servers: u32,
    appliers: u16,
    capacity: Option<usize>,
    sync: &str,
    transport: Option<String>,
    timeout: Option<f64>,
    clock_timeout: Option<f64>,
) -> PyResult<Session> {
    if servers == 0 || appliers == 0 || capacity == Some(0) {
        let what = "local() needs at least 1 server, 1 applier and 1 byte of capacity";
        return Err(PyValueError::new_err(what));
    }
    is_alone(std::env::vars_os())?;
    let mut config = tidewater::JoinOptions::embedded(servers, 1).embedded;
    if let Some(config) = &mut config {
        config.appliers = appliers;
        config.capacity = capacity.unwrap_or(config.capacity);
    }
    let wanted = JoinOptions {
        sync: sync.to_owned(),
        transport,
        timeout,
        clock_timeout,
        keeps: Some("local"),
        ..JoinOptions::default()
    };
    Session::of(py, wanted, |mut options| {
        options.embedded = config;
        joined(options.join()?.into_job())
    })
}

/// Begins a job of the processes of an mpi4py communicator and opens this process's session. The bytes that
/// it broadcasts are a secret.
///
/// # Errors
/// Those of `comm`; `tidewater.Error` where rank 0 cannot start the coordinator or the processes do not meet.
#[pyfunction]
#[pyo3(signature = (comm, servers=0, *, sync="asp", transport=None, timeout=None, clock_timeout=None,
    join_timeout=None, ring_bytes=None, memory_budget=None, rdma_device=None, **rdma))]
#[allow(clippy::too_many_arguments, reason = "keywords of Python")]
pub(crate) fn begin(
    py: Python<'_>,
    comm: &Bound<'_, PyAny>,
    servers: u32,
    sync: &str,
    transport: Option<String>,
    timeout: Option<f64>,
    clock_timeout: Option<f64>,
    join_timeout: Option<f64>,
    ring_bytes: Option<usize>,
    memory_budget: Option<usize>,
    rdma_device: Option<String>,
    rdma: Option<&Bound<'_, PyDict>>,
) -> PyResult<Session> {
    let rank: u32 = comm.call_method0("Get_rank")?.extract()?;
    let size: u32 = comm.call_method0("Get_size")?.extract()?;
    let mut broadcast = Broadcast {
        comm: comm.clone().unbind(),
        is_root: rank == 0,
        called: false,
        raised: None,
    };
    let wanted = options::fabric(rdma).map(|fabric| JoinOptions {
        sync: sync.to_owned(),
        transport,
        timeout,
        clock_timeout,
        join_timeout,
        ring_bytes,
        memory_budget,
        rdma_device,
        fabric,
        keeps: Some("begin"),
        ..JoinOptions::default()
    });
    let opened = wanted.and_then(|wanted| {
        Session::of(py, wanted, |options| {
            options.begin(rank, size, servers, |bytes| broadcast.copy(bytes))
        })
    });
    if opened.is_err() && !broadcast.called {
        // The others wait in the broadcast. An error of it says less than that of the arguments.
        let _ = tidewater::JoinOptions::begin_failed(|bytes| broadcast.copy(bytes));
        return opened;
    }
    match broadcast.raised {
        Some(raised) => Err(raised),
        None => opened,
    }
}

/// The broadcast of a communicator, which is called once in each process.
struct Broadcast {
    comm: Py<PyAny>,
    is_root: bool,
    called: bool,
    /// The exception of the communicator.
    raised: Option<PyErr>,
}

impl Broadcast {
    fn copy(&mut self, bytes: &mut [u8]) -> Result<(), ClientError> {
        self.called = true;
        Python::attach(|py| self.exchange(py, bytes)).map_err(|raised| {
            let text = format!("the communicator's bcast has failed: {raised}");
            self.raised = Some(raised);
            ClientError::Launch(text.into())
        })
    }

    fn exchange(&self, py: Python<'_>, bytes: &mut [u8]) -> PyResult<()> {
        let sent = self.is_root.then(|| PyBytes::new(py, bytes));
        let received = self.comm.bind(py).call_method1("bcast", (sent, 0))?;
        let received: &[u8] = received.extract()?;
        if received.len() != bytes.len() {
            return Err(Error::new_err(format!(
                "bcast gave {} bytes of {}: call begin in all processes of the communicator, with one \
                 version of tidewater",
                received.len(),
                bytes.len()
            )));
        }
        bytes.copy_from_slice(received);
        Ok(())
    }
}

fn joined(job: Option<tidewater::connect::Job>) -> Result<tidewater::connect::Job, ClientError> {
    job.ok_or_else(|| {
        let what = "the library has joined as a server: a defect, please report it";
        ClientError::Launch(what.into())
    })
}

/// Fails if this process belongs to a job already, or if a launcher has started others with it.
fn is_alone(vars: impl IntoIterator<Item = (OsString, OsString)>) -> PyResult<()> {
    let refused = |why: &str| {
        Err(Error::new_err(format!(
            "tidewater.local() starts a cluster of this process alone, and {why}: use tidewater.Session(), or \
             tidewater.begin(comm) in a program that uses MPI"
        )))
    };
    let vars: Vec<_> = vars.into_iter().collect();
    let named = ["TIDEWATER_JOB", "TIDEWATER_COORDINATOR", "TIDEWATER_ROLE"];
    for (name, value) in &vars {
        if named.iter().any(|known| name == known) && !value.is_empty() {
            return refused(&format!("{} names a job", name.to_string_lossy()));
        }
    }
    let around = LaunchEnv::of(vars, Explicit::default())
        .map_err(|e| Error::new_err(format!("there is no working directory: {e}")))?;
    match detect(&around).decision {
        Ok(Decision::Launched(place)) if place.size > 1 => refused(&format!(
            "{} has started it as rank {} of {}",
            place.source, place.rank, place.size
        )),
        Ok(Decision::Member) => refused("its environment makes it a member of a job"),
        Ok(_) => Ok(()),
        Err(error) => refused(&format!("its launcher is not clear ({error})")),
    }
}

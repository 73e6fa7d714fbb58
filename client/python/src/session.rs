//! A session with the servers of a job. (long: one class.)

use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use pyo3::exceptions::PySystemExit;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use tidewater::connect::Job;
use tidewater::{AnyTable, Client, ClientError, Joined, PendingCall, PullTicket};
use tidewater_launch::FabricSettings;
use tidewater_protocol::ids::ServerId;
use tidewater_protocol::limits::{DATA_DEADLINE, FILE_CALL_TIMEOUT};
use tidewater_protocol::table::{DenseLayout, GradientOptions, KeyOptions, Shape, TableSpec};
use tidewater_runtime::mem::ForkGuard;

use crate::call::{Call, Kind};
use crate::collective;
use crate::failure::{Error, ForkedError, raised};
use crate::function::{self, Inputs, Parameter};
use crate::options;
use crate::table::{self, Table, Ticket};

/// Arguments of a session: all that a copy in another process needs to join the same job. It holds the
/// name of the token's file, not the token.
#[derive(Debug, Clone, Default)]
pub(crate) struct JoinOptions {
    pub(crate) coordinator: Option<String>,
    pub(crate) token_file: Option<String>,
    pub(crate) rank: Option<u32>,
    pub(crate) workers: Option<u32>,
    pub(crate) namespace: Option<String>,
    pub(crate) sync: String,
    pub(crate) transport: Option<String>,
    pub(crate) timeout: Option<f64>,
    pub(crate) clock_timeout: Option<f64>,
    pub(crate) join_timeout: Option<f64>,
    pub(crate) observer: bool,
    pub(crate) ring_bytes: Option<usize>,
    pub(crate) memory_budget: Option<usize>,
    pub(crate) rdma_device: Option<String>,
    pub(crate) fabric: FabricSettings,
    /// Name of the call that keeps servers of the job in this process, if one does.
    pub(crate) keeps: Option<&'static str>,
}

/// Session of one worker with the servers of its job.
#[pyclass(frozen, weakref, module = "tidewater")]
pub(crate) struct Session {
    process: ForkGuard,
    client: Mutex<Option<Client>>,
    /// Thread that is in a call with the client; `None` if none is.
    inside: Mutex<Option<ThreadId>>,
    /// Pulls that the program has dropped unfinished; the next call gives them up.
    abandoned: Mutex<Vec<PullTicket>>,
    /// The job, if its coordinator or a server of it runs in this process; it ends after the client.
    job: Mutex<Option<Job>>,
    wanted: JoinOptions,
    pub(crate) timeout: Duration,
}

/// A call with the client of a session, from its begin to its end.
struct Inside<'a>(&'a Mutex<Option<ThreadId>>);

impl<'a> Inside<'a> {
    fn enter(inside: &'a Mutex<Option<ThreadId>>) -> PyResult<Self> {
        *inside.lock().map_err(|_| defect())? = Some(std::thread::current().id());
        Ok(Self(inside))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl JoinOptions {
    /// Converts to the client's options. Joining by them may wait for other processes, and must not
    /// hold the interpreter lock.
    pub(crate) fn for_client(&self) -> PyResult<tidewater::JoinOptions> {
        let transport = self.transport.as_deref().map(options::transport);
        let rdma_device = self.rdma_device.as_deref().map(options::rdma_device);
        Ok(tidewater::JoinOptions {
            coordinator: self.coordinator.clone(),
            token_file: self.token_file.as_ref().map(Into::into),
            namespace: self.namespace.clone(),
            rank: self.rank.filter(|_| !self.observer),
            workers: self.workers,
            observer: self.observer,
            transport: transport.transpose()?,
            join_timeout: options::seconds("join_timeout", self.join_timeout)?,
            worker_only: self.keeps.is_none(),
            rdma_device: rdma_device.transpose()?,
            fabric: self.fabric,
            ring_bytes: self.ring_bytes,
            memory_budget: self.memory_budget,
            ..tidewater::JoinOptions::default()
        })
    }
}

impl Session {
    /// Opens a session by the job that `join` makes of the options. The session keeps the job if its
    /// options say so. `join` and the connection run without the interpreter lock.
    pub(crate) fn of(
        py: Python<'_>,
        wanted: JoinOptions,
        join: impl FnOnce(tidewater::JoinOptions) -> Result<Job, ClientError> + Send,
    ) -> PyResult<Self> {
        let options = wanted.for_client()?;
        let sync = options::sync(&wanted.sync)?;
        let usual = options::seconds("timeout", wanted.timeout)?;
        let clock = options::seconds("clock_timeout", wanted.clock_timeout)?;
        let process = ForkGuard::new().map_err(|e| Error::new_err(e.to_string()))?;
        let connect = || {
            let job = join(options)?;
            Ok((job.client(sync)?, job))
        };
        let (mut client, job) = py.detach(connect).map_err(raised)?;
        if let Some(timeout) = usual {
            client.set_timeout(timeout);
        }
        if let Some(timeout) = clock {
            client.set_clock_timeout(timeout);
        }
        Ok(Self {
            process,
            client: Mutex::new(Some(client)),
            inside: Mutex::new(None),
            abandoned: Mutex::new(Vec::new()),
            job: Mutex::new(wanted.keeps.map(|_| job)),
            wanted,
            timeout: usual.unwrap_or(DATA_DEADLINE),
        })
    }

    /// Calls `body` with the client, without the interpreter lock.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut Client) -> Result<R, ClientError> + Send,
    ) -> PyResult<R> {
        self.check_caller()?;
        py.detach(|| {
            let mut client = self.client.lock().map_err(|_| defect())?;
            let _inside = Inside::enter(&self.inside)?;
            let client = client
                .as_mut()
                .ok_or_else(|| Error::new_err("the session is closed"))?;
            let abandoned = std::mem::take(
                &mut *self
                    .abandoned
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            );
            for pull in abandoned {
                // A pull that ended otherwise has nothing to give up.
                let _ = client.cancel_pull(pull);
            }
            body(client).map_err(raised)
        })
    }

    /// Gives up a pull at the next call, without waiting for the one under way.
    pub(crate) fn abandon(&self, pull: PullTicket) {
        let abandoned = self.abandoned.lock();
        abandoned.unwrap_or_else(PoisonError::into_inner).push(pull);
    }

    /// Fails in a forked process, and in a signal handler that runs inside a call of this session: its thread would
    /// wait for itself.
    pub(crate) fn check_caller(&self) -> PyResult<()> {
        if !self.process.is_same_process() {
            return Err(ForkedError::new_err(
                "the process was forked after the session was opened; it belongs to the parent. Open \
                 a session in the child, or use the start method 'spawn'",
            ));
        }
        if *self.inside.lock().map_err(|_| defect())? == Some(std::thread::current().id()) {
            return Err(Error::new_err(
                "a signal handler uses the session inside a call of it; note the signal there, and use the session \
                 after the call",
            ));
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.process.is_same_process() {
            // The parent uses its sockets and rings: do not touch them, nor free their memory.
            let client = self.client.get_mut().ok().and_then(Option::take);
            std::mem::forget(client);
            // The threads of its servers are the parent's too.
            let job = self.job.get_mut().ok().and_then(Option::take);
            std::mem::forget(job);
        }
    }
}

/// Joins the job as a worker.
fn join(options: tidewater::JoinOptions) -> Result<Job, ClientError> {
    match options.join()? {
        Joined::Worker(job) => Ok(job),
        Joined::Served => {
            let what = "the library has joined as a server: a defect, please report it";
            Err(ClientError::Launch(what.into()))
        }
    }
}

/// Starts a call of a session.
fn start(
    session: &Bound<'_, Session>,
    kind: Kind,
    call: impl FnOnce(&mut Client) -> Result<PendingCall, ClientError> + Send,
) -> PyResult<Call> {
    let call = session.get().with(session.py(), call)?;
    Ok(Call::new(session.clone().unbind(), call, kind))
}

fn defect() -> PyErr {
    Error::new_err("an earlier call failed inside the library; close the session and report it")
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (coordinator=None, token_file=None, *, rank=None, workers=None, namespace=None,
        sync="asp", transport=None, timeout=None, clock_timeout=None, join_timeout=None,
        observer=false, ring_bytes=None, memory_budget=None, rdma_device=None, **rdma))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn open(
        py: Python<'_>,
        coordinator: Option<String>,
        token_file: Option<String>,
        rank: Option<u32>,
        workers: Option<u32>,
        namespace: Option<String>,
        sync: &str,
        transport: Option<String>,
        timeout: Option<f64>,
        clock_timeout: Option<f64>,
        join_timeout: Option<f64>,
        observer: bool,
        ring_bytes: Option<usize>,
        memory_budget: Option<usize>,
        rdma_device: Option<String>,
        rdma: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let wanted = JoinOptions {
            coordinator,
            token_file,
            rank,
            workers,
            namespace,
            sync: sync.to_owned(),
            transport,
            timeout,
            clock_timeout,
            join_timeout,
            observer,
            ring_bytes,
            memory_budget,
            rdma_device,
            fabric: options::fabric(rdma)?,
            keeps: None,
        };
        Self::of(py, wanted, join)
    }

    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |client| Ok(client.rank().0))
    }

    /// Number of the session's thread in its worker: 0 for the first session, more for siblings.
    #[getter]
    fn thread(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |client| Ok(client.thread()))
    }

    /// Opens a session for a further thread of this worker.
    fn sibling(&self, py: Python<'_>) -> PyResult<Self> {
        // Made before the client: a client that is dropped loses the worker.
        let process = ForkGuard::new().map_err(|e| Error::new_err(e.to_string()))?;
        let client = self.with(py, Client::sibling)?;
        Ok(Self {
            process,
            client: Mutex::new(Some(client)),
            inside: Mutex::new(None),
            abandoned: Mutex::new(Vec::new()),
            job: Mutex::new(None), // the first session keeps it
            wanted: self.wanted.clone(),
            timeout: self.timeout,
        })
    }

    #[getter]
    fn workers(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |client| Ok(client.workers()))
    }

    #[getter]
    fn servers(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |client| Ok(client.servers()))
    }

    #[getter]
    fn server_appliers(&self, py: Python<'_>) -> PyResult<Vec<u16>> {
        self.with(py, |client| Ok(client.server_appliers()))
    }

    #[getter]
    fn transport(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |client| Ok(client.transport().map(|t| t.to_string())))
    }

    /// Creates a table, or opens the one of that name if its definition is equal.
    #[pyo3(signature = (name, kind, *, dtype, cols, rows=0, optimizer=None, init=None, seed=0,
        effect="immediate", domain=0, partitions=0, block_bytes=16384, snapshot=false,
        allow_not_finite=false, weight_decay=0.0, clip_value=None, clip_norm=None,
        initial_accumulator=0.0, by_staleness=false, redo=false, versions=2, expire_after=0,
        admit_after=0, durability="none", partition_servers=None, partition_starts=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn table(
        me: &Bound<'_, Self>,
        name: String,
        kind: &str,
        dtype: &Bound<'_, PyAny>,
        cols: u32,
        rows: u64,
        optimizer: Option<&Bound<'_, PyAny>>,
        init: Option<&Bound<'_, PyAny>>,
        seed: u64,
        effect: &str,
        domain: i64,
        partitions: u32,
        block_bytes: u32,
        snapshot: bool,
        allow_not_finite: bool,
        weight_decay: f64,
        clip_value: Option<f64>,
        clip_norm: Option<f64>,
        initial_accumulator: f64,
        by_staleness: bool,
        redo: bool,
        versions: u32,
        expire_after: u32,
        admit_after: u8,
        durability: &str,
        partition_servers: Option<Vec<u32>>,
        partition_starts: Option<Vec<u64>>,
    ) -> PyResult<Table> {
        let dense = |layout| Shape::Dense { rows, cols, layout };
        let blocks = DenseLayout::Blocks {
            block_bytes,
            snapshot,
        };
        let shape = match kind {
            "sparse" => Shape::Sparse { dim: cols },
            "rows" => dense(DenseLayout::Rows),
            "range" => dense(blocks),
            _ => {
                let what = format!("kind is '{kind}'; it is one of 'sparse', 'rows', 'range'");
                return Err(pyo3::exceptions::PyValueError::new_err(what));
            }
        };
        let dtype = options::dtype(dtype)?;
        let spec = TableSpec {
            name,
            shape,
            dtype,
            optimizer: options::optimizer(optimizer, dtype)?,
            init: options::init(init)?,
            seed,
            effect: options::effect(effect)?,
            finite_check: !allow_not_finite,
            domain: options::domain(domain)?,
            partitions,
            gradient: GradientOptions {
                weight_decay,
                clip_value,
                clip_norm,
                initial_accumulator,
                by_staleness,
            },
            redo,
            versions,
            keys: KeyOptions {
                expire_after,
                admit_after,
            },
            durability: options::durability(durability)?,
            partition_servers: partition_servers
                .map(|servers| servers.into_iter().map(ServerId).collect()),
            partition_starts: partition_starts.map(Into::into),
        };
        let (made, spec) = me.get().with(me.py(), |client| {
            let made = AnyTable::create(client, &spec)?;
            Ok((made, made.spec(client).cloned()))
        })?;
        let spec = spec.ok_or_else(defect)?;
        Ok(Table::new(me.clone().unbind(), made, spec))
    }

    /// Opens an existing table with element type `dtype`.
    #[pyo3(signature = (name, dtype))]
    fn open_table(me: &Bound<'_, Self>, name: &str, dtype: &Bound<'_, PyAny>) -> PyResult<Table> {
        let dtype = options::dtype(dtype)?;
        let (opened, spec) = me.get().with(me.py(), |client| {
            let opened = AnyTable::open(client, name, dtype)?;
            Ok((opened, opened.spec(client).cloned()))
        })?;
        let spec = spec.ok_or_else(defect)?;
        Ok(Table::new(me.clone().unbind(), opened, spec))
    }

    /// Sets each element of `target` to the value of an expression.
    #[pyo3(signature = (target, expression, *, inputs=Vec::new(), parameters=Vec::new(), range=None))]
    fn update(
        me: &Bound<'_, Self>,
        target: &Table,
        expression: &str,
        inputs: Vec<PyRef<'_, Table>>,
        parameters: Vec<Parameter>,
        range: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Ticket> {
        let (any, inputs) = (target.any(), Inputs::new(&inputs, parameters, range)?);
        let sent = me.get().with(me.py(), |client| {
            any.update(client, expression, &inputs.args())
        })?;
        Ok(Ticket::new(me.clone().unbind(), sent))
    }

    /// Combines the values of an expression for all elements of `target`.
    #[pyo3(signature = (target, expression, reduction="sum", *, inputs=Vec::new(),
        parameters=Vec::new(), range=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn reduce(
        &self,
        py: Python<'_>,
        target: &Table,
        expression: &str,
        reduction: &str,
        inputs: Vec<PyRef<'_, Table>>,
        parameters: Vec<Parameter>,
        range: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (any, inputs) = (target.any(), Inputs::new(&inputs, parameters, range)?);
        let reduction = options::reduction(reduction)?;
        let result = self.with(py, |client| {
            any.reduce(client, expression, reduction, &inputs.args())
        })?;
        function::number(py, result)
    }

    /// Makes a function of a WebAssembly module on all servers.
    fn load_function(&self, name: &str, module: &Bound<'_, PyBytes>) -> PyResult<()> {
        let bytes = module.as_bytes();
        self.with(module.py(), |client| client.load_function(name, bytes))
    }

    /// Runs the update function that the servers' program registered under `name`.
    #[pyo3(signature = (target, name, arguments=None, *, inputs=Vec::new(), parameters=Vec::new(),
        range=None))]
    fn call_update(
        me: &Bound<'_, Self>,
        target: &Table,
        name: &str,
        arguments: Option<&Bound<'_, PyBytes>>,
        inputs: Vec<PyRef<'_, Table>>,
        parameters: Vec<Parameter>,
        range: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Ticket> {
        let (any, inputs) = (target.any(), Inputs::new(&inputs, parameters, range)?);
        let arguments = arguments.map_or(&[][..], |bytes| bytes.as_bytes());
        let sent = me.get().with(me.py(), |client| {
            any.call_update(client, name, arguments, &inputs.args())
        })?;
        Ok(Ticket::new(me.clone().unbind(), sent))
    }

    /// Runs the reducing function registered under `name`; returns the results of all pieces.
    #[pyo3(signature = (target, name, arguments=None, *, inputs=Vec::new(), parameters=Vec::new(),
        range=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn call_reduce<'py>(
        &self,
        py: Python<'py>,
        target: &Table,
        name: &str,
        arguments: Option<&Bound<'_, PyBytes>>,
        inputs: Vec<PyRef<'_, Table>>,
        parameters: Vec<Parameter>,
        range: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let (any, inputs) = (target.any(), Inputs::new(&inputs, parameters, range)?);
        let arguments = arguments.map_or(&[][..], |bytes| bytes.as_bytes());
        let results = self.with(py, |client| {
            any.call_reduce(client, name, arguments, &inputs.args())
        })?;
        Ok(results
            .iter()
            .map(|result| PyBytes::new(py, result))
            .collect())
    }

    #[pyo3(signature = (domain=0))]
    fn tick(&self, py: Python<'_>, domain: i64) -> PyResult<()> {
        let domain = options::domain(domain)?;
        self.with(py, |client| client.tick_domain(domain))
    }

    /// Sets the synchronisation of a clock domain.
    fn domain_sync(&self, py: Python<'_>, domain: i64, sync: &str) -> PyResult<()> {
        let (domain, sync) = (options::domain(domain)?, options::sync(sync)?);
        self.with(py, |client| client.set_domain_sync(domain, sync))
    }

    #[getter]
    fn clock(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |client| Ok(client.clock()))
    }

    fn global_clock(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, Client::global_clock)
    }

    #[pyo3(signature = (name, timeout=None))]
    fn barrier(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<()> {
        let timeout = options::seconds("timeout", timeout)?.unwrap_or(self.timeout);
        self.with(py, |client| client.barrier(name, timeout))
    }

    /// Pulls all of several range tables as of one version; returns the arrays and the version.
    #[pyo3(signature = (tables, timeout=None))]
    fn pull_group<'py>(
        &self,
        py: Python<'py>,
        tables: Vec<PyRef<'_, Table>>,
        timeout: Option<f64>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, Option<u64>)> {
        table::pull_group(self, py, &tables, timeout)
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Client::flush)
    }

    fn progress(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Client::progress)
    }

    /// Lets up to `frames` frames of pushes of rows leave for an applier together.
    fn batch_pushes(&self, py: Python<'_>, frames: u32) -> PyResult<()> {
        self.with(py, |client| {
            client.batch_pushes(frames);
            Ok(())
        })
    }

    /// Saves all tables; returns rows and bytes written. Waits for half an hour if no timeout is given.
    #[pyo3(signature = (directory, timeout=None))]
    fn save(&self, py: Python<'_>, directory: &str, timeout: Option<f64>) -> PyResult<(u64, u64)> {
        let timeout = options::seconds("timeout", timeout)?.unwrap_or(FILE_CALL_TIMEOUT);
        let saved = self.with(py, |client| client.save(directory, timeout))?;
        Ok((saved.rows, saved.bytes))
    }

    /// Loads the tables of a saved model; returns their names. Waits for half an hour if no timeout is given.
    #[pyo3(signature = (directory, timeout=None))]
    fn load(&self, py: Python<'_>, directory: &str, timeout: Option<f64>) -> PyResult<Vec<String>> {
        let timeout = options::seconds("timeout", timeout)?.unwrap_or(FILE_CALL_TIMEOUT);
        let loaded = self.with(py, |client| client.load(directory, timeout))?;
        Ok(loaded.tables)
    }

    /// Arrives at a barrier like `barrier`; `finish` of the result waits for the other workers.
    #[pyo3(signature = (name, timeout=None))]
    fn start_barrier(me: &Bound<'_, Self>, name: &str, timeout: Option<f64>) -> PyResult<Call> {
        let timeout = options::seconds("timeout", timeout)?.unwrap_or(me.get().timeout);
        start(me, Kind::Barrier, |client| {
            client.start_barrier(name, timeout)
        })
    }

    /// Begins a save; `finish` of the result waits for it, for half an hour if no timeout is given.
    #[pyo3(signature = (directory, timeout=None))]
    fn start_save(me: &Bound<'_, Self>, directory: &str, timeout: Option<f64>) -> PyResult<Call> {
        let timeout = options::seconds("timeout", timeout)?.unwrap_or(FILE_CALL_TIMEOUT);
        start(me, Kind::Save, |client| {
            client.start_save(directory, timeout)
        })
    }

    /// Begins a load; `finish` of the result waits for it, for half an hour if no timeout is given.
    #[pyo3(signature = (directory, timeout=None))]
    fn start_load(me: &Bound<'_, Self>, directory: &str, timeout: Option<f64>) -> PyResult<Call> {
        let timeout = options::seconds("timeout", timeout)?.unwrap_or(FILE_CALL_TIMEOUT);
        start(me, Kind::Load, |client| {
            client.start_load(directory, timeout)
        })
    }

    /// Values of all workers, in rank order.
    fn all_gather<'py>(&self, values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        collective::all_gather(self, values)
    }

    /// Ranks of the workers of the last collective call.
    #[getter]
    fn collective_ranks(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let ranks = self.with(py, |client| Ok(client.collective_ranks()))?;
        Ok(ranks.into_iter().map(|rank| rank.0).collect())
    }

    /// Replaces `values` by their reduction over all workers; returns them.
    #[pyo3(signature = (values, op="sum"))]
    fn all_reduce<'py>(&self, values: Bound<'py, PyAny>, op: &str) -> PyResult<Bound<'py, PyAny>> {
        collective::all_reduce(self, &values, options::reduce_op(op)?)?;
        Ok(values)
    }

    /// Replaces `values` by those of worker `root`; returns them.
    #[pyo3(signature = (values, root=0))]
    fn broadcast<'py>(&self, values: Bound<'py, PyAny>, root: u32) -> PyResult<Bound<'py, PyAny>> {
        collective::broadcast(self, &values, root)?;
        Ok(values)
    }

    /// Fails if the job has ended, for code of the package that polls tables.
    fn _check_job(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Client::check_job)
    }

    /// Counts of the session's operations so far, by name.
    fn counters(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let c = self.with(py, |client| Ok(*client.counters()))?;
        let all = [
            ("pulls", c.pulls),
            ("rows_consistent", c.rows_consistent),
            ("rows_hogwild", c.rows_hogwild),
            ("rows_gathered", c.rows_gathered),
            ("blocks_consistent", c.blocks_consistent),
            ("blocks_snapshot", c.blocks_snapshot),
            ("blocks_hogwild", c.blocks_hogwild),
            ("torn_rejected", c.torn_rejected),
            ("retries", c.retries),
            ("gather_fallbacks", c.gather_fallbacks),
            ("resolved_keys", c.resolved_keys),
            ("stale_hints", c.stale_hints),
            ("pushes", c.pushes),
            ("frames", c.frames),
            ("rejects", c.rejects),
            ("rejects_unclaimed", c.rejects_unclaimed),
            ("recoveries", c.recoveries),
            ("bytes_pulled", c.bytes_pulled),
            ("bytes_pushed", c.bytes_pushed),
            ("credit_waits", c.credit_waits),
            ("waits", c.waits),
            ("ticks", c.ticks),
        ];
        let counts = PyDict::new(py);
        for (name, count) in all {
            counts.set_item(name, count)?;
        }
        Ok(counts.unbind())
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Client::finish)
    }

    fn fail(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        self.with(py, |client| client.fail(reason))
    }

    /// Closes the session; servers in this process end at once.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check_caller()?;
        py.detach(|| {
            let mut client = self.client.lock().map_err(|_| defect())?;
            let _inside = Inside::enter(&self.inside)?;
            drop(client.take());
            let job = self.job.lock().map_err(|_| defect())?.take();
            drop(job);
            Ok(())
        })
    }

    /// Finishes and closes the session, and waits for the job's other processes if a part of the job runs
    /// in this one. After a failure it may be repeated, and goes on where it failed.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.check_caller()?;
        py.detach(|| {
            let mut client = self.client.lock().map_err(|_| defect())?;
            let _inside = Inside::enter(&self.inside)?;
            if let Some(open) = client.as_mut() {
                open.finish().map_err(raised)?;
            }
            drop(client.take());
            let job = self.job.lock().map_err(|_| defect())?.take();
            job.map_or(Ok(()), Job::leave).map_err(raised)
        })
    }

    /// Whether the session was closed, by `close` or the end of a `with`.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_caller()?;
        py.detach(|| Ok(self.client.lock().map_err(|_| defect())?.is_none()))
    }

    fn __enter__(me: PyRef<'_, Self>) -> PyRef<'_, Self> {
        me
    }

    /// Ends a `with`: reports that the worker is done, or why it failed.
    #[pyo3(signature = (kind, value, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        // `sys.exit` with a number or nothing ends a worker that is done; a text is a failure.
        let exit = value.cast::<PySystemExit>().is_ok();
        let code = || value.getattr("code").ok();
        let is_exit =
            exit && code().is_some_and(|code| code.is_none() || code.extract::<i32>().is_ok());
        if kind.is_none() || self.wanted.observer {
            self.with(py, |_| Ok(()))?; // a session that its block has closed is an error
            self.leave(py)?;
        } else if is_exit {
            self.leave(py)?;
        } else {
            let name = value.get_type().name()?;
            let text = value.to_string();
            let reason = match text.as_str() {
                "" => name.to_string(),
                text => format!("{name}: {text}"),
            };
            // The exception propagates; an error of `fail` would only hide it.
            let _ = self.fail(py, &reason);
            self.close(py)?;
        }
        Ok(false)
    }

    /// Pickles the arguments of the session as an endpoint. A rank belongs to one process, so a copy
    /// takes a free one.
    fn __reduce__(&self, py: Python<'_>) -> PyResult<Py<PyTuple>> {
        let w = &self.wanted;
        if let Some(call) = w.keeps {
            return Err(Error::new_err(format!(
                "a session of tidewater.{call}() cannot be pickled: the servers end with this process, and no \
                 other one has the job's token; threads use session.sibling(), and processes tidewater run"
            )));
        }
        let arguments = PyDict::new(py);
        arguments.set_item("coordinator", w.coordinator.as_ref())?;
        arguments.set_item("token_file", w.token_file.as_ref())?;
        arguments.set_item("workers", w.workers)?;
        arguments.set_item("namespace", w.namespace.as_ref())?;
        arguments.set_item("sync", &w.sync)?;
        arguments.set_item("transport", w.transport.as_ref())?;
        arguments.set_item("timeout", w.timeout)?;
        arguments.set_item("clock_timeout", w.clock_timeout)?;
        arguments.set_item("join_timeout", w.join_timeout)?;
        arguments.set_item("observer", w.observer)?;
        arguments.set_item("ring_bytes", w.ring_bytes)?;
        arguments.set_item("memory_budget", w.memory_budget)?;
        arguments.set_item("rdma_device", w.rdma_device.as_ref())?;
        for (variable, value) in w.fabric.variables() {
            let name = variable.trim_start_matches("TIDEWATER_").to_lowercase();
            arguments.set_item(name, value)?;
        }
        let restore = py.import("tidewater")?.getattr("_restore_session")?;
        Ok((restore, (arguments,)).into_pyobject(py)?.unbind())
    }

    fn __repr__(&self) -> String {
        match (self.wanted.keeps, &self.wanted.coordinator) {
            (Some(call), _) => format!("<tidewater.Session of tidewater.{call}()>"),
            (None, Some(at)) => format!("<tidewater.Session of {at}>"),
            (None, None) => "<tidewater.Session of the environment's job>".to_owned(),
        }
    }
}

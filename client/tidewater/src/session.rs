//! The client of one thread: its tables, pulls, pushes and ticks. (long: its documentation.)

#![deny(clippy::cast_possible_truncation)]

mod any_function;
mod any_push_buffer;
mod any_table;
mod arrivals;
mod batches;
mod cached_table;
mod callbacks;
mod calls;
mod collectives;
pub mod function;
mod keys;
mod membership;
mod pace;
mod partitions;
mod pull;
mod push;
mod push_buffer;
mod restart;
mod resume;
mod settings;
mod tasks;
mod threads;
mod versions;

use std::time::Duration;

use tidewater_lanes::fabric::{Parker, TransportKind};
use tidewater_protocol::ids::{DomainId, WorkerId};
use tidewater_protocol::limits::{CREATE_BYTES_A_SECOND, DATA_DEADLINE};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::TableSpec;
use tidewater_protocol::wire::control::{DomainClock, TableInfo};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::Arc;

use crate::buffer::{Buffers, RegisteredBuffer};
use crate::clock::{SyncMode, WorkerClock, check_member};
use crate::counters::Counters;
use crate::error::ClientError;
use crate::lanes::{Interrupt, Lanes};
use crate::link::{ConnectThread, CoordinatorLink, Loaded, OpenLane, Saved, ServerLink};
use crate::pull::{AsyncPulls, BlockScratch, RowScratch};
use crate::table::opened::Tables;
use crate::table::state::TableState;
use crate::table::{Element, Table};
pub use any_function::AnyFunctionArgs;
pub use any_push_buffer::AnyPushBuffer;
pub use cached_table::CachedTable;
pub use calls::PendingCall;
pub use keys::ScanCursor;
use membership::check_domain;
pub use pace::SlowWorker;
pub use partitions::Partitioner;
pub use push_buffer::PushBuffer;
use threads::{ThreadGuard, first_only};
use tidewater_bookkeeping::combine::Combiner;
use tidewater_bookkeeping::feedback::Feedback;
pub use versions::GroupRange;

/// Connections to coordinator and servers, with settings, from which [`Client::from_parts`] makes a client.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
/// # use tidewater::link::ServerLink;
/// # use tidewater::{Client, Parts, SyncMode};
/// # use tidewater_lanes::wake::OsParker;
/// # use tidewater_protocol::ids::WorkerId;
/// # use tidewater_runtime::clock::Deadline;
/// # use tidewater_service::embedded::{Cluster, ClusterConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = Cluster::start(&ClusterConfig::default())?;
/// # let at = cluster.environment();
/// # let deadline = Deadline::after(Duration::from_secs(30));
/// # let join = JoinConfig::new(&at.coordinator, at.token.clone());
/// # let (mut coordinator, _) = NetCoordinatorLink::join(&join, deadline)?;
/// # let members = coordinator.wait_servers(at.servers, deadline)?;
/// # let mut config = ConnectConfig::new(at.token.clone(), coordinator.cluster(), 0);
/// # config.epoch = members.epoch;
/// # let mut parker = OsParker::new(Duration::ZERO)?;
/// let server = &members.servers[0];
/// let (link, lanes) = NetServerLink::open(server, &config, &mut parker, deadline)?;
/// let mut client = Client::from_parts(Parts {
///     coordinator: Box::new(coordinator),
///     servers: vec![(Box::new(link), lanes)],
///     parker: Box::new(parker),
///     rank: WorkerId(0),
///     workers: 1,
///     sync: SyncMode::Asp,
/// })?;
/// assert_eq!(client.servers(), 1);
/// client.finish()?;
/// # Ok(())
/// # }
/// ```
pub struct Parts {
    /// Control connection to the coordinator.
    pub coordinator: Box<dyn CoordinatorLink>,
    /// Each server with its lanes, in the order of the server numbers.
    pub servers: Vec<(Box<dyn ServerLink>, Vec<OpenLane>)>,
    /// Parker in which the client's thread sleeps while it waits.
    pub parker: Box<dyn Parker>,
    /// Rank of this worker, from 0.
    pub rank: WorkerId,
    /// Number of workers of the job.
    pub workers: u32,
    /// How far workers may drift apart.
    pub sync: SyncMode,
}

/// Client of one thread of a worker, from [`Job::client`](crate::Job::client): it pulls, pushes and ticks. Further
/// threads of the worker have clients of their own, from [`Client::sibling`].
///
/// # Resource clean-up
/// Dropping it ends the session. Pushed data stays pushed; wait for the tickets that matter. Dropping
/// does not report that the worker is done. [`Client::finish`] does, so that no worker waits for this
/// one.
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, PullOptions, PushOp, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// let mut client = job.client(SyncMode::Bsp)?;
/// let table = client.create_table::<f64>(TableBuilder::range::<f64>("w", 1, 2).spec())?;
/// for _ in 0..3 {
///     let ticket = client.push_range(&table, 0, &[1.0, 2.0], PushOp::Sum)?;
///     client.wait_applied(&ticket)?;
///     client.tick()?;
/// }
/// let mut weights = [0.0; 2];
/// client.pull_range(&table, 0, &mut weights, PullOptions::default())?;
/// assert_eq!(weights, [3.0, 6.0]);
/// client.finish()
/// # }
/// ```
pub struct Client {
    lanes: Lanes,
    tables: Tables,
    clock: WorkerClock,
    scratch: RowScratch,
    blocks: BlockScratch,
    combiner: Combiner,
    feedback: Feedback,
    async_pulls: AsyncPulls,
    pins: Vec<versions::Pin>,
    by_lane: Vec<Vec<u32>>,
    /// Progress of the push, or deletion of keys, under way on each lane: number of built rows, or the next element.
    lane_next: Vec<u64>,
    /// Payload bytes of the frame that waits for room on each lane; 0: none.
    lane_waits: Vec<usize>,
    buffers: Buffers,
    collective: collectives::CollectiveState,
    resume: resume::ResumeState,
    rank: WorkerId,
    workers: u32,
    timeout: Duration,
    connect: Option<Arc<dyn ConnectThread>>,
    /// Calls to the coordinator that were started and are not over.
    started: Vec<calls::Started>,
    /// Callbacks of pushes that have not run.
    callbacks: callbacks::Callbacks,
    /// Whether the coordinator knows at which clocks this worker leaves.
    is_leave_announced: bool,
    /// Slow workers as reported last.
    slow: Vec<WorkerId>,
    /// Below the connections: those of a thread that is lost have ended when it is reported.
    guard: ThreadGuard,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("rank", &self.rank)
            .field("number", &self.tables.client.0)
            .field("tables", &self.tables.len())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a client from existing connections to the coordinator and the servers. Most programs use
    /// [`Job::client`](crate::Job::client).
    ///
    /// # Errors
    /// [`ClientError::Protocol`] when a server granted a ring of an impossible size.
    pub fn from_parts(parts: Parts) -> Result<Self, ClientError> {
        let guard = ThreadGuard::first(parts.rank, parts.coordinator);
        let clock = WorkerClock::new(parts.sync);
        Self::of_thread(guard, parts.servers, parts.parker, parts.workers, clock)
    }

    fn of_thread(
        guard: ThreadGuard,
        servers: Vec<(Box<dyn ServerLink>, Vec<OpenLane>)>,
        parker: Box<dyn Parker>,
        workers: u32,
        clock: WorkerClock,
    ) -> Result<Self, ClientError> {
        let lanes = Lanes::new(servers, parker, guard.coordinator())?;
        let by_lane = vec![Vec::new(); lanes.len()];
        let (lane_next, lane_waits) = (vec![0; lanes.len()], vec![0; lanes.len()]);
        Ok(Self {
            lanes,
            tables: Tables::new()?,
            clock,
            scratch: RowScratch::default(),
            blocks: BlockScratch::default(),
            combiner: Combiner::default(),
            feedback: Feedback::default(),
            async_pulls: AsyncPulls::default(),
            pins: Vec::new(),
            by_lane,
            lane_next,
            lane_waits,
            buffers: Buffers::default(),
            collective: collectives::CollectiveState::default(),
            resume: resume::ResumeState::default(),
            rank: guard.thread().rank,
            workers,
            timeout: DATA_DEADLINE,
            connect: None,
            started: Vec::new(),
            callbacks: callbacks::Callbacks::default(),
            is_leave_announced: false,
            slow: Vec::new(),
            guard,
        })
    }

    /// Checks, under BSP or SSP, that every server lists this worker as a member of the default clock domain. Fails
    /// with `ClientError::Environment` otherwise.
    pub(crate) fn check_member(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        match self.clock.is_bounded(DomainId(0)) {
            true => {
                let thread = self.guard.thread();
                check_member(&mut self.lanes, DomainId(0), thread, deadline)
            }
            false => Ok(()),
        }
    }

    /// Reports to the coordinator, but to no server, that this worker is done, for a worker that was refused before
    /// its first tick. The sessions stay until the client is dropped.
    pub(crate) fn leave(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        self.lanes.coordinator.finished(deadline)
    }

    /// Whether this client leads its job: it is the first client of the worker with the lowest rank that has not
    /// left. The leader does what is done once for all workers.
    ///
    /// # Errors
    /// That the coordinator or a server is lost.
    pub fn leads(&mut self) -> Result<bool, ClientError> {
        if !self.guard.thread().is_first() {
            return Ok(false);
        }
        if self.rank.0 == 0 {
            return Ok(true);
        }
        let lowest = self.live_workers()?.into_iter().min();
        Ok(lowest == Some(self.rank) && !mutants::on(Mutant::RankZeroLeads))
    }

    /// Rank of this worker in its job, from 0.
    pub const fn rank(&self) -> WorkerId {
        self.rank
    }

    /// Number of workers of the job; 0 in a job of open size, for which no number was given.
    pub const fn workers(&self) -> u32 {
        self.workers
    }

    /// Number of servers of the job.
    pub fn servers(&self) -> usize {
        self.lanes.servers()
    }

    /// Transport of the lanes to server 0; `None` without servers. Other servers may be reached by another
    /// transport, for example those of this host by shared memory.
    pub fn transport(&mut self) -> Option<TransportKind> {
        self.lanes.link(0).map(|link| link.transport())
    }

    /// Synchronisation mode (BSP, SSP or ASP) of the default clock domain.
    pub const fn sync(&self) -> SyncMode {
        self.clock.sync(DomainId(0))
    }

    /// Counters of this client's operations so far.
    pub const fn counters(&self) -> &Counters {
        &self.lanes.counters
    }

    /// Sets the time limit of calls that take no timeout or options (default 30 s).
    pub const fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Sets the most bytes of client memory for residuals of encoded pushes (default 256 MiB), see
    /// [`PushOptions::encoding`](crate::PushOptions::encoding). A residual takes 4 bytes an element, and 16 for each
    /// row or 1,024 elements of a range table. A push without room for its residuals is sent with exact values;
    /// existing residuals stay.
    pub const fn set_residual_bytes_max(&mut self, bytes: usize) {
        self.feedback.bytes_max = bytes;
    }

    /// Sets the most bytes of memory for cached locations of sparse rows, of all tables and threads of this worker
    /// together (default: no bound but 2^24 rows of each table). A location takes about 15 bytes. Beyond the bound,
    /// locations overwrite each other, and a pull asks the server for missing ones. Allocated memory is not freed.
    pub fn set_location_bytes_max(&mut self, bytes: usize) {
        self.guard.locations().budget().set_bytes_max(bytes);
    }

    /// Sets the time limit of waits for other workers' clocks (default 30 min).
    pub const fn set_clock_timeout(&mut self, timeout: Duration) {
        self.clock.deadline = timeout;
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    /// Creates a table, or opens the one of that name if its definition is equal; blocks until all servers have it.
    /// All workers may call it. Cost: a round trip to the coordinator and to each server. The servers fill a dense
    /// table with its initial values: its deadline is longer by a second for each 16 MiB.
    ///
    /// # Errors
    /// A refusal that names the difference or the exceeded limit; a deadline, after which the table may exist and the
    /// call can be repeated. [`ClientError::Argument`] for a partition on a server that the job does not have.
    pub fn create_table<T: Element>(&mut self, spec: &TableSpec) -> Result<Table<T>, ClientError> {
        self.check_worker("create_table")?;
        self.check_servers("create_table", spec)?;
        let deadline = Deadline::after(creation_timeout(self.timeout, spec));
        self.rejoin_if_restarted(deadline)?;
        self.lanes.send_held(deadline)?;
        let info = self.lanes.coordinator.create_table(spec, deadline)?;
        self.adopt(info, deadline)
    }

    /// Opens an existing table by name; blocks for a round trip to the coordinator and to each server.
    ///
    /// # Errors
    /// A refusal when no table has that name, or when it holds another element type.
    pub fn open_table<T: Element>(&mut self, name: &str) -> Result<Table<T>, ClientError> {
        let deadline = self.deadline();
        self.rejoin_if_restarted(deadline)?;
        self.lanes.send_held(deadline)?;
        let info = self.lanes.coordinator.open_table(name, deadline)?;
        self.adopt(info, deadline)
    }

    /// Definition of a table that this client has opened; `None` for the handle of another client, or of a released
    /// table.
    pub fn spec<T: Element>(&self, table: &Table<T>) -> Option<&TableSpec> {
        let found = self.tables.find("spec", table.named()).ok();
        found.map(|state| &state.spec)
    }

    fn adopt<T: Element>(
        &mut self,
        info: TableInfo,
        deadline: Deadline,
    ) -> Result<Table<T>, ClientError> {
        if info.spec.dtype != T::DTYPE {
            return Err(ClientError::Argument {
                op: "open_table",
                table: info.spec.name.clone(),
                what: format!("it holds {:?}, not {:?}", info.spec.dtype, T::DTYPE),
            });
        }
        let id = info.id;
        if let Some(known) = self.tables.by_id(id) {
            let known = &known.spec;
            if *known != info.spec {
                return Err(ClientError::Protocol {
                    server: "coordinator".into(),
                    what: format!(
                        "tables \"{}\" and \"{}\" differ and have one number, {id}",
                        known.name, info.spec.name
                    ),
                });
            }
        } else {
            self.describe(info, deadline)?;
        }
        let handle = self.tables.handle(id);
        Ok(handle.unwrap_or_else(|| unreachable!("table {id} was found or added")))
    }

    /// Requests from every server where its partitions of a table lie, and adds the table to this client's. Pulls,
    /// pins and residuals of a table that it replaces are dropped.
    fn describe(&mut self, info: TableInfo, deadline: Deadline) -> Result<(), ClientError> {
        let id = info.id;
        let locations = self.guard.locations().of(id);
        let handle = self.tables.next_handle()?;
        let mut state = TableState::new(handle, info, &self.lanes, locations)?;
        let mut first_lane = 0;
        for server in 0..self.lanes.servers() {
            let lanes = first_lane..first_lane + self.lanes.appliers(server);
            first_lane = lanes.end;
            let describe = |link: &mut dyn ServerLink, slice| {
                let descriptor = link.describe(id, slice)?;
                Ok((descriptor, link.name().to_owned()))
            };
            let (descriptor, name) = self.lanes.ask(server, deadline, describe)?;
            state
                .learn(&descriptor, lanes)
                .map_err(|what| ClientError::Protocol {
                    server: name,
                    what: format!("table \"{}\": {what}", state.name()),
                })?;
        }
        if let Some(gone) = self.tables.add(state) {
            self.async_pulls.cancel_all(gone);
            self.forget_pins(gone);
            self.feedback.forget(gone.number());
        }
        Ok(())
    }

    /// Releases a table for all workers: the servers free it, and later pulls and pushes of it fail. This client's
    /// handles of it become invalid, its pulls under way are cancelled, and its state is freed.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a handle of another client; the coordinator's refusal or a deadline.
    pub fn release_table<T: Element>(&mut self, table: Table<T>) -> Result<(), ClientError> {
        self.check_worker("release_table")?;
        let deadline = self.deadline();
        let named = table.named();
        self.tables.find("release_table", named)?;
        self.lanes.send_held(deadline)?;
        self.lanes.coordinator.release_table(named.id, deadline)?;
        self.async_pulls.cancel_all(named.handle);
        self.forget_pins(named.handle);
        self.feedback.forget(named.handle.number());
        self.tables.remove(named);
        Ok(())
    }

    /// Allocates a registered buffer of `len` zero elements, which the NIC may write. Data pulled into it over verbs
    /// is not copied again; over other transports it is ordinary memory. It pays for long pulls only. Cost: a system
    /// call for each server reached over verbs, and the pinning of all its pages. Make it once.
    ///
    /// # Errors
    /// [`ClientError::Memory`] when there is no memory, locked memory is limited, this client has 64 buffers, or
    /// the buffer exceeds 1 TiB.
    pub fn buffer<T: Element>(&mut self, len: usize) -> Result<RegisteredBuffer<T>, ClientError> {
        self.buffers.make(&mut self.lanes, len)
    }

    /// Ends an iteration in the default clock domain. Under BSP and SSP it first waits until every push is
    /// acknowledged on every lane, so that an iteration is complete or does not end. Under ASP it waits only for room
    /// in the rings. After an error the call can be repeated and continues where it stopped.
    ///
    /// # Errors
    /// The refusal of a push that no ticket has claimed (no wait for its ticket has returned it). The clock has not
    /// moved then, so that the push can be repaired before the next call; each call returns one refusal. A deadline
    /// that names the awaited workers.
    pub fn tick(&mut self) -> Result<(), ClientError> {
        self.tick_domain(DomainId(0))
    }

    /// Ends an iteration in the given clock domain, as [`Client::tick`] does in domain 0. Under BSP and SSP it
    /// first waits until every push of this client is acknowledged on every lane, also those to tables of other
    /// domains.
    ///
    /// # Errors
    /// As [`Client::tick`]; [`ClientError::Argument`] for a domain that does not exist.
    pub fn tick_domain(&mut self, domain: DomainId) -> Result<(), ClientError> {
        self.check_worker("tick")?;
        check_domain("tick_domain", domain)?;
        let domain = match mutants::on(Mutant::TickOfDomainZero) {
            true => DomainId(0),
            false => domain,
        };
        self.guard.check()?;
        self.check_no_save("tick_domain")?;
        self.check_no_task("tick_domain")?;
        self.clock.check_stay(domain)?;
        let thread = self.guard.thread();
        let deadline = Deadline::after(self.clock.deadline);
        // The pushes of a tick that is partly sent were already checked.
        if !self.clock.is_halfway(domain) {
            let answered = match self.clock.is_bounded(domain) {
                true => self
                    .clock
                    .await_answers(&mut self.lanes, domain, thread, deadline),
                // Answers that have arrived are due to their callbacks.
                false if self.callbacks.is_empty() => Ok(()),
                false => self.poll(deadline),
            };
            self.run_callbacks();
            answered?;
            self.check_refusals()?;
        }
        self.clock.tick(&mut self.lanes, domain, thread, deadline)
    }

    /// Makes progress without waiting for answers: processes arrived data, sends data that a socket had not
    /// accepted, and recovers broken lanes. Every other call does the same, so that only a program that computes for
    /// seconds between calls needs it. Over TCP the rest of a large push then leaves, and a cut control connection
    /// is restored before its session ends. Callbacks of answered pushes run, see [`Client::on_applied`].
    ///
    /// # Errors
    /// When a server or the coordinator is lost.
    pub fn progress(&mut self) -> Result<(), ClientError> {
        let deadline = self.deadline();
        let alive = self.lanes.keep_alive();
        let alive = alive.and_then(|()| self.lanes.send_held(deadline));
        let polled = alive.and_then(|()| self.poll(deadline));
        self.run_callbacks();
        polled
    }

    /// Processes data that has arrived, and recovers a lane that is found broken.
    fn poll(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        match self.lanes.poll() {
            Err(Interrupt::Broken(lane)) => self.lanes.recover(lane, deadline),
            Err(Interrupt::Failed(e)) => Err(e),
            Ok(()) => Ok(()),
        }
    }

    /// Checks whether the job goes on: fails if the coordinator has announced its end. For callers that poll tables.
    /// Waits up to 1 ms.
    ///
    /// # Errors
    /// The reason of the job's end, or that the coordinator is lost.
    pub fn check_job(&mut self) -> Result<(), ClientError> {
        self.lanes.coordinator.check()
    }

    /// Reason of an operator's request that the job end (`tidewater stop`); `None` without one. Workers end at one
    /// step with [`Walltime`](crate::walltime::Walltime), which polls this too. Cost: up to 1 ms in each 100 ms.
    ///
    /// # Errors
    /// As [`Client::check_job`].
    pub fn stop_asked(&mut self) -> Result<Option<String>, ClientError> {
        self.lanes.coordinator.stop_asked()
    }

    /// Number of iterations that this worker has completed in the default clock domain.
    pub fn clock(&self) -> u64 {
        self.clock.at(DomainId(0))
    }

    /// Number of iterations that every worker has completed in the default domain, as all servers know it: a pull
    /// now is sure to see them.
    ///
    /// # Errors
    /// When a server is lost.
    pub fn global_clock(&mut self) -> Result<u64, ClientError> {
        self.slowest(DomainId(0))
    }

    fn slowest(&mut self, domain: DomainId) -> Result<u64, ClientError> {
        let deadline = self.deadline();
        self.lanes.wait("look at the clock", deadline, |lanes| {
            Ok((0..lanes.len())
                .map(|l| lanes.get(l).clock(domain).min)
                .min())
        })
    }

    /// This worker's clock in the domain of a table, and the last clock at which a row pulled now may still be used.
    /// The latter is `None` under ASP.
    fn usable_to<T: Element>(
        &mut self,
        table: &Table<T>,
    ) -> Result<(u64, Option<u64>), ClientError> {
        let domain = self.tables.find("pull_rows", table.named())?.spec.domain;
        let clock = self.clock.at(domain);
        let Some(staleness) = self.clock.sync(domain).staleness() else {
            return Ok((clock, None));
        };
        // The pull waits until the slowest worker has ended as many iterations as this bound allows.
        let slowest = self.slowest(domain)?.max(clock.saturating_sub(staleness));
        Ok((clock, Some(slowest.saturating_add(staleness))))
    }

    /// Blocks until the servers have answered all pushes of this worker, like [`Client::flush`], then until all
    /// workers have reached the barrier `name`. A worker's first client calls it, when its siblings have flushed.
    ///
    /// In a job of open size (no number of workers was given) it waits for the members at this clock. Under BSP and
    /// SSP these are the workers that have begun with this tick or an earlier one; with a schedule also those that
    /// have not connected yet. Under ASP they are the live workers. A worker that finishes or is lost meanwhile is
    /// awaited no more.
    ///
    /// # Errors
    /// The refusal of a push that no ticket has claimed, before this worker is counted as arrived. A refusal that
    /// names the missing workers. A refusal in a job of open size for which a later worker has stated a number of
    /// workers. [`ClientError::Thread`] from a sibling.
    pub fn barrier(&mut self, name: &str, timeout: Duration) -> Result<(), ClientError> {
        if self.workers == 0 {
            let call = self.start_barrier(name, timeout)?;
            return self.finish_barrier(call);
        }
        let deadline = Deadline::after(timeout);
        first_only("barrier", self.guard.thread())?;
        self.complete("barrier", deadline)?;
        self.lanes.coordinator.barrier(name, self.workers, deadline)
    }

    /// Saves all tables of the job into a directory that all servers see, and blocks until they have. A relative
    /// path is relative to this process's working directory. Returns the numbers of rows and bytes written. Call it
    /// on one worker.
    ///
    /// Other workers go on meanwhile; their pushes do not change what is saved. Under BSP and SSP, tables of ticks
    /// are saved as they are when all workers have ticked as often as this one. Of other tables each applier saves
    /// its share at one moment: for one moment of all appliers, call it between barriers when all workers have
    /// flushed.
    ///
    /// # Errors
    /// A refusal that names the file and the cause. The model that the directory held is unchanged. After a deadline
    /// the servers may still complete the save.
    pub fn save(&mut self, dir: &str, timeout: Duration) -> Result<Saved, ClientError> {
        self.check_worker("save")?;
        let clocks = self.clocks_of_save();
        let deadline = Deadline::after(timeout);
        self.lanes.send_held(deadline)?;
        self.lanes.coordinator.save(dir, &clocks, deadline)
    }

    /// Clocks at which all appliers save: those of the BSP and SSP domains in which this worker has ticked. In an
    /// ASP domain, other workers may never reach this worker's clock.
    fn clocks_of_save(&self) -> Vec<DomainClock> {
        let mut clocks = self.clock.bounded();
        clocks.retain(|at| at.clock > 0);
        clocks
    }

    /// Loads the tables of a saved model into the servers, and blocks until they have them. Call it on one worker,
    /// and open the tables afterwards. Returns the table names, and the clocks from which a program continues the
    /// iteration count. A relative path is relative to this process's working directory. The tables are new ones:
    /// residuals of encoded pushes stay with the tables that were released before.
    ///
    /// # Errors
    /// A refusal that names the file and the cause. After a deadline the servers may still complete the load.
    pub fn load(&mut self, dir: &str, timeout: Duration) -> Result<Loaded, ClientError> {
        self.check_worker("load")?;
        let deadline = Deadline::after(timeout);
        self.rejoin_if_restarted(deadline)?;
        self.lanes.send_held(deadline)?;
        self.lanes.coordinator.load(dir, deadline)
    }

    /// Sends built frames and blocks until the servers have answered everything that this client has pushed.
    ///
    /// # Errors
    /// The refusal of the earliest push that no ticket has claimed: no wait for its ticket, and no earlier flush, has
    /// returned it. Each call returns one refusal, until there is none. A deadline names the servers that have not
    /// applied, and the ranks with an earlier turn in the iteration; the call can be repeated.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        let deadline = self.deadline();
        self.complete("flush", deadline)
    }

    /// Sends all frames and blocks until every push is acknowledged (applied, held for a tick, or refused). Fails
    /// with the first refusal that no ticket has claimed; `op` names the call in errors.
    fn complete(&mut self, op: &'static str, deadline: Deadline) -> Result<(), ClientError> {
        let settled = self.lanes.settle(op, deadline);
        self.run_callbacks();
        settled.map_err(|e| self.name_turns(None, e))?;
        self.check_refusals()?;
        self.clock.refused(&mut self.lanes)
    }

    /// Finishes this worker: flushes, leaves every clock domain, and reports to the coordinator that it is done. A
    /// sibling leaves its clocks and ends its sessions; its worker goes on. After an error the call can be repeated.
    ///
    /// # Errors
    /// The refusal of a push that no ticket has claimed; the worker has not left then. A deadline, or a lost
    /// connection. [`ClientError::Thread`] from the first client while siblings are open. [`ClientError::Argument`]
    /// while a save of this client's clocks is under way: finish the save first.
    pub fn finish(&mut self) -> Result<(), ClientError> {
        if self.is_observer() {
            return self.finish_observer();
        }
        let is_first = self.guard.thread().is_first();
        if self.guard.is_finished() && !is_first {
            return Ok(());
        }
        self.guard.check_finish()?;
        self.check_no_save("finish")?;
        if !is_first && self.lanes.coordinator.has_restarted() {
            // Its sessions are gone, and its open task with them.
            self.guard.finish();
            return Ok(());
        }
        self.check_no_task("finish")?;
        // A sibling without some of its sessions has sent everything, and can send no more.
        if !self.lanes.has_ended_sessions() {
            self.flush()?;
            if is_first && !self.clock.is_finished() && !self.is_leave_announced {
                let deadline = self.deadline();
                self.lanes
                    .coordinator
                    .leaving(&self.clock.all(), deadline)?;
                self.is_leave_announced = true;
            }
            self.clock.finish(&mut self.lanes)?;
            self.flush()?;
        }
        let deadline = self.deadline();
        match is_first {
            true => self.lanes.coordinator.finished(deadline)?,
            false => self.lanes.end_sessions(deadline)?,
        }
        self.guard.finish();
        Ok(())
    }

    /// Reports to the coordinator that this worker cannot go on. The job ends for all workers, and its error names
    /// `reason`.
    ///
    /// # Errors
    /// A deadline, or a lost connection.
    pub fn fail(&mut self, reason: &str) -> Result<(), ClientError> {
        self.check_worker("fail")?;
        let deadline = self.deadline();
        self.lanes.coordinator.failed(reason, deadline)
    }
}

/// Time limit of a table's creation: `usual`, plus a second for each 16 MiB of a dense table, which servers fill with
/// its initial values.
fn creation_timeout(usual: Duration, spec: &TableSpec) -> Duration {
    let fill = Duration::from_secs(spec.dense_bytes() / CREATE_BYTES_A_SECOND);
    usual.saturating_add(fill)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TableBuilder;

    #[test]
    fn creation_of_a_large_table_takes_longer() {
        let usual = Duration::from_secs(30);
        let timeout = |spec: &TableSpec| creation_timeout(usual, spec);
        let sparse = TableBuilder::sparse::<f32>("sparse", 16);
        assert_eq!(timeout(sparse.spec()), usual);
        let gibibyte = TableBuilder::rows::<f32>("rows", 1 << 20, 256);
        assert_eq!(timeout(gibibyte.spec()), Duration::from_secs(30 + 64));
        let impossible = TableBuilder::rows::<f64>("rows", u64::MAX, 256);
        assert!(timeout(impossible.spec()) > Duration::from_secs(1 << 39));
    }
}

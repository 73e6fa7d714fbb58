//! The job of this process: makes its clients, and keeps the parts of the job that run in the process.

use std::time::Duration;

use tidewater_lanes::wake::OsParker;
use tidewater_launch::rendezvous::Membership;
use tidewater_launch::{FabricSettings, RdmaDevice, TransportChoice};
use tidewater_protocol::ids::WorkerId;
use tidewater_protocol::wire::control::{Members, ServerMember};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::Arc;
#[cfg(feature = "embedded")]
use tidewater_service::embedded::Cluster;

use super::join_options::environment;
use super::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
use crate::clock::SyncMode;
use crate::error::{ClientError, SystemError};
use crate::link::{ConnectThread, ServerLink, ThreadLinks};
use crate::session::{Client, Parts};
use tidewater_bookkeeping::lane_memory::LaneMemory;

/// Default time limit of a join: coordinator and servers may start after this process.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// A job that this process takes part in, from [`JoinOptions::join`](super::JoinOptions::join). It makes the
/// clients.
///
/// A client belongs to one thread. Each rank has one first client, which makes those of further threads
/// ([`Client::sibling`]). A process that a launcher started is one worker. In an embedded cluster and in
/// a job of a service, a process that claims no rank may make several workers, each on its own thread.
///
/// # Resource clean-up
/// Keep the job while its clients live: the coordinator, and servers, may run in this process. Call
/// [`Job::leave`] when they have finished. Dropping the job instead ends those parts at once, and with
/// them the job of all processes.
///
/// # Example
/// ```
/// use tidewater::{ClientError, JoinOptions, Joined, SyncMode};
///
/// fn main() -> Result<(), ClientError> {
///     let options = JoinOptions::embedded(1, 2); // 1 server, 2 workers
///     let Joined::Worker(job) = options.join()? else {
///         return Ok(());
///     };
///     assert_eq!(job.workers(), Some(2));
///     let work = |rank| {
///         let mut client = job.client_of(rank, SyncMode::Bsp)?;
///         assert_eq!(client.rank().0, rank);
///         client.tick()?; // both workers: BSP waits for the other one
///         client.finish()
///     };
///     std::thread::scope(|scope| {
///         let other = scope.spawn(|| work(1));
///         work(0)?;
///         other.join().expect("no panic")
///     })?;
///     job.leave()
/// }
/// ```
#[derive(Debug)]
pub struct Job {
    /// Coordinator, token, namespace, rank, number of workers.
    pub(super) join: JoinConfig,
    pub(super) transport: TransportChoice,
    pub(super) rdma_device: Option<RdmaDevice>,
    pub(super) fabric: FabricSettings,
    pub(super) join_timeout: Duration,
    pub(super) memory: LaneMemory,
    /// Number of workers, if it is known before a client connects.
    pub(super) workers: Option<u32>,
    /// Whether a launcher such as `mpirun`, or a bootstrap record, brought the job's processes together, servers
    /// too.
    pub(super) launched: bool,
    /// Line of [`Job::describe`] for a process that keeps a part of its launch.
    pub(super) line: Option<String>,
    pub(super) held: Held,
    /// Number of the process among the workers or launched processes of its host; 0 if unknown.
    pub(super) local_rank: u32,
}

/// Parts of the job that run in this process (coordinator, server, cluster) or its registration. Dropping the value
/// ends them.
#[derive(Debug)]
pub(super) enum Held {
    /// Coordinator and servers are elsewhere.
    Nothing,
    /// Registration of a launched worker. It shows the coordinator that the process lives until the worker
    /// has a client.
    Membership { _membership: Box<Membership> },
    /// Membership, and perhaps the coordinator and a server.
    #[cfg(feature = "embedded")]
    Launched(Box<super::launch::LaunchedParts>),
    /// A cluster of threads of this process.
    #[cfg(feature = "embedded")]
    Embedded(Box<Cluster>),
}

impl Job {
    pub(super) const fn new(join: JoinConfig, transport: TransportChoice) -> Self {
        let workers = match join.workers {
            0 => None,
            workers => Some(workers),
        };
        Self {
            join,
            transport,
            rdma_device: None,
            fabric: FabricSettings::UNSET,
            join_timeout: JOIN_TIMEOUT,
            memory: LaneMemory::NONE,
            workers,
            launched: false,
            line: None,
            held: Held::Nothing,
            local_rank: 0,
        }
    }

    /// Rank that this process's worker claims. `None` if it claims none: each client then takes a free one.
    pub const fn rank(&self) -> Option<u32> {
        self.join.rank
    }

    /// Number of workers of the job, as this process knows it before it connects; `None` if only the coordinator
    /// does. [`Client::workers`] has the coordinator's number.
    pub const fn workers(&self) -> Option<u32> {
        self.workers
    }

    /// Whether the processes of the job, servers too, were started together: by `mpirun`, `srun` or a similar
    /// launcher, or by a program that broadcasts a bootstrap record. False in an embedded cluster, under
    /// `tidewater run`, and in the job of a running coordinator.
    pub const fn is_launched(&self) -> bool {
        self.launched
    }

    /// Settings of the RDMA queue pairs of lanes over verbs, as given by options and environment.
    pub const fn fabric(&self) -> &FabricSettings {
        &self.fabric
    }

    /// Describes this process in one line for people: rank, role, and address of the coordinator.
    pub fn describe(&self) -> String {
        let JoinConfig {
            coordinator,
            namespace,
            rank,
            ..
        } = &self.join;
        if let Some(line) = &self.line {
            return line.clone();
        }
        let worker = match (rank, self.workers) {
            _ if self.join.observer => "an observer".to_owned(),
            (Some(rank), Some(workers)) => format!("worker {rank} of {workers}"),
            (Some(rank), None) => format!("worker {rank}"),
            (None, Some(workers)) => format!("a free rank of {workers} workers"),
            (None, None) => "a free rank".to_owned(),
        };
        format!("{worker}, job \"{namespace}\", coordinator at {coordinator}")
    }

    /// Connects this process's worker: joins the job and opens a session with every server. Blocks until all servers
    /// have joined, or fails at the join timeout. The client belongs to the calling thread.
    ///
    /// # Errors
    /// A wrong token, rank or version as the coordinator reports it; a number of workers that differs
    /// from the coordinator's; a deadline that names the missing processes; an unavailable transport.
    /// Under BSP and SSP, [`ClientError::Environment`] for a worker that came after the first tick of a
    /// job of unknown size.
    ///
    /// In a job that was joined with [`JoinOptions::observer`](super::JoinOptions::observer) the client is an
    /// observer, and `sync` has no effect.
    pub fn client(&self, sync: SyncMode) -> Result<Client, ClientError> {
        match self.join.observer {
            true => self.observer(),
            false => self.connect(&self.join, sync),
        }
    }

    /// Connects an observer: a client that opens tables and pulls in every mode. It is no member of a
    /// clock or a barrier, has no rank, and may come and go at any time, also while the job's process is a
    /// worker. No worker waits for it, and its end, or its silence, changes nothing for others. A pull
    /// returns the initial values of keys that have no row, and creates none.
    ///
    /// Pushes, ticks, barriers, saves and all other calls that change something are
    /// [`ClientError::Observer`], and servers refuse their frames. Cost: a session with every server, for a
    /// ring and a mailbox at each applier; a tick writes one cache line for it.
    ///
    /// # Errors
    /// As [`Job::client`]. [`ClientError::Refused`] when the cluster has its limit of observers
    /// (`docs/LIMITS.md`), or, in a service, when the namespace has no job.
    ///
    /// # Examples
    /// ```
    /// use tidewater::{ClientError, JoinOptions, PullOptions, SyncMode, TableBuilder};
    ///
    /// # fn main() -> Result<(), ClientError> {
    /// let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
    /// let mut worker = job.client(SyncMode::Bsp)?;
    /// let table = worker.create_table::<f32>(TableBuilder::rows::<f32>("t", 8, 1).spec())?;
    ///
    /// let mut observer = job.observer()?;
    /// let seen = observer.open_table::<f32>("t")?;
    /// let mut row = [1.0];
    /// observer.pull_rows(&seen, &[7], &mut row, PullOptions::default())?;
    /// assert_eq!(row, [0.0]);
    /// assert!(matches!(observer.tick(), Err(ClientError::Observer { .. })));
    ///
    /// worker.tick()?; // waits for no observer
    /// # let _ = table;
    /// observer.finish()?;
    /// worker.finish()
    /// # }
    /// ```
    pub fn observer(&self) -> Result<Client, ClientError> {
        let mut join = self.join.clone();
        join.observer = true;
        (join.rank, join.workers) = (None, 0);
        self.connect(&join, SyncMode::Asp)
    }

    /// Connects worker `rank`, as [`Job::client`] does: for a process with several workers as threads.
    ///
    /// # Errors
    /// As [`Job::client`]; [`ClientError::Environment`] if this process has another rank.
    pub fn client_of(&self, rank: u32, sync: SyncMode) -> Result<Client, ClientError> {
        match self.join.rank {
            Some(own) if own != rank => Err(ClientError::Environment(format!(
                "this process is worker {own} of its job and cannot connect as worker {rank}; start a \
                 process for each worker, join without a rank, or make siblings for further threads"
            ).into())),
            _ => {
                let mut join = self.join.clone();
                join.rank = Some(rank);
                self.connect(&join, sync)
            }
        }
    }

    /// Leaves the job, after this worker has finished ([`Client::finish`]). A process that runs the coordinator or a
    /// server blocks until the workers of all processes have finished. An embedded cluster ends.
    ///
    /// # Errors
    /// [`ClientError::Launch`] when a server in this process has failed.
    pub fn leave(self) -> Result<(), ClientError> {
        match self.held {
            Held::Nothing | Held::Membership { .. } => Ok(()),
            #[cfg(feature = "embedded")]
            Held::Launched(parts) => parts.leave(),
            #[cfg(feature = "embedded")]
            Held::Embedded(cluster) => match cluster.failure() {
                Some(failure) => Err(ClientError::Launch(failure.to_owned().into())),
                None => Ok(()),
            },
        }
    }

    /// Bytes of the ring of each lane for a client of these servers, which has one lane for each applier. Fails if
    /// the memory budget does not allow the smallest rings.
    fn ring_of(&self, servers: &[ServerMember]) -> Result<usize, ClientError> {
        let lanes = servers.iter().map(|server| usize::from(server.appliers));
        let bytes = self.memory.ring_of(lanes.sum());
        bytes.map_err(|error| ClientError::Environment(error.into()))
    }

    fn connect(&self, join: &JoinConfig, sync: SyncMode) -> Result<Client, ClientError> {
        let deadline = Deadline::after(self.join_timeout);
        let mut coordinator = NetCoordinatorLink::connect(join, deadline)?;
        // A budget that is too small for the servers of now is refused before the job counts this worker.
        if self.memory.budget.is_some() {
            self.ring_of(&coordinator.members(deadline)?.servers)?;
        }
        let joined = coordinator.enter(join, deadline)?;
        let mut members = coordinator.wait_servers(joined.servers_expected, deadline)?;
        members.servers.sort_by_key(|server| server.id);
        let ring_bytes = match self.ring_of(&members.servers) {
            Ok(bytes) => bytes,
            // Servers have come since. The others learn why the worker fails.
            Err(refused) => {
                return coordinator
                    .failed(&refused.to_string(), deadline)
                    .and(Err(refused));
            }
        };
        let token = join.token.clone();
        let mut config = ConnectConfig::new(token, coordinator.cluster(), joined.rank);
        config.namespace.clone_from(&join.namespace);
        config.observer = join.observer;
        config.epoch = members.epoch;
        config.transport = self.transport;
        config.rdma_device.clone_from(&self.rdma_device);
        config.fabric = self.fabric;
        config.local_rank = self.local_rank;
        config.workers = joined.workers_expected;
        config.ring_bytes = ring_bytes;
        let workers = config.workers;
        let mut threads = Threads {
            servers: members.servers,
            config,
        };
        let opened = threads.connect_first(&mut coordinator, joined.servers_expected, deadline)?;
        let ThreadLinks { servers, parker } = opened;
        let mut client = Client::from_parts(Parts {
            coordinator: Box::new(coordinator),
            servers,
            parker,
            rank: WorkerId(joined.rank),
            workers,
            sync,
        })?;
        client.begin_at(&joined.clocks);
        if let Some(clocks) = &joined.ends {
            client.end_at(clocks);
        }
        client.continues(joined.checkpoints, joined.resumed);
        client.connect_siblings_by(Arc::new(threads));
        match client.check_member(deadline) {
            Ok(()) => Ok(client),
            // The worker leaves by itself, so that the others do not count it as lost.
            Err(refused) => client.leave(deadline).and(Err(refused)),
        }
    }
}

/// Connector for the threads of one worker: opens a session with every server of the job for each of them.
struct Threads {
    servers: Vec<ServerMember>,
    config: ConnectConfig,
}

impl Threads {
    /// Opens the sessions of the first thread. If a server was restarted after the members were read, it reads
    /// them again and starts over, until `deadline`.
    fn connect_first(
        &mut self,
        coordinator: &mut NetCoordinatorLink,
        expected: u32,
        deadline: Deadline,
    ) -> Result<ThreadLinks, ClientError> {
        let mut again = false;
        loop {
            let opened = self.connect(0, deadline);
            let Err(ClientError::Refused(Refusal { code, .. })) = &opened else {
                return opened;
            };
            let is_old = matches!(
                code,
                RefusalCode::WrongEpoch | RefusalCode::WrongIncarnation
            );
            // By a session of the attempt before, while its server has not seen that it is closed.
            let by_itself = again && *code == RefusalCode::RankTaken;
            if deadline.passed() || !(is_old || by_itself) {
                return opened;
            }
            again = true;
            std::thread::sleep(Duration::from_millis(10));
            let members = coordinator.wait_servers(expected, deadline)?;
            self.config.epoch = members.epoch;
            self.servers = members.servers;
            self.servers.sort_by_key(|server| server.id);
        }
    }
}

impl ConnectThread for Threads {
    fn connect(&self, thread: u32, deadline: Deadline) -> Result<ThreadLinks, ClientError> {
        let config = ConnectConfig {
            thread,
            ..self.config.clone()
        };
        let spin = tidewater_lanes::fabric::SPIN;
        let parker = OsParker::new(spin).map_err(|e| {
            environment(SystemError {
                op: "make an epoll",
                source: e,
                remedy: Some("raise ulimit -n"),
            })
        })?;
        let mut parker = parker.patient();
        let mut servers = Vec::new();
        for member in &self.servers {
            let (link, lanes) = NetServerLink::open(member, &config, &mut parker, deadline)?;
            servers.push((Box::new(link) as Box<dyn ServerLink>, lanes));
        }
        let parker = Box::new(parker);
        Ok(ThreadLinks { servers, parker })
    }

    fn renewed(&self, members: &Members) -> Option<Arc<dyn ConnectThread>> {
        let mut servers = members.servers.clone();
        servers.sort_by_key(|server| server.id);
        let mut config = self.config.clone();
        config.epoch = members.epoch;
        Some(Arc::new(Self { servers, config }))
    }
}

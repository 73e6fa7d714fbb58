// long: each link and message has an example.

//! Control-plane links of a client, as traits: the simulator, the embedded cluster and sockets serve
//! the same client.

use std::time::Duration;

use tidewater_lanes::fabric::{ClientLane, Parker, RemoteAddr, TransportKind};
use tidewater_protocol::ids::{ApplierId, DomainId, ServerId, SessionId, TableId, WorkerThread};
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::table::TableSpec;
use tidewater_protocol::wire::control::{
    Arrival, DomainClock, Joined, MemberBarrier, Members, SlowMember, TableDescriptor, TableInfo,
    TaskAnswer, TaskRequest, WorkerClock,
};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Buffer;
use tidewater_runtime::sync::Arc;

use crate::error::{Cause, ClientError, ControlFailure};

/// Lane that was just opened or recovered, with its progress at the server.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
/// # use tidewater::link::OpenLane;
/// # use tidewater_lanes::wake::OsParker;
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
/// let (link, mut lanes) = NetServerLink::open(server, &config, &mut parker, deadline)?;
/// let OpenLane { lane, state, .. } = lanes.remove(0); // that of applier 0
/// assert!(!lane.peer().is_empty());
/// assert_eq!(state.applied_seq, 0); // nothing was pushed on it
/// # Ok(())
/// # }
/// ```
pub struct OpenLane {
    /// Client's end of the lane.
    pub lane: Box<dyn ClientLane>,
    /// Progress of the lane's ring at the server.
    pub state: StateLine,
    /// Public copy of its status record, read when the mailbox shows no progress; `None` where the
    /// server has none.
    pub status: Option<RemoteAddr>,
}

/// Link to one server: the control connection and the session on it.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
/// # use tidewater::link::ServerLink;
/// # use tidewater_lanes::wake::OsParker;
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
/// let (link, _lanes) = NetServerLink::open(server, &config, &mut parker, deadline)?;
/// let mut link: Box<dyn ServerLink> = Box::new(link);
/// link.check(deadline)?; // the control connection stands
/// link.end_session(deadline)?;
/// # Ok(())
/// # }
/// ```
pub trait ServerLink: Send {
    /// Name of the server, for error texts and logs.
    fn name(&self) -> &str;

    /// Identifier of the session with the server.
    fn session(&self) -> SessionId;

    /// Transport that carries the lanes.
    fn transport(&self) -> TransportKind;

    /// Size in bytes of the ring of each lane of this session.
    fn ring_bytes(&self) -> usize;

    /// Remote address of the counter word of this session's pushes to an applier. `None` if pushes are not counted.
    fn counter(&self, _applier: ApplierId) -> Option<RemoteAddr> {
        None
    }

    /// Requests the descriptor of a table from the server: its partitions there and where they lie.
    ///
    /// # Errors
    /// The server's refusal, or the connection's failure.
    fn describe(
        &mut self,
        table: TableId,
        deadline: Deadline,
    ) -> Result<TableDescriptor, ClientError>;

    /// Requests the worker threads that are members of a clock domain, with the ticks of each that this server has
    /// consumed.
    ///
    /// # Errors
    /// The server's refusal, or the connection's failure.
    fn clocks(
        &mut self,
        domain: DomainId,
        deadline: Deadline,
    ) -> Result<Vec<(WorkerThread, u64)>, ClientError>;

    /// Requests the step times of the worker threads in a clock domain, as this server measures them. The default
    /// implementation returns none.
    ///
    /// # Errors
    /// The server's refusal, or the connection's failure.
    fn paces(
        &mut self,
        _domain: DomainId,
        _deadline: Deadline,
    ) -> Result<Vec<WorkerClock>, ClientError> {
        Ok(Vec::new())
    }

    /// Checks the control connection between calls, and resumes the session over a new one if it was cut. Takes at
    /// most a second; an unreachable server is tried again at the next call.
    ///
    /// # Errors
    /// The server's refusal when the session has ended.
    fn check(&mut self, _deadline: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    /// Ends the session at the server at once. Without this call it ends some time after its connection. The server
    /// still applies complete frames in its rings. Idempotent. The default implementation does nothing.
    ///
    /// # Errors
    /// The server's refusal, or that the server is unreachable.
    fn end_session(&mut self, _deadline: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    /// Registers a buffer with the NIC of this session's lanes, so that reads write it directly. Without a NIC it
    /// does nothing.
    ///
    /// # Errors
    /// Error of the NIC or the system.
    fn register(&mut self, _buffer: &mut Buffer) -> Result<(), Cause> {
        Ok(())
    }

    /// Re-establishes the broken lane to an applier, and returns the new one with its progress. Idempotent: an
    /// interrupted call may be repeated.
    ///
    /// # Errors
    /// The server's refusal, or that the server is unreachable.
    fn recover(&mut self, applier: ApplierId, deadline: Deadline) -> Result<OpenLane, ClientError>;

    /// Adopts the epoch of a new membership. Returns true if the server was restarted and its successor has the
    /// session: every lane must then be recovered.
    fn follow(&mut self, _members: &Members) -> bool {
        false
    }
}

/// Server links, lanes and parker of a further thread (sibling) of a worker.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
/// # use tidewater::link::{ServerLink, ThreadLinks};
/// # use tidewater_lanes::wake::OsParker;
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
/// let mut servers: Vec<(Box<dyn ServerLink>, _)> = Vec::new();
/// for server in &members.servers {
///     let (link, lanes) = NetServerLink::open(server, &config, &mut parker, deadline)?;
///     servers.push((Box::new(link), lanes));
/// }
/// let links = ThreadLinks { servers, parker: Box::new(parker) };
/// assert_eq!(links.servers.len(), 1);
/// # Ok(())
/// # }
/// ```
pub struct ThreadLinks {
    /// Each server with its lanes, in the order of the server numbers.
    pub servers: Vec<(Box<dyn ServerLink>, Vec<OpenLane>)>,
    /// Parker in which the thread sleeps while it waits.
    pub parker: Box<dyn Parker>,
}

/// Connector that opens sessions for further threads (siblings) of one worker.
///
/// # Example
/// ```
/// # use std::sync::Arc;
/// # use tidewater::link::{ConnectThread, ThreadLinks};
/// # use tidewater::{ClientError, JoinOptions, SyncMode};
/// # use tidewater_runtime::clock::Deadline;
/// /// Permits no further threads.
/// struct OneThread;
///
/// impl ConnectThread for OneThread {
///     fn connect(&self, thread: u32, _: Deadline) -> Result<ThreadLinks, ClientError> {
///         Err(ClientError::Environment(format!("no cores for thread {thread}").into()))
///     }
/// }
///
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// client.connect_siblings_by(Arc::new(OneThread));
/// assert!(client.sibling().is_err());
/// # client.finish()
/// # }
/// ```
pub trait ConnectThread: Send + Sync {
    /// Opens a session with every server for thread number `thread` of the worker; blocks until all are open.
    ///
    /// # Errors
    /// The refusal of a server, or that it is unreachable.
    fn connect(&self, thread: u32, deadline: Deadline) -> Result<ThreadLinks, ClientError>;

    /// Connector for the servers of a later membership. `None` in an implementation where servers have no
    /// successors.
    fn renewed(&self, _members: &Members) -> Option<Arc<dyn ConnectThread>> {
        None
    }
}

/// Size of a saved model: rows and bytes.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::{ClientError, JoinOptions, PushOp, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// # let dir = tempfile::tempdir().expect("a folder");
/// # let dir = dir.path().to_str().expect("UTF-8");
/// let table = client.create_table::<f32>(TableBuilder::sparse::<f32>("w", 2).spec())?;
/// let ticket = client.push_rows(&table, &[3, 7], &[1.0; 4], PushOp::Assign)?;
/// client.wait_applied(&ticket)?;
/// let saved = client.save(dir, Duration::from_secs(30))?;
/// assert_eq!(saved.rows, 2);
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// Number of rows and blocks saved.
    pub rows: u64,
    /// Number of bytes written.
    pub bytes: u64,
}

/// Result of a load: tables, rows and clocks of the saved model.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::{ClientError, JoinOptions, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// # let dir = tempfile::tempdir().expect("a folder");
/// # let dir = dir.path().to_str().expect("UTF-8");
/// client.create_table::<f32>(TableBuilder::sparse::<f32>("w", 2).spec())?;
/// client.save(dir, Duration::from_secs(30))?;
/// # client.finish()?;
/// // In a later job:
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let loaded = client.load(dir, Duration::from_secs(30))?;
/// assert_eq!((loaded.tables, loaded.rows), (vec!["w".to_owned()], 0));
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Names of its tables, to be opened.
    pub tables: Vec<String>,
    /// Number of rows and blocks read.
    pub rows: u64,
    /// Clocks at which it was saved; [`Loaded::clock`] looks one up.
    pub clocks: Vec<DomainClock>,
}

impl Loaded {
    /// Iterations of a clock domain that the loaded model has seen, in all jobs that led to it; 0 for a domain
    /// without ticks. A resumed program continues at this iteration; the clocks of its job begin at 0.
    pub fn clock(&self, domain: DomainId) -> u64 {
        let its = self.clocks.iter().find(|clock| clock.domain == domain);
        its.map_or(0, |clock| clock.clock)
    }
}

/// Request of a client to the coordinator that can be started, and polled while the client goes on.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::connect::{JoinConfig, NetCoordinatorLink};
/// # use tidewater::link::{CoordinatorCall, CoordinatorLink as _};
/// # use tidewater_runtime::clock::Deadline;
/// # use tidewater_service::embedded::{Cluster, ClusterConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = Cluster::start(&ClusterConfig::default())?;
/// # let at = cluster.environment();
/// # let deadline = Deadline::after(Duration::from_secs(30));
/// # let join = JoinConfig::new(&at.coordinator, at.token.clone());
/// # let (mut coordinator, _) = NetCoordinatorLink::join(&join, deadline)?;
/// let call = CoordinatorCall::Barrier { name: "start".into(), count: 1 };
/// assert_eq!(call.op(), "barrier");
/// coordinator.begin(&call, deadline)?;
/// coordinator.finished(deadline)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum CoordinatorCall {
    /// Creates a table, or opens an equal one: [`CoordinatorLink::create_table`].
    CreateTable(TableSpec),
    /// Opens an existing table: [`CoordinatorLink::open_table`].
    OpenTable {
        /// Name of the table.
        name: String,
    },
    /// Releases a table on all servers: [`CoordinatorLink::release_table`].
    ReleaseTable(TableId),
    /// Arrives at a barrier: [`CoordinatorLink::barrier`].
    Barrier {
        /// Name of the barrier.
        name: String,
        /// Number of workers that open it.
        count: u32,
    },
    /// Saves all tables of the job: [`CoordinatorLink::save`].
    Save {
        /// Directory of the model.
        dir: String,
        /// Clocks of the cut; empty: the tables as they are.
        clocks: Vec<DomainClock>,
    },
    /// Loads the tables of a model: [`CoordinatorLink::load`].
    Load {
        /// Directory of the model.
        dir: String,
    },
    /// Makes a function of a module: [`CoordinatorLink::load_function`].
    LoadFunction {
        /// Name of the function.
        name: String,
        /// Bytes of the module.
        module: Vec<u8>,
    },
    /// Takes a task, or reports one. Only a coordinator with a connection has tasks.
    Tasks(Box<TaskRequest>),
    /// Arrives at a barrier of members, with the time of the call. Only a coordinator with a connection has them.
    MemberBarrier(MemberBarrier),
}

impl CoordinatorCall {
    /// Name of the call in error texts, such as "create table".
    pub const fn op(&self) -> &'static str {
        match self {
            Self::CreateTable(_) => "create table",
            Self::OpenTable { .. } => "open table",
            Self::ReleaseTable(_) => "release table",
            Self::Barrier { .. } | Self::MemberBarrier(_) => "barrier",
            Self::Save { .. } => "save",
            Self::Load { .. } => "load",
            Self::LoadFunction { .. } => "load function",
            Self::Tasks(_) => "tasks",
        }
    }
}

/// Reply of the coordinator to a [`CoordinatorCall`].
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::TableBuilder;
/// # use tidewater::connect::{JoinConfig, NetCoordinatorLink};
/// # use tidewater::link::{BegunCall, CoordinatorCall, CoordinatorLink as _, CoordinatorReply};
/// # use tidewater_runtime::clock::Deadline;
/// # use tidewater_service::embedded::{Cluster, ClusterConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = Cluster::start(&ClusterConfig::default())?;
/// # let at = cluster.environment();
/// # let deadline = Deadline::after(Duration::from_secs(30));
/// # let join = JoinConfig::new(&at.coordinator, at.token.clone());
/// # let (mut coordinator, _) = NetCoordinatorLink::join(&join, deadline)?;
/// let spec = TableBuilder::sparse::<f32>("w", 8).spec().clone();
/// let call = CoordinatorCall::CreateTable(spec);
/// let BegunCall::UnderWay(number) = coordinator.begin(&call, deadline)? else { panic!("done") };
/// let reply = loop {
///     if let Some(reply) = coordinator.poll(call.op(), number, Duration::from_millis(10))? {
///         break reply;
///     }
/// };
/// assert!(matches!(reply, CoordinatorReply::Table(info) if info.spec.name == "w"));
/// # coordinator.finished(deadline)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum CoordinatorReply {
    /// Result of a release, a barrier, or a loaded function.
    Done,
    /// The table that was created or opened.
    Table(Box<TableInfo>),
    /// Result of a save.
    Saved(Saved),
    /// Result of a load.
    Loaded(Loaded),
    /// Answer to a request about tasks.
    Tasks(Box<TaskAnswer>),
    /// The workers for which a barrier of members has opened.
    Arrivals(Vec<Arrival>),
}

impl CoordinatorReply {
    pub(crate) fn done(self, op: &'static str) -> Result<(), ClientError> {
        match self {
            Self::Done | Self::Arrivals(_) => Ok(()),
            _ => Err(unexpected(op)),
        }
    }

    pub(crate) fn table(self, op: &'static str) -> Result<TableInfo, ClientError> {
        match self {
            Self::Table(table) => Ok(*table),
            _ => Err(unexpected(op)),
        }
    }

    pub(crate) fn saved(self, op: &'static str) -> Result<Saved, ClientError> {
        match self {
            Self::Saved(saved) => Ok(saved),
            _ => Err(unexpected(op)),
        }
    }

    pub(crate) fn tasks(self, op: &'static str) -> Result<TaskAnswer, ClientError> {
        match self {
            Self::Tasks(answer) => Ok(*answer),
            _ => Err(unexpected(op)),
        }
    }

    pub(crate) fn arrivals(self, op: &'static str) -> Result<Vec<Arrival>, ClientError> {
        match self {
            Self::Arrivals(arrivals) => Ok(arrivals),
            _ => Err(unexpected(op)),
        }
    }

    pub(crate) fn loaded(self, op: &'static str) -> Result<Loaded, ClientError> {
        match self {
            Self::Loaded(loaded) => Ok(loaded),
            _ => Err(unexpected(op)),
        }
    }
}

/// Error of an answer that does not belong to the request `op`: the coordinator may be of another release.
pub(crate) fn unexpected(op: &'static str) -> ClientError {
    ClientError::Control {
        peer: "the coordinator".into(),
        source: ControlFailure::OtherAnswer { op },
    }
}

/// Macro: defines the blocking calls of a [`CoordinatorLink`] by its function `perform(&mut self,
/// &CoordinatorCall, Deadline) -> Result<CoordinatorReply, ClientError>`.
macro_rules! blocking_calls {
    () => {
        fn create_table(
            &mut self,
            spec: &TableSpec,
            deadline: Deadline,
        ) -> Result<TableInfo, ClientError> {
            let call = CoordinatorCall::CreateTable(spec.clone());
            self.perform(&call, deadline)?.table(call.op())
        }

        fn open_table(&mut self, name: &str, deadline: Deadline) -> Result<TableInfo, ClientError> {
            let name = name.to_owned();
            let call = CoordinatorCall::OpenTable { name };
            self.perform(&call, deadline)?.table(call.op())
        }

        fn release_table(&mut self, id: TableId, deadline: Deadline) -> Result<(), ClientError> {
            let call = CoordinatorCall::ReleaseTable(id);
            self.perform(&call, deadline)?.done(call.op())
        }

        fn barrier(
            &mut self,
            name: &str,
            count: u32,
            deadline: Deadline,
        ) -> Result<(), ClientError> {
            let name = name.to_owned();
            let call = CoordinatorCall::Barrier { name, count };
            self.perform(&call, deadline)?.done(call.op())
        }

        fn save(
            &mut self,
            dir: &str,
            clocks: &[DomainClock],
            deadline: Deadline,
        ) -> Result<Saved, ClientError> {
            let (dir, clocks) = (dir.to_owned(), clocks.to_vec());
            let call = CoordinatorCall::Save { dir, clocks };
            self.perform(&call, deadline)?.saved(call.op())
        }

        fn load(&mut self, dir: &str, deadline: Deadline) -> Result<Loaded, ClientError> {
            let dir = dir.to_owned();
            let call = CoordinatorCall::Load { dir };
            self.perform(&call, deadline)?.loaded(call.op())
        }

        fn load_function(
            &mut self,
            name: &str,
            module: &[u8],
            deadline: Deadline,
        ) -> Result<(), ClientError> {
            let (name, module) = (name.to_owned(), module.to_vec());
            let call = CoordinatorCall::LoadFunction { name, module };
            self.perform(&call, deadline)?.done(call.op())
        }
    };
}
pub(crate) use blocking_calls;

/// State of a [`CoordinatorCall`] after its start: under way with a number, or already done.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::connect::{JoinConfig, NetCoordinatorLink};
/// # use tidewater::link::{BegunCall, CoordinatorCall, CoordinatorLink as _};
/// # use tidewater_runtime::clock::Deadline;
/// # use tidewater_service::embedded::{Cluster, ClusterConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = Cluster::start(&ClusterConfig::default())?;
/// # let at = cluster.environment();
/// # let deadline = Deadline::after(Duration::from_secs(30));
/// # let join = JoinConfig::new(&at.coordinator, at.token.clone());
/// # let (mut coordinator, _) = NetCoordinatorLink::join(&join, deadline)?;
/// let call = CoordinatorCall::Barrier { name: "start".into(), count: 1 };
/// match coordinator.begin(&call, deadline)? {
///     BegunCall::Done(reply) => panic!("{reply:?} without a message"),
///     BegunCall::UnderWay(number) => {
///         while coordinator.poll(call.op(), number, Duration::from_millis(10))?.is_none() {}
///     }
/// }
/// # coordinator.finished(deadline)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum BegunCall {
    /// [`CoordinatorLink::poll`] returns its result by this number.
    UnderWay(u64),
    /// It is already done.
    Done(Box<CoordinatorReply>),
}

/// Link of a client to the coordinator, over a control connection or in the process.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::TableBuilder;
/// # use tidewater::connect::{JoinConfig, NetCoordinatorLink};
/// # use tidewater::link::CoordinatorLink;
/// # use tidewater_runtime::clock::Deadline;
/// # use tidewater_service::embedded::{Cluster, ClusterConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = Cluster::start(&ClusterConfig::default())?;
/// # let at = cluster.environment();
/// # let deadline = Deadline::after(Duration::from_secs(30));
/// # let join = JoinConfig::new(&at.coordinator, at.token.clone());
/// # let (mut coordinator, _) = NetCoordinatorLink::join(&join, deadline)?;
/// let mut link: Box<dyn CoordinatorLink> = Box::new(coordinator);
/// let spec = TableBuilder::sparse::<f32>("w", 8);
/// let created = link.create_table(spec.spec(), deadline)?;
/// let opened = link.open_table("w", deadline)?;
/// assert_eq!(created.id, opened.id);
/// link.finished(deadline)?;
/// # Ok(())
/// # }
/// ```
pub trait CoordinatorLink: Send {
    /// Creates a table on all servers, or opens the existing table of that name if its spec is equal. Blocks until
    /// done.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn create_table(
        &mut self,
        spec: &TableSpec,
        deadline: Deadline,
    ) -> Result<TableInfo, ClientError>;

    /// Opens an existing table by name, and returns its definition and number. Blocks.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn open_table(&mut self, name: &str, deadline: Deadline) -> Result<TableInfo, ClientError>;

    /// Releases a table on all servers: its rows are freed, and its number becomes invalid. Blocks until done.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn release_table(&mut self, id: TableId, deadline: Deadline) -> Result<(), ClientError>;

    /// Blocks until `count` workers have reached the barrier `name`.
    ///
    /// # Errors
    /// A refusal that names the missing workers, or the connection's failure.
    fn barrier(&mut self, name: &str, count: u32, deadline: Deadline) -> Result<(), ClientError>;

    /// Saves all tables of the job at these clocks (empty: as they are) into a directory that all servers see.
    /// Blocks; returns the saved rows and bytes. A relative path is relative to this process's working directory.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn save(
        &mut self,
        dir: &str,
        clocks: &[DomainClock],
        deadline: Deadline,
    ) -> Result<Saved, ClientError>;

    /// Loads all tables of a saved model from a directory into the servers, and blocks until they have them. Returns
    /// tables, rows and clocks.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn load(&mut self, dir: &str, deadline: Deadline) -> Result<Loaded, ClientError>;

    /// Registers the function `name` on all servers, from the bytes of a WebAssembly module. Blocks until all have
    /// it.
    ///
    /// # Errors
    /// The coordinator's refusal with that of a server, or the connection's failure.
    fn load_function(
        &mut self,
        name: &str,
        module: &[u8],
        deadline: Deadline,
    ) -> Result<(), ClientError>;

    /// Reports workers that are slower than the others, for the coordinator's log.
    ///
    /// # Errors
    /// The connection's failure.
    fn slow(&mut self, _workers: &[SlowMember], _deadline: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    /// Announces to the coordinator that this worker leaves every domain after these ticks, before its last frames
    /// reach the servers.
    ///
    /// # Errors
    /// The coordinator's refusal when the job follows a schedule with others; the worker has not left then. The
    /// connection's failure.
    fn leaving(&mut self, _clocks: &[DomainClock], _deadline: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    /// Polls for the coordinator's notice of a failed process or the end of the job, and fails if there is one.
    /// Waits call it periodically; it returns within milliseconds. A coordinator in this process announces nothing.
    ///
    /// # Errors
    /// The failure of another process, the end of the cluster, or the connection's failure.
    fn check(&mut self) -> Result<(), ClientError> {
        Ok(())
    }

    /// Waits up to `_timeout` for the coordinator's notice of a failed process or the end of the job, and fails
    /// if there is one: for a caller that saw a connection end without a cause. The notice of a successor ends
    /// the wait.
    ///
    /// # Errors
    /// As [`Self::check`].
    fn check_within(&mut self, _timeout: Duration) -> Result<(), ClientError> {
        self.check()
    }

    /// Reason of an operator's request to end the job; `None` if none has arrived. Waits up to 1 ms.
    ///
    /// # Errors
    /// As [`Self::check`].
    fn stop_asked(&mut self) -> Result<Option<String>, ClientError> {
        Ok(None)
    }
    /// Whether a call has failed with [`ClientError::ServerRestarted`], and the client has not rejoined since.
    fn has_restarted(&self) -> bool {
        false
    }

    /// Whether the coordinator has announced the end of this server, and its successor has not joined yet.
    fn awaits_successor(&self, _server: ServerId) -> bool {
        false
    }

    /// Number of restarts since the last rejoin in which a server resumed with its memory, and the membership
    /// after the newest of them. `None` if there were no more than `seen`.
    fn resumed(&self, _seen: u64) -> Option<(u64, Members)> {
        None
    }

    /// Number of restarts since the last rejoin in which a server resumed with its memory.
    fn resumes(&self) -> u64 {
        0
    }

    /// Confirms to the coordinator that this client uses no table, ticket or session from before the restart of a
    /// server. Returns the new membership and clocks.
    ///
    /// # Errors
    /// The coordinator's refusal, a later restart, or the connection's failure.
    fn rejoin(&mut self, _deadline: Deadline) -> Result<Joined, ClientError> {
        Err(unexpected("rejoin"))
    }

    /// Records that the sessions with the servers of [`Self::rejoin`] are open: the rejoin is complete.
    fn rejoined(&mut self) {}

    /// Starts a call: sends the request without waiting for its answer. The default makes the blocking call, for a
    /// coordinator without a connection.
    ///
    /// # Errors
    /// As of the blocking call.
    fn begin(
        &mut self,
        call: &CoordinatorCall,
        deadline: Deadline,
    ) -> Result<BegunCall, ClientError> {
        let reply = match call {
            CoordinatorCall::CreateTable(spec) => {
                CoordinatorReply::Table(Box::new(self.create_table(spec, deadline)?))
            }
            CoordinatorCall::OpenTable { name } => {
                CoordinatorReply::Table(Box::new(self.open_table(name, deadline)?))
            }
            CoordinatorCall::ReleaseTable(id) => {
                self.release_table(*id, deadline)?;
                CoordinatorReply::Done
            }
            CoordinatorCall::Barrier { name, count } => {
                self.barrier(name, *count, deadline)?;
                CoordinatorReply::Done
            }
            CoordinatorCall::Save { dir, clocks } => {
                CoordinatorReply::Saved(self.save(dir, clocks, deadline)?)
            }
            CoordinatorCall::Load { dir } => CoordinatorReply::Loaded(self.load(dir, deadline)?),
            CoordinatorCall::LoadFunction { name, module } => {
                self.load_function(name, module, deadline)?;
                CoordinatorReply::Done
            }
            CoordinatorCall::Tasks(_) | CoordinatorCall::MemberBarrier(_) => {
                return Err(unexpected(call.op()));
            }
        };
        Ok(BegunCall::Done(Box::new(reply)))
    }

    /// Polls for the result of call `number` under way, up to `wait`. `None` if it has not arrived; another message
    /// may end the wait early. A returned result is taken: the number is then invalid.
    ///
    /// # Errors
    /// As of the blocking call.
    fn poll(
        &mut self,
        op: &'static str,
        number: u64,
        _wait: Duration,
    ) -> Result<Option<CoordinatorReply>, ClientError> {
        unreachable!("{op} {number} was done when it began")
    }

    /// Drops the result of call `number`, which itself continues at the coordinator. Sends nothing.
    fn forget(&mut self, number: u64) {
        unreachable!("call {number} was done when it began")
    }

    /// Drops the result of call `number`, which itself continues at the coordinator. Returns a text for a
    /// deadline error that says what the call still waits for; may ask the coordinator for it, which may take a
    /// second.
    fn abandon(&mut self, op: &'static str, number: u64) -> String {
        unreachable!("{op} {number} was done when it began")
    }

    /// Reports to the coordinator that this worker has finished: no worker waits for it any more.
    ///
    /// # Errors
    /// The connection's failure.
    fn finished(&mut self, deadline: Deadline) -> Result<(), ClientError>;

    /// Reports that this worker cannot go on: the job ends, and its error names `reason`.
    ///
    /// # Errors
    /// The connection's failure.
    fn failed(&mut self, reason: &str, deadline: Deadline) -> Result<(), ClientError>;
}

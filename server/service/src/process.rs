//! A server process of a cluster: its server, and its connection to the coordinator.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use tidewater_launch::{FabricSettings, JobFile, JobFileError, RdmaDevice};
use tidewater_protocol::ids::{ClusterId, ServerId};
use tidewater_protocol::limits::{LEASE_DEFAULT, PENDING_BYTES_DEFAULT, SAVE_BYTES_DEFAULT};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_protocol::wire::hello::Ids;
use tidewater_runtime::clock::Deadline;

use crate::coordinator_client::{Agent, AgentError, Ended, Enlisted};
use crate::server::{
    BusyPoll, CAPACITY_DEFAULT, HeldMemory, Server, ServerConfig, ServerError, ServerFunctions,
    ServerHandle, reserve,
};
use tidewater_engine::store::Hugepages;

/// Configuration of a server process: coordinator, secret, number, sizes and placement.
#[derive(Debug, Clone)]
pub struct ServerProcessConfig {
    /// `HOST:PORT` of the coordinator.
    pub coordinator: String,
    /// The job's secret, which peers authenticate with.
    pub token: JobToken,
    /// Number of this server, from 0; `None` takes the lowest free one.
    pub number: Option<ServerId>,
    /// Number of applier threads.
    pub appliers: u16,
    /// Index of this process among the servers of this host.
    pub local_rank: u32,
    /// Number of servers on this host.
    pub local_servers: u32,
    /// Client threads on this host, 0 if unknown.
    pub local_clients: u32,
    /// Bytes of address space reserved for each of the server's two memories.
    pub capacity: usize,
    /// Whether the used part of both memories is locked in RAM (`mlock`).
    pub mlock: bool,
    /// RDMA device to serve through; `None`: the one with the address at which a client came.
    pub rdma_device: Option<RdmaDevice>,
    /// Settings of the server's queue pairs.
    pub fabric: FabricSettings,
    /// Whether clients count their pushes, so that programs can measure the staleness of pulled rows.
    pub count_pushes: bool,
    /// Limit in bytes of the early pushes that an applier holds, from ranks ahead of the open iteration.
    pub pending_bytes: usize,
    /// Limit in bytes of copied records that wait for the file system during a save.
    pub save_bytes: usize,
    /// Whether appliers busy-poll instead of sleeping when they have no work.
    pub busy_poll: BusyPoll,
    /// Functions of the server besides those that the program registers.
    pub functions: ServerFunctions,
    /// Page size of both memories. Hugepages are all allocated at the start.
    pub hugepages: Hugepages,
    /// Network or RDMA device near which appliers and memory are placed; `None`: the one with the IP address that is
    /// advertised, or else with the one listened on. If that is a wildcard address, it is the only device that is up,
    /// or the node on which all of them are. For a loopback address there is none.
    pub nic: Option<String>,
    /// TCP address to listen on; `None`: the address from which this server has reached the
    /// coordinator.
    pub listen: Option<SocketAddr>,
    /// Host name or IP address, without a port, that clients connect to; the port is the one listened on. `None`: the
    /// address listened on, or the name of this host if that is the wildcard address.
    pub advertise: Option<String>,
    /// Job file that names the coordinator; connecting to a coordinator of another cluster is then an error.
    pub job_file: Option<JobFile>,
    /// How many times the parent of this process restarts the server after a signal has ended it.
    pub restarts: u32,
    /// Silence of the coordinator's host after which the kernel closes the connection to it.
    pub lease: Duration,
    /// Memory that the parent process keeps across restarts; `None`: the memory ends with this process.
    pub memory: Option<HeldMemory>,
}

impl ServerProcessConfig {
    /// Makes the configuration of the only server on this host, with one applier and defaults elsewhere.
    pub fn new(
        coordinator: impl Into<String>,
        token: JobToken,
        number: impl Into<Option<ServerId>>,
    ) -> Self {
        Self {
            coordinator: coordinator.into(),
            token,
            number: number.into(),
            appliers: 1,
            local_rank: 0,
            local_servers: 1,
            local_clients: 0,
            capacity: CAPACITY_DEFAULT,
            mlock: false,
            rdma_device: None,
            fabric: FabricSettings::default(),
            count_pushes: false,
            pending_bytes: PENDING_BYTES_DEFAULT,
            save_bytes: SAVE_BYTES_DEFAULT,
            busy_poll: BusyPoll::Off,
            functions: ServerFunctions::default(),
            hugepages: Hugepages::Default,
            nic: None,
            listen: None,
            advertise: None,
            job_file: None,
            restarts: 0,
            lease: LEASE_DEFAULT,
            memory: None,
        }
    }

    /// Reserves memory for this server, which its parent process keeps: the memory outlives the server's
    /// process. Leaves no thread behind.
    ///
    /// # Errors
    /// [`ServerProcessError`] when the kernel refuses, or has not the pages that were asked for, or the
    /// configured network device does not exist.
    pub fn reserve(&self) -> Result<HeldMemory, ServerProcessError> {
        let mut config = self.of_server(ClusterId(1))?;
        config.tcp = self.listen;
        Ok(reserve(&config)?)
    }

    /// Makes the configuration of the `Server` in this process from this one. The caller sets what the coordinator
    /// gives (number, epoch, number of workers), the address and the memory.
    fn of_server(&self, cluster: ClusterId) -> Result<ServerConfig, ServerProcessError> {
        let node = ServerConfig::new(self.token.clone(), cluster);
        let node = node.map_err(ServerProcessError::Random)?;
        Ok(ServerConfig {
            appliers: self.appliers,
            local_rank: self.local_rank,
            local_appliers: u32::from(self.appliers).saturating_mul(self.local_servers),
            local_clients: self.local_clients,
            capacity: self.capacity,
            mlock: self.mlock,
            rdma_device: self.rdma_device.clone(),
            fabric: self.fabric,
            count_pushes: self.count_pushes,
            pending_bytes: self.pending_bytes,
            save_bytes: self.save_bytes,
            busy_poll: self.busy_poll,
            functions: self.functions.clone(),
            hugepages: self.hugepages,
            nic: self.nic.clone(),
            advertise: self.advertise.clone(),
            ..node
        })
    }

    /// Makes the configuration of server `number` of the job file's cluster; `None` takes the lowest free
    /// number.
    pub fn of_job_file(file: JobFile, number: impl Into<Option<ServerId>>) -> Self {
        Self {
            job_file: Some(file.clone()),
            ..Self::new(file.coordinator, file.token, number)
        }
    }
}

/// Reason why a server process cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerProcessError {
    /// The server could not join its cluster.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The server could not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The job file is stale: it names another coordinator than the one that runs.
    #[error(transparent)]
    JobFile(#[from] JobFileError),
    /// The system has no random bytes.
    #[error("no random bytes: {0}; check that /dev/urandom exists")]
    Random(getrandom::Error),
}

/// A server process that has joined its cluster. Dropping it without [`Self::run`] ends the server without a
/// goodbye, which the coordinator counts as a failure.
#[derive(Debug)]
pub struct ServerProcess {
    node: Server,
    enlisted: Enlisted,
}

impl ServerProcess {
    /// Connects to the coordinator, starts the server and joins the cluster; blocks until it has joined. Waits
    /// for the coordinator until `deadline`, with a job file at most `JobFile::COORDINATOR_WAIT`.
    ///
    /// # Errors
    /// [`ServerProcessError`]; nothing is left behind.
    pub fn start(
        config: &ServerProcessConfig,
        deadline: Deadline,
    ) -> Result<Self, ServerProcessError> {
        let meant = config
            .job_file
            .as_ref()
            .map_or_else(Ids::default, JobFile::ids);
        let until = match config.job_file {
            Some(_) => deadline.min(Deadline::after(JobFile::COORDINATOR_WAIT)),
            None => deadline,
        };
        let connected = Agent::connect(
            &config.coordinator,
            &config.token,
            meant,
            config.number,
            until,
        );
        let mut agent = match (&config.job_file, connected) {
            (Some(file), Err(AgentError::Dial(error))) => match file.explain(&error) {
                Some(stale) => return Err(stale.into()),
                None => return Err(AgentError::Dial(error).into()),
            },
            (_, connected) => connected?,
        };
        // A coordinator is not lost while its packets may still be resent.
        agent.set_lease(config.lease.max(config.fabric.longest_retry()))?;
        let listen = match config.listen {
            Some(listen) => listen,
            None => SocketAddr::new(agent.local()?, 0),
        };
        let ids = agent.ids();
        let mut node = config.of_server(ids.cluster)?;
        node.epoch = ids.epoch;
        node.server = agent.number();
        node.tcp = Some(listen);
        node.memory.clone_from(&config.memory);
        node.workers = agent.workers();
        let node = Server::start(node)?;
        let handle = node.handle();
        let (enlisted, _) = agent.join(&handle.member(), config.restarts, handle.kept_tables())?;
        Ok(Self { node, enlisted })
    }

    /// Returns a handle on the server for other threads.
    pub fn handle(&self) -> ServerHandle {
        self.node.handle()
    }

    /// Serves until the coordinator orders the end, or a descriptor of `stop` becomes readable or hangs up.
    /// Blocks until every thread of the server has ended.
    ///
    /// # Errors
    /// [`AgentError::Lost`]: the coordinator is gone. [`AgentError::JobFailed`]: the job of a foreign launcher
    /// has failed. [`AgentError::ServerFailed`]: one of the appliers has ended. [`AgentError::Join`]: a
    /// restarted coordinator refuses this server. [`AgentError::Wait`]: a system call failed. In each case the
    /// server has ended as well.
    pub fn run(self, stop: &[BorrowedFd<'_>]) -> Result<Ended, AgentError> {
        let handle = self.node.handle();
        let ended = self.enlisted.obey(&handle, stop);
        handle.shutdown();
        self.node.join();
        ended
    }
}

//! Configuration of a server process at its start.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tidewater_launch::{FabricSettings, RdmaDevice};
use tidewater_protocol::ids::{ClusterId, Incarnation, ServerId};
use tidewater_protocol::limits::{
    HANDSHAKE_TIMEOUT, PENDING_BYTES_DEFAULT, SAVE_BYTES_DEFAULT, SESSION_LINGER,
};
use tidewater_protocol::wire::handshake::{JobToken, Namespaces};

use super::kept::HeldMemory;
use tidewater_engine::functions::{FunctionLoader, Functions};
use tidewater_engine::store::Hugepages;

/// Default size in bytes of each of a server's two memories. Reserving costs nothing: pages take
/// memory when they are first touched.
pub const CAPACITY_DEFAULT: usize = 64 << 30;

/// Whether appliers busy-poll instead of sleeping when they have no work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BusyPoll {
    /// Appliers sleep: an idle server uses no core.
    #[default]
    Off,
    /// Appliers never sleep. Over RDMA, clients write the tails of their pushes and do not signal them.
    On,
}

impl BusyPoll {
    /// Whether an applier without work gives up its core.
    pub const fn sleeps(self) -> bool {
        matches!(self, Self::Off)
    }
}

impl fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::On => "on",
        })
    }
}

impl std::str::FromStr for BusyPoll {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            _ => Err("is neither on nor off"),
        }
    }
}

/// Functions of a server besides those that its program registers. Equal on all servers of a job.
#[derive(Clone, Default)]
pub struct ServerFunctions {
    /// Functions that all jobs have. They replace registered ones of the same name.
    pub all: Functions,
    /// Makes functions of the modules that clients load; `None` refuses them.
    pub loader: Option<Arc<dyn FunctionLoader>>,
}

impl fmt::Debug for ServerFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerFunctions")
            .field("all", &self.all)
            .field("loader", &self.loader.is_some())
            .finish()
    }
}

/// A server's identity in its cluster, and its sizes.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The job's secret, which peers authenticate with.
    pub token: JobToken,
    /// The cluster's number; not 0.
    pub cluster: ClusterId,
    /// The cluster's epoch; not 0. Changes with [`super::ServerHandle::set_epoch`].
    pub epoch: u64,
    /// Number of this start of the server; not 0. [`ServerConfig::new`] draws a random one.
    pub incarnation: Incarnation,
    /// The server's number, from 0.
    pub server: ServerId,
    /// Workers `0..workers` are members of every clock domain from the start.
    pub workers: u32,
    /// Which jobs the server serves.
    pub namespaces: Namespaces,
    /// Applier threads, 1 to 64.
    pub appliers: u16,
    /// Index of this process among those of its role on this host: its appliers are pinned to the
    /// cores after those of the lower indices (see `tidewater_topology`).
    pub local_rank: u32,
    /// Appliers of all servers on this host. When they outnumber the cores, none is pinned.
    pub local_appliers: u32,
    /// Client threads on this host, 0 if unknown. When they and the appliers outnumber the cores,
    /// an applier without work sleeps at once: a spin would take the core of the thread it waits
    /// for.
    pub local_clients: u32,
    /// Bytes reserved for each of the two memories.
    pub capacity: usize,
    /// Whether the used part of both memories is locked (`mlock`).
    pub mlock: bool,
    /// RDMA device to serve through; `None`: the one with the address at which a client came.
    pub rdma_device: Option<RdmaDevice>,
    /// Settings of its queue pairs.
    pub fabric: FabricSettings,
    /// Whether clients count their pushes to each applier, so that programs can measure how stale pulled
    /// rows are. The counter is a word in server memory.
    pub count_pushes: bool,
    /// Bytes of pushes that an applier holds for ranks that are early in an iteration.
    pub pending_bytes: usize,
    /// Bytes of copied records that a save of this server holds until the file system takes them.
    pub save_bytes: usize,
    /// Whether appliers busy-poll instead of sleeping when they have no work.
    pub busy_poll: BusyPoll,
    /// Functions besides those that the program registers.
    pub functions: ServerFunctions,
    /// Page size of both memories. Hugepages are all allocated at the start.
    pub hugepages: Hugepages,
    /// Network or RDMA device to place appliers and memory near; `None` is the one with the address
    /// listened on.
    pub nic: Option<String>,
    /// TCP address to listen on. Port 0: any free one.
    pub tcp: Option<SocketAddr>,
    /// Host name or address given to clients, if it is not the one listened on.
    pub advertise: Option<String>,
    /// Whether to listen on an abstract unix socket, by which clients of this host get shared
    /// memory.
    pub unix: bool,
    /// How long a session outlives its control connection.
    pub linger: Duration,
    /// Time limit for a peer to authenticate.
    pub handshake: Duration,
    /// Memory that a holder keeps; `None`: it ends with the process.
    pub memory: Option<HeldMemory>,
}

impl ServerConfig {
    /// Server 0 of a cluster of one, with two applier threads, one worker, any namespace, listening
    /// on loopback and on a unix socket.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn new(token: JobToken, cluster: ClusterId) -> Result<Self, getrandom::Error> {
        Ok(Self {
            token,
            cluster,
            epoch: 1,
            incarnation: Incarnation(getrandom::u64()?.max(1)),
            server: ServerId(0),
            workers: 1,
            namespaces: Namespaces::Any,
            appliers: 2,
            local_rank: 0,
            local_appliers: 2,
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
            tcp: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            advertise: None,
            unix: true,
            linger: SESSION_LINGER,
            handshake: HANDSHAKE_TIMEOUT,
            memory: None,
        })
    }
}

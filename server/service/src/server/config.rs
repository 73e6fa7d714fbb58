//! Configuration of a server.

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
use tidewater_engine::store::Hugepages;
use tidewater_functions::{FunctionLoader, Functions};

/// Default size in bytes of each of a server's two memories (64 GiB). Only address space is reserved: pages
/// take memory when they are first touched.
pub const CAPACITY_DEFAULT: usize = 64 << 30;

/// Whether appliers busy-poll instead of sleeping when they have no work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BusyPoll {
    /// Appliers sleep: an idle server uses no core.
    #[default]
    Off,
    /// Appliers never sleep and use one core each. Over RDMA, clients then write the tails of their pushes
    /// without an interrupt at the server.
    On,
}

impl BusyPoll {
    /// Whether an applier without work parks its thread.
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

/// Functions of a server besides those that its program registers; they must be equal on all servers of a
/// job.
#[derive(Clone, Default)]
pub struct ServerFunctions {
    /// Functions for all jobs; they replace registered ones of the same name.
    pub all: Functions,
    /// Compiles the modules that clients load; `None` refuses them.
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

/// Configuration of a server: identity in its cluster, sizes, placement and addresses.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The job's secret, which peers authenticate with.
    pub token: JobToken,
    /// The cluster's number; not 0.
    pub cluster: ClusterId,
    /// Epoch of the cluster at the start; not 0. [`super::ServerHandle::set_epoch`] changes it later.
    pub epoch: u64,
    /// Number of this start of the server; not 0. [`ServerConfig::new`] makes a random one.
    pub incarnation: Incarnation,
    /// The server's number, from 0.
    pub server: ServerId,
    /// Number of workers, 0 if unknown; ranks `0..workers` are members of every clock domain from the start.
    pub workers: u32,
    /// Namespaces of the clients that the server admits.
    pub namespaces: Namespaces,
    /// Number of applier threads, 1 to 64.
    pub appliers: u16,
    /// Index of this server on its host. Its appliers are pinned to the cores after those of lower indices
    /// (see `tidewater_topology`).
    pub local_rank: u32,
    /// Number of appliers of all servers on this host. If they outnumber the cores, none is pinned.
    pub local_appliers: u32,
    /// Number of client threads on this host, 0 if unknown. If they and the appliers outnumber the cores,
    /// idle appliers sleep at once instead of spinning.
    pub local_clients: u32,
    /// Bytes of address space reserved for each of the two memories.
    pub capacity: usize,
    /// Whether the used part of both memories is locked in RAM (`mlock`).
    pub mlock: bool,
    /// RDMA device to serve through; `None`: the one with the address at which a client came.
    pub rdma_device: Option<RdmaDevice>,
    /// Settings of the server's queue pairs.
    pub fabric: FabricSettings,
    /// Whether clients count their pushes to each applier in a word of server memory, so that programs can
    /// measure the staleness of pulled rows.
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
    /// TCP address to listen on, port 0 for any free port; `None` for no TCP.
    pub tcp: Option<SocketAddr>,
    /// Host name or IP address, without a port, that clients connect to; the port is the one listened on. `None`: the
    /// address listened on, or the name of this host if that is the wildcard address.
    pub advertise: Option<String>,
    /// Whether to listen on an abstract unix socket, over which clients of this host attach by shared memory.
    pub unix: bool,
    /// Time for which a session outlives its control connection, so that the client can resume it.
    pub linger: Duration,
    /// Time limit for a peer to authenticate.
    pub handshake: Duration,
    /// Memory that the parent process keeps across restarts; `None`: the memory ends with this process.
    pub memory: Option<HeldMemory>,
}

impl ServerConfig {
    /// Makes the configuration of server 0 in a cluster of one server and one worker: two appliers, any
    /// namespace, listening on loopback and a unix socket.
    ///
    /// # Errors
    /// The system has no random bytes.
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

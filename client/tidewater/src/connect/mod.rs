//! Joins a job, and connects a client thread to its servers: by a unix socket and shared memory on one
//! host, by RDMA or TCP elsewhere.

pub mod coordinator;
pub mod job;
pub mod join_options;
#[cfg(feature = "embedded")]
pub mod launch;
pub mod server;
mod stream;

use tidewater_launch::{FabricSettings, RdmaDevice, TransportChoice};
use tidewater_protocol::ids::ClusterId;
use tidewater_protocol::limits::RING_BYTES_DEFAULT;
use tidewater_protocol::wire::handshake::JobToken;

pub use coordinator::{JoinConfig, NetCoordinatorLink};
pub use job::Job;
pub use join_options::{JoinOptions, Joined};
#[cfg(feature = "embedded")]
pub use launch::{Bootstrap, BootstrapHost};
pub use server::NetServerLink;
pub use tidewater_protocol::wire::control::Part;

/// Identity of a client thread (token, cluster, rank, thread), and settings of its connections to servers.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
/// # use tidewater::link::ServerLink as _;
/// # use tidewater_lanes::fabric::TransportKind;
/// # use tidewater_lanes::wake::OsParker;
/// # use tidewater_launch::TransportChoice;
/// # use tidewater_runtime::clock::Deadline;
/// # use tidewater_service::embedded::{Cluster, ClusterConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = Cluster::start(&ClusterConfig::default())?;
/// # let at = cluster.environment();
/// # let deadline = Deadline::after(Duration::from_secs(30));
/// # let join = JoinConfig::new(&at.coordinator, at.token.clone());
/// # let (mut coordinator, _) = NetCoordinatorLink::join(&join, deadline)?;
/// # let members = coordinator.wait_servers(at.servers, deadline)?;
/// # let mut parker = OsParker::new(Duration::ZERO)?;
/// let mut config = ConnectConfig::new(at.token.clone(), coordinator.cluster(), 0);
/// config.epoch = members.epoch;
/// config.transport = TransportChoice::Tcp;
/// let server = &members.servers[0];
/// let (link, _lanes) = NetServerLink::open(server, &config, &mut parker, deadline)?;
/// assert_eq!(link.transport(), TransportKind::Tcp);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ConnectConfig {
    /// Secret token of the job.
    pub token: JobToken,
    /// Identifier of the cluster, from the coordinator.
    pub cluster: ClusterId,
    /// Epoch of the cluster, from the coordinator.
    pub epoch: u64,
    /// Namespace of the job in its cluster.
    pub namespace: String,
    /// Rank of the worker.
    pub rank: u32,
    /// Number of the thread in the worker; 0 for its first client.
    pub thread: u32,
    /// Workers of the job, from the coordinator; 0 if unknown. A service keeps its jobs' clocks by the
    /// number that the first session gives. Without the number, a worker is waited for from its
    /// arrival on, and cannot join once the minimum has moved.
    pub workers: u32,
    /// Transport of the lanes.
    pub transport: TransportChoice,
    /// RDMA ports to use. `None`: the best ones that reach the server.
    pub rdma_device: Option<RdmaDevice>,
    /// Settings of queue pairs.
    pub fabric: FabricSettings,
    /// Bytes of each ring: a power of two, 16 KiB to 16 MiB.
    pub ring_bytes: usize,
    /// Whether the client is an observer: `rank` is then the one that the coordinator gave to it.
    pub observer: bool,
    /// Number of the process among the workers of its host, which spreads them over RDMA ports.
    pub local_rank: u32,
}

impl ConnectConfig {
    /// Settings for thread 0 of worker `rank` at epoch 1 in the namespace "default", with the best transport.
    pub fn new(token: JobToken, cluster: ClusterId, rank: u32) -> Self {
        Self {
            token,
            cluster,
            epoch: 1,
            namespace: "default".to_owned(),
            rank,
            thread: 0,
            workers: 0,
            transport: TransportChoice::Auto,
            rdma_device: None,
            fabric: FabricSettings::default(),
            ring_bytes: RING_BYTES_DEFAULT,
            observer: false,
            local_rank: 0,
        }
    }
}

//! How a client thread comes to its servers: over a unix socket and shared memory on one host, over
//! RDMA or TCP elsewhere.

pub mod coordinator;
pub mod job;
pub mod server;
mod stream;
pub mod wanted;

use tidewater_launch::{RdmaDevice, RdmaTimeout, TransportChoice};
use tidewater_protocol::ids::ClusterId;
use tidewater_protocol::limits::RING_BYTES_DEFAULT;
use tidewater_protocol::wire::handshake::JobToken;

pub use coordinator::{JoinConfig, NetCoordinatorLink};
pub use job::Job;
pub use server::NetServerLink;
pub use wanted::JoinOptions;

/// Who a client thread is, and how it wants to be connected.
#[derive(Debug, Clone)]
pub struct ConnectConfig {
    /// The job's secret.
    pub token: JobToken,
    /// The cluster, as the coordinator told.
    pub cluster: ClusterId,
    /// Its epoch, as the coordinator told.
    pub epoch: u64,
    /// The job's namespace.
    pub namespace: String,
    /// The worker.
    pub rank: u32,
    /// The thread inside the worker. Only thread 0 ticks.
    pub thread: u32,
    /// Workers of the job, as the coordinator told; 0 if nobody did. A service keeps its jobs'
    /// clocks by what the first session tells: workers that come without that number are waited
    /// for from when they have come, and cannot come once the minimum has moved.
    pub workers: u32,
    /// Which transport.
    pub transport: TransportChoice,
    /// RDMA device to use; `None`: the one that has the address from which a server is reached.
    pub rdma_device: Option<RdmaDevice>,
    /// How soon queue pairs send a packet again.
    pub rdma_timeout: RdmaTimeout,
    /// Bytes of each ring: a power of two, 16 KiB to 16 MiB.
    pub ring_bytes: usize,
}

impl ConnectConfig {
    /// Thread 0 of worker `rank` at epoch 1 in the namespace "default", with the best transport.
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
            rdma_timeout: RdmaTimeout::USUAL,
            ring_bytes: RING_BYTES_DEFAULT,
        }
    }
}

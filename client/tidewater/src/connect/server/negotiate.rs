//! Selection of a session's transport.
//!
//! An explicit choice is used or fails, and the error names what is missing. `Auto` takes the first
//! available of shared memory, verbs and TCP, and logs in one line why the ones before are not. Shared
//! memory comes before verbs: bytes through a NIC's loopback cross the bus twice (ADR 0015).

use tidewater_bookkeeping::paths::Paths;
use tidewater_lanes::fabric::TransportKind;
use tidewater_lanes::wake::OsParker;
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::SessionId;
use tidewater_protocol::limits::RDMA_FAST_MBPS;
use tidewater_protocol::wire::control::{ServerMember, status_text};
use tidewater_runtime::clock::Deadline;
use tidewater_topology::Topology;

use super::{Failure, NetServerLink};
use crate::connect::ConnectConfig;
use crate::error::ClientError;
use crate::link::OpenLane;

impl NetServerLink {
    /// Opens a session of the calling thread, which sleeps in `parker`, with a server. Returns the link and its
    /// lanes, in the order of the server's appliers. `Auto` takes shared memory on one host, else verbs if both ends
    /// have them, else TCP, and logs the reason (one line, level info). Another choice is used or fails.
    ///
    /// # Errors
    /// [`ClientError::Environment`] when the chosen transport is unavailable, which names what is missing and where;
    /// [`ClientError::Refused`] with the server's reason; [`ClientError::Control`] when the handshake fails;
    /// [`ClientError::ServerLost`] when the deadline passes.
    pub fn open(
        server: &ServerMember,
        config: &ConnectConfig,
        parker: &mut OsParker,
        deadline: Deadline,
    ) -> Result<(Self, Vec<OpenLane>), ClientError> {
        let mut link = Self {
            name: String::new(),
            server: server.clone(),
            config: config.clone(),
            transport: TransportKind::Tcp,
            reason: "it was asked for".to_owned(),
            conn: None,
            session: SessionId(0),
            succeeds: false,
            counters: Vec::new(),
            watch: parker.reactor().clone(),
            waker: parker.waker().clone(),
            arms: parker.arms().clone(),
            parked_flags: parker.parked_flags().clone(),
            parked_flag: Vec::new(),
            verbs: None,
            paths: Paths::default(),
            path_proved: false,
        };
        let opened = match config.transport {
            TransportChoice::Shm => link.open_shm(deadline),
            TransportChoice::Tcp => link.open_tcp(deadline),
            TransportChoice::Verbs => link.open_verbs(deadline),
            _ => link.open_best(deadline),
        };
        match opened {
            Ok(lanes) => Ok((link, lanes)),
            Err(Failure::Final(e)) => Err(e),
            Err(Failure::Again(why) | Failure::Absent(why) | Failure::Unfit(why)) => {
                Err(link.cannot(&why.to_string()))
            }
        }
    }

    /// Opens a session over the first available of shared memory, verbs and TCP, and logs why the earlier ones are
    /// unavailable. Warns if TCP is used on a host with fast RDMA.
    fn open_best(&mut self, deadline: Deadline) -> Result<Vec<OpenLane>, Failure> {
        let server = self.server.id;
        "one host".clone_into(&mut self.reason);
        let no_shm = match self.open_shm(deadline) {
            Err(Failure::Unfit(why)) => why,
            Ok(lanes) => {
                tracing::info!(%server, "lanes over shared memory: one host");
                return Ok(lanes);
            }
            failed => return failed,
        };
        // That connection was for shared memory.
        self.conn = None;
        self.reason = status_text(&format!("both ends have RDMA; no shared memory: {no_shm}"));
        let no_verbs = match self.open_verbs(deadline) {
            Err(Failure::Unfit(why)) => why,
            Ok(lanes) => {
                tracing::info!(%server, %no_shm, "lanes over verbs: both ends have them");
                return Ok(lanes);
            }
            failed => return failed,
        };
        self.reason = status_text(&format!("no shared memory: {no_shm}; no RDMA: {no_verbs}"));
        let lanes = self.open_tcp(deadline)?;
        match fast_port(&Topology::read_devices()) {
            Some(unused) => tracing::warn!(
                %server, %no_shm, %no_verbs, unused,
                "lanes over tcp, though this host has fast RDMA: `tidewater doctor --rdma` examines it"
            ),
            None => tracing::info!(
                %server, %no_shm, %no_verbs, "lanes over tcp: nothing faster can be had"
            ),
        }
        Ok(lanes)
    }

    /// Error of an unavailable transport: the chosen transport, the cause `why`, and the alternatives.
    pub(super) fn cannot(&self, why: &str) -> ClientError {
        let (what, remedy) = match self.config.transport {
            TransportChoice::Shm => (
                "shared memory was asked for (TIDEWATER_TRANSPORT=shm)",
                "start both on one host as one user, or use --transport auto or tcp",
            ),
            TransportChoice::Verbs => (
                "RDMA was asked for (TIDEWATER_TRANSPORT=verbs)",
                "docs/HPC.md says what it needs; or use --transport auto or tcp",
            ),
            _ => ("no transport can be had", "look at the server's log"),
        };
        ClientError::Environment(
            format!("{what}, but server {}: {why}; {remedy}", self.server.id).into(),
        )
    }
}

/// Name and rate of the host's fastest RDMA port, if it reaches `RDMA_FAST_MBPS`; otherwise `None`. A session over
/// TCP then logs a warning.
fn fast_port(topology: &Topology) -> Option<String> {
    let (name, rate_mbps) = topology.fastest_rdma_port()?;
    let gbps = f64::from(rate_mbps) / 1000.0;
    (rate_mbps >= RDMA_FAST_MBPS).then(|| format!("{name}, {gbps} Gb/s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The port of a host with one RDMA device of this rate.
    fn port_of(rate: &str) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let port = folder.path().join("sys/class/infiniband/mlx5_0/ports/1");
        std::fs::create_dir_all(&port).unwrap();
        for (file, text) in [
            ("state", "4: ACTIVE"),
            ("link_layer", "InfiniBand"),
            ("rate", rate),
        ] {
            std::fs::write(port.join(file), text).unwrap();
        }
        fast_port(&Topology::read_at(folder.path()))
    }

    #[test]
    fn tcp_on_a_host_with_fast_rdma_is_worth_a_warning() {
        let fast = Some("mlx5_0:1, 400 Gb/s".to_owned());
        assert_eq!(port_of("400 Gb/sec (4X NDR)"), fast);
        assert_eq!(
            port_of("25 Gb/sec (1X EDR)"),
            Some("mlx5_0:1, 25 Gb/s".to_owned())
        );
        assert_eq!(port_of("10 Gb/sec (4X SDR)"), None);
        assert_eq!(port_of("2.5 Gb/sec (1X SDR)"), None);
        assert_eq!(port_of("nonsense"), None);
    }
}

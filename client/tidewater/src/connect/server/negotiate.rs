//! Selection of a session's transport.
//!
//! An explicit choice is used or fails, and the error names what is missing. `Auto` takes the first
//! available of shared memory, verbs and TCP, and logs in one line why the ones before are not. Shared
//! memory comes before verbs: bytes through a NIC's loopback cross the bus twice (ADR 0015).

use tidewater_lanes::fabric::TransportKind;
use tidewater_lanes::wake::OsParker;
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::SessionId;
use tidewater_protocol::wire::control::{ServerMember, status_text};
use tidewater_runtime::clock::Deadline;

use super::{Failure, NetServerLink};
use crate::connect::ConnectConfig;
use crate::error::ClientError;
use crate::link::OpenLane;

impl NetServerLink {
    /// Attaches the calling thread, which sleeps in `parker`, to a server. The lanes are in the order
    /// of the server's appliers. `Auto` takes shared memory on one host, else verbs if both ends have
    /// them, else TCP, and logs the reason (one line, level info). Another choice is used or fails.
    ///
    /// # Errors
    /// [`ClientError::Environment`] when the chosen transport is unavailable, which names what is
    /// missing and where; [`ClientError::Refused`] with the server's reason; [`ClientError::Control`]
    /// when the handshake fails; [`ClientError::ServerLost`] when the deadline passes.
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
            counters: Vec::new(),
            watch: parker.reactor().clone(),
            waker: parker.waker().clone(),
            arms: parker.arms().clone(),
            parked_flags: parker.parked_flags().clone(),
            parked_flag: Vec::new(),
            verbs: None,
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
            Err(Failure::Again(why) | Failure::Unfit(why)) => Err(link.cannot(&why)),
        }
    }

    /// Opens a session over the first available transport.
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
                tracing::info!(%server, no_shm, "lanes over verbs: both ends have them");
                return Ok(lanes);
            }
            failed => return failed,
        };
        self.reason = status_text(&format!("no shared memory: {no_shm}; no RDMA: {no_verbs}"));
        let lanes = self.open_tcp(deadline)?;
        tracing::info!(%server, no_shm, no_verbs, "lanes over tcp: nothing faster can be had");
        Ok(lanes)
    }

    /// Makes the error of an unavailable transport: the choice, the cause and the alternatives.
    fn cannot(&self, why: &str) -> ClientError {
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
        ClientError::Environment(format!(
            "{what}, but server {}: {why}; {remedy}",
            self.server.id
        ))
    }
}

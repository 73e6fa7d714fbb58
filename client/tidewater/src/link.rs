//! How a client reaches the control planes: traits, so that the simulator and the embedded cluster
//! stand behind the same client as sockets do.

use std::time::Duration;

use tidewater_lanes::fabric::{ClientLane, RemoteAddr, TransportKind};
use tidewater_protocol::ids::{ApplierId, DomainId, SessionId, TableId, WorkerId};
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::table::TableSpec;
use tidewater_protocol::wire::control::{DomainClock, TableDescriptor, TableInfo};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Buffer;

use crate::error::ClientError;

/// A lane as a session begins with it, or as it came back.
pub struct OpenLane {
    /// The lane.
    pub lane: Box<dyn ClientLane>,
    /// How far its ring is at the server.
    pub state: StateLine,
    /// The public copy of its state line, read when the mailbox shows no progress; `None` where the server
    /// has none.
    pub status: Option<RemoteAddr>,
}

/// The control connection to one server, and the session on it.
pub trait ServerLink: Send {
    /// Name for messages.
    fn name(&self) -> &str;

    /// The session.
    fn session(&self) -> SessionId;

    /// What carries the lanes.
    fn transport(&self) -> TransportKind;

    /// Bytes of each lane's ring.
    fn ring_bytes(&self) -> usize;

    /// The word in which this session's clients count the pushes that they send to an applier; `None`
    /// if nobody counts.
    fn counter(&self, _applier: ApplierId) -> Option<RemoteAddr> {
        None
    }

    /// The server's part of a table.
    ///
    /// # Errors
    /// The server's refusal, or the connection's failure.
    fn describe(
        &mut self,
        table: TableId,
        deadline: Deadline,
    ) -> Result<TableDescriptor, ClientError>;

    /// Ticks of the workers that count in a domain, as this server has consumed them: it names
    /// whom a clock wait waits for.
    ///
    /// # Errors
    /// The server's refusal, or the connection's failure.
    fn clocks(
        &mut self,
        domain: DomainId,
        deadline: Deadline,
    ) -> Result<Vec<(WorkerId, u64)>, ClientError>;

    /// Looks after the session between calls: if the control connection was cut, comes back over
    /// a new one before the server takes the session for ended. At most a second; a server that
    /// cannot be reached now is tried again at the next call.
    ///
    /// # Errors
    /// The server's refusal: the session has ended.
    fn check(&mut self, _deadline: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    /// Lets the card of its lanes write a buffer, where there is one.
    ///
    /// # Errors
    /// What the card or the system said.
    fn register(&mut self, _buffer: &mut Buffer) -> Result<(), String> {
        Ok(())
    }

    /// Re-establishes a broken lane. Idempotent: a call that was cut is repeated.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be reached.
    fn recover(&mut self, applier: ApplierId, deadline: Deadline) -> Result<OpenLane, ClientError>;
}

/// What a loaded model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Names of its tables, to be opened.
    pub tables: Vec<String>,
    /// Rows and blocks read.
    pub rows: u64,
    /// Clocks at which it was saved; [`Loaded::clock`] looks one up.
    pub clocks: Vec<DomainClock>,
}

impl Loaded {
    /// Iterations of a clock domain that the model has seen, in all jobs that led to it; 0 for a domain
    /// that none of them has ticked in. The iteration at which a resumed program goes on. (The clocks
    /// of its job begin at 0.)
    pub fn clock(&self, domain: DomainId) -> u64 {
        let its = self.clocks.iter().find(|clock| clock.domain == domain);
        its.map_or(0, |clock| clock.clock)
    }
}

/// The control connection to the coordinator.
pub trait CoordinatorLink: Send {
    /// Creates a table, or opens it if it exists with an equal spec.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn create_table(
        &mut self,
        spec: &TableSpec,
        deadline: Deadline,
    ) -> Result<TableInfo, ClientError>;

    /// Opens an existing table.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn open_table(&mut self, name: &str, deadline: Deadline) -> Result<TableInfo, ClientError>;

    /// Releases a table on all servers.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn release_table(&mut self, id: TableId, deadline: Deadline) -> Result<(), ClientError>;

    /// Waits until `count` workers have come to the barrier `name`.
    ///
    /// # Errors
    /// A refusal that names who is missing, or the connection's failure.
    fn barrier(&mut self, name: &str, count: u32, deadline: Deadline) -> Result<(), ClientError>;

    /// Saves all tables into a directory that all servers see; rows and bytes written. A relative
    /// path is relative to this process's working directory.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn save(&mut self, dir: &str, deadline: Deadline) -> Result<(u64, u64), ClientError>;

    /// Loads all tables of a saved model.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn load(&mut self, dir: &str, deadline: Deadline) -> Result<Loaded, ClientError>;

    /// Why the job ends, if the coordinator has said so. Asked now and then while a wait lasts;
    /// returns within milliseconds. One that is in this process, and is never lost, has no news.
    ///
    /// # Errors
    /// The failure of another process, the end of the cluster, or the connection's failure.
    fn check(&mut self) -> Result<(), ClientError> {
        Ok(())
    }

    /// The same for who has seen something end, and does not yet know why: waits for up to `patience`.
    ///
    /// # Errors
    /// As [`Self::check`].
    fn check_within(&mut self, _patience: Duration) -> Result<(), ClientError> {
        self.check()
    }

    /// This worker is done: nobody waits for it any more.
    ///
    /// # Errors
    /// The connection's failure.
    fn finished(&mut self, deadline: Deadline) -> Result<(), ClientError>;

    /// This worker cannot go on: the job ends, and its end names `reason`.
    ///
    /// # Errors
    /// The connection's failure.
    fn failed(&mut self, reason: &str, deadline: Deadline) -> Result<(), ClientError>;
}

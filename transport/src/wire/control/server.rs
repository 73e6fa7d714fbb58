//! What a worker asks a server: sessions, lanes, tables.

use serde::{Deserialize, Serialize};

use super::members::{WorkerClock, applier_id, domain_id, worker_id};
use super::{Answer, Message, Request};
use crate::ids::{ApplierId, DomainId, PartitionId, RegionKey, SessionId, TableId};
use crate::limits::{
    APPLIERS_MAX, BLOCK_BYTES_MAX, PARTITIONS_MAX, RING_BYTES_MAX, RING_BYTES_MIN, WORKERS_MAX,
};
use crate::wire::WireError;
use crate::wire::error::at_most;
use crate::wire::frame::kind;
use crate::wire::refusal::Refusal;

/// How bytes move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Transport {
    /// Shared memory of one host.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA verbs.
    Verbs,
    /// The simulator.
    Sim,
}

/// A piece of registered memory of the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Remote {
    /// The region.
    pub key: RegionKey,
    /// Where in it: an address on verbs, an offset elsewhere.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

/// A file descriptor that came along by `SCM_RIGHTS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DescriptorKind {
    /// The server's public memory, read-only.
    Public,
    /// The session's inbox: rings and tail cells, which the client writes.
    Inbox,
    /// The session's mailbox, which the server writes.
    Mailbox,
    /// The eventfd that wakes an applier.
    ApplierDoorbell(ApplierId),
    /// The eventfd that wakes the client's thread.
    ClientDoorbell,
}

/// A client thread asks for a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The transport of its lanes.
    pub transport: Transport,
    /// Bytes of each ring, a power of two.
    pub ring_bytes: u32,
    /// The thread's number inside its worker.
    pub thread: u32,
    /// The client's mailbox; on shm its descriptor comes along.
    pub mailbox: Option<Remote>,
    /// Descriptors sent with this message, in their order.
    pub descriptors: Vec<DescriptorKind>,
}

/// One lane of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneGrant {
    /// Its applier.
    pub applier: ApplierId,
    /// Presented in the handshake of the lane's connection; new after each Recover.
    pub nonce: u64,
    /// The ring's data, writable.
    pub ring: Remote,
    /// The tail cell's line, writable.
    pub tail: Remote,
    /// The state line, readable.
    pub state: Remote,
    /// The advisory ticket line, for fetch-add; `None` where there is none.
    pub ticket: Option<Remote>,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Its nonce.
    pub session: SessionId,
    /// One lane for each applier of the server.
    pub lanes: Vec<LaneGrant>,
    /// Bytes of the server's public memory to be mapped (shm), else 0.
    pub public_bytes: u64,
    /// Bytes of the session's inbox to be mapped (shm), else 0.
    pub inbox_bytes: u64,
    /// Descriptors sent with this message, in their order.
    pub descriptors: Vec<DescriptorKind>,
}

/// Where a broken lane stands. The client writes `[head_bytes, tail)` again from its staging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovered {
    /// The lane, with a new nonce.
    pub lane: LaneGrant,
    /// Every frame up to this is applied.
    pub applied_seq: u64,
    /// Every frame up to this is durable.
    pub durable_seq: u64,
    /// Bytes consumed; the tail cell says the same.
    pub head_bytes: u64,
}

/// A partition as one server has it. Fields that the table's layout has no use for are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionDescriptor {
    /// Its number.
    pub partition: PartitionId,
    /// Its applier.
    pub applier: ApplierId,
    /// First row (dense), else 0.
    pub first_row: u64,
    /// Rows (dense), else 0.
    pub rows: u64,
    /// Dense payload: rows with headers, or blocks.
    pub payload: Option<Remote>,
    /// Second buffer of a snapshot table.
    pub payload_back: Option<Remote>,
    /// Version words of blocks.
    pub versions: Option<Remote>,
    /// Snapshot descriptor.
    pub snapshot: Option<Remote>,
    /// Extent table of a sparse partition.
    pub extents: Option<Remote>,
}

/// Everything a client must know to read and write a table's rows at one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableDescriptor {
    /// The table.
    pub id: TableId,
    /// Enters every row's hash and version word; new when memory is used again.
    pub salt: u64,
    /// Bytes of a row's header (0 in blocks).
    pub header_bytes: u32,
    /// Bytes of a row's payload.
    pub payload_bytes: u32,
    /// Bytes from a row to the next.
    pub stride_bytes: u32,
    /// Bytes of a block (0 in rows).
    pub block_bytes: u32,
    /// The line that says whether the table is alive or released.
    pub state: Remote,
    /// The server's partitions of it.
    pub partitions: Vec<PartitionDescriptor>,
}

/// Worker to server, on the session's control connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerRequest {
    /// The first on the connection. Answer: [`ServerAnswer::Attached`].
    Attach(Attach),
    /// Re-attaches a session's cut lane. It may be repeated, also on a new control connection.
    /// Answer: [`ServerAnswer::Recovered`].
    Recover {
        /// The session.
        session: SessionId,
        /// The lane's applier.
        applier: ApplierId,
    },
    /// Answer: [`ServerAnswer::Table`].
    Describe {
        /// The table.
        table: TableId,
    },
    /// Answer: [`ServerAnswer::Clocks`]: it names whom a clock wait waits for.
    Clocks {
        /// The domain.
        domain: DomainId,
    },
    /// The session reads a released table no more. Answer: Done.
    ReleaseSeen {
        /// The table.
        table: TableId,
    },
    /// Ends the session after what is in its rings. Answer: Done.
    Detach {
        /// The session.
        session: SessionId,
    },
}

/// Server to worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerAnswer {
    /// It is done.
    Done,
    /// To Attach.
    Attached(Attached),
    /// To Recover.
    Recovered(Recovered),
    /// To Describe.
    Table(TableDescriptor),
    /// To Clocks.
    Clocks {
        /// The minimum over the live workers.
        global: u64,
        /// Each worker that counts.
        workers: Vec<WorkerClock>,
    },
    /// No.
    Refused(Refusal),
}

impl Message for ServerRequest {
    const KIND: u16 = kind::SERVER_REQUEST;
    const NAME: &'static str = "request to a server";

    fn validate(&self) -> Result<(), WireError> {
        match self {
            Self::Attach(attach) => attach.validate(),
            Self::Recover {
                session: _,
                applier,
            } => applier_id(*applier),
            Self::Clocks { domain } => domain_id(*domain),
            Self::Describe { .. } | Self::ReleaseSeen { .. } | Self::Detach { .. } => Ok(()),
        }
    }
}

impl Request for ServerRequest {
    type Answer = ServerAnswer;
}

impl Message for ServerAnswer {
    const KIND: u16 = kind::SERVER_ANSWER;
    const NAME: &'static str = "answer of a server";

    fn validate(&self) -> Result<(), WireError> {
        match self {
            Self::Done => Ok(()),
            Self::Attached(attached) => {
                at_most(
                    "lanes",
                    attached.lanes.len() as u64,
                    u64::from(APPLIERS_MAX),
                )?;
                descriptors(&attached.descriptors)?;
                attached.lanes.iter().try_for_each(LaneGrant::validate)
            }
            Self::Recovered(recovered) => recovered.lane.validate(),
            Self::Table(table) => table.validate(),
            Self::Clocks { global: _, workers } => {
                at_most("workers", workers.len() as u64, u64::from(WORKERS_MAX))?;
                workers.iter().try_for_each(|w| worker_id(w.worker))
            }
            Self::Refused(refusal) => refusal.validate(),
        }
    }
}

impl Answer for ServerAnswer {
    fn accepted(self) -> Result<Self, Refusal> {
        if let Self::Refused(refusal) = self {
            Err(refusal)
        } else {
            Ok(self)
        }
    }
}

impl Attach {
    fn validate(&self) -> Result<(), WireError> {
        let bytes = self.ring_bytes as usize;
        if !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes) || !bytes.is_power_of_two() {
            let why = "is no power of two within its limits";
            return Err(WireError::Malformed {
                what: "ring size",
                why,
            });
        }
        self.mailbox.iter().try_for_each(Remote::validate)?;
        descriptors(&self.descriptors)
    }
}

impl Remote {
    /// Its end does not wrap round, so that `address + len` never overflows.
    fn validate(&self) -> Result<(), WireError> {
        match self.address.checked_add(self.len) {
            Some(_) => Ok(()),
            None => Err(WireError::Malformed {
                what: "remote memory",
                why: "wraps round",
            }),
        }
    }
}

impl LaneGrant {
    fn validate(&self) -> Result<(), WireError> {
        applier_id(self.applier)?;
        let whole = [self.ring, self.tail, self.state];
        whole
            .iter()
            .chain(&self.ticket)
            .try_for_each(Remote::validate)
    }
}

impl PartitionDescriptor {
    fn validate(&self) -> Result<(), WireError> {
        at_most(
            "partition number",
            u64::from(self.partition.0),
            u64::from(PARTITIONS_MAX) - 1,
        )?;
        applier_id(self.applier)?;
        if self.first_row.checked_add(self.rows).is_none() {
            return Err(WireError::Malformed {
                what: "rows of a partition",
                why: "wrap round",
            });
        }
        let parts = [
            self.payload,
            self.payload_back,
            self.versions,
            self.snapshot,
            self.extents,
        ];
        parts.iter().flatten().try_for_each(Remote::validate)
    }
}

impl TableDescriptor {
    fn validate(&self) -> Result<(), WireError> {
        at_most(
            "partitions",
            self.partitions.len() as u64,
            u64::from(PARTITIONS_MAX),
        )?;
        at_most(
            "block bytes",
            u64::from(self.block_bytes),
            u64::from(BLOCK_BYTES_MAX),
        )?;
        let row = u64::from(self.header_bytes) + u64::from(self.payload_bytes);
        at_most("row bytes", row, u64::from(self.stride_bytes))?;
        self.state.validate()?;
        self.partitions
            .iter()
            .try_for_each(PartitionDescriptor::validate)
    }
}

/// At most one of each kind and applier, with room to spare: the kernel passes 253 at once.
fn descriptors(kinds: &[DescriptorKind]) -> Result<(), WireError> {
    at_most(
        "descriptors",
        kinds.len() as u64,
        4 + u64::from(APPLIERS_MAX),
    )?;
    kinds.iter().try_for_each(|kind| match kind {
        DescriptorKind::ApplierDoorbell(applier) => applier_id(*applier),
        _ => Ok(()),
    })
}

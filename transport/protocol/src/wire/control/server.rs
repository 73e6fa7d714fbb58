//! What a worker asks a server: sessions, lanes, tables.

use serde::{Deserialize, Serialize};

use super::members::{WorkerClock, applier_id, domain_id, worker_id};
use super::verbs::{VerbsConnect, VerbsConnected};
use super::{Answer, Message, Request};
use crate::ids::{ApplierId, DomainId, PartitionId, RegionKey, SessionId, TableId};
use crate::layout::LINE_BYTES;
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

/// A client thread asks for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The transport of its lanes. On shm the request comes over the unix socket, and the
    /// doorbell of the client's thread comes along as the only descriptor.
    pub transport: Transport,
    /// Bytes of each ring, a power of two.
    pub ring_bytes: u32,
    /// The thread's number inside its worker. Thread 0 is the one whose CLOCK frames count.
    pub thread: u32,
    /// Workers that the job is made of, 0 if the client was not told. A service learns it here.
    pub workers: u32,
}

/// One lane of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneGrant {
    /// Its applier.
    pub applier: ApplierId,
    /// Presented once, in the handshake of the lane's connection (tcp) or with its queue pairs
    /// (verbs); new after each Recover. 0 where the lane needs no connection.
    pub nonce: u64,
    /// The word of the applier's advisory ticket line that this session's atomics may touch. Its
    /// length is that of a word if clients are to count their pushes there, and 0 if not.
    pub ticket: Remote,
    /// The public copy of the lane's state line: one cache line that the session may read, written
    /// before each state line that is posted into the mailbox.
    pub status: Remote,
}

/// The numbers of a session over shared memory, or of one of its lanes that was recovered. They
/// travel beside the descriptors: public memory, counters, inbox, mailbox, then the waker of each
/// lane's applier. Offsets of lanes follow: lane `i` has the `i`-th slice of inbox and mailbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShmAttach {
    /// Check bits of this start's region keys.
    pub key_check: u8,
    /// Bytes of the server's public memory.
    pub public_bytes: u64,
    /// Bytes of its counters.
    pub counters_bytes: u64,
    /// Data bytes of each lane's ring.
    pub ring_bytes: u64,
    /// Bytes of each lane's mailbox.
    pub mailbox_bytes: u64,
    /// For each lane: offset of its applier's parked flag in public memory.
    pub parked_flag_at: Vec<u64>,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Its nonce.
    pub session: SessionId,
    /// One lane for each applier of the server, in the order of their numbers.
    pub lanes: Vec<LaneGrant>,
    /// On shm.
    pub shm: Option<ShmAttach>,
}

/// Where a broken lane stands. The client writes `[head_bytes, tail)` again from its staging.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovered {
    /// The lane, with a new nonce.
    pub lane: LaneGrant,
    /// On shm: the lane's new memory.
    pub shm: Option<ShmAttach>,
    /// Every frame up to this is applied or refused.
    pub applied_seq: u64,
    /// Every frame up to this is durable.
    pub durable_seq: u64,
    /// Bytes consumed; the tail cell says the same.
    pub head_bytes: u64,
    /// Frames refused so far.
    pub rejected: u64,
}

/// A partition of a dense table as its applier has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionDescriptor {
    /// Its number.
    pub partition: PartitionId,
    /// Its first row, or its first block.
    pub first: u64,
    /// Its rows, or its blocks.
    pub count: u64,
    /// Rows with their headers, or blocks.
    pub payload: Remote,
    /// Second buffer of a snapshot table.
    pub payload_back: Option<Remote>,
    /// Version words of blocks.
    pub versions: Option<Remote>,
    /// Snapshot line.
    pub snapshot: Option<Remote>,
}

/// What one applier has of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplierPart {
    /// The applier.
    pub applier: ApplierId,
    /// Enters what is read there: extent entries of a sparse table, row hashes of layout `rows`,
    /// version words and snapshot lines of layout `blocks`. New when memory is used again.
    pub salt: u64,
    /// The extent table of a sparse table; rows have the salt that their extent's entry tells.
    pub extents: Option<Remote>,
    /// The partitions of a dense table; none of a sparse one.
    pub partitions: Vec<PartitionDescriptor>,
}

/// Everything a client must know to read a table's rows at one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableDescriptor {
    /// The table.
    pub id: TableId,
    /// Bytes of a row's header (0 in blocks).
    pub header_bytes: u32,
    /// Bytes of a row's payload.
    pub payload_bytes: u32,
    /// Bytes from a row to the next; in blocks those of the payload.
    pub stride_bytes: u32,
    /// Bytes of a block (0 in rows).
    pub block_bytes: u32,
    /// What the server's appliers have of it; those that own no partition are left out.
    pub parts: Vec<ApplierPart>,
}

/// Worker to server, on the session's control connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerRequest {
    /// Makes the connection's session. Answer: [`ServerAnswer::Attached`].
    Attach(Attach),
    /// Makes a session of before this connection's own: its connection was cut. Answer: Done.
    Resume {
        /// The session: who knows its nonce owns it.
        session: SessionId,
    },
    /// Re-attaches the session's cut lane. It may be repeated. Answer: [`ServerAnswer::Recovered`].
    Recover {
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
    /// Ends the session, after what is whole in its rings. Answer: Done.
    Detach,
    /// Connects a lane of a verbs session. Answer: [`ServerAnswer::VerbsConnected`].
    ConnectVerbs(VerbsConnect),
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
    /// To `ConnectVerbs`.
    VerbsConnected(VerbsConnected),
}

impl Message for ServerRequest {
    const KIND: u16 = kind::SERVER_REQUEST;
    const NAME: &'static str = "request to a server";

    fn validate(&self) -> Result<(), WireError> {
        match self {
            Self::Attach(attach) => attach.validate(),
            Self::Recover { applier } => applier_id(*applier),
            Self::Clocks { domain } => domain_id(*domain),
            Self::ConnectVerbs(connect) => connect.validate(),
            Self::Resume { .. } | Self::Describe { .. } | Self::Detach => Ok(()),
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
                attached.shm.iter().try_for_each(ShmAttach::validate)?;
                attached.lanes.iter().try_for_each(LaneGrant::validate)
            }
            Self::Recovered(recovered) => {
                recovered.shm.iter().try_for_each(ShmAttach::validate)?;
                recovered.lane.validate()
            }
            Self::Table(table) => table.validate(),
            Self::Clocks { global: _, workers } => {
                at_most("workers", workers.len() as u64, u64::from(WORKERS_MAX))?;
                workers.iter().try_for_each(|w| worker_id(w.worker))
            }
            Self::Refused(refusal) => refusal.validate(),
            Self::VerbsConnected(connected) => connected.validate(),
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
        at_most("workers", u64::from(self.workers), u64::from(WORKERS_MAX))
    }
}

impl Remote {
    /// Its end does not wrap round, so that `address + len` never overflows.
    pub(super) fn validate(&self) -> Result<(), WireError> {
        match self.address.checked_add(self.len) {
            Some(_) => Ok(()),
            None => Err(WireError::Malformed {
                what: "remote memory",
                why: "wraps round",
            }),
        }
    }
}

impl ShmAttach {
    /// The rest is compared with the memories themselves when they are mapped.
    fn validate(&self) -> Result<(), WireError> {
        at_most(
            "lanes",
            self.parked_flag_at.len() as u64,
            u64::from(APPLIERS_MAX),
        )
    }
}

impl LaneGrant {
    fn validate(&self) -> Result<(), WireError> {
        applier_id(self.applier)?;
        self.ticket.validate()?;
        self.status.validate()?;
        let line = LINE_BYTES as u64;
        if self.status.len != line || !self.status.address.is_multiple_of(line) {
            return Err(WireError::Malformed {
                what: "public state line",
                why: "is not one whole line",
            });
        }
        Ok(())
    }
}

impl PartitionDescriptor {
    fn validate(&self) -> Result<(), WireError> {
        at_most(
            "partition number",
            u64::from(self.partition.0),
            u64::from(PARTITIONS_MAX) - 1,
        )?;
        if self.first.checked_add(self.count).is_none() {
            return Err(WireError::Malformed {
                what: "rows of a partition",
                why: "wrap round",
            });
        }
        self.payload.validate()?;
        let others = [self.payload_back, self.versions, self.snapshot];
        others.iter().flatten().try_for_each(Remote::validate)
    }
}

impl ApplierPart {
    fn validate(&self) -> Result<(), WireError> {
        applier_id(self.applier)?;
        self.extents.iter().try_for_each(Remote::validate)?;
        self.partitions
            .iter()
            .try_for_each(PartitionDescriptor::validate)
    }
}

impl TableDescriptor {
    fn validate(&self) -> Result<(), WireError> {
        at_most("parts", self.parts.len() as u64, u64::from(APPLIERS_MAX))?;
        let partitions = self.parts.iter().map(|p| p.partitions.len() as u64).sum();
        at_most("partitions", partitions, u64::from(PARTITIONS_MAX))?;
        at_most(
            "block bytes",
            u64::from(self.block_bytes),
            u64::from(BLOCK_BYTES_MAX),
        )?;
        let row = u64::from(self.header_bytes) + u64::from(self.payload_bytes);
        at_most("row bytes", row, u64::from(self.stride_bytes))?;
        self.parts.iter().try_for_each(ApplierPart::validate)
    }
}

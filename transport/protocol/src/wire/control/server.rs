//! Requests of a worker to a server: sessions, lanes, tables.

use serde::{Deserialize, Serialize};

use super::members::{WorkerClock, applier_id, domain_id, thread_number, worker_id};
use super::verbs::{VerbsConnect, VerbsConnected, VerbsPath, VerbsPort};
use super::{Answer, Message, Request};
use crate::ids::{ApplierId, DomainId, PartitionId, RegionKey, SessionId, TableId};
use crate::layout::LINE_BYTES;
use crate::limits::{
    APPLIERS_MAX, BLOCK_BYTES_MAX, PARTITIONS_MAX, RING_BYTES_MAX, RING_BYTES_MIN,
    STATUS_TEXT_BYTES_MAX, VERBS_FAILED_PATHS_MAX, VERBS_PORTS_MAX, WORKERS_MAX,
};
use crate::wire::WireError;
use crate::wire::error::{at_most, text_at_most};
use crate::wire::frame::kind;
use crate::wire::refusal::Refusal;

/// Transport (carrier) that moves the bytes of a session's lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Transport {
    /// Shared memory of one host.
    Shm,
    /// TCP connections, one per lane.
    Tcp,
    /// RDMA verbs queue pairs.
    Verbs,
    /// The simulator of the tests.
    Sim,
}

/// Range of bytes in a registered memory region of the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Remote {
    /// Key of the region.
    pub key: RegionKey,
    /// Start within the region: an address on verbs, an offset elsewhere.
    pub address: u64,
    /// Length of the range in bytes.
    pub len: u64,
}

/// Request of a client thread to a server for a new session, which gets one lane to each applier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// Transport of the session's lanes. On shm the request uses the unix socket, and carries the waker
    /// of the client's thread as the only descriptor.
    pub transport: Transport,
    /// Data bytes of each lane's ring, a power of two from [`RING_BYTES_MIN`] to [`RING_BYTES_MAX`].
    pub ring_bytes: u32,
    /// Number of the thread in its worker. 0 is the worker's first client. A further thread becomes a
    /// member of the clock domains by a CLOCK frame.
    pub thread: u32,
    /// Number of workers in the job, 0 if the client does not know it; ignored from an observer. The server of a
    /// service learns the number here.
    pub workers: u32,
    /// Reason why the client takes this transport, for operators.
    pub reason: String,
    /// On verbs, the client's RDMA ports, the preferred one first; else empty.
    pub ports: Vec<VerbsPort>,
    /// On verbs, pairs of ports over which nothing came through: the server selects another pair, or refuses if none
    /// is left.
    pub failed_paths: Vec<VerbsPath>,
}

/// Permission of a server for one lane, the connection of a session to one applier: a nonce by which the client
/// connects the lane, and memory that the client may access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneGrant {
    /// Applier of the lane.
    pub applier: ApplierId,
    /// Nonce that the client presents once, in the handshake of the lane's connection (tcp) or with the lane's queue
    /// pairs (verbs). Each Recover replaces it by a new one. 0 where the lane needs no connection (shm).
    pub nonce: u64,
    /// Word of the applier's advisory ticket line that this session's atomics may access. The length is 8 bytes if
    /// clients are to count their pushes there, and 0 if not.
    pub ticket: Remote,
    /// Public copy of the lane's status record: one cache line that the session may read. The server
    /// writes it before each status record that it posts into the mailbox.
    pub status: Remote,
}

/// Sizes and offsets of the memory of a session over shared memory, or of one recovered lane. File descriptors go
/// with the message, in this order: public memory, counters, inbox, mailbox, then the waker of each lane's applier.
/// Lane `i` has the `i`-th slice of inbox and mailbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShmAttach {
    /// Check bits in the region keys of this start of the server process.
    pub key_check: u8,
    /// Bytes of the server's public memory.
    pub public_bytes: u64,
    /// Bytes of the server's counters.
    pub counters_bytes: u64,
    /// Data bytes of each lane's ring.
    pub ring_bytes: u64,
    /// Bytes of each lane's mailbox.
    pub mailbox_bytes: u64,
    /// Byte offset in public memory of the parked flag that the lane's applier sets, one entry for each lane.
    pub parked_flag_at: Vec<u64>,
}

/// Answer of a server to [`Attach`]: the new session and its lanes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Nonce of the session, by which its holder resumes it.
    pub session: SessionId,
    /// One lane for each applier of the server, ordered by applier number.
    pub lanes: Vec<LaneGrant>,
    /// Shared-memory numbers, on shm only.
    pub shm: Option<ShmAttach>,
    /// The ports of the lanes, on verbs only: the best pair that is not in [`Attach::failed_paths`] and of which the
    /// server can open its port.
    pub path: Option<VerbsPath>,
}

/// Answer of a server to Recover: a new grant of the lane, and its state. After the lane is connected, the client
/// writes the ring's bytes from `head_bytes` to the end of its frames again, from its own copy of the ring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovered {
    /// The lane, with a new nonce (0 on shm).
    pub lane: LaneGrant,
    /// New memory of the lane, on shm only.
    pub shm: Option<ShmAttach>,
    /// Every frame up to this sequence number is applied or refused.
    pub applied_seq: u64,
    /// Every frame up to this sequence number is durable.
    pub durable_seq: u64,
    /// Byte position in the ring, monotonic, up to which the applier has consumed; the tail record now holds it too.
    pub head_bytes: u64,
    /// Number of the lane's frames refused so far.
    pub rejected: u64,
}

/// Location of one partition of a dense table in its applier's registered memory, for one-sided reads of a
/// client: rows or blocks, version words, snapshot record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionDescriptor {
    /// Number of the partition.
    pub partition: PartitionId,
    /// Number of the partition's first row (layout `rows`) or block (layout `blocks`) in the table.
    pub first: u64,
    /// Number of rows (layout `rows`) or blocks (layout `blocks`) of the partition.
    pub count: u64,
    /// Memory of the rows with their headers, or of the blocks; of a snapshot table the first buffer.
    pub payload: Remote,
    /// Further buffers of a snapshot table, one behind the other: one less than the table has versions. Else `None`.
    pub payload_back: Option<Remote>,
    /// Version words of the blocks, 8 bytes each; `None` in layout `rows`.
    pub versions: Option<Remote>,
    /// Snapshot record of the partition, one cache line; `None` of a table without snapshots.
    pub snapshot: Option<Remote>,
}

/// Memory of one applier that holds rows of a table: its partitions (dense), or its table of extents (sparse).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplierPart {
    /// Number of the applier.
    pub applier: ApplierId,
    /// Salt of the applier's self-validating data: extent entries of a sparse table, row checksums of layout
    /// `rows`, version words and snapshot records of layout `blocks`. Another one when memory is used again.
    pub salt: u64,
    /// The extent table of a sparse table, in which each entry holds the salt of the extent's rows; `None` of a
    /// dense table.
    pub extents: Option<Remote>,
    /// The partitions of a dense table; empty for a sparse one.
    pub partitions: Vec<PartitionDescriptor>,
}

/// Description of a table's memory at one server: all that a client needs for one-sided reads of its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableDescriptor {
    /// Number of the table.
    pub id: TableId,
    /// Bytes of a row's header; 0 in layout `blocks`.
    pub header_bytes: u32,
    /// Bytes of a row's payload.
    pub payload_bytes: u32,
    /// Bytes from a row to the next; in layout `blocks` equal to `payload_bytes`.
    pub stride_bytes: u32,
    /// Bytes of a block; 0 in layout `rows` and of a sparse table.
    pub block_bytes: u32,
    /// Memory of each applier of the server that owns a partition of the table.
    pub parts: Vec<ApplierPart>,
}

/// Request of a worker or observer to a server, on the session's control connection: attaches, moves or ends a session,
/// connects or recovers a lane, or reads a table's descriptors or a domain's clocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerRequest {
    /// Creates the connection's session. Answer: [`ServerAnswer::Attached`].
    Attach(Attach),
    /// Moves a session of the client's worker to this connection, and closes the session's earlier one; both must be
    /// TCP or both unix sockets. It may be repeated. Answer: Done.
    Resume {
        /// Nonce of the session; the holder of the nonce owns the session.
        session: SessionId,
    },
    /// Ends a lane of the session and grants it again; a nonce granted before is void. It may be repeated. Answer:
    /// [`ServerAnswer::Recovered`].
    Recover {
        /// Applier of the lane.
        applier: ApplierId,
    },
    /// Reads the descriptors of a table. Answer: [`ServerAnswer::Table`].
    Describe {
        /// Number of the table.
        table: TableId,
    },
    /// Reads the clocks of the worker threads in a domain. Answer: [`ServerAnswer::Clocks`].
    Clocks {
        /// Number of the domain.
        domain: DomainId,
    },
    /// Ends the connection's session. Appliers still apply the complete frames in its rings. Answer: Done, which
    /// does not wait for them.
    Detach,
    /// Connects a lane of a verbs session. Answer: [`ServerAnswer::Queued`] any number of times, then
    /// [`ServerAnswer::VerbsConnected`].
    ConnectVerbs(VerbsConnect),
    /// Connects at least one lane of a verbs session, ascending by applier, all or none. Answer:
    /// [`ServerAnswer::Queued`] any number of times, then [`ServerAnswer::LanesConnected`].
    ConnectLanes(Vec<VerbsConnect>),
    /// Moves a session from a dead server process to its successor, which has the session in its memory. On shm the
    /// request carries the waker of the client's thread as the only descriptor. It may be repeated. Answer: Done;
    /// the client then sends Recover for each lane.
    Reattach {
        /// Nonce of the session; the holder of the nonce owns the session.
        session: SessionId,
        /// The request by which the session was made.
        attach: Attach,
    },
}

/// Answer of a server to a [`ServerRequest`]: the result that the request's variant documents, a refusal, or an interim
/// report ([`ServerAnswer::Queued`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerAnswer {
    /// The request is done.
    Done,
    /// Answer to the request [`ServerRequest::Attach`].
    Attached(Attached),
    /// Answer to the request [`ServerRequest::Recover`].
    Recovered(Recovered),
    /// Answer to the request [`ServerRequest::Describe`].
    Table(TableDescriptor),
    /// Answer to the request [`ServerRequest::Clocks`].
    Clocks {
        /// Number of ticks that all live workers have completed at every applier of the server.
        global: u64,
        /// Clock of each thread of a live worker that all appliers have, ascending by rank, then thread.
        workers: Vec<WorkerClock>,
    },
    /// The request is refused.
    Refused(Refusal),
    /// Answer to the request [`ServerRequest::ConnectVerbs`].
    VerbsConnected(VerbsConnected),
    /// Answer to the request [`ServerRequest::ConnectLanes`]: all lanes of the request, ascending by applier.
    LanesConnected(Vec<VerbsConnected>),
    /// Interim report on a request for verbs lanes that is not yet answered; the answer follows.
    Queued {
        /// Number of lanes of other requests that the server makes before; 0 while it makes those of this one.
        before: u32,
    },
}

impl Message for ServerRequest {
    const KIND: u16 = kind::SERVER_REQUEST;
    const NAME: &'static str = "request to a server";

    fn validate(&self) -> Result<(), WireError> {
        match self {
            Self::Attach(attach) | Self::Reattach { attach, .. } => attach.validate(),
            Self::Recover { applier } => applier_id(*applier),
            Self::Clocks { domain } => domain_id(*domain),
            Self::ConnectVerbs(connect) => connect.validate(),
            Self::ConnectLanes(lanes) => {
                lane_list(lanes.iter().map(|lane| lane.applier))?;
                lanes.iter().try_for_each(VerbsConnect::validate)
            }
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
                attached.path.iter().try_for_each(VerbsPath::validate)?;
                attached.lanes.iter().try_for_each(LaneGrant::validate)
            }
            Self::Recovered(recovered) => {
                recovered.shm.iter().try_for_each(ShmAttach::validate)?;
                recovered.lane.validate()
            }
            Self::Table(table) => table.validate(),
            Self::Clocks { global: _, workers } => {
                at_most("workers", workers.len() as u64, u64::from(WORKERS_MAX))?;
                workers.iter().try_for_each(|w| {
                    worker_id(w.worker)?;
                    thread_number(w.thread)
                })
            }
            Self::Refused(refusal) => refusal.validate(),
            Self::VerbsConnected(connected) => connected.validate(),
            Self::LanesConnected(lanes) => {
                lane_list(lanes.iter().map(|lane| lane.applier))?;
                lanes.iter().try_for_each(VerbsConnected::validate)
            }
            Self::Queued { .. } => Ok(()),
        }
    }
}

/// Checks that a list of lanes has 1 to `APPLIERS_MAX` entries, in ascending order of their appliers and without
/// repetition.
fn lane_list(appliers: impl ExactSizeIterator<Item = ApplierId>) -> Result<(), WireError> {
    at_most("lanes", appliers.len() as u64, u64::from(APPLIERS_MAX))?;
    let numbers: Vec<u16> = appliers.map(|applier| applier.0).collect();
    if numbers.is_empty() || !numbers.is_sorted_by(|a, b| a < b) {
        return Err(WireError::Malformed {
            what: "list of lanes",
            why: "is empty or not in the order of the appliers",
        });
    }
    Ok(())
}

impl Answer for ServerAnswer {
    fn is_news(&self) -> bool {
        matches!(self, Self::Queued { .. })
    }

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
        thread_number(self.thread)?;
        text_at_most("reason", &self.reason, STATUS_TEXT_BYTES_MAX)?;
        at_most("workers", u64::from(self.workers), u64::from(WORKERS_MAX))?;
        let (ports, failed) = (self.ports.len(), self.failed_paths.len());
        at_most("RDMA ports", ports as u64, VERBS_PORTS_MAX as u64)?;
        at_most("failed paths", failed as u64, VERBS_FAILED_PATHS_MAX as u64)?;
        self.ports.iter().try_for_each(VerbsPort::validate)?;
        self.failed_paths.iter().try_for_each(VerbsPath::validate)
    }
}

impl Remote {
    /// Checks that the end of the range, `address + len`, does not overflow 64 bits. Whether the region has this
    /// range is checked where the region is accessed.
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
    /// Checks the number of lanes only. The client checks sizes and offsets when it maps the memories.
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

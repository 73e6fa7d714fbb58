// long: the contract of a lane is read as one.

//! The lane contract: guarantees that hold on every transport. Code above cannot distinguish transports.
//!
//! A *lane* connects one client thread with one applier. The client's end is a [`ClientLane`]: it reads
//! the server's registered memory, writes its own inbox there, and does atomics on counters. No server
//! thread takes part (on `tcp` the applier's loop stands in for the NIC). The applier's end is a
//! [`ServerLane`]: it writes the client's mailbox. Each end belongs to one thread.
//!
//! The clauses are numbered. [`CLAUSES`] lists them; the conformance suite has a test for each and
//! prints clause x transport x result. A check fails when a clause is missing.
//!
//! | clause | promise |
//! |---|---|
//! | F01 | A read places exactly the bytes asked for at the offsets named, and touches no other byte. |
//! | F02 | Reads are not ordered among themselves, and the bytes of one may be seen torn: no code may rely on either. |
//! | F03 | A read flagged `fence` starts after all earlier reads of its lane have completed. |
//! | F04 | Writes of a lane become visible to the owner in any order until a signal posted after them has been received; then all of them are visible and complete. Of two that overlap the later one stands. |
//! | F05 | An atomic is performed after the writes posted before it on its lane. |
//! | F06 | `write_signal` wakes an owner that sleeps or is about to; a plain write need not. |
//! | F07 | The source of `write`, `write_signal` and of the posts of the server lane is copied or sent before the call returns. |
//! | F08 | `fetch_add` and `compare_swap` return the old value and are atomic against those of every other lane of the same transport. A lane without atomics ([`ClientLane::has_atomics`]) refuses them and goes on. |
//! | F09 | An access without the access flag, outside its region, with an unknown key, or misaligned changes nothing and breaks the lane with [`LaneError::Access`]. |
//! | F10 | An operation on a lane that broke may or may not have been done ("unknown"); the error says so, and no later operation of the lane is done. |
//! | F11 | Once the server lane is destroyed, no byte that the client posted is placed any more. |
//! | F12 | Every wait ends by its deadline, with an error that names operation and peer. |
//! | F13 | A borrowed destination buffer is not touched after the call has returned, in error or not. |
//! | F14 | An owned batch comes back from `poll_read`, or stays with the lane until that is dropped; forgetting it frees nothing that is still written. |
//! | F15 | Posts of the server lane into the mailbox become visible in any order until a signal posted after them has been received; then all of them are visible and complete. Of two that overlap the later one stands. `signal` wakes a client that sleeps or is about to. |
//! | F16 | A lane that breaks leaves every other lane of both its ends working. |
//! | F17 | An end that waits sleeps: no cycles after the spin, no lost wake-up. |
//! | F18 | Reads, writes and polls on an open lane allocate nothing once warm. |
//!
//! Shared memory and TCP execute the reads of a lane in the order of their submission. There a fence holds for
//! all reads behind it too, and costs nothing (F03). Elsewhere it holds for its own read only, and may cost a
//! round trip. Over shared memory a read or atomic outside its range, but inside the server memory of its
//! key, is not refused (F09).
//!
//! F04 and F15 promise no order between two writes: devices under adaptive routing place them as they
//! arrive. An end that polls memory may see a later write first, so every polled record carries a
//! checksum of its own. Some records count others: a tail its frames, a status its reject records. The
//! reader takes a counted record as not arrived until its checksum matches. Shared memory and TCP keep
//! the order of the calls, which no code may rely on.

use std::time::Duration;

use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{INBOX_RING_AT, INBOX_TAIL_AT, inbox_bytes};
use tidewater_protocol::layout::{LINE_BYTES, Line, lines::CheckedU64};
use tidewater_protocol::limits::DATA_DEADLINE;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::{MemError, Region, Words, WordsMut, publish};
use tidewater_runtime::sync::{Arc, Ordering, fence};

mod mapping;
mod unpack;

pub use mapping::Mapping;
pub use tidewater_runtime::wait::{Parker, SPIN};
pub use tidewater_runtime::yield_backoff::YieldBackoff;
pub use unpack::Unpack;

/// Numbers of all clauses of the lane contract in the module's table, F01 to F18. The conformance suite
/// has a test for each.
pub const CLAUSES: &[&str] = &[
    "F01", "F02", "F03", "F04", "F05", "F06", "F07", "F08", "F09", "F10", "F11", "F12", "F13",
    "F14", "F15", "F16", "F17", "F18",
];

/// Greatest payload of a `ClientLane::write_signal`, 64 bytes: RDMA verbs send as much inline in the
/// work request. A longer one is `LaneError::Usage`.
pub const SIGNAL_BYTES_MAX: usize = LINE_BYTES;

/// Transport that carries a lane: shared memory, TCP, RDMA verbs, or the simulator of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum TransportKind {
    /// Shared memory of one host.
    Shm,
    /// TCP sockets, within a host or between hosts.
    Tcp,
    /// RDMA queue pairs. Every build has the name; the code needs a feature.
    Verbs,
    /// The adversarial simulator, for tests.
    Sim,
}

impl core::fmt::Display for TransportKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
            Self::Sim => "sim",
        })
    }
}

/// Address in a server's registered memory: region key and byte address, as in RDMA. The address is the
/// byte offset in the server memory that the key names, or, with [`INBOX_KEY`], in the client's own
/// inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Key of the registered region.
    pub key: RegionKey,
    /// Byte offset in the memory that the key names.
    pub addr: u64,
}

/// One one-sided read of server memory, as the client requests it. Its first `head_len` bytes are placed
/// in [`ReadDest::head`], the rest in [`ReadDest::body`]. So a list of reads separates headers from
/// payload.
#[derive(Debug, Clone, Copy)]
pub struct ReadOp {
    /// Source address; a multiple of 8.
    pub from: RemoteAddr,
    /// Length of head and body together, in bytes.
    pub len: u32,
    /// Bytes of `len` that go to the head; a multiple of 8.
    pub head_len: u32,
    /// Byte offset in [`ReadDest::head`].
    pub head_at: usize,
    /// Byte offset in [`ReadDest::body`].
    pub body_at: usize,
    /// Starts the read only after all earlier reads completed (F03).
    pub fence: bool,
}

/// Two destination buffers of a list of reads, borrowed from the caller: one for heads, one for bodies.
/// Each read names its byte offset in either.
#[derive(Debug)]
pub struct ReadDest<'a> {
    /// Receives headers and version words.
    pub head: &'a mut [u8],
    /// Receives the payload of reads.
    pub body: &'a mut [u8],
}

impl ReadOp {
    /// Creates a read of `len` bytes that is placed at offset 0 of [`ReadDest::body`], with no head and
    /// no fence.
    ///
    /// # Errors
    /// `LaneError::Usage` for 4 GiB or more: the caller has to split such a read.
    pub fn of_body(from: RemoteAddr, len: usize) -> Result<Self, LaneError> {
        let len = u32::try_from(len).map_err(|_| LaneError::Usage {
            op: "read",
            what: "a length of 4 GiB or more",
        })?;
        Ok(Self {
            from,
            len,
            head_len: 0,
            head_at: 0,
            body_at: 0,
            fence: false,
        })
    }

    /// Returns whether the read stays inside destination buffers of `head` and `body` bytes. False also
    /// when `head_len` exceeds `len`.
    pub const fn fits(&self, head: usize, body: usize) -> bool {
        let head_len = self.head_len as usize;
        let Some(body_len) = (self.len as usize).checked_sub(head_len) else {
            return false;
        };
        matches!(self.head_at.checked_add(head_len), Some(end) if end <= head)
            && matches!(self.body_at.checked_add(body_len), Some(end) if end <= body)
    }
}

/// List of asynchronous reads that owns its destination buffers. [`ClientLane::submit_read`] moves it
/// into the lane. `ClientLane::poll_read` returns it with both buffers filled once all of its reads are
/// complete.
#[derive(Debug, Default)]
pub struct ReadBatch {
    /// The reads, in order of submission.
    pub ops: Vec<ReadOp>,
    /// Destination of the heads.
    pub head: Vec<u8>,
    /// Destination of the bodies.
    pub body: Vec<u8>,
    /// Value of the caller's choice that identifies the batch.
    pub tag: u64,
}

/// Failure of an operation on either end of a lane: lane broken, access refused, deadline passed, or
/// invalid call. After `Usage` nothing was done; after `Access` the refused operation was not done. After
/// the others the outcome is unknown.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The connection is gone; the outcome of operations in flight is unknown (F10).
    #[error("{transport} lane to {peer} broke during {op}: {why}; it can be recovered")]
    Broken {
        /// Transport of the lane.
        transport: TransportKind,
        /// Name of the other end.
        peer: String,
        /// Operation that was under way.
        op: &'static str,
        /// Cause: an error of the system or of the peer, or what this end found.
        why: String,
    },
    /// An access was refused (F09); the lane is broken.
    #[error(
        "{peer} refused {op} of {len} bytes at {addr:#x} with key {key:#010x}: {why}; \
         the client's view of the table is stale or it is out of bounds"
    )]
    Access {
        /// Name of the other end.
        peer: String,
        /// Operation that was refused.
        op: &'static str,
        /// Region key of the refused access.
        key: u32,
        /// Address of the refused access.
        addr: u64,
        /// Length in bytes of the refused access: one entry of a list of reads, a write, or 8 for an atomic.
        len: u64,
        /// Access check that failed.
        why: &'static str,
    },
    /// The deadline passed (F12); the lane is broken.
    #[error("{op} on the {transport} lane to {peer} did not finish before its deadline")]
    Deadline {
        /// Transport of the lane.
        transport: TransportKind,
        /// Name of the other end.
        peer: String,
        /// Operation that was waited for.
        op: &'static str,
    },
    /// A read missed its deadline (F12), and the transport can drop the answer: the lane stays usable.
    #[error("{op} on the {transport} lane to {peer} did not finish before its deadline")]
    Late {
        /// Transport of the lane.
        transport: TransportKind,
        /// Name of the other end.
        peer: String,
        /// Operation that was waited for.
        op: &'static str,
    },
    /// The call itself is invalid: a destination too short, a signal too long.
    #[error("{op} was called with {what}: a fault of the caller, nothing was sent")]
    Usage {
        /// Name of the call.
        op: &'static str,
        /// Argument that is invalid.
        what: &'static str,
    },
}

impl LaneError {
    /// Returns whether this error breaks the lane, so that no later operation on it succeeds. False for
    /// `Usage` and `Late` only: after those the lane goes on and the call may be repeated.
    pub const fn is_fatal(&self) -> bool {
        !matches!(self, Self::Usage { .. } | Self::Late { .. })
    }
}

/// The client's end of a lane, used by one thread: one-sided reads, writes and atomics on server memory.
/// After any error but `Usage` and `Late` the lane is broken: each later operation fails too, until the
/// caller replaces or recovers the lane.
///
/// No method has a default: a wrapper that forwards only some of them would hide the fast paths of the
/// lane inside it.
pub trait ClientLane: Send {
    /// Returns the transport that carries this lane.
    fn transport(&self) -> TransportKind;

    /// Returns the name of the server at the other end, for error messages.
    fn peer(&self) -> &str;

    /// Reads all `ops` into the buffers of `into`; blocks until they are complete or the deadline passes
    /// (F01-F03, F09, F12, F13). Batches submitted earlier make progress meanwhile. Cost: over shared
    /// memory a copy, over TCP one round trip for all.
    ///
    /// # Errors
    /// [`LaneError`]. At the deadline [`LaneError::Late`], after which the caller may read again, or
    /// [`LaneError::Deadline`], which breaks the lane. The parts of the destination that `ops` name are
    /// then unspecified; the rest is untouched.
    fn read(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        deadline: Deadline,
    ) -> Result<(), LaneError>;

    /// Reads and blocks like [`ClientLane::read`], but first resets `unpacker` and then offers the data
    /// of reads to it. The lane offers only reads that arrive complete in its own buffers; over shared
    /// memory and verbs there are none. Reads that the unpacker does not take are placed in `into`.
    ///
    /// # Errors
    /// [`LaneError`]. The parts of the destination that `ops` name are then unspecified.
    fn read_unpack(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        unpacker: &mut dyn Unpack,
        deadline: Deadline,
    ) -> Result<(), LaneError>;

    /// Submits a batch of reads without blocking (F14), except that over verbs the first use of a region
    /// key waits for its look-up. The batch comes back from [`ClientLane::poll_read`], in any order among
    /// batches. Nothing need be sent before [`ClientLane::flush`] or [`ClientLane::poll`].
    ///
    /// # Errors
    /// [`LaneError`]. The caller does not get the batch back: the lane keeps or drops it.
    fn submit_read(&mut self, batch: ReadBatch) -> Result<(), LaneError>;

    /// Removes and returns a batch of which all reads are complete, with its buffers filled; `None` if
    /// there is none. Batches finish in any order. Never blocks. Receives nothing: the caller polls the
    /// lane for that.
    fn poll_read(&mut self) -> Option<ReadBatch>;

    /// Blocks until the batch `tag` is complete, and receives its remaining bodies directly into `body`,
    /// without a copy. `ops` are the reads of the batch with their byte offsets in `body`. Does not reset
    /// `unpacker`. Afterwards `body` holds all bodies (F13) and the returned batch holds the heads,
    /// except those of reads that `unpacker` took. The batch's own body buffer is then unspecified.
    ///
    /// Returns `None` if the lane declines (some transports place reads only in the batch's own memory),
    /// or the batch is complete already or not the oldest under way, or the deadline passes. `body` is
    /// then unspecified, and the batch comes back from [`ClientLane::poll_read`]. Bytes that `unpacker`
    /// wrote were copied from `body` to their offsets in the batch.
    ///
    /// # Errors
    /// [`LaneError`]: the lane broke, or, as `Usage`, `ops` do not fit `body` or differ from the reads of the
    /// batch in number, lengths or head offsets. Source addresses need not be compared.
    fn wait_read(
        &mut self,
        tag: u64,
        ops: &[ReadOp],
        body: &mut [u8],
        unpacker: Option<&mut dyn Unpack>,
        deadline: Deadline,
    ) -> Result<Option<ReadBatch>, LaneError>;

    /// Writes `bytes` to server memory at `to`, a multiple of 8 in the client's own inbox (F04, F07). The
    /// bytes up to the next multiple of 8 become unspecified. Need not wake the applier. Does not wait
    /// until the bytes are placed, but over a network may block for room to send, normally for
    /// `DATA_DEADLINE` (30 s) at most.
    ///
    /// # Errors
    /// [`LaneError`]. For a place outside the inbox or no multiple of 8, `Access`, perhaps of a later call
    /// (F09). `Deadline` if no room comes. Both break the lane. `Usage` for more bytes than the transport
    /// takes in one write.
    fn write(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError>;

    /// Writes at most [`SIGNAL_BYTES_MAX`] bytes to the client's inbox, as `ClientLane::write` does,
    /// and wakes the applier if it sleeps (F06). Also hands earlier writes over to the transport.
    ///
    /// # Errors
    /// [`LaneError`]; [`LaneError::Usage`] for more bytes.
    fn write_signal(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError>;

    /// Writes like [`ClientLane::write_signal`], and after it adds `add` to the server's 64-bit word
    /// `counter` (F05, F08). The caller does not get the old value and does not wait for it on TCP and
    /// verbs. If the lane breaks later, whether the addition was done is unknown, like that of the write.
    /// Cost above the signal: an atomic, on verbs in the same doorbell, on tcp in the same packet.
    ///
    /// # Errors
    /// [`LaneError`]; [`LaneError::Usage`] for more than [`SIGNAL_BYTES_MAX`] bytes or without atomics:
    /// then the write was not made either.
    fn write_signal_count(
        &mut self,
        to: RemoteAddr,
        bytes: &[u8],
        counter: RemoteAddr,
        add: u64,
    ) -> Result<(), LaneError>;

    /// Returns whether the lane supports atomics. If false, calls that do atomics fail with
    /// [`LaneError::Usage`] and do nothing.
    fn has_atomics(&self) -> bool;

    /// Atomically adds `add` to the 64-bit counter of the server at `at` and returns its old value (F05,
    /// F08). Blocks until the answer or the deadline.
    ///
    /// # Errors
    /// [`LaneError`]. Whether the addition was done is then unknown, so the caller must not just repeat
    /// it; after `Usage` or `Access` it was not.
    fn fetch_add(&mut self, at: RemoteAddr, add: u64, deadline: Deadline)
    -> Result<u64, LaneError>;

    /// Atomically stores `new` in the 64-bit counter of the server at `at` if it equals `expect`. Returns
    /// the old value; if that equals `expect`, the store was done (F05, F08). Blocks until the answer or
    /// the deadline.
    ///
    /// # Errors
    /// [`LaneError`]. Whether the store was done is then unknown; after `Usage` or `Access` it was not.
    fn compare_swap(
        &mut self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
        deadline: Deadline,
    ) -> Result<u64, LaneError>;

    /// Hands posted writes and submitted reads over to the transport, without waiting for their
    /// completion. Until then a lane may keep them at this end.
    ///
    /// # Errors
    /// [`LaneError`].
    fn flush(&mut self) -> Result<(), LaneError>;

    /// Flushes like [`ClientLane::flush`], now or somewhat later. The lane may delay if answers are
    /// outstanding that this thread has yet to collect. Posted writes then leave at the latest with the
    /// next flush or signal, submitted reads at the next flush, poll or wait. For callers that submit a
    /// new batch whenever one completes: a transport may then serve many with one system call.
    ///
    /// # Errors
    /// [`LaneError`].
    fn flush_soon(&mut self) -> Result<(), LaneError>;

    /// Sends and receives what can move now; never blocks. Returns whether anything moved, so that the
    /// caller looks at its batches and its mailbox. Always false over shared memory. False does not mean
    /// that the mailbox is unchanged: transports other than TCP write it without a poll.
    ///
    /// # Errors
    /// [`LaneError`].
    fn poll(&mut self) -> Result<bool, LaneError>;

    /// Returns the lane's mailbox: memory that the server lane writes and this client thread reads.
    fn mailbox(&self) -> &Mailbox;

    /// Returns the server's public memory, mapped for direct loads by this thread. Loads are unordered
    /// and may be torn like reads (F02). Where a read would have a fence (F03), the caller makes an
    /// Acquire fence.
    ///
    /// `None` on transports that send reads over a network, and on a lane that failed:
    /// [`ClientLane::read`] then reports the cause (F10).
    fn mapping(&self) -> Option<Mapping>;
}

/// Implements [`ClientLane::write_signal_count`] for transports with atomics that complete before their
/// call returns: a `write_signal`, then a `fetch_add`. Drops the old value. Blocks for `DATA_DEADLINE`
/// (30 s) at most.
///
/// # Errors
/// [`LaneError`] of either call; after that of the second the write was posted.
pub fn signal_then_count(
    lane: &mut (impl ClientLane + ?Sized),
    to: RemoteAddr,
    bytes: &[u8],
    counter: RemoteAddr,
    add: u64,
) -> Result<(), LaneError> {
    lane.write_signal(to, bytes)?;
    lane.fetch_add(counter, add, Deadline::after(DATA_DEADLINE))
        .map(drop)
}

/// The applier's end of a lane, used by the applier's thread only. It executes the client's requests
/// where no NIC does, and writes the client's mailbox.
pub trait ServerLane: Send {
    /// Returns the name of the client at the other end, for error messages.
    fn peer(&self) -> &str;

    /// Executes the client's requests that have arrived, as a NIC would. Work is bounded; never blocks.
    /// Returns whether anything moved: if so, the applier looks at the inbox and polls again before it
    /// sleeps. Checks memory accesses against `exports`, the registered regions, and `inbox` (F09).
    ///
    /// # Errors
    /// [`LaneError`]: the lane is broken, and the caller has to destroy this end.
    fn poll(&mut self, exports: &mut RegionTableView, inbox: &Inbox) -> Result<bool, LaneError>;

    /// Writes `bytes` at byte offset `at`, a multiple of 8, of the client's mailbox (F15). The bytes up
    /// to the next multiple of 8 become unspecified. The lane may keep the bytes until
    /// [`ServerLane::signal`].
    ///
    /// # Errors
    /// [`LaneError`]: the lane is broken. The caller ensures that the place is inside the mailbox.
    fn post(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneError>;

    /// Hands all earlier posts over to the transport and wakes the client thread if it sleeps (F15). Does
    /// not wait until they are placed.
    ///
    /// # Errors
    /// [`LaneError`].
    fn signal(&mut self) -> Result<(), LaneError>;

    /// Returns the time after which the applier must poll the lane although no event wakes it. `None` if
    /// an event announces all there is to do, so that the applier may sleep. Covers operations under way
    /// that end without a wake-up.
    fn poll_hint(&self) -> Option<Duration>;

    /// Closes the lane and blocks until no byte of it is placed in server memory any more (F11). Later
    /// calls on this end fail. A second call does nothing.
    fn destroy(&mut self);

    /// Starts to close the lane and returns whether it is closed: if true, no byte of it is placed any
    /// more (F11). If false, a device is still at work; the caller calls again, or
    /// [`ServerLane::destroy`], which blocks. Never blocks, except in this default, which calls
    /// `destroy`. The lane is broken from the first call on.
    fn end(&mut self) -> bool {
        self.destroy();
        true
    }
}

/// Memory of one lane that the server writes and the client reads: status, clock and reject records,
/// reply slots. The layout is in `layout::session`. Clones share the memory.
#[derive(Debug, Clone)]
pub struct Mailbox {
    region: Arc<Region>,
    base: usize,
    len: usize,
}

impl Mailbox {
    /// Creates a mailbox of `len` bytes at byte offset `base`, a multiple of 8, of a region.
    ///
    /// # Errors
    /// [`MemError::Bounds`] when the window is not inside the region or not aligned.
    pub fn new(region: Arc<Region>, base: usize, len: usize) -> Result<Self, MemError> {
        region.check(base, len)?;
        Ok(Self { region, base, len })
    }

    /// Loads the 64-byte line at byte offset `at`, possibly torn, then makes an Acquire fence. If the
    /// caller finds that the line's checksum matches, everything that the server wrote before it is
    /// visible.
    ///
    /// # Panics
    /// When the line is not inside the mailbox or `at` is no multiple of 8: offsets come from
    /// `layout::session`.
    #[inline]
    pub fn line(&self, at: usize) -> Line {
        let line = self.words(at, LINE_BYTES).line(0);
        // SYNC: publish. Pairs with the Release fence in `mem::publish::publish`.
        fence(Ordering::Acquire);
        line
    }

    /// Returns a read-only window of `len` bytes at byte offset `at` of the mailbox.
    ///
    /// # Panics
    /// When the window is not inside or `at` is no multiple of 8: offsets come from `layout::session`.
    #[inline]
    pub fn words(&self, at: usize, len: usize) -> Words<'_> {
        assert!(
            at + len <= self.len,
            "mailbox offset {at}+{len} of {}",
            self.len
        );
        match self.region.words(self.base + at, len) {
            Ok(words) => words,
            Err(e) => unreachable!("inside by construction: {e}"),
        }
    }

    /// Returns the length of the mailbox in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the mailbox has a length of 0 bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the region that contains the mailbox and the mailbox's byte offset in it. The transport
    /// that receives into the mailbox uses both.
    pub const fn region(&self) -> (&Arc<Region>, usize) {
        (&self.region, self.base)
    }
}

/// Server memory that the client of one lane writes and the applier reads: the tail record, the client's
/// parked flag and the ring of frames. Clones share the memory.
#[derive(Debug, Clone)]
pub struct Inbox {
    region: Arc<Region>,
    base: usize,
    ring: RingGeometry,
    salt: u64,
}

impl Inbox {
    /// Creates an inbox at byte offset `base` of a region, with a ring of geometry `ring`. `salt`, the
    /// session's nonce, keys the checksum of the tail record. Stores nothing: see `Self::reset_tail`.
    ///
    /// # Errors
    /// [`MemError::Bounds`] when tail record and ring are not inside the region, or `base` is no multiple
    /// of 8.
    pub fn new(
        region: Arc<Region>,
        base: usize,
        ring: RingGeometry,
        salt: u64,
    ) -> Result<Self, MemError> {
        region.check(base, inbox_bytes(ring.bytes() as usize))?;
        Ok(Self {
            region,
            base,
            ring,
            salt,
        })
    }

    /// Returns the geometry (size in bytes) of the inbox's ring.
    pub const fn ring(&self) -> RingGeometry {
        self.ring
    }

    /// Returns a writable window of the complete inbox, from the tail record to the ring's end, for the
    /// transport that executes the client's writes.
    ///
    /// # Panics
    /// When the region is mapped for reading only; the window is inside by construction.
    pub fn window(&self) -> WordsMut<'_> {
        match self
            .region
            .words_mut(self.base, inbox_bytes(self.ring.bytes() as usize))
        {
            Ok(words) => words,
            Err(e) => unreachable!("inside by construction: {e}"),
        }
    }

    /// Returns the region that contains the inbox and the inbox's byte offset in it. The transport that
    /// receives into the inbox uses both.
    pub const fn region(&self) -> (&Arc<Region>, usize) {
        (&self.region, self.base)
    }

    /// Reads the ring's tail, the position in bytes behind the client's last frame. All frames before the
    /// tail are then visible. `None` if the tail record's checksum does not match: a write of it is under
    /// way.
    #[inline]
    pub fn tail(&self) -> Option<u64> {
        let cell = publish::cell(self.window().as_read(), INBOX_TAIL_AT);
        CheckedU64(cell).value(self.salt)
    }

    /// Stores `tail`, a ring position in bytes, in the tail record on behalf of the client. The server
    /// stores 0 at creation, and the position that it has consumed after a recovery of the lane.
    pub fn reset_tail(&self, tail: u64) {
        let [v, checksum] = CheckedU64::new(tail, self.salt).0;
        let w = self.window();
        w.store(INBOX_TAIL_AT, v);
        w.store_release(INBOX_TAIL_AT + 8, checksum);
    }

    /// Loads the 64-byte frame header at a ring position, possibly torn: the caller verifies its
    /// checksum. Positions are multiples of 64, count bytes from the start of the session and never wrap.
    pub fn header(&self, position: u64) -> Line {
        self.window()
            .as_read()
            .line(INBOX_RING_AT + self.ring.offset(position) as usize)
    }

    /// Returns a window of `len` bytes that begins `skip` bytes, a multiple of 8, after a ring position.
    /// Positions never wrap, but the caller must ensure that the bytes do not cross the ring's end. An
    /// empty window if they are outside the inbox's region or misaligned.
    pub fn payload(&self, position: u64, skip: usize, len: usize) -> Words<'_> {
        let at = INBOX_RING_AT + self.ring.offset(position) as usize + skip;
        match self.region.words(self.base + at, len) {
            Ok(words) => words,
            Err(_) => Words::new(&[]),
        }
    }
}

pub use crate::region_table::{
    AccessDenied, AccessFlags, ExportError, INBOX_KEY, Mapped, ReadChecks, RegionTable,
    RegionTableView, RegisteredRegion, Registrar, RegistrarError,
};

//! long: the contract of a lane is read as one.
//!
//! THE CONTRACT: what a lane promises, whatever carries it. Code above cannot tell which one it is.
//!
//! A *lane* connects one client thread with one applier. The client's end is a [`ClientLane`]: it reads
//! the server's registered memory, writes its own inbox there, and does atomics on counters, all
//! without a server thread's consent (on `tcp` the applier's loop stands in for the NIC). The
//! applier's end is a [`ServerLane`]: it writes the client's mailbox. Each end belongs to one thread.
//!
//! The clauses are numbered; [`CLAUSES`] lists them, the conformance suite has a test for each and
//! prints clause x transport x result, and a check fails when one is missing.
//!
//! | clause | promise |
//! |---|---|
//! | F01 | A read returns exactly the bytes asked for, into the places named, and touches no other byte. |
//! | F02 | Reads are not ordered among themselves, and the bytes of one may be seen torn: nothing may lean on either. |
//! | F03 | A read flagged `fence` starts after all earlier reads of its lane have completed. |
//! | F04 | Writes of a lane become visible to the owner in any order until a signal posted after them has been received; then all of them are there whole. Of two that overlap the later one stands. |
//! | F05 | An atomic is performed after the writes posted before it on its lane. |
//! | F06 | `write_signal` wakes an owner that sleeps or is about to; a plain write need not. |
//! | F07 | The source of `write`, `write_signal` and of the port's posts is copied or sent before the call returns. |
//! | F08 | `fetch_add` and `compare_swap` return the old value and are atomic against those of every other lane of the same transport. |
//! | F09 | An access without the right, outside its region, with an unknown key, or misaligned changes nothing and breaks the lane with [`LaneError::Access`]. |
//! | F10 | An operation whose lane broke may or may not have been done ("unknown"); the error says so, and no later operation of the lane is done. |
//! | F11 | Once the port is destroyed, no byte that the lane's client posted lands any more. |
//! | F12 | Every wait ends by its deadline, with an error that names operation and peer. |
//! | F13 | A borrowed landing buffer is not touched after the call has returned, in error or not. |
//! | F14 | An owned batch comes back from `poll_read`, or stays with the lane until that is dropped; forgetting it frees nothing that is still written. |
//! | F15 | The port's posts into the mailbox become visible in any order until a signal posted after them has been received; then all of them are there whole. Of two that overlap the later one stands. `signal` wakes a client that sleeps or is about to. |
//! | F16 | A lane that breaks leaves every other lane of both its ends working. |
//! | F17 | An end that waits sleeps: no cycles after the spin, no lost wake-up. |
//! | F18 | Reads, writes and polls on an open lane allocate nothing once warm. |
//!
//! F04 and F15 promise no order between two writes: devices under adaptive routing place them as they
//! arrive. An end that polls memory sees a later write first, so every record that is polled carries a
//! check of its own, and an end that finds a record which counts another one (a tail its frames, a
//! status its reject records) takes the other one as not arrived yet until it checks. Shared memory and
//! TCP keep the order of the calls, which nothing may rely on.

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

/// Every clause, for the conformance suite.
pub const CLAUSES: &[&str] = &[
    "F01", "F02", "F03", "F04", "F05", "F06", "F07", "F08", "F09", "F10", "F11", "F12", "F13",
    "F14", "F15", "F16", "F17", "F18",
];

/// Most bytes of a `write_signal`: what verbs send inline with the doorbell.
pub const SIGNAL_BYTES_MAX: usize = LINE_BYTES;

/// The members of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum TransportKind {
    /// Shared memory of one host.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA queue pairs. The name exists in every build; the code only with a feature.
    Verbs,
    /// The adversarial simulator.
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

/// What a peer may do with a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessFlags {
    /// Read: parameters, META.
    Read,
    /// Write: a session's own inbox.
    Write,
    /// Read and atomics: advisory counters.
    Atomic,
}

/// A place in a peer's registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Names the region.
    pub key: RegionKey,
    /// Address in the space that the key names.
    pub addr: u64,
}

/// One read. The first `head_len` bytes land in the landing's `head`, the rest in its `body`.
#[derive(Debug, Clone, Copy)]
pub struct ReadOp {
    /// From where; a multiple of 8.
    pub from: RemoteAddr,
    /// Bytes in all.
    pub len: u32,
    /// Of them, bytes for the head; a multiple of 8.
    pub head_len: u32,
    /// Where in the head.
    pub head_at: usize,
    /// Where in the body.
    pub body_at: usize,
    /// Starts only after all earlier reads completed (F03).
    pub fence: bool,
}

/// Where reads land.
#[derive(Debug)]
pub struct ReadDest<'a> {
    /// Headers and version words.
    pub head: &'a mut [u8],
    /// Payload.
    pub body: &'a mut [u8],
}

impl ReadOp {
    /// A read of `len` bytes into the beginning of the body, without a fence.
    ///
    /// # Errors
    /// [`LaneError::Usage`] for 4 GiB or more: a caller splits its reads before.
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

    /// Whether it fits its landing.
    pub const fn fits(&self, head: usize, body: usize) -> bool {
        let head_len = self.head_len as usize;
        let Some(body_len) = (self.len as usize).checked_sub(head_len) else {
            return false;
        };
        matches!(self.head_at.checked_add(head_len), Some(end) if end <= head)
            && matches!(self.body_at.checked_add(body_len), Some(end) if end <= body)
    }
}

/// Reads with their own landing, for asynchronous use: it moves into the lane and comes back.
#[derive(Debug, Default)]
pub struct ReadBatch {
    /// The reads.
    pub ops: Vec<ReadOp>,
    /// Landing of the heads.
    pub head: Vec<u8>,
    /// Landing of the bodies.
    pub body: Vec<u8>,
    /// The caller's.
    pub tag: u64,
}

/// What went wrong on a lane.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The connection is gone; operations in flight are unknown (F10).
    #[error("{transport} lane to {peer} broke during {op}: {why}; it can be recovered")]
    Broken {
        /// Carried by.
        transport: TransportKind,
        /// The other end.
        peer: String,
        /// What was under way.
        op: &'static str,
        /// The system's or the peer's words.
        why: String,
    },
    /// The peer refused an access (F09).
    #[error(
        "{peer} refused {op} of {len} bytes at {addr:#x} with key {key:#010x}: {why}; \
         the client's view of the table is stale or it is out of bounds"
    )]
    Access {
        /// The other end.
        peer: String,
        /// What was refused.
        op: &'static str,
        /// Key presented.
        key: u32,
        /// Address.
        addr: u64,
        /// Bytes.
        len: u64,
        /// Which check failed.
        why: &'static str,
    },
    /// The deadline passed (F12).
    #[error("{op} on the {transport} lane to {peer} did not finish before its deadline")]
    Deadline {
        /// Carried by.
        transport: TransportKind,
        /// The other end.
        peer: String,
        /// What was waited for.
        op: &'static str,
    },
    /// A read was late (F12), and its carrier could let go of the answer: the lane goes on.
    #[error("{op} on the {transport} lane to {peer} did not finish before its deadline")]
    Late {
        /// Carried by.
        transport: TransportKind,
        /// The other end.
        peer: String,
        /// What was waited for.
        op: &'static str,
    },
    /// The call itself is wrong: a landing too short, a signal too long.
    #[error("{op} was called with {what}: a fault of the caller, nothing was sent")]
    Usage {
        /// The call.
        op: &'static str,
        /// What is wrong.
        what: &'static str,
    },
}

impl LaneError {
    /// Whether the lane can be used no more.
    pub const fn is_fatal(&self) -> bool {
        !matches!(self, Self::Usage { .. } | Self::Late { .. })
    }
}

/// A client thread's end. Not shared between threads; any error but `Usage` and `Late` is final for the
/// lane.
///
/// No method has a default: a wrapper that forwards only some of them would hide the fast paths of the
/// lane inside it.
pub trait ClientLane: Send {
    /// What carries it.
    fn transport(&self) -> TransportKind;

    /// The other end, for messages.
    fn peer(&self) -> &str;

    /// Reads all `ops` into borrowed memory and waits for them (F01-F03, F09, F12, F13). Batches
    /// posted earlier make progress meanwhile. Cost: shm a copy; tcp one round trip for all.
    ///
    /// # Errors
    /// [`LaneError`], at the deadline [`LaneError::Late`] or [`LaneError::Deadline`]; what `ops` name of the landing is then unspecified, the rest untouched.
    fn read(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        deadline: Deadline,
    ) -> Result<(), LaneError>;

    /// As [`ClientLane::read`], offering what comes to `taker` before it lands, where it comes whole into memory
    /// of the lane.
    ///
    /// # Errors
    /// As [`ClientLane::read`].
    fn read_unpack(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        taker: &mut dyn Unpack,
        deadline: Deadline,
    ) -> Result<(), LaneError>;

    /// Posts reads into owned memory (F14); they come back, in any order, from
    /// [`ClientLane::poll_read`]. Nothing is sent before [`ClientLane::flush`] or [`ClientLane::poll`].
    ///
    /// # Errors
    /// [`LaneError`]; the batch stays with the lane.
    fn submit_read(&mut self, batch: ReadBatch) -> Result<(), LaneError>;

    /// A finished batch, if there is one.
    fn poll_read(&mut self) -> Option<ReadBatch>;

    /// Waits for the batch `tag`, landing its bodies in `body` where they have not landed yet: all
    /// of them are there afterwards (F13), the heads in the batch that comes back, but for those of
    /// reads that `taker` took. `ops` are its reads with their places in `body`. `None` where reads
    /// land in no other memory than was posted, for a batch that is not the oldest under way, and at
    /// the deadline: then the batch is under way as before, what was taken was copied from its places
    /// in `body` to those in the batch, and `body` is unspecified.
    ///
    /// # Errors
    /// [`LaneError`].
    fn wait_read(
        &mut self,
        tag: u64,
        ops: &[ReadOp],
        body: &mut [u8],
        taker: Option<&mut dyn Unpack>,
        deadline: Deadline,
    ) -> Result<Option<ReadBatch>, LaneError>;

    /// Writes into the peer's memory (F04, F07).
    ///
    /// # Errors
    /// [`LaneError`].
    fn write(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError>;

    /// Writes at most [`SIGNAL_BYTES_MAX`] bytes and wakes the owner (F06); flushes.
    ///
    /// # Errors
    /// [`LaneError`].
    fn write_signal(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError>;

    /// Does a [`ClientLane::write_signal`] and behind it adds `add` to `counter` (F05, F08). Nobody waits for
    /// that: if the lane breaks later, whether it was done is unknown, as for the write. Cost above the
    /// signal: an atomic, on verbs in the same doorbell, on tcp in the same packet.
    ///
    /// # Errors
    /// [`LaneError`].
    fn write_signal_count(
        &mut self,
        to: RemoteAddr,
        bytes: &[u8],
        counter: RemoteAddr,
        add: u64,
    ) -> Result<(), LaneError>;

    /// Adds to a counter and returns what it was (F05, F08).
    ///
    /// # Errors
    /// [`LaneError`]; whether it was done is then unknown.
    fn fetch_add(&mut self, at: RemoteAddr, add: u64, deadline: Deadline)
    -> Result<u64, LaneError>;

    /// Stores `new` in a counter if it is `expect`; returns what it was (F05, F08).
    ///
    /// # Errors
    /// [`LaneError`]; whether it was done is then unknown.
    fn compare_swap(
        &mut self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
        deadline: Deadline,
    ) -> Result<u64, LaneError>;

    /// Hands over to the carrier what was posted.
    ///
    /// # Errors
    /// [`LaneError`].
    fn flush(&mut self) -> Result<(), LaneError>;

    /// Hands over like [`ClientLane::flush`]; or soon, if there are answers that this thread has yet to come
    /// for: with what it posts next, at the latest when it waits. For who posts one batch for each
    /// that it finishes: a carrier may need one system call for many of them.
    ///
    /// # Errors
    /// [`LaneError`].
    fn flush_soon(&mut self) -> Result<(), LaneError>;

    /// Takes in what has arrived; never blocks. True if anything moved. On shm nothing needs to
    /// move: the mailbox is simply there, and the answer is false.
    ///
    /// # Errors
    /// [`LaneError`].
    fn poll(&mut self) -> Result<bool, LaneError>;

    /// The memory that the port writes.
    fn mailbox(&self) -> &Mailbox;

    /// The server's public memory, where this thread can load from it itself: unordered and torn as
    /// reads are (F02), with an Acquire fence where a read would have one (F03). `None` where reads
    /// travel, and on a lane that failed: then [`ClientLane::read`] says why (F10).
    fn mapping(&self) -> Option<Mapping>;
}

/// [`ClientLane::write_signal_count`] of a lane whose atomic is done when its call returns: a signal, then
/// an atomic.
///
/// # Errors
/// [`LaneError`].
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

/// An applier's end.
pub trait ServerLane: Send {
    /// The other end, for messages.
    fn peer(&self) -> &str;

    /// Executes what the client asked for and what has arrived, as a NIC would: bounded work, never
    /// blocks. True if anything moved. Memory is checked against `exports` and `inbox` (F09).
    ///
    /// # Errors
    /// [`LaneError`]: the lane is broken and the port is to be destroyed.
    fn poll(&mut self, exports: &mut RegionTableView, inbox: &Inbox) -> Result<bool, LaneError>;

    /// Writes into the client's mailbox (F15). May be kept until [`ServerLane::signal`].
    ///
    /// # Errors
    /// [`LaneError`].
    fn post(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneError>;

    /// Hands over what was posted and wakes the client if it sleeps (F15).
    ///
    /// # Errors
    /// [`LaneError`].
    fn signal(&mut self) -> Result<(), LaneError>;

    /// How soon it is to be polled although nobody wakes its thread; nothing if that may wait. For
    /// what the port has under way, and whose end wakes nobody.
    fn poll_hint(&self) -> Option<Duration>;

    /// Ends the lane: when this returns, nothing of it lands any more (F11).
    fn destroy(&mut self);
}

/// Client memory that the port of one lane writes; laid out as `layout::session` says.
#[derive(Debug, Clone)]
pub struct Mailbox {
    region: Arc<Region>,
    base: usize,
    len: usize,
}

impl Mailbox {
    /// A window of a region.
    ///
    /// # Errors
    /// [`MemError::Bounds`] when it is not inside.
    pub fn new(region: Arc<Region>, base: usize, len: usize) -> Result<Self, MemError> {
        region.check(base, len)?;
        Ok(Self { region, base, len })
    }

    /// A line of it, possibly torn; what was written before it is visible if it proves itself.
    ///
    /// # Panics
    /// When `at` is past the end: offsets come from `layout::session`.
    #[inline]
    pub fn line(&self, at: usize) -> Line {
        let line = self.words(at, LINE_BYTES).line(0);
        // SYNC: publish. Pairs with the Release fence in `mem::publish::publish`.
        fence(Ordering::Acquire);
        line
    }

    /// A window of it.
    ///
    /// # Panics
    /// When the window is not inside: offsets come from `layout::session`.
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

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory and where it begins, for the transport that receives into it.
    pub const fn region(&self) -> (&Arc<Region>, usize) {
        (&self.region, self.base)
    }
}

/// Server memory that the client of one lane writes: tail cell and ring.
#[derive(Debug, Clone)]
pub struct Inbox {
    region: Arc<Region>,
    base: usize,
    ring: RingGeometry,
    salt: u64,
}

impl Inbox {
    /// A window of a region; `salt` is the session's nonce.
    ///
    /// # Errors
    /// [`MemError::Bounds`] when it is not inside.
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

    /// The ring's size.
    pub const fn ring(&self) -> RingGeometry {
        self.ring
    }

    /// The whole window, for the transport that executes the client's writes.
    ///
    /// # Panics
    /// Never: it is inside by construction.
    pub fn window(&self) -> WordsMut<'_> {
        match self
            .region
            .words_mut(self.base, inbox_bytes(self.ring.bytes() as usize))
        {
            Ok(words) => words,
            Err(e) => unreachable!("inside by construction: {e}"),
        }
    }

    /// The memory and where it begins, for the transport that receives into it.
    pub const fn region(&self) -> (&Arc<Region>, usize) {
        (&self.region, self.base)
    }

    /// The client's tail, if the cell proves itself; all frames below it are then visible.
    #[inline]
    pub fn tail(&self) -> Option<u64> {
        let cell = publish::cell(self.window().as_read(), INBOX_TAIL_AT);
        CheckedU64(cell).value(self.salt)
    }

    /// Sets the tail cell: at creation to 0, after recovery to what was consumed.
    pub fn reset_tail(&self, tail: u64) {
        let [v, chk] = CheckedU64::new(tail, self.salt).0;
        let w = self.window();
        w.store(INBOX_TAIL_AT, v);
        w.store_release(INBOX_TAIL_AT + 8, chk);
    }

    /// The frame header at a monotonic position.
    pub fn header(&self, position: u64) -> Line {
        self.window()
            .as_read()
            .line(INBOX_RING_AT + self.ring.offset(position) as usize)
    }

    /// Bytes of a frame at a monotonic position plus `skip`; they must not cross the wrap point.
    pub fn payload(&self, position: u64, skip: usize, len: usize) -> Words<'_> {
        let at = INBOX_RING_AT + self.ring.offset(position) as usize + skip;
        match self.region.words(self.base + at, len) {
            Ok(words) => words,
            Err(_) => Words::new(&[]),
        }
    }
}

pub use crate::region_table::{
    AccessDenied, ExportError, INBOX_KEY, Mapped, ReadChecks, RegionTable, RegionTableView,
    RegisteredRegion, Registrar, RegistrarError,
};

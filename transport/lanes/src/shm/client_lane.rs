//! The client's end of a lane over shared memory: loads, stores and atomics on mapped memory.

use std::collections::VecDeque;

use crate::fabric::{
    ClientLane, INBOX_KEY, LaneError, Mailbox, Mapping, ReadBatch, ReadDest, ReadOp, RegionTable,
    RemoteAddr, SIGNAL_BYTES_MAX, TransportKind, Unpack, signal_then_count,
};
use crate::region_table::PUBLIC;
use crate::wake::Waker;
use tidewater_protocol::layout::session::{INBOX_DOZE_AT, MAILBOX_CLOSED_AT};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::liveness::LivenessView;
use tidewater_runtime::mem::publish::publish;
use tidewater_runtime::mem::{Region, WordsMut, versioned};
use tidewater_runtime::parked_flag::must_wake;
use tidewater_runtime::sync::{Arc, Ordering, fence};

/// Number by which region keys, in their top 4 bits, name the server memory that contains the counters.
const COUNTERS: u8 = 1;

/// The client end of a shared-memory lane, made by [`super::attach`].
///
/// Every operation is complete when its call returns, so deadlines are not checked. A read checks its
/// key's memory number and check bits (those of the server's start), and that it stays inside that
/// memory. Clients do not learn the registered ranges on this transport: all of the memory is mapped and
/// none of it is secret.
#[derive(Debug)]
pub struct ShmClientLane {
    pub(super) peer: String,
    pub(super) key_check: u8,
    pub(super) public: Arc<Region>,
    pub(super) counters: Arc<Region>,
    pub(super) inbox: Arc<Region>,
    pub(super) inbox_at: usize,
    pub(super) inbox_bytes: usize,
    pub(super) mailbox: Mailbox,
    pub(super) applier_parked_flag_at: usize,
    pub(super) alive: LivenessView,
    pub(super) applier: Waker,
    pub(super) done: VecDeque<ReadBatch>,
    pub(super) broken: Option<String>,
}

/// A refused access: its key, address and length, and the reason. [`ShmClientLane::refuse`] turns it into
/// [`LaneError::Access`].
struct Refused {
    key: u32,
    addr: u64,
    len: u64,
    why: &'static str,
}

impl ShmClientLane {
    /// Breaks the lane: for the caller to use when the control connection reports that the server is
    /// gone. Later operations fail with [`LaneError::Broken`] and the cause `why`. If the lane is broken
    /// already, the first cause stays.
    pub fn mark_broken(&mut self, why: &str) {
        self.broken.get_or_insert_with(|| why.to_owned());
    }

    /// Reopens the lane on the same memory. The caller does so once the server has recovered the lane and
    /// made its new end. Finished batches that were not collected are dropped. Attaching again with the
    /// session's numbers and descriptors has the same effect.
    #[must_use]
    pub fn recovered(self) -> Self {
        Self {
            done: VecDeque::new(),
            broken: None,
            ..self
        }
    }

    /// Returns the region and byte offset of this client thread's parked flag, by which the server lane
    /// decides whether to wake it. The caller passes both to [`crate::wake::OsParker::add_parked_flag`].
    pub fn parked_flag(&self) -> (Arc<Region>, usize) {
        (Arc::clone(&self.inbox), self.inbox_at + INBOX_DOZE_AT)
    }

    /// Checks that the lane is open, at the start of operation `op`. Fails with [`LaneError::Broken`] if
    /// the lane broke, the server closed it, or the applier has ended (F10). Cost: a load of a line that
    /// no thread writes, and one of the line with the applier's parked flag.
    #[inline]
    fn open(&mut self, op: &'static str) -> Result<(), LaneError> {
        let closed = self.is_closed();
        if self.broken.is_none() && !closed && !self.alive.has_ended() {
            return Ok(());
        }
        Err(self.closed(op))
    }

    #[inline]
    fn is_closed(&self) -> bool {
        self.mailbox.words(MAILBOX_CLOSED_AT, 8).load(0) != 0
    }

    #[cold]
    fn closed(&mut self, op: &'static str) -> LaneError {
        let why = match self.is_closed() {
            true => "the server has closed the lane",
            false => "the server's applier has ended: its process was killed, or has crashed",
        };
        let why = self.broken.get_or_insert_with(|| why.to_owned());
        LaneError::Broken {
            transport: TransportKind::Shm,
            peer: self.peer.clone(),
            op,
            why: why.clone(),
        }
    }

    /// Turns a refused access of operation `op` into [`LaneError::Access`], and breaks the lane for good
    /// (F09).
    #[cold]
    fn refuse(&mut self, op: &'static str, refused: Refused) -> LaneError {
        let Refused {
            key,
            addr,
            len,
            why,
        } = refused;
        let peer = self.peer.clone();
        let error = LaneError::Access {
            peer,
            op,
            key,
            addr,
            len,
            why,
        };
        self.broken.get_or_insert_with(|| error.to_string());
        error
    }

    /// Returns the mapped server memory (public or counters) that a region key belongs to. The error is
    /// the reason in words: the key of the inbox, no such memory, or check bits of another start of the
    /// server.
    #[inline]
    fn memory(&self, at: RemoteAddr) -> Result<&Region, &'static str> {
        if at.key == INBOX_KEY {
            return Err("no right to do that there");
        }
        let region = match RegionTable::memory_of(at.key) {
            PUBLIC => &self.public,
            COUNTERS => &self.counters,
            _ => return Err("unknown key"),
        };
        if RegionTable::check_of(at.key) != self.key_check {
            return Err("key of another start of this server");
        }
        Ok(region)
    }

    /// Copies the data of all reads from the mapped memory to `into`, in order. Stops at the first
    /// refused access; earlier reads are then placed. The caller has checked that all fit `into`.
    fn copy(&self, ops: &[ReadOp], into: &mut ReadDest<'_>) -> Result<(), Refused> {
        for op in ops {
            let (head_len, body_len) = (op.head_len as usize, (op.len - op.head_len) as usize);
            let words = self.memory(op.from).and_then(|region| {
                let at = place(op.from.addr, op.len as usize, region.len())?;
                region.words(at, op.len as usize).map_err(|_| OUTSIDE)
            });
            let words = words.map_err(|why| refused(op.from, u64::from(op.len), why))?;
            let head = &mut into.head[op.head_at..op.head_at + head_len];
            let body = &mut into.body[op.body_at..op.body_at + body_len];
            versioned::copy_out(words, op.fence, head, body);
        }
        Ok(())
    }

    fn run(&mut self, ops: &[ReadOp], mut into: ReadDest<'_>) -> Result<(), LaneError> {
        const OP: &str = "read";
        self.open(OP)?;
        let (head, body) = (into.head.len(), into.body.len());
        for op in ops {
            if !op.fits(head, body) {
                return Err(usage(OP, "a destination too short for its reads"));
            }
            if !op.head_len.is_multiple_of(8) {
                return Err(usage(OP, "a head that is not whole words"));
            }
        }
        self.copy(ops, &mut into)
            .map_err(|refused| self.refuse(OP, refused))
    }

    fn store(&mut self, op: &'static str, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        self.open(op)?;
        let window = if to.key == INBOX_KEY {
            place(to.addr, bytes.len(), self.inbox_bytes).and_then(|at| {
                let window = self.inbox.words_mut(self.inbox_at + at, bytes.len());
                window.map_err(|_| OUTSIDE)
            })
        } else {
            Err("no right to do that there")
        };
        match window {
            Ok(window) => publish(window, 0, bytes),
            Err(why) => return Err(self.refuse(op, refused(to, bytes.len() as u64, why))),
        }
        Ok(())
    }

    /// Returns the 64-bit word of a counter at an address that is checked, or the reason in words why the
    /// access is refused. All atomics of this transport are processor atomics on the same memory (F08).
    fn counter(&self, at: RemoteAddr) -> Result<WordsMut<'_>, &'static str> {
        let region = self.memory(at)?;
        if RegionTable::memory_of(at.key) != COUNTERS {
            return Err("no right to do that there");
        }
        let at = place(at.addr, 8, region.len())?;
        region.words_mut(at, 8).map_err(|_| OUTSIDE)
    }

    fn atomic(
        &mut self,
        op: &'static str,
        at: RemoteAddr,
        act: impl FnOnce(WordsMut<'_>) -> u64,
    ) -> Result<u64, LaneError> {
        self.open(op)?;
        // F05, also for a counter that the atomic only reads: a full fence orders it after earlier stores.
        fence(Ordering::SeqCst);
        match self.counter(at) {
            Ok(word) => Ok(act(word)),
            Err(why) => Err(self.refuse(op, refused(at, 8, why))),
        }
    }
}

const OUTSIDE: &str = "outside the region";

/// Returns the byte offset of `[addr, addr + len)` in a memory of `bytes` bytes, which is `addr`. The
/// error is the reason in words: outside or misaligned. `len` is rounded up to whole 64-bit words.
#[inline]
fn place(addr: u64, len: usize, bytes: usize) -> Result<usize, &'static str> {
    let at = usize::try_from(addr).map_err(|_| OUTSIDE)?;
    let end = len
        .checked_next_multiple_of(8)
        .and_then(|len| at.checked_add(len));
    if end.is_none_or(|end| end > bytes) {
        return Err(OUTSIDE);
    }
    if at.is_multiple_of(8) {
        Ok(at)
    } else {
        Err("misaligned")
    }
}

const fn refused(at: RemoteAddr, len: u64, why: &'static str) -> Refused {
    Refused {
        key: at.key.0,
        addr: at.addr,
        len,
        why,
    }
}

const fn usage(op: &'static str, what: &'static str) -> LaneError {
    LaneError::Usage { op, what }
}

impl ClientLane for ShmClientLane {
    fn transport(&self) -> TransportKind {
        TransportKind::Shm
    }

    fn peer(&self) -> &str {
        &self.peer
    }

    fn read(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        _deadline: Deadline,
    ) -> Result<(), LaneError> {
        self.run(ops, into)
    }

    /// Reads without ever offering data to `unpacker`, which is only reset: no data passes through
    /// buffers of the lane.
    fn read_unpack(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        unpacker: &mut dyn Unpack,
        _deadline: Deadline,
    ) -> Result<(), LaneError> {
        unpacker.restart();
        self.run(ops, into)
    }

    /// Copies all reads of the batch before it returns, and puts the batch in the queue of `poll_read`:
    /// no other agent could do the copy. A batch that fails is dropped, as no agent writes it any more
    /// (F14).
    fn submit_read(&mut self, mut batch: ReadBatch) -> Result<(), LaneError> {
        let ReadBatch {
            ops, head, body, ..
        } = &mut batch;
        self.run(ops, ReadDest { head, body })?;
        self.done.push_back(batch);
        Ok(())
    }

    fn poll_read(&mut self) -> Option<ReadBatch> {
        self.done.pop_front()
    }

    /// Returns `None`: batches are complete when they are submitted, so the caller gets them from
    /// `poll_read`. Fails if the lane is closed.
    fn wait_read(
        &mut self,
        _tag: u64,
        _ops: &[ReadOp],
        _body: &mut [u8],
        _unpacker: Option<&mut dyn Unpack>,
        _deadline: Deadline,
    ) -> Result<Option<ReadBatch>, LaneError> {
        self.open("wait_read").map(|()| None)
    }

    fn write(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        self.store("write", to, bytes)
    }

    fn write_signal(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        const OP: &str = "write_signal";
        if bytes.len() > SIGNAL_BYTES_MAX {
            return Err(usage(OP, "more bytes than a signal carries"));
        }
        self.store(OP, to, bytes)?;
        // F06. The offset of the word was checked when the lane was attached.
        if let Ok(parked_flag) = self.public.words(self.applier_parked_flag_at, 8)
            && must_wake(parked_flag)
        {
            self.applier.wake();
        }
        Ok(())
    }

    fn write_signal_count(
        &mut self,
        to: RemoteAddr,
        bytes: &[u8],
        counter: RemoteAddr,
        add: u64,
    ) -> Result<(), LaneError> {
        signal_then_count(self, to, bytes, counter, add)
    }

    fn fetch_add(
        &mut self,
        at: RemoteAddr,
        add: u64,
        _deadline: Deadline,
    ) -> Result<u64, LaneError> {
        self.atomic("fetch_add", at, |word| word.fetch_add(0, add))
    }

    fn compare_swap(
        &mut self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
        _deadline: Deadline,
    ) -> Result<u64, LaneError> {
        self.atomic("compare_swap", at, |word| word.compare_swap(0, expect, new))
    }

    fn has_atomics(&self) -> bool {
        true
    }

    fn flush(&mut self) -> Result<(), LaneError> {
        self.open("flush")
    }

    fn flush_soon(&mut self) -> Result<(), LaneError> {
        self.flush()
    }

    fn poll(&mut self) -> Result<bool, LaneError> {
        self.open("poll").map(|()| false)
    }

    fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    fn mapping(&self) -> Option<Mapping> {
        let usable = self.broken.is_none();
        usable.then(|| Mapping::new(self.alive.clone(), &self.mailbox, self.key_check))
    }
}

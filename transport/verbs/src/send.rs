//! The pair that pushes, at either end: WRITEs, signals and atomics, and the other end's signals.
//!
//! Written bytes are copied (F07): short writes into the request itself, longer ones into registered
//! memory that is allocated first in first out. A queue's room and that memory return by completions
//! only. The last request of each batch makes one, and a batch has at most [`VERBS_CHAIN_REQUESTS`]. So
//! there is always one to come when either is used up (see `in_flight`, `ring_allocator`). Requests of
//! one pair start in order. The completion of a signal follows the data of all before it. That is F04,
//! F05 and F15.
//!
//! Nothing here waits: a request without room is refused, and its caller waits or keeps it.

use std::time::Instant;

use super::counters::Counters;
use super::credit::Credits;
use super::error::VerbsError;
use super::in_flight::InFlight;
use super::lane_failure::{LaneFailure, Request};
use super::memory::{Access, MemoryRegion, ProtectionDomain, Target};
use super::notifier::Queue;
use super::pair::{QueuePair, ReadyToSend};
use super::queue::{Completion, Operation};
use super::ring_allocator::RingAllocator;
use super::send_batch::{Flags, SendBatch};
use super::stall_detector::StallDetector;
use tidewater_lanes::fabric::SIGNAL_BYTES_MAX;
use tidewater_protocol::limits::{VERBS_CHAIN_REQUESTS, VERBS_SENDS};
use tidewater_protocol::scale::VERBS_COPIES_AT;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;

/// Number of all receives, which need no distinction.
pub(super) const RECEIVE: u64 = u64::MAX;
/// Completions polled at once.
const BATCH: usize = 8;
/// Offset of an atomic's old value.
const OLD_AT: usize = 0;
/// Offset of the old values that no call reads.
const UNHEARD_AT: usize = 8;
/// Offset of the first copy of a write.
const COPIES_AT: usize = VERBS_COPIES_AT;

/// Target of a request without payload: its device does not read it.
const NOWHERE: Target = Target {
    rkey: 0,
    address: 0,
};

/// Registered memory of a [`Sender`]: the old values of its atomics, and room for copies.
#[derive(Debug)]
pub(super) struct Copies {
    registered: Arc<MemoryRegion>,
    region: Arc<Region>,
    space: RingAllocator,
}

impl Copies {
    /// Allocates and registers it, with room for `bytes` bytes of copies.
    pub(super) fn new(pd: &Arc<ProtectionDomain>, bytes: usize) -> Result<Self, VerbsError> {
        let (region, registered) = memory(pd, COPIES_AT + bytes, Access::LOCAL_WRITE)?;
        Ok(Self {
            registered,
            region,
            space: RingAllocator::new(bytes),
        })
    }
}

/// Allocates memory of at least `bytes` bytes, completely registered, with addresses from 0.
pub(super) fn memory(
    pd: &Arc<ProtectionDomain>,
    bytes: usize,
    access: Access,
) -> Result<(Arc<Region>, Arc<MemoryRegion>), VerbsError> {
    let none = |_| pd.device().failed("mmap", rustix::io::Errno::NOMEM);
    let region = Arc::new(Region::anonymous(bytes).map_err(none)?);
    let registered = MemoryRegion::register(pd, &region, 0..bytes, 0, access)?;
    Ok((region, registered))
}

/// A request that is not known to be complete.
#[derive(Debug)]
struct Sent {
    request: Request,
    /// Copies up to here are free after its completion.
    end: u64,
}

/// Pushing pair of one end.
///
/// Fields are dropped in their order: the pair before the memory that it reads.
#[derive(Debug)]
pub(super) struct Sender {
    pair: QueuePair<ReadyToSend>,
    chain: SendBatch,
    queue: Queue,
    in_flight: InFlight<Sent>,
    stall: StallDetector,
    credits: Credits,
    /// Whether the other end polls the memory that signals write, and needs none.
    polled: bool,
    /// Handled signals with receives that are not posted again yet.
    taken: u32,
    /// Bytes in the unposted batch.
    queued: usize,
    /// There was no room: a completion has to wake the thread.
    full: bool,
    copies: Copies,
    counters: Counters,
}

impl Sender {
    /// Puts the pair into the error state: it sends and takes nothing more. Cost: a command of the device.
    pub(super) fn break_off(&self) -> Result<(), VerbsError> {
        self.pair.into_error()
    }

    /// The pair that it posts to.
    pub(super) const fn pair(&self) -> &QueuePair<ReadyToSend> {
        &self.pair
    }

    /// Takes a connected pair with send completions in `queue`.
    pub(super) fn new(
        pair: QueuePair<ReadyToSend>,
        queue: Queue,
        copies: Copies,
        credits: Credits,
    ) -> Self {
        let granted = pair.granted();
        let inline = (granted.inline_bytes as usize).min(SIGNAL_BYTES_MAX);
        Self {
            chain: SendBatch::new(VERBS_CHAIN_REQUESTS, 1, inline),
            // Limited by the requested size: completions of more might not fit their queue.
            in_flight: InFlight::new(VERBS_SENDS.min(granted.sends) as usize),
            stall: StallDetector::new(granted.retry),
            pair,
            queue,
            credits,
            polled: false,
            taken: 0,
            queued: 0,
            full: false,
            copies,
            counters: Counters::default(),
        }
    }

    /// Returns the counts so far.
    pub(super) const fn counters(&self) -> Counters {
        self.counters
    }

    /// Counts a wait for room or credit.
    pub(super) const fn stalled(&mut self) {
        self.counters.stalls += 1;
    }

    /// Returns the bytes in the batch that is not posted.
    pub(super) const fn queued_bytes(&self) -> usize {
        self.queued
    }

    /// From now on [`Self::signal`] only writes: the other end polls that memory and never sleeps.
    pub(super) const fn set_polled(&mut self) {
        self.polled = true;
    }

    /// Notes a signal that will be sent as soon as there is credit.
    pub(super) const fn owe(&mut self) {
        self.credits.owe();
    }

    /// Writes at most `VERBS_WRITE_BYTES`; false when there is no room.
    pub(super) fn write(
        &mut self,
        request: Request,
        to: Target,
        bytes: &[u8],
    ) -> Result<bool, LaneFailure> {
        if !self.has_room(1)? {
            return Ok(false);
        }
        let number = self.in_flight.next();
        if bytes.len() <= self.chain.inline_bytes() {
            self.chain.write_inline(number, bytes, to, Flags::NONE)?;
        } else {
            let Some(at) = self.copies.space.take(bytes.len()) else {
                self.set_full(true);
                return Ok(false);
            };
            let at = COPIES_AT + at;
            let copy = self.copies.region.words_mut(at, bytes.len());
            let copy =
                copy.map_err(|_| LaneFailure::Because("its lane has lost count of its memory"))?;
            copy.copy_in(0, bytes);
            let from = self.copies.registered.sge(at, bytes.len())?;
            self.chain.write(number, &[from], to, Flags::NONE)?;
        }
        self.counters.writes += 1;
        self.queued += bytes.len();
        self.push(request);
        Ok(true)
    }

    /// Writes at most `SIGNAL_BYTES_MAX` bytes, or none, and wakes the other end; false when there is
    /// no room, or no credit. With inline bytes granted it is one request.
    ///
    /// Where the other end polls, it is a plain write and takes no credit. It has immediate data only
    /// when that returns credit, which would otherwise cost a request of its own.
    pub(super) fn signal(
        &mut self,
        request: Request,
        to: Target,
        bytes: &[u8],
    ) -> Result<bool, LaneFailure> {
        if self.polled && !(self.credits.is_worth_announcing() && self.credits.may_signal()) {
            return self.write(request, to, bytes);
        }
        if !self.credits.may_signal() || !self.has_room(2)? {
            return Ok(false);
        }
        let inline = bytes.len() <= self.chain.inline_bytes();
        if !inline && !self.write(request, to, bytes)? {
            return Ok(false);
        }
        let immediate = self.credits.signal();
        let rest = if inline { bytes } else { &[] };
        self.counters.writes += u64::from(!rest.is_empty());
        self.immediate(request, to, rest, immediate)?;
        Ok(true)
    }

    /// Like [`Self::signal`], and adds to a counter behind it: one more request in the same batch. The
    /// counter's old value is written to this end's memory, where no code reads it.
    pub(super) fn signal_count(
        &mut self,
        request: Request,
        to: Target,
        bytes: &[u8],
        counted: Request,
        counter: Target,
        add: u64,
    ) -> Result<bool, LaneFailure> {
        // Room for all of it, so that the batch is not split.
        if !self.has_room(3)? || !self.signal(request, to, bytes)? {
            return Ok(false);
        }
        let number = self.in_flight.next();
        let old = self.copies.registered.sge(UNHEARD_AT, 8)?;
        self.chain
            .fetch_add(number, old, counter, add, Flags::NONE)?;
        self.counters.atomics += 1;
        self.push(counted);
        Ok(true)
    }

    /// Adds to a counter, or swaps it if `swap` holds the expected value. Returns the number of the
    /// request, or `None` when there is no room.
    pub(super) fn atomic(
        &mut self,
        request: Request,
        at: Target,
        operand: u64,
        expected: Option<u64>,
    ) -> Result<Option<u64>, LaneFailure> {
        if !self.has_room(1)? {
            return Ok(None);
        }
        let number = self.in_flight.next();
        let old = self.copies.registered.sge(OLD_AT, 8)?;
        match expected {
            None => self
                .chain
                .fetch_add(number, old, at, operand, Flags::SIGNAL)?,
            Some(expected) => {
                self.chain
                    .compare_swap(number, old, at, expected, operand, Flags::SIGNAL)?;
            }
        }
        self.counters.atomics += 1;
        self.push(request);
        Ok(Some(number))
    }

    /// Returns the old value of the atomic `number`, once it is complete.
    pub(super) fn old_value(&self, number: u64) -> Option<u64> {
        if self.in_flight.get(number).is_some() {
            return None;
        }
        let word = self.copies.region.words(OLD_AT, 8).ok()?;
        Some(word.load_acquire(0))
    }

    /// Sends the first signal of a client: its pairs are connected, and the server may send.
    pub(super) fn greet(&mut self) -> Result<(), LaneFailure> {
        let immediate = self.credits.signal();
        self.give(immediate)
    }

    /// Whether the device has no request that it could report as failed.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Call this with `now` when a poll has found no completion.
    pub(super) fn silent(&mut self, now: Instant) -> Result<(), LaneFailure> {
        self.stall.look(&self.in_flight, now, |sent| sent.request)
    }

    /// Probes the peer by an empty WRITE: it touches no memory there, needs no key, takes no receive
    /// and wakes no thread. The peer's device answers; one that does not, or has no such pair any more,
    /// makes it fail. Only for an idle sender, which has room for it.
    pub(super) fn probe(&mut self) -> Result<(), LaneFailure> {
        let number = self.in_flight.next();
        self.chain.write_inline(number, &[], NOWHERE, Flags::NONE)?;
        self.counters.probes += 1;
        self.push(Request::PROBE);
        self.post()
    }

    /// Posts the batch: one doorbell.
    pub(super) fn post(&mut self) -> Result<(), LaneFailure> {
        if self.chain.is_empty() {
            return Ok(());
        }
        self.chain.signal_last();
        self.queued = 0;
        self.counters.doorbells += 1;
        self.counters.requests += self.chain.len() as u64;
        self.chain.post(&mut self.pair)?;
        Ok(())
    }

    /// Handles completions and frees their room; whether there were any. Cost: nothing when no request
    /// is in flight.
    pub(super) fn poll(&mut self) -> Result<bool, LaneFailure> {
        if self.in_flight.is_empty() {
            return Ok(false);
        }
        let mut batch = [Completion::EMPTY; BATCH];
        let mut any = false;
        loop {
            let got = self.queue.poll(&mut batch)?;
            for completion in &batch[..got] {
                self.over(completion)?;
            }
            any |= got > 0;
            if got < batch.len() {
                return Ok(any);
            }
        }
    }

    fn over(&mut self, completion: &Completion) -> Result<(), LaneFailure> {
        if !completion.status.is_success() {
            let sent = self.in_flight.get(completion.wr_id);
            return Err(LaneFailure::Ended(
                sent.map(|s| s.request),
                completion.status,
            ));
        }
        self.counters.completions += 1;
        for sent in self.in_flight.retire(completion.wr_id) {
            self.copies.space.free_to(sent.end);
        }
        Ok(())
    }

    /// Handles a signal of the other end: the completion of a receive.
    pub(super) fn heard(&mut self, completion: &Completion) -> Result<(), LaneFailure> {
        if !completion.status.is_success() {
            // The pair is in error and flushes its receives. A failed send may have the reason.
            self.poll()?;
            return Err(LaneFailure::Ended(None, completion.status));
        }
        let (Operation::Receive, Some(immediate)) = (completion.operation, completion.imm) else {
            return Err(LaneFailure::Because("it sent something that is no signal"));
        };
        let sane = self.credits.hear(immediate);
        sane.map_err(|_| LaneFailure::Because("it counts more signals than it was sent"))?;
        self.counters.received += 1;
        self.taken += 1;
        Ok(())
    }

    /// Call this after all arrived signals are handled: posts receives again, and signals if that is
    /// due. With `waiting` the caller has a request that found no room.
    ///
    /// Due or waiting requests continue when a completion makes room, which has to wake the thread.
    /// There is one to come: the batch holds a quarter of the queue at most and the rest is posted. A
    /// caller without memory for a copy posts the batch. The queue of sends wakes from the refusal on,
    /// thus before the thread arms its queues, until all have found room. Otherwise it does not,
    /// because the completion of each push would wake for nothing.
    pub(super) fn settle(&mut self, waiting: bool) -> Result<(), LaneFailure> {
        if self.taken > 0 {
            self.pair.post_receives(RECEIVE, self.taken as usize)?;
            // Only now may they be announced.
            self.credits.repost(self.taken);
            self.taken = 0;
        }
        let room = self.has_room(1)?;
        if room && let Some(immediate) = self.credits.due() {
            self.give(immediate)?;
        }
        self.set_full(!room || waiting);
        Ok(())
    }

    /// Sets whether completions of sends wake the thread.
    fn set_full(&mut self, full: bool) {
        if self.full != full {
            self.full = full;
            self.queue.set_wakes(full);
        }
    }

    /// Sends an empty signal that has its credit.
    fn give(&mut self, immediate: u32) -> Result<(), LaneFailure> {
        self.counters.empty_signals += 1;
        self.immediate(Request::EMPTY_SIGNAL, NOWHERE, &[], immediate)?;
        self.post()
    }

    fn immediate(
        &mut self,
        request: Request,
        to: Target,
        bytes: &[u8],
        immediate: u32,
    ) -> Result<(), LaneFailure> {
        let number = self.in_flight.next();
        self.chain
            .write_imm(number, bytes, to, immediate, Flags::NONE)?;
        self.counters.signals += 1;
        self.push(request);
        Ok(())
    }

    /// Whether the send queue accepts `requests` more; makes room for them in the batch.
    fn has_room(&mut self, requests: usize) -> Result<bool, LaneFailure> {
        if self.chain.capacity() - self.chain.len() < requests {
            self.post()?;
        }
        let room = self.in_flight.room() >= requests;
        if !room {
            self.set_full(true);
        }
        Ok(room)
    }

    /// Notes the request that was queued just now.
    fn push(&mut self, request: Request) {
        let end = self.copies.space.end();
        self.in_flight.push(Sent { request, end });
    }
}

//! The pair that pushes, at either end: WRITEs, signals and atomics, and the other end's signals.
//!
//! What is written is copied (F07): short writes into the request itself, longer ones into registered
//! memory that is given out first in first out. A queue's room and that memory come back by
//! completions only; the last request of each chain makes one, and a chain has at most
//! [`VERBS_CHAIN_REQUESTS`], so there is always one to come when either is used up (see `flight`,
//! `space`). Requests of one pair start in order, and the completion of a signal follows the data of
//! all before it, which is F04, F05 and F15.
//!
//! Nothing here waits: what finds no room says so, and its caller waits or keeps it.

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
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;

/// Number of all receives: nothing distinguishes them.
pub(super) const RECEIVE: u64 = u64::MAX;
/// Completions that are taken out at once.
const BATCH: usize = 8;
/// Where the old value of an atomic lands.
const OLD_AT: usize = 0;
/// Where those land that nobody waits for.
const UNHEARD_AT: usize = 8;
/// Where the copies of writes begin.
const COPIES_AT: usize = 64;

/// Where a request goes that carries nothing: its device does not look.
const NOWHERE: Target = Target {
    rkey: 0,
    address: 0,
};

/// Registered memory of a [`Sender`]: the landing of its atomics, and room for copies.
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

/// New memory of at least `bytes` bytes, registered whole, whose addresses count from 0.
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

/// A request that is not known to be over.
#[derive(Debug)]
struct Sent {
    request: Request,
    /// Copies up to here are free when it is over.
    end: u64,
}

/// One end's pushing pair.
///
/// Fields are dropped in their order: the pair before the memory that it reads.
#[derive(Debug)]
pub(super) struct Sender {
    pair: QueuePair<ReadyToSend>,
    chain: SendBatch,
    queue: Queue,
    flight: InFlight<Sent>,
    silence: StallDetector,
    credits: Credits,
    /// The other end polls what signals write, and needs none.
    polled: bool,
    /// Signals taken in whose receives are not posted again yet.
    taken: u32,
    /// Bytes in the chain.
    queued: usize,
    /// There was no room: a completion has to wake the thread.
    full: bool,
    copies: Copies,
    counters: Counters,
}

impl Sender {
    /// Of a connected pair whose sends complete in `queue`.
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
            // Of what was asked for: completions of more might not fit their queue.
            flight: InFlight::new(VERBS_SENDS.min(granted.sends) as usize),
            silence: StallDetector::default(),
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

    /// What was counted so far.
    pub(super) const fn counters(&self) -> Counters {
        self.counters
    }

    /// A wait for room or credit.
    pub(super) const fn stalled(&mut self) {
        self.counters.stalls += 1;
    }

    /// Bytes in the chain that is not posted.
    pub(super) const fn queued_bytes(&self) -> usize {
        self.queued
    }

    /// From now on what [`Self::signal`] writes is written only: the other end polls that memory and
    /// never sleeps.
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
        let number = self.flight.next();
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

    /// Writes at most `SIGNAL_BYTES_MAX` bytes, or none, and wakes the other end; false when there
    /// is no room, or no credit. With inline bytes granted it is one request.
    ///
    /// Where the other end polls, it is a plain write and takes no credit; with immediate data only when
    /// that carries credit back, which would cost a request of its own otherwise.
    pub(super) fn signal(
        &mut self,
        request: Request,
        to: Target,
        bytes: &[u8],
    ) -> Result<bool, LaneFailure> {
        if self.polled && !(self.credits.is_worth_telling() && self.credits.may_signal()) {
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

    /// Like [`Self::signal`], and adds to a counter behind it: a request more in the same chain. What
    /// the word was lands in this end's memory, where nobody looks.
    pub(super) fn signal_count(
        &mut self,
        request: Request,
        to: Target,
        bytes: &[u8],
        (counted, counter, add): (Request, Target, u64),
    ) -> Result<bool, LaneFailure> {
        // Room for all of it, so that the chain is not cut in two.
        if !self.has_room(3)? || !self.signal(request, to, bytes)? {
            return Ok(false);
        }
        let number = self.flight.next();
        let old = self.copies.registered.sge(UNHEARD_AT, 8)?;
        self.chain
            .fetch_add(number, old, counter, add, Flags::NONE)?;
        self.counters.atomics += 1;
        self.push(counted);
        Ok(true)
    }

    /// Adds to a counter, or swaps it if `swap` says what is expected; the number of the request,
    /// or nothing when there is no room.
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
        let number = self.flight.next();
        let old = self.copies.registered.sge(OLD_AT, 8)?;
        match expected {
            None => self
                .chain
                .fetch_add(number, old, at, operand, Flags::SIGNAL)?,
            Some(expected) => {
                let operands = [expected, operand];
                self.chain
                    .compare_swap(number, old, at, operands, Flags::SIGNAL)?;
            }
        }
        self.counters.atomics += 1;
        self.push(request);
        Ok(Some(number))
    }

    /// The old value of the atomic `number`, once it is over.
    pub(super) fn old_value(&self, number: u64) -> Option<u64> {
        if self.flight.get(number).is_some() {
            return None;
        }
        let word = self.copies.region.words(OLD_AT, 8).ok()?;
        Some(word.load_acquire(0))
    }

    /// The first signal of a client: its pairs are connected, and the server may send.
    pub(super) fn greet(&mut self) -> Result<(), LaneFailure> {
        let immediate = self.credits.signal();
        self.give(immediate)
    }

    /// Whether its device knows of nothing that it could see fail.
    pub(super) fn is_idle(&self) -> bool {
        self.flight.is_empty()
    }

    /// To be told `now` when a look has found nothing over.
    pub(super) fn silent(&mut self, now: Instant) -> Result<(), LaneFailure> {
        self.silence.look(&self.flight, now, |sent| sent.request)
    }

    /// Asks whether the peer is there, by a WRITE of nothing: it touches no memory there, needs no
    /// key, takes no receive and wakes nobody. Its device answers; one that does not, or has no
    /// such pair any more, makes it fail. Only of a sender that is idle, which has room for it.
    pub(super) fn probe(&mut self) -> Result<(), LaneFailure> {
        let number = self.flight.next();
        self.chain.write_inline(number, &[], NOWHERE, Flags::NONE)?;
        self.counters.probes += 1;
        self.push(Request::PROBE);
        self.post()
    }

    /// Hands what is queued to the device: one doorbell.
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

    /// Takes in what is over, and gives its room back; whether anything is. Cost: nothing when
    /// nothing is under way.
    pub(super) fn poll(&mut self) -> Result<bool, LaneFailure> {
        if self.flight.is_empty() {
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
            let sent = self.flight.get(completion.wr_id);
            return Err(LaneFailure::Ended(
                sent.map(|s| s.request),
                completion.status,
            ));
        }
        self.counters.completions += 1;
        for sent in self.flight.retire(completion.wr_id) {
            self.copies.space.free_to(sent.end);
        }
        Ok(())
    }

    /// Takes in a signal of the other end: the completion of a receive.
    pub(super) fn heard(&mut self, completion: &Completion) -> Result<(), LaneFailure> {
        if !completion.status.is_success() {
            // The pair is in error and gives its receives back. Why, a failed send may say.
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

    /// After all that arrived was heard: posts receives again, and signals if that is due. With
    /// `waiting` its caller has something that found no room.
    ///
    /// What is due, or waits, goes on when a completion makes room, which has to wake the thread:
    /// there is one to come, since the chain holds a quarter of the queue at most and the rest is
    /// posted; and whoever finds no memory for a copy posts the chain. The queue of sends wakes from the refusal on, thus before the thread
    /// arms what wakes it, until all have found room; otherwise it does not, because the completion
    /// of each push would wake for nothing.
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

    /// Whether completions of sends are to wake the thread.
    fn set_full(&mut self, full: bool) {
        if self.full != full {
            self.full = full;
            self.queue.set_wakes(full);
        }
    }

    /// An empty signal that has its credit.
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
        let number = self.flight.next();
        self.chain
            .write_imm(number, bytes, to, immediate, Flags::NONE)?;
        self.counters.signals += 1;
        self.push(request);
        Ok(())
    }

    /// Whether the send queue takes `requests` more; makes room for them in the chain.
    fn has_room(&mut self, requests: usize) -> Result<bool, LaneFailure> {
        if self.chain.capacity() - self.chain.len() < requests {
            self.post()?;
        }
        let room = self.flight.room() >= requests;
        if !room {
            self.set_full(true);
        }
        Ok(room)
    }

    /// Notes the request that was queued just now.
    fn push(&mut self, request: Request) {
        let end = self.copies.space.end();
        self.flight.push(Sent { request, end });
    }
}

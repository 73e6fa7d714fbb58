//! The pairs that pull: reads in batches, over several pairs at once.
//!
//! A read arrives in registered memory of its pair. After its completion is polled, it is copied to the
//! caller's destination. So the device never accesses borrowed memory (F13), and no device writes to a
//! batch that is dropped with its lane (F14). READs of one pair end in order, so its memory is
//! allocated first in first out. Long reads are split. If a call's payload goes into registered memory
//! (see `scatter`), only the heads arrive so; the device writes the payload to its destination.

use std::collections::VecDeque;
use std::time::Instant;

use super::counters::Counters;
use super::device::DeviceLimits;
use super::error::VerbsError;
use super::in_flight::InFlight;
use super::keys::{Keys, UNKNOWN};
use super::lane_failure::{LaneFailure, Request};
use super::memory::{Access, MemoryRegion, ProtectionDomain, Sge, Target};
use super::pair::{QueuePair, ReadyToSend};
use super::plan::{Fence, Load, Next, Planner, Step};
use super::queue::Completion;
use super::ring_allocator::RingAllocator;
use super::scatter::Payload;
use super::send::memory;
use super::send_batch::{Flags, SendBatch};
use super::stall_detector::StallDetector;
use tidewater_lanes::fabric::{ReadBatch, ReadDest, ReadOp};
use tidewater_protocol::layout::directory::KEY_CELL_BYTES;
use tidewater_protocol::limits::{VERBS_CHAIN_REQUESTS, VERBS_SENDS, VERBS_STAGING_BYTES};
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;

/// Shift of the pair's number in a work request's number, above the request's.
const PAIR_SHIFT: u32 = 56;
/// Reads of a list that is kept on one pair because of a fence: two batches.
const FENCED_LIST: usize = 2 * VERBS_CHAIN_REQUESTS;
/// Pieces of a READ: the one in the pair's memory, and payload.
pub(super) const READ_ELEMENTS: usize = 2;
/// Batches for which there is room without allocating.
const BATCHES: usize = 64;

/// Registered memory of one pair, which its reads write.
#[derive(Debug)]
pub(super) struct StagingMemory {
    registered: Arc<MemoryRegion>,
    region: Arc<Region>,
    space: RingAllocator,
}

impl StagingMemory {
    /// Allocates and registers the memory.
    pub(super) fn new(pd: &Arc<ProtectionDomain>) -> Result<Self, VerbsError> {
        let access = Access::LOCAL_WRITE | Access::RELAXED_ORDERING;
        let (region, registered) = memory(pd, VERBS_STAGING_BYTES, access)?;
        Ok(Self {
            registered,
            region,
            space: RingAllocator::new(VERBS_STAGING_BYTES),
        })
    }
}

/// Owner of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The current call owns the piece.
    Caller,
    /// The batch with this index.
    Batch(usize),
    /// The lane itself: a cell of the key directory.
    Cell,
}

/// One READ, or part of a longer one.
#[derive(Debug, Clone, Copy)]
struct Piece {
    whose: Whose,
    request: Request,
    /// Index of the operation.
    op: usize,
    /// First byte within the operation.
    from: usize,
    len: usize,
    /// Where the device writes its payload; if `None`, all of it arrives in the pair's memory.
    payload: Option<Sge>,
    /// Offset of the rest in the pair's memory.
    at: usize,
    /// The pair's memory is free up to here after its completion.
    end: u64,
}

/// Progress of a list of reads.
#[derive(Debug, Default)]
struct Progress {
    /// Operations that are completely submitted.
    op: usize,
    /// Submitted bytes of the next operation.
    from: usize,
    /// Pieces that have not arrived.
    out: usize,
}

impl Progress {
    const fn is_asked(&self, ops: &[ReadOp]) -> bool {
        self.op == ops.len()
    }

    const fn is_done(&self, ops: &[ReadOp]) -> bool {
        self.is_asked(ops) && self.out == 0
    }
}

/// Reads of the current call.
#[derive(Debug)]
pub(super) struct Caller<'a> {
    ops: &'a [ReadOp],
    head: &'a mut [u8],
    payload: Payload<'a>,
    progress: Progress,
}

impl<'a> Caller<'a> {
    /// Starts reads that fit their destination.
    pub(super) fn new(ops: &'a [ReadOp], head: &'a mut [u8], payload: Payload<'a>) -> Self {
        Self {
            ops,
            head,
            payload,
            progress: Progress::default(),
        }
    }

    /// Whether all have arrived.
    pub(super) const fn is_done(&self) -> bool {
        self.progress.is_done(self.ops)
    }
}

/// A batch that is not finished.
#[derive(Debug)]
struct Posted {
    batch: ReadBatch,
    progress: Progress,
}

/// One pair. Fields are dropped in their order: the pair before the memory that it writes.
#[derive(Debug)]
struct Puller {
    pair: QueuePair<ReadyToSend>,
    chain: SendBatch,
    in_flight: InFlight<Piece>,
    stall: StallDetector,
    staging: StagingMemory,
}

/// All pulling pairs of a lane.
#[derive(Debug)]
pub(super) struct Pulls {
    pullers: Vec<Puller>,
    planner: Planner,
    /// Batches by index; the next batch reuses the slot of a finished one.
    batches: Vec<Option<Posted>>,
    /// Indexes of the incompletely submitted batches, in the order of posting.
    asking: VecDeque<usize>,
    done: VecDeque<ReadBatch>,
    /// The cell read last, once it has arrived.
    cell: Option<[u8; KEY_CELL_BYTES]>,
    counters: Counters,
    /// Whether the device may keep a fence.
    fences: bool,
    /// Whether the device takes two elements in a READ: the pair's memory, and payload.
    gathers: bool,
}

impl Pulls {
    /// Takes connected pairs, each with its memory, and the limits of their device.
    pub(super) fn new(
        pairs: impl IntoIterator<Item = (QueuePair<ReadyToSend>, StagingMemory)>,
        limits: &DeviceLimits,
    ) -> Self {
        let puller = |(pair, staging): (QueuePair<ReadyToSend>, _)| Puller {
            chain: SendBatch::new(VERBS_CHAIN_REQUESTS, READ_ELEMENTS, 0),
            in_flight: InFlight::new(VERBS_SENDS.min(pair.granted().sends) as usize),
            stall: StallDetector::new(pair.granted().retry),
            pair,
            staging,
        };
        Self {
            pullers: pairs.into_iter().map(puller).collect(),
            planner: Planner::default(),
            batches: Vec::with_capacity(BATCHES),
            asking: VecDeque::with_capacity(BATCHES),
            done: VecDeque::with_capacity(BATCHES),
            cell: None,
            counters: Counters::default(),
            fences: limits.fences,
            gathers: limits.read_elements as usize >= READ_ELEMENTS,
        }
    }

    /// Returns the counts so far.
    pub(super) const fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes a batch with known keys and fitting reads; [`Self::ask`] submits it.
    pub(super) fn take(&mut self, batch: ReadBatch) {
        let posted = Some(Posted {
            batch,
            progress: Progress::default(),
        });
        let free = self.batches.iter().position(Option::is_none);
        let place = free.unwrap_or(self.batches.len());
        match free {
            Some(place) => self.batches[place] = posted,
            None => self.batches.push(posted),
        }
        self.asking.push_back(place);
    }

    /// Takes a finished batch, if there is one.
    pub(super) fn done(&mut self) -> Option<ReadBatch> {
        self.done.pop_front()
    }

    /// Takes the requested cell, if it has arrived.
    pub(super) const fn cell(&mut self) -> Option<[u8; KEY_CELL_BYTES]> {
        self.cell.take()
    }

    /// Submits the read of a directory cell; false when there is no room now. `bytes` bytes are read, of
    /// which the cell is the first.
    pub(super) fn ask_cell(
        &mut self,
        from: Target,
        bytes: usize,
        request: Request,
    ) -> Result<bool, LaneFailure> {
        self.cell = None;
        let Some(puller) = self.pullers.first_mut() else {
            return Ok(false);
        };
        let piece = Piece {
            whose: Whose::Cell,
            request,
            op: 0,
            from: 0,
            len: bytes,
            payload: None,
            at: 0,
            end: 0,
        };
        if puller.in_flight.room() == 0 || !puller.staging.space.fits(piece.len) {
            return Ok(false);
        }
        puller.put(0, piece, from, false, &mut self.counters)?;
        self.post()?;
        Ok(true)
    }

    /// Submits the posted batches and then the call's reads, while there is room, and rings the
    /// doorbells.
    pub(super) fn ask(
        &mut self,
        keys: &Keys,
        caller: Option<&mut Caller<'_>>,
    ) -> Result<(), LaneFailure> {
        // Nothing to submit, as in the poll that finds what the call waited for. No batch is left: each
        // call that fills one posts it.
        let is_asked = |caller: &&mut Caller<'_>| caller.progress.is_asked(caller.ops);
        if self.asking.is_empty() && caller.as_ref().is_none_or(is_asked) {
            return Ok(());
        }
        let all = self.ask_batches(keys)?;
        if let (true, Some(caller)) = (all, caller) {
            let Caller { ops, payload, .. } = caller;
            self.ask_list(keys, Whose::Caller, ops, payload, &mut caller.progress)?;
        }
        self.post()
    }

    /// Submits the batches; whether all are submitted now.
    fn ask_batches(&mut self, keys: &Keys) -> Result<bool, LaneFailure> {
        while let Some(&place) = self.asking.front() {
            let Some(mut posted) = self.batches[place].take() else {
                self.asking.pop_front();
                continue;
            };
            let ops = &posted.batch.ops;
            let payload = &Payload::Copied(&mut []);
            let (whose, progress) = (Whose::Batch(place), &mut posted.progress);
            let all = self.ask_list(keys, whose, ops, payload, progress);
            let done = posted.progress.is_done(ops);
            if done {
                self.done.push_back(posted.batch);
            } else {
                self.batches[place] = Some(posted);
            }
            if !all? {
                return Ok(false);
            }
            self.asking.pop_front();
        }
        Ok(true)
    }

    /// Submits a list; whether all of it is submitted now.
    fn ask_list(
        &mut self,
        keys: &Keys,
        whose: Whose,
        ops: &[ReadOp],
        payload: &Payload<'_>,
        progress: &mut Progress,
    ) -> Result<bool, LaneFailure> {
        if progress.is_asked(ops) {
            return Ok(true);
        }
        // A short list with a fence is kept on one pair; its device then keeps its order.
        let last_fence = match ops.len() {
            0..=FENCED_LIST if self.fences => ops.iter().rposition(|op| op.fence),
            _ => None,
        };
        while let Some(op) = ops.get(progress.op) {
            let (from, op_len) = (progress.from, op.len as usize);
            let len = (op_len - from).min(payload.cut(op, from, self.gathers));
            if len > 0 {
                let piece = Piece {
                    whose,
                    request: Request::new("read", op.from, op_len),
                    op: progress.op,
                    from,
                    len,
                    payload: payload.place(op, from, len)?,
                    at: 0,
                    end: 0,
                };
                let by_device = self.fences && len == op_len;
                let fence = match (op.fence && from == 0, by_device) {
                    (false, _) => Fence::No,
                    (true, true) => Fence::Device,
                    (true, false) => Fence::Wait,
                };
                let stay = last_fence.is_some_and(|last| progress.op < last);
                if !self.ask_piece(keys, piece, fence, stay)? {
                    return Ok(false);
                }
                progress.out += 1;
            }
            progress.from += len;
            if progress.from == op_len {
                (progress.op, progress.from) = (progress.op + 1, 0);
            }
        }
        Ok(true)
    }

    /// Queues a piece; whether there was room.
    fn ask_piece(
        &mut self,
        keys: &Keys,
        piece: Piece,
        fence: Fence,
        stay: bool,
    ) -> Result<bool, LaneFailure> {
        let (bytes, staged) = (piece.len, piece.staged());
        let next = Next { bytes, fence, stay };
        let pullers = &self.pullers;
        let step = self
            .planner
            .next(pullers.len(), next, |p| pullers[p].load(staged));
        let Step::Put { pair, fence } = step else {
            return Ok(false);
        };
        let target = keys.target(piece.request.at);
        let target = target.ok_or(LaneFailure::Refused(piece.request, UNKNOWN))?;
        // A range that ends past all addresses is refused by the peer's device.
        let from = Target {
            rkey: target.rkey,
            address: target.address.wrapping_add(piece.from as u64),
        };
        self.pullers[pair].put(pair, piece, from, fence, &mut self.counters)?;
        Ok(true)
    }

    /// Whether no read is in flight.
    pub(super) fn are_idle(&self) -> bool {
        self.pullers
            .iter()
            .all(|puller| puller.in_flight.is_empty())
    }

    /// Call this with `now` when a poll has found no completion.
    pub(super) fn silent(&mut self, now: Instant) -> Result<(), LaneFailure> {
        self.pullers.iter_mut().try_for_each(|puller| {
            puller
                .stall
                .look(&puller.in_flight, now, |piece| piece.request)
        })
    }

    /// Posts all batches: one doorbell for each pair that has one.
    fn post(&mut self) -> Result<(), LaneFailure> {
        for puller in &mut self.pullers {
            puller.post(&mut self.counters)?;
        }
        self.planner.posted();
        Ok(())
    }

    /// Notes that a read, and all before it on its pair, have arrived.
    pub(super) fn arrived(
        &mut self,
        completion: &Completion,
        caller: &mut Option<&mut Caller<'_>>,
    ) -> Result<(), LaneFailure> {
        let pair = (completion.wr_id >> PAIR_SHIFT) as usize;
        let number = completion.wr_id & ((1 << PAIR_SHIFT) - 1);
        let Some(puller) = self.pullers.get_mut(pair) else {
            return Err(LaneFailure::Ended(None, completion.status));
        };
        if !completion.status.is_success() {
            let piece = puller.in_flight.get(number);
            return Err(LaneFailure::Ended(
                piece.map(|p| p.request),
                completion.status,
            ));
        }
        self.counters.completions += 1;
        let StagingMemory { region, space, .. } = &mut puller.staging;
        for piece in puller.in_flight.retire(number) {
            match piece.whose {
                Whose::Caller => {
                    if let Some(caller) = caller {
                        let into = &mut ReadDest {
                            head: caller.head,
                            body: caller.payload.slice(),
                        };
                        piece.copy_to(region, caller.ops, into);
                        caller.progress.out -= 1;
                    }
                }
                Whose::Batch(place) => {
                    let posted = &mut self.batches[place];
                    if let Some(Posted { batch, progress }) = posted {
                        let into = &mut ReadDest {
                            head: &mut batch.head,
                            body: &mut batch.body,
                        };
                        piece.copy_to(region, &batch.ops, into);
                        progress.out -= 1;
                    }
                    let done = |p: &mut Posted| p.progress.is_done(&p.batch.ops);
                    if let Some(posted) = posted.take_if(done) {
                        self.done.push_back(posted.batch);
                    }
                }
                Whose::Cell => {
                    let mut cell = [0; KEY_CELL_BYTES];
                    if let Ok(words) = region.words(piece.at, cell.len()) {
                        words.copy_out(0, &mut cell);
                        self.cell = Some(cell);
                    }
                }
            }
            space.free_to(piece.end);
        }
        Ok(())
    }
}

impl Puller {
    /// State for the planner, for a piece that takes `staged` bytes of the pair's memory.
    fn load(&self, staged: usize) -> Load {
        Load {
            busy: !self.in_flight.is_empty(),
            room: self.in_flight.room() > 0 && self.staging.space.fits(staged),
        }
    }

    /// Queues a piece, for which there is room.
    fn put(
        &mut self,
        number: usize,
        mut piece: Piece,
        from: Target,
        fence: bool,
        counters: &mut Counters,
    ) -> Result<(), LaneFailure> {
        if !self.chain.has_room() {
            self.post(counters)?;
        }
        let staged = piece.staged();
        let Some(at) = self.staging.space.take(staged) else {
            return Err(LaneFailure::Because(
                "its lane has lost count of its staging memory",
            ));
        };
        (piece.at, piece.end) = (at, self.staging.space.end());
        let staging = self.staging.registered.sge(at, staged)?;
        let to: &[Sge] = match piece.payload {
            None => &[staging],
            Some(payload) if staged == 0 => &[payload],
            Some(payload) => &[staging, payload],
        };
        let wr_id = (number as u64) << PAIR_SHIFT | self.in_flight.next();
        let flags = Flags {
            signal: false,
            fence,
        };
        self.chain.read(wr_id, to, from, flags)?;
        counters.reads += 1;
        counters.scattered += u64::from(piece.payload.is_some());
        self.in_flight.push(piece);
        Ok(())
    }

    fn post(&mut self, counters: &mut Counters) -> Result<(), LaneFailure> {
        if self.chain.is_empty() {
            return Ok(());
        }
        self.chain.signal_last();
        counters.doorbells += 1;
        counters.requests += self.chain.len() as u64;
        self.chain.post(&mut self.pair)?;
        Ok(())
    }
}

impl Piece {
    /// Number of its first bytes that arrive in the pair's memory.
    const fn staged(&self) -> usize {
        match self.payload {
            None => self.len,
            Some(payload) => self.len - payload.bytes as usize,
        }
    }

    /// Copies the arrived bytes to the destinations of the operation; their bounds were checked before.
    fn copy_to(&self, staging: &Region, ops: &[ReadOp], into: &mut ReadDest<'_>) {
        let len = self.staged();
        let (Some(op), Ok(words)) = (ops.get(self.op), staging.words(self.at, len)) else {
            return;
        };
        let head_len = op.head_len as usize;
        let in_head = head_len.saturating_sub(self.from).min(len);
        if in_head > 0 {
            let at = op.head_at + self.from;
            words.copy_out(0, &mut into.head[at..at + in_head]);
        }
        if in_head < len {
            let at = op.body_at + (self.from + in_head - head_len);
            let body = &mut into.body[at..at + len - in_head];
            words.copy_out(in_head, body);
        }
    }
}

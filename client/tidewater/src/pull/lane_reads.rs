//! Reads on several lanes: posted on all of them, then collected.
//!
//! One lane places its reads in the caller's memory while the call waits for it. The others read into
//! memory of their own meanwhile, of a bounded size, and are collected after it. A call then takes as
//! long as its slowest lane, not as long as the sum of all lanes.
//!
//! Over TCP that one lane is posted and collected too, if the call may wait for longer than half a second.
//! Its first wait, of so long, places the reads directly; the wait after it also looks for an interrupt and
//! the end of the job. Reads over verbs need no process at the other end, and a dead device ends them
//! within seconds.

use std::ops::Range;

use tidewater_bookkeeping::in_flight::{CALL_BYTES, lane_bytes};
use tidewater_bookkeeping::validation::{RowRead, RowValidator};
use tidewater_lanes::fabric::{
    ClientLane, LaneError, ReadBatch, ReadDest, ReadOp, TransportKind, Unpack,
};
use tidewater_protocol::limits::COORDINATOR_LOOK;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_runtime::clock::Deadline;

use crate::error::ClientError;
use crate::interrupt;
use crate::lanes::{Interrupt, Lanes};

/// Reads of one lane in a call, with buffers that are kept between calls.
#[derive(Debug, Default)]
pub(crate) struct LaneReads {
    /// Reads with their offsets in the caller's memory.
    pub(crate) ops: Vec<ReadOp>,
    /// Rows that are read, in the order of `ops`; empty for reads of other things. Reads without validation may move
    /// one read to the end.
    pub(super) rows: Vec<RowRead>,
    /// Indexes in `ops` of the reads under way; reads before them have arrived, reads after them are not posted.
    posted: Range<usize>,
    /// The posted reads: heads placed in the batch, bodies in the caller's memory.
    dest_ops: Vec<ReadOp>,
    /// Memory of the reads, while none is under way.
    batch: ReadBatch,
    /// Tag of the reads under way; `None` if they could not be posted.
    tag: Option<u64>,
    /// The completed read, if another call has found it.
    arrived: Option<ReadBatch>,
    /// Count of the lane's replacements when the reads were posted.
    replaced: u64,
}

/// Destination of the reads of a call: buffers for heads (row headers, version words) and bodies (payload).
pub(crate) struct CallDest<'a> {
    pub(crate) head: &'a mut [u8],
    pub(crate) body: &'a mut [u8],
    /// Payload bytes of the rows to validate while they are placed; `None`: reads of other things.
    pub(crate) row_bytes: Option<usize>,
}

/// Executes the reads of all lanes together, `reads[n]` on lane `n`, and blocks until each is placed in `dest`, which
/// must hold all of their offsets; after an error it is partly filled. A lane that breaks is recovered, and its reads
/// are repeated.
///
/// # Errors
/// A deadline, which names the lane that is late; a read that a server refuses.
pub(crate) fn read_lanes(
    lanes: &mut Lanes,
    reads: &mut [LaneReads],
    dest: &mut CallDest<'_>,
    deadline: Deadline,
) -> Result<(), ClientError> {
    let travels = |(lane, of_lane): &(usize, &mut LaneReads), lanes: &Lanes| {
        !of_lane.ops.is_empty() && !lanes.is_mapped(*lane)
    };
    let (mut used, mut direct) = (0, None);
    for (lane, of_lane) in reads.iter_mut().enumerate() {
        of_lane.posted = 0..0;
        if travels(&(lane, of_lane), lanes) {
            used += 1;
            // The lane with the most reads saves the most by placing them directly.
            direct = direct.max(Some((of_lane.ops.len(), lane)));
        }
    }
    let direct = direct.map(|(_, lane)| lane);
    let share = lane_bytes(used);
    // The call waits a round trip for each part of the longest list, so its parts are larger.
    let most = |lane| match Some(lane) == direct {
        true => CALL_BYTES,
        false => share,
    };
    let in_turn = on(Mutant::LanesInTurn);
    let is_long = deadline.left() > COORDINATOR_LOOK && !in_turn;
    for (lane, of_lane) in reads.iter_mut().enumerate() {
        if Some(lane) != direct && !in_turn && travels(&(lane, of_lane), lanes) {
            let tag = lanes.read_tag();
            of_lane.post(lanes, lane, tag, most(lane))?;
        }
    }
    // Mapped lanes do not wait.
    for (lane, of_lane) in reads.iter_mut().enumerate() {
        if Some(lane) == direct || in_turn || lanes.is_mapped(lane) {
            if is_long && lanes.get(lane).lane().transport() == TransportKind::Tcp {
                let tag = lanes.read_tag();
                of_lane.post(lanes, lane, tag, most(lane))?;
                of_lane.collect(lanes, lane, dest, deadline)?;
                continue;
            }
            of_lane.posted = 0..of_lane.ops.len();
            of_lane.read(lanes, lane, dest, deadline)?;
        }
    }
    loop {
        for (lane, of_lane) in reads.iter_mut().enumerate() {
            of_lane.collect(lanes, lane, dest, deadline)?;
        }
        let mut done = true;
        for (lane, of_lane) in reads.iter_mut().enumerate() {
            if of_lane.posted.end < of_lane.ops.len() {
                let tag = lanes.read_tag();
                of_lane.post(lanes, lane, tag, most(lane))?;
                done = false;
            }
        }
        if done {
            return Ok(());
        }
    }
}

impl LaneReads {
    /// Removes all reads from the list; the buffers stay allocated.
    pub(super) fn clear(&mut self) {
        self.ops.clear();
        self.rows.clear();
    }

    /// Removes all reads from the list, and forgets those in flight: their data, which goes to memory of the batch,
    /// is dropped when it arrives.
    pub(super) fn restart(&mut self) {
        self.clear();
        self.posted = 0..0;
        (self.tag, self.arrived) = (None, None);
    }

    /// Stores a completed batch, if it is that of the posted reads; otherwise drops it.
    pub(super) fn take_arrived(&mut self, batch: ReadBatch) {
        if self.tag == Some(batch.tag) {
            self.arrived = Some(batch);
        }
    }

    /// Whether a batch was posted and has not arrived; also true if it was lost with a replaced lane.
    pub(super) const fn is_under_way(&self) -> bool {
        self.tag.is_some() && self.arrived.is_none()
    }

    /// Whether no posted read is in flight: the batch has arrived, none was posted, or the lane was replaced. Does
    /// not wait.
    pub(super) fn has_arrived(&self, lanes: &mut Lanes, lane: usize) -> bool {
        let is_replaced = |lanes: &mut Lanes| lanes.get(lane).replies.replaced() != self.replaced;
        self.tag.is_none() || self.arrived.is_some() || is_replaced(lanes)
    }

    /// Posts the next reads of the list under a tag, without waiting: at least one if any is left, and up to
    /// `most` bytes of heads (row headers, version words) and as many of bodies (payload). On a broken lane
    /// nothing is sent: `collect` recovers the lane and repeats these reads.
    pub(super) fn post(
        &mut self,
        lanes: &mut Lanes,
        lane: usize,
        tag: u64,
        most: usize,
    ) -> Result<(), ClientError> {
        let first = self.posted.end;
        let mut batch = std::mem::take(&mut self.batch);
        batch.ops.clear();
        self.dest_ops.clear();
        let (mut heads, mut bodies) = (0, 0);
        for op in self.ops.get(first..).unwrap_or_default() {
            let (head, body) = (op.head_len as usize, (op.len - op.head_len) as usize);
            if !batch.ops.is_empty() && (heads + head).max(bodies + body) > most {
                break;
            }
            let head_at = heads;
            batch.ops.push(ReadOp {
                head_at,
                body_at: bodies,
                ..*op
            });
            self.dest_ops.push(ReadOp { head_at, ..*op });
            (heads, bodies) = (heads + head, bodies + body);
        }
        self.posted = first..first + batch.ops.len();
        // The old contents do not matter: each read fills its memory completely or is repeated.
        batch.head.resize(heads, 0);
        batch.body.resize(bodies, 0);
        batch.tag = tag;
        (self.tag, self.replaced) = (None, lanes.get(lane).replies.replaced());
        if lanes.is_broken(lane) {
            self.batch = batch;
            return Ok(());
        }
        let open = lanes.get(lane).lane();
        match open.submit_read(batch).and_then(|()| open.flush()) {
            Ok(()) => self.tag = Some(tag),
            // Its turn to be collected recovers it.
            Err(e) => match lanes.failed(lane, e) {
                Interrupt::Broken(_) => {}
                Interrupt::Failed(e) => return Err(e),
            },
        }
        Ok(())
    }

    /// Blocks until the posted reads have arrived and are placed in `dest`. If the lane broke or was replaced,
    /// it recovers the lane and reads them again; a batch that is late is read again too, which fails at the
    /// deadline. Returns at once if none is posted.
    pub(super) fn collect(
        &mut self,
        lanes: &mut Lanes,
        lane: usize,
        dest: &mut CallDest<'_>,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        if self.posted.is_empty() {
            return Ok(());
        }
        if let Some(tag) = self.tag
            && self.await_batch(lanes, lane, tag, dest, deadline)?
        {
            self.posted.start = self.posted.end;
            self.tag = None;
            return Ok(());
        }
        // The lane was lost, or the reads are late. This read recovers the lane, or names it.
        self.read(lanes, lane, dest, deadline)
    }

    /// Blocks until the batch `tag` has arrived, and places it in `dest`. Returns false if the lane broke or was
    /// replaced, or at the deadline: `dest` is then not filled, and the caller repeats the reads.
    fn await_batch(
        &mut self,
        lanes: &mut Lanes,
        lane: usize,
        tag: u64,
        dest: &mut CallDest<'_>,
        deadline: Deadline,
    ) -> Result<bool, ClientError> {
        let replaced = self.replaced;
        let is_replaced = |lanes: &mut Lanes| lanes.get(lane).replies.replaced() != replaced;
        let arrived = self.arrived.take();
        let mut batch = arrived.or_else(|| lanes.get(lane).take_finished(tag));
        let mut in_place = false;
        if batch.is_none() && !lanes.is_broken(lane) && !is_replaced(lanes) {
            // The wait that follows checks whether all processes still live.
            let slice = Deadline::after(COORDINATOR_LOOK).min(deadline);
            let rows = self.rows.get_mut(self.posted.clone());
            let mut validator = dest.row_bytes.and_then(|row_bytes| {
                let rows = rows?;
                Some(RowValidator { rows, row_bytes })
            });
            let unpack = validator.as_mut().map(|v| v as &mut dyn Unpack);
            let open = lanes.get(lane).lane();
            match open.wait_read(tag, &self.dest_ops, dest.body, unpack, slice) {
                Ok(None) if slice.passed() => interrupt::check("pull")?,
                Ok(found) => (in_place, batch) = (found.is_some(), found),
                Err(e) => match lanes.failed(lane, e) {
                    Interrupt::Broken(_) => return Ok(false),
                    Interrupt::Failed(e) => return Err(e),
                },
            }
        }
        if batch.is_none() {
            let waited = lanes.wait("pull", deadline, |lanes| {
                let batch = lanes.get(lane).take_finished(tag);
                let found = batch
                    .map(Some)
                    .or_else(|| is_replaced(lanes).then_some(None));
                Ok::<_, Interrupt>(found)
            });
            batch = match waited {
                Ok(found) => found,
                Err(ClientError::Deadline { .. }) => None,
                Err(e) => return Err(e),
            };
        }
        let Some(batch) = batch else {
            return Ok(false);
        };
        self.place(&batch, in_place, dest);
        self.batch = batch;
        Ok(true)
    }

    /// Copies an arrived batch to the caller's memory: heads always, bodies unless they were placed there directly
    /// (`in_place`).
    fn place(&self, batch: &ReadBatch, in_place: bool, dest: &mut CallDest<'_>) {
        let ops = self.ops.get(self.posted.clone()).unwrap_or_default();
        for (op, read) in ops.iter().zip(&batch.ops) {
            let (head, body) = (op.head_len as usize, (op.len - op.head_len) as usize);
            let to = &mut dest.head[op.head_at..op.head_at + head];
            to.copy_from_slice(&batch.head[read.head_at..read.head_at + head]);
            if !in_place {
                let to = &mut dest.body[op.body_at..op.body_at + body];
                to.copy_from_slice(&batch.body[read.body_at..read.body_at + body]);
            }
        }
    }

    /// Reads the posted part of the list in a read of its own, directly into the caller's memory, whatever became of
    /// the posted batch. Blocks until it has arrived. Recovers a broken lane.
    fn read(
        &mut self,
        lanes: &mut Lanes,
        lane: usize,
        dest: &mut CallDest<'_>,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let posted = self.posted.clone();
        let ops = self.ops.get(posted.clone()).unwrap_or_default();
        self.posted.start = posted.end;
        if ops.is_empty() {
            return Ok(());
        }
        let rows = self.rows.get_mut(posted).unwrap_or_default();
        recovering(lanes, lane, deadline, |open| {
            let (head, body) = (&mut *dest.head, &mut *dest.body);
            let into = ReadDest { head, body };
            match dest.row_bytes {
                None => open.read(ops, into, deadline),
                Some(row_bytes) => {
                    let rows = &mut *rows;
                    let mut validator = RowValidator { rows, row_bytes };
                    open.read_unpack(ops, into, &mut validator, deadline)
                }
            }
        })
    }
}

/// Runs `read` on a lane. If the lane breaks, it recovers the lane and runs `read` again from its begin, until the
/// deadline. A late read is an error at once, and so is a refused one, except over verbs: there a device takes the memory
/// of a process that dies before its queue pairs, and a read is refused that the successor will serve.
fn recovering(
    lanes: &mut Lanes,
    lane: usize,
    deadline: Deadline,
    mut read: impl FnMut(&mut dyn ClientLane) -> Result<(), LaneError>,
) -> Result<(), ClientError> {
    let mut refused = None;
    loop {
        // An earlier call may have given the lane up at its deadline, which is not this one's.
        if lanes.is_broken(lane) {
            lanes.recover(lane, deadline)?;
        }
        match read(lanes.get(lane).lane()) {
            Ok(()) => return Ok(()),
            Err(e @ (LaneError::Deadline { .. } | LaneError::Late { .. })) => {
                if e.is_fatal() {
                    lanes.failed(lane, e.clone());
                }
                if on(Mutant::LateReadIsLost) {
                    return Err(e.into());
                }
                return Err(lanes.late_read(lane));
            }
            // A refused read would be refused again: the table was released, or this client is in
            // error.
            Err(e @ LaneError::Access { .. }) => {
                let may_die = lanes.get(lane).lane().transport() == TransportKind::Verbs;
                let before = refused.replace(lanes.followed());
                lanes.failed(lane, e.clone());
                if !may_die || before == refused {
                    return Err(e.into());
                }
            }
            Err(e) => match lanes.failed(lane, e) {
                Interrupt::Failed(e) => return Err(e),
                Interrupt::Broken(_) => lanes.recover(lane, deadline)?,
            },
        }
    }
}

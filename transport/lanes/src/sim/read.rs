//! The simulated NIC's reading half. Each cache line of a read is sampled at its own time, some of them
//! twice, with bytes of both times mixed.

use super::core::Core;
use super::link::{Event, Link, LinkId};
use super::rng::Rng;
use crate::fabric::{AccessFlags, LaneError, ReadBatch, ReadDest, ReadOp, Unpack};
use crate::region_table::RegisteredRegion;
use tidewater_protocol::layout::LINE_BYTES;

/// One read in flight on a link: its request and the cache lines that the simulated NIC has copied so
/// far.
#[derive(Debug)]
pub(super) struct Read {
    id: u64,
    batch: u64,
    /// Index of the read in its list.
    nth: usize,
    op: ReadOp,
    data: Vec<u8>,
    /// Offsets of lines not sampled yet; `None` before the access was checked.
    fresh: Option<Vec<u32>>,
    /// Offsets of lines that will be sampled again.
    again: Vec<u32>,
    scheduled: bool,
}

/// A list of reads that completes as a whole. It belongs to a blocking call, or is a submitted
/// [`ReadBatch`].
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) id: u64,
    left: usize,
    done: Vec<Done>,
    /// The caller's memory, if it was moved here. Until the batch is complete only bodies that an
    /// unpacker took are written.
    owned: Option<ReadBatch>,
    /// Whether the batch was handed over to the network.
    sent: bool,
    /// A call waits for the batch, and takes it itself when it is complete.
    pub(super) is_direct: bool,
}

/// A complete read of a batch with its data. The data is not yet in the caller's buffers.
#[derive(Debug)]
struct Done {
    nth: usize,
    op: ReadOp,
    data: Vec<u8>,
    /// Whether the read was offered to an unpacker.
    offered: bool,
    /// Whether an unpacker has the read: it is not placed.
    taken: bool,
}

impl Done {
    /// Places the data in `into` at the offsets of `op`. If an unpacker took the read, its head is filled
    /// with [`NO_VALUE`], as it is unspecified, and its body stays.
    fn place(&self, op: &ReadOp, into: &mut ReadDest<'_>) {
        let (head, body) = self.data.split_at(op.head_len as usize);
        let to = &mut into.head[op.head_at..][..head.len()];
        if self.taken {
            return to.fill(NO_VALUE);
        }
        to.copy_from_slice(head);
        into.body[op.body_at..][..body.len()].copy_from_slice(body);
    }
}

impl Batch {
    /// Returns whether all reads of the batch are complete; their data may not yet be placed.
    pub(super) const fn is_complete(&self) -> bool {
        self.left == 0
    }

    /// Places the data of all reads that no unpacker took in `into`, at the offsets of their own
    /// requests. Fills the heads of the others with `NO_VALUE`.
    pub(super) fn deliver(&self, into: &mut ReadDest<'_>) {
        for done in &self.done {
            done.place(&done.op, into);
        }
    }

    /// Places the data like [`Self::deliver`], but at the offsets that the same reads have in `ops`, a
    /// list in the same order.
    pub(super) fn deliver_as(&self, ops: &[ReadOp], into: &mut ReadDest<'_>) {
        for done in &self.done {
            done.place(&ops[done.nth], into);
        }
    }

    /// Returns the submitted [`ReadBatch`]; `None` for the reads of a blocking call.
    pub(super) const fn owned(&self) -> Option<&ReadBatch> {
        self.owned.as_ref()
    }

    /// Removes and returns the submitted [`ReadBatch`], which ends the batch; `None` for the reads of a
    /// blocking call.
    pub(super) const fn take_owned(&mut self) -> Option<ReadBatch> {
        self.owned.take()
    }

    /// For the reads that an unpacker took: copies their bodies from the batch's own memory to `body`, at
    /// the offsets of the same reads in `ops`. With `back`, copies them from `body` to the batch. Does
    /// nothing for the reads of a blocking call.
    pub(super) fn move_taken(&mut self, ops: &[ReadOp], body: &mut [u8], back: bool) {
        let Some(owned) = &mut self.owned else {
            return;
        };
        for done in self.done.iter().filter(|done| done.taken) {
            let (own, len) = (done.op.body_at, (done.op.len - done.op.head_len) as usize);
            let there = ops[done.nth].body_at;
            let (own, there) = (&mut owned.body[own..][..len], &mut body[there..][..len]);
            if back {
                own.copy_from_slice(there);
            } else {
                there.copy_from_slice(own);
            }
        }
    }

    /// Offers complete reads to an unpacker, each with probability two thirds, some with the bytes of the
    /// reads that follow. Each read is the first of an offer at most once. `body` is the destination that
    /// the unpacker writes.
    pub(super) fn offer(&mut self, rng: &mut Rng, unpacker: &mut dyn Unpack, body: &mut [u8]) {
        self.done.sort_by_key(|done| done.nth);
        let mut at = 0;
        while at < self.done.len() {
            if std::mem::replace(&mut self.done[at].offered, true) || rng.below(3) == 0 {
                at += 1;
                continue;
            }
            let first = self.done[at].nth;
            let mut raw = self.done[at].data.clone();
            for (n, next) in self.done.iter().enumerate().skip(at + 1) {
                if next.nth != first + (n - at) || next.offered || rng.below(2) == 0 {
                    break;
                }
                let cut = rng.below(next.data.len() as u64 + 1) as usize;
                let complete = rng.below(2) == 0;
                raw.extend_from_slice(&next.data[..if complete { next.data.len() } else { cut }]);
                if !complete {
                    break;
                }
            }
            let taken = unpacker.unpack(first, &raw, body);
            for done in self.done.iter_mut().skip(at).take(taken) {
                (done.offered, done.taken) = (true, true);
            }
            at += taken.max(1);
        }
    }
}

/// Byte that fills destinations that the contract leaves unspecified, so that tests find code that relies
/// on them.
const NO_VALUE: u8 = 0xa5;

impl Core {
    /// Queues a list of reads on a link and returns the id of its batch. `owned` is the submitted batch;
    /// `None` for a blocking call. Nothing starts before [`Self::send_reads`]. On a broken link the reads
    /// never complete.
    pub(super) fn queue_reads(
        &mut self,
        id: LinkId,
        ops: &[ReadOp],
        owned: Option<ReadBatch>,
    ) -> u64 {
        let link = self.link(id);
        link.ids += 1;
        let batch = link.ids;
        let (left, sent) = (ops.len(), false);
        link.batches.push(Batch {
            id: batch,
            left,
            done: Vec::with_capacity(left),
            owned,
            sent,
            is_direct: false,
        });
        // An end that does not know yet that the link is broken waits in vain.
        let lost = link.error.is_some();
        for (nth, op) in ops.iter().enumerate().filter(|_| !lost) {
            link.ids += 1;
            link.reads.push_back(Read {
                id: link.ids,
                batch,
                nth,
                op: *op,
                data: vec![0; op.len as usize],
                fresh: None,
                again: Vec::new(),
                scheduled: false,
            });
        }
        batch
    }

    /// Hands all queued reads of a link over to the simulated network: starts those that may start, and
    /// finishes batches that are complete.
    pub(super) fn send_reads(&mut self, id: LinkId) {
        let link = self.link(id);
        link.batches.iter_mut().for_each(|b| b.sent = true);
        self.start_reads(id);
        self.finish_batches(id);
    }

    /// Starts the reads that may start: all that were sent, but a fenced read only when it is the link's
    /// oldest. If the network executes reads in order, fenced reads start at once too. All have the same
    /// delay there, and events of one time fire in their order.
    fn start_reads(&mut self, id: LinkId) {
        let in_order = self.faults.distance.is_some_and(|d| d.reads_in_order);
        let mut at = 0;
        loop {
            let link = self.link(id);
            let Some(read) = link.reads.get_mut(at) else {
                return;
            };
            let sent = link.batches.iter().any(|b| b.id == read.batch && b.sent);
            if sent && !read.scheduled && (at == 0 || !read.op.fence || in_order) {
                read.scheduled = true;
                let read = read.id;
                let delay = self.delay();
                self.schedule(delay, Event::Sample(id, read));
            }
            at += 1;
        }
    }

    /// Copies (samples) some cache lines of a read from server memory, and schedules the rest or the
    /// completion. Each call checks the access; a refusal breaks the link.
    pub(super) fn sample(&mut self, id: LinkId, read: u64) {
        let Some(at) = self.links[id.0].reads.iter().position(|r| r.id == read) else {
            return;
        };
        let Some(mut read) = self.links[id.0].reads.remove(at) else {
            return;
        };
        let export = match self.admit_read(id, &mut read) {
            Ok(export) => export,
            Err(error) => return self.break_with(id, error),
        };
        self.note(6, read.op.from.addr);
        let complete = self.sample_lines(&export, &mut read);
        let event = if complete {
            Event::Complete(id, read.id)
        } else {
            Event::Sample(id, read.id)
        };
        self.link(id).reads.insert(at, read);
        let delay = self.delay();
        self.schedule(delay, event);
    }

    fn admit_read(&mut self, id: LinkId, read: &mut Read) -> Result<RegisteredRegion, LaneError> {
        let op = read.op;
        let link = &mut self.links[id.0];
        let (addr, len) = (op.from.addr, u64::from(op.len));
        let checked = link
            .exports
            .check(op.from.key, addr, len, AccessFlags::Read);
        let export = checked.cloned().map_err(|why| LaneError::Access {
            peer: link.server.clone(),
            op: "read",
            key: op.from.key.0,
            addr,
            len,
            why: why.text(),
        })?;
        if read.fresh.is_none() {
            // Lines of memory, not of the request: the first may be short.
            let skew = (addr % LINE_BYTES as u64) as u32;
            let lines = 0..(skew + op.len).div_ceil(LINE_BYTES as u32);
            let starts = lines.map(|n| (n * LINE_BYTES as u32).saturating_sub(skew));
            let mut order: Vec<u32> = starts.rev().collect();
            if self.faults.reorder {
                self.rng.shuffle(&mut order);
            }
            read.fresh = Some(order);
        }
        Ok(export)
    }

    /// Copies some cache lines of a read from server memory, some with bytes of two times mixed. Returns
    /// whether all lines are complete.
    fn sample_lines(&mut self, export: &RegisteredRegion, read: &mut Read) -> bool {
        let Read {
            op,
            data,
            fresh: Some(fresh),
            again,
            ..
        } = read
        else {
            return true;
        };
        let (rng, faults) = (&mut self.rng, &self.faults);
        let start = op.from.addr as usize;
        let mut copy = |at: usize, mask: Option<u64>| {
            let len = (LINE_BYTES - (start + at) % LINE_BYTES).min(data.len() - at);
            let mut line = [0; LINE_BYTES];
            if let Ok(words) = export.region.words(start + at, len) {
                words.copy_out(0, &mut line[..len]);
            }
            for (i, byte) in data[at..at + len].iter_mut().enumerate() {
                if mask.is_none_or(|m| m >> i & 1 == 1) {
                    *byte = line[i];
                }
            }
        };
        for at in again.drain(..) {
            copy(at as usize, Some(rng.bits()));
        }
        let now = if faults.reorder && rng.below(2) == 0 {
            rng.below(fresh.len() as u64 + 1) as usize
        } else {
            fresh.len()
        };
        for at in fresh.split_off(fresh.len() - now) {
            copy(at as usize, None);
            if faults.tear && rng.below(4) == 0 {
                again.push(at);
            }
        }
        fresh.is_empty() && again.is_empty()
    }

    /// Completes a read: moves its data to its batch and wakes the client's task. Later reads that waited
    /// for it may start (F03).
    pub(super) fn complete(&mut self, id: LinkId, read: u64) {
        let link = self.link(id);
        let Some(at) = link.reads.iter().position(|r| r.id == read) else {
            return;
        };
        if let Some(read) = link.reads.remove(at)
            && let Some(batch) = link.batches.iter_mut().find(|b| b.id == read.batch)
        {
            batch.left -= 1;
            batch.done.push(Done {
                nth: read.nth,
                op: read.op,
                data: read.data,
                offered: false,
                taken: false,
            });
        }
        self.start_reads(id);
        self.finish_batches(id);
    }

    /// Places the data of complete submitted batches in their buffers and moves them to the queue of
    /// [`crate::fabric::ClientLane::poll_read`], but leaves batches that a call takes itself. Wakes the
    /// client's task if it is blocked in a call, and its parker if a batch was moved.
    pub(super) fn finish_batches(&mut self, id: LinkId) {
        let link = self.link(id);
        let parker = link.client_parker;
        let mut wakes = false;
        let Link {
            batches, finished, ..
        } = link;
        batches.retain_mut(|batch| {
            if !(batch.sent && batch.is_complete()) || batch.is_direct {
                return true;
            }
            let Some(mut owned) = batch.owned.take() else {
                return true; // Borrowed: the caller takes it.
            };
            let (head, body) = (&mut owned.head[..], &mut owned.body[..]);
            batch.deliver(&mut ReadDest { head, body });
            finished.push_back(owned);
            wakes = true;
            false
        });
        self.wake_client(id);
        if wakes {
            self.wake_parker(parker);
        }
    }
}

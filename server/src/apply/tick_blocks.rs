//! Ticks of tables by ranges: what is held of an iteration is reduced block by block.
//!
//! Held frames are cut into *segments*, each inside one block, and these are sorted by block,
//! operation and the order in which frames are reduced (by rank, then as pushed). One block after
//! the other is then summed in a buffer that stays in the core's cache, and stored: each gradient
//! is read once and each parameter read and written once, whatever the number of workers.

use std::ops::Range;

use tidewater_transport::layout::dense::BlockLayout;
use tidewater_transport::layout::frame::FrameKind;
use tidewater_transport::table::{DType, PushOp, Reduce};

use super::engine::Engine;
use super::kernels::accumulate;
use super::pending::{Held, Pending};
use super::reduce::{Ranks, tick_order};
use super::table::{Store, Table};
use super::tick::reduce_of;
use crate::store::dense_blocks::{BlocksError, DenseBlocks};
use crate::store::redo::{Progress, Redo};

/// Bytes of a payload before its values: the first element's number.
const FIRST_BYTES: usize = 8;

/// What of one held frame belongs to one block. Sorted in the order of its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Segment {
    block: u64,
    /// Place of the operation among those of a tick, see [`order_of`].
    order: u8,
    /// Place of the frame among those of the iteration.
    held: usize,
    /// First element in the block, and how many.
    first: usize,
    count: usize,
    /// Where its values begin in the payload.
    at: usize,
}

impl Segment {
    const fn elements(&self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

/// Place of an operation in [`tick_order`].
fn order_of(op: PushOp) -> u8 {
    let place = tick_order().iter().position(|&at| at == op);
    place.unwrap_or_default() as u8
}

/// Buffers of a tick, kept from one to the next so that a steady step allocates nothing. They
/// grow to a segment for each block of each held frame, 56 bytes, which is less than what `Pending`
/// counts for a frame, and to two blocks.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    segments: Vec<Segment>,
    /// Reduced values of the block at hand, and the segment that is added to them.
    values: Vec<u8>,
    part: Vec<u8>,
    /// Elements of the block that take a step: sorted, disjoint, not adjacent.
    runs: Vec<Range<usize>>,
}

/// The rules of one table at one tick.
#[derive(Debug, Clone, Copy)]
struct Rules {
    dtype: DType,
    reduce: Reduce,
    /// Its rule counts steps: one of a block is a step of all its elements.
    counts_steps: bool,
}

impl Buffers {
    /// Cuts what is held at the ends of blocks.
    fn cut(&mut self, pending: &Pending, held: &[Held], layout: BlockLayout) {
        self.segments.clear();
        for (place, h) in held.iter().enumerate() {
            let (FrameKind::PushDense, Some(op)) = (h.header.kind, h.header.flags.op) else {
                continue;
            };
            pending.payload_part(h, 0..FIRST_BYTES, &mut self.part);
            let mut element = super::push::word(&self.part, 0);
            // The range was checked when the frame came: it is inside the table.
            let mut left = h.header.count as usize;
            let mut at = FIRST_BYTES;
            while left > 0 {
                let block = element / layout.block_elements();
                let first = (element % layout.block_elements()) as usize;
                let count = (layout.used(block) as usize)
                    .saturating_sub(first)
                    .min(left);
                if count == 0 {
                    break;
                }
                self.segments.push(Segment {
                    block,
                    order: order_of(op),
                    held: place,
                    first,
                    count,
                    at,
                });
                element += count as u64;
                left -= count;
                at += count * layout.element_bytes;
            }
        }
        self.segments.sort_unstable();
    }

    /// Reduces the segments `of` one block and operation into `values`, and notes which elements
    /// they touch. Values of elements that nobody pushed are 0.
    fn reduce(
        &mut self,
        pending: &Pending,
        held: &[Held],
        of: Range<usize>,
        used: usize,
        rules: Rules,
    ) {
        let size = rules.dtype.size();
        let Some(segments) = self.segments.get(of) else {
            return;
        };
        self.values.clear();
        self.values.resize(used * size, 0);
        self.runs.clear();
        let op = segments.first().map(|s| s.order);
        let mut ranks = Ranks::default();
        for segment in segments {
            let Some(h) = held.get(segment.held) else {
                continue;
            };
            let elements = segment.elements();
            let bytes = segment.at..segment.at + segment.count * size;
            pending.payload_part(h, bytes, &mut self.part);
            let into = self
                .values
                .get_mut(elements.start * size..elements.end * size);
            let into = into.unwrap_or_default();
            match op
                .map(usize::from)
                .and_then(|order| tick_order().get(order).copied())
            {
                Some(PushOp::Assign) => into.copy_from_slice(&self.part),
                _ => accumulate(rules.dtype, into, &self.part),
            }
            ranks.add(h.rank);
            self.runs.push(elements);
        }
        merge(&mut self.runs);
        if op == Some(order_of(PushOp::Gradient)) {
            if rules.reduce == Reduce::Mean {
                ranks.mean(rules.dtype, &mut self.values);
            }
            if rules.counts_steps {
                self.runs.clear();
                self.runs.push(0..used);
            }
        }
    }

    /// Reduces and stores one block after the other. Each run of elements is a row of `lsn`.
    fn step(
        &mut self,
        (pending, held): (&Pending, &[Held]),
        (blocks, redo): (&mut DenseBlocks, &Redo),
        lsn: u64,
        rules: Rules,
    ) -> Result<(), BlocksError> {
        let layout = blocks.layout();
        let size = rules.dtype.size();
        let (mut from, mut row) = (0, 0);
        while let Some(&Segment { block, order, .. }) = self.segments.get(from) {
            let same = |s: &&Segment| (s.block, s.order) == (block, order);
            let count = self.segments[from..].iter().take_while(same).count();
            self.reduce(
                pending,
                held,
                from..from + count,
                layout.used(block) as usize,
                rules,
            );
            from += count;
            let Some(&op) = tick_order().get(usize::from(order)) else {
                continue;
            };
            let base = block * layout.block_elements();
            for run in &self.runs {
                let values = self.values.get(run.start * size..run.end * size);
                let first = base + run.start as u64;
                let progress = Progress { lsn, row };
                blocks.apply_range(redo, progress, first, op, values.unwrap_or_default())?;
                row += 1;
            }
        }
        Ok(())
    }
}

/// Sorts ranges and joins those that overlap or touch.
fn merge(runs: &mut Vec<Range<usize>>) {
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|next, before| {
        let joins = next.start <= before.end;
        if joins {
            before.end = before.end.max(next.end);
        }
        joins
    });
}

impl Engine {
    /// Applies what is `held` of an iteration for a table by ranges, in the order it is in. A
    /// snapshot table takes its next epoch even if nothing is held.
    pub(super) fn close_blocks(&mut self, id: u32, iteration: u64, held: &[Held]) {
        if let Err(e) = self.step_blocks(id, iteration, held) {
            self.fail(format_args!(
                "the tick that ends iteration {iteration} of table {id}: {e}"
            ));
        }
    }

    fn step_blocks(&mut self, id: u32, iteration: u64, held: &[Held]) -> Result<(), BlocksError> {
        let Some(table) = self.tables.get_mut(&id) else {
            return Ok(());
        };
        let rules = Rules {
            dtype: table.spec.dtype,
            reduce: reduce_of(table),
            counts_steps: table.spec.optimizer.counts_steps(),
        };
        let Table {
            store: Store::Blocks(blocks),
            ..
        } = table
        else {
            return Ok(());
        };
        self.lsn += 1;
        let snapshot = blocks.is_snapshot();
        // A load from a saved model took an epoch before the first tick.
        let epoch = (iteration + 1).max(blocks.front() + 1);
        if snapshot {
            blocks.begin_epoch(epoch)?;
        }
        self.tick.cut(&self.pending, held, blocks.layout());
        let pushes = (&self.pending, held);
        self.tick
            .step(pushes, (blocks, &self.redo), self.lsn, rules)?;
        if snapshot {
            blocks.flip(epoch, iteration + 1, self.lsn)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! Ticks of range tables: held frames of an iteration are reduced block by block.
//!
//! Held frames are cut into *segments*, each inside one block. These are sorted by block, operation
//! and the order in which frames are reduced (by rank and thread, then as pushed). One block after the other
//! is then summed in a buffer that stays in the core's cache. Ranks that have had their turn while
//! the iteration is open are added to its [`BlockSums`]. The tick adds the last ranks and stores:
//! each gradient is read once and each parameter read and written once.

use std::ops::Range;
use std::sync::Arc;

use tidewater_protocol::ids::TableId;
use tidewater_protocol::layout::dense::BlockLayout;
use tidewater_protocol::layout::frame::{FrameKind, WEIGHT_BYTES};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::{DType, Durability, PushOp, Reduce};

use super::Refusal;
use super::engine::Engine;
use super::pending::{Held, Pending};
use super::push::{FIRST_BYTES, word};
use super::push_values::weight_of;
use super::reduce::{Threads, tick_order};
use super::sums::{BlockKey, BlockSum, BlockSums, Sums};
use super::table::{Store, Table};
use super::tick::reduce_of;
use crate::store::ShardId;
use crate::store::dense_blocks::{BlocksError, DenseBlocks};
use crate::store::redo::{Progress, Redo};
use tidewater_kernels::{accumulate, scale};

/// Held frames of a table, and the set of held frames with the memory of their payloads.
#[derive(Clone, Copy)]
struct Pushes<'a> {
    pending: &'a Pending,
    held: &'a [Held],
}

/// Part of one held frame that lies in one block. Segments are sorted in the order of their fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Segment {
    /// Number of the block in the table.
    block: u64,
    /// Index of the operation in the order of a tick, see [`order_of`].
    order: u8,
    /// Index of the frame among the held frames that are reduced.
    held: usize,
    /// Index in the block of the first element.
    first: usize,
    /// Number of elements of the segment.
    count: usize,
    /// Byte offset of the segment's values in the frame's payload.
    at: usize,
}

impl Segment {
    const fn elements(&self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

/// Returns the index of an operation in [`tick_order`]. Panics for min and max, which have none.
pub(super) fn order_of(op: PushOp) -> u8 {
    match tick_order().iter().position(|&at| at == op) {
        Some(place) => place as u8,
        None => unreachable!("operation {op:?} has no place in a tick"),
    }
}

/// Working memory of a tick, kept from one tick to the next so that a steady step allocates nothing. Grows
/// to a segment for each block of each held frame and to two blocks. A segment has 48 bytes, less than what
/// `Pending` counts for a frame.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    segments: Vec<Segment>,
    /// Reduced values of the current block.
    values: Vec<u8>,
    /// Values of the segment that is added to `values`; on a table of rows the sum of a row.
    pub(super) part: Vec<u8>,
    /// Keys of the rows that are stepped now, on a table of rows.
    pub(super) keys: Vec<u64>,
    /// Element ranges of the block that take a step: sorted, disjoint, not adjacent.
    runs: Vec<Range<usize>>,
    /// Threads with pushes in `values`, as the divisor of a mean.
    threads: Threads,
}

/// Element type and reduction of one table in one tick.
#[derive(Debug, Clone, Copy)]
struct Rules {
    dtype: DType,
    reduce: Reduce,
}

impl Rules {
    fn of(table: &Table) -> Self {
        Self {
            dtype: table.spec.dtype,
            reduce: reduce_of(table),
        }
    }
}

impl Buffers {
    /// Replaces `self.segments` by the held frames of a range table, cut at the ends of blocks and sorted.
    fn cut(&mut self, pending: &Pending, held: &[Held], layout: BlockLayout) {
        self.segments.clear();
        for (place, h) in held.iter().enumerate() {
            let (FrameKind::PushDense, Some(op)) = (h.header.kind, h.header.flags.op) else {
                unreachable!("a table by ranges holds {:?}", h.header);
            };
            pending.payload_part(h, 0..FIRST_BYTES, &mut self.part);
            let mut element = word(&self.part, 0);
            // The range was checked on arrival of the frame: it is inside the table.
            let mut left = h.header.count as usize;
            let mut at = FIRST_BYTES;
            while left > 0 {
                let block = element / layout.block_elements();
                let first = (element % layout.block_elements()) as usize;
                let count = (layout.used(block) as usize)
                    .saturating_sub(first)
                    .min(left);
                assert!(
                    count > 0,
                    "{left} elements from {element} on of a held push are past the end of the table"
                );
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

    /// Reduces the segments `of` one block and operation into `self.values`, on top of the block's sum, which
    /// is taken out of `sums`. Notes the pushed elements in `self.runs` and the threads in `self.threads`, those
    /// of the sum included. Elements that no rank pushed are 0. `used` is the number of the block's elements.
    /// Returns the sum that was taken out; `None` if there was none.
    fn reduce(
        &mut self,
        pushes: Pushes<'_>,
        sums: &mut BlockSums,
        key: BlockKey,
        of: Range<usize>,
        used: usize,
        rules: Rules,
    ) -> Option<BlockSum> {
        let Pushes { pending, held } = pushes;
        let size = rules.dtype.size();
        self.values.clear();
        self.values.resize(used * size, 0);
        self.runs.clear();
        self.threads = Threads::default();
        let before = sums.take(key, &mut self.values);
        if let Some(before) = &before {
            self.runs.extend_from_slice(&before.runs);
            self.threads = before.threads;
        }
        let op = tick_order()[usize::from(key.1)];
        for segment in &self.segments[of] {
            let h = &held[segment.held];
            let elements = segment.elements();
            let mut weight = 1.0;
            if h.header.flags.weight {
                let len = h.header.payload_len as usize;
                pending.payload_part(h, len - WEIGHT_BYTES..len, &mut self.part);
                weight = weight_of(&h.header, &self.part);
            }
            let bytes = segment.at..segment.at + segment.count * size;
            pending.payload_part(h, bytes, &mut self.part);
            if weight != 1.0 {
                scale(rules.dtype, &mut self.part, weight);
            }
            let into = &mut self.values[elements.start * size..elements.end * size];
            match op {
                PushOp::Assign => into.copy_from_slice(&self.part),
                _ => accumulate(rules.dtype, into, &self.part),
            }
            self.threads.add(h.thread, weight);
            self.runs.push(elements);
        }
        merge(&mut self.runs);
        before
    }

    /// Returns the range of the segments with this key that follow each other from index `from` on. Empty if
    /// the segment at `from` has another key.
    fn group(&self, from: usize, key: BlockKey) -> Range<usize> {
        let same = |s: &&Segment| (s.block, s.order) == key;
        // At the end, where only sums are left, none.
        let segments = &self.segments[from..];
        from..from + segments.iter().take_while(same).count()
    }

    /// Adds all segments to `sums`, block by block.
    fn fold(
        &mut self,
        pushes: Pushes<'_>,
        sums: &mut BlockSums,
        layout: BlockLayout,
        rules: Rules,
    ) {
        let mut from = 0;
        while let Some(&Segment { block, order, .. }) = self.segments.get(from) {
            let key = (block, order);
            let group = self.group(from, key);
            from = group.end;
            let used = layout.used(block) as usize;
            let before = self.reduce(pushes, sums, key, group, used, rules);
            sums.put(key, before, &self.values, &self.runs, self.threads);
        }
    }

    /// Reduces and stores one block after the other: the segments, on top of `sums`. Each run of elements
    /// counts as a row; rows before `start.row` were stored before a crash and are skipped. Empties `sums`.
    /// Returns the number of rows, skipped ones included.
    fn step(
        &mut self,
        pushes: Pushes<'_>,
        sums: &mut BlockSums,
        blocks: &mut DenseBlocks,
        redo: &Redo,
        start: Progress,
        rules: Rules,
    ) -> Result<u32, BlocksError> {
        let layout = blocks.layout();
        let size = rules.dtype.size();
        let (mut from, mut row) = (0, 0);
        loop {
            let cut = self.segments.get(from).map(|s| (s.block, s.order));
            let Some(key) = cut.into_iter().chain(sums.first()).min() else {
                break;
            };
            let (block, order) = key;
            let group = self.group(from, key);
            from = group.end;
            let used = layout.used(block) as usize;
            self.reduce(pushes, sums, key, group, used, rules);
            let op = tick_order()[usize::from(order)];
            if op == PushOp::Gradient {
                if rules.reduce == Reduce::Mean && !self.threads.mean(rules.dtype, &mut self.values)
                {
                    continue;
                }
                if mutants::on(Mutant::TickStepsWholeBlocks) {
                    self.runs.clear();
                    self.runs.push(0..used);
                }
            }
            let base = block * layout.block_elements();
            for run in &self.runs {
                let values = &self.values[run.start * size..run.end * size];
                let first = base + run.start as u64;
                let progress = Progress { row, ..start };
                if row >= start.row {
                    blocks.apply_range(redo, progress, first, op, values)?;
                }
                row += 1;
            }
        }
        sums.clear();
        Ok(row)
    }
}

/// Sorts element ranges by their start and joins those that overlap or touch.
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
    /// Closes an iteration of a range table: applies its sums and the last `held` frames, in the order of `held`.
    /// A snapshot table publishes its next epoch even if there are neither. A failure stops the applier.
    pub(super) fn close_blocks(&mut self, id: u32, iteration: u64, held: &[Held]) {
        if let Err(e) = self.step_blocks(id, iteration, held) {
            self.fail(format_args!(
                "the tick that ends iteration {iteration} of table {id}: {e}"
            ));
        }
    }

    /// Adds the `held` frames of a range table to its sums, in the order of `held`. Panics if no sums are reserved.
    pub(super) fn fold_blocks(&mut self, id: u32, held: &[Held]) {
        let sums = self.sums.get_mut(&id);
        let (Some(table), Some(Sums::Blocks(sums))) = (self.tables.get(&id), sums) else {
            unreachable!("the sums of table {id} are made when its first push is held");
        };
        let Store::Blocks(blocks) = &table.store else {
            unreachable!("table {id} is by ranges");
        };
        let layout = blocks.layout();
        self.tick.cut(&self.pending, held, layout);
        let pushes = Pushes {
            pending: &self.pending,
            held,
        };
        self.tick.fold(pushes, sums, layout, Rules::of(table));
    }

    /// Reserves memory for the sums of a range table's pushes of operation `op`, and as many bytes for the held
    /// pushes of the rank that has its turn. No effect if the sums of `op` have memory, or on other tables.
    pub(super) fn reserve_sums(&mut self, id: u32, op: PushOp) -> Result<(), Refusal> {
        let Some(Table {
            store: Store::Blocks(blocks),
            ..
        }) = self.tables.get(&id)
        else {
            return Ok(());
        };
        let order = order_of(op);
        if let Some(Sums::Blocks(sums)) = self.sums.get(&id)
            && sums.has(order)
        {
            return Ok(());
        }
        let block_bytes = blocks.layout().block_bytes;
        let count = blocks.partitions().map(|p| p.blocks as usize).sum();
        let shard = ShardId::new(TableId(id), self.pending.applier());
        let new = || BlockSums::new(Arc::clone(&self.memory), shard, count, block_bytes);
        let sums = self.sums.entry(id).or_insert_with(|| Sums::Blocks(new()));
        let Sums::Blocks(sums) = sums else {
            unreachable!("table {id} is by ranges and has sums of rows");
        };
        // First the pages: with memory for its sums, an operation counts as reserved.
        self.pending.reserve(sums.bytes())?;
        sums.reserve(order)
    }

    fn step_blocks(&mut self, id: u32, iteration: u64, held: &[Held]) -> Result<(), BlocksError> {
        let Some(table) = self.tables.get_mut(&id) else {
            unreachable!("the tick is of table {id}, which is not there");
        };
        let rules = Rules::of(table);
        let Table {
            store: Store::Blocks(blocks),
            ..
        } = table
        else {
            unreachable!("table {id} is by ranges");
        };
        self.lsn += 1;
        let is_warm = table.spec.durability == Durability::Warm;
        let done = if is_warm {
            self.closing.rows_done(id)
        } else {
            0
        };
        if is_warm {
            self.closing.name_rows(&self.redo, id, 0, self.lsn)?;
        }
        let snapshot = blocks.is_snapshot();
        // A load from a saved model took an epoch before the first tick.
        let epoch = (iteration + 1).max(blocks.front() + 1);
        if snapshot {
            blocks.begin_epoch(epoch)?;
        }
        self.tick.cut(&self.pending, held, blocks.layout());
        let pushes = Pushes {
            pending: &self.pending,
            held,
        };
        match self.sums.get_mut(&id) {
            Some(Sums::Blocks(sums)) => {
                let start = Progress {
                    lsn: self.lsn,
                    row: done,
                };
                let rows = self
                    .tick
                    .step(pushes, sums, blocks, &self.redo, start, rules)?;
                if is_warm {
                    self.closing.note_rows(&self.redo, id, rows)?;
                }
            }
            // No push ever reached the table.
            _ => assert!(held.is_empty(), "pushes are held, and no sums are reserved"),
        }
        if snapshot {
            // A version never goes back.
            let version = (iteration + 1).max(blocks.min_clock());
            blocks.flip(epoch, version, self.lsn)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! Sums of rows of an open iteration, in private memory: the reduced pushes of the ranks that have had
//! their turn.
//!
//! A row's slot is taken when a push of it is held, while the push can still be refused. The tick itself
//! needs no memory. Each operation has its own slots:
//!
//! ```text
//! slot    u64 key | u64 iteration | 3 words of threads | values
//! ```
//! `iteration` is one above the newest one that holds a push of the row, 0 for a free slot; the threads are
//! none until one is added. A tick walks the slots and ends those of its iteration. It keeps those of the
//! next one, for ranks that are ahead. Then it sweeps: ended slots become free, and their keys leave the
//! index. Both are done in steps, between which rows get slots; a row that has an ended slot uses it again.

use std::ops::Range;
use std::sync::Arc;

use tidewater_protocol::ids::{PartitionId, WorkerThread};
use tidewater_protocol::table::DType;
use tidewater_runtime::mem::WordsMut;

use super::reduce::Threads;
use crate::store::ShardId;
use crate::store::StoreError;
use crate::store::index::Index;
use crate::store::memory::{Block, BlockKind, BlockOwner, ServerMemory};
use crate::store::prealloc::Preallocator;
use tidewater_kernels::accumulate;

const PAGE_BYTES: usize = 1 << 20;
/// Bytes of a slot's header, in front of its values: key, iteration and threads. A slot has the sum of one
/// row.
const HEAD_BYTES: usize = 40;
const ITERATION_AT: usize = 8;
const THREADS_AT: [usize; 3] = [16, 24, 32];
/// Iteration word of a free slot. Other values are 1 above an iteration, or [`ENDED`].
const FREE: u64 = 0;
/// Iteration word of a slot that a tick has ended. Its key stays in the index until the sweep, which frees
/// the slot.
const ENDED: u64 = u64::MAX;
/// Number of keys with index entries prefetched together.
pub(super) const AHEAD: usize = 16;

/// Sums of one operation on the rows of one table in an open iteration: the reduced pushes, in private
/// memory.
#[derive(Debug)]
pub(super) struct RowSums {
    owner: BlockOwner,
    /// Hash index from a key to the number of its slot, from 1.
    index: Index,
    slots: Slots,
    row_bytes: usize,
    /// Number of slots taken so far, free and ended ones included.
    used: usize,
    /// Numbers of the taken slots that are free again, from 0.
    free: Vec<u32>,
    /// Number of slots that are neither free nor ended.
    live: usize,
}

/// One row of a held push, to be added to the sums.
#[derive(Clone, Copy)]
pub(super) struct PushedRow<'a> {
    pub(super) key: u64,
    pub(super) thread: WorkerThread,
    pub(super) weight: f64,
    /// Values, already multiplied by the weight.
    pub(super) values: &'a [u8],
    /// Whether the row replaces the sum, as an assignment does.
    pub(super) replaces: bool,
}

impl RowSums {
    /// Creates sums without slots, for rows of `row_bytes` bytes.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub(super) fn new(
        memory: &Arc<ServerMemory>,
        shard_id: ShardId,
        row_bytes: usize,
    ) -> Result<Self, StoreError> {
        let owner = BlockOwner::of(shard_id, BlockKind::Pending, PartitionId(0));
        let slot_bytes = HEAD_BYTES + row_bytes.next_multiple_of(8);
        Ok(Self {
            owner,
            index: Index::new(Arc::clone(memory), Preallocator::none(), owner)?,
            slots: Slots {
                memory: Arc::clone(memory),
                pages: Vec::new(),
                per_page: (PAGE_BYTES / slot_bytes).max(1),
                bytes: slot_bytes,
            },
            row_bytes,
            used: 0,
            free: Vec::new(),
            live: 0,
        })
    }

    /// Whether no slot is taken: none was since the sums were made, or all have been freed.
    pub(super) const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Number of the first slots that may have sums, free ones included: all sums are in slots `0..slots()`.
    pub(super) const fn slots(&self) -> usize {
        self.used
    }

    /// Takes a slot for each of `count` rows that has none, for a push of `iteration`, so that adding the
    /// push later needs no memory. All of these rows keep their slots until the tick of `iteration`. `key`
    /// returns the key of a row. Cost: an index search for each.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up; rows before the one that failed have slots, so the call may be
    /// repeated.
    pub(super) fn reserve(
        &mut self,
        count: usize,
        key: impl Fn(usize) -> u64,
        iteration: u64,
    ) -> Result<(), StoreError> {
        for first in (0..count).step_by(AHEAD) {
            let group = first..count.min(first + AHEAD);
            self.prefetch(group.clone().map(&key));
            for n in group {
                self.reserve_one(key(n), iteration)?;
            }
        }
        Ok(())
    }

    fn reserve_one(&mut self, key: u64, iteration: u64) -> Result<(), StoreError> {
        if let Some(slot) = self.find(key) {
            let words = self.slots.words(slot);
            let newest = match words.as_read().load(ITERATION_AT) {
                ENDED => {
                    self.live += 1;
                    0
                }
                newest => newest,
            };
            words.store(ITERATION_AT, newest.max(iteration + 1));
            return Ok(());
        }
        if self.free.is_empty() && self.used == self.slots.len() {
            self.slots.add_page(self.owner)?;
        }
        let slot = self.free.last().map_or(self.used, |&slot| slot as usize);
        // The last step that can fail: until here nothing was taken.
        let number = slot as u32 + 1;
        self.index.insert(key, number, |n| self.slots.key_of(n))?;
        if self.free.pop().is_none() {
            self.used += 1;
        }
        self.live += 1;
        let words = self.slots.words(slot);
        words.store(0, key);
        words.store(ITERATION_AT, iteration + 1);
        words.store(THREADS_AT[0], Threads::NONE);
        Ok(())
    }

    /// Adds one row of a thread's push to the sum of its key; if the row `replaces`, its values become the sum.
    /// Threads are added in ascending order. `scratch` is working memory.
    ///
    /// # Panics
    /// If the row has no slot.
    pub(super) fn add(&mut self, dtype: DType, row: PushedRow<'_>, scratch: &mut Vec<u8>) {
        let PushedRow { key, values, .. } = row;
        let Some(slot) = self.find(key) else {
            unreachable!("row {key} of a held push has no sum");
        };
        let words = self.slots.words(slot);
        let mut threads = Threads::of_words(THREADS_AT.map(|at| words.as_read().load(at)));
        if threads.is_empty() || row.replaces {
            words.copy_in(HEAD_BYTES, values);
        } else {
            scratch.resize(values.len(), 0);
            words.as_read().copy_out(HEAD_BYTES, scratch);
            accumulate(dtype, scratch, values);
            words.copy_in(HEAD_BYTES, scratch);
        }
        threads.add(row.thread, row.weight);
        for (at, word) in THREADS_AT.into_iter().zip(threads.words()) {
            words.store(at, word);
        }
    }

    /// Drops the sum of a row. Its slot stays taken. No effect on a row without a slot.
    pub(super) fn clear(&self, key: u64) {
        if let Some(slot) = self.find(key) {
            self.slots.words(slot).store(THREADS_AT[0], Threads::NONE);
        }
    }

    /// Whether a row is needed by a held push: it has a sum, or a held push of an iteration after
    /// `iteration`.
    pub(super) fn is_awaited(&self, key: u64, iteration: u64) -> bool {
        self.find(key).is_some_and(|slot| {
            let words = self.slots.words(slot);
            let words = words.as_read();
            words.load(ITERATION_AT) > iteration + 1 || words.load(THREADS_AT[0]) != Threads::NONE
        })
    }

    /// Takes the sum of a slot when `iteration` ends: appends its values to `values` and returns its key
    /// and threads. `None`, with nothing appended, for a slot without a sum. In both cases the slot is ended
    /// unless it is free or a push of a later iteration has it.
    pub(super) fn take(
        &mut self,
        slot: usize,
        iteration: u64,
        values: &mut Vec<u8>,
    ) -> Option<(u64, Threads)> {
        let words = self.slots.words(slot);
        let [key, newest] = [0, ITERATION_AT].map(|at| words.as_read().load(at));
        let threads = Threads::of_words(THREADS_AT.map(|at| words.as_read().load(at)));
        if !threads.is_empty() {
            let at = values.len();
            values.resize(at + self.row_bytes, 0);
            words.as_read().copy_out(HEAD_BYTES, &mut values[at..]);
        }
        words.store(THREADS_AT[0], Threads::NONE);
        if newest != FREE && newest <= iteration + 1 {
            words.store(ITERATION_AT, ENDED);
            self.live -= 1;
        }
        (!threads.is_empty()).then_some((key, threads))
    }

    /// Ends the walk of a tick over the slots, after all of them were taken. Returns true if it has freed all
    /// slots by zeroing the index, because no row of a later iteration has one. Returns false if the caller
    /// must [sweep](Self::sweep) the ended slots.
    pub(super) fn end_walk(&mut self) -> bool {
        // A small part of a large index is swept faster than all of it is zeroed.
        if self.live > 0 || self.used < self.index.buckets() / 8 {
            return false;
        }
        let cleared = self.index.clear();
        assert!(cleared.is_ok(), "the index is of this memory: {cleared:?}");
        self.free.clear();
        self.used = 0;
        true
    }

    /// Frees the ended slots among those with numbers in `slots`, from 0, and removes their keys from the index.
    pub(super) fn sweep(&mut self, slots: Range<usize>) {
        for slot in slots {
            let words = self.slots.words(slot);
            if words.as_read().load(ITERATION_AT) == ENDED {
                let key = words.as_read().load(0);
                words.store(ITERATION_AT, FREE);
                self.index.remove(key, |n| self.slots.key_of(n));
                self.free.push(slot as u32);
            }
        }
        if self.free.len() == self.used {
            self.free.clear();
            self.used = 0;
        }
    }

    /// Begins a recount after pushes were dropped. Ends the slots without a sum, and sets those with a sum to
    /// the open iteration `open`. The caller then calls [`Self::reserve`] for the rows of all held pushes that
    /// are not in the sums, and [`Self::sweep`] for all slots.
    pub(super) fn begin_recount(&mut self, open: u64) {
        for slot in 0..self.used {
            let words = self.slots.words(slot);
            if matches!(words.as_read().load(ITERATION_AT), FREE | ENDED) {
                continue;
            }
            let threads = Threads::of_words(THREADS_AT.map(|at| words.as_read().load(at)));
            match threads.is_empty() {
                true => words.store(ITERATION_AT, ENDED),
                false => words.store(ITERATION_AT, open + 1),
            }
            self.live -= usize::from(threads.is_empty());
        }
    }

    /// Number of slots that are neither free nor ended.
    #[cfg(test)]
    pub(super) const fn live(&self) -> usize {
        self.live
    }

    /// Prefetches the index entries of a few keys, so that their cache misses overlap.
    pub(super) fn prefetch(&self, keys: impl Iterator<Item = u64>) {
        let touched = keys.fold(0, |seen, key| seen ^ self.index.touch(key));
        std::hint::black_box(touched);
    }

    /// Finds the number of a row's slot, from 0; `None` if it has none.
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        let number = self.index.get(key, |n| self.slots.key_of(n))?;
        Some(number as usize - 1)
    }

    /// Frees the memory of all slots and of the index.
    pub(super) fn release(self) {
        let (memory, pages) = (self.slots.memory, self.slots.pages);
        let freed = pages
            .into_iter()
            .map(|page| memory.private.free(page))
            .chain([self.index.release()])
            .find(Result::is_err);
        assert!(freed.is_none(), "sums are of this memory: {freed:?}");
    }
}

/// Private memory of the slots, in pages of equal size.
#[derive(Debug)]
struct Slots {
    memory: Arc<ServerMemory>,
    pages: Vec<Block>,
    per_page: usize,
    /// Bytes of one slot, header included.
    bytes: usize,
}

impl Slots {
    /// Number of slots that all pages have room for.
    const fn len(&self) -> usize {
        self.pages.len() * self.per_page
    }

    fn add_page(&mut self, owner: BlockOwner) -> Result<(), StoreError> {
        let bytes = self.per_page * self.bytes;
        let page = self.memory.private.alloc_used(bytes, owner)?;
        self.pages.push(page);
        Ok(())
    }

    fn words(&self, slot: usize) -> WordsMut<'_> {
        let page = &self.pages[slot / self.per_page];
        let at = page.at + slot % self.per_page * self.bytes;
        match self.memory.private.region().words_mut(at, self.bytes) {
            Ok(words) => words,
            Err(e) => unreachable!("a sum is outside the memory: {e}"),
        }
    }

    /// Returns the key in the slot with this number of the index, from 1.
    fn key_of(&self, number: u32) -> u64 {
        self.words(number as usize - 1).as_read().load(0)
    }
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::ids::{Incarnation, TableId, WorkerId};

    use super::*;

    fn sums(capacity: usize) -> (Arc<ServerMemory>, RowSums) {
        let memory = Arc::new(ServerMemory::new(capacity, Incarnation(5)).unwrap());
        let sums = RowSums::new(&memory, ShardId::new(TableId(1), 0), 8).unwrap();
        (memory, sums)
    }

    fn add(sums: &mut RowSums, key: u64, rank: u32, value: f32) {
        let values = value.to_le_bytes().repeat(2);
        let row = PushedRow {
            key,
            thread: WorkerThread::first(WorkerId(rank)),
            weight: 1.0,
            values: &values,
            replaces: false,
        };
        sums.add(DType::F32, row, &mut Vec::new());
    }

    /// The sums of an iteration: of each key the first value.
    fn tick(sums: &mut RowSums, iteration: u64) -> Vec<(u64, f32)> {
        let mut values = Vec::new();
        let mut all = Vec::new();
        for slot in 0..sums.slots() {
            values.clear();
            if let Some((key, _)) = sums.take(slot, iteration, &mut values) {
                all.push((key, f32::from_le_bytes(*values.first_chunk().unwrap())));
            }
        }
        if !sums.end_walk() {
            sums.sweep(0..sums.slots());
        }
        all.sort_by_key(|(key, _)| *key);
        all
    }

    /// A row that a rank has pushed for the next iteration keeps its slot over the tick; others are
    /// free. A row that was reserved and not pushed has no sum.
    #[test]
    fn tick_keeps_slots_of_next_iteration() {
        let (_memory, mut sums) = sums(64 << 20);
        sums.reserve(100, |n| n as u64, 0).unwrap();
        sums.reserve(10, |n| n as u64 + 95, 1).unwrap();
        for key in (0..98).chain(0..50) {
            add(&mut sums, key, key as u32 % 3, key as f32);
        }
        let twice = |key: u64| if key < 50 { 2.0 } else { 1.0 };
        let expected: Vec<(u64, f32)> = (0..98).map(|key| (key, twice(key) * key as f32)).collect();
        assert_eq!(tick(&mut sums, 0), expected);
        assert!(!sums.is_empty(), "iteration 1 has slots");
        add(&mut sums, 100, 0, 7.0);
        // Free slots are used again before new ones.
        sums.reserve(50, |n| n as u64 + 1000, 1).unwrap();
        assert_eq!(sums.slots(), 105);
        add(&mut sums, 1049, 1, 8.0);
        assert_eq!(tick(&mut sums, 1), [(100, 7.0), (1049, 8.0)]);
        assert!(sums.is_empty());
        // Nothing of earlier iterations is found any more.
        sums.reserve(3, |n| n as u64 + 99, 2).unwrap();
        assert_eq!((sums.slots(), tick(&mut sums, 2)), (3, Vec::new()));
        sums.release();
    }

    /// Sums count within the capacity: those that do not fit are refused, the others stay, and a tick
    /// makes room.
    #[test]
    fn sums_that_do_not_fit_are_refused() {
        let (memory, mut sums) = sums(16 << 20);
        let mut key = 0;
        let full = loop {
            if let Err(error) = sums.reserve(1, |_| key, 0) {
                break error;
            }
            key += 1;
        };
        assert!(matches!(full, StoreError::NoMemory { .. }), "{full}");
        let (used, _) = memory.private.usage();
        let least = key as usize * (HEAD_BYTES + 8);
        assert!(used >= least, "{used} bytes in use for {key} sums");
        (0..key).for_each(|key| add(&mut sums, key, 0, 1.0));
        assert_eq!(tick(&mut sums, 0).len() as u64, key);
        sums.reserve(1000, |n| n as u64 + (1 << 40), 1).unwrap();
    }
}

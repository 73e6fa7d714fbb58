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
//! none until one is added. A tick frees the slots of its iteration and keeps those of the next one, for ranks that
//! are ahead.

use std::sync::Arc;

use tidewater_protocol::ids::{PartitionId, TableId, WorkerThread};
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::table::DType;
use tidewater_runtime::mem::WordsMut;

use super::kernels::accumulate;
use super::reduce::Threads;
use crate::store::StoreError;
use crate::store::index::Index;
use crate::store::memory::{Block, BlockKind, BlockOwner, ServerMemory};
use crate::store::prepare::Preparer;

const PAGE_BYTES: usize = 1 << 20;
/// Bytes of a slot before its values.
const HEAD_BYTES: usize = 40;
const ITERATION_AT: usize = 8;
const THREADS_AT: [usize; 3] = [16, 24, 32];
/// The iteration of a free slot.
const FREE: u64 = 0;
/// Keys with index entries fetched at once.
const AHEAD: usize = 16;

/// The sums of one operation on the rows of one table.
#[derive(Debug)]
pub(super) struct RowSums {
    memory: Arc<ServerMemory>,
    owner: BlockOwner,
    /// Location of each key with a slot: extent 1, and the number of the slot.
    index: Index,
    pages: Vec<Block>,
    slots_per_page: usize,
    slot_bytes: usize,
    row_bytes: usize,
    /// Slots taken so far, and those of them that are free again.
    used: usize,
    free: Vec<u32>,
}

impl RowSums {
    /// Sums without slots, for rows of this size.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub(super) fn new(
        memory: &Arc<ServerMemory>,
        table: TableId,
        row_bytes: usize,
    ) -> Result<Self, StoreError> {
        let owner = BlockOwner::of((table, 0), BlockKind::Pending, PartitionId(0));
        let slot_bytes = HEAD_BYTES + row_bytes.next_multiple_of(8);
        Ok(Self {
            memory: Arc::clone(memory),
            owner,
            index: Index::new(Arc::clone(memory), Preparer::none(), owner)?,
            pages: Vec::new(),
            slots_per_page: (PAGE_BYTES / slot_bytes).max(1),
            slot_bytes,
            row_bytes,
            used: 0,
            free: Vec::new(),
        })
    }

    /// Whether no row has a slot.
    pub(super) const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Number of slots, free ones included.
    pub(super) const fn slots(&self) -> usize {
        self.used
    }

    /// Takes a slot for each of these rows that has none. Cost: a look into the index for each.
    ///
    /// # Errors
    /// [`StoreError::NoMemory`]; rows before the one that failed have slots.
    pub(super) fn reserve(
        &mut self,
        count: usize,
        key: impl Fn(usize) -> u64,
        iteration: u64,
    ) -> Result<(), StoreError> {
        for first in (0..count).step_by(AHEAD) {
            let group = first..count.min(first + AHEAD);
            let touched = group
                .clone()
                .fold(0, |seen, n| seen ^ self.index.touch(key(n)));
            std::hint::black_box(touched);
            for n in group {
                self.reserve_one(key(n), iteration)?;
            }
        }
        Ok(())
    }

    fn reserve_one(&mut self, key: u64, iteration: u64) -> Result<(), StoreError> {
        if let Some(slot) = self.find(key) {
            let words = self.words(slot);
            let newest = words.as_read().load(ITERATION_AT);
            words.store(ITERATION_AT, newest.max(iteration + 1));
            return Ok(());
        }
        if self.free.is_empty() && self.used == self.pages.len() * self.slots_per_page {
            let bytes = self.slots_per_page * self.slot_bytes;
            let page = self.memory.private.alloc_used(bytes, self.owner)?;
            self.pages.push(page);
        }
        let slot = self.free.last().map_or(self.used, |&slot| slot as usize);
        // The last step that can fail: until here nothing was taken.
        self.index
            .insert(key, RowLocation::new(0, 1, slot as u32))?;
        if self.free.pop().is_none() {
            self.used += 1;
        }
        let words = self.words(slot);
        words.store(0, key);
        words.store(ITERATION_AT, iteration + 1);
        words.store(THREADS_AT[0], Threads::NONE);
        Ok(())
    }

    /// Adds a row of a thread's push, already multiplied by its weight, or replaces it by an assign (`replace`).
    ///
    /// # Panics
    /// If the row has no slot.
    pub(super) fn add(
        &mut self,
        dtype: DType,
        (key, (thread, weight)): (u64, (WorkerThread, f64)),
        (values, replace): (&[u8], bool),
        scratch: &mut Vec<u8>,
    ) {
        let Some(slot) = self.find(key) else {
            unreachable!("row {key} of a held push has no sum");
        };
        let words = self.words(slot);
        let mut threads = Threads::of_words(THREADS_AT.map(|at| words.as_read().load(at)));
        if threads.is_empty() || replace {
            words.copy_in(HEAD_BYTES, values);
        } else {
            scratch.resize(values.len(), 0);
            words.as_read().copy_out(HEAD_BYTES, scratch);
            accumulate(dtype, scratch, values);
            words.copy_in(HEAD_BYTES, scratch);
        }
        threads.add(thread, weight);
        for (at, word) in THREADS_AT.into_iter().zip(threads.words()) {
            words.store(at, word);
        }
    }

    /// Takes the sum of a slot when its iteration ends: copies its values to the end of `values` and
    /// returns key and threads. `None` for a slot without a sum. The slot is freed unless it has a push of
    /// a later iteration.
    pub(super) fn take(
        &mut self,
        slot: usize,
        iteration: u64,
        values: &mut Vec<u8>,
    ) -> Option<(u64, Threads)> {
        let words = self.words(slot);
        let [key, newest] = [0, ITERATION_AT].map(|at| words.as_read().load(at));
        let threads = Threads::of_words(THREADS_AT.map(|at| words.as_read().load(at)));
        if !threads.is_empty() {
            let at = values.len();
            values.resize(at + self.row_bytes, 0);
            words.as_read().copy_out(HEAD_BYTES, &mut values[at..]);
        }
        words.store(THREADS_AT[0], Threads::NONE);
        if newest != FREE && newest <= iteration + 1 {
            words.store(ITERATION_AT, FREE);
            self.index.remove(key);
            self.free.push(slot as u32);
        }
        (!threads.is_empty()).then_some((key, threads))
    }

    /// Ends a tick: without rows of a later iteration, slots are taken from the first one again.
    pub(super) fn end_tick(&mut self) {
        if self.free.len() == self.used {
            self.free.clear();
            self.used = 0;
        }
    }

    fn find(&self, key: u64) -> Option<usize> {
        self.index.get(key).map(|at| at.slot() as usize)
    }

    fn words(&self, slot: usize) -> WordsMut<'_> {
        let page = &self.pages[slot / self.slots_per_page];
        let at = page.at + slot % self.slots_per_page * self.slot_bytes;
        match self.memory.private.region().words_mut(at, self.slot_bytes) {
            Ok(words) => words,
            Err(e) => unreachable!("a sum is outside the memory: {e}"),
        }
    }

    /// Frees the memory of all sums.
    pub(super) fn release(self) {
        let pages = self.pages.into_iter();
        let freed = pages
            .map(|page| self.memory.private.free(page))
            .chain([self.index.release()])
            .find(Result::is_err);
        assert!(freed.is_none(), "sums are of this memory: {freed:?}");
    }
}

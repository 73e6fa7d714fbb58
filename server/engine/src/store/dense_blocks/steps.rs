//! Step counts of a block's elements, as runs of elements with an equal count.
//!
//! One word follows the slots of a block's state. With its top bit clear it is the count of all
//! elements of the block, which suffices while a block is pushed as a whole. Otherwise it names a
//! table in private memory:
//!
//! ```text
//! step word   1 << 63 | class << 58 | offset of the table in words
//! table       u64 n | n runs: count << 16 | last element of the run    room: 2^class words
//! ```
//! Neighbours in a table may have equal counts: a boundary, once made, stays, so that a gradient
//! for which [`DenseBlocks::split_steps`] found room needs no memory later, at its tick. A new
//! boundary makes a new table, which the step word then names: the word is old or new, never torn.

use tidewater_runtime::sync::{Ordering, fence};

use super::part::{Part, Sizes};
use super::{BlocksError, DenseBlocks};
use crate::store::StoreError;
use crate::store::memory::{Block, BlockOwner, ServerMemory};
use crate::store::redo::Redo;
use crate::store::redo_block::StatePiece;

/// Bit set in a step word that names a table of runs, and in the count of a saved block that has runs.
pub(crate) const HAS_RUNS: u64 = 1 << 63;
/// Largest step count; counting stops there.
const COUNT_MAX: u64 = (1 << 48) - 1;
const CLASS_AT: u32 = 58;
/// Size class of the smallest table of runs: the base-2 logarithm of its words, which are the number of runs
/// and up to 15 runs.
const CLASS_MIN: u32 = 4;
/// Number of size classes, those below [`CLASS_MIN`] included. The largest table has 65,536 runs and their
/// number.
const CLASSES: usize = 18;
const CHUNK_BYTES: usize = 64 << 10;

/// Run of elements of a block with an equal step count. It begins behind the run before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepRun {
    /// Index in the block of the run's last element.
    pub(super) last: usize,
    /// Step count of each element.
    pub(super) count: u64,
}

impl StepRun {
    pub(super) fn word(self) -> u64 {
        debug_assert!(self.last < 1 << 16, "element {} of a block", self.last);
        self.count.min(COUNT_MAX) << 16 | self.last as u64
    }

    pub(super) const fn of_word(word: u64) -> Self {
        Self {
            last: (word & 0xffff) as usize,
            count: word >> 16,
        }
    }
}

/// Allocator for the step tables of one shard in private memory. Sizes are powers of two of words; freed
/// tables are reused by size.
#[derive(Debug)]
pub(super) struct StepTables {
    owner: BlockOwner,
    chunks: Vec<Block>,
    /// Byte offset of the unused rest of the newest chunk.
    at: usize,
    /// Bytes of the unused rest of the newest chunk.
    left: usize,
    /// Byte offsets of freed tables by size class.
    free: [Vec<usize>; CLASSES],
}

impl StepTables {
    pub(super) fn new(owner: BlockOwner) -> Self {
        Self {
            owner,
            chunks: Vec::new(),
            at: 0,
            left: 0,
            free: Default::default(),
        }
    }

    /// Finds the memory of the step tables that a dead process left; `state` is the share's block of optimizer
    /// state. Freed tables in this memory are not found again.
    pub(super) fn resume(
        memory: &ServerMemory,
        owner: BlockOwner,
        state: Block,
    ) -> Result<Self, StoreError> {
        let mut all = memory.private.directory()?;
        all.retain(|(block, words)| BlockOwner::of_words(*words) == Some(owner) && *block != state);
        Ok(Self {
            chunks: all.into_iter().map(|(block, _)| block).collect(),
            ..Self::new(owner)
        })
    }

    /// Iterates over the memory blocks of the step tables.
    pub(super) fn chunks(&self) -> impl Iterator<Item = Block> {
        self.chunks.iter().copied()
    }

    fn take(&mut self, memory: &ServerMemory, class: u32) -> Result<usize, StoreError> {
        if let Some(at) = self.free[class as usize].pop() {
            return Ok(at);
        }
        let bytes = 8 << class;
        if self.left < bytes {
            let chunk = CHUNK_BYTES << self.chunks.len().min(6);
            let chunk = memory.private.alloc(chunk.max(bytes), self.owner)?;
            (self.at, self.left) = (chunk.at, chunk.len);
            self.chunks.push(chunk);
        }
        let at = self.at;
        self.at += bytes;
        self.left -= bytes;
        Ok(at)
    }

    pub(super) fn release(self, memory: &ServerMemory) -> Result<(), StoreError> {
        let mut chunks = self.chunks.into_iter();
        chunks.try_for_each(|chunk| memory.private.free(chunk))
    }
}

/// Step counts of one block, as they lie in private memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    /// Byte offset of the step word.
    word_at: usize,
    word: u64,
    /// Byte offset of the first run's word; without a table, that of the step word.
    runs_at: usize,
    /// Number of runs; 1 without a table.
    runs: usize,
    /// Number of elements of the block in use.
    used: usize,
}

impl Steps {
    pub(super) fn of(
        memory: &ServerMemory,
        part: &Part,
        sizes: Sizes,
        block: u64,
    ) -> Result<Self, StoreError> {
        let private = memory.private.region();
        let word_at = part.step_word_at(sizes, block);
        let word = private.words(word_at, 8)?.load(0);
        let used = sizes.layout.used(block) as usize;
        let (runs_at, runs) = match word & HAS_RUNS {
            0 => (word_at, 1),
            _ => {
                let at = table_of(word).1;
                (at + 8, private.words(at, 8)?.load(0) as usize)
            }
        };
        assert!(
            (1..=used).contains(&runs),
            "{runs} runs in block {block} of {used} elements"
        );
        Ok(Self {
            word_at,
            word,
            runs_at,
            runs,
            used,
        })
    }

    pub(super) fn run(&self, memory: &ServerMemory, n: usize) -> Result<StepRun, StoreError> {
        let at = self.runs_at + n * 8;
        let word = memory.private.region().words(at, 8)?.load(0);
        Ok(match self.word & HAS_RUNS {
            0 => StepRun {
                last: self.used - 1,
                count: word,
            },
            _ => StepRun::of_word(word),
        })
    }

    /// Returns the largest step count in the block.
    pub(super) fn most(&self, memory: &ServerMemory) -> Result<u64, StoreError> {
        (0..self.runs).try_fold(0, |most, n| Ok(self.run(memory, n)?.count.max(most)))
    }

    /// Returns the index of the run that an element is in; past the last element, the number of runs.
    pub(super) fn find(&self, memory: &ServerMemory, element: usize) -> Result<usize, StoreError> {
        let (mut low, mut high) = (0, self.runs);
        while low < high {
            let middle = low.midpoint(high);
            match self.run(memory, middle)?.last < element {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Ok(low)
    }

    /// Whether a run begins at an element. Also true at the beginning and the end of the block.
    fn begins_at(&self, memory: &ServerMemory, element: usize) -> Result<bool, StoreError> {
        Ok(match element {
            0 => true,
            _ if element >= self.used => true,
            _ => {
                let before = self.find(memory, element - 1)?;
                self.run(memory, before)?.last + 1 == element
            }
        })
    }

    /// Encodes a run as the word that is stored for it in this block.
    pub(super) fn stored(&self, run: StepRun) -> u64 {
        match self.word & HAS_RUNS {
            0 => run.count.min(COUNT_MAX),
            _ => run.word(),
        }
    }

    /// Returns the location of the words of `count` runs from index `first` on.
    pub(super) const fn piece(&self, first: usize, count: usize) -> StatePiece {
        StatePiece {
            at: self.runs_at + first * 8,
            len: count * 8,
        }
    }

    /// Appends all runs of the block to `out`.
    fn copy(&self, memory: &ServerMemory, out: &mut Vec<StepRun>) -> Result<(), StoreError> {
        (0..self.runs).try_for_each(|n| {
            out.push(self.run(memory, n)?);
            Ok(())
        })
    }
}

/// Returns the size class and the byte offset of the table that a step word names.
const fn table_of(word: u64) -> (u32, usize) {
    let class = (word & !HAS_RUNS) >> CLASS_AT;
    (class as u32, (word & ((1 << CLASS_AT) - 1)) as usize * 8)
}

/// Replaces the runs of a block's step counts in private memory by `runs`, and frees the block's former table
/// of runs: the redo record no longer names it, since its memory may be used again before the next record. On an
/// error nothing was changed.
fn replace(
    memory: &ServerMemory,
    redo: &Redo,
    tables: &mut StepTables,
    steps: Steps,
    runs: &[StepRun],
) -> Result<(), StoreError> {
    let private = memory.private.region();
    let word = match runs {
        [run] => run.count.min(COUNT_MAX),
        _ => {
            let words = runs.len() + 1;
            let class = words.next_power_of_two().trailing_zeros().max(CLASS_MIN);
            let at = tables.take(memory, class)?;
            let table = private.words_mut(at, words * 8)?;
            table.store(0, runs.len() as u64);
            for (n, run) in runs.iter().enumerate() {
                table.store((n + 1) * 8, run.word());
            }
            // SYNC: redo. A table is written before the word that names it.
            fence(Ordering::Release);
            HAS_RUNS | u64::from(class) << CLASS_AT | (at / 8) as u64
        }
    };
    redo.forget_piece(steps.word_at..steps.word_at + 8)?;
    private.words_mut(steps.word_at, 8)?.store(0, word);
    if steps.word & HAS_RUNS != 0 {
        let (class, at) = table_of(steps.word);
        redo.forget_piece(at..at + (8 << class))?;
        tables.free[class as usize].push(at);
    }
    Ok(())
}

/// Decodes the step counts of a saved block to runs. `bytes` is the block's saved state behind the slots.
/// `None` if that is not valid for a block of `used` elements.
fn decode(mut bytes: &[u8], used: usize) -> Option<Vec<StepRun>> {
    let mut word = || {
        let (word, rest) = bytes.split_first_chunk::<8>()?;
        bytes = rest;
        Some(u64::from_le_bytes(*word))
    };
    let first = word()?;
    if first & HAS_RUNS == 0 {
        let (last, count) = (used - 1, first);
        return (count <= COUNT_MAX && bytes.is_empty()).then(|| vec![StepRun { last, count }]);
    }
    let n = (first & !HAS_RUNS) as usize;
    let mut runs: Vec<StepRun> = Vec::new();
    while let Some(run) = word().map(StepRun::of_word) {
        let before = runs.last();
        if before.is_some_and(|before| before.last >= run.last || before.count == run.count) {
            return None;
        }
        runs.push(run);
    }
    let complete = runs.last().is_some_and(|run| run.last + 1 == used);
    (n >= 2 && runs.len() == n && complete && bytes.is_empty()).then_some(runs)
}

/// Appends the runs in the form of a saved block to `out`. Neighbours with an equal count become one run, also in
/// `runs`, which must not be empty.
fn encode(runs: &mut Vec<StepRun>, out: &mut Vec<u8>) {
    runs.dedup_by(|next, before| {
        let same = next.count == before.count;
        if same {
            before.last = next.last;
        }
        same
    });
    let mut put = |word: u64| out.extend(word.to_le_bytes());
    match &runs[..] {
        [run] => put(run.count),
        _ => {
            put(HAS_RUNS | runs.len() as u64);
            runs.iter().for_each(|run| put(run.word()));
        }
    }
}

impl DenseBlocks {
    /// Splits runs of step counts where a gradient for the range of `count` elements from `first` on begins and
    /// ends. No count changes. The gradient then needs no more memory when it is applied, now or at a tick. No
    /// effect on a table with an optimizer that counts no steps. Cost: a search; for a boundary that is not there
    /// yet, a copy of the block's runs.
    ///
    /// # Errors
    /// [`BlocksError::Store`] when memory is used up, [`BlocksError::NotOwned`].
    pub fn split_steps(&mut self, redo: &Redo, first: u64, count: u64) -> Result<(), BlocksError> {
        if !self.sizes.counts {
            return Ok(());
        }
        let part = self.owned(first, count)?;
        let Some(part) = self.parts.get(part).and_then(Option::as_ref) else {
            unreachable!("partition {part} is owned and has no memory");
        };
        let size = self.sizes.layout.block_elements();
        for element in [first, first + count] {
            // An end that is the end of a block is a boundary, also that of the table.
            let (block, cut) = (element / size, (element % size) as usize);
            if cut == 0 {
                continue;
            }
            let steps = Steps::of(&self.memory, part, self.sizes, block)?;
            if steps.begins_at(&self.memory, cut)? {
                continue;
            }
            let runs = &mut self.runs;
            runs.clear();
            steps.copy(&self.memory, runs)?;
            let n = steps.find(&self.memory, cut)?;
            let count = runs[n].count;
            runs.insert(
                n,
                StepRun {
                    last: cut - 1,
                    count,
                },
            );
            replace(&self.memory, redo, &mut self.tables, steps, runs)?;
        }
        Ok(())
    }

    /// Appends a block's step counts to `out`, in the form of a saved model. `part` is the index of its
    /// partition.
    pub(super) fn save_steps(
        &mut self,
        part: usize,
        block: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), BlocksError> {
        let Some(part) = self.parts.get(part).and_then(Option::as_ref) else {
            unreachable!("partition {part} is owned and has no memory");
        };
        self.runs.clear();
        let steps = Steps::of(&self.memory, part, self.sizes, block)?;
        steps.copy(&self.memory, &mut self.runs)?;
        encode(&mut self.runs, out);
        Ok(())
    }

    /// Replaces a block's step counts by those of a saved model. `part` is the index of its partition.
    ///
    /// # Errors
    /// [`BlocksError::Steps`] if `saved` is not valid for the block, [`BlocksError::Store`] when memory is used
    /// up. Nothing was changed.
    pub(super) fn load_steps(
        &mut self,
        redo: &Redo,
        part: usize,
        block: u64,
        saved: &[u8],
    ) -> Result<(), BlocksError> {
        let used = self.sizes.layout.used(block) as usize;
        let runs = decode(saved, used).ok_or(BlocksError::Steps { block })?;
        let Some(part) = self.parts.get(part).and_then(Option::as_ref) else {
            unreachable!("partition {part} is owned and has no memory");
        };
        let steps = Steps::of(&self.memory, part, self.sizes, block)?;
        Ok(replace(&self.memory, redo, &mut self.tables, steps, &runs)?)
    }
}

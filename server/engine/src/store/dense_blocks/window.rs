//! One step on a range inside one block: out of shared memory, through the rule, and back.
//!
//! Shared memory is read and written in words, rules work on elements. A range of 4-byte elements
//! may begin or end inside a word: the window is then one element wider, and the rule runs on a
//! compact copy of the state without the neighbours.

use std::ops::Range;

use tidewater_protocol::layout::dense::{BlockLayout, TaggedU32};
use tidewater_protocol::layout::lines::SnapshotLine;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::PushOp;
use tidewater_runtime::mem::versioned::BlockVersions;

use super::part::{Part, Sizes};
use super::rotation::Rotation;
use super::steps::{StepRun, Steps};
use super::{BlocksError, DenseBlocks, length};
use crate::store::StoreError;
use crate::store::memory::ServerMemory;
use crate::store::redo::{Progress, Redo};
use crate::store::redo_block::{BlockPlace, PIECES, StatePiece};
use tidewater_kernels::RowKernel;

/// Range of elements inside one block of a range table.
#[derive(Debug, Clone, Copy)]
pub(super) struct WithinBlock {
    pub(super) block: u64,
    /// Index of its first element in the block.
    from: usize,
    pub(super) count: usize,
}

impl WithinBlock {
    /// Returns the part of the `count` elements from `first` on that lies in their first block.
    pub(super) fn new(layout: BlockLayout, first: u64, count: usize) -> Self {
        let size = layout.block_elements();
        let from = (first % size) as usize;
        Self {
            block: first / size,
            from,
            count: count.min(size as usize - from),
        }
    }
}

/// Working memory of one shard for steps on blocks: private copies of payload and state. Grows to one block
/// and is kept.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) payload: Vec<u8>,
    state: Vec<u8>,
    /// Optimizer state of exactly a range, where `state` holds neighbours too. With Adam its step count
    /// comes last.
    compact: Vec<u8>,
    /// Step counts of the current runs, encoded as they are stored.
    steps: Vec<u64>,
}

/// Elements of one block for one step of a kernel, as byte ranges of the window (private copies of payload and
/// state).
struct Elements<'a> {
    sizes: Sizes,
    /// Bytes of each state slot in the window.
    wide: usize,
    /// Byte range of the elements in the payload.
    part: Range<usize>,
    /// Byte range of the elements in each state slot.
    slot: Range<usize>,
    /// Values of the push for these elements.
    values: &'a [u8],
    /// Step count of the elements before the step; 0 for an optimizer that counts no steps.
    count: u64,
}

impl Window {
    fn load(
        &mut self,
        memory: &ServerMemory,
        payload_at: usize,
        payload_len: usize,
        pieces: &[StatePiece; PIECES],
    ) -> Result<(), StoreError> {
        let public = memory.public.region();
        self.payload.resize(payload_len, 0);
        let words = public.words(payload_at, payload_len)?;
        words.copy_out(0, &mut self.payload);
        self.load_state(memory, pieces)
    }

    fn load_state(
        &mut self,
        memory: &ServerMemory,
        pieces: &[StatePiece; PIECES],
    ) -> Result<(), StoreError> {
        let private = memory.private.region();
        self.state.resize(pieces.iter().map(|p| p.len).sum(), 0);
        let mut rest = &mut self.state[..];
        for piece in pieces {
            let (now, later) = rest.split_at_mut(piece.len);
            let words = private.words(piece.at, piece.len)?;
            words.copy_out(0, now);
            rest = later;
        }
        Ok(())
    }

    /// Copies the byte range `range` of each slot of `wide` bytes in `state` to `compact`, where slots have the
    /// range's length; without `out` from `compact` back to `state`.
    fn copy_compact(&mut self, sizes: Sizes, wide: usize, range: &Range<usize>, out: bool) {
        let copy = |a: &mut [u8], b: &mut [u8]| match out {
            true => b.copy_from_slice(a),
            false => a.copy_from_slice(b),
        };
        for slot in 0..sizes.slots {
            let a = &mut self.state[slot * wide..][range.clone()];
            copy(a, &mut self.compact[slot * range.len()..][..range.len()]);
        }
    }

    /// Applies one step of `kernel` to some elements of the window. Returns their step count afterwards, a number
    /// without meaning for an optimizer that counts no steps.
    fn step(&mut self, kernel: &RowKernel, op: PushOp, elements: Elements<'_>) -> u64 {
        let Elements {
            sizes,
            wide,
            part,
            slot,
            values,
            count,
        } = elements;
        if slot == (0..wide) || sizes.slots == 0 {
            let payload = &mut self.payload[part];
            // All of the current state, as it is.
            let slots = self.state.len();
            if sizes.counts {
                self.state.extend_from_slice(&count.to_le_bytes());
            }
            kernel.apply(op, payload, &mut self.state, values);
            let count = last_word(&self.state);
            self.state.truncate(slots);
            return count;
        }
        self.compact.clear();
        self.compact.resize(kernel.state_bytes(), 0);
        self.copy_compact(sizes, wide, &slot, true);
        if sizes.counts
            && let Some(last) = self.compact.last_chunk_mut::<8>()
        {
            *last = count.to_le_bytes();
        }
        let payload = &mut self.payload[part];
        kernel.apply(op, payload, &mut self.compact, values);
        self.copy_compact(sizes, wide, &slot, false);
        last_word(&self.compact)
    }
}

/// Reads the last 8 bytes of a state: with an optimizer that counts steps, the step count after the slots.
/// Returns 0 for a shorter state.
fn last_word(state: &[u8]) -> u64 {
    state
        .last_chunk()
        .map_or(0, |last| u64::from_le_bytes(*last))
}

impl DenseBlocks {
    /// Applies a push to a range inside one block: copies the range out of shared memory, runs the kernel, stores
    /// the result (with a redo record if the table keeps them). `part` is the index of the partition. Before a
    /// gradient the caller splits the step counts at both ends of the range ([`Self::split_steps`]).
    pub(super) fn update(
        &mut self,
        redo: &Redo,
        progress: Progress,
        part: usize,
        cut: WithinBlock,
        op: PushOp,
        values: &[u8],
    ) -> Result<(), BlocksError> {
        if self.watch.is_on() {
            self.before_write(cut.block)?;
        }
        let sizes = self.sizes;
        let Some(part) = self.parts.get_mut(part).and_then(Option::as_mut) else {
            unreachable!("partition {part} of {cut:?} is not of this shard");
        };
        let size = sizes.layout.element_bytes;
        let range = cut.from * size..(cut.from + cut.count) * size;
        let wide = range.start & !7..range.end.next_multiple_of(8);
        // A snapshot's buffer gets the complete block: its bytes are those of two epochs ago.
        let window = match sizes.snapshot {
            true => 0..sizes.used_bytes(cut.block),
            false => wide.clone(),
        };
        let [source, target] = part.buffers(sizes, cut.block, self.line, &self.rotation);
        let mut pieces = part.pieces(sizes, cut.block, wide.start, wide.end);
        let w = &mut self.window;
        w.load(&self.memory, source + window.start, window.len(), &pieces)?;
        let elements = |bytes: Range<usize>, count: u64| {
            let within = |start: usize| bytes.start - start..bytes.end - start;
            Elements {
                sizes,
                wide: wide.len(),
                part: within(window.start),
                slot: within(wide.start),
                values: &values[within(range.start)],
                count,
            }
        };
        if sizes.counts && op == PushOp::Gradient {
            let steps = Steps::of(&self.memory, &*part, sizes, cut.block)?;
            let first = steps.find(&self.memory, cut.from)?;
            let (mut at, mut n) = (cut.from, first);
            w.steps.clear();
            while at < cut.from + cut.count {
                let mut run = steps.run(&self.memory, n)?;
                if mutants::on(Mutant::StepCountPerBlock) {
                    run.count = steps.most(&self.memory)?;
                }
                let bytes = at * size..(run.last + 1) * size;
                assert!(
                    bytes.end <= range.end,
                    "{run:?} of {cut:?} ends behind its bytes {range:?}"
                );
                let kernel = self
                    .kernel
                    .of_length(&self.spec.optimizer, bytes.len() / size);
                let count = w.step(&kernel, op, elements(bytes, run.count));
                w.steps.push(steps.stored(StepRun { count, ..run }));
                (at, n) = (run.last + 1, n + 1);
            }
            pieces[sizes.slots] = steps.piece(first, w.steps.len());
            for word in &w.steps {
                w.state.extend_from_slice(&word.to_le_bytes());
            }
        } else {
            let kernel = self.kernel.of_length(&self.spec.optimizer, cut.count);
            w.step(&kernel, op, elements(range.clone(), 0));
        }
        let version_at = part.version_at(sizes, cut.block);
        let place = BlockPlace {
            payload_at: target + window.start,
            version_at,
            versions: next_versions(&self.memory, version_at, self.salt)?,
            pieces,
        };
        let record = self.spec.keeps_redo().then_some(progress);
        redo.store_result(record, place, &w.payload, &w.state)?;
        part.touch(sizes, cut.block, self.line.building);
        Ok(())
    }

    /// Replaces `out` by the optimizer state of a block's elements in use: the slots, with their length from
    /// [`Self::block_lengths`], then the step counts if the optimizer counts steps.
    ///
    /// # Errors
    /// [`BlocksError::NotOwned`] for a block that is not this applier's.
    pub fn read_state_block(&mut self, block: u64, out: &mut Vec<u8>) -> Result<(), BlocksError> {
        let (payload, slots) = self.block_lengths(block)?;
        let (first, count) = self.elements_of(block)?;
        let p = self.owned(first, count)?;
        let Some(part) = self.parts.get(p).and_then(Option::as_ref) else {
            unreachable!("block {block} is in partition {p}, which is not of this shard");
        };
        let wide = self.sizes.used_bytes(block);
        let pieces = part.pieces(self.sizes, block, 0, wide);
        self.window.load_state(&self.memory, &pieces)?;
        self.window.compact.clear();
        self.window.compact.resize(slots, 0);
        self.window
            .copy_compact(self.sizes, wide, &(0..payload), true);
        out.clear();
        out.extend_from_slice(&self.window.compact);
        if self.sizes.counts {
            self.save_steps(p, block, out)?;
        }
        Ok(())
    }

    /// Replaces the elements in use of a block and their optimizer state, for a load of a saved model. `state` is
    /// as [`Self::read_state_block`] gives it. On a snapshot table the block is stored in the epoch that is being
    /// built.
    ///
    /// # Errors
    /// [`BlocksError`]; `Epoch` on a snapshot table without an open epoch.
    pub fn restore_block(
        &mut self,
        redo: &Redo,
        progress: Progress,
        block: u64,
        payload: &[u8],
        state: &[u8],
    ) -> Result<(), BlocksError> {
        let (want, slots) = self.block_lengths(block)?;
        if payload.len() != want {
            return Err(length("payload of a block", payload.len(), want));
        }
        let least = slots + if self.sizes.counts { 8 } else { 0 };
        let fits = state.len() == least || (self.sizes.counts && state.len() > least);
        let (state, steps) = match state.split_at_checked(slots) {
            Some(parts) if fits => parts,
            _ => return Err(length("state of a block", state.len(), least)),
        };
        self.demand_epoch("a restore")?;
        if self.watch.is_on() {
            self.before_write(block)?;
        }
        let (first, count) = self.elements_of(block)?;
        let p = self.owned(first, count)?;
        if self.sizes.counts {
            self.load_steps(redo, p, block, steps)?;
        }
        let sizes = self.sizes;
        let Some(part) = self.parts.get_mut(p).and_then(Option::as_mut) else {
            unreachable!("block {block} is in partition {p}, which is not of this shard");
        };
        let wide = sizes.used_bytes(block);
        let pieces = part.pieces(sizes, block, 0, wide);
        let w = &mut self.window;
        w.payload.clear();
        w.payload.extend_from_slice(payload);
        w.payload.resize(wide, 0);
        w.state.clear();
        w.state.resize(pieces.iter().map(|p| p.len).sum(), 0);
        w.compact.clear();
        w.compact.extend_from_slice(state);
        w.copy_compact(sizes, wide, &(0..want), false);
        let version_at = part.version_at(sizes, block);
        let place = BlockPlace {
            payload_at: part.payload_at(sizes, block, self.rotation.building()),
            version_at,
            versions: next_versions(&self.memory, version_at, self.salt)?,
            pieces,
        };
        let record = self.spec.keeps_redo().then_some(progress);
        redo.store_result(record, place, &w.payload, &w.state)?;
        part.touch(sizes, block, self.line.building);
        Ok(())
    }
}

impl Part {
    /// Returns the byte offsets of the payload that a step on a block reads, and of the one that it writes.
    /// On a snapshot table it reads the front, or this epoch's buffer if the block is stored there already.
    fn buffers(
        &self,
        sizes: Sizes,
        block: u64,
        line: SnapshotLine,
        rotation: &Rotation,
    ) -> [usize; 2] {
        let stored = self.stored.get((block - self.first) as usize);
        let again = stored == Some(&line.building);
        let target = rotation.building();
        let source = if again { target } else { rotation.front() };
        [source, target].map(|buffer| self.payload_at(sizes, block, buffer))
    }
}

/// Computes the version words of a block's next write: during the write (odd) and after it (even).
fn next_versions(memory: &ServerMemory, at: usize, salt: u64) -> Result<BlockVersions, StoreError> {
    let word = memory.public.region().words(at, 8)?.load(0);
    // The applier alone writes it, tagged; its sequence is even here, or the redo was not finished.
    let seq = (word as u32) & !1;
    let after = |n| TaggedU32::new(seq.wrapping_add(n), salt).0;
    Ok(BlockVersions {
        writing: after(1),
        done: after(2),
    })
}

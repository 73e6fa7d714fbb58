//! The memory of a range table on one applier, and the layout of a partition in it.

use tidewater_protocol::ids::{PartitionId, RegionKey};
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::dense::{BlockLayout, TaggedU32};
use tidewater_protocol::layout::lines::SnapshotLine;
use tidewater_protocol::table::TableSpec;
use tidewater_runtime::mem::versioned::{publish_snapshot, void};

use super::BlocksDescriptor;
use crate::store::StoreError;
use crate::store::memory::{Block, BlockKind, BlockOwner, ServerMemory};
use crate::store::redo_block::{PIECES, StatePiece};
use crate::store::sparse::ShardError;
use tidewater_kernels::RowKernel;

/// Sequence number of a block's first version.
const FIRST_SEQ: u32 = 2;

/// Sizes of a range table that all of its partitions share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) layout: BlockLayout,
    pub(super) snapshot: bool,
    /// Number of copies of the payload: the versions of a snapshot table, otherwise 1.
    pub(super) buffers: usize,
    /// Number of optimizer state elements for each element.
    pub(super) slots: usize,
    /// Whether a step word follows the state slots of a block.
    pub(super) counts: bool,
}

impl Sizes {
    /// Bytes from the beginning of one block's state to that of the next: slots and step word.
    pub(super) const fn state_stride(&self) -> usize {
        self.slots * self.layout.block_bytes + if self.counts { 8 } else { 0 }
    }

    /// Payload bytes of `n` blocks in all buffers together.
    const fn payload_bytes(&self, n: usize) -> usize {
        n * self.layout.block_bytes * self.buffers
    }

    /// Bytes of version words and snapshot record for a partition of `n` blocks.
    const fn meta_bytes(&self, n: usize) -> usize {
        n * 8 + if self.snapshot { LINE_BYTES } else { 0 }
    }

    /// Payload bytes of a block's elements in use, rounded up to whole words.
    pub(super) const fn used_bytes(&self, block: u64) -> usize {
        (self.layout.used(block) as usize * self.layout.element_bytes).next_multiple_of(8)
    }
}

/// Memory of all partitions of a range table on one applier, one after the other: payload and meta (version
/// words, snapshot records) in a block of public memory each, optimizer state in private memory. A remote
/// reader of many partitions finds their version words side by side, and reads all of them, and all of the
/// payload, at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ground {
    payload: Block,
    payload_key: RegionKey,
    meta: Block,
    meta_key: RegionKey,
    state: Block,
}

/// Location of the memory of a range table that outlives its process, for a process that takes over after a
/// crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BlocksKept {
    pub(super) salt: u64,
    pub(super) payload: Block,
    pub(super) meta: Block,
    pub(super) state: Block,
}

impl Ground {
    /// Resumes the memory that a dead process left: registers its public blocks again.
    pub(super) fn resume(memory: &ServerMemory, place: BlocksKept) -> Result<Self, StoreError> {
        let BlocksKept {
            payload,
            meta,
            state,
            ..
        } = place;
        Ok(Self {
            payload,
            payload_key: memory.export(payload)?,
            meta,
            meta_key: memory.export(meta)?,
            state,
        })
    }

    /// Whether the memory has room for all that partitions were given: a check of what a dead process left.
    pub(super) const fn holds(&self, given: Given, sizes: Sizes) -> bool {
        sizes.payload_bytes(given.blocks) <= self.payload.len
            && given.meta <= self.meta.len
            && given.blocks * sizes.state_stride() <= self.state.len
    }

    /// Returns the location of the memory for a process that takes over after a crash.
    pub(super) const fn kept_place(&self, salt: u64) -> BlocksKept {
        BlocksKept {
            salt,
            payload: self.payload,
            meta: self.meta,
            state: self.state,
        }
    }

    /// Allocates zeroed memory for `parts` partitions with `blocks` blocks in total, and registers its public
    /// blocks. Nothing is allocated on an error.
    pub(super) fn new(
        memory: &ServerMemory,
        owner: BlockOwner,
        sizes: Sizes,
        parts: u64,
        blocks: u64,
    ) -> Result<Self, StoreError> {
        let each = sizes.payload_bytes(1) + sizes.state_stride() + sizes.meta_bytes(1);
        // Half the address space: sums of offsets cannot overflow.
        let limit = (usize::MAX / 2 / each) as u64;
        if blocks.max(parts) > limit {
            return Err(StoreError::Limit {
                what: "blocks of an applier",
                have: blocks,
                limit,
            });
        }
        let (parts, n) = (parts as usize, blocks as usize);
        let meta_owner = BlockOwner {
            kind: BlockKind::Meta,
            ..owner
        };
        // A partition with a snapshot record begins with the line of that; aligning it may waste
        // some of another.
        let lines = if sizes.snapshot { 2 * parts } else { 0 };
        let meta_bytes = n * 8 + lines * LINE_BYTES;
        let (payload, payload_key) = memory.public_block(sizes.payload_bytes(n), owner)?;
        let (meta, meta_key) = memory
            .public_block(meta_bytes, meta_owner)
            .or_else(|e| memory.public.free_untouched(payload).and(Err(e)))?;
        let state = memory
            .private
            .alloc(n * sizes.state_stride(), owner)
            .or_else(|e| {
                memory.public.free_untouched(payload)?;
                memory.public.free_untouched(meta).and(Err(e))
            })?;
        Ok(Self {
            payload,
            payload_key,
            meta,
            meta_key,
            state,
        })
    }

    /// Zeroes the public memory, version words first, and then frees all of the memory.
    pub(super) fn release(self, memory: &ServerMemory) -> Result<(), StoreError> {
        let public = &memory.public;
        for block in [self.meta, self.payload] {
            let words = public.region().words_mut(block.at, block.len)?;
            void(words, block.len);
        }
        public.free(self.meta)?;
        public.free(self.payload)?;
        memory.private.free(self.state)
    }
}

/// One partition of a range table on its applier. Its memory is part of the applier's [`Ground`].
#[derive(Debug)]
pub(super) struct Part {
    pub(super) first: u64,
    pub(super) blocks: u64,
    /// Byte offset of the partition's first block in public memory.
    payload: usize,
    /// Byte offset of the partition's snapshot record and version words in public memory.
    meta: usize,
    /// Byte offset of the partition's optimizer state in private memory.
    state: usize,
    /// Epoch in which each block was stored last. Empty on a table without snapshots.
    pub(super) stored: Vec<u64>,
    /// Numbers of the blocks stored in each of the newest epochs, by epoch modulo the number of buffers.
    pub(super) touched: Vec<Vec<u64>>,
}

/// Amounts of a [`Ground`] that its partitions have been given: blocks, and bytes of meta.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Given {
    blocks: usize,
    meta: usize,
}

impl Part {
    /// Creates a partition with the next `blocks` blocks of the applier's memory, for block numbers from
    /// `first` on, and adds them to `given`. Writes nothing into the memory.
    pub(super) fn new(
        ground: &Ground,
        given: &mut Given,
        sizes: Sizes,
        first: u64,
        blocks: u64,
    ) -> Self {
        let n = blocks as usize;
        let line = if sizes.snapshot { LINE_BYTES } else { 8 };
        let meta = given.meta.next_multiple_of(line);
        let part = Self {
            first,
            blocks,
            payload: ground.payload.at + sizes.payload_bytes(given.blocks),
            meta: ground.meta.at + meta,
            state: ground.state.at + given.blocks * sizes.state_stride(),
            stored: vec![0; if sizes.snapshot { n } else { 0 }],
            touched: vec![Vec::new(); sizes.buffers],
        };
        *given = Given {
            blocks: given.blocks + n,
            meta: meta + sizes.meta_bytes(n),
        };
        part
    }

    /// Writes initial values, states and versions of all blocks, in all buffers. Needs no redo record,
    /// because no reader knows the memory yet.
    pub(super) fn fill(
        &self,
        memory: &ServerMemory,
        spec: &TableSpec,
        sizes: Sizes,
        salt: u64,
    ) -> Result<(), ShardError> {
        let (mut payload, mut state) = (Vec::new(), Vec::new());
        for block in self.first..self.first + self.blocks {
            let used = sizes.layout.used(block) as usize;
            let kernel = RowKernel::of_table(spec, used)?;
            payload.resize(kernel.row_bytes(), 0);
            state.resize(kernel.state_bytes(), 0);
            kernel.init_row(&spec.init, spec.seed, block, &mut payload, &mut state);
            self.fill_block(memory, sizes, salt, block, &payload, &state)?;
        }
        if sizes.snapshot {
            self.publish(memory, salt, SnapshotLine::default())?;
        }
        Ok(())
    }

    fn fill_block(
        &self,
        memory: &ServerMemory,
        sizes: Sizes,
        salt: u64,
        block: u64,
        payload: &[u8],
        state: &[u8],
    ) -> Result<(), StoreError> {
        let (public, private) = (memory.public.region(), memory.private.region());
        for buffer in 0..sizes.buffers {
            let at = self.payload_at(sizes, block, buffer);
            public.words_mut(at, payload.len())?.copy_in(0, payload);
        }
        // The step word begins at 0, as the memory does: all elements have taken no step.
        let pieces = self.pieces(sizes, block, 0, payload.len());
        let slots = state.chunks_exact(payload.len()).take(sizes.slots);
        for (piece, slot) in pieces.iter().zip(slots) {
            private.words_mut(piece.at, slot.len())?.copy_in(0, slot);
        }
        let version = TaggedU32::new(FIRST_SEQ, salt).0;
        let words = public.words_mut(self.version_at(sizes, block), 8)?;
        words.store_release(0, version);
        Ok(())
    }

    /// Byte offset in public memory of a block's payload in a buffer.
    pub(super) const fn payload_at(&self, sizes: Sizes, block: u64, buffer: usize) -> usize {
        let n = buffer as u64 * self.blocks + (block - self.first);
        self.payload + n as usize * sizes.layout.block_bytes
    }

    /// Byte offset of a block's version word, in public memory.
    pub(super) const fn version_at(&self, sizes: Sizes, block: u64) -> usize {
        let line = if sizes.snapshot { LINE_BYTES } else { 0 };
        self.meta + line + (block - self.first) as usize * 8
    }

    /// Byte offset of a block's step word, in private memory.
    pub(super) const fn step_word_at(&self, sizes: Sizes, block: u64) -> usize {
        let at = self.state + (block - self.first) as usize * sizes.state_stride();
        at + sizes.slots * sizes.layout.block_bytes
    }

    /// Returns the locations of the optimizer state of payload bytes `from..to` of a block, one piece a
    /// slot, without step counts. `from` and `to` are multiples of 8. Pieces behind the slots have length 0.
    pub(super) fn pieces(
        &self,
        sizes: Sizes,
        block: u64,
        from: usize,
        to: usize,
    ) -> [StatePiece; PIECES] {
        let at = self.state + (block - self.first) as usize * sizes.state_stride();
        std::array::from_fn(|i| match i {
            i if i < sizes.slots => StatePiece {
                at: at + i * sizes.layout.block_bytes + from,
                len: to - from,
            },
            _ => StatePiece::default(),
        })
    }

    /// Writes the snapshot record of the partition. A reader that accepts it sees everything stored before
    /// it.
    pub(super) fn publish(
        &self,
        memory: &ServerMemory,
        salt: u64,
        line: SnapshotLine,
    ) -> Result<(), StoreError> {
        let words = memory.public.region().words_mut(self.meta, LINE_BYTES)?;
        publish_snapshot(words, &line.to_line(salt));
        Ok(())
    }

    pub(super) fn descriptor(
        &self,
        ground: &Ground,
        sizes: Sizes,
        partition: PartitionId,
    ) -> BlocksDescriptor {
        let at = |buffer| self.payload_at(sizes, self.first, buffer) as u64;
        BlocksDescriptor {
            partition,
            first_block: self.first,
            blocks: self.blocks,
            payload: [at(0), at(1)],
            buffers: sizes.buffers,
            payload_key: ground.payload_key,
            versions: self.version_at(sizes, self.first) as u64,
            snapshot: if sizes.snapshot {
                Some(self.meta as u64)
            } else {
                None
            },
            meta_key: ground.meta_key,
        }
    }
}

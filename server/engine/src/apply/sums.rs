//! Sums of an open iteration: the reduced pushes of the ranks that have had their turn.
//!
//! Ranks are added in ascending order, each at once and thread after thread. A sum continues where the
//! previous rank ended: the bits are those of one pass over all ranks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tidewater_protocol::layout::reject::RejectReason;

use super::Refusal;
use super::reduce::Threads;
use super::row_sums::RowSums;
use crate::store::ShardId;
use crate::store::memory::{Block, BlockKind, BlockOwner, ServerMemory};

/// Sums of one table in an open iteration: of rows or of blocks.
#[derive(Debug)]
pub(super) enum Sums {
    /// Sums of rows, one for each operation of a tick in the order of `tick_order`. `None` until the
    /// operation is pushed.
    Rows(Box<[Option<RowSums>; 3]>),
    /// Sums of the blocks of a range table.
    Blocks(BlockSums),
}

impl Sums {
    /// Frees the memory of all sums of the table.
    pub(super) fn release(self) {
        match self {
            Self::Rows(all) => all.into_iter().flatten().for_each(RowSums::release),
            Self::Blocks(sums) => sums.release(),
        }
    }
}

/// Sum of one operation on one block: its slot, its elements that were pushed, and the threads that pushed.
#[derive(Debug)]
pub(super) struct BlockSum {
    slot: usize,
    /// Element ranges in the block that were pushed: sorted, disjoint, not adjacent.
    pub(super) runs: Vec<Range<usize>>,
    /// Threads that pushed any of these elements, as the divisor of a mean.
    pub(super) threads: Threads,
}

/// Key of a block's sum: the block's number, and the index of the operation in a tick.
pub(super) type BlockKey = (u64, u8);

/// Sums of one range table in an open iteration, in private memory.
#[derive(Debug)]
pub(super) struct BlockSums {
    memory: Arc<ServerMemory>,
    owner: BlockOwner,
    block_bytes: usize,
    /// Number of the table's blocks on this applier.
    blocks: usize,
    /// Memory parts, each with as many slots as there are blocks. One is added for each operation.
    parts: Vec<Block>,
    /// Operations with a part: bit `n` is set for the operation with index `n` in a tick.
    orders: u8,
    /// Number of slots in use for sums of the open iteration.
    used: usize,
    sums: BTreeMap<BlockKey, BlockSum>,
}

impl BlockSums {
    /// Creates sums without memory, for a table with `blocks` blocks of `block_bytes` bytes on this
    /// applier.
    pub(super) const fn new(
        memory: Arc<ServerMemory>,
        shard_id: ShardId,
        blocks: usize,
        block_bytes: usize,
    ) -> Self {
        let owner = BlockOwner {
            kind: BlockKind::Pending,
            table: shard_id.table.0,
            applier: shard_id.applier,
            part: 0,
        };
        Self {
            memory,
            owner,
            block_bytes,
            blocks,
            parts: Vec::new(),
            orders: 0,
            used: 0,
            sums: BTreeMap::new(),
        }
    }

    /// Reserves memory for the sums of one operation on every block. `order` is the index of the operation
    /// in a tick. No effect if the operation has memory.
    ///
    /// # Errors
    /// [`RejectReason::NoMemory`].
    pub(super) fn reserve(&mut self, order: u8) -> Result<(), Refusal> {
        if self.has(order) {
            return Ok(());
        }
        let private = &self.memory.private;
        let part = private
            .alloc_untouched(self.bytes(), self.owner)
            .map_err(|_| {
                let (used, capacity) = private.usage();
                RejectReason::NoMemory {
                    used: used as u64,
                    capacity: capacity as u64,
                }
            })?;
        self.parts.push(part);
        self.orders |= 1 << order;
        Ok(())
    }

    /// Whether the sums of an operation have memory. `order` is the index of the operation in a tick.
    pub(super) const fn has(&self, order: u8) -> bool {
        self.orders & 1 << order != 0
    }

    /// Bytes that the sums of one operation on all blocks take.
    pub(super) const fn bytes(&self) -> usize {
        self.blocks * self.block_bytes
    }

    /// Whether there is no sum: none was added since the last tick, or all were taken.
    pub(super) fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// Returns the least key of a sum, by block, then operation; `None` if there is no sum.
    pub(super) fn first(&self) -> Option<BlockKey> {
        self.sums.first_key_value().map(|(key, _)| *key)
    }

    /// Removes a sum, copies the first `values.len()` bytes of its values into `values`, and returns its
    /// slot, element ranges and threads. `None`, with nothing copied, if there is no sum.
    pub(super) fn take(&mut self, key: BlockKey, values: &mut [u8]) -> Option<BlockSum> {
        let sum = self.sums.remove(&key)?;
        match self
            .memory
            .private
            .region()
            .words(self.at(sum.slot), values.len())
        {
            Ok(words) => words.copy_out(0, values),
            Err(e) => unreachable!("a sum is outside the memory: {e}"),
        }
        Some(sum)
    }

    /// Stores the sum of a block and operation: `values`, the element ranges `runs` that were pushed, and the
    /// threads. A sum that was taken out before is passed as `before`: its slot is used again. With `None` the
    /// sum gets a new slot.
    pub(super) fn put(
        &mut self,
        key: BlockKey,
        before: Option<BlockSum>,
        values: &[u8],
        runs: &[Range<usize>],
        threads: Threads,
    ) {
        let slot = before.map_or(self.used, |before| before.slot);
        self.used = self.used.max(slot + 1);
        match self
            .memory
            .private
            .region()
            .words_mut(self.at(slot), values.len())
        {
            Ok(words) => words.copy_in(0, values),
            Err(e) => unreachable!("a sum is outside the memory: {e}"),
        }
        let runs = runs.to_vec();
        self.sums.insert(
            key,
            BlockSum {
                slot,
                runs,
                threads,
            },
        );
    }

    /// Frees every slot at the end of the iteration. The memory stays reserved.
    pub(super) fn clear(&mut self) {
        self.sums.clear();
        self.used = 0;
    }

    fn at(&self, slot: usize) -> usize {
        let (part, inside) = (slot / self.blocks.max(1), slot % self.blocks.max(1));
        let part = self.parts.get(part);
        let Some(part) = part else {
            unreachable!(
                "slot {slot} of {} reserved sums",
                self.parts.len() * self.blocks
            );
        };
        part.at + inside * self.block_bytes
    }

    /// Frees the memory of all sums of the range table.
    fn release(self) {
        for part in self.parts {
            let freed = self.memory.private.free(part);
            assert!(freed.is_ok(), "sums are of this memory: {freed:?}");
        }
    }
}

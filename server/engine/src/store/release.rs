//! Release of row memory: every row of a share is void before any of its memory has a new owner.

use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::sync::device_release_fence;

use super::StoreError;
use super::memory::{Block, ServerMemory};

/// Rows of a share in one block of public memory, at one stride from its start.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowSlab {
    pub(super) block: Block,
    pub(super) stride: usize,
    /// Number of rows that were ever published.
    pub(super) rows: usize,
}

/// Voids all rows of one table on one applier, then frees their blocks.
///
/// A Hogwild pull accepts rows without their checksum and relies on one row of each applier, the
/// sentinel row, which it validates last. If that is valid, no other row of the call may hold bytes
/// of the memory's next owner. The other half of this protocol is in the client: `sentinels_match`
/// in `client/tidewater/src/pull/direct.rs` (mapped memory: `read_fence`, then the sentinel row)
/// and `put_sentinel_last` in `client/tidewater/src/pull/rows.rs` (a READ flagged `fence`, F03).
///
/// 1. All version words of the share are 0 (stores V) before the first block is freed.
/// 2. `Arena::free` and `Arena::alloc` of the same block are ordered by the arena's lock. A block
///    that was used before is handed out behind a Release fence (`Arena::take`). So V happens
///    before that fence, and the fence before each store S of the next owner.
/// 3. A reader that copied a word of S has synchronised with that fence by its own Acquire fence.
///    Its sentinel row, read after its fence, shows V: version 0 is no valid version, and the pull
///    is tried again or refused.
///
/// If blocks were freed one by one, a sentinel row in a block that is still valid would vouch for
/// rows of another block, which already has a new owner.
///
/// The values stay until the block is handed out again, zeroed: without a valid version none of
/// them is accepted. Cost: a store to the line of each row.
///
/// # Errors
/// None in practice: the blocks of `slabs` are of `memory`, which the caller ensures.
pub(super) fn release_rows(
    memory: &ServerMemory,
    slabs: impl Iterator<Item = RowSlab> + Clone,
) -> Result<(), StoreError> {
    if mutants::on(Mutant::ReleaseSlabBySlab) {
        for slab in slabs {
            void(memory, slab)?;
            memory.public.free(slab.block)?;
        }
        return Ok(());
    }
    for slab in slabs.clone() {
        void(memory, slab)?;
    }
    // SYNC: release. Orders the void versions before whatever this thread does with the memory
    // next; the next owner's stores are behind the fence in `Arena::take`.
    device_release_fence();
    for slab in slabs {
        memory.public.free(slab.block)?;
    }
    Ok(())
}

fn void(memory: &ServerMemory, slab: RowSlab) -> Result<(), StoreError> {
    let region = memory.public.region();
    let words = region.words_mut(slab.block.at, slab.rows * slab.stride)?;
    for row in 0..slab.rows {
        words.store(row * slab.stride, 0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidewater_protocol::ids::{DomainId, Incarnation, PartitionId, TableId};
    use tidewater_protocol::layout::row::RowVersion;
    use tidewater_protocol::table::{
        Apply, DType, DenseLayout, GradientOptions, Init, KeyOptions, Optimizer, Shape, TableSpec,
    };
    use tidewater_runtime::clock::Deadline;

    use super::*;
    use crate::store::ShardId;
    use crate::store::dense_rows::DenseRows;
    use crate::store::prealloc::Preallocator;
    use crate::store::redo::{Progress, Redo};
    use crate::store::sparse::SparseShard;

    const ROWS: u64 = 5_000;

    fn spec(shape: Shape) -> Arc<TableSpec> {
        Arc::new(TableSpec {
            name: "t".into(),
            shape,
            dtype: DType::F32,
            optimizer: Optimizer::None,
            init: Init::Constant(1.0),
            seed: 1,
            effect: Apply::Immediate,
            finite_check: true,
            domain: DomainId(0),
            partitions: 4,
            gradient: GradientOptions::default(),
            redo: false,
            keys: KeyOptions::default(),
            versions: 2,
            durability: Default::default(),
            partition_servers: None,
            partition_starts: None,
        })
    }

    /// Versions of the rows at `places`.
    fn versions(memory: &ServerMemory, places: &[usize]) -> Vec<RowVersion> {
        let region = memory.public.region();
        let version = |at: &usize| RowVersion(region.words(*at, 8).unwrap().load(0));
        places.iter().map(version).collect()
    }

    /// No block of public memory can be freed while `release` runs, as if its next owner were
    /// faster than everything that follows a free. All rows become void nevertheless.
    fn assert_void_before_free(
        memory: &ServerMemory,
        places: &[usize],
        release: impl FnOnce() -> Result<(), StoreError> + Send,
    ) {
        assert!(versions(memory, places).iter().all(|ver| ver.is_valid()));
        std::thread::scope(|scope| {
            let stalled = memory.public.stall();
            let releasing = scope.spawn(release);
            let deadline = Deadline::after(Duration::from_secs(30));
            let left = || {
                let versions = versions(memory, places);
                versions.iter().filter(|ver| ver.is_valid()).count()
            };
            while left() > 0 && !deadline.passed() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let left = left();
            drop(stalled);
            releasing.join().unwrap().unwrap();
            assert_eq!(left, 0, "rows still valid when the first block was freed");
        });
    }

    /// Several extents of a sparse table, several partitions of a dense one.
    #[test]
    fn all_rows_void_before_any_block_freed() {
        let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(5)).unwrap());
        let redo = Redo::new(Arc::clone(&memory), 0, 4096, 8192).unwrap();
        let shard_id = ShardId::new(TableId(1), 0);
        let partitions = || (0..4).map(PartitionId);

        let sparse = spec(Shape::Sparse { dim: 16 });
        let preallocator = Preallocator::none();
        let shard = SparseShard::new(&memory, &preallocator, shard_id, &sparse, partitions());
        let mut shard = shard.unwrap();
        let mut places = Vec::new();
        for key in 0..ROWS {
            let loc = shard.find_or_create(key, &redo, Progress::default());
            places.push(shard.place(loc.unwrap()).unwrap().row_at);
        }
        assert_void_before_free(&memory, &places, || shard.release());

        let (cols, layout) = (16, DenseLayout::Rows);
        let dense = spec(Shape::Dense {
            rows: ROWS,
            cols,
            layout,
        });
        let rows = DenseRows::new(&memory, shard_id, &dense, partitions()).unwrap();
        let places: Vec<usize> = (0..ROWS)
            .map(|row| rows.place(row).unwrap().row_at)
            .collect();
        assert_void_before_free(&memory, &places, || rows.release());
    }
}

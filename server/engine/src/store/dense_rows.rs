//! A dense table with layout `rows` on one applier: rows by index, each behind a `{ver, checksum}`
//! header, all of them there from the start.
//!
//! A partition is a range of row indices: one public slab of rows and one private slab of their
//! optimizer state. A row's index replaces the key, in its initial values and in its checksum.

use std::sync::Arc;

use tidewater_protocol::ids::{PartitionId, RegionKey};
use tidewater_protocol::layout::dense::Ranges;
use tidewater_protocol::layout::row::{ROW_HEADER_BYTES, RowLayout, RowVersion, row_checksum};
use tidewater_protocol::placement::{block_layout, partition_ranges};
use tidewater_protocol::table::TableSpec;
use tidewater_protocol::wire::control::CheckpointMark;

use super::StoreError;
use super::cut::{Outlet, Span};
use super::files::ResumeError;
use super::memory::{Block, BlockKind, BlockOwner, ServerMemory};
use super::redo::RowPlace;
use super::release::{RowSlab, release_rows};
use super::rows::RowWriter;
use super::sparse::ShardError;
use crate::store::ShardId;
use tidewater_kernels::RowKernel;

/// Memory of the rows and the optimizer state of one partition.
#[derive(Debug)]
struct Slab {
    first: u64,
    rows: u64,
    payload: Block,
    key: RegionKey,
    state: Block,
}

/// Location of the rows of one partition in registered memory, for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowsDescriptor {
    /// Number of the partition.
    pub partition: PartitionId,
    /// Address (byte offset in public memory) of the first row's header; rows follow at the table's stride.
    pub addr: u64,
    /// Region key of the memory of the rows.
    pub key: RegionKey,
    /// Index in the table of the partition's first row.
    pub first_row: u64,
    /// Number of rows; 0 only for surplus partitions, in a table with fewer rows than partitions.
    pub rows: u64,
}

/// Location of the rows of a table that outlives its process, for a process that takes over after a crash.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RowsKept {
    salt: u64,
    /// Number of each partition, with the memory of its rows and of its states.
    slabs: Vec<(u32, Block, Block)>,
}

/// Share of a dense table with layout `rows` on one applier.
#[derive(Debug)]
pub struct DenseRows {
    memory: Arc<ServerMemory>,
    ranges: Ranges,
    slabs: Vec<Option<Slab>>,
    layout: RowLayout,
    state_stride: usize,
    salt: u64,
    rows: RowWriter,
}

impl DenseRows {
    /// Creates the share that owns `partitions`, with all of their rows initialised. Cost: writes all of
    /// its memory, so it is called before the share is handed to its applier.
    ///
    /// # Errors
    /// [`ShardError`]; no memory is kept.
    pub fn new(
        memory: &Arc<ServerMemory>,
        shard_id: ShardId,
        spec: &Arc<TableSpec>,
        partitions: impl Iterator<Item = PartitionId>,
    ) -> Result<Self, ShardError> {
        let by_rows = block_layout(spec).is_none();
        let Some(ranges) = partition_ranges(spec).filter(|_| by_rows) else {
            return Err(ShardError::Shape {
                table: spec.name.clone(),
                what: "dense rows",
                have: 0,
                remedy: "create it dense with layout `rows`",
            });
        };
        let rows = RowWriter::new(Arc::clone(memory), Arc::clone(spec))?;
        let mut shard = Self::empty(memory, spec, ranges, memory.salt(), rows);
        for partition in partitions.filter(|p| p.0 < spec.partitions) {
            let owner = BlockOwner::of(shard_id, BlockKind::Dense, partition);
            if let Err(e) = shard.add(owner).and_then(|()| shard.fill(spec, partition)) {
                shard.release()?;
                return Err(e.into());
            }
        }
        Ok(shard)
    }

    /// Creates a share that owns no partition yet; the caller adds them.
    fn empty(
        memory: &Arc<ServerMemory>,
        spec: &TableSpec,
        ranges: Ranges,
        salt: u64,
        rows: RowWriter,
    ) -> Self {
        let mut slabs = Vec::new();
        slabs.resize_with(spec.partitions as usize, || None);
        Self {
            memory: Arc::clone(memory),
            ranges,
            slabs,
            layout: rows.layout(),
            state_stride: rows.kernel().state_bytes().next_multiple_of(8),
            salt,
            rows,
        }
    }

    /// Resumes the share that a dead process left and registers its memory again. The rows stay as they
    /// are.
    ///
    /// # Errors
    /// [`ResumeError::Damaged`] if `place` does not suit the table; others if memory cannot be registered.
    pub(crate) fn resume(
        memory: &Arc<ServerMemory>,
        spec: &Arc<TableSpec>,
        place: RowsKept,
    ) -> Result<Self, ResumeError> {
        let damaged = |what: String| ResumeError::Damaged { what };
        let Some(ranges) = partition_ranges(spec) else {
            return Err(damaged(format!("table {} is not dense", spec.name)));
        };
        let rows =
            RowWriter::new(Arc::clone(memory), Arc::clone(spec)).map_err(ShardError::from)?;
        let mut shard = Self::empty(memory, spec, ranges, place.salt, rows);
        for (partition, payload, state) in place.slabs {
            let slab = Slab {
                first: shard.ranges.start(partition),
                rows: shard.ranges.len(partition),
                payload,
                key: memory.export(payload)?,
                state,
            };
            let needed = slab.rows as usize * shard.layout.stride;
            let slot = shard.slabs.get_mut(partition as usize);
            match slot.filter(|_| needed <= payload.len) {
                Some(slot) => *slot = Some(slab),
                None => {
                    let what = format!("partition {partition} of table {}", spec.name);
                    return Err(damaged(what));
                }
            }
        }
        Ok(shard)
    }

    /// Returns the location of the share's memory for a process that takes over after a crash.
    pub(crate) fn kept_place(&self) -> RowsKept {
        let slabs = (0..).zip(&self.slabs).filter_map(|(partition, slab)| {
            let slab = slab.as_ref()?;
            Some((partition, slab.payload, slab.state))
        });
        RowsKept {
            salt: self.salt,
            slabs: slabs.collect(),
        }
    }

    /// Lists the memory blocks of the share: in public memory, and in private memory.
    pub(crate) fn blocks(&self) -> [Vec<Block>; 2] {
        let slabs = || self.slabs.iter().flatten();
        [
            slabs().map(|slab| slab.payload).collect(),
            slabs().map(|slab| slab.state).collect(),
        ]
    }

    fn add(&mut self, owner: BlockOwner) -> Result<(), StoreError> {
        let (first, rows) = (self.ranges.start(owner.part), self.ranges.len(owner.part));
        let stride = self.layout.stride.max(self.state_stride);
        // Half the address space: sums of offsets in a slab cannot overflow.
        let limit = (usize::MAX / 2 / stride) as u64;
        if rows > limit {
            let what = "rows of a partition";
            return Err(StoreError::Limit {
                what,
                have: rows,
                limit,
            });
        }
        let n = rows as usize;
        let (payload, key) = self.memory.public_block(n * self.layout.stride, owner)?;
        let private = &self.memory.private;
        let state = private
            .alloc(n * self.state_stride, owner)
            .or_else(|e| self.memory.public.free_untouched(payload).and(Err(e)))?;
        if let Some(slab) = self.slabs.get_mut(owner.part as usize) {
            *slab = Some(Slab {
                first,
                rows,
                payload,
                key,
                state,
            });
        }
        Ok(())
    }

    /// Writes initial values and optimizer state of all rows of a partition. Needs no redo record, because
    /// no reader knows the memory yet.
    fn fill(&self, spec: &TableSpec, partition: PartitionId) -> Result<(), StoreError> {
        let kernel = self.rows.kernel();
        let mut payload = vec![0; kernel.row_bytes()];
        let mut state = vec![0; kernel.state_bytes()];
        let ver = RowVersion::default().next();
        let mut cursor = 0;
        while let Some((row, place)) = self.next_row(partition.0, &mut cursor) {
            kernel.init_row(&spec.init, spec.seed, row, &mut payload, &mut state);
            let public = self.memory.public.region();
            let words = public.words_mut(place.row_at, self.layout.stride)?;
            words.store(0, ver.0);
            words.store(8, row_checksum(self.salt, row, ver, &payload));
            words.copy_in(ROW_HEADER_BYTES, &payload);
            let private = self.memory.private.region();
            private
                .words_mut(place.state_at, state.len())?
                .copy_in(0, &state);
        }
        Ok(())
    }

    /// Returns the writer of the rows, with their sizes, kernel and working memory.
    pub const fn rows(&mut self) -> &mut RowWriter {
        &mut self.rows
    }

    /// Begins a save of all rows of the share, or of those that have changed since the checkpoint that `mark`
    /// extends. Returns the keys of removed rows, of which there are none here, and the error if these changes
    /// are not known, see [`super::cut::Watch::begin`].
    pub(crate) fn begin_cut(
        &mut self,
        outlet: Outlet,
        mark: Option<CheckpointMark>,
    ) -> Result<Vec<u64>, String> {
        let span = |slab: &Slab| Span {
            first: slab.payload.at as u64,
            count: slab.rows,
        };
        let slabs = self.slabs.iter().flatten().map(span).collect();
        self.rows.begin_cut(outlet, slabs, mark)
    }

    /// Returns the sizes of the rows in public memory.
    pub const fn layout(&self) -> RowLayout {
        self.layout
    }

    /// Returns the kernel that applies pushes with the table's optimizer.
    pub const fn kernel(&self) -> &RowKernel {
        self.rows.kernel()
    }

    /// Returns the salt of the rows' checksums.
    pub const fn salt(&self) -> u64 {
        self.salt
    }

    /// Returns whether this applier owns a row, and the row's partition. No applier owns a row past the
    /// table's end; its partition is 0.
    #[inline]
    pub fn owns(&self, row: u64) -> (bool, u32) {
        if row >= self.ranges.count {
            return (false, 0);
        }
        let p = self.ranges.part_of(row);
        let slab = self.slabs.get(p as usize);
        (slab.is_some_and(Option::is_some), p)
    }

    /// Returns the place of a row; `None` for a row that is not this applier's or past the table's end.
    #[inline]
    pub fn place(&self, row: u64) -> Option<RowPlace> {
        if row >= self.ranges.count {
            return None;
        }
        let p = self.ranges.part_of(row) as usize;
        Some(self.place_in(self.slabs.get(p)?.as_ref()?, row))
    }

    /// Computes the place of a row, by its index in the table, which must be in the slab. No product overflows,
    /// because `add` has checked the slab's size.
    #[inline]
    const fn place_in(&self, slab: &Slab, row: u64) -> RowPlace {
        let n = (row - slab.first) as usize;
        RowPlace {
            row_at: slab.payload.at + n * self.layout.stride,
            state_at: slab.state.at + n * self.state_stride,
            key: row,
            salt: self.salt,
        }
    }

    /// Returns index in the table and place of the next row of a partition, in the order of indices. `None` at
    /// the end, and for a partition of another applier. `cursor` is the number of rows returned so far: it begins
    /// at 0 and never becomes invalid.
    pub fn next_row(&self, partition: u32, cursor: &mut u64) -> Option<(u64, RowPlace)> {
        let slab = self.slabs.get(partition as usize)?.as_ref()?;
        if *cursor >= slab.rows {
            return None;
        }
        let row = slab.first + *cursor;
        *cursor += 1;
        Some((row, self.place_in(slab, row)))
    }

    /// Iterates over the descriptors of the partitions of this applier, for the table's description to
    /// clients.
    pub fn partitions(&self) -> impl Iterator<Item = RowsDescriptor> {
        (0..).zip(&self.slabs).filter_map(|(p, slab)| {
            let slab = slab.as_ref()?;
            Some(RowsDescriptor {
                partition: PartitionId(p),
                addr: slab.payload.at as u64,
                key: slab.key,
                first_row: slab.first,
                rows: slab.rows,
            })
        })
    }

    /// Makes all rows invalid, so that a late reader finds no valid one, and then frees all memory of the share.
    ///
    /// # Errors
    /// None in practice: all blocks are of the server memory in which the share was created.
    pub fn release(self) -> Result<(), StoreError> {
        let stride = self.layout.stride;
        let slab = |slab: &Slab| RowSlab {
            block: slab.payload,
            stride,
            rows: slab.rows as usize,
        };
        release_rows(&self.memory, self.slabs.iter().flatten().map(slab))?;
        for slab in self.slabs.into_iter().flatten() {
            self.memory.private.free(slab.state)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidewater_protocol::ids::{DomainId, Incarnation, TableId};
    use tidewater_protocol::table::{
        Apply, DType, DenseLayout, GradientOptions, Init, KeyOptions, Optimizer, PushOp, Shape,
    };

    use super::*;
    use crate::store::redo::{Progress, Redo};
    use tidewater_kernels::RowKernel;

    const ADAM: Optimizer = Optimizer::Adam {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
    };

    fn spec(rows: u64, cols: u32, partitions: u32) -> Arc<TableSpec> {
        Arc::new(TableSpec {
            name: "t".into(),
            shape: Shape::Dense {
                rows,
                cols,
                layout: DenseLayout::Rows,
            },
            dtype: DType::F32,
            optimizer: ADAM,
            init: Init::Uniform {
                low: -1.0,
                high: 1.0,
            },
            seed: 9,
            effect: Apply::Immediate,
            finite_check: true,
            domain: DomainId(0),
            partitions,
            gradient: GradientOptions::default(),
            redo: false,
            keys: KeyOptions::default(),
            versions: 2,
            durability: Default::default(),
            partition_servers: None,
            partition_starts: None,
        })
    }

    fn memory() -> Arc<ServerMemory> {
        Arc::new(ServerMemory::new(64 << 20, Incarnation(5)).unwrap())
    }

    /// A client's read by descriptor; the checksum is keyed by the row's index.
    fn pull(memory: &ServerMemory, shard: &DenseRows, row: u64, out: &mut [u8]) -> bool {
        let all: Vec<_> = shard.partitions().collect();
        let d = all
            .iter()
            .find(|d| (d.first_row..d.first_row + d.rows).contains(&row))
            .unwrap();
        let layout = RowLayout::new(out.len());
        let at = d.addr as usize + (row - d.first_row) as usize * layout.stride;
        let words = memory.public.region().words(at, layout.read_bytes());
        let words = words.unwrap();
        words.copy_out(ROW_HEADER_BYTES, out);
        let ver = RowVersion(words.load(0));
        ver.is_valid() && words.load(8) == row_checksum(shard.salt(), row, ver, out)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn agrees_with_a_vector_of_rows(
            rows in 1u64..60, cols in 1u32..9, partitions in 1u32..90,
            pushes in proptest::collection::vec((0u64..60, -2f32..2.0, any::<bool>()), 0..200),
        ) {
            let (memory, spec) = (memory(), spec(rows, cols, partitions));
            let redo = Redo::new(Arc::clone(&memory), 0, 4096, 8192).unwrap();
            let all = (0..partitions).map(PartitionId);
            let mut shard = DenseRows::new(&memory, ShardId::new(TableId(1), 0), &spec, all).unwrap();
            prop_assert_eq!(shard.partitions().map(|d| d.rows).sum::<u64>(), rows);
            let kernel = RowKernel::new(&spec.optimizer, spec.dtype, cols as usize).unwrap();
            let mut model: Vec<(Vec<u8>, Vec<u8>)> = (0..rows).map(|row| {
                let mut of = (vec![0; kernel.row_bytes()], vec![0; kernel.state_bytes()]);
                kernel.init_row(&spec.init, spec.seed, row, &mut of.0, &mut of.1);
                of
            }).collect();
            for (row, x, gradient) in pushes {
                let op = if gradient { PushOp::Gradient } else { PushOp::Sum };
                let Some(place) = shard.place(row) else {
                    prop_assert!(row >= rows && !shard.owns(row).0);
                    continue;
                };
                prop_assert!(shard.owns(row).0);
                let values = x.to_le_bytes().repeat(cols as usize);
                shard.rows().apply(&redo, Progress::default(), place, op, &values).unwrap();
                let (payload, state) = &mut model[row as usize];
                kernel.apply(op, payload, state, &values);
            }
            let (mut out, mut state) = (vec![0; kernel.row_bytes()], vec![0; kernel.state_bytes()]);
            for (row, (payload, moments)) in (0..).zip(&model) {
                prop_assert!(pull(&memory, &shard, row, &mut out), "checksum of row {} does not match", row);
                prop_assert_eq!(&out, payload);
                let place = shard.place(row).unwrap();
                shard.rows().read_state(place, &mut state).unwrap();
                prop_assert_eq!(&state, moments);
            }
        }
    }

    #[test]
    fn a_cursor_meets_the_rows_of_a_partition_once_and_in_order() {
        let (memory, spec) = (memory(), spec(100, 3, 7));
        let mine = [1, 4, 6].map(PartitionId).into_iter();
        let shard = DenseRows::new(&memory, ShardId::new(TableId(1), 0), &spec, mine).unwrap();
        let mut seen = Vec::new();
        for p in 0..8 {
            let mut cursor = 0;
            while let Some((row, place)) = shard.next_row(p, &mut cursor) {
                assert_eq!(shard.place(row), Some(place));
                assert_eq!(shard.owns(row), (true, p));
                seen.push(row);
            }
        }
        let owned: Vec<u64> = (0..200).filter(|&r| shard.place(r).is_some()).collect();
        assert_eq!(seen, owned);
        assert!((40..46).contains(&owned.len()), "{}", owned.len());
    }

    #[test]
    fn a_table_that_does_not_fit_keeps_no_memory() {
        let memory = memory();
        let used = |m: &ServerMemory| {
            let blocks = m.public.directory().unwrap();
            blocks.iter().filter(|(_, owner)| owner[0] != 0).count()
        };
        for rows in [1 << 30, u64::MAX] {
            let all = (0..4).map(PartitionId);
            let e = DenseRows::new(&memory, ShardId::new(TableId(1), 0), &spec(rows, 8, 4), all)
                .unwrap_err();
            assert!(matches!(e, ShardError::Store(_)), "{e}");
            assert_eq!(used(&memory), 0);
        }
        let all = (0..4).map(PartitionId);
        let shard =
            DenseRows::new(&memory, ShardId::new(TableId(1), 0), &spec(100, 8, 4), all).unwrap();
        let mut out = [0; 32];
        assert_eq!(used(&memory), 4);
        assert!(pull(&memory, &shard, 99, &mut out));
        let at = shard.place(99).unwrap();
        shard.release().unwrap();
        assert_eq!(used(&memory), 0);
        let words = memory.public.region().words(at.row_at, 16).unwrap();
        assert_eq!(
            words.load(0),
            0,
            "the checksum of the released row still matches"
        );
    }
}

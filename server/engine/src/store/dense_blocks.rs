//! A range table (layout `blocks`) on one applier: one vector of `rows x cols` elements, cut into
//! blocks, with version words apart from them.
//!
//! ```text
//! public   payload: blocks x block_bytes, on a snapshot table once for each of its versions
//!          meta:    snapshot record, on a snapshot table | TaggedU32 version word of each block
//! private  state:   of each block its slots, block_bytes each, then the step word (Adam, see `steps`)
//! ```
//! A partition is a range of blocks and has these three; those of one applier lie side by side, in
//! one block of memory each. Initial values are those of a row with the block's index as key and
//! the position in the block as column. So they depend on the block's size but not on partitions or
//! servers. A version word counts stores: its sequence is even and starts at 2.
//!
//! A push is a range of elements. Its rule runs on exactly these elements of payload and state,
//! block by block. Adam counts the steps of each element: the gradients, or at ticks the ticks,
//! that touched it. The counts do not depend on how a push was cut into frames and where blocks
//! begin.

mod error;
mod part;
mod rotation;
mod snapshot;
mod steps;
#[cfg(test)]
mod tests;
mod window;

use std::sync::Arc;

use tidewater_protocol::ids::{PartitionId, RegionKey};
use tidewater_protocol::layout::dense::{BlockLayout, Ranges};
use tidewater_protocol::layout::lines::SnapshotLine;
use tidewater_protocol::limits::VERSIONS_MAX;
use tidewater_protocol::placement::partition_ranges;
use tidewater_protocol::table::{Apply, DenseLayout, PushOp, Shape, TableSpec};
use tidewater_protocol::wire::control::CheckpointMark;

use super::StoreError;
use super::cut::{Outlet, Span, Watch};
use super::files::ResumeError;
use super::memory::{Block, BlockKind, BlockOwner, ServerMemory};
use super::redo::{Progress, Redo};
use super::sparse::ShardError;
use crate::store::ShardId;
pub use error::BlocksError;
use error::length;
pub use part::BlocksKept;
use part::{Given, Ground, Part, Sizes};
pub use rotation::PinRefusal;
use rotation::Rotation;
pub(crate) use steps::HAS_RUNS;
use steps::{StepRun, StepTables};
use tidewater_kernels::{KernelError, RowKernel};
use window::{Window, WithinBlock};

/// Smallest and largest size of a block in bytes, as `DenseLayout::Blocks` documents.
const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 4 << 10..=256 << 10;

/// Location of the blocks of one partition in registered memory, for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlocksDescriptor {
    /// Number of the partition.
    pub partition: PartitionId,
    /// Number of its first block.
    pub first_block: u64,
    /// Number of blocks. It is 0 only for surplus partitions, in a table with fewer blocks than partitions.
    pub blocks: u64,
    /// Addresses (byte offsets in public memory) of the first block in the first and the second buffer. Further
    /// buffers follow at the same distance. With one buffer the second address has no meaning.
    pub payload: [u64; 2],
    /// Number of buffers: the versions of a snapshot table, otherwise 1.
    pub buffers: usize,
    /// Region key of the payload.
    pub payload_key: RegionKey,
    /// Address of the version words, 8 bytes for each block.
    pub versions: u64,
    /// Address of the snapshot record; `None` without snapshots.
    pub snapshot: Option<u64>,
    /// Region key of version words and snapshot record.
    pub meta_key: RegionKey,
}

/// Share of a range table on one applier: payload, versions and optimizer state of its blocks.
#[derive(Debug)]
pub struct DenseBlocks {
    memory: Arc<ServerMemory>,
    spec: Arc<TableSpec>,
    sizes: Sizes,
    ranges: Ranges,
    ground: Ground,
    parts: Vec<Option<Part>>,
    salt: u64,
    kernel: RowKernel,
    window: Window,
    tables: StepTables,
    /// Working memory for the runs of the current block.
    runs: Vec<StepRun>,
    line: SnapshotLine,
    rotation: Rotation,
    /// Save that is under way, and changes since the last checkpoint.
    watch: Watch,
}

/// Partitions of a range table, as ranges of its blocks. `sizes_of` has refused other tables.
fn ranges_of(spec: &TableSpec) -> Ranges {
    let ranges = partition_ranges(spec);
    ranges.unwrap_or_else(|| unreachable!("range table {} has no ranges", spec.name))
}

impl DenseBlocks {
    /// Creates the share that owns `partitions`, with all of their blocks initialised. Cost: writes all of
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
        let (kernel, sizes) = sizes_of(spec)?;
        let ranges = ranges_of(spec);
        let mine = sorted(spec, partitions);
        let blocks = mine.iter().map(|&p| ranges.len(p)).sum();
        let owner = BlockOwner::of(shard_id, BlockKind::Dense, PartitionId(0));
        let ground = Ground::new(memory, owner, sizes, mine.len() as u64, blocks)?;
        let mut parts = Vec::new();
        parts.resize_with(spec.partitions as usize, || None);
        let (mut given, salt) = (Given::default(), memory.salt());
        for p in mine {
            let (first, blocks) = (ranges.start(p), ranges.len(p));
            let part = Part::new(&ground, &mut given, sizes, first, blocks);
            let filled = part.fill(memory, spec, sizes, salt);
            if let Err(e) = filled {
                ground.release(memory)?;
                return Err(e);
            }
            parts[p as usize] = Some(part);
        }
        Ok(Self {
            memory: Arc::clone(memory),
            spec: Arc::clone(spec),
            sizes,
            ranges,
            ground,
            parts,
            salt,
            kernel,
            window: Window::default(),
            tables: StepTables::new(owner),
            runs: Vec::new(),
            line: SnapshotLine::default(),
            rotation: Rotation::new(sizes.buffers, 0),
            watch: Watch::default(),
        })
    }

    /// Resumes the share that a dead process left and registers its memory again. Blocks, state and step
    /// counts stay as they are. Free step tables are not found: their memory is used again when the table
    /// is released.
    pub(crate) fn resume(
        memory: &Arc<ServerMemory>,
        shard_id: ShardId,
        spec: &Arc<TableSpec>,
        partitions: impl Iterator<Item = PartitionId>,
        place: BlocksKept,
    ) -> Result<Self, ResumeError> {
        let (kernel, sizes) = sizes_of(spec)?;
        let ranges = ranges_of(spec);
        let owner = BlockOwner::of(shard_id, BlockKind::Dense, PartitionId(0));
        let ground = Ground::resume(memory, place)?;
        let mut parts = Vec::new();
        parts.resize_with(spec.partitions as usize, || None);
        let mut given = Given::default();
        for p in sorted(spec, partitions) {
            let (first, blocks) = (ranges.start(p), ranges.len(p));
            parts[p as usize] = Some(Part::new(&ground, &mut given, sizes, first, blocks));
        }
        if !ground.holds(given, sizes) {
            let what = format!("the blocks of table {}", spec.name);
            return Err(ResumeError::Damaged { what });
        }
        Ok(Self {
            memory: Arc::clone(memory),
            spec: Arc::clone(spec),
            sizes,
            ranges,
            ground,
            parts,
            salt: place.salt,
            kernel,
            window: Window::default(),
            tables: StepTables::resume(memory, owner, place.state)?,
            runs: Vec::new(),
            line: SnapshotLine::default(),
            rotation: Rotation::new(sizes.buffers, 0),
            watch: Watch::default(),
        })
    }

    /// Returns the location of the share's memory for a process that takes over after a crash.
    pub(crate) fn kept_place(&self) -> BlocksKept {
        self.ground.kept_place(self.salt)
    }

    /// Lists the memory blocks of the share: in public memory, and in private memory.
    pub(crate) fn blocks(&self) -> [Vec<Block>; 2] {
        let BlocksKept {
            payload,
            meta,
            state,
            ..
        } = self.kept_place();
        let private = self.tables.chunks().chain([state]).collect();
        [vec![payload, meta], private]
    }

    /// Begins a save of all blocks of the share, or of those that have changed since the checkpoint that `mark`
    /// extends. Returns the keys of removed rows, of which there are none here, and the error if these changes
    /// are not known, see [`Watch::begin`].
    pub(crate) fn begin_cut(
        &mut self,
        outlet: Outlet,
        mark: Option<CheckpointMark>,
    ) -> Result<Vec<u64>, String> {
        let span = |part: &Part| Span {
            first: part.first,
            count: part.blocks,
        };
        let parts = self.parts.iter().flatten().map(span).collect();
        self.watch.begin(outlet, parts, 1, mark)
    }

    /// Returns the state that writers check before a block changes: a save that is under way, and the changes
    /// since a checkpoint.
    pub(crate) const fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// Copies a block into the save under way. Returns the bytes of values and state that were copied: 0 without
    /// a save, for a block that has been copied, and for an unchanged block where only changes are copied.
    ///
    /// # Errors
    /// [`BlocksError::NotOwned`].
    pub(crate) fn copy_block(&mut self, block: u64) -> Result<usize, BlocksError> {
        if self.watch.claim(block) {
            return self.copy_claimed(block);
        }
        Ok(0)
    }

    /// Copies a block that is about to change into the save under way, unless it has been copied, and notes its
    /// change.
    #[cold]
    fn before_write(&mut self, block: u64) -> Result<(), BlocksError> {
        if self.watch.claim_before_write(block) {
            self.copy_claimed(block)?;
        }
        Ok(())
    }

    fn copy_claimed(&mut self, block: u64) -> Result<usize, BlocksError> {
        let (first, _) = self.elements_of(block)?;
        let (mut values, mut state) = (vec![0; self.block_lengths(block)?.0], Vec::new());
        self.read_range(first, &mut values)?;
        self.read_state_block(block, &mut state)?;
        if let Some(cut) = self.watch.cut() {
            cut.copy(self.ranges.part_of(block), block, &values, &state);
        }
        Ok(values.len() + state.len())
    }

    /// Returns the sizes of the table and its blocks.
    pub const fn layout(&self) -> BlockLayout {
        self.sizes.layout
    }

    /// Returns the kernel of the table's optimizer for whole blocks. [`RowKernel::accepts`] decides which
    /// pushes it takes.
    pub const fn kernel(&self) -> &RowKernel {
        &self.kernel
    }

    /// Replaces the table's definition by one with other hyper-parameters of the same optimizer.
    ///
    /// # Errors
    /// [`KernelError`] for numbers out of range; nothing was changed.
    pub(crate) fn set_spec(&mut self, spec: Arc<TableSpec>) -> Result<(), KernelError> {
        let elements = self.sizes.layout.block_elements() as usize;
        self.kernel = RowKernel::of_table(&spec, elements)?;
        self.spec = spec;
        Ok(())
    }

    /// Runs `apply` with the learning rate of gradients multiplied by `factor`, see [`RowKernel::at_rate`].
    pub(crate) fn at_rate<R>(&mut self, factor: f64, apply: impl FnOnce(&mut Self) -> R) -> R {
        let kernel = self.kernel;
        self.kernel = kernel.at_rate(factor);
        let done = apply(self);
        self.kernel = kernel;
        done
    }

    /// Returns the salt of the checksums in version words and snapshot records.
    pub const fn salt(&self) -> u64 {
        self.salt
    }

    /// Returns the index of the partition of this applier that holds the complete range of `count` elements
    /// from `first` on. `None` if there is none, or the range is empty.
    fn partition_of(&self, first: u64, count: u64) -> Option<usize> {
        let last = first.checked_add(count.checked_sub(1)?)?;
        if last >= self.sizes.layout.elements {
            return None;
        }
        let block = self.sizes.layout.block_elements();
        let p = self.ranges.part_of(first / block);
        let inside = last / block < self.ranges.start(p + 1);
        (inside && self.parts.get(p as usize)?.is_some()).then_some(p as usize)
    }

    /// Whether a range of elements is inside one partition of this applier. An empty range is not.
    #[inline]
    pub fn owns_range(&self, first: u64, count: u64) -> bool {
        self.partition_of(first, count).is_some()
    }

    /// Applies the `values` of a push, one for each element, to the elements from `first_element` on, which must
    /// be in one partition of this applier. On a snapshot table the push goes into the epoch that is being built,
    /// see [`Self::begin_epoch`].
    ///
    /// Each block counts as one row: `progress.row` for the first, one more for each further block. To finish a
    /// range that was interrupted after row `r` was stored, continue at
    /// [`Self::resume_at`]`(first_element, r - progress.row + 1)`. Cost: about three copies of the range and of
    /// its state, in addition to the rule.
    ///
    /// # Errors
    /// [`BlocksError`]; `NotOwned` also for empty `values`.
    pub fn apply_range(
        &mut self,
        redo: &Redo,
        progress: Progress,
        first_element: u64,
        op: PushOp,
        values: &[u8],
    ) -> Result<(), BlocksError> {
        let size = self.sizes.layout.element_bytes;
        if !values.len().is_multiple_of(size) {
            let want = values.len().next_multiple_of(size);
            return Err(length("values of a range", values.len(), want));
        }
        let part = self.owned(first_element, (values.len() / size) as u64)?;
        self.demand_epoch("a push")?;
        if op == PushOp::Gradient {
            self.split_steps(redo, first_element, (values.len() / size) as u64)?;
        }
        let (mut first, mut rest, mut at) = (first_element, values, progress);
        while !rest.is_empty() {
            let cut = WithinBlock::new(self.sizes.layout, first, rest.len() / size);
            let (now, later) = rest.split_at(cut.count * size);
            self.update(redo, at, part, cut, op, now)?;
            first += cut.count as u64;
            rest = later;
            at.row = at.row.wrapping_add(1);
        }
        Ok(())
    }

    /// Applies one push, or the reduced pushes of an iteration, to a whole block as one step of the
    /// optimizer. `values` are those of the block's elements in use.
    ///
    /// # Errors
    /// [`BlocksError`].
    pub fn step(
        &mut self,
        redo: &Redo,
        progress: Progress,
        block: u64,
        op: PushOp,
        values: &[u8],
    ) -> Result<(), BlocksError> {
        let (first, count) = self.elements_of(block)?;
        let want = count as usize * self.sizes.layout.element_bytes;
        if values.len() != want {
            return Err(length("values of a block", values.len(), want));
        }
        self.apply_range(redo, progress, first, op, values)
    }

    /// Returns the first element that is left of a range from `first_element` on, when the first `blocks` blocks
    /// of the range are stored.
    pub const fn resume_at(&self, first_element: u64, blocks: u32) -> u64 {
        let size = self.sizes.layout.block_elements();
        if blocks == 0 {
            return first_element;
        }
        (first_element / size)
            .saturating_add(blocks as u64)
            .saturating_mul(size)
    }

    fn owned(&self, first: u64, count: u64) -> Result<usize, BlocksError> {
        self.partition_of(first, count)
            .ok_or(BlocksError::NotOwned {
                first,
                count,
                elements: self.sizes.layout.elements,
            })
    }

    /// Returns the first element of a block and its number of elements in use. Error for a block past the
    /// table's end.
    fn elements_of(&self, block: u64) -> Result<(u64, u64), BlocksError> {
        let layout = self.sizes.layout;
        let first = block.saturating_mul(layout.block_elements());
        if block >= layout.blocks() {
            return Err(BlocksError::NotOwned {
                first,
                count: layout.block_elements(),
                elements: layout.elements,
            });
        }
        Ok((first, layout.used(block)))
    }

    /// Copies elements from `first` on into `out`, of one or more partitions of this applier. They are
    /// untorn. On a snapshot table they are those of the front, without changes of an epoch that is being
    /// built.
    ///
    /// # Errors
    /// [`BlocksError::Length`] if `out` is not whole elements, [`BlocksError::NotOwned`] also if `out` is empty.
    pub fn read_range(&self, first: u64, out: &mut [u8]) -> Result<(), BlocksError> {
        let size = self.sizes.layout.element_bytes;
        if !out.len().is_multiple_of(size) {
            let want = out.len().next_multiple_of(size);
            return Err(length("room for a range", out.len(), want));
        }
        let elements = (out.len() / size) as u64;
        let mut rest = out;
        let mut done = 0;
        // An empty range is in no partition.
        while done < elements || elements == 0 {
            let at = first.saturating_add(done);
            let p = self.owned(at, u64::from(elements > 0))?;
            let per_block = self.sizes.layout.block_elements();
            let behind = self.ranges.part_of(at / per_block) + 1;
            let stop = self.ranges.start(behind) * per_block;
            let count = (elements - done).min(stop - at);
            self.owned(at, count)?;
            let (here, behind) = rest.split_at_mut(count as usize * size);
            self.read_part(p, at, here)?;
            rest = behind;
            done += count;
        }
        Ok(())
    }

    /// Copies elements from `first` on of partition `p` into `out`; the partition is this applier's.
    fn read_part(&self, p: usize, first: u64, out: &mut [u8]) -> Result<(), BlocksError> {
        let size = self.sizes.layout.element_bytes;
        let Some(part) = self.parts.get(p).and_then(Option::as_ref) else {
            unreachable!("element {first} is in partition {p}, which is not of this shard");
        };
        let block = first / self.sizes.layout.block_elements();
        let inside = (first % self.sizes.layout.block_elements()) as usize * size;
        let at = part.payload_at(self.sizes, block, self.rotation.front()) + inside;
        // Elements of 4 bytes may begin inside a word.
        let lead = at % 8;
        let words = self.memory.public.region();
        let words = words.words(at - lead, lead + out.len());
        words.map_err(StoreError::from)?.copy_out_from(lead, out);
        Ok(())
    }

    /// Sizes in bytes of a block's elements in use, and of their optimizer state. The second excludes the
    /// step counts; where these follow it is rounded up to 8.
    ///
    /// # Errors
    /// [`BlocksError::NotOwned`] past the table's end.
    pub fn block_lengths(&self, block: u64) -> Result<(usize, usize), BlocksError> {
        let used = self.elements_of(block)?.1 as usize;
        let payload = used * self.sizes.layout.element_bytes;
        let slots = self.sizes.slots * payload;
        let state = match self.sizes.counts {
            true => slots.next_multiple_of(8),
            false => slots,
        };
        Ok((payload, state))
    }

    /// Iterates over the descriptors of the partitions of this applier, for the table's description to
    /// clients.
    pub fn partitions(&self) -> impl Iterator<Item = BlocksDescriptor> {
        (0..).zip(&self.parts).filter_map(|(p, part)| {
            Some(
                part.as_ref()?
                    .descriptor(&self.ground, self.sizes, PartitionId(p)),
            )
        })
    }

    /// Zeroes the public memory of the share, version words first, so that a late reader finds no valid version.
    /// Then frees all memory of the share.
    ///
    /// # Errors
    /// None in practice: all blocks are of the server memory in which the share was created.
    pub fn release(self) -> Result<(), StoreError> {
        self.ground.release(&self.memory)?;
        self.tables.release(&self.memory)
    }
}

/// Builds the kernel for whole blocks and the sizes of a range table from its definition.
fn sizes_of(spec: &TableSpec) -> Result<(RowKernel, Sizes), ShardError> {
    let (layout, snapshot) = shape(spec)?;
    let kernel = RowKernel::of_table(spec, layout.block_elements() as usize)?;
    let sizes = Sizes {
        layout,
        snapshot,
        buffers: if snapshot { spec.versions as usize } else { 1 },
        slots: spec.optimizer.state_slots(),
        counts: spec.optimizer.counts_steps(),
    };
    Ok((kernel, sizes))
}

/// Returns the valid partition numbers among `partitions`, each once, in ascending order.
fn sorted(spec: &TableSpec, partitions: impl Iterator<Item = PartitionId>) -> Vec<u32> {
    let mut all: Vec<u32> = partitions
        .map(|p| p.0)
        .filter(|&p| p < spec.partitions)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Checks the definition of a range table. Returns its layout, and whether it keeps snapshots.
fn shape(spec: &TableSpec) -> Result<(BlockLayout, bool), ShardError> {
    let refuse = |what, have, remedy| ShardError::Shape {
        table: spec.name.clone(),
        what,
        have,
        remedy,
    };
    let Shape::Dense {
        rows,
        cols,
        layout: DenseLayout::Blocks {
            block_bytes,
            snapshot,
        },
    } = spec.shape
    else {
        return Err(refuse(
            "dense blocks",
            0,
            "create it dense with layout `blocks`",
        ));
    };
    if !block_bytes.is_power_of_two() || !BLOCK_BYTES.contains(&block_bytes) {
        let remedy = "give a power of two from 4096 to 262144";
        return Err(refuse("block_bytes", block_bytes.into(), remedy));
    }
    if snapshot && !(2..=VERSIONS_MAX).contains(&spec.versions) {
        let remedy = "give 2 to 16";
        return Err(refuse("versions", spec.versions.into(), remedy));
    }
    if snapshot && spec.effect == Apply::Immediate {
        let remedy = "a snapshot needs pushes that take effect at the clock";
        return Err(refuse("snapshot", 1, remedy));
    }
    let elements = rows
        .checked_mul(u64::from(cols))
        .filter(|n| *n <= 1 << 56)
        .ok_or_else(|| refuse("rows", rows, "rows x cols must be at most 2^56"))?;
    let layout = BlockLayout {
        elements,
        element_bytes: spec.dtype.size(),
        block_bytes: block_bytes as usize,
    };
    Ok((layout, snapshot))
}

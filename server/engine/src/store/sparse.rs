//! A sparse table's rows on one applier: u64 keys over the full range, created at first touch. (long: with its tests.)

use std::sync::Arc;

use tidewater_protocol::ids::PartitionId;
use tidewater_protocol::layout::row::{RowLocation, RowVersion};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::placement::partition_of_key;
use tidewater_protocol::table::{Durability, TableSpec};

use super::StoreError;
use super::admission::Admission;
use super::expiry::Expiry;
use super::extents::Extents;
use super::index::Index;
use super::memory::{BlockKind, BlockOwner, ServerMemory};
use super::prealloc::Preallocator;
use super::redo::{Progress, Redo, RowPlace};
use super::rows::RowWriter;
use crate::store::ShardId;
use tidewater_kernels::{KernelError, RowKernel};

/// Least and greatest number of slots that a partition asks for together, so that its rows lie together in the
/// order of their creation. In between it asks for one slot for each [`RUN_PART`] rows that it has, rounded up
/// to a multiple of 8. An extent with fewer slots left gives fewer.
const RUN_SLOTS: [u32; 2] = [8, 1_024];
/// Number of rows of a partition for each slot that it takes together with others.
const RUN_PART: u32 = 16;

/// Number of keys with places prefetched together: about as many as a core has cache lines in flight.
pub const FIND_AHEAD: usize = 16;

/// Key in the record of a slot without a row. It is a valid key, too.
pub(super) const NO_KEY: u64 = 0;

/// Run of consecutive slots of one extent that belong to one partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// Number of the extent, from 1.
    pub(super) extent: u16,
    /// Index of the run's first slot in the extent.
    pub(super) first: u32,
    /// Number of slots of the run.
    pub(super) len: u32,
    /// Number of slots, from the first on, that were handed out for rows.
    pub(super) used: u32,
}

/// Rows and slots of one partition of a sparse table.
#[derive(Debug, Default)]
pub(super) struct Partition {
    /// Number of rows in the partition.
    pub(super) len: u32,
    pub(super) runs: Vec<Run>,
    /// Free slots of removed rows, oldest first, each with its next generation.
    pub(super) vacant: std::collections::VecDeque<RowLocation>,
}

/// Number of later removals in a slot's partition after which a removed row's slot may be reused. A late reader
/// that checks only the generation (Hogwild) has then long stopped using its cached location.
const QUARANTINE_SLOTS: usize = 64;

/// Share of a sparse table on one applier: extents, index and partitions.
#[derive(Debug)]
pub struct SparseShard {
    pub(super) extents: Extents,
    /// Hash index from keys to slot numbers.
    pub(super) index: Index,
    pub(super) partitions: Vec<Option<Partition>>,
    rows: RowWriter,
    pub(super) len: usize,
    pub(super) expiry: Option<Expiry>,
    pub(super) admission: Option<Admission>,
}

/// Error of creating a table's share on an applier.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// Memory is used up, or a limit of the format is exceeded.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The optimizer does not suit the table's element type.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The table must outlive its process, but the memory of this server does not.
    #[error(
        "table {table}: durability is warm, and no holder keeps the memory of this server when its process \
         ends; create it with durability none"
    )]
    NotHeld {
        /// Name of the table.
        table: String,
    },
    /// The table's shape, layout or block settings do not suit this kind of dense shard (rows or blocks).
    #[error("table {table}: {what} = {have}; {remedy}")]
    Shape {
        /// Name of the table.
        table: String,
        /// Name of the number that is wrong.
        what: &'static str,
        /// Value that was given.
        have: u64,
        /// What to give instead, in words.
        remedy: &'static str,
    },
}

impl SparseShard {
    /// Creates a share without rows that owns `partitions` of a sparse table.
    ///
    /// # Errors
    /// [`ShardError`]; no memory is kept then.
    pub fn new(
        memory: &Arc<ServerMemory>,
        preallocator: &Preallocator,
        shard_id: ShardId,
        spec: &Arc<TableSpec>,
        partitions: impl Iterator<Item = PartitionId>,
    ) -> Result<Self, ShardError> {
        let rows = RowWriter::new(Arc::clone(memory), Arc::clone(spec))?;
        let expire_after = spec.keys.expire_after;
        let state_bytes = Expiry::private_bytes(expire_after, rows.kernel().state_bytes());
        let layout = rows.layout();
        let extents = Extents::new(
            Arc::clone(memory),
            preallocator.clone(),
            shard_id,
            layout,
            state_bytes,
        )?;
        let owner = BlockOwner::of(shard_id, BlockKind::Index, PartitionId(0));
        let index = match Index::new(Arc::clone(memory), preallocator.clone(), owner) {
            Ok(index) => index,
            Err(e) => {
                extents.release()?;
                return Err(e.into());
            }
        };
        let own = own_partitions(spec, partitions);
        let mut shard = Self::of_parts(extents, index, own, rows, spec);
        if spec.durability == Durability::Warm
            && let Err(e) = shard.extents.keep()
        {
            shard.release()?;
            return Err(e.into());
        }
        Ok(shard)
    }

    /// Assembles a share from its parts, without rows.
    pub(super) fn of_parts(
        extents: Extents,
        index: Index,
        partitions: Vec<Option<Partition>>,
        rows: RowWriter,
        spec: &TableSpec,
    ) -> Self {
        let expiry = Expiry::new(spec.keys.expire_after, rows.kernel().state_bytes());
        Self {
            extents,
            index,
            partitions,
            rows,
            len: 0,
            expiry,
            admission: Admission::new(spec.keys.admit_after),
        }
    }

    /// Number of rows in all partitions of this applier.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the share holds no row.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the writer of the rows, with their sizes, kernel and working memory.
    pub const fn rows(&mut self) -> &mut RowWriter {
        &mut self.rows
    }

    /// Returns the kernel that applies pushes with the table's optimizer.
    pub const fn kernel(&self) -> &RowKernel {
        self.rows.kernel()
    }

    /// Returns the extents, for the table's description to clients.
    pub const fn extents(&self) -> &Extents {
        &self.extents
    }

    pub(super) fn partition_of(&self, key: u64) -> usize {
        partition_of_key(key, self.partitions.len() as u32).0 as usize
    }

    /// Returns whether this applier owns a key's partition, and the partition's number.
    #[inline]
    pub fn owns(&self, key: u64) -> (bool, u32) {
        let p = self.partition_of(key);
        (
            self.partitions.get(p).is_some_and(Option::is_some),
            p as u32,
        )
    }

    /// Returns the location of a key's row; `None` for a key without a row, or of another applier.
    #[inline]
    pub fn find(&self, key: u64) -> Option<RowLocation> {
        self.find_slot(key).map(|loc| self.of_generation(loc))
    }

    /// Returns the location of a key's slot; `None` for a key without a row. Its generation (the number of
    /// rows that the slot has had before) is always 0, not the slot's own.
    #[inline]
    pub(super) fn find_slot(&self, key: u64) -> Option<RowLocation> {
        let number = self.index.get(key, |number| self.extents.key_of(number))?;
        self.extents.location(number)
    }

    /// Returns the location with the present generation of its slot.
    fn of_generation(&self, loc: RowLocation) -> RowLocation {
        let place = self.extents.place_of_key(loc, NO_KEY);
        let ver = place.and_then(|place| self.rows.version(place).ok());
        debug_assert!(ver.is_some(), "the index has slots of extents: {loc:?}");
        RowLocation::new(
            ver.unwrap_or_default().generation(),
            loc.extent(),
            loc.slot(),
        )
    }

    /// Prefetches the memory that [`SparseShard::find`] will need for these keys. For about a dozen keys:
    /// the processor fetches that many cache lines at once, and searches one by one wait for each.
    #[inline]
    pub fn touch(&self, keys: impl Iterator<Item = u64> + Clone) {
        let seen = keys
            .clone()
            .fold(0, |seen, key| seen ^ self.index.touch(key));
        std::hint::black_box(seen);
        for key in keys {
            let slot = self.index.guess(key);
            if let Some(loc) = slot.and_then(|number| self.extents.location(number)) {
                self.extents.prefetch(loc);
            }
        }
    }

    /// Appends the places of rows 0 to `count - 1` of a frame to `places`, creating missing rows. `row` returns
    /// the key of each, and the client's cached location or [`RowLocation::NONE`]. Of `progress` only the lsn is
    /// used.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up or a key is not this applier's. The rows before the one that failed
    /// exist, and their places are in `places`.
    pub fn find_rows(
        &mut self,
        count: usize,
        row: impl Fn(usize) -> (u64, RowLocation),
        redo: &Redo,
        progress: Progress,
        places: &mut Vec<RowPlace>,
    ) -> Result<(), StoreError> {
        places.reserve(count);
        for first in (0..count).step_by(FIND_AHEAD) {
            let group = first..count.min(first + FIND_AHEAD);
            let rows = || group.clone().map(&row);
            rows().for_each(|(_, hint)| self.extents.prefetch(hint));
            self.touch(
                rows()
                    .filter(|(_, hint)| !hint.is_some())
                    .map(|(key, _)| key),
            );
            for n in group {
                let (key, hint) = row(n);
                let place = match self.find_hinted(key, hint) {
                    Some(place) => place,
                    None => {
                        let row = n as u32;
                        let progress = Progress { row, ..progress };
                        let loc = self.slot_or_create(key, redo, progress)?;
                        let place = self.extents.place_of_key(loc, key);
                        place.ok_or_else(|| not_owned(self.partition_of(key)))?
                    }
                };
                places.push(place);
            }
        }
        Ok(())
    }

    /// Returns the place at the client's cached location `hint` if the key's row is there; otherwise `None`. The
    /// slot's key decides: a slot has it for as long as it holds the row, and an empty slot has key 0. For key 0
    /// itself generation and version decide, which costs a read of another cache line.
    #[inline]
    pub fn find_hinted(&self, key: u64, hint: RowLocation) -> Option<RowPlace> {
        let place = self.extents.place(hint)?;
        let is_its = place.key == key && (key != NO_KEY || self.is_of_generation(place, hint));
        (is_its || mutants::on(Mutant::PushByStaleLocation)).then_some(place)
    }

    #[cold]
    fn is_of_generation(&self, place: RowPlace, hint: RowLocation) -> bool {
        let ver = self.rows.version(place).unwrap_or_default();
        ver.generation() == hint.generation() && ver.is_valid()
    }

    /// Returns the place in memory of the slot at a location, also if the slot has no row now. `None` for a
    /// location that was never given out.
    #[inline]
    pub fn place(&self, loc: RowLocation) -> Option<RowPlace> {
        self.extents.place(loc)
    }

    /// Returns the location of a key's row, after creating the row if there is none. Bounded work, unless the
    /// helper thread is late.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up or the key is not this applier's; nothing was changed.
    pub fn find_or_create(
        &mut self,
        key: u64,
        redo: &Redo,
        progress: Progress,
    ) -> Result<RowLocation, StoreError> {
        let loc = self.slot_or_create(key, redo, progress)?;
        Ok(self.of_generation(loc))
    }

    /// Returns the location of a key's row, after creating the row if there is none. The location has the slot's
    /// generation only if the row was created now; otherwise it has generation 0.
    fn slot_or_create(
        &mut self,
        key: u64,
        redo: &Redo,
        progress: Progress,
    ) -> Result<RowLocation, StoreError> {
        if let Some(loc) = self.find_slot(key) {
            return Ok(loc);
        }
        let p = self.partition_of(key);
        if !matches!(self.partitions.get(p), Some(Some(_))) {
            return Err(not_owned(p));
        }
        // What can fail comes first, and nothing after `take_slot` does: a slot that was taken for
        // a key which no search finds would be lost.
        self.index.make_room(|number| self.extents.key_of(number))?;
        let loc = self.take_slot(p)?;
        self.extents.set_key(loc, key)?;
        if let Some(place) = self.extents.place(loc) {
            self.rows.create(redo, progress, place)?;
            self.stamp(&[place])?;
        }
        let number = self.extents.number(loc);
        let partition = self.partitions.get_mut(p).and_then(Option::as_mut);
        let (Some(number), Some(partition)) = (number, partition) else {
            unreachable!("slot {loc:?} was just taken for partition {p}");
        };
        self.index.add(key, number);
        partition.len += 1;
        self.len += 1;
        Ok(loc)
    }

    fn take_slot(&mut self, p: usize) -> Result<RowLocation, StoreError> {
        let Some(partition) = self.partitions.get_mut(p).and_then(Option::as_mut) else {
            return Err(not_owned(p));
        };
        if partition.vacant.len() > QUARANTINE_SLOTS
            && let Some(loc) = partition.vacant.pop_front()
        {
            return Ok(loc);
        }
        if partition.runs.last().is_none_or(|r| r.used == r.len) {
            let want = (partition.len / RUN_PART).next_multiple_of(8);
            let want = want.clamp(RUN_SLOTS[0], RUN_SLOTS[1]);
            let (extent, first, len) = self.extents.take(want)?;
            partition.runs.push(Run {
                extent,
                first,
                len,
                used: 0,
            });
        }
        let Some(run) = partition.runs.last_mut() else {
            return Err(not_owned(p));
        };
        let slot = run.first + run.used;
        run.used += 1;
        Ok(RowLocation::new(0, run.extent, slot))
    }

    /// Removes the row of a key; false if there is none. The slot is later reused for a key of its partition, as
    /// the next generation. Voids the applier's redo record in any case.
    ///
    /// # Errors
    /// None in practice: rows of this shard lie inside the memory of its server.
    pub fn remove(&mut self, key: u64, redo: &Redo) -> Result<bool, StoreError> {
        redo.void()?;
        let p = self.partition_of(key);
        let Some(partition) = self.partitions.get_mut(p).and_then(Option::as_mut) else {
            return Ok(false);
        };
        let removed = self.index.remove(key, |number| self.extents.key_of(number));
        let Some(loc) = removed.and_then(|number| self.extents.location(number)) else {
            return Ok(false);
        };
        partition.len -= 1;
        if let Some(place) = self.extents.place(loc) {
            let next: RowVersion = self.rows.remove(place)?;
            self.extents.set_key(loc, NO_KEY)?;
            partition.vacant.push_back(RowLocation::new(
                next.generation(),
                loc.extent(),
                loc.slot(),
            ));
        }
        self.len -= 1;
        Ok(true)
    }

    /// Frees all memory of the share: the index, and the extents after all of their rows were made invalid.
    ///
    /// # Errors
    /// None in practice: all blocks are of the server memory in which the share was created.
    pub fn release(self) -> Result<(), StoreError> {
        self.index.release()?;
        self.extents.release()
    }
}

/// Creates the list of a table's partitions by number, without rows: `None` for those that are not in `own`.
pub(super) fn own_partitions(
    spec: &TableSpec,
    own: impl Iterator<Item = PartitionId>,
) -> Vec<Option<Partition>> {
    let mut all = Vec::new();
    all.resize_with(spec.partitions as usize, || None);
    for partition in own {
        if let Some(slot) = all.get_mut(partition.0 as usize) {
            *slot = Some(Partition::default());
        }
    }
    all
}

fn not_owned(p: usize) -> StoreError {
    StoreError::Limit {
        what: "partition of another applier",
        have: p as u64,
        limit: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use tidewater_protocol::ids::{DomainId, Incarnation, TableId};
    use tidewater_protocol::limits::MEMORY_BLOCKS_MAX;
    use tidewater_protocol::table::{
        Apply, DType, GradientOptions, Init, KeyOptions, Optimizer, PushOp, Shape,
    };

    use super::super::memory::Arena;
    use super::*;

    fn spec(dim: u32) -> Arc<TableSpec> {
        Arc::new(TableSpec {
            name: "t".into(),
            shape: Shape::Sparse { dim },
            dtype: DType::F32,
            optimizer: Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 },
            init: Init::Constant(1.0),
            seed: 1,
            effect: Apply::Immediate,
            finite_check: true,
            domain: DomainId(0),
            partitions: 16,
            gradient: GradientOptions::default(),
            redo: false,
            keys: KeyOptions::default(),
            versions: 2,
            durability: Default::default(),
            partition_servers: None,
            partition_starts: None,
        })
    }

    fn shard(dim: u32) -> (Arc<ServerMemory>, Redo, SparseShard) {
        let memory = Arc::new(ServerMemory::new(256 << 20, Incarnation(5)).unwrap());
        let redo = Redo::new(Arc::clone(&memory), 0, 4096, 8192).unwrap();
        let all = (0..16).map(PartitionId);
        let shard = SparseShard::new(
            &memory,
            &Preallocator::start().unwrap(),
            ShardId::new(TableId(1), 0),
            &spec(dim),
            all,
        )
        .unwrap();
        (memory, redo, shard)
    }

    fn value(shard: &mut SparseShard, key: u64) -> Option<f32> {
        let place = shard.find(key).and_then(|l| shard.place(l))?;
        let mut out = [0; 4];
        shard.rows().read(place, &mut out).unwrap();
        Some(f32::from_le_bytes(out))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn agrees_with_a_map_through_removals_and_reuse(
            ops in proptest::collection::vec((0u8..4, 0u64..300), 0..4000),
        ) {
            let (_memory, redo, mut shard) = shard(1);
            let mut model: HashMap<u64, f32> = HashMap::new();
            for (n, (op, key)) in ops.into_iter().enumerate() {
                let key = key.wrapping_mul(0x1_0000_0001);
                let progress = Progress { lsn: n as u64, row: 0 };
                if op == 0 {
                    prop_assert_eq!(shard.remove(key, &redo).unwrap(), model.remove(&key).is_some());
                } else {
                    let loc = shard.find_or_create(key, &redo, progress).unwrap();
                    let place = shard.place(loc).unwrap();
                    prop_assert_eq!(place.key, key);
                    shard.rows().apply(&redo, progress, place, PushOp::Sum, &2f32.to_le_bytes()).unwrap();
                    *model.entry(key).or_insert(1.0) += 2.0;
                }
                prop_assert_eq!(shard.len(), model.len());
            }
            for key in (0..300u64).map(|k| k.wrapping_mul(0x1_0000_0001)) {
                prop_assert_eq!(value(&mut shard, key), model.get(&key).copied());
            }
        }
    }

    #[test]
    fn a_stale_hint_never_leads_to_another_keys_row() {
        let (_memory, redo, mut shard) = shard(4);
        let progress = Progress::default();
        let keys: Vec<u64> = (0..2_000).collect();
        let old: Vec<RowLocation> = keys
            .iter()
            .map(|&k| shard.find_or_create(k, &redo, progress).unwrap())
            .collect();
        for &k in &keys {
            assert!(shard.remove(k, &redo).unwrap());
        }
        for k in 10_000..12_000u64 {
            shard.find_or_create(k, &redo, progress).unwrap();
        }
        let reused = old
            .iter()
            .filter(|l| shard.place(**l).unwrap().key >= 10_000)
            .count();
        assert!(
            reused > 500,
            "only {reused} slots were reused: nothing tested"
        );
        for (&k, &hint) in keys.iter().zip(&old) {
            assert_eq!(shard.find_hinted(k, hint), None, "key {k}");
        }
    }

    /// A run's slots are handed out one by one, and the slot of a removed row has no key any more.
    /// Both hold key 0, which is a key like any other.
    #[test]
    fn a_hint_to_a_slot_without_a_row_leads_nowhere() {
        let (_memory, redo, mut shard) = shard(4);
        let progress = Progress::default();
        let loc = shard.find_or_create(1, &redo, progress).unwrap();
        let vacant = RowLocation::new(0, loc.extent(), loc.slot() + 1);
        assert_eq!(shard.place(vacant).map(|p| p.key), Some(0));
        for key in [0, 1, 2] {
            assert_eq!(shard.find_hinted(key, vacant), None, "key {key}");
        }
        for key in [0, 77] {
            let loc = shard.find_or_create(key, &redo, progress).unwrap();
            let place = shard.place(loc);
            assert_eq!(place.map(|p| p.key), Some(key));
            assert_eq!(shard.find_hinted(key, loc), place);
            assert!(shard.remove(key, &redo).unwrap());
            assert_eq!(shard.find_hinted(key, loc), None, "key {key}");
            assert_eq!(shard.find_hinted(0, loc), None, "key 0 for {key}");
        }
    }

    #[test]
    fn growth_keeps_every_row() {
        let (_memory, redo, mut shard) = shard(8);
        for k in 0..50_000u64 {
            shard
                .find_or_create(k << 32, &redo, Progress::default())
                .unwrap();
        }
        let all: std::collections::HashSet<RowLocation> = (0..50_000u64)
            .map(|k| shard.find(k << 32).unwrap())
            .collect();
        assert_eq!(all.len(), 50_000);
        shard.release().unwrap();
    }

    /// A table with room for the list of its extents, but not for its index, keeps no memory.
    #[test]
    fn a_refused_table_keeps_no_memory() {
        let memory = Arc::new(ServerMemory::new(256 << 20, Incarnation(5)).unwrap());
        let owner = BlockOwner::of(
            ShardId::new(TableId(9), 0),
            BlockKind::Index,
            PartitionId(0),
        );
        let room: Vec<_> = (0..4)
            .map(|_| memory.private.alloc(64 * 16, owner).unwrap())
            .collect();
        for bits in (6..29).rev() {
            while memory.private.alloc(1 << bits, owner).is_ok() {}
        }
        for block in room {
            memory.private.free(block).unwrap();
        }
        let make = || {
            let (preallocator, all) = (Preallocator::none(), (0..16).map(PartitionId));
            SparseShard::new(
                &memory,
                &preallocator,
                ShardId::new(TableId(2), 0),
                &spec(1),
                all,
            )
        };
        assert!(make().is_err());
        let taken = |arena: &Arena| {
            let blocks = arena.directory().unwrap();
            blocks.iter().filter(|(_, owner)| owner[0] != 0).count()
        };
        let before = [&memory.public, &memory.private].map(taken);
        let usage = memory.public.usage();
        for _ in 0..3 {
            assert!(make().is_err());
        }
        assert_eq!([&memory.public, &memory.private].map(taken), before);
        assert_eq!(memory.public.usage(), usage);
    }

    /// Tables that grow together, without a freed block to use again: as many as a cluster may have need
    /// fewer blocks than a directory has.
    #[test]
    fn tables_that_grow_together_leave_blocks() {
        let blocks = |tables: u32, partitions: u32, keys: u64| {
            let memory = Arc::new(ServerMemory::new(512 << 20, Incarnation(5)).unwrap());
            let redo = Redo::new(Arc::clone(&memory), 0, 4096, 8192).unwrap();
            let spec = Arc::new(TableSpec {
                partitions,
                ..(*spec(1)).clone()
            });
            let shard = |table| {
                let (preallocator, all) = (Preallocator::none(), (0..partitions).map(PartitionId));
                SparseShard::new(
                    &memory,
                    &preallocator,
                    ShardId::new(TableId(table), 0),
                    &spec,
                    all,
                )
                .unwrap()
            };
            let mut shards: Vec<SparseShard> = (0..tables).map(shard).collect();
            for key in 0..keys {
                for shard in &mut shards {
                    shard
                        .find_or_create(key, &redo, Progress::default())
                        .unwrap();
                }
            }
            let used = |arena: &Arena| arena.directory().unwrap().len();
            used(&memory.public).max(used(&memory.private)) / tables as usize
        };
        let each = blocks(10, 64, 5_000);
        assert!(
            4 * 1_000 * each <= MEMORY_BLOCKS_MAX,
            "{each} blocks a table"
        );
        let each = blocks(2, 64, 200_000);
        assert!(4 * 300 * each <= MEMORY_BLOCKS_MAX, "{each} blocks a table");
    }

    /// A full directory refuses a key by the name of its limit, and the rows that exist are served.
    #[test]
    fn a_full_directory_is_named() {
        let (memory, redo, mut shard) = shard(1);
        shard.find_or_create(0, &redo, Progress::default()).unwrap();
        let owner = BlockOwner::of(
            ShardId::new(TableId(9), 0),
            BlockKind::Index,
            PartitionId(0),
        );
        while memory.private.alloc(64, owner).is_ok() {}
        let refused = (1..10_000).find_map(|key| {
            let created = shard.find_or_create(key, &redo, Progress::default());
            Some((key, created.err()?))
        });
        let (key, error) = refused.unwrap();
        assert!(matches!(error, StoreError::Blocks { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("private memory has 65536 blocks"), "{text}");
        assert!((0..key).all(|key| shard.find(key).is_some()));
        assert_eq!(shard.len() as u64, key);
    }

    /// Keys that are refused for lack of memory take no slot, and are created once memory is free
    /// again.
    #[test]
    fn a_refused_key_takes_nothing() {
        const KEYS: u64 = 1_500;
        let (memory, redo, mut shard) = shard(1);
        let used = |shard: &SparseShard| -> u32 {
            let partitions = shard.partitions.iter().flatten();
            partitions.flat_map(|p| &p.runs).map(|run| run.used).sum()
        };
        let create = |shard: &mut SparseShard, key| {
            let progress = Progress { lsn: key, row: 0 };
            match shard.find_or_create(key, &redo, progress) {
                Ok(_) => true,
                Err(StoreError::NoMemory { .. }) => false,
                Err(e) => panic!("{e}"),
            }
        };
        // There is an extent: what is missing later is room in indexes.
        assert!(create(&mut shard, 0));
        let owner = BlockOwner {
            kind: BlockKind::Index,
            table: 9,
            applier: 0,
            part: 0,
        };
        // A freed block serves requests of its size only: here the size that the index grows to.
        let take = |bytes| memory.private.alloc(bytes, owner).ok();
        let room = take(2048 * 4);
        for bits in (6..26).rev() {
            while take(1 << bits).is_some() {}
        }
        let mut refused = Vec::new();
        for key in 1..KEYS {
            let before = used(&shard);
            if !create(&mut shard, key) {
                assert_eq!((shard.find(key), used(&shard)), (None, before), "{key}");
                refused.push(key);
            }
        }
        assert!(refused.len() > 100, "{} refused", refused.len());
        memory.private.free(room.unwrap()).unwrap();
        assert!(refused.iter().all(|&key| create(&mut shard, key)));
        assert_eq!((shard.len, used(&shard)), (KEYS as usize, KEYS as u32));
    }
}

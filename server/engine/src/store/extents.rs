//! Extents: slabs of rows that never move, with keys and optimizer state in private memory. (long: with its tests.)
//!
//! Each slot has a row in public memory and a record in private memory: its key (8 bytes), then the
//! optimizer state of the row, to a multiple of 8. Slots of all extents are numbered in 32 bits for
//! the index: the numbers of an extent begin at a multiple of `PAGE_SLOTS`, those of the first at
//! `PAGE_SLOTS` itself.
//!
//! An extent is an eighth of those before it, so that little is resident that holds no row. The
//! helper thread preallocates the next extent ahead (present, registered), so that an applier that runs
//! out only takes it. When the helper is late the applier makes a small one itself.

use std::sync::Arc;

use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::extent::ExtentEntry;
use tidewater_protocol::layout::reject::RowResource;
use tidewater_protocol::layout::row::{RowLayout, RowLocation};
use tidewater_protocol::limits::{EXTENT_BYTES_MAX, EXTENTS_MAX};
use tidewater_runtime::mem::{MemError, Region, WordsMut};

use super::StoreError;
use super::cut::Span;
use super::extent_records::{ExtentRecord, ExtentRecords};
use super::index::Index;
use super::memory::{Arena, Block, BlockKind, BlockOwner, ServerMemory};
use super::prealloc::{Delivery, Made, Order, Pace, Preallocator, Urgency};
use super::redo::RowPlace;
use super::release::{RowSlab, release_rows};
use crate::store::ShardId;

/// Bytes of row memory of a table's first extents. All sizes are multiples of this one, so that freed extents
/// serve tables with other rows; except extents of 16 rows of more than 4 KiB each.
const FIRST_BYTES: usize = 64 << 10;
/// Divisor of a table's row memory for the size of its next extent, which bounds the slack of a large table. An
/// extent has at least 64 KiB and 16 slots, so the slack of a small table is a greater part of it.
const GROWTH_PART: usize = 8;
/// Divisor of an extent's slots: when only this part of the last extent is left, the next one is ordered.
const ORDER_PART: u32 = 8;
/// Divisor for the size of an extent that the applier makes because the ordered one is late. It is
/// small, so that the ordered one is used soon, but not so small that a slow helper uses up a
/// table's extents.
const LATE_PART: usize = 4;
/// Least number of slots of an extent.
const SLOTS_MIN: usize = 16;
/// Bytes of the key at the beginning of a slot's record.
const KEY_BYTES: usize = 8;
/// Number of slots in a page of the slot numbers. All slots of a page belong to one extent.
const PAGE_SLOTS: u32 = 1 << PAGE_BITS;
const PAGE_BITS: u32 = 10;

/// One extent: its memory blocks, its region key, and the number of slots in use.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    rows: Block,
    records: Block,
    key: RegionKey,
    salt: u64,
    slots: u32,
    used: u32,
    /// Slot number, as the index has it, of the extent's first slot.
    base: u32,
}

/// Sizes and owner of an extent that is to be created.
#[derive(Debug, Clone, Copy)]
struct Plan {
    owner: BlockOwner,
    layout: RowLayout,
    /// Bytes of a slot's record in private memory.
    record_bytes: usize,
    /// Bytes of the extent's rows in public memory.
    bytes: usize,
}

impl Plan {
    /// Returns the plan of a table's first extent. `state` is the bytes of a row's private state.
    const fn first(ShardId { table, applier }: ShardId, layout: RowLayout, state: usize) -> Self {
        Self {
            owner: BlockOwner {
                kind: BlockKind::Extent,
                table: table.0,
                applier,
                part: 1,
            },
            layout,
            record_bytes: KEY_BYTES + state.next_multiple_of(8),
            bytes: FIRST_BYTES,
        }
    }

    /// Creates the extent. With `pace`, on the helper thread, its pages are made present. Without it, on an
    /// applier, the first access makes each page present. Nothing is allocated on an error.
    fn make(
        &self,
        memory: &ServerMemory,
        mut pace: Option<&mut Pace>,
    ) -> Result<Extent, StoreError> {
        let slots = self.slots();
        let mut block = |arena: &Arena, bytes| match &mut pace {
            Some(pace) => arena.alloc_present(bytes, self.owner, pace),
            None if bytes <= FIRST_BYTES => arena.alloc(bytes, self.owner),
            None => arena.alloc_untouched(bytes, self.owner),
        };
        let (private, public) = (&memory.private, &memory.public);
        let rows = block(public, self.bytes)?;
        let records = block(private, slots as usize * self.record_bytes)
            .or_else(|e| public.free_untouched(rows).and(Err(e)))?;
        // Last: a key that was given out is never taken back.
        let key = memory.export(rows).or_else(|e| {
            public.free_untouched(rows)?;
            private.free_untouched(records).and(Err(e))
        })?;
        Ok(Extent {
            rows,
            records,
            key,
            salt: memory.salt(),
            slots,
            used: 0,
            base: 0,
        })
    }

    /// Number of rows that the bytes of the plan hold.
    const fn slots(&self) -> u32 {
        (self.bytes / self.layout.stride) as u32
    }

    /// Returns the plan with `bytes` bytes of rows, at most `EXTENT_BYTES_MAX`, rounded down to a multiple of
    /// `FIRST_BYTES`. At least one `FIRST_BYTES`, and at least `SLOTS_MIN` rows.
    fn of_bytes(self, bytes: usize) -> Self {
        let least = self.layout.stride * SLOTS_MIN;
        let bytes = bytes.min(EXTENT_BYTES_MAX) / FIRST_BYTES * FIRST_BYTES;
        let bytes = bytes.max(FIRST_BYTES).max(least);
        Self { bytes, ..self }
    }
}

impl Made for Extent {
    fn discard(self, memory: &ServerMemory) {
        // Nothing has used either. A region that cannot take its block back counts it as used for good.
        let _ = memory.public.free_untouched(self.rows);
        let _ = memory.private.free_untouched(self.records);
    }
}

/// All extents of a sparse table on one applier, and the table of them that clients read.
#[derive(Debug)]
pub struct Extents {
    memory: Arc<ServerMemory>,
    plan: Plan,
    table_salt: u64,
    list: Vec<Extent>,
    /// Index in `list` of the extent that each page of slot numbers belongs to, from page 1 on.
    pages: Vec<u16>,
    /// Bytes of row memory of all extents.
    bytes: usize,
    entries: Block,
    entries_key: RegionKey,
    preallocator: Preallocator,
    coming: Option<Order<Extent>>,
    /// Records for a process that takes over after a crash, if the table outlives its process.
    kept: Option<ExtentRecords>,
}

/// Location of the extents of a table that outlives its process, for a process that takes over after a
/// crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ExtentsPlace {
    entries: Block,
    records: Block,
    salt: u64,
}

impl Extents {
    /// Creates an empty extent table in public memory. `state_bytes` is the private state of a row in
    /// bytes.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub fn new(
        memory: Arc<ServerMemory>,
        preallocator: Preallocator,
        shard_id: ShardId,
        layout: RowLayout,
        state_bytes: usize,
    ) -> Result<Self, StoreError> {
        let plan = Plan::first(shard_id, layout, state_bytes);
        let meta = BlockOwner {
            kind: BlockKind::Meta,
            ..plan.owner
        };
        let (entries, entries_key) = memory.public_block(EXTENTS_MAX * LINE_BYTES, meta)?;
        let table_salt = memory.salt();
        Ok(Self {
            memory,
            plan,
            table_salt,
            list: Vec::new(),
            pages: Vec::new(),
            bytes: 0,
            entries,
            entries_key,
            preallocator,
            coming: None,
            kept: None,
        })
    }

    /// Starts to keep a record of each extent in private memory, from which a successor of this process finds
    /// them. Called before the table has extents.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub(super) fn keep(&mut self) -> Result<(), StoreError> {
        self.kept = Some(ExtentRecords::new(&self.memory, self.plan.owner)?);
        Ok(())
    }

    /// Returns the location of the extents for a process that takes over after a crash; `None` for a table
    /// that does not outlive its process.
    pub(super) fn location_of_all(&self) -> Option<ExtentsPlace> {
        let kept = self.kept.as_ref()?;
        Some(ExtentsPlace {
            entries: self.entries,
            records: kept.block(),
            salt: self.table_salt,
        })
    }

    /// Resumes the extents of a dead process: registers them again, with all slots in use. The caller then
    /// sets how many slots of the last extent are in use, by [`Self::end_at`].
    ///
    /// # Errors
    /// [`StoreError`] when memory or keys are used up, or `place` lies outside the memory.
    pub(super) fn resume(
        memory: Arc<ServerMemory>,
        preallocator: Preallocator,
        shard_id: ShardId,
        layout: RowLayout,
        state_bytes: usize,
        place: ExtentsPlace,
    ) -> Result<Self, StoreError> {
        let plan = Plan::first(shard_id, layout, state_bytes);
        let entries_key = memory.export(place.entries)?;
        let kept = ExtentRecords::attach(&memory, place.records);
        let mut extents = Self {
            plan,
            table_salt: place.salt,
            list: Vec::new(),
            pages: Vec::new(),
            bytes: 0,
            entries: place.entries,
            entries_key,
            preallocator,
            coming: None,
            kept: None,
            memory,
        };
        while let Some(record) = kept.read(extents.list.len())? {
            let key = extents.memory.export(record.rows)?;
            let ExtentRecord {
                rows,
                records,
                slots,
                salt,
            } = record;
            extents.add(Extent {
                rows,
                records,
                key,
                salt,
                slots,
                used: slots,
                base: 0,
            })?;
        }
        extents.kept = Some(kept);
        Ok(extents)
    }

    /// Sets the number of slots in use in the last extent, at most all of its slots.
    pub(super) fn end_at(&mut self, used: u32) {
        if let Some(last) = self.list.last_mut() {
            last.used = used.min(last.slots);
        }
    }

    /// Lists the number of slots of each extent.
    pub(super) fn slots_of_all(&self) -> Vec<u32> {
        self.list.iter().map(|extent| extent.slots).collect()
    }

    /// Counts the slots with a key other than 0 in their record. Also returns the end of the slot numbers: one
    /// more than that of the last extent's last slot, 0 without extents.
    pub(super) fn count_keys(&self) -> Result<(usize, u32), StoreError> {
        let record = self.plan.record_bytes;
        let mut keys = 0;
        for extent in &self.list {
            let region = self.memory.private.region();
            let records = region.words(extent.records.at, extent.slots as usize * record)?;
            let has_key = |slot: &usize| records.load(slot * record) != 0;
            keys += (0..extent.slots as usize).filter(has_key).count();
        }
        let last = self.list.last();
        Ok((keys, last.map_or(0, |last| last.base + last.slots)))
    }

    /// Lists the memory blocks of the extents: in public memory, with that of the extent table, and in private
    /// memory, with that of the records for a successor.
    pub(super) fn blocks(&self) -> [Vec<Block>; 2] {
        let rows = self.list.iter().map(|extent| extent.rows);
        let records = self.list.iter().map(|extent| extent.records);
        let kept = self.kept.iter().map(ExtentRecords::block);
        [
            rows.chain([self.entries]).collect(),
            records.chain(kept).collect(),
        ]
    }

    /// Returns the salt of the entries of the extent table.
    pub const fn table_salt(&self) -> u64 {
        self.table_salt
    }

    /// Returns the private memory, which holds keys and optimizer states of the rows.
    pub(super) fn private(&self) -> &Arc<Region> {
        self.memory.private.region()
    }

    /// Returns the address (byte offset in public memory) and the region key of the extent table, which clients
    /// read.
    pub const fn table_addr(&self) -> (u64, RegionKey) {
        (self.entries.at as u64, self.entries_key)
    }

    /// Takes at least one and up to `want` consecutive unused slots of the last extent, and adds an extent first
    /// if the last one is full. Orders the next extent from the helper thread when few slots are left. Returns
    /// the extent's number from 1, the index of the first slot in the extent, and the number of slots. Bounded
    /// work, unless memory is used up while the helper thread is late: the call then waits for that thread.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up, or the table has as many extents or slots as the format allows;
    /// nothing was taken.
    pub fn take(&mut self, want: u32) -> Result<(u16, u32, u32), StoreError> {
        if self.list.last().is_none_or(|e| e.used == e.slots) {
            self.grow()?;
        }
        let number = self.list.len() as u16;
        let Some(extent) = self.list.last_mut() else {
            return Err(StoreError::Limit {
                what: "extents",
                have: 0,
                limit: 0,
            });
        };
        let n = want.min(extent.slots - extent.used).max(1);
        let first = extent.used;
        extent.used += n;
        if extent.slots - extent.used <= extent.slots / ORDER_PART && self.coming.is_none() {
            self.order();
        }
        Ok((number, first, n))
    }

    fn next_plan(&self) -> Plan {
        let owner = BlockOwner {
            part: self.list.len() as u32 + 1,
            ..self.plan.owner
        };
        Plan { owner, ..self.plan }.of_bytes(self.bytes / GROWTH_PART)
    }

    fn order(&mut self) {
        let plan = self.next_plan();
        let make = move |memory: &ServerMemory, pace: &mut Pace| plan.make(memory, Some(pace));
        self.coming = self.preallocator.order(&self.memory, Urgency::Soon, make);
    }

    fn grow(&mut self) -> Result<(), StoreError> {
        self.check_limits()?;
        // A late extent is not waited for: until it comes, small ones serve.
        let delivery = self.coming.as_mut().map(Order::take);
        let extent = match delivery {
            Some(Delivery::Here(extent)) => {
                self.coming = None;
                extent
            }
            Some(Delivery::Late) => {
                let plan = self.next_plan();
                match plan
                    .of_bytes(plan.bytes / LATE_PART)
                    .make(&self.memory, None)
                {
                    // An extent on its way holds the memory: a refusal of a push would be wrong in
                    // a moment.
                    Err(StoreError::NoMemory { .. }) => {
                        match self.coming.take().and_then(Order::wait) {
                            Some(extent) => extent,
                            None => plan.make(&self.memory, None)?,
                        }
                    }
                    made => made?,
                }
            }
            // The helper failed or there is none: making it here meets the same error again, if
            // there is one.
            Some(Delivery::Failed) | None => {
                self.coming = None;
                self.next_plan().make(&self.memory, None)?
            }
        };
        self.add(extent)
    }

    /// Adds an extent: to this applier's list, to the records for a resumption, and to the table that
    /// clients read.
    fn add(&mut self, extent: Extent) -> Result<(), StoreError> {
        let base = self.next_number();
        let extent = Extent { base, ..extent };
        let entry = ExtentEntry {
            base: extent.rows.at as u64,
            key: extent.key,
            slots: extent.slots,
            len: extent.rows.len as u64,
            salt: extent.salt,
        };
        if let Some(kept) = &self.kept {
            let Extent {
                rows,
                records,
                slots,
                salt,
                ..
            } = extent;
            let record = ExtentRecord {
                rows,
                records,
                slots,
                salt,
            };
            kept.write(self.list.len(), record)?;
        }
        let pages = extent.slots.div_ceil(PAGE_SLOTS) as usize;
        self.pages
            .extend(std::iter::repeat_n(self.list.len() as u16, pages));
        self.bytes += extent.rows.len;
        self.list.push(extent);
        let number = self.list.len() as u16;
        let at = self.entries.at + (number as usize - 1) * LINE_BYTES;
        let words = self.memory.public.region().words_mut(at, LINE_BYTES)?;
        words.store_line(0, &entry.to_line(self.table_salt, number));
        Ok(())
    }

    /// Number that the first slot of the next extent gets.
    const fn next_number(&self) -> u32 {
        (self.pages.len() as u32 + 1) << PAGE_BITS
    }

    /// Checks that one more extent is within the limits of the format; the error is `StoreError::TableFull`.
    fn check_limits(&self) -> Result<(), StoreError> {
        if self.list.len() >= EXTENTS_MAX {
            return Err(StoreError::TableFull {
                resource: RowResource::Extents,
                limit: EXTENTS_MAX as u64,
            });
        }
        let slots = self.plan.of_bytes(EXTENT_BYTES_MAX).slots();
        let pages = self.pages.len() as u64 + 1 + u64::from(slots.div_ceil(PAGE_SLOTS));
        let (have, limit) = (pages << PAGE_BITS, u64::from(Index::SLOT_MAX));
        if have > limit {
            return Err(StoreError::TableFull {
                resource: RowResource::Slots,
                limit,
            });
        }
        Ok(())
    }

    /// Returns the place of the slot at a location, with the key in the slot's record. The generation of `loc` is not
    /// checked: the slot may hold a later row, or none. The record of a slot without a row has key 0, which a row
    /// may have too. `None` for an extent and slot that were never given out.
    #[inline]
    pub fn place(&self, loc: RowLocation) -> Option<RowPlace> {
        let extent = self.extent_of(loc)?;
        let key = self.key_word(extent, loc).ok()?.as_read().load(0);
        Some(self.place_in(extent, loc, key))
    }

    /// Returns the place of a location with a known key. Does not read the slot. `None` for a location that
    /// was never given out.
    #[inline]
    pub fn place_of_key(&self, loc: RowLocation, key: u64) -> Option<RowPlace> {
        Some(self.place_in(self.extent_of(loc)?, loc, key))
    }

    /// Prefetches the slot record that [`Self::place`] will read. No effect for a location that was never
    /// given out.
    #[inline]
    pub fn prefetch(&self, loc: RowLocation) {
        if let Some(extent) = self.extent_of(loc) {
            let region = self.memory.private.region();
            region.prefetch(self.record_at(extent, loc), KEY_BYTES);
        }
    }

    /// Converts a slot number to its location, as generation 0. `None` for a number outside those of all extents.
    /// Whether the slot was given out is not checked.
    #[inline]
    pub fn location(&self, number: u32) -> Option<RowLocation> {
        let page = (number >> PAGE_BITS) as usize;
        let position = *self.pages.get(page.checked_sub(1)?)?;
        let extent = self.list.get(usize::from(position))?;
        Some(RowLocation::new(0, position + 1, number - extent.base))
    }

    /// Converts a location to its slot number. `None` for a location that was never given out.
    #[inline]
    pub fn number(&self, loc: RowLocation) -> Option<u32> {
        Some(self.extent_of(loc)?.base + loc.slot())
    }

    /// Returns the key in the slot with this number; the index calls it.
    ///
    /// # Panics
    /// For a number that was never given out: the index holds none.
    #[inline]
    pub fn key_of(&self, number: u32) -> u64 {
        let place = self.location(number).and_then(|loc| self.place(loc));
        let Some(place) = place else {
            unreachable!("slot {number} is in the index, but was never given out");
        };
        place.key
    }

    #[inline]
    fn extent_of(&self, loc: RowLocation) -> Option<&Extent> {
        let extent = self.list.get((loc.extent() as usize).checked_sub(1)?)?;
        (loc.slot() < extent.used).then_some(extent)
    }

    #[inline]
    const fn record_at(&self, extent: &Extent, loc: RowLocation) -> usize {
        extent.records.at + loc.slot() as usize * self.plan.record_bytes
    }

    #[inline]
    fn key_word(&self, extent: &Extent, loc: RowLocation) -> Result<WordsMut<'_>, MemError> {
        let at = self.record_at(extent, loc);
        self.memory.private.region().words_mut(at, KEY_BYTES)
    }

    #[inline]
    const fn place_in(&self, extent: &Extent, loc: RowLocation, key: u64) -> RowPlace {
        RowPlace {
            row_at: extent.rows.at + loc.slot() as usize * self.plan.layout.stride,
            state_at: self.record_at(extent, loc) + KEY_BYTES,
            key,
            salt: extent.salt,
        }
    }

    /// Writes the key of a slot into its record. No effect for a location that was never given out.
    ///
    /// # Errors
    /// [`StoreError::Mem`]: none in practice, because the records lie inside the server's memory.
    pub fn set_key(&self, loc: RowLocation, key: u64) -> Result<(), StoreError> {
        if let Some(extent) = self.extent_of(loc) {
            self.key_word(extent, loc)?.store(0, key);
        }
        Ok(())
    }

    /// Lists the positions of all slots in public memory, one span for each extent.
    pub(super) fn spans(&self) -> Vec<Span> {
        let span = |extent: &Extent| Span {
            first: extent.rows.at as u64,
            count: extent.slots.into(),
        };
        self.list.iter().map(span).collect()
    }

    /// Makes all rows invalid, so that a late reader finds no valid one, and then frees all memory of the
    /// extents.
    ///
    /// # Errors
    /// None in practice: all blocks are of the server memory in which the share was created.
    pub fn release(self) -> Result<(), StoreError> {
        let stride = self.plan.layout.stride;
        let slab = |extent: &Extent| RowSlab {
            block: extent.rows,
            stride,
            rows: extent.used as usize,
        };
        release_rows(&self.memory, self.list.iter().map(slab))?;
        for extent in &self.list {
            self.memory.private.free(extent.records)?;
        }
        if let Some(kept) = self.kept {
            kept.release()?;
        }
        self.memory.public.free(self.entries)
    }
}

#[cfg(test)]
mod tests {
    use tidewater_lanes::fabric::{RegisteredRegion, Registrar, RegistrarError};
    use tidewater_protocol::ids::{Incarnation, TableId};
    use tidewater_runtime::sync::{AtomicBool, Ordering};

    use super::*;

    /// Extents that grow without a helper, of rows with a KiB of state.
    fn extents(memory: &Arc<ServerMemory>) -> Extents {
        let (shard_id, layout) = (ShardId::new(TableId(1), 0), RowLayout::new(16));
        Extents::new(
            Arc::clone(memory),
            Preallocator::none(),
            shard_id,
            layout,
            1024,
        )
        .unwrap()
    }

    fn usage(memory: &ServerMemory) -> [(usize, usize); 2] {
        [memory.public.usage(), memory.private.usage()]
    }

    /// Public memory is left, private memory for the keys of an extent too, but not for its state.
    /// However often an extent is requested, no memory is lost, and it is made once there is room.
    #[test]
    fn a_refused_extent_takes_nothing() {
        let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(9)).unwrap());
        let mut extents = extents(&memory);
        // The records of an extent: of slots with a KiB of state and a key.
        let record = 1024 + KEY_BYTES;
        let bytes = (FIRST_BYTES / 32 * record).next_multiple_of(64);
        let owner = extents.plan.owner;
        let filler = memory.private.alloc(bytes, owner).unwrap();
        let (used, all) = memory.private.usage();
        let rest = all - used - 2 * bytes - bytes / 2;
        memory.private.alloc_untouched(rest, owner).unwrap();
        let refused = loop {
            if let Err(e) = extents.take(1_000) {
                break e;
            }
        };
        assert!(matches!(refused, StoreError::NoMemory { .. }), "{refused}");
        let next = extents.next_plan();
        assert_eq!(next.slots() as usize * next.record_bytes, bytes);
        let before = usage(&memory);
        for _ in 0..10 {
            extents.take(1_000).unwrap_err();
        }
        assert_eq!(usage(&memory), before);
        memory.private.free(filler).unwrap();
        extents.take(1_000).unwrap();
        assert_eq!(usage(&memory), before, "what was given back is used");
    }

    /// Refuses to register memory until it is opened.
    #[derive(Debug, Default)]
    struct Gate(AtomicBool);

    impl Registrar for Gate {
        fn register(
            &self,
            _: u32,
            _: RegionKey,
            _: &RegisteredRegion,
        ) -> Result<(), RegistrarError> {
            match self.0.load(Ordering::Relaxed) {
                true => Ok(()),
                false => Err("closed".into()),
            }
        }
    }

    /// A device that takes no more regions for a while: no two extents share memory afterwards.
    #[test]
    fn what_a_device_refuses_is_given_back_once() {
        let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(9)).unwrap());
        let mut all = [extents(&memory), extents(&memory)];
        let gate = Arc::new(Gate(AtomicBool::new(true)));
        memory.exports.attach(&(Arc::clone(&gate) as _)).unwrap();
        gate.0.store(false, Ordering::Relaxed);
        for _ in 0..3 {
            all[0].take(1).unwrap_err();
            memory.public_block(1 << 16, all[0].plan.owner).unwrap_err();
        }
        gate.0.store(true, Ordering::Relaxed);
        for extents in &mut all {
            extents.take(1).unwrap();
        }
        let blocks = all.each_ref().map(|extents| {
            let first = &extents.list[0];
            [first.rows, first.records].map(|block| block.at)
        });
        assert!(
            blocks[0].iter().zip(&blocks[1]).all(|(a, b)| a != b),
            "{blocks:?}"
        );
    }

    /// A helper that is busy for any time. The table grows without it, by few extents. An extent
    /// that it makes too late, for a table that was released meanwhile, is freed.
    #[test]
    fn a_late_helper_is_done_without() {
        let memory = Arc::new(ServerMemory::new(256 << 20, Incarnation(9)).unwrap());
        let helper = Preallocator::start().unwrap();
        let (open, gate) = crossbeam_channel::bounded::<()>(0);
        let busy = |gate: crossbeam_channel::Receiver<()>| {
            helper.order::<Extent>(&memory, Urgency::Soon, move |_, _| {
                let _ = gate.recv();
                Err(StoreError::Limit {
                    what: "patience",
                    have: 1,
                    limit: 0,
                })
            })
        };
        let _first = busy(gate.clone()).unwrap();
        let shard_id = ShardId::new(TableId(1), 0);
        let (layout, preallocator) = (RowLayout::new(16), helper.clone());
        let mut extents =
            Extents::new(Arc::clone(&memory), preallocator, shard_id, layout, 16).unwrap();
        let mut slots = 0;
        while slots < 2_000_000 {
            let (number, first, n) = extents.take(1_000).unwrap();
            let last = RowLocation::new(0, number, first + n - 1);
            extents.set_key(last, 7).unwrap();
            assert_eq!(extents.place(last).unwrap().key, 7);
            let number = extents.number(last).unwrap();
            assert_eq!(extents.location(number), Some(last));
            assert_eq!(extents.key_of(number), 7);
            slots += n;
        }
        assert!(extents.list.len() < 200, "{} extents", extents.list.len());
        assert!(extents.coming.is_some(), "nothing was ordered");
        extents.release().unwrap();
        let mut last = busy(gate).unwrap();
        drop(open);
        while matches!(last.take(), Delivery::Late) {
            std::thread::yield_now();
        }
        for arena in [&memory.public, &memory.private] {
            assert_eq!(extents_of(arena), [], "blocks are lost");
        }
    }

    fn extents_of(arena: &Arena) -> Vec<(Block, [u32; 4])> {
        let mut all = arena.directory().unwrap();
        all.retain(|(_, [kind, ..])| *kind == BlockKind::Extent as u32);
        all
    }
}

//! Extents: slabs of rows that never move, with their keys and optimizer state in private memory.
//!
//! The helper thread prepares the next extent ahead (present, registered), so that an applier that
//! runs out only takes it. When the helper is late the applier makes a small one itself.

use std::sync::Arc;

use tidewater_protocol::ids::{RegionKey, TableId};
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::extent::ExtentEntry;
use tidewater_protocol::layout::row::{RowLayout, RowLocation};
use tidewater_protocol::limits::{EXTENT_BYTES_MAX, EXTENTS_MAX};
use tidewater_runtime::mem::{MemError, WordsMut};

use super::StoreError;
use super::cut::Span;
use super::memory::{Arena, Block, BlockKind, BlockOwner, ServerMemory};
use super::prepare::{Delivery, Made, Order, Pace, Preparer, Urgency};
use super::redo::RowPlace;
use super::release::{RowSlab, release_rows};

/// Bytes of a table's first extent; each next one is twice as large.
const FIRST_BYTES: usize = 64 << 10;
/// Divisor for the size of an extent that the applier makes because the ordered one is late. It is
/// small, so that the ordered one is used soon, but not so small that a slow helper uses up a
/// table's extents.
const LATE_PART: u32 = 16;

/// One extent and its use.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    rows: Block,
    keys: Block,
    state: Block,
    key: RegionKey,
    salt: u64,
    slots: u32,
    used: u32,
}

/// Sizes and owner of an extent to be made.
#[derive(Debug, Clone, Copy)]
struct Plan {
    owner: BlockOwner,
    layout: RowLayout,
    state_bytes: usize,
    slots: u32,
}

impl Plan {
    /// Makes the extent. With `pace` its pages are made present. Without it (in an applier, which
    /// has no time for that) the first access makes each present. Nothing is allocated on an error.
    fn make(
        &self,
        memory: &ServerMemory,
        mut pace: Option<&mut Pace>,
    ) -> Result<Extent, StoreError> {
        let slots = self.slots as usize;
        let mut block = |arena: &Arena, bytes| match &mut pace {
            Some(pace) => arena.alloc_present(bytes, self.owner, pace),
            None if bytes <= FIRST_BYTES => arena.alloc(bytes, self.owner),
            None => arena.alloc_untouched(bytes, self.owner),
        };
        let (private, public) = (&memory.private, &memory.public);
        let rows = block(public, slots * self.layout.stride)?;
        let keys =
            block(private, slots * 8).or_else(|e| public.free_untouched(rows).and(Err(e)))?;
        let state = block(private, slots * self.state_bytes).or_else(|e| {
            public.free_untouched(rows)?;
            private.free_untouched(keys).and(Err(e))
        })?;
        // Last: a key that was given out is never taken back.
        let key = memory.export(rows).or_else(|e| {
            public.free_untouched(rows)?;
            private.free_untouched(keys)?;
            private.free_untouched(state).and(Err(e))
        })?;
        Ok(Extent {
            rows,
            keys,
            state,
            key,
            salt: memory.salt(),
            slots: self.slots,
            used: 0,
        })
    }
}

impl Made for Extent {
    fn discard(self, memory: &ServerMemory) {
        let _ = memory.public.free_untouched(self.rows);
        let _ = memory.private.free_untouched(self.keys);
        let _ = memory.private.free_untouched(self.state);
    }
}

/// All extents of a sparse table on one applier.
#[derive(Debug)]
pub struct Extents {
    memory: Arc<ServerMemory>,
    plan: Plan,
    table_salt: u64,
    list: Vec<Extent>,
    entries: Block,
    entries_key: RegionKey,
    preparer: Preparer,
    coming: Option<Order<Extent>>,
}

impl Extents {
    /// Makes an empty extent table in public memory.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub fn new(
        memory: Arc<ServerMemory>,
        preparer: Preparer,
        (table, applier): (TableId, u32),
        layout: RowLayout,
        state_bytes: usize,
    ) -> Result<Self, StoreError> {
        let owner = BlockOwner {
            kind: BlockKind::Extent,
            table: table.0,
            applier,
            part: 1,
        };
        let meta = BlockOwner {
            kind: BlockKind::Meta,
            ..owner
        };
        let (entries, entries_key) = memory.public_block(EXTENTS_MAX * LINE_BYTES, meta)?;
        let slots = (FIRST_BYTES / layout.stride).clamp(16, 1 << 20) as u32;
        let table_salt = memory.salt();
        let state_bytes = state_bytes.next_multiple_of(8);
        let plan = Plan {
            owner,
            layout,
            state_bytes,
            slots,
        };
        Ok(Self {
            memory,
            plan,
            table_salt,
            list: Vec::new(),
            entries,
            entries_key,
            preparer,
            coming: None,
        })
    }

    /// Salt of the extent table's entries.
    pub const fn table_salt(&self) -> u64 {
        self.table_salt
    }

    /// Address and key of the extent table.
    pub const fn table_addr(&self) -> (u64, RegionKey) {
        (self.entries.at as u64, self.entries_key)
    }

    /// Takes up to `want` consecutive unused slots. Returns the extent's number, the first slot and
    /// the number of slots. Bounded work unless the helper is late.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up; nothing was taken.
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
        if extent.used >= extent.slots / 2 && self.coming.is_none() {
            self.order();
        }
        Ok((number, first, n))
    }

    fn next_plan(&self) -> Plan {
        let part = self.list.len() as u32 + 1;
        let doubled = u64::from(self.plan.slots) << (part - 1).min(20);
        let most = (EXTENT_BYTES_MAX / self.plan.layout.stride).max(16) as u64;
        let slots = doubled.min(most) as u32;
        Plan {
            owner: BlockOwner {
                part,
                ..self.plan.owner
            },
            slots,
            ..self.plan
        }
    }

    fn order(&mut self) {
        let plan = self.next_plan();
        let make = move |memory: &ServerMemory, pace: &mut Pace| plan.make(memory, Some(pace));
        self.coming = self.preparer.order(&self.memory, Urgency::Soon, make);
    }

    fn grow(&mut self) -> Result<(), StoreError> {
        if self.list.len() >= EXTENTS_MAX {
            let limit = EXTENTS_MAX as u64;
            return Err(StoreError::Limit {
                what: "extents of a table",
                have: limit + 1,
                limit,
            });
        }
        // A late extent is not waited for: until it comes, small ones serve.
        let delivery = self.coming.as_mut().map(Order::take);
        let extent = match delivery {
            Some(Delivery::Here(extent)) => {
                self.coming = None;
                extent
            }
            Some(Delivery::Late) => {
                let plan = self.next_plan();
                let slots = (plan.slots / LATE_PART).max(self.plan.slots);
                match (Plan { slots, ..plan }).make(&self.memory, None) {
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
        let entry = ExtentEntry {
            base: extent.rows.at as u64,
            key: extent.key,
            slots: extent.slots,
            len: extent.rows.len as u64,
            salt: extent.salt,
        };
        self.list.push(extent);
        let number = self.list.len() as u16;
        let at = self.entries.at + (number as usize - 1) * LINE_BYTES;
        let words = self.memory.public.region().words_mut(at, LINE_BYTES)?;
        words.store_line(0, &entry.to_line(self.table_salt, number));
        Ok(())
    }

    /// Place of a location's row, with the key that its slot holds; `None` for a location that was
    /// never given out.
    #[inline]
    pub fn place(&self, loc: RowLocation) -> Option<RowPlace> {
        let extent = self.extent_of(loc)?;
        let key = self.key_word(extent, loc).ok()?.as_read().load(0);
        Some(self.place_in(extent, loc, key))
    }

    /// Place of a location with a known key: does not read the slot.
    #[inline]
    pub fn place_of_key(&self, loc: RowLocation, key: u64) -> Option<RowPlace> {
        Some(self.place_in(self.extent_of(loc)?, loc, key))
    }

    /// Prefetches the memory that [`Self::place`] will read.
    #[inline]
    pub fn prefetch(&self, loc: RowLocation) {
        if let Some(extent) = self.extent_of(loc) {
            let region = self.memory.private.region();
            region.prefetch(extent.keys.at + loc.slot() as usize * 8, 8);
        }
    }

    #[inline]
    fn extent_of(&self, loc: RowLocation) -> Option<&Extent> {
        let extent = self.list.get((loc.extent() as usize).checked_sub(1)?)?;
        (loc.slot() < extent.used).then_some(extent)
    }

    #[inline]
    fn key_word(&self, extent: &Extent, loc: RowLocation) -> Result<WordsMut<'_>, MemError> {
        let at = extent.keys.at + loc.slot() as usize * 8;
        self.memory.private.region().words_mut(at, 8)
    }

    #[inline]
    const fn place_in(&self, extent: &Extent, loc: RowLocation, key: u64) -> RowPlace {
        let slot = loc.slot() as usize;
        RowPlace {
            row_at: extent.rows.at + slot * self.plan.layout.stride,
            state_at: extent.state.at + slot * self.plan.state_bytes,
            key,
            salt: extent.salt,
        }
    }

    /// Writes the key of a slot.
    ///
    /// # Errors
    /// [`StoreError::Mem`] for a location that was never given out.
    pub fn set_key(&self, loc: RowLocation, key: u64) -> Result<(), StoreError> {
        if let Some(extent) = self.extent_of(loc) {
            self.key_word(extent, loc)?.store(0, key);
        }
        Ok(())
    }

    /// Positions in public memory of all slots.
    pub(super) fn spans(&self) -> Vec<Span> {
        let span = |extent: &Extent| Span {
            first: extent.rows.at as u64,
            count: extent.slots.into(),
        };
        self.list.iter().map(span).collect()
    }

    /// Frees all memory, after all rows are void: a late reader finds no valid row, see
    /// `release_rows`.
    ///
    /// # Errors
    /// Never for blocks of this memory.
    pub fn release(self) -> Result<(), StoreError> {
        let stride = self.plan.layout.stride;
        let slab = |extent: &Extent| RowSlab {
            block: extent.rows,
            stride,
            rows: extent.used as usize,
        };
        release_rows(&self.memory, self.list.iter().map(slab))?;
        for extent in &self.list {
            self.memory.private.free(extent.keys)?;
            self.memory.private.free(extent.state)?;
        }
        self.memory.public.free(self.entries)
    }
}

#[cfg(test)]
mod tests {
    use tidewater_lanes::fabric::{RegisteredRegion, Registrar, RegistrarError};
    use tidewater_protocol::ids::Incarnation;
    use tidewater_runtime::sync::{AtomicBool, Ordering};

    use super::*;

    /// Extents that grow without a helper, of rows with a KiB of state.
    fn extents(memory: &Arc<ServerMemory>) -> Extents {
        let (who, layout) = ((TableId(1), 0), RowLayout::new(16));
        Extents::new(Arc::clone(memory), Preparer::none(), who, layout, 1024).unwrap()
    }

    fn usage(memory: &ServerMemory) -> [(usize, usize); 2] {
        [memory.public.usage(), memory.private.usage()]
    }

    /// Public memory is left, private memory for the keys of an extent too, but not for its state.
    /// However often an extent is requested, no memory is lost, and it is made once there is room.
    #[test]
    fn a_refused_extent_takes_nothing() {
        const STATE: usize = 16 << 20;
        let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(9)).unwrap());
        let mut extents = extents(&memory);
        let filler = memory.private.alloc(STATE, extents.plan.owner).unwrap();
        memory.private.alloc(STATE, extents.plan.owner).unwrap();
        let refused = loop {
            if let Err(e) = extents.take(1_000) {
                break e;
            }
        };
        assert!(matches!(refused, StoreError::NoMemory { .. }), "{refused}");
        let next = extents.next_plan();
        assert_eq!(next.slots as usize * next.state_bytes, STATE);
        assert!(next.slots as usize * next.layout.stride > FIRST_BYTES);
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
            [first.rows, first.keys, first.state].map(|block| block.at)
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
        let helper = Preparer::start().unwrap();
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
        let who = (TableId(1), 0);
        let (layout, preparer) = (RowLayout::new(16), helper.clone());
        let mut extents = Extents::new(Arc::clone(&memory), preparer, who, layout, 16).unwrap();
        let mut slots = 0;
        while slots < 2_000_000 {
            let (number, first, n) = extents.take(1_000).unwrap();
            let last = RowLocation::new(0, number, first + n - 1);
            extents.set_key(last, 7).unwrap();
            assert_eq!(extents.place(last).unwrap().key, 7);
            slots += n;
        }
        assert!(extents.list.len() < 64, "{} extents", extents.list.len());
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

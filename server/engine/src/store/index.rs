//! Index of a table on one applier: u64 key to slot number. (long: with its tests.)
//! Open addressing with linear probing, in private memory.
//!
//! A bucket has four bytes: a slot number from 1, under as many bits of the key's hash as there is
//! room for (the tag). 0 is an empty bucket. The key itself is in the slot's record, which the
//! caller reads: a search compares tags, and reads the keys of matching buckets only.
//!
//! The index grows in steps, so that each insert does only a little of it. At three quarters full
//! the helper gets an order for a table of one and a half times the size. At 27/32 that table takes
//! over, and each insert moves a few buckets of the old one while lookups search both. An applier
//! that cleared the new tables itself would meet fresh pages all that while. On a virtual machine
//! each of them may have to wait for the host. Without a helper, or if the next table is small, each insert
//! clears a piece of that table. The helper also returns the pages of old large tables to the system.
//!
//! Resident bytes of `n` keys: `4n / fill`, the fill from 0.65 to 0.84. While a table is prepared and
//! moved to, both are there: at most 13.4 bytes a key.

use std::sync::Arc;

use tidewater_protocol::layout::hash::mix64;
use tidewater_runtime::mem::{Region, WordsMut};

use super::StoreError;
use super::memory::{Block, BlockOwner, ServerMemory};
use super::prealloc::{Delivery, Made, Order, Pace, Preallocator, STEP_BYTES, Urgency};

const BUCKET_BYTES: usize = 4;
/// Number of buckets of the first table: one page.
const FIRST_BUCKETS: usize = 1024;
/// Fill level in 32nds of the present table at which the next one is ordered.
const ORDER_AT: usize = 24;
/// Fill level in 32nds of the present table at which the next one takes over.
const MOVE_AT: usize = 27;
/// Fill level in 32nds that no table exceeds.
const FULL_AT: usize = 30;
/// Fill level in 32nds of a table that is made for a known number of keys: that of a next table when the
/// move to it ends.
const ROOM_AT: usize = 21;
/// Number of buckets of the old table that one insert moves, so that the move ends before the next order.
const MOVED_PER_INSERT: usize = 8;
/// Bytes of the next table that one insert clears if the helper does not prepare it. While the present table
/// fills from [`ORDER_AT`] to [`MOVE_AT`], that is all of a table 1.5 times as large, and 15/16 of one twice as
/// large.
const CLEARED_PER_INSERT: usize = 80;
/// Size in bytes from which on the helper thread prepares tables, and returns the pages of old ones. Smaller
/// tables double, and one insert's share of them is negligible.
const ORDERED_BYTES: usize = STEP_BYTES;
const EMPTY: u32 = 0;
/// Tombstone: bucket of a key that was removed from an old table. A search goes on behind it. No bucket of a
/// key has this value.
const GONE: u32 = u32::MAX;

/// One hash table of buckets in private memory.
#[derive(Debug, Clone, Copy)]
struct Table {
    block: Block,
    buckets: usize,
    /// Number of bits of a bucket that hold the slot number, 1 to 32. The others hold the tag.
    bits: u32,
}

/// State of the growth of an index to its next table.
#[derive(Debug)]
enum Growth {
    /// The index does not grow now.
    None,
    /// The helper thread prepares the next table.
    Ordered(Order<Table>),
    /// For a small next table, or without a helper: the next table, and the number of its bytes that are cleared.
    Ahead(Table, usize),
    /// The old table, with keys that the present table does not hold yet, and the index of its next bucket
    /// to copy. Copied buckets stay until the old table is freed.
    Move(Table, usize),
}

/// Hash index from keys to slot numbers, for one table on one applier. Used by that applier only.
///
/// Methods take the keys of slots as `keys`: a function from a slot number in the index to the key
/// of that slot.
#[derive(Debug)]
pub struct Index {
    memory: Arc<ServerMemory>,
    preallocator: Preallocator,
    owner: BlockOwner,
    table: Table,
    growth: Growth,
    len: usize,
    /// Greatest slot number that was added so far, or for which the index was made.
    slots: u32,
}

impl Index {
    /// Greatest slot number that a bucket can hold.
    pub const SLOT_MAX: u32 = u32::MAX - 1;

    /// Creates an empty index with one page of buckets.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub fn new(
        memory: Arc<ServerMemory>,
        preallocator: Preallocator,
        owner: BlockOwner,
    ) -> Result<Self, StoreError> {
        Self::with_room(memory, preallocator, owner, (0, 0))
    }

    /// Creates an empty index with room for `keys` keys with slot numbers up to `slots`, which the caller adds
    /// by [`Self::add_new`]. These do not make it grow.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub(super) fn with_room(
        memory: Arc<ServerMemory>,
        preallocator: Preallocator,
        owner: BlockOwner,
        (keys, slots): (usize, u32),
    ) -> Result<Self, StoreError> {
        let buckets = (keys * 32 / ROOM_AT).next_multiple_of(16);
        let table = Table::take(&memory, owner, buckets.max(FIRST_BUCKETS))?;
        table.clear(&memory, 0, usize::MAX)?;
        let mut index = Self {
            memory,
            preallocator,
            owner,
            table,
            growth: Growth::None,
            len: 0,
            slots,
        };
        index.table.bits = index.slot_bits(table.buckets);
        Ok(index)
    }

    /// Returns a sort value of a key: if keys are searched in its ascending order, the buckets are read in
    /// ascending order, too.
    pub(super) const fn order_of(key: u64) -> u64 {
        mix64(key)
    }

    /// Adds a key to an index [with room](Self::with_room), unless the index holds the key already. Returns
    /// whether the key was added. Panics if the room is used up, or if `slot` is 0 or does not fit into a bucket.
    /// Cost: one search.
    pub(super) fn add_new(&mut self, key: u64, slot: u32, keys: impl Fn(u32) -> u64) -> bool {
        assert!(
            matches!(self.growth, Growth::None) && !self.is_over(FULL_AT),
            "{} keys: the room was too small",
            self.len
        );
        assert!((1..self.table.slot_mask()).contains(&slot), "slot {slot}");
        let region = self.memory.private.region();
        let Some(buckets) = self.table.open(region) else {
            unreachable!("the table lies in the server's memory");
        };
        let Err(at) = buckets.find(key, &keys) else {
            return false;
        };
        buckets.set(at, mix64(key) as u32 & !buckets.slots | slot);
        self.len += 1;
        true
    }

    /// Number of keys in the index.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the index holds no key.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the slot number of a key; `None` if the index does not hold it. Cost: a cache line of buckets,
    /// and a read of the key in each slot that a bucket with an equal tag names.
    #[inline]
    pub fn get(&self, key: u64, keys: impl Fn(u32) -> u64) -> Option<u32> {
        let region = self.memory.private.region();
        if let Ok((_, slot)) = self.table.open(region)?.find(key, &keys) {
            return Some(slot);
        }
        let Growth::Move(old, _) = self.growth else {
            return None;
        };
        let (_, slot) = old.open(region)?.find(key, &keys).ok()?;
        Some(slot)
    }

    /// Returns the slot number that a key probably has, of the first bucket with its tag; `None` if no bucket
    /// has that tag: the index does not hold the key. Reads no key.
    #[inline]
    pub fn guess(&self, key: u64) -> Option<u32> {
        let region = self.memory.private.region();
        let here = self.table.open(region)?.guess(key);
        match self.growth {
            Growth::Move(old, _) if here.is_none() => old.open(region)?.guess(key),
            _ => here,
        }
    }

    /// Reads the bucket where the search for a key begins, so that cache misses of many searches overlap. The
    /// returned value has no meaning.
    #[inline]
    pub fn touch(&self, key: u64) -> u64 {
        let region = self.memory.private.region();
        let home = |table: &Table| {
            let buckets = table.open(region);
            buckets.map_or(0, |buckets| {
                buckets
                    .words
                    .as_read()
                    .load(buckets.home(mix64(key)) / 2 * 8)
            })
        };
        match &self.growth {
            Growth::Move(old, _) => home(&self.table) ^ home(old),
            _ => home(&self.table),
        }
    }

    /// Adds a key that the index does not hold. `slot` is from 1 to [`Self::SLOT_MAX`], otherwise the call
    /// panics. Bounded work, unless the helper is late (this call then clears the next table) or `slot` needs
    /// more bits than buckets have for it (all buckets change).
    ///
    /// # Errors
    /// [`StoreError`] when the index must grow and memory is used up; nothing was added.
    pub fn insert(
        &mut self,
        key: u64,
        slot: u32,
        keys: impl Fn(u32) -> u64,
    ) -> Result<(), StoreError> {
        self.make_room(keys)?;
        self.add(key, slot);
        Ok(())
    }

    /// Makes room to [add](Self::add) one more key, and does that key's share of the growth.
    ///
    /// # Errors
    /// [`StoreError`] when the index must grow and memory is used up. The index holds the same keys.
    pub(super) fn make_room(&mut self, keys: impl Fn(u32) -> u64) -> Result<(), StoreError> {
        self.grow_some(keys)
    }

    /// Adds a key that the index does not hold, after [`Self::make_room`].
    pub(super) fn add(&mut self, key: u64, slot: u32) {
        debug_assert!(!self.is_over(FULL_AT), "no room was made");
        assert!((1..=Self::SLOT_MAX).contains(&slot), "slot {slot}");
        self.slots = self.slots.max(slot);
        let region = Arc::clone(self.memory.private.region());
        if slot >= self.table.slot_mask() {
            // Slots number more than twice the buckets: the rows are large and few.
            let bits = self.slot_bits(self.table.buckets);
            if let Some(buckets) = self.table.open(&region) {
                buckets.widen(bits);
            }
            self.table.bits = bits;
        }
        if let Some(buckets) = self.table.open(&region) {
            buckets.put(mix64(key), slot);
        }
        self.len += 1;
    }

    /// Removes a key and returns its slot number; `None` if the index did not hold it.
    pub fn remove(&mut self, key: u64, keys: impl Fn(u32) -> u64) -> Option<u32> {
        let region = Arc::clone(self.memory.private.region());
        let buckets = self.table.open(&region)?;
        let here = buckets.find(key, &keys).ok();
        if let Some((at, _)) = here {
            buckets.close_gap(at, &keys);
        }
        let mut found = here.map(|(_, slot)| slot);
        if let Growth::Move(old, _) = self.growth {
            // A bucket that was moved is still there.
            let buckets = old.open(&region)?;
            if let Ok((at, slot)) = buckets.find(key, &keys) {
                buckets.set(at, GONE);
                found = found.or(Some(slot));
            }
        }
        self.len -= usize::from(found.is_some());
        found
    }

    /// Removes all keys, and frees an old table. The present table keeps its size. Cost: zeroes the present
    /// table, 4 bytes for each of its [buckets](Self::buckets).
    ///
    /// # Errors
    /// None in practice: the table lies inside the server's memory.
    pub fn clear(&mut self) -> Result<(), StoreError> {
        if let Growth::Move(old, _) = self.growth {
            self.memory.private.free(old.block)?;
            self.growth = Growth::None;
        }
        self.table.clear(&self.memory, 0, usize::MAX)?;
        self.len = 0;
        Ok(())
    }

    /// Iterates over the memory blocks of the index's tables, without one that the helper thread prepares.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Block> {
        let other = match &self.growth {
            Growth::None | Growth::Ordered(_) => None,
            Growth::Ahead(other, _) | Growth::Move(other, _) => Some(other.block),
        };
        [self.table.block].into_iter().chain(other)
    }

    pub(super) fn set_preallocator(&mut self, preallocator: Preallocator) {
        self.preallocator = preallocator;
    }

    /// Number of buckets of the present table.
    pub const fn buckets(&self) -> usize {
        self.table.buckets
    }

    /// Frees all memory of the index.
    ///
    /// # Errors
    /// None in practice: all tables are blocks of the server's memory.
    pub fn release(self) -> Result<(), StoreError> {
        match self.growth {
            // An ordered table is freed when it comes.
            Growth::None | Growth::Ordered(_) => {}
            Growth::Ahead(other, _) | Growth::Move(other, _) => {
                self.memory.private.free(other.block)?;
            }
        }
        self.memory.private.free(self.table.block)
    }

    /// Whether one more key would fill the table to more than `parts` 32nds.
    const fn is_over(&self, parts: usize) -> bool {
        (self.len + 1) * 32 > self.table.buckets * parts
    }

    /// Number of bits for slot numbers in a table of `buckets` buckets: room for twice the greatest slot number
    /// so far, or for twice `buckets` if that is more. At most 32.
    fn slot_bits(&self, buckets: usize) -> u32 {
        let most = u32::try_from(buckets).unwrap_or(u32::MAX).max(self.slots);
        (u32::BITS - most.leading_zeros() + 1).min(u32::BITS)
    }

    /// Does one insert's share of the growth: orders or clears the next table, or moves buckets.
    fn grow_some(&mut self, keys: impl Fn(u32) -> u64) -> Result<(), StoreError> {
        if matches!(self.growth, Growth::None) && self.is_over(ORDER_AT) {
            self.growth = self.begin()?;
        }
        let (is_full, too_full) = (self.is_over(MOVE_AT), self.is_over(FULL_AT));
        let next = match &mut self.growth {
            Growth::Ordered(order) if is_full => match order.take() {
                Delivery::Here(next) => Some(next),
                Delivery::Late if !too_full => None,
                // Making it here meets the same error again, if there is one.
                Delivery::Late | Delivery::Failed => {
                    let next = self.next_table()?;
                    next.clear(&self.memory, 0, usize::MAX)?;
                    Some(next)
                }
            },
            Growth::Ahead(next, clear) => {
                // A table that is not clear when the old one is full began late, for lack of
                // memory.
                let share = if is_full {
                    usize::MAX
                } else {
                    CLEARED_PER_INSERT
                };
                *clear = next.clear(&self.memory, *clear, share)?;
                is_full.then_some(*next)
            }
            _ => None,
        };
        if let Some(mut next) = next {
            next.bits = self.slot_bits(next.buckets);
            self.growth = Growth::Move(std::mem::replace(&mut self.table, next), 0);
        }
        if let Growth::Move(old, next) = self.growth {
            self.growth = self.move_some(old, next, keys)?;
        }
        Ok(())
    }

    /// Begins the growth: orders the next table from the helper, or allocates its memory. Returns
    /// [`Growth::None`] if there is no memory now, but still room in the present table.
    fn begin(&self) -> Result<Growth, StoreError> {
        let (owner, buckets) = (self.owner, self.table.grown());
        let make = move |memory: &ServerMemory, pace: &mut Pace| {
            let bytes = buckets * BUCKET_BYTES;
            let block = memory.private.alloc_present(bytes, owner, pace)?;
            Ok(Table::new(block, buckets))
        };
        if buckets * BUCKET_BYTES >= ORDERED_BYTES
            && let Some(order) = self.preallocator.order(&self.memory, Urgency::Later, make)
        {
            return Ok(Growth::Ordered(order));
        }
        match self.next_table() {
            Ok(next) => Ok(Growth::Ahead(next, 0)),
            // There is still room here; perhaps there will be memory in time.
            Err(_) if !self.is_over(MOVE_AT) => Ok(Growth::None),
            Err(e) => Err(e),
        }
    }

    /// Allocates the next larger table, which is not cleared yet.
    fn next_table(&self) -> Result<Table, StoreError> {
        Table::take(&self.memory, self.owner, self.table.grown())
    }

    fn move_some(
        &self,
        old: Table,
        next: usize,
        keys: impl Fn(u32) -> u64,
    ) -> Result<Growth, StoreError> {
        let region = self.memory.private.region();
        let end = (next + MOVED_PER_INSERT).min(old.buckets);
        if let (Some(from), Some(to)) = (old.open(region), self.table.open(region)) {
            // The old table keeps its entries: lookups probe through them until the end. Each bucket before it
            // is there.
            let moved: [u32; MOVED_PER_INSERT] = std::array::from_fn(|n| match next + n < end {
                true => from.slot(from.get(next + n)).unwrap_or_default(),
                false => EMPTY,
            });
            // All keys first: the loads do not wait for each other.
            let hashes = moved.map(|slot| match slot {
                EMPTY => 0,
                slot => mix64(keys(slot)),
            });
            for (slot, hash) in moved.into_iter().zip(hashes) {
                if slot != EMPTY {
                    to.put(hash, slot);
                }
            }
        }
        if end < old.buckets {
            return Ok(Growth::Move(old, end));
        }
        self.retire(old.block)?;
        Ok(Growth::None)
    }

    /// Frees an outgrown table. The helper returns the pages of a large one to the system, because a table
    /// of another size has no use for it.
    fn retire(&self, block: Block) -> Result<(), StoreError> {
        let give_back = move |memory: &ServerMemory, pace: &mut Pace| {
            memory.private.free_returning(block, pace)?;
            Ok(Returned)
        };
        let is_large = block.len >= ORDERED_BYTES;
        let order = is_large.then(|| {
            self.preallocator
                .order(&self.memory, Urgency::Later, give_back)
        });
        match order.flatten() {
            Some(_) => Ok(()),
            None => self.memory.private.free(block),
        }
    }
}

/// Result of an order that returned the pages of a block: nothing is left to free.
struct Returned;

impl Made for Returned {
    fn discard(self, _: &ServerMemory) {}
}

impl Made for Table {
    // A region that cannot take a block back counts it as used for good.
    fn discard(self, memory: &ServerMemory) {
        let _ = memory.private.free(self.block);
    }

    /// Frees the table and returns its pages to the system: no other table has its size.
    fn discard_late(self, memory: &ServerMemory, pace: &mut Pace) {
        let _ = memory.private.free_returning(self.block, pace);
    }
}

impl Table {
    const fn new(block: Block, buckets: usize) -> Self {
        let bits = u32::BITS;
        Self {
            block,
            buckets,
            bits,
        }
    }

    /// Allocates a table of `buckets` buckets, which is not cleared yet.
    fn take(memory: &ServerMemory, owner: BlockOwner, buckets: usize) -> Result<Self, StoreError> {
        let block = memory.private.alloc_used(buckets * BUCKET_BYTES, owner)?;
        Ok(Self::new(block, buckets))
    }

    /// Number of buckets of the next larger table: twice as many, or half as many more if it is large.
    const fn grown(&self) -> usize {
        if self.buckets * BUCKET_BYTES < ORDERED_BYTES {
            return self.buckets * 2;
        }
        (self.buckets + self.buckets / 2).next_multiple_of(16)
    }

    /// Zeroes up to `share` bytes from byte `from` of the table on. Returns the byte offset of their end, at
    /// most the table's length.
    fn clear(&self, memory: &ServerMemory, from: usize, share: usize) -> Result<usize, StoreError> {
        let end = from.saturating_add(share).min(self.bytes());
        let words = memory.private.region().words_mut(self.block.at, end)?;
        words.zero(from, end - from);
        Ok(end)
    }

    const fn bytes(&self) -> usize {
        self.buckets * BUCKET_BYTES
    }

    /// Mask of the bits of a bucket that hold its slot number.
    const fn slot_mask(&self) -> u32 {
        mask(self.bits)
    }

    #[inline]
    fn open<'a>(&self, region: &'a Arc<Region>) -> Option<Buckets<'a>> {
        Some(Buckets {
            words: region.words_mut(self.block.at, self.bytes()).ok()?,
            buckets: self.buckets,
            slots: self.slot_mask(),
        })
    }
}

const fn mask(bits: u32) -> u32 {
    u32::MAX >> (u32::BITS - bits)
}

/// View of the buckets of one table, two in each word.
#[derive(Clone, Copy)]
struct Buckets<'a> {
    words: WordsMut<'a>,
    buckets: usize,
    /// Mask of the bits of a bucket that hold the slot number.
    slots: u32,
}

impl Buckets<'_> {
    /// Returns the bucket where a search begins: the high bits of the hash choose it, the low ones are the
    /// tag.
    #[inline]
    const fn home(&self, hash: u64) -> usize {
        ((hash as u128 * self.buckets as u128) >> 64) as usize
    }

    #[inline]
    const fn next(&self, at: usize) -> usize {
        if at + 1 == self.buckets { 0 } else { at + 1 }
    }

    #[inline]
    fn get(&self, at: usize) -> u32 {
        (self.words.as_read().load(at / 2 * 8) >> (at % 2 * 32)) as u32
    }

    fn set(&self, at: usize, bucket: u32) {
        let (word, shift) = (at / 2 * 8, at % 2 * 32);
        let others = self.words.as_read().load(word) & !(u64::from(u32::MAX) << shift);
        self.words.store(word, others | u64::from(bucket) << shift);
    }

    /// Returns the slot number in a bucket; `None` if it holds no key.
    #[inline]
    const fn slot(&self, bucket: u32) -> Option<u32> {
        match bucket {
            EMPTY | GONE => None,
            bucket => Some(bucket & self.slots),
        }
    }

    /// Returns the index of a key's bucket, and the key's slot number. The error of a key that is not there is
    /// the index of the empty bucket where the search ended.
    #[inline]
    fn find(&self, key: u64, keys: &impl Fn(u32) -> u64) -> Result<(usize, u32), usize> {
        let hash = mix64(key);
        let (mut at, tag) = (self.home(hash), hash as u32 & !self.slots);
        // Terminates: a table is never full.
        loop {
            let bucket = self.get(at);
            if bucket == EMPTY {
                return Err(at);
            }
            if bucket & !self.slots == tag && bucket != GONE && keys(bucket & self.slots) == key {
                return Ok((at, bucket & self.slots));
            }
            at = self.next(at);
        }
    }

    #[inline]
    fn guess(&self, key: u64) -> Option<u32> {
        let hash = mix64(key);
        let (mut at, tag) = (self.home(hash), hash as u32 & !self.slots);
        loop {
            let bucket = self.get(at);
            if bucket == EMPTY {
                return None;
            }
            if bucket & !self.slots == tag && bucket != GONE {
                return Some(bucket & self.slots);
            }
            at = self.next(at);
        }
    }

    /// Writes a slot number with the tag of the hash into the first empty bucket from the hash's home on.
    fn put(&self, hash: u64, slot: u32) {
        let mut at = self.home(hash);
        while self.get(at) != EMPTY {
            at = self.next(at);
        }
        self.set(at, hash as u32 & !self.slots | slot);
    }

    /// Widens the slot numbers in all buckets to `bits` bits; tags become as much shorter. The caller then sets
    /// the table's `bits`.
    fn widen(&self, bits: u32) {
        for at in 0..self.buckets {
            let bucket = self.get(at);
            if bucket != EMPTY {
                self.set(at, bucket & !mask(bits) | bucket & self.slots);
            }
        }
    }

    /// Empties bucket `hole` and moves later entries of its run back, so that no search ends too early.
    fn close_gap(&self, mut hole: usize, keys: &impl Fn(u32) -> u64) {
        let distance = |from: usize, to: usize| match to >= from {
            true => to - from,
            false => to + self.buckets - from,
        };
        let mut at = hole;
        loop {
            at = self.next(at);
            let bucket = self.get(at);
            let Some(slot) = self.slot(bucket) else {
                break;
            };
            let home = self.home(mix64(keys(slot)));
            if distance(home, at) >= distance(hole, at) {
                self.set(hole, bucket);
                hole = at;
            }
        }
        self.set(hole, EMPTY);
    }
}

#[cfg(test)]
mod tests;

//! A partition's index: u64 key to [`RowLocation`], open addressing with linear probing in private
//! memory.
//!
//! It grows in steps, so that each insert does only a little of it. At half full the helper gets an
//! order for a table of twice the size. At three quarters that table takes over, and each insert
//! moves a few buckets of the old one while lookups search both. Partitions fill evenly, so all of
//! a table's indexes double at about the same time. An applier that cleared the new tables itself
//! would meet fresh pages all that while. On a virtual machine each of them may have to wait for
//! the host. Without a helper, each insert clears a piece of the next table. An entry is two words,
//! `{key, loc}`; a loc of 0 is an empty bucket (extents are numbered from 1).

use std::sync::Arc;

use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::row::RowLocation;
use tidewater_runtime::mem::{Region, WordsMut};

use super::StoreError;
use super::memory::{Block, BlockOwner, ServerMemory};
use super::prepare::{Delivery, Made, Order, Pace, Preparer, STEP_BYTES, Urgency};

const ENTRY_BYTES: usize = 16;
const FIRST_ENTRIES: usize = 64;
/// Buckets of the old table moved by one insert: the new one is half full when the move ends, and
/// its own successor can be begun.
const MOVED_PER_INSERT: usize = 4;
/// Bytes of the next table cleared by one insert without a helper: all of it while the present one
/// goes from half to three quarters full.
const CLEARED_PER_INSERT: usize = 8 * ENTRY_BYTES;
/// Size in bytes from which the helper makes a table: below it one insert's share is negligible.
const ORDERED_BYTES: usize = STEP_BYTES;
/// In an old table, the location of a key that was removed. No extent has the number 0; and unlike
/// an empty bucket it ends no search.
const GONE: RowLocation = RowLocation(1);

/// One table of buckets.
#[derive(Debug, Clone, Copy)]
struct Table {
    block: Block,
    mask: usize,
}

/// State of an index's growth.
#[derive(Debug)]
enum Growth {
    /// It does not grow.
    None,
    /// The helper makes the next table.
    Ordered(Order<Table>),
    /// Without a helper: the next table, and how many of its bytes are clear.
    Ahead(Table, usize),
    /// The table being emptied, and the next bucket to move.
    Move(Table, usize),
}

/// The index of one partition. Used by the partition's applier only.
#[derive(Debug)]
pub struct Index {
    memory: Arc<ServerMemory>,
    preparer: Preparer,
    owner: BlockOwner,
    table: Table,
    growth: Growth,
    len: usize,
}

impl Index {
    /// An empty index.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub fn new(
        memory: Arc<ServerMemory>,
        preparer: Preparer,
        owner: BlockOwner,
    ) -> Result<Self, StoreError> {
        let table = Table::take(&memory, owner, FIRST_ENTRIES)?;
        table.clear(&memory, 0, usize::MAX)?;
        Ok(Self {
            memory,
            preparer,
            owner,
            table,
            growth: Growth::None,
            len: 0,
        })
    }

    /// Number of keys in it.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no key.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Location of a key's row.
    #[inline]
    pub fn get(&self, key: u64) -> Option<RowLocation> {
        let region = self.memory.private.region();
        let here = find(&self.table.words(region)?, self.table.mask, key);
        if let Ok((_, loc)) = here {
            return Some(loc);
        }
        let Growth::Move(old, _) = self.growth else {
            return None;
        };
        let (_, loc) = find(&old.words(region)?, old.mask, key).ok()?;
        (loc != GONE).then_some(loc)
    }

    /// Prefetches the bucket where a search for the key begins, so that searches for many keys do
    /// not wait for memory one after the other. The value has no meaning.
    #[inline]
    pub fn touch(&self, key: u64) -> u64 {
        let region = self.memory.private.region();
        let home = |table: &Table| {
            let at = (mix64(key) as usize & table.mask) * ENTRY_BYTES;
            table.words(region).map_or(0, |w| w.as_read().load(at))
        };
        match &self.growth {
            Growth::Move(old, _) => home(&self.table) ^ home(old),
            _ => home(&self.table),
        }
    }

    /// Adds a key that is not there. Bounded work.
    ///
    /// # Errors
    /// [`StoreError::NoMemory`] when it must grow and cannot; nothing was added.
    pub fn insert(&mut self, key: u64, loc: RowLocation) -> Result<(), StoreError> {
        self.make_room()?;
        self.add(key, loc);
        Ok(())
    }

    /// Makes room for [adding](Self::add) one more key, and does that key's share of growing.
    ///
    /// # Errors
    /// As [`Self::insert`].
    pub(super) fn make_room(&mut self) -> Result<(), StoreError> {
        self.grow_some()
    }

    /// Adds a key that is not there, after [`Self::make_room`].
    pub(super) fn add(&mut self, key: u64, loc: RowLocation) {
        debug_assert!(!self.is_over(7), "no room was made");
        let region = Arc::clone(self.memory.private.region());
        if let Some(words) = self.table.words(&region) {
            put(&words, self.table.mask, key, loc);
        }
        self.len += 1;
    }

    /// Removes a key and returns the location of its row.
    pub fn remove(&mut self, key: u64) -> Option<RowLocation> {
        let region = Arc::clone(self.memory.private.region());
        let words = self.table.words(&region)?;
        let here = find(&words, self.table.mask, key).ok();
        if let Some((at, _)) = here {
            close_gap(&words, self.table.mask, at);
        }
        let mut found = here.map(|(_, loc)| loc);
        if let Growth::Move(old, _) = self.growth {
            // A bucket that was moved is still there.
            let words = old.words(&region)?;
            if let Ok((at, loc)) = find(&words, old.mask, key) {
                words.store(at * ENTRY_BYTES + 8, GONE.0);
                found = found.or((loc != GONE).then_some(loc));
            }
        }
        self.len -= usize::from(found.is_some());
        found
    }

    /// Removes all keys. Cost: zeroes the table, 16 bytes for each of its [buckets](Self::buckets).
    ///
    /// # Errors
    /// Never for the memory of this index.
    pub fn clear(&mut self) -> Result<(), StoreError> {
        if let Growth::Move(old, _) = self.growth {
            self.memory.private.free(old.block)?;
            self.growth = Growth::None;
        }
        self.table.clear(&self.memory, 0, usize::MAX)?;
        self.len = 0;
        Ok(())
    }

    /// Number of buckets of the table.
    pub const fn buckets(&self) -> usize {
        self.table.mask + 1
    }

    /// Frees all memory of the index.
    ///
    /// # Errors
    /// Never for blocks of this memory.
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

    /// Whether one key more would make it more than `parts` eighths full.
    const fn is_over(&self, parts: usize) -> bool {
        (self.len + 1) * 8 > (self.table.mask + 1) * parts
    }

    /// One insert's share of growing.
    fn grow_some(&mut self) -> Result<(), StoreError> {
        if matches!(self.growth, Growth::None) && self.is_over(4) {
            self.growth = self.begin()?;
        }
        let (is_full, too_full) = (self.is_over(6), self.is_over(7));
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
        if let Some(next) = next {
            self.growth = Growth::Move(std::mem::replace(&mut self.table, next), 0);
        }
        if let Growth::Move(old, next) = self.growth {
            self.growth = self.move_some(old, next)?;
        }
        Ok(())
    }

    /// Orders the next table, or allocates memory for it.
    fn begin(&self) -> Result<Growth, StoreError> {
        let (owner, entries) = (self.owner, 2 * (self.table.mask + 1));
        let make = move |memory: &ServerMemory, pace: &mut Pace| {
            let block = memory
                .private
                .alloc_present(entries * ENTRY_BYTES, owner, pace)?;
            Ok(Table {
                block,
                mask: entries - 1,
            })
        };
        if entries * ENTRY_BYTES >= ORDERED_BYTES
            && let Some(order) = self.preparer.order(&self.memory, Urgency::Later, make)
        {
            return Ok(Growth::Ordered(order));
        }
        match self.next_table() {
            Ok(next) => Ok(Growth::Ahead(next, 0)),
            // There is still room here; perhaps there will be memory in time.
            Err(_) if !self.is_over(6) => Ok(Growth::None),
            Err(e) => Err(e),
        }
    }

    /// A table of twice the size that is yet to be cleared.
    fn next_table(&self) -> Result<Table, StoreError> {
        Table::take(&self.memory, self.owner, 2 * (self.table.mask + 1))
    }

    fn move_some(&self, old: Table, next: usize) -> Result<Growth, StoreError> {
        let region = self.memory.private.region();
        let end = (next + MOVED_PER_INSERT).min(old.mask + 1);
        if let (Some(from), Some(to)) = (old.words(region), self.table.words(region)) {
            for bucket in next..end {
                let loc = RowLocation(from.as_read().load(bucket * ENTRY_BYTES + 8));
                // The old table keeps its entries: lookups probe through them until the end.
                if loc != RowLocation::NONE && loc != GONE {
                    let key = from.as_read().load(bucket * ENTRY_BYTES);
                    put(&to, self.table.mask, key, loc);
                }
            }
        }
        if end <= old.mask {
            return Ok(Growth::Move(old, end));
        }
        self.memory.private.free(old.block)?;
        Ok(Growth::None)
    }
}

impl Made for Table {
    fn discard(self, memory: &ServerMemory) {
        let _ = memory.private.free(self.block);
    }
}

impl Table {
    /// A table that is yet to be cleared.
    fn take(memory: &ServerMemory, owner: BlockOwner, entries: usize) -> Result<Self, StoreError> {
        let block = memory.private.alloc_used(entries * ENTRY_BYTES, owner)?;
        Ok(Self {
            block,
            mask: entries - 1,
        })
    }

    /// Clears up to `share` bytes more. Returns the number of bytes that are clear then.
    fn clear(&self, memory: &ServerMemory, from: usize, share: usize) -> Result<usize, StoreError> {
        let end = from.saturating_add(share).min(self.bytes());
        let words = memory.private.region().words_mut(self.block.at, end)?;
        words.zero(from, end - from);
        Ok(end)
    }

    const fn bytes(&self) -> usize {
        (self.mask + 1) * ENTRY_BYTES
    }

    fn words<'a>(&self, region: &'a Arc<Region>) -> Option<WordsMut<'a>> {
        region.words_mut(self.block.at, self.bytes()).ok()
    }
}

/// The bucket of a key, or the empty bucket for it.
#[inline]
fn find(words: &WordsMut<'_>, mask: usize, key: u64) -> Result<(usize, RowLocation), usize> {
    let words = words.as_read();
    let mut at = mix64(key) as usize & mask;
    // Terminates: a table is never more than seven eighths full.
    loop {
        let loc = words.load(at * ENTRY_BYTES + 8);
        if loc == 0 {
            return Err(at);
        }
        if words.load(at * ENTRY_BYTES) == key {
            return Ok((at, RowLocation(loc)));
        }
        at = (at + 1) & mask;
    }
}

fn put(words: &WordsMut<'_>, mask: usize, key: u64, loc: RowLocation) {
    if let Err(at) = find(words, mask, key) {
        words.store(at * ENTRY_BYTES, key);
        words.store(at * ENTRY_BYTES + 8, loc.0);
    }
}

/// Empties bucket `hole` and moves later entries of the run back, so that no probe ends early.
fn close_gap(words: &WordsMut<'_>, mask: usize, mut hole: usize) {
    let read = words.as_read();
    let mut at = hole;
    loop {
        at = (at + 1) & mask;
        let loc = read.load(at * ENTRY_BYTES + 8);
        if loc == 0 {
            break;
        }
        let key = read.load(at * ENTRY_BYTES);
        let home = mix64(key) as usize & mask;
        let from_home = at.wrapping_sub(home) & mask;
        let from_hole = at.wrapping_sub(hole) & mask;
        if from_home >= from_hole {
            words.store(hole * ENTRY_BYTES, key);
            words.store(hole * ENTRY_BYTES + 8, loc);
            hole = at;
        }
    }
    words.store(hole * ENTRY_BYTES, 0);
    words.store(hole * ENTRY_BYTES + 8, 0);
}

#[cfg(test)]
mod tests;

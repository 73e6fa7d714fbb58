//! A partition's index: u64 key to [`Loc`], open addressing with linear probing in private memory.
//!
//! It grows step by step, so that no insert does more than a little of it: from half full on, each
//! insert clears a piece of a table of twice the size; at three quarters that table takes over, and
//! each insert moves a few buckets of the old one while both are looked at. Partitions fill evenly, so
//! all of a table's indexes double at about the same time: without the clearing ahead every insert of
//! that time would meet fresh pages, at a cost of many inserts each. An entry is two words,
//! `{key, loc}`; a loc of 0 is an empty bucket (extents are numbered from 1).

use std::sync::Arc;

use tidewater_transport::layout::hash::mix64;
use tidewater_transport::layout::row::Loc;
use tidewater_transport::mem::{Region, WordsMut};

use super::StoreError;
use super::memory::{Block, BlockOwner, ServerMemory};

const ENTRY_BYTES: usize = 16;
const FIRST_ENTRIES: usize = 64;
/// Buckets of the old table moved by one insert: the new one is half full when the move ends, and
/// its own successor can be begun.
const MOVED_PER_INSERT: usize = 4;
/// Bytes of the next table cleared by one insert: all of it while the present one goes from half to
/// three quarters full.
const CLEARED_PER_INSERT: usize = 8 * ENTRY_BYTES;
/// In an old table, the location of a key that was removed. No extent has the number 0; and unlike an
/// empty bucket it ends no search.
const GONE: Loc = Loc(1);

/// One table of buckets.
#[derive(Debug, Clone, Copy)]
struct Table {
    block: Block,
    mask: usize,
}

/// What an index that grows is at.
#[derive(Debug, Clone, Copy)]
enum Growth {
    /// It does not grow.
    None,
    /// The next table, and how many of its bytes are clear.
    Ahead(Table, usize),
    /// The table being emptied, and the next bucket to move.
    Move(Table, usize),
}

/// The index of one partition. Used by the partition's applier only.
#[derive(Debug)]
pub struct Index {
    memory: Arc<ServerMemory>,
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
    pub fn new(memory: Arc<ServerMemory>, owner: BlockOwner) -> Result<Self, StoreError> {
        let table = Table::take(&memory, owner, FIRST_ENTRIES)?;
        table.clear(&memory, 0, usize::MAX)?;
        Ok(Self {
            memory,
            owner,
            table,
            growth: Growth::None,
            len: 0,
        })
    }

    /// Keys in it.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no key.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where a key's row is.
    #[inline]
    pub fn get(&self, key: u64) -> Option<Loc> {
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

    /// Fetches the bucket where a search for the key begins, so that searches for many keys do not
    /// wait for memory one after the other. The value says nothing.
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
    /// [`StoreError::NoMemory`] when it has to grow and cannot; nothing was added.
    pub fn insert(&mut self, key: u64, loc: Loc) -> Result<(), StoreError> {
        self.grow_some()?;
        let region = Arc::clone(self.memory.private.region());
        if let Some(words) = self.table.words(&region) {
            put(&words, self.table.mask, key, loc);
        }
        self.len += 1;
        Ok(())
    }

    /// Removes a key and returns where its row was.
    pub fn remove(&mut self, key: u64) -> Option<Loc> {
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

    /// Gives all memory back.
    ///
    /// # Errors
    /// Never for blocks of this memory.
    pub fn release(self) -> Result<(), StoreError> {
        match self.growth {
            Growth::None => {}
            Growth::Ahead(other, _) | Growth::Move(other, _) => {
                self.memory.private.free(other.block)?;
            }
        }
        self.memory.private.free(self.table.block)
    }

    /// One insert's share of growing.
    fn grow_some(&mut self) -> Result<(), StoreError> {
        let (entries, len) = (self.table.mask + 1, self.len + 1);
        let is_full = len * 4 > entries * 3;
        self.growth = match self.growth {
            Growth::None if len * 2 > entries => {
                match Table::take(&self.memory, self.owner, entries * 2) {
                    Ok(next) => Growth::Ahead(next, 0),
                    // There still is room here; perhaps there will be memory in time.
                    Err(_) if !is_full => Growth::None,
                    Err(e) => return Err(e),
                }
            }
            other => other,
        };
        self.growth = match self.growth {
            Growth::Ahead(next, clear) => {
                // What is not clear when the table is full began late, for lack of memory.
                let share = if is_full {
                    usize::MAX
                } else {
                    CLEARED_PER_INSERT
                };
                let clear = next.clear(&self.memory, clear, share)?;
                match is_full {
                    true => Growth::Move(std::mem::replace(&mut self.table, next), 0),
                    false => Growth::Ahead(next, clear),
                }
            }
            other => other,
        };
        if let Growth::Move(old, next) = self.growth {
            self.growth = self.move_some(old, next)?;
        }
        Ok(())
    }

    fn move_some(&self, old: Table, next: usize) -> Result<Growth, StoreError> {
        let region = self.memory.private.region();
        let end = (next + MOVED_PER_INSERT).min(old.mask + 1);
        if let (Some(from), Some(to)) = (old.words(region), self.table.words(region)) {
            for bucket in next..end {
                let loc = Loc(from.as_read().load(bucket * ENTRY_BYTES + 8));
                // The old table keeps its entries: lookups probe through them until the end.
                if loc != Loc::NONE && loc != GONE {
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

impl Table {
    /// A table that is still to be cleared.
    fn take(memory: &ServerMemory, owner: BlockOwner, entries: usize) -> Result<Self, StoreError> {
        let block = memory.private.alloc_used(entries * ENTRY_BYTES, owner)?;
        Ok(Self {
            block,
            mask: entries - 1,
        })
    }

    /// Clears up to `share` bytes more; the number of bytes that are clear then.
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

/// The bucket of a key, or the empty bucket where it would go.
#[inline]
fn find(words: &WordsMut<'_>, mask: usize, key: u64) -> Result<(usize, Loc), usize> {
    let words = words.as_read();
    let mut at = mix64(key) as usize & mask;
    // Ends: a table is never more than three quarters full.
    loop {
        let loc = words.load(at * ENTRY_BYTES + 8);
        if loc == 0 {
            return Err(at);
        }
        if words.load(at * ENTRY_BYTES) == key {
            return Ok((at, Loc(loc)));
        }
        at = (at + 1) & mask;
    }
}

fn put(words: &WordsMut<'_>, mask: usize, key: u64, loc: Loc) {
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
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use tidewater_transport::ids::Incarnation;

    use super::super::memory::BlockKind;
    use super::*;

    fn index_in(memory: &Arc<ServerMemory>, part: u32) -> Index {
        let owner = BlockOwner {
            kind: BlockKind::Index,
            table: 1,
            applier: 0,
            part,
        };
        Index::new(Arc::clone(memory), owner).unwrap()
    }

    fn memory() -> Arc<ServerMemory> {
        Arc::new(ServerMemory::new(64 << 20, Incarnation(1)).unwrap())
    }

    fn index() -> Index {
        index_in(&memory(), 0)
    }

    /// Pages that this thread was the first to touch, so far.
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let after_name = stat.rsplit(") ").next().unwrap();
        after_name.split(' ').nth(7).unwrap().parse().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn agrees_with_a_hash_map(ops in proptest::collection::vec((any::<bool>(), 0u64..400), 0..3000)) {
            let mut index = index();
            let mut model = HashMap::new();
            for (n, (remove, key)) in ops.into_iter().enumerate() {
                let key = key << 56 | key;
                if remove {
                    prop_assert_eq!(index.remove(key), model.remove(&key));
                } else if let std::collections::hash_map::Entry::Vacant(slot) = model.entry(key) {
                    let loc = Loc::new(0, 1, n as u32);
                    index.insert(key, loc).unwrap();
                    slot.insert(loc);
                }
                prop_assert_eq!(index.len(), model.len());
            }
            for key in (0..400u64).map(|k| k << 56 | k) {
                prop_assert_eq!(index.get(key), model.get(&key).copied());
            }
        }
    }

    #[test]
    fn every_key_is_found_while_it_grows() {
        let mut index = index();
        for key in 0..100_000u64 {
            index.insert(key, Loc::new(0, 1, key as u32)).unwrap();
            let probe = key / 2;
            assert_eq!(
                index.get(probe),
                Some(Loc::new(0, 1, probe as u32)),
                "{probe} at {key}"
            );
        }
        assert_eq!(index.get(100_000), None);
    }

    /// All indexes of a table double at about the same time; a fresh page costs as much as many
    /// inserts.
    #[test]
    fn fresh_pages_come_evenly_also_when_all_indexes_double() {
        const INDEXES: u64 = 16;
        const BATCH: u64 = 256;
        let memory = memory();
        let mut indexes: Vec<Index> = (0..INDEXES as u32).map(|p| index_in(&memory, p)).collect();
        let (mut most, mut all) = (0, 0);
        for first in (0..INDEXES * 20_000).step_by(BATCH as usize) {
            let before = faults();
            for key in first..first + BATCH {
                let index = &mut indexes[(key % INDEXES) as usize];
                index.insert(key, Loc::new(0, 1, key as u32)).unwrap();
            }
            let came = faults() - before;
            all += came;
            // At first each index is a few pages in all.
            if first > INDEXES * 1_000 {
                most = most.max(came);
            }
        }
        assert!(all > 2_000, "only {all} fresh pages: nothing tested");
        // 128 bytes an insert are a page in 32.
        let share = BATCH / 32;
        assert!(most <= 4 * share, "{most} fresh pages in {BATCH} inserts");
    }

    #[test]
    fn outgrown_tables_are_used_again() {
        let memory = memory();
        let grown = |part| {
            let before = memory.private.usage().0;
            let mut index = index_in(&memory, part);
            for key in 0..50_000u64 {
                index.insert(key, Loc::new(0, 1, key as u32)).unwrap();
            }
            // What was there before is not taken for a key.
            assert!((50_000..60_000).all(|key| index.get(key).is_none()));
            (index, memory.private.usage().0 - before)
        };
        let (first, fresh) = grown(0);
        let (second, more) = grown(1);
        // All but the present table and its predecessor.
        assert!(more < fresh, "{fresh} bytes, then {more}");
        first.release().unwrap();
        second.release().unwrap();
        let (_third, more) = grown(2);
        assert_eq!(more, 0);
    }
}

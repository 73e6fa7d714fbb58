//! A partition's index: u64 key to [`Loc`], open addressing with linear probing in private memory.
//!
//! It grows step by step: a new table of twice the size is filled a few buckets per insert while
//! both are looked at, so that no single insert does unbounded work. An entry is two words,
//! `{key, loc}`; a loc of 0 is an empty bucket (extents are numbered from 1).

use std::sync::Arc;

use tidewater_transport::layout::hash::mix64;
use tidewater_transport::layout::row::Loc;
use tidewater_transport::mem::{Region, WordsMut};

use super::StoreError;
use super::memory::{Block, BlockOwner, ServerMemory};

const ENTRY_BYTES: usize = 16;
const FIRST_ENTRIES: usize = 64;
/// Buckets of the old table moved by one insert: the new one is three eighths full when the move
/// ends, far from its own growth.
const MOVED_PER_INSERT: usize = 16;

/// One table of buckets.
#[derive(Debug, Clone, Copy)]
struct Table {
    block: Block,
    mask: usize,
}

/// The index of one partition. Used by the partition's applier only.
#[derive(Debug)]
pub struct Index {
    memory: Arc<ServerMemory>,
    owner: BlockOwner,
    table: Table,
    /// The table being emptied and the next bucket to move.
    old: Option<(Table, usize)>,
    len: usize,
}

impl Index {
    /// An empty index.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub fn new(memory: Arc<ServerMemory>, owner: BlockOwner) -> Result<Self, StoreError> {
        let table = table(&memory, owner, FIRST_ENTRIES)?;
        Ok(Self {
            memory,
            owner,
            table,
            old: None,
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
        let (old, _) = self.old.as_ref()?;
        find(&old.words(region)?, old.mask, key)
            .ok()
            .map(|(_, loc)| loc)
    }

    /// Prefetch hint: touches the key's home bucket.
    #[inline]
    pub fn touch(&self, key: u64) -> u64 {
        let home = mix64(key) as usize & self.table.mask;
        let words = self.table.words(self.memory.private.region());
        words.map_or(0, |w| w.as_read().load(home * ENTRY_BYTES))
    }

    /// Adds a key that is not there.
    ///
    /// # Errors
    /// [`StoreError::NoMemory`] when it has to grow and cannot; nothing was added.
    pub fn insert(&mut self, key: u64, loc: Loc) -> Result<(), StoreError> {
        if self.old.is_none() && (self.len + 1) * 4 > (self.table.mask + 1) * 3 {
            let bigger = table(&self.memory, self.owner, (self.table.mask + 1) * 2)?;
            self.old = Some((std::mem::replace(&mut self.table, bigger), 0));
        }
        self.migrate(MOVED_PER_INSERT)?;
        let region = Arc::clone(self.memory.private.region());
        if let Some(words) = self.table.words(&region) {
            put(&words, self.table.mask, key, loc);
        }
        self.len += 1;
        Ok(())
    }

    /// Removes a key and returns where its row was.
    pub fn remove(&mut self, key: u64) -> Option<Loc> {
        // With two tables a key may be in either: finish the move, so that it is in one.
        self.migrate(usize::MAX).ok()?;
        let words = self.table.words(self.memory.private.region())?;
        let (at, loc) = find(&words, self.table.mask, key).ok()?;
        close_gap(&words, self.table.mask, at);
        self.len -= 1;
        Some(loc)
    }

    /// Gives all memory back.
    ///
    /// # Errors
    /// Never for blocks of this memory.
    pub fn release(self) -> Result<(), StoreError> {
        if let Some((old, _)) = self.old {
            self.memory.private.free(old.block)?;
        }
        self.memory.private.free(self.table.block)
    }

    fn migrate(&mut self, buckets: usize) -> Result<(), StoreError> {
        let Some((old, next)) = self.old.take() else {
            return Ok(());
        };
        let region = Arc::clone(self.memory.private.region());
        let end = next.saturating_add(buckets).min(old.mask + 1);
        if let (Some(from), Some(to)) = (old.words(&region), self.table.words(&region)) {
            for bucket in next..end {
                let loc = from.as_read().load(bucket * ENTRY_BYTES + 8);
                // The old table keeps its entries: lookups probe through them until the end.
                if loc != 0 {
                    let key = from.as_read().load(bucket * ENTRY_BYTES);
                    put(&to, self.table.mask, key, Loc(loc));
                }
            }
        }
        if end <= old.mask {
            self.old = Some((old, end));
            return Ok(());
        }
        self.memory.private.free(old.block)
    }
}

impl Table {
    fn words<'a>(&self, region: &'a Arc<Region>) -> Option<WordsMut<'a>> {
        region
            .words_mut(self.block.at, (self.mask + 1) * ENTRY_BYTES)
            .ok()
    }
}

fn table(memory: &ServerMemory, owner: BlockOwner, entries: usize) -> Result<Table, StoreError> {
    // Partitions fill evenly and so double at about the same time: zeroing tables of others then
    // would hold the applier up for tens of milliseconds.
    let block = memory
        .private
        .alloc_untouched(entries * ENTRY_BYTES, owner)?;
    Ok(Table {
        block,
        mask: entries - 1,
    })
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

    fn index() -> Index {
        let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(1)).unwrap());
        let owner = BlockOwner {
            kind: BlockKind::Index,
            table: 1,
            applier: 0,
            part: 0,
        };
        Index::new(memory, owner).unwrap()
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
}

//! Cache of row locations. Rows never move, so a location stays right until its row is removed. The
//! row's checksum detects a wrong one: nothing here has to be correct.

use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::limits::LOCATIONS_MAX;
use tidewater_runtime::mem::prefetch;

/// Entries probed for one key.
const PROBES: usize = 16;
const FIRST_ENTRIES: usize = 1 << 10;
/// Inverse of the fill at which a cache grows for the sake of one key. At a lower fill, the keys would
/// have been chosen to collide.
const CROWDED: usize = 8;
/// Entries of the former table that each [`Hints::put`] moves. None does unbounded work, and the move
/// has long ended when the table grows again.
const MOVED_PER_PUT: usize = 32;
/// The former table's memory is freed in pieces of this many bytes: freeing a large one at once takes
/// the system milliseconds.
const GIVEN_BACK_BYTES: usize = 256 << 10;

/// Entries of two words, key and location. Plain words, so that a large table costs nothing before it
/// is touched.
#[derive(Debug)]
struct Entries {
    words: Vec<u64>,
    mask: usize,
}

impl Entries {
    fn new(entries: usize) -> Self {
        Self {
            words: vec![0; entries * 2],
            mask: entries - 1,
        }
    }

    const fn len(&self) -> usize {
        self.mask + 1
    }

    /// The entry of a slot; one that was cut off is empty.
    #[inline]
    fn at(&self, slot: usize) -> (u64, RowLocation) {
        match self.words.get(2 * slot..2 * slot + 2) {
            Some(&[key, loc]) => (key, RowLocation(loc)),
            _ => (0, RowLocation::NONE),
        }
    }

    fn set(&mut self, slot: usize, key: u64, loc: RowLocation) {
        if let Some([k, l]) = self.words.get_mut(2 * slot..2 * slot + 2) {
            (*k, *l) = (key, loc.0);
        }
    }

    /// Drops the entries from `slot` on.
    fn cut(&mut self, slot: usize) {
        self.words.truncate(2 * slot);
        let spare = (self.words.capacity() - self.words.len()) * size_of::<u64>();
        if spare >= GIVEN_BACK_BYTES {
            self.words.shrink_to_fit();
        }
    }

    /// The slot of a key, or the free one for it; `Err` holds one to overwrite.
    #[inline]
    fn find(&self, key: u64) -> Result<usize, usize> {
        let home = mix64(key) as usize & self.mask;
        for n in 0..PROBES {
            let slot = (home + n) & self.mask;
            let (k, loc) = self.at(slot);
            if k == key || loc == RowLocation::NONE {
                return Ok(slot);
            }
        }
        Err((home + PROBES - 1) & self.mask)
    }

    /// Looks a key up; most keys are found at the first probe.
    #[inline]
    fn get(&self, key: u64) -> Option<RowLocation> {
        let home = mix64(key) as usize & self.mask;
        match self.at(home) {
            (_, RowLocation::NONE) => None,
            (k, loc) if k == key => Some(loc),
            _ => self.get_beyond(home, key),
        }
    }

    #[inline(never)]
    fn get_beyond(&self, home: usize, key: u64) -> Option<RowLocation> {
        for n in 1..PROBES {
            let (k, loc) = self.at((home + n) & self.mask);
            if loc == RowLocation::NONE {
                return None;
            }
            if k == key {
                return Some(loc);
            }
        }
        None
    }

    /// Prefetches the cache line in which the search for a key begins.
    #[inline]
    fn prefetch(&self, key: u64) {
        let slot = mix64(key) as usize & self.mask;
        if let Some(entry) = self.words.get(2 * slot) {
            prefetch(entry);
        }
    }
}

/// An open-addressing cache of `key -> RowLocation`.
#[derive(Debug)]
pub struct Hints {
    entries: Entries,
    len: usize,
    /// The former table while its entries are moved, from its end, and the number of entries left.
    old: Option<(Entries, usize)>,
}

impl Default for Hints {
    /// An empty cache, with memory for its first entries.
    fn default() -> Self {
        Self {
            entries: Entries::new(FIRST_ENTRIES),
            len: 0,
            old: None,
        }
    }
}

impl Hints {
    /// The cached location of a key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<RowLocation> {
        let here = self.entries.get(key);
        if here.is_some() {
            return here;
        }
        self.old.as_ref().and_then(|(old, _)| old.get(key))
    }

    /// Prefetches the entry of a key that will be looked up soon.
    #[inline]
    pub fn prefetch(&self, key: u64) {
        self.entries.prefetch(key);
    }

    /// Stores the location of a key, with bounded work.
    pub fn put(&mut self, key: u64, loc: RowLocation) {
        if !loc.is_some() {
            return;
        }
        self.move_some();
        if self.len * 2 > self.entries.len() {
            self.grow();
        }
        // Too many collisions in a cache that is not full. An overwritten entry costs each pull of its
        // key a request to the server.
        if self.entries.find(key).is_err() && self.len * CROWDED > self.entries.len() {
            self.grow();
        }
        let slot = self.entries.find(key);
        self.len += usize::from(slot.is_ok_and(|s| self.entries.at(s).1 == RowLocation::NONE));
        self.entries
            .set(slot.unwrap_or_else(|victim| victim), key, loc);
    }

    /// Invalidates a key with a stale location. The entry keeps its slot (a hole would hide others)
    /// under a location that no extent has.
    pub fn forget(&mut self, key: u64) {
        let old = self.old.as_mut().map(|(old, _)| old);
        for entries in [Some(&mut self.entries), old].into_iter().flatten() {
            if let Ok(slot) = entries.find(key)
                && entries.at(slot).0 == key
                && entries.at(slot).1 != RowLocation::NONE
            {
                entries.set(slot, key, RowLocation(1));
            }
        }
    }

    /// Begins to move to a table of twice the size, unless it is the largest or a move is under way.
    fn grow(&mut self) {
        if self.old.is_none() && self.entries.len() < LOCATIONS_MAX {
            let double = Entries::new(self.entries.len() * 2);
            let entries = self.entries.len();
            self.old = Some((std::mem::replace(&mut self.entries, double), entries));
            self.len = 0;
        }
    }

    fn move_some(&mut self) {
        let Some((mut old, left)) = self.old.take() else {
            return;
        };
        let start = left.saturating_sub(MOVED_PER_PUT);
        for (key, loc) in (start..left).map(|slot| old.at(slot)) {
            // Locations stored since are newer.
            if loc.is_some()
                && let Ok(slot) = self.entries.find(key)
                && self.entries.at(slot).1 == RowLocation::NONE
            {
                self.entries.set(slot, key, loc);
                self.len += 1;
            }
        }
        if start > 0 {
            old.cut(start);
            self.old = Some((old, start));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_and_forgets() {
        let mut hints = Hints::default();
        // Twice: a location lost to collisions while the table moved is learned again.
        for _ in 0..2 {
            for k in 0..20_000u64 {
                hints.put(k << 40, RowLocation::new(0, 1, k as u32));
            }
        }
        let known = (0..20_000u64)
            .filter(|&k| hints.get(k << 40) == Some(RowLocation::new(0, 1, k as u32)))
            .count();
        assert_eq!(known, 20_000);
        hints.forget(5 << 40);
        assert!(hints.get(5 << 40).is_none_or(|l| !l.is_some()));
        hints.put(5 << 40, RowLocation::new(1, 1, 5));
        assert_eq!(hints.get(5 << 40), Some(RowLocation::new(1, 1, 5)));
    }

    /// While a table moves, its former entries are found. The move does not undo what was stored or
    /// invalidated meanwhile.
    #[test]
    fn a_move_neither_hides_nor_undoes() {
        let mut hints = Hints::default();
        for k in 0..50_000u64 {
            let moving = hints.old.is_some();
            hints.put(k, RowLocation::new(0, 1, k as u32));
            if k % 3 == 0 {
                hints.put(k / 2, RowLocation::new(9, 1, (k / 2) as u32));
                assert_eq!(
                    hints.get(k / 2),
                    Some(RowLocation::new(9, 1, (k / 2) as u32)),
                    "{k}"
                );
            }
            if moving && k % 5 == 0 {
                hints.forget(k / 3);
                assert!(hints.get(k / 3).is_none_or(|l| !l.is_some()), "{k}");
            }
        }
        assert!(hints.old.is_none() || hints.entries.len() >= 1 << 16);
        for k in 0..50_000u64 {
            let loc = hints.get(k).filter(|l| l.is_some());
            assert!(loc.is_none_or(|l| u64::from(l.slot()) == k), "{k}: {loc:?}");
        }
    }

    /// The memory of a moved table is freed with its entries, piece by piece.
    #[test]
    fn a_former_table_is_given_back_as_it_is_moved() {
        let mut hints = Hints::default();
        let mut pieces = 0;
        for k in 0..400_000u64 {
            let before = hints
                .old
                .as_ref()
                .map_or(0, |(old, _)| old.words.capacity());
            hints.put(k, RowLocation::new(0, 1, k as u32));
            let Some((old, left)) = &hints.old else {
                assert!(before * 8 <= 2 * GIVEN_BACK_BYTES, "{before} words at once");
                continue;
            };
            let spare = (old.words.capacity() - 2 * left) * 8;
            assert!(spare < 2 * GIVEN_BACK_BYTES, "{spare} bytes are kept");
            pieces += usize::from(before > old.words.capacity());
        }
        assert!(pieces > 10, "{pieces} pieces: nothing tested");
    }
}

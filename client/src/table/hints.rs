//! The hint cache: where rows were last seen. Rows never move, so a hint stays right until its row
//! is removed, and a wrong one is noticed by the row's hash: nothing here has to be correct.

use tidewater_transport::layout::hash::mix64;
use tidewater_transport::layout::row::Loc;

/// Entries looked at for one key.
const PROBES: usize = 16;
const FIRST_ENTRIES: usize = 1 << 10;
/// Largest cache: 16 bytes each. Past this, hints overwrite each other.
const ENTRIES_MAX: usize = 1 << 24;
/// A cache of which this fraction is used grows for the sake of one key; of less, it would be keys
/// that were chosen to collide.
const CROWDED: usize = 8;

/// An open-addressing cache of `key -> Loc`.
#[derive(Debug)]
pub(crate) struct Hints {
    entries: Vec<(u64, Loc)>,
    len: usize,
}

impl Hints {
    pub(crate) fn new() -> Self {
        Self {
            entries: vec![(0, Loc::NONE); FIRST_ENTRIES],
            len: 0,
        }
    }

    #[inline]
    fn slots(&self, key: u64) -> impl Iterator<Item = usize> + use<> {
        let mask = self.entries.len() - 1;
        let home = mix64(key) as usize;
        (0..PROBES).map(move |n| (home + n) & mask)
    }

    /// Where a key was last seen.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<Loc> {
        for slot in self.slots(key) {
            let (k, loc) = self.entries[slot];
            if loc == Loc::NONE {
                return None;
            }
            if k == key {
                return Some(loc);
            }
        }
        None
    }

    /// Remembers a key.
    pub(crate) fn put(&mut self, key: u64, loc: Loc) {
        if !loc.is_some() {
            return;
        }
        if self.len * 2 > self.entries.len() && self.entries.len() < ENTRIES_MAX {
            self.grow();
        }
        let mut victim = None;
        for slot in self.slots(key) {
            let (k, known) = self.entries[slot];
            if known == Loc::NONE || k == key {
                self.len += usize::from(known == Loc::NONE);
                self.entries[slot] = (key, loc);
                return;
            }
            victim = Some(slot);
        }
        // A crowded place in a cache that is not full: a hint that is overwritten costs its key's
        // pulls a question to the server each.
        if self.len * CROWDED > self.entries.len() && self.entries.len() < ENTRIES_MAX {
            self.grow();
            return self.put(key, loc);
        }
        if let Some(slot) = victim {
            self.entries[slot] = (key, loc);
        }
    }

    /// Forgets a key whose hint was wrong: the entry keeps its place (a hole would hide others)
    /// under a location that no extent has.
    pub(crate) fn forget(&mut self, key: u64) {
        for slot in self.slots(key) {
            if self.entries[slot].0 == key && self.entries[slot].1 != Loc::NONE {
                self.entries[slot].1 = Loc(1);
            }
        }
    }

    fn grow(&mut self) {
        let double = vec![(0, Loc::NONE); self.entries.len() * 2];
        let old = std::mem::replace(&mut self.entries, double);
        self.len = 0;
        for (key, loc) in old {
            if loc.is_some() {
                self.put(key, loc);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_and_forgets() {
        let mut hints = Hints::new();
        for k in 0..20_000u64 {
            hints.put(k << 40, Loc::new(0, 1, k as u32));
        }
        let known = (0..20_000u64)
            .filter(|&k| hints.get(k << 40) == Some(Loc::new(0, 1, k as u32)))
            .count();
        assert_eq!(known, 20_000);
        hints.forget(5 << 40);
        assert!(hints.get(5 << 40).is_none_or(|l| !l.is_some()));
        hints.put(5 << 40, Loc::new(1, 1, 5));
        assert_eq!(hints.get(5 << 40), Some(Loc::new(1, 1, 5)));
    }
}

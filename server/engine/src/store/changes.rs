//! The records of a table's share that have changed since its last checkpoint.
//!
//! Writers note each record before they change it, at the places where they look for a cut (`super::cut`). The cut of
//! the next checkpoint takes the notes and copies only these records; a new set begins at the same moment. Everything
//! runs on the table's applier.

/// Number of records in one leaf of the set, one bit for each.
const LEAF_RECORDS: u64 = 64 * LEAF_WORDS as u64;
/// Number of 64-bit words of a leaf: 4 KiB.
const LEAF_WORDS: usize = 512;

/// Maximum number of removed rows that are noted: 8 MiB of keys. After more of them the next checkpoint cannot be
/// incremental.
pub(crate) const REMOVED_MAX: usize = 1 << 20;

/// Set of the records of a table's share that have changed since a checkpoint, and the keys of rows that were removed.
#[derive(Debug)]
pub(crate) struct Changes {
    since: u64,
    /// Number of bits by which a position is shifted right to get the number of its record's bit.
    shift: u32,
    /// One bit for each record, in leaves that exist once a record in them has changed.
    leaves: Vec<Option<Box<[u64; LEAF_WORDS]>>>,
    removed: Vec<u64>,
    /// Whether more rows were removed than are noted.
    overflowed: bool,
}

impl Changes {
    /// Makes an empty set of changes since checkpoint `since`, of records with positions `stride` apart.
    pub(crate) const fn new(since: u64, stride: u64) -> Self {
        Self {
            since,
            shift: stride.ilog2(),
            leaves: Vec::new(),
            removed: Vec::new(),
            overflowed: false,
        }
    }

    /// Notes that the record at a position changes. Cost: one bit; 4 KiB of memory at the first change among 32,768
    /// neighbours.
    pub(crate) fn note(&mut self, position: u64) {
        let record = position >> self.shift;
        let leaf = (record / LEAF_RECORDS) as usize;
        if leaf >= self.leaves.len() {
            self.leaves.resize_with(leaf + 1, || None);
        }
        let words = self.leaves[leaf].get_or_insert_with(|| Box::new([0; LEAF_WORDS]));
        words[(record % LEAF_RECORDS / 64) as usize] |= 1 << (record % 64);
    }

    /// Notes that the row of a key is removed. After [`REMOVED_MAX`] keys, notes only that keys are missing.
    pub(crate) fn note_removed(&mut self, key: u64) {
        match self.removed.len() < REMOVED_MAX {
            true => self.removed.push(key),
            false => self.overflowed = true,
        }
    }

    /// Whether the record at a position has changed.
    pub(crate) fn has(&self, position: u64) -> bool {
        let record = position >> self.shift;
        let leaf = self.leaves.get((record / LEAF_RECORDS) as usize);
        leaf.and_then(Option::as_ref).is_some_and(|words| {
            words[(record % LEAF_RECORDS / 64) as usize] & 1 << (record % 64) != 0
        })
    }

    /// Takes the keys of the rows that were removed out of the set, in the order of their removal. A key may come
    /// twice.
    pub(crate) fn take_removed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.removed)
    }

    /// Checks that the set holds all changes since checkpoint `number`.
    ///
    /// # Errors
    /// The reason, in words, why a checkpoint cannot extend checkpoint `number`.
    pub(crate) fn check(&self, number: u64) -> Result<(), String> {
        if self.since != number {
            let since = self.since;
            return Err(format!(
                "its changes are noted since checkpoint {since}, not since {number}"
            ));
        }
        match self.overflowed {
            true => Err(format!(
                "more than {REMOVED_MAX} rows were removed since checkpoint {number}"
            )),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_records_and_no_others_have_changed() {
        // 24 is no power of two: each record still has a bit of its own.
        for stride in [1, 8, 24, 80] {
            let mut changes = Changes::new(3, stride);
            let records = [0, 1, 63, 64, 32_767, 32_768, 1_000_000];
            records
                .iter()
                .for_each(|record| changes.note(64 + record * stride));
            for record in 0..1_000_100 {
                let noted = records.contains(&record);
                assert_eq!(changes.has(64 + record * stride), noted, "{record}");
            }
            assert!(!changes.has(u64::MAX));
        }
    }

    #[test]
    fn changes_since_another_checkpoint_are_refused() {
        let mut changes = Changes::new(3, 64);
        assert_eq!(changes.check(3), Ok(()));
        let why = changes.check(4).unwrap_err();
        assert!(why.contains('3') && why.contains('4'), "{why}");
        (0..REMOVED_MAX as u64).for_each(|key| changes.note_removed(key));
        assert_eq!(changes.check(3), Ok(()));
        changes.note_removed(7);
        assert!(changes.check(3).is_err());
        assert_eq!(changes.take_removed().len(), REMOVED_MAX);
    }
}

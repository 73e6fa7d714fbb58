//! Expiry: rows that no push has touched for a number of ticks.
//!
//! Each row has a stamp behind its optimizer state: the ticks that its domain had completed when a push
//! of it took effect last, or when the row was made. A sweep looks at the rows of one partition.

use std::ops::Range;

use super::StoreError;
use super::redo::RowPlace;
use super::sparse::SparseShard;

/// Bytes of a row's expiry stamp.
const STAMP_BYTES: usize = 8;

/// Expiry settings and tick count of a sparse table on one applier.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expiry {
    /// Number of ticks without a push after which a row expires.
    after: u64,
    /// Number of ticks that the table's domain has completed.
    now: u64,
    /// Byte offset of the stamp from the beginning of the row's optimizer state.
    stamp_at: usize,
}

impl Expiry {
    /// Creates the expiry of rows after `after` ticks without a push; `None` for 0. `state_bytes` is the
    /// length of a row's optimizer state.
    pub(super) fn new(after: u32, state_bytes: usize) -> Option<Self> {
        (after > 0).then_some(Self {
            after: after.into(),
            now: 0,
            stamp_at: state_bytes.next_multiple_of(8),
        })
    }

    /// Private bytes of a row: its optimizer state, and if rows expire after `after` ticks (0: never), padding
    /// to a multiple of 8 and the stamp.
    pub(super) fn private_bytes(after: u32, state_bytes: usize) -> usize {
        match after {
            0 => state_bytes,
            _ => state_bytes.next_multiple_of(8) + STAMP_BYTES,
        }
    }
}

impl SparseShard {
    /// Whether rows of the table expire.
    pub const fn expires(&self) -> bool {
        self.expiry.is_some()
    }

    /// Sets the number of ticks that the table's domain has completed. No effect without an expiry.
    pub fn set_ticks(&mut self, ticks: u64) {
        if let Some(expiry) = &mut self.expiry {
            expiry.now = ticks;
        }
    }

    /// Stamps rows with the present tick: a push of them takes effect now. No effect without an expiry.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when a place lies outside the memory; rows before it are stamped.
    pub fn stamp(&self, places: &[RowPlace]) -> Result<(), StoreError> {
        let Some(expiry) = &self.expiry else {
            return Ok(());
        };
        let private = self.extents().private();
        for place in places {
            let at = place.state_at + expiry.stamp_at;
            private.words_mut(at, STAMP_BYTES)?.store(0, expiry.now);
        }
        Ok(())
    }

    /// Appends to `keys` the keys of the expired rows in a range of a partition's slots, which are numbered from
    /// 0 as in [`Self::slots`]. No effect on a table without an expiry. `places` is working memory, and is
    /// cleared. Cost: an index search and a stamp for each slot, a step for each run of the partition.
    ///
    /// # Errors
    /// [`StoreError::Mem`]: none in practice, because the stamps lie inside the server's memory.
    pub fn expired(
        &self,
        partition: u32,
        slots: Range<u64>,
        places: &mut Vec<RowPlace>,
        keys: &mut Vec<u64>,
    ) -> Result<(), StoreError> {
        let Some(expiry) = &self.expiry else {
            return Ok(());
        };
        let private = self.extents().private();
        places.clear();
        self.rows_in_slots(partition, slots, places);
        for place in places {
            let at = place.state_at + expiry.stamp_at;
            let stamp = private.words(at, STAMP_BYTES)?.load(0);
            if expiry.now.saturating_sub(stamp) >= expiry.after {
                keys.push(place.key);
            }
        }
        Ok(())
    }
}

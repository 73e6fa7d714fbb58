//! Expiry: rows that no push has touched for a number of ticks.
//!
//! Each row has a stamp behind its optimizer state: the ticks that its domain had completed when a push
//! of it took effect last, or when the row was made. A sweep looks at the rows of one partition.

use std::ops::Range;

use super::StoreError;
use super::redo::RowPlace;
use super::sparse::SparseShard;

/// Bytes of a stamp.
const STAMP_BYTES: usize = 8;

/// Expiry of one applier's rows of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expiry {
    /// Ticks without a push after which a row expires.
    after: u64,
    /// Ticks completed in the table's domain.
    now: u64,
    /// Offset of a stamp from the row's state.
    stamp_at: usize,
}

impl Expiry {
    /// Expiry after this number of ticks; 0 for none.
    pub(super) fn new(after: u32, state_bytes: usize) -> Option<Self> {
        (after > 0).then_some(Self {
            after: after.into(),
            now: 0,
            stamp_at: state_bytes.next_multiple_of(8),
        })
    }

    /// Private bytes of a row: its state, and its stamp if there is an expiry.
    pub(super) fn private_bytes(after: u32, state_bytes: usize) -> usize {
        match after {
            0 => state_bytes,
            _ => state_bytes.next_multiple_of(8) + STAMP_BYTES,
        }
    }
}

impl SparseShard {
    /// Whether rows expire.
    pub const fn expires(&self) -> bool {
        self.expiry.is_some()
    }

    /// Sets the number of ticks that the table's domain has completed.
    pub fn set_ticks(&mut self, ticks: u64) {
        if let Some(expiry) = &mut self.expiry {
            expiry.now = ticks;
        }
    }

    /// Stamps rows: a push of them takes effect now. Does nothing without an expiry.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when a place is not of this table.
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

    /// Appends the keys of the rows in `slots` of a partition that have expired. `places` is scratch. Cost: an
    /// index entry and a stamp for each slot, a step for each run of the partition.
    ///
    /// # Errors
    /// [`StoreError::Mem`] never for a partition of this shard.
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

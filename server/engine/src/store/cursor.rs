//! Rows of a partition in a stable order: that of their creation, by slot.
//!
//! A cursor reads a partition to save, move or copy it. A row that is removed drops out, a row
//! created meanwhile comes at the end or in a reused slot; no row comes twice.

use tidewater_protocol::layout::row::RowLocation;

use super::redo::RowPlace;
use super::sparse::SparseShard;

/// Position of the iteration. Plain numbers: it stays valid as long as the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowCursor {
    run: usize,
    slot: u32,
}

impl SparseShard {
    /// The next row of a partition; `None` at the end. Cost: one row's header, more over vacant
    /// slots.
    pub fn next_row(&self, partition: u32, cursor: &mut RowCursor) -> Option<(u64, RowPlace)> {
        let rows = self.partitions.get(partition as usize)?.as_ref()?;
        loop {
            let run = rows.runs.get(cursor.run)?;
            if cursor.slot >= run.used {
                *cursor = RowCursor {
                    run: cursor.run + 1,
                    slot: 0,
                };
                continue;
            }
            let slot = RowLocation::new(0, run.extent, run.first + cursor.slot);
            cursor.slot += 1;
            if let Some(place) = self.extents.place(slot)
                && let Some(loc) = rows.index.get(place.key)
                && (loc.extent(), loc.slot()) == (slot.extent(), slot.slot())
            {
                return Some((place.key, place));
            }
        }
    }
}

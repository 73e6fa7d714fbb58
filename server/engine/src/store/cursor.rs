//! Rows of a partition in a stable order: that of their creation, by slot.
//!
//! A cursor reads a partition to save, move or copy it. A row that is removed drops out, a row
//! created meanwhile comes at the end or in a reused slot; no row comes twice.

use std::ops::Range;

use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::wire::control::CheckpointMark;

use super::cut::Outlet;
use super::redo::RowPlace;
use super::sparse::SparseShard;

/// Position of an iteration over the rows of a partition. Plain numbers: it stays valid as long as the
/// shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowCursor {
    run: usize,
    slot: u32,
}

impl SparseShard {
    /// Number of slots that a partition has taken, with rows or without. `None` for a partition of another
    /// applier. These slots are numbered from 0 in the order in which they were taken. A row keeps its slot until
    /// it is removed, so the numbers address the rows in calls that cover a partition in several frames.
    pub fn slots(&self, partition: u32) -> Option<u64> {
        let rows = self.partitions.get(partition as usize)?.as_ref()?;
        Some(rows.runs.iter().map(|run| u64::from(run.len)).sum())
    }

    /// Appends the places of the rows in a range of a partition's slots, numbered from 0, to `places`, in the
    /// order of slots. Slots without a row are left out. No effect for a partition of another applier. Cost: a
    /// step for each run of the partition (usually 8 to 1,024 slots), a key and an index search for each slot.
    pub fn rows_in_slots(&self, partition: u32, slots: Range<u64>, places: &mut Vec<RowPlace>) {
        let rows = self.partitions.get(partition as usize);
        let Some(rows) = rows.and_then(Option::as_ref) else {
            return;
        };
        let mut before = 0;
        for run in &rows.runs {
            let (first, end) = (before, before + u64::from(run.len));
            before = end;
            let used = first + u64::from(run.used);
            for slot in slots.start.max(first)..slots.end.min(used) {
                let slot = RowLocation::new(0, run.extent, run.first + (slot - first) as u32);
                places.extend(self.row_in(slot));
            }
            if end >= slots.end {
                return;
            }
        }
    }

    /// Returns the place of the row in a slot, given as location of generation 0; `None` for a slot without a
    /// row.
    fn row_in(&self, slot: RowLocation) -> Option<RowPlace> {
        let place = self.extents.place(slot)?;
        (self.find_slot(place.key) == Some(slot)).then_some(place)
    }

    /// Begins a save of all rows of the shard, or of those that have changed since the checkpoint that `mark`
    /// extends. Returns the keys of the rows that were removed since that checkpoint, and the error if these
    /// changes are not known, see [`super::cut::Watch::begin`].
    pub(crate) fn begin_cut(
        &mut self,
        outlet: Outlet,
        mark: Option<CheckpointMark>,
    ) -> Result<Vec<u64>, String> {
        let spans = self.extents.spans();
        self.rows().begin_cut(outlet, spans, mark)
    }

    /// Returns key and place of the next row of a partition, and moves the cursor behind the row. `None` at the
    /// end, and for a partition of another applier. Cost: a key and an index search, more across vacant slots.
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
            if let Some(place) = self.row_in(slot) {
                return Some((place.key, place));
            }
        }
    }
}

//! The pieces of a table that frames of a function cover.

use std::ops::Range;

use tidewater_bookkeeping::pieces::{self, FramePiece};
use tidewater_protocol::limits::{FRAME_ROWS_MAX, FUNCTION_BYTES_MAX};

use crate::table::state::TableState;

/// Most frames of a call on a sparse table: the client has 32 bytes for each, and servers say how many there are.
const PIECES_MAX: u64 = 1 << 24;

/// Most elements (range tables), rows or slots of one frame. It depends on the table's definition only: the pieces
/// of a table, and so the order of a reduction, are the same on any number of servers.
fn per_frame(table: &TableState) -> u64 {
    match table.is_blocks() {
        true => (FUNCTION_BYTES_MAX / table.spec.dtype.size()) as u64,
        false => (FUNCTION_BYTES_MAX / table.row.payload_bytes).clamp(1, FRAME_ROWS_MAX) as u64,
    }
}

/// Cuts `range` of a dense table (elements, or rows) into pieces, in their order. `None` if a partition has no known
/// owner.
pub(crate) fn dense_pieces(table: &TableState, range: Range<u64>) -> Option<Vec<FramePiece>> {
    let lane_of = |partition| table.lane_of_partition(partition);
    pieces::dense_pieces(table.partition_bounds()?, lane_of, range, per_frame(table))
}

/// Cuts a sparse table into pieces; `slots` has the number of slots (places for rows) of each partition. `None` if a
/// partition has no known owner. The error says that the pieces are more than [`PIECES_MAX`].
pub(crate) fn slot_pieces(
    table: &TableState,
    slots: &[u64],
) -> Result<Option<Vec<FramePiece>>, String> {
    let step = per_frame(table);
    let count = pieces::count_slot_pieces(slots, step);
    if count > PIECES_MAX {
        return Err(format!("{count} frames; a call has at most {PIECES_MAX}"));
    }
    let lane_of = |partition| table.lane_of_partition(partition);
    Ok(pieces::slot_pieces(slots, lane_of, step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TableBuilder;

    /// Numbers of slots in servers' answers make no more pieces than a call may have.
    #[test]
    fn impossible_slots_are_refused() {
        let spec = TableBuilder::range::<f64>("t", 1 << 20, 1).partitions(2);
        let table = TableState::of_blocks(spec.spec());
        let most = PIECES_MAX / 2 * per_frame(&table);
        let refused = slot_pieces(&table, &[most, most + 1]).unwrap_err();
        assert_eq!(refused, "16777217 frames; a call has at most 16777216");
        let huge = slot_pieces(&table, &vec![u64::MAX; 1 << 17]).unwrap_err();
        assert!(huge.contains("frames"), "{huge}");
        let few = slot_pieces(&table, &[0, 1]).unwrap().unwrap();
        assert_eq!((few[0].partition, few[0].count), (1, 1));
    }
}

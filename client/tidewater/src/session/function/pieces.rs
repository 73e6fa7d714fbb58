//! The pieces of a table that frames of a function cover.

use std::ops::Range;

use tidewater_bookkeeping::pieces::{self, FramePiece};
use tidewater_protocol::limits::{FRAME_ROWS_MAX, FUNCTION_BYTES_MAX};

use crate::table::state::TableState;

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
/// partition has no known owner.
pub(crate) fn slot_pieces(table: &TableState, slots: &[u64]) -> Option<Vec<FramePiece>> {
    let lane_of = |partition| table.lane_of_partition(partition);
    pieces::slot_pieces(slots, lane_of, per_frame(table))
}

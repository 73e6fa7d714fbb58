//! The pieces of a table that frames of a function cover.

use std::ops::Range;

use tidewater_protocol::limits::{FRAME_ROWS_MAX, FUNCTION_BYTES_MAX};

use crate::table::state::TableState;

/// Piece of one partition that one frame of a function call covers: a run of elements, rows or slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FramePiece {
    pub(crate) lane: usize,
    pub(crate) partition: u32,
    /// First element, row or slot, and their number.
    pub(crate) first: u64,
    pub(crate) count: u64,
}

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
    let mut pieces = Vec::new();
    for (partition, bounds) in (0..).zip(table.partition_bounds()?) {
        let (first, end) = (bounds.start.max(range.start), bounds.end.min(range.end));
        if first < end {
            let lane = table.lane_of_partition(partition)?;
            cut(
                &mut pieces,
                lane,
                partition,
                bounds.start,
                first..end,
                per_frame(table),
            );
        }
    }
    Some(pieces)
}

/// Cuts a sparse table into pieces; `slots` has the number of slots (places for rows) of each partition. `None` if a
/// partition has no known owner.
pub(crate) fn slot_pieces(table: &TableState, slots: &[u64]) -> Option<Vec<FramePiece>> {
    let mut pieces = Vec::new();
    for (partition, &slots) in (0..).zip(slots) {
        let lane = table.lane_of_partition(partition)?;
        cut(&mut pieces, lane, partition, 0, 0..slots, per_frame(table));
    }
    Some(pieces)
}

/// Cuts `range` of one partition at multiples of `step` from `start` (the partition's begin) on, and appends the
/// pieces. Cuts do not depend on where `range` begins.
fn cut(
    pieces: &mut Vec<FramePiece>,
    lane: usize,
    partition: u32,
    start: u64,
    range: Range<u64>,
    step: u64,
) {
    let mut first = range.start;
    while first < range.end {
        let end = (start + ((first - start) / step + 1) * step).min(range.end);
        pieces.push(FramePiece {
            lane,
            partition,
            first,
            count: end - first,
        });
        first = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TableBuilder;

    /// Pieces begin at fixed places of their partition, whatever the range is.
    #[test]
    fn pieces_cover_a_range_once() {
        let elements = 200_000;
        let spec = TableBuilder::range::<f64>("t", elements, 1).partitions(2);
        let table = TableState::of_blocks(spec.spec());
        for range in [0..elements, 5..70_000, 99_999..100_400, 7..7] {
            let pieces = dense_pieces(&table, range.clone()).unwrap();
            let mut at = range.start;
            for piece in &pieces {
                assert_eq!(piece.first, at);
                assert!((1..=32_768).contains(&piece.count));
                at += piece.count;
            }
            assert_eq!(at, range.end);
            let all = dense_pieces(&table, 0..elements).unwrap();
            let starts: Vec<u64> = all.iter().map(|piece| piece.first).collect();
            let inner = pieces.iter().skip(1).map(|piece| piece.first);
            assert!(
                inner.clone().all(|first| starts.contains(&first)),
                "{range:?}"
            );
        }
    }
}

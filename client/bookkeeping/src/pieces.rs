//! Pieces of a table, one for each frame of a function call.

use std::collections::VecDeque;
use std::ops::Range;

/// Piece of one partition that one frame of a function call covers: a run of elements, rows or slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramePiece {
    /// Number of the lane to the partition's owner.
    pub lane: usize,
    /// Number of the partition in its table.
    pub partition: u32,
    /// First element, row or slot of the piece.
    pub first: u64,
    /// Number of its elements, rows or slots.
    pub count: u64,
}

/// Cuts `range` of a dense table (elements, or rows) into pieces of at most `step`, in their order. `bounds` are the
/// ranges of the partitions, `lane_of` maps a partition to its lane. `None` if a partition has no known owner.
pub fn dense_pieces(
    bounds: impl Iterator<Item = Range<u64>>,
    lane_of: impl Fn(u32) -> Option<usize>,
    range: Range<u64>,
    step: u64,
) -> Option<Vec<FramePiece>> {
    let mut pieces = Vec::new();
    for (partition, bounds) in (0..).zip(bounds) {
        let (first, end) = (bounds.start.max(range.start), bounds.end.min(range.end));
        if first < end {
            let lane = lane_of(partition)?;
            cut(&mut pieces, lane, partition, bounds.start, first..end, step);
        }
    }
    Some(pieces)
}

/// Cuts a sparse table into pieces of at most `step` slots; `slots` has the number of slots (places for rows) of each
/// partition. `None` if a partition has no known owner.
pub fn slot_pieces(
    slots: &[u64],
    lane_of: impl Fn(u32) -> Option<usize>,
    step: u64,
) -> Option<Vec<FramePiece>> {
    let mut pieces = Vec::new();
    for (partition, &slots) in (0..).zip(slots) {
        let lane = lane_of(partition)?;
        cut(&mut pieces, lane, partition, 0, 0..slots, step);
    }
    Some(pieces)
}

/// Number of pieces of at most `step` slots that [`slot_pieces`] makes.
pub fn count_slot_pieces(slots: &[u64], step: u64) -> u64 {
    let each = slots.iter().map(|slots| slots.div_ceil(step));
    each.fold(0, u64::saturating_add)
}

/// Queues of indexes of `pieces`, one for each lane.
pub fn by_lane(pieces: &[FramePiece], lanes: usize) -> Vec<VecDeque<usize>> {
    let mut queues = vec![VecDeque::new(); lanes];
    for (n, piece) in pieces.iter().enumerate() {
        queues[piece.lane].push_back(n);
    }
    queues
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

    /// Pieces begin at fixed places of their partition, whatever the range is.
    #[test]
    fn pieces_cover_a_range_once() {
        let elements = 200_000;
        let cut = |range| {
            let bounds = [0..100_000, 100_000..elements].into_iter();
            dense_pieces(bounds, |_| Some(0), range, 32_768).unwrap()
        };
        for range in [0..elements, 5..70_000, 99_999..100_400, 7..7] {
            let pieces = cut(range.clone());
            let mut at = range.start;
            for piece in &pieces {
                assert_eq!(piece.first, at);
                assert!((1..=32_768).contains(&piece.count));
                at += piece.count;
            }
            assert_eq!(at, range.end);
            let all = cut(0..elements);
            let starts: Vec<u64> = all.iter().map(|piece| piece.first).collect();
            let inner = pieces.iter().skip(1).map(|piece| piece.first);
            assert!(
                inner.clone().all(|first| starts.contains(&first)),
                "{range:?}"
            );
        }
    }
}

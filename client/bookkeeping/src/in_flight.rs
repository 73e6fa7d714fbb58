//! How many bytes the reads of one call have in flight.

/// Most bytes that the reads of one call have in flight in buffers of all lanes together.
pub const CALL_BYTES: usize = 16 << 20;
/// Largest number of bytes that one lane has in flight: enough for 400 MB/s at a round trip of 10 ms.
/// `LANE_BYTES_MIN` is the least: a window of a range.
const LANE_BYTES_MAX: usize = 4 << 20;
const LANE_BYTES_MIN: usize = 256 << 10;

/// Bytes that each of `lanes` lanes may have in flight at once: its share of `CALL_BYTES`, within `LANE_BYTES_MIN`
/// and `LANE_BYTES_MAX`.
pub const fn lane_bytes(lanes: usize) -> usize {
    let share = CALL_BYTES / if lanes == 0 { 1 } else { lanes };
    if share > LANE_BYTES_MAX {
        LANE_BYTES_MAX
    } else if share < LANE_BYTES_MIN {
        LANE_BYTES_MIN
    } else {
        share
    }
}

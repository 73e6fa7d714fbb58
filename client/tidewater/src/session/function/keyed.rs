//! Frames of calls with keys: the keys of each lane, cut into frames.

use tidewater_lanes::num::count;
use tidewater_protocol::layout::frame::{FrameHeader, FrameKind};
use tidewater_protocol::layout::function::NamedRows;
use tidewater_protocol::limits::{FRAME_ROWS_MAX, FUNCTION_BYTES_MAX};
use zerocopy::IntoBytes;

use crate::lanes::Lanes;
use crate::pull;
use crate::table::Element;
use crate::table::state::TableState;

/// Bytes of a frame that are reserved for the function's name and arguments.
const HEAD_BYTES: usize = 9 << 10;

/// Most bytes of a function's result for one frame: 64 KiB.
const RESULT_BYTES_MAX: usize = 64 << 10;

/// Rows of one frame, by their indexes in the call's keys, with their lane.
#[derive(Debug)]
pub(crate) struct RowChunk {
    pub(crate) lane: usize,
    pub(crate) rows: Vec<u32>,
}

/// Bytes of values that are sent with each key of a call, and that are returned for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyBytes {
    /// Bytes of values sent with a key.
    pub(crate) sent: usize,
    /// Bytes of result returned for a key.
    pub(crate) returned: usize,
}

/// Cuts the keys of a call into frames, each with keys of one lane in their order. Frame, reply and work of the
/// applier bound the keys of a frame. `Err` describes the defect: a key past the end, or values that fit no frame.
pub(crate) fn row_chunks(
    lanes: &mut Lanes,
    table: &TableState,
    keys: &[u64],
    bytes: KeyBytes,
) -> Result<Vec<RowChunk>, String> {
    let mut by_lane = vec![Vec::new(); lanes.len()];
    for (row, &key) in keys.iter().enumerate() {
        let lane = table
            .lane_of(key)
            .ok_or_else(|| format!("row {key} is past the end"))?;
        by_lane[lane].push(count(row));
    }
    let mut chunks = Vec::new();
    for (lane, rows) in by_lane.into_iter().enumerate() {
        let room = lanes.get(lane).ring.payload_bytes_max();
        let fits = room.saturating_sub(HEAD_BYTES) / (8 + bytes.sent);
        let results_max = lanes
            .get(lane)
            .replies
            .payload_bytes_max()
            .min(RESULT_BYTES_MAX);
        let results = results_max / bytes.returned.max(1);
        let work = (FUNCTION_BYTES_MAX / table.row.payload_bytes).clamp(1, FRAME_ROWS_MAX);
        let most = fits.min(results).min(work);
        if most == 0 {
            let KeyBytes { sent, returned } = bytes;
            return Err(format!(
                "{sent} bytes with each key and {returned} bytes of its result do not fit a frame; the most \
                 are {} and {results_max}",
                room.saturating_sub(HEAD_BYTES + 8)
            ));
        }
        chunks.extend(rows.chunks(most).map(|rows| RowChunk {
            lane,
            rows: rows.to_vec(),
        }));
    }
    Ok(chunks)
}

pub(crate) fn rows_header(table: &TableState, kind: FrameKind, rows: usize) -> FrameHeader {
    pull::request(table, kind, rows, false)
}

/// Encoded keys and values of one frame, kept between frames.
#[derive(Debug, Default)]
pub(crate) struct RowsScratch {
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl RowsScratch {
    /// Replaces the contents by one frame: the encoded keys with indexes `rows`, and `each` values of each key.
    pub(crate) fn fill<T: Element>(
        &mut self,
        keys: &[u64],
        values: &[T],
        each: usize,
        rows: &[u32],
    ) {
        self.keys.clear();
        self.values.clear();
        for &row in rows {
            let row = row as usize;
            self.keys.extend_from_slice(&keys[row].to_le_bytes());
            let values = &values[row * each..(row + 1) * each];
            self.values.extend_from_slice(values.as_bytes());
        }
    }

    pub(crate) fn call<'a>(&'a self, name: &'a str, arguments: &'a [u8]) -> NamedRows<'a> {
        NamedRows {
            name,
            arguments,
            keys: &self.keys,
            values: &self.values,
        }
    }
}

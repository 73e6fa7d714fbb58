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

/// Bytes that a frame keeps for names and arguments.
const HEAD_BYTES: usize = 9 << 10;

/// Most bytes of a result: 64 KiB, as of an applier's other results.
const RESULT_BYTES_MAX: usize = 64 << 10;

/// Rows of one frame, by their position among the keys.
#[derive(Debug)]
pub(crate) struct RowChunk {
    pub(crate) lane: usize,
    pub(crate) rows: Vec<u32>,
}

/// Bytes that belong to a key of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyBytes {
    /// Bytes that travel with it.
    pub(crate) sent: usize,
    /// Bytes of its result.
    pub(crate) returned: usize,
}

/// Cuts keys into frames, each with keys of one lane in their order. `Err` describes the defect.
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

/// Keys and values of one frame.
#[derive(Debug, Default)]
pub(crate) struct RowsScratch {
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl RowsScratch {
    /// Takes some keys, and `each` values of each.
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

//! Requests that an applier answers: locations of keys, and copies of rows and ranges.

use std::ops::Range;

use tidewater_lanes::num::{count, size};
use tidewater_protocol::ids::TableId;
use tidewater_protocol::layout::frame::{FrameFlags, FrameHeader, FrameKind, PARTITION_ANY};
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::limits::FRAME_ROWS_MAX;
use tidewater_runtime::clock::Deadline;

use super::blocks::RangePart;
use crate::error::ClientError;
use crate::lanes::{Lanes, Requests};
use crate::table::state::TableState;

/// Makes the header of a request frame about `rows` rows or elements of a table. Tag, sizes and sequence number are
/// 0: the sender fills them in. `create` lets the server create missing rows.
pub(crate) fn request(
    table: &TableState,
    kind: FrameKind,
    rows: usize,
    create: bool,
) -> FrameHeader {
    FrameHeader {
        kind,
        flags: FrameFlags {
            create,
            ..FrameFlags::default()
        },
        seq: 0,
        session: 0,
        payload_len: 0,
        count: count(rows),
        table: table.id.0,
        partition: PARTITION_ANY,
        clock: 0,
        user_tag: 0,
        checksum: 0,
    }
}

/// Rows of one request, all of one lane, as a range of indexes in the sorted list of rows.
#[derive(Debug)]
struct LaneRows {
    lane: usize,
    rows: Range<usize>,
}

/// Requests for locations or copies of rows, each with keys of one lane. `place` receives the index of a row and its
/// bytes of the reply.
struct RowRequests<'a, F> {
    table: &'a TableState,
    kind: FrameKind,
    create: bool,
    keys: &'a [u64],
    /// Indexes of the rows in `keys`, sorted by lane.
    rows: &'a [u32],
    chunks: Vec<LaneRows>,
    /// Bytes of the reply for each row, and their name.
    each: usize,
    what: &'static str,
    payload: Vec<u8>,
    place: F,
}

impl<F: FnMut(u32, &[u8])> Requests for RowRequests<'_, F> {
    fn table(&self) -> (&str, TableId) {
        (self.table.name(), self.table.id)
    }

    fn len(&self) -> usize {
        self.chunks.len()
    }

    fn lane(&self, n: usize) -> usize {
        self.chunks[n].lane
    }

    fn header(&self, n: usize) -> FrameHeader {
        request(
            self.table,
            self.kind,
            self.chunks[n].rows.len(),
            self.create,
        )
    }

    fn payload(&mut self, n: usize) -> &[u8] {
        self.payload.clear();
        for &row in &self.rows[self.chunks[n].rows.clone()] {
            self.payload
                .extend_from_slice(&self.keys[row as usize].to_le_bytes());
        }
        &self.payload
    }

    fn answer(&mut self, n: usize, reply: &[u8]) -> Result<(), String> {
        let rows = &self.rows[self.chunks[n].rows.clone()];
        let due = rows.len() * self.each;
        if reply.len() != due {
            let (got, what) = (reply.len(), self.what);
            return Err(format!(
                "a reply with {got} bytes of {what} where {due} are due"
            ));
        }
        for (&row, bytes) in rows.iter().zip(reply.chunks_exact(self.each)) {
            (self.place)(row, bytes);
        }
        Ok(())
    }
}

/// Elements of one request: first element, lane, and byte range of the destination.
#[derive(Debug)]
struct RangeChunk {
    lane: usize,
    /// First element of the table.
    first: u64,
    /// Bytes of the destination.
    bytes: Range<usize>,
}

/// Requests for copies of element ranges, made by appliers and placed in `out`.
struct RangeRequests<'a> {
    table: &'a TableState,
    chunks: Vec<RangeChunk>,
    element: [u8; 8],
    out: &'a mut [u8],
}

impl Requests for RangeRequests<'_> {
    fn table(&self) -> (&str, TableId) {
        (self.table.name(), self.table.id)
    }

    fn len(&self) -> usize {
        self.chunks.len()
    }

    fn lane(&self, n: usize) -> usize {
        self.chunks[n].lane
    }

    fn header(&self, n: usize) -> FrameHeader {
        let elements = self.chunks[n].bytes.len() / self.table.spec.dtype.size();
        request(self.table, FrameKind::Gather, elements, false)
    }

    fn payload(&mut self, n: usize) -> &[u8] {
        self.element = self.chunks[n].first.to_le_bytes();
        &self.element
    }

    fn answer(&mut self, n: usize, reply: &[u8]) -> Result<(), String> {
        let to = &mut self.out[self.chunks[n].bytes.clone()];
        if reply.len() != to.len() {
            let (due, got) = (to.len(), reply.len());
            return Err(format!(
                "a reply with {got} bytes of a range where {due} are due"
            ));
        }
        to.copy_from_slice(reply);
        Ok(())
    }
}

impl Lanes {
    /// Requests the locations of keys from their appliers, and blocks until all have answered. `rows` are indexes in
    /// `keys`, sorted by lane; with `create` the servers create missing rows. `found` gets the index and location of
    /// each row, in any order; a missing row has the empty location.
    pub(crate) fn resolve(
        &mut self,
        table: &TableState,
        keys: &[u64],
        rows: &[u32],
        create: bool,
        deadline: Deadline,
        mut found: impl FnMut(u32, RowLocation),
    ) -> Result<(), ClientError> {
        let mut requests = RowRequests {
            table,
            kind: FrameKind::Resolve,
            create,
            keys,
            rows,
            chunks: self.row_chunks(table, keys, rows, 8),
            each: 8,
            what: "locations",
            payload: Vec::new(),
            place: |row, bytes: &[u8]| {
                let Some(loc) = bytes.first_chunk() else {
                    unreachable!("a reply is cut into words of 8 bytes, not {}", bytes.len());
                };
                found(row, RowLocation(u64::from_le_bytes(*loc)));
            },
        };
        self.request_all("wait for locations", &mut requests, deadline)?;
        self.counters.resolved_keys += rows.len() as u64;
        Ok(())
    }

    /// Requests copies of rows from their appliers, and blocks until all have arrived. `rows` are indexes in
    /// `keys`, sorted by lane; with `create` the servers create missing rows, without it they return their
    /// initial values. `place` gets the index and bytes of each row, in any order. Fails if a row is too large
    /// for a reply.
    pub(crate) fn gather_rows(
        &mut self,
        table: &TableState,
        keys: &[u64],
        rows: &[u32],
        create: bool,
        deadline: Deadline,
        place: impl FnMut(u32, &[u8]),
    ) -> Result<(), ClientError> {
        let row_bytes = table.row.payload_bytes;
        let room = self.reply_bytes_max();
        if row_bytes > room {
            return Err(ClientError::Argument {
                op: "gather",
                table: table.name().to_owned(),
                what: format!(
                    "a row of {row_bytes} bytes; a reply takes {room}, a page more than the largest frame of \
                     a ring: raise ring_bytes or memory_budget"
                ),
            });
        }
        let mut requests = RowRequests {
            table,
            kind: FrameKind::Gather,
            create,
            keys,
            rows,
            chunks: self.row_chunks(table, keys, rows, row_bytes),
            each: row_bytes,
            what: "rows",
            payload: Vec::new(),
            place,
        };
        self.request_all("wait for copies of rows", &mut requests, deadline)?;
        self.counters.rows_gathered += rows.len() as u64;
        Ok(())
    }

    /// Most payload bytes that a reply holds on every lane: the least of all lanes.
    pub(crate) fn reply_bytes_max(&mut self) -> usize {
        let rooms = (0..self.len()).map(|lane| self.get(lane).replies.payload_bytes_max());
        rooms
            .min()
            .unwrap_or_else(|| unreachable!("a client has a lane"))
    }

    /// Cuts `rows` (indexes in `keys`, sorted by lane) into requests of one lane each. A request has at most as
    /// many keys as its frame and, with `bytes` bytes of reply for each, a reply slot hold. Skips keys past the
    /// end.
    fn row_chunks(
        &mut self,
        table: &TableState,
        keys: &[u64],
        rows: &[u32],
        bytes: usize,
    ) -> Vec<LaneRows> {
        let mut chunks: Vec<LaneRows> = Vec::new();
        for (n, &row) in rows.iter().enumerate() {
            let Some(lane) = table.lane_of(keys[row as usize]) else {
                continue;
            };
            let room = self.get(lane).ring.payload_bytes_max() / 8;
            let fits = self.get(lane).replies.payload_bytes_max() / bytes;
            let most = fits.min(room).min(FRAME_ROWS_MAX);
            match chunks.last_mut() {
                Some(last) if last.lane == lane && last.rows.len() < most => last.rows.end += 1,
                _ => chunks.push(LaneRows {
                    lane,
                    rows: n..n + 1,
                }),
            }
        }
        chunks
    }

    /// Requests copies of element ranges from their appliers, and blocks until they are in `out`, which begins
    /// at element `first`. The server copies complete blocks, each of one version. Fails if a reply cannot hold
    /// a block.
    pub(super) fn gather_ranges(
        &mut self,
        table: &TableState,
        parts: &[RangePart],
        first: u64,
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let bytes = table.spec.dtype.size();
        // Complete blocks: each is then of one version.
        let per_block = table
            .blocks()
            .map_or(1, |(layout, _)| layout.block_elements());
        let room = self.reply_bytes_max();
        let blocks = (room / bytes) as u64 / per_block;
        if blocks == 0 {
            let block = size(per_block) * bytes;
            let what = format!(
                "a block of {block} bytes, of which a server copies no part; a reply takes {room}, \
                 which follows from ring_bytes: give more"
            );
            return Err(table.wrong("pull_range", what));
        }
        let mut requests = RangeRequests {
            table,
            chunks: Vec::new(),
            element: [0; 8],
            out,
        };
        // First and last element of the request that is being extended.
        let (mut begun, mut ended) = (0, 0);
        for part in parts {
            let mut at = part.first;
            while at < part.end {
                // Adjacent parts of one lane are one request, if its reply fits a slot.
                let last = requests.chunks.last_mut();
                let joined = last.filter(|last| last.lane == part.part.lane && ended == at);
                let full = (begun / per_block + blocks) * per_block;
                match joined.filter(|_| at < full) {
                    Some(last) => {
                        ended = full.min(part.end);
                        last.bytes.end = size(ended - first) * bytes;
                    }
                    None => {
                        begun = at;
                        ended = ((at / per_block + blocks) * per_block).min(part.end);
                        requests.chunks.push(RangeChunk {
                            lane: part.part.lane,
                            first: at,
                            bytes: size(at - first) * bytes..size(ended - first) * bytes,
                        });
                    }
                }
                at = ended;
            }
        }
        self.request_all("wait for copies of ranges", &mut requests, deadline)
    }
}

//! Requests that an applier answers: locations of keys, and copies of rows and ranges.

use tidewater_lanes::num::{self, count};
use tidewater_protocol::layout::frame::{FrameFlags, FrameHeader, FrameKind, PARTITION_ANY};
use tidewater_protocol::layout::reply::{REPLY_HEADER_BYTES, ReplyHeader};
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::layout::session::REPLY_SLOT_BYTES;
use tidewater_protocol::limits::FRAME_ROWS_MAX;
use tidewater_runtime::clock::Deadline;

use crate::error::{ClientError, rejected};
use crate::lanes::{Interrupt, Lanes};
use crate::table::state::TableState;

/// Most payload bytes of a reply.
pub(crate) const REPLY_BYTES_MAX: usize = REPLY_SLOT_BYTES - REPLY_HEADER_BYTES;

/// Makes the header of a request, without payload.
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
        chk: 0,
    }
}

impl Lanes {
    /// Sends a request to the applier of a lane and waits for its reply; the payload is in `out`.
    /// Repeats the request if the lane was replaced meanwhile: requests are idempotent.
    pub(crate) fn exchange(
        &mut self,
        lane: usize,
        table: &TableState,
        mut header: FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<ReplyHeader, ClientError> {
        loop {
            let tag = self.wait("wait for a reply slot", deadline, |lanes| {
                let l = lanes.get(lane);
                let applied = l.ring.state().applied_seq;
                Ok(l.replies.begin(applied))
            })?;
            header.user_tag = tag;
            let fill = |to: &mut [u8]| to.copy_from_slice(payload);
            let built = self.build(lane, header, payload.len(), fill, deadline);
            let replies = &mut self.get(lane).replies;
            let seq = built.inspect_err(|_| replies.cancel(tag))?;
            replies.asked(tag, seq);
            let replaced = replies.replaced();
            if let Err(e) = self.send(lane, deadline) {
                // The frame is built: it is sent when the lane is recovered, and answered.
                self.get(lane).replies.abandon(tag);
                return Err(e);
            }
            let answer = self.wait("wait for a reply", deadline, |lanes| {
                let l = lanes.get(lane);
                let (session, mailbox) = (l.session, l.lane().mailbox().clone());
                let found = l.replies.take(&mailbox, session, tag, out);
                if found.is_none() && l.replies.replaced() != replaced {
                    // The reply may be lost with the old lane.
                    return Ok(Some(None));
                }
                Ok::<_, Interrupt>(found.map(Some))
            });
            match answer {
                Ok(Some(reply)) => return self.accept(lane, table, seq, reply),
                Ok(None) => self.get(lane).replies.abandon(tag),
                Err(e) => {
                    self.get(lane).replies.abandon(tag);
                    return Err(e);
                }
            }
        }
    }

    fn accept(
        &mut self,
        lane: usize,
        table: &TableState,
        seq: u64,
        reply: ReplyHeader,
    ) -> Result<ReplyHeader, ClientError> {
        match reply.refused {
            None => Ok(reply),
            Some(reason) => {
                let id = (seq, table.id.0);
                Err(rejected(table.name(), self.name(lane), id, reason))
            }
        }
    }

    /// Keys of one request if each is answered with `bytes`.
    fn keys_per_request(&mut self, lane: usize, bytes: usize) -> usize {
        let room = self.get(lane).ring.payload_bytes_max() / 8;
        (REPLY_BYTES_MAX / bytes).min(room).min(FRAME_ROWS_MAX)
    }

    /// Resolves the locations of keys, in the keys' order; `create` makes rows for unknown ones.
    pub(crate) fn resolve(
        &mut self,
        lane: usize,
        table: &TableState,
        keys: &[u64],
        create: bool,
        deadline: Deadline,
        mut found: impl FnMut(usize, RowLocation),
    ) -> Result<(), ClientError> {
        let most = self.keys_per_request(lane, 8);
        let mut reply = Vec::new();
        for (chunk_at, chunk) in keys.chunks(most).enumerate() {
            let payload: Vec<u8> = chunk.iter().flat_map(|k| k.to_le_bytes()).collect();
            let header = request(table, FrameKind::Resolve, chunk.len(), create);
            self.exchange(lane, table, header, &payload, &mut reply, deadline)?;
            let (locs, _) = reply.as_chunks::<8>();
            if locs.len() != chunk.len() {
                return Err(self.nonsense(lane, "locations", chunk.len(), locs.len()));
            }
            for (n, loc) in locs.iter().enumerate() {
                found(chunk_at * most + n, RowLocation(u64::from_le_bytes(*loc)));
            }
            self.counters.resolved_keys += chunk.len() as u64;
        }
        Ok(())
    }

    /// Has rows copied into replies; `place` receives each row's number in `keys` and its bytes.
    pub(crate) fn gather_rows(
        &mut self,
        lane: usize,
        table: &TableState,
        keys: &[u64],
        create: bool,
        deadline: Deadline,
        mut place: impl FnMut(usize, &[u8]),
    ) -> Result<(), ClientError> {
        let row_bytes = table.row.payload_bytes;
        let most = self.keys_per_request(lane, row_bytes);
        if most == 0 {
            return Err(ClientError::Argument {
                op: "gather",
                table: table.name().to_owned(),
                what: format!("a row of {row_bytes} bytes; a reply takes {REPLY_BYTES_MAX}"),
            });
        }
        let mut reply = Vec::new();
        for (chunk_at, chunk) in keys.chunks(most).enumerate() {
            let payload: Vec<u8> = chunk.iter().flat_map(|k| k.to_le_bytes()).collect();
            let header = request(table, FrameKind::Gather, chunk.len(), create);
            self.exchange(lane, table, header, &payload, &mut reply, deadline)?;
            if reply.len() != chunk.len() * row_bytes {
                return Err(self.nonsense(lane, "row bytes", chunk.len() * row_bytes, reply.len()));
            }
            for (n, row) in reply.chunks_exact(row_bytes).enumerate() {
                place(chunk_at * most + n, row);
            }
            self.counters.rows_gathered += chunk.len() as u64;
        }
        Ok(())
    }

    /// Has a range of a range table copied; it must lie in one partition.
    pub(crate) fn gather_range(
        &mut self,
        lane: usize,
        table: &TableState,
        first: u64,
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let size = table.spec.dtype.size();
        let mut reply = Vec::new();
        let mut at = first;
        let mut rest = out;
        while !rest.is_empty() {
            // Complete blocks: each is then of one version.
            let per_block = table
                .blocks()
                .map_or(1, |(layout, _)| layout.block_elements());
            let blocks = (REPLY_BYTES_MAX / size) as u64 / per_block;
            let stop = (at / per_block + blocks.max(1)) * per_block;
            let bytes = (num::size(stop - at) * size).min(rest.len());
            let (chunk, later) = rest.split_at_mut(bytes);
            rest = later;
            let count = chunk.len() / size;
            let header = request(table, FrameKind::Gather, count, false);
            self.exchange(lane, table, header, &at.to_le_bytes(), &mut reply, deadline)?;
            if reply.len() != chunk.len() {
                return Err(self.nonsense(lane, "range bytes", chunk.len(), reply.len()));
            }
            chunk.copy_from_slice(&reply);
            at += count as u64;
        }
        Ok(())
    }

    fn nonsense(&self, lane: usize, what: &str, due: usize, got: usize) -> ClientError {
        ClientError::Protocol {
            server: self.name(lane).to_owned(),
            what: format!("a reply with {got} {what} where {due} are due"),
        }
    }
}

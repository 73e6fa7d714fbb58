//! A session of handwritten frames with more repetitions than necessary: applied frames come again, at
//! other positions of the ring. (Tidewater's own client never repeats them while its server lives; a
//! client that has lost its position does.)

use tidewater_lanes::fabric::{ClientLane, INBOX_KEY, LaneError, Parker, RemoteAddr};
use tidewater_lanes::sim::{Rng, SimParker};
use tidewater_protocol::ids::{TableId, WorkerId, WorkerThread};
use tidewater_protocol::layout::frame::{
    FRAME_HEADER_BYTES, FrameFlags, FrameHeader, FrameKind, PARTITION_ANY, RowsPayload,
};
use tidewater_protocol::layout::line_bytes;
use tidewater_protocol::layout::lines::{CheckedU64, StateLine};
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{INBOX_RING_AT, INBOX_TAIL_AT, MAILBOX_STATE_AT};
use tidewater_protocol::table::{DType, PushOp};
use tidewater_runtime::clock::Deadline;

use super::{LONG, Link, OpenLane, Rig};

/// Pushes single rows of a sparse f64 table to one lane, one frame after the other.
pub struct RawPusher {
    link: Link,
    lane: Box<dyn ClientLane>,
    parker: SimParker,
    rng: Rng,
    ring: RingGeometry,
    table: TableId,
    key: u64,
    dim: usize,
    /// Amounts by sequence number, from 1.
    amounts: Vec<i64>,
    /// Ring position of the next frame.
    at: u64,
    state: StateLine,
}

impl RawPusher {
    /// Opens a session for worker `rank` with the server of `key`.
    pub fn new(rig: &Rig, rank: u32, table: TableId, key: u64, dim: usize, rng: Rng) -> Self {
        let parker = rig.world.parker();
        let (server, applier) = rig.owner(table, key);
        assert_eq!(applier, 0, "it opens the server's first lane only");
        let mut link = rig.link(
            server,
            WorkerThread::first(WorkerId(rank)),
            99,
            parker.waker(),
        );
        // If frames carry a checksum, a previously applied one passes for a leftover of an earlier lap
        // that will be overwritten. Without a checksum it is a duplicate.
        // Frames without a checksum need a transport that keeps WRITEs in order.
        (link.check_frames, link.in_order) = (false, true);
        let OpenLane { lane, .. } = link.open_lane(0);
        let ring = RingGeometry::new(rig.shape.ring_bytes).unwrap();
        Self {
            link,
            lane,
            parker,
            rng,
            ring,
            table,
            key,
            dim,
            amounts: Vec::new(),
            at: 0,
            state: StateLine::default(),
        }
    }

    /// Pushes `amount` to every column of its row; returns when that is applied.
    pub fn push(&mut self, amount: i64) {
        self.amounts.push(amount);
        let seq = self.amounts.len() as u64;
        let deadline = Deadline::after(LONG);
        let mut from = seq;
        while self.try_push(from, seq, deadline).is_err() {
            let open = self.link.recover_lane(0);
            self.lane = open.lane;
            self.at = open.state.head_bytes;
            self.state = open.state;
            // It ignores the reported position and goes back further than necessary.
            from = (open.state.applied_seq + 1).saturating_sub(self.rng.below(4));
            from = from.clamp(1, seq);
        }
    }

    fn try_push(&mut self, from: u64, to: u64, deadline: Deadline) -> Result<(), LaneError> {
        for seq in from..=to {
            self.write(seq)?;
            if self.rng.below(3) == 0 {
                let earlier = 1 + self.rng.below(seq);
                self.write(earlier)?;
            }
        }
        self.signal()?;
        while self.state.applied_seq < to {
            assert!(!deadline.passed(), "frame {to} is never acknowledged");
            self.parker.prepare_park();
            if !self.look()? {
                self.parker.park_until(deadline);
            }
            self.parker.cancel_park();
        }
        Ok(())
    }

    fn look(&mut self) -> Result<bool, LaneError> {
        self.lane.poll()?;
        let line = self.lane.mailbox().line(MAILBOX_STATE_AT);
        let told = StateLine::from_line(&line, self.link.session.0);
        let news = told.filter(|t| t.applied_seq > self.state.applied_seq);
        self.state = news.unwrap_or(self.state);
        Ok(news.is_some())
    }

    fn header(&self, kind: FrameKind, seq: u64, payload_len: usize) -> FrameHeader {
        FrameHeader {
            kind,
            flags: FrameFlags::default(),
            seq,
            session: self.link.session.0,
            payload_len: payload_len as u32,
            count: 1,
            table: self.table.0,
            partition: PARTITION_ANY,
            clock: 0,
            user_tag: 0,
            checksum: 0,
        }
    }

    fn write(&mut self, seq: u64) -> Result<(), LaneError> {
        let parts = RowsPayload::new(1, self.dim * 8, false);
        let mut payload = vec![0; parts.len];
        payload[..8].copy_from_slice(&self.key.to_le_bytes());
        let amount = self.amounts[seq as usize - 1] as f64;
        for value in payload[parts.values_at..].chunks_exact_mut(8) {
            value.copy_from_slice(&amount.to_le_bytes());
        }
        let mut header = self.header(FrameKind::PushRows, seq, parts.len);
        header.flags.op = Some(PushOp::Sum);
        header.flags.dtype = Some(DType::F64);
        if self.ring.to_wrap(self.at) < header.ring_bytes() {
            self.pad(seq)?;
        }
        let mut frame = line_bytes(&header.to_line()).to_vec();
        frame.extend(&payload);
        frame.resize(header.ring_bytes() as usize, 0);
        self.put(&frame)?;
        self.at += header.ring_bytes();
        Ok(())
    }

    fn pad(&mut self, seq: u64) -> Result<(), LaneError> {
        let header = self.header(FrameKind::Pad, seq, 0);
        let line: [u8; FRAME_HEADER_BYTES] = line_bytes(&header.to_line());
        self.put(&line)?;
        self.at += self.ring.to_wrap(self.at);
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), LaneError> {
        let addr = INBOX_RING_AT as u64 + self.ring.offset(self.at);
        let key = INBOX_KEY;
        self.lane.write(RemoteAddr { key, addr }, bytes)
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        let CheckedU64([value, checksum]) = CheckedU64::new(self.at, self.link.session.0);
        let mut cell = [0; 16];
        cell[..8].copy_from_slice(&value.to_le_bytes());
        cell[8..].copy_from_slice(&checksum.to_le_bytes());
        let (key, addr) = (INBOX_KEY, INBOX_TAIL_AT as u64);
        self.lane.write_signal(RemoteAddr { key, addr }, &cell)
    }
}

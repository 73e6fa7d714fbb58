//! A session without a client: handwritten frames that no Tidewater client would send.

use tidewater::link::{OpenLane, ServerLink};
use tidewater_lanes::fabric::{ClientLane, INBOX_KEY, RemoteAddr};
use tidewater_lanes::wake::OsParker;
use tidewater_protocol::ids::SessionId;
use tidewater_protocol::layout::frame::{
    FRAME_HEADER_BYTES, FrameFlags, FrameHeader, FrameKind, PARTITION_ANY, RowsPayload,
};
use tidewater_protocol::layout::line_bytes;
use tidewater_protocol::layout::lines::{CheckedU64, StateLine};
use tidewater_protocol::layout::session::{INBOX_RING_AT, INBOX_TAIL_AT, MAILBOX_STATE_AT};
use tidewater_protocol::table::{DType, PushOp};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::wait::wait_until;

use super::{Cluster, Wiring};

/// One session with server 0; only its lane to applier 0 is used.
pub struct RawSession {
    /// Number of the session.
    pub session: SessionId,
    /// Lane to the applier.
    pub lane: Box<dyn ClientLane>,
    parker: OsParker,
    _others: Vec<OpenLane>,
    _link: Box<dyn ServerLink>,
}

impl Cluster {
    /// Opens a session of worker `rank`.
    pub fn raw(&self, rank: u32) -> RawSession {
        let mut parker = OsParker::new(std::time::Duration::from_micros(20)).unwrap();
        let mut link = self.link(0, rank, &parker, &Wiring::default());
        let mut lanes = link.open(&mut parker);
        RawSession {
            session: link.session(),
            lane: lanes.remove(0).lane,
            parker,
            _others: lanes,
            _link: Box::new(link),
        }
    }
}

impl RawSession {
    /// Builds a push that adds `values` (one row of i64 each) to `keys`, as frame `seq`.
    pub fn push(&self, table: u32, seq: u64, keys: &[u64], values: &[i64]) -> Vec<u8> {
        let row_bytes = values.len() / keys.len() * 8;
        let parts = RowsPayload::new(keys.len(), row_bytes, false);
        let mut payload = vec![0; parts.len];
        for (n, key) in keys.iter().enumerate() {
            payload[n * 8..n * 8 + 8].copy_from_slice(&key.to_le_bytes());
        }
        for (n, value) in values.iter().enumerate() {
            let at = parts.values_at + n * 8;
            payload[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let header = FrameHeader {
            kind: FrameKind::PushRows,
            flags: FrameFlags {
                op: Some(PushOp::Sum),
                dtype: Some(DType::I64),
                ..FrameFlags::default()
            },
            seq,
            session: self.session.0,
            payload_len: payload.len() as u32,
            count: keys.len() as u32,
            table,
            partition: PARTITION_ANY,
            clock: 0,
            user_tag: 0,
            checksum: 0,
        };
        let mut frame = line_bytes(&header.to_line()).to_vec();
        frame.extend_from_slice(&payload);
        frame.resize(FRAME_HEADER_BYTES + payload.len().next_multiple_of(64), 0);
        frame
    }

    /// Writes bytes into the ring and moves the tail past them.
    pub fn send(&mut self, at: u64, bytes: &[u8]) -> u64 {
        let to = |addr: u64| RemoteAddr {
            key: INBOX_KEY,
            addr,
        };
        let tail = at + bytes.len() as u64;
        self.lane
            .write(to(INBOX_RING_AT as u64 + at), bytes)
            .unwrap();
        let [value, checksum] = CheckedU64::new(tail, self.session.0).0;
        let mut cell = [0; 16];
        cell[..8].copy_from_slice(&value.to_le_bytes());
        cell[8..].copy_from_slice(&checksum.to_le_bytes());
        self.lane
            .write_signal(to(INBOX_TAIL_AT as u64), &cell)
            .unwrap();
        tail
    }

    /// Waits until the server has consumed the ring up to `head`; returns the status at that point.
    pub fn wait_consumed(&mut self, head: u64) -> StateLine {
        let deadline = Deadline::after(std::time::Duration::from_secs(10));
        let found = wait_until(&mut self.parker, deadline, || {
            self.lane.poll()?;
            let line = self.lane.mailbox().line(MAILBOX_STATE_AT);
            let state = StateLine::from_line(&line, self.session.0);
            Ok::<_, tidewater_lanes::fabric::LaneError>(state.filter(|s| s.head_bytes >= head))
        });
        found.unwrap().expect("the server consumes what was sent")
    }
}

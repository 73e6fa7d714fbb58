//! The client's half of one ring: staging, credits, sequence numbers.
//!
//! Frames are built in a staging ring with the offsets of the real one and written from there. A frame
//! stays in staging until the server has applied it, so that a broken lane can be re-written: same
//! offsets, same sequence numbers.

use tidewater_lanes::fabric::{ClientLane, INBOX_KEY, LaneError, RemoteAddr};
use tidewater_lanes::num::{count, size};
use tidewater_protocol::ids::SessionId;
use tidewater_protocol::layout::frame::{
    FRAME_HEADER_BYTES, FrameFlags, FrameHeader, FrameKind, PARTITION_ANY,
};
use tidewater_protocol::layout::lines::{CheckedU64, StateLine};
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{INBOX_RING_AT, INBOX_TAIL_AT};
use tidewater_protocol::layout::{LINE_BYTES, line_bytes};
use tidewater_protocol::limits::FRAMES_IN_FLIGHT_MAX;

/// Client's end of one push ring: staging buffer, credits and sequence numbers.
#[derive(Debug)]
pub(crate) struct PushRing {
    session: SessionId,
    ring: RingGeometry,
    staging: Vec<u8>,
    check_frames: bool,
    /// End of the built frames, in bytes since the session began.
    tail: u64,
    /// End of the frames that were written to the lane, in bytes since the session began.
    written: u64,
    /// Tail (bytes) that was last sent to the applier.
    signalled: u64,
    /// Sequence number after the last frame that was signalled to the applier.
    signalled_seq: u64,
    /// Address of the push counter, if pushes are counted.
    counter: Option<RemoteAddr>,
    /// Number of push frames that were built and not yet added to the push counter.
    uncounted: u64,
    next_seq: u64,
    state: StateLine,
}

impl PushRing {
    pub(crate) fn new(
        session: SessionId,
        ring: RingGeometry,
        check_frames: bool,
        counter: Option<RemoteAddr>,
    ) -> Self {
        Self {
            session,
            ring,
            staging: vec![0; size(ring.bytes())],
            check_frames,
            tail: 0,
            written: 0,
            signalled: 0,
            signalled_seq: 1,
            counter,
            uncounted: 0,
            next_seq: 1,
            state: StateLine::default(),
        }
    }

    /// Most payload bytes of one frame in this ring.
    pub(crate) const fn payload_bytes_max(&self) -> usize {
        size(self.ring.frame_bytes_max()) - FRAME_HEADER_BYTES
    }

    /// Remote address of the counter word of this client's pushes; `None` if pushes are not counted.
    pub(crate) const fn counter(&self) -> Option<RemoteAddr> {
        self.counter
    }

    /// Last accepted status of the server: applied frames, freed bytes, refusals.
    pub(crate) const fn state(&self) -> &StateLine {
        &self.state
    }

    /// Whether a status of the server differs from the known one and is plausible. It is not if it goes back, passes
    /// the sent frames, or ends inside a cache line; it is then ignored.
    pub(crate) fn is_news(&self, state: &StateLine) -> bool {
        let old = &self.state;
        let on = state.applied_seq >= old.applied_seq
            && state.head_bytes >= old.head_bytes
            && state.durable_seq >= old.durable_seq;
        let sent = state.head_bytes <= self.tail
            && state.head_bytes.is_multiple_of(LINE_BYTES as u64)
            && state.applied_seq < self.next_seq
            && state.durable_seq < self.next_seq;
        state != old && on && sent
    }

    /// Stores a status of the server if [`Self::is_news`] accepts it. Returns whether it did.
    pub(crate) fn learn(&mut self, state: StateLine) -> bool {
        let news = self.is_news(&state);
        if news {
            self.state = state;
        }
        news
    }

    /// Whether a frame with a payload of this many bytes has room now: enough free bytes, and fewer than
    /// `FRAMES_IN_FLIGHT_MAX` unanswered frames.
    pub(crate) fn has_room(&self, payload_len: usize) -> bool {
        let len = frame_bytes(payload_len);
        self.next_seq - self.state.applied_seq <= FRAMES_IN_FLIGHT_MAX
            && self
                .ring
                .place(self.state.head_bytes, self.tail, len)
                .is_some()
    }

    /// Builds a frame in the staging buffer, and sends nothing. `fill` must write all of its payload, which holds
    /// old bytes before. Returns its sequence number; `None` if the ring has no room.
    pub(crate) fn build(
        &mut self,
        mut header: FrameHeader,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<u64> {
        if !self.has_room(payload_len) {
            return None;
        }
        let len = frame_bytes(payload_len);
        let place = self.ring.place(self.state.head_bytes, self.tail, len)?;
        if place.pad > 0 {
            self.pad();
        }
        header.session = self.session.0;
        header.seq = self.next_seq;
        header.payload_len = count(payload_len);
        header.checksum = 0;
        let at = size(self.ring.offset(place.at));
        let frame = self.staging.get_mut(at..at + size(len))?;
        let (head, body) = frame.split_at_mut(FRAME_HEADER_BYTES);
        let (payload, rest) = body.split_at_mut_checked(payload_len)?;
        rest.fill(0);
        fill(payload);
        if self.check_frames {
            header.checksum = header.hasher().finish_bytes(payload);
        }
        head.copy_from_slice(&line_bytes(&header.to_line()));
        self.tail = place.at + len;
        self.next_seq += 1;
        self.uncounted += u64::from(header.kind.is_push());
        Some(header.seq)
    }

    fn pad(&mut self) {
        let mut header = FrameHeader {
            kind: FrameKind::Pad,
            flags: FrameFlags::default(),
            seq: self.next_seq,
            session: self.session.0,
            payload_len: 0,
            count: 0,
            table: 0,
            partition: PARTITION_ANY,
            clock: 0,
            user_tag: 0,
            checksum: 0,
        };
        if self.check_frames {
            header.checksum = header.hasher().finish(&[]);
        }
        let at = size(self.ring.offset(self.tail));
        if let Some(head) = self.staging.get_mut(at..at + FRAME_HEADER_BYTES) {
            head.copy_from_slice(&line_bytes(&header.to_line()));
        }
        self.tail += self.ring.to_wrap(self.tail);
    }

    /// Number of bytes that were built and not signalled to the applier.
    pub(crate) const fn unsent(&self) -> u64 {
        self.tail - self.signalled
    }

    /// Number of frames that were built in the ring and not signalled to the applier.
    pub(crate) const fn unsent_frames(&self) -> u64 {
        self.next_seq - self.signalled_seq
    }

    /// Writes built frames to the server's ring, and signals the new tail (their end) to the applier. After an error
    /// the frames stay in staging, and `resend` writes them to the recovered lane.
    pub(crate) fn send(&mut self, lane: &mut dyn ClientLane) -> Result<(), LaneError> {
        self.write_frames(lane)?;
        if self.signalled != self.tail {
            self.signal(lane)?;
        }
        Ok(())
    }

    fn write_frames(&mut self, lane: &mut dyn ClientLane) -> Result<(), LaneError> {
        while self.written < self.tail {
            let at = self.ring.offset(self.written);
            let len = (self.tail - self.written).min(self.ring.to_wrap(self.written));
            let bytes = self
                .staging
                .get(size(at)..size(at + len))
                .unwrap_or_default();
            let to = RemoteAddr {
                key: INBOX_KEY,
                addr: INBOX_RING_AT as u64 + at,
            };
            lane.write(to, bytes)?;
            self.written += len;
        }
        Ok(())
    }

    fn signal(&mut self, lane: &mut dyn ClientLane) -> Result<(), LaneError> {
        let mut cell = [0; 16];
        let [value, checksum] = CheckedU64::new(self.tail, self.session.0).0;
        cell[..8].copy_from_slice(&value.to_le_bytes());
        cell[8..].copy_from_slice(&checksum.to_le_bytes());
        let to = RemoteAddr {
            key: INBOX_KEY,
            addr: INBOX_TAIL_AT as u64,
        };
        match (self.counter, std::mem::take(&mut self.uncounted)) {
            // A failure of the lane now may come after the count. It is not repeated: no frame counts
            // twice.
            (Some(counter), add @ 1..) => lane.write_signal_count(to, &cell, counter, add)?,
            _ => lane.write_signal(to, &cell)?,
        }
        (self.signalled, self.signalled_seq) = (self.tail, self.next_seq);
        Ok(())
    }

    /// Re-sends frames after a lane was recovered. The server has consumed `head_bytes` bytes; everything behind
    /// them is written again, at the same offsets and with the same sequence numbers.
    pub(crate) fn resend(
        &mut self,
        head_bytes: u64,
        lane: &mut dyn ClientLane,
    ) -> Result<(), LaneError> {
        // Complete cache lines, whatever a server reports.
        let head = head_bytes - head_bytes % LINE_BYTES as u64;
        self.written = head.clamp(self.state.head_bytes, self.tail);
        self.write_frames(lane)?;
        self.signal(lane)
    }

    /// Whether the server has answered (applied or refused) every frame that was built.
    pub(crate) const fn is_drained(&self) -> bool {
        self.state.applied_seq + 1 >= self.next_seq
    }

    /// Whether the server has answered every frame that was signalled to it; held frames await no answer.
    pub(crate) const fn is_answered(&self) -> bool {
        self.state.applied_seq + 1 >= self.signalled_seq
    }

    /// Whether the server has not consumed all signalled bytes yet, by its last status.
    pub(crate) const fn is_unanswered(&self) -> bool {
        self.state.head_bytes < self.signalled
    }

    /// Text with the numbers of answered and of built frames, for messages.
    pub(crate) fn describe(&self) -> String {
        format!("{} of {} frames", self.state.applied_seq, self.next_seq - 1)
    }
}

const fn frame_bytes(payload_len: usize) -> u64 {
    (FRAME_HEADER_BYTES + payload_len.next_multiple_of(64)) as u64
}

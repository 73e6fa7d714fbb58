//! The server's end of a ring: which bytes are a frame, which frame comes next, and the records for
//! the client about it.
//!
//! The memory belongs to the client and may change at any moment. Header and payload are copied out
//! before anything is checked, and only the copy is used.

mod record;

use std::collections::VecDeque;

use tidewater_lanes::fabric::{Inbox, LaneError, RegionTableView, ServerLane};
use tidewater_protocol::ids::SessionId;
use tidewater_protocol::layout::frame::{FRAME_HEADER_BYTES, FrameError, FrameHeader, FrameKind};
use tidewater_protocol::layout::lines::{Reject, StateLine};
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::layout::session::{MAILBOX_STATE_AT, mailbox_reject_at};
use tidewater_protocol::layout::{LINE_BYTES, line_bytes};
use tidewater_protocol::limits::{FRAME_LATE_MAX, FRAMES_IN_FLIGHT_MAX};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::Remote;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::publish::publish;

use crate::namespace::FrameSender;
use crate::store::memory::ServerMemory;
use crate::store::redo::PushName;
use crate::store::status::StatusLine;
use crate::store::{ResumeError, StoreError};
pub use record::RingRecord;
use record::{KeptRing, rings_of};

/// Reason why a session is ended: its ring is out of step, or another process writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The tail went back, moved too far, or is not a multiple of 64 bytes.
    #[error("tail {tail} is impossible: {consumed} bytes consumed, ring of {ring}")]
    Tail {
        /// Tail that was read.
        tail: u64,
        /// Bytes consumed so far.
        consumed: u64,
        /// Size of the ring in bytes.
        ring: u64,
    },
    /// The bytes at the read position are not a valid frame.
    #[error("at byte {at}: {why}")]
    Frame {
        /// Position in the ring's stream, in bytes.
        at: u64,
        /// The check that failed.
        why: FrameError,
    },
    /// The frame carries the nonce of another session. Only where frames carry no checksum.
    #[error("frame at byte {at} carries session {session:#x}")]
    Session {
        /// Position in the ring's stream, in bytes.
        at: u64,
        /// Session in the frame's header.
        session: u64,
    },
    /// The frame is longer than allowed, ends behind the tail, or crosses the wrap point. Only where frames
    /// carry no checksum.
    #[error("frame at byte {at} of {len} bytes does not fit")]
    Length {
        /// Position in the ring's stream, in bytes.
        at: u64,
        /// Length of the frame in bytes, its header included.
        len: u64,
    },
    /// A frame below an accepted tail has not arrived in time.
    #[error(
        "the frame at byte {at} has not come {late:?} after its tail: its client writes none, or its \
         device has lost it",
        late = FRAME_LATE_MAX
    )]
    Late {
        /// Position in the ring's stream, in bytes.
        at: u64,
    },
    /// Frames are missing in the sequence.
    #[error("frame {seq} where {expected} is due")]
    Sequence {
        /// Sequence number in the frame.
        seq: u64,
        /// Sequence number that is due.
        expected: u64,
    },
}

/// Result of [`Ring::next`]: what the applier finds at the ring's read position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// No frame, or one that is not complete yet.
    Empty,
    /// Padding, or a frame that was applied before, was skipped. Reported one by one, so that a client that
    /// writes nothing else cannot keep its applier from the other rings.
    Skipped,
    /// A complete frame, by its header; its payload is in the buffer that the caller passed.
    Frame(FrameHeader),
}

/// Server end of one session's push ring, with its lane (connection to the client) and progress. Used by its
/// applier only.
pub struct Ring {
    /// Nonce of the session.
    pub session: SessionId,
    /// Worker thread and job that push into the ring.
    pub sender: FrameSender,
    /// Server end of the lane to the client; `None` while the lane is broken.
    pub port: Option<Box<dyn ServerLane>>,
    /// Lane that is being ended: its device may still place bytes in the inbox.
    ending: Option<Box<dyn ServerLane>>,
    /// Set while the next frame waits for the turn of its rank: the value of `Engine::changes` when the
    /// frame was polled.
    pub waiting: Option<u64>,
    inbox: Inbox,
    consumed: u64,
    /// Deadline for the frame below an accepted tail; set while the frame has not arrived.
    late: Option<Deadline>,
    /// Number of frames that had not arrived when their tail was read.
    late_frames: u64,
    state: StateLine,
    published: StateLine,
    rejects: VecDeque<Reject>,
    check_frames: bool,
    status: StatusLine,
    /// Copy of the ring's state for a process that takes over after a crash, where the memory outlives the
    /// process.
    kept: Option<KeptRing>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut s = f.debug_struct("Ring");
        s.field("session", &self.session)
            .field("sender", &self.sender)
            .field("state", &self.state);
        s.finish_non_exhaustive()
    }
}

/// Session of a ring, its sender, and the kind of its checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingOwner {
    /// Nonce of the session.
    pub session: SessionId,
    /// Worker thread and job that push into the ring.
    pub sender: FrameSender,
    /// Whether frames carry a checksum: where the transport does not place bytes in order.
    pub check_frames: bool,
}

impl Ring {
    /// Creates a ring at sequence number 0 and without a lane, with its status record in public memory. Sets the
    /// tail of `inbox` to 0.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub fn new(owner: RingOwner, inbox: Inbox, memory: &ServerMemory) -> Result<Self, StoreError> {
        let state = StateLine::default();
        let kept = memory
            .is_held()
            .then(|| KeptRing::new(memory))
            .transpose()?;
        match memory.status_line(&state.to_line(owner.session.0)) {
            Ok(status) => Ok(Self::at(owner, inbox, status, state, kept)),
            Err(e) => {
                if let Some(kept) = kept {
                    kept.release(memory)?;
                }
                Err(e)
            }
        }
    }

    /// Creates a ring at the position of `state`, without a lane, and sets the tail of `inbox` to this position.
    fn at(
        owner: RingOwner,
        inbox: Inbox,
        status: StatusLine,
        state: StateLine,
        kept: Option<KeptRing>,
    ) -> Self {
        inbox.reset_tail(state.head_bytes);
        Self {
            session: owner.session,
            sender: owner.sender,
            port: None,
            ending: None,
            waiting: None,
            inbox,
            consumed: state.head_bytes,
            late: None,
            late_frames: 0,
            state,
            published: state,
            rejects: VecDeque::new(),
            check_frames: owner.check_frames,
            status,
            kept,
        }
    }

    /// Enters the applier `applier` in the ring's record, which describes the ring where memory outlives the
    /// process. From now on a successor of the applier takes over the ring after a crash. No effect where the
    /// memory ends with the process.
    pub(crate) fn begin(&self, applier: u32) {
        if let Some(kept) = &self.kept {
            kept.begin(RingRecord {
                session: self.session,
                sender: self.sender,
                check_frames: self.check_frames,
                ring_bytes: self.inbox.ring().bytes(),
                status_at: self.status.at,
                applier,
            });
        }
    }

    /// Resumes the rings of a dead applier, without lanes (connections). Each ring comes with the number of
    /// rows of its next frame that were applied before the crash: the caller must not apply these again.
    /// `push` is the push that the applier began last, with the number of its applied rows. `inbox` creates the
    /// inbox of a ring from its record. For applier 0 the call also frees records that no applier had taken.
    ///
    /// # Errors
    /// [`ResumeError`] when a record is damaged or `inbox` fails.
    pub(crate) fn resume_all(
        memory: &ServerMemory,
        applier: u32,
        push: Option<(PushName, u32)>,
        mut inbox: impl FnMut(&RingRecord) -> Result<Inbox, StoreError>,
    ) -> Result<Vec<(Self, u32)>, ResumeError> {
        let mut rings = Vec::new();
        for (record, kept) in rings_of(memory, applier)? {
            let state = kept.state();
            let next = state.applied_seq + 1;
            let name = (record.session.0, next);
            if let Some((push, rows)) = push
                && (push.session, push.seq) == name
                && rows > kept.cut(next)
            {
                kept.note_cut(next, rows);
            }
            let rows = kept.cut(next);
            let status = memory.take_status_line(record.status_at);
            let status = status.ok_or_else(|| ResumeError::Damaged {
                what: format!("session {:#x} has no status record", record.session.0),
            })?;
            let owner = RingOwner {
                session: record.session,
                sender: record.sender,
                check_frames: record.check_frames,
            };
            let rejects = kept.rejects(record.session, state.applied_seq);
            let mut ring = Self::at(owner, inbox(&record)?, status, state, Some(kept));
            ring.rejects = rejects.into();
            ring.store_public(memory);
            rings.push((ring, rows));
        }
        Ok(rings)
    }

    fn store_public(&self, memory: &ServerMemory) {
        let line = self.state.to_line(self.session.0);
        if let Ok(words) = memory.public.region().words_mut(self.status.at, LINE_BYTES) {
            publish(words, 0, &line_bytes(&line));
        }
    }

    /// Polls the lane: carries out what the client requested. Returns whether anything moved; `None` while
    /// the lane is broken.
    pub fn poll(&mut self, exports: &mut RegionTableView) -> Option<Result<bool, LaneError>> {
        self.port
            .as_mut()
            .map(|port| port.poll(exports, &self.inbox))
    }

    /// Returns the status that the client has or will get: sequence numbers, read position, number of
    /// refused frames.
    pub const fn state(&self) -> StateLine {
        self.state
    }

    /// Returns region key and address of the public status record, which the client reads.
    pub const fn status(&self) -> Remote {
        self.status.remote()
    }

    /// Whether frames of this ring carry a checksum, because the transport does not place bytes in order.
    pub const fn check_frames(&self) -> bool {
        self.check_frames
    }

    /// Returns the inbox: the memory that the client writes frames to.
    pub const fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Reads the next frame of the ring: checks its header and replaces `payload` by its payload. The ring
    /// does not advance over the frame before [`Ring::done`] or [`Ring::reject`]: until then each call
    /// returns this frame again. Over padding and duplicates the ring advances here.
    ///
    /// # Errors
    /// `RingError`: the caller must end the session.
    pub fn next(&mut self, payload: &mut Vec<u8>) -> Result<Next, RingError> {
        // A torn tail has no meaning and will be complete soon.
        let Some(tail) = self.inbox.tail() else {
            return Ok(Next::Empty);
        };
        let (consumed, ring) = (self.consumed, self.inbox.ring());
        if !ring.tail_is_sane(consumed, tail) {
            return Err(RingError::Tail {
                tail,
                consumed,
                ring: ring.bytes(),
            });
        }
        if tail == consumed {
            return Ok(Next::Empty);
        }
        let line = self.inbox.header(consumed);
        let header = match FrameHeader::from_line(&line) {
            Ok(header) => header,
            // Where bytes may be late, an invalid header may still become valid.
            Err(_) if self.check_frames => return self.not_yet(),
            Err(why) => return Err(RingError::Frame { at: consumed, why }),
        };
        let len = match self.frame_len(&header, tail)? {
            Some(len) => len,
            None => return self.not_yet(),
        };
        self.copy_payload(&header, payload);
        if self.check_frames && header.hasher().finish_bytes(payload) != header.checksum {
            return self.not_yet();
        }
        let expected = self.state.applied_seq + 1;
        if self.check_frames && header.seq < expected {
            // Complete, but of an earlier lap of the ring: the frame here has yet to arrive.
            return self.not_yet();
        }
        self.late = None;
        let duplicate = header.seq < expected && !mutants::on(Mutant::SkipDuplicateCheck);
        if header.kind == FrameKind::Pad || duplicate {
            self.skip(len);
            if let Some(kept) = &self.kept {
                kept.skipped(self.state.head_bytes);
            }
            return Ok(Next::Skipped);
        }
        if header.seq > expected {
            return Err(RingError::Sequence {
                seq: header.seq,
                expected,
            });
        }
        Ok(Next::Frame(header))
    }

    /// Handles a tail with a frame that has not arrived: counts the frame as late at the first call, and
    /// returns `Next::Empty`; an error once `FRAME_LATE_MAX` has passed since that call. The tail was written
    /// after the frame, on a connection that keeps order, so that only the way from the device to memory is
    /// left. Cost: a reading of the clock.
    fn not_yet(&mut self) -> Result<Next, RingError> {
        let at = self.consumed;
        self.late_frames += u64::from(self.late.is_none());
        let late = || Deadline::after(FRAME_LATE_MAX);
        match self.late.get_or_insert_with(late).passed() {
            true => Err(RingError::Late { at }),
            false => Ok(Next::Empty),
        }
    }

    /// Number of frames that had not arrived when their tail had: the tail overtook them between the device
    /// and memory.
    pub const fn late_frames(&self) -> u64 {
        self.late_frames
    }

    /// Returns the bytes that a frame takes in the ring, header included. A header of another session or with
    /// an impossible length gives `None` where frames carry a checksum, since the frame may still arrive, and
    /// an error elsewhere.
    fn frame_len(&self, header: &FrameHeader, tail: u64) -> Result<Option<u64>, RingError> {
        let at = self.consumed;
        let ring = self.inbox.ring();
        if header.session != self.session.0 {
            if self.check_frames {
                return Ok(None);
            }
            return Err(RingError::Session {
                at,
                session: header.session,
            });
        }
        let len = match header.kind {
            FrameKind::Pad => ring.to_wrap(at),
            _ => header.ring_bytes(),
        };
        let fits = len <= tail - at
            && len <= ring.to_wrap(at)
            && (header.kind == FrameKind::Pad || len <= ring.frame_bytes_max());
        match (fits, self.check_frames) {
            (true, _) => Ok(Some(len)),
            (false, true) => Ok(None),
            (false, false) => Err(RingError::Length { at, len }),
        }
    }

    fn copy_payload(&self, header: &FrameHeader, payload: &mut Vec<u8>) {
        let len = if header.kind == FrameKind::Pad {
            0
        } else {
            header.payload_len as usize
        };
        payload.resize(len, 0);
        self.inbox
            .payload(self.consumed, FRAME_HEADER_BYTES, len)
            .copy_out(0, payload);
    }

    fn skip(&mut self, len: u64) {
        self.consumed += len;
        self.state.head_bytes = self.consumed;
    }

    /// Advances the ring over a frame that has taken effect, or is held until a tick, and counts it as
    /// applied.
    pub fn done(&mut self, header: &FrameHeader) {
        self.state.applied_seq = header.seq;
        self.state.durable_seq = header.seq;
        self.skip(header.ring_bytes());
        if let Some(kept) = &self.kept {
            kept.count(&self.state);
        }
    }

    /// Counts a frame as applied in the copy of the ring's state for a successor process (`kept`) before it is
    /// applied, so that a crash loses it. No effect without that copy. Only for a mutant: a deliberate defect that
    /// tests must detect.
    pub(crate) fn count_early(&self, header: &FrameHeader) {
        if let Some(kept) = &self.kept {
            kept.count(&StateLine {
                applied_seq: header.seq,
                head_bytes: self.state.head_bytes + header.ring_bytes(),
                ..self.state
            });
        }
    }

    /// Refuses the frame and advances the ring over it: the frame's ticket fails, nothing else does. The
    /// reject record is written before the status record that counts it.
    ///
    /// # Errors
    /// [`LaneError`] when the reject record could not be sent. The frame is refused all the same;
    /// [`Ring::attach`] sends the record again.
    pub fn reject(&mut self, header: &FrameHeader, reason: RejectReason) -> Result<(), LaneError> {
        let reject = Reject {
            seq: header.seq,
            table: header.table,
            reason,
        };
        self.rejects.push_back(reject);
        if let Some(kept) = &self.kept {
            kept.refuse(&reject, self.session);
        }
        self.state.rejected += 1;
        self.done(header);
        self.forget_rejects();
        let line = line_bytes(&reject.to_line(self.session.0));
        self.post(mailbox_reject_at(reject.seq), &line)
    }

    /// Drops the rejects of frames that are `FRAMES_IN_FLIGHT_MAX` or more behind the last applied one: the
    /// client has seen these. Two rejects that are kept never share a record.
    fn forget_rejects(&mut self) {
        let applied = self.state.applied_seq;
        let old = |r: &Reject| r.seq.saturating_add(FRAMES_IN_FLIGHT_MAX) <= applied;
        while self.rejects.front().is_some_and(old) {
            self.rejects.pop_front();
        }
    }

    /// Writes `bytes` at byte `at`, a multiple of 8, of the client's mailbox. The lane may keep them until it is
    /// signalled. No effect while the lane is broken: what matters is sent again after the recovery.
    ///
    /// # Errors
    /// [`LaneError`] when the lane has failed: the caller ends it.
    pub fn post(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneError> {
        match &mut self.port {
            Some(port) => port.post(at, bytes),
            None => Ok(()),
        }
    }

    /// Publishes the ring's state: in the status record in public memory and, unless the lane is broken, in
    /// the client's mailbox. Returns false, and writes nothing, if the state has not changed since the last
    /// call. The client reads the public record when its mailbox shows no progress.
    ///
    /// # Errors
    /// [`LaneError`] when the lane has failed: the public record is written, the mailbox is not.
    pub fn publish(&mut self, memory: &ServerMemory) -> Result<bool, LaneError> {
        if self.state == self.published {
            return Ok(false);
        }
        self.published = self.state;
        self.store_public(memory);
        let line = self.state.to_line(self.session.0);
        self.post(MAILBOX_STATE_AT, &line_bytes(&line))?;
        Ok(true)
    }

    /// First half of a recovery: sets the tail to the consumed position and returns the ring's state, from
    /// which the client sends again. The caller has ended the lane before, so that nothing arrives any more,
    /// and has consumed every complete frame.
    pub fn rewind(&mut self) -> StateLine {
        self.inbox.reset_tail(self.consumed);
        self.state
    }

    /// Replaces the inbox memory between [`Ring::rewind`] and [`Ring::attach`], the two halves of a recovery:
    /// the client cannot be kept from writing the old one. The ring continues at its position.
    pub fn renew(&mut self, inbox: Inbox) {
        inbox.reset_tail(self.consumed);
        self.inbox = inbox;
    }

    /// Second half of a recovery: attaches a new lane. Sends the client again the rejects and the state
    /// that it may have missed.
    ///
    /// # Errors
    /// [`LaneError`] when the new lane has failed, which the caller then ends; the client may recover once
    /// more.
    pub fn attach(&mut self, port: Box<dyn ServerLane>) -> Result<(), LaneError> {
        self.port = Some(port);
        // Frames that come again have the full time again.
        self.late = None;
        // An old reject would be in the record of a newer one for a moment. On a mailbox that
        // outlives its lane the client may read just then.
        self.forget_rejects();
        for n in 0..self.rejects.len() {
            let reject = self.rejects[n];
            let line = line_bytes(&reject.to_line(self.session.0));
            self.post(mailbox_reject_at(reject.seq), &line)?;
        }
        let line = self.state.to_line(self.session.0);
        self.post(MAILBOX_STATE_AT, &line_bytes(&line))
    }

    /// Begins to end the lane, if there is one. Returns whether the lane has ended, so that nothing arrives in
    /// the inbox any more (F11); true without a lane. Never blocks: the caller asks again. The ring stays and
    /// continues on the next lane; [`Ring::release`] ends both.
    pub fn end_port(&mut self) -> bool {
        if let Some(port) = self.port.take() {
            self.ending = Some(port);
        }
        let ended = self.ending.as_mut().is_none_or(|port| port.end());
        if ended {
            self.ending = None;
        }
        ended || mutants::on(Mutant::RecoveredWhileEnding)
    }

    /// Ends the lane, if there is one, and blocks until it has ended.
    pub fn destroy_port(&mut self) {
        self.end_port();
        if let Some(mut port) = self.ending.take() {
            port.destroy();
        }
    }

    /// Removes the ring: begins to end its lane, without a wait for the end, and frees its public status record
    /// and the record for a successor of this process. `memory` is the one that the ring was created in.
    ///
    /// # Errors
    /// None in practice: both records lie inside `memory`.
    pub fn release(mut self, memory: &ServerMemory) -> Result<(), StoreError> {
        // A lane that has not ended keeps the inbox it writes to; nothing else of this memory is its.
        self.end_port();
        if let Some(kept) = self.kept.take() {
            kept.release(memory)?;
        }
        memory.free_status_line(self.status)
    }
}

#[cfg(test)]
mod tests;

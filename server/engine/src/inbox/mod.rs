//! The server's end of a ring: which bytes are a frame, which frame comes next, what the client is
//! told about it.
//!
//! The memory belongs to the client and may change at any moment. Header and payload are copied
//! out before anything is checked, and only the copy is used.

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
use crate::store::StoreError;
use crate::store::memory::ServerMemory;
use crate::store::status::StatusLine;

/// Why a session is ended: its ring is out of step, or it is not the session's client who writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The tail went back, too far, or off the grid.
    #[error("tail {tail} is impossible: {consumed} bytes consumed, ring of {ring}")]
    Tail {
        /// Told.
        tail: u64,
        /// Consumed so far.
        consumed: u64,
        /// Ring.
        ring: u64,
    },
    /// No frame.
    #[error("at byte {at}: {why}")]
    Frame {
        /// Position.
        at: u64,
        /// Which check failed.
        why: FrameError,
    },
    /// A frame of another session.
    #[error("frame at byte {at} carries session {told:#x}")]
    Session {
        /// Position.
        at: u64,
        /// Told.
        told: u64,
    },
    /// A frame longer than allowed, than the tail, or across the wrap point.
    #[error("frame at byte {at} of {len} bytes does not fit")]
    Length {
        /// Position.
        at: u64,
        /// Told, with the header.
        len: u64,
    },
    /// What should lie below a believed tail has not come.
    #[error(
        "the frame at byte {at} has not come {late:?} after its tail: its client writes none, or its \
         device has lost it",
        late = FRAME_LATE_MAX
    )]
    Late {
        /// Position.
        at: u64,
    },
    /// A gap in the sequence.
    #[error("frame {told} where {expected} is due")]
    Sequence {
        /// Told.
        told: u64,
        /// Due.
        expected: u64,
    },
}

/// What [`Ring::next`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing, or nothing whole yet.
    Empty,
    /// Padding, or a frame that was applied before: it was stepped over. Told one by one, so that
    /// a client that writes nothing else cannot keep its applier from the other rings.
    Skipped,
    /// A frame: its payload is in the buffer.
    Frame(FrameHeader),
}

/// One ring and what is known about it. Used by its applier only.
pub struct Ring {
    /// Nonce.
    pub session: SessionId,
    /// Whose frames these are.
    pub sender: FrameSender,
    /// The applier's end of the lane; `None` while it is broken.
    pub port: Option<Box<dyn ServerLane>>,
    /// Set while the next frame waits for the turn of its rank: the engine's count of changes when the
    /// frame was looked at.
    pub waiting: Option<u64>,
    inbox: Inbox,
    consumed: u64,
    /// The tail of the next frame is there, and the frame is not: how long that may last.
    late: Option<Deadline>,
    state: StateLine,
    told: StateLine,
    rejects: VecDeque<Reject>,
    check_frames: bool,
    status: StatusLine,
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

/// Who a ring belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingOwner {
    /// Nonce of the session.
    pub session: SessionId,
    /// Whose frames come.
    pub sender: FrameSender,
    /// Whether frames carry a check word: where the transport does not place bytes in order.
    pub check_frames: bool,
}

impl Ring {
    /// A new ring at sequence 0, with its state line in public memory.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub fn new(owner: RingOwner, inbox: Inbox, memory: &ServerMemory) -> Result<Self, StoreError> {
        let state = StateLine::default();
        let status = memory.status_line(&state.to_line(owner.session.0))?;
        inbox.reset_tail(0);
        Ok(Self {
            session: owner.session,
            sender: owner.sender,
            port: None,
            waiting: None,
            inbox,
            consumed: 0,
            late: None,
            state,
            told: state,
            rejects: VecDeque::new(),
            check_frames: owner.check_frames,
            status,
        })
    }

    /// Lets the port do what the client asked for; `None` while the lane is broken.
    pub fn poll(&mut self, exports: &mut RegionTableView) -> Option<Result<bool, LaneError>> {
        self.port
            .as_mut()
            .map(|port| port.poll(exports, &self.inbox))
    }

    /// What the client is or will be told.
    pub const fn state(&self) -> StateLine {
        self.state
    }

    /// Where the client reads the public copy of the state line.
    pub const fn status(&self) -> Remote {
        self.status.remote()
    }

    /// The memory the client writes.
    pub const fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Takes the next frame out of the ring: header checked, payload copied into `payload`. The
    /// frame is not done before [`Ring::done`] or [`Ring::reject`].
    ///
    /// # Errors
    /// [`RingError`]: end the session.
    pub fn next(&mut self, payload: &mut Vec<u8>) -> Result<Next, RingError> {
        // A torn tail proves nothing and will be whole soon.
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
            // Where bytes may be late, a header that is none may still become one.
            Err(_) if self.check_frames => return self.not_yet(),
            Err(why) => return Err(RingError::Frame { at: consumed, why }),
        };
        let len = match self.frame_len(&header, tail)? {
            Some(len) => len,
            None => return self.not_yet(),
        };
        self.copy_payload(&header, payload);
        if self.check_frames && header.hasher().finish_bytes(payload) != header.chk {
            return self.not_yet();
        }
        let expected = self.state.applied_seq + 1;
        if self.check_frames && header.seq < expected {
            // Whole, but of an earlier lap of the ring: what belongs here is yet to land.
            return self.not_yet();
        }
        self.late = None;
        let duplicate = header.seq < expected && !mutants::on(Mutant::SkipDuplicateCheck);
        if header.kind == FrameKind::Pad || duplicate {
            self.skip(len);
            return Ok(Next::Skipped);
        }
        if header.seq > expected {
            return Err(RingError::Sequence {
                told: header.seq,
                expected,
            });
        }
        Ok(Next::Frame(header))
    }

    /// A tail is there and its frame is not: it is looked for again, but not for ever. The tail was
    /// written after the frame, on a connection that keeps order, so that only the way from the device
    /// to memory is left. Cost: a look at the clock.
    fn not_yet(&mut self) -> Result<Next, RingError> {
        let at = self.consumed;
        let late = || Deadline::after(FRAME_LATE_MAX);
        match self.late.get_or_insert_with(late).passed() {
            true => Err(RingError::Late { at }),
            false => Ok(Next::Empty),
        }
    }

    /// Bytes of the frame in the ring; `None` while it cannot be whole yet.
    fn frame_len(&self, header: &FrameHeader, tail: u64) -> Result<Option<u64>, RingError> {
        let at = self.consumed;
        let ring = self.inbox.ring();
        if header.session != self.session.0 {
            if self.check_frames {
                return Ok(None);
            }
            return Err(RingError::Session {
                at,
                told: header.session,
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

    /// The frame has taken effect (or has been taken over for a tick).
    pub fn done(&mut self, header: &FrameHeader) {
        self.state.applied_seq = header.seq;
        self.state.durable_seq = header.seq;
        self.skip(header.ring_bytes());
    }

    /// The frame is refused: its ticket fails, nothing else does. The reject is written before
    /// the state line that counts it.
    ///
    /// # Errors
    /// [`LaneError`] from the port.
    pub fn reject(&mut self, header: &FrameHeader, reason: RejectReason) -> Result<(), LaneError> {
        let reject = Reject {
            seq: header.seq,
            table: header.table,
            reason,
        };
        self.rejects.push_back(reject);
        self.state.rejected += 1;
        self.done(header);
        self.forget_rejects();
        let line = line_bytes(&reject.to_line(self.session.0));
        self.post(mailbox_reject_at(reject.seq), &line)
    }

    /// Forgets rejects that the client has seen: it built no frame before the one that used its
    /// cell last was applied. Two that are kept never share a cell.
    fn forget_rejects(&mut self) {
        let applied = self.state.applied_seq;
        let old = |r: &Reject| r.seq.saturating_add(FRAMES_IN_FLIGHT_MAX) <= applied;
        while self.rejects.front().is_some_and(old) {
            self.rejects.pop_front();
        }
    }

    /// Writes into the client's mailbox; nothing while the lane is broken (what matters is sent
    /// again when it is back).
    ///
    /// # Errors
    /// [`LaneError`] from the port.
    pub fn post(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneError> {
        match &mut self.port {
            Some(port) => port.post(at, bytes),
            None => Ok(()),
        }
    }

    /// Tells the client and everybody who may read it how far the ring is, if that changed.
    ///
    /// # Errors
    /// [`LaneError`] from the port.
    pub fn publish(&mut self, memory: &ServerMemory) -> Result<bool, LaneError> {
        if self.state == self.told {
            return Ok(false);
        }
        self.told = self.state;
        let line = self.state.to_line(self.session.0);
        if let Ok(words) = memory.public.region().words_mut(self.status.at, LINE_BYTES) {
            publish(words, 0, &line_bytes(&line));
        }
        self.post(MAILBOX_STATE_AT, &line_bytes(&line))?;
        Ok(true)
    }

    /// Recovery, first half (the port is destroyed, nothing lands any more, everything whole has
    /// been consumed): sets the tail to what was consumed and answers how far the ring is.
    pub fn rewind(&mut self) -> StateLine {
        self.inbox.reset_tail(self.consumed);
        self.state
    }

    /// New memory in the place of the old, whose client cannot be kept from writing it: the ring
    /// goes on where it stands. Between the two halves of a recovery.
    pub fn renew(&mut self, inbox: Inbox) {
        inbox.reset_tail(self.consumed);
        self.inbox = inbox;
    }

    /// Recovery, second half: a new port. The client is told everything again that it may have
    /// missed.
    ///
    /// # Errors
    /// [`LaneError`] from the port.
    pub fn attach(&mut self, port: Box<dyn ServerLane>) -> Result<(), LaneError> {
        self.port = Some(port);
        // What comes again has its time again.
        self.late = None;
        // An old one would stand in the cell of a newer one for a moment, and on a mailbox that
        // outlives its lane the client may look just then.
        self.forget_rejects();
        for n in 0..self.rejects.len() {
            let reject = self.rejects[n];
            let line = line_bytes(&reject.to_line(self.session.0));
            self.post(mailbox_reject_at(reject.seq), &line)?;
        }
        let line = self.state.to_line(self.session.0);
        self.post(MAILBOX_STATE_AT, &line_bytes(&line))
    }

    /// Ends the lane; with [`Ring::release`], the ring.
    pub fn destroy_port(&mut self) {
        if let Some(mut port) = self.port.take() {
            port.destroy();
        }
    }

    /// Gives the state line's memory back.
    ///
    /// # Errors
    /// Never for a ring of this memory.
    pub fn release(mut self, memory: &ServerMemory) -> Result<(), StoreError> {
        self.destroy_port();
        memory.free_status_line(self.status)
    }
}

#[cfg(test)]
mod tests;

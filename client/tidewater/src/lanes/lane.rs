//! One lane: its ring, its replies, and what its applier's status and reject records said last.

use super::status::{STATUS_TAG, StatusCopy};
use crate::counters::Counters;
use crate::link::{OpenLane, ServerLink};
use crate::push::ring::PushRing;
use tidewater_bookkeeping::rejects::{NO_PUSH, PushCall, Rejects};
use tidewater_bookkeeping::replies::Replies;
use tidewater_bookkeeping::stall_detector::StallDetector;
use tidewater_lanes::fabric::{ClientLane, LaneError, Mapping, ReadBatch, TransportKind};
use tidewater_protocol::ids::{ApplierId, DomainId, SessionId};
use tidewater_protocol::layout::lines::{ClockLine, Reject, StateLine};
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{MAILBOX_STATE_AT, mailbox_clock_at, mailbox_reject_at};
use tidewater_protocol::limits::{
    DOMAINS_MAX, FRAME_LATE_MAX, FRAMES_IN_FLIGHT_MAX, RING_BYTES_MAX, RING_BYTES_MIN,
};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::clock::Deadline;

/// Highest bit of a batch tag: marks reads that one call posts and collects. Asynchronous pulls have tags without
/// it.
pub(super) const CALL_TAG: u64 = 1 << 63;

/// State of one lane: ring of frames to an applier, replies, completed reads, refusals and clocks.
pub(crate) struct LaneState {
    pub(crate) server: usize,
    pub(crate) applier: ApplierId,
    pub(crate) session: SessionId,
    pub(crate) ring: PushRing,
    pub(crate) replies: Replies,
    /// Completed reads that were submitted and not yet collected.
    pub(crate) finished: Vec<ReadBatch>,
    pub(super) lane: Box<dyn ClientLane>,
    /// Memory that `lane` has mapped.
    pub(super) mapping: Option<Mapping>,
    pub(super) broken: Option<LaneError>,
    pub(super) rejects_seen: u64,
    pub(super) rejects: Rejects,
    /// Detects that its server no longer answers.
    pub(super) silence: StallDetector,
    /// Reader of the public copy of the lane's status record.
    pub(super) status: StatusCopy,
    /// Number of the push call that built each frame in flight, at index sequence number modulo length.
    pub(super) calls: Box<[PushCall]>,
    /// Time limit for a reject record that the status counts and that has not arrived.
    pub(super) reject_late: Option<Deadline>,
    /// Every domain's clock as last read completely.
    pub(super) clocks: [ClockLine; DOMAINS_MAX],
}

impl LaneState {
    pub(super) fn new(
        server: usize,
        applier: usize,
        link: &dyn ServerLink,
        open: OpenLane,
    ) -> Option<Self> {
        let bytes = link.ring_bytes();
        let ring = RingGeometry::new(bytes)
            .filter(|_| (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes))?;
        let session = link.session();
        // Frames carry a checksum where the transport may place bytes out of order.
        let kind = open.lane.transport();
        let checked = matches!(kind, TransportKind::Verbs | TransportKind::Sim);
        let applier = ApplierId(applier as u16);
        let mut ring = PushRing::new(session, ring, checked, link.counter(applier));
        ring.learn(open.state);
        Some(Self {
            server,
            applier,
            session,
            ring,
            replies: Replies::new(bytes),
            finished: Vec::new(),
            mapping: open.lane.mapping(),
            lane: open.lane,
            broken: None,
            rejects_seen: open.state.rejected,
            rejects: Rejects::default(),
            silence: StallDetector::default(),
            status: StatusCopy::new(open.status),
            calls: vec![NO_PUSH; FRAMES_IN_FLIGHT_MAX as usize].into(),
            reject_late: None,
            clocks: [ClockLine::default(); DOMAINS_MAX],
        })
    }

    /// Client's end of the transport lane, on which reads are posted.
    pub(crate) fn lane(&mut self) -> &mut dyn ClientLane {
        &mut *self.lane
    }

    /// Takes the completed read batch with this tag of [`super::Lanes::read_tag`]; `None` if it is not complete.
    /// Also drops completed batches of other calls that ended before their reads did.
    pub(crate) fn take_finished(&mut self, tag: u64) -> Option<ReadBatch> {
        self.finished
            .retain(|batch| batch.tag & CALL_TAG == 0 || batch.tag == tag);
        let at = self.finished.iter().position(|batch| batch.tag == tag)?;
        Some(self.finished.swap_remove(at))
    }

    /// Whether the ring has room for a frame with `payload_len` bytes of payload now. Also true for a payload
    /// that is too large for any frame: [`super::Lanes::build`] refuses such a frame.
    pub(crate) fn has_room_now(&self, payload_len: usize) -> bool {
        payload_len > self.ring.payload_bytes_max() || self.ring.has_room(payload_len)
    }

    /// Sends the frames that are built in the ring and not sent yet.
    pub(crate) fn send(&mut self) -> Result<(), LaneError> {
        self.ring.send(&mut *self.lane)
    }

    /// Polls the lane: takes completed reads, and accepts the applier's status record (applied frames, room in the
    /// ring) with the reject records before it. Does not block.
    pub(super) fn learn(&mut self, counters: &mut Counters) -> Result<(), LaneError> {
        self.lane.poll()?;
        while let Some(batch) = self.lane.poll_read() {
            if batch.tag == STATUS_TAG {
                if let Some(state) = self.status.arrived(batch, self.session.0) {
                    self.believe(state, counters)?;
                }
                continue;
            }
            self.finished.push(batch);
        }
        let line = self.lane.mailbox().line(MAILBOX_STATE_AT);
        match StateLine::from_line(&line, self.session.0) {
            Some(state) => self.believe(state, counters),
            None => Ok(()),
        }
    }

    /// Accepts a status record, from the mailbox or its public copy, if it is plausible and not older than the known
    /// one. All reject records that it counts must have arrived; otherwise it is ignored for now.
    #[inline]
    fn believe(&mut self, state: StateLine, counters: &mut Counters) -> Result<(), LaneError> {
        if state.rejected == self.rejects_seen
            || (self.ring.is_news(&state) && self.collect_rejects(state, counters)?)
        {
            self.ring.learn(state);
        }
        Ok(())
    }

    /// Collects the reject records that `state` counts. Returns false while some of them have not arrived,
    /// because records of a mailbox become visible in any order (F15). The status is not accepted before: it is
    /// not known which of its frames were refused. If the count is impossible, all new frames of the status
    /// count as perhaps refused.
    ///
    /// # Errors
    /// [`LaneError::Broken`] when a record does not arrive within [`FRAME_LATE_MAX`]: a recovery of the
    /// lane posts all records again.
    #[cold]
    fn collect_rejects(
        &mut self,
        state: StateLine,
        counters: &mut Counters,
    ) -> Result<bool, LaneError> {
        let (first, last) = (self.ring.state().applied_seq + 1, state.applied_seq);
        let due = state.rejected.wrapping_sub(self.rejects_seen);
        let record = |seq| {
            let line = self.lane.mailbox().line(mailbox_reject_at(seq));
            Reject::from_line(&line, self.session.0).filter(|reject| reject.seq == seq)
        };
        let found: Vec<Reject> = (first..=last).filter_map(record).collect();
        let arrived = found.len() as u64;
        if arrived < due && due <= last + 1 - first && !mutants::on(Mutant::RejectNotAwaited) {
            counters.rejects_late += u64::from(self.reject_late.is_none());
            let late = || Deadline::after(FRAME_LATE_MAX);
            if !self.reject_late.get_or_insert_with(late).passed() {
                return Ok(false);
            }
            return Err(LaneError::Broken {
                transport: self.lane.transport(),
                peer: self.lane.peer().to_owned(),
                op: "reading reject records",
                why: format!(
                    "its status counts {due} refused frames among {first} to {last}, {arrived} of \
                     their records have arrived within {FRAME_LATE_MAX:?}"
                ),
            });
        }
        self.reject_late = None;
        for reject in found {
            counters.rejects += 1;
            let call = self.calls[call_slot(reject.seq)];
            counters.rejects_unclaimed += u64::from(self.rejects.add(reject, call));
        }
        if arrived != due {
            // There are more records than the status counts, or the count is impossible: the server is
            // in error. No frame counts as applied.
            self.rejects.lose(first, last, counters.pushes);
        }
        self.rejects_seen = state.rejected;
        Ok(true)
    }

    /// Latest valid clock record of a domain (its minimum clock) from this lane's applier. While a record is torn or
    /// has not arrived, the last valid one is returned; an unknown domain gives zeros.
    pub(crate) fn clock(&mut self, domain: DomainId) -> ClockLine {
        let line = self.lane.mailbox().line(mailbox_clock_at(domain.0));
        let read = ClockLine::from_line(&line, self.session.0, domain.0);
        let Some(known) = self.clocks.get_mut(domain.0 as usize) else {
            return ClockLine::default();
        };
        *known = read.unwrap_or(*known);
        *known
    }
}

/// Index in `calls` of the push call that built frame `seq`. Frames in flight never share an index.
pub(super) const fn call_slot(seq: u64) -> usize {
    (seq % FRAMES_IN_FLIGHT_MAX) as usize
}

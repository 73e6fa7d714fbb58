//! The public copy of a lane's status record. The client reads it when the mailbox shows no progress.
//!
//! A device may leave the older of two overlapping writes standing. The mailbox then holds an old state
//! until the server posts another one, which may be never. The server keeps a second copy of each state
//! in public memory, written before the posted one. A waiting client that has seen no progress for
//! [`STATUS_LOOK`] reads that copy.

use std::time::Instant;

use tidewater_lanes::fabric::{ClientLane, LaneError, ReadBatch, ReadOp, RemoteAddr};
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::layout::{LINE_BYTES, line_from_bytes};
use tidewater_protocol::limits::STATUS_LOOK;
use tidewater_protocol::mutants::{self, Mutant};

/// Tag of the read batch for the public copy of the status record. Pulls are numbered from 1 and do not reach it.
pub(super) const STATUS_TAG: u64 = u64::MAX;

/// Reader of the public copy of one lane's status record. At most one read is in flight, and at most one is posted
/// in each [`STATUS_LOOK`].
#[derive(Debug, Default)]
pub(super) struct StatusCopy {
    /// Whether the server has a public copy.
    exists: bool,
    /// Memory of the read, while it is not in flight.
    batch: Option<ReadBatch>,
    /// Time of the last change of the state, or of the last read of the copy, and that state. `None` while no
    /// frame is unanswered.
    since: Option<(Instant, StateLine)>,
}

impl StatusCopy {
    /// Makes the reader for a lane that was just opened. `from` is the remote address of the copy, `None` if the
    /// server has no copy: the reader then reads nothing. Allocates the memory of all its reads.
    pub(super) fn new(from: Option<RemoteAddr>) -> Self {
        let batch = from.map(|from| ReadBatch {
            ops: vec![ReadOp {
                from,
                len: LINE_BYTES as u32,
                head_len: LINE_BYTES as u32,
                head_at: 0,
                body_at: 0,
                fence: false,
            }],
            head: vec![0; LINE_BYTES],
            body: Vec::new(),
            tag: STATUS_TAG,
        });
        Self {
            exists: batch.is_some(),
            batch,
            since: None,
        }
    }

    /// Records the lane's state at the beginning of a wait, to detect a stall. Returns whether frames are
    /// `unanswered` and a copy exists: the wait must then end within [`STATUS_LOOK`].
    pub(super) fn watch(&mut self, now: Instant, unanswered: bool, state: &StateLine) -> bool {
        if !unanswered || !self.exists {
            self.since = None;
            return false;
        }
        match &self.since {
            Some((_, before)) if before == state => {}
            _ => self.since = Some((now, *state)),
        }
        true
    }

    /// Posts a read of the public copy if the lane's state has not changed for [`STATUS_LOOK`] and no such read is
    /// in flight. Does not wait for it.
    ///
    /// # Errors
    /// [`LaneError`] of the lane.
    pub(super) fn read_if_stalled(
        &mut self,
        now: Instant,
        state: &StateLine,
        lane: &mut dyn ClientLane,
    ) -> Result<(), LaneError> {
        let Some((since, before)) = &mut self.since else {
            return Ok(());
        };
        if before != state || now.duration_since(*since) < STATUS_LOOK {
            return Ok(());
        }
        *since = now;
        if mutants::on(Mutant::StatusCopyNotRead) {
            return Ok(());
        }
        match self.batch.take() {
            Some(batch) => lane.submit_read(batch),
            None => Ok(()),
        }
    }

    /// Takes back the batch of a completed read, and returns the status that it read. `None` if its checksum, keyed
    /// by the session number `salt`, does not match.
    #[cold]
    pub(super) fn arrived(&mut self, batch: ReadBatch, salt: u64) -> Option<StateLine> {
        let line = batch.head.first_chunk().map(line_from_bytes);
        self.batch = Some(batch);
        line.and_then(|line| StateLine::from_line(&line, salt))
    }
}

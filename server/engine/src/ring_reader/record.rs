//! The record of a ring, in memory that outlives the process: session, sender, progress and refusals.
//!
//! ```text
//! +0    u64 session | u32 rank, thread | u64 namespace | u64 ring bytes | u64 status at |
//!       u32 applier, checks frames | u64 checksum | 0
//! +64   progress: two of u64 seq | u64 head | u64 rejected; u64 of a cut push: u32 rows, seq | 0
//! +128  reject records, at the sequence number modulo their number
//! ```
//! A frame with an odd number writes the first progress, one with an even number the second, its number
//! last. So the one with the greater number is complete whenever the process dies. The frame counts as
//! applied from that store on.

use std::sync::Arc;

use tidewater_protocol::ids::{SessionId, WorkerId, WorkerThread};
use tidewater_protocol::layout::hash::line_checksum;
use tidewater_protocol::layout::lines::{Reject, StateLine};
use tidewater_protocol::layout::{LINE_BYTES, pack, unpack};
use tidewater_protocol::limits::FRAMES_IN_FLIGHT_MAX;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::mem::{Region, Words, WordsMut};
use tidewater_runtime::sync::{Ordering, fence};

use crate::namespace::{FrameSender, NamespaceId};
use crate::store::memory::{Block, BlockKind, BlockOwner, ServerMemory};
use crate::store::{ResumeError, StoreError};

const RING: u64 = u64::from_le_bytes(*b"ring-rec");
const PROGRESS_AT: usize = LINE_BYTES;
const CUT_AT: usize = PROGRESS_AT + 48;
const REJECTS_AT: usize = 2 * LINE_BYTES;
const BYTES: usize = REJECTS_AT + FRAMES_IN_FLIGHT_MAX as usize * LINE_BYTES;

/// Description of a ring in memory that outlives the process, for a process that takes over after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingRecord {
    /// Nonce of the session.
    pub session: SessionId,
    /// Worker thread and job that push into the ring.
    pub sender: FrameSender,
    /// Whether frames carry a checksum.
    pub check_frames: bool,
    /// Size of the ring in bytes.
    pub ring_bytes: u64,
    /// Byte offset of the status record in public memory.
    pub(super) status_at: usize,
    /// Number of the ring's applier.
    pub(crate) applier: u32,
}

impl RingRecord {
    fn words(&self) -> [u64; 6] {
        let thread = self.sender.thread;
        [
            self.session.0,
            pack(thread.rank.0, thread.thread),
            self.sender.namespace.0,
            self.ring_bytes,
            self.status_at as u64,
            pack(self.applier, u32::from(self.check_frames)),
        ]
    }

    fn read(words: Words<'_>) -> Option<Self> {
        let line = words.line(0);
        let (rank, thread) = unpack(line[1]);
        let (applier, check_frames) = unpack(line[5]);
        let record = Self {
            session: SessionId(line[0]),
            sender: FrameSender {
                thread: WorkerThread {
                    rank: WorkerId(rank),
                    thread,
                },
                namespace: NamespaceId(line[2]),
            },
            check_frames: check_frames == 1,
            ring_bytes: line[3],
            status_at: line[4] as usize,
            applier,
        };
        (line_checksum(RING, line[0], &line[..6]) == line[6]).then_some(record)
    }
}

/// Record of one ring in private memory that outlives the process: description, progress and refused frames.
#[derive(Debug)]
pub(super) struct KeptRing {
    private: Arc<Region>,
    block: Block,
}

impl KeptRing {
    /// Allocates a record. Before [`Self::begin`] a successor takes over no ring from it, and frees it.
    pub(super) fn new(memory: &ServerMemory) -> Result<Self, StoreError> {
        let owner = BlockOwner {
            kind: BlockKind::Session,
            table: 0,
            applier: 0,
            part: 0,
        };
        Ok(Self {
            private: Arc::clone(memory.private.region()),
            block: memory.private.alloc(BYTES, owner)?,
        })
    }

    /// Writes the description of the ring, which does not change. A successor takes over the ring from now
    /// on.
    pub(super) fn begin(&self, record: RingRecord) {
        let words = record.words();
        let checksum = line_checksum(RING, words[0], &words);
        let [a, b, c, d, e, f] = words;
        self.at(0, LINE_BYTES)
            .store_line(0, &[a, b, c, d, e, f, checksum, 0]);
    }

    /// Stores the progress of the ring, after a frame was applied or refused, over the older of its two entries.
    /// The last store, of the frame's number, makes the entry valid for a successor.
    pub(super) fn count(&self, state: &StateLine) {
        if mutants::on(Mutant::AppliedNotRecorded) {
            return;
        }
        let slot = self.at(PROGRESS_AT + (state.applied_seq as usize & 1) * 24, 24);
        slot.store(8, state.head_bytes);
        slot.store(16, state.rejected);
        // SYNC: warm. A successor believes the slot with the greater number: the number comes last.
        fence(Ordering::Release);
        slot.store(0, state.applied_seq);
        fence(Ordering::Release);
    }

    /// Stores the read position behind a frame without an effect, a PAD or a duplicate. Clients write from a position
    /// that the status record has: a successor must not begin before this position.
    pub(super) fn skipped(&self, head_bytes: u64) {
        self.at(PROGRESS_AT + self.last(), 24).store(8, head_bytes);
        // SYNC: warm. The status record with the position is posted afterwards.
        fence(Ordering::Release);
    }

    /// Writes the reject record of a refused frame, before the frame is counted.
    pub(super) fn refuse(&self, reject: &Reject, session: SessionId) {
        let at = REJECTS_AT + (reject.seq % FRAMES_IN_FLIGHT_MAX) as usize * LINE_BYTES;
        self.at(at, LINE_BYTES)
            .store_line(0, &reject.to_line(session.0));
    }

    /// Reads the progress of the ring: last applied frame, read position, number of refused frames. The durable
    /// frame is the last applied one.
    pub(super) fn state(&self) -> StateLine {
        let words = self.at(PROGRESS_AT, LINE_BYTES).as_read();
        let slot = self.last();
        StateLine {
            applied_seq: words.load(slot),
            durable_seq: words.load(slot),
            head_bytes: words.load(slot + 8),
            rejected: words.load(slot + 16),
        }
    }

    /// Returns the byte offset, counted from `PROGRESS_AT`, of the valid one of the two progress entries: the one
    /// with the greater sequence number. The second one (24) if both are equal.
    fn last(&self) -> usize {
        let words = self.at(PROGRESS_AT, LINE_BYTES).as_read();
        match words.load(0) > words.load(24) {
            true => 0,
            false => 24,
        }
    }

    /// Reads the rejects that the client may not have seen, those of the last `FRAMES_IN_FLIGHT_MAX` frames, in
    /// ascending order of sequence numbers. `applied` is the number of the last applied or refused frame.
    pub(super) fn rejects(&self, session: SessionId, applied: u64) -> Vec<Reject> {
        let words = self.at(REJECTS_AT, BYTES - REJECTS_AT).as_read();
        let all = (0..words.len()).step_by(LINE_BYTES);
        let all = all.filter_map(|at| Reject::from_line(&words.line(at), session.0));
        let kept = |reject: &Reject| {
            reject.seq <= applied && reject.seq.saturating_add(FRAMES_IN_FLIGHT_MAX) > applied
        };
        let mut all: Vec<Reject> = all.filter(kept).collect();
        all.sort_unstable_by_key(|reject| reject.seq);
        all
    }

    /// Notes that the process died in frame `seq`, the next one, when the frame's first `rows` rows were
    /// applied: this process and later ones must skip these rows.
    pub(super) fn note_cut(&self, seq: u64, rows: u32) {
        self.at(CUT_AT, 8).store(0, pack(rows, seq as u32));
    }

    /// Returns the number of rows of frame `seq` that were applied when an earlier process died in it; 0 for
    /// any other frame.
    pub(super) fn cut(&self, seq: u64) -> u32 {
        let (rows, of) = unpack(self.at(CUT_AT, 8).as_read().load(0));
        if of == seq as u32 { rows } else { 0 }
    }

    /// Clears and frees the record, so that a successor has no such ring.
    pub(super) fn release(self, memory: &ServerMemory) -> Result<(), StoreError> {
        self.at(0, LINE_BYTES).zero(0, LINE_BYTES);
        memory.private.free(self.block)
    }

    fn at(&self, at: usize, len: usize) -> WordsMut<'_> {
        match self.private.words_mut(self.block.at + at, len) {
            Ok(words) => words,
            Err(e) => unreachable!("the record of a ring is outside the memory: {e}"),
        }
    }
}

/// Finds the records of one applier's rings in the memory of a dead process, in ascending order of session
/// numbers. For applier 0 the call also frees the records of rings that no applier had taken yet.
pub(super) fn rings_of(
    memory: &ServerMemory,
    applier: u32,
) -> Result<Vec<(RingRecord, KeptRing)>, ResumeError> {
    let mut rings = Vec::new();
    for (block, words) in memory.private.directory()? {
        let owner = BlockOwner::of_words(words);
        if owner.is_none_or(|owner| owner.kind != BlockKind::Session) {
            continue;
        }
        let kept = KeptRing {
            private: Arc::clone(memory.private.region()),
            block,
        };
        match RingRecord::read(kept.at(0, LINE_BYTES).as_read()) {
            Some(record) if record.applier == applier => rings.push((record, kept)),
            None if applier == 0 => memory.private.free(block)?,
            _ => {}
        }
    }
    // In the order of the sessions' numbers: the directory's order has no meaning.
    rings.sort_unstable_by_key(|(record, _)| record.session.0);
    Ok(rings)
}

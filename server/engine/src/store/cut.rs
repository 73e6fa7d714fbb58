//! The cut of a save: the records of a table as they were at one moment, while pushes go on.
//!
//! Copy-before-write: a cursor copies records in small steps, and a writer copies a record that it is
//! about to change and that the cursor has not reached. Both *claim* the record first, in one bit for
//! each record. The first claim copies; a record is therefore copied once, with the bytes of the cut. A
//! record that is created after the cut is claimed without a copy.
//!
//! An incremental checkpoint is a cut of the records that have changed since the one before (`super::changes`).
//!
//! Everything here runs on the table's applier, between two steps of it. Only [`SaveMemory`] is shared
//! with the thread that writes the file.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_channel::Sender;
use tidewater_protocol::ids::{DomainId, TableId};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::Optimizer;
use tidewater_protocol::wire::control::CheckpointMark;
use tidewater_runtime::sync::{AtomicBool, AtomicUsize, Ordering};

use super::changes::Changes;

/// Bytes of copied records from which on a group is sent to the writing thread.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// Bytes sent and not yet written from which on cursors wait for the writing thread; less for a save with a
/// smaller limit, see [`SaveMemory::window`]. Waiting appliers are woken below half of these bytes.
const WINDOW_BYTES: usize = 8 << 20;

/// Byte counters that bound the copies of one save, and its cancellation flag. The appliers of a server and
/// the thread that writes the file share them.
#[derive(Debug)]
pub struct SaveMemory {
    /// Bytes copied and not yet written: those sent, and groups that are being filled.
    held: AtomicUsize,
    /// Bytes sent and not yet written.
    queued: AtomicUsize,
    limit: usize,
    cancelled: AtomicBool,
}

impl SaveMemory {
    /// Creates the counters of a save with a limit of `limit` bytes of copies.
    pub const fn new(limit: usize) -> Self {
        Self {
            held: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            limit,
            cancelled: AtomicBool::new(false),
        }
    }

    /// Bytes that are copied and not yet written.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Largest number of bytes that may be copied and not yet written.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Whether so many sent bytes wait for the writing thread that the cursors must wait. The copies that a
    /// writer makes before it changes a record never wait.
    pub(crate) fn is_full(&self) -> bool {
        self.queued.load(Ordering::Relaxed) >= self.window()
    }

    /// Bytes sent and not yet written from which on cursors wait: 8 MiB, or half the save's limit if that is
    /// less. So no save fails by what its cursors alone have copied.
    fn window(&self) -> usize {
        WINDOW_BYTES.min(self.limit / 2)
    }

    /// Counts `bytes` received bytes as written; called by the writing thread. Returns true when the bytes that
    /// wait fall below half of those at which cursors wait: the caller then wakes the appliers.
    pub fn written(&self, bytes: usize) -> bool {
        self.free(bytes);
        let before = self.queued.fetch_sub(bytes, Ordering::Relaxed);
        let half = self.window() / 2;
        before >= half && before - bytes < half
    }

    fn free(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Cancels the save: appliers copy nothing more. They notice it in their next step.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether the save was cancelled before its end.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Counts `bytes` copied bytes as held. If that would exceed the limit, nothing is counted, and the error is
    /// the number of bytes that would be held: the caller fails the save.
    fn take(&self, bytes: usize) -> Result<(), usize> {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if held <= self.limit {
            return Ok(());
        }
        self.free(bytes);
        Err(held)
    }
}

/// Message of an applier to the thread that writes a save.
#[derive(Debug)]
pub enum SavePiece {
    /// The applier has made its cut: all copies are of this moment.
    Cut {
        /// Minimum of each domain of the job at the cut.
        clocks: Vec<(DomainId, u64)>,
        /// Optimizers of tables with hyper-parameters that were changed since the table was created.
        settings: Vec<(TableId, Optimizer)>,
    },
    /// Copied records. Their bytes count as held until the receiver calls `SaveMemory::written`.
    Records {
        /// Table of the records.
        table: TableId,
        /// Partition of all records.
        partition: u32,
        /// Number of records in `bytes`.
        records: u64,
        /// Records in the form of a saved model: key, values, optimizer state.
        bytes: Vec<u8>,
    },
    /// Rows that were removed since the checkpoint that the save extends. They come after the cut and before all
    /// records of the table; their bytes do not count as held.
    Removed {
        /// Table of the rows.
        table: TableId,
        /// Keys of the rows, of all partitions. A key may come twice.
        keys: Vec<u64>,
    },
    /// All records of the applier have been sent.
    Done,
    /// The applier cannot make the save an extension of an earlier checkpoint: it has not noted all changes since
    /// that one.
    ChangesUnknown {
        /// The table of which changes are not known.
        table: TableId,
        /// What is not known, in words.
        why: String,
    },
    /// The applier cannot continue the save.
    Failed {
        /// The table at which it failed.
        table: TableId,
        /// The reason of the failure, in words.
        why: String,
    },
}

/// Destination of an applier's copies of one table in a save.
#[derive(Debug, Clone)]
pub(crate) struct Outlet {
    pub(crate) table: TableId,
    pub(crate) out: Sender<(u16, SavePiece)>,
    pub(crate) applier: u16,
    pub(crate) memory: Arc<SaveMemory>,
}

impl Outlet {
    /// Sends a piece to the writing thread. If that thread has gone, cancels the save.
    pub(crate) fn send(&self, piece: SavePiece) {
        if self.out.send((self.applier, piece)).is_err() {
            self.memory.cancel();
        }
    }
}

/// Positions of records that are numbered one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    /// Position of the first record: a byte offset in public memory, or a block number.
    pub(crate) first: u64,
    /// Number of records in the span.
    pub(crate) count: u64,
}

/// Copied records of one partition that are not sent yet.
#[derive(Debug, Default)]
struct Group {
    records: u64,
    bytes: Vec<u8>,
}

/// Copy-before-write state of a save for one table on one applier: which records are claimed (copied, or
/// known to need no copy), and the copies.
#[derive(Debug)]
pub(crate) struct Cut {
    outlet: Outlet,
    /// Spans of positions at the cut in ascending order, each with the number of its first record.
    spans: Vec<(Span, u64)>,
    /// Distance between the positions of two neighbouring records of a span.
    stride: u64,
    /// One bit for each record, set when the record is claimed.
    claimed: Vec<u64>,
    /// The records that are copied; `None`: all of the spans.
    only: Option<Changes>,
    /// Copied records by partition, each group below [`PIECE_BYTES`].
    groups: BTreeMap<u32, Group>,
}

impl Cut {
    /// Creates a cut of the records at `spans`, with positions `stride` apart; with `only`, of those among them
    /// that are in this set. `spans` need not be sorted. Cost: zeroed memory of one bit a record, which is touched
    /// as records are claimed.
    fn new(outlet: Outlet, mut spans: Vec<Span>, stride: u64, only: Option<Changes>) -> Self {
        spans.sort_unstable();
        let mut records = 0;
        let number = |span: Span| {
            let first = records;
            records += span.count;
            (span, first)
        };
        let spans = spans.into_iter().map(number).collect();
        Self {
            outlet,
            spans,
            stride,
            claimed: vec![0; records.div_ceil(64) as usize],
            only,
            groups: BTreeMap::new(),
        }
    }

    /// Claims the record at a position. Returns true for the first claim of a record of the cut: the caller
    /// then [copies](Self::copy) it, or knows that there is none to copy. False for a position outside the
    /// cut, and for a record that has not changed where only changes are copied.
    fn claim(&mut self, position: u64) -> bool {
        let after = self
            .spans
            .partition_point(|(span, _)| span.first <= position);
        let Some((span, number)) = after.checked_sub(1).and_then(|n| self.spans.get(n)) else {
            return false;
        };
        let inside = (position - span.first) / self.stride;
        if inside >= span.count {
            return false;
        }
        let record = number + inside;
        let (word, bit) = ((record / 64) as usize, 1 << (record % 64));
        let is_first = self.claimed[word] & bit == 0;
        self.claimed[word] |= bit;
        is_first && self.only.as_ref().is_none_or(|only| only.has(position))
    }

    /// Adds the copy of a record to the group of its partition: key, values and optimizer state. Sends the group
    /// if it has [`PIECE_BYTES`], or if more than half of the save's limit is held. If the limit would be
    /// exceeded, nothing is added, and the save is cancelled and reported as failed. Nothing is added to a
    /// cancelled save.
    pub(crate) fn copy(&mut self, partition: u32, key: u64, values: &[u8], state: &[u8]) {
        let memory = &self.outlet.memory;
        if memory.is_cancelled() {
            return;
        }
        let len = 8 + values.len() + state.len();
        if let Err(needed) = memory.take(len) {
            memory.cancel();
            let why = format!(
                "{needed} bytes of copies wait to be written, the limit is {}: records change faster \
                 than the file system takes them; raise --save-bytes, or save while no push is on its way",
                memory.limit()
            );
            let table = self.outlet.table;
            self.outlet.send(SavePiece::Failed { table, why });
            return;
        }
        let group = self.groups.entry(partition).or_default();
        group.records += 1;
        group.bytes.extend_from_slice(&key.to_le_bytes());
        group.bytes.extend_from_slice(values);
        group.bytes.extend_from_slice(state);
        // Short of memory, what can be written is sent.
        if group.bytes.len() >= PIECE_BYTES || memory.held() > memory.limit() / 2 {
            self.send_group(partition);
        }
    }

    /// Sends the copied records of a partition to the writing thread; no effect if there are none.
    pub(crate) fn send_group(&mut self, partition: u32) {
        if let Some(Group { records, bytes }) = self.groups.remove(&partition) {
            let table = self.outlet.table;
            let queued = &self.outlet.memory.queued;
            queued.fetch_add(bytes.len(), Ordering::Relaxed);
            self.outlet.send(SavePiece::Records {
                table,
                partition,
                records,
                bytes,
            });
        }
    }
}

/// State that the writers of a table's share check before they change a record: the cut of a save that is under
/// way, and the set that notes the changes since the last checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    cut: Option<Box<Cut>>,
    changes: Option<Box<Changes>>,
}

impl Watch {
    /// Whether a writer must call [`Watch::claim_before_write`] for each record that it changes.
    pub(crate) const fn is_on(&self) -> bool {
        self.cut.is_some() || self.changes.is_some()
    }

    /// Begins a save of the records at `spans`, with positions `stride` apart: from now on a record is copied to
    /// `outlet` before it changes. If `mark` extends a checkpoint, only records that have changed since that one
    /// are copied, and the keys of the rows removed since then are returned, in the order of removal; otherwise
    /// all records and no keys. A new set notes the changes from now on if `mark` asks for it, none if it does
    /// not; without a mark the present set stays.
    ///
    /// # Errors
    /// The reason, if the changes since the checkpoint that `mark` extends are not known. Nothing was changed.
    pub(crate) fn begin(
        &mut self,
        outlet: Outlet,
        spans: Vec<Span>,
        stride: u64,
        mark: Option<CheckpointMark>,
    ) -> Result<Vec<u64>, String> {
        self.check(mark)?;
        let (mut only, mut removed) = (None, Vec::new());
        if let Some(mark) = mark {
            let noted = mark
                .notes
                .then(|| Box::new(Changes::new(mark.number, stride)));
            let before = std::mem::replace(&mut self.changes, noted);
            only = before.filter(|_| mark.extends.is_some());
            if let Some(only) = &mut only {
                removed = only.take_removed();
            }
        }
        let only = only.map(|only| *only);
        self.cut = Some(Box::new(Cut::new(outlet, spans, stride, only)));
        Ok(removed)
    }

    /// Checks that all changes since the checkpoint that `mark` extends are noted here. `Ok` if it extends none.
    ///
    /// # Errors
    /// What is not known, in words.
    pub(crate) fn check(&self, mark: Option<CheckpointMark>) -> Result<(), String> {
        let Some(number) = mark.and_then(|mark| mark.extends) else {
            return Ok(());
        };
        match &self.changes {
            None => Err(format!(
                "its changes since checkpoint {number} are not noted"
            )),
            Some(_) if mutants::on(Mutant::ChangesSinceAnother) => Ok(()),
            Some(changes) => changes.check(number),
        }
    }

    /// Returns the save that is under way, if any.
    pub(crate) fn cut(&mut self) -> Option<&mut Cut> {
        self.cut.as_deref_mut()
    }

    /// Whether a save is under way.
    pub(crate) const fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Ends the save that is under way, and drops copies that were not sent. Changes are still noted.
    pub(crate) fn end_cut(&mut self) {
        self.cut = None;
    }

    /// Claims a record for the cursor of the save. If true is returned, the caller must copy the record now.
    /// False without a save, and for a record that was claimed before or is not to be copied.
    pub(crate) fn claim(&mut self, position: u64) -> bool {
        self.cut.as_mut().is_some_and(|cut| cut.claim(position))
    }

    /// Claims a record before a write changes it, and notes the change. If true is returned, the caller must copy
    /// the record now. False without a save, and for a record that was claimed before or is not to be copied.
    pub(crate) fn claim_before_write(&mut self, position: u64) -> bool {
        self.note(position);
        !mutants::on(Mutant::WriteBeforeCopy) && self.claim(position)
    }

    /// Notes a record that is created: it has changed, and a save under way has nothing to copy of it.
    pub(crate) fn note_created(&mut self, position: u64) {
        self.note(position);
        self.claim(position);
    }

    /// Notes that the row of a key is removed. No effect if no changes are noted.
    pub(crate) fn note_removed(&mut self, key: u64) {
        if let Some(changes) = &mut self.changes
            && !mutants::on(Mutant::RemovalNotNoted)
        {
            changes.note_removed(key);
        }
    }

    fn note(&mut self, position: u64) {
        if let Some(changes) = &mut self.changes
            && !mutants::on(Mutant::ChangeNotNoted)
        {
            changes.note(position);
        }
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        let unsent: usize = self.groups.values().map(|group| group.bytes.len()).sum();
        self.outlet.memory.free(unsent);
    }
}

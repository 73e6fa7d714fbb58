//! Ticks of tables that outlive their process.
//!
//! A successor has the held pushes of all iterations that are not closed, and the clocks. It makes the sums again, in
//! the order of rank, thread and frame, and closes again what was being closed. Rows that were stepped are passed
//! over: the rows of a table are stepped in the order in which the held pushes name them first, which is the same in
//! every process, and the redo area has the number of those that are done.

use std::collections::BTreeMap;

use tidewater_protocol::ids::DomainId;
use tidewater_protocol::layout::frame::FrameKind;
use tidewater_protocol::layout::{pack, unpack};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::Durability;

use super::engine::Engine;
use super::pending::{Held, Stream, StreamKey};
use super::push::{FIRST_BYTES, word};
use super::reduce::tick_order;
use super::sums::Sums;
use super::tick::STEP_ROWS;
use super::warm::LostWorker;
use crate::namespace::{DomainKey, NamespaceId};
use crate::store::closing::{Closing, TICK_SESSION};
use crate::store::redo::{PushName, Redo};
use crate::store::{ResumeError, StoreError};
use tidewater_clocks::Clocks;

/// Progress of the tick that the applier carries out, and of the tick that a crashed process had begun.
#[derive(Debug, Default)]
pub(super) struct CloseProgress {
    /// Last tick that was named in the redo area; `None` before the first.
    noted: Option<Closing>,
    /// Position of the present tick before the crash: table id in the upper half, number of the table's stepped
    /// rows in the lower half. 0 for a tick that no crash interrupted.
    before: u64,
}

impl CloseProgress {
    /// Creates the progress from the tick that a dead applier began last.
    pub(super) const fn resume(noted: Closing) -> Self {
        Self {
            noted: Some(noted),
            before: 0,
        }
    }

    /// Number of rows of a table that the present tick had stepped before a crash; `u32::MAX` for all of them, 0
    /// without a crash.
    pub(super) fn rows_done(&self, id: u32) -> u32 {
        let (rows, table) = unpack(self.before);
        if mutants::on(Mutant::ResumedTickFromItsStart) {
            return 0;
        }
        match table.cmp(&id) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => rows,
            std::cmp::Ordering::Greater => u32::MAX,
        }
    }

    /// Names in the redo area the rows of table `id` that the tick steps next: those after the first
    /// `done`. Called before they are stepped, so that a successor finds where a crashed process stopped.
    /// `lsn` is the number of this step in the applier's total order.
    ///
    /// # Errors
    /// None in practice: the area lies inside this process's mapping.
    pub(super) fn name_rows(
        &self,
        redo: &Redo,
        id: u32,
        done: u32,
        lsn: u64,
    ) -> Result<(), StoreError> {
        redo.begin(PushName {
            lsn,
            session: TICK_SESSION,
            seq: pack(done, id),
        })
    }

    /// Stores in the redo area that the first `done` rows of table `id` are stepped. Called after they are,
    /// because pushes that are applied before the next rows overwrite the name of these rows.
    pub(super) fn note_rows(&self, redo: &Redo, id: u32, done: u32) -> Result<(), StoreError> {
        // All rows of a table before the resumed one count as done already.
        redo.note_close(pack(done, id).max(self.before))
    }
}

/// Count of the rows of a table that a tick has stepped.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Number of rows that are stepped, by this process and those before it.
    pub(super) done: u32,
    /// Number of rows that remain to be skipped, because a process before this one has stepped them.
    left_out: u32,
}

impl Steps {
    /// Returns how many of the next `rows` rows the caller must skip, because a process stepped them before
    /// its crash. Counts these as stepped.
    pub(super) fn pass(&mut self, rows: usize) -> usize {
        let out = rows.min(self.left_out as usize);
        self.left_out -= out as u32;
        self.done += out as u32;
        out
    }
}

/// Position in the held pushes of a table that outlives its process: its rows are stepped in the order in
/// which these pushes name them first.
#[derive(Debug, Default)]
pub(super) struct InOrder {
    /// Index of the operation in a tick.
    op: usize,
    /// Index of the push.
    frame: usize,
    /// Index of the row in the push.
    row: usize,
    /// Count of the stepped rows; `None` before the first.
    steps: Option<Steps>,
}

impl Engine {
    /// Whether any of these pushes is of a table that outlives the process, so that a successor needs them.
    /// False without a journal.
    pub(super) fn has_warm(&self, streams: &[Stream]) -> bool {
        let is_warm = |held: &Held| self.is_warm(held.header.table);
        self.journal.is_some()
            && !mutants::on(Mutant::FoldedPushesDropped)
            && streams.iter().flat_map(Stream::frames).any(is_warm)
    }

    fn is_warm(&self, id: u32) -> bool {
        let table = self.tables.get(&id);
        table.is_some_and(|table| table.spec.durability == Durability::Warm)
    }

    /// Notes in the redo area that the close of an iteration begins. If a crashed process had begun this close,
    /// continues at the position of the crash. No effect without a journal.
    pub(super) fn begin_close(&mut self, job: DomainKey, iteration: u64) {
        if self.journal.is_none() {
            return;
        }
        let closing = Closing {
            namespace: job.namespace.0,
            domain: job.domain.0.into(),
            iteration,
            lsn: self.lsn,
            position: 0,
        };
        let name = |of: &Closing| (of.namespace, of.domain, of.iteration);
        let resumed = self
            .closing
            .noted
            .filter(|noted| name(noted) == name(&closing));
        self.closing.before = resumed.map_or(0, |noted| noted.position);
        self.closing.noted = Some(closing);
        if resumed.is_none()
            && let Err(e) = self.redo.begin_close(&closing)
        {
            self.fail(format_args!("a tick could not be named: {e}"));
        }
    }

    /// Notes that an iteration is closed, and frees its pushes that were kept for a process that takes over
    /// after a crash.
    pub(super) fn end_close(&mut self, job: DomainKey, iteration: u64) {
        self.note_closed(job, iteration);
        self.pending.free_folded(job, iteration);
    }

    /// Removes and returns the keys that the closing iteration deletes from a table, in descending order, each
    /// once. Empty if a crashed process had stepped rows of the table: before the first step it had deleted all
    /// keys. Deletions that are repeated before the first step change nothing.
    pub(super) fn due_deletions(&mut self, id: u32) -> Vec<u64> {
        let due = self.noted_deletions(id);
        match self.is_warm(id) && self.closing.rows_done(id) > 0 {
            true => Vec::new(),
            false => due,
        }
    }

    /// Steps the rows of a table that outlives its process until `rows` is 0; subtracts the stepped rows from
    /// `rows`. The order is that in which `pushes` name the rows first. Advances `at`. Returns true if all are
    /// stepped, and for every other table. Cost: that of [`Self::step_rows`], and an index search for each row
    /// of each push.
    pub(super) fn step_in_order(
        &mut self,
        ((id, iteration), pushes): ((u32, u64), [&[Held]; 2]),
        at: &mut InOrder,
        rows: &mut usize,
    ) -> bool {
        if !self.is_warm(id) {
            return true;
        }
        let Some(Sums::Rows(mut all)) = self.sums.remove(&id) else {
            return true;
        };
        let left_out = self.closing.rows_done(id);
        let mut steps = at.steps.take().unwrap_or(Steps { done: 0, left_out });
        let mut payload = Vec::new();
        let mut slots = Vec::new();
        let mut stepped = Ok(());
        while let (Some(op), Some(sums)) = (tick_order().get(at.op), all.get_mut(at.op))
            && *rows > 0
        {
            slots.clear();
            let most = STEP_ROWS.min(*rows);
            let frames = pushes.iter().copied().flatten().skip(at.frame);
            for held in frames {
                let is_it = held.header.flags.op == Some(*op);
                let count = held.header.count as usize * usize::from(is_it);
                let end = count.min(at.row + most - slots.len());
                self.pending
                    .payload_part(held, at.row * 8..end.max(at.row) * 8, &mut payload);
                let keys = payload.chunks_exact(8).map(|key| word(key, 0));
                slots.extend(keys.filter_map(|key| sums.as_ref()?.find(key)));
                at.row = end;
                if end < count {
                    break;
                }
                (at.frame, at.row) = (at.frame + 1, 0);
            }
            if slots.is_empty() {
                (at.op, at.frame, at.row) = (at.op + 1, 0, 0);
                continue;
            }
            *rows -= slots.len();
            if let Some(sums) = sums {
                let slots = slots.drain(..);
                stepped = stepped
                    .and_then(|()| self.step_slots(id, iteration, *op, sums, slots, &mut steps));
            }
        }
        self.sums.insert(id, Sums::Rows(all));
        at.steps = Some(steps);
        if let Err(why) = stepped {
            self.fail(why);
        }
        at.op == tick_order().len()
    }

    /// Takes over the held pushes of a dead applier: reserves their sums, and queues the work that its
    /// clocks have left. `applied` has the number of the last counted frame of each session. Pushes of the
    /// `lost` worker in iterations that it had not ended are dropped.
    ///
    /// # Errors
    /// [`ResumeError`] when they are damaged, or there is no memory for their sums.
    pub(super) fn resume_held(
        &mut self,
        applied: &BTreeMap<u64, u64>,
        lost: Option<LostWorker>,
    ) -> Result<(), ResumeError> {
        let (clocks, closed) = (&self.clocks, &self.closed);
        let is_lost = |key: &StreamKey| {
            let lost = lost
                .iter()
                .filter(|_| !mutants::on(Mutant::LostPushesResumed));
            let lost =
                lost.filter(|(of, rank, _)| (*of, *rank) == (key.namespace, key.thread.rank));
            let mut open =
                lost.map(|(.., open)| open.iter().find(|(domain, _)| *domain == key.domain));
            open.any(|open| match open {
                Some((_, from)) => key.iteration >= *from,
                // No member has ticked in the domain.
                None => clocks[&key.namespace]
                    .domains()
                    .all(|domain| domain != key.domain),
            })
        };
        let is_open = |key: &StreamKey| {
            let closed = closed.get(&DomainKey::new(key.namespace, key.domain));
            clocks.contains_key(&key.namespace)
                && key.iteration >= closed.copied().unwrap_or_default()
                && !is_lost(key)
        };
        let tables = &self.tables;
        let is_known = |id: u32| {
            let table = tables.get(&id);
            table.is_some_and(|table| table.spec.durability == Durability::Warm)
        };
        self.pending.resume(applied, is_open, is_known)?;
        for held in self.pending.all_frames() {
            self.reserve_again(&held)?;
        }
        for DomainKey { namespace, domain } in self.pending.domains() {
            // Those without ticks are in no entry of the journal.
            self.clocks(namespace).min(domain);
        }
        let of_job = |(&namespace, clocks): (&NamespaceId, &Clocks)| {
            let domains: Vec<DomainId> = clocks.domains().collect();
            domains
                .into_iter()
                .map(move |domain| DomainKey::new(namespace, domain))
        };
        let mut domains: Vec<_> = self.clocks.iter().flat_map(of_job).collect();
        // The tick that was cut comes first: the redo area has the position of one.
        let cut = self
            .closing
            .noted
            .map(|noted| (noted.namespace, noted.domain));
        domains.sort_by_key(|DomainKey { namespace, domain }| {
            cut != Some((namespace.0, domain.0.into()))
        });
        for DomainKey { namespace, domain } in domains {
            let closed = self.closed.get(&DomainKey::new(namespace, domain)).copied();
            for iteration in closed.unwrap_or_default()..self.clocks(namespace).min(domain) {
                self.queue_close(DomainKey::new(namespace, domain), iteration);
            }
            self.next_turn(namespace, domain);
        }
        Ok(())
    }

    /// Reserves the memory for the sums of a held push, as when it arrived. The error is
    /// `ResumeError::Damaged`: there is no room.
    fn reserve_again(&mut self, held: &Held) -> Result<(), ResumeError> {
        let header = &held.header;
        let Some(op) = header.flags.op.filter(|_| header.kind != FrameKind::Delete) else {
            return Ok(());
        };
        let count = header.count as usize;
        let mut payload = std::mem::take(&mut self.scratch);
        let reserved = match header.kind {
            FrameKind::PushDense => {
                self.pending
                    .payload_part(held, 0..FIRST_BYTES, &mut payload);
                let split = self.split_steps(header, op, word(&payload, 0));
                split.and_then(|()| self.reserve_sums(header.table, op))
            }
            _ => {
                self.pending.payload_part(held, 0..count * 8, &mut payload);
                self.reserve_row_sums(header.table, op, &payload, count, header.clock)
            }
        };
        self.scratch = payload;
        reserved.map_err(|refusal| ResumeError::Damaged {
            what: format!(
                "no room for the sums of a held push of {}: {refusal:?}",
                held.thread
            ),
        })
    }
}

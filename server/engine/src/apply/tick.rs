//! Ticks: a worker's clock moves; when the minimum moves, the iterations it closes take effect.
//!
//! Pushes of an iteration are reduced in the order of rank, thread and frame, row by row, each rank
//! when all its threads have ticked and all ranks below it have. When the iteration is closed, each
//! row takes one optimizer step. The bits depend neither on timing nor on which server owns which
//! partition. Only then is the new minimum announced, so no reader at clock c sees an update of an
//! iteration >= c. This happens in steps: see `tick_steps`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidewater_protocol::ids::{DomainId, TableId, WorkerId, WorkerThread};
use tidewater_protocol::layout::frame::{
    CLOCK_FINISHED, CLOCK_JOIN, FrameHeader, FrameKind, RowsPayload,
};
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::{Durability, PushOp, Reduce};

use super::Refusal;
use super::deletion::note_deletions;
use super::engine::{Effect, Engine};
use super::pending::{Held, Stream};
use super::push::word;
use super::push_values::weight_of;
use super::reduce::tick_order;
use super::row_sums::{AHEAD, PushedRow, RowSums};
use super::sums::Sums;
use super::table::{Store, Table};
use super::tick_blocks::order_of;
use super::tick_steps::SumsPlace;
use super::warm_ticks::Steps;
use crate::namespace::{DomainKey, FrameSender, NamespaceId};
use crate::store::ShardId;
use tidewater_clocks::{BadClock, ClockChange, FirstClocks, Moved};
use tidewater_kernels::scale;

/// Most rows that a tick looks up and then changes together: their values stay in the core's cache.
pub(super) const STEP_ROWS: usize = 512;

impl Engine {
    pub(super) fn clock(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
    ) -> Result<Effect, Refusal> {
        let sent = header.clock;
        if header.partition >= 64 {
            return Err(RejectReason::BadClock {
                clock: sent,
                expected: u64::MAX,
            });
        }
        if self.clocks(sender.namespace).is_held() && !mutants::on(Mutant::HeldClocksMove) {
            return Ok(Effect::Wait);
        }
        // What the thread pushed for a task is of the iteration that it has open when the task is finished.
        if self.pending.has_task(sender.namespace, sender.thread) {
            return Err(RejectReason::BadClock {
                clock: sent,
                expected: sent.saturating_sub(1),
            });
        }
        let bad = |e: BadClock| RejectReason::BadClock {
            clock: sent,
            expected: e.expected,
        };
        if self.was_carried_out(header) {
            // The iterations that it ended may not be closed yet.
            let domain = (sent != CLOCK_FINISHED).then_some(DomainId(header.partition as u8));
            return match sent == CLOCK_JOIN || mutants::on(Mutant::CutClockAtOnce) {
                true => Ok(Effect::Clock),
                false => Ok(self.clock_effect(sender.namespace, sender.thread, domain)),
            };
        }
        if sent == CLOCK_JOIN {
            // In every domain. No minimum moves and no turn passes.
            let clocks = self.clocks(sender.namespace);
            clocks.join_sibling(sender.thread).map_err(bad)?;
            let change = ClockChange::JoinSibling(sender.thread);
            self.note_clocks(sender.namespace, change, Some(header));
            return Ok(Effect::Clock);
        }
        let domain = DomainId(header.partition as u8);
        let FrameSender { thread, namespace } = sender;
        if sent == CLOCK_FINISHED && !mutants::on(Mutant::FinishLeavesOneDomain) {
            if !self.is_half_ticked(namespace, thread, None) {
                self.finish_thread(namespace, thread, Some(header));
            }
            return Ok(self.clock_effect(namespace, thread, None));
        }
        // Thread 0 of the worker may have left meanwhile, and all its threads with it.
        let at = self.clocks(namespace).clock(domain, thread);
        let is_half =
            self.is_half_ticked(namespace, thread, Some(domain)) && at.is_none_or(|at| at == sent);
        if is_half {
            return Ok(self.clock_effect(namespace, thread, Some(domain)));
        }
        self.clocks(namespace)
            .check(domain, thread, sent)
            .map_err(bad)?;
        let change = ClockChange::Tick(domain, thread, sent);
        self.note_clocks(namespace, change, Some(header));
        let moved = self.clocks(namespace).tick(domain, thread, sent);
        let moved = moved.map_err(bad)?;
        let was_idle = !self.is_ticking();
        let has_moved = moved.is_some();
        let now = tidewater_runtime::clock::now();
        self.pace
            .ticked(DomainKey::new(namespace, domain), thread, has_moved, now);
        self.advance(namespace, moved);
        self.next_turn(namespace, domain);
        // All of a small tick.
        if was_idle {
            self.tick_step();
        }
        match has_moved {
            true => Ok(self.clock_effect(namespace, thread, Some(domain))),
            false => Ok(Effect::Clock),
        }
    }

    /// Ends the membership of a thread in every clock domain of its job, also where it never ticked. With the
    /// first thread, all threads of its worker leave, and their unfinished tasks are dropped. Pushes after the
    /// last tick take effect. The journal notes `frame`, the CLOCK frame of the thread, as carried out.
    fn finish_thread(
        &mut self,
        namespace: NamespaceId,
        thread: WorkerThread,
        frame: Option<&FrameHeader>,
    ) {
        self.note_clocks(namespace, ClockChange::Finish(thread), frame);
        if thread.is_first() {
            // All threads of the worker leave with it. One that has a task cannot have it finished any more.
            self.drop_tasks(namespace, thread.rank);
            self.pending.keep_rank(namespace, thread.rank);
            self.held_functions.keep_rank(namespace, thread.rank);
        }
        let moved = self.clocks(namespace).finish(thread);
        self.pace.forget(namespace, thread);
        self.left(namespace, moved);
    }

    /// Releases the clocks of a job that `Engine::hold_clocks` holds, with a new member if there is one:
    /// its rank and its first clocks. Frames that waited in their rings are offered again.
    pub fn admit_worker(
        &mut self,
        namespace: NamespaceId,
        admitted: Option<(WorkerId, FirstClocks)>,
    ) {
        self.note_clocks(namespace, ClockChange::Admit(admitted.clone()), None);
        let clocks = self.clocks(namespace);
        clocks.go_on();
        let moved = match admitted {
            Some((rank, first)) => clocks.admit(rank, first),
            None => Vec::new(),
        };
        // The new member may have the turn, and frames wait.
        self.left(namespace, moved);
        self.pending.changed();
    }

    /// Lists the clocks of a worker's threads in all domains that were ticked in: thread, domain, number of
    /// ticks. A thread that has finished has `CLOCK_FINISHED` in domain 0, until the worker is removed.
    pub fn clocks_of(
        &mut self,
        namespace: NamespaceId,
        rank: WorkerId,
    ) -> Vec<(WorkerThread, DomainId, u64)> {
        self.clocks(namespace).of_worker(rank)
    }

    /// Completes the tick of a lost worker's thread to `clock`, if this applier lacks exactly this tick; otherwise
    /// no effect. Another applier has consumed the CLOCK frame of the tick. All pushes of the iteration are
    /// here, since they were acknowledged before that frame was sent. `CLOCK_FINISHED` ends the thread in all
    /// domains.
    pub fn complete_tick(
        &mut self,
        namespace: NamespaceId,
        thread: WorkerThread,
        domain: DomainId,
        clock: u64,
    ) {
        if !self.clocks(namespace).lacks(domain, thread, clock) {
            return;
        }
        if clock == CLOCK_FINISHED {
            self.finish_thread(namespace, thread, None);
            return;
        }
        self.note_clocks(namespace, ClockChange::Tick(domain, thread, clock), None);
        // The clock is the thread's next one, so that nothing is refused.
        let moved = self.clocks(namespace).tick(domain, thread, clock);
        self.left(namespace, moved.ok().flatten().into_iter().collect());
    }

    /// Removes a lost worker from the clocks of its job, so that no minimum waits for the worker. Drops the pushes
    /// of all its threads in iterations that it did not end, and its tasks that are not finished. A worker that
    /// had finished before a later one of its rank began has left already: the later one stays as it is.
    pub fn remove_worker(&mut self, namespace: NamespaceId, rank: WorkerId) {
        self.note_clocks(namespace, ClockChange::Remove(rank), None);
        let clocks = self.clocks(namespace);
        if clocks.take_ended(rank) {
            // Its tasks were dropped when it finished. Those that are here are of the later member.
            return;
        }
        self.drop_tasks(namespace, rank);
        for (domain, iteration) in self.clocks(namespace).open_iterations(rank) {
            if !mutants::on(Mutant::LostIterationKept) {
                let of = DomainKey::new(namespace, domain);
                self.pending.forget_rank(of, iteration, rank);
                self.held_functions.forget_rank(of, iteration, rank);
                self.recount_sums(namespace, domain);
            }
        }
        let moved = self.clocks(namespace).remove(rank);
        self.half_ticked
            .retain(|(of, thread, _), _| (*of, thread.rank) != (namespace, rank));
        self.pace.forget_rank(namespace, rank);
        self.left(namespace, moved);
    }

    /// Drops the held pushes of all tasks of a lost or leaving worker, of all its threads.
    fn drop_tasks(&mut self, namespace: NamespaceId, rank: WorkerId) {
        for (thread, task) in self.pending.tasks_of(namespace, rank) {
            match mutants::on(Mutant::LostTaskApplied) {
                true => self.finish_task(namespace, thread, task, &mut || ()),
                false => self.pending.drop_task(namespace, thread, task),
            }
        }
    }

    /// Follows up on members that have left: queues the work that closes the iterations that `moved` minimums
    /// end, and the turns of the ranks that come next. Starts the work if none was under way.
    fn left(&mut self, namespace: NamespaceId, moved: Vec<Moved>) {
        let domains: Vec<DomainId> = self.clocks(namespace).domains().collect();
        let was_idle = !self.is_ticking();
        self.advance(namespace, moved);
        for domain in domains {
            self.next_turn(namespace, domain);
        }
        if was_idle {
            self.tick_step();
        }
    }

    /// Queues the turn of the lowest worker rank that has not ended the open iteration, if there is one. In a turn the
    /// pushes of lower ranks are added to the sums; then the held frames of the queued rank leave the budget of
    /// early ones.
    pub(super) fn next_turn(&mut self, namespace: NamespaceId, domain: DomainId) {
        let clocks = self.clocks(namespace);
        let (turn, iteration) = (clocks.turn(domain), clocks.line(domain).min);
        // Without ranks nothing closes the iteration.
        let Some(rank) = turn else { return };
        if !self.deferred.is_empty() {
            return;
        }
        self.queue_turn(DomainKey::new(namespace, domain), iteration, rank);
    }

    fn advance(&mut self, namespace: NamespaceId, moved: impl IntoIterator<Item = Moved>) {
        for moved in moved {
            if mutants::on(Mutant::TickBeforeApply) {
                // The mutant: announced now, applied at the next call.
                self.deferred.push((namespace, moved));
                self.moved.push(DomainKey::new(namespace, moved.domain));
                continue;
            }
            for iteration in moved.from..moved.to {
                self.queue_close(DomainKey::new(namespace, moved.domain), iteration);
            }
        }
    }

    /// Applies ticks that a mutant (a deliberate defect, to test the tests) has deferred. No effect without
    /// that mutant.
    pub fn apply_deferred(&mut self) {
        for (namespace, moved) in std::mem::take(&mut self.deferred) {
            for iteration in moved.from..moved.to {
                self.queue_close(DomainKey::new(namespace, moved.domain), iteration);
            }
            self.tick_all();
        }
    }

    /// Lists the tables of a domain that a tick changes even if no push is left to add, in no order: those with
    /// sums, deletions or an expiry, and snapshot tables.
    pub(super) fn tables_to_close(&self, namespace: NamespaceId, domain: DomainId) -> Vec<u32> {
        let changes = |t: &&Table| match (&t.store, self.sums.get(&t.id.0)) {
            (Store::Blocks(b), _) if b.is_snapshot() => true,
            (Store::Sparse(shard), _) if shard.expires() => true,
            (_, Some(Sums::Blocks(sums))) => !sums.is_empty(),
            (_, Some(Sums::Rows(all))) => {
                let is_empty = all.iter().flatten().all(RowSums::is_empty);
                !is_empty || self.deletions.contains_key(&t.id.0)
            }
            (_, None) => self.deletions.contains_key(&t.id.0),
        };
        let of_domain = |t: &&Table| (t.namespace, t.spec.domain) == (namespace, domain);
        let tables = self.tables.values().filter(of_domain).filter(changes);
        tables.map(|t| t.id.0).collect()
    }

    /// Adds the `held` frames of a table of rows to its sums, in the order of `held`. The keys of DELETE frames are
    /// noted, to be deleted when the iteration is closed. No effect if the table is gone.
    pub(super) fn fold_rows(&mut self, id: u32, held: &[Held]) {
        let Some(table) = self.tables.get(&id) else {
            return;
        };
        let (dtype, row_bytes) = (table.spec.dtype, table.spec.row_bytes());
        // Without sums, no push ever reached the table.
        let mut none = Default::default();
        let all = match self.sums.get_mut(&id) {
            Some(Sums::Rows(all)) => &mut **all,
            _ => &mut none,
        };
        let mut payload = std::mem::take(&mut self.scratch);
        let mut sum = std::mem::take(&mut self.tick.part);
        for h in held {
            self.pending.payload(h, &mut payload);
            if h.header.kind == FrameKind::Delete {
                let noted = self.deletions.entry(id).or_default();
                note_deletions(table, all, &payload, noted);
                continue;
            }
            let Some(op) = h.header.flags.op else {
                unreachable!("a push without an operation is held: {:?}", h.header);
            };
            let Some(sums) = &mut all[usize::from(order_of(op))] else {
                unreachable!("a push of {op:?} is held, and no sums are reserved");
            };
            let count = h.header.count as usize;
            let parts = RowsPayload::new(count, row_bytes, h.header.flags.locs);
            let weight = weight_of(&h.header, &payload);
            let (keys, values) = payload.split_at_mut(parts.values_at);
            let keys = &*keys;
            let values = &mut values[..count * row_bytes];
            if weight != 1.0 {
                scale(dtype, values, weight);
            }
            for (row, values) in values.chunks_exact(row_bytes.max(1)).enumerate() {
                let key = |row: usize| word(keys, row * 8);
                if row.is_multiple_of(AHEAD) {
                    sums.prefetch((row..count.min(row + AHEAD)).map(key));
                }
                let row = PushedRow {
                    key: key(row),
                    thread: h.thread,
                    weight,
                    values,
                    replaces: op == PushOp::Assign,
                };
                sums.add(dtype, row, &mut sum);
            }
        }
        (self.scratch, self.tick.part) = (payload, sum);
    }

    /// Reserves a sum for each of the `count` rows of a push of `iteration`, so that its tick needs no memory.
    /// The keys are the first words of `payload`. The sums count within the server's capacity.
    ///
    /// # Errors
    /// [`RejectReason::NoMemory`].
    pub(super) fn reserve_row_sums(
        &mut self,
        id: u32,
        op: PushOp,
        payload: &[u8],
        count: usize,
        iteration: u64,
    ) -> Result<(), Refusal> {
        let row_bytes = self
            .tables
            .get(&id)
            .map_or(0, |table| table.spec.row_bytes());
        let memory = Arc::clone(&self.memory);
        let shard = ShardId::new(TableId(id), self.pending.applier());
        let no_memory = |_| {
            let (used, capacity) = memory.private.usage();
            RejectReason::NoMemory {
                used: used as u64,
                capacity: capacity as u64,
            }
        };
        let sums = self
            .sums
            .entry(id)
            .or_insert_with(|| Sums::Rows(Default::default()));
        let Sums::Rows(all) = sums else {
            unreachable!("table {id} has rows and sums of blocks");
        };
        let of_op = &mut all[usize::from(order_of(op))];
        let sums = match of_op {
            Some(sums) => sums,
            None => of_op.insert(RowSums::new(&memory, shard, row_bytes).map_err(no_memory)?),
        };
        let key = |row: usize| word(payload, row * 8);
        sums.reserve(count, key, iteration).map_err(no_memory)
    }

    /// Applies the sums of a table of rows when `iteration` ends, and sweeps their slots, from position `at` on.
    /// Advances `at`. Subtracts the slots examined from `rows` and stops at 0. Returns whether all sums are
    /// applied; a failure stops the applier. Cost: a search and a step for each row; two buffers of
    /// `STEP_ROWS` rows.
    pub(super) fn step_rows(
        &mut self,
        id: u32,
        iteration: u64,
        at: &mut SumsPlace,
        rows: &mut usize,
    ) -> bool {
        let Some(Sums::Rows(mut all)) = self.sums.remove(&id) else {
            return true;
        };
        // Frames between two steps have numbers of their own.
        self.lsn += 1;
        let mut stepped = Ok(());
        while let (Some(op), Some(sums)) = (tick_order().get(at.op), all.get_mut(at.op)) {
            let Some(sums) = sums else {
                at.op += 1;
                continue;
            };
            let end = *at.end.get_or_insert(sums.slots());
            let slots = at.slot..end.min(at.slot + STEP_ROWS.min(*rows));
            match (slots.is_empty(), at.sweeps) {
                (true, _) if at.slot < end => break,
                (true, false) if sums.end_walk() => (at.op, at.end) = (at.op + 1, None),
                (true, false) => at.sweeps = true,
                (true, true) => (at.op, at.end, at.sweeps) = (at.op + 1, None, false),
                (false, false) => {
                    let slots = slots.clone();
                    let mut steps = Steps::default();
                    stepped = stepped.and_then(|()| {
                        self.step_slots(id, iteration, *op, sums, slots, &mut steps)
                    });
                }
                (false, true) => sums.sweep(slots.clone()),
            }
            *rows -= slots.len();
            at.slot = if slots.is_empty() { 0 } else { slots.end };
        }
        self.sums.insert(id, Sums::Rows(all));
        if let Err(why) = stepped {
            self.fail(why);
        }
        at.op == tick_order().len()
    }

    /// Takes the sums in some slots and applies them to their rows, as one operation `op`. Missing rows are
    /// created; a mean with weights of 0 is no step. On a table that outlives its process, skips the rows that
    /// `steps` says were done before a crash, and counts the others in `steps`. The error is the reason why
    /// acknowledged pushes are lost.
    pub(super) fn step_slots(
        &mut self,
        id: u32,
        iteration: u64,
        op: PushOp,
        sums: &mut RowSums,
        slots: impl IntoIterator<Item = usize>,
        steps: &mut Steps,
    ) -> Result<(), String> {
        let Some(table) = self.tables.get(&id) else {
            unreachable!("the tick is of table {id}, which is not there");
        };
        let (dtype, reduce) = (table.spec.dtype, reduce_of(table));
        let row_bytes = table.spec.row_bytes();
        let expires = table.spec.keys.expire_after > 0;
        let mut values = std::mem::take(&mut self.scratch);
        let mut keys = std::mem::take(&mut self.tick.keys);
        values.clear();
        keys.clear();
        for slot in slots {
            let at = values.len();
            let Some((key, threads)) = sums.take(slot, iteration, &mut values) else {
                continue;
            };
            let is_mean = op == PushOp::Gradient && reduce == Reduce::Mean;
            if is_mean && !threads.mean(dtype, &mut values[at..at + row_bytes]) {
                values.truncate(at);
                continue;
            }
            keys.push(key);
        }
        let is_warm = table.spec.durability == Durability::Warm;
        if is_warm {
            let done = steps.pass(keys.len());
            keys.drain(..done);
            values.drain(..done * row_bytes);
            self.lsn += 1;
            let named = self.closing.name_rows(&self.redo, id, steps.done, self.lsn);
            named.map_err(|e| format!("rows of a tick of table {id} could not be named: {e}"))?;
        }
        // Rows exist since their pushes were held. One that was removed meanwhile is created again;
        // without memory for it an acknowledged push would be lost.
        let found = self.find_rows(id, keys.len(), |row| (keys[row], RowLocation::NONE));
        let stored = found.map_err(|reason| {
            format!(
                "a tick of table {id} found no place for rows of acknowledged pushes ({reason:?}); \
                 raise --capacity"
            )
        });
        let stored = stored.and_then(|()| {
            let progress = self.progress(0);
            let Some(writer) = self.tables.get_mut(&id).and_then(Table::rows) else {
                unreachable!("rows of table {id} have been found");
            };
            let stored = writer.apply_all(&self.redo, progress, &self.places, op, &values);
            stored.map_err(|e| format!("rows of table {id} could not be stored: {e}"))
        });
        if is_warm && !keys.is_empty() && stored.is_ok() {
            steps.done += keys.len() as u32;
            let noted = self.closing.note_rows(&self.redo, id, steps.done);
            noted.map_err(|e| format!("rows of a tick of table {id} could not be noted: {e}"))?;
        }
        if expires {
            self.stamp_rows(id);
        }
        (self.scratch, self.tick.keys) = (values, keys);
        stored
    }
}

/// Groups the held pushes and deletions of streams by table, each group in the order of the streams.
pub(super) fn by_table(streams: &[Stream]) -> BTreeMap<u32, Vec<Held>> {
    let mut tables: BTreeMap<u32, Vec<Held>> = BTreeMap::new();
    let frames = streams.iter().flat_map(Stream::frames);
    for held in frames.filter(|held| held.header.kind.is_push()) {
        tables.entry(held.header.table).or_default().push(*held);
    }
    tables
}

pub(super) fn reduce_of(table: &Table) -> Reduce {
    match table.spec.effect {
        tidewater_protocol::table::Apply::AtTick(reduce) => reduce,
        tidewater_protocol::table::Apply::Immediate => Reduce::Sum,
    }
}

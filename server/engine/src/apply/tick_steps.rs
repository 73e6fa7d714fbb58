//! Ticks in steps: what a moved clock leaves to do, a bounded number of rows at a time.
//!
//! A tick of millions of rows takes seconds. It must not hold the applier, which serves other clients and
//! tables between the steps. A clock that moves puts its work into a queue. Its first entry is worked
//! off: right away up to [`TICK_ROWS`] rows, which is all of a small tick, and as much in each round of
//! the applier.
//!
//! The order of the work is that of the clocks, so sums have the same bits as without steps:
//!
//! - A push of a later iteration is held and gets its slots meanwhile. It is added by a later entry.
//! - A minimum is announced, to clients and to saves, when the entry that closes its iteration is done
//!   ([`Engine::clock_line`]). The CLOCK frame that moved it stays in its ring until then: what its client
//!   sends after it, and the acknowledgement for which `flush` waits, come after the tick.
//! - The reserve for the rank that has its turn is in use until its predecessor's pushes are added. Until
//!   then its pushes count as early, and wait in their ring beyond that budget.
//!
//! A range table is closed in one step, which takes the longer the more its last ranks pushed.

use std::collections::BTreeMap;

use tidewater_protocol::ids::{DomainId, WorkerId, WorkerThread};
use tidewater_protocol::layout::frame::FrameKind;
use tidewater_protocol::layout::lines::ClockLine;

use super::engine::{Effect, Engine};
use super::pending::{Held, Stream};
use super::push::word;
use super::sums::Sums;
use super::table::Store;
use super::tick::by_table;
use super::tick_blocks::order_of;
use super::warm_ticks::InOrder;
use crate::namespace::{DomainKey, NamespaceId};

/// Number of rows that one step of a tick adds or steps. A step takes 2 to 4 ms, like a batch of pushes.
pub(super) const TICK_ROWS: usize = 2_048;
/// Bytes of a range table that cost as much as one row.
const ROW_BYTES: usize = 256;

/// Kind of work in an iteration: a turn, in which the pushes of lower ranks are added to the sums, or its
/// end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Adds the pushes of all ranks below this one, and gives this rank the turn.
    Turn(WorkerId),
    /// Adds the pushes of all ranks that are left, and applies the sums.
    Close,
}

/// Work that a moved clock has queued in an iteration of a job's domain.
#[derive(Debug)]
pub(super) struct TickWork {
    namespace: NamespaceId,
    domain: DomainId,
    iteration: u64,
    kind: Kind,
    /// Number of the work, ascending in the order of the queue.
    number: u64,
    /// Progress after the first step; `None` before it.
    begun: Option<Begun>,
}

/// What is left of queued work after its first step: held pushes, tables, functions.
#[derive(Debug)]
struct Begun {
    /// Held pushes that the work adds.
    streams: Vec<Stream>,
    /// Tables that are left, the current one last, each with its held pushes.
    tables: Vec<(u32, Vec<Held>)>,
    /// Pushes of the iteration that were added before, by table. Only where a successor needs them.
    folded: BTreeMap<u32, Vec<Held>>,
    /// Position in the current table.
    at: Place,
    /// Functions that run after all tables, in this order.
    functions: Vec<Held>,
    /// Streams that hold the functions.
    function_streams: Vec<Stream>,
    /// Number of the functions that have run.
    functions_run: usize,
}

impl Begun {
    /// Iterates over the held pushes of the work that are not added to the sums yet. All others need no slots:
    /// they are in sums, or were stepped.
    fn unadded(&self) -> impl Iterator<Item = &Held> {
        let (current, later) = match self.tables.split_last() {
            // After the last frame there are none.
            Some(((_, held), later)) => (held.get(self.at.frame..).unwrap_or_default(), later),
            None => (&[][..], &[][..]),
        };
        current
            .iter()
            .chain(later.iter().flat_map(|(_, held)| held))
    }
}

/// Position of the work in the current table, which has rows.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Number of held pushes that were added to the sums.
    frame: usize,
    /// Keys that are left to delete, in descending order; `None` before the first step that deletes.
    deletions: Option<Vec<u64>>,
    pub(super) sums: SumsPlace,
    /// Position in the held pushes of a table that outlives its process.
    pub(super) in_order: InOrder,
    /// Whether all sums of the table are applied.
    is_stepped: bool,
    /// Slot at which the search for expired rows continues.
    swept: u64,
}

/// Position of a tick in the sums of a table of rows.
#[derive(Debug, Default)]
pub(super) struct SumsPlace {
    /// Index of the operation in the order of a tick.
    pub(super) op: usize,
    /// Number of slots of the operation at the beginning of the walk; `None` before it. Later slots have no sums
    /// of this iteration.
    pub(super) end: Option<usize>,
    /// Whether the walk has ended and its slots are being swept.
    pub(super) sweeps: bool,
    /// Number of the slot that comes next.
    pub(super) slot: usize,
}

/// Stands for the domain of a CLOCK frame that ends a thread's membership in all domains, as a key of
/// `half_ticked`.
const ALL_DOMAINS: DomainId = DomainId(u8::MAX);

impl Engine {
    /// Sets the number of rows that one step of a tick adds or steps; at least 1.
    pub fn set_tick_rows(&mut self, rows: usize) {
        self.tick_rows = rows.max(1);
    }

    /// Whether work of ticks is queued.
    pub fn is_ticking(&self) -> bool {
        !self.ticking.is_empty()
    }

    /// Queues the work of a rank's turn in the open iteration: the pushes of the ranks below `rank` are added to
    /// the sums. No effect if this turn is queued and has not begun.
    pub(super) fn queue_turn(
        &mut self,
        DomainKey { namespace, domain }: DomainKey,
        iteration: u64,
        rank: WorkerId,
    ) {
        let kind = Kind::Turn(rank);
        let is_same = |work: &TickWork| {
            (work.namespace, work.domain, work.iteration) == (namespace, domain, iteration)
                && work.kind == kind
                && work.begun.is_none()
        };
        // A thread that ticks ahead of the others passes no turn.
        if !self.ticking.iter().any(is_same) {
            self.queue(DomainKey::new(namespace, domain), iteration, kind);
        }
    }

    /// Queues the work that closes an iteration of a job's domain.
    pub(super) fn queue_close(&mut self, job: DomainKey, iteration: u64) {
        self.queue(job, iteration, Kind::Close);
    }

    fn queue(&mut self, DomainKey { namespace, domain }: DomainKey, iteration: u64, kind: Kind) {
        self.last_tick_work += 1;
        self.ticking.push_back(TickWork {
            namespace,
            domain,
            iteration,
            kind,
            number: self.last_tick_work,
            begun: None,
        });
    }

    /// Whether work of ticks is queued for a job's domain.
    pub(super) fn ticks(&self, namespace: NamespaceId, domain: DomainId) -> bool {
        let of_domain = |work: &TickWork| (work.namespace, work.domain) == (namespace, domain);
        self.ticking.iter().any(of_domain)
    }

    /// Whether the close of an iteration of a job has begun and is not done: some rows may be stepped and others
    /// not.
    pub(super) fn closes(&self, namespace: NamespaceId) -> bool {
        let has_begun = |work: &TickWork| {
            (work.namespace, work.kind) == (namespace, Kind::Close) && work.begun.is_some()
        };
        self.ticking.iter().any(has_begun)
    }

    /// Drops the queued work of a job that is over, with its held pushes and functions.
    pub(super) fn forget_ticks(&mut self, namespace: NamespaceId) {
        let (gone, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.ticking)
            .into_iter()
            .partition(|work| work.namespace == namespace);
        self.ticking = rest.into();
        for begun in gone.into_iter().filter_map(|work| work.begun) {
            self.pending.free(begun.streams);
            self.held_functions.free(begun.function_streams);
        }
        self.half_ticked.retain(|(of, ..), _| *of != namespace);
    }

    /// Frees the slots of row sums that only dropped pushes of a lost worker had, in all tables of the domain.
    /// Cost, in one piece: a look at each slot, and at each row of the pushes that are held.
    pub(super) fn recount_sums(&mut self, namespace: NamespaceId, domain: DomainId) {
        let open = self.clock_line(namespace, domain).min;
        let of_domain = |id: &u32| {
            let table = self.tables.get(id);
            table.is_some_and(|t| (t.namespace, t.spec.domain) == (namespace, domain))
        };
        let ids: Vec<u32> = self.sums.keys().copied().filter(of_domain).collect();
        let begun = self.ticking.iter().filter_map(|work| work.begun.as_ref());
        let begun = begun.flat_map(Begun::unadded);
        let pending = self.pending.streams_of(DomainKey::new(namespace, domain));
        let streams: Vec<Held> = begun
            .chain(pending.flat_map(Stream::frames))
            .copied()
            .collect();
        let mut payload = std::mem::take(&mut self.scratch);
        for id in ids {
            let Some(Sums::Rows(all)) = self.sums.get_mut(&id) else {
                continue;
            };
            all.iter_mut()
                .flatten()
                .for_each(|sums| sums.begin_recount(open));
            // Deletions reserve nothing.
            let of_table = |held: &&Held| {
                let kind = held.header.kind;
                kind.is_push() && kind != FrameKind::Delete && held.header.table == id
            };
            for held in streams.iter().filter(of_table) {
                let Some(op) = held.header.flags.op else {
                    unreachable!("a push without an operation is held: {:?}", held.header);
                };
                let count = held.header.count as usize;
                self.pending.payload_part(held, 0..count * 8, &mut payload);
                let key = |row: usize| word(&payload, row * 8);
                let sums = &mut all[usize::from(order_of(op))];
                let kept = sums
                    .as_mut()
                    .map(|sums| sums.reserve(count, key, held.header.clock));
                assert!(
                    matches!(kept, Some(Ok(()))),
                    "rows of a held push have slots: {kept:?}"
                );
            }
            for sums in all.iter_mut().flatten() {
                sums.sweep(0..sums.slots());
            }
        }
        self.scratch = payload;
    }

    /// Returns the clock record of a job's domain. Its minimum counts only iterations that are closed on
    /// this applier.
    pub fn clock_line(&mut self, namespace: NamespaceId, domain: DomainId) -> ClockLine {
        let mut line = self.clocks(namespace).line(domain);
        let closes = |work: &&TickWork| {
            (work.namespace, work.domain, work.kind) == (namespace, domain, Kind::Close)
        };
        let first = self.ticking.iter().find(closes);
        line.min = first.map_or(line.min, |work| work.iteration);
        line
    }

    /// Decides whether a CLOCK frame is done, after the work that the frame caused is queued. `Effect::Wait`
    /// until the iterations of `domain` are closed that were queued when the frame came first: the frame stays
    /// in its ring and is offered again. Then `Effect::Clock`. `domain` is `None` for all domains. Later ticks
    /// of other threads do not delay the frame.
    pub(super) fn clock_effect(
        &mut self,
        namespace: NamespaceId,
        thread: WorkerThread,
        domain: Option<DomainId>,
    ) -> Effect {
        let half = (namespace, thread, domain.unwrap_or(ALL_DOMAINS));
        let last = self.half_ticked.get(&half).copied();
        let last = last.unwrap_or(self.last_tick_work);
        let closes = |work: &TickWork| {
            (work.namespace, work.kind) == (namespace, Kind::Close)
                && domain.is_none_or(|domain| domain == work.domain)
                && work.number <= last
        };
        if self.ticking.iter().any(closes) {
            self.half_ticked.insert(half, last);
            return Effect::Wait;
        }
        self.half_ticked.remove(&half);
        Effect::Clock
    }

    /// Whether a CLOCK frame of this thread has moved its clock already, and waits in its ring until the work
    /// is done. `domain` is `None` for all domains.
    pub(super) fn is_half_ticked(
        &self,
        namespace: NamespaceId,
        thread: WorkerThread,
        domain: Option<DomainId>,
    ) -> bool {
        let half = (namespace, thread, domain.unwrap_or(ALL_DOMAINS));
        self.half_ticked.contains_key(&half)
    }

    /// Makes one step of the queued work of ticks, of about `tick_rows` rows. Ends earlier where a save must make
    /// its cut between two ticks. Returns whether any work was queued before the step.
    pub fn tick_step(&mut self) -> bool {
        let any = self.is_ticking();
        let mut rows = self.tick_rows;
        while rows > 0
            && let Some(mut work) = self.ticking.pop_front()
        {
            let mut begun = match work.begun.take() {
                Some(begun) => begun,
                None => self.begin(&mut work),
            };
            if self.work(&work, &mut begun, &mut rows) {
                self.end(&work, begun);
                // A save is cut between two ticks, also where one follows the other.
                if self.awaits_cut() {
                    break;
                }
            } else {
                work.begun = Some(begun);
                self.ticking.push_front(work);
            }
        }
        any
    }

    /// Makes all steps of the queued work of ticks, without a bound.
    pub(super) fn tick_all(&mut self) {
        while self.tick_step() {}
    }

    fn begin(&mut self, work: &mut TickWork) -> Begun {
        let job = DomainKey::new(work.namespace, work.domain);
        let end = match work.kind {
            Kind::Turn(queued) => {
                let clocks = self.clocks(work.namespace);
                let rank = clocks.turn_at_most(work.domain, work.iteration, queued);
                work.kind = Kind::Turn(rank);
                Some(rank)
            }
            Kind::Close => None,
        };
        let streams = self.pending.take(job, work.iteration, end);
        self.note_settings(&streams);
        let mut tables = by_table(&streams);
        let mut folded = BTreeMap::new();
        if work.kind == Kind::Close {
            folded = by_table(self.pending.folded(job, work.iteration));
            self.begin_close(job, work.iteration);
            self.apply_settings(work.namespace, work.domain);
            self.set_ticks(work.namespace, work.domain, work.iteration);
            for id in self.tables_to_close(work.namespace, work.domain) {
                tables.entry(id).or_default();
            }
        }
        let function_streams = match work.kind {
            Kind::Turn(_) => Vec::new(),
            Kind::Close => self.held_functions.take(job, work.iteration, None),
        };
        let functions = function_streams.iter().flat_map(Stream::frames);
        Begun {
            streams,
            tables: tables.into_iter().rev().collect(),
            folded,
            at: Place::default(),
            functions: functions.copied().collect(),
            function_streams,
            functions_run: 0,
        }
    }

    /// Carries out queued work until `rows` is 0, and subtracts the rows that the work took. Returns whether
    /// all of the work is done.
    fn work(&mut self, work: &TickWork, begun: &mut Begun, rows: &mut usize) -> bool {
        while let Some((id, held)) = begun.tables.last() {
            if *rows == 0 {
                return false;
            }
            match self.tables.get(id).map(|table| &table.store) {
                Some(Store::Blocks(_)) => {
                    let bytes = held.iter().map(|held| held.header.payload_len as usize);
                    *rows = rows.saturating_sub(bytes.sum::<usize>() / ROW_BYTES);
                    match work.kind {
                        Kind::Turn(_) => self.fold_blocks(*id, held),
                        Kind::Close => self.close_blocks(*id, work.iteration, held),
                    }
                }
                Some(_) => {
                    let at = &mut begun.at;
                    while at.frame < held.len() {
                        if *rows == 0 {
                            return false;
                        }
                        let next = next_frames(&held[at.frame..], rows);
                        self.fold_rows(*id, &held[at.frame..at.frame + next]);
                        at.frame += next;
                    }
                    if work.kind == Kind::Close {
                        if !at.is_stepped {
                            let left = at.deletions.take();
                            let mut left = left.unwrap_or_else(|| self.due_deletions(*id));
                            self.delete_some(*id, work.iteration, &mut left, rows);
                            let is_done = left.is_empty();
                            at.deletions = Some(left);
                            let folded = begun.folded.get(id).map_or(&[][..], Vec::as_slice);
                            let of_table = ((*id, work.iteration), [folded, held]);
                            at.is_stepped = is_done
                                && self.step_in_order(of_table, &mut at.in_order, rows)
                                && self.step_rows(*id, work.iteration, &mut at.sums, rows);
                        }
                        if !at.is_stepped
                            || !self.expire_some(*id, work.iteration, &mut at.swept, rows)
                        {
                            return false;
                        }
                    }
                }
                // Released meanwhile.
                None => {}
            }
            begun.tables.pop();
            begun.at = Place::default();
        }
        while let Some(held) = begun.functions.get(begun.functions_run) {
            if *rows == 0 {
                return false;
            }
            let bytes = self.run_held_function(held);
            *rows = rows.saturating_sub(bytes.div_ceil(ROW_BYTES));
            begun.functions_run += 1;
        }
        true
    }

    fn end(&mut self, work: &TickWork, begun: Begun) {
        let job = DomainKey::new(work.namespace, work.domain);
        self.held_functions.free(begun.function_streams);
        let is_kept = matches!(work.kind, Kind::Turn(_)) && self.has_warm(&begun.streams);
        if work.kind == Kind::Close {
            self.end_close(job, work.iteration);
        }
        match is_kept {
            true => self.pending.keep_folded(job, work.iteration, begun.streams),
            false => self.pending.free(begun.streams),
        }
        match work.kind {
            Kind::Turn(rank) => self.pending.stage(job, work.iteration, rank),
            Kind::Close => self.moved.push(job),
        }
    }
}

/// Returns the number of `held` frames, at least one, that the next step adds: those with at most `rows` rows in
/// total. Subtracts their rows from `rows`, which ends at 0 if a single frame has more; an empty frame counts
/// as a row.
fn next_frames(held: &[Held], rows: &mut usize) -> usize {
    let mut frames = 0;
    for held in held {
        let count = held.header.count as usize;
        if frames > 0 && count > *rows {
            break;
        }
        *rows = rows.saturating_sub(count.max(1));
        frames += 1;
        if *rows == 0 {
            break;
        }
    }
    frames
}

#[cfg(test)]
mod tests;

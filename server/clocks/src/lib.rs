//! Clocks and step times of the workers of one job, as one applier sees them; schedules of members. Pure. (long: with its tests.)
//!
//! The members are threads of workers. `clock(t)` is the number of ticks that thread `t` has completed.
//! Only CLOCK frames move it, one at a time, in the order of their ring. So everything that the thread
//! pushed before is applied (or held back) when its clock moves. A worker has ticked when each of its
//! threads has. A domain's minimum over the live threads never goes back.
//!
//! A worker's first client, thread 0, is a member from the start or by [`Clocks::join`]. A further
//! thread ([`Clocks::join_sibling`]) begins at the clocks of thread 0. No minimum lies above those, so
//! none goes back, and no turn passes to it: thread 0 comes before it and is at the same clock.

pub mod membership;
pub mod namespace;
pub mod pace;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use tidewater_protocol::ids::{DomainId, WorkerId, WorkerThread};
use tidewater_protocol::layout::frame::{CLOCK_FINISHED, CLOCK_JOIN};
use tidewater_protocol::layout::lines::ClockLine;
use tidewater_protocol::mutants::{self, Mutant};

/// One domain on one applier.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Domain {
    clocks: BTreeMap<WorkerThread, u64>,
    min: u64,
    /// The largest clock that a worker has had.
    front: u64,
    epoch: u64,
    /// The lowest thread that has not ended iteration `min`.
    turn: Option<WorkerThread>,
}

/// Clocks of every domain of one job on one applier.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    domains: BTreeMap<DomainId, Domain>,
    members: BTreeSet<WorkerThread>,
    /// Whether no more workers will come.
    complete: bool,
    /// Workers that have left. They do not come back, and none of their threads is a member.
    gone: BTreeSet<WorkerId>,
    /// For each member the domains that it has ticked in, a bit each.
    ticked: BTreeMap<WorkerThread, u64>,
    /// Clocks with which workers that joined later begin, in domains that are used later.
    first: BTreeMap<WorkerId, FirstClocks>,
    /// Later memberships of ranks that are members.
    later: BTreeMap<WorkerId, VecDeque<FirstClocks>>,
    /// Memberships that their worker ended itself, with a later one of the rank begun thereby. The
    /// coordinator's word of each end is still to come, and does not mean the later one.
    ended: BTreeMap<WorkerId, u32>,
    /// Threads that have finished, until the coordinator has ended their worker: a worker that is lost
    /// meanwhile has to end in the same way on all appliers.
    finished: BTreeSet<WorkerThread>,
    /// Whether no CLOCK frame is consumed: a worker is being admitted.
    held: bool,
}

/// Clocks with which a worker begins; 0 in domains that are missing.
pub type FirstClocks = BTreeMap<DomainId, u64>;

/// A change of the clocks of a job, as a journal has it: the call that makes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClockChange {
    /// The number of workers is known, see [`Clocks::expect`].
    Expect(u32),
    /// A worker has joined, see [`Clocks::join`].
    Join(WorkerId),
    /// The clocks are held, see [`Clocks::hold`].
    Hold,
    /// [`Clocks::go_on`], and [`Clocks::admit`] for a new member.
    Admit(Option<(WorkerId, FirstClocks)>),
    /// [`Clocks::take_ended`]; [`Clocks::remove`] if that is false.
    Remove(WorkerId),
    /// A further thread is a member, see [`Clocks::join_sibling`].
    JoinSibling(WorkerThread),
    /// A thread has finished, see [`Clocks::finish`].
    Finish(WorkerThread),
    /// A thread has ticked or left, see [`Clocks::tick`].
    Tick(DomainId, WorkerThread, u64),
}

/// A domain's minimum moved: iterations `from..to` are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Number of the domain.
    pub domain: DomainId,
    /// Minimum before the move.
    pub from: u64,
    /// Minimum after the move.
    pub to: u64,
}

/// A clock that is not the thread's next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{thread} says clock {sent}, but {expected} is due")]
pub struct BadClock {
    /// Sender of the frame.
    pub thread: WorkerThread,
    /// Clock in the thread's frame.
    pub sent: u64,
    /// Clock that is due; 0 for a thread that is no member.
    pub expected: u64,
}

impl Clocks {
    /// Clocks of these workers, all at 0; without workers, for a job that sets them later.
    pub fn new(workers: impl IntoIterator<Item = WorkerId>) -> Self {
        let members: BTreeSet<WorkerThread> =
            workers.into_iter().map(WorkerThread::first).collect();
        Self {
            domains: BTreeMap::new(),
            complete: !members.is_empty(),
            members,
            gone: BTreeSet::new(),
            ticked: BTreeMap::new(),
            first: BTreeMap::new(),
            later: BTreeMap::new(),
            ended: BTreeMap::new(),
            finished: BTreeSet::new(),
            held: false,
        }
    }

    /// Makes a change again that a process before this one made, of which the results are known. One that is in the
    /// state already is refused and changes nothing.
    pub fn replay(&mut self, change: ClockChange) {
        match change {
            ClockChange::Expect(workers) => self.expect(workers),
            ClockChange::Join(rank) => self.join(rank),
            ClockChange::Hold => self.held = true,
            ClockChange::Admit(admitted) => {
                self.go_on();
                if let Some((rank, first)) = admitted {
                    self.admit(rank, first);
                }
            }
            ClockChange::Remove(rank) => {
                if !self.take_ended(rank) {
                    self.remove(rank);
                }
            }
            ClockChange::JoinSibling(thread) => {
                let _ = self.join_sibling(thread);
            }
            ClockChange::Finish(thread) => {
                self.finish(thread);
            }
            ClockChange::Tick(domain, thread, sent) => {
                let _ = self.tick(domain, thread, sent);
            }
        }
    }

    /// Sets the members to workers `0..workers`. The first call stands.
    pub fn expect(&mut self, workers: u32) {
        if !self.complete {
            (0..workers).for_each(|rank| self.join(WorkerId(rank)));
            self.complete = true;
        }
    }

    /// Notes that a worker has joined. If the number of workers is unknown, its first thread becomes a
    /// member, at 0, of each domain with its minimum still at 0: a minimum does not go back for a
    /// latecomer.
    pub fn join(&mut self, rank: WorkerId) {
        let worker = WorkerThread::first(rank);
        if self.complete || self.gone.contains(&rank) || !self.members.insert(worker) {
            return;
        }
        for domain in self.domains.values_mut().filter(|domain| domain.min == 0) {
            domain.insert(worker, 0);
        }
    }

    /// Holds the clocks until [`Clocks::admit`] or [`Clocks::go_on`]. Returns the furthest clock of each
    /// domain that a worker has ticked in. No member has ended that iteration, so none is in its sums.
    pub fn hold(&mut self) -> Vec<(DomainId, u64)> {
        self.held = true;
        self.furthest()
    }

    /// The furthest clock of each domain that a worker has ticked in; the worker may have left.
    pub fn furthest(&self) -> Vec<(DomainId, u64)> {
        let used = self.domains.iter().filter(|(_, domain)| domain.front > 0);
        used.map(|(&id, domain)| (id, domain.front)).collect()
    }

    /// Whether the clocks are held.
    pub const fn is_held(&self) -> bool {
        self.held
    }

    /// Lets held clocks go on.
    pub const fn go_on(&mut self) {
        self.held = false;
    }

    /// Makes a worker a member of every domain at the clock with which it begins. A rank that is a member
    /// begins when that one leaves. Returns the domains with a moved minimum: those without other members.
    ///
    /// The clocks come from the coordinator: at least those that [`Clocks::hold`] returned at any
    /// applier, or those of a schedule. A clock below the minimum would take it back; the minimum
    /// replaces it, and the worker's ticks are refused.
    pub fn admit(&mut self, rank: WorkerId, first: FirstClocks) -> Vec<Moved> {
        let worker = WorkerThread::first(rank);
        if self.members.contains(&worker) {
            self.later.entry(rank).or_default().push_back(first);
            return Vec::new();
        }
        self.gone.remove(&rank);
        self.members.insert(worker);
        let mut moved = Vec::new();
        for (&id, domain) in &mut self.domains {
            let clock = first.get(&id).copied().unwrap_or_default();
            domain.insert(worker, clock.max(domain.min));
            moved.extend(domain.advance(id));
        }
        self.first.insert(rank, first);
        moved
    }

    /// Makes a further thread of a worker a member of the domains of its thread 0, at the same clocks.
    ///
    /// # Errors
    /// [`BadClock`] when thread 0 is no member, or `thread` is one already; nothing was changed.
    pub fn join_sibling(&mut self, thread: WorkerThread) -> Result<(), BadClock> {
        let first = WorkerThread::first(thread.rank);
        if !self.members.contains(&first) || !self.members.insert(thread) {
            return Err(BadClock {
                thread,
                sent: CLOCK_JOIN,
                expected: 0,
            });
        }
        self.finished.remove(&thread);
        for domain in self.domains.values_mut() {
            let Some(&clock) = domain.clocks.get(&first) else {
                continue;
            };
            let clock = match mutants::on(Mutant::SiblingFromZero) {
                true => 0,
                false => clock,
            };
            domain.insert(thread, clock);
        }
        Ok(())
    }

    fn domain(&mut self, id: DomainId) -> &mut Domain {
        self.domains.entry(id).or_insert_with(|| {
            let first = |t: &WorkerThread| self.first.get(&t.rank)?.get(&id).copied();
            let members = self.members.iter();
            let mut domain = Domain {
                clocks: members
                    .map(|t| (*t, first(t).unwrap_or_default()))
                    .collect(),
                ..Domain::default()
            };
            domain.find_turn();
            domain
        })
    }

    /// A thread's clock in a domain; `None` for one that is no member or has finished.
    pub fn clock(&mut self, id: DomainId, thread: WorkerThread) -> Option<u64> {
        self.domain(id).clocks.get(&thread).copied()
    }

    /// The worker that has its turn in the open iteration: the lowest of those with a thread that has
    /// not ended it.
    pub fn turn(&mut self, id: DomainId) -> Option<WorkerId> {
        self.domain(id).turn.map(|thread| thread.rank)
    }

    /// The rank of a turn in `iteration` that was queued earlier, for the rank `queued`: the lower one of this rank
    /// and the worker that has its turn now. A member of a lower rank may have been admitted meanwhile.
    pub fn turn_at_most(&mut self, id: DomainId, iteration: u64, queued: WorkerId) -> WorkerId {
        let is_open = self.min(id) == iteration;
        let turn = self.turn(id).filter(|_| is_open);
        turn.map_or(queued, |turn| turn.min(queued))
    }

    /// Ticks by which the fastest worker of a domain, which may have left, is ahead of `clock`.
    /// 0 in a domain that has not been used.
    pub fn lag(&self, id: DomainId, clock: u64) -> u64 {
        let domain = self.domains.get(&id);
        domain.map_or(0, |domain| domain.front.saturating_sub(clock))
    }

    /// The domains that a thread has ticked in, a bit each.
    pub fn ticked(&self, thread: WorkerThread) -> u64 {
        self.ticked.get(&thread).copied().unwrap_or_default()
    }

    /// Whether `tick` would accept this clock.
    ///
    /// # Errors
    /// [`BadClock`] when it goes back, skips, or comes from a thread that is no member.
    pub fn check(&mut self, id: DomainId, thread: WorkerThread, sent: u64) -> Result<(), BadClock> {
        let expected = match self.domain(id).clocks.get(&thread) {
            Some(clock) => clock + 1,
            None => {
                return Err(BadClock {
                    thread,
                    sent,
                    expected: 0,
                });
            }
        };
        if sent == expected || sent == CLOCK_FINISHED {
            return Ok(());
        }
        Err(BadClock {
            thread,
            sent,
            expected,
        })
    }

    /// Notes that a thread ticked, or left for good. Returns how the minimum moved, if it did.
    ///
    /// # Errors
    /// [`BadClock`]; nothing was changed.
    pub fn tick(
        &mut self,
        id: DomainId,
        thread: WorkerThread,
        sent: u64,
    ) -> Result<Option<Moved>, BadClock> {
        self.check(id, thread, sent)?;
        *self.ticked.entry(thread).or_default() |= 1u64.unbounded_shl(id.0.into());
        let domain = self.domain(id);
        if sent == CLOCK_FINISHED {
            domain.clocks.remove(&thread);
            domain.epoch += 1;
        } else {
            domain.clocks.insert(thread, sent);
            domain.front = domain.front.max(sent);
        }
        Ok(domain.advance(id))
    }

    /// Removes a thread that has finished from every domain; with thread 0 its worker. Returns the
    /// domains with a moved minimum.
    pub fn finish(&mut self, thread: WorkerThread) -> Vec<Moved> {
        let is_member = self.members.contains(&thread);
        let later = self.later.get(&thread.rank);
        if thread.is_first() && is_member && later.is_some_and(|later| !later.is_empty()) {
            *self.ended.entry(thread.rank).or_default() += 1;
        }
        let moved = match thread.is_first() {
            true => self.remove(thread.rank),
            false => self.drop_members(thread, thread),
        };
        if is_member {
            self.finished.insert(thread);
        }
        moved
    }

    /// Lists the clocks of a worker's threads in all domains that have been used: thread, domain, number of ticks.
    /// A thread that has finished has [`CLOCK_FINISHED`] in domain 0, until the coordinator has ended its worker.
    pub fn of_worker(&self, rank: WorkerId) -> Vec<(WorkerThread, DomainId, u64)> {
        let threads = WorkerThread::first(rank)..=WorkerThread::last(rank);
        let finished = self.finished.range(threads.clone());
        let mut all: Vec<_> = finished
            .map(|&t| (t, DomainId(0), CLOCK_FINISHED))
            .collect();
        for (&id, domain) in &self.domains {
            let live = domain.clocks.range(threads.clone());
            // Its members are of a later stay of the rank.
            let live = live.filter(|(t, _)| !self.finished.contains(t));
            all.extend(live.map(|(&t, &clock)| (t, id, clock)));
        }
        all
    }

    /// Whether a thread lacks exactly the tick to `clock`, or with [`CLOCK_FINISHED`] its end, which another applier
    /// has consumed.
    pub fn lacks(&mut self, id: DomainId, thread: WorkerThread, clock: u64) -> bool {
        // After its end the member is of a later stay.
        if !self.members.contains(&thread) || self.finished.contains(&thread) {
            return false;
        }
        let next = self.clock(id, thread).and_then(|at| at.checked_add(1));
        clock == CLOCK_FINISHED || next == Some(clock)
    }

    /// Whether a worker ended a membership itself that the coordinator has not ended yet, and a later one
    /// of its rank has begun. Notes that the coordinator has.
    pub fn take_ended(&mut self, rank: WorkerId) -> bool {
        let Some(left) = self.ended.get_mut(&rank) else {
            return false;
        };
        *left -= 1;
        self.finished.retain(|thread| thread.rank != rank);
        if *left == 0 {
            self.ended.remove(&rank);
        }
        true
    }

    /// Removes a worker with all its threads from every domain: lost, or finished for good. Returns the
    /// domains with a moved minimum.
    pub fn remove(&mut self, rank: WorkerId) -> Vec<Moved> {
        let (worker, last) = (WorkerThread::first(rank), WorkerThread::last(rank));
        self.finished.retain(|thread| thread.rank != rank);
        let next = self.later.get_mut(&rank).and_then(VecDeque::pop_front);
        let Some(next) = next.filter(|_| self.members.contains(&worker)) else {
            self.gone.insert(rank);
            self.first.remove(&rank);
            return self.drop_members(worker, last);
        };
        // In one step: between the two no iteration closes without the rank.
        let moved = self.drop_members(
            WorkerThread {
                thread: 1,
                ..worker
            },
            last,
        );
        self.ticked.remove(&worker);
        let moved_on = self.domains.iter_mut().filter_map(|(&id, domain)| {
            let clock = domain.clocks.get_mut(&worker)?;
            *clock = next.get(&id).copied().unwrap_or_default().max(*clock);
            domain.advance(id)
        });
        let moved = moved.into_iter().chain(moved_on).collect();
        self.first.insert(rank, next);
        moved
    }

    fn drop_members(&mut self, from: WorkerThread, to: WorkerThread) -> Vec<Moved> {
        self.members.retain(|t| !(from..=to).contains(t));
        self.ticked.retain(|t, _| !(from..=to).contains(t));
        let mut moved = Vec::new();
        for (&id, domain) in &mut self.domains {
            let members = domain.clocks.len();
            domain.clocks.retain(|t, _| !(from..=to).contains(t));
            if domain.clocks.len() < members {
                domain.epoch += 1;
                moved.extend(domain.advance(id));
            }
        }
        moved
    }

    /// The members that are threads of a worker, in ascending order.
    pub fn threads(&self, rank: WorkerId) -> impl Iterator<Item = WorkerThread> + '_ {
        let threads = WorkerThread::first(rank)..=WorkerThread::last(rank);
        self.members.range(threads).copied()
    }

    /// The minimum of a domain: its open iteration.
    pub fn min(&mut self, id: DomainId) -> u64 {
        self.domain(id).min
    }

    /// The minimum of a domain; 0 of one that has not been used, which stays unused.
    pub fn min_if_used(&self, id: DomainId) -> u64 {
        self.domains.get(&id).map_or(0, |domain| domain.min)
    }

    /// The clock record of a domain, as readers get it.
    pub fn line(&mut self, id: DomainId) -> ClockLine {
        let domain = self.domain(id);
        let slowest = domain.clocks.iter().min_by_key(|&(_, clock)| clock);
        ClockLine {
            min: domain.min,
            epoch: domain.epoch,
            slowest: slowest.map_or(u32::MAX, |(t, _)| t.rank.0),
            members: domain.clocks.len() as u32,
        }
    }

    /// The clock of every live thread of a domain, in order of rank and thread.
    pub fn live(&mut self, id: DomainId) -> impl Iterator<Item = (WorkerThread, u64)> + '_ {
        self.domain(id).clocks.iter().map(|(&t, &c)| (t, c))
    }

    /// For each domain that has been used the iteration that the slowest thread of a worker has not ended. Without
    /// those in which the worker is no member.
    pub fn open_iterations(&self, rank: WorkerId) -> Vec<(DomainId, u64)> {
        let threads = WorkerThread::first(rank)..=WorkerThread::last(rank);
        let open = self.domains.iter().filter_map(|(&id, domain)| {
            let clocks = domain.clocks.range(threads.clone());
            clocks
                .map(|(_, &clock)| clock)
                .min()
                .map(|clock| (id, clock))
        });
        open.collect()
    }

    /// Domains that have been used.
    pub fn domains(&self) -> impl Iterator<Item = DomainId> + '_ {
        self.domains.keys().copied()
    }
}

impl Domain {
    /// Adds a member at a clock, and finds the turn again.
    fn insert(&mut self, thread: WorkerThread, clock: u64) {
        self.clocks.insert(thread, clock);
        self.epoch += 1;
        self.find_turn();
    }

    /// Moves the minimum. Without live members it stays where the last one left it.
    fn advance(&mut self, domain: DomainId) -> Option<Moved> {
        let to = self.clocks.values().copied().min();
        let (from, to) = (self.min, to.unwrap_or(self.min));
        self.min = to.max(from);
        let clock = self.turn.and_then(|turn| self.clocks.get(&turn));
        if to > from || clock.is_none_or(|&clock| clock > self.min) {
            self.find_turn();
        }
        if to <= from {
            return None;
        }
        Some(Moved { domain, from, to })
    }

    fn find_turn(&mut self) {
        let open = self.clocks.iter().find(|&(_, &clock)| clock == self.min);
        self.turn = open.map(|(&thread, _)| thread);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const D: DomainId = DomainId(0);

    fn first(rank: u32) -> WorkerThread {
        WorkerThread::first(WorkerId(rank))
    }

    fn thread(rank: u32, thread: u32) -> WorkerThread {
        let rank = WorkerId(rank);
        WorkerThread { rank, thread }
    }

    /// What a step of the property test does to a thread.
    const JOIN: u8 = 0;
    const FINISH: u8 = 1;
    const REMOVE: u8 = 2;

    /// A rank with a later membership begins it in the step in which it leaves: no iteration closes
    /// without it. Clocks of a member hold in domains that are used later, too.
    #[test]
    fn ranks_begin_again_where_they_are_scheduled() {
        let mut clocks = Clocks::new([]);
        let first = |clock| [(D, clock), (DomainId(3), 4)].into_iter().collect();
        clocks.admit(WorkerId(0), FirstClocks::new());
        clocks.admit(WorkerId(1), FirstClocks::new());
        assert!(
            clocks.admit(WorkerId(1), first(5)).is_empty(),
            "it is a member"
        );
        for clock in 1..=9 {
            clocks.tick(D, self::first(0), clock).unwrap();
        }
        clocks.tick(D, self::first(1), 1).unwrap();
        let moved = clocks.finish(self::first(1));
        let moved: Vec<_> = moved.iter().map(|m| (m.from, m.to)).collect();
        assert_eq!(moved, [(1, 5)], "up to its next tick, and not to 9");
        assert_eq!(clocks.clock(DomainId(3), self::first(1)), Some(4));
        assert!(
            clocks.take_ended(WorkerId(1)),
            "the coordinator's word is of the stay before"
        );
        assert!(!clocks.take_ended(WorkerId(1)), "once");
        clocks.tick(D, self::first(1), 6).unwrap();
        let moved = clocks.finish(self::first(1));
        assert!(!clocks.take_ended(WorkerId(1)), "no later stay has begun");
        assert_eq!(
            moved.iter().map(|m| m.to).max(),
            Some(9),
            "it leaves for good"
        );
        assert_eq!(clocks.clock(D, self::first(1)), None);
        // The rank is free, and a clock below the minimum does not take it back.
        clocks.hold();
        assert!(clocks.is_held());
        clocks.go_on();
        clocks.admit(WorkerId(1), FirstClocks::new());
        assert_eq!(
            (clocks.min(D), clocks.clock(D, self::first(1))),
            (9, Some(9))
        );
    }

    proptest! {
        /// Threads of three workers join, tick, finish and are lost in any order, in two domains of
        /// which one is used first at any time. The model: a clock for each member of each domain.
        #[test]
        fn threads_hold_the_minimum_and_never_move_it_back(
            ops in proptest::collection::vec((0u32..3, 0u32..3, 0u8..2, 0u8..24), 1..300),
        ) {
            let mut clocks = Clocks::new((0..3).map(WorkerId));
            let mut model: BTreeMap<WorkerThread, [u64; 2]> =
                (0..3).map(|rank| (first(rank), [0; 2])).collect();
            let mut mins = [0; 2];
            let mut turns = [Some(WorkerId(0)); 2];
            for (rank, number, domain, op) in ops {
                let t = thread(rank, number);
                let joins = op == JOIN && !t.is_first();
                match op {
                    JOIN if joins => {
                        let parent = model.get(&first(rank)).copied();
                        let due = parent.filter(|_| !model.contains_key(&t));
                        prop_assert_eq!(clocks.join_sibling(t).is_ok(), due.is_some());
                        model.extend(due.map(|at| (t, at)));
                    }
                    FINISH => {
                        clocks.finish(t);
                        model.retain(|&m, _| m != t && (m.rank != t.rank || !t.is_first()));
                    }
                    REMOVE => {
                        clocks.remove(WorkerId(rank));
                        model.retain(|m, _| m.rank != WorkerId(rank));
                    }
                    _ => {
                        let at = model.get(&t).map_or(0, |at| at[usize::from(domain)]);
                        let moved = clocks.tick(DomainId(domain), t, at + 1);
                        prop_assert_eq!(moved.is_ok(), model.contains_key(&t));
                        model.entry(t).and_modify(|at| at[usize::from(domain)] += 1);
                    }
                }
                for d in 0..2_u8 {
                    let n = usize::from(d);
                    let min = model.values().map(|at| at[n]).min().unwrap_or(mins[n]);
                    prop_assert!(min >= mins[n], "{} after {}", min, mins[n]);
                    mins[n] = min;
                    let line = clocks.line(DomainId(d));
                    prop_assert_eq!((line.min, line.members as usize), (min, model.len()));
                    let live: Vec<_> = clocks.live(DomainId(d)).collect();
                    let due: Vec<_> = model.iter().map(|(&t, at)| (t, at[n])).collect();
                    prop_assert_eq!(live, due, "in the order of rank and thread");
                    let turn = model.iter().find(|(_, at)| at[n] == min).map(|(t, _)| t.rank);
                    prop_assert_eq!(clocks.turn(DomainId(d)), turn);
                    prop_assert!(!joins || turn == turns[n], "a new thread takes no turn");
                    turns[n] = turn;
                }
            }
        }

        #[test]
        fn the_minimum_is_that_of_the_live_workers_and_never_goes_back(
            ops in proptest::collection::vec((0u32..5, 0u8..20), 1..300),
        ) {
            let mut clocks = Clocks::new((0..5).map(WorkerId));
            let mut model = [Some(0u64); 5];
            let mut min = 0;
            for (w, op) in ops {
                let worker = first(w);
                let Some(at) = model[w as usize] else {
                    prop_assert!(clocks.tick(D, worker, 1).is_err());
                    continue;
                };
                let sent = match op {
                    0 => CLOCK_FINISHED,
                    1 => at,
                    2 => at + 2,
                    _ => at + 1,
                };
                let moved = clocks.tick(D, worker, sent);
                model[w as usize] = match sent {
                    CLOCK_FINISHED => None,
                    t if t == at + 1 => Some(t),
                    _ => { prop_assert!(moved.is_err()); Some(at) }
                };
                let live = model.iter().flatten().copied().min();
                let now = live.map_or(min, |m| m.max(min));
                let line = clocks.line(D);
                prop_assert_eq!(line.min, now);
                prop_assert_eq!(line.members as usize, model.iter().flatten().count());
                if let Ok(moved) = moved {
                    let (domain, from, to) = (D, min, now);
                    prop_assert_eq!(moved, (to > from).then_some(Moved { domain, from, to }));
                }
                min = now;
            }
        }
    }

    #[test]
    fn turn_is_the_lowest_that_has_not_ticked() {
        let mut clocks = Clocks::new((0..3).map(WorkerId));
        let tick = |clocks: &mut Clocks, rank, sent| {
            clocks.tick(D, first(rank), sent).unwrap();
            clocks.turn(D).map(|w| w.0)
        };
        assert_eq!(clocks.turn(D), Some(WorkerId(0)));
        assert_eq!(tick(&mut clocks, 1, 1), Some(0));
        assert_eq!(tick(&mut clocks, 0, 1), Some(2));
        assert_eq!(tick(&mut clocks, 1, 2), Some(2));
        assert_eq!(tick(&mut clocks, 2, 1), Some(0), "the next iteration");
        clocks.remove(WorkerId(0));
        assert_eq!(clocks.turn(D), Some(WorkerId(2)));
        assert_eq!(clocks.ticked(first(1)), 1 << D.0);
        clocks.remove(WorkerId(2));
        assert_eq!(clocks.turn(D), Some(WorkerId(1)), "of iteration 2");
        clocks.remove(WorkerId(1));
        assert_eq!(clocks.turn(D), None);
    }

    #[test]
    fn a_dead_worker_frees_the_others_and_stays_dead_in_new_domains() {
        let mut clocks = Clocks::new((0..2).map(WorkerId));
        assert_eq!(clocks.tick(D, first(0), 1), Ok(None));
        let moved = Moved {
            domain: D,
            from: 0,
            to: 1,
        };
        assert_eq!(clocks.remove(WorkerId(1)), [moved]);
        assert_eq!(clocks.line(DomainId(1)).members, 1);
        assert!(clocks.tick(D, first(1), 1).is_err());
    }

    #[test]
    fn who_comes_becomes_a_member_until_the_members_are_told_or_the_minimum_has_moved() {
        let (a, b, c) = (WorkerId(0), WorkerId(1), WorkerId(2));
        let mut clocks = Clocks::new([]);
        assert!(clocks.tick(D, first(0), 1).is_err());
        clocks.join(a);
        clocks.join(b);
        assert_eq!(clocks.tick(D, first(0), 1), Ok(None));
        assert!(clocks.tick(D, first(1), 1).unwrap().is_some());
        clocks.join(c);
        assert!(clocks.tick(D, first(2), 1).is_err(), "a latecomer");
        assert_eq!(clocks.line(DomainId(1)).members, 3);

        let mut clocks = Clocks::new([]);
        clocks.remove(c);
        clocks.join(a);
        assert_eq!(clocks.line(D).members, 1);
        clocks.expect(3);
        clocks.expect(9);
        clocks.join(WorkerId(3));
        assert_eq!(clocks.line(D).members, 2, "worker 2 has gone before");
        assert_eq!(clocks.tick(D, first(0), 1), Ok(None));
    }
}

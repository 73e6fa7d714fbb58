//! Clocks of the workers of one job, as one applier sees them. Pure.
//!
//! `clock(w)` is the number of ticks that worker `w` has completed. Only CLOCK frames move it, one
//! at a time, in the order of their ring. So everything that the worker pushed before is applied
//! (or held back) when its clock moves. A domain's minimum over the live workers never goes back.

use std::collections::{BTreeMap, BTreeSet};

use tidewater_protocol::ids::{DomainId, WorkerId};
use tidewater_protocol::layout::frame::CLOCK_FINISHED;
use tidewater_protocol::layout::lines::ClockLine;

/// One domain on one applier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Domain {
    clocks: BTreeMap<WorkerId, u64>,
    min: u64,
    /// The largest clock that a worker has had.
    front: u64,
    epoch: u64,
    /// The lowest worker that has not ended iteration `min`.
    turn: Option<WorkerId>,
}

/// Clocks of every domain of one job on one applier.
#[derive(Debug, Clone, Default)]
pub struct Clocks {
    domains: BTreeMap<DomainId, Domain>,
    members: BTreeSet<WorkerId>,
    /// Whether no more members will come.
    complete: bool,
    gone: BTreeSet<WorkerId>,
    /// For each worker the domains that it has ticked in, a bit each.
    ticked: BTreeMap<WorkerId, u64>,
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

/// A clock that is not the worker's next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("worker {worker} says clock {told}, but {expected} is due")]
pub struct BadClock {
    /// Rank of the worker.
    pub worker: WorkerId,
    /// Clock in the worker's frame.
    pub told: u64,
    /// Clock that is due; 0 for a worker that is no member.
    pub expected: u64,
}

impl Clocks {
    /// Clocks of these workers, all at 0; without workers, for a job that sets them later.
    pub fn new(members: impl IntoIterator<Item = WorkerId>) -> Self {
        let members: BTreeSet<WorkerId> = members.into_iter().collect();
        Self {
            domains: BTreeMap::new(),
            complete: !members.is_empty(),
            members,
            gone: BTreeSet::new(),
            ticked: BTreeMap::new(),
        }
    }

    /// Sets the members to workers `0..workers`. The first call stands.
    pub fn expect(&mut self, workers: u32) {
        if !self.complete {
            (0..workers).for_each(|rank| self.join(WorkerId(rank)));
            self.complete = true;
        }
    }

    /// Notes that a worker has joined. If the number of workers is unknown, it becomes a member, at
    /// 0, of each domain with its minimum still at 0: a minimum does not go back for a latecomer.
    pub fn join(&mut self, worker: WorkerId) {
        if self.complete || self.gone.contains(&worker) || !self.members.insert(worker) {
            return;
        }
        for domain in self.domains.values_mut().filter(|domain| domain.min == 0) {
            domain.clocks.insert(worker, 0);
            domain.epoch += 1;
            domain.find_turn();
        }
    }

    fn domain(&mut self, id: DomainId) -> &mut Domain {
        self.domains.entry(id).or_insert_with(|| {
            let live = self.members.iter().filter(|w| !self.gone.contains(w));
            let mut domain = Domain {
                clocks: live.map(|&w| (w, 0)).collect(),
                ..Domain::default()
            };
            domain.find_turn();
            domain
        })
    }

    /// A worker's clock in a domain; `None` for one that is no member or has finished.
    pub fn clock(&mut self, id: DomainId, worker: WorkerId) -> Option<u64> {
        self.domain(id).clocks.get(&worker).copied()
    }

    /// The worker that has its turn in the open iteration: the lowest of those that have not ended
    /// it.
    pub fn turn(&mut self, id: DomainId) -> Option<WorkerId> {
        self.domain(id).turn
    }

    /// Ticks by which the fastest worker of a domain, which may have left, is ahead of `clock`.
    pub fn lag(&mut self, id: DomainId, clock: u64) -> u64 {
        self.domain(id).front.saturating_sub(clock)
    }

    /// The domains that a worker has ticked in, a bit each.
    pub fn ticked(&self, worker: WorkerId) -> u64 {
        self.ticked.get(&worker).copied().unwrap_or_default()
    }

    /// Whether `tick` would accept this clock.
    ///
    /// # Errors
    /// [`BadClock`] when it goes back, skips, or comes from a worker that is no member.
    pub fn check(&mut self, id: DomainId, worker: WorkerId, told: u64) -> Result<(), BadClock> {
        let expected = match self.domain(id).clocks.get(&worker) {
            Some(clock) => clock + 1,
            None => {
                return Err(BadClock {
                    worker,
                    told,
                    expected: 0,
                });
            }
        };
        if told == expected || told == CLOCK_FINISHED {
            return Ok(());
        }
        Err(BadClock {
            worker,
            told,
            expected,
        })
    }

    /// Notes that a worker ticked, or left for good. Returns how the minimum moved, if it did.
    ///
    /// # Errors
    /// [`BadClock`]; nothing was changed.
    pub fn tick(
        &mut self,
        id: DomainId,
        worker: WorkerId,
        told: u64,
    ) -> Result<Option<Moved>, BadClock> {
        self.check(id, worker, told)?;
        *self.ticked.entry(worker).or_default() |= 1u64.unbounded_shl(id.0.into());
        let domain = self.domain(id);
        if told == CLOCK_FINISHED {
            domain.clocks.remove(&worker);
            domain.epoch += 1;
        } else {
            domain.clocks.insert(worker, told);
            domain.front = domain.front.max(told);
        }
        Ok(domain.advance(id))
    }

    /// Removes a worker from every domain: dead, or finished for good. Returns the domains with a
    /// moved minimum.
    pub fn remove(&mut self, worker: WorkerId) -> Vec<Moved> {
        self.gone.insert(worker);
        let mut moved = Vec::new();
        for (&id, domain) in &mut self.domains {
            if domain.clocks.remove(&worker).is_some() {
                domain.epoch += 1;
                moved.extend(domain.advance(id));
            }
        }
        moved
    }

    /// The clock record of a domain, as readers get it.
    pub fn line(&mut self, id: DomainId) -> ClockLine {
        let domain = self.domain(id);
        let slowest = domain.clocks.iter().min_by_key(|&(_, clock)| clock);
        ClockLine {
            min: domain.min,
            epoch: domain.epoch,
            slowest: slowest.map_or(u32::MAX, |(w, _)| w.0),
            members: domain.clocks.len() as u32,
        }
    }

    /// The clock of every live worker of a domain, in order of rank.
    pub fn live(&mut self, id: DomainId) -> impl Iterator<Item = (WorkerId, u64)> + '_ {
        self.domain(id).clocks.iter().map(|(&w, &c)| (w, c))
    }

    /// Domains that have been used.
    pub fn domains(&self) -> impl Iterator<Item = DomainId> + '_ {
        self.domains.keys().copied()
    }
}

impl Domain {
    /// Moves the minimum. Without live workers it stays where the last one left it.
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
        self.turn = open.map(|(&worker, _)| worker);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const D: DomainId = DomainId(0);

    proptest! {
        #[test]
        fn the_minimum_is_that_of_the_live_workers_and_never_goes_back(
            ops in proptest::collection::vec((0u32..5, 0u8..20), 1..300),
        ) {
            let mut clocks = Clocks::new((0..5).map(WorkerId));
            let mut model = [Some(0u64); 5];
            let mut min = 0;
            for (w, op) in ops {
                let worker = WorkerId(w);
                let Some(at) = model[w as usize] else {
                    prop_assert!(clocks.tick(D, worker, 1).is_err());
                    continue;
                };
                let told = match op {
                    0 => CLOCK_FINISHED,
                    1 => at,
                    2 => at + 2,
                    _ => at + 1,
                };
                let moved = clocks.tick(D, worker, told);
                model[w as usize] = match told {
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
        let tick = |clocks: &mut Clocks, rank, told| {
            clocks.tick(D, WorkerId(rank), told).unwrap();
            clocks.turn(D).map(|w| w.0)
        };
        assert_eq!(clocks.turn(D), Some(WorkerId(0)));
        assert_eq!(tick(&mut clocks, 1, 1), Some(0));
        assert_eq!(tick(&mut clocks, 0, 1), Some(2));
        assert_eq!(tick(&mut clocks, 1, 2), Some(2));
        assert_eq!(tick(&mut clocks, 2, 1), Some(0), "the next iteration");
        clocks.remove(WorkerId(0));
        assert_eq!(clocks.turn(D), Some(WorkerId(2)));
        assert_eq!(clocks.ticked(WorkerId(1)), 1 << D.0);
        clocks.remove(WorkerId(2));
        assert_eq!(clocks.turn(D), Some(WorkerId(1)), "of iteration 2");
        clocks.remove(WorkerId(1));
        assert_eq!(clocks.turn(D), None);
    }

    #[test]
    fn a_dead_worker_frees_the_others_and_stays_dead_in_new_domains() {
        let mut clocks = Clocks::new((0..2).map(WorkerId));
        assert_eq!(clocks.tick(D, WorkerId(0), 1), Ok(None));
        let moved = Moved {
            domain: D,
            from: 0,
            to: 1,
        };
        assert_eq!(clocks.remove(WorkerId(1)), [moved]);
        assert_eq!(clocks.line(DomainId(1)).members, 1);
        assert!(clocks.tick(D, WorkerId(1), 1).is_err());
    }

    #[test]
    fn who_comes_becomes_a_member_until_the_members_are_told_or_the_minimum_has_moved() {
        let (a, b, c) = (WorkerId(0), WorkerId(1), WorkerId(2));
        let mut clocks = Clocks::new([]);
        assert!(clocks.tick(D, a, 1).is_err());
        clocks.join(a);
        clocks.join(b);
        assert_eq!(clocks.tick(D, a, 1), Ok(None));
        assert!(clocks.tick(D, b, 1).unwrap().is_some());
        clocks.join(c);
        assert!(clocks.tick(D, c, 1).is_err(), "a latecomer");
        assert_eq!(clocks.line(DomainId(1)).members, 3);

        let mut clocks = Clocks::new([]);
        clocks.remove(c);
        clocks.join(a);
        assert_eq!(clocks.line(D).members, 1);
        clocks.expect(3);
        clocks.expect(9);
        clocks.join(WorkerId(3));
        assert_eq!(clocks.line(D).members, 2, "worker 2 has gone before");
        assert_eq!(clocks.tick(D, a, 1), Ok(None));
    }
}

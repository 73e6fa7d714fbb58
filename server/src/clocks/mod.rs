//! Clocks of the workers, as one applier sees them. Pure.
//!
//! `clock(w)` is the number of ticks that worker `w` has completed. Only CLOCK frames move it, one
//! at a time, in the order of their ring: so everything the worker pushed before is applied (or
//! taken over) when its clock moves. A domain's minimum over the live workers never goes back.

use std::collections::BTreeMap;

use tidewater_transport::ids::{DomainId, WorkerId};
use tidewater_transport::layout::frame::CLOCK_FINISHED;
use tidewater_transport::layout::lines::ClockLine;

/// One domain on one applier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Domain {
    clocks: BTreeMap<WorkerId, u64>,
    min: u64,
    epoch: u64,
}

/// Every domain on one applier.
#[derive(Debug, Clone, Default)]
pub struct Clocks {
    domains: BTreeMap<DomainId, Domain>,
    members: Vec<WorkerId>,
    gone: Vec<WorkerId>,
}

/// A clock that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("worker {worker} says clock {told}, but {expected} is due")]
pub struct BadClock {
    /// Who.
    pub worker: WorkerId,
    /// Told.
    pub told: u64,
    /// Due; 0 for a worker that is no member.
    pub expected: u64,
}

impl Clocks {
    /// With these workers, all at 0.
    pub fn new(members: impl IntoIterator<Item = WorkerId>) -> Self {
        Self {
            domains: BTreeMap::new(),
            members: members.into_iter().collect(),
            gone: Vec::new(),
        }
    }

    fn domain(&mut self, id: DomainId) -> &mut Domain {
        self.domains.entry(id).or_insert_with(|| {
            let live = self.members.iter().filter(|w| !self.gone.contains(w));
            Domain {
                clocks: live.map(|&w| (w, 0)).collect(),
                min: 0,
                epoch: 0,
            }
        })
    }

    /// A worker's clock in a domain; `None` for one that is no member or has finished.
    pub fn clock(&mut self, id: DomainId, worker: WorkerId) -> Option<u64> {
        self.domain(id).clocks.get(&worker).copied()
    }

    /// Whether `tick` would take this clock.
    ///
    /// # Errors
    /// [`BadClock`] when it goes back, skips, or comes from a stranger.
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

    /// A worker ticked, or left for good. Returns the minimum before and after if it moved.
    ///
    /// # Errors
    /// [`BadClock`]; nothing was changed.
    pub fn tick(
        &mut self,
        id: DomainId,
        worker: WorkerId,
        told: u64,
    ) -> Result<Option<(u64, u64)>, BadClock> {
        self.check(id, worker, told)?;
        let domain = self.domain(id);
        if told == CLOCK_FINISHED {
            domain.clocks.remove(&worker);
            domain.epoch += 1;
        } else {
            domain.clocks.insert(worker, told);
        }
        Ok(domain.advance())
    }

    /// A worker is gone from every domain: dead, or finished for good. Returns the domains whose
    /// minimum moved.
    pub fn remove(&mut self, worker: WorkerId) -> Vec<(DomainId, u64, u64)> {
        if !self.gone.contains(&worker) {
            self.gone.push(worker);
        }
        let mut moved = Vec::new();
        for (&id, domain) in &mut self.domains {
            if domain.clocks.remove(&worker).is_some() {
                domain.epoch += 1;
                moved.extend(domain.advance().map(|(from, to)| (id, from, to)));
            }
        }
        moved
    }

    /// What readers are told of a domain.
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
    /// Moves the minimum. With nobody left it stays where the last worker left it.
    fn advance(&mut self) -> Option<(u64, u64)> {
        let now = self.clocks.values().copied().min()?;
        let from = self.min;
        if now <= from {
            return None;
        }
        self.min = now;
        Some((from, now))
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
                    prop_assert_eq!(moved, (now > min).then_some((min, now)));
                }
                min = now;
            }
        }
    }

    #[test]
    fn a_dead_worker_frees_the_others_and_stays_dead_in_new_domains() {
        let mut clocks = Clocks::new((0..2).map(WorkerId));
        assert_eq!(clocks.tick(D, WorkerId(0), 1), Ok(None));
        assert_eq!(clocks.remove(WorkerId(1)), [(D, 0, 1)]);
        assert_eq!(clocks.line(DomainId(1)).members, 1);
        assert!(clocks.tick(D, WorkerId(1), 1).is_err());
    }
}

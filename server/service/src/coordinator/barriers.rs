//! The barriers of one job.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tidewater_protocol::ids::{DomainId, WorkerId};
use tidewater_protocol::limits::BARRIERS_MAX;
use tidewater_protocol::wire::control::{Arrival, DomainClock};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::state::Asker;

/// A worker that waits at a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) worker: WorkerId,
    pub(super) asker: Asker,
    /// Time limit of its wait, on the coordinator's clock.
    pub(super) deadline: Duration,
    /// Its number for the others at a barrier of members.
    pub(super) round: u64,
}

/// The workers for which a barrier opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Opens {
    /// This many workers, whichever they are.
    Count(u32),
    /// Those of the list, or if it is empty the members of the job at the clocks of the barrier.
    Members(Vec<WorkerId>),
}

impl Opens {
    /// Number of workers; 0 for all members.
    pub(super) const fn number(&self) -> u64 {
        match self {
            Self::Count(count) => *count as u64,
            Self::Members(of) => of.len() as u64,
        }
    }
}

impl fmt::Display for Opens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count} workers"),
            Self::Members(of) if of.is_empty() => f.write_str("all members"),
            Self::Members(of) => write!(f, "{} members", of.len()),
        }
    }
}

/// Clocks of a barrier of members; empty for one of a count.
pub(super) type At = BTreeMap<DomainId, u64>;

/// A worker with a wait that timed out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expired {
    pub(super) waiter: Waiter,
    pub(super) name: String,
    pub(super) opens: Opens,
    pub(super) at: At,
    /// Workers that were there, including this one.
    pub(super) present: Vec<WorkerId>,
}

/// The outcome of a barrier for the workers that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every worker that it waits for is there.
    Opens,
    /// Some workers have yet to come.
    Waits,
    /// More workers have left than it can do without.
    Fails,
}

/// A barrier that opened or failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) name: String,
    pub(super) opens: Opens,
    pub(super) at: At,
    pub(super) opened: bool,
    pub(super) waiting: Vec<Waiter>,
}

impl Settled {
    /// The workers for which it has opened, by rank.
    pub(super) fn arrivals(&self) -> Vec<Arrival> {
        let waiting = self.waiting.iter();
        let mut arrivals: Vec<Arrival> = waiting
            .map(|&Waiter { worker, round, .. }| Arrival {
                rank: worker,
                round,
            })
            .collect();
        arrivals.sort_by_key(|at| at.rank);
        arrivals
    }
}

#[derive(Debug)]
struct Barrier {
    opens: Opens,
    waiting: Vec<Waiter>,
}

/// All barriers with a waiting worker, by name and clocks; one that opens is forgotten.
#[derive(Debug, Default)]
pub(super) struct Barriers(BTreeMap<(String, At), Barrier>);

/// Clocks of a list, by domain.
pub(super) fn at_of(clocks: &[DomainClock]) -> At {
    clocks.iter().map(|at| (at.domain, at.clock)).collect()
}

impl Barriers {
    /// Number of workers that wait.
    pub(super) fn waiting(&self) -> usize {
        self.0.values().map(|barrier| barrier.waiting.len()).sum()
    }

    /// Notes a worker's arrival. [`Self::settle`] then decides which workers continue.
    pub(super) fn arrive(
        &mut self,
        name: &str,
        opens: Opens,
        at: At,
        waiter: Waiter,
    ) -> Result<(), Refusal> {
        if opens == Opens::Count(0) {
            let refusal = Refusal::new(RefusalCode::BadRequest, [0; 4]);
            let text = format!(
                "barrier \"{name}\" of 0 workers: the job's number of workers is not known; say it \
                 when the session is opened (workers=N, TIDEWATER_WORKERS=N)"
            );
            return Err(refusal.with_text(text));
        }
        let key = (name.to_owned(), at);
        if !self.0.contains_key(&key) && self.0.len() == BARRIERS_MAX {
            let most = BARRIERS_MAX as u64;
            let refusal = Refusal::new(RefusalCode::TooMany, [most + 1, most, 0, 0]);
            return Err(refusal.with_text("barriers with waiting workers"));
        }
        let waiting = Vec::new();
        let barrier = self.0.entry(key).or_insert(Barrier {
            opens: opens.clone(),
            waiting,
        });
        if barrier.opens != opens {
            let numbers = [opens.number(), barrier.opens.number(), 0, 0];
            let text = format!(
                "barrier \"{name}\": this one waits for {opens}, others there wait for {}",
                barrier.opens
            );
            return Err(Refusal::new(RefusalCode::BadRequest, numbers).with_text(text));
        }
        // A worker that gave up waiting and asks again counts once.
        barrier
            .waiting
            .retain(|other| other.worker != waiter.worker);
        barrier.waiting.push(waiter);
        Ok(())
    }

    /// Removes the barriers that open or fail, as `outcome` decides from what each waits for, its clocks and
    /// the workers there. The caller runs it whenever a worker arrives, joins or leaves.
    pub(super) fn settle(
        &mut self,
        outcome: impl Fn(&Opens, &At, &[WorkerId]) -> Outcome,
    ) -> Vec<Settled> {
        let mut settled = Vec::new();
        self.0.retain(|(name, at), barrier| {
            let present: Vec<WorkerId> = barrier.waiting.iter().map(|w| w.worker).collect();
            let outcome = outcome(&barrier.opens, at, &present);
            if outcome != Outcome::Waits {
                settled.push(Settled {
                    name: name.clone(),
                    opens: barrier.opens.clone(),
                    at: at.clone(),
                    opened: outcome == Outcome::Opens,
                    waiting: std::mem::take(&mut barrier.waiting),
                });
            }
            outcome == Outcome::Waits
        });
        settled
    }

    /// Removes a worker that is gone.
    pub(super) fn leave(&mut self, worker: WorkerId) {
        for barrier in self.0.values_mut() {
            barrier.waiting.retain(|waiter| waiter.worker != worker);
        }
        self.0.retain(|_, barrier| !barrier.waiting.is_empty());
    }

    /// Removes workers that have waited too long; the others at the barrier wait on.
    pub(super) fn expire(&mut self, now: Duration) -> Vec<Expired> {
        let mut expired = Vec::new();
        for ((name, at), barrier) in &mut self.0 {
            let present: Vec<WorkerId> = barrier.waiting.iter().map(|w| w.worker).collect();
            let over = barrier
                .waiting
                .extract_if(.., |waiter| waiter.deadline <= now);
            expired.extend(over.map(|waiter| Expired {
                waiter,
                name: name.clone(),
                opens: barrier.opens.clone(),
                at: at.clone(),
                present: present.clone(),
            }));
        }
        self.0.retain(|_, barrier| !barrier.waiting.is_empty());
        expired
    }

    /// Removes all waiters, to refuse them: the job ends.
    pub(super) fn clear(&mut self) -> Vec<Waiter> {
        std::mem::take(&mut self.0)
            .into_values()
            .flat_map(|barrier| barrier.waiting)
            .collect()
    }

    /// The next time at which [`Self::expire`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.0
            .values()
            .flat_map(|barrier| &barrier.waiting)
            .map(|w| w.deadline)
            .min()
    }
}

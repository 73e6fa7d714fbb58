//! The named barriers of one job: arrivals, outcomes and timeouts.

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
    /// Time on the coordinator's clock at which its wait times out.
    pub(super) deadline: Duration,
    /// The worker's round number, which the other workers receive at a barrier of members.
    pub(super) round: u64,
}

/// Condition under which a barrier opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Opens {
    /// When this many workers have arrived, whichever they are. If it is the job's number of workers, ended
    /// ones are not awaited.
    Count(u32),
    /// When the workers of the list have arrived; an empty list stands for the members of the job at the
    /// barrier's clocks.
    Members(Vec<WorkerId>),
}

impl Opens {
    /// Number of workers that the barrier waits for; 0 stands for all members.
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

/// Clocks that identify a barrier of members, by domain; empty for a barrier with a count.
pub(super) type At = BTreeMap<DomainId, u64>;

/// A worker at a barrier after the timeout of its wait, with the barrier's name and state.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expired {
    pub(super) waiter: Waiter,
    pub(super) name: String,
    pub(super) opens: Opens,
    pub(super) at: At,
    /// Workers that had arrived, including this one.
    pub(super) present: Vec<WorkerId>,
}

/// Decision on a barrier, given the workers that have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every worker that it waits for has arrived.
    Opens,
    /// Some workers have not arrived yet.
    Waits,
    /// Too few workers are left for it to open.
    Fails,
}

/// A barrier that has opened or failed, with the workers to answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) name: String,
    pub(super) opens: Opens,
    pub(super) at: At,
    pub(super) opened: bool,
    pub(super) waiting: Vec<Waiter>,
}

impl Settled {
    /// Rank and round of each worker at the barrier, in order of ranks.
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

/// All barriers of a job at which a worker waits, by name and clocks. A barrier is removed when it opens or
/// fails, or no worker waits at it any more.
#[derive(Debug, Default)]
pub(super) struct Barriers(BTreeMap<(String, At), Barrier>);

/// Converts a list of clocks to a map by domain.
pub(super) fn at_of(clocks: &[DomainClock]) -> At {
    clocks.iter().map(|at| (at.domain, at.clock)).collect()
}

impl Barriers {
    /// Number of workers that wait, over all barriers.
    pub(super) fn waiting(&self) -> usize {
        self.0.values().map(|barrier| barrier.waiting.len()).sum()
    }

    /// Adds a waiting worker to the barrier `name` at the clocks `at`. Refused if the other workers at the
    /// barrier wait for another `opens`, for a count of 0, or beyond `BARRIERS_MAX` barriers. Replaces an
    /// earlier wait of the worker there. [`Self::settle`] then decides whether the barrier opens.
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

    /// Removes and returns the barriers that open or fail. `outcome` decides, given a barrier's condition,
    /// clocks and arrived workers. The caller runs it whenever a worker arrives or ends.
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

    /// Removes a worker from all barriers, without an answer. A barrier at which no other worker waits is removed.
    pub(super) fn leave(&mut self, worker: WorkerId) {
        for barrier in self.0.values_mut() {
            barrier.waiting.retain(|waiter| waiter.worker != worker);
        }
        self.0.retain(|_, barrier| !barrier.waiting.is_empty());
    }

    /// Removes and returns the workers with deadlines up to `now`, for the caller to answer. The other workers at
    /// their barriers continue to wait.
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

    /// Removes the barriers of members and returns their waiting workers with the names, so that the caller can refuse
    /// them.
    pub(super) fn take_of_members(&mut self) -> Vec<(String, Waiter)> {
        let is_of_members =
            |_: &_, barrier: &mut Barrier| !matches!(barrier.opens, Opens::Count(_));
        let taken = self.0.extract_if(.., is_of_members);
        let waiting = taken.flat_map(|((name, _), barrier)| {
            let waiting = barrier.waiting.into_iter();
            waiting.map(move |waiter| (name.clone(), waiter))
        });
        waiting.collect()
    }

    /// Removes all barriers and returns their waiting workers, so that the caller can refuse them.
    pub(super) fn clear(&mut self) -> Vec<Waiter> {
        std::mem::take(&mut self.0)
            .into_values()
            .flat_map(|barrier| barrier.waiting)
            .collect()
    }

    /// Earliest deadline of a waiting worker; `None` if no worker waits.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.0
            .values()
            .flat_map(|barrier| &barrier.waiting)
            .map(|w| w.deadline)
            .min()
    }
}

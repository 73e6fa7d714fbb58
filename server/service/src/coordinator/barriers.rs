//! The barriers of one job.

use std::collections::BTreeMap;
use std::time::Duration;

use tidewater_protocol::ids::WorkerId;
use tidewater_protocol::limits::BARRIERS_MAX;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::state::Asker;

/// A worker that waits at a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) worker: WorkerId,
    pub(super) asker: Asker,
    /// Time limit of its wait, on the coordinator's clock.
    pub(super) deadline: Duration,
}

/// A worker with a wait that timed out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expired {
    pub(super) waiter: Waiter,
    pub(super) name: String,
    pub(super) count: u32,
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
    pub(super) count: u32,
    pub(super) opened: bool,
    pub(super) waiting: Vec<Waiter>,
}

#[derive(Debug)]
struct Barrier {
    count: u32,
    waiting: Vec<Waiter>,
}

/// All barriers with a waiting worker; one that opens is forgotten.
#[derive(Debug, Default)]
pub(super) struct Barriers(BTreeMap<String, Barrier>);

impl Barriers {
    /// Number of workers that wait.
    pub(super) fn waiting(&self) -> usize {
        self.0.values().map(|barrier| barrier.waiting.len()).sum()
    }

    /// Notes a worker's arrival. [`Self::settle`] then decides which workers continue.
    pub(super) fn arrive(&mut self, name: &str, count: u32, waiter: Waiter) -> Result<(), Refusal> {
        if count == 0 {
            let refusal = Refusal::new(RefusalCode::BadRequest, [0; 4]);
            let text = format!(
                "barrier \"{name}\" of 0 workers: the job's number of workers is not known; say it \
                 when the session is opened (workers=N, TIDEWATER_WORKERS=N)"
            );
            return Err(refusal.with_text(text));
        }
        if !self.0.contains_key(name) && self.0.len() == BARRIERS_MAX {
            let most = BARRIERS_MAX as u64;
            let refusal = Refusal::new(RefusalCode::TooMany, [most + 1, most, 0, 0]);
            return Err(refusal.with_text("barriers with waiting workers"));
        }
        let waiting = Vec::new();
        let barrier = self
            .0
            .entry(name.to_owned())
            .or_insert(Barrier { count, waiting });
        if barrier.count != count {
            let numbers = [u64::from(count), u64::from(barrier.count), 0, 0];
            let text = format!(
                "barrier \"{name}\": this one waits for {count} workers, others \
                 there wait for {}",
                barrier.count
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

    /// Removes the barriers that open or fail, as `outcome` decides from a count and the workers
    /// there. The caller runs it whenever a worker arrives, joins or leaves.
    pub(super) fn settle(&mut self, outcome: impl Fn(u32, &[WorkerId]) -> Outcome) -> Vec<Settled> {
        let mut settled = Vec::new();
        self.0.retain(|name, barrier| {
            let present: Vec<WorkerId> = barrier.waiting.iter().map(|w| w.worker).collect();
            let outcome = outcome(barrier.count, &present);
            if outcome != Outcome::Waits {
                settled.push(Settled {
                    name: name.clone(),
                    count: barrier.count,
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
        for (name, barrier) in &mut self.0 {
            let present: Vec<WorkerId> = barrier.waiting.iter().map(|w| w.worker).collect();
            let over = barrier
                .waiting
                .extract_if(.., |waiter| waiter.deadline <= now);
            expired.extend(over.map(|waiter| Expired {
                waiter,
                name: name.clone(),
                count: barrier.count,
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

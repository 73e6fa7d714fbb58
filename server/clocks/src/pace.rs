//! Step times of the threads of workers, as one applier sees them.
//!
//! A step of a thread begins with its last tick, or with the last move of its domain's minimum if that
//! came later: under BSP and SSP the thread has waited for it. It ends with its next tick. So a worker
//! that waits for a slow one is not slow itself.

use std::collections::BTreeMap;
use std::time::Instant;

use tidewater_protocol::ids::{DomainId, WorkerId, WorkerThread};

use crate::namespace::{DomainKey, NamespaceId};

/// Number of last steps of a thread from which its median time is taken.
const STEPS: usize = 16;
/// Least number of steps of a thread for a median.
const STEPS_MIN: usize = 8;

/// Times of the last steps of one worker thread, a ring of 16, in microseconds.
#[derive(Debug, Default)]
struct Steps {
    ended: Option<Instant>,
    times_us: [u64; STEPS],
    count: usize,
}

/// Step times of the worker threads of all jobs, as one applier measures them.
#[derive(Debug, Default)]
pub struct Pace {
    threads: BTreeMap<(NamespaceId, DomainId, WorkerThread), Steps>,
    /// Time of the last move of each domain's minimum.
    moved: BTreeMap<DomainKey, Instant>,
}

impl Pace {
    /// Records a tick of a worker thread at `now`, which ends its step. `moved` says whether the tick moved
    /// the minimum of the domain. Cost: two map lookups.
    pub fn ticked(
        &mut self,
        DomainKey { namespace, domain }: DomainKey,
        thread: WorkerThread,
        moved: bool,
        now: Instant,
    ) {
        let last_move = self.moved.get(&DomainKey::new(namespace, domain)).copied();
        let steps = self.threads.entry((namespace, domain, thread)).or_default();
        if let Some(begun) = steps
            .ended
            .map(|ended| last_move.map_or(ended, |at| at.max(ended)))
        {
            let time = now.saturating_duration_since(begun).as_micros();
            steps.times_us[steps.count % STEPS] = u64::try_from(time).unwrap_or(u64::MAX);
            steps.count += 1;
        }
        steps.ended = Some(now);
        if moved {
            self.moved.insert(DomainKey::new(namespace, domain), now);
        }
    }

    /// Median time of a thread's last 16 steps in microseconds, at least 1; 0 if it has made fewer than 8.
    pub fn median_us(&self, job: DomainKey, thread: WorkerThread) -> u64 {
        let steps = self.threads.get(&(job.namespace, job.domain, thread));
        let Some(steps) = steps.filter(|steps| steps.count >= STEPS_MIN) else {
            return 0;
        };
        let mut times = steps.times_us;
        let times = &mut times[..steps.count.min(STEPS)];
        times.sort_unstable();
        times[times.len() / 2].max(1)
    }

    /// Removes the step times of a worker thread that has left. With thread 0 all threads of its worker go.
    pub fn forget(&mut self, namespace: NamespaceId, left: WorkerThread) {
        let leaves = |t: &WorkerThread| *t == left || (left.is_first() && t.rank == left.rank);
        self.threads
            .retain(|(job, _, thread), _| *job != namespace || !leaves(thread));
    }

    /// Removes the step times of a worker, of all its threads.
    pub fn forget_rank(&mut self, namespace: NamespaceId, rank: WorkerId) {
        self.forget(namespace, WorkerThread::first(rank));
    }

    /// Removes the step times of all threads of a job.
    pub fn forget_namespace(&mut self, namespace: NamespaceId) {
        self.threads.retain(|(job, ..), _| *job != namespace);
        self.moved.retain(|key, _| key.namespace != namespace);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Under BSP each iteration of three workers takes as long as the slow one. Steps of the others are
    /// counted from the move of the minimum to their ticks.
    #[test]
    fn waits_for_a_slow_worker_are_no_steps() {
        let job = DomainKey::new(NamespaceId(3), DomainId(0));
        let worker = |rank| WorkerThread::first(WorkerId(rank));
        let start = tidewater_runtime::clock::now();
        let mut pace = Pace::default();
        for iteration in 0..9 {
            let at = |us: u64| start + Duration::from_micros(iteration * 9_000 + us);
            pace.ticked(job, worker(0), false, at(1_000));
            pace.ticked(job, worker(1), false, at(1_500));
            assert_eq!(
                pace.median_us(job, worker(2)),
                if iteration < 8 {
                    0
                } else {
                    pace.median_us(job, worker(2))
                }
            );
            pace.ticked(job, worker(2), true, at(9_000));
        }
        let medians = [0, 1, 2].map(|rank| pace.median_us(job, worker(rank)));
        assert_eq!(medians, [1_000, 1_500, 9_000]);
        pace.forget_rank(job.namespace, WorkerId(2));
        assert_eq!(pace.median_us(job, worker(2)), 0);
        pace.forget_namespace(job.namespace);
        assert_eq!(pace.median_us(job, worker(0)), 0);
    }
}

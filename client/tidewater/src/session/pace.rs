//! Slow workers, from the step times that servers measure.

use std::collections::BTreeMap;
use std::time::Duration;

use tidewater_protocol::ids::{DomainId, WorkerId};
use tidewater_protocol::wire::control::{SlowMember, WorkerClock};

use super::Client;
use crate::error::ClientError;

/// Factor over the median step time of all threads above which a thread counts as slow.
const FACTOR: u64 = 2;

/// Worker with a thread that is slower than the others, with its step times; from [`Client::slow_workers`].
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, SyncMode};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// for slow in client.slow_workers()? {
///     println!("worker {}: {:?}, others {:?}", slow.rank.0, slow.step, slow.median);
/// }
/// assert!(client.slow_workers()?.is_empty()); // one thread alone is not slow
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowWorker {
    /// Rank of the worker.
    pub rank: WorkerId,
    /// Median time of the last steps of its slowest thread.
    pub step: Duration,
    /// Median of the medians of all threads of all workers.
    pub median: Duration,
}

impl Client {
    /// Returns the workers that are slow in the default clock domain: the median of a thread's last 16 steps is more
    /// than twice the median over all threads. A step is the time from a tick to the next one without the wait for
    /// others: it begins with the later of the thread's own tick and the last move of the minimum. Threads with
    /// fewer than 8 steps do not count, and one thread alone is not slow.
    ///
    /// The workers are also reported to the coordinator, which logs their names. Cost: a request to one server, and
    /// one to the coordinator if the slow ones are others than in the last call of this client.
    ///
    /// # Errors
    /// That the server or the coordinator is lost; [`ClientError::Observer`].
    pub fn slow_workers(&mut self) -> Result<Vec<SlowWorker>, ClientError> {
        self.check_worker("slow_workers")?;
        let deadline = self.deadline();
        self.lanes.send_held(deadline)?;
        let Some(link) = self.lanes.link(0) else {
            return Ok(Vec::new());
        };
        let slow = find_slow(&link.paces(DomainId(0), deadline)?);
        let ranks: Vec<WorkerId> = slow.iter().map(|slow| slow.worker).collect();
        if ranks != self.slow {
            self.lanes.coordinator.slow(&slow, deadline)?;
            self.slow = ranks;
        }
        let worker = |slow: &SlowMember| SlowWorker {
            rank: slow.worker,
            step: Duration::from_micros(slow.step_us),
            median: Duration::from_micros(slow.median_us),
        };
        Ok(slow.iter().map(worker).collect())
    }
}

/// Finds the slow workers from the step times of all threads, by the rule of [`Client::slow_workers`].
fn find_slow(threads: &[WorkerClock]) -> Vec<SlowMember> {
    let mut steps: Vec<u64> = threads
        .iter()
        .map(|t| t.step_us)
        .filter(|&us| us > 0)
        .collect();
    steps.sort_unstable();
    // The lower one of two: one of two workers can be slow.
    let Some(&median_us) = steps.get(steps.len().saturating_sub(1) / 2) else {
        return Vec::new();
    };
    let mut slow: BTreeMap<WorkerId, u64> = BTreeMap::new();
    for thread in threads
        .iter()
        .filter(|t| t.step_us > median_us.saturating_mul(FACTOR))
    {
        let longest = slow.entry(thread.worker).or_default();
        *longest = thread.step_us.max(*longest);
    }
    let member = |(worker, step_us)| SlowMember {
        worker,
        step_us,
        median_us,
    };
    slow.into_iter().map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_is_twice_the_median() {
        let threads = |steps: &[u64]| -> Vec<WorkerClock> {
            let ranks = (0..).map(WorkerId);
            let thread = |(worker, &step_us)| WorkerClock {
                worker,
                thread: 0,
                clock: 9,
                step_us,
            };
            ranks.zip(steps).map(thread).collect()
        };
        let slow = |steps: &[u64]| {
            let slow = find_slow(&threads(steps));
            slow.iter()
                .map(|s| (s.worker.0, s.median_us))
                .collect::<Vec<_>>()
        };
        assert_eq!(slow(&[]), []);
        assert_eq!(slow(&[9_000]), []);
        assert_eq!(slow(&[100, 200]), []);
        assert_eq!(slow(&[100, 201]), [(1, 100)]);
        assert_eq!(slow(&[100, 301, 100, 120]), [(1, 100)]);
        assert_eq!(slow(&[0, 0, 100, 0]), [], "the others have too few steps");
        assert_eq!(slow(&[100, 100, 900, 800, 110]), [(2, 110), (3, 110)]);
    }
}

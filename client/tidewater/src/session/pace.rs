//! Slow workers, from the step times that servers measure.

use std::time::Duration;

use tidewater_bookkeeping::pace::find_slow;
use tidewater_protocol::ids::{DomainId, WorkerId};
use tidewater_protocol::wire::control::SlowMember;

use super::Client;
use crate::error::ClientError;

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
    /// That the server or the coordinator is lost; a deadline while the server's successor is awaited;
    /// [`ClientError::Observer`].
    pub fn slow_workers(&mut self) -> Result<Vec<SlowWorker>, ClientError> {
        self.check_worker("slow_workers")?;
        let deadline = self.deadline();
        self.lanes.send_held(deadline)?;
        if self.lanes.servers() == 0 {
            return Ok(Vec::new());
        }
        let paces = self
            .lanes
            .ask(0, deadline, |link, slice| link.paces(DomainId(0), slice))?;
        let slow = find_slow(&paces);
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

//! Calls that change queues, as a journal holds them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidewater_protocol::wire::control::{QueueSpec, TaskShard};

use crate::queue::DoneReport;
use crate::queues::{QueueError, Queues};
use crate::reports::WorkerKey;

/// A call that has changed the queues of a job. Calls that are replayed in their order on equal queues have equal
/// effects: a queue takes time and numbers of deliveries from its caller, and draws no random number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueCall {
    /// [`Queues::open`] of a queue that was not there.
    Open {
        /// Definition of the queue.
        spec: QueueSpec,
        /// The shards of its data.
        shards: Vec<TaskShard>,
    },
    /// A call of [`Queue::take`](crate::Queue::take).
    Take {
        /// Number of the queue.
        queue: u32,
        /// Time of the call.
        now: Duration,
        /// The worker that asks.
        worker: WorkerKey,
        /// Number of the delivery, if a task was given.
        delivery: u64,
    },
    /// A call of [`Queue::done`](crate::Queue::done).
    Done {
        /// Number of the queue.
        queue: u32,
        /// Time of the call.
        now: Duration,
        /// The worker that reports.
        worker: WorkerKey,
        /// Delivery, thread and records of the finished task.
        #[serde(flatten)]
        report: DoneReport,
    },
    /// A call of [`Queue::settle`](crate::Queue::settle).
    Settle {
        /// Number of the queue.
        queue: u32,
        /// Number of the delivery.
        delivery: u64,
    },
    /// A call of [`Queue::failed`](crate::Queue::failed).
    Failed {
        /// Number of the queue.
        queue: u32,
        /// Time of the call.
        now: Duration,
        /// The worker that reports.
        worker: WorkerKey,
        /// Number of the delivery.
        delivery: u64,
        /// Why the task failed.
        reason: String,
    },
    /// A call of [`Queues::release`].
    Release {
        /// Worker that is lost or has left.
        worker: WorkerKey,
        /// Whether it is lost.
        is_lost: bool,
    },
    /// A call of [`Queues::after`].
    BeginAgain,
}

impl Queues {
    /// Repeats a call. Its result was the caller's of the first time.
    ///
    /// # Errors
    /// [`QueueError`]: these queues are not equal to those of the first time.
    pub fn replay(&mut self, call: QueueCall) -> Result<(), QueueError> {
        match call {
            QueueCall::Open { spec, shards } => self.open(&spec, Some(shards)).map(drop),
            QueueCall::Take {
                queue,
                now,
                worker,
                delivery,
            } => self
                .get(queue)
                .map(|queue| drop(queue.take(now, worker, delivery))),
            QueueCall::Done {
                queue,
                now,
                worker,
                report,
            } => {
                self.get(queue)?.done(now, worker, report);
                Ok(())
            }
            QueueCall::Settle { queue, delivery } => {
                self.get(queue).map(|queue| queue.settle(delivery))
            }
            QueueCall::Failed {
                queue,
                now,
                worker,
                delivery,
                reason,
            } => self
                .get(queue)
                .map(|queue| drop(queue.failed(now, worker, delivery, &reason))),
            QueueCall::Release { worker, is_lost } => {
                self.release(worker, is_lost);
                Ok(())
            }
            QueueCall::BeginAgain => {
                *self = Self::after(self);
                Ok(())
            }
        }
    }
}

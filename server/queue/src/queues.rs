//! The queues of one job.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidewater_protocol::limits::{QUEUE_TASKS_MAX, QUEUES_MAX};
use tidewater_protocol::wire::control::{QueueSpec, QueueSummary, TaskShard};

use crate::queue::{Queue, Released};
use crate::reports::WorkerKey;

/// Why a queue cannot be made or found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// A queue of this name has another definition.
    #[error(
        "queue \"{name}\" is there with another {field}; use the same definition in all workers, or \
         another name"
    )]
    Differs {
        /// Name of the queue.
        name: String,
        /// Field of the definition that differs.
        field: &'static str,
    },
    /// The job has as many queues as it can.
    #[error("queue \"{name}\": the job has {limit} queues, which is the limit")]
    TooMany {
        /// Name of the queue.
        name: String,
        /// Most queues that a job has.
        limit: usize,
    },
    /// The data has more tasks than a queue can have.
    #[error("queue \"{name}\" has {tasks} tasks, the limit is {limit}; make its tasks larger")]
    TooManyTasks {
        /// Name of the queue.
        name: String,
        /// Number of tasks of a pass.
        tasks: u64,
        /// Most tasks that a pass has.
        limit: u64,
    },
    /// No queue has this number.
    #[error("no queue has number {queue}; open it first")]
    Unknown {
        /// Number in the request.
        queue: u32,
    },
}

/// The queues of a job, by number in the order in which they were made.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Queues {
    /// Number of the first queue.
    first: u32,
    queues: Vec<Queue>,
}

impl Queues {
    /// No queues, with numbers that follow those of `old`: requests about the queues of before are refused.
    pub fn after(old: &Self) -> Self {
        Self {
            first: old.first.saturating_add(old.queues.len() as u32),
            queues: Vec::new(),
        }
    }

    /// Finds a queue, or makes it if there are shards. `None`: it is not there, and no shards are given.
    /// Shards of a queue that is there are ignored: those of its first opener count.
    ///
    /// # Errors
    /// [`QueueError`] for another definition, a queue too many, or too many tasks.
    pub fn open(
        &mut self,
        spec: &QueueSpec,
        shards: Option<Vec<TaskShard>>,
    ) -> Result<Option<u32>, QueueError> {
        let mut known = (self.first..).zip(&self.queues);
        if let Some((number, queue)) = known.find(|(_, queue)| queue.spec().name == spec.name) {
            return match difference(queue.spec(), spec) {
                None => Ok(Some(number)),
                Some(field) => Err(QueueError::Differs {
                    name: spec.name.clone(),
                    field,
                }),
            };
        }
        let Some(shards) = shards else {
            return Ok(None);
        };
        let name = || spec.name.clone();
        if self.queues.len() >= QUEUES_MAX {
            let limit = QUEUES_MAX;
            return Err(QueueError::TooMany {
                name: name(),
                limit,
            });
        }
        let queue = Queue::new(spec.clone(), shards);
        let (tasks, limit) = (queue.tasks(), QUEUE_TASKS_MAX);
        if tasks > limit {
            let name = name();
            return Err(QueueError::TooManyTasks { name, tasks, limit });
        }
        let number = self.first + self.queues.len() as u32;
        self.queues.push(queue);
        Ok(Some(number))
    }

    /// A queue by number.
    ///
    /// # Errors
    /// [`QueueError::Unknown`].
    pub fn get(&mut self, queue: u32) -> Result<&mut Queue, QueueError> {
        let place = queue.checked_sub(self.first);
        let found = place.and_then(|place| self.queues.get_mut(place as usize));
        found.ok_or(QueueError::Unknown { queue })
    }

    /// A queue by number, if there is one, to look at.
    pub fn find(&self, queue: u32) -> Option<&Queue> {
        self.queues.get(queue.checked_sub(self.first)? as usize)
    }

    /// All queues, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.queues.iter()
    }

    /// The queues for a status, at most `room`, which it reduces by those that it lists; and the number of those
    /// that are not listed.
    pub fn summaries(&self, room: &mut usize) -> (Vec<QueueSummary>, u32) {
        let listed = self.queues.len().min(*room);
        *room -= listed;
        let summary = |queue: &Queue| QueueSummary {
            name: queue.spec().name.clone(),
            counters: queue.counters(),
            is_over: queue.is_over(),
        };
        let queues = self.queues.iter().take(listed).map(summary).collect();
        (queues, (self.queues.len() - listed) as u32)
    }

    /// Takes all tasks of all queues back from a worker, which is lost or has left; see [`Queue::release`].
    pub fn release(&mut self, worker: WorkerKey, is_lost: bool) -> Released {
        let mut all = Released::default();
        for queue in &mut self.queues {
            let of_queue = queue.release(worker, is_lost);
            all.taken_back += of_queue.taken_back;
            all.left_out.extend(of_queue.left_out);
        }
        all
    }

    /// Takes back the deliveries with a time that is over.
    pub fn expire(&mut self, now: Duration) {
        self.queues.iter_mut().for_each(|queue| queue.expire(now));
    }

    /// Continues the queues on a clock that begins again.
    pub fn resume(&mut self, now: Duration) {
        self.queues.iter_mut().for_each(|queue| queue.resume(now));
    }
}

/// The first field in which two definitions differ.
fn difference(a: &QueueSpec, b: &QueueSpec) -> Option<&'static str> {
    let fields = [
        ("kind", a.kind == b.kind),
        ("source", a.source == b.source),
        ("task size", a.task_size == b.task_size),
        ("number of epochs", a.epochs == b.epochs),
        ("strict_epochs", a.strict_epochs == b.strict_epochs),
        ("seed", a.seed == b.seed),
        ("list of final tasks", a.finals == b.finals),
        ("limit of steps", a.steps_max == b.steps_max),
        ("number of records", a.records == b.records),
        ("seed of its records", a.record_seed == b.record_seed),
    ];
    let others = ("limit of failures, losses, held tasks or times", a == b);
    let mut fields = fields.into_iter().chain([others]);
    fields.find(|(_, equal)| !equal).map(|(field, _)| field)
}

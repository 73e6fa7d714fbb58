//! Tasks: pieces of a data set that the coordinator hands to the workers of a job.

use serde::{Deserialize, Serialize};

use crate::limits::{
    PATH_BYTES_MAX, TABLE_NAME_BYTES_MAX, TASK_FINALS_MAX, TASK_LEFT_OUT_LISTED, TASK_SHARDS_MAX,
    TEXT_BYTES_MAX,
};
use crate::wire::WireError;
use crate::wire::error::{at_most, name_at_most, text_at_most};

use super::members::thread_number;

/// What a worker does with the records of a task, or with a task without records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TaskKind {
    /// Trains on the records.
    Train,
    /// Evaluates the model on the records.
    Evaluate,
    /// Writes a prediction for each record.
    Predict,
    /// Saves the model. The task has no records.
    Save,
    /// Does what one worker does once at the end. The task has no records.
    End,
}

/// Unit in which the range of a shard counts: bytes or records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskUnit {
    /// Bytes of the decompressed content: the shard has the records that start in the range.
    Bytes,
    /// Records of the source, counted from 0.
    Records,
}

/// Range of bytes or records of one file, or of a source without files. It is a part of a data set, and also
/// the data of one task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskShard {
    /// Path of the file, or name of the source; empty in a queue with [`QueueSpec::records`] or a task without
    /// records.
    pub path: String,
    /// First byte or record, from 0.
    pub first: u64,
    /// End of the range, exclusive.
    pub end: u64,
    /// Unit of `first` and `end`.
    pub unit: TaskUnit,
}

/// Definition of a queue of tasks that the coordinator hands out to workers: data, order, passes and retries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSpec {
    /// Name of the queue in its job.
    pub name: String,
    /// Kind of the tasks with records.
    pub kind: TaskKind,
    /// The data as the program names it: a path, a pattern, or a name of its own.
    pub source: String,
    /// Bytes or records of a task, in the unit of its shard; at least 1. The last task of a shard may be smaller.
    pub task_size: u64,
    /// Passes over the data; 0: without end.
    pub epochs: u32,
    /// Whether a pass begins when all tasks of the one before are finished. Otherwise passes overlap.
    pub strict_epochs: bool,
    /// Seed of the random order of the tasks, another one in each pass; `None`: the order of the shards.
    pub seed: Option<u64>,
    /// Tasks without records that follow when all others are finished or left out, one after another.
    pub finals: Vec<TaskKind>,
    /// Number of reported failures of a task after which it is left out; at least 1.
    pub failures_max: u32,
    /// Shortest time in milliseconds after which a task is taken back from its worker.
    pub timeout_ms: u64,
    /// Multiple of the median time of a task after which it is taken back, if longer than `timeout_ms`. There is a
    /// median from 10 finished tasks on.
    pub timeout_factor: u32,
    /// Shortest time in milliseconds after which a task is given to a second worker too; never before 10 tasks have
    /// finished.
    pub straggler_ms: u64,
    /// Multiple of the median time of a task after which a second worker also gets it, if longer than
    /// `straggler_ms`.
    pub straggler_factor: u32,
    /// Number of workers lost while they had a task after which the task is left out; at least 1.
    pub losses_max: u32,
    /// Maximum number of unreported tasks of the queue that a worker has at once, over all its threads; 0: no limit.
    pub held_max: u32,
    /// Number of finished tasks with records after which no other task with records is handed out, only `finals`; 0:
    /// no limit.
    pub steps_max: u64,
    /// Number of records of data that the program reads itself. The only shard of the queue is then the records from
    /// 0 to this number. `None`: the shards are of `source`.
    pub records: Option<u64>,
    /// Seed of the order of single records in each pass, only with `records`: the shards of tasks are then positions
    /// in this order. `None`: the shards are record numbers.
    pub record_seed: Option<u64>,
}

/// Delivery of a task to a worker: which records, in which pass, and under which delivery number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Number of this delivery, different from those of all other deliveries of the coordinator.
    pub delivery: u64,
    /// Number of the task in its queue. A task that is given again keeps its number.
    pub number: u64,
    /// Kind of the task.
    pub kind: TaskKind,
    /// Pass over the data, from 0.
    pub epoch: u32,
    /// Records of the task; an empty range for a task without records.
    pub shard: TaskShard,
    /// Number of failures of this task that workers have reported so far.
    pub failures: u32,
}

/// A task that the coordinator left out because it failed too often or too many workers were lost with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Number of the task in its queue.
    pub number: u64,
    /// Kind of the task.
    pub kind: TaskKind,
    /// Pass over the data, from 0.
    pub epoch: u32,
    /// Records of the task; an empty range for a task without records.
    pub shard: TaskShard,
    /// Reason of the last failure as the worker reported it, or the number of lost workers in words.
    pub reason: String,
}

/// Counters of a task queue since it was made: tasks, deliveries, failures and records. All but `tasks` and `open`
/// only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueCounters {
    /// Number of tasks of one pass, without final ones.
    pub tasks: u64,
    /// Passes that have begun.
    pub epochs: u32,
    /// Tasks of all passes that are finished, final ones included; each counts once.
    pub finished: u64,
    /// Records of the finished tasks, as their workers counted them.
    pub records: u64,
    /// Deliveries of tasks to workers.
    pub given: u64,
    /// Tasks that workers have now, or that are finished while servers still apply their pushes.
    pub open: u64,
    /// Deliveries taken back from workers that were lost or have left.
    pub recovered: u64,
    /// Deliveries taken back because their time was over.
    pub timeouts: u64,
    /// Deliveries to a second worker.
    pub stragglers: u64,
    /// Failures that workers reported.
    pub failures: u64,
    /// Reports of deliveries that no longer counted when the report came; a repeated report counts once.
    pub late: u64,
    /// Tasks that are left out.
    pub left_out: u64,
}

/// State of a task queue: its counters, the first tasks that were left out, and whether it is over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Counters of the queue.
    pub counters: QueueCounters,
    /// The first tasks that were left out, at most [`TASK_LEFT_OUT_LISTED`].
    pub left_out: Vec<LeftOut>,
    /// Whether all tasks are finished or left out, so that none will follow.
    pub is_over: bool,
}

/// State of a task queue in the status of a job: its name, counters, and whether it is over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueSummary {
    /// Name of the queue in its job.
    pub name: String,
    /// Counters of the queue.
    pub counters: QueueCounters,
    /// Whether all tasks are finished or left out, so that none will follow.
    pub is_over: bool,
}

/// Request of a worker to the coordinator about tasks: opens a queue, takes a task, reports one, or reads a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskRequest {
    /// Makes a queue, or finds the queue of that name; refused if the definition of that queue differs. Answer:
    /// [`TaskAnswer::Queue`].
    Open {
        /// Definition of the queue.
        spec: QueueSpec,
        /// The data of a new queue, ignored if the queue exists. `None` only finds the queue; if there is none, the answer
        /// is `Queue(None)`.
        shards: Option<Vec<TaskShard>>,
    },
    /// Asks for a task. Answer: [`TaskAnswer::Task`], [`TaskAnswer::Wait`], or [`TaskAnswer::Over`].
    Take {
        /// Number of the queue.
        queue: u32,
        /// Milliseconds for which the coordinator keeps the request if there is no task now; 0: it answers at once.
        wait_ms: u64,
    },
    /// Reports a finished task. Before, the worker has sent a TASK frame behind the task's pushes on each lane that
    /// carried them, and the appliers have the frames. Answer: [`TaskAnswer::Reported`], if the report counts when
    /// all servers have applied the pushes.
    Done {
        /// Number of the queue.
        queue: u32,
        /// Number of the delivery.
        delivery: u64,
        /// Number of the worker's thread that has the task.
        thread: u32,
        /// Number of the task's records, as the worker counted them.
        records: u64,
        /// Whether servers hold pushes of the task, which they apply if the report counts.
        pushed: bool,
    },
    /// Reports a task that failed. Answer: [`TaskAnswer::Reported`].
    Failed {
        /// Number of the queue.
        queue: u32,
        /// Number of the delivery.
        delivery: u64,
        /// Cause of the failure, for people.
        reason: String,
    },
    /// Reads the state of a queue. Answer: [`TaskAnswer::Over`], whether or not the queue is over.
    Status {
        /// Number of the queue.
        queue: u32,
    },
}

/// Answer of the coordinator to a [`TaskRequest`]: the number of a queue, a task, a request to ask again later, the
/// state of a queue, or whether a report counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskAnswer {
    /// Number of the queue; `None` if there is none of the name and the request had no shards to make it from.
    Queue(Option<u32>),
    /// The task that the worker has from now on.
    Task(Task),
    /// There is no task for this worker now, and one may follow: others may not finish theirs, or the worker has
    /// `held_max` tasks.
    Wait,
    /// State of the queue. As an answer to [`TaskRequest::Take`] it means that no task will follow.
    Over(QueueStatus),
    /// The report has arrived. It does not count if the task was taken back before, or another worker finished it
    /// first.
    Reported {
        /// Whether the report counts: the task is finished, or its failure is noted. A repeated report gets the
        /// first answer.
        counted: bool,
    },
}

impl TaskShard {
    /// Returns the number of bytes or records in the range; 0 if it ends before it begins.
    pub const fn size(&self) -> u64 {
        self.end.saturating_sub(self.first)
    }

    fn validate(&self) -> Result<(), WireError> {
        text_at_most("path of a shard", &self.path, PATH_BYTES_MAX)?;
        match self.first <= self.end {
            true => Ok(()),
            false => Err(WireError::Malformed {
                what: "shard",
                why: "ends before it begins",
            }),
        }
    }
}

impl QueueSpec {
    fn validate(&self) -> Result<(), WireError> {
        name_at_most("name of a queue", &self.name, TABLE_NAME_BYTES_MAX)?;
        text_at_most("source of a queue", &self.source, PATH_BYTES_MAX)?;
        let finals = self.finals.len() as u64;
        at_most("final tasks of a queue", finals, TASK_FINALS_MAX as u64)?;
        let has_records = |kind: &TaskKind| !matches!(kind, TaskKind::Save | TaskKind::End);
        let wrong = |why| {
            Err(WireError::Malformed {
                what: "definition of a queue",
                why,
            })
        };
        if !has_records(&self.kind) || self.finals.iter().any(has_records) {
            return wrong("has a kind with records at its end, or one without them before");
        }
        if self.task_size == 0 || self.failures_max == 0 || self.losses_max == 0 {
            return wrong("has tasks of size 0, or no tries");
        }
        if self.record_seed.is_some() && self.records.is_none() {
            return wrong("shuffles single records without their number");
        }
        Ok(())
    }

    /// Checks that a queue with `records` has the range from 0 to that number as its only shard. Accepts all shards
    /// of other queues.
    fn validate_shards(&self, shards: &[TaskShard]) -> Result<(), WireError> {
        let Some(records) = self.records else {
            return Ok(());
        };
        match shards {
            [one] if (one.first, one.end, one.unit) == (0, records, TaskUnit::Records) => Ok(()),
            _ => Err(WireError::Malformed {
                what: "shards of a queue",
                why: "are not the number of records of its definition",
            }),
        }
    }
}

impl QueueSummary {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        name_at_most("name of a queue", &self.name, TABLE_NAME_BYTES_MAX)
    }
}

impl QueueStatus {
    fn validate(&self) -> Result<(), WireError> {
        let listed = self.left_out.len() as u64;
        at_most("tasks left out", listed, TASK_LEFT_OUT_LISTED as u64)?;
        self.left_out.iter().try_for_each(|left_out| {
            left_out.shard.validate()?;
            text_at_most("reason", &left_out.reason, TEXT_BYTES_MAX)
        })
    }
}

impl TaskRequest {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        match self {
            Self::Open { spec, shards } => {
                spec.validate()?;
                let Some(shards) = shards.as_deref() else {
                    return Ok(());
                };
                spec.validate_shards(shards)?;
                at_most(
                    "shards of a queue",
                    shards.len() as u64,
                    TASK_SHARDS_MAX as u64,
                )?;
                shards.iter().try_for_each(TaskShard::validate)
            }
            Self::Done { thread, .. } => thread_number(*thread),
            Self::Failed { reason, .. } => text_at_most("reason", reason, TEXT_BYTES_MAX),
            Self::Take { .. } | Self::Status { .. } => Ok(()),
        }
    }
}

impl TaskAnswer {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        match self {
            Self::Task(task) => task.shard.validate(),
            Self::Over(status) => status.validate(),
            Self::Queue(_) | Self::Wait | Self::Reported { .. } => Ok(()),
        }
    }
}

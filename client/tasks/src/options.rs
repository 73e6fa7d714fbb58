//! Options of a queue.

use std::time::Duration;

use tidewater::DomainId;
use tidewater_protocol::wire::control::{QueueSpec, TaskKind};

/// Time limit of a request unless [`QueueOptions::answer_timeout`] sets another one.
const ANSWER: Duration = Duration::from_secs(30);

/// How often pushes of a task count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delivery {
    /// Exactly once: servers hold them until the task is finished. They take memory there until then, within
    /// the servers' `--pending-bytes` for all tasks of an applier.
    #[default]
    ExactlyOnce,
    /// At least once: they take effect on arrival, and again with a task that is given again.
    AtLeastOnce,
}

/// Definition of a queue, and how this worker uses it. All workers give the same definition.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    pub(crate) spec: QueueSpec,
    pub(crate) delivery: Delivery,
    pub(crate) ticks: Option<DomainId>,
    pub(crate) allowed_left_out: u64,
    /// Longest time for the answer of a request to the coordinator, beyond the time for which it keeps one.
    pub(crate) answer_timeout: Duration,
}

impl QueueOptions {
    /// A queue with this name and tasks of `task_size`: bytes of decompressed text, or records where the source
    /// counts records. One pass in the order of the data, to train on it; delivery exactly once.
    pub fn new(name: &str, task_size: u64) -> Self {
        Self {
            spec: QueueSpec {
                name: name.to_owned(),
                kind: TaskKind::Train,
                source: String::new(),
                task_size,
                epochs: 1,
                strict_epochs: false,
                seed: None,
                finals: Vec::new(),
                failures_max: 3,
                timeout_ms: 300_000,
                timeout_factor: 10,
                straggler_ms: 5_000,
                straggler_factor: 2,
                losses_max: 3,
                held_max: 0,
                steps_max: 0,
                records: None,
                record_seed: None,
            },
            delivery: Delivery::ExactlyOnce,
            ticks: None,
            allowed_left_out: 0,
            answer_timeout: ANSWER,
        }
    }

    /// Sets the kind of the tasks with records.
    #[must_use]
    pub const fn kind(mut self, kind: TaskKind) -> Self {
        self.spec.kind = kind;
        self
    }

    /// Sets the number of passes over the data; 0: without end. The first task of a pass may be given before the
    /// last one of the pass before is finished.
    #[must_use]
    pub const fn epochs(mut self, epochs: u32) -> Self {
        self.spec.epochs = epochs;
        self
    }

    /// Makes a pass begin when all tasks of the one before are finished.
    #[must_use]
    pub const fn strict_epochs(mut self) -> Self {
        self.spec.strict_epochs = true;
        self
    }

    /// Gives the tasks of each pass in an order of its own, which is a function of this seed.
    #[must_use]
    pub const fn shuffled(mut self, seed: u64) -> Self {
        self.spec.seed = Some(seed);
        self
    }

    /// Gives the records of each pass in an order of its own, which is a function of this seed and their number: a
    /// task stands for records from all of the data, which [`CurrentTask::record_numbers`] lists. For data that the
    /// program reads by record number, [`Tasks::count`]; [`Tasks::open`] refuses it.
    ///
    /// [`CurrentTask::record_numbers`]: crate::CurrentTask::record_numbers
    /// [`Tasks::count`]: crate::Tasks::count
    /// [`Tasks::open`]: crate::Tasks::open
    ///
    /// ```
    /// use tidewater::{JoinOptions, SyncMode};
    /// use tidewater_tasks::{QueueOptions, Tasks};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
    /// # let mut client = job.client(SyncMode::Asp)?;
    /// let images = [9u8, 8, 7, 6, 5];
    /// let options = QueueOptions::new("images", 2).shuffled_records(7);
    /// let mut tasks = Tasks::count(&mut client, images.len() as u64, &options)?;
    /// let mut seen = Vec::new();
    /// while let Some(task) = tasks.next(&mut client)? {
    ///     let numbers = task.record_numbers()?;
    ///     seen.extend(numbers.map(|number| images[number as usize]));
    ///     let records = task.shard().size();
    ///     tasks.done(&mut client, task, records)?;
    /// }
    /// assert_ne!(seen, images);
    /// seen.sort();
    /// assert_eq!(seen, [5, 6, 7, 8, 9]);
    /// # client.finish()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn shuffled_records(mut self, seed: u64) -> Self {
        self.spec.record_seed = Some(seed);
        self
    }

    /// Adds a task without records, [`TaskKind::Save`] or [`TaskKind::End`], that one worker gets when all before
    /// it are finished.
    #[must_use]
    pub fn then(mut self, kind: TaskKind) -> Self {
        self.spec.finals.push(kind);
        self
    }

    /// Sets the number of failures after which a task is left out (3). The loss of a worker is none.
    #[must_use]
    pub const fn failures_max(mut self, failures: u32) -> Self {
        self.spec.failures_max = failures;
        self
    }

    /// Sets the number of workers that are lost while they have a task, after which it is left out (3). The last
    /// one of them has no other task meanwhile. Raise it where workers are lost by the scheduler's choice.
    #[must_use]
    pub const fn losses_max(mut self, workers: u32) -> Self {
        self.spec.losses_max = workers;
        self
    }

    /// Limits the tasks of the queue that a worker has at once, over all its threads; 0 for no limit, as it is
    /// without this call. [`Tasks::next`](crate::Tasks::next) waits at the limit.
    #[must_use]
    pub const fn held_max(mut self, tasks: u32) -> Self {
        self.spec.held_max = tasks;
        self
    }

    /// Ends the queue when this many tasks with records are finished, over all passes; 0 for no limit, as it is
    /// without this call. Final tasks follow.
    #[must_use]
    pub const fn steps_max(mut self, tasks: u64) -> Self {
        self.spec.steps_max = tasks;
        self
    }

    /// Takes a task back after a multiple of the median time of the last tasks (10), and after `least` (5 min) at
    /// the earliest.
    #[must_use]
    pub fn timeout(mut self, least: Duration, factor: u32) -> Self {
        (self.spec.timeout_ms, self.spec.timeout_factor) = (millis(least), factor);
        self
    }

    /// Gives a task to a second worker, if there is no other task, after a multiple of the median time of the last
    /// tasks (2), and after `least` (5 s) at the earliest. The first one that finishes it counts.
    #[must_use]
    pub fn stragglers(mut self, least: Duration, factor: u32) -> Self {
        (self.spec.straggler_ms, self.spec.straggler_factor) = (millis(least), factor);
        self
    }

    /// Sets how often pushes count.
    #[must_use]
    pub const fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Ends an iteration in this clock domain after each task, and while this worker waits for one: under BSP and
    /// SSP the others would wait for it.
    #[must_use]
    pub const fn ticking(mut self, domain: DomainId) -> Self {
        self.ticks = Some(domain);
        self
    }

    /// Lets the queue end without an error if at most this many tasks are left out (0).
    #[must_use]
    pub const fn allow_left_out(mut self, tasks: u64) -> Self {
        self.allowed_left_out = tasks;
        self
    }

    /// Sets the time limit of each request to the coordinator (30 s). A report is answered when all servers have
    /// applied the pushes of its task.
    #[must_use]
    pub const fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

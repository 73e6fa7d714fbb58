//! The tasks of a queue, as one client takes them. (long: its documentation.)

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidewater::{Client, ClientError, TaskAnswer, TaskRequest};
use tidewater_data::{DataSource, ReadOptions, Records, RowReader, Shard, Unit};
use tidewater_protocol::limits::TEXT_BYTES_MAX;
use tidewater_protocol::wire::control::{QueueStatus, Task, TaskKind, TaskShard, TaskUnit};

use crate::error::TaskError;
use crate::numbers::RecordNumbers;
use crate::options::{Delivery, QueueOptions};
use crate::permutation::Permutation;

/// Time for which the coordinator keeps a request for a task. It is then asked again, so that the end of the job
/// is noticed.
const KEPT: Duration = Duration::from_secs(2);
/// The same for a worker that ticks meanwhile.
const KEPT_TICKING: Duration = Duration::from_millis(2);

/// The tasks of a queue. It belongs to one client: give the same one to every call.
#[derive(Debug)]
pub struct Tasks {
    queue: u32,
    options: QueueOptions,
    source: Option<Arc<dyn DataSource>>,
    /// Number of the client that opened the queue.
    client: u32,
    /// The task that is neither done nor failed.
    current: Option<u64>,
    /// What is left of the report of a finished task.
    unfinished: Option<Unfinished>,
    /// Whether the tick behind the report of a failed task is not complete.
    owes_tick: bool,
    is_over: bool,
}

/// Steps of the report of a finished task, from one that did not succeed.
#[derive(Debug, Clone, Copy)]
enum Unfinished {
    /// The tick in front of the report, then the report.
    TickAndReport(Finished),
    /// The report.
    Report(Finished),
    /// The tick behind the report. The answer is kept for the caller.
    Tick { counted: bool },
}

/// Report of a finished task.
#[derive(Debug, Clone, Copy)]
struct Finished {
    delivery: u64,
    records: u64,
    /// Whether servers hold pushes of it.
    pushed: bool,
}

/// A task that this worker has. Drop it and take the next one, and it has failed.
#[derive(Debug)]
pub struct CurrentTask {
    task: Task,
    source: Option<Arc<dyn DataSource>>,
    /// Number and seed of the records, if single ones are shuffled.
    shuffle: Option<(u64, u64)>,
}

/// Answer to a request for a task.
#[derive(Debug)]
pub(crate) enum Taken {
    /// The task that this worker has from now on.
    Task(CurrentTask),
    /// Other workers have the last tasks, or this one has as many as it may.
    Wait,
    /// No task will follow.
    Over,
}

impl Tasks {
    /// Opens a queue over the shards of a source, or the queue of this name if it is there. The shards of the
    /// first worker count: a file that has shrunk or is gone since then fails its tasks, by name. All workers open
    /// the data under the same paths.
    ///
    /// # Errors
    /// The coordinator's refusal: another definition, too many tasks or queues. [`TaskError::Path`].
    /// [`TaskError::ShuffledSource`] with [`QueueOptions::shuffled_records`].
    pub fn open(
        client: &mut Client,
        source: Arc<dyn DataSource>,
        options: &QueueOptions,
    ) -> Result<Self, TaskError> {
        if options.spec.record_seed.is_some() {
            return Err(TaskError::ShuffledSource {
                queue: options.spec.name.clone(),
            });
        }
        let shards = source.shards().iter().map(task_shard);
        let shards: Result<Vec<TaskShard>, TaskError> = shards.collect();
        Self::open_with(client, Some(source), shards?, options)
    }

    /// Opens a queue over a number of records that the program reads itself: a task is a range of them, or, with
    /// [`QueueOptions::shuffled_records`], as many records drawn from all. All workers give the same number.
    ///
    /// # Errors
    /// The coordinator's refusal: another definition or number of records, too many tasks or queues.
    pub fn count(
        client: &mut Client,
        records: u64,
        options: &QueueOptions,
    ) -> Result<Self, TaskError> {
        let shard = TaskShard {
            path: String::new(),
            first: 0,
            end: records,
            unit: TaskUnit::Records,
        };
        let mut options = options.clone();
        options.spec.records = Some(records);
        Self::open_with(client, None, vec![shard], &options)
    }

    fn open_with(
        client: &mut Client,
        source: Option<Arc<dyn DataSource>>,
        shards: Vec<TaskShard>,
        options: &QueueOptions,
    ) -> Result<Self, TaskError> {
        let mut ask = |shards| {
            let spec = options.spec.clone();
            let answer =
                client.request_task(TaskRequest::Open { spec, shards }, options.answer_timeout)?;
            match answer {
                TaskAnswer::Queue(number) => Ok(number),
                _ => Err(protocol("open a queue")),
            }
        };
        // Most workers find the queue there, and need not send the names of all files.
        let queue = match ask(None)? {
            Some(queue) => queue,
            None => ask(Some(shards))?.ok_or_else(|| protocol("open a queue"))?,
        };
        Ok(Self {
            queue,
            options: options.clone(),
            source,
            client: client.number(),
            current: None,
            unfinished: None,
            owes_tick: false,
            is_over: false,
        })
    }

    /// Takes the next task; `None` when there is none left. Waits while other workers have the last ones, which
    /// they may not finish. A task that was taken before and is neither done nor failed is reported as failed. A
    /// report of [`Tasks::done`] that was not answered is repeated.
    ///
    /// # Errors
    /// [`TaskError::LeftOut`], once, at the end. The coordinator's refusal; that the job has failed; a deadline of
    /// a tick. [`TaskError::OtherTask`], [`TaskError::OtherClient`]. With [`Delivery::ExactlyOnce`] the refusal of an
    /// earlier push that no ticket has claimed: no task was taken then, and the call can be repeated.
    pub fn next(&mut self, client: &mut Client) -> Result<Option<CurrentTask>, TaskError> {
        self.check_client(client)?;
        let open = client.open_task();
        if open.is_some() && open != self.current {
            return Err(TaskError::OtherTask { queue: self.name() });
        }
        self.settle(client)?;
        if self.is_exact() && !self.is_over {
            // Before a task is taken, which would fail for a push that is not of it.
            client.flush()?;
        }
        loop {
            match self.take(client, self.kept())? {
                Taken::Task(task) => return self.begin(client, task).map(Some),
                Taken::Wait => self.tick(client)?,
                Taken::Over => return Ok(None),
            }
        }
    }

    /// Completes the reports that were made before, and reports the task that was taken before as failed.
    pub(crate) fn settle(&mut self, client: &mut Client) -> Result<(), TaskError> {
        self.repeat_report(client)?;
        if self.owes_tick {
            self.tick_behind_failed(client)?;
        }
        if let Some(delivery) = self.current {
            self.report_failed(client, delivery, "the worker took the next task instead")?;
        }
        Ok(())
    }

    /// Time for which the coordinator keeps a request of this worker.
    pub(crate) const fn kept(&self) -> Duration {
        match self.options.ticks {
            Some(_) => KEPT_TICKING,
            None => KEPT,
        }
    }

    /// Asks for a task, which the coordinator answers within `kept`. [`TaskError::LeftOut`], once, at the end.
    pub(crate) fn take(&mut self, client: &mut Client, kept: Duration) -> Result<Taken, TaskError> {
        if self.is_over {
            return Ok(Taken::Over);
        }
        let request = TaskRequest::Take {
            queue: self.queue,
            wait_ms: kept.as_millis() as u64,
        };
        match client.request_task(request, kept + self.options.answer_timeout)? {
            TaskAnswer::Task(task) => {
                let spec = &self.options.spec;
                Ok(Taken::Task(CurrentTask {
                    task,
                    source: self.source.clone(),
                    shuffle: spec.records.zip(spec.record_seed),
                }))
            }
            TaskAnswer::Wait => Ok(Taken::Wait),
            TaskAnswer::Over(status) => {
                self.is_over = true;
                self.check_left_out(status)?;
                Ok(Taken::Over)
            }
            _ => Err(protocol("take a task")),
        }
    }

    fn begin(&mut self, client: &mut Client, task: CurrentTask) -> Result<CurrentTask, TaskError> {
        let (delivery, kind) = (task.delivery(), task.kind());
        // Also if it cannot be opened: the next call reports it as failed then.
        self.current = Some(delivery);
        if self.is_exact() && has_pushes(kind) {
            client.begin_task(delivery)?;
        }
        Ok(task)
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.options.delivery == Delivery::ExactlyOnce
    }

    pub(crate) fn name(&self) -> String {
        self.options.spec.name.clone()
    }

    pub(crate) fn check_client(&self, client: &Client) -> Result<(), TaskError> {
        match client.number() == self.client {
            true => Ok(()),
            false => Err(TaskError::OtherClient { queue: self.name() }),
        }
    }

    /// Refuses a client with a task of another queue, which would have the pushes.
    pub(crate) fn check_no_task(&self, client: &Client) -> Result<(), TaskError> {
        match client.open_task() {
            None => Ok(()),
            Some(_) => Err(TaskError::OtherTask { queue: self.name() }),
        }
    }

    /// Ends an iteration if the options say so.
    pub(crate) fn tick(&self, client: &mut Client) -> Result<(), TaskError> {
        match self.options.ticks {
            Some(domain) => Ok(client.tick_domain(domain)?),
            None => Ok(()),
        }
    }

    fn check_left_out(&self, status: QueueStatus) -> Result<(), TaskError> {
        let count = status.counters.left_out;
        match status.left_out.into_iter().next() {
            Some(first) if count > self.options.allowed_left_out => Err(TaskError::LeftOut {
                queue: self.name(),
                count,
                first: Box::new(first),
            }),
            _ => Ok(()),
        }
    }

    /// Reports a task as finished, with its number of records; returns whether it counts. It does not if it was
    /// taken back because its time was over, or if another worker has finished it first. With
    /// [`Delivery::ExactlyOnce`] its pushes are applied when this returns, or dropped if it does not count. Cost:
    /// a round trip to the appliers with pushes of it, one to the coordinator, and one from there to all servers.
    ///
    /// # Errors
    /// The refusal of a push of the task. The task has failed then: its pushes are dropped, and it is given again.
    /// That a server or the coordinator is lost. A deadline of the report or a tick: repeat the report with
    /// [`Tasks::repeat_report`], which returns the answer; [`Tasks::next`] does so, too. A deadline of the pushes: the
    /// task has failed, and there is no report to repeat.
    /// [`TaskError::NotOpen`] for a task with dropped pushes, [`TaskError::OtherClient`]: nothing was reported.
    pub fn done(
        &mut self,
        client: &mut Client,
        task: CurrentTask,
        records: u64,
    ) -> Result<bool, TaskError> {
        self.check_client(client)?;
        let delivery = task.task.delivery;
        let is_open = client.open_task() == Some(delivery);
        if !is_open && self.is_exact() && has_pushes(task.task.kind) {
            return Err(TaskError::NotOpen {
                number: task.task.number,
            });
        }
        let pushed = match is_open {
            true => client.mark_task(),
            false => client.flush().map(|()| false),
        };
        let pushed = match pushed {
            Ok(pushed) => pushed,
            Err(error) => {
                self.report_failed(client, delivery, &error.to_string())?;
                return Err(error.into());
            }
        };
        // From here on the coordinator decides: without its answer nothing is dropped.
        self.current = self.current.filter(|current| *current != delivery);
        let finished = Finished {
            delivery,
            records,
            pushed,
        };
        self.complete(client, self.steps(finished))
    }

    /// Reports a task of a feed as finished: its pushes have taken effect. Returns whether it counts.
    pub(crate) fn report_read(
        &mut self,
        client: &mut Client,
        delivery: u64,
        records: u64,
    ) -> Result<bool, TaskError> {
        let finished = Finished {
            delivery,
            records,
            pushed: false,
        };
        self.complete(client, self.steps(finished))
    }

    /// Repeats the report of [`Tasks::done`] that got no answer; returns whether the task counts. The answer is that of
    /// the first report if it has arrived. `None` without such a report.
    ///
    /// # Errors
    /// As [`Tasks::done`]. After a deadline it can be called again.
    pub fn repeat_report(&mut self, client: &mut Client) -> Result<Option<bool>, TaskError> {
        self.check_client(client)?;
        match self.unfinished {
            Some(steps) => self.complete(client, steps).map(Some),
            None => Ok(None),
        }
    }

    /// The steps of a report. Pushes that take effect on arrival, at least once, must be of a complete iteration before
    /// the task counts: the loss of this worker would drop them with its open one. Those of a task as a whole are of
    /// the iteration that the report begins.
    fn steps(&self, finished: Finished) -> Unfinished {
        match self.is_exact() {
            true => Unfinished::Report(finished),
            false => Unfinished::TickAndReport(finished),
        }
    }

    /// Carries out the steps of a report; returns whether the task counts. A step that fails is the first one of the
    /// next call: a tick that met its deadline is completed by its repetition, and so is a report.
    fn complete(&mut self, client: &mut Client, mut steps: Unfinished) -> Result<bool, TaskError> {
        loop {
            self.unfinished = Some(steps);
            let (next, counted) = match steps {
                Unfinished::TickAndReport(finished) => {
                    self.tick(client)?;
                    (Some(Unfinished::Report(finished)), false)
                }
                Unfinished::Report(finished) => {
                    let counted = self.report_done(client, finished)?;
                    let tick = Unfinished::Tick { counted };
                    (self.is_exact().then_some(tick), counted)
                }
                Unfinished::Tick { counted } => {
                    self.tick(client)?;
                    (None, counted)
                }
            };
            self.unfinished = next;
            match next {
                Some(next) => steps = next,
                None => return Ok(counted),
            }
        }
    }

    fn tick_behind_failed(&mut self, client: &mut Client) -> Result<(), TaskError> {
        self.owes_tick = true;
        self.tick(client)?;
        self.owes_tick = false;
        Ok(())
    }

    /// Reports a finished task, and drops its pushes if it does not count. Without an answer it drops nothing: the
    /// report is repeated, and its answer decides.
    fn report_done(&self, client: &mut Client, finished: Finished) -> Result<bool, TaskError> {
        let Finished {
            delivery,
            records,
            pushed,
        } = finished;
        let request = TaskRequest::Done {
            queue: self.queue,
            delivery,
            thread: client.thread(),
            records,
            pushed,
        };
        let counted = match client.request_task(request, self.options.answer_timeout)? {
            TaskAnswer::Reported { counted } => counted,
            _ => return Err(protocol("report a task")),
        };
        if pushed && !counted {
            client.drop_task(delivery)?;
        }
        Ok(counted)
    }

    /// Reports that a task failed by itself, with the reason. Its pushes are dropped. It is given again, and left
    /// out with this reason after too many failures.
    ///
    /// # Errors
    /// That a server or the coordinator is lost. A deadline: repeat the report with [`Tasks::fail_current`];
    /// [`Tasks::next`] does so, too. [`TaskError::OtherClient`].
    pub fn failed(
        &mut self,
        client: &mut Client,
        task: CurrentTask,
        reason: &str,
    ) -> Result<(), TaskError> {
        self.check_client(client)?;
        self.report_failed(client, task.task.delivery, reason)?;
        self.tick_behind_failed(client)
    }

    /// Reports the task taken last as failed, if it is neither done nor failed, or completes the tick behind such a
    /// report; returns whether there was one. For a report of [`Tasks::failed`] or [`Tasks::done`] that met a deadline,
    /// or a [`CurrentTask`] that was dropped.
    ///
    /// # Errors
    /// As [`Tasks::failed`]. After a deadline it can be called again.
    pub fn fail_current(&mut self, client: &mut Client, reason: &str) -> Result<bool, TaskError> {
        self.check_client(client)?;
        match self.current {
            Some(delivery) => self.report_failed(client, delivery, reason)?,
            None if self.owes_tick => {}
            None => return Ok(false),
        }
        self.tick_behind_failed(client)?;
        Ok(true)
    }

    fn report_failed(
        &mut self,
        client: &mut Client,
        delivery: u64,
        reason: &str,
    ) -> Result<(), TaskError> {
        match self.is_exact() {
            // Before the report: another worker may have the task right after it.
            true => client.drop_task(delivery)?,
            false => forget_refusals(client)?,
        }
        self.send_failed(client, delivery, reason)
    }

    /// Reports a task as failed, whatever became of its pushes.
    pub(crate) fn send_failed(
        &mut self,
        client: &mut Client,
        delivery: u64,
        reason: &str,
    ) -> Result<(), TaskError> {
        let request = TaskRequest::Failed {
            queue: self.queue,
            delivery,
            reason: shown(reason),
        };
        match client.request_task(request, self.options.answer_timeout)? {
            TaskAnswer::Reported { .. } => {
                self.current = self.current.filter(|current| *current != delivery);
                Ok(())
            }
            _ => Err(protocol("report a task")),
        }
    }

    /// What the queue has done so far, and the tasks that it left out.
    ///
    /// # Errors
    /// The coordinator's refusal, or that it is lost. [`TaskError::OtherClient`].
    pub fn status(&self, client: &mut Client) -> Result<QueueStatus, TaskError> {
        self.check_client(client)?;
        let queue = self.queue;
        match client.request_task(TaskRequest::Status { queue }, self.options.answer_timeout)? {
            TaskAnswer::Over(status) => Ok(status),
            _ => Err(protocol("read the state of a queue")),
        }
    }
}

impl CurrentTask {
    pub(crate) const fn delivery(&self) -> u64 {
        self.task.delivery
    }

    pub(crate) const fn has_records(&self) -> bool {
        has_records(self.task.kind)
    }

    /// Kind of the task.
    pub const fn kind(&self) -> TaskKind {
        self.task.kind
    }

    /// Number of the task in its queue. A task that is given again keeps it.
    pub const fn number(&self) -> u64 {
        self.task.number
    }

    /// Pass over the data, from 0.
    pub const fn epoch(&self) -> u32 {
        self.task.epoch
    }

    /// Failures of the task before.
    pub const fn failures(&self) -> u32 {
        self.task.failures
    }

    /// The range of the task. For a program that reads the records itself, these are record numbers; with
    /// [`QueueOptions::shuffled_records`] they are positions in the order of the pass, and
    /// [`CurrentTask::record_numbers`] has the numbers.
    pub fn shard(&self) -> Shard {
        let shard = &self.task.shard;
        Shard {
            path: Path::new(&shard.path).into(),
            first: shard.first,
            end: shard.end,
            unit: match shard.unit {
                TaskUnit::Bytes => Unit::Bytes,
                TaskUnit::Records => Unit::Records,
            },
        }
    }

    /// A cursor over the rows of the task.
    ///
    /// # Errors
    /// [`TaskError::NoRecords`]; a file that is gone, has shrunk or is damaged.
    pub fn rows(&self, options: &ReadOptions) -> Result<RowReader, TaskError> {
        let source = Arc::clone(self.source()?);
        Ok(RowReader::new(source, vec![self.shard()], options)?)
    }

    /// A cursor over the records of the task, as bytes.
    ///
    /// # Errors
    /// As [`CurrentTask::rows`].
    pub fn records(&self) -> Result<Box<dyn Records>, TaskError> {
        Ok(self.source()?.open(&self.shard())?)
    }

    /// The numbers of the task's records: its range, or, with [`QueueOptions::shuffled_records`], the records at
    /// these positions of the pass. All tasks of a pass together have each number below the number of records once.
    /// A task that is given again has the same numbers. Cost of a shuffled number: some 50 mixing steps; no memory.
    ///
    /// # Errors
    /// [`TaskError::NoRecords`]; [`TaskError::NoNumbers`] for files that are divided by bytes.
    pub fn record_numbers(&self) -> Result<RecordNumbers, TaskError> {
        let (number, shard) = (self.task.number, &self.task.shard);
        if !self.has_records() {
            return Err(self.no_records());
        }
        if shard.unit != TaskUnit::Records {
            return Err(TaskError::NoNumbers {
                number,
                first: shard.first,
                end: shard.end,
                path: PathBuf::from(&shard.path),
            });
        }
        let positions = shard.first..shard.end;
        match self.shuffle {
            None => Ok(RecordNumbers::new(positions, None)),
            Some((records, seed)) if shard.end <= records => {
                let order = Permutation::new(records, seed, self.task.epoch);
                Ok(RecordNumbers::new(positions, Some(order)))
            }
            Some(_) => Err(protocol("take a task")),
        }
    }

    const fn no_records(&self) -> TaskError {
        TaskError::NoRecords {
            number: self.task.number,
            kind: name(self.task.kind),
        }
    }

    fn source(&self) -> Result<&Arc<dyn DataSource>, TaskError> {
        let source = self.source.as_ref().filter(|_| has_records(self.task.kind));
        source.ok_or_else(|| self.no_records())
    }
}

const fn has_records(kind: TaskKind) -> bool {
    !matches!(kind, TaskKind::Save | TaskKind::End)
}

/// Whether pushes of a task are held. A save is of the model as it is, and waits for no task.
const fn has_pushes(kind: TaskKind) -> bool {
    has_records(kind)
}

const fn name(kind: TaskKind) -> &'static str {
    match kind {
        TaskKind::Train => "train",
        TaskKind::Evaluate => "evaluate",
        TaskKind::Predict => "predict",
        TaskKind::Save => "save",
        TaskKind::End => "end",
    }
}

fn task_shard(shard: &Shard) -> Result<TaskShard, TaskError> {
    let path = shard.path.to_str().ok_or_else(|| TaskError::Path {
        path: PathBuf::from(&*shard.path),
    })?;
    Ok(TaskShard {
        path: path.to_owned(),
        first: shard.first,
        end: shard.end,
        unit: match shard.unit {
            Unit::Bytes => TaskUnit::Bytes,
            Unit::Records => TaskUnit::Records,
        },
    })
}

/// A reason as a message may hold it.
fn shown(reason: &str) -> String {
    let text: String = reason
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    text.get(..end).unwrap_or(&text).to_owned()
}

/// Waits for all pushes, and forgets the refusals of those of a failed task: they are not those of the next one.
pub(crate) fn forget_refusals(client: &mut Client) -> Result<(), ClientError> {
    loop {
        match client.flush() {
            Err(ClientError::Rejected { .. } | ClientError::RejectForgotten { .. }) => {}
            done => return done,
        }
    }
}

const fn protocol(operation: &'static str) -> TaskError {
    TaskError::Protocol { operation }
}

impl TaskError {
    /// Whether the worker can report the task as failed and take the next one: its records are malformed or gone,
    /// or a push was refused.
    pub const fn is_of_task(&self) -> bool {
        matches!(
            self,
            Self::Data(_)
                | Self::Record { .. }
                | Self::Client(ClientError::Argument { .. } | ClientError::Rejected { .. })
        )
    }
}

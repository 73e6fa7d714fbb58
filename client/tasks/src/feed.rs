//! A record feed: the records of a queue's tasks one after another.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use tidewater::{Client, ClientError};
use tidewater_data::{ReadOptions, Records, Row, RowReader};
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::wire::control::{QueueStatus, TaskKind};

use crate::error::TaskError;
use crate::numbers::RecordNumbers;
use crate::tasks::{CurrentTask, Taken, Tasks, forget_refusals};

/// Most tasks that a feed holds if the program sets no other number.
const HELD: usize = 8;

/// A cursor over the records of one task, which a [`RecordFeed`] moves. A program with its own reader implements it.
pub trait TaskRecords {
    /// A record, as the program uses it.
    type Record<'a>
    where
        Self: 'a;

    /// Moves to the next record; `false` after the last one.
    ///
    /// # Errors
    /// [`TaskError::Data`] or [`TaskError::Record`] if it cannot be read: the feed reports the task as failed with
    /// this text. Any other error is returned to the caller of the feed as well.
    fn advance(&mut self) -> Result<bool, TaskError>;

    /// The record that the last [`TaskRecords::advance`] moved to.
    fn record(&self) -> Self::Record<'_>;
}

impl TaskRecords for RowReader {
    type Record<'a> = Row<'a>;

    fn advance(&mut self) -> Result<bool, TaskError> {
        Ok(Self::advance(self)?)
    }

    fn record(&self) -> Row<'_> {
        self.row()
    }
}

impl TaskRecords for Box<dyn Records> {
    type Record<'a> = &'a [u8];

    fn advance(&mut self) -> Result<bool, TaskError> {
        Ok(Records::advance(&mut **self)?)
    }

    fn record(&self) -> &[u8] {
        self.bytes()
    }
}

impl TaskRecords for RecordNumbers {
    type Record<'a> = u64;

    fn advance(&mut self) -> Result<bool, TaskError> {
        Ok(self.next().is_some())
    }

    fn record(&self) -> u64 {
        self.last_given()
    }
}

/// What a [`RecordFeed`] has next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next<T> {
    /// The next record of the task.
    Record(T),
    /// No record comes before those that were read are done: use the batch as it is, and report it with
    /// [`RecordFeed::done`]. The tasks of this feed may be the last ones, or as many as it may hold.
    Flush,
    /// A task without records, when all others are finished. Do what it says, then call [`RecordFeed::done`] with 0.
    Final(TaskKind),
    /// The queue is over, and every task of this feed is reported.
    End,
}

/// What becomes of a held task.
#[derive(Debug)]
enum Progress {
    /// There may be more records.
    Reading,
    /// All of its records are read.
    Read,
    /// It has failed for this reason, which is not reported yet.
    Failing(String),
    /// It is reported as failed. Its entry counts those of its records that were read.
    Failed,
}

/// A task of which not all records are done.
struct Held<R> {
    task: CurrentTask,
    /// `None` before the first record and after the last one.
    records: Option<R>,
    progress: Progress,
    /// Whether the cursor is at a record that was not given yet.
    is_ahead: bool,
    /// Records that were given.
    read: u64,
    /// Records that are done.
    done: u64,
    /// Whether the program has learnt of a task without records.
    is_given: bool,
}

/// The cursor over the records of a task.
type Opener<R> = Box<dyn FnMut(&CurrentTask) -> Result<R, TaskError> + Send>;

/// The records of a queue, one after another over the borders of its tasks. It belongs to one client: give the same
/// one to every call.
///
/// The program reads records into a batch, uses and pushes it, and reports the number of its records with
/// [`RecordFeed::done`]. The feed counts them over its tasks in the order in which it gave them, and reports each task
/// when all of its records are done. When it begins a task it takes the next one, without waiting for it, and holds at
/// most [`RecordFeed::held_max`] tasks that are not reported. It waits for a task only when it has no record, and every
/// record that it gave is done.
///
/// A task that is not reported when its worker is lost is given again in full: each record is read at least once, and
/// each task is reported once. A dropped feed keeps its tasks until its client finishes, or their time is over. The
/// time of a task includes that in which it waits to be read.
///
/// ```
/// use tidewater::{JoinOptions, SyncMode};
/// use tidewater_tasks::{Delivery, Next, QueueOptions, RecordFeed, Tasks};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// // 25 records in tasks of 10, in batches of 7.
/// let options = QueueOptions::new("images", 10).shuffled_records(1);
/// let options = options.delivery(Delivery::AtLeastOnce);
/// let tasks = Tasks::count(&mut client, 25, &options)?;
/// let mut feed = RecordFeed::numbers(tasks)?;
/// let (mut batch, mut sizes) = (Vec::new(), Vec::new());
/// loop {
///     match feed.next(&mut client)? {
///         Next::Record(number) => {
///             batch.push(number);
///             if batch.len() < 7 {
///                 continue;
///             }
///         }
///         Next::Flush | Next::Final(_) => {}
///         Next::End => break,
///     }
///     // Read the images of these numbers, pull, push.
///     sizes.push(batch.len());
///     feed.done(&mut client, batch.len() as u64)?;
///     batch.clear();
/// }
/// assert_eq!(sizes, [7, 7, 7, 4]);
/// assert_eq!(feed.status(&mut client)?.counters.finished, 3);
/// # client.finish()?;
/// # Ok(())
/// # }
/// ```
pub struct RecordFeed<R> {
    tasks: Tasks,
    open: Opener<R>,
    /// Tasks in the order in which their records are given.
    held: VecDeque<Held<R>>,
    held_max: usize,
    /// Whether a task may be there that was not when it was asked for last.
    may_ask: bool,
}

impl<R> fmt::Debug for RecordFeed<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordFeed")
            .field("tasks", &self.tasks)
            .field("held", &self.held.len())
            .field("held_max", &self.held_max)
            .finish_non_exhaustive()
    }
}

impl RecordFeed<RowReader> {
    /// A feed of rows, for tasks of [`Tasks::open`].
    ///
    /// # Errors
    /// [`TaskError::FeedDelivery`].
    pub fn rows(tasks: Tasks, options: &ReadOptions) -> Result<Self, TaskError> {
        let options = options.clone();
        Self::with(tasks, move |task| task.rows(&options))
    }
}

impl RecordFeed<Box<dyn Records>> {
    /// A feed of records as bytes, for tasks of [`Tasks::open`].
    ///
    /// # Errors
    /// [`TaskError::FeedDelivery`].
    pub fn records(tasks: Tasks) -> Result<Self, TaskError> {
        Self::with(tasks, CurrentTask::records)
    }
}

impl RecordFeed<RecordNumbers> {
    /// A feed of record numbers, for tasks of [`Tasks::count`].
    ///
    /// # Errors
    /// [`TaskError::FeedDelivery`].
    pub fn numbers(tasks: Tasks) -> Result<Self, TaskError> {
        Self::with(tasks, CurrentTask::record_numbers)
    }
}

impl<R: TaskRecords> RecordFeed<R> {
    /// A feed of records that the program reads: `open` makes the cursor of each task with records, when the first of
    /// them is asked for.
    ///
    /// # Errors
    /// [`TaskError::FeedDelivery`] for a queue with exactly-once delivery.
    pub fn with(
        tasks: Tasks,
        open: impl FnMut(&CurrentTask) -> Result<R, TaskError> + Send + 'static,
    ) -> Result<Self, TaskError> {
        if tasks.is_exact() {
            return Err(TaskError::FeedDelivery {
                queue: tasks.name(),
            });
        }
        Ok(Self {
            tasks,
            open: Box::new(open),
            held: VecDeque::new(),
            held_max: HELD,
            may_ask: true,
        })
    }

    /// Sets the largest number of tasks that the feed holds and has not reported (8), at least 1. With 1 no task is
    /// taken ahead. A batch larger than these tasks is cut by [`Next::Flush`]. The queue's
    /// [`held_max`](crate::QueueOptions::held_max) holds as well.
    #[must_use]
    pub fn held_max(mut self, tasks: usize) -> Self {
        self.held_max = tasks.max(1);
        self
    }

    /// The next record. Blocks only if no record can be had, all that were given are done, and other workers have the
    /// last tasks. At most one round trip to the coordinator for each task that is taken ahead, which does not wait
    /// there. A task with a record that cannot be read is reported as failed with the cause, and the next one
    /// follows; its records that were given before count in [`RecordFeed::done`] all the same.
    ///
    /// # Errors
    /// [`TaskError::LeftOut`], once, at the end. The coordinator's refusal; that the job has failed; a deadline of a
    /// tick; [`TaskError::OtherClient`], [`TaskError::OtherTask`]. An error of `open` or a cursor that is of no
    /// record, such as [`TaskError::NoNumbers`]; the task has failed then. The call can be repeated.
    pub fn next(&mut self, client: &mut Client) -> Result<Next<R::Record<'_>>, TaskError> {
        Ok(match self.advance(client)? {
            Next::Record(at) => match self.held.get(at).and_then(|held| held.records.as_ref()) {
                Some(records) => Next::Record(records.record()),
                None => unreachable!("task {at} of the feed has a record and no cursor"),
            },
            Next::Flush => Next::Flush,
            Next::Final(kind) => Next::Final(kind),
            Next::End => Next::End,
        })
    }

    /// Moves to the next record; returns the place of its task.
    fn advance(&mut self, client: &mut Client) -> Result<Next<usize>, TaskError> {
        self.tasks.check_client(client)?;
        self.tasks.check_no_task(client)?;
        self.tasks.settle(client)?;
        loop {
            self.send_failures(client)?;
            if let Some(at) = self.held.iter().position(Held::is_reading) {
                self.take_ahead(client, at)?;
                if self.read(at)? {
                    return Ok(Next::Record(at));
                }
                continue;
            }
            // Tasks without a record are at their end here.
            self.report(client, false)?;
            if self.undone() > 0 {
                if self.open_tasks() == 0 || !self.take_now(client)? {
                    return Ok(Next::Flush);
                }
                continue;
            }
            if let Some(last) = self.held.front_mut() {
                last.is_given = true;
                return Ok(Next::Final(last.task.kind()));
            }
            match self.tasks.take(client, self.tasks.kept())? {
                Taken::Task(task) => self.hold(task),
                Taken::Wait => self.tasks.tick(client)?,
                Taken::Over => return Ok(Next::End),
            }
        }
    }

    /// Takes the task behind the one at `at`, unless it is there, or was not a short time ago.
    fn take_ahead(&mut self, client: &mut Client, at: usize) -> Result<(), TaskError> {
        if !self.may_ask || at + 1 < self.held.len() {
            return Ok(());
        }
        self.may_ask = false;
        self.take_now(client).map(drop)
    }

    /// Takes a task if there is one now, and the feed may hold it.
    fn take_now(&mut self, client: &mut Client) -> Result<bool, TaskError> {
        if self.open_tasks() >= self.held_max {
            return Ok(false);
        }
        match self.tasks.take(client, Duration::ZERO)? {
            Taken::Task(task) => {
                self.hold(task);
                Ok(true)
            }
            Taken::Wait | Taken::Over => Ok(false),
        }
    }

    fn hold(&mut self, task: CurrentTask) {
        let progress = match task.has_records() {
            true => Progress::Reading,
            false => Progress::Read,
        };
        self.held.push_back(Held {
            task,
            records: None,
            progress,
            is_ahead: false,
            read: 0,
            done: 0,
            is_given: false,
        });
    }

    /// Gives the next record of a task; `false` if it has none, or if it has failed.
    fn read(&mut self, at: usize) -> Result<bool, TaskError> {
        let is_there = self.look_ahead(at)?;
        let held = &mut self.held[at];
        if is_there {
            held.is_ahead = false;
            held.read += 1;
        }
        Ok(is_there)
    }

    /// Moves the cursor of a task to a record that was not given; `false` if it has none, or if it has failed.
    fn look_ahead(&mut self, at: usize) -> Result<bool, TaskError> {
        let held = &mut self.held[at];
        if !held.is_ahead {
            match held.advance(&mut self.open) {
                Ok(is_there) => held.is_ahead = is_there,
                Err(error) => {
                    held.fail(&error);
                    self.may_ask = true;
                    return match error.is_of_task() {
                        true => Ok(false),
                        false => Err(error),
                    };
                }
            }
        }
        if !held.is_ahead {
            (held.records, held.progress) = (None, Progress::Read);
            self.may_ask = true;
        }
        Ok(held.is_ahead)
    }

    /// Reports that the next `count` records are done, in the order in which they were given: their pushes, if any,
    /// are made. Reports each task with its last record as finished; then the call first waits until all pushes have
    /// taken effect, else it sends nothing. Returns the number of tasks that are finished by it: not those that were
    /// taken back, or that another worker has finished first.
    ///
    /// # Errors
    /// [`TaskError::NotRead`] for more records than were read and are not done. A deadline, or that a server is lost,
    /// while it waits for pushes. In these cases no record is counted. The refusal of a push: the records are counted,
    /// and all tasks that are held and have records that are done have failed and are given again. That the
    /// coordinator is lost, a deadline behind a refusal or of a report, or an error of a cursor that is of no record:
    /// the records are counted, and the next call repeats the report. [`RecordFeed::undone`] says which it was: after
    /// an error report so many records, or 0. [`TaskError::OtherClient`].
    pub fn done(&mut self, client: &mut Client, count: u64) -> Result<u64, TaskError> {
        self.tasks.check_client(client)?;
        let read = self.undone();
        if count > read {
            return Err(TaskError::NotRead { count, read });
        }
        let before: Vec<u64> = self.held.iter().map(|held| held.done).collect();
        self.count(count);
        let found = self.find_end();
        match self.flush(client) {
            Err(error @ (ClientError::Rejected { .. } | ClientError::RejectForgotten { .. })) => {
                self.fail_refused(client, &error)?;
                return Err(error.into());
            }
            Err(error) => {
                for (held, done) in self.held.iter_mut().zip(before) {
                    held.done = done;
                }
                return Err(error.into());
            }
            Ok(()) => {}
        }
        self.tasks.settle(client)?;
        self.send_failures(client)?;
        let finished = self.report(client, true)?;
        found.map(|()| finished)
    }

    /// Counts records over the tasks, in order.
    fn count(&mut self, mut count: u64) {
        for held in &mut self.held {
            let of_task = count.min(held.read - held.done);
            held.done += of_task;
            count -= of_task;
        }
    }

    /// Finds out whether the last record of the current task was given, if all that were given are done.
    fn find_end(&mut self) -> Result<(), TaskError> {
        let at = self.held.iter().position(Held::is_reading);
        match at.filter(|&at| self.held[at].read > 0 && self.undone() == 0) {
            Some(at) => self.look_ahead(at).map(drop),
            None => Ok(()),
        }
    }

    /// Waits for all pushes if a task is to be reported.
    fn flush(&self, client: &mut Client) -> Result<(), ClientError> {
        let mut counted = self.held.iter().take_while(|held| held.is_counted());
        match counted.any(|held| held.is_finished() && held.read > 0) {
            true => client.flush(),
            false => Ok(()),
        }
    }

    /// Fails the tasks with records that are done: the refused push is of some of these. They have failed whatever
    /// becomes of the rest: the refusal comes once.
    fn fail_refused(&mut self, client: &mut Client, error: &ClientError) -> Result<(), TaskError> {
        let reason = error.to_string();
        for held in self.held.iter_mut().filter(|held| held.done > 0) {
            if !matches!(held.progress, Progress::Failed) {
                (held.records, held.progress) = (None, Progress::Failing(reason.clone()));
            }
        }
        forget_refusals(client)?;
        // A report of before that was not answered: the next one would take its place.
        self.tasks.settle(client)?;
        self.send_failures(client)?;
        self.report(client, false).map(drop)
    }

    /// Reports finished tasks, and drops entries that count no more; with `finals` also a task without records that the
    /// program has got.
    fn report(&mut self, client: &mut Client, finals: bool) -> Result<u64, TaskError> {
        let mut counted = 0;
        while let Some(held) = self.held.front() {
            let is_over = matches!(held.progress, Progress::Failed) && held.is_counted();
            let is_due = held.task.has_records() || (finals && held.is_given);
            let is_reported = held.is_finished() && is_due;
            if !is_over && !is_reported {
                break;
            }
            let (delivery, read) = (held.task.delivery(), held.read);
            // Before the report, which `Tasks` repeats if it is not answered.
            self.held.pop_front();
            if is_reported {
                counted += u64::from(self.tasks.report_read(client, delivery, read)?);
                self.may_ask = true;
            }
        }
        Ok(counted)
    }

    /// Reports tasks that have failed.
    fn send_failures(&mut self, client: &mut Client) -> Result<(), TaskError> {
        for held in &mut self.held {
            if let Progress::Failing(reason) = &held.progress {
                let delivery = held.task.delivery();
                self.tasks.send_failed(client, delivery, reason)?;
                held.progress = Progress::Failed;
            }
        }
        Ok(())
    }

    /// Number of records that were given and are not done.
    pub fn undone(&self) -> u64 {
        self.held.iter().map(|held| held.read - held.done).sum()
    }

    /// Tasks that are neither reported nor failed.
    fn open_tasks(&self) -> usize {
        let is_open = |held: &&Held<R>| !matches!(held.progress, Progress::Failed);
        self.held.iter().filter(is_open).count()
    }

    /// The task of the last record that was given, until that task is reported.
    pub fn task(&self) -> Option<&CurrentTask> {
        let last = self.held.iter().rev().find(|held| held.read > 0);
        last.map(|held| &held.task)
    }

    /// Number of tasks that the feed holds and has not reported.
    pub fn held(&self) -> usize {
        self.open_tasks()
    }

    /// What the queue has done so far, and the tasks that it left out.
    ///
    /// # Errors
    /// As [`Tasks::status`].
    pub fn status(&self, client: &mut Client) -> Result<QueueStatus, TaskError> {
        self.tasks.status(client)
    }
}

impl<R: TaskRecords> Held<R> {
    const fn is_reading(&self) -> bool {
        matches!(self.progress, Progress::Reading)
    }

    /// Whether all records that were given are done.
    fn is_counted(&self) -> bool {
        let early = u64::from(on(Mutant::FeedReportsEarly));
        self.done + early >= self.read
    }

    /// Whether the task is to be reported as finished.
    fn is_finished(&self) -> bool {
        matches!(self.progress, Progress::Read) && self.is_counted()
    }

    fn advance(&mut self, open: &mut Opener<R>) -> Result<bool, TaskError> {
        let records = match &mut self.records {
            Some(records) => records,
            None => self.records.insert(open(&self.task)?),
        };
        records.advance()
    }

    fn fail(&mut self, error: &TaskError) {
        (self.records, self.progress) = (None, Progress::Failing(error.to_string()));
    }
}

//! One queue: its tasks, their deliveries, and what becomes of them. (long: one state machine.)

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidewater_protocol::limits::TASK_LEFT_OUT_LISTED;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{
    LeftOut, QueueCounters, QueueSpec, QueueStatus, Task, TaskKind, TaskShard, TaskUnit,
};

use crate::history::History;
use crate::order::{Cuts, order};
use crate::reports::{Reports, WorkerKey};

/// Number of the first final task. Tasks with records are numbered below it.
const FINALS: u64 = 1 << 62;

/// Result of a request for a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// The task, which the worker has from now on.
    Task(Box<Task>),
    /// Other workers have the last tasks, and may not finish them.
    Wait,
    /// No task will follow.
    Over,
}

/// Result of the report of a finished task. A report that is repeated has the result of the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// The task counts, and its pushes are to be applied; then [`Queue::settle`].
    Apply,
    /// The task is finished.
    Finished,
    /// The delivery counts no more: its pushes are to be dropped.
    Late,
}

/// Report of a finished task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoneReport {
    /// Number of the delivery.
    pub delivery: u64,
    /// Thread of the worker that had the task. A journal of before has none.
    #[serde(default)]
    pub thread: u32,
    /// Number of its records.
    pub records: u64,
    /// Whether servers have pushes to apply.
    pub pushed: bool,
}

/// Result of the report of a failed task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The task is given again.
    Again,
    /// It has failed too often and is left out.
    LeftOut(Box<LeftOut>),
    /// The delivery counts no more.
    Late,
    /// The report has come before, and changes nothing.
    Repeated {
        /// Whether the first one counted.
        counted: bool,
    },
}

/// A task that has been given and is not finished.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct OpenTask {
    /// Its number within the pass; of a final task its number among those.
    place: u32,
    epoch: u32,
    failures: u32,
    /// Workers that were lost while they had it.
    losses: u32,
    /// Deliveries that count; none: it waits to be given again.
    deliveries: Vec<u64>,
}

/// Tasks that are taken back from a worker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Released {
    /// Number of deliveries that were taken back.
    pub taken_back: u64,
    /// Tasks that are left out, since too many workers were lost with them.
    pub left_out: Vec<LeftOut>,
}

/// A delivery that counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Delivery {
    task: u64,
    worker: WorkerKey,
    since: Duration,
    /// Records of the task, once it is reported as finished: then it is taken back by nothing.
    applying: Option<u64>,
}

/// The state of a queue. Times are on a clock of the caller's that never goes back.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Queue {
    spec: QueueSpec,
    cuts: Cuts,
    /// Tasks of the current pass in their order, and the next one.
    order: Vec<u32>,
    next: usize,
    /// Tasks that are to be given again, the next one first.
    returned: VecDeque<u64>,
    open: BTreeMap<u64, OpenTask>,
    /// By number, which is also the order of their times.
    deliveries: BTreeMap<u64, Delivery>,
    /// Deliveries of each worker that are not reported as finished, the oldest first.
    held: BTreeMap<WorkerKey, Vec<u64>>,
    /// Final tasks that have been given.
    finals: u32,
    history: History,
    /// Answers to reports that may be repeated. A journal of before has none.
    #[serde(default)]
    reports: Reports,
    counters: QueueCounters,
    left_out: Vec<LeftOut>,
}

impl Queue {
    /// A queue of these shards. No pass has begun.
    pub fn new(spec: QueueSpec, shards: Vec<TaskShard>) -> Self {
        let cuts = Cuts::new(shards, spec.task_size);
        let counters = QueueCounters {
            tasks: cuts.tasks(),
            ..QueueCounters::default()
        };
        Self {
            spec,
            cuts,
            order: Vec::new(),
            next: 0,
            returned: VecDeque::new(),
            open: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            held: BTreeMap::new(),
            finals: 0,
            history: History::default(),
            reports: Reports::default(),
            counters,
            left_out: Vec::new(),
        }
    }

    /// Definition of the queue.
    pub const fn spec(&self) -> &QueueSpec {
        &self.spec
    }

    /// Number of tasks of a pass.
    pub const fn tasks(&self) -> u64 {
        self.cuts.tasks()
    }

    /// What the queue has done so far.
    pub fn status(&self) -> QueueStatus {
        QueueStatus {
            counters: self.counters(),
            left_out: self.left_out.clone(),
            is_over: self.is_over(),
        }
    }

    /// Counters of the queue.
    pub fn counters(&self) -> QueueCounters {
        let held = self.open.len() - self.returned.len();
        QueueCounters {
            open: held as u64,
            ..self.counters
        }
    }

    /// Whether no task will follow.
    pub fn is_over(&self) -> bool {
        let has_passes = self.next < self.order.len() || self.has_next_epoch();
        let has_tasks = has_passes && self.has_steps();
        !has_tasks && self.open.is_empty() && self.finals as usize == self.spec.finals.len()
    }

    /// Whether the limit of finished tasks leaves room for another one next to those that are open. A task that is
    /// left out makes room again, so that the number of finished tasks is exact.
    fn has_steps(&self) -> bool {
        let begun = self.counters.finished + self.open.len() as u64;
        self.spec.steps_max == 0 || begun < self.spec.steps_max
    }

    fn has_next_epoch(&self) -> bool {
        let is_left = self.spec.epochs == 0 || self.counters.epochs < self.spec.epochs;
        self.cuts.tasks() > 0 && is_left
    }

    /// Gives a task to a worker as delivery number `delivery`, which is greater than all before it. Tasks that
    /// were taken back come first, then those of the pass, then those of stragglers, then the final ones. A
    /// pass begins when its first task is asked for. Cost: a search in a map; a sort of all tasks when a pass
    /// begins; a look at each task of the worker, and at each straggler when there is no other task.
    ///
    /// A worker with `held_max` tasks waits. A task with which all but the last of `losses_max` workers were lost is
    /// given to a worker that has no other one, which gets no other one meanwhile: so its loss is that task's alone.
    /// Other requests wait until a worker has taken it.
    pub fn take(&mut self, now: Duration, worker: WorkerKey, delivery: u64) -> Taken {
        self.expire(now);
        let Some(number) = self.next_task(now, worker) else {
            return match self.is_over() {
                true => Taken::Over,
                false => Taken::Wait,
            };
        };
        self.counters.given += 1;
        let given = Delivery {
            task: number,
            worker,
            since: now,
            applying: None,
        };
        self.deliveries.insert(delivery, given);
        self.held.entry(worker).or_default().push(delivery);
        let Some(open) = self.open.get_mut(&number) else {
            unreachable!("task {number} is to be given and is not open");
        };
        open.deliveries.push(delivery);
        let (epoch, failures) = (open.epoch, open.failures);
        let (kind, shard) = self.records(number);
        Taken::Task(Box::new(Task {
            delivery,
            number,
            kind,
            epoch,
            shard,
            failures,
        }))
    }

    fn next_task(&mut self, now: Duration, worker: WorkerKey) -> Option<u64> {
        let held = self.held.get(&worker).map_or(&[][..], Vec::as_slice);
        let task_of = |delivery: &u64| self.deliveries.get(delivery).map(|given| given.task);
        let is_full = self.spec.held_max > 0 && held.len() >= self.spec.held_max as usize;
        if is_full || held.iter().filter_map(task_of).any(|n| self.is_last_try(n)) {
            return None;
        }
        if let Some(&number) = self.returned.front() {
            let must_be_alone = self.is_last_try(number) && !held.is_empty();
            return match must_be_alone {
                true => None,
                false => self.returned.pop_front(),
            };
        }
        if let Some(number) = self.next_of_pass() {
            return Some(number);
        }
        if let Some(number) = self.straggler(now, worker) {
            self.counters.stragglers += 1;
            return Some(number);
        }
        let is_last = self.open.is_empty() && (self.finals as usize) < self.spec.finals.len();
        is_last.then(|| {
            let number = FINALS + u64::from(self.finals);
            self.open_task(number, self.finals, self.counters.epochs.saturating_sub(1));
            self.finals += 1;
            number
        })
    }

    /// Whether one more loss of a worker leaves the task out.
    fn is_last_try(&self, number: u64) -> bool {
        let losses = self.open.get(&number).map_or(0, |open| open.losses);
        losses + 1 >= self.spec.losses_max
    }

    fn next_of_pass(&mut self) -> Option<u64> {
        if !self.has_steps() {
            return None;
        }
        if self.next == self.order.len() {
            let strict = self.spec.strict_epochs && !mutants::on(Mutant::PassBeginsEarly);
            let waits = strict && !self.open.is_empty();
            if !self.has_next_epoch() || waits {
                return None;
            }
            // The caller bounds the number of tasks.
            let tasks = u32::try_from(self.cuts.tasks()).unwrap_or(u32::MAX);
            self.order = order(tasks, self.spec.seed, self.counters.epochs);
            self.next = 0;
            self.counters.epochs = self.counters.epochs.saturating_add(1);
        }
        let place = *self.order.get(self.next)?;
        let epoch = self.counters.epochs - 1;
        let number = u64::from(epoch) * self.cuts.tasks() + self.next as u64;
        self.next += 1;
        self.open_task(number, place, epoch);
        Some(number)
    }

    fn open_task(&mut self, number: u64, place: u32, epoch: u32) {
        let open = OpenTask {
            place,
            epoch,
            failures: 0,
            losses: 0,
            deliveries: Vec::new(),
        };
        self.open.insert(number, open);
    }

    /// The oldest task that one worker alone has, another one than `worker`, for longer than a straggler may.
    fn straggler(&self, now: Duration, worker: WorkerKey) -> Option<u64> {
        let limit = self.straggler_limit()?;
        let of_time = self.deliveries.values();
        let mut late = of_time.take_while(|given| given.since.saturating_add(limit) <= now);
        let found = late.find(|given| {
            let alone = self
                .open
                .get(&given.task)
                .is_some_and(|t| t.deliveries.len() == 1 && !self.is_last_try(given.task));
            alone && given.worker != worker && given.applying.is_none()
        });
        found.map(|given| given.task)
    }

    /// Time after which a task is given to a second worker; `None` before the times of tasks are known.
    fn straggler_limit(&self) -> Option<Duration> {
        let least = Duration::from_millis(self.spec.straggler_ms);
        let limit = self.history.limit(least, self.spec.straggler_factor);
        self.history.is_known().then_some(limit)
    }

    fn timeout(&self) -> Duration {
        let least = Duration::from_millis(self.spec.timeout_ms);
        self.history.limit(least, self.spec.timeout_factor)
    }

    /// Handles the report of a finished task. With `pushed` the caller has its pushes applied, which nothing
    /// takes back any more, and then calls [`Queue::settle`]. A report that is repeated, behind at most 15 others of
    /// its thread, has the same result, and no counter changes.
    pub fn done(&mut self, now: Duration, worker: WorkerKey, report: DoneReport) -> Done {
        self.expire(now);
        let DoneReport {
            delivery,
            thread,
            records,
            pushed,
        } = report;
        let Some(given) = self.of_worker(worker, delivery) else {
            return self.done_before(worker, thread, delivery);
        };
        if given.applying.is_some() {
            // The same report again: its answer is that of the first one.
            return Done::Apply;
        }
        given.applying = Some(records);
        let (task, since) = (given.task, given.since);
        self.reports.add_done(worker, thread, delivery, true);
        self.history.add(now.saturating_sub(since));
        self.unhold(worker, delivery);
        let mut ended = Vec::new();
        if let Some(open) = self.open.get_mut(&task)
            && !mutants::on(Mutant::SecondFinisherCounts)
        {
            for other in std::mem::replace(&mut open.deliveries, vec![delivery]) {
                if other != delivery {
                    ended.push(other);
                }
            }
        }
        for other in ended {
            self.end(other);
        }
        if pushed {
            return Done::Apply;
        }
        self.settle(delivery);
        Done::Finished
    }

    /// The result for a delivery that the worker does not have: that of the same report before, or that it is late.
    fn done_before(&mut self, worker: WorkerKey, thread: u32, delivery: u64) -> Done {
        match self.reports.done(worker, thread, delivery) {
            Some(true) => Done::Finished,
            Some(false) => Done::Late,
            None => {
                self.counters.late += 1;
                self.reports.add_done(worker, thread, delivery, false);
                Done::Late
            }
        }
    }

    /// Notes that the pushes of a finished task are applied: the task is finished.
    pub fn settle(&mut self, delivery: u64) {
        let is_applying = |given: &Delivery| given.applying.is_some();
        if !self.deliveries.get(&delivery).is_some_and(is_applying) {
            return;
        }
        if let Some(given) = self.end(delivery) {
            self.open.remove(&given.task);
            // The number of records is the worker's.
            let records = given.applying.unwrap_or_default();
            self.counters.finished = self.counters.finished.saturating_add(1);
            self.counters.records = self.counters.records.saturating_add(records);
        }
    }

    /// Handles the report of a task that failed by itself. It comes last, or is left out after too many
    /// failures. If another worker has the task too, that one goes on. A report that is repeated changes nothing.
    pub fn failed(
        &mut self,
        now: Duration,
        worker: WorkerKey,
        delivery: u64,
        reason: &str,
    ) -> Report {
        self.expire(now);
        let number = match self.of_worker(worker, delivery) {
            Some(given) if given.applying.is_none() => given.task,
            _ => {
                if let Some(counted) = self.reports.failed(worker, delivery) {
                    return Report::Repeated { counted };
                }
                self.counters.late += 1;
                self.reports.add_failed(worker, delivery, false);
                return Report::Late;
            }
        };
        self.reports.add_failed(worker, delivery, true);
        self.end(delivery);
        self.counters.failures += 1;
        let Some(open) = self.open.get_mut(&number) else {
            unreachable!("delivery {delivery} is of task {number}, which is not open");
        };
        open.deliveries.retain(|&other| other != delivery);
        open.failures += 1;
        let is_tried = open.failures >= self.spec.failures_max;
        let is_alone = open.deliveries.is_empty();
        if is_tried && is_alone && !mutants::on(Mutant::FailedTaskForEver) {
            return Report::LeftOut(Box::new(self.leave_out(number, reason)));
        }
        if is_alone {
            self.returned.push_back(number);
        }
        Report::Again
    }

    /// Leaves a task out that no worker has.
    fn leave_out(&mut self, number: u64, reason: &str) -> LeftOut {
        let (kind, shard) = self.records(number);
        let epoch = self.open.remove(&number).map_or(0, |open| open.epoch);
        self.counters.left_out += 1;
        let left_out = LeftOut {
            number,
            kind,
            epoch,
            shard,
            reason: reason.to_owned(),
        };
        if self.left_out.len() < TASK_LEFT_OUT_LISTED {
            self.left_out.push(left_out.clone());
        }
        left_out
    }

    /// Takes all tasks back from a worker that is lost or has left. It is no failure of the tasks: they come
    /// first, and their tries stay. A task with pushes that are being applied is finished all the same. The loss
    /// counts to each task that the worker had; with `losses_max` of them a task is left out, unless another worker
    /// has it too. Cost: a look at each delivery of the worker.
    pub fn release(&mut self, worker: WorkerKey, is_lost: bool) -> Released {
        let held = self.held.remove(&worker).unwrap_or_default();
        self.counters.recovered += held.len() as u64;
        let mut left_out = Vec::new();
        for &delivery in held.iter().rev() {
            let number = self.take_back(delivery);
            let Some(open) = number.and_then(|number| self.open.get_mut(&number)) else {
                continue;
            };
            open.failures += u32::from(mutants::on(Mutant::RecoveryCostsTry));
            open.losses += u32::from(is_lost);
            let (losses, is_alone) = (open.losses, open.deliveries.is_empty());
            if let Some(number) = number
                && is_lost
                && is_alone
                && losses >= self.spec.losses_max
                && !mutants::on(Mutant::DeadlyTaskForEver)
            {
                // `take_back` has put it there.
                self.returned.pop_front();
                let reason = format!(
                    "{losses} workers were lost while they had it, the last one of rank {worker}; look for the \
                     cause in their logs"
                );
                left_out.push(self.leave_out(number, &reason));
            }
        }
        Released {
            taken_back: held.len() as u64,
            left_out,
        }
    }

    /// Ends a delivery, whatever became of it.
    fn end(&mut self, delivery: u64) -> Option<Delivery> {
        let given = self.deliveries.remove(&delivery)?;
        self.unhold(given.worker, delivery);
        Some(given)
    }

    fn unhold(&mut self, worker: WorkerKey, delivery: u64) {
        if let Some(held) = self.held.get_mut(&worker) {
            held.retain(|&other| other != delivery);
            if held.is_empty() {
                self.held.remove(&worker);
            }
        }
    }

    /// Takes back the deliveries with a time that is over. Cost: a look at each of them.
    pub fn expire(&mut self, now: Duration) {
        let limit = self.timeout();
        let of_time = self.deliveries.iter();
        let late = of_time.take_while(|(_, given)| given.since.saturating_add(limit) <= now);
        let late = late.filter(|(_, given)| given.applying.is_none());
        let late: Vec<u64> = late.map(|(&delivery, _)| delivery).collect();
        self.counters.timeouts += late.len() as u64;
        for &delivery in late.iter().rev() {
            self.take_back(delivery);
        }
    }

    /// Ends a delivery; its task comes next, unless another worker has it too.
    fn take_back(&mut self, delivery: u64) -> Option<u64> {
        let number = self.end(delivery)?.task;
        let open = self.open.get_mut(&number)?;
        open.deliveries.retain(|&other| other != delivery);
        if open.deliveries.is_empty() {
            self.returned.push_front(number);
        }
        Some(number)
    }

    /// The next time at which a task can be taken that cannot be now: that of a straggler, or one with a time
    /// that is over.
    pub fn next_deadline(&self) -> Option<Duration> {
        let limit = self.straggler_limit().unwrap_or(Duration::MAX);
        let limit = limit.min(self.timeout());
        let given = self
            .deliveries
            .values()
            .find(|given| given.applying.is_none())?;
        Some(given.since.saturating_add(limit))
    }

    /// The next time at which a task is taken back.
    pub fn next_timeout(&self) -> Option<Duration> {
        let given = self
            .deliveries
            .values()
            .find(|given| given.applying.is_none())?;
        Some(given.since.saturating_add(self.timeout()))
    }

    /// Deliveries with pushes that are being applied, and the worker of each.
    pub fn applying(&self) -> impl Iterator<Item = (u64, WorkerKey)> + '_ {
        let applying = self
            .deliveries
            .iter()
            .filter(|(_, given)| given.applying.is_some());
        applying.map(|(&delivery, given)| (delivery, given.worker))
    }

    /// Continues a queue on a clock that begins again: the time of each delivery begins now.
    pub fn resume(&mut self, now: Duration) {
        for given in self.deliveries.values_mut() {
            given.since = now;
        }
    }

    fn of_worker(&mut self, worker: WorkerKey, delivery: u64) -> Option<&mut Delivery> {
        let given = self.deliveries.get_mut(&delivery);
        given.filter(|given| given.worker == worker)
    }

    /// Kind and records of an open task.
    fn records(&self, number: u64) -> (TaskKind, TaskShard) {
        let place = self.open.get(&number).map_or(0, |open| open.place);
        let none = TaskShard {
            path: String::new(),
            first: 0,
            end: 0,
            unit: TaskUnit::Records,
        };
        if number >= FINALS {
            let kind = self.spec.finals.get(place as usize).copied();
            return (kind.unwrap_or(TaskKind::End), none);
        }
        let shard = self.cuts.shard(u64::from(place));
        (self.spec.kind, shard.unwrap_or(none))
    }
}

//! Task queues of jobs in the coordinator: requests that wait for a task, and finished tasks that wait for
//! the servers.
//!
//! The report of a finished task is the decision: from then on the task counts, whatever becomes of its worker.
//! [`Command::FinishTask`] goes to all servers before any later news of the worker, over the same connections. So
//! each server applies the task before it learns that the worker is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidewater_journal::{Answered, Change, FinishingImage, Image, Outcome};
use tidewater_protocol::ids::{Incarnation, ServerId, WorkerId};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{
    Command, CommandReply, CoordinatorAnswer, LeftOut, TaskAnswer, TaskRequest, WorkerState,
};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_queue::{Done, DoneReport, Queue, QueueCall, QueueError, Report, Taken, WorkerKey};

use super::recovery::ABSENT;
use super::state::{Asker, Coordinator, PeerId, Purpose, bad};

/// A worker's request for a task that waits because none can be given now.
#[derive(Debug)]
struct Waiting {
    asker: Asker,
    namespace: String,
    queue: u32,
    deadline: Duration,
}

/// A finished task of which the servers are applying the pushes.
#[derive(Debug)]
struct Finishing {
    asker: Asker,
    namespace: String,
    queue: u32,
    worker: WorkerId,
    thread: u32,
    /// Incarnation of the worker's process.
    process: Incarnation,
    /// Servers that have not confirmed the pushes.
    missing: BTreeSet<ServerId>,
}

/// Unanswered requests about tasks, of all jobs.
#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    /// Number of the last delivery of a task; each number is used once, over all jobs.
    last_delivery: u64,
    waiting: Vec<Waiting>,
    finishing: BTreeMap<u64, Finishing>,
    /// Earliest time at which a waiting request may have to be answered; `None` if none waits.
    due: Option<Duration>,
}

impl Finishing {
    fn image(&self) -> FinishingImage {
        FinishingImage {
            namespace: self.namespace.clone(),
            queue: self.queue,
            worker: self.worker,
            thread: self.thread,
            process: self.process,
            request: self.asker.id,
        }
    }
}

impl OpenRequests {
    pub(super) const fn next_deadline(&self) -> Option<Duration> {
        self.due
    }
}

impl Coordinator {
    pub(super) fn task_request(
        &mut self,
        asker: Asker,
        namespace: &str,
        request: TaskRequest,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        self.check_live(asker.peer, namespace)?;
        let (now, worker) = (self.now, self.worker_key(asker.peer));
        let answer = match request {
            TaskRequest::Open { spec, shards } => {
                let job = self.jobs.get_mut(namespace);
                let job = job.ok_or_else(|| bad("no such job"))?;
                if job.durable.is_some() {
                    return Err(not_in_checkpoints(&spec.name));
                }
                let is_new = !job
                    .queues
                    .iter()
                    .any(|queue| queue.spec().name == spec.name);
                let opened = job.queues.open(&spec, shards.clone()).map_err(refused)?;
                if let Some(shards) = shards.filter(|_| is_new) {
                    self.note_queue(namespace, || QueueCall::Open { spec, shards });
                }
                TaskAnswer::Queue(opened)
            }
            TaskRequest::Take { queue, wait_ms } => {
                match self.give_task(asker, namespace, queue, wait_ms)? {
                    Some(answer) => answer,
                    None => return Ok(None),
                }
            }
            TaskRequest::Done {
                queue: number,
                delivery,
                thread,
                records,
                pushed,
            } => {
                let report = DoneReport {
                    delivery,
                    thread,
                    records,
                    pushed,
                };
                return self.task_done(asker, namespace, number, report);
            }
            TaskRequest::Failed {
                queue,
                delivery,
                reason,
            } => {
                let report = self
                    .queue(namespace, queue)?
                    .failed(now, worker, delivery, &reason);
                self.note_queue(namespace, || QueueCall::Failed {
                    queue,
                    now,
                    worker,
                    delivery,
                    reason: reason.clone(),
                });
                if let Report::LeftOut(task) = &report {
                    log_left_out(namespace, task);
                }
                self.serve_waiting_tasks();
                let is_late = matches!(report, Report::Late | Report::Repeated { counted: false });
                TaskAnswer::Reported { counted: !is_late }
            }
            TaskRequest::Status { queue } => {
                TaskAnswer::Over(self.queue(namespace, queue)?.status())
            }
        };
        self.answer_task(asker, answer);
        Ok(None)
    }

    /// The answer to a worker that asks for a task. `None` if the request was queued, for up to `wait_ms`
    /// milliseconds, and is answered later.
    fn give_task(
        &mut self,
        asker: Asker,
        namespace: &str,
        queue: u32,
        wait_ms: u64,
    ) -> Result<Option<TaskAnswer>, Refusal> {
        let answer = self.take_task(asker, namespace, queue)?;
        match &answer {
            TaskAnswer::Wait if wait_ms > 0 => {
                self.wait_for_task(asker, namespace, queue, wait_ms);
                return Ok(None);
            }
            // It may have been the one that others could not take.
            TaskAnswer::Task(_) => self.serve_waiting_tasks(),
            _ => {}
        }
        Ok(Some(answer))
    }

    /// Handles the report of a finished task. Answers it, or orders the servers to apply the task's pushes and
    /// answers it after that; the result is always `None`. A report that is repeated gets the answer of the first one.
    fn task_done(
        &mut self,
        asker: Asker,
        namespace: &str,
        number: u32,
        report: DoneReport,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        let (now, worker) = (self.now, self.worker_key(asker.peer));
        let queue = self.queue(namespace, number)?;
        let done = queue.done(now, worker, report);
        self.note_queue(namespace, || QueueCall::Done {
            queue: number,
            now,
            worker,
            report,
        });
        let answer = match done {
            Done::Late => TaskAnswer::Reported { counted: false },
            Done::Finished => {
                self.serve_waiting_tasks();
                TaskAnswer::Reported { counted: true }
            }
            Done::Apply => {
                self.finish_task(asker, namespace, number, report);
                return Ok(None);
            }
        };
        self.answer_task(asker, answer);
        Ok(None)
    }

    /// Key of a connected worker in its job's task queues: its rank, so that it stays the same when the worker
    /// returns to a restarted coordinator. A rank's tasks are taken back before another process takes the rank.
    fn worker_key(&self, peer: PeerId) -> WorkerKey {
        let rank = self.peers.get(&peer).map(|peer| peer.rank);
        rank.map_or(WorkerKey::MAX, WorkerKey::from)
    }

    /// Records a call that has changed the task queues of a job, for the journal.
    pub(super) fn note_queue(&mut self, namespace: &str, call: impl FnOnce() -> QueueCall) {
        self.note_change(|| Change::Queue(namespace.to_owned(), call()));
    }

    /// Checks that a worker is a live member of its job. Refuses others: a task that they take would be given
    /// to no other worker.
    fn check_live(&self, peer: PeerId, namespace: &str) -> Result<(), Refusal> {
        let rank = self.peers.get(&peer).map(|peer| WorkerId(peer.rank));
        let job = self.jobs.get(namespace);
        let worker = rank.and_then(|rank| job?.workers.get(&rank));
        match worker.map(|worker| worker.state) {
            Some(WorkerState::Live) => Ok(()),
            _ => Err(bad("tasks are for workers that have not left their job")),
        }
    }

    fn queue(&mut self, namespace: &str, queue: u32) -> Result<&mut Queue, Refusal> {
        let job = self.jobs.get_mut(namespace);
        let job = job.ok_or_else(|| bad("no such job"))?;
        job.queues.get(queue).map_err(refused)
    }

    fn take_task(
        &mut self,
        asker: Asker,
        namespace: &str,
        queue: u32,
    ) -> Result<TaskAnswer, Refusal> {
        let (now, delivery) = (self.now, self.tasks.last_delivery + 1);
        let (number, worker) = (queue, self.worker_key(asker.peer));
        let queue = self.queue(namespace, number)?;
        // Of a call that gives no task nothing stays but the tasks that it has taken back.
        let expires = queue.next_timeout().is_some_and(|at| at <= now);
        let taken = match queue.take(now, worker, delivery) {
            Taken::Task(task) => TaskAnswer::Task(*task),
            Taken::Wait => TaskAnswer::Wait,
            Taken::Over => TaskAnswer::Over(queue.status()),
        };
        let is_given = matches!(taken, TaskAnswer::Task(_));
        if is_given {
            self.tasks.last_delivery = delivery;
        }
        if is_given || expires {
            self.note_queue(namespace, || QueueCall::Take {
                queue: number,
                now,
                worker,
                delivery,
            });
        }
        Ok(taken)
    }

    fn wait_for_task(&mut self, asker: Asker, namespace: &str, queue: u32, wait_ms: u64) {
        self.tasks.waiting.push(Waiting {
            asker,
            namespace: namespace.to_owned(),
            queue,
            deadline: self.now.saturating_add(Duration::from_millis(wait_ms)),
        });
        self.find_due_task();
    }

    /// Computes the earliest time at which a waiting task request may have to be answered. Cost: a look at
    /// each waiting request.
    fn find_due_task(&mut self) {
        let due = |waiting: &Waiting| {
            let job = self.jobs.get(&waiting.namespace);
            let queue = job.and_then(|job| job.queues.find(waiting.queue));
            let given = queue.and_then(Queue::next_deadline);
            // At a time that has passed there was no task for this worker: the next one is that of a timeout.
            let given = match given {
                Some(at) if at <= self.now => queue.and_then(Queue::next_timeout),
                given => given,
            };
            given.map_or(waiting.deadline, |at| at.min(waiting.deadline))
        };
        let due = self.tasks.waiting.iter().map(due).min();
        self.tasks.due = due;
    }

    /// Serves the waiting task requests once the earliest time has passed at which one may have to be answered.
    pub(super) fn expire_tasks(&mut self) {
        if self.tasks.due.is_some_and(|due| due <= self.now) {
            self.serve_waiting_tasks();
        }
    }

    /// Gives tasks to waiting requests in their order. Answers the others if their queue is over, or their
    /// deadline has passed (no task is available); the rest wait on.
    fn serve_waiting_tasks(&mut self) {
        if self.tasks.waiting.is_empty() {
            return;
        }
        let mut gives = true;
        while std::mem::take(&mut gives) {
            for waiting in std::mem::take(&mut self.tasks.waiting) {
                match self.take_task(waiting.asker, &waiting.namespace, waiting.queue) {
                    Ok(TaskAnswer::Wait) if waiting.deadline > self.now => {
                        self.tasks.waiting.push(waiting);
                    }
                    Ok(answer) => {
                        // A task that is given may have been the one that an earlier request could not take.
                        gives |= matches!(answer, TaskAnswer::Task(_));
                        self.answer_task(waiting.asker, answer);
                    }
                    Err(refusal) => self.answer(waiting.asker, CoordinatorAnswer::Refused(refusal)),
                }
            }
        }
        self.find_due_task();
    }

    /// Answers a task request. Tasks and outcomes of reports are journalled: a request repeated after a restart
    /// of the coordinator gets the same task, and a report counts once.
    fn answer_task(&mut self, asker: Asker, answer: TaskAnswer) {
        match answer {
            TaskAnswer::Task(_) | TaskAnswer::Reported { .. } => {
                let subject = format!("task request {}", asker.id);
                self.answer_once(asker, subject, Outcome::Task(Box::new(answer)));
            }
            other => self.answer(asker, CoordinatorAnswer::Tasks(Box::new(other))),
        }
    }

    /// Orders all servers to apply the pushes of a finished task. The worker's report is answered when they
    /// all have; of a report that is repeated meanwhile, the last request.
    fn finish_task(&mut self, asker: Asker, namespace: &str, queue: u32, report: DoneReport) {
        let DoneReport {
            delivery, thread, ..
        } = report;
        if let Some(finishing) = self.tasks.finishing.get_mut(&delivery) {
            // The worker has given up the request before, or sends it again after a restart of the coordinator.
            finishing.asker = asker;
            let image = finishing.image();
            return self.note_change(|| Change::Finishing(delivery, Some(image)));
        }
        let servers = self.joined_servers();
        let rank = self.peers.get(&asker.peer).map(|peer| peer.rank);
        let worker = WorkerId(rank.unwrap_or_default());
        let absent = self.absent_servers();
        let process = self.worker(namespace, worker.0).map(|w| w.incarnation);
        let finishing = Finishing {
            asker,
            namespace: namespace.to_owned(),
            queue,
            worker,
            thread,
            // Every live worker has one: 0 is that of a client that gives none.
            process: process.unwrap_or(Incarnation(0)),
            missing: servers.iter().copied().chain(absent).collect(),
        };
        self.note_change(|| Change::Finishing(delivery, Some(finishing.image())));
        self.tasks.finishing.insert(delivery, finishing);
        for &server in &servers {
            self.order_finish(delivery, server);
        }
        if mutants::on(Mutant::TaskAnsweredEarly) {
            self.answer_task(asker, TaskAnswer::Reported { counted: true });
        }
    }

    /// Handles a server's answer to FinishTask. After the last one the worker's report is answered. A refusal
    /// fails the job, because acknowledged pushes are lost.
    pub(super) fn task_applied(&mut self, delivery: u64, server: ServerId, reply: CommandReply) {
        let Some(finishing) = self.tasks.finishing.get_mut(&delivery) else {
            return;
        };
        if let CommandReply::Refused(refusal) = reply {
            let namespace = finishing.namespace.clone();
            self.touch();
            return self.fail_job(&namespace, &refusal);
        }
        finishing.missing.remove(&server);
        if finishing.missing.is_empty()
            && let Some(done) = self.tasks.finishing.remove(&delivery)
        {
            let queue = done.queue;
            if let Ok(found) = self.queue(&done.namespace, queue) {
                found.settle(delivery);
                self.note_queue(&done.namespace, || QueueCall::Settle { queue, delivery });
            }
            self.note_change(|| Change::Finishing(delivery, None));
            self.answer_finished(&done);
            self.serve_waiting_tasks();
        }
    }

    /// Answers the report of a finished task. For a worker that has not returned after a restart of the
    /// coordinator the answer is journalled, if its rank still belongs to the same process.
    fn answer_finished(&mut self, done: &Finishing) {
        let answer = TaskAnswer::Reported { counted: true };
        if done.asker.peer != ABSENT {
            return self.answer_task(done.asker, answer);
        }
        let job = self.jobs.get(&done.namespace);
        let worker = job.and_then(|job| job.workers.get(&done.worker));
        // The rank may be that of another process by now, with requests of its own.
        if worker.is_some_and(|worker| worker.incarnation == done.process) {
            let answered = Answered {
                id: done.asker.id,
                subject: format!("task request {}", done.asker.id),
                outcome: Outcome::Task(Box::new(answer)),
            };
            self.keep_answer(done.namespace.clone(), done.worker, answered);
        }
    }

    fn order_finish(&mut self, delivery: u64, server: ServerId) {
        let Some(finishing) = self.tasks.finishing.get(&delivery) else {
            return;
        };
        let order = Command::FinishTask {
            namespace: finishing.namespace.clone(),
            worker: finishing.worker,
            thread: finishing.thread,
            delivery,
        };
        self.order(server, Purpose::Task(delivery), order);
    }

    /// Orders a returned server to apply all finished tasks that not every server has confirmed, also those of
    /// before the coordinator's restart. The server ignores those that it has applied.
    pub(super) fn repeat_finished_tasks(&mut self, server: ServerId) {
        if mutants::on(Mutant::FinishedTaskForgotten) {
            return;
        }
        for delivery in self.tasks.finishing.keys().copied().collect::<Vec<_>>() {
            self.order_finish(delivery, server);
        }
    }

    /// Restores the finished tasks of a journalled image of which servers may not have applied the pushes. Every
    /// server is ordered to apply them when it returns.
    pub(super) fn resume_tasks(&mut self, image: &Image) {
        self.tasks.last_delivery = image.last_delivery;
        for (&delivery, task) in &image.finishing {
            let finishing = Finishing {
                asker: Asker {
                    peer: ABSENT,
                    id: task.request,
                },
                namespace: task.namespace.clone(),
                queue: task.queue,
                worker: task.worker,
                thread: task.thread,
                process: task.process,
                missing: (0..self.config.servers).map(ServerId).collect(),
            };
            self.tasks.finishing.insert(delivery, finishing);
        }
    }

    /// Takes back the tasks of a worker that ends or has lost its connection `id`, and removes its waiting
    /// requests. `is_lost`: the worker did not leave in order.
    pub(super) fn release_tasks(
        &mut self,
        id: PeerId,
        rank: WorkerId,
        namespace: &str,
        is_lost: bool,
    ) {
        self.tasks
            .waiting
            .retain(|waiting| waiting.asker.peer != id);
        let job = self.jobs.get(namespace);
        let worker = job.and_then(|job| job.workers.get(&rank));
        // A connection that has not taken the place of a worker that may return has no tasks.
        if worker.is_some_and(|worker| worker.peer == Some(id)) {
            self.take_back_tasks(rank, namespace, is_lost);
        }
    }

    /// Takes back the tasks of the worker with this rank, so that others get them. `is_lost`: the worker did
    /// not leave in order.
    pub(super) fn take_back_tasks(&mut self, rank: WorkerId, namespace: &str, is_lost: bool) {
        if mutants::on(Mutant::LostTaskKept) {
            return;
        }
        let worker = WorkerKey::from(rank.0);
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        let released = job.queues.release(worker, is_lost);
        if released.taken_back > 0 {
            self.note_queue(namespace, || QueueCall::Release { worker, is_lost });
            let tasks = released.taken_back;
            tracing::info!(
                namespace,
                tasks,
                "tasks of a worker that has left are given again"
            );
            for task in &released.left_out {
                log_left_out(namespace, task);
            }
            self.serve_waiting_tasks();
        }
    }

    /// Removes the task requests of a job: those that wait for a task, and reports of which servers apply the pushes.
    /// Returns them, for the caller to refuse.
    pub(super) fn drop_task_requests(&mut self, namespace: &str) -> Vec<Asker> {
        let of_job = |waiting: &mut Waiting| waiting.namespace == namespace;
        let waiting = self.tasks.waiting.extract_if(.., of_job);
        let mut askers: Vec<Asker> = waiting.map(|waiting| waiting.asker).collect();
        let of_job = |_: &u64, done: &mut Finishing| done.namespace == namespace;
        let finishing = self.tasks.finishing.extract_if(.., of_job);
        for (delivery, done) in finishing.collect::<Vec<_>>() {
            self.note_change(|| Change::Finishing(delivery, None));
            askers.push(done.asker);
        }
        self.find_due_task();
        askers
    }
}

fn log_left_out(namespace: &str, task: &LeftOut) {
    let (path, first, end) = (&task.shard.path, task.shard.first, task.shard.end);
    let reason = &task.reason;
    tracing::warn!(namespace, path, first, end, reason, "a task is left out");
}

/// Makes the refusal of a task queue in a job with checkpoints. A checkpoint holds the tables and not the
/// queues, so a resumed job would count finished tasks twice.
fn not_in_checkpoints(queue: &str) -> Refusal {
    bad(&format!(
        "queue \"{queue}\": the job has checkpoints, which hold no queues, so that a resumed job would count \
         finished tasks twice; start the coordinator without --checkpoint, or let each worker read its share of \
         the data and keep its position (Client::set_position)"
    ))
}

fn refused(error: QueueError) -> Refusal {
    let code = match error {
        QueueError::TooMany { .. } | QueueError::TooManyTasks { .. } => RefusalCode::TooMany,
        _ => RefusalCode::BadRequest,
    };
    let numbers = match error {
        QueueError::TooMany { limit, .. } => [limit as u64 + 1, limit as u64, 0, 0],
        QueueError::TooManyTasks { tasks, limit, .. } => [tasks, limit, 0, 0],
        _ => [0; 4],
    };
    Refusal::new(code, numbers).with_text(error.to_string())
}

//! Tasks of jobs: requests that wait for a task, and reports that wait for the servers.
//!
//! The report of a finished task is the decision: from then on the task counts, whatever becomes of its worker.
//! [`Command::FinishTask`] goes to all servers before any later news of the worker, over the same connections. So
//! each server applies the task before it learns that the worker is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidewater_protocol::ids::{ServerId, WorkerId};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{
    Command, CommandReply, CoordinatorAnswer, TaskAnswer, TaskRequest, WorkerState,
};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_queue::{Done, Queue, QueueError, Report, Taken};

use super::state::{Asker, Coordinator, PeerId, Purpose, bad};

/// A request for a task that is kept until there is one.
#[derive(Debug)]
struct Waiting {
    asker: Asker,
    namespace: String,
    queue: u32,
    deadline: Duration,
}

/// A finished task with pushes that servers are applying.
#[derive(Debug)]
struct Finishing {
    asker: Asker,
    namespace: String,
    queue: u32,
    missing: BTreeSet<ServerId>,
}

/// Requests about tasks that are not answered, of all jobs.
#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    /// Number of the last delivery: it is used once in all jobs.
    last_delivery: u64,
    waiting: Vec<Waiting>,
    finishing: BTreeMap<u64, Finishing>,
    /// The next time at which a waiting request may be answered.
    due: Option<Duration>,
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
        let (now, worker) = (self.now, asker.peer.0);
        let answer = match request {
            TaskRequest::Open { spec, shards } => {
                let job = self.jobs.get_mut(namespace);
                let job = job.ok_or_else(|| bad("no such job"))?;
                if job.durable.is_some() {
                    return Err(not_in_checkpoints(&spec.name));
                }
                TaskAnswer::Queue(job.queues.open(&spec, shards).map_err(refused)?)
            }
            TaskRequest::Take { queue, wait_ms } => {
                match self.take_task(asker, namespace, queue)? {
                    TaskAnswer::Wait if wait_ms > 0 => {
                        self.wait_for_task(asker, namespace, (queue, wait_ms));
                        return Ok(None);
                    }
                    answer => answer,
                }
            }
            TaskRequest::Done {
                queue: number,
                delivery,
                thread,
                records,
                pushed,
            } => {
                let queue = self.queue(namespace, number)?;
                match queue.done(now, worker, delivery, (records, pushed)) {
                    Done::Late => TaskAnswer::Reported { counted: false },
                    Done::Finished => {
                        self.serve_waiting_tasks();
                        TaskAnswer::Reported { counted: true }
                    }
                    Done::Apply => {
                        self.finish_task(asker, namespace, (number, delivery, thread))?;
                        return Ok(None);
                    }
                }
            }
            TaskRequest::Failed {
                queue,
                delivery,
                reason,
            } => {
                let report = self
                    .queue(namespace, queue)?
                    .failed(now, worker, delivery, &reason);
                if let Report::LeftOut(task) = &report {
                    let (path, first, end) = (&task.shard.path, task.shard.first, task.shard.end);
                    tracing::warn!(namespace, path, first, end, reason, "a task is left out");
                }
                self.serve_waiting_tasks();
                let counted = report != Report::Late;
                TaskAnswer::Reported { counted }
            }
            TaskRequest::Status { queue } => {
                TaskAnswer::Over(self.queue(namespace, queue)?.status())
            }
        };
        Ok(Some(CoordinatorAnswer::Tasks(Box::new(answer))))
    }

    /// Refuses a worker that has left its job: what it takes would be given to no other one.
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
        let queue = self.queue(namespace, queue)?;
        Ok(match queue.take(now, asker.peer.0, delivery) {
            Taken::Task(task) => {
                self.tasks.last_delivery = delivery;
                TaskAnswer::Task(*task)
            }
            Taken::Wait => TaskAnswer::Wait,
            Taken::Over => TaskAnswer::Over(queue.status()),
        })
    }

    fn wait_for_task(&mut self, asker: Asker, namespace: &str, (queue, wait_ms): (u32, u64)) {
        self.tasks.waiting.push(Waiting {
            asker,
            namespace: namespace.to_owned(),
            queue,
            deadline: self.now.saturating_add(Duration::from_millis(wait_ms)),
        });
        self.find_due_task();
    }

    /// Finds the next time at which a waiting request may be answered. Cost: a look at each of them.
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

    /// Answers waiting requests at their time.
    pub(super) fn expire_tasks(&mut self) {
        if self.tasks.due.is_some_and(|due| due <= self.now) {
            self.serve_waiting_tasks();
        }
    }

    /// Gives tasks to waiting requests in their order, and answers those that have waited long enough.
    fn serve_waiting_tasks(&mut self) {
        if self.tasks.waiting.is_empty() {
            return;
        }
        for waiting in std::mem::take(&mut self.tasks.waiting) {
            match self.take_task(waiting.asker, &waiting.namespace, waiting.queue) {
                Ok(TaskAnswer::Wait) if waiting.deadline > self.now => {
                    self.tasks.waiting.push(waiting);
                }
                Ok(answer) => self.answer_task(waiting.asker, answer),
                Err(refusal) => self.answer(waiting.asker, CoordinatorAnswer::Refused(refusal)),
            }
        }
        self.find_due_task();
    }

    fn answer_task(&mut self, asker: Asker, answer: TaskAnswer) {
        self.answer(asker, CoordinatorAnswer::Tasks(Box::new(answer)));
    }

    /// Orders all servers to apply the pushes of a finished task; the report is answered when they have.
    fn finish_task(
        &mut self,
        asker: Asker,
        namespace: &str,
        (queue, delivery, thread): (u32, u64, u32),
    ) -> Result<(), Refusal> {
        if self.tasks.finishing.contains_key(&delivery) {
            return Err(bad("the task has been reported and is being applied"));
        }
        let servers = self.joined_servers();
        let rank = self.peers.get(&asker.peer).map(|peer| peer.rank);
        let worker = WorkerId(rank.unwrap_or_default());
        for &server in &servers {
            let order = Command::FinishTask {
                namespace: namespace.to_owned(),
                worker,
                thread,
                delivery,
            };
            self.order(server, Purpose::Task(delivery), order);
        }
        let finishing = Finishing {
            asker,
            namespace: namespace.to_owned(),
            queue,
            missing: servers.into_iter().collect(),
        };
        self.tasks.finishing.insert(delivery, finishing);
        if mutants::on(Mutant::TaskAnsweredEarly) {
            self.answer_task(asker, TaskAnswer::Reported { counted: true });
        }
        Ok(())
    }

    /// Notes that a server has applied a finished task. One that cannot has lost acknowledged pushes: the job
    /// fails.
    pub(super) fn task_applied(&mut self, delivery: u64, server: ServerId, reply: CommandReply) {
        let Some(finishing) = self.tasks.finishing.get_mut(&delivery) else {
            return;
        };
        if let CommandReply::Refused(refusal) = reply {
            let namespace = finishing.namespace.clone();
            return self.fail_job(&namespace, &refusal);
        }
        finishing.missing.remove(&server);
        if finishing.missing.is_empty()
            && let Some(done) = self.tasks.finishing.remove(&delivery)
        {
            if let Ok(queue) = self.queue(&done.namespace, done.queue) {
                queue.settle(delivery);
            }
            self.answer_task(done.asker, TaskAnswer::Reported { counted: true });
            self.serve_waiting_tasks();
        }
    }

    /// Takes the tasks of a worker back that is lost or has left.
    pub(super) fn release_tasks(&mut self, id: PeerId, namespace: &str) {
        self.tasks
            .waiting
            .retain(|waiting| waiting.asker.peer != id);
        if mutants::on(Mutant::LostTaskKept) {
            return;
        }
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        let tasks = job.queues.release(id.0);
        if tasks > 0 {
            tracing::info!(
                namespace,
                tasks,
                "tasks of a worker that has left are given again"
            );
            self.serve_waiting_tasks();
        }
    }

    /// Removes the requests of a job about tasks, to refuse them.
    pub(super) fn drop_task_requests(&mut self, namespace: &str) -> Vec<Asker> {
        let of_job = |waiting: &mut Waiting| waiting.namespace == namespace;
        let waiting = self.tasks.waiting.extract_if(.., of_job);
        let mut askers: Vec<Asker> = waiting.map(|waiting| waiting.asker).collect();
        let of_job = |_: &u64, done: &mut Finishing| done.namespace == namespace;
        let finishing = self.tasks.finishing.extract_if(.., of_job);
        askers.extend(finishing.map(|(_, done)| done.asker));
        self.find_due_task();
        askers
    }
}

/// The refusal of a queue in a job with checkpoints. Tables are in a checkpoint and queues are not: a resumed job
/// would count the tasks of before twice.
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

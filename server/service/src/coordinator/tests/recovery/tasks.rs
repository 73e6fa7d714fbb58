//! Tasks over restarts of the coordinator: each is given to one worker, and counts once.

use std::collections::{BTreeMap, BTreeSet};

use tidewater_protocol::wire::control::{
    QueueSpec, QueueStatus, Task, TaskAnswer, TaskKind, TaskRequest, TaskShard, TaskUnit,
};

use super::*;

const QUEUE: u32 = 0;
/// Records of a task.
const SIZE: u64 = 5;

fn open(tasks: u64) -> TaskRequest {
    let spec = QueueSpec {
        name: "train".into(),
        kind: TaskKind::Train,
        source: String::new(),
        task_size: SIZE,
        epochs: 2,
        strict_epochs: false,
        seed: Some(3),
        finals: Vec::new(),
        failures_max: 2,
        timeout_ms: 900_000,
        timeout_factor: 10,
        straggler_ms: 800_000,
        straggler_factor: 20,
        losses_max: 100,
        held_max: 0,
        steps_max: 0,
        records: None,
        record_seed: None,
    };
    let shard = TaskShard {
        path: "data".into(),
        first: 0,
        end: tasks * SIZE,
        unit: TaskUnit::Records,
    };
    let shards = Some(vec![shard]);
    TaskRequest::Open { spec, shards }
}

fn take(wait_ms: u64) -> TaskRequest {
    let queue = QUEUE;
    TaskRequest::Take { queue, wait_ms }
}

fn done(task: &Task) -> TaskRequest {
    TaskRequest::Done {
        queue: QUEUE,
        delivery: task.delivery,
        thread: 0,
        records: task.shard.size(),
        pushed: true,
    }
}

fn failed(task: &Task) -> TaskRequest {
    let (queue, delivery) = (QUEUE, task.delivery);
    let reason = "unreadable".into();
    TaskRequest::Failed {
        queue,
        delivery,
        reason,
    }
}

fn counted() -> Option<TaskAnswer> {
    Some(TaskAnswer::Reported { counted: true })
}

impl Durable {
    /// A job of two workers and one server with a queue of `tasks` tasks.
    fn with_queue(tasks: u64) -> (Self, PeerId, [PeerId; 2]) {
        let mut durable = Self::new(1, 2, LostWorker::GoOn, Lifetime::OneJob);
        let server = durable.joined(Role::Server, 0, 70, 1);
        let workers =
            [0, 1].map(|rank| durable.joined(Role::Worker, rank, 80 + u64::from(rank), 1));
        let opened = durable.task(workers[0], 2, open(tasks));
        assert_eq!(opened, Some(TaskAnswer::Queue(Some(QUEUE))));
        (durable, server, workers)
    }

    /// A request about tasks, which is journalled.
    fn task(&mut self, peer: PeerId, id: u64, request: TaskRequest) -> Option<TaskAnswer> {
        self.rig.ask(peer, id, Ask::Tasks(request));
        self.sync();
        self.task_answer(peer, id)
    }

    fn task_answer(&mut self, peer: PeerId, id: u64) -> Option<TaskAnswer> {
        match self.rig.answer(peer, id)? {
            Answer::Tasks(answer) => Some(*answer),
            other => panic!("{other:?}"),
        }
    }

    fn given(&mut self, peer: PeerId, id: u64) -> Task {
        match self.task(peer, id, take(0)) {
            Some(TaskAnswer::Task(task)) => task,
            other => panic!("{other:?}"),
        }
    }

    fn status(&mut self, peer: PeerId, id: u64) -> QueueStatus {
        match self.task(peer, id, TaskRequest::Status { queue: QUEUE }) {
            Some(TaskAnswer::Over(status)) => status,
            other => panic!("{other:?}"),
        }
    }
}

/// The answer to a request for a task was lost: the request that is repeated gets the same task, and another worker
/// another one. Tries, passes and counters are those of before.
#[test]
fn given_task_is_given_to_its_worker_again() {
    let (mut durable, _, workers) = Durable::with_queue(2);
    let first = durable.given(workers[1], 3);
    assert_eq!(durable.task(workers[1], 4, failed(&first)), counted());
    durable.rig.ask(workers[0], 3, Ask::Tasks(take(0)));
    durable.sync();
    let before = durable.status(workers[1], 5);
    durable.restart();
    let (_, workers) = durable.all_return();
    assert_eq!(durable.status(workers[1], 10), before);
    let task = durable.given(workers[0], 3);
    let other = durable.given(workers[1], 11);
    assert_ne!((task.number, task.delivery), (other.number, other.delivery));
    let again = [&task, &other].map(|task| (task.number == first.number, task.failures));
    assert!(again.contains(&(true, 1)), "{again:?}");
}

/// The report of a task was the decision, and its order was lost: the server gets it again, before the news of the
/// loss of its worker, and the task is not given again. A worker that returns late gets its answer, once.
#[test]
fn finished_task_is_applied_after_restart() {
    for returns in [true, false] {
        let (mut durable, _, workers) = Durable::with_queue(1);
        let task = durable.given(workers[0], 3);
        assert_eq!(durable.task(workers[0], 4, done(&task)), None);
        durable.restart();
        let other = durable.joined(Role::Worker, 1, 81, 9);
        if !returns {
            let worker = durable.joined(Role::Worker, 0, 80, 9);
            durable.rig.close(worker);
        }
        let server = durable.joined(Role::Server, 0, 70, 9);
        let orders = durable.rig.obey(server, &CommandReply::Done);
        let Some(Command::FinishTask {
            worker, delivery, ..
        }) = orders.first()
        else {
            panic!("{orders:?}")
        };
        assert_eq!((*worker, *delivery), (WorkerId(0), task.delivery));
        durable.sync();
        durable.restart();
        let server = durable.joined(Role::Server, 0, 70, 10);
        let orders = durable.rig.obey(server, &CommandReply::Done);
        let is_finish = |order: &Command| matches!(order, Command::FinishTask { .. });
        assert!(!orders.iter().any(is_finish), "{orders:?}");
        let other_again = durable.joined(Role::Worker, 1, 81, 10);
        assert_ne!(other, other_again);
        if returns {
            let worker = durable.joined(Role::Worker, 0, 80, 10);
            assert_eq!(durable.task(worker, 4, done(&task)), counted());
            let again = durable.task(worker, 11, done(&task));
            assert_eq!(again, counted(), "a new request");
        }
        let status = durable.status(other_again, 12);
        assert_eq!(
            (status.counters.finished, status.counters.records),
            (1, SIZE)
        );
        assert_eq!(status.counters.late, 0);
        let second = durable.given(other_again, 13);
        assert_eq!(second.epoch, 1, "of the next pass");
    }
}

/// A worker that does not return leaves its tasks when its time is over, and its try is not counted.
#[test]
fn tasks_of_absent_worker_are_given_again() {
    let (mut durable, _, workers) = Durable::with_queue(1);
    let first = durable.given(workers[0], 3);
    let second = durable.given(workers[1], 3);
    assert_eq!(durable.task(workers[1], 4, take(90_000)), None);
    durable.restart();
    durable.joined(Role::Server, 0, 70, 9);
    let other = durable.joined(Role::Worker, 1, 81, 9);
    assert_eq!(durable.task(other, 4, take(90_000)), None);
    durable.rig.now = RETURN_GRACE;
    durable.rig.ask(other, 10, Ask::Members);
    let Some(TaskAnswer::Task(again)) = durable.task_answer(other, 4) else {
        panic!("{:?}", durable.rig.actions)
    };
    assert_eq!((again.number, again.failures), (first.number, 0));
    assert_ne!(again.number, second.number);
}

/// Workers, a server and a coordinator that is killed at any step, with and without the record of the step.
struct Pool {
    durable: Durable,
    server: PeerId,
    workers: [PeerId; 2],
    /// Of each worker: the request without an answer.
    open: [Option<(u64, TaskRequest)>; 2],
    /// Of each worker: the task that it works on.
    held: [Option<Task>; 2],
    over: [bool; 2],
    last_id: u64,
    /// Task of each delivery, as its worker knows it.
    given: BTreeMap<u64, u64>,
    /// Deliveries that the server has applied.
    applied: BTreeSet<u64>,
}

impl Pool {
    /// A worker sends its next request, if it waits for no answer.
    fn works(&mut self, worker: usize, fails: bool) {
        if self.open[worker].is_some() || self.over[worker] {
            return;
        }
        self.last_id += 1;
        let request = match &self.held[worker] {
            None => take(0),
            Some(task) if fails => failed(task),
            Some(task) => done(task),
        };
        self.open[worker] = Some((self.last_id, request.clone()));
        let peer = self.workers[worker];
        self.durable
            .rig
            .ask(peer, self.last_id, Ask::Tasks(request));
    }

    /// A worker gives up its report, which may have arrived, and sends it again.
    fn repeats(&mut self, worker: usize) {
        if let Some((id, request)) = &mut self.open[worker]
            && !matches!(request, TaskRequest::Take { .. })
        {
            self.last_id += 1;
            *id = self.last_id;
            let request = Ask::Tasks(request.clone());
            self.durable
                .rig
                .ask(self.workers[worker], self.last_id, request);
        }
    }

    /// Answers arrive at a worker.
    fn arrives(&mut self, worker: usize) {
        let Some((id, _)) = self.open[worker] else {
            return;
        };
        let Some(answer) = self.durable.task_answer(self.workers[worker], id) else {
            return;
        };
        self.open[worker] = None;
        match answer {
            TaskAnswer::Task(task) => {
                self.given.insert(task.delivery, task.number);
                self.held[worker] = Some(task);
            }
            TaskAnswer::Reported { counted } => {
                assert!(counted, "no time-out, and no straggler");
                self.held[worker] = None;
            }
            TaskAnswer::Over(_) => self.over[worker] = true,
            TaskAnswer::Wait => {}
            other => panic!("{other:?}"),
        }
    }

    fn serves(&mut self) {
        for order in self.durable.rig.obey(self.server, &CommandReply::Done) {
            if let Command::FinishTask { delivery, .. } = order {
                self.applied.insert(delivery);
            }
        }
    }

    fn restarts(&mut self) {
        self.durable.restart();
        self.last_id += 1;
        self.server = self.durable.joined(Role::Server, 0, 70, self.last_id);
        for (rank, open) in (0..).zip(&self.open) {
            let process = 80 + u64::from(rank);
            let peer = self
                .durable
                .joined(Role::Worker, rank, process, self.last_id);
            self.workers[rank as usize] = peer;
            if let Some((id, request)) = open {
                self.durable.rig.ask(peer, *id, Ask::Tasks(request.clone()));
            }
        }
    }
}

/// Whenever the coordinator is killed, and whichever reports are repeated, each task is applied once or left out, and
/// its report counts. The queues that its records lead to
/// are those that it had.
#[test]
fn tasks_count_once_over_any_restart() {
    const TASKS: u64 = 6;
    let mut restarts = 0;
    for seed in 0..40_u64 {
        let (durable, server, workers) = Durable::with_queue(TASKS);
        let mut pool = Pool {
            durable,
            server,
            workers,
            open: [None, None],
            held: [None, None],
            over: [false; 2],
            last_id: 100,
            given: BTreeMap::new(),
            applied: BTreeSet::new(),
        };
        let mut random = seed;
        let mut draw = |most: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % most
        };
        let mut steps = 0;
        while pool.over != [true; 2] {
            steps += 1;
            assert!(
                steps < 2_000,
                "seed {seed}: a task is lost: {:?}",
                pool.held
            );
            let worker = usize::from(draw(2) == 1);
            match draw(4) {
                0 | 1 => pool.works(worker, draw(8) == 0),
                2 => pool.serves(),
                _ => pool.repeats(worker),
            }
            let killed = draw(8) == 0;
            if killed && draw(2) == 0 {
                // Before the record of the step: nothing of it has left.
                restarts += 1;
                pool.restarts();
            }
            pool.durable.sync();
            let queues = &pool.durable.rig.state.jobs["job"].queues;
            let [live, journalled] = [queues, &pool.durable.journal.queues["job"]]
                .map(|queues| serde_json::to_string(queues).unwrap());
            assert_eq!(live, journalled);
            if killed {
                restarts += 1;
                pool.restarts();
                pool.durable.sync();
            }
            pool.arrives(worker);
        }
        let numbers: Vec<u64> = pool.applied.iter().map(|d| pool.given[d]).collect();
        let once: BTreeSet<u64> = numbers.iter().copied().collect();
        assert_eq!(once.len(), numbers.len(), "seed {seed}: {numbers:?}");
        pool.last_id += 1;
        let status = pool.durable.status(pool.workers[0], pool.last_id);
        let left_out = status.left_out.iter().map(|task| task.number);
        let all: BTreeSet<u64> = once.iter().copied().chain(left_out).collect();
        assert_eq!(all, (0..2 * TASKS).collect(), "seed {seed}: {status:?}");
        assert_eq!(status.counters.finished, once.len() as u64);
        assert_eq!(status.counters.late, 0);
    }
    assert!(restarts > 200, "{restarts}");
}

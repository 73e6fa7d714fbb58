//! Tasks at the coordinator: when requests are answered, and what servers are ordered.

use tidewater_protocol::wire::control::{
    QueueSpec, Task, TaskAnswer, TaskKind, TaskRequest, TaskShard, TaskUnit,
};

use super::*;

const QUEUE: u32 = 0;

fn spec() -> QueueSpec {
    QueueSpec {
        name: "train".into(),
        kind: TaskKind::Train,
        source: String::new(),
        task_size: 5,
        epochs: 1,
        strict_epochs: false,
        seed: None,
        finals: Vec::new(),
        failures_max: 1,
        timeout_ms: 60_000,
        timeout_factor: 10,
        straggler_ms: 5_000,
        straggler_factor: 2,
        losses_max: 3,
        held_max: 0,
        steps_max: 0,
        records: None,
        record_seed: None,
    }
}

fn shards(records: u64) -> Option<Vec<TaskShard>> {
    Some(vec![TaskShard {
        path: "data".into(),
        first: 0,
        end: records,
        unit: TaskUnit::Records,
    }])
}

impl Rig {
    fn task(&mut self, peer: PeerId, request: TaskRequest) -> Option<TaskAnswer> {
        self.ask(peer, 9, Ask::Tasks(request));
        self.task_answer(peer)
    }

    fn task_answer(&mut self, peer: PeerId) -> Option<TaskAnswer> {
        match self.answer(peer, 9)? {
            Answer::Tasks(answer) => Some(*answer),
            other => panic!("{other:?}"),
        }
    }

    fn open(&mut self, peer: PeerId, records: u64) {
        let (spec, shards) = (spec(), shards(records));
        let answer = self.task(peer, TaskRequest::Open { spec, shards });
        assert_eq!(answer, Some(TaskAnswer::Queue(Some(QUEUE))));
    }

    fn take(&mut self, peer: PeerId, wait_ms: u64) -> Option<TaskAnswer> {
        let queue = QUEUE;
        self.task(peer, TaskRequest::Take { queue, wait_ms })
    }

    fn given(&mut self, peer: PeerId) -> Task {
        match self.take(peer, 0) {
            Some(TaskAnswer::Task(task)) => task,
            other => panic!("{other:?}"),
        }
    }

    fn done(&mut self, peer: PeerId, task: &Task) -> Option<TaskAnswer> {
        let (queue, delivery) = (QUEUE, task.delivery);
        let (records, pushed) = (task.shard.size(), true);
        let thread = 0;
        self.task(
            peer,
            TaskRequest::Done {
                queue,
                delivery,
                thread,
                records,
                pushed,
            },
        )
    }
}

fn counted(counted: bool) -> Option<TaskAnswer> {
    Some(TaskAnswer::Reported { counted })
}

/// The answer to a report comes when the last server has applied the task. The worker's loss meanwhile changes
/// nothing: servers have the order to finish the task before the news of the loss.
#[test]
fn reports_wait_for_all_servers() {
    let mut rig = Rig::new(2, 2, LostWorker::GoOn, true);
    let servers = [rig.server(0), rig.server(1)];
    let workers = [rig.worker(0), rig.worker(1)];
    rig.open(workers[0], 10);
    let task = rig.given(workers[0]);
    assert_eq!(rig.done(workers[0], &task), None);
    let orders = rig.obey(servers[0], &CommandReply::Done);
    let [
        Command::FinishTask {
            worker, delivery, ..
        },
    ] = &orders[..]
    else {
        panic!("{orders:?}");
    };
    assert_eq!((*worker, *delivery), (WorkerId(0), task.delivery));
    assert_eq!(rig.task_answer(workers[0]), None, "one server is missing");
    rig.obey(servers[1], &CommandReply::Done);
    assert_eq!(rig.task_answer(workers[0]), counted(true));

    let task = rig.given(workers[0]);
    assert_eq!(rig.done(workers[0], &task), None);
    rig.close(workers[0]);
    for server in servers {
        let orders = rig.obey(server, &CommandReply::Done);
        let kinds = &orders[..];
        assert!(
            matches!(
                kinds,
                [Command::FinishTask { .. }, Command::MembersChanged { .. }]
            ),
            "{kinds:?}"
        );
    }
    let Some(TaskAnswer::Over(status)) = rig.take(workers[1], 0) else {
        panic!("{:?}", rig.actions);
    };
    assert_eq!(
        (status.counters.finished, status.counters.recovered),
        (2, 0)
    );
}

/// A report that is repeated gets the answer of the first one: while servers apply the task its last request is
/// answered, and after that each one. A late report stays late. No counter changes twice.
#[test]
fn repeated_report_gets_first_answer() {
    let mut rig = Rig::new(1, 1, LostWorker::GoOn, true);
    let server = rig.server(0);
    let worker = rig.worker(0);
    rig.open(worker, 10);
    let task = rig.given(worker);
    let report = |delivery| TaskRequest::Done {
        queue: QUEUE,
        delivery,
        thread: 0,
        records: 5,
        pushed: true,
    };
    for id in [20, 21] {
        rig.ask(worker, id, Ask::Tasks(report(task.delivery)));
    }
    let orders = rig.obey(server, &CommandReply::Done);
    assert_eq!(orders.len(), 1, "{orders:?}");
    let answer = |rig: &mut Rig, id| match rig.answer(worker, id) {
        Some(Answer::Tasks(answer)) => Some(*answer),
        other => panic!("{other:?}"),
    };
    assert_eq!(answer(&mut rig, 21), counted(true));
    assert_eq!(rig.task(worker, report(task.delivery)), counted(true));
    assert!(rig.obey(server, &CommandReply::Done).is_empty());
    for _ in 0..2 {
        assert_eq!(rig.task(worker, report(77)), counted(false));
    }
    let failed = TaskRequest::Failed {
        queue: QUEUE,
        delivery: rig.given(worker).delivery,
        reason: "gone".into(),
    };
    for _ in 0..2 {
        assert_eq!(rig.task(worker, failed.clone()), counted(true));
    }
    let Some(TaskAnswer::Over(status)) = rig.task(worker, TaskRequest::Status { queue: QUEUE })
    else {
        panic!("{:?}", rig.actions);
    };
    let counters = status.counters;
    assert_eq!((counters.finished, counters.late), (1, 1));
    assert_eq!((counters.failures, counters.left_out), (1, 1));
}

/// A task of a lost worker is given to the one that waits, and a late report of another one is refused.
#[test]
fn tasks_of_lost_workers_are_given_again() {
    let mut rig = Rig::new(1, 3, LostWorker::GoOn, true);
    let server = rig.server(0);
    let workers = [0, 1, 2].map(|rank| rig.worker(rank));
    rig.open(workers[0], 5);
    let task = rig.given(workers[0]);
    assert_eq!(rig.take(workers[1], 40_000), None, "it waits");
    rig.close(workers[0]);
    let Some(TaskAnswer::Task(again)) = rig.task_answer(workers[1]) else {
        panic!("{:?}", rig.actions);
    };
    assert_eq!((again.number, again.failures), (task.number, 0));
    assert_ne!(again.delivery, task.delivery);
    assert_eq!(
        rig.done(workers[2], &again),
        counted(false),
        "it is not its own"
    );
    // A worker that finishes leaves its tasks, too.
    assert_eq!(rig.take(workers[2], 40_000), None);
    rig.ask(workers[1], 3, Ask::Finished);
    let Some(TaskAnswer::Task(last)) = rig.task_answer(workers[2]) else {
        panic!("{:?}", rig.actions);
    };
    rig.ask(
        workers[1],
        4,
        Ask::Tasks(TaskRequest::Status { queue: QUEUE }),
    );
    assert_eq!(rig.refusal(workers[1], 4).code, RefusalCode::BadRequest);
    assert_eq!(rig.done(workers[2], &last), None);
    rig.obey(server, &CommandReply::Done);
    assert_eq!(rig.task_answer(workers[2]), counted(true));
}

/// A worker that is lost costs its task a loss, one that leaves does not. The task that all are lost with is left
/// out, and the state of the cluster shows it.
#[test]
fn deadly_task_is_left_out_and_shown() {
    let mut rig = Rig::new(1, 5, LostWorker::GoOn, true);
    rig.server(0);
    let workers = [0, 1, 2, 3, 4].map(|rank| rig.worker(rank));
    rig.open(workers[0], 5);
    rig.given(workers[0]);
    rig.ask(workers[0], 3, Ask::Finished);
    for lost in [1, 2, 3] {
        rig.given(workers[lost]);
        rig.close(workers[lost]);
    }
    let Some(TaskAnswer::Over(status)) = rig.take(workers[4], 0) else {
        panic!("{:?}", rig.actions);
    };
    let counters = status.counters;
    assert_eq!((counters.left_out, counters.recovered), (1, 4));
    assert_eq!(status.left_out[0].shard.path, "data");
    let operator = rig.connects(Role::Admin, RANK_ANY, "default").unwrap();
    rig.ask(operator, 5, Ask::Status { server: None });
    let Some(Answer::Cluster(cluster)) = rig.answer(operator, 5) else {
        panic!("{:?}", rig.actions);
    };
    let queue = &cluster.jobs[0].queues[0];
    assert_eq!((queue.name.as_str(), queue.is_over), ("train", true));
    assert_eq!(queue.counters, counters);
}

/// A request waits for as long as it asks, and no longer; a task that is taken back meanwhile ends the wait.
#[test]
fn waiting_requests_are_answered_in_time() {
    let mut rig = Rig::new(1, 2, LostWorker::GoOn, true);
    rig.server(0);
    let workers = [rig.worker(0), rig.worker(1)];
    rig.open(workers[0], 5);
    let task = rig.given(workers[0]);
    assert_eq!(rig.take(workers[1], 700), None);
    let deadline = rig.state.next_deadline().unwrap();
    assert_eq!(deadline, Duration::from_millis(700));
    rig.now = deadline;
    rig.state.tick(rig.now);
    rig.actions.extend(rig.state.take_actions());
    assert_eq!(rig.task_answer(workers[1]), Some(TaskAnswer::Wait));
    assert_eq!(rig.take(workers[1], 90_000), None);
    rig.now = rig.state.next_deadline().unwrap();
    assert_eq!(
        rig.now,
        Duration::from_secs(60),
        "the time of the task is over"
    );
    rig.state.tick(rig.now);
    rig.actions.extend(rig.state.take_actions());
    let Some(TaskAnswer::Task(again)) = rig.task_answer(workers[1]) else {
        panic!("{:?}", rig.actions);
    };
    assert_eq!(again.number, task.number);
    assert_eq!(rig.done(workers[0], &task), counted(false), "late");
}

/// A server that cannot apply a finished task has lost acknowledged pushes: the job fails, and all that wait are
/// refused.
#[test]
fn tasks_that_cannot_be_applied_fail_the_job() {
    let mut rig = Rig::new(1, 2, LostWorker::GoOn, true);
    let server = rig.server(0);
    let workers = [rig.worker(0), rig.worker(1)];
    rig.open(workers[0], 5);
    let task = rig.given(workers[0]);
    assert_eq!(rig.take(workers[1], 90_000), None);
    assert_eq!(rig.done(workers[0], &task), None);
    let failed = Refusal::new(RefusalCode::PeerFailed, [0; 4]).with_text("no memory");
    rig.obey(server, &CommandReply::Refused(failed.clone()));
    for worker in workers {
        assert_eq!(rig.refusal(worker, 9), failed);
    }
}

/// Definitions that differ are refused, and so are queues that do not exist.
#[test]
fn queues_of_other_definitions_are_refused() {
    let mut rig = Rig::new(1, 1, LostWorker::GoOn, true);
    rig.server(0);
    let worker = rig.worker(0);
    let (name, shards_none) = (spec(), None);
    let ask = TaskRequest::Open {
        spec: name,
        shards: shards_none,
    };
    assert_eq!(rig.task(worker, ask), Some(TaskAnswer::Queue(None)));
    rig.open(worker, 7);
    let other = QueueSpec {
        task_size: 6,
        ..spec()
    };
    let shards = shards(7);
    rig.ask(
        worker,
        9,
        Ask::Tasks(TaskRequest::Open {
            spec: other,
            shards,
        }),
    );
    let refusal = rig.refusal(worker, 9);
    assert!(refusal.text.contains("task size"), "{refusal}");
    let queue = 7;
    rig.ask(worker, 9, Ask::Tasks(TaskRequest::Status { queue }));
    assert!(
        rig.refusal(worker, 9)
            .text
            .contains("no queue has number 7")
    );
    let (delivery, reason) = (rig.given(worker).delivery, "gone".to_owned());
    let queue = QUEUE;
    let failed = TaskRequest::Failed {
        queue,
        delivery,
        reason,
    };
    assert_eq!(rig.task(worker, failed), counted(true));
    let Some(TaskAnswer::Over(status)) = rig.task(worker, TaskRequest::Status { queue }) else {
        panic!("{:?}", rig.actions);
    };
    assert_eq!(status.left_out[0].reason, "gone");
}

// (long: one model of a queue and its cases.)

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use tidewater_protocol::limits::WORKER_THREADS_MAX;
use tidewater_protocol::wire::control::{QueueSpec, Task, TaskKind, TaskShard, TaskUnit};

use crate::order::{Cuts, order};
use crate::reports::{DONE_KEPT, FAILED_KEPT, Reports};
use crate::{
    Done, DoneReport, Queue, QueueCall, QueueError, Queues, Released, Report, Taken, WorkerKey,
};

fn spec(task_size: u64) -> QueueSpec {
    QueueSpec {
        name: "train".into(),
        kind: TaskKind::Train,
        source: "data".into(),
        task_size,
        epochs: 1,
        strict_epochs: false,
        seed: Some(1),
        finals: Vec::new(),
        failures_max: 3,
        timeout_ms: 300_000,
        timeout_factor: 10,
        straggler_ms: 5_000,
        straggler_factor: 2,
        losses_max: 1000,
        held_max: 0,
        steps_max: 0,
        records: None,
        record_seed: None,
    }
}

fn shards(sizes: &[u64]) -> Vec<TaskShard> {
    let shard = |(n, &end): (usize, &u64)| TaskShard {
        path: format!("part-{n}"),
        first: 0,
        end,
        unit: TaskUnit::Records,
    };
    sizes.iter().enumerate().map(shard).collect()
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The report of thread 0 that a task is finished.
fn report(task: &Task, records: u64, pushed: bool) -> DoneReport {
    DoneReport {
        delivery: task.delivery,
        thread: 0,
        records,
        pushed,
    }
}

/// A queue with a number for each delivery.
struct Desk {
    queue: Queue,
    given: u64,
}

impl Desk {
    fn new(spec: QueueSpec, sizes: &[u64]) -> Self {
        Self {
            queue: Queue::new(spec, shards(sizes)),
            given: 0,
        }
    }

    fn take(&mut self, now: Duration, worker: WorkerKey) -> Option<Task> {
        self.given += 1;
        match self.queue.take(now, worker, self.given) {
            Taken::Task(task) => Some(*task),
            Taken::Wait | Taken::Over => None,
        }
    }

    fn finish(&mut self, now: Duration, worker: WorkerKey, task: &Task) -> Done {
        self.queue
            .done(now, worker, report(task, task.shard.size(), false))
    }
}

proptest! {
    // Runs with a mutant leave no file.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The tasks of a pass are the shards, each record once, in every order and for every size.
    #[test]
    fn cuts_are_the_shards(
        sizes in proptest::collection::vec(0u64..40, 0..12),
        size in 1u64..17,
        seed in any::<Option<u64>>(),
    ) {
        let cuts = Cuts::new(shards(&sizes), size);
        let mut seen = BTreeSet::new();
        let tasks = cuts.tasks() as u32;
        for place in order(tasks, seed, 3) {
            let shard = cuts.shard(place.into()).unwrap();
            prop_assert!((1..=size).contains(&shard.size()));
            for record in shard.first..shard.end {
                prop_assert!(seen.insert((shard.path.clone(), record)), "twice");
            }
        }
        prop_assert_eq!(seen.len() as u64, sizes.iter().sum::<u64>());
        prop_assert_eq!(cuts.shard(tasks.into()), None);
    }

    /// Workers take, finish, fail, are lost, and come late in any order, over two passes. Every task is
    /// finished once or left out after three failures of its own; a loss costs no try.
    #[test]
    fn tasks_finish_once_or_are_left_out(
        steps in proptest::collection::vec((0u8..9, 0u64..5, 0u64..40), 0..400),
        strict in any::<bool>(),
    ) {
        let spec = QueueSpec {
            epochs: 2,
            strict_epochs: strict,
            finals: vec![TaskKind::Save, TaskKind::End],
            straggler_ms: 1_000,
            timeout_ms: 60_000,
            ..spec(4)
        };
        let mut desk = Desk::new(spec, &[10, 0, 7]);
        let mut model = Model::default();
        let mut now = Duration::ZERO;
        for (step, worker, time) in steps {
            now += Duration::from_millis(time * 100);
            model.step(&mut desk, now, (step, worker))?;
        }
        // A worker without faults ends it.
        for task in std::mem::take(&mut model.applying) {
            desk.queue.settle(task.delivery);
            model.finished(&task)?;
        }
        for worker in 0..5 {
            desk.queue.release(worker, true);
            model.held.retain(|_, (_, holder)| *holder != worker);
        }
        while let Some(task) = desk.take(now, 9) {
            let done = desk.finish(now, 9, &task);
            prop_assert_eq!(done, Done::Finished);
            model.finished(&task)?;
        }
        prop_assert!(desk.queue.is_over());
        model.check(&desk.queue)?;
    }
}

/// What the tasks of a queue have come to.
#[derive(Default)]
struct Model {
    /// Deliveries with their task and worker.
    held: BTreeMap<u64, (Task, WorkerKey)>,
    applying: Vec<Task>,
    finished: BTreeMap<u64, Task>,
    failures: BTreeMap<u64, u32>,
    left_out: BTreeSet<u64>,
}

impl Model {
    fn given(&mut self, task: &Task, worker: WorkerKey) {
        self.held.insert(task.delivery, (task.clone(), worker));
    }

    fn finished(&mut self, task: &Task) -> Result<(), TestCaseError> {
        let before = self.finished.insert(task.number, task.clone());
        prop_assert!(before.is_none(), "task {} is finished twice", task.number);
        prop_assert!(!self.left_out.contains(&task.number));
        Ok(())
    }

    fn step(
        &mut self,
        desk: &mut Desk,
        now: Duration,
        (step, worker): (u8, WorkerKey),
    ) -> Result<(), TestCaseError> {
        let own = self.held.values().find(|(_, holder)| *holder == worker);
        let own = own.map(|(task, _)| task.clone());
        match (step, own) {
            (0..=3, _) => {
                if let Some(task) = desk.take(now, worker) {
                    prop_assert!(!self.finished.contains_key(&task.number));
                    prop_assert!(!self.left_out.contains(&task.number));
                    let failed = self.failures.get(&task.number).copied();
                    prop_assert_eq!(task.failures, failed.unwrap_or_default());
                    self.given(&task, worker);
                }
            }
            (4 | 5, Some(task)) => {
                self.held.remove(&task.delivery);
                let (records, pushed) = (task.shard.size(), step == 5);
                let report = report(&task, records, pushed);
                let done = desk.queue.done(now, worker, report);
                let counters = desk.queue.counters();
                prop_assert_eq!(desk.queue.done(now, worker, report), done, "repeated");
                prop_assert_eq!(desk.queue.counters(), counters);
                match done {
                    Done::Finished => self.finished(&task)?,
                    Done::Apply => self.applying.push(task),
                    Done::Late => {}
                }
            }
            (6, Some(task)) => {
                self.held.remove(&task.delivery);
                let report = desk.queue.failed(now, worker, task.delivery, "why");
                let counters = desk.queue.counters();
                let again = desk.queue.failed(now, worker, task.delivery, "why");
                let counted = report != Report::Late;
                prop_assert_eq!(again, Report::Repeated { counted });
                prop_assert_eq!(desk.queue.counters(), counters);
                match report {
                    Report::Late => {}
                    report => {
                        let failures = self.failures.entry(task.number).or_default();
                        *failures += 1;
                        if let Report::LeftOut(left_out) = report {
                            prop_assert!(*failures >= 3);
                            prop_assert_eq!(left_out.shard, task.shard);
                            self.left_out.insert(task.number);
                        }
                    }
                }
            }
            (7, _) => {
                desk.queue.release(worker, true);
                self.held.retain(|_, (_, holder)| *holder != worker);
            }
            _ => {
                // The report of a task that is being applied stands, whatever becomes of its worker.
                if let Some(task) = self.applying.pop() {
                    desk.queue.settle(task.delivery);
                    self.finished(&task)?;
                }
            }
        }
        if step == 8 {
            // A coordinator that starts again has the same queue.
            let bytes = postcard::to_stdvec(&desk.queue).unwrap();
            let again: Queue = postcard::from_bytes(&bytes).unwrap();
            prop_assert_eq!(postcard::to_stdvec(&again).unwrap(), bytes);
            desk.queue = again;
        }
        Ok(())
    }

    fn check(&self, queue: &Queue) -> Result<(), TestCaseError> {
        let status = queue.status();
        let with_records = |task: &&Task| task.kind == TaskKind::Train;
        let trained = self.finished.values().filter(with_records);
        let records: u64 = trained.map(|task| task.shard.size()).sum();
        let left_out: u64 = status.left_out.iter().map(|task| task.shard.size()).sum();
        prop_assert_eq!(records + left_out, 34, "two passes over 17 records");
        prop_assert_eq!(status.counters.records, records);
        prop_assert_eq!(status.counters.left_out as usize, self.left_out.len());
        let all = self.finished.len() + self.left_out.len();
        prop_assert_eq!(all, 12, "five tasks of each pass, and two final ones");
        Ok(())
    }
}

/// A repeated report has the result of the first one, also after its task is settled, and changes no counter. So it
/// is in a queue of which the calls were replayed. A report of another delivery, thread or worker is no repetition.
#[test]
fn repeated_reports_get_first_answers() {
    let (queue, mut calls) = (0, Vec::new());
    let mut queues = Queues::default();
    let mut call = |queues: &mut Queues, call: QueueCall| {
        calls.push(call.clone());
        queues.replay(call).unwrap();
    };
    let (spec, shards) = (spec(4), shards(&[16]));
    call(&mut queues, QueueCall::Open { spec, shards });
    for delivery in 1..=4 {
        let (now, worker) = (at(0), 1);
        let take = QueueCall::Take {
            queue,
            now,
            worker,
            delivery,
        };
        call(&mut queues, take);
    }
    let report = |delivery, thread| DoneReport {
        delivery,
        thread,
        records: 4,
        pushed: true,
    };
    let (now, worker) = (at(1), 1);
    // Thread 0 has two handles of the queue.
    for report in [report(1, 0), report(2, 1), report(9, 2), report(4, 0)] {
        let done = QueueCall::Done {
            queue,
            now,
            worker,
            report,
        };
        call(&mut queues, done);
    }
    for delivery in [1, 2, 4] {
        call(&mut queues, QueueCall::Settle { queue, delivery });
    }
    let failed = QueueCall::Failed {
        queue,
        now,
        worker,
        delivery: 3,
        reason: "why".into(),
    };
    call(&mut queues, failed);
    let mut replayed = Queues::default();
    for call in calls {
        replayed.replay(call).unwrap();
    }
    for queues in [&mut queues, &mut replayed] {
        let queue = queues.get(queue).unwrap();
        let before = queue.counters();
        assert_eq!((before.finished, before.late, before.failures), (3, 1, 1));
        for _ in 0..2 {
            assert_eq!(queue.done(at(2), 1, report(1, 0)), Done::Finished);
            assert_eq!(queue.done(at(2), 1, report(4, 0)), Done::Finished);
            assert_eq!(queue.done(at(2), 1, report(2, 1)), Done::Finished);
            assert_eq!(queue.done(at(2), 1, report(9, 2)), Done::Late);
            let again = queue.failed(at(2), 1, 3, "why");
            assert_eq!(again, Report::Repeated { counted: true });
        }
        assert_eq!(queue.counters(), before);
        assert_eq!(queue.done(at(2), 2, report(1, 0)), Done::Late, "worker 2");
        assert_eq!(queue.done(at(2), 1, report(1, 3)), Done::Late, "thread 3");
        assert_eq!(queue.failed(at(2), 1, 1, "why"), Report::Late, "it is done");
        assert_eq!(queue.counters().late, before.late + 3);
    }
}

/// What is kept of reports is bounded: by the threads of a worker, and by the last tasks of each and the last failed
/// ones.
#[test]
fn kept_reports_are_bounded() {
    let mut reports = Reports::default();
    for n in 0..2_000_u32 {
        reports.add_done(1, n, n.into(), true);
        reports.add_failed(1, n.into(), true);
    }
    let threads = (0..2_000).filter(|&n| reports.done(1, n, n.into()).is_some());
    assert_eq!(threads.count(), WORKER_THREADS_MAX as usize);
    for n in 0..100 {
        reports.add_done(2, 0, n, n % 2 == 0);
    }
    let last: Vec<_> = (0..100).filter_map(|n| reports.done(2, 0, n)).collect();
    assert_eq!(last, [true, false].repeat(DONE_KEPT / 2));
    let failed = (0..2_000).filter(|&n| reports.failed(1, n).is_some());
    let failed: Vec<u64> = failed.collect();
    assert_eq!(
        failed,
        (2_000 - FAILED_KEPT as u64..2_000).collect::<Vec<_>>()
    );
}

/// What the model leaves to do is settled before the end.
#[test]
fn waiting_tasks_hold_the_end() {
    let mut desk = Desk::new(spec(4), &[4]);
    let task = desk.take(at(0), 1).unwrap();
    assert_eq!(desk.queue.take(at(0), 2, 99), Taken::Wait);
    let done = desk.queue.done(at(1), 1, report(&task, 4, true));
    assert_eq!(done, Done::Apply);
    let released = desk.queue.release(1, true);
    assert_eq!(
        released,
        Released::default(),
        "its pushes are being applied"
    );
    assert_eq!(desk.queue.take(at(900), 2, 100), Taken::Wait);
    assert_eq!(desk.queue.applying().collect::<Vec<_>>(), [(1, 1)]);
    let again = desk.queue.done(at(2), 1, report(&task, 4, true));
    assert_eq!(again, Done::Apply, "the same report");
    desk.queue.settle(task.delivery);
    assert_eq!(desk.queue.take(at(901), 2, 101), Taken::Over);
    assert_eq!(desk.queue.status().counters.finished, 1);
}

/// Ten workers are lost with a task, which keeps its three tries: only failures of its own count.
#[test]
fn lost_workers_cost_no_try() {
    let mut desk = Desk::new(spec(4), &[4]);
    for worker in 0..10 {
        let task = desk.take(at(worker), worker).unwrap();
        assert_eq!((task.number, task.failures), (0, 0));
        assert_eq!(desk.queue.release(worker, true).taken_back, 1);
        assert_eq!(desk.finish(at(worker), worker, &task), Done::Late);
    }
    for worker in 10..12 {
        let task = desk.take(at(worker), worker).unwrap();
        let report = desk.queue.failed(at(worker), worker, task.delivery, "bad");
        assert_eq!(report, Report::Again);
    }
    let task = desk.take(at(12), 12).unwrap();
    assert_eq!(task.failures, 2);
    let report = desk
        .queue
        .failed(at(12), 12, task.delivery, "part-0 is gone");
    let Report::LeftOut(left_out) = report else {
        panic!("{report:?}");
    };
    assert_eq!(left_out.reason, "part-0 is gone");
    assert_eq!(left_out.shard.path, "part-0");
    assert!(desk.queue.is_over());
    let counters = desk.queue.status().counters;
    assert_eq!((counters.left_out, counters.recovered), (1, 10));
    assert_eq!((counters.failures, counters.late), (3, 10));
}

/// A task that three workers are lost with is left out by its name. Its last try is that of a worker without other
/// tasks, so that no other task is left out with it; workers that leave or hang cost it nothing.
#[test]
fn deadly_task_is_left_out_alone() {
    let spec = QueueSpec {
        losses_max: 3,
        seed: None,
        ..spec(1)
    };
    let mut desk = Desk::new(spec, &[6]);
    let deadly = desk.take(at(0), 0).unwrap();
    desk.queue.release(0, false);
    let mut held = Vec::new();
    for worker in 0..2 {
        let tasks = [0, 1].map(|_| desk.take(at(0), worker).unwrap());
        assert_eq!(tasks[0].number, deadly.number, "it comes first");
        held.push(desk.take(at(0), 7 + worker).unwrap());
        let released = desk.queue.release(worker, true);
        assert_eq!(released.taken_back, 2);
        assert_eq!(released.left_out, []);
    }
    // Workers 7 and 8 have a task each: they get no other one before the deadly one is taken.
    assert_eq!(desk.take(at(0), 7), None);
    assert_eq!(desk.finish(at(0), 7, &held[0]), Done::Finished);
    let last = desk.take(at(0), 7).unwrap();
    assert_eq!(last.number, deadly.number);
    assert_eq!(desk.take(at(0), 7), None, "it has this one alone");
    assert_eq!(desk.finish(at(0), 8, &held[1]), Done::Finished);
    let other = desk.take(at(0), 8).unwrap();
    assert_ne!(other.number, deadly.number);
    let released = desk.queue.release(7, true);
    assert_eq!(released.left_out.len(), 1);
    let left_out = &released.left_out[0];
    assert_eq!(left_out.number, deadly.number);
    assert_eq!(left_out.shard, deadly.shard);
    assert!(
        left_out.reason.starts_with("3 workers were lost"),
        "{left_out:?}"
    );
    assert_eq!(desk.finish(at(0), 8, &other), Done::Finished);
    while let Some(task) = desk.take(at(0), 8) {
        assert_ne!(task.number, deadly.number);
        assert_eq!(desk.finish(at(0), 8, &task), Done::Finished);
    }
    assert!(desk.queue.is_over());
    let counters = desk.queue.status().counters;
    assert_eq!((counters.finished, counters.left_out), (5, 1));
}

/// A worker waits while it has as many tasks as it may; reports make room, at once also where pushes are applied.
#[test]
fn worker_waits_at_its_limit_of_tasks() {
    let spec = QueueSpec {
        held_max: 2,
        ..spec(1)
    };
    let mut desk = Desk::new(spec, &[6]);
    let tasks = [0, 1].map(|_| desk.take(at(0), 1).unwrap());
    assert_eq!(desk.queue.take(at(0), 1, 50), Taken::Wait);
    assert!(desk.take(at(0), 2).is_some(), "the limit is of each worker");
    let done = desk.queue.done(at(0), 1, report(&tasks[0], 1, true));
    assert_eq!(done, Done::Apply);
    assert!(desk.take(at(0), 1).is_some());
    assert_eq!(desk.take(at(0), 1), None);
    desk.queue.release(1, true);
    assert!(desk.take(at(0), 1).is_some(), "another process of the rank");
}

/// A limit of steps is met exactly, also where tasks are left out; final tasks follow.
#[test]
fn steps_end_at_their_limit() {
    let spec = QueueSpec {
        epochs: 0,
        steps_max: 7,
        failures_max: 1,
        finals: vec![TaskKind::End],
        ..spec(1)
    };
    let mut desk = Desk::new(spec, &[4]);
    let held: Vec<Task> = (0..7).map(|_| desk.take(at(0), 1).unwrap()).collect();
    assert_eq!(desk.take(at(0), 1), None, "seven are under way");
    desk.queue.failed(at(0), 1, held[0].delivery, "bad");
    let other = desk.take(at(0), 1).unwrap();
    for task in held.iter().skip(1).chain([&other]) {
        assert_eq!(desk.queue.status().counters.left_out, 1);
        assert_eq!(task.kind, TaskKind::Train);
        assert_eq!(desk.finish(at(0), 1, task), Done::Finished);
    }
    let end = desk.take(at(0), 1).unwrap();
    assert_eq!(end.kind, TaskKind::End);
    assert_eq!(desk.finish(at(0), 1, &end), Done::Finished);
    assert!(desk.queue.is_over());
    assert_eq!(desk.queue.take(at(0), 1, 99), Taken::Over);
    assert_eq!(desk.queue.status().counters.finished, 8);
}

/// A task counts as slow by the times of the others. Two workers have it then, and the first one counts.
#[test]
fn stragglers_are_given_twice_and_count_once() {
    let mut desk = Desk::new(spec(1), &[12]);
    let slow = desk.take(at(0), 0).unwrap();
    assert_eq!(
        desk.queue.next_deadline(),
        Some(at(300)),
        "no times are known"
    );
    for n in 0..11 {
        let task = desk.take(at(n * 4), 1).unwrap();
        assert_eq!(desk.finish(at(n * 4 + 4), 1, &task), Done::Finished);
    }
    // The median is 4 s, so that a straggler takes 8.
    assert_eq!(desk.queue.next_deadline(), Some(at(8)));
    assert_eq!(desk.queue.next_timeout(), Some(at(300)));
    assert_eq!(desk.take(at(44), 0), None, "it has this task itself");
    let again = desk.take(at(44), 2).unwrap();
    assert_eq!(again.number, slow.number);
    assert_eq!(desk.take(at(99), 3), None, "two have it");
    assert_eq!(desk.finish(at(50), 2, &again), Done::Finished);
    assert_eq!(desk.finish(at(51), 0, &slow), Done::Late);
    let counters = desk.queue.status().counters;
    assert_eq!((counters.finished, counters.stragglers), (12, 1));
}

/// A task that takes ten times the median, and at least the shortest time, is taken back.
#[test]
fn hung_tasks_are_taken_back_by_history() {
    let mut desk = Desk::new(
        QueueSpec {
            timeout_ms: 1_000,
            straggler_ms: 1 << 40,
            ..spec(1)
        },
        &[12],
    );
    let hung = desk.take(at(0), 0).unwrap();
    for n in 0..11 {
        let task = desk.take(Duration::from_millis(n), 1).unwrap();
        let end = Duration::from_millis(n + 500);
        assert_eq!(desk.finish(end, 1, &task), Done::Finished);
    }
    assert_eq!(desk.queue.next_timeout(), Some(at(5)), "ten times 500 ms");
    assert_eq!(desk.take(Duration::from_millis(4_999), 1), None);
    let again = desk.take(at(5), 1).unwrap();
    assert_eq!((again.number, again.failures), (hung.number, 0));
    assert_eq!(desk.finish(at(6), 0, &hung), Done::Late);
    assert_eq!(desk.finish(at(6), 1, &again), Done::Finished);
    assert_eq!(desk.queue.status().counters.timeouts, 1);
}

/// Passes overlap unless the definition forbids it; each has its own order, which the seed fixes.
#[test]
fn passes_begin_when_they_are_asked_for() {
    for strict in [false, true] {
        let spec = QueueSpec {
            epochs: 0,
            strict_epochs: strict,
            ..spec(1)
        };
        let mut desk = Desk::new(spec, &[20]);
        let pass = |desk: &mut Desk, keep: usize| -> Vec<Task> {
            let tasks = (0..20).map(|_| desk.take(at(0), 1).unwrap());
            let tasks: Vec<Task> = tasks.collect();
            for task in tasks.iter().skip(keep) {
                assert_eq!(desk.finish(at(0), 1, task), Done::Finished);
            }
            tasks
        };
        let first = pass(&mut desk, 1);
        assert_eq!(desk.queue.status().counters.epochs, 1, "lazily");
        let next = desk.take(at(0), 1);
        assert_eq!(next.is_none(), strict);
        assert_eq!(desk.finish(at(0), 1, &first[0]), Done::Finished);
        let next = next.or_else(|| desk.take(at(0), 1)).unwrap();
        assert_eq!((next.epoch, next.number), (1, 20));
        let firsts: Vec<u64> = first.iter().map(|task| task.shard.first).collect();
        assert_ne!(firsts, (0..20).collect::<Vec<_>>(), "shuffled");
    }
    assert_eq!(order(20, Some(1), 0), order(20, Some(1), 0));
    assert_ne!(order(20, Some(1), 0), order(20, Some(1), 1));
    assert_ne!(order(20, Some(1), 0), order(20, Some(2), 0));
    assert_eq!(order(3, None, 7), [0, 1, 2]);
}

/// Final tasks follow one after another when all others are finished; a lost one is given again.
#[test]
fn final_tasks_come_last() {
    let spec = QueueSpec {
        finals: vec![TaskKind::Save, TaskKind::End],
        ..spec(4)
    };
    let mut desk = Desk::new(spec, &[4]);
    let task = desk.take(at(0), 1).unwrap();
    assert_eq!(desk.take(at(0), 2), None);
    assert_eq!(desk.finish(at(1), 1, &task), Done::Finished);
    let save = desk.take(at(1), 1).unwrap();
    assert_eq!((save.kind, save.shard.size()), (TaskKind::Save, 0));
    assert_eq!(desk.take(at(1), 2), None, "the end comes after the save");
    desk.queue.release(1, true);
    let save = desk.take(at(2), 2).unwrap();
    assert_eq!(save.kind, TaskKind::Save);
    assert_eq!(desk.finish(at(2), 2, &save), Done::Finished);
    let end = desk.take(at(2), 2).unwrap();
    assert_eq!(end.kind, TaskKind::End);
    assert!(!desk.queue.is_over());
    assert_eq!(desk.finish(at(3), 2, &end), Done::Finished);
    assert!(desk.queue.is_over());
}

/// Workers open a queue by its definition. The shards of the first one count.
#[test]
fn queues_are_opened_by_equal_definitions() {
    let mut queues = Queues::default();
    assert_eq!(queues.open(&spec(4), None), Ok(None));
    assert_eq!(queues.open(&spec(4), Some(shards(&[9]))), Ok(Some(0)));
    assert_eq!(queues.open(&spec(4), None), Ok(Some(0)));
    assert_eq!(queues.open(&spec(4), Some(shards(&[1]))), Ok(Some(0)));
    assert_eq!(queues.get(0).unwrap().tasks(), 3);
    let differs = queues.open(&spec(5), None).unwrap_err();
    assert!(differs.to_string().contains("task size"), "{differs}");
    assert_eq!(
        queues.get(1).map(|_| ()),
        Err(QueueError::Unknown { queue: 1 })
    );
    let named = |n: u32, size| QueueSpec {
        name: format!("q{n}"),
        ..spec(size)
    };
    let mut later = Queues::after(&queues);
    let unknown = Err(QueueError::Unknown { queue: 0 });
    assert_eq!(later.get(0).map(|_| ()), unknown, "that of before");
    assert_eq!(later.open(&spec(4), Some(shards(&[9]))), Ok(Some(1)));
    assert!(later.get(1).is_ok() && later.find(0).is_none() && later.find(1).is_some());
    let huge = queues.open(&named(0, 1), Some(shards(&[u64::MAX, u64::MAX])));
    assert!(
        matches!(huge, Err(QueueError::TooManyTasks { .. })),
        "{huge:?}"
    );
    for n in 1..64 {
        assert_eq!(queues.open(&named(n, 1), Some(Vec::new())), Ok(Some(n)));
    }
    let many = queues.open(&named(64, 1), Some(Vec::new()));
    assert!(matches!(many, Err(QueueError::TooMany { .. })), "{many:?}");
    assert_eq!(
        queues.get(1).unwrap().take(at(0), 1, 1),
        Taken::Over,
        "no data"
    );
}

/// 64 workers take 10^5 tasks in any order: each is delivered once.
#[test]
fn many_workers_get_each_task_once() {
    let mut desk = Desk::new(spec(10), &[1_000_000]);
    let mut held: Vec<Option<Task>> = vec![None; 64];
    let mut seen = vec![false; 1_000_000];
    let mut turn = 1u64;
    while held.iter().any(Option::is_some) || !desk.queue.is_over() {
        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let worker = turn >> 58;
        let place = &mut held[worker as usize];
        match place.take() {
            None => *place = desk.take(Duration::ZERO, worker),
            Some(task) => {
                for record in task.shard.first..task.shard.end {
                    let before = std::mem::replace(&mut seen[record as usize], true);
                    assert!(!before, "record {record} twice");
                }
                assert_eq!(desk.finish(Duration::ZERO, worker, &task), Done::Finished);
            }
        }
    }
    assert!(seen.iter().all(|seen| *seen));
    let counters = desk.queue.status().counters;
    assert_eq!((counters.given, counters.finished), (100_000, 100_000));
}

//! Restarts of the coordinator with its journal: nothing is carried out twice, and nothing is forgotten. (long: one rig.)

use super::super::membership::Schedule;
mod checkpoints;
mod ranks;
mod successors;
mod tasks;

use super::super::recovery::RETURN_GRACE;
use super::super::serve::{Listening, ServeConfig};
use super::*;
use tidewater_journal::{Image, Journal};
use tidewater_protocol::ids::ServerId;
use tidewater_protocol::wire::handshake::JobToken;

/// A rig with a journal in memory.
struct Durable {
    rig: Rig,
    journal: Image,
    start: u64,
    config: CoordinatorConfig,
}

impl Durable {
    fn new(servers: u32, workers: u32, on_lost: LostWorker, lifetime: Lifetime) -> Self {
        let config = CoordinatorConfig {
            servers,
            workers,
            on_lost,
            lifetime,
        };
        let mut durable = Self {
            rig: Rig::with(config.clone()),
            journal: Image::default(),
            start: 0,
            config,
        };
        durable.restart();
        durable
    }

    /// Journals what has happened: from here on the actions may leave.
    fn sync(&mut self) {
        let changes = self.rig.state.take_changes();
        for change in changes {
            self.journal.apply(change).unwrap();
        }
    }

    /// Kills the coordinator, with all actions that have not been looked at, and starts it again. The journal
    /// passes through its text.
    fn restart(&mut self) {
        self.start += 1;
        let text = serde_json::to_vec(&self.journal).unwrap();
        self.journal = serde_json::from_slice(&text).unwrap();
        self.journal.restart();
        let config = self.config.clone();
        self.rig.state =
            Coordinator::resume(config, self.journal.clone(), self.start, RETURN_GRACE);
        self.rig.now = Duration::ZERO;
        self.rig.actions.clear();
    }

    fn join(role: Role, rank: u32, process: u64) -> Ask {
        let mut join = Rig::join(role, rank);
        join.incarnation = Incarnation(process);
        Ask::Join(join)
    }

    /// A process connects and joins under request number `id`.
    fn enter(&mut self, role: Role, rank: u32, process: u64, id: u64) -> PeerId {
        let namespace = if role == Role::Server { "ops" } else { "job" };
        let peer = self.rig.connects(role, rank, namespace).unwrap();
        self.rig.ask(peer, id, Self::join(role, rank, process));
        self.sync();
        peer
    }

    fn joined(&mut self, role: Role, rank: u32, process: u64, id: u64) -> PeerId {
        let peer = self.enter(role, rank, process, id);
        let answer = self.rig.answer(peer, id);
        assert!(matches!(answer, Some(Answer::Joined(_))), "{answer:?}");
        peer
    }

    /// A job of two workers and one server with a table "a"; returns the peers: server, workers.
    fn with_table() -> (Self, PeerId, [PeerId; 2]) {
        let mut durable = Self::new(1, 2, LostWorker::FailJob, Lifetime::OneJob);
        let server = durable.joined(Role::Server, 0, 70, 1);
        let workers =
            [0, 1].map(|rank| durable.joined(Role::Worker, rank, 80 + u64::from(rank), 1));
        durable.rig.ask(workers[0], 2, Ask::CreateTable(spec("a")));
        durable.rig.obey(server, &CommandReply::Done);
        durable.sync();
        let made = durable.rig.answer(workers[0], 2);
        assert!(matches!(made, Some(Answer::Table(_))), "{made:?}");
        (durable, server, workers)
    }

    /// All processes of [`Self::with_table`] return.
    fn all_return(&mut self) -> (PeerId, [PeerId; 2]) {
        let server = self.joined(Role::Server, 0, 70, 9);
        let workers = [0, 1].map(|rank| self.joined(Role::Worker, rank, 80 + u64::from(rank), 9));
        (server, workers)
    }
}

fn barrier(name: &str) -> Ask {
    Ask::Barrier {
        name: name.into(),
        count: 2,
        timeout_ms: 60_000,
    }
}

#[test]
fn restart_keeps_tables_members_and_epoch() {
    let (mut durable, ..) = Durable::with_table();
    let (epoch, before) = (durable.rig.state.epoch(), durable.journal.clone());
    durable.restart();
    let (server, workers) = durable.all_return();
    assert_eq!(durable.rig.state.epoch(), epoch, "no server has changed");
    assert_eq!(durable.journal.tables, before.tables);
    assert_eq!(durable.journal.workers, before.workers);
    assert_eq!(durable.journal.servers, before.servers);
    durable
        .rig
        .ask(workers[1], 10, Ask::OpenTable { name: "a".into() });
    let opened = durable.rig.answer(workers[1], 10);
    assert!(matches!(opened, Some(Answer::Table(_))), "{opened:?}");
    let orders = durable.rig.orders(server);
    let is_creation = |order: &(u64, Command)| matches!(order.1, Command::CreateTable { .. });
    assert!(!orders.iter().any(is_creation), "{orders:?}");
    assert!(
        orders.iter().all(|(id, _)| *id > 1 << 40),
        "of this start: {orders:?}"
    );
}

/// The barrier has opened, and one of the answers was lost with the coordinator. The worker that repeats its
/// request passes, and does not arrive at the next barrier of the name, where the other one waits.
#[test]
fn opened_barrier_is_not_entered_again() {
    let (mut durable, _, workers) = Durable::with_table();
    for worker in workers {
        durable.rig.ask(worker, 3, barrier("x"));
    }
    durable.sync();
    assert_eq!(durable.rig.answer(workers[0], 3), Some(Answer::Done));
    durable.restart();
    let (_, workers) = durable.all_return();
    durable.rig.ask(workers[0], 10, barrier("x"));
    durable.rig.ask(workers[1], 3, barrier("x"));
    assert_eq!(durable.rig.answer(workers[1], 3), Some(Answer::Done));
    assert_eq!(durable.rig.answer(workers[0], 10), None, "one has arrived");
    durable.rig.ask(workers[1], 10, barrier("x"));
    assert_eq!(durable.rig.answer(workers[0], 10), Some(Answer::Done));
}

/// Workers that waited at a barrier arrive again. One that does not return is named at the deadline.
#[test]
fn barrier_under_way_is_entered_again() {
    let (mut durable, _, workers) = Durable::with_table();
    durable.rig.ask(workers[0], 3, barrier("x"));
    durable.sync();
    durable.restart();
    let (_, workers) = durable.all_return();
    durable.rig.ask(workers[1], 3, barrier("x"));
    assert_eq!(
        durable.rig.answer(workers[1], 3),
        None,
        "rank 0 has not repeated it"
    );
    durable.rig.ask(workers[0], 3, barrier("x"));
    for worker in workers {
        assert_eq!(durable.rig.answer(worker, 3), Some(Answer::Done));
    }
}

/// The order to make a table was under way: it is given again when the server is back, with the same number.
#[test]
fn creation_under_way_is_ordered_again() {
    let (mut durable, server, workers) = Durable::with_table();
    let listed = TableSpec {
        partition_servers: Some(vec![ServerId(0); spec("b").partitions as usize]),
        ..spec("b")
    };
    durable
        .rig
        .ask(workers[0], 3, Ask::CreateTable(listed.clone()));
    durable.sync();
    let first = durable.rig.orders(server);
    durable.restart();
    let (server, workers) = durable.all_return();
    durable.rig.ask(workers[0], 3, Ask::CreateTable(listed));
    let is_creation = |order: &Command| matches!(order, Command::CreateTable { .. });
    let again = durable.rig.obey(server, &CommandReply::Done);
    let again: Vec<_> = again.into_iter().filter(is_creation).collect();
    assert_eq!(again, [first[0].1.clone()]);
    let made = durable.rig.answer(workers[0], 3);
    assert!(matches!(made, Some(Answer::Table(_))), "{made:?}");
}

/// A release, of which the answer is lost, is answered from the journal, and its table's number is not used
/// again.
#[test]
fn release_is_answered_once() {
    let (mut durable, server, workers) = Durable::with_table();
    durable
        .rig
        .ask(workers[0], 3, Ask::ReleaseTable { id: TableId(1) });
    durable.rig.obey(server, &CommandReply::Done);
    durable.sync();
    durable.restart();
    let (server, workers) = durable.all_return();
    durable
        .rig
        .ask(workers[0], 3, Ask::ReleaseTable { id: TableId(1) });
    assert_eq!(durable.rig.answer(workers[0], 3), Some(Answer::Done));
    durable.rig.orders(server);
    durable.rig.ask(workers[0], 10, Ask::CreateTable(spec("a")));
    let orders = durable.rig.orders(server);
    let [(_, Command::CreateTable { table, .. })] = &orders[..] else {
        panic!("{orders:?}")
    };
    assert_eq!(table.id, TableId(2));
}

/// The servers have released the table before the worker repeats its request: that one finds it done, and once
/// only.
#[test]
fn release_under_way_is_answered_to_its_worker() {
    let (mut durable, server, workers) = Durable::with_table();
    let release = || Ask::ReleaseTable { id: TableId(1) };
    durable.rig.ask(workers[0], 3, release());
    durable.sync();
    assert_eq!(durable.rig.orders(server).len(), 1);
    durable.restart();
    let server = durable.joined(Role::Server, 0, 70, 9);
    durable.rig.obey(server, &CommandReply::Done);
    durable.sync();
    let worker = durable.joined(Role::Worker, 0, 80, 9);
    durable.rig.ask(worker, 3, release());
    assert_eq!(durable.rig.answer(worker, 3), Some(Answer::Done));
    durable.sync();
    assert!(durable.journal.tables.is_empty());
    durable.rig.ask(worker, 10, release());
    assert_eq!(
        durable.rig.refusal(worker, 10).code,
        RefusalCode::UnknownTable
    );
}

/// A save is begun again, once the server is back: it waits for it instead of a refusal.
#[test]
fn save_under_way_is_begun_again() {
    let (mut durable, server, workers) = Durable::with_table();
    let save = || Ask::Save {
        dir: "/model".into(),
        clocks: Vec::new(),
    };
    durable.rig.ask(workers[0], 3, save());
    let (op, _) = durable.rig.file_task();
    durable.rig.file_done(op, Ok(FileDone::Begun));
    durable.sync();
    assert_eq!(durable.rig.orders(server).len(), 1);
    durable.restart();
    let worker = durable.joined(Role::Worker, 0, 80, 9);
    durable.rig.ask(worker, 3, save());
    assert_eq!(
        durable.rig.answer(worker, 3),
        None,
        "the server has not returned"
    );
    let server = durable.joined(Role::Server, 0, 70, 9);
    durable.rig.obey(server, &CommandReply::Done);
    let (op, task) = durable.rig.file_task();
    assert_eq!(task, FileTask::BeginSave("/model".into()));
    durable.rig.file_done(op, Ok(FileDone::Begun));
    let part = SavedPart {
        cut_ms: 0,
        file: "part".into(),
        rows: 3,
        bytes: 5,
        check: 7,
        clocks: Vec::new(),
        settings: Vec::new(),
    };
    durable.rig.obey(server, &CommandReply::Saved(part));
    durable.rig.file_task();
    durable.rig.file_done(op, Ok(FileDone::Committed));
    durable.sync();
    let saved = durable.rig.answer(worker, 3);
    assert!(
        matches!(saved, Some(Answer::Saved { rows: 3, .. })),
        "{saved:?}"
    );
    durable.restart();
    let worker = durable.joined(Role::Worker, 0, 80, 10);
    durable.rig.ask(worker, 3, save());
    assert_eq!(durable.rig.answer(worker, 3), saved, "of the journal");
}

/// A worker's Join was answered, and the answer is lost: the process is known by its incarnation, also on a
/// connection without a rank. Another process does not get the rank.
#[test]
fn lost_answer_to_join_keeps_the_rank() {
    let mut durable = Durable::new(1, 2, LostWorker::FailJob, Lifetime::OneJob);
    durable.joined(Role::Server, 0, 70, 1);
    durable.enter(Role::Worker, RANK_ANY, 80, 1);
    durable.restart();
    let other = durable.enter(Role::Worker, 0, 99, 1);
    assert_eq!(durable.rig.refusal(other, 1).code, RefusalCode::RankTaken);
    durable.rig.close(other);
    let again = durable.enter(Role::Worker, RANK_ANY, 80, 1);
    let Some(Answer::Joined(joined)) = durable.rig.answer(again, 1) else {
        panic!("{:?}", durable.rig.actions)
    };
    assert_eq!(joined.rank, 0);
    let second = durable.enter(Role::Worker, RANK_ANY, 81, 1);
    let Some(Answer::Joined(joined)) = durable.rig.answer(second, 1) else {
        panic!("{:?}", durable.rig.actions)
    };
    assert_eq!(joined.rank, 1, "the rank that was given meanwhile is free");
}

/// A connection that ends before its Join is not the loss of the worker that may return.
#[test]
fn attempt_to_return_may_fail() {
    let (mut durable, ..) = Durable::with_table();
    durable.restart();
    let attempt = durable.rig.connects(Role::Worker, 1, "job").unwrap();
    durable.rig.close(attempt);
    let (_, workers) = durable.all_return();
    assert!(durable.rig.notices(workers[0]).is_empty());
}

/// Processes that do not return within the grace period are lost, and the others learn which.
#[test]
fn absent_processes_are_lost_after_grace() {
    for absent_server in [false, true] {
        let (mut durable, ..) = Durable::with_table();
        durable.restart();
        if !absent_server {
            durable.joined(Role::Server, 0, 70, 9);
        }
        let worker = durable.joined(Role::Worker, 0, 80, 9);
        if absent_server {
            durable.joined(Role::Worker, 1, 81, 9);
        }
        assert_eq!(durable.rig.state.next_deadline(), Some(RETURN_GRACE));
        durable.rig.now = RETURN_GRACE - Duration::from_millis(1);
        durable.rig.ask(worker, 10, Ask::Members);
        assert!(durable.rig.notices(worker).is_empty());
        durable.rig.now = RETURN_GRACE;
        durable.rig.ask(worker, 11, Ask::Members);
        let notices = durable.rig.notices(worker);
        let Some(Notice::PeerFailed(refusal)) = notices.first() else {
            panic!("{notices:?}")
        };
        let lost = if absent_server {
            "server 0"
        } else {
            "worker 1"
        };
        assert!(refusal.text.starts_with(lost), "{refusal}");
        assert!(refusal.text.contains("has not returned"), "{refusal}");
    }
}

/// A server process that takes the place of one that was there before the restart has none of its rows.
#[test]
fn other_process_of_a_server_fails_the_job() {
    let (mut durable, ..) = Durable::with_table();
    durable.restart();
    let worker = durable.joined(Role::Worker, 0, 80, 9);
    let other = durable.enter(Role::Server, 0, 71, 1);
    assert_eq!(
        durable.rig.refusal(other, 1).code,
        RefusalCode::ShuttingDown
    );
    let notices = durable.rig.notices(worker);
    let Some(Notice::PeerFailed(refusal)) = notices.first() else {
        panic!("{notices:?}")
    };
    assert!(
        refusal.text.contains("another process has its number"),
        "{refusal}"
    );
}

/// Servers were being ordered to admit a worker: all of them get the same order again, before clocks go on.
#[test]
fn admission_under_way_is_ordered_again() {
    let mut durable = Durable::new(1, 0, LostWorker::GoOn, Lifetime::Service);
    let server = durable.joined(Role::Server, 0, 70, 1);
    durable.enter(Role::Worker, 0, 80, 1);
    let clock = DomainClock {
        domain: DomainId(0),
        clock: 50,
    };
    let held = durable.rig.obey(server, &CommandReply::Clocks(vec![clock]));
    assert!(matches!(held[..], [Command::HoldClocks { .. }]), "{held:?}");
    durable.sync();
    let first = durable.rig.orders(server);
    assert_eq!(first.len(), 1);
    durable.restart();
    let server = durable.joined(Role::Server, 0, 70, 9);
    let worker = durable.enter(Role::Worker, 0, 80, 9);
    assert_eq!(
        durable.rig.answer(worker, 9),
        None,
        "the server has not answered"
    );
    let orders = durable.rig.obey(server, &CommandReply::Done);
    let admitted = orders.iter().filter_map(|order| match order {
        Command::MembersChanged { admitted, .. } => admitted.clone(),
        _ => None,
    });
    assert_eq!(admitted.collect::<Vec<_>>(), [(WorkerId(0), vec![clock])]);
    let Some(Answer::Joined(joined)) = durable.rig.answer(worker, 9) else {
        panic!("{:?}", durable.rig.actions)
    };
    assert_eq!(joined.clocks, [clock]);
}

/// Whatever changes the image is noticed: after each step the journal equals the state.
#[test]
fn journal_equals_the_state_after_each_step() {
    let (mut durable, server, workers) = Durable::with_table();
    durable.rig.ask(workers[0], 3, Ask::CreateTable(spec("b")));
    durable.rig.obey(server, &CommandReply::Done);
    durable.rig.ask(workers[0], 4, Ask::Finished);
    durable.sync();
    assert_eq!(durable.journal.tables.len(), 2);
    let state = durable.journal.workers["job"][&WorkerId(0)].state;
    assert_eq!(state, WorkerState::Finished);
    durable.rig.close(workers[1]);
    durable.sync();
    let reason = &durable.journal.cluster.stop_reason;
    assert!(reason.contains("worker 1"), "{reason}");
    durable.restart();
    let refusal = durable.rig.connects(Role::Worker, 0, "job").unwrap_err();
    assert_eq!(refusal.code, RefusalCode::ShuttingDown);
    assert!(refusal.text.contains("worker 1"), "{refusal}");
}

/// The ticks of a lost worker were agreed on, and the orders are lost with the coordinator: a server gets them
/// before it removes the worker. Its open iteration would else count on a part of the appliers.
#[test]
fn lost_worker_is_ended_again() {
    let mut durable = Durable::new(1, 2, LostWorker::GoOn, Lifetime::OneJob);
    let server = durable.joined(Role::Server, 0, 70, 1);
    let workers = [0, 1].map(|rank| durable.joined(Role::Worker, rank, 80 + u64::from(rank), 1));
    let now = durable.rig.now;
    durable.rig.state.closed(now, workers[1]);
    let actions = durable.rig.state.take_actions();
    durable.rig.actions.extend(actions);
    let clock = ThreadClock {
        thread: 0,
        domain: DomainId(0),
        clock: 7,
    };
    let clocks = || CommandReply::ThreadClocks(vec![clock]);
    let asked = durable.rig.obey(server, &clocks());
    assert!(
        matches!(asked[..], [Command::LoseWorker { .. }]),
        "{asked:?}"
    );
    durable.sync();
    durable.restart();
    let server = durable.joined(Role::Server, 0, 70, 9);
    let orders = durable.rig.obey(server, &CommandReply::Done);
    let [
        Command::EndWorker { worker, clocks, .. },
        Command::MembersChanged { .. },
        ..,
    ] = &orders[..]
    else {
        panic!("{orders:?}")
    };
    assert_eq!((*worker, &clocks[..]), (WorkerId(1), &[clock][..]));
}

/// A worker is lost while a server has not returned: it is ended when that server has reported its ticks too.
#[test]
fn loss_waits_for_absent_servers() {
    let mut durable = Durable::new(1, 2, LostWorker::GoOn, Lifetime::OneJob);
    durable.joined(Role::Server, 0, 70, 1);
    for rank in [0, 1] {
        durable.joined(Role::Worker, rank, 80 + u64::from(rank), 1);
    }
    durable.restart();
    for rank in [0, 1] {
        let worker = durable.joined(Role::Worker, rank, 80 + u64::from(rank), 9);
        if rank == 1 {
            durable.rig.close(worker);
        }
    }
    durable.sync();
    let state = |durable: &Durable| durable.journal.workers["job"][&WorkerId(1)].state;
    assert_eq!(state(&durable), WorkerState::Live);
    let server = durable.joined(Role::Server, 0, 70, 9);
    let asked = durable
        .rig
        .obey(server, &CommandReply::ThreadClocks(Vec::new()));
    let is_loss = |order: &Command| matches!(order, Command::LoseWorker { .. });
    assert!(asked.iter().any(is_loss), "{asked:?}");
    durable.sync();
    assert_eq!(state(&durable), WorkerState::Lost);
}

/// A request of an operator reaches a worker that was absent, or that lost the notice with the coordinator.
#[test]
fn stop_reaches_workers_that_return() {
    let (mut durable, ..) = Durable::with_table();
    let operator = durable.rig.connects(Role::Admin, RANK_ANY, "job").unwrap();
    let reason = "no budget left".to_owned();
    let stop = Ask::StopJob {
        reason: reason.clone(),
    };
    durable.rig.ask(operator, 1, stop);
    durable.sync();
    assert_eq!(durable.rig.answer(operator, 1), Some(Answer::Done));
    durable.restart();
    let (_, workers) = durable.all_return();
    for worker in workers {
        let notices = durable.rig.notices(worker);
        let reason = reason.clone();
        assert_eq!(notices, [Notice::StopJob { reason }]);
    }
}

/// The number of a server that may return is given to no other one.
#[test]
fn number_of_absent_server_is_kept() {
    let mut durable = Durable::new(2, 1, LostWorker::FailJob, Lifetime::OneJob);
    durable.joined(Role::Server, 0, 70, 1);
    durable.restart();
    let other = durable.rig.connects(Role::Server, RANK_ANY, "ops").unwrap();
    durable.rig.ask(other, 1, Ask::Number);
    assert_eq!(
        durable.rig.answer(other, 1),
        Some(Answer::Number(ServerId(1)))
    );
    durable.joined(Role::Server, 0, 70, 9);
}

/// A coordinator does not start with a journal and something that the journal does not hold, or without the
/// checkpoints of its journal.
#[test]
fn journal_excludes_repeated_stays() {
    let dir = tempfile::tempdir().unwrap();
    let started = |prepare: fn(Listening) -> Listening| {
        let config = ServeConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            advertise: None,
            token: JobToken::new([7; 32]),
            namespaces: Vec::new(),
            cluster: CoordinatorConfig {
                servers: 1,
                workers: 1,
                on_lost: LostWorker::FailJob,
                lifetime: Lifetime::OneJob,
            },
        };
        let listening = prepare(Listening::bind(config).unwrap());
        let journal = Journal::open(dir.path()).unwrap();
        listening.journalled(journal, RETURN_GRACE).map(drop)
    };
    let refused =
        started(|l| l.following(Schedule::parse("join 0\nleave 0 0:5\njoin 0 0:9").unwrap()));
    let error = refused.unwrap_err().to_string();
    assert!(
        error.contains("--state") && error.contains("--membership"),
        "{error}"
    );
    started(|l| l.following(Schedule::parse("join 0\njoin 1 0:5").unwrap())).unwrap();
    let refused = started(|listening| {
        listening.with_checkpoints(CheckpointPolicy {
            dir: "/model".into(),
            every: Every::Ticks(1),
            keep: 1,
            full_every: 1,
        })
    });
    let error = refused.unwrap_err().to_string();
    assert!(
        error.contains("1 servers, 1 workers and checkpoints in /model"),
        "{error}"
    );
}

/// A worker that returns when it counts as lost, and its job is over, opens no job of the name.
#[test]
fn lost_worker_opens_no_job() {
    let mut durable = Durable::new(1, 0, LostWorker::GoOn, Lifetime::Service);
    durable.joined(Role::Server, 0, 70, 1);
    let worker = durable.enter(Role::Worker, 0, 80, 1);
    durable.rig.admit();
    assert!(matches!(
        durable.rig.answer(worker, 1),
        Some(Answer::Joined(_))
    ));
    durable.sync();
    durable.restart();
    let server = durable.joined(Role::Server, 0, 70, 9);
    durable.rig.now = RETURN_GRACE + Duration::from_secs(1);
    durable.rig.state.tick(durable.rig.now);
    durable.rig.actions.extend(durable.rig.state.take_actions());
    for _ in 0..4 {
        durable.rig.obey(server, &CommandReply::Done);
    }
    let back = durable.rig.connects(Role::Worker, 0, "job").unwrap();
    let Ask::Join(mut join) = Durable::join(Role::Worker, 0, 80) else {
        unreachable!("it is a Join")
    };
    join.returns = true;
    durable.rig.ask(back, 9, Ask::Join(join));
    let lost = durable.rig.refusal(back, 9);
    assert_eq!(lost.code, RefusalCode::PeerFailed);
    assert!(lost.text.contains("counts as lost"), "{lost}");
    durable.rig.close(back);
    durable.sync();
    assert!(!durable.journal.jobs.contains_key("job"));
}

/// A worker without a rank of its own that repeats its Join has the rank of the first one, and no other is awaited.
#[test]
fn repeated_join_without_rank_has_one_rank() {
    let mut durable = Durable::new(1, 0, LostWorker::GoOn, Lifetime::Service);
    durable.joined(Role::Server, 0, 70, 1);
    let first = durable.enter(Role::Worker, RANK_ANY, 80, 1);
    durable.rig.admit();
    assert!(matches!(
        durable.rig.answer(first, 1),
        Some(Answer::Joined(_))
    ));
    durable.sync();
    durable.restart();
    durable.joined(Role::Server, 0, 70, 9);
    let again = durable.enter(Role::Worker, RANK_ANY, 80, 1);
    let Some(Answer::Joined(joined)) = durable.rig.answer(again, 1) else {
        panic!("{:?}", durable.rig.actions)
    };
    let ranks: Vec<u32> = joined.members.workers.iter().map(|w| w.id.0).collect();
    assert_eq!((joined.rank, ranks), (0, vec![0]));
}

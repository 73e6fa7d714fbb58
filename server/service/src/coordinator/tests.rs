//! The state machine without sockets: its answers, and its orders to servers. (long: one rig.)

mod checkpoints;
mod functions;
mod increments;
mod losses;
mod members;
mod models;
mod operators;
mod recovery;
mod rendezvous;
mod schedules;
mod service;
mod successors;
mod tables;
mod tasks;

use std::time::Duration;

use tidewater_protocol::ids::{ApplierId, DomainId, Incarnation, TableId, WorkerId};
use tidewater_protocol::limits::FILE_ORDERS_TIMEOUT;
use tidewater_protocol::table::{
    Apply, DType, GradientOptions, Init, KeyOptions, Optimizer, Shape, TableSpec,
};
use tidewater_protocol::wire::control::{
    Command, CommandReply, CoordinatorAnswer as Answer, CoordinatorRequest as Ask, DomainClock,
    Endpoints, Join, MemberBarrier, Members, Notice, SavedPart, ThreadClock, WorkerState,
};
use tidewater_protocol::wire::hello::{Features, Hello, Ids, Purpose, RANK_ANY, Role};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::checkpoints::{CheckpointPolicy, Every};
use super::state::*;
use tidewater_checkpoint::Manifest;

const APPLIERS: u16 = 2;

fn hello(role: Role, rank: u32, namespace: &str) -> Hello {
    Hello {
        features: Features::default(),
        ids: Ids::default(),
        namespace: namespace.into(),
        role,
        rank,
        purpose: Purpose::Control,
        random: [1; 32],
    }
}

fn spec(name: &str) -> TableSpec {
    TableSpec {
        name: name.into(),
        shape: Shape::Sparse { dim: 4 },
        dtype: DType::F32,
        optimizer: Optimizer::Sgd { lr: 0.1 },
        init: Init::Zeros,
        seed: 1,
        effect: Apply::Immediate,
        finite_check: true,
        domain: DomainId(0),
        partitions: 8,
        gradient: GradientOptions::default(),
        redo: false,
        keys: KeyOptions::default(),
        versions: 2,
        durability: Default::default(),
        partition_servers: None,
        partition_starts: None,
    }
}

/// A coordinator with all of its pending actions.
struct Rig {
    state: Coordinator,
    now: Duration,
    next: u64,
    actions: Vec<Action>,
}

impl Rig {
    fn new(servers: u32, workers: u32, on_lost: LostWorker, ends_itself: bool) -> Self {
        Self::with(CoordinatorConfig {
            servers,
            workers,
            on_lost,
            lifetime: match (ends_itself, workers) {
                (true, _) => Lifetime::OneJob,
                (false, 0) => Lifetime::Service,
                (false, _) => Lifetime::Launched,
            },
        })
    }

    fn with(config: CoordinatorConfig) -> Self {
        Self {
            state: Coordinator::new(config),
            now: Duration::ZERO,
            next: 1,
            actions: Vec::new(),
        }
    }

    fn connects(&mut self, role: Role, rank: u32, namespace: &str) -> Result<PeerId, Refusal> {
        let hello = hello(role, rank, namespace);
        self.state.admit(&hello)?;
        let peer = PeerId(self.next);
        self.next += 1;
        self.state.connected(peer, &hello);
        Ok(peer)
    }

    fn join(role: Role, rank: u32) -> Join {
        Join {
            host: "h".into(),
            host_id: "boot".into(),
            pid: 1,
            incarnation: Incarnation(u64::from(rank)),
            endpoints: Endpoints {
                tcp: "h:1".into(),
                unix: String::new(),
            },
            appliers: if role == Role::Server { APPLIERS } else { 0 },
            workers: 0,
            restarts: 0,
            kept: None,
            returns: false,
        }
    }

    fn enter(&mut self, role: Role, rank: u32, namespace: &str) -> Result<PeerId, Refusal> {
        let peer = self.connects(role, rank, namespace)?;
        self.ask(peer, 1, Ask::Join(Self::join(role, rank)));
        self.admit();
        let Some(Answer::Joined(_)) = self.answer(peer, 1) else {
            panic!("not joined: {:?}", self.actions)
        };
        Ok(peer)
    }

    /// All servers answer the orders by which a worker is admitted to a job of open size.
    fn admit(&mut self) {
        let order = |a: &Action| match a {
            Action::Command(server, id, Command::HoldClocks { .. }) => {
                Some((*server, *id, CommandReply::Clocks(Vec::new())))
            }
            Action::Command(server, id, Command::MembersChanged { admitted, .. }) => admitted
                .as_ref()
                .map(|_| (*server, *id, CommandReply::Done)),
            _ => None,
        };
        while let Some(at) = self.actions.iter().position(|a| order(a).is_some()) {
            let action = self.actions.remove(at);
            if let Some((server, id, reply)) = order(&action) {
                self.state.answered(self.now, server, id, reply);
                self.actions.extend(self.state.take_actions());
            }
        }
    }

    /// Whether nothing is to be done but what the log gets.
    fn is_idle(&self) -> bool {
        let mut actions = self.actions.iter();
        actions.all(|action| matches!(action, Action::Membership(_)))
    }

    /// Lines of the log of members.
    fn log(&self) -> Vec<&str> {
        let lines = self.actions.iter().filter_map(|action| match action {
            Action::Membership(line) => Some(line.as_str()),
            _ => None,
        });
        lines.collect()
    }

    fn server(&mut self, number: u32) -> PeerId {
        self.enter(Role::Server, number, "ops").unwrap()
    }

    fn worker(&mut self, rank: u32) -> PeerId {
        self.enter(Role::Worker, rank, "job").unwrap()
    }

    fn ask(&mut self, peer: PeerId, id: u64, request: Ask) {
        self.state.request(self.now, peer, id, request);
        self.actions.extend(self.state.take_actions());
    }

    fn close(&mut self, peer: PeerId) {
        self.state.closed(self.now, peer);
        self.actions.extend(self.state.take_actions());
        self.agree_on_losses();
    }

    /// All servers report that a lost worker has not ticked.
    fn agree_on_losses(&mut self) {
        let is_loss = |a: &Action| matches!(a, Action::Command(_, _, Command::LoseWorker { .. }));
        let asked: Vec<Action> = self.actions.extract_if(.., |a| is_loss(a)).collect();
        for action in asked {
            if let Action::Command(server, id, _) = action {
                let reply = CommandReply::ThreadClocks(Vec::new());
                self.state.answered(self.now, server, id, reply);
            }
        }
        self.actions.extend(self.state.take_actions());
    }

    /// The answer to a request, if it was given, once.
    fn answer(&mut self, peer: PeerId, id: u64) -> Option<Answer> {
        let is_it = |a: &Action| matches!(a, Action::Answer(p, i, _) if (*p, *i) == (peer, id));
        let at = self.actions.iter().position(is_it)?;
        match self.actions.remove(at) {
            Action::Answer(_, _, answer) => Some(answer),
            _ => None,
        }
    }

    fn refusal(&mut self, peer: PeerId, id: u64) -> Refusal {
        match self.answer(peer, id) {
            Some(Answer::Refused(refusal)) => refusal,
            other => panic!("{other:?} instead of a refusal"),
        }
    }

    /// Removes and returns the orders of a server.
    fn orders(&mut self, server: PeerId) -> Vec<(u64, Command)> {
        let is_its = |a: &Action| matches!(a, Action::Command(p, ..) if *p == server);
        let taken = self.actions.extract_if(.., |action| is_its(action));
        taken
            .filter_map(|action| match action {
                Action::Command(_, id, order) => Some((id, order)),
                _ => None,
            })
            .collect()
    }

    /// The server answers all of its orders in the same way.
    fn obey(&mut self, server: PeerId, answer: &CommandReply) -> Vec<Command> {
        let orders = self.orders(server);
        for (id, _) in &orders {
            self.state.answered(self.now, server, *id, answer.clone());
        }
        self.actions.extend(self.state.take_actions());
        orders.into_iter().map(|(_, order)| order).collect()
    }

    fn notices(&mut self, peer: PeerId) -> Vec<Notice> {
        let is_its = |a: &Action| matches!(a, Action::Notify(p, _) if *p == peer);
        let told = self.actions.extract_if(.., |action| is_its(action));
        told.filter_map(|action| match action {
            Action::Notify(_, notice) => Some(notice),
            _ => None,
        })
        .collect()
    }

    fn file_task(&mut self) -> (u64, FileTask) {
        let at = self
            .actions
            .iter()
            .position(|a| matches!(a, Action::Files(..)))
            .unwrap();
        match self.actions.remove(at) {
            Action::Files(op, task) => (op, task),
            _ => unreachable!("found by its kind"),
        }
    }

    fn file_done(&mut self, op: u64, done: Result<FileDone, Refusal>) {
        self.state.files_done(self.now, op, done);
        self.actions.extend(self.state.take_actions());
    }
}

fn members_of(order: &Command) -> &Members {
    match order {
        Command::MembersChanged { members, .. } => members,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_barrier_opens_for_all_and_can_be_used_again() {
    let mut rig = Rig::new(1, 3, LostWorker::FailJob, false);
    let workers = [rig.worker(0), rig.worker(1), rig.worker(2)];
    let barrier = |count| Ask::Barrier {
        name: "x".into(),
        count,
        timeout_ms: 50,
    };
    for id in [2, 3] {
        for (n, &worker) in workers.iter().enumerate() {
            assert_eq!(rig.answer(workers[0], id), None, "{n} of 3 came");
            rig.ask(worker, id, barrier(3));
        }
        for worker in workers {
            assert_eq!(rig.answer(worker, id), Some(Answer::Done));
        }
    }
    rig.ask(workers[0], 4, barrier(3));
    rig.ask(workers[1], 4, barrier(2));
    assert_eq!(rig.refusal(workers[1], 4).code, RefusalCode::BadRequest);
    rig.ask(workers[1], 5, barrier(0));
    assert_eq!(rig.refusal(workers[1], 5).code, RefusalCode::BadRequest);
}

#[test]
fn a_barrier_that_times_out_names_who_is_missing() {
    let mut rig = Rig::new(1, 4, LostWorker::GoOn, false);
    let (w0, w1, w2) = (rig.worker(0), rig.worker(1), rig.worker(2));
    rig.ask(w2, 2, Ask::Finished);
    let barrier = |timeout_ms| Ask::Barrier {
        name: "x".into(),
        count: 4,
        timeout_ms,
    };
    rig.ask(w0, 2, barrier(50));
    rig.ask(w1, 2, barrier(u64::MAX));
    assert_eq!(rig.state.next_deadline(), Some(Duration::from_millis(50)));
    rig.now = Duration::from_millis(49);
    rig.ask(w1, 3, Ask::Members);
    assert_eq!(rig.answer(w0, 2), None);
    rig.now = Duration::from_millis(50);
    rig.ask(w1, 4, Ask::Members);
    let refusal = rig.refusal(w0, 2);
    assert_eq!(
        (refusal.code, refusal.numbers),
        (RefusalCode::Timeout, [3, 0, 0, 0])
    );
    let text = refusal.text;
    assert!(text.contains("2 of 4 came"), "{text}");
    let missing = "missing: rank 3 (not yet joined); not waited for: rank 2 (finished)";
    assert!(text.contains(missing), "{text}");
    assert_eq!(rig.answer(w1, 2), None, "the other one waits on");
    // A worker that gave up and comes again counts once.
    rig.ask(w0, 5, barrier(50));
    assert_eq!((rig.answer(w0, 5), rig.answer(w1, 2)), (None, None));
}

/// A barrier of all workers waits for those that have not left, and opens when the last missing one
/// leaves. A barrier of more workers than are left fails at once.
#[test]
fn barriers_count_live_workers() {
    let mut rig = Rig::new(1, 4, LostWorker::GoOn, false);
    let (w0, w1) = (rig.worker(0), rig.worker(1));
    let (w2, w3) = (rig.worker(2), rig.worker(3));
    let barrier = |name: &str, count| Ask::Barrier {
        name: name.into(),
        count,
        timeout_ms: 1 << 40,
    };
    rig.ask(w0, 2, barrier("all", 4));
    rig.ask(w1, 2, barrier("all", 4));
    rig.ask(w2, 2, barrier("three", 3));
    rig.close(w3);
    assert_eq!((rig.answer(w0, 2), rig.answer(w2, 2)), (None, None));
    // It finishes while it waits: its barrier cannot open any more, the others' does.
    rig.ask(w2, 3, Ask::Finished);
    assert_eq!(rig.answer(w0, 2), Some(Answer::Done));
    assert_eq!(rig.answer(w1, 2), Some(Answer::Done));
    let text = rig.refusal(w2, 2).text;
    assert!(text.contains("\"three\" waits for 3 workers"), "{text}");
    assert!(text.contains("rank 2 (finished), rank 3 (lost)"), "{text}");
    rig.ask(w0, 3, barrier("three", 3));
    let refusal = rig.refusal(w0, 3);
    assert_eq!(
        (refusal.code, refusal.numbers),
        (RefusalCode::BadRequest, [2, 3, 0, 0])
    );
    for id in [4, 5] {
        rig.ask(w1, id, barrier("all", 4));
        assert_eq!(rig.answer(w1, id), None);
        rig.ask(w0, id, barrier("all", 4));
        assert_eq!(rig.answer(w0, id), Some(Answer::Done));
        assert_eq!(rig.answer(w1, id), Some(Answer::Done));
    }
    rig.ask(w2, 6, barrier("all", 4));
    assert!(
        rig.refusal(w2, 6)
            .text
            .contains("worker 2 has left its job")
    );
}

#[test]
fn ranks_are_given_once() {
    let mut rig = Rig::new(1, 2, LostWorker::FailJob, false);
    rig.server(0);
    assert_eq!(
        rig.enter(Role::Server, 0, "ops").unwrap_err().code,
        RefusalCode::RankTaken
    );
    assert_eq!(
        rig.enter(Role::Server, 1, "ops").unwrap_err().code,
        RefusalCode::RankTaken
    );
    rig.worker(1);
    let taken = rig.enter(Role::Worker, 1, "job").unwrap_err();
    assert!(taken.code == RefusalCode::RankTaken && taken.text.contains("rank 1 is alive"));
    assert_eq!(
        rig.enter(Role::Worker, 2, "job").unwrap_err().code,
        RefusalCode::BadRequest
    );
    rig.enter(Role::Worker, RANK_ANY, "job").unwrap();
    assert_eq!(
        rig.enter(Role::Worker, RANK_ANY, "job").unwrap_err().code,
        RefusalCode::TooMany
    );
}

#[test]
fn nobody_asks_before_joining_and_a_connection_that_never_joined_is_no_loss() {
    let mut rig = Rig::new(1, 2, LostWorker::FailJob, true);
    let w0 = rig.worker(0);
    let half = PeerId(99);
    rig.state.connected(half, &hello(Role::Worker, 1, "job"));
    rig.ask(half, 1, Ask::CreateTable(spec("a")));
    assert!(rig.refusal(half, 1).text.contains("join first"));
    rig.close(half);
    assert!(rig.notices(w0).is_empty() && !rig.state.is_ended());
    rig.worker(1);
}

#[test]
fn a_lost_worker_fails_the_job_and_ends_the_cluster() {
    let mut rig = Rig::new(1, 2, LostWorker::FailJob, true);
    let (s0, w0, w1) = (rig.server(0), rig.worker(0), rig.worker(1));
    rig.ask(
        w0,
        2,
        Ask::Barrier {
            name: "x".into(),
            count: 2,
            timeout_ms: 1 << 40,
        },
    );
    rig.close(w1);
    let refusal = rig.refusal(w0, 2);
    assert_eq!(
        (refusal.code, refusal.numbers[0]),
        (RefusalCode::PeerFailed, 1)
    );
    let notices = rig.notices(w0);
    assert_eq!(notices[0], Notice::PeerFailed(refusal.clone()));
    // Later requests are answered with the failure, which is also the reason of the shutdown.
    rig.ask(w0, 3, Ask::CreateTable(spec("a")));
    assert_eq!(rig.refusal(w0, 3), refusal);
    let late = rig.enter(Role::Worker, RANK_ANY, "job").unwrap_err();
    let shutdown = Notice::Shutdown {
        reason: late.text.clone(),
    };
    assert_eq!(
        (late.code, &late.text),
        (RefusalCode::ShuttingDown, &refusal.text)
    );
    assert_eq!(notices[1], shutdown);
    assert_eq!(rig.obey(s0, &CommandReply::Done), [Command::Shutdown]);
    assert!(!rig.state.is_ended());
    rig.close(s0);
    assert!(rig.state.is_ended());
}

#[test]
fn under_a_launcher_a_failure_is_told_and_the_launcher_ends_the_processes() {
    let mut rig = Rig::new(1, 2, LostWorker::FailJob, false);
    let (s0, w0, w1) = (rig.server(0), rig.worker(0), rig.worker(1));
    rig.ask(
        w1,
        2,
        Ask::Failed {
            reason: "disk full".into(),
        },
    );
    assert_eq!(rig.answer(w1, 2), Some(Answer::Done));
    let notices = rig.notices(w0);
    let [Notice::PeerFailed(refusal)] = &notices[..] else {
        panic!("{notices:?}")
    };
    assert!(refusal.text.contains("worker 1: disk full"));
    assert!(rig.orders(s0).is_empty() && !rig.state.is_ended());
    rig.ask(w0, 3, Ask::OpenTable { name: "a".into() });
    assert_eq!(rig.refusal(w0, 3).code, RefusalCode::PeerFailed);
    rig.state.stop(rig.now, "told to");
    rig.actions.extend(rig.state.take_actions());
    assert_eq!(rig.obey(s0, &CommandReply::Done), [Command::Shutdown]);
    rig.close(s0);
    assert!(rig.state.is_ended());
}

#[test]
fn a_cluster_that_goes_on_tells_servers_and_workers_who_is_lost() {
    let mut rig = Rig::new(1, 3, LostWorker::GoOn, true);
    let (s0, w0, w1, w2) = (rig.server(0), rig.worker(0), rig.worker(1), rig.worker(2));
    rig.close(w1);
    let state_of = |members: &Members, rank: u32| {
        members
            .workers
            .iter()
            .find(|w| w.id == WorkerId(rank))
            .unwrap()
            .state
    };
    let [Notice::MembersChanged(members)] = &rig.notices(w0)[..] else {
        panic!("no notice")
    };
    assert_eq!(state_of(members, 1), WorkerState::Lost);
    // One notification at a time: changes before its answer go into the next one.
    let first = rig.orders(s0);
    assert_eq!(state_of(members_of(&first[0].1), 1), WorkerState::Lost);
    rig.ask(w0, 2, Ask::Finished);
    rig.ask(w2, 2, Ask::Goodbye);
    assert!(
        !rig.actions
            .iter()
            .any(|a| { matches!(a, Action::Command(_, _, Command::MembersChanged { .. })) })
    );
    rig.state
        .answered(rig.now, s0, first[0].0, CommandReply::Done);
    rig.actions.extend(rig.state.take_actions());
    let orders: Vec<Command> = rig.orders(s0).into_iter().map(|(_, order)| order).collect();
    let last = orders
        .iter()
        .rfind(|o| matches!(o, Command::MembersChanged { .. }))
        .unwrap();
    assert_eq!(state_of(members_of(last), 0), WorkerState::Finished);
    assert_eq!(state_of(members_of(last), 2), WorkerState::Finished);
    // All workers have ended, so the cluster ends.
    assert!(orders.contains(&Command::Shutdown));
    assert_eq!(
        rig.enter(Role::Worker, 1, "job").unwrap_err().code,
        RefusalCode::ShuttingDown
    );
}

/// A tick that one applier has consumed is completed on all servers before a lost worker is removed; until
/// then it counts as a member.
#[test]
fn tick_of_a_lost_worker_is_completed_everywhere() {
    let mut rig = Rig::new(2, 2, LostWorker::GoOn, false);
    let (s0, s1) = (rig.server(0), rig.server(1));
    let (w0, w1) = (rig.worker(0), rig.worker(1));
    rig.state.closed(rig.now, w1);
    rig.actions.extend(rig.state.take_actions());
    let at = |clock| {
        vec![ThreadClock {
            thread: 0,
            domain: DomainId(0),
            clock,
        }]
    };
    let asked = rig.obey(s0, &CommandReply::ThreadClocks(at(5)));
    assert!(matches!(&asked[..], [Command::LoseWorker { worker, .. }] if worker.0 == 1));
    assert!(rig.orders(s0).is_empty() && rig.notices(w0).is_empty());
    rig.obey(s1, &CommandReply::ThreadClocks(at(4)));
    for server in [s0, s1] {
        let orders = rig.obey(server, &CommandReply::Done);
        let [
            Command::EndWorker { worker, clocks, .. },
            Command::MembersChanged { members, .. },
        ] = &orders[..]
        else {
            panic!("{orders:?}")
        };
        assert_eq!((*worker, clocks), (WorkerId(1), &at(5)));
        assert_eq!(members.workers[1].state, WorkerState::Lost);
    }
    assert!(matches!(&rig.notices(w0)[..], [Notice::MembersChanged(_)]));
}

#[test]
fn a_lost_server_fails_every_job_and_one_that_says_goodbye_does_not() {
    let mut rig = Rig::new(2, 1, LostWorker::GoOn, false);
    let (s0, s1, w0) = (rig.server(0), rig.server(1), rig.worker(0));
    rig.ask(w0, 2, Ask::CreateTable(spec("a")));
    rig.ask(s0, 2, Ask::Goodbye);
    rig.close(s0);
    assert!(rig.notices(w0).is_empty());
    rig.close(s1);
    let refusal = rig.refusal(w0, 2);
    assert_eq!(
        (refusal.code, refusal.numbers[0]),
        (RefusalCode::PeerFailed, 1)
    );
    assert_eq!(rig.notices(w0), [Notice::PeerFailed(refusal)]);
}

#[test]
fn a_stop_does_not_wait_for_servers_for_ever() {
    let mut rig = Rig::new(1, 1, LostWorker::FailJob, false);
    rig.server(0);
    rig.state.stop(rig.now, "told to");
    assert!(!rig.state.is_ended());
    rig.now = rig.state.next_deadline().unwrap();
    rig.state.tick(rig.now);
    assert!(rig.state.is_ended());
}

#[test]
fn answers_to_orders_of_others_change_nothing() {
    let mut rig = Rig::new(2, 1, LostWorker::FailJob, false);
    let (s0, s1, w0) = (rig.server(0), rig.server(1), rig.worker(0));
    rig.ask(w0, 2, Ask::CreateTable(spec("a")));
    let (id, _) = rig.orders(s1)[0];
    for (peer, id) in [(s0, id), (w0, id), (s0, 0), (s0, u64::MAX)] {
        rig.state.answered(rig.now, peer, id, CommandReply::Done);
    }
    rig.obey(s0, &CommandReply::Done);
    assert_eq!(rig.answer(w0, 2), None, "server 1 has not answered");
    rig.state.answered(rig.now, s1, id, CommandReply::Done);
    rig.actions.extend(rig.state.take_actions());
    assert!(matches!(rig.answer(w0, 2), Some(Answer::Table(_))));
}

//! Servers with holders over restarts of the coordinator: the job begins again once, and each worker learns it.

use tidewater_protocol::limits::SUCCESSOR_TIMEOUT;
use tidewater_protocol::table::Durability;

use super::*;

/// Notices that the job begins again.
fn restarted(notices: &[Notice]) -> usize {
    let restarted = |notice: &&Notice| matches!(notice, Notice::ServerRestarted(_));
    notices.iter().filter(restarted).count()
}

impl Durable {
    /// A server with a holder joins.
    fn held(&mut self, process: u64, id: u64) -> PeerId {
        self.enters(process, id, None)
    }

    /// A server with a holder and the memory of table 1 joins.
    fn keeps(&mut self, process: u64, id: u64) -> PeerId {
        self.enters(process, id, Some(vec![TableId(1)]))
    }

    fn enters(&mut self, process: u64, id: u64, kept: Option<Vec<TableId>>) -> PeerId {
        let peer = self.rig.connects(Role::Server, 0, "ops").unwrap();
        let join = Join {
            pid: process as u32,
            incarnation: Incarnation(process),
            restarts: 3,
            kept,
            ..Rig::join(Role::Server, 0)
        };
        self.rig.ask(peer, id, Ask::Join(join));
        self.sync();
        let answer = self.rig.answer(peer, id);
        assert!(matches!(answer, Some(Answer::Joined(_))), "{answer:?}");
        peer
    }

    fn workers(&mut self, id: u64) -> [PeerId; 2] {
        [0, 1].map(|rank| self.joined(Role::Worker, rank, 80 + u64::from(rank), id))
    }

    /// A job of two workers with a table, on a server with a holder.
    fn on_held_server() -> (Self, PeerId, [PeerId; 2]) {
        let mut durable = Self::new(1, 2, LostWorker::FailJob, Lifetime::Launched);
        let server = durable.held(70, 1);
        let workers = durable.workers(1);
        durable.rig.ask(workers[0], 2, Ask::CreateTable(spec("a")));
        durable.serves(server);
        assert_eq!(durable.journal.tables.len(), 1);
        (durable, server, workers)
    }

    /// The server carries out all orders, also those that follow from its replies.
    fn serves(&mut self, server: PeerId) -> Vec<Command> {
        let mut all = Vec::new();
        loop {
            let orders = self.rig.obey(server, &CommandReply::Done);
            self.sync();
            if orders.is_empty() {
                return all;
            }
            all.extend(orders);
        }
    }

    /// The worker's requests are refused until it rejoins.
    fn rejoins(&mut self, worker: PeerId, id: u64) {
        let open = || Ask::OpenTable { name: "a".into() };
        self.rig.ask(worker, id, open());
        let refusal = self.rig.refusal(worker, id);
        assert_eq!(refusal.code, RefusalCode::WrongIncarnation, "{refusal}");
        self.rig.ask(worker, id + 1, Ask::Rejoin);
        self.sync();
        let answer = self.rig.answer(worker, id + 1);
        assert!(matches!(answer, Some(Answer::Joined(_))), "{answer:?}");
    }
}

/// A server has ended while the coordinator was absent: its successor is one, and the job begins again.
#[test]
fn server_that_ends_meanwhile_has_successor() {
    let (mut durable, ..) = Durable::on_held_server();
    durable.restart();
    let workers = durable.workers(9);
    let successor = durable.held(71, 1);
    durable.serves(successor);
    assert!(durable.journal.tables.is_empty());
    for worker in workers {
        let notices = durable.rig.notices(worker);
        let Some(Notice::ServerEnded(end)) = notices.first() else {
            panic!("{notices:?}")
        };
        assert_eq!((end.pid, end.incarnation), (70, Incarnation(70)));
        assert_eq!(restarted(&notices), 1, "{notices:?}");
        durable.rejoins(worker, 20);
    }
    durable.rig.ask(workers[0], 30, Ask::CreateTable(spec("a")));
    durable.serves(successor);
    let made = durable.rig.answer(workers[0], 30);
    assert!(matches!(made, Some(Answer::Table(_))), "{made:?}");
}

/// The coordinator is killed while it waits for a successor, and while servers end the job for it.
#[test]
fn successor_is_awaited_over_restart() {
    let (mut durable, server, _) = Durable::on_held_server();
    durable.rig.close(server);
    durable.sync();
    durable.restart();
    let workers = durable.workers(9);
    for worker in workers {
        let notices = durable.rig.notices(worker);
        assert!(
            matches!(notices[..], [Notice::ServerEnded(_)]),
            "{notices:?}"
        );
    }
    assert_eq!(durable.rig.state.next_deadline(), Some(SUCCESSOR_TIMEOUT));
    durable.rig.ask(workers[0], 10, barrier("x"));
    assert_eq!(durable.rig.answer(workers[0], 10), None, "it is parked");
    durable.held(71, 1);
    durable.restart();
    let workers = durable.workers(10);
    let successor = durable.held(71, 2);
    let orders = durable.serves(successor);
    let ends = |order: &Command| matches!(order, Command::MembersChanged { members, .. } if members.workers.is_empty());
    assert!(orders.iter().any(ends), "{orders:?}");
    for worker in workers {
        let notices = durable.rig.notices(worker);
        assert_eq!(restarted(&notices), 1, "{notices:?}");
        durable.rejoins(worker, 20);
    }
}

/// The coordinator is killed before all workers have rejoined: those get the notice again, and no other one.
#[test]
fn notice_of_restart_is_repeated() {
    let (mut durable, server, workers) = Durable::on_held_server();
    durable.rig.close(server);
    let successor = durable.held(71, 1);
    durable.serves(successor);
    durable.rejoins(workers[0], 20);
    durable.restart();
    let absent = durable.workers(30);
    let notices = absent.map(|worker| restarted(&durable.rig.notices(worker)));
    assert_eq!(notices, [0, 1]);
    durable.held(71, 2);
    durable.rejoins(absent[1], 40);
    durable.restart();
    let absent = durable.workers(50);
    let notices = absent.map(|worker| restarted(&durable.rig.notices(worker)));
    assert_eq!(notices, [0, 0]);
}

/// The coordinator is killed between the Join of a successor with memory and its replies: the orders are repeated,
/// and a worker that returns after them learns of the successor.
#[test]
fn resume_with_memory_goes_on_after_restart() {
    let mut durable = Durable::new(1, 2, LostWorker::FailJob, Lifetime::Launched);
    let server = durable.held(70, 1);
    let workers = durable.workers(1);
    let spec = TableSpec {
        durability: Durability::Warm,
        ..spec("a")
    };
    durable.rig.ask(workers[0], 2, Ask::CreateTable(spec));
    durable.serves(server);
    durable.rig.close(server);
    durable.sync();
    durable.keeps(71, 1);
    durable.restart();
    let early = durable.joined(Role::Worker, 0, 80, 9);
    let successor = durable.keeps(71, 2);
    let resumed = |notices: Vec<Notice>| {
        let resumed = |notice: &&Notice| matches!(notice, Notice::ServerResumed { .. });
        notices.iter().filter(resumed).count()
    };
    assert_eq!(resumed(durable.rig.notices(early)), 0);
    let orders = durable.serves(successor);
    let adopts = |order: &Command| matches!(order, Command::AdoptTable { .. });
    assert!(orders.iter().any(adopts), "{orders:?}");
    assert_eq!(resumed(durable.rig.notices(early)), 1);
    let late = durable.joined(Role::Worker, 1, 81, 9);
    assert_eq!(resumed(durable.rig.notices(late)), 1);
}

/// A job that cannot begin again fails with the server that has ended, which is named.
#[test]
fn job_with_finished_worker_fails_with_its_server() {
    let (mut durable, _, workers) = Durable::on_held_server();
    durable.rig.ask(workers[1], 3, Ask::Finished);
    durable.sync();
    durable.restart();
    let worker = durable.joined(Role::Worker, 0, 80, 9);
    durable.enter(Role::Server, 0, 71, 1);
    let notices = durable.rig.notices(worker);
    let Some(Notice::PeerFailed(refusal)) = notices.first() else {
        panic!("{notices:?}")
    };
    assert!(refusal.text.contains("server 0"), "{refusal}");
}

/// The job begins again while another server has not returned to the restarted coordinator: that one releases the
/// table too, before it ends the job.
#[test]
fn absent_server_releases_tables_of_job_that_begins_again() {
    let mut durable = Durable::new(2, 1, LostWorker::FailJob, Lifetime::Launched);
    let enter = |durable: &mut Durable, number: u32, process: u64, id: u64| {
        let peer = durable.rig.connects(Role::Server, number, "ops").unwrap();
        let join = Join {
            pid: process as u32,
            incarnation: Incarnation(process),
            restarts: 3,
            ..Rig::join(Role::Server, number)
        };
        durable.rig.ask(peer, id, Ask::Join(join));
        durable.sync();
        peer
    };
    let servers = [0, 1].map(|n| enter(&mut durable, n, 70 + u64::from(n), 1));
    let worker = durable.joined(Role::Worker, 0, 80, 1);
    durable.rig.ask(worker, 2, Ask::CreateTable(spec("a")));
    for server in servers {
        durable.serves(server);
    }
    durable.restart();
    let worker = durable.joined(Role::Worker, 0, 80, 9);
    let successor = enter(&mut durable, 0, 75, 9);
    durable.serves(successor);
    let back = enter(&mut durable, 1, 71, 9);
    let orders = durable.serves(back);
    let place = |is_it: fn(&Command) -> bool| orders.iter().position(is_it);
    let released = place(|order| matches!(order, Command::ReleaseTable { id: TableId(1) }));
    let ended = place(
        |order| matches!(order, Command::MembersChanged { members, .. } if members.workers.is_empty()),
    );
    let (Some(released), Some(ended)) = (released, ended) else {
        panic!("{orders:?}")
    };
    assert!(released < ended, "{orders:?}");
    let notices = durable.rig.notices(worker);
    assert_eq!(restarted(&notices), 1, "{notices:?}");
}

/// A job has ended while its server's successor was awaited, and the coordinator is killed too: the successor ends what
/// its memory has of the job.
#[test]
fn ending_waits_for_successor_over_restart() {
    let mut durable = Durable::new(1, 1, LostWorker::FailJob, Lifetime::Service);
    let server = durable.held(70, 1);
    let worker = durable.joined(Role::Worker, 0, 80, 1);
    durable.rig.close(server);
    durable.rig.ask(worker, 2, Ask::Finished);
    durable.rig.close(worker);
    durable.sync();
    durable.restart();
    let next = durable.enter(Role::Worker, 0, 81, 1);
    assert_eq!(durable.rig.answer(next, 1), None);
    let successor = durable.keeps(71, 1);
    let orders = durable.serves(successor);
    let ends = |order: &Command| matches!(order, Command::MembersChanged { members, .. } if members.workers.is_empty());
    assert!(orders.iter().any(ends), "{orders:?}");
    assert!(matches!(
        durable.rig.answer(next, 1),
        Some(Answer::Joined(_))
    ));
}

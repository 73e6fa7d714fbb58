//! Servers with a holder: their end, their successor, and the new beginning of their jobs. (long: a test each.)

use tidewater_protocol::ids::ServerId;
use tidewater_protocol::limits::{PARKED_MAX, RESUME_TIMEOUT, SUCCESSOR_TIMEOUT};
use tidewater_protocol::table::{Durability, LIBRARY_TABLES};
use tidewater_protocol::wire::control::{ServerEnd, ServerRestart};
use tidewater_protocol::wire::hello::NAMESPACE_DEFAULT;

use super::*;

const HOW: &str = "was killed by signal 9 (SIGKILL)";

impl Rig {
    /// Joins server `number` with a holder.
    pub(super) fn held(&mut self, number: u32, pid: u32, incarnation: u64) -> PeerId {
        self.keeps(number, pid, incarnation, None)
    }

    /// Joins server `number` with a holder and the memory of the server before.
    pub(super) fn keeps(
        &mut self,
        number: u32,
        pid: u32,
        incarnation: u64,
        kept: Option<u32>,
    ) -> PeerId {
        let peer = self.connects(Role::Server, number, "ops").unwrap();
        let join = Join {
            pid,
            incarnation: Incarnation(incarnation),
            restarts: 3,
            kept: kept.map(|table| vec![TableId(table)]),
            ..Self::join(Role::Server, number)
        };
        self.ask(peer, 1, Ask::Join(join));
        assert!(matches!(self.answer(peer, 1), Some(Answer::Joined(_))));
        peer
    }

    /// The holder of server `number` reports its end.
    pub(super) fn reports(&mut self, number: u32, pid: u32, restarts: bool) {
        let end = ServerEnd {
            incarnation: Incarnation(0),
            ..end(number, pid, 0, HOW)
        };
        let holder = self.connects(Role::Admin, RANK_ANY, "ops").unwrap();
        self.ask(holder, 1, Ask::ServerEnded { end, restarts });
        assert_eq!(self.answer(holder, 1), Some(Answer::Done));
        self.close(holder);
    }

    fn barrier(&mut self, peer: PeerId, id: u64, name: &str) {
        let (name, count) = (name.into(), 2);
        let timeout_ms = 1 << 40;
        self.ask(
            peer,
            id,
            Ask::Barrier {
                name,
                count,
                timeout_ms,
            },
        );
    }
}

pub(super) fn end(number: u32, pid: u32, incarnation: u64, how: &str) -> ServerEnd {
    ServerEnd {
        server: ServerId(number),
        incarnation: Incarnation(incarnation),
        host: "h".into(),
        pid,
        how: how.into(),
    }
}

/// Two servers with holders and two workers; a table is made.
fn with_table() -> (Rig, [PeerId; 2], [PeerId; 2]) {
    with(spec("a"))
}

fn with(spec: TableSpec) -> (Rig, [PeerId; 2], [PeerId; 2]) {
    let mut rig = Rig::new(2, 2, LostWorker::FailJob, false);
    let servers = [rig.held(0, 10, 100), rig.held(1, 11, 101)];
    let workers = [rig.worker(0), rig.worker(1)];
    rig.ask(workers[0], 2, Ask::CreateTable(spec));
    for server in servers {
        rig.obey(server, &CommandReply::Done);
    }
    assert!(matches!(rig.answer(workers[0], 2), Some(Answer::Table(_))));
    (rig, servers, workers)
}

#[test]
fn job_begins_again_when_all_servers_have_ended_it() {
    let (mut rig, [s0, s1], [w0, w1]) = with_table();
    rig.barrier(w0, 3, "before");
    rig.close(s1);
    let closed = end(1, 11, 101, "has ended: its connection closed");
    assert_eq!(rig.notices(w0), [Notice::ServerEnded(closed)]);
    rig.reports(1, 11, true);
    let killed = end(1, 11, 101, HOW);
    let ended = [Notice::ServerEnded(killed.clone())];
    assert_eq!(rig.notices(w0), ended);
    assert_eq!(rig.notices(w1).last(), ended.last());
    // What is asked meanwhile waits, also what a server less could do.
    rig.ask(w1, 3, Ask::OpenTable { name: "a".into() });
    assert_eq!((rig.answer(w0, 3), rig.answer(w1, 3)), (None, None));

    let epoch = rig.state.epoch();
    let s1 = rig.held(1, 12, 102);
    let orders = rig.obey(s0, &CommandReply::Done);
    let [
        Command::ReleaseTable { .. },
        over @ Command::MembersChanged { .. },
    ] = &orders[..]
    else {
        panic!("{orders:?}")
    };
    let members = members_of(over);
    assert!(members.workers.is_empty(), "the order to end the job");
    assert_eq!((members.epoch, members.servers.len()), (epoch, 2));
    assert!(rig.notices(w0).is_empty(), "server 1 has not answered");
    assert_eq!(rig.answer(w0, 3), None);
    rig.obey(s1, &CommandReply::Done);
    let restart = ServerRestart {
        end: killed,
        successor: Incarnation(102),
    };
    for worker in [w0, w1] {
        assert_eq!(
            rig.notices(worker),
            [Notice::ServerRestarted(restart.clone())]
        );
        let refusal = rig.refusal(worker, 3);
        assert_eq!(refusal.code, RefusalCode::WrongIncarnation);
        assert_eq!(refusal.numbers[..2], [101, 102]);
    }
    // The barrier and the table of before are gone.
    rig.ask(w0, 4, Ask::Rejoin);
    let Some(Answer::Joined(joined)) = rig.answer(w0, 4) else {
        panic!("{:?}", rig.actions)
    };
    assert_eq!(joined.members.servers[1].incarnation, Incarnation(102));
    rig.ask(w0, 5, Ask::OpenTable { name: "a".into() });
    assert_eq!(rig.refusal(w0, 5).code, RefusalCode::UnknownTable);
    rig.ask(w0, 6, Ask::CreateTable(spec("a")));
    assert_eq!((rig.orders(s0).len(), rig.orders(s1).len()), (1, 1));
}

/// A worker that has not read the notice could else be counted at a barrier of those that have.
#[test]
fn outdated_worker_is_at_no_barrier() {
    let (mut rig, [s0, s1], [w0, w1]) = with_table();
    rig.close(s1);
    let s1 = rig.held(1, 12, 102);
    rig.obey(s0, &CommandReply::Done);
    rig.obey(s1, &CommandReply::Done);
    rig.ask(w0, 3, Ask::Rejoin);
    rig.barrier(w0, 4, "again");
    rig.barrier(w1, 3, "again");
    assert_eq!(rig.refusal(w1, 3).code, RefusalCode::WrongIncarnation);
    assert_eq!(rig.answer(w0, 4), None);
    rig.ask(w1, 4, Ask::Rejoin);
    rig.barrier(w1, 5, "again");
    assert_eq!(rig.answer(w0, 4), Some(Answer::Done));
}

#[test]
fn job_fails_without_a_successor() {
    // Its holder has no further start; or the holder has died too, and nothing comes.
    for is_reported in [true, false] {
        let (mut rig, [_, s1], [w0, w1]) = with_table();
        rig.close(s1);
        rig.barrier(w0, 3, "x");
        rig.notices(w1);
        if is_reported {
            rig.reports(1, 11, false);
        } else {
            let due = rig.state.next_deadline().unwrap();
            assert_eq!(due, rig.now + SUCCESSOR_TIMEOUT);
            rig.now = due;
            rig.state.tick(rig.now);
            rig.actions.extend(rig.state.take_actions());
        }
        let refusal = rig.refusal(w0, 3);
        assert_eq!(refusal.code, RefusalCode::PeerFailed);
        let due = match is_reported {
            true => format!("server 1 (pid 11 on h) {HOW}"),
            false => "no successor has joined within 15s".into(),
        };
        assert!(refusal.text.contains(&due), "{refusal}");
        assert_eq!(rig.notices(w1).last(), Some(&Notice::PeerFailed(refusal)));
        assert_eq!(rig.state.next_deadline(), None);
    }
}

/// A successor reads its memory before it joins: while it is connected the wait goes on, up to its own limit. When it
/// dies meanwhile, another one is awaited.
#[test]
fn connected_successor_may_take_long() {
    let (mut rig, [_, s1], [w0, _]) = with_table();
    rig.close(s1);
    let ended = rig.now;
    rig.barrier(w0, 3, "x");
    let first = rig.connects(Role::Server, 1, "ops").unwrap();
    let tick = |rig: &mut Rig, now| {
        rig.now = now;
        rig.state.tick(now);
        rig.actions.extend(rig.state.take_actions());
    };
    tick(&mut rig, ended + 4 * SUCCESSOR_TIMEOUT);
    assert_eq!(rig.answer(w0, 3), None);
    assert_eq!(rig.state.next_deadline(), Some(ended + RESUME_TIMEOUT));
    rig.close(first);
    let due = rig.now + SUCCESSOR_TIMEOUT;
    assert_eq!(rig.state.next_deadline(), Some(due));
    let second = rig.connects(Role::Server, 1, "ops").unwrap();
    tick(&mut rig, due + SUCCESSOR_TIMEOUT);
    assert_eq!(rig.state.next_deadline(), Some(ended + RESUME_TIMEOUT));
    tick(&mut rig, ended + RESUME_TIMEOUT);
    let refusal = rig.refusal(w0, 3);
    assert!(refusal.text.contains("has joined within 600s"), "{refusal}");
    rig.close(second);
}

/// The report of a holder may arrive before the end of its server's connection.
#[test]
fn report_before_the_end_of_the_connection_frees_the_number() {
    let (mut rig, [s0, s1], [w0, _]) = with_table();
    rig.reports(1, 11, true);
    assert_eq!(rig.notices(w0).len(), 2);
    let successor = rig.held(1, 12, 102);
    rig.close(s1);
    rig.obey(s0, &CommandReply::Done);
    rig.obey(successor, &CommandReply::Done);
    assert!(matches!(rig.notices(w0)[..], [Notice::ServerRestarted(_)]));
    // A late report of the one before says nothing of the successor.
    rig.reports(1, 11, false);
    rig.ask(w0, 3, Ask::Rejoin);
    assert!(matches!(rig.answer(w0, 3), Some(Answer::Joined(_))));
}

#[test]
fn two_servers_that_end_are_one_new_beginning() {
    let (mut rig, [s0, s1], [w0, w1]) = with_table();
    rig.close(s1);
    rig.notices(w0);
    let s1 = rig.held(1, 12, 102);
    rig.close(s0);
    rig.obey(s1, &CommandReply::Done);
    assert!(matches!(rig.notices(w0)[..], [Notice::ServerEnded(_)]));
    let s0 = rig.held(0, 13, 103);
    rig.obey(s1, &CommandReply::Done);
    rig.obey(s0, &CommandReply::Done);
    let restarts = rig.notices(w0);
    assert!(
        matches!(
            restarts[..],
            [Notice::ServerRestarted(_), Notice::ServerRestarted(_)]
        ),
        "{restarts:?}"
    );
    for worker in [w0, w1] {
        rig.ask(worker, 4, Ask::Rejoin);
        assert!(matches!(rig.answer(worker, 4), Some(Answer::Joined(_))));
    }
}

/// The part of a worker that has ended would be missing from the new tables: the job fails, also if the worker ends
/// while the server is away.
#[test]
fn job_with_a_finished_worker_fails_with_its_server() {
    for finishes_late in [false, true] {
        let (mut rig, [_, s1], [w0, w1]) = with_table();
        if !finishes_late {
            rig.ask(w1, 3, Ask::Finished);
        }
        rig.barrier(w0, 3, "x");
        rig.close(s1);
        if finishes_late {
            rig.ask(w0, 4, Ask::OpenTable { name: "a".into() });
            assert_eq!(rig.answer(w0, 4), None);
            rig.ask(w1, 3, Ask::Finished);
            rig.held(1, 12, 102);
            let refusal = rig.refusal(w0, 4);
            assert_eq!(refusal.code, RefusalCode::PeerFailed);
        }
        let notices = rig.notices(w0);
        let Some(Notice::PeerFailed(refusal)) = notices.last() else {
            panic!("{notices:?}")
        };
        assert!(refusal.text.contains("server 1 (pid 11 on h)"), "{refusal}");
    }
}

#[test]
fn save_under_way_fails_at_once_and_names_the_server() {
    let (mut rig, [s0, s1], [w0, _]) = with_table();
    let (dir, clocks) = ("/m".into(), Vec::new());
    rig.ask(w0, 3, Ask::Save { dir, clocks });
    let (op, _) = rig.file_task();
    rig.file_done(op, Ok(FileDone::Begun));
    assert_eq!(rig.orders(s0).len(), 1);
    rig.close(s1);
    let refusal = rig.refusal(w0, 3);
    assert!(refusal.text.contains("server 1 (pid 11 on h)"), "{refusal}");
    assert!(matches!(rig.file_task(), (_, FileTask::Abandon(_))));
    // A save without one server's part would look complete.
    let (dir, clocks) = ("/m".into(), Vec::new());
    rig.ask(w0, 4, Ask::Save { dir, clocks });
    assert_eq!(rig.answer(w0, 4), None);
    assert!(rig.orders(s0).is_empty());
}

pub(super) fn warm(name: &str) -> TableSpec {
    TableSpec {
        durability: Durability::Warm,
        ..spec(name)
    }
}

/// Clients learn of a successor that has its memory when it serves each table, and only then is what they asked for
/// carried out: also the creation that was under way.
#[test]
fn job_goes_on_when_successor_serves_its_tables() {
    let (mut rig, [s0, s1], [w0, w1]) = with(warm("a"));
    rig.barrier(w0, 3, "before");
    rig.ask(w1, 3, Ask::CreateTable(warm("b")));
    rig.obey(s0, &CommandReply::Done);
    rig.close(s1);
    rig.reports(1, 11, true);
    rig.notices(w0);
    rig.ask(w1, 4, Ask::OpenTable { name: "a".into() });
    let s1 = rig.keeps(1, 12, 102, Some(1));
    assert!(rig.notices(w0).is_empty(), "no table is served yet");
    let orders = rig.obey(s1, &CommandReply::Done);
    let [
        Command::AdoptTable { table: a, .. },
        Command::CreateTable { table: b, .. },
    ] = &orders[..2]
    else {
        panic!("{orders:?}")
    };
    assert_eq!((a.id, b.id), (TableId(1), TableId(2)));
    let notices = rig.notices(w0);
    let [Notice::ServerResumed { restart, members }] = &notices[..] else {
        panic!("{notices:?}")
    };
    assert_eq!(restart.end, end(1, 11, 101, HOW));
    assert_eq!(members.servers[1].incarnation, Incarnation(102));
    assert_eq!(members.epoch, rig.state.epoch());
    assert!(matches!(rig.answer(w1, 3), Some(Answer::Table(_))));
    assert!(matches!(rig.answer(w1, 4), Some(Answer::Table(_))));
    // The others learn the epoch; the barrier still waits for worker 1.
    let orders = rig.obey(s0, &CommandReply::Done);
    assert_eq!(members_of(&orders[0]).epoch, rig.state.epoch());
    assert_eq!(rig.answer(w0, 3), None);
    rig.barrier(w1, 5, "before");
    assert_eq!(rig.answer(w0, 3), Some(Answer::Done));
}

/// A table that a call of the client creates is warm where all others are and servers have holders; the second worker, which
/// asks for the same, gets it.
#[test]
fn library_tables_are_warm_beside_warm_ones() {
    let own = || spec(LIBRARY_TABLES[0]);
    for (first, expected) in [(warm("a"), Durability::Warm), (spec("a"), Durability::None)] {
        let (mut rig, servers, workers) = with(first);
        rig.ask(workers[0], 3, Ask::CreateTable(own()));
        for server in servers {
            rig.obey(server, &CommandReply::Done);
        }
        rig.ask(workers[1], 3, Ask::CreateTable(own()));
        for worker in workers {
            let Some(Answer::Table(table)) = rig.answer(worker, 3) else {
                panic!("{:?}", rig.actions)
            };
            assert_eq!(table.spec.durability, expected);
        }
    }
    // Without holders no table can be warm.
    let mut rig = Rig::new(2, 2, LostWorker::FailJob, false);
    let servers = [rig.server(0), rig.server(1)];
    let workers = [rig.worker(0), rig.worker(1)];
    rig.ask(workers[0], 2, Ask::CreateTable(own()));
    for server in servers {
        rig.obey(server, &CommandReply::Done);
    }
    let Some(Answer::Table(table)) = rig.answer(workers[0], 2) else {
        panic!("{:?}", rig.actions)
    };
    assert_eq!(table.spec.durability, Durability::None);
}

/// A table that the memory has not, a successor without memory, a table that is not warm: the job begins again.
#[test]
fn job_begins_again_without_all_of_its_memory() {
    for case in 0..3 {
        let spec = if case == 2 { spec("a") } else { warm("a") };
        let (mut rig, [s0, s1], [w0, _]) = with(spec);
        rig.close(s1);
        rig.notices(w0);
        let s1 = rig.keeps(1, 12, 102, (case != 1).then_some(1));
        if case == 0 {
            let why = Refusal::new(RefusalCode::UnknownTable, [0; 4]).with_text("damaged");
            let orders = rig.obey(s1, &CommandReply::Refused(why));
            assert!(
                matches!(orders[0], Command::AdoptTable { .. }),
                "{orders:?}"
            );
        }
        let orders = rig.obey(s0, &CommandReply::Done);
        assert!(
            matches!(orders[0], Command::ReleaseTable { .. }),
            "{orders:?}"
        );
        let orders = rig.obey(s1, &CommandReply::Done);
        assert!(
            matches!(orders[0], Command::ReleaseTable { .. }),
            "{orders:?}"
        );
        let notices = rig.notices(w0);
        let [Notice::ServerRestarted(restart)] = &notices[..] else {
            panic!("{case}: {notices:?}")
        };
        let how = &restart.end.how;
        assert_eq!(how.contains("damaged"), case == 0, "{how}");
    }
}

/// A table that was released while its server was away, and nothing else, is released by the successor.
#[test]
fn table_that_only_the_memory_has_is_released() {
    let (mut rig, [_, s1], _) = with(warm("a"));
    rig.close(s1);
    let s1 = rig.keeps(1, 12, 102, Some(9));
    let orders = rig.orders(s1);
    let released = Command::ReleaseTable { id: TableId(9) };
    let is_there = orders.iter().any(|(_, order)| *order == released);
    assert!(is_there, "{orders:?}");
}

/// A finished worker's part is in the memory: the job goes on without it.
#[test]
fn job_with_a_finished_worker_goes_on_with_memory() {
    let (mut rig, [_, s1], [w0, w1]) = with(warm("a"));
    rig.ask(w1, 3, Ask::Finished);
    rig.close(s1);
    rig.notices(w0);
    let s1 = rig.keeps(1, 12, 102, Some(1));
    rig.obey(s1, &CommandReply::Done);
    let notices = rig.notices(w0);
    assert!(
        matches!(notices[..], [Notice::ServerResumed { .. }]),
        "{notices:?}"
    );
}

#[test]
fn parked_requests_of_a_client_are_limited() {
    let (mut rig, [_, s1], [w0, _]) = with_table();
    rig.close(s1);
    for n in 0..=PARKED_MAX as u64 {
        rig.ask(w0, 10 + n, Ask::OpenTable { name: "a".into() });
    }
    assert_eq!(rig.answer(w0, 10), None);
    let refusal = rig.refusal(w0, 10 + PARKED_MAX as u64);
    assert_eq!(refusal.code, RefusalCode::TooMany);
}

/// A service with one server, which has a holder, and a job of one worker.
fn service_of_one() -> (Rig, PeerId, PeerId) {
    let mut rig = Rig::with(CoordinatorConfig {
        servers: 1,
        workers: 1,
        on_lost: LostWorker::FailJob,
        lifetime: Lifetime::Service,
    });
    let server = rig.held(0, 10, 100);
    let worker = rig.enter(Role::Worker, 0, "job").unwrap();
    (rig, server, worker)
}

/// The successor ends the sessions and clocks of the job before; then the worker of the next one joins.
fn successor_ends_job(rig: &mut Rig, successor: PeerId, next: PeerId) {
    let orders = rig.obey(successor, &CommandReply::Done);
    let ends = |order: &Command| {
        matches!(order, Command::MembersChanged { namespace, members, .. }
            if namespace == "job" && members.workers.is_empty())
    };
    assert!(orders.iter().any(ends), "{orders:?}");
    assert!(matches!(rig.answer(next, 1), Some(Answer::Joined(_))));
}

/// A job ends while its server's successor is awaited. The successor is ordered to end what its memory has of it,
/// before the next job of the name begins.
#[test]
fn successor_ends_jobs_that_ended_meanwhile() {
    let (mut rig, server, worker) = service_of_one();
    rig.close(server);
    rig.ask(worker, 2, Ask::Finished);
    rig.close(worker);
    let next = rig.connects(Role::Worker, 0, "job").unwrap();
    rig.ask(next, 1, Ask::Join(Rig::join(Role::Worker, 0)));
    assert_eq!(rig.answer(next, 1), None, "servers have the job before");
    let successor = rig.keeps(0, 11, 101, Some(9));
    successor_ends_job(&mut rig, successor, next);
}

/// A successor ends before its Join. What its server was to end is ordered from the next one.
#[test]
fn endings_wait_for_successor_that_joins() {
    let (mut rig, server, worker) = service_of_one();
    rig.close(server);
    rig.ask(worker, 2, Ask::Finished);
    rig.close(worker);
    let early = rig.connects(Role::Server, 0, "ops").unwrap();
    rig.close(early);
    let next = rig.connects(Role::Worker, 0, "job").unwrap();
    rig.ask(next, 1, Ask::Join(Rig::join(Role::Worker, 0)));
    assert_eq!(
        rig.answer(next, 1),
        None,
        "no server has ended the job before"
    );
    let successor = rig.keeps(0, 11, 101, Some(9));
    successor_ends_job(&mut rig, successor, next);
}

/// A job that begins while a successor is awaited loses nothing: its requests are carried out.
#[test]
fn job_of_meanwhile_does_not_begin_again() {
    let mut rig = Rig::new(1, 0, LostWorker::FailJob, false);
    let server = rig.held(0, 10, 100);
    rig.close(server);
    let join = Join {
        workers: 1,
        ..Rig::join(Role::Worker, 0)
    };
    let worker = rig.connects(Role::Worker, 0, "new").unwrap();
    rig.ask(worker, 1, Ask::Join(join));
    assert!(matches!(rig.answer(worker, 1), Some(Answer::Joined(_))));
    rig.ask(worker, 2, Ask::CreateTable(spec("a")));
    assert_eq!(rig.answer(worker, 2), None);
    let successor = rig.held(0, 11, 101);
    let orders = rig.obey(successor, &CommandReply::Done);
    assert!(
        matches!(orders[..], [Command::CreateTable { .. }]),
        "{orders:?}"
    );
    assert!(matches!(rig.answer(worker, 2), Some(Answer::Table(_))));
    assert!(rig.notices(worker).is_empty());
}

/// The server ends before it has released a table, and the job ends before the successor joins: a successor with the
/// memory releases the table, and without it nothing is left to release.
#[test]
fn release_under_way_is_completed_without_its_job() {
    for is_kept in [true, false] {
        let (mut rig, server, worker) = service_of_one();
        rig.ask(worker, 2, Ask::CreateTable(warm("a")));
        rig.obey(server, &CommandReply::Done);
        rig.ask(worker, 3, Ask::ReleaseTable { id: TableId(1) });
        rig.close(server);
        rig.ask(worker, 4, Ask::Finished);
        rig.close(worker);
        let successor = match is_kept {
            true => rig.keeps(0, 11, 101, Some(1)),
            false => rig.held(0, 11, 101),
        };
        let orders = rig.obey(successor, &CommandReply::Done);
        let releases = Command::ReleaseTable { id: TableId(1) };
        assert_eq!(orders.contains(&releases), is_kept, "{orders:?}");
        assert!(rig.state.tables.is_empty());
    }
}

/// A server that starts while jobs run learns no number of workers that only one of them has.
#[test]
fn successor_gets_workers_of_no_job() {
    for (configured, workers) in [(0, 3), (4, 4)] {
        let mut rig = Rig::new(1, configured, LostWorker::FailJob, false);
        let s0 = rig.held(0, 10, 100);
        for rank in 0..workers {
            rig.enter(Role::Worker, rank, NAMESPACE_DEFAULT).unwrap();
        }
        rig.close(s0);
        let successor = rig.connects(Role::Server, 0, NAMESPACE_DEFAULT).unwrap();
        rig.ask(successor, 1, Ask::Members);
        let Some(Answer::Members(members)) = rig.answer(successor, 1) else {
            panic!("{:?}", rig.actions)
        };
        assert_eq!(members.workers.len(), configured as usize);
    }
}

/// A server holds the clocks for a worker and is lost before the other one has answered: the worker is refused, and
/// is not admitted at the other server alone.
#[test]
fn admission_ends_with_server_that_held() {
    let mut rig = Rig::new(2, 2, LostWorker::GoOn, false);
    let [s0, s1] = [rig.held(0, 10, 100), rig.held(1, 11, 101)];
    let [_, w1] = [rig.worker(0), rig.worker(1)];
    rig.close(w1);
    while rig.actions.iter().any(|a| matches!(a, Action::Command(..))) {
        for server in [s0, s1] {
            rig.obey(server, &CommandReply::Done);
        }
    }
    let late = rig.connects(Role::Worker, 1, "job").unwrap();
    let join = Join {
        incarnation: Incarnation(77),
        ..Rig::join(Role::Worker, 1)
    };
    rig.ask(late, 1, Ask::Join(join));
    let clocks = CommandReply::Clocks(Vec::new());
    let orders = rig.obey(s1, &clocks);
    assert!(
        matches!(&orders[..], [Command::HoldClocks { .. }]),
        "{orders:?}"
    );
    rig.close(s1);
    let refusal = rig.refusal(late, 1);
    let text = "server 1 was lost while it admitted this worker";
    assert!(refusal.text.contains(text), "{refusal}");
    rig.obey(s0, &clocks);
    assert_eq!(rig.orders(s0), []);
    // Its clocks go on when the successor has the memory of server 1.
    rig.keeps(1, 12, 102, Some(1));
    let orders = rig.orders(s0);
    let is_release =
        |order: &Command| matches!(order, Command::MembersChanged { admitted: None, .. });
    assert!(orders.iter().any(|(_, o)| is_release(o)), "{orders:?}");
}

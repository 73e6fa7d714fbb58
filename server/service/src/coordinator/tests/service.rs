//! Jobs of a service: when one is over, what remains of it, and when the next one begins.

use super::*;

/// A coordinator of a service with two servers.
fn service(workers: u32) -> (Rig, [PeerId; 2]) {
    let mut rig = Rig::with(CoordinatorConfig {
        servers: 2,
        workers,
        on_lost: LostWorker::FailJob,
        lifetime: Lifetime::Service,
    });
    let servers = [rig.server(0), rig.server(1)];
    (rig, servers)
}

fn join(workers: u32) -> Ask {
    Ask::Join(Join {
        workers,
        ..Rig::join(Role::Worker, 0)
    })
}

impl Rig {
    /// Connects a worker of "job" that says how many workers the job has; not answered yet.
    fn comes(&mut self, rank: u32, workers: u32) -> PeerId {
        let peer = self.connects(Role::Worker, rank, "job").unwrap();
        self.ask(peer, 1, join(workers));
        peer
    }

    fn joined(&mut self, peer: PeerId) -> u32 {
        self.admit();
        match self.answer(peer, 1) {
            Some(Answer::Joined(joined)) => joined.workers_expected,
            other => panic!("{other:?} instead of a welcome"),
        }
    }

    /// A table of the job, made by all servers.
    fn table(&mut self, worker: PeerId, servers: [PeerId; 2]) -> TableId {
        self.ask(worker, 9, Ask::CreateTable(spec("w")));
        for server in servers {
            self.obey(server, &CommandReply::Done);
        }
        match self.answer(worker, 9) {
            Some(Answer::Table(table)) => table.id,
            other => panic!("{other:?} instead of a table"),
        }
    }

    fn leaves(&mut self, worker: PeerId) {
        self.ask(worker, 10, Ask::Finished);
        assert_eq!(self.answer(worker, 10), Some(Answer::Done));
        self.close(worker);
    }
}

/// Whether the order ends a job.
fn is_end(order: &Command) -> bool {
    matches!(order, Command::MembersChanged { namespace, members, .. }
        if namespace == "job" && members.workers.is_empty())
}

#[test]
fn jobs_do_not_see_each_other() {
    let mut rig = Rig::new(1, 0, LostWorker::FailJob, false);
    let s0 = rig.server(0);
    let a = rig.enter(Role::Worker, RANK_ANY, "a").unwrap();
    let b = rig.enter(Role::Worker, RANK_ANY, "b").unwrap();
    rig.ask(a, 2, Ask::CreateTable(spec("t")));
    rig.obey(s0, &CommandReply::Done);
    rig.ask(b, 2, Ask::OpenTable { name: "t".into() });
    assert_eq!(rig.refusal(b, 2).code, RefusalCode::UnknownTable);
    rig.ask(b, 3, Ask::ReleaseTable { id: TableId(1) });
    assert_eq!(rig.refusal(b, 3).code, RefusalCode::UnknownTable);
    // Barriers of the same name in two jobs are independent.
    let barrier = |count| Ask::Barrier {
        name: "x".into(),
        count,
        timeout_ms: 9,
    };
    rig.ask(a, 3, barrier(2));
    rig.ask(b, 4, barrier(1));
    assert_eq!(
        (rig.answer(a, 3), rig.answer(b, 4)),
        (None, Some(Answer::Done))
    );
    // The failure of one job does not affect the other.
    rig.close(b);
    assert!(rig.notices(a).is_empty());
    // Servers learn that b is over, by a member list without workers, and that a is not.
    let told = rig.obey(s0, &CommandReply::Done);
    let [
        Command::MembersChanged {
            namespace, members, ..
        },
    ] = &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!((namespace.as_str(), &members.workers[..]), ("b", &[][..]));
    rig.ask(a, 5, Ask::OpenTable { name: "t".into() });
    assert!(matches!(rig.answer(a, 5), Some(Answer::Table(_))));
}

#[test]
fn a_job_is_over_when_all_its_workers_have_gone_and_its_tables_go_with_it() {
    for told in [0, 2] {
        // The service sets the size of a job, or its workers do.
        let (mut rig, servers) = service(2 - told);
        let [w0, w1] = [0, 1].map(|rank| rig.comes(rank, told));
        assert_eq!([rig.joined(w0), rig.joined(w1)], [2, 2]);
        let id = rig.table(w0, servers);
        rig.leaves(w0);
        for server in servers {
            rig.obey(server, &CommandReply::Done);
        }
        // The other worker is still there, and so is the job.
        let taken = rig.connects(Role::Worker, 0, "job").unwrap_err();
        assert_eq!(taken.code, RefusalCode::RankTaken);
        assert!(taken.text.contains("not over"), "{taken}");
        rig.leaves(w1);
        for server in servers {
            let orders = rig.obey(server, &CommandReply::Done);
            let at = orders.iter().position(is_end).expect("told of the end");
            assert_eq!(orders[at - 1], Command::ReleaseTable { id });
            assert_eq!(at, orders.len() - 1);
        }
        let next = rig.comes(0, told);
        assert_eq!(rig.joined(next), 2);
        rig.ask(next, 2, Ask::OpenTable { name: "w".into() });
        assert_eq!(rig.refusal(next, 2).code, RefusalCode::UnknownTable);
    }
}

#[test]
fn the_next_job_of_a_name_begins_when_all_servers_have_let_go_of_the_last() {
    let (mut rig, [s0, s1]) = service(0);
    let last = rig.comes(0, 1);
    rig.joined(last);
    rig.leaves(last);
    let next = [0, 1].map(|rank| rig.comes(rank, 2));
    // Neither may ask for anything else, nor twice, and its end is no loss.
    rig.ask(next[0], 2, Ask::CreateTable(spec("w")));
    assert!(rig.refusal(next[0], 2).text.contains("join first"));
    rig.ask(next[0], 3, join(2));
    assert!(rig.refusal(next[0], 3).text.contains("asked"));
    let gone = rig.comes(2, 9);
    rig.close(gone);
    let answered = |rig: &mut Rig| next.map(|peer| rig.answer(peer, 1).is_some());
    let end = rig.obey(s0, &CommandReply::Done).pop().unwrap();
    assert!(is_end(&end), "{end:?}");
    assert_eq!(answered(&mut rig), [false, false]);
    rig.obey(s1, &CommandReply::Done);
    assert_eq!(answered(&mut rig), [true, true]);
}

#[test]
fn a_server_that_is_lost_is_not_waited_for() {
    let (mut rig, [s0, s1]) = service(0);
    let last = rig.comes(0, 1);
    rig.joined(last);
    rig.leaves(last);
    let next = rig.comes(0, 1);
    rig.close(s1);
    rig.obey(s0, &CommandReply::Done);
    // It is admitted, to learn that its job has failed.
    let refused = rig.answer(next, 1);
    assert!(matches!(refused, Some(Answer::Joined(_))), "{refused:?}");
    let notices = rig.notices(next);
    let failed = matches!(&notices[..], [Notice::PeerFailed(why)] if why.text.contains("server 1"));
    assert!(failed, "{notices:?}");
}

#[test]
fn a_job_that_failed_leaves_nothing() {
    let (mut rig, servers) = service(0);
    let [w0, w1] = [0, 1].map(|rank| rig.comes(rank, 2));
    let id = rig.table(w0, servers);
    // A table that is still being made.
    rig.ask(w0, 2, Ask::CreateTable(spec("late")));
    rig.close(w1);
    let late = rig.connects(Role::Worker, 1, "job").unwrap_err();
    assert_eq!(late.code, RefusalCode::PeerFailed);
    rig.close(w0);
    for server in servers {
        let orders = rig.obey(server, &CommandReply::Done);
        assert!(orders.iter().any(is_end), "{orders:?}");
        for id in [id, TableId(id.0 + 1)] {
            assert!(orders.contains(&Command::ReleaseTable { id }), "{orders:?}");
        }
    }
    let next = rig.comes(1, 2);
    rig.joined(next);
}

#[test]
fn tables_of_a_job_of_unknown_size_wait_for_whoever_comes() {
    let (mut rig, servers) = service(0);
    let first = rig.comes(0, 0);
    assert_eq!(rig.joined(first), 0);
    let id = rig.table(first, servers);
    rig.leaves(first);
    for server in servers {
        assert!(!rig.obey(server, &CommandReply::Done).iter().any(is_end));
    }
    let second = rig.comes(RANK_ANY, 0);
    rig.joined(second);
    rig.ask(second, 2, Ask::OpenTable { name: "w".into() });
    assert!(matches!(rig.answer(second, 2), Some(Answer::Table(_))));
    rig.ask(second, 3, Ask::ReleaseTable { id });
    rig.leaves(second);
    for server in servers {
        let orders = rig.obey(server, &CommandReply::Done);
        let ends = orders.iter().filter(|order| is_end(order));
        assert_eq!(ends.count(), 1, "{orders:?}");
    }
}

#[test]
fn workers_of_a_job_say_the_same_of_its_size() {
    let (mut rig, _) = service(0);
    let stranger = rig.comes(5, 0);
    assert_eq!(rig.joined(stranger), 0);
    let small = rig.comes(0, 3);
    let refusal = rig.refusal(small, 1);
    assert_eq!(refusal.code, RefusalCode::BadRequest);
    assert!(refusal.text.contains("rank 5 of a job with 3"), "{refusal}");
    rig.close(small);
    let w0 = rig.comes(0, 7);
    assert_eq!(rig.joined(w0), 7);
    let other = rig.comes(1, 8);
    let refusal = rig.refusal(other, 1);
    assert!(refusal.text.contains("has 7 workers, not 8"), "{refusal}");
    // The message now names the missing worker.
    let barrier = Ask::Barrier {
        name: "x".into(),
        count: 7,
        timeout_ms: 10,
    };
    rig.ask(w0, 2, barrier);
    rig.now += Duration::from_millis(20);
    rig.state.tick(rig.now);
    rig.actions.extend(rig.state.take_actions());
    let refusal = rig.refusal(w0, 2);
    assert!(
        refusal.text.contains("rank 6 (not yet joined)"),
        "{refusal}"
    );
}

/// A worker that has joined without a number cannot wait for those that have stated one: its barriers are refused, those
/// at which it waits and those at which it arrives.
#[test]
fn barriers_without_number_end_when_one_is_stated() {
    let (mut rig, servers) = service(0);
    let first = rig.comes(0, 0);
    assert_eq!(rig.joined(first), 0);
    let other = rig.comes(1, 0);
    for answer in [members::held(0), CommandReply::Done] {
        for &server in &servers {
            rig.obey(server, &answer);
        }
    }
    assert_eq!(rig.joined(other), 0);
    let arrives = || {
        Ask::MemberBarrier(MemberBarrier {
            name: "b".into(),
            clocks: Vec::new(),
            round: 0,
            of: Vec::new(),
            timeout_ms: 1_000,
        })
    };
    rig.ask(first, 2, arrives());
    assert!(rig.answer(first, 2).is_none());
    let sized = rig.comes(2, 3);
    for answer in [members::held(0), CommandReply::Done] {
        for &server in &servers {
            rig.obey(server, &answer);
        }
    }
    assert_eq!(rig.joined(sized), 3);
    rig.ask(other, 2, arrives());
    for (rank, worker) in [first, other].into_iter().enumerate() {
        let refusal = rig.refusal(worker, 2);
        let said = format!(
            "this job has 3 workers by the word of one that has joined later than worker {rank}"
        );
        assert!(refusal.text.contains(&said), "{refusal}");
        assert!(refusal.text.contains("TIDEWATER_WORKERS=3"), "{refusal}");
    }
}

/// A worker that states a number joins a job of open size before its first tick only: ranks that have not joined would
/// be awaited from clock 0 on.
#[test]
fn open_job_that_ticks_stays_open() {
    let (mut rig, servers) = service(0);
    let workers = [0, 1].map(|rank| rig.comes(rank, 0));
    assert_eq!(workers.map(|worker| rig.joined(worker)), [0, 0]);
    let sized = rig.comes(2, 4);
    let next = rig.comes(3, 0);
    for server in servers {
        rig.obey(server, &members::held(50));
    }
    for server in servers {
        let orders = rig.obey(server, &CommandReply::Done);
        let [
            Command::MembersChanged {
                admitted: None,
                members,
                ..
            },
        ] = &orders[..]
        else {
            panic!("{orders:?}")
        };
        assert_eq!(members.workers.len(), 4, "{members:?}");
    }
    let refusal = rig.refusal(sized, 1);
    assert_eq!(
        (refusal.code, refusal.numbers),
        (RefusalCode::BadRequest, [4, 50, 0, 0])
    );
    assert!(
        refusal
            .text
            .contains("at tick 50 of domain 0; join it without"),
        "{refusal}"
    );
    rig.close(sized);
    assert_eq!(rig.joined(next), 0, "the job is of open size");
}

//! Observers, and workers that join a job that runs.

use super::*;

/// An observer has a number and no rank. Its requests for changes are refused, its end changes nothing,
/// and it learns of its job's end.
#[test]
fn observers_are_no_members() {
    let mut rig = Rig::new(1, 2, LostWorker::FailJob, false);
    let s0 = rig.server(0);
    // Before any worker of the job.
    let first = rig.enter(Role::Observer, RANK_ANY, "job").unwrap();
    let (w0, w1) = (rig.worker(0), rig.worker(1));
    rig.enter(Role::Observer, RANK_ANY, "job").unwrap();
    let rank = rig.enter(Role::Observer, 0, "job").unwrap_err();
    assert!(rank.text.contains("has no rank"), "{rank}");
    let full = rig.enter(Role::Worker, RANK_ANY, "job").unwrap_err();
    assert_eq!(full.code, RefusalCode::TooMany, "observers take no rank");
    let barrier = Ask::Barrier {
        name: "b".into(),
        count: 3,
        timeout_ms: 1,
    };
    let failed = Ask::Failed {
        reason: "no".into(),
    };
    for (id, request) in (10..).zip([barrier, Ask::CreateTable(spec("a")), failed]) {
        rig.ask(first, id, request);
        let refusal = rig.refusal(first, id);
        assert_eq!(
            (refusal.code, refusal.numbers[0]),
            (RefusalCode::Observer, 0)
        );
    }
    rig.ask(first, 20, Ask::Members);
    let Some(Answer::Members(members)) = rig.answer(first, 20) else {
        panic!("{:?}", rig.actions)
    };
    assert_eq!(members.workers.len(), 2);
    rig.close(first);
    assert!(
        rig.orders(s0).is_empty() && rig.notices(w0).is_empty(),
        "{:?}",
        rig.actions
    );
    // Its number is free again.
    let third = rig.connects(Role::Observer, RANK_ANY, "job").unwrap();
    rig.ask(third, 1, Ask::Join(Rig::join(Role::Observer, 0)));
    let Some(Answer::Joined(joined)) = rig.answer(third, 1) else {
        panic!("{:?}", rig.actions)
    };
    assert_eq!(WorkerId(joined.rank).observer(), Some(0));
    rig.close(w1);
    let told = rig.notices(third);
    assert!(
        matches!(&told[..], [Notice::PeerFailed(r)] if r.text.contains("worker 1")),
        "{told:?}"
    );
    // A service has no job before its first worker.
    let service = Rig::new(1, 0, LostWorker::FailJob, false).enter(Role::Observer, RANK_ANY, "x");
    assert!(service.unwrap_err().text.contains("no job"));
}

/// Clocks that a server reports, of domain 0.
pub(super) fn held(clock: u64) -> CommandReply {
    let domain = DomainId(0);
    CommandReply::Clocks(vec![DomainClock { domain, clock }])
}

/// A worker of an open job begins at the furthest tick of all servers. Meanwhile no member is removed,
/// and the next one waits; one that goes away lets the clocks go on without it.
#[test]
fn late_workers_begin_at_the_furthest_tick() {
    let mut rig = Rig::new(2, 0, LostWorker::GoOn, false);
    let (s0, w0) = (rig.server(0), rig.connects(Role::Worker, 0, "job").unwrap());
    rig.ask(w0, 1, Ask::Join(Rig::join(Role::Worker, 0)));
    assert!(
        rig.orders(s0).is_empty(),
        "no worker ticks before all servers are there"
    );
    let s1 = rig.connects(Role::Server, 1, "ops").unwrap();
    rig.ask(s1, 1, Ask::Join(Rig::join(Role::Server, 1)));
    let servers = [s0, s1];
    let admit = |rig: &mut Rig, clocks: [u64; 2]| {
        for (server, clock) in servers.into_iter().zip(clocks) {
            let orders = rig.obey(server, &held(clock));
            assert!(
                matches!(&orders[..], [Command::HoldClocks { namespace }] if namespace == "job"),
                "{orders:?}"
            );
        }
        servers.map(|server| rig.obey(server, &CommandReply::Done))
    };
    admit(&mut rig, [0, 0]);
    assert!(matches!(rig.answer(w0, 1), Some(Answer::Joined(_))));
    let [w1, w2] = [1, 2].map(|rank| {
        let peer = rig.connects(Role::Worker, rank, "job").unwrap();
        rig.ask(peer, 1, Ask::Join(Rig::join(Role::Worker, rank)));
        peer
    });
    // Its loss waits until the clocks go on.
    rig.close(w0);
    let orders = admit(&mut rig, [5, 7]);
    let Command::MembersChanged { admitted, .. } = &orders[0][0] else {
        panic!("{orders:?}")
    };
    let (domain, clock) = (DomainId(0), 7);
    let clock = DomainClock { domain, clock };
    assert_eq!(*admitted, Some((WorkerId(1), vec![clock])));
    assert_eq!(orders.each_ref().map(Vec::len), [1, 1]);
    let Some(Answer::Joined(joined)) = rig.answer(w1, 1) else {
        panic!("{:?}", rig.actions)
    };
    assert_eq!(joined.clocks, [clock]);
    // The loss and the next admission. A worker that has gone is not admitted.
    rig.close(w2);
    for server in servers {
        let orders = rig.orders(server);
        let [
            (id, Command::MembersChanged { members, .. }),
            (hold, Command::HoldClocks { .. }),
        ] = &orders[..]
        else {
            panic!("{orders:?}")
        };
        assert_eq!(members.workers[0].state, WorkerState::Lost);
        rig.state.answered(rig.now, server, *id, CommandReply::Done);
        rig.state.answered(rig.now, server, *hold, held(9));
    }
    rig.actions.extend(rig.state.take_actions());
    for server in servers {
        let orders = rig.obey(server, &CommandReply::Done);
        assert!(
            matches!(
                &orders[..],
                [Command::MembersChanged { admitted: None, .. }]
            ),
            "{orders:?}"
        );
    }
    assert_eq!(
        rig.log(),
        ["join 0 0:0 in job", "lost 0 in job", "join 1 0:7 in job"]
    );
}

/// A barrier of members waits for the workers that have begun at its clocks. A worker that is admitted after it
/// begins above them; one that is lost is awaited no more, and a barrier of a list with it fails.
#[test]
fn member_barriers_follow_ticks() {
    let mut rig = Rig::new(1, 0, LostWorker::GoOn, false);
    let s0 = rig.server(0);
    let [w0, w1] = [0, 1].map(|rank| rig.enter(Role::Worker, rank, "job").unwrap());
    let at = |clock: u64, round: u64, of: &[u32]| {
        Ask::MemberBarrier(MemberBarrier {
            name: "b".into(),
            clocks: vec![DomainClock {
                domain: DomainId(0),
                clock,
            }],
            round,
            of: of.iter().copied().map(WorkerId).collect(),
            timeout_ms: 1_000,
        })
    };
    let arrivals = |rig: &mut Rig, peer, id| match rig.answer(peer, id) {
        Some(Answer::Arrivals(of)) => of.iter().map(|at| (at.rank.0, at.round)).collect(),
        None => Vec::new(),
        other => panic!("{other:?}"),
    };
    rig.ask(w0, 2, at(5, 7, &[]));
    // Not the same barrier.
    rig.ask(w1, 2, at(6, 8, &[]));
    assert_eq!(arrivals(&mut rig, w0, 2), []);
    rig.ask(w1, 3, at(5, 9, &[]));
    for (peer, id) in [(w0, 2), (w1, 3)] {
        assert_eq!(arrivals(&mut rig, peer, id), [(0, 7), (1, 9)]);
    }
    // Servers report the tick of the barrier that has opened.
    let w2 = rig.connects(Role::Worker, 2, "job").unwrap();
    rig.ask(w2, 1, Ask::Join(Rig::join(Role::Worker, 2)));
    rig.obey(s0, &held(5));
    rig.obey(s0, &CommandReply::Done);
    let Some(Answer::Joined(joined)) = rig.answer(w2, 1) else {
        panic!("{:?}", rig.actions)
    };
    assert_eq!(joined.clocks[0].clock, 6);
    rig.ask(w0, 4, at(5, 1, &[]));
    rig.ask(w1, 4, at(5, 1, &[]));
    assert_eq!(arrivals(&mut rig, w1, 4).len(), 2);
    rig.ask(w0, 5, at(6, 1, &[]));
    rig.ask(w1, 5, at(6, 1, &[]));
    assert_eq!(arrivals(&mut rig, w0, 5), []);
    rig.ask(w0, 6, at(9, 1, &[0, 2]));
    rig.ask(w1, 6, at(9, 1, &[0, 1, 2]));
    let differs = rig.refusal(w1, 6);
    assert!(
        differs
            .text
            .contains("waits for 3 members, others there wait for 2 members"),
        "{differs}"
    );
    rig.close(w2);
    rig.obey(s0, &CommandReply::ThreadClocks(Vec::new()));
    for peer in [w0, w1] {
        assert_eq!(arrivals(&mut rig, peer, 5), [(0, 1), (1, 1)]);
    }
    let gone = rig.refusal(w0, 6);
    assert!(
        gone.text
            .contains("fewer are left of its job; these have left: rank 2 (lost)"),
        "{gone}"
    );
    // At its deadline the missing one is named.
    rig.ask(w0, 7, at(20, 1, &[]));
    rig.now += Duration::from_secs(2);
    rig.state.tick(rig.now);
    rig.actions.extend(rig.state.take_actions());
    let late = rig.refusal(w0, 7);
    assert!(
        late.text.contains("1 of 2 came; missing: rank 1 (alive)"),
        "{late}"
    );
}

/// A barrier at clocks that no worker has moves no later worker beyond the next tick.
#[test]
fn barrier_raises_first_clock_by_one_tick() {
    let mut rig = Rig::new(1, 0, LostWorker::GoOn, false);
    let s0 = rig.server(0);
    let w0 = rig.enter(Role::Worker, 0, "job").unwrap();
    let clocks = [0, 3].map(|domain| DomainClock {
        domain: DomainId(domain),
        clock: 1 << 62,
    });
    let alone = MemberBarrier {
        name: "b".into(),
        clocks: clocks.to_vec(),
        round: 0,
        of: vec![WorkerId(0)],
        timeout_ms: 1_000,
    };
    rig.ask(w0, 2, Ask::MemberBarrier(alone));
    assert!(matches!(rig.answer(w0, 2), Some(Answer::Arrivals(_))));
    let w1 = rig.connects(Role::Worker, 1, "job").unwrap();
    rig.ask(w1, 1, Ask::Join(Rig::join(Role::Worker, 1)));
    rig.obey(s0, &held(5));
    rig.obey(s0, &CommandReply::Done);
    let Some(Answer::Joined(joined)) = rig.answer(w1, 1) else {
        panic!("{:?}", rig.actions)
    };
    let first: Vec<_> = joined
        .clocks
        .iter()
        .map(|at| (at.domain.0, at.clock))
        .collect();
    assert_eq!(first, [(0, 6), (3, 1)]);
}

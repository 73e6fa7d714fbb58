//! Ranks over restarts of the coordinator: a rank stays with its process.

use super::*;

/// A second process asks for a rank before its worker has returned, and joins behind it: the rank is taken, and the
/// worker's answers are kept.
#[test]
fn rank_of_returned_worker_is_taken() {
    let (mut durable, _, workers) = Durable::with_table();
    for worker in workers {
        durable.rig.ask(worker, 3, barrier("x"));
    }
    durable.sync();
    durable.restart();
    let second = durable.rig.connects(Role::Worker, 0, "job").unwrap();
    let (_, workers) = durable.all_return();
    durable
        .rig
        .ask(second, 1, Durable::join(Role::Worker, 0, 99));
    durable.sync();
    assert_eq!(durable.rig.refusal(second, 1).code, RefusalCode::RankTaken);
    durable.restart();
    let (_, workers_again) = durable.all_return();
    assert_ne!(workers, workers_again);
    durable.rig.ask(workers_again[0], 3, barrier("x"));
    let answer = durable.rig.answer(workers_again[0], 3);
    assert_eq!(answer, Some(Answer::Done), "of the journal");
}

/// The end of a connection that had reserved the rank does not take the worker from its barrier.
#[test]
fn barrier_keeps_returned_worker() {
    let (mut durable, ..) = Durable::with_table();
    durable.restart();
    let second = durable.rig.connects(Role::Worker, 0, "job").unwrap();
    let (_, workers) = durable.all_return();
    durable.rig.ask(workers[0], 10, barrier("x"));
    durable.rig.close(second);
    durable.rig.ask(workers[1], 10, barrier("x"));
    for worker in workers {
        assert_eq!(durable.rig.answer(worker, 10), Some(Answer::Done));
    }
}

/// A process has taken the rank of a lost worker and was not admitted when the coordinator was killed. The rank is
/// lost as before: the job ends without it. If the process returns, it is admitted as a late worker.
#[test]
fn late_rank_is_lost_after_restart() {
    for returns in [false, true] {
        let mut durable = Durable::new(1, 2, LostWorker::GoOn, Lifetime::OneJob);
        durable.joined(Role::Server, 0, 70, 1);
        let workers = [0, 1].map(|rank| durable.joined(Role::Worker, rank, 80 + rank as u64, 1));
        durable.rig.close(workers[1]);
        durable.enter(Role::Worker, 1, 99, 1);
        durable.restart();
        let server = durable.joined(Role::Server, 0, 70, 9);
        durable.rig.obey(server, &CommandReply::Done);
        let first = durable.joined(Role::Worker, 0, 80, 9);
        if returns {
            let late = durable.enter(Role::Worker, 1, 99, 9);
            assert_eq!(durable.rig.answer(late, 9), None, "it is admitted first");
            let orders = durable.rig.orders(server);
            let holds = |(_, order): &(u64, Command)| matches!(order, Command::HoldClocks { .. });
            assert!(orders.iter().any(holds), "{orders:?}");
            continue;
        }
        durable.rig.ask(first, 10, Ask::Finished);
        let orders = durable.rig.orders(server);
        let stops = |(_, order): &(u64, Command)| matches!(order, Command::Shutdown);
        assert!(orders.iter().any(stops), "{orders:?}");
    }
}

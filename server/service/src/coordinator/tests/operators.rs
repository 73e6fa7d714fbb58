//! Operators that stop a job, and wait for its end.

use super::*;
use tidewater_protocol::limits::PARKED_MAX;

fn operator(rig: &mut Rig, namespace: &str) -> PeerId {
    rig.connects(Role::Admin, RANK_ANY, namespace).unwrap()
}

fn stop() -> Ask {
    Ask::StopJob {
        reason: "maintenance".into(),
    }
}

/// All workers get the notice, and their job goes on until they end by themselves.
#[test]
fn stop_is_passed_on_to_all_workers() {
    let mut rig = Rig::new(1, 2, LostWorker::FailJob, true);
    rig.server(0);
    let admin = operator(&mut rig, "job");
    rig.ask(admin, 1, stop());
    let refused = rig.refusal(admin, 1).to_string();
    assert!(refused.contains("no job \"job\" runs"), "{refused}");
    let workers = [rig.worker(0), rig.worker(1)];
    rig.ask(admin, 2, stop());
    assert_eq!(rig.answer(admin, 2), Some(Answer::Done));
    for worker in workers {
        let notices = rig.notices(worker);
        let reason = "maintenance".to_owned();
        assert!(notices.contains(&Notice::StopJob { reason }), "{notices:?}");
        rig.ask(worker, 9, stop());
        let refused = rig.refusal(worker, 9).to_string();
        assert!(refused.contains("only operators"), "{refused}");
    }
    let other = operator(&mut rig, "other");
    rig.ask(other, 1, stop());
    let refused = rig.refusal(other, 1).to_string();
    assert!(refused.contains("jobs that run: \"job\""), "{refused}");
}

/// A wait that begins before the workers ends with the last of them; a later one is answered at once.
#[test]
fn wait_ends_with_the_last_worker() {
    let mut rig = Rig::new(1, 2, LostWorker::FailJob, true);
    rig.server(0);
    let (early, gone) = (operator(&mut rig, "job"), operator(&mut rig, "job"));
    rig.ask(early, 1, Ask::WaitJob);
    rig.ask(gone, 1, Ask::WaitJob);
    rig.close(gone);
    let workers = [rig.worker(0), rig.worker(1)];
    rig.ask(workers[0], 2, Ask::Finished);
    assert_eq!(rig.answer(early, 1), None);
    rig.ask(workers[1], 2, Ask::Finished);
    assert_eq!(rig.answer(early, 1), Some(Answer::Done));
    assert_eq!(rig.answer(gone, 1), None);
    rig.ask(early, 2, Ask::WaitJob);
    assert_eq!(rig.answer(early, 2), Some(Answer::Done));
}

/// A failed job is answered with the failure that its workers get, in a service too, where no other job waits.
#[test]
fn wait_for_a_failed_job_names_the_failure() {
    for is_service in [false, true] {
        let workers = if is_service { 0 } else { 2 };
        let mut rig = Rig::new(1, workers, LostWorker::FailJob, !is_service);
        rig.server(0);
        let absent = operator(&mut rig, "absent");
        rig.ask(absent, 1, Ask::WaitJob);
        assert_eq!(rig.answer(absent, 1).is_some(), is_service);
        let worker = rig.worker(0);
        rig.worker(1);
        let admin = operator(&mut rig, "job");
        rig.ask(admin, 1, Ask::WaitJob);
        assert_eq!(rig.answer(admin, 1), None);
        rig.close(worker);
        let refused = rig.refusal(admin, 1);
        assert_eq!(refused.code, RefusalCode::PeerFailed);
        assert!(refused.to_string().contains("worker 0"), "{refused}");
    }
}

/// In a job of open size, which has a table for other workers, a wait ends with the workers that are there; if all are
/// lost it is refused.
#[test]
fn wait_for_a_job_of_open_size_ends_with_its_workers() {
    for is_lost in [false, true] {
        let mut rig = Rig::new(1, 0, LostWorker::GoOn, false);
        let server = rig.server(0);
        let worker = rig.worker(0);
        rig.ask(worker, 2, Ask::CreateTable(spec("a")));
        rig.obey(server, &CommandReply::Done);
        let admin = operator(&mut rig, "job");
        rig.ask(admin, 1, Ask::WaitJob);
        assert_eq!(rig.answer(admin, 1), None);
        if is_lost {
            rig.close(worker);
            let refused = rig.refusal(admin, 1);
            assert_eq!(refused.code, RefusalCode::PeerFailed);
            assert!(refused.to_string().contains("are lost"), "{refused}");
        } else {
            rig.ask(worker, 3, Ask::Finished);
            assert_eq!(rig.answer(admin, 1), Some(Answer::Done));
        }
    }
}

/// Requests of one peer that wait are limited; an answer makes room for the next one.
#[test]
fn requests_under_way_are_limited() {
    let mut rig = Rig::new(1, 1, LostWorker::FailJob, false);
    rig.server(0);
    let w0 = rig.worker(0);
    let admin = operator(&mut rig, "job");
    for id in 0..=PARKED_MAX as u64 {
        rig.ask(admin, id, Ask::WaitJob);
    }
    let refusal = rig.refusal(admin, PARKED_MAX as u64);
    let limit = PARKED_MAX as u64;
    assert_eq!(
        (refusal.code, refusal.numbers),
        (RefusalCode::TooMany, [limit + 1, limit, 0, 0])
    );
    assert_eq!(rig.answer(admin, 0), None);
    rig.ask(w0, 2, Ask::Finished);
    assert_eq!(rig.answer(admin, 0), Some(Answer::Done));
    rig.ask(admin, limit + 1, Ask::WaitJob);
    assert_eq!(rig.answer(admin, limit + 1), Some(Answer::Done));
}

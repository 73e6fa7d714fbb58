//! Lost workers of a job that goes on while a server's successor is awaited.

use super::successors::{end, warm};
use super::*;
use crate::coordinator::membership::Schedule;
use tidewater_protocol::layout::frame::CLOCK_FINISHED;

/// A job of three workers with a warm table on two servers with holders.
fn with_warm_table() -> (Rig, [PeerId; 2], [PeerId; 3]) {
    let mut rig = Rig::new(2, 3, LostWorker::GoOn, false);
    let servers = [rig.held(0, 10, 100), rig.held(1, 11, 101)];
    let workers = [rig.worker(0), rig.worker(1), rig.worker(2)];
    rig.ask(workers[0], 2, Ask::CreateTable(warm("a")));
    for server in servers {
        rig.obey(server, &CommandReply::Done);
    }
    assert!(matches!(rig.answer(workers[0], 2), Some(Answer::Table(_))));
    (rig, servers, workers)
}

fn at(clock: u64) -> Vec<ThreadClock> {
    vec![ThreadClock {
        thread: 0,
        domain: DomainId(0),
        clock,
    }]
}

/// The connection of worker 2 ends.
fn lose(rig: &mut Rig, worker: PeerId) {
    rig.state.closed(rig.now, worker);
    rig.actions.extend(rig.state.take_actions());
}

/// The server answers its orders: with this clock the one about the lost worker.
fn report(rig: &mut Rig, server: PeerId, clock: u64) -> Vec<Command> {
    let mut all = Vec::new();
    for (id, order) in rig.orders(server) {
        let reply = match order {
            Command::LoseWorker { .. } => CommandReply::ThreadClocks(at(clock)),
            _ => CommandReply::Done,
        };
        rig.state.answered(rig.now, server, id, reply);
        all.push(order);
    }
    rig.actions.extend(rig.state.take_actions());
    all
}

/// Clocks of the order to end worker 2, which comes before a list of members without it.
fn ended(orders: &[Command]) -> Option<&[ThreadClock]> {
    let place = |is_it: fn(&Command) -> bool| orders.iter().position(is_it);
    let listed = place(|order| {
        matches!(order, Command::MembersChanged { members, .. }
            if members.workers.iter().any(|w| w.state == WorkerState::Lost))
    });
    let at = place(|order| matches!(order, Command::EndWorker { .. }))?;
    assert!(listed.is_none_or(|listed| at < listed), "{orders:?}");
    match &orders[at] {
        Command::EndWorker { worker, clocks, .. } if *worker == WorkerId(2) => Some(clocks),
        other => panic!("{other:?}"),
    }
}

/// The last tick of a lost worker is at one of two servers, and the other one has ended: the memory of its successor
/// decides with it. The tick counts at both.
#[test]
fn memory_of_awaited_server_decides_loss() {
    for [clock_of_s0, clock_in_memory] in [[2, 1], [1, 2]] {
        let (mut rig, [s0, s1], [w0, _, w2]) = with_warm_table();
        rig.close(s1);
        lose(&mut rig, w2);
        let orders = report(&mut rig, s0, clock_of_s0);
        assert_eq!(ended(&orders), None, "server 1 has not been asked");
        rig.notices(w0);
        let s1 = rig.keeps(1, 12, 102, Some(1));
        let mut of_s1 = report(&mut rig, s1, clock_in_memory);
        of_s1.extend(report(&mut rig, s1, 0));
        let of_s0 = report(&mut rig, s0, 0);
        for orders in [of_s0, of_s1] {
            assert_eq!(ended(&orders), Some(&at(2)[..]), "{orders:?}");
        }
        let notices = rig.notices(w0);
        let resumed = |notice: &Notice| matches!(notice, Notice::ServerResumed { .. });
        assert!(notices.iter().any(resumed), "{notices:?}");
    }
}

/// The server ends between its report and the order that ends the worker: the successor gets the order.
#[test]
fn successor_gets_order_that_ended_worker() {
    let (mut rig, [s0, s1], [.., w2]) = with_warm_table();
    lose(&mut rig, w2);
    report(&mut rig, s0, 1);
    report(&mut rig, s1, 2);
    assert_eq!(ended(&report(&mut rig, s0, 0)), Some(&at(2)[..]));
    rig.close(s1);
    let s1 = rig.keeps(1, 12, 102, Some(1));
    assert_eq!(ended(&report(&mut rig, s1, 0)), Some(&at(2)[..]));
}

/// The same end before the server has reported: the loss waits for the memory.
#[test]
fn loss_under_way_waits_for_successor() {
    let (mut rig, [s0, s1], [.., w2]) = with_warm_table();
    lose(&mut rig, w2);
    rig.close(s1);
    assert_eq!(ended(&report(&mut rig, s0, 1)), None);
    assert_eq!(ended(&report(&mut rig, s0, 1)), None);
    let s1 = rig.keeps(1, 12, 102, Some(1));
    let mut orders = report(&mut rig, s1, 2);
    orders.extend(report(&mut rig, s1, 2));
    assert_eq!(ended(&orders), Some(&at(2)[..]));
}

/// No memory comes: the loss is completed, and the job fails, since it cannot begin again without the worker.
#[test]
fn loss_ends_without_memory() {
    for comes in [false, true] {
        let (mut rig, [s0, s1], [w0, _, w2]) = with_warm_table();
        rig.close(s1);
        lose(&mut rig, w2);
        report(&mut rig, s0, 2);
        rig.notices(w0);
        match comes {
            true => drop(rig.held(1, 12, 102)),
            false => rig.reports(1, 11, false),
        }
        let notices = rig.notices(w0);
        let Some(Notice::PeerFailed(refusal)) = notices.last() else {
            panic!("{notices:?}")
        };
        let server = end(1, 11, 101, "").to_string();
        let server = server.split(" on ").next().unwrap().to_owned();
        assert!(refusal.text.contains(&server), "{refusal} / {server}");
        assert!(rig.state.losses.is_empty());
    }
}

/// Log of a job that goes on, of the reports of both servers about the lost worker 1, which has announced its end.
fn log_of_loss(reports: [Vec<ThreadClock>; 2]) -> (Vec<ThreadClock>, Vec<String>) {
    let mut rig = Rig::new(2, 2, LostWorker::GoOn, false);
    let servers = [rig.server(0), rig.server(1)];
    let [_, w1] = [rig.worker(0), rig.worker(1)];
    rig.ask(w1, 2, leaving(5));
    lose(&mut rig, w1);
    for (server, report) in servers.into_iter().zip(reports) {
        rig.obey(server, &CommandReply::ThreadClocks(report));
    }
    let ended = rig.obey(servers[0], &CommandReply::Done);
    let Some(Command::EndWorker { clocks, .. }) = ended.first() else {
        panic!("{ended:?}")
    };
    (
        clocks.clone(),
        rig.log().into_iter().map(str::to_owned).collect(),
    )
}

fn leaving(clock: u64) -> Ask {
    let domain = DomainId(0);
    Ask::Leaving {
        clocks: vec![DomainClock { domain, clock }],
    }
}

/// One server has consumed the last frame of a thread of the lost worker. Both get the order to end it. The last frame
/// of thread 0 ends the worker: all of its pushes count, as its leave says.
#[test]
fn finish_at_one_server_is_completed() {
    let finished = |thread| ThreadClock {
        thread,
        ..at(CLOCK_FINISHED)[0]
    };
    let joined = ["join 0 in job", "join 1 in job", "leave 1 0:5 in job"];
    let (ended, log) = log_of_loss([at(5), vec![finished(0)]]);
    assert_eq!(
        (ended, &log[..]),
        (vec![finished(0)], &joined.map(str::to_owned)[..])
    );
    let of_sibling = ThreadClock {
        thread: 1,
        ..at(4)[0]
    };
    let reports = [[at(5), vec![finished(1)]], [at(5), vec![of_sibling]]];
    let (ended, log) = log_of_loss(reports.map(|report| report.concat()));
    assert_eq!(ended, [at(5), vec![finished(1)]].concat());
    assert_eq!(log.last().unwrap(), "lost 1 0:5 in job");
    assert!(Schedule::parse(&log.join("\n")).is_ok(), "{log:?}");
}

/// A worker reports a failure, twice, and then its connection ends: it is lost once. One that has finished is not lost.
#[test]
fn worker_is_lost_once() {
    let mut rig = Rig::new(1, 3, LostWorker::GoOn, false);
    rig.server(0);
    let workers = [rig.worker(0), rig.worker(1), rig.worker(2)];
    let fails = || Ask::Failed {
        reason: "no disk".into(),
    };
    for id in [2, 3] {
        rig.ask(workers[1], id, fails());
    }
    rig.agree_on_losses();
    rig.ask(workers[1], 4, fails());
    rig.close(workers[1]);
    rig.ask(workers[2], 2, leaving(0));
    rig.ask(workers[2], 3, Ask::Finished);
    rig.ask(workers[2], 4, fails());
    rig.close(workers[2]);
    let log = rig.log();
    assert_eq!(log[3..], ["lost 1 in job", "leave 2 0:0 in job"]);
    assert!(Schedule::parse(&log.join("\n")).is_ok(), "{log:?}");
}

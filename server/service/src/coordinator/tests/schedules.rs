//! Jobs that follow schedules of members, and servers without numbers.

use std::collections::VecDeque;

use super::*;
use crate::coordinator::membership::Schedule;

/// A service of two servers with a schedule, in which the loss of a worker ends nothing.
fn scheduled(text: &str) -> (Rig, [PeerId; 2]) {
    let mut rig = Rig::with(CoordinatorConfig {
        servers: 2,
        workers: 0,
        on_lost: LostWorker::GoOn,
        lifetime: Lifetime::Service,
    });
    rig.state.follow(Schedule::parse(text).unwrap());
    let servers = [rig.server(0), rig.server(1)];
    (rig, servers)
}

impl Rig {
    /// Connects a worker and asks for its stay; not answered yet.
    fn asks(&mut self, rank: u32, namespace: &str) -> PeerId {
        let peer = self.connects(Role::Worker, rank, namespace).unwrap();
        self.ask(peer, 1, Ask::Join(Self::join(Role::Worker, rank)));
        peer
    }

    fn has_joined(&mut self, peer: PeerId) -> bool {
        match self.answer(peer, 1) {
            Some(Answer::Joined(_)) => true,
            None => false,
            Some(other) => panic!("{other:?}"),
        }
    }
}

/// A worker begins when all servers have the schedule of its own job, also if another job's is under way.
#[test]
fn schedules_of_two_jobs_are_apart() {
    let (mut rig, servers) = scheduled("join 0 in a\njoin 0 in b\njoin 1 0:5 in b");
    let a = rig.asks(0, "a");
    let of_a = servers.map(|server| rig.orders(server));
    let b = rig.asks(0, "b");
    let of_b = servers.map(|server| rig.orders(server));
    assert_eq!((of_a[0].len(), of_b[0].len()), (1, 2));
    let obey = |rig: &mut Rig, orders: &[Vec<(u64, Command)>; 2]| {
        for (server, orders) in servers.iter().zip(orders) {
            for (id, _) in orders {
                rig.state
                    .answered(rig.now, *server, *id, CommandReply::Done);
            }
        }
        rig.actions.extend(rig.state.take_actions());
    };
    obey(&mut rig, &of_b);
    assert!(rig.has_joined(b) && !rig.has_joined(a));
    obey(&mut rig, &of_a);
    assert!(rig.has_joined(a));
    assert_eq!(rig.log(), ["join 0 in b", "join 0 in a"]);
    let refusal = rig.connects(Role::Worker, 0, "c").unwrap_err();
    assert!(refusal.text.contains("which has a, b"), "{refusal}");
    let refusal = rig.connects(Role::Worker, 1, "a").unwrap_err();
    assert!(refusal.text.contains("rank 1 is not in"), "{refusal}");
}

/// Servers learn the end of each stay of a rank: that of the first one before the second begins, although
/// another notification holds it back.
#[test]
fn each_stay_ends_at_the_servers() {
    let (mut rig, [s0, s1]) = scheduled("join 0\nleave 0 0:5\njoin 0 0:9\njoin 1\njoin 2");
    let peers = [0, 1, 2].map(|rank| rig.asks(rank, "default"));
    for server in [s0, s1] {
        rig.obey(server, &CommandReply::Done);
    }
    assert!(peers.iter().all(|&peer| rig.has_joined(peer)));
    // The notification of another end is under way, and is not answered.
    rig.ask(peers[2], 2, Ask::Finished);
    let state = |order: &Command| members_of(order).workers[0].state;
    assert_eq!(rig.orders(s0).len(), 1);
    rig.ask(peers[0], 2, Ask::Finished);
    rig.close(peers[0]);
    assert_eq!(rig.orders(s0), []);
    let again = rig.asks(0, "default");
    assert!(rig.has_joined(again));
    let states: Vec<WorkerState> = rig
        .orders(s0)
        .iter()
        .map(|(_, order)| state(order))
        .collect();
    assert_eq!(states, [WorkerState::Finished, WorkerState::Live]);
    // The second stay is lost.
    rig.obey(s1, &CommandReply::Done);
    rig.close(again);
    let told: Vec<Command> = (0..3)
        .flat_map(|_| rig.obey(s1, &CommandReply::Done))
        .collect();
    assert_eq!(told.last().map(state), Some(WorkerState::Lost));
}

/// A server gets the first stays of a long schedule, and one more with each answer.
#[test]
fn long_schedule_is_sent_in_parts() {
    const STAYS: u32 = 150;
    let text: String = (0..STAYS).map(|rank| format!("join {rank}\n")).collect();
    let (mut rig, servers) = scheduled(&text);
    let worker = rig.asks(7, "default");
    let mut ranks = servers.map(|_| Vec::new());
    for (server, ranks) in servers.into_iter().zip(&mut ranks) {
        let mut orders = VecDeque::new();
        loop {
            orders.extend(rig.orders(server));
            assert!(orders.len() <= 64, "{} under way", orders.len());
            assert!(!rig.has_joined(worker) || ranks.len() == STAYS as usize);
            let Some((id, order)) = orders.pop_front() else {
                break;
            };
            let Command::MembersChanged {
                admitted: Some((rank, _)),
                ..
            } = order
            else {
                panic!("{order:?}")
            };
            ranks.push(rank.0);
            rig.state.answered(rig.now, server, id, CommandReply::Done);
            rig.actions.extend(rig.state.take_actions());
            if ranks.len() == STAYS as usize {
                break;
            }
        }
    }
    assert!(ranks.iter().all(|ranks| ranks.iter().copied().eq(0..STAYS)));
    assert!(rig.has_joined(worker));
}

#[test]
fn servers_are_numbered_by_the_coordinator() {
    let mut rig = Rig::new(3, 1, LostWorker::FailJob, false);
    rig.server(1);
    let mut number = || -> Result<(PeerId, u32), Refusal> {
        let peer = rig.connects(Role::Server, RANK_ANY, "ops")?;
        rig.ask(peer, 1, Ask::Number);
        match rig.answer(peer, 1) {
            Some(Answer::Number(number)) => Ok((peer, number.0)),
            other => panic!("{other:?}"),
        }
    };
    let (first, second) = (number().unwrap(), number().unwrap());
    assert_eq!((first.1, second.1), (0, 2));
    assert_eq!(number().unwrap_err().code, RefusalCode::RankTaken);
    // Workers have no such number, and a server asks before it joins.
    let worker = rig.connects(Role::Worker, 0, "job").unwrap();
    rig.ask(worker, 1, Ask::Number);
    assert!(rig.refusal(worker, 1).text.contains("join first"));
    rig.ask(first.0, 2, Ask::Join(Rig::join(Role::Server, 0)));
    rig.ask(first.0, 3, Ask::Number);
    assert!(rig.refusal(first.0, 3).text.contains("only workers"));
}

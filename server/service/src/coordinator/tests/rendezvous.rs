//! Registration of the processes of a launch.

use tidewater_protocol::wire::control::{Part, Register, Roster};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn register(rank: u32, size: u32, part: Part) -> Register {
    Register {
        rank,
        size,
        part,
        host: format!("node{}", rank / 2),
        host_id: format!("boot{}", rank / 2),
        pid: 100 + rank,
        local_size: 2,
        timeout_ms: PATIENCE.as_millis() as u64,
    }
}

/// A coordinator that waits for `size` processes.
fn gathering(size: u32) -> Rig {
    let mut rig = Rig::new(0, 0, LostWorker::FailJob, true);
    rig.state.gather(size, Vec::new());
    rig
}

impl Rig {
    fn arrives(&mut self, rendezvous: Register) -> PeerId {
        let peer = self.connects(Role::Admin, RANK_ANY, "default").unwrap();
        self.ask(peer, 1, Ask::Register(rendezvous));
        peer
    }

    fn refused(&mut self, peer: PeerId) -> Refusal {
        match self.answer(peer, 1) {
            Some(Answer::Refused(refusal)) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    }

    fn roster(&mut self, peer: PeerId) -> Roster {
        match self.answer(peer, 1) {
            Some(Answer::Roster(roster)) => roster,
            other => panic!("not roster: {other:?}"),
        }
    }
}

/// Ranks 0 and 3 serve; the others work.
fn part_of(rank: u32) -> Part {
    match rank {
        0 | 3 => Part::Server,
        _ => Part::Worker,
    }
}

fn complete(rig: &mut Rig) -> Vec<PeerId> {
    let ranks = [5, 0, 3, 1, 4, 2];
    let mut peers: Vec<_> = ranks
        .map(|rank| (rank, rig.arrives(register(rank, 6, part_of(rank)))))
        .to_vec();
    peers.sort_unstable();
    peers.into_iter().map(|(_, peer)| peer).collect()
}

#[test]
fn when_all_have_come_each_is_told_its_number() {
    let mut rig = gathering(6);
    let first = rig.arrives(register(5, 6, Part::Worker));
    assert_eq!(rig.answer(first, 1), None, "the others are waited for");
    let early = rig.connects(Role::Worker, 0, "default").unwrap_err();
    assert!(early.text.contains("not all come"), "{early}");

    let mut rig = gathering(6);
    let peers = complete(&mut rig);
    let all: Vec<Roster> = peers.iter().map(|&peer| rig.roster(peer)).collect();
    let numbers: Vec<u32> = all.iter().map(|roster| roster.number).collect();
    assert_eq!(numbers, [0, 0, 1, 1, 2, 3]);
    assert!(
        all.iter()
            .all(|roster| (roster.servers, roster.workers) == (2, 4))
    );
    let local = |roster: &Roster| {
        (
            roster.local_number,
            roster.local_servers,
            roster.local_workers,
        )
    };
    let local: Vec<_> = all.iter().map(local).collect();
    assert_eq!(
        local,
        [
            (0, 1, 1),
            (0, 1, 1),
            (0, 1, 1),
            (0, 1, 1),
            (0, 0, 2),
            (1, 0, 2)
        ]
    );
    // From here the job and its end are as any other.
    for number in 0..2 {
        rig.enter(Role::Server, number, "default").unwrap();
    }
    let workers: Vec<PeerId> = (0..4)
        .map(|rank| rig.enter(Role::Worker, rank, "default").unwrap())
        .collect();
    assert!(
        rig.connects(Role::Worker, 4, "default").is_err(),
        "there are four"
    );
    for (&worker, &came) in workers.iter().zip([1, 2, 4, 5].map(|rank| &peers[rank])) {
        rig.ask(worker, 2, Ask::Finished);
        rig.close(worker);
        rig.close(came);
    }
    assert!(!rig.state.is_ended());
    let orders = rig.actions.iter();
    let ends = orders.filter(|a| matches!(a, Action::Command(_, _, Command::Shutdown)));
    assert_eq!(ends.count(), 2, "the servers are asked to end");
}

#[test]
fn who_does_not_come_is_named_with_the_host() {
    let mut rig = gathering(6);
    let peers = [0, 1, 2].map(|rank| rig.arrives(register(rank, 6, part_of(rank))));
    assert_eq!(rig.state.next_deadline(), Some(PATIENCE));
    rig.now = PATIENCE;
    rig.state.tick(rig.now);
    rig.actions.extend(rig.state.take_actions());
    for peer in peers {
        let refusal = rig.refused(peer);
        assert_eq!(refusal.code, RefusalCode::Timeout);
        for part in [
            "3 of 6 processes have come; missing: rank 3, 4, 5",
            "on host node1, 1 of 2 have",
            "2 are on other hosts than node0, node1",
        ] {
            assert!(refusal.text.contains(part), "{refusal}");
        }
    }
    let late = rig.connects(Role::Admin, RANK_ANY, "default").unwrap_err();
    assert!(
        late.text.contains("missing: rank 3"),
        "a late process hears it too: {late}"
    );
    assert!(!rig.state.is_ended(), "they have yet to read it");
    for peer in peers {
        rig.close(peer);
    }
    assert!(rig.state.is_ended());
}

#[test]
fn processes_may_serve_and_work_at_once() {
    let mut rig = gathering(4);
    let peers = [2, 0, 3, 1].map(|rank| (rank, rig.arrives(register(rank, 4, Part::Both))));
    for (rank, peer) in peers {
        let roster = rig.roster(peer);
        assert_eq!(
            (roster.number, roster.servers, roster.workers),
            (rank, 4, 4)
        );
        let local = (
            roster.local_number,
            roster.local_servers,
            roster.local_workers,
        );
        assert_eq!(local, (rank % 2, 2, 2));
    }
    for number in 0..4 {
        rig.enter(Role::Server, number, "default").unwrap();
        rig.enter(Role::Worker, number, "default").unwrap();
    }

    // Some may: servers and workers are numbered apart.
    let mut rig = gathering(4);
    let parts = [Part::Worker, Part::Both, Part::Server, Part::Both];
    let peers = [0, 1, 2, 3].map(|rank| rig.arrives(register(rank, 4, parts[rank as usize])));
    let rosters = peers.map(|peer| rig.roster(peer));
    assert!(
        rosters
            .iter()
            .all(|roster| (roster.servers, roster.workers) == (3, 3))
    );
    let numbers = rosters.map(|roster| (roster.number, roster.server));
    // A worker only has no number as server, and a server only the same in both.
    assert_eq!(numbers, [(0, 0), (1, 0), (1, 1), (2, 2)]);
    for number in 0..3 {
        rig.enter(Role::Server, number, "default").unwrap();
        rig.enter(Role::Worker, number, "default").unwrap();
    }
}

#[test]
fn a_host_of_the_launchers_list_from_which_nobody_comes_is_named() {
    let hosts = ["node0.cluster", "node1", "node2"].map(str::to_owned);
    for (listed, expected) in [
        (hosts.to_vec(), "no process has come from node2"),
        (
            vec!["a".into(), "b".into()],
            "on other hosts than node0, node1",
        ),
    ] {
        let mut rig = Rig::new(0, 0, LostWorker::FailJob, true);
        rig.state.gather(6, listed);
        let peers = [0, 1, 2, 3].map(|rank| rig.arrives(register(rank, 6, part_of(rank))));
        rig.now = PATIENCE;
        rig.state.tick(rig.now);
        rig.actions.extend(rig.state.take_actions());
        let refusal = rig.refused(peers[0]);
        assert!(refusal.text.contains("missing: rank 4, 5"), "{refusal}");
        assert!(refusal.text.contains(expected), "{refusal}");
    }
}

#[test]
fn two_processes_with_one_rank_both_hear_of_it() {
    let mut rig = gathering(3);
    let [first, other] = [0, 1].map(|rank| rig.arrives(register(rank, 3, part_of(rank))));
    let mut second = register(1, 3, Part::Worker);
    (second.pid, second.host) = (999, "elsewhere".into());
    let second = rig.arrives(second);
    for peer in [first, other, second] {
        let refusal = rig.refused(peer);
        assert_eq!(refusal.code, RefusalCode::RankTaken);
        for part in ["rank 1 (pid 101 on node0)", "rank 1 (pid 999 on elsewhere)"] {
            assert!(refusal.text.contains(part), "{refusal}");
        }
    }
}

#[test]
fn a_stranger_does_not_harm_a_job_that_is_complete() {
    let mut rig = gathering(6);
    let peers = complete(&mut rig);
    let stranger = rig.arrives(register(0, 6, Part::Worker));
    let refusal = rig.refused(stranger);
    assert!(
        refusal.text.contains("a meeting place of its own"),
        "{refusal}"
    );
    rig.close(stranger);
    rig.roster(peers[0]);
    rig.enter(Role::Server, 0, "default").unwrap();
}

#[test]
fn another_size_and_a_job_without_servers_fail_at_once() {
    let mut rig = gathering(2);
    let first = rig.arrives(register(0, 2, Part::Worker));
    let other = rig.arrives(register(1, 4, Part::Worker));
    for peer in [first, other] {
        let refusal = rig.refused(peer);
        assert!(
            refusal
                .text
                .contains("is of 4 processes, and rank 0 is of 2"),
            "{refusal}"
        );
    }
    for (part, says) in [
        (Part::Worker, "tidewater server :"),
        (Part::Server, "a worker"),
    ] {
        let mut rig = gathering(2);
        for peer in [0, 1].map(|rank| rig.arrives(register(rank, 2, part))) {
            let refusal = rig.refused(peer);
            assert!(refusal.text.contains(says), "{refusal}");
        }
    }
    let mut plain = Rig::new(1, 1, LostWorker::FailJob, true);
    let peer = plain.arrives(register(0, 2, Part::Worker));
    assert!(
        plain.refused(peer).text.contains("join"),
        "no process gathers there"
    );
}

#[test]
fn who_ends_before_it_has_joined_is_named_and_who_is_lost_later_too() {
    // While the coordinator waits for the others.
    let mut rig = gathering(6);
    let [first, second] = [0, 1].map(|rank| rig.arrives(register(rank, 6, part_of(rank))));
    rig.close(second);
    let refusal = rig.refused(first);
    assert!(
        refusal
            .text
            .contains("rank 1 (pid 101 on node0) ended before it had joined"),
        "{refusal}"
    );
    // Between its number and its join.
    let mut rig = gathering(6);
    let peers = complete(&mut rig);
    rig.enter(Role::Server, 0, "default").unwrap();
    let worker = rig.enter(Role::Worker, 0, "default").unwrap();
    rig.close(peers[3]);
    let assert_ended = |rig: &Rig, peer, part: &str| {
        let mut notices = rig.actions.iter().filter_map(|a| match a {
            Action::Notify(to, Notice::PeerFailed(refusal)) if *to == peer => Some(refusal),
            _ => None,
        });
        assert!(
            notices.any(|r| r.text.contains(part)),
            "{part}: {:?}",
            rig.actions
        );
    };
    assert_ended(&rig, worker, "rank 3 (pid 103 on node1) ended before");
    // During its work.
    let mut rig = gathering(6);
    complete(&mut rig);
    let server = rig.enter(Role::Server, 1, "default").unwrap();
    let [one, two] = [0, 1].map(|rank| rig.enter(Role::Worker, rank, "default").unwrap());
    rig.close(two);
    for peer in [one, server] {
        let part = "worker 1, rank 2 (pid 102 on node1): its connection ended";
        assert_ended(&rig, peer, part);
    }
    let mut rig = gathering(6);
    complete(&mut rig);
    let server_of = rig.enter(Role::Server, 1, "default").unwrap();
    let one = rig.enter(Role::Worker, 0, "default").unwrap();
    rig.close(server_of);
    assert_ended(
        &rig,
        one,
        "server 1, rank 3 (pid 103 on node1): its connection ended",
    );
}

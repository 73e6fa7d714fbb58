//! Arrival counts of pushes in the servers' ticket lines: by processor or NIC, and after a lost lane.

use std::sync::Arc;

use tidewater::connect::ConnectConfig;
use tidewater::{Client, ClientError, TableBuilder};
use tidewater_launch::TransportChoice;
use tidewater_protocol::table::PushOp;
use tidewater_service::server::ServerConfig;

use tidewater_testkit::proxy::Gateway;
use tidewater_testkit::sockets::{CLUSTER, Rig, config, token, wait};

fn counting() -> ServerConfig {
    ServerConfig {
        count_pushes: true,
        ..config()
    }
}

/// The words of each applier: counts by processors, and by NICs.
fn words(rig: &Rig) -> Vec<[u64; 2]> {
    let counters = Arc::clone(&rig.handle().memory().counters);
    let line = |applier| {
        let line = counters.words(usize::from(applier) * 64, 16).unwrap();
        [line.load_acquire(0), line.load_acquire(8)]
    };
    (0..rig.handle().appliers()).map(line).collect()
}

/// Pushes one row `pushes` times, each in its own frame, and waits until all are applied.
fn push(client: &mut Client, pushes: u64) {
    let spec = TableBuilder::rows::<i64>("counted", 1_000, 1);
    let table = client.create_table::<i64>(spec.spec());
    let table = table
        .or_else(|_| client.open_table::<i64>("counted"))
        .unwrap();
    for n in 0..pushes {
        let ticket = client.push_rows(&table, &[n % 1_000], &[1], PushOp::Sum);
        client.wait_applied(&ticket.unwrap()).unwrap();
    }
}

/// Each client reads the count of all pushes, and each word counts the pushes of its own kind.
fn all_are_counted(kinds: &[TransportChoice]) {
    let rig = Rig::with(counting());
    let mut due = [0, 0];
    let mut clients = Vec::new();
    for (rank, &kind) in (0..).zip(kinds) {
        let mut client = rig.client(kind, rank);
        let pushes = 100 + 10 * u64::from(rank);
        push(&mut client, pushes);
        due[usize::from(kind == TransportChoice::Verbs)] += pushes;
        clients.push(client);
    }
    let sum = |word: usize| words(&rig).iter().map(|line| line[word]).sum::<u64>();
    // A NIC may count a push a moment after its tail has arrived and the push was applied.
    wait(|| [sum(0), sum(1)] == due, "pushes are not counted");
    for client in &mut clients {
        let counts = client.arrivals().unwrap();
        assert_eq!(counts.len(), 2, "applier by applier");
        assert_eq!(counts.iter().sum::<u64>(), due[0] + due[1]);
        let lines = words(&rig);
        let of = |line: &[u64; 2]| line[0] + line[1];
        assert!(
            counts
                .iter()
                .eq(lines.iter().map(of).collect::<Vec<_>>().iter())
        );
    }
    // Frames that are no pushes are not counted.
    let table = clients[0].open_table::<i64>("counted").unwrap();
    let gather = tidewater::PullOptions::default().mode(tidewater::PullMode::Gather);
    let mut out = [0; 1];
    clients[0]
        .pull_rows(&table, &[1], &mut out, gather)
        .unwrap();
    assert_eq!([sum(0), sum(1)], due);
}

#[test]
fn pushes_are_counted_once_whoever_sends_them() {
    all_are_counted(&[TransportChoice::Shm, TransportChoice::Tcp]);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn pushes_over_verbs_are_counted_in_the_other_word() {
    use TransportChoice::{Shm, Tcp, Verbs};
    all_are_counted(&[Shm, Verbs, Tcp, Verbs]);
}

#[test]
fn who_is_not_told_to_count_does_not() {
    let rig = Rig::start();
    for (rank, kind) in (0..).zip([TransportChoice::Shm, TransportChoice::Tcp]) {
        let mut client = rig.client(kind, rank);
        push(&mut client, 10);
        match client.arrivals() {
            Err(ClientError::Argument { what, .. }) => {
                assert!(what.contains("--count-pushes"), "{what}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(words(&rig), [[0; 2]; 2]);
}

/// A frame is sent again after its lane was cut, but not counted again.
#[test]
fn a_push_is_counted_at_most_once_however_often_its_lane_is_cut() {
    const ROUNDS: u64 = 60;
    let rig = Rig::with(counting());
    let mut member = rig.member();
    let proxy = Gateway::to(&member.endpoints.tcp);
    member.endpoints.tcp.clone_from(&proxy.address);
    let mut config = ConnectConfig::new(token(), CLUSTER, 0);
    config.transport = TransportChoice::Tcp;
    let mut client = rig.client_at(&member, &config).unwrap();
    let spec = TableBuilder::rows::<i64>("counted", 1, 1);
    let table = client.create_table::<i64>(spec.spec()).unwrap();
    for round in 0..ROUNDS {
        let ticket = client.push_rows(&table, &[0], &[1], PushOp::Sum).unwrap();
        if round % 4 == 1 {
            (0..proxy.count()).for_each(|n| proxy.cut(n));
        }
        client.wait_applied(&ticket).unwrap();
    }
    let cut = client.counters().recoveries;
    let counts: u64 = client.arrivals().unwrap().iter().sum();
    println!("{counts} of {ROUNDS} pushes counted, {cut} recoveries");
    assert!(cut > 0, "nothing was recovered");
    // One push was in flight at each cut.
    assert!(
        counts <= ROUNDS && counts + cut >= ROUNDS,
        "{counts}, {cut}"
    );
}

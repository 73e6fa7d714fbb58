//! Iterations of tables that take effect at the clock: what is held, what is refused, and how a
//! server ends that cannot carry out what it has acknowledged.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tidewater_client::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
use tidewater_client::link::ServerLink;
use tidewater_client::{Client, ClientError, Parts, PullOptions, Sync, Table, TableBuilder};
use tidewater_server::embedded::{Cluster, ClusterConfig};
use tidewater_transport::clock::Deadline;
use tidewater_transport::ids::{ApplierId, WorkerId};
use tidewater_transport::launch::TransportChoice;
use tidewater_transport::layout::lines::RejectCode;
use tidewater_transport::table::{PushOp, Reduce};
use tidewater_transport::wake::OsSleeper;

/// Elements of a row of the tables that fill a memory.
const DIM: usize = 256;

/// Time enough for a busy machine; no test measures it.
fn long() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// A client of a job that has as many workers as the cluster says.
fn client(cluster: &Cluster, rank: u32, job: &str, sync: Sync) -> Client {
    let environment = cluster.environment();
    let mut config = JoinConfig::new(&environment.coordinator, environment.token.clone());
    (config.rank, config.namespace) = (Some(rank), job.into());
    let (mut link, _) = NetCoordinatorLink::join(&config, long()).unwrap();
    let members = link.wait_servers(environment.servers, long()).unwrap();
    let mut config = ConnectConfig::new(environment.token.clone(), link.cluster(), rank);
    (config.transport, config.epoch) = (TransportChoice::Auto, members.epoch);
    config.namespace = job.into();
    let mut sleeper = OsSleeper::new(Duration::ZERO).unwrap();
    let servers = members.servers.iter().map(|server| {
        let (link, lanes) = NetServerLink::open(server, &config, &mut sleeper, long()).unwrap();
        (Box::new(link) as Box<dyn ServerLink>, lanes)
    });
    let servers = servers.collect();
    Client::from_parts(Parts {
        coordinator: Box::new(link),
        servers,
        sleeper: Box::new(sleeper),
        rank: WorkerId(rank),
        workers: environment.workers,
        sync,
    })
    .unwrap()
}

/// A small memory for jobs that come and go.
fn small(servers: u32, workers: u32) -> Cluster {
    Cluster::start(&ClusterConfig {
        servers,
        workers,
        service: true,
        capacity: 32 << 20,
        ..Default::default()
    })
    .unwrap()
}

/// Rows of one partition, so that a full memory leaves no slot.
fn rows(client: &mut Client) -> Table<f32> {
    let spec = TableBuilder::sparse::<f32>("rows", DIM as u32)
        .partitions(1)
        .at_clock(Reduce::Sum);
    client.create_table::<f32>(spec.spec()).unwrap()
}

/// Adds 1 to each element of these rows.
fn push_ones(client: &mut Client, table: &Table<f32>, keys: &[u64]) -> Result<(), ClientError> {
    let ones = vec![1.0; keys.len() * DIM];
    let ticket = client.push_rows(table, keys, &ones, PushOp::Sum)?;
    client.wait_applied(&ticket)
}

/// Pushes new rows until the memory is full: how many are held.
fn fill(client: &mut Client, table: &Table<f32>, from: u64) -> u64 {
    const BATCH: u64 = 64;
    for first in (from..from + 100_000).step_by(BATCH as usize) {
        let keys: Vec<u64> = (first..first + BATCH).collect();
        match push_ones(client, table, &keys) {
            Ok(()) => {}
            Err(ClientError::Rejected { reject, .. }) => {
                assert_eq!(reject.code(), RejectCode::NoMemory, "{reject:?}");
                return first;
            }
            Err(e) => panic!("{e}"),
        }
    }
    panic!("a full memory refuses no push");
}

fn value(client: &mut Client, table: &Table<f32>, key: u64) -> f32 {
    let mut out = vec![-1.0; DIM];
    let pulled = client.pull_rows(table, &[key], &mut out, PullOptions::default());
    pulled.unwrap();
    assert!(out.iter().all(|v| *v == out[0]));
    out[0]
}

/// The push that finds no room fails, in its own job; what was acknowledged takes effect, and the
/// next job goes on.
#[test]
fn full_memory_refuses_the_push_not_the_tick() {
    let cluster = small(1, 1);
    let mut one = client(&cluster, 0, "one", Sync::Bsp);
    let mut other = client(&cluster, 0, "other", Sync::Bsp);
    let theirs = rows(&mut other);
    push_ones(&mut other, &theirs, &[7]).unwrap();
    let table = rows(&mut one);
    let held = fill(&mut one, &table, 0);
    assert!(held > 1_000, "{held}");
    one.tick().unwrap();
    for key in [0, held / 2, held - 1] {
        assert_eq!(value(&mut one, &table, key), 1.0, "key {key}");
    }
    // Rows that exist are pushed on, whatever the memory; the other job has lost nothing.
    push_ones(&mut one, &table, &[0]).unwrap();
    one.tick().unwrap();
    assert_eq!(value(&mut one, &table, 0), 2.0);
    other.tick().unwrap();
    assert_eq!(value(&mut other, &theirs, 7), 1.0);
    assert_eq!(cluster.failure(), None);
}

/// Waits until a server of the cluster has ended, and checks who hears of it, and what.
fn everybody_hears(cluster: &Cluster, clients: Vec<Client>, reason: &[&str]) {
    let hears = |said: &str| {
        for part in reason {
            assert!(said.contains(part), "\"{part}\" is not in: {said}");
        }
    };
    // All wait for ticks that never come.
    let waits = clients.into_iter().map(|mut client| {
        std::thread::spawn(move || {
            client.set_clock_timeout(Duration::from_secs(20));
            client.tick().and_then(|()| client.tick())
        })
    });
    for wait in waits.collect::<Vec<_>>() {
        match wait.join().unwrap() {
            Ok(()) => panic!("a tick without its server succeeds"),
            Err(e) => hears(&e.to_string()),
        }
    }
    let deadline = long();
    while cluster.failure().is_none() && !deadline.passed() {
        std::thread::sleep(Duration::from_millis(5));
    }
    hears(cluster.failure().expect("a server has ended"));
}

#[test]
fn applier_panic_ends_its_server_with_reason() {
    let cluster = small(2, 3);
    // Some worker of each job never comes, so that a second tick waits.
    let clients: Vec<Client> = ["one", "one", "other"]
        .iter()
        .zip([0, 1, 0])
        .map(|(job, rank)| client(&cluster, rank, job, Sync::Bsp))
        .collect();
    let server = cluster.server(1).unwrap();
    let asked = server.with_engine(ApplierId(0), |_| -> () { panic!("a deliberate panic") });
    asked.unwrap_err();
    everybody_hears(
        &cluster,
        clients,
        &["server 1", "applier 0", "panicked", "a deliberate panic"],
    );
}

/// A row of an acknowledged push is removed, and at the tick there is no room to make it again.
#[test]
fn lost_acknowledged_push_ends_the_server() {
    let cluster = small(1, 1);
    let mut one = client(&cluster, 0, "one", Sync::Bsp);
    let other = client(&cluster, 0, "other", Sync::Bsp);
    let table = rows(&mut one);
    push_ones(&mut one, &table, &[u64::MAX]).unwrap();
    fill(&mut one, &table, 0);
    let id = table.id();
    let removed = cluster
        .server(0)
        .unwrap()
        .with_engine(ApplierId(0), move |engine| engine.remove_row(id, u64::MAX));
    assert_eq!(removed.unwrap(), Ok(true));
    let reason = ["server 0", "applier 0", "acknowledged pushes", "--capacity"];
    everybody_hears(&cluster, vec![one, other], &reason);
}

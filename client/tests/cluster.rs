//! A whole cluster: coordinator, servers and clients over real sockets, in one process.

#![allow(clippy::unwrap_used)]

use std::io::Read as _;
use std::net::TcpStream;
use std::time::Duration;

use tidewater_client::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
use tidewater_client::link::CoordinatorLink as _;
use tidewater_client::table::TableBuilder;
use tidewater_client::{Client, ClientError, Parts, PullOptions, Sync};
use tidewater_server::embedded::{Cluster, ClusterConfig};
use tidewater_transport::clock::Deadline;
use tidewater_transport::ids::WorkerId;
use tidewater_transport::launch::TransportChoice;
use tidewater_transport::table::{Init, Optimizer, PushOp};
use tidewater_transport::wake::OsSleeper;
use tidewater_transport::wire::handshake::JobToken;
use tidewater_transport::wire::refusal::RefusalCode;

/// Time enough for a busy machine; no test measures it.
fn long() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn start(servers: u32, appliers: u16, workers: u32) -> Cluster {
    let capacity = 64 << 20;
    Cluster::start(&ClusterConfig {
        servers,
        appliers,
        workers,
        capacity,
        ..Default::default()
    })
    .unwrap()
}

fn join(cluster: &Cluster, rank: u32, namespace: &str) -> Result<NetCoordinatorLink, ClientError> {
    let environment = cluster.environment();
    let mut config = JoinConfig::new(&environment.coordinator, environment.token.clone());
    (config.rank, config.namespace) = (Some(rank), namespace.into());
    let (link, joined) = NetCoordinatorLink::join(&config, long())?;
    assert_eq!(
        (joined.rank, joined.workers_expected),
        (rank, environment.workers)
    );
    Ok(link)
}

fn client(cluster: &Cluster, rank: u32, transport: TransportChoice) -> Client {
    client_in_step(cluster, rank, transport, Sync::Asp)
}

fn client_in_step(cluster: &Cluster, rank: u32, transport: TransportChoice, sync: Sync) -> Client {
    let environment = cluster.environment();
    let mut link = join(cluster, rank, "default").unwrap();
    let members = link.wait_servers(environment.servers, long()).unwrap();
    let mut config = ConnectConfig::new(environment.token.clone(), link.cluster(), rank);
    (config.transport, config.epoch) = (transport, members.epoch);
    let mut sleeper = OsSleeper::new(Duration::ZERO).unwrap();
    let servers = members.servers.iter().map(|server| {
        let (link, lanes) = NetServerLink::open(server, &config, &mut sleeper, long()).unwrap();
        (
            Box::new(link) as Box<dyn tidewater_client::link::ServerLink>,
            lanes,
        )
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

const KEYS: [u64; 6] = [0, 1, 1 << 40, u64::MAX, 77, 78];

fn tables() -> [TableBuilder; 2] {
    let adagrad = Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 };
    let init = Init::Uniform {
        low: -1.0,
        high: 1.0,
    };
    let sparse = TableBuilder::sparse::<f32>("sparse", 4)
        .optimizer(adagrad)
        .init(init, 5);
    let blocks = TableBuilder::blocks::<f32>("blocks", 100, 50).block_bytes(4096);
    [sparse, blocks.optimizer(adagrad)]
}

/// One gradient step on both tables; all values after it.
fn step(client: &mut Client) -> Vec<f32> {
    let [sparse, blocks] = tables();
    let sparse = client.create_table::<f32>(sparse.spec()).unwrap();
    let blocks = client.create_table::<f32>(blocks.spec()).unwrap();
    let gradient: Vec<f32> = (0..24).map(|n| n as f32 / 7.0).collect();
    let pushed = client
        .push_rows(&sparse, &KEYS, &gradient, PushOp::Gradient)
        .unwrap();
    client.wait_applied(&pushed).unwrap();
    let gradient: Vec<f32> = (0..5000).map(|n| n as f32 / 9.0).collect();
    let pushed = client
        .push_dense(&blocks, 0, &gradient, PushOp::Gradient)
        .unwrap();
    client.wait_applied(&pushed).unwrap();
    let mut values = vec![0.0; 24 + 5000];
    let (rows, range) = values.split_at_mut(24);
    client
        .pull_rows(&sparse, &KEYS, rows, PullOptions::default())
        .unwrap();
    client
        .pull_dense(&blocks, 0, range, PullOptions::default())
        .unwrap();
    values
}

#[test]
fn training_goes_on_from_a_saved_model_on_other_servers_as_if_nothing_had_been() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("made/by/the/save");
    let dir = dir.to_str().unwrap();
    let straight = start(2, 2, 1);
    let mut one = client(&straight, 0, TransportChoice::Tcp);
    step(&mut one);
    let (rows, bytes) = one.save(dir, Duration::from_secs(60)).unwrap();
    // 6 rows; 5,000 elements in blocks of 1,024.
    assert_eq!(rows, 6 + 5);
    assert!(bytes > 5000 * 8, "{bytes}");
    // Optimizer state is part of the model: the second step depends on it.
    let expected = step(&mut one);
    let moved = start(3, 1, 1);
    let mut two = client(&moved, 0, TransportChoice::Auto);
    let mut loaded = two.load(dir, Duration::from_secs(60)).unwrap();
    loaded.tables.sort();
    assert_eq!(loaded.tables, ["blocks", "sparse"]);
    assert_eq!(loaded.rows, rows);
    let found = step(&mut two);
    assert!(
        expected
            .iter()
            .zip(&found)
            .all(|(a, b)| a.to_bits() == b.to_bits())
    );
    // Over a table that exists nothing is loaded.
    let error = two
        .load(dir, Duration::from_secs(60))
        .unwrap_err()
        .to_string();
    assert!(error.contains("exists"), "{error}");
    let error = two
        .load("/nonexistent", Duration::from_secs(60))
        .unwrap_err()
        .to_string();
    assert!(error.contains("/nonexistent"), "{error}");
}

#[test]
fn a_barrier_names_the_missing_and_a_lost_worker_fails_the_others() {
    let cluster = start(1, 1, 3);
    let (mut a, b) = (
        join(&cluster, 0, "default").unwrap(),
        join(&cluster, 1, "default").unwrap(),
    );
    let error = a
        .barrier("x", 3, Deadline::after(Duration::from_millis(300)))
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("rank 1 (alive), rank 2 (not yet joined)"),
        "{text}"
    );
    a.check().unwrap();
    drop(b);
    let ClientError::Refused(refusal) = a.barrier("x", 3, long()).unwrap_err() else {
        panic!("not refused")
    };
    assert_eq!(
        (refusal.code, refusal.numbers[0]),
        (RefusalCode::PeerFailed, 1)
    );
    assert!(a.check().unwrap_err().to_string().contains("worker 1"));
}

#[test]
fn strangers_and_silent_peers_disturb_nobody() {
    let cluster = start(1, 1, 2);
    let address = &cluster.environment().coordinator;
    // Slots are held by those who say nothing; garbage is shown the door.
    let silent: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let mut garbage = TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut garbage, &[0x5a; 4096]).unwrap();
    let mut said = Vec::new();
    let _ = garbage.read_to_end(&mut said);
    assert!(said.len() < 256, "{} bytes for a stranger", said.len());
    let config = JoinConfig::new(address, JobToken::new([7; 32]));
    let error = NetCoordinatorLink::join(&config, long())
        .unwrap_err()
        .to_string();
    assert!(error.contains("token"), "{error}");
    let mut a = join(&cluster, 0, "default").unwrap();
    let error = join(&cluster, 0, "default").unwrap_err().to_string();
    assert!(error.contains("rank 0 is alive"), "{error}");
    // Another job of the same name of table.
    let mut other = join(&cluster, 0, "other").unwrap();
    let [sparse, _] = tables();
    let table = a.create_table(sparse.spec(), long()).unwrap();
    assert_eq!(a.open_table("sparse", long()).unwrap(), table);
    let ClientError::Refused(refusal) = other.open_table("sparse", long()).unwrap_err() else {
        panic!("not refused")
    };
    assert_eq!(refusal.code, RefusalCode::UnknownTable);
    let mut differs = sparse.spec().clone();
    differs.seed += 1;
    let error = a.create_table(&differs, long()).unwrap_err().to_string();
    assert!(error.contains("seed is 5, asked for 6"), "{error}");
    a.release_table(table.id, long()).unwrap();
    a.finished(long()).unwrap();
    a.goodbye(long()).unwrap();
    drop(silent);
}

#[test]
fn a_cluster_ends_with_its_owner_whoever_is_connected() {
    let cluster = start(2, 1, 1);
    let mut a = join(&cluster, 0, "default").unwrap();
    drop(cluster);
    let error = loop {
        if let Err(error) = a.check() {
            break error.to_string();
        }
    };
    assert!(error.contains("shutting down"), "{error}");
    assert!(a.members(long()).is_err());
}

#[test]
fn a_worker_that_waits_for_a_clock_is_told_who_will_never_tick() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let cluster = start(1, 2, 3);
        let mut waiting = client_in_step(&cluster, 0, transport, Sync::Bsp);
        waiting.set_clock_timeout(Duration::from_secs(20));
        let (idle, lost) = (
            client_in_step(&cluster, 1, transport, Sync::Bsp),
            client_in_step(&cluster, 2, transport, Sync::Bsp),
        );
        waiting.tick().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The wait is on its way by then, or else begins with the news.
                std::thread::sleep(Duration::from_millis(300));
                drop(lost);
            });
            let started = tidewater_transport::clock::now();
            let ended = waiting.tick();
            let took = tidewater_transport::clock::now() - started;
            let Err(ClientError::Refused(refusal)) = ended else {
                panic!("{transport:?}: {ended:?}")
            };
            let told = (refusal.code, refusal.numbers[0]);
            assert_eq!(told, (RefusalCode::PeerFailed, 2), "{refusal}");
            assert!(took < Duration::from_secs(10), "{transport:?}: {took:?}");
        });
        drop(idle);
    }
}

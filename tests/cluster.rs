// long: the cluster of sockets is built once for all of its tests.

//! A complete cluster: coordinator, servers and clients over real sockets, in one process.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tidewater::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
use tidewater::link::CoordinatorLink as _;
use tidewater::table::TableBuilder;
use tidewater::{
    Client, ClientError, JoinOptions, Parts, PullMode, PullOptions, PushEncoding, PushOptions,
    SyncMode,
};
use tidewater_control::conn::{ConnError, ControlConn};
use tidewater_control::dial::{self, Claims};
use tidewater_lanes::wake::OsParker;
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::{ClusterId, Incarnation, WorkerId};
use tidewater_protocol::layout::session::lane_bytes;
use tidewater_protocol::limits::RING_BYTES_MIN;
use tidewater_protocol::table::{Init, Optimizer, PushOp, Reduce};
use tidewater_protocol::wire::control::{
    self, CoordinatorAnswer, CoordinatorRequest, Endpoints, Join, Joined, Members, Notice,
};
use tidewater_protocol::wire::handshake::{JobToken, Namespaces, ServerPolicy};
use tidewater_protocol::wire::hello::{Features, Ids, Role, Roles};
use tidewater_protocol::wire::peer::{ControlPeer, PeerEvent};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::Deadline;
use tidewater_service::coordinator::{
    CoordinatorConfig, Lifetime, Listening, LostWorker, ServeConfig, serve,
};
use tidewater_service::embedded::{Cluster, ClusterConfig};

/// Deadline that a busy machine meets; no test measures it.
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
    client_in_step(cluster, rank, transport, SyncMode::Asp)
}

fn client_in_step(
    cluster: &Cluster,
    rank: u32,
    transport: TransportChoice,
    sync: SyncMode,
) -> Client {
    let environment = cluster.environment();
    let mut link = join(cluster, rank, "default").unwrap();
    let members = link.wait_servers(environment.servers, long()).unwrap();
    let mut config = ConnectConfig::new(environment.token.clone(), link.cluster(), rank);
    (config.transport, config.epoch) = (transport, members.epoch);
    let mut parker = OsParker::new(Duration::ZERO).unwrap();
    let servers = members.servers.iter().map(|server| {
        let (link, lanes) = NetServerLink::open(server, &config, &mut parker, long()).unwrap();
        (
            Box::new(link) as Box<dyn tidewater::link::ServerLink>,
            lanes,
        )
    });
    let servers = servers.collect();
    Client::from_parts(Parts {
        coordinator: Box::new(link),
        servers,
        parker: Box::new(parker),
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

/// Makes one gradient step on both tables; returns all values after it.
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
    // An existing table is not overwritten by a load.
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

/// With a memory budget of the smallest rings every kind of call works, in more frames and replies. What
/// does not fit a frame is refused with the numbers.
#[test]
fn smallest_rings_serve_all_calls() {
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let config = ClusterConfig {
            servers: 2,
            appliers: 2,
            workers: 1,
            ..ClusterConfig::default()
        };
        let mut options = JoinOptions::from(config);
        options.transport = Some(transport);
        options.memory_budget = Some(4 * lane_bytes(RING_BYTES_MIN));
        let job = options.join().unwrap().into_job().unwrap();
        let mut client = job.client(SyncMode::Asp).unwrap();
        let keys: Vec<u64> = (0..1_000).collect();
        let values: Vec<f32> = (0..1_000 * 64).map(|n| n as f32).collect();
        let rows = TableBuilder::sparse::<f32>("rows", 64);
        let rows = client.create_table::<f32>(rows.spec()).unwrap();
        let pushed = client.push_rows(&rows, &keys, &values, PushOp::Sum);
        client.wait_applied(&pushed.unwrap()).unwrap();
        let range = TableBuilder::blocks::<f32>("range", values.len() as u64, 1).block_bytes(4096);
        let range = client.create_table::<f32>(range.spec()).unwrap();
        let pushed = client.push_dense(&range, 0, &values, PushOp::Assign);
        client.wait_applied(&pushed.unwrap()).unwrap();
        for mode in [PullMode::Consistent, PullMode::Gather] {
            let options = PullOptions {
                mode,
                ..PullOptions::default()
            };
            let mut out = vec![0.0; values.len()];
            client.pull_rows(&rows, &keys, &mut out, options).unwrap();
            assert_eq!(out, values, "{transport:?} {mode:?}");
            out.fill(0.0);
            client.pull_dense(&range, 0, &mut out, options).unwrap();
            assert_eq!(out, values, "{transport:?} {mode:?}");
        }
        let wide = TableBuilder::rows::<f32>("wide", 2, 3_000);
        let wide = client.create_table::<f32>(wide.spec()).unwrap();
        let refused = client.push_rows(&wide, &[0], &[1.0; 3_000], PushOp::Sum);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("4032"), "{text}");
        let gather = PullOptions {
            mode: PullMode::Gather,
            ..PullOptions::default()
        };
        let refused = client.pull_rows(&wide, &[0], &mut [0.0; 3_000], gather);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("12000 bytes; a reply takes 8128"), "{text}");
        client.finish().unwrap();
        job.leave().unwrap();
    }
    let mut options = JoinOptions::embedded(1, 1);
    options.memory_budget = Some(100_000);
    let job = options.join().unwrap().into_job().unwrap();
    let refused = job.client(SyncMode::Asp).unwrap_err().to_string();
    assert!(
        refused.contains("memory_budget is 100000 bytes"),
        "{refused}"
    );
}

/// A loaded table is a new one, also where another client loads it: no client takes what its encoded pushes to the released
/// table have left out along. Residuals of other tables stay.
#[test]
fn residuals_stay_with_their_tables_over_a_load() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let cluster = start(1, 1, 2);
    let mut clients = [0, 1].map(|rank| client(&cluster, rank, TransportChoice::Tcp));
    let table = |name: &str| TableBuilder::rows::<f32>(name, 2, 1);
    let options = PushOptions::default().encoding(PushEncoding::Bf16);
    // Half of a unit in the last place of bf16 at 256: it is left out.
    let value = 257.0;
    let push = |client: &mut Client, name: &str, row: usize, value: f32| {
        let table = client.open_table::<f32>(name).unwrap();
        let key = [row as u64];
        let pushed = client.push_rows_with(&table, &key, &[value], PushOp::Sum, options);
        client.wait_applied(&pushed.unwrap()).unwrap();
        let mut out = [0.0; 2];
        let all = [0, 1];
        client
            .pull_rows(&table, &all, &mut out, PullOptions::default())
            .unwrap();
        out[row]
    };
    for name in ["model", "other"] {
        clients[0].create_table::<f32>(table(name).spec()).unwrap();
        for (row, client) in clients.iter_mut().enumerate() {
            let arrived = push(client, name, row, value);
            assert_eq!(arrived.to_bits(), 256f32.to_bits(), "{name}");
        }
    }
    let other = clients[0].open_table::<f32>("other").unwrap();
    clients[0].release_table(other).unwrap();
    clients[0].save(path, Duration::from_secs(60)).unwrap();
    clients[0]
        .create_table::<f32>(table("other").spec())
        .unwrap();
    for (row, client) in clients.iter_mut().enumerate() {
        let arrived = push(client, "other", row, value);
        assert_eq!(arrived.to_bits(), 256f32.to_bits());
    }
    let model = clients[0].open_table::<f32>("model").unwrap();
    clients[0].release_table(model).unwrap();
    clients[0].load(path, Duration::from_secs(60)).unwrap();
    for (row, client) in clients.iter_mut().enumerate() {
        let arrived = push(client, "model", row, 1.0);
        assert_eq!(arrived.to_bits(), 257f32.to_bits(), "256 and 1");
        let arrived = push(client, "other", row, 1.0);
        assert_eq!(
            arrived.to_bits(),
            258f32.to_bits(),
            "256, 1, and the residual"
        );
    }
}

/// Pushes `value` to all elements of the tables of [`save_is_of_one_tick_while_others_go_on`], and ticks.
fn iterate(client: &mut Client, value: f32) {
    let sparse = client.open_table::<f32>("sparse").unwrap();
    let blocks = client.open_table::<f32>("blocks").unwrap();
    let keys: Vec<u64> = (0..300).collect();
    let values = vec![value; 300 * 4];
    let rows = client.push_rows(&sparse, &keys, &values, PushOp::Sum);
    client.wait_applied(&rows.unwrap()).unwrap();
    let range = client.push_dense(&blocks, 0, &vec![value; 5000], PushOp::Sum);
    client.wait_applied(&range.unwrap()).unwrap();
    client.tick().unwrap();
}

/// A worker saves under BSP while the others are behind. The save waits for them, not they for it: one
/// goes on to the next iteration, one connects, creates a table and ticks. The model has the pushes of
/// the first iteration on all appliers, and no others.
#[test]
fn save_is_of_one_tick_while_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let cluster = start(2, 2, 3);
    let bsp = |rank| client_in_step(&cluster, rank, TransportChoice::Tcp, SyncMode::Bsp);
    let (mut a, mut b) = (bsp(0), bsp(1));
    let [sparse, blocks] = tables().map(|table| {
        let table = table.optimizer(Optimizer::None).init(Init::Zeros, 0);
        table.at_clock(Reduce::Sum)
    });
    a.create_table::<f32>(sparse.spec()).unwrap();
    a.create_table::<f32>(blocks.snapshot().spec()).unwrap();
    iterate(&mut a, 1.0);
    std::thread::scope(|scope| {
        let saved = scope.spawn(move || {
            let saved = a.save(path, Duration::from_secs(60));
            (a, saved)
        });
        // Both servers have begun their parts.
        let begun = || std::fs::read_dir(path).unwrap().count() == 2;
        while !begun() {
            assert!(!saved.is_finished(), "the save has not waited");
            std::thread::sleep(Duration::from_millis(1));
        }
        iterate(&mut b, 10.0);
        let mut c = bsp(2);
        let other = TableBuilder::rows::<f32>("other", 10, 1);
        c.create_table::<f32>(other.spec()).unwrap();
        assert!(!saved.is_finished(), "rank 2 has not ticked");
        iterate(&mut c, 100.0);
        iterate(&mut b, 1000.0);
        let (mut a, saved) = saved.join().unwrap();
        assert_eq!(saved.unwrap().0, 300 + 5);
        a.finish().unwrap();
        b.finish().unwrap();
        c.finish().unwrap();
    });
    let next = start(1, 1, 1);
    let mut client = client(&next, 0, TransportChoice::Auto);
    let loaded = client.load(path, Duration::from_secs(60)).unwrap();
    assert!(
        loaded.clocks.iter().all(|clock| clock.clock == 1),
        "{loaded:?}"
    );
    let sparse = client.open_table::<f32>("sparse").unwrap();
    let blocks = client.open_table::<f32>("blocks").unwrap();
    let keys: Vec<u64> = (0..300).collect();
    let mut values = vec![0.0; 300 * 4 + 5000];
    let (rows, range) = values.split_at_mut(300 * 4);
    let options = PullOptions::default();
    client.pull_rows(&sparse, &keys, rows, options).unwrap();
    client.pull_dense(&blocks, 0, range, options).unwrap();
    assert!(values.iter().all(|value| *value == 111.0), "{values:?}");
}

/// A manifest that cannot be opened for now, as on a file system that hangs, holds its load and nothing
/// else: the coordinator serves other requests meanwhile.
#[test]
fn hung_file_system_holds_its_load_only() {
    let dir = tempfile::tempdir().unwrap();
    let [hung, other] = ["hung", "other"].map(|name| dir.path().join(name));
    std::fs::create_dir(&hung).unwrap();
    let manifest = hung.join("manifest.json");
    // The open of a pipe waits for a writer.
    let made = std::process::Command::new("mkfifo").arg(&manifest).status();
    assert!(made.unwrap().success());
    let cluster = start(1, 1, 2);
    let mut a = client(&cluster, 0, TransportChoice::Tcp);
    let mut b = client(&cluster, 1, TransportChoice::Tcp);
    step(&mut b);
    std::thread::scope(|scope| {
        let path = hung.to_str().unwrap();
        let load = scope.spawn(move || {
            let loaded = a.load(path, Duration::from_secs(60));
            (a, loaded)
        });
        // It has locked the directory, and opens the manifest.
        let inode = format!(":{} ", std::fs::metadata(&hung).unwrap().ino());
        while !std::fs::read_to_string("/proc/locks")
            .unwrap()
            .contains(&inode)
        {
            assert!(!load.is_finished(), "the load was not held");
            std::thread::sleep(Duration::from_millis(1));
        }
        step(&mut b);
        let spec = TableBuilder::rows::<f32>("new", 10, 1);
        b.create_table::<f32>(spec.spec()).unwrap();
        assert!(!load.is_finished(), "the load was not held");
        drop(std::fs::OpenOptions::new().write(true).open(&manifest));
        // A worker that leaves would fail the job.
        let (_a, loaded) = load.join().unwrap();
        let error = loaded.unwrap_err().to_string();
        assert!(error.contains("manifest.json"), "{error}");
        let path = other.to_str().unwrap();
        b.save(path, Duration::from_secs(60)).unwrap();
    });
}

/// A model holds the numbers that were set: the training goes on with them, not with those of the
/// definition.
#[test]
fn settings_go_on_from_a_saved_model() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let straight = start(2, 2, 1);
    let mut one = client(&straight, 0, TransportChoice::Tcp);
    step(&mut one);
    for table in ["sparse", "blocks"] {
        let table = one.open_table::<f32>(table).unwrap();
        let set = one.set_optimizer(
            &table,
            Optimizer::AdaGrad {
                lr: 0.03,
                eps: 1e-6,
            },
        );
        one.wait_applied(&set.unwrap()).unwrap();
    }
    one.save(dir, Duration::from_secs(60)).unwrap();
    let expected = step(&mut one);
    let moved = start(1, 3, 1);
    let mut two = client(&moved, 0, TransportChoice::Auto);
    two.load(dir, Duration::from_secs(60)).unwrap();
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(step(&mut two)), bits(expected));
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
    // Silent connections hold slots; garbage is closed.
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
        let mut waiting = client_in_step(&cluster, 0, transport, SyncMode::Bsp);
        waiting.set_clock_timeout(Duration::from_secs(20));
        let (idle, lost) = (
            client_in_step(&cluster, 1, transport, SyncMode::Bsp),
            client_in_step(&cluster, 2, transport, SyncMode::Bsp),
        );
        waiting.tick().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // By then the wait is in flight, or it begins with the notice.
                std::thread::sleep(Duration::from_millis(300));
                drop(lost);
            });
            let started = tidewater_runtime::clock::now();
            let ended = waiting.tick();
            let took = tidewater_runtime::clock::now() - started;
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

/// A coordinator of one job, as another launcher starts it, with a server that does not end. The
/// cluster stays in its shutdown for the complete grace period.
struct OneJob {
    coordinator: String,
    token: JobToken,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    server: Option<ControlConn<TcpStream>>,
}

impl OneJob {
    fn start(workers: u32) -> Self {
        let token = JobToken::new([9; 32]);
        let listening = Listening::bind(ServeConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            advertise: None,
            token: token.clone(),
            namespaces: Vec::new(),
            cluster: CoordinatorConfig {
                servers: 1,
                workers,
                on_lost: LostWorker::FailJob,
                lifetime: Lifetime::OneJob,
            },
        })
        .unwrap();
        let coordinator = listening.address().to_owned();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || serve(listening, &[stopped.as_fd()]).unwrap());
        let server = Some(raw(&coordinator, &token, Role::Server, 0));
        Self {
            coordinator,
            token,
            stop: Some(stop),
            thread: Some(thread),
            server,
        }
    }

    fn join(&self, rank: u32) -> Result<NetCoordinatorLink, ClientError> {
        let mut config = JoinConfig::new(&self.coordinator, self.token.clone());
        config.rank = Some(rank);
        NetCoordinatorLink::join(&config, long()).map(|(link, _)| link)
    }
}

/// A member that joins and is then passive: a server neither answers commands nor ends, a worker reads
/// answers as they arrive.
fn raw(coordinator: &str, token: &JobToken, role: Role, rank: u32) -> ControlConn<TcpStream> {
    let claims = Claims {
        ids: Ids::default(),
        namespace: "default".into(),
        role,
        rank,
    };
    let mut conn = dial::control(coordinator, token, &claims, long()).unwrap();
    let tcp = if role == Role::Server {
        "127.0.0.1:1"
    } else {
        ""
    };
    let join = CoordinatorRequest::Join(Join {
        host: "h".into(),
        host_id: "boot".into(),
        pid: 1,
        incarnation: Incarnation(1),
        endpoints: Endpoints {
            tcp: tcp.into(),
            unix: String::new(),
        },
        appliers: u16::from(role == Role::Server),
        workers: 0,
    });
    let joined = conn.call(&join, || long().left()).unwrap();
    assert!(matches!(joined, CoordinatorAnswer::Joined(_)), "{joined:?}");
    conn
}

impl Drop for OneJob {
    fn drop(&mut self) {
        (self.stop, self.server) = (None, None);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || std::thread::panicking());
    }
}

fn refusal_of(error: &ClientError) -> &Refusal {
    match error {
        ClientError::Refused(refusal) => refusal,
        other => panic!("not refused: {other}"),
    }
}

/// Every survivor learns the lost worker's rank, also with a request after the loss has ended the
/// cluster. A worker that joins then learns why the cluster ends.
#[test]
fn request_after_loss_names_lost_worker() {
    let job = OneJob::start(4);
    let [mut waits, mut asks_later, lost] = [0, 1, 2].map(|rank| job.join(rank).unwrap());
    let mut sees_answers = raw(&job.coordinator, &job.token, Role::Worker, 3);
    let told = std::thread::scope(|scope| {
        let told = scope.spawn(|| waits.barrier("epoch", 4, long()));
        drop(lost);
        told.join().unwrap().unwrap_err()
    });
    // The coordinator failed the job and stopped the cluster before it answered that.
    let later = asks_later.barrier("epoch", 4, long()).unwrap_err();
    let barrier = CoordinatorRequest::Barrier {
        name: "epoch".into(),
        count: 4,
        timeout_ms: 60_000,
    };
    let answer = sees_answers.call(&barrier, || long().left());
    let Err(ConnError::Refused(answer)) = answer else {
        panic!("not refused: {answer:?}")
    };
    for error in [told, later, answer.into()] {
        let refusal = refusal_of(&error);
        assert_eq!(
            (refusal.code, refusal.numbers[0]),
            (RefusalCode::PeerFailed, 2),
            "{refusal}"
        );
        assert!(refusal.text.contains("worker 2"), "{refusal}");
    }
    let error = job.join(2).unwrap_err().to_string();
    assert!(error.contains("shutting down: worker 2"), "{error}");
}

/// Admission policy of a scripted coordinator: processes of these roles.
fn policy(token: JobToken, roles: &[Role]) -> ServerPolicy {
    ServerPolicy {
        token,
        features: Features::default(),
        ids: Ids {
            cluster: ClusterId(1),
            epoch: 1,
            incarnation: Incarnation(1),
        },
        role: Role::Coordinator,
        number: 0,
        namespaces: Namespaces::Any,
        control_roles: Roles::of(roles),
        lane_roles: Roles::default(),
        tells_ids: true,
    }
}

/// A scripted coordinator: admits one worker, then answers each request with a notice and a refusal.
fn scripted(listener: &TcpListener, token: JobToken, notice: &Notice, refusal: &Refusal) {
    let policy = policy(token, &[Role::Worker]);
    let (mut stream, _) = listener.accept().unwrap();
    let mut peer = ControlPeer::accepted([3; 32]);
    let mut bytes = [0; 4096];
    loop {
        let count = match stream.read(&mut bytes).unwrap() {
            0 => return,
            count => count,
        };
        assert_eq!(peer.feed(&bytes[..count]), count);
        loop {
            let asked = match peer.next(&policy, |_| Ok(())).unwrap() {
                None => break,
                Some(PeerEvent::Admitted(_)) => continue,
                Some(PeerEvent::Message(frame)) => {
                    control::decode::<CoordinatorRequest>(&frame).unwrap()
                }
            };
            let answer = if matches!(asked.1, CoordinatorRequest::Join(_)) {
                CoordinatorAnswer::Joined(Joined {
                    rank: 0,
                    servers_expected: 1,
                    workers_expected: 2,
                    clocks: Vec::new(),
                    members: Members {
                        epoch: 1,
                        revision: 1,
                        servers: Vec::new(),
                        workers: Vec::new(),
                    },
                })
            } else {
                peer.queue(0, notice).unwrap();
                CoordinatorAnswer::Refused(refusal.clone())
            };
            peer.queue(asked.0, &answer).unwrap();
        }
        let out = peer.outgoing().to_vec();
        stream.write_all(&out).unwrap();
        peer.sent(out.len());
    }
}

/// The child of [`server_without_descriptors_waits_and_serves_again`]. A cluster in a process that uses
/// up its descriptors at a line on its input, and frees them at the next.
#[test]
#[ignore = "started by server_without_descriptors_waits_and_serves_again"]
fn cluster_of_few_descriptors_in_this_process() {
    let cluster = Cluster::start(&ClusterConfig {
        capacity: 64 << 20,
        workers: 2,
        token: Some(JobToken::new([9; 32])),
        ..Default::default()
    })
    .unwrap();
    let next_line = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the test has gone");
    };
    eprintln!("=at {}", cluster.environment().coordinator);
    next_line();
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(512);
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut full = Vec::new();
    let error = loop {
        match null.try_clone() {
            Ok(one) => full.push(one),
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(24), "{error}");
    eprintln!("=full");
    next_line();
    drop(full);
    eprintln!("=free");
    next_line();
}

/// Joins the cluster at `address` as `rank` of two; returns the client and the server's address.
fn join_as(address: &str, rank: u32, deadline: Deadline) -> Result<(Client, String), ClientError> {
    let mut config = JoinConfig::new(address, JobToken::new([9; 32]));
    config.rank = Some(rank);
    let (mut link, _) = NetCoordinatorLink::join(&config, deadline)?;
    let members = link.wait_servers(1, deadline)?;
    let mut config = ConnectConfig::new(JobToken::new([9; 32]), link.cluster(), rank);
    config.epoch = members.epoch;
    let mut parker = OsParker::new(Duration::ZERO).unwrap();
    let (server, lanes) = NetServerLink::open(&members.servers[0], &config, &mut parker, deadline)?;
    let client = Client::from_parts(Parts {
        coordinator: Box::new(link),
        servers: vec![(Box::new(server), lanes)],
        parker: Box::new(parker),
        rank: WorkerId(rank),
        workers: 2,
        sync: SyncMode::Asp,
    })?;
    Ok((client, members.servers[0].endpoints.tcp.clone()))
}

/// A server without free descriptors serves its connections and lets new ones wait. It accepts those
/// when descriptors are free again.
#[test]
fn server_without_descriptors_waits_and_serves_again() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cluster_of_few_descriptors_in_this_process"])
        .args(["--ignored", "--nocapture"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
    let mut said = |what: &str| {
        let mut before = Vec::new();
        for line in lines.by_ref().map(Result::unwrap) {
            if let Some(rest) = line.strip_prefix('=').and_then(|l| l.strip_prefix(what)) {
                return rest.trim().to_owned();
            }
            before.push(line);
        }
        panic!("the cluster ends without \"{what}\": {before:#?}");
    };
    let address = said("at");
    let (mut first, server) = join_as(&address, 0, long()).unwrap();
    let spec = TableBuilder::sparse::<f32>("t", 1);
    let table = first.create_table::<f32>(spec.spec()).unwrap();
    let mut count = 0.0;
    let mut add = |client: &mut Client| {
        let table = client.open_table::<f32>("t").unwrap();
        let pushed = client.push_rows(&table, &[3], &[1.0], PushOp::Sum).unwrap();
        client.wait_applied(&pushed).unwrap();
        count += 1.0;
        let mut out = [-1.0];
        let how = PullOptions::default();
        client.pull_rows(&table, &[3], &mut out, how).unwrap();
        assert_eq!(out, [count]);
    };
    add(&mut first);
    input.write_all(b"use them up\n").unwrap();
    said("full");
    add(&mut first);
    // The server, too, has a pending connection that it cannot accept.
    let _waits = TcpStream::connect(server).unwrap();
    let soon = Deadline::after(Duration::from_millis(300));
    let error = join_as(&address, 1, soon).unwrap_err();
    assert!(error.to_string().contains(&address), "{error}");
    add(&mut first);
    // A waiting client is accepted as soon as descriptors are free.
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| join_as(&address, 1, Deadline::after(Duration::from_secs(40))));
        input.write_all(b"free them\n").unwrap();
        said("free");
        let (mut second, _) = waits.join().unwrap().unwrap();
        add(&mut second);
        add(&mut first);
    });
    assert!(first.spec(&table).is_some());
    drop(first);
    input.write_all(b"end\n").unwrap();
    assert!(child.wait().unwrap().success());
}

/// A refusal in the handshake reaches the caller as a refusal, like one of the join request.
#[test]
fn refusal_in_handshake_is_typed() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let token = JobToken::new([9; 32]);
    let config = JoinConfig::new(listener.local_addr().unwrap().to_string(), token.clone());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let policy = policy(token, &[Role::Server]);
            let (mut stream, _) = listener.accept().unwrap();
            let mut peer = ControlPeer::accepted([3; 32]);
            let mut bytes = [0; 4096];
            let refused = loop {
                let count = stream.read(&mut bytes).unwrap();
                assert!(count > 0, "the worker left before it was refused");
                assert_eq!(peer.feed(&bytes[..count]), count);
                let stepped = peer.next(&policy, |_| Ok(())).map(drop);
                let out = peer.outgoing().to_vec();
                stream.write_all(&out).unwrap();
                peer.sent(out.len());
                if let Err(e) = stepped {
                    break e;
                }
            };
            assert!(refused.to_string().contains("refused"), "{refused}");
        });
        let error = NetCoordinatorLink::join(&config, long()).unwrap_err();
        let ClientError::Refused(refusal) = &error else {
            panic!("{error:?}");
        };
        assert_eq!(refusal.code, RefusalCode::RoleNotAllowed, "{error}");
    });
}

/// If a request is refused because the cluster ends, its error is the failure from the notice. Another
/// refusal is the answer to the request, and stays.
#[test]
fn shutdown_refusal_yields_to_failure_notice() {
    let failure = Refusal::new(RefusalCode::PeerFailed, [4, 0, 0, 0]).with_text("worker 4: killed");
    let notice = Notice::PeerFailed(failure.clone());
    for (code, expected) in [
        (RefusalCode::ShuttingDown, RefusalCode::PeerFailed),
        (RefusalCode::UnknownTable, RefusalCode::UnknownTable),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let token = JobToken::new([9; 32]);
        let mut config = JoinConfig::new(listener.local_addr().unwrap().to_string(), token.clone());
        config.rank = Some(0);
        let refusal = Refusal::new(code, [0; 4]);
        std::thread::scope(|scope| {
            scope.spawn(|| scripted(&listener, token, &notice, &refusal));
            let (mut link, _) = NetCoordinatorLink::join(&config, long()).unwrap();
            let error = link.barrier("epoch", 2, long()).unwrap_err();
            assert_eq!(refusal_of(&error).code, expected, "{error}");
            if expected == failure.code {
                assert_eq!(refusal_of(&error), &failure);
            }
        });
    }
}

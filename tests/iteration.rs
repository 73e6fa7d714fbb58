// long: all tests share the clients that are connected by hand.

//! Iterations of tables that apply at the tick: held pushes, refusals, and the end of a server that
//! cannot apply what it has acknowledged.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

use std::time::Duration;

use tidewater::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
use tidewater::link::{ConnectThread, OpenLane, ServerLink, ThreadLinks};
use tidewater::{Client, ClientError, Parts, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_lanes::fabric::TransportKind;
use tidewater_lanes::wake::OsParker;
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::{ApplierId, DomainId, SessionId, TableId, WorkerId, WorkerThread};
use tidewater_protocol::layout::lines::RejectCode;
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_protocol::wire::control::{ServerMember, TableDescriptor};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use tidewater_service::embedded::{Cluster, ClusterConfig};

/// Elements of a row in the tables that fill a memory.
const DIM: usize = 256;

/// Deadline that a busy machine meets; no test measures it.
fn long() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Connects a client of a job with as many workers as the cluster is configured for.
fn client(cluster: &Cluster, rank: u32, job: &str, sync: SyncMode) -> Client {
    client_over(cluster, TransportChoice::Auto, (rank, job), sync)
}

fn client_over(
    cluster: &Cluster,
    transport: TransportChoice,
    (rank, job): (u32, &str),
    sync: SyncMode,
) -> Client {
    let environment = cluster.environment();
    let mut config = JoinConfig::new(&environment.coordinator, environment.token.clone());
    (config.rank, config.namespace) = (Some(rank), job.into());
    let (mut link, _) = NetCoordinatorLink::join(&config, long()).unwrap();
    let members = link.wait_servers(environment.servers, long()).unwrap();
    let mut config = ConnectConfig::new(environment.token.clone(), link.cluster(), rank);
    (config.transport, config.epoch) = (transport, members.epoch);
    config.namespace = job.into();
    let threads = Threads {
        servers: members.servers,
        config,
        refusals: Arc::default(),
    };
    let ThreadLinks { servers, parker } = threads.connect(0, long()).unwrap();
    let mut client = Client::from_parts(Parts {
        coordinator: Box::new(link),
        servers,
        parker,
        rank: WorkerId(rank),
        workers: environment.workers,
        sync,
    })
    .unwrap();
    client.connect_siblings_by(Arc::new(threads));
    client
}

/// Connects the threads of a worker. Of a sibling's sessions the last one does not end at the first
/// attempt.
struct Threads {
    servers: Vec<ServerMember>,
    config: ConnectConfig,
    refusals: Arc<AtomicU64>,
}

impl ConnectThread for Threads {
    fn connect(&self, thread: u32, deadline: Deadline) -> Result<ThreadLinks, ClientError> {
        let mut config = self.config.clone();
        config.thread = thread;
        let mut parker = OsParker::new(Duration::ZERO).unwrap();
        let mut servers = Vec::new();
        for (n, server) in self.servers.iter().enumerate() {
            let (link, lanes) = NetServerLink::open(server, &config, &mut parker, deadline)?;
            let link: Box<dyn ServerLink> = match thread > 0 && n + 1 == self.servers.len() {
                true => Box::new(LastLink(link, Arc::clone(&self.refusals))),
                false => Box::new(link),
            };
            servers.push((link, lanes));
        }
        let parker = Box::new(parker);
        Ok(ThreadLinks { servers, parker })
    }
}

/// A session that does not end at the first attempt.
struct LastLink(NetServerLink, Arc<AtomicU64>);

impl ServerLink for LastLink {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn session(&self) -> SessionId {
        self.0.session()
    }

    fn transport(&self) -> TransportKind {
        self.0.transport()
    }

    fn ring_bytes(&self) -> usize {
        self.0.ring_bytes()
    }

    fn describe(&mut self, table: TableId, d: Deadline) -> Result<TableDescriptor, ClientError> {
        self.0.describe(table, d)
    }

    fn clocks(
        &mut self,
        domain: DomainId,
        deadline: Deadline,
    ) -> Result<Vec<(WorkerThread, u64)>, ClientError> {
        self.0.clocks(domain, deadline)
    }

    fn check(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        self.0.check(deadline)
    }

    fn end_session(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        if self.1.fetch_add(1, Ordering::Relaxed) == 0 {
            let (op, missing) = ("detach", "the last server".into());
            return Err(ClientError::Deadline { op, missing });
        }
        self.0.end_session(deadline)
    }

    fn recover(&mut self, applier: ApplierId, d: Deadline) -> Result<OpenLane, ClientError> {
        self.0.recover(applier, d)
    }
}

/// A sibling's `finish` that failed on the last of two servers continues there when it is repeated, and
/// frees the thread's number.
#[test]
fn finish_of_a_sibling_is_repeated() {
    let cluster = small(2, 1);
    let mut first = client(&cluster, 0, "job", SyncMode::Bsp);
    let table = rows(&mut first);
    let mut sibling = first.sibling().unwrap();
    sibling.set_timeout(Duration::from_secs(5));
    let its = sibling.open_table::<f32>("rows").unwrap();
    push_ones(&mut sibling, &its, &[1, 2]).unwrap();
    let failed = sibling.finish();
    assert!(
        matches!(failed, Err(ClientError::Deadline { op: "detach", .. })),
        "{failed:?}"
    );
    sibling.finish().unwrap();
    drop(sibling);
    first.tick().unwrap();
    assert_eq!(value(&mut first, &table, 1).to_bits(), 1.0f32.to_bits());
    assert_eq!(first.sibling().unwrap().thread(), 1);
}

/// A cluster with a small memory for successive jobs.
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

/// Creates a table of rows in one partition, so that a full memory leaves no slot.
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

/// Pushes new rows until the row memory is full, and ticks now and then to keep the held data small.
/// Returns the number of pushed rows.
fn fill(client: &mut Client, table: &Table<f32>, from: u64) -> u64 {
    fill_by(client, table, from, 64)
}

/// As [`fill`], with `batch` rows a push: a refused push of several leaves room for fewer.
fn fill_by(client: &mut Client, table: &Table<f32>, from: u64, batch: u64) -> u64 {
    for first in (from..from + 100_000).step_by(batch as usize) {
        let keys: Vec<u64> = (first..first + batch).collect();
        match push_ones(client, table, &keys) {
            Ok(()) if first % (32 * batch) == 0 => client.tick().unwrap(),
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

/// The push that finds no room fails, in its own job. Acknowledged pushes take effect, and the next job
/// continues.
#[test]
fn full_memory_refuses_the_push_not_the_tick() {
    let cluster = small(1, 1);
    let mut one = client(&cluster, 0, "one", SyncMode::Bsp);
    let mut other = client(&cluster, 0, "other", SyncMode::Bsp);
    let theirs = rows(&mut other);
    push_ones(&mut other, &theirs, &[7]).unwrap();
    let table = rows(&mut one);
    let held = fill(&mut one, &table, 0);
    assert!(held > 1_000, "{held}");
    one.tick().unwrap();
    for key in [0, held / 2, held - 1] {
        assert_eq!(value(&mut one, &table, key), 1.0, "key {key}");
    }
    // Existing rows take pushes in a full memory; the other job has lost nothing.
    push_ones(&mut one, &table, &[0]).unwrap();
    one.tick().unwrap();
    assert_eq!(value(&mut one, &table, 0), 2.0);
    other.tick().unwrap();
    assert_eq!(value(&mut other, &theirs, 7), 1.0);
    assert_eq!(cluster.failure(), None);
}

/// Waits until a server has ended; checks `reason` in each client's error and in the cluster's failure.
fn everybody_hears(cluster: &Cluster, clients: Vec<Client>, reason: &[&str]) {
    let hears = |said: &str| {
        for part in reason {
            assert!(said.contains(part), "\"{part}\" is not in: {said}");
        }
    };
    // One worker of several waits for a tick that never comes; a single one ticks until its server ends.
    let waits = clients.into_iter().map(|mut client| {
        std::thread::spawn(move || {
            client.set_clock_timeout(Duration::from_secs(20));
            let deadline = long();
            while !deadline.passed() {
                client.tick()?;
            }
            Ok::<_, ClientError>(())
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
    // One worker of each job is missing, so that a second tick waits.
    let clients: Vec<Client> = ["one", "one", "other"]
        .iter()
        .zip([0, 1, 0])
        .map(|(job, rank)| client(&cluster, rank, job, SyncMode::Bsp))
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

/// A row of an acknowledged push is removed, and the tick has no room to create it again.
#[test]
fn lost_acknowledged_push_ends_the_server() {
    let cluster = small(1, 1);
    let mut one = client(&cluster, 0, "one", SyncMode::Bsp);
    let other = client(&cluster, 0, "other", SyncMode::Bsp);
    let table = rows(&mut one);
    push_ones(&mut one, &table, &[u64::MAX]).unwrap();
    let held = fill(&mut one, &table, 0);
    push_ones(&mut one, &table, &[u64::MAX]).unwrap();
    let id = table.id();
    let removed = cluster
        .server(0)
        .unwrap()
        .with_engine(ApplierId(0), move |engine| engine.remove_row(id, u64::MAX));
    assert_eq!(removed.unwrap(), Ok(true));
    // Other rows take the remaining room, so that the tick finds none for the removed row.
    fill_by(&mut one, &table, held + 1_000_001, 1);
    let reason = ["server 0", "applier 0", "acknowledged pushes", "--capacity"];
    everybody_hears(&cluster, vec![one, other], &reason);
}

/// A job with appliers that hold at most `pending_bytes` for early ranks.
fn job(workers: u32, pending_bytes: usize) -> Cluster {
    Cluster::start(&ClusterConfig {
        workers,
        pending_bytes,
        ..Default::default()
    })
    .unwrap()
}

/// Creates a vector of `elements` elements that applies pushes at the tick.
fn vector(client: &mut Client, name: &str, elements: u64, domain: u8) -> Table<f32> {
    let spec = TableBuilder::range::<f32>(name, elements, 1)
        .domain(DomainId(domain))
        .at_clock(Reduce::Sum);
    client.create_table::<f32>(spec.spec()).unwrap()
}

/// A closed task is dropped after another one was opened, which has pushes for another applier: no applier holds
/// anything afterwards.
#[test]
fn dropped_task_frees_its_pushes() {
    let cluster = Cluster::start(&ClusterConfig {
        servers: 1,
        appliers: 2,
        ..Default::default()
    })
    .unwrap();
    let mut client = client(&cluster, 0, "default", SyncMode::Asp);
    let spec = TableBuilder::rows::<f64>("t", 64, 1).partitions(2);
    let table = client.create_table::<f64>(spec.spec()).unwrap();
    let server = cluster.server(0).unwrap();
    let held = || {
        let of_applier = |n| server.with_engine(ApplierId(n), |engine| engine.held_bytes());
        [0, 1].map(|n| of_applier(n).unwrap())
    };
    let push = |client: &mut Client, delivery, key: u64| {
        client.begin_task(delivery).unwrap();
        drop(
            client
                .push_rows(&table, &[key], &[1.0], PushOp::Sum)
                .unwrap(),
        );
        assert!(client.mark_task().unwrap());
        held().map(|bytes| bytes > 0)
    };
    let first = push(&mut client, 1, 0);
    let other = (1..64).find(|&key| {
        let both = push(&mut client, 2, key) == [true, true];
        client.drop_task(if both { 1 } else { 2 }).unwrap();
        both
    });
    assert!(other.is_some(), "all rows are of one applier");
    assert_eq!(held().map(|bytes| bytes > 0), first.map(|held| !held));
    client.drop_task(2).unwrap();
    assert_eq!(held(), [0, 0]);
}

/// Without a budget, a push before its rank's turn stays in its ring, and is read in turn.
#[test]
fn early_push_waits_for_its_turn() {
    let cluster = job(2, 0);
    let [mut first, mut early] =
        [0, 1].map(|rank| client(&cluster, rank, "default", SyncMode::Bsp));
    let range = vector(&mut first, "range", 1_000, 0);
    let spec = TableBuilder::sparse::<f32>("keys", 1).at_clock(Reduce::Sum);
    let keys = first.create_table::<f32>(spec.spec()).unwrap();
    let theirs = early.open_table::<f32>("range").unwrap();
    let their_keys = early.open_table::<f32>("keys").unwrap();
    for clock in 1..=3 {
        // 2^24 + 1 - 2^24 in f32: the order of the ranks shows.
        let pushed = early.push_range(&theirs, 0, &[-16_777_216.0; 1_000], PushOp::Sum);
        let pushed = pushed.unwrap();
        let rows = early.push_rows(&their_keys, &[5], &[1.0], PushOp::Sum);
        let rows = rows.unwrap();
        early.set_timeout(Duration::from_millis(200));
        let waited = early.wait_applied(&pushed);
        assert!(
            matches!(waited, Err(ClientError::Deadline { .. })),
            "{waited:?}"
        );
        let held = cluster.server(0).unwrap();
        let held = held.with_engine(ApplierId(0), |engine| engine.held_bytes());
        assert_eq!(held.unwrap(), 0, "clock {clock}");
        // The tick does not overtake it: its deadline names the awaited rank.
        early.set_clock_timeout(Duration::from_millis(200));
        let ticked = early.tick().unwrap_err().to_string();
        let awaited = format!("worker 0, at clock {}", clock - 1);
        assert!(ticked.contains(&awaited), "{ticked}");
        early.set_clock_timeout(Duration::from_secs(60));
        early.set_timeout(Duration::from_secs(60));
        for ones in [[16_777_216.0; 1_000], [1.0; 1_000]] {
            let own = first.push_range(&range, 0, &ones, PushOp::Sum).unwrap();
            first.wait_applied(&own).unwrap();
        }
        let own = first.push_rows(&keys, &[5], &[2.0], PushOp::Sum).unwrap();
        first.wait_applied(&own).unwrap();
        first.tick().unwrap();
        early.wait_applied(&pushed).unwrap();
        early.wait_applied(&rows).unwrap();
        early.tick().unwrap();
        let mut out = vec![-1.0; 1_000];
        first
            .pull_range(&range, 0, &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, vec![0.0; 1_000], "(2^24 + 1) - 2^24 at clock {clock}");
        let mut out = [-1.0];
        first
            .pull_rows(&keys, &[5], &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, [3.0 * clock as f32]);
    }
}

/// Flush, wait and push name the awaited rank if they meet their deadline before their rank's turn.
#[test]
fn deadlines_of_held_pushes_name_awaited_rank() {
    // More than a ring.
    const ELEMENTS: usize = 1 << 20;
    let cluster = job(3, 0);
    let [mut first, mut early] =
        [0, 1].map(|rank| client(&cluster, rank, "default", SyncMode::Bsp));
    // Rank 2 comes after rank 1: it is not awaited.
    let _last = client(&cluster, 2, "default", SyncMode::Bsp);
    vector(&mut first, "range", ELEMENTS as u64, 0);
    let theirs = early.open_table::<f32>("range").unwrap();
    let names_turn = |op: &str, error: ClientError| {
        assert!(matches!(error, ClientError::Deadline { .. }), "{error:?}");
        let text = error.to_string();
        for part in ["worker 0, at clock 0", "iteration 0", "--pending-bytes"] {
            assert!(text.contains(part), "{op}: \"{part}\" is not in: {text}");
        }
        assert!(!text.contains("worker 2"), "{op}: {text}");
    };
    early.set_timeout(Duration::from_millis(200));
    let one = early.push_range(&theirs, 0, &[1.0], PushOp::Sum).unwrap();
    names_turn("wait", early.wait_applied(&one).unwrap_err());
    names_turn("flush", early.flush().unwrap_err());
    let all = early.push_range(&theirs, 0, &vec![1.0; ELEMENTS], PushOp::Sum);
    names_turn("push", all.unwrap_err());
}

/// With a second domain, a waiting frame would hold back that domain's clock: it is refused, and
/// the error gives the bytes that it takes.
#[test]
fn two_domains_are_refused_what_is_needed() {
    let cluster = job(2, 0);
    let [mut first, mut early] =
        [0, 1].map(|rank| client(&cluster, rank, "default", SyncMode::Bsp));
    vector(&mut first, "zero", 1_000, 0);
    vector(&mut first, "one", 1_000, 1);
    early.set_timeout(Duration::from_secs(5));
    for (name, clock) in [("zero", 0), ("one", 0)] {
        let table = early.open_table::<f32>(name).unwrap();
        let pushed = early.push_range(&table, 0, &[1.0; 1_000], PushOp::Sum);
        match early.wait_applied(&pushed.unwrap()) {
            Err(e @ ClientError::Rejected { reject, .. }) => {
                let RejectReason::PendingFull { needed, limit } = reject.reason else {
                    panic!("{name}: {reject:?}");
                };
                assert!(needed >= 4_000 && limit == 0, "{reject:?}");
                assert!(e.to_string().contains("--pending-bytes"), "{e}");
            }
            other => panic!("{name} at clock {clock}: {other:?}"),
        }
    }
}

/// Collective calls use no clock domain: an early push of another domain waits for its turn after them.
#[test]
fn early_push_waits_after_collective_calls() {
    let cluster = job(2, 0);
    let [mut first, mut early] =
        [0, 1].map(|rank| client(&cluster, rank, "default", SyncMode::Bsp));
    vector(&mut first, "five", 1_000, 5);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| first.all_gather(&[0; 100]).unwrap());
        assert_eq!(early.all_gather(&[1; 100]).unwrap()[..100], [0; 100]);
        other.join().unwrap();
    });
    let table = early.open_table::<f32>("five").unwrap();
    let pushed = early.push_range(&table, 0, &[1.0; 1_000], PushOp::Sum);
    early.set_timeout(Duration::from_millis(200));
    let waited = early.wait_applied(&pushed.unwrap());
    assert!(
        matches!(waited, Err(ClientError::Deadline { .. })),
        "{waited:?}"
    );
}

/// A program lets no rank tick before all have pushed, and has no budget for it: the push without room
/// ends at its deadline.
#[test]
fn push_that_others_wait_for_ends_at_its_deadline() {
    // More than a ring.
    const ELEMENTS: usize = 1 << 20;
    let cluster = job(2, 0);
    let all_pushed = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (cluster, all_pushed) = (&cluster, &all_pushed);
            scope.spawn(move || {
                let mut client = client(cluster, rank, "default", SyncMode::Bsp);
                let table = vector(&mut client, "range", ELEMENTS as u64, 0);
                client.set_timeout(Duration::from_secs(1));
                let pushed = client.push_range(&table, 0, &vec![1.0; ELEMENTS], PushOp::Sum);
                match (rank, pushed) {
                    (0, pushed) => drop(pushed.unwrap()),
                    (_, Err(ClientError::Deadline { .. })) => {}
                    (_, other) => panic!("{other:?}"),
                }
                all_pushed.wait();
                if rank == 0 {
                    client.tick().unwrap();
                }
            });
        }
    });
}

/// Resident bytes of this process, shared ones included.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

const RANKS: u32 = 8;
const GRADIENT_VARIABLE: &str = "TIDEWATER_TEST_GRADIENT_MIB";

/// Peak bytes of one iteration in which every rank pushes one gradient.
fn peak_of_an_iteration(elements: usize, pending: usize, zero_first: bool) -> u64 {
    let cluster = job(RANKS, pending);
    let ones = vec![1.0; elements];
    let connect = |rank| {
        let mut client = client_over(
            &cluster,
            TransportChoice::Tcp,
            (rank, "default"),
            SyncMode::Bsp,
        );
        client.set_timeout(Duration::from_secs(600));
        client
    };
    let mut clients: Vec<Client> = (0..RANKS).map(connect).collect();
    let tables: Vec<Table<f32>> = clients
        .iter_mut()
        .map(|client| vector(client, "range", elements as u64, 0))
        .collect();
    let before = resident();
    let (done, peak) = (AtomicBool::new(false), AtomicU64::new(0));
    let push = |client: &mut Client, table: &Table<f32>| {
        let pushed = client.push_range(table, 0, &ones, PushOp::Sum).unwrap();
        client.wait_applied(&pushed).unwrap();
        client.tick().unwrap();
    };
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(resident().saturating_sub(before), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let mut ranks = clients.iter_mut().zip(&tables);
        let (zero, own) = ranks.next().unwrap();
        if zero_first {
            push(zero, own);
        }
        let others: Vec<_> = ranks
            .map(|(client, table)| scope.spawn(move || push(client, table)))
            .collect();
        if !zero_first {
            // Until the other ranks are blocked: one more frame exceeds the budget.
            let deadline = Deadline::after(Duration::from_secs(300));
            let server = cluster.server(0).unwrap();
            let held = || server.with_engine(ApplierId(0), |engine| engine.held_bytes());
            while held().unwrap() + (300 << 10) < pending {
                assert!(!deadline.passed(), "the budget is never used up");
                std::thread::sleep(Duration::from_millis(5));
            }
            push(zero, own);
        }
        others.into_iter().for_each(|rank| rank.join().unwrap());
        done.store(true, Ordering::Relaxed);
        sampler.join().unwrap();
    });
    for first in [0, elements / 2, elements - 1_000] {
        let mut out = vec![0.0; 1_000];
        let (client, table) = (&mut clients[3], &tables[3]);
        let pulled = client.pull_range(table, first as u64, &mut out, PullOptions::default());
        pulled.unwrap();
        assert_eq!(out, vec![RANKS as f32; 1_000], "from element {first}");
    }
    peak.into_inner()
}

/// Runs in a child process, see [`an_iteration_takes_two_gradients_and_the_budget`].
#[test]
#[ignore = "its memory is measured by an_iteration_takes_two_gradients_and_the_budget"]
fn peak_of_an_iteration_in_this_process() {
    let mib = std::env::var(GRADIENT_VARIABLE).map_or(24, |mib| mib.parse().unwrap());
    let gradient: usize = mib << 20;
    // The ratio of 512 MiB to a gradient of 600 MiB.
    let pending = gradient / 600 * 512;
    let mut within = true;
    for zero_first in [false, true] {
        let peak = peak_of_an_iteration(gradient / 4, pending, zero_first);
        // For each rank: staging of its client, ring and buffers of its connection.
        let rings = u64::from(RANKS) * (4 << 20);
        let most = (2 * gradient + pending) as u64 + rings;
        println!(
            "{RANKS} gradients of {mib} MiB, rank 0 {}: peak {} KiB of at most {} KiB",
            if zero_first { "first" } else { "last" },
            peak >> 10,
            most >> 10
        );
        within &= peak <= most;
    }
    assert!(
        within,
        "an iteration takes more than two gradients, the budget and rings"
    );
}

#[test]
fn an_iteration_takes_two_gradients_and_the_budget() {
    let full = std::env::var("TIDEWATER_TEST_FULL").is_ok_and(|full| full == "1");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peak_of_an_iteration_in_this_process"])
        .args(["--include-ignored", "--nocapture"])
        .env(GRADIENT_VARIABLE, if full { "600" } else { "24" })
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    assert_eq!(said.matches("MiB, rank 0").count(), 2, "{said}");
}

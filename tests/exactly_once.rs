//! Exactly once: under any failure, the final values are the sum of the acknowledged pushes, and an
//! unacknowledged push counts 0 or 1 times.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tidewater::{
    Client, ClientError, PullMode, PullOptions, SyncMode, Table, TableBuilder, Ticket,
};
use tidewater_lanes::fabric::TransportKind::{self, Shm, Tcp, Verbs};
use tidewater_protocol::layout::lines::RejectCode;
use tidewater_protocol::mutants;
use tidewater_protocol::table::PushOp;
use tidewater_runtime::sync::{AtomicU32, Ordering};
use tidewater_testkit::faults::{Faults, Rng, full, seed};
use tidewater_testkit::proxy::{Direction, Proxy};
use tidewater_testkit::threads::{Cluster, Wiring};

const WORKERS: u32 = 8;
const SERVERS: u32 = 2;
const APPLIERS: u16 = 2;
const DIM: usize = 4;
/// Keys that all workers push to.
const SHARED: u64 = 256;
/// Each worker's own row is `OWN + rank`: a difference there names the worker.
const OWN: u64 = 1_000;
/// A row that every push adds to: a difference in this row alone is a defect of the test.
const CHECKSUM: u64 = 2_000;
/// Rows that only unacknowledged pushes of one worker touch, a worker's first at `TAIL + 100 rank`.
const TAIL: u64 = 10_000;
const TAIL_ROWS: u64 = 16;
const TAIL_PUSHES: u32 = 40;
const ROWS: u64 = 1_024;
const ELEMENTS: u64 = 9_000;

struct Tables {
    sparse: Table<i64>,
    rows: Table<i64>,
    blocks: Table<i64>,
    floats: Table<f32>,
}

impl Tables {
    fn open(client: &mut Client) -> Self {
        let sparse = TableBuilder::sparse::<i64>("sparse", DIM as u32);
        let rows = TableBuilder::rows::<i64>("rows", ROWS, DIM as u32);
        let blocks = TableBuilder::range::<i64>("blocks", ELEMENTS, 1).block_bytes(4096);
        let floats = TableBuilder::sparse::<f32>("floats", 1);
        Self {
            sparse: client.create_table(sparse.spec()).unwrap(),
            rows: client.create_table(rows.spec()).unwrap(),
            blocks: client.create_table(blocks.spec()).unwrap(),
            floats: client.create_table(floats.spec()).unwrap(),
        }
    }
}

/// Acknowledged sums that the tables must hold.
#[derive(Clone, PartialEq, Debug)]
struct Ledger {
    sparse: Vec<i64>,
    rows: Vec<i64>,
    blocks: Vec<i64>,
    floats: Vec<f32>,
}

fn sparse_keys() -> Vec<u64> {
    (0..SHARED)
        .chain((0..u64::from(WORKERS)).map(|w| OWN + w))
        .chain([CHECKSUM])
        .collect()
}

impl Ledger {
    fn new() -> Self {
        Self {
            sparse: vec![0; sparse_keys().len() * DIM],
            rows: vec![0; ROWS as usize * DIM],
            blocks: vec![0; ELEMENTS as usize],
            floats: vec![0.0; SHARED as usize],
        }
    }

    fn add(&mut self, other: &Self) {
        for (to, from) in [
            (&mut self.sparse, &other.sparse),
            (&mut self.rows, &other.rows),
            (&mut self.blocks, &other.blocks),
        ] {
            to.iter_mut().zip(from).for_each(|(a, b)| *a += b);
        }
        let floats = self.floats.iter_mut().zip(&other.floats);
        floats.for_each(|(a, b)| *a += b);
    }

    /// Reads the sums that the tables hold.
    fn read(client: &mut Client, tables: &Tables) -> Self {
        let mut seen = Self::new();
        let all: Vec<u64> = (0..ROWS).collect();
        let options = PullOptions::default();
        client
            .pull_rows(&tables.sparse, &sparse_keys(), &mut seen.sparse, options)
            .unwrap();
        client
            .pull_rows(&tables.rows, &all, &mut seen.rows, options)
            .unwrap();
        client
            .pull_range(&tables.blocks, 0, &mut seen.blocks, options)
            .unwrap();
        let shared: Vec<u64> = (0..SHARED).collect();
        client
            .pull_rows(&tables.floats, &shared, &mut seen.floats, options)
            .unwrap();
        seen
    }
}

/// One worker's pushes, up to 32 of them in flight.
struct Pusher<'a> {
    client: &'a mut Client,
    tables: &'a Tables,
    rng: Rng,
    rank: u32,
    /// Rows of one push.
    width: usize,
    /// Rows pushed so far; rows of one push with the same key count once.
    rows: u64,
    booked: Ledger,
    flying: VecDeque<(Ticket, bool)>,
}

impl Pusher<'_> {
    fn values(&mut self, n: usize) -> Vec<i64> {
        (0..n)
            .map(|_| self.rng.below(2_001) as i64 - 1_000)
            .collect()
    }

    fn push(&mut self) {
        let (ticket, good) = match self.rng.below(4) {
            0 | 1 => (self.push_sparse(), true),
            2 => {
                let keys: Vec<u64> = (0..self.width).map(|_| self.rng.below(ROWS)).collect();
                let values = self.values(keys.len() * DIM);
                self.count(&keys);
                for (n, key) in keys.iter().enumerate() {
                    for d in 0..DIM {
                        self.booked.rows[*key as usize * DIM + d] += values[n * DIM + d];
                    }
                }
                let pushed = self
                    .client
                    .push_rows(&self.tables.rows, &keys, &values, PushOp::Sum);
                (pushed.unwrap(), true)
            }
            _ if self.rng.below(4) == 0 => self.push_floats(),
            _ => {
                let first = self.rng.below(ELEMENTS);
                let len = 1 + self.rng.below((ELEMENTS - first).min(3_000)) as usize;
                let values = self.values(len);
                for (n, v) in values.iter().enumerate() {
                    self.booked.blocks[first as usize + n] += v;
                }
                let pushed =
                    self.client
                        .push_range(&self.tables.blocks, first, &values, PushOp::Sum);
                (pushed.unwrap(), true)
            }
        };
        self.flying.push_back((ticket, good));
        let window = 1 + self.rng.below(32) as usize;
        while self.flying.len() > window {
            self.land();
        }
    }

    fn count(&mut self, keys: &[u64]) {
        self.rows += keys.iter().collect::<BTreeSet<_>>().len() as u64;
    }

    fn push_sparse(&mut self) -> Ticket {
        let shared = self.width - 2;
        let mut keys: Vec<u64> = (0..shared).map(|_| self.rng.below(SHARED)).collect();
        keys.extend([OWN + u64::from(self.rank), CHECKSUM]);
        self.count(&keys);
        let values = self.values(keys.len() * DIM);
        for (n, key) in keys.iter().enumerate() {
            let row = sparse_keys().iter().position(|k| k == key).unwrap();
            for d in 0..DIM {
                self.booked.sparse[row * DIM + d] += values[n * DIM + d];
            }
        }
        let pushed = self
            .client
            .push_rows(&self.tables.sparse, &keys, &values, PushOp::Sum);
        pushed.unwrap()
    }

    /// Pushes one row; half of these pushes are invalid, and must be refused whatever the lane does.
    fn push_floats(&mut self) -> (Ticket, bool) {
        let key = self.rng.below(SHARED);
        self.rows += 1;
        let good = self.rng.below(2) == 0;
        let value = if good { 3.0 } else { f32::NAN };
        if good {
            self.booked.floats[key as usize] += value;
        }
        let pushed = self
            .client
            .push_rows(&self.tables.floats, &[key], &[value], PushOp::Sum);
        (pushed.unwrap(), good)
    }

    fn land(&mut self) {
        let Some((ticket, good)) = self.flying.pop_front() else {
            return;
        };
        match (self.client.wait_applied(&ticket), good) {
            (Ok(()), true) => {}
            (Err(ClientError::Rejected { reject, .. }), false) => {
                assert_eq!(reject.code(), RejectCode::NotFinite);
            }
            (other, good) => panic!("good: {good}, but {other:?}"),
        }
    }
}

/// Makes pushes without a wait and drops the client at once. Push n adds 2^n, so the sum reveals the
/// applied pushes and how often each was applied.
fn push_and_leave(client: &mut Client, tables: &Tables, rank: u32) {
    let keys: Vec<u64> = (0..TAIL_ROWS)
        .map(|k| TAIL + 100 * u64::from(rank) + k)
        .collect();
    for n in 0..TAIL_PUSHES {
        let values = vec![1i64 << n; keys.len() * DIM];
        let _unacknowledged = client
            .push_rows(&tables.sparse, &keys, &values, PushOp::Sum)
            .unwrap();
    }
}

/// A prefix of every worker's unacknowledged pushes was applied, each once, in every row.
fn check_tails(client: &mut Client, tables: &Tables) {
    for rank in 0..u64::from(WORKERS) {
        let keys: Vec<u64> = (0..TAIL_ROWS).map(|k| TAIL + 100 * rank + k).collect();
        let mut out = vec![0i64; keys.len() * DIM];
        client
            .pull_rows(&tables.sparse, &keys, &mut out, PullOptions::default())
            .unwrap();
        for row in out.chunks(DIM) {
            let sum = row[0];
            assert!(
                row.iter().all(|&v| v == sum),
                "worker {rank}: half a row {row:?}"
            );
            let prefix = (0..1 << TAIL_PUSHES).contains(&sum) && (sum + 1).count_ones() == 1;
            assert!(prefix, "worker {rank}: {sum:#x} is no prefix of its pushes");
        }
    }
}

/// Arrival counts for `frames` frames, some of which were no pushes, never exceed `frames`.
fn check_arrivals(client: &mut Client, frames: u64, transport: TransportKind) {
    if transport == Verbs && mutants::device_mask().no_atomics {
        let refused = client.arrivals().map(drop).unwrap_err().to_string();
        assert!(refused.contains("64-bit atomics"), "{refused}");
        return;
    }
    let arrived: u64 = client.arrivals().unwrap().iter().sum();
    println!("{transport}: {arrived} of {frames} frames were counted as pushes");
    assert!(arrived <= frames, "{arrived} of {frames} frames");
}

/// Pushes of each worker, rows of each push, and the mean number of operations between lane failures.
fn load(transport: TransportKind) -> (u64, usize, u64) {
    match (transport, full()) {
        // Fewer and wider: each recovery creates queue pairs and registers memory again.
        (Verbs, false) => (330, 128, 60),
        (Verbs, true) => (1_650, 128, 60),
        (_, false) => (1_000, 8, 60),
        (_, true) => (20_000, 8, 60),
    }
}

fn exact_under_disconnects(transport: TransportKind) {
    let seed = seed();
    let cluster = Cluster::start(transport, SERVERS, APPLIERS, WORKERS + 1);
    let (pushes, width, one_in) = load(transport);
    let faults = Faults::new(seed, one_in);
    let mut due = Ledger::new();
    let (mut recoveries, mut rows, mut frames) = (0, 0, 0);
    std::thread::scope(|scope| {
        let worker = |rank: u32| {
            let (cluster, faults) = (&cluster, faults.clone());
            scope.spawn(move || {
                let lanes = AtomicU32::new(0);
                let mut client = cluster.client_with(rank, SyncMode::Asp, move |lane| {
                    let before = lanes.fetch_add(1, Ordering::Relaxed);
                    faults.wrap(lane, before >= SERVERS * u32::from(APPLIERS))
                });
                let tables = Tables::open(&mut client);
                let mut pusher = Pusher {
                    client: &mut client,
                    tables: &tables,
                    rng: Rng(seed ^ u64::from(rank) << 32),
                    rank,
                    width,
                    rows: 0,
                    booked: Ledger::new(),
                    flying: VecDeque::new(),
                };
                for _ in 0..pushes {
                    pusher.push();
                }
                while !pusher.flying.is_empty() {
                    pusher.land();
                }
                let (booked, rows) = (pusher.booked, pusher.rows);
                push_and_leave(&mut client, &tables, rank);
                (booked, rows, *client.counters())
            })
        };
        let workers: Vec<_> = (0..WORKERS).map(worker).collect();
        for worker in workers {
            let (booked, pushed, counted) = worker.join().unwrap();
            due.add(&booked);
            rows += pushed;
            recoveries += counted.recoveries;
            frames += counted.frames;
        }
    });
    let mut client = cluster.client(WORKERS, SyncMode::Asp);
    let tables = Tables::open(&mut client);
    let seen = Ledger::read(&mut client, &tables);
    assert!(
        seen == due,
        "{transport}: the ledger does not balance; again: TIDEWATER_SEED={seed} \
         cargo test --profile ci -p tidewater-tests --test exactly_once"
    );
    check_tails(&mut client, &tables);
    check_arrivals(&mut client, frames, transport);
    println!(
        "{transport}: {} pushes of {rows} rows, {} lanes cut, {} of them by a forbidden access and {} \
         in the middle of a recovery, {recoveries} recoveries: exact",
        u64::from(WORKERS) * pushes,
        faults.broken(),
        faults.offended(),
        faults.recovering(),
    );
    assert!(recoveries > 100, "{recoveries} recoveries test nothing");
    assert!(faults.recovering() > 0, "no recovery was disturbed");
    if transport == Verbs {
        assert!(rows >= 200_000, "{rows} rows");
        assert!(faults.offended() >= 50, "{} pairs broke", faults.offended());
    }
}

#[test]
fn integer_pushes_are_exact_under_disconnects_on_shm() {
    exact_under_disconnects(Shm);
}

#[test]
fn integer_pushes_are_exact_under_disconnects_on_tcp() {
    exact_under_disconnects(Tcp);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn integer_pushes_are_exact_under_disconnects_on_verbs() {
    exact_under_disconnects(Verbs);
}

/// A short session; returns when all its pushes are acknowledged. Adds 111 to keys 1 to 3.
fn script(client: &mut Client) {
    let table = client.open_table::<i64>("t").unwrap();
    let push = |client: &mut Client, by: i64| {
        client
            .push_rows(&table, &[1, 2, 3], &[by; 3], PushOp::Sum)
            .unwrap()
    };
    let mut out = [0; 3];
    let first = push(client, 1);
    let second = push(client, 10);
    client.wait_applied(&second).unwrap();
    client.wait_applied(&first).unwrap();
    client
        .pull_rows(&table, &[3, 1, 2], &mut out, PullOptions::default())
        .unwrap();
    let seen = out[0];
    assert!(out.iter().all(|&v| v == seen));
    let third = push(client, 100);
    client.wait_applied(&third).unwrap();
    let gather = PullOptions::default().mode(PullMode::Gather);
    client
        .pull_rows(&table, &[2, 3, 1], &mut out, gather)
        .unwrap();
    assert!(out.iter().all(|&v| v == seen + 100), "{out:?} after {seen}");
}

/// Runs the script once with the proxy's cuts, and checks its effects.
fn cut_once(cluster: &Cluster, watcher: &mut Client, runs: &mut i64, proxy: Proxy) -> Arc<Proxy> {
    let proxy = Arc::new(proxy);
    let passes = Arc::clone(&proxy);
    let wiring = Wiring {
        through: Arc::new(move |server| passes.through(server)),
        ..Wiring::default()
    };
    let mut client = cluster.client_over(1, SyncMode::Asp, &wiring);
    script(&mut client);
    drop(client);
    *runs += 1;
    let table = watcher.open_table::<i64>("t").unwrap();
    let mut out = [0; 3];
    watcher
        .pull_rows(&table, &[1, 2, 3], &mut out, PullOptions::default())
        .unwrap();
    assert_eq!(out, [111 * *runs; 3]);
    proxy
}

#[test]
fn a_tcp_session_cut_after_any_byte_is_exact() {
    let cluster = Cluster::start(Tcp, 1, 1, 2);
    let mut watcher = cluster.client(0, SyncMode::Asp);
    let spec = TableBuilder::sparse::<i64>("t", 1);
    watcher.create_table::<i64>(spec.spec()).unwrap();
    let mut runs = 0;
    let mut rng = Rng(seed());
    for direction in [Direction::Up, Direction::Down] {
        let whole = Proxy::new(direction, Vec::new());
        let whole = cut_once(&cluster, &mut watcher, &mut runs, whole);
        let bytes = whole.moved(direction);
        assert!(bytes > 500, "the script moved {bytes} bytes");
        let (mut recovered, mut twice) = (0, 0);
        for at in 0..=bytes {
            // The traffic after the recovery is cut as well, at a random byte.
            let cuts = vec![at, rng.below(bytes)];
            let proxy = Proxy::new(direction, cuts);
            let proxy = cut_once(&cluster, &mut watcher, &mut runs, proxy);
            recovered += u64::from(proxy.connections() > 1);
            twice += u64::from(proxy.connections() > 2);
        }
        println!(
            "{direction:?}: cut after each of 0..={bytes} bytes, {recovered} recovered, {twice} twice: exact"
        );
        assert!(recovered > bytes / 2 && twice > bytes / 8);
    }
}

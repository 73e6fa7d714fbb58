//! One-sided pulls: a pull involves no server process.

use std::time::Duration;

use rustix::process::Signal;
use tidewater::{Client, ClientError, Counters, PullOptions, Table, TableBuilder};
use tidewater_launch::TransportChoice;
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::{self, Deadline};

use crate::by_hand::Cluster;
use crate::proc::Process;
use crate::rig::LIMIT;

const KEYS: u64 = 4_096;
const DIM: usize = 4;
/// Number of keys in one pull.
const BATCH: usize = 4;
const ELEMENTS: usize = 10_000;

fn key(n: u64) -> u64 {
    mix64(n + 1)
}

/// Values of the row with key number `n` after `round` pushes.
fn row(n: u64, round: u32) -> [f32; DIM] {
    std::array::from_fn(|column| (n as f32 + column as f32 / 8.0) * (round + 1) as f32)
}

struct Model {
    rows: Table<f32>,
    blocks: Table<f32>,
}

impl Model {
    fn create(client: &mut Client) -> Self {
        let rows = TableBuilder::sparse::<f32>("rows", DIM as u32);
        let blocks = TableBuilder::range::<f32>("blocks", ELEMENTS as u64, 1).block_bytes(4096);
        Self {
            rows: client.create_table(rows.spec()).unwrap(),
            blocks: client.create_table(blocks.spec()).unwrap(),
        }
    }

    fn assign(&self, client: &mut Client, round: u32) {
        let keys: Vec<u64> = (0..KEYS).map(key).collect();
        let values: Vec<f32> = (0..KEYS).flat_map(|n| row(n, round)).collect();
        let ticket = client
            .push_rows(&self.rows, &keys, &values, PushOp::Assign)
            .unwrap();
        client.wait_applied(&ticket).unwrap();
        let values = vec![round as f32; ELEMENTS];
        let ticket = client
            .push_range(&self.blocks, 0, &values, PushOp::Assign)
            .unwrap();
        client.wait_applied(&ticket).unwrap();
    }

    /// Pulls a few rows and checks them.
    fn check_rows(&self, client: &mut Client, pull: u64, round: u32) {
        let numbers: [u64; BATCH] =
            std::array::from_fn(|n| mix64(pull * BATCH as u64 + n as u64) % KEYS);
        let mut out = [0.0; BATCH * DIM];
        client
            .pull_rows(
                &self.rows,
                &numbers.map(key),
                &mut out,
                PullOptions::default(),
            )
            .unwrap();
        for (got, n) in out.chunks(DIM).zip(numbers) {
            assert_eq!(got, row(n, round), "pull {pull}, key number {n}");
        }
    }

    fn check_blocks(&self, client: &mut Client, round: u32) {
        let mut out = vec![-1.0; ELEMENTS];
        client
            .pull_range(&self.blocks, 0, &mut out, PullOptions::default())
            .unwrap();
        assert!(out.iter().all(|&value| value == round as f32));
    }

    /// Pulls every key once, so that the client caches all locations.
    fn learn(&self, client: &mut Client) {
        let keys: Vec<u64> = (0..KEYS).map(key).collect();
        let mut out = vec![0.0; keys.len() * DIM];
        client
            .pull_rows(&self.rows, &keys, &mut out, PullOptions::default())
            .unwrap();
    }
}

fn stop(processes: &[Process]) {
    for process in processes {
        process.signal(Signal::STOP);
    }
    let deadline = Deadline::after(LIMIT);
    while !are_stopped(processes) {
        assert!(!deadline.passed(), "they do not stop");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn are_stopped(processes: &[Process]) -> bool {
    processes.iter().all(|process| process.state() == Some('T'))
}

#[test]
fn pulls_of_known_rows_need_no_server_process() {
    pull_from_stopped_servers(TransportChoice::Shm, 100_000);
}

/// The NIC serves the reads. (Elsewhere the kernel's emulated NIC does, slowly.)
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn pulls_over_verbs_need_no_server_process() {
    pull_from_stopped_servers(TransportChoice::Verbs, 100_000);
}

fn pull_from_stopped_servers(transport: TransportChoice, pulls: u64) {
    let cluster = Cluster::start(2);
    let mut client = cluster.client(transport);
    let model = Model::create(&mut client);
    model.assign(&mut client, 0);
    model.learn(&mut client);

    // The coordinator too: no request goes to any of them.
    let processes = cluster.processes();
    stop(&processes);
    let before = *client.counters();
    let began = clock::now();
    for pull in 0..pulls {
        model.check_rows(&mut client, pull, 0);
    }
    let took = began.elapsed();
    for _ in 0..100 {
        model.check_blocks(&mut client, 0);
    }
    assert!(are_stopped(&processes));
    check_counters(pulls, &before, client.counters());
    println!("{transport:?}: {pulls} pulls of {BATCH} rows from stopped servers: {took:?}");

    // A call that needs a server waits for it until the deadline, and names it.
    let absent = (KEYS..).map(key).next().unwrap();
    let patience = PullOptions {
        timeout: Duration::from_millis(300),
        ..PullOptions::default()
    };
    let began = clock::now();
    let error = client
        .pull_rows(&model.rows, &[absent], &mut [0.0; DIM], patience)
        .unwrap_err();
    assert!(matches!(error, ClientError::Deadline { .. }), "{error}");
    assert!(error.to_string().contains("server "), "{error}");
    assert!(began.elapsed() >= Duration::from_millis(300));

    for process in &processes {
        process.signal(Signal::CONT);
    }
    model.assign(&mut client, 1);
    for pull in 0..1_000 {
        model.check_rows(&mut client, pull, 1);
    }
    model.check_blocks(&mut client, 1);
    client.finish().unwrap();
}

/// Every row's checksum matched; no row was read by a server.
fn check_counters(pulls: u64, before: &Counters, after: &Counters) {
    let delta = |field: fn(&Counters) -> u64| field(after) - field(before);
    assert_eq!(delta(|c| c.pulls), pulls + 100);
    assert_eq!(delta(|c| c.rows_consistent), pulls * BATCH as u64);
    assert!(delta(|c| c.blocks_consistent) >= 100 * 10);
    assert_eq!(delta(|c| c.rows_gathered), 0);
    assert_eq!(delta(|c| c.gather_fallbacks), 0);
    assert_eq!(delta(|c| c.resolved_keys), 0);
    assert_eq!(delta(|c| c.stale_hints), 0);
    assert_eq!(delta(|c| c.recoveries), 0);
}

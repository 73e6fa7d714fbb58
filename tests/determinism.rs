//! With BSP, application at the tick and one seed, the parameters are bit-identical for any timing,
//! transport, and number of servers and appliers.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

use std::time::Duration;

use tidewater::{Client, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_lanes::fabric::TransportKind::{self, Shm, Tcp, Verbs};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::table::{Init, Optimizer, PushOp, Reduce};
use tidewater_testkit::faults::{Rng, full, seed};
use tidewater_testkit::threads::Cluster;

const WORKERS: u32 = 3;
const KEYS: u64 = 40;
const DIM: usize = 3;
const ELEMENTS: u64 = 5_000;
const SGD: Optimizer = Optimizer::Sgd { lr: 0.1 };
const ADAGRAD: Optimizer = Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 };
const INIT: Init = Init::Uniform {
    low: -0.5,
    high: 0.5,
};

/// One table of every kind that takes gradients.
struct Model {
    keyed: [Table<f32>; 3],
    ranges: [Table<f32>; 2],
}

impl Model {
    fn open(client: &mut Client) -> Self {
        let mut keyed = |table: TableBuilder, optimizer, reduce| {
            let table = table.optimizer(optimizer).init(INIT, 7).at_clock(reduce);
            client.create_table::<f32>(table.spec()).unwrap()
        };
        let sparse = |name| TableBuilder::sparse::<f32>(name, DIM as u32);
        let rows = TableBuilder::rows::<f32>("rows", KEYS, DIM as u32);
        let blocks = |name| TableBuilder::range::<f32>(name, ELEMENTS, 1).block_bytes(4096);
        Self {
            keyed: [
                keyed(sparse("sparse-sgd"), SGD, Reduce::Sum),
                keyed(sparse("sparse-adagrad"), ADAGRAD, Reduce::Mean),
                keyed(rows, ADAGRAD, Reduce::Sum),
            ],
            ranges: [
                keyed(blocks("blocks-sgd"), SGD, Reduce::Sum),
                keyed(blocks("blocks-adagrad"), ADAGRAD, Reduce::Mean),
            ],
        }
    }

    /// Returns the bits of every parameter.
    fn bits(&self, client: &mut Client) -> Vec<u32> {
        let keys: Vec<u64> = (0..KEYS).collect();
        let mut bits = Vec::new();
        for table in &self.keyed {
            let mut out = vec![0f32; keys.len() * DIM];
            client
                .pull_rows(table, &keys, &mut out, PullOptions::default())
                .unwrap();
            bits.extend(out.iter().map(|v| v.to_bits()));
        }
        for table in &self.ranges {
            let mut out = vec![0f32; ELEMENTS as usize];
            client
                .pull_range(table, 0, &mut out, PullOptions::default())
                .unwrap();
            bits.extend(out.iter().map(|v| v.to_bits()));
        }
        bits
    }

    /// Makes one iteration of gradients from pulled values; their sum depends on the order.
    fn step(&self, client: &mut Client, rank: u32, iteration: u64) {
        let noise = |n: usize| {
            let bits = mix64(u64::from(rank) << 48 ^ iteration << 32 ^ n as u64);
            let unit = (bits >> 40) as f32 / (1 << 24) as f32 - 0.5;
            unit * [1.0, 1e-3, 1e3][(bits % 3) as usize]
        };
        let of = |pulled: &[f32]| -> Vec<f32> {
            let gradient = |(n, v): (usize, &f32)| noise(n) + 0.3 * v;
            pulled.iter().enumerate().map(gradient).collect()
        };
        let start = u64::from(rank) * 5;
        let keys: Vec<u64> = (start..start + 25).rev().collect();
        for table in &self.keyed {
            let mut w = vec![0f32; keys.len() * DIM];
            client
                .pull_rows(table, &keys, &mut w, PullOptions::default())
                .unwrap();
            let ticket = client
                .push_rows(table, &keys, &of(&w), PushOp::Gradient)
                .unwrap();
            client.wait_applied(&ticket).unwrap();
        }
        for table in &self.ranges {
            let first = 700 * u64::from(rank);
            let mut w = vec![0f32; 3_000];
            client
                .pull_range(table, first, &mut w, PullOptions::default())
                .unwrap();
            let ticket = client
                .push_range(table, first, &of(&w), PushOp::Gradient)
                .unwrap();
            client.wait_applied(&ticket).unwrap();
        }
    }
}

/// Trains a model; `delays` is the seed of the delays, which hit one worker after the other.
fn train(transport: TransportKind, servers: u32, appliers: u16, delays: u64) -> Vec<u32> {
    let iterations = if full() { 200 } else { 12 };
    let cluster = Cluster::start(transport, servers, appliers, WORKERS);
    std::thread::scope(|scope| {
        let worker = |rank: u32| {
            let cluster = &cluster;
            scope.spawn(move || {
                let mut client = cluster.client(rank, SyncMode::Bsp);
                let model = Model::open(&mut client);
                let mut rng = Rng(delays ^ u64::from(rank) << 40);
                for iteration in 0..iterations {
                    if rng.below(u64::from(WORKERS)) == 0 {
                        std::thread::sleep(Duration::from_micros(rng.below(5_000)));
                    }
                    model.step(&mut client, rank, iteration);
                    client.tick().unwrap();
                }
                model.bits(&mut client)
            })
        };
        let workers: Vec<_> = (0..WORKERS).map(worker).collect();
        let seen: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
        assert!(seen.iter().all(|bits| *bits == seen[0]), "workers disagree");
        seen[0].clone()
    })
}

#[test]
fn bsp_gives_the_same_bits_however_the_work_is_shared() {
    same_bits(&[(Shm, &[1, 2, 4]), (Tcp, &[1, 2, 4])]);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn bsp_gives_the_same_bits_on_verbs() {
    same_bits(&[(Shm, &[1]), (Verbs, &[1, 2])]);
}

/// Compares the bits over each transport, on each number of servers.
fn same_bits(runs: &[(TransportKind, &[u32])]) {
    let mut rng = Rng(seed());
    let mut first: Option<Vec<u32>> = None;
    for &(transport, servers) in runs {
        for &servers in servers {
            for appliers in [1, 2] {
                let delays = rng.next();
                let bits = train(transport, servers, appliers, delays);
                let due = first.get_or_insert_with(|| bits.clone());
                let differ = bits.iter().zip(&*due).filter(|(a, b)| a != b).count();
                assert_eq!(
                    differ,
                    0,
                    "{transport}, {servers} servers of {appliers} appliers, delays {delays:#x}: \
                     of {} parameters this many differ in their bits",
                    bits.len()
                );
            }
        }
    }
    let bits = first.unwrap();
    let moved = bits.iter().filter(|&&b| f32::from_bits(b).abs() > 0.5);
    assert!(moved.count() > bits.len() / 10, "the model did not train");
    assert!(bits.iter().all(|&b| f32::from_bits(b).is_finite()));
}

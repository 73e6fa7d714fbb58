//! Hyper-parameters that change while tables are trained, against the scalar oracle: bit for bit, on
//! arrival and at ticks, for rows and ranges, and while lanes break.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../server/kernels/tests/kernels/oracle.rs"]
#[allow(dead_code, reason = "the kernels' tests use all of it")]
mod oracle;

use std::time::Duration;

use oracle::Oracle32;
use tidewater_testkit::faults::{Faults, seed, transports};
use tidewater_testkit::threads::Cluster;

use tidewater::{
    AnyTable, Client, ClientError, PullOptions, Schedule, SyncMode, Table, TableBuilder,
};
use tidewater_protocol::ids::DomainId;
use tidewater_protocol::table::{DType, GradientOptions, Optimizer, PushOp, Reduce};
use tidewater_runtime::clock::Deadline;

const DIM: usize = 3;
const ROWS: u64 = 24;

fn adam(lr: f64, beta1: f64) -> Optimizer {
    Optimizer::AdamW {
        lr,
        beta1,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
    }
}

/// One table of each kind with the oracle of all its rows.
struct Checked {
    table: Table<f32>,
    ranges: bool,
    oracle: Oracle32,
}

impl Checked {
    fn each(client: &mut Client, change: impl Fn(TableBuilder) -> TableBuilder) -> Vec<Self> {
        let first = adam(0.1, 0.9);
        let size = (ROWS, DIM as u32);
        let builders = [
            TableBuilder::sparse::<f32>("sparse", size.1),
            TableBuilder::rows::<f32>("rows", size.0, size.1),
            TableBuilder::range::<f32>("ranges", size.0, size.1).block_bytes(4096),
        ];
        let checked = builders.map(|builder| {
            let spec = change(builder.optimizer(first).partitions(4));
            let name = spec.spec().name.clone();
            Self {
                table: client.create_table(spec.spec()).unwrap(),
                ranges: name == "ranges",
                oracle: Oracle32::new(first, GradientOptions::default(), DIM * ROWS as usize),
            }
        });
        checked.into()
    }

    /// Pushes a gradient for all of the table.
    fn push(&self, client: &mut Client, g: &[f32]) {
        let keys: Vec<u64> = (0..ROWS).collect();
        let ticket = if self.ranges {
            client.push_range(&self.table, 0, g, PushOp::Gradient)
        } else {
            client.push_rows(&self.table, &keys, g, PushOp::Gradient)
        };
        drop(ticket.unwrap());
    }

    fn set(&self, client: &mut Client, rule: Optimizer) {
        drop(client.set_optimizer(&self.table, rule).unwrap());
    }

    fn pull(&self, client: &mut Client) -> Vec<u32> {
        let mut out = vec![0.0f32; ROWS as usize * DIM];
        let keys: Vec<u64> = (0..ROWS).collect();
        let options = PullOptions::default();
        if self.ranges {
            client.pull_range(&self.table, 0, &mut out, options)
        } else {
            client.pull_rows(&self.table, &keys, &mut out, options)
        }
        .unwrap();
        out.iter().map(|x| x.to_bits()).collect()
    }

    fn check(&self, client: &mut Client, what: &str) {
        let want: Vec<u32> = self.oracle.w.iter().map(|x| x.to_bits()).collect();
        assert_eq!(self.pull(client), want, "{what}");
    }
}

fn gradient(worker: u32, step: u32) -> Vec<f32> {
    let value = |n: u32| ((worker * 31 + step * 7 + n * 3) % 23) as f32 / 10.0 - 1.1;
    (0..ROWS as u32 * DIM as u32).map(value).collect()
}

fn rule_of(step: u32) -> Optimizer {
    adam(
        0.1 / f64::from(1 + step % 5),
        0.5 + 0.05 * f64::from(step % 7),
    )
}

#[test]
fn settings_stand_between_pushes() {
    for transport in transports() {
        let cluster = Cluster::start(transport, 2, 2, 1);
        let mut client = cluster.client(0, SyncMode::Asp);
        for mut checked in Checked::each(&mut client, |table| table) {
            for step in 0..30 {
                if step % 2 == 1 {
                    checked.set(&mut client, rule_of(step));
                    checked.oracle.rule = rule_of(step);
                }
                let g = gradient(0, step);
                checked.push(&mut client, &g);
                checked.oracle.push(PushOp::Gradient, &g);
            }
            client.flush().unwrap();
            checked.check(&mut client, "on arrival");
        }
    }
}

/// Each change and each push counts once, in its order, while lanes break and recover. A change that
/// was applied again after a later one would change the bits.
#[test]
fn settings_count_once_over_broken_lanes() {
    for transport in transports() {
        let cluster = Cluster::start(transport, 2, 2, 1);
        let faults = Faults::new(seed(), 12);
        let lanes = faults.clone();
        let mut client = cluster.client_with(0, SyncMode::Asp, move |lane| lanes.wrap(lane, true));
        for mut checked in Checked::each(&mut client, |table| table) {
            for step in 0..120 {
                checked.set(&mut client, rule_of(step));
                checked.oracle.rule = rule_of(step);
                let g = gradient(0, step);
                checked.push(&mut client, &g);
                checked.oracle.push(PushOp::Gradient, &g);
            }
            client.flush().unwrap();
            checked.check(&mut client, "over broken lanes");
        }
        assert!(faults.broken() > 10, "{} lanes broke", faults.broken());
    }
}

/// The settings of an iteration are those of its highest rank, whoever sends first. They hold for the
/// tick that closes the iteration, not for the tick before, at which an early worker is ahead.
#[test]
fn highest_rank_sets_a_tick() {
    for transport in transports() {
        for last_first in [false, true] {
            let cluster = Cluster::start(transport, 2, 2, 2);
            let mut clients = [0, 1].map(|rank| cluster.client(rank, SyncMode::Ssp(3)));
            let at_tick = |table: TableBuilder| table.at_clock(Reduce::Sum);
            let mut all = Checked::each(&mut clients[0], at_tick);
            let theirs = Checked::each(&mut clients[1], at_tick);
            // Worker 1 is two iterations ahead: it has pushed and ticked, and set other numbers.
            let work = |clients: &mut [Client; 2], rank: usize, step: u32| {
                let tables = [&all, &theirs][rank];
                for checked in tables {
                    let client = &mut clients[rank];
                    let g = gradient(rank as u32, step);
                    checked.push(client, &g);
                    if rank == 0 || !step.is_multiple_of(3) {
                        checked.set(client, rule_of(100));
                        checked.set(client, rule_of(10 * step + rank as u32));
                    }
                }
                clients[rank].flush().unwrap();
                clients[rank].tick_domain(DomainId(0)).unwrap();
            };
            let steps = 8;
            if last_first {
                work(&mut clients, 1, 0);
                work(&mut clients, 1, 1);
            }
            for step in 0..steps {
                work(&mut clients, 0, step);
                let ahead = step + if last_first { 2 } else { 0 };
                if ahead < steps {
                    work(&mut clients, 1, ahead);
                }
            }
            // A pull under SSP does not wait for the last ticks.
            let deadline = Deadline::after(Duration::from_secs(20));
            while clients[0].global_clock().unwrap() < u64::from(steps) {
                assert!(!deadline.passed(), "the last tick is not complete");
                std::thread::yield_now();
            }
            for checked in &mut all {
                for step in 0..steps {
                    let rank = u32::from(!step.is_multiple_of(3));
                    checked.oracle.rule = rule_of(10 * step + rank);
                    let (a, b) = (gradient(0, step), gradient(1, step));
                    let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
                    checked.oracle.push(PushOp::Gradient, &sum);
                }
                checked.check(&mut clients[0], &format!("last first: {last_first}"));
            }
        }
    }
}

/// A change without a push in its iteration is not lost.
#[test]
fn settings_without_pushes_stay() {
    let cluster = Cluster::start(transports()[0], 1, 2, 1);
    let mut client = cluster.client(0, SyncMode::Bsp);
    for mut checked in Checked::each(&mut client, |table| table.at_clock(Reduce::Sum)) {
        checked.set(&mut client, rule_of(3));
        client.tick_domain(DomainId(0)).unwrap();
        let g = gradient(0, 1);
        checked.push(&mut client, &g);
        client.tick_domain(DomainId(0)).unwrap();
        checked.oracle.rule = rule_of(3);
        checked.oracle.push(PushOp::Gradient, &g);
        checked.check(&mut client, "an iteration later");
    }
}

#[test]
fn schedules_set_the_rate() {
    let cluster = Cluster::start(transports()[0], 2, 1, 1);
    let mut client = cluster.client(0, SyncMode::Bsp);
    let schedule = Schedule::Cosine {
        rate: 0.2,
        last: 0.01,
        warm_up: 3,
        iterations: 9,
    };
    let mut all = Checked::each(&mut client, |table| table.at_clock(Reduce::Sum));
    for iteration in 0..12 {
        for checked in &mut all {
            drop(
                client
                    .schedule(&checked.table, &schedule, iteration)
                    .unwrap(),
            );
            let g = gradient(0, iteration as u32);
            checked.push(&mut client, &g);
            checked.oracle.rule = adam(schedule.at(iteration), 0.9);
            checked.oracle.push(PushOp::Gradient, &g);
        }
        client.tick_domain(DomainId(0)).unwrap();
    }
    for checked in &all {
        checked.check(&mut client, "a schedule");
    }
}

/// What a table cannot take is refused with the range, and nothing is sent.
#[test]
fn wrong_settings_are_not_sent() {
    let cluster = Cluster::start(transports()[0], 1, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let all = Checked::each(&mut client, |table| table);
    let sums = TableBuilder::sparse::<i32>("sums", 1);
    let sums = AnyTable::create(&mut client, sums.spec()).unwrap();
    assert_eq!(sums.dtype(), DType::I32);
    let frames = client.counters().frames;
    let refused = |result: Result<tidewater::Ticket, ClientError>| {
        let error = result.unwrap_err();
        assert!(matches!(error, ClientError::Argument { .. }), "{error}");
        error.to_string()
    };
    for checked in &all {
        for (rule, said) in [
            (adam(0.0, 0.9), "lr is 0: must be finite and above 0"),
            (adam(1e-50, 0.9), "lr is"),
            (adam(0.1, 1.0), "beta1 is 1: must be in [0, 1)"),
            (Optimizer::Sgd { lr: 0.1 }, "rule is AdamW"),
            (Optimizer::None, "rule is AdamW"),
        ] {
            let text = refused(client.set_optimizer(&checked.table, rule));
            assert!(text.contains(said), "{text}");
        }
        let flat = Schedule::Constant { rate: -1.0 };
        let text = refused(client.schedule(&checked.table, &flat, 0));
        assert!(text.contains("rate is -1e0"), "{text}");
    }
    refused(sums.set_optimizer(&mut client, Optimizer::Sgd { lr: 0.1 }));
    refused(sums.set_optimizer(&mut client, Optimizer::None));
    client.flush().unwrap();
    assert_eq!(client.counters().frames, frames);
}

//! Gradient rules and options on tables of servers, against the scalar oracle of the kernels: bit for
//! bit, on arrival and at ticks, for rows and for ranges.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
#[path = "../server/engine/tests/kernels/oracle.rs"]
#[allow(dead_code, reason = "the kernels' tests use all of it")]
mod oracle;

use common::Cluster;
use common::faults::transports;
use oracle::Oracle32;
use tidewater::{Client, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_protocol::ids::DomainId;
use tidewater_protocol::table::{GradientOptions, Optimizer, PushOp, Reduce};

const DIM: usize = 5;
const ROWS: u64 = 40;
const STEPS: u32 = 12;

fn rules() -> [Optimizer; 8] {
    let (lr, eps) = (0.1, 1e-8);
    let (beta1, beta2) = (0.9, 0.99);
    [
        Optimizer::Sgd { lr },
        Optimizer::Momentum {
            lr,
            mu: 0.9,
            nesterov: true,
        },
        Optimizer::AdaGrad { lr, eps },
        Optimizer::RowAdaGrad { lr, eps },
        Optimizer::RmsProp {
            lr,
            decay: 0.9,
            eps,
        },
        Optimizer::AmsGrad {
            lr,
            beta1,
            beta2,
            eps,
        },
        Optimizer::AdamW {
            lr,
            beta1,
            beta2,
            eps,
            weight_decay: 0.1,
        },
        Optimizer::Ftrl {
            alpha: 0.1,
            beta: 1.0,
            l1: 0.01,
            l2: 0.1,
        },
    ]
}

/// No options, and all that the rule and the kind of table take.
fn options(rule: &Optimizer, ranges: bool) -> [GradientOptions; 2] {
    let own_decay = matches!(rule, Optimizer::AdamW { .. });
    let all = GradientOptions {
        weight_decay: if own_decay { 0.0 } else { 0.05 },
        clip_value: Some(0.8),
        clip_norm: (!ranges).then_some(1.2),
        initial_accumulator: if rule.accumulates() { 0.1 } else { 0.0 },
    };
    [GradientOptions::default(), all]
}

/// Gradient of a worker for a row in a step: values above and below the bounds.
fn gradient(worker: u32, row: u64, step: u32) -> Vec<f32> {
    let value = |column: u32| {
        let n = u64::from(worker * 31 + step * 7 + column * 3) + row * 11;
        (n % 23) as f32 / 10.0 - 1.1
    };
    (0..DIM as u32).map(value).collect()
}

/// Rows that a step touches; not all of them, so that step counts differ.
fn touched(step: u32) -> impl Iterator<Item = u64> {
    (0..ROWS).filter(move |row| row % 3 != u64::from(step) % 3)
}

/// A table with the oracles of its rows. In a range table each row is pushed as a range.
struct Checked {
    table: Table<f32>,
    ranges: bool,
    rows: Vec<Oracle32>,
    what: String,
}

impl Checked {
    fn push(&self, client: &mut Client, row: u64, g: &[f32]) {
        let ticket = if self.ranges {
            client.push_dense(&self.table, row * DIM as u64, g, PushOp::Gradient)
        } else {
            client.push_rows(&self.table, &[row], g, PushOp::Gradient)
        };
        client.wait_applied(&ticket.unwrap()).unwrap();
    }

    fn check(&self, client: &mut Client) {
        let mut out = vec![0.0; ROWS as usize * DIM];
        let keys: Vec<u64> = (0..ROWS).collect();
        if self.ranges {
            let options = PullOptions::default();
            client.pull_dense(&self.table, 0, &mut out, options)
        } else {
            let options = PullOptions::default();
            client.pull_rows(&self.table, &keys, &mut out, options)
        }
        .unwrap();
        let want = self.rows.iter().flat_map(|row| row.w.iter());
        let bits = |x: &f32| x.to_bits();
        let (got, want): (Vec<u32>, Vec<u32>) =
            (out.iter().map(bits).collect(), want.map(bits).collect());
        assert_eq!(got, want, "{}", self.what);
    }
}

/// Creates, or opens, a table of every kind, rule and choice of options.
fn tables(client: &mut Client, change: impl Fn(TableBuilder) -> TableBuilder) -> Vec<Checked> {
    let mut all = Vec::new();
    for (n, rule) in rules().into_iter().enumerate() {
        for kind in ["sparse", "rows", "ranges"] {
            let ranges = kind == "ranges";
            if ranges && rule.needs_rows() {
                continue;
            }
            for (o, options) in options(&rule, ranges).into_iter().enumerate() {
                let name = format!("{kind}-{n}-{o}");
                let builder = match kind {
                    "sparse" => TableBuilder::sparse::<f32>(&name, DIM as u32),
                    "rows" => TableBuilder::rows::<f32>(&name, ROWS, DIM as u32),
                    _ => TableBuilder::blocks::<f32>(&name, ROWS, DIM as u32).block_bytes(4096),
                };
                let builder = change(builder.optimizer(rule).gradient(options).partitions(4));
                let oracle = || Oracle32::new(rule, options, DIM);
                all.push(Checked {
                    table: client.create_table(builder.spec()).unwrap(),
                    ranges,
                    rows: (0..ROWS).map(|_| oracle()).collect(),
                    what: format!("{kind}: {rule:?} {options:?}"),
                });
            }
        }
    }
    all
}

#[test]
fn pushes_on_arrival_match_the_oracle() {
    for transport in transports() {
        let cluster = Cluster::start(transport, 2, 2, 1);
        let mut client = cluster.client(0, SyncMode::Asp);
        for mut checked in tables(&mut client, |table| table) {
            for step in 0..STEPS {
                for row in touched(step) {
                    let g = gradient(0, row, step);
                    checked.push(&mut client, row, &g);
                    checked.rows[row as usize].push(PushOp::Gradient, &g);
                }
            }
            checked.check(&mut client);
        }
    }
}

/// Options apply to the mean of the ranks, once: not to the gradient of each.
#[test]
fn ticks_match_the_oracle() {
    for transport in transports() {
        let cluster = Cluster::start(transport, 2, 2, 2);
        let mut clients = [0, 1].map(|rank| cluster.client(rank, SyncMode::Bsp));
        let at_tick = |table: TableBuilder| table.at_clock(Reduce::Mean);
        let [first, second] = &mut clients;
        let mut all = tables(first, at_tick);
        let other = tables(second, at_tick);
        for step in 0..STEPS {
            for (checked, theirs) in all.iter_mut().zip(&other) {
                for row in touched(step) {
                    let (a, b) = (gradient(0, row, step), gradient(1, row, step));
                    checked.push(first, row, &a);
                    theirs.push(second, row, &b);
                    let mean: Vec<f32> = a.iter().zip(&b).map(|(a, b)| (a + b) / 2.0).collect();
                    checked.rows[row as usize].push(PushOp::Gradient, &mean);
                }
            }
            for client in [&mut *first, &mut *second] {
                client.tick_domain(DomainId(0)).unwrap();
            }
        }
        for checked in &all {
            checked.check(first);
        }
    }
}

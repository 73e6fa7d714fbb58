//! Gradient rules and options on tables of servers, against the scalar oracle of the kernels: bit for
//! bit, on arrival and at ticks, for rows and for ranges.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "optimizers/encodings.rs"]
mod encodings;
#[path = "../server/kernels/tests/kernels/oracle.rs"]
#[allow(dead_code, reason = "the kernels' tests use all of it")]
mod oracle;

use oracle::Oracle32;
use tidewater::{
    Client, ClientError, PullOptions, PushOptions, SyncMode, Table, TableBuilder, Ticket,
};
use tidewater_protocol::ids::DomainId;
use tidewater_protocol::table::{GradientOptions, Optimizer, PushOp, Reduce};
use tidewater_testkit::faults::transports;
use tidewater_testkit::threads::Cluster;

const DIM: usize = 5;
const ROWS: u64 = 40;
const STEPS: u32 = 12;

fn rules() -> [Optimizer; 11] {
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
        Optimizer::AdaDelta {
            lr: 1.0,
            rho: 0.9,
            eps: 1e-6,
        },
        Optimizer::ProximalSgd { lr, l1: 0.2 },
        Optimizer::ProximalAdaGrad { lr, eps, l1: 0.2 },
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
        ..GradientOptions::default()
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
        self.push_by(client, row, g, 1.0);
    }

    /// Pushes a gradient with a weight.
    fn push_by(&self, client: &mut Client, row: u64, g: &[f32], weight: f64) {
        let options = PushOptions::default().weight(weight);
        let ticket = self.try_push(client, row, g, PushOp::Gradient, options);
        client.wait_applied(&ticket.unwrap()).unwrap();
    }

    fn try_push(
        &self,
        client: &mut Client,
        row: u64,
        values: &[f32],
        op: PushOp,
        options: PushOptions,
    ) -> Result<Ticket, ClientError> {
        if self.ranges {
            let first = row * DIM as u64;
            return client.push_range_with(&self.table, first, values, op, options);
        }
        client.push_rows_with(&self.table, &[row], values, op, options)
    }

    fn pull_row(&self, client: &mut Client, row: u64) -> [f32; DIM] {
        let (mut out, options) = ([0.0; DIM], PullOptions::default());
        if self.ranges {
            client.pull_range(&self.table, row * DIM as u64, &mut out, options)
        } else {
            client.pull_rows(&self.table, &[row], &mut out, options)
        }
        .unwrap();
        out
    }

    fn check(&self, client: &mut Client) {
        let mut out = vec![0.0; ROWS as usize * DIM];
        let keys: Vec<u64> = (0..ROWS).collect();
        if self.ranges {
            let options = PullOptions::default();
            client.pull_range(&self.table, 0, &mut out, options)
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
                    _ => TableBuilder::range::<f32>(&name, ROWS, DIM as u32).block_bytes(4096),
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

/// The weight of a push on arrival is a factor of the learning rate of its step: of every rule, with
/// every option, to the bit.
#[test]
fn weights_scale_the_rate_on_arrival() {
    for transport in transports() {
        let cluster = Cluster::start(transport, 2, 2, 1);
        let mut client = cluster.client(0, SyncMode::Asp);
        for mut checked in tables(&mut client, |table| table) {
            for step in 0..STEPS {
                for row in touched(step) {
                    let g = gradient(0, row, step);
                    let weight = [1.0, 0.3, 0.0, 2.5][(step as usize + row as usize) % 4];
                    let options = PushOptions::default().weight(weight);
                    let ticket = checked.try_push(&mut client, row, &g, PushOp::Gradient, options);
                    drop(ticket.unwrap());
                    checked.rows[row as usize].factor = weight;
                    checked.rows[row as usize].push(PushOp::Gradient, &g);
                }
            }
            client.flush().unwrap();
            checked.check(&mut client);
        }
    }
}

/// A weight that is no weight of the table, and one of an operation that has none, is refused before
/// anything is sent. The weight of a sum multiplies its values.
#[test]
fn weights_are_finite_and_of_sums() {
    let cluster = Cluster::start(transports()[0], 1, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let integers = TableBuilder::sparse::<i32>("integers", 1);
    let integers = client.create_table::<i32>(integers.spec()).unwrap();
    let of = |weight| PushOptions::default().weight(weight);
    for checked in tables(&mut client, |table| table).iter().take(12) {
        let before = client.counters().frames;
        let values = [1.0f32, 2.0, 3.0, 4.0, -5.0];
        // Of the last two, one is 0 in f32 and one coarse.
        for weight in [f64::NAN, f64::INFINITY, -0.5, 1e39, 1e-50, 1e-44] {
            for op in [PushOp::Gradient, PushOp::Sum] {
                let refused = checked.try_push(&mut client, 3, &values, op, of(weight));
                let text = refused.unwrap_err().to_string();
                assert!(text.contains("not below 0"), "{weight}: {text}");
            }
        }
        let refused = checked.try_push(&mut client, 3, &values, PushOp::Assign, of(0.5));
        assert!(matches!(refused, Err(ClientError::Argument { .. })));
        let refused = client.push_rows_with(&integers, &[1], &[2], PushOp::Sum, of(2.0));
        assert!(matches!(refused, Err(ClientError::Argument { .. })));
        assert_eq!(client.counters().frames, before, "nothing was sent");
        let ticket = checked.try_push(&mut client, 3, &values, PushOp::Sum, of(2.5));
        client.wait_applied(&ticket.unwrap()).unwrap();
        let mut oracle = Oracle32::new(checked.rows[3].rule, GradientOptions::default(), DIM);
        oracle.push(PushOp::Sum, &values.map(|v| 2.5 * v));
        assert_eq!(
            checked.pull_row(&mut client, 3).to_vec(),
            oracle.w,
            "{}",
            checked.what
        );
    }
}

/// A table by staleness divides the rate by the ticks that the fastest worker is ahead, 1 at least: also
/// after that worker has left. A weight is a factor as well. Other tables are as ever.
#[test]
fn staleness_divides_the_rate() {
    for transport in transports() {
        let cluster = Cluster::start(transport, 1, 2, 2);
        let mut slow = cluster.client(0, SyncMode::Asp);
        let mut fast = cluster.client(1, SyncMode::Asp);
        let sgd = |table: TableBuilder| table.optimizer(Optimizer::Sgd { lr: 0.75 });
        let mut create = |table: TableBuilder, ranges| Checked {
            table: slow.create_table(sgd(table).spec()).unwrap(),
            ranges,
            rows: Vec::new(),
            what: format!("{transport}, ranges {ranges}"),
        };
        let dim = DIM as u32;
        let ranges = TableBuilder::range::<f32>("ranges", ROWS, dim).block_bytes(4096);
        let by_staleness = [
            create(
                TableBuilder::sparse::<f32>("sparse", dim).by_staleness(),
                false,
            ),
            create(
                TableBuilder::rows::<f32>("rows", ROWS, dim).by_staleness(),
                false,
            ),
            create(ranges.by_staleness(), true),
        ];
        let plain = create(TableBuilder::rows::<f32>("plain", ROWS, dim), false);
        let (mut ticks, mut want, mut want_plain) = ([0, 0], 0.0f32, 0.0f32);
        for staleness in [0, 1, 2, 4, 4, 5, 8] {
            while ticks[1] < ticks[0] + staleness {
                fast.tick().unwrap();
                ticks[1] += 1;
            }
            fast.flush().unwrap();
            for weight in [1.0, 0.5] {
                for table in by_staleness.iter().chain([&plain]) {
                    table.push_by(&mut slow, 7, &[1.0; DIM], weight);
                }
                want -= (0.75 * (weight / staleness.max(1) as f64)) as f32;
                want_plain -= (0.75 * weight) as f32;
            }
            for table in &by_staleness {
                let found = table.pull_row(&mut slow, 7);
                assert_eq!(found, [want; DIM], "{}, staleness {staleness}", table.what);
            }
            assert_eq!(plain.pull_row(&mut slow, 7), [want_plain; DIM]);
            if staleness == 4 {
                slow.tick().unwrap();
                ticks[0] += 1;
            }
        }
        fast.finish().unwrap();
        for table in &by_staleness {
            table.push_by(&mut slow, 9, &[1.0; DIM], 1.0);
            let found = table.pull_row(&mut slow, 9);
            assert_eq!(found, [-0.75 / 8.0; DIM], "{}: alone", table.what);
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

//! (long: with a measurement.) Values after a tick compared with hand-computed values: the mean, the order of operations
//! and of ranks, and clock domains. One thread drives all workers, so that the schedule is fixed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "a measurement prints its times")]

use std::time::Duration;

use tidewater::{
    Client, ClientError, Element, Expression, FunctionArgs, PullOptions, PushOptions, SyncMode,
    Table, TableBuilder,
};
use tidewater_engine::apply::command::Command;
use tidewater_engine::namespace::NamespaceId;
use tidewater_protocol::ids::{DomainId, WorkerId};
use tidewater_protocol::table::{Optimizer, PushOp, Reduce};
use tidewater_runtime::clock::now;
use tidewater_runtime::sync::{AtomicBool, Ordering};
use tidewater_testkit::faults::transports;
use tidewater_testkit::threads::Cluster;

/// Rate 1, so that a step subtracts the reduced gradient without a rounding of its own.
const SGD: Optimizer = Optimizer::Sgd { lr: 1.0 };
/// Longest wait for a clock; it bounds a failing test.
const CLOCK_WAIT: Duration = Duration::from_secs(20);
/// Elements of a block of 4 KiB of f32.
const BLOCK: u64 = 1024;
/// f32 cannot add 1 to it: 2^24 + 1 rounds to 2^24.
const BIG: f32 = 16_777_216.0;

fn clients(cluster: &Cluster, workers: u32) -> Vec<Client> {
    let client = |rank| {
        let mut client = cluster.client(rank, SyncMode::Bsp);
        client.set_clock_timeout(CLOCK_WAIT);
        client
    };
    (0..workers).map(client).collect()
}

fn tick_all(clients: &mut [Client], domain: DomainId) {
    for client in clients {
        client.tick_domain(domain).unwrap();
    }
}

/// A table of single values, addressed by keys or by ranges.
struct One<T> {
    table: Table<T>,
    blocks: bool,
}

impl<T: Element + Default> One<T> {
    /// Creates a sparse table, one by rows and one by ranges, each with `change`.
    fn each(client: &mut Client, change: impl Fn(TableBuilder) -> TableBuilder) -> [Self; 3] {
        let of = |table: TableBuilder| change(table).partitions(4);
        let blocks = TableBuilder::range::<T>("blocks", 4 * BLOCK, 1).block_bytes(4096);
        let all = [
            (of(TableBuilder::sparse::<T>("sparse", 1)), false),
            (of(TableBuilder::rows::<T>("rows", 4 * BLOCK, 1)), false),
            (of(blocks), true),
        ];
        all.map(|(table, blocks)| Self {
            table: client.create_table(table.spec()).unwrap(),
            blocks,
        })
    }

    fn push(&self, client: &mut Client, at: u64, value: T, op: PushOp) {
        let ticket = match self.blocks {
            true => client.push_range(&self.table, at, &[value], op),
            false => client.push_rows(&self.table, &[at], &[value], op),
        };
        client.wait_applied(&ticket.unwrap()).unwrap();
    }

    fn push_by(&self, client: &mut Client, weight: f64, at: u64, value: T, op: PushOp) {
        let options = PushOptions::default().weight(weight);
        let ticket = match self.blocks {
            true => client.push_range_with(&self.table, at, &[value], op, options),
            false => client.push_rows_with(&self.table, &[at], &[value], op, options),
        };
        client.wait_applied(&ticket.unwrap()).unwrap();
    }

    fn pull(&self, client: &mut Client, at: u64) -> T {
        let (mut out, options) = ([T::default()], PullOptions::default());
        match self.blocks {
            true => client.pull_range(&self.table, at, &mut out, options),
            false => client.pull_rows(&self.table, &[at], &mut out, options),
        }
        .unwrap();
        out[0]
    }
}

/// The mean is the sum, in one division, by the number of workers that pushed. It is not by the number
/// of pushes, not by the number of workers of the job, and not times a rounded 1/n.
#[test]
fn mean_divides_by_the_workers_that_pushed() {
    // Workers, sum of their gradients, bits of the mean in f32.
    let cases: [(u32, f32, u32); 6] = [
        (1, 4.0, 0x4080_0000),
        (2, 3.0, 0x3fc0_0000),
        (3, 5.0, 0x3fd5_5555),
        (5, 9.0, 0x3fe6_6666),
        (6, 7.0, 0x3f95_5555),
        (7, 3.0, 0x3edb_6db7),
    ];
    let (by_all, by_last) = (7, 3 * BLOCK + 5);
    for transport in transports() {
        for (workers, sum, bits) in cases {
            let cluster = Cluster::start(transport, 1, 2, workers);
            let mut clients = clients(&cluster, workers);
            let mean = |table: TableBuilder| table.optimizer(SGD).at_clock(Reduce::Mean);
            let tables = One::<f32>::each(&mut clients[0], mean);
            let others: Vec<_> = clients[1..]
                .iter_mut()
                .map(|client| One::<f32>::each(client, mean))
                .collect();
            for n in 0..tables.len() {
                // The first worker pushes twice, each other one a gradient of 1.
                let first = sum - (workers - 1) as f32;
                for value in [first + 8.0, -8.0] {
                    tables[n].push(&mut clients[0], by_all, value, PushOp::Gradient);
                }
                for (client, tables) in clients[1..].iter_mut().zip(&others) {
                    tables[n].push(client, by_all, 1.0, PushOp::Gradient);
                }
                let last = clients.last_mut().unwrap();
                let of_last = others.last().unwrap_or(&tables);
                for value in [0.25, 0.5] {
                    of_last[n].push(last, by_last, value, PushOp::Gradient);
                }
            }
            tick_all(&mut clients, DomainId(0));
            for table in &tables {
                let found = table.pull(&mut clients[0], by_all);
                let what = format!("{transport}, {workers} workers, blocks {}", table.blocks);
                assert_eq!(found, -f32::from_bits(bits), "{what}: mean of {sum}");
                let found = table.pull(&mut clients[0], by_last);
                assert_eq!(found, -0.75, "{what}: pushed by one worker, twice");
            }
        }
    }
}

/// The mean of a tick is the sum of weight times gradient, in rank order, divided by the weights of the
/// workers that pushed; a sum has no divisor. A worker with two pushes counts with the larger weight, and
/// one without a weight with 1. Without any weight above 0 there is no step.
#[test]
fn ticks_take_weighted_means_and_sums() {
    let weights = [0.3, 2.0, 1.0, 0.0];
    let gradients = [0.7f32, -1.1, 0.9, 5.0];
    for transport in transports() {
        for reduce in [Reduce::Mean, Reduce::Sum] {
            let cluster = Cluster::start(transport, 1, 2, 4);
            let mut clients = clients(&cluster, 4);
            let of = |table: TableBuilder| table.optimizer(SGD).at_clock(reduce);
            let tables: Vec<_> = clients
                .iter_mut()
                .map(|client| One::<f32>::each(client, of))
                .collect();
            let (by_all, twice, by_none) = (5, BLOCK + 5, 2 * BLOCK + 5);
            for (rank, client) in clients.iter_mut().enumerate() {
                let gradient = PushOp::Gradient;
                for table in &tables[rank] {
                    table.push_by(client, weights[rank], by_all, gradients[rank], gradient);
                    table.push_by(client, 0.0, by_none, 3.0, gradient);
                    if rank == 1 {
                        table.push_by(client, 3.0, twice, 1.0, gradient);
                        table.push_by(client, 6.0, twice, 0.5, gradient);
                        table.push_by(client, 0.25, twice, 8.0, PushOp::Sum);
                    }
                }
            }
            tick_all(&mut clients, DomainId(0));
            let scaled = weights.iter().zip(gradients).map(|(w, g)| *w as f32 * g);
            let sum = scaled.fold(0.0, |sum, g| sum + g);
            let divisors = match reduce {
                Reduce::Mean => ((0.3 + 2.0 + 1.0) as f32, 6.0),
                Reduce::Sum => (1.0, 1.0),
            };
            for table in &tables[0] {
                let what = format!("{transport}, {reduce:?}, blocks {}", table.blocks);
                let found = table.pull(&mut clients[0], by_all);
                assert_eq!(found.to_bits(), (-(sum / divisors.0)).to_bits(), "{what}");
                let found = table.pull(&mut clients[0], twice);
                assert_eq!(found, 2.0 - 6.0 / divisors.1, "{what}: two pushes");
                let found = table.pull(&mut clients[0], by_none);
                assert_eq!(found, 0.0, "{what}: weights of 0");
            }
            // The next iteration divides by its own pushes.
            let before: Vec<f32> = (tables[0].iter())
                .map(|table| table.pull(&mut clients[0], by_all))
                .collect();
            for (client, tables) in clients.iter_mut().zip(&tables).take(2) {
                for table in tables {
                    table.push(client, by_all, 1.0, PushOp::Gradient);
                }
            }
            tick_all(&mut clients, DomainId(0));
            let step = if reduce == Reduce::Mean { 1.0 } else { 2.0 };
            for (table, before) in tables[0].iter().zip(before) {
                let found = table.pull(&mut clients[0], by_all);
                let what = format!("{transport}, {reduce:?}, blocks {}", table.blocks);
                assert_eq!(found, before - step, "{what}: second iteration");
            }
        }
    }
}

/// In f64 too; 5/3 and 3/7 have other last bits as products with the rounded 1/n.
#[test]
fn mean_of_doubles_is_one_division() {
    for (workers, sum, bits) in [
        (3, 5.0, 0x3ffa_aaaa_aaaa_aaab_u64),
        (7, 3.0, 0x3fdb_6db6_db6d_b6db_u64),
    ] {
        let cluster = Cluster::start(transports()[0], 1, 1, workers);
        let mut clients = clients(&cluster, workers);
        let of = |table: TableBuilder| table.optimizer(SGD).at_clock(Reduce::Mean);
        let mut first = sum - f64::from(workers - 1);
        for client in &mut clients {
            for table in One::<f64>::each(client, of) {
                table.push(client, 9, first, PushOp::Gradient);
            }
            first = 1.0;
        }
        tick_all(&mut clients, DomainId(0));
        for table in One::<f64>::each(&mut clients[0], of) {
            let found = table.pull(&mut clients[0], 9);
            assert_eq!(found, -f64::from_bits(bits), "{sum} / {workers}");
        }
    }
}

/// A tick applies the last assign, then the sum, then one step, whatever the order of the pushes.
///
/// 1 + 2^24 rounds to 2^24, less 2^24 is 0. With the step before the sum the value is 1. With the
/// assign last 1, with the assign between them 2^24 + 1 or 1 - 2^24.
#[test]
fn tick_assigns_then_sums_then_steps() {
    let pushes = [
        (PushOp::Gradient, BIG),
        (PushOp::Sum, BIG),
        (PushOp::Assign, 1.0),
    ];
    let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]];
    for transport in transports() {
        let cluster = Cluster::start(transport, 1, 2, 2);
        let mut clients = clients(&cluster, 2);
        let of = |table: TableBuilder| table.optimizer(SGD).at_clock(Reduce::Sum);
        let tables = One::<f32>::each(&mut clients[0], of);
        let theirs = One::<f32>::each(&mut clients[1], of);
        for (table, of_other) in tables.iter().zip(&theirs) {
            for (at, order) in (0..).zip(orders) {
                for n in order {
                    let (op, value) = pushes[n];
                    table.push(&mut clients[0], at * BLOCK, value, op);
                }
            }
            // Of two assigns the higher rank's stands, though it was pushed first.
            let at = 4 * BLOCK - 1;
            of_other.push(&mut clients[1], at, 30.0, PushOp::Assign);
            table.push(&mut clients[0], at, 20.0, PushOp::Assign);
        }
        tick_all(&mut clients, DomainId(0));
        for table in &tables {
            let blocks = table.blocks;
            for (at, order) in (0..).zip(orders) {
                let found = table.pull(&mut clients[0], at * BLOCK);
                assert_eq!(found, 0.0, "{transport}, blocks {blocks}, pushed {order:?}");
            }
            let found = table.pull(&mut clients[0], 4 * BLOCK - 1);
            assert_eq!(found, 30.0, "{transport}, blocks {blocks}: the higher rank");
        }
    }
}

/// Gradients are added in rank order, though the highest rank pushes first. In rank order
/// 2^24 + 1 - 2^24 is 0 in f32; in the order of arrival it is 1.
#[test]
fn gradients_are_added_in_rank_order() {
    for transport in transports() {
        let cluster = Cluster::start(transport, 1, 1, 3);
        let mut clients = clients(&cluster, 3);
        let of = |table: TableBuilder| table.optimizer(SGD).at_clock(Reduce::Sum);
        for (rank, value) in [(2, -BIG), (1, 1.0), (0, BIG)] {
            let client = &mut clients[rank];
            for table in One::<f32>::each(client, of) {
                table.push(client, 3, value, PushOp::Gradient);
            }
        }
        tick_all(&mut clients, DomainId(0));
        for table in One::<f32>::each(&mut clients[0], of) {
            let found = table.pull(&mut clients[0], 3);
            assert_eq!(found, 0.0, "{transport}, blocks {}", table.blocks);
        }
    }
}

/// A domain's tick applies the pushes of its own tables, at its own clock, and no others.
#[test]
fn domains_tick_apart() {
    let domains = [DomainId(0), DomainId(5), DomainId(63)];
    for transport in transports() {
        let cluster = Cluster::start(transport, 1, 2, 2);
        let mut clients = clients(&cluster, 2);
        let mut tables = Vec::new();
        for client in &mut clients {
            let of = domains.map(|domain| {
                let name = format!("domain {domain}");
                let table = TableBuilder::sparse::<i64>(&name, 1)
                    .at_clock(Reduce::Sum)
                    .domain(domain);
                client.create_table::<i64>(table.spec()).unwrap()
            });
            tables.push(of);
        }
        let (mut due, mut held) = ([0; 3], [0; 3]);
        // Ticks of each domain: other numbers, in an order that mixes them.
        for (iteration, ticked) in (1..).zip([1, 1, 2, 0, 1, 2, 1]) {
            let what = format!("{transport}, tick {iteration}, of {}", domains[ticked]);
            let amount = 10_i64.pow(iteration);
            for (client, tables) in clients.iter_mut().zip(&tables) {
                for table in tables {
                    let ticket = client.push_rows(table, &[4], &[amount], PushOp::Sum);
                    client.wait_applied(&ticket.unwrap()).unwrap();
                }
            }
            held = held.map(|sum| sum + 2 * amount);
            let [first, second] = &mut clients[..] else {
                unreachable!("two workers")
            };
            let before = [0, 1, 2].map(|n| pull_one(first, &tables[0][n]));
            assert_eq!(before, due, "{what}: before");
            first.tick_domain(domains[ticked]).unwrap();
            second.tick_domain(domains[ticked]).unwrap();
            due[ticked] += std::mem::take(&mut held[ticked]);
            let after = [0, 1, 2].map(|n| pull_one(second, &tables[1][n]));
            assert_eq!(after, due, "{what}: after");
        }
        assert_eq!(clients[0].clock(), 1, "ticks of domain 0");
    }
}

fn pull_one(client: &mut Client, table: &Table<i64>) -> i64 {
    let mut out = [0];
    client
        .pull_rows(table, &[4], &mut out, PullOptions::default())
        .unwrap();
    out[0]
}

/// No domain waits for a finished worker, not even one in which it never ticked.
#[test]
fn finished_worker_leaves_every_domain() {
    let domains = [DomainId(0), DomainId(3), DomainId(9)];
    for transport in transports() {
        let cluster = Cluster::start(transport, 1, 2, 2);
        let mut clients = clients(&cluster, 2);
        let tables = domains.map(|domain| {
            let name = format!("domain {domain}");
            let table = TableBuilder::sparse::<i64>(&name, 1)
                .at_clock(Reduce::Sum)
                .domain(domain);
            clients[0].create_table::<i64>(table.spec()).unwrap()
        });
        // Both tick domain 3 once; the second worker never uses the other domains.
        tick_all(&mut clients, domains[1]);
        let mut second = clients.pop().unwrap();
        second.finish().unwrap();
        for (table, amount) in tables.iter().zip([5, 6, 7]) {
            let client = &mut clients[0];
            for ticks in 1..=2 {
                let ticket = client.push_rows(table, &[4], &[amount], PushOp::Sum);
                client.wait_applied(&ticket.unwrap()).unwrap();
                let domain = client.spec(table).unwrap().domain;
                let ticked = client.tick_domain(domain);
                assert!(ticked.is_ok(), "{transport}, domain {domain}: {ticked:?}");
                let mut out = [0];
                let pulled = client.pull_rows(table, &[4], &mut out, PullOptions::default());
                assert!(pulled.is_ok(), "{transport}, domain {domain}: {pulled:?}");
                assert_eq!(out, [ticks * amount], "{transport}, domain {domain}");
            }
        }
    }
}

/// Two tables of one definition that functions change at the tick, by ranges or by rows.
fn pair(client: &mut Client, blocks: bool) -> [Table<f64>; 2] {
    ["t", "g"].map(|name| {
        let table = match blocks {
            true => TableBuilder::range::<f64>(name, 2 * BLOCK, 1).block_bytes(4096),
            false => TableBuilder::rows::<f64>(name, BLOCK, 2),
        };
        let table = table.optimizer(Optimizer::None).at_clock(Reduce::Sum);
        let table = table.finite_check(false).partitions(3);
        client.create_table(table.spec()).unwrap()
    })
}

/// Functions of an iteration run at its tick: after the pushes of all tables, in the order of ranks and
/// calls, whatever the order of arrival; with the same bits on any number of servers. A rank that is ahead calls for
/// the next iteration.
#[test]
fn functions_run_at_the_tick_in_rank_order() {
    const WORKERS: u32 = 3;
    let elements = 2 * BLOCK as usize;
    let mix = Expression::<f64>::parse("x * p0 + y").unwrap();
    let back = Expression::<f64>::parse("y / p0 - x + index").unwrap();
    for (transport, servers, blocks) in transports()
        .into_iter()
        .flat_map(|t| [(t, 1, true), (t, 3, true), (t, 2, false)])
    {
        let cluster = Cluster::start(transport, servers, 2, WORKERS);
        let mut clients = clients(&cluster, WORKERS);
        let tables: Vec<_> = clients.iter_mut().map(|c| pair(c, blocks)).collect();
        let pull = |client: &mut Client, table: &Table<f64>| {
            let mut out = vec![0.0; elements];
            let rows: Vec<u64> = (0..BLOCK).collect();
            match blocks {
                true => client.pull_range(table, 0, &mut out, PullOptions::default()),
                false => client.pull_rows(table, &rows, &mut out, PullOptions::default()),
            }
            .unwrap();
            out
        };
        let factor = |rank: usize, round: usize| 0.3 + rank as f64 / 7.0 + round as f64 / 11.0;
        let (mut x, mut y) = (vec![0.0; elements], vec![0.0; elements]);
        for round in 0..3 {
            // The last rank comes first, and calls before it pushes.
            for rank in (0..WORKERS as usize).rev() {
                let (client, [t, g]) = (&mut clients[rank], &tables[rank]);
                let args = FunctionArgs {
                    inputs: &[t, g],
                    parameters: &[factor(rank, round)],
                    range: None,
                };
                let first = client.update(t, &mix, &args).unwrap();
                let second = client.update(g, &back, &args).unwrap();
                client.wait_applied(&first).unwrap();
                client.wait_applied(&second).unwrap();
                let value = [(rank + 1) as f64, round as f64];
                let pushed = match blocks {
                    true => client.push_range(g, 2 * rank as u64, &value, PushOp::Sum),
                    false => client.push_rows(g, &[rank as u64], &value, PushOp::Sum),
                };
                client.wait_applied(&pushed.unwrap()).unwrap();
                assert_eq!(pull(client, t), x, "{transport}: changed before the tick");
                client.tick().unwrap();
            }
            for rank in 0..WORKERS as usize {
                y[2 * rank] += (rank + 1) as f64;
                y[2 * rank + 1] += round as f64;
            }
            for rank in 0..WORKERS as usize {
                let p0 = factor(rank, round);
                x.iter_mut().zip(&y).for_each(|(x, y)| *x = *x * p0 + y);
                for (n, (x, y)) in x.iter().zip(&mut y).enumerate() {
                    *y = *y / p0 - x + n as f64;
                }
            }
            let bits = |v: &[f64]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let found = tables[0]
                .each_ref()
                .map(|t| bits(&pull(&mut clients[0], t)));
            assert!(
                found == [bits(&x), bits(&y)],
                "{transport}, {servers} servers, round {round}"
            );
        }
    }
}

/// A worker that is lost leaves no function of the iteration that it did not end; those of others run.
#[test]
fn functions_of_a_lost_worker_are_dropped() {
    let cluster = Cluster::start(transports()[0], 1, 1, 2);
    let mut clients = clients(&cluster, 2);
    let tables: Vec<_> = clients.iter_mut().map(|c| pair(c, true)).collect();
    let add = Expression::<f64>::parse("x + p0").unwrap();
    for (rank, (client, [t, _])) in clients.iter_mut().zip(&tables).enumerate() {
        let args = FunctionArgs {
            parameters: &[[1.0, 10.0][rank]],
            ..FunctionArgs::default()
        };
        let ticket = client.update(t, &add, &args).unwrap();
        client.wait_applied(&ticket).unwrap();
    }
    let lost = |tx| Command::RemoveWorker(NamespaceId::default(), WorkerId(1), tx);
    cluster.servers[0].applier(0).ask(lost).unwrap();
    clients[0].tick().unwrap();
    let mut out = [0.0; 3];
    let pulled = clients[0].pull_range(&tables[0][0], 0, &mut out, PullOptions::default());
    pulled.unwrap();
    assert_eq!(out, [1.0; 3]);
}

/// A function whose inputs tick elsewhere, or on arrival, is refused: their values at the tick depend on timing.
#[test]
fn inputs_of_other_ticks_are_refused() {
    let transport = transports()[0];
    let cluster = Cluster::start(transport, 1, 1, 1);
    let client = &mut clients(&cluster, 1)[0];
    let table = |client: &mut Client, name, change: fn(TableBuilder) -> TableBuilder| {
        let table = TableBuilder::range::<f64>(name, 8, 1).finite_check(false);
        let table = change(table.optimizer(Optimizer::None));
        client.create_table::<f64>(table.spec()).unwrap()
    };
    let t = table(client, "t", |t| t.at_clock(Reduce::Sum));
    let arrives = table(client, "arrives", |t| t);
    let other = table(client, "other", |t| {
        t.at_clock(Reduce::Sum).domain(DomainId(1))
    });
    let sum = Expression::<f64>::parse("x + y").unwrap();
    for input in [&arrives, &other] {
        let args = FunctionArgs {
            inputs: &[&t, input],
            ..FunctionArgs::default()
        };
        let ticket = client.update(&t, &sum, &args).unwrap();
        let refused = client.wait_applied(&ticket).unwrap_err();
        assert!(matches!(refused, ClientError::Rejected { .. }), "{refused}");
        assert!(refused.to_string().contains("input 1"), "{refused}");
    }
}

/// Pushes one row again and again until it is stopped, and returns how long each push took until it was applied.
fn push_times(client: &mut Client, table: &Table<f32>, stop: &AtomicBool) -> Vec<Duration> {
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let begun = now();
        let ticket = client.push_rows(table, &[7], &[1.0; 8], PushOp::Sum);
        client.wait_applied(&ticket.unwrap()).unwrap();
        times.push(begun.elapsed());
    }
    times
}

/// Times of single pushes to a table without ticks while a tick of 2 million rows of another table is under way.
#[test]
#[ignore = "measures: --ignored --nocapture measure_large_tick"]
fn measure_large_tick() {
    use tidewater::{ClusterConfig, JoinOptions};
    const ROWS: u64 = 2_000_000;
    const AT_ONCE: u64 = 50_000;
    let config = ClusterConfig {
        workers: 2,
        capacity: 4 << 30,
        ..ClusterConfig::default()
    };
    let job = JoinOptions::from(config).join().unwrap();
    let job = job.into_job().unwrap();
    let mut ticker = job.client_of(0, SyncMode::Asp).unwrap();
    let large = TableBuilder::sparse::<f32>("large", 8).at_clock(Reduce::Sum);
    let large = ticker
        .create_table::<f32>(large.optimizer(SGD).spec())
        .unwrap();
    let other = TableBuilder::sparse::<f32>("other", 8);
    ticker.create_table::<f32>(other.spec()).unwrap();
    let mut client = job.client_of(1, SyncMode::Asp).unwrap();
    let other = client.open_table::<f32>("other").unwrap();
    let push_all = |ticker: &mut Client| {
        for first in (0..ROWS).step_by(AT_ONCE as usize) {
            let keys: Vec<u64> = (first..first + AT_ONCE).collect();
            let ones = vec![1.0; keys.len() * 8];
            drop(
                ticker
                    .push_rows(&large, &keys, &ones, PushOp::Gradient)
                    .unwrap(),
            );
        }
        ticker.flush().unwrap();
    };
    // The first tick creates the rows.
    for what in ["alone", "first tick", "second tick"] {
        if what != "alone" {
            push_all(&mut ticker);
        }
        let stop = AtomicBool::new(false);
        let (took, mut pushes) = std::thread::scope(|scope| {
            let client = &mut client;
            let pusher = scope.spawn(|| {
                if what != "alone" {
                    client.tick_domain(DomainId(0)).unwrap();
                }
                push_times(client, &other, &stop)
            });
            std::thread::sleep(Duration::from_millis(500));
            let begun = now();
            match what {
                "alone" => std::thread::sleep(Duration::from_secs(1)),
                _ => {
                    ticker.tick_domain(DomainId(0)).unwrap();
                    ticker.flush().unwrap();
                }
            }
            let took = begun.elapsed();
            stop.store(true, Ordering::Relaxed);
            (took, pusher.join().unwrap())
        });
        pushes.sort_unstable();
        let at = |share: f64| pushes[(share * (pushes.len() - 1) as f64) as usize];
        println!(
            "{what}: {took:?}; pushes p50 {:?}, p99 {:?}, max {:?}",
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}

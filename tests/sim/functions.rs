//! Functions exactly once: workers add by expressions and by a WebAssembly module while lanes fail, and
//! every element ends with the sum of the acknowledged additions. Reductions agree with what pulls read.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tidewater::{Client, ClientError, Expression, FunctionArgs, PullOptions, Reduction, Scalar};
use tidewater::{SyncMode, Table, TableBuilder, Ticket};
use tidewater_engine::apply::engine::Engine;
use tidewater_functions::Functions;
use tidewater_lanes::here;
use tidewater_lanes::sim::{Outcome, Rng, sweep};
use tidewater_protocol::table::PushOp;
use tidewater_runtime::sync::{AtomicU64, Ordering};
use tidewater_wasm::{Limits, Modules};

use tidewater_testkit::sim::{LONG, Rig, Shape, faults, open};

const WORKERS: u32 = 3;
const CALLS: u64 = 60;
const KEYS: u64 = 40;
const DIM: usize = 3;
/// Elements of the range table: two partitions of several blocks.
const ELEMENTS: u64 = 6 * 512;

/// `add` adds its argument, an i64, to each element; `spin` does the same, and does not end.
static MODULES: LazyLock<Functions> = LazyLock::new(|| {
    let limits = Limits {
        fuel: 100_000,
        ..Limits::default()
    };
    let modules = Modules::new(limits).unwrap();
    let compile = |end: &str| {
        let text = format!(
            r#"(module (memory (export "memory") 1)
                (func (export "update") (param $call i32) (result i64)
                    (local $x i32) (local $left i32)
                    (local.set $x (i32.load offset=16 (local.get $call)))
                    (local.set $left (i32.load offset=20 (local.get $call)))
                    (loop $next
                        (i64.store (local.get $x) (i64.add (i64.load (local.get $x))
                            (i64.load (i32.load offset=32 (local.get $call)))))
                        (local.set $x (i32.add (local.get $x) (i32.const 8)))
                        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                        (br_if $next (local.get $left)))
                    {end}
                    (i64.const 0)))"#
        );
        modules.compile(&wat::parse_str(text).unwrap()).unwrap()
    };
    let functions = Functions::default().with("add", compile(""));
    functions.with("spin", compile("(loop $end (br $end))"))
});

#[derive(Default)]
struct Sums {
    /// Sum of the additions to every element, by table.
    range: AtomicU64,
    rows: AtomicU64,
    sparse: AtomicU64,
    refused: AtomicU64,
    recoveries: AtomicU64,
    reductions: AtomicU64,
}

struct Worker {
    client: Client,
    range: Table<i64>,
    rows: Table<i64>,
    sparse: Table<i64>,
    float: Table<f64>,
    add: Expression<i64>,
    value: Expression<i64>,
    poison: Expression<f64>,
}

impl Worker {
    fn new(rig: &Rig, rank: u32, life: u32) -> Self {
        let mut client = rig.client(rank, life, SyncMode::Asp);
        Self {
            range: open(&mut client, "range"),
            rows: open(&mut client, "rows"),
            sparse: open(&mut client, "sparse"),
            float: open(&mut client, "float"),
            client,
            add: Expression::parse("x + p0").unwrap(),
            value: Expression::parse("x").unwrap(),
            poison: Expression::parse("if(index == p0, 0 / x, x + 1)").unwrap(),
        }
    }

    fn call(&mut self, rng: &mut Rng, sums: &Sums) -> Ticket {
        let amount = 1 + rng.below(9) as i64;
        let (table, sum) = match rng.below(3) {
            0 => (&self.range, &sums.range),
            1 => (&self.rows, &sums.rows),
            _ => (&self.sparse, &sums.sparse),
        };
        sum.fetch_add(amount as u64, Ordering::Relaxed);
        if rng.below(2) == 0 {
            let (amount, all) = (amount.to_le_bytes(), FunctionArgs::default());
            return self
                .client
                .call_update(table, "add", &amount, &all)
                .unwrap();
        }
        let args = FunctionArgs {
            parameters: &[amount as f64],
            ..FunctionArgs::default()
        };
        self.client.update(table, &self.add, &args).unwrap()
    }

    /// A call of a module that does not end: no element changes, whatever it has written.
    fn endless(&mut self, sums: &Sums) {
        let (amount, all) = (1_i64.to_le_bytes(), FunctionArgs::default());
        let ticket = self.client.call_update(&self.rows, "spin", &amount, &all);
        let refused = self.client.wait_applied(&ticket.unwrap()).unwrap_err();
        assert!(refused.to_string().contains("100000"), "{refused}");
        sums.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A call with one frame that is refused: its first block stays, and nothing else fails.
    fn poisoned(&mut self, sums: &Sums) {
        let args = FunctionArgs {
            parameters: &[7.0],
            ..FunctionArgs::default()
        };
        let ticket = self
            .client
            .update(&self.float, &self.poison, &args)
            .unwrap();
        let refused = self.client.wait_applied(&ticket).unwrap_err();
        assert!(matches!(refused, ClientError::Rejected { .. }), "{refused}");
        sums.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn sum(&mut self, table: &Table<i64>) -> i64 {
        let all = FunctionArgs::default();
        let sum = self.client.reduce(table, &self.value, Reduction::Sum, &all);
        match sum.unwrap() {
            Some(Scalar::Integer(sum)) => sum,
            other => panic!("{other:?}"),
        }
    }
}

fn work(rig: &Rig, rank: u32, rng: &mut Rng, sums: &Sums) {
    let mut worker = Worker::new(rig, rank, 0);
    let mut tickets = Vec::new();
    let mut last = 0;
    for _ in 0..CALLS {
        tickets.push(worker.call(rng, sums));
        match rng.below(8) {
            0 => worker.poisoned(sums),
            3 => worker.endless(sums),
            1 | 2 => {
                // Sums only grow, and a reduction sees this worker's earlier calls.
                let sum = worker.sum(&worker.range.clone());
                assert!(sum >= last, "{sum} after {last}");
                last = sum;
                sums.reductions.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
        if rng.below(4) == 0 {
            for ticket in tickets.drain(..) {
                worker.client.wait_applied(&ticket).unwrap();
            }
        }
    }
    for ticket in tickets {
        worker.client.wait_applied(&ticket).unwrap();
    }
    let recoveries = worker.client.counters().recoveries;
    sums.recoveries.fetch_add(recoveries, Ordering::Relaxed);
}

fn audit(rig: &Rig, sums: &Sums) {
    let mut w = Worker::new(rig, 1, 50);
    let options = PullOptions {
        timeout: LONG,
        ..PullOptions::default()
    };
    let due = |sum: &AtomicU64| sum.load(Ordering::Relaxed) as i64;
    let mut out = vec![0; ELEMENTS as usize];
    w.client.pull_range(&w.range, 0, &mut out, options).unwrap();
    assert_eq!(out, vec![due(&sums.range); ELEMENTS as usize], "range");
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut out = vec![0; KEYS as usize * DIM];
    w.client
        .pull_rows(&w.rows, &keys, &mut out, options)
        .unwrap();
    assert_eq!(out, vec![due(&sums.rows); out.len()], "rows");
    w.client
        .pull_rows(&w.sparse, &keys, &mut out, options)
        .unwrap();
    assert_eq!(out, vec![1 + due(&sums.sparse); out.len()], "sparse");
    let sum = w.sum(&w.sparse.clone());
    assert_eq!(sum, out.iter().sum::<i64>());
    let mut out = vec![1.0; 512];
    w.client.pull_range(&w.float, 0, &mut out, options).unwrap();
    assert_eq!(out, [0.0; 512], "the refused frame");
}

fn world(seed: u64, sums: &Arc<Sums>) -> Outcome {
    let range = TableBuilder::range::<i64>("range", 1, ELEMENTS as u32);
    let range = range.block_bytes(4096).partitions(2);
    let rows = TableBuilder::rows::<i64>("rows", KEYS, DIM as u32).partitions(4);
    let sparse = TableBuilder::sparse::<i64>("sparse", DIM as u32).partitions(4);
    let float = TableBuilder::range::<f64>("float", 1, 512);
    let float = float.block_bytes(4096).partitions(1);
    let shape = Shape {
        servers: 2,
        appliers: 1,
        workers: WORKERS,
        ring_bytes: 16 << 10,
    };
    let tables = [range.spec(), rows.spec(), sparse.spec(), float.spec()];
    let modules = |engine: &mut Engine| engine.add_functions(&MODULES);
    let rig = Rig::prepared(seed, faults(seed), shape, &tables, &modules);
    let mine = Arc::new(Sums::default());
    let ready = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicU64::new(0));
    for rank in 0..WORKERS {
        let (mine, ready, done) = (Arc::clone(&mine), Arc::clone(&ready), Arc::clone(&done));
        rig.spawn(&format!("worker {rank}"), move |rig, mut rng| {
            if rank == 0 {
                // All rows exist before the first call: a call covers the rows that it finds.
                let mut first = Worker::new(rig, 0, 1);
                let keys: Vec<u64> = (0..KEYS).collect();
                let ones = vec![1; KEYS as usize * DIM];
                let made = first
                    .client
                    .push_rows(&first.sparse, &keys, &ones, PushOp::Sum);
                first.client.wait_applied(&made.unwrap()).unwrap();
                drop(first);
                ready.store(1, Ordering::Release);
            }
            while ready.load(Ordering::Acquire) == 0 {
                rig.world.pause(Duration::from_millis(1));
            }
            work(rig, rank, &mut rng, &mine);
            done.fetch_add(1, Ordering::Relaxed);
        });
    }
    let (books, seen) = (Arc::clone(&mine), Arc::clone(sums));
    rig.spawn("auditor", move |rig, _| {
        while done.load(Ordering::Relaxed) < u64::from(WORKERS) {
            rig.world.pause(Duration::from_millis(1));
        }
        audit(rig, &books);
        for (to, from) in [
            (&seen.refused, &books.refused),
            (&seen.recoveries, &books.recoveries),
            (&seen.reductions, &books.reductions),
        ] {
            to.fetch_add(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    });
    rig.world.run()
}

#[test]
fn functions_apply_exactly_once() {
    let seen = Arc::new(Sums::default());
    let swept = sweep(here!(), 0..100, |seed| world(seed, &seen));
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    println!(
        "{swept:?}; {} refused, {} reductions, {} recoveries",
        count(&seen.refused),
        count(&seen.reductions),
        count(&seen.recoveries)
    );
    if swept.seeds >= 50 {
        assert!(count(&seen.refused) > 0 && count(&seen.reductions) > 0);
        assert!(count(&seen.recoveries) > swept.seeds / 4);
    }
}

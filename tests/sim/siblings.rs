//! Threads of workers: each a client of its own, with the rank and the clocks of its worker.
//!
//! A sibling of each worker joins in some iteration and finishes in a later one, in which it has pushed
//! without a tick. Under BSP every thread knows the bits of each read: contributions are added in the order
//! of rank, thread and push, and a mean divides by the threads that pushed. Rows of immediate effect count
//! each push once.

use std::sync::Arc;
use std::time::Duration;

use tidewater::{Client, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_lanes::here;
use tidewater_lanes::sim::{Outcome, Rng, sweep};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::table::{Optimizer, PushOp, Reduce};
use tidewater_runtime::sync::{AtomicBool, Ordering};

use tidewater_testkit::sim::{LONG, Rig, Shape, faults, open};

const WORKERS: u32 = 2;
const THREADS: u32 = 2;
const ITERATIONS: u64 = 8;
const ELEMENTS: usize = 1536;
/// A step subtracts the reduced gradient.
const SGD: Optimizer = Optimizer::Sgd { lr: 1.0 };

/// What one thread does in the run.
#[derive(Debug, Clone, Copy)]
struct Plan {
    rank: u32,
    thread: u32,
    /// Its first iteration, and the one in which it finishes before the tick.
    from: u64,
    to: u64,
}

impl Plan {
    /// Plans of all threads, in the order in which their pushes are added.
    fn all(seed: u64) -> Vec<Self> {
        let threads = (0..WORKERS * THREADS).map(|n| (n / THREADS, n % THREADS));
        let plan = |(rank, thread)| {
            let random = mix64(seed ^ u64::from(rank) << 32);
            let from = random % (ITERATIONS - 1);
            let (from, to) = match thread {
                0 => (0, ITERATIONS),
                _ => (from, from + (random >> 32) % (ITERATIONS - from)),
            };
            Self {
                rank,
                thread,
                from,
                to,
            }
        };
        threads.map(plan).collect()
    }

    /// Gradients that the thread pushes in an iteration: none, one or two. They differ by orders of
    /// magnitude, so that another order of addition has other bits.
    fn gradients(&self, seed: u64, iteration: u64) -> Vec<f32> {
        let of = u64::from(self.rank) << 40 | u64::from(self.thread) << 32 | iteration;
        let random = mix64(seed ^ mix64(of + 1));
        let value = |n: u64| {
            let random = mix64(random + n);
            ((random % 2_000) as f32 - 1_000.0) * 7.0_f32.powi((random >> 32) as i32 % 9)
        };
        (0..random % 3).map(value).collect()
    }
}

/// Values of the three tables after the iterations before `clock`.
struct Expected {
    sum: f32,
    mean: f32,
}

fn expected(seed: u64, clock: u64) -> Expected {
    let (mut sum, mut mean) = (0.0_f32, 0.0_f32);
    for iteration in 0..clock {
        let mut reduced: Option<f32> = None;
        let mut threads = 0_u16;
        for plan in Plan::all(seed) {
            if !(plan.from..=plan.to).contains(&iteration) {
                continue;
            }
            let gradients = plan.gradients(seed, iteration);
            threads += u16::from(!gradients.is_empty());
            for gradient in gradients {
                reduced = Some(reduced.map_or(gradient, |sum| sum + gradient));
            }
        }
        if let Some(reduced) = reduced {
            sum -= reduced;
            mean -= reduced / f32::from(threads);
        }
    }
    Expected { sum, mean }
}

struct Thread {
    client: Client,
    plan: Plan,
    seed: u64,
    counts: Table<i64>,
    mean: Table<f32>,
    sum: Table<f32>,
}

impl Thread {
    fn new(mut client: Client, plan: Plan, seed: u64) -> Self {
        assert_eq!((client.rank().0, client.thread()), (plan.rank, plan.thread));
        assert_eq!(client.clock(), plan.from);
        Self {
            counts: open(&mut client, "counts"),
            mean: open(&mut client, "mean"),
            sum: open(&mut client, "sum"),
            client,
            plan,
            seed,
        }
    }

    fn push(&mut self, iteration: u64) {
        let client = &mut self.client;
        let key = [u64::from(self.plan.rank * THREADS + self.plan.thread)];
        drop(
            client
                .push_rows(&self.counts, &key, &[1], PushOp::Sum)
                .unwrap(),
        );
        for gradient in self.plan.gradients(self.seed, iteration) {
            let op = PushOp::Gradient;
            drop(client.push_rows(&self.mean, &[7], &[gradient], op).unwrap());
            let values = [gradient; ELEMENTS];
            drop(client.push_range(&self.sum, 0, &values, op).unwrap());
        }
    }

    fn check(&mut self, clock: u64) {
        let options = PullOptions {
            timeout: LONG,
            ..PullOptions::default()
        };
        let due = expected(self.seed, clock);
        let (mut mean, mut sum) = ([0.0], [0.0; ELEMENTS]);
        let client = &mut self.client;
        client
            .pull_rows(&self.mean, &[7], &mut mean, options)
            .unwrap();
        client.pull_range(&self.sum, 0, &mut sum, options).unwrap();
        let what = format!("{:?} at clock {clock}", self.plan);
        assert_eq!(mean[0].to_bits(), due.mean.to_bits(), "mean, {what}");
        let other = sum.iter().find(|v| v.to_bits() != due.sum.to_bits());
        assert_eq!(other, None, "sum, {what}, not {}", due.sum);
    }

    /// One iteration without its tick.
    fn iterate(&mut self, iteration: u64, rig: &Rig, rng: &mut Rng) {
        assert_eq!(self.client.clock(), iteration);
        self.check(iteration);
        rig.world.pause(Duration::from_micros(rng.below(300)));
        self.push(iteration);
    }
}

/// The run of a sibling.
fn follow(mut thread: Thread, rig: &Rig, rng: &mut Rng) {
    for iteration in thread.plan.from..thread.plan.to {
        thread.iterate(iteration, rig, rng);
        thread.client.tick().unwrap();
    }
    thread.iterate(thread.plan.to, rig, rng);
    thread.client.finish().unwrap();
    assert_eq!(thread.client.counters().rejects, 0);
}

/// The run of a first client. It finishes after its sibling.
fn lead(mut first: Thread, sibling: Plan, rig: &Rig, rng: &mut Rng) {
    let has_finished = Arc::new(AtomicBool::new(false));
    for iteration in 0..ITERATIONS {
        if iteration == sibling.from {
            let client = first.client.sibling().unwrap();
            let thread = Thread::new(client, sibling, first.seed);
            let name = format!("sibling {}", sibling.rank);
            let finished = Arc::clone(&has_finished);
            rig.spawn(&name, move |rig, mut rng| {
                follow(thread, rig, &mut rng);
                finished.store(true, Ordering::SeqCst);
            });
        }
        first.iterate(iteration, rig, rng);
        first.client.tick().unwrap();
    }
    first.check(ITERATIONS);
    while !has_finished.load(Ordering::SeqCst) {
        rig.world.pause(Duration::from_micros(100));
    }
    let plans = Plan::all(first.seed);
    let mut counts = [0; (WORKERS * THREADS) as usize];
    let keys: Vec<u64> = (0..counts.len() as u64).collect();
    let client = &mut first.client;
    client
        .pull_rows(&first.counts, &keys, &mut counts, PullOptions::default())
        .unwrap();
    for (plan, count) in plans.iter().zip(counts) {
        let due = (plan.from..=plan.to.min(ITERATIONS - 1)).count() as i64;
        assert_eq!(count, due, "pushes of {plan:?}");
    }
    client.finish().unwrap();
    assert_eq!(client.counters().rejects, 0);
}

fn world(seed: u64) -> Outcome {
    let entries = u64::from(WORKERS * THREADS);
    let counts = TableBuilder::rows::<i64>("counts", entries, 1).partitions(2);
    let mean = TableBuilder::sparse::<f32>("mean", 1).optimizer(SGD);
    let mean = mean.at_clock(Reduce::Mean).partitions(4);
    let sum = TableBuilder::range::<f32>("sum", ELEMENTS as u64, 1).optimizer(SGD);
    let sum = sum.block_bytes(4096).at_clock(Reduce::Sum).partitions(2);
    let shape = Shape {
        servers: 1,
        appliers: 2,
        workers: WORKERS,
        ring_bytes: 32 << 10,
    };
    let tables = [counts.spec(), mean.spec(), sum.spec()];
    let rig = Rig::new(seed, faults(seed), shape, &tables);
    let plans = Plan::all(seed);
    for of_rank in plans.chunks(THREADS as usize) {
        let (plan, sibling) = (of_rank[0], of_rank[1]);
        rig.spawn(&format!("worker {}", plan.rank), move |rig, mut rng| {
            let client = rig.client(plan.rank, 0, SyncMode::Bsp);
            lead(Thread::new(client, plan, seed), sibling, rig, &mut rng);
        });
    }
    rig.world.run()
}

#[test]
fn threads_of_workers_add_in_order() {
    let swept = sweep(here!(), 0..60, world);
    println!("{swept:?}");
}

//! A worker leaves, and a later one takes its rank at a tick that all appliers agree on.
//!
//! Under BSP every worker knows the bits of each read: contributions are added in the order of ranks, and
//! the later worker's begin with the tick that the held clocks gave.

use std::sync::Arc;
use std::time::Duration;

use tidewater::{Client, PullOptions, SyncMode, TableBuilder};
use tidewater_engine::apply::command::Command;
use tidewater_engine::namespace::NamespaceId;
use tidewater_lanes::here;
use tidewater_lanes::sim::{Outcome, Rng, sweep};
use tidewater_protocol::ids::{DomainId, WorkerId};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::table::{Optimizer, PushOp, Reduce};
use tidewater_protocol::wire::control::DomainClock;
use tidewater_runtime::sync::{AtomicU64, Ordering};

use tidewater_testkit::sim::{LONG, Rig, Shape, faults, open};

const ITERATIONS: u64 = 16;
const ELEMENTS: usize = 1536;
/// A step subtracts the sum of the gradients.
const SGD: Optimizer = Optimizer::Sgd { lr: 1.0 };

/// The schedule of rank 0; rank 1 stays.
struct Plan {
    seed: u64,
    leaves: u64,
    /// First tick of the later worker; `u64::MAX` until it is known.
    joins: AtomicU64,
}

impl Plan {
    /// Gradients differ by orders of magnitude, so that another order of addition has other bits.
    fn gradient(&self, rank: u64, iteration: u64) -> f32 {
        let random = mix64(self.seed ^ mix64((rank << 32) | (iteration + 1)));
        ((random % 2_000) as f32 - 1_000.0) * 7.0_f32.powi((random >> 32) as i32 % 9)
    }

    fn expected(&self, clock: u64) -> f32 {
        let joins = self.joins.load(Ordering::SeqCst);
        let mut value = 0.0_f32;
        for iteration in 0..clock {
            let of_one = self.gradient(1, iteration);
            value -= match iteration < self.leaves || iteration >= joins {
                true => self.gradient(0, iteration) + of_one,
                false => of_one,
            };
        }
        value
    }

    fn check(&self, client: &mut Client) {
        let (clock, rank) = (client.clock(), client.rank());
        let options = PullOptions {
            timeout: LONG,
            ..PullOptions::default()
        };
        let (rows, sum) = (open(client, "rows"), open(client, "sum"));
        let (mut row, mut all) = ([0.0_f32], [0.0_f32; ELEMENTS]);
        client.pull_rows(&rows, &[7], &mut row, options).unwrap();
        client.pull_range(&sum, 0, &mut all, options).unwrap();
        let due = self.expected(clock);
        let found = row.iter().chain(&all);
        let other = found.into_iter().find(|v| v.to_bits() != due.to_bits());
        assert_eq!(other, None, "{rank} at clock {clock}, not {due}");
    }

    fn work(&self, client: &mut Client, to: u64, rig: &Rig, rng: &mut Rng) {
        let (rows, sum) = (open(client, "rows"), open(client, "sum"));
        while client.clock() < to {
            self.check(client);
            rig.world.pause(Duration::from_micros(rng.below(300)));
            let gradient = self.gradient(client.rank().0.into(), client.clock());
            let op = PushOp::Gradient;
            drop(client.push_rows(&rows, &[7], &[gradient], op).unwrap());
            let values = [gradient; ELEMENTS];
            drop(client.push_range(&sum, 0, &values, op).unwrap());
            client.tick().unwrap();
        }
        self.check(client);
        client.finish().unwrap();
        assert_eq!(client.counters().rejects, 0);
    }

    /// Does what the coordinator does when a worker joins. Returns the clock of the domain.
    fn admit(&self, rig: &Rig) -> DomainClock {
        let job = NamespaceId::default();
        let (domain, mut clock) = (DomainId(0), 0);
        for seat in rig.seats() {
            let held = seat.ask(|tx| Command::HoldClocks(job, tx));
            clock = held.iter().map(|&(_, at)| at).fold(clock, u64::max);
        }
        self.joins.store(clock, Ordering::SeqCst);
        for seat in rig.seats() {
            let first = [(domain, clock)].into_iter().collect();
            let begins = seat.ask(|tx| Command::Admit(job, Some((WorkerId(0), first)), tx));
            assert!(begins, "rank 0 has left");
        }
        DomainClock { domain, clock }
    }
}

fn world(seed: u64, joined: &Arc<AtomicU64>) -> Outcome {
    let rows = TableBuilder::sparse::<f32>("rows", 1).optimizer(SGD);
    let rows = rows.at_clock(Reduce::Sum).partitions(4);
    let sum = TableBuilder::range::<f32>("sum", ELEMENTS as u64, 1).optimizer(SGD);
    let sum = sum.block_bytes(4096).at_clock(Reduce::Sum).partitions(2);
    let shape = Shape {
        servers: 1 + (seed % 2) as u32,
        appliers: 2,
        workers: 2,
        ring_bytes: 32 << 10,
    };
    let rig = Rig::new(seed, faults(seed), shape, &[rows.spec(), sum.spec()]);
    let plan = Arc::new(Plan {
        seed,
        leaves: mix64(seed) % (ITERATIONS / 2),
        joins: AtomicU64::new(u64::MAX),
    });
    let stays = Arc::clone(&plan);
    rig.spawn("worker 1", move |rig, mut rng| {
        let mut client = rig.client(1, 0, SyncMode::Bsp);
        stays.work(&mut client, ITERATIONS, rig, &mut rng);
    });
    let joined = Arc::clone(joined);
    rig.spawn("worker 0", move |rig, mut rng| {
        let mut client = rig.client(0, 0, SyncMode::Bsp);
        plan.work(&mut client, plan.leaves, rig, &mut rng);
        drop(client);
        rig.world.pause(Duration::from_micros(rng.below(1_000)));
        let first = plan.admit(rig);
        if first.clock < ITERATIONS {
            joined.fetch_add(1, Ordering::SeqCst);
        }
        let mut later = rig.client(0, 1, SyncMode::Bsp);
        later.begin_at(&[first]);
        plan.work(&mut later, ITERATIONS, rig, &mut rng);
    });
    rig.world.run()
}

#[test]
fn later_workers_begin_at_one_tick() {
    let joined = Arc::new(AtomicU64::new(0));
    let swept = sweep(here!(), 0..24, |seed| world(seed, &joined));
    let joined = joined.load(Ordering::SeqCst);
    println!("{swept:?}, {joined} joined while rank 1 trained");
    assert!(joined > 0 || swept.seeds == 1, "no worker joined in time");
}

//! A schedule of faults of the seed: workers die in the middle of an iteration and later ones take their ranks,
//! workers and appliers stop, the network loses, delays and parts. Nothing acknowledged is lost, nothing counts
//! twice, and an iteration counts on all appliers or on none.
//!
//! The simulator has no processes: a server that dies and a coordinator are in `tidewater-bench chaos` only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidewater::{Client, Missing, PullOptions, SyncMode, TableBuilder};
use tidewater_engine::apply::command::Command;
use tidewater_engine::namespace::NamespaceId;
use tidewater_lanes::here;
use tidewater_lanes::sim::{Faults, Outcome, Rng, sweep};
use tidewater_protocol::ids::{DomainId, WorkerId, WorkerThread};
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_protocol::wire::control::DomainClock;
use tidewater_runtime::sync::{AtomicU64, Ordering};

use tidewater_testkit::sim::ledger::{Fate, Ledger};
use tidewater_testkit::sim::{LONG, Rig, Shape, faults, open};

const WORKERS: u32 = 3;
const ITERATIONS: u64 = 14;
/// Rows of each table, over all appliers.
const KEYS: u64 = 12;
/// Deaths of a rank, at most.
const DEATHS: u32 = 2;

/// Faults of a world, at most: a silent break may take seconds of its time.
const FAULTS: u32 = 16;

/// Death of a worker in the iteration of a clock.
#[derive(Clone, Copy)]
struct Death {
    clock: u64,
    way: Way,
}

/// What the worker has done in the iteration.
#[derive(Clone, Copy)]
enum Way {
    /// It has pushed, and has waited for nothing.
    Push,
    /// Its push on arrival is acknowledged.
    Acknowledged,
    /// It has ticked; appliers may lack the tick.
    Tick,
}

/// What the schedule has done, over all seeds.
#[derive(Default)]
struct Seen {
    deaths: AtomicU64,
    stops: AtomicU64,
    partitions: AtomicU64,
    joined: AtomicU64,
}

/// What all workers of a world know.
#[derive(Default)]
struct Books {
    ledger: Ledger,
    /// Sum of the pushes of each iteration, from workers that have ticked.
    ticked: Mutex<BTreeMap<u64, i64>>,
    /// Whether a worker is being replaced: one at a time, as at the coordinator.
    busy: Mutex<bool>,
    done: AtomicU64,
}

impl Books {
    /// Compares the rows of the table of ticks with all iterations before the client's.
    fn check(&self, client: &mut Client) {
        let (clock, rank) = (client.clock(), client.rank());
        let table = open::<i64>(client, "ticked");
        let keys: Vec<u64> = (0..KEYS).collect();
        let mut values = [0; KEYS as usize];
        let options = PullOptions {
            timeout: LONG,
            missing: Missing::Initial,
            ..PullOptions::default()
        };
        client
            .pull_rows(&table, &keys, &mut values, options)
            .unwrap();
        let due: i64 = self
            .ticked
            .lock()
            .unwrap()
            .range(..clock)
            .map(|(_, sum)| sum)
            .sum();
        assert_eq!(values, [due; KEYS as usize], "{rank} at clock {clock}");
    }

    /// Works until the last iteration, or until its death. Then returns what it has counted in an iteration that it
    /// has ticked, and that all appliers may lack.
    fn live(
        &self,
        client: &mut Client,
        rig: &Rig,
        rng: &mut Rng,
        death: Option<Death>,
    ) -> Option<i64> {
        let at_once = open::<i64>(client, "at once");
        let ticked = open::<i64>(client, "ticked");
        let keys: Vec<u64> = (0..KEYS).collect();
        while client.clock() < ITERATIONS {
            self.check(client);
            rig.world.pause(Duration::from_micros(rng.below(200)));
            let amount = 1 + rng.below(9) as i64;
            let death = death.filter(|death| death.clock == client.clock());
            let sum = [amount; KEYS as usize];
            drop(client.push_rows(&ticked, &keys, &sum, PushOp::Sum).unwrap());
            let key = rng.below(KEYS);
            let pushed = client.push_rows(&at_once, &[key], &[amount], PushOp::Sum);
            let fate = match death {
                Some(Death { way: Way::Push, .. }) => Fate::Unknown,
                _ => {
                    client.wait_applied(&pushed.unwrap()).unwrap();
                    Fate::Acknowledged
                }
            };
            self.ledger.enter("at once", &[key], amount, fate);
            match death.map(|death| death.way) {
                None => self.count(client.clock(), amount),
                // Workers may see the tick before the death is known.
                Some(Way::Tick) => {
                    self.count(client.clock(), amount);
                    client.tick().unwrap();
                    return Some(amount);
                }
                Some(_) => return Some(0),
            }
            client.tick().unwrap();
        }
        self.check(client);
        client.finish().unwrap();
        None
    }

    fn count(&self, clock: u64, amount: i64) {
        *self.ticked.lock().unwrap().entry(clock).or_default() += amount;
    }

    /// Does what coordinator and servers do when a worker is lost in iteration `clock`, with `amount` counted
    /// for it, and when another takes its rank.
    fn replace(&self, rig: &Rig, rank: u32, (clock, amount): (u64, i64)) -> DomainClock {
        while std::mem::replace(&mut *self.busy.lock().unwrap(), true) {
            rig.world.pause(Duration::from_micros(100));
        }
        let (job, worker, domain) = (NamespaceId::default(), WorkerId(rank), DomainId(0));
        let mut furthest = 0;
        for seat in rig.seats() {
            let clocks = seat.with(move |engine| engine.clocks_of(job, worker));
            furthest = clocks.iter().map(|at| at.2).fold(furthest, u64::max);
        }
        // None has consumed the tick: all drop the iteration. One has: all complete it.
        if furthest <= clock {
            self.count(clock, -amount);
        } else {
            let thread = WorkerThread {
                rank: worker,
                thread: 0,
            };
            for seat in rig.seats() {
                seat.with(move |engine| engine.complete_tick(job, thread, domain, furthest));
            }
        }
        for seat in rig.seats() {
            seat.ask(|tx| Command::RemoveWorker(job, worker, tx));
        }
        let mut clock = 0;
        for seat in rig.seats() {
            let held = seat.ask(|tx| Command::HoldClocks(job, tx));
            clock = held.iter().map(|&(_, at)| at).fold(clock, u64::max);
        }
        for seat in rig.seats() {
            let first = [(domain, clock)].into_iter().collect();
            let begins = seat.ask(|tx| Command::Admit(job, Some((worker, first)), tx));
            assert!(begins, "rank {rank} has left");
        }
        *self.busy.lock().unwrap() = false;
        DomainClock { domain, clock }
    }
}

/// A rank: a worker, and after its death another one.
fn work(books: &Books, rig: &Rig, rng: &mut Rng, rank: u32, seen: &Seen) {
    let mut client = rig.client(rank, 0, SyncMode::Bsp);
    for life in 0.. {
        // The last rank stays, so that the clocks go on.
        let may_die = rank + 1 < WORKERS && life < DEATHS;
        let death = (may_die && rng.below(3) > 0).then(|| Death {
            clock: rng.below(ITERATIONS),
            way: [Way::Push, Way::Acknowledged, Way::Tick][rng.below(3) as usize],
        });
        let Some(amount) = books.live(&mut client, rig, rng, death) else {
            break;
        };
        let clock = death.map_or(0, |death| death.clock);
        drop(client);
        seen.deaths.fetch_add(1, Ordering::Relaxed);
        rig.world.pause(Duration::from_micros(rng.below(2_000)));
        let first = books.replace(rig, rank, (clock, amount));
        if first.clock < ITERATIONS {
            seen.joined.fetch_add(1, Ordering::Relaxed);
        }
        client = rig.client(rank, life + 1, SyncMode::Bsp);
        client.begin_at(&[first]);
    }
    books.done.fetch_add(1, Ordering::Relaxed);
}

/// Inflicts faults while workers work.
fn disturb(books: &Books, rig: &Rig, rng: &mut Rng, usual: Faults, seen: &Seen) {
    for _ in 0..FAULTS {
        if books.done.load(Ordering::Relaxed) == u64::from(WORKERS) {
            break;
        }
        rig.world
            .pause(Duration::from_micros(500 + rng.below(4_000)));
        let time = Duration::from_micros(200 + rng.below(20_000));
        match rng.below(3) {
            0 => {
                let at = rng.below(rig.seats().count() as u64) as usize;
                let world = rig.world.clone();
                let seat = rig.seats().nth(at).unwrap();
                seat.with(move |_| world.pause(time));
                seen.stops.fetch_add(1, Ordering::Relaxed);
            }
            1 => {
                // Every other call breaks its lane, and most breaks are silent.
                rig.world.set_faults(Faults {
                    disconnect_per_op: 0.5,
                    silent: 0.8,
                    ..usual
                });
                rig.world.pause(time);
                seen.partitions.fetch_add(1, Ordering::Relaxed);
            }
            _ => {
                rig.world.set_faults(Faults {
                    delay_max_us: 3_000,
                    disconnect_per_op: 0.02,
                    ..usual
                });
                rig.world.pause(time);
            }
        }
        rig.world.set_faults(usual);
    }
}

fn audit(books: &Books, rig: &Rig) {
    while books.done.load(Ordering::Relaxed) < WORKERS.into() {
        rig.world.pause(Duration::from_millis(1));
    }
    // The frames of dead workers arrive, or are lost, in this time.
    rig.world.pause(Duration::from_secs(60));
    let mut client = rig.client(0, 50, SyncMode::Asp);
    let table = open::<i64>(&mut client, "at once");
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut values = [0; KEYS as usize];
    let options = PullOptions {
        timeout: LONG,
        missing: Missing::Initial,
        ..PullOptions::default()
    };
    client
        .pull_rows(&table, &keys, &mut values, options)
        .unwrap();
    for (key, value) in keys.iter().zip(values) {
        books.ledger.check("at once", *key, value);
    }
}

fn world(seed: u64, seen: &Arc<Seen>) -> Outcome {
    let at_once = TableBuilder::sparse::<i64>("at once", 1).partitions(4);
    let ticked = TableBuilder::sparse::<i64>("ticked", 1).partitions(4);
    let ticked = ticked.at_clock(Reduce::Sum);
    let shape = Shape {
        servers: 1 + (seed % 2) as u32,
        appliers: 2,
        workers: WORKERS,
        ring_bytes: 16 << 10,
    };
    let usual = faults(seed);
    let rig = Rig::new(seed, usual, shape, &[at_once.spec(), ticked.spec()]);
    let books = Arc::new(Books::default());
    for rank in 0..WORKERS {
        let (books, seen) = (Arc::clone(&books), Arc::clone(seen));
        rig.spawn(&format!("worker {rank}"), move |rig, mut rng| {
            work(&books, rig, &mut rng, rank, &seen);
        });
    }
    let (of_faults, seen) = (Arc::clone(&books), Arc::clone(seen));
    rig.spawn("faults", move |rig, mut rng| {
        disturb(&of_faults, rig, &mut rng, usual, &seen);
    });
    rig.spawn("auditor", move |rig, _| audit(&books, rig));
    rig.world.run()
}

/// 20 seeds, 1,000 with `--full`.
#[test]
fn schedules_of_faults_lose_and_double_nothing() {
    let seen = Arc::new(Seen::default());
    let seeds = match std::env::var_os("TIDEWATER_TEST_FULL") {
        Some(_) => 1_000,
        None => 20,
    };
    let swept = sweep(here!(), 0..seeds, |seed| world(seed, &seen));
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let counts = [&seen.deaths, &seen.joined, &seen.stops, &seen.partitions].map(count);
    let [deaths, joined, stops, partitions] = counts;
    println!(
        "{swept:?}; {deaths} deaths, {joined} joined meanwhile, {stops} stops, {partitions} partitions"
    );
    if swept.seeds >= 20 {
        assert!(counts.iter().all(|&n| n > 0));
    }
}

//! A ledger of deletions and creations under readers: no deleted row is returned, no new one is lost.
//!
//! Each key has one owner, which pushes to it and deletes it. A push of life `l` of key `k` adds
//! `(k, 1, l)`, so a row of `n` pushes is `(n k, n, n l)`: rows of two lives differ. The ledger holds the
//! states of each key in the order of its owner's calls. A reader accepts only a state from the newest
//! acknowledged one, as the pull begins, to the last one, as it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use tidewater::{
    Client, Missing, PullMode, PullOptions, ScanCursor, SyncMode, Table, TableBuilder, Ticket,
};
use tidewater_lanes::here;
use tidewater_lanes::sim::{Outcome, Rng, sweep};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::placement::partition_of_key;
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_runtime::sync::{AtomicU64, Ordering};

use crate::slots::churn;
use tidewater_testkit::sim::{LONG, Rig, Shape, faults, open};

const KEYS: u64 = 12;
const WORKERS: u32 = 3;
const ROUNDS: u64 = 60;
/// Columns: `n k`, `n`, `n l`, and enough to exceed a line.
const DIM: usize = 10;

fn key(n: u64) -> u64 {
    5_000 + n * 77
}

fn row_of(key: u64, times: i64, life: i64) -> [i64; DIM] {
    let mut row = [times * life; DIM];
    (row[0], row[1]) = (key as i64 * times, times);
    row
}

/// The states of a key: number of pushes, and life. The first one is without a row.
struct History {
    states: Vec<(i64, i64)>,
    /// Index of the newest state that is acknowledged.
    acknowledged: usize,
}

type Ledger = Arc<Mutex<BTreeMap<u64, History>>>;

#[derive(Default)]
struct Seen {
    deletions: AtomicU64,
    stale_hints: AtomicU64,
    recoveries: AtomicU64,
    /// Rows that were returned after their key was deleted and pushed to again.
    later_lives: AtomicU64,
}

struct Worker {
    client: Client,
    table: Table<i64>,
    open: Vec<(Ticket, Vec<(u64, usize)>)>,
    own: Vec<u64>,
}

impl Worker {
    /// Pushes to some own keys, or deletes them.
    fn change(&mut self, rng: &mut Rng, ledger: &Ledger, seen: &Seen) {
        let first = rng.below(self.own.len() as u64) as usize;
        let some = &self.own[first..(first + 1 + rng.below(2) as usize).min(self.own.len())];
        let deletes = rng.below(3) == 0;
        let (mut values, mut noted) = (Vec::new(), Vec::new());
        for &key in some {
            let mut ledger = ledger.lock().unwrap();
            let history = ledger.get_mut(&key).unwrap();
            let (times, life) = *history.states.last().unwrap();
            values.extend(row_of(key, 1, life));
            let next = if deletes {
                (0, life + 1)
            } else {
                (times + 1, life)
            };
            history.states.push(next);
            noted.push((key, history.states.len() - 1));
        }
        let sent = match deletes {
            true => self.client.delete_keys(&self.table, some),
            false => self
                .client
                .push_rows(&self.table, some, &values, PushOp::Sum),
        };
        seen.deletions.fetch_add(deletes.into(), Ordering::Relaxed);
        self.open.push((sent.unwrap(), noted));
    }

    fn settle(&mut self, ledger: &Ledger) {
        for (ticket, noted) in std::mem::take(&mut self.open) {
            self.client.wait_applied(&ticket).unwrap();
            let mut ledger = ledger.lock().unwrap();
            for (key, state) in noted {
                let history = ledger.get_mut(&key).unwrap();
                history.acknowledged = history.acknowledged.max(state);
            }
        }
    }

    /// Pulls a few rows of any owner.
    fn pull(&mut self, rng: &mut Rng, ledger: &Ledger, seen: &Seen) {
        let first = rng.below(KEYS);
        let keys: Vec<u64> = (0..1 + rng.below(4))
            .map(|n| key((first + n) % KEYS))
            .collect();
        let begin: Vec<usize> = keys
            .iter()
            .map(|key| ledger.lock().unwrap()[key].acknowledged)
            .collect();
        let options = PullOptions {
            mode: [PullMode::Consistent, PullMode::Gather][usize::from(rng.below(4) == 0)],
            missing: [Missing::Initial, Missing::Create][usize::from(rng.below(4) == 0)],
            timeout: LONG,
        };
        let mut out = vec![0; keys.len() * DIM];
        let pulled = self.client.pull_rows(&self.table, &keys, &mut out, options);
        pulled.unwrap();
        let ledger = ledger.lock().unwrap();
        for ((key, row), begin) in keys.iter().zip(out.chunks_exact(DIM)).zip(begin) {
            let possible = &ledger[key].states[begin..];
            let is_it = |&&(times, life): &&(i64, i64)| row == row_of(*key, times, life);
            let found = possible.iter().find(is_it);
            let (times, life) = found.unwrap_or_else(|| {
                panic!("row {key} is {row:?}, which is none of the states {possible:?}")
            });
            let is_later = *times > 0 && *life > 1;
            seen.later_lives
                .fetch_add(is_later.into(), Ordering::Relaxed);
        }
    }

    /// Own keys with pushes are stored. Nothing of a key without one is checked: readers may create it.
    fn check_stored(&mut self, ledger: &Ledger) {
        self.settle(ledger);
        let stored = self.client.exists(&self.table, &self.own).unwrap();
        let ledger = ledger.lock().unwrap();
        for (key, stored) in self.own.iter().zip(stored) {
            let (times, _) = *ledger[key].states.last().unwrap();
            assert!(stored || times == 0, "row {key} of {times} pushes is lost");
        }
    }
}

fn work(rig: &Rig, rank: u32, mut rng: Rng, ledger: &Ledger, seen: &Seen) {
    let mut client = rig.client(rank, 0, SyncMode::Asp);
    let table = open(&mut client, "t");
    let own = (0..KEYS).filter(|n| n % u64::from(WORKERS) == u64::from(rank));
    let mut worker = Worker {
        client,
        table,
        open: Vec::new(),
        own: own.map(key).collect(),
    };
    for _ in 0..ROUNDS {
        match rng.below(8) {
            0..3 => worker.change(&mut rng, ledger, seen),
            3 => worker.settle(ledger),
            4 => worker.check_stored(ledger),
            _ => worker.pull(&mut rng, ledger, seen),
        }
    }
    worker.check_stored(ledger);
    let c = worker.client.counters();
    seen.stale_hints.fetch_add(c.stale_hints, Ordering::Relaxed);
    seen.recoveries.fetch_add(c.recoveries, Ordering::Relaxed);
    worker.client.barrier("done", LONG).unwrap();
    // All changes are acknowledged.
    worker.pull(&mut rng, ledger, seen);
    let (mut listed, mut cursor) = (BTreeSet::new(), ScanCursor::default());
    let (mut keys, mut rows) = ([0; 5], [0; 5 * DIM]);
    loop {
        let (client, table) = (&mut worker.client, &worker.table);
        let n = client.scan_rows(table, &mut cursor, &mut keys, &mut rows);
        let n = n.unwrap();
        if n == 0 {
            break;
        }
        let ledger = ledger.lock().unwrap();
        for (key, row) in keys[..n].iter().zip(rows.chunks_exact(DIM)) {
            let (times, life) = *ledger[key].states.last().unwrap();
            assert_eq!(row, row_of(*key, times, life), "row {key} of a scan");
            assert!(listed.insert(*key), "key {key} comes twice");
        }
    }
    for (key, history) in &*ledger.lock().unwrap() {
        let (times, _) = *history.states.last().unwrap();
        assert!(
            times == 0 || listed.contains(key),
            "key {key} is not listed"
        );
    }
}

fn world(seed: u64, seen: &Arc<Seen>) -> Outcome {
    let table = TableBuilder::sparse::<i64>("t", DIM as u32).partitions(2);
    let shape = Shape {
        servers: 1,
        appliers: 2,
        workers: WORKERS,
        ring_bytes: 16 << 10,
    };
    let rig = Rig::prepared(seed, faults(seed), shape, &[table.spec()], &churn);
    let history = || History {
        states: vec![(0, 1)],
        acknowledged: 0,
    };
    let ledger: BTreeMap<_, _> = (0..KEYS).map(|n| (key(n), history())).collect();
    let ledger = Arc::new(Mutex::new(ledger));
    for rank in 0..WORKERS {
        let (ledger, seen) = (Arc::clone(&ledger), Arc::clone(seen));
        rig.spawn(&format!("worker {rank}"), move |rig, rng| {
            work(rig, rank, rng, &ledger, &seen);
        });
    }
    rig.world.run()
}

#[test]
fn no_deleted_row_is_returned_and_no_new_one_lost() {
    let seen = Arc::new(Seen::default());
    let swept = sweep(here!(), 0..60, |seed| world(seed, &seen));
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let met = [
        &seen.deletions,
        &seen.stale_hints,
        &seen.recoveries,
        &seen.later_lives,
    ]
    .map(count);
    println!("{swept:?}; deletions, stale locations, recoveries, rows of later lives: {met:?}");
    if swept.seeds >= 60 {
        assert!(met.iter().all(|&n| n > swept.seeds / 4), "{met:?}");
    }
}

/// Iterations of a run with ticks.
const ITERATIONS: u64 = 12;
const PARTITIONS: u32 = 3;
/// Ticks without a push after which a row expires.
const AFTER: u64 = 2;

/// What a worker does with a key in an iteration: pushes to it, deletes it, pushes to it, each or not.
fn plan(iteration: u64, rank: u32, key: u64) -> [bool; 3] {
    match mix64(mix64(iteration << 32 | u64::from(rank)) ^ key) % 16 {
        0..2 => [true, false, false],
        2 => [false, true, false],
        3 => [true, true, false],
        4 => [false, true, true],
        5 => [true, true, true],
        _ => [false; 3],
    }
}

/// A row at some tick: number of pushes, sum of their iterations, ticks completed at the last one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Ticked {
    times: i64,
    sum: i64,
    last: u64,
}

/// The rows after each tick: pushes and deletions in the order of ranks, then expiry.
fn rows_of_ticks() -> Vec<BTreeMap<u64, Ticked>> {
    let mut rows = BTreeMap::<u64, Ticked>::new();
    let mut all = vec![rows.clone()];
    for iteration in 0..ITERATIONS {
        let (ticks, weight) = (iteration + 1, iteration as i64 + 1);
        for rank in 0..WORKERS {
            for key in (0..KEYS).map(key) {
                let [before, delete, after] = plan(iteration, rank, key);
                if delete {
                    rows.remove(&key);
                }
                if before && !delete || after {
                    let row = rows.entry(key).or_default();
                    (row.times, row.sum, row.last) = (row.times + 1, row.sum + weight, ticks);
                }
            }
        }
        let swept = iteration % u64::from(PARTITIONS);
        rows.retain(|&key, row| {
            u64::from(partition_of_key(key, PARTITIONS).0) != swept || ticks - row.last < AFTER
        });
        all.push(rows.clone());
    }
    all
}

/// In its iteration `c` each worker reads the rows of `c` ticks exactly, while others are ahead or late.
fn tick(rig: &Rig, rank: u32, mut rng: Rng, ledger: &[BTreeMap<u64, Ticked>]) {
    let mut client = rig.client(rank, 0, SyncMode::Bsp);
    let table = open::<i64>(&mut client, "t");
    let keys: Vec<u64> = (0..KEYS).map(key).collect();
    for (iteration, rows) in (0..).zip(ledger) {
        for phase in 0..3 {
            let options = PullOptions {
                mode: [PullMode::Consistent, PullMode::Gather, PullMode::Hogwild]
                    [rng.below(3) as usize],
                missing: [Missing::Initial, Missing::Create][usize::from(rng.below(6) == 0)],
                timeout: LONG,
            };
            let mut out = vec![-1; keys.len() * DIM];
            client.pull_rows(&table, &keys, &mut out, options).unwrap();
            for (key, row) in keys.iter().zip(out.chunks_exact(DIM)) {
                let Ticked { times, sum, .. } = rows.get(key).copied().unwrap_or_default();
                let mut want = [sum; DIM];
                (want[0], want[1]) = (*key as i64 * times, times);
                assert_eq!(row, want, "key {key} after {iteration} ticks");
            }
            if iteration == ITERATIONS {
                return;
            }
            let is_due = |key: &&u64| plan(iteration, rank, **key)[phase];
            let due: Vec<u64> = keys.iter().filter(is_due).copied().collect();
            if phase == 1 {
                drop(client.delete_keys(&table, &due).unwrap());
            } else {
                let weight = iteration as i64 + 1;
                let values: Vec<i64> = due.iter().flat_map(|&k| row_of(k, 1, weight)).collect();
                drop(
                    client
                        .push_rows(&table, &due, &values, PushOp::Sum)
                        .unwrap(),
                );
            }
        }
        let stored = client.exists(&table, &keys).unwrap();
        for (key, stored) in keys.iter().zip(stored) {
            assert!(stored || !rows.contains_key(key), "row {key} is lost");
        }
        client.tick().unwrap();
    }
}

/// Deletions, expiry and new rows at ticks, under breaks: at each tick the rows of the ledger.
#[test]
fn ticks_delete_expire_and_create_as_the_ledger_says() {
    let ledger = Arc::new(rows_of_ticks());
    let gone = |two: &[BTreeMap<u64, Ticked>]| {
        two[0]
            .keys()
            .filter(|key| !two[1].contains_key(key))
            .count()
    };
    let gone: usize = ledger.windows(2).map(gone).sum();
    assert!(gone > 10, "{gone} rows are deleted or expire");
    let swept = sweep(here!(), 0..30, |seed| {
        let table = TableBuilder::sparse::<i64>("t", DIM as u32)
            .partitions(PARTITIONS)
            .expire_after(AFTER as u32)
            .at_clock(Reduce::Sum);
        let shape = Shape {
            servers: 1 + (seed % 2) as u32,
            appliers: 2,
            workers: WORKERS,
            ring_bytes: 16 << 10,
        };
        let rig = Rig::prepared(seed, faults(seed), shape, &[table.spec()], &churn);
        for rank in 0..WORKERS {
            let ledger = Arc::clone(&ledger);
            rig.spawn(&format!("worker {rank}"), move |rig, rng| {
                tick(rig, rank, rng, &ledger);
            });
        }
        rig.world.run()
    });
    println!("{swept:?}; {gone} rows deleted or expired");
}

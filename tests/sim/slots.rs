//! Reused slots: of rows that were removed while readers hold cached locations and pushes carry them,
//! and of replies to abandoned requests.
//!
//! Row `k` is pushed to with `(k, 1)` only, so it always holds `(n k, n)`. A row, push or reply that
//! belongs to another key violates that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidewater::{Client, ClientError, Missing, PullMode, PullOptions, SyncMode, Table};
use tidewater::{TableBuilder, Ticket};
use tidewater_engine::apply::engine::Engine;
use tidewater_engine::namespace::FrameSender;
use tidewater_lanes::here;
use tidewater_lanes::sim::{Outcome, Rng, sweep};
use tidewater_protocol::ids::{TableId, WorkerId};
use tidewater_protocol::layout::frame::{FrameFlags, FrameHeader, FrameKind, PARTITION_ANY};
use tidewater_protocol::table::PushOp;
use tidewater_runtime::sync::{AtomicU64, Ordering};

use tidewater_testkit::sim::{LONG, Rig, Shape, faults, open};

const TABLE: TableId = TableId(1);
const KEYS: u64 = 12;
const WORKERS: u32 = 3;
const ROUNDS: u64 = 80;
/// Rows removed before the start, so that slots leave their quarantine at once.
const REMOVED_FIRST: u64 = 400;
/// Rows removed in quick succession.
const REMOVALS: u64 = 150;
/// Columns: `n k`, `n`, and enough to exceed a line.
const DIM: usize = 10;

fn key(n: u64) -> u64 {
    1_000 + n * 77
}

fn row_of(key: u64, times: i64) -> [i64; DIM] {
    let mut row = [times; DIM];
    row[0] = key as i64 * times;
    row
}

#[derive(Default)]
struct Seen {
    stale_hints: AtomicU64,
    abandoned: AtomicU64,
    removals: AtomicU64,
    recoveries: AtomicU64,
}

/// Pushes by key: acknowledged, and found in removed rows.
#[derive(Default)]
struct Books {
    acknowledged: BTreeMap<u64, i64>,
    removed: BTreeMap<u64, i64>,
}

type Shared = Arc<Mutex<Books>>;

/// Creates rows and removes them: their slots are free and past their quarantine.
pub(crate) fn churn(engine: &mut Engine) {
    for key in 1 << 40..(1 << 40) + REMOVED_FIRST {
        let header = FrameHeader {
            kind: FrameKind::Resolve,
            flags: FrameFlags {
                create: true,
                ..FrameFlags::default()
            },
            seq: 1,
            session: 1,
            payload_len: 8,
            count: 1,
            table: TABLE.0,
            partition: PARTITION_ANY,
            clock: 0,
            user_tag: 0,
            checksum: 0,
        };
        // Only the keys that this applier owns.
        let _ = engine.frame(
            FrameSender::first(WorkerId(0)),
            &header,
            &u64::to_le_bytes(key),
        );
    }
    for key in 1 << 40..(1 << 40) + REMOVED_FIRST {
        engine.remove_row(TABLE, key).unwrap();
    }
}

fn times(key: u64, row: &[i64]) -> i64 {
    assert_eq!(
        row,
        row_of(key, row[1]),
        "row {key} holds another row's values"
    );
    row[1]
}

/// Removes a row on its applier, between two frames; returns the count of its pushes.
fn remove(rig: &Rig, key: u64) -> Option<i64> {
    rig.seat_of(TABLE, key).with(move |engine| {
        let mut bytes = [0; DIM * 8];
        let table = engine.table(TABLE).unwrap();
        let place = table.place(key)?;
        table.rows().unwrap().read(place, &mut bytes).unwrap();
        let row: Vec<i64> = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|b| i64::from_le_bytes(*b))
            .collect();
        assert!(engine.remove_row(TABLE, key).unwrap());
        Some(times(key, &row))
    })
}

struct Worker {
    client: Client,
    table: Table<i64>,
    open: Vec<(Vec<u64>, Ticket)>,
}

impl Worker {
    fn push(&mut self, rng: &mut Rng) {
        let first = rng.below(KEYS);
        let keys: Vec<u64> = (0..1 + rng.below(3))
            .map(|n| key((first + n) % KEYS))
            .collect();
        let values: Vec<i64> = keys.iter().flat_map(|&k| row_of(k, 1)).collect();
        let sent = self
            .client
            .push_rows(&self.table, &keys, &values, PushOp::Sum);
        self.open.push((keys, sent.unwrap()));
    }

    fn settle(&mut self, books: &Shared) {
        for (keys, ticket) in std::mem::take(&mut self.open) {
            self.client.wait_applied(&ticket).unwrap();
            let mut books = books.lock().unwrap();
            for key in keys {
                *books.acknowledged.entry(key).or_default() += 1;
            }
        }
    }

    /// Pulls a few rows; some pulls time out before the answer can arrive.
    fn pull(&mut self, rng: &mut Rng, seen: &Seen) {
        let first = rng.below(KEYS);
        let keys: Vec<u64> = (0..1 + rng.below(4))
            .map(|n| key((first + n) % KEYS))
            .collect();
        let mode = [PullMode::Consistent, PullMode::Gather][rng.below(2) as usize];
        let missing = [Missing::Create, Missing::Initial][rng.below(2) as usize];
        let hurry = rng.below(3) == 0;
        let timeout = if hurry {
            Duration::from_micros(5 + rng.below(400))
        } else {
            LONG
        };
        let options = PullOptions {
            mode,
            missing,
            timeout,
        };
        let mut out = vec![0; keys.len() * DIM];
        match self.client.pull_rows(&self.table, &keys, &mut out, options) {
            Ok(_) => {
                for (key, row) in keys.iter().zip(out.chunks_exact(DIM)) {
                    times(*key, row);
                }
            }
            Err(ClientError::Deadline { .. }) if hurry => {
                seen.abandoned.fetch_add(1, Ordering::Relaxed);
            }
            Err(e) => panic!("a pull in no hurry: {e}"),
        }
    }
}

fn work(rig: &Rig, rank: u32, mut rng: Rng, books: &Shared, seen: &Seen) {
    let mut client = rig.client(rank, 0, SyncMode::Asp);
    let table = open(&mut client, "t");
    let mut worker = Worker {
        client,
        table,
        open: Vec::new(),
    };
    for _ in 0..ROUNDS {
        match rng.below(5) {
            0 | 1 => worker.push(&mut rng),
            2 => worker.settle(books),
            _ => worker.pull(&mut rng, seen),
        }
    }
    worker.settle(books);
    let c = worker.client.counters();
    seen.stale_hints.fetch_add(c.stale_hints, Ordering::Relaxed);
    seen.recoveries.fetch_add(c.recoveries, Ordering::Relaxed);
}

/// Removes rows until the workers are done, then removes the remaining rows and compares.
fn janitor(rig: &Rig, mut rng: Rng, books: &Shared, done: &AtomicU64, seen: &Seen) {
    let mut taken = 0;
    while done.load(Ordering::Relaxed) < u64::from(WORKERS) {
        // Workers that wait for a silent failure take seconds.
        let longest = if taken < REMOVALS { 300 } else { 100_000 };
        take_out(rig, key(rng.below(KEYS)), books, seen);
        taken += 1;
        rig.world.pause(Duration::from_micros(rng.below(longest)));
    }
    for n in 0..KEYS {
        take_out(rig, key(n), books, seen);
    }
    let books = books.lock().unwrap();
    for n in 0..KEYS {
        let of = |side: &BTreeMap<u64, i64>| side.get(&key(n)).copied().unwrap_or_default();
        assert_eq!(
            of(&books.removed),
            of(&books.acknowledged),
            "pushes to key {}: found, acknowledged",
            key(n)
        );
    }
}

fn take_out(rig: &Rig, key: u64, books: &Shared, seen: &Seen) {
    if let Some(times) = remove(rig, key) {
        seen.removals.fetch_add(1, Ordering::Relaxed);
        *books.lock().unwrap().removed.entry(key).or_default() += times;
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
    let books = Shared::default();
    let done = Arc::new(AtomicU64::new(0));
    for rank in 0..WORKERS {
        let (books, done, seen) = (Arc::clone(&books), Arc::clone(&done), Arc::clone(seen));
        rig.spawn(&format!("worker {rank}"), move |rig, rng| {
            work(rig, rank, rng, &books, &seen);
            done.fetch_add(1, Ordering::Relaxed);
        });
    }
    let seen = Arc::clone(seen);
    rig.spawn("janitor", move |rig, rng| {
        janitor(rig, rng, &books, &done, &seen)
    });
    rig.world.run()
}

#[test]
fn a_slot_used_again_never_passes_for_what_it_held() {
    let seen = Arc::new(Seen::default());
    let swept = sweep(here!(), 0..200, |seed| world(seed, &seen));
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    println!(
        "{swept:?}; {} rows removed, {} stale hints, {} pulls abandoned, {} recoveries",
        count(&seen.removals),
        count(&seen.stale_hints),
        count(&seen.abandoned),
        count(&seen.recoveries)
    );
    if swept.seeds >= 100 {
        let met = [
            &seen.removals,
            &seen.stale_hints,
            &seen.abandoned,
            &seen.recoveries,
        ];
        assert!(met.iter().all(|n| count(n) > swept.seeds / 4));
    }
}

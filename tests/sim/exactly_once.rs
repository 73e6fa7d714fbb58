//! Exactly once: in the end every row holds the sum of the acknowledged pushes.

use std::sync::Arc;
use std::time::Duration;

use tidewater::{Client, ClientError, Missing, PullMode, PullOptions, SyncMode, Table};
use tidewater::{TableBuilder, Ticket};
use tidewater_lanes::here;
use tidewater_lanes::sim::{Outcome, Rng, sweep};
use tidewater_protocol::table::PushOp;
use tidewater_runtime::sync::{AtomicU64, Ordering};

use tidewater_testkit::sim::ledger::{Fate, Ledger};
use tidewater_testkit::sim::raw::RawPusher;
use tidewater_testkit::sim::{LONG, Rig, Shape, faults, open};

const WORKERS: u32 = 3;
const PUSHES: u64 = 100;
/// Rows that all workers push to.
const KEYS: u64 = 10;
/// Elements of a row: longer than a line, so that rows and frames are torn.
const DIM: usize = 11;
/// Elements of the dense table, over two partitions of blocks of 4 KiB.
const ELEMENTS: u64 = 3 * 1024;
/// Rank of the worker with a second session of handwritten frames.
const RAW_RANK: u32 = 0;

#[derive(Default)]
struct Seen {
    refused: AtomicU64,
    unknown: AtomicU64,
    waits: AtomicU64,
    recoveries: AtomicU64,
    /// Statuses that came before the reject records that they count.
    late: AtomicU64,
}

/// A worker's open tables, and its pushes without a wait so far.
struct Worker {
    client: Client,
    sparse: Table<f64>,
    rows: Table<i64>,
    blocks: Table<f32>,
    open: Vec<Push>,
}

struct Push {
    table: &'static str,
    rows: Vec<u64>,
    amount: i64,
    poisoned: bool,
    ticket: Ticket,
}

impl Worker {
    fn new(rig: &Rig, rank: u32, life: u32) -> Self {
        let mut client = rig.client(rank, life, SyncMode::Asp);
        Self {
            sparse: open(&mut client, "sparse"),
            rows: open(&mut client, "rows"),
            blocks: open(&mut client, "blocks"),
            client,
            open: Vec::new(),
        }
    }

    fn push(&mut self, rig: &Rig, rng: &mut Rng) {
        let amount = 1 + rng.below(9) as i64;
        let poisoned = rng.below(5) == 0;
        let first = rng.below(KEYS);
        let mut rows: Vec<u64> = (0..1 + rng.below(4)).map(|n| (first + n) % KEYS).collect();
        let client = &mut self.client;
        // Every so often pushes wait for others: 1 is none.
        client.batch_pushes(1 + rng.below(6) as u32);
        let (table, ticket) = match rng.below(4) {
            0 | 1 => {
                if poisoned {
                    // One frame: the rows before the bad one are good.
                    let home = rig.owner(self.sparse.id(), first);
                    rows.extend((0..KEYS).filter(|k| !rows.contains(k)).collect::<Vec<_>>());
                    rows.retain(|&k| rig.owner(self.sparse.id(), k) == home);
                }
                let mut values = vec![amount as f64; rows.len() * DIM];
                if poisoned {
                    *values.last_mut().unwrap() = f64::NAN;
                }
                let sent = client.push_rows(&self.sparse, &rows, &values, PushOp::Sum);
                ("sparse", sent)
            }
            2 => {
                let values = vec![amount; rows.len() * 2];
                let sent = client.push_rows(&self.rows, &rows, &values, PushOp::Sum);
                ("rows", sent)
            }
            _ => {
                // Over the partitions' border too, except for a push that must be refused as a whole.
                let border = if poisoned { 1024 } else { ELEMENTS };
                let first = rng.below(border - 8);
                rows = (first..first + 1 + rng.below(8)).collect();
                let mut values = vec![amount as f32; rows.len()];
                if poisoned {
                    *values.last_mut().unwrap() = f32::INFINITY;
                }
                let sent = client.push_range(&self.blocks, first, &values, PushOp::Sum);
                ("blocks", sent)
            }
        };
        self.open.push(Push {
            table,
            rows,
            amount,
            poisoned: poisoned && table != "rows",
            ticket: ticket.unwrap(),
        });
    }

    fn take(&mut self, rng: &mut Rng) -> Push {
        let n = rng.below(self.open.len() as u64) as usize;
        self.open.swap_remove(n)
    }

    /// Waits for a random push, and records its fate in the ledger.
    fn settle(&mut self, rng: &mut Rng, ledger: &Ledger, seen: &Seen) {
        if self.open.is_empty() {
            return;
        }
        let mut push = self.take(rng);
        if rng.below(3) == 0 && !push.poisoned {
            // One wait for two pushes must not include the pushes between them.
            if let Some(n) = self.open.iter().position(|p| !p.poisoned) {
                let other = self.open.swap_remove(n);
                push.ticket.merge(&other.ticket);
                ledger.enter(other.table, &other.rows, other.amount, Fate::Acknowledged);
            }
        }
        let fate = match self.client.wait_applied(&push.ticket) {
            Ok(()) => Fate::Acknowledged,
            Err(ClientError::Rejected { .. }) => {
                seen.refused.fetch_add(1, Ordering::Relaxed);
                Fate::Refused
            }
            Err(e) => panic!("{} {:?}: {e}", push.table, push.rows),
        };
        assert_eq!(
            fate == Fate::Refused,
            push.poisoned,
            "a refusal fails its own ticket: {} rows {:?}",
            push.table,
            push.rows
        );
        ledger.enter(push.table, &push.rows, push.amount, fate);
    }

    /// Drops the client without a wait: the fate of the open pushes stays unknown.
    fn vanish(self, ledger: &Ledger, seen: &Seen) {
        for push in self.open.iter().filter(|p| !p.poisoned) {
            seen.unknown.fetch_add(1, Ordering::Relaxed);
            ledger.enter(push.table, &push.rows, push.amount, Fate::Unknown);
        }
    }
}

fn work(rig: &Rig, rank: u32, rng: &mut Rng, ledger: &Ledger, seen: &Seen) {
    let mut worker = Worker::new(rig, rank, 0);
    // Some workers keep a few pushes open, some fill their rings.
    let most = [4, PUSHES as usize][rng.below(2) as usize];
    let death = (rng.below(3) == 0).then(|| rng.below(PUSHES));
    for n in 0..PUSHES {
        worker.push(rig, rng);
        if death == Some(n) {
            worker.vanish(ledger, seen);
            worker = Worker::new(rig, rank, 1);
        }
        if worker.open.len() > most {
            worker.settle(rng, ledger, seen);
        }
    }
    while !worker.open.is_empty() {
        worker.settle(rng, ledger, seen);
    }
    let c = worker.client.counters();
    seen.waits.fetch_add(c.credit_waits, Ordering::Relaxed);
    seen.recoveries.fetch_add(c.recoveries, Ordering::Relaxed);
    seen.late.fetch_add(c.rejects_late, Ordering::Relaxed);
}

/// Reads all rows in two ways that must agree, and compares them with the ledger.
fn audit(rig: &Rig, ledger: &Ledger) {
    let mut w = Worker::new(rig, 1, 50);
    for mode in [PullMode::Consistent, PullMode::Gather] {
        let options = PullOptions {
            mode,
            missing: Missing::Initial,
            timeout: LONG,
        };
        let keys: Vec<u64> = (0..KEYS).collect();
        let mut out = vec![0f64; KEYS as usize * DIM];
        w.client
            .pull_rows(&w.sparse, &keys, &mut out, options)
            .unwrap();
        for (key, row) in keys.iter().zip(out.chunks_exact(DIM)) {
            assert!(row.iter().all(|v| *v == row[0]), "row {key}: {row:?}");
            ledger.check("sparse", *key, row[0] as i64);
        }
        let mut out = vec![0i64; KEYS as usize * 2];
        w.client
            .pull_rows(&w.rows, &keys, &mut out, options)
            .unwrap();
        for (key, row) in keys.iter().zip(out.chunks_exact(2)) {
            assert_eq!(row[0], row[1]);
            ledger.check("rows", *key, row[0]);
        }
        let mut out = vec![0f32; ELEMENTS as usize];
        w.client
            .pull_range(&w.blocks, 0, &mut out, options)
            .unwrap();
        for (element, value) in out.iter().enumerate() {
            ledger.check("blocks", element as u64, *value as i64);
        }
    }
}

fn world(seed: u64, seen: &Arc<Seen>) -> Outcome {
    let sparse = TableBuilder::sparse::<f64>("sparse", DIM as u32).partitions(4);
    let rows = TableBuilder::rows::<i64>("rows", KEYS, 2).partitions(4);
    let blocks = TableBuilder::range::<f32>("blocks", 3, 1024)
        .block_bytes(4096)
        .partitions(2);
    let shape = Shape {
        servers: 2,
        appliers: 1,
        workers: WORKERS,
        ring_bytes: 16 << 10,
    };
    let tables = [sparse.spec(), rows.spec(), blocks.spec()];
    let rig = Rig::new(seed, faults(seed), shape, &tables);
    let ledger = Arc::new(Ledger::default());
    let done = Arc::new(AtomicU64::new(0));
    for rank in 0..WORKERS {
        let (ledger, seen, done) = (Arc::clone(&ledger), Arc::clone(seen), Arc::clone(&done));
        rig.spawn(&format!("worker {rank}"), move |rig, mut rng| {
            work(rig, rank, &mut rng, &ledger, &seen);
            done.fetch_add(1, Ordering::Relaxed);
        });
    }
    let (books, raw_done) = (Arc::clone(&ledger), Arc::clone(&done));
    rig.spawn("raw", move |rig, mut rng| {
        let table = tidewater_protocol::ids::TableId(1);
        let key = rng.below(KEYS);
        let mut raw = RawPusher::new(rig, RAW_RANK, table, key, DIM, rng.fork());
        for _ in 0..PUSHES / 6 {
            let amount = 1 + rng.below(9) as i64;
            raw.push(amount);
            books.enter("sparse", &[key], amount, Fate::Acknowledged);
        }
        raw_done.fetch_add(1, Ordering::Relaxed);
    });
    rig.spawn("auditor", move |rig, _| {
        while done.load(Ordering::Relaxed) <= u64::from(WORKERS) {
            rig.world.pause(Duration::from_millis(1));
        }
        // The frames of vanished clients arrive, or are lost, in this time.
        rig.world.pause(Duration::from_secs(60));
        audit(rig, &ledger);
    });
    rig.world.run()
}

#[test]
fn every_row_is_the_sum_of_what_was_acknowledged() {
    let seen = Arc::new(Seen::default());
    let swept = sweep(here!(), 0..200, |seed| world(seed, &seen));
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    println!(
        "{swept:?}; {} refused, {} unknown, {} waits for room, {} recoveries",
        count(&seen.refused),
        count(&seen.unknown),
        count(&seen.waits),
        count(&seen.recoveries)
    );
    if swept.seeds >= 100 {
        assert!(count(&seen.refused) > 0 && count(&seen.recoveries) > swept.seeds / 4);
        assert!(count(&seen.unknown) > 0 && count(&seen.waits) > 0);
        assert!(count(&seen.late) > 0, "no reject record was late");
    }
}

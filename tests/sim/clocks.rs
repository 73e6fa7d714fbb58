//! Clocks: required and forbidden results of a read at clock `c`, and the drift of workers.
//!
//! In iteration `i` worker `r` adds 1 to row `r` of three tables. A row thus counts the iterations of
//! its worker that a reader sees. It also adds to some elements of the table with snapshots: blocks
//! without a push in an iteration have to be carried forward. Two of the tables are in a separate
//! clock domain, which is ticked separately.

use std::sync::Arc;
use std::time::Duration;

use tidewater::{Client, ClientError, PullMode, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_engine::apply::command::Command;
use tidewater_engine::namespace::NamespaceId;
use tidewater_lanes::here;
use tidewater_lanes::sim::{Outcome, Rng, sweep};
use tidewater_protocol::ids::{DomainId, WorkerId};
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_runtime::sync::{AtomicU64, Ordering};

use tidewater_testkit::sim::{LONG, Rig, Shape, faults, open};

const WORKERS: u32 = 3;
const ITERATIONS: u64 = 14;
/// Four blocks of 4 KiB over two appliers.
const ELEMENTS: usize = 2048;
/// The elements in parts of half a block, of which an iteration pushes [`PUSHED`] adjacent ones.
const PARTS: usize = 8;
const PART: usize = ELEMENTS / PARTS;
const PUSHED: usize = 3;
/// Clock domains, the second one of the tables `DOMAIN_ROWS` and `ranges`.
const DOMAINS: [DomainId; 2] = [DomainId(0), DomainId(5)];
const DOMAIN_ROWS: &str = "at clock, of a domain";
/// Number of swept slacks, from 0 on.
const SLACKS: u64 = 4;
const NEVER: u64 = u64::MAX;

/// State that workers share outside of Tidewater.
struct Board {
    /// Ticks that a worker has begun: at least as many as any server knows.
    begun: [AtomicU64; WORKERS as usize],
    /// Ticks after which a worker finished or was removed.
    ended: [AtomicU64; WORKERS as usize],
    /// Ticks that a worker plans to make.
    planned: [AtomicU64; WORKERS as usize],
}

/// First part that iteration `i` pushes.
fn first_part(i: u64) -> usize {
    i as usize % (PARTS - PUSHED + 1)
}

/// Number of pushes to a part in the first `n` iterations.
fn pushes_to(part: usize, n: u64) -> u64 {
    let hits = |&i: &u64| (first_part(i)..first_part(i) + PUSHED).contains(&part);
    (0..n).filter(hits).count() as u64
}

impl Board {
    fn new() -> Self {
        Self {
            begun: Default::default(),
            ended: [const { AtomicU64::new(NEVER) }; WORKERS as usize],
            planned: [const { AtomicU64::new(NEVER) }; WORKERS as usize],
        }
    }

    /// Fails unless the elements are those of a version: the pushes of the iterations before it, all of
    /// them and no others.
    fn check_version(&self, version: u64, out: &[i64]) {
        let mixed = |part: &[i64]| part.iter().any(|v| *v != part[0]);
        let parts = out.chunks_exact(PART);
        assert!(!parts.clone().any(mixed), "a part of two versions");
        let seen: Vec<u64> = parts.map(|part| part[0] as u64).collect();
        let of = |r: &AtomicU64| r.load(Ordering::Relaxed).min(version);
        let iterations: Vec<u64> = self.planned.iter().map(of).collect();
        let sum = |part| iterations.iter().map(|&n| pushes_to(part, n)).sum();
        let right: Vec<u64> = (0..PARTS).map(sum).collect();
        assert_eq!(seen, right, "the elements of version {version}");
    }

    fn ended(&self, rank: usize) -> u64 {
        self.ended[rank].load(Ordering::Relaxed)
    }

    /// Begun ticks of the slowest worker that others wait for.
    fn slowest(&self) -> u64 {
        let live = (0..WORKERS as usize).filter(|&r| self.ended(r) == NEVER);
        let clocks = live.map(|r| self.begun[r].load(Ordering::Relaxed));
        clocks.min().unwrap_or(NEVER)
    }
}

/// How a worker ends in the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Finishes,
    Dies,
}

struct Worker {
    client: Client,
    rank: usize,
    slack: u64,
    at_once: Table<i64>,
    at_clock: Table<i64>,
    of_domain: Table<i64>,
    ranges: Table<i64>,
    board: Arc<Board>,
    /// Number of ticks in each domain.
    ticks: [u64; DOMAINS.len()],
    global: u64,
    lead: u64,
}

impl Worker {
    fn new(rig: &Rig, rank: u32, slack: u64, board: &Arc<Board>) -> Self {
        let mut client = rig.client(rank, 0, SyncMode::Ssp(slack));
        Self {
            rank: rank as usize,
            slack,
            at_once: open(&mut client, "at once"),
            at_clock: open(&mut client, "at clock"),
            of_domain: open(&mut client, DOMAIN_ROWS),
            ranges: open(&mut client, "ranges"),
            client,
            board: Arc::clone(board),
            ticks: [0; DOMAINS.len()],
            global: 0,
            lead: 0,
        }
    }

    /// Iterations of worker `of` that a read at clock `c` must show.
    fn due(&self, c: u64, of: usize) -> u64 {
        c.saturating_sub(self.slack).min(self.board.ended(of))
    }

    fn check_rows(&mut self) {
        let options = PullOptions {
            timeout: LONG,
            ..PullOptions::default()
        };
        let [c, of_domain] = self.ticks;
        assert_eq!(self.client.clock(), c);
        let keys: Vec<u64> = (0..u64::from(WORKERS)).collect();
        let mut out = [0i64; WORKERS as usize];
        for (table, c, most) in [
            (&self.at_once, c, NEVER),
            (&self.at_clock, c, c),
            (&self.of_domain, of_domain, of_domain),
        ] {
            self.client
                .pull_rows(table, &keys, &mut out, options)
                .unwrap();
            for (of, &seen) in out.iter().enumerate() {
                let (seen, due) = (seen as u64, self.due(c, of));
                assert!(
                    (due..=most).contains(&seen),
                    "worker {} at clock {c} sees {seen} iterations of worker {of}, \
                     not {due}..={most} (slack {})",
                    self.rank,
                    self.slack
                );
            }
        }
    }

    fn check_snapshot(&mut self) {
        let options = PullOptions {
            mode: PullMode::Snapshot,
            timeout: LONG,
            ..PullOptions::default()
        };
        let mut out = vec![0i64; ELEMENTS];
        let pulled = self.client.pull_range(&self.ranges, 0, &mut out, options);
        let version = pulled.unwrap().version.unwrap();
        let c = self.ticks[1];
        self.board.check_version(version, &out);
        assert!(
            (c.saturating_sub(self.slack)..=c).contains(&version),
            "a snapshot at clock {c}, slack {}, is of version {version}",
            self.slack
        );
    }

    fn check_global(&mut self) {
        let now = self.client.global_clock().unwrap();
        assert!(
            now >= self.global,
            "the clock went back: {now} after {}",
            self.global
        );
        self.global = now;
    }

    fn push(&mut self) {
        let client = &mut self.client;
        let key = [self.rank as u64];
        for table in [&self.at_once, &self.at_clock, &self.of_domain] {
            let _ = client.push_rows(table, &key, &[1], PushOp::Sum).unwrap();
        }
        let (ones, first) = ([1i64; PUSHED * PART], first_part(self.ticks[1]) * PART);
        let _ = client
            .push_range(&self.ranges, first as u64, &ones, PushOp::Sum)
            .unwrap();
    }

    fn tick(&mut self, domain: usize) {
        if domain != 0 {
            self.client.tick_domain(DOMAINS[domain]).unwrap();
            self.ticks[domain] += 1;
            return;
        }
        self.board.begun[self.rank].fetch_add(1, Ordering::Relaxed);
        self.client.tick().unwrap();
        self.ticks[0] += 1;
        let lead = self.client.clock().saturating_sub(self.board.slowest());
        assert!(
            lead <= self.slack + 1,
            "{lead} ahead at slack {}",
            self.slack
        );
        self.lead = self.lead.max(lead);
    }

    fn iterate(&mut self, rng: &mut Rng) {
        if rng.below(2) == 0 {
            self.check_rows();
        }
        if rng.below(3) == 0 {
            self.check_snapshot();
        }
        if rng.below(2) == 0 {
            self.check_global();
        }
        self.push();
        // Reads between the ticks are of two iterations. All workers tick the domains of an iteration
        // in one order: with different orders two workers would wait for each other's second tick.
        let first = self.ticks[0] as usize % 2;
        self.tick(first);
        if rng.below(4) == 0 {
            self.check_rows();
            self.check_snapshot();
        }
        self.tick(1 - first);
    }
}

/// A worker's run: some are slow, some end early, and then the others must not wait for them.
fn work(rig: &Rig, mut w: Worker, rng: &mut Rng, end: Option<(End, u64)>) -> u64 {
    let slow = w.rank == 0;
    let last = end.map_or(ITERATIONS, |(_, at)| at);
    w.board.planned[w.rank].store(last, Ordering::Relaxed);
    for _ in 0..last {
        if slow {
            rig.world.pause(Duration::from_micros(rng.below(1500)));
        }
        w.iterate(rng);
    }
    w.client.flush().unwrap();
    w.board.ended[w.rank].store(last, Ordering::Relaxed);
    assert_eq!(w.client.counters().rejects, 0);
    if let Some((End::Dies, _)) = end {
        let rank = WorkerId(w.rank as u32);
        let lead = w.lead;
        drop(w);
        // The coordinator does this when it detects the end.
        rig.world.pause(Duration::from_millis(5));
        for seat in rig.seats() {
            seat.ask(|tx| Command::RemoveWorker(NamespaceId::default(), rank, tx));
        }
        return lead;
    }
    w.client.finish().unwrap();
    w.lead
}

/// A session that never ticks: waits for each newer version, and reads it.
fn watch(rig: &Rig, board: &Board, rng: &mut Rng) -> u64 {
    let mut client = rig.client(0, 1, SyncMode::Asp);
    let (ranges, rows) = (open(&mut client, "ranges"), open(&mut client, DOMAIN_ROWS));
    let options = PullOptions {
        timeout: LONG,
        ..PullOptions::default()
    };
    let (mut out, mut counts) = (vec![0i64; ELEMENTS], [0i64; WORKERS as usize]);
    let (mut last, mut seen) = (0, 0);
    loop {
        let is_over = (0..WORKERS as usize).all(|rank| board.ended(rank) != NEVER);
        let newest = match client.wait_newer(&ranges, last, Duration::from_millis(50)) {
            Err(ClientError::Deadline { .. }) if is_over => return seen,
            Err(ClientError::Deadline { .. }) => continue,
            newest => newest.unwrap(),
        };
        assert!(newest > last, "version {newest} after {last}");
        let keys: Vec<u64> = (0..u64::from(WORKERS)).collect();
        client
            .pull_rows(&rows, &keys, &mut counts, options)
            .unwrap();
        for (planned, &count) in board.planned.iter().zip(&counts) {
            let due = planned.load(Ordering::Relaxed).min(newest);
            assert!(count as u64 >= due, "{counts:?} at version {newest}");
        }
        let snapshot = options.mode(PullMode::Snapshot);
        let pulled = client.pull_range(&ranges, 0, &mut out, snapshot).unwrap();
        let version = pulled.version.unwrap();
        assert!(version >= newest, "version {version}, waited for {newest}");
        board.check_version(version, &out);
        // A slow reader: its version stays.
        let pinned = client.pin(&ranges, None).unwrap();
        assert!(pinned >= version, "version {pinned} after {version}");
        rig.world.pause(Duration::from_micros(rng.below(4_000)));
        let pulled = client.pull_pinned(&ranges, pinned, 0, &mut out, options);
        assert_eq!(pulled.unwrap().version, Some(pinned));
        board.check_version(pinned, &out);
        client.unpin(&ranges, pinned).unwrap();
        (last, seen) = (version, seen + 1);
    }
}

fn world(
    seed: u64,
    leads: &Arc<[AtomicU64; SLACKS as usize]>,
    versions: &Arc<AtomicU64>,
) -> Outcome {
    let of = |name| TableBuilder::rows::<i64>(name, u64::from(WORKERS), 1).partitions(2);
    let at_once = of("at once");
    let at_clock = of("at clock").at_clock(Reduce::Sum);
    let of_domain = of(DOMAIN_ROWS).at_clock(Reduce::Sum).domain(DOMAINS[1]);
    let ranges = TableBuilder::range::<i64>("ranges", 4, 512)
        .domain(DOMAINS[1])
        .block_bytes(4096)
        .snapshot()
        .versions(3)
        .at_clock(Reduce::Sum)
        .partitions(2);
    let shape = Shape {
        servers: 1,
        appliers: 2,
        workers: WORKERS,
        ring_bytes: 32 << 10,
    };
    let tables = [
        at_once.spec(),
        at_clock.spec(),
        of_domain.spec(),
        ranges.spec(),
    ];
    let rig = Rig::new(seed, faults(seed), shape, &tables);
    // Independent of seed % 4, which selects the faults.
    let slack = seed / 4 % SLACKS;
    let board = Arc::new(Board::new());
    for rank in 0..WORKERS {
        let (board, leads) = (Arc::clone(&board), Arc::clone(leads));
        rig.spawn(&format!("worker {rank}"), move |rig, mut rng| {
            let end = [None, Some(End::Finishes), Some(End::Dies)][rng.below(3) as usize];
            let end = end.map(|e| (e, 1 + rng.below(ITERATIONS - 1)));
            let worker = Worker::new(rig, rank, slack, &board);
            let lead = work(rig, worker, &mut rng, end);
            leads[slack as usize].fetch_max(lead, Ordering::Relaxed);
        });
    }
    let versions = Arc::clone(versions);
    rig.spawn("reader", move |rig, mut rng| {
        versions.fetch_add(watch(rig, &board, &mut rng), Ordering::Relaxed);
    });
    rig.world.run()
}

#[test]
fn reads_see_what_their_clock_promises() {
    let leads: Arc<[AtomicU64; SLACKS as usize]> = Arc::default();
    let versions: Arc<AtomicU64> = Arc::default();
    let swept = sweep(here!(), 0..200, |seed| world(seed, &leads, &versions));
    let reached: Vec<u64> = leads.iter().map(|n| n.load(Ordering::Relaxed)).collect();
    println!("{swept:?}; largest lead by slack: {reached:?}; {versions:?} versions waited for");
    if swept.seeds >= 100 {
        let waited = versions.load(Ordering::Relaxed);
        assert!(waited > swept.seeds, "{waited} versions");
        assert_eq!(reached, (1..=SLACKS).collect::<Vec<_>>());
    }
}

//! Clocks: what a read at clock `c` must see, what it must not, and how far workers drift.
//!
//! In iteration `i` worker `r` adds 1 to row `r` of two tables and to every element of the table
//! with snapshots, so a row says how many of its worker's iterations a reader sees.

use std::sync::Arc;
use std::time::Duration;

use tidewater_client::{Client, PullMode, PullOptions, Sync, Table, TableBuilder};
use tidewater_server::apply::command::Command;
use tidewater_server::namespace::NamespaceId;
use tidewater_transport::here;
use tidewater_transport::ids::WorkerId;
use tidewater_transport::sim::{Outcome, Rng, sweep};
use tidewater_transport::sync::{AtomicU64, Ordering};
use tidewater_transport::table::{PushOp, Reduce};

use crate::simrig::{LONG, Rig, Shape, faults, open};

const WORKERS: u32 = 3;
const ITERATIONS: u64 = 14;
/// Two blocks of 4 KiB over two appliers.
const ELEMENTS: usize = 1024;
/// Largest slack swept.
const SLACKS: u64 = 4;
const NEVER: u64 = u64::MAX;

/// What workers tell each other, outside of Tidewater.
struct Board {
    /// Ticks that a worker has begun: at least as many as any server knows.
    begun: [AtomicU64; WORKERS as usize],
    /// Ticks after which a worker finished or was removed.
    ended: [AtomicU64; WORKERS as usize],
}

impl Board {
    fn new() -> Self {
        Self {
            begun: Default::default(),
            ended: [const { AtomicU64::new(NEVER) }; WORKERS as usize],
        }
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

/// How a worker's part in the run ends.
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
    ranges: Table<i64>,
    board: Arc<Board>,
    global: u64,
    lead: u64,
}

impl Worker {
    fn new(rig: &Rig, rank: u32, slack: u64, board: &Arc<Board>) -> Self {
        let mut client = rig.client(rank, 0, Sync::Ssp(slack));
        Self {
            rank: rank as usize,
            slack,
            at_once: open(&mut client, "at once"),
            at_clock: open(&mut client, "at clock"),
            ranges: open(&mut client, "ranges"),
            client,
            board: Arc::clone(board),
            global: 0,
            lead: 0,
        }
    }

    /// Iterations of worker `of` that a read now must show.
    fn due(&self, of: usize) -> u64 {
        let c = self.client.clock();
        c.saturating_sub(self.slack).min(self.board.ended(of))
    }

    fn check_rows(&mut self) {
        let options = PullOptions {
            timeout: LONG,
            ..PullOptions::default()
        };
        let c = self.client.clock();
        let keys: Vec<u64> = (0..u64::from(WORKERS)).collect();
        let mut out = [0i64; WORKERS as usize];
        for (table, most) in [(&self.at_once, NEVER), (&self.at_clock, c)] {
            self.client
                .pull_rows(table, &keys, &mut out, options)
                .unwrap();
            for (of, &seen) in out.iter().enumerate() {
                let (seen, due) = (seen as u64, self.due(of));
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
        self.client
            .pull_dense(&self.ranges, 0, &mut out, options)
            .unwrap();
        let c = self.client.clock();
        let mixed = out.iter().position(|v| *v != out[0]);
        assert_eq!(mixed, None, "one epoch: {} and others", out[0]);
        let due: u64 = (0..WORKERS as usize).map(|of| self.due(of)).sum();
        let seen = out[0] as u64;
        assert!(
            (due..=c * u64::from(WORKERS)).contains(&seen),
            "a snapshot at clock {c} shows {seen} pushes, {due} are due"
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
        for table in [&self.at_once, &self.at_clock] {
            let _ = client.push_rows(table, &key, &[1], PushOp::Sum).unwrap();
        }
        let ones = vec![1i64; ELEMENTS];
        let _ = client
            .push_dense(&self.ranges, 0, &ones, PushOp::Sum)
            .unwrap();
    }

    fn tick(&mut self) {
        self.board.begun[self.rank].fetch_add(1, Ordering::Relaxed);
        self.client.tick().unwrap();
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
        self.tick();
    }
}

/// A worker's life: some are slow, some end early, and then the others must not wait for them.
fn work(rig: &Rig, mut w: Worker, rng: &mut Rng, end: Option<(End, u64)>) -> u64 {
    let slow = w.rank == 0;
    let last = end.map_or(ITERATIONS, |(_, at)| at);
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
        // What the coordinator does when it notices.
        rig.world.pause(Duration::from_millis(5));
        for seat in rig.seats() {
            seat.ask(|tx| Command::RemoveWorker(NamespaceId::default(), rank, tx));
        }
        return lead;
    }
    w.client.finish().unwrap();
    w.lead
}

fn world(seed: u64, leads: &Arc<[AtomicU64; SLACKS as usize]>) -> Outcome {
    let of = |name| TableBuilder::rows::<i64>(name, u64::from(WORKERS), 1).partitions(2);
    let at_once = of("at once");
    let at_clock = of("at clock").at_clock(Reduce::Sum);
    let ranges = TableBuilder::blocks::<i64>("ranges", 2, 512)
        .block_bytes(4096)
        .snapshot()
        .at_clock(Reduce::Sum)
        .partitions(2);
    let shape = Shape {
        servers: 1,
        appliers: 2,
        workers: WORKERS,
        ring_bytes: 32 << 10,
    };
    let tables = [at_once.spec(), at_clock.spec(), ranges.spec()];
    let rig = Rig::new(seed, faults(seed), shape, &tables);
    // Not a function of seed % 4, which chooses the faults.
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
    rig.world.run()
}

#[test]
fn reads_see_what_their_clock_promises() {
    let leads: Arc<[AtomicU64; SLACKS as usize]> = Arc::default();
    let swept = sweep(here!(), 0..200, |seed| world(seed, &leads));
    let reached: Vec<u64> = leads.iter().map(|n| n.load(Ordering::Relaxed)).collect();
    println!("{swept:?}; largest lead by slack: {reached:?}");
    if swept.seeds >= 100 {
        assert_eq!(reached, (1..=SLACKS).collect::<Vec<_>>());
    }
}

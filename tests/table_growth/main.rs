//! A table grows from nothing to millions of rows while clients read existing rows: the time of their
//! pulls, compared with pulls when nothing grows.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

mod still;
mod stranger;

use std::time::{Duration, Instant};
use tidewater_runtime::sync::{AtomicU64, Ordering};

use still::{Bystanders, Queue, Stops, fresh_pages};
use stranger::Stranger;
use tidewater::{Client, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_lanes::fabric::TransportKind::{self, Shm, Tcp};
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock;
use tidewater_testkit::faults::{Rng, full, seed};
use tidewater_testkit::threads::Cluster;

/// Pushes `times * [key, 1]` to rows `0..rows`, a thousand at once. `after` gets the time each push
/// took until it was applied, and its first row.
fn push_thousands(
    client: &mut Client,
    table: &Table<i64>,
    rows: u64,
    times: i64,
    mut after: impl FnMut(Duration, u64),
) {
    for first in (0..rows).step_by(1_000) {
        let start = clock::now();
        let keys: Vec<u64> = (first..first + 1_000).collect();
        let values: Vec<i64> = keys
            .iter()
            .flat_map(|&k| [times * k as i64, times])
            .collect();
        let ticket = client
            .push_rows(table, &keys, &values, PushOp::Sum)
            .unwrap();
        client.wait_applied(&ticket).unwrap();
        after(clock::now() - start, first);
    }
}

/// Measurements of one pull, times in microseconds.
#[derive(Clone, Copy)]
struct Pulled {
    start: Instant,
    took: u32,
    /// Time in it that the reader waited for a core.
    reader: u32,
    /// Time in it that appliers waited for a core; the pull may have waited for them or not.
    appliers: u32,
}

/// Memory of a row in this table, bytes: itself, its key, and its share of all index tables that its
/// partition has grown through.
const BYTES_PER_ROW: u64 = 150;
/// Activities during the pulls, one after the other; each pushes to the same rows.
const PHASES: [&str; 3] = [
    "rows being made",
    "as many pushes, no growth",
    "as many pushes, no growth, a stranger takes as much memory",
];

/// Pulls 64 of the known rows repeatedly; returns the pulls of each phase.
fn read_while(
    client: &mut Client,
    rng: &mut Rng,
    [known, phase]: [&AtomicU64; 2],
) -> [Vec<Pulled>; PHASES.len()] {
    let table = client.open_table::<i64>("t").unwrap();
    let options = PullOptions {
        timeout: Duration::from_secs(5),
        ..PullOptions::default()
    };
    let queues = [
        Queue::mine(),
        Queue::of(|name| name.starts_with("applier-")),
    ];
    let mut pulls = PHASES.map(|_| Vec::with_capacity(1 << 20));
    let mut out = [0; 128];
    let mut waited = queues.each_ref().map(Queue::waited);
    while let Some(pulls) = pulls.get_mut(phase.load(Ordering::Acquire) as usize) {
        let there = known.load(Ordering::Acquire);
        if there < 1_000 {
            std::thread::yield_now();
            continue;
        }
        let keys: Vec<u64> = (0..64).map(|_| rng.below(there)).collect();
        let start = clock::now();
        client.pull_rows(&table, &keys, &mut out, options).unwrap();
        let took = (clock::now() - start).as_micros() as u32;
        let before = std::mem::replace(&mut waited, queues.each_ref().map(Queue::waited));
        let [reader, appliers] = [0, 1].map(|n| waited[n].saturating_sub(before[n]).min(took));
        pulls.push(Pulled {
            start,
            took,
            reader,
            appliers,
        });
        let rows = keys.iter().zip(out.chunks(2));
        let wrong = rows.filter(|(k, row)| *row != [**k as i64, 1]).count();
        assert_eq!(wrong, 0, "wrong rows while the table grew");
    }
    pulls
}

/// Readers continue until it is dropped: also after a failed push.
struct Pushing<'a>(&'a AtomicU64);

impl Drop for Pushing<'_> {
    fn drop(&mut self) {
        self.0.store(PHASES.len() as u64, Ordering::Release);
    }
}

/// Prints the times of pulls, total and without delays outside of Tidewater, and the waits of the
/// slowest.
fn tell(what: &str, pulls: &[Pulled], stops: &Stops) {
    let stopped = |p: &Pulled| {
        let end = p.start + Duration::from_micros(u64::from(p.took));
        stops.within(p.start, end).as_micros() as u32
    };
    let rest = |p: &Pulled| p.took.saturating_sub(p.reader + stopped(p));
    let ranks = |of: &dyn Fn(&Pulled) -> u32| {
        let mut all: Vec<u32> = pulls.iter().map(of).collect();
        all.sort_unstable();
        let at = |q: usize| all[(all.len() * q / 10_000).min(all.len() - 1)];
        let ranks = [5_000, 9_900, 9_990, 9_999, 10_000].map(at);
        format!("{ranks:?}")
    };
    println!(
        "{what}: {} pulls of 64 rows took [p50, p99, p99.9, p99.99, slowest] {} us; {} us without \
         what the reader waited for a core and a core stood still",
        pulls.len(),
        ranks(&|p| p.took),
        ranks(&rest),
    );
    let mut slow = pulls.to_vec();
    slow.sort_unstable_by_key(|p| std::cmp::Reverse(p.took));
    for p in slow.iter().take(3) {
        println!(
            "{what}: {} us, in which a core stood still for {} us, the reader waited {} us for one \
             and appliers {} us",
            p.took,
            stopped(p),
            p.reader,
            p.appliers
        );
    }
}

/// Rows are created by the hundred thousand while clients read existing rows. Two phases follow for
/// comparison, which push to the same rows without new ones. In the second a stranger, an unrelated
/// process, takes as much memory in as much time. Each pull gets its right rows within its deadline.
/// Pull times are only printed: on a busy machine other processes dominate them, on a virtual one its
/// host. The host provides the pages for any process, and a core may wait meanwhile. The test counts
/// Tidewater's own part: pages that appliers had to wait for.
#[test]
fn a_growing_table_holds_no_reader_up() {
    let rows: u64 = if full() { 10_000_000 } else { 1_000_000 };
    let transports: &[TransportKind] = if full() { &[Shm, Tcp] } else { &[Shm] };
    for &transport in transports {
        let cluster = Cluster::start(transport, 1, 2, 3);
        let spec = TableBuilder::sparse::<i64>("t", 2);
        let mut client = cluster.client(0, SyncMode::Asp);
        let table = client.create_table::<i64>(spec.spec()).unwrap();
        let [known, phase] = [(); 2].map(|()| AtomicU64::new(0));
        let read = |rank| {
            let mut client = cluster.client(rank, SyncMode::Asp);
            let mut rng = Rng(seed() ^ u64::from(rank));
            let pulls = read_while(&mut client, &mut rng, [&known, &phase]);
            assert!(client.counters().pulls > 100);
            pulls
        };
        let mut pulls = PHASES.map(|_| Vec::new());
        let pages = || fresh_pages(|name| name.starts_with("applier-"));
        let before = pages();
        let bystanders = Bystanders::start();
        std::thread::scope(|scope| {
            let readers = [1, 2].map(|rank| (rank, &read));
            let readers = readers.map(|(rank, read)| scope.spawn(move || read(rank)));
            let pushing = Pushing(&phase);
            let mut slow = (Duration::ZERO, 0);
            let start = clock::now();
            push_thousands(&mut client, &table, rows, 1, |took, first| {
                slow = slow.max((took, first));
                known.store(first + 1_000, Ordering::Release);
            });
            let took = clock::now() - start;
            println!("{transport}: slowest push of 1,000 rows and where: {slow:?}");
            // Each is a wait for the system; without the helper they are 16 of a thousand rows. Some are
            // the appliers' own: indexes of a few pages, and pages that a helper provided late.
            let fresh = pages() - before;
            println!("{transport}: appliers met {fresh} fresh pages");
            assert!(fresh < 2_000 + rows / 250, "{fresh} fresh pages: no helper");
            phase.store(1, Ordering::Release);
            push_thousands(&mut client, &table, rows, 0, |_, _| {});
            phase.store(2, Ordering::Release);
            let stranger = Stranger::start(rows * BYTES_PER_ROW, took);
            push_thousands(&mut client, &table, rows, 0, |_, _| {});
            drop((stranger, pushing));
            for reader in readers {
                let more = reader.join().unwrap();
                pulls
                    .iter_mut()
                    .zip(more)
                    .for_each(|(all, m)| all.extend(m));
            }
        });
        let stops = bystanders.finish();
        println!(
            "{transport}: longest that a core stood still: {:?}",
            stops.longest()
        );
        for (what, pulls) in PHASES.iter().zip(&pulls) {
            tell(&format!("{transport}, {rows} rows, {what}"), pulls, &stops);
        }
    }
}

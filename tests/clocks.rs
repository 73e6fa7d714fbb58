// long: clocks, versions and their measurement share a rig.

//! Clocks. A read at clock c with staleness s sees every update of the iterations before c - s. Workers
//! drift apart by at most s + 1 ticks. No worker waits for one that has left.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

use std::io::{Read, Write};
use std::sync::Barrier;
use std::time::Duration;
use tidewater_runtime::sync::{AtomicBool, AtomicU64, Ordering};

use tidewater::{
    Client, ClientError, GroupRange, PullMode, PullOptions, SyncMode, Table, TableBuilder,
};
use tidewater_engine::apply::command::Command;
use tidewater_engine::namespace::NamespaceId;
use tidewater_lanes::fabric::TransportKind::{self, Shm, Tcp, Verbs};
use tidewater_protocol::ids::WorkerId;
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_testkit::faults::{Rng, full, seed};
use tidewater_testkit::threads::Cluster;

const WORKERS: u32 = 4;
/// Number of partitions with a row for each worker, so that every applier has some.
const COPIES: u64 = 8;
const ROWS: u64 = WORKERS as u64 * COPIES;
const PULLS: u64 = 4;

/// Adds 1 to all of a worker's rows.
fn push(client: &mut Client, table: &Table<i64>, rank: u32) {
    let own: Vec<u64> = (0..COPIES)
        .map(|c| c * u64::from(WORKERS) + u64::from(rank))
        .collect();
    let ticket = client
        .push_rows(table, &own, &[1; COPIES as usize], PushOp::Sum)
        .unwrap();
    drop(ticket);
}

fn pull(client: &mut Client, table: &Table<i64>) -> Vec<i64> {
    let all: Vec<u64> = (0..ROWS).collect();
    let mut out = vec![0; all.len()];
    client
        .pull_rows(table, &all, &mut out, PullOptions::default())
        .unwrap();
    out
}

/// State that all workers of a run share outside of Tidewater.
struct Watched {
    /// Ticks that each worker has begun: an upper bound of its clock.
    begun: Vec<AtomicU64>,
    lead: AtomicU64,
    reads: AtomicU64,
}

struct Drift {
    staleness: u64,
    iterations: u64,
    at_clock: bool,
}

impl Drift {
    fn work(&self, client: &mut Client, table: &Table<i64>, rank: u32, all: &Watched) {
        let mut rng = Rng(seed() ^ u64::from(rank) << 32 ^ self.staleness);
        for clock in 0..self.iterations {
            for _ in 0..PULLS {
                let seen = pull(client, table);
                self.check(&seen, clock, rank);
                all.reads.fetch_add(ROWS, Ordering::Relaxed);
            }
            push(client, table, rank);
            // Each worker is slow for a while; then the others run into the staleness bound.
            let slow = clock / 16 % u64::from(WORKERS) == u64::from(rank);
            if slow && rng.below(4) == 0 {
                std::thread::sleep(Duration::from_micros(1_000 + rng.below(3_000)));
            } else if rng.below(8) == 0 {
                std::thread::sleep(Duration::from_micros(rng.below(200)));
            }
            if rank == 0 && clock == self.iterations / 2 {
                self.hold_until_wall(all);
            }
            all.begun[rank as usize].store(clock + 1, Ordering::SeqCst);
            client.tick().unwrap();
            let slowest = all.begun.iter().map(|b| b.load(Ordering::SeqCst)).min();
            let lead = (clock + 1).saturating_sub(slowest.unwrap());
            all.lead.fetch_max(lead, Ordering::Relaxed);
        }
    }

    /// Holds worker 0 at its clock until another worker's lead is at the bound. Each run thus reaches the
    /// bound, however the machine schedules the workers.
    fn hold_until_wall(&self, all: &Watched) {
        let deadline = Deadline::after(Duration::from_secs(60));
        while all.lead.load(Ordering::Relaxed) <= self.staleness {
            assert!(!deadline.passed(), "no worker came to the wall");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Checks a read at `clock`.
    fn check(&self, seen: &[i64], clock: u64, rank: u32) {
        let due = clock.saturating_sub(self.staleness) as i64;
        for (row, &updates) in seen.iter().enumerate() {
            let whose = row as u32 % WORKERS;
            assert!(
                updates >= due,
                "worker {rank} at clock {clock}, staleness {}: {updates} updates of worker \
                 {whose}, {due} are due",
                self.staleness
            );
            if self.at_clock {
                assert!(
                    updates <= clock as i64,
                    "worker {rank} at clock {clock} sees update {updates} of worker {whose}: an \
                     iteration that it has not ended itself"
                );
            } else if whose == rank {
                // Its own pushes may be in flight, but arrive in order and once.
                assert!(updates <= clock as i64);
            } else {
                // Pushed in the iteration after the lead.
                assert!(updates <= (clock + self.staleness + 2) as i64);
            }
        }
    }

    fn run(&self, transport: TransportKind) {
        let cluster = Cluster::start(transport, 2, 2, WORKERS);
        let all = Watched {
            begun: (0..WORKERS).map(|_| AtomicU64::new(0)).collect(),
            lead: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        };
        std::thread::scope(|scope| {
            for rank in 0..WORKERS {
                let (cluster, all) = (&cluster, &all);
                scope.spawn(move || {
                    let sync = match self.staleness {
                        0 => SyncMode::Bsp,
                        s => SyncMode::Ssp(s),
                    };
                    let mut client = cluster.client(rank, sync);
                    let table = TableBuilder::rows::<i64>("t", ROWS, 1);
                    let table = if self.at_clock {
                        table.at_clock(Reduce::Sum)
                    } else {
                        table
                    };
                    let table = client.create_table::<i64>(table.spec()).unwrap();
                    self.work(&mut client, &table, rank, all);
                    client.finish().unwrap();
                });
            }
        });
        let (lead, reads) = (all.lead.into_inner(), all.reads.into_inner());
        let s = self.staleness;
        let at_clock = self.at_clock;
        println!("{transport}, s = {s}, at the clock: {at_clock}: {reads} reads, lead {lead}");
        let due = if transport == Verbs { 50_000 } else { 100_000 };
        assert!(reads >= due, "{reads} reads");
        assert_eq!(lead, s + 1, "{transport}: the largest lead with s = {s}");
    }
}

fn drifts(transport: TransportKind, at_clock: bool) {
    for staleness in 0..4 {
        let iterations = match (full(), transport) {
            (true, _) => 8_000,
            (false, Verbs) => 128,
            (false, _) => 256,
        };
        let drift = Drift {
            staleness,
            iterations,
            at_clock,
        };
        drift.run(transport);
    }
}

#[test]
fn ssp_bounds_staleness_and_lead_on_shm() {
    drifts(Shm, false);
}

#[test]
fn ssp_bounds_staleness_and_lead_on_tcp() {
    drifts(Tcp, false);
}

#[test]
fn updates_at_the_clock_come_neither_late_nor_early_on_shm() {
    drifts(Shm, true);
}

#[test]
fn updates_at_the_clock_come_neither_late_nor_early_on_tcp() {
    drifts(Tcp, true);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn ssp_bounds_staleness_and_lead_on_verbs() {
    drifts(Verbs, false);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn updates_at_the_clock_come_neither_late_nor_early_on_verbs() {
    drifts(Verbs, true);
}

#[test]
fn a_snapshot_is_of_one_clock() {
    snapshots_are_of_one_clock(&[Shm, Tcp]);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_snapshot_is_of_one_clock_on_verbs() {
    snapshots_are_of_one_clock(&[Verbs]);
}

/// Every element of a snapshot is of one clock, also while the clock advances.
fn snapshots_are_of_one_clock(transports: &[TransportKind]) {
    const ELEMENTS: usize = 20_000;
    const CLOCKS: u64 = 150;
    const READS: u64 = 20;
    for &transport in transports {
        let cluster = Cluster::start(transport, 1, 2, 1);
        let spec = TableBuilder::range::<i64>("t", ELEMENTS as u64, 1)
            .block_bytes(4096)
            .partitions(2)
            .at_clock(Reduce::Sum)
            .snapshot();
        let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        let made = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut writer = cluster.client(0, SyncMode::Bsp);
                let table = writer.create_table::<i64>(spec.spec()).unwrap();
                made.wait();
                let deadline = Deadline::after(Duration::from_secs(60));
                for clock in 0u64.. {
                    // The clock advances while the reader reads, however slow the reader is.
                    if clock >= CLOCKS && reads.load(Ordering::Relaxed) > READS {
                        break;
                    }
                    assert!(
                        !deadline.passed(),
                        "the reader is too slow: {reads:?} reads"
                    );
                    // Every second iteration pushes only a part: the rest is copied forward.
                    let half = if clock % 2 == 0 { ELEMENTS } else { 600 };
                    let ones = vec![1; half];
                    let ticket = writer.push_range(&table, 0, &ones, PushOp::Sum).unwrap();
                    writer.wait_applied(&ticket).unwrap();
                    writer.tick().unwrap();
                    std::thread::sleep(Duration::from_micros(300));
                }
                // A client that leaves without finish may deliver its last tick to some appliers only: then
                // the partitions stay a clock apart.
                writer.finish().unwrap();
                done.store(true, Ordering::Release);
            });
            made.wait();
            let mut reader = cluster.client(0, SyncMode::Asp);
            let table = reader.open_table::<i64>("t").unwrap();
            let options = PullOptions::default().mode(PullMode::Snapshot);
            let (mut out, mut last) = (vec![0; ELEMENTS], 0);
            while !done.load(Ordering::Acquire) {
                let pulled = reader.pull_range(&table, 0, &mut out, options).unwrap();
                let (clock, rest) = (out[0], (out[0] + 1) / 2);
                assert_eq!(pulled.version, Some(clock as u64), "{transport}");
                assert!(clock >= last, "{transport}: from clock {last} to {clock}");
                assert!(out[..600].iter().all(|&v| v == clock), "{transport}: torn");
                assert!(
                    out[600..].iter().all(|&v| v == rest),
                    "{transport}: clocks mixed at {clock}"
                );
                last = clock;
                reads.fetch_add(1, Ordering::Relaxed);
            }
            let c = reader.counters();
            println!(
                "{transport}: {reads:?} snapshots of one clock, {} retries",
                c.retries
            );
            assert!(reads.load(Ordering::Relaxed) > READS && c.blocks_snapshot > 0);
        });
    }
}

/// Such a table has two copies: one of them is a tick old.
#[test]
fn every_mode_sees_the_last_tick_of_a_table_with_snapshots() {
    const ELEMENTS: usize = 3_000;
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 2, 2, 1);
        let mut client = cluster.client(0, SyncMode::Bsp);
        let spec = TableBuilder::range::<i64>("t", ELEMENTS as u64, 1)
            .block_bytes(4096)
            .partitions(4)
            .at_clock(Reduce::Sum)
            .snapshot();
        let table = client.create_table::<i64>(spec.spec()).unwrap();
        let modes = [
            PullMode::Consistent,
            PullMode::Hogwild,
            PullMode::Gather,
            PullMode::Snapshot,
        ];
        for clock in 0..5 {
            for mode in modes {
                let mut out = vec![-1; ELEMENTS];
                let options = PullOptions::default().mode(mode);
                client.pull_range(&table, 0, &mut out, options).unwrap();
                assert_eq!(
                    out,
                    vec![clock; ELEMENTS],
                    "{transport}, {mode:?}, clock {clock}"
                );
            }
            let ones = vec![1; ELEMENTS];
            let ticket = client.push_range(&table, 0, &ones, PushOp::Sum).unwrap();
            client.wait_applied(&ticket).unwrap();
            client.tick().unwrap();
        }
    }
}

/// A session that never ticks waits for each version and finds it complete. Rows have no version of
/// their own: they have at least the pushes of the version that was waited for.
#[test]
fn readers_wait_for_newer_versions() {
    const ELEMENTS: usize = 3_000;
    const VERSIONS: u64 = 40;
    let timeout = Duration::from_secs(60);
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 1, 2, 1);
        let ranges = TableBuilder::range::<i64>("ranges", ELEMENTS as u64, 1)
            .block_bytes(4096)
            .partitions(2)
            .at_clock(Reduce::Sum)
            .snapshot();
        let rows = TableBuilder::rows::<i64>("rows", 2, 1).partitions(2);
        let rows = rows.at_clock(Reduce::Sum);
        let mut writer = cluster.client(0, SyncMode::Bsp);
        let tables = (
            writer.create_table::<i64>(ranges.spec()).unwrap(),
            writer.create_table::<i64>(rows.spec()).unwrap(),
        );
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..VERSIONS {
                    let ones = vec![1; if n % 2 == 0 { ELEMENTS } else { 100 }];
                    let _ = writer.push_range(&tables.0, 0, &ones, PushOp::Sum).unwrap();
                    let _ = writer
                        .push_rows(&tables.1, &[0, 1], &[1; 2], PushOp::Sum)
                        .unwrap();
                    writer.tick().unwrap();
                    // The reader sleeps before some of the ticks.
                    std::thread::sleep(Duration::from_micros(n % 4 * 500));
                }
            });
            let mut reader = cluster.client(0, SyncMode::Asp);
            let ranges = reader.open_table::<i64>("ranges").unwrap();
            let rows = reader.open_table::<i64>("rows").unwrap();
            let (mut out, mut last) = (vec![0; ELEMENTS], 0);
            while last < VERSIONS {
                let newest = reader.wait_newer(&ranges, last, timeout).unwrap();
                assert!(newest > last, "{transport}: version {newest} after {last}");
                let mut counts = [0; 2];
                let options = PullOptions::default();
                reader
                    .pull_rows(&rows, &[0, 1], &mut counts, options)
                    .unwrap();
                assert!(
                    counts.iter().all(|&n| n as u64 >= newest),
                    "{counts:?} at {newest}"
                );
                let options = options.mode(PullMode::Snapshot);
                let pulled = reader.pull_range(&ranges, 0, &mut out, options).unwrap();
                let version = pulled.version.unwrap();
                assert!(version >= newest, "{transport}: {version} after {newest}");
                assert!(out[..100].iter().all(|&x| x as u64 == version));
                assert!(out[100..].iter().all(|&x| x as u64 == version.div_ceil(2)));
                last = version;
            }
            assert_eq!(
                reader.wait_until(&rows, VERSIONS, timeout).unwrap(),
                VERSIONS
            );
            let soon = Duration::from_millis(20);
            let error = reader.wait_newer(&ranges, VERSIONS, soon).unwrap_err();
            let error = error.to_string();
            let named = [
                "wait_newer",
                "version 41 of table \"ranges\"",
                "worker 0, at clock 40",
            ];
            assert!(named.iter().all(|part| error.contains(part)), "{error}");
        });
    }
}

/// A table that is created after some ticks begins at the version of its domain. The numbers of stores
/// of a table without snapshots grow with its blocks' changes.
#[test]
fn pulls_return_versions_and_stores() {
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 1, 2, 1);
        let mut client = cluster.client(0, SyncMode::Bsp);
        let options = PullOptions::default();
        for _ in 0..3 {
            client.tick().unwrap();
        }
        let blocks = |name| TableBuilder::range::<i64>(name, 4_096, 1).block_bytes(4096);
        let late = blocks("late").at_clock(Reduce::Sum).snapshot();
        let late = client.create_table::<i64>(late.spec()).unwrap();
        let mut out = vec![0; 4_096];
        for version in 3..6 {
            let pulled = client.pull_range(&late, 0, &mut out, options).unwrap();
            assert_eq!(pulled.version, Some(version), "{transport}");
            assert_eq!(pulled.stores, None);
            client.tick().unwrap();
        }
        let plain = client.create_table::<i64>(blocks("plain").spec()).unwrap();
        let ticket = client
            .push_range(&plain, 100, &[1; 2], PushOp::Sum)
            .unwrap();
        client.wait_applied(&ticket).unwrap();
        let pulled = client.pull_range(&plain, 0, &mut out, options).unwrap();
        let stores = pulled.stores.unwrap();
        assert_eq!((stores.smallest, stores.largest), (1, 2), "{transport}");
        let part = client
            .pull_range(&plain, 600, &mut out[..900], options)
            .unwrap();
        let part = part.stores.unwrap();
        assert_eq!((part.smallest, part.largest), (1, 1), "{transport}");
        assert_eq!(pulled.version, None);
        let gathered = options.mode(PullMode::Gather);
        let gathered = client.pull_range(&plain, 0, &mut out, gathered).unwrap();
        assert_eq!(gathered, tidewater::Pulled::default());

        let rows = TableBuilder::sparse::<i64>("rows", 1);
        let rows = client.create_table::<i64>(rows.spec()).unwrap();
        for _ in 0..2 {
            let ticket = client.push_rows(&rows, &[7], &[1], PushOp::Sum).unwrap();
            client.wait_applied(&ticket).unwrap();
        }
        let mut counts = [0; 2];
        let first = client
            .pull_rows(&rows, &[7, 8], &mut counts, options)
            .unwrap();
        let stores = first.stores.unwrap();
        assert_eq!(
            stores.largest - stores.smallest,
            2,
            "{transport}: {stores:?}"
        );
        let again = client
            .pull_rows(&rows, &[7, 8], &mut counts, options)
            .unwrap();
        assert_eq!((again, counts), (first, [2, 0]), "{transport}");
    }
}

/// Ends the writer's loop.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Elements of a table of a group.
const GROUP_ELEMENTS: usize = 3_000;

/// Adds 1 to all elements of the tables at every second tick, and to the first 100 at the others.
fn write_until(done: &AtomicBool, writer: &mut Client, tables: [&Table<i64>; 2]) {
    for n in 1u64.. {
        for table in tables {
            let ones = vec![1; if n % 2 == 0 { GROUP_ELEMENTS } else { 100 }];
            let _ = writer.push_range(table, 0, &ones, PushOp::Sum).unwrap();
        }
        writer.tick().unwrap();
        if done.load(Ordering::Acquire) {
            break;
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Pins of versions that are gone or too many are refused with the numbers, and ended ones make room.
fn refuse_pins(reader: &mut Client, (of_a, of_b): (&Table<i64>, &Table<i64>), pinned: u64) {
    let gone = reader.pin(of_b, Some(pinned + 1)).unwrap_err();
    let gone = gone.to_string();
    assert!(
        gone.contains("of table \"b\" is not kept: the servers keep versions"),
        "{gone}"
    );
    let second = reader.pin(of_b, None).unwrap();
    assert_ne!(second, pinned);
    reader
        .wait_newer(of_b, second, Duration::from_secs(60))
        .unwrap();
    let full = reader.pin(of_b, None).unwrap_err().to_string();
    assert!(
        full.contains("2 versions are pinned, and 2 can be"),
        "{full}"
    );
    let none = reader.pin(of_a, None).unwrap_err().to_string();
    assert!(
        none.contains("0 versions are pinned, and 0 can be"),
        "{none}"
    );
    assert_eq!(reader.pin(of_b, Some(pinned)).unwrap(), pinned);
    for _ in 0..2 {
        reader.unpin(of_b, pinned).unwrap();
    }
    let again = reader.unpin(of_b, pinned).unwrap_err().to_string();
    assert!(again.contains("is not pinned by this client"), "{again}");
    let third = reader.pin(of_b, None).unwrap();
    assert!(third > second, "an ended pin makes room");
}

/// Tables of one group are of one version, while ticks replace it. A pinned version stays as it was until
/// its pin ends; no tick waits for it.
#[test]
fn groups_are_of_one_version_and_pins_hold() {
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 1, 2, 1);
        let ranges = |name, versions| {
            let table = TableBuilder::range::<i64>(name, GROUP_ELEMENTS as u64, 1);
            let table = table.block_bytes(4096).partitions(2).versions(versions);
            table.at_clock(Reduce::Sum).snapshot()
        };
        let mut writer = cluster.client(0, SyncMode::Bsp);
        let a = writer.create_table::<i64>(ranges("a", 2).spec()).unwrap();
        let b = writer.create_table::<i64>(ranges("b", 4).spec()).unwrap();
        let mut reader = cluster.client(0, SyncMode::Asp);
        let [of_a, of_b] = ["a", "b"].map(|name| reader.open_table::<i64>(name).unwrap());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                write_until(&done, &mut writer, [&a, &b]);
            });
            // Also when the reader fails.
            let _done = Done(&done);
            let options = PullOptions::default();
            let (mut x, mut y) = (vec![0; GROUP_ELEMENTS], vec![0; 200]);
            let pinned = reader.pin(&of_b, None).unwrap();
            let is_version = |x: &[i64], version: u64| {
                let (all, half) = (version as i64, version as i64 / 2);
                x[..100].iter().all(|&x| x == all) && x[100..].iter().all(|&x| x == half)
            };
            for _ in 0..20 {
                let mut group = [
                    GroupRange::new(&of_a, 0, &mut x),
                    GroupRange::new(&of_b, 0, &mut y),
                ];
                let version = reader
                    .pull_group(&mut group, options)
                    .unwrap()
                    .version
                    .unwrap();
                assert!(
                    is_version(&x, version),
                    "{transport}: table a at version {version}"
                );
                assert!(
                    is_version(&y, version),
                    "{transport}: table b at version {version}"
                );
                let pulled = reader
                    .pull_pinned(&of_b, pinned, 0, &mut x, options)
                    .unwrap();
                assert_eq!(pulled.version, Some(pinned));
                assert!(
                    is_version(&x, pinned),
                    "{transport}: pinned version {pinned}"
                );
                reader
                    .wait_newer(&of_a, version, Duration::from_secs(60))
                    .unwrap();
            }
            refuse_pins(&mut reader, (&of_a, &of_b), pinned);
        });
    }
}

/// Stops the second applier of the only server until the returned sender is dropped. Pushes to the second partition of
/// a table until the applier leaves no room for a frame.
fn stop_second(
    cluster: &Cluster,
    client: &mut Client,
    table: &Table<i64>,
) -> std::sync::mpsc::Sender<()> {
    // So far the ring has had an odd number of lines of 64 bytes: one for each PIN and UNPIN. Three more are even, as
    // those of the frames below.
    let first = GROUP_ELEMENTS as u64 - 1_000;
    let ticket = client.push_range(table, first, &[1; 9], PushOp::Sum);
    client.wait_applied(&ticket.unwrap()).unwrap();
    let (holds, released) = std::sync::mpsc::channel::<()>();
    let (tx, stopped) = std::sync::mpsc::channel();
    let wait = Command::With(Box::new(move |_| {
        tx.send(()).unwrap();
        assert!(released.recv().is_err(), "nothing is sent");
    }));
    cluster.servers[0].applier(1).send(wait).unwrap();
    stopped.recv().unwrap();
    client.set_timeout(Duration::from_millis(100));
    // The short ones take what a long one leaves.
    for len in [1_000, 1] {
        let late = loop {
            match client.push_range(table, first, &vec![1; len], PushOp::Sum) {
                Ok(_) => {}
                Err(e) => break e,
            }
        };
        assert!(matches!(late, ClientError::Deadline { .. }), "{late}");
    }
    holds
}

/// An `unpin` or `pin` that fails at its deadline has sent the end of the pin to some appliers: no pull reads the
/// version then, and a later call sends the other ends. A pin after it holds.
#[test]
fn failed_unpin_ends_reads() {
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 1, 2, 1);
        let ranges = TableBuilder::range::<i64>("b", GROUP_ELEMENTS as u64, 1);
        let ranges = ranges.block_bytes(4096).partitions(2).versions(3);
        let ranges = ranges.at_clock(Reduce::Sum).snapshot();
        let other = TableBuilder::range::<i64>("other", GROUP_ELEMENTS as u64, 1);
        let other = other.block_bytes(4096).partitions(2);
        let mut client = cluster.client(0, SyncMode::Bsp);
        let table = client.create_table::<i64>(ranges.spec()).unwrap();
        let other = client.create_table::<i64>(other.spec()).unwrap();
        let (options, long) = (PullOptions::default(), Duration::from_secs(60));
        let mut out = vec![0; GROUP_ELEMENTS];
        let is_unpinned = |e: ClientError| e.to_string().contains("is not pinned by this client");

        let pinned = client.pin(&table, None).unwrap();
        let holds = stop_second(&cluster, &mut client, &other);
        let late = client.unpin(&table, pinned).unwrap_err();
        assert!(matches!(late, ClientError::Deadline { .. }), "{late}");
        let ended = client.pull_pinned(&table, pinned, 0, &mut out, options);
        assert!(is_unpinned(ended.unwrap_err()), "{transport}");
        drop(holds);
        client.set_timeout(long);
        assert_eq!(client.pin(&table, Some(pinned)).unwrap(), pinned);
        let pulled = client.pull_pinned(&table, pinned, 0, &mut out, options);
        assert_eq!(pulled.unwrap().version, Some(pinned));
        client.unpin(&table, pinned).unwrap();
        let again = client.unpin(&table, pinned).unwrap_err();
        assert!(is_unpinned(again), "{transport}");

        // One version can be pinned: of a pin that fails nothing stays.
        let holds = stop_second(&cluster, &mut client, &other);
        let late = client.pin(&table, Some(pinned)).unwrap_err();
        assert!(matches!(late, ClientError::Deadline { .. }), "{late}");
        let ended = client.pull_pinned(&table, pinned, 0, &mut out, options);
        assert!(is_unpinned(ended.unwrap_err()), "{transport}");
        drop(holds);
        client.set_timeout(long);
        client.unpin(&table, pinned).unwrap();
        client.tick().unwrap();
        let next = client.wait_newer(&table, pinned, long).unwrap();
        assert_eq!(client.pin(&table, None).unwrap(), next);
        client
            .pull_pinned(&table, next, 0, &mut out, options)
            .unwrap();
    }
}

#[test]
fn who_leaves_is_waited_for_no_more_and_who_is_missing_is_named() {
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 2, 1, 3);
        let mut clients: Vec<Client> = (0..3)
            .map(|r| cluster.client(r, SyncMode::Ssp(1)))
            .collect();
        for _ in 0..2 {
            for client in &mut clients {
                client.tick().unwrap();
            }
        }
        // Worker 1 stays at clock 2.
        clients[2].tick().unwrap();
        clients[0].tick().unwrap();
        clients[2].tick().unwrap();
        clients[0].set_clock_timeout(Duration::from_millis(200));
        clients[0].tick().unwrap();
        let error = clients[0].tick().unwrap_err().to_string();
        assert!(error.contains("worker 1, at clock 2"), "{error}");
        // Worker 1 finishes in order: the others continue, the failed call is repeated.
        clients[1].finish().unwrap();
        clients[0].tick().unwrap();
        clients[0].tick().unwrap();
        assert_eq!(clients[0].clock(), 6, "{transport}");
        let error = clients[0].tick().unwrap_err().to_string();
        assert!(error.contains("worker 2, at clock 4"), "{error}");
        // Worker 2 dies.
        for server in cluster.servers.iter() {
            let job = NamespaceId::default();
            let gone = |tx| Command::RemoveWorker(job, WorkerId(2), tx);
            server.applier(0).ask(gone).unwrap();
        }
        for _ in 0..10 {
            clients[0].tick().unwrap();
        }
        assert_eq!(clients[0].clock(), 16, "{transport}");
    }
}

/// Median of some times, in us.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

const ROUNDS: usize = 500;
/// Pause before each call: the other thread is asleep after it.
const APART: Duration = Duration::from_millis(2);

/// Time from the start of `act(n)` to the return of `wake(n)` on another thread, which sleeps: median in us.
fn one_way(mut act: impl FnMut(usize), wake: impl FnMut(usize) + Send) -> f64 {
    let (begun, woken) = std::sync::mpsc::channel();
    let mut wake = wake;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0..ROUNDS {
                wake(n);
                begun.send(clock::now()).unwrap();
            }
        });
        let times = (0..ROUNDS).map(|n| {
            std::thread::sleep(APART);
            let start = clock::now();
            act(n);
            woken.recv().unwrap() - start
        });
        median(times.collect())
    })
}

/// `wait_newer` against a futex (shm) and sockets (tcp) in one run. A tick wakes the applier, which wakes the
/// reader: two wake-ups, as an echo has.
#[test]
#[ignore = "measures: --ignored --nocapture measure_wait_newer"]
fn measure_wait_newer() {
    let word = AtomicU64::new(0);
    let (hand, thread) = std::sync::mpsc::channel();
    let mut sleeper = None;
    let futex = one_way(
        |n| {
            let thread: &std::thread::Thread =
                sleeper.get_or_insert_with(|| thread.recv().unwrap());
            word.store(n as u64 + 1, Ordering::SeqCst);
            thread.unpark();
        },
        |n| {
            if n == 0 {
                hand.send(std::thread::current()).unwrap();
            }
            while word.load(Ordering::SeqCst) <= n as u64 {
                std::thread::park();
            }
        },
    );
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let echo = std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut line = [0; 64];
            while far.read_exact(&mut line).is_ok() {
                far.write_all(&line).unwrap();
            }
        });
        let mut reader = near.try_clone().unwrap();
        let echo = one_way(
            |_| near.write_all(&[7; 64]).unwrap(),
            |_| reader.read_exact(&mut [0; 64]).unwrap(),
        );
        near.shutdown(std::net::Shutdown::Both).unwrap();
        echo
    });
    println!("futex {futex:.1} us one way, tcp echo {echo:.1} us (p50)");
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 1, 1, 1);
        let mut writer = cluster.client(0, SyncMode::Asp);
        let table = TableBuilder::rows::<i64>("t", 1, 1);
        writer.create_table::<i64>(table.spec()).unwrap();
        let mut reader = cluster.client(0, SyncMode::Asp);
        let table = reader.open_table::<i64>("t").unwrap();
        let newer = one_way(
            |_| writer.tick().unwrap(),
            |n| {
                let newest = reader.wait_newer(&table, n as u64, Duration::from_secs(60));
                assert!(newest.unwrap() > n as u64);
            },
        );
        let (what, base) = match transport {
            Shm => ("two futex wake-ups", 2.0 * futex),
            _ => ("the echo", echo),
        };
        println!(
            "{transport}: wait_newer {newer:.1} us (p50), {:.2} of {what}",
            newer / base
        );
    }
}

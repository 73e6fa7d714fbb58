//! Torn rows. Every push adds the same number to all elements of a row, so a row with different
//! elements mixes two versions. Under writers at full speed none is ever accepted.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

use std::sync::Barrier;
use std::time::Duration;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::delays;
use tidewater_runtime::sync::{AtomicBool, AtomicU32, Ordering};

use tidewater::{Client, Counters, PullOptions, SyncMode, TableBuilder};
use tidewater_lanes::fabric::TransportKind::{self, Shm, Tcp, Verbs};
use tidewater_protocol::table::PushOp;
use tidewater_testkit::faults::{Rng, full, seed};
use tidewater_testkit::threads::Cluster;

const WRITERS: u32 = 1;
const READERS: u32 = 2;
/// Number of rows: few enough that reads meet writes in progress.
const ROWS: u64 = 64;
/// Rows of one pull: every hot row many times, so that a call costs little per row.
const BATCH: usize = 1_024;

/// Counts of the readers of one width.
#[derive(Debug, Default)]
struct Seen {
    reads: u64,
    rejected: u64,
    gathered: u64,
}

impl Seen {
    fn add(&mut self, reads: u64, c: &Counters) {
        self.reads += reads;
        self.rejected += c.torn_rejected;
        self.gathered += c.rows_gathered;
    }
}

/// Adds ones to random rows until `until` is set.
fn write(cluster: &Cluster, rank: u32, table: &TableBuilder, until: &AtomicU32, ready: &Barrier) {
    let mut client = cluster.client(rank, SyncMode::Asp);
    let table = client.create_table::<f32>(table.spec()).unwrap();
    let mut rng = Rng(seed() ^ u64::from(rank));
    let keys: Vec<u64> = (0..ROWS).collect();
    let ones = vec![1.0; keys.len() * table.dim()];
    let mut pushed = client.push_rows(&table, &keys, &ones, PushOp::Sum).unwrap();
    client.wait_applied(&pushed).unwrap();
    ready.wait();
    while until.load(Ordering::Acquire) > 0 {
        let n = 1 + rng.below(16) as usize;
        let first = rng.below(ROWS - n as u64) as usize;
        let ones = &ones[..n * table.dim()];
        pushed = client
            .push_rows(&table, &keys[first..first + n], ones, PushOp::Sum)
            .unwrap();
    }
    client.wait_applied(&pushed).unwrap();
}

/// Pulls until `reads` rows were seen; each must be one version, and no older than the one before.
fn read(cluster: &Cluster, rank: u32, reads: u64) -> Counters {
    let mut client = cluster.client(rank, SyncMode::Asp);
    let table = client.open_table::<f32>("t").unwrap();
    let mut rng = Rng(seed() ^ u64::from(rank) << 20);
    let dim = table.dim();
    let batch = BATCH.min((4 << 20) / (dim * 4));
    // Half of the readers have their rows written by the NIC, if there is one.
    let mut plain = vec![0f32; batch * dim];
    let mut registered = client.buffer::<f32>(batch * dim).unwrap();
    let out = match rank % 2 {
        0 => &mut plain[..],
        _ => &mut registered[..],
    };
    let mut newest = [0f32; ROWS as usize];
    let mut seen = 0;
    while seen < reads {
        let keys: Vec<u64> = (0..batch).map(|_| rng.below(ROWS)).collect();
        client
            .pull_rows(&table, &keys, out, PullOptions::default())
            .unwrap();
        let before = newest;
        for (&key, row) in keys.iter().zip(out.chunks_exact(dim)) {
            let first = row[0];
            let odd = row
                .iter()
                .filter(|v| v.to_bits() != first.to_bits())
                .count();
            assert_eq!(odd, 0, "row {key}: {odd} of {dim} elements are not {first}");
            let last = before[key as usize];
            assert!(first >= last, "row {key} went from {last} back to {first}");
            newest[key as usize] = newest[key as usize].max(first);
        }
        seen += batch as u64;
    }
    *client.counters()
}

/// Reads `reads` rows in total, divided among the readers.
fn rows(transport: TransportKind, table: &TableBuilder, reads: u64) -> Seen {
    let cluster = Cluster::start(transport, 1, 2, WRITERS + READERS);
    let (reading, ready) = (
        AtomicU32::new(READERS),
        Barrier::new((WRITERS + READERS) as usize),
    );
    let mut seen = Seen::default();
    std::thread::scope(|scope| {
        for rank in 0..WRITERS {
            let (cluster, reading, ready) = (&cluster, &reading, &ready);
            scope.spawn(move || write(cluster, rank, table, reading, ready));
        }
        let reader = |rank: u32| {
            let (cluster, reading, ready) = (&cluster, &reading, &ready);
            scope.spawn(move || {
                ready.wait();
                // Also after a torn row: the writer must end, or the test hangs.
                let _last = OnDrop(reading);
                read(cluster, WRITERS + rank, reads / u64::from(READERS))
            })
        };
        let readers: Vec<_> = (0..READERS).map(reader).collect();
        for reader in readers {
            let counters = reader.join().expect("no row is torn");
            seen.add(reads / u64::from(READERS), &counters);
        }
    });
    seen
}

struct OnDrop<'a>(&'a AtomicU32);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Runs all widths, sparse and dense: each width must meet writes in progress. A write pauses in its
/// middle, so that half of the reads of a hot row meet it.
fn widths(transport: TransportKind, millions: [u64; 3]) -> Seen {
    delays::set_write_pause(Duration::from_micros(5));
    let mut all = Seen::default();
    for (dim, reads) in [16, 64, 1_024].into_iter().zip(millions) {
        let reads = if full() { reads * 20 } else { reads };
        for table in [
            TableBuilder::sparse::<f32>("t", dim),
            TableBuilder::rows::<f32>("t", ROWS, dim),
        ] {
            let seen = rows(transport, &table, reads / 2);
            println!("{transport}, dim {dim}: {seen:?}, accepted torn: 0");
            // Reads that the server answers in the reader's place test nothing: at most a tenth.
            assert!(
                seen.gathered <= seen.reads / 10,
                "{transport}, dim {dim}: the server gathered too many: {seen:?}"
            );
            assert!(
                transport == Tcp || seen.rejected > 0,
                "{transport}, dim {dim}: no read met a write, so nothing was tested: {seen:?}"
            );
            all.reads += seen.reads;
            all.rejected += seen.rejected;
        }
    }
    println!(
        "{transport}: {} reads, {} rejected",
        all.reads, all.rejected
    );
    all
}

#[test]
fn no_torn_row_is_accepted_on_shm() {
    let seen = widths(Shm, [9_000_000, 1_000_000, 200_000]);
    assert!(seen.reads >= 10_000_000, "{seen:?}");
}

/// The applier that answers also writes, and does one thing at a time. Only rows that the kernel sends
/// from registered memory in pieces can be torn on their way. (10^7 rows take minutes on two cores with
/// a writer at full speed: these counts are for the larger run.)
#[test]
fn no_torn_row_is_accepted_on_tcp() {
    let seen = widths(Tcp, [400_000, 100_000, 50_000]);
    assert!(seen.reads >= 500_000, "{seen:?}");
}

/// The counts are for the emulated NIC of a guest.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn no_torn_row_is_accepted_on_verbs() {
    let seen = widths(Verbs, [80_000, 80_000, 48_000]);
    assert!(seen.reads >= 200_000, "{seen:?}");
}

#[test]
fn no_torn_block_is_accepted() {
    no_block_is_torn(&[Shm, Tcp]);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn no_torn_block_is_accepted_on_verbs() {
    no_block_is_torn(&[Verbs]);
}

/// The same for ranges: all elements within a block are of one version.
fn no_block_is_torn(transports: &[TransportKind]) {
    const BLOCK: usize = 1_024;
    const BLOCKS: usize = 40;
    for &transport in transports {
        let cluster = Cluster::start(transport, 1, 2, 2);
        let done = AtomicBool::new(false);
        let mut writer = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::range::<f32>("t", (BLOCKS * BLOCK) as u64, 1).block_bytes(4096);
        let table = writer.create_table::<f32>(spec.spec()).unwrap();
        let mut reader = cluster.client(1, SyncMode::Asp);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rng = Rng(seed());
                let ones = vec![1f32; BLOCK * 4];
                while !done.load(Ordering::Acquire) {
                    let first = rng.below(BLOCKS as u64 - 4) * BLOCK as u64;
                    let pushed = writer.push_range(&table, first, &ones, PushOp::Sum);
                    drop(pushed.unwrap());
                }
                writer.flush().unwrap();
            });
            let theirs = reader.open_table::<f32>("t").unwrap();
            let mut plain = vec![0f32; BLOCKS * BLOCK];
            let mut registered = reader.buffer::<f32>(BLOCKS * BLOCK).unwrap();
            let pulls = match (full(), transport) {
                (true, _) => 100_000,
                (_, Tcp | Verbs) => 400,
                _ => 4_000,
            };
            let mut torn = 0;
            // A busy machine may run reader and writer in turns: the reads go on until one met a write.
            // Over TCP the applier that answers also writes.
            let until = Deadline::after(Duration::from_secs(120));
            let met = |reader: &Client| transport == Tcp || reader.counters().torn_rejected > 0;
            for n in 0.. {
                if n >= pulls && (met(&reader) || until.passed()) {
                    break;
                }
                let out = match n % 2 {
                    0 => &mut plain[..],
                    _ => &mut registered[..],
                };
                // Every third one is finished later.
                match n % 3 {
                    0 => {
                        let len = BLOCKS * BLOCK;
                        let pull = reader.start_pull_range(&theirs, 0, len, PullOptions::default());
                        reader.finish_pull(pull.unwrap(), out).unwrap();
                    }
                    _ => {
                        let pulled = reader.pull_range(&theirs, 0, out, PullOptions::default());
                        pulled.unwrap();
                    }
                }
                let mixed = |block: &&[f32]| block.iter().any(|v| *v != block[0]);
                torn += out.chunks(BLOCK).filter(mixed).count();
            }
            done.store(true, Ordering::Release);
            assert_eq!(torn, 0, "{transport}: torn blocks were accepted");
        });
        let c = reader.counters();
        println!(
            "{transport}: {} blocks, {} rejected, accepted torn: 0",
            c.blocks_consistent, c.torn_rejected
        );
        assert!(
            transport == Tcp || c.torn_rejected > 0,
            "nothing was tested"
        );
    }
}

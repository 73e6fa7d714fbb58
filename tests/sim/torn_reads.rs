//! Torn reads: a row or block with parts of two versions is never accepted.

use std::sync::Arc;
use std::time::Duration;

use tidewater::{PullOptions, SyncMode, TableBuilder};
use tidewater_lanes::here;
use tidewater_lanes::sim::{Outcome, sweep};
use tidewater_protocol::table::PushOp;
use tidewater_runtime::sync::{AtomicU64, Ordering};

use tidewater_testkit::sim::{LONG, Rig, Shape, faults, open};

/// Rows of 200 bytes: four to five lines.
const DIM: usize = 25;
const KEYS: u64 = 3;
/// Two blocks of 4 KiB in each of two partitions.
const BLOCK: usize = 512;
const BLOCKS: usize = 4;
const ROUNDS: u64 = 40;

fn write(rig: &Rig, rank: u32, mut rng: tidewater_lanes::sim::Rng) {
    let mut client = rig.client(rank, 0, SyncMode::Asp);
    let rows = open::<i64>(&mut client, "rows");
    let sparse = open::<i64>(&mut client, "sparse");
    let blocks = open::<i64>(&mut client, "blocks");
    for n in 0..3 * ROUNDS {
        let value = (n * 3 + u64::from(rank)) as i64 * 0x0101_0101_0101;
        let key = rng.below(KEYS);
        let sent = match rng.below(3) {
            0 => client.push_rows(&rows, &[key], &[value; DIM], PushOp::Assign),
            1 => client.push_rows(&sparse, &[key], &[value; DIM], PushOp::Assign),
            _ => {
                let first = rng.below(BLOCKS as u64) * BLOCK as u64;
                client.push_range(&blocks, first, &[value; BLOCK], PushOp::Assign)
            }
        };
        let ticket = sent.unwrap();
        if rng.below(4) == 0 {
            client.wait_applied(&ticket).unwrap();
        }
        rig.world.pause(Duration::from_micros(rng.below(40)));
    }
    client.flush().unwrap();
}

fn one_version(what: &str, values: &[i64]) {
    let mixed = values.iter().position(|v| *v != values[0]);
    assert_eq!(mixed, None, "{what} mixes versions: {values:?}");
}

fn blocks_of_one_version(what: &str, range: &[i64]) {
    for block in range.chunks_exact(BLOCK) {
        one_version(what, block);
    }
}

fn read(rig: &Rig, rank: u32, rejected: &AtomicU64) {
    let mut client = rig.client(rank, 0, SyncMode::Asp);
    let rows = open::<i64>(&mut client, "rows");
    let sparse = open::<i64>(&mut client, "sparse");
    let blocks = open::<i64>(&mut client, "blocks");
    let options = PullOptions {
        timeout: LONG,
        ..PullOptions::default()
    };
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut out = vec![0i64; KEYS as usize * DIM];
    let mut range = vec![0i64; BLOCKS * BLOCK];
    for _ in 0..ROUNDS {
        for table in [&rows, &sparse] {
            client.pull_rows(table, &keys, &mut out, options).unwrap();
            for row in out.chunks_exact(DIM) {
                one_version("a row", row);
            }
        }
        client.pull_range(&blocks, 0, &mut range, options).unwrap();
        blocks_of_one_version("a block", &range);
        let later = client.start_pull_range(&blocks, 0, BLOCKS * BLOCK, options);
        client.pull_rows(&rows, &keys, &mut out, options).unwrap();
        range.fill(0);
        client.finish_pull(later.unwrap(), &mut range).unwrap();
        blocks_of_one_version("a block that came later", &range);
    }
    let c = client.counters();
    rejected.fetch_add(c.torn_rejected, Ordering::Relaxed);
}

fn world(seed: u64, rejected: &Arc<AtomicU64>) -> Outcome {
    let rows = TableBuilder::rows::<i64>("rows", KEYS, DIM as u32).partitions(1);
    let sparse = TableBuilder::sparse::<i64>("sparse", DIM as u32).partitions(2);
    let blocks = TableBuilder::range::<i64>("blocks", BLOCKS as u64, BLOCK as u32)
        .block_bytes(4096)
        .partitions(2);
    let shape = Shape {
        servers: 1,
        appliers: 2,
        workers: 3,
        ring_bytes: 32 << 10,
    };
    let tables = [rows.spec(), sparse.spec(), blocks.spec()];
    let rig = Rig::new(seed, faults(seed), shape, &tables);
    for rank in 0..2 {
        rig.spawn("writer", move |rig, rng| write(rig, rank, rng));
    }
    let rejected = Arc::clone(rejected);
    rig.spawn("reader", move |rig, _| read(rig, 2, &rejected));
    rig.world.run()
}

#[test]
fn no_torn_row_or_block_is_accepted() {
    let rejected = Arc::new(AtomicU64::new(0));
    let swept = sweep(here!(), 0..200, |seed| world(seed, &rejected));
    let rejected = rejected.load(Ordering::Relaxed);
    println!("{swept:?}; torn: accepted 0, rejected {rejected}");
    assert!(
        swept.seeds < 20 || rejected > 0,
        "the adversary tore nothing"
    );
}

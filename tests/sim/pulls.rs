//! The storm of pulls in the simulator: reads are placed in the caller's memory there too, while other
//! parts of the same pull are late.

use std::sync::{Arc, Mutex};

use tidewater::{SyncMode, TableBuilder};
use tidewater_lanes::here;
use tidewater_lanes::sim::{Outcome, sweep};

use crate::storm::{DIM, Seen, Storm};
use tidewater_testkit::sim::{LONG, Rig, Shape, faults, open};

const KEYS: u64 = 40;
const ROUNDS: u64 = 120;
const HURRY_US: u64 = 400;

fn world(seed: u64, seen: &Arc<Mutex<Seen>>) -> Outcome {
    let table = TableBuilder::sparse::<i64>("t", DIM as u32).partitions(4);
    let shape = Shape {
        servers: 2,
        appliers: 2,
        workers: 2,
        ring_bytes: 16 << 10,
    };
    let rig = Rig::new(seed, faults(seed), shape, &[table.spec()]);
    for rank in 0..2 {
        let seen = Arc::clone(seen);
        rig.spawn(&format!("worker {rank}"), move |rig, mut rng| {
            let mut client = rig.client(rank, 0, SyncMode::Asp);
            let table = open(&mut client, "t");
            let mut below = |n| rng.below(n);
            let mut storm = Storm::new(client, table, (KEYS, HURRY_US), LONG, &mut below);
            storm.run(ROUNDS);
            seen.lock().unwrap().add(storm.seen);
        });
    }
    rig.world.run()
}

#[test]
fn late_pulls_finish_into_another_buffer() {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let swept = sweep(here!(), 0..200, |seed| world(seed, &seen));
    let seen = *seen.lock().unwrap();
    println!("{swept:?}; {seen:?}");
    if swept.seeds >= 20 {
        assert!(seen.finished_again > swept.seeds, "{seen:?}");
        assert!(seen.late > swept.seeds && seen.cancelled > 0, "{seen:?}");
    }
}

//! Collective calls over lanes that fail: each worker receives the values of its own call.

use std::time::Duration;

use tidewater::{ReduceOp, SyncMode, TableBuilder};
use tidewater_lanes::here;
use tidewater_lanes::sim::{Outcome, sweep};

use crate::simrig::{Rig, Shape, faults};

const WORKERS: u32 = 3;
const CALLS: i64 = 12;
/// Elements of a call of three rounds.
const MANY: usize = 5_000;

fn world(seed: u64) -> Outcome {
    // The tables of the calls, which this rig cannot create later.
    let of = |name, rows, words| TableBuilder::rows::<i64>(name, rows, words);
    let workers = u64::from(WORKERS);
    let first = of("tidewater/collective", 2 * workers, 64).partitions(1);
    let further = of("tidewater/collective-parts", 32 * workers, 256);
    let shape = Shape {
        servers: 2,
        appliers: 1,
        workers: WORKERS,
        ring_bytes: 32 << 10,
    };
    let rig = Rig::new(seed, faults(seed), shape, &[first.spec(), further.spec()]);
    for rank in 0..WORKERS {
        rig.spawn(&format!("worker {rank}"), move |rig, mut rng| {
            let mut client = rig.client(rank, 0, SyncMode::Ssp(1));
            for call in 0..CALLS {
                rig.world.pause(Duration::from_micros(rng.below(500)));
                let of = |rank: u32| i64::from(rank) << 32 | call;
                let all = client.all_gather(&[of(rank)]).unwrap();
                assert_eq!(all, [of(0), of(1), of(2)], "call {call} of worker {rank}");
                if call % 4 != 0 {
                    continue;
                }
                let mut sum = vec![of(rank); MANY];
                client.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, vec![(3 << 32) + 3 * call; MANY], "call {call}");
                let mut of_one = vec![of(rank); MANY];
                client.broadcast(1, &mut of_one).unwrap();
                assert_eq!(of_one, vec![of(1); MANY], "call {call}");
            }
            client.finish().unwrap();
        });
    }
    rig.world.run()
}

#[test]
fn calls_never_mix_over_failing_lanes() {
    let swept = sweep(here!(), 0..60, world);
    println!("{swept:?}");
}

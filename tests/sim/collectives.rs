//! Collective calls over lanes that fail: each worker receives the values of its own call.

use std::sync::Arc;
use std::time::Duration;

use tidewater::{ClientError, ReduceOp, SyncMode, TableBuilder};
use tidewater_lanes::here;
use tidewater_lanes::sim::{Outcome, sweep};
use tidewater_runtime::sync::{AtomicU64, Ordering};

use tidewater_testkit::sim::{Rig, Shape, faults};

const WORKERS: u32 = 3;
const CALLS: i64 = 12;
/// Elements of a call of three rounds.
const MANY: usize = 5_000;

/// Makes a call until it meets no deadline; counts the repetitions.
fn repeated<T>(late: &AtomicU64, mut call: impl FnMut() -> Result<T, ClientError>) -> T {
    loop {
        match call() {
            Err(ClientError::Deadline { .. }) => late.fetch_add(1, Ordering::Relaxed),
            result => return result.unwrap(),
        };
    }
}

fn world(seed: u64, late_one_in: u64, late: &Arc<AtomicU64>) -> Outcome {
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
    rig.late_one_in.store(late_one_in, Ordering::Relaxed);
    for rank in 0..WORKERS {
        let late = Arc::clone(late);
        rig.spawn(&format!("worker {rank}"), move |rig, mut rng| {
            let mut client = rig.client(rank, 0, SyncMode::Ssp(1));
            for call in 0..CALLS {
                rig.world.pause(Duration::from_micros(rng.below(500)));
                let of = |rank: u32| i64::from(rank) << 32 | call;
                let all = repeated(&late, || client.all_gather(&[of(rank)]));
                assert_eq!(all, [of(0), of(1), of(2)], "call {call} of worker {rank}");
                if call % 4 != 0 {
                    continue;
                }
                let element = |rank: u32, n: usize| of(rank) + ((n as i64) << 8);
                let mine: Vec<i64> = (0..MANY).map(|n| element(rank, n)).collect();
                let sum = repeated(&late, || {
                    let mut sum = mine.clone();
                    client.all_reduce(&mut sum, ReduceOp::Sum).map(|()| sum)
                });
                let sums = (0..MANY).map(|n| (0..WORKERS).map(|rank| element(rank, n)).sum());
                assert_eq!(sum, sums.collect::<Vec<i64>>(), "call {call}");
                let of_one = repeated(&late, || {
                    let mut of_one = vec![of(rank); MANY];
                    client.broadcast(1, &mut of_one).map(|()| of_one)
                });
                assert_eq!(of_one, vec![of(1); MANY], "call {call}");
            }
            client.finish().unwrap();
        });
    }
    rig.world.run()
}

#[test]
fn calls_never_mix_over_failing_lanes() {
    let late = Arc::default();
    let swept = sweep(here!(), 0..60, |seed| world(seed, 0, &late));
    println!("{swept:?}");
    assert_eq!(late.load(Ordering::Relaxed), 0);
}

/// A call that meets a deadline in any of its rounds is repeated, and continues at that round.
#[test]
fn late_calls_continue_at_their_round() {
    let late = Arc::default();
    let swept = sweep(here!(), 0..40, |seed| world(seed, 4, &late));
    let late = late.load(Ordering::Relaxed);
    println!("{swept:?}, {late} repetitions");
    assert!(late >= swept.seeds, "{late} repetitions");
}

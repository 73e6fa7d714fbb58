//! Collective calls: all workers receive one result, whatever their speed, their clocks and the servers.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

use std::time::Duration;

use tidewater::{
    Client, ClientError, CollectiveError, Element, Job, JoinOptions, PullOptions, PushOp, Reduce,
    ReduceOp, SyncMode, TableBuilder, TransportChoice,
};
use tidewater_lanes::fabric::TransportKind;
use tidewater_protocol::ids::WorkerId;
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::limits::COLLECTIVE_BYTES_MAX;
use tidewater_protocol::table::DType;
use tidewater_service::coordinator::LostWorker;
use tidewater_service::embedded::ClusterConfig;

/// Longer than any operation here takes on a busy machine.
const LONG: Duration = Duration::from_secs(40);

/// Starts a cluster that goes on without lost workers. Three servers are reached over TCP, fewer over
/// shared memory.
fn cluster(servers: u32, workers: u32) -> Job {
    let transport = match servers {
        3 => TransportChoice::Tcp,
        _ => TransportChoice::Shm,
    };
    let config = ClusterConfig {
        servers,
        workers,
        transport,
        on_lost: LostWorker::GoOn,
        ..ClusterConfig::default()
    };
    JoinOptions::from(config)
        .join()
        .unwrap()
        .into_job()
        .unwrap()
}

/// Runs `work` at every worker, each on its own thread, and returns the results in rank order.
fn each<T: Send>(
    cluster: &Job,
    workers: u32,
    sync: SyncMode,
    work: impl Fn(&mut Client) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..workers)
            .map(|rank| {
                let mut client = cluster.client_of(rank, sync).unwrap();
                client.set_clock_timeout(LONG);
                scope.spawn(move || work(&mut client))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// A value of worker `rank` in a call. Of very different magnitudes, so that the order of a sum shows.
fn value(rank: u32, call: u64, n: usize) -> f64 {
    let bits = mix64(u64::from(rank) << 48 ^ call << 24 ^ n as u64);
    let mantissa = (bits >> 12) as f64 / (1u64 << 52) as f64 - 0.5;
    mantissa * f64::from(2.0f32.powi((bits % 80) as i32 - 40))
}

type Folds<'a, T> = &'a [(ReduceOp, fn(T, T) -> T)];

/// Checks the three calls for values of one type against a fold over `values(rank)`.
fn check<T: Element + std::fmt::Debug>(
    client: &mut Client,
    values: impl Fn(u32) -> Vec<T>,
    folds: Folds<'_, T>,
) {
    let workers = client.workers();
    let mine = values(client.rank().0);
    let all: Vec<T> = (0..workers).flat_map(&values).collect();
    assert_eq!(bytes_of(&client.all_gather(&mine).unwrap()), bytes_of(&all));
    for &(op, fold) in folds {
        let mut expected = values(0);
        for rank in 1..workers {
            let row = values(rank);
            expected
                .iter_mut()
                .zip(row)
                .for_each(|(a, b)| *a = fold(*a, b));
        }
        let mut reduced = mine.clone();
        client.all_reduce(&mut reduced, op).unwrap();
        assert_eq!(
            bytes_of(&reduced),
            bytes_of(&expected),
            "{op:?} of {workers}"
        );
    }
    for root in 0..workers {
        let mut received = mine.clone();
        client.broadcast(root, &mut received).unwrap();
        assert_eq!(bytes_of(&received), bytes_of(&values(root)), "from {root}");
    }
}

fn bytes_of<T: Element>(values: &[T]) -> Vec<u8> {
    values.iter().flat_map(|v| v.as_bytes().to_vec()).collect()
}

/// Checks the calls with `len` elements of every type.
fn check_types(client: &mut Client, len: usize) {
    let wide = |rank| (0..len).map(move |n| value(rank, len as u64, n));
    let sum = |a, b| a + b;
    let floats: Folds<'_, f64> = &[
        (ReduceOp::Sum, sum),
        (ReduceOp::Min, f64::min),
        (ReduceOp::Max, f64::max),
        (ReduceOp::Product, |a, b| a * b),
    ];
    check(client, |rank| wide(rank).collect(), floats);
    let narrow: Folds<'_, f32> = &[
        (ReduceOp::Sum, |a, b| a + b),
        (ReduceOp::Min, f32::min),
        (ReduceOp::Max, f32::max),
        (ReduceOp::Product, |a, b| a * b),
    ];
    check(
        client,
        |rank| wide(rank).map(|v| v as f32).collect(),
        narrow,
    );
    let integers: Folds<'_, i64> = &[
        (ReduceOp::Sum, i64::wrapping_add),
        (ReduceOp::Min, Ord::min),
        (ReduceOp::Max, Ord::max),
        (ReduceOp::Product, i64::wrapping_mul),
        (ReduceOp::BitAnd, |a, b| a & b),
        (ReduceOp::BitOr, |a, b| a | b),
        (ReduceOp::BitXor, |a, b| a ^ b),
    ];
    let bits = |v: f64| v.to_bits().cast_signed();
    check(client, |rank| wide(rank).map(bits).collect(), integers);
    let short: Folds<'_, i32> = &[
        (ReduceOp::Sum, i32::wrapping_add),
        (ReduceOp::Min, Ord::min),
        (ReduceOp::Max, Ord::max),
        (ReduceOp::Product, i32::wrapping_mul),
        (ReduceOp::BitAnd, |a, b| a & b),
        (ReduceOp::BitOr, |a, b| a | b),
        (ReduceOp::BitXor, |a, b| a ^ b),
    ];
    let bits = |v: f64| (v as f32).to_bits().cast_signed();
    check(client, |rank| wide(rank).map(bits).collect(), short);
}

/// Sums have the bits of a fold in rank order, on any number of servers; so have all other results.
#[test]
fn results_have_the_bits_of_a_fold() {
    let modes = [SyncMode::Bsp, SyncMode::Ssp(2), SyncMode::Asp];
    for servers in 1..=3 {
        for workers in 1..=5 {
            let cluster = cluster(servers, workers);
            let sync = modes[(servers + workers) as usize % 3];
            each(&cluster, workers, sync, |client| {
                for len in [0, 1, 60, 61, 300] {
                    check_types(client, len);
                }
                assert_eq!(client.clock(), 0);
                let over = client.transport().unwrap();
                assert_eq!(over == TransportKind::Tcp, servers == 3);
                client.finish().unwrap();
            });
        }
    }
}

/// The longest values travel in many rounds; a byte more is refused at every worker, and the next call
/// succeeds.
#[test]
fn longest_values_arrive_and_longer_fail() {
    const LEN: usize = COLLECTIVE_BYTES_MAX / 8;
    let cluster = cluster(2, 3);
    each(&cluster, 3, SyncMode::Asp, |client| {
        let of = |rank: u32| (0..LEN).map(|n| value(rank, 1, n)).collect::<Vec<f64>>();
        let mut sum = of(client.rank().0);
        client.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        let (a, b, c) = (of(0), of(1), of(2));
        let expected = |n: usize| ((a[n] + b[n]) + c[n]).to_bits();
        assert!((0..LEN).all(|n| sum[n].to_bits() == expected(n)));
        let error = client.all_gather(&vec![0i64; LEN + 1]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("1048584 bytes") && text.contains("1048576"),
            "{text}"
        );
        assert_eq!(client.all_gather(&[7i32]).unwrap(), [7; 3]);
    });
}

/// Workers of different speed, that tick apart and push between their calls, each receive the values of
/// the call that they make. The tables of the calls stay the same two.
#[test]
fn uneven_workers_never_mix_calls() {
    const CALLS: u64 = 400;
    const WORKERS: u32 = 4;
    let cluster = cluster(2, WORKERS);
    each(&cluster, WORKERS, SyncMode::Asp, |client| {
        let me = client.rank().0;
        let table = TableBuilder::sparse::<i64>("counts", 1);
        let table = client.create_table::<i64>(table.spec()).unwrap();
        for call in 0..CALLS {
            let chance = mix64(u64::from(me) << 32 | call);
            // A worker is now the fastest, now the slowest.
            if chance.is_multiple_of(7) {
                std::thread::sleep(Duration::from_micros(chance % 900));
            }
            if chance.is_multiple_of(3) {
                let _ = client
                    .push_rows(&table, &[chance % 100], &[1], PushOp::Sum)
                    .unwrap();
                client.tick().unwrap();
            }
            let of = |rank: u32| i64::from(rank) << 32 | call as i64;
            // The length is the same for all calls: nothing but its round identifies a row.
            let all = client.all_gather(&[of(me); 3]).unwrap();
            let expected: Vec<i64> = (0..WORKERS).flat_map(|rank| [of(rank); 3]).collect();
            assert_eq!(all, expected, "call {call}");
        }
        let counts = format!("{client:?}");
        assert!(counts.contains("tables: 2"), "{counts}");
        client.finish().unwrap();
    });
}

/// Floats have no bits to combine: each worker learns so, and the next call succeeds.
#[test]
fn bits_of_floats_are_refused() {
    let cluster = cluster(1, 2);
    each(&cluster, 2, SyncMode::Asp, |client| {
        for op in [ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor] {
            let mut values = [1.5f32; 3];
            let error = client.all_reduce(&mut values, op).unwrap_err();
            let is_it = matches!(
                error,
                ClientError::Collective {
                    source: CollectiveError::Bits { .. },
                    ..
                }
            );
            let text = error.to_string();
            assert!(
                is_it && text.contains("of f32: floats have no bits"),
                "{text}"
            );
            assert_eq!(values, [1.5; 3]);
        }
        let mut values = [1i64 << client.rank().0];
        client.all_reduce(&mut values, ReduceOp::BitOr).unwrap();
        assert_eq!(values, [3]);
    });
}

/// A call with another length, type, operation or root fails at every worker with the same text, which
/// names both; the next one succeeds.
#[test]
fn differing_calls_fail_everywhere() {
    let cluster = cluster(1, 3);
    let texts = each(&cluster, 3, SyncMode::Bsp, |client| {
        let odd = client.rank() == WorkerId(1);
        let lengths = client
            .all_gather(&vec![1.0f64; if odd { 100 } else { 4 }])
            .unwrap_err();
        let ClientError::Collective {
            source:
                CollectiveError::Length {
                    rank,
                    given,
                    expected,
                    first: _,
                },
            ..
        } = lengths
        else {
            panic!("{lengths}");
        };
        assert_eq!((rank, given, expected), (WorkerId(1), 100, 4));
        let mut one = [1i32];
        let types = match odd {
            true => client.all_gather(&[1i64]).map(|_| ()),
            false => client.all_reduce(&mut one, ReduceOp::Max),
        };
        let text = types.unwrap_err().to_string();
        assert!(text.contains("worker 1 calls all_gather of i64"), "{text}");
        let roots = client.broadcast(if odd { 2 } else { 0 }, &mut one);
        let root = roots.unwrap_err().to_string();
        assert!(root.contains("broadcast of i32 from worker 2"), "{root}");
        let none = client.broadcast(3, &mut one).unwrap_err().to_string();
        assert!(none.contains("there is no worker 3"), "{none}");
        let rank = i64::from(client.rank().0);
        assert_eq!(client.all_gather(&[rank]).unwrap(), [0, 1, 2]);
        client.finish().unwrap();
        lengths.to_string()
    });
    let expected =
        "all_gather: worker 1 gives 100 elements and worker 0 gives 4; give as many on each worker";
    assert_eq!(texts, [expected; 3]);
}

/// Values of a worker that has finished, or was lost where the others go on, are those of no later call:
/// each names the worker.
#[test]
fn departed_worker_is_named() {
    for is_lost in [false, true] {
        let cluster = cluster(1, 3);
        each(&cluster, 3, SyncMode::Bsp, |client| {
            for call in 0..4i64 {
                assert_eq!(client.all_gather(&[call]).unwrap(), [call; 3]);
            }
            if client.rank() == WorkerId(1) {
                if !is_lost {
                    client.finish().unwrap();
                }
                // A lost worker ends with its client.
                return;
            }
            for _ in 0..3 {
                let error = client.all_gather(&[4i64]).unwrap_err();
                let ClientError::Collective { source, .. } = &error else {
                    panic!("{error}");
                };
                match source {
                    CollectiveError::Left { ranks } => assert_eq!(ranks, &[WorkerId(1)]),
                    // A server learns of a loss a little later than the coordinator.
                    CollectiveError::OutOfStep { rank, .. } if is_lost => {
                        assert_eq!(*rank, WorkerId(1));
                    }
                    other => panic!("{other}"),
                }
            }
            client.finish().unwrap();
        });
    }
}

/// Where a lost worker fails the job, a call that waits for it ends at once and names it.
#[test]
fn lost_worker_ends_a_waiting_call() {
    let cluster = JoinOptions::embedded(1, 3)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let errors = each(&cluster, 3, SyncMode::Asp, |client| {
        assert_eq!(client.all_gather(&[1i64]).unwrap(), [1; 3]);
        // Worker 2 is lost: its client ends without a word.
        match client.rank() {
            WorkerId(2) => None,
            _ => Some(client.all_gather(&[2i64]).unwrap_err().to_string()),
        }
    });
    for error in errors.into_iter().flatten() {
        assert!(
            error.contains("rank 2") || error.contains("worker 2"),
            "{error}"
        );
    }
}

/// A call that waits in vain names the missing worker at the deadline. Repeated when that has come, it
/// succeeds.
#[test]
fn call_past_its_deadline_is_repeated() {
    let cluster = cluster(1, 2);
    let (mut here, mut late) = (
        cluster.client_of(0, SyncMode::Bsp).unwrap(),
        cluster.client_of(1, SyncMode::Bsp).unwrap(),
    );
    late.set_clock_timeout(LONG);
    for call in 0..3i64 {
        here.set_clock_timeout(Duration::from_millis(400));
        let error = here.all_gather(&[call]).unwrap_err().to_string();
        assert!(error.contains("missing: rank 1"), "{error}");
        here.set_clock_timeout(LONG);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| late.all_gather(&[call + 10]).unwrap());
            let expected = [call, call + 10];
            assert_eq!(here.all_gather(&[call]).unwrap(), expected);
            assert_eq!(other.join().unwrap(), expected);
        });
    }
}

/// A call that meets its deadline in its second round is repeated and continues there; before that, no
/// other call is possible. The other worker's rows of the call are written here, so that its second round
/// is late.
#[test]
fn call_continues_at_its_second_round() {
    /// Elements of a call of two rounds, and those of the first.
    const LEN: usize = 100;
    const FIRST: usize = 60;
    const BARRIER: &str = "tidewater/collective";
    let cluster = cluster(1, 2);
    let client = |rank| cluster.client_of(rank, SyncMode::Asp).unwrap();
    let (mut here, mut late) = (client(0), client(1));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| late.all_gather(&[1i64; LEN]).unwrap());
        assert_eq!(here.all_gather(&[1i64; LEN]).unwrap(), [1; 2 * LEN]);
        other.join().unwrap();
    });
    // Rounds 3 and 4 are in the buffers 1 and 0 of their tables; rank 1 is the second of two workers.
    let first = late.open_table::<i64>("tidewater/collective").unwrap();
    let further = late.open_table::<i64>("tidewater/collective-parts");
    let further = further.unwrap();
    let gather = 1 | i64::from(DType::I64.code()) << 8;
    let row = |header: [i64; 4], values: &[i64], words: usize| {
        let mut row = [&header, values].concat();
        row.resize(words, 0);
        row
    };
    let arrive = |late: &mut Client, table, key, row: &[i64], here: &mut dyn FnMut()| {
        let ticket = late.push_rows(table, &[key], row, PushOp::Assign).unwrap();
        late.wait_applied(&ticket).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| late.barrier(BARRIER, LONG).unwrap());
            here();
            other.join().unwrap();
        });
    };
    here.set_clock_timeout(Duration::from_millis(400));
    let third = row([3, gather, LEN as i64, 0], &[7; FIRST], 64);
    arrive(&mut late, &first, 3, &third, &mut || {
        let error = here.all_gather(&[5i64; LEN]).unwrap_err().to_string();
        assert!(error.contains("missing: rank 1"), "{error}");
    });
    let other = here.all_gather(&[5i64]).unwrap_err().to_string();
    assert!(
        other.contains("an earlier all_gather of 100 elements"),
        "{other}"
    );
    let other = here
        .all_reduce(&mut [5i64; LEN], ReduceOp::Sum)
        .unwrap_err();
    assert!(other.to_string().contains("repeat that call"), "{other}");
    let error = here.all_gather(&[5i64; LEN]).unwrap_err().to_string();
    assert!(error.contains("missing: rank 1"), "{error}");
    here.set_clock_timeout(LONG);
    let fourth = row([4, gather, LEN as i64, 1], &[8; LEN - FIRST], 256);
    let mut all = Vec::new();
    arrive(&mut late, &further, 16, &fourth, &mut || {
        all = here.all_gather(&[5i64; LEN]).unwrap();
    });
    assert_eq!(all[..LEN], [5; LEN]);
    assert_eq!(all[LEN..LEN + FIRST], [7; FIRST]);
    assert_eq!(all[LEN + FIRST..], [8; LEN - FIRST]);
}

/// Under BSP a call neither waits for a clock nor closes an iteration.
#[test]
fn calls_leave_clocks_and_iterations_alone() {
    let cluster = cluster(2, 2);
    each(&cluster, 2, SyncMode::Bsp, |client| {
        let table = TableBuilder::rows::<i64>("sums", 1, 1).at_clock(Reduce::Sum);
        let table = client.create_table::<i64>(table.spec()).unwrap();
        let read = |client: &mut Client| {
            let mut sum = [-1];
            let how = PullOptions::default();
            client.pull_rows(&table, &[0], &mut sum, how).unwrap();
            sum[0]
        };
        let pushed = client.push_rows(&table, &[0], &[1], PushOp::Sum).unwrap();
        // One worker is an iteration ahead: a read that waited for its clock would wait for ever.
        if client.rank() == WorkerId(0) {
            client.tick().unwrap();
        }
        let clock = client.clock();
        assert_eq!(client.all_gather(&[clock as i64]).unwrap(), [1, 0]);
        assert_eq!(client.clock(), clock);
        if client.rank() == WorkerId(1) {
            client.wait_applied(&pushed).unwrap();
            assert_eq!(read(client), 0, "the iteration is open");
            client.tick().unwrap();
        }
        assert_eq!(read(client), 2);
        client.finish().unwrap();
    });
}

/// A saved model has no trace of the calls: it loads where the number of workers is another.
#[test]
fn saved_model_lacks_collective_tables() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let saving = cluster(1, 2);
    each(&saving, 2, SyncMode::Asp, |client| {
        let spec = TableBuilder::rows::<i64>("weights", 4, 1);
        client.create_table::<i64>(spec.spec()).unwrap();
        client.all_gather(&[1i64; 100]).unwrap();
        client.barrier("saving", LONG).unwrap();
        if client.rank() == WorkerId(0) {
            assert_eq!(
                client.save(path, LONG).unwrap().rows,
                4,
                "rows of \"weights\""
            );
        }
        client.barrier("saved", LONG).unwrap();
        assert_eq!(client.all_gather(&[2i32]).unwrap(), [2, 2]);
        client.finish().unwrap();
    });
    let loading = cluster(2, 3);
    each(&loading, 3, SyncMode::Asp, |client| {
        let before = client.all_gather(&[1.5f32]).unwrap();
        assert_eq!(before, [1.5; 3]);
        if client.rank() == WorkerId(0) {
            assert_eq!(client.load(path, LONG).unwrap().tables, ["weights"]);
        }
        let after = client.all_gather(&[client.rank().0 as i32; 200]).unwrap();
        assert_eq!((after[0], after[200], after[400]), (0, 1, 2));
        client.finish().unwrap();
    });
}

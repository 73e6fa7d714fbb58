//! Cached rows: as fresh as a pull would have to be, and read from servers only when they are not.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

use std::time::Duration;

use tidewater::{
    CachedTable, Client, Job, JoinOptions, PullOptions, PushOp, PushOptions, Reduce, SyncMode,
    TableBuilder,
};
use tidewater_protocol::ids::DomainId;
use tidewater_protocol::layout::hash::mix64;

const WORKERS: u32 = 3;
const ITERATIONS: u64 = 60;

fn each(cluster: &Job, sync: SyncMode, work: impl Fn(&mut Client) -> u64 + Sync) -> Vec<u64> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..WORKERS)
            .map(|rank| {
                let mut client = cluster.client_of(rank, sync).unwrap();
                client.set_clock_timeout(Duration::from_secs(40));
                scope.spawn(move || work(&mut client))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Row `r` counts the iterations of worker `r`. A cached read at clock `c` shows at least those before
/// `c - s` and, of a table that takes effect at the tick, none from `c` on; in any clock domain, and in a
/// cache that is too small.
#[test]
fn cached_rows_keep_the_staleness() {
    for (staleness, domain, capacity) in [(0, 0, 8), (1, 0, 2), (3, 4, 8), (3, 0, 1)] {
        let cluster = JoinOptions::embedded(2, WORKERS)
            .join()
            .unwrap()
            .into_job()
            .unwrap();
        let sync = match staleness {
            0 => SyncMode::Bsp,
            s => SyncMode::Ssp(s),
        };
        let hits = each(&cluster, sync, |client| {
            let domain = DomainId(domain);
            let spec = TableBuilder::rows::<i64>("iterations", WORKERS.into(), 1)
                .domain(domain)
                .at_clock(Reduce::Sum);
            let table = client.create_table::<i64>(spec.spec()).unwrap();
            let mut cached = CachedTable::new(&table, capacity);
            let me = u64::from(client.rank().0);
            for clock in 0..ITERATIONS {
                let chance = mix64(me << 32 | clock);
                if chance.is_multiple_of(5) {
                    std::thread::sleep(Duration::from_micros(chance % 700));
                }
                for keys in [&[0, 1, 2][..], &[2], &[1, 1, 0]] {
                    let mut seen = vec![-1; keys.len()];
                    let how = PullOptions::default();
                    cached.pull_rows(client, keys, &mut seen, how).unwrap();
                    let due = clock.saturating_sub(staleness) as i64;
                    let bound = due..=clock as i64;
                    assert!(
                        seen.iter().all(|n| bound.contains(n)),
                        "rows {keys:?} at clock {clock}, staleness {staleness}: {seen:?}"
                    );
                }
                assert!(cached.rows() <= capacity);
                let pushed = client.push_rows(&table, &[me], &[1], PushOp::Sum);
                let _ = pushed.unwrap();
                client.tick_domain(domain).unwrap();
            }
            client.finish().unwrap();
            assert_eq!(cached.hits() + cached.misses(), 7 * ITERATIONS);
            cached.hits()
        });
        // With room for all rows, an iteration pulls each at most once.
        if capacity > 3 {
            assert!(hits.iter().all(|&n| n >= 4 * ITERATIONS), "{hits:?}");
        }
    }
}

/// One worker is never behind itself: under SSP(s) a row is pulled in every s + 1st iteration, under ASP
/// by every call. A forgotten row is pulled at once.
#[test]
fn rows_are_pulled_when_they_are_due() {
    for (sync, expected) in [
        (SyncMode::Bsp, 20),
        (SyncMode::Ssp(1), 10),
        (SyncMode::Ssp(4), 4),
        (SyncMode::Asp, 40),
    ] {
        let cluster = JoinOptions::embedded(1, 1)
            .join()
            .unwrap()
            .into_job()
            .unwrap();
        let mut client = cluster.client_of(0, sync).unwrap();
        let spec = TableBuilder::sparse::<f32>("weights", 3);
        let table = client.create_table::<f32>(spec.spec()).unwrap();
        let mut cached = CachedTable::new(&table, 10);
        let mut row = [1.0; 3];
        let how = PullOptions::default();
        for clock in 0..20 {
            while client.global_clock().unwrap() < clock {
                client.progress().unwrap();
            }
            for _ in 0..2 {
                cached.pull_rows(&mut client, &[5], &mut row, how).unwrap();
            }
            client.tick().unwrap();
        }
        assert_eq!(cached.misses(), expected, "{sync}");
        cached.pull_rows(&mut client, &[5], &mut row, how).unwrap();
        let ticket = client.push_rows(&table, &[5], &[2.0; 3], PushOp::Sum);
        client.wait_applied(&ticket.unwrap()).unwrap();
        cached.forget(&[5]);
        cached.pull_rows(&mut client, &[5], &mut row, how).unwrap();
        assert_eq!(row, [2.0; 3], "{sync}");
        let error = cached.pull_rows(&mut client, &[5, 6], &mut row, how);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("3 elements for 2 rows"), "{text}");
    }
}

/// Under SSP(2) a row is pulled at clocks 0, 3, 6. In between it has the echo of this worker's pushes only, times
/// their weight; the pulled row replaces it, with each push once. Duplicate keys add up, rows that are not in the cache
/// stay out, and a refused push leaves no echo.
#[test]
fn own_pushes_are_echoed() {
    for echo in [false, true] {
        let cluster = JoinOptions::embedded(2, 1)
            .join()
            .unwrap()
            .into_job()
            .unwrap();
        let mut client = cluster.client_of(0, SyncMode::Ssp(2)).unwrap();
        let spec = TableBuilder::sparse::<f64>("weights", 2);
        let table = client.create_table::<f64>(spec.spec()).unwrap();
        let mut cached = CachedTable::new(&table, 2);
        let (how, quarter) = (PullOptions::default(), PushOptions::default().weight(0.25));
        let mut seen = Vec::new();
        for clock in 0..7u64 {
            while client.global_clock().unwrap() < clock {
                client.progress().unwrap();
            }
            let mut row = [-1.0; 2];
            cached.pull_rows(&mut client, &[5], &mut row, how).unwrap();
            seen.push(row);
            let (keys, values) = ([5, 6, 5], [4.0, 8.0, 4.0, 4.0, 4.0, 8.0]);
            let pushed = match echo {
                true => cached.push_rows(&mut client, &keys, &values, quarter),
                false => client.push_rows_with(&table, &keys, &values, PushOp::Sum, quarter),
            };
            client.wait_applied(&pushed.unwrap()).unwrap();
            client.tick().unwrap();
        }
        let pulled = |clock: usize| [2.0 * clock as f64, 4.0 * clock as f64];
        let expected: Vec<_> = (0..7)
            .map(|clock| match echo {
                true => pulled(clock),
                false => pulled(clock / 3 * 3),
            })
            .collect();
        assert_eq!(seen, expected, "echo {echo}");
        assert_eq!((cached.misses(), cached.rows()), (3, 1), "echo {echo}");
        let (wrong, minus) = ([1.0; 3], PushOptions::default().weight(-1.0));
        for (values, options) in [(&wrong[..], quarter), (&wrong[..2], minus)] {
            let refused = cached.push_rows(&mut client, &[5], values, options);
            assert!(refused.is_err(), "{options:?}");
        }
        let mut row = [-1.0; 2];
        cached.pull_rows(&mut client, &[5], &mut row, how).unwrap();
        let last = if echo { 7 } else { 6 };
        assert_eq!(row, pulled(last), "echo {echo}");
        client.finish().unwrap();
    }
}

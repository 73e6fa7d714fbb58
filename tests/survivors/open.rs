//! Barriers and collective calls in jobs of open size: of the members at the tick.

use std::time::Duration;

use tidewater::{
    Client, ClientError, ClusterConfig, CollectiveError, Job, ReduceOp, SyncMode, TransportChoice,
};
use tidewater_protocol::ids::WorkerId;
use tidewater_runtime::sync::{AtomicU64, Ordering};
use tidewater_service::coordinator::LostWorker;
use tidewater_service::coordinator::membership::Schedule;

use super::{LONG, joined};

/// Ticks of a worker that stays to the end.
const LAST: u64 = 60;
/// Elements of a call of several rounds.
const MANY: usize = 9_000;

fn open(transport: TransportChoice, membership: Option<&str>) -> Job {
    joined(ClusterConfig {
        servers: 2,
        workers: 0,
        transport,
        on_lost: LostWorker::GoOn,
        membership: membership.map(|text| Schedule::parse(text).unwrap()),
        ..ClusterConfig::default()
    })
}

/// One iteration of a job: a barrier and calls in which all members give their clock. Returns the members.
fn step(client: &mut Client) -> Result<Vec<WorkerId>, ClientError> {
    let (clock, own) = (client.clock(), client.rank());
    client.barrier("step", LONG)?;
    let clocks = client.all_gather(&[clock.cast_signed()])?;
    let ranks = client.collective_ranks();
    assert!(
        clocks.iter().all(|&at| at == clock.cast_signed()),
        "{clocks:?}"
    );
    assert_eq!(clocks.len(), ranks.len());
    assert!(ranks.contains(&own), "{ranks:?}");
    let mut sum = [f64::from(own.0), 1.0];
    client.all_reduce(&mut sum, ReduceOp::Sum)?;
    let of_ranks: u32 = ranks.iter().map(|rank| rank.0).sum();
    assert_eq!(sum, [f64::from(of_ranks), ranks.len() as f64]);
    if clock % 20 == 7 {
        let mut many = vec![i64::from(own.0); MANY];
        client.broadcast(ranks[0].0, &mut many)?;
        assert!(many.iter().all(|&value| value == i64::from(ranks[0].0)));
        assert_eq!(
            client.collective_ranks(),
            ranks,
            "members change between ticks"
        );
    }
    client.tick()?;
    Ok(ranks)
}

fn work(client: &mut Client, to: u64) -> Result<(), ClientError> {
    client.set_clock_timeout(LONG);
    while client.clock() < to {
        step(client)?;
    }
    Ok(())
}

/// Workers join while others are at barriers and in calls of one and several rounds; one finishes and one is
/// lost. Each call is of workers at one tick, and nothing waits for a worker that has gone.
#[test]
fn members_meet_while_they_change() {
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let job = open(transport, None);
        let mut first = job.client_of(0, SyncMode::Bsp).unwrap();
        let reached = AtomicU64::new(0);
        let seen = std::thread::scope(|scope| {
            for (rank, from, to) in [(1, 0, LAST), (2, 3, 25), (3, 9, LAST), (4, 17, 38)] {
                let (job, reached) = (&job, &reached);
                scope.spawn(move || {
                    while reached.load(Ordering::SeqCst) < from {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let mut client = job.client_of(rank, SyncMode::Bsp).unwrap();
                    assert!(client.clock() >= from);
                    work(&mut client, to).unwrap();
                    match rank {
                        // Lost: its connections end.
                        4 => drop(client),
                        _ => client.finish().unwrap(),
                    }
                });
            }
            first.set_clock_timeout(LONG);
            let mut seen = Vec::new();
            while first.clock() < LAST {
                seen.extend(step(&mut first).unwrap());
                reached.store(first.clock(), Ordering::SeqCst);
                // Others are to arrive while this one works.
                std::thread::sleep(Duration::from_millis(1));
            }
            first.finish().unwrap();
            seen
        });
        for rank in 0..5 {
            assert!(seen.contains(&WorkerId(rank)), "{rank} was in no call");
        }
    }
}

/// Members of a schedule meet at its ticks: one that has not connected is awaited from its first tick, and not
/// before.
#[test]
fn members_meet_by_schedule() {
    let text = "join 0\njoin 1\njoin 2 0:5\nleave 1 0:8\njoin 1 0:12\n";
    let job = open(TransportChoice::Auto, Some(text));
    let members = std::thread::scope(|scope| {
        let threads: Vec<_> = [(0, 0, 15), (1, 50, 8), (2, 0, 15), (1, 120, 15)]
            .map(|(rank, after, to)| {
                let job = &job;
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(after));
                    let mut client = loop {
                        match job.client_of(rank, SyncMode::Bsp) {
                            Ok(client) => break client,
                            Err(error) => {
                                let text = error.to_string();
                                assert!(text.contains("rank 1 is"), "{text}");
                                std::thread::sleep(Duration::from_millis(1));
                            }
                        }
                    };
                    client.set_clock_timeout(LONG);
                    let mut members = Vec::new();
                    while client.clock() < to {
                        let ranks = step(&mut client).unwrap();
                        members.push(ranks.iter().map(|rank| rank.0).collect::<Vec<_>>());
                    }
                    client.finish().unwrap();
                    members
                })
            })
            .into_iter()
            .collect();
        let first = threads.into_iter().next().unwrap();
        first.join().unwrap()
    });
    for (tick, ranks) in members.iter().enumerate() {
        let due: &[u32] = match tick {
            0..5 => &[0, 1],
            5..8 => &[0, 1, 2],
            8..12 => &[0, 2],
            _ => &[0, 1, 2],
        };
        assert_eq!(ranks, due, "tick {tick}");
    }
}

/// Without clocks the members are the workers that are live. A root that is none is refused at all of them, and a
/// call goes on when a worker that has not come is lost.
#[test]
fn live_workers_meet_without_ticks() {
    let job = open(TransportChoice::Auto, None);
    let [mut first, mut second, lost] =
        [0, 1, 2].map(|rank| job.client_of(rank, SyncMode::Asp).unwrap());
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            second.set_clock_timeout(LONG);
            assert_eq!(second.all_gather(&[1_i64]).unwrap(), [0, 1]);
            second.broadcast(2, &mut [0_i64]).unwrap_err()
        });
        first.set_clock_timeout(Duration::from_millis(300));
        let missing = first.all_gather(&[0_i64]).unwrap_err().to_string();
        assert!(missing.contains("missing: rank 2 (alive)"), "{missing}");
        first.set_clock_timeout(LONG);
        let drops = scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            drop(lost);
        });
        assert_eq!(first.all_gather(&[0_i64]).unwrap(), [0, 1]);
        drops.join().unwrap();
        let ours = first.broadcast(2, &mut [0_i64]).unwrap_err();
        for error in [ours, other.join().unwrap()] {
            let ClientError::Collective { source, .. } = &error else {
                panic!("{error}")
            };
            let due = CollectiveError::Root {
                root: 2,
                workers: 2,
            };
            assert_eq!(*source, due);
        }
    });
    first.finish().unwrap();
    second.finish().unwrap();
}

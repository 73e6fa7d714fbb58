//! (long: one rig for all.) Members change: observers come and go and hold nothing, late workers are awaited from their
//! first tick on, domains are synchronised apart, slow workers are named.

use std::time::Duration;

use tidewater::{
    Client, ClientError, ClusterConfig, DomainId, Expression, FunctionArgs, Init, Optimizer,
    PullMode, PullOptions, Reduction, SyncMode, Table, TableBuilder, TransportChoice,
};
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::{AtomicBool, Ordering};
use tidewater_service::coordinator::LostWorker;
use tidewater_service::coordinator::membership::Schedule;

use super::{LONG, clients, cluster, each, gradient, joined};

/// Elements of the published range table of ticks. Each snapshot of it has one value in all of them.
const ELEMENTS_SEEN: u64 = 3_000;

/// Pulls a snapshot of the published table and checks that it is of one tick.
fn look(observer: &mut Client) -> f32 {
    let table = observer.open_table::<f32>("published").unwrap();
    look_at(observer, &table)
}

/// Pulls a snapshot of an opened table and checks that it is of one tick.
fn look_at(observer: &mut Client, table: &Table<f32>) -> f32 {
    let mut seen = vec![0.0; ELEMENTS_SEEN as usize];
    let options = PullOptions::default().mode(PullMode::Snapshot);
    observer.pull_range(table, 0, &mut seen, options).unwrap();
    assert!(
        seen.iter().all(|value| *value == seen[0]),
        "{:?}",
        seen.first()
    );
    seen[0]
}

/// One worker ticks under BSP. Observers connect before its first tick and later; one stays silent, one
/// ends without a word, others come, read and finish. The clock never waits for them, no loss fails the
/// job, and each snapshot is of one tick. In jobs of known and of unknown size.
#[test]
fn observers_come_and_go_and_hold_nothing() {
    const TICKS: u16 = 300;
    for (transport, workers) in [
        (TransportChoice::Shm, 1),
        (TransportChoice::Shm, 0),
        (TransportChoice::Tcp, 0),
    ] {
        let job = joined(ClusterConfig {
            servers: 2,
            appliers: 2,
            workers,
            transport,
            on_lost: LostWorker::FailJob,
            ..ClusterConfig::default()
        });
        let mut publisher = job.client(SyncMode::Bsp).unwrap();
        // No tick waits for another worker.
        publisher.set_clock_timeout(Duration::from_secs(5));
        let table = TableBuilder::range::<f32>("published", ELEMENTS_SEEN, 1).snapshot();
        let table = table.at_clock(Reduce::Sum).partitions(8);
        let table = publisher.create_table::<f32>(table.spec()).unwrap();
        let mut silent = job.observer().unwrap();
        let lost = job.observer().unwrap();
        assert!(silent.is_observer() && silent.rank() != lost.rank());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (job, over) = (&job, &over);
            let visitors: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(move || {
                        let mut visits = 0;
                        while !over.load(Ordering::Relaxed) || visits < 2 {
                            let mut observer = job.observer().unwrap();
                            let first = look(&mut observer);
                            assert!(first <= look(&mut observer));
                            observer.finish().unwrap();
                            visits += 1;
                        }
                    })
                })
                .collect();
            let mut lost = Some(lost);
            let ones = vec![1.0; ELEMENTS_SEEN as usize];
            let published = (0..TICKS).try_for_each(|tick| {
                if tick == TICKS / 2 {
                    drop(lost.take());
                }
                drop(publisher.push_range(&table, 0, &ones, PushOp::Sum)?);
                publisher.tick()
            });
            over.store(true, Ordering::Relaxed);
            for visitor in visitors {
                visitor.join().unwrap();
            }
            published.unwrap();
        });
        // The tick that the worker waits for is its own: all others would be members.
        let mut own = vec![0.0; ELEMENTS_SEEN as usize];
        publisher
            .pull_range(&table, 0, &mut own, PullOptions::default())
            .unwrap();
        assert_eq!(publisher.global_clock().unwrap(), u64::from(TICKS));
        assert_eq!(look(&mut silent), f32::from(TICKS));
        publisher.finish().unwrap();
    }
}

/// Time of a publication, a push of all elements and a tick, at 100 a second: without observers, with 16 threads
/// that wait for each version and pull it, and with 200 observers that are connected.
#[test]
#[ignore = "measures: --ignored --nocapture measure_publisher"]
fn measure_publisher_with_observers() {
    const TICKS: u32 = 500;
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        for (readers, silent) in [(0, 0), (16, 0), (0, 200)] {
            let job = joined(ClusterConfig {
                workers: 1,
                transport,
                ..ClusterConfig::default()
            });
            let mut publisher = job.client(SyncMode::Bsp).unwrap();
            let table = TableBuilder::range::<f32>("published", ELEMENTS_SEEN, 1).snapshot();
            let table = table.at_clock(Reduce::Sum);
            let table = publisher.create_table::<f32>(table.spec()).unwrap();
            let silent: Vec<Client> = (0..silent).map(|_| job.observer().unwrap()).collect();
            let mut took: Vec<Duration> = Vec::new();
            std::thread::scope(|scope| {
                let seen: Vec<_> = (0..readers)
                    .map(|_| {
                        let mut observer = job.observer().unwrap();
                        scope.spawn(move || {
                            let table = observer.open_table::<f32>("published").unwrap();
                            let (mut version, mut seen) = (0, 0_u32);
                            while version < u64::from(TICKS) {
                                let next = observer.wait_newer(&table, version, LONG).unwrap();
                                assert!(
                                    next > version && look_at(&mut observer, &table) >= next as f32
                                );
                                version = next;
                                seen += 1;
                            }
                            observer.finish().unwrap();
                            seen
                        })
                    })
                    .collect();
                let ones = vec![1.0; ELEMENTS_SEEN as usize];
                for _ in 0..TICKS {
                    std::thread::sleep(Duration::from_millis(10));
                    let begun = clock::now();
                    drop(publisher.push_range(&table, 0, &ones, PushOp::Sum).unwrap());
                    publisher.tick().unwrap();
                    publisher.flush().unwrap();
                    took.push(begun.elapsed());
                }
                let seen: Vec<u32> = seen.into_iter().map(|s| s.join().unwrap()).collect();
                assert!(seen.iter().all(|&seen| seen > 0));
            });
            took.sort_unstable();
            let at = |share: f64| took[(share * took.len() as f64) as usize].as_secs_f64() * 1e6;
            println!(
                "{transport:?}, {readers} readers, {} silent: p50 {:.0} us, p99 {:.0} us, {} publications",
                silent.len(),
                at(0.5),
                at(0.99),
                took.len()
            );
            drop(silent);
            publisher.finish().unwrap();
        }
    }
}

/// Calls of an observer that would change something are refused at the client, with the call's name, and
/// its pulls create no rows.
#[test]
fn observers_change_nothing() {
    let job = joined(ClusterConfig {
        workers: 1,
        ..ClusterConfig::default()
    });
    let mut worker = job.client(SyncMode::Bsp).unwrap();
    let rows = TableBuilder::sparse::<f32>("rows", 2).init(Init::Constant(3.0), 0);
    let range = TableBuilder::range::<f32>("range", 100, 1);
    let rows = worker.create_table::<f32>(rows.spec()).unwrap();
    worker.create_table::<f32>(range.spec()).unwrap();
    let mut observer = job.observer().unwrap();
    let seen = observer.open_table::<f32>("rows").unwrap();
    let ranges = observer.open_table::<f32>("range").unwrap();
    let mut values = [0.0; 4];
    for mode in [PullMode::Consistent, PullMode::Hogwild, PullMode::Gather] {
        let options = PullOptions::default().mode(mode);
        observer
            .pull_rows(&seen, &[7, 9], &mut values, options)
            .unwrap();
        assert_eq!(values, [3.0; 4]);
    }
    let count = |client: &mut Client, table| {
        let one = Expression::<f32>::parse("1").unwrap();
        let all = FunctionArgs::default();
        client.reduce(table, &one, Reduction::Sum, &all).unwrap()
    };
    assert_eq!(count(&mut observer, &seen), count(&mut worker, &rows));
    let rate = Optimizer::Sgd { lr: 0.5 };
    let refused = [
        observer.tick().unwrap_err(),
        observer
            .push_rows(&seen, &[7], &[1.0; 2], PushOp::Sum)
            .unwrap_err(),
        observer
            .push_range(&ranges, 0, &[1.0], PushOp::Sum)
            .unwrap_err(),
        observer.set_optimizer(&ranges, rate).unwrap_err(),
        observer.barrier("x", LONG).unwrap_err(),
        observer.save("/nonexistent", LONG).unwrap_err(),
        observer.load("/nonexistent", LONG).unwrap_err(),
        observer.all_gather(&[1.0_f32]).unwrap_err(),
        observer.sibling().unwrap_err(),
        observer.fail("no").unwrap_err(),
        observer.load_function("f", &[]).unwrap_err(),
        observer
            .create_table::<f32>(TableBuilder::sparse::<f32>("new", 1).spec())
            .unwrap_err(),
        observer.release_table(seen).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, ClientError::Observer { .. }), "{error}");
    }
    worker.tick().unwrap();
    observer.finish().unwrap();
    worker.finish().unwrap();
}

/// Elements of the range table of the workers that come and go.
const TRAINED: usize = 3_000;

/// Tick with which worker 2 joins.
const JOINS: u64 = 50;

/// Ticks after which worker 1 leaves.
const LEAVES: u64 = 80;

/// Ticks after which the others end.
const LAST: u64 = 100;

/// A worker of [`members_change_at_one_tick`]: pushes and ticks up to clock `to`.
fn train(client: &mut Client, to: u64) -> Result<(), ClientError> {
    let range = client.open_table::<f32>("range")?;
    let rows = client.open_table::<f32>("rows")?;
    while client.clock() < to {
        let (rank, clock) = (client.rank().0, client.clock() as u32);
        let values: Vec<f32> = (0..TRAINED as u32)
            .map(|e| gradient(rank, clock, e))
            .collect();
        drop(client.push_range(&range, 0, &values, PushOp::Gradient)?);
        let keys = [u64::from(rank), 7, u64::from(clock)];
        drop(client.push_rows(&rows, &keys, &values[..3], PushOp::Gradient)?);
        client.tick()?;
    }
    Ok(())
}

fn trained_tables(client: &mut Client) {
    let sgd = Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 };
    let range = TableBuilder::range::<f32>("range", TRAINED as u64, 1);
    let rows = TableBuilder::sparse::<f32>("rows", 1);
    for table in [range, rows] {
        let table = table.optimizer(sgd).at_clock(Reduce::Sum).partitions(6);
        client.create_table::<f32>(table.spec()).unwrap();
    }
}

fn trained_bits(client: &mut Client) -> Vec<u32> {
    let range = client.open_table::<f32>("range").unwrap();
    let rows = client.open_table::<f32>("rows").unwrap();
    let keys: Vec<u64> = (0..LAST).collect();
    let mut values = vec![0.0; TRAINED + keys.len()];
    let options = PullOptions::default();
    client
        .pull_range(&range, 0, &mut values[..TRAINED], options)
        .unwrap();
    client
        .pull_rows(&rows, &keys, &mut values[TRAINED..], options)
        .unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

fn members(servers: u32, transport: TransportChoice) -> ClusterConfig {
    ClusterConfig {
        servers,
        appliers: 2,
        workers: 0,
        transport,
        ..ClusterConfig::default()
    }
}

/// A job that follows a schedule: each worker connects when it likes.
fn follow(schedule: &Schedule, config: ClusterConfig) -> Vec<u32> {
    let job = joined(ClusterConfig {
        membership: Some(schedule.clone()),
        ..config
    });
    let stranger = job.client_of(7, SyncMode::Bsp).unwrap_err().to_string();
    assert!(
        stranger.contains("rank 7 is not in the membership file, which has 0, 1, 2"),
        "{stranger}"
    );
    let mut first = job.client_of(0, SyncMode::Bsp).unwrap();
    trained_tables(&mut first);
    std::thread::scope(|scope| {
        for (rank, to) in [(1, LEAVES), (2, LAST)] {
            let job = &job;
            scope.spawn(move || {
                let mut client = job.client_of(rank, SyncMode::Bsp).unwrap();
                client.set_clock_timeout(LONG);
                if rank == 1 {
                    train(&mut client, to - 1).unwrap();
                    let early = client.finish().unwrap_err().to_string();
                    let words =
                        "worker 1 leaves after 79 ticks of domain 0; the membership file says 80";
                    assert!(early.contains(words), "{early}");
                }
                train(&mut client, to).unwrap();
                client.finish().unwrap();
            });
        }
        first.set_clock_timeout(LONG);
        train(&mut first, LAST).unwrap();
    });
    let bits = trained_bits(&mut first);
    first.finish().unwrap();
    bits
}

/// Worker 2 joins a running job at tick 50, worker 1 leaves after 80. The schedule is logged. Runs that
/// follow the log have the same bits on 1, 2 and 3 servers and both carriers.
#[test]
fn members_change_at_one_tick() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("members");
    let job = joined(ClusterConfig {
        membership_log: Some(log.clone()),
        ..members(2, TransportChoice::Auto)
    });
    let mut clients: Vec<Client> = (0..2)
        .map(|rank| job.client_of(rank, SyncMode::Bsp).unwrap())
        .collect();
    trained_tables(&mut clients[0]);
    let stopped = std::sync::Barrier::new(3);
    let bits = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                let stopped = &stopped;
                scope.spawn(move || {
                    client.set_clock_timeout(LONG);
                    train(&mut client, JOINS).unwrap();
                    stopped.wait();
                    stopped.wait();
                    let leaves = client.rank().0 == 1;
                    train(&mut client, if leaves { LEAVES } else { LAST }).unwrap();
                    let bits = (!leaves).then(|| trained_bits(&mut client));
                    client.finish().unwrap();
                    bits
                })
            })
            .collect();
        stopped.wait();
        let late = job.client_of(2, SyncMode::Bsp);
        stopped.wait();
        let mut late = late.unwrap();
        assert_eq!(late.clock(), JOINS);
        late.set_clock_timeout(LONG);
        train(&mut late, LAST).unwrap();
        late.finish().unwrap();
        let bits = threads.into_iter().filter_map(|t| t.join().unwrap());
        bits.last().unwrap()
    });
    drop(job);
    let log = std::fs::read_to_string(&log).unwrap();
    let begins = format!("join 0\njoin 1\njoin 2 0:{JOINS}\nleave 1 0:{LEAVES}\n");
    assert!(log.starts_with(&begins), "{log}");
    let schedule = Schedule::parse(&log).unwrap();
    for servers in 1..=3 {
        for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
            let again = follow(&schedule, members(servers, transport));
            assert!(again == bits, "{servers} servers, {transport:?}");
        }
    }
}

/// A job of open size has ticked when another worker joins. That one begins at the clock of the others,
/// is awaited from there on, and leaves its rank to the next one.
#[test]
fn a_latecomer_of_a_service_is_awaited() {
    let cluster = joined(ClusterConfig {
        servers: 2,
        workers: 0,
        ..ClusterConfig::default()
    });
    let open = |rank| cluster.client_of(rank, SyncMode::Bsp);
    let [mut first, mut second] = [0, 1].map(|rank| open(rank).unwrap());
    first.tick().unwrap();
    second.tick().unwrap();
    let mut late = open(2).unwrap();
    assert_eq!(late.clock(), 1);
    let taken = open(2).unwrap_err().to_string();
    assert!(taken.contains("rank 2 is alive"), "{taken}");
    first.tick().unwrap();
    second.tick().unwrap();
    first.set_clock_timeout(Duration::from_millis(300));
    let awaited = first.tick().unwrap_err().to_string();
    assert!(awaited.contains("worker 2"), "{awaited}");
    late.tick().unwrap();
    first.set_clock_timeout(LONG);
    first.tick().unwrap();
    late.finish().unwrap();
    drop(late);
    let soon = Deadline::after(LONG);
    let mut next = loop {
        match open(2) {
            Ok(next) => break next,
            // Its connections end one after the other.
            Err(error) => assert!(!soon.passed(), "{error} at {:?}", clock::now()),
        }
    };
    assert_eq!(next.clock(), 3, "that of the fastest");
    next.finish().unwrap();
    second.tick().unwrap();
    first.tick().unwrap();
}

/// One domain is under BSP, another one under ASP.
#[test]
fn domains_are_synchronised_apart() {
    let cluster = joined(ClusterConfig {
        workers: 2,
        ..ClusterConfig::default()
    });
    let free = DomainId(5);
    let [mut first, _second] = [0, 1].map(|rank| {
        let mut client = cluster.client_of(rank, SyncMode::Bsp).unwrap();
        client.set_domain_sync(free, SyncMode::Asp).unwrap();
        client
    });
    for _ in 0..9 {
        first.tick_domain(free).unwrap();
    }
    first.tick().unwrap();
    first.set_clock_timeout(Duration::from_millis(300));
    let awaited = first.tick().unwrap_err().to_string();
    assert!(awaited.contains("worker 1"), "{awaited}");
    first.tick_domain(free).unwrap();
    first.set_domain_sync(free, SyncMode::Ssp(3)).unwrap();
    let awaited = first.tick_domain(free).unwrap_err().to_string();
    assert!(awaited.contains("worker 1"), "{awaited}");
    let none = first.set_domain_sync(DomainId(64), SyncMode::Asp);
    assert!(
        matches!(none, Err(ClientError::Argument { .. })),
        "{none:?}"
    );
}

/// Two workers wait for the third in each iteration. It alone is slow.
#[test]
fn slow_workers_are_named() {
    let cluster = cluster(LostWorker::FailJob);
    let all = clients(&cluster, SyncMode::Bsp);
    let over = AtomicBool::new(false);
    let named = each(all, |mut client| {
        client.set_clock_timeout(LONG);
        let soon = Deadline::after(LONG);
        let rank = client.rank().0;
        let mut named = Vec::new();
        // Rank 0 decides before the tick by which it ends its last iteration; no other begins one more.
        while !over.load(Ordering::SeqCst) {
            if rank == 2 {
                std::thread::sleep(Duration::from_millis(10));
            }
            if rank == 0 {
                let slow = client.slow_workers().unwrap();
                named = slow.iter().map(|slow| slow.rank.0).collect();
                assert!(slow.iter().all(|slow| slow.step > 2 * slow.median));
                over.store(named == [2] || soon.passed(), Ordering::SeqCst);
            }
            if client.tick().is_err() {
                break;
            }
        }
        client.finish().unwrap();
        named
    });
    assert_eq!(named[0], [2]);
}

/// With `go-on` another process takes the rank of a lost worker, and is awaited.
#[test]
fn a_lost_rank_is_taken_again() {
    let cluster = cluster(LostWorker::GoOn);
    let mut all = clients(&cluster, SyncMode::Bsp);
    for client in &mut all {
        client.set_clock_timeout(LONG);
        client.tick().unwrap();
    }
    drop(all.remove(1));
    let soon = Deadline::after(LONG);
    let again = loop {
        match cluster.client_of(1, SyncMode::Bsp) {
            Ok(again) => break again,
            // Until its end has been seen.
            Err(error) => assert!(!soon.passed(), "{error} at {:?}", clock::now()),
        }
    };
    assert_eq!(again.clock(), 1);
    all.push(again);
    for done in each(all, |mut client| {
        for _ in 0..5 {
            client.tick()?;
        }
        client.barrier("end", LONG)?;
        client.finish()
    }) {
        done.unwrap();
    }
}

/// Iterations that the lost worker of [`loss_is_followed_at_its_tick`] ends.
const LOST_AFTER: u64 = 30;

/// A worker is lost in an iteration that it has begun. The log has the tick of the loss, and runs that follow the log
/// have the same bits on any servers, although its process would go on: its next tick is refused.
#[test]
fn loss_is_followed_at_its_tick() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("members");
    let run = |config: ClusterConfig, is_followed: bool| {
        let job = joined(config);
        let mut first = job.client_of(0, SyncMode::Bsp).unwrap();
        first.set_clock_timeout(LONG);
        trained_tables(&mut first);
        std::thread::scope(|scope| {
            let job = &job;
            scope.spawn(move || {
                let mut client = job.client_of(1, SyncMode::Bsp).unwrap();
                client.set_clock_timeout(LONG);
                train(&mut client, LOST_AFTER).unwrap();
                let over = match is_followed {
                    true => {
                        let over = train(&mut client, LAST).unwrap_err();
                        // Its last tick has arrived: a client that ends may take what it has not sent along.
                        client.flush().unwrap();
                        over
                    }
                    false => {
                        let range = client.open_table::<f32>("range").unwrap();
                        let values = [9.5; TRAINED];
                        let pushed = client.push_range(&range, 0, &values, PushOp::Gradient);
                        client.wait_applied(&pushed.unwrap()).unwrap();
                        return;
                    }
                };
                let ClientError::StayOver { domain, clock } = over else {
                    panic!("{over}")
                };
                assert_eq!((domain, clock), (DomainId(0), LOST_AFTER));
            });
            train(&mut first, LAST).unwrap();
        });
        let bits = trained_bits(&mut first);
        first.finish().unwrap();
        bits
    };
    let bits = run(
        ClusterConfig {
            workers: 2,
            on_lost: LostWorker::GoOn,
            membership_log: Some(log.clone()),
            ..members(2, TransportChoice::Auto)
        },
        false,
    );
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(
        log.starts_with(&format!("join 0\njoin 1\nlost 1 0:{LOST_AFTER}\n")),
        "{log}"
    );
    let schedule = Schedule::parse(&log).unwrap();
    for servers in 1..=3 {
        for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
            let config = ClusterConfig {
                membership: Some(schedule.clone()),
                // The file says more than this rule.
                on_lost: LostWorker::FailJob,
                ..members(servers, transport)
            };
            assert!(
                run(config, true) == bits,
                "{servers} servers, {transport:?}"
            );
        }
    }
}

// long: jobs with members that change share the code of their workers.

//! The rest of a job continues: no call waits for lost or finished workers. A worker that joins
//! late is awaited from its first tick on. Observers come and go, and hold nothing. Threads of a worker join and finish while the job runs, and one that is lost loses
//! its worker.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

use std::time::Duration;

use tidewater::walltime::Walltime;
use tidewater::{
    Client, ClientError, ClusterConfig, DomainId, Expression, FunctionArgs, Init, Job, JoinOptions,
    Optimizer, PullMode, PullOptions, ReduceOp, Reduction, SyncMode, TableBuilder, TransportChoice,
};
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::{AtomicBool, Ordering};
use tidewater_service::coordinator::LostWorker;
use tidewater_service::coordinator::membership::Schedule;

/// Longer than any operation here takes on a busy machine.
const LONG: Duration = Duration::from_secs(40);
const WORKERS: u32 = 3;
/// More steps than a run makes before it handles a signal.
const STEPS: u64 = 2_000;

fn cluster(on_lost: LostWorker) -> Job {
    let config = ClusterConfig {
        workers: WORKERS,
        on_lost,
        ..ClusterConfig::default()
    };
    joined(config)
}

fn joined(config: ClusterConfig) -> Job {
    let joined = JoinOptions::from(config).join().unwrap();
    joined.into_job().unwrap()
}

fn each<T: Send>(clients: Vec<Client>, work: impl Fn(Client) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = clients
            .into_iter()
            .map(|client| scope.spawn(move || work(client)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn clients(cluster: &Job, sync: SyncMode) -> Vec<Client> {
    (0..WORKERS)
        .map(|rank| cluster.client_of(rank, sync).unwrap())
        .collect()
}

/// No barrier waits for a finished worker, nor for a lost one if the others are to continue.
#[test]
fn barriers_open_for_those_that_are_left() {
    for is_lost in [false, true] {
        let cluster = cluster(LostWorker::GoOn);
        let mut all = clients(&cluster, SyncMode::Bsp);
        let mut leaver = all.remove(1);
        if !is_lost {
            leaver.finish().unwrap();
        }
        drop(leaver);
        let done = each(all, |mut client| {
            for _ in 0..3 {
                client.barrier("x", LONG)?;
                client.tick()?;
            }
            client.finish()
        });
        for done in done {
            done.unwrap();
        }
    }
}

/// A table of ticks by range: each snapshot of it has one value in all elements.
const ELEMENTS_SEEN: u64 = 3_000;

/// Pulls a snapshot of the published table and checks that it is of one tick.
fn look(observer: &mut Client) -> f32 {
    let table = observer.open_table::<f32>("published").unwrap();
    let mut seen = vec![0.0; ELEMENTS_SEEN as usize];
    let options = PullOptions::default().mode(PullMode::Snapshot);
    observer.pull_dense(&table, 0, &mut seen, options).unwrap();
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
        let table = TableBuilder::blocks::<f32>("published", ELEMENTS_SEEN, 1).snapshot();
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
                drop(publisher.push_dense(&table, 0, &ones, PushOp::Sum)?);
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
            .pull_dense(&table, 0, &mut own, PullOptions::default())
            .unwrap();
        assert_eq!(publisher.global_clock().unwrap(), u64::from(TICKS));
        assert_eq!(look(&mut silent), f32::from(TICKS));
        publisher.finish().unwrap();
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
    let range = TableBuilder::blocks::<f32>("range", 100, 1);
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
            .push_dense(&ranges, 0, &[1.0], PushOp::Sum)
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
        drop(client.push_dense(&range, 0, &values, PushOp::Gradient)?);
        let keys = [u64::from(rank), 7, u64::from(clock)];
        drop(client.push_rows(&rows, &keys, &values[..3], PushOp::Gradient)?);
        client.tick()?;
    }
    Ok(())
}

fn trained_tables(client: &mut Client) {
    let sgd = Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 };
    let range = TableBuilder::blocks::<f32>("range", TRAINED as u64, 1);
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
        .pull_dense(&range, 0, &mut values[..TRAINED], options)
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

/// Pushes of a lost worker count up to the last iteration that it ended, whether its turn in the next
/// one had come or not.
#[test]
fn pushes_of_a_lost_iteration_are_dropped() {
    const ELEMENTS: u64 = 3_000;
    for lost in 0..WORKERS as usize {
        let cluster = cluster(LostWorker::GoOn);
        let mut all = clients(&cluster, SyncMode::Bsp);
        let range = TableBuilder::blocks::<f32>("range", ELEMENTS, 1).at_clock(Reduce::Sum);
        let rows = TableBuilder::sparse::<f32>("rows", 1).at_clock(Reduce::Sum);
        all[0].create_table::<f32>(range.spec()).unwrap();
        all[0].create_table::<f32>(rows.spec()).unwrap();
        let push = |client: &mut Client, value: f32| {
            let range = client.open_table::<f32>("range").unwrap();
            let rows = client.open_table::<f32>("rows").unwrap();
            let values = vec![value; ELEMENTS as usize];
            let pushed = client.push_dense(&range, 0, &values, PushOp::Sum).unwrap();
            client.wait_applied(&pushed).unwrap();
            let pushed = client.push_rows(&rows, &[5], &[value], PushOp::Sum);
            client.wait_applied(&pushed.unwrap()).unwrap();
        };
        // All workers end the first iteration; the lost one begins the second.
        for client in &mut all {
            client.set_clock_timeout(LONG);
            push(client, 1.0);
            client.tick().unwrap();
        }
        let mut leaver = all.remove(lost);
        push(&mut leaver, 1_000.0);
        drop(leaver);
        for clock in 1..=2_u16 {
            for client in &mut all {
                push(client, 1.0);
                client.tick().unwrap();
            }
            let expected = f32::from(WORKERS as u16 + clock * (WORKERS as u16 - 1));
            for client in &mut all {
                let range = client.open_table::<f32>("range").unwrap();
                let rows = client.open_table::<f32>("rows").unwrap();
                let mut out = vec![-1.0; ELEMENTS as usize];
                let how = PullOptions::default();
                client.pull_dense(&range, 0, &mut out, how).unwrap();
                assert_eq!(
                    out,
                    vec![expected; ELEMENTS as usize],
                    "rank {lost} is lost"
                );
                let mut out = [-1.0];
                client.pull_rows(&rows, &[5], &mut out, how).unwrap();
                assert_eq!(out, [expected], "rank {lost} is lost");
            }
        }
    }
}

/// Rank 0 is lost; a signal then ends the run at one step of all survivors.
#[test]
fn survivors_end_together_on_sigterm() {
    let cluster = cluster(LostWorker::GoOn);
    let all = clients(&cluster, SyncMode::Ssp(1));
    let ends = each(all, |mut client| -> Result<_, ClientError> {
        let mut walltime = Walltime::watch(&mut client, 1)?;
        client.barrier("begun", LONG)?;
        if client.rank().0 == 0 {
            return Ok(None);
        }
        client.set_clock_timeout(LONG);
        let mut steps = 0;
        while steps < STEPS && !walltime.over(&mut client)? {
            client.tick()?;
            steps += 1;
            if steps == 10 && client.rank().0 == 1 {
                let me = rustix::process::getpid();
                rustix::process::kill_process(me, rustix::process::Signal::TERM).unwrap();
            }
        }
        let signal = walltime.end(&mut client)?;
        let table = client.open_table::<i64>("tidewater/walltime");
        assert!(table.is_err(), "the agreement's table is left");
        client.finish()?;
        Ok(Some((steps, signal)))
    });
    let ends: Vec<_> = ends.into_iter().map(Result::unwrap).collect();
    let [None, Some((steps, signal)), other] = ends[..] else {
        panic!("{ends:?}");
    };
    assert_eq!(other, Some((steps, signal)), "at one step, for one signal");
    assert_eq!(signal, Some(15));
    assert!((10..STEPS).contains(&steps), "{steps} steps");
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

/// Values of a run in which each of `workers` times `threads` pushes its own gradients: the bits of a row
/// and of a range that are changed at ticks, and the counts of pushes.
fn bits_of(workers: u32, threads: u32) -> (Vec<u32>, Vec<i64>) {
    const ITERATIONS: u32 = 6;
    let all = workers * threads;
    let config = ClusterConfig {
        workers,
        servers: 2,
        ..ClusterConfig::default()
    };
    let job = joined(config);
    let mean = TableBuilder::rows::<f32>("mean", 5, 3).at_clock(Reduce::Mean);
    let range = TableBuilder::blocks::<f32>("range", 3_000, 1).at_clock(Reduce::Sum);
    let counts = TableBuilder::rows::<i64>("counts", all.into(), 1);
    let work = |mut client: Client| {
        client.set_clock_timeout(LONG);
        let number = client.rank().0 * threads + client.thread();
        let mean = client.create_table::<f32>(mean.spec()).unwrap();
        let range = client.create_table::<f32>(range.spec()).unwrap();
        let counts = client.create_table::<i64>(counts.spec()).unwrap();
        for iteration in 0..ITERATIONS {
            let gradients: Vec<f32> = (0..2_900)
                .map(|element| gradient(number, iteration, element))
                .collect();
            let op = PushOp::Gradient;
            let keys = [0, 1, 2, 3, u64::from(4 - number % 2)];
            drop(
                client
                    .push_rows(&mean, &keys, &gradients[..15], op)
                    .unwrap(),
            );
            drop(client.push_dense(&range, 0, &gradients, op).unwrap());
            let own = [u64::from(number)];
            drop(client.push_rows(&counts, &own, &[1], PushOp::Sum).unwrap());
            client.tick().unwrap();
        }
        client.flush().unwrap();
        let (mut row, mut out) = ([0.0; 15], vec![0.0; 3_000]);
        let options = PullOptions::default();
        let keys = [0, 1, 2, 3, 4];
        client.pull_rows(&mean, &keys, &mut row, options).unwrap();
        client.pull_dense(&range, 0, &mut out, options).unwrap();
        let bits = row
            .iter()
            .chain(&out)
            .map(|value| value.to_bits())
            .collect();
        (client, bits)
    };
    let mut firsts: Vec<Client> = (0..workers)
        .map(|rank| job.client_of(rank, SyncMode::Bsp).unwrap())
        .collect();
    let siblings = firsts.iter_mut().flat_map(|first| {
        let siblings = (1..threads).map(|_| first.sibling().unwrap());
        siblings.collect::<Vec<_>>()
    });
    let siblings: Vec<Client> = siblings.collect();
    let clients = firsts.into_iter().chain(siblings).collect();
    let done: Vec<(Client, Vec<u32>)> = each(clients, work);
    assert!(done.iter().all(|(_, bits)| *bits == done[0].1));
    let (mut clients, bits): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    // Siblings end first.
    clients.reverse();
    for client in &mut clients[..(all - workers) as usize] {
        client.finish().unwrap();
        client.finish().unwrap();
    }
    let seen = counts_of(clients.last_mut().unwrap(), all);
    assert_eq!(seen, vec![i64::from(ITERATIONS); all as usize]);
    (bits[0].clone(), seen)
}

/// What thread `number` of all pushes for an element. Sums of these are not exact: another order of
/// addition has other bits.
fn gradient(number: u32, iteration: u32, element: u32) -> f32 {
    let value = (number * 7919 + iteration * 104_729 + element * 31) % 2003;
    let size = 1 << (2 * ((number * 5 + iteration * 3 + element) % 5));
    (value as f32 - 1001.0) * size as f32 / 3.0
}

/// Pushes of each of `all` threads.
fn counts_of(client: &mut Client, all: u32) -> Vec<i64> {
    let table = client.open_table::<i64>("counts").unwrap();
    let keys: Vec<u64> = (0..u64::from(all)).collect();
    let mut seen = vec![0; keys.len()];
    let options = PullOptions::default();
    client.pull_rows(&table, &keys, &mut seen, options).unwrap();
    seen
}

/// Two workers of two threads add what four workers of one thread add, in the same order.
#[test]
fn threads_of_workers_have_the_bits_of_workers() {
    let four = bits_of(4, 1);
    assert_eq!(bits_of(2, 2), four);
    assert_eq!(bits_of(1, 4), four);
}

/// A sibling joins at its worker's clock and holds the others back from there on, until it finishes.
/// Calls that do not fit a thread name it.
#[test]
fn siblings_join_hold_the_clock_and_leave() {
    let cluster = cluster(LostWorker::FailJob);
    let mut all = clients(&cluster, SyncMode::Bsp);
    let thread_error = |result: Result<(), ClientError>, expected: &str| match result {
        Err(error @ ClientError::Thread { .. }) => {
            assert!(error.to_string().contains(expected), "{error}");
        }
        other => panic!("{other:?}"),
    };
    for round in 0..2 {
        for client in &mut all {
            client.set_clock_timeout(LONG);
            client.tick().unwrap();
        }
        let mut sibling = all[0].sibling().unwrap();
        assert_eq!((sibling.thread(), sibling.clock()), (1, round * 2 + 1));
        thread_error(
            sibling.barrier("b", LONG),
            "barrier by thread 1 of worker 0",
        );
        thread_error(
            sibling.all_reduce(&mut [1.0], ReduceOp::Sum),
            "all_reduce by thread 1",
        );
        thread_error(sibling.sibling().map(drop), "sibling by thread 1");
        thread_error(all[0].finish(), "finish by worker 0: threads 1");
        let second = all[0].sibling().unwrap();
        assert_eq!(second.thread(), 2);
        for client in &mut all {
            client.tick().unwrap();
        }
        // Both threads are awaited, and named.
        all[1].set_clock_timeout(Duration::from_millis(300));
        let Err(ClientError::Deadline { missing, .. }) = all[1].tick() else {
            panic!("worker 1 has waited for no thread of worker 0");
        };
        let clock = round * 2 + 1;
        let names = [1, 2].map(|n| format!("thread {n} of worker 0, at clock {clock}"));
        assert!(names.iter().all(|name| missing.contains(name)), "{missing}");
        for mut sibling in [second, sibling] {
            sibling.finish().unwrap();
        }
    }
    all[1].set_clock_timeout(LONG);
    each(all, |mut client| client.finish().unwrap());
}

/// The client of a thread that is dropped before it has finished loses its worker: the job fails, or goes
/// on without any of the worker's threads. Nothing remains of the iteration that the worker did not end.
#[test]
fn a_lost_thread_loses_its_worker() {
    for on_lost in [LostWorker::FailJob, LostWorker::GoOn] {
        let goes_on = matches!(on_lost, LostWorker::GoOn);
        let cluster = cluster(on_lost);
        let mut all = clients(&cluster, SyncMode::Bsp);
        let table = TableBuilder::sparse::<i64>("t", 1).at_clock(Reduce::Sum);
        let push = |client: &mut Client, value: i64| {
            let table = client.create_table::<i64>(table.spec()).unwrap();
            let pushed = client.push_rows(&table, &[5], &[value], PushOp::Sum);
            client.wait_applied(&pushed.unwrap()).unwrap();
        };
        let mut first = all.remove(0);
        let mut sibling = first.sibling().unwrap();
        push(&mut first, 1_000);
        first.tick().unwrap();
        push(&mut sibling, 100);
        drop(sibling);
        first.set_clock_timeout(Duration::from_secs(10));
        match first.tick() {
            Err(ClientError::ThreadLost { thread }) => assert_eq!(thread.thread, 1),
            other => panic!("{other:?}"),
        }
        let ends = each(all, |mut client| {
            let table = client.create_table::<i64>(table.spec())?;
            client.set_clock_timeout(LONG);
            drop(client.push_rows(&table, &[5], &[1], PushOp::Sum)?);
            client.tick()?;
            let mut out = [0];
            client.pull_rows(&table, &[5], &mut out, PullOptions::default())?;
            client.finish()?;
            Ok::<_, ClientError>(out)
        });
        for end in ends {
            match end {
                Ok(out) if goes_on => assert_eq!(out, [2], "no push of the lost worker"),
                Err(error) if !goes_on => {
                    assert!(
                        error.to_string().contains("thread 1 of worker 0"),
                        "{error}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A thread opens tables while its worker waits at a barrier, over the connection that they share.
#[test]
fn threads_open_tables_during_a_barrier() {
    let cluster = cluster(LostWorker::FailJob);
    let mut all = clients(&cluster, SyncMode::Asp);
    let mut sibling = all[0].sibling().unwrap();
    let waiting = all.split_off(1);
    let mut first = all.remove(0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || {
            let met = first.barrier("met", LONG);
            (first, met)
        });
        let until = Deadline::after(Duration::from_millis(300));
        sibling.set_timeout(LONG / 2);
        for number in 0.. {
            let name = format!("rows {}", number % 8);
            let table = TableBuilder::rows::<f32>(&name, 8, 1);
            sibling.create_table::<f32>(table.spec()).unwrap();
            sibling.open_table::<f32>(&name).unwrap();
            if until.passed() {
                break;
            }
        }
        sibling.finish().unwrap();
        for met in each(waiting, |mut client| client.barrier("met", LONG)) {
            met.unwrap();
        }
        let (mut first, met) = waits.join().unwrap();
        met.unwrap();
        first.finish().unwrap();
    });
}

/// Calls that were started go on while their client works; `finish` returns their results in any order. A
/// worker does not tick while its clocks are being saved.
#[test]
fn started_calls_go_on_while_their_client_works() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let cluster = cluster(LostWorker::FailJob);
    let mut all = clients(&cluster, SyncMode::Bsp);
    for client in &mut all {
        client.set_clock_timeout(LONG);
    }
    let table = |name: &str| TableBuilder::rows::<f32>(name, 8, 1);
    let mut created = all[0].start_create_table(table("a").spec()).unwrap();
    let other = all[0].create_table::<f32>(table("b").spec()).unwrap();
    let met = all[0].start_barrier("met", LONG).unwrap();
    let until = Deadline::after(LONG);
    while !all[0].test_call(&mut created).unwrap() {
        assert!(!until.passed());
    }
    let a = all[0].finish_create_table::<f32>(created).unwrap();
    assert_eq!((a.dim(), other.dim()), (1, 1));
    let pushed = all[0].push_rows(&a, &[1], &[2.0], PushOp::Sum).unwrap();
    all[0].wait_applied(&pushed).unwrap();
    // Two workers tick: the save of rank 0 waits for the third one.
    all[0].tick().unwrap();
    all[1].tick().unwrap();
    let mut save = all[0].start_save(path, LONG).unwrap();
    let mine =
        |error: Result<bool, ClientError>| matches!(error, Err(ClientError::Argument { .. }));
    assert!(mine(all[1].test_call(&mut save)), "of another client");
    for _ in 0..20 {
        assert!(
            !all[0].test_call(&mut save).unwrap(),
            "rank 2 has not ticked"
        );
    }
    let error = all[0].tick().unwrap_err().to_string();
    assert!(error.contains("under way"), "{error}");
    let error = all[0].finish().unwrap_err().to_string();
    assert!(error.contains("finish the save first"), "{error}");
    all[2].tick().unwrap();
    let (rows, _) = all[0].finish_save(save).unwrap();
    assert_eq!(rows, 16);
    let mut out = [0.0];
    let pulled = all[0].pull_rows(&a, &[1], &mut out, PullOptions::default());
    pulled.unwrap();
    assert_eq!(out[0].to_bits(), 2f32.to_bits());
    for client in &mut all[1..] {
        drop(client.start_barrier("met", LONG).unwrap());
    }
    all[0].finish_barrier(met).unwrap();
    let mut exists = all[0].start_load(path, LONG).unwrap();
    let error = loop {
        match all[0].test_call(&mut exists) {
            Ok(done) => assert!(!done),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("exists"), "{error}");
    let error = all[0].finish_load(exists).unwrap_err().to_string();
    assert!(error.contains("failed before"), "{error}");
    // A save whose call is dropped holds the tick until it is over.
    let dir = tempfile::tempdir().unwrap();
    let again = dir.path().to_str().unwrap();
    drop(all[0].start_save(again, LONG).unwrap());
    while let Err(error) = all[0].tick() {
        assert!(error.to_string().contains("under way"), "{error}");
        assert!(!until.passed());
    }
    for client in &mut all {
        client.finish().unwrap();
    }
}

/// A first client that waits at a barrier, over the connection that all threads share, learns of a lost
/// thread, and reports it.
#[test]
fn a_lost_thread_ends_the_barrier_of_its_worker() {
    let cluster = cluster(LostWorker::FailJob);
    let mut all = clients(&cluster, SyncMode::Asp);
    let sibling = all[0].sibling().unwrap();
    let mut first = all.remove(0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || first.barrier("never", LONG));
        std::thread::sleep(Duration::from_millis(100));
        drop(sibling);
        let ended = waits.join().unwrap();
        assert!(
            matches!(ended, Err(ClientError::ThreadLost { .. })),
            "{ended:?}"
        );
    });
    let error = all[0].barrier("never", LONG).unwrap_err();
    assert!(
        error.to_string().contains("thread 1 of worker 0"),
        "{error}"
    );
}

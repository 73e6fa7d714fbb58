//! Threads of a worker join and finish while the job runs, and one that is lost loses its worker.

use std::time::Duration;

use tidewater::{
    Client, ClientError, ClusterConfig, PullMode, PullOptions, ReduceOp, SyncMode, TableBuilder,
};
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_runtime::clock::Deadline;
use tidewater_service::coordinator::LostWorker;

use super::{LONG, clients, cluster, each, gradient, joined};

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
    let range = TableBuilder::range::<f32>("range", 3_000, 1).at_clock(Reduce::Sum);
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
            drop(client.push_range(&range, 0, &gradients, op).unwrap());
            let own = [u64::from(number)];
            drop(client.push_rows(&counts, &own, &[1], PushOp::Sum).unwrap());
            client.tick().unwrap();
        }
        client.flush().unwrap();
        let (mut row, mut out) = ([0.0; 15], vec![0.0; 3_000]);
        let options = PullOptions::default();
        let keys = [0, 1, 2, 3, 4];
        client.pull_rows(&mean, &keys, &mut row, options).unwrap();
        client.pull_range(&range, 0, &mut out, options).unwrap();
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

/// Threads of a worker share the locations of rows: what one has resolved, no other asks for. Catches
/// `locations-not-shared`.
#[test]
fn siblings_share_row_locations() {
    const KEYS: u64 = 5_000;
    let job = joined(ClusterConfig {
        servers: 2,
        ..ClusterConfig::default()
    });
    let mut first = job.client_of(0, SyncMode::Asp).unwrap();
    let spec = TableBuilder::sparse::<i64>("shared", 1);
    let table = first.create_table::<i64>(spec.spec()).unwrap();
    let mut second = first.sibling().unwrap();
    let same = second.open_table::<i64>("shared").unwrap();
    let keys: Vec<u64> = (0..KEYS).map(|key| key << 40 | key).collect();
    let values: Vec<i64> = (0..KEYS as i64).collect();
    let push = first
        .push_rows(&table, &keys, &values, PushOp::Sum)
        .unwrap();
    first.wait_applied(&push).unwrap();
    let mut out = vec![0; keys.len()];
    let options = PullOptions::default();
    first.pull_rows(&table, &keys, &mut out, options).unwrap();
    assert_eq!(first.counters().resolved_keys, KEYS);
    for mode in [PullMode::Consistent, PullMode::Hogwild] {
        out.fill(-1);
        second
            .pull_rows(&same, &keys, &mut out, options.mode(mode))
            .unwrap();
        assert_eq!(out, values);
    }
    assert_eq!(second.counters().resolved_keys, 0);
    // Both ways, and at once: each thread creates its own rows and pulls those of both.
    let work = |mut client: Client| {
        let table = client.open_table::<i64>("shared").unwrap();
        let own = u64::from(client.thread()) + 1;
        let (mut one, mut both) = ([0], [0; 2]);
        for n in 0..2_000u64 {
            let keys = [n << 8 | own, n << 8 | (3 - own)];
            drop(
                client
                    .push_rows(&table, &keys[..1], &[n as i64], PushOp::Assign)
                    .unwrap(),
            );
            client
                .pull_rows(&table, &keys[..1], &mut one, options)
                .unwrap();
            client.pull_rows(&table, &keys, &mut both, options).unwrap();
            assert!(both[1] == 0 || both[1] == n as i64, "{both:?} of {n}");
        }
        client.flush().unwrap();
        client
    };
    let mut all = each(vec![first, second], work);
    all.reverse();
    all.iter_mut().for_each(|client| client.finish().unwrap());
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
    let rows = all[0].finish_save(save).unwrap().rows;
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
    // A dropped save holds the tick until it is over.
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

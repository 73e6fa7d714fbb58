//! `kill -9` of worker processes at any moment, under the policy that the others go on: each acknowledged push
//! counts once, a tick counts on all servers or on none, and each record of a task counts once.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use tidewater::{
    Client, DomainId, Element, JoinOptions, Missing, PullOptions, Reduce, SyncMode, Table,
    TableBuilder,
};
use tidewater_launch::TransportChoice;
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::{AtomicBool, Ordering};
use tidewater_tasks::{QueueOptions, Tasks};

use crate::by_hand::Cluster;
use crate::rig::{LIMIT, command};

/// Variables of a worker process.
const VARIABLES: [&str; 6] = [
    "SYSTEM_TEST_COORDINATOR",
    "SYSTEM_TEST_RANK",
    "SYSTEM_TEST_KEY",
    "SYSTEM_TEST_SYNC",
    "SYSTEM_TEST_TRANSPORT",
    "SYSTEM_TEST_DIR",
];
/// Rows of a process: enough that each applier has some of them.
const ROWS: u64 = 16;
const WORKERS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(1);

/// A worker process as its test started it, with the file in which it counts.
struct Worker {
    child: Child,
    file: File,
    key: u64,
}

/// What a worker process was started with.
struct Started {
    key: u64,
    sync: SyncMode,
    dir: PathBuf,
    file: File,
}

/// Number of kills: a few, or those of `--full`.
fn kills(full: u32) -> u32 {
    match std::env::var_os("TIDEWATER_TEST_FULL") {
        Some(_) => full,
        None => 3,
    }
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::going_on(2, WORKERS);
    for number in 0..2 {
        let server = cluster.server(number).spawn().unwrap();
        cluster.servers.push(server);
    }
    cluster
}

fn counts(file: &File) -> [u64; 2] {
    let mut bytes = [0; 16];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let (words, _) = bytes.as_chunks::<8>();
    [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
}

/// Notes what was begun and what was acknowledged, by one call: a kill leaves both of before or of after it.
fn note(file: &File, [begun, acked]: [u64; 2]) {
    let bytes = [begun.to_le_bytes(), acked.to_le_bytes()].concat();
    file.write_all_at(&bytes, 0).unwrap();
}

fn ledger(dir: &Path, key: u64) -> File {
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    options.open(dir.join(format!("ledger-{key}"))).unwrap()
}

/// Starts a process that runs `program`, an ignored test of this file, as a worker.
fn start(
    cluster: &Cluster,
    program: &str,
    rank: u32,
    key: u64,
    how: (SyncMode, TransportChoice),
) -> Worker {
    let dir = &cluster.directory;
    let file = ledger(dir, key);
    note(&file, [0, 0]);
    let own = std::env::current_exe().unwrap();
    let mut worker = command(&own, &cluster.mark);
    worker.args([
        program,
        "--exact",
        "--ignored",
        "--nocapture",
        "--test-threads",
        "1",
    ]);
    let numbers = [rank.to_string(), key.to_string()];
    let sync = if how.0 == SyncMode::Asp { "asp" } else { "bsp" };
    let dir = dir.to_str().unwrap();
    let values = [
        &cluster.address,
        &numbers[0],
        &numbers[1],
        sync,
        how.1.name(),
        dir,
    ];
    worker.envs(VARIABLES.into_iter().zip(values));
    let child = worker.stdout(Stdio::null()).spawn().unwrap();
    Worker { child, file, key }
}

/// In a worker process: joins the cluster of the test.
fn join() -> (Client, Started) {
    let [address, rank, key, sync, transport, dir] =
        VARIABLES.map(|name| std::env::var(name).unwrap());
    let (dir, key) = (PathBuf::from(dir), key.parse().unwrap());
    let started = Started {
        key,
        sync: match &*sync {
            "asp" => SyncMode::Asp,
            _ => SyncMode::Bsp,
        },
        file: ledger(&dir, key),
        dir,
    };
    let options = || JoinOptions {
        coordinator: Some(address.clone()),
        token: Some(crate::by_hand::token()),
        rank: Some(rank.parse().unwrap()),
        transport: Some(transport.parse().unwrap()),
        ..JoinOptions::default()
    };
    // The rank of a killed worker is free when the coordinator knows of its end.
    let limit = Deadline::after(LIMIT);
    let mut client = loop {
        let joined = options().join().map(|joined| joined.into_job().unwrap());
        match joined.and_then(|job| job.client(started.sync)) {
            Ok(client) => break client,
            Err(error) => assert!(!limit.passed(), "{error}"),
        }
        std::thread::sleep(PAUSE);
    };
    client.set_timeout(LIMIT);
    client.set_clock_timeout(LIMIT);
    (client, started)
}

/// Waits until a worker has counted `acked`; it may not end before.
fn until(worker: &mut Worker, acked: u64) {
    let limit = Deadline::after(LIMIT);
    while counts(&worker.file)[1] < acked {
        let ended = worker.child.try_wait().unwrap();
        assert!(
            ended.is_none() && !limit.passed(),
            "process {}: {ended:?}",
            worker.key
        );
        std::thread::sleep(PAUSE);
    }
}

/// Waits until a worker has begun something.
fn until_begun(worker: &mut Worker) {
    let limit = Deadline::after(LIMIT);
    while counts(&worker.file)[0] == 0 {
        let ended = worker.child.try_wait().unwrap();
        assert!(ended.is_none() && !limit.passed(), "{ended:?}");
        std::thread::sleep(PAUSE);
    }
}

fn kill(worker: &mut Worker) {
    worker.child.kill().unwrap();
    worker.child.wait().unwrap();
}

fn create<T: Element>(client: &mut Client, name: &str, sync: SyncMode) -> Table<T> {
    let table = TableBuilder::sparse::<T>(name, 1).partitions(8);
    let table = match sync {
        SyncMode::Asp => table,
        _ => table.at_clock(Reduce::Sum),
    };
    client.create_table(table.spec()).unwrap()
}

fn rows(key: u64) -> Vec<u64> {
    (key * ROWS..(key + 1) * ROWS).collect()
}

/// A client that sees the tables and is no member of the job.
fn observer(cluster: &Cluster, transport: TransportChoice) -> Client {
    let options = JoinOptions {
        rank: None,
        observer: true,
        ..cluster.options(transport)
    };
    let job = options.join().unwrap().into_job().unwrap();
    job.observer().unwrap()
}

/// The program of `ledger_is_exact_over_killed_workers`: adds one to its rows, and ticks, until it is killed.
#[test]
#[ignore = "run by ledger_is_exact_over_killed_workers, as a worker of its cluster"]
fn ledger_worker() {
    let (mut client, worker) = join();
    let table = create::<i64>(&mut client, "ledger", worker.sync);
    let rows = rows(worker.key);
    for step in 0.. {
        // Under BSP a push that no tick follows counts nothing.
        let is_asp = worker.sync == SyncMode::Asp;
        note(&worker.file, [step + u64::from(is_asp), step]);
        let pushed = client.push_rows(&table, &rows, &[1; ROWS as usize], PushOp::Sum);
        client.wait_applied(&pushed.unwrap()).unwrap();
        std::thread::sleep(2 * PAUSE);
        note(&worker.file, [step + 1, step]);
        client.tick().unwrap();
        note(&worker.file, [step + 1, step + 1]);
    }
}

/// Compares the rows of a killed process with what it has counted. Others may have to tick until its last tick
/// has taken effect.
fn judge(observer: &mut Client, worker: &Worker, sync: SyncMode) -> bool {
    let [begun, acked] = counts(&worker.file);
    let table = observer.open_table::<i64>("ledger").unwrap();
    let limit = Deadline::after(LIMIT);
    loop {
        let mut values = [0; ROWS as usize];
        let options = PullOptions::default().missing(Missing::Initial);
        let rows = rows(worker.key);
        observer
            .pull_rows(&table, &rows, &mut values, options)
            .unwrap();
        let counted = values
            .iter()
            .all(|&n| (acked..=begun).contains(&(n as u64)));
        // What takes effect at a tick does so on all appliers or on none.
        if counted && (sync == SyncMode::Asp || values == [values[0]; ROWS as usize]) {
            return begun > acked;
        }
        let doubled = values.iter().any(|&n| n > begun as i64);
        assert!(
            !doubled && !limit.passed(),
            "{sync}: {acked} acknowledged, {begun} begun, process {}: {values:?}",
            worker.key
        );
        std::thread::sleep(PAUSE);
    }
}

fn kill_workers(sync: SyncMode, transport: TransportChoice, kills: u32) {
    const PROGRAM: &str = "kills::ledger_worker";
    let how = (sync, transport);
    let cluster = cluster();
    let mut workers: Vec<Worker> = (0..WORKERS)
        .map(|rank| start(&cluster, PROGRAM, rank, rank.into(), how))
        .collect();
    until(&mut workers[0], 1);
    let mut observer = observer(&cluster, transport);
    let (mut lost, mut open) = (Vec::new(), 0);
    for number in 0..u64::from(kills) {
        let rank = 1 + number as usize % 2;
        let random = mix64(number + 1);
        until(&mut workers[rank], 1 + random % 20);
        std::thread::sleep(Duration::from_micros((random >> 32) % 3_000));
        kill(&mut workers[rank]);
        let next = u64::from(WORKERS) + number;
        let successor = start(&cluster, PROGRAM, rank as u32, next, how);
        lost.push(std::mem::replace(&mut workers[rank], successor));
        until(&mut workers[rank], 2);
        open += u32::from(judge(&mut observer, &lost[lost.len() - 1], sync));
    }
    // Nothing came late.
    for worker in &lost {
        judge(&mut observer, worker, sync);
    }
    println!("{sync}, {transport:?}: {kills} kills, {open} of them with an open push");
    observer.finish().unwrap();
    workers.iter_mut().for_each(kill);
}

/// `kill -9` of workers: 100 over shm and 50 over tcp with `--full`.
#[test]
fn ledger_is_exact_over_killed_workers() {
    let (shm, tcp) = (kills(100), kills(50));
    kill_workers(SyncMode::Asp, TransportChoice::Shm, shm / 2);
    kill_workers(SyncMode::Bsp, TransportChoice::Shm, shm.div_ceil(2));
    kill_workers(SyncMode::Asp, TransportChoice::Tcp, tcp / 2);
    kill_workers(SyncMode::Bsp, TransportChoice::Tcp, tcp.div_ceil(2));
}

const RECORDS: u64 = 240;
/// Records of a task: more than one push of it, to all appliers.
const TASK: u64 = 24;

/// Passes over the records: enough tasks for all kills.
fn passes(kills: u32) -> u32 {
    4 + 6 * kills
}

fn queue(sync: SyncMode, kills: u32) -> QueueOptions {
    let options = QueueOptions::new("records", TASK).epochs(passes(kills));
    // The kills are the test's, whatever the task.
    let options = options.shuffled(7).losses_max(u32::MAX);
    match sync {
        SyncMode::Asp => options,
        _ => options.ticking(DomainId(0)),
    }
}

/// The tables of the records: one takes effect when a task is finished, one then or at a tick.
fn tables(client: &mut Client, sync: SyncMode) -> [Table<f64>; 2] {
    [
        create(client, "arrival", SyncMode::Asp),
        create(client, "other", sync),
    ]
}

/// The program of `records_count_once_over_killed_workers`: counts the records of its tasks, slowly while there is
/// a file `kills`, until there are no tasks.
#[test]
#[ignore = "run by records_count_once_over_killed_workers, as a worker of its cluster"]
fn task_worker() {
    let (mut client, worker) = join();
    let tables = tables(&mut client, worker.sync);
    let kills: u32 = std::fs::read_to_string(worker.dir.join("number"))
        .unwrap()
        .parse()
        .unwrap();
    let mut tasks = Tasks::count(&mut client, RECORDS, &queue(worker.sync, kills)).unwrap();
    let mut done = 0;
    while let Some(task) = tasks.next(&mut client).unwrap() {
        note(&worker.file, [done + 1, done]);
        let shard = task.shard();
        let records: Vec<u64> = (shard.first..shard.end).collect();
        for keys in records.chunks(8) {
            for table in &tables {
                let ones = vec![1.0; keys.len()];
                drop(client.push_rows(table, keys, &ones, PushOp::Sum).unwrap());
            }
            if worker.dir.join("kills").exists() {
                std::thread::sleep(20 * PAUSE);
            }
        }
        tasks.done(&mut client, task, shard.size()).unwrap();
        done += 1;
        note(&worker.file, [done, done]);
    }
    client.finish().unwrap();
}

/// Each record counts once in each pass.
fn check_counts(client: &mut Client, sync: SyncMode, kills: u32) {
    let keys: Vec<u64> = (0..RECORDS).collect();
    for table in tables(client, sync) {
        let mut counts = vec![0.0; keys.len()];
        let options = PullOptions::default();
        client
            .pull_rows(&table, &keys, &mut counts, options)
            .unwrap();
        let due = f64::from(passes(kills));
        let wrong = keys.iter().zip(&counts).find(|(_, n)| **n != due);
        assert_eq!(
            wrong, None,
            "{sync}: a record and how often it counts, not {due}"
        );
    }
}

fn kill_workers_with_tasks(sync: SyncMode, transport: TransportChoice, kills: u32) {
    const PROGRAM: &str = "kills::task_worker";
    let how = (sync, transport);
    let cluster = cluster();
    let slow = cluster.directory.join("kills");
    std::fs::write(&slow, "").unwrap();
    std::fs::write(cluster.directory.join("number"), kills.to_string()).unwrap();
    let job = cluster
        .options(transport)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let mut workers: Vec<Worker> = (1..WORKERS)
        .map(|rank| start(&cluster, PROGRAM, rank, rank.into(), how))
        .collect();
    let mut client = job.client(sync).unwrap();
    client.set_timeout(LIMIT);
    client.set_clock_timeout(LIMIT);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (client, over) = (&mut client, &over);
        // Under BSP the others wait for the ticks of this worker.
        let ticks = scope.spawn(move || {
            while !over.load(Ordering::SeqCst) {
                client.tick().unwrap();
                std::thread::sleep(PAUSE);
            }
        });
        for number in 0..u64::from(kills) {
            assert!(!ticks.is_finished(), "the first worker has failed");
            let at = number as usize % workers.len();
            let random = mix64(number + 101);
            until_begun(&mut workers[at]);
            until(&mut workers[at], random % 3);
            // At any moment of a task, also of its report.
            std::thread::sleep(Duration::from_micros((random >> 32) % 30_000));
            kill(&mut workers[at]);
            let (rank, key) = (at as u32 + 1, u64::from(WORKERS) + number);
            workers[at] = start(&cluster, PROGRAM, rank, key, how);
            until_begun(&mut workers[at]);
        }
        std::fs::remove_file(&slow).unwrap();
        for worker in &mut workers {
            let status = worker.child.wait().unwrap();
            assert!(status.success(), "a worker ends with {status:?}");
        }
        over.store(true, Ordering::SeqCst);
        ticks.join().unwrap();
    });
    client.tick().unwrap();
    client.flush().unwrap();
    check_counts(&mut client, sync, kills);
    let tasks = Tasks::count(&mut client, RECORDS, &queue(sync, kills)).unwrap();
    let status = tasks.status(&mut client).unwrap();
    assert!(status.is_over, "{status:?}");
    let counters = status.counters;
    assert_eq!(counters.records, u64::from(passes(kills)) * RECORDS);
    assert_eq!(counters.failures, 0, "a loss takes no try");
    println!(
        "{sync}, {transport:?}: {kills} kills, {} tasks given again",
        counters.recovered
    );
    client.finish().unwrap();
}

/// `kill -9` of workers with tasks, 50 times for each way of synchronisation with `--full`: each record counts once
/// a pass.
#[test]
fn records_count_once_over_killed_workers() {
    let kills = kills(50);
    kill_workers_with_tasks(SyncMode::Asp, TransportChoice::Shm, kills);
    kill_workers_with_tasks(SyncMode::Bsp, TransportChoice::Tcp, kills);
}

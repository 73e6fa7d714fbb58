//! Workers take tasks and are lost with them: every record counts exactly once.

use std::sync::Arc;
use std::time::Duration;

use tidewater::{
    Client, ClientError, ClusterConfig, DomainId, Expression, FunctionArgs, Job, PullOptions,
    PushEncoding, PushOptions, SyncMode, Table, TableBuilder, TaskRequest, TransportChoice,
};
use tidewater_data::{FileSource, MemorySource, ReadOptions};
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::{AtomicU32, AtomicU64, Ordering};
use tidewater_service::coordinator::LostWorker;
use tidewater_tasks::{CurrentTask, Delivery, QueueOptions, TaskError, TaskKind, Tasks};

use super::{LONG, joined};

const RECORDS: u64 = 1_200;
/// Records of a task: more than one push of it, to all appliers.
const TASK: u64 = 24;

fn full() -> bool {
    std::env::var("TIDEWATER_TEST_FULL").is_ok_and(|full| full == "1")
}

fn pool(workers: u32, transport: TransportChoice) -> Job {
    joined(ClusterConfig {
        servers: 2,
        appliers: 2,
        workers,
        transport,
        on_lost: LostWorker::GoOn,
        ..ClusterConfig::default()
    })
}

/// A client of a rank, which may still count as that of its lost worker.
fn client_of(job: &Job, rank: u32, sync: SyncMode) -> Client {
    let soon = Deadline::after(LONG);
    loop {
        match job.client_of(rank, sync) {
            Ok(mut client) => {
                client.set_clock_timeout(LONG);
                return client;
            }
            Err(error) => assert!(!soon.passed(), "{error}"),
        }
    }
}

/// Passes over the records: enough tasks for all losses.
fn epochs() -> u32 {
    losses() / 5
}

fn options(sync: SyncMode) -> QueueOptions {
    let options = QueueOptions::new("records", TASK).epochs(epochs());
    // The losses are the test's, whatever the task.
    let options = options.losses_max(u32::MAX);
    let options = options.shuffled(7).then(TaskKind::End);
    match sync {
        SyncMode::Asp => options,
        _ => options.ticking(DomainId(0)),
    }
}

/// The two tables of the ledger: one takes effect at ticks unless `sync` has none, one when tasks are finished.
fn ledger(client: &mut Client, sync: SyncMode) -> [Table<f64>; 2] {
    let arrival = TableBuilder::sparse::<f64>("arrival", 1).partitions(8);
    let other = TableBuilder::rows::<f64>("other", RECORDS, 1).partitions(8);
    let other = match sync {
        SyncMode::Asp => other,
        _ => other.at_clock(Reduce::Sum),
    };
    [arrival, other].map(|table| client.create_table::<f64>(table.spec()).unwrap())
}

/// Counts the records of a task, in pushes of eight.
fn count(client: &mut Client, tables: &[Table<f64>; 2], task: &CurrentTask, pushes: u64) {
    let shard = task.shard();
    let mut records = (shard.first..shard.end).collect::<Vec<_>>();
    records.truncate(usize::try_from(pushes * 8).unwrap());
    for keys in records.chunks(8) {
        for table in tables {
            let ones = vec![1.0; keys.len()];
            drop(client.push_rows(table, keys, &ones, PushOp::Sum).unwrap());
        }
    }
}

/// Ways in which a worker is lost with a task.
const WAYS: u64 = 5;

/// Loses a worker: before some of its pushes, behind all of them, behind its marks, or with its report under way.
fn lose(mut client: Client, tables: &[Table<f64>; 2], task: &CurrentTask, way: u64) {
    match way {
        0 => count(&mut client, tables, task, 1),
        1 => {
            count(&mut client, tables, task, 2);
            client.flush().unwrap();
        }
        2 => count(&mut client, tables, task, TASK),
        _ => {
            count(&mut client, tables, task, TASK);
            let delivery = client.open_task().unwrap();
            let pushed = client.mark_task().unwrap();
            let report = TaskRequest::Done {
                queue: 0,
                delivery,
                thread: client.thread(),
                records: task.shard().size(),
                pushed,
            };
            if way == 4 {
                // The coordinator may see the report, the loss of the worker follows at once.
                drop(client.request_task(report, Duration::from_millis(1)));
            }
        }
    }
    drop(client);
}

/// A worker takes tasks until there are none. While `kills` are left it is lost now and then, and another
/// worker takes its rank.
fn work(job: &Job, rank: u32, sync: SyncMode, kills: &AtomicU32) -> (Client, u64) {
    let mut random = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(u64::from(rank) + 1);
    let mut ends = 0;
    'lives: loop {
        let mut client = client_of(job, rank, sync);
        let tables = ledger(&mut client, sync);
        let options = options(sync);
        // The others have enough tasks to be lost with, however fast this one is; they wait for its ticks.
        while rank == 0 && kills.load(Ordering::SeqCst) > 0 {
            client.tick().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut tasks = Tasks::count(&mut client, RECORDS, &options).unwrap();
        while let Some(task) = tasks.next(&mut client).unwrap() {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let dies = rank > 0 && random >> 62 == 0 && task.kind() == TaskKind::Train;
            let left = |left: u32| left.checked_sub(1);
            let takes = || kills.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left);
            if dies && takes().is_ok() {
                lose(client, &tables, &task, (random >> 32) % WAYS);
                continue 'lives;
            }
            ends += u64::from(task.kind() == TaskKind::End);
            count(&mut client, &tables, &task, TASK);
            let records = task.shard().size();
            tasks.done(&mut client, task, records).unwrap();
        }
        return (client, ends);
    }
}

/// Three workers count the records of some passes. Two of them are lost again and again, at any moment of a task.
fn count_with_losses(sync: SyncMode, transport: TransportChoice, losses: u32) {
    const WORKERS: u32 = 3;
    let job = pool(WORKERS, transport);
    let kills = AtomicU32::new(losses);
    let at_work = AtomicU32::new(WORKERS - 1);
    let ends = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (job, kills, at_work, ends) = (&job, &kills, &at_work, &ends);
        for rank in 1..WORKERS {
            scope.spawn(move || {
                let (mut client, ended) = work(job, rank, sync, kills);
                ends.fetch_add(ended, Ordering::SeqCst);
                client.finish().unwrap();
                at_work.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let (mut client, ended) = work(job, 0, sync, kills);
        ends.fetch_add(ended, Ordering::SeqCst);
        while at_work.load(Ordering::SeqCst) > 0 {
            // Under BSP the others may wait for its ticks.
            client.tick().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        client.tick().unwrap();
        client.flush().unwrap();
        let tables = ledger(&mut client, sync);
        let keys: Vec<u64> = (0..RECORDS).collect();
        for table in &tables {
            let mut counts = vec![0.0; keys.len()];
            client
                .pull_rows(table, &keys, &mut counts, PullOptions::default())
                .unwrap();
            let wrong = keys
                .iter()
                .zip(&counts)
                .find(|(_, n)| **n != f64::from(epochs()));
            assert_eq!(wrong, None, "{sync}: a record and how often it counts");
        }
        let tasks = Tasks::count(&mut client, RECORDS, &options(sync)).unwrap();
        let status = tasks.status(&mut client).unwrap();
        assert!(status.is_over, "{status:?}");
        let counters = status.counters;
        assert_eq!(
            kills.load(Ordering::SeqCst),
            0,
            "too few tasks for the losses"
        );
        assert_eq!(counters.records, u64::from(epochs()) * RECORDS);
        assert_eq!(counters.finished, u64::from(epochs()) * RECORDS / TASK + 1);
        assert_eq!(counters.failures, 0);
        assert!(counters.recovered <= u64::from(losses));
        assert!(ends.load(Ordering::SeqCst) >= 1);
        client.finish().unwrap();
    });
}

fn losses() -> u32 {
    if full() { 50 } else { 10 }
}

/// Exactly once under ASP: pushes of a task take effect together.
#[test]
fn records_count_once_under_asp() {
    count_with_losses(SyncMode::Asp, TransportChoice::Shm, losses());
    count_with_losses(SyncMode::Asp, TransportChoice::Tcp, losses());
}

/// Exactly once under BSP: a finished task stays in the iteration of a worker that is lost before its tick.
#[test]
fn records_count_once_under_bsp() {
    count_with_losses(SyncMode::Bsp, TransportChoice::Shm, losses());
    count_with_losses(SyncMode::Bsp, TransportChoice::Tcp, losses());
}

/// A worker reports its task and is lost before it ticks: of its open iteration the finished task stays, and what
/// it pushed in no task is dropped.
#[test]
fn finished_tasks_outlive_their_worker() {
    let job = pool(2, TransportChoice::Shm);
    let mut client = client_of(&job, 0, SyncMode::Bsp);
    let mut lost = client_of(&job, 1, SyncMode::Bsp);
    let tables = ledger(&mut client, SyncMode::Bsp);
    let tables_of_lost = ledger(&mut lost, SyncMode::Bsp);
    let options = QueueOptions::new("records", RECORDS);
    let mut tasks = Tasks::count(&mut lost, RECORDS, &options).unwrap();
    let keys: Vec<u64> = (0..RECORDS).collect();
    let ones = vec![1.0; keys.len()];
    for table in &tables_of_lost[1..] {
        drop(lost.push_rows(table, &keys, &ones, PushOp::Sum).unwrap());
    }
    let task = tasks.next(&mut lost).unwrap().unwrap();
    count(&mut lost, &tables_of_lost, &task, RECORDS);
    assert!(tasks.done(&mut lost, task, RECORDS).unwrap());
    for table in &tables_of_lost[1..] {
        drop(lost.push_rows(table, &keys, &ones, PushOp::Sum).unwrap());
    }
    lost.flush().unwrap();
    drop(lost);
    for _ in 0..2 {
        client.tick().unwrap();
    }
    for table in &tables {
        let mut counts = vec![0.0; keys.len()];
        let options = PullOptions::default();
        client
            .pull_rows(table, &keys, &mut counts, options)
            .unwrap();
        assert!(counts.iter().all(|n| *n == 1.0), "{counts:?}");
    }
    client.finish().unwrap();
}

/// The pushes of a task are invisible before it is done, and gone when it fails. What takes effect at once is
/// refused inside a task, with the call's name.
#[test]
fn tasks_take_effect_as_a_whole() {
    let job = pool(1, TransportChoice::Shm);
    let mut client = client_of(&job, 0, SyncMode::Asp);
    let tables = ledger(&mut client, SyncMode::Asp);
    let sum = |client: &mut Client| {
        let keys: Vec<u64> = (0..RECORDS).collect();
        let mut counts = vec![0.0; keys.len()];
        let options = PullOptions::default();
        client
            .pull_rows(&tables[0], &keys, &mut counts, options)
            .unwrap();
        counts.iter().sum::<f64>()
    };
    let options = QueueOptions::new("records", 600)
        .failures_max(2)
        .allow_left_out(1);
    let mut tasks = Tasks::count(&mut client, RECORDS, &options).unwrap();
    let task = tasks.next(&mut client).unwrap().unwrap();
    count(&mut client, &tables, &task, 75);
    client.flush().unwrap();
    assert_eq!(sum(&mut client), 0.0);
    for (op, error) in [
        ("tick_domain", client.tick().unwrap_err()),
        (
            "delete_keys",
            client.delete_keys(&tables[0], &[1]).map(drop).unwrap_err(),
        ),
        ("update", {
            let one = Expression::parse("1").unwrap();
            let args = FunctionArgs::default();
            client
                .update(&tables[1], &one, &args)
                .map(drop)
                .unwrap_err()
        }),
        (
            "all_gather",
            client.all_gather(&[1.0f64]).map(drop).unwrap_err(),
        ),
        ("finish", client.finish().unwrap_err()),
    ] {
        let is_it = matches!(&error, ClientError::Argument { op: of, .. } if *of == op);
        assert!(is_it, "{op}: {error}");
    }
    assert!(tasks.done(&mut client, task, 600).unwrap());
    assert_eq!(sum(&mut client), 600.0);
    // The second task fails twice, once without a word.
    let task = tasks.next(&mut client).unwrap().unwrap();
    count(&mut client, &tables, &task, 9);
    drop(task);
    let task = tasks.next(&mut client).unwrap().unwrap();
    assert_eq!(task.failures(), 1);
    count(&mut client, &tables, &task, 9);
    tasks
        .failed(&mut client, task, "its labels are missing")
        .unwrap();
    assert_eq!(
        tasks.next(&mut client).unwrap().map(|task| task.number()),
        None
    );
    let status = tasks.status(&mut client).unwrap();
    assert_eq!(status.left_out[0].reason, "its labels are missing");
    assert_eq!(sum(&mut client), 600.0);
    // Outside of tasks pushes take effect as ever.
    let ticket = client
        .push_rows(&tables[0], &[0], &[1.0], PushOp::Sum)
        .unwrap();
    client.wait_applied(&ticket).unwrap();
    assert_eq!(sum(&mut client), 601.0);
    client.finish().unwrap();
}

/// A push that is refused fails its task, and nothing of the task counts. Another worker's late report of a
/// task that was taken back counts nothing either.
#[test]
fn refused_and_late_tasks_count_nothing() {
    let job = pool(2, TransportChoice::Shm);
    let mut client = client_of(&job, 0, SyncMode::Asp);
    let mut other = client_of(&job, 1, SyncMode::Asp);
    let spec = TableBuilder::sparse::<f64>("checked", 1).partitions(8);
    let spec = spec.finite_check(true);
    let table = client.create_table::<f64>(spec.spec()).unwrap();
    let options = QueueOptions::new("records", 8).timeout(Duration::ZERO, 0);
    let mut tasks = Tasks::count(&mut client, 8, &options).unwrap();
    let mut others = Tasks::count(&mut other, 8, &options).unwrap();
    let task = tasks.next(&mut client).unwrap().unwrap();
    let keys: Vec<u64> = (0..8).collect();
    let mut values = vec![1.0; 8];
    drop(
        client
            .push_rows(&table, &keys, &values, PushOp::Sum)
            .unwrap(),
    );
    values[3] = f64::NAN;
    drop(
        client
            .push_rows(&table, &keys, &values, PushOp::Sum)
            .unwrap(),
    );
    let refused = tasks.done(&mut client, task, 8).unwrap_err();
    assert!(refused.is_of_task(), "{refused}");
    // The time of each task is over at once: the other worker gets it too.
    let task = tasks.next(&mut client).unwrap().unwrap();
    drop(
        client
            .push_rows(&table, &keys, &[1.0; 8], PushOp::Sum)
            .unwrap(),
    );
    let table_of_other = other.open_table::<f64>("checked").unwrap();
    let again = others.next(&mut other).unwrap().unwrap();
    assert_eq!(task.number(), again.number());
    drop(
        other
            .push_rows(&table_of_other, &keys, &[10.0; 8], PushOp::Sum)
            .unwrap(),
    );
    assert!(!tasks.done(&mut client, task, 8).unwrap(), "late");
    let late = others.done(&mut other, again, 8).unwrap();
    let mut counts = vec![0.0; 8];
    client
        .pull_rows(&table, &keys, &mut counts, PullOptions::default())
        .unwrap();
    assert_eq!(counts, [if late { 10.0 } else { 0.0 }; 8]);
    drop((client, other));
}

/// A task that is not open is not done: its pushes are gone. One client has one open task, also of several queues.
#[test]
fn only_the_open_task_is_done() {
    let job = pool(1, TransportChoice::Shm);
    let mut client = client_of(&job, 0, SyncMode::Asp);
    let tables = ledger(&mut client, SyncMode::Asp);
    let options = QueueOptions::new("records", 600);
    let mut tasks = Tasks::count(&mut client, RECORDS, &options).unwrap();
    let stale = tasks.next(&mut client).unwrap().unwrap();
    count(&mut client, &tables, &stale, 9);
    let task = tasks.next(&mut client).unwrap().unwrap();
    let error = tasks.done(&mut client, stale, 600).unwrap_err();
    assert!(matches!(error, TaskError::NotOpen { number: 0 }), "{error}");
    let mut others = Tasks::count(&mut client, 8, &QueueOptions::new("others", 8)).unwrap();
    let error = others.next(&mut client).unwrap_err();
    assert!(matches!(error, TaskError::OtherTask { .. }), "{error}");
    let delivery = client.open_task().unwrap();
    let error = client.drop_task(delivery + 1).unwrap_err();
    assert!(matches!(error, ClientError::Argument { .. }), "{error}");
    assert_eq!(client.open_task(), Some(delivery));
    assert!(tasks.done(&mut client, task, 600).unwrap());
    let counters = tasks.status(&mut client).unwrap().counters;
    assert_eq!((counters.finished, counters.failures), (1, 1));
    let task = others.next(&mut client).unwrap().unwrap();
    assert!(others.done(&mut client, task, 8).unwrap());
    let another = pool(1, TransportChoice::Shm);
    let mut elsewhere = client_of(&another, 0, SyncMode::Asp);
    let error = tasks.next(&mut elsewhere).unwrap_err();
    assert!(matches!(error, TaskError::OtherClient { .. }), "{error}");
    client.finish().unwrap();
}

/// What a task cannot take back is refused inside it: pushes that are counted before they make rows, and encoded
/// ones, which leave residuals. The refusal of a push before the task does not count to it.
#[test]
fn pushes_that_cannot_be_taken_back_are_refused() {
    let job = pool(1, TransportChoice::Shm);
    let mut client = client_of(&job, 0, SyncMode::Asp);
    let tables = ledger(&mut client, SyncMode::Asp);
    let spec = TableBuilder::sparse::<f64>("counted", 1).partitions(8);
    let spec = spec.admit_after(2).finite_check(true);
    let counted = client.create_table::<f64>(spec.spec()).unwrap();
    let mut tasks = Tasks::count(&mut client, 8, &QueueOptions::new("records", 8)).unwrap();
    drop(
        client
            .push_rows(&counted, &[1], &[f64::NAN], PushOp::Sum)
            .unwrap(),
    );
    let error = tasks.next(&mut client).unwrap_err();
    let is_refusal = matches!(error, TaskError::Client(ClientError::Rejected { .. }));
    assert!(is_refusal, "{error}");
    let task = tasks.next(&mut client).unwrap().unwrap();
    assert_eq!(task.failures(), 0);
    let encoded = PushOptions::default().encoding(PushEncoding::Bf16);
    let error = client
        .push_rows_with(&tables[0], &[1], &[1.0], PushOp::Sum, encoded)
        .unwrap_err();
    assert!(error.to_string().contains("inside a task"), "{error}");
    drop(
        client
            .push_rows(&counted, &[1], &[1.0], PushOp::Sum)
            .unwrap(),
    );
    let refused = tasks.done(&mut client, task, 8).unwrap_err();
    assert!(refused.is_of_task(), "{refused}");
    let status = tasks.status(&mut client).unwrap();
    assert_eq!(status.counters.failures, 1);
    client.finish().unwrap();
}

/// A file that is gone fails its tasks by name; all others are finished, and the end names it.
#[test]
fn missing_files_fail_their_tasks_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(dir.path().join(name), "1 1:1\n-1 2:1\n".repeat(20)).unwrap();
    }
    let job = pool(1, TransportChoice::Shm);
    let mut client = client_of(&job, 0, SyncMode::Asp);
    let source = Arc::new(FileSource::new(dir.path(), None).unwrap());
    let options = QueueOptions::new("files", 60).shuffled(3);
    let mut tasks = Tasks::open(&mut client, source, &options).unwrap();
    std::fs::remove_file(dir.path().join("b")).unwrap();
    std::fs::write(dir.path().join("c"), "1 1:1\n").unwrap();
    let mut rows = 0;
    let left_out = loop {
        let task = match tasks.next(&mut client) {
            Ok(task) => task.unwrap(),
            Err(error) => break error,
        };
        let read = || -> Result<u64, TaskError> {
            let mut reader = task.rows(&ReadOptions::default())?;
            let mut rows = 0;
            while reader.advance()? {
                rows += 1;
            }
            Ok(rows)
        };
        match read() {
            Ok(read) => {
                rows += read;
                tasks.done(&mut client, task, read).unwrap();
            }
            Err(error) => tasks.failed(&mut client, task, &error.to_string()).unwrap(),
        }
    };
    assert!(matches!(left_out, TaskError::LeftOut { .. }), "{left_out}");
    assert_eq!(rows, 40, "those of one file");
    assert!(tasks.next(&mut client).unwrap().is_none());
    let status = tasks.status(&mut client).unwrap();
    let (of_b, of_c): (Vec<_>, Vec<_>) = status
        .left_out
        .iter()
        .partition(|task| task.shard.path.ends_with('b'));
    assert!(
        of_b.iter().all(|task| task.reason.contains("/b")),
        "{of_b:?}"
    );
    assert!(
        of_c.iter().all(|task| task.reason.contains("/c")),
        "{of_c:?}"
    );
    assert!(!of_b.is_empty() && !of_c.is_empty());
    assert_eq!(status.counters.failures, 3 * status.counters.left_out);
    client.finish().unwrap();
}

/// With delivery at least once, pushes take effect on arrival, and every call is allowed.
#[test]
fn at_least_once_is_by_name() {
    let job = pool(1, TransportChoice::Shm);
    let mut client = client_of(&job, 0, SyncMode::Asp);
    let tables = ledger(&mut client, SyncMode::Asp);
    let source = Arc::new(MemorySource::new("lines", vec![b"1 1:1".to_vec(); 5]));
    let options = QueueOptions::new("lines", 2).delivery(Delivery::AtLeastOnce);
    let mut tasks = Tasks::open(&mut client, source, &options).unwrap();
    let mut pushed = 0.0;
    while let Some(task) = tasks.next(&mut client).unwrap() {
        let mut rows = task.rows(&ReadOptions::default()).unwrap();
        while rows.advance().unwrap() {
            let ticket = client
                .push_rows(&tables[0], &[0], &[1.0], PushOp::Sum)
                .unwrap();
            client.wait_applied(&ticket).unwrap();
            pushed += 1.0;
            let mut count = [0.0];
            client
                .pull_rows(&tables[0], &[0], &mut count, PullOptions::default())
                .unwrap();
            assert_eq!(count, [pushed]);
        }
        client.tick().unwrap();
        assert!(tasks.done(&mut client, task, 2).unwrap());
    }
    assert_eq!(pushed, 5.0);
    client.finish().unwrap();
}

/// 64 clients take tasks without pushes: each is delivered once. Prints the rate.
#[test]
fn many_clients_take_each_task_once() {
    let tasks_of = if full() { 100_000 } else { 4_000 };
    let job = pool(64, TransportChoice::Shm);
    let clients: Vec<Client> = (0..64)
        .map(|rank| client_of(&job, rank, SyncMode::Asp))
        .collect();
    let seen: Vec<AtomicU32> = (0..tasks_of).map(|_| AtomicU32::new(0)).collect();
    let start = clock::now();
    super::each(clients, |mut client| {
        let options = QueueOptions::new("numbers", 1).kind(TaskKind::Evaluate);
        let mut tasks = Tasks::count(&mut client, tasks_of, &options).unwrap();
        while let Some(task) = tasks.next(&mut client).unwrap() {
            let number = usize::try_from(task.shard().first).unwrap();
            seen[number].fetch_add(1, Ordering::Relaxed);
            assert!(tasks.done(&mut client, task, 1).unwrap());
        }
        client.finish().unwrap();
    });
    let time = start.elapsed();
    let rate = 2.0 * tasks_of as f64 / time.as_secs_f64();
    println!("64 clients, {tasks_of} tasks: {rate:.0} requests a second");
    assert!(seen.iter().all(|times| times.load(Ordering::Relaxed) == 1));
}

//! Record feeds: batches over several tasks, and single records in a shuffled order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidewater::{Client, ClusterConfig, Job, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_data::{MemorySource, ReadOptions};
use tidewater_protocol::table::PushOp;
use tidewater_service::coordinator::LostWorker;
use tidewater_tasks::{
    Delivery, Next, QueueOptions, RecordFeed, RecordNumbers, TaskError, TaskKind, Tasks,
};

use super::joined;

fn pool(workers: u32) -> Job {
    joined(ClusterConfig {
        workers,
        on_lost: LostWorker::GoOn,
        ..ClusterConfig::default()
    })
}

fn client_of(job: &Job, rank: u32) -> Client {
    job.client_of(rank, SyncMode::Asp).unwrap()
}

fn options(task_size: u64) -> QueueOptions {
    QueueOptions::new("records", task_size).delivery(Delivery::AtLeastOnce)
}

fn numbers_of(
    client: &mut Client,
    records: u64,
    options: &QueueOptions,
) -> RecordFeed<RecordNumbers> {
    let tasks = Tasks::count(client, records, options).unwrap();
    RecordFeed::numbers(tasks).unwrap()
}

/// Counts pushes of each record.
fn counts_table(client: &mut Client) -> Table<f64> {
    let spec = TableBuilder::sparse::<f64>("counts", 1);
    client.create_table::<f64>(spec.spec()).unwrap()
}

fn push(client: &mut Client, table: &Table<f64>, numbers: &[u64]) {
    let ones = vec![1.0; numbers.len()];
    drop(
        client
            .push_rows(table, numbers, &ones, PushOp::Sum)
            .unwrap(),
    );
}

fn pushes(client: &mut Client, table: &Table<f64>, records: u64) -> Vec<f64> {
    let keys: Vec<u64> = (0..records).collect();
    let mut counts = vec![0.0; keys.len()];
    let options = PullOptions::default();
    client
        .pull_rows(table, &keys, &mut counts, options)
        .unwrap();
    counts
}

/// The next record, which is there.
fn record(feed: &mut RecordFeed<RecordNumbers>, client: &mut Client) -> u64 {
    match feed.next(client).unwrap() {
        Next::Record(number) => number,
        other => panic!("a record, not {other:?}"),
    }
}

/// Reads, pushes and reports batches until the queue is over. Returns the batches.
fn run(
    feed: &mut RecordFeed<RecordNumbers>,
    client: &mut Client,
    table: &Table<f64>,
    size: usize,
) -> Vec<Vec<u64>> {
    let (mut batch, mut batches) = (Vec::new(), Vec::new());
    loop {
        match feed.next(client).unwrap() {
            Next::Record(number) => {
                batch.push(number);
                if batch.len() < size {
                    continue;
                }
            }
            Next::Flush => assert!(!batch.is_empty(), "no flush of nothing"),
            Next::Final(kind) => assert_eq!((kind, batch.len()), (TaskKind::End, 0)),
            Next::End => break,
        }
        push(client, table, &batch);
        feed.done(client, batch.len() as u64).unwrap();
        if !batch.is_empty() {
            batches.push(std::mem::take(&mut batch));
        }
    }
    assert!(batch.is_empty());
    assert_eq!(feed.held(), 0);
    batches
}

/// Batches of 7 over tasks of 10: one worker is lost when it has read 14 records, pushed 9 and reported these. The
/// other one does the rest. Each record counts at least once, and each task is finished once.
#[test]
fn batches_span_tasks_and_a_loss() {
    const RECORDS: u64 = 50;
    let job = pool(2);
    let mut client = client_of(&job, 0);
    let mut lost = client_of(&job, 1);
    let table = counts_table(&mut client);
    let options = options(10).then(TaskKind::End);
    let mut feed_of_lost = numbers_of(&mut lost, RECORDS, &options);
    let read: Vec<u64> = (0..14)
        .map(|_| record(&mut feed_of_lost, &mut lost))
        .collect();
    let table_of_lost = lost.open_table::<f64>("counts").unwrap();
    push(&mut lost, &table_of_lost, &read[..9]);
    assert_eq!(feed_of_lost.done(&mut lost, 9).unwrap(), 0);
    lost.flush().unwrap();
    let mut feed = numbers_of(&mut client, RECORDS, &options);
    let first: Vec<u64> = (0..7).map(|_| record(&mut feed, &mut client)).collect();
    push(&mut client, &table, &first);
    assert_eq!(feed.done(&mut client, 7).unwrap(), 0);
    drop((feed_of_lost, lost));
    let batches = run(&mut feed, &mut client, &table, 7);
    assert!(batches.iter().any(|batch| batch.len() == 7));
    let counts = pushes(&mut client, &table, RECORDS);
    assert!(counts.iter().all(|&n| n >= 1.0), "{counts:?}");
    assert_eq!(counts.iter().sum::<f64>(), 59.0, "nine come twice");
    let counters = feed.status(&mut client).unwrap().counters;
    assert_eq!((counters.finished, counters.records), (6, RECORDS));
    assert_eq!((counters.late, counters.failures), (0, 0));
    client.finish().unwrap();
}

/// A task is reported with its last record, although the next one is read already, and a batch of three tasks
/// reports all of them. More records than were read are refused, and count nothing.
#[test]
fn tasks_are_reported_at_last_record() {
    let job = pool(1);
    let mut client = client_of(&job, 0);
    let mut feed = numbers_of(&mut client, 35, &options(10));
    let finished = |feed: &RecordFeed<_>, client: &mut Client| {
        let counters = feed.status(client).unwrap().counters;
        (counters.finished, counters.open)
    };
    assert!(feed.task().is_none());
    for number in 0..11 {
        assert_eq!(record(&mut feed, &mut client), number);
    }
    assert_eq!(feed.task().unwrap().shard().first, 10);
    assert_eq!(feed.done(&mut client, 9).unwrap(), 0);
    assert_eq!(finished(&feed, &mut client), (0, 3));
    let many = feed.done(&mut client, 3).unwrap_err();
    assert!(
        matches!(many, TaskError::NotRead { count: 3, read: 2 }),
        "{many}"
    );
    assert_eq!(feed.done(&mut client, 1).unwrap(), 1);
    assert_eq!(finished(&feed, &mut client), (1, 2));
    // The end of the second task is found without another record.
    for number in 11..20 {
        assert_eq!(record(&mut feed, &mut client), number);
    }
    assert_eq!(feed.done(&mut client, 10).unwrap(), 1);
    for number in 20..35 {
        assert_eq!(record(&mut feed, &mut client), number);
    }
    assert_eq!(feed.next(&mut client).unwrap(), Next::Flush);
    assert_eq!(feed.next(&mut client).unwrap(), Next::Flush);
    assert_eq!(feed.done(&mut client, 15).unwrap(), 2);
    assert_eq!(feed.next(&mut client).unwrap(), Next::End);
    let nothing = feed.done(&mut client, 1).unwrap_err();
    assert!(matches!(nothing, TaskError::NotRead { count: 1, read: 0 }));
    client.finish().unwrap();
}

/// The next task is taken with the first record of the one before, and no more than the stated number is held:
/// that of the feed, and that of the queue. At the limit a batch is cut, and nothing blocks.
#[test]
fn held_tasks_stay_within_limits() {
    let job = pool(1);
    let mut client = client_of(&job, 0);
    let table = counts_table(&mut client);
    for (name, of_feed, of_queue, held) in
        [("ahead", 8, 0, 2), ("one", 1, 0, 1), ("queue", 8, 1, 1)]
    {
        let options = QueueOptions::new(name, 10).delivery(Delivery::AtLeastOnce);
        let tasks = Tasks::count(&mut client, 40, &options.held_max(of_queue)).unwrap();
        let mut feed = RecordFeed::numbers(tasks).unwrap().held_max(of_feed);
        record(&mut feed, &mut client);
        assert_eq!(feed.held(), held, "{name}");
        assert_eq!(feed.done(&mut client, 1).unwrap(), 0);
        let batches = run(&mut feed, &mut client, &table, 25);
        let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
        match held {
            1 => assert_eq!(sizes, [9, 10, 10, 10], "{name}"),
            _ => assert_eq!(sizes, [25, 14], "{name}"),
        }
    }
    client.finish().unwrap();
}

/// The end of a strict pass: the feed gives its partial batch, since no task comes before it is done. Two workers
/// that both hold one would else wait for each other.
#[test]
fn strict_pass_flushes_its_last_batch() {
    let job = pool(1);
    let mut client = client_of(&job, 0);
    let table = counts_table(&mut client);
    let options = options(10).epochs(2).strict_epochs().then(TaskKind::End);
    let mut feed = numbers_of(&mut client, 10, &options);
    let batches = run(&mut feed, &mut client, &table, 7);
    let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
    assert_eq!(sizes, [7, 3, 7, 3]);
    client.finish().unwrap();
}

/// The time of a feed's tasks is over and another worker finishes them, so that the feed takes the final task while its
/// own records are not done. The program gets the final task before it is reported.
#[test]
fn final_task_is_given_before_it_is_reported() {
    let job = pool(2);
    let (mut client, mut other) = (client_of(&job, 0), client_of(&job, 1));
    let options = options(5)
        .timeout(Duration::from_millis(500), 1)
        .then(TaskKind::Save);
    let mut feed = numbers_of(&mut client, 10, &options);
    for _ in 0..10 {
        record(&mut feed, &mut client);
    }
    let mut tasks = Tasks::count(&mut other, 10, &options).unwrap();
    for _ in 0..2 {
        let task = tasks.next(&mut other).unwrap().unwrap();
        assert_eq!(task.kind(), TaskKind::Train);
        assert!(tasks.done(&mut other, task, 5).unwrap());
    }
    assert_eq!(feed.next(&mut client).unwrap(), Next::Flush);
    assert_eq!(
        feed.done(&mut client, 10).unwrap(),
        0,
        "others have finished them"
    );
    assert_eq!(feed.status(&mut client).unwrap().counters.finished, 2);
    assert_eq!(feed.next(&mut client).unwrap(), Next::Final(TaskKind::Save));
    assert_eq!(feed.done(&mut client, 0).unwrap(), 1);
    assert_eq!(feed.next(&mut client).unwrap(), Next::End);
    client.finish().unwrap();
    other.finish().unwrap();
}

/// A queue of no records has no batch, and its final task. Exactly-once delivery is refused with the way out.
#[test]
fn empty_queue_and_other_delivery() {
    let job = pool(1);
    let mut client = client_of(&job, 0);
    let table = counts_table(&mut client);
    let mut feed = numbers_of(&mut client, 0, &options(10).then(TaskKind::End));
    assert_eq!(feed.next(&mut client).unwrap(), Next::Final(TaskKind::End));
    assert!(run(&mut feed, &mut client, &table, 7).is_empty());
    assert_eq!(feed.status(&mut client).unwrap().counters.finished, 1);
    let exact = Tasks::count(&mut client, 9, &QueueOptions::new("exact", 3)).unwrap();
    let refused = RecordFeed::numbers(exact).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("open the queue with `Delivery::AtLeastOnce`"),
        "{refused}"
    );
    client.finish().unwrap();
}

/// A record that cannot be read fails its task by name, after two tries for good. The others go on, and what was
/// read of it counts in the reports all the same.
#[test]
fn unreadable_record_fails_its_task() {
    let job = pool(1);
    let mut client = client_of(&job, 0);
    let mut lines: Vec<Vec<u8>> = (1..=24).map(|n| format!("1 {n}:1").into()).collect();
    lines[13] = b"nonsense".to_vec();
    let source = Arc::new(MemorySource::new("lines", lines));
    let options = options(6).failures_max(2);
    let tasks = Tasks::open(&mut client, source, &options).unwrap();
    let mut feed = RecordFeed::rows(tasks, &ReadOptions::default()).unwrap();
    let (mut keys, mut rows, mut left_out) = (Vec::new(), 0, None);
    loop {
        match feed.next(&mut client) {
            Ok(Next::Record(row)) => {
                keys.push(row.keys[0]);
                rows += 1;
                if rows < 7 {
                    continue;
                }
            }
            Ok(Next::End) => break,
            Ok(_) => {}
            Err(error) => left_out = Some(error),
        }
        feed.done(&mut client, rows).unwrap();
        rows = 0;
    }
    let all: BTreeSet<u64> = keys.iter().copied().collect();
    // The task of rows 13 to 18 gave its first row twice.
    assert_eq!((keys.len(), all.len()), (20, 19), "{keys:?}");
    let counters = feed.status(&mut client).unwrap().counters;
    assert_eq!(
        (counters.finished, counters.records, counters.failures),
        (3, 18, 2)
    );
    let left_out = left_out.unwrap().to_string();
    assert!(left_out.contains("[12, 18) of \"lines\""), "{left_out}");
    client.finish().unwrap();
}

/// A refused push fails each task with a record that is done, and the task is given again; the other tasks count.
#[test]
fn refused_push_fails_its_tasks() {
    let job = pool(1);
    let mut client = client_of(&job, 0);
    let spec = TableBuilder::sparse::<f64>("checked", 1).finite_check(true);
    let table = client.create_table::<f64>(spec.spec()).unwrap();
    let mut feed = numbers_of(&mut client, 20, &options(5));
    let first: Vec<u64> = (0..7).map(|_| record(&mut feed, &mut client)).collect();
    drop(
        client
            .push_rows(&table, &first, &[f64::NAN; 7], PushOp::Sum)
            .unwrap(),
    );
    let refused = feed.done(&mut client, 7).unwrap_err();
    assert!(refused.is_of_task(), "{refused}");
    let batches = run(&mut feed, &mut client, &table, 7);
    let again: BTreeSet<u64> = batches.into_iter().flatten().collect();
    assert!((0..20).all(|number| again.contains(&number)), "{again:?}");
    let counters = feed.status(&mut client).unwrap().counters;
    assert_eq!(
        (counters.finished, counters.records, counters.failures),
        (4, 20, 2)
    );
    client.finish().unwrap();
}

/// Two workers take turns over all tasks of two passes: each pass has every record once, in an order of its own,
/// which is that of the seed in another job too.
#[test]
fn shuffled_records_are_the_data() {
    let passes = |records: u64, seed: u64| {
        let job = pool(2);
        let mut clients = [client_of(&job, 0), client_of(&job, 1)];
        let options = options(3).epochs(2).shuffled_records(seed);
        let mut queues: Vec<Tasks> = clients
            .iter_mut()
            .map(|client| Tasks::count(client, records, &options).unwrap())
            .collect();
        let mut passes: [Vec<u64>; 2] = [Vec::new(), Vec::new()];
        let mut is_over = false;
        while !is_over {
            for (client, tasks) in clients.iter_mut().zip(&mut queues) {
                let Some(task) = tasks.next(client).unwrap() else {
                    is_over = true;
                    continue;
                };
                let of_task: Vec<u64> = task.record_numbers().unwrap().collect();
                assert_eq!(of_task.len() as u64, task.shard().size());
                passes[task.epoch() as usize].extend(&of_task);
                tasks.done(client, task, of_task.len() as u64).unwrap();
            }
        }
        for mut client in clients {
            client.finish().unwrap();
        }
        passes
    };
    for records in [0, 1, 7, 10, 1000] {
        let orders = passes(records, 7);
        for pass in &orders {
            let mut sorted = pass.clone();
            sorted.sort_unstable();
            assert!(sorted.iter().copied().eq(0..records), "{pass:?}");
        }
        if records >= 7 {
            assert_ne!(orders[0], orders[1]);
        }
        if records == 10 {
            assert_eq!(orders, passes(records, 7));
            assert_ne!(orders, passes(records, 8));
        }
    }
}

/// A worker with another seed or number of records is refused. So are files, of which a task is read from its start.
#[test]
fn other_record_orders_are_refused() {
    let job = pool(2);
    let (mut client, mut other) = (client_of(&job, 0), client_of(&job, 1));
    let seeded = options(3).shuffled_records(7);
    let mut tasks = Tasks::count(&mut client, 10, &seeded).unwrap();
    let mut refusal = |records: u64, options: &QueueOptions| {
        Tasks::count(&mut other, records, options)
            .unwrap_err()
            .to_string()
    };
    let other_seed = refusal(10, &options(3).shuffled_records(8));
    assert!(
        other_seed.contains("another seed of its records"),
        "{other_seed}"
    );
    let no_seed = refusal(10, &options(3));
    assert!(no_seed.contains("another seed of its records"), "{no_seed}");
    let count = refusal(11, &seeded);
    assert!(count.contains("another number of records"), "{count}");
    let lines = vec![b"1 1:1".to_vec(); 4];
    let source = Arc::new(MemorySource::new("lines", lines));
    let files = Tasks::open(&mut client, source, &options(2).shuffled_records(7)).unwrap_err();
    assert!(matches!(files, TaskError::ShuffledSource { .. }), "{files}");
    // Tasks that are lost, taken back or failed have their numbers again.
    let task = tasks.next(&mut client).unwrap().unwrap();
    let (number, before) = (task.number(), task.record_numbers().unwrap());
    let before: Vec<u64> = before.collect();
    tasks.failed(&mut client, task, "again").unwrap();
    while let Some(task) = tasks.next(&mut client).unwrap() {
        let numbers: Vec<u64> = task.record_numbers().unwrap().collect();
        assert!(task.number() != number || numbers == before);
        tasks.done(&mut client, task, 0).unwrap();
    }
    client.finish().unwrap();
    other.finish().unwrap();
}

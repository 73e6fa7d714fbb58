//! The model of a9a trained by tasks, of which a lost worker's are given again, next to the trainer's, which
//! divides the file into one part for each worker. The trainer's run is under BSP: without a bound on staleness
//! its own runs are up to 2e-3 apart.

use std::sync::{Arc, Mutex};

use tidewater::{ClusterConfig, PushOp, TransportChoice};
use tidewater_data::FileSource;
use tidewater_service::coordinator::LostWorker;
use tidewater_tasks::{QueueOptions, Tasks};
use tidewater_train::metrics::{Scored, auc_exact};
use tidewater_train::model::{LogisticStep, log_loss_of_margin};

use super::*;

/// Bytes of a task: a mini-batch of some 64 rows.
const TASK: u64 = 4_608;
const WORKERS: u32 = 3;
/// Tasks after which the last worker is lost, with the next one.
const UNTIL_LOST: u64 = 50;
/// Tasks between two points of the first worker's curve.
const BETWEEN: u64 = 60;
const MOST: f64 = 1e-3;

/// Log-loss and AUC on the test part.
#[derive(Debug, Clone, Copy)]
struct Figures {
    log_loss: f64,
    auc: f64,
}

/// The weights of a model on the test part.
fn figures(client: &mut Client, test: &Dataset, config: &Config) -> Figures {
    let table = client.open_table::<f32>(config::WEIGHTS).unwrap();
    let bias = config.model().bias_key.unwrap();
    let keys: Vec<u64> = (0..123).chain([bias]).collect();
    let mut weights = vec![0.0; keys.len()];
    let options = PullOptions::default().missing(Missing::Initial);
    let pulled = client.pull_rows(&table, &keys, &mut weights, options);
    pulled.unwrap();
    let weight = |key: u64| f64::from(weights[key as usize]);
    let mut scores: Vec<Scored> = Vec::new();
    let mut loss = 0.0;
    for row in test.iter() {
        let terms = row.keys.iter().zip(row.values);
        let sum: f64 = terms.map(|(&key, &x)| weight(key) * f64::from(x)).sum();
        let margin = f64::from(weights[123]) + sum;
        loss += log_loss_of_margin(margin, row.label.into());
        scores.push(Scored {
            score: margin as f32,
            positive: row.label == 1.0,
        });
    }
    Figures {
        log_loss: loss / test.rows() as f64,
        auc: auc_exact(&mut scores).unwrap(),
    }
}

/// One worker, until no task is left or, if `until` says so, until it is lost. Returns the records of its tasks.
fn work(
    client: &mut Client,
    config: &Config,
    until: Option<u64>,
    mut between: impl FnMut(&mut Client),
) -> u64 {
    let table = client.create_table::<f32>(&config.table()).unwrap();
    let source = Arc::new(FileSource::new(&config.train, None).unwrap());
    let options = QueueOptions::new("train", TASK);
    let options = options.epochs(config.epochs as u32).shuffled(config.seed);
    let mut tasks = Tasks::open(client, source, &options).unwrap();
    let mut step = LogisticStep::new(config.model());
    let mut weights = Vec::new();
    let (mut records, mut taken) = (0, 0);
    while let Some(task) = tasks.next(client).unwrap() {
        let mut rows = task.rows(&config.read).unwrap();
        let mut batch = Dataset::new();
        while rows.advance().unwrap() {
            let row = rows.row();
            batch.push(row.label, row.keys, row.values).unwrap();
        }
        let count = batch.rows();
        let plan = BatchPlan::new(&batch, NonZeroUsize::new(count).unwrap());
        let batch = plan.batch(0);
        let keys = step.prepare(&batch);
        weights.resize(keys.len(), 0.0);
        let pull = PullOptions::default();
        client.pull_rows(&table, keys, &mut weights, pull).unwrap();
        step.compute(&batch, &weights).unwrap();
        let (keys, gradient) = (step.keys(), step.gradient());
        let push = client.push_rows(&table, keys, gradient, PushOp::Gradient);
        let _ticket = push.unwrap();
        if until == Some(taken) {
            client.flush().unwrap();
            return records;
        }
        assert!(tasks.done(client, task, count as u64).unwrap());
        records += count as u64;
        taken += 1;
        if taken.is_multiple_of(BETWEEN) {
            between(client);
        }
    }
    records
}

/// Two passes by tasks over three workers, one of which is lost with a task under way.
fn by_tasks(config: &Config, test: &Dataset) -> (Figures, Vec<Figures>) {
    let cluster = ClusterConfig {
        servers: 2,
        appliers: 2,
        workers: WORKERS,
        transport: TransportChoice::Shm,
        on_lost: LostWorker::GoOn,
        ..ClusterConfig::default()
    };
    let job = JoinOptions::from(cluster).join().unwrap();
    let job = job.into_job().unwrap();
    let curve = Mutex::new(Vec::new());
    let records: u64 = std::thread::scope(|scope| {
        let worker = |rank: u32| {
            let mut client = job.client_of(rank, config.sync).unwrap();
            let until = (rank == WORKERS - 1).then_some(UNTIL_LOST);
            let records = work(&mut client, config, until, |client| {
                if rank == 0 {
                    curve.lock().unwrap().push(figures(client, test, config));
                }
            });
            match until {
                // Without a farewell: the coordinator finds the worker lost.
                Some(_) => drop(client),
                None => client.finish().unwrap(),
            }
            records
        };
        let handles: Vec<_> = (0..WORKERS)
            .map(|r| scope.spawn(move || worker(r)))
            .collect();
        handles.into_iter().map(|h| h.join().unwrap()).sum()
    });
    assert_eq!(records, 2 * 32_561, "each record once in each pass");
    let mut client = job.client_of(WORKERS - 1, config.sync).unwrap();
    let end = figures(&mut client, test, config);
    client.finish().unwrap();
    (end, curve.into_inner().unwrap())
}

#[test]
fn tasks_train_as_parts_of_the_file_do() {
    let Some(folder) = a9a() else { return };
    let mut config = Config::new(folder.join("a9a.train.libsvm"));
    // At the default rate the last steps move the log-loss by more than is compared.
    config.optimizer = config.optimizer.with_rate(0.04);
    // A step of all workers has the rows of a task.
    config.batch_rows = NonZeroUsize::new(64 / WORKERS as usize).unwrap();
    config.epochs = 2;
    let test = read(&folder.join("a9a.test.dummy"), &config.read).unwrap();
    let parts = cluster(Shm, WORKERS);
    let mut by_parts = None;
    std::thread::scope(|scope| {
        let worker = |rank: u32| {
            let mut client = parts.client(rank, config.sync);
            let end = run(&mut client, &config, &mut Program::default());
            assert!(matches!(end.unwrap(), Outcome::Done(_)));
            let figures = (rank == 0).then(|| figures(&mut client, &test, &config));
            client.finish().unwrap();
            figures
        };
        let handles: Vec<_> = (0..WORKERS)
            .map(|rank| scope.spawn(move || worker(rank)))
            .collect();
        for handle in handles {
            by_parts = by_parts.or(handle.join().unwrap());
        }
    });
    let by_parts = by_parts.unwrap();
    config.sync = SyncMode::Asp;
    config.batch_rows = NonZeroUsize::new(64).unwrap();
    let (by_tasks, curve) = by_tasks(&config, &test);
    println!("by parts {by_parts:?}, by tasks {by_tasks:?}");
    curve.iter().for_each(|point| println!("  {point:?}"));
    assert!((by_parts.log_loss - by_tasks.log_loss).abs() < MOST);
    assert!((by_parts.auc - by_tasks.auc).abs() < MOST);
    let (first, last) = (curve.first().unwrap(), curve.last().unwrap());
    assert!(curve.len() >= 4 && last.log_loss < first.log_loss);
}

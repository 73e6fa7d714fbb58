// long: one rig for runs of the trainer.

//! The trainer on clusters over shared memory and TCP: under BSP the reference trainer's bits, otherwise
//! its quality, and a common end in every case.

#![allow(
    clippy::unwrap_used,
    reason = "a test crate: its helpers panic as its tests do"
)]
#![allow(clippy::print_stdout, reason = "a test says what it measured")]

#[path = "trainer/tasks.rs"]
mod tasks;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tidewater::{Client, JoinOptions, Missing, PullOptions, SyncMode};
use tidewater_checkpoint::{Manifest, read_manifest};
use tidewater_lanes::fabric::TransportKind::{self, Shm, Tcp};
use tidewater_protocol::table::Optimizer;
use tidewater_testkit::threads::Cluster;
use tidewater_train::data::{BatchPlan, Dataset, ReadOptions, read, read_part};
use tidewater_train::generate::{Synthetic, SyntheticSpec};
use tidewater_train::reference::Reference;
use tidewater_train::{
    Config, Decay, EpochReport, EvaluationReport, Host, Outcome, Report, Resumed, TrainError,
    config, defaults, run,
};

const TRAIN_ROWS: u64 = 4_000;

/// Writes a small set: 4,000 rows to train on, 1,000 to test.
fn files() -> (TempDir, Config) {
    let dir = tempfile::tempdir().unwrap();
    let spec = SyntheticSpec {
        features: 500,
        ..SyntheticSpec::default()
    };
    let set = Synthetic::new(spec).unwrap();
    for (name, rows) in [
        ("train", 0..TRAIN_ROWS),
        ("test", TRAIN_ROWS..TRAIN_ROWS + 1_000),
    ] {
        let mut file = BufWriter::new(File::create(dir.path().join(name)).unwrap());
        set.write_libsvm(rows, &mut file).unwrap();
        file.flush().unwrap();
    }
    let mut config = Config::new(dir.path().join("train"));
    config.test = Some(dir.path().join("test"));
    config.batch_rows = NonZeroUsize::new(32).unwrap();
    config.epochs = 2;
    (dir, config)
}

/// A program around the loop: counts epochs, and gets a signal at the `n`th query.
#[derive(Default)]
struct Program {
    epochs: Vec<EpochReport>,
    evaluations: Vec<EvaluationReport>,
    resumed: Option<Resumed>,
    signal_at: Option<usize>,
    asked: usize,
}

impl Host for Program {
    /// The signal comes late in the query: without a staleness bound the other workers have reached the end
    /// of the epoch by then.
    fn signal(&mut self) -> Option<i32> {
        self.asked += 1;
        self.signal_at.filter(|&at| self.asked >= at)?;
        std::thread::sleep(Duration::from_millis(200));
        Some(15)
    }

    fn resumed(&mut self, resumed: &Resumed) {
        self.resumed = Some(resumed.clone());
    }

    fn epoch_done(&mut self, epoch: &EpochReport) {
        self.epochs.push(epoch.clone());
    }

    fn evaluated(&mut self, evaluation: &EvaluationReport) {
        self.evaluations.push(evaluation.clone());
    }
}

/// State of one worker at the end.
struct End {
    outcome: Result<Outcome, TrainError>,
    weights: Vec<f32>,
    clock: u64,
    program: Program,
}

/// Runs all workers; each pulls the weights of `keys` afterwards. `signal` = (worker, query).
fn train(
    cluster: &Cluster,
    workers: u32,
    config: &Config,
    asked: (&[u64], Option<(u32, usize)>),
) -> Vec<End> {
    train_with(
        |rank| cluster.client(rank, config.sync),
        workers,
        config,
        asked,
    )
}

/// As [`train`], with these clients.
fn train_with(
    connect: impl Fn(u32) -> Client + Sync,
    workers: u32,
    config: &Config,
    (keys, signal): (&[u64], Option<(u32, usize)>),
) -> Vec<End> {
    let connect = &connect;
    let worker = |rank: u32| {
        let mut client = connect(rank);
        client.set_timeout(Duration::from_secs(20));
        client.set_clock_timeout(Duration::from_secs(20));
        let mut program = Program {
            signal_at: signal.filter(|s| s.0 == rank).map(|s| s.1),
            ..Program::default()
        };
        let outcome = run(&mut client, config, &mut program);
        let mut weights = vec![0.0; keys.len()];
        if outcome.is_ok() {
            let table = client.open_table::<f32>(config::WEIGHTS).unwrap();
            let options = PullOptions::default().missing(Missing::Initial);
            client
                .pull_rows(&table, keys, &mut weights, options)
                .unwrap();
            client.finish().unwrap();
        }
        End {
            outcome,
            weights,
            clock: client.clock(),
            program,
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|rank| scope.spawn(move || worker(rank)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Report of a run that must have succeeded.
fn report(ends: &[End]) -> &Report {
    for (rank, end) in ends.iter().enumerate().skip(1) {
        assert!(
            matches!(end.outcome, Ok(Outcome::Done(None))),
            "{rank}: {:?}",
            end.outcome
        );
    }
    match &ends[0].outcome {
        Ok(Outcome::Done(Some(report))) => report,
        other => panic!("{other:?}"),
    }
}

/// Runs the same training on local arrays.
fn reference(config: &Config, workers: u32) -> Reference {
    let mut model = Reference::new(config.model(), config.optimizer, defaults::REDUCE);
    let part = |w| read_part(&config.train, w, workers, &config.read).unwrap();
    let parts: Vec<Dataset> = (0..workers).map(part).collect();
    let mut plans: Vec<_> = parts
        .iter()
        .map(|part| BatchPlan::new(part, config.batch_rows))
        .collect();
    for epoch in 0..config.epochs {
        for (rank, plan) in (0..).zip(&mut plans) {
            plan.shuffle(config.seed + rank, epoch);
        }
        let steps = plans.iter().map(BatchPlan::len).max().unwrap_or(0);
        let rates = config.decay.schedule(config.optimizer.rate(), steps as u64);
        for index in 0..steps {
            let rate = rates.at(epoch * steps as u64 + index as u64);
            model.set_optimizer(config.optimizer.with_rate(rate));
            let batches: Vec<_> = plans.iter().map(|plan| plan.batch(index)).collect();
            model.step(&batches).unwrap();
        }
    }
    model
}

fn cluster(transport: TransportKind, workers: u32) -> Cluster {
    Cluster::start(transport, 2, 2, workers)
}

fn check_bits(transport: TransportKind, workers: u32, config: &Config) {
    let oracle = reference(config, workers);
    let (keys, due): (Vec<u64>, Vec<f32>) = oracle.weights().unzip();
    let ends = train(&cluster(transport, workers), workers, config, (&keys, None));
    let figures = report(&ends);
    let bits = |weights: &[f32]| -> Vec<u32> { weights.iter().map(|w| w.to_bits()).collect() };
    for end in &ends {
        assert_eq!(bits(&end.weights), bits(&due), "{transport} {workers}");
    }
    let zeros = due.iter().filter(|&&w| w == 0.0).count() as u64;
    assert_eq!(
        (figures.weights, figures.zero_weights),
        (keys.len() as u64, zeros)
    );
    assert_eq!(figures.rows, TRAIN_ROWS * config.epochs);
    let test = read(config.test.as_ref().unwrap(), &ReadOptions::default()).unwrap();
    let evaluation = oracle.evaluate(&test).unwrap();
    assert_eq!(figures.log_loss, evaluation.log_loss());
    assert_eq!(figures.accuracy, evaluation.accuracy());
    assert_eq!(figures.rmse, evaluation.rmse());
    assert_eq!(figures.test_positives, evaluation.positives());
    for found in &ends[0].program.evaluations {
        assert_eq!(
            [found.first_clock, found.last_clock],
            [found.step; 2],
            "one version, after each step"
        );
        let rows: Vec<u64> = found.parts.iter().map(|part| part.rows).collect();
        assert_eq!((rows.len(), rows.iter().sum()), (workers as usize, 1_000));
    }
    let estimate = evaluation.auc().unwrap();
    let auc = figures.auc.unwrap();
    assert!(
        (auc - estimate.auc).abs() <= estimate.error + 1e-6 && auc > 0.78,
        "{auc}"
    );
}

#[test]
fn one_worker_under_bsp_is_the_reference_bit_for_bit() {
    let (_dir, mut config) = files();
    for optimizer in [defaults::ADAGRAD, defaults::SGD, defaults::FTRL] {
        config.optimizer = optimizer;
        check_bits(Shm, 1, &config);
    }
    check_bits(Tcp, 1, &config);
}

#[test]
fn four_workers_under_bsp_are_the_reference_bit_for_bit() {
    let (_dir, mut config) = files();
    for (transport, optimizer) in [(Shm, defaults::ADAGRAD), (Tcp, defaults::FTRL)] {
        config.optimizer = optimizer;
        check_bits(transport, 4, &config);
    }
}

/// Evaluations between steps leave the bits of the training as they are.
#[test]
fn evaluations_do_not_change_training() {
    let (_dir, mut config) = files();
    config.evaluate = "20steps".parse().ok();
    check_bits(Shm, 3, &config);
}

/// A worker that ends early, while others are at an evaluation, takes them with it; without a bound on staleness they
/// are at different steps. Time as a distance needs such a bound.
#[test]
fn stopped_run_ends_at_evaluations_too() {
    let (_dir, mut config) = files();
    config.epochs = 1_000_000;
    for (sync, every) in [(SyncMode::Asp, "3steps"), (SyncMode::Ssp(1), "1s")] {
        (config.sync, config.evaluate) = (sync, every.parse().ok());
        // A fast machine takes many steps in a second: the run is stopped later until it has evaluated.
        let mut steps = 200;
        loop {
            let ends = train(&cluster(Shm, 3), 3, &config, (&[], Some((1, steps))));
            for end in &ends {
                let outcome = &end.outcome;
                assert!(matches!(outcome, Ok(Outcome::Stopped(15))), "{outcome:?}");
            }
            if !ends[0].program.evaluations.is_empty() {
                break;
            }
            assert!(steps < 1 << 30, "{sync} {every}: no evaluation");
            steps *= 8;
        }
    }
    config.sync = SyncMode::Asp;
    let ends = train(&cluster(Shm, 1), 1, &config, (&[], None));
    assert!(matches!(ends[0].outcome, Err(TrainError::NoCommonStep)));
}

#[test]
fn stale_and_asynchronous_runs_reach_the_references_quality() {
    let (_dir, mut config) = files();
    config.epochs = 4;
    config.evaluate = "1epoch".parse().ok();
    let test = read(config.test.as_ref().unwrap(), &ReadOptions::default()).unwrap();
    for (transport, workers, sync) in [
        (Shm, 1, SyncMode::Asp),
        (Shm, 4, SyncMode::Ssp(2)),
        (Tcp, 4, SyncMode::Asp),
    ] {
        config.sync = sync;
        let due = reference(&config, workers).evaluate(&test).unwrap();
        let ends = train(&cluster(transport, workers), workers, &config, (&[], None));
        let figures = report(&ends);
        let (auc, log_loss) = (figures.auc.unwrap(), figures.log_loss.unwrap());
        let what = format!("{transport} {workers} {sync}: {auc} {log_loss}");
        assert!(auc >= due.auc().unwrap().auc - 0.01, "{what}");
        assert!(log_loss <= due.log_loss().unwrap() + 0.02, "{what}");
        let epochs = &ends[0].program.epochs;
        assert_eq!(epochs.len(), 4);
        assert!(
            epochs
                .iter()
                .all(|e| e.rows == TRAIN_ROWS && e.test.is_some())
        );
        assert!(epochs[3].log_loss < epochs[0].log_loss, "{what}");
        assert_eq!(epochs[3].test.unwrap().auc, figures.auc);
        assert!(figures.counters["ticks"] > 0 && figures.pull_p99_us >= figures.pull_p50_us);
        assert!(figures.push_applied_p99_us.is_some() && figures.bytes_pushed > 0);
    }
}

/// Writes a file in which one of four parts has all rows but one, and two have none.
fn lopsided(dir: &Path) -> PathBuf {
    let path = dir.join("lopsided");
    let mut text = "1 1:1\n-1 2:1\n".repeat(20);
    text.push_str("1 7:1 ");
    text.push_str(&" ".repeat(3 * text.len()));
    text.push('\n');
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn workers_with_unequal_parts_end_together() {
    let (dir, mut config) = files();
    config.train = lopsided(dir.path());
    config.batch_rows = NonZeroUsize::new(3).unwrap();
    let rows = |w| read_part(&config.train, w, 4, &config.read).unwrap().rows();
    assert_eq!([0, 1, 2, 3].map(rows), [41, 0, 0, 0]);
    for sync in [
        SyncMode::Bsp,
        SyncMode::Ssp(0),
        SyncMode::Ssp(2),
        SyncMode::Asp,
    ] {
        config.sync = sync;
        let ends = train(&cluster(Shm, 4), 4, &config, (&[], None));
        let figures = report(&ends);
        assert_eq!((figures.rows, figures.weights), (82, 4), "{sync}");
        assert!(ends.iter().all(|end| end.clock == 28), "{sync}");
    }
}

#[test]
fn a_signal_stops_all_workers_at_one_step() {
    let (_dir, mut config) = files();
    config.epochs = 1_000_000;
    for (sync, signalled) in [
        (SyncMode::Bsp, 2),
        (SyncMode::Ssp(3), 1),
        (SyncMode::Bsp, 0),
        (SyncMode::Asp, 3),
    ] {
        config.sync = sync;
        let ends = train(&cluster(Shm, 4), 4, &config, (&[], Some((signalled, 7))));
        // All of them: the first that failed is not the one that others waited for.
        let outcomes: Vec<_> = ends.iter().map(|end| &end.outcome).collect();
        for end in &ends {
            assert!(
                matches!(end.outcome, Ok(Outcome::Stopped(15))),
                "{sync}: {outcomes:?}"
            );
            assert!(
                sync == SyncMode::Asp || end.clock == ends[0].clock,
                "{sync}"
            );
        }
        // Without a staleness bound the other workers may be behind it.
        let clock = ends[signalled as usize].clock;
        assert!((6 * 8..200).contains(&clock), "{sync}: {clock}");
    }
}

#[test]
fn bad_files_are_told_with_name_and_line() {
    let (dir, mut config) = files();
    let single = |config: &Config| {
        let ends = train(&cluster(Shm, 1), 1, config, (&[], None));
        ends.into_iter().next().unwrap().outcome.unwrap_err()
    };
    let good = std::mem::replace(&mut config.train, dir.path().join("absent"));
    let e = single(&config);
    assert!(e.to_string().contains("absent: cannot open"), "{e}");
    assert_eq!(e.exit_code(), 5);

    config.train = dir.path().join("bad");
    std::fs::write(&config.train, "1 1:1\n-1 x:1\n").unwrap();
    let e = single(&config);
    assert!(e.to_string().contains("bad:2:4: found `x`"), "{e}");

    config.train = dir.path().join("empty");
    std::fs::write(&config.train, "# nothing\n").unwrap();
    let e = single(&config);
    assert!(e.to_string().contains("empty: holds no rows"), "{e}");
    config.test = Some(std::mem::replace(&mut config.train, good));
    let e = single(&config);
    assert!(e.to_string().contains("empty: holds no rows"), "{e}");
}

#[test]
fn a_model_that_diverges_is_an_error() {
    let (dir, mut config) = files();
    config.optimizer = Optimizer::Sgd { lr: 1e38 };
    // One weight becomes infinite, another minus infinite, their sum NaN.
    config.train = dir.path().join("steep");
    std::fs::write(&config.train, "1 1:99\n-1 2:99\n1 1:99 2:99\n".repeat(99)).unwrap();
    config.sync = SyncMode::Asp;
    let ends = train(&cluster(Shm, 1), 1, &config, (&[], None));
    let e = ends[0].outcome.as_ref().unwrap_err();
    assert!(e.to_string().contains("NaN") && e.exit_code() == 1, "{e}");
}

#[test]
fn the_figures_are_written_whole() {
    let (dir, mut config) = files();
    config.epochs = 1;
    let ends = train(&cluster(Shm, 2), 2, &config, (&[], None));
    let figures = report(&ends);
    let path = dir.path().join("out.json");
    figures.write(&path).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for key in [
        "auc",
        "log_loss",
        "accuracy",
        "rows_per_second",
        "bytes_pulled",
        "bytes_pushed",
        "pulls",
        "retries",
        "pull_p50_us",
        "pull_p99_us",
        "push_p50_us",
        "push_p99_us",
        "zeros",
        "servers",
        "workers",
        "epochs",
        "seed",
    ] {
        assert!(json[key].is_number(), "{key}: {}", json[key]);
    }
    assert_eq!(
        (&json["sync"], &json["transport"]),
        (&"bsp".into(), &"shm".into())
    );
    assert_eq!((&json["servers"], &json["workers"]), (&2.into(), &2.into()));
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        3,
        "train, test, out.json"
    );
    let e = figures
        .write(&dir.path().join("no/such/dir.json"))
        .unwrap_err();
    assert!(
        e.to_string().contains("dir.json") && e.exit_code() == 3,
        "{e}"
    );
}

/// Runs a training on a separate cluster that can save and load.
fn run_of(
    servers: u32,
    workers: u32,
    config: &Config,
    asked: (&[u64], Option<(u32, usize)>),
) -> Vec<End> {
    let joined = JoinOptions::embedded(servers, workers).join().unwrap();
    let job = joined.into_job().unwrap();
    let connect = |rank| job.client_of(rank, config.sync).unwrap();
    train_with(connect, workers, config, asked)
}

/// Clock of a model's training domain.
fn clock(manifest: &Manifest) -> u64 {
    let clocks = manifest.clocks();
    let mut of_training = clocks.iter().filter(|clock| clock.domain.0 == 0);
    of_training.next().map_or(0, |clock| clock.clock)
}

/// Four epochs, and the same four with two saves and loads: at an epoch's end, and by a signal
/// in the middle of an epoch. Weights, clocks and position are those of one run, bit for bit.
#[test]
fn resumed_run_has_the_bits_of_one_run() {
    const WORKERS: u32 = 3;
    let (dir, mut config) = files();
    config.test = None;
    let model = |name: &str| Some(dir.path().join(name).to_str().unwrap().to_owned());
    let saved = |name: &str| read_manifest(&dir.path().join(name)).unwrap();
    config.epochs = 4;
    let oracle = reference(&config, WORKERS);
    let (keys, due): (Vec<u64>, Vec<f32>) = oracle.weights().unzip();
    let bits = |weights: &[f32]| -> Vec<u32> { weights.iter().map(|w| w.to_bits()).collect() };
    config.save = model("straight");
    let straight = run_of(2, WORKERS, &config, (&keys, None));
    assert_eq!(bits(&straight[0].weights), bits(&due));
    let steps = straight[0].clock / 4;
    assert!(steps > 32, "{steps} steps an epoch");

    // Two epochs; the third, stopped within; the rest of the third, and the fourth.
    (config.epochs, config.save) = (2, model("two"));
    report(&run_of(1, WORKERS, &config, (&[], None)));
    assert_eq!(clock(&saved("two")), 2 * steps);
    (config.epochs, config.load, config.save) = (100, model("two"), model("stopped"));
    let stopped = run_of(2, WORKERS, &config, (&[], Some((1, 2))));
    assert!(matches!(stopped[1].outcome, Ok(Outcome::Stopped(15))));
    let resumed = stopped[0].program.resumed.clone().unwrap();
    assert_eq!((resumed.epoch, resumed.step, resumed.differs), (3, 0, None));
    let step = stopped[0].clock;
    assert!((1..steps).contains(&step), "stopped at {step} of {steps}");
    (config.epochs, config.load, config.save) = (2, model("stopped"), model("end"));
    let end = run_of(3, WORKERS, &config, (&keys, None));
    let figures = report(&end);
    assert_eq!(figures.steps, 2 * steps - step);
    let resumed = end[0].program.resumed.clone().unwrap();
    assert_eq!((resumed.epoch, resumed.step), (3, step));
    let epochs: Vec<_> = end[0].program.epochs.iter().map(|e| e.epoch).collect();
    assert_eq!(epochs, [3, 4]);
    for end in &end {
        assert_eq!(bits(&end.weights), bits(&due), "the bits of one run");
    }
    assert_eq!(clock(&saved("end")), 4 * steps);
    assert_eq!(clock(&saved("straight")), 4 * steps);
    assert_eq!(saved("end").rows(), saved("straight").rows());
}

/// A rate that changes with each step: a training that is saved and continued, at an epoch's end and
/// within one, has the rates and the bits of one that never stopped.
#[test]
fn resumed_run_has_the_rates_of_one_run() {
    const WORKERS: u32 = 2;
    let (dir, mut config) = files();
    config.test = None;
    config.decay = Decay::Cosine {
        last: 0.05,
        epochs: 4,
    };
    let model = |name: &str| Some(dir.path().join(name).to_str().unwrap().to_owned());
    config.epochs = 4;
    let (keys, due): (Vec<u64>, Vec<f32>) = reference(&config, WORKERS).weights().unzip();
    let bits = |weights: &[f32]| -> Vec<u32> { weights.iter().map(|w| w.to_bits()).collect() };
    let straight = run_of(2, WORKERS, &config, (&keys, None));
    assert_eq!(bits(&straight[0].weights), bits(&due));
    (config.epochs, config.save) = (1, model("one"));
    report(&run_of(1, WORKERS, &config, (&[], None)));
    (config.epochs, config.load, config.save) = (100, model("one"), model("stopped"));
    let stopped = run_of(2, WORKERS, &config, (&[], Some((1, 2))));
    assert!(matches!(stopped[1].outcome, Ok(Outcome::Stopped(15))));
    assert!(stopped[0].clock > 0, "the stop is within an epoch");
    (config.epochs, config.load, config.save) = (3, model("stopped"), None);
    let end = run_of(1, WORKERS, &config, (&keys, None));
    assert_eq!(
        end[0].program.resumed.clone().unwrap().step,
        stopped[0].clock
    );
    assert_eq!(bits(&end[0].weights), bits(&due));
}

/// Log-loss on the test part of a9a at its optimum, and what counts as reached.
const OPTIMUM: f64 = 0.3251;
const NEAR: f64 = 0.0005;

/// The folder with the parts of a9a; `None`, with a printed line, on hosts without them.
fn a9a() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let folder = std::env::var_os("TIDEWATER_TEST_DATA").map_or(beside, PathBuf::from);
    let file = folder.join("a9a.train.libsvm");
    if file.exists() {
        return Some(folder);
    }
    println!("SKIPPED: no {}", file.display());
    None
}

/// A decaying rate reaches the optimum of a9a in one epoch; the best constant one needs more.
#[test]
fn decaying_rate_needs_fewer_epochs() {
    let Some(folder) = a9a() else { return };
    let mut config = Config::new(folder.join("a9a.train.libsvm"));
    config.test = Some(folder.join("a9a.test.dummy"));
    config.evaluate = "1epoch".parse().ok();
    // Epoch that reaches the optimum; one more than were trained if none does.
    let mut epochs = |lr, decay, most| {
        config.optimizer = Optimizer::Sgd { lr };
        (config.decay, config.epochs) = (decay, most);
        let ends = train(&cluster(Shm, 1), 1, &config, (&[], None));
        report(&ends);
        let losses = ends[0]
            .program
            .epochs
            .iter()
            .map(|e| e.test.unwrap().log_loss);
        let losses: Vec<f64> = losses.collect();
        println!("rate {lr}, {decay:?}: {losses:.4?}");
        let reached = losses.iter().position(|&loss| loss <= OPTIMUM + NEAR);
        1 + reached.unwrap_or(losses.len())
    };
    let (last, all) = (0.05, 1);
    let decaying = epochs(1.2, Decay::Cosine { last, epochs: all }, 1);
    let constant = [0.2, 0.4, 0.8].map(|lr| epochs(lr, Decay::Constant, 2));
    assert!(
        constant.iter().all(|&constant| decaying < constant),
        "{decaying} epochs with a decaying rate, {constant:?} with constant ones"
    );
}

/// Another number of workers divides the rows differently, so a step of the saved run is meaningless.
/// The epoch restarts, and the program gets the difference.
#[test]
fn resumed_run_of_other_workers_begins_the_epoch_again() {
    let (dir, mut config) = files();
    config.test = None;
    let model = |name: &str| Some(dir.path().join(name).to_str().unwrap().to_owned());
    (config.epochs, config.save) = (100, model("stopped"));
    let stopped = run_of(1, 2, &config, (&[], Some((0, 2))));
    assert!(matches!(stopped[0].outcome, Ok(Outcome::Stopped(15))));
    (config.epochs, config.load, config.save) = (1, model("stopped"), None);
    let end = run_of(1, 1, &config, (&[], None));
    assert_eq!(report(&end).rows, TRAIN_ROWS);
    let resumed = end[0].program.resumed.clone().unwrap();
    assert_eq!((resumed.epoch, resumed.step), (1, 0));
    let differs = resumed.differs.unwrap();
    assert!(differs.starts_with("workers 2, now 1; steps"), "{differs}");
}

/// A worker's position is at the servers when the iteration takes effect in which it was set, not before:
/// a checkpoint holds both or neither.
#[test]
fn position_of_worker_is_of_its_tick() {
    let cluster = cluster(Shm, 2);
    let mut first = cluster.client(0, SyncMode::Bsp);
    let mut second = cluster.client(1, SyncMode::Bsp);
    assert_eq!(first.position().unwrap(), None);
    assert!(!first.has_checkpoints() && first.resumed().is_none());
    for step in 1..=3u64 {
        let before = first.position().unwrap();
        first.set_position(&step.to_le_bytes()).unwrap();
        first.flush().unwrap();
        assert_eq!(first.position().unwrap(), before, "before the tick");
        second.tick().unwrap();
        first.tick().unwrap();
        let position = first.position().unwrap().unwrap();
        assert_eq!(position, step.to_le_bytes());
    }
    assert_eq!(second.position().unwrap(), None);
    let long = first.set_position(&[1; 257]).unwrap_err().to_string();
    assert!(long.contains("257 bytes"), "{long}");
    first.finish().unwrap();
    second.finish().unwrap();
}

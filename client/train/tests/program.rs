//! `tidewater-train` as users run it: a process with a cluster of its own, or workers of a job (long: one rig).

#![allow(
    clippy::unwrap_used,
    reason = "a test crate: its helpers panic as its tests do"
)]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tidewater::{ClusterConfig, JoinOptions, SyncMode, TableBuilder};
use tidewater_protocol::wire::hello::{Ids, NAMESPACE_DEFAULT};
use tidewater_runtime::clock::Deadline;
use tidewater_service::coordinator::LostWorker;
use tidewater_service::embedded::Cluster;
use tidewater_status::{JobEnd, stop_job, wait_job};
use tidewater_train::data::ReadOptions;
use tidewater_train::job::{JobError, JobOptions, TrainingJob};
use tidewater_train::{Config, EvaluateConfig, Outcome, PredictConfig};

/// A command of the program, outside of any job.
fn program(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewater-train"));
    for (name, _) in std::env::vars_os() {
        let is_of_a_job = name.as_encoded_bytes().starts_with(b"TIDEWATER_");
        // A mutant belongs to the test: its programs need it too.
        if is_of_a_job && name != "TIDEWATER_MUTANT" {
            command.env_remove(name);
        }
    }
    command.current_dir(dir).stdin(Stdio::null());
    command
}

fn run(dir: &Path, line: &str) -> (Option<i32>, String) {
    let Output { status, stderr, .. } =
        program(dir).args(line.split_whitespace()).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

fn figures(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_model_is_trained_saved_loaded_and_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for line in [
        "generate --rows 3000 --features 300 --out train",
        "generate --rows 800 --first 3000 --features 300 --out test",
    ] {
        assert_eq!(run(dir, line), (Some(0), String::new()));
    }
    let flags = "--train train --test test --sync bsp";
    let (code, said) = run(
        dir,
        &format!("ftrl {flags} --save model --json one.json --servers 2 --transport tcp"),
    );
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("epoch 5/5: 3000 rows"), "{said}");
    assert!(said.contains("test: AUC 0."), "{said}");
    let (code, said) = run(
        dir,
        &format!("ftrl {flags} --load model --epochs 0 --json two.json --servers 3 --appliers 2"),
    );
    assert_eq!(code, Some(0), "{said}");
    let (one, two) = (
        figures(&dir.join("one.json")),
        figures(&dir.join("two.json")),
    );
    for key in [
        "fingerprint",
        "auc",
        "log_loss",
        "accuracy",
        "weights",
        "zeros",
    ] {
        assert_eq!(one[key], two[key], "{key}");
        assert!(!one[key].is_null(), "{key}");
    }
    assert_eq!(
        (&one["transport"], &one["servers"]),
        (&"tcp".into(), &2.into())
    );
    assert_eq!((&two["servers"], &two["rows"]), (&3.into(), &0.into()));

    // Other settings than those of its training are refused; the error names its own.
    for (line, own) in [
        ("ftrl --sync asp", "give --sync bsp\n"),
        ("ftrl --l1 7", "give the optimizer of its training"),
        ("lr --sync ssp:1", "give --sync bsp and the optimizer of"),
    ] {
        let (code, said) = run(
            dir,
            &format!("{line} --train train --load model --epochs 0"),
        );
        assert_eq!(code, Some(2), "{said}");
        assert!(
            said.contains("model in ") && said.contains(own),
            "{line}: {said}"
        );
    }
}

#[test]
fn a_signal_ends_the_run_after_a_step_and_saves() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    run(dir, "generate --rows 2000 --features 300 --out train");
    for (signal, name) in [(Signal::TERM, "term"), (Signal::USR1, "usr1")] {
        let line = format!("lr --train train --epochs 1000000 --save {name}");
        let mut child = program(dir)
            .args(line.split_whitespace())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = said.next().unwrap().unwrap();
        if !first.starts_with("epoch 1/1000000: 2000 rows") {
            // Without the kill it would run for ever.
            child.kill().unwrap();
            panic!("{first}");
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let last = said.map(Result::unwrap).last().unwrap();
        assert!(last.contains("worker 0 ended by signal"), "{last}");
        assert_eq!(child.wait().unwrap().code(), Some(128 + signal.as_raw()));
        let (code, said) = run(dir, &format!("lr --train train --epochs 1 --load {name}"));
        assert_eq!(code, Some(0), "{said}");
    }
}

#[test]
fn failures_named_with_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("bad"), "1 1:1\n-1 2:1 3:y\n").unwrap();
    std::fs::write(dir.join("good"), "1 1:1\n-1 2:1 3:4\n").unwrap();
    for (line, code, part) in [
        ("lr --train absent", 5, "absent: cannot open"),
        ("lr --train bad", 5, "bad:2:10: found `y`"),
        ("lr --train good --test bad", 5, "bad:2:10: found `y`"),
        (
            "lr --train good --json no/out",
            3,
            "name a file in a directory that exists",
        ),
        ("lr --train good --load absent", 5, "absent is missing"),
        ("lr --train good --sync bulk", 2, "use bsp, asp, or ssp:S"),
        ("lr", 2, "--train"),
        ("lr --train good --workers 2", 2, "this trainer is alone"),
        ("lr --train good --namespace a", 2, "this trainer is alone"),
        ("generate --rows 1 --out no/out", 3, "cannot write no/out"),
    ] {
        let (ended, said) = run(dir, line);
        assert_eq!(ended, Some(code), "{line}: {said}");
        assert!(said.contains(part), "{line}: {said}");
    }
    let mut job = program(dir);
    job.args(["lr", "--train", "good"])
        .env("TIDEWATER_COORDINATOR", "127.0.0.1:1");
    let ended = job.output().unwrap();
    assert_eq!(ended.status.code(), Some(3));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("TIDEWATER_WORKERS is not set"), "{said}");
}

/// A set trains the same model, to the bit, as one LIBSVM file, as a directory with gzip in it, and as CSV; bad records
/// and schemas are refused with their place.
#[test]
fn all_forms_of_a_set_train_one_model() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let line = "generate --rows 900 --features 60 --out train";
    assert_eq!(run(dir, line), (Some(0), String::new()));
    let text = std::fs::read_to_string(dir.join("train")).unwrap();
    let (head, tail) = text.split_at(text.match_indices('\n').nth(299).unwrap().0 + 1);
    std::fs::create_dir(dir.join("set")).unwrap();
    std::fs::write(dir.join("set/0"), head).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(tail.as_bytes()).unwrap();
    std::fs::write(dir.join("set/1.gz"), gzip.finish().unwrap()).unwrap();
    let mut csv = String::new();
    for line in text.lines() {
        let mut cells = vec![""; 61];
        let mut fields = line.split_whitespace();
        cells[0] = fields.next().unwrap();
        for (index, value) in fields.map(|field| field.split_once(':').unwrap()) {
            cells[index.parse::<usize>().unwrap()] = value;
        }
        csv.push_str(&(cells.join(";") + "\n"));
    }
    csv.push_str("1;x\n");
    std::fs::write(dir.join("train.csv"), csv).unwrap();
    std::fs::write(dir.join("schema"), "y:label x:number*60\ndelimiter=;").unwrap();

    let trained = |name: &str, flags: &str| {
        let line = format!("lr {flags} --epochs 2 --json {name}");
        let (code, said) = run(dir, &line);
        assert_eq!(code, Some(0), "{said}");
        (figures(&dir.join(name)), said)
    };
    let (one, _) = trained("one", "--train train");
    let (set, _) = trained("two", "--train set");
    let csv = "--train train.csv --schema @schema";
    let (skipped, said) = trained("three", &format!("{csv} --bad-records skip:0.01"));
    assert!(
        said.contains("left out malformed records") && said.contains("skipped=1"),
        "{said}"
    );
    let grades = text.lines().map(|line| match line.split_once(' ') {
        Some((label, features)) if label.parse() == Ok(1.0) => format!("7.5 {features}\n"),
        Some((_, features)) => format!("2 {features}\n"),
        None => panic!("a row without features: {line}"),
    });
    std::fs::write(dir.join("grades"), grades.collect::<String>()).unwrap();
    let (above, _) = trained("four", "--train grades --labels above:2.5");
    for key in ["fingerprint", "log_loss", "weights", "rows"] {
        for other in [&set, &skipped, &above] {
            assert_eq!(one[key], other[key], "{key}");
        }
    }
    assert!(!one["fingerprint"].is_null());

    for (flags, said) in [
        (
            csv.to_owned(),
            "train.csv:901:1: found `1;x`: the record has 2 fields",
        ),
        (
            format!("{csv} --bad-records skip:0.001"),
            "1 of 901 records are malformed",
        ),
        (
            "--train train --format csv".to_owned(),
            "a CSV file needs a schema",
        ),
        ("--train 'none-*'".replace('\'', ""), "none-*: no file"),
    ] {
        let (code, error) = run(dir, &format!("lr {flags}"));
        assert_eq!(code, Some(5), "{flags}: {error}");
        assert!(error.contains(said), "{flags}: {error}");
    }
}

/// Objects of a log, one a line.
fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A run logs its curve; the saved model has the last figures of it; it predicts a line a record; a second run completes
/// the output; what does not fit is refused by name.
#[test]
fn curves_and_predictions_of_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let last = curve_of_a_model(dir);
    // A malformed record has its line, in its place.
    let text = std::fs::read_to_string(dir.join("test")).unwrap();
    let labels: Vec<bool> = text.lines().map(|line| line.starts_with('+')).collect();
    let (head, tail) = text.split_at(text.match_indices('\n').nth(99).unwrap().0 + 1);
    std::fs::write(dir.join("bad"), format!("{head}1 2:x\n{tail}")).unwrap();
    let predict = "predict --load model --data bad --bad-records skip:0.05 --parts 5 --out out --merge merged";
    let merged = predictions_of_a_model(dir, predict, &labels, &last);

    std::fs::remove_file(dir.join("out/part-00002-of-00005")).unwrap();
    std::fs::write(dir.join("out/.part-00002.9.9"), "0.5\n").unwrap();
    let said = succeeds(dir, predict);
    assert!(said.contains("predicted 1 of 5 parts"), "{said}");
    assert_eq!(std::fs::read_to_string(dir.join("merged")).unwrap(), merged);
    assert!(!dir.join("out/.part-00002.9.9").exists());
    predictions_that_are_refused(dir, predict);
}

fn succeeds(dir: &Path, line: &str) -> String {
    let (code, said) = run(dir, line);
    assert_eq!(code, Some(0), "{line}: {said}");
    said
}

/// Trains `model` on `train`; returns its last figures on `test`.
fn curve_of_a_model(dir: &Path) -> serde_json::Value {
    let succeeds = |line| succeeds(dir, line);
    succeeds("generate --rows 1500 --features 300 --out train");
    succeeds("generate --rows 501 --first 1500 --features 300 --out test");
    succeeds(
        "lr --train train --test test --epochs 2 --evaluate-every 10steps --log curve --save model --json one",
    );
    let curve = lines(&dir.join("curve"));
    let of = |event: &str| -> Vec<&serde_json::Value> {
        curve.iter().filter(|line| line["event"] == event).collect()
    };
    let steps: Vec<u64> = of("evaluation")
        .iter()
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [10, 20, 30, 40, 48], "24 steps an epoch");
    for line in of("evaluation") {
        assert_eq!(
            line["clocks"],
            serde_json::json!([line["step"], line["step"]])
        );
        assert_eq!(line["records"], 501);
        assert!(line["rates"]["rows_per_second"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(of("epoch").len(), 2);
    assert_eq!(of("epoch")[1]["parts"][0]["rows"], 1500);
    let (one, last) = (figures(&dir.join("one")), &of("evaluation")[4]["metrics"]);
    for key in ["auc", "log_loss", "accuracy", "rmse"] {
        assert_eq!(one[key], last[key], "{key}");
        assert!(last[key].is_number(), "{key}");
    }
    succeeds("evaluate --load model --data test --log evaluated");
    assert_eq!(&lines(&dir.join("evaluated"))[0]["metrics"], last);
    last.clone()
}

/// Predicts `bad`, the test set with a malformed record; returns the lines. Their loss is that of `last`.
fn predictions_of_a_model(
    dir: &Path,
    predict: &str,
    labels: &[bool],
    last: &serde_json::Value,
) -> String {
    let said = succeeds(dir, &format!("{predict} --log parts"));
    assert!(
        said.contains("5 of 5 parts: 502 lines, 1 of them malformed"),
        "{said}"
    );
    assert_eq!(lines(&dir.join("parts")).len(), 5);
    let merged = std::fs::read_to_string(dir.join("merged")).unwrap();
    let mut predicted: Vec<&str> = merged.lines().collect();
    let malformed = predicted.remove(100);
    assert!(
        malformed.starts_with("malformed: bad:101:5: found `x`"),
        "{malformed}"
    );
    assert_eq!(predicted.len(), 501);
    let losses = predicted.iter().zip(labels).map(|(line, &label)| {
        let p: f64 = line.parse().unwrap();
        -(if label { p } else { 1.0 - p }).ln()
    });
    let loss = losses.sum::<f64>() / 501.0;
    assert!(
        (loss - last["log_loss"].as_f64().unwrap()).abs() < 1e-9,
        "{loss}"
    );
    merged
}

fn predictions_that_are_refused(dir: &Path, predict: &str) {
    let refused = |line: &str, code: i32, words: &str| {
        let (ended, said) = run(dir, line);
        assert_eq!(ended, Some(code), "{line}: {said}");
        assert!(said.contains(words), "{line}: {said}");
    };
    for (line, words) in [
        (
            "predict --load model --data test --out out",
            "predictions of other data",
        ),
        ("predict --load model --data train --out .", "holds "),
    ] {
        refused(line, 2, words);
    }
    refused(
        &predict.replace("0.05 --parts 5 --out out", "0.001 --out o2"),
        5,
        "1 of",
    );
    refused(
        &predict
            .replace("--bad-records skip:0.05", "")
            .replace("out out", "out o3"),
        5,
        "bad:101:5",
    );
    assert!(
        !dir.join("o3/part-00000-of-00005").exists()
            || !dir.join("o3/part-00001-of-00005").exists()
    );
}

/// Data with other columns than the training set, and models of other programs, are refused by name.
#[test]
fn models_and_data_that_do_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("three"), "1 1 2 0\n-1 0 1 3\n".repeat(20)).unwrap();
    std::fs::write(dir.join("four"), "1 1 2 0 0\n".repeat(9)).unwrap();
    let (code, said) = run(
        dir,
        "lr --train three --format dense --epochs 1 --save model",
    );
    assert_eq!(code, Some(0), "{said}");
    let job = JoinOptions::embedded(1, 1)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let mut client = job.client(SyncMode::Bsp).unwrap();
    let spec = TableBuilder::sparse::<f32>("x", 1);
    client.create_table::<f32>(spec.spec()).unwrap();
    let other = dir.join("other");
    client
        .save(other.to_str().unwrap(), Duration::from_secs(30))
        .unwrap();
    client.finish().unwrap();
    for (line, words) in [
        (
            "evaluate --load model --format dense --data four",
            "four: has 4 features, and the model was trained on 3",
        ),
        (
            "predict --load model --format dense --data four --out out",
            "four: has 4 features",
        ),
        (
            "evaluate --load other --data three --format dense",
            "it has no table \"w\"",
        ),
        (
            "evaluate --load none --data three --format dense",
            "none is missing",
        ),
    ] {
        let (code, said) = run(dir, line);
        assert_eq!(code, Some(5), "{line}: {said}");
        assert!(said.contains(words), "{line}: {said}");
    }
}

/// Asserts that a call does not fit the state of its job.
fn is_refused(result: Result<(), JobError>, words: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, JobError::State { .. }), "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

/// Calls of a job in this process, in order and out of order.
#[test]
fn calls_of_a_job_have_an_order() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for line in [
        "generate --rows 1000 --features 200 --out train",
        "generate --rows 300 --first 1000 --features 200 --out test",
    ] {
        assert_eq!(run(dir, line).0, Some(0));
    }
    let mut options = JobOptions::default();
    (options.servers, options.workers) = (2, 2);
    let test = EvaluateConfig {
        data: dir.join("test"),
        read: ReadOptions::default(),
        load: None,
    };
    let model = dir.join("model").to_str().unwrap().to_owned();
    let mut job = TrainingJob::create(&options).unwrap();
    is_refused(job.save(&model), "save: the job has no model; load one");
    is_refused(job.stop(), "does not train; call start before");
    let mut config = Config::new(dir.join("train"));
    config.epochs = 2;
    config.test = Some(dir.join("test"));
    job.start(&config).unwrap();
    is_refused(
        job.evaluate(&test).map(drop),
        "evaluate: the job trains; wait for it",
    );
    let Outcome::Done(Some(report)) = job.wait().unwrap() else {
        panic!("not done");
    };
    is_refused(job.load(&model), "has a model; create another job");
    let evaluated = job.evaluate(&test).unwrap();
    assert_eq!(Some(evaluated.quality.log_loss), report.log_loss);
    let predict = PredictConfig {
        data: dir.join("test"),
        read: ReadOptions::default(),
        out: dir.join("out"),
        parts: None,
        merged: Some(dir.join("merged")),
        load: None,
    };
    let predicted = job.predict(&predict).unwrap();
    assert_eq!((predicted.len(), predicted[0].parts), (2, 8));
    let merged = std::fs::read_to_string(dir.join("merged")).unwrap();
    assert_eq!(merged.lines().count(), 300);
    job.save(&model).unwrap();
    job.close().unwrap();

    let mut job = TrainingJob::create(&options).unwrap();
    job.load(&model).unwrap();
    assert_eq!(job.evaluate(&test).unwrap().quality, evaluated.quality);
    config.epochs = 1_000_000;
    job.start(&config).unwrap();
    job.stop().unwrap();
    assert!(matches!(job.wait().unwrap(), Outcome::Stopped(15)));
    let error = job.predict(&PredictConfig {
        data: dir.join("none"),
        ..predict.clone()
    });
    assert!(
        matches!(
            error,
            Err(JobError::Worker {
                call: "predict",
                ..
            })
        ),
        "{error:?}"
    );
    is_refused(job.save(&model), "the job has failed; create another job");
}

/// A cluster in this process, for workers that are processes of the trainer. Dropping it kills them.
struct Jobs {
    cluster: Cluster,
    token: PathBuf,
    children: Vec<Child>,
}

impl Drop for Jobs {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Jobs {
    fn new(dir: &Path, workers: u32, on_lost: LostWorker) -> Self {
        let cluster = Cluster::start(&ClusterConfig {
            workers,
            on_lost,
            ..ClusterConfig::default()
        });
        let cluster = cluster.unwrap();
        let token = dir.join("token");
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&token);
        let digits = cluster.environment().token.to_hex();
        file.unwrap()
            .write_all(format!("{digits}\n").as_bytes())
            .unwrap();
        Self {
            cluster,
            token,
            children: Vec::new(),
        }
    }

    /// A command of the trainer in this job, as a worker or as an observer.
    fn command(&self, dir: &Path, rank: Option<u32>, line: &str) -> Command {
        let environment = self.cluster.environment();
        let mut command = program(dir);
        command.args(line.split_whitespace());
        command.env("TIDEWATER_COORDINATOR", &environment.coordinator);
        command.env("TIDEWATER_TOKEN_FILE", &self.token);
        command.env("TIDEWATER_SERVERS", "1");
        if let Some(rank) = rank {
            command.env("TIDEWATER_RANK", rank.to_string());
        }
        command.env("TIDEWATER_WORKERS", environment.workers.to_string());
        command
    }

    /// Starts a process; returns its number.
    fn start(&mut self, dir: &Path, rank: Option<u32>, line: &str) -> usize {
        let mut command = self.command(dir, rank, line);
        self.children
            .push(command.stderr(Stdio::null()).spawn().unwrap());
        self.children.len() - 1
    }

    fn succeeds(&mut self, child: usize) -> bool {
        self.children[child].wait().unwrap().success()
    }
}

/// Waits until `found` returns something.
fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Deadline::after(Duration::from_secs(60));
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(!deadline.passed(), "no {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Names of the files in a folder that begin with `prefix`, in order.
fn names(folder: &Path, prefix: &str) -> Vec<String> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = files.map(|file| file.file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort_unstable();
    names
}

/// Parts of the predictions of [`killed_worker_leaves_each_line_once`].
const PARTS: usize = 40;

/// Three workers predict 40 parts; one is killed while it writes one. The others complete its parts: each record has
/// one line, in its order. Under a policy that ends the job, the files that are there are complete, and a second run
/// completes the rest. One kill under each policy, 25 with `--full`, after 2 to 14 parts.
#[test]
fn killed_worker_leaves_each_line_once() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let predict = format!("predict --load model --data records --parts {PARTS}");
    for line in [
        "generate --rows 1000 --features 300 --out train",
        "generate --rows 30000 --first 1000 --features 300 --out records",
        "lr --train train --epochs 1 --save model",
        &format!("{predict} --out alone --merge alone.txt"),
    ] {
        let (code, said) = run(dir, line);
        assert_eq!(code, Some(0), "{line}: {said}");
    }
    let expected = std::fs::read_to_string(dir.join("alone.txt")).unwrap();
    assert_eq!(expected.lines().count(), 30_000);
    let rounds = match std::env::var_os("TIDEWATER_TEST_FULL") {
        Some(_) => 25,
        None => 1,
    };
    for round in 0..rounds {
        for on_lost in [LostWorker::GoOn, LostWorker::FailJob] {
            predict_over_a_kill(dir, &predict, on_lost, round, &expected);
        }
    }
}

/// Predicts with three workers, of which one is killed after 2 to 14 parts, as the round says.
fn predict_over_a_kill(
    dir: &Path,
    predict: &str,
    on_lost: LostWorker,
    round: usize,
    expected: &str,
) {
    let after = 2 + round * 7 % 13;
    let goes_on = on_lost == LostWorker::GoOn;
    let name = format!("{}-{round}", if goes_on { "go-on" } else { "fail" });
    let (out, merged) = (dir.join(&name), dir.join(format!("{name}.txt")));
    let line = format!("{predict} --out {name} --merge {name}.txt");
    let mut jobs = Jobs::new(dir, 3, on_lost);
    let workers = [0, 1, 2].map(|rank| jobs.start(dir, Some(rank), &line));
    let own = format!(".1.{}", jobs.children[workers[1]].id());
    until("part that worker 1 writes", || {
        let writes = names(&out, ".part-");
        let writes = writes.iter().any(|name| name.ends_with(&own));
        (names(&out, "part-").len() > after && writes).then_some(())
    });
    jobs.children[workers[1]].kill().unwrap();
    let complete = names(&out, "part-").len();
    assert!(complete < PARTS, "it was killed after the last part");
    for worker in [workers[0], workers[2]] {
        assert_eq!(jobs.succeeds(worker), goes_on);
    }
    drop(jobs);
    if !goes_on {
        let parts = names(&out, "part-");
        assert!((1..PARTS).contains(&parts.len()), "{}", parts.len());
        for part in parts {
            let found = std::fs::read(out.join(&part)).unwrap();
            let due = std::fs::read(dir.join("alone").join(&part)).unwrap();
            assert!(found == due, "{part} is not complete");
        }
        assert_eq!(run(dir, &line).0, Some(0));
    }
    assert!(
        std::fs::read_to_string(&merged).unwrap() == expected,
        "{name}"
    );
    assert_eq!(names(&out, ".part-"), Vec::<String>::new());
    assert_eq!(names(&out, "part-").len(), PARTS);
}

/// An operator stops a training: its workers end at one step with the model saved, and a wait returns with it. Both
/// refuse a job that is not there. An observer evaluates meanwhile, and ends with the job.
#[test]
fn stopped_job_saves_and_wait_returns() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert_eq!(
        run(dir, "generate --rows 2000 --features 300 --out train").0,
        Some(0)
    );
    let mut jobs = Jobs::new(dir, 2, LostWorker::FailJob);
    let line = "lr --train train --epochs 1000000 --save model --log log";
    let workers = [0, 1].map(|rank| jobs.start(dir, Some(rank), line));
    // A file that is not there yet has no text: what is looked for is awaited.
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    until("epoch", || read("log").contains("\"epoch\"").then_some(()));
    let observe = "evaluate --observe --data train";
    let observed = jobs.command(dir, None, observe).output().unwrap();
    let said = String::from_utf8(observed.stderr).unwrap();
    assert!(
        observed.status.success() && said.contains("read between ticks"),
        "{said}"
    );
    let observer = jobs.start(dir, None, &format!("{observe} --every 1 --log observed"));
    until("evaluation", || {
        read("observed").contains('\n').then_some(())
    });

    let environment = jobs.cluster.environment().clone();
    let (address, token) = (environment.local.to_string(), environment.token);
    let after = |ms| Deadline::after(Duration::from_millis(ms));
    let (ids, job) = (Ids::default(), NAMESPACE_DEFAULT);
    let error = stop_job(&address, &token, ids, "other", "r", after(9_000)).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("no job \"other\" runs; jobs that run: \"default\""),
        "{said}"
    );
    assert_eq!(
        wait_job(&address, &token, ids, job, after(1_000)).unwrap(),
        JobEnd::Running
    );
    std::thread::scope(|scope| {
        let wait = scope.spawn(|| wait_job(&address, &token, ids, job, after(60_000)).unwrap());
        // Time for the wait to be there before the stop. On a busy machine it may come later, also after the end: then
        // it is answered at once.
        std::thread::sleep(Duration::from_millis(300));
        assert!(!wait.is_finished(), "the job runs");
        stop_job(&address, &token, ids, job, "maintenance", after(9_000)).unwrap();
        for worker in workers {
            let code = jobs.children[worker].wait().unwrap().code();
            assert_eq!(code, Some(143));
        }
        assert_eq!(wait.join().unwrap(), JobEnd::Done);
    });
    let (code, said) = run(dir, "evaluate --load model --data train");
    assert_eq!(code, Some(0), "{said}");
    drop(std::mem::replace(
        &mut jobs.cluster,
        Cluster::start(&ClusterConfig::default()).unwrap(),
    ));
    assert!(jobs.succeeds(observer), "it ends with the job");
}

//! A training that gets a stop signal finishes its step, saves, and reports it. The saved run continues
//! with another number of servers.

use std::path::Path;

use rustix::process::Signal;

use crate::model::{Rows, files, rows};
use crate::rig::{Run, data};

/// Parses the output of `--json`.
fn figures(json: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap()
}

/// Evaluates a saved model on the test file; returns the figures.
fn evaluate(model: &Path, sync: &str, servers: &str, transport: &str) -> Vec<serde_json::Value> {
    let (_, test) = data();
    let scratch = tempfile::tempdir().unwrap();
    let json = scratch.path().join("out.json");
    let options = [
        "--servers",
        servers,
        "--workers",
        "2",
        "--transport",
        transport,
    ];
    let (model, out) = (model.to_str().unwrap(), json.to_str().unwrap());
    let arguments = [
        "--sync", sync, "--load", model, "--epochs", "0", "--test", &test, "--json", out,
    ];
    Run::train(&options, &arguments).succeeds();
    let json = figures(&json);
    let keys = [
        "auc",
        "log_loss",
        "accuracy",
        "weights",
        "zero_weights",
        "fingerprint",
    ];
    let found = keys.map(|key| json[key].clone());
    assert!(found.iter().all(|value| !value.is_null()), "{json}");
    assert!(found[0].as_f64().unwrap() > 0.7, "a trained model: {json}");
    found.to_vec()
}

/// Loads a model on `servers` servers and saves it again.
fn carry_over(model: &Path, sync: &str, servers: &str) -> Rows {
    let scratch = tempfile::tempdir().unwrap();
    let (from, to) = (model.to_str().unwrap(), scratch.path().join("model"));
    let options = ["--servers", servers, "--workers", "2"];
    let to_text = to.to_str().unwrap();
    let arguments = [
        "--sync", sync, "--load", from, "--save", to_text, "--epochs", "0",
    ];
    Run::train(&options, &arguments).succeeds();
    assert_eq!(files(&to).to_string(), servers);
    rows(&to)
}

fn stopped_training_saves(signal: Signal, sync: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let model = scratch.path().join("model");
    let options = ["--servers", "2", "--workers", "3"];
    let save = ["--save", model.to_str().unwrap()];
    let arguments = [&["--epochs", "100000", "--sync", sync][..], &save].concat();
    let mut run = Run::train(&options, &arguments);
    run.until_training();
    run.launcher().signal(signal);
    let ended = run.end();
    let number = signal.as_raw();
    assert_eq!(ended.code, 128 + number, "{}", ended.stderr);
    for worker in 0..3 {
        let line = format!("worker {worker} ended by signal {number}");
        assert!(ended.stderr.contains(&line), "{}", ended.stderr);
    }
    println!(
        "signal {number}, {sync}: {:?} from signal to end",
        ended.took
    );

    assert_eq!(files(&model), 2);
    let saved = rows(&model);
    let due = evaluate(&model, sync, "2", "shm");
    for servers in ["1", "3"] {
        assert_eq!(
            evaluate(&model, sync, servers, "tcp"),
            due,
            "{servers} servers"
        );
        assert!(
            carry_over(&model, sync, servers) == saved,
            "{servers} servers"
        );
    }
}

#[test]
fn sigterm() {
    stopped_training_saves(Signal::TERM, "bsp");
}

#[test]
fn sigusr1() {
    stopped_training_saves(Signal::USR1, "ssp:2");
}

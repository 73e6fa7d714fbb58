//! Bulk synchronous training gives the same bits on any number of servers, over any transport, between
//! real processes.

use crate::model::rows;
use crate::rig::{Run, data};

/// Runs a training: returns the saved model with optimizer state, and the test figures.
fn train(optimizer: &str, servers: u32, transport: &str) -> (crate::model::Rows, Vec<String>) {
    let (_, test) = data();
    let scratch = tempfile::tempdir().unwrap();
    let (model, json) = (
        scratch.path().join("model"),
        scratch.path().join("out.json"),
    );
    let servers = servers.to_string();
    let options = [
        "--servers",
        &servers,
        "--workers",
        "3",
        "--transport",
        transport,
    ];
    let (save, out) = (model.to_str().unwrap(), json.to_str().unwrap());
    let training = [
        "--sync",
        "bsp",
        "--seed",
        "1",
        "--epochs",
        "2",
        "--optimizer",
        optimizer,
    ];
    let files = ["--test", &test, "--save", save, "--json", out];
    Run::train(&options, &[&training[..], &files].concat()).succeeds();
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(json["servers"].to_string(), servers);
    assert_eq!(json["transport"], transport);
    let keys = [
        "auc",
        "log_loss",
        "accuracy",
        "train_log_loss",
        "zero_weights",
        "fingerprint",
    ];
    (rows(&model), keys.map(|key| json[key].to_string()).to_vec())
}

fn all_are_equal(optimizer: &str, others: &[(u32, &str)]) {
    let due = train(optimizer, 1, "shm");
    assert!(due.0.len() > 100, "{} rows", due.0.len());
    for &(servers, transport) in others {
        let (rows, figures) = train(optimizer, servers, transport);
        let what = format!("{optimizer}, {servers} servers, {transport}");
        assert_eq!(figures, due.1, "{what}");
        let differ = due.0.iter().filter(|(key, row)| rows.get(key) != Some(row));
        assert_eq!(differ.collect::<Vec<_>>(), [], "{what}");
        assert_eq!(rows.len(), due.0.len(), "{what}");
    }
    println!("{optimizer}: {} rows, {:?}", due.0.len(), due.1);
}

const OTHERS: &[(u32, &str)] = &[(1, "tcp"), (2, "shm"), (2, "tcp"), (4, "shm"), (4, "tcp")];

#[test]
fn with_sgd() {
    all_are_equal("sgd", OTHERS);
}

#[test]
fn with_adagrad() {
    all_are_equal("adagrad", OTHERS);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn with_adagrad_over_verbs() {
    all_are_equal("adagrad", &[(1, "verbs"), (2, "verbs")]);
}

//! The program itself: rows, JSON and exit codes, with servers in processes of their own.
#![allow(clippy::unwrap_used, reason = "helpers outside of `#[test]` functions")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidewater-bench"))
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Rows of the table, cell by cell.
fn rows(out: &Output) -> Vec<Vec<f64>> {
    let text = text(&out.stdout);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let cells = |line: &str| {
        line.split_whitespace()
            .map(|c| c.parse().unwrap())
            .collect()
    };
    lines.map(cells).collect()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn smoke(what: &str, transport: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (file, csv) = (dir.path().join("out.json"), dir.path().join("out.csv"));
    let common = "--sizes 8,4K,256K --iters 20 --duration 2s --warmup 2 --window 4 --transport";
    let mut args: Vec<&str> = vec![what];
    args.extend(common.split(' '));
    args.extend([transport, "--json", file.to_str().unwrap()]);
    args.extend(["--csv", csv.to_str().unwrap()]);
    let out = bench(&args);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let rows = rows(&out);
    assert_eq!(
        rows.len(),
        2 * 3 * 3,
        "pull and push, three tables, three sizes"
    );
    for row in &rows {
        assert_eq!(row.len(), 11);
        assert!(row[1] >= 1.0, "calls were made");
        assert!(row[2] > 0.0 && row[2] <= row[3] && row[3] <= row[4] && row[5] <= row[6] + 1e-3);
        assert_eq!(row[10], 0.0, "no value is wrong");
    }
    let document = json(&file);
    let told = document["rows"].as_array().unwrap();
    assert_eq!(told.len(), rows.len());
    for (told, row) in told.iter().zip(&rows) {
        assert_eq!(told["size"].as_f64(), Some(row[0]));
        // What was asked for is what ran.
        assert_eq!(told["fallbacks"], 0);
        // Bytes and time agree with the rates.
        let calls = told["bytes_per_call"].as_f64().unwrap() / told["avg_us"].as_f64().unwrap();
        assert!((calls / told["mb_per_s"].as_f64().unwrap() - 1.0).abs() < 1e-6);
    }
    assert_eq!(
        std::fs::read_to_string(&csv).unwrap().lines().count(),
        rows.len() + 1
    );
}

#[test]
fn latency_over_shared_memory() {
    smoke("latency", "shm");
}

#[test]
fn latency_over_tcp() {
    smoke("latency", "tcp");
}

#[test]
fn bandwidth_over_shared_memory() {
    smoke("bandwidth", "shm");
}

#[test]
fn bandwidth_over_tcp() {
    smoke("bandwidth", "tcp");
}

#[test]
fn every_mode_of_several_servers() {
    for mode in ["consistent", "hogwild", "gather"] {
        let args = "latency --op pull --sizes 64,1M --batch 3 --iters 5 --servers 2 --appliers 2";
        let mut args: Vec<&str> = args.split(' ').collect();
        args.extend(["--mode", mode]);
        let out = bench(&args);
        assert_eq!(out.status.code(), Some(0), "{mode}: {}", text(&out.stderr));
        let rows = rows(&out);
        assert_eq!(rows.len(), 6);
        assert!(rows.iter().all(|row| row[10] == 0.0));
    }
}

/// Keys of a row that are numbers.
const NUMBERS: [&str; 16] = [
    "size",
    "bytes_per_call",
    "calls_per_sample",
    "ops",
    "samples",
    "p50_us",
    "p90_us",
    "p99_us",
    "p999_us",
    "max_us",
    "avg_us",
    "mb_per_s",
    "mops_per_s",
    "retries",
    "fallbacks",
    "wrong",
];

#[test]
fn the_layout_of_the_json_is_what_others_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    let args = "latency --op all --table sparse --sizes 64 --iters 3 --json";
    let mut args: Vec<&str> = args.split(' ').collect();
    args.push(file.to_str().unwrap());
    assert!(bench(&args).status.success());
    let document = json(&file);
    assert_eq!(document["schema"], "tidewater-bench/1");
    let print = document["fingerprint"].as_object().unwrap();
    for text in [
        "version",
        "commit",
        "rustc",
        "profile",
        "rustflags",
        "cpu",
        "kernel",
        "governor",
    ] {
        assert!(
            print[text].as_str().is_some_and(|t| !t.is_empty()),
            "{text}"
        );
    }
    for text in ["load", "transport", "pinned", "command", "what"] {
        assert!(print[text].is_string(), "{text}");
    }
    for number in [
        "cores",
        "servers",
        "appliers",
        "ring_bytes",
        "seed",
        "timer_ns",
    ] {
        assert!(print[number].is_number(), "{number}");
    }
    assert_eq!(print.len(), 19, "a new key belongs into this test");
    for (row, op) in document["rows"]
        .as_array()
        .unwrap()
        .iter()
        .zip(["pull", "push"])
    {
        let row = row.as_object().unwrap();
        assert_eq!((&row["op"], &row["table"]), (&op.into(), &"sparse".into()));
        let mode = if op == "pull" {
            "consistent".into()
        } else {
            Value::Null
        };
        assert_eq!(row["mode"], mode);
        for number in NUMBERS {
            assert!(row[number].is_number(), "{number}");
        }
        assert_eq!(row.len(), 19, "a new key belongs into this test");
        assert_eq!((&row["size"], &row["ops"]), (&64.into(), &3.into()));
    }
}

#[test]
fn a_wrong_value_is_counted_and_fails_the_run() {
    for (op, table) in [("pull", "sparse"), ("pull", "dense"), ("push", "rows")] {
        let args = format!("latency --op {op} --table {table} --sizes 64 --iters 5 --plant-wrong");
        let out = bench(&args.split(' ').collect::<Vec<_>>());
        assert_eq!(out.status.code(), Some(1), "{args}");
        let rows = rows(&out);
        assert!(rows[0][10] > 0.0, "{args}");
        assert!(text(&out.stderr).contains("values were wrong"), "{args}");
    }
}

#[test]
fn bad_options_are_usage_errors() {
    for args in [
        "latency --sizes 12",
        "latency --sizes 8 --transport pigeon",
        "latency --sizes 8 --rdma-device a/b",
        "latency --iters 0",
        "latency --duration never",
        "latency --table rows --sizes 196616 --iters 1",
        "latency --pin 5000",
        "speed",
    ] {
        let out = bench(&args.split(' ').collect::<Vec<_>>());
        assert_eq!(out.status.code(), Some(2), "{args}");
        assert!(!out.stderr.is_empty());
    }
    let out = bench(&[
        "latency",
        "--sizes",
        "8",
        "--iters",
        "1",
        "--json",
        "/nowhere/out.json",
    ]);
    assert_eq!(out.status.code(), Some(3));
}

#[test]
fn help_shows_examples() {
    for args in [
        &["--help"][..],
        &["latency", "--help"],
        &["bandwidth", "--help"],
    ] {
        let out = bench(args);
        assert_eq!(out.status.code(), Some(0));
        assert!(text(&out.stdout).contains("Examples:"), "{args:?}");
    }
}

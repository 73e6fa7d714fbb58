//! `tidewater-train` as users run it: a process with a cluster of its own.

#![allow(
    clippy::unwrap_used,
    reason = "a test crate: its helpers panic as its tests do"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A command of the program, outside of any job.
fn program(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewater-train"));
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"TIDEWATER_") {
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
fn what_is_wrong_is_told_and_has_its_exit_code() {
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
    for key in ["fingerprint", "log_loss", "weights", "rows"] {
        assert_eq!((&one[key], &one[key]), (&set[key], &skipped[key]), "{key}");
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

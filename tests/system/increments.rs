//! A job of many rows, of which each step changes a few: its checkpoints hold what has changed, and a job that continues
//! from one has every row, and none of those that were deleted.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tidewater::{Client, JoinOptions, Missing, PullOptions, Reduce, SyncMode, Table, TableBuilder};
use tidewater_checkpoint::Manifest;
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::Deadline;

use crate::checkpoints::{checkpoints, kill};
use crate::rig::{LIMIT, Run};

/// Variable that names a file. The worker ends once that file exists.
const STOP: &str = "SYSTEM_TEST_INCREMENTS_STOP";
const KEYS: u64 = 20_000;
const DIM: usize = 4;
const KILLS: usize = 3;
/// Ticks from one checkpoint to the next.
const EVERY: u64 = 20;

/// The keys that a step pushes, and the one that it deletes.
fn of_step(step: u64) -> (Vec<u64>, u64) {
    let deleted = step * 37 % KEYS;
    let keys = (0..20).map(|n| (step * 101 + n * 13) % KEYS);
    (keys.filter(|key| *key != deleted).collect(), deleted)
}

/// All rows after so many steps: how often each was pushed since it was created.
fn expected(steps: u64) -> BTreeMap<u64, i64> {
    let mut rows: BTreeMap<u64, i64> = (0..KEYS).map(|key| (key, 1)).collect();
    for step in 1..steps {
        let (keys, deleted) = of_step(step);
        keys.iter()
            .for_each(|key| *rows.entry(*key).or_default() += 1);
        rows.remove(&deleted);
    }
    rows
}

fn check(client: &mut Client, table: &Table<i64>, steps: u64) {
    let rows = expected(steps);
    let all: Vec<u64> = (0..KEYS).collect();
    let exist = client.exists(table, &all).unwrap();
    // Rows that pushes of the open iteration will change exist since the servers hold these pushes.
    let (held, _) = of_step(steps);
    for (key, exists) in all.iter().zip(exist) {
        let is_due = exists == rows.contains_key(key) || exists && held.contains(key);
        assert!(is_due, "row {key} after {steps} steps: {exists}");
    }
    let mut values = vec![-1; all.len() * DIM];
    let options = PullOptions::default().missing(Missing::Initial);
    let pulled = client.pull_rows(table, &all, &mut values, options);
    pulled.unwrap();
    for (key, values) in all.iter().zip(values.chunks_exact(DIM)) {
        let count = rows.get(key).copied().unwrap_or(0);
        assert_eq!(values, [count; DIM], "row {key} after {steps} steps");
    }
}

/// The program of `job_continues_from_changes`: pushes and deletes a few rows in each step.
#[test]
#[ignore = "run by job_continues_from_changes, as the worker of its job"]
fn changing_worker() {
    let stop = PathBuf::from(std::env::var_os(STOP).unwrap());
    let job = JoinOptions::default().join().unwrap().into_job().unwrap();
    let mut client = job.client(SyncMode::Bsp).unwrap();
    let mut sibling = client.sibling().unwrap();
    assert!(sibling.has_checkpoints() && client.has_checkpoints());
    assert_eq!(sibling.resumed().is_some(), client.resumed().is_some());
    sibling.finish().unwrap();
    let spec = TableBuilder::sparse::<i64>("rows", DIM as u32).at_clock(Reduce::Sum);
    let table = client.create_table::<i64>(spec.spec()).unwrap();
    let position = client.position().unwrap();
    let mut step = position.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
    if client.resumed().is_some() {
        assert!(step > 0 && step.is_multiple_of(EVERY), "{step}");
        check(&mut client, &table, step);
        println!("continues after {step} steps");
    }
    while !stop.exists() {
        let (keys, deleted) = match step {
            0 => ((0..KEYS).collect(), None),
            _ => {
                let (keys, deleted) = of_step(step);
                (keys, Some(deleted))
            }
        };
        let ones = vec![1; keys.len() * DIM];
        let pushed = client.push_rows(&table, &keys, &ones, PushOp::Sum);
        client.wait_applied(&pushed.unwrap()).unwrap();
        if let Some(deleted) = deleted {
            let sent = client.delete_keys(&table, &[deleted]).unwrap();
            client.wait_applied(&sent).unwrap();
        }
        step += 1;
        client.set_position(&step.to_le_bytes()).unwrap();
        client.tick().unwrap();
    }
    client.flush().unwrap();
    check(&mut client, &table, step);
    println!("exact after {step} steps");
    client.finish().unwrap();
}

/// Waits for a checkpoint with at least two parts that extend others on each of two servers; returns its manifest.
fn until_extended(run: &Run, dir: &std::path::Path, after: u64) -> (u64, Manifest) {
    let deadline = Deadline::after(LIMIT);
    loop {
        match checkpoints(dir).pop() {
            Some((number, manifest)) if number > after && manifest.files.len() >= 6 => {
                return (number, manifest);
            }
            found => assert!(!deadline.passed(), "{found:?}: {}", run.said()),
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// `kill -9` of a server, several times: the job continues from a checkpoint of changes with exactly the rows of its
/// tick. A part with changes is a small share of one with all rows.
#[test]
fn job_continues_from_changes() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, stop) = (folder.path().join("c"), folder.path().join("stop"));
    let (every, restarts) = (format!("{EVERY}t"), KILLS.to_string());
    let path = dir.to_str().unwrap();
    let options = ["--servers", "2", "--workers", "1", "--checkpoint", path];
    let again = [
        "--every",
        &every,
        "--full-every",
        "64",
        "--restarts",
        &restarts,
    ];
    let variable = format!("{STOP}={}", stop.display());
    let own = std::env::current_exe().unwrap();
    let worker = "increments::changing_worker";
    let program = ["env", &variable, own.to_str().unwrap(), worker];
    let flags = ["--exact", "--ignored", "--nocapture", "--test-threads", "1"];
    let run = Run::start(
        &[&options[..], &again[..]].concat(),
        &[&program[..], &flags[..]].concat(),
    );
    let mut last = 0;
    for n in 0..KILLS {
        let (number, manifest) = until_extended(&run, &dir, last);
        last = number;
        for file in &manifest.files[2..] {
            assert!(file.extends.is_some(), "{manifest:?}");
            assert!(file.bytes < manifest.files[0].bytes / 10, "{manifest:?}");
        }
        kill(&run, "server", n % 2);
        let deadline = Deadline::after(LIMIT);
        while run.said().matches("continues after").count() <= n {
            assert!(!deadline.passed(), "{}", run.said());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
    until_extended(&run, &dir, last);
    std::fs::write(&stop, "").unwrap();
    let said = run.succeeds();
    assert_eq!(said.matches("exact after").count(), 1, "{said}");
    let reports = said.matches("resumed from checkpoint").count();
    assert_eq!(reports, KILLS, "{said}");
}

//! Jobs that continue from checkpoints after `kill -9` of their servers and workers.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tidewater::{Client, DomainId, JoinOptions, PullOptions, Reduce, SyncMode, TableBuilder};
use tidewater_checkpoint::{Manifest, read_manifest};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::Deadline;

use crate::model::{Rows, rows};
use crate::proc::Process;
use crate::rig::{LIMIT, Run};

/// The complete checkpoints of a directory, by number.
pub(crate) fn checkpoints(dir: &Path) -> Vec<(u64, Manifest)> {
    let Ok(entries) = fs::read_dir(dir.join("default")) else {
        return Vec::new();
    };
    let number = |path: &Path| {
        let name = path.file_name()?.to_str()?.strip_prefix("checkpoint-")?;
        name.parse::<u64>().ok()
    };
    let complete = |path: PathBuf| Some((number(&path)?, read_manifest(&path).ok()?));
    let mut all: Vec<_> = entries
        .filter_map(|entry| complete(entry.ok()?.path()))
        .collect();
    all.sort_by_key(|(number, _)| *number);
    all
}

fn newest(dir: &Path) -> u64 {
    checkpoints(dir).last().map_or(0, |(number, _)| *number)
}

/// Waits for a checkpoint after number `after`; returns its number.
fn until_newer(run: &Run, dir: &Path, after: u64) -> u64 {
    let deadline = Deadline::after(LIMIT);
    loop {
        match newest(dir) {
            number if number > after => return number,
            _ => assert!(!deadline.passed(), "none after {after}: {}", run.said()),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for a process of a role.
fn until_there(run: &Run, role: &str, rank: usize) -> Process {
    let deadline = Deadline::after(LIMIT);
    loop {
        if let Some(process) = run.of(role).into_iter().nth(rank) {
            return process;
        }
        assert!(!deadline.passed(), "no {role} {rank}: {}", run.said());
    }
}

/// Kills a process of a role, once it is there.
pub(crate) fn kill(run: &Run, role: &str, rank: usize) {
    until_there(run, role, rank).signal(Signal::KILL);
}

/// Trains for 16,000 steps, many more than lie between two checkpoints: on a busy machine the job must not end before
/// the test has seen the next one. Returns the weights with their optimizer state. `kills`: role, rank, and the time of
/// the kill: after the next checkpoint, or so many milliseconds after the begin of the process.
fn train(sync: &str, kills: &[(&str, usize, Option<u64>)]) -> Rows {
    let scratch = tempfile::tempdir().unwrap();
    let (model, dir) = (scratch.path().join("model"), scratch.path().join("c"));
    let restarts = kills.len().to_string();
    let mut options = vec!["--servers", "2", "--workers", "2", "--restarts", &restarts];
    if !kills.is_empty() {
        let dir = dir.to_str().unwrap();
        options.extend(["--checkpoint", dir, "--every", "100t", "--keep", "2"]);
    }
    let save = model.to_str().unwrap();
    let training = [
        "--sync", sync, "--epochs", "128", "--batch", "12", "--save", save,
    ];
    let mut run = Run::train(&options, &training);
    for (n, (role, rank, time)) in kills.iter().enumerate() {
        match time {
            None => drop(until_newer(&run, &dir, newest(&dir))),
            Some(time) => {
                until_there(&run, role, *rank);
                std::thread::sleep(Duration::from_millis(*time));
            }
        }
        kill(&run, role, *rank);
        let left = kills.len() - n - 1;
        run.until(&format!("; {left} restarts are left"));
    }
    let said = run.succeeds();
    assert_eq!(
        said.matches("all processes start again").count(),
        kills.len(),
        "{said}"
    );
    // A kill at any time may come before the first checkpoint, or before the last one was loaded.
    let resumed = said.matches("resumed from checkpoint").count();
    let due = kills.iter().filter(|kill| kill.2.is_none()).count();
    assert!((due..=kills.len()).contains(&resumed), "{said}");
    let mut rows = rows(&model);
    rows.retain(|(table, _), _| table == "w");
    rows
}

/// A job under BSP that loses a worker, then a server, then a worker at any point of an iteration, or of its start,
/// ends with the bits of an undisturbed one. With `--full` there are 20 such kills.
#[test]
fn killed_training_has_the_bits_of_one_run() {
    let due = train("bsp", &[]);
    let mut kills = vec![("worker", 1, None), ("server", 0, None)];
    let more = match std::env::var_os("TIDEWATER_TEST_FULL") {
        Some(_) => 20,
        None => 1,
    };
    let time = |n| Some(mix64(n) % 1_200);
    kills.extend((0..more).map(|n| ("worker", (n % 2) as usize, time(n))));
    assert!(due.len() > 100, "{} rows", due.len());
    let rows = train("bsp", &kills);
    let differ = due.iter().filter(|(key, row)| rows.get(*key) != Some(*row));
    assert_eq!(differ.count(), 0, "of {} rows", due.len());
    assert_eq!(rows.len(), due.len());
}

/// Directory of the ledger.
const LEDGER: &str = "SYSTEM_TEST_LEDGER";
const WORKERS: u32 = 2;
/// Steps between two looks for the end.
const LOOK: u64 = 50;

/// Value of each worker's row.
fn ledger(client: &mut Client, table: &tidewater::Table<i64>) -> Vec<i64> {
    let keys: Vec<u64> = (0..WORKERS.into()).collect();
    let mut values = vec![0; keys.len()];
    let options = PullOptions::default().missing(tidewater::Missing::Initial);
    client
        .pull_rows(table, &keys, &mut values, options)
        .unwrap();
    values
}

/// The program of `ledger_is_exact_over_killed_servers`: counts its steps in a row of its own. Whatever was
/// lost, the row and the position are of one step.
#[test]
#[ignore = "run by ledger_is_exact_over_killed_servers, as a worker of its job"]
fn ledger_worker() {
    let folder = PathBuf::from(std::env::var_os(LEDGER).unwrap());
    let job = JoinOptions::default().join().unwrap().into_job().unwrap();
    let mut client = job.client(SyncMode::Bsp).unwrap();
    let rank = u64::from(client.rank().0);
    let spec = TableBuilder::sparse::<i64>("ledger", 1).at_clock(Reduce::Sum);
    let table = client.create_table::<i64>(spec.spec()).unwrap();
    let position = client.position().unwrap();
    let mut step = position.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
    assert!(
        ledger(&mut client, &table)
            .iter()
            .all(|&value| value == step as i64)
    );
    let progress = folder.join(format!("progress-{rank}"));
    let written = progress.with_extension("new");
    if let Some(resumed) = client.resumed() {
        let of = |clocks: &[tidewater_protocol::wire::control::DomainClock]| {
            let first = clocks.iter().find(|at| at.domain == DomainId(0));
            first.map_or(0, |at| at.clock)
        };
        let (clock, seen) = (of(&resumed.clocks), of(&resumed.seen));
        assert_eq!((clock, clock % LOOK), (step, 0), "{resumed:?}");
        let reached = fs::read(&progress).unwrap();
        let reached = u64::from_le_bytes(reached.try_into().unwrap());
        assert!(resumed.lost_ms.is_some(), "{resumed:?}");
        // The report counts ticks of which no worker got an answer, one at most.
        assert!(
            seen <= reached + 1,
            "{resumed:?}, {reached} steps were taken"
        );
        println!(
            "resumed at {step}, {} steps lost, seen {seen}",
            reached - step
        );
    }
    let stop = folder.join("stop");
    loop {
        let pushed = client.push_rows(&table, &[rank], &[1], PushOp::Sum);
        client.wait_applied(&pushed.unwrap()).unwrap();
        step += 1;
        client.set_position(&step.to_le_bytes()).unwrap();
        client.tick().unwrap();
        // By a rename: a kill must not leave an empty file.
        fs::write(&written, step.to_le_bytes()).unwrap();
        fs::rename(&written, &progress).unwrap();
        if step.is_multiple_of(LOOK) {
            let mut ends = [i64::from(stop.exists())];
            client.broadcast(0, &mut ends).unwrap();
            if ends[0] != 0 {
                break;
            }
        }
    }
    client.flush().unwrap();
    client.barrier("end", LIMIT).unwrap();
    assert_eq!(ledger(&mut client, &table), [step as i64; WORKERS as usize]);
    println!("exact after {step} steps");
    client.finish().unwrap();
}

/// `kill -9` of a server, 10 times. Each restart continues from the newest complete checkpoint: rows and
/// positions are those of its tick, at most what came after it is lost, and the job reports it.
#[test]
fn ledger_is_exact_over_killed_servers() {
    const KILLS: u64 = 10;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("c");
    let (every, restarts) = (format!("{LOOK}t"), KILLS.to_string());
    let path = dir.to_str().unwrap();
    let options = ["--servers", "2", "--workers", "2", "--checkpoint", path];
    let again = ["--every", &every, "--restarts", &restarts];
    let variable = format!("{LEDGER}={}", folder.path().display());
    let own = std::env::current_exe().unwrap();
    let program = [
        "env",
        &variable,
        own.to_str().unwrap(),
        "checkpoints::ledger_worker",
    ];
    let flags = ["--exact", "--ignored", "--nocapture", "--test-threads", "1"];
    let run = Run::start(
        &[&options[..], &again[..]].concat(),
        &[&program[..], &flags[..]].concat(),
    );
    let mut last = 0;
    let mut took = Vec::new();
    for n in 0..KILLS {
        last = until_newer(&run, &dir, last);
        kill(&run, "server", (n % 2) as usize);
        let killed = tidewater_runtime::clock::now();
        let deadline = Deadline::after(LIMIT);
        // Every worker has read the ledger of the checkpoint.
        let due = (n + 1) * u64::from(WORKERS);
        while (run.said().matches("steps lost").count() as u64) < due {
            assert!(!deadline.passed(), "{}", run.said());
            std::thread::sleep(Duration::from_millis(2));
        }
        took.push(killed.elapsed());
        // What was complete at the kill is not lost.
        assert!(newest(&dir) >= last, "{}", run.said());
    }
    took.sort();
    let (median, most) = (took[took.len() / 2], took[took.len() - 1]);
    println!("from kill -9 to the first pull: p50 {median:?}, max {most:?} of {KILLS}");
    until_newer(&run, &dir, last);
    fs::write(folder.path().join("stop"), "").unwrap();
    let said = run.succeeds();
    assert_eq!(
        said.matches("exact after").count(),
        WORKERS as usize,
        "{said}"
    );
    let reports = said.matches("resumed from checkpoint").count();
    assert_eq!(reports as u64, KILLS, "{said}");
    let kept = checkpoints(&dir);
    // Two, and one that shares no part with the newest.
    assert!((1..=3).contains(&kept.len()), "{kept:?}");
    for line in said.lines().filter(|line| line.contains("steps lost")) {
        println!("{line}");
    }
}

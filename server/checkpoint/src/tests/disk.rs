//! Saves and loads on the real disk layer, [`OsDisk`]. Each step fails in turn, or is the last one
//! of the process.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

use super::*;
use crate::testing::faults::{Call, Kind, Verdict, under};

/// Counts the steps of a save or load: of a file's many writes, one in 40.
#[derive(Default)]
struct Steps {
    count: usize,
    transfers: usize,
}

impl Steps {
    /// Whether this call is step `number`.
    fn is(&mut self, call: &Call, number: usize) -> bool {
        if matches!(call.kind, Kind::Write | Kind::Read) {
            self.transfers += 1;
            if !self.transfers.is_multiple_of(40) {
                return false;
            }
        }
        self.count += 1;
        self.count - 1 == number
    }
}

/// Each file of a model is durable before it gets its name, and its name before the save continues.
/// No file of the previous model is removed earlier.
#[test]
fn save_syncs_before_it_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let mut cluster = Cluster::new(&[2, 1]);
    cluster.fill(1);
    let first = cluster.save(&OsDisk, &path, 1).unwrap();
    let mut calls: Vec<Call> = Vec::new();
    let (saver, to) = (&mut cluster, path.clone());
    let saved = under(
        |call| {
            calls.push(call.clone());
            Verdict::Pass
        },
        move || saver.save(&OsDisk, &to, 10),
    );
    saved.unwrap();
    let is = |call: &Call, kind, path: &Path| call.kind == kind && call.path == path;
    let mut renames = 0;
    for (at, rename) in calls.iter().enumerate() {
        if rename.kind != Kind::Rename {
            continue;
        }
        renames += 1;
        let before = &calls[..at];
        let written = before
            .iter()
            .rposition(|call| is(call, Kind::Write, &rename.path));
        let synced = before
            .iter()
            .rposition(|call| is(call, Kind::Sync, &rename.path));
        assert!(written.is_some(), "{rename:?} was not written: {calls:?}");
        assert!(
            synced > written,
            "{rename:?} is not synced after its last write: {calls:?}"
        );
        let after = &calls[at + 1..];
        let durable = after.iter().position(|call| is(call, Kind::Sync, &path));
        let next = after
            .iter()
            .position(|call| matches!(call.kind, Kind::Rename | Kind::Remove | Kind::Create));
        assert!(
            durable.is_some_and(|durable| next.is_none_or(|next| durable < next)),
            "the name of {rename:?} is not durable before the next step: {calls:?}"
        );
    }
    assert_eq!(renames, 2 + 1, "two parts and the manifest");
    let removed = calls.iter().filter(|call| call.kind == Kind::Remove);
    assert_eq!(removed.count(), first.files.len());
}

/// `EIO` from a step on, as of a disk that died. `ENOSPC` at one step, as of a disk that is full
/// for a moment. The save fails, or is complete.
#[test]
fn failing_disk_leaves_a_whole_model() {
    let old = Cluster::new(&[1, 1]);
    old.fill(1);
    let mut new = Cluster::new(&[2, 1]);
    new.fill(2);
    let (before, after) = (old.model(), new.model());
    for (errno, once) in [(Errno::IO, false), (Errno::NOSPC, true)] {
        let (mut kept, mut replaced) = (0, 0);
        for number in 0.. {
            let dir = tempfile::tempdir().unwrap();
            old.save(&OsDisk, dir.path(), 1).unwrap();
            let (mut steps, mut failed) = (Steps::default(), None);
            let decide = |call: &Call| {
                if steps.is(call, number) {
                    failed = Some(call.clone());
                } else if once || failed.is_none() {
                    return Verdict::Pass;
                }
                Verdict::Fail(errno)
            };
            let (saver, to) = (&mut new, dir.path());
            let saved = under(decide, move || saver.save(&OsDisk, to, 10));
            let what = format!("{errno:?} at step {number}, {failed:?}");
            let reader = Cluster::new(&[1]);
            let loaded = reader.load(dir.path());
            loaded.unwrap_or_else(|error| panic!("{what}: {error}"));
            let model = reader.model();
            match saved {
                Ok(_) => {
                    assert!(model == after, "{what}: a save that was reported is lost");
                    replaced += 1;
                }
                Err(error) => {
                    let call = failed.as_ref().unwrap();
                    // The last step makes the change durable: before it, the old model is there.
                    let last = call.path == dir.path() && model == after;
                    assert!(model == before || last, "{what}: {error}");
                    assert!(error.to_string().contains("free space"), "{what}: {error}");
                    kept += 1;
                }
            }
            if failed.is_none() {
                break;
            }
        }
        assert!(kept > 12 && replaced > 0, "{errno:?}: {kept} {replaced}");
    }
}

/// A load from a failing disk names the file in its error, and loads no model.
#[test]
fn failing_disk_fails_a_load() {
    let dir = tempfile::tempdir().unwrap();
    let old = Cluster::new(&[1, 1]);
    old.fill(1);
    old.save(&OsDisk, dir.path(), 1).unwrap();
    let mut failures = 0;
    for number in 0.. {
        let mut reader = Cluster::new(&[1]);
        let (mut steps, mut failed) = (Steps::default(), None);
        let decide = |call: &Call| {
            if !steps.is(call, number) {
                return Verdict::Pass;
            }
            failed = Some(call.clone());
            Verdict::Fail(Errno::IO)
        };
        let (loader, from) = (&mut reader, dir.path());
        let loaded = under(decide, move || loader.load(from));
        let Some(call) = failed else {
            loaded.unwrap();
            assert!(reader.model() == old.model());
            break;
        };
        let error = loaded.expect_err("a disk that fails").to_string();
        let name = call.path.file_name().unwrap().to_str().unwrap();
        assert!(error.contains(name), "{call:?}: {error}");
        failures += 1;
    }
    assert!(failures > 6, "{failures} steps");
}

/// Gives the directory and the step to [`saves_until_it_is_killed`].
const KILL: &str = "TIDEWATER_TEST_KILL_SAVE";

/// The child process that `killed_save_leaves_a_whole_model` starts.
#[test]
#[ignore = "run by killed_save_leaves_a_whole_model, which kills it"]
fn saves_until_it_is_killed() {
    let told = std::env::var(KILL).unwrap();
    let (number, dir) = told.split_once(' ').unwrap();
    let (number, dir) = (number.parse::<usize>().unwrap(), PathBuf::from(dir));
    let mut new = Cluster::new(&[1]);
    new.fill(2);
    let mut steps = Steps::default();
    let decide = |call: &Call| {
        if steps.is(call, number) {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        Verdict::Pass
    };
    let (saver, to) = (&mut new, &dir);
    under(decide, move || saver.save(&OsDisk, to, 10)).unwrap();
}

/// SIGKILL just before each step: the directory holds the previous model or the new one. The next
/// save removes all files of the interrupted one.
#[test]
fn killed_save_leaves_a_whole_model() {
    let old = Cluster::new(&[1]);
    old.fill(1);
    let new = Cluster::new(&[1]);
    new.fill(2);
    let (before, after) = (old.model(), new.model());
    let (mut kept, mut replaced) = (0, 0);
    for number in 0.. {
        let dir = tempfile::tempdir().unwrap();
        old.save(&OsDisk, dir.path(), 1).unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::disk::saves_until_it_is_killed"])
            .args(["--ignored", "--test-threads", "1"])
            .env(KILL, format!("{number} {}", dir.path().display()))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let reader = Cluster::new(&[1]);
        let loaded = reader.load(dir.path());
        loaded.unwrap_or_else(|error| panic!("killed at step {number}: {error}"));
        let model = reader.model();
        if output.status.success() {
            assert!(
                model == after,
                "step {number}: a save that was reported is lost"
            );
            break;
        }
        assert_eq!(output.status.signal(), Some(9), "step {number}: {output:?}");
        if model == before {
            kept += 1;
        } else {
            assert!(model == after, "killed at step {number}: neither model");
            replaced += 1;
        }
        let last = old.save(&OsDisk, dir.path(), 20).unwrap();
        let files = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, last.files.len() + 1, "killed at step {number}");
    }
    assert!(kept > 6 && replaced > 1, "{kept} {replaced}");
}

/// The entry of each directory that is made is durable in the one above it.
#[test]
fn made_directories_are_synced_in_their_parents() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let new = path.join("a/b");
    let mut synced = Vec::new();
    let note = |call: &Call| {
        if call.kind == Kind::Sync {
            synced.push(call.path.clone());
        }
        Verdict::Pass
    };
    let made = new.clone();
    under(note, move || {
        make_dir(&mut OsDisk, &made).unwrap();
        make_dir(&mut OsDisk, &made).unwrap();
    });
    assert!(new.is_dir());
    assert_eq!(synced, [path.clone(), path.join("a")], "once, from above");
}

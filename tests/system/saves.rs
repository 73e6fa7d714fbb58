//! Saves and loads of servers in separate processes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tidewater::table::TableBuilder;
use tidewater::{Client, JoinOptions, PullOptions, SyncMode};
use tidewater_checkpoint::read_manifest;
use tidewater_launch::TransportChoice;
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::Deadline;

use crate::by_hand::Cluster;
use crate::model::rows;
use crate::rig::LIMIT;

/// `path` relative to this process's working directory.
fn relative(path: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    up.join(path.strip_prefix("/").unwrap())
}

/// Creates a table of 64 rows, all values `value`, applied.
fn assign(client: &mut Client, value: f32) {
    let spec = TableBuilder::rows::<f32>("t", 64, 4);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let keys: Vec<u64> = (0..64).collect();
    let pushed = client.push_rows(&table, &keys, &[value; 256], PushOp::Assign);
    client.wait_applied(&pushed.unwrap()).unwrap();
}

/// A relative directory is the caller's: servers and coordinator run in another one.
#[test]
fn relative_directory_is_the_callers() {
    let folder = tempfile::tempdir().unwrap();
    let absolute = folder.path().canonicalize().unwrap().join("model");
    let path = relative(&absolute);
    let path = path.to_str().unwrap();
    {
        let cluster = Cluster::start(2);
        let mut client = cluster.client(TransportChoice::Tcp);
        assign(&mut client, 3.0);
        let saved = client.save(path, LIMIT);
        let saved = saved.unwrap_or_else(|error| panic!("save to {path}: {error}"));
        assert_eq!(saved.rows, 64);
        assert!(absolute.join("manifest.json").is_file(), "{absolute:?}");
        assert!(!cluster.directory.join(path).exists(), "in the servers'");
        for wrong in ["", "a\0b"] {
            let error = client.save(wrong, Duration::from_secs(20)).unwrap_err();
            assert!(error.to_string().contains("save"), "{error}");
        }
    }
    let cluster = Cluster::start(1);
    let mut client = cluster.client(TransportChoice::Tcp);
    let loaded = client.load(path, LIMIT).unwrap();
    assert_eq!(loaded.tables, ["t"]);
}

/// Waits for an effect of another process.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Deadline::after(LIMIT);
    while !is() {
        assert!(!deadline.passed(), "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Number of finished parts in a directory.
fn parts(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap().flatten();
    names
        .filter(|entry| entry.path().extension().is_some_and(|e| e == "tidewater"))
        .count()
}

/// Whether a process has locked the directory. (A lock attempt would hold it for a moment, and could
/// block the awaited process.)
fn is_locked(dir: &Path) -> bool {
    let inode = format!(":{}", fs::metadata(dir).unwrap().ino());
    let locks = fs::read_to_string("/proc/locks").unwrap();
    let of_dir = |line: &str| line.split_whitespace().any(|field| field.ends_with(&inode));
    locks
        .lines()
        .any(|line| line.contains("FLOCK") && of_dir(line))
}

/// Loads the model on one server and checks that all its values are `value`.
fn holds(dir: &Path, value: f32) {
    let cluster = Cluster::start(1);
    let mut client = cluster.client(TransportChoice::Tcp);
    let loaded = client.load(dir.to_str().unwrap(), LIMIT).unwrap();
    assert_eq!(loaded.rows, 64);
    let table = client.open_table::<f32>("t").unwrap();
    let keys: Vec<u64> = (0..64).collect();
    let mut values = [0.0; 256];
    let pulled = client.pull_rows(&table, &keys, &mut values, PullOptions::default());
    pulled.unwrap();
    assert_eq!(values, [value; 256]);
}

/// SIGKILL of a server after the other has written its part, and during a load. The caller gets the
/// server's name, and the directory holds the model that was saved before.
#[test]
fn server_killed_in_a_save_or_load_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("model");
    let path = dir.to_str().unwrap();
    for loading in [false, true] {
        let cluster = Cluster::start(2);
        let mut client = cluster.client(TransportChoice::Tcp);
        if !loading {
            assign(&mut client, 1.0);
            client.save(path, LIMIT).unwrap();
            assign(&mut client, 2.0);
        }
        let server = &cluster.server_processes()[1];
        server.signal(Signal::STOP);
        let client = &mut client;
        let error = std::thread::scope(|scope| {
            let call = scope.spawn(move || match loading {
                false => client.save(path, LIMIT).map(|_| ()),
                true => client.load(path, LIMIT).map(|_| ()),
            });
            if loading {
                // A load in progress has a lock on the directory.
                until("the load begins", || is_locked(&dir));
            } else {
                until("server 0 writes its part", || parts(&dir) == 3);
            }
            assert!(!call.is_finished(), "loading {loading}: it is over already");
            server.signal(Signal::KILL);
            call.join().unwrap().unwrap_err()
        });
        assert!(error.to_string().contains("server 1"), "{loading}: {error}");
        drop(cluster);
        holds(&dir, 1.0);
    }
}

/// The directory for [`saves_to_a_full_disk`].
const FULL: &str = "SYSTEM_TEST_FULL_DISK";

/// The child process of `full_disk_fails_the_save_and_keeps_the_model`, with a small disk.
#[test]
#[ignore = "run by full_disk_fails_the_save_and_keeps_the_model, on a disk of 512 KiB"]
fn saves_to_a_full_disk() {
    let dir = PathBuf::from(std::env::var_os(FULL).unwrap());
    let path = dir.to_str().unwrap();
    let joined = JoinOptions::embedded(2, 1).join().unwrap();
    let job = joined.into_job().unwrap();
    let mut client = job.client(SyncMode::Asp).unwrap();
    assign(&mut client, 1.0);
    client.save(path, LIMIT).unwrap();
    let (manifest, before) = (read_manifest(&dir).unwrap(), rows(&dir));
    let spec = TableBuilder::range::<f32>("large", 1 << 10, 256);
    let large = client.create_table::<f32>(spec.spec()).unwrap();
    let error = client.save(path, LIMIT).unwrap_err().to_string();
    let parts = [
        "server ",
        " bytes at byte ",
        "No space left on device",
        "free space",
    ];
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
    assert_eq!(read_manifest(&dir).unwrap(), manifest);
    assert!(rows(&dir) == before, "the model before has changed");
    let files: Vec<_> = fs::read_dir(&dir).unwrap().flatten().collect();
    assert_eq!(files.len(), 3, "what the save has written stays: {files:?}");
    client.release_table(large).unwrap();
    assign(&mut client, 2.0);
    client.save(path, LIMIT).unwrap();
    assert!(rows(&dir) != before, "a save after the disk was full");
}

/// ENOSPC by the kernel: a model is saved to a tmpfs, and the next one has no room. The mount, in a
/// separate mount namespace, needs root. Other hosts run the same with injected errors
/// (`failing_disk_leaves_a_whole_model` of the server).
#[test]
fn full_disk_fails_the_save_and_keeps_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=512k tidewater-test \"$SYSTEM_TEST_FULL_DISK\"";
    let run = |script: String| {
        Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .arg(std::env::current_exe().unwrap())
            .env(FULL, folder.path())
            .stdin(Stdio::null())
            .output()
    };
    match run(mount.into()) {
        Ok(output) if output.status.success() => {}
        other => {
            println!("ignored: no tmpfs can be mounted in a namespace of its own here: {other:?}");
            return;
        }
    }
    let test = "saves::saves_to_a_full_disk --exact --ignored --test-threads 1";
    let output = run(format!("{mount} && exec \"$0\" {test}")).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let is_done = output.status.success() && said.contains("1 passed");
    assert!(is_done, "{output:?}");
}

//! What the host can do to the processes of a run: signals, networks, file systems.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tidewater_runtime::clock::Deadline;

use super::faults::Fault;
use super::ledger::{now_ns, system};
use crate::error::BenchError;

/// Pause between two looks at a condition.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Mount option for the size of a small file system: 4 MiB.
const DISK: &str = "size=4m";
/// Rules of the loopback interface that lose and delay packets, the better one first.
const SHAPES: [&[&str]; 2] = [
    &["netem", "delay", "10ms", "5ms", "loss", "1%"],
    &["tbf", "rate", "2mbit", "burst", "16kb", "latency", "30ms"],
];

/// Faults that this host can have.
#[derive(Debug)]
pub(super) struct Host {
    /// Faults that it cannot have, with the reason.
    pub(super) skipped: BTreeMap<Fault, String>,
    /// Rule of [`SHAPES`] that the kernel has; `None` if it has none, or the run has no network of its own.
    shape: Option<&'static [&'static str]>,
    /// Whether the run has mounts of its own.
    has_mounts: bool,
    /// Directories on small file systems.
    mounts: Vec<String>,
}

impl Host {
    /// Finds out what this host and `program` can do. `unshared`: the run has a network and mounts of its own;
    /// only then sets rules of the loopback interface as a trial.
    pub(super) fn find(unshared: bool, program: &Path) -> Self {
        let mut skipped = BTreeMap::new();
        let own = "needs root and unshare, for a network and mounts of its own";
        let mut shape = None;
        if unshared {
            let mut refusals = Vec::new();
            shape = SHAPES.into_iter().find(|rule| {
                let tried = set_shape(Some(rule)).and_then(|()| set_shape(None));
                refusals.extend(tried.as_ref().err().cloned());
                tried.is_ok()
            });
            if shape.is_none() {
                skipped.insert(Fault::LossAndDelay, refusals.join("; "));
            }
        } else {
            for fault in [
                Fault::Partition,
                Fault::LossAndDelay,
                Fault::DiskFull,
                Fault::JournalDiskFull,
            ] {
                skipped.insert(fault, own.to_owned());
            }
        }
        if !has_option(program, "coordinator", "--state") {
            let why = "needs a coordinator with a journal: this one has no option --state";
            for fault in [Fault::CoordinatorRestarted, Fault::JournalDiskFull] {
                skipped.insert(fault, why.to_owned());
            }
        }
        let why = "the wall clock is that of the whole host, which a run must not set; lanes, leases and deadlines \
                   read the monotonic clock, which cannot be set";
        skipped.insert(Fault::ClockJump, why.to_owned());
        Self {
            skipped,
            shape,
            has_mounts: unshared,
            mounts: Vec::new(),
        }
    }

    pub(super) fn can(&self, fault: Fault) -> bool {
        !self.skipped.contains_key(&fault)
    }

    /// Makes a directory. If the run has mounts of its own, mounts a small file system on the directory.
    pub(super) fn small_disk(&mut self, dir: &Path) -> Result<(), BenchError> {
        fs::create_dir_all(dir).map_err(system("make a directory"))?;
        if !self.has_mounts {
            return Ok(());
        }
        let path = dir.display().to_string();
        let mounted = command("mount", &["-t", "tmpfs", "-o", DISK, "none", &path]);
        mounted.map_err(failed("mount a small file system"))?;
        self.mounts.push(path);
        Ok(())
    }

    /// Removes all small file systems, with what is on them.
    pub(super) fn unmount(&mut self) -> Result<(), BenchError> {
        let mut mounts = self.mounts.drain(..);
        mounts.try_for_each(|path| {
            command("umount", &[&path]).map_err(failed("remove a small file system"))
        })
    }

    /// Cuts the loopback interface for `time`, and blocks that long.
    pub(super) fn partition(&self, time: Duration) -> Result<(), BenchError> {
        let link =
            |state| command("ip", &["link", "set", "lo", state]).map_err(failed("cut the network"));
        link("down")?;
        std::thread::sleep(time);
        link("up")
    }

    /// Loses and delays packets of the loopback interface for `time`, and blocks that long.
    pub(super) fn lose_and_delay(&self, time: Duration) -> Result<(), BenchError> {
        set_shape(self.shape).map_err(failed("shape the network"))?;
        std::thread::sleep(time);
        set_shape(None).map_err(failed("shape the network"))
    }

    /// Text of the rule that loses and delays packets; empty without one.
    pub(super) fn shape(&self) -> String {
        self.shape.map_or_else(String::new, |rule| rule.join(" "))
    }
}

fn failed(what: &'static str) -> impl Fn(String) -> BenchError {
    move |why| system(what)(io::Error::other(why))
}

/// Runs a command of the system. The error is a text with the command and its error output.
fn command(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!(
                "{program} {}: {}",
                arguments.join(" "),
                said.trim()
            ))
        }
    }
}

/// Sets, or with `None` removes, a rule of the loopback interface.
fn set_shape(rule: Option<&[&str]>) -> Result<(), String> {
    let line = match rule {
        Some(_) => ["qdisc", "add", "dev", "lo", "root"],
        None => ["qdisc", "del", "dev", "lo", "root"],
    };
    command("tc", &[&line[..], rule.unwrap_or(&[])].concat())
}

/// Whether the help of a role of the program has the text `option`; false if the program does not run.
pub(super) fn has_option(program: &Path, role: &str, option: &str) -> bool {
    let help = Command::new(program).args([role, "--help"]).output();
    // A program that cannot say has none; its start reports why.
    help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains(option))
}

/// Whether this process may have a network and mounts of its own.
pub(super) fn can_unshare() -> bool {
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--mount", "ip", "link", "set", "lo", "up"]);
    let status = unshare.stdout(Stdio::null()).stderr(Stdio::null()).status();
    rustix::process::geteuid().is_root() && status.is_ok_and(|status| status.success())
}

/// A directory without room.
#[derive(Debug)]
pub(super) struct FullDisk {
    filler: PathBuf,
    file: File,
}

impl FullDisk {
    /// Fills the small file system of a directory to its last byte.
    pub(super) fn fill(dir: &Path) -> Result<Self, BenchError> {
        let filler = dir.join("filler");
        let mut file = File::create(&filler).map_err(system("fill the disk"))?;
        while file.write_all(&[0; 4096]).is_ok() {}
        while file.write_all(&[0]).is_ok() {}
        Ok(Self { filler, file })
    }

    /// Removes what fills the file system, so that there is room again.
    pub(super) fn free(self) -> Result<(), BenchError> {
        // Its bytes are free when it is closed too.
        drop(self.file);
        fs::remove_file(&self.filler).map_err(system("free the disk"))
    }
}

/// Sends a signal to a process.
pub(super) fn signal(pid: Pid, signal: Signal) -> Result<(), BenchError> {
    kill_process(pid, signal).map_err(|error| system("signal a process")(error.into()))
}

/// Stops a process by a signal, sleeps for `time`, and continues the process.
pub(super) fn stop_for(pid: Pid, time: Duration) -> Result<(), BenchError> {
    signal(pid, Signal::STOP)?;
    std::thread::sleep(time);
    signal(pid, Signal::CONT)
}

/// Waits for the end of a process; returns its exit status, or `None` if `limit` has passed.
pub(super) fn wait_for(
    child: &mut Child,
    limit: Duration,
) -> Result<Option<ExitStatus>, BenchError> {
    let limit = Deadline::after(limit);
    loop {
        let status = child.try_wait().map_err(system("wait for a process"))?;
        if status.is_some() || limit.passed() {
            return Ok(status);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Polls until `poll` returns something, and returns that; `None`: `limit` has passed. Polls at least once.
pub(super) fn until<T>(
    limit: Duration,
    mut poll: impl FnMut() -> Result<Option<T>, BenchError>,
) -> Result<Option<T>, BenchError> {
    let limit = Deadline::after(limit);
    loop {
        let found = poll()?;
        if found.is_some() || limit.passed() {
            return Ok(found);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waits until `holds` returns true. Returns the time from `since`, in ns of the monotonic clock, until then;
/// `None`: `limit` has passed.
pub(super) fn time_until(
    since: u64,
    limit: Duration,
    mut holds: impl FnMut() -> Result<bool, BenchError>,
) -> Result<Option<Duration>, BenchError> {
    let time = || Duration::from_nanos(now_ns() - since);
    until(limit, || Ok(holds()?.then(time)))
}

/// A process as `/proc` shows it.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: i32,
    /// Its arguments, with an empty text after the last one; only this text for a process that has ended.
    pub(super) arguments: Vec<String>,
}

/// All processes. Those that end meanwhile are left out.
pub(super) fn processes() -> Result<Vec<Process>, BenchError> {
    let entries = fs::read_dir("/proc").map_err(system("list the processes"))?;
    let process = |entry: io::Result<fs::DirEntry>| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, fields) = stat.rsplit_once(") ")?;
        let parent = fields.split_whitespace().nth(1)?.parse().ok()?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let arguments = line.split(|byte| *byte == 0);
        let arguments = arguments.map(|text| String::from_utf8_lossy(text).into_owned());
        Some(Process {
            pid: Pid::from_raw(pid)?,
            parent,
            arguments: arguments.collect(),
        })
    };
    Ok(entries.filter_map(process).collect())
}

/// The children of a process, followed by all their descendants, of those in `all`.
pub(super) fn descendants(all: &[Process], of: Pid) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![of.as_raw_nonzero().get()];
    while let Some(parent) = parents.pop() {
        let children = all.iter().filter(|process| process.parent == parent);
        parents.extend(
            children
                .clone()
                .map(|child| child.pid.as_raw_nonzero().get()),
        );
        found.extend(children.cloned());
    }
    found
}

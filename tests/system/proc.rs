//! Processes as `/proc` shows them.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::{Pid, Signal};

/// A process with its role.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// `server`, `worker`, `coordinator`, or `other` (the launcher, its reaper, the test's own).
    pub(crate) role: String,
    pub(crate) rank: u32,
}

impl Process {
    /// Takes a process that the test started itself.
    pub(crate) fn of(child: &std::process::Child) -> Self {
        Self {
            pid: i32::try_from(child.id()).unwrap(),
            role: "other".into(),
            rank: 0,
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Sends SIGKILL, unless the process has ended.
    pub(crate) fn kill_if_there(&self) {
        let pid = Pid::from_raw(self.pid).unwrap();
        match rustix::process::kill_process(pid, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => panic!("kill {}: {error}", self.pid),
        }
    }

    /// Fields of `/proc/PID/stat` from the third, the state, on; `None` after its end.
    fn stat(&self) -> Option<Vec<String>> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let (_, fields) = text.rsplit_once(") ")?;
        Some(fields.split_whitespace().map(str::to_owned).collect())
    }

    /// State letter R, S, T, Z ...; `None` after its end.
    pub(crate) fn state(&self) -> Option<char> {
        self.stat()?.first()?.chars().next()
    }

    /// Whether it is a child of process `pid`; false after its end.
    pub(crate) fn is_child_of(&self, pid: i32) -> bool {
        let parent = self.stat().and_then(|fields| fields.get(1)?.parse().ok());
        parent == Some(pid) && self.state() != Some('Z')
    }

    /// Its children that have not ended.
    pub(crate) fn children(&self) -> Vec<Self> {
        let child = |pid| Self {
            pid,
            role: self.role.clone(),
            rank: self.rank,
        };
        let mut all: Vec<Self> = pids().map(child).collect();
        all.retain(|process| process.is_child_of(self.pid));
        all
    }

    /// Number of its open files.
    pub(crate) fn open_files(&self) -> usize {
        let files = fs::read_dir(format!("/proc/{}/fd", self.pid));
        files.unwrap().count()
    }

    /// Processor time used so far, in milliseconds: all threads, user and system.
    pub(crate) fn cpu_ms(&self) -> u64 {
        let fields = self.stat().unwrap();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        ticks * 1000 / rustix::param::clock_ticks_per_second()
    }

    /// Threads: number, name, and voluntary context switches so far.
    pub(crate) fn threads(&self) -> Vec<(u32, String, u64)> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
        let one = |path: std::path::PathBuf| {
            let name = fs::read_to_string(path.join("comm")).ok()?;
            let status = fs::read_to_string(path.join("status")).ok()?;
            let switches = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            let tid = path.file_name()?.to_str()?.parse().ok()?;
            Some((tid, name.trim().to_owned(), switches.trim().parse().ok()?))
        };
        tasks
            .flatten()
            .filter_map(|task| one(task.path()))
            .collect()
    }

    /// Nanoseconds in which its threads were runnable without a core.
    pub(crate) fn starved_ns(&self) -> u64 {
        self.threads()
            .iter()
            .map(|(tid, _, _)| starved_ns(self.pid, *tid))
            .sum()
    }

    /// Names of the abstract sockets on which it listens or communicates.
    pub(crate) fn abstract_sockets(&self) -> BTreeSet<String> {
        let fds = fs::read_dir(format!("/proc/{}/fd", self.pid)).unwrap();
        let links = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        let inodes: BTreeSet<String> = links
            .filter_map(|link| {
                let link = link.to_str()?.strip_prefix("socket:[")?.to_owned();
                link.strip_suffix(']').map(str::to_owned)
            })
            .collect();
        let table = fs::read_to_string("/proc/net/unix").unwrap();
        let mut found = BTreeSet::new();
        for line in table.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if let [_, _, _, _, _, _, inode, name] = fields[..]
                && name.starts_with('@')
                && inodes.contains(inode)
            {
                found.insert(name.to_owned());
            }
        }
        found
    }
}

/// Nanoseconds in which a thread was runnable without a core.
pub(crate) fn starved_ns(pid: i32, tid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap_or_default();
    let waited = text.split_whitespace().nth(1);
    waited.map_or(0, |ns| ns.parse().unwrap())
}

/// Whether an abstract socket of this name exists.
pub(crate) fn socket_exists(name: &str) -> bool {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    table.lines().any(|line| line.ends_with(name))
}

/// Numbers of all processes.
fn pids() -> impl Iterator<Item = i32> {
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    fs::read_dir("/proc").unwrap().flatten().filter_map(pid)
}

/// Living processes with the variable `mark` in their environment.
pub(crate) fn marked(mark: &str) -> Vec<Process> {
    let mut found: Vec<Process> = pids().filter_map(|pid| member(pid, mark)).collect();
    found.sort();
    found
}

/// Processes may end during the search; unreadable ones are not of this job.
fn member(pid: i32, mark: &str) -> Option<Process> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let environ = String::from_utf8_lossy(&environ).into_owned();
    let variables: Vec<&str> = environ.split('\0').collect();
    if !variables.contains(&mark) {
        return None;
    }
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let value = |name: &str| {
        variables
            .iter()
            .find_map(|variable| variable.strip_prefix(name))
    };
    // The launcher's shim has the environment of the program that it will exec.
    let shim = String::from_utf8_lossy(&line).contains("\0__");
    let role = value("TIDEWATER_ROLE=").filter(|_| !shim);
    Some(Process {
        pid,
        role: role.unwrap_or("other").to_owned(),
        rank: value("TIDEWATER_RANK=").map_or(0, |rank| rank.parse().unwrap()),
    })
}

//! Runs the built `tidewater run` with shell scripts instead of programs, under a deadline.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidewater_runtime::sync::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use tidewater_runtime::clock::Deadline;

/// Time limit of every step, sufficient on a host that is ten times too busy.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) const COORDINATOR: &str =
    "echo 'tidewater-coordinator ready 127.0.0.1:7' >&0; exec cat >/dev/null";
pub(crate) const SERVER: &str = "exec cat >/dev/null";

/// A shell function: scripts wait for each other through files, so that no test depends on a sleep.
pub(crate) const AWAIT: &str =
    "await() { for f; do while [ ! -e $TEST_FOLDER/$f ]; do sleep 0.01; done; done; }; ";

/// A running `tidewater run`. Dropping it kills the launcher, and so the job.
pub(crate) struct Run {
    launcher: Child,
    /// Variable in the environment of every process of this run.
    pub(crate) mark: String,
    stdout: File,
    stderr: File,
    _folder: TempDir,
}

/// Result of an ended run.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The job to run.
pub(crate) struct Job<'a> {
    pub(crate) options: &'a [&'a str],
    pub(crate) worker: &'a str,
    pub(crate) server: &'a str,
    pub(crate) coordinator: &'a str,
    pub(crate) stdin: Stdio,
    pub(crate) stdout: Option<Stdio>,
    /// Options and value of the shell's `ulimit`, under which the launcher is started.
    pub(crate) ulimit: Option<&'a str>,
    /// Variables that the launcher inherits.
    pub(crate) env: &'a [(&'a str, &'a str)],
}

impl<'a> Job<'a> {
    /// A job with workers that run `worker` as a shell script.
    pub(crate) fn of(options: &'a [&'a str], worker: &'a str) -> Self {
        let (server, coordinator) = (SERVER, COORDINATOR);
        Self {
            options,
            worker,
            server,
            coordinator,
            stdin: Stdio::null(),
            stdout: None,
            ulimit: None,
            env: &[],
        }
    }

    pub(crate) fn start(self) -> Run {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("TEST_MARK={}-{number}", std::process::id());
        let (stdout, stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let own_stdout = || stdout.try_clone().unwrap().into();
        let folder = tempfile::tempdir().unwrap();
        let limit = self
            .ulimit
            .map_or_else(String::new, |limit| format!("ulimit {limit}; "));
        let launcher = Command::new("/bin/sh")
            .args(["-c", &format!("{limit}exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_tidewater"))
            .arg("run")
            .args([
                "--server-command",
                self.server,
                "--coordinator-command",
                self.coordinator,
            ])
            .args(self.options)
            .args(["--", "/bin/sh", "-c", self.worker])
            .envs(self.env.iter().copied())
            .env("TEST_MARK", mark.strip_prefix("TEST_MARK=").unwrap())
            .env("TEST_FOLDER", folder.path())
            .stdin(self.stdin)
            .stdout(self.stdout.unwrap_or_else(own_stdout))
            .stderr(stderr.try_clone().unwrap())
            .spawn()
            .unwrap();
        Run {
            launcher,
            mark,
            stdout,
            stderr,
            _folder: folder,
        }
    }

    pub(crate) fn end(self) -> Ended {
        self.start().end()
    }
}

impl Run {
    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.launcher), signal).unwrap();
    }

    /// Waits until stderr or stdout holds `text`.
    pub(crate) fn until(&mut self, text: &str) {
        eventually(|| {
            let said = format!("{}{}", read(&mut self.stdout), read(&mut self.stderr));
            if said.contains(text) {
                Ok(())
            } else {
                Err(format!("no {text:?} in: {said}"))
            }
        });
    }

    /// Waits for the end, and until no process of the run is left.
    pub(crate) fn end(mut self) -> Ended {
        let status = self.wait();
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
        self.nothing_left();
        Ended {
            code,
            stdout: read(&mut self.stdout),
            stderr: read(&mut self.stderr),
        }
    }

    fn wait(&mut self) -> std::process::ExitStatus {
        let deadline = Deadline::after(LIMIT);
        loop {
            if let Some(status) = self.launcher.try_wait().unwrap() {
                return status;
            }
            if deadline.passed() {
                self.launcher.kill().unwrap();
                panic!(
                    "the launcher did not end; stderr: {}",
                    read(&mut self.stderr)
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Asserts that after an orderly end no process is left at once.
    pub(crate) fn nothing_left(&self) {
        assert_eq!(marked(&self.mark), Vec::<String>::new());
    }

    /// Asserts that after kill -9 no process is left soon.
    pub(crate) fn nothing_left_soon(&mut self) {
        self.wait();
        eventually(|| {
            let left = marked(&self.mark);
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("left: {left:?}"))
            }
        });
    }

    /// The reaper of this run: a child of the launcher.
    pub(crate) fn guard(&self) -> Pid {
        let launcher = self.launcher.id();
        let children = format!("/proc/{launcher}/task/{launcher}/children");
        let children = std::fs::read_to_string(children).unwrap();
        let is_guard = |pid: &&str| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.ends_with(b"\0__guard\0")
        };
        let guard = children.split_whitespace().find(is_guard).expect("a guard");
        Pid::from_raw(guard.parse().unwrap()).unwrap()
    }

    /// Waits for the end of one process that does not carry the mark.
    pub(crate) fn gone_soon(pid: Pid) {
        eventually(|| {
            if is_alive(pid) {
                Err(format!("{pid:?} is left"))
            } else {
                Ok(())
            }
        });
    }

    /// The process id in a line `NAME PID` of the output.
    pub(crate) fn pid_of(&mut self, name: &str) -> Pid {
        let name = format!("{name} ");
        let mut found = None;
        eventually(|| {
            let said = format!("{}{}", read(&mut self.stdout), read(&mut self.stderr));
            let line = said
                .lines()
                .find_map(|line| line.split_once(&name).map(|(_, pid)| pid));
            found = line
                .and_then(|pid| pid.trim().parse().ok())
                .and_then(Pid::from_raw);
            found.map(|_| ()).ok_or(format!("no {name} in: {said}"))
        });
        found.unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

/// Living processes with `mark` in their environment, with their command lines.
pub(crate) fn marked(mark: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        // Processes end during the scan; those that cannot be read are not of this run.
        let path = entry.path();
        let Ok(environ) = std::fs::read(path.join("environ")) else {
            continue;
        };
        if environ
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark.as_bytes())
        {
            let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            found.push(format!("{}: {line}", path.display()));
        }
    }
    found
}

/// Whether a process runs; a dead one may stay long until its parent reaps it.
pub(crate) fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let state = stat
        .ok()
        .and_then(|text| text.rsplit(") ").next().map(|rest| rest.starts_with('Z')));
    state == Some(false)
}

fn eventually(mut attempt: impl FnMut() -> Result<(), String>) {
    let deadline = Deadline::after(LIMIT);
    while let Err(problem) = attempt() {
        assert!(!deadline.passed(), "{problem}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// The output so far, read through another offset than the writers'.
fn read(file: &mut File) -> String {
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    let mut bytes = Vec::new();
    let mut file = File::open(path).unwrap();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

//! Other programs: found on the path, run for a bounded time, their output read.
//!
//! A missing or failing program gives a printed reason, never an error of the run.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tidewater_runtime::clock::Deadline;

/// Interval between two polls for a program's exit.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Time that a counter needs to attach to its processes.
const ATTACH: Duration = Duration::from_millis(500);
/// Limit of the output read from a program, bytes.
const OUTPUT_MAX: u64 = 1 << 20;

/// Finds a program on the path. The error is a text that names the program.
pub(super) fn find(name: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name));
    let mut found = found.filter(|file| file.is_file());
    found
        .next()
        .ok_or_else(|| format!("{name} is not installed"))
}

/// Finds a program of this project in the folder of this one.
pub(super) fn sibling_program(name: &str) -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|e| e.to_string())?;
    let file = here.parent().unwrap_or(Path::new(".")).join(name);
    if file.is_file() {
        return Ok(file);
    }
    Err(format!(
        "{name} is not in the folder of this program: cargo build --release builds it"
    ))
}

/// Finds an unused port on the loopback interface.
pub(super) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| e.to_string())?;
    Ok(listener.local_addr().map_err(|e| e.to_string())?.port())
}

/// Runs a program to its end; returns its standard output. Kills the program after `longest`. The error is a
/// text: the time limit, or the first line that a failing program printed.
pub(super) fn run(command: &mut Command, longest: Duration) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = Killed(child.map_err(|e| format!("{name}: {e}"))?);
    // Both pipes are drained while it runs, so that it never blocks on output.
    let out = child.0.stdout.take().map(drain);
    let err = child.0.stderr.take().map(drain);
    let status = child
        .wait(longest)
        .ok_or_else(|| format!("{name} did not end within {} s", longest.as_secs()))?;
    let text = |pipe: Option<std::thread::JoinHandle<String>>| {
        pipe.and_then(|pipe| pipe.join().ok()).unwrap_or_default()
    };
    let (out, err) = (text(out), text(err));
    if status {
        return Ok(out);
    }
    let said = err
        .lines()
        .chain(out.lines())
        .find(|line| !line.trim().is_empty());
    Err(format!(
        "{name} failed: {}",
        said.unwrap_or("it does not say why").trim()
    ))
}

fn drain(pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // Unreadable output counts as missing; the exit code decides.
        let _ = pipe.take(OUTPUT_MAX).read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A program that is killed when it is dropped.
#[derive(Debug)]
pub(super) struct Killed(Child);

impl Killed {
    /// Starts a program; discards its output.
    pub(super) fn start(command: &mut Command) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child.map(Self).map_err(|e| format!("{name}: {e}"))
    }

    /// Waits for the end of the program; returns whether it succeeded, or `None` if it still runs after
    /// `longest`.
    pub(super) fn wait(&mut self, longest: Duration) -> Option<bool> {
        let deadline = Deadline::after(longest);
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Some(status.success()),
                Ok(None) if deadline.passed() => return None,
                Ok(None) => std::thread::sleep(POLL_INTERVAL),
                Err(_) => return Some(false),
            }
        }
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // A program that has exited cannot be killed, and is only reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `perf stat` on the system calls of some processes.
#[derive(Debug)]
pub(super) struct SyscallCounter {
    perf: Killed,
    file: PathBuf,
}

impl SyscallCounter {
    /// Attaches to the processes and starts to count; blocks for half a second until `perf` has attached.
    pub(super) fn start(pids: &[Pid]) -> Result<Self, String> {
        let perf = find("perf")?;
        let file = scratch().join("syscalls.csv");
        let pids: Vec<String> = pids
            .iter()
            .map(|p| p.as_raw_nonzero().to_string())
            .collect();
        let mut perf = Killed::start(
            Command::new(perf)
                .args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-o"])
                .arg(&file)
                .args(["-p", &pids.join(",")]),
        )?;
        // Sleeps: polling would be counted.
        std::thread::sleep(ATTACH);
        if perf.wait(Duration::ZERO).is_some() {
            return Err(
                "perf cannot count system calls here (root, or perf_event_paranoid and \
                        tracefs)"
                    .into(),
            );
        }
        Ok(Self { perf, file })
    }

    /// Ends the count; returns the number of system calls of all processes since the start.
    pub(super) fn stop(mut self) -> Result<u64, String> {
        let pid = Pid::from_child(&self.perf.0);
        kill_process(pid, Signal::INT).map_err(|e| e.to_string())?;
        if self.perf.wait(Duration::from_secs(5)).is_none() {
            return Err("perf does not end".into());
        }
        let text = std::fs::read_to_string(&self.file).map_err(|e| e.to_string())?;
        let _ = std::fs::remove_file(&self.file);
        count_of(&text).ok_or_else(|| "perf printed no count".into())
    }
}

/// Extracts the count from the output of `perf stat -x ,`; `None` if there is none.
fn count_of(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find(|l| l.contains("raw_syscalls:sys_enter"))?;
    line.split(',').next()?.trim().parse().ok()
}

/// Creates and returns a folder of this process for small files. Returns the path also if the folder cannot be
/// created.
pub(super) fn scratch() -> PathBuf {
    let dir = std::env::temp_dir().join(format!("tidewater-bench-{}", std::process::id()));
    // If the folder cannot be created, the later write fails and reports it.
    let _ = std::fs::create_dir_all(&dir);
    dir
}

/// Removes the folder of [`scratch`].
pub(super) fn sweep() {
    let _ = std::fs::remove_dir_all(scratch());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_heard_or_says_why_not() {
        let second = Duration::from_secs(20);
        let echo = find("echo").unwrap();
        assert_eq!(run(Command::new(&echo).arg("x"), second).unwrap(), "x\n");
        assert!(
            find("no-such-program")
                .unwrap_err()
                .contains("not installed")
        );
        let ls = find("ls").unwrap();
        let failed = run(Command::new(ls).arg("/no/such/file"), second).unwrap_err();
        assert!(failed.contains("failed"), "{failed}");
        let sleep = find("sleep").unwrap();
        let late = run(Command::new(sleep).arg("60"), Duration::from_millis(50));
        assert!(late.unwrap_err().contains("did not end"));
    }

    #[test]
    fn counts_of_perf() {
        let text = "# started\n\n123,,raw_syscalls:sys_enter,5,100.00,,\n";
        assert_eq!(count_of(text), Some(123));
        assert_eq!(count_of("<not counted>,,raw_syscalls:sys_enter,0,"), None);
    }
}

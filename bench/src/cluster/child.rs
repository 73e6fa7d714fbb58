//! A process of a run: this program, started again with a hidden subcommand.
//!
//! It reads commands from standard input and answers each on standard output, one line of JSON each.
//! It exits at the end of its input, so it never outlives the run, however the run ends.

use std::io::{self, BufRead, BufReader, Lines, StdinLock, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::error::{BenchError, Cause};

/// The parent's end of a child process. Dropping it closes the child's input and waits until the child exits.
#[derive(Debug)]
pub struct Process {
    name: String,
    process: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a subcommand of this program, pinned to `core` if given. The process waits for its first
    /// command.
    ///
    /// # Errors
    /// If the process cannot be started or pinned.
    pub fn start(role: &str, name: String, core: Option<usize>) -> Result<Self, BenchError> {
        let failed = |e: io::Error| BenchError::system(format!("start {name}"), e);
        let program = std::env::current_exe().map_err(failed)?;
        let mut process = Command::new(program)
            .arg(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let pipes = (process.stdin.take(), process.stdout.take());
        let (Some(commands), Some(answers)) = pipes else {
            return Err(failed(io::Error::other("it has no pipes")));
        };
        let started = Self {
            name,
            process,
            commands: Some(commands),
            answers: BufReader::new(answers),
        };
        if let Some(core) = core {
            // Threads that it starts later inherit the core.
            pin(Some(started.pid()), core)?;
        }
        Ok(started)
    }

    /// Sends a command to the process.
    ///
    /// # Errors
    /// [`BenchError::Process`] if the process is gone.
    pub fn send(&mut self, command: &impl Serialize) -> Result<(), BenchError> {
        let mut line = serde_json::to_vec(command).map_err(|e| self.gone(e))?;
        line.push(b'\n');
        let Some(commands) = self.commands.as_mut() else {
            return Err(self.gone("it was stopped"));
        };
        commands.write_all(&line).map_err(|e| self.gone(e))
    }

    /// Waits for the next answer of the process.
    ///
    /// # Errors
    /// [`BenchError::Process`] if the process is gone, or the answer has another type.
    pub fn receive<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T, BenchError> {
        let mut answer = String::new();
        let read = self.answers.read_line(&mut answer);
        read.map_err(|e| self.gone(e))?;
        serde_json::from_str(&answer).map_err(|e| self.gone(e))
    }

    /// Sends a command and waits for the answer.
    ///
    /// # Errors
    /// [`BenchError::Process`] if the process is gone, or the answer has another type.
    pub fn ask<T: for<'a> Deserialize<'a>>(
        &mut self,
        command: &impl Serialize,
    ) -> Result<T, BenchError> {
        self.send(command)?;
        self.receive()
    }

    /// Process id of the child.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn gone(&self, cause: impl Into<Cause>) -> BenchError {
        BenchError::process(&self.name, cause)
    }
}

/// Stops a process by a signal, sleeps for `time`, and continues the process.
///
/// # Errors
/// If the process cannot be signalled.
pub fn pause(pid: Pid, time: Duration) -> Result<(), BenchError> {
    let send =
        |signal| kill_process(pid, signal).map_err(|e| BenchError::system("pause a server", e));
    send(Signal::STOP)?;
    std::thread::sleep(time);
    send(Signal::CONT)
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process exits at the end of its input.
        self.commands = None;
        let _ = self.process.wait();
    }
}

/// The child's end: the commands on standard input.
#[derive(Debug)]
pub struct CommandReader(Lines<StdinLock<'static>>);

impl CommandReader {
    /// Locks the standard input of this process.
    pub fn new() -> Self {
        Self(io::stdin().lock().lines())
    }

    /// Reads the next command; `None` at the end of the input.
    ///
    /// # Errors
    /// If the parent sends something that is no command.
    pub fn take<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Option<T>, BenchError> {
        let Some(line) = self.0.next() else {
            return Ok(None);
        };
        let line = line.map_err(pipe)?;
        let command = serde_json::from_str(&line);
        command.map(Some).map_err(|e| pipe(e.into()))
    }

    /// Blocks until the parent closes the input.
    pub fn to_the_end(self) {
        self.0.for_each(drop);
    }
}

impl Default for CommandReader {
    fn default() -> Self {
        Self::new()
    }
}

/// Sends an answer to the parent.
///
/// # Errors
/// If the parent is gone.
pub fn answer(what: &impl Serialize) -> Result<(), BenchError> {
    let mut line = serde_json::to_vec(what).map_err(|e| pipe(e.into()))?;
    line.push(b'\n');
    let out = &mut io::stdout().lock();
    out.write_all(&line)
        .and_then(|()| out.flush())
        .map_err(pipe)
}

fn pipe(source: io::Error) -> BenchError {
    BenchError::system("talk to the parent process", source)
}

/// Pins the thread with this id, which for a process is its first thread, to one core; `None`: this thread.
/// Threads that the pinned thread starts later inherit the core.
///
/// # Errors
/// If the core does not exist or may not be used, or the thread is gone.
pub fn pin(process: Option<Pid>, core: usize) -> Result<(), BenchError> {
    if core >= CpuSet::MAX_CPU {
        return Err(BenchError::Usage(format!("there is no core {core}")));
    }
    let mut set = CpuSet::new();
    set.set(core);
    let pinned = sched_setaffinity(process, &set);
    pinned.map_err(|e| BenchError::system(format!("cannot pin to core {core}"), e))
}

//! A process of a run: this program, started again with a hidden subcommand.
//!
//! It reads orders from its standard input and answers each on its standard output, one line of
//! JSON each. It ends when the input ends, so that it never outlives the run, however that ends.

use std::io::{self, BufRead, BufReader, Lines, StdinLock, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// The parent's end.
#[derive(Debug)]
pub struct Process {
    name: String,
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a subcommand of this program, on that core if there is one. It waits for its first
    /// order.
    ///
    /// # Errors
    /// When a process cannot be started or pinned.
    pub fn start(role: &str, name: String, core: Option<usize>) -> Result<Self, BenchError> {
        let failed = |source| BenchError::System {
            what: format!("start {name}"),
            source,
        };
        let program = std::env::current_exe().map_err(failed)?;
        let mut process = Command::new(program)
            .arg(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let pipes = (process.stdin.take(), process.stdout.take());
        let (Some(orders), Some(answers)) = pipes else {
            return Err(failed(io::Error::other("it has no pipes")));
        };
        let started = Self {
            name,
            process,
            orders: Some(orders),
            answers: BufReader::new(answers),
        };
        if let Some(core) = core {
            // Threads that it starts later stay on the core, too.
            pin(Some(started.pid()), core)?;
        }
        Ok(started)
    }

    /// Gives an order.
    ///
    /// # Errors
    /// [`BenchError::Process`] when it is gone.
    pub fn tell(&mut self, order: &impl Serialize) -> Result<(), BenchError> {
        let mut line = serde_json::to_vec(order).map_err(|e| self.gone(&e))?;
        line.push(b'\n');
        let sent = match self.orders.as_mut() {
            Some(orders) => orders.write_all(&line).map_err(|e| e.to_string()),
            None => Err("it was stopped".into()),
        };
        sent.map_err(|e| self.gone(&e))
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// [`BenchError::Process`] when it is gone, or answers something else.
    pub fn hear<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T, BenchError> {
        let mut answer = String::new();
        let read = self.answers.read_line(&mut answer);
        read.map_err(|e| self.gone(&e))?;
        serde_json::from_str(&answer).map_err(|e| self.gone(&e))
    }

    /// Gives an order and waits for the answer.
    ///
    /// # Errors
    /// As [`Self::tell`] and [`Self::hear`].
    pub fn ask<T: for<'a> Deserialize<'a>>(
        &mut self,
        order: &impl Serialize,
    ) -> Result<T, BenchError> {
        self.tell(order)?;
        self.hear()
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn gone(&self, why: &dyn std::fmt::Display) -> BenchError {
        BenchError::Process {
            name: self.name.clone(),
            why: why.to_string(),
        }
    }
}

/// Stops a process for a while.
///
/// # Errors
/// When it cannot be signalled.
pub fn pause(pid: Pid, time: Duration) -> Result<(), BenchError> {
    let send = |signal| {
        kill_process(pid, signal).map_err(|e| BenchError::System {
            what: "pause a server".into(),
            source: e.into(),
        })
    };
    send(Signal::STOP)?;
    std::thread::sleep(time);
    send(Signal::CONT)
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.orders = None;
        let _ = self.process.wait();
    }
}

/// The child's end.
#[derive(Debug)]
pub struct Orders(Lines<StdinLock<'static>>);

impl Orders {
    /// Of this process.
    pub fn new() -> Self {
        Self(io::stdin().lock().lines())
    }

    /// The next order; `None` at the end.
    ///
    /// # Errors
    /// When the parent talks nonsense.
    pub fn take<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Option<T>, BenchError> {
        let Some(line) = self.0.next() else {
            return Ok(None);
        };
        let line = line.map_err(pipe)?;
        let order = serde_json::from_str(&line);
        order.map(Some).map_err(|e| pipe(e.into()))
    }

    /// Waits until the parent goes.
    pub fn to_the_end(self) {
        self.0.for_each(drop);
    }
}

impl Default for Orders {
    fn default() -> Self {
        Self::new()
    }
}

/// Answers the parent.
///
/// # Errors
/// When it is gone.
pub fn answer(what: &impl Serialize) -> Result<(), BenchError> {
    let mut line = serde_json::to_vec(what).map_err(|e| pipe(e.into()))?;
    line.push(b'\n');
    let out = &mut io::stdout().lock();
    out.write_all(&line)
        .and_then(|()| out.flush())
        .map_err(pipe)
}

fn pipe(source: io::Error) -> BenchError {
    BenchError::System {
        what: "talk to the parent process".into(),
        source,
    }
}

/// Keeps a process's first thread (or this thread) on one core.
///
/// # Errors
/// A core that there is not.
pub fn pin(process: Option<Pid>, core: usize) -> Result<(), BenchError> {
    if core >= CpuSet::MAX_CPU {
        return Err(BenchError::Usage(format!("there is no core {core}")));
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(process, &set).map_err(|e| BenchError::System {
        what: format!("cannot pin to core {core}"),
        source: e.into(),
    })
}

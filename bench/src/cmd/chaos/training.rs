//! A training job of `tidewater run` with checkpoints and restarts, its faults, and what must follow.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tidewater_checkpoint::read_manifest;

use super::cluster::{LIMIT, Shape, append, occurrences};
use super::faults::Fault;
use super::host::{
    FullDisk, Host, Process, descendants, processes, signal, stop_for, time_until, until, wait_for,
};
use super::ledger::{Counts, now_ns, system};
use super::{FaultTargets, Outcome, worker};
use crate::error::BenchError;

/// Ticks between two checkpoints.
const EVERY: &str = "50t";
/// Line of the launcher when it starts all processes again.
const AGAIN: &str = "all processes start again";
/// Line of the coordinator when it has loaded a checkpoint.
const RESUMED: &str = "resumed from checkpoint";
/// Line of the coordinator when a checkpoint has failed.
const FAILED: &str = "a checkpoint has failed";

/// A job under way. Dropping it kills the launcher, and so the job.
#[derive(Debug)]
pub(super) struct Training {
    launcher: Child,
    dir: PathBuf,
    ledgers: Vec<File>,
}

impl Training {
    /// Starts a job, and waits until every worker trains and there is a checkpoint.
    pub(super) fn start(shape: &Shape, dir: &Path) -> Result<Self, BenchError> {
        fs::create_dir_all(dir.join("checkpoints")).map_err(system("make a directory"))?;
        let ledgers = 0..shape.workers;
        let ledgers = ledgers.map(|rank| Counts::open(&dir.join(format!("ledger-{rank}"))));
        let ledgers = ledgers.collect::<Result<_, _>>()?;
        let own = std::env::current_exe().map_err(system("find this program"))?;
        let log = append(&dir.join("run.log"))?;
        let mut command = Command::new(&shape.program);
        command
            .args(["run", "--appliers", "1", "--servers"])
            .arg(shape.servers.to_string())
            .args(["--workers", &shape.workers.to_string()])
            .args(["--transport", shape.transport.name()])
            .args(["--restarts", "1000000", "--every", EVERY, "--checkpoint"])
            .arg(dir.join("checkpoints"))
            .arg("--")
            .arg(own)
            .args([worker::TRAINING_ROLE, "--ledgers"])
            .arg(dir);
        let launcher = command
            .env("RUST_LOG", "warn,tidewater_service::coordinator=info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let job = Self {
            launcher: launcher.map_err(system("start a job"))?,
            dir: dir.to_owned(),
            ledgers,
        };
        let begun = until(LIMIT, || {
            let pushed = job.counts()?.iter().all(|counts| counts.acked > 0);
            Ok((pushed && job.newest()? > 0).then_some(()))
        })?;
        match begun {
            Some(()) => Ok(job),
            None => Err(job.failed("it does not train, or has no checkpoint")),
        }
    }

    fn failed(&self, why: &str) -> BenchError {
        BenchError::process(format!("the job in {}", self.dir.display()), why)
    }

    fn counts(&self) -> Result<Vec<Counts>, BenchError> {
        self.ledgers.iter().map(Counts::read).collect()
    }

    fn logged(&self, text: &str) -> usize {
        occurrences(&self.dir.join("run.log"), text)
    }

    /// Tick, which is the step, of the newest complete checkpoint; 0 without one.
    fn newest(&self) -> Result<u64, BenchError> {
        let Ok(entries) = fs::read_dir(self.dir.join("checkpoints/default")) else {
            return Ok(0);
        };
        let clock = |entry: std::io::Result<fs::DirEntry>| {
            // One that is not complete, or was removed meanwhile, has no manifest.
            let manifest = read_manifest(&entry.ok()?.path()).ok()?;
            manifest.clocks().iter().map(|at| at.clock).max()
        };
        Ok(entries.filter_map(clock).max().unwrap_or(0))
    }

    /// The first process of the job that `is_it` accepts. Waits for at most [`LIMIT`], because the launcher
    /// may be starting it.
    fn process(&self, is_it: impl Fn(&Process) -> bool) -> Result<Pid, BenchError> {
        let launcher = Pid::from_child(&self.launcher);
        let found = until(LIMIT, || {
            let all = descendants(&processes()?, launcher);
            Ok(all.iter().find(|process| is_it(process)).map(|it| it.pid))
        })?;
        found.ok_or_else(|| self.failed("a process of it does not start"))
    }

    fn pid(&self, role: Role) -> Result<Pid, BenchError> {
        let (command, rank) = match role {
            Role::Coordinator => ("coordinator", None),
            Role::Server(number) => ("server", Some(number)),
            Role::Worker(rank) => (worker::TRAINING_ROLE, Some(rank)),
        };
        let rank = rank.map(|rank| format!("TIDEWATER_RANK={rank}"));
        self.process(|it| {
            it.arguments.get(1).is_some_and(|first| first == command)
                && rank.as_ref().is_none_or(|rank| has_variable(it.pid, rank))
        })
    }

    /// Inflicts a fault and waits until it is over. A fault that a job cannot have does nothing.
    ///
    /// # Errors
    /// The environment. A broken promise is in the outcome.
    pub(super) fn inflict(
        &self,
        fault: Fault,
        host: &Host,
        of: FaultTargets,
    ) -> Result<Outcome, BenchError> {
        let FaultTargets {
            server,
            worker,
            time,
        } = of;
        let (one, other) = (Role::Worker(worker), Role::Server(server));
        let mut outcome = match fault {
            Fault::WorkerKilled => self.killed(&[one])?,
            Fault::ServerKilled => self.killed(&[other])?,
            Fault::WorkerAndServerKilled => self.killed(&[one, other])?,
            Fault::CoordinatorKilled => self.killed(&[Role::Coordinator])?,
            Fault::WorkerStopped => self.stopped(one, time)?,
            Fault::ServerStopped => self.stopped(other, time)?,
            Fault::CoordinatorStopped => self.stopped(Role::Coordinator, time)?,
            Fault::Partition => {
                let subject = format!("all processes, {time:?}");
                self.passes(subject, || host.partition(time))?
            }
            Fault::LossAndDelay => {
                let subject = format!("all processes, {time:?}, {}", host.shape());
                self.passes(subject, || host.lose_and_delay(time))?
            }
            Fault::DiskFull => self.disk_full()?,
            _ => Outcome::default(),
        };
        for rank in 0..self.ledgers.len() {
            if let Ok(text) = fs::read_to_string(self.dir.join(format!("wrong-{rank}"))) {
                outcome.broken = Some(format!("worker {rank}: {text}"));
            }
        }
        let steps = self.counts()?.iter().map(|counts| counts.acked).min();
        outcome.pushes = steps.map(|steps| steps * self.ledgers.len() as u64);
        Ok(outcome)
    }

    /// Kills processes: all must start again from a checkpoint that is at least as new as the newest complete
    /// one before. Steps after that checkpoint count as lost.
    fn killed(&self, roles: &[Role]) -> Result<Outcome, BenchError> {
        let pids: Vec<Pid> = roles
            .iter()
            .map(|role| self.pid(*role))
            .collect::<Result<_, _>>()?;
        let (again, resumed) = (self.logged(AGAIN), self.logged(RESUMED));
        let newest = self.newest()?;
        let before = self.counts()?;
        let since = now_ns();
        for pid in &pids {
            signal(*pid, Signal::KILL)?;
        }
        // What the workers have done before their end counts as lost, if it is.
        let detected = time_until(since, LIMIT, || Ok(self.logged(AGAIN) > again))?;
        let reached = self.counts()?;
        let recovered =
            time_until(since, LIMIT, || {
                let counts = self.counts()?;
                let mut pairs = before.iter().zip(&counts);
                Ok(pairs
                    .all(|(before, now)| now.restarts > before.restarts && now.acked > now.resumed))
            })?;
        let counts = self.counts()?;
        let at = counts
            .iter()
            .map(|counts| counts.resumed)
            .min()
            .unwrap_or(0);
        let reached = reached.iter().map(|counts| counts.acked).max().unwrap_or(0);
        let names: Vec<String> = roles.iter().map(|role| role.to_string()).collect();
        Ok(Outcome {
            subject: names.join(" and "),
            detected,
            recovered,
            lost: Some(reached.saturating_sub(at)),
            broken: if detected.is_none() || recovered.is_none() {
                Some(format!("the job does not train again within {LIMIT:?}"))
            } else if at < newest {
                Some(format!(
                    "it continues at step {at}: the checkpoint of {newest} is lost"
                ))
            } else if counts.iter().any(|counts| counts.resumed != at) {
                Some(format!(
                    "the workers continue at different steps: {counts:?}"
                ))
            } else if self.logged(RESUMED) <= resumed {
                Some("the loss is not reported".into())
            } else {
                None
            },
            ..Outcome::default()
        })
    }

    fn stopped(&self, role: Role, time: Duration) -> Result<Outcome, BenchError> {
        let pid = self.pid(role)?;
        self.passes(format!("{role}, {time:?}"), || stop_for(pid, time))
    }

    /// A fault that passes; `inflict` blocks while it lasts. Afterwards every worker must train, and none may
    /// have begun again.
    fn passes(
        &self,
        subject: String,
        inflict: impl FnOnce() -> Result<(), BenchError>,
    ) -> Result<Outcome, BenchError> {
        let before = self.counts()?;
        inflict()?;
        let since = now_ns();
        let recovered = time_until(since, LIMIT, || {
            Ok(self.counts()?.iter().all(|counts| counts.acked_at > since))
        })?;
        let counts = self.counts()?;
        let mut pairs = before.iter().zip(&counts);
        let again = pairs.any(|(before, now)| before.restarts != now.restarts);
        Ok(Outcome {
            subject,
            recovered,
            broken: match (recovered, again) {
                (None, _) => Some(format!("a worker takes no step within {LIMIT:?}")),
                (_, true) => Some("the job has begun again".into()),
                _ => None,
            },
            ..Outcome::default()
        })
    }

    /// Fills the file system of the checkpoints: training goes on, and checkpoints follow when there is room.
    fn disk_full(&self) -> Result<Outcome, BenchError> {
        let failed = self.logged(FAILED);
        let since = now_ns();
        let disk = FullDisk::fill(&self.dir.join("checkpoints"))?;
        let detected = time_until(since, LIMIT, || Ok(self.logged(FAILED) > failed))?;
        let mut outcome = self.passes("checkpoints".into(), || Ok(()))?;
        let newest = self.newest()?;
        disk.free()?;
        let freed = now_ns();
        let next = time_until(freed, LIMIT, || Ok(self.newest()? > newest))?;
        outcome.detected = detected;
        outcome.recovered = next;
        if detected.is_none() {
            outcome.broken = Some(format!("no checkpoint fails within {LIMIT:?}"));
        } else if next.is_none() {
            outcome.broken = Some(format!("no checkpoint follows within {LIMIT:?}"));
        }
        Ok(outcome)
    }

    /// Ends the training. The inner error says how the launcher ends if not without an error, within [`LIMIT`].
    pub(super) fn finish(&mut self) -> Result<Result<(), String>, BenchError> {
        fs::write(self.dir.join("stop"), "").map_err(system("end a training"))?;
        let status = wait_for(&mut self.launcher, LIMIT)?;
        Ok(match status {
            Some(status) if status.success() => Ok(()),
            other => Err(format!("the job ends with {other:?}; see its run.log")),
        })
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

/// A process of the job.
#[derive(Debug, Clone, Copy)]
enum Role {
    Coordinator,
    Server(u32),
    Worker(u32),
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Coordinator => write!(f, "coordinator"),
            Self::Server(number) => write!(f, "server {number}"),
            Self::Worker(rank) => write!(f, "worker {rank}"),
        }
    }
}

/// Whether the environment of a process has `variable`, as `NAME=value`; false for a process that has ended.
fn has_variable(pid: Pid, variable: &str) -> bool {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
    let environment = environment.unwrap_or_default();
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|it| it == variable.as_bytes())
}

//! Runs stages: one at a time, or two that may run side by side.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::follow::Follower;
use super::host::Host;
use super::plan::{Plan, Stage};
use super::report::{Done, Report, Verdict};
use super::{SetUp, log_file};
use crate::failure::{Failure, Result};
use crate::processes::{self, Children, Event, Group, Marked};

/// Folder of the stages' output and reports.
pub(crate) const LOGS: &str = "target/ci-logs";
/// Variable that marks the processes of a stage.
const MARK: &str = "CI_RUN_ID";
/// Time from SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(10);
/// Time that processes have to end after their stage has.
const SETTLE: Duration = Duration::from_secs(2);
/// Wait without a deadline.
const LONG: Duration = Duration::from_secs(3600);
/// Exit code of a stage that has nothing to run.
const NOTHING_TO_RUN: i32 = 77;

/// End of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended {
    Done,
    BySignal(i32),
}

/// Stage that runs at present.
#[derive(Debug)]
struct Active {
    at: usize,
    group: Group,
    began: Instant,
    /// When it is asked to end; after that, when it is killed.
    deadline: Instant,
    overdue: bool,
    /// Folder of its temporary files.
    _folder: TempDir,
    follower: Option<Follower>,
}

/// Progress of a stage.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    verdict: Option<Verdict>,
    tries: u32,
    took: Duration,
}

/// Run of the stages of a plan.
#[derive(Debug)]
pub(crate) struct Run<'p> {
    root: &'p Path,
    plan: &'p Plan,
    verbose: bool,
    set_up: Option<SetUp>,
    began: Instant,
    /// Marks of this run begin with it.
    mark: String,
    children: Children<usize>,
    active: Vec<Active>,
    progress: Vec<Progress>,
    /// Settings of the host before the stages that run now.
    host: Host,
}

impl<'p> Run<'p> {
    pub(crate) fn new(
        root: &'p Path,
        plan: &'p Plan,
        verbose: bool,
        set_up: Option<SetUp>,
    ) -> Result<Self> {
        fs::create_dir_all(root.join(LOGS)).map_err(|error| file("write", LOGS, error))?;
        let children = Children::new().map_err(|source| Failure::Start {
            program: "handlers of signals".to_owned(),
            source,
        })?;
        Ok(Self {
            root,
            plan,
            verbose,
            set_up,
            began: Instant::now(),
            mark: processes::new_mark(),
            children,
            active: Vec::new(),
            progress: vec![Progress::default(); plan.stages.len()],
            host: Host::now(),
        })
    }

    /// Time since the run began, that of ci/all.sh included.
    pub(crate) fn elapsed(&self) -> Duration {
        let before = self.set_up.map_or(0, |set_up| set_up.all_seconds);
        self.began.elapsed() + Duration::from_secs(before)
    }

    /// Runs all stages of the plan.
    pub(crate) fn all(&mut self) -> Result<Ended> {
        loop {
            while let Some(at) = self.next() {
                self.deal_with(at)?;
            }
            let Some(until) = self.active.iter().map(|active| active.deadline).min() else {
                return Ok(Ended::Done);
            };
            match self.children.next(until) {
                Some(Event::Ended(at, status)) => self.finish(at, status)?,
                Some(Event::Signal(signal)) => {
                    self.interrupt();
                    return Ok(Ended::BySignal(signal));
                }
                None => self.end_overdue(),
            }
        }
    }

    /// First stage without a verdict that does not run, if it may start now.
    fn next(&self) -> Option<usize> {
        let runs = |at: usize| self.active.iter().any(|active| active.at == at);
        let at = (0..self.plan.stages.len())
            .find(|at| self.progress[*at].verdict.is_none() && !runs(*at))?;
        let stage = &self.plan.stages[at];
        let waits = |name: &str| {
            self.active
                .iter()
                .any(|own| self.plan.stages[own.at].name == name)
        };
        match &self.active[..] {
            [] => Some(at),
            [other] => {
                let together = stage.goes_with(&self.plan.stages[other.at]);
                (together && !self.verbose && !stage.needs().any(waits)).then_some(at)
            }
            _ => None,
        }
    }

    /// Starts a stage, or says why not.
    fn deal_with(&mut self, at: usize) -> Result<()> {
        let stage = &self.plan.stages[at];
        let name = &stage.name;
        if let Some(set_up) = self.set_up.filter(|_| name == "setup") {
            let took = Duration::from_secs(set_up.seconds);
            let verdict = self.verdict(at, Some(set_up.code))?;
            self.conclude(at, verdict, took);
            return Ok(());
        }
        if self.progress[at].tries == 0 {
            remove(self.root, name, "first.log")?;
        }
        self.write(name, "log", "")?;
        self.write(name, "report", "")?;
        if let Some(needed) = self.blocker(stage) {
            self.write(name, "report", &format!("note\tneeds {needed}\n"))?;
            self.progress[at].verdict = Some(Verdict::Blocked);
            return Ok(());
        }
        let allowed = self.plan.allowed(stage, self.elapsed());
        if allowed.is_zero() {
            self.progress[at].verdict = Some(Verdict::NoTimeLeft);
            return Ok(());
        }
        if self.verbose {
            println!("\n=== {name}: {}", stage.does);
        }
        if !is_executable(&self.root.join(&stage.script)) {
            self.write(name, "report", &format!("note\tno {}\n", stage.script))?;
            let verdict = self.verdict(at, Some(NOTHING_TO_RUN))?;
            self.conclude(at, verdict, Duration::ZERO);
            return Ok(());
        }
        self.start(at, allowed)
    }

    /// Stage that this one needs and that was tried and did not pass.
    fn blocker(&self, stage: &Stage) -> Option<String> {
        let failed = |name: &&str| {
            let mut stages = self.plan.stages.iter().zip(&self.progress);
            stages.any(|(own, progress)| {
                own.name == **name
                    && progress
                        .verdict
                        .is_some_and(|verdict| verdict != Verdict::Passed)
            })
        };
        stage.needs().find(failed).map(str::to_owned)
    }

    fn start(&mut self, at: usize, allowed: Duration) -> Result<()> {
        let stage = &self.plan.stages[at];
        let name = &stage.name;
        let log = log_file(self.root, name, "log");
        let open = || OpenOptions::new().append(true).open(&log);
        let both = |out: File| out.try_clone().map(|err| (out, err));
        let (out, err) = open()
            .and_then(both)
            .map_err(|error| file("write", name, error))?;
        let prefixed = |folder: &Path| tempfile::Builder::new().prefix("tw-ci.").tempdir_in(folder);
        let folder =
            prefixed(&std::env::temp_dir()).map_err(|error| file("write", "TMPDIR", error))?;
        if self.active.is_empty() {
            self.host = Host::now();
        }
        let mut command = Command::new(self.root.join(&stage.script));
        without_cargo(&mut command)
            .current_dir(self.root)
            .env(MARK, self.mark_of(at))
            .env("CI_REPORT", log_file(self.root, name, "report"))
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err);
        if self.plan.full {
            command.env("TIDEWATER_TEST_FULL", "1");
        }
        let began = Instant::now();
        let group = self
            .children
            .start(at, &mut command)
            .map_err(|source| Failure::Start {
                program: stage.script.clone(),
                source,
            })?;
        self.progress[at].tries += 1;
        self.active.push(Active {
            at,
            group,
            began,
            deadline: began + allowed,
            overdue: false,
            _folder: folder,
            follower: self.verbose.then(|| Follower::new(log)),
        });
        Ok(())
    }

    /// Asks stages over their time to end, and kills those that do not.
    fn end_overdue(&mut self) {
        let now = Instant::now();
        for active in self
            .active
            .iter_mut()
            .filter(|active| active.deadline <= now)
        {
            if active.overdue {
                active.group.kill();
                active.deadline = now + LONG;
            } else {
                active.group.terminate();
                active.overdue = true;
                active.deadline = now + GRACE;
            }
        }
    }

    fn finish(&mut self, at: usize, status: io::Result<ExitStatus>) -> Result<()> {
        let Some(place) = self.active.iter().position(|active| active.at == at) else {
            return Ok(()); // it was not started here
        };
        let stage = &self.plan.stages[at];
        let active = self.active.remove(place);
        // Without an exit code it died by a signal.
        let code = match (active.overdue, status) {
            (true, _) => None,
            (false, Ok(status)) => Some(status.code().unwrap_or(1)),
            (false, Err(error)) => {
                self.append(at, &format!("error: {error}"))?;
                Some(1)
            }
        };
        let verdict = self.verdict(at, code)?;
        let took = self.progress[at].took + active.began.elapsed();
        drop(active.follower);
        let tries = self.progress[at].tries;
        if !verdict.is_good() && tries < stage.tries {
            println!("=== {}: {verdict}; once more", stage.name);
            self.progress[at].took = took;
            let [log, first] =
                ["log", "first.log"].map(|suffix| log_file(self.root, &stage.name, suffix));
            return fs::rename(log, first).map_err(|error| file("write", LOGS, error));
        }
        self.conclude(at, verdict, took);
        Ok(())
    }

    fn conclude(&mut self, at: usize, verdict: Verdict, took: Duration) {
        let stage = &self.plan.stages[at];
        self.progress[at].verdict = Some(verdict);
        self.progress[at].took = took;
        println!(
            "=== {}: {verdict}, {} s of {} s",
            stage.name,
            took.as_secs(),
            stage.budget_s
        );
    }

    /// What the exit code of a stage, its leftovers and its counts amount to. It has no code if it hung.
    fn verdict(&self, at: usize, code: Option<i32>) -> Result<Verdict> {
        let stage = &self.plan.stages[at];
        let find = || self.left(at);
        let left = if processes::gone_within(find, SETTLE) {
            Vec::new()
        } else {
            find()
        };
        processes::end(find, GRACE);
        if self.active.is_empty() {
            for line in self.host.put_back() {
                self.append(at, &line)?;
            }
        }
        if !left.is_empty() {
            let lines = left
                .iter()
                .map(|process| format!("\n{} {}", process.pid, process.command));
            let lines: String = lines.collect();
            self.append(at, &format!("left these processes behind:{lines}"))?;
        }
        Ok(match code {
            None => Verdict::TimedOut,
            Some(0) if !left.is_empty() => Verdict::LeftProcesses,
            Some(0) => {
                let report = self.read(&stage.name, "report")?;
                let missing = Report::new(&report).missing(stage).join(" ");
                if missing.is_empty() {
                    Verdict::Passed
                } else {
                    self.write(
                        &stage.name,
                        "report",
                        &format!("{report}note\tno test of {missing}\n"),
                    )?;
                    Verdict::RanNothing
                }
            }
            Some(NOTHING_TO_RUN) if stage.required => Verdict::RanNothing,
            Some(NOTHING_TO_RUN) => Verdict::Nothing,
            Some(_) => Verdict::Failed,
        })
    }

    fn mark_of(&self, at: usize) -> String {
        format!("{}.{}", self.mark, self.plan.stages[at].name)
    }

    /// Processes that a stage started and that live.
    fn left(&self, at: usize) -> Vec<Marked> {
        let mark = self.mark_of(at);
        processes::marked(MARK, |value| value == mark)
    }

    /// Ends the stages that run and what they have started.
    fn interrupt(&mut self) {
        for active in &self.active {
            active.group.terminate();
        }
        let places: Vec<usize> = self.active.iter().map(|active| active.at).collect();
        processes::end(
            || places.iter().flat_map(|at| self.left(*at)).collect(),
            GRACE,
        );
        self.active.clear();
        for line in self.host.put_back() {
            println!("{line}");
        }
    }

    /// Results in the order of the plan.
    pub(crate) fn done(&self) -> Result<Vec<Done<'p>>> {
        let stages = self.plan.stages.iter().zip(&self.progress);
        let done = stages.map(|(stage, progress)| {
            let first = log_file(self.root, &stage.name, "first.log");
            Ok(Done {
                stage,
                verdict: progress.verdict.unwrap_or(Verdict::NoTimeLeft),
                took: progress.took,
                report: Report::new(&self.read(&stage.name, "report")?),
                log: self.read(&stage.name, "log")?,
                first_log: first
                    .is_file()
                    .then(|| self.read(&stage.name, "first.log"))
                    .transpose()?,
            })
        });
        done.collect()
    }

    fn read(&self, stage: &str, suffix: &str) -> Result<String> {
        let path = log_file(self.root, stage, suffix);
        let bytes =
            fs::read(&path).map_err(|error| file("read", &path.display().to_string(), error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn write(&self, stage: &str, suffix: &str, text: &str) -> Result<()> {
        let path = log_file(self.root, stage, suffix);
        fs::write(&path, text).map_err(|error| file("write", &path.display().to_string(), error))
    }

    /// Writes a line to the log of a stage and to the screen.
    fn append(&self, at: usize, line: &str) -> Result<()> {
        let path = log_file(self.root, &self.plan.stages[at].name, "log");
        if !self.verbose {
            eprintln!("{line}");
        }
        let log = OpenOptions::new().create(true).append(true).open(&path);
        log.and_then(|mut log| writeln!(log, "{line}"))
            .map_err(|error| file("write", &path.display().to_string(), error))
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // An error ended the run.
        if !self.active.is_empty() {
            self.interrupt();
        }
    }
}

/// Removes the variables that `cargo run` sets for this program: a stage's cargo sets its own.
fn without_cargo(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let of_package = ["CARGO_PKG_", "CARGO_BIN_", "CARGO_MANIFEST_"];
        if name == "CARGO" || of_package.iter().any(|start| name.starts_with(start)) {
            command.env_remove(name);
        }
    }
    command.env_remove("CI_SETUP")
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn remove(root: &Path, stage: &str, suffix: &str) -> Result<()> {
    match fs::remove_file(log_file(root, stage, suffix)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file("write", LOGS, error)),
        _ => Ok(()),
    }
}

fn file(action: &'static str, path: &str, source: io::Error) -> Failure {
    let path = path.to_owned();
    Failure::File {
        action,
        path,
        source,
    }
}

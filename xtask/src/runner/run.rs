//! Runs tests, each in a process and process group of its own.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::listing::{Test, expected};
use super::outcome::{Counts, failed_names, of_binary, wrong_with_test};
use super::schedule::{Load, take};
use crate::binaries::Binary;
use crate::failure::{Failure, Result};
use crate::processes::{self, Children, Event, Group, Marked};

/// Variable that marks the processes of a test.
const MARK: &str = "CI_TEST";
/// Time from SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Time that processes have to end after their test has.
const SETTLE: Duration = Duration::from_secs(2);
/// Wait without a deadline.
const LONG: Duration = Duration::from_secs(3600);

/// How the tests run.
#[derive(Debug)]
pub(crate) struct Manner {
    /// Arguments of each binary, which then runs as a whole.
    pub(crate) arguments: Vec<String>,
    /// Variables of the tests.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// Prints the output of tests that passed, too.
    pub(crate) show: bool,
    /// File with the output of all tests.
    pub(crate) log: PathBuf,
    /// Command that repeats a test, without its id.
    pub(crate) again: String,
}

/// Result of a test.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    /// What is wrong, if anything is.
    pub(crate) wrong: Option<String>,
    pub(crate) took: Duration,
    /// Ids of the failed tests.
    pub(crate) failed: Vec<String>,
}

/// Test that runs at present.
#[derive(Debug)]
struct Active {
    group: Group,
    began: Instant,
    /// When it is asked to end; after that, when it is killed.
    deadline: Instant,
    overdue: bool,
    output: PathBuf,
}

/// Run of chosen tests.
#[derive(Debug)]
pub(crate) struct Run<'r> {
    binaries: &'r [Binary],
    tests: &'r [Test],
    manner: &'r Manner,
    children: Children<usize>,
    /// Files with the output of tests that run.
    scratch: TempDir,
    log: File,
    /// Mark of this run.
    mark: String,
    active: BTreeMap<usize, Active>,
    load: Load,
    pub(crate) outcomes: BTreeMap<usize, Outcome>,
}

impl<'r> Run<'r> {
    pub(crate) fn new(
        binaries: &'r [Binary],
        tests: &'r [Test],
        manner: &'r Manner,
    ) -> Result<Self> {
        let file = |source| Failure::File {
            action: "write",
            path: manner.log.display().to_string(),
            source,
        };
        let system = |what: &str| {
            let program = what.to_owned();
            move |source| Failure::Start { program, source }
        };
        if let Some(folder) = manner.log.parent() {
            fs::create_dir_all(folder).map_err(file)?;
        }
        Ok(Self {
            binaries,
            tests,
            manner,
            children: Children::new().map_err(system("handlers of signals"))?,
            scratch: TempDir::new().map_err(system("tests without a temporary folder"))?,
            log: OpenOptions::new()
                .create(true)
                .append(true)
                .open(&manner.log)
                .map_err(file)?,
            mark: processes::new_mark() + ".",
            active: BTreeMap::new(),
            load: Load::new(thread::available_parallelism().map_or(1, usize::from)),
            outcomes: BTreeMap::new(),
        })
    }

    /// Runs the tests at these places, the longest first by the recorded seconds. Returns the signal that ended the
    /// run early, if one did.
    pub(crate) fn all(
        &mut self,
        mut waiting: Vec<usize>,
        recorded: &BTreeMap<String, f64>,
    ) -> Result<Option<i32>> {
        let tests = self.tests;
        // Those of which only one runs at a time begin first: their sum is the longest chain.
        waiting.sort_by_key(|test| {
            let test = &tests[*test];
            Reverse((test.treatment.class.is_single(), expected(test, recorded)))
        });
        loop {
            let class_of = |test: usize| tests[test].treatment.class;
            while let Some(test) = take(&mut waiting, class_of, &self.load) {
                self.start(test)?;
            }
            if self.active.is_empty() {
                return Ok(None);
            }
            let until = self.active.values().map(|active| active.deadline).min();
            match self
                .children
                .next(until.unwrap_or_else(|| Instant::now() + LONG))
            {
                Some(Event::Ended(test, status)) => self.finish(test, status)?,
                Some(Event::Signal(signal)) => {
                    self.interrupt();
                    return Ok(Some(signal));
                }
                None => self.end_overdue(),
            }
        }
    }

    fn start(&mut self, at: usize) -> Result<()> {
        let test = &self.tests[at];
        let output = self.scratch.path().join(at.to_string());
        let file = |source| Failure::File {
            action: "write",
            path: output.display().to_string(),
            source,
        };
        let out = File::create(&output).map_err(file)?;
        let err = out.try_clone().map_err(file)?;
        let mut command = self.binaries[test.binary].command();
        match &test.name {
            Some(name) => {
                command.args(["--exact", name, "--include-ignored", "--nocapture"]);
            }
            None => {
                command.args(&self.manner.arguments);
            }
        }
        command
            .envs(
                self.manner
                    .variables
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            // Where the counts of this run go, and nothing of what tests run.
            .env_remove("CI_REPORT")
            .env(MARK, format!("{}{at}", self.mark))
            .stdout(out)
            .stderr(Stdio::from(err));
        let began = Instant::now();
        let group = self
            .children
            .start(at, &mut command)
            .map_err(|source| Failure::Start {
                program: test.id.clone(),
                source,
            })?;
        self.load.add(test.treatment.class);
        let deadline = began + test.treatment.limit;
        self.active.insert(
            at,
            Active {
                group,
                began,
                deadline,
                overdue: false,
                output,
            },
        );
        Ok(())
    }

    /// Asks tests over their limit to end, and kills those that do not.
    fn end_overdue(&mut self) {
        let now = Instant::now();
        for active in self
            .active
            .values_mut()
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
        let Some(active) = self.active.remove(&at) else {
            return Ok(()); // it was not started here
        };
        let test = &self.tests[at];
        self.load.remove(test.treatment.class);
        let took = active.began.elapsed();
        let bytes = fs::read(&active.output).map_err(|source| Failure::File {
            action: "read",
            path: active.output.display().to_string(),
            source,
        })?;
        fs::remove_file(&active.output).ok(); // the folder is removed at the end
        let text = String::from_utf8_lossy(&bytes);
        let outcome = outcome(test, status, active.overdue, took, &text);
        if outcome.wrong.is_some() {
            // What it has started may hold the next test up.
            let own = format!("{}{at}", self.mark);
            processes::end(|| processes::marked(MARK, |value| value == own), SETTLE);
        }
        self.record(test, &outcome, &text)?;
        self.outcomes.insert(at, outcome);
        Ok(())
    }

    /// Writes the output to the log, and that of failed tests to the screen.
    fn record(&mut self, test: &Test, outcome: &Outcome, text: &str) -> Result<()> {
        let seconds = outcome.took.as_secs_f64();
        let head = match &outcome.wrong {
            None => format!("--- {} ok, {seconds:.1} s", test.id),
            Some(wrong) => format!("--- {} FAILED ({wrong}), {seconds:.1} s", test.id),
        };
        let text = text.trim_end();
        writeln!(self.log, "{head}\n{text}").map_err(|source| Failure::File {
            action: "write",
            path: self.manner.log.display().to_string(),
            source,
        })?;
        if outcome.wrong.is_some() || self.manner.show {
            println!("{head}\n{text}");
        }
        if outcome.wrong.is_some() {
            println!("--- to repeat it: {} {}", self.manner.again, test.id);
        }
        Ok(())
    }

    /// Ends all tests and what they have started.
    fn interrupt(&mut self) {
        for active in self.active.values() {
            active.group.terminate();
        }
        processes::end(|| self.left(), SETTLE);
        self.active.clear();
    }

    fn left(&self) -> Vec<Marked> {
        processes::marked(MARK, |value| value.starts_with(&self.mark))
    }

    /// Processes that tests have left behind, with the ids of the tests; it ends them.
    pub(crate) fn left_behind(&self) -> Vec<String> {
        if processes::gone_within(|| self.left(), SETTLE) {
            return Vec::new();
        }
        let left = self.left();
        processes::end(|| self.left(), SETTLE);
        left.iter()
            .map(|process| {
                let at = process.value[self.mark.len()..].parse::<usize>().ok();
                let test = at.and_then(|at| self.tests.get(at));
                let id = test.map_or("", |test| test.id.as_str());
                format!("{id}: {} {}", process.pid, process.command)
            })
            .collect()
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

fn outcome(
    test: &Test,
    status: io::Result<ExitStatus>,
    overdue: bool,
    took: Duration,
    text: &str,
) -> Outcome {
    let limit = test.treatment.limit.as_secs();
    let (mut counts, mut wrong) = match (&test.name, status) {
        (_, Err(error)) => (Counts::default(), Some(error.to_string())),
        (Some(_), Ok(status)) => {
            let wrong = wrong_with_test(status, text);
            let passed = u64::from(wrong.is_none());
            (
                Counts {
                    passed,
                    failed: 1 - passed,
                    ignored: 0,
                },
                wrong,
            )
        }
        (None, Ok(status)) => of_binary(status, text),
    };
    if overdue {
        counts.passed = if test.name.is_some() {
            0
        } else {
            counts.passed
        };
        wrong = Some(format!("it hangs: over its limit of {limit} s"));
    }
    let mut failed = Vec::new();
    if wrong.is_some() {
        counts.failed = counts.failed.max(1);
        failed = failed_names(text);
        if test.name.is_none() && !failed.is_empty() {
            failed
                .iter_mut()
                .for_each(|name| *name = format!("{}/{name}", test.id));
        } else {
            failed = vec![test.id.clone()];
        }
    }
    Outcome {
        counts,
        wrong,
        took,
        failed,
    }
}

/// Removes the log of an earlier run.
pub(crate) fn clear(log: &Path) -> Result<()> {
    match fs::remove_file(log) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Failure::File {
            action: "write",
            path: log.display().to_string(),
            source,
        }),
        _ => Ok(()),
    }
}

//! What a run of tests says at its end, and the seconds that it leaves for the next one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use super::listing::Test;
use super::outcome::Counts;
use super::run::{Manner, Outcome};
use crate::binaries::Binary;
use crate::failure::{Failure, Result};

/// Number of slow tests that a report names.
const SLOWEST: usize = 10;
/// Seconds under which a test is not slow.
const SLOW_S: f64 = 2.0;

/// Counts of one binary.
#[derive(Clone, Copy, Debug, Default)]
struct OfBinary {
    counts: Counts,
    /// Sum over its tests.
    took: Duration,
}

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Report {
    /// By crate and target.
    binaries: BTreeMap<(String, String), OfBinary>,
    failed: Vec<String>,
    /// Crate, target and name of the tests that were repeated.
    repeated: Vec<String>,
    /// Processes that tests have left behind.
    left: Vec<String>,
    /// Ids and seconds, the slowest first.
    slowest: Vec<(String, f64)>,
}

impl Report {
    pub(crate) fn new(
        binaries: &[Binary],
        tests: &[Test],
        outcomes: &BTreeMap<usize, Outcome>,
        repeated: Vec<String>,
        left: Vec<String>,
    ) -> Self {
        let mut by_binary: BTreeMap<_, OfBinary> = BTreeMap::new();
        let mut failed = Vec::new();
        let mut slowest = Vec::new();
        for (at, test) in tests.iter().enumerate() {
            let Binary {
                crate_name, target, ..
            } = &binaries[test.binary];
            let sum = by_binary
                .entry((crate_name.clone(), target.clone()))
                .or_default();
            match outcomes.get(&at) {
                Some(outcome) => {
                    sum.counts.add(outcome.counts);
                    sum.took += outcome.took;
                    failed.extend(outcome.failed.iter().cloned());
                    slowest.push((test.id.clone(), outcome.took.as_secs_f64()));
                }
                None => sum.counts.ignored += 1,
            }
        }
        slowest.retain(|(_, seconds)| *seconds >= SLOW_S);
        slowest.sort_by(|a, b| b.1.total_cmp(&a.1));
        slowest.truncate(SLOWEST);
        Self {
            binaries: by_binary,
            failed,
            repeated,
            left,
            slowest,
        }
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.binaries.values().for_each(|own| sum.add(own.counts));
        sum
    }

    /// Whether tests ran, all passed, and left nothing behind.
    pub(crate) fn passed(&self) -> bool {
        let counts = self.counts();
        counts.passed > 0 && counts.failed == 0 && self.left.is_empty()
    }

    pub(crate) fn print(&self, took: Duration, manner: &Manner) {
        print!("{}", self.text(took, &manner.log));
    }

    fn text(&self, took: Duration, log: &Path) -> String {
        let mut out = String::new();
        for ((crate_name, target), own) in &self.binaries {
            let Counts {
                passed,
                failed,
                ignored,
            } = own.counts;
            let seconds = own.took.as_secs_f64();
            let _ = writeln!(
                out,
                "--- {crate_name} {target}: {passed} passed, {failed} failed, {ignored} ignored, {seconds:.1} s"
            );
        }
        if !self.slowest.is_empty() {
            let _ = writeln!(out, "\nslowest:");
        }
        for (id, seconds) in &self.slowest {
            let _ = writeln!(out, "{seconds:>8.1} s  {id}");
        }
        if !self.failed.is_empty() {
            let _ = writeln!(out, "\nfailures:\n    {}\n", self.failed.join("\n    "));
        }
        for process in &self.left {
            let _ = writeln!(out, "error: left a process behind: {process}");
        }
        let Counts {
            passed,
            failed,
            ignored,
        } = self.counts();
        if passed + failed == 0 {
            let _ = writeln!(
                out,
                "error: no test ran: choose others, or look at the list (--list)"
            );
        }
        let sum: Duration = self.binaries.values().map(|own| own.took).sum();
        let (sum, took, log) = (sum.as_secs_f64(), took.as_secs_f64(), log.display());
        let _ = writeln!(
            out,
            "tests: {passed} passed, {failed} failed, {ignored} ignored, {} repeated; {took:.1} s, {sum:.1} s one after another; {log}",
            self.repeated.len()
        );
        out
    }

    /// Adds the counts of each crate, and the repeated tests, to the report of a stage.
    pub(crate) fn append_to(&self, file: &Path) -> Result<()> {
        let mut crates: BTreeMap<&str, Counts> = BTreeMap::new();
        for ((crate_name, _), own) in &self.binaries {
            crates.entry(crate_name).or_default().add(own.counts);
        }
        let mut lines = String::new();
        for (
            crate_name,
            Counts {
                passed,
                failed,
                ignored,
            },
        ) in crates
        {
            let _ = writeln!(lines, "tests\t{crate_name}\t{passed}\t{failed}\t{ignored}");
        }
        for test in &self.repeated {
            let _ = writeln!(lines, "flake\t{test}");
        }
        let write = || {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(file)?
                .write_all(lines.as_bytes())
        };
        write().map_err(|source| Failure::File {
            action: "write",
            path: file.display().to_string(),
            source,
        })
    }
}

/// One line a test: class, limit, whether it is ignored, id.
pub(crate) fn list(tests: &[Test]) -> String {
    let mut out = String::new();
    for test in tests {
        let limit = test.treatment.limit.as_secs();
        let ignored = if test.ignored { " ignored" } else { "" };
        let _ = writeln!(
            out,
            "{:<6} {limit:>5} s  {}{ignored}",
            test.treatment.class.name(),
            test.id
        );
    }
    out
}

/// Seconds of the tests in earlier runs; none without a file.
pub(crate) fn read_seconds(file: &Path) -> BTreeMap<String, f64> {
    let Ok(text) = fs::read_to_string(file) else {
        return BTreeMap::new(); // the first run
    };
    let cells = text.lines().filter_map(|line| line.split_once('\t'));
    cells
        .filter_map(|(id, seconds)| Some((id.to_owned(), seconds.parse().ok()?)))
        .collect()
}

/// Adds the seconds of the tests that passed.
pub(crate) fn add_seconds(
    seconds: &mut BTreeMap<String, f64>,
    tests: &[Test],
    outcomes: &BTreeMap<usize, Outcome>,
) {
    for (at, outcome) in outcomes
        .iter()
        .filter(|(_, outcome)| outcome.wrong.is_none())
    {
        seconds.insert(tests[*at].id.clone(), outcome.took.as_secs_f64());
    }
}

pub(crate) fn write_seconds(file: &Path, seconds: &BTreeMap<String, f64>) -> Result<()> {
    let lines: String = seconds
        .iter()
        .map(|(id, seconds)| format!("{id}\t{seconds:.2}\n"))
        .collect();
    let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
    folder
        .and_then(|()| fs::write(file, lines))
        .map_err(|source| Failure::File {
            action: "write",
            path: file.display().to_string(),
            source,
        })
}

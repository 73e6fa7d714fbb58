//! What stages report, and the table, excerpts and sums of a whole run.

use std::fmt::{self, Write as _};
use std::time::Duration;

use super::plan::{Plan, Stage};
use crate::runner::{Counts, failed_names};

/// Most lines that an excerpt of a log has.
const EXCERPT_LINES: usize = 30;
/// Most characters of such a line.
const EXCERPT_WIDTH: usize = 300;

/// Verdict on a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// It had nothing to run, and need not have.
    Nothing,
    Failed,
    TimedOut,
    RanNothing,
    LeftProcesses,
    /// A stage that it needs has failed.
    Blocked,
    NoTimeLeft,
}

impl Verdict {
    pub(crate) fn is_good(self) -> bool {
        matches!(self, Self::Passed | Self::Nothing)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Passed => "ok",
            Self::Nothing => "nothing",
            Self::Failed => "FAILED",
            Self::TimedOut => "TIMED OUT",
            Self::RanNothing => "RAN NOTHING",
            Self::LeftProcesses => "LEFT PROCESSES",
            Self::Blocked => "BLOCKED",
            Self::NoTimeLeft => "NO TIME LEFT",
        })
    }
}

/// Lines that a stage wrote to `CI_REPORT`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Groups in the order of their first line.
    groups: Vec<(String, Counts)>,
    /// Tests that were repeated.
    flakes: Vec<String>,
    /// Text of the last note.
    note: Option<String>,
}

impl Report {
    /// Reads lines "tests GROUP PASSED FAILED IGNORED", "flake TEST" and "note TEXT", with tabs between.
    pub(crate) fn new(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            let cells: Vec<&str> = line.split('\t').collect();
            match cells[..] {
                ["tests", group, passed, failed, ignored] => {
                    let number = |cell: &str| cell.parse().unwrap_or(0);
                    report.add(
                        group,
                        Counts {
                            passed: number(passed),
                            failed: number(failed),
                            ignored: number(ignored),
                        },
                    );
                }
                ["flake", test] => report.flakes.push(test.to_owned()),
                ["note", ..] => report.note = Some(cells[1..].join(" ")),
                _ => {}
            }
        }
        report
    }

    fn add(&mut self, group: &str, counts: Counts) {
        match self.groups.iter_mut().find(|(name, _)| name == group) {
            Some((_, sum)) => sum.add(counts),
            None => self.groups.push((group.to_owned(), counts)),
        }
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.groups.iter().for_each(|(_, counts)| sum.add(*counts));
        sum
    }

    /// Groups that the stage must have run and of which no test passed.
    pub(crate) fn missing<'s>(&self, stage: &'s Stage) -> Vec<&'s str> {
        let passed = |name: &str| {
            self.groups
                .iter()
                .any(|(own, counts)| own == name && counts.passed > 0)
        };
        stage.groups().filter(|name| !passed(name)).collect()
    }

    /// Last column of the table: tests by group, then the note.
    fn what_ran(&self) -> String {
        let Counts {
            passed,
            failed,
            ignored,
        } = self.counts();
        let ran = passed + failed;
        let mut line = String::new();
        if !self.groups.is_empty() {
            let _ = write!(line, "{ran} {}", if ran == 1 { "test" } else { "tests" });
            for (count, what) in [
                (failed, "FAILED"),
                (ignored, "ignored"),
                (self.flakes.len() as u64, "REPEATED"),
            ] {
                if count > 0 {
                    let _ = write!(line, ", {count} {what}");
                }
            }
        }
        if self.groups.len() > 1 {
            let group = |(name, counts): &(String, Counts)| {
                let short = name.strip_prefix("tidewater-").unwrap_or(name);
                format!("{short} {}", counts.passed + counts.failed)
            };
            let groups: Vec<String> = self.groups.iter().map(group).collect();
            let _ = write!(line, " ({})", groups.join(", "));
        }
        match &self.note {
            Some(note) if line.is_empty() => note.clone(),
            Some(note) => format!("{line}; {note}"),
            None => line,
        }
    }
}

/// Stage that was dealt with.
#[derive(Debug)]
pub(crate) struct Done<'p> {
    pub(crate) stage: &'p Stage,
    pub(crate) verdict: Verdict,
    pub(crate) took: Duration,
    pub(crate) report: Report,
    /// Output of its last try, and of a first one that failed.
    pub(crate) log: String,
    pub(crate) first_log: Option<String>,
}

/// Table of the stages, with the seconds of the whole run and the name of the sources.
pub(crate) fn table(plan: &Plan, done: &[Done<'_>], took: Duration, sources: &str) -> String {
    let mut out = String::from("\n");
    let mut row = |name: &str, result: &str, seconds: &str, budget: &str, ran: &str| {
        let _ = writeln!(
            out,
            "{name:<11} {result:<14} {seconds:>8} {budget:>8}  {ran}"
        );
    };
    row("stage", "result", "seconds", "budget", "ran");
    row(
        "-----------",
        "--------------",
        "--------",
        "--------",
        "---",
    );
    let seconds = |took: Duration, budget: u64| {
        let late = if !plan.full && took.as_secs() > budget {
            "!"
        } else {
            ""
        };
        format!("{}{late}", took.as_secs())
    };
    for own in done {
        let mut result = own.verdict.to_string();
        if own.verdict == Verdict::Passed && own.first_log.is_some() {
            result.push_str(", 2nd try");
        }
        let budget = own.stage.budget_s;
        let took = seconds(own.took, budget);
        row(
            &own.stage.name,
            &result,
            &took,
            &budget.to_string(),
            &own.report.what_ran(),
        );
    }
    let budget = plan.limits.budget_s;
    row(
        "all",
        "",
        &seconds(took, budget),
        &budget.to_string(),
        sources,
    );
    out
}

/// Of the log of each stage that failed, at least once, the lines that look like the reason, else the last ones. They
/// follow the table: where only the end of the output is kept, it has the reasons.
pub(crate) fn excerpts(done: &[Done<'_>], logs: &str) -> String {
    let mut out = String::new();
    for own in done {
        let (log, suffix) = match &own.first_log {
            Some(first) => (first, ".first"),
            None if own.verdict.is_good() => continue,
            None => (&own.log, ""),
        };
        if !log.is_empty() {
            let name = &own.stage.name;
            let _ = write!(
                out,
                "\n--- {name}, from {logs}/{name}{suffix}.log:\n{}",
                excerpt(log)
            );
        }
    }
    out
}

fn excerpt(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let numbered = |at: usize| format!("{}:{}", at + 1, lines[at]);
    let reasons: Vec<usize> = (0..lines.len())
        .filter(|at| is_reason(lines[*at]))
        .collect();
    let mut chosen: Vec<String> = reasons.iter().map(|at| numbered(*at)).collect();
    // A test that is meant to panic is not a reason: only where tests failed are panics looked at.
    if reasons
        .iter()
        .any(|at| lines[*at].ends_with("FAILED") || lines[*at].starts_with("--- "))
    {
        let panics = (0..lines.len()).filter(|at| lines[*at].contains("panicked at"));
        chosen.extend(
            panics
                .flat_map(|at| at..(at + 3).min(lines.len()))
                .map(numbered),
        );
    }
    if chosen.is_empty() {
        chosen = lines.iter().map(|line| line.to_string()).collect();
    }
    let from = chosen.len().saturating_sub(EXCERPT_LINES);
    let cut = |line: &String| {
        line.chars()
            .take(EXCERPT_WIDTH)
            .chain(['\n'])
            .collect::<String>()
    };
    chosen[from..].iter().map(cut).collect()
}

/// Whether a line of a log looks like the reason of a failure.
fn is_reason(line: &str) -> bool {
    let is_program = |word: &str| {
        word == "fatal"
            || !word.is_empty()
                && word
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "./-".contains(c))
    };
    let of_program = line.split_once(": ").is_some_and(|(word, rest)| {
        is_program(word) && ["rror", "ail"].iter().any(|part| rest.contains(part))
    });
    line.starts_with("test ") && line.ends_with(" FAILED")
        || line.starts_with("--- ") && line.contains(" FAILED")
        || ["FAILED", "error:", "error[", "differs"]
            .iter()
            .any(|start| line.starts_with(start))
        || of_program
}

/// One line for each stage that did not pass, with what failed at either try, and the tests that were repeated: the end
/// of the output has the names.
pub(crate) fn failures(done: &[Done<'_>], logs: &str) -> String {
    let mut out = String::new();
    for own in done {
        let mut names = own.first_log.as_deref().map_or_else(Vec::new, failed_names);
        names.extend(failed_names(&own.log));
        names.sort();
        names.dedup();
        if !names.is_empty() {
            let _ = writeln!(
                out,
                "{}: tests that failed: {}",
                own.stage.name,
                names.join(" ")
            );
        }
    }
    for test in done.iter().flat_map(|own| &own.report.flakes) {
        let _ = writeln!(out, "repeated, as ci/flakes.tsv allows: {test}");
    }
    for own in done.iter().filter(|own| !own.verdict.is_good()) {
        let (verdict, name) = (own.verdict, &own.stage.name);
        let _ = writeln!(
            out,
            "{verdict}: {name}; log: {logs}/{name}.log; again: ci/all.sh --only {name}"
        );
    }
    out
}

/// The last line counts tests; a stage that failed without a failed test counts as one.
pub(crate) fn summary(done: &[Done<'_>]) -> String {
    let (mut passed, mut failed) = (0, 0);
    for own in done {
        let counts = own.report.counts();
        passed += counts.passed;
        failed += match counts.failed {
            0 if !own.verdict.is_good() => 1,
            count => count,
        };
    }
    format!("{passed} passed, {failed} failed\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(text: &str) -> String {
        Report::new(text).what_ran()
    }

    #[test]
    fn last_column_has_groups_and_note() {
        let tests = "tests\ttidewater-lanes\t2\t0\t1\ntests\tdoc\t1\t1\t0\ntests\ttidewater-lanes\t1\t0\t0\n";
        assert_eq!(ran(tests), "5 tests, 1 FAILED, 1 ignored (lanes 3, doc 2)");
        assert_eq!(ran("tests\tg\t1\t0\t0\nnote\ta\nnote\tb\n"), "1 test; b");
        assert_eq!(
            ran("tests\tg\t2\t0\t0\nflake\tc t n\n"),
            "2 tests, 1 REPEATED"
        );
        assert_eq!(ran("note\tnot here\n"), "not here");
        assert_eq!(ran(""), "");
    }

    #[test]
    fn excerpt_has_reasons_by_their_line() {
        let log = "x\ntest a::b ... FAILED\nok\nthread panicked at f.rs:1\nleft\nright\nmore\n";
        let wanted = "2:test a::b ... FAILED\n4:thread panicked at f.rs:1\n5:left\n6:right\n";
        assert_eq!(excerpt(log), wanted);
        // Without a failed test a panic is no reason.
        assert_eq!(
            excerpt("error: bad luck\npanicked at\n"),
            "1:error: bad luck\n"
        );
    }

    #[test]
    fn excerpt_without_reason_is_the_end() {
        let log: String = (1..=999).map(|line| format!("{line}\n")).collect();
        assert_eq!(excerpt(&log).lines().next(), Some("970"));
        assert!(excerpt(&log).ends_with("\n999\n"));
        assert_eq!(excerpt(&"x".repeat(999)).len(), EXCERPT_WIDTH + 1);
    }

    #[test]
    fn reasons_are_failures_and_errors() {
        let lines = [
            "--- c/t/n FAILED (exit status: 101), 0.3 s",
            "error[E0308]: mismatched types",
            "fatal: an Error",
            "ci/x.sh: failed",
            "differs: a",
        ];
        for line in lines {
            assert!(is_reason(line), "{line}");
        }
        for line in [
            "test a ... ok",
            "no errors",
            "Note: it fails",
            "--- c t: 1 passed, 0 failed",
        ] {
            assert!(!is_reason(line), "{line}");
        }
    }
}

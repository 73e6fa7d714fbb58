//! Checks of a host: each reports a finding, its meaning, and the remedy.

use std::fmt;

use serde::Serialize;
use tidewater_topology::NoSuchNic;

use super::text::{WIDTH, wrap};
use super::{Chosen, Machine, Question, choose, rdma, system};

/// Columns left of the finding.
const INDENT: usize = 22;

/// Verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but slower or less than it could.
    Warn,
    /// Does not work at all.
    Fail,
}

/// The finding of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// Name of the check: short, and never changed.
    pub name: &'static str,
    /// Whether all is well.
    pub verdict: Verdict,
    /// The finding, in words.
    pub found: String,
    /// The meaning of the finding; empty if all is well.
    pub means: String,
    /// Remedies, one of which or all are needed; empty if all is well.
    pub remedies: Vec<String>,
}

impl Check {
    /// A finding without a fault.
    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            found: found.into(),
            means: String::new(),
            remedies: Vec::new(),
        }
    }

    /// A finding with a fault and its remedies.
    pub(super) fn bad(
        (name, verdict): (&'static str, Verdict),
        found: impl Into<String>,
        means: impl Into<String>,
        remedies: &[&str],
    ) -> Self {
        Self {
            name,
            verdict,
            found: found.into(),
            means: means.into(),
            remedies: remedies.iter().map(|&remedy| remedy.to_owned()).collect(),
        }
    }
}

/// The findings of all checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Version of this JSON format.
    pub format: u32,
    /// Name of the host.
    pub host: String,
    /// Findings in the order of the checks.
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether no check has failed. Warnings do not count.
    pub fn passed(&self) -> bool {
        self.count(Verdict::Fail) == 0
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|c| c.verdict == verdict).count()
    }
}

/// Runs all checks. Cost: computation only; nothing more is read from the host.
///
/// # Errors
/// [`NoSuchNic`] for a configured device that does not exist.
pub fn examine(machine: &Machine, question: &Question) -> Result<Report, NoSuchNic> {
    let chosen: Chosen = choose(machine, question)?;
    let mut checks = rdma::checks(machine, question);
    checks.extend(system::checks(machine, question, &chosen));
    Ok(Report {
        format: 1,
        host: machine.host.clone(),
        checks,
    })
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            let (verdict, name) = (check.verdict, check.name);
            let mut lines = wrap(&check.found, WIDTH - INDENT).into_iter();
            let first = lines.next().unwrap_or_default();
            writeln!(
                f,
                "{}",
                format!(" {verdict:<5} {name:<14} {first}").trim_end()
            )?;
            let means = wrap(&check.means, WIDTH - INDENT);
            let remedies = check.remedies.iter().flat_map(|remedy| {
                let lines = wrap(remedy, WIDTH - INDENT - 3).into_iter();
                lines.zip(["-> "].into_iter().chain(std::iter::repeat("   ")))
            });
            let remedies = remedies.map(|(line, arrow)| format!("{arrow}{line}"));
            for line in lines.chain(means).chain(remedies) {
                writeln!(f, "{:INDENT$}{line}", "")?;
            }
        }
        let [ok, warn, fail] = [Verdict::Ok, Verdict::Warn, Verdict::Fail].map(|v| self.count(v));
        let checks = self.checks.len();
        let host = match self.host.as_str() {
            "" => "this machine",
            host => host,
        };
        writeln!(
            f,
            "\n{host}: {checks} checks, {ok} ok, {warn} to look at, {fail} failed"
        )
    }
}

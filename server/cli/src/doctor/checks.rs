//! Checks of a machine: each says what was found, what that means, and what to type.

use std::fmt;

use serde::Serialize;
use tidewater_topology::NoSuchNic;

use super::text::{WIDTH, wrap};
use super::{Chosen, Machine, Question, choose, rdma, system};

/// Columns before what was found.
const INDENT: usize = 22;

/// What a check says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but slower or less than it could.
    Warn,
    /// Does not work.
    Fail,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// Which check: a short name that does not change.
    pub name: &'static str,
    /// What it says.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What that means; empty if all is well.
    pub means: String,
    /// What to do, one of these or all; empty if all is well.
    pub remedies: Vec<String>,
}

impl Check {
    /// All is well.
    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            found: found.into(),
            means: String::new(),
            remedies: Vec::new(),
        }
    }

    /// Something is not.
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

/// All findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Version of this form.
    pub format: u32,
    /// The machine's name.
    pub host: String,
    /// In the order of the checks.
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether nothing has failed. Warnings do not count.
    pub fn passed(&self) -> bool {
        self.count(Verdict::Fail) == 0
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|c| c.verdict == verdict).count()
    }
}

/// Looks at everything. Cost: none but what was read already.
///
/// # Errors
/// [`NoSuchNic`] for a device that was named and does not exist.
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

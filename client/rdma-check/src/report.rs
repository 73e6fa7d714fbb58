//! What a check found: one JSON document, and one page for people.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::counters;
use crate::facts::HostFacts;
use crate::finding::{BothCounters, Finding, PortCounters, Verdict};

/// The result of a check of two hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// Version of this JSON format.
    pub format: u32,
    /// Whether it was the short check.
    pub short: bool,
    /// Time of the beginning, milliseconds since 1970.
    pub began_unix_ms: u64,
    /// The end that listened; it ran the server.
    pub listener: HostFacts,
    /// The end that connected; it ran the clients.
    pub caller: HostFacts,
    /// Findings in the order of the checks.
    pub findings: Vec<Finding>,
    /// Hardware counters before the first check and after the last one.
    pub counters: [BothCounters; 2],
}

impl Report {
    /// Whether no check has failed. What could be better does not count.
    pub fn passed(&self) -> bool {
        !self.findings.iter().any(|f| f.verdict == Verdict::Fail)
    }

    /// The JSON document.
    ///
    /// # Errors
    /// Never for a report of this crate: its keys are strings.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The page: Markdown with a verdict, what to change, all checks, and the facts of both ends.
    pub fn page(&self) -> String {
        let mut page = String::new();
        let count = |verdict| {
            self.findings
                .iter()
                .filter(|f| f.verdict == verdict)
                .count()
        };
        let (fail, change) = (count(Verdict::Fail), count(Verdict::Change));
        let verdict = match (fail, change) {
            (0, 0) => "PASS".to_owned(),
            (0, _) => format!("PASS, {change} to change"),
            _ => format!("FAIL, {fail} failed, {change} to change"),
        };
        let (listener, caller) = (&self.listener, &self.caller);
        // Writing to a string does not fail.
        let _ = writeln!(page, "# RDMA check: {verdict}\n");
        let _ = writeln!(
            page,
            "{} (server) and {} (clients), {} check, {} checks of which {} passed and {} were skipped.\n",
            listener.name(),
            caller.name(),
            if self.short { "short" } else { "full" },
            self.findings.len(),
            count(Verdict::Pass),
            count(Verdict::Skipped),
        );
        self.what_to_change(&mut page);
        self.checks(&mut page);
        self.ends(&mut page);
        self.changed_counters(&mut page);
        page
    }

    fn what_to_change(&self, page: &mut String) {
        let mut bad: Vec<_> = self
            .findings
            .iter()
            .filter(|f| f.verdict >= Verdict::Change)
            .collect();
        if bad.is_empty() {
            return;
        }
        bad.sort_by_key(|f| std::cmp::Reverse(f.verdict));
        let _ = writeln!(page, "## What to change\n");
        for finding in bad {
            let Finding { check, found, .. } = finding;
            let _ = writeln!(page, "- **{check}**: {}", one_line(found));
            for change in &finding.change {
                let _ = writeln!(page, "  - {}", one_line(change));
            }
        }
        page.push('\n');
    }

    fn checks(&self, page: &mut String) {
        let _ = writeln!(
            page,
            "## Checks\n\n| check | verdict | seconds | found |\n|---|---|---|---|"
        );
        for finding in &self.findings {
            let _ = writeln!(
                page,
                "| {} | {} | {:.1} | {} |",
                finding.check,
                finding.verdict.word(),
                finding.seconds,
                cell(&finding.found)
            );
        }
        page.push('\n');
    }

    fn ends(&self, page: &mut String) {
        let _ = writeln!(
            page,
            "## Both ends\n\n| fact | {} | {} |\n|---|---|---|",
            cell(&self.listener.name()),
            cell(&self.caller.name())
        );
        let (listener, caller) = (self.listener.rows(), self.caller.rows());
        let alone = caller
            .iter()
            .filter(|(name, _)| !listener.iter().any(|(n, _)| n == name));
        let names: Vec<&str> = listener
            .iter()
            .chain(alone)
            .map(|(name, _)| *name)
            .collect();
        for name in names {
            let of = |rows: &[(&str, String)]| {
                let row = rows.iter().find(|(n, _)| *n == name);
                row.map_or_else(String::new, |(_, value)| cell(value))
            };
            let _ = writeln!(page, "| {name} | {} | {} |", of(&listener), of(&caller));
        }
        page.push('\n');
    }

    fn changed_counters(&self, page: &mut String) {
        let [before, after] = &self.counters;
        let listener = counters::since(&before.listener, &after.listener);
        let caller = counters::since(&before.caller, &after.caller);
        let names: std::collections::BTreeSet<_> = listener.keys().chain(caller.keys()).collect();
        let _ = writeln!(page, "## Hardware counters\n");
        if names.is_empty() {
            let _ = writeln!(page, "Neither device has counters that changed.");
            return;
        }
        let _ = writeln!(
            page,
            "Changes from the first check to the last; deliberate faults included.\n\n| counter | {} | {} |\n|---|---|---|",
            cell(&self.listener.name()),
            cell(&self.caller.name())
        );
        for name in names {
            let of = |all: &PortCounters| all.get(name).copied().unwrap_or(0);
            let _ = writeln!(page, "| {name} | {} | {} |", of(&listener), of(&caller));
        }
    }
}

/// Text for a cell of a table.
fn cell(text: &str) -> String {
    one_line(text).replace('|', "\\|")
}

/// Text without line breaks and without markup: parts of it come from the other end.
fn one_line(text: &str) -> String {
    let clean = |c: char| match c {
        '<' => '(',
        '>' => ')',
        c if c.is_control() => ' ',
        c => c,
    };
    text.chars().map(clean).collect()
}

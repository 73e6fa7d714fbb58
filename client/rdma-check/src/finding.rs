//! Findings: the verdict of one check, with figures and remedies; counters of a port.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Verdict of one check, in ascending order of weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Pass,
    /// Not made; the finding has the reason.
    Skipped,
    /// Works, but slower or less than it could.
    Change,
    /// Does not work at all.
    Fail,
}

impl Verdict {
    /// The word of the page.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Skipped => "skipped",
            Self::Change => "CHANGE",
            Self::Fail => "FAIL",
        }
    }
}

/// The finding of one check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// Name of the check: short, and never changed.
    pub check: String,
    /// Whether all is well.
    pub verdict: Verdict,
    /// The finding, in words, with its numbers.
    pub found: String,
    /// What to change; empty if all is well.
    pub change: Vec<String>,
    /// Figures by name; the unit is the end of the name.
    pub figures: BTreeMap<String, f64>,
    /// Time that the check took, seconds.
    pub seconds: f64,
}

impl Finding {
    /// A finding without figures.
    pub fn new(check: &str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self {
            check: check.to_owned(),
            verdict,
            found: found.into(),
            change: Vec::new(),
            figures: BTreeMap::new(),
            seconds: 0.0,
        }
    }

    /// The finding with one more thing to change.
    #[must_use]
    pub fn change(mut self, what: impl Into<String>) -> Self {
        self.change.push(what.into());
        self
    }

    /// The finding with one more figure.
    #[must_use]
    pub fn figure(mut self, name: &str, value: f64) -> Self {
        self.figures.insert(name.to_owned(), value);
        self
    }
}

/// Counters of a port: name and value.
pub type PortCounters = BTreeMap<String, u64>;

/// Counters of both ends at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BothCounters {
    /// Those of the end that listened.
    pub listener: PortCounters,
    /// Those of the end that connected.
    pub caller: PortCounters,
}

//! The table of targets: bounds that `compare` judges contests by.

use std::path::Path;

use serde::Deserialize;

use crate::error::BenchError;

const BUILT_IN: &str = include_str!("../../../targets.toml");

/// Target of one contest.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Name of the contest.
    pub id: String,
    /// Description of the promise for readers.
    pub what: String,
    /// Unit of the bound, or `ratio`.
    pub metric: String,
    /// Largest value that meets the target; `None` if `at_least` is the bound.
    pub at_most: Option<f64>,
    /// Smallest value that meets the target; `None` if `at_most` is the bound.
    pub at_least: Option<f64>,
    /// Whether our own figure is compared with the bound, although a baseline is measured.
    #[serde(default)]
    pub absolute: bool,
    /// Whether the value is a count, not a time; builds with debug assertions judge counts too.
    #[serde(default)]
    pub counted: bool,
    /// Whether the value repeats on a busy machine.
    pub steady: bool,
    /// Whether the target was met, so that missing it is a regression.
    pub gate: bool,
}

/// All targets of a file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Targets {
    target: Vec<Target>,
}

impl Targets {
    /// Loads the targets from a file; `None`: the built-in ones.
    ///
    /// # Errors
    /// If the file cannot be read or is not a table of targets, a name is there twice, or a target does not
    /// have exactly one bound.
    pub fn load(path: Option<&Path>) -> Result<Self, BenchError> {
        let Some(path) = path else {
            return Self::parse(BUILT_IN).map_err(BenchError::Usage);
        };
        let text = std::fs::read_to_string(path).map_err(|e| BenchError::file(path, e))?;
        Self::parse(&text).map_err(|defect| BenchError::file(path, defect))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let targets: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        for (n, target) in targets.target.iter().enumerate() {
            if target.at_most.is_some() == target.at_least.is_some() {
                return Err(format!("{}: at_most or at_least, one of them", target.id));
            }
            if targets.target[..n]
                .iter()
                .any(|other| other.id == target.id)
            {
                return Err(format!("{}: twice", target.id));
            }
        }
        Ok(targets)
    }

    /// Finds the target of a contest by its full name; `None` if it has none.
    pub fn find(&self, id: &str) -> Option<&Target> {
        self.target.iter().find(|target| target.id == id)
    }

    /// All targets in the order of the file.
    pub fn all(&self) -> &[Target] {
        &self.target
    }
}

impl Target {
    /// Formats the bound as `<= 60` or `>= 0.85`.
    pub fn bound(&self) -> String {
        match (self.at_most, self.at_least) {
            (Some(most), _) => format!("<= {most}"),
            (None, least) => format!(">= {}", least.unwrap_or_default()),
        }
    }

    /// Whether a value meets the bound. NaN meets no bound.
    pub fn is_met(&self, value: f64) -> bool {
        self.at_most.is_none_or(|most| value <= most)
            && self.at_least.is_none_or(|least| value >= least)
            && !value.is_nan()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        let targets = Targets::load(None).unwrap();
        assert!(targets.all().len() > 20);
        for target in targets.all() {
            assert!(
                !target.gate || target.steady,
                "{}: a gate must be steady",
                target.id
            );
            assert!(!target.what.is_empty() && !target.metric.is_empty());
        }
    }

    #[test]
    fn bounds() {
        let parse = |bound: &str| {
            Targets::parse(&format!(
                "[[target]]\nid='a'\nwhat='b'\nmetric='us'\nsteady=true\ngate=false\n{bound}\n"
            ))
        };
        let most = parse("at_most = 2.0").unwrap();
        let most = most.find("a").unwrap();
        assert!(most.is_met(2.0) && !most.is_met(2.1) && !most.is_met(f64::NAN));
        assert_eq!(most.bound(), "<= 2");
        let least = parse("at_least = 0.5").unwrap();
        assert!(least.find("a").unwrap().is_met(0.5) && !least.find("a").unwrap().is_met(0.4));
        for bad in [
            "",
            "at_most = 1.0\nat_least = 1.0",
            "at_most = 1.0\nodd = 1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}

//! Results of a contest: figures of both sides, the compared value, the verdict.

use serde::{Deserialize, Serialize};

/// Result of a contest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ratio {
    /// Name of the contest, as in the targets.
    pub id: String,
    /// Description of the measurement.
    pub what: String,
    /// Unit of `ours` and `theirs`.
    pub unit: String,
    /// Figures of Tidewater, one per round.
    pub ours: Vec<f64>,
    /// Name of the baseline; `None` without one.
    #[serde(rename = "rival")]
    pub baseline: Option<String>,
    /// Figures of the baseline, one per round; empty without a baseline.
    pub theirs: Vec<f64>,
    /// Compared value: the median of `ours` / `theirs` of the rounds; without a baseline, and for an absolute
    /// target, the median of `ours`.
    pub value: f64,
    /// Smallest and largest of the rounds' numbers that `value` is the median of.
    pub spread: [f64; 2],
    /// The target, and whether it was met; `None` without a target.
    pub target: Option<Outcome>,
    /// Number of wrong values.
    pub wrong: u64,
}

/// Verdict on a target.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Bound of the target, as `<= 60` or `>= 0.85`.
    pub bound: String,
    /// Whether the value meets the bound.
    pub met: bool,
    /// Whether the value repeats on a busy machine.
    pub steady: bool,
    /// Whether the target was met before: missing it fails `--gate` if the target is also steady.
    pub gate: bool,
    /// Whether the value is a count, which debug assertions do not change, not a time.
    #[serde(default)]
    pub counted: bool,
}

/// A measurement that was not possible.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Absent {
    /// Description of the missing measurement.
    pub what: String,
    /// Cause, and remedy if there is one.
    pub reason: String,
}

/// Median of some numbers in any order; the mean of the middle two for an even count, `None` of no numbers.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[half]),
        _ => Some(f64::midpoint(sorted[half - 1], sorted[half])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}

//! Quality of predictions: log-loss, AUC, accuracy, RMSE, precision, recall.
//!
//! Two forms, for test sets of any size spread over any number of workers:
//!
//! - [`auc_exact`] sorts all (score, label) pairs: exact, 8 bytes a row gathered in one process. It
//!   counts in integers, so the order in which workers' pairs are joined does not matter.
//! - [`Evaluation`] is of fixed size (16 KiB of AUC histogram) and merges; its AUC comes with a bound
//!   on its error that is computed from the histogram itself.

use serde::{Deserialize, Serialize};

/// Probabilities are clamped to `[CLIP, 1 - CLIP]` before their logarithm is taken. One certain and
/// wrong prediction then costs 34.5 and not infinity (scikit-learn's former default).
pub const CLIP: f64 = 1e-15;

/// Bins of the AUC histogram, of equal width in probability.
pub const AUC_BINS: usize = 1024;

/// A row's score (any increasing function of its probability) and label.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scored {
    /// Score of the row; larger means more likely positive.
    pub score: f32,
    /// Whether the row's label is positive.
    pub positive: bool,
}

/// Reasons for which predictions cannot be evaluated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// A score is not a number.
    #[error("row {row} has score {score}; the model diverged: lower the learning rate")]
    NotFinite {
        /// Position of the row.
        row: u64,
        /// Score of the row.
        score: f64,
    },
    /// AUC needs positive and negative rows.
    #[error(
        "no AUC with {positives} positive and {negatives} negative rows; both kinds are needed"
    )]
    OneClass {
        /// Number of positive rows.
        positives: u64,
        /// Number of negative rows.
        negatives: u64,
    },
    /// An evaluation of another process contradicts itself.
    #[error("an evaluation of {rows} rows does not add up; is the worker of another version?")]
    Inconsistent {
        /// Number of rows that it claims.
        rows: u64,
    },
}

/// Probability that a random positive row scores above a random negative one, ties counting half. This
/// is the Mann-Whitney statistic with average ranks. Sorts `rows`, `O(n log n)`; the result is exact up
/// to one rounding.
///
/// # Errors
/// A score that is not finite; rows of one class only.
pub fn auc_exact(rows: &mut [Scored]) -> Result<f64, MetricsError> {
    if let Some(row) = rows.iter().position(|row| !row.score.is_finite()) {
        return Err(MetricsError::NotFinite {
            row: row as u64,
            score: f64::from(rows[row].score),
        });
    }
    rows.sort_unstable_by(|a, b| a.score.total_cmp(&b.score));
    // `==`, so that -0 and 0, neighbours in the total order, are one group.
    let groups = rows.chunk_by(|a, b| a.score == b.score).map(|group| {
        let positives = group.iter().filter(|row| row.positive).count() as u64;
        ClassCounts {
            negatives: group.len() as u64 - positives,
            positives,
        }
    });
    let wins = Wins::count(groups);
    wins.auc()
}

/// Rows by label. Serialised as `[negatives, positives]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u64; 2]", into = "[u64; 2]")]
struct ClassCounts {
    negatives: u64,
    positives: u64,
}

impl From<[u64; 2]> for ClassCounts {
    fn from([negatives, positives]: [u64; 2]) -> Self {
        Self {
            negatives,
            positives,
        }
    }
}

impl From<ClassCounts> for [u64; 2] {
    fn from(counts: ClassCounts) -> Self {
        [counts.negatives, counts.positives]
    }
}

/// Comparisons of positives with negatives, in halves so that ties are integers.
#[derive(Default)]
struct Wins {
    negatives: u64,
    positives: u64,
    halves: u128,
    tied_pairs: u128,
}

impl Wins {
    /// Counts groups of tied rows by ascending score.
    fn count(groups: impl Iterator<Item = ClassCounts>) -> Self {
        groups.fold(Self::default(), |mut wins, group| {
            let (negatives, positives) = (group.negatives, group.positives);
            let tied = u128::from(positives) * u128::from(negatives);
            wins.halves += 2 * u128::from(positives) * u128::from(wins.negatives) + tied;
            wins.tied_pairs += tied;
            wins.negatives += negatives;
            wins.positives += positives;
            wins
        })
    }

    fn pairs(&self) -> u128 {
        u128::from(self.positives) * u128::from(self.negatives)
    }

    fn auc(&self) -> Result<f64, MetricsError> {
        if self.pairs() == 0 {
            return Err(MetricsError::OneClass {
                positives: self.positives,
                negatives: self.negatives,
            });
        }
        Ok(self.halves as f64 / (2 * self.pairs()) as f64)
    }
}

/// AUC computed from a histogram.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AucEstimate {
    /// Estimated AUC; rows of one bin count as ties.
    pub auc: f64,
    /// Bound on the distance of `auc` from the exact AUC of the same probabilities: half the share of
    /// pairs that fell into one bin.
    pub error: f64,
}

/// Counts and sums over evaluated rows. Fixed size, mergeable, serialisable.
///
/// Merge evaluations in rank order: all counts are integers, but the sums of losses and squares are of floating
/// point, with last bits that depend on the order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    rows: u64,
    loss_sum: f64,
    true_positives: u64,
    false_positives: u64,
    true_negatives: u64,
    false_negatives: u64,
    /// Counts of rows by bin of probability.
    bins: Vec<ClassCounts>,
    /// Sum of squared distances of probability and label.
    squares: f64,
}

impl Default for Evaluation {
    fn default() -> Self {
        Self::new()
    }
}

impl Evaluation {
    /// Makes an evaluation without rows.
    pub fn new() -> Self {
        Self {
            rows: 0,
            loss_sum: 0.0,
            true_positives: 0,
            false_positives: 0,
            true_negatives: 0,
            false_negatives: 0,
            bins: vec![ClassCounts::default(); AUC_BINS],
            squares: 0.0,
        }
    }

    /// Counts a row that was predicted to be positive with `probability` in `[0, 1]`. From 1/2 on, it
    /// counts as classified positive.
    ///
    /// # Errors
    /// A probability that is not a number.
    pub fn add(&mut self, probability: f64, positive: bool) -> Result<(), MetricsError> {
        if probability.is_nan() {
            return Err(MetricsError::NotFinite {
                row: self.rows,
                score: probability,
            });
        }
        let p = probability.clamp(CLIP, 1.0 - CLIP);
        self.rows += 1;
        let distance = f64::from(u8::from(positive)) - probability;
        self.squares += distance * distance;
        self.loss_sum -= if positive { p.ln() } else { (-p).ln_1p() };
        *match (probability >= 0.5, positive) {
            (true, true) => &mut self.true_positives,
            (true, false) => &mut self.false_positives,
            (false, false) => &mut self.true_negatives,
            (false, true) => &mut self.false_negatives,
        } += 1;
        // Rounds towards zero; below `AUC_BINS` because `p` is below 1.
        let bin = &mut self.bins[(p * AUC_BINS as f64) as usize];
        bin.positives += u64::from(positive);
        bin.negatives += u64::from(!positive);
        Ok(())
    }

    /// Adds the rows of another worker's evaluation, which may come from another process.
    ///
    /// # Errors
    /// An evaluation that contradicts itself or overflows a count; `self` is then unchanged.
    pub fn merge(&mut self, other: &Self) -> Result<(), MetricsError> {
        let inconsistent = || MetricsError::Inconsistent { rows: other.rows };
        if !other.is_consistent() {
            return Err(inconsistent());
        }
        // No count exceeds `rows`, so if this sum fits, all do.
        self.rows = self.rows.checked_add(other.rows).ok_or_else(inconsistent)?;
        self.loss_sum += other.loss_sum;
        self.squares += other.squares;
        self.true_positives += other.true_positives;
        self.false_positives += other.false_positives;
        self.true_negatives += other.true_negatives;
        self.false_negatives += other.false_negatives;
        for (bin, theirs) in self.bins.iter_mut().zip(&other.bins) {
            bin.negatives += theirs.negatives;
            bin.positives += theirs.positives;
        }
        Ok(())
    }

    fn is_consistent(&self) -> bool {
        let total = |counts: &[u64]| {
            let mut counts = counts.iter();
            counts.try_fold(0u64, |sum, &n| sum.checked_add(n))
        };
        let in_bins = |count: fn(&ClassCounts) -> u64| {
            let mut bins = self.bins.iter();
            bins.try_fold(0u64, |sum, bin| sum.checked_add(count(bin)))
        };
        let positives = total(&[self.true_positives, self.false_negatives]);
        let negatives = total(&[self.true_negatives, self.false_positives]);
        let rows = positives.zip(negatives).and_then(|(p, n)| total(&[p, n]));
        self.bins.len() == AUC_BINS
            && rows == Some(self.rows)
            && in_bins(|bin| bin.positives) == positives
            && in_bins(|bin| bin.negatives) == negatives
            && self.loss_sum.is_finite()
            && self.loss_sum >= 0.0
            && self.squares.is_finite()
            && self.squares >= 0.0
    }

    /// Number of evaluated rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Mean log-loss, natural logarithm, probabilities clipped by [`CLIP`]. `None` without rows.
    pub fn log_loss(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.loss_sum / self.rows as f64)
    }

    /// Number of rows with a positive label.
    pub fn positives(&self) -> u64 {
        self.true_positives + self.false_negatives
    }

    /// Root of the mean squared distance of probability and label. `None` without rows.
    pub fn rmse(&self) -> Option<f64> {
        (self.rows > 0).then(|| (self.squares / self.rows as f64).sqrt())
    }

    /// Share of rows classified correctly at 1/2. `None` without rows.
    pub fn accuracy(&self) -> Option<f64> {
        ratio(self.true_positives + self.true_negatives, self.rows)
    }

    /// Share of positives among the rows classified positive. `None` if there are none.
    pub fn precision(&self) -> Option<f64> {
        let classified = self.true_positives + self.false_positives;
        ratio(self.true_positives, classified)
    }

    /// Share of the positives that were classified positive. `None` if there are none.
    pub fn recall(&self) -> Option<f64> {
        let positives = self.true_positives + self.false_negatives;
        ratio(self.true_positives, positives)
    }

    /// AUC with a bound on its error.
    ///
    /// # Errors
    /// An evaluation with rows of one class only.
    pub fn auc(&self) -> Result<AucEstimate, MetricsError> {
        let wins = Wins::count(self.bins.iter().copied());
        let auc = wins.auc()?;
        Ok(AucEstimate {
            auc,
            error: wins.tied_pairs as f64 / (2 * wins.pairs()) as f64,
        })
    }
}

fn ratio(part: u64, total: u64) -> Option<f64> {
    (total > 0).then(|| part as f64 / total as f64)
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;

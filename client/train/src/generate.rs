//! A synthetic sparse two-class set, for quickstarts and tests that have no data.
//!
//! Features are drawn with Zipf-like popularity (feature `r` proportional to `1 / (r + 3)`). A hidden
//! linear model with smooth noise sets the labels, and a share of them is flipped. Row `i` depends on
//! the specification and on `i` alone. Training and test sets are therefore two ranges of rows, and any
//! part can be made anywhere. Only additions, multiplications, divisions and integers are used: the
//! bytes are the same on every machine.

use std::io::{self, Write};
use std::ops::Range;

use tidewater_protocol::limits;

use crate::data::rng::SplitMix64;

/// Parameters of a synthetic set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SyntheticSpec {
    /// Number of features, of which rare ones may never occur.
    pub features: u32,
    /// Draws per row; a feature drawn twice counts once.
    pub draws_per_row: u32,
    /// Standard deviation of the noise added to the hidden model's margin; it limits the quality of the
    /// best model.
    pub noise: f64,
    /// Share of labels flipped afterwards, 0 to 1.
    pub flipped: f64,
    /// Seed of everything random in the set.
    pub seed: u64,
}

impl Default for SyntheticSpec {
    /// A set on which logistic regression reaches an AUC of 0.85 to 0.9.
    fn default() -> Self {
        Self {
            features: 10_000,
            draws_per_row: 20,
            noise: 1.0,
            flipped: 0.03,
            seed: 1,
        }
    }
}

/// Violation of a specification's limits.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A count is out of range.
    #[error("{name} is {value}; it must be 1 to {max}")]
    Count {
        /// Field of the specification.
        name: &'static str,
        /// Given value of the field.
        value: u32,
        /// The largest allowed value.
        max: u32,
    },
    /// A real number is out of range.
    #[error("{name} is {value}; it must be {min} to {max}")]
    Real {
        /// Field of the specification.
        name: &'static str,
        /// Given value of the field.
        value: f64,
        /// The smallest allowed value.
        min: f64,
        /// The largest allowed value.
        max: f64,
    },
}

/// Most features of a set: their popularity table is in memory, 16 bytes each.
const FEATURES_MAX: u32 = 10_000_000;

/// Stream of the seed for the hidden model. Rows use their own number, which is never this one.
const TRUTH_STREAM: u64 = u64::MAX;

/// A generator: the popularity table and the hidden model of a specification.
#[derive(Debug)]
pub struct Synthetic {
    spec: SyntheticSpec,
    /// `cumulative[r]` is the popularity of features `0..=r`.
    cumulative: Vec<f64>,
    truth: Vec<f64>,
    /// Margin at which the classes of the hidden model have about equal size.
    centre: f64,
}

impl Synthetic {
    /// Prepares a set, `O(features)`.
    ///
    /// # Errors
    /// A field of the specification that is out of its range.
    pub fn new(spec: SyntheticSpec) -> Result<Self, SpecError> {
        let rows_max = limits::DATA_ROW_FEATURES_MAX as u32;
        check_count("features", spec.features, FEATURES_MAX)?;
        check_count("draws_per_row", spec.draws_per_row, rows_max)?;
        check_real("noise", spec.noise, 1e6)?;
        check_real("flipped", spec.flipped, 1.0)?;
        let mut total = 0.0;
        let popularity = (0..spec.features).map(|rank| {
            total += 1.0 / (f64::from(rank) + 3.0);
            total
        });
        let cumulative = popularity.collect();
        let mut rng = SplitMix64::keyed(spec.seed, TRUTH_STREAM);
        let truth = (0..spec.features).map(|_| 4.0 * rng.unit() - 2.0);
        let mut set = Self {
            spec,
            cumulative,
            truth: truth.collect(),
            centre: 0.0,
        };
        // Popular features would tilt the classes; subtracting the mean margin of a sample prevents
        // that. The sample's rows have the highest numbers, which no set of rows reaches.
        const SAMPLE: u64 = 1_000;
        let mut features = Vec::new();
        let margins = (1..=SAMPLE).map(|i| set.draw(TRUTH_STREAM - i, &mut features).1);
        set.centre = margins.sum::<f64>() / SAMPLE as f64;
        Ok(set)
    }

    /// Weights of the hidden model, by 0-based feature.
    pub fn truth(&self) -> &[f64] {
        &self.truth
    }

    /// Writes rows as LIBSVM text, indices from 1, labels -1 and +1.
    ///
    /// # Errors
    /// Any error of `out`.
    pub fn write_libsvm(&self, rows: Range<u64>, out: &mut impl Write) -> io::Result<()> {
        let mut features = Vec::new();
        for row in rows {
            let (mut rng, margin) = self.draw(row, &mut features);
            let noisy = margin - self.centre + self.spec.noise * bell_curve(&mut rng);
            let flip = rng.unit() < self.spec.flipped;
            let positive = (noisy > 0.0) != flip;
            out.write_all(if positive { b"+1" } else { b"-1" })?;
            for &feature in &features {
                match quarters(feature, row) {
                    4 => write!(out, " {}:1", feature + 1)?,
                    n => write!(out, " {}:{}", feature + 1, f64::from(n) / 4.0)?,
                }
            }
            out.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Draws a row's features; returns its generator, for the noise, and its margin in the hidden
    /// model.
    fn draw(&self, row: u64, features: &mut Vec<u32>) -> (SplitMix64, f64) {
        let mut rng = SplitMix64::keyed(self.spec.seed, row);
        // The last sum of a non-empty table; `new` refuses zero features.
        let total = self.cumulative.last().copied().unwrap_or(0.0);
        features.clear();
        for _ in 0..self.spec.draws_per_row {
            let target = rng.unit() * total;
            features.push(self.cumulative.partition_point(|&sum| sum <= target) as u32);
        }
        features.sort_unstable();
        features.dedup();
        let terms = features
            .iter()
            .map(|&feature| self.truth[feature as usize] * f64::from(quarters(feature, row)) / 4.0);
        let margin = terms.sum();
        (rng, margin)
    }
}

/// A feature's value in quarters: every fourth feature has values 0.25 to 1.75, the others are 1.
fn quarters(feature: u32, row: u64) -> u32 {
    if feature % 4 == 3 {
        (row % 7) as u32 + 1
    } else {
        4
    }
}

/// A nearly normal number, mean 0, variance 1: the sum of twelve uniform numbers less 6. Exact on every
/// machine, as logarithm and cosine are not.
fn bell_curve(rng: &mut SplitMix64) -> f64 {
    (0..12).fold(-6.0, |sum, _| sum + rng.unit())
}

fn check_count(name: &'static str, value: u32, max: u32) -> Result<(), SpecError> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    Err(SpecError::Count { name, value, max })
}

fn check_real(name: &'static str, value: f64, max: f64) -> Result<(), SpecError> {
    let min = 0.0;
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(SpecError::Real {
        name,
        value,
        min,
        max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(spec: SyntheticSpec, rows: Range<u64>) -> Vec<u8> {
        let mut text = Vec::new();
        let set = Synthetic::new(spec).unwrap();
        set.write_libsvm(rows, &mut text).unwrap();
        text
    }

    /// FNV-1a hash, 64 bits.
    fn digest(text: &[u8]) -> u64 {
        text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    #[test]
    fn the_bytes_are_fixed() {
        let spec = SyntheticSpec::default();
        assert_eq!(digest(&text(spec, 0..500)), GOLDEN, "README figures follow");
        assert_ne!(
            text(spec, 0..50),
            text(SyntheticSpec { seed: 2, ..spec }, 0..50)
        );
    }
    const GOLDEN: u64 = 13_804_595_918_598_358_695;

    #[test]
    fn rows_do_not_depend_on_the_range() {
        let spec = SyntheticSpec::default();
        let parts = [text(spec, 0..7), text(spec, 7..20)].concat();
        assert_eq!(parts, text(spec, 0..20));
    }

    #[test]
    fn specifications_are_checked() {
        let good = SyntheticSpec::default();
        let zero = SyntheticSpec {
            features: 0,
            ..good
        };
        let error = Synthetic::new(zero).unwrap_err().to_string();
        assert!(error.contains("features is 0"), "{error}");
        let nan = SyntheticSpec {
            noise: f64::NAN,
            ..good
        };
        assert!(matches!(
            Synthetic::new(nan),
            Err(SpecError::Real { name: "noise", .. })
        ));
        let draws = SyntheticSpec {
            draws_per_row: 100_000,
            ..good
        };
        assert!(Synthetic::new(draws).is_err());
    }

    #[test]
    fn one_feature_is_enough() {
        let spec = SyntheticSpec {
            features: 1,
            ..SyntheticSpec::default()
        };
        let text = String::from_utf8(text(spec, 0..3)).unwrap();
        assert!(text.lines().all(|line| line.ends_with(" 1:1")), "{text}");
    }
}

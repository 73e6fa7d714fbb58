//! Learning rates as functions of the iteration.

use tidewater_protocol::math::power;

/// A schedule that gives no valid rates: the text names the first number that is out of its range, and the range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScheduleError(String);

/// Learning-rate schedule: the rate of each iteration, counted from 0.
///
/// Rates are computed with `+ - * /` and square roots only, so every host computes the same bits. A run
/// that continues from a saved model passes the iteration at which it continues: the clocks that
/// `Client::load` returns count on.
///
/// # Example
/// ```
/// use tidewater_bookkeeping::schedule::Schedule;
///
/// let schedule = Schedule::Cosine { rate: 1.0, last: 0.01, warm_up: 10, iterations: 110 };
/// assert_eq!(schedule.at(0), 0.1);
/// assert_eq!(schedule.at(9), 1.0);
/// assert_eq!(schedule.at(110), 0.01);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Schedule {
    /// The same rate in every iteration.
    Constant {
        /// The rate, above 0.
        rate: f64,
    },
    /// `rate factor^k` in the k-th run of `every` iterations.
    Step {
        /// First rate, above 0.
        rate: f64,
        /// Factor between runs, above 0.
        factor: f64,
        /// Iterations of a run, at least 1.
        every: u64,
    },
    /// Grows linearly over `warm_up` iterations to `rate`, then falls as `rate sqrt(warm_up / t)`.
    InverseSqrt {
        /// Largest rate, above 0.
        rate: f64,
        /// Iterations of the warm-up, at least 1.
        warm_up: u64,
    },
    /// Grows linearly over `warm_up` iterations to `rate`, then falls to `last` at `iterations` along
    /// half a cosine, and stays there.
    Cosine {
        /// Largest rate, above 0.
        rate: f64,
        /// Last rate, above 0 and at most `rate`.
        last: f64,
        /// Iterations of the warm-up; 0 for none.
        warm_up: u64,
        /// Iteration from which on the rate is `last`, above `warm_up`.
        iterations: u64,
    },
}

impl Schedule {
    /// Learning rate of the given iteration, counted from 0.
    #[allow(clippy::cast_precision_loss)] // iterations beyond 2^53 have the rate of their neighbours
    pub fn at(&self, iteration: u64) -> f64 {
        match *self {
            Self::Constant { rate } => rate,
            Self::Step {
                rate,
                factor,
                every,
            } => rate * power(factor, iteration / every.max(1)),
            Self::InverseSqrt { rate, warm_up } => {
                let (warm_up, t) = (warm_up.max(1), iteration.saturating_add(1));
                if t <= warm_up {
                    rate * (t as f64 / warm_up as f64)
                } else {
                    rate * (warm_up as f64 / t as f64).sqrt()
                }
            }
            Self::Cosine {
                rate,
                last,
                warm_up,
                iterations,
            } => {
                if iteration < warm_up {
                    return rate * ((iteration + 1) as f64 / warm_up as f64);
                }
                if iteration >= iterations {
                    return last;
                }
                let done = (iteration - warm_up) as f64 / (iterations - warm_up) as f64;
                // (1 + cos(pi x)) / 2 = 1 - sin(pi x / 2)^2.
                let sin = sin_of_quarter(done);
                last + (rate - last) * (1.0 - sin * sin)
            }
        }
    }

    /// Checks that the rates and factors of the schedule are finite and above 0, and that its counts are in their
    /// ranges. A rate far into `Step` may still round to 0 or grow beyond the type; then
    /// `Client::schedule` refuses it.
    ///
    /// # Errors
    /// [`ScheduleError`] names the first number that is out of its range, and the range.
    pub fn validate(&self) -> Result<(), ScheduleError> {
        let positive = |name, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(ScheduleError(format!(
                "{name} is {value:e}; it must be finite and above 0"
            ))),
        };
        let at_least_one = |name, value: u64| match value {
            0 => Err(ScheduleError(format!("{name} is 0; it must be at least 1"))),
            _ => Ok(()),
        };
        match *self {
            Self::Constant { rate } => positive("rate", rate),
            Self::Step {
                rate,
                factor,
                every,
            } => {
                positive("rate", rate)?;
                positive("factor", factor)?;
                at_least_one("every", every)
            }
            Self::InverseSqrt { rate, warm_up } => {
                positive("rate", rate)?;
                at_least_one("warm_up", warm_up)
            }
            Self::Cosine {
                rate,
                last,
                warm_up,
                iterations,
            } => {
                positive("rate", rate)?;
                positive("last", last)?;
                if last > rate {
                    return Err(ScheduleError(format!(
                        "last is {last:e}; it must be at most rate, {rate:e}"
                    )));
                }
                if iterations <= warm_up {
                    return Err(ScheduleError(format!(
                        "iterations is {iterations}; it must be above warm_up, {warm_up}"
                    )));
                }
                Ok(())
            }
        }
    }
}

/// Taylor coefficients of the sine after its first term: `-1/3!, 1/5!, ... 1/21!`.
const SIN: [f64; 10] = [
    -1.0 / 6.0,
    1.0 / 120.0,
    -1.0 / 5_040.0,
    1.0 / 362_880.0,
    -1.0 / 39_916_800.0,
    1.0 / 6_227_020_800.0,
    -1.0 / 1_307_674_368_000.0,
    1.0 / 355_687_428_096_000.0,
    -1.0 / 121_645_100_408_832_000.0,
    1.0 / 51_090_942_171_709_440_000.0,
];

/// Sine of `part` quarter turns, `0 <= part <= 1`, with an error below 1e-15. It has the same bits on every host;
/// the platform's sine differs between C libraries.
fn sin_of_quarter(part: f64) -> f64 {
    let angle = part * std::f64::consts::FRAC_PI_2;
    let square = angle * angle;
    let tail = SIN.iter().rev().fold(0.0, |sum, c| sum * square + c);
    angle + angle * (square * tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSINE: Schedule = Schedule::Cosine {
        rate: 0.1,
        last: 0.01,
        warm_up: 4,
        iterations: 104,
    };

    #[test]
    fn rates_follow_their_formulas() {
        assert_eq!(Schedule::Constant { rate: 0.3 }.at(u64::MAX), 0.3);
        let step = Schedule::Step {
            rate: 1.0,
            factor: 0.5,
            every: 10,
        };
        let at = [0, 9, 10, 29, 30].map(|t| step.at(t));
        assert_eq!(at, [1.0, 1.0, 0.5, 0.25, 0.125]);
        assert_eq!(
            step.at(u64::MAX),
            0.0,
            "an underflow, which a table refuses"
        );
        let root = Schedule::InverseSqrt {
            rate: 1.0,
            warm_up: 4,
        };
        let at = [0, 3, 15, 63].map(|t| root.at(t));
        assert_eq!(at, [0.25, 1.0, 0.5, 0.25]);
        let at = [0, 1, 3, 4, 104, 1000].map(|t| COSINE.at(t));
        assert_eq!(at, [0.025, 0.05, 0.1, 0.1, 0.01, 0.01]);
        for t in 4..104 {
            let part = f64::from(t - 4) / 100.0;
            let want = 0.01 + 0.045 * (1.0 + (std::f64::consts::PI * part).cos());
            let got = COSINE.at(t as u64);
            assert!((got - want).abs() < 1e-15, "{t}: {got:e} {want:e}");
            assert!(got <= COSINE.at(t as u64 - 1), "{t}");
        }
    }

    #[test]
    fn schedules_out_of_range_name_the_range() {
        for (schedule, said) in [
            (Schedule::Constant { rate: 0.0 }, "above 0"),
            (
                Schedule::Step {
                    rate: 1.0,
                    factor: 0.5,
                    every: 0,
                },
                "every is 0",
            ),
            (
                Schedule::InverseSqrt {
                    rate: f64::NAN,
                    warm_up: 1,
                },
                "rate is NaN",
            ),
            (
                Schedule::Cosine {
                    rate: 0.1,
                    last: 0.2,
                    warm_up: 0,
                    iterations: 5,
                },
                "at most rate",
            ),
            (
                Schedule::Cosine {
                    rate: 0.1,
                    last: 0.1,
                    warm_up: 5,
                    iterations: 5,
                },
                "above warm_up",
            ),
        ] {
            let error = schedule.validate().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        COSINE.validate().unwrap();
    }
}

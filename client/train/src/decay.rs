//! Learning rates that fall over the epochs of a training.

use std::str::FromStr;

use tidewater::Schedule;

/// Change of the learning rate over a training. Times are in epochs, so that the number of workers,
/// which divide an epoch's steps, does not change it.
///
/// As text: `constant`, `step:FACTOR:EPOCHS`, `inverse-sqrt:EPOCHS` or `cosine:LAST:EPOCHS`.
///
/// ```
/// use tidewater_train::Decay;
///
/// let decay: Decay = "step:0.5:2".parse()?;
/// assert_eq!(decay, Decay::Step { factor: 0.5, epochs: 2 });
/// let rates = decay.schedule(0.1, 100); // 100 steps an epoch
/// assert_eq!([rates.at(0), rates.at(199), rates.at(200)], [0.1, 0.1, 0.05]);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Decay {
    /// The optimizer's rate in every step.
    #[default]
    Constant,
    /// The rate is multiplied by `factor` after every `epochs` epochs.
    Step {
        /// Factor of each change, above 0.
        factor: f64,
        /// Number of epochs, at least 1.
        epochs: u64,
    },
    /// Grows linearly over the first `epochs` epochs to the optimizer's rate, then falls with the
    /// square root of the step.
    InverseSqrt {
        /// Number of epochs, at least 1.
        epochs: u64,
    },
    /// Falls along half a cosine to `last` times the optimizer's rate, and stays there after `epochs`
    /// epochs.
    Cosine {
        /// Share of the rate that is left, above 0 and at most 1.
        last: f64,
        /// Number of epochs, at least 1.
        epochs: u64,
    },
}

impl Decay {
    /// Rates of the steps of a training that begins with `rate` and has `steps` steps an epoch.
    pub fn schedule(self, rate: f64, steps: u64) -> Schedule {
        let in_steps = |epochs: u64| epochs.saturating_mul(steps).max(1);
        match self {
            Self::Constant => Schedule::Constant { rate },
            Self::Step { factor, epochs } => Schedule::Step {
                rate,
                factor,
                every: in_steps(epochs),
            },
            Self::InverseSqrt { epochs } => Schedule::InverseSqrt {
                rate,
                warm_up: in_steps(epochs),
            },
            Self::Cosine { last, epochs } => Schedule::Cosine {
                rate,
                last: rate * last,
                warm_up: 0,
                iterations: in_steps(epochs),
            },
        }
    }
}

impl FromStr for Decay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "not a schedule; use constant, step:FACTOR:EPOCHS, inverse-sqrt:EPOCHS or \
             cosine:LAST:EPOCHS, with FACTOR above 0, LAST above 0 and at most 1, EPOCHS at least 1"
                .to_owned()
        };
        let share = |text: &str, most: f64| -> Option<f64> {
            let number: f64 = text.parse().ok()?;
            (number > 0.0 && number <= most).then_some(number)
        };
        let epochs = |text: &str| text.parse().ok().filter(|&epochs: &u64| epochs > 0);
        let parts: Vec<&str> = text.split(':').collect();
        let parsed = match parts[..] {
            ["constant"] => Some(Self::Constant),
            ["step", factor, every] => share(factor, f64::MAX)
                .zip(epochs(every))
                .map(|(factor, epochs)| Self::Step { factor, epochs }),
            ["inverse-sqrt", first] => epochs(first).map(|epochs| Self::InverseSqrt { epochs }),
            ["cosine", last, all] => share(last, 1.0)
                .zip(epochs(all))
                .map(|(last, epochs)| Self::Cosine { last, epochs }),
            _ => None,
        };
        parsed.ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_give_their_rates() {
        let at = |text: &str, step| text.parse::<Decay>().unwrap().schedule(0.4, 10).at(step);
        assert_eq!(at("constant", 1_000), 0.4);
        assert_eq!([at("step:0.5:3", 29), at("step:0.5:3", 30)], [0.4, 0.2]);
        assert_eq!(
            [at("inverse-sqrt:1", 9), at("inverse-sqrt:1", 39)],
            [0.4, 0.2]
        );
        assert_eq!(
            [at("cosine:0.25:5", 0), at("cosine:0.25:5", 50)],
            [0.4, 0.1]
        );
        for wrong in [
            "",
            "step",
            "step:0:1",
            "step:nan:1",
            "step:inf:1",
            "step:0.5:0",
            "step:0.5:1:1",
            "inverse-sqrt:-1",
            "cosine:1.5:3",
            "cosine:0:3",
            "linear:1",
        ] {
            let error = wrong.parse::<Decay>().unwrap_err();
            assert!(error.contains("use constant"), "{wrong}: {error}");
        }
    }
}

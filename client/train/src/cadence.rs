//! How often a run evaluates its model while it trains.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// Distance between two evaluations of a run. As text: `2epochs`, `500steps` or `30s`.
///
/// ```
/// use tidewater_train::Cadence;
///
/// let cadence: Cadence = "500steps".parse()?;
/// assert!(matches!(cadence, Cadence::Steps(steps) if steps.get() == 500));
/// assert_eq!(cadence.to_string(), "500steps");
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cadence {
    /// After every n epochs.
    Epochs(NonZeroU64),
    /// After every n steps of each worker, counted over all epochs of the model. A step is a tick.
    Steps(NonZeroU64),
    /// At the first common step after every n seconds. Needs BSP or SSP: without a bound on staleness workers
    /// have no common step.
    Seconds(NonZeroU64),
}

impl fmt::Display for Cadence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Epochs(n) => write!(f, "{n}epochs"),
            Self::Steps(n) => write!(f, "{n}steps"),
            Self::Seconds(n) => write!(f, "{n}s"),
        }
    }
}

impl FromStr for Cadence {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "not a distance of evaluations; write a number above 0 and its unit, as in 1epoch, 2epochs, 500steps \
             or 30s"
                .to_owned()
        };
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let number: NonZeroU64 = number.parse().map_err(|_| wrong())?;
        match unit {
            "epoch" | "epochs" => Ok(Self::Epochs(number)),
            "step" | "steps" => Ok(Self::Steps(number)),
            "s" => Ok(Self::Seconds(number)),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_number_and_unit() {
        for text in ["1epochs", "2epochs", "500steps", "30s"] {
            assert_eq!(text.parse::<Cadence>().unwrap().to_string(), text);
        }
        assert_eq!("1epoch".parse(), "1epochs".parse::<Cadence>());
        for wrong in [
            "",
            "5",
            "0s",
            "-1s",
            "1m",
            "s",
            "1.5s",
            "99999999999999999999s",
        ] {
            let error = wrong.parse::<Cadence>().unwrap_err();
            assert!(error.contains("500steps"), "{wrong}: {error}");
        }
    }
}

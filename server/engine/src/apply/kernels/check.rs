//! Ranges of the hyper-parameters of a table.

use tidewater_protocol::table::{DType, Optimizer};

use super::element::Element;
use super::error::KernelError;
use super::rules::Hyper;

/// The set that a hyper-parameter must lie in, before and after it is rounded to the table's type:
/// a decay of `1 - 1e-9` is 1 in f32, and would never decay.
#[derive(Clone, Copy)]
enum Range {
    /// Rates, and terms added to a root that may be 0: `0 / 0` otherwise.
    Positive,
    /// Weights, such as `l1` and `l2`.
    NotNegative,
    /// Decays: at 1 a state never forgets, and Adam divides by zero.
    BelowOne,
}

impl Range {
    fn holds(self, value: f64) -> bool {
        value.is_finite()
            && match self {
                Self::Positive => value > 0.0,
                Self::NotNegative => value >= 0.0,
                Self::BelowOne => (0.0..1.0).contains(&value),
            }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Positive => "finite and above 0",
            Self::NotNegative => "finite and not below 0",
            Self::BelowOne => "in [0, 1)",
        }
    }
}

/// The hyper-parameters of `optimizer` as the kernels take them.
///
/// # Errors
///
/// [`KernelError::IntegerGradient`], and [`KernelError::HyperParameter`] for the first one that is
/// out of range.
pub(super) fn hyper(optimizer: &Optimizer, dtype: DType) -> Result<Hyper, KernelError> {
    use Range::{BelowOne, NotNegative, Positive};
    const UNUSED: (&str, f64, Range) = ("", 0.0, NotNegative);
    let (rule, fields) = match *optimizer {
        Optimizer::None => return Ok([0.0; 4]),
        Optimizer::Sgd { lr } => ("Sgd", [("lr", lr, Positive), UNUSED, UNUSED, UNUSED]),
        Optimizer::Momentum { lr, mu, .. } => (
            "Momentum",
            [("lr", lr, Positive), ("mu", mu, BelowOne), UNUSED, UNUSED],
        ),
        Optimizer::AdaGrad { lr, eps } => (
            "AdaGrad",
            [("lr", lr, Positive), ("eps", eps, Positive), UNUSED, UNUSED],
        ),
        Optimizer::Adam {
            lr,
            beta1,
            beta2,
            eps,
        } => (
            "Adam",
            [
                ("lr", lr, Positive),
                ("beta1", beta1, BelowOne),
                ("beta2", beta2, BelowOne),
                ("eps", eps, Positive),
            ],
        ),
        Optimizer::Ftrl {
            alpha,
            beta,
            l1,
            l2,
        } => (
            "Ftrl",
            [
                ("alpha", alpha, Positive),
                // The slope of w in z before any learning: beta / alpha + l2.
                ("beta", beta, if l2 > 0.0 { NotNegative } else { Positive }),
                ("l1", l1, NotNegative),
                ("l2", l2, NotNegative),
            ],
        ),
    };
    if !dtype.is_float() {
        return Err(KernelError::IntegerGradient { rule, dtype });
    }
    for (name, value, range) in fields {
        if !range.holds(value) || !range.holds(rounded(value, dtype)) {
            return Err(KernelError::HyperParameter {
                rule,
                name,
                value,
                dtype,
                range: range.text(),
            });
        }
    }
    Ok(fields.map(|(_, value, _)| value))
}

fn rounded(value: f64, dtype: DType) -> f64 {
    if dtype == DType::F32 {
        f32::nearest(value).into()
    } else {
        value
    }
}

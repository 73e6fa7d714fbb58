//! The numbers of a table as its kernel takes them.

use tidewater_protocol::table::{DType, GradientOptions, Optimizer};

use super::error::KernelError;
use super::prepare::Options;
use super::rules::{FTRL_FACTOR, Hyper};

/// Checks and collects the numbers of a table's kernel: hyper-parameters of `optimizer` and gradient
/// options. The rate factor of FTRL is 1.
///
/// # Errors
///
/// [`KernelError::IntegerGradient`] for any optimizer on a table of integers.
/// [`KernelError::HyperParameter`] for the first number that is out of range.
pub(super) fn hyper(
    optimizer: &Optimizer,
    options: &GradientOptions,
    dtype: DType,
) -> Result<Hyper, KernelError> {
    let rule = optimizer.name();
    if *optimizer != Optimizer::None && !dtype.is_float() {
        return Err(KernelError::IntegerGradient { rule, dtype });
    }
    let bad = optimizer.out_of_range(dtype);
    if let Some(bad) = bad.or_else(|| options.out_of_range(dtype)) {
        return Err(KernelError::HyperParameter {
            rule,
            name: bad.name,
            value: bad.value,
            dtype,
            range: bad.range.text(),
        });
    }
    let mut rule = optimizer.parameters().map(|parameter| parameter.value);
    if matches!(optimizer, Optimizer::Ftrl { .. }) {
        rule[FTRL_FACTOR] = 1.0;
    }
    Ok(Hyper {
        rule,
        options: Options::new(options),
    })
}

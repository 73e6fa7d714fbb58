//! The few functions that IEEE 754 does not fix to the last bit, written with `+ - * /` only.
//!
//! The platform's `ln`, `cos` and `powi` differ between C libraries and compiler versions in the
//! last place. Two hosts that create the same row must create the same bits.

use std::f64::consts::{FRAC_PI_2, LN_2, SQRT_2};

/// Computes `base^exponent` by squaring, from the exponent's highest bit down: `b^(2k) = (b^k)^2`,
/// `b^(2k+1) = (b^k)^2 b`. At most 128 multiplications.
#[inline]
pub fn power(base: f64, exponent: u64) -> f64 {
    let mut power = 1.0;
    for bit in (0..u64::BITS - exponent.leading_zeros()).rev() {
        power *= power;
        if exponent >> bit & 1 == 1 {
            power *= base;
        }
    }
    power
}

/// Coefficients `1/3, 1/5, ... 1/21` of the series `atanh(s) = s (1 + s^2/3 + s^4/5 + ...)`.
const ATANH: [f64; 10] = [
    1.0 / 3.0,
    1.0 / 5.0,
    1.0 / 7.0,
    1.0 / 9.0,
    1.0 / 11.0,
    1.0 / 13.0,
    1.0 / 15.0,
    1.0 / 17.0,
    1.0 / 19.0,
    1.0 / 21.0,
];

/// Computes the natural logarithm of a normal, positive `x`, within 2 units in the last place.
#[inline]
pub fn ln(x: f64) -> f64 {
    const FRACTION: u64 = (1 << 52) - 1;
    const ONE: u64 = 1023 << 52;
    // x = fraction * 2^exponent with the fraction around 1, so that nothing cancels near x = 1.
    let bits = x.to_bits();
    let mut exponent = f64::from((bits >> 52 & 0x7ff) as u16) - 1023.0;
    let mut fraction = f64::from_bits(bits & FRACTION | ONE);
    if fraction > SQRT_2 {
        fraction *= 0.5;
        exponent += 1.0;
    }
    let s = (fraction - 1.0) / (fraction + 1.0);
    let tail = horner(s * s, &ATANH) * (s * s);
    exponent * LN_2 + 2.0 * (s + s * tail)
}

/// Coefficients `-1/3!, 1/5!, ... 1/17!` of the series of the sine.
const SIN: [f64; 8] = [
    -1.0 / 6.0,
    1.0 / 120.0,
    -1.0 / 5_040.0,
    1.0 / 362_880.0,
    -1.0 / 39_916_800.0,
    1.0 / 6_227_020_800.0,
    -1.0 / 1_307_674_368_000.0,
    1.0 / 355_687_428_096_000.0,
];

/// Coefficients `-1/2!, 1/4!, ... 1/16!` of the series of the cosine.
const COS: [f64; 8] = [
    -1.0 / 2.0,
    1.0 / 24.0,
    -1.0 / 720.0,
    1.0 / 40_320.0,
    -1.0 / 3_628_800.0,
    1.0 / 479_001_600.0,
    -1.0 / 87_178_291_200.0,
    1.0 / 20_922_789_888_000.0,
];

/// Returns `(cos, sin)` of the angle `turn`, in whole turns, `0 <= turn < 1`. Absolute error below 3e-16.
#[inline]
pub fn cos_sin_of_turn(turn: f64) -> (f64, f64) {
    // The nearest quarter turn, and the rest in [-1/2, 1/2] quarters: both exact.
    let quarter = (4.0 * turn + 0.5).floor();
    let angle = (4.0 * turn - quarter) * FRAC_PI_2;
    let square = angle * angle;
    let sin = angle + angle * (square * horner(square, &SIN));
    let cos = 1.0 + square * horner(square, &COS);
    if quarter == 1.0 {
        (-sin, cos)
    } else if quarter == 2.0 {
        (-cos, -sin)
    } else if quarter == 3.0 {
        (sin, -cos)
    } else {
        (cos, sin)
    }
}

/// Evaluates the polynomial `c[0] + x (c[1] + x (c[2] + ...))` by Horner's rule.
fn horner(x: f64, coefficients: &[f64]) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64, relative: f64) {
        assert!(
            (got - want).abs() <= relative * want.abs().max(1e-300),
            "{got:e} {want:e}"
        );
    }

    #[test]
    fn power_agrees_with_the_platform() {
        assert_eq!(power(0.9, 0), 1.0);
        assert_eq!(power(0.0, 0), 1.0);
        assert_eq!(power(0.0, 5), 0.0);
        assert_eq!(power(0.5, 10), 1.0 / 1024.0);
        assert_eq!(power(0.999, u64::MAX), 0.0);
        for exponent in 1..5_000 {
            for base in [0.9, 0.99, 0.999, 0.999_999] {
                close(power(base, exponent), base.powi(exponent as i32), 1e-11);
            }
        }
    }

    #[test]
    fn ln_agrees_with_the_platform() {
        assert_eq!(ln(1.0), 0.0);
        let smallest = 2f64.powi(-53);
        close(ln(smallest), smallest.ln(), 4e-16);
        for step in 1..200_000 {
            let x = f64::from(step) / 200_000.0;
            close(ln(x), x.ln(), 5e-16);
            close(ln(x * smallest * 1.5), (x * smallest * 1.5).ln(), 5e-16);
        }
        close(ln(1.0 - f64::EPSILON), (1.0 - f64::EPSILON).ln(), 5e-16);
    }

    #[test]
    fn cos_and_sin_agree_with_the_platform() {
        assert_eq!(cos_sin_of_turn(0.0), (1.0, 0.0));
        assert_eq!(cos_sin_of_turn(0.5), (-1.0, 0.0));
        for step in 0..200_000 {
            let turn = f64::from(step) / 200_000.0;
            let (sin, cos) = (turn * std::f64::consts::TAU).sin_cos();
            let got = cos_sin_of_turn(turn);
            assert!(
                (got.0 - cos).abs() < 8e-16 && (got.1 - sin).abs() < 8e-16,
                "{turn}"
            );
        }
    }
}

//! Initial values of rows, from a counter.
//!
//! Element `(seed, key, column)` is a function of these three, the distribution and the element
//! type: no state, no order, no server in it. Two neighbouring columns share one Philox block with
//! key `seed` and counter `(key, column / 2)`. **The stream is a format**: untouched rows of saved
//! models are computed again from it, so it may never change; tests hold golden values of it.
//!
//! Values are drawn in f64 and rounded once to the element type. Only `+ - * /`, `sqrt` and `floor`
//! are used, which IEEE 754 fixes to the last bit; logarithm, sine and cosine are our own.

use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::{DType, Init};

use super::element::Element;
use super::error::KernelError;
use super::philox::{philox4x32, words};
use tidewater_protocol::math::{cos_sin_of_turn, ln};

/// Largest magnitude that the standard normal distribution can return: `sqrt(-2 ln(2^-53))`, rounded up.
const NORMAL_REACH: f64 = 8.6;

/// Checks that an initial distribution has values of type `dtype`. Called once, when a table is created.
///
/// Parameters and every possible value must be finite. `[low, high)` must hold a value of the type. `std`
/// must not be below 0. On integers, a constant and the bounds of a uniform distribution must be integers
/// that the type holds. A normal distribution may exceed the range of `I32`, where its values saturate.
///
/// # Errors
///
/// [`KernelError::Init`] if one of these does not hold.
pub fn check(init: &Init, dtype: DType) -> Result<(), KernelError> {
    match dtype {
        DType::F32 => check_for::<f32>(init, dtype, f64::from),
        DType::F64 => check_for::<f64>(init, dtype, |x| x),
        DType::I32 => check_for::<i32>(init, dtype, f64::from),
        // No f64 rounds to the largest i64: it stands for all that saturated.
        #[allow(clippy::cast_precision_loss)] // compared with what it was made from
        DType::I64 => check_for::<i64>(init, dtype, |x| {
            if x == i64::MAX {
                f64::INFINITY
            } else {
                x as f64
            }
        }),
    }
}

fn check_for<T: Element>(
    init: &Init,
    dtype: DType,
    widen: impl Fn(T) -> f64,
) -> Result<(), KernelError> {
    let fits = |x: f64| widen(T::nearest(x)).is_finite() && x.is_finite();
    let exact = |x: f64| dtype.is_float() || widen(T::nearest(x)) == x;
    let (ok, kind, (first, second), remedy) = match *init {
        Init::Zeros => return Ok(()),
        Init::Constant(value) => (
            fits(value) && exact(value),
            "Constant",
            (value, 0.0),
            "give a finite value that the element type holds",
        ),
        Init::Uniform { low, high } => (
            fits(low)
                && fits(high)
                && (high - low).is_finite()
                && exact(low)
                && exact(high)
                && low < high
                && T::not_below(low) <= T::below(high),
            "Uniform",
            (low, high),
            "give finite bounds, low < high, that the element type holds; integers on an integer \
             table; for one value use Constant",
        ),
        Init::Normal { mean, std } => (
            std >= 0.0 && fits(mean.abs() + NORMAL_REACH * std),
            "Normal",
            (mean, std),
            "give a finite mean and a finite std >= 0, small enough for the element type",
        ),
    };
    if ok {
        Ok(())
    } else {
        Err(KernelError::Init {
            kind,
            first,
            second,
            dtype,
            remedy,
        })
    }
}

/// Writes the initial values of row `key` of a table with seed `seed` into the bytes of `row`. Cost: about
/// 15 ns for a uniform value, 25 ns for a normal one.
///
/// Never panics: parameters that [`check`] refuses give unspecified values.
pub fn fill_row(init: &Init, seed: u64, key: u64, dtype: DType, row: &mut [u8]) {
    let key = if on(Mutant::InitWithoutKey) { 0 } else { key };
    match dtype {
        DType::F32 => fill::<f32>(init, seed, key, row),
        DType::F64 => fill::<f64>(init, seed, key, row),
        DType::I32 => fill::<i32>(init, seed, key, row),
        DType::I64 => fill::<i64>(init, seed, key, row),
    }
}

fn fill<T: Element>(init: &Init, seed: u64, key: u64, row: &mut [u8]) {
    match *init {
        Init::Zeros => row.fill(0),
        Init::Constant(value) => T::split_mut(row).fill(T::nearest(value).store()),
        Init::Uniform { low, high } => {
            let (least, most) = (T::not_below(low), T::below(high));
            draw(seed, key, row, |bits| {
                bits.map(|bits| {
                    // Rounding may reach a bound from inside.
                    let value = T::floor(low + (high - low) * fraction(bits));
                    let value = if value < least { least } else { value };
                    if value > most { most } else { value }
                })
            });
        }
        Init::Normal { mean, std } => draw(seed, key, row, |[first, second]| {
            // Box and Muller: a radius from one draw, in (0, 1] so that its logarithm exists, and
            // a direction from the other.
            let radius = (-2.0 * ln(fraction(first) + UNIT)).sqrt();
            let (x, y) = cos_sin_of_turn(fraction(second));
            [x, y].map(|z| T::nearest(mean + std * (radius * z)))
        }),
    }
}

/// Distance of two neighbouring results of `fraction`, 2^-53.
const UNIT: f64 = f64::EPSILON / 2.0;

/// Converts the top 53 bits of a random word to a fraction in `[0, 1)`, exactly.
#[allow(clippy::cast_precision_loss)] // 53 bits fit
fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 * UNIT
}

/// Fills the row of `key` with pairs of elements. `pair` makes each pair from 128 random bits of the Philox
/// generator. Of the last pair of an odd number of elements only the first element is used.
fn draw<T: Element>(seed: u64, key: u64, row: &mut [u8], pair: impl Fn([u64; 2]) -> [T; 2]) {
    let [key_low, key_high] = words(key);
    for (block, columns) in (0u64..).zip(T::split_mut(row).chunks_mut(2)) {
        let [block_low, block_high] = words(block);
        let [a, b, c, d] = philox4x32([key_low, key_high, block_low, block_high], words(seed));
        let bits = [a, c].map(u64::from);
        let bits = [bits[0] | u64::from(b) << 32, bits[1] | u64::from(d) << 32];
        for (column, value) in columns.iter_mut().zip(pair(bits)) {
            *column = value.store();
        }
    }
}

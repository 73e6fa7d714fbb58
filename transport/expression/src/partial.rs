//! Partial results of reductions, which servers send and clients combine.

use tidewater_protocol::table::DType;

use crate::element::Arithmetic;
use crate::error::ProgramError;
use crate::reduction::{Reduction, Scalar};
use crate::sums::{Total, two_sum};

/// Partial result of a reduction: the value over some elements, in 16 bytes on the wire.
///
/// Sums of F32 and F64 are two `f64`, sum and rounding error, so that the order of partial results hardly
/// matters. To get the same bits each time, reduce each block of a table into a partial result of its own and
/// combine those in the order of the blocks. Sums of I32 and I64 are exact (`i128`).
///
/// ```
/// use tidewater_expression::{Evaluator, Partial, Program, Reduction, Scalar};
/// use tidewater_protocol::table::DType;
///
/// let program = Program::parse("x * y", DType::I64)?;
/// let mut evaluator = Evaluator::<i64>::new(&program, &[])?;
/// let mut sum = Partial::empty(Reduction::Sum, DType::I64);
/// evaluator.reduce(&[&[1, 2, 3], &[4, 5, 6]], 0, 3, Reduction::Sum, &mut sum);
/// assert_eq!(sum.value(), Some(Scalar::Integer(32)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Partial {
    reduction: Reduction,
    dtype: DType,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Sum of floats. `low` is finite, and 0 unless `high` is finite.
    Float { high: f64, low: f64 },
    /// Sum of integers; saturated only beyond 2^64 elements.
    Integer(i128),
    /// Minimum or maximum of `count` elements; the neutral element for none.
    Extreme { best: Scalar, count: u64 },
    /// Whether all elements are true.
    All(bool),
}

impl Partial {
    /// Bytes of an encoded partial result.
    pub const BYTES: usize = 16;

    /// Returns the partial result over no elements.
    pub fn empty(reduction: Reduction, dtype: DType) -> Self {
        let state = match reduction {
            Reduction::Sum if dtype.is_float() => State::Float {
                high: 0.0,
                low: 0.0,
            },
            Reduction::Sum => State::Integer(0),
            Reduction::Min | Reduction::Max => State::Extreme {
                best: neutral(reduction, dtype),
                count: 0,
            },
            Reduction::And => State::All(true),
        };
        Self {
            reduction,
            dtype,
            state,
        }
    }

    /// Adds the sum over `total` to a sum.
    pub(crate) fn add_total(&mut self, total: Total) {
        let state = match total {
            Total::Float { high, low } => normalized(high, low),
            Total::Integer(sum) => State::Integer(sum),
        };
        self.combine_state(state);
    }

    /// Takes the extreme of `count` more elements into account.
    pub(crate) fn add_extreme(&mut self, best: Scalar, count: u64) {
        self.combine_state(State::Extreme { best, count });
    }

    /// Takes into account whether all of some elements are true.
    pub(crate) fn add_all(&mut self, all: bool) {
        self.combine_state(State::All(all));
    }

    /// Combines with the partial result over later elements.
    ///
    /// # Panics
    /// If `later` belongs to another reduction or element type.
    pub fn combine(&mut self, later: &Self) {
        assert!(
            self.reduction == later.reduction && self.dtype == later.dtype,
            "{:?} over {:?} combined with {:?} over {:?}",
            self.reduction,
            self.dtype,
            later.reduction,
            later.dtype
        );
        self.combine_state(later.state);
    }

    fn combine_state(&mut self, later: State) {
        self.state = match (self.state, later) {
            (State::Float { high, low }, State::Float { high: h, low: l }) => {
                let (sum, lost) = two_sum(high, h);
                normalized(sum, low + (lost + l))
            }
            (State::Integer(sum), State::Integer(more)) => State::Integer(sum.saturating_add(more)),
            (earlier @ State::Extreme { .. }, State::Extreme { count: 0, .. }) => earlier,
            (State::Extreme { count: 0, .. }, later @ State::Extreme { .. }) => later,
            (State::Extreme { best, count }, State::Extreme { best: b, count: c }) => {
                State::Extreme {
                    best: better(self.reduction, best, b),
                    count: count.saturating_add(c),
                }
            }
            (State::All(all), State::All(more)) => State::All(all & more),
            (state, other) => unreachable!("{state:?} combined with {other:?}"),
        };
    }

    /// Returns the reduction that the partial result belongs to.
    pub const fn reduction(&self) -> Reduction {
        self.reduction
    }

    /// Returns the element type that the partial result belongs to.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the value over all elements so far. Sums over F32 are not rounded to F32.
    ///
    /// `None` means: the minimum or maximum of no elements, or a sum of integers that an `i64` cannot hold
    /// ([`Self::exact_sum`] has it).
    pub fn value(&self) -> Option<Scalar> {
        match self.state {
            State::Float { high, low } if high.is_finite() => Some(Scalar::Float(high + low)),
            State::Float { high, .. } => Some(Scalar::Float(high)),
            State::Integer(sum) => i64::try_from(sum).ok().map(Scalar::Integer),
            State::Extreme { count: 0, .. } => None,
            State::Extreme { best, .. } => Some(best),
            State::All(all) => Some(Scalar::Integer(all.into())),
        }
    }

    /// Returns the exact sum of integers; `None` for other reductions and element types.
    pub const fn exact_sum(&self) -> Option<i128> {
        match self.state {
            State::Integer(sum) => Some(sum),
            _ => None,
        }
    }

    /// Encodes the partial result without its reduction and element type, little-endian: two `f64`; one
    /// `i128`; an `f64` or `i64` and the count of elements; or 1 or 0.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let halves = |first: u64, second: u64| u128::from(first) | u128::from(second) << 64;
        let word = match self.state {
            State::Float { high, low } => halves(high.to_bits(), low.to_bits()),
            State::Integer(sum) => sum as u128,
            State::Extreme { best, count } => match best {
                Scalar::Float(best) => halves(best.to_bits(), count),
                Scalar::Integer(best) => halves(best as u64, count),
            },
            State::All(all) => u128::from(all),
        };
        word.to_le_bytes()
    }

    /// Decodes a partial result of this reduction and element type.
    ///
    /// # Errors
    /// The bytes are not [`Self::BYTES`], or no such partial result.
    pub fn decode(bytes: &[u8], reduction: Reduction, dtype: DType) -> Result<Self, ProgramError> {
        let refused = |reason| ProgramError::Partial {
            bytes: bytes.len(),
            reduction,
            dtype,
            reason,
        };
        let word = bytes.try_into().map(u128::from_le_bytes);
        let word = word.map_err(|_| refused("it has 16 bytes"))?;
        let (first, second) = (word as u64, (word >> 64) as u64);
        let mut partial = Self::empty(reduction, dtype);
        match &mut partial.state {
            State::Float { high, low } => {
                (*high, *low) = (f64::from_bits(first), f64::from_bits(second));
                if !low.is_finite() {
                    return Err(refused("the rounding error is finite"));
                }
                partial.state = normalized(*high, *low);
            }
            State::Integer(sum) => *sum = word as i128,
            State::Extreme { .. } if second == 0 => {}
            State::Extreme { best, count } => {
                *best = extreme(first, dtype).ok_or(refused("the value is an element"))?;
                *count = second;
            }
            State::All(all) => {
                *all = word == 1;
                if word > 1 {
                    return Err(refused("it is 0 or 1"));
                }
            }
        }
        Ok(partial)
    }
}

/// Keeps the invariants of a sum of floats.
fn normalized(high: f64, low: f64) -> State {
    State::Float {
        high: if high.is_nan() { crate::NAN_F64 } else { high },
        // The error of an infinite sum is a NaN; at the edge of the range it can overflow.
        low: if high.is_finite() && low.is_finite() {
            low
        } else {
            0.0
        },
    }
}

fn neutral(reduction: Reduction, dtype: DType) -> Scalar {
    match (reduction, dtype) {
        (Reduction::Min, DType::F32 | DType::F64) => Scalar::Float(f64::GREATEST),
        (Reduction::Min, DType::I32) => i32::GREATEST.widened(),
        (Reduction::Min, DType::I64) => i64::GREATEST.widened(),
        (_, DType::F32 | DType::F64) => Scalar::Float(f64::LEAST),
        (_, DType::I32) => i32::LEAST.widened(),
        (_, DType::I64) => i64::LEAST.widened(),
    }
}

fn better(reduction: Reduction, a: Scalar, b: Scalar) -> Scalar {
    let min = reduction == Reduction::Min;
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => {
            (if min { a.smaller(b) } else { a.larger(b) }).widened()
        }
        (Scalar::Integer(a), Scalar::Integer(b)) => {
            Scalar::Integer(if min { a.min(b) } else { a.max(b) })
        }
        (a, b) => unreachable!("{a:?} compared with {b:?}"),
    }
}

/// Reads an extreme value; `None` if the element type does not hold it.
fn extreme(bits: u64, dtype: DType) -> Option<Scalar> {
    let float = f64::from_bits(bits);
    match dtype {
        DType::F32 if !float.is_nan() && f64::from(float as f32) != float => None,
        DType::F32 | DType::F64 => Some(float.widened()),
        DType::I32 => i32::try_from(bits as i64).ok().map(Arithmetic::widened),
        DType::I64 => Some(Scalar::Integer(bits as i64)),
    }
}

//! Accumulators of sums within one call of a reduction.
//!
//! Element i of the call belongs to lane i modulo the number of lanes, and lanes are added in order at the
//! end. The number of lanes is fixed, so that the bits do not depend on the processor.

/// Lanes of sums of F32.
const WIDE_LANES: usize = 16;
/// Lanes of sums of F64; each has two words, and 16 words fit the registers of SSE2.
const COMPENSATED_LANES: usize = 8;

/// Sum of all elements of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Total {
    /// Unevaluated sum of two numbers.
    Float { high: f64, low: f64 },
    /// Exact sum of the integers.
    Integer(i128),
}

/// Accumulators of a sum of elements of type `T`.
pub trait Sums<T>: Default {
    /// Adds the elements; all calls but the last pass a multiple of the number of lanes.
    fn add(&mut self, values: &[T]);
    /// Adds `a * b` of each element, rounded in the element type; otherwise as `add`.
    fn add_products(&mut self, a: &[T], b: &[T]);
    /// Returns the sum over all lanes.
    fn total(&self) -> Total;
}

/// Adds without loss: returns the rounded sum and its error (Knuth's `TwoSum`).
#[inline]
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let added = sum - a;
    (sum, (a - (sum - added)) + (b - added))
}

/// Sums of F32: each lane is one `f64`.
#[derive(Debug, Default)]
pub struct WideSums {
    lanes: [f64; WIDE_LANES],
}

impl Sums<f32> for WideSums {
    fn add(&mut self, values: &[f32]) {
        let (blocks, rest) = values.as_chunks::<WIDE_LANES>();
        let mut lanes = self.lanes;
        for block in blocks {
            for (lane, &value) in lanes.iter_mut().zip(block) {
                *lane += f64::from(value);
            }
        }
        for (lane, &value) in lanes.iter_mut().zip(rest) {
            *lane += f64::from(value);
        }
        self.lanes = lanes;
    }

    fn add_products(&mut self, a: &[f32], b: &[f32]) {
        let (a_blocks, a_rest) = a.as_chunks::<WIDE_LANES>();
        let (b_blocks, b_rest) = b.as_chunks::<WIDE_LANES>();
        let mut lanes = self.lanes;
        for (a, b) in a_blocks.iter().zip(b_blocks) {
            for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
                *lane += f64::from(a * b);
            }
        }
        for ((lane, &a), &b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
            *lane += f64::from(a * b);
        }
        self.lanes = lanes;
    }

    fn total(&self) -> Total {
        compensated(&self.lanes, &[0.0; WIDE_LANES])
    }
}

/// Sums of F64: each lane is a sum and the sum of its rounding errors.
#[derive(Debug, Default)]
pub struct CompensatedSums {
    sums: [f64; COMPENSATED_LANES],
    errors: [f64; COMPENSATED_LANES],
}

impl CompensatedSums {
    fn add_each(&mut self, values: impl Iterator<Item = f64>) {
        for ((sum, error), value) in self.sums.iter_mut().zip(&mut self.errors).zip(values) {
            let (rounded, lost) = two_sum(*sum, value);
            *sum = rounded;
            *error += lost;
        }
    }

    fn add_blocks(&mut self, blocks: impl Iterator<Item = [f64; COMPENSATED_LANES]>) {
        // Local arrays stay in registers.
        let (mut sums, mut errors) = (self.sums, self.errors);
        for block in blocks {
            for lane in 0..COMPENSATED_LANES {
                let (rounded, lost) = two_sum(sums[lane], block[lane]);
                sums[lane] = rounded;
                errors[lane] += lost;
            }
        }
        (self.sums, self.errors) = (sums, errors);
    }
}

impl Sums<f64> for CompensatedSums {
    fn add(&mut self, values: &[f64]) {
        let (blocks, rest) = values.as_chunks();
        self.add_blocks(blocks.iter().copied());
        self.add_each(rest.iter().copied());
    }

    fn add_products(&mut self, a: &[f64], b: &[f64]) {
        let (a_blocks, a_rest) = a.as_chunks::<COMPENSATED_LANES>();
        let (b_blocks, b_rest) = b.as_chunks::<COMPENSATED_LANES>();
        let blocks = a_blocks.iter().zip(b_blocks);
        self.add_blocks(blocks.map(|(a, b)| std::array::from_fn(|lane| a[lane] * b[lane])));
        self.add_each(a_rest.iter().zip(b_rest).map(|(a, b)| a * b));
    }

    fn total(&self) -> Total {
        compensated(&self.sums, &self.errors)
    }
}

/// Adds lanes in order, the errors after the sums of their lane.
fn compensated(sums: &[f64], errors: &[f64]) -> Total {
    let (mut high, mut low) = (0.0, 0.0);
    for (&sum, &error) in sums.iter().zip(errors) {
        let (rounded, lost) = two_sum(high, sum);
        high = rounded;
        low += lost + error;
    }
    Total::Float { high, low }
}

/// Sums of I32 and I64: exact.
#[derive(Debug, Default)]
pub struct IntegerSums {
    total: i128,
}

/// Sum of at most 2^31 integers.
fn sum_i32(values: impl Iterator<Item = i32>) -> i128 {
    values
        .fold(0_i64, |sum, value| sum + i64::from(value))
        .into()
}

/// Sum of at most 2^31 integers. Both halves of the offset binary form are added in 64 bits, which the
/// compiler vectorizes.
fn sum_i64(values: impl ExactSizeIterator<Item = i64>) -> i128 {
    const OFFSET: u64 = 1 << 63;
    let count = values.len() as i128;
    let (mut low, mut high) = (0_u64, 0_u64);
    for value in values {
        let offset = value as u64 ^ OFFSET;
        low += offset & u64::from(u32::MAX);
        high += offset >> 32;
    }
    i128::from(low) + (i128::from(high) << 32) - count * i128::from(OFFSET)
}

impl Sums<i32> for IntegerSums {
    fn add(&mut self, values: &[i32]) {
        self.total += sum_i32(values.iter().copied());
    }

    fn add_products(&mut self, a: &[i32], b: &[i32]) {
        self.total += sum_i32(a.iter().zip(b).map(|(&a, &b)| a.wrapping_mul(b)));
    }

    fn total(&self) -> Total {
        Total::Integer(self.total)
    }
}

impl Sums<i64> for IntegerSums {
    fn add(&mut self, values: &[i64]) {
        self.total += sum_i64(values.iter().copied());
    }

    fn add_products(&mut self, a: &[i64], b: &[i64]) {
        self.total += sum_i64(a.iter().zip(b).map(|(&a, &b)| a.wrapping_mul(b)));
    }

    fn total(&self) -> Total {
        Total::Integer(self.total)
    }
}

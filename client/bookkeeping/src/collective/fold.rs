//! Reductions of rows of values, in bytes.

use tidewater_protocol::table::DType;

use super::ReduceOp;

/// Computes `acc = op(acc, row)`, element by element. `acc` holds the result of the lower ranks. Operations on bits
/// are of integers.
pub fn fold(dtype: DType, op: ReduceOp, acc: &mut [u8], row: &[u8]) {
    macro_rules! each {
        ($t:ty, $f:expr) => {{
            const N: usize = size_of::<$t>();
            let (acc, _) = acc.as_chunks_mut::<N>();
            let (row, _) = row.as_chunks::<N>();
            for (a, r) in acc.iter_mut().zip(row) {
                *a = $f(<$t>::from_le_bytes(*a), <$t>::from_le_bytes(*r)).to_le_bytes();
            }
        }};
    }
    // NaN compares false with everything: it is kept where it is, and taken from `b`.
    macro_rules! float {
        ($t:ty) => {
            match op {
                ReduceOp::Sum => each!($t, |a: $t, b: $t| a + b),
                ReduceOp::Min => each!($t, |a: $t, b: $t| if b < a || b.is_nan() { b } else { a }),
                ReduceOp::Max => each!($t, |a: $t, b: $t| if b > a || b.is_nan() { b } else { a }),
                ReduceOp::Product => each!($t, |a: $t, b: $t| a * b),
                ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => {
                    unreachable!("{op:?} of floats has been refused")
                }
            }
        };
    }
    macro_rules! integer {
        ($t:ty) => {
            match op {
                ReduceOp::Sum => each!($t, <$t>::wrapping_add),
                ReduceOp::Min => each!($t, |a: $t, b: $t| a.min(b)),
                ReduceOp::Max => each!($t, |a: $t, b: $t| a.max(b)),
                ReduceOp::Product => each!($t, <$t>::wrapping_mul),
                ReduceOp::BitAnd => each!($t, |a: $t, b: $t| a & b),
                ReduceOp::BitOr => each!($t, |a: $t, b: $t| a | b),
                ReduceOp::BitXor => each!($t, |a: $t, b: $t| a ^ b),
            }
        };
    }
    match dtype {
        DType::F32 => float!(f32),
        DType::F64 => float!(f64),
        DType::I32 => integer!(i32),
        DType::I64 => integer!(i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(op: ReduceOp, first: f64, second: f64) -> f64 {
        let mut acc = first.to_le_bytes();
        fold(DType::F64, op, &mut acc, &second.to_le_bytes());
        f64::from_le_bytes(acc)
    }

    #[test]
    fn nan_and_signed_zero_are_defined() {
        for op in [
            ReduceOp::Min,
            ReduceOp::Max,
            ReduceOp::Sum,
            ReduceOp::Product,
        ] {
            assert!(of(op, f64::NAN, 1.0).is_nan(), "{op:?}");
            assert!(of(op, 1.0, f64::NAN).is_nan(), "{op:?}");
        }
        for op in [ReduceOp::Min, ReduceOp::Max] {
            assert!(of(op, 0.0, -0.0).is_sign_positive(), "{op:?}");
            assert!(of(op, -0.0, 0.0).is_sign_negative(), "{op:?}");
        }
        assert_eq!(of(ReduceOp::Min, 2.0, -3.0).to_bits(), (-3.0f64).to_bits());
        assert_eq!(of(ReduceOp::Max, 2.0, -3.0).to_bits(), 2.0f64.to_bits());
        assert!(of(ReduceOp::Sum, -0.0, -0.0).is_sign_negative());
    }

    #[test]
    fn integers_wrap_and_compare() {
        for (op, expected) in [
            (ReduceOp::Sum, i32::MIN),
            (ReduceOp::Min, 1),
            (ReduceOp::Max, i32::MAX),
            (ReduceOp::Product, i32::MAX),
            (ReduceOp::BitAnd, 1),
            (ReduceOp::BitOr, i32::MAX),
            (ReduceOp::BitXor, i32::MAX - 1),
        ] {
            let mut acc = i32::MAX.to_le_bytes();
            fold(DType::I32, op, &mut acc, &1i32.to_le_bytes());
            assert_eq!(i32::from_le_bytes(acc), expected, "{op:?}");
        }
    }
}

//! Operations without a rule: sums and assigns of every type, reduction.

use proptest::prelude::*;
use tidewater_kernels::{RowKernel, accumulate, divide};
use tidewater_protocol::table::{DType, Optimizer, PushOp};

use crate::{Line, bytes32, f32s};

fn i32s(bytes: &[u8]) -> Vec<i32> {
    bytes
        .chunks_exact(4)
        .map(|b| i32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

fn i64s(bytes: &[u8]) -> Vec<i64> {
    bytes
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

proptest! {
    #[test]
    fn integers_wrap(rows in prop::collection::vec(any::<(i64, i64)>(), 1..130)) {
        let (a, b): (Vec<i64>, Vec<i64>) = rows.into_iter().unzip();
        let bytes = |row: &[i64]| row.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let mut line = Line::new(RowKernel::new(&Optimizer::None, DType::I64, a.len()).unwrap());
        line.apply(PushOp::Assign, &bytes(&a));
        prop_assert_eq!(line.payload(), bytes(&a));
        line.apply(PushOp::Sum, &bytes(&b));
        let want: Vec<i64> = a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect();
        prop_assert_eq!(i64s(line.payload()), want);

        // The same bytes as twice as many i32.
        let dim = 2 * a.len();
        let mut line = Line::new(RowKernel::new(&Optimizer::None, DType::I32, dim).unwrap());
        line.apply(PushOp::Sum, &bytes(&a));
        line.apply(PushOp::Sum, &bytes(&b));
        let (a, b) = (i32s(&bytes(&a)), i32s(&bytes(&b)));
        let want: Vec<i32> = a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect();
        prop_assert_eq!(i32s(line.payload()), want);
    }

    #[test]
    fn accumulate_is_a_sum(rows in prop::collection::vec(any::<(i32, i32)>(), 0..130)) {
        for dtype in [DType::F32, DType::F64, DType::I32, DType::I64] {
            // Small integers: exact in every type.
            let bytes = |x: i32| match dtype {
                DType::F32 => (x as f32).to_le_bytes().to_vec(),
                DType::F64 => f64::from(x).to_le_bytes().to_vec(),
                DType::I32 => x.to_le_bytes().to_vec(),
                DType::I64 => i64::from(x).to_le_bytes().to_vec(),
            };
            let row = |f: &dyn Fn(i32, i32) -> i32| -> Vec<u8> {
                rows.iter().flat_map(|&(a, b)| bytes(f(a >> 10, b >> 10))).collect()
            };
            let mut acc = row(&|a, _| a);
            accumulate(dtype, &mut acc, &row(&|_, b| b));
            prop_assert_eq!(&acc, &row(&|a, b| a + b));
            let mut thrice = row(&|a, b| 3 * (a + b));
            divide(dtype, &mut thrice, 3.0);
            prop_assert_eq!(&acc, &thrice);
        }
    }
}

#[test]
fn integers_wrap_at_both_ends() {
    let mut acc = [i32::MAX, i32::MIN].map(i32::to_le_bytes).concat();
    accumulate(
        DType::I32,
        &mut acc,
        &[1i32, -1].map(i32::to_le_bytes).concat(),
    );
    assert_eq!(i32s(&acc), [i32::MIN, i32::MAX]);
}

#[test]
fn integer_mean_rounds_ties_to_even() {
    let mut acc = [7, 49, -49, 10, 6, -10].map(i64::to_le_bytes).concat();
    divide(DType::I64, &mut acc, 49.0);
    assert_eq!(i64s(&acc), [0, 1, -1, 0, 0, 0]);
    let mut acc = [10, 6, -10, i32::MAX].map(i32::to_le_bytes).concat();
    divide(DType::I32, &mut acc, 4.0);
    assert_eq!(i32s(&acc), [2, 2, -2, 536_870_912]);
}

/// Bits by hand; except for the first and the last row the product with the rounded 1/n differs.
#[test]
fn float_mean_is_one_division() {
    for (sum, by, mean) in [
        (3.0, 3, 0x3f80_0000),
        (5.0, 3, 0x3fd5_5555),
        (9.0, 5, 0x3fe6_6666),
        (7.0, 6, 0x3f95_5555),
        (3.0, 7, 0x3edb_6db7),
        (7.0, 7, 0x3f80_0000),
    ] {
        let mut acc = bytes32(&[sum, -sum]);
        divide(DType::F32, &mut acc, by.into());
        let mean = f32::from_bits(mean);
        assert_eq!(f32s(&acc), [mean, -mean], "{sum} / {by}");
    }
}

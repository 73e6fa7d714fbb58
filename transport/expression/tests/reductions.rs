//! Reductions by hand: empty ones, extremes, sums at the limits, partial results on the wire.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use tidewater_expression::{Element, Evaluator, Partial, Program, Reduction, Scalar};
use tidewater_protocol::table::DType;

const TYPES: [DType; 4] = [DType::F32, DType::F64, DType::I32, DType::I64];

/// Reduces the expression over the elements of x.
fn partial<T: Element>(text: &str, reduction: Reduction, x: &[T]) -> Partial {
    let program = Program::parse(text, T::DTYPE).unwrap();
    let mut evaluator = Evaluator::new(&program, &[]).unwrap();
    let mut partial = Partial::empty(reduction, T::DTYPE);
    evaluator.reduce(&[x], 0, x.len(), reduction, &mut partial);
    partial
}

fn reduced<T: Element>(reduction: Reduction, x: &[T]) -> Option<Scalar> {
    partial("x", reduction, x).value()
}

#[test]
fn codes_name_reductions() {
    for (index, reduction) in Reduction::ALL.into_iter().enumerate() {
        assert_eq!(usize::from(reduction.code()), index + 1);
        assert_eq!(Reduction::from_code(reduction.code()), Some(reduction));
    }
    assert_eq!(Reduction::from_code(0), None);
    assert_eq!(Reduction::from_code(5), None);
}

#[test]
fn nothing_has_no_extreme() {
    for dtype in TYPES {
        let value = |reduction| Partial::empty(reduction, dtype).value();
        let zero = if dtype.is_float() {
            Scalar::Float(0.0)
        } else {
            Scalar::Integer(0)
        };
        assert_eq!(value(Reduction::Sum), Some(zero));
        assert_eq!(value(Reduction::Min), None);
        assert_eq!(value(Reduction::Max), None);
        assert_eq!(value(Reduction::And), Some(Scalar::Integer(1)));
    }
    let mut empty = partial::<f32>("x", Reduction::Max, &[]);
    assert_eq!(empty.value(), None);
    empty.combine(&partial::<f32>("x", Reduction::Max, &[-5.0]));
    empty.combine(&partial::<f32>("x", Reduction::Max, &[]));
    assert_eq!(empty.value(), Some(Scalar::Float(-5.0)));
}

#[test]
fn extremes_of_negative_values() {
    let x: Vec<f32> = (1..=3000).map(|i| -(i as f32)).collect();
    assert_eq!(reduced(Reduction::Max, &x), Some(Scalar::Float(-1.0)));
    assert_eq!(reduced(Reduction::Min, &x), Some(Scalar::Float(-3000.0)));
    assert_eq!(
        reduced(Reduction::Max, &[i64::MIN]),
        Some(Scalar::Integer(i64::MIN))
    );
    assert_eq!(
        reduced(Reduction::Min, &[i32::MAX]),
        Some(Scalar::Integer(i32::MAX.into()))
    );
    let infinite = reduced(Reduction::Max, &[f64::NEG_INFINITY]);
    assert_eq!(infinite, Some(Scalar::Float(f64::NEG_INFINITY)));
}

#[test]
fn nan_is_sum_and_extreme() {
    for at in [0, 15, 16, 1023, 1024, 1999] {
        let mut x = vec![1.0_f32; 2000];
        x[at] = -f32::NAN;
        for reduction in [Reduction::Sum, Reduction::Min, Reduction::Max] {
            let Some(Scalar::Float(value)) = reduced(reduction, &x) else {
                panic!("{reduction:?} is no float");
            };
            assert_eq!(
                value.to_bits(),
                0x7ff8_0000_0000_0000,
                "{reduction:?} at {at}"
            );
        }
        assert_eq!(reduced(Reduction::And, &x), Some(Scalar::Integer(1)));
        x[at] = -0.0;
        assert_eq!(reduced(Reduction::And, &x), Some(Scalar::Integer(0)));
    }
}

#[test]
fn infinities_sum_without_nan() {
    let inf = f64::INFINITY;
    assert_eq!(
        reduced(Reduction::Sum, &[1.0, inf, 2.0, inf]),
        Some(Scalar::Float(inf))
    );
    assert_eq!(
        reduced(Reduction::Sum, &[f64::MAX; 20]),
        Some(Scalar::Float(inf))
    );
    let Some(Scalar::Float(mixed)) = reduced(Reduction::Sum, &[inf, -inf]) else {
        panic!("a sum of floats is a float");
    };
    assert!(mixed.is_nan());
}

#[test]
fn integer_sums_are_exact() {
    let large = (1_i64 << 53) + 1;
    let sum = reduced(Reduction::Sum, &[large, 1, 1]);
    assert_eq!(sum, Some(Scalar::Integer(large + 2)));
    let sum = reduced(Reduction::Sum, &vec![i32::MIN; 5000]);
    assert_eq!(sum, Some(Scalar::Integer(5000 * i64::from(i32::MIN))));
    let canceled = reduced(Reduction::Sum, &[i64::MAX, i64::MAX, i64::MIN, i64::MIN]);
    assert_eq!(canceled, Some(Scalar::Integer(-2)));

    let over = partial("x", Reduction::Sum, &[i64::MAX, 1]);
    assert_eq!(over.value(), None);
    assert_eq!(over.exact_sum(), Some(1 << 63));
    let over = partial("x", Reduction::Sum, &vec![i64::MIN; 3000]);
    assert_eq!(over.exact_sum(), Some(3000 * i128::from(i64::MIN)));
}

#[test]
fn compensated_sums_keep_small_terms() {
    let mut x = vec![1.0_f64; 4000];
    x[0] = 1e16;
    x[3999] = -1e16;
    assert_eq!(reduced(Reduction::Sum, &x), Some(Scalar::Float(3998.0)));
    // The order of partial results does not lose them either.
    let mut sum = Partial::empty(Reduction::Sum, DType::F64);
    for part in [&[1e16][..], &[1.0; 10], &[-1e16]] {
        sum.combine(&partial("x", Reduction::Sum, part));
    }
    assert_eq!(sum.value(), Some(Scalar::Float(10.0)));
    // Sums of F32 are not rounded to F32.
    let sum = reduced(Reduction::Sum, &[16_777_216.0_f32; 3]);
    assert_eq!(sum, Some(Scalar::Float(50_331_648.0)));
    assert_eq!(
        reduced(Reduction::Sum, &[16_777_216.0_f32, 1.0]),
        Some(Scalar::Float(16_777_217.0))
    );
}

#[test]
fn booleans_are_counted() {
    let x: Vec<f32> = (0..2500).map(|i| i as f32).collect();
    let count = partial("x >= 1000", Reduction::Sum, &x).value();
    assert_eq!(count, Some(Scalar::Float(1500.0)));
    let all = |text| partial(text, Reduction::And, &x).value();
    assert_eq!(all("x < 2500"), Some(Scalar::Integer(1)));
    assert_eq!(all("x < 2499"), Some(Scalar::Integer(0)));
    assert_eq!(
        partial("x < 0", Reduction::Max, &x).value(),
        Some(Scalar::Float(0.0))
    );
}

#[test]
fn programs_without_inputs_are_reduced() {
    let program = Program::parse("index * p0", DType::I64).unwrap();
    let mut evaluator = Evaluator::<i64>::new(&program, &[2.0]).unwrap();
    let mut sum = Partial::empty(Reduction::Sum, DType::I64);
    evaluator.reduce(&[], 10, 2000, Reduction::Sum, &mut sum);
    assert_eq!(
        sum.value(),
        Some(Scalar::Integer(2 * (10..2010).sum::<i64>()))
    );
    let program = Program::parse("p0", DType::F32).unwrap();
    let mut evaluator = Evaluator::<f32>::new(&program, &[0.5]).unwrap();
    let mut sum = Partial::empty(Reduction::Sum, DType::F32);
    evaluator.reduce(&[], 0, 3000, Reduction::Sum, &mut sum);
    assert_eq!(sum.value(), Some(Scalar::Float(1500.0)));
}

#[test]
fn damaged_partials_are_refused() {
    let refused =
        |reduction, dtype, bytes: &[u8]| Partial::decode(bytes, reduction, dtype).is_err();
    let halves = |first: u64, second: u64| [first.to_le_bytes(), second.to_le_bytes()].concat();
    for dtype in TYPES {
        for reduction in Reduction::ALL {
            assert!(refused(reduction, dtype, &[0; 15]));
            assert!(refused(reduction, dtype, &[0; 17]));
            assert!(!refused(reduction, dtype, &[0; 16]));
        }
        assert!(refused(Reduction::And, dtype, &halves(2, 0)));
        assert!(refused(Reduction::And, dtype, &halves(1, 1)));
    }
    let nan = halves(0, f64::NAN.to_bits());
    assert!(refused(Reduction::Sum, DType::F64, &nan));
    assert!(refused(Reduction::Min, DType::I32, &halves(1 << 40, 1)));
    assert!(refused(
        Reduction::Min,
        DType::F32,
        &halves(0.1_f64.to_bits(), 1)
    ));
    assert!(!refused(
        Reduction::Min,
        DType::F64,
        &halves(0.1_f64.to_bits(), 1)
    ));
}

#[test]
#[should_panic(expected = "combined with")]
fn partials_of_different_reductions_panic() {
    let mut sum = Partial::empty(Reduction::Sum, DType::F32);
    sum.combine(&Partial::empty(Reduction::Sum, DType::F64));
}

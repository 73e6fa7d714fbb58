//! Reductions of random programs against the oracle.

use proptest::prelude::*;
use tidewater_expression::{Partial, Reduction, Scalar};

use crate::number::{Number, Sum};
use crate::{Case, scalar_bits};

/// Result of an element in the type of results.
fn widened<T: Number>(value: T) -> Scalar {
    let bits = value.canonical_bits();
    match (T::FLOAT, size_of::<T>()) {
        (true, 4) => Scalar::Float(f32::from_bits(bits as u32).into()),
        (true, _) => Scalar::Float(f64::from_bits(bits)),
        (false, 4) => Scalar::Integer((bits as i32).into()),
        (false, _) => Scalar::Integer(bits as i64),
    }
}

fn canonical(value: f64) -> Scalar {
    let nan = f64::from_bits(0x7ff8_0000_0000_0000);
    Scalar::Float(if value.is_nan() { nan } else { value })
}

/// Value of the reduction over the outputs, where all are one call.
fn expected<T: Number>(values: &[T], reduction: Reduction) -> Option<Scalar> {
    let all = |name| values.iter().copied().reduce(|a, b| T::binary(name, a, b));
    match reduction {
        Reduction::Sum => match T::sum(values) {
            Sum::Float(sum) => Some(canonical(sum)),
            Sum::Integer(sum) => i64::try_from(sum).ok().map(Scalar::Integer),
        },
        Reduction::Min => all("min").map(widened),
        Reduction::Max => all("max").map(widened),
        Reduction::And => {
            let all = values.iter().all(|&value| value != T::of_truth(false));
            Some(Scalar::Integer(all.into()))
        }
    }
}

/// Reduces a whole case in one call, and cut into calls with results that travel encoded.
pub(crate) fn check<T: Number>(case: &Case<T>) -> Result<(), TestCaseError> {
    let program = case.program();
    let mut evaluator = case.evaluator(&program);
    let values = case.expected();
    for reduction in Reduction::ALL {
        let empty = Partial::empty(reduction, T::DTYPE);
        let mut whole = empty.clone();
        let (first, count) = (case.first_index, case.count());
        evaluator.reduce(&case.slices(), first, count, reduction, &mut whole);
        prop_assert_eq!(
            scalar_bits(whole.value()),
            scalar_bits(expected(&values, reduction)),
            "{:?} of {}",
            reduction,
            case.tree
        );

        let mut combined = empty.clone();
        let mut received = empty.clone();
        for range in case.ranges() {
            let slices = case.slices().map(|input| &input[range.clone()]);
            let mut block = empty.clone();
            let first = first + range.start as u64;
            evaluator.reduce(&slices, first, range.len(), reduction, &mut block);
            combined.combine(&block);
            let sent = Partial::decode(&block.encode(), reduction, T::DTYPE).unwrap();
            received.combine(&sent);
        }
        prop_assert_eq!(combined.encode(), received.encode());
        if reduction != Reduction::Sum || !T::FLOAT {
            prop_assert_eq!(scalar_bits(combined.value()), scalar_bits(whole.value()));
        }
    }
    Ok(())
}

//! Random programs over random elements, bit for bit as an oracle that walks the tree element by element.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod number;
mod reductions;
mod tree;

use number::Number;
use proptest::prelude::*;
use tidewater_expression::{Evaluator, Program, Scalar};
use tree::{PARAMETERS, Tree, trees};

/// One program with its call.
#[derive(Debug, Clone)]
pub(crate) struct Case<T> {
    pub(crate) tree: Tree,
    pub(crate) inputs: [Vec<T>; 3],
    parameters: Vec<f64>,
    pub(crate) first_index: u64,
    /// Offsets between 0 and 1 at which a caller cuts the slices.
    cuts: Vec<f64>,
}

impl<T: Number> Case<T> {
    pub(crate) fn program(&self) -> Program {
        let text = self.tree.to_string();
        Program::parse(&text, T::DTYPE).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    pub(crate) fn evaluator(&self, program: &Program) -> Evaluator<T> {
        Evaluator::new(program, &self.parameters[..program.parameters()]).unwrap()
    }

    pub(crate) fn count(&self) -> usize {
        self.inputs[0].len()
    }

    pub(crate) fn slices(&self) -> [&[T]; 3] {
        self.inputs.each_ref().map(Vec::as_slice)
    }

    /// Outputs by the oracle.
    pub(crate) fn expected(&self) -> Vec<T> {
        let parameters: Vec<T> = self
            .parameters
            .iter()
            .map(|&p| T::of_parameter(p))
            .collect();
        let element = |i: usize| {
            let inputs = [0, 1, 2].map(|input| self.inputs[input][i]);
            let index = self.first_index + i as u64;
            self.tree.value(inputs, &parameters, index).number()
        };
        (0..self.count()).map(element).collect()
    }

    /// Ranges of elements between the cuts.
    pub(crate) fn ranges(&self) -> Vec<std::ops::Range<usize>> {
        let at = |cut: &f64| (cut * self.count() as f64) as usize;
        let mut ends: Vec<usize> = self.cuts.iter().map(at).collect();
        ends.push(self.count());
        ends.sort_unstable();
        let mut start = 0;
        let range = |end| start..std::mem::replace(&mut start, end).max(end);
        ends.into_iter().map(range).collect()
    }
}

/// Cases with lengths around those of lanes and chunks.
pub(crate) fn cases<T: Number>() -> impl Strategy<Value = Case<T>> {
    let count = proptest::sample::select(vec![0, 1, 7, 15, 16, 17, 33, 511, 513, 1024, 1025, 2100]);
    let inputs = count.prop_flat_map(|count| {
        let elements = || proptest::collection::vec(T::elements(), count);
        [elements(), elements(), elements()]
    });
    let parameters = proptest::collection::vec(T::parameter_values(), PARAMETERS);
    let cuts = proptest::collection::vec(0.0..1.0, 0..4);
    let first = prop_oneof![Just(0_u64), 0..1_u64 << 50];
    (trees::<T>(), inputs, parameters, first, cuts).prop_map(
        |(tree, inputs, parameters, first_index, cuts)| Case {
            tree,
            inputs,
            parameters,
            first_index,
            cuts,
        },
    )
}

/// Cases of each test: `PROPTEST_CASES`, or few enough for unoptimized builds.
fn cases_wanted() -> u32 {
    let variable = std::env::var("PROPTEST_CASES");
    variable.map_or(200, |cases| cases.parse().unwrap())
}

fn bits<T: Number>(values: &[T]) -> Vec<u64> {
    values.iter().map(|value| value.bits()).collect()
}

fn check_map<T: Number>(case: &Case<T>) -> Result<(), TestCaseError> {
    let program = case.program();
    let expected: Vec<u64> = case.expected().iter().map(|v| v.canonical_bits()).collect();
    let mut evaluator = case.evaluator(&program);
    let mut out = vec![T::default(); case.count()];
    evaluator.map(&case.slices(), case.first_index, &mut out);
    prop_assert_eq!(bits(&out), &expected[..], "{}", case.tree);

    let mut cut = vec![T::default(); case.count()];
    for range in case.ranges() {
        let slices = case.slices().map(|input| &input[range.clone()]);
        let first = case.first_index + range.start as u64;
        evaluator.map(&slices, first, &mut cut[range]);
    }
    prop_assert_eq!(bits(&cut), &expected[..], "cut: {}", case.tree);

    let mut target = case.inputs[0].clone();
    evaluator.map_in_place(&mut target, &case.slices()[1..], case.first_index);
    prop_assert_eq!(bits(&target), &expected[..], "in place: {}", case.tree);
    Ok(())
}

fn check_codec<T: Number>(tree: &Tree) -> Result<(), TestCaseError> {
    let program = Program::parse(&tree.to_string(), T::DTYPE).unwrap();
    let mut bytes = vec![0xaa];
    program.encode(&mut bytes);
    let decoded = Program::decode(&bytes[1..]);
    prop_assert_eq!(decoded.as_ref(), Ok(&program));
    for end in 1..bytes.len() {
        prop_assert!(Program::decode(&bytes[1..end]).is_err(), "cut at {}", end);
    }
    bytes.push(0);
    prop_assert!(Program::decode(&bytes[1..]).is_err());
    Ok(())
}

/// Bits of a result.
pub(crate) fn scalar_bits(scalar: Option<Scalar>) -> Option<u64> {
    scalar.map(|scalar| match scalar {
        Scalar::Float(value) => value.to_bits(),
        Scalar::Integer(value) => value as u64,
    })
}

macro_rules! tests {
    ($($type:ident)*) => {$(
        mod $type {
            use super::*;

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(cases_wanted()))]

                #[test]
                fn map_agrees_with_oracle(case in cases::<$type>()) {
                    check_map(&case)?;
                }

                #[test]
                fn reduce_agrees_with_oracle(case in cases::<$type>()) {
                    reductions::check(&case)?;
                }

                #[test]
                fn encoding_round_trips(tree in trees::<$type>()) {
                    check_codec::<$type>(&tree)?;
                }
            }
        }
    )*};
}

tests!(f32 f64 i32 i64);

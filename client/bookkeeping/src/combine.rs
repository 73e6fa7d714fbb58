//! Combines duplicate keys of one push: sums and gradients are added, the least or greatest values are taken, and the
//! last assign wins.

use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::{DType, PushOp};

use crate::collective::{ReduceOp, fold};

/// Some elements of a push: their row or page, the first one's offset in it, and their values.
pub type Piece<'a> = (u64, usize, &'a [u8]);

/// Scratch memory, kept between calls so that a warm one allocates nothing.
#[derive(Debug, Default)]
pub struct Combiner {
    order: Vec<(u64, u32)>,
    /// Distinct keys of the push, ascending.
    pub keys: Vec<u64>,
    /// Combined values of the keys.
    pub values: Vec<u8>,
}

impl Combiner {
    /// Combines `keys` with rows of `row_bytes`; the result is in `keys` and `values`. Rows of one key
    /// are added in the caller's order.
    pub fn combine(
        &mut self,
        dtype: DType,
        op: PushOp,
        keys: &[u64],
        values: &[u8],
        row_bytes: usize,
    ) {
        self.order.clear();
        self.order
            .extend(keys.iter().zip(0..).map(|(&key, row)| (key, row)));
        self.order.sort_unstable();
        self.keys.clear();
        self.values.clear();
        for &(key, i) in &self.order {
            let at = i as usize * row_bytes;
            let row = &values[at..at + row_bytes];
            if self.keys.last() != Some(&key) {
                self.keys.push(key);
                self.values.extend_from_slice(row);
                continue;
            }
            let start = self.values.len() - row_bytes;
            let acc = &mut self.values[start..];
            match op {
                PushOp::Assign => acc.copy_from_slice(row),
                PushOp::Sum | PushOp::Gradient => add(dtype, acc, row),
                PushOp::Min => fold(dtype, ReduceOp::Min, acc, row),
                PushOp::Max => fold(dtype, ReduceOp::Max, acc, row),
            }
        }
    }

    /// Keys and values of some rows, each from its first element on.
    pub fn pieces<'a>(
        &'a self,
        rows: &'a [u32],
        row_bytes: usize,
    ) -> impl Iterator<Item = Piece<'a>> {
        rows.iter().map(move |&row| {
            let row = row as usize;
            let key = self.keys.get(row).copied().unwrap_or_default();
            let values = self.values.get(row * row_bytes..(row + 1) * row_bytes);
            (key, 0, values.unwrap_or_default())
        })
    }
}

/// Position of the first element that is NaN or infinite, among floats.
pub fn not_finite(dtype: DType, values: &[u8]) -> Option<usize> {
    match dtype {
        DType::F64 => {
            let (values, _) = values.as_chunks();
            values
                .iter()
                .position(|v| !f64::from_le_bytes(*v).is_finite())
        }
        _ => {
            let (values, _) = values.as_chunks();
            values
                .iter()
                .position(|v| !f32::from_le_bytes(*v).is_finite())
        }
    }
}

/// Computes `acc += row`; integers wrap. A counted loop, because whether a zip is inlined here depends
/// on what else is compiled.
pub fn add(dtype: DType, acc: &mut [u8], row: &[u8]) {
    macro_rules! each {
        ($t:ty, $add:expr) => {{
            const N: usize = size_of::<$t>();
            let (acc, _) = acc.as_chunks_mut::<N>();
            let (row, _) = row.as_chunks::<N>();
            let mut n = 0;
            while let (Some(a), Some(r)) = (acc.get_mut(n), row.get(n)) {
                *a = $add(<$t>::from_le_bytes(*a), <$t>::from_le_bytes(*r)).to_le_bytes();
                n += 1;
            }
        }};
    }
    if mutants::on(Mutant::DuplicateF64LastWins) && dtype == DType::F64 {
        acc.copy_from_slice(row);
        return;
    }
    match dtype {
        DType::F32 => each!(f32, |a: f32, b: f32| a + b),
        DType::F64 => each!(f64, |a: f64, b: f64| a + b),
        DType::I32 => each!(i32, i32::wrapping_add),
        DType::I64 => each!(i64, i64::wrapping_add),
    }
}

/// Computes `acc += by * row`; each product and each sum is rounded in the element type.
///
/// # Panics
/// For integers with another factor than 1: pushes of them have no weight.
pub fn add_scaled(dtype: DType, acc: &mut [u8], row: &[u8], by: f64) {
    macro_rules! each {
        ($t:ty) => {{
            const N: usize = size_of::<$t>();
            let (acc, _) = acc.as_chunks_mut::<N>();
            let (row, _) = row.as_chunks::<N>();
            for (a, r) in acc.iter_mut().zip(row) {
                let product = <$t>::from_le_bytes(*r) * by as $t;
                *a = (<$t>::from_le_bytes(*a) + product).to_le_bytes();
            }
        }};
    }
    match dtype {
        _ if by == 1.0 => add(dtype, acc, row),
        DType::F32 => each!(f32),
        DType::F64 => each!(f64),
        DType::I32 | DType::I64 => panic!("{dtype:?} times {by}"),
    }
}

/// The largest magnitude of a row's elements. NaN counts as infinite.
pub fn magnitude(dtype: DType, row: &[u8]) -> f64 {
    macro_rules! each {
        ($t:ty) => {{
            let (row, _) = row.as_chunks::<{ size_of::<$t>() }>();
            let of = |bytes: &[u8; size_of::<$t>()]| (<$t>::from_le_bytes(*bytes) as f64).abs();
            row.iter()
                .map(of)
                .fold(0.0, |most, one| match one.is_nan() {
                    true => f64::INFINITY,
                    false => most.max(one),
                })
        }};
    }
    match dtype {
        DType::F32 => each!(f32),
        DType::F64 => each!(f64),
        DType::I32 => each!(i32),
        DType::I64 => each!(i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn gradients_add_and_assigns_take_the_last() {
        let mut c = Combiner::default();
        let keys = [7, 3, 7, u64::MAX, 3, 7];
        let values = bytes(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]);
        c.combine(DType::F32, PushOp::Gradient, &keys, &values, 4);
        assert_eq!(
            (&c.keys[..], &c.values[..]),
            (&[3, 7, u64::MAX][..], &bytes(&[18.0, 37.0, 8.0])[..])
        );
        c.combine(DType::F32, PushOp::Assign, &keys, &values, 4);
        assert_eq!(c.values, bytes(&[16.0, 32.0, 8.0]));
    }

    #[test]
    fn least_and_greatest_values_of_a_key_are_taken() {
        let mut c = Combiner::default();
        let keys = [7, 3, 7, 3, 7];
        let values = bytes(&[1.0, f32::NAN, -4.0, 2.0, 3.0]);
        for (op, expected) in [(PushOp::Min, -4.0), (PushOp::Max, 3.0)] {
            c.combine(DType::F32, op, &keys, &values, 4);
            assert_eq!(c.keys, [3, 7]);
            assert_eq!(c.values, bytes(&[f32::NAN, expected]), "{op:?}");
        }
    }

    /// Keys 5, 9, 5, 9, 5 with values 1, 10, 2, 20, 4: 7 and 30, in every element type.
    #[test]
    fn duplicate_keys_are_summed_in_every_type() {
        macro_rules! check {
            ($dtype:expr, $t:ty) => {{
                let bytes = |values: &[$t]| -> Vec<u8> {
                    values.iter().flat_map(|v| v.to_le_bytes()).collect()
                };
                let values = [1, 10, 2, 20, 4].map(|v| v as $t);
                for op in [PushOp::Sum, PushOp::Gradient] {
                    let mut c = Combiner::default();
                    let row_bytes = size_of::<$t>();
                    c.combine($dtype, op, &[5, 9, 5, 9, 5], &bytes(&values), row_bytes);
                    assert_eq!(c.keys, [5, 9], "{:?}", $dtype);
                    assert_eq!(c.values, bytes(&[7 as $t, 30 as $t]), "{:?}", $dtype);
                }
            }};
        }
        check!(DType::F32, f32);
        check!(DType::F64, f64);
        check!(DType::I32, i32);
        check!(DType::I64, i64);
    }

    #[test]
    fn magnitude_is_the_largest_of_a_row() {
        let of = |values: &[f32]| magnitude(DType::F32, &bytes(values));
        assert_eq!(of(&[1.0, -3.0, 2.0]).to_bits(), 3.0f64.to_bits());
        assert_eq!(of(&[]).to_bits(), 0.0f64.to_bits());
        assert!(of(&[1.0, f32::NAN, 2.0]).is_infinite());
        let least = magnitude(DType::I64, &i64::MIN.to_le_bytes());
        assert_eq!(least.to_bits(), (2.0f64.powi(63)).to_bits());
    }

    #[test]
    fn integers_wrap() {
        let mut c = Combiner::default();
        let values: Vec<u8> = [i64::MAX, 1].iter().flat_map(|v| v.to_le_bytes()).collect();
        c.combine(DType::I64, PushOp::Sum, &[1, 1], &values, 8);
        assert_eq!(c.values, i64::MIN.to_le_bytes());
    }
}

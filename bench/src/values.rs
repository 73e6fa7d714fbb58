//! Known values, so that every element that comes back can be compared.
//!
//! Column `c` of row `r` holds `base(r, c) + n x step(c)` after `n` pushes: small integers that f32
//! adds exactly. A single lost, doubled, torn or misplaced push or row is therefore a wrong value.
//! The values are computed, not stored, so a table of millions of rows can be checked.

use tidewater_protocol::layout::hash::mix64;

/// Maximum pushes to a row: all values then stay below 2^24, the limit of exact integers in f32.
pub const PUSHES_MAX: u32 = 4_000_000;
const BASES: u32 = 1024;
const _: () = assert!(BASES + PUSHES_MAX * 3 < 1 << 24);

/// Known values of one table.
#[derive(Debug, Clone, Copy)]
pub struct Values {
    seed: u64,
}

impl Values {
    /// Creates the values of a seed.
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Returns what one push adds to each element of a row of `columns` elements.
    pub fn steps(columns: usize) -> Vec<f32> {
        (0..columns).map(|c| step(c as u32)).collect()
    }

    fn base(self, row: u64) -> u32 {
        mix64(row ^ self.seed.rotate_left(32)) as u32
    }

    /// Writes the values of a row after `pushes` pushes to `out`, from column 0 on.
    pub fn fill(self, row: u64, pushes: u32, out: &mut [f32]) {
        let base = self.base(row);
        for (c, value) in out.iter_mut().enumerate() {
            *value = element(base, c as u32, pushes);
        }
    }

    /// Number of elements of `is` that differ, bit for bit, from those of the row after `pushes` pushes.
    pub fn wrong(self, row: u64, pushes: u32, is: &[f32]) -> u64 {
        let base = self.base(row);
        let mut wrong = 0;
        for (c, value) in is.iter().enumerate() {
            let due = element(base, c as u32, pushes);
            wrong += u64::from(value.to_bits() != due.to_bits());
        }
        wrong
    }
}

const fn step(column: u32) -> f32 {
    (1 + column % 3) as f32
}

#[inline(always)]
const fn element(base: u32, column: u32, pushes: u32) -> f32 {
    let first = base.wrapping_add(column.wrapping_mul(7)) % BASES;
    (first + pushes * (1 + column % 3)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_moves_every_element_and_rows_differ() {
        let values = Values::new(7);
        let (mut before, mut after) = (vec![0.0; 64], vec![0.0; 64]);
        values.fill(3, 10, &mut before);
        values.fill(3, 11, &mut after);
        assert_eq!(values.wrong(3, 10, &before), 0);
        assert_eq!(values.wrong(3, 10, &after), 64);
        let steps = Values::steps(64);
        for ((b, a), s) in before.iter().zip(&after).zip(steps) {
            assert_eq!(b + s, *a);
        }
        assert!(values.wrong(4, 10, &before) > 0, "another row's values");
        before[5] = f32::NAN;
        assert_eq!(values.wrong(3, 10, &before), 1);
    }
}

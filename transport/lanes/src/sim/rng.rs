//! The simulator's only source of randomness: a counter through a mixer.

use tidewater_protocol::layout::hash::mix64;

/// Seeded pseudo-random number generator; equal seeds give equal numbers on every machine.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator; equal seeds give equal sequences of numbers.
    pub const fn new(seed: u64) -> Self {
        Self(mix64(seed ^ 0x7469_6465_7761_7465))
    }

    /// Returns the next 64 random bits of the sequence, as one number.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0)
    }

    /// Returns a uniform random number below `n`; 0 when `n` is 0.
    pub const fn below(&mut self, n: u64) -> u64 {
        ((self.bits() as u128 * n as u128) >> 64) as u64
    }

    /// Returns true with probability `p`, from 0 to 1.
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && ((self.bits() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// Creates another generator, seeded by the next number of this one. Numbers drawn from the new one
    /// do not change those of this one.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self::new(self.bits())
    }

    /// Shuffles a slice into a uniformly random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_range_and_chances_are_met() {
        let mut rng = Rng::new(1);
        assert!((0..1000).all(|_| rng.below(7) < 7));
        assert_eq!(rng.below(0), 0);
        let hits = (0..10_000).filter(|_| rng.chance(0.25)).count();
        assert!((2_200..2_800).contains(&hits), "{hits}");
        assert!(!rng.chance(0.0) && rng.chance(1.0));
    }
}

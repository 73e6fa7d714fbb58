//! The order of single records in a pass: a permutation that is computed number by number.
//!
//! A balanced Feistel network permutes the numbers of an even count of bits. A result that is not below the number of
//! records is permuted again until it is (*cycle walking*; Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
//! 2002). The domain is at most four times the number of records, or 256 numbers for fewer than 65 records, so that a
//! number of more takes fewer than four passes of the network on average. No memory depends on the number of records.
//!
//! The permutation shuffles; it is no cipher.

use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::mutants::{Mutant, on};

/// Rounds of the Feistel network. Four make it pseudo-random with random round functions; those here are mixers.
const ROUNDS: u64 = 6;
/// Bits of half a number of the smallest domain. With fewer, a network has too few keys to reach most orders.
const HALF_MIN: u32 = 4;
/// Distinguishes the keys from those of the order of tasks, which may have the same seed.
const KEY: u64 = 0x9e37_79b9_7f4a_7c15;

/// A permutation of the numbers below `count`: a function of count, seed and pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permutation {
    count: u64,
    /// Bits of half a number.
    half: u32,
    key: u64,
}

impl Permutation {
    /// The permutation of pass `epoch`.
    pub(crate) fn new(count: u64, seed: u64, epoch: u32) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Self {
            count,
            half: bits.div_ceil(2).max(HALF_MIN),
            key: mix64(mix64(seed ^ KEY) ^ mix64(u64::from(epoch) + 1)),
        }
    }

    /// The number at a position.
    ///
    /// # Panics
    /// If the position is not below the count, which every task of a checked definition is.
    pub(crate) fn at(&self, position: u64) -> u64 {
        assert!(
            position < self.count,
            "position {position} of {} records",
            self.count
        );
        let mut number = self.network(position);
        // The walk is on a cycle that contains `position`, so it ends.
        while number >= self.count {
            number = match on(Mutant::RecordDrawnTwice) {
                true => number % self.count,
                false => self.network(number),
            };
        }
        number
    }

    /// Permutes the numbers of `2 * half` bits.
    fn network(&self, number: u64) -> u64 {
        let mask = (1 << self.half) - 1;
        let (mut left, mut right) = (number >> self.half, number & mask);
        for round in 1..=ROUNDS {
            let key = self.key.wrapping_add(round.wrapping_mul(KEY));
            let mixed = mix64(mix64(key) ^ right) >> (u64::BITS - self.half);
            (left, right) = (right, left ^ mixed);
        }
        left << self.half | right
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Permutation;

    fn order(count: u64, seed: u64, epoch: u32) -> Vec<u64> {
        let permutation = Permutation::new(count, seed, epoch);
        (0..count).map(|at| permutation.at(at)).collect()
    }

    /// Each number below the count once, for counts around every size of domain. Another pass and another seed have
    /// another order.
    #[test]
    fn numbers_are_a_permutation() {
        let counts = [
            0, 1, 2, 7, 10, 63, 64, 65, 255, 256, 257, 1_000, 1_024, 4_097, 70_000,
        ];
        for count in counts {
            let numbers = order(count, 5, 0);
            let different: BTreeSet<u64> = numbers.iter().copied().collect();
            assert_eq!(different.len() as u64, count);
            assert!(numbers.iter().all(|&number| number < count), "of {count}");
            assert_eq!(numbers, order(count, 5, 0));
            if count >= 7 {
                assert_ne!(numbers, order(count, 5, 1), "another pass of {count}");
                assert_ne!(numbers, order(count, 6, 0), "another seed of {count}");
            }
        }
        let last = Permutation::new(u64::MAX, 5, 0);
        assert!((u64::MAX - 9..u64::MAX).all(|at| last.at(at) < u64::MAX));
    }

    /// The orders are part of the protocol: all workers of a job compute them.
    #[test]
    fn orders_are_stable() {
        assert_eq!(order(10, 7, 0), GOLDEN_FIRST_PASS);
        assert_eq!(order(10, 7, 1), GOLDEN_SECOND_PASS);
        let large = Permutation::new(1 << 40, 7, 0);
        assert_eq!([0, 1, 1 << 39].map(|at| large.at(at)), GOLDEN_LARGE);
    }

    const GOLDEN_FIRST_PASS: [u64; 10] = [3, 9, 7, 6, 4, 8, 5, 0, 2, 1];
    const GOLDEN_SECOND_PASS: [u64; 10] = [4, 5, 8, 0, 2, 3, 9, 6, 7, 1];
    const GOLDEN_LARGE: [u64; 3] = [296_094_190_290, 823_577_642_246, 737_381_531_764];

    /// All orders of three records come equally often over the seeds, and each record is at each of 16 positions.
    #[test]
    fn orders_are_equally_frequent() {
        let mut found = std::collections::BTreeMap::new();
        for seed in 0..6_000 {
            *found.entry(order(3, seed, 0)).or_insert(0u32) += 1;
        }
        assert_eq!(found.len(), 6, "{found:?}");
        // A count of 1,000 deviates by 29 (one sigma).
        assert!(found.values().all(|n| (850..1150).contains(n)), "{found:?}");
        let mut at = [[0u32; 16]; 16];
        for seed in 0..4_000 {
            for (position, number) in order(16, seed, 2).into_iter().enumerate() {
                at[position][number as usize] += 1;
            }
        }
        // 250 expected, one sigma is 15.
        let all = at.iter().flatten();
        assert!(all.clone().all(|n| (160..340).contains(n)), "{at:?}");
    }
}

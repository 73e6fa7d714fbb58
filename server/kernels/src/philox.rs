//! Philox4x32-10: a block cipher's shape used as a random source (Salmon, Moraes, Dror and Shaw,
//! "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//!
//! A counter-based source has no state: its output for a counter depends on the key and that
//! counter alone, so rows can be created in any order and on any server. For one key, different
//! counters give different blocks.

const MULTIPLIER: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// Returns the 128 random bits of block `counter` under `key`, with words in the reference implementation's
/// order.
#[inline]
pub(super) fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let (low0, high0) = product(MULTIPLIER[0], counter[0]);
        let (low1, high1) = product(MULTIPLIER[1], counter[2]);
        counter = [
            high1 ^ counter[1] ^ key[0],
            low1,
            high0 ^ counter[3] ^ key[1],
            low0,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

fn product(a: u32, b: u32) -> (u32, u32) {
    words(u64::from(a) * u64::from(b)).into()
}

/// Splits a 64-bit word into its low and high half, in this order.
#[allow(clippy::cast_possible_truncation)] // the halves are what is wanted
pub(super) const fn words(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with their library Random123.
    #[test]
    fn known_answers() {
        let cases = [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, answer) in cases {
            assert_eq!(philox4x32(counter, key), answer);
        }
    }
}

//! H64: the keyed 64-bit hash that makes remote reads self-validating.
//!
//! A scalar multiply-mix hash: no CPU feature, both ends identical, about 30 GB/s on one core. It
//! guards against tearing, reuse and mix-ups (a false accept has probability 2^-64 per torn read). It
//! is not a MAC and gives no protection against a writer of the memory.

use super::line_from_bytes;
use crate::mutants::{self, Mutant};

const K: [u64; 8] = [
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
    0x5899_65cc_7537_4cc3,
    0x1d8e_4e27_c47d_124f,
    0xeb44_acca_b455_d165,
    0x9e37_79b9_7f4a_7c15,
    0xc2b2_ae3d_27d4_eb4f,
];

/// Bijective mixer for 64-bit words (the finaliser of `SplitMix64`).
#[inline]
pub const fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Bijective mixer for 32-bit words: two multiplications and three shifted XORs.
#[inline]
pub const fn mix32(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let wide = (a as u128) * (b as u128);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// Incremental state of the keyed 64-bit hash. It absorbs blocks of eight words; one of the finishing calls absorbs the
/// remainder and returns the hash. `Copy`: a finished state does not change the original.
#[derive(Debug, Clone, Copy)]
pub struct H64 {
    lanes: [u64; 4],
}

impl H64 {
    /// Starts a hash with four seed words, each absorbed on its own. They are never XORed together: a linear
    /// seed lets key 0x10000 of generation 0 pass for key 0 of generation 1.
    #[inline(always)]
    pub fn new(seed: [u64; 4]) -> Self {
        if mutants::on(Mutant::LinearHashSeed) {
            // The mutant's defect: generations and keys cancel.
            let s = seed[0] ^ seed[1] ^ (seed[2] >> 32) ^ seed[3];
            return Self {
                lanes: [s ^ K[4], s ^ K[5], s ^ K[6], s ^ K[7]],
            };
        }
        let a = fold(seed[0] ^ K[0], seed[1] ^ K[1]) ^ seed[1].rotate_left(32);
        let b = fold(seed[2] ^ K[2] ^ a, seed[3] ^ K[3]) ^ seed[2].rotate_left(32) ^ a;
        Self {
            lanes: [b ^ K[4], b ^ K[5], b ^ K[6], b ^ K[7]],
        }
    }

    /// Absorbs one block of eight words (64 bytes).
    #[inline(always)]
    pub fn block(&mut self, w: &[u64; 8]) {
        let [a, b, c, d] = &mut self.lanes;
        // The rotation keeps the lane alive when a product happens to be zero.
        *a = a.rotate_left(29) ^ fold(w[0] ^ K[0], w[1] ^ *a);
        *b = b.rotate_left(29) ^ fold(w[2] ^ K[1], w[3] ^ *b);
        *c = c.rotate_left(29) ^ fold(w[4] ^ K[2], w[5] ^ *c);
        *d = d.rotate_left(29) ^ fold(w[6] ^ K[3], w[7] ^ *d);
    }

    /// Absorbs the last words, at most eight and possibly none, and returns the hash. Words past the eighth would be
    /// ignored.
    #[inline(always)]
    pub fn finish(mut self, rest: &[u64]) -> u64 {
        if !rest.is_empty() {
            let mut last = [0; 8];
            let n = rest.len().min(8);
            last[..n].copy_from_slice(&rest[..n]);
            self.block(&last);
        }
        let [a, b, c, d] = self.lanes;
        let x = fold(a ^ K[4], b ^ K[5]) ^ a.rotate_left(17);
        let y = fold(c ^ K[6], d ^ K[7]) ^ d.rotate_left(41);
        mix64(x ^ fold(x ^ K[0], y ^ K[1]) ^ y)
    }

    /// Absorbs all remaining bytes as little-endian words, zero-padded to a complete word, and returns the
    /// hash. The padding is not distinguished, so the caller puts the length into the seed.
    #[inline(always)]
    pub fn finish_bytes(mut self, bytes: &[u8]) -> u64 {
        // Arrays of known length: a copy of variable length would be a call for each word.
        if mutants::on(Mutant::HashLastLineOnly) {
            return self.finish_last_line(bytes);
        }
        let (blocks, tail) = bytes.as_chunks::<64>();
        for block in blocks {
            self.block(&line_from_bytes(block));
        }
        if tail.is_empty() {
            return self.finish(&[]);
        }
        self.finish_tail(tail)
    }

    /// Returns the hash that [`Self::finish_bytes`] returns for `bytes`, and copies `bytes` to `to` in the same pass.
    /// Both slices must have the same length.
    #[inline(always)]
    pub fn finish_copying(mut self, bytes: &[u8], to: &mut [u8]) -> u64 {
        if mutants::on(Mutant::HashLastLineOnly) {
            to.copy_from_slice(bytes);
            return self.finish_last_line(bytes);
        }
        let (blocks, tail) = bytes.as_chunks::<64>();
        let (to_blocks, to_tail) = to.as_chunks_mut::<64>();
        for (block, to) in blocks.iter().zip(to_blocks) {
            self.block(&line_from_bytes(block));
            *to = *block;
        }
        if tail.is_empty() {
            return self.finish(&[]);
        }
        to_tail.copy_from_slice(tail);
        self.finish_tail(tail)
    }

    /// Returns a wrong hash, for the test mutant `hash-last-line-only`: of the complete lines it covers only the last,
    /// and the rest of the bytes.
    #[cold]
    #[inline(never)]
    pub fn finish_last_line(mut self, bytes: &[u8]) -> u64 {
        let (blocks, tail) = bytes.as_chunks::<64>();
        if let Some(last) = blocks.last() {
            self.block(&line_from_bytes(last));
        }
        if tail.is_empty() {
            return self.finish(&[]);
        }
        self.finish_tail(tail)
    }

    /// Absorbs the last bytes, fewer than 64, and returns the hash. A function of its own: most rows have no
    /// such tail.
    #[inline(never)]
    fn finish_tail(self, tail: &[u8]) -> u64 {
        let mut rest = [0; 8];
        let words = tail.len().div_ceil(8).min(8);
        let (complete, part) = tail.as_chunks::<8>();
        let mut n = 0;
        while let (Some(to), Some(word)) = (rest.get_mut(n), complete.get(n)) {
            *to = u64::from_le_bytes(*word);
            n += 1;
        }
        if !part.is_empty() {
            rest[words - 1] = super::word_at(part, 0);
        }
        self.finish(&rest[..words])
    }
}

/// Returns the keyed checksum of a record's words, at most eight. `salt` is that of the session, table or directory
/// that the record belongs to, and `what` a constant for the kind of the record.
#[inline]
pub fn line_checksum(salt: u64, what: u64, words: &[u64]) -> u64 {
    H64::new([salt, what, words.len() as u64, 0]).finish(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_seed_and_data_changes_the_hash() {
        let seed = [1, 2, 3, 40];
        let data: Vec<u8> = (0..40).collect();
        let base = H64::new(seed).finish_bytes(&data);
        let mut seen = std::collections::HashSet::from([base]);
        for word in 0..4 {
            for bit in 0..64 {
                let mut s = seed;
                s[word] ^= 1 << bit;
                assert!(
                    seen.insert(H64::new(s).finish_bytes(&data)),
                    "seed {word} bit {bit}"
                );
            }
        }
        for byte in 0..data.len() {
            for bit in 0..8 {
                let mut d = data.clone();
                d[byte] ^= 1 << bit;
                assert!(
                    seen.insert(H64::new(seed).finish_bytes(&d)),
                    "byte {byte} bit {bit}"
                );
            }
        }
    }

    #[test]
    fn words_and_bytes_agree() {
        for n in 0..40u64 {
            let words: Vec<u64> = (0..n).map(mix64).collect();
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let mut h = H64::new([7, 8, 9, n]);
            let mut chunks = words.chunks_exact(8);
            for c in &mut chunks {
                h.block(c.try_into().unwrap());
            }
            assert_eq!(
                h.finish(chunks.remainder()),
                H64::new([7, 8, 9, n]).finish_bytes(&bytes)
            );
            for cut in 0..bytes.len().min(8) {
                let (bytes, mut copy) = (&bytes[cut..], vec![0; bytes.len() - cut]);
                let hash = H64::new([7, 8, 9, n]);
                assert_eq!(
                    hash.finish_copying(bytes, &mut copy),
                    hash.finish_bytes(bytes)
                );
                assert_eq!(copy, bytes);
            }
        }
    }

    #[test]
    fn a_key_and_a_generation_do_not_cancel() {
        let row = [0u8; 32];
        let of = |key: u64, ver: u64| H64::new([5, key, ver, 32]).finish_bytes(&row);
        for generation in 1..64u64 {
            assert_ne!(of(generation << 16, 1), of(0, (generation << 48) | 1));
            assert_ne!(of(generation, 1), of(0, (generation << 32) | 1));
            assert_ne!(of(generation, generation), of(0, 0));
        }
    }

    #[test]
    fn mixers_are_stable() {
        assert_eq!(mix64(1), 0x5692_161d_100b_05e5);
        assert_eq!(mix32(1), 0x688990c0);
    }
}

//! The key directory of a verbs server: an append-only array in registered memory, one cell per region.
//! It maps a [`RegionKey`] to the device's rkey, so that descriptors, extent tables and cached
//! locations carry the same keys on every carrier.
//!
//! `region key u64 | rkey u64 | checksum u64 | 0`

use super::hash::line_checksum;
use super::word_at;
use crate::ids::RegionKey;

const CELL: u64 = u64::from_le_bytes(*b"key-cell");

/// Bytes of one cell of the key directory.
pub const KEY_CELL_BYTES: usize = 32;

/// Returns the byte offset of a region's cell in the key directory. `index` is the number of the region at the server,
/// from 0.
pub const fn key_cell_at(index: u32) -> usize {
    index as usize * KEY_CELL_BYTES
}

/// Cell of a verbs server's key directory: maps a region key of Tidewater to the device's rkey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyCell {
    /// Region key that peers hold.
    pub key: RegionKey,
    /// The rkey that the device expects.
    pub rkey: u32,
}

impl KeyCell {
    /// Encodes the cell with its checksum, which also covers the salt of the directory and the number `index` of the
    /// cell: that of the region, from 0.
    pub fn to_bytes(&self, salt: u64, index: u32) -> [u8; KEY_CELL_BYTES] {
        let w = [u64::from(self.key.0), u64::from(self.rkey)];
        let words = [
            w[0],
            w[1],
            line_checksum(salt, CELL ^ u64::from(index), &w),
            0,
        ];
        let mut bytes = [0; KEY_CELL_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a cell that a client read; `None` if its checksum does not match: torn, empty, or of another
    /// directory or number. `salt` is that of the directory, `index` the number of the region, from 0.
    pub fn from_bytes(bytes: &[u8; KEY_CELL_BYTES], salt: u64, index: u32) -> Option<Self> {
        let cell = Self {
            key: RegionKey(u32::try_from(word_at(bytes, 0)).ok()?),
            rkey: u32::try_from(word_at(bytes, 8)).ok()?,
        };
        (cell.to_bytes(salt, index) == *bytes).then_some(cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_proves_key_rkey_number_and_directory() {
        let cell = KeyCell {
            key: RegionKey(0x0520_0007),
            rkey: 0x1234_5678,
        };
        let bytes = cell.to_bytes(9, 7);
        assert_eq!(KeyCell::from_bytes(&bytes, 9, 7), Some(cell));
        assert_eq!(KeyCell::from_bytes(&bytes, 9, 8), None, "another cell's");
        assert_eq!(KeyCell::from_bytes(&bytes, 8, 7), None, "another server's");
        assert_eq!(KeyCell::from_bytes(&[0; KEY_CELL_BYTES], 9, 7), None);
        for bit in 0..8 * KEY_CELL_BYTES {
            let mut torn = bytes;
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(KeyCell::from_bytes(&torn, 9, 7), None, "bit {bit}");
        }
    }
}

//! Byte-exact formats of everything that one side writes into registered memory and the other reads:
//! rows, blocks, version words, rings, frames, records. Pure: no I/O, no `unsafe`, no clock.
//!
//! Everything is little-endian. Memory that two sides share is read and written in 64-bit words (see
//! `mem`), so the unit here is the *line*: eight words, 64 bytes, one cache line. Narrower numbers are
//! packed into words, low half first. `docs/PROTOCOL.md` draws every format. A test compares its golden
//! bytes with the output of this module.

pub mod decoders;
pub mod dense;
pub mod directory;
pub mod encoding;
pub mod extent;
pub mod frame;
pub mod function;
pub mod hash;
pub mod lines;
pub mod reject;
pub mod reply;
pub mod ring;
pub mod row;
pub mod scan;
pub mod session;
pub mod settings;

#[cfg(target_endian = "big")]
compile_error!("Tidewater's shared-memory formats are little-endian; this host is big-endian");

/// Eight 64-bit words: one cache line.
pub type Line = [u64; 8];

/// Bytes of a [`Line`].
pub const LINE_BYTES: usize = 64;

/// Encodes a line in memory order. A counted loop: the speed of rows must not depend on whether
/// closures of another crate are inlined.
#[inline(always)]
pub fn line_bytes(line: &Line) -> [u8; LINE_BYTES] {
    let mut bytes = [0; LINE_BYTES];
    let (words, _) = bytes.as_chunks_mut::<8>();
    let mut n = 0;
    while let (Some(word), Some(bytes)) = (line.get(n), words.get_mut(n)) {
        *bytes = word.to_le_bytes();
        n += 1;
    }
    bytes
}

/// Decodes 64 bytes in memory order. A counted loop, as in [`line_bytes`].
#[inline(always)]
pub fn line_from_bytes(bytes: &[u8; LINE_BYTES]) -> Line {
    let (words, _) = bytes.as_chunks::<8>();
    let mut line = [0; LINE_BYTES / 8];
    let mut n = 0;
    while let Some(word) = words.get(n) {
        line[n] = u64::from_le_bytes(*word);
        n += 1;
    }
    line
}

/// Returns the little-endian word at `at`; bytes past the end read as zero.
#[inline]
pub fn word_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    let tail = bytes.get(at..).unwrap_or_default();
    let n = tail.len().min(8);
    word[..n].copy_from_slice(&tail[..n]);
    u64::from_le_bytes(word)
}

/// `low | high << 32`.
pub const fn pack(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Splits a word into its low and high half.
pub const fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

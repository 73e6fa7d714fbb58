//! Byte-exact formats of everything that one side writes into registered memory and the other reads:
//! rows, blocks, version words, rings, frames, records. Pure: no I/O, no `unsafe`, no clock.
//!
//! Everything is little-endian. Memory that two sides share is read and written in 64-bit words (see
//! `mem`), so the unit here is the *line*: eight words, 64 bytes, one cache line. Narrower numbers are
//! packed into words, low half first. `docs/PROTOCOL.md` draws every format. A test compares the golden
//! bytes of that document with the output of this module.

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

/// One cache line as eight 64-bit words: 64 bytes, the unit of shared memory.
pub type Line = [u64; 8];

/// Bytes of a [`Line`], that is of a cache line.
pub const LINE_BYTES: usize = 64;

/// Encodes a line as 64 bytes: the words in order, each little-endian. Written as a counted loop, not with
/// closures: the speed of row reads must not depend on inlining across crates.
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

/// Decodes 64 bytes into the eight words of a line, each little-endian: the inverse of [`line_bytes`]. Written as a
/// counted loop: the speed of row reads must not depend on inlining across crates.
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

/// Returns the little-endian 64-bit word at byte offset `at`. Bytes past the end of `bytes` read as zero.
#[inline]
pub fn word_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    let tail = bytes.get(at..).unwrap_or_default();
    let n = tail.len().min(8);
    word[..n].copy_from_slice(&tail[..n]);
    u64::from_le_bytes(word)
}

/// Packs two halves into a 64-bit word: `low | high << 32`.
pub const fn pack(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Splits a 64-bit word into its low and high half, in this order: the inverse of [`pack`].
pub const fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

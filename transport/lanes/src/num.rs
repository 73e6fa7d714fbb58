//! Conversions of counts, lengths and offsets that cannot lose bits.

const _: () = assert!(
    usize::BITS == 64,
    "sizes of tables are computed in 64 bits: 32-bit targets are not supported"
);

/// Converts a count or a byte offset from `u64` to `usize` without loss. This crate compiles for 64-bit
/// targets only.
#[inline]
#[allow(
    clippy::cast_possible_truncation,
    reason = "usize has 64 bits: asserted above"
)]
pub const fn size(n: u64) -> usize {
    n as usize
}

/// Converts a count to `u32`. The caller has bounded it before, by an argument check or a limit of the
/// protocol.
///
/// # Panics
/// When the count needs more than 32 bits.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "asserted")]
pub const fn count(n: usize) -> u32 {
    assert!(n <= u32::MAX as usize, "a count past 2^32");
    n as u32
}

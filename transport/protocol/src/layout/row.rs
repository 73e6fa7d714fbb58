//! Sparse rows, and rows of dense tables with layout `rows`: a header that proves the payload.
//!
//! ```text
//! +0   u64 ver   [63:48] slot generation, [47:0] update counter (starts at 1; 0 is never valid)
//! +8   u64 chk   H64 seeded with (table salt, key, ver, payload bytes) over the payload
//! +16  payload   dim elements
//! ```
//! The stride is a multiple of 32 and the base of a slab a multiple of 64, so the payload is
//! 16-byte aligned. The key is in the hash: the row of another key in a reused slot is refused.

use super::hash::H64;
use super::word_at;
use crate::mutants::{self, Mutant};

/// Bytes of the header.
pub const ROW_HEADER_BYTES: usize = 16;
/// Bits of the update counter.
pub const COUNTER_BITS: u32 = 48;
const COUNTER_MASK: u64 = (1 << COUNTER_BITS) - 1;

/// A row's version word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowVersion(pub u64);

impl RowVersion {
    /// Of a generation and an update counter (48 bits are kept).
    pub const fn new(generation: u16, counter: u64) -> Self {
        Self((generation as u64) << COUNTER_BITS | (counter & COUNTER_MASK))
    }

    /// Of the header of a row that was read.
    #[inline]
    pub fn of_head(head: &[u8; ROW_HEADER_BYTES]) -> Self {
        Self(word_at(head, 0))
    }

    /// How often the slot was given to another key.
    pub const fn generation(self) -> u16 {
        (self.0 >> COUNTER_BITS) as u16
    }

    /// Updates of the slot since it was made; never reset.
    pub const fn counter(self) -> u64 {
        self.0 & COUNTER_MASK
    }

    /// Counter 0 marks a slot that holds no row.
    pub const fn is_valid(self) -> bool {
        self.counter() != 0
    }

    /// After one more update; the counter skips 0 when it wraps (after 2^48 updates).
    #[must_use]
    pub const fn next(self) -> Self {
        let counter = (self.counter() + 1) & COUNTER_MASK;
        Self::new(self.generation(), if counter == 0 { 1 } else { counter })
    }

    /// The slot given to another key: the counter goes on, so that an old (ver, chk) never returns.
    #[must_use]
    pub const fn next_generation(self) -> Self {
        Self::new(self.generation().wrapping_add(1), self.counter()).next()
    }
}

/// Sizes of a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLayout {
    /// Payload bytes: dim x element size.
    pub payload_bytes: usize,
    /// Distance between rows: a multiple of 32.
    pub stride: usize,
}

impl RowLayout {
    /// Of a payload size.
    pub const fn new(payload_bytes: usize) -> Self {
        Self {
            payload_bytes,
            stride: (ROW_HEADER_BYTES + payload_bytes).next_multiple_of(32),
        }
    }

    /// Bytes a reader asks for: header and payload, not the padding.
    pub const fn read_bytes(&self) -> usize {
        ROW_HEADER_BYTES + self.payload_bytes
    }
}

/// The hash of a row, before its payload.
#[inline(always)]
pub fn row_hasher(salt: u64, key: u64, ver: RowVersion, payload_bytes: usize) -> H64 {
    H64::new([salt, key, ver.0, payload_bytes as u64])
}

/// The check word of a row.
#[inline]
pub fn row_chk(salt: u64, key: u64, ver: RowVersion, payload: &[u8]) -> u64 {
    row_hasher(salt, key, ver, payload.len()).finish_bytes(payload)
}

/// The version of a row that was read remotely, if header and payload prove each other: the row of
/// `key` in the table of `salt`, whole. Acceptance depends on the bytes received and on nothing
/// else. Cost: one hash of the payload.
#[inline]
pub fn verify_row(
    salt: u64,
    key: u64,
    head: &[u8; ROW_HEADER_BYTES],
    payload: &[u8],
) -> Option<RowVersion> {
    let ver = RowVersion::of_head(head);
    let proven = is_proven(ver, word_at(head, 8), || row_chk(salt, key, ver, payload));
    proven.then_some(ver)
}

/// What a copy of a row says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCopy {
    /// The version in its header.
    pub ver: RowVersion,
    /// Whether header and payload prove each other, as [`verify_row`] has it.
    pub proven: bool,
}

/// Copies the payload of a row that was read remotely into `out`, hashing what it copies: in one pass
/// what [`verify_row`] and a copy do. A payload of another length than `out` proves nothing, and is not
/// copied.
#[inline]
pub fn copy_verifying(
    salt: u64,
    key: u64,
    head: &[u8; ROW_HEADER_BYTES],
    payload: &[u8],
    out: &mut [u8],
) -> RowCopy {
    let ver = RowVersion::of_head(head);
    if payload.len() != out.len() {
        let proven = false;
        return RowCopy { ver, proven };
    }
    let chk = row_hasher(salt, key, ver, out.len()).finish_copying(payload, out);
    let proven = is_proven(ver, word_at(head, 8), || chk);
    RowCopy { ver, proven }
}

/// Whether the check word `told` of a row's header equals the one that `chk` computes, and the version is valid:
/// the one place that decides it, for copies made before they are hashed and while.
#[inline(always)]
pub fn is_proven(ver: RowVersion, told: u64, chk: impl FnOnce() -> u64) -> bool {
    if !ver.is_valid() {
        return false;
    }
    if mutants::on(Mutant::AcceptWithoutHash) {
        return true;
    }
    chk() == told
}

/// The header of a row, in memory order.
pub fn row_head(ver: RowVersion, chk: u64) -> [u8; ROW_HEADER_BYTES] {
    let mut head = [0; ROW_HEADER_BYTES];
    head[..8].copy_from_slice(&ver.0.to_le_bytes());
    head[8..].copy_from_slice(&chk.to_le_bytes());
    head
}

/// Where a sparse row is: `gen16 | extent16 | slot32`. Never 0: extents are numbered from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RowLocation(pub u64);

impl RowLocation {
    /// Nowhere.
    pub const NONE: Self = Self(0);

    /// Of its parts; `extent` is at least 1.
    pub const fn new(generation: u16, extent: u16, slot: u32) -> Self {
        Self((generation as u64) << 48 | (extent as u64) << 32 | slot as u64)
    }

    /// The slot's generation when the location was told.
    pub const fn generation(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Number in the table's extent list, from 1.
    pub const fn extent(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Row inside the extent.
    pub const fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Whether it names a row at all.
    pub const fn is_some(self) -> bool {
        self.extent() != 0
    }
}

const _: () = assert!(RowLayout::new(32).stride == 64);
const _: () = assert!(RowLayout::new(64).stride == 96);
const _: () = assert!(RowLayout::new(128).stride == 160);
const _: () = assert!(RowLayout::new(256).stride == 288);
const _: () = assert!(RowLayout::new(4).stride == 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_never_become_invalid() {
        let last = RowVersion::new(3, COUNTER_MASK);
        assert_eq!(last.next(), RowVersion::new(3, 1));
        assert_eq!(
            RowVersion::new(u16::MAX, 7).next_generation(),
            RowVersion::new(0, 8)
        );
    }

    #[test]
    fn a_row_of_another_key_version_length_or_table_is_refused() {
        let row = [1u8; 20];
        let ver = RowVersion::new(1, 9);
        let chk = row_chk(1, 2, ver, &row);
        assert_ne!(chk, row_chk(2, 2, ver, &row));
        assert_ne!(chk, row_chk(1, 3, ver, &row));
        assert_ne!(chk, row_chk(1, 2, ver.next(), &row));
        assert_ne!(chk, row_chk(1, 2, ver, &row[..19]));
    }

    /// Catches `TIDEWATER_MUTANT=accept-without-hash` and `TIDEWATER_MUTANT=hash-last-line-only`.
    #[test]
    fn a_row_proves_itself_or_is_refused() {
        let ver = RowVersion::new(1, 9);
        // Three cache lines and a part of one: a change of any byte of any of them is noticed.
        let row = [7u8; 200];
        let head = row_head(ver, row_chk(1, 2, ver, &row));
        assert_eq!(verify_row(1, 2, &head, &row), Some(ver));
        assert_eq!(verify_row(2, 2, &head, &row), None);
        assert_eq!(verify_row(1, 3, &head, &row), None);
        assert_eq!(verify_row(1, 2, &head, &row[..199]), None);
        for byte in 0..row.len() {
            let mut torn = row;
            torn[byte] ^= 1;
            assert_eq!(verify_row(1, 2, &head, &torn), None);
            let mut out = [0; 200];
            assert!(!copy_verifying(1, 2, &head, &torn, &mut out).proven);
        }
        let mut out = [0; 200];
        let copy = copy_verifying(1, 2, &head, &row, &mut out);
        assert_eq!((copy.ver, copy.proven, out), (ver, true, row));
        assert!(!copy_verifying(2, 2, &head, &row, &mut out).proven);
        assert!(!copy_verifying(1, 3, &head, &row, &mut out).proven);
        assert!(!copy_verifying(1, 2, &head, &row, &mut out[1..]).proven);
        assert!(!copy_verifying(1, 2, &head, &row[1..], &mut out[1..]).proven);
        let never = RowVersion::new(1, 0);
        let head = row_head(never, row_chk(1, 2, never, &row));
        assert_eq!(verify_row(1, 2, &head, &row), None);
    }

    #[test]
    fn locations_keep_their_parts() {
        let loc = RowLocation::new(65_535, 1, u32::MAX);
        assert_eq!(
            (loc.generation(), loc.extent(), loc.slot()),
            (65_535, 1, u32::MAX)
        );
        assert!(loc.is_some() && !RowLocation::NONE.is_some());
    }
}

//! Sparse rows, and rows of dense tables with layout `rows`: a header that validates the payload.
//!
//! ```text
//! +0   u64 ver   [63:48] slot generation, [47:0] update counter (starts at 1; 0 is never valid)
//! +8   u64 checksum H64 seeded with (table salt, key, ver, payload bytes) over the payload
//! +16  payload   dim elements
//! ```
//! The stride is a multiple of 8 and the base of a slab a multiple of 64, so every word of a row is
//! aligned. A row may begin at any word of a cache line. The checksum covers the key: the row of another
//! key in a reused slot is refused.

use super::hash::H64;
use super::word_at;
use crate::mutants::{self, Mutant};

/// Bytes of a row's header: version word and checksum.
pub const ROW_HEADER_BYTES: usize = 16;
/// Bits of the update counter in a row's version word; the upper 16 are the slot's generation.
pub const COUNTER_BITS: u32 = 48;
const COUNTER_MASK: u64 = (1 << COUNTER_BITS) - 1;

/// Version word of a row: generation of the slot (upper 16 bits) and update counter (lower 48 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowVersion(pub u64);

impl RowVersion {
    /// Packs a slot's generation and an update counter, of which the lower 48 bits are kept.
    pub const fn new(generation: u16, counter: u64) -> Self {
        Self((generation as u64) << COUNTER_BITS | (counter & COUNTER_MASK))
    }

    /// Reads the version word from a row's header, without a check of the checksum.
    #[inline]
    pub fn of_head(head: &[u8; ROW_HEADER_BYTES]) -> Self {
        Self(word_at(head, 0))
    }

    /// Number of times that a row of the slot was deleted, modulo 2^16.
    pub const fn generation(self) -> u16 {
        (self.0 >> COUNTER_BITS) as u16
    }

    /// Number of changes since the slot was created: creations, updates and deletions of rows. Continues when the slot
    /// gets another key, and after 2^48 - 1 with 1.
    pub const fn counter(self) -> u64 {
        self.0 & COUNTER_MASK
    }

    /// Whether the slot has held a row: the counter is not 0. The version of a deleted row is valid too, but its
    /// checksum does not match.
    pub const fn is_valid(self) -> bool {
        self.counter() != 0
    }

    /// Returns the version after one more update: the same generation, and a counter of one more. The counter
    /// skips 0 when it wraps (after 2^48 updates).
    #[must_use]
    pub const fn next(self) -> Self {
        let counter = (self.counter() + 1) & COUNTER_MASK;
        Self::new(self.generation(), if counter == 0 { 1 } else { counter })
    }

    /// Returns the version after the slot's row was deleted: the next generation, and a counter of one more, so that an
    /// old pair of version and checksum never returns.
    #[must_use]
    pub const fn next_generation(self) -> Self {
        Self::new(self.generation().wrapping_add(1), self.counter()).next()
    }
}

/// Bytes of the payload of a table's rows, and the stride from one row to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLayout {
    /// Payload bytes: dim x element size.
    pub payload_bytes: usize,
    /// Bytes between the starts of two rows: a multiple of 8.
    pub stride: usize,
}

impl RowLayout {
    /// Computes the layout of rows with `payload_bytes` payload bytes each. The stride is header and payload, rounded
    /// up to a multiple of 8.
    pub const fn new(payload_bytes: usize) -> Self {
        Self {
            payload_bytes,
            stride: (ROW_HEADER_BYTES + payload_bytes).next_multiple_of(8),
        }
    }

    /// Returns the bytes that a read of one row takes: header and payload, without the padding.
    pub const fn read_bytes(&self) -> usize {
        ROW_HEADER_BYTES + self.payload_bytes
    }
}

/// Returns the hash state of a row before its payload, seeded with the table's salt, the key, the version and the
/// payload's length. The caller absorbs the payload and finishes the hash, which is then the row's checksum.
#[inline(always)]
pub fn row_hasher(salt: u64, key: u64, ver: RowVersion, payload_bytes: usize) -> H64 {
    H64::new([salt, key, ver.0, payload_bytes as u64])
}

/// Returns the keyed checksum of a row: over salt, key, version and payload.
#[inline]
pub fn row_checksum(salt: u64, key: u64, ver: RowVersion, payload: &[u8]) -> u64 {
    row_hasher(salt, key, ver, payload.len()).finish_bytes(payload)
}

/// Checks the checksum of a row that a client read, and returns the row's version. `None`: the bytes are torn,
/// or are not the row of `key` in the table of `salt`. Acceptance depends on the bytes received and on nothing
/// else. Cost: one hash of the payload.
#[inline]
pub fn verify_row(
    salt: u64,
    key: u64,
    head: &[u8; ROW_HEADER_BYTES],
    payload: &[u8],
) -> Option<RowVersion> {
    let ver = RowVersion::of_head(head);
    let validated = checksum_matches(ver, word_at(head, 8), || {
        row_checksum(salt, key, ver, payload)
    });
    validated.then_some(ver)
}

/// Result of [`copy_verifying`]: the row's version, and whether the row was validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCopy {
    /// Version word in the row's header.
    pub ver: RowVersion,
    /// Whether the version is valid and the checksum matches.
    pub validated: bool,
}

/// Copies the payload of a row that a client read into `out` and verifies the row's checksum in the same pass. Accepts
/// the rows that [`verify_row`] accepts. If the row is not validated, `out` holds invalid bytes. A payload of another
/// length than `out` is neither copied nor validated.
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
        let validated = false;
        return RowCopy { ver, validated };
    }
    let checksum = row_hasher(salt, key, ver, out.len()).finish_copying(payload, out);
    let validated = checksum_matches(ver, word_at(head, 8), || checksum);
    RowCopy { ver, validated }
}

/// Whether `ver` is valid and the checksum `stored` in the row's header equals the result of `checksum`, which is
/// not called for an invalid version. All validation of rows ends here.
#[inline(always)]
pub fn checksum_matches(ver: RowVersion, stored: u64, checksum: impl FnOnce() -> u64) -> bool {
    if !ver.is_valid() {
        return false;
    }
    if mutants::on(Mutant::AcceptWithoutHash) {
        return true;
    }
    checksum() == stored
}

/// Encodes the header of a row, version word and checksum, as 16 little-endian bytes. The caller has computed the
/// checksum (`row_checksum`).
pub fn row_head(ver: RowVersion, checksum: u64) -> [u8; ROW_HEADER_BYTES] {
    let mut head = [0; ROW_HEADER_BYTES];
    head[..8].copy_from_slice(&ver.0.to_le_bytes());
    head[8..].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// Location of a sparse row on its applier: `generation u16 | extent u16 | slot u32` in 64 bits. 0 stands for no row:
/// extents are numbered from 1. It is a hint: the row's checksum shows whether the slot still holds the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RowLocation(pub u64);

impl RowLocation {
    /// Location 0, which names no row.
    pub const NONE: Self = Self(0);

    /// Packs the slot's generation, the extent's number and the slot into a 64-bit location. `extent` must be
    /// at least 1.
    pub const fn new(generation: u16, extent: u16, slot: u32) -> Self {
        Self((generation as u64) << 48 | (extent as u64) << 32 | slot as u64)
    }

    /// Generation that the slot had when the server issued the location.
    pub const fn generation(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Number of the extent in the table's extent list, from 1; 0 for no row.
    pub const fn extent(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Number of the slot inside the extent, from 0.
    pub const fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Whether the location names a row, that is, its extent is not 0.
    pub const fn is_some(self) -> bool {
        self.extent() != 0
    }
}

const _: () = assert!(RowLayout::new(32).stride == 48);
const _: () = assert!(RowLayout::new(64).stride == 80);
const _: () = assert!(RowLayout::new(128).stride == 144);
const _: () = assert!(RowLayout::new(256).stride == 272);
const _: () = assert!(RowLayout::new(4).stride == 24);

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
        let checksum = row_checksum(1, 2, ver, &row);
        assert_ne!(checksum, row_checksum(2, 2, ver, &row));
        assert_ne!(checksum, row_checksum(1, 3, ver, &row));
        assert_ne!(checksum, row_checksum(1, 2, ver.next(), &row));
        assert_ne!(checksum, row_checksum(1, 2, ver, &row[..19]));
    }

    /// Catches `TIDEWATER_MUTANT=accept-without-hash` and `TIDEWATER_MUTANT=hash-last-line-only`.
    #[test]
    fn a_row_proves_itself_or_is_refused() {
        let ver = RowVersion::new(1, 9);
        // Three cache lines and a part of one: a change of any byte of any of them is detected.
        let row = [7u8; 200];
        let head = row_head(ver, row_checksum(1, 2, ver, &row));
        assert_eq!(verify_row(1, 2, &head, &row), Some(ver));
        assert_eq!(verify_row(2, 2, &head, &row), None);
        assert_eq!(verify_row(1, 3, &head, &row), None);
        assert_eq!(verify_row(1, 2, &head, &row[..199]), None);
        for byte in 0..row.len() {
            let mut torn = row;
            torn[byte] ^= 1;
            assert_eq!(verify_row(1, 2, &head, &torn), None);
            let mut out = [0; 200];
            assert!(!copy_verifying(1, 2, &head, &torn, &mut out).validated);
        }
        let mut out = [0; 200];
        let copy = copy_verifying(1, 2, &head, &row, &mut out);
        assert_eq!((copy.ver, copy.validated, out), (ver, true, row));
        assert!(!copy_verifying(2, 2, &head, &row, &mut out).validated);
        assert!(!copy_verifying(1, 3, &head, &row, &mut out).validated);
        assert!(!copy_verifying(1, 2, &head, &row, &mut out[1..]).validated);
        assert!(!copy_verifying(1, 2, &head, &row[1..], &mut out[1..]).validated);
        let never = RowVersion::new(1, 0);
        let head = row_head(never, row_checksum(1, 2, never, &row));
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

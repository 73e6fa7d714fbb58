//! Rows of mapped memory, copied and hashed in one pass.

use super::Words;
use tidewater_protocol::layout::row::{
    ROW_HEADER_BYTES, RowCopy, RowVersion, checksum_matches, row_hasher,
};

/// Copies a row's payload from shared memory to `out` and validates its checksum in one pass. `row`
/// begins with the row's header; `salt` is the table's, `key` the row's. A concurrent writer may change
/// the words: the checksum covers exactly the bytes copied, so a torn copy is not validated. `out` is
/// filled in either case.
///
/// # Panics
/// When `row` is shorter than a header and `out`.
#[inline]
pub fn copy_row(row: Words<'_>, salt: u64, key: u64, out: &mut [u8]) -> RowCopy {
    let (ver, stored) = (RowVersion(row.load(0)), row.load(8));
    let hash = row_hasher(salt, key, ver, out.len());
    let checksum = row.copy_out_hashing(ROW_HEADER_BYTES, out, hash);
    let validated = checksum_matches(ver, stored, || checksum);
    RowCopy { ver, validated }
}

/// Copies a row's payload from shared memory to `out` without a check of the checksum, so it may be torn.
/// Returns the version that the header held before the copy.
///
/// # Panics
/// When `row` is shorter than a header and `out`.
#[inline]
pub fn copy_row_unvalidated(row: Words<'_>, out: &mut [u8]) -> RowVersion {
    let ver = RowVersion(row.load(0));
    row.copy_out(ROW_HEADER_BYTES, out);
    ver
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mem::Region;
    use tidewater_protocol::layout::row::{row_checksum, row_head, verify_row};

    proptest! {
        /// Copying and hashing in one pass accepts the same rows as a copy followed by a hash, and copies
        /// the same bytes.
        #[test]
        fn one_pass_agrees_with_two(
            payload in proptest::collection::vec(any::<u8>(), 1..300),
            counter in 0u64..3,
            flipped in proptest::option::of((0usize..316, 0u8..8)),
        ) {
            let ver = RowVersion::new(1, counter);
            let mut bytes = row_head(ver, row_checksum(5, 6, ver, &payload)).to_vec();
            bytes.extend_from_slice(&payload);
            if let Some((at, bit)) = flipped {
                let at = at % bytes.len();
                bytes[at] ^= 1 << bit;
            }
            let region = Region::anonymous(4096).unwrap();
            region.words_mut(0, bytes.len()).unwrap().copy_in(0, &bytes);
            let row = region.words(0, bytes.len()).unwrap();
            let mut out = vec![0; payload.len()];
            let copy = copy_row(row, 5, 6, &mut out);
            prop_assert_eq!(&out, &bytes[ROW_HEADER_BYTES..]);
            let head = bytes.first_chunk().unwrap();
            let verified = verify_row(5, 6, head, &out);
            prop_assert_eq!(copy.validated.then_some(copy.ver), verified);
            prop_assert!(flipped.is_none() || !copy.validated);
            out.fill(0);
            prop_assert_eq!(copy_row_unvalidated(row, &mut out), copy.ver);
            prop_assert_eq!(&out, &bytes[ROW_HEADER_BYTES..]);
        }
    }
}

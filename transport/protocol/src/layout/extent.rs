//! The extent table of a sparse table: an append-only array in public memory, one line per extent.
//!
//! `base u64 | key u32, slots u32 | len u64 | salt u64 | checksum u64 | 0 ...`

use super::hash::line_checksum;
use super::{Line, pack, unpack};
use crate::ids::RegionKey;

const EXTENT: u64 = u64::from_le_bytes(*b"extent-e");

/// Entry of a sparse table's extent list: where an extent, one slab of rows that never moves, lies in
/// registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentEntry {
    /// Address of the extent's first row, in the address space of `key`.
    pub base: u64,
    /// Key of the region that holds the extent.
    pub key: RegionKey,
    /// Number of slots for rows in the extent.
    pub slots: u32,
    /// Length of the extent in bytes.
    pub len: u64,
    /// Salt of the checksums of the extent's rows. Changes each time the extent is given to a table.
    pub salt: u64,
}

impl ExtentEntry {
    /// Encodes the entry as a line with its checksum. `table_salt` and `number`, the extent's number in the
    /// table's list, are part of the checksum.
    pub fn to_line(&self, table_salt: u64, number: u16) -> Line {
        let w = [self.base, pack(self.key.0, self.slots), self.len, self.salt];
        let checksum = line_checksum(table_salt, EXTENT ^ u64::from(number), &w);
        [w[0], w[1], w[2], w[3], checksum, 0, 0, 0]
    }

    /// Decodes a line that a client read; `None` if the checksum does not match: torn, stale, or of another
    /// table or number.
    pub fn from_line(line: &Line, table_salt: u64, number: u16) -> Option<Self> {
        let (key, slots) = unpack(line[1]);
        let entry = Self {
            base: line[0],
            key: RegionKey(key),
            slots,
            len: line[2],
            salt: line[3],
        };
        (entry.to_line(table_salt, number) == *line).then_some(entry)
    }
}

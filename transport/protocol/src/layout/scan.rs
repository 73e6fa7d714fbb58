//! Payload of SCAN frames and of their replies: the stored keys of a sparse table.
//!
//! ```text
//! frame   u64 first slot | u64 1: with values, 0: without
//! reply   u64 next slot, all ones at the end | u64 keys that the applier stores
//!         keys (u64), then their values if requested
//! ```
//! The header's `count` is the number of slots to cover, at most `FRAME_ROWS_MAX`; its `partition` is the
//! one to list. With partition [`PARTITION_ANY`](super::frame::PARTITION_ANY) and count 0 the reply has no
//! keys. A row keeps its slot until it is deleted, so slots number the rows for calls of several frames.

/// Bytes of a SCAN frame's payload, and of its reply before the keys.
pub const SCAN_BYTES: usize = 16;
/// Value of a reply's next slot after the last slot of a partition.
pub const SCAN_END: u64 = u64::MAX;

/// Request of a SCAN frame: lists the keys that a sparse partition stores in a range of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanRequest {
    /// Number of the first slot of the partition to cover.
    pub first: u64,
    /// Whether the values of the rows follow the keys.
    pub values: bool,
}

impl ScanRequest {
    /// Encodes the request as the payload of a SCAN frame.
    pub fn encode(&self) -> [u8; SCAN_BYTES] {
        pair(self.first, self.values.into())
    }

    /// Decodes the payload of a SCAN frame; `None` for another length or an unknown flag.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let (first, values) = split(payload.try_into().ok()?);
        let values = match values {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Self { first, values })
    }
}

/// Decoded reply to a SCAN frame: the stored keys in the slots of the request, with their values if requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanReply<'a> {
    /// First slot of the next request; [`SCAN_END`] after the last slot of the partition.
    pub next: u64,
    /// Number of keys that the applier stores, in all of its partitions.
    pub stored: u64,
    /// Keys of the rows in the covered slots, little-endian, in the order of the slots.
    pub keys: &'a [[u8; 8]],
    /// Values of the rows in the table's element type, in the order of `keys`; empty if not requested.
    pub values: &'a [u8],
}

impl<'a> ScanReply<'a> {
    /// Encodes the part of a reply before its keys: the next slot to request, and the number of stored keys.
    pub fn head(next: u64, stored: u64) -> [u8; SCAN_BYTES] {
        pair(next, stored)
    }

    /// Decodes a reply with `row_bytes` bytes of values for each key (0 without values); `None` if its length
    /// does not fit.
    pub fn decode(reply: &'a [u8], row_bytes: usize) -> Option<Self> {
        let (head, rest) = reply.split_first_chunk::<SCAN_BYTES>()?;
        let each = row_bytes.checked_add(8)?;
        if !rest.len().is_multiple_of(each) {
            return None;
        }
        let (keys, values) = rest.split_at(rest.len() / each * 8);
        let (next, stored) = split(head);
        let (keys, _) = keys.as_chunks();
        Some(Self {
            next,
            stored,
            keys,
            values,
        })
    }
}

fn pair(a: u64, b: u64) -> [u8; SCAN_BYTES] {
    let mut bytes = [0; SCAN_BYTES];
    bytes[..8].copy_from_slice(&a.to_le_bytes());
    bytes[8..].copy_from_slice(&b.to_le_bytes());
    bytes
}

fn split(bytes: &[u8; SCAN_BYTES]) -> (u64, u64) {
    let ([a, b], _) = bytes.as_chunks::<8>() else {
        unreachable!("{SCAN_BYTES} bytes are two words");
    };
    (u64::from_le_bytes(*a), u64::from_le_bytes(*b))
}

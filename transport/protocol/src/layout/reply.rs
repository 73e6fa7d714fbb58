//! Replies: the answers that an applier writes into a slot of the client's mailbox.
//!
//! ```text
//! +0  u32 magic 'TWR1' | u16 kind | u16 status     +32 u64 first number of a refusal
//! +8  u64 user_tag                                 +40 u64 second number
//! +16 u32 payload_len | u32 count                  +48 0
//! +24 u32 slot | u32 table                         +56 u64 checksum
//! +64 payload
//! ```
//! The checksum covers slot and tag. A slow server's reply to an earlier request, in a slot that was
//! given away since, is therefore refused.

use super::hash::H64;
use super::lines::RejectCode;
use super::reject::RejectReason;
use super::{Line, pack, unpack};
use crate::mutants::{self, Mutant};

/// Magic number at the start of a reply, the bytes 'TWR1' in memory order.
pub const REPLY_MAGIC: u32 = u32::from_le_bytes(*b"TWR1");
/// Bytes of the header of a reply, before the payload: one line.
pub const REPLY_HEADER_BYTES: usize = 64;

/// Decoded 64-byte header of a reply, which an applier writes into a slot of the client's mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    /// Wire code of the kind of the frame that is answered.
    pub kind: u16,
    /// Reason of a refusal; `None` if the request is done.
    pub refused: Option<RejectReason>,
    /// Tag of the request that is answered.
    pub user_tag: u64,
    /// Payload bytes after the header.
    pub payload_len: u32,
    /// Number of rows, locations, elements or keys in the payload; 1 for another result.
    pub count: u32,
    /// Number of the mailbox slot that holds the reply.
    pub slot: u32,
    /// Table of the request.
    pub table: u32,
}

impl ReplyHeader {
    const fn words(&self) -> [u64; 7] {
        let (status, [a, b]) = match &self.refused {
            Some(reason) => (reason.code() as u64, reason.numbers()),
            None => (0, [0, 0]),
        };
        [
            REPLY_MAGIC as u64 | (self.kind as u64) << 32 | status << 48,
            self.user_tag,
            pack(self.payload_len, self.count),
            pack(self.slot, self.table),
            a,
            b,
            0,
        ]
    }

    /// Returns the hash state after the header. The caller absorbs the payload and finishes the hash, which is then the
    /// reply's checksum. `session` is the session's nonce, which seeds the hash.
    pub fn hasher(&self, session: u64) -> H64 {
        let mut w = self.words();
        if mutants::on(Mutant::ReplySlotOutsideHash) {
            w[1] = 0;
            w[3] = 0;
        }
        let mut h = H64::new([
            session,
            u64::from(REPLY_MAGIC),
            u64::from(self.payload_len),
            0,
        ]);
        h.block(&[w[0], w[1], w[2], w[3], w[4], w[5], w[6], 0]);
        h
    }

    /// Encodes the header as a line. `checksum` is the checksum over header and payload, which the caller computes
    /// with `Self::hasher`.
    pub const fn to_line(&self, checksum: u64) -> Line {
        let w = self.words();
        [w[0], w[1], w[2], w[3], w[4], w[5], w[6], checksum]
    }

    /// Decodes a line into a header and the checksum that header and payload must match. The checksum is not
    /// verified here. `None` for a wrong magic, an unknown status, or numbers that the status cannot have.
    pub fn from_line(line: &Line) -> Option<(Self, u64)> {
        let (magic, rest) = unpack(line[0]);
        if magic != REPLY_MAGIC || line[6] != 0 {
            return None;
        }
        let status = rest >> 16;
        let numbers = [line[4], line[5]];
        let refused = match RejectCode::from_code(status) {
            Some(code) => Some(RejectReason::from_numbers(code, numbers)?),
            None if status == 0 && numbers == [0, 0] => None,
            None => return None,
        };
        let (payload_len, count) = unpack(line[2]);
        let (slot, table) = unpack(line[3]);
        let header = Self {
            kind: rest as u16,
            refused,
            user_tag: line[1],
            payload_len,
            count,
            slot,
            table,
        };
        Some((header, line[7]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_another_slot_tag_or_session_is_refused() {
        let header = ReplyHeader {
            kind: 3,
            refused: None,
            user_tag: 77,
            payload_len: 8,
            count: 1,
            slot: 2,
            table: 1,
        };
        let payload = [5u8; 8];
        let checksum = header.hasher(11).finish_bytes(&payload);
        let (back, stored) = ReplyHeader::from_line(&header.to_line(checksum)).unwrap();
        assert_eq!((back, stored), (header, checksum));
        for other in [
            ReplyHeader {
                user_tag: 78,
                ..header
            },
            ReplyHeader { slot: 3, ..header },
            ReplyHeader {
                refused: Some(RejectReason::NotFinite { row: 0, key: 0 }),
                ..header
            },
        ] {
            assert_ne!(other.hasher(11).finish_bytes(&payload), checksum);
        }
        assert_ne!(header.hasher(12).finish_bytes(&payload), checksum);
    }
}

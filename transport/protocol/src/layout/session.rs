//! Memory layout of a session's lanes.
//!
//! Inbox of one lane (client-written, server-read):
//! ```text
//! +0    tail record: CheckedU64 of the monotonic tail, salted with the nonce
//! +64   parked flag of the client's thread (shared memory only): 1 while it sleeps or is about to
//! +4096 ring data
//! ```
//! Mailbox of one lane (server-written, client-read):
//! ```text
//! +0    status record (mirror of the one in META)
//! +64   clock records, one a domain
//! +8128 closed word (shared memory only): 1 once the server has destroyed the lane
//! +8192 reject records
//! then  reply slots
//! ```

use super::LINE_BYTES;
use crate::limits::{BLOCK_BYTES_MAX, DOMAINS_MAX, FRAMES_IN_FLIGHT_MAX, ROW_BYTES_MAX};

/// Offset of the tail record in the inbox.
pub const INBOX_TAIL_AT: usize = 0;
/// Offset of the client's parked flag in the inbox.
pub const INBOX_DOZE_AT: usize = 64;
/// Offset of the ring data in the inbox.
pub const INBOX_RING_AT: usize = 4096;

/// Offset of an applier's liveness word from its parked flag in public memory, on the same line.
pub const ALIVE_AFTER_DOZE: usize = 8;

/// Returns the bytes of a lane's inbox.
pub const fn inbox_bytes(ring_bytes: usize) -> usize {
    INBOX_RING_AT + ring_bytes
}

/// Offset of the status record in the mailbox.
pub const MAILBOX_STATE_AT: usize = 0;
/// Offset of the clock records in the mailbox.
pub const MAILBOX_CLOCKS_AT: usize = 64;
/// Offset of the closed word in the mailbox.
pub const MAILBOX_CLOSED_AT: usize = MAILBOX_REJECTS_AT - LINE_BYTES;
/// Offset of the reject records in the mailbox.
pub const MAILBOX_REJECTS_AT: usize = 8192;
/// Offset of the reply slots in the mailbox.
pub const MAILBOX_REPLIES_AT: usize =
    MAILBOX_REJECTS_AT + FRAMES_IN_FLIGHT_MAX as usize * LINE_BYTES;
/// Reply slots of a lane: the requests that wait for an answer at once.
pub const REPLY_SLOTS: usize = 8;
/// Bytes of a reply slot, header included. The largest block and the widest row fit in one reply, so
/// that gathered data is never of two versions.
pub const REPLY_SLOT_BYTES: usize = (256 << 10) + 4096;

/// Bytes of a lane's mailbox.
pub const MAILBOX_BYTES: usize = MAILBOX_REPLIES_AT + REPLY_SLOTS * REPLY_SLOT_BYTES;

/// Bytes of a word of an applier's ticket line. Processors count in its first word, NICs in its second:
/// their atomics are atomic among themselves only.
pub const TICKET_WORD_BYTES: u64 = 8;
/// Bytes in use of a ticket line: both words.
pub const TICKET_BYTES: usize = 2 * TICKET_WORD_BYTES as usize;

/// Returns the offset of a domain's clock record in the mailbox.
pub const fn mailbox_clock_at(domain: u8) -> usize {
    MAILBOX_CLOCKS_AT + domain as usize * LINE_BYTES
}

/// Returns the offset of a frame's reject record in the mailbox.
pub const fn mailbox_reject_at(seq: u64) -> usize {
    MAILBOX_REJECTS_AT + (seq % FRAMES_IN_FLIGHT_MAX) as usize * LINE_BYTES
}

/// Returns the offset of a reply slot in the mailbox.
pub const fn mailbox_reply_at(slot: usize) -> usize {
    MAILBOX_REPLIES_AT + slot * REPLY_SLOT_BYTES
}

const _: () = assert!(MAILBOX_CLOCKS_AT + DOMAINS_MAX * LINE_BYTES <= MAILBOX_CLOSED_AT);
const _: () = assert!(INBOX_RING_AT.is_multiple_of(LINE_BYTES));
const _: () = assert!(MAILBOX_REPLIES_AT.is_multiple_of(LINE_BYTES));
const _: () = assert!(ROW_BYTES_MAX + 64 <= REPLY_SLOT_BYTES);
const _: () = assert!(BLOCK_BYTES_MAX as usize + 64 <= REPLY_SLOT_BYTES);

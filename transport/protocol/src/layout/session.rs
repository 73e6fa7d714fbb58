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
use crate::limits::{
    BLOCK_BYTES_MAX, DOMAINS_MAX, FRAMES_IN_FLIGHT_MAX, RING_BYTES_DEFAULT, RING_BYTES_MIN,
    ROW_BYTES_MAX,
};

/// Byte offset in the inbox of a lane of the tail record, by which the client announces the end of its frames.
pub const INBOX_TAIL_AT: usize = 0;
/// Byte offset in the inbox of a lane of the parked flag. The flag is 1 while the client's thread sleeps or is about to:
/// then the server wakes the thread. Shared memory only.
pub const INBOX_DOZE_AT: usize = 64;
/// Byte offset of the ring's data in the inbox of a lane.
pub const INBOX_RING_AT: usize = 4096;

/// Bytes from an applier's parked flag to its liveness word, both in the server's public memory and on one cache line.
/// The liveness word shows whether the applier's thread has ended.
pub const ALIVE_AFTER_DOZE: usize = 8;

/// Returns the bytes of a lane's inbox with a ring of `ring_bytes` data bytes.
pub const fn inbox_bytes(ring_bytes: usize) -> usize {
    INBOX_RING_AT + ring_bytes
}

/// Byte offset in the mailbox of a lane of the status record: how far the server has applied the lane's frames.
pub const MAILBOX_STATE_AT: usize = 0;
/// Byte offset of the clock records, one a domain, in the mailbox of a lane.
pub const MAILBOX_CLOCKS_AT: usize = 64;
/// Byte offset in the mailbox of a lane of the closed word, which the server sets to 1 once it has destroyed the lane.
/// Shared memory only.
pub const MAILBOX_CLOSED_AT: usize = MAILBOX_REJECTS_AT - LINE_BYTES;
/// Byte offset in the mailbox of a lane of the reject records, one for each frame that may be in flight.
pub const MAILBOX_REJECTS_AT: usize = 8192;
/// Byte offset in the mailbox of a lane of the reply slots, into which the server writes answers to requests.
pub const MAILBOX_REPLIES_AT: usize =
    MAILBOX_REJECTS_AT + FRAMES_IN_FLIGHT_MAX as usize * LINE_BYTES;
/// Number of reply slots of a lane: the maximum of its requests that wait for an answer at once.
pub const REPLY_SLOTS: usize = 8;
/// Bytes of the largest reply slot, header included: that of a ring of default size. The largest block and
/// the widest row fit in one reply, so that gathered data is never of two versions.
pub const REPLY_SLOT_BYTES: usize = reply_slot_bytes(RING_BYTES_DEFAULT);

/// Bytes of the largest mailbox: that of a lane with a ring of default size.
pub const MAILBOX_BYTES: usize = mailbox_bytes(RING_BYTES_DEFAULT);

/// Returns the bytes of one reply slot, header included, of a lane with a ring of `ring_bytes` data bytes: 4 KiB more
/// than the ring's largest frame. The slots of rings over the default size are as large as those of the default.
pub const fn reply_slot_bytes(ring_bytes: usize) -> usize {
    let ring_bytes = match ring_bytes < RING_BYTES_DEFAULT {
        true => ring_bytes,
        false => RING_BYTES_DEFAULT,
    };
    ring_bytes / 4 + 4096
}

/// Returns the bytes of a lane's mailbox if its ring has `ring_bytes` data bytes.
pub const fn mailbox_bytes(ring_bytes: usize) -> usize {
    MAILBOX_REPLIES_AT + REPLY_SLOTS * reply_slot_bytes(ring_bytes)
}

/// Returns the bytes of memory that one lane takes on both ends together: inbox, mailbox, and the client's copy
/// of the ring. `ring_bytes` is the data bytes of the ring.
pub const fn lane_bytes(ring_bytes: usize) -> usize {
    inbox_bytes(ring_bytes) + mailbox_bytes(ring_bytes) + ring_bytes
}

/// Returns the data bytes of the largest ring with which `lanes` lanes take at most `budget` bytes: a power of
/// two, at most the default size. `None` if lanes with the smallest rings take more.
pub const fn ring_within(budget: usize, lanes: usize) -> Option<usize> {
    let mut ring_bytes = RING_BYTES_DEFAULT;
    while ring_bytes >= RING_BYTES_MIN {
        if let Some(bytes) = lanes.checked_mul(lane_bytes(ring_bytes))
            && bytes <= budget
        {
            return Some(ring_bytes);
        }
        ring_bytes /= 2;
    }
    None
}

/// Bytes of one word of an applier's ticket line: a cache line of counters, in which clients count their pushes with
/// atomics. Processors count in its first word, NICs in its second: the atomics of each are atomic among themselves
/// only.
pub const TICKET_WORD_BYTES: u64 = 8;
/// Bytes in use of an applier's ticket line, which counts pushes: the processors' word and the NICs' word.
pub const TICKET_BYTES: usize = 2 * TICKET_WORD_BYTES as usize;

/// Returns the byte offset in the mailbox of the clock record of clock domain `domain`, which is below `DOMAINS_MAX`.
pub const fn mailbox_clock_at(domain: u8) -> usize {
    MAILBOX_CLOCKS_AT + domain as usize * LINE_BYTES
}

/// Returns the byte offset in the mailbox of the reject record of the frame with sequence number `seq`. Frames that are
/// `FRAMES_IN_FLIGHT_MAX` apart share one.
pub const fn mailbox_reject_at(seq: u64) -> usize {
    MAILBOX_REJECTS_AT + (seq % FRAMES_IN_FLIGHT_MAX) as usize * LINE_BYTES
}

/// Returns the byte offset in the mailbox of reply slot `slot`, which is below `REPLY_SLOTS`, if the lane's ring has
/// `ring_bytes` data bytes.
pub const fn mailbox_reply_at(slot: usize, ring_bytes: usize) -> usize {
    MAILBOX_REPLIES_AT + slot * reply_slot_bytes(ring_bytes)
}

const _: () = assert!(MAILBOX_CLOCKS_AT + DOMAINS_MAX * LINE_BYTES <= MAILBOX_CLOSED_AT);
const _: () = assert!(INBOX_RING_AT.is_multiple_of(LINE_BYTES));
const _: () = assert!(MAILBOX_REPLIES_AT.is_multiple_of(LINE_BYTES));
const _: () = assert!(ROW_BYTES_MAX + 64 <= REPLY_SLOT_BYTES);
const _: () = assert!(BLOCK_BYTES_MAX as usize + 64 <= REPLY_SLOT_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::RING_BYTES_MAX;

    /// 128 workers of a node with 64 lanes each take less than 2 GiB with a budget of 16 MiB a worker, and 33
    /// GiB without.
    #[test]
    fn lanes_of_a_node_fit_their_budget() {
        let ring_bytes = ring_within(16 << 20, 64).unwrap();
        assert_eq!(ring_bytes, 32 << 10);
        assert_eq!(lane_bytes(ring_bytes), (36 + 32 + 72 + 8 * 12) << 10);
        assert!(128 * 64 * lane_bytes(ring_bytes) < 2 << 30);
        assert_eq!((128 * 64 * lane_bytes(RING_BYTES_DEFAULT)) >> 30, 32);
    }

    #[test]
    fn ring_is_the_largest_within_the_budget() {
        for lanes in [1, 3, 64, 4096] {
            for ring_bytes in (14..=20).map(|n| 1 << n) {
                let bytes = lanes * lane_bytes(ring_bytes);
                assert_eq!(ring_within(bytes, lanes), Some(ring_bytes));
                let smaller = (ring_bytes > RING_BYTES_MIN).then_some(ring_bytes / 2);
                assert_eq!(ring_within(bytes - 1, lanes), smaller);
            }
        }
        assert_eq!(ring_within(usize::MAX, 1), Some(RING_BYTES_DEFAULT));
        assert_eq!(ring_within(usize::MAX, usize::MAX), None);
        assert_eq!(mailbox_bytes(RING_BYTES_MAX), MAILBOX_BYTES);
        assert!((14..=24).all(|n| mailbox_bytes(1 << n).is_multiple_of(4096)));
    }
}

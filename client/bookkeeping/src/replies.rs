//! Reply slots of one lane: requests that wait for an answer in the mailbox.
//!
//! A tag names slot and request: the slot is its low byte, the rest counts. A reply is valid if its
//! checksum over slot, tag and payload matches. A slot is reused only in three cases: its reply has
//! arrived, the lane has been replaced, or the server has applied its request. A server posts a reply
//! before it reports the request as applied.

use tidewater_lanes::fabric::Mailbox;
use tidewater_protocol::ids::SessionId;
use tidewater_protocol::layout::reply::{REPLY_HEADER_BYTES, ReplyHeader};
use tidewater_protocol::layout::session::{REPLY_SLOTS, mailbox_reply_at, reply_slot_bytes};

/// One slot: the tag in use, and the sequence number of the request's frame.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    tag: u64,
    seq: u64,
    abandoned: bool,
}

/// All reply slots of one lane.
#[derive(Debug)]
pub struct Replies {
    slots: [Slot; REPLY_SLOTS],
    next: u64,
    replaced: u64,
    /// Bytes of the lane's ring, by which its mailbox is laid out.
    ring_bytes: usize,
}

impl Replies {
    /// The slots of a lane with rings of `ring_bytes`, all free.
    pub fn new(ring_bytes: usize) -> Self {
        Self {
            slots: [Slot::default(); REPLY_SLOTS],
            next: 1,
            replaced: 0,
            ring_bytes,
        }
    }

    /// Most payload bytes of a reply.
    pub const fn payload_bytes_max(&self) -> usize {
        reply_slot_bytes(self.ring_bytes) - REPLY_HEADER_BYTES
    }

    /// Reserves a slot and returns the tag of a new request; `None` while all slots are in use.
    /// `applied` is the last frame that the server has applied.
    pub fn begin(&mut self, applied: u64) -> Option<u64> {
        let free = |s: &Slot| s.tag == 0 || (s.abandoned && s.seq != 0 && s.seq <= applied);
        let slot = self.slots.iter().position(free)?;
        let tag = self.next << 8 | slot as u64;
        self.next += 1;
        self.slots[slot] = Slot {
            tag,
            seq: 0,
            abandoned: false,
        };
        Some(tag)
    }

    /// Records the frame that carries the request of a tag.
    pub fn asked(&mut self, tag: u64, seq: u64) {
        if let Some(slot) = self.slot(tag) {
            slot.seq = seq;
        }
    }

    /// Frees the slot of a tag if its request never became a frame: no reply will come.
    pub fn cancel(&mut self, tag: u64) {
        if let Some(slot) = self.slot(tag) {
            *slot = Slot::default();
        }
    }

    /// Marks a tag as abandoned. Its slot stays in use until reuse is safe.
    pub fn abandon(&mut self, tag: u64) {
        if let Some(slot) = self.slot(tag) {
            slot.abandoned = true;
        }
    }

    /// Records that the lane was replaced: replies of the old one may be lost, and none comes late.
    pub fn lane_came_back(&mut self) {
        self.replaced += 1;
        for slot in &mut self.slots {
            if slot.abandoned {
                *slot = Slot::default();
            }
        }
    }

    /// Number of replacements. A requester that sees it change has to ask again.
    pub const fn replaced(&self) -> u64 {
        self.replaced
    }

    fn slot(&mut self, tag: u64) -> Option<&mut Slot> {
        self.slots
            .get_mut((tag & 0xff) as usize)
            .filter(|s| s.tag == tag)
    }

    /// Returns the reply of a tag if it is there and its checksum matches. Copies its payload to `out`
    /// and frees the slot.
    pub fn take(
        &mut self,
        mailbox: &Mailbox,
        session: SessionId,
        tag: u64,
        out: &mut Vec<u8>,
    ) -> Option<ReplyHeader> {
        let slot = (tag & 0xff) as usize;
        let at = mailbox_reply_at(slot, self.ring_bytes);
        let (header, checksum) = ReplyHeader::from_line(&mailbox.line(at))?;
        let len = header.payload_len as usize;
        let fits = len <= self.payload_bytes_max();
        let is_mutant = tidewater_protocol::mutants::on(
            tidewater_protocol::mutants::Mutant::ReplySlotOutsideHash,
        );
        // The checksum covers tag and slot and decides; these comparisons only save work.
        if !fits || (!is_mutant && (header.user_tag != tag || header.slot as usize != slot)) {
            return None;
        }
        out.resize(len, 0);
        mailbox.words(at + REPLY_HEADER_BYTES, len).copy_out(0, out);
        if header.hasher(session.0).finish_bytes(out) != checksum {
            return None;
        }
        if let Some(slot) = self.slot(tag) {
            *slot = Slot::default();
        }
        Some(header)
    }
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::limits::RING_BYTES_DEFAULT;

    use super::*;

    #[test]
    fn an_abandoned_slot_is_reused_only_when_its_reply_can_come_no_more() {
        let mut replies = Replies::new(RING_BYTES_DEFAULT);
        let tags: Vec<u64> = (0..REPLY_SLOTS as u64)
            .map(|n| {
                let tag = replies.begin(0).unwrap();
                replies.asked(tag, n + 1);
                tag
            })
            .collect();
        assert_eq!(replies.begin(100), None, "live requests keep their slots");
        replies.abandon(tags[3]);
        assert_eq!(
            replies.begin(3),
            None,
            "frame 4 is not applied: its reply may still come"
        );
        let again = replies.begin(4).unwrap();
        assert_eq!(again & 0xff, tags[3] & 0xff);
        assert_ne!(again, tags[3]);
        replies.abandon(tags[5]);
        replies.lane_came_back();
        assert!(replies.begin(0).is_some());
    }

    #[test]
    fn a_request_that_was_never_sent_gives_its_slot_back() {
        let mut replies = Replies::new(RING_BYTES_DEFAULT);
        for _ in 0..3 * REPLY_SLOTS {
            let tag = replies.begin(0).unwrap();
            replies.cancel(tag);
        }
    }
}

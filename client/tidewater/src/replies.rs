//! Reply slots of one lane: requests that wait for an answer in the mailbox.
//!
//! A tag names slot and request: the slot is its low byte, the rest counts. A reply is believed if
//! its check, which covers slot, tag and payload, is right. A slot is given away again only when
//! its reply has come, when the server has applied its request (a reply is posted before that is
//! told), or when the lane has been replaced.

use tidewater_lanes::fabric::Mailbox;
use tidewater_protocol::ids::SessionId;
use tidewater_protocol::layout::reply::{REPLY_HEADER_BYTES, ReplyHeader};
use tidewater_protocol::layout::session::{REPLY_SLOT_BYTES, REPLY_SLOTS, mailbox_reply_at};

/// One slot: the tag it is out for, and the frame that asks.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    tag: u64,
    seq: u64,
    abandoned: bool,
}

/// The slots of one lane.
#[derive(Debug)]
pub(crate) struct Replies {
    slots: [Slot; REPLY_SLOTS],
    next: u64,
    replaced: u64,
}

impl Replies {
    pub(crate) fn new() -> Self {
        Self {
            slots: [Slot::default(); REPLY_SLOTS],
            next: 1,
            replaced: 0,
        }
    }

    /// A tag for a new request; `None` while all slots are out. `applied` is what the server has
    /// applied.
    pub(crate) fn begin(&mut self, applied: u64) -> Option<u64> {
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

    /// The request of a tag went out as this frame.
    pub(crate) fn asked(&mut self, tag: u64, seq: u64) {
        if let Some(slot) = self.slot(tag) {
            slot.seq = seq;
        }
    }

    /// The request of a tag never became a frame: no reply will come, its slot is free.
    pub(crate) fn cancel(&mut self, tag: u64) {
        if let Some(slot) = self.slot(tag) {
            *slot = Slot::default();
        }
    }

    /// Nobody waits for a tag any more. Its slot stays out until it is safe.
    pub(crate) fn abandon(&mut self, tag: u64) {
        if let Some(slot) = self.slot(tag) {
            slot.abandoned = true;
        }
    }

    /// The lane was replaced: replies of the old one may be lost, and none comes late.
    pub(crate) fn lane_came_back(&mut self) {
        self.replaced += 1;
        for slot in &mut self.slots {
            if slot.abandoned {
                *slot = Slot::default();
            }
        }
    }

    /// Counts replacements: who sees it change has to ask again.
    pub(crate) const fn replaced(&self) -> u64 {
        self.replaced
    }

    fn slot(&mut self, tag: u64) -> Option<&mut Slot> {
        self.slots
            .get_mut((tag & 0xff) as usize)
            .filter(|s| s.tag == tag)
    }

    /// The reply of a tag, if it is there and proves itself; its payload is copied to `out` and
    /// the slot is free again.
    pub(crate) fn take(
        &mut self,
        mailbox: &Mailbox,
        session: SessionId,
        tag: u64,
        out: &mut Vec<u8>,
    ) -> Option<ReplyHeader> {
        let slot = (tag & 0xff) as usize;
        let at = mailbox_reply_at(slot);
        let (header, chk) = ReplyHeader::from_line(&mailbox.line(at))?;
        let len = header.payload_len as usize;
        let fits = len <= REPLY_SLOT_BYTES - REPLY_HEADER_BYTES;
        let planted = tidewater_protocol::mutants::on(
            tidewater_protocol::mutants::Mutant::ReplySlotOutsideHash,
        );
        // With the check over tag and slot these comparisons only save work; it decides.
        if !fits || (!planted && (header.user_tag != tag || header.slot as usize != slot)) {
            return None;
        }
        out.resize(len, 0);
        mailbox.words(at + REPLY_HEADER_BYTES, len).copy_out(0, out);
        if header.hasher(session.0).finish_bytes(out) != chk {
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
    use super::*;

    #[test]
    fn an_abandoned_slot_is_reused_only_when_its_reply_can_come_no_more() {
        let mut replies = Replies::new();
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
        let mut replies = Replies::new();
        for _ in 0..3 * REPLY_SLOTS {
            let tag = replies.begin(0).unwrap();
            replies.cancel(tag);
        }
    }
}

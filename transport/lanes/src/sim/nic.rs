//! The simulated NIC's writing half: posts are placed in pieces, WRITEs in any order where the contract
//! lets them.

use super::core::Core;
use super::link::{Action, Event, LinkId, Post, Way};
use super::rng::Rng;
use crate::fabric::{AccessDenied, AccessFlags, INBOX_KEY, LaneError};
use tidewater_runtime::mem::WordsMut;

impl Core {
    /// Places a part of one post in flight: of the oldest, or of a WRITE that passes earlier posts. Then
    /// schedules the next placement of this direction. The link's event `Land` calls it.
    pub(super) fn land(&mut self, id: LinkId, way: Way) {
        let reorders = self.faults.reorder_writes;
        let link = self.link(id);
        let (destroyed, link_in_order) = (link.destroyed, link.in_order);
        let stream = link.stream(way);
        stream.scheduled = false;
        if let Some(left) = &mut stream.zombies {
            *left = left.saturating_sub(1);
            if *left == 0 {
                stream.flying.clear();
            }
        }
        let in_order = link_in_order || !reorders;
        let may = stream.may_land(in_order);
        let nth = match may.len() {
            0 => return,
            1 => 0,
            count => self.rng.below(count as u64) as usize,
        };
        let place = may[nth];
        let Some(mut post) = self.link(id).stream(way).flying.remove(place) else {
            return;
        };
        debug_assert!(!destroyed, "F11: a destroyed link has nothing in flight");
        if post.words_left.is_none() && !self.admit(id, way, &mut post) {
            return;
        }
        self.note(5, post.to.addr);
        let complete = self.move_words(id, way, &mut post);
        if complete && place > 0 {
            self.passed(id, way, place, &post);
        } else if complete {
            self.finish_post(id, way, &post);
        } else {
            self.link(id).stream(way).flying.insert(place, post);
        }
        self.schedule_placement(id, way);
    }

    /// Completes a WRITE that was placed at position `place`, before earlier posts, so its reader may see
    /// it. If it is a signal, the wake-up keeps its position among the posts.
    fn passed(&mut self, id: LinkId, way: Way, place: usize, post: &Post) {
        let link = self.link(id);
        link.moved |= way == Way::ToServer;
        if let Action::Write { signal: true, .. } = post.action {
            let bytes = Vec::new();
            let signal = Post {
                to: post.to,
                due: post.due,
                action: Action::Write {
                    bytes,
                    signal: true,
                },
                words_left: Some(Vec::new()),
            };
            link.stream(way).flying.insert(place, signal);
        }
    }

    /// Checks key, access flags and bounds of a post before its first byte is placed (F09). A refusal
    /// breaks the link, drops its posts to the server and returns false. Otherwise draws the order in
    /// which the post's words are placed (ascending unless the faults reorder), and returns true.
    fn admit(&mut self, id: LinkId, way: Way, post: &mut Post) -> bool {
        let link = &mut self.links[id.0];
        let (key, addr) = (post.to.key, post.to.addr);
        let (op, len, checked) = match &post.action {
            Action::Write { bytes, .. } => {
                let (len, size) = match way {
                    Way::ToServer => (bytes.len() as u64, link.inbox.window().len() as u64),
                    Way::ToClient => (bytes.len() as u64, link.mailbox.len() as u64),
                };
                let ok = if way == Way::ToServer && key != INBOX_KEY {
                    link.exports
                        .check(key, addr, len, AccessFlags::Write)
                        .map(drop)
                        .map_err(AccessDenied::text)
                } else if addr.checked_add(len).is_none_or(|end| end > size) {
                    Err("outside the inbox")
                } else if !addr.is_multiple_of(8) {
                    Err("misaligned")
                } else {
                    Ok(())
                };
                ("write", len, ok)
            }
            Action::Add(_) | Action::CompareSwap(..) => {
                let ok = link.exports.check(key, addr, 8, AccessFlags::Atomic);
                ("atomic", 8, ok.map(drop).map_err(AccessDenied::text))
            }
            Action::Signal => ("signal", 0, Ok(())),
        };
        if let Err(why) = checked {
            link.to_server.flying.clear();
            let peer = link.server.clone();
            let key = key.0;
            self.break_with(
                id,
                LaneError::Access {
                    peer,
                    op,
                    key,
                    addr,
                    len,
                    why,
                },
            );
            return false;
        }
        let words = match &post.action {
            Action::Write { bytes, .. } => bytes.len().div_ceil(8) as u32,
            _ => 0,
        };
        let mut order: Vec<u32> = (0..words).rev().collect();
        if self.faults.reorder {
            self.rng.shuffle(&mut order);
        }
        post.words_left = Some(order);
        true
    }

    /// Places some of the remaining words of a post in the inbox or mailbox, some of them torn. Returns
    /// whether all words are placed.
    fn move_words(&mut self, id: LinkId, way: Way, post: &mut Post) -> bool {
        let (Action::Write { bytes, .. }, Some(left)) = (&post.action, &mut post.words_left) else {
            return true;
        };
        let (torn, rng) = (self.faults.tear, &mut self.rng);
        let now = if self.faults.reorder && rng.below(2) == 0 {
            rng.below(left.len() as u64 + 1) as usize
        } else {
            left.len()
        };
        let link = &self.links[id.0];
        let at = post.to.addr as usize;
        let store = |rng: &mut Rng, word: usize, torn: bool| match way {
            Way::ToServer => {
                let window = link.inbox.window();
                store_word(&window, at, bytes, word, torn, rng);
            }
            Way::ToClient => {
                let (region, base) = link.mailbox.region();
                if let Ok(window) = region.words_mut(base, link.mailbox.len()) {
                    store_word(&window, at, bytes, word, torn, rng);
                }
            }
        };
        // Torn words are stored in part now and completely in a later step.
        for word in left.split_off(left.len() - now) {
            store(rng, word as usize, false);
        }
        if torn {
            let parts = left.len().min(4);
            for word in &left[..parts] {
                store(rng, *word as usize, true);
            }
        }
        left.is_empty()
    }

    /// Ends a post that is completely placed: wakes the signalled end, or performs the atomic and
    /// schedules the event that delivers its old value.
    fn finish_post(&mut self, id: LinkId, way: Way, post: &Post) {
        let link = &mut self.links[id.0];
        let (owner, client) = (link.owner_parker, link.client_parker);
        link.moved |= way == Way::ToServer;
        let at = post.to.addr as usize;
        let old = match post.action {
            Action::Write { signal, .. } => {
                if signal {
                    self.wake_parker(owner);
                }
                return;
            }
            Action::Signal => return self.wake_parker(client),
            Action::Add(n) => link
                .exports
                .check(post.to.key, post.to.addr, 8, AccessFlags::Atomic)
                .ok()
                .and_then(|e| e.region.words_mut(at, 8).ok())
                .map(|w| w.fetch_add(0, n)),
            Action::CompareSwap(expect, new) => link
                .exports
                .check(post.to.key, post.to.addr, 8, AccessFlags::Atomic)
                .ok()
                .and_then(|e| e.region.words_mut(at, 8).ok())
                .map(|w| w.compare_swap(0, expect, new)),
        };
        if let (Some(old), true) = (old, link.error.is_none()) {
            let delay = self.delay();
            self.schedule(delay, Event::Answer(id, old));
        }
    }
}

/// Stores word number `word` of the post `bytes` at byte offset `at` of `window`, or, if `torn`, only
/// some of its bytes. Bytes of a last word past the end of the post are unspecified: they stay, or become
/// zero.
fn store_word(
    window: &WordsMut<'_>,
    at: usize,
    bytes: &[u8],
    word: usize,
    torn: bool,
    rng: &mut Rng,
) {
    let at = at + word * 8;
    let tail = &bytes[word * 8..bytes.len().min(word * 8 + 8)];
    let old = window.as_read().load(at).to_le_bytes();
    let mut new = if rng.below(2) == 0 { old } else { [0; 8] };
    new[..tail.len()].copy_from_slice(tail);
    if torn {
        let mask = rng.bits();
        for (i, byte) in new.iter_mut().enumerate() {
            if mask >> i & 1 == 0 {
                *byte = old[i];
            }
        }
    }
    window.store_release(at, u64::from_le_bytes(new));
}

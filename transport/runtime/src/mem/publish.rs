//! The orders that the contract is made of, each in one place: what writes publish, what a check
//! cell makes visible, what a fenced read waits for. Modelled below; used by shared memory on both
//! sides and by every inbox.

use super::shared::{Words, WordsMut};
use crate::sync::{Ordering, fence};
use tidewater_protocol::mutants::{self, Mutant};

/// Stores bytes after everything that was stored before: who sees one of them (and fences) sees
/// all of that (F04, F15). Cost: a `memcpy`; the fence is free on x86.
#[inline]
pub fn publish(to: WordsMut<'_>, at: usize, bytes: &[u8]) {
    // SYNC: publish. Pairs with the Acquire in `cell`, in `fabric::Mailbox::line` and in `read_fence`.
    fence(Ordering::Release);
    to.copy_in(at, bytes);
}

/// Reads the two words of a check cell; if they prove themselves, everything published before the
/// cell is visible.
#[inline]
pub fn cell(from: Words<'_>, at: usize) -> [u64; 2] {
    let words = [from.load(at), from.load(at + 8)];
    // SYNC: publish. Pairs with the Release in `publish`.
    fence(Ordering::Acquire);
    words
}

/// Between an earlier read and one flagged `fence` (F03): loads before it are performed before
/// loads after it. On shared memory a read "has completed" when its loads have; an Acquire fence
/// keeps later loads (and stores) behind earlier loads, and is all a seqlock's reader needs: if a
/// load before the fence saw a store made after the writer's Release fence, the loads after it see
/// all that the writer stored before that.
#[inline]
pub fn read_fence() {
    // SYNC: publish, blocks. Pairs with the writer's Release fence.
    if !mutants::on(Mutant::ReadWithoutFence) {
        fence(Ordering::Acquire);
    }
}

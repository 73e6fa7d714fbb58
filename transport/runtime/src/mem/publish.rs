//! The orders on which the lane contract is built: writes that publish, checksummed cells that make earlier
//! writes visible, fenced reads. Modelled below; used by shared memory on both sides and by every inbox.

use super::shared::{Words, WordsMut};
use crate::sync::{Ordering, device_release_fence, fence};
use tidewater_protocol::mutants::{self, Mutant};

/// Stores `bytes` at byte offset `at`, a multiple of 8, after a Release fence. A reader that loads one
/// of these words and then fences sees all stores that the writer made before (clauses F04 and F15 of
/// the lane contract). Cost: a `memcpy`; the fence is free on x86.
#[inline]
pub fn publish(to: WordsMut<'_>, at: usize, bytes: &[u8]) {
    // SYNC: publish. Pairs with the Acquire in `cell`, in `fabric::Mailbox::line` and in `read_fence`.
    device_release_fence();
    to.copy_in(at, bytes);
}

/// Loads the two words of a checksummed record at byte offset `at`, then an Acquire fence. Returns value
/// and checksum, which the caller compares. If the checksum matches, everything that the writer
/// published before the record is visible.
#[inline]
pub fn cell(from: Words<'_>, at: usize) -> [u64; 2] {
    let words = [from.load(at), from.load(at + 8)];
    // SYNC: publish. Pairs with the Release in `publish`.
    fence(Ordering::Acquire);
    words
}

/// Fence of a one-sided read that is flagged `fence` (clause F03 of the lane contract): loads before it
/// are performed before loads after it.
///
/// On shared memory a read "has completed" when its loads have. An Acquire fence keeps later loads (and
/// stores) behind earlier loads, which is all that a seqlock's reader needs. Let a load before the fence
/// see a store made after the writer's Release fence. Then the loads after it see all that the writer
/// stored before that.
#[inline]
pub fn read_fence() {
    // SYNC: publish, blocks. Pairs with the writer's Release fence.
    if !mutants::on(Mutant::ReadWithoutFence) {
        fence(Ordering::Acquire);
    }
}

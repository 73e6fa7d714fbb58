//! The orders on which the lane contract is built: writes that publish, checksummed cells that make earlier
//! writes visible, fenced reads. Modelled below; used by shared memory on both sides and by every inbox.

use super::shared::{Words, WordsMut};
use crate::sync::{Ordering, device_release_fence, fence};
use tidewater_protocol::mutants::{self, Mutant};

/// Stores bytes after everything that was stored before. A reader that sees one of them (and fences) sees
/// all earlier stores (F04, F15). Cost: a `memcpy`; the fence is free on x86.
#[inline]
pub fn publish(to: WordsMut<'_>, at: usize, bytes: &[u8]) {
    // SYNC: publish. Pairs with the Acquire in `cell`, in `fabric::Mailbox::line` and in `read_fence`.
    device_release_fence();
    to.copy_in(at, bytes);
}

/// Reads the two words of a checksummed cell. If the checksum matches, everything published before the cell
/// is visible.
#[inline]
pub fn cell(from: Words<'_>, at: usize) -> [u64; 2] {
    let words = [from.load(at), from.load(at + 8)];
    // SYNC: publish. Pairs with the Release in `publish`.
    fence(Ordering::Acquire);
    words
}

/// Orders an earlier read before one flagged `fence` (F03): loads before it are performed before loads
/// after it.
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

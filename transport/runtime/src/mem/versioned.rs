//! Versioned rows, blocks and snapshots: the stores of their writer and the loads of their readers.
//!
//! One applier writes, any number of clients read the same words without a lock. A row carries a checksum.
//! A block has a version word before and after (a seqlock). A snapshot has two buffers and a line that
//! names the complete one. The required order of stores and loads is implemented only here. The loom models
//! of this folder therefore run the code that servers and clients run. Each fence has a mutant that removes
//! it.

use super::publish::read_fence;
use super::{Words, WordsMut};
use crate::delays;
use crate::sync::device_release_fence;
use tidewater_protocol::layout::Line;
use tidewater_protocol::layout::row::ROW_HEADER_BYTES;
use tidewater_protocol::mutants::{self, Mutant};

/// Release fence for cores and devices. Omitted while the test mutant `mutant` is on.
#[inline(always)]
fn release_fence(mutant: Mutant) {
    if !mutants::on(mutant) {
        device_release_fence();
    }
}

/// Stores a row in shared memory: the two header words, then the payload. `row` begins with the header.
/// The caller is the row's only writer, and has computed the checksum in `head`. No order is needed: a
/// reader accepts only a row with a matching checksum in its header. Panics when `row` is shorter than
/// header and payload. Cost: a copy of the payload.
#[inline(always)]
pub fn store_row(row: WordsMut<'_>, head: RowHead, payload: &[u8]) {
    row.store(0, head.version);
    row.store(8, head.checksum);
    if delays::pauses_writes() {
        let (first, rest) = payload.split_at(payload.len() / 16 * 8);
        row.copy_in(ROW_HEADER_BYTES, first);
        delays::pause_write();
        row.copy_in(ROW_HEADER_BYTES + first.len(), rest);
    } else {
        row.copy_in(ROW_HEADER_BYTES, payload);
    }
}

/// The two 64-bit header words of a row: version and checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowHead {
    /// The version: generation and counter.
    pub version: u64,
    /// The checksum of key, version and payload.
    pub checksum: u64,
}

/// The two values that a block's version word (seqlock) takes during and after one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockVersions {
    /// Odd: readers reject the block.
    pub writing: u64,
    /// Even: the block is complete.
    pub done: u64,
}

/// Writes a block as the writer of a seqlock: the odd version word, the payload, the even version word.
/// `version` is a window that begins with the version word, `target` one that begins with the block. The
/// caller is their only writer.
///
/// The reader loads the version word, the payload behind a [`read_fence`], and the version word again
/// behind another ([`copy_out`]). It accepts two equal even words.
#[inline]
pub fn store_block(
    version: WordsMut<'_>,
    versions: BlockVersions,
    target: WordsMut<'_>,
    payload: &[u8],
) {
    version.store(0, versions.writing);
    // SYNC: block. A reader that copied any word stored below has synchronised with this fence through its
    // own. Its second load therefore sees the odd word or a later one, and it rejects.
    release_fence(Mutant::BlockWithoutFence);
    target.copy_in(0, payload);
    // SYNC: block. A reader that sees this word in its first load sees all of the payload above.
    if mutants::on(Mutant::BlockVersionRelaxed) {
        version.store(0, versions.done);
    } else {
        version.store_release(0, versions.done);
    }
}

/// Publishes a snapshot: stores its 64-byte record `line` at the start of `to`, after a Release fence.
/// The record names the buffer that the caller has completed. A reader that sees the record and then
/// fences sees the complete buffer.
#[inline]
pub fn publish_snapshot(to: WordsMut<'_>, line: &Line) {
    // SYNC: snapshot. Pairs with the reader's `read_fence` after its first load.
    release_fence(Mutant::SnapshotLineWithoutFence);
    to.store_line(0, line);
}

/// Release fence of a snapshot's writer; it stores nothing. The writer calls it after it stored the
/// record that opens an epoch, and before its first store into the reused buffer. A reader that copied
/// one of the new words then sees the changed record and rejects its copy.
#[inline]
pub fn begin_buffer() {
    // SYNC: snapshot. Pairs with the reader's `read_fence` before its second load. A reader that copied a
    // word stored after this sees the line's new `building`, or a later line.
    release_fence(Mutant::EpochWithoutFence);
}

/// Zeroes the first `len` bytes of `words`, the version words of blocks, then fences. The caller zeroes
/// and reuses the memory of these blocks only afterwards. Readers then reject a block read from it: its
/// version has changed.
#[inline]
pub fn void(words: WordsMut<'_>, len: usize) {
    words.zero(0, len);
    // SYNC: block. A reader that copied a word stored after this sees the void version at its second load.
    release_fence(Mutant::VoidWithoutFence);
}

/// One-sided read of shared memory: fills `head` with its first bytes and `body` with the following
/// ones. The length of `head` must be a multiple of 8, which is not checked. The copy may be torn by a
/// concurrent write, which the caller must detect. With `fence`, it is performed after every earlier
/// read. Cost: a copy.
///
/// # Panics
/// When `from` is shorter than `head` and `body`.
#[inline]
pub fn copy_out(from: Words<'_>, fence: bool, head: &mut [u8], body: &mut [u8]) {
    if fence {
        read_fence();
    }
    from.copy_out(0, head);
    from.copy_out(head.len(), body);
}

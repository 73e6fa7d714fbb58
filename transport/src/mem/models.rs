//! Loom models of what readers and writers of shared words rely on. Each comes with the variant
//! that lacks one fence or one check, and loom must find what that breaks: a model that cannot
//! fail proves nothing.

use loom::thread;

use super::publish::{cell, publish, read_fence};
use super::{Words, WordsMut};
use crate::layout::dense::TaggedU32;
use crate::layout::lines::CheckedU64;
use crate::layout::row::{RowVersion, row_chk};
use crate::layout::word_at;
use crate::sync::{Arc, AtomicU64, Ordering, fence};

const SALT: u64 = 0x5eed;

fn words<const N: usize>(values: [u64; N]) -> Arc<[AtomicU64; N]> {
    Arc::new(values.map(AtomicU64::new))
}

fn bytes(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Two frames of one word each, two tails. Memory: tail cell (2 words), ring (2 words).
fn ring(write: fn(WordsMut<'_>, usize, &[u8])) {
    loom::model(move || {
        let CheckedU64([v, chk]) = CheckedU64::new(0, SALT);
        let memory = words([v, chk, 0, 0]);
        let client = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let inbox = WordsMut::new(&*memory);
                for tail in 1..=2 {
                    write(inbox, 8 + 8 * tail as usize, &bytes(&[70 + tail]));
                    write(inbox, 0, &bytes(&CheckedU64::new(tail, SALT).0));
                }
            })
        };
        let inbox = Words::new(&*memory);
        for _ in 0..2 {
            if let Some(tail) = CheckedU64(cell(inbox, 0)).value(SALT) {
                for frame in 1..=tail {
                    assert_eq!(
                        inbox.load(8 + 8 * frame as usize),
                        70 + frame,
                        "stale frame"
                    );
                }
            }
        }
        client.join().unwrap();
    });
}

#[test]
fn loom_who_sees_a_tail_sees_its_frames() {
    ring(publish);
}

#[test]
#[should_panic(expected = "stale frame")]
fn loom_finds_stale_frames_without_the_release_fence() {
    ring(|to, at, bytes| to.copy_in(at, bytes));
}

/// A row of two words that goes from version 1 to 2. Memory: ver, chk, payload (2 words). `accept`
/// is told the version before and after, what was copied, and whether the hash fits.
fn row(accept: fn(u64, u64, bool) -> bool) {
    const KEY: u64 = 42;
    let image = |counter: u64| {
        let payload = [counter * 11, counter * 13];
        let ver = RowVersion::new(1, counter);
        let chk = row_chk(SALT, KEY, ver, &bytes(&payload));
        [ver.0, chk, payload[0], payload[1]]
    };
    loom::model(move || {
        let memory = words(image(1));
        let applier = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let [ver, chk, a, b] = image(2);
                let row = WordsMut::new(&*memory);
                row.store(16, a);
                row.store(24, b);
                row.store(0, ver);
                row.store(8, chk);
            })
        };
        let row = Words::new(&*memory);
        let mut copy = [0; 32];
        row.copy_out(0, &mut copy);
        let after = row.load(0);
        let (ver, chk) = (word_at(&copy, 0), word_at(&copy, 8));
        let proven = row_chk(SALT, KEY, RowVersion(ver), &copy[16..]) == chk;
        if accept(ver, after, proven) {
            let whole = image(RowVersion(ver).counter());
            assert_eq!(copy.to_vec(), bytes(&whole), "mixture of versions");
        }
        applier.join().unwrap();
    });
}

#[test]
fn loom_a_row_that_proves_itself_is_whole() {
    row(|_, _, proven| proven);
}

#[test]
#[should_panic(expected = "mixture of versions")]
fn loom_finds_mixed_rows_when_only_the_version_is_compared() {
    row(|before, after, _| before == after);
}

/// A block of two words that goes from sequence 0 to 2. Memory: version word, data (2 words).
/// Reads as a dense pull does: A, fence, B, fence, C.
fn block(writer_fence: fn(), reader_fence: fn()) {
    let tagged = |seq: u32| TaggedU32::new(seq, SALT).0;
    loom::model(move || {
        let memory = words([tagged(0), 0, 0]);
        let applier = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let block = WordsMut::new(&*memory);
                block.store(0, tagged(1));
                writer_fence();
                block.store(8, 2);
                block.store(16, 2);
                block.store_release(0, tagged(2));
            })
        };
        let block = Words::new(&*memory);
        let a = TaggedU32(block.load(0));
        read_fence();
        let data = [block.load(8), block.load(16)];
        reader_fence();
        let c = TaggedU32(block.load(0));
        if let (Some(before), Some(after)) = (a.seq(SALT), c.seq(SALT))
            && before == after
            && before.is_multiple_of(2)
        {
            assert_eq!(data, [u64::from(before); 2], "mixed block");
        }
        applier.join().unwrap();
    });
}

// SYNC: blocks. Pairs with `read_fence`.
fn release() {
    fence(Ordering::Release);
}

#[test]
fn loom_an_accepted_block_is_of_one_sequence() {
    block(release, read_fence);
}

#[test]
#[should_panic(expected = "mixed block")]
fn loom_finds_mixed_blocks_without_the_readers_fence() {
    block(release, || ());
}

#[test]
#[should_panic(expected = "mixed block")]
fn loom_finds_mixed_blocks_without_the_writers_fence() {
    block(|| (), read_fence);
}

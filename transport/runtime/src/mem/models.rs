//! Loom models of the orders that readers and writers of shared words rely on: they run the functions that
//! servers and clients run. Each has a variant that lacks one check, or a mutant that lacks one fence, and
//! loom must find the resulting error.

use loom::thread;

use super::publish::{cell, publish};
use super::rows::copy_row;
use super::sequence::Sequence;
use super::versioned::{
    self, BlockVersions, RowHead, begin_buffer, publish_snapshot, store_block, store_row,
};
use super::{Words, WordsMut};
use crate::sync::{Arc, AtomicU64, Ordering};
use tidewater_protocol::layout::dense::TaggedU32;
use tidewater_protocol::layout::lines::{CheckedU64, SnapshotLine};
use tidewater_protocol::layout::row::{RowVersion, row_checksum};
use tidewater_protocol::layout::word_at;

const SALT: u64 = 0x5eed;

fn words<const N: usize>(values: [u64; N]) -> Arc<[AtomicU64; N]> {
    Arc::new(values.map(AtomicU64::new))
}

fn bytes(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Loom model of a ring: a client thread writes two one-word frames, and after each the checksummed tail
/// record, by `write`. The applier reads a tail and asserts that it sees every frame before it. Memory:
/// tail record (2 words), ring (2 words).
fn ring(write: fn(WordsMut<'_>, usize, &[u8])) {
    loom::model(move || {
        let CheckedU64([v, checksum]) = CheckedU64::new(0, SALT);
        let memory = words([v, checksum, 0, 0]);
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

/// Loom model of a row read: an applier overwrites a two-word row, version 1 by version 2, with
/// [`store_row`] while a client copies it with [`copy_row`]. The client asserts that a copy that `accept`
/// accepts is of one version. `accept` receives the version before and after the copy, and whether the
/// checksum matches.
fn row(accept: fn(u64, u64, bool) -> bool) {
    const KEY: u64 = 42;
    let payload = |counter: u64| [counter * 11, counter * 13];
    let head = move |counter: u64| {
        let ver = RowVersion::new(1, counter);
        RowHead {
            version: ver.0,
            checksum: row_checksum(SALT, KEY, ver, &bytes(&payload(counter))),
        }
    };
    loom::model(move || {
        let (first, [a, b]) = (head(1), payload(1));
        let memory = words([first.version, first.checksum, a, b]);
        let applier = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let row = WordsMut::new(&*memory);
                store_row(row, head(2), &bytes(&payload(2)));
            })
        };
        let row = Words::new(&*memory);
        let mut out = [0; 16];
        let copy = copy_row(row, SALT, KEY, &mut out);
        if accept(copy.ver.0, row.load(0), copy.validated) {
            let complete = bytes(&payload(copy.ver.counter()));
            assert_eq!(out.to_vec(), complete, "mixture of versions");
        }
        applier.join().unwrap();
    });
}

#[test]
fn loom_a_row_that_proves_itself_is_whole() {
    row(|_, _, validated| validated);
}

#[test]
#[should_panic(expected = "mixture of versions")]
fn loom_finds_mixed_rows_when_only_the_version_is_compared() {
    row(|before, after, _| before == after);
}

/// Reads `N` words at byte offset `at` with the one-sided read of the product; `fence` orders it after
/// earlier reads.
fn read<const N: usize>(memory: &[AtomicU64], at: usize, fence: bool) -> [u64; N] {
    let mut head = vec![0; N * 8];
    let from = Words::new(&memory[at / 8..at / 8 + N]);
    versioned::copy_out(from, fence, &mut head, &mut []);
    std::array::from_fn(|i| word_at(&head, i * 8))
}

/// Loom model of a seqlock block: an applier writes its two words, sequence 0 to 2, with [`store_block`].
/// A client reads version, payload and version as a pull of a range does, and asserts that an accepted
/// payload is of one sequence. `fenced` says whether the read of the payload and the second read of the
/// version are fenced. Memory: version word, data (2 words).
fn block(fenced: [bool; 2]) {
    let tagged = |seq: u32| TaggedU32::new(seq, SALT).0;
    loom::model(move || {
        let memory = words([tagged(0), 0, 0]);
        let applier = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let versions = BlockVersions {
                    writing: tagged(1),
                    done: tagged(2),
                };
                let (version, data) = memory.split_at(1);
                let (version, data) = (WordsMut::new(version), WordsMut::new(data));
                store_block(version, versions, data, &bytes(&[2, 2]));
            })
        };
        let [before] = read(&*memory, 0, false).map(TaggedU32);
        let data: [u64; 2] = read(&*memory, 8, fenced[0]);
        let [after] = read(&*memory, 0, fenced[1]).map(TaggedU32);
        if before.accepts(after, SALT) {
            let seq = before.seq(SALT).unwrap();
            assert_eq!(data, [u64::from(seq); 2], "mixed block");
        }
        applier.join().unwrap();
    });
}

/// A fenced read accepts only untorn blocks. Loom finds the mutants `block-without-fence`,
/// `block-version-relaxed` and `read-without-fence`.
#[test]
fn loom_an_accepted_block_is_of_one_sequence() {
    block([true, true]);
}

#[test]
#[should_panic(expected = "mixed block")]
fn loom_finds_mixed_blocks_when_the_second_look_is_not_fenced() {
    block([true, false]);
}

#[test]
#[should_panic(expected = "mixed block")]
fn loom_finds_mixed_blocks_when_the_payload_is_not_fenced() {
    block([false, true]);
}

/// Memory of a released block is voided before reuse: a client that read the next table's value also sees
/// the void version word, and rejects. Loom finds the mutant `void-without-fence`.
#[test]
fn loom_released_memory_is_void_before_it_is_reused() {
    let version = TaggedU32::new(4, SALT);
    loom::model(move || {
        let memory = words([version.0, 4]);
        let applier = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                versioned::void(WordsMut::new(&memory[..1]), 8);
                WordsMut::new(&memory[1..]).store(0, 99);
            })
        };
        let [data] = read(&*memory, 8, false);
        let [after] = read(&*memory, 0, true).map(TaggedU32);
        if after.seq(SALT).is_some() {
            assert_eq!(data, 4, "another table's value");
        }
        applier.join().unwrap();
    });
}

const LINE: usize = 64;

/// Loom model of a snapshot: `write`, the applier, changes the record and the two one-word buffers that
/// follow it. Epoch `e` is the value `e` in buffer `e % 2`. A client reads the record, the buffer of its
/// `front` (the newest complete epoch) and the record again. It asserts that an accepted value is `front`.
/// `from` and `buffers` are the initial record and values. At most two preemptions: the record is eight
/// words, and three preemptions take ten times as long.
fn snapshot(from: SnapshotLine, buffers: [u64; 2], write: fn(WordsMut<'_>, WordsMut<'_>)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let mut image = [0; 10];
        image[..8].copy_from_slice(&from.to_line(SALT));
        image[8..].copy_from_slice(&buffers);
        let memory = words(image);
        let applier = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let (line, buffers) = memory.split_at(8);
                write(WordsMut::new(line), WordsMut::new(buffers));
            })
        };
        let line = |fence| SnapshotLine::from_line(&read(&*memory, 0, fence), SALT);
        if let Some(before) = line(false) {
            let at = LINE + 8 * (before.front % 2) as usize;
            let [value] = read(&*memory, at, true);
            if line(true).is_some_and(|after| before.accepts(&after)) {
                assert_eq!(value, before.front, "a buffer of another epoch");
            }
        }
        applier.join().unwrap();
    });
}

fn snapshot_line(front: u64, building: u64) -> SnapshotLine {
    SnapshotLine {
        front,
        building,
        min_clock: 0,
        applied: 0,
        // Two buffers: an epoch that is being built overwrites the one before the front.
        kept: building.saturating_sub(1),
        buffers: front % 2,
    }
}

/// A client that sees epoch 2 published reads all of it from buffer 0. Loom finds the mutant
/// `snapshot-line-without-fence`.
#[test]
fn loom_a_published_snapshot_is_complete() {
    snapshot(snapshot_line(1, 2), [0, 1], |line, buffers| {
        buffers.store(0, 2);
        publish_snapshot(line, &snapshot_line(2, 2).to_line(SALT));
    });
}

/// A client that reads epoch 1 from buffer 1 rejects its copy when epoch 3 overwrites that buffer. Loom
/// finds the mutant `epoch-without-fence`.
#[test]
fn loom_a_reader_of_an_old_epoch_notices_that_its_buffer_is_rewritten() {
    snapshot(snapshot_line(1, 2), [2, 1], |line, buffers| {
        publish_snapshot(line, &snapshot_line(2, 3).to_line(SALT));
        begin_buffer();
        buffers.store(8, 3);
    });
}

/// Loom model of a [`Sequence`]: a writer sets two words to 1, then to 2. `read` reads both, and its
/// result, if any, must be of one change.
fn changed_together(read: fn(&Sequence, &[AtomicU64; 2]) -> Option<[u64; 2]>) {
    loom::model(move || {
        let shared = Arc::new((Sequence::default(), [0, 0].map(AtomicU64::new)));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (sequence, words) = &*shared;
                for value in 1..=2 {
                    sequence.write(|| {
                        words.iter().for_each(|w| w.store(value, Ordering::Relaxed));
                    });
                }
            })
        };
        let (sequence, words) = &*shared;
        if let Some([a, b]) = read(sequence, words) {
            assert_eq!(a, b, "halves of two changes");
        }
        writer.join().unwrap();
        let last = sequence.read(|| words[0].load(Ordering::Relaxed));
        assert_eq!(last, Some(2), "an ended change is not read");
    });
}

fn both(words: &[AtomicU64; 2]) -> [u64; 2] {
    [0, 1].map(|n| words[n].load(Ordering::Relaxed))
}

/// A read under a [`Sequence`] never returns halves of two changes. Loom finds the mutant
/// `sequence-without-fence`.
#[test]
fn loom_a_sequenced_read_is_of_one_change() {
    changed_together(|sequence, words| sequence.read(|| both(words)));
}

#[test]
#[should_panic(expected = "halves of two changes")]
fn loom_finds_halves_without_the_second_count() {
    changed_together(|_, words| Some(both(words)));
}

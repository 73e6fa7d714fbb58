//! Readers on another thread that access registered memory only, as clients do.

use std::time::Duration;
use tidewater_runtime::sync::{AtomicBool, Ordering as Std};

use tidewater_protocol::ids::SessionId;
use tidewater_protocol::layout::lines::SnapshotLine;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::{Ordering, fence};

use super::super::{BlocksDescriptor, PinRefusal};
use super::*;

/// Large enough that a reader's copy and a writer's store overlap often.
const BYTES: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

/// Counts of what a reader saw.
#[derive(Debug, Default)]
struct Seen {
    accepted: u64,
    rejected: u64,
    /// Rejected copies that really were torn.
    mixtures: u64,
    wrong: Vec<String>,
}

impl Seen {
    fn enough(&self) -> bool {
        self.accepted > 200 && self.mixtures > 20
    }

    fn finished(&self, deadline: Deadline) -> bool {
        self.enough() || !self.wrong.is_empty() || deadline.passed()
    }
}

/// A complete block of one value.
fn filled(x: f32) -> Vec<u8> {
    x.to_le_bytes().repeat(BYTES / 4)
}

fn all_equal(values: &[f32]) -> bool {
    values.iter().all(|x| x.to_bits() == values[0].to_bits())
}

/// The seqlock's reader: `docs/PROTOCOL.md`, dense pull.
fn pull_block(
    memory: &ServerMemory,
    d: &BlocksDescriptor,
    salt: u64,
    out: &mut [u8],
) -> Option<u32> {
    let public = memory.public.region();
    let version = public.words(d.versions as usize, 8).unwrap();
    let before = TaggedU32(version.load_acquire(0)).seq(salt);
    public
        .words(d.payload[0] as usize, out.len())
        .unwrap()
        .copy_out(0, out);
    // SYNC: block. Pairs with the writer's fence after the odd word.
    fence(Ordering::Acquire);
    let after = TaggedU32(version.load(0)).seq(salt);
    before.filter(|seq| seq % 2 == 0 && after == before)
}

#[test]
fn a_block_that_is_accepted_is_never_torn() {
    let (memory, redo) = memory();
    let mut shard = shard(&memory, spec(BYTES as u64 / 4, 1, BYTES as u32, false)).unwrap();
    let (d, salt) = (shard.partitions().next().unwrap(), shard.salt());
    shard
        .step(&redo, P, 0, PushOp::Assign, &filled(0.0))
        .unwrap();
    let stop = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut seen, mut out) = (Seen::default(), vec![0; BYTES]);
            let deadline = Deadline::after(PATIENCE);
            while !seen.finished(deadline) {
                let seq = pull_block(&memory, &d, salt, &mut out);
                let values = floats(&out);
                match seq {
                    // Sequence 4 stored 0, each next one 1 more.
                    Some(seq) if all_equal(&values) && values[0] == (seq / 2 - 2) as f32 => {
                        seen.accepted += 1;
                    }
                    Some(seq) => seen.wrong.push(format!("{seq}: {:?}..", &values[..2])),
                    None => {
                        seen.rejected += 1;
                        seen.mixtures += u64::from(!all_equal(&values));
                    }
                }
            }
            stop.store(true, Std::Relaxed);
            seen
        });
        let mut n = 0f32;
        while !stop.load(Std::Relaxed) {
            n += 1.0;
            let values = filled(n);
            shard.step(&redo, P, 0, PushOp::Assign, &values).unwrap();
        }
        reader.join().unwrap()
    });
    assert!(seen.wrong.is_empty(), "{:?}", &seen.wrong[..1]);
    assert!(seen.enough() && seen.rejected >= seen.mixtures, "{seen:?}");
}

const BLOCKS: u64 = 16;

/// Which epochs store a block: about a third of them, in no order.
fn stores(epoch: u64, block: u64) -> bool {
    tidewater_protocol::layout::hash::mix64(epoch * BLOCKS + block).is_multiple_of(3)
}

/// The value of a block at an epoch: the last one that stored it.
fn value_at(epoch: u64, block: u64) -> f32 {
    (1..=epoch).rev().find(|e| stores(*e, block)).unwrap_or(0) as f32
}

fn build(shard: &mut DenseBlocks, redo: &Redo, epoch: u64) {
    shard.begin_epoch(epoch).unwrap();
    for block in (0..BLOCKS).filter(|b| stores(epoch, *b)) {
        let values = filled(epoch as f32);
        shard.step(redo, P, block, PushOp::Assign, &values).unwrap();
    }
    shard.flip(epoch, epoch, epoch).unwrap();
}

fn snapshot_table(memory: &Arc<ServerMemory>) -> DenseBlocks {
    table_of_versions(memory, 2)
}

fn table_of_versions(memory: &Arc<ServerMemory>, versions: u32) -> DenseBlocks {
    let zeros = TableSpec {
        init: Init::Zeros,
        versions,
        ..spec(BLOCKS * BYTES as u64 / 4, 1, BYTES as u32, true)
    };
    shard(memory, zeros).unwrap()
}

fn buffer_at(d: &BlocksDescriptor, buffer: usize) -> usize {
    let [first, second] = d.payload;
    (first + buffer as u64 * (second - first)) as usize
}

/// The snapshot's reader. Returns the epoch that it read, if it accepts, and whether it saw a
/// record at all.
fn pull_snapshot(
    memory: &ServerMemory,
    d: &BlocksDescriptor,
    salt: u64,
    out: &mut [u8],
) -> (Option<u64>, Option<u64>) {
    let public = memory.public.region();
    let line = public.words(d.snapshot.unwrap() as usize, 64).unwrap();
    let look = || SnapshotLine::from_line(&line.line(0), salt);
    let Some(before) = look() else {
        return (None, None);
    };
    // SYNC: snapshot. Pairs with the fence before the record that names the front.
    fence(Ordering::Acquire);
    let at = buffer_at(d, before.buffer_of(before.front).unwrap());
    public.words(at, out.len()).unwrap().copy_out(0, out);
    // SYNC: snapshot. Pairs with the fence after the record that says what is built.
    fence(Ordering::Acquire);
    let accepted = look().is_some_and(|after| before.accepts(&after));
    (accepted.then_some(before.front), Some(before.front))
}

fn is_epoch(out: &[u8], epoch: u64) -> bool {
    (0..).zip(out.chunks(BYTES)).all(|(block, bytes)| {
        let value = value_at(epoch, block).to_le_bytes();
        bytes.chunks(4).all(|x| x == value)
    })
}

#[test]
fn a_snapshot_reader_never_sees_a_mixed_or_stale_epoch() {
    let (memory, redo) = memory();
    let mut shard = snapshot_table(&memory);
    let (d, salt) = (shard.partitions().next().unwrap(), shard.salt());
    let stop = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut seen, mut out) = (Seen::default(), vec![0; BLOCKS as usize * BYTES]);
            let (deadline, mut newest) = (Deadline::after(PATIENCE), 0);
            while !seen.finished(deadline) {
                match pull_snapshot(&memory, &d, salt, &mut out) {
                    (Some(e), _) if is_epoch(&out, e) && e >= newest => {
                        seen.accepted += 1;
                        newest = e;
                    }
                    (Some(e), _) => seen.wrong.push(format!("epoch {e} after {newest}")),
                    (None, e) => {
                        seen.rejected += 1;
                        seen.mixtures += u64::from(e.is_some_and(|e| !is_epoch(&out, e)));
                    }
                }
            }
            stop.store(true, Std::Relaxed);
            seen
        });
        let mut epoch = 0;
        while !stop.load(Std::Relaxed) {
            epoch += 1;
            build(&mut shard, &redo, epoch);
        }
        reader.join().unwrap()
    });
    assert!(seen.wrong.is_empty(), "{:?}", &seen.wrong[..1]);
    assert!(seen.enough() && seen.rejected >= seen.mixtures, "{seen:?}");
}

/// A reader's copy between any two of the writer's stores: accepted until the epoch after next
/// begins, and not one store longer.
#[test]
fn a_snapshot_is_believed_until_its_buffer_is_built_again() {
    let (memory, redo) = memory();
    let mut shard = snapshot_table(&memory);
    build(&mut shard, &redo, 1);
    let (d, salt) = (shard.partitions().next().unwrap(), shard.salt());
    let words = memory
        .public
        .region()
        .words(d.snapshot.unwrap() as usize, 64);
    let line = || SnapshotLine::from_line(&words.as_ref().unwrap().line(0), salt).unwrap();
    let front = line().front;
    let store = |shard: &mut DenseBlocks, block, x| {
        shard
            .step(&redo, P, block, PushOp::Assign, &filled(x))
            .unwrap();
    };
    type Act<'a> = Box<dyn Fn(&mut DenseBlocks) + 'a>;
    let acts: [(Act<'_>, bool); 7] = [
        (Box::new(|_| ()), true),
        (Box::new(|s| s.begin_epoch(2).unwrap()), true),
        (Box::new(|s| store(s, 3, 2.5)), true),
        (Box::new(|s| s.flip(2, 2, 2).unwrap()), true),
        (Box::new(|s| s.begin_epoch(3).unwrap()), false),
        (Box::new(|s| store(s, 5, 3.5)), false),
        (Box::new(|s| s.flip(3, 3, 3).unwrap()), false),
    ];
    let mut out = vec![0; BLOCKS as usize * BYTES];
    for (n, (act, believed)) in acts.iter().enumerate() {
        act(&mut shard);
        let at = d.payload[(front & 1) as usize] as usize;
        let payload = memory.public.region().words(at, out.len());
        payload.unwrap().copy_out(0, &mut out);
        assert_eq!(line().building <= front + 1, *believed, "after act {n}");
        assert!(
            !believed || is_epoch(&out, front),
            "act {n} changed the front"
        );
    }
    assert!(
        !is_epoch(&out, front),
        "the buffer was not built again: nothing tested"
    );
}

/// Catches `TIDEWATER_MUTANT=snapshot-without-copy-forward`.
#[test]
fn snapshot_blocks_untouched_this_epoch_are_carried_forward() {
    let (memory, redo) = memory();
    let mut shard = snapshot_table(&memory);
    let (d, salt) = (shard.partitions().next().unwrap(), shard.salt());
    let mut out = vec![0; BLOCKS as usize * BYTES];
    for epoch in 1..60 {
        build(&mut shard, &redo, epoch);
        let (accepted, _) = pull_snapshot(&memory, &d, salt, &mut out);
        assert_eq!(accepted, Some(epoch));
        assert!(
            is_epoch(&out, epoch),
            "a block is not that of epoch {epoch}"
        );
        shard.read_range(0, &mut out).unwrap();
        assert!(
            is_epoch(&out, epoch),
            "the owner reads another epoch than {epoch}"
        );
    }
}

/// The newest versions are kept, each complete: as many as the table has, less the one that is built.
#[test]
fn the_newest_versions_are_kept() {
    let (memory, redo) = memory();
    for versions in [2u64, 3, 5, 16] {
        let mut shard = table_of_versions(&memory, versions as u32);
        let (d, salt) = (shard.partitions().next().unwrap(), shard.salt());
        let mut out = vec![0; BLOCKS as usize * BYTES];
        let mut check = |shard: &DenseBlocks, oldest: u64| {
            let public = memory.public.region();
            let line = public.words(d.snapshot.unwrap() as usize, 64).unwrap();
            let line = SnapshotLine::from_line(&line.line(0), salt).unwrap();
            assert_eq!(
                (line.front, line.kept),
                (shard.front(), oldest),
                "of {versions}"
            );
            for epoch in oldest..=line.front {
                let at = buffer_at(&d, line.buffer_of(epoch).unwrap());
                public.words(at, out.len()).unwrap().copy_out(0, &mut out);
                assert!(
                    is_epoch(&out, epoch),
                    "epoch {epoch} of {versions} versions"
                );
            }
            assert_eq!(line.buffer_of(line.front + 1), None);
            assert_eq!(oldest.checked_sub(1).and_then(|e| line.buffer_of(e)), None);
        };
        for epoch in 1..40u64 {
            shard.begin_epoch(epoch).unwrap();
            check(&shard, epoch.saturating_sub(versions - 1));
            for block in (0..BLOCKS).filter(|b| stores(epoch, *b)) {
                let values = filled(epoch as f32);
                shard
                    .step(&redo, P, block, PushOp::Assign, &values)
                    .unwrap();
            }
            shard.flip(epoch, epoch, epoch).unwrap();
            check(&shard, (epoch + 1).saturating_sub(versions));
        }
        shard.release().unwrap();
    }
}

/// A pinned version stays as it was until its last pin ends, and then its buffer, which lacks the stores of
/// many epochs, is built again. Catches `pin-dropped`.
#[test]
fn a_pinned_version_stays() {
    let (memory, redo) = memory();
    let mut shard = table_of_versions(&memory, 4);
    let d = shard.partitions().next().unwrap();
    let public = memory.public.region();
    let mut out = vec![0; BLOCKS as usize * BYTES];
    let mut holds = |buffer: usize, epoch: u64| {
        let words = public.words(buffer_at(&d, buffer), out.len());
        words.unwrap().copy_out(0, &mut out);
        is_epoch(&out, epoch)
    };
    let [one, other] = [SessionId(7), SessionId(8)];
    (1..=5).for_each(|epoch| build(&mut shard, &redo, epoch));
    let fifth = shard.pin(5, one).unwrap();
    assert_eq!(shard.pin(5, other), Ok(fifth));
    assert_eq!(
        shard.pin(1, one),
        Err(PinRefusal::NotKept {
            oldest: 2,
            newest: 5
        })
    );
    assert_eq!(
        shard.pin(6, one),
        Err(PinRefusal::NotKept {
            oldest: 2,
            newest: 5
        })
    );
    let third = shard.pin(3, one).unwrap();
    let full = PinRefusal::Full {
        pinned: 2,
        limit: 2,
    };
    assert_eq!(shard.pin(4, other), Err(full));
    for epoch in 6..40 {
        build(&mut shard, &redo, epoch);
        assert!(
            holds(fifth, 5) && holds(third, 3),
            "a pin was dropped at epoch {epoch}"
        );
        shard.read_range(0, &mut vec![0; BYTES]).unwrap();
    }
    // Another session's pin of the version remains.
    shard.unpin_all(one);
    assert_eq!(shard.pinned(), 1);
    for epoch in 40..50 {
        build(&mut shard, &redo, epoch);
        assert!(holds(fifth, 5), "at epoch {epoch}");
    }
    shard.unpin(5, other);
    assert_eq!(shard.pinned(), 0);
    let mut newest = vec![0; BLOCKS as usize * BYTES];
    for epoch in 50..60 {
        build(&mut shard, &redo, epoch);
        shard.read_range(0, &mut newest).unwrap();
        assert!(
            is_epoch(&newest, epoch),
            "the buffers of ended pins, at epoch {epoch}"
        );
    }
    assert!(
        !holds(fifth, 5) && !holds(third, 3),
        "their memory is used again"
    );
}

/// A load makes a new epoch of the same version. Each of two pins of the version ends by itself.
#[test]
fn pins_around_a_load_end_one_by_one() {
    let (memory, redo) = memory();
    let mut shard = table_of_versions(&memory, 4);
    let one = SessionId(7);
    (1..=5).for_each(|epoch| build(&mut shard, &redo, epoch));
    let before = shard.pin(5, one).unwrap();
    shard.begin_epoch(6).unwrap();
    shard.flip(6, 5, 6).unwrap();
    let after = shard.pin(5, one).unwrap();
    assert_ne!(before, after);
    assert_eq!(shard.pinned(), 2);
    shard.unpin(5, one);
    assert_eq!(shard.pinned(), 1);
    shard.unpin(5, one);
    assert_eq!(shard.pinned(), 0);
}

//! Tests of range tables against a model of single elements, and against racing readers.

mod model;
mod readers;
mod steps;

use std::sync::Arc;

use tidewater_protocol::ids::{DomainId, Incarnation, PartitionId, TableId};
use tidewater_protocol::layout::dense::TaggedU32;
use tidewater_protocol::table::{
    Apply, DType, DenseLayout, GradientOptions, Init, KeyOptions, Optimizer, PushOp, Reduce, Shape,
    TableSpec,
};

use super::{BlocksError, DenseBlocks};
use crate::store::ServerMemory;
use crate::store::ShardId;
use crate::store::redo::{Progress, Redo};
use crate::store::sparse::ShardError;

const P: Progress = Progress { lsn: 0, row: 0 };

fn spec(elements: u64, partitions: u32, block_bytes: u32, snapshot: bool) -> TableSpec {
    TableSpec {
        name: "t".into(),
        shape: Shape::Dense {
            rows: elements,
            cols: 1,
            layout: DenseLayout::Blocks {
                block_bytes,
                snapshot,
            },
        },
        dtype: DType::F32,
        optimizer: Optimizer::None,
        init: Init::Uniform {
            low: -1.0,
            high: 1.0,
        },
        seed: 9,
        effect: if snapshot {
            Apply::AtTick(Reduce::Sum)
        } else {
            Apply::Immediate
        },
        finite_check: true,
        domain: DomainId(0),
        partitions,
        gradient: GradientOptions::default(),
        redo: false,
        keys: KeyOptions::default(),
        versions: 2,
        durability: Default::default(),
        partition_servers: None,
        partition_starts: None,
    }
}

fn memory() -> (Arc<ServerMemory>, Redo) {
    let memory = Arc::new(ServerMemory::new(128 << 20, Incarnation(5)).unwrap());
    let redo = Redo::new(Arc::clone(&memory), 0, 256 << 10, 520 << 10).unwrap();
    (memory, redo)
}

fn shard(memory: &Arc<ServerMemory>, spec: TableSpec) -> Result<DenseBlocks, ShardError> {
    let all = (0..spec.partitions).map(PartitionId);
    DenseBlocks::new(memory, ShardId::new(TableId(1), 0), &Arc::new(spec), all)
}

fn bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let of = |raw: &[u8]| f32::from_le_bytes(raw.try_into().unwrap());
    bytes.chunks_exact(4).map(of).collect()
}

#[test]
fn ranges_end_where_partitions_end() {
    let (memory, mut redo) = memory();
    // 4 blocks of 1,024 elements and one of 5, on 2 + 3 blocks.
    let mut shard = shard(&memory, spec(4 * 1024 + 5, 2, 4096, false)).unwrap();
    let firsts: Vec<_> = shard
        .partitions()
        .map(|d| (d.first_block, d.blocks))
        .collect();
    assert_eq!(firsts, [(0, 2), (2, 3)]);
    assert!(shard.owns_range(0, 2048) && shard.owns_range(2048, 2053));
    for (first, count) in [(2047, 2), (0, 0), (4096, 6), (u64::MAX, 1), (5, u64::MAX)] {
        assert!(!shard.owns_range(first, count), "{first}..+{count}");
    }
    let push = |shard: &mut DenseBlocks, redo: &mut Redo, first, n| {
        shard.apply_range(redo, P, first, PushOp::Assign, &bytes(vec![3.0; n]))
    };
    let e = push(&mut shard, &mut redo, 2047, 2).unwrap_err();
    assert!(matches!(e, BlocksError::NotOwned { .. }), "{e}");
    push(&mut shard, &mut redo, 4095, 6).unwrap();
    let mut out = vec![0; 7 * 4];
    shard.read_range(4094, &mut out).unwrap();
    assert_eq!(floats(&out)[1..], [3.0; 6]);
    assert_ne!(floats(&out)[0], 3.0);
    assert!(shard.read_range(4095, &mut out).is_err());
    assert!(shard.read_range(0, &mut []).is_err());
    // A read may span partitions of one applier.
    let mut across = vec![0; 5 * 4];
    shard.read_range(2046, &mut across).unwrap();
    assert!(shard.read_range(u64::MAX, &mut across).is_err());
    assert_eq!(shard.block_lengths(4).unwrap(), (20, 0));
    assert!(shard.block_lengths(5).is_err());
    let e = shard.step(&redo, P, 4, PushOp::Sum, &[0; 24]).unwrap_err();
    assert!(
        matches!(
            e,
            BlocksError::Length {
                have: 24,
                want: 20,
                ..
            }
        ),
        "{e}"
    );
}

#[test]
fn partitions_of_other_appliers_are_refused() {
    let (memory, redo) = memory();
    let spec = Arc::new(spec(3 * 1024, 7, 4096, false));
    let mine = [2, 6].map(PartitionId).into_iter();
    let mut shard = DenseBlocks::new(&memory, ShardId::new(TableId(1), 0), &spec, mine).unwrap();
    let owned: Vec<_> = shard
        .partitions()
        .map(|d| (d.partition.0, d.blocks))
        .collect();
    assert_eq!(owned, [(2, 1), (6, 1)]);
    let reach = [0, 1, 2].map(|block| shard.step(&redo, P, block, PushOp::Sum, &[0; 4096]).is_ok());
    assert_eq!(
        reach,
        [0, 1, 2].map(|block| shard.owns_range(block * 1024, 1))
    );
    assert_eq!(reach.iter().filter(|ok| **ok).count(), 2);
    assert_eq!(shard.owns_range(0, 1024), reach[0]);
}

#[test]
fn shapes_that_cannot_be_are_refused_and_keep_no_memory() {
    let (memory, _redo) = memory();
    let before = memory.public.directory().unwrap();
    let with = |change: fn(&mut TableSpec)| {
        let mut spec = spec(10_000, 4, 4096, true);
        change(&mut spec);
        shard(&memory, spec).unwrap_err()
    };
    assert!(matches!(
        with(|s| s.effect = Apply::Immediate),
        ShardError::Shape { .. }
    ));
    assert!(matches!(
        with(|s| s.shape = Shape::Sparse { dim: 1 }),
        ShardError::Shape { .. }
    ));
    for block_bytes in [0, 2048, 5000, 512 << 10] {
        let e = shard(&memory, spec(10, 1, block_bytes, false)).unwrap_err();
        assert!(matches!(e, ShardError::Shape { .. }), "{e}");
    }
    let e = shard(&memory, spec(u64::MAX, 1, 4096, false)).unwrap_err();
    assert!(matches!(e, ShardError::Shape { .. }), "{e}");
    for elements in [1 << 56, 1 << 30] {
        let e = shard(&memory, spec(elements, 100, 4096, true)).unwrap_err();
        assert!(matches!(e, ShardError::Store(_)), "{e}");
    }
    let after = memory.public.directory().unwrap();
    let used = |(_, owner): &&(_, [u32; 4])| owner[0] != 0;
    assert_eq!(after.iter().filter(used).count(), before.len());
}

#[test]
fn a_range_that_was_cut_is_finished_and_gone_on_with() {
    let (memory, redo) = memory();
    let adam = |elements| TableSpec {
        optimizer: model::ADAM,
        redo: true,
        ..spec(elements, 1, 4096, false)
    };
    let gradient = bytes((0..2501).map(|n| n as f32 / 100.0 - 9.0));
    let mut whole = shard(&memory, adam(4000)).unwrap();
    let start = Progress { lsn: 3, row: 5 };
    whole
        .apply_range(&redo, start, 999, PushOp::Gradient, &gradient)
        .unwrap();
    assert_eq!(redo.finish().unwrap(), Some(Progress { lsn: 3, row: 8 }));
    assert_eq!(whole.resume_at(999, 4), 4096);

    let mut cut = shard(&memory, adam(4000)).unwrap();
    let (done, rest) = gradient.split_at((2048 - 999) * 4);
    cut.apply_range(&redo, start, 999, PushOp::Gradient, done)
        .unwrap();
    // Death in the middle of the store: an odd version, torn payload.
    let d = cut.partitions().next().unwrap();
    let words = memory
        .public
        .region()
        .words_mut(d.versions as usize + 8, 8)
        .unwrap();
    assert_eq!(TaggedU32(words.as_read().load(0)).seq(cut.salt()), Some(4));
    words.store(0, TaggedU32::new(3, cut.salt()).0);
    let payload = memory
        .public
        .region()
        .words_mut(d.payload[0] as usize + 4096, 4096);
    payload.unwrap().zero(512, 1024);
    let last = redo.finish().unwrap().unwrap();
    assert_eq!(last, Progress { lsn: 3, row: 6 });
    assert_eq!(TaggedU32(words.as_read().load(0)).seq(cut.salt()), Some(4));
    let from = cut.resume_at(999, last.row - start.row + 1);
    assert_eq!(from, 2048);
    let next = Progress {
        row: last.row + 1,
        ..last
    };
    cut.apply_range(&redo, next, from, PushOp::Gradient, rest)
        .unwrap();

    let [mut a, mut b] = [vec![0; 16_000], vec![0; 16_000]];
    whole.read_range(0, &mut a).unwrap();
    cut.read_range(0, &mut b).unwrap();
    assert_eq!(a, b);
    for block in 0..4 {
        let len = whole.block_lengths(block).unwrap().1;
        let [mut a, mut b] = [vec![0; len], vec![0; len]];
        whole.read_state_block(block, &mut a).unwrap();
        cut.read_state_block(block, &mut b).unwrap();
        assert_eq!(a, b, "state of block {block}");
    }
}

#[test]
fn a_saved_table_goes_on_in_another_with_other_partitions() {
    let (memory, redo) = memory();
    for snapshot in [false, true] {
        let adam = |partitions| TableSpec {
            optimizer: model::ADAM,
            ..spec(2501, partitions, 4096, snapshot)
        };
        let mut old = shard(&memory, adam(1)).unwrap();
        let mut new = shard(&memory, TableSpec { seed: 1, ..adam(3) }).unwrap();
        let push = |shard: &mut DenseBlocks, epoch: u64| {
            if snapshot {
                shard.begin_epoch(epoch).unwrap();
            }
            for (block, n) in [(0, 1024), (1, 1024), (2, 453)] {
                let g = bytes((0..n).map(|i| (i as f32).sin() * epoch as f32));
                shard.step(&redo, P, block, PushOp::Gradient, &g).unwrap();
            }
            // Elements of one block with other step counts than their neighbours.
            let part = bytes([0.5; 40]);
            let first = 1030 + 10 * epoch;
            let pushed = shard.apply_range(&redo, P, first, PushOp::Gradient, &part);
            pushed.unwrap();
            if snapshot {
                shard.flip(epoch, epoch, epoch).unwrap();
            }
        };
        push(&mut old, 1);
        if snapshot {
            new.begin_epoch(1).unwrap();
        }
        for block in 0..3 {
            let (len, state_len) = old.block_lengths(block).unwrap();
            let (mut payload, mut state) = (vec![0; len], vec![0; state_len]);
            old.read_range(block * 1024, &mut payload).unwrap();
            old.read_state_block(block, &mut state).unwrap();
            new.restore_block(&redo, P, block, &payload, &state)
                .unwrap();
        }
        if snapshot {
            new.flip(1, 1, 1).unwrap();
        }
        push(&mut old, 2);
        push(&mut new, 2);
        for (block, n) in [(0, 1024), (1, 1024), (2, 453)] {
            let [mut a, mut b] = [vec![0; n * 4], vec![0; n * 4]];
            old.read_range(block * 1024, &mut a).unwrap();
            new.read_range(block * 1024, &mut b).unwrap();
            assert_eq!(a, b, "block {block}, snapshot {snapshot}");
            old.read_state_block(block, &mut a).unwrap();
            new.read_state_block(block, &mut b).unwrap();
            assert_eq!(a, b, "state of block {block}, snapshot {snapshot}");
        }
        old.release().unwrap();
        new.release().unwrap();
    }
}

#[test]
fn epochs_come_one_after_the_other() {
    let (memory, redo) = memory();
    let mut plain = shard(&memory, spec(10, 1, 4096, false)).unwrap();
    assert!(plain.begin_epoch(1).is_err() && plain.flip(1, 0, 0).is_err());
    let mut shard = shard(&memory, spec(10, 1, 4096, true)).unwrap();
    let ones = bytes([1.0; 10]);
    let refused = |r: Result<(), BlocksError>| matches!(r, Err(BlocksError::Epoch { .. }));
    assert!(refused(shard.step(&redo, P, 0, PushOp::Sum, &ones)));
    assert!(refused(shard.restore_block(&redo, P, 0, &ones, &[])));
    assert!(refused(shard.flip(0, 0, 0)) && refused(shard.flip(1, 0, 0)));
    assert!(refused(shard.begin_epoch(0)));
    shard.begin_epoch(1).unwrap();
    shard.begin_epoch(1).unwrap();
    // Two steps in one epoch: the second continues from the first, the front has neither.
    let mut first = vec![0; 40];
    shard.read_range(0, &mut first).unwrap();
    shard.step(&redo, P, 0, PushOp::Assign, &ones).unwrap();
    shard
        .apply_range(&redo, P, 3, PushOp::Sum, &bytes([2.0]))
        .unwrap();
    let mut out = vec![0; 40];
    shard.read_range(0, &mut out).unwrap();
    assert_eq!(out, first);
    assert!(refused(shard.flip(2, 0, 0)));
    shard.flip(1, 4, 2).unwrap();
    shard.read_range(0, &mut out).unwrap();
    let mut expected = [1.0; 10];
    expected[3] = 3.0;
    assert_eq!(floats(&out), expected);
    assert_eq!(shard.front(), 1);
    assert!(refused(shard.begin_epoch(1)) && refused(shard.begin_epoch(3)));
    assert!(refused(shard.step(&redo, P, 0, PushOp::Sum, &ones)));
}

#[test]
fn the_first_epoch_may_be_that_of_a_running_clock() {
    let (memory, redo) = memory();
    for first in [7, 8] {
        let mut shard = shard(&memory, spec(2000, 1, 4096, true)).unwrap();
        let (mut was, mut out) = (vec![0; 8000], vec![0; 8000]);
        shard.read_range(0, &mut was).unwrap();
        shard.begin_at(first - 1).unwrap();
        shard.begin_epoch(first).unwrap();
        assert!(shard.begin_at(first).is_err(), "an epoch was begun");
        shard.read_range(0, &mut out).unwrap();
        assert_eq!((shard.front(), &out), (first - 1, &was));
        for (epoch, block) in [(first, 0), (first + 1, 1)] {
            shard.begin_epoch(epoch).unwrap();
            let n = shard.block_lengths(block).unwrap().0 / 4;
            let values = bytes(vec![epoch as f32; n]);
            shard
                .step(&redo, P, block, PushOp::Assign, &values)
                .unwrap();
            shard.flip(epoch, epoch, epoch).unwrap();
        }
        assert!(shard.begin_epoch(first + 9).is_err());
        shard.read_range(0, &mut out).unwrap();
        let (a, b) = out.split_at(4096);
        assert_eq!(
            [floats(a)[9], floats(b)[9]],
            [first as f32, (first + 1) as f32]
        );
    }
}

//! Reduced values of ticks, against a loop over single elements.

use std::sync::Arc;

use tidewater_protocol::ids::{
    DomainId, Incarnation, PartitionId, TableId, WorkerId, WorkerThread,
};
use tidewater_protocol::layout::frame::{FrameFlags, FrameHeader};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::table::{
    Apply, DenseLayout, GradientOptions, Init, KeyOptions, Optimizer, Shape, TableSpec,
};

use super::super::pending::{Stream, StreamKey};
use super::*;
use crate::namespace::{DomainKey, NamespaceId};
use crate::store::ServerMemory;
use crate::store::ShardId;

const DOMAIN: DomainId = DomainId(0);
/// Blocks of 1,024 elements, the last one not full, in three partitions.
const BLOCK: usize = 1024;
const ELEMENTS: usize = 6 * BLOCK + 333;
const LR: f32 = 0.5;

fn spec() -> TableSpec {
    TableSpec {
        name: "t".into(),
        shape: Shape::Dense {
            rows: ELEMENTS as u64,
            cols: 1,
            layout: DenseLayout::Blocks {
                block_bytes: 4096,
                snapshot: false,
            },
        },
        dtype: DType::F32,
        optimizer: Optimizer::Sgd { lr: LR.into() },
        init: Init::Zeros,
        seed: 1,
        effect: Apply::AtTick(Reduce::Mean),
        finite_check: true,
        domain: DOMAIN,
        partitions: 3,
        gradient: GradientOptions::default(),
        redo: false,
        keys: KeyOptions::default(),
        versions: 2,
        durability: Default::default(),
        partition_servers: None,
        partition_starts: None,
    }
}

/// A push of one value to a range of elements.
#[derive(Debug, Clone, Copy)]
struct Push {
    rank: u32,
    op: PushOp,
    first: usize,
    count: usize,
    value: f32,
}

/// Ranges that overlap, begin and end anywhere, and are longer than a block; some of one rank.
fn pushes(seed: u64) -> Vec<Push> {
    let push = |n: u64| {
        let random = |what: u64| mix64(seed << 32 | n << 8 | what) as usize;
        let first = random(0) % ELEMENTS;
        Push {
            rank: (n / 4) as u32,
            op: [PushOp::Assign, PushOp::Sum, PushOp::Gradient][random(1) % 3],
            first,
            count: 1 + random(2) % (3 * BLOCK).min(ELEMENTS - first),
            value: (random(3) % 17) as f32 - 8.0,
        }
    };
    (0..16).map(push).collect()
}

/// One tick of a table of `model`, by elements.
fn tick(model: &mut [f32], pushes: &[Push]) {
    for op in [PushOp::Assign, PushOp::Sum, PushOp::Gradient] {
        let of_op = || pushes.iter().filter(|push| push.op == op);
        for block in 0..ELEMENTS.div_ceil(BLOCK) {
            let elements = block * BLOCK..ELEMENTS.min((block + 1) * BLOCK);
            let here = |push: &&Push| {
                push.first < elements.end && push.first + push.count > elements.start
            };
            let mut ranks: Vec<u32> = of_op().filter(here).map(|push| push.rank).collect();
            ranks.dedup();
            for n in elements.clone() {
                let hits =
                    of_op().filter(|push| (push.first..push.first + push.count).contains(&n));
                let values: Vec<f32> = hits.map(|push| push.value).collect();
                let (Some(last), sum) = (values.last(), values.iter().sum::<f32>()) else {
                    continue;
                };
                model[n] = match op {
                    PushOp::Assign => *last,
                    PushOp::Sum => model[n] + sum,
                    PushOp::Gradient => model[n] - LR * (sum / ranks.len() as f32),
                    PushOp::Min | PushOp::Max => unreachable!("not at ticks"),
                };
            }
        }
    }
}

fn hold(pending: &mut Pending, seq: u64, push: &Push) {
    let values = (0..push.count).flat_map(|_| push.value.to_le_bytes());
    let first = (push.first as u64).to_le_bytes();
    let payload: Vec<u8> = first.into_iter().chain(values).collect();
    let header = FrameHeader {
        kind: FrameKind::PushDense,
        flags: FrameFlags {
            op: Some(push.op),
            dtype: Some(DType::F32),
            ..FrameFlags::default()
        },
        seq,
        session: 0,
        payload_len: payload.len() as u32,
        count: push.count as u32,
        table: 1,
        partition: 0,
        clock: 0,
        user_tag: 0,
        checksum: 0,
    };
    let key = StreamKey {
        namespace: NamespaceId::default(),
        domain: DOMAIN,
        iteration: 0,
        thread: WorkerThread::first(WorkerId(push.rank)),
    };
    let staged = push.rank == 0;
    pending.hold(key, staged, header, &payload).unwrap();
}

/// Takes out the pushes of ranks below `end`, or of all.
fn take(pending: &mut Pending, end: Option<u32>) -> (Vec<Stream>, Vec<Held>) {
    let job = DomainKey::new(NamespaceId::default(), DOMAIN);
    let streams = pending.take(job, 0, end.map(WorkerId));
    let held = streams.iter().flat_map(Stream::frames).copied().collect();
    (streams, held)
}

#[test]
fn a_tick_is_what_a_loop_over_elements_gives() {
    let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(5)).unwrap());
    let redo = Redo::new(Arc::clone(&memory), 0, 4096, 4096).unwrap();
    let (spec, shard_id) = (Arc::new(spec()), ShardId::new(TableId(1), 0));
    let all = (0..spec.partitions).map(PartitionId);
    let mut blocks = DenseBlocks::new(&memory, shard_id, &spec, all).unwrap();
    let rules = Rules {
        dtype: DType::F32,
        reduce: Reduce::Mean,
    };
    let (mut pending, mut buffers) = (Pending::new(Arc::clone(&memory), 0), Buffers::default());
    let mut sums = BlockSums::new(
        Arc::clone(&memory),
        ShardId::new(TableId(1), 0),
        ELEMENTS.div_ceil(BLOCK),
        4096,
    );
    (0..3).for_each(|order| sums.reserve(order).unwrap());
    let mut model = vec![0.0; ELEMENTS];
    for seed in 0..40 {
        let pushes = pushes(seed);
        for (seq, push) in (1..).zip(&pushes) {
            hold(&mut pending, seq, push);
        }
        // Ranks below `turn` have ticked before the others.
        let turn = (seed % 5) as u32;
        let (early, folded) = take(&mut pending, Some(turn));
        assert!(folded.iter().all(|h| h.thread.rank.0 < turn));
        buffers.cut(&pending, &folded, blocks.layout());
        let early_pushes = Pushes {
            pending: &pending,
            held: &folded,
        };
        buffers.fold(early_pushes, &mut sums, blocks.layout(), rules);
        pending.free(early);
        let (streams, held) = take(&mut pending, None);
        assert_eq!(folded.len() + held.len(), pushes.len());
        buffers.cut(&pending, &held, blocks.layout());
        let pushed = Pushes {
            pending: &pending,
            held: &held,
        };
        let start = Progress {
            lsn: seed + 1,
            row: 0,
        };
        let stored = buffers.step(pushed, &mut sums, &mut blocks, &redo, start, rules);
        stored.unwrap();
        pending.free(streams);
        tick(&mut model, &pushes);
        // A range to read lies within one partition.
        for (n, want) in (0..).zip(&model) {
            let mut is = [0; 4];
            blocks.read_range(n, &mut is).unwrap();
            assert_eq!(f32::from_le_bytes(is), *want, "tick {seed}, element {n}");
        }
    }
    assert_eq!(pending.bytes(), 0);
}

#[test]
fn ranges_that_overlap_or_touch_are_one() {
    let mut runs = vec![7..9, 0..2, 2..3, 5..6, 8..12, 6..6];
    merge(&mut runs);
    assert_eq!(runs, [0..3, 5..6, 7..12]);
}

/// A table of `optimizer` from zero.
fn table_of(memory: &Arc<ServerMemory>, optimizer: Optimizer) -> DenseBlocks {
    let spec = Arc::new(TableSpec {
        optimizer,
        ..spec()
    });
    let all = (0..spec.partitions).map(PartitionId);
    DenseBlocks::new(memory, ShardId::new(TableId(1), 0), &spec, all).unwrap()
}

const RULES: [Optimizer; 7] = [
    Optimizer::Adam {
        lr: 0.001,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
    },
    Optimizer::Momentum {
        lr: 0.1,
        mu: 0.9,
        nesterov: false,
    },
    Optimizer::RmsProp {
        lr: 0.1,
        decay: 0.9,
        eps: 1e-8,
    },
    Optimizer::AdamW {
        lr: 0.001,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.1,
    },
    Optimizer::AmsGrad {
        lr: 0.001,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
    },
    Optimizer::AdaDelta {
        lr: 1.0,
        rho: 0.9,
        eps: 1e-6,
    },
    Optimizer::ProximalAdaGrad {
        lr: 0.1,
        eps: 1e-8,
        l1: 0.2,
    },
];

/// Gradients of one rank, at ticks and at once: equal bits, of state too. Elements that no gradient
/// of a tick touched stay unchanged, whatever their moments are.
#[test]
fn ticks_move_what_they_touch_as_pushes_do() {
    for optimizer in RULES {
        let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(5)).unwrap());
        let redo = Redo::new(Arc::clone(&memory), 0, 8192, 16 << 10).unwrap();
        let mut ticked = table_of(&memory, optimizer);
        let mut pushed = table_of(&memory, optimizer);
        let rules = Rules {
            dtype: DType::F32,
            reduce: Reduce::Sum,
        };
        let (mut pending, mut buffers) = (Pending::new(Arc::clone(&memory), 0), Buffers::default());
        let blocks = ELEMENTS.div_ceil(BLOCK);
        let mut sums = BlockSums::new(
            Arc::clone(&memory),
            ShardId::new(TableId(1), 0),
            blocks,
            4096,
        );
        // All of a partition, a part of its blocks, a part of one block: in three frames each.
        let ranges = [0..2 * BLOCK, 100..BLOCK + 1, 300..307, BLOCK..BLOCK + 9];
        for (lsn, range) in (1..).zip(ranges.iter().cycle().take(12)) {
            let value = 1.0 / lsn as f32;
            let third = range.len().div_ceil(3);
            let starts = range.clone().step_by(third);
            for (seq, first) in (1..).zip(starts) {
                let push = Push {
                    rank: 0,
                    op: PushOp::Gradient,
                    first,
                    count: third.min(range.end - first),
                    value,
                };
                hold(&mut pending, seq, &push);
            }
            let (streams, held) = take(&mut pending, None);
            buffers.cut(&pending, &held, ticked.layout());
            let pushes = Pushes {
                pending: &pending,
                held: &held,
            };
            let start = Progress { lsn, row: 0 };
            let stored = buffers.step(pushes, &mut sums, &mut ticked, &redo, start, rules);
            stored.unwrap();
            pending.free(streams);
            let values = value.to_le_bytes().repeat(range.len());
            let progress = Progress { lsn, row: 0 };
            pushed
                .apply_range(
                    &redo,
                    progress,
                    range.start as u64,
                    PushOp::Gradient,
                    &values,
                )
                .unwrap();
            for block in 0..2 {
                let [mut a, mut b] = [vec![0; 4 * BLOCK], vec![0; 4 * BLOCK]];
                ticked.read_range(block * BLOCK as u64, &mut a).unwrap();
                pushed.read_range(block * BLOCK as u64, &mut b).unwrap();
                assert!(a == b, "{optimizer:?}: values of block {block}, tick {lsn}");
                ticked.read_state_block(block, &mut a).unwrap();
                pushed.read_state_block(block, &mut b).unwrap();
                assert!(a == b, "{optimizer:?}: state of block {block}, tick {lsn}");
            }
        }
    }
}

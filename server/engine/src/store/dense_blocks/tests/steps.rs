//! Step counts of elements: Adam's values do not depend on blocks and on how a push was cut.

use super::*;

/// Adam with PyTorch's defaults; elements start at 0.5.
fn adam(elements: u64, block_bytes: u32) -> TableSpec {
    TableSpec {
        optimizer: Optimizer::Adam {
            lr: 0.001,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
        },
        init: Init::Constant(0.5),
        ..spec(elements, 1, block_bytes, false)
    }
}

const GRADIENTS: [f32; 10] = [
    0.5, -0.25, 1.0, 0.125, -2.0, 0.75, -0.0625, 1.5, -1.0, 0.375,
];

/// Bits of a parameter that began at 0.5 after each of these gradients, by the operations of
/// `torch.optim.Adam(lr=1e-3)` on one f32 tensor: lerp, addcmul and addcdiv rounded to f32 each,
/// the bias corrections in f64.
const TORCH: [u32; 10] = [
    0x3eff_7cee,
    0x3eff_5a05,
    0x3eff_03c2,
    0x3efe_b540,
    0x3efe_d21e,
    0x3efe_d49e,
    0x3efe_d882,
    0x3efe_b93b,
    0x3efe_b43f,
    0x3efe_a801,
];

fn all(shard: &DenseBlocks, elements: usize) -> Vec<f32> {
    let mut out = vec![0; elements * 4];
    shard.read_range(0, &mut out).unwrap();
    floats(&out)
}

/// Tensors of all lengths in one vector, each pushed alone, in another order each time, and a block
/// that does not fit a frame: every element equals PyTorch's.
#[test]
fn adam_agrees_with_pytorch_however_pushes_are_cut() {
    let (memory, redo) = memory();
    let elements = 3 * 1024 + 100;
    let mut ends = vec![0, 1, 7, 512, 1000, 1024, 1500, 2048, 2049, 3100, elements];
    let mut shard = shard(&memory, adam(elements as u64, 4096)).unwrap();
    for (step, (g, want)) in GRADIENTS.iter().zip(TORCH).enumerate() {
        let mut tensors: Vec<_> = ends.windows(2).map(|w| w[0]..w[1]).collect();
        let len = tensors.len();
        tensors.rotate_left(step % len);
        for tensor in tensors {
            let values = bytes(vec![*g; tensor.len()]);
            let first = tensor.start as u64;
            shard
                .apply_range(&redo, P, first, PushOp::Gradient, &values)
                .unwrap();
        }
        for (n, w) in all(&shard, elements).iter().enumerate() {
            let far = w.to_bits().abs_diff(want);
            assert!(
                far <= 2,
                "element {n} after {} steps: {w}, {far} units off",
                step + 1
            );
        }
        // The next push is cut elsewhere.
        if ends.len() > 2 {
            ends.remove(1 + step % (ends.len() - 2));
        }
    }
    shard.release().unwrap();
}

/// An element without a gradient keeps value, moments and count; its neighbours do not affect it.
#[test]
fn gradient_of_one_element_moves_nothing_else() {
    let (memory, redo) = memory();
    let mut shard = shard(&memory, adam(1024, 4096)).unwrap();
    for (step, g) in GRADIENTS.iter().enumerate() {
        let pushed = shard.apply_range(&redo, P, 77, PushOp::Gradient, &bytes([*g]));
        pushed.unwrap();
        for (n, w) in all(&shard, 1024).iter().enumerate() {
            let want = if n == 77 {
                f32::from_bits(TORCH[step])
            } else {
                0.5
            };
            let far = w.to_bits().abs_diff(want.to_bits());
            assert!(
                far <= if n == 77 { 2 } else { 0 },
                "element {n}: {w}, not {want}"
            );
        }
    }
}

/// Every element has a count of its own, then all of them are pushed again by whole blocks.
#[test]
fn counts_of_all_elements_may_differ() {
    let (memory, redo) = memory();
    let elements = 1024;
    let mut shard = shard(&memory, adam(elements as u64, 4096)).unwrap();
    let one = bytes([1.0]);
    let mut order: Vec<usize> = (0..elements).map(|n| n * 389 % elements).collect();
    order.retain(|n| n % 2 == 0);
    for &n in &order {
        let pushed = shard.apply_range(&redo, P, n as u64, PushOp::Gradient, &one);
        pushed.unwrap();
    }
    let ones = bytes(vec![1.0; elements]);
    shard.step(&redo, P, 0, PushOp::Gradient, &ones).unwrap();
    let mut state = Vec::new();
    shard.read_state_block(0, &mut state).unwrap();
    let (words, _) = state[2 * 4 * elements..].as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let want: Vec<u64> = (0..1024).map(|n| (2 - n % 2) << 16 | n).collect();
    assert_eq!(words[0], 1 << 63 | 1024);
    assert_eq!(words[1..], want);
    let blocks = |memory: &ServerMemory| {
        let all = memory.private.directory().unwrap();
        all.iter().filter(|(_, owner)| owner[0] == 3).count()
    };
    assert!(blocks(&memory) > 1, "no table of counts");
    shard.release().unwrap();
    assert_eq!(blocks(&memory), 0);
}

/// Without memory for a table of counts a gradient is refused and nothing moves; whole blocks are
/// still accepted.
#[test]
fn full_memory_refuses_a_part_and_changes_nothing() {
    let (memory, redo) = memory();
    let mut shard = shard(&memory, adam(2048, 4096)).unwrap();
    let owner = crate::store::memory::BlockOwner {
        kind: crate::store::memory::BlockKind::Redo,
        table: 0,
        applier: 0,
        part: 0,
    };
    let (used, capacity) = memory.private.usage();
    memory.private.alloc(capacity - used, owner).unwrap();
    let part = bytes(vec![1.0; 1500]);
    let refused = shard.apply_range(&redo, P, 300, PushOp::Gradient, &part);
    assert!(matches!(refused, Err(BlocksError::Store(_))), "{refused:?}");
    assert_eq!(all(&shard, 2048), [0.5; 2048]);
    let whole = bytes(vec![1.0; 2048]);
    shard
        .apply_range(&redo, P, 0, PushOp::Gradient, &whole)
        .unwrap();
    let mut state = Vec::new();
    for block in 0..2 {
        shard.read_state_block(block, &mut state).unwrap();
        assert_eq!(state[2 * 4096..], 1u64.to_le_bytes());
    }
}

/// Step counts that are impossible for a block are refused.
#[test]
fn impossible_step_counts_are_refused() {
    let (memory, redo) = memory();
    let mut shard = shard(&memory, adam(100, 4096)).unwrap();
    let payload = bytes([0.5; 100]);
    let mut load = |words: &[u64]| {
        let mut state = vec![0; 2 * 400];
        state.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        shard.restore_block(&redo, P, 0, &payload, &state)
    };
    let runs = |n: u64| 1 << 63 | n;
    load(&[5]).unwrap();
    load(&[runs(2), 3 << 16 | 9, 4 << 16 | 99]).unwrap();
    for words in [
        &[1 << 50][..],
        &[],
        &[5, 5],
        &[runs(0)],
        &[runs(1), 3 << 16 | 99],
        &[runs(2), 3 << 16 | 9],
        &[runs(2), 3 << 16 | 9, 4 << 16 | 98],
        &[runs(2), 3 << 16 | 9, 4 << 16 | 100],
        &[runs(2), 3 << 16 | 9, 3 << 16 | 99],
        &[runs(3), 3 << 16 | 9, 4 << 16 | 9, 5 << 16 | 99],
        &[runs(2), 3 << 16 | 9, 4 << 16 | 99, 5 << 16 | 99],
    ] {
        assert!(load(words).is_err(), "{words:x?}");
    }
}

/// A push to the first block, recorded; then a boundary in each, for pushes that a tick will apply: the second block gets
/// the table that the first one had. A successor that stores the recorded result again does not write into it.
#[test]
fn record_does_not_name_tables_of_another_block() {
    let (memory, redo) = memory();
    let kept = TableSpec {
        redo: true,
        ..adam(2048, 4096)
    };
    let mut shard = shard(&memory, kept).unwrap();
    let at = Progress { lsn: 7, row: 0 };
    let ten = bytes([1.0; 10]);
    for _ in 0..3 {
        let pushed = shard.apply_range(&redo, at, 0, PushOp::Gradient, &ten);
        pushed.unwrap();
    }
    let steps = |shard: &mut DenseBlocks, block: u64| {
        let mut state = Vec::new();
        shard.read_state_block(block, &mut state).unwrap();
        state.split_off(2 * 4096)
    };
    let first = steps(&mut shard, 0);
    shard.split_steps(&redo, 0, 100).unwrap();
    shard.split_steps(&redo, 1024, 500).unwrap();
    let second = steps(&mut shard, 1);
    assert_eq!(redo.finish().unwrap(), Some(at), "the position stays");
    assert_eq!(steps(&mut shard, 0), first);
    assert_eq!(steps(&mut shard, 1), second);
    let rest = bytes([1.0; 500]);
    let pushed = shard.apply_range(&redo, at, 1024, PushOp::Gradient, &rest);
    pushed.unwrap();
    shard.release().unwrap();
}

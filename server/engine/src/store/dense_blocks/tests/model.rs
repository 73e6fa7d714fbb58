//! The model: every element is separate, with a kernel of length 1.

use proptest::prelude::*;

use super::*;
use tidewater_kernels::RowKernel;

pub(super) const ADAM: Optimizer = Optimizer::Adam {
    lr: 0.1,
    beta1: 0.9,
    beta2: 0.99,
    eps: 1e-8,
};

const RULES: [Optimizer; 13] = [
    Optimizer::None,
    Optimizer::Sgd { lr: 0.1 },
    Optimizer::Momentum {
        lr: 0.1,
        mu: 0.9,
        nesterov: false,
    },
    Optimizer::Momentum {
        lr: 0.1,
        mu: 0.9,
        nesterov: true,
    },
    Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 },
    ADAM,
    Optimizer::Ftrl {
        alpha: 0.1,
        beta: 1.0,
        l1: 0.01,
        l2: 0.1,
    },
    Optimizer::RmsProp {
        lr: 0.1,
        decay: 0.9,
        eps: 1e-8,
    },
    Optimizer::AdamW {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
    },
    Optimizer::AmsGrad {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
    },
    Optimizer::AdaDelta {
        lr: 1.0,
        rho: 0.9,
        eps: 1e-6,
    },
    Optimizer::ProximalSgd { lr: 0.1, l1: 0.2 },
    Optimizer::ProximalAdaGrad {
        lr: 0.1,
        eps: 1e-8,
        l1: 0.2,
    },
];

/// Options of gradients that a range table takes, as far as they suit the rule.
fn options(rule: usize) -> GradientOptions {
    let accumulates = RULES[rule].accumulates();
    GradientOptions {
        weight_decay: 0.05,
        clip_value: Some(1.0),
        clip_norm: None,
        initial_accumulator: if accumulates { 0.3 } else { 0.0 },
        ..GradientOptions::default()
    }
}

/// Elements with their state, each with a step count of its own.
struct Model {
    kernel: RowKernel,
    size: usize,
    slots: usize,
    block: usize,
    elements: Vec<(Vec<u8>, Vec<Vec<u8>>)>,
    counts: Vec<u64>,
}

impl Model {
    /// Initial values are those of whole blocks: rows with the block's number as key.
    fn new(spec: &TableSpec, elements: usize) -> Self {
        let (size, slots) = (spec.dtype.size(), spec.optimizer.state_slots());
        let block = 4096 / size;
        let mut model = Self {
            kernel: RowKernel::of_table(spec, 1).unwrap(),
            size,
            slots,
            block,
            elements: Vec::new(),
            counts: vec![0; elements],
        };
        for (key, first) in (0..).zip((0..elements).step_by(block)) {
            let n = block.min(elements - first);
            let kernel = RowKernel::of_table(spec, n).unwrap();
            let mut payload = vec![0; kernel.row_bytes()];
            let mut state = vec![0; kernel.state_bytes()];
            kernel.init_row(&spec.init, spec.seed, key, &mut payload, &mut state);
            for i in 0..n {
                let slot = |s: usize| state[(s * n + i) * size..][..size].to_vec();
                let state = (0..slots).map(slot).collect();
                model
                    .elements
                    .push((payload[i * size..][..size].to_vec(), state));
            }
        }
        model
    }

    fn push(&mut self, first: usize, op: PushOp, values: &[u8]) {
        let pushed = values.chunks_exact(self.size);
        for (i, x) in (first..).zip(pushed) {
            let (payload, slots) = &mut self.elements[i];
            let mut state = slots.concat();
            let count = self.kernel.state_bytes() != state.len();
            if count {
                state.resize(self.kernel.state_bytes() - 8, 0);
                state.extend_from_slice(&self.counts[i].to_le_bytes());
            }
            self.kernel.apply(op, payload, &mut state, x);
            for (slot, new) in slots.iter_mut().zip(state.chunks(self.size)) {
                slot.copy_from_slice(new);
            }
            if count {
                self.counts[i] = u64::from_le_bytes(*state.last_chunk().unwrap());
            }
        }
    }

    fn payload(&self, first: usize, count: usize) -> Vec<u8> {
        let range = &self.elements[first..first + count];
        range.iter().flat_map(|e| e.0.clone()).collect()
    }

    /// As in a saved model: runs of equal count, one count where there is one run.
    fn state(&self, block: usize) -> Vec<u8> {
        let first = block * self.block;
        let last = self.elements.len().min(first + self.block);
        let slot = |s: usize| {
            self.elements[first..last]
                .iter()
                .flat_map(move |e| e.1[s].clone())
        };
        let mut state: Vec<u8> = (0..self.slots).flat_map(slot).collect();
        if self.kernel.state_bytes() == self.slots * self.size {
            return state;
        }
        // Three slots of an odd number of f32 end inside a word.
        state.resize(state.len().next_multiple_of(8), 0);
        let counts = &self.counts[first..last];
        let mut runs = Vec::new();
        for (i, count) in counts.iter().enumerate() {
            if counts.get(i + 1) != Some(count) {
                runs.push(count << 16 | i as u64);
            }
        }
        let words = match runs.len() {
            1 => vec![counts[0]],
            n => [vec![1 << 63 | n as u64], runs].concat(),
        };
        state.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        state
    }
}

/// A client's read of one block: version word, payload, version word.
fn pull(memory: &ServerMemory, shard: &DenseBlocks, block: u64, out: &mut [u8]) -> Option<u32> {
    let all: Vec<_> = shard.partitions().collect();
    let of = |d: &&super::super::BlocksDescriptor| {
        (d.first_block..d.first_block + d.blocks).contains(&block)
    };
    let d = all.iter().find(of)?;
    let n = (block - d.first_block) as usize;
    let public = memory.public.region();
    let version = public.words(d.versions as usize + n * 8, 8).ok()?;
    let at = d.payload[(shard.front() & 1) as usize] as usize + n * 4096;
    public.words(at, out.len()).ok()?.copy_out(0, out);
    TaggedU32(version.load(0)).seq(shard.salt())
}

fn check(
    memory: &ServerMemory,
    shard: &mut DenseBlocks,
    model: &Model,
) -> Result<(), TestCaseError> {
    for block in 0..model.elements.len().div_ceil(model.block) {
        let first = block * model.block;
        let len = shard.block_lengths(block as u64).unwrap().0;
        let (mut payload, mut state) = (vec![0; len], vec![0xee; 3]);
        shard.read_state_block(block as u64, &mut state).unwrap();
        prop_assert!(state == model.state(block), "state of block {}", block);
        let seq = pull(memory, shard, block as u64, &mut payload);
        prop_assert!(seq.is_some_and(|seq| seq >= 2 && seq % 2 == 0), "{:?}", seq);
        let expected = model.payload(first, len / model.size);
        prop_assert!(payload == expected, "payload of block {}", block);
        for from in 0..3.min(len / model.size) {
            let mut some = vec![0; len - from * model.size];
            shard.read_range((first + from) as u64, &mut some).unwrap();
            prop_assert!(some == expected[from * model.size..], "range at {}", from);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn agrees_with_single_elements(
        rule in 0usize..RULES.len(), wide in any::<bool>(), snapshot in any::<bool>(),
        adjusted in any::<bool>(), redo_on in any::<bool>(),
        elements in 1usize..4000, partitions in 1u32..9,
        pushes in proptest::collection::vec((any::<[u16; 2]>(), 0u8..3, -2f64..2.0, any::<bool>()), 1..24),
    ) {
        let (memory, redo) = memory();
        let spec = TableSpec {
            optimizer: RULES[rule],
            gradient: if adjusted { options(rule) } else { GradientOptions::default() },
            redo: redo_on,
            dtype: if wide { DType::F64 } else { DType::F32 },
            ..spec(elements as u64, partitions, 4096, snapshot)
        };
        let mut model = Model::new(&spec, elements);
        let mut shard = shard(&memory, spec).unwrap();
        check(&memory, &mut shard, &model)?;
        let mut epoch = 0;
        for ([a, b], op, x, flip) in pushes {
            if snapshot && (flip || epoch == 0) {
                if epoch > 0 {
                    shard.flip(epoch, epoch, 0).unwrap();
                }
                epoch += 1;
                shard.begin_epoch(epoch).unwrap();
            }
            let first = a as usize % elements;
            let count = (b as usize % 1500 + 1).min(elements - first);
            let op = [PushOp::Sum, PushOp::Assign, PushOp::Gradient][op as usize];
            let values: Vec<u8> = (0..count).flat_map(|i| {
                let x = x * (1.0 + i as f64 / 64.0);
                if wide { x.to_le_bytes().to_vec() } else { (x as f32).to_le_bytes().to_vec() }
            }).collect();
            let pushed = shard.apply_range(&redo, P, first as u64, op, &values);
            prop_assert_eq!(pushed.is_ok(), shard.owns_range(first as u64, count as u64));
            if pushed.is_ok() {
                model.push(first, op, &values);
            }
        }
        if snapshot {
            shard.flip(epoch, epoch, 0).unwrap();
        }
        check(&memory, &mut shard, &model)?;
    }
}

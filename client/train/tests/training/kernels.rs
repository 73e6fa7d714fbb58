//! Compares the reference trainer's optimizers with the server's kernels.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use tidewater_kernels::RowKernel;
use tidewater_protocol::table::{DType, Optimizer, PushOp, Reduce};
use tidewater_train::data::{BatchPlan, Dataset, LabelMap, ReadOptions, read};
use tidewater_train::generate::{Synthetic, SyntheticSpec};
use tidewater_train::model::{LogisticConfig, LogisticStep};
use tidewater_train::reference::Reference;

/// Rows of dimension 1 that the server's kernel updates.
struct ServerRows {
    kernel: RowKernel,
    state_bytes: usize,
    rows: BTreeMap<u64, ([u8; 4], Vec<u8>)>,
}

impl ServerRows {
    fn weight(&self, key: u64) -> f32 {
        let row = self.rows.get(&key);
        row.map_or(0.0, |(payload, _)| f32::from_le_bytes(*payload))
    }

    fn push(&mut self, key: u64, gradient: f32) {
        let Self {
            kernel,
            state_bytes,
            rows,
        } = self;
        let (payload, state) = rows.entry(key).or_insert_with(|| {
            let mut state = vec![0; *state_bytes];
            kernel.init_state(&mut state);
            ([0; 4], state)
        });
        kernel.apply(PushOp::Gradient, payload, state, &gradient.to_le_bytes());
    }
}

fn some_rows() -> Dataset {
    let spec = SyntheticSpec {
        features: 200,
        ..SyntheticSpec::default()
    };
    let mut text = Vec::new();
    let set = Synthetic::new(spec).unwrap();
    set.write_libsvm(0..1_500, &mut text).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    std::fs::write(&path, text).unwrap();
    let options = ReadOptions {
        labels: LabelMap::Binary,
        ..ReadOptions::default()
    };
    read(&path, &options).unwrap()
}

/// Runs one epoch with both; returns pairs of weights.
fn both(optimizer: Optimizer) -> Vec<(f32, f32)> {
    let data = some_rows();
    let plan = BatchPlan::new(&data, NonZeroUsize::new(16).unwrap());
    let config = LogisticConfig::default();
    let mut reference = Reference::new(config, optimizer, Reduce::Sum);
    let mut server = ServerRows {
        kernel: RowKernel::new(&optimizer, DType::F32, 1).unwrap(),
        state_bytes: optimizer.state_bytes(1, DType::F32),
        rows: BTreeMap::new(),
    };
    let mut step = LogisticStep::new(config);
    for batch in plan.batches() {
        reference.step(&[batch]).unwrap();
        let keys = step.prepare(&batch).to_vec();
        let weights: Vec<_> = keys.iter().map(|&key| server.weight(key)).collect();
        step.compute(&batch, &weights).unwrap();
        for (&key, &gradient) in keys.iter().zip(step.gradient()) {
            server.push(key, gradient);
        }
    }
    let weights = reference.weights();
    weights.map(|(key, w)| (w, server.weight(key))).collect()
}

#[test]
fn the_reference_is_the_servers_kernel_bit_by_bit() {
    let momentum = |nesterov| Optimizer::Momentum {
        lr: 0.1,
        mu: 0.9,
        nesterov,
    };
    for optimizer in [
        Optimizer::Sgd { lr: 0.1 },
        Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 },
        momentum(false),
        momentum(true),
        Optimizer::Ftrl {
            alpha: 0.3,
            beta: 1.0,
            l1: 0.2,
            l2: 0.1,
        },
        Optimizer::AdaDelta {
            lr: 1.0,
            rho: 0.9,
            eps: 1e-6,
        },
        Optimizer::ProximalSgd { lr: 0.1, l1: 0.01 },
        Optimizer::ProximalAdaGrad {
            lr: 0.1,
            eps: 1e-8,
            l1: 0.01,
        },
    ] {
        let weights = both(optimizer);
        assert!(weights.len() > 150);
        assert!(weights.iter().filter(|(w, _)| *w != 0.0).count() > 50);
        for (ours, theirs) in weights {
            assert_eq!(ours.to_bits(), theirs.to_bits(), "{optimizer:?}");
        }
    }
}

#[test]
fn adam_is_the_servers_kernel_up_to_rounding() {
    let adam = Optimizer::Adam {
        lr: 0.01,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
    };
    for (ours, theirs) in both(adam) {
        assert!((ours - theirs).abs() < 1e-4, "{ours} {theirs}");
    }
}

//! Sequences of pushes: kernel and oracle hold the same bits after every one of them.

use proptest::prelude::*;
use tidewater_kernels::RowKernel;
use tidewater_protocol::table::{DType, GradientOptions, Optimizer, PushOp};

use crate::oracle::{Oracle32, Oracle64};
use crate::{Line, bytes32, bytes64, f32s, f64s};

/// Values that reach the corners: both zeros, subnormals, values with squares that under- or
/// overflow.
struct Values(u64);

impl Values {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) ^ mixed >> 31
    }

    fn next(&mut self, wild: bool) -> f64 {
        let sign = if self.bits() & 1 == 0 { 1.0 } else { -1.0 };
        let magnitude = (self.bits() >> 11) as f64 / (1u64 << 53) as f64;
        match self.bits() % 16 {
            0 => sign * 0.0,
            1 if wild => sign * magnitude * 1e-42,
            2 if wild => sign * magnitude * 1e25,
            3 if wild => sign * magnitude * 1e-25,
            4..=8 => sign * magnitude * 8.0,
            _ => sign * magnitude,
        }
    }

    fn row(&mut self, dim: usize, wild: bool) -> Vec<f64> {
        (0..dim).map(|_| self.next(wild)).collect()
    }

    fn op(&mut self) -> PushOp {
        match self.bits() % 10 {
            0 => PushOp::Sum,
            1 => PushOp::Assign,
            2 => PushOp::Min,
            3 => PushOp::Max,
            _ => PushOp::Gradient,
        }
    }
}

/// Runs `steps` pushes of each type on both; the kind of NaN is not compared: IEEE leaves it open.
fn compare(rule: Optimizer, dim: usize, steps: usize, seed: u64, wild: bool) {
    let none = GradientOptions::default();
    compare_with(rule, none, dim, steps, seed, wild);
}

/// [`compare`] for a table with options. The row is new: its state is that of zeros.
fn compare_with(
    rule: Optimizer,
    options: GradientOptions,
    dim: usize,
    steps: usize,
    seed: u64,
    wild: bool,
) {
    let line = |dtype| Line::new(RowKernel::with_options(&rule, &options, dtype, dim).unwrap());
    let (mut line, mut wide_line) = (line(DType::F32), line(DType::F64));
    let mut oracle = Oracle32::new(rule, options, dim);
    let mut wide_oracle = Oracle64::new(rule, options, dim);
    let mut values = Values(seed);
    for step in 0..steps {
        let (op, wide) = (values.op(), values.row(dim, wild));
        let narrow: Vec<f32> = wide.iter().map(|&x| x as f32).collect();
        // Every third push is at another rate than the table's.
        let factor = [1.0, 1.0, 0.3, 1.0, 1.0, 0.0, 1.0, 1.0, 7.5][step % 9];
        (oracle.factor, wide_oracle.factor) = (factor, factor);
        let apply = |line: &mut Line, values: &[u8]| match step % 3 {
            2 => line.apply_at(factor, op, values),
            _ => line.apply(op, values),
        };

        apply(&mut line, &bytes32(&narrow));
        oracle.push(op, &narrow);
        let got = [f32s(line.payload()), f32s(line.state())].concat();
        let want = [oracle.w.clone(), f32s(&oracle.state())].concat();
        same(
            got.iter().map(|x| bits32(*x)),
            want.iter().map(|x| bits32(*x)),
            rule,
            step,
        );

        apply(&mut wide_line, &bytes64(&wide));
        wide_oracle.push(op, &wide);
        let got = [f64s(wide_line.payload()), f64s(wide_line.state())].concat();
        let want = [wide_oracle.w.clone(), f64s(&wide_oracle.state())].concat();
        same(
            got.iter().map(|x| bits64(*x)),
            want.iter().map(|x| bits64(*x)),
            rule,
            step,
        );
    }
}

fn bits32(x: f32) -> u64 {
    if x.is_nan() {
        u64::MAX
    } else {
        x.to_bits().into()
    }
}

fn bits64(x: f64) -> u64 {
    if x.is_nan() { u64::MAX } else { x.to_bits() }
}

fn same(
    got: impl Iterator<Item = u64>,
    want: impl Iterator<Item = u64>,
    rule: Optimizer,
    step: usize,
) {
    let (got, want): (Vec<u64>, Vec<u64>) = (got.collect(), want.collect());
    assert_eq!(got, want, "{rule:?} in step {step}");
}

fn typical() -> [Optimizer; 17] {
    [
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
        Optimizer::Adam {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
        },
        Optimizer::Ftrl {
            alpha: 0.1,
            beta: 1.0,
            l1: 1.0,
            l2: 0.1,
        },
        Optimizer::Ftrl {
            alpha: 0.5,
            beta: 0.0,
            l1: 0.0,
            l2: 1.0,
        },
        Optimizer::RmsProp {
            lr: 0.01,
            decay: 0.99,
            eps: 1e-8,
        },
        Optimizer::AdamW {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.1,
        },
        Optimizer::RowAdaGrad { lr: 0.1, eps: 1e-8 },
        Optimizer::AmsGrad {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
        },
        Optimizer::AdaDelta {
            lr: 1.0,
            rho: 0.9,
            eps: 1e-6,
        },
        Optimizer::ProximalSgd { lr: 0.1, l1: 0.5 },
        Optimizer::ProximalSgd { lr: 0.1, l1: 0.0 },
        Optimizer::ProximalAdaGrad {
            lr: 0.1,
            eps: 1e-8,
            l1: 0.5,
        },
        Optimizer::ProximalAdaGrad {
            lr: 0.1,
            eps: 1e-8,
            l1: 0.0,
        },
    ]
}

/// Every subset of the options that a rule takes.
fn options_of(rule: &Optimizer) -> Vec<GradientOptions> {
    let mut all = Vec::new();
    for bits in 0..16 {
        let set = |bit: u32| bits & 1 << bit != 0;
        let options = GradientOptions {
            weight_decay: if set(0) { 0.25 } else { 0.0 },
            clip_value: set(1).then_some(0.75),
            clip_norm: set(2).then_some(1.5),
            initial_accumulator: if set(3) { 0.1 } else { 0.0 },
            ..GradientOptions::default()
        };
        if (!set(3) || rule.accumulates()) && (*rule != Optimizer::None || bits == 0) {
            all.push(options);
        }
    }
    all
}

#[test]
fn every_rule_with_every_option() {
    for rule in typical() {
        for options in options_of(&rule) {
            for dim in [1, 2, 7, 16, 33] {
                compare_with(rule, options, dim, 60, dim as u64, false);
                compare_with(rule, options, dim, 30, dim as u64, true);
            }
        }
    }
}

#[test]
fn every_rule_at_every_length() {
    for rule in typical() {
        for dim in 1..=130 {
            compare(rule, dim, 12, dim as u64, false);
        }
    }
}

#[test]
fn long_sequences_of_adam() {
    let rule = Optimizer::Adam {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
    };
    compare(rule, 3, 20_000, 1, false);
}

fn decay_of() -> impl Strategy<Value = f64> {
    0.0..0.9999f64
}

fn eps_of() -> impl Strategy<Value = f64> {
    prop_oneof![Just(1e-8), 1e-12..1.0f64]
}

fn any_rule() -> impl Strategy<Value = Optimizer> {
    let rate = 1e-4..2.0f64;
    prop_oneof![
        Just(Optimizer::None),
        rate.clone().prop_map(|lr| Optimizer::Sgd { lr }),
        (rate.clone(), decay_of(), any::<bool>())
            .prop_map(|(lr, mu, nesterov)| Optimizer::Momentum { lr, mu, nesterov }),
        (rate.clone(), eps_of()).prop_map(|(lr, eps)| Optimizer::AdaGrad { lr, eps }),
        (rate.clone(), decay_of(), decay_of(), eps_of()).prop_map(|(lr, beta1, beta2, eps)| {
            Optimizer::Adam {
                lr,
                beta1,
                beta2,
                eps,
            }
        }),
        (rate.clone(), decay_of(), eps_of()).prop_map(|(lr, decay, eps)| Optimizer::RmsProp {
            lr,
            decay,
            eps
        }),
        (rate.clone(), decay_of(), decay_of(), eps_of(), 0.0..0.5f64).prop_map(
            |(lr, beta1, beta2, eps, weight_decay)| Optimizer::AdamW {
                lr,
                beta1,
                beta2,
                eps,
                weight_decay,
            }
        ),
        (rate.clone(), eps_of()).prop_map(|(lr, eps)| Optimizer::RowAdaGrad { lr, eps }),
        (rate.clone(), decay_of(), eps_of()).prop_map(|(lr, rho, eps)| Optimizer::AdaDelta {
            lr,
            rho,
            eps
        }),
        (rate.clone(), 0.0..4.0f64).prop_map(|(lr, l1)| Optimizer::ProximalSgd { lr, l1 }),
        (rate.clone(), eps_of(), 0.0..4.0f64)
            .prop_map(|(lr, eps, l1)| { Optimizer::ProximalAdaGrad { lr, eps, l1 } }),
        (rate.clone(), decay_of(), decay_of(), eps_of()).prop_map(|(lr, beta1, beta2, eps)| {
            Optimizer::AmsGrad {
                lr,
                beta1,
                beta2,
                eps,
            }
        }),
        (
            rate,
            1e-3..2.0f64,
            0.0..4.0f64,
            prop_oneof![Just(0.0), 0.0..2.0f64]
        )
            .prop_map(|(alpha, beta, l1, l2)| Optimizer::Ftrl {
                alpha,
                beta,
                l1,
                l2
            }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_hundred_pushes(
        rule in any_rule(), dim in 1usize..130, seed in any::<u64>(), wild in any::<bool>(),
    ) {
        compare(rule, dim, 100, seed, wild);
    }
}

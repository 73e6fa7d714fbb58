//! Three steps of each rule, worked out on paper, and the message for a refused rule.

use tidewater_kernels::{KernelError, RowKernel};
use tidewater_protocol::limits::ROW_DIM_MAX;
use tidewater_protocol::table::{DType, GradientOptions, Init, Optimizer, PushOp};

use crate::{Line, bytes32, bytes64, f32s, f64s};

/// Checks `w` after each gradient, from `w = start`, in both float types and in each lane of nine.
fn steps(rule: Optimizer, start: f64, gradients: [f64; 3], want: [f64; 3]) {
    let mut wide = Line::new(RowKernel::new(&rule, DType::F64, 9).unwrap());
    let mut line = Line::new(RowKernel::new(&rule, DType::F32, 9).unwrap());
    wide.apply(PushOp::Assign, &bytes64(&[start; 9]));
    line.apply(PushOp::Assign, &bytes32(&[start as f32; 9]));
    for (g, want) in gradients.into_iter().zip(want) {
        wide.apply(PushOp::Gradient, &bytes64(&[g; 9]));
        line.apply(PushOp::Gradient, &bytes32(&[g as f32; 9]));
        let near = |got: f64, error: f64| (got - want).abs() <= error * want.abs();
        let got = f64s(wide.payload());
        assert!(
            got.iter().all(|&w| near(w, 4e-16)),
            "{rule:?}: {got:?}, not {want}"
        );
        let got = f32s(line.payload());
        assert!(
            got.iter().all(|&w| near(w.into(), 3e-7)),
            "{rule:?}: {got:?}, not {want}"
        );
    }
}

#[test]
fn sgd() {
    steps(
        Optimizer::Sgd { lr: 0.5 },
        1.0,
        [1.0, 2.0, -4.0],
        [0.5, -0.5, 1.5],
    );
}

#[test]
fn momentum() {
    // v = 1, 2.5, -2.75.
    let rule = |nesterov| Optimizer::Momentum {
        lr: 0.5,
        mu: 0.5,
        nesterov,
    };
    steps(rule(false), 0.0, [1.0, 2.0, -4.0], [-0.5, -1.75, -0.375]);
    steps(rule(true), 0.0, [1.0, 2.0, -4.0], [-0.75, -2.375, 0.3125]);
}

#[test]
fn adagrad() {
    // sqrt(n) = 3, 5, 13.
    let rule = Optimizer::AdaGrad { lr: 2.0, eps: 3.0 };
    steps(rule, 0.0, [3.0, 4.0, -12.0], [-1.0, -2.0, -0.5]);
}

#[test]
fn adam() {
    // m^ = 2, 0, 16/7 and v^ = 4, 16/7, 304/37.
    let rule = Optimizer::Adam {
        lr: 1.0,
        beta1: 0.5,
        beta2: 0.75,
        eps: 1.0,
    };
    let last = -2.0 / 3.0 - (16.0 / 7.0) / ((304.0f64 / 37.0).sqrt() + 1.0);
    steps(rule, 0.0, [2.0, -1.0, 4.0], [-2.0 / 3.0, -2.0 / 3.0, last]);
}

#[test]
fn adam_counts_the_steps_of_each_row() {
    let rule = Optimizer::Adam {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
    };
    let mut line = Line::new(RowKernel::new(&rule, DType::F32, 3).unwrap());
    for op in [
        PushOp::Gradient,
        PushOp::Sum,
        PushOp::Assign,
        PushOp::Gradient,
    ] {
        line.apply(op, &bytes32(&[1.0, -1.0, 2.0]));
    }
    // Two gradients; sums and assigns do not count. Before the count: two slots of three f32,
    // padded.
    assert_eq!(line.state().len(), 32);
    assert_eq!(line.state()[24..], 2u64.to_le_bytes());
}

#[test]
fn ftrl() {
    // sqrt(n) = 3, 5, 13; sigma = 3, 2, 8; z = 3, 8, 16/3.
    let rule = Optimizer::Ftrl {
        alpha: 1.0,
        beta: 1.0,
        l1: 1.0,
        l2: 0.0,
    };
    steps(
        rule,
        0.0,
        [3.0, 4.0, -12.0],
        [-0.5, -7.0 / 6.0, -13.0 / 42.0],
    );
}

#[test]
fn ftrl_is_exactly_zero_up_to_l1() {
    let rule = Optimizer::Ftrl {
        alpha: 0.1,
        beta: 1.0,
        l1: 1.0,
        l2: 0.0,
    };
    let mut line = Line::new(RowKernel::new(&rule, DType::F32, 7).unwrap());
    let z = [1.0, -1.0, 0.5, -0.5, 0.0, 1.000_000_1, -1.000_000_1];
    line.apply(PushOp::Gradient, &bytes32(&z));
    let w = f32s(line.payload());
    assert!(w[..5].iter().all(|w| w.to_bits() == 0), "{w:?}");
    assert!(w[5] < 0.0 && w[6] > 0.0, "{w:?}");
}

/// Values written to an FTRL table stay, and learning continues from there.
#[test]
fn ftrl_keeps_what_is_written() {
    let rule = Optimizer::Ftrl {
        alpha: 0.5,
        beta: 1.0,
        l1: 0.25,
        l2: 0.5,
    };
    let mut line = Line::new(RowKernel::new(&rule, DType::F64, 3).unwrap());
    line.apply(PushOp::Gradient, &bytes64(&[3.0, -2.0, 1.0]));
    line.apply(PushOp::Assign, &bytes64(&[0.75, -0.1, 0.0]));
    assert_eq!(f64s(line.payload()), [0.75, -0.1, 0.0]);
    line.apply(PushOp::Gradient, &bytes64(&[0.0; 3]));
    let w = f64s(line.payload());
    assert!(
        (w[0] - 0.75).abs() < 1e-15 && (w[1] + 0.1).abs() < 1e-15 && w[2] == 0.0,
        "{w:?}"
    );
    // A zero sum changes nothing, not even below the rounding of z.
    let before = (line.payload().to_vec(), line.state().to_vec());
    line.apply(PushOp::Sum, &bytes64(&[0.0; 3]));
    assert_eq!(before, (line.payload().to_vec(), line.state().to_vec()));
}

/// A row with initial values other than zero starts to learn from there.
#[test]
fn ftrl_learns_from_its_first_values() {
    let rule = Optimizer::Ftrl {
        alpha: 0.1,
        beta: 1.0,
        l1: 0.5,
        l2: 0.1,
    };
    let kernel = RowKernel::new(&rule, DType::F64, 4).unwrap();
    let (mut payload, mut state) = (vec![1; 32], vec![1; 64]);
    kernel.init_row(&Init::Constant(-0.3), 1, 2, &mut payload, &mut state);
    assert_eq!(f64s(&payload), [-0.3; 4]);
    kernel.apply(
        PushOp::Gradient,
        &mut payload,
        &mut state,
        &bytes64(&[0.0; 4]),
    );
    assert!(
        f64s(&payload).iter().all(|w| (w + 0.3).abs() < 1e-15),
        "{:?}",
        f64s(&payload)
    );
}

#[test]
fn a_table_without_a_rule_accepts_no_gradient() {
    let kernel = RowKernel::new(&Optimizer::None, DType::F32, 4).unwrap();
    assert!(kernel.accepts(PushOp::Sum) && kernel.accepts(PushOp::Assign));
    assert!(!kernel.accepts(PushOp::Gradient));
    let mut line = Line::new(kernel);
    line.apply(PushOp::Gradient, &bytes32(&[1.0; 4]));
    assert_eq!(f32s(line.payload()), [0.0; 4]);
    let sgd = RowKernel::new(&Optimizer::Sgd { lr: 1.0 }, DType::F32, 4).unwrap();
    assert!(sgd.accepts(PushOp::Gradient));
}

#[test]
fn rules_that_make_no_sense_are_refused() {
    let refused = |rule, dtype| RowKernel::new(&rule, dtype, 4).unwrap_err();
    let error = refused(Optimizer::Sgd { lr: 0.1 }, DType::I64);
    assert_eq!(
        error,
        KernelError::IntegerGradient {
            rule: "Sgd",
            dtype: DType::I64
        }
    );
    assert!(RowKernel::new(&Optimizer::None, DType::I64, 4).is_ok());

    let adam = |lr, beta1, beta2, eps| Optimizer::Adam {
        lr,
        beta1,
        beta2,
        eps,
    };
    let ftrl = |alpha, beta, l1, l2| Optimizer::Ftrl {
        alpha,
        beta,
        l1,
        l2,
    };
    let momentum = |lr, mu| Optimizer::Momentum {
        lr,
        mu,
        nesterov: false,
    };
    let adadelta = |lr, rho, eps| Optimizer::AdaDelta { lr, rho, eps };
    let proximal_adagrad = |eps, l1| Optimizer::ProximalAdaGrad { lr: 0.1, eps, l1 };
    let cases = [
        (Optimizer::Sgd { lr: 0.0 }, "lr"),
        (Optimizer::Sgd { lr: -0.1 }, "lr"),
        (Optimizer::Sgd { lr: f64::NAN }, "lr"),
        (Optimizer::Sgd { lr: f64::INFINITY }, "lr"),
        // Zero, infinite and one, once rounded to f32.
        (Optimizer::Sgd { lr: 1e-50 }, "lr"),
        (Optimizer::Sgd { lr: 1e50 }, "lr"),
        (momentum(0.1, 1.0 - 1e-9), "mu"),
        (momentum(0.1, 1.0), "mu"),
        (Optimizer::AdaGrad { lr: 0.1, eps: 0.0 }, "eps"),
        (adam(0.1, 1.0, 0.9, 1e-8), "beta1"),
        (adam(0.1, 0.9, -0.1, 1e-8), "beta2"),
        (adam(0.1, 0.9, 0.9, 0.0), "eps"),
        (ftrl(0.0, 1.0, 0.0, 0.0), "alpha"),
        (ftrl(0.1, 0.0, 0.0, 0.0), "beta"),
        (ftrl(0.1, 1.0, -1.0, 0.0), "l1"),
        (ftrl(0.1, 1.0, 0.0, f64::NAN), "l2"),
        (ftrl(0.1, 0.0, 0.0, 1e-50), "beta"),
        (adadelta(0.0, 0.9, 1e-6), "lr"),
        (adadelta(1.0, 1.0, 1e-6), "rho"),
        (adadelta(1.0, -0.1, 1e-6), "rho"),
        (adadelta(1.0, 0.9, 0.0), "eps"),
        (Optimizer::ProximalSgd { lr: 0.0, l1: 0.1 }, "lr"),
        (Optimizer::ProximalSgd { lr: 0.1, l1: -0.1 }, "l1"),
        (proximal_adagrad(0.0, 0.1), "eps"),
        (proximal_adagrad(1e-8, f64::INFINITY), "l1"),
    ];
    for (rule, want) in cases {
        let error = refused(rule, DType::F32);
        let KernelError::HyperParameter { name, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(name, want, "{rule:?}");
    }
    let fine = momentum(1e-50, 1.0 - 1e-9);
    assert!(RowKernel::new(&fine, DType::F64, 4).is_ok());
}

#[test]
fn rows_of_no_or_too_many_elements_are_refused() {
    for dim in [0, ROW_DIM_MAX as usize + 1, usize::MAX] {
        let error = RowKernel::new(&Optimizer::None, DType::F64, dim).unwrap_err();
        assert_eq!(
            error,
            KernelError::Dim {
                dim,
                max: ROW_DIM_MAX
            }
        );
    }
    let kernel = RowKernel::new(&Optimizer::None, DType::F64, ROW_DIM_MAX as usize).unwrap();
    assert_eq!(kernel.row_bytes(), 512 << 10);
}

#[test]
fn rmsprop() {
    // v = 4, 4, 16, roots 2, 2, 4: the new square has weight 1/2.
    let rule = Optimizer::RmsProp {
        lr: 1.0,
        decay: 0.5,
        eps: 2.0,
    };
    let gradients = [8f64.sqrt(), 2.0, 28f64.sqrt()];
    let mut w = 0.0;
    let want = gradients
        .map(|g| (g, if g > 5.0 { 6.0 } else { 4.0 }))
        .map(|(g, below)| {
            w -= g / below;
            w
        });
    steps(rule, 0.0, gradients, want);
}

/// The decay is of the parameter, not of the gradient: with a gradient of 0 it is all that happens.
#[test]
fn adamw_decays_without_a_gradient() {
    let rule = Optimizer::AdamW {
        lr: 0.5,
        beta1: 0.5,
        beta2: 0.5,
        eps: 1.0,
        weight_decay: 0.5,
    };
    steps(rule, 64.0, [0.0; 3], [48.0, 36.0, 27.0]);
}

/// One accumulator for all of a row: n = 12.5 / 2, then 6.25 + 18.75.
#[test]
fn row_adagrad_has_one_accumulator() {
    let rule = Optimizer::RowAdaGrad { lr: 1.0, eps: 2.5 };
    let mut line = Line::new(RowKernel::new(&rule, DType::F64, 2).unwrap());
    line.apply(PushOp::Gradient, &bytes64(&[2.5, 2.5]));
    assert_eq!(f64s(line.payload()), [-0.5, -0.5]);
    line.apply(PushOp::Gradient, &bytes64(&[37.5f64.sqrt(), 0.0]));
    assert_eq!(f64s(line.state()).len(), 1);
    assert!((f64s(line.state())[0] - 25.0).abs() < 1e-12);
    assert_eq!(f64s(line.payload())[1], -0.5);
}

/// The largest second moment stays after small gradients, and one gradient is one step of it.
#[test]
fn amsgrad_keeps_the_largest_moment() {
    let rule = Optimizer::AmsGrad {
        lr: 1.0,
        beta1: 0.5,
        beta2: 0.5,
        eps: 1.0,
    };
    let mut line = Line::new(RowKernel::new(&rule, DType::F64, 1).unwrap());
    line.apply(PushOp::Gradient, &bytes64(&[2.0]));
    assert_eq!(f64s(line.state())[..3], [1.0, 2.0, 2.0], "m, v, s");
    line.apply(PushOp::Gradient, &bytes64(&[0.0]));
    assert_eq!(f64s(line.state())[..3], [0.5, 1.0, 2.0]);
    assert_eq!(line.state().last_chunk(), Some(&2u64.to_le_bytes()));
}

/// Weights within the threshold are +0, others move towards zero by it; a weight of NaN stays NaN. `lr l1` is 0.5.
#[test]
fn l1_step_makes_exact_zeros() {
    let sgd = Optimizer::ProximalSgd { lr: 0.25, l1: 2.0 };
    // n = 16, so the rate of each element is 1 / (4 + 1): the threshold is 0.5 too.
    let adagrad = Optimizer::ProximalAdaGrad {
        lr: 1.25,
        eps: 1.0,
        l1: 2.0,
    };
    let accumulated = GradientOptions {
        initial_accumulator: 16.0,
        ..GradientOptions::default()
    };
    for (rule, options) in [(sgd, GradientOptions::default()), (adagrad, accumulated)] {
        let kernel = RowKernel::with_options(&rule, &options, DType::F64, 7).unwrap();
        let mut line = Line::new(kernel);
        let start = [2.0, -2.0, 0.5, -0.5, 0.25, -0.0, f64::NAN];
        line.apply(PushOp::Assign, &bytes64(&start));
        line.apply(PushOp::Gradient, &bytes64(&[0.0; 7]));
        let w = f64s(line.payload());
        assert_eq!(w[..2], [1.5, -1.5], "{rule:?}");
        assert!(w[2..6].iter().all(|w| w.to_bits() == 0), "{rule:?}: {w:?}");
        assert!(w[6].is_nan(), "{rule:?}");
        // At no rate nothing shrinks.
        line.apply_at(0.0, PushOp::Gradient, &bytes64(&[3.0; 7]));
        assert_eq!(f64s(line.payload())[..2], [1.5, -1.5], "{rule:?}");
    }
}

/// The L1 step comes behind the gradient step and the penalty of L2: w - lr (g + decay w), then the threshold.
#[test]
fn l1_step_follows_the_gradient() {
    let rule = Optimizer::ProximalSgd { lr: 0.5, l1: 1.0 };
    steps(rule, 0.0, [-4.0, 2.0, 1.0], [1.5, 0.0, 0.0]);
    let adagrad = Optimizer::ProximalAdaGrad {
        lr: 2.0,
        eps: 3.0,
        l1: 1.5,
    };
    // sqrt(n) = 3, 5, 13: rates 1/3, 1/4, 1/8.
    steps(adagrad, 0.0, [-3.0, 4.0, -12.0], [0.5, -0.125, 1.1875]);
    let options = GradientOptions {
        weight_decay: 0.5,
        ..GradientOptions::default()
    };
    let kernel = RowKernel::with_options(&rule, &options, DType::F64, 1).unwrap();
    let mut line = Line::new(kernel);
    line.apply(PushOp::Assign, &bytes64(&[8.0]));
    line.apply(PushOp::Gradient, &bytes64(&[2.0]));
    assert_eq!(f64s(line.payload()), [8.0 - 0.5 * (2.0 + 4.0) - 0.5]);
}

/// n = 4, d = g sqrt(0 + 12) / sqrt(4 + 12): one root of each mean.
#[test]
fn adadelta_takes_one_root() {
    let rule = Optimizer::AdaDelta {
        lr: 2.0,
        rho: 0.75,
        eps: 12.0,
    };
    let d = 4.0 * (12.0f64 / 16.0).sqrt();
    let mut line = Line::new(RowKernel::new(&rule, DType::F64, 1).unwrap());
    line.apply(PushOp::Gradient, &bytes64(&[4.0]));
    assert!((f64s(line.payload())[0] + 2.0 * d).abs() < 1e-14);
    let state = f64s(line.state());
    assert!((state[0] - 4.0).abs() < 1e-14 && (state[1] - 0.25 * d * d).abs() < 1e-14);
}

/// No rule divides 0 by 0: a row without a gradient keeps finite values, and those that it had.
#[test]
fn zero_gradients_leave_finite_values() {
    let (lr, eps, beta1, beta2) = (0.1, 1e-8, 0.9, 0.99);
    for rule in [
        Optimizer::AdaGrad { lr, eps },
        Optimizer::RowAdaGrad { lr, eps },
        Optimizer::RmsProp {
            lr,
            decay: 0.9,
            eps,
        },
        Optimizer::Adam {
            lr,
            beta1,
            beta2,
            eps,
        },
        Optimizer::AmsGrad {
            lr,
            beta1,
            beta2,
            eps,
        },
        Optimizer::AdaDelta { lr, rho: 0.9, eps },
        Optimizer::ProximalSgd { lr, l1: 0.0 },
        Optimizer::ProximalAdaGrad { lr, eps, l1: 0.5 },
    ] {
        for dtype in [DType::F32, DType::F64] {
            let mut line = Line::new(RowKernel::new(&rule, dtype, 4).unwrap());
            let zeros = vec![0; 4 * dtype.size()];
            for _ in 0..3 {
                line.apply(PushOp::Gradient, &zeros);
            }
            assert_eq!(line.payload(), zeros, "{rule:?} {dtype:?}");
        }
    }
}

#[test]
fn options_clip_and_then_decay() {
    let kernel = |options| {
        let rule = Optimizer::Sgd { lr: 1.0 };
        RowKernel::with_options(&rule, &options, DType::F64, 2).unwrap()
    };
    let step = |options, start: [f64; 2], g: [f64; 2]| {
        let mut line = Line::new(kernel(options));
        line.apply(PushOp::Assign, &bytes64(&start));
        line.apply(PushOp::Gradient, &bytes64(&g));
        f64s(line.payload())
    };
    let none = GradientOptions::default();
    let value = GradientOptions {
        clip_value: Some(2.0),
        ..none
    };
    assert_eq!(step(value, [0.0; 2], [-3.0, 1.0]), [2.0, -1.0]);
    let norm = GradientOptions {
        clip_norm: Some(5.0),
        ..none
    };
    assert_eq!(step(norm, [0.0; 2], [6.0, 8.0]), [-3.0, -4.0]);
    assert_eq!(
        step(norm, [0.0; 2], [3.0, 4.0]),
        [-3.0, -4.0],
        "not scaled up"
    );
    let large = step(norm, [0.0; 2], [3e200, 4e200]);
    let near = large
        .iter()
        .zip([-3.0, -4.0])
        .all(|(found, right)| (found - right).abs() < 1e-12);
    assert!(near, "squares beyond f64: {large:?}");
    // By value to 8, by norm to 5; the penalty is not clipped.
    let all = GradientOptions {
        weight_decay: 0.5,
        clip_value: Some(8.0),
        clip_norm: Some(5.0),
        ..none
    };
    let both = step(all, [0.0, 100.0], [0.0, 30.0]);
    assert_eq!(both, [0.0, 100.0 - (5.0 + 50.0)]);
}

#[test]
fn accumulators_start_at_the_first_value() {
    let options = GradientOptions {
        initial_accumulator: 9.0,
        ..GradientOptions::default()
    };
    for rule in [
        Optimizer::AdaGrad { lr: 1.0, eps: 1.0 },
        Optimizer::RowAdaGrad { lr: 1.0, eps: 1.0 },
    ] {
        let kernel = RowKernel::with_options(&rule, &options, DType::F64, 1).unwrap();
        let mut line = Line::new(kernel);
        line.apply(PushOp::Gradient, &bytes64(&[4.0]));
        assert_eq!(f64s(line.payload()), [-4.0 / 6.0], "{rule:?}");
    }
}

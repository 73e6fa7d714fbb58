//! The rules against figures of PyTorch: tests/golden/optimizers.txt, written by the script beside it.

use tidewater_kernels::RowKernel;
use tidewater_protocol::table::{DType, GradientOptions, Init, Optimizer, PushOp};

use crate::{bytes32, bytes64, f32s, f64s};

const FIGURES: &str = include_str!("../../../../tests/golden/optimizers.txt");
const DIM: usize = 4;
/// Largest difference to PyTorch in f64, and of f32 to PyTorch's f64.
const NEAR64: f64 = 1e-12;
const NEAR32: f64 = 3e-6;
/// `SparseAdam` adds eps before it corrects the second moment, `Adam` and tables after that.
const NEAR_SPARSE: f64 = 1e-7;
/// PyTorch adds 1e-6 to a norm before it divides by it.
const NEAR_NORM: f64 = 2e-5;

fn gradient(step: u32) -> Vec<f64> {
    let of = |column: u32| f64::from((step * 7 + column * 3) % 23) / 10.0 - 1.1;
    (0..DIM as u32).map(of).collect()
}

/// Largest difference of a case to PyTorch in f64.
fn near(name: &str) -> f64 {
    match name {
        "clip-norm" => NEAR_NORM,
        "sparse-adam" => NEAR_SPARSE,
        _ => NEAR64,
    }
}

/// Rule and options of a case: its name is that of the rule, and of the option if there is one.
fn case(name: &str) -> (Optimizer, GradientOptions) {
    let none = GradientOptions::default();
    let decay = GradientOptions {
        weight_decay: 0.05,
        ..none
    };
    let first = GradientOptions {
        initial_accumulator: 0.1,
        ..none
    };
    let value = GradientOptions {
        clip_value: Some(0.5),
        ..none
    };
    let norm = GradientOptions {
        clip_norm: Some(1.0),
        ..none
    };
    match name {
        "clip-value" => (rule("sgd"), value),
        "clip-norm" => (rule("sgd"), norm),
        _ => match name.rsplit_once('-') {
            Some((name, "decay")) => (rule(name), decay),
            Some((name, "first")) => (rule(name), first),
            _ => (rule(name), none),
        },
    }
}

/// Rule of a name in the figures.
fn rule(name: &str) -> Optimizer {
    let (lr, beta1, beta2, eps) = (0.01, 0.9, 0.99, 1e-8);
    let momentum = |nesterov| Optimizer::Momentum {
        lr: 0.1,
        mu: 0.9,
        nesterov,
    };
    match name {
        "sgd" => Optimizer::Sgd { lr: 0.1 },
        "momentum" => momentum(false),
        "nesterov" => momentum(true),
        "adagrad" => Optimizer::AdaGrad { lr: 0.1, eps },
        "rmsprop" => Optimizer::RmsProp {
            lr,
            decay: 0.9,
            eps,
        },
        "adam" | "sparse-adam" => Optimizer::Adam {
            lr,
            beta1,
            beta2,
            eps,
        },
        "amsgrad" => Optimizer::AmsGrad {
            lr,
            beta1,
            beta2,
            eps,
        },
        "adamw" => Optimizer::AdamW {
            lr,
            beta1,
            beta2,
            eps,
            weight_decay: 0.1,
        },
        "adadelta" => Optimizer::AdaDelta {
            lr: 0.5,
            rho: 0.9,
            eps: 1e-6,
        },
        "proximal-sgd" => Optimizer::ProximalSgd { lr: 0.1, l1: 0.3 },
        "proximal-adagrad" => Optimizer::ProximalAdaGrad {
            lr: 0.1,
            eps,
            l1: 0.3,
        },
        other => panic!("the figures have a rule {other} that is not here"),
    }
}

/// Parameters of a new row after some gradients: at the rule's rate, and at twice the half of it.
fn trained(rule: &Optimizer, options: &GradientOptions, dtype: DType, steps: u32) -> Vec<f64> {
    let kernel = RowKernel::with_options(rule, options, dtype, DIM).unwrap();
    let half = rule.with_rate(rule.parameters()[0].value / 2.0);
    let twice = RowKernel::with_options(&half, options, dtype, DIM).unwrap();
    let twice = twice.at_rate(2.0);
    let mut row = vec![0; kernel.row_bytes()];
    let mut state = vec![0; kernel.state_bytes()];
    kernel.init_row(&Init::Zeros, 0, 0, &mut row, &mut state);
    let bytes = |values: &[f64]| match dtype {
        DType::F32 => bytes32(&values.iter().map(|&x| x as f32).collect::<Vec<_>>()),
        _ => bytes64(values),
    };
    let start: Vec<f64> = (0..DIM).map(|n| 0.5 - 0.25 * n as f64).collect();
    kernel.apply(PushOp::Assign, &mut row, &mut state, &bytes(&start));
    for step in 0..steps {
        let g = bytes(&gradient(step));
        let kernel = [&kernel, &twice][step as usize % 2];
        kernel.apply(PushOp::Gradient, &mut row, &mut state, &g);
    }
    match dtype {
        DType::F32 => f32s(&row).into_iter().map(f64::from).collect(),
        _ => f64s(&row),
    }
}

#[test]
fn rules_agree_with_pytorch() {
    let mut cases = 0;
    for line in FIGURES.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let name = words.next().unwrap();
        let steps: u32 = words.next().unwrap().parse().unwrap();
        let want: Vec<f64> = words.map(|word| word.parse().unwrap()).collect();
        assert_eq!(want.len(), DIM, "{line}");
        let (rule, options) = case(name);
        let near = near(name);
        for (dtype, near) in [(DType::F64, near), (DType::F32, near.max(NEAR32))] {
            let got = trained(&rule, &options, dtype, steps);
            for (got, want) in got.iter().zip(&want) {
                assert!(
                    (got - want).abs() <= near,
                    "{name} after {steps} steps in {dtype:?}: {got:e}, PyTorch has {want:e}"
                );
            }
        }
        cases += 1;
    }
    assert_eq!(cases, 21 * 7);
}

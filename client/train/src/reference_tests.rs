use std::num::NonZeroUsize;

use super::*;
use crate::model::Scale;

const ADAGRAD: Optimizer = Optimizer::AdaGrad { lr: 0.5, eps: 1e-8 };

fn stepped(optimizer: Optimizer, gradients: &[f32]) -> Cell {
    let mut cell = Cell::default();
    for &g in gradients {
        cell.apply(&optimizer, g);
    }
    cell
}

fn close(a: f32, b: f64) -> bool {
    (f64::from(a) - b).abs() < 1e-6
}

#[test]
fn optimizers_follow_their_formulas() {
    assert_eq!(stepped(Optimizer::None, &[3.0]).weight, 0.0);
    let sgd = stepped(Optimizer::Sgd { lr: 0.5 }, &[1.0, -3.0]);
    assert_eq!(sgd.weight, 1.0);

    let momentum = |nesterov| Optimizer::Momentum {
        lr: 0.5,
        mu: 0.5,
        nesterov,
    };
    // v = 1, then 0.5 + 2 = 2.5.
    assert_eq!(stepped(momentum(false), &[1.0, 2.0]).weight, -1.75);
    // 1 + 0.5, then 2 + 1.25.
    assert_eq!(stepped(momentum(true), &[1.0, 2.0]).weight, -2.375);

    // u = 1.5 and 2.5, less 0.5 each time.
    let proximal = Optimizer::ProximalSgd { lr: 0.5, l1: 1.0 };
    assert_eq!(stepped(proximal, &[-3.0, -3.0]).weight, 2.0);
    assert_eq!(stepped(proximal, &[1.0]).weight, 0.0);

    // n = 9, then 25.
    let adagrad = stepped(ADAGRAD, &[3.0, 4.0]);
    assert!(close(adagrad.weight, -0.5 * (3.0 / 3.0 + 4.0 / 5.0)));
}

#[test]
fn adam_corrects_its_bias_by_the_rows_own_steps() {
    let adam = Optimizer::Adam {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        eps: 0.0,
    };
    // The first step is lr, whatever the gradient.
    assert!(close(stepped(adam, &[7.0]).weight, -0.1));
    let (m, v) = (0.9 * 0.1 + 0.1 * 3.0, 0.99 * 0.01 + 0.01 * 9.0);
    let second: f64 = (m / (1.0 - 0.81)) / f64::sqrt(v / (1.0 - 0.9801));
    assert!(close(
        stepped(adam, &[1.0, 3.0]).weight,
        -0.1 - 0.1 * second
    ));
}

#[test]
fn ftrl_is_zero_up_to_l1_and_then_the_closed_form() {
    let (alpha, beta, l1, l2) = (0.5, 1.0, 2.0, 0.25);
    let ftrl = Optimizer::Ftrl {
        alpha,
        beta,
        l1,
        l2,
    };
    let inside = stepped(ftrl, &[1.5, 0.5]);
    assert_eq!((inside.weight, inside.state[0]), (0.0, 2.0));
    // z = 3 and n = 9, for the weight was zero until now.
    let outside = stepped(ftrl, &[3.0]);
    let expected = -(3.0 - l1) / ((beta + 3.0) / alpha + l2);
    assert!(close(outside.weight, expected), "{}", outside.weight);
    // The next step subtracts sigma w.
    let next = stepped(ftrl, &[3.0, -4.0]);
    let z = 3.0 - 4.0 - (5.0 - 3.0) / alpha * expected;
    assert!(close(next.state[0], z), "{}", next.state[0]);
    assert_eq!(next.weight, 0.0);
    let mirrored = stepped(ftrl, &[-3.0]);
    assert_eq!(mirrored.weight, -outside.weight);
}

fn rows(labels: &[f32]) -> Dataset {
    let mut data = Dataset::new();
    for (index, &label) in labels.iter().enumerate() {
        data.push(label, &[index as u64 % 2, 9], &[1.0, 2.0])
            .unwrap();
    }
    data
}

fn plans(parts: &[Dataset]) -> Vec<BatchPlan<'_>> {
    let batch = NonZeroUsize::new(2).unwrap();
    parts
        .iter()
        .map(|part| BatchPlan::new(part, batch))
        .collect()
}

fn trained(parts: &[Dataset], reduce: Reduce, scale: Scale) -> Vec<(u64, f32)> {
    let model = LogisticConfig {
        scale,
        ..Default::default()
    };
    let mut reference = Reference::new(model, Optimizer::Sgd { lr: 1.0 }, reduce);
    let loss = reference.epoch(&plans(parts)).unwrap();
    assert_eq!(loss.rows, parts.iter().map(Dataset::rows).sum::<usize>());
    reference.weights().collect()
}

#[test]
fn workers_of_a_step_see_the_same_weights() {
    // At weights 0 every error is 1/2 or -1/2, so all sums are exact.
    let two = [rows(&[1.0, 0.0]), rows(&[1.0, 1.0])];
    let weights = trained(&two, Reduce::Sum, Scale::Sum);
    assert_eq!(weights, [(0, 1.0), (1, 0.0), (9, 2.0), (u64::MAX - 1, 1.0)]);
    let weights = trained(&two, Reduce::Mean, Scale::Sum);
    assert_eq!(weights, [(0, 0.5), (1, 0.0), (9, 1.0), (u64::MAX - 1, 0.5)]);
}

#[test]
fn the_mean_counts_only_workers_that_pushed_the_row() {
    // The second worker has one row, hence no key 1.
    let two = [rows(&[1.0, 1.0]), rows(&[1.0])];
    let weights = trained(&two, Reduce::Mean, Scale::Sum);
    assert_eq!(weights[0], (0, 0.5));
    assert_eq!(weights[1], (1, 0.5));
    assert_eq!(weights[2], (9, 1.5));
}

#[test]
fn parts_of_unequal_size_all_count() {
    let uneven = [rows(&[1.0; 6]), rows(&[0.0; 2]), Dataset::new()];
    let weights = trained(&uneven, Reduce::Sum, Scale::Mean);
    assert_eq!(weights.len(), 4);
}

#[test]
fn evaluation_does_not_create_rows() {
    let model = LogisticConfig::default();
    let mut reference = Reference::new(model, ADAGRAD, Reduce::Sum);
    reference.epoch(&plans(&[rows(&[1.0, 0.0])])).unwrap();
    let before = reference.weights().len();
    let mut unseen = Dataset::new();
    unseen.push(1.0, &[77], &[1.0]).unwrap();
    assert_eq!(reference.evaluate(&unseen).unwrap().rows(), 1);
    assert_eq!(reference.weights().len(), before);
    assert_eq!(reference.weight(77), 0.0);
}

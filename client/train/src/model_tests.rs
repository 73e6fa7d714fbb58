use std::num::{NonZeroU32, NonZeroUsize};

use proptest::prelude::*;

use super::*;
use crate::data::{BatchPlan, Dataset};

fn dataset(rows: &[(f32, &[(u64, f32)])]) -> Dataset {
    let mut data = Dataset::new();
    for (label, entries) in rows {
        let (keys, values): (Vec<u64>, Vec<f32>) = entries.iter().copied().unzip();
        data.push(*label, &keys, &values).unwrap();
    }
    data
}

fn plan_of_all(data: &Dataset) -> BatchPlan<'_> {
    BatchPlan::new(data, NonZeroUsize::new(1 << 20).unwrap())
}

fn three_rows() -> Dataset {
    dataset(&[
        (1.0, &[(3, 1.0), (900, 2.0)]),
        (0.0, &[(3, -0.5)]),
        (1.0, &[(u64::MAX, 1.0)]),
    ])
}

/// The objective, straight from its definition.
fn objective(data: &Dataset, config: LogisticConfig, keys: &[u64], weights: &[f64]) -> f64 {
    let weight = |key| weights[keys.binary_search(&key).unwrap()];
    let loss: f64 = data
        .iter()
        .map(|row| {
            let bias = config.bias_key.map_or(0.0, weight);
            let entries = row.keys.iter().zip(row.values);
            let margin: f64 = entries.map(|(&k, &v)| weight(k) * f64::from(v)).sum();
            let p = 1.0 / (1.0 + (-(margin + bias)).exp());
            -if row.label == 1.0 { p } else { 1.0 - p }.ln()
        })
        .sum();
    let scale = match config.scale {
        Scale::Mean => 1.0 / data.rows() as f64,
        Scale::Sum => 1.0,
        Scale::Nominal(rows) => 1.0 / f64::from(rows.get()),
    };
    let decayed = keys.iter().zip(weights);
    let decayed = decayed.filter(|(key, _)| Some(**key) != config.bias_key);
    let penalty: f64 = decayed.map(|(_, w)| w * w / 2.0).sum();
    loss * scale + f64::from(config.l2) * penalty
}

#[test]
fn keys_are_ascending_unique_and_hold_the_bias() {
    let data = three_rows();
    let plan = plan_of_all(&data);
    let mut step = LogisticStep::new(LogisticConfig::default());
    assert_eq!(step.prepare(&plan.batch(0)), [3, 900, BIAS_KEY, u64::MAX]);
    let mut step = LogisticStep::new(LogisticConfig {
        bias_key: None,
        ..Default::default()
    });
    assert_eq!(step.prepare(&plan.batch(0)), [3, 900, u64::MAX]);
    assert!(step.prepare(&Batch::empty(&data)).is_empty());
}

#[test]
fn gradient_is_the_objectives_slope() {
    let data = three_rows();
    let plan = plan_of_all(&data);
    let nominal = Scale::Nominal(NonZeroU32::new(4).unwrap());
    for scale in [Scale::Mean, Scale::Sum, nominal] {
        for bias_key in [None, Some(BIAS_KEY), Some(500)] {
            let l2 = 0.25;
            let config = LogisticConfig {
                bias_key,
                l2,
                scale,
            };
            let mut step = LogisticStep::new(config);
            let keys = step.prepare(&plan.batch(0)).to_vec();
            let weights: Vec<f64> = (0..keys.len()).map(|i| i as f64 * 0.5 - 0.75).collect();
            let narrow: Vec<f32> = weights.iter().map(|&w| w as f32).collect();
            let loss = step.compute(&plan.batch(0), &narrow).unwrap();
            assert_eq!(loss.rows, 3);
            for slot in 0..keys.len() {
                let at = |h: f64| {
                    let mut moved = weights.clone();
                    moved[slot] += h;
                    objective(&data, config, &keys, &moved)
                };
                let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                let gradient = f64::from(step.gradient()[slot]);
                assert!(
                    (gradient - slope).abs() < 1e-6,
                    "{slot}: {gradient} {slope}"
                );
            }
            let free = LogisticConfig {
                l2: 0.0,
                scale: Scale::Sum,
                ..config
            };
            let expected = objective(&data, free, &keys, &weights);
            assert!((loss.loss_sum - expected).abs() < 1e-9);
        }
    }
}

#[test]
fn a_feature_may_share_the_bias_key() {
    let data = dataset(&[(1.0, &[(7, 2.0)])]);
    let plan = plan_of_all(&data);
    let mut step = LogisticStep::new(LogisticConfig {
        bias_key: Some(7),
        ..Default::default()
    });
    assert_eq!(step.prepare(&plan.batch(0)), [7]);
    step.compute(&plan.batch(0), &[0.0]).unwrap();
    // (p - y) (x + 1) with p = 1/2.
    assert_eq!(step.gradient(), [-1.5]);
}

#[test]
fn extreme_margins_stay_finite() {
    assert_eq!((sigmoid(1e4), sigmoid(-1e4)), (1.0, 0.0));
    assert_eq!(log_loss_of_margin(-1e4, 1.0), 1e4);
    assert_eq!(log_loss_of_margin(1e4, 1.0), 0.0);
    assert_eq!(log_loss_of_margin(1e4, 0.0), 1e4);
    assert!((log_loss_of_margin(0.0, 1.0) - 2f64.ln()).abs() < 1e-15);
}

#[test]
fn misuse_returns_typed_error() {
    let data = three_rows();
    let plan = plan_of_all(&data);
    let mut step = LogisticStep::new(LogisticConfig::default());
    let error = step.compute(&plan.batch(0), &[]).unwrap_err();
    assert_eq!(
        error,
        ModelError::NotPrepared {
            prepared: 0,
            given: 7 - 2
        }
    );
    step.prepare(&plan.batch(0));
    let error = step.compute(&plan.batch(0), &[0.0; 3]).unwrap_err();
    assert_eq!(error, ModelError::WeightCount { keys: 4, given: 3 });
    assert!(
        step.predict(&plan.batch(0), &[0.0; 5], &mut Vec::new())
            .is_err()
    );

    let unmapped = dataset(&[(-1.0, &[(1, 1.0)])]);
    let plan = plan_of_all(&unmapped);
    step.prepare(&plan.batch(0));
    let error = step.compute(&plan.batch(0), &[0.0; 2]).unwrap_err();
    assert!(error.to_string().contains("label -1"), "{error}");
}

#[test]
fn an_empty_batch_is_no_step() {
    let data = three_rows();
    let mut step = LogisticStep::new(LogisticConfig::default());
    step.prepare(&Batch::empty(&data));
    let loss = step.compute(&Batch::empty(&data), &[]).unwrap();
    assert_eq!(loss, BatchLoss::default());
    assert!(step.gradient().is_empty());
}

#[test]
fn buffers_do_not_grow_in_steady_state() {
    let data = three_rows();
    let plan = plan_of_all(&data);
    let mut step = LogisticStep::new(LogisticConfig::default());
    let run = |step: &mut LogisticStep| {
        step.prepare(&plan.batch(0));
        step.compute(&plan.batch(0), &[0.5; 4]).unwrap();
        [
            step.entries.as_ptr() as usize,
            step.keys.as_ptr() as usize,
            step.slots.as_ptr() as usize,
            step.sums.as_ptr() as usize,
            step.gradient.as_ptr() as usize,
        ]
    };
    let first = run(&mut step);
    for _ in 0..100 {
        assert_eq!(run(&mut step), first);
    }
}

proptest! {
    #[test]
    fn repeats_are_bit_exact_and_predictions_agree(
        rows in prop::collection::vec(
            (any::<bool>(), prop::collection::btree_map(0u64..30, -3f32..3.0, 0..8)),
            1..12,
        ),
        seed in -2f32..2.0,
    ) {
        let mut data = Dataset::new();
        for (label, entries) in &rows {
            let (keys, values): (Vec<u64>, Vec<f32>) = entries.iter().unzip();
            data.push(f32::from(u8::from(*label)), &keys, &values).unwrap();
        }
        let plan = plan_of_all(&data);
        let batch = plan.batch(0);
        let mut step = LogisticStep::new(LogisticConfig { l2: 0.1, ..Default::default() });
        let keys = step.prepare(&batch).to_vec();
        prop_assert!(keys.is_sorted_by(|a, b| a < b));
        let weights: Vec<f32> = (0..keys.len()).map(|i| seed * (i as f32 - 3.0)).collect();
        let loss = step.compute(&batch, &weights).unwrap();
        let bits: Vec<u32> = step.gradient().iter().map(|g| g.to_bits()).collect();

        let mut again = LogisticStep::new(LogisticConfig { l2: 0.1, ..Default::default() });
        again.prepare(&Batch::empty(&data));
        again.prepare(&batch);
        prop_assert_eq!(again.compute(&batch, &weights).unwrap(), loss);
        let repeat: Vec<u32> = again.gradient().iter().map(|g| g.to_bits()).collect();
        prop_assert_eq!(bits, repeat);

        let mut probabilities = Vec::new();
        step.predict(&batch, &weights, &mut probabilities).unwrap();
        prop_assert_eq!(probabilities.len(), rows.len());
        for (row, &p) in data.iter().zip(&probabilities) {
            let entries = row.keys.iter().zip(row.values);
            let weight = |key: &u64| f64::from(weights[keys.binary_search(key).unwrap()]);
            let sum: f64 = entries.map(|(key, &x)| weight(key) * f64::from(x)).sum();
            let expected = 1.0 / (1.0 + (-(sum + weight(&BIAS_KEY))).exp());
            prop_assert!((p - expected).abs() < 1e-12);
        }
    }
}

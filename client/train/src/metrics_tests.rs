use proptest::prelude::*;

use super::*;

fn scored(rows: &[(f32, bool)]) -> Vec<Scored> {
    let rows = rows.iter();
    rows.map(|&(score, positive)| Scored { score, positive })
        .collect()
}

/// The definition: every positive against every negative.
fn auc_by_pairs(rows: &[Scored]) -> f64 {
    let (mut wins, mut pairs) = (0.0, 0.0);
    for p in rows.iter().filter(|row| row.positive) {
        for n in rows.iter().filter(|row| !row.positive) {
            pairs += 1.0;
            wins += match p.score.partial_cmp(&n.score).unwrap() {
                std::cmp::Ordering::Greater => 1.0,
                std::cmp::Ordering::Equal => 0.5,
                std::cmp::Ordering::Less => 0.0,
            };
        }
    }
    wins / pairs
}

fn evaluation(rows: &[(f64, bool)]) -> Evaluation {
    let mut evaluation = Evaluation::new();
    for &(p, positive) in rows {
        evaluation.add(p, positive).unwrap();
    }
    evaluation
}

#[test]
fn auc_of_small_cases() {
    let auc = |rows: &[(f32, bool)]| auc_exact(&mut scored(rows));
    assert_eq!(auc(&[(0.1, false), (0.9, true)]), Ok(1.0));
    assert_eq!(auc(&[(0.1, true), (0.9, false)]), Ok(0.0));
    assert_eq!(auc(&[(0.5, true), (0.5, false), (0.5, false)]), Ok(0.5));
    assert_eq!(auc(&[(-0.0, true), (0.0, false)]), Ok(0.5));
    // scikit-learn's documentation example.
    let example = [(0.1, false), (0.4, false), (0.35, true), (0.8, true)];
    assert_eq!(auc(&example), Ok(0.75));
    assert_eq!(
        auc(&[(1.0, true)]),
        Err(MetricsError::OneClass {
            positives: 1,
            negatives: 0
        })
    );
    assert!(matches!(
        auc(&[(0.0, true), (f32::NAN, false)]),
        Err(MetricsError::NotFinite { row: 1, .. })
    ));
}

#[test]
fn rates_of_a_known_table() {
    let rows = [
        (0.9, true),
        (0.5, true),
        (0.8, false),
        (0.2, false),
        (0.3, true),
    ];
    let e = evaluation(&rows);
    assert_eq!(e.rows(), 5);
    assert_eq!(e.accuracy(), Some(3.0 / 5.0));
    assert_eq!(e.precision(), Some(2.0 / 3.0));
    assert_eq!(e.recall(), Some(2.0 / 3.0));
    let loss = -(0.9f64.ln() + 0.5f64.ln() + 0.2f64.ln() + 0.8f64.ln() + 0.3f64.ln()) / 5.0;
    assert!((e.log_loss().unwrap() - loss).abs() < 1e-15);
}

#[test]
fn nothing_is_not_a_number() {
    let e = Evaluation::new();
    assert_eq!(
        (e.log_loss(), e.accuracy(), e.precision(), e.recall()),
        (None, None, None, None)
    );
    assert!(e.auc().is_err());
    assert!(Evaluation::new().add(f64::NAN, true).is_err());
}

#[test]
fn certain_and_wrong_costs_the_clip() {
    for (p, positive) in [(0.0, true), (1.0, false)] {
        let loss = evaluation(&[(p, positive)]).log_loss().unwrap();
        assert!((loss - 34.54).abs() < 0.01, "{loss}");
    }
    assert!(evaluation(&[(1.0, true)]).log_loss().unwrap() < 1e-14);
}

#[test]
fn foreign_evaluations_must_add_up() {
    let mut sum = evaluation(&[(0.9, true)]);
    let before = sum.clone();
    let good = evaluation(&[(0.1, false), (0.6, true)]);
    let bad: [fn(&mut Evaluation); 7] = [
        |e| e.rows += 1,
        |e| e.bins[3].negatives += 1,
        |e| {
            e.bins.pop();
        },
        |e| e.bins.push(ClassCounts::default()),
        |e| e.true_positives = u64::MAX,
        |e| e.loss_sum = f64::NAN,
        |e| e.bins[0] = [u64::MAX, u64::MAX].into(),
    ];
    for break_it in bad {
        let mut broken = good.clone();
        break_it(&mut broken);
        assert!(matches!(
            sum.merge(&broken),
            Err(MetricsError::Inconsistent { .. })
        ));
        assert_eq!(sum, before);
    }
    // Consistent in itself, but too many rows together.
    let mut huge = Evaluation::new();
    huge.rows = u64::MAX;
    huge.true_negatives = u64::MAX;
    huge.bins[0].negatives = u64::MAX;
    assert!(sum.merge(&huge).is_err());
    assert_eq!(sum, before);
    sum.merge(&good).unwrap();
    assert_eq!(sum.rows(), 3);
}

proptest! {
    #[test]
    fn auc_is_its_definition(rows in prop::collection::vec((0u8..12, any::<bool>()), 2..40)) {
        let rows: Vec<_> = rows.iter().map(|&(s, p)| (f32::from(s) - 5.0, p)).collect();
        let mut rows = scored(&rows);
        let expected = auc_by_pairs(&rows);
        match auc_exact(&mut rows) {
            Ok(auc) => prop_assert!((auc - expected).abs() < 1e-12),
            Err(_) => prop_assert!(expected.is_nan()),
        }
    }

    #[test]
    fn merged_parts_equal_all_rows(
        rows in prop::collection::vec((0f64..=1.0, any::<bool>()), 1..60),
        cut in 0usize..60,
    ) {
        let cut = cut.min(rows.len());
        let mut merged = evaluation(&rows[..cut]);
        merged.merge(&evaluation(&rows[cut..])).unwrap();
        let all_rows = evaluation(&rows);
        prop_assert!((merged.loss_sum - all_rows.loss_sum).abs() < 1e-9);
        prop_assert!((merged.squares - all_rows.squares).abs() < 1e-9);
        (merged.loss_sum, merged.squares) = (all_rows.loss_sum, all_rows.squares);
        prop_assert_eq!(merged, all_rows);
    }

    /// Few distinct, narrow probabilities: bins are shared often, so that the bound is not trivial.
    #[test]
    fn the_histograms_bound_holds(
        rows in prop::collection::vec((0u32..4000, any::<bool>()), 2..200),
    ) {
        // f32 holds these exactly, so both forms see the same numbers.
        let rows: Vec<_> = rows
            .iter()
            .map(|&(p, positive)| (f64::from(p) / 131_072.0, positive))
            .collect();
        let narrow: Vec<_> = rows.iter().map(|&(p, positive)| (p as f32, positive)).collect();
        if let Ok(exact) = auc_exact(&mut scored(&narrow)) {
            let estimate = evaluation(&rows).auc().unwrap();
            prop_assert!((estimate.auc - exact).abs() <= estimate.error + 1e-12);
        }
    }
}

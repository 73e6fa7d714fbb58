//! Metrics of a program's own, merged over the workers of a job.

use tidewater::{Client, Job, JoinOptions, SyncMode};
use tidewater_train::{EpochMetrics, EpochMetricsError, MergedMetrics};

const WORKERS: u32 = 4;

fn job(workers: u32) -> Job {
    JoinOptions::embedded(2, workers)
        .join()
        .unwrap()
        .into_job()
        .unwrap()
}

/// What `work` returns at each worker, in rank order.
fn each<T: Send>(workers: u32, work: impl Fn(u32, &mut Client) -> T + Sync) -> Vec<T> {
    let job = job(workers);
    std::thread::scope(|scope| {
        let (work, job) = (&work, &job);
        let threads: Vec<_> = (0..workers)
            .map(|rank| {
                scope.spawn(move || {
                    let mut client = job.client_of(rank, SyncMode::Asp).unwrap();
                    let result = work(rank, &mut client);
                    client.finish().unwrap();
                    result
                })
            })
            .collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.collect()
    })
}

fn defined() -> EpochMetrics {
    let mut metrics = EpochMetrics::new();
    metrics.define_mean("loss").unwrap();
    metrics.define_sum("records").unwrap();
    metrics.define_min("least").unwrap();
    metrics.define_max("greatest").unwrap();
    // Share of hits among trials: a state of two numbers.
    let merge = |into: &mut [f64], other: &[f64]| {
        into[0] += other[0];
        into[1] += other[1];
    };
    let share = |state: &[f64]| (state[1] > 0.0).then(|| state[0] / state[1]);
    metrics.define("share", &[0.0, 0.0], merge, share).unwrap();
    metrics
}

#[test]
fn workers_get_the_metrics_of_all() {
    let merged = each(WORKERS, |rank, client| {
        let mut metrics = defined();
        let mut epoch = |number: u64| {
            let at = f64::from(rank);
            // Means of parts of different sizes: 0, 1, 2, 3 with 1, 2, 3, 4 rows.
            metrics.add_weighted("loss", at, at + 1.0).unwrap();
            metrics.add("records", 10.0).unwrap();
            metrics.add("records", 1.0).unwrap();
            metrics.add("least", 7.0 - at).unwrap();
            metrics.add("greatest", -7.0 - at).unwrap();
            metrics.add_state("share", &[1.0, 1.0 + at]).unwrap();
            metrics.merge(client, number).unwrap()
        };
        // The second epoch begins with nothing of the first.
        [epoch(1), epoch(2)]
    });
    for [first, second] in &merged {
        assert_eq!(first.workers, 4);
        assert_eq!(first.value("loss"), Some(2.0));
        assert_eq!(first.value("records"), Some(44.0));
        assert_eq!(first.value("least"), Some(4.0));
        assert_eq!(first.value("greatest"), Some(-7.0));
        assert_eq!(first.value("share"), Some(0.4));
        assert_eq!(first.value("unknown"), None);
        assert_eq!(second.values, first.values);
        assert_eq!(
            second.to_json(),
            "{\"event\":\"metrics\",\"epoch\":2,\"workers\":4,\"metrics\":{\"loss\":2.0,\"records\":44.0,\
             \"least\":4.0,\"greatest\":-7.0,\"share\":0.4}}"
        );
    }
    assert!(merged.iter().all(|worker| *worker == merged[0]));
}

#[test]
fn metrics_without_values_are_null() {
    let merged: Vec<MergedMetrics> = each(1, |_, client| defined().merge(client, 3).unwrap());
    assert_eq!(
        merged[0].to_json(),
        "{\"event\":\"metrics\",\"epoch\":3,\"workers\":1,\"metrics\":{\"loss\":null,\"records\":0.0,\
         \"least\":null,\"greatest\":null,\"share\":null}}"
    );
}

#[test]
fn other_definitions_are_refused_at_every_worker() {
    let ranks = each(3, |rank, client| {
        let mut metrics = EpochMetrics::new();
        let name = if rank == 2 { "los" } else { "loss" };
        metrics.define_mean(name).unwrap();
        metrics.add(name, 1.0).unwrap();
        match metrics.merge(client, 1) {
            Err(EpochMetricsError::Definitions { rank }) => rank,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(ranks, [2, 2, 0]);
}

#[test]
fn wrong_values_change_nothing() {
    let mut metrics = defined();
    let wrong = [
        metrics.add("loss", f64::NAN),
        metrics.add_weighted("loss", 1.0, -1.0),
        metrics.add_weighted("loss", 1.0, f64::INFINITY),
        metrics.add_weighted("records", 1.0, 1.0),
        metrics.add("share", 1.0),
        metrics.add_state("share", &[1.0]),
        metrics.add_state("share", &[1.0, f64::NAN]),
        metrics.add_state("loss", &[1.0, 1.0]),
        metrics.add("other", 1.0),
        metrics
            .add("records", f64::MAX)
            .and_then(|()| metrics.add("records", f64::MAX)),
        metrics.define_sum("loss"),
        metrics.define_sum(""),
    ];
    let texts: Vec<String> = wrong
        .into_iter()
        .map(|result| result.unwrap_err().to_string())
        .collect();
    let expected = [
        "value NaN",
        "weight -1",
        "weight inf",
        "only a mean",
        "`add_state`",
        "2 numbers, not 1",
        "value NaN",
        "call `add`",
        "define it first",
        "value 179",
        "taken",
        "empty",
    ];
    for (text, part) in texts.iter().zip(expected) {
        assert!(text.contains(part), "{text}");
    }
    let merged = each(1, |_, client| {
        let mut metrics = defined();
        metrics.add("loss", f64::NAN).unwrap_err();
        metrics.add("loss", 3.0).unwrap();
        metrics.merge(client, 1).unwrap().value("loss")
    });
    assert_eq!(merged, [Some(3.0)]);
}

//! Figures of a run, and their JSON file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tidewater_lanes::fabric::TransportKind;
use tidewater_protocol::table::Optimizer;

use super::config::Config;
use super::error::TrainError;
use super::evaluate::Quality;
use super::latency::{Kind, Latencies};
use super::weight_stats::WeightStats;

/// Figures of a run, over all workers. Values that were not measured are `None`, in JSON `null`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Area under the ROC curve on the test set.
    pub auc: Option<f64>,
    /// Mean log-loss on the test set, natural logarithm.
    pub log_loss: Option<f64>,
    /// Share of test rows classified correctly.
    pub accuracy: Option<f64>,
    /// Number of rows of the test set.
    pub test_rows: u64,
    /// Mean log-loss of the last epoch's rows, each computed before the step that it was part of.
    pub train_log_loss: Option<f64>,
    /// Rows trained on, counted once an epoch.
    pub rows: u64,
    /// Number of steps that each worker took.
    pub steps: u64,
    /// Seconds of the epochs, without evaluation.
    pub seconds: f64,
    /// Training speed: `rows / seconds`.
    pub rows_per_second: f64,
    /// Number of weights that the training set touches.
    pub weights: u64,
    /// Number of weights that are exactly zero.
    pub zero_weights: u64,
    /// Share of weights that are exactly zero.
    pub zeros: f64,
    /// Fingerprint of the model in 16 hexadecimal digits, equal for equal models.
    pub fingerprint: String,
    /// Payload bytes that workers pulled in training.
    pub bytes_pulled: u64,
    /// Frame bytes that workers pushed in training.
    pub bytes_pushed: u64,
    /// Number of pull calls.
    pub pulls: u64,
    /// Number of repeated reads.
    pub retries: u64,
    /// Median latency of a batch's pull in microseconds, until its weights have arrived.
    pub pull_p50_us: Option<f64>,
    /// 99th percentile of the same, in microseconds.
    pub pull_p99_us: Option<f64>,
    /// Median latency of a batch's push in microseconds, until the call returns: its frames are being
    /// sent.
    pub push_p50_us: Option<f64>,
    /// 99th percentile of the same, in microseconds.
    pub push_p99_us: Option<f64>,
    /// Median latency of a batch's push in microseconds, until it is known to be applied. An upper
    /// bound, since it is checked once a step.
    pub push_applied_p50_us: Option<f64>,
    /// 99th percentile of the same, in microseconds.
    pub push_applied_p99_us: Option<f64>,
    /// How far workers were allowed to drift apart.
    pub sync: String,
    /// Transport of the lanes.
    pub transport: String,
    /// Number of servers of the job.
    pub servers: u32,
    /// Number of workers of the job.
    pub workers: u32,
    /// Rule by which gradients were applied.
    pub optimizer: Optimizer,
    /// Rows of a worker's mini-batch.
    pub batch_rows: usize,
    /// Number of passes over the training set.
    pub epochs: u64,
    /// Seed of the order of rows.
    pub seed: u64,
    /// All counters of all clients, added up.
    pub counters: BTreeMap<String, u64>,
    /// Root of the mean squared distance of probability and label on the test set.
    pub rmse: Option<f64>,
    /// Number of rows of the test set with label 1.
    pub test_positives: u64,
}

/// Training figures, summed over the epochs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Training {
    pub(crate) rows: u64,
    pub(crate) steps: u64,
    pub(crate) took: Duration,
    pub(crate) log_loss: f64,
}

/// Processes of the run, and what connects them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deployment {
    pub(crate) transport: Option<TransportKind>,
    pub(crate) servers: u32,
    pub(crate) workers: u32,
}

impl Report {
    pub(crate) fn new(
        config: &Config,
        deployment: Deployment,
        training: &Training,
        quality: Option<Quality>,
        stats: WeightStats,
        latencies: &Latencies,
        counters: BTreeMap<String, u64>,
    ) -> Self {
        let count = |name| counters.get(name).copied().unwrap_or(0);
        let seconds = training.took.as_secs_f64();
        let of_pulls = latencies.percentiles(Kind::Pull);
        let of_pushes = latencies.percentiles(Kind::Push);
        let until_applied = latencies.percentiles(Kind::Applied);
        Self {
            auc: quality.and_then(|q| q.auc),
            log_loss: quality.map(|q| q.log_loss),
            accuracy: quality.map(|q| q.accuracy),
            test_rows: quality.map_or(0, |q| q.rows),
            train_log_loss: (training.rows > 0).then_some(training.log_loss),
            rows: training.rows,
            steps: training.steps,
            seconds,
            rows_per_second: per(training.rows as f64, seconds),
            weights: stats.weights,
            zero_weights: stats.zeros,
            zeros: per(stats.zeros as f64, stats.weights as f64),
            fingerprint: format!("{:016x}", stats.fingerprint),
            bytes_pulled: count("bytes_pulled"),
            bytes_pushed: count("bytes_pushed"),
            pulls: count("pulls"),
            retries: count("retries"),
            pull_p50_us: of_pulls.p50_us,
            pull_p99_us: of_pulls.p99_us,
            push_p50_us: of_pushes.p50_us,
            push_p99_us: of_pushes.p99_us,
            push_applied_p50_us: until_applied.p50_us,
            push_applied_p99_us: until_applied.p99_us,
            sync: config.sync.to_string(),
            transport: deployment
                .transport
                .map_or_else(String::new, |t| t.to_string()),
            servers: deployment.servers,
            workers: deployment.workers,
            optimizer: config.optimizer,
            batch_rows: config.batch_rows.get(),
            epochs: config.epochs,
            seed: config.seed,
            counters,
            rmse: quality.map(|q| q.rmse),
            test_positives: quality.map_or(0, |q| q.positives),
        }
    }

    /// Writes the figures as JSON, first to a temporary file in the same directory. A reader of `path`
    /// then sees all of them or the former file.
    ///
    /// # Errors
    /// [`TrainError::Report`], with the error of the system.
    pub fn write(&self, path: &Path) -> Result<(), TrainError> {
        let failed = |source| TrainError::Report {
            path: path.to_owned(),
            source,
        };
        let aside = aside(path).map_err(failed)?;
        let written = self
            .write_to(&aside)
            .and_then(|()| fs::rename(&aside, path));
        if written.is_err() {
            // The first error is the one to return.
            let _ = fs::remove_file(&aside);
        }
        written.map_err(failed)
    }

    fn write_to(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        let mut file = File::create(path)?;
        file.write_all(&text)?;
        file.sync_all()
    }
}

/// Returns `path` with a suffix that names this process.
fn aside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut name = name.to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    Ok(path.with_file_name(name))
}

fn per(part: f64, total: f64) -> f64 {
    if total > 0.0 { part / total } else { 0.0 }
}

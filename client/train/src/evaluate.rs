//! Evaluation on held-out data, shared by the workers, or by an observer alone.
//!
//! Each worker predicts a byte range of the test file. It writes probabilities and labels into a table,
//! at the index of its rows in the file. Rank 0 reads the table, 16 bytes a row, and computes the
//! figures: exactly, and to the same bits with any number of workers. (Merged histograms of
//! [`Evaluation`] would need no table; their AUC has an error.)
//!
//! No worker trains meanwhile, so the figures are those of one version of the model. An observer reads
//! while others train: its report names the ticks between which it read.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tidewater_protocol::ids::WorkerId;
use tidewater_protocol::table::{Optimizer, PushOp};
use tidewater_runtime::clock;

use super::all_gather::{ASIDE, AllGather, Row, WIDTH, join, meet};
use super::error::TrainError;
use super::metrics::{Evaluation, MetricsError, Scored, auc_exact};
use super::saved;
use super::scorer::{BATCH_ROWS, Scorer};
use crate::data::{BatchPlan, Dataset, ReadOptions, read_part};
use tidewater::error::ClientError;
use tidewater::pull::PullOptions;
use tidewater::session::Client;
use tidewater::table::{Table, TableBuilder};

/// Rows that rank 0 reads at a time.
const READ_ROWS: usize = 64 << 10;
/// Columns of a row of the table: probability, label.
const COLUMNS: usize = 2;
pub(crate) const NAME: &str = "tidewater-train/predictions";

/// Quality of a model on the test set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quality {
    /// Number of rows of the test set.
    pub rows: u64,
    /// Mean log-loss, natural logarithm.
    pub log_loss: f64,
    /// Area under the ROC curve, ties counting half; `None` for rows of one class.
    pub auc: Option<f64>,
    /// Share of rows classified correctly at 1/2.
    pub accuracy: f64,
    /// Root of the mean squared distance of probability and label.
    pub rmse: f64,
    /// Number of rows with label 1.
    pub positives: u64,
}

/// Counts of one worker's part of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PartCount {
    /// Rank of the worker.
    pub worker: u32,
    /// Number of rows, without malformed ones.
    pub rows: u64,
    /// Number of malformed records that were left out.
    pub skipped: u64,
}

/// One evaluation of the model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EvaluationReport {
    /// Epoch of the last step, from 1, over all runs of the model; 0 outside of a training.
    pub epoch: u64,
    /// Number of steps of each worker before it, over all runs of the model; 0 outside of a training.
    pub step: u64,
    /// Ticks of all workers when the first weight was read.
    pub first_clock: u64,
    /// Ticks of all workers when the last weight was read. Weights may contain pushes up to this tick. Equal to
    /// `first_clock` if no worker trained meanwhile.
    pub last_clock: u64,
    /// Time since the beginning of the run, or of the observer.
    pub since_start: Duration,
    /// Duration of the evaluation.
    pub took: Duration,
    /// Figures on all rows.
    pub quality: Quality,
    /// Counts of the part of each worker.
    pub parts: Vec<PartCount>,
}

/// Rows to evaluate a model on.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluateConfig {
    /// File, directory or pattern.
    pub data: PathBuf,
    /// Format and schema, mapping of labels, and what malformed records lead to.
    pub read: ReadOptions,
    /// Directory of the saved model to load; `None`: the model is in the cluster.
    pub load: Option<String>,
}

/// Evaluates a model that was trained by [`run()`](crate::run()), in the cluster or loaded by this call. All
/// workers of the job call it with equal settings. Rank 0 returns the report.
///
/// # Errors
/// Unreadable or malformed data; a model of another kind; data that does not fit it; failures of the cluster.
pub fn evaluate(
    client: &mut Client,
    config: &EvaluateConfig,
) -> Result<Option<EvaluationReport>, TrainError> {
    let start = clock::now();
    let (rank, workers) = (client.rank().0, client.workers());
    let part = read_part(&config.data, rank, workers, &config.read)?;
    let all_gather = AllGather::new(client)?;
    let (weights, described) = saved::load(client, config.load.as_deref())?;
    described.check(&config.data, part.width(), part.max_key())?;
    let Some(mut evaluator) = Evaluator::new(client, &all_gather, part, Scorer::of_saved())? else {
        let path = config.data.clone();
        return Err(TrainError::NoRows { path });
    };
    let first = client.global_clock()?;
    let quality = evaluator.run(client, &all_gather, &weights)?;
    let last = client.global_clock()?;
    let report = quality.map(|quality| EvaluationReport {
        epoch: 0,
        step: 0,
        first_clock: first,
        last_clock: last,
        since_start: clock::now() - start,
        took: clock::now() - start,
        quality,
        parts: evaluator.parts().to_vec(),
    });
    if rank == 0 {
        evaluator.release(client)?;
        all_gather.release(client)?;
    }
    meet(client)?;
    Ok(report)
}

/// Evaluates the model of a running job alone, as an observer: no worker waits for it.
#[derive(Debug)]
pub struct Observation {
    data: Dataset,
    weights: Table<f32>,
    scorer: Scorer,
    start: std::time::Instant,
}

impl Observation {
    /// Reads all rows of a set, and opens the model of the job, which must have one.
    ///
    /// # Errors
    /// As [`evaluate`].
    pub fn new(client: &mut Client, config: &EvaluateConfig) -> Result<Self, TrainError> {
        let data = read_part(&config.data, 0, 1, &config.read)?;
        if data.rows() == 0 {
            let path = config.data.clone();
            return Err(TrainError::NoRows { path });
        }
        Ok(Self {
            data,
            weights: saved::open_weights(client, "the running job")?,
            scorer: Scorer::of_saved(),
            start: clock::now(),
        })
    }

    /// Evaluates the model as it is now. Cost: a pull of each batch of 1,024 rows.
    ///
    /// # Errors
    /// A prediction of a diverged model; the end of the job; failures of the cluster.
    pub fn run(&mut self, client: &mut Client) -> Result<EvaluationReport, TrainError> {
        let began = clock::now();
        let first = client.global_clock()?;
        let mut measure = Measure::default();
        let plan = BatchPlan::new(&self.data, BATCH_ROWS);
        for batch in plan.batches() {
            let probabilities = self.scorer.score(client, &self.weights, &batch)?;
            for (&probability, example) in probabilities.iter().zip(batch.rows()) {
                measure.add(probability, example.label > 0.5)?;
            }
        }
        let last = client.global_clock()?;
        let part = PartCount {
            worker: 0,
            rows: self.data.rows() as u64,
            skipped: self.data.skipped(),
        };
        Ok(EvaluationReport {
            epoch: 0,
            step: 0,
            first_clock: first,
            last_clock: last,
            since_start: clock::now() - self.start,
            took: clock::now() - began,
            quality: measure.quality()?,
            parts: vec![part],
        })
    }
}

/// Collects predictions in the order of rows.
#[derive(Debug, Default)]
struct Measure {
    evaluation: Evaluation,
    scored: Vec<Scored>,
}

impl Measure {
    fn add(&mut self, probability: f64, positive: bool) -> Result<(), MetricsError> {
        if !probability.is_finite() {
            return Err(diverged(self.evaluation.rows(), probability));
        }
        self.evaluation.add(probability, positive)?;
        let score = probability as f32;
        self.scored.push(Scored { score, positive });
        Ok(())
    }

    fn quality(mut self) -> Result<Quality, MetricsError> {
        let auc = match auc_exact(&mut self.scored) {
            Ok(auc) => Some(auc),
            Err(MetricsError::OneClass { .. }) => None,
            Err(e) => return Err(e),
        };
        let evaluation = &self.evaluation;
        Ok(Quality {
            rows: evaluation.rows(),
            // The set has rows, so none of them is `None`.
            log_loss: evaluation.log_loss().unwrap_or(f64::NAN),
            accuracy: evaluation.accuracy().unwrap_or(f64::NAN),
            rmse: evaluation.rmse().unwrap_or(f64::NAN),
            positives: evaluation.positives(),
            auc,
        })
    }
}

/// A worker's part of the test set, and the table of all predictions.
#[derive(Debug)]
pub(crate) struct Evaluator {
    part: Dataset,
    /// Number of the file's rows before this part.
    first: u64,
    rows: u64,
    parts: Vec<PartCount>,
    table: Table<f64>,
    scorer: Scorer,
}

impl Evaluator {
    /// Makes the evaluator; all workers call it. `None` if no worker has a row.
    pub(crate) fn new(
        client: &mut Client,
        all_gather: &AllGather,
        part: Dataset,
        scorer: Scorer,
    ) -> Result<Option<Self>, ClientError> {
        let mut row: Row = [0; WIDTH];
        row[..2].copy_from_slice(&[part.rows() as i64, part.skipped().cast_signed()]);
        let parts = part_counts(&all_gather.exchange(client, &row)?);
        let before = client.rank().0 as usize;
        let first = parts.iter().take(before).map(|part| part.rows).sum();
        let rows: u64 = parts.iter().map(|part| part.rows).sum();
        if rows == 0 {
            return Ok(None);
        }
        let spec = TableBuilder::range::<f64>(NAME, rows, COLUMNS as u32)
            .optimizer(Optimizer::None)
            .domain(ASIDE);
        Ok(Some(Self {
            table: client.create_table(spec.spec())?,
            part,
            first,
            rows,
            parts,
            scorer,
        }))
    }

    /// Counts of the part of each worker.
    pub(crate) fn parts(&self) -> &[PartCount] {
        &self.parts
    }

    /// Evaluates the current `weights`; rank 0 returns the result. All workers call it, when their
    /// pushes are applied.
    pub(crate) fn run(
        &mut self,
        client: &mut Client,
        all_gather: &AllGather,
        weights: &Table<f32>,
    ) -> Result<Option<Quality>, TrainError> {
        self.predict(client, weights)?;
        all_gather.meet(client)?;
        let quality = match client.rank() {
            WorkerId(0) => Some(self.measure(client)?),
            _ => None,
        };
        // The next evaluation overwrites the rows that rank 0 reads.
        all_gather.meet(client)?;
        Ok(quality)
    }

    /// Removes the table; one worker calls it, when no worker uses it any more.
    pub(crate) fn release(self, client: &mut Client) -> Result<(), ClientError> {
        client.release_table(self.table)
    }

    fn predict(&mut self, client: &mut Client, weights: &Table<f32>) -> Result<(), TrainError> {
        let plan = BatchPlan::new(&self.part, BATCH_ROWS);
        let mut cells = Vec::new();
        let mut sent = None;
        let mut row = self.first;
        for batch in plan.batches() {
            let probabilities = self.scorer.score(client, weights, &batch)?;
            cells.clear();
            for (&probability, example) in probabilities.iter().zip(batch.rows()) {
                if !probability.is_finite() {
                    return Err(diverged(row, probability).into());
                }
                cells.extend([probability, f64::from(example.label)]);
                row += 1;
            }
            let at = (row - batch.len() as u64) * COLUMNS as u64;
            let ticket = client.push_range(&self.table, at, &cells, PushOp::Assign)?;
            join(&mut sent, ticket);
        }
        if let Some(sent) = sent {
            client.wait_applied(&sent)?;
        }
        Ok(())
    }

    fn measure(&self, client: &mut Client) -> Result<Quality, TrainError> {
        let mut measure = Measure::default();
        let mut cells = vec![0.0; READ_ROWS * COLUMNS];
        let mut row = 0;
        while row < self.rows {
            let rows = (self.rows - row).min(READ_ROWS as u64);
            cells.truncate(rows as usize * COLUMNS);
            let options = PullOptions::default();
            client.pull_range(&self.table, row * COLUMNS as u64, &mut cells, options)?;
            for &[probability, label] in cells.as_chunks::<COLUMNS>().0 {
                measure.add(probability, label > 0.5)?;
            }
            row += rows;
        }
        Ok(measure.quality()?)
    }
}

/// Counts of parts from the first two cells of all workers' rows: rows, and malformed records.
pub(crate) fn part_counts(all: &[Row]) -> Vec<PartCount> {
    let counts = all.iter().zip(0..).map(|(row, worker)| PartCount {
        worker,
        rows: row[0].cast_unsigned(),
        skipped: row[1].cast_unsigned(),
    });
    counts.collect()
}

const fn diverged(row: u64, score: f64) -> MetricsError {
    MetricsError::NotFinite { row, score }
}

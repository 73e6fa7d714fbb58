//! Evaluation on the test set, shared by the workers.
//!
//! Each worker predicts a byte range of the test file. It writes probabilities and labels into a table,
//! at the index of its rows in the file. Rank 0 reads the table, 16 bytes a row, and computes the
//! figures: exactly, and to the same bits with any number of workers.

use tidewater_protocol::ids::WorkerId;
use tidewater_protocol::table::{Optimizer, PushOp};

use super::all_gather::{ASIDE, AllGather, Row, WIDTH, join};
use super::error::TrainError;
use super::metrics::{Evaluation, MetricsError, Scored, auc_exact};
use super::model::{LogisticConfig, LogisticStep};
use crate::data::{BatchPlan, Dataset};
use tidewater::error::ClientError;
use tidewater::pull::{Missing, PullOptions};
use tidewater::session::Client;
use tidewater::table::{Table, TableBuilder};

/// Rows predicted with one pull.
const BATCH_ROWS: std::num::NonZeroUsize = std::num::NonZeroUsize::new(1024).unwrap();
/// Rows that rank 0 reads at a time.
const READ_ROWS: usize = 64 << 10;
/// Columns of a row of the table: probability, label.
const COLUMNS: usize = 2;
const NAME: &str = "tidewater-train/predictions";

/// Quality of a model on the test set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quality {
    /// Number of rows of the test set.
    pub rows: u64,
    /// Mean log-loss, natural logarithm.
    pub log_loss: f64,
    /// Area under the ROC curve, ties counting half; `None` for rows of one class.
    pub auc: Option<f64>,
    /// Share of rows classified correctly at 1/2.
    pub accuracy: f64,
}

/// A worker's part of the test set, and the table of all predictions.
#[derive(Debug)]
pub(crate) struct Evaluator {
    part: Dataset,
    /// Number of the file's rows before this part.
    first: u64,
    rows: u64,
    table: Table<f64>,
    step: LogisticStep,
}

impl Evaluator {
    /// Makes the evaluator; all workers call it. `None` if no worker has a row.
    pub(crate) fn new(
        client: &mut Client,
        board: &AllGather,
        part: Dataset,
        model: LogisticConfig,
    ) -> Result<Option<Self>, ClientError> {
        let mut row: Row = [0; WIDTH];
        row[0] = part.rows() as i64;
        let counts = board.exchange(client, &row)?;
        let count = |row: &Row| u64::try_from(row[0]).unwrap_or(0);
        let before = client.rank().0 as usize;
        let first = counts.iter().take(before).map(count).sum();
        let rows: u64 = counts.iter().map(count).sum();
        if rows == 0 {
            return Ok(None);
        }
        let spec = TableBuilder::blocks::<f64>(NAME, rows, COLUMNS as u32)
            .optimizer(Optimizer::None)
            .domain(ASIDE);
        Ok(Some(Self {
            table: client.create_table(spec.spec())?,
            part,
            first,
            rows,
            step: LogisticStep::new(model),
        }))
    }

    /// Evaluates the current `weights`; rank 0 returns the result. All workers call it, when their
    /// pushes are applied.
    pub(crate) fn run(
        &mut self,
        client: &mut Client,
        board: &AllGather,
        weights: &Table<f32>,
    ) -> Result<Option<Quality>, TrainError> {
        self.predict(client, weights)?;
        board.meet(client)?;
        let quality = match client.rank() {
            WorkerId(0) => Some(self.measure(client)?),
            _ => None,
        };
        // The next evaluation overwrites the rows that rank 0 reads.
        board.meet(client)?;
        Ok(quality)
    }

    /// Removes the table; one worker calls it, when no worker uses it any more.
    pub(crate) fn release(self, client: &mut Client) -> Result<(), ClientError> {
        client.release_table(self.table)
    }

    fn predict(&mut self, client: &mut Client, weights: &Table<f32>) -> Result<(), TrainError> {
        let options = PullOptions::default().missing(Missing::Initial);
        let plan = BatchPlan::new(&self.part, BATCH_ROWS);
        let mut pulled = Vec::new();
        let mut probabilities = Vec::new();
        let mut cells = Vec::new();
        let mut sent = None;
        let mut row = self.first;
        for batch in plan.batches() {
            let keys = self.step.prepare(&batch);
            pulled.resize(keys.len(), 0.0);
            client.pull_rows(weights, keys, &mut pulled, options)?;
            probabilities.clear();
            self.step.predict(&batch, &pulled, &mut probabilities)?;
            cells.clear();
            for (&probability, example) in probabilities.iter().zip(batch.rows()) {
                if !probability.is_finite() {
                    return Err(diverged(row, probability).into());
                }
                cells.extend([probability, f64::from(example.label)]);
                row += 1;
            }
            let at = (row - batch.len() as u64) * COLUMNS as u64;
            let ticket = client.push_dense(&self.table, at, &cells, PushOp::Assign)?;
            join(&mut sent, ticket);
        }
        if let Some(sent) = sent {
            client.wait_applied(&sent)?;
        }
        Ok(())
    }

    fn measure(&self, client: &mut Client) -> Result<Quality, TrainError> {
        let mut evaluation = Evaluation::new();
        let mut scored = Vec::new();
        let mut cells = vec![0.0; READ_ROWS * COLUMNS];
        let mut row = 0;
        while row < self.rows {
            let rows = (self.rows - row).min(READ_ROWS as u64);
            cells.truncate(rows as usize * COLUMNS);
            let options = PullOptions::default();
            client.pull_dense(&self.table, row * COLUMNS as u64, &mut cells, options)?;
            for &[probability, label] in cells.as_chunks::<COLUMNS>().0 {
                let positive = label > 0.5;
                evaluation.add(probability, positive)?;
                let score = probability as f32;
                scored.push(Scored { score, positive });
            }
            row += rows;
        }
        let auc = match auc_exact(&mut scored) {
            Ok(auc) => Some(auc),
            Err(MetricsError::OneClass { .. }) => None,
            Err(e) => return Err(e.into()),
        };
        Ok(Quality {
            rows: self.rows,
            // The set has rows, so neither is `None`.
            log_loss: evaluation.log_loss().unwrap_or(f64::NAN),
            accuracy: evaluation.accuracy().unwrap_or(f64::NAN),
            auc,
        })
    }
}

const fn diverged(row: u64, score: f64) -> MetricsError {
    MetricsError::NotFinite { row, score }
}

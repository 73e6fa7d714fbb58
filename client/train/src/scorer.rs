//! Probabilities of rows, by the weights of a table.

use super::defaults;
use super::error::TrainError;
use super::model::{LogisticConfig, LogisticStep};
use crate::data::Batch;
use tidewater::pull::{Missing, PullOptions};
use tidewater::session::Client;
use tidewater::table::Table;

/// Rows predicted with one pull.
pub(crate) const BATCH_ROWS: std::num::NonZeroUsize = std::num::NonZeroUsize::new(1024).unwrap();

/// Predicts batches of rows. It keeps its buffers: batches of the usual size allocate nothing.
#[derive(Debug)]
pub(crate) struct Scorer {
    step: LogisticStep,
    weights: Vec<f32>,
    probabilities: Vec<f64>,
}

impl Scorer {
    pub(crate) fn new(model: LogisticConfig) -> Self {
        Self {
            step: LogisticStep::new(model),
            weights: Vec::new(),
            probabilities: Vec::new(),
        }
    }

    /// A scorer of saved models, which all have the default bias.
    pub(crate) fn of_saved() -> Self {
        Self::new(defaults::logistic(defaults::BATCH_ROWS))
    }

    /// Returns each row's probability of label 1, in batch order. Unknown keys count as zero and are not
    /// created. Cost: a pull of the batch's keys.
    pub(crate) fn score(
        &mut self,
        client: &mut Client,
        table: &Table<f32>,
        batch: &Batch<'_>,
    ) -> Result<&[f64], TrainError> {
        let options = PullOptions::default().missing(Missing::Initial);
        let keys = self.step.prepare(batch);
        self.weights.resize(keys.len(), 0.0);
        client.pull_rows(table, keys, &mut self.weights, options)?;
        self.probabilities.clear();
        self.step
            .predict(batch, &self.weights, &mut self.probabilities)?;
        Ok(&self.probabilities)
    }
}

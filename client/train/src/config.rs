//! Settings of a training run.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use tidewater_protocol::table::{Optimizer, TableSpec};

use super::cadence::Cadence;
use super::decay::Decay;
use super::defaults;
use super::model::LogisticConfig;
use crate::data::ReadOptions;
use tidewater::clock::SyncMode;
use tidewater::table::TableBuilder;

/// Name of the model's table: `f32` by feature key, one column.
pub const WEIGHTS: &str = "w";

/// Settings of a run: data, model, optimizer, schedule. Equal at all workers.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Training file, directory or pattern; each worker reads its part.
    pub train: PathBuf,
    /// Test file, directory or pattern, if the model is to be evaluated.
    pub test: Option<PathBuf>,
    /// Format and schema of all files, the mapping of their labels, and what malformed records lead to.
    pub read: ReadOptions,
    /// How far workers may drift apart. The client must have been made with the same.
    pub sync: SyncMode,
    /// Rule by which servers apply gradients.
    pub optimizer: Optimizer,
    /// How the optimizer's rate changes from step to step, over all runs of the model.
    pub decay: Decay,
    /// Weight of the penalty `l2 / 2 * w^2` that the gradient includes.
    pub l2: f32,
    /// Number of rows of a worker's mini-batch.
    pub batch_rows: NonZeroUsize,
    /// Passes over the training set, without those of a loaded model. If that was stopped within an
    /// epoch, the first pass is the rest of it. 0 evaluates a loaded model.
    pub epochs: u64,
    /// Seed of the order of rows.
    pub seed: u64,
    /// How often to evaluate on the test set, besides the end.
    pub evaluate: Option<Cadence>,
    /// Directory for the saved model; all servers must see it.
    pub save: Option<String>,
    /// Directory of a saved model to continue from.
    pub load: Option<String>,
}

impl Config {
    /// Makes the defaults of [`defaults`] under BSP, without a test set.
    pub fn new(train: impl Into<PathBuf>) -> Self {
        Self {
            train: train.into(),
            test: None,
            read: ReadOptions::default(),
            sync: SyncMode::Bsp,
            optimizer: defaults::ADAGRAD,
            decay: Decay::Constant,
            l2: 0.0,
            batch_rows: defaults::BATCH_ROWS,
            epochs: defaults::EPOCHS,
            seed: 1,
            evaluate: None,
            save: None,
            load: None,
        }
    }

    /// The model that workers compute.
    pub fn model(&self) -> LogisticConfig {
        LogisticConfig {
            l2: self.l2,
            ..defaults::logistic(self.batch_rows)
        }
    }

    /// The definition of the model's table. Under BSP pushes take effect at the tick; otherwise on
    /// arrival.
    pub fn table(&self) -> TableSpec {
        let table = TableBuilder::sparse::<f32>(WEIGHTS, 1).optimizer(self.optimizer);
        let table = match self.sync {
            SyncMode::Bsp => table.at_clock(defaults::REDUCE),
            SyncMode::Ssp(_) | SyncMode::Asp => table,
        };
        table.spec().clone()
    }
}

//! What a run reports to the program around it, and asks of it.

use std::time::Duration;

use super::evaluate::{EvaluationReport, PartCount, Quality};
use super::report::Report;

/// Callbacks of a run to the program around it.
pub trait Host {
    /// Returns a signal that asked the process to end, if one came. Called every few steps.
    fn signal(&mut self) -> Option<i32>;

    /// Called at rank 0 if the loaded model had a position, at which training continues.
    fn resumed(&mut self, resumed: &Resumed);

    /// Called at rank 0 after each epoch.
    fn epoch_done(&mut self, epoch: &EpochReport);

    /// Called at rank 0 after each evaluation.
    fn evaluated(&mut self, _evaluation: &EvaluationReport) {}
}

/// Position at which a run continues.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resumed {
    /// The epoch of the next step, from 1.
    pub epoch: u64,
    /// Number of completed steps of that epoch.
    pub step: u64,
    /// Number of steps of an epoch.
    pub steps: u64,
    /// Settings that differ from those of the saving run. With any, this run is no continuation step by
    /// step, and began the epoch again.
    pub differs: Option<String>,
}

/// Figures of an epoch, over all workers.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochReport {
    /// Number of the epoch from 1, over all runs of the model.
    pub epoch: u64,
    /// The last epoch of this run.
    pub epochs: u64,
    /// Number of rows trained on.
    pub rows: u64,
    /// Number of steps of each worker up to its end, over all runs of the model.
    pub step: u64,
    /// Ticks of all workers at its end.
    pub clock: u64,
    /// Time since the beginning of the run.
    pub since_start: Duration,
    /// Duration of the epoch without evaluations, until all workers were done.
    pub took: Duration,
    /// Mean log-loss of the rows, each computed before the step that it was part of.
    pub log_loss: f64,
    /// Quality on the test set, if the model was evaluated after the epoch.
    pub test: Option<Quality>,
    /// Rows of each worker, and the malformed records of its part.
    pub parts: Vec<PartCount>,
}

/// How a run ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// All epochs were trained. Rank 0 has the figures.
    Done(Option<Box<Report>>),
    /// A worker received this signal: all stopped at the same step, and saved if requested.
    Stopped(i32),
}

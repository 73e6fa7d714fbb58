//! Evaluations of a run: the test set, and when the model is evaluated on it.

use std::path::Path;
use std::time::{Duration, Instant};

use tidewater_runtime::clock;

use super::all_gather::AllGather;
use super::cadence::Cadence;
use super::config::Config;
use super::error::TrainError;
use super::evaluate::{EvaluationReport, Evaluator, Quality};
use super::host::Host;
use super::scorer::Scorer;
use crate::data::{Dataset, read_part};
use tidewater::clock::SyncMode;
use tidewater::error::ClientError;
use tidewater::session::Client;
use tidewater::table::Table;
use tidewater::walltime::StopSign;

/// Name of the table by which workers agree on evaluations by time, and steps between two checks of it.
pub(crate) const EVALUATE: (&str, u64) = ("tidewater-train/evaluate", 8);
/// What rank 0 writes into it.
const DUE: i32 = 1;

/// The test set of a run, if it has one.
pub(crate) struct Evaluations {
    cadence: Option<Cadence>,
    evaluator: Option<Evaluator>,
    /// Agreement on the steps of evaluations by time, and when the last one ended.
    due: Option<(StopSign, Instant)>,
    /// Step of the last evaluation, and its result at rank 0.
    measured: Option<(u64, Option<Quality>)>,
    start: Instant,
    is_first: bool,
}

impl Evaluations {
    /// Refuses evaluations by time in a run without a bound on staleness: its workers have no common step.
    pub(crate) fn check(config: &Config) -> Result<(), TrainError> {
        match (config.evaluate, config.sync) {
            (Some(Cadence::Seconds(_)), SyncMode::Asp) => Err(TrainError::NoCommonStep),
            _ => Ok(()),
        }
    }

    /// Reads this worker's part of the test set; all workers call it.
    pub(crate) fn new(
        client: &mut Client,
        config: &Config,
        all_gather: &AllGather,
    ) -> Result<Self, TrainError> {
        let start = clock::now();
        let is_first = client.rank().0 == 0;
        let due = match config.evaluate {
            Some(Cadence::Seconds(_)) => {
                Some((StopSign::new(client, EVALUATE.0, EVALUATE.1)?, start))
            }
            _ => None,
        };
        let evaluator = match &config.test {
            None => None,
            Some(path) => {
                let part = read_rows(path, client.rank().0, client.workers(), config)?;
                let scorer = Scorer::new(config.model());
                let made = Evaluator::new(client, all_gather, part, scorer)?;
                let path = path.clone();
                Some(made.ok_or(TrainError::NoRows { path })?)
            }
        };
        Ok(Self {
            cadence: config.evaluate,
            evaluator,
            due,
            measured: None,
            start,
            is_first,
        })
    }

    /// Evaluates the model at this epoch and step, if there is a test set. All workers call it, when their pushes
    /// are applied and they have met.
    pub(crate) fn run(
        &mut self,
        client: &mut Client,
        host: &mut dyn Host,
        all_gather: &AllGather,
        weights: &Table<f32>,
        epoch: u64,
        step: u64,
    ) -> Result<Option<Quality>, TrainError> {
        let Some(evaluator) = &mut self.evaluator else {
            return Ok(None);
        };
        let began = clock::now();
        let first = client.global_clock()?;
        let quality = evaluator.run(client, all_gather, weights)?;
        self.measured = Some((step, quality));
        if let Some(quality) = quality {
            host.evaluated(&EvaluationReport {
                epoch,
                step,
                first_clock: first,
                last_clock: client.global_clock()?,
                since_start: clock::now() - self.start,
                took: clock::now() - began,
                quality,
                parts: evaluator.parts().to_vec(),
            });
        }
        Ok(quality)
    }

    /// The result of an evaluation after this step, if there was one.
    pub(crate) fn at(&self, step: u64) -> Option<Option<Quality>> {
        let (measured, quality) = self.measured?;
        (measured == step).then_some(quality)
    }

    /// Whether the model is evaluated after this epoch.
    pub(crate) fn is_due_after(&self, epoch: u64) -> bool {
        matches!(self.cadence, Some(Cadence::Epochs(every)) if epoch.is_multiple_of(every.get()))
    }

    /// Whether the model is evaluated after `step` steps of each worker. The answer is the same at all workers at
    /// the same step.
    pub(crate) fn is_due(&mut self, client: &mut Client, step: u64) -> Result<bool, ClientError> {
        match (self.cadence, &mut self.due) {
            (Some(Cadence::Steps(every)), _) => Ok(step.is_multiple_of(every.get())),
            (Some(Cadence::Seconds(seconds)), Some((sign, last))) => {
                let is_over = clock::now() - *last >= Duration::from_secs(seconds.get());
                let asks = (self.is_first && is_over).then_some(DUE);
                sign.look(client, || asks)
            }
            _ => Ok(false),
        }
    }

    /// Clears the agreement on an evaluation by time. Workers call it when all have seen the agreement; the end of
    /// the evaluation orders it before their next look.
    pub(crate) fn renew(&mut self, client: &mut Client) -> Result<(), ClientError> {
        if let Some((sign, last)) = &mut self.due {
            if self.is_first {
                sign.clear(client)?;
            }
            sign.renew();
            *last = clock::now();
        }
        Ok(())
    }

    /// Removes the tables; one worker calls it, when no worker uses them any more.
    pub(crate) fn release(self, client: &mut Client) -> Result<(), ClientError> {
        if let Some(evaluator) = self.evaluator {
            evaluator.release(client)?;
        }
        match self.due {
            Some((sign, _)) => sign.release(client),
            None => Ok(()),
        }
    }
}

/// Reads this worker's part of a file set, and reports the records that were left out of it.
pub(crate) fn read_rows(
    path: &Path,
    rank: u32,
    workers: u32,
    config: &Config,
) -> Result<Dataset, TrainError> {
    let data = read_part(path, rank, workers, &config.read)?;
    if data.skipped() > 0 {
        tracing::warn!(
            path = %path.display(),
            worker = rank,
            skipped = data.skipped(),
            rows = data.rows(),
            "left out malformed records"
        );
    }
    Ok(data)
}

//! The training loop of one worker; all workers of the job run it side by side.
//!
//! 1. Workers tell each other their settings: all go on if they are equal, else none does. The
//!    model's table `w` is created, or loaded and opened: sparse, `f32`, one column, keyed by
//!    feature. Under BSP pushes take effect at the tick, reduced in rank order, so that the result
//!    does not depend on timing; otherwise on arrival.
//! 2. Each worker reads its byte range of the training file. Parts differ in rows, so workers
//!    exchange their numbers of batches and all take as many steps as the largest part has:
//!    without a batch left, a worker only ticks. (Workers must tick alike, or the others would
//!    wait for one that is done.)
//! 3. Steps: pull, gradient, push, tick. A few pushes are under way at a time.
//! 4. At an epoch's end all wait until what they pushed is applied.
//! 5. After the last: evaluation on the test set, a census of the weights, figures for rank 0.
//! 6. If asked, the model is saved: all wait for all before and after, rank 0 saves. The trainer's
//!    own tables are released before, so that a saved model holds `w` alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidewater_transport::clock;
use tidewater_transport::limits::CLOCK_DEADLINE;
use tidewater_transport::wire::refusal::RefusalCode;

use super::board::{Board, Row, WIDTH, meet};
use super::census::{self, Census};
use super::config::{Config, WEIGHTS};
use super::equal;
use super::error::TrainError;
use super::evaluate::{Evaluator, Quality};
use super::report::{Report, Training};
use super::step::Worker;
use crate::counters::Counters;
use crate::data::{BatchPlan, Dataset, read_part};
use crate::error::ClientError;
use crate::session::Client;
use crate::table::Table;
use crate::walltime::stop::StopSign;

/// Table by which workers agree where a run ends early, and steps between two looks at it.
const STOP: (&str, u64) = ("tidewater-train/stop", 8);

/// What a run asks of the program around it, and tells it.
pub trait Host {
    /// A signal that asked the process to end, if one came. Asked every few steps.
    fn signal(&mut self) -> Option<i32>;

    /// Rank 0: an epoch is over.
    fn epoch_done(&mut self, epoch: &EpochReport);
}

/// Figures of an epoch, over all workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpochReport {
    /// From 1.
    pub epoch: u64,
    /// Of how many.
    pub epochs: u64,
    /// Rows trained on.
    pub rows: u64,
    /// How long it took, until all workers were done.
    pub took: Duration,
    /// Mean log-loss of the rows, each before the step that it was part of.
    pub log_loss: f64,
    /// On the test set, if it was asked for after each epoch.
    pub test: Option<Quality>,
}

/// How a run ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// All epochs were trained. Rank 0 has the figures.
    Done(Option<Box<Report>>),
    /// A worker got this signal: all stopped at the same step, and saved if that was asked for.
    Stopped(i32),
}

/// Trains. All workers of the job call it with equal settings; returns when all are done.
///
/// # Errors
/// Files, the cluster, a model that diverged. The others then wait until the coordinator, which
/// sees this worker leave, tells them.
pub fn run(
    client: &mut Client,
    config: &Config,
    host: &mut dyn Host,
) -> Result<Outcome, TrainError> {
    let (rank, workers) = (client.rank().0, client.workers());
    let data = read_part(&config.train, rank, workers, &config.read)?;
    let board = Board::new(client)?;
    equal::check(client, &board, config)?;
    if let Some(dir) = &config.load {
        if rank == 0 {
            client.load(dir, CLOCK_DEADLINE)?;
        }
        meet(client)?;
    }
    let weights = weights(client, config)?;
    let run = Run::new(client, config, board, weights)?;
    let evaluator = run.evaluator(client)?;
    run.train(client, host, &data, evaluator)
}

/// The model's table: new, or as it was loaded.
fn weights(client: &mut Client, config: &Config) -> Result<Table<f32>, TrainError> {
    let want = config.table();
    match (client.create_table(&want), &config.load) {
        (Err(ClientError::Refused(why)), Some(dir)) if why.code == RefusalCode::TableDiffers => {
            // Of a model that has no such table there is nothing more to say.
            let loaded = client.open_table::<f32>(WEIGHTS).ok();
            let have = loaded.and_then(|table| client.spec(&table));
            Err(TrainError::other_training(dir, &why, (have, &want)))
        }
        (made, _) => Ok(made?),
    }
}

/// The tables of a run, and what was counted.
struct Run<'a> {
    config: &'a Config,
    weights: Table<f32>,
    board: Board,
    stop: StopSign,
    worker: Worker,
    rank: u32,
}

/// Sums over epochs, at rank 0.
#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    rows: u64,
    took: Duration,
    log_loss: f64,
}

impl<'a> Run<'a> {
    fn new(
        client: &mut Client,
        config: &'a Config,
        board: Board,
        weights: Table<f32>,
    ) -> Result<Self, TrainError> {
        Ok(Self {
            config,
            weights,
            board,
            stop: StopSign::new(client, STOP.0, STOP.1)?,
            worker: Worker::new(config.model()),
            rank: client.rank().0,
        })
    }

    fn evaluator(&self, client: &mut Client) -> Result<Option<Evaluator>, TrainError> {
        let Some(path) = &self.config.test else {
            return Ok(None);
        };
        let part = read_part(path, self.rank, client.workers(), &self.config.read)?;
        let model = self.config.model();
        match Evaluator::new(client, &self.board, part, model)? {
            Some(evaluator) => Ok(Some(evaluator)),
            None => Err(TrainError::NoRows { path: path.clone() }),
        }
    }

    fn train(
        mut self,
        client: &mut Client,
        host: &mut dyn Host,
        data: &Dataset,
        mut evaluator: Option<Evaluator>,
    ) -> Result<Outcome, TrainError> {
        let mut plan = BatchPlan::new(data, self.config.batch_rows);
        let (steps, rows) = self.agree(client, &plan, data)?;
        if rows == 0 {
            let path = self.config.train.clone();
            return Err(TrainError::NoRows { path });
        }
        let mut totals = Totals::default();
        let mut stopped = false;
        for epoch in 0..self.config.epochs {
            plan.shuffle(self.config.seed.wrapping_add(self.rank.into()), epoch);
            let began = clock::now();
            let Some(mut report) = self.epoch(client, host, &plan, (epoch, steps, began))? else {
                stopped = true;
                break;
            };
            totals.rows += report.rows;
            totals.took += report.took;
            totals.log_loss = report.log_loss;
            if let Some(evaluator) = evaluator.as_mut().filter(|_| self.config.test_each_epoch) {
                report.test = evaluator.run(client, &self.board, &self.weights)?;
            }
            if self.rank == 0 {
                host.epoch_done(&report);
            }
        }
        self.worker.settle(client)?;
        let signal = self.stop.settle(client, || host.signal())?;
        let outcome = match signal {
            Some(signal) => Outcome::Stopped(signal),
            None => {
                debug_assert!(!stopped, "a run stops for a signal");
                self.figures(client, data, (totals, steps), evaluator.as_mut())?
            }
        };
        self.leave(client, evaluator)?;
        Ok(outcome)
    }

    /// Steps of an epoch, the same for all workers, and rows of all workers.
    fn agree(
        &self,
        client: &mut Client,
        plan: &BatchPlan<'_>,
        data: &Dataset,
    ) -> Result<(usize, u64), TrainError> {
        let mut row: Row = [0; WIDTH];
        row[..2].copy_from_slice(&[plan.len() as i64, data.rows() as i64]);
        let all = self.board.exchange(client, &row)?;
        let steps = all.iter().map(|row| row[0]).max().unwrap_or(0);
        let rows = all.iter().map(|row| row[1].cast_unsigned()).sum();
        Ok((usize::try_from(steps).unwrap_or(0), rows))
    }

    /// An epoch; `None` when the run was stopped in it.
    fn epoch(
        &mut self,
        client: &mut Client,
        host: &mut dyn Host,
        plan: &BatchPlan<'_>,
        (epoch, steps, began): (u64, usize, Instant),
    ) -> Result<Option<EpochReport>, TrainError> {
        let (mut rows, mut loss_sum, mut stops) = (0i64, 0.0, false);
        for index in 0..steps {
            stops = self.stop.look(client, || host.signal())?;
            if stops {
                break;
            }
            let loss = self
                .worker
                .step(client, &self.weights, &plan.batch(index))?;
            rows += loss.rows as i64;
            loss_sum += loss.loss_sum;
        }
        self.worker.settle(client)?;
        let mut row: Row = [0; WIDTH];
        let loss = f64::to_bits(loss_sum).cast_signed();
        row[..3].copy_from_slice(&[rows, loss, stops.into()]);
        // No worker is past this before all are here: the sums are of one epoch. And all come here:
        // without a bound on staleness one worker sees the sign to stop in this epoch and another
        // does not, who must neither wait for the first nor go on without it.
        let all = self.board.exchange(client, &row)?;
        if all.iter().any(|row| row[2] != 0) {
            return Ok(None);
        }
        let rows: u64 = all.iter().map(|row| row[0].cast_unsigned()).sum();
        let losses = all.iter().map(|row| f64::from_bits(row[1].cast_unsigned()));
        Ok(Some(EpochReport {
            epoch: epoch + 1,
            epochs: self.config.epochs,
            rows,
            took: clock::now() - began,
            log_loss: losses.sum::<f64>() / rows.max(1) as f64,
            test: None,
        }))
    }

    /// What rank 0 reports.
    fn figures(
        &mut self,
        client: &mut Client,
        data: &Dataset,
        (totals, steps): (Totals, usize),
        evaluator: Option<&mut Evaluator>,
    ) -> Result<Outcome, TrainError> {
        // Before evaluation adds to them: the figures are of training.
        let counters = self.counters(client)?;
        let quality = match evaluator {
            Some(evaluator) => evaluator.run(client, &self.board, &self.weights)?,
            None => None,
        };
        let keys = census::keys_of(data, self.config.model().bias_key);
        let census = census::take(client, &self.board, &self.weights, &keys)?;
        self.worker.latencies.join(client)?;
        if self.rank != 0 {
            return Ok(Outcome::Done(None));
        }
        let training = Training {
            rows: totals.rows,
            steps: steps as u64 * self.config.epochs,
            took: totals.took,
            log_loss: totals.log_loss,
        };
        let report = self.report(client, training, counters, quality, census);
        Ok(Outcome::Done(Some(Box::new(report))))
    }

    fn report(
        &self,
        client: &mut Client,
        training: Training,
        counters: BTreeMap<String, u64>,
        quality: Option<Quality>,
        census: Census,
    ) -> Report {
        let place = (
            client.transport(),
            client.servers() as u32,
            client.workers(),
        );
        let latencies = &self.worker.latencies;
        Report::new(
            self.config,
            place,
            &training,
            quality,
            census,
            latencies,
            counters,
        )
    }

    /// All workers' counters, added up.
    fn counters(&self, client: &mut Client) -> Result<BTreeMap<String, u64>, TrainError> {
        let mine = named(client.counters());
        let mut row: Row = [0; WIDTH];
        for (cell, value) in row.iter_mut().zip(mine.values()) {
            *cell = value.cast_signed();
        }
        let mut sums: BTreeMap<String, u64> = mine.into_keys().map(|name| (name, 0)).collect();
        for row in self.board.exchange(client, &row)? {
            for (sum, value) in sums.values_mut().zip(row) {
                *sum = sum.wrapping_add(value.cast_unsigned());
            }
        }
        Ok(sums)
    }

    /// Saves if asked, and removes the trainer's own tables.
    fn leave(self, client: &mut Client, evaluator: Option<Evaluator>) -> Result<(), TrainError> {
        meet(client)?;
        if self.rank == 0 {
            if let Some(evaluator) = evaluator {
                evaluator.release(client)?;
            }
            self.board.release(client)?;
            self.stop.release(client)?;
            if let Some(dir) = &self.config.save {
                client.save(dir, CLOCK_DEADLINE)?;
            }
        }
        meet(client)?;
        Ok(())
    }
}

/// Counters by name, in one order at all workers.
fn named(counters: &Counters) -> BTreeMap<String, u64> {
    let value = serde_json::to_value(counters).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten();
    fields
        .filter_map(|(name, count)| Some((name.clone(), count.as_u64()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_fit_a_row_of_the_board() {
        let counters = named(&Counters {
            bytes_pulled: u64::MAX,
            ..Counters::default()
        });
        assert_eq!(counters["bytes_pulled"], u64::MAX);
        assert_eq!(counters["retries"], 0);
        assert!(
            counters.len() > 10 && counters.len() <= WIDTH,
            "{}",
            counters.len()
        );
    }
}

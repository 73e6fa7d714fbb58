//! The training loop of one worker; all workers of the job run it in parallel.
//!
//! 1. Workers exchange their settings: all continue if they are equal, else none does. The model's
//!    table `w` is created, or loaded and opened: sparse, `f32`, one column, keyed by feature. Under BSP
//!    pushes take effect at the tick, reduced in rank order, so that the result does not depend on
//!    timing; otherwise on arrival.
//! 2. Each worker reads its byte range of the training file. Parts differ in rows, so workers exchange
//!    their numbers of batches, and all take as many steps as the largest part has. A worker without a
//!    batch left only ticks. (Workers must tick alike, or the others would wait for one that is done.)
//! 3. Steps: pull, gradient, push, tick. A few pushes are under way at a time.
//! 4. At an epoch's end all wait until their pushes are applied.
//! 5. After the last: evaluation on the test set, statistics of the weights, figures for rank 0.
//! 6. If asked, the model is saved: all wait for all before and after, rank 0 saves. A saved model
//!    holds `w` and the run's position ([`POSITION`]); the trainer's other tables are released before.
//!
//! A run that loads a model continues at the model's position: `epochs` counts from the epoch that the
//! model was saved in. With the same training file, workers, batch and seed it takes the steps that the
//! saved run would have taken, with their rates. Under BSP the weights then have the bits of one run. With other settings
//! it continues at the beginning of that epoch.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tidewater_protocol::limits::CLOCK_DEADLINE;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::Optimizer;
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_runtime::clock;

use super::all_gather::{AllGather, Row, WIDTH, meet};
use super::config::{Config, WEIGHTS};
use super::error::TrainError;
use super::evaluate::{Evaluator, Quality};
#[cfg(doc)]
use super::position::POSITION;
use super::position::{Course, Position, PositionTable};
use super::report::{Report, Training};
use super::settings_check;
use super::step::Worker;
use super::weight_stats::{self, WeightStats};
use crate::data::{BatchPlan, Dataset, read_part};
use tidewater::Schedule;
use tidewater::counters::Counters;
use tidewater::error::ClientError;
use tidewater::session::Client;
use tidewater::table::Table;
use tidewater::walltime::StopSign;

/// Name of the table by which workers agree on an early end, and steps between two checks of it.
const STOP: (&str, u64) = ("tidewater-train/stop", 8);

/// Callbacks of a run to the program around it.
pub trait Host {
    /// Returns a signal that asked the process to end, if one came. Called every few steps.
    fn signal(&mut self) -> Option<i32>;

    /// Called at rank 0 if the loaded model had a position, at which training continues.
    fn resumed(&mut self, resumed: &Resumed);

    /// Called at rank 0 after each epoch.
    fn epoch_done(&mut self, epoch: &EpochReport);
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpochReport {
    /// Number of the epoch from 1, over all runs of the model.
    pub epoch: u64,
    /// The last epoch of this run.
    pub epochs: u64,
    /// Number of rows trained on.
    pub rows: u64,
    /// Duration of the epoch, until all workers were done.
    pub took: Duration,
    /// Mean log-loss of the rows, each computed before the step that it was part of.
    pub log_loss: f64,
    /// Quality on the test set, if requested after each epoch.
    pub test: Option<Quality>,
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

/// Trains a model. All workers of the job call it with equal settings; it returns when all are done.
///
/// # Errors
/// Unreadable files, failures of the cluster, a model that diverged. The others then wait until the
/// coordinator notices that this worker leaves, and notifies them.
pub fn run(
    client: &mut Client,
    config: &Config,
    host: &mut dyn Host,
) -> Result<Outcome, TrainError> {
    let (rank, workers) = (client.rank().0, client.workers());
    let data = read_rows(&config.train, rank, workers, config)?;
    let board = AllGather::new(client)?;
    settings_check::check(client, &board, config)?;
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

/// Reads this worker's part of a file set, and reports the records that were left out of it.
fn read_rows(path: &Path, rank: u32, workers: u32, config: &Config) -> Result<Dataset, TrainError> {
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

/// Creates the model's table, or opens the loaded one.
fn weights(client: &mut Client, config: &Config) -> Result<Table<f32>, TrainError> {
    let want = config.table();
    match (client.create_table(&want), &config.load) {
        (Err(ClientError::Refused(why)), Some(dir)) if why.code == RefusalCode::TableDiffers => {
            // A model without such a table has no settings to compare.
            let loaded = client.open_table::<f32>(WEIGHTS).ok();
            let have = loaded.and_then(|table| client.spec(&table));
            Err(TrainError::other_training(dir, &why, (have, &want)))
        }
        (made, _) => Ok(made?),
    }
}

/// The tables of a run, and its worker.
struct Run<'a> {
    config: &'a Config,
    weights: Table<f32>,
    position: PositionTable,
    board: AllGather,
    stop: StopSign,
    worker: Worker,
    rank: u32,
    /// Rule that the servers have; `None` while it is that of a loaded model.
    rule: Option<Optimizer>,
}

/// Extent of an epoch that was run.
enum Walk {
    Whole(EpochReport),
    /// Stopped before this step.
    Stopped(u64),
}

/// Sums over epochs, at rank 0.
#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    rows: u64,
    steps: u64,
    took: Duration,
    log_loss: f64,
}

impl<'a> Run<'a> {
    fn new(
        client: &mut Client,
        config: &'a Config,
        board: AllGather,
        weights: Table<f32>,
    ) -> Result<Self, TrainError> {
        Ok(Self {
            config,
            weights,
            position: PositionTable::new(client)?,
            board,
            stop: StopSign::new(client, STOP.0, STOP.1)?,
            worker: Worker::new(config.model()),
            rank: client.rank().0,
            rule: config.load.is_none().then_some(config.optimizer),
        })
    }

    /// Sets the rate of a step, at the worker that does so for all.
    fn set_rate(
        &mut self,
        client: &mut Client,
        rates: &Schedule,
        step: u64,
    ) -> Result<(), TrainError> {
        let rule = self.config.optimizer.with_rate(rates.at(step));
        if self.rank == 0 && self.rule != Some(rule) {
            // A refusal is reported by the tick.
            let _ticket = client.set_optimizer(&self.weights, rule)?;
            self.rule = Some(rule);
        }
        Ok(())
    }

    fn evaluator(&self, client: &mut Client) -> Result<Option<Evaluator>, TrainError> {
        let Some(path) = &self.config.test else {
            return Ok(None);
        };
        let part = read_rows(path, self.rank, client.workers(), self.config)?;
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
        let course = Course {
            steps: steps as u64,
            rows,
            workers: client.workers().into(),
            batch_rows: self.config.batch_rows.get() as u64,
            seed: self.config.seed,
        };
        let start = self.start(client, host, &course)?;
        let (totals, end) =
            self.epochs(client, host, &mut plan, (start, &course), &mut evaluator)?;
        self.worker.settle(client)?;
        let signal = self.stop.settle(client, || host.signal())?;
        let outcome = match signal {
            Some(signal) => Outcome::Stopped(signal),
            None => self.figures(client, data, totals, evaluator.as_mut())?,
        };
        // A run without a step leaves the position as loaded.
        let moved = (end != start || self.config.load.is_none()).then_some((end, course));
        self.leave(client, evaluator, moved)?;
        Ok(outcome)
    }

    /// The first step; for a loaded model, the one after its last.
    fn start(
        &self,
        client: &mut Client,
        host: &mut dyn Host,
        course: &Course,
    ) -> Result<Position, TrainError> {
        let Some(dir) = &self.config.load else {
            return Ok(Position::default());
        };
        let Some((saved, its)) = self.position.read(client, dir)? else {
            return Ok(Position::default());
        };
        let differs = its.difference(course);
        let mut start = match differs {
            None => saved,
            Some(_) => Position { step: 0, ..saved },
        };
        if mutants::on(Mutant::ResumeAtFirstEpoch) {
            start = Position::default();
        }
        if self.rank == 0 && self.config.epochs > 0 {
            host.resumed(&Resumed {
                epoch: start.epoch.saturating_add(1),
                step: start.step,
                steps: course.steps,
                differs,
            });
        }
        Ok(start)
    }

    /// Runs all epochs; returns the sums over them, and the position after the last step.
    fn epochs(
        &mut self,
        client: &mut Client,
        host: &mut dyn Host,
        plan: &mut BatchPlan<'_>,
        (start, course): (Position, &Course),
        evaluator: &mut Option<Evaluator>,
    ) -> Result<(Totals, Position), TrainError> {
        let mut totals = Totals::default();
        let mut at = start;
        let end = start.epoch.saturating_add(self.config.epochs);
        while at.epoch < end {
            plan.shuffle(self.config.seed.wrapping_add(self.rank.into()), at.epoch);
            let first = at.step;
            let mut report = match self.epoch(client, host, plan, (at, end, course.steps))? {
                Walk::Whole(report) => report,
                Walk::Stopped(step) => {
                    at.step = step;
                    break;
                }
            };
            at = Position {
                epoch: at.epoch + 1,
                step: 0,
            };
            totals.rows += report.rows;
            totals.steps += course.steps - first;
            totals.took += report.took;
            totals.log_loss = report.log_loss;
            if let Some(evaluator) = evaluator.as_mut().filter(|_| self.config.test_each_epoch) {
                report.test = evaluator.run(client, &self.board, &self.weights)?;
            }
            if self.rank == 0 {
                host.epoch_done(&report);
            }
        }
        Ok((totals, at))
    }

    /// Agrees on the steps of an epoch, the same for all workers, and on the rows of all workers.
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

    /// Runs the rest of an epoch, from `at` on, unless a stop ends it.
    fn epoch(
        &mut self,
        client: &mut Client,
        host: &mut dyn Host,
        plan: &BatchPlan<'_>,
        (at, end, steps): (Position, u64, u64),
    ) -> Result<Walk, TrainError> {
        let began = clock::now();
        let (mut rows, mut loss_sum, mut stops) = (0i64, 0.0, false);
        let mut step = at.step;
        let rates = self
            .config
            .decay
            .schedule(self.config.optimizer.rate(), steps);
        while step < steps {
            stops = self.stop.look(client, || host.signal())?;
            if stops {
                break;
            }
            // A number without a batch returns an empty one: the step has no rows then.
            let batch = plan.batch(usize::try_from(step).unwrap_or(usize::MAX));
            let of_all = at.epoch.saturating_mul(steps).saturating_add(step);
            self.set_rate(client, &rates, of_all)?;
            let loss = self.worker.step(client, &self.weights, &batch)?;
            rows += loss.rows as i64;
            loss_sum += loss.loss_sum;
            step += 1;
        }
        self.worker.settle(client)?;
        let mut row: Row = [0; WIDTH];
        let loss = f64::to_bits(loss_sum).cast_signed();
        row[..4].copy_from_slice(&[rows, loss, stops.into(), step.cast_signed()]);
        // No worker passes this before all have arrived: the sums are of one epoch. All workers arrive:
        // without a bound on staleness one worker sees the sign to stop in this epoch and another does
        // not. The other must neither wait for the first nor continue without it.
        let all = self.board.exchange(client, &row)?;
        if all.iter().any(|row| row[2] != 0) {
            // Without a bound on staleness workers stop at different steps; the least one omits no step
            // later.
            let least = all.iter().map(|row| row[3].cast_unsigned()).min();
            return Ok(Walk::Stopped(least.unwrap_or(step)));
        }
        let rows: u64 = all.iter().map(|row| row[0].cast_unsigned()).sum();
        let losses = all.iter().map(|row| f64::from_bits(row[1].cast_unsigned()));
        Ok(Walk::Whole(EpochReport {
            epoch: at.epoch + 1,
            epochs: end,
            rows,
            took: clock::now() - began,
            log_loss: losses.sum::<f64>() / rows.max(1) as f64,
            test: None,
        }))
    }

    /// Computes the figures that rank 0 reports.
    fn figures(
        &mut self,
        client: &mut Client,
        data: &Dataset,
        totals: Totals,
        evaluator: Option<&mut Evaluator>,
    ) -> Result<Outcome, TrainError> {
        // Read before the evaluation adds to them: the figures are of training.
        let counters = self.counters(client)?;
        let quality = match evaluator {
            Some(evaluator) => evaluator.run(client, &self.board, &self.weights)?,
            None => None,
        };
        let keys = weight_stats::keys_of(data, self.config.model().bias_key);
        let census = weight_stats::take(client, &self.board, &self.weights, &keys)?;
        self.worker.latencies.join(client)?;
        if self.rank != 0 {
            return Ok(Outcome::Done(None));
        }
        let training = Training {
            rows: totals.rows,
            steps: totals.steps,
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
        census: WeightStats,
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

    /// Sums of all workers' counters, by name.
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

    /// Saves if requested, with the position if it has moved, and removes the trainer's own tables.
    fn leave(
        self,
        client: &mut Client,
        evaluator: Option<Evaluator>,
        moved: Option<(Position, Course)>,
    ) -> Result<(), TrainError> {
        // The last tick too: a save holds only frames that servers have read from their rings.
        client.flush()?;
        meet(client)?;
        if self.rank == 0 {
            if let Some(evaluator) = evaluator {
                evaluator.release(client)?;
            }
            self.board.release(client)?;
            self.stop.release(client)?;
            if let Some(dir) = &self.config.save {
                if let Some((position, course)) = moved {
                    self.position.write(client, position, &course)?;
                }
                client.save(dir, CLOCK_DEADLINE)?;
            }
            self.position.release(client)?;
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

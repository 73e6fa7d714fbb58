//! The training loop of one worker; all workers of the job run it in parallel. (long: one run, from its tables to its end.)
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
//! 5. Evaluation on the test set, after epochs, steps or seconds ([`Cadence`]), and after the last step:
//!    all workers apply their pushes and wait for each other before and after.
//! 6. Statistics of the weights, figures for rank 0.
//! 7. If asked, the model is saved: all wait for all before and after, rank 0 saves. A model holds `w`, the
//!    run's position ([`POSITION`]) and what it was trained on ([`MODEL`]); the trainer's other tables are
//!    released before.
//!
//! A run that loads a model continues at the model's position: `epochs` counts from the epoch that the
//! model was saved in. With the same training file, workers, batch and seed it takes the steps that the
//! saved run would have taken, with their rates. Under BSP the weights then have the bits of one run. With other settings
//! it continues at the beginning of that epoch.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidewater_protocol::limits::CLOCK_DEADLINE;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::Optimizer;
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_runtime::clock;

use super::all_gather::{self, AllGather, Row, WIDTH, meet};
#[cfg(doc)]
use super::cadence::Cadence;
use super::config::{Config, WEIGHTS};
use super::error::TrainError;
use super::evaluate::{self, Quality, part_counts};
use super::evaluations::{EVALUATE, Evaluations, read_rows};
use super::host::{EpochReport, Host, Outcome, Resumed};
use super::latency;
use super::position::POSITION;
use super::position::{self, Checkpoint, Course, Position, PositionTable};
use super::report::{Deployment, Report, Training};
#[cfg(doc)]
use super::saved::MODEL;
use super::saved::{Described, DescriptionTable};
use super::settings_check;
use super::step::Worker;
use super::weight_stats::{self, WeightStats};
use crate::data::{BatchPlan, Dataset};
use tidewater::Schedule;
use tidewater::counters::Counters;
use tidewater::error::ClientError;
use tidewater::session::Client;
use tidewater::table::{Element, Table};
use tidewater::walltime::StopSign;

/// Name of the table by which workers agree on an early end, and steps between two checks of it.
const STOP: (&str, u64) = ("tidewater-train/stop", 8);
/// Signal that stands for `tidewater stop`: SIGTERM.
pub(crate) const STOPPED: i32 = 15;

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
    run_from(client, config, host, config.load.as_deref(), true)
}

/// As [`run()`], from the model `model`, which is loaded from that directory first or is in the cluster.
pub(crate) fn run_from(
    client: &mut Client,
    config: &Config,
    host: &mut dyn Host,
    model: Option<&str>,
    is_to_load: bool,
) -> Result<Outcome, TrainError> {
    Evaluations::check(config)?;
    let (rank, workers) = (client.rank().0, client.workers());
    let data = read_rows(&config.train, rank, workers, config)?;
    if client.resumed().is_some() {
        release_aside(client)?;
    }
    let all_gather = AllGather::new(client)?;
    settings_check::check(client, &all_gather, config)?;
    if let Some(dir) = model.filter(|_| is_to_load && client.resumed().is_none()) {
        if rank == 0 {
            client.load(dir, CLOCK_DEADLINE)?;
        }
        meet(client)?;
    }
    let weights = weights(client, config, model)?;
    let run = Run::new(client, config, model, all_gather, weights)?;
    run.train(client, host, &data)
}

/// Removes the trainer's own tables of a checkpoint: they hold what workers exchanged before.
fn release_aside(client: &mut Client) -> Result<(), TrainError> {
    if client.rank().0 == 0 {
        let numbers = [
            all_gather::NAME,
            latency::NAME,
            weight_stats::NAME,
            STOP.0,
            EVALUATE.0,
            POSITION,
        ];
        for name in numbers {
            release_if_there::<i64>(client, name)?;
        }
        release_if_there::<f64>(client, evaluate::NAME)?;
    }
    Ok(meet(client)?)
}

fn release_if_there<T: Element>(client: &mut Client, name: &str) -> Result<(), ClientError> {
    match client.open_table::<T>(name) {
        Ok(table) => client.release_table(table),
        Err(ClientError::Refused(why)) if why.code == RefusalCode::UnknownTable => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates the model's table, or opens the loaded one.
fn weights(
    client: &mut Client,
    config: &Config,
    model: Option<&str>,
) -> Result<Table<f32>, TrainError> {
    let want = config.table();
    match (client.create_table(&want), model) {
        (Err(ClientError::Refused(why)), Some(dir)) if why.code == RefusalCode::TableDiffers => {
            // A model without such a table has no settings to compare.
            let loaded = client.open_table::<f32>(WEIGHTS).ok();
            let have = loaded.and_then(|table| client.spec(&table));
            Err(TrainError::other_training(dir, &why, have, &want))
        }
        (made, _) => Ok(made?),
    }
}

/// Steps of a run, from its next one to the end of its last epoch.
#[derive(Debug, Clone, Copy)]
struct Span<'a> {
    start: Position,
    /// Epoch with which the run ends.
    end: u64,
    course: &'a Course,
}

/// The tables of a run, and its worker.
struct Run<'a> {
    config: &'a Config,
    /// Directory of the model that the run continues, or what stands for it in errors.
    model: Option<&'a str>,
    weights: Table<f32>,
    position: PositionTable,
    description: DescriptionTable,
    all_gather: AllGather,
    stop: StopSign,
    worker: Worker,
    rank: u32,
    /// Rule that the servers have; `None` while it is that of a loaded model.
    rule: Option<Optimizer>,
    evaluations: Evaluations,
    /// Malformed records of this worker's part.
    skipped: u64,
    start: Instant,
}

/// Extent of an epoch that was run.
enum Walk {
    Completed(EpochReport),
    /// Stopped before this step.
    Stopped(u64),
}

/// What a worker has done in an epoch.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    rows: i64,
    loss_sum: f64,
    stops: bool,
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
        model: Option<&'a str>,
        all_gather: AllGather,
        weights: Table<f32>,
    ) -> Result<Self, TrainError> {
        Ok(Self {
            config,
            model,
            weights,
            position: PositionTable::new(client)?,
            description: DescriptionTable::new(client)?,
            stop: StopSign::new(client, STOP.0, STOP.1)?,
            worker: Worker::new(config.model()),
            rank: client.rank().0,
            rule: (model.is_none() && client.resumed().is_none()).then_some(config.optimizer),
            evaluations: Evaluations::new(client, config, &all_gather)?,
            skipped: 0,
            start: clock::now(),
            all_gather,
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

    fn train(
        mut self,
        client: &mut Client,
        host: &mut dyn Host,
        data: &Dataset,
    ) -> Result<Outcome, TrainError> {
        self.skipped = data.skipped();
        let mut plan = BatchPlan::new(data, self.config.batch_rows);
        let (steps, rows, trained) = self.agree(client, &plan, data)?;
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
        let (start, last) = self.start(client, host, &course)?;
        let span = Span {
            start,
            end: last,
            course: &course,
        };
        let (totals, end) = self.epochs(client, host, &mut plan, span)?;
        self.worker.settle(client)?;
        let signal = self.stop.settle(client, || host.signal())?;
        let outcome = match signal {
            Some(signal) => Outcome::Stopped(signal),
            None => self.figures(client, host, data, totals, end, &course)?,
        };
        // A run without a step leaves the position as loaded.
        let moved = (end != start || self.model.is_none()).then_some((end, course));
        self.leave(client, moved, &trained)?;
        Ok(outcome)
    }

    /// The first step, and the epoch with which the run ends. A loaded model continues after its last
    /// step, and a resumed job after that of its checkpoint.
    fn start(
        &self,
        client: &mut Client,
        host: &mut dyn Host,
        course: &Course,
    ) -> Result<(Position, u64), TrainError> {
        let epochs = self.config.epochs;
        let Checkpoint {
            at: saved,
            end: last,
            course: its,
        } = match client.resumed() {
            Some(_) => match self.of_checkpoint(client)? {
                Some(found) => found,
                None => return Ok((Position::default(), epochs)),
            },
            None => {
                let Some(dir) = self.model else {
                    return Ok((Position::default(), epochs));
                };
                let Some((at, course)) = self.position.read(client, dir)? else {
                    return Ok((Position::default(), epochs));
                };
                let end = at.epoch.saturating_add(epochs);
                Checkpoint { at, end, course }
            }
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
        Ok((start, last))
    }

    /// The position in the checkpoint that the job continues from. Without a bound on staleness the positions
    /// of workers differ: the least one omits no step.
    fn of_checkpoint(&self, client: &mut Client) -> Result<Option<Checkpoint>, TrainError> {
        let mine = client.position()?;
        let mut row: Row = [0; WIDTH];
        for (cell, bytes) in row
            .iter_mut()
            .zip(mine.iter().flat_map(|m| m.as_chunks::<8>().0))
        {
            *cell = i64::from_le_bytes(*bytes);
        }
        let all = self.all_gather.exchange(client, &row)?;
        let mut least: Option<Checkpoint> = None;
        for row in all {
            let bytes: Vec<u8> = row.iter().flat_map(|cell| cell.to_le_bytes()).collect();
            if row[0] == 0 {
                // A worker that has taken no step.
                return Ok(None);
            }
            let decoded = position::from_checkpoint(&bytes[..position::CHECKPOINT_BYTES]);
            let checkpoint = decoded.map_err(|what| TrainError::Position {
                dir: "the checkpoint".into(),
                what,
            })?;
            let of = |at: &Position| (at.epoch, at.step);
            if least.is_none_or(|other| of(&checkpoint.at) < of(&other.at)) {
                least = Some(checkpoint);
            }
        }
        Ok(least)
    }

    /// Runs all epochs; returns the sums over them, and the position after the last step.
    fn epochs(
        &mut self,
        client: &mut Client,
        host: &mut dyn Host,
        plan: &mut BatchPlan<'_>,
        span: Span<'_>,
    ) -> Result<(Totals, Position), TrainError> {
        let mut totals = Totals::default();
        let mut at = span.start;
        while at.epoch < span.end {
            plan.shuffle(self.config.seed.wrapping_add(self.rank.into()), at.epoch);
            let first = at.step;
            let rest = Span { start: at, ..span };
            let mut report = match self.epoch(client, host, plan, rest)? {
                Walk::Completed(report) => report,
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
            totals.steps += span.course.steps - first;
            totals.took += report.took;
            totals.log_loss = report.log_loss;
            if self.evaluations.is_due_after(at.epoch) {
                report.test = self.evaluate(client, host, at.epoch, report.step)?;
            }
            if self.rank == 0 {
                host.epoch_done(&report);
            }
        }
        Ok((totals, at))
    }

    /// Agrees on the steps of an epoch, the same for all workers, and on rows and features of all workers.
    fn agree(
        &self,
        client: &mut Client,
        plan: &BatchPlan<'_>,
        data: &Dataset,
    ) -> Result<(usize, u64, Described), TrainError> {
        let mut row: Row = [0; WIDTH];
        let features = data.max_key().map_or(0, |key| key.saturating_add(1));
        let width = data.width().unwrap_or(0);
        row[..4].copy_from_slice(&[
            plan.len() as i64,
            data.rows() as i64,
            features.cast_signed(),
            width.cast_signed(),
        ]);
        let all = self.all_gather.exchange(client, &row)?;
        let most = |cell: usize| all.iter().map(|row| row[cell].cast_unsigned()).max();
        let rows = all.iter().map(|row| row[1].cast_unsigned()).sum();
        let trained = Described {
            features: most(2).unwrap_or(0),
            width: most(3).unwrap_or(0),
        };
        let steps = usize::try_from(most(0).unwrap_or(0)).unwrap_or(usize::MAX);
        Ok((steps, rows, trained))
    }

    /// Evaluates the model, when the pushes of all workers are applied and they have met.
    fn evaluate(
        &mut self,
        client: &mut Client,
        host: &mut dyn Host,
        epoch: u64,
        step: u64,
    ) -> Result<Option<Quality>, TrainError> {
        let (all_gather, weights) = (&self.all_gather, &self.weights);
        self.evaluations
            .run(client, host, all_gather, weights, epoch, step)
    }

    /// Whether the run ends here, by a signal of a process or because an operator stops the job.
    fn stops(&mut self, client: &mut Client, host: &mut dyn Host) -> Result<bool, TrainError> {
        let asked = self.stop.is_check(client) && client.stop_asked()?.is_some();
        let asked = asked.then_some(STOPPED);
        Ok(self.stop.look(client, || host.signal().or(asked))?)
    }

    /// Runs the rest of an epoch, from the start of the span on, unless a stop ends it.
    fn epoch(
        &mut self,
        client: &mut Client,
        host: &mut dyn Host,
        plan: &BatchPlan<'_>,
        span: Span<'_>,
    ) -> Result<Walk, TrainError> {
        let (at, end, course) = (span.start, span.end, span.course);
        let steps = course.steps;
        let began = clock::now();
        let mut paused = Duration::ZERO;
        let mut tally = Tally::default();
        let mut step = at.step;
        let first = at.epoch.saturating_mul(steps);
        let rates = self
            .config
            .decay
            .schedule(self.config.optimizer.rate(), steps);
        while step < steps {
            tally.stops = self.stops(client, host)?;
            if tally.stops {
                break;
            }
            // A number without a batch returns an empty one: the step has no rows then.
            let batch = plan.batch(usize::try_from(step).unwrap_or(usize::MAX));
            self.set_rate(client, &rates, first.saturating_add(step))?;
            let after = Position {
                epoch: at.epoch + (step + 1) / steps,
                step: (step + 1) % steps,
            };
            let position = position::checkpoint(after, end, course);
            let position = client.has_checkpoints().then_some(&position[..]);
            let loss = self.worker.step(client, &self.weights, &batch, position)?;
            tally.rows += loss.rows as i64;
            tally.loss_sum += loss.loss_sum;
            step += 1;
            let of_all = first.saturating_add(step);
            if self.evaluations.is_due(client, of_all)? {
                let since = clock::now();
                if let Err(least) = self.gather(client, tally, step)? {
                    return Ok(Walk::Stopped(least));
                }
                self.evaluations.renew(client)?;
                self.evaluate(client, host, at.epoch + 1, of_all)?;
                paused += clock::now() - since;
            }
        }
        let all = match self.gather(client, tally, step)? {
            Ok(all) => all,
            Err(least) => return Ok(Walk::Stopped(least)),
        };
        let rows: u64 = all.iter().map(|row| row[0].cast_unsigned()).sum();
        let losses = all.iter().map(|row| f64::from_bits(row[2].cast_unsigned()));
        Ok(Walk::Completed(EpochReport {
            epoch: at.epoch + 1,
            epochs: end,
            rows,
            step: first.saturating_add(steps),
            clock: client.global_clock()?,
            since_start: clock::now() - self.start,
            took: (clock::now() - began).saturating_sub(paused),
            log_loss: losses.sum::<f64>() / rows.max(1) as f64,
            test: None,
            parts: part_counts(&all),
        }))
    }

    /// Waits until all pushes of all workers are applied, and gathers what the workers have done in this epoch;
    /// `Err` with the least step if one of them stops.
    ///
    /// No worker passes this before all have arrived: the sums are of one epoch. All workers arrive: without a
    /// bound on staleness one worker sees the sign to stop in this epoch and another does not, and it may see it
    /// before an evaluation to which the other has come. The other must neither wait for the first nor continue
    /// without it.
    fn gather(
        &mut self,
        client: &mut Client,
        tally: Tally,
        step: u64,
    ) -> Result<Result<Vec<Row>, u64>, TrainError> {
        self.worker.settle(client)?;
        let mut row: Row = [0; WIDTH];
        let loss = f64::to_bits(tally.loss_sum).cast_signed();
        let skipped = self.skipped.cast_signed();
        row[..5].copy_from_slice(&[
            tally.rows,
            skipped,
            loss,
            tally.stops.into(),
            step.cast_signed(),
        ]);
        let all = self.all_gather.exchange(client, &row)?;
        if all.iter().any(|row| row[3] != 0) {
            // Without a bound on staleness workers stop at different steps; the least one omits no step
            // later.
            let least = all.iter().map(|row| row[4].cast_unsigned()).min();
            return Ok(Err(least.unwrap_or(step)));
        }
        Ok(Ok(all))
    }

    /// Computes the figures that rank 0 reports.
    fn figures(
        &mut self,
        client: &mut Client,
        host: &mut dyn Host,
        data: &Dataset,
        totals: Totals,
        end: Position,
        course: &Course,
    ) -> Result<Outcome, TrainError> {
        // Read before the last evaluation adds to them: the figures are of training.
        let counters = self.counters(client)?;
        let step = end.epoch.saturating_mul(course.steps) + end.step;
        let quality = match self.evaluations.at(step) {
            Some(quality) => quality,
            None => self.evaluate(client, host, end.epoch, step)?,
        };
        let keys = weight_stats::keys_of(data, self.config.model().bias_key);
        let stats = weight_stats::take(client, &self.all_gather, &self.weights, &keys)?;
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
        let report = self.report(client, training, counters, quality, stats);
        Ok(Outcome::Done(Some(Box::new(report))))
    }

    fn report(
        &self,
        client: &mut Client,
        training: Training,
        counters: BTreeMap<String, u64>,
        quality: Option<Quality>,
        stats: WeightStats,
    ) -> Report {
        let deployment = Deployment {
            transport: client.transport(),
            servers: client.servers() as u32,
            workers: client.workers(),
        };
        let latencies = &self.worker.latencies;
        Report::new(
            self.config,
            deployment,
            &training,
            quality,
            stats,
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
        for row in self.all_gather.exchange(client, &row)? {
            for (sum, value) in sums.values_mut().zip(row) {
                *sum = sum.wrapping_add(value.cast_unsigned());
            }
        }
        Ok(sums)
    }

    /// Completes the model with its position, if that has moved, and with what it was trained on; saves it if
    /// requested, and removes the trainer's other tables.
    fn leave(
        self,
        client: &mut Client,
        moved: Option<(Position, Course)>,
        trained: &Described,
    ) -> Result<(), TrainError> {
        // The last tick too: a save holds only frames that servers have read from their rings.
        client.flush()?;
        meet(client)?;
        if self.rank == 0 {
            self.evaluations.release(client)?;
            self.all_gather.release(client)?;
            self.stop.release(client)?;
            if let Some((position, course)) = moved {
                self.position.write(client, position, &course)?;
                // For errors only: a new model has no directory.
                let model = self.model.unwrap_or_default();
                self.description.write(client, trained, model)?;
            }
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

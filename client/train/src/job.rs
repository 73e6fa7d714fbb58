//! A training job in this process: servers, workers, and calls that train, evaluate, predict and save.
//!
//! ```text
//! create -> [load] -> start -> wait | stop, wait -> evaluate, predict, save, start ... -> close
//! ```
//! Each worker is a thread with a client of its own, and carries out one call after the other together with the
//! others. A call that does not fit the state of the job is refused with what to call before it. Jobs of several
//! processes are started by `tidewater train`, and stopped by `tidewater stop`.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use tidewater_protocol::limits::CLOCK_DEADLINE;
use tidewater_runtime::sync::{Arc, AtomicBool, Ordering};

use super::config::Config;
use super::error::TrainError;
use super::evaluate::{EvaluateConfig, EvaluationReport, evaluate};
use super::event_log::EventLog;
use super::host::{EpochReport, Host, Outcome, Resumed};
use super::predict::{PredictConfig, Predicted, predict};
use super::run::{STOPPED, run_from};
use crate::all_gather::meet;
use tidewater::error::{ClientError, SystemError};
use tidewater::session::Client;
use tidewater::{ClusterConfig, Job, JoinOptions, SyncMode};

/// Name of the model in errors of a run that continues it.
const MODEL: &str = "this job";

/// Parts of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobOptions {
    /// Number of servers, at least 1.
    pub servers: u32,
    /// Applier threads of each server.
    pub appliers: u16,
    /// Number of workers, at least 1.
    pub workers: u32,
    /// How far workers may drift apart.
    pub sync: SyncMode,
    /// File for a line of JSON for each epoch, evaluation and predicted part.
    pub log: Option<PathBuf>,
}

impl Default for JobOptions {
    /// One server with one applier, one worker, BSP.
    fn default() -> Self {
        Self {
            servers: 1,
            appliers: 1,
            workers: 1,
            sync: SyncMode::Bsp,
            log: None,
        }
    }
}

/// Why a call of a [`TrainingJob`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The call does not fit the state of the job, which is unchanged.
    #[error("{call}: the job {state}; {remedy}")]
    State {
        /// Name of the call.
        call: &'static str,
        /// State of the job.
        state: &'static str,
        /// Calls that fit this state.
        remedy: &'static str,
    },
    /// A worker failed, and with it the job.
    #[error("{call} at worker {rank}: {source}")]
    Worker {
        /// Name of the call.
        call: &'static str,
        /// Rank of the worker.
        rank: u32,
        /// Error of the worker.
        #[source]
        source: Box<TrainError>,
    },
    /// The cluster cannot be started, or has failed.
    #[error(transparent)]
    Cluster(#[from] ClientError),
    /// A worker's thread has ended by a panic, which is a defect.
    #[error("{call}: the thread of worker {rank} has panicked: a defect, please report it")]
    Panic {
        /// Name of the call.
        call: &'static str,
        /// Rank of the worker.
        rank: u32,
    },
}

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Empty,
    Trains,
    HasModel,
    Failed,
}

impl State {
    const fn says(self) -> (&'static str, &'static str) {
        match self {
            Self::Empty => (
                "has no model",
                "load one, or start a training and wait for it",
            ),
            Self::Trains => ("trains", "wait for it, or stop it and wait"),
            Self::HasModel => ("has a model", "create another job for another model"),
            Self::Failed => (
                "has failed",
                "create another job, and load the last saved model",
            ),
        }
    }
}

/// An order to a worker.
#[derive(Debug, Clone)]
enum Order {
    Load(String),
    Train(Box<Config>, bool),
    Evaluate(Box<EvaluateConfig>),
    Predict(Box<PredictConfig>),
    Save(String),
    Finish,
}

/// What a worker returns.
#[derive(Debug)]
enum Done {
    Nothing,
    Trained(Box<Outcome>),
    Evaluated(Option<Box<EvaluationReport>>),
    Predicted(Predicted),
}

#[derive(Debug)]
struct Worker {
    orders: Sender<Order>,
    results: Receiver<Result<Done, TrainError>>,
    thread: JoinHandle<()>,
}

/// A job in this process. Dropping it without [`TrainingJob::close`] stops a training and ends the cluster.
///
/// # Examples
/// ```
/// use tidewater_train::job::{JobOptions, TrainingJob};
/// use tidewater_train::{Config, Outcome};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("train.libsvm");
/// # std::fs::write(&path, "1 1:1\n-1 2:1\n".repeat(50))?;
/// let mut job = TrainingJob::create(&JobOptions::default())?;
/// job.start(&Config::new(&path))?;
/// let Outcome::Done(Some(report)) = job.wait()? else { panic!("stopped") };
/// assert_eq!(report.rows, 500); // 5 epochs
/// job.save(dir.path().join("model").to_str().expect("UTF-8"))?;
/// job.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TrainingJob {
    workers: Vec<Worker>,
    state: State,
    stop: Arc<AtomicBool>,
    /// Outlives the workers: coordinator and servers are threads of it.
    cluster: Arc<Job>,
}

impl TrainingJob {
    /// Starts servers and workers as threads of this process.
    ///
    /// # Errors
    /// [`JobError::Cluster`]; [`JobError::Worker`] for a worker that cannot join, or a log that cannot be opened.
    pub fn create(options: &JobOptions) -> Result<Self, JobError> {
        let cluster = ClusterConfig {
            servers: options.servers,
            appliers: options.appliers,
            workers: options.workers,
            ..ClusterConfig::default()
        };
        let joined = JoinOptions::from(cluster).join()?.into_job();
        let environment = || ClientError::Environment("the cluster gave no worker".into());
        let cluster = Arc::new(joined.ok_or_else(environment)?);
        let stop = Arc::new(AtomicBool::new(false));
        let mut workers = Vec::new();
        for rank in 0..options.workers {
            let (orders, inbox) = channel();
            let (outbox, results) = channel();
            let part = Part {
                cluster: cluster.clone(),
                rank,
                sync: options.sync,
                log: options.log.clone().filter(|_| rank == 0),
                stop: stop.clone(),
            };
            let name = format!("tw-train-{rank}");
            let thread = std::thread::Builder::new().name(name);
            let thread = thread.spawn(move || part.work(&inbox, &outbox));
            let thread = thread.map_err(|source| {
                let op = "start a thread";
                let remedy = None;
                ClientError::Environment(SystemError { op, source, remedy }.into())
            })?;
            workers.push(Worker {
                orders,
                results,
                thread,
            });
        }
        let mut job = Self {
            workers,
            state: State::Empty,
            stop,
            cluster,
        };
        job.collect("create")?;
        Ok(job)
    }

    /// Loads a saved model, which a training then continues.
    ///
    /// # Errors
    /// [`JobError::State`] for a job that has a model; the errors of a load.
    pub fn load(&mut self, dir: &str) -> Result<(), JobError> {
        self.check("load", &[State::Empty])?;
        self.order("load", &Order::Load(dir.to_owned()))?;
        self.collect("load")?;
        self.state = State::HasModel;
        Ok(())
    }

    /// Begins to train, and returns. The job's model, loaded or trained before, is continued; `config.load` is
    /// not used, and `config.sync` is that of the job.
    ///
    /// # Errors
    /// [`JobError::State`] while a training runs.
    pub fn start(&mut self, config: &Config) -> Result<(), JobError> {
        self.check("start", &[State::Empty, State::HasModel])?;
        self.stop.store(false, Ordering::Relaxed);
        let continues = self.state == State::HasModel;
        self.order("start", &Order::Train(Box::new(config.clone()), continues))?;
        self.state = State::Trains;
        Ok(())
    }

    /// Asks a training to end at a common step of the workers; [`TrainingJob::wait`] returns then.
    ///
    /// # Errors
    /// [`JobError::State`] if no training runs.
    pub fn stop(&mut self) -> Result<(), JobError> {
        self.check_trains("stop")?;
        self.stop.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Waits for the end of a training. [`Outcome::Stopped`] with signal 15 follows a [`TrainingJob::stop`].
    ///
    /// # Errors
    /// [`JobError::State`] if no training was started; the error of the first worker that failed.
    pub fn wait(&mut self) -> Result<Outcome, JobError> {
        self.check_trains("wait")?;
        let mut done = self.collect("wait")?.into_iter();
        self.state = State::HasModel;
        match done.next() {
            Some(Done::Trained(outcome)) => Ok(*outcome),
            _ => Err(JobError::Panic {
                call: "wait",
                rank: 0,
            }),
        }
    }

    /// Evaluates the model; `config.load` is not used.
    ///
    /// # Errors
    /// [`JobError::State`] without a model; as [`evaluate()`].
    pub fn evaluate(&mut self, config: &EvaluateConfig) -> Result<EvaluationReport, JobError> {
        self.check("evaluate", &[State::HasModel])?;
        let config = EvaluateConfig {
            load: None,
            ..config.clone()
        };
        self.order("evaluate", &Order::Evaluate(Box::new(config)))?;
        match self.collect("evaluate")?.into_iter().next() {
            Some(Done::Evaluated(Some(report))) => Ok(*report),
            _ => Err(JobError::Panic {
                call: "evaluate",
                rank: 0,
            }),
        }
    }

    /// Predicts by the model, one line a record; `config.load` is not used. Returns the result of each worker.
    ///
    /// # Errors
    /// [`JobError::State`] without a model; as [`predict()`].
    pub fn predict(&mut self, config: &PredictConfig) -> Result<Vec<Predicted>, JobError> {
        self.check("predict", &[State::HasModel])?;
        let config = PredictConfig {
            load: None,
            ..config.clone()
        };
        self.order("predict", &Order::Predict(Box::new(config)))?;
        let done = self.collect("predict")?.into_iter();
        let predicted = done.filter_map(|done| match done {
            Done::Predicted(predicted) => Some(predicted),
            _ => None,
        });
        Ok(predicted.collect())
    }

    /// Saves the model.
    ///
    /// # Errors
    /// [`JobError::State`] without a model; the errors of a save.
    pub fn save(&mut self, dir: &str) -> Result<(), JobError> {
        self.check("save", &[State::HasModel])?;
        self.order("save", &Order::Save(dir.to_owned()))?;
        self.collect("save").map(drop)
    }

    /// Ends workers and servers.
    ///
    /// # Errors
    /// [`JobError::State`] while a training runs; the failure of a worker or server.
    pub fn close(mut self) -> Result<(), JobError> {
        self.check("close", &[State::Empty, State::HasModel])?;
        self.order("close", &Order::Finish)?;
        self.collect("close")?;
        for (worker, rank) in self.workers.drain(..).zip(0..) {
            let call = "close";
            let ended = worker.thread.join();
            ended.map_err(|_| JobError::Panic { call, rank })?;
        }
        // All clones of it were the threads'.
        let cluster = Arc::clone(&self.cluster);
        drop(self);
        Arc::try_unwrap(cluster).map_or(Ok(()), |cluster| Ok(cluster.leave()?))
    }

    fn check(&self, call: &'static str, fits: &[State]) -> Result<(), JobError> {
        if fits.contains(&self.state) {
            return Ok(());
        }
        let (state, remedy) = self.state.says();
        Err(JobError::State {
            call,
            state,
            remedy,
        })
    }

    fn check_trains(&self, call: &'static str) -> Result<(), JobError> {
        match self.state {
            State::Trains => Ok(()),
            State::Failed => self.check(call, &[]),
            _ => Err(JobError::State {
                call,
                state: "does not train",
                remedy: "call start before",
            }),
        }
    }

    fn order(&mut self, call: &'static str, order: &Order) -> Result<(), JobError> {
        for (worker, rank) in self.workers.iter().zip(0..) {
            if worker.orders.send(order.clone()).is_err() {
                self.state = State::Failed;
                return Err(JobError::Panic { call, rank });
            }
        }
        Ok(())
    }

    /// Waits for the results of all workers. The error is that of the worker that failed, not of those that
    /// lost it.
    fn collect(&mut self, call: &'static str) -> Result<Vec<Done>, JobError> {
        let mut done = Vec::new();
        let mut failure: Option<JobError> = None;
        for (worker, rank) in self.workers.iter().zip(0..) {
            let error = match worker.results.recv() {
                Ok(Ok(result)) => {
                    done.push(result);
                    continue;
                }
                Ok(Err(error)) => {
                    let source = Box::new(error);
                    JobError::Worker { call, rank, source }
                }
                Err(_) => JobError::Panic { call, rank },
            };
            let follows = |error: &JobError| match error {
                JobError::Worker { source, .. } => {
                    matches!(**source, TrainError::Client(ClientError::Refused(_)))
                }
                _ => false,
            };
            if failure.as_ref().is_none_or(follows) {
                failure = Some(error);
            }
        }
        match failure {
            None => Ok(done),
            Some(failure) => {
                self.state = State::Failed;
                Err(failure)
            }
        }
    }
}

impl Drop for TrainingJob {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            drop(worker.orders);
            if worker.thread.join().is_err() {
                tracing::error!("the thread of a worker has panicked");
            }
        }
    }
}

/// A worker's share of the job.
struct Part {
    cluster: Arc<Job>,
    rank: u32,
    sync: SyncMode,
    log: Option<PathBuf>,
    stop: Arc<AtomicBool>,
}

impl Part {
    /// Joins the job, and carries out orders until the last one, or a failure.
    fn work(self, orders: &Receiver<Order>, results: &Sender<Result<Done, TrainError>>) {
        let log = self.log.as_deref().map(EventLog::open).transpose();
        let joined = self.cluster.client_of(self.rank, self.sync);
        let (mut client, log) = match (joined, log) {
            (Ok(client), Ok(log)) => (client, log),
            (Ok(mut client), Err(error)) => {
                fail(&mut client, &error);
                return report(results, Err(error));
            }
            (Err(error), _) => return report(results, Err(error.into())),
        };
        report(results, Ok(Done::Nothing));
        let mut events = Events {
            stop: self.stop,
            log,
            failure: None,
        };
        while let Ok(order) = orders.recv() {
            let is_last = matches!(order, Order::Finish);
            let done = carry_out(&mut client, order, self.sync, &mut events);
            let has_failed = done.is_err();
            if let Err(error) = &done {
                fail(&mut client, error);
            }
            report(results, done);
            if is_last || has_failed {
                return;
            }
        }
    }
}

/// Passes a result on.
fn report(results: &Sender<Result<Done, TrainError>>, result: Result<Done, TrainError>) {
    if results.send(result).is_err() {
        tracing::debug!("the job was dropped before its worker was done");
    }
}

/// Reports a failure to the job, so that the other workers end too.
fn fail(client: &mut Client, error: &TrainError) {
    if let Err(unreported) = client.fail(&error.to_string()) {
        tracing::debug!("the coordinator did not receive the failure: {unreported}");
    }
}

fn carry_out(
    client: &mut Client,
    order: Order,
    sync: SyncMode,
    events: &mut Events,
) -> Result<Done, TrainError> {
    let is_first = client.rank().0 == 0;
    match order {
        Order::Load(dir) => {
            if is_first {
                client.load(&dir, CLOCK_DEADLINE)?;
            }
            meet(client)?;
            Ok(Done::Nothing)
        }
        Order::Train(mut config, continues) => {
            config.sync = sync;
            config.load = None;
            let model = continues.then_some(MODEL);
            let outcome = run_from(client, &config, events, model, false)?;
            events.failure.take().map_or(Ok(()), Err)?;
            Ok(Done::Trained(Box::new(outcome)))
        }
        Order::Evaluate(config) => {
            let report = evaluate(client, &config)?;
            if let (Some(log), Some(report)) = (&mut events.log, &report) {
                log.evaluation(report)?;
            }
            Ok(Done::Evaluated(report.map(Box::new)))
        }
        Order::Predict(config) => {
            let log = &mut events.log;
            let predicted = predict(client, &config, &mut |part| {
                log.as_mut().map_or(Ok(()), |log| log.part(part))
            })?;
            Ok(Done::Predicted(predicted))
        }
        Order::Save(dir) => {
            client.flush()?;
            meet(client)?;
            if is_first {
                client.save(&dir, CLOCK_DEADLINE)?;
            }
            meet(client)?;
            Ok(Done::Nothing)
        }
        Order::Finish => {
            client.finish()?;
            Ok(Done::Nothing)
        }
    }
}

/// Callbacks of a training: the request to stop, and the log.
struct Events {
    stop: Arc<AtomicBool>,
    log: Option<EventLog>,
    /// The first line that could not be written.
    failure: Option<TrainError>,
}

impl Events {
    fn write(&mut self, line: impl FnOnce(&mut EventLog) -> Result<(), TrainError>) {
        if let Some(log) = &mut self.log
            && let Err(failure) = line(log)
        {
            self.failure.get_or_insert(failure);
        }
    }
}

impl Host for Events {
    fn signal(&mut self) -> Option<i32> {
        self.stop.load(Ordering::Relaxed).then_some(STOPPED)
    }

    fn resumed(&mut self, _resumed: &Resumed) {}

    fn epoch_done(&mut self, epoch: &EpochReport) {
        self.write(|log| log.epoch(epoch));
    }

    fn evaluated(&mut self, evaluation: &EvaluationReport) {
        self.write(|log| log.evaluation(evaluation));
    }
}

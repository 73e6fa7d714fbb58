//! Worker processes: the load of many concurrent clients.
//!
//! A worker joins, creates its table, and then works in slices. Each command starts a slice; each
//! answer holds the slice's measurements. Between slices the worker sleeps.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidewater::{Client, FabricSettings, JoinOptions, PullOptions, SyncMode};
use tidewater_protocol::wire::handshake::JobToken;

use super::Cluster;
use super::child::{CommandReader, Process, answer};
use crate::bsp::{Barrier, BspStep, Ticks};
use crate::error::{BenchError, Cause};
use crate::measure::{self, NoPeer, Plan, Samples, Usage, Work, of_this_thread, timer_cost};
use crate::options::Transport;
use crate::workload::{Kind, Workload, WorkloadSpec, poison};

/// Name of the hidden subcommand.
pub const ROLE: &str = "__worker";

/// Start parameters of a worker. Secret: they hold the run's token, and pass through a pipe only.
#[derive(Debug, Serialize, Deserialize)]
pub struct Start {
    /// `HOST:PORT` of the coordinator.
    pub coordinator: String,
    /// Token of the run, 64 hexadecimal digits.
    pub token: String,
    /// Rank of this worker.
    pub rank: u32,
    /// Transport of the lanes.
    pub transport: Transport,
    /// Name of the RDMA device for the lanes to the servers.
    pub rdma_device: Option<String>,
    /// Settings of its queue pairs; an unset one is that of the environment.
    pub fabric: FabricSettings,
    /// Sync mode (BSP, SSP or ASP), as the text of a [`SyncMode`].
    pub sync: String,
}

/// Load of a worker in its slices.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Task {
    /// Pulls random rows of its part of a sparse table, pushes to them, and waits until the push is
    /// applied.
    Rows {
        /// Elements of a row.
        dim: usize,
        /// Rows in the worker's part.
        rows: u64,
        /// Rows of a call.
        call_rows: usize,
        /// Number of workers in the run.
        workers: u32,
        /// Seed of keys and values.
        seed: u64,
    },
    /// Ticks, and waits until all other workers have ticked.
    Ticks,
    /// Enters a barrier of the coordinator.
    Barrier,
    /// Pulls a complete dense table, pushes a gradient to all of it, ticks, and waits until all workers have
    /// ticked.
    Dense {
        /// Size of the table, bytes.
        bytes: u64,
        /// Number of workers in the run.
        workers: u32,
    },
}

/// Limits of one slice. Workers that wait for each other get a sample count, others a time.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Slice {
    /// Maximum number of samples.
    pub iters: u64,
    /// Longest time of a slice, milliseconds; at least one sample is made.
    pub millis: u64,
}

/// Measurements of a worker in one slice.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Buckets of the histogram: time per call in tenths of a nanosecond, and number of samples.
    pub buckets: Vec<(u64, u64)>,
    /// Number of measured calls.
    pub calls: u64,
    /// Payload bytes of a call.
    pub bytes: u64,
    /// Sum of the sample times, nanoseconds.
    pub time_ns: u64,
    /// Time from the first sample to the last, checks included, nanoseconds.
    pub wall_ns: u64,
    /// Number of wrong values.
    pub wrong: u64,
    /// Usage of the worker's thread in the slice, checks and audits included.
    pub used: Usage,
}

/// Worker processes of a cluster.
#[derive(Debug)]
pub struct WorkerProcesses(Vec<Process>);

impl WorkerProcesses {
    /// Starts a process for each worker of `cluster` from rank `first` on; returns when all have joined and
    /// are ready for their first slice.
    ///
    /// # Errors
    /// If a process cannot be started or does not join.
    pub fn start(
        cluster: &Cluster,
        first: u32,
        task: Task,
        sync: SyncMode,
    ) -> Result<Self, BenchError> {
        let mut processes = Vec::new();
        for rank in first..cluster.config().workers {
            let mut process = Process::start(ROLE, format!("worker {rank}"), None)?;
            process.send(&cluster.invitation(rank, sync))?;
            process.send(&task)?;
            processes.push(process);
        }
        for process in &mut processes {
            let () = process.receive()?;
        }
        Ok(Self(processes))
    }

    /// Number of worker processes.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no workers.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Runs a slice on the first `count` workers concurrently, at most [`Self::len`]; returns their reports by
    /// rank.
    ///
    /// # Errors
    /// If a worker fails.
    pub fn work(&mut self, count: usize, slice: Slice) -> Result<Vec<Report>, BenchError> {
        let some = &mut self.0[..count];
        for process in &mut *some {
            process.send(&slice)?;
        }
        some.iter_mut().map(Process::receive).collect()
    }
}

/// Combined measurements of several concurrent workers.
#[derive(Debug)]
pub struct GroupReport {
    /// Samples of all workers.
    pub samples: Samples,
    /// Calls a second: the sum of the workers' rates, each over its own time.
    pub calls_per_s: f64,
    /// Payload bytes of a call.
    pub bytes: u64,
    /// Number of wrong values.
    pub wrong: u64,
    /// Sum of the usage of the workers' threads.
    pub used: Usage,
    /// Calls a second of the slowest worker divided by those of the fastest; 1 if no worker made a call.
    pub fairness: f64,
}

impl GroupReport {
    /// Combines the reports of several workers.
    pub fn of(reports: &[Report]) -> Self {
        let mut all = Self {
            samples: Samples::new(Duration::ZERO),
            calls_per_s: 0.0,
            bytes: reports.first().map_or(0, |r| r.bytes),
            wrong: 0,
            used: Usage::default(),
            fairness: 1.0,
        };
        let (mut least, mut most) = (f64::MAX, 0.0_f64);
        for report in reports {
            let time = Duration::from_nanos(report.time_ns);
            all.samples.add(&report.buckets, report.calls, time);
            let rate = report.calls as f64 / Duration::from_nanos(report.wall_ns).as_secs_f64();
            (least, most) = (least.min(rate), most.max(rate));
            all.calls_per_s += rate;
            all.wrong += report.wrong;
            all.used = all.used.plus(report.used);
        }
        if most > 0.0 {
            all.fairness = least / most;
        }
        all
    }
}

/// Runs a worker until its input ends.
///
/// # Errors
/// If it cannot join, or the parent sends something that is no command.
pub fn run() -> Result<(), BenchError> {
    let mut commands = CommandReader::new();
    let Some(start) = commands.take::<Start>()? else {
        return Ok(());
    };
    let Some(task) = commands.take::<Task>()? else {
        return Ok(());
    };
    let mut client = join(&start)?;
    match task {
        Task::Rows {
            dim,
            rows,
            call_rows,
            workers,
            seed,
        } => {
            let mut spec = WorkloadSpec::scattered(Kind::Sparse, dim, rows, call_rows, seed);
            spec.first = u64::from(start.rank) * rows;
            spec.all_rows = u64::from(workers) * rows;
            let mut workload = Workload::new(&mut client, spec, false)?;
            workload.cache_locations()?;
            let mut work = RowStep {
                out: workload.destination(),
                workload,
                batch: 0,
                pushed: false,
            };
            run_slices(&mut commands, &mut work)?;
        }
        Task::Ticks => run_slices(&mut commands, &mut Ticks::new([&mut client])?)?,
        Task::Barrier => run_slices(&mut commands, &mut Barrier::new(&mut client))?,
        Task::Dense { bytes, workers } => {
            run_slices(
                &mut commands,
                &mut BspStep::new(&mut client, bytes, workers)?,
            )?;
        }
    }
    Ok(client.finish()?)
}

fn join(start: &Start) -> Result<Client, BenchError> {
    let failed = |cause: Cause| BenchError::process(format!("worker {}", start.rank), cause);
    let token = JobToken::from_hex(&start.token).ok_or_else(|| failed("no token".into()))?;
    let sync: SyncMode = start.sync.parse().map_err(|e: String| failed(e.into()))?;
    let device = super::device(start.rdma_device.as_deref()).map_err(|e| failed(e.into()))?;
    let job = JoinOptions {
        coordinator: Some(start.coordinator.clone()),
        token: Some(token),
        rank: Some(start.rank),
        transport: Some(start.transport.choice()),
        rdma_device: device,
        fabric: start.fabric,
        ..JoinOptions::default()
    };
    super::client(job, sync)
}

fn run_slices(commands: &mut CommandReader, work: &mut dyn Work) -> Result<(), BenchError> {
    answer(&())?;
    let timer = timer_cost();
    while let Some(slice) = commands.take::<Slice>()? {
        let mut plan = Plan::lasting(Duration::from_millis(slice.millis), timer);
        plan.iters = slice.iters;
        let before = of_this_thread();
        let measured = measure::run(&plan, work, &mut NoPeer)?;
        answer(&Report {
            buckets: measured.samples.buckets(),
            calls: measured.samples.calls(),
            bytes: measured.bytes,
            time_ns: measured.samples.time().as_nanos() as u64,
            wall_ns: measured.wall.as_nanos() as u64,
            wrong: measured.wrong,
            used: of_this_thread().since(before),
        })?;
    }
    Ok(())
}

/// Training steps on random rows: pull, push, wait until the push is applied.
#[derive(Debug)]
struct RowStep<'c> {
    workload: Workload<'c>,
    out: Vec<f32>,
    batch: usize,
    /// Whether this step's push is still missing in the workload's counts.
    pushed: bool,
}

impl RowStep<'_> {
    fn settle(&mut self) {
        if std::mem::take(&mut self.pushed) {
            self.workload.count_push(self.batch, 1);
            self.batch = (self.batch + 1) % self.workload.batches();
        }
    }
}

impl Work for RowStep<'_> {
    fn bytes(&self) -> u64 {
        2 * self.workload.spec().bytes()
    }

    fn prepare(&mut self) {
        self.settle();
        poison(&mut self.out, self.batch);
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let options = PullOptions::default();
        self.workload.pull(self.batch, &mut self.out, options)?;
        let ticket = self.workload.push(self.batch)?;
        self.pushed = true;
        self.workload.wait(&ticket)
    }

    /// Number of wrong values that the step pulled; its own push came after the pull.
    fn check(&mut self) -> u64 {
        self.workload.wrong(self.batch, &self.out)
    }

    fn audit(&mut self) -> Result<u64, BenchError> {
        self.settle();
        self.workload.audit()
    }
}

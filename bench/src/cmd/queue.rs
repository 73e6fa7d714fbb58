//! `queue`: tasks that many clients take from the coordinator and report.
//!
//! The tasks have no pushes, so that no server is part of a request. Clients are threads of this process, and the
//! coordinator is another one, of which the kernel counts the processor time.

use std::sync::Barrier;
use std::time::Duration;

use clap::Args;
use tidewater::{Client, SyncMode};
use tidewater_protocol::limits::QUEUE_TASKS_MAX;
use tidewater_runtime::clock;
use tidewater_runtime::sync::{AtomicU32, Ordering};
use tidewater_tasks::{QueueOptions, TaskError, TaskKind, Tasks};

use crate::cluster::{Cluster, ClusterConfig};
use crate::error::BenchError;
use crate::fingerprint::Fingerprint;
use crate::measure::{Detours, Measured, Pace, Samples, Usage, of_this_thread, timer_cost};
use crate::options::Common;
use crate::row::{Label, Row};
use crate::sheet::{Failures, Sheet};

/// Options of the subcommand `queue`.
#[derive(Debug, Clone, Args)]
pub struct QueueArgs {
    /// Clients, each a worker with a thread of its own
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: u32,
    /// Tasks of the queue
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=QUEUE_TASKS_MAX as i64))]
    pub tasks: u32,
    /// Options that every measurement takes.
    #[command(flatten)]
    pub common: Common,
}

/// Runs `queue`. A task that was not delivered exactly once, or did not count, is a wrong value.
///
/// # Errors
/// The error of the first client that fails.
pub fn run(args: &QueueArgs) -> Result<Failures, BenchError> {
    let common = &args.common;
    let (clients, tasks, timer) = (args.clients, args.tasks, timer_cost());
    let mut sheet = Sheet::new(
        common,
        Fingerprint::take("queue", common, 1, clients, timer),
    )?;
    let title = format!(
        "{clients} clients take and report {tasks} tasks without pushes; cpu-s: the coordinator's, of any request"
    );
    sheet.section(&title, "clients")?;
    let cluster = Cluster::start(ClusterConfig::of(common, 1, clients))?;
    let load = Load::run(&cluster, args, timer)?;
    for (op, samples) in [("take", &load.takes), ("report", &load.reports)] {
        sheet.row(load.row(clients, op, samples))?;
    }
    let seconds = load.wall.as_secs_f64();
    sheet.remark(&format!(
        "{:.0} tasks/s, {:.0} requests/s; the coordinator takes {:.2} us of processor time a request, {:.0} % of a core",
        f64::from(tasks) / seconds,
        load.requests as f64 / seconds,
        load.coordinator_us(),
        load.coordinator_us() * load.requests as f64 / seconds / 1e4,
    ))?;
    sheet.finish()
}

/// What one client has measured.
struct Shift {
    takes: Samples,
    reports: Samples,
    /// Requests to the coordinator, also those that got no task.
    requests: u64,
    used: Usage,
}

/// What all clients and the coordinator have measured.
struct Load {
    takes: Samples,
    reports: Samples,
    requests: u64,
    clients: Usage,
    coordinator: Usage,
    wall: Duration,
    /// Tasks that were not delivered exactly once, or did not count.
    wrong: u64,
}

impl Load {
    fn run(cluster: &Cluster, args: &QueueArgs, timer: Duration) -> Result<Self, BenchError> {
        let mut workers = Vec::new();
        for rank in 0..args.clients {
            let mut client = cluster.client(rank, SyncMode::Asp)?;
            let options = QueueOptions::new("numbers", 1).kind(TaskKind::Evaluate);
            let tasks = Tasks::count(&mut client, args.tasks.into(), &options).map_err(failed)?;
            workers.push((client, tasks));
        }
        let counted: Vec<AtomicU32> = (0..args.tasks).map(|_| AtomicU32::new(0)).collect();
        let start = Barrier::new(workers.len() + 1);
        let before = cluster.coordinator()?;
        let (shifts, coordinator, wall) = std::thread::scope(|scope| {
            let (counted, start) = (&counted, &start);
            let threads: Vec<_> = workers
                .into_iter()
                .map(|(client, tasks)| {
                    scope.spawn(move || {
                        start.wait();
                        work(client, tasks, counted, timer)
                    })
                })
                .collect();
            start.wait();
            let from = clock::now();
            let shifts: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            let wall = from.elapsed();
            Ok::<_, BenchError>((shifts, cluster.coordinator()?.since(before), wall))
        })?;
        let mut load = Self {
            takes: Samples::new(timer),
            reports: Samples::new(timer),
            requests: 0,
            clients: Usage::default(),
            coordinator,
            wall,
            wrong: 0,
        };
        for shift in shifts {
            let shift = shift.map_err(|_| BenchError::process("a client", "it panicked"))??;
            load.takes.merge(&shift.takes);
            load.reports.merge(&shift.reports);
            load.requests += shift.requests;
            load.clients = load.clients.plus(shift.used);
        }
        let times = counted.iter().map(|times| times.load(Ordering::Relaxed));
        load.wrong = times.filter(|&times| times != 1).count() as u64;
        Ok(load)
    }

    /// Processor time of the coordinator for a request, microseconds.
    fn coordinator_us(&self) -> f64 {
        self.coordinator.cpu_ns as f64 / 1e3 / self.requests.max(1) as f64
    }

    /// The row of one kind of request, `take` or `report`, with the times `samples`. Its usage is the mean of
    /// both kinds, because they alternate and are not counted apart. Wrong tasks are in the row of `report`.
    fn row(&self, clients: u32, op: &str, samples: &Samples) -> Row {
        let of_calls = |usage: Usage| {
            let part = samples.calls() as f64 / self.requests.max(1) as f64;
            Usage {
                cpu_ns: (usage.cpu_ns as f64 * part) as u64,
                allocations: (usage.allocations as f64 * part) as u64,
                resident: 0,
            }
        };
        let mut copy = Samples::new(Duration::ZERO);
        copy.merge(samples);
        let measured = Measured {
            checked: samples.calls(),
            samples: copy,
            bytes: 0,
            wrong: if op == "report" { self.wrong } else { 0 },
            client: of_calls(self.clients),
            server: of_calls(self.coordinator),
            wall: self.wall,
            detours: Detours::default(),
        };
        let label = Label {
            test: "queue",
            op: op.into(),
            table: "tasks".into(),
            mode: None,
            size: clients.into(),
        };
        let mut row = Row::new(label, &measured, 1, Pace::Closed);
        row.figures = samples.figures_over(0, self.wall);
        row
    }
}

/// Takes and reports tasks until there are none. Counts a task in `counted`, at its number, if its report
/// counts.
fn work(
    mut client: Client,
    mut tasks: Tasks,
    counted: &[AtomicU32],
    timer: Duration,
) -> Result<Shift, BenchError> {
    let before = of_this_thread();
    let (mut takes, mut reports) = (Samples::new(timer), Samples::new(timer));
    let mut requests = 0;
    loop {
        let from = clock::now();
        let task = tasks.next(&mut client).map_err(failed)?;
        let to = clock::now();
        requests += 1;
        let Some(task) = task else {
            break;
        };
        takes.record(from, to, 1);
        let number = usize::try_from(task.shard().first).unwrap_or(usize::MAX);
        let from = clock::now();
        let is_counted = tasks.done(&mut client, task, 1).map_err(failed)?;
        reports.record(from, clock::now(), 1);
        requests += 1;
        if let Some(times) = counted.get(number).filter(|_| is_counted) {
            times.fetch_add(1, Ordering::Relaxed);
        }
    }
    let used = of_this_thread().since(before);
    client.finish()?;
    Ok(Shift {
        takes,
        reports,
        requests,
        used,
    })
}

fn failed(error: TaskError) -> BenchError {
    match error {
        TaskError::Client(error) => error.into(),
        error => BenchError::process("the queue of tasks", error),
    }
}

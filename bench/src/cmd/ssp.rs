//! `ssp`: from a tick until every worker sees it, and barriers.

use std::time::Duration;

use clap::Args;
use tidewater::{Client, SyncMode};

use super::pin_client;
use super::scale::group_row;
use crate::bsp::Ticks;
use crate::calls::Op;
use crate::cluster::worker::{GroupReport, Slice, Task, WorkerProcesses};
use crate::cluster::{Cluster, ClusterConfig};
use crate::error::BenchError;
use crate::fingerprint::Fingerprint;
use crate::measure::{self, Meter, Pace, timer_cost};
use crate::options::Common;
use crate::row::{Label, Row};
use crate::sheet::{Failures, Sheet};

/// Ticks or barriers in one slice of workers that wait for each other.
const SLICE_TICKS: u64 = 200;
/// Time limit of such a slice, which only a worker that has lost the others reaches.
const SLICE_TIMEOUT: Duration = Duration::from_secs(120);

/// Options of the subcommand `ssp`.
#[derive(Debug, Clone, Args)]
pub struct SspArgs {
    /// Number of workers: a list
    #[arg(long, default_value = "1,2,4,8", value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    pub workers: Vec<u32>,
    /// Number of server processes
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub servers: u32,
    /// Options that every measurement takes.
    #[command(flatten)]
    pub common: Common,
}

/// Sections: where the workers run, and their load.
#[derive(Debug, Clone, Copy)]
enum WorkerPlace {
    /// Clients of one thread: the tick of the last client until this client sees that all have ticked.
    Thread,
    /// Processes that tick and wait for each other, as in BSP.
    Processes(Task),
}

/// Runs `ssp`.
///
/// # Errors
/// The error of the first call that fails.
pub fn run(args: &SspArgs) -> Result<Failures, BenchError> {
    let common = &args.common;
    pin_client(common)?;
    let timer = timer_cost();
    let most = args.workers.iter().copied().max().unwrap_or(1);
    let mut sheet = Sheet::new(
        common,
        Fingerprint::take("ssp", common, args.servers, most, timer),
    )?;
    for (place, title) in [
        (
            WorkerPlace::Thread,
            "tick, workers of one thread: the last one's tick until it sees it",
        ),
        (
            WorkerPlace::Processes(Task::Ticks),
            "tick, worker processes under BSP: until all have",
        ),
        (
            WorkerPlace::Processes(Task::Barrier),
            "barrier of the coordinator, worker processes",
        ),
    ] {
        sheet.section(title, "workers")?;
        for &workers in &args.workers {
            let row = match place {
                WorkerPlace::Thread => of_a_thread(args, workers, timer)?,
                WorkerPlace::Processes(task) => of_processes(args, workers, task)?,
            };
            sheet.row(row)?;
        }
    }
    sheet.finish()
}

fn cluster(args: &SspArgs, workers: u32) -> Result<Cluster, BenchError> {
    Cluster::start(ClusterConfig::of(&args.common, args.servers, workers))
}

fn of_a_thread(args: &SspArgs, workers: u32, timer: Duration) -> Result<Row, BenchError> {
    let mut cluster = cluster(args, workers)?;
    let clients = (0..workers).map(|rank| cluster.client(rank, SyncMode::Bsp));
    let mut clients: Vec<Client> = clients.collect::<Result<_, _>>()?;
    let mut work = Ticks::new(&mut clients)?;
    let plan = super::plan(&args.common, Op::Pull, 1, Pace::Closed, timer);
    let measured = measure::run(&plan, &mut work, &mut cluster)?;
    for client in &mut clients {
        client.finish()?;
    }
    Ok(Row::new(
        label("tick", "thread", workers),
        &measured,
        1,
        Pace::Closed,
    ))
}

fn of_processes(args: &SspArgs, workers: u32, task: Task) -> Result<Row, BenchError> {
    let mut cluster = cluster(args, workers)?;
    let mut processes = WorkerProcesses::start(&cluster, 0, task, SyncMode::Bsp)?;
    let slice = Slice {
        iters: args.common.iters.unwrap_or(SLICE_TICKS),
        millis: SLICE_TIMEOUT.as_millis() as u64,
    };
    let before = cluster.peer()?;
    let all = GroupReport::of(&processes.work(workers as usize, slice)?);
    let server = cluster.peer()?.since(before);
    let op = if matches!(task, Task::Barrier) {
        "barrier"
    } else {
        "tick"
    };
    Ok(group_row(label(op, "processes", workers), all, server))
}

fn label(op: &str, table: &str, workers: u32) -> Label {
    Label {
        test: "ssp",
        op: op.into(),
        table: table.into(),
        mode: None,
        size: u64::from(workers),
    }
}

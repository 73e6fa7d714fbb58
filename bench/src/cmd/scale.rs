//! `scale`: the combined rate of many workers on several servers.

use std::time::Duration;

use clap::Args;
use tidewater::SyncMode;

use crate::cluster::worker::{GroupReport, Slice, Task, WorkerProcesses};
use crate::cluster::{Cluster, ClusterConfig};
use crate::error::BenchError;
use crate::fingerprint::Fingerprint;
use crate::measure::{Detours, Measured, Meter, Pace, Usage, timer_cost};
use crate::options::Common;
use crate::row::{Label, Row};
use crate::sheet::{Failures, Sheet};

/// Rows in each worker's part of the table.
pub(crate) const PART_ROWS: u64 = 4096;

/// Options of the subcommand `scale`.
#[derive(Debug, Clone, Args)]
pub struct ScaleArgs {
    /// Worker processes: a list
    #[arg(long, default_value = "1,2,4,8,16,32,64", value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    pub workers: Vec<u32>,
    /// Server processes: a list
    #[arg(long, default_value = "1,2,4,8", value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    pub servers: Vec<u32>,
    /// Elements (f32) of a row
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub dim: u32,
    /// Rows that a step pulls, and pushes to
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch: u32,
    /// Rows in each worker's part of the table
    #[arg(long, default_value_t = PART_ROWS, value_name = "N", value_parser = clap::value_parser!(u64).range(256..=65536))]
    pub part: u64,
    /// Options that every measurement takes.
    #[command(flatten)]
    pub common: Common,
}

/// Runs `scale`.
///
/// # Errors
/// The error of the first worker that fails.
pub fn run(args: &ScaleArgs) -> Result<Failures, BenchError> {
    let common = &args.common;
    let most = args.workers.iter().copied().max().unwrap_or(1);
    let servers = args.servers.iter().copied().max().unwrap_or(1);
    let fingerprint = Fingerprint::take("scale", common, servers, most, timer_cost());
    let mut sheet = Sheet::new(common, fingerprint)?;
    for &servers in &args.servers {
        let title = format!(
            "step of workers: pull {} random rows of {} f32, push to them, until applied; {servers} \
             servers",
            args.batch, args.dim
        );
        sheet.section(&title, "workers")?;
        let mut cluster = Cluster::start(ClusterConfig::of(common, servers, most))?;
        let task = Task::Rows {
            dim: args.dim as usize,
            rows: args.part,
            call_rows: args.batch as usize,
            workers: most,
            seed: common.seed,
        };
        let mut processes = WorkerProcesses::start(&cluster, 0, task, SyncMode::Asp)?;
        let mut best = 0.0_f64;
        for &workers in &args.workers {
            let step = measure(args, servers, workers, &mut cluster, &mut processes)?;
            best = best.max(step.per_s);
            sheet.row(step.row)?;
            let rows = step.per_s * f64::from(args.batch) / 1e6;
            sheet.remark(&format!(
                "{rows:.3} M rows/s, {:.0} % of the best so far; slowest worker {:.0} % of the fastest",
                100.0 * step.per_s / best,
                100.0 * step.fairness
            ))?;
        }
    }
    sheet.finish()
}

/// Steps of all workers.
struct Steps {
    row: Row,
    /// Steps a second of all workers together.
    per_s: f64,
    /// Steps a second of the slowest worker divided by those of the fastest.
    fairness: f64,
}

/// Measures one slice of the first `workers` processes.
fn measure(
    args: &ScaleArgs,
    servers: u32,
    workers: u32,
    cluster: &mut Cluster,
    processes: &mut WorkerProcesses,
) -> Result<Steps, BenchError> {
    let slice = Slice {
        iters: args.common.iters.unwrap_or(u64::MAX),
        millis: (args.common.duration.as_millis() as u64).max(1),
    };
    let before = cluster.peer()?;
    let all = GroupReport::of(&processes.work(workers as usize, slice)?);
    let server = cluster.peer()?.since(before);
    let label = Label {
        test: "scale",
        op: "step".into(),
        table: match servers {
            1 => "1 server".into(),
            n => format!("{n} servers"),
        },
        mode: None,
        size: u64::from(workers),
    };
    Ok(Steps {
        per_s: all.calls_per_s,
        fairness: all.fairness,
        row: group_row(label, all, server),
    })
}

/// Builds the row of several workers: rates are the sum of all workers; `server` is the usage of all servers.
pub(crate) fn group_row(label: Label, all: GroupReport, server: Usage) -> Row {
    let wall = Duration::from_secs_f64(all.samples.calls() as f64 / all.calls_per_s.max(1e-9));
    let measured = Measured {
        checked: all.samples.calls(),
        samples: all.samples,
        bytes: all.bytes,
        wrong: all.wrong,
        client: all.used,
        server,
        wall,
        detours: Detours::default(),
    };
    let mut row = Row::new(label, &measured, 1, Pace::Closed);
    row.figures = measured.samples.figures_over(measured.bytes, wall);
    row
}

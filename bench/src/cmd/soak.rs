//! `soak`: a long mixed load; checks values, memory and allocations.

use std::time::Duration;

use clap::Args;
use tidewater::{PullOptions, SyncMode};
use tidewater_runtime::clock::Deadline;

use super::{pin_client, plan};
use crate::args::{Common, Wire, parse_duration};
use crate::bed::{Bed, BedConfig};
use crate::calls::{Calls, Op, Style};
use crate::error::BenchError;
use crate::fingerprint::Fingerprint;
use crate::measure::{self, Meter, Pace, Usage, timer_cost};
use crate::row::{Label, Row};
use crate::sheet::{Failures, Sheet};
use crate::sizes::parse_bytes;
use crate::subject::{Kind, Plot, Subject};

/// Rows in the table, and elements of each.
const ROWS: u64 = 100_000;
const DIM: usize = 16;
/// Calls of a sample.
const CALLS: u64 = 1024;
/// Number of calls in flight.
const WINDOW: usize = 64;
/// Intervals after which memory should be constant: pools have grown to the size of the load.
const SETTLED: usize = 2;

/// Options of the subcommand `soak`.
#[derive(Debug, Clone, Args)]
pub struct SoakArgs {
    /// Duration of the load
    #[arg(long = "for", value_parser = parse_duration, default_value = "60s", value_name = "TIME")]
    pub lasts: Duration,
    /// Stop after this many calls at the latest
    #[arg(long, value_name = "N", value_parser = parse_bytes)]
    pub ops: Option<u64>,
    /// Time between two memory checks; half of it pulls, half pushes
    #[arg(long, value_parser = parse_duration, default_value = "2s", value_name = "TIME")]
    pub interval: Duration,
    /// Fail (exit 1) if client and servers together grow by more than this many bytes after the second
    /// interval
    #[arg(long, default_value = "4M", value_name = "BYTES", value_parser = parse_bytes)]
    pub max_growth: u64,
    /// Number of server processes
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub servers: u32,
    /// Options that every measurement takes.
    #[command(flatten)]
    pub common: Common,
}

/// Result of a soak.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Soaked {
    /// Number of calls made.
    pub(crate) calls: u64,
    /// Growth of client and servers after they had settled, bytes.
    pub(crate) growth: u64,
}

/// Runs `soak`.
///
/// # Errors
/// The error of the first call that fails.
pub fn run(args: &SoakArgs) -> Result<Failures, BenchError> {
    let common = &args.common;
    let mut bed = Bed::start(BedConfig {
        transport: common.transport,
        rdma_device: common.rdma_device.clone(),
        servers: args.servers,
        appliers: common.appliers,
        workers: 1,
        pin: common.pin_servers,
    })?;
    pin_client(common)?;
    let fingerprint = Fingerprint::take("soak", common, (args.servers, 1), timer_cost());
    let mut sheet = Sheet::new(common, fingerprint)?;
    sheet.section(
        &format!("single rows of {DIM} f32 of {ROWS}, {WINDOW} calls under way"),
        "row bytes",
    )?;
    let soaked = soak(args, &mut bed, &mut |row, memory| {
        sheet.row(row)?;
        sheet.remark(&format!(
            "resident: client {:.1} MB, servers {:.1} MB",
            memory.0 as f64 / 1e6,
            memory.1 as f64 / 1e6
        ))
    })?;
    let told = format!(
        "{} calls; memory grew by {} bytes after interval {SETTLED}",
        soaked.calls, soaked.growth
    );
    sheet.remark(&told)?;
    let mut failures = sheet.finish()?;
    if soaked.growth > args.max_growth {
        failures.push(format!("{told}: above {}", args.max_growth));
    }
    Ok(failures)
}

/// Alternates pulls and pushes until the time or the calls are used up. Passes each row and the
/// resident memory of client and servers to `tell`.
///
/// # Errors
/// The error of the first call that fails, or of `tell`.
pub(crate) fn soak(
    args: &SoakArgs,
    bed: &mut Bed,
    tell: &mut dyn FnMut(Row, (u64, u64)) -> Result<(), BenchError>,
) -> Result<Soaked, BenchError> {
    let common = &args.common;
    let mut client = bed.client(0, SyncMode::Asp)?;
    let mut plot = Plot::scattered(Kind::Sparse, DIM, ROWS, 1, common.seed);
    plot.batches = 4096;
    let mut subject = Subject::new(&mut client, plot, common.plant_wrong)?;
    subject.learn_places()?;
    let end = Deadline::after(args.lasts);
    let most = args.ops.unwrap_or(u64::MAX);
    let timer = timer_cost();
    let (mut calls, mut resident) = (0, Vec::new());
    while calls < most && !end.passed() {
        for op in [Op::Pull, Op::Push] {
            let style = match (op, common.transport.wire()) {
                (Op::Pull, Some(Wire::Memory)) => Style::Alone,
                _ => Style::Window(WINDOW),
            };
            let mut work = Calls::new(&mut subject, op, PullOptions::default(), style, CALLS);
            let mut plan = plan(common, (op, CALLS), Pace::Closed, timer);
            plan.duration = args.interval / 2;
            plan.iters = plan
                .iters
                .min(most.saturating_sub(calls).div_ceil(CALLS).max(1));
            let measured = measure::run(&plan, &mut work, bed)?;
            drop(work);
            calls += measured.samples.calls();
            let label = Label {
                test: "soak",
                op: op.name().into(),
                table: "sparse".into(),
                mode: None,
                size: DIM as u64 * 4,
            };
            let memory = (Usage::of_this_process().resident, bed.peer()?.resident);
            tell(Row::new(label, &measured, CALLS, Pace::Closed), memory)?;
            resident.push(memory.0 + memory.1);
        }
    }
    subject.release()?;
    client.finish()?;
    let settled = resident.get(2 * SETTLED - 1).or(resident.last());
    let settled = settled.copied().unwrap_or(0);
    let last = resident.last().copied().unwrap_or(0);
    Ok(Soaked {
        calls,
        growth: last.saturating_sub(settled),
    })
}

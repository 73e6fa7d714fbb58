//! Contests of several worker processes.

use std::time::Duration;

use tidewater::SyncMode;

use super::comparison::{BaselineSide, Comparison, Round, Rounds, Side, Title};
use crate::cluster::worker::{GroupReport, Slice, Task, WorkerProcesses};
use crate::cluster::{Cluster, ClusterConfig};
use crate::cmd::scale::PART_ROWS;
use crate::error::BenchError;
use crate::roofline::{Passes, copy_speed};

/// Worker counts of which the best is the baseline, and the count that is compared with the best.
const COUNTS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const MANY_WORKERS: u32 = 32;
/// Time of each count in a round.
const MANY_WORKERS_TIME: Duration = Duration::from_millis(200);
/// Rows of a part so small that the parts of all workers fit a core's cache; keys and values of their calls
/// do not. A step draws 256 rows, 162 of them distinct: compare such rows a second only with each other.
const CACHED_ROWS: u64 = 256;
/// Number of processes that tick together, and their ticks in a round.
const TICKERS: u32 = 8;
const TICKS: u64 = 100;
/// The dense table of a BSP step, its workers, and their steps in a round.
const DENSE_BYTES: u64 = 64 << 20;
const DENSE_WORKERS: u32 = 4;
const DENSE_STEPS: u64 = 3;
/// Name and bytes of the piece that a bare step takes through all passes of a push. The largest frame of a 1
/// MiB ring, and a block that stays in a core's nearest cache.
const PIECES: [(&str, usize); 2] = [("frames", 256 << 10), ("blocks", 16 << 10)];
/// Time limit of a slice of workers that wait for each other, ms.
const SLICE_TIMEOUT_MS: u64 = 60_000;

/// Runs all contests.
///
/// # Errors
/// The error of the first worker that fails.
pub(super) fn contests(comparison: &mut Comparison<'_>, name: &str) -> Result<(), BenchError> {
    processes_tick(comparison, &format!("{name}.clock.processes"))?;
    scale(comparison, &format!("{name}.scale"), PART_ROWS)?;
    if name == "shm" {
        scale(comparison, "shm.scale.cached", CACHED_ROWS)?;
        dense_step(comparison)?;
    }
    Ok(())
}

fn cluster(
    comparison: &Comparison<'_>,
    workers: u32,
    appliers: u16,
) -> Result<Cluster, BenchError> {
    Cluster::start(ClusterConfig {
        appliers,
        workers,
        ..ClusterConfig::single(comparison.args.transport)
    })
}

fn processes_tick(comparison: &mut Comparison<'_>, id: &str) -> Result<(), BenchError> {
    if !comparison.wants(&[id]) {
        return Ok(());
    }
    let cluster = cluster(comparison, TICKERS, 1)?;
    let mut processes = WorkerProcesses::start(&cluster, 0, Task::Ticks, SyncMode::Bsp)?;
    let slice = Slice {
        iters: TICKS,
        millis: SLICE_TIMEOUT_MS,
    };
    let title = Title {
        id,
        what: "tick of 8 worker processes under BSP, until all have ticked",
        unit: "us p50",
    };
    let mut ours = || {
        let all = GroupReport::of(&processes.work(TICKERS as usize, slice)?);
        Ok(Round {
            value: all.samples.figures(0).p50_us,
            wrong: all.wrong,
        })
    };
    comparison.contest(title, &mut ours, None)
}

/// Contest of [`MANY_WORKERS`] workers against the best of [`COUNTS`] in the same round, by the rows a second
/// of all workers. Each worker has `part` rows of its own.
fn scale(comparison: &mut Comparison<'_>, id: &str, part: u64) -> Result<(), BenchError> {
    if !comparison.wants(&[id]) {
        return Ok(());
    }
    let cluster = cluster(comparison, MANY_WORKERS, 1)?;
    let task = Task::Rows {
        dim: 16,
        rows: part,
        call_rows: 256,
        workers: MANY_WORKERS,
        seed: comparison.args.seed,
    };
    let mut processes = WorkerProcesses::start(&cluster, 0, task, SyncMode::Asp)?;
    let slice = Slice {
        iters: u64::MAX,
        millis: MANY_WORKERS_TIME.as_millis() as u64,
    };
    let mut rounds = Rounds::default();
    for _ in 0..comparison.args.rounds {
        let (mut most, mut last) = (0.0_f64, 0.0);
        for count in COUNTS {
            let all = GroupReport::of(&processes.work(count, slice)?);
            rounds.wrong += all.wrong;
            last = all.calls_per_s * 256.0 / 1e6;
            most = most.max(last);
        }
        rounds.ours.push(last);
        rounds.theirs.push(most);
    }
    let title = Title {
        id,
        what: &format!(
            "steps of 32 worker processes: pull 256 of {part} rows of 16 f32, push, until applied"
        ),
        unit: "M rows/s",
    };
    let baseline = "the best of 1, 2, 4, 8, 16 and 32 workers";
    comparison.record(title, rounds, Some(baseline))
}

/// Contest of steps a second against the memory-bandwidth bound. A step is, in copies of the table: W pulls, W
/// pushes into the hold area, and the tick. The tick reads W gradients and reads and writes the parameters:
/// `(W + 2) / 2` copies. The speed is that of [`dense_threads`] copying threads. Contests of bare steps against
/// this bound run first.
fn dense_step(comparison: &mut Comparison<'_>) -> Result<(), BenchError> {
    let id = "shm.bsp";
    let threads = dense_threads();
    for (name, piece) in PIECES {
        bare_step(comparison, &format!("{id}.bare.{name}"), threads, piece)?;
    }
    if !comparison.wants(&[id]) {
        return Ok(());
    }
    // The tick is the work of the appliers: with one applier, all other cores would wait for it.
    let cluster = cluster(comparison, DENSE_WORKERS, threads as u16)?;
    let task = Task::Dense {
        bytes: DENSE_BYTES,
        workers: DENSE_WORKERS,
    };
    let mut processes = WorkerProcesses::start(&cluster, 0, task, SyncMode::Bsp)?;
    let slice = Slice {
        iters: DENSE_STEPS,
        millis: SLICE_TIMEOUT_MS,
    };
    let mut ours = || {
        let all = GroupReport::of(&processes.work(DENSE_WORKERS as usize, slice)?);
        let step = all.samples.figures(0).avg_us / 1e6;
        Ok(Round {
            value: 1.0 / step,
            wrong: all.wrong,
        })
    };
    let mut bound = || dense_bound(threads);
    let title = Title {
        id,
        what: "BSP step on a dense table of 64 MiB, 4 workers, an applier a core: pull all, push all, tick",
        unit: "steps/s",
    };
    comparison.contest(title, &mut ours, Some(traffic(&mut bound)))
}

/// Contest of the passes of a BSP step, as in [`dense_step`] but in `threads` threads of this process, with no waits
/// between processes and no messages. Each push takes `piece` bytes through its passes at a time. The baseline is
/// [`dense_bound`].
fn bare_step(
    comparison: &mut Comparison<'_>,
    id: &str,
    threads: usize,
    piece: usize,
) -> Result<(), BenchError> {
    if !comparison.wants(&[id]) {
        return Ok(());
    }
    let (bytes, workers) = (DENSE_BYTES as usize, DENSE_WORKERS as usize);
    let mut passes = Passes::new(bytes, workers, threads, piece)?;
    let mut ours = || {
        let rate = passes.steps(DENSE_STEPS as u32);
        Ok(Round {
            value: rate.steps_per_s,
            wrong: rate.wrong,
        })
    };
    let mut bound = || dense_bound(threads);
    let title = Title {
        id,
        what: "the passes of a BSP step on a dense table of 64 MiB, 4 workers, and nothing else",
        unit: "steps/s",
    };
    comparison.contest(title, &mut ours, Some(traffic(&mut bound)))
}

/// [`dense_bound`] as a baseline.
fn traffic(bound: Side<'_>) -> BaselineSide<'_> {
    BaselineSide {
        name: "memory traffic: 11 copies of the table, a thread a core",
        side: bound,
    }
}

/// Copies of a step with W workers: W pulls, W pushes, and a tick of (W + 2) / 2 copies.
const DENSE_COPIES: u32 = 2 * DENSE_WORKERS + (DENSE_WORKERS + 2) / 2;
const _: () = assert!(DENSE_COPIES == 11);

/// Number of copying threads and of appliers: one for each core, at most [`DENSE_WORKERS`].
fn dense_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores.min(DENSE_WORKERS as usize)
}

/// Steps a second that the memory bandwidth allows, measured with `threads` copying threads.
fn dense_bound(threads: usize) -> Result<Round, BenchError> {
    let speed = copy_speed(DENSE_BYTES as usize, threads, Duration::from_millis(150));
    Ok(Round {
        value: speed / (f64::from(DENSE_COPIES) * DENSE_BYTES as f64),
        wrong: 0,
    })
}

//! Contests of several worker processes.

use std::time::Duration;

use tidewater_client::Sync;

use super::arena::{Arena, Title};
use crate::bed::worker::{Crew, Slice, Task, Together};
use crate::bed::{Bed, BedConfig};
use crate::ceiling::copy_speed;
use crate::cmd::scale::PART_ROWS;
use crate::error::BenchError;

/// Worker counts of which one is the best, and the one that is compared with it.
const COUNTS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const CROWD: u32 = 32;
/// Time of each count in a round.
const CROWD_TIME: Duration = Duration::from_millis(200);
/// Processes that tick together, and their ticks in a round.
const TICKERS: u32 = 8;
const TICKS: u64 = 100;
/// The dense table of a BSP step, its workers, and their steps in a round.
const DENSE_BYTES: u64 = 64 << 20;
const DENSE_WORKERS: u32 = 4;
const DENSE_STEPS: u64 = 3;
/// A slice of workers that wait for each other is given up after this.
const PATIENCE_MS: u64 = 60_000;

/// All of them.
///
/// # Errors
/// What the first worker that fails fails with.
pub(super) fn contests(arena: &mut Arena<'_>, name: &str) -> Result<(), BenchError> {
    processes_tick(arena, &format!("{name}.clock.processes"))?;
    scale(arena, &format!("{name}.scale"))?;
    if name == "shm" {
        dense_step(arena)?;
    }
    Ok(())
}

fn bed(arena: &Arena<'_>, workers: u32, appliers: u16) -> Result<Bed, BenchError> {
    Bed::start(BedConfig {
        transport: arena.args.transport,
        rdma_device: None,
        servers: 1,
        appliers,
        workers,
        pin: None,
    })
}

fn processes_tick(arena: &mut Arena<'_>, id: &str) -> Result<(), BenchError> {
    if !arena.wants(&[id]) {
        return Ok(());
    }
    let bed = bed(arena, TICKERS, 1)?;
    let mut crew = Crew::start(&bed, 0, Task::Ticks, Sync::Bsp)?;
    let slice = Slice {
        iters: TICKS,
        millis: PATIENCE_MS,
    };
    let title = Title {
        id,
        what: "tick of 8 worker processes under BSP, until all have ticked",
        unit: "us p50",
    };
    let mut ours = || {
        let all = Together::of(&crew.work(TICKERS as usize, slice)?);
        Ok((all.samples.figures(0).p50_us, all.wrong))
    };
    arena.contest(title, &mut ours, None)
}

/// Throughput of many workers by that of the best number of workers, in each round.
fn scale(arena: &mut Arena<'_>, id: &str) -> Result<(), BenchError> {
    if !arena.wants(&[id]) {
        return Ok(());
    }
    let bed = bed(arena, CROWD, 1)?;
    let task = Task::Rows {
        dim: 16,
        rows: PART_ROWS,
        call_rows: 256,
        workers: CROWD,
        seed: arena.args.seed,
    };
    let mut crew = Crew::start(&bed, 0, task, Sync::Asp)?;
    let slice = Slice {
        iters: u64::MAX,
        millis: CROWD_TIME.as_millis() as u64,
    };
    let (mut ours, mut best, mut wrong) = (Vec::new(), Vec::new(), 0);
    for _ in 0..arena.args.rounds {
        let (mut most, mut last) = (0.0_f64, 0.0);
        for count in COUNTS {
            let all = Together::of(&crew.work(count, slice)?);
            wrong += all.wrong;
            last = all.calls_per_s * 256.0 / 1e6;
            most = most.max(last);
        }
        ours.push(last);
        best.push(most);
    }
    let title = Title {
        id,
        what: "steps of 32 worker processes: pull 256 rows of 16 f32, push, until applied",
        unit: "M rows/s",
    };
    let rival = "the best of 1, 2, 4, 8, 16 and 32 workers";
    arena.record(title, (ours, best), Some(rival), wrong)
}

/// Steps a second by what memory traffic alone allows. In copies of the table: W pulls, W pushes
/// into the place where they are held until the tick, and the tick, which reads W gradients and
/// reads and writes the parameters, (W + 2) / 2; by the speed at which as many threads as there are
/// cores copy memory together.
fn dense_step(arena: &mut Arena<'_>) -> Result<(), BenchError> {
    let id = "shm.bsp";
    if !arena.wants(&[id]) {
        return Ok(());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(DENSE_WORKERS as usize);
    // The tick is the appliers' work alone: with one, all other cores would wait for it.
    let bed = bed(arena, DENSE_WORKERS, threads as u16)?;
    let task = Task::Dense {
        bytes: DENSE_BYTES,
        workers: DENSE_WORKERS,
    };
    let mut crew = Crew::start(&bed, 0, task, Sync::Bsp)?;
    let slice = Slice {
        iters: DENSE_STEPS,
        millis: PATIENCE_MS,
    };
    let mut ours = || {
        let all = Together::of(&crew.work(DENSE_WORKERS as usize, slice)?);
        let step = all.samples.figures(0).avg_us / 1e6;
        Ok((1.0 / step, all.wrong))
    };
    let copies = 2.0 * f64::from(DENSE_WORKERS) + f64::from(DENSE_WORKERS + 2) / 2.0;
    let mut bound = || {
        let speed = copy_speed(DENSE_BYTES as usize, threads, Duration::from_millis(150));
        Ok((speed / (copies * DENSE_BYTES as f64), 0))
    };
    let title = Title {
        id,
        what: "BSP step on a dense table of 64 MiB, 4 workers, an applier a core: pull all, push all, tick",
        unit: "steps/s",
    };
    let rival = format!("memory traffic: {copies} copies of the table, {threads} threads");
    arena.contest(title, &mut ours, Some((&rival, &mut bound)))
}

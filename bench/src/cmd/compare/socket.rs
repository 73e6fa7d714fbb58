//! Contests over TCP: against a blocking echo, a plain stream, and a bare gather behind a socket.

use tidewater::PullOptions;

use super::comparison::{Baseline, Comparison, Metric, Ours};
use super::memory::CALL_ROWS;
use super::shared::{OneCore, clock_of_a_thread};
use crate::calls::{Calls, Op, Style};
use crate::cluster::{ClusterConfig, OneWorker};
use crate::error::BenchError;
use crate::roofline::{Echo, Flow, RemoteRows, RowShape, Stream};
use crate::workload::{Kind, Workload, WorkloadSpec};

/// Bytes that an echo sends in place of our header.
const NOTE: u64 = 64;
/// Calls in flight for small rows, and for large ones.
const WINDOW_SMALL: usize = 64;
const WINDOW_LARGE: usize = 16;
/// Pushes that leave together: four batches are under way, so that both ends work at once.
pub(super) const PUSH_BATCH: u32 = 16;
const MIB: u64 = 1 << 20;
const DIM: usize = 64;
/// Rows in the table that batches are drawn from.
const ROWS: u64 = 100_000;

/// Runs all contests.
///
/// # Errors
/// The error of the first call that fails.
pub(super) fn contests(comparison: &mut Comparison<'_>) -> Result<(), BenchError> {
    free(comparison)?;
    one_core(comparison)
}

fn one_worker(comparison: &Comparison<'_>, pin: Option<usize>) -> Result<OneWorker, BenchError> {
    OneWorker::start(ClusterConfig {
        pin,
        ..ClusterConfig::single(comparison.args.transport)
    })
}

/// Contests with client and server on the cores that the kernel chooses.
fn free(comparison: &mut Comparison<'_>) -> Result<(), BenchError> {
    if !comparison.wants(&["tcp.free.", "tcp.rate.", "tcp.stream.", "tcp.rows."]) {
        return Ok(());
    }
    let mut worker = one_worker(comparison, None)?;
    for op in [Op::Pull, Op::Push] {
        small(comparison, &mut worker, op, 256, None)?;
    }
    rates(comparison, &mut worker)?;
    streams(comparison, &mut worker)?;
    batches(comparison, &mut worker, None)?;
    worker.finish()
}

/// Client and server on one core: a round trip is both ends' work plus two switches, and repeats.
fn one_core(comparison: &mut Comparison<'_>) -> Result<(), BenchError> {
    if !comparison.wants(&["tcp.core."]) {
        return Ok(());
    }
    let guard = OneCore::enter()?;
    let core = Some(guard.core());
    let mut worker = one_worker(comparison, core)?;
    for op in [Op::Pull, Op::Push] {
        for size in [8, 256, 4096] {
            small(comparison, &mut worker, op, size, core)?;
        }
    }
    batches(comparison, &mut worker, core)?;
    worker.finish()?;
    let id = "tcp.core.clock";
    if comparison.wants(&[id]) {
        let mut echo = Echo::new(NOTE, NOTE, 1, core)?;
        clock_of_a_thread(
            comparison,
            id,
            core,
            Some(Baseline::new("tcp echo of 64 B", &mut echo)),
        )?;
    }
    Ok(())
}

/// Contest of calls of `size` bytes, one after the other, against an echo. `core` is the core of both ends, if
/// they are pinned.
fn small(
    comparison: &mut Comparison<'_>,
    worker: &mut OneWorker,
    op: Op,
    size: u64,
    core: Option<usize>,
) -> Result<(), BenchError> {
    let (group, place) = match core {
        Some(_) => ("core", "both ends on one core"),
        None => ("free", "not pinned"),
    };
    let id = format!("tcp.{group}.{}.{size}", op.name());
    if !comparison.wants(&[&id]) {
        return Ok(());
    }
    let spec = WorkloadSpec::full(Kind::Sparse, size, 1, comparison.args.seed)?;
    let mut workload = Workload::new(&mut worker.client, spec, false)?;
    let options = PullOptions::default();
    let mut work = Calls::new(&mut workload, op, options, Style::Alone, 1);
    let (to, back, what) = match op {
        Op::Pull => (NOTE, size, "pull of a row"),
        Op::Push => (size, NOTE, "push of a row until applied"),
    };
    let mut echo = Echo::new(to, back, 1, core)?;
    let what = format!("{what} of {size} B, {place}");
    comparison.head_to_head(
        &id,
        &what,
        Ours::new(&mut work, Metric::P50Us, &mut worker.cluster),
        Some(Baseline::new("tcp echo", &mut echo)),
    )?;
    workload.release()
}

fn rates(comparison: &mut Comparison<'_>, worker: &mut OneWorker) -> Result<(), BenchError> {
    for (op, batch) in [(Op::Pull, 1), (Op::Push, 1), (Op::Push, PUSH_BATCH)] {
        let batched = if batch > 1 { ".batch" } else { "" };
        let rate = format!("tcp.rate.{}{batched}", op.name());
        let cpu = format!("{rate}.cpu");
        if !comparison.wants(&[&rate, &cpu]) {
            continue;
        }
        let spec = WorkloadSpec::full(Kind::Sparse, 256, 1, comparison.args.seed)?;
        let mut workload = Workload::new(&mut worker.client, spec, false)?;
        workload.client().batch_pushes(batch);
        let style = Style::Window(WINDOW_SMALL);
        let options = PullOptions::default();
        let mut work = Calls::new(&mut workload, op, options, style, 16 * WINDOW_SMALL as u64);
        let what = format!(
            "64 {}s of a row of 256 B under way, {batch} leave together",
            op.name()
        );
        comparison.head_to_head(
            &rate,
            &what,
            Ours::new(&mut work, Metric::CallsPerS, &mut worker.cluster),
            None,
        )?;
        comparison.head_to_head(
            &cpu,
            &what,
            Ours::new(&mut work, Metric::CpuUs, &mut worker.cluster),
            None,
        )?;
        workload.client().batch_pushes(1);
        workload.release()?;
    }
    Ok(())
}

fn streams(comparison: &mut Comparison<'_>, worker: &mut OneWorker) -> Result<(), BenchError> {
    let calls = 2 * WINDOW_LARGE as u64;
    for (op, kind, flow) in [
        (Op::Pull, Kind::Rows, Flow::Back),
        (Op::Push, Kind::Dense, Flow::There),
    ] {
        let id = format!("tcp.stream.{}", op.name());
        if !comparison.wants(&[&id]) {
            continue;
        }
        let spec = WorkloadSpec::full(kind, MIB, 1, comparison.args.seed)?;
        let mut workload = Workload::new(&mut worker.client, spec, false)?;
        let style = Style::Window(WINDOW_LARGE);
        let mut work = Calls::new(&mut workload, op, PullOptions::default(), style, calls);
        let mut stream = Stream::new(flow, MIB, calls, None)?;
        let what = format!("{}s of 1 MiB, 16 under way", op.name());
        comparison.head_to_head(
            &id,
            &what,
            Ours::new(&mut work, Metric::GbPerS, &mut worker.cluster),
            Some(Baseline::new("plain send and receive", &mut stream)),
        )?;
        workload.release()?;
    }
    Ok(())
}

fn batches(
    comparison: &mut Comparison<'_>,
    worker: &mut OneWorker,
    core: Option<usize>,
) -> Result<(), BenchError> {
    let (alone, window) = match core {
        None => ("tcp.rows.free", "tcp.rows.window"),
        Some(_) => ("tcp.core.rows", "tcp.core.rows.window"),
    };
    if !comparison.wants(&[alone, window]) {
        return Ok(());
    }
    let seed = comparison.args.seed;
    let spec = WorkloadSpec::scattered(Kind::Sparse, DIM, ROWS, CALL_ROWS, seed);
    let mut workload = Workload::new(&mut worker.client, spec, false)?;
    workload.cache_locations()?;
    let options = PullOptions::default();
    let bare = |depth, calls| {
        let shape = RowShape {
            rows: ROWS,
            payload: (DIM * size_of::<f32>()) as u32,
            call_rows: CALL_ROWS as u32,
        };
        RemoteRows::new(shape, depth, calls, seed, core)
    };
    if comparison.wants(&[alone]) {
        let mut work = Calls::new(&mut workload, Op::Pull, options, Style::Alone, 1);
        let mut rows = bare(1, 1)?;
        comparison.head_to_head(
            alone,
            "pull of 1024 random rows of 64 f32",
            Ours::new(&mut work, Metric::P50Us, &mut worker.cluster),
            Some(Baseline::new("bare gather through a socket", &mut rows)),
        )?;
    }
    if comparison.wants(&[window]) {
        let style = Style::Window(WINDOW_LARGE);
        let calls = 4 * WINDOW_LARGE as u64;
        let mut rows = bare(WINDOW_LARGE as u64, calls)?;
        let mut work = Calls::new(&mut workload, Op::Pull, options, style, calls);
        comparison.head_to_head(
            window,
            "pulls of 1024 random rows of 64 f32, 16 under way",
            Ours::new(&mut work, Metric::CallsPerS, &mut worker.cluster),
            Some(Baseline::new("bare gather through a socket", &mut rows)),
        )?;
    }
    workload.release()
}

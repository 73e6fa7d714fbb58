//! Contests over shared memory: against a copy, a bare gather, a ping-pong.

use tidewater::PullOptions;

use super::comparison::{Baseline, Comparison, Metric, Ours};
use crate::applier::{Applier, ROWS_CACHED, ROWS_MANY, rules};
use crate::calls::{Calls, Op, Style};
use crate::cluster::{ClusterConfig, OneWorker};
use crate::error::BenchError;
use crate::measure::NoPeer;
use crate::options::Mode;
use crate::roofline::{Gather, Memcpy, Ping};
use crate::workload::{Kind, Workload, WorkloadSpec};

/// Calls timed together if one is shorter than the timer.
const GROUP: u64 = 64;
/// Bytes of a row of 64 f32.
const ROW_BYTES: u64 = 256;
const DIM: usize = 64;
/// Rows in the large table.
const ROWS: u64 = 1_000_000;
/// Rows of a call.
pub(super) const CALL_ROWS: usize = 1024;
const DENSE_BYTES: u64 = 64 << 20;

/// Runs all contests.
///
/// # Errors
/// The error of the first call that fails.
pub(super) fn contests(comparison: &mut Comparison<'_>) -> Result<(), BenchError> {
    if comparison.wants(&["shm.row.", "shm.rows.", "shm.dense.", "shm.push."]) {
        let mut worker = OneWorker::start(ClusterConfig::single(comparison.args.transport))?;
        one_row(comparison, &mut worker)?;
        many_rows(comparison, &mut worker)?;
        dense(comparison, &mut worker)?;
        push(comparison, &mut worker)?;
        worker.finish()?;
    }
    appliers(comparison)
}

fn one_row(comparison: &mut Comparison<'_>, worker: &mut OneWorker) -> Result<(), BenchError> {
    for kind in [Kind::Rows, Kind::Sparse] {
        for mode in [Mode::Consistent, Mode::Hogwild] {
            let id = format!("shm.row.{}.{}", kind.name(), mode.name());
            if !comparison.wants(&[&id]) {
                continue;
            }
            let spec = WorkloadSpec::full(kind, ROW_BYTES, 1, comparison.args.seed)?;
            let mut workload = Workload::new(&mut worker.client, spec, false)?;
            let options = PullOptions::default().mode(mode.pull_mode());
            let mut work = Calls::new(&mut workload, Op::Pull, options, Style::Alone, GROUP);
            let mut copy = Memcpy::new(ROW_BYTES, GROUP);
            let what = "pull of one row of 64 f32, in cache, location known";
            comparison.head_to_head(
                &id,
                what,
                Ours::new(&mut work, Metric::P50Ns, &mut worker.cluster),
                Some(Baseline::new("memcpy of 256 B", &mut copy)),
            )?;
            workload.release()?;
        }
    }
    Ok(())
}

fn many_rows(comparison: &mut Comparison<'_>, worker: &mut OneWorker) -> Result<(), BenchError> {
    for kind in [Kind::Sparse, Kind::Rows] {
        let modes = [Mode::Consistent, Mode::Hogwild];
        let ids = modes.map(|mode| format!("shm.rows.{}.{}", kind.name(), mode.name()));
        if !comparison.wants(&[&ids[0], &ids[1]]) {
            continue;
        }
        let seed = comparison.args.seed;
        let spec = WorkloadSpec::scattered(kind, DIM, ROWS, CALL_ROWS, seed);
        let mut workload = Workload::new(&mut worker.client, spec, false)?;
        workload.cache_locations()?;
        let mut gather = Gather::new(ROW_BYTES as usize, ROWS, CALL_ROWS, seed)?;
        for (id, mode) in ids.iter().zip(modes) {
            let options = PullOptions::default().mode(mode.pull_mode());
            let mut work = Calls::new(&mut workload, Op::Pull, options, Style::Alone, 1);
            comparison.head_to_head(
                id,
                "pull of 1024 random rows of 64 f32 from 1 M",
                Ours::new(
                    &mut work,
                    Metric::MCallsAtP50(CALL_ROWS as u32),
                    &mut worker.cluster,
                ),
                Some(Baseline::new("bare gather: touch, copy, hash", &mut gather)),
            )?;
        }
        workload.release()?;
    }
    Ok(())
}

fn dense(comparison: &mut Comparison<'_>, worker: &mut OneWorker) -> Result<(), BenchError> {
    let id = "shm.dense.pull";
    if !comparison.wants(&[id]) {
        return Ok(());
    }
    let spec = WorkloadSpec::full(Kind::Dense, DENSE_BYTES, 1, comparison.args.seed)?;
    let mut workload = Workload::new(&mut worker.client, spec, false)?;
    let options = PullOptions::default();
    let mut work = Calls::new(&mut workload, Op::Pull, options, Style::Alone, 1);
    let mut copy = Memcpy::new(DENSE_BYTES, 1);
    comparison.head_to_head(
        id,
        "pull of a dense table of 64 MiB",
        Ours::new(&mut work, Metric::GbPerSAtP50, &mut worker.cluster),
        Some(Baseline::new("memcpy", &mut copy)),
    )?;
    workload.release()
}

fn push(comparison: &mut Comparison<'_>, worker: &mut OneWorker) -> Result<(), BenchError> {
    let id = "shm.push.applied";
    if !comparison.wants(&[id]) {
        return Ok(());
    }
    let spec = WorkloadSpec::full(Kind::Sparse, ROW_BYTES, 1, comparison.args.seed)?;
    let mut workload = Workload::new(&mut worker.client, spec, false)?;
    let options = PullOptions::default();
    let mut work = Calls::new(&mut workload, Op::Push, options, Style::Alone, 1);
    let mut ping = Ping::new(ROW_BYTES as usize, 64, 1)?;
    comparison.head_to_head(
        id,
        "push of one row of 64 f32 until applied, server awake",
        Ours::new(&mut work, Metric::P50Us, &mut worker.cluster),
        Some(Baseline::new("shm ping", &mut ping)),
    )?;
    workload.release()
}

/// Contests of an applier without a ring, which is equal on every transport and is therefore measured here only.
fn appliers(comparison: &mut Comparison<'_>) -> Result<(), BenchError> {
    for name in ["sgd", "adagrad"] {
        for (where_, rows) in [("cached", ROWS_CACHED), ("memory", ROWS_MANY)] {
            let id = format!("apply.{name}.{where_}");
            let rule = rules().into_iter().find(|rule| rule.name == name);
            let Some(rule) = rule.filter(|_| comparison.wants(&[&id])) else {
                continue;
            };
            let mut work = Applier::new(rule, 16, rows, comparison.args.seed)?;
            let what = format!("frames of random rows of 16 f32 applied, {rows} rows");
            comparison.head_to_head(
                &id,
                &what,
                Ours::new(&mut work, Metric::MCallsAtP50(1), &mut NoPeer),
                None,
            )?;
        }
    }
    Ok(())
}

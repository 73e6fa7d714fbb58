//! Contests over RDMA: against perftest on the same device, in turn.
//!
//! The baseline moves the same bytes by the plainest means: no server behind the memory, no checks. A
//! row of 256 bytes is 272 bytes on the wire, because its header comes with it.

use tidewater::PullOptions;

use super::comparison::{Comparison, Metric, Ours};
use super::peers::pair;
use super::perftest::{Figure, Perftest};
use crate::calls::{Calls, Op, Style};
use crate::cluster::{ClusterConfig, OneWorker};
use crate::error::BenchError;
#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
use crate::measure::{NoPeer, Work};
use crate::workload::{Kind, Workload, WorkloadSpec};

/// Header bytes before a row on the wire.
const HEADER: u32 = 16;
/// Bytes of a row of 64 f32.
const ROW_BYTES: u64 = 256;
const DIM: usize = 64;
/// Rows in the table that batches are drawn from, and rows of a call.
const ROWS: u64 = 20_000;
const CALL_ROWS: usize = 1024;
const MIB: u32 = 1 << 20;
/// Pushes of one mebibyte in flight.
const WINDOW: usize = 4;

/// A contest: id, description, and the baseline's program of perftest with its message size in bytes and its
/// options.
struct Match<'a> {
    id: &'a str,
    what: &'a str,
    program: &'a str,
    size: u32,
    options: &'static [&'static str],
}

const LATENCY: &[&str] = &["-n", "2000"];
#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
const SWAPS: &[&str] = &["-n", "2000", "-A", "CMP_AND_SWAP"];
const BANDWIDTH: &[&str] = &["-n", "60"];
/// As many queue pairs as a lane has for pulls.
const RATE: &[&str] = &["-n", "2500", "-q", "4"];

/// Runs all contests.
///
/// # Errors
/// Errors of our own side.
pub(super) fn contests(comparison: &mut Comparison<'_>) -> Result<(), BenchError> {
    if comparison.wants(&[
        "verbs.pull.",
        "verbs.dense.",
        "verbs.rows",
        "verbs.push.applied",
    ]) {
        let mut worker = OneWorker::start(ClusterConfig::single(comparison.args.transport))?;
        one_row(comparison, &mut worker)?;
        many_rows(comparison, &mut worker)?;
        dense(comparison, &mut worker)?;
        worker.finish()?;
    }
    lane(comparison)
}

/// One row after the other, with a cached location.
fn one_row(comparison: &mut Comparison<'_>, worker: &mut OneWorker) -> Result<(), BenchError> {
    for (id, what, size) in [
        ("verbs.pull.8", "pull of a row of 8 B", 8),
        ("verbs.pull.256", "pull of a row of 256 B", ROW_BYTES),
    ] {
        if !comparison.wants(&[id]) {
            continue;
        }
        let spec = WorkloadSpec::full(Kind::Sparse, size, 1, comparison.args.seed)?;
        let mut workload = Workload::new(&mut worker.client, spec, false)?;
        let options = PullOptions::default();
        let mut work = Calls::new(&mut workload, Op::Pull, options, Style::Alone, 1);
        let contest = Match {
            id,
            what,
            program: "ib_read_lat",
            size: size as u32 + HEADER,
            options: LATENCY,
        };
        let ours = Ours::new(&mut work, Metric::P50Us, &mut worker.cluster);
        against(comparison, contest, ours, Figure::MedianUs, 1.0)?;
        workload.release()?;
    }
    Ok(())
}

/// Random rows with cached locations, many in a call.
fn many_rows(comparison: &mut Comparison<'_>, worker: &mut OneWorker) -> Result<(), BenchError> {
    let id = "verbs.rows";
    if !comparison.wants(&[id]) {
        return Ok(());
    }
    let spec = WorkloadSpec::scattered(Kind::Sparse, DIM, ROWS, CALL_ROWS, comparison.args.seed);
    let mut workload = Workload::new(&mut worker.client, spec, false)?;
    workload.cache_locations()?;
    let options = PullOptions::default();
    let mut work = Calls::new(&mut workload, Op::Pull, options, Style::Alone, 1);
    let contest = Match {
        id,
        what: "pull of 1024 random rows of 256 B, rows by rows",
        program: "ib_read_bw",
        size: ROW_BYTES as u32 + HEADER,
        options: RATE,
    };
    // Our figure is in calls a second.
    let ours = Ours::new(&mut work, Metric::CallsPerS, &mut worker.cluster);
    against(
        comparison,
        contest,
        ours,
        Figure::MOpsPerS,
        1e6 / CALL_ROWS as f64,
    )?;
    workload.release()
}

/// A range table of one mebibyte: pulled complete into memory that the NIC writes, and pushed to.
fn dense(comparison: &mut Comparison<'_>, worker: &mut OneWorker) -> Result<(), BenchError> {
    for (id, what, op, program) in [
        (
            "verbs.dense.pull",
            "pull of a range of 1 MiB",
            Op::Pull,
            "ib_read_bw",
        ),
        (
            "verbs.push.applied",
            "pushes of 1 MiB until applied, 4 under way",
            Op::Push,
            "ib_write_bw",
        ),
    ] {
        if !comparison.wants(&[id]) {
            continue;
        }
        let spec = WorkloadSpec::full(Kind::Dense, u64::from(MIB), 1, comparison.args.seed)?;
        let mut workload = Workload::new(&mut worker.client, spec, false)?;
        let (style, calls) = match op {
            Op::Pull => (Style::Alone, 1),
            Op::Push => (Style::Window(WINDOW), 4 * WINDOW as u64),
        };
        let work = Calls::new(&mut workload, op, PullOptions::default(), style, calls);
        let mut work = work.register_destinations()?;
        let contest = Match {
            id,
            what,
            program,
            size: MIB,
            options: BANDWIDTH,
        };
        let ours = Ours::new(&mut work, Metric::GbPerS, &mut worker.cluster);
        against(comparison, contest, ours, Figure::GbPerS, 1.0)?;
        workload.release()?;
    }
    Ok(())
}

/// Contests of a lane alone: reads, a compare-and-swap, and pushes until they have arrived.
fn lane(comparison: &mut Comparison<'_>) -> Result<(), BenchError> {
    if !comparison.wants(&["verbs.lane.", "verbs.push.landed"]) {
        return Ok(());
    }
    #[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
    return lanes(comparison);
    #[cfg(not(any(feature = "verbs", feature = "verbs-dlopen")))]
    comparison.absent(
        "verbs.lane",
        "built without the cargo feature verbs or verbs-dlopen",
    )
}

#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
fn lanes(comparison: &mut Comparison<'_>) -> Result<(), BenchError> {
    use super::lane::{Ends, Landed, Read, Swap};
    let reads = [
        ("verbs.lane.read.8", "read of 8 B", 8, LATENCY),
        ("verbs.lane.read.272", "read of 272 B", 272, LATENCY),
        ("verbs.lane.read.1M", "read of 1 MiB", MIB, BANDWIDTH),
    ];
    let writes = [
        ("verbs.lane.write.8", "line pushed until it landed", 8, 1),
        ("verbs.lane.write.272", "320 B pushed until landed", 272, 1),
        ("verbs.push.landed", "1 MiB in frames until landed", MIB, 8),
    ];
    for (id, what, size, options) in reads {
        if comparison.wants(&[id]) {
            let work = &mut Read::new(Ends::new()?, size as usize)?;
            alone(
                comparison,
                Match {
                    id,
                    what,
                    program: "ib_read",
                    size,
                    options,
                },
                work,
            )?;
        }
    }
    for (id, what, size, calls) in writes {
        if comparison.wants(&[id]) {
            let options = if calls == 1 { LATENCY } else { BANDWIDTH };
            let work = &mut Landed::new(Ends::new()?, size as usize, calls);
            alone(
                comparison,
                Match {
                    id,
                    what,
                    program: "ib_write",
                    size,
                    options,
                },
                work,
            )?;
        }
    }
    let id = "verbs.lane.swap";
    if comparison.wants(&[id]) {
        let work = &mut Swap::new(Ends::new()?);
        let what = "compare-and-swap";
        alone(
            comparison,
            Match {
                id,
                what,
                program: "ib_atomic",
                size: 8,
                options: SWAPS,
            },
            work,
        )?;
    }
    Ok(())
}

/// A lane's work against a program of perftest. Its name is `contest.program` followed by `_bw` if the options
/// are [`BANDWIDTH`], otherwise by `_lat`.
#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
fn alone(
    comparison: &mut Comparison<'_>,
    contest: Match<'_>,
    work: &mut dyn Work,
) -> Result<(), BenchError> {
    let (kind, metric, figure) = match contest.options == BANDWIDTH {
        true => ("bw", Metric::GbPerS, Figure::GbPerS),
        false => ("lat", Metric::P50Us, Figure::MedianUs),
    };
    let contest = Match {
        program: &format!("{}_{kind}", contest.program),
        ..contest
    };
    let mut meter = NoPeer;
    let ours = Ours::new(work, metric, &mut meter);
    against(comparison, contest, ours, figure, 1.0)
}

/// Runs our work and the contest's program in turn; the program's figure is multiplied by `scale`. Without the
/// program or a device the contest is recorded as absent.
fn against(
    comparison: &mut Comparison<'_>,
    contest: Match<'_>,
    ours: Ours<'_>,
    figure: Figure,
    scale: f64,
) -> Result<(), BenchError> {
    let Match {
        id,
        what,
        program,
        size,
        options,
    } = contest;
    let baseline = match Perftest::new(program, size, options, figure) {
        Ok(baseline) => baseline,
        Err(reason) => return comparison.absent(id, &reason),
    };
    let name = match options {
        [.., "-q", pairs] => format!("{program} -s {size} -q {pairs}"),
        _ => format!("{program} -s {size}"),
    };
    let mut theirs = || baseline.measure().map(|value| value * scale);
    pair(comparison, id, what, &name, ours, &mut theirs)
}

//! Costs in the steady state: allocations, system calls, idle work, memory growth.

use std::time::Duration;

use tidewater::{PullOptions, SyncMode};
use tidewater_runtime::clock::{self, Deadline};

use super::comparison::{Comparison, Round, Rounds, Title};
use super::memory::CALL_ROWS;
use super::programs::SyscallCounter;
use super::shared::OneCore;
use crate::calls::{Calls, Op, Style};
use crate::cluster::{Cluster, ClusterConfig};
use crate::cmd::soak::{SaveArgs, SoakArgs, soak};
use crate::error::BenchError;
use crate::measure::{self, Meter, Plan, Work};
use crate::options::{Common, Wire};
use crate::workload::{Kind, Workload, WorkloadSpec};

/// Warm-up calls before counting: pools and windows reach their size in them.
const WARM: u64 = 2_000;
/// Calls of the two runs with compared system calls: the smaller run reveals the cost of start and end.
const COUNTED: [u64; 2] = [2_000, 20_000];
/// Time limit of a count; slower calls are fewer.
const COUNTING: Duration = Duration::from_secs(10);
/// Time that an idle cluster is watched in each round.
const IDLE: Duration = Duration::from_millis(300);
/// The soak: number of calls, and the longest time for them.
const SOAK_CALLS: u64 = 10_000_000;
const SOAK_TIME: Duration = Duration::from_secs(25);

/// Runs all contests.
///
/// # Errors
/// The error of the first call that fails.
pub(super) fn contests(comparison: &mut Comparison<'_>, name: &str) -> Result<(), BenchError> {
    let ids = ["allocs.", "syscalls.", "idle", "soak"].map(|what| format!("{name}.{what}"));
    let ids: Vec<&str> = ids.iter().map(|id| &**id).collect();
    if !comparison.wants(&ids) {
        return Ok(());
    }
    idle(comparison, name, &mut cluster(comparison, 2)?)?;
    calls(comparison, name, &mut cluster(comparison, 1)?)?;
    grows(comparison, name, &mut cluster(comparison, 1)?)
}

/// Starts one server that expects `workers` workers, no more than needed: with more workers than cores left, the
/// server's applier would not stay awake between two calls.
fn cluster(comparison: &Comparison<'_>, workers: u32) -> Result<Cluster, BenchError> {
    Cluster::start(ClusterConfig {
        workers,
        ..ClusterConfig::single(comparison.args.transport)
    })
}

/// Contest of the processor seconds a second of an unused server with an open session.
fn idle(
    comparison: &mut Comparison<'_>,
    name: &str,
    cluster: &mut Cluster,
) -> Result<(), BenchError> {
    let id = format!("{name}.idle");
    if !comparison.wants(&[&id]) {
        return Ok(());
    }
    let client = cluster.client(1, SyncMode::Asp)?;
    let title = Title {
        id: &id,
        what: "processor time of idle servers with a session open",
        unit: "s/s",
    };
    let mut ours = || {
        let before = cluster.peer()?;
        let began = clock::now();
        std::thread::sleep(IDLE);
        let wall = clock::now() - began;
        let used = cluster.peer()?.since(before).cpu_ns;
        Ok(Round {
            value: used as f64 / wall.as_nanos() as f64,
            wrong: 0,
        })
    };
    comparison.contest(title, &mut ours, None)?;
    let mut client = client;
    Ok(client.finish()?)
}

/// Contests of the allocations of steady-state calls and, for calls over shared memory one after the other, of
/// their system calls.
fn calls(
    comparison: &mut Comparison<'_>,
    name: &str,
    cluster: &mut Cluster,
) -> Result<(), BenchError> {
    let remote = comparison.args.transport.wire() != Some(Wire::Memory);
    let apart = OneCore::enter()?;
    let apart = apart.keep_off(cluster)?.then_some(apart);
    let mut client = cluster.client(0, SyncMode::Asp)?;
    for (op, rows) in [
        (Op::Pull, 1),
        (Op::Pull, CALL_ROWS),
        (Op::Push, 1),
        (Op::Push, CALL_ROWS),
    ] {
        for style in [Style::Alone, Style::Window(16)] {
            let windowed = matches!(style, Style::Window(_));
            // Pulls over shared memory end when they return.
            if windowed && op == Op::Pull && !remote {
                continue;
            }
            let window = if windowed { ".window" } else { "" };
            let ends = format!("{}.{rows}{window}", op.name());
            let (allocs, syscalls) = (
                format!("{name}.allocs.{ends}"),
                format!("{name}.syscalls.{ends}"),
            );
            if !comparison.wants(&[&allocs, &syscalls]) {
                continue;
            }
            let spec =
                WorkloadSpec::scattered(Kind::Sparse, 64, 10_000, rows, comparison.args.seed);
            let mut workload = Workload::new(&mut client, spec, false)?;
            workload.cache_locations()?;
            let calls = if windowed { 64 } else { 1 };
            let mut work = Calls::new(&mut workload, op, PullOptions::default(), style, calls);
            count_allocations(comparison, &allocs, &mut work, cluster)?;
            if !remote && !windowed {
                count_system_calls(comparison, &syscalls, &mut work, cluster)?;
            }
            workload.release()?;
        }
    }
    client.finish()?;
    drop(apart);
    Ok(())
}

fn some(calls: u64, work: &dyn Work) -> Plan {
    let mut plan = Plan::lasting(COUNTING, Duration::ZERO);
    plan.iters = calls.div_ceil(work.calls());
    plan
}

fn count_allocations(
    comparison: &mut Comparison<'_>,
    id: &str,
    work: &mut dyn Work,
    cluster: &mut Cluster,
) -> Result<(), BenchError> {
    let plan = some(WARM, work);
    let mut wrong = measure::run(&plan, work, cluster)?.wrong;
    let title = Title {
        id,
        what: "allocations of both ends for a call",
        unit: "allocs/op",
    };
    let mut ours = || {
        let measured = measure::run(&plan, work, cluster)?;
        let all = measured.client.allocations + measured.server.allocations;
        Ok(Round {
            value: measured.per_call(all),
            wrong: measured.wrong + std::mem::take(&mut wrong),
        })
    };
    comparison.contest(title, &mut ours, None)
}

/// Calls that were made.
struct Made {
    calls: u64,
    /// Number of wrong values.
    wrong: u64,
}

/// Makes complete samples of at least `calls` calls in all, or fewer if they take longer than [`COUNTING`].
fn steadily(calls: u64, work: &mut dyn Work) -> Result<Made, BenchError> {
    let end = Deadline::after(COUNTING);
    let mut made = Made { calls: 0, wrong: 0 };
    while made.calls < calls && !end.passed() {
        work.prepare();
        work.sample()?;
        made.wrong += work.check();
        made.calls += work.calls();
    }
    Ok(made)
}

fn count_system_calls(
    comparison: &mut Comparison<'_>,
    id: &str,
    work: &mut dyn Work,
    cluster: &Cluster,
) -> Result<(), BenchError> {
    if !comparison.wants(&[id]) {
        return Ok(());
    }
    let mut pids = vec![rustix::process::getpid()];
    pids.extend(cluster.pids());
    let mut rounds = Rounds::default();
    // A process that briefly needs a core ends a sleep in one round or the other.
    for _ in 0..comparison.args.rounds {
        let (mut counts, mut calls) = ([0; 2], [0; 2]);
        for (n, counted) in COUNTED.into_iter().enumerate() {
            let counter = match SyscallCounter::start(&pids) {
                Ok(counter) => counter,
                Err(reason) => return comparison.absent(id, &reason),
            };
            let made = steadily(counted, work)?;
            calls[n] = made.calls;
            counts[n] = match counter.stop() {
                Ok(count) => count,
                Err(reason) => return comparison.absent(id, &reason),
            };
            // Not counted: the audit pulls all pushed rows, and now and then pushes other values.
            rounds.wrong += made.wrong + work.audit()?;
        }
        let more = counts[1].saturating_sub(counts[0]) as f64;
        rounds
            .ours
            .push(more / calls[1].saturating_sub(calls[0]).max(1) as f64);
    }
    let title = Title {
        id,
        what: "system calls of both ends for a call",
        unit: "calls/op",
    };
    comparison.record(title, rounds, None)
}

/// Contest of the memory growth over [`SOAK_CALLS`] calls, or over as many as [`SOAK_TIME`] allows.
fn grows(
    comparison: &mut Comparison<'_>,
    name: &str,
    cluster: &mut Cluster,
) -> Result<(), BenchError> {
    let id = format!("{name}.soak");
    if !comparison.wants(&[&id]) {
        return Ok(());
    }
    let args = SoakArgs {
        lasts: SOAK_TIME,
        ops: Some(SOAK_CALLS),
        interval: Duration::from_secs(1),
        max_growth: u64::MAX,
        servers: 1,
        saves: SaveArgs::default(),
        common: Common::plain(comparison.args.transport, comparison.args.seed),
    };
    let mut wrong = 0;
    let soaked = soak(&args, cluster, &mut |row, _| {
        wrong += row.wrong;
        Ok(())
    })?;
    let what = format!(
        "growth of client and servers over {} calls, after the second of {} s",
        soaked.calls,
        args.interval.as_secs()
    );
    let title = Title {
        id: &id,
        what: &what,
        unit: "bytes",
    };
    let rounds = Rounds {
        ours: vec![soaked.growth as f64],
        wrong,
        ..Rounds::default()
    };
    comparison.record(title, rounds, None)
}

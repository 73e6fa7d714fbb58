//! Other systems, if installed, in the same rounds as Tidewater.

use std::process::Command;
use std::time::Duration;

use tidewater::{Client, PullOptions};
use tidewater_runtime::clock::Deadline;

use super::comparison::{Comparison, Metric, Ours, Rounds, Title};
use super::memory::CALL_ROWS;
use super::perftest::{Figure, Perftest};
use super::programs::{self, Killed};
use super::{pslite, redis};
use crate::calls::{Calls, Op, Style};
use crate::cluster::{ClusterConfig, OneWorker};
use crate::error::BenchError;
use crate::options::{Mode, Wire};
use crate::workload::{Kind, Workload, WorkloadSpec};

/// Time after which a program counts as hung.
pub(super) const PROGRAM_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for another system's server to listen.
pub(super) const START: Duration = Duration::from_secs(5);
pub(super) const ROW_BYTES: u64 = 256;
/// Rows in the table that MPI gathers from.
const ROWS: u64 = 1_000_000;
const MPI_SOURCE: &str = include_str!("../../../baselines/mpi-rma/mpi_rma.c");

/// Runs all contests.
///
/// # Errors
/// Errors of our own side.
pub(super) fn contests(comparison: &mut Comparison<'_>) -> Result<(), BenchError> {
    if !comparison.wants(&["peer."]) {
        return Ok(());
    }
    let mut worker = OneWorker::start(ClusterConfig::single(comparison.args.transport))?;
    match comparison.args.transport.wire() {
        Some(Wire::Memory) => {
            mpi(comparison, &mut worker)?;
            let transports = "posix,sysv,self";
            ucx(comparison, &mut worker, transports, "ucp_get", 1.0)?;
        }
        Some(Wire::Socket) => {
            redis::contests(comparison, &mut worker)?;
            pslite::contests(comparison, &mut worker)?;
            iperf3(comparison, &mut worker)?;
            // `tag_lat` prints the one-way time.
            ucx(comparison, &mut worker, "tcp,self", "tag_lat", 2.0)?;
        }
        None => {}
    }
    perftest(comparison, &mut worker)?;
    worker.finish()?;
    programs::sweep();
    Ok(())
}

/// Our pulls of one row of 256 B, one after the other.
struct OneRow<'s, 'c>(Calls<'s, 'c>);

impl<'s, 'c> OneRow<'s, 'c> {
    fn new(workload: &'s mut Workload<'c>, mode: Mode, calls: u64) -> Self {
        let options = PullOptions::default().mode(mode.pull_mode());
        Self(Calls::new(workload, Op::Pull, options, Style::Alone, calls))
    }
}

pub(super) fn one_row_workload<'c>(
    comparison: &Comparison<'_>,
    client: &'c mut Client,
) -> Result<Workload<'c>, BenchError> {
    let spec = WorkloadSpec::full(Kind::Rows, ROW_BYTES, 1, comparison.args.seed)?;
    Workload::new(client, spec, false)
}

/// Open MPI one-sided: our own small program, compiled here.
fn mpi(comparison: &mut Comparison<'_>, worker: &mut OneWorker) -> Result<(), BenchError> {
    if !comparison.wants(&["peer.mpi."]) {
        return Ok(());
    }
    let program = match compile_mpi() {
        Ok(program) => program,
        Err(reason) => return comparison.absent("peer.mpi", &reason),
    };
    let millis = (comparison.args.slice.as_millis() as u64)
        .max(1)
        .to_string();
    for (test, what, baseline) in [
        (
            "get",
            "pull of one row of 64 f32, Hogwild",
            "MPI_Get of 256 B, flush",
        ),
        (
            "gather",
            "pull of 1024 random rows of 64 f32 from 1 M, Hogwild",
            "1024 MPI_Get of 256 B, one flush",
        ),
        (
            "accumulate",
            "push of one row of 64 f32 until applied by its owner",
            "MPI_Accumulate of 256 B by the caller, flush",
        ),
    ] {
        let id = format!("peer.mpi.{test}");
        if !comparison.wants(&[&id]) {
            continue;
        }
        let mut once = || {
            let mut mpirun = Command::new("mpirun");
            mpirun.args([
                "--allow-run-as-root",
                "--oversubscribe",
                "--bind-to",
                "none",
            ]);
            mpirun.args(["-n", "2"]).arg(&program).args([test, &millis]);
            programs::run(&mut mpirun, PROGRAM_TIMEOUT).and_then(|text| mpi_median(&text, test))
        };
        let (op, calls) = match test {
            "get" => (Op::Pull, 64),
            "gather" => (Op::Pull, 1),
            _ => (Op::Push, 1),
        };
        let spec = match test {
            "gather" => {
                WorkloadSpec::scattered(Kind::Rows, 64, ROWS, CALL_ROWS, comparison.args.seed)
            }
            _ => WorkloadSpec::full(Kind::Rows, ROW_BYTES, 1, comparison.args.seed)?,
        };
        let mut workload = Workload::new(&mut worker.client, spec, false)?;
        workload.cache_locations()?;
        let hogwild = PullOptions::default().mode(Mode::Hogwild.pull_mode());
        let mut work = Calls::new(&mut workload, op, hogwild, Style::Alone, calls);
        let ours = Ours::new(&mut work, Metric::P50Us, &mut worker.cluster);
        pair(comparison, &id, what, baseline, ours, &mut once)?;
        workload.release()?;
    }
    Ok(())
}

fn compile_mpi() -> Result<std::path::PathBuf, String> {
    let compiler = programs::find("mpicc")?;
    programs::find("mpirun")?;
    let dir = programs::scratch();
    let (source, program) = (dir.join("mpi_rma.c"), dir.join("mpi_rma"));
    std::fs::write(&source, MPI_SOURCE).map_err(|e| e.to_string())?;
    let mut compile = Command::new(compiler);
    compile.arg("-O2").arg("-o").arg(&program).arg(&source);
    programs::run(&mut compile, PROGRAM_TIMEOUT)?;
    Ok(program)
}

/// Median of a test in microseconds; an error if the program reports a wrong value.
fn mpi_median(text: &str, test: &str) -> Result<f64, String> {
    let line = text.lines().find_map(|line| line.strip_prefix(test));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    match words[..] {
        [us, "0"] => us.parse().map_err(|_| "mpi_rma printed no time".into()),
        [_, wrong] => Err(format!("mpi_rma read {wrong} wrong values")),
        _ => Err("mpi_rma printed nothing".into()),
    }
}

/// UCX's own benchmark: `ucp_get` over shared memory, tagged messages over TCP. Its figure is multiplied by
/// `ways`: 2 if `test` prints a one-way time.
fn ucx(
    comparison: &mut Comparison<'_>,
    worker: &mut OneWorker,
    transports: &str,
    test: &str,
    ways: f64,
) -> Result<(), BenchError> {
    let id = format!("peer.ucx.{test}");
    if !comparison.wants(&[&id]) {
        return Ok(());
    }
    let program = match programs::find("ucx_perftest") {
        Ok(program) => program,
        Err(reason) => return comparison.absent(&id, &format!("{reason} (ucx-utils)")),
    };
    let group = if ways > 1.0 { 1 } else { 64 };
    let mut workload = one_row_workload(comparison, &mut worker.client)?;
    let mut work = OneRow::new(&mut workload, Mode::Hogwild, group);
    let once = || -> Result<f64, String> {
        let port = programs::free_port()?.to_string();
        let mut command = Command::new(&program);
        let server = command.env("UCX_TLS", transports).args(["-p", &port]);
        let _server = Killed::start(server)?;
        wait_for_port(&port)?;
        let mut client = Command::new(&program);
        client
            .env("UCX_TLS", transports)
            .args(["127.0.0.1", "-p", &port]);
        client.args([
            "-t", test, "-s", "256", "-n", "2000", "-w", "100", "-f", "-v",
        ]);
        ucx_median(&programs::run(&mut client, PROGRAM_TIMEOUT)?)
    };
    let what = "pull of one row of 64 f32, Hogwild";
    let baseline = match test {
        "ucp_get" => "ucx_perftest ucp_get of 256 B".to_owned(),
        other => format!("ucx_perftest {other} of 256 B, both ways"),
    };
    let ours = Ours::new(&mut work.0, Metric::P50Us, &mut worker.cluster);
    let mut theirs = || once().map(|us| us * ways);
    pair(comparison, &id, what, &baseline, ours, &mut theirs)?;
    workload.release()
}

/// Waits until a process listens on a TCP port of this host; an error after [`START`]. Some programs accept one
/// connection only, so this reads the kernel's list of sockets instead of connecting.
pub(super) fn wait_for_port(port: &str) -> Result<(), String> {
    let port: u16 = port.parse().map_err(|_| "no port".to_owned())?;
    let deadline = Deadline::after(START);
    let wanted = format!(":{port:04X}");
    while !deadline.passed() {
        for list in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let text = std::fs::read_to_string(list).unwrap_or_default();
            // The second column is the local address, the fourth the state: 0A is LISTEN.
            let listens = text.lines().any(|line| {
                let mut words = line.split_whitespace().skip(1);
                let local = words.next().is_some_and(|w| w.ends_with(&wanted));
                local && words.nth(1) == Some("0A")
            });
            if listens {
                return Ok(());
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(format!("no process listens on port {port}"))
}

/// Median of `ucx_perftest -f -v` in microseconds: the cell below the first column of the header with 50 in
/// its name.
fn ucx_median(text: &str) -> Result<f64, String> {
    let mut lines = text
        .lines()
        .skip_while(|line| !line.starts_with("iterations,"));
    let head = lines.next().unwrap_or_default();
    let column = head.split(',').position(|name| name.contains("50"));
    let cells = lines.next().unwrap_or_default();
    let cell = column.and_then(|n| cells.split(',').nth(n));
    let value = cell.and_then(|cell| cell.parse().ok());
    value.ok_or_else(|| "ucx_perftest printed no median".into())
}

/// A contest between our work and the figure of another program, which `baseline` names and `theirs` runs
/// first in each round. If the program fails, the contest is recorded as absent, and the run goes on.
pub(super) fn pair(
    comparison: &mut Comparison<'_>,
    id: &str,
    what: &str,
    baseline: &str,
    ours: Ours<'_>,
    theirs: &mut dyn FnMut() -> Result<f64, String>,
) -> Result<(), BenchError> {
    let mut rounds = Rounds::default();
    for _ in 0..comparison.args.rounds {
        match theirs() {
            Ok(value) => rounds.theirs.push(value),
            Err(reason) => return comparison.absent(id, &reason),
        }
        let measured = comparison.slice(ours.work, ours.meter)?;
        rounds.wrong += measured.wrong;
        rounds.ours.push(ours.metric.of(&measured));
    }
    let title = Title {
        id,
        what,
        unit: ours.metric.unit(),
    };
    comparison.record(title, rounds, Some(baseline))
}

fn iperf3(comparison: &mut Comparison<'_>, worker: &mut OneWorker) -> Result<(), BenchError> {
    let id = "peer.iperf3";
    if !comparison.wants(&[id]) {
        return Ok(());
    }
    let program = match programs::find("iperf3") {
        Ok(program) => program,
        Err(reason) => return comparison.absent(id, &reason),
    };
    let spec = WorkloadSpec::full(Kind::Rows, 1 << 20, 1, comparison.args.seed)?;
    let mut workload = Workload::new(&mut worker.client, spec, false)?;
    let options = PullOptions::default();
    let mut work = Calls::new(&mut workload, Op::Pull, options, Style::Window(16), 32);
    let mut once = || -> Result<f64, String> {
        let port = programs::free_port()?.to_string();
        let mut command = Command::new(&program);
        let server = command.args(["-s", "-1", "-B", "127.0.0.1", "-p", &port]);
        let _server = Killed::start(server)?;
        wait_for_port(&port)?;
        let mut client = Command::new(&program);
        client.args(["-c", "127.0.0.1", "-p", &port, "-t", "1", "-J"]);
        let text = programs::run(&mut client, PROGRAM_TIMEOUT)?;
        let report: serde_json::Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
        let bits = bits.ok_or("iperf3 printed no bits per second")?;
        Ok(bits / 8e9)
    };
    let what = "pulls of 1 MiB, 16 under way";
    let baseline = "iperf3, one stream of a second";
    let ours = Ours::new(&mut work, Metric::GbPerS, &mut worker.cluster);
    pair(comparison, id, what, baseline, ours, &mut once)?;
    workload.release()
}

/// The raw NIC: `ib_read_lat`, if installed.
fn perftest(comparison: &mut Comparison<'_>, worker: &mut OneWorker) -> Result<(), BenchError> {
    let id = "peer.perftest.read";
    if !comparison.wants(&[id]) {
        return Ok(());
    }
    let (size, options) = (ROW_BYTES as u32, &["-n", "2000"]);
    let baseline = match Perftest::new("ib_read_lat", size, options, Figure::MedianUs) {
        Ok(baseline) => baseline,
        Err(reason) => return comparison.absent(id, &reason),
    };
    let mut workload = one_row_workload(comparison, &mut worker.client)?;
    let mut work = OneRow::new(&mut workload, Mode::Hogwild, 1);
    let mut once = || baseline.measure();
    let what = "pull of one row of 64 f32, Hogwild";
    let ours = Ours::new(&mut work.0, Metric::P50Us, &mut worker.cluster);
    pair(
        comparison,
        id,
        what,
        "ib_read_lat of 256 B",
        ours,
        &mut once,
    )?;
    workload.release()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_programs_print_is_understood() {
        assert_eq!(mpi_median("get 0.0298 0\n", "get"), Ok(0.0298));
        for bad in ["get 0.0298 4", "gather 1.0 0", ""] {
            assert!(mpi_median(bad, "get").is_err(), "{bad}");
        }
        let text = "iterations,50.0_percentile_lat,avg_lat\n20000,0.022,0.024\n";
        assert_eq!(ucx_median(text), Ok(0.022));
        assert!(ucx_median("").is_err());
    }
}

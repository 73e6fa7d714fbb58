//! ps-lite, a parameter server over ZeroMQ, from a built tree that `PSLITE` names.
//!
//! Our own small program (`bench/baselines/ps-lite`) is compiled against the tree's headers and
//! `build/libps.a`, with ZeroMQ and protobuf from its `deps`. One worker, one server, one scheduler.

use std::path::{Path, PathBuf};
use std::process::Command;

use tidewater::PullOptions;

use super::comparison::{Comparison, Metric, Ours};
use super::memory::CALL_ROWS;
use super::peers::{PROGRAM_TIMEOUT, one_row_workload, pair};
use super::programs;
use crate::calls::{Calls, Op, Style};
use crate::cluster::OneWorker;
use crate::error::BenchError;
use crate::workload::{Kind, Workload, WorkloadSpec};

/// Environment variable that names the tree.
const TREE: &str = "PSLITE";
const SOURCE: &str = include_str!("../../../baselines/ps-lite/ps_lite.cc");
/// Calls under way, as in the program.
const WINDOW: usize = 64;
/// Rows of the table and elements of a row, as in the program.
const ROWS: u64 = 100_000;
const DIM: usize = 64;

/// Runs all contests.
///
/// # Errors
/// Errors of our own side. Without a tree the contests are recorded as absent.
pub(super) fn contests(
    comparison: &mut Comparison<'_>,
    worker: &mut OneWorker,
) -> Result<(), BenchError> {
    let contests = [
        (
            "pull",
            "64 pulls of 256 B under way",
            "ps-lite, 64 pulls under way",
        ),
        (
            "push",
            "64 pushes of 256 B under way",
            "ps-lite, 64 pushes under way",
        ),
        (
            "rows",
            "pull of 1024 random rows of 64 f32",
            "ps-lite, pull of 1024 keys",
        ),
    ]
    .map(|(test, what, baseline)| (test, format!("peer.pslite.{test}"), what, baseline));
    let ids: Vec<&str> = contests.iter().map(|(_, id, ..)| &**id).collect();
    if !comparison.wants(&ids) {
        return Ok(());
    }
    let program = match compile() {
        Ok(program) => program,
        Err(reason) => return comparison.absent("peer.pslite", &reason),
    };
    let millis = (comparison.args.slice.as_millis() as u64)
        .max(1)
        .to_string();
    for (test, id, what, baseline) in &contests {
        if !comparison.wants(&[id]) {
            continue;
        }
        let mut once = || {
            let port = programs::free_port()?.to_string();
            let mut run = Command::new(&program);
            run.args([*test, &millis, &port]);
            programs::run(&mut run, PROGRAM_TIMEOUT).and_then(|text| figure(&text, test))
        };
        let mut workload = match *test {
            "rows" => {
                let spec = WorkloadSpec::scattered(
                    Kind::Sparse,
                    DIM,
                    ROWS,
                    CALL_ROWS,
                    comparison.args.seed,
                );
                Workload::new(&mut worker.client, spec, false)?
            }
            _ => one_row_workload(comparison, &mut worker.client)?,
        };
        workload.cache_locations()?;
        let (op, style, calls, metric) = match *test {
            "rows" => (Op::Pull, Style::Alone, 1, Metric::P50Us),
            test => {
                let op = if test == "pull" { Op::Pull } else { Op::Push };
                let calls = 16 * WINDOW as u64;
                (op, Style::Window(WINDOW), calls, Metric::CallsPerS)
            }
        };
        let mut work = Calls::new(&mut workload, op, PullOptions::default(), style, calls);
        let ours = Ours::new(&mut work, metric, &mut worker.cluster);
        pair(comparison, id, what, baseline, ours, &mut once)?;
        workload.release()?;
    }
    Ok(())
}

fn compile() -> Result<PathBuf, String> {
    let tree = std::env::var_os(TREE).map(PathBuf::from);
    let tree = tree.ok_or_else(|| format!("{TREE} names no built tree of ps-lite"))?;
    let library = tree.join("build/libps.a");
    if !library.is_file() {
        return Err(format!("{} is missing; build it", library.display()));
    }
    let compiler = programs::find("c++")?;
    let dir = programs::scratch();
    let (source, program) = (dir.join("ps_lite.cc"), dir.join("ps_lite"));
    std::fs::write(&source, SOURCE).map_err(|e| e.to_string())?;
    let option = |name: &str, path: &Path| format!("{name}{}", path.display());
    let libraries = tree.join("deps/lib");
    let mut compile = Command::new(compiler);
    compile
        .args(["-std=c++17", "-O2", "-pthread", "-o"])
        .arg(&program)
        .arg(option("-I", &tree.join("include")))
        .arg(option("-I", &tree.join("deps/include")))
        .args([&source, &library])
        .arg(option("-L", &libraries))
        .arg(option("-Wl,-rpath,", &libraries))
        .args(["-lprotobuf-lite", "-lzmq", "-Wl,--allow-shlib-undefined"]);
    programs::run(&mut compile, PROGRAM_TIMEOUT)?;
    Ok(program)
}

/// Figure of a test, in the unit that the program prints it in; an error if the program reports a wrong value.
fn figure(text: &str, test: &str) -> Result<f64, String> {
    let line = text.lines().find_map(|line| line.strip_prefix(test));
    // No line: no words, and the error below.
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    match words[..] {
        [figure, "0"] => figure.parse().map_err(|_| format!("no figure: {text:?}")),
        [_, wrong] => Err(format!("ps_lite read {wrong} wrong values")),
        _ => Err("ps_lite printed nothing".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_need_right_values() {
        assert_eq!(figure("rows 404.5730 0\n", "rows"), Ok(404.573));
        for bad in ["rows 404.5 3", "pull 1.0 0", "rows x 0", ""] {
            assert!(figure(bad, "rows").is_err(), "{bad}");
        }
    }
}

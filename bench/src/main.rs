//! `tidewater-bench`: latency, bandwidth and rates, with values checked while measuring.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};
use tidewater_bench::args::{Cli, Command};
use tidewater_bench::sheet::Failures;
use tidewater_bench::{BenchError, alloc, cluster, cmd, roofline};
use tidewater_cli::manpages;

/// The program's allocator: the system allocator, which counts allocations.
#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

fn main() -> ExitCode {
    tidewater_topology::hostinfo::raise_open_files();
    match run(&Cli::parse().command) {
        Ok(failures) if failures.is_empty() => ExitCode::SUCCESS,
        Ok(failures) => {
            failures.iter().for_each(|failure| complain(failure));
            ExitCode::from(1)
        }
        Err(e) => {
            complain(&e.to_string());
            ExitCode::from(e.exit_code())
        }
    }
}

fn run(command: &Command) -> Result<Failures, BenchError> {
    match command {
        Command::Latency(args) => cmd::tables::latency(args),
        Command::Bandwidth(args) => cmd::tables::bandwidth(args),
        Command::Rate(args) => cmd::tables::rate(args),
        Command::Sparse(args) => cmd::sparse::run(args),
        Command::Ssp(args) => cmd::ssp::run(args),
        Command::Apply(args) => cmd::apply::run(args),
        Command::Scale(args) => cmd::scale::run(args),
        Command::Soak(args) => cmd::soak::run(args),
        Command::Memory(args) => cmd::memory::run(args),
        Command::Queue(args) => cmd::queue::run(args),
        Command::Chaos(args) => cmd::chaos::run(args),
        Command::Compare(args) => cmd::compare::run(args),
        Command::Report(args) => cmd::report::run(args),
        Command::Server => cluster::server::run().map(|()| Failures::new()),
        Command::Worker => cluster::worker::run().map(|()| Failures::new()),
        Command::ChaosWorker(args) => cmd::chaos::worker::run(args).map(|()| Failures::new()),
        Command::ChaosTraining(args) => cmd::chaos::worker::train(args).map(|()| Failures::new()),
        Command::Wire => roofline::serve().map(|()| Failures::new()),
        Command::Pages { prefix } => {
            match manpages::write("tidewater-bench", &Cli::command(), prefix) {
                Ok(()) => Ok(Failures::new()),
                Err(e) => Err(BenchError::file(prefix, e)),
            }
        }
    }
}

fn complain(text: &str) {
    // Without stderr there is no place for the report.
    let _ = writeln!(io::stderr(), "tidewater-bench: {text}");
}

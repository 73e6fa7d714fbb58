//! `tidewater-bench`: push and pull latency and bandwidth, values checked while measuring.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use tidewater_bench::args::{Cli, Command, Options};
use tidewater_bench::bed::Bed;
use tidewater_bench::error::BenchError;
use tidewater_bench::fingerprint::Fingerprint;
use tidewater_bench::measure::{self, What};
use tidewater_bench::report::{self, Row};
use tidewater_bench::server;
use tidewater_bench::stats::timer_cost;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Latency(options) => run(What::Latency, &options),
        Command::Bandwidth(options) => run(What::Bandwidth, &options),
        Command::Server => server::run().map(|()| 0),
    };
    match result {
        Ok(0) => ExitCode::SUCCESS,
        Ok(wrong) => {
            complain(&format!("{wrong} values were wrong"));
            ExitCode::from(1)
        }
        Err(e) => {
            complain(&e.to_string());
            ExitCode::from(e.exit_code())
        }
    }
}

fn complain(text: &str) {
    // Nobody is left to be told when stderr is gone.
    let _ = writeln!(io::stderr(), "tidewater-bench: {text}");
}

/// Measures what the options ask for; the number of wrong values.
fn run(what: What, options: &Options) -> Result<u64, BenchError> {
    let bed = Bed::start(options)?;
    if let Some(core) = options.pin {
        pin(core)?;
    }
    let mut client = bed.client()?;
    let timer = timer_cost();
    let fingerprint = Fingerprint::take(what, options, bed.ring_bytes(), timer);
    let out = &mut io::stdout().lock();
    let print = |source| BenchError::System {
        what: "print the results".into(),
        source,
    };
    report::header(out, &fingerprint).map_err(print)?;
    let mut rows: Vec<Row> = Vec::new();
    for section in measure::sections(options) {
        report::section(out, section, options.batch).map_err(print)?;
        for &size in &options.sizes.0 {
            let row = measure::run(&mut client, what, section, size, options, timer)?;
            report::row(out, &row).map_err(print)?;
            rows.push(row);
        }
    }
    if let Some(path) = &options.json {
        report::json(path, &fingerprint, &rows)?;
    }
    if let Some(path) = &options.csv {
        report::csv(path, &rows)?;
    }
    client.finish()?;
    Ok(rows.iter().map(|row| row.wrong).sum())
}

/// Keeps this thread on one core.
fn pin(core: usize) -> Result<(), BenchError> {
    if core >= rustix::thread::CpuSet::MAX_CPU {
        return Err(BenchError::Usage(format!("there is no core {core}")));
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| BenchError::System {
        what: format!("cannot pin the client to core {core}"),
        source: e.into(),
    })
}

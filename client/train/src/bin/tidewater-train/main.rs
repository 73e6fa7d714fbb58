//! `tidewater-train`: ready-made workers. Under `tidewater run` it joins the job; alone it starts a
//! cluster inside this process.

mod args;
mod cluster;
mod console;
mod generate;
mod score;
mod train;

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use tidewater_cli::manpages;
use tidewater_train::{TrainError, exit};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use args::{Cli, Command};

/// Reason for which the program ends: an exit code, and the message on stderr.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn new(code: u8, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        Self { code, message }
    }

    fn usage(message: impl fmt::Display) -> Self {
        Self::new(exit::USAGE, message)
    }
}

impl From<TrainError> for Failure {
    fn from(e: TrainError) -> Self {
        Self::new(e.exit_code(), e)
    }
}

impl From<tidewater::ClientError> for Failure {
    fn from(e: tidewater::ClientError) -> Self {
        TrainError::from(e).into()
    }
}

fn main() -> ExitCode {
    tidewater_topology::hostinfo::raise_open_files();
    let cli = Cli::parse();
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into());
    tracing_subscriber::fmt()
        .with_env_filter(filter.from_env_lossy())
        .with_writer(std::io::stderr)
        .init();
    let done = match cli.command {
        Command::Lr(args) => match args.optimizer() {
            Ok(optimizer) => train::run(optimizer, args.l2, args.common),
            Err(no_l1) => Err(Failure::usage(no_l1)),
        },
        Command::Ftrl(args) => train::run(args.optimizer(), 0.0, args.common),
        Command::Evaluate(args) => score::evaluate(&args),
        Command::Predict(args) => score::predict(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Pages { prefix } => {
            match manpages::write("tidewater-train", &Cli::command(), &prefix) {
                Ok(()) => Ok(ExitCode::SUCCESS),
                Err(e) => {
                    let what = format_args!("{}: {e}", prefix.display());
                    Err(Failure::new(exit::ENVIRONMENT, what))
                }
            }
        }
    };
    match done {
        Ok(code) => code,
        Err(failure) => {
            say(format_args!("tidewater-train: {}", failure.message));
            ExitCode::from(failure.code)
        }
    }
}

/// Prints a line on stderr, in one write so that the lines of several workers do not mix. A closed
/// stderr is no reason to fail.
fn say(line: impl fmt::Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

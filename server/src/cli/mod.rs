//! The command line: one file per subcommand, one line for each in [`Command`] and in [`main`].
//!
//! Subcommands return the process's exit code: 0 ok, 1 a check failed, 2 usage, 3 environment,
//! 4 peer or rendezvous, 5 bad input data, 128+n signal.

mod internal;
mod roles;
mod run;

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A parameter server for HPC jobs.
#[derive(Debug, Parser)]
#[command(name = "tidewater", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a job on this host: a coordinator, servers, and copies of a program.
    Run(run::RunArgs),
    /// Run the coordinator of a cluster.
    Coordinator(roles::CoordinatorArgs),
    /// Run one server of a cluster.
    Server(roles::ServerArgs),
    /// Run a coordinator and servers in one process, as a service for any job.
    Serve(roles::ServeArgs),
    #[command(name = "__child", hide = true)]
    Child(internal::ChildArgs),
    #[command(name = "__guard", hide = true)]
    Guard,
}

/// Does what the command line says. A wrong one exits with code 2, as clap does by itself.
pub(crate) fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::Coordinator(args) => roles::coordinator(args),
        Command::Server(args) => roles::server(args),
        Command::Serve(args) => roles::serve(args),
        Command::Child(args) => internal::child(&args),
        Command::Guard => internal::guard(),
    }
}

/// A message on stderr. Nobody may be there to read it, and that is no reason to fail.
fn complain(message: impl fmt::Display) {
    let _ = writeln!(std::io::stderr(), "tidewater: {message}");
}

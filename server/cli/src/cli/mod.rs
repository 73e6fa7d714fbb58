//! The command line: one file per subcommand, one line for each in `Command` and in [`main`].
//!
//! Subcommands return the process's exit code: 0 ok, 1 a check failed, 2 usage, 3 environment,
//! 4 peer or rendezvous, 5 bad input data, 128+n signal.

mod checkpoint;
mod functions;
mod holder;
mod internal;
mod job;
mod launched;
mod machine;
mod membership;
mod publish;
mod rdma_check;
mod roles;
mod run;
mod serve;
mod status;

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tidewater_engine::store::Hugepages;
use tidewater_launch::{EnvError, LaunchVars, unknown_variables};
use tidewater_service::server::BusyPoll;

const EXAMPLES: &str = "\
Examples:
  Two servers and four copies of a program, on this host:
    tidewater run --servers 2 --workers 4 -- ./sim --steps 100

  The same on the hosts of a file, by ssh:
    tidewater run --hostfile hosts --servers 2 --workers 4 -- ./sim --steps 100

  The same by hand, each in a terminal of its own; the coordinator says its address:
    tidewater coordinator --servers 2 --workers 4 --token-file token
    tidewater server --number 0 --coordinator HOST:PORT --token-file token
    tidewater server --number 1 --coordinator HOST:PORT --token-file token

  Its token, which only you can read:
    (umask 077 && od -An -v -tx1 -N32 /dev/urandom | tr -d ' \\n' > token)

Exit codes: 0 done, 1 a check failed, 2 wrong command line, 3 environment, 4 another process is
missing or unwilling, 5 bad data file, 128+n ended by signal n.";

const TRAIN_HELP: &str = "\
Options of the job come first, those of the trainer after its command; tidewater-train lr --help lists them.
Examples:
  tidewater train --servers 2 --workers 4 lr --train train.libsvm --save model
  tidewater train --workers 4 ftrl --train 'part-*.gz' --l1 2 --test test.libsvm --evaluate-every 1epoch";

const EVALUATE_HELP: &str = "\
Options of the job come first, those of the evaluation after them; tidewater-train evaluate --help lists them.
Example:
  tidewater evaluate --workers 4 --load model --data test.libsvm";

const PREDICT_HELP: &str = "\
Options of the job come first, those of the prediction after them; tidewater-train predict --help lists them.
Example:
  tidewater predict --workers 4 --load model --data new.libsvm --out predictions --merge predictions.txt";

/// A parameter server for HPC jobs.
#[derive(Debug, Parser)]
#[command(name = "tidewater", version, disable_help_subcommand = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a job, on this host or on those of a file: a coordinator, servers, and copies of a program.
    Run(run::RunArgs),
    /// Train a model: `run` with workers of tidewater-train; its command (lr or ftrl) and arguments follow.
    #[command(
        override_usage = "tidewater train [OPTIONS] <lr|ftrl> --train FILES [ARGUMENT]...",
        after_help = TRAIN_HELP
    )]
    Train(run::RunArgs),
    /// Evaluate a saved model on files: `run` with workers of tidewater-train evaluate; its arguments follow.
    #[command(
        override_usage = "tidewater evaluate [OPTIONS] --load DIR --data FILES [ARGUMENT]...",
        after_help = EVALUATE_HELP
    )]
    Evaluate(run::RunArgs),
    /// Predict records by a saved model, one line each: `run` with workers of tidewater-train predict; its
    /// arguments follow.
    #[command(
        override_usage = "tidewater predict [OPTIONS] --load DIR --data FILES --out DIR [ARGUMENT]...",
        after_help = PREDICT_HELP
    )]
    Predict(run::RunArgs),
    /// Ask the workers of a running job to end at a common step.
    Stop(job::StopArgs),
    /// Wait for the end of a running job; the exit code is its result.
    Wait(job::WaitArgs),
    /// Run the coordinator of a cluster.
    Coordinator(roles::CoordinatorArgs),
    /// Run one server of a cluster.
    Server(roles::ServerArgs),
    /// Run a coordinator and servers in one process that stays, for jobs that start later.
    Serve(serve::ServeArgs),
    /// Print what a running cluster does: members, ticks, carriers, memory.
    Status(status::StatusArgs),
    /// Draw this machine and what servers would choose on it: cores, memory, NICs.
    Info(machine::InfoArgs),
    /// Check this machine: what is missing, what that means, and which commands help.
    Doctor(machine::DoctorArgs),
    /// Check RDMA between this node and another one: what works, how fast, and what to change.
    RdmaCheck(rdma_check::RdmaCheckArgs),
    /// Print which launcher started this process, its settings, and how the processes meet.
    LaunchInfo(launched::LaunchInfoArgs),
    #[command(name = "__child", hide = true)]
    Child(internal::ChildArgs),
    #[command(name = "__guard", hide = true)]
    Guard,
    #[command(name = "__remote", hide = true)]
    Remote,
    #[command(name = "__pages", hide = true)]
    Pages(internal::PagesArgs),
}

/// Options of every command that starts servers.
#[derive(Debug, Clone, Copy, Args)]
struct BusyPollArgs {
    /// Busy-poll: appliers spin instead of sleeping. Lowest latency; each applier uses one core at
    /// 100 %, idle or not. More appliers than cores are refused. Over RDMA, tails of pushes are
    /// then polled: a push takes no receive and makes no completion at the server.
    #[arg(
        long,
        value_name = "on|off",
        num_args = 0..=1,
        require_equals = true,
        default_value = "off",
        default_missing_value = "on"
    )]
    busy_poll: BusyPoll,
}

/// Where a server's threads and memory are, and whether its memory is locked: options of every command that
/// starts servers.
#[derive(Debug, Clone, Args)]
struct PlaceArgs {
    /// Network or RDMA device to place threads and memory near [default: TIDEWATER_NIC, or that of the
    /// address listened on].
    #[arg(long, value_name = "NAME")]
    nic: Option<String>,
    /// Lock parameters and their state in memory, so that they are never swapped [default: if
    /// TIDEWATER_MLOCK is 1].
    #[arg(long)]
    mlock: bool,
}

impl PlaceArgs {
    /// Device and lock of the flags, or of the variables. Fails on an impossible variable.
    fn take(&self) -> Result<(Option<String>, bool), EnvError> {
        let vars = LaunchVars::from_env()?;
        Ok((self.nic.clone().or(vars.nic), self.mlock || vars.mlock))
    }

    /// The flags as arguments of `server`.
    fn passed_on(&self) -> impl Iterator<Item = String> {
        let nic = self.nic.as_ref().map(|name| format!("--nic={name}"));
        nic.into_iter()
            .chain(self.mlock.then(|| "--mlock".to_owned()))
    }
}

/// Runs the program with the arguments of this process, and returns its exit code. A wrong command line
/// ends the process with code 2, as clap does by itself.
pub fn main() -> ExitCode {
    tidewater_topology::hostinfo::raise_open_files();
    match Cli::parse().command {
        Command::Run(args) => run::run(args, None),
        Command::Train(args) => run::run(args, Some(&[])),
        Command::Evaluate(args) => run::run(args, Some(&["evaluate"])),
        Command::Predict(args) => run::run(args, Some(&["predict"])),
        Command::Stop(args) => job::stop(&args),
        Command::Wait(args) => job::wait(&args),
        Command::Coordinator(args) => roles::coordinator(args),
        Command::Server(args) => roles::server(args),
        Command::Serve(args) => serve::serve(args),
        Command::Status(args) => status::status(&args),
        Command::Info(args) => machine::info(args),
        Command::Doctor(args) => machine::doctor(args),
        Command::RdmaCheck(args) => rdma_check::rdma_check(args),
        Command::LaunchInfo(args) => launched::info(args),
        Command::Child(args) => internal::child(&args),
        Command::Guard => internal::guard(),
        Command::Remote => internal::remote(),
        Command::Pages(args) => internal::pages(&args),
    }
}

/// Reports `TIDEWATER_*` variables that no component reads.
fn report_unknown_variables() {
    for name in unknown_variables(std::env::vars_os().map(|(name, _)| name)) {
        complain(format_args!(
            "nothing reads the environment variable {name}; a misprint?"
        ));
    }
}

/// Parses the time of a lease, 1 s to 1 h, in the form that [`parse_duration`] reads.
fn parse_lease(text: &str) -> Result<Duration, &'static str> {
    let lease = parse_duration(text)?;
    let fits = (Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&lease);
    fits.then_some(lease).ok_or("a lease has 1s to 1h")
}

/// Parses a whole number of seconds, or one with a unit: ms, s, m, h.
fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    const EXPECTED: &str = "not a time; write a whole number and ms, s, m or h, as in 90s";
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u32 = number.parse().map_err(|_| EXPECTED)?;
    match unit {
        "ms" => Ok(Duration::from_millis(number.into())),
        "" | "s" => Ok(Duration::from_secs(number.into())),
        "m" => Ok(Duration::from_secs(60) * number),
        "h" => Ok(Duration::from_secs(3600) * number),
        _ => Err(EXPECTED),
    }
}

/// Parses auto, 2M, 1G or off.
fn parse_hugepages(text: &str) -> Result<Hugepages, &'static str> {
    text.parse()
}

/// Prints a message on stderr, in one write so that the lines of several processes do not mix. A
/// closed stderr is no reason to fail.
fn complain(message: impl fmt::Display) {
    let _ = std::io::stderr().write_all(format!("tidewater: {message}\n").as_bytes());
}

//! The command line: the subcommands.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::cmd::apply::ApplyArgs;
use crate::cmd::chaos::ChaosArgs;
use crate::cmd::chaos::worker::{self as chaos_worker, TrainingArgs, WorkerArgs};
use crate::cmd::compare::CompareArgs;
use crate::cmd::memory::MemoryArgs;
use crate::cmd::queue::QueueArgs;
use crate::cmd::report::ReportArgs;
use crate::cmd::scale::ScaleArgs;
use crate::cmd::soak::SoakArgs;
use crate::cmd::sparse::SparseArgs;
use crate::cmd::ssp::SspArgs;
use crate::cmd::tables::{BandwidthArgs, LatencyArgs, RateArgs};
use crate::{cluster, roofline};

/// Examples and exit codes at the end of the help of the program and of each visible subcommand.
pub const EXAMPLES: &str = "\
Examples:
  tidewater-bench latency
  tidewater-bench latency --op pull --table sparse --sizes 256 --group 64
  tidewater-bench latency --transport tcp --sizes 8:4K:x2 --json latency.json
  tidewater-bench latency --transport tcp --table rows --sizes 256 --open-loop 10000 --max-p99 200
  tidewater-bench bandwidth --op push --table dense --sizes 64K:16M:x4
  tidewater-bench rate --transport tcp --sizes 8:4K:x2
  tidewater-bench sparse --rows 1M --dim 64 --batch 1024
  tidewater-bench memory --keys 1M
  tidewater-bench queue --clients 64 --tasks 100000
  tidewater-bench chaos --seed 7 --rounds 50 --html chaos.html
  tidewater-bench compare --transport shm --gate --json shm.json --html shm.html
  tidewater-bench report latency.json bandwidth.json shm.json --html report.html

Exit codes: 0 measured and every value right, 1 a wrong value or a limit missed, 2 usage,
3 environment, 4 peer.";

/// Latency, bandwidth and rates of pulls, pushes and clocks; values are checked while measuring.
#[derive(Debug, Parser)]
#[command(name = "tidewater-bench", version, after_help = EXAMPLES)]
pub struct Cli {
    /// Subcommand: the measurement to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The measurement to run.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Time of a call: a pull until it returns, a push until it is applied
    #[command(after_help = EXAMPLES)]
    Latency(LatencyArgs),
    /// Bytes a second with a window of calls
    #[command(after_help = EXAMPLES)]
    Bandwidth(BandwidthArgs),
    /// Calls a second with many in flight, and their cost at both ends
    #[command(after_help = EXAMPLES)]
    Rate(RateArgs),
    /// Many rows of a large table in one call
    #[command(after_help = EXAMPLES)]
    Sparse(SparseArgs),
    /// Clocks: from a tick until every worker sees it, and barriers
    #[command(after_help = EXAMPLES)]
    Ssp(SspArgs),
    /// Rows a second that one applier applies
    #[command(after_help = EXAMPLES)]
    Apply(ApplyArgs),
    /// Many workers and several servers
    #[command(after_help = EXAMPLES)]
    Scale(ScaleArgs),
    /// A long mixed load: values, memory, allocations
    #[command(after_help = EXAMPLES)]
    Soak(SoakArgs),
    /// Resident memory a key, at the server and in the client's cache of locations
    #[command(after_help = EXAMPLES)]
    Memory(MemoryArgs),
    /// Tasks that many clients take and report, and their cost at the coordinator
    #[command(after_help = EXAMPLES)]
    Queue(QueueArgs),
    /// Faults of real processes by a seeded schedule, with a ledger of all pushes as judge
    #[command(after_help = EXAMPLES)]
    Chaos(ChaosArgs),
    /// Comparison with the machine's limits and with other systems, in the same minute
    #[command(after_help = EXAMPLES)]
    Compare(CompareArgs),
    /// One page with charts from the JSON of one or several runs
    #[command(after_help = EXAMPLES)]
    Report(ReportArgs),
    /// Server process of a run
    #[command(name = cluster::server::ROLE, hide = true)]
    Server,
    /// Worker process of a run
    #[command(name = cluster::worker::ROLE, hide = true)]
    Worker,
    /// Worker process of a chaos run
    #[command(name = chaos_worker::ROLE, hide = true)]
    ChaosWorker(WorkerArgs),
    /// Worker process of the training job of a chaos run
    #[command(name = chaos_worker::TRAINING_ROLE, hide = true)]
    ChaosTraining(TrainingArgs),
    /// Remote end of a plain socket
    #[command(name = roofline::ROLE, hide = true)]
    Wire,
    /// Man pages and shell completions for an installation
    #[command(name = "__pages", hide = true)]
    Pages {
        /// Prefix of share/man and of the completion folders
        prefix: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        let cli = Cli::try_parse_from(["tidewater-bench", "latency"]).unwrap();
        let Command::Latency(o) = cli.command else {
            panic!("latency was asked for");
        };
        assert_eq!(o.tables.sizes.0.len(), 22);
    }
}

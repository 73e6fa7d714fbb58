//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use tidewater_client::PullMode;
use tidewater_transport::fabric::TransportKind;
use tidewater_transport::launch::RdmaDevice;

use crate::sizes::Sizes;

const EXAMPLES: &str = "\
Examples:
  tidewater-bench latency
  tidewater-bench latency --op pull --table sparse --sizes 256 --group 64
  tidewater-bench latency --transport tcp --sizes 8:4K:x2 --json latency.json
  tidewater-bench bandwidth --op push --table dense --sizes 64K:16M:x4
  tidewater-bench latency --op pull --table rows --sizes 256 --batch 64 --mode hogwild

Exit codes: 0 measured and every value right, 1 a wrong value, 2 usage, 3 environment, 4 peer.";

/// Push and pull latency and bandwidth, values checked while measuring.
#[derive(Debug, Parser)]
#[command(name = "tidewater-bench", version, after_help = EXAMPLES)]
pub struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub command: Command,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Time of a call: a pull until it returns, a push until it is applied
    #[command(after_help = EXAMPLES)]
    Latency(Options),
    /// Bytes a second: pulls back to back, a window of pushes under way
    #[command(after_help = EXAMPLES)]
    Bandwidth(Options),
    /// A server process of a run
    #[command(name = crate::server::COMMAND, hide = true)]
    Server,
}

/// Which calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpChoice {
    /// Pulls.
    Pull,
    /// Pushes.
    Push,
    /// Both.
    All,
}

/// Which tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TableChoice {
    /// A dense table by ranges.
    Dense,
    /// A dense table by rows.
    Rows,
    /// Rows by key.
    Sparse,
    /// All three.
    All,
}

/// How pulls read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Read one-sidedly and verified.
    Consistent,
    /// Read one-sidedly, unverified.
    Hogwild,
    /// Copied together by the server.
    Gather,
}

impl Mode {
    /// The client's word for it.
    pub const fn pull_mode(self) -> PullMode {
        match self {
            Self::Consistent => PullMode::Consistent,
            Self::Hogwild => PullMode::Hogwild,
            Self::Gather => PullMode::Gather,
        }
    }
}

/// What carries the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Shared memory.
    Shm,
    /// TCP over loopback.
    Tcp,
    /// RDMA, through the NIC and back. Needs a build with the cargo feature verbs-dlopen or verbs,
    /// and a device
    Verbs,
}

impl Transport {
    /// The contract's word for it.
    pub const fn kind(self) -> TransportKind {
        match self {
            Self::Shm => TransportKind::Shm,
            Self::Tcp => TransportKind::Tcp,
            Self::Verbs => TransportKind::Verbs,
        }
    }
}

/// Options of a measurement.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Bytes of a message: a list of sizes and ranges first:last:xF or first:last:+S. Of tables by
    /// rows it is the row; what is longer than 64K is several rows
    #[arg(long, default_value = "8:16M:x2", value_name = "LIST")]
    pub sizes: Sizes,
    /// Calls to measure
    #[arg(long, value_enum, default_value = "all")]
    pub op: OpChoice,
    /// Tables to measure them on
    #[arg(long, value_enum, default_value = "all")]
    pub table: TableChoice,
    /// How pulls read
    #[arg(long, value_enum, default_value = "consistent")]
    pub mode: Mode,
    /// What carries the bytes
    #[arg(long, value_enum, default_value = "shm")]
    pub transport: Transport,
    /// RDMA device of servers and client [default: the one that has the address 127.0.0.1]
    #[arg(long, value_name = "NAME[:PORT]")]
    pub rdma_device: Option<RdmaDevice>,
    /// Samples of each size [default: as many as the duration allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iters: Option<u64>,
    /// Longest time for each size, checks of values included
    #[arg(long, value_parser = parse_duration, default_value = "250ms", value_name = "TIME")]
    pub duration: Duration,
    /// Samples before measuring begins
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub warmup: u64,
    /// Messages of one call: rows by key or index, or a range as many times as long
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub batch: u64,
    /// Calls timed together (latency): a call shorter than the timer's own cost needs it
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub group: u64,
    /// Calls under way or back to back (bandwidth); fewer when they are more than 64 MiB
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub window: u64,
    /// Server processes
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub servers: u32,
    /// Applier threads of each server
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub appliers: u16,
    /// Pins the client's thread to a core
    #[arg(long, value_name = "CORE")]
    pub pin: Option<usize>,
    /// Seed of keys and values
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Writes the results as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes the results as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Stores one wrong value in each table, to show that the check notices it
    #[arg(long, hide = true)]
    pub plant_wrong: bool,
}

/// `250ms`, `2s`, `500us`; a bare number is seconds.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("\"{text}\" is no time: use 250ms, 2s or 500us");
    let (number, unit) = if let Some(n) = text.strip_suffix("ms") {
        (n, 1e-3)
    } else if let Some(n) = text.strip_suffix("us") {
        (n, 1e-6)
    } else {
        (text.strip_suffix('s').unwrap_or(text), 1.0)
    };
    let seconds = number.parse::<f64>().map_err(|_| bad())? * unit;
    if !(1e-6..=86_400.0).contains(&seconds) {
        return Err(bad());
    }
    Ok(Duration::from_secs_f64(seconds))
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
        assert_eq!(o.sizes.0.len(), 22);
    }

    #[test]
    fn times() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("20us"), Ok(Duration::from_micros(20)));
        for bad in ["", "x", "-1s", "0", "nan", "inf", "1e9s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}

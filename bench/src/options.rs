//! Options of the command line that several subcommands share.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tidewater::PullMode;
use tidewater_lanes::fabric::TransportKind;
use tidewater_launch::{FabricSettings, RdmaDevice, TransportChoice};

/// Call directions to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpChoice {
    /// Only pulls are measured.
    Pull,
    /// Only pushes are measured.
    Push,
    /// Pulls and pushes are measured.
    All,
}

/// Kinds of tables to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TableChoice {
    /// Dense table addressed by ranges.
    Dense,
    /// Dense table addressed by rows.
    Rows,
    /// Sparse table addressed by keys.
    Sparse,
    /// All three kinds of tables.
    All,
}

/// Read mode of pulls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One-sided read, checksums verified.
    Consistent,
    /// One-sided read, not verified.
    Hogwild,
    /// Gathered and copied by the server.
    Gather,
}

impl Mode {
    /// The client's [`PullMode`] of this mode.
    pub const fn pull_mode(self) -> PullMode {
        match self {
            Self::Consistent => PullMode::Consistent,
            Self::Hogwild => PullMode::Hogwild,
            Self::Gather => PullMode::Gather,
        }
    }

    /// Name of this mode on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Consistent => "consistent",
            Self::Hogwild => "hogwild",
            Self::Gather => "gather",
        }
    }
}

/// Transport that carries the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Shared memory of one host.
    Shm,
    /// TCP over the loopback interface.
    Tcp,
    /// RDMA through the NIC and back; needs a device and a build with the cargo feature verbs-dlopen or
    /// verbs
    Verbs,
}

impl Transport {
    /// The protocol's [`TransportKind`] of this transport.
    pub const fn kind(self) -> TransportKind {
        match self {
            Self::Shm => TransportKind::Shm,
            Self::Tcp => TransportKind::Tcp,
            Self::Verbs => TransportKind::Verbs,
        }
    }

    /// The launcher's [`TransportChoice`] of this transport.
    pub const fn choice(self) -> TransportChoice {
        match self {
            Self::Shm => TransportChoice::Shm,
            Self::Tcp => TransportChoice::Tcp,
            Self::Verbs => TransportChoice::Verbs,
        }
    }

    /// Kind of rooflines for this transport; `None` for RDMA, which has none in this program.
    pub const fn wire(self) -> Option<Wire> {
        match self {
            Self::Shm => Some(Wire::Memory),
            Self::Tcp => Some(Wire::Socket),
            // perftest is a separate program; `compare` runs it.
            Self::Verbs => None,
        }
    }
}

/// Medium of a transport, which selects its rooflines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Memory of one host: copies, gathers, pings.
    Memory,
    /// A loopback socket: echoes and streams.
    Socket,
}

/// Options that every measurement takes.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Transport that carries the bytes
    #[arg(long, value_enum, default_value = "shm")]
    pub transport: Transport,
    /// RDMA ports of servers and client [default: TIDEWATER_TEST_RDMA, or the one with the address
    /// TIDEWATER_TEST_ADDRESS, or 127.0.0.1, first]
    #[arg(long, value_name = "NAMES")]
    pub rdma_device: Option<RdmaDevice>,
    /// Settings of queue pairs
    #[command(flatten)]
    pub fabric: FabricSettings,
    /// Applier threads of each server
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub appliers: u16,
    /// Samples of each size [default: as many as the duration allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iters: Option<u64>,
    /// Longest time for each size, checks of values included
    #[arg(long, value_parser = parse_duration, default_value = "250ms", value_name = "TIME")]
    pub duration: Duration,
    /// Warm-up samples before the measurement
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub warmup: u64,
    /// Pin the client's thread to this core
    #[arg(long, value_name = "CORE")]
    pub pin: Option<usize>,
    /// Pin all servers (and the remote ends of rooflines) to this core
    #[arg(long, value_name = "CORE")]
    pub pin_servers: Option<usize>,
    /// Seed of keys and values
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Skip the roofline of each size (the machine's limit without Tidewater), the base of eff%
    #[arg(long = "no-ceiling")]
    pub no_roofline: bool,
    /// Fail (exit 1) if a 99th percentile exceeds this many microseconds
    #[arg(long, value_name = "US", value_parser = parse_limit)]
    pub max_p99: Option<f64>,
    /// Fail (exit 1) if a row moves fewer megabytes (10^6) a second
    #[arg(long, value_name = "MB/S", value_parser = parse_limit)]
    pub min_bw: Option<f64>,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the results as CSV to this file
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Store one wrong value in each table, to show that the check detects it
    #[arg(long, hide = true)]
    pub plant_wrong: bool,
    /// Stop a server once for this long in the middle of each size, to show that an open loop detects it
    #[arg(long, hide = true, value_parser = parse_duration, value_name = "TIME")]
    pub plant_pause: Option<Duration>,
}

impl Common {
    /// The defaults of the command line with this transport and seed, for a subcommand with options of its own.
    pub const fn plain(transport: Transport, seed: u64) -> Self {
        Self {
            transport,
            rdma_device: None,
            fabric: FabricSettings::UNSET,
            appliers: 1,
            iters: None,
            duration: Duration::from_millis(250),
            warmup: 20,
            pin: None,
            pin_servers: None,
            seed,
            no_roofline: false,
            max_p99: None,
            min_bw: None,
            json: None,
            csv: None,
            plant_wrong: false,
            plant_pause: None,
        }
    }
}

/// Parses a duration: `250ms`, `2s`, `500us`; a bare number is in seconds.
///
/// # Errors
/// A text that names the accepted forms; also for a time below 1 us or above 24 h.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
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

/// Parses a finite number above zero.
///
/// # Errors
/// A text that names the accepted form.
pub fn parse_limit(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    let number = number.filter(|n| n.is_finite() && *n > 0.0);
    number.ok_or_else(|| format!("\"{text}\" is no number above 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("20us"), Ok(Duration::from_micros(20)));
        for bad in ["", "x", "-1s", "0", "nan", "inf", "1e9s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_are_above_zero() {
        assert_eq!(parse_limit("1.5"), Ok(1.5));
        for bad in ["", "0", "-1", "nan", "inf"] {
            assert!(parse_limit(bad).is_err(), "{bad}");
        }
    }
}

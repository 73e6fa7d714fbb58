//! Where figures come from: what was built, on which machine it ran, with which options.

use std::time::Duration;

use serde::Serialize;

use crate::args::Options;
use crate::measure::What;

/// Everything that a reader needs to judge or repeat a run.
#[derive(Debug, Clone, Serialize)]
pub struct Fingerprint {
    /// Version of the program.
    pub version: &'static str,
    /// Commit it was built from, if it was in a repository.
    pub commit: &'static str,
    /// Compiler.
    pub rustc: &'static str,
    /// Cargo profile, and what slows it down.
    pub profile: String,
    /// Additional compiler flags.
    pub rustflags: &'static str,
    /// Processor.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Kernel.
    pub kernel: String,
    /// Frequency governor.
    pub governor: String,
    /// Runnable threads of the machine over 1, 5 and 15 minutes, before the run.
    pub load: String,
    /// What carried the bytes.
    pub transport: String,
    /// Server processes.
    pub servers: u32,
    /// Applier threads of each.
    pub appliers: u16,
    /// Bytes of each lane's ring.
    pub ring_bytes: usize,
    /// Core of the client's thread.
    pub pinned: String,
    /// Seed of keys and values.
    pub seed: u64,
    /// Nanoseconds of a look at the clock, taken off each sample.
    pub timer_ns: f64,
    /// Command line.
    pub command: String,
    /// What was measured.
    pub what: What,
}

impl Fingerprint {
    /// Of this process.
    pub fn take(what: What, options: &Options, ring_bytes: usize, timer_cost: Duration) -> Self {
        let checks = if cfg!(debug_assertions) {
            " (debug assertions and overflow checks on: figures are not to be compared)"
        } else {
            ""
        };
        let flags = env!("TIDEWATER_RUSTFLAGS");
        let name = rustix::system::uname();
        let text = |t: &std::ffi::CStr| t.to_string_lossy().into_owned();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("TIDEWATER_COMMIT"),
            rustc: env!("TIDEWATER_RUSTC"),
            profile: format!("{}{checks}", env!("TIDEWATER_PROFILE")),
            rustflags: if flags.is_empty() { "none" } else { flags },
            cpu: cpu(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: format!("{} {}", text(name.sysname()), text(name.release())),
            governor: line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            load: load(),
            transport: options.transport.kind().to_string(),
            servers: options.servers,
            appliers: options.appliers,
            ring_bytes,
            pinned: options
                .pin
                .map_or("no".into(), |core| format!("core {core}")),
            seed: options.seed,
            timer_ns: timer_cost.as_secs_f64() * 1e9,
            command: std::env::args().collect::<Vec<_>>().join(" "),
            what,
        }
    }

    /// As name and value, in the order they are printed.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        vec![
            ("command", self.command.clone()),
            (
                "build",
                format!(
                    "version {}, commit {}, {}, profile {}, flags {}",
                    self.version, self.commit, self.rustc, self.profile, self.rustflags
                ),
            ),
            (
                "machine",
                format!(
                    "{}, {} cores, {}, governor {}, load {}",
                    self.cpu, self.cores, self.kernel, self.governor, self.load
                ),
            ),
            (
                "cluster",
                format!(
                    "transport {}, {} servers of {} appliers, ring {} bytes, client pinned: {}",
                    self.transport, self.servers, self.appliers, self.ring_bytes, self.pinned
                ),
            ),
            ("seed", self.seed.to_string()),
            (
                "timer",
                format!("{:.1} ns a look, taken off each sample", self.timer_ns),
            ),
        ]
    }
}

fn line_of(path: &str) -> String {
    let text = std::fs::read_to_string(path);
    text.map_or_else(|_| "unreadable".into(), |t| t.trim().to_owned())
}

fn load() -> String {
    let line = line_of("/proc/loadavg");
    let figures: Vec<&str> = line.split_whitespace().take(3).collect();
    figures.join(" ")
}

fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "model name").then(|| value.trim().to_owned())
    });
    model.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

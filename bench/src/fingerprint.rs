//! Fingerprint of the figures: the build, the machine, and the options of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidewater_protocol::limits::RING_BYTES_DEFAULT;
use tidewater_topology::Topology;

use crate::options::{Common, Wire};

/// Everything that a reader needs to judge or repeat a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Version of the program.
    pub version: String,
    /// Commit of the build; `unknown` if it was not made in a repository.
    pub commit: String,
    /// Version of the compiler.
    pub rustc: String,
    /// Cargo profile, and the build settings that slow it down.
    pub profile: String,
    /// Additional flags of the compiler, or `none`.
    pub rustflags: String,
    /// Model name of the processor.
    pub cpu: String,
    /// Number of cores this process may use.
    pub cores: usize,
    /// Number of the machine's NUMA nodes.
    pub numa_nodes: usize,
    /// Version of the kernel.
    pub kernel: String,
    /// Frequency governor of core 0; `unreadable` if the kernel names none.
    pub governor: String,
    /// Clock source of the kernel.
    pub clocksource: String,
    /// Setting of transparent huge pages for shared memory.
    pub huge_pages: String,
    /// Load average of the machine over 1, 5 and 15 minutes, before the run.
    pub load: String,
    /// Transport that carried the bytes.
    pub transport: String,
    /// Network interface of the transport: `none`, the loopback interface, or a reference to the server's log.
    pub nic: String,
    /// MTU of the loopback interface, bytes; 0 if the transport is not TCP.
    pub mtu: u64,
    /// Number of server processes; the maximum if a run varies them.
    pub servers: u32,
    /// Applier threads of each server.
    pub appliers: u16,
    /// Number of workers; the maximum if a run varies them.
    pub workers: u32,
    /// Bytes of each lane's ring: the default, not a measured value.
    pub ring_bytes: usize,
    /// Cores that the client's thread and the servers are pinned to, as the options name them; `no` for none.
    pub pinned: String,
    /// Seed of keys and values.
    pub seed: u64,
    /// Cost of a clock reading, nanoseconds; subtracted from each sample.
    pub timer_ns: f64,
    /// Command line of the run.
    pub command: String,
    /// Description of the measurement.
    pub what: String,
}

impl Fingerprint {
    /// Collects the fingerprint of this process. `timer` is the cost of a clock reading.
    pub fn take(what: &str, common: &Common, servers: u32, workers: u32, timer: Duration) -> Self {
        let checks = if cfg!(debug_assertions) {
            " (debug assertions and overflow checks on: slower than a release)"
        } else {
            ""
        };
        let flags = env!("TIDEWATER_RUSTFLAGS");
        let name = rustix::system::uname();
        let text = |t: &std::ffi::CStr| t.to_string_lossy().into_owned();
        let (nic, mtu) = match common.transport.wire() {
            Some(Wire::Memory) => ("none".to_owned(), 0),
            Some(Wire::Socket) => {
                let mtu = line_of("/sys/class/net/lo/mtu").parse().unwrap_or(0);
                ("lo (loopback)".to_owned(), mtu)
            }
            None => ("see the server's log".to_owned(), 0),
        };
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: env!("TIDEWATER_COMMIT").into(),
            rustc: env!("TIDEWATER_RUSTC").into(),
            profile: format!("{}{checks}", env!("TIDEWATER_PROFILE")),
            rustflags: if flags.is_empty() { "none" } else { flags }.into(),
            cpu: cpu(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            numa_nodes: Topology::read().nodes.len().max(1),
            kernel: format!("{} {}", text(name.sysname()), text(name.release())),
            governor: line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            clocksource: line_of(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
            huge_pages: chosen(&line_of(
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
            )),
            load: load(),
            transport: common.transport.kind().to_string(),
            nic,
            mtu,
            servers,
            appliers: common.appliers,
            workers,
            ring_bytes: RING_BYTES_DEFAULT,
            pinned: pinned(common),
            seed: common.seed,
            timer_ns: timer.as_secs_f64() * 1e9,
            command: std::env::args().collect::<Vec<_>>().join(" "),
            what: what.into(),
        }
    }

    /// The head of what a run prints: a title and the fingerprint, each line after a `#`.
    pub fn header(&self, title: &str) -> String {
        let lines = self.lines().into_iter();
        let lines = lines.map(|(name, value)| format!("# {name}: {value}\n"));
        format!("# Tidewater {title}\n") + &lines.collect::<String>()
    }

    /// Returns name and value pairs, in the order they are printed.
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
                    "{}, {} cores, {} NUMA nodes, {}, governor {}, clock {}, huge pages of shared \
                     memory {}, load {}",
                    self.cpu,
                    self.cores,
                    self.numa_nodes,
                    self.kernel,
                    self.governor,
                    self.clocksource,
                    self.huge_pages,
                    self.load
                ),
            ),
            (
                "cluster",
                format!(
                    "transport {}, NIC {}, MTU {}, {} servers of {} appliers, {} workers, ring {} \
                     bytes, pinned: {}",
                    self.transport,
                    self.nic,
                    self.mtu,
                    self.servers,
                    self.appliers,
                    self.workers,
                    self.ring_bytes,
                    self.pinned
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

fn pinned(common: &Common) -> String {
    match (common.pin, common.pin_servers) {
        (None, None) => "no".into(),
        (Some(client), None) => format!("client to core {client}"),
        (None, Some(servers)) => format!("servers to core {servers}"),
        (Some(client), Some(servers)) => {
            format!("client to core {client}, servers to core {servers}")
        }
    }
}

fn line_of(path: &str) -> String {
    let text = std::fs::read_to_string(path);
    text.map_or_else(|_| "unreadable".into(), |t| t.trim().to_owned())
}

/// The item in brackets in a list like `always [never] advise`; without brackets the list itself.
fn chosen(list: &str) -> String {
    let inside = list
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or_else(|| list.to_owned(), |(one, _)| one.to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_of_a_list_is_in_brackets() {
        assert_eq!(chosen("always within_size [advise] never"), "advise");
        assert_eq!(chosen("unreadable"), "unreadable");
    }
}

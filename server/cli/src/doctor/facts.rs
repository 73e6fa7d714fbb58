//! Facts read from a host in addition to its topology.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tidewater_topology::{RdmaDevice, Root, Topology};

/// Time limit for a connection over loopback.
const LOOPBACK_TIMEOUT: Duration = Duration::from_secs(2);
/// Bit of the capability that lifts the limit of locked memory.
const CAP_IPC_LOCK: u32 = 14;

/// Everything that was read from a host.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Machine {
    /// Name of the host.
    pub host: String,
    /// Version of its kernel, as `uname -r` prints it.
    pub kernel: String,
    /// NUMA nodes, cores, devices, hugepages.
    pub topology: Topology,
    /// Bytes that this process may lock, and so register with a NIC (`ulimit -l`).
    pub memlock: Limit,
    /// Whether this process may exceed that limit (CAP_IPC_LOCK).
    pub ipc_lock: bool,
    /// Files that this process may open (`ulimit -n`).
    pub open_files: Limit,
    /// Clock source of the kernel.
    pub clock: Clock,
    /// Bytes of `/dev/shm`; `None` if it is not mounted, 0 if its size is unknown.
    pub dev_shm: Option<u64>,
    /// Why TCP over loopback fails, if it was tried and failed.
    pub loopback_error: Option<String>,
    /// By RDMA device: why this process cannot open it. A device that can be opened has no entry.
    pub rdma_denied: BTreeMap<String, String>,
    /// Folder of `sys` and `proc`.
    #[serde(skip)]
    pub root: PathBuf,
}

/// A resource limit of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// The limit was not read.
    #[default]
    Unknown,
    /// The limit has this value.
    At(u64),
    /// There is no limit.
    Unlimited,
}

/// Clock sources of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Clock {
    /// Clock source in use; empty if unknown.
    pub current: String,
    /// Clock sources that could be used.
    pub available: Vec<String>,
}

impl Machine {
    /// Reads this host. Cost: some hundred small files, and one connection over loopback.
    pub fn read() -> Self {
        Self::read_at(Path::new("/"))
    }

    /// Reads a host from copies of `sys`, `proc` and `dev` in `folder`. Skips what needs a live host:
    /// the loopback.
    pub fn read_at(folder: &Path) -> Self {
        let root = Root::new(folder);
        let topology = Topology::read_from(&root);
        let limits = root.text("proc/self/limits").unwrap_or_default();
        let denied = |rdma: &RdmaDevice| Some((rdma.name.clone(), rdma.denied.clone()?));
        let text = |path: &str| root.text(path).unwrap_or_default();
        let clock = "sys/devices/system/clocksource/clocksource0";
        let words = |text: String| text.split_whitespace().map(str::to_owned).collect();
        Self {
            host: text("proc/sys/kernel/hostname"),
            kernel: text("proc/sys/kernel/osrelease"),
            memlock: limit(&limits, "Max locked memory"),
            ipc_lock: capability(&text("proc/self/status"), CAP_IPC_LOCK),
            open_files: limit(&limits, "Max open files"),
            clock: Clock {
                current: text(&format!("{clock}/current_clocksource")),
                available: words(text(&format!("{clock}/available_clocksource"))),
            },
            dev_shm: dev_shm(&text("proc/self/mounts"), &text("proc/meminfo")),
            loopback_error: match root.is_live() {
                true => loopback().err().map(|error| error.to_string()),
                false => None,
            },
            rdma_denied: topology.rdmas.iter().filter_map(denied).collect(),
            topology,
            root: folder.into(),
        }
    }

    /// Major and minor version of the kernel.
    pub fn kernel_version(&self) -> Option<(u32, u32)> {
        let mut parts = self.kernel.split(|c: char| !c.is_ascii_digit());
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

/// The soft limit in a line of `/proc/self/limits`.
fn limit(limits: &str, name: &str) -> Limit {
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    match line.and_then(|rest| rest.split_whitespace().next()) {
        Some("unlimited") => Limit::Unlimited,
        Some(number) => number.parse().map_or(Limit::Unknown, Limit::At),
        None => Limit::Unknown,
    }
}

/// Whether a capability is effective.
fn capability(status: &str, bit: u32) -> bool {
    let mut lines = status.lines();
    let mask =
        lines.find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> bit & 1 == 1)
}

/// The size of `/dev/shm`: its mount option, or half of the memory.
fn dev_shm(mounts: &str, meminfo: &str) -> Option<u64> {
    let mount = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "/dev/shm", _, options, ..] = words[..] else {
            return None;
        };
        let size = options
            .split(',')
            .find_map(|option| option.strip_prefix("size="));
        Some(size.and_then(size_of_mount))
    };
    let half = || {
        let rest = meminfo.split_once("MemTotal:")?.1;
        let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
        Some(kib.saturating_mul(512))
    };
    // The last mount covers the earlier ones.
    let size = mounts.lines().filter_map(mount).next_back()?;
    Some(size.or_else(half).unwrap_or(0))
}

/// Parses `65536k`, as the kernel writes the size of a tmpfs.
fn size_of_mount(text: &str) -> Option<u64> {
    let (number, shift) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 10),
        b'm' => (&text[..text.len() - 1], 20),
        b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Connects to a listener of its own.
fn loopback() -> io::Result<()> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    TcpStream::connect_timeout(&listener.local_addr()?, LOOPBACK_TIMEOUT)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\n\
                      Max open files            20000                20000                files\n\
                      Max locked memory         unlimited            unlimited            bytes\n";
        assert_eq!(limit(limits, "Max open files"), Limit::At(20_000));
        assert_eq!(limit(limits, "Max locked memory"), Limit::Unlimited);
        assert_eq!(limit(limits, "Max processes"), Limit::Unknown);
        assert!(capability("CapEff:\t0000000000004000", CAP_IPC_LOCK));
        assert!(!capability("CapEff:\t0000000000003fff", CAP_IPC_LOCK));
        assert!(!capability("", CAP_IPC_LOCK));
    }

    #[test]
    fn the_size_of_dev_shm() {
        let meminfo = "MemTotal:       2048 kB\nMemFree: 1 kB";
        let of = |mounts| dev_shm(mounts, meminfo);
        assert_eq!(
            of("tmpfs /dev/shm tmpfs rw,nosuid,size=65536k 0 0"),
            Some(64 << 20)
        );
        assert_eq!(of("tmpfs /dev/shm tmpfs rw 0 0"), Some(1 << 20));
        assert_eq!(
            of("a /dev/shm tmpfs rw 0 0\nb /dev/shm tmpfs size=4m 0 0"),
            Some(4 << 20)
        );
        assert_eq!(of("proc /proc proc rw 0 0"), None);
        assert_eq!(of("tmpfs /dev/shm tmpfs size=k 0 0"), Some(1 << 20));
        assert_eq!(size_of_mount("99999999999999999999g"), None);
    }

    #[test]
    fn this_machine_talks_to_itself() {
        let machine = Machine::read();
        assert_eq!(machine.loopback_error, None);
        assert!(
            machine
                .kernel_version()
                .is_some_and(|version| version > (3, 0))
        );
        assert_ne!(machine.open_files, Limit::Unknown);
    }
}

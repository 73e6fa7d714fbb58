//! The RDMA ports that a session may use, and the pairs of ports that do not carry packets.
//!
//! The client offers its ports when it attaches, and the server selects the first pair of ports. If nothing
//! comes through, the client attaches again and names the pair as failed. A process remembers failed pairs
//! for [`VERBS_FAILED_PATH_TTL`], so that its other sessions do not wait for their retries.

use std::net::Ipv6Addr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tidewater_protocol::limits::{
    VERBS_FAILED_PATH_TTL, VERBS_FAILED_PATHS_MAX, VERBS_PATHS_TRIED_MAX,
};
use tidewater_protocol::wire::control::{VerbsPath, VerbsPort};
use tidewater_runtime::clock;
use tidewater_topology::{PortCandidate, RankedPorts};

/// Pairs of ports that failed in this process, the oldest first.
static FAILED: Mutex<Vec<(VerbsPath, Instant)>> = Mutex::new(Vec::new());

/// A pair of ports that failed, and the reason.
#[derive(Debug)]
struct FailedPath {
    path: VerbsPath,
    reason: String,
}

/// A device of this host that cannot be used, and the reason.
#[derive(Debug)]
struct UnusableDevice {
    name: String,
    reason: String,
}

/// Ports and paths of a session that is being opened over verbs.
#[derive(Debug, Default)]
pub struct Paths {
    ports: Vec<PortCandidate>,
    /// Pairs that failed in earlier sessions of this process.
    remembered: Vec<VerbsPath>,
    /// Pairs that failed in this session.
    failed: Vec<FailedPath>,
    /// The pair that the server has selected.
    selected: Option<VerbsPath>,
    unusable: Vec<UnusableDevice>,
    /// Whether the attempt failed at this host's device, before the pair was tried.
    failed_here: bool,
}

impl Paths {
    /// Starts with what the process remembers.
    pub fn new() -> Self {
        let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        failed.retain(|(_, at)| now.saturating_duration_since(*at) < VERBS_FAILED_PATH_TTL);
        Self {
            remembered: failed.iter().map(|(path, _)| *path).collect(),
            ..Self::default()
        }
    }

    /// Sets the ports of this host, the best first. Those of devices that could not be used are left out.
    pub fn set_ports(&mut self, ranked: RankedPorts) {
        self.ports = ranked.candidates;
        let unusable = &self.unusable;
        self.ports
            .retain(|port| unusable.iter().all(|device| device.name != port.device));
    }

    /// Notes that the attempt failed at the device of the selected port, and says nothing about the pair.
    pub const fn fail_here(&mut self) {
        self.failed_here = true;
    }

    /// The ports as the server sees them; of a session with lanes only the one that they use.
    pub fn offers(&self) -> Vec<VerbsPort> {
        match self.port() {
            Some(port) => vec![port.offer()],
            None => self.ports.iter().map(PortCandidate::offer).collect(),
        }
    }

    /// The pairs that the server is not to select.
    pub fn failed(&self) -> Vec<VerbsPath> {
        let own = self.failed.iter().map(|failed| failed.path);
        let all = own.chain(self.remembered.iter().copied());
        all.take(VERBS_FAILED_PATHS_MAX).collect()
    }

    /// Notes the pair that the server has selected; returns this end's port. `None` if it is no offered one.
    pub fn select(&mut self, path: VerbsPath) -> Option<PortCandidate> {
        let port = self.port_of(path)?;
        self.selected = Some(path);
        Some(port)
    }

    /// This end's port of the selected pair.
    pub fn port(&self) -> Option<PortCandidate> {
        self.port_of(self.selected?)
    }

    fn port_of(&self, path: VerbsPath) -> Option<PortCandidate> {
        let mut ports = self.ports.iter();
        let port = ports.find(|port| port.gid.gid.octets() == path.client);
        port.cloned()
    }

    /// Handles the failure of an attempt: notes that the selected pair failed, or forgets remembered ones if
    /// there was no pair to select. After [`Self::fail_here`] it gives up the device instead of the pair, which
    /// is no try. Returns whether another attempt may succeed.
    pub fn may_try_again(&mut self, reason: &str) -> bool {
        let reason = reason.to_owned();
        if std::mem::take(&mut self.failed_here)
            && let Some(port) = self.port()
        {
            self.selected = None;
            self.ports.retain(|other| other.device != port.device);
            let name = port.device;
            self.unusable.push(UnusableDevice { name, reason });
            return !self.ports.is_empty();
        }
        if let Some(path) = self.selected.take() {
            self.failed.push(FailedPath { path, reason });
            let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
            failed.push((path, clock::now()));
            let surplus = failed.len().saturating_sub(VERBS_FAILED_PATHS_MAX);
            failed.drain(..surplus);
            return self.failed.len() < VERBS_PATHS_TRIED_MAX;
        }
        let is_any = !self.remembered.is_empty();
        let remembered = std::mem::take(&mut self.remembered);
        let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
        failed.retain(|(path, _)| !remembered.contains(path));
        is_any
    }

    /// The pairs and the devices that failed in this session, each with its reason; empty if none did.
    pub fn failures(&self) -> String {
        let failure = |FailedPath { path, reason }: &FailedPath| {
            let [from, to] =
                [path.client, path.server].map(|gid| Ipv6Addr::from(gid).to_canonical());
            format!("{from} to {to}: {reason}")
        };
        let unusable = self.unusable.iter();
        let unusable = unusable.map(|device| format!("{}: {}", device.name, device.reason));
        let all = self.failed.iter().map(failure).chain(unusable);
        all.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use tidewater_topology::{PortWish, Topology};

    use super::*;

    fn path(client: u8, server: u8) -> VerbsPath {
        VerbsPath {
            client: [client; 16],
            server: [server; 16],
        }
    }

    /// One test, because what a process remembers is shared.
    #[test]
    fn failed_paths_are_remembered_until_nothing_else_is_left() {
        let mut paths = Paths::new();
        paths.selected = Some(path(1, 2));
        assert!(paths.may_try_again("nothing comes through"));
        assert_eq!(paths.failed(), [path(1, 2)]);
        assert!(
            paths.failures().contains("101:101:") && paths.failures().contains("comes through")
        );
        assert!(
            !paths.may_try_again("no pair is left"),
            "nothing is remembered"
        );

        let mut other = Paths::new();
        assert_eq!(other.failed(), [path(1, 2)]);
        assert!(other.failures().is_empty(), "it has not tried the pair");
        assert!(
            other.may_try_again("no pair is left"),
            "the pair may work by now"
        );
        assert!(other.failed().is_empty() && Paths::new().failed().is_empty());

        for n in 0..VERBS_PATHS_TRIED_MAX {
            other.selected = Some(path(3, n as u8));
            let again = other.may_try_again("nothing comes through");
            assert_eq!(again, n + 1 < VERBS_PATHS_TRIED_MAX, "{n}");
        }
        assert_eq!(
            other.select(path(9, 9)),
            None,
            "a port that was not offered"
        );
    }

    /// Ports of a host with two InfiniBand devices, which are files of a folder.
    fn two_devices() -> RankedPorts {
        let folder = std::env::temp_dir().join(format!("tidewater-paths-{}", std::process::id()));
        for n in 0..2 {
            let port = format!("sys/class/infiniband/mlx5_{n}/ports/1");
            for (file, text) in [
                (format!("{port}/state"), "4: ACTIVE".to_owned()),
                (format!("{port}/link_layer"), "InfiniBand".to_owned()),
                (format!("{port}/rate"), "400 Gb/sec (4X NDR)".to_owned()),
                (
                    format!("{port}/gids/0"),
                    format!("fe80:0000:0000:0000:0000:0000:0000:000{}", n + 1),
                ),
                (
                    format!("sys/class/infiniband_verbs/uverbs{n}/ibdev"),
                    format!("mlx5_{n}"),
                ),
                (format!("dev/infiniband/uverbs{n}"), String::new()),
            ] {
                let file = folder.join(file);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            }
        }
        let ranked = Topology::read_at(&folder).rdma_ports(&PortWish::default());
        std::fs::remove_dir_all(folder).unwrap();
        ranked
    }

    #[test]
    fn a_device_that_cannot_be_used_is_given_up_and_no_pair() {
        let ranked = two_devices();
        assert_eq!(ranked.candidates.len(), 2, "{}", ranked.reasons());
        let gids = [0, 1].map(|n: usize| ranked.candidates[n].offer().gid);
        let to_server = |n: usize| VerbsPath {
            client: gids[n],
            server: [7; 16],
        };
        let mut paths = Paths::default();
        paths.set_ports(ranked.clone());
        for n in 0..2 {
            assert!(paths.select(to_server(n)).is_some());
            paths.fail_here();
            assert_eq!(paths.may_try_again("no memory"), n == 0, "{n}");
            assert!(paths.failed().is_empty(), "the pair was not tried");
            paths.set_ports(ranked.clone());
            assert_eq!(paths.offers().len(), 1 - n, "its ports are not offered");
        }
        assert!(paths.failures().contains("mlx5_1: no memory"));
    }
}

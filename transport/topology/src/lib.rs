//! The machine as this process sees it: NUMA nodes, cores, network devices, hugepages. Also the placement
//! of a server's threads and memory on it.
//!
//! All data comes from `/sys` and `/proc`, below a root that can be another folder. Tests build synthetic
//! machines, and `tidewater info --root` reads a copy of another machine. With the feature `hwloc`, cores
//! and nodes of the live machine come from hwloc instead; both give the same result.
//!
//! | module | holds |
//! |---|---|
//! | `sysfs` | small files, read within limits |
//! | `cores` | nodes, cores, and the allowed ones |
//! | `hwloc` | the same from hwloc (feature) |
//! | `devices`, `addresses` | network and RDMA devices, ports, GIDs; addresses of devices |
//! | `fabric` | settings of RDMA queue pairs, and what a port says of them |
//! | `hugepages` | pools of hugepages |
//! | `place` | cores of appliers, node of memory |
//! | `rdma` | RDMA ports, ranked for a process |
//!
//! # Cost
//! Some ten small files a core and a device: a millisecond on a small machine, some ten on one with
//! hundreds of cores. Read it once, when a server starts.

#![forbid(unsafe_code)]

mod addresses;
mod cores;
mod devices;
mod fabric;
pub mod hostinfo;
mod hugepages;
#[cfg(feature = "hwloc")]
mod hwloc;
mod listen_address;
mod place;
mod rdma;
mod sysfs;

use std::path::Path;

use serde::Serialize;
use tidewater_protocol::limits::RDMA_GIDS_MAX;

pub use cores::{Cpu, NumaNode};
pub use devices::{
    Gid, GidKind, LinkLayer, NetDevice, PortState, RdmaDevice, RdmaPort, roce_mtu_of,
};
pub use fabric::{
    ClassFrom, Ece, FabricSettings, FlowLabel, GidIndex, NoPKey, PKey, PortSettings, RdmaRetries,
    RdmaTimeout, ServiceLevel, StaticRate, TrafficClass, longest_retry,
};
pub use hugepages::{HugePool, NodePool};
pub use listen_address::{NoInterface, interface_address, routable_addresses};
pub use place::{
    CoresWhy, Near, NearWhy, NoSuchNic, NodeWhy, Placement, Room, Wish, appliers_that_fit,
};
pub use rdma::{
    BadPortName, GidName, PortCandidate, PortName, PortNames, PortPair, PortWish, RankedPorts,
    SkippedPort, rank_pairs,
};
pub use sysfs::{Root, format_list};

/// Origin of the list of cores and nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Source {
    /// The kernel, by `/sys/devices/system`.
    Sysfs,
    /// The library hwloc (feature `hwloc`).
    Hwloc,
    /// No list exists; only the cores that this process may use are known.
    #[default]
    Affinity,
}

/// The parts of the machine that this process can see. Unreadable data is absent, never guessed.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct Topology {
    /// Origin of the list of cores and nodes.
    pub source: Source,
    /// NUMA nodes, by number. At least one, unless nothing at all is known.
    pub nodes: Vec<NumaNode>,
    /// Logical processors that are online, by number.
    pub cpus: Vec<Cpu>,
    /// Processor time that the cgroup grants, in processors; `None` is no limit.
    pub quota: Option<f64>,
    /// Network devices of the machine.
    pub nets: Vec<NetDevice>,
    /// RDMA devices of the machine.
    pub rdmas: Vec<RdmaDevice>,
    /// Pools of hugepages, the smaller pages first.
    pub hugepages: Vec<HugePool>,
}

/// Entries of a GID table that queue pairs can name: by 8 bits.
const GIDS_NAMEABLE: usize = 256;

impl Topology {
    /// Reads the topology of this machine.
    pub fn read() -> Self {
        Self::read_at(Path::new("/"))
    }

    /// Reads the machine with `sys` and `proc` in the folder `root`.
    pub fn read_at(root: &Path) -> Self {
        Self::read_from(&Root::new(root))
    }

    /// Reads the machine of this root.
    pub fn read_from(root: &Root) -> Self {
        let (source, mut nodes, mut cpus) = shape(root);
        let allowed = cores::allowed(root);
        let source = match &allowed.cpus {
            Some(ours) if cpus.is_empty() => {
                cpus = ours.iter().map(|&id| Cpu::alone(id)).collect();
                Source::Affinity
            }
            _ => source,
        };
        allowed.mark(&mut cpus, &mut nodes);
        let nets = devices::nets(root);
        Self {
            source,
            quota: cores::quota(root),
            rdmas: devices::rdmas(root, &nets, RDMA_GIDS_MAX),
            hugepages: hugepages::pools(root, &nodes),
            nodes,
            cpus,
            nets,
        }
    }

    /// Reads what the selection of an RDMA port needs: devices, their addresses, NUMA nodes with their
    /// processors. Cost: some ten small files a device, and no file a core.
    pub fn read_devices() -> Self {
        let root = Root::new(Path::new("/"));
        let mut nodes = cores::nodes(&root);
        let of_node = |node: &NumaNode| {
            let id = node.id;
            let cpus = node.cpus.iter();
            let cpus = cpus.map(move |&cpu| Cpu {
                node: id,
                ..Cpu::alone(cpu)
            });
            cpus.collect::<Vec<_>>()
        };
        let mut cpus: Vec<Cpu> = nodes.iter().flat_map(of_node).collect();
        cores::allowed(&root).mark(&mut cpus, &mut nodes);
        let nets = devices::nets(&root);
        Self {
            rdmas: devices::rdmas(&root, &nets, GIDS_NAMEABLE),
            nodes,
            cpus,
            nets,
            ..Self::default()
        }
    }

    /// Marks again which processors and nodes the calling thread may use. Cost: a file.
    pub fn mark_allowed(&mut self) {
        let allowed = cores::allowed(&Root::new(Path::new("/")));
        allowed.mark(&mut self.cpus, &mut self.nodes);
    }

    /// Logical processors that this process may use.
    pub fn allowed(&self) -> impl Iterator<Item = &Cpu> {
        self.cpus.iter().filter(|cpu| cpu.allowed)
    }

    /// Threads that can run at a time: the allowed processors, or fewer where the cgroup grants less time
    /// than that.
    pub fn usable(&self) -> usize {
        let allowed = self.allowed().count();
        match self.quota {
            Some(quota) => allowed.min((quota.ceil() as usize).max(1)),
            None => allowed,
        }
    }

    /// A node by its number.
    pub fn node(&self, id: u32) -> Option<&NumaNode> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Distance from node `from` to node `to`, as firmware reports it: 10 is the same node, 20 takes twice
    /// as long.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        let known = self.node(from).and_then(|node| {
            let at = self.nodes.iter().position(|other| other.id == to)?;
            node.distances.get(at).copied()
        });
        known.unwrap_or(if from == to { 10 } else { 20 })
    }

    /// The pool of pages of this size.
    pub fn pool(&self, page_bytes: u64) -> Option<&HugePool> {
        self.hugepages.iter().find(|p| p.page_bytes == page_bytes)
    }
}

/// Nodes and processors, not yet marked as allowed.
fn shape(root: &Root) -> (Source, Vec<NumaNode>, Vec<Cpu>) {
    #[cfg(feature = "hwloc")]
    if root.is_live()
        && let Some((nodes, cpus)) = hwloc::shape(root)
    {
        return (Source::Hwloc, nodes, cpus);
    }
    let nodes = cores::nodes(root);
    let cpus = cores::cpus(root, &nodes);
    (Source::Sysfs, nodes, cpus)
}

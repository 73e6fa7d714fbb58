//! Placement: cores of a server's appliers, and the node of its memory.
//!
//! All servers of a host compute the same order of the processors that they may use. Each takes those after
//! the ones of the servers before it:
//!
//! 1. nodes nearest to the NIC first, because each row that a client reads or writes passes between NIC and
//!    memory;
//! 2. on a node, one SMT sibling of each core first, because siblings share the units that an applier keeps
//!    busy; without a NIC no node is nearer, and those of all nodes come first;
//! 3. among those, one of each L3 cache in turn, so that appliers do not evict each other's rows.
//!
//! Where there are more appliers than processors no applier is pinned: the scheduler has better information
//! about runnable threads. Servers of one host that are given different NICs may compute different orders.
//! Two appliers can then meet on a core where the servers do not fit near their own NICs.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

use super::devices::{LinkLayer, PortState, RdmaDevice};
use super::{Cpu, Topology};

/// The NIC that a server should be near, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Near {
    /// Its name: an RDMA device if it has one, else the network device.
    pub device: Option<String>,
    /// Its node, if that is known.
    pub node: Option<u32>,
    /// Reason for this NIC.
    pub why: NearWhy,
}

/// Reason why a server should be near this NIC, or near none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NearWhy {
    /// The user named the NIC.
    Named,
    /// The NIC has the address that the server listens on.
    HasAddress(IpAddr),
    /// The server listens on all addresses, and all NICs that are up lie on one node.
    OnlyOne,
    /// The server serves only this host.
    Loopback,
    /// The server listens on all addresses, and NICs that are up lie on several nodes.
    Several,
    /// No device has the address.
    Unknown,
}

/// No device has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no network or RDMA device \"{name}\"; there are: {there}")]
#[non_exhaustive]
pub struct NoSuchNic {
    /// The name that was given.
    pub name: String,
    /// Names of the existing devices.
    pub there: String,
}

/// Threads to be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// Appliers of this server.
    pub appliers: u16,
    /// Number of this server among those of this host.
    pub local_rank: u32,
    /// Appliers of all servers of this host.
    pub local_appliers: u32,
    /// Client threads on this host, 0 if that is not known.
    pub local_clients: u32,
}

/// Placement of a server's threads and memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Placement {
    /// A processor for each applier, or none at all.
    pub cpus: Vec<u32>,
    /// Whether threads have to share processors.
    pub room: Room,
    /// Reason for these processors.
    pub cpus_why: CoresWhy,
    /// The node that memory should be on; `None` leaves it to the thread that touches a page first.
    pub node: Option<u32>,
    /// Reason for this node.
    pub node_why: NodeWhy,
}

/// Threads of a job compared with the processors that they may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Room {
    /// Some processors are left over.
    Ample,
    /// Each thread has one, and the control threads have none.
    Full,
    /// Threads outnumber the processors.
    Crowded,
}

/// Reason why appliers are pinned to these processors, or to none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CoresWhy {
    /// They are nearest to the NIC.
    NearNic,
    /// No NIC is known to be nearer to some than to others.
    InOrder,
    /// There are more appliers than processors.
    TooFew,
    /// The list of processors is not known.
    Unknown,
}

/// Reason why memory is wanted on this node, or on none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NodeWhy {
    /// The NIC is attached to it.
    OfNic,
    /// All appliers of the server are on it.
    OfAppliers,
    /// There is only one node.
    OnlyOne,
    /// Appliers are on several nodes, or pinned to none.
    Spread,
    /// The list of nodes is not known.
    Unknown,
    /// This process may not use the memory of this node.
    Forbidden(u32),
}

impl Topology {
    /// The NIC that a server should be near: the one named, or else the one that has the address it listens
    /// on. `NAME:PORT` names a port of an RDMA device.
    ///
    /// # Errors
    /// [`NoSuchNic`] when no device has the name.
    pub fn near(&self, named: Option<&str>, listens: Option<IpAddr>) -> Result<Near, NoSuchNic> {
        if let Some(name) = named {
            return self.named(name).ok_or_else(|| NoSuchNic {
                name: name.chars().take(64).collect(),
                there: self.devices(),
            });
        }
        Ok(match listens {
            Some(address) if address.is_loopback() => near(None, None, NearWhy::Loopback),
            Some(address) if !address.is_unspecified() => self.of_address(address),
            Some(_) => self.only_one(),
            None => near(None, None, NearWhy::Unknown),
        })
    }

    fn named(&self, name: &str) -> Option<Near> {
        let device = name.split_once(':').map_or(name, |(device, _)| device);
        let mut rdmas = self.rdmas.iter().filter(|rdma| rdma.name == device);
        let mut nets = self.nets.iter().filter(|net| net.name == name);
        let node = rdmas.next().map(|rdma| rdma.node);
        let node = node.or_else(|| nets.next().map(|net| net.node))?;
        Some(near(Some(name), node, NearWhy::Named))
    }

    /// All device names, for messages.
    fn devices(&self) -> String {
        let rdmas = self.rdmas.iter().map(|rdma| rdma.name.as_str());
        let nets = self.nets.iter().map(|net| net.name.as_str());
        let names: Vec<&str> = rdmas.chain(nets).take(32).collect();
        match names.is_empty() {
            true => "none".into(),
            false => names.join(", "),
        }
    }

    fn of_address(&self, address: IpAddr) -> Near {
        let why = NearWhy::HasAddress(address);
        let has = |rdma: &&RdmaDevice| {
            let gids = rdma.ports.iter().flat_map(|port| &port.gids);
            gids.into_iter().any(|gid| gid.address() == address)
        };
        if let Some(rdma) = self.rdmas.iter().find(has) {
            return near(Some(&rdma.name), rdma.node, why);
        }
        let net = self
            .nets
            .iter()
            .find(|net| net.addresses.contains(&address));
        match net {
            Some(net) => near(Some(&net.name), net.node, why),
            None => near(None, None, NearWhy::Unknown),
        }
    }

    /// The NIC if there is one; without its name, if there are several on one node.
    fn only_one(&self) -> Near {
        let active = |rdma: &&RdmaDevice| {
            let mut ports = rdma.ports.iter();
            ports.any(|port| port.state == PortState::Active && port.link != LinkLayer::Unknown)
        };
        let rdmas = self.rdmas.iter().filter(active);
        let mut nics: Vec<_> = rdmas.map(|rdma| (&rdma.name, rdma.node)).collect();
        if nics.is_empty() {
            let nets = self.nets.iter().filter(|net| net.up && net.hardware);
            nics = nets.map(|net| (&net.name, net.node)).collect();
        }
        match nics[..] {
            [] => near(None, None, NearWhy::Unknown),
            [(name, node)] => near(Some(name), node, NearWhy::OnlyOne),
            [(_, node), ref others @ ..] if others.iter().all(|(_, other)| *other == node) => {
                near(None, node, NearWhy::OnlyOne)
            }
            _ => near(None, None, NearWhy::Several),
        }
    }

    /// Places the threads and the memory of a server.
    pub fn place(&self, wish: Wish, near: &Near) -> Placement {
        let order = self.order(near.node);
        let appliers = wish.local_appliers.max(u32::from(wish.appliers)) as usize;
        let usable = self.usable();
        let room = match (appliers + wish.local_clients as usize).cmp(&usable) {
            std::cmp::Ordering::Less => Room::Ample,
            std::cmp::Ordering::Equal => Room::Full,
            std::cmp::Ordering::Greater => Room::Crowded,
        };
        let first = wish.local_rank as usize * usize::from(wish.appliers);
        let (cpus, cpus_why) = if order.is_empty() {
            (Vec::new(), CoresWhy::Unknown)
        } else if appliers > usable {
            (Vec::new(), CoresWhy::TooFew)
        } else {
            let turn = order.iter().cycle().skip(first % order.len());
            let cpus = turn.take(usize::from(wish.appliers)).map(|cpu| cpu.id);
            let why = match near.node {
                Some(_) if self.nodes.len() > 1 => CoresWhy::NearNic,
                _ => CoresWhy::InOrder,
            };
            (cpus.collect(), why)
        };
        let (node, node_why) = self.memory_node(&cpus, near);
        Placement {
            cpus,
            room,
            cpus_why,
            node,
            node_why,
        }
    }

    /// The allowed processors in the order in which appliers get them.
    fn order(&self, near: Option<u32>) -> Vec<&Cpu> {
        let far = |cpu: &Cpu| near.map_or(0, |node| self.distance(node, cpu.node));
        // Ranks among those allowed: where a cgroup grants the second sibling only, it is the first.
        let (mut of_core, mut of_l3) = (BTreeMap::new(), BTreeMap::new());
        let mut next = |cpu: &Cpu| {
            let sibling = rank(&mut of_core, (cpu.node, cpu.core));
            (sibling, rank(&mut of_l3, (cpu.node, cpu.l3, sibling)))
        };
        let mut ranked: Vec<_> = self.allowed().map(|cpu| (cpu, next(cpu))).collect();
        let apart = |sibling: usize| if near.is_none() { sibling } else { 0 };
        ranked.sort_by_key(|&(cpu, ranks)| (far(cpu), apart(ranks.0), cpu.node, ranks, cpu.id));
        ranked.into_iter().map(|(cpu, _)| cpu).collect()
    }

    fn memory_node(&self, cpus: &[u32], near: &Near) -> (Option<u32>, NodeWhy) {
        match self.nodes.len() {
            0 => return (None, NodeWhy::Unknown),
            1 => return (None, NodeWhy::OnlyOne),
            _ => {}
        }
        let of = |id: &u32| self.cpus.iter().find(|cpu| cpu.id == *id).map(|c| c.node);
        let mut nodes = cpus.iter().map(of);
        let (node, why) = match (near.node, nodes.next().flatten()) {
            (Some(node), _) => (node, NodeWhy::OfNic),
            (None, Some(node)) if nodes.all(|other| other == Some(node)) => {
                (node, NodeWhy::OfAppliers)
            }
            _ => return (None, NodeWhy::Spread),
        };
        match self.node(node) {
            Some(known) if known.allowed => (Some(node), why),
            _ => (None, NodeWhy::Forbidden(node)),
        }
    }
}

/// Number of earlier entries with this key.
fn rank<K: Ord>(seen: &mut BTreeMap<K, usize>, key: K) -> usize {
    let count = seen.entry(key).or_insert(0);
    *count += 1;
    *count - 1
}

fn near(device: Option<&str>, node: Option<u32>, why: NearWhy) -> Near {
    let device = device.map(str::to_owned);
    Near { device, node, why }
}

impl fmt::Display for NearWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named => f.write_str("as named"),
            Self::HasAddress(address) => write!(f, "it has the address {address}"),
            Self::OnlyOne => f.write_str("every NIC that is up lies there"),
            Self::Loopback => f.write_str("only this host is served"),
            Self::Several => {
                f.write_str("NICs that are up lie on several nodes; name one by --nic")
            }
            Self::Unknown => f.write_str("none is known to have the address listened on"),
        }
    }
}

impl fmt::Display for CoresWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NearNic => "nearest to the NIC, one of each core first",
            Self::InOrder => "in order, one of each core first",
            Self::TooFew => "more appliers than processors: no thread is pinned",
            Self::Unknown => "it is not known which processors there are: no thread is pinned",
        })
    }
}

impl fmt::Display for NodeWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FIRST: &str = "where it is touched first, because";
        match self {
            Self::OfNic => f.write_str("the NIC is attached to it"),
            Self::OfAppliers => f.write_str("all appliers of the server are on it"),
            Self::OnlyOne => f.write_str("there is one node"),
            Self::Spread => write!(f, "{FIRST} appliers are apart"),
            Self::Unknown => write!(f, "{FIRST} no node is known"),
            Self::Forbidden(node) => write!(f, "{FIRST} node {node} is not ours"),
        }
    }
}

/// Default number of appliers of a server: half of the cores, shared among the servers of the host, 1 to 8.
pub fn appliers_that_fit(cores: usize, servers: u32) -> u16 {
    let share = cores / 2 / servers.max(1) as usize;
    u16::try_from(share.clamp(1, 8)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_cores_are_shared() {
        let known = [
            (64, 1, 8),
            (8, 1, 4),
            (8, 2, 2),
            (2, 1, 1),
            (1, 4, 1),
            (0, 0, 1),
        ];
        for (cores, servers, appliers) in known {
            assert_eq!(
                appliers_that_fit(cores, servers),
                appliers,
                "{cores} {servers}"
            );
        }
    }
}

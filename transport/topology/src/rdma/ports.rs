//! The RDMA ports of this host that a process can use, ranked.
//!
//! Ports of one rank of preference are ordered by rate, then by NUMA distance. Among equals the port that
//! carries the control connection comes first, then the order of names. The local rank rotates the equals,
//! so that the processes of a host use one port each. Reachability is a property of a pair of ports: see
//! [`rank_pairs`](super::rank_pairs).

use std::cmp::Reverse;
use std::net::IpAddr;

use tidewater_protocol::limits::VERBS_PORTS_MAX;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{VerbsLink, VerbsPort};

use super::names::{GidName, PortName, PortNames};
use super::warnings::warnings;
use crate::devices::{Gid, GidKind, LinkLayer, PKEY_NUMBER, PortState, RdmaDevice, RdmaPort};
use crate::{NetDevice, Topology};

/// GIDs of one port that are offered.
const GIDS_OF_PORT_MAX: usize = 4;
/// Ports or GIDs that a message lists.
const LISTED_MAX: usize = 8;
/// Full membership of a partition.
const PKEY_FULL: u16 = 0x8000;
/// The default partition, of which each Ethernet port is a full member.
const PKEY_DEFAULT: u16 = 0xffff;
/// Bits of the prefix of an InfiniBand subnet.
const IB_PREFIX_BITS: u8 = 64;
/// NUMA distance of a device on an unknown node: it counts as near.
const DISTANCE_UNKNOWN: u32 = 10;

/// What a process asks of its RDMA port.
#[derive(Debug, Clone, Copy, Default)]
pub struct PortWish<'a> {
    /// Local address of the control connection; `None` if there is none yet.
    pub control: Option<IpAddr>,
    /// Ports that the user permits; `None` permits all.
    pub names: Option<&'a PortNames>,
    /// Number of the process among those of its role on this host.
    pub local_rank: u32,
    /// Partition that an InfiniBand port must be in; `None` takes the first with full membership.
    pub pkey: Option<u16>,
    /// The only GID index of each port; overrides the GIDs of `names`. `None` takes those.
    pub gid_index: Option<u8>,
}

/// A port of this host, with one of its GIDs, that connections can use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCandidate {
    /// Name of the device.
    pub device: String,
    /// Number of the port, counted from 1.
    pub port: u8,
    /// Link layer of the port: never unknown.
    pub link: LinkLayer,
    /// GID by which peers reach the port.
    pub gid: Gid,
    /// Prefix bits of the subnet of the GID.
    pub subnet_bits: u8,
    /// LID of the subnet manager; 0 on Ethernet.
    pub sm_lid: u16,
    /// Partition key of its queue pairs.
    pub pkey: u16,
    /// Rate in Mb/s, 0 if unknown.
    pub rate_mbps: u32,
    /// NUMA distance to the nearest processor that the calling thread may use; 10 is the same node.
    pub distance: u32,
    /// Whether the control connection uses the port.
    pub control: bool,
    /// Preference of the user, 0 first.
    pub tier: u8,
    /// Position of the port among those of the host, by name.
    pub position: u8,
}

/// A port that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedPort {
    /// Name of the device, with its port if it has one.
    pub name: String,
    /// Why it cannot be used.
    pub why: String,
    /// Whether the user named it and it does not exist.
    pub unknown: bool,
}

/// The ports of a host for a [`PortWish`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RankedPorts {
    /// Usable ports, the best first; at most [`VERBS_PORTS_MAX`].
    pub candidates: Vec<PortCandidate>,
    /// The other ports, or names without a port.
    pub skipped: Vec<SkippedPort>,
    /// Defects of the host's set-up that an operator should know.
    pub warnings: Vec<String>,
}

impl PortCandidate {
    /// The name of the port, as in `mlx5_0:1`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.device, self.port)
    }

    /// The port as the peer sees it.
    pub fn offer(&self) -> VerbsPort {
        VerbsPort {
            link: match self.link {
                LinkLayer::InfiniBand => VerbsLink::InfiniBand,
                LinkLayer::Ethernet | LinkLayer::Unknown => VerbsLink::Ethernet,
            },
            gid: self.gid.gid.octets(),
            subnet_bits: self.subnet_bits,
            sm_lid: self.sm_lid,
            pkey: self.pkey,
            rate_mbps: self.rate_mbps,
            tier: self.tier,
            position: self.position,
        }
    }
}

impl std::fmt::Display for PortCandidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gbps = f64::from(self.rate_mbps) / 1000.0;
        let Self { device, port, .. } = self;
        match self.link {
            LinkLayer::InfiniBand => write!(f, "{device}:{port} (InfiniBand, {gbps} Gb/s)"),
            _ => write!(
                f,
                "{device}:{port} (RoCE, {gbps} Gb/s, GID {} {})",
                self.gid.index,
                self.gid.address()
            ),
        }
    }
}

impl RankedPorts {
    /// The skipped ports with their reasons, as a part of a message.
    pub fn reasons(&self) -> String {
        let all = self.skipped.iter();
        listed(all.map(|skipped| format!("{} {}", skipped.name, skipped.why)))
    }

    /// The usable ports, as a part of a message.
    pub fn summary(&self) -> String {
        listed(self.candidates.iter().map(ToString::to_string))
    }

    /// The first name of the user that stands for nothing on this host.
    pub fn unknown(&self) -> Option<&SkippedPort> {
        self.skipped.iter().find(|skipped| skipped.unknown)
    }

    /// Removes a device's candidates, because it cannot be used after all.
    pub fn skip_device(&mut self, device: &str, why: &str) {
        let before = self.candidates.len();
        self.candidates.retain(|c| c.device != device);
        if self.candidates.len() < before {
            self.skipped.push(SkippedPort {
                name: device.to_owned(),
                why: why.to_owned(),
                unknown: false,
            });
        }
    }
}

/// An existing port, with its position by name.
struct Existing<'a> {
    device: &'a RdmaDevice,
    port: &'a RdmaPort,
    position: u8,
}

impl Existing<'_> {
    fn name(&self) -> String {
        format!("{}:{}", self.device.name, self.port.number)
    }
}

/// The usable GIDs of one port.
struct Usable {
    candidates: Vec<PortCandidate>,
}

impl Topology {
    /// Ranks the RDMA ports of this host for a process.
    pub fn rdma_ports(&self, wish: &PortWish<'_>) -> RankedPorts {
        let ports = self.existing_ports();
        let mut ranked = RankedPorts::default();
        let mut tiers = match wish.names {
            None => vec![self.tier(&ports, wish, None, &mut ranked.skipped)],
            Some(names) => names
                .iter()
                .map(|name| self.tier(&ports, wish, Some(name), &mut ranked.skipped))
                .collect(),
        };
        match &mut tiers[..] {
            [only] => rotate_equals(only, wish.local_rank),
            several => rotate(several, wish.local_rank),
        }
        for (number, tier) in tiers.into_iter().enumerate() {
            let all = tier.into_iter().flat_map(|port| port.candidates);
            for mut candidate in all {
                candidate.tier = number as u8;
                let is_same = |other: &PortCandidate| {
                    (other.gid.gid, other.port) == (candidate.gid.gid, candidate.port)
                        && other.device == candidate.device
                };
                if !ranked.candidates.iter().any(is_same) {
                    ranked.candidates.push(candidate);
                }
            }
        }
        let lid = |c: &PortCandidate| {
            let mut all = ports.iter();
            let own = all.find(|p| p.device.name == c.device && p.position == c.position);
            own.map_or(0, |p| p.port.lid)
        };
        ranked.warnings = warnings(&ranked.candidates, lid);
        ranked.candidates.truncate(VERBS_PORTS_MAX);
        ranked
    }

    /// The active RDMA port with the highest rate, and its rate in Mb/s, if a rate is known.
    pub fn fastest_rdma_port(&self) -> Option<(String, u32)> {
        let ports = self.existing_ports().into_iter();
        let active = ports.filter(|p| p.port.state == PortState::Active && is_carrier(p.port.link));
        let rated = active.filter_map(|p| Some((p.name(), rate_mbps(&p.port.rate)?)));
        rated.max_by_key(|(_, rate)| *rate)
    }

    fn existing_ports(&self) -> Vec<Existing<'_>> {
        let of = |device| move |port| (device, port);
        let all = self
            .rdmas
            .iter()
            .flat_map(|device: &RdmaDevice| device.ports.iter().map(of(device)));
        let existing = |(position, (device, port)): (usize, _)| Existing {
            device,
            port,
            position: position.min(usize::from(u8::MAX)) as u8,
        };
        all.enumerate().map(existing).collect()
    }

    /// The usable ports of one name, the best first.
    fn tier(
        &self,
        ports: &[Existing<'_>],
        wish: &PortWish<'_>,
        name: Option<&PortName>,
        skipped: &mut Vec<SkippedPort>,
    ) -> Vec<Usable> {
        let named: Vec<&Existing<'_>> = match name {
            None => ports.iter().collect(),
            Some(name) => match matching(ports, name, wish.local_rank) {
                Ok(named) => named,
                Err(unknown) => {
                    skipped.push(unknown);
                    return Vec::new();
                }
            },
        };
        let index = wish.gid_index.map(u32::from).map(GidName::Index);
        let gid = index.or_else(|| name.and_then(|name| name.gid));
        let mut usable = Vec::new();
        for port in named {
            match self.candidates_of(port, wish, gid) {
                Ok(candidates) => usable.push(Usable { candidates }),
                Err(why) => skipped.push(why),
            }
        }
        usable.sort_by_key(|port| {
            let first = &port.candidates[0];
            let is_other = !first.control;
            let rate = match mutants::on(Mutant::PortRateIgnored) {
                true => 0,
                false => first.rate_mbps,
            };
            (Reverse(rate), first.distance, is_other, first.position)
        });
        usable
    }

    /// The candidates of a port, at least one, or why it cannot be used.
    fn candidates_of(
        &self,
        existing: &Existing<'_>,
        wish: &PortWish<'_>,
        named: Option<GidName>,
    ) -> Result<Vec<PortCandidate>, SkippedPort> {
        let Existing {
            device,
            port,
            position,
        } = *existing;
        let skip = |why: String| SkippedPort {
            name: existing.name(),
            why,
            unknown: false,
        };
        let unknown = |why: String| SkippedPort {
            unknown: true,
            ..skip(why)
        };
        can_carry(device, port).map_err(skip)?;
        let Ok(number) = u8::try_from(port.number) else {
            return Err(skip("has a number that no queue pair can name".into()));
        };
        let gids = self.gids_of(port, wish.control, named);
        if gids.is_empty() {
            let none = |gid| format!("has no such GID {gid}; it has {}", table_of(port));
            return Err(match named {
                // The index is one for all ports.
                Some(gid) if wish.gid_index.is_some() => skip(none(gid)),
                Some(gid) => unknown(none(gid)),
                None => skip(format!(
                    "has no RoCE v2 GID of an IP address; it has {}",
                    table_of(port)
                )),
            });
        }
        let pkey = pkey_of(port, wish.pkey).map_err(unknown)?;
        let mut near: Vec<u32> = self.allowed().map(|cpu| cpu.node).collect();
        near.dedup();
        let distance = match device.node {
            Some(node) => near.iter().map(|&from| self.distance(from, node)).min(),
            None => None,
        };
        let candidate = |gid: &Gid| PortCandidate {
            device: device.name.clone(),
            port: number,
            link: port.link,
            subnet_bits: self.subnet_bits(port.link, gid),
            sm_lid: port.sm_lid,
            pkey,
            rate_mbps: rate_mbps(&port.rate).unwrap_or(0),
            distance: distance.unwrap_or(DISTANCE_UNKNOWN),
            control: self.carries(wish.control, device, port, gid),
            gid: gid.clone(),
            tier: 0,
            position,
        };
        Ok(gids.into_iter().map(candidate).collect())
    }

    /// The GIDs of a port that a peer may reach, the preferred one first: that of the control connection,
    /// those of its address family, the others.
    fn gids_of<'a>(
        &self,
        port: &'a RdmaPort,
        control: Option<IpAddr>,
        named: Option<GidName>,
    ) -> Vec<&'a Gid> {
        let control = control.map(|address| address.to_canonical());
        let is_offered = |gid: &&Gid| {
            // Queue pairs name an entry by 8 bits.
            let nameable = gid.index <= u32::from(u8::MAX);
            nameable
                && match (named, port.link) {
                    (Some(GidName::Index(index)), _) => gid.index == index,
                    (Some(GidName::Address(address)), LinkLayer::Ethernet) => {
                        gid.kind == GidKind::RoceV2 && gid.address() == address.to_canonical()
                    }
                    (Some(GidName::Address(address)), _) => gid.address() == address,
                    (None, LinkLayer::Ethernet) => {
                        let reachable = gid.is_routable() || Some(gid.address()) == control;
                        gid.kind == GidKind::RoceV2 && reachable
                    }
                    (None, _) => gid.index == 0,
                }
        };
        let mut gids: Vec<&Gid> = port.gids.iter().filter(is_offered).collect();
        gids.sort_by_key(|gid| {
            let is_control = Some(gid.address()) == control;
            let of_family = control.is_some_and(|c| c.is_ipv4() == gid.address().is_ipv4());
            (!is_control, !of_family, gid.index)
        });
        gids.truncate(GIDS_OF_PORT_MAX);
        gids
    }

    /// Prefix bits of the subnet of a GID; all bits if the subnet is not known.
    fn subnet_bits(&self, link: LinkLayer, gid: &Gid) -> u8 {
        if link == LinkLayer::InfiniBand {
            return IB_PREFIX_BITS;
        }
        let address = gid.address();
        let of = |net: &NetDevice| {
            let at = net.addresses.iter().position(|own| *own == address)?;
            net.subnet_bits.get(at).copied()
        };
        let all = if address.is_ipv4() { 32 } else { 128 };
        self.nets.iter().find_map(of).unwrap_or(all)
    }

    /// Whether the control connection uses this port: its address is the GID's, or that of an IPoIB
    /// interface of the port.
    fn carries(
        &self,
        control: Option<IpAddr>,
        device: &RdmaDevice,
        port: &RdmaPort,
        gid: &Gid,
    ) -> bool {
        let Some(control) = control.map(|address| address.to_canonical()) else {
            return false;
        };
        if port.link == LinkLayer::Ethernet {
            return gid.address() == control;
        }
        let mut nets = self.nets.iter();
        let net = nets.find(|net| net.addresses.contains(&control));
        net.is_some_and(|net| {
            let mut below = net.ipoib.iter();
            below.any(|(name, number)| *name == device.name && *number == port.number)
        })
    }
}

/// Whether reliable connections exist on this link layer.
const fn is_carrier(link: LinkLayer) -> bool {
    matches!(link, LinkLayer::Ethernet | LinkLayer::InfiniBand)
}

/// Refuses a port that carries no queue pairs, or not now.
fn can_carry(device: &RdmaDevice, port: &RdmaPort) -> Result<(), String> {
    if !is_carrier(port.link) {
        return Err("is neither InfiniBand nor RoCE".into());
    }
    if device.iwarp {
        return Err("is iWARP, which is not supported; switch the NIC to RoCE".into());
    }
    if port.state != PortState::Active {
        return Err(format!("is {:?} ({})", port.state, port.physical));
    }
    match &device.denied {
        Some(why) => Err(format!("cannot be opened: {why}")),
        None => Ok(()),
    }
}

/// The ports of a name, at least one, or what there is instead.
fn matching<'a, 'b>(
    ports: &'b [Existing<'a>],
    name: &PortName,
    local_rank: u32,
) -> Result<Vec<&'b Existing<'a>>, SkippedPort> {
    let device = name.device(local_rank);
    let unknown = |name: String, why: String| SkippedPort {
        name,
        why,
        unknown: true,
    };
    let all = ports.iter();
    let of_device: Vec<_> = all.filter(|p| p.device.name == device).collect();
    if of_device.is_empty() {
        let mut there: Vec<&str> = ports.iter().map(|p| p.device.name.as_str()).collect();
        there.dedup();
        let there = listed(there.into_iter().map(str::to_owned));
        let why = format!("does not exist; this host has {there}");
        return Err(unknown(device.into_owned(), why));
    }
    let Some(number) = name.port else {
        return Ok(of_device);
    };
    let there = listed(of_device.iter().map(|p| p.name()));
    let of_port = of_device
        .into_iter()
        .filter(|p| p.port.number == u32::from(number));
    let of_port: Vec<_> = of_port.collect();
    if of_port.is_empty() {
        let why = format!("does not exist; this host has {there}");
        return Err(unknown(format!("{device}:{number}"), why));
    }
    Ok(of_port)
}

/// The partition key of a port, in the required partition if there is one: the first with full membership, or the
/// first.
fn pkey_of(port: &RdmaPort, required: Option<u16>) -> Result<u16, String> {
    if port.link != LinkLayer::InfiniBand {
        return Ok(PKEY_DEFAULT);
    }
    let fits = |pkey: &&u16| required.is_none_or(|set| (**pkey ^ set) & PKEY_NUMBER == 0);
    let mut all = port.pkeys.iter().filter(fits);
    let full = all.clone().find(|pkey| **pkey & PKEY_FULL != 0);
    match (full.or_else(|| all.next()), required) {
        (Some(pkey), _) => Ok(*pkey),
        (None, None) => Ok(PKEY_DEFAULT),
        (None, Some(required)) => {
            let there = listed(port.pkeys.iter().map(|pkey| format!("{pkey:#06x}")));
            Err(format!("has no P_Key {required:#06x}; it has {there}"))
        }
    }
}

/// The GID table of a port, as a part of a message.
fn table_of(port: &RdmaPort) -> String {
    let entry = |gid: &Gid| match (port.link, gid.kind) {
        (LinkLayer::Ethernet, GidKind::RoceV2) => format!("{}: {}", gid.index, gid.address()),
        (LinkLayer::Ethernet, _) => format!("{}: {} (RoCE v1)", gid.index, gid.address()),
        _ => format!("{}: {}", gid.index, gid.gid),
    };
    listed(port.gids.iter().map(entry))
}

/// Joins words with commas; counts those past [`LISTED_MAX`].
fn listed(words: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = words.collect();
    let more = words.len().saturating_sub(LISTED_MAX);
    words.truncate(LISTED_MAX);
    match (words.is_empty(), more) {
        (true, _) => "none".to_owned(),
        (false, 0) => words.join(", "),
        (false, more) => format!("{}, and {more} more", words.join(", ")),
    }
}

/// Parses the rate of a port in Mb/s: `400 Gb/sec (4X NDR)`.
fn rate_mbps(text: &str) -> Option<u32> {
    let (number, unit) = text.split_once(' ')?;
    let gbps: f64 = number.parse().ok()?;
    (unit.starts_with("Gb/sec") && gbps > 0.0).then_some((gbps * 1000.0) as u32)
}

/// Rotates the ports that are as good as the first one.
fn rotate_equals(ports: &mut [Usable], local_rank: u32) {
    let key = |port: &Usable| {
        let first = &port.candidates[0];
        (
            first.rate_mbps,
            first.distance,
            first.link == LinkLayer::InfiniBand,
        )
    };
    let Some(best) = ports.first().map(key) else {
        return;
    };
    let equals = ports.iter().take_while(|port| key(port) == best).count();
    rotate(&mut ports[..equals], local_rank);
}

fn rotate<T>(ports: &mut [T], local_rank: u32) {
    if !ports.is_empty() {
        ports.rotate_left(local_rank as usize % ports.len());
    }
}

//! Network and RDMA devices as `/sys/class` lists them.

use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use serde::Serialize;

use super::addresses::addresses;
use super::sysfs::Root;
use tidewater_protocol::limits::{NET_DEVICES_MAX, RDMA_DEVICES_MAX, RDMA_PORTS_MAX};

/// Folders above a device that are searched for its NUMA node: a virtio NIC lies on a PCI function, which
/// lies on a bridge.
const BUSES_MAX: usize = 8;
/// Bits of a partition key that name the partition; the other one is full membership.
pub(super) const PKEY_NUMBER: u16 = 0x7fff;

/// A network device of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct NetDevice {
    /// Name of the device.
    pub name: String,
    /// Whether it carries packets.
    pub up: bool,
    /// Whether there is hardware (or emulated hardware of a hypervisor) behind it.
    pub hardware: bool,
    /// MTU: bytes of the largest packet.
    pub mtu: u32,
    /// Speed in Mbit/s, if the driver reports it.
    pub speed_mbps: Option<u32>,
    /// IP addresses of the device.
    pub addresses: Vec<IpAddr>,
    /// The node it is attached to, if that is known.
    pub node: Option<u32>,
    /// The processors near the device.
    pub cpus: Vec<u32>,
    /// Prefix bits of the subnet of each address, in the order of `addresses`.
    pub subnet_bits: Vec<u8>,
    /// RDMA devices and ports below an IPoIB interface; more than one below a bond.
    pub ipoib: Vec<(String, u32)>,
}

/// An RDMA device of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct RdmaDevice {
    /// Name of the device.
    pub name: String,
    /// Its node GUID, as the kernel writes it.
    pub node_guid: String,
    /// Version of its firmware, if there is one.
    pub firmware: Option<String>,
    /// The character device that programs open: `uverbsN` in `/dev/infiniband`.
    pub uverbs: Option<String>,
    /// The node it is attached to, if that is known.
    pub node: Option<u32>,
    /// The processors near the device.
    pub cpus: Vec<u32>,
    /// Its ports, from 1.
    pub ports: Vec<RdmaPort>,
    /// Whether it is an iWARP device, whose queue pairs need librdmacm.
    pub iwarp: bool,
    /// Why this process cannot open it; `None` if it can.
    pub denied: Option<String>,
}

/// A port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct RdmaPort {
    /// Number of the port.
    pub number: u32,
    /// Logical state of the port.
    pub state: PortState,
    /// Its physical state, as the kernel writes it: LinkUp, Disabled, Polling.
    pub physical: String,
    /// Link layer of the port.
    pub link: LinkLayer,
    /// Rate, as the kernel writes it.
    pub rate: String,
    /// Its local identifier in an InfiniBand subnet, 0 if none.
    pub lid: u16,
    /// Name of its network device.
    pub netdev: Option<String>,
    /// Bytes of payload in a packet. Sysfs does not have it: on Ethernet it follows from the network
    /// device's MTU; on InfiniBand it is not known here.
    pub mtu: Option<u32>,
    /// The entries of its GID table that are not empty.
    pub gids: Vec<Gid>,
    /// LID of the subnet manager of its InfiniBand subnet, 0 if none.
    pub sm_lid: u16,
    /// Partition keys of an InfiniBand port, without empty entries; bit 15 is full membership.
    pub pkeys: Vec<u16>,
}

/// Logical state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PortState {
    /// The port carries data.
    Active,
    /// The port waits for a subnet manager.
    Init,
    /// The subnet manager is about to activate the port.
    Armed,
    /// The port has no link.
    Down,
    /// Another state, or no entry.
    #[default]
    Unknown,
}

/// Link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LinkLayer {
    /// Ethernet, which carries RoCE.
    Ethernet,
    /// InfiniBand with a subnet manager.
    InfiniBand,
    /// Another link layer, or no entry.
    #[default]
    Unknown,
}

/// An entry of a GID table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Gid {
    /// Its index in the table: differs from host to host.
    pub index: u32,
    /// The GID, as an IPv6 address.
    pub gid: Ipv6Addr,
    /// Packet format of the GID.
    pub kind: GidKind,
    /// Name of its network device.
    pub netdev: Option<String>,
}

impl Gid {
    /// The IP address that the GID stands for.
    pub fn address(&self) -> IpAddr {
        let ip = self.gid.to_ipv4_mapped();
        ip.map_or(IpAddr::V6(self.gid), IpAddr::V4)
    }

    /// Whether a route leads to it from outside of its link.
    pub fn is_routable(&self) -> bool {
        !self.gid.is_unicast_link_local()
    }
}

/// Packet format of a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand, or RoCE v1, which stays on its link.
    #[serde(rename = "IB/RoCE v1")]
    IbOrRoceV1,
    /// RoCE v2: UDP packets, which are routed.
    #[serde(rename = "RoCE v2")]
    RoceV2,
    /// The kernel does not report it.
    #[serde(rename = "unknown")]
    Unknown,
}

/// Bytes of payload in a RoCE packet where the network device has this MTU. It is the largest of 256, 512
/// to 4096 that fits with the largest headers, of 96 bytes, as the kernel computes it. `None` if not even
/// the least fits.
pub fn roce_mtu_of(netdev_mtu: u32) -> Option<u32> {
    const HEADERS: u32 = 96;
    let sizes = [4096, 2048, 1024, 512, 256];
    let room = netdev_mtu.checked_sub(HEADERS)?;
    sizes.into_iter().find(|&size| size <= room)
}

/// Lists the network devices.
pub(super) fn nets(root: &Root) -> Vec<NetDevice> {
    const CLASS: &str = "sys/class/net";
    let addresses = addresses(root);
    let net = |name: String| {
        let at = format!("{CLASS}/{name}");
        // An entry that is no device (`bonding_masters`) has none.
        let mtu = root.number(format!("{at}/mtu"))?;
        let own = || addresses.iter().filter(|own| own.device == name);
        let (node, cpus) = place_of_net(root, &at);
        let flags = root.text(format!("{at}/flags")).unwrap_or_default();
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(0);
        let up = match root.text(format!("{at}/operstate")).as_deref() {
            Some("up") => true,
            Some("down" | "lowerlayerdown" | "notpresent" | "dormant") => false,
            // The loopback and some virtual devices do not report it; IFF_UP is the only evidence.
            _ => flags & 1 == 1,
        };
        Some(NetDevice {
            up,
            hardware: root.exists(format!("{at}/device")),
            mtu,
            // -1 where it is not known.
            speed_mbps: root.number(format!("{at}/speed")),
            addresses: own().map(|own| own.address).collect(),
            subnet_bits: own().map(|own| own.subnet_bits).collect(),
            ipoib: ipoib(root, &at),
            node,
            cpus,
            name,
        })
    };
    let names = root.names(CLASS).into_iter();
    names.filter_map(net).take(NET_DEVICES_MAX).collect()
}

/// RDMA devices and ports of an IPoIB interface: its own, its parent's if it is a child for another
/// partition, or those of the interfaces below a bond.
fn ipoib(root: &Root, at: &str) -> Vec<(String, u32)> {
    /// Hardware type of InfiniBand interfaces (`ARPHRD_INFINIBAND`), also of a bond of them.
    const INFINIBAND: u32 = 32;
    if root.number(format!("{at}/type")) != Some(INFINIBAND) {
        return Vec::new();
    }
    let own = |at: &str| {
        let device = root.names(format!("{at}/device/infiniband")).pop()?;
        // Counted from 0; RDMA ports are counted from 1.
        let port: u32 = root.number(format!("{at}/dev_port"))?;
        Some((device, port.checked_add(1)?))
    };
    let parent = root.text(format!("{at}/parent"));
    let parent = parent.filter(|name| !name.is_empty() && !name.contains('/'));
    let below = root.names(at).into_iter();
    let below = below.filter(|name| name.starts_with("lower_"));
    let one = own(at).or_else(|| own(&format!("sys/class/net/{}", parent?)));
    match one {
        Some(one) => vec![one],
        None => below
            .filter_map(|name| own(&format!("{at}/{name}")))
            .collect(),
    }
}

/// Node and processors near a network device. For a bond or a VLAN, those of the devices below it, if these
/// are on one node.
fn place_of_net(root: &Root, at: &str) -> (Option<u32>, Vec<u32>) {
    if root.exists(format!("{at}/device")) {
        return place(root, &format!("{at}/device"));
    }
    let names = root.names(at).into_iter();
    let below = names.filter(|name| name.starts_with("lower_"));
    let mut places = below.map(|name| place(root, &format!("{at}/{name}/device")));
    let first = places.next().unwrap_or_default();
    if places.all(|other| other.0 == first.0) {
        first
    } else {
        (None, Vec::new())
    }
}

/// Node and processors near the device at `link`, or near the first bus above it that has them.
fn place(root: &Root, link: &str) -> (Option<u32>, Vec<u32>) {
    let Some(device) = root.resolved(link) else {
        return (None, Vec::new());
    };
    let above = device.ancestors().take(BUSES_MAX);
    let mut buses = above.filter(|bus| root.exists(bus.join("numa_node")));
    let Some(bus) = buses.next() else {
        return (None, Vec::new());
    };
    let cpus = root.list(bus.join("local_cpulist"));
    // -1 where firmware does not report it.
    let node = root.number::<u32>(bus.join("numa_node"));
    (node, cpus.unwrap_or_default())
}

/// Lists the RDMA devices; reads the GIDs of a port up to index `gids_max`, exclusive.
pub(super) fn rdmas(root: &Root, nets: &[NetDevice], gids_max: usize) -> Vec<RdmaDevice> {
    const CLASS: &str = "sys/class/infiniband";
    let devices = root.names(CLASS).into_iter().take(RDMA_DEVICES_MAX);
    let device = |name: String| {
        let at = format!("{CLASS}/{name}");
        let numbers = root.names(format!("{at}/ports")).into_iter();
        let numbers = numbers.filter_map(|name| name.parse().ok());
        let ports: Vec<RdmaPort> = numbers
            .take(RDMA_PORTS_MAX)
            .map(|number| port(root, &at, number, nets, gids_max))
            .collect();
        let (mut node, mut cpus) = place(root, &format!("{at}/device"));
        if node.is_none() && !root.exists(format!("{at}/device")) {
            // Soft-RoCE has the place of its network device.
            let netdev = ports.iter().find_map(|port| port.netdev.as_ref());
            let below = netdev.and_then(|netdev| nets.iter().find(|net| net.name == *netdev));
            (node, cpus) = below.map_or((None, Vec::new()), |n| (n.node, n.cpus.clone()));
        }
        let node_type = root.text(format!("{at}/node_type")).unwrap_or_default();
        let uverbs = uverbs(root, &name);
        RdmaDevice {
            iwarp: node_type.starts_with("4:"),
            denied: denied(root, uverbs.as_deref()),
            node_guid: root.text(format!("{at}/node_guid")).unwrap_or_default(),
            firmware: root
                .text(format!("{at}/fw_ver"))
                .filter(|text| !text.is_empty()),
            uverbs,
            node,
            cpus,
            ports,
            name,
        }
    };
    devices.map(device).collect()
}

/// The character device by which programs open `name`.
fn uverbs(root: &Root, name: &str) -> Option<String> {
    const CLASS: &str = "sys/class/infiniband_verbs";
    let mut all = root.names(CLASS).into_iter();
    all.find(|uverbs| root.text(format!("{CLASS}/{uverbs}/ibdev")).as_deref() == Some(name))
}

/// Why this process cannot open an RDMA device with this character device, if it cannot.
fn denied(root: &Root, uverbs: Option<&str>) -> Option<String> {
    let Some(uverbs) = uverbs else {
        return Some("no character device belongs to it".into());
    };
    let file = format!("dev/infiniband/{uverbs}");
    let may = rustix::fs::access(root.path(&file), Access::READ_OK | Access::WRITE_OK);
    may.err().map(|error| format!("/{file}: {error}"))
}

fn port(root: &Root, device: &str, number: u32, nets: &[NetDevice], gids_max: usize) -> RdmaPort {
    let at = PathBuf::from(format!("{device}/ports/{number}"));
    // States are written `4: ACTIVE`.
    let word = |file: &str| {
        let text = root.text(at.join(file)).unwrap_or_default();
        let word = text
            .split_once(": ")
            .map_or(text.as_str(), |(_, word)| word);
        word.to_owned()
    };
    let link = match root.text(at.join("link_layer")).as_deref() {
        Some("Ethernet") => LinkLayer::Ethernet,
        Some("InfiniBand") => LinkLayer::InfiniBand,
        _ => LinkLayer::Unknown,
    };
    let gids = gids(root, &at, gids_max);
    let netdev = gids.iter().find_map(|gid| gid.netdev.clone());
    let mtu = match link {
        LinkLayer::Ethernet => {
            let net = nets.iter().find(|net| Some(&net.name) == netdev.as_ref());
            net.and_then(|net| roce_mtu_of(net.mtu))
        }
        _ => None,
    };
    let hex = |file: &str| {
        let text = root.text(at.join(file)).unwrap_or_default();
        u16::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(0)
    };
    let pkeys = match link {
        LinkLayer::InfiniBand => root.numbered(at.join("pkeys"), ""),
        _ => Vec::new(),
    };
    let pkeys = pkeys
        .into_iter()
        .map(|index| hex(&format!("pkeys/{index}")));
    RdmaPort {
        sm_lid: hex("sm_lid"),
        pkeys: pkeys.filter(|pkey| pkey & PKEY_NUMBER != 0).collect(),
        number,
        state: match word("state").as_str() {
            "ACTIVE" => PortState::Active,
            "INIT" => PortState::Init,
            "ARMED" => PortState::Armed,
            "DOWN" => PortState::Down,
            _ => PortState::Unknown,
        },
        physical: word("phys_state"),
        link,
        rate: root.text(at.join("rate")).unwrap_or_default(),
        lid: hex("lid"),
        netdev,
        mtu,
        gids,
    }
}

/// The entries of a port's GID table that are not empty.
fn gids(root: &Root, port: &Path, most: usize) -> Vec<Gid> {
    let indices = root.numbered(port.join("gids"), "");
    let gid = |index: u32| {
        let gid: Ipv6Addr = root.number(port.join(format!("gids/{index}")))?;
        // Reading the attributes of an empty entry is an error, so the GID itself is checked.
        if gid.is_unspecified() || gid.to_bits() == 0xfe80 << 112 {
            return None;
        }
        let attribute = |which: &str| root.text(port.join(format!("gid_attrs/{which}/{index}")));
        Some(Gid {
            index,
            gid,
            kind: match attribute("types").as_deref() {
                Some("RoCE v2") => GidKind::RoceV2,
                Some("IB/RoCE v1" | "RoCE v1") => GidKind::IbOrRoceV1,
                _ => GidKind::Unknown,
            },
            netdev: attribute("ndevs").filter(|name| !name.is_empty()),
        })
    };
    let indices = indices.into_iter().take(most);
    indices.filter_map(gid).collect()
}

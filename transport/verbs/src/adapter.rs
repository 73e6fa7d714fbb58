//! Selects the device, port and address of a connection by the local address of its control connection.
//! Both ends thus choose the network that they already share.
//!
//! On Ethernet (RoCE) a port fits when its GID table has an entry of type "RoCE v2" that equals the
//! local address. Its index is looked up, never assumed. A named device may lack such an entry because
//! the control connection runs on another network. Then its only routable entry is taken. On InfiniBand
//! an IP address says nothing about the port: the only active one is taken, among those of the named
//! device. If several remain, the caller has to name one.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError, Weak};

use super::device::{Device, PortState, devices};
use super::error::VerbsError;
use super::sysfs::{Gid, GidEntry, GidKind, Link, Sysfs};
use tidewater_protocol::limits::VERBS_SCATTER_BYTES;
use tidewater_runtime::sync::Arc;

/// An open device with the port and address that connections through it use. Shared by all connections
/// of the process that use them.
#[derive(Debug)]
pub struct Adapter {
    device: Arc<Device>,
    port: u8,
    gid: Gid,
    gid_index: u8,
    state: PortState,
}

/// A port and its address, before the device is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Choice {
    device: String,
    port: u8,
    link: Link,
    gid: GidEntry,
}

/// Adapters and devices in use. A device can outlive its adapters, and is not opened twice even then:
/// objects of two openings cannot be used together.
static OPEN: Mutex<Open> = Mutex::new(Open {
    adapters: Vec::new(),
    devices: Vec::new(),
});

struct Open {
    adapters: Vec<Weak<Adapter>>,
    devices: Vec<Weak<Device>>,
}

impl Open {
    fn device(&mut self, name: &str) -> Result<Arc<Device>, VerbsError> {
        let mut held = self.devices.iter().filter_map(Weak::upgrade);
        if let Some(shared) = held.find(|d| **d.name() == *name) {
            return Ok(shared);
        }
        let device = Device::open(name)?;
        self.devices.retain(|device| device.strong_count() > 0);
        self.devices.push(Arc::downgrade(&device));
        Ok(device)
    }
}

impl Adapter {
    /// Returns the adapter for connections from `local`. `wish` names the required device (`rxe0`), or
    /// device and port (`mlx5_0:2`). An open adapter is shared. Cost: a port's table is up to 256 small
    /// files; one file if such an adapter is open.
    ///
    /// # Errors
    /// [`VerbsError::NoDevice`] and [`VerbsError::NoGid`] when there is no RDMA on that network,
    /// [`VerbsError::NoSuchDevice`] when no device matches the wish, [`VerbsError::Limit`] when its
    /// messages are too short, [`VerbsError::Call`].
    pub fn for_address(local: IpAddr, wish: Option<&str>) -> Result<Arc<Self>, VerbsError> {
        let sysfs = Sysfs::host();
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.adapters.retain(|adapter| adapter.strong_count() > 0);
        let held = || open.adapters.iter().filter_map(Weak::upgrade);
        if let Some(shared) = held().find(|a| a.serves(&sysfs, local, wish)) {
            return Ok(shared);
        }
        let choice = choose(&sysfs, &devices()?, local, wish)?;
        if let Some(shared) = held().find(|a| a.is(&choice)) {
            return Ok(shared);
        }
        let device = open.device(&choice.device)?;
        let state = device.port(choice.port)?;
        takes_messages(device.name(), &state)?;
        let adapter = Arc::new(Self {
            state,
            device,
            port: choice.port,
            gid: choice.gid.gid,
            gid_index: choice.gid.index,
        });
        open.adapters.push(Arc::downgrade(&adapter));
        Ok(adapter)
    }

    /// Whether [`choose`] by address would still find this adapter: the port's table may have changed.
    fn serves(&self, sysfs: &Sysfs, local: IpAddr, wish: Option<&str>) -> bool {
        let device = self.device.name();
        self.gid == Gid::of(local)
            && wish.is_none_or(|wish| fulfils(wish, device, self.port))
            && sysfs.is_active(device, self.port)
            && sysfs
                .gid(device, self.port, self.gid_index)
                .is_some_and(|now| now.gid == self.gid && now.kind == GidKind::RoceV2)
    }

    fn is(&self, choice: &Choice) -> bool {
        **self.device.name() == *choice.device
            && self.port == choice.port
            && self.gid_index == choice.gid.index
            && self.gid == choice.gid.gid
    }

    /// Returns the open device.
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the port number, counted from 1.
    pub const fn port(&self) -> u8 {
        self.port
    }

    /// Returns the link layer of the port.
    pub const fn link(&self) -> Link {
        self.state.link
    }

    /// Returns the GID of the port.
    pub const fn gid(&self) -> Gid {
        self.gid
    }

    /// Returns the index of the GID in the port's table.
    pub const fn gid_index(&self) -> u8 {
        self.gid_index
    }

    /// Returns the port's address within an InfiniBand subnet; 0 on Ethernet.
    pub const fn lid(&self) -> u16 {
        self.state.lid
    }

    /// Returns the payload bytes of a packet: 256 to 4096.
    pub const fn mtu(&self) -> u16 {
        self.state.mtu
    }

    /// Returns the bytes of the longest message.
    pub const fn message_bytes(&self) -> u32 {
        self.state.message_bytes
    }

    /// Returns the READs and atomics that a queue pair can answer at once.
    pub fn reads(&self) -> u8 {
        self.device.limits().reads
    }

    /// Returns the READs and atomics that a queue pair can have in flight at once.
    pub fn reads_out(&self) -> u8 {
        self.device.limits().reads_out
    }
}

/// Checks that a port supports the longest message of a lane. Here, and not in a read that breaks its
/// lane again and again. Soft-RoCE supports 8 MiB, NICs more.
fn takes_messages(device: &Arc<str>, port: &PortState) -> Result<(), VerbsError> {
    if port.message_bytes as usize >= VERBS_SCATTER_BYTES {
        return Ok(());
    }
    Err(VerbsError::Limit {
        device: Arc::clone(device),
        what: "bytes in a message",
        asked: VERBS_SCATTER_BYTES as u64,
        granted: u64::from(port.message_bytes),
    })
}

/// The rule of the module, over a tree of files and the devices that libibverbs can drive.
fn choose(
    sysfs: &Sysfs,
    usable: &[String],
    local: IpAddr,
    wish: Option<&str>,
) -> Result<Choice, VerbsError> {
    let mut seen = Vec::new();
    let mut choices = Vec::new();
    for (device, port, link) in ports(sysfs, usable, wish)? {
        if !sysfs.is_active(&device, port) {
            seen.push(format!("{device}:{port} is down"));
            continue;
        }
        for gid in addresses(sysfs, &device, port, link) {
            seen.push(format!("{device}:{port} has {} ({link})", gid.gid));
            choices.push(Choice {
                device: device.clone(),
                port,
                link,
                gid,
            });
        }
    }
    let equal = |c: &Choice| c.link == Link::Ethernet && c.gid.gid == Gid::of(local);
    if let Some(first) = choices.iter().position(equal) {
        return Ok(choices.swap_remove(first));
    }
    choices.retain(|c| match c.link {
        Link::InfiniBand => true,
        Link::Ethernet => wish.is_some() && !c.gid.gid.is_link_local(),
    });
    match (choices.pop(), choices.is_empty()) {
        (Some(only), true) => Ok(only),
        _ => Err(VerbsError::NoGid {
            address: local,
            found: listed(seen).into(),
        }),
    }
}

/// The ports that fulfil the wish, with their link layers.
fn ports(
    sysfs: &Sysfs,
    usable: &[String],
    wish: Option<&str>,
) -> Result<Vec<(String, u8, Link)>, VerbsError> {
    let mut ports = Vec::new();
    for device in usable {
        for port in sysfs.ports(device) {
            if let Some(link) = sysfs.link(device, port)
                && wish.is_none_or(|wish| fulfils(wish, device, port))
            {
                ports.push((device.clone(), port, link));
            }
        }
    }
    match wish {
        Some(wanted) if ports.is_empty() => Err(VerbsError::NoSuchDevice {
            wanted: wanted.into(),
            found: usable.join(", ").into(),
        }),
        _ => Ok(ports),
    }
}

/// The usable addresses of a port: on Ethernet those of RoCE v2, on InfiniBand the first.
fn addresses(sysfs: &Sysfs, device: &str, port: u8, link: Link) -> Vec<GidEntry> {
    match link {
        Link::InfiniBand => sysfs.gid(device, port, 0).into_iter().collect(),
        Link::Ethernet => {
            let mut gids = sysfs.gids(device, port);
            gids.retain(|gid| gid.kind == GidKind::RoceV2);
            gids
        }
    }
}

/// The examined addresses, as a line of a message.
fn listed(mut seen: Vec<String>) -> String {
    let more = seen.len().saturating_sub(LISTED);
    seen.truncate(LISTED);
    match (seen.is_empty(), more) {
        (true, _) => "no port is up".to_owned(),
        (false, 0) => seen.join(", "),
        (false, more) => format!("{}, and {more} more", seen.join(", ")),
    }
}

/// Addresses that a message names.
const LISTED: usize = 8;

/// Whether a port matches the wish `device` or `device:port`.
fn fulfils(wish: &str, device: &str, port: u8) -> bool {
    match wish.split_once(':') {
        Some((name, number)) => name == device && number.parse() == Ok(port),
        None => wish == device,
    }
}

#[cfg(test)]
mod tests;

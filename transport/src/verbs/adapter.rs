//! Which device, port and address a connection uses: chosen by the local address of its control
//! connection, so that both ends pick what is on the network they already share.
//!
//! On Ethernet (RoCE) a port is right when its GID table has an entry of type "RoCE v2" that equals
//! the local address; its index is looked up, never assumed. When the caller names a device and
//! that has no such entry (the control network is another one), its only routable entry is taken.
//! On InfiniBand an IP address says nothing about the port: the only active port is taken, or the
//! one that is named.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError, Weak};

use super::device::{Device, PortState};
use super::error::VerbsError;
use super::sysfs::{Gid, GidEntry, GidKind, Link, Sysfs};
use crate::sync::Arc;

/// An open device with the port and address that connections through it use. Shared by all
/// connections of the process that use them.
#[derive(Debug)]
pub struct Adapter {
    device: Arc<Device>,
    port: u8,
    gid: Gid,
    gid_index: u8,
    state: PortState,
}

/// A port and its address, before it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) device: String,
    pub(super) port: u8,
    pub(super) link: Link,
    pub(super) gid: GidEntry,
}

/// Adapters that somebody holds.
static OPEN: Mutex<Vec<Weak<Adapter>>> = Mutex::new(Vec::new());

impl Adapter {
    /// The adapter for connections from `local`. `wish` names a device (`rxe0`) or a device and a
    /// port (`mlx5_0:2`) that it has to be. One that is open already is shared.
    ///
    /// # Errors
    /// [`VerbsError::NoDevice`] and [`VerbsError::NoGid`] when there is no RDMA on that network,
    /// [`VerbsError::NoSuchDevice`] when the wish is not there, [`VerbsError::Call`].
    pub fn for_address(local: IpAddr, wish: Option<&str>) -> Result<Arc<Self>, VerbsError> {
        // Says what is missing in words of libibverbs, which may know more than the kernel's tree.
        let usable = super::device::devices()?;
        let choice = choose(&Sysfs::host(), &usable, local, wish)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|adapter| adapter.strong_count() > 0);
        if let Some(shared) = open
            .iter()
            .filter_map(Weak::upgrade)
            .find(|a| a.is(&choice))
        {
            return Ok(shared);
        }
        let same_device = |a: Arc<Self>| (**a.device.name() == *choice.device).then(|| a.device());
        let device = match open.iter().filter_map(Weak::upgrade).find_map(same_device) {
            Some(device) => device,
            None => Device::open(&choice.device)?,
        };
        let adapter = Arc::new(Self::new(device, &choice)?);
        open.push(Arc::downgrade(&adapter));
        Ok(adapter)
    }

    fn new(device: Arc<Device>, choice: &Choice) -> Result<Self, VerbsError> {
        let state = device.port(choice.port)?;
        Ok(Self {
            device,
            port: choice.port,
            gid: choice.gid.gid,
            gid_index: choice.gid.index,
            state,
        })
    }

    fn is(&self, choice: &Choice) -> bool {
        **self.device.name() == *choice.device
            && self.port == choice.port
            && self.gid_index == choice.gid.index
            && self.gid == choice.gid.gid
    }

    /// The device.
    pub fn device(&self) -> Arc<Device> {
        Arc::clone(&self.device)
    }

    /// The port, counted from 1.
    pub const fn port(&self) -> u8 {
        self.port
    }

    /// What the port is connected to.
    pub const fn link(&self) -> Link {
        self.state.link
    }

    /// The port's address.
    pub const fn gid(&self) -> Gid {
        self.gid
    }

    /// Where its address is in the port's table.
    pub const fn gid_index(&self) -> u8 {
        self.gid_index
    }

    /// The port's address within an InfiniBand subnet; 0 on Ethernet.
    pub const fn lid(&self) -> u16 {
        self.state.lid
    }

    /// Payload bytes of a packet: 256 to 4096.
    pub const fn mtu(&self) -> u16 {
        self.state.mtu
    }

    /// READs and atomics that a queue pair can answer at once.
    pub fn reads(&self) -> u8 {
        self.device.limits().reads
    }

    /// READs and atomics that a queue pair can have out at once.
    pub fn reads_out(&self) -> u8 {
        self.device.limits().reads_out
    }
}

/// The rule of the module, over a tree of files and the devices that libibverbs can drive.
pub(super) fn choose(
    sysfs: &Sysfs,
    usable: &[String],
    local: IpAddr,
    wish: Option<&str>,
) -> Result<Choice, VerbsError> {
    let ports: Vec<(String, u8)> = usable
        .iter()
        .flat_map(|device| sysfs.ports(device).into_iter().map(|p| (device.clone(), p)))
        .filter(|(device, port)| wish.is_none_or(|wish| fulfils(wish, device, *port)))
        .collect();
    if let (Some(wanted), true) = (wish, ports.is_empty()) {
        return Err(VerbsError::NoSuchDevice {
            wanted: wanted.into(),
            found: usable.join(", ").into(),
        });
    }
    let (mut exact, mut routable, mut infiniband) = (Vec::new(), Vec::new(), Vec::new());
    let mut found = Vec::new();
    for (device, port) in ports {
        let Some(link) = sysfs.link(&device, port) else {
            continue;
        };
        if !sysfs.is_active(&device, port) {
            found.push(format!("{device}:{port} is down"));
            continue;
        }
        let choice = |gid| Choice {
            device: device.clone(),
            port,
            link,
            gid,
        };
        let gids = sysfs.gids(&device, port);
        if link == Link::InfiniBand {
            infiniband.extend(gids.into_iter().next().map(choice));
            continue;
        }
        let v2 = gids.into_iter().filter(|g| g.kind == GidKind::RoceV2);
        for gid in v2 {
            found.push(format!("{device}:{port} has {}", gid.gid));
            if gid.gid == Gid::of(local) {
                exact.push(choice(gid));
            } else if !gid.gid.is_link_local() {
                routable.push(choice(gid));
            }
        }
    }
    let only = |mut list: Vec<Choice>| (list.len() == 1).then(|| list.remove(0));
    if let Some(first) = exact.into_iter().next() {
        return Ok(first);
    }
    let many = infiniband.len();
    only(infiniband)
        .or_else(|| wish.and_then(|_| only(routable)))
        .ok_or_else(|| VerbsError::NoGid {
            address: local,
            found: match (many, found.is_empty()) {
                (0 | 1, true) => "no port is up".into(),
                (0 | 1, false) => found.join(", ").into(),
                _ => format!("{many} InfiniBand ports are up, name one of them").into(),
            },
        })
}

/// Whether a port is what `device` or `device:port` asks for.
fn fulfils(wish: &str, device: &str, port: u8) -> bool {
    match wish.split_once(':') {
        Some((name, number)) => name == device && number.parse() == Ok(port),
        None => wish == device,
    }
}

//! RDMA ports in use, and the choice of one.
//!
//! [`rank_ports`] lists the ports that this process can use, the best first, by the rule of
//! [`Topology::rdma_ports`]; [`OpenPort::open`] opens one. Which of them a session uses is agreed with the
//! peer ([`rank_pairs`](tidewater_topology::rank_pairs)).

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::device::{Device, PortState, devices};
use super::error::VerbsError;
use super::sysfs::{Gid, Link};
use tidewater_protocol::limits::VERBS_SCATTER_BYTES;
use tidewater_runtime::clock;
use tidewater_runtime::sync::Arc;
use tidewater_topology::{PortCandidate, PortNames, PortWish, RankedPorts, Topology};

/// An open device with the port and address that connections through it use. Shared by all connections
/// of the process that use them.
#[derive(Debug)]
pub struct OpenPort {
    device: Arc<Device>,
    port: u8,
    gid: Gid,
    gid_index: u8,
    state: PortState,
}

/// Ports and devices in use. A device can outlive its ports, and is not opened twice even then:
/// objects of two openings cannot be used together.
static OPEN: Mutex<Open> = Mutex::new(Open {
    open_ports: Vec::new(),
    devices: Vec::new(),
});

struct Open {
    open_ports: Vec<Weak<OpenPort>>,
    devices: Vec<Weak<Device>>,
}

impl Open {
    fn device(&mut self, name: &str) -> Result<Arc<Device>, VerbsError> {
        let mut held = self.devices.iter().filter_map(Weak::upgrade);
        if let Some(shared) = held.find(|d| **d.name() == *name && !d.has_failed()) {
            return Ok(shared);
        }
        let device = Device::open(name)?;
        self.devices.retain(|device| device.strong_count() > 0);
        self.devices.push(Arc::downgrade(&device));
        Ok(device)
    }
}

/// Time for which the threads of a process use the devices that one of them has read: in a storm of new
/// sessions they are read once.
const SCAN_TTL: Duration = Duration::from_secs(1);

/// The devices of this host, and when they were read.
struct Scan {
    at: Instant,
    host: Topology,
    /// Names of the devices that libibverbs can drive.
    drivable: Vec<String>,
}

static SCAN: Mutex<Option<Scan>> = Mutex::new(None);

/// Ranks the ports of this host that libibverbs can drive. Cost: a file, and once within a second up to
/// 260 small files a port, most of them its GID table: some ms.
///
/// # Errors
/// [`VerbsError::NoDevice`] without RDMA, [`VerbsError::NoPort`] when no port can be used.
pub fn rank_ports(wish: &PortWish<'_>) -> Result<RankedPorts, VerbsError> {
    let mut scan = SCAN.lock().unwrap_or_else(PoisonError::into_inner);
    let now = clock::now();
    let is_fresh = |scan: &mut Scan| now.saturating_duration_since(scan.at) < SCAN_TTL;
    let known = match scan.take_if(is_fresh) {
        Some(known) => known,
        None => Scan {
            drivable: devices()?,
            host: Topology::read_devices(),
            at: now,
        },
    };
    let Scan { host, drivable, .. } = scan.insert(known);
    // NUMA distances are those of the calling thread.
    host.mark_allowed();
    usable(host.rdma_ports(wish), drivable)
}

/// Those of the ports that libibverbs can drive; at least one.
fn usable(mut ranked: RankedPorts, drivable: &[String]) -> Result<RankedPorts, VerbsError> {
    let mut strange: Vec<String> = ranked
        .candidates
        .iter()
        .map(|candidate| candidate.device.clone())
        .filter(|device| !drivable.contains(device))
        .collect();
    strange.dedup();
    for device in strange {
        let why = "has no provider in libibverbs; install rdma-core's (ibverbs-providers)";
        ranked.skip_device(&device, why);
    }
    if ranked.candidates.is_empty() {
        let found = ranked.reasons().into();
        return Err(VerbsError::NoPort { found });
    }
    Ok(ranked)
}

impl OpenPort {
    /// Returns the best port for connections from `local`. `wish` names the permitted ports,
    /// as [`PortNames`] does. A port that cannot be opened is skipped. An open port is shared.
    ///
    /// # Errors
    /// As [`rank_ports`] and, of the last port that was tried, [`OpenPort::open`].
    pub fn for_address(local: IpAddr, wish: Option<&str>) -> Result<Arc<Self>, VerbsError> {
        let bad = |name: &str| VerbsError::NoSuchDevice {
            wanted: name.into(),
            found: tidewater_topology::BadPortName::TEXT.into(),
        };
        let parse = |name: &str| name.parse::<PortNames>().map_err(|_| bad(name));
        let names = wish.map(parse).transpose()?;
        let ranked = rank_ports(&PortWish {
            control: Some(local),
            names: names.as_ref(),
            ..PortWish::default()
        })?;
        let mut last = VerbsError::NoPort { found: "".into() };
        for candidate in &ranked.candidates {
            match Self::open(candidate) {
                Ok(open_port) => return Ok(open_port),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Opens a port. An open port is shared.
    ///
    /// # Errors
    /// [`VerbsError::Call`] when the device cannot be opened, [`VerbsError::Limit`] when its messages are
    /// too short.
    pub fn open(candidate: &PortCandidate) -> Result<Arc<Self>, VerbsError> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.open_ports.retain(|open_port| {
            let open_port = open_port.upgrade();
            open_port.is_some_and(|open_port| !open_port.device().has_failed())
        });
        let mut held = open.open_ports.iter().filter_map(Weak::upgrade);
        if let Some(shared) = held.find(|a| a.is(candidate)) {
            return Ok(shared);
        }
        let device = open.device(&candidate.device)?;
        let state = device.port(candidate.port)?;
        takes_messages(device.name(), &state)?;
        let open_port = Arc::new(Self {
            state,
            device,
            port: candidate.port,
            gid: Gid(candidate.gid.gid.octets()),
            gid_index: gid_index(candidate),
        });
        open.open_ports.push(Arc::downgrade(&open_port));
        Ok(open_port)
    }

    fn is(&self, candidate: &PortCandidate) -> bool {
        **self.device.name() == *candidate.device
            && self.port == candidate.port
            && self.gid_index == gid_index(candidate)
            && self.gid.0 == candidate.gid.gid.octets()
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

/// Index of a candidate's GID. Candidates have none past 255, which no queue pair can name.
fn gid_index(candidate: &PortCandidate) -> u8 {
    u8::try_from(candidate.gid.index).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests;

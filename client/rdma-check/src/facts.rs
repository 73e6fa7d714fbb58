//! Facts of one end: host, device, port, limits.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use crate::finding::Finding;

/// One end of a check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HostFacts {
    /// Name of the host.
    pub host: String,
    /// Version of its kernel.
    pub kernel: String,
    /// Version of this program.
    pub version: String,
    /// Its address of the connection between both ends, which selects the device.
    pub address: IpAddr,
    /// The device; `None` if there is none to use.
    pub device: Option<DeviceFacts>,
    /// Why there is none.
    pub device_error: Option<String>,
    /// Memory that programs can have without swapping, in bytes; `None` if the kernel does not say.
    pub available_bytes: Option<u64>,
    /// Programs of perftest that are installed.
    pub perftest: Vec<String>,
    /// The RDMA findings of `tidewater doctor --rdma`.
    pub doctor: Vec<Finding>,
}

/// A device with the port and address of the connections, and its limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// Name of the device.
    pub name: String,
    /// Number of the port, from 1.
    pub port: u8,
    /// Link layer: `Ethernet` or `InfiniBand`.
    pub link: String,
    /// Firmware of the device; empty if it reports none.
    pub firmware: String,
    /// GID of the port.
    pub gid: String,
    /// Index of the GID.
    pub gid_index: u8,
    /// Address in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Payload bytes of a packet.
    pub mtu: u16,
    /// Rate of the port, as the kernel prints it.
    pub rate: String,
    /// Partition keys of the port.
    pub pkeys: Vec<u16>,
    /// Network interface of the GID; empty on InfiniBand.
    pub netdev: String,
    /// Whether it has 64-bit atomics (`atomic_cap`).
    pub atomics: bool,
    /// Whether it has memory windows of type 2.
    pub windows: bool,
    /// READs and atomics that a queue pair answers at once (`max_qp_rd_atom`).
    pub reads: u8,
    /// READs and atomics that a queue pair has in flight (`max_qp_init_rd_atom`).
    pub reads_out: u8,
    /// Elements of a READ's scatter list (`max_sge_rd`).
    pub read_elements: u32,
    /// Bytes of a memory region (`max_mr_size`).
    pub region_bytes: u64,
    /// Maximum number of memory regions.
    pub regions: u32,
    /// Maximum number of queue pairs.
    pub queue_pairs: u32,
    /// Number of completion vectors.
    pub vectors: u32,
    /// Inline bytes that a queue pair is granted, of 64 asked for.
    pub inline_bytes: u32,
    /// Whether regions can be registered for relaxed ordering.
    pub relaxed_ordering: bool,
    /// Whether libibverbs can exchange enhanced connection establishment (ECE) options.
    pub ece: bool,
    /// Why the limits that need an object of the device are unknown.
    pub limits_error: Option<String>,
}

impl HostFacts {
    /// Host, address and device.
    pub fn name(&self) -> String {
        let Self { host, address, .. } = self;
        match &self.device {
            Some(device) => format!("{host} {address} {}:{}", device.name, device.port),
            None => format!("{host} {address}"),
        }
    }

    /// Rows of the page: fact and value.
    pub(crate) fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![
            ("kernel", self.kernel.clone()),
            ("tidewater", self.version.clone()),
            (
                "perftest",
                match self.perftest.len() {
                    0 => "not installed".to_owned(),
                    _ => self.perftest.join(" "),
                },
            ),
        ];
        for finding in &self.doctor {
            if finding.check == "memlock" {
                rows.push(("locked memory", finding.found.clone()));
            }
        }
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        rows.extend(
            self.available_bytes
                .map(|bytes| ("free memory", mib(bytes))),
        );
        rows.push((
            "device",
            match (&self.device, &self.device_error) {
                (Some(device), _) => format!("{}:{} {}", device.name, device.port, device.firmware),
                (None, error) => error.clone().unwrap_or_default(), // no device has a reason
            },
        ));
        rows.extend(self.device.iter().flat_map(DeviceFacts::rows));
        rows
    }
}

impl DeviceFacts {
    /// Rows of the page: fact and value.
    fn rows(&self) -> Vec<(&'static str, String)> {
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let pkeys: Vec<String> = self.pkeys.iter().map(|key| format!("{key:#06x}")).collect();
        vec![
            ("link", format!("{} {}", self.link, self.rate)),
            ("GID", format!("{} (index {})", self.gid, self.gid_index)),
            ("LID", self.lid.to_string()),
            ("MTU", self.mtu.to_string()),
            ("P_Keys", pkeys.join(" ")),
            ("netdev", self.netdev.clone()),
            ("64-bit atomics", yes(self.atomics)),
            ("windows of type 2", yes(self.windows)),
            (
                "max_rd_atomic answered, sent",
                format!("{}, {}", self.reads, self.reads_out),
            ),
            ("max_sge_rd", self.read_elements.to_string()),
            ("max_mr_size", self.region_bytes.to_string()),
            ("max_mr", self.regions.to_string()),
            ("max_qp", self.queue_pairs.to_string()),
            ("completion vectors", self.vectors.to_string()),
            ("inline bytes granted", self.inline_bytes.to_string()),
            ("relaxed ordering", yes(self.relaxed_ordering)),
            ("ECE", yes(self.ece)),
        ]
    }
}

/// Whether the address is of this host only.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.is_loopback() || address == IpAddr::V4(Ipv4Addr::UNSPECIFIED)
}

/// Memory of this host that programs can have without swapping, in bytes.
pub(crate) fn available_bytes() -> Result<u64, String> {
    let text =
        std::fs::read_to_string("/proc/meminfo").map_err(|e| format!("/proc/meminfo: {e}"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or("/proc/meminfo has no MemAvailable")? * 1024)
}

/// Refuses to take more than half of this host's free memory: present pages would end other processes.
pub(crate) fn check_available(bytes: u64) -> Result<(), String> {
    let half = available_bytes()? / 2;
    match bytes <= half {
        true => Ok(()),
        false => Err(format!(
            "{bytes} bytes are more than half of the free memory, {half} bytes; give a smaller --register-gib"
        )),
    }
}

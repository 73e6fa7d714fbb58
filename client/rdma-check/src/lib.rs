//! Checks RDMA between two hosts: whether it works, how fast it is, and what to change.
//!
//! One end listens ([`listen()`]), the other one connects and runs the checks ([`call()`]). Both return the same
//! [`Report`], which has one JSON document and one page for people. A fault of RDMA is a [`Finding`] with
//! its remedy. A [`CheckError`] means that there was no check.
//!
//! | module | holds |
//! |---|---|
//! | `listen` | the end that listens: the server, and answers to requests |
//! | `check` | the end that connects: the checks in their order |
//! | `conn` `error` | the connection between both, and its errors |
//! | `facts` `judge` | facts of one end; verdicts on the facts of both |
//! | `device` | the RDMA device: limits, a lane to the other end, registration, the lane contract |
//! | `clients` `ledger` | clients: speed, torn reads, attaching; pushes while queue pairs break |
//! | `counters` | hardware counters before and after |
//! | `perftest` | programs of perftest as a reference |
//! | `finding` `report` | findings; the document and the page |
//!
//! # Security
//! The end that listens serves one caller, without a secret, at the given address only. A caller can take
//! processor time and a bounded amount of memory. The listener sends the token of the check's job in clear:
//! a host that reads the connection can join that job until the check ends. Use it where all hosts of the network
//! are trusted.

#![cfg_attr(not(test), forbid(unsafe_code))]

mod check;
mod clients;
mod conn;
mod counters;
#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
mod device;
#[cfg(not(any(feature = "verbs", feature = "verbs-dlopen")))]
#[path = "no_device.rs"]
mod device;
mod error;
mod facts;
mod finding;
mod judge;
mod ledger;
mod listen;
pub mod perftest;
mod report;

use std::net::IpAddr;
use std::time::Duration;

use tidewater::RdmaDevice;

pub use check::call;
pub use error::CheckError;
pub use facts::{DeviceFacts, HostFacts};
pub use finding::{BothCounters, Finding, PortCounters, Verdict};
pub use listen::listen;
pub use report::Report;

use device::Device;

/// TCP port that a check listens on by default.
pub const PORT: u16 = 7177;

/// What to check, and how long.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// RDMA device of this end; `None`: the one that has the address of the connection.
    pub device: Option<RdmaDevice>,
    /// Whether to take one minute and not ten. The caller decides.
    pub short: bool,
    /// Bytes that each end registers. `None`: 8 GiB, 0.25 GiB in a short check, and at most a quarter of the free
    /// memory of the end with less. The caller decides.
    pub register_bytes: Option<u64>,
    /// Clients that attach at once. The caller decides.
    pub clients: u32,
    /// Network interface of the caller that is set down for two seconds during a ledger; needs
    /// CAP_NET_ADMIN, and cuts every connection over it that does not survive that.
    pub port_down: Option<String>,
    /// Longest wait for a caller.
    pub wait: Duration,
}

impl Default for Options {
    /// A full check: ten minutes, 64 clients.
    fn default() -> Self {
        Self {
            device: None,
            short: false,
            register_bytes: None,
            clients: 64,
            port_down: None,
            wait: Duration::from_secs(600),
        }
    }
}

/// What the program knows of its host.
#[derive(Debug, Clone, Default)]
pub struct Host {
    /// Name of the host.
    pub name: String,
    /// Version of its kernel.
    pub kernel: String,
    /// Findings about RDMA on this host alone, such as those of `tidewater doctor --rdma`.
    pub doctor: Vec<Finding>,
}

impl Host {
    /// Facts of this end at its address of the connection, and the open device.
    fn facts(self, address: IpAddr, wish: Option<&RdmaDevice>) -> (HostFacts, Option<Device>) {
        let opened = Device::open(address, wish.map(RdmaDevice::as_str));
        let (device, error) = match opened {
            Ok(device) => (Some(device), None),
            Err(error) => (None, Some(error)),
        };
        let facts = HostFacts {
            host: self.name,
            kernel: self.kernel,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            address,
            device: device.as_ref().map(Device::facts),
            device_error: error,
            available_bytes: facts::available_bytes().ok(),
            perftest: perftest::installed(),
            doctor: self.doctor,
        };
        (facts, device)
    }
}

//! The choices that servers would make on a host.

use std::net::{IpAddr, Ipv4Addr};

use serde::Serialize;
use tidewater_launch::RdmaDevice;
use tidewater_topology::{FabricSettings, Near, NoSuchNic, Placement, Wish, appliers_that_fit};

use super::Machine;
use tidewater_engine::store::Hugepages;
use tidewater_engine::store::hugepages::{self, Choice, Shortfall};
use tidewater_service::server::CAPACITY_DEFAULT;

/// The processes to run on the host, and their settings.
#[derive(Debug, Clone)]
pub struct Question {
    /// Number of servers, at least 1.
    pub servers: u32,
    /// Applier threads of each server; `None` lets the server choose.
    pub appliers: Option<u16>,
    /// Number of client threads.
    pub clients: u32,
    /// Bytes of each of a server's two memories.
    pub capacity: usize,
    /// Page size of the memories.
    pub hugepages: Hugepages,
    /// Configured network or RDMA device.
    pub nic: Option<String>,
    /// Address that servers listen on.
    pub listens: Option<IpAddr>,
    /// Whether RDMA is required: its faults then are failures, not warnings.
    pub rdma: bool,
    /// Settings of queue pairs.
    pub fabric: FabricSettings,
    /// RDMA ports that servers may use; `None` permits all.
    pub rdma_device: Option<RdmaDevice>,
}

impl Default for Question {
    /// One server and no client on all addresses, as a cluster starts a server.
    fn default() -> Self {
        Self {
            servers: 1,
            appliers: None,
            clients: 0,
            capacity: CAPACITY_DEFAULT,
            hugepages: Hugepages::Auto,
            nic: None,
            listens: Some(Ipv4Addr::UNSPECIFIED.into()),
            rdma: false,
            fabric: FabricSettings::UNSET,
            rdma_device: None,
        }
    }
}

/// The choices that servers would make.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Chosen {
    /// Applier threads of each server.
    pub appliers: u16,
    /// The NIC that they are near.
    pub near: Near,
    /// Cores and memory of each server.
    pub servers: Vec<Placement>,
    /// Pages of the first server's memories; `None` if it would refuse to start.
    pub pages: Option<Choice>,
    /// What is missing if it would refuse.
    pub refused: Option<Shortfall>,
}

/// Computes the choices that servers would make.
///
/// # Errors
/// [`NoSuchNic`] for a configured device that does not exist.
pub fn choose(machine: &Machine, question: &Question) -> Result<Chosen, NoSuchNic> {
    let topology = &machine.topology;
    let near = topology.near(question.nic.as_deref(), question.listens)?;
    let fit = || appliers_that_fit(topology.usable(), question.servers);
    let appliers = question.appliers.unwrap_or_else(fit);
    let place = |local_rank| {
        let wish = Wish {
            appliers,
            local_rank,
            local_appliers: u32::from(appliers).saturating_mul(question.servers),
            local_clients: question.clients,
        };
        topology.place(wish, &near)
    };
    let pages = hugepages::choose(question.hugepages, question.capacity, &topology.hugepages);
    let refused = pages.as_ref().err().copied();
    Ok(Chosen {
        appliers,
        servers: (0..question.servers).map(place).collect(),
        near,
        pages: pages.ok(),
        refused,
    })
}

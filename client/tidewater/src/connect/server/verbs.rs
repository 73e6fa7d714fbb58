//! The RDMA side of a link: the ports of this host, and the resources that the lanes of one thread share on
//! one of them.

use std::net::IpAddr;

use tidewater_lanes::fabric::ClientLane;
use tidewater_lanes::wake::{Arms, Reactor};
use tidewater_launch::{FabricSettings, RdmaDevice};
use tidewater_protocol::wire::control::VerbsConnected;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Buffer;
use tidewater_runtime::sync::Arc;
use tidewater_topology::{GidIndex, PKey, PortCandidate, PortWish, RankedPorts};
pub(super) use tidewater_verbs::LaneOffer;
use tidewater_verbs::{ClientDomain, Notifier, OpenPort, VerbsError, rank_ports};

use crate::error::Cause;

/// RDMA resources that the lanes of one link share.
#[derive(Debug)]
pub(super) struct VerbsSide {
    domain: Arc<ClientDomain>,
    notifier: Arc<Notifier>,
}

impl VerbsSide {
    /// Ranks the ports of this host for connections from `control`.
    pub(super) fn ports(
        control: IpAddr,
        names: Option<&RdmaDevice>,
        fabric: FabricSettings,
        local_rank: u32,
    ) -> Result<RankedPorts, VerbsError> {
        let wish = PortWish {
            control: Some(control),
            names: names.map(RdmaDevice::names),
            pkey: fabric.pkey.map(PKey::get),
            gid_index: fabric.gid_index.map(GidIndex::get),
            local_rank,
        };
        rank_ports(&wish)
    }

    /// Opens a port, for a thread that sleeps on `watch` and arms `arms`. The device raises its events by
    /// completion vector `vector`, modulo those that it has.
    pub(super) fn new(
        port: &PortCandidate,
        fabric: FabricSettings,
        watch: &Reactor,
        arms: &Arms,
        vector: usize,
    ) -> Result<Self, VerbsError> {
        let open_port = OpenPort::open(port)?;
        Ok(Self {
            domain: ClientDomain::new(&open_port, fabric)?,
            notifier: Notifier::with_vector(&open_port, watch, arms, vector)?,
        })
    }

    /// Whether the device has failed since. Logs its events.
    pub(super) fn has_failed(&self) -> bool {
        let device = self.domain.open_port().device();
        device.log_events();
        device.has_failed()
    }

    /// Registers a buffer, so that the device may write it for the lanes.
    pub(super) fn register(&self, buffer: &mut Buffer) -> Result<(), VerbsError> {
        self.domain.register(buffer)
    }

    /// Makes a lane's queue pairs and mailbox. `counts`: pushes over it are counted.
    pub(super) fn offer(
        &self,
        pulls: usize,
        mailbox_bytes: usize,
        counts: bool,
    ) -> Result<LaneOffer, VerbsError> {
        let mut offer = LaneOffer::new(&self.domain, &self.notifier, pulls, mailbox_bytes)?;
        if !counts {
            offer.ask_no_atomics();
        }
        Ok(offer)
    }

    /// Opens the lane, once the server has sent its end. With `prove`, proves before that deadline that
    /// the path carries packets of all lengths.
    pub(super) fn open(
        &self,
        offer: LaneOffer,
        connected: &VerbsConnected,
        peer: &str,
        prove: Option<Deadline>,
    ) -> Result<Box<dyn ClientLane>, Cause> {
        let mut lane = offer.open(connected, peer.to_owned())?;
        if let Some(deadline) = prove {
            lane.prove_path(deadline)?;
        }
        Ok(Box::new(lane))
    }

    /// The device that keeps a lane from having atomics.
    pub(super) fn without_atomics(&self) -> String {
        let device = self.domain.open_port().device();
        match device.limits().atomics {
            true => "the RDMA device of the server".to_owned(),
            false => format!("the RDMA device {} of this host", device.name()),
        }
    }
}

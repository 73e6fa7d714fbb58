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

/// RDMA resources of one link, which its lanes share: the client's protection domain on one port, and the notifier
/// of completions.
#[derive(Debug)]
pub(super) struct VerbsSide {
    domain: Arc<ClientDomain>,
    notifier: Arc<Notifier>,
}

impl VerbsSide {
    /// Ranks the RDMA ports of this host by how well they reach the server. `control` is the local address of the
    /// control connection; `names` restricts the ports; `local_rank` spreads processes over equal ports.
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

    /// Opens an RDMA port for a thread that sleeps on `watch` and arms completion events through `arms`. The device
    /// raises its events on completion vector `vector`, modulo the number of vectors.
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

    /// Whether the RDMA device has failed since it was opened. Logs the asynchronous events of the device.
    pub(super) fn has_failed(&self) -> bool {
        let device = self.domain.open_port().device();
        device.log_events();
        device.has_failed()
    }

    /// Registers a buffer with the RDMA device, so that reads over the lanes write it without a copy.
    pub(super) fn register(&self, buffer: &mut Buffer) -> Result<(), VerbsError> {
        self.domain.register(buffer)
    }

    /// Makes the client's queue pairs and mailbox of a lane. `pulls` is the number of queue pairs for reads; with
    /// `counts`, pushes over the lane are counted, which needs atomics.
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

    /// Opens a lane over verbs from both ends' data: the client's `offer` and the server's `connected`. With
    /// `prove`, it also proves before that deadline that the path carries packets of all lengths.
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

    /// Text that names the RDMA device without 64-bit atomics: this host's if it lacks them, otherwise the server's.
    pub(super) fn without_atomics(&self) -> String {
        let device = self.domain.open_port().device();
        match device.limits().atomics {
            true => "the RDMA device of the server".to_owned(),
            false => format!("the RDMA device {} of this host", device.name()),
        }
    }
}

//! The RDMA side of a link: the device of its control connection's address, and the resources that the
//! lanes of one thread share on it.

use std::net::IpAddr;

use tidewater_lanes::fabric::ClientLane;
use tidewater_lanes::wake::{Arms, Reactor};
use tidewater_launch::{RdmaDevice, RdmaTimeout};
use tidewater_protocol::wire::control::VerbsConnected;
use tidewater_runtime::mem::Buffer;
use tidewater_runtime::sync::Arc;
use tidewater_verbs::{Adapter, ClientDomain, LaneOffer, Notifier, RetryTimeout, VerbsError};

/// RDMA resources that the lanes of one link share.
#[derive(Debug)]
pub(super) struct VerbsSide {
    domain: Arc<ClientDomain>,
    notifier: Arc<Notifier>,
}

impl VerbsSide {
    /// Opens the device of `local`, for a thread that sleeps on `watch` and arms `arms`.
    pub(super) fn new(
        local: IpAddr,
        (wish, timeout): (Option<&RdmaDevice>, RdmaTimeout),
        watch: &Reactor,
        arms: &Arms,
    ) -> Result<Self, String> {
        let patience = RetryTimeout::with_timeout(timeout.exponent());
        let made = || {
            let adapter = Adapter::for_address(local, wish.map(RdmaDevice::as_str))?;
            Ok(Self {
                domain: ClientDomain::new(&adapter, patience)?,
                notifier: Notifier::new(&adapter, watch, arms)?,
            })
        };
        made().map_err(|e: VerbsError| e.to_string())
    }

    /// Registers a buffer, so that the device may write it for the lanes.
    pub(super) fn register(&self, buffer: &mut Buffer) -> Result<(), String> {
        self.domain.register(buffer).map_err(|e| e.to_string())
    }

    /// Makes a lane's queue pairs and mailbox.
    pub(super) fn offer(&self, pulls: usize, mailbox_bytes: usize) -> Result<LaneOffer, String> {
        LaneOffer::new(&self.domain, &self.notifier, pulls, mailbox_bytes)
            .map_err(|e| e.to_string())
    }

    /// Opens the lane, once the server has sent its end.
    pub(super) fn open(
        &self,
        offer: LaneOffer,
        told: &VerbsConnected,
        peer: &str,
    ) -> Result<Box<dyn ClientLane>, String> {
        match offer.open(told, peer.to_owned()) {
            Ok(lane) => Ok(Box::new(lane)),
            Err(e) => Err(e.to_string()),
        }
    }
}

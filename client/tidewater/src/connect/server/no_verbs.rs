//! Replaces `verbs` in a program built without RDMA: no value of these types exists.

use std::net::IpAddr;

use tidewater_lanes::fabric::ClientLane;
use tidewater_lanes::wake::{Arms, Reactor};
use tidewater_launch::{RdmaDevice, RdmaTimeout};
use tidewater_protocol::ids::ApplierId;
use tidewater_protocol::wire::control::{VerbsConnect, VerbsConnected};
use tidewater_runtime::mem::Buffer;

/// Uninhabited: this program has no RDMA side.
#[derive(Debug)]
pub(super) enum VerbsSide {}

/// Uninhabited: this program offers no queue pairs.
#[derive(Debug)]
pub(super) enum LaneOffer {}

impl VerbsSide {
    pub(super) fn new(
        _: IpAddr,
        _: (Option<&RdmaDevice>, RdmaTimeout),
        _: &Reactor,
        _: &Arms,
    ) -> Result<Self, String> {
        Err("this program was built without the cargo feature verbs or verbs-dlopen".into())
    }

    pub(super) fn register(&self, _: &mut Buffer) -> Result<(), String> {
        match *self {}
    }

    pub(super) fn offer(&self, _: usize, _: usize) -> Result<LaneOffer, String> {
        match *self {}
    }

    pub(super) fn open(
        &self,
        _: LaneOffer,
        _: &VerbsConnected,
        _: &str,
    ) -> Result<Box<dyn ClientLane>, String> {
        match *self {}
    }
}

impl LaneOffer {
    pub(super) fn connect(&self, _: ApplierId, _: u64) -> VerbsConnect {
        match *self {}
    }
}

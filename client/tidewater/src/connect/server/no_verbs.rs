//! Replaces `verbs` in a program built without RDMA: no value of these types exists.

use std::net::IpAddr;

use tidewater_lanes::fabric::ClientLane;
use tidewater_lanes::wake::{Arms, Reactor};
use tidewater_launch::{FabricSettings, RdmaDevice};
use tidewater_protocol::ids::ApplierId;
use tidewater_protocol::wire::control::{VerbsConnect, VerbsConnected};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Buffer;
use tidewater_topology::{PortCandidate, RankedPorts};

use crate::error::Cause;

const NOT_BUILT_IN: &str = "this program was built without the cargo feature verbs or verbs-dlopen";

/// RDMA resources of a link, in a program built without RDMA: an uninhabited type.
#[derive(Debug)]
pub(super) enum VerbsSide {}

/// Client's end of a lane over verbs, in a program built without RDMA: an uninhabited type.
#[derive(Debug)]
pub(super) enum LaneOffer {}

impl VerbsSide {
    pub(super) fn ports(
        _: IpAddr,
        _: Option<&RdmaDevice>,
        _: FabricSettings,
        _: u32,
    ) -> Result<RankedPorts, Cause> {
        Err(NOT_BUILT_IN.into())
    }

    pub(super) fn new(
        _: &PortCandidate,
        _: FabricSettings,
        _: &Reactor,
        _: &Arms,
        _: usize,
    ) -> Result<Self, Cause> {
        Err(NOT_BUILT_IN.into())
    }

    pub(super) fn has_failed(&self) -> bool {
        match *self {}
    }

    pub(super) fn register(&self, _: &mut Buffer) -> Result<(), Cause> {
        match *self {}
    }

    pub(super) fn offer(&self, _: usize, _: usize, _: bool) -> Result<LaneOffer, Cause> {
        match *self {}
    }

    pub(super) fn open(
        &self,
        _: LaneOffer,
        _: &VerbsConnected,
        _: &str,
        _: Option<Deadline>,
    ) -> Result<Box<dyn ClientLane>, Cause> {
        match *self {}
    }

    pub(super) fn without_atomics(&self) -> String {
        match *self {}
    }
}

impl LaneOffer {
    pub(super) fn connect(&self, _: ApplierId, _: u64) -> VerbsConnect {
        match *self {}
    }
}

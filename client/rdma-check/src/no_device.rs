//! Stand-in for `device` in a build without RDMA: no device can be opened.

use std::net::IpAddr;

use tidewater_protocol::wire::control::{VerbsConnect, VerbsConnected};

use crate::conn::{ClauseResult, Registered};
use crate::facts::DeviceFacts;
use crate::finding::Finding;

/// It cannot be constructed.
#[derive(Debug)]
pub(crate) enum Device {}

/// It cannot be constructed.
#[derive(Debug)]
pub(crate) enum ServedLane {}

/// It cannot be constructed.
#[derive(Debug)]
pub(crate) enum Offer {}

impl Device {
    pub(crate) fn open(_: IpAddr, _: Option<&str>) -> Result<Self, String> {
        Err("this program was built without RDMA; build it with --features verbs-dlopen".to_owned())
    }

    pub(crate) fn facts(&self) -> DeviceFacts {
        match *self {}
    }

    pub(crate) fn order(&self) -> Result<Option<bool>, String> {
        match *self {}
    }

    pub(crate) fn accept(
        &self,
        _: &VerbsConnect,
    ) -> Result<(ServedLane, VerbsConnected, u32), String> {
        match *self {}
    }

    pub(crate) fn offer(&self) -> Result<(Offer, VerbsConnect), String> {
        match *self {}
    }

    pub(crate) fn register(&self, _: u64) -> Result<Registered, String> {
        match *self {}
    }

    pub(crate) fn contract(&self, _: u64) -> Result<Vec<ClauseResult>, String> {
        match *self {}
    }
}

impl Offer {
    pub(crate) fn probe(self, _: &VerbsConnected, _: u32) -> Finding {
        match self {}
    }
}

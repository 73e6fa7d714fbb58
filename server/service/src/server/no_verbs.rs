//! Stands for `verbs` in a server that was built without RDMA: who asks for it is told so.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tidewater_lanes::fabric::Inbox;
use tidewater_protocol::wire::control::{Transport, VerbsConnect};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::connects::Make;
use super::handle::Shared;

/// Nothing.
#[derive(Debug)]
pub(super) struct Verbs;

/// There is none.
#[derive(Debug)]
pub(super) enum VerbsSession {}

#[allow(clippy::unused_self, reason = "the shape of `verbs`")]
impl Verbs {
    pub(super) fn new(_: Arc<OwnedFd>) -> Self {
        Self
    }

    pub(super) const fn hear(&self) {}

    pub(super) fn attach(
        &mut self,
        _: &Shared,
        _: IpAddr,
        _: &str,
    ) -> Result<VerbsSession, Refusal> {
        let code = Transport::Verbs as u64;
        Err(Refusal::new(RefusalCode::BadTransport, [code, 0, 0, 0])
            .with_text("this server was built without the cargo feature verbs or verbs-dlopen"))
    }
}

impl VerbsSession {
    pub(super) fn keep(&mut self, _: &Inbox) {
        match *self {}
    }

    pub(super) fn accept(&self, _: VerbsConnect, _: String) -> Result<Make, Refusal> {
        match *self {}
    }
}

//! Replaces `verbs` in a server built without RDMA: refuses clients that ask for it.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tidewater_lanes::fabric::Inbox;
use tidewater_protocol::wire::control::{Transport, VerbsConnect};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::connects::Make;
use super::handle::Shared;

/// No devices without RDMA.
#[derive(Debug)]
pub(super) struct Verbs;

/// Has no values: no session uses verbs.
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

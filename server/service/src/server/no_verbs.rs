//! Stands in for `verbs` in a server built without RDMA: refuses clients that ask for it.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tidewater_lanes::fabric::Inbox;
use tidewater_lanes::wake::Waker;
use tidewater_protocol::wire::control::{Attach, Transport, VerbsConnect, VerbsPath};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::connects::Make;
use super::handle::Shared;

/// Empty set of RDMA devices, for builds without RDMA.
#[derive(Debug)]
pub(super) struct Verbs;

/// Type without values, since no session uses verbs in this build.
#[derive(Debug)]
pub(super) enum VerbsSession {}

#[allow(clippy::unused_self, reason = "the shape of `verbs`")]
impl Verbs {
    pub(super) fn new(_: Arc<OwnedFd>, _: Waker) -> Self {
        Self
    }

    pub(super) const fn hear(&mut self) {}

    pub(super) const fn memory_was_registered(&self) -> bool {
        false
    }

    #[allow(clippy::unnecessary_wraps, reason = "the shape of `verbs`")]
    pub(super) fn renew(&mut self, _: &Shared, session: &mut VerbsSession) -> Result<(), Refusal> {
        match *session {}
    }

    pub(super) fn attach(
        &mut self,
        _: &Shared,
        _: IpAddr,
        _: &str,
        _: &Attach,
    ) -> Result<VerbsSession, Refusal> {
        let code = Transport::Verbs as u64;
        Err(Refusal::new(RefusalCode::BadTransport, [code, 0, 0, 0])
            .with_text("this server was built without the cargo feature verbs or verbs-dlopen"))
    }
}

impl VerbsSession {
    pub(super) fn device_has_failed(&self) -> bool {
        match *self {}
    }

    pub(super) fn is_ready(&self) -> bool {
        match *self {}
    }

    pub(super) const fn path(&self) -> VerbsPath {
        match *self {}
    }

    pub(super) fn keep(&mut self, _: &Inbox) {
        match *self {}
    }

    pub(super) fn accept(&self, _: Vec<VerbsConnect>, _: &str) -> Result<Make, Refusal> {
        match *self {}
    }
}

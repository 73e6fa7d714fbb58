//! Stand-in for `verbs` in a build without it: tests that need a device name the missing feature.

use tidewater_engine::store::ServerMemory;
use tidewater_lanes::fabric::{ClientLane, Inbox, ServerLane};
use tidewater_lanes::wake::{Arms, OsParker, Reactor};
use tidewater_runtime::mem::Buffer;

/// Server side; it cannot be constructed.
pub(super) enum Serving {}

impl Serving {
    pub(super) fn new<'a>(
        _: &ServerMemory,
        _: impl Iterator<Item = (&'a Reactor, &'a Arms)>,
    ) -> Self {
        panic!("built without RDMA: build the tests with --features verbs-dlopen")
    }
}

/// Client side; it cannot be constructed.
pub(super) enum Asking {}

impl Asking {
    pub(super) fn new(_: &OsParker) -> Self {
        panic!("built without RDMA: build the tests with --features verbs-dlopen")
    }

    pub(super) fn register(&self, _: &mut Buffer) -> Result<(), String> {
        match *self {}
    }

    pub(super) fn lane(
        &self,
        _: &Serving,
        _: usize,
        _: &Inbox,
    ) -> (Box<dyn ClientLane>, Box<dyn ServerLane>) {
        match *self {}
    }
}

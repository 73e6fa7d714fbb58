//! A device that leaves the older of two overlapping writes standing: a status record posted into the
//! mailbox does not replace its predecessor.

use std::time::Duration;

use tidewater_lanes::fabric::{Inbox, LaneError, RegionTableView, ServerLane};
use tidewater_lanes::sim::SimServerLane;
use tidewater_protocol::layout::session::MAILBOX_STATE_AT;
use tidewater_runtime::sync::{AtomicU64, Ordering};

/// Selects the arriving status records of a client's lanes, and counts the lost ones. Default: all arrive.
#[derive(Debug, Default)]
pub struct LostStatuses {
    /// One in `one_in` status records arrives, the first of them; 0: all.
    one_in: u64,
    /// Number of posted status records.
    posted: AtomicU64,
    lost: AtomicU64,
}

impl LostStatuses {
    /// Only the first of `one_in` successive status records arrives.
    pub fn but_one_in(one_in: u64) -> Self {
        Self {
            one_in,
            ..Self::default()
        }
    }

    /// Number of status records that did not arrive.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn loses_next(&self) -> bool {
        let nth = self.posted.fetch_add(1, Ordering::Relaxed);
        let loses = self.one_in > 0 && !nth.is_multiple_of(self.one_in);
        self.lost.fetch_add(u64::from(loses), Ordering::Relaxed);
        loses
    }
}

/// A server lane over such a device.
pub struct StalePort {
    /// The lane below it.
    pub port: SimServerLane,
    /// Which writes of a status it loses.
    pub lost: std::sync::Arc<LostStatuses>,
}

impl ServerLane for StalePort {
    fn peer(&self) -> &str {
        self.port.peer()
    }

    fn poll(&mut self, exports: &mut RegionTableView, inbox: &Inbox) -> Result<bool, LaneError> {
        self.port.poll(exports, inbox)
    }

    fn post(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneError> {
        if at == MAILBOX_STATE_AT && self.lost.loses_next() {
            return Ok(());
        }
        self.port.post(at, bytes)
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        self.port.signal()
    }

    fn poll_hint(&self) -> Option<Duration> {
        self.port.poll_hint()
    }

    fn destroy(&mut self) {
        self.port.destroy();
    }
}

//! Atomics with a waiting caller, and atomics without one.

use super::client_lane::{Awaited, TcpClientLane, Whose};
use super::op::{HEADER_BYTES, Request};
use crate::fabric::{LaneError, RemoteAddr};
use tidewater_runtime::clock::Deadline;

impl TcpClientLane {
    /// Sends an atomic request of the call `op` and blocks until the answer or the deadline. Returns the
    /// old value of the word.
    pub(super) fn count(
        &mut self,
        op: &'static str,
        request: &Request,
        deadline: Deadline,
    ) -> Result<u64, LaneError> {
        self.begin(op)?;
        let result = self.try_count(request, deadline);
        self.end(result)
    }

    fn try_count(&mut self, request: &Request, deadline: Deadline) -> Result<u64, LaneError> {
        self.ask_count(request, Whose::Counter)?;
        self.inbound.counter = None;
        self.wait(&mut None, deadline, |lane, _| {
            lane.inbound.counter.is_some()
        })?;
        self.inbound.counter.ok_or_else(|| self.failed("no answer"))
    }

    /// Sends an addition of `add` to the counter `at`, behind pending output and without waiting for the
    /// answer. A later poll of the lane receives the answer (the old value) and drops it.
    pub(super) fn count_unheard(&mut self, at: RemoteAddr, add: u64) -> Result<(), LaneError> {
        let request = Request::FetchAdd {
            key: at.key,
            addr: at.addr,
            add,
        };
        let asked = self.ask_count(&request, Whose::Nobody);
        let sent = asked.and_then(|()| self.send().map(drop));
        self.end(sent)
    }

    fn ask_count(&mut self, request: &Request, whose: Whose) -> Result<(), LaneError> {
        self.make_room(HEADER_BYTES)?;
        self.out.push(&request.to_bytes());
        self.inbound.awaited.push_back(Awaited {
            whose,
            bytes: 0,
            cookie: 0,
        });
        Ok(())
    }
}

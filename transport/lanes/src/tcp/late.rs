//! Reads that miss their deadline.

use std::time::Duration;

use super::client_lane::{TcpClientLane, Whose};
use crate::fabric::{LaneError, TransportKind};
use tidewater_protocol::limits::LANE_QUIET_MAX;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_runtime::clock::Deadline;

impl TcpClientLane {
    /// Ends a blocking read that met its deadline and returns its error, normally [`LaneError::Late`]:
    /// its answers will be dropped on arrival, and the lane stays usable. After [`LANE_QUIET_MAX`] (5 s)
    /// without input the error is [`LaneError::Deadline`], which breaks the lane: another connection may
    /// do better.
    #[cold]
    pub(super) fn leave(&mut self) -> LaneError {
        let until = self.note_quiet();
        if until.passed() || on(Mutant::LateReadBreaksLane) {
            return self.late();
        }
        let awaited = self.inbound.awaited.iter_mut();
        for request in awaited.filter(|request| request.whose == Whose::Caller) {
            request.whose = Whose::Late;
        }
        LaneError::Late {
            transport: TransportKind::Tcp,
            peer: self.peer.clone(),
            op: self.op,
        }
    }

    /// Notes that an answer is awaited and late. Returns the time at which the lane is given up if no
    /// input comes before. It is [`LANE_QUIET_MAX`] after the start of the first late wait since the last
    /// input, or after its end if input came during that wait.
    #[cold]
    pub(super) fn note_quiet(&mut self) -> Deadline {
        let since = if self.heard {
            Deadline::after(Duration::ZERO)
        } else {
            self.begun
        };
        let give_up = Deadline::at(since.instant() + LANE_QUIET_MAX);
        *self.quiet_until.get_or_insert(give_up)
    }
}

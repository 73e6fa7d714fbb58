//! The time of a client's attempts within one call.

use std::cell::Cell;
use std::time::Duration;

use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::clock::Deadline;

/// Longest silence of a peer: after it the connection is replaced by a new one.
pub const ATTEMPT: Duration = Duration::from_secs(5);
/// First pause between two attempts.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
/// Longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Time of one attempt: [`ATTEMPT`] after its start or after the last news, and at most the deadline of the call.
#[derive(Debug)]
pub struct Attempt {
    call: Deadline,
    until: Cell<Deadline>,
}

impl Attempt {
    /// Starts an attempt within a call that ends at `call`.
    pub fn new(call: Deadline) -> Self {
        let until = Cell::new(call.min(Deadline::after(ATTEMPT)));
        Self { call, until }
    }

    /// Time left; zero when the peer was silent for too long or the call's time is over.
    pub fn left(&self) -> Duration {
        self.until.get().left()
    }

    /// Notes that the peer works on the request.
    pub fn progressed(&self) {
        if !mutants::on(Mutant::QueueNewsIgnored) {
            self.until.set(self.call.min(Deadline::after(ATTEMPT)));
        }
    }
}

/// Pauses between the attempts of one call: 1 ms, then doubled, at most 200 ms.
#[derive(Debug)]
pub struct Pauses {
    call: Deadline,
    next: Duration,
}

impl Pauses {
    /// Starts with the shortest pause, for a call that ends at `call`.
    pub const fn new(call: Deadline) -> Self {
        Self {
            call,
            next: PAUSE_FIRST,
        }
    }

    /// The pause before the next attempt; `None` when the call would end in it.
    pub fn after_failure(&mut self) -> Option<Duration> {
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE_MAX);
        (self.call.left() > pause).then_some(pause)
    }
}

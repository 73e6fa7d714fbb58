//! Lane recoveries that wait until the applier has ended the lane.
//!
//! A device takes milliseconds to end a lane, and a host that died leaves many lanes to end. Until then the ring's
//! applier does not answer (F11). The control thread sends the command, serves other connections, and is woken by the
//! applier's answer.

use crossbeam_channel::{Receiver, Sender, unbounded};
use tidewater_engine::apply::command::Reply;
use tidewater_lanes::wake::Waker;
use tidewater_protocol::ids::{ApplierId, SessionId};
use tidewater_protocol::layout::lines::StateLine;

use super::conn::ConnId;

/// A client's request to recover a lane: to end it and connect it again after it broke.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recovery {
    pub(super) conn: ConnId,
    /// The client's number for the request, which the answer repeats.
    pub(super) request: u64,
    pub(super) session: SessionId,
    pub(super) applier: ApplierId,
}

/// A recovery that its applier has answered by ending the lane, with the ring's position; `None` if the applier lacks
/// the session.
type Ended = (Recovery, Option<StateLine>);

/// Requests to recover lanes (to connect broken ones again): those that wait for their appliers, and those that the
/// appliers have answered.
#[derive(Debug)]
pub(super) struct Recoveries {
    ended: (Sender<Ended>, Receiver<Ended>),
    waker: Waker,
}

impl Recoveries {
    /// Makes an empty set. `waker` wakes the control thread whenever an applier has ended a lane.
    pub(super) fn new(waker: Waker) -> Self {
        Self {
            ended: unbounded(),
            waker,
        }
    }

    /// Returns the callback for a recovery. The applier calls it on its thread, after it has ended the lane, with the
    /// ring's position. `Self::take` then returns the recovery.
    pub(super) fn reply(&self, recovery: Recovery) -> Reply<Option<StateLine>> {
        let (tx, waker) = (self.ended.0.clone(), self.waker.clone());
        Box::new(move |state| {
            // The receiver is gone: the server ends.
            let _ = tx.send((recovery, state));
            waker.wake();
        })
    }

    /// Removes and returns a recovery that its applier has answered; `None` if there is none. Does not block.
    pub(super) fn take(&self) -> Option<Ended> {
        self.ended.1.try_recv().ok()
    }
}

//! Recoveries that wait for the end of their lane.
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

/// A request to recover a lane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recovery {
    pub(super) conn: ConnId,
    /// The request's number, which its answer repeats.
    pub(super) request: u64,
    pub(super) session: SessionId,
    pub(super) applier: ApplierId,
}

/// A recovery with the position of its ring; `None` for a session that the applier does not have.
type Ended = (Recovery, Option<StateLine>);

/// The recoveries that appliers work on.
#[derive(Debug)]
pub(super) struct Recoveries {
    ended: (Sender<Ended>, Receiver<Ended>),
    waker: Waker,
}

impl Recoveries {
    /// None yet. `waker` is woken whenever a lane has ended.
    pub(super) fn new(waker: Waker) -> Self {
        Self {
            ended: unbounded(),
            waker,
        }
    }

    /// Takes the answer of the applier, on its thread.
    pub(super) fn reply(&self, recovery: Recovery) -> Reply<Option<StateLine>> {
        let (tx, waker) = (self.ended.0.clone(), self.waker.clone());
        Box::new(move |state| {
            // The receiver is gone: the server ends.
            let _ = tx.send((recovery, state));
            waker.wake();
        })
    }

    /// Removes and returns a recovery that waits no more, if any.
    pub(super) fn take(&self) -> Option<Ended> {
        self.ended.1.try_recv().ok()
    }
}

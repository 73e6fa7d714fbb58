//! Commands that wait until a lane has ended.
//!
//! A device ends a lane in milliseconds, on a thread of its own. Until then bytes may still be placed in the ring's
//! inbox (F11): the recovery of the ring, and its end, wait for that. The applier serves its other rings meanwhile.

use crossbeam_channel::Sender;
use tidewater_protocol::layout::lines::StateLine;

use super::Applier;
use crate::apply::command::Reply;

/// Command that waits until the device (NIC) has ended a session's lane (connection), with the channel for
/// its answer.
pub(super) enum Ending {
    Recover(Reply<Option<StateLine>>),
    Drop(Sender<()>),
}

impl std::fmt::Debug for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Recover(_) => "Recover",
            Self::Drop(_) => "Drop",
        })
    }
}

impl Applier {
    /// Carries out the waiting recoveries and drops of rings with lanes that have ended. Returns whether any
    /// was carried out. Commands of one session keep the order of their arrival. An answer is dropped if its
    /// receiver has gone.
    pub(super) fn end_lanes(&mut self) -> bool {
        let before = self.ending.len();
        let mut n = 0;
        while n < self.ending.len() {
            let session = self.ending[n].0;
            let ended = self
                .ring(session)
                .is_none_or(|ring| self.rings[ring].end_port());
            if !ended {
                n += 1;
                continue;
            }
            match self.ending.remove(n) {
                (session, Ending::Recover(reply)) => reply(self.recover(session)),
                (session, Ending::Drop(tx)) => {
                    self.drop_ring(session);
                    let _ = tx.send(());
                }
            }
        }
        self.ending.len() < before
    }
}

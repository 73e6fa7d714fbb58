//! The applier's end of a lane over shared memory: it writes the mailbox and wakes the client.

use crate::fabric::{Inbox, LaneError, Mailbox, RegionTableView, ServerLane, TransportKind};
use crate::wake::Waker;
use tidewater_protocol::layout::session::{INBOX_DOZE_AT, MAILBOX_CLOSED_AT};
use tidewater_runtime::mem::publish::publish;
use tidewater_runtime::parked_flag::must_wake;

/// The applier's end of a shared-memory lane, made by [`super::SessionMemory::port`]: it writes the
/// mailbox and wakes the client. Dropping it closes the lane.
#[derive(Debug)]
pub struct ShmServerLane {
    peer: String,
    inbox: Inbox,
    mailbox: Mailbox,
    client: Waker,
    destroyed: bool,
}

impl ShmServerLane {
    pub(super) fn new(peer: String, inbox: Inbox, mailbox: Mailbox, client: Waker) -> Self {
        let port = Self {
            peer,
            inbox,
            mailbox,
            client,
            destroyed: false,
        };
        port.mark(0);
        port
    }

    /// Stores the closed word in the mailbox, by which the client sees its lane as closed (1) or open
    /// (0).
    fn mark(&self, closed: u64) {
        // The offset comes from the layout, so it is inside and aligned.
        let _ = self.store("destroy", MAILBOX_CLOSED_AT, &closed.to_le_bytes());
    }

    fn open(&self, op: &'static str) -> Result<(), LaneError> {
        if !self.destroyed {
            return Ok(());
        }
        Err(LaneError::Broken {
            transport: TransportKind::Shm,
            peer: self.peer.clone(),
            op,
            why: "the lane was destroyed".to_owned(),
        })
    }

    fn store(&self, op: &'static str, at: usize, bytes: &[u8]) -> Result<(), LaneError> {
        let (region, base) = self.mailbox.region();
        let end = at.checked_add(bytes.len().next_multiple_of(8));
        let window = match end {
            Some(end) if end <= self.mailbox.len() => region.words_mut(base + at, bytes.len()),
            _ => {
                return Err(LaneError::Usage {
                    op,
                    what: "a place outside the mailbox",
                });
            }
        };
        let Ok(window) = window else {
            return Err(LaneError::Usage {
                op,
                what: "a misaligned place in the mailbox",
            });
        };
        publish(window, 0, bytes);
        Ok(())
    }

    /// Wakes the client thread if its parked flag, in the inbox, is set. The client owns that word: a
    /// wrong value lets it sleep on, or costs the applier one system call a signal.
    fn ring(&self) {
        if must_wake(self.inbox.window().slice(INBOX_DOZE_AT, 8).as_read()) {
            self.client.wake();
        }
    }
}

impl ServerLane for ShmServerLane {
    fn peer(&self) -> &str {
        &self.peer
    }

    /// Returns false: there is nothing to execute, as the client performs all operations itself. Fails
    /// once the lane was destroyed.
    fn poll(&mut self, _exports: &mut RegionTableView, _inbox: &Inbox) -> Result<bool, LaneError> {
        self.open("poll").map(|()| false)
    }

    fn post(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneError> {
        self.open("post")?;
        self.store("post", at, bytes)
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        self.open("signal")?;
        self.ring();
        Ok(())
    }

    /// Returns `None`: this end has no operations of its own under way. The client wakes the applier by
    /// `write_signal`.
    fn poll_hint(&self) -> Option<std::time::Duration> {
        None
    }

    /// Stores the closed word (1) in the mailbox, so that the client posts no more, and wakes the client.
    /// A client that ignores the word (or is in the middle of a write) still writes its own session's
    /// memory. The server no longer reads that memory and never reuses it for another session (F11).
    ///
    /// After recovery no late byte is placed either: the memory has one writer, and that thread requested
    /// the recovery after its last write.
    fn destroy(&mut self) {
        if !self.destroyed {
            self.destroyed = true;
            self.mark(1);
            self.ring();
        }
    }
}

impl Drop for ShmServerLane {
    fn drop(&mut self) {
        self.destroy();
    }
}

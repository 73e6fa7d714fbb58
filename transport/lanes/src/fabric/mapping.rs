//! What a client loads from itself, where a server's memory is mapped.

use super::Mailbox;
use crate::region_table::Mapped;
use tidewater_protocol::layout::session::MAILBOX_CLOSED_AT;
use tidewater_runtime::liveness::LivenessView;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;

/// What a lane on the same host has mapped, asked for once: a row is found and copied in the time of a
/// few calls. It does not know of errors: who holds it stops looking when its lane fails.
#[derive(Debug, Clone)]
pub struct Mapping {
    /// The whole public memory, and where it says whether the applier lives.
    public: LivenessView,
    /// The memory of the mailbox, and where it says whether the lane is closed.
    mailbox: Arc<Region>,
    closed_at: usize,
    check: u64,
}

impl Mapping {
    /// Of the public memory with the applier's liveness word, the mailbox that says whether the lane is
    /// closed, and the check bits of the server's keys.
    pub(crate) fn new(public: LivenessView, mailbox: &Mailbox, check: u8) -> Self {
        let (region, base) = mailbox.region();
        Self {
            public,
            mailbox: Arc::clone(region),
            closed_at: base + MAILBOX_CLOSED_AT,
            check: u64::from(check),
        }
    }

    /// Whether the applier has ended: its process was killed, or has crashed. Cost: a load.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.public.has_ended()
    }

    /// The memory, to be used until the call that looks ends, as a read that was begun on an open
    /// lane; `None` when the server has closed the lane or the applier has ended (F10). Cost: a load of
    /// a line that no thread writes, and one of the line with the applier's parked flag.
    #[inline]
    pub fn look(&self) -> Option<Mapped<'_>> {
        let memory = self.public.memory();
        let closed = self.mailbox.words(self.closed_at, 8).ok()?.load(0);
        (closed == 0 && !self.has_ended()).then(|| Mapped::new(memory, self.check))
    }
}

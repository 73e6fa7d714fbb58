//! Direct loads by a client from the mapped memory of its server.

use super::Mailbox;
use crate::region_table::Mapped;
use tidewater_protocol::layout::session::MAILBOX_CLOSED_AT;
use tidewater_runtime::liveness::LivenessView;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;

/// Mapped memory of a lane on the same host, requested once. Finding and copying a row costs a few calls.
/// The mapping does not report errors: the holder stops using it when its lane fails.
#[derive(Debug, Clone)]
pub struct Mapping {
    /// The complete public memory, with the liveness word of the applier.
    public: LivenessView,
    /// The memory of the mailbox, with the word that marks the lane as closed.
    mailbox: Arc<Region>,
    closed_at: usize,
    check: u64,
}

impl Mapping {
    /// Builds the mapping. `public` holds the applier's liveness word, `mailbox` the lane's closed word;
    /// `check` are the check bits of the server's keys.
    pub(crate) fn new(public: LivenessView, mailbox: &Mailbox, check: u8) -> Self {
        let (region, base) = mailbox.region();
        Self {
            public,
            mailbox: Arc::clone(region),
            closed_at: base + MAILBOX_CLOSED_AT,
            check: u64::from(check),
        }
    }

    /// Whether the applier has ended: its process was killed or crashed. Cost: a load.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.public.has_ended()
    }

    /// The memory, for use until the calling operation ends, like a read begun on an open lane. `None` when
    /// the server has closed the lane or the applier has ended (F10). Cost: a load of a line that no thread
    /// writes, and one of the line with the applier's parked flag.
    #[inline]
    pub fn look(&self) -> Option<Mapped<'_>> {
        let memory = self.public.memory();
        let closed = self.mailbox.words(self.closed_at, 8).ok()?.load(0);
        (closed == 0 && !self.has_ended()).then(|| Mapped::new(memory, self.check))
    }
}

//! Direct loads by a client from the mapped memory of its server.

use super::Mailbox;
use crate::region_table::Mapped;
use tidewater_protocol::layout::session::MAILBOX_CLOSED_AT;
use tidewater_runtime::liveness::LivenessView;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;

/// A lane's mapping of its server's public memory, for direct loads by a client on the same host. Loads
/// never fail: `Self::look` says before each operation whether the lane is still open.
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
    /// Creates the mapping of a lane. `public` is the server's memory with the applier's liveness word.
    /// `mailbox` contains the closed word, which the server sets when it ends the lane. `check` are the 8
    /// check bits that valid region keys of the server contain.
    pub(crate) fn new(public: LivenessView, mailbox: &Mailbox, check: u8) -> Self {
        let (region, base) = mailbox.region();
        Self {
            public,
            mailbox: Arc::clone(region),
            closed_at: base + MAILBOX_CLOSED_AT,
            check: u64::from(check),
        }
    }

    /// Returns whether the applier thread has ended, by exit, panic or kill. False before it runs, and
    /// always where the kernel refuses robust futexes. Cost: one load.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.public.has_ended()
    }

    /// Returns the mapped memory for the loads of one operation. `None` if the server has closed the lane
    /// or the applier has ended (F10): the lane's next call reports that. Cost: a load of a line that no
    /// thread writes, and one of the line with the applier's parked flag.
    #[inline]
    pub fn look(&self) -> Option<Mapped<'_>> {
        let memory = self.public.memory();
        let closed = self.mailbox.words(self.closed_at, 8).ok()?.load(0);
        (closed == 0 && !self.has_ended()).then(|| Mapped::new(memory, self.check))
    }
}

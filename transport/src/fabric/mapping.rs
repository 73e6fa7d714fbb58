//! What a client loads from itself, where a server's memory is mapped.

use super::Mailbox;
use crate::exports::Mapped;
use crate::layout::session::MAILBOX_CLOSED_AT;
use crate::mem::Region;
use crate::sync::Arc;

/// What a lane on the same host has mapped, asked for once: a row is found and copied in the time of a
/// few calls. It does not know of errors: who holds it stops looking when its lane fails.
#[derive(Debug, Clone)]
pub struct Mapping {
    public: Arc<Region>,
    /// The memory of the mailbox, and where it says whether the lane is closed.
    mailbox: Arc<Region>,
    closed_at: usize,
    check: u64,
}

impl Mapping {
    /// Of the whole public memory, the mailbox that says whether the lane is closed, and the check
    /// bits of the server's keys.
    pub(crate) fn new(public: Arc<Region>, mailbox: &Mailbox, check: u8) -> Self {
        let (region, base) = mailbox.region();
        Self {
            public,
            mailbox: Arc::clone(region),
            closed_at: base + MAILBOX_CLOSED_AT,
            check: u64::from(check),
        }
    }

    /// The memory, to be used until the call that looks ends, as a read that was begun on an open
    /// lane; `None` when the server has closed the lane (F10). Cost: a load of a line that nobody
    /// writes.
    #[inline]
    pub fn look(&self) -> Option<Mapped<'_>> {
        let memory = self.public.words(0, self.public.len()).ok()?;
        let closed = self.mailbox.words(self.closed_at, 8).ok()?.load(0);
        (closed == 0).then(|| Mapped::new(memory, self.check))
    }
}

//! Numbers of this process: its clients, and the tables that they have opened.

use tidewater_runtime::sync::{AtomicU64, Ordering};

use crate::error::ClientError;

/// Number of clients made in this process so far.
static CLIENTS: AtomicU64 = AtomicU64::new(0);

/// Number of a client in its process, at least 1. No two clients of a process have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientNumber(pub(crate) u32);

impl ClientNumber {
    /// Numbers the next client.
    ///
    /// # Errors
    /// [`ClientError::Environment`] after 2^32 - 1 clients.
    pub(crate) fn next() -> Result<Self, ClientError> {
        // SYNC: none. Only the uniqueness of the number matters.
        let made = CLIENTS.fetch_add(1, Ordering::Relaxed) + 1;
        u32::try_from(made).map(Self).map_err(|_| {
            ClientError::Environment(format!(
                "this process has made {made} clients, and can number {}; start another process",
                u32::MAX
            ).into())
        })
    }
}

/// Identifies one opening of a table by one client. One compare distinguishes a handle from every other
/// of its process, and so its table's number and element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HandleId(u64);

impl HandleId {
    /// Packs the number of the client and the number of its table opening.
    pub(crate) const fn new(client: ClientNumber, serial: u32) -> Self {
        Self((client.0 as u64) << 32 | serial as u64)
    }

    /// The identity as a number.
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    /// Number of the client that made it.
    pub(crate) const fn client(self) -> u64 {
        self.0 >> 32
    }
}

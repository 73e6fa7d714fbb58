//! Numbers of this process: its clients, and the tables that they have opened.

use tidewater_runtime::sync::{AtomicU64, Ordering};

use crate::error::ClientError;

/// Number of clients made in this process so far; the next client's number is one more.
static CLIENTS: AtomicU64 = AtomicU64::new(0);

/// Number of a client, unique in its process and at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientNumber(pub(crate) u32);

impl ClientNumber {
    /// Assigns the number of the next client of this process.
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

/// Identifier of one opening of a table by one client, unique in the process. One comparison therefore checks that a
/// handle belongs to its client, table and element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HandleId(u64);

impl HandleId {
    /// Packs the client's number into the high 32 bits, and the serial number of its table opening into the low
    /// ones.
    pub(crate) const fn new(client: ClientNumber, serial: u32) -> Self {
        Self((client.0 as u64) << 32 | serial as u64)
    }

    /// The identifier as one 64-bit number.
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    /// Number of the client that opened the table: the high 32 bits.
    pub(crate) const fn client(self) -> u64 {
        self.0 >> 32
    }
}

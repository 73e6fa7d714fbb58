//! Shared memory: the transport for two ends on one host.
//!
//! A client maps the server's memories and does by loads and stores the work that a NIC would do by DMA. No
//! thread of the server takes part in a read, a write or an atomic. When a session attaches, descriptors
//! ([`pass`]) and the numbers of [`ShmAttach`] are transferred once.
//!
//! | memory | made by | client maps it | holds |
//! |---|---|---|---|
//! | public | server, one a process | for reading | parameters, version words, META, appliers' parked flags |
//! | counters | server, one a process | for writing | advisory counters |
//! | inbox | server, one a session | for writing | a tail record, a parked flag and a ring for each lane |
//! | mailbox | server, one a session | for reading | status record, clock and reject records, reply slots for each lane |
//!
//! All are memfds sealed against resizing, so that neither end can end the other by truncating them. Memory
//! that a client may not write arrives as a read-only descriptor. A session's two memfds are never reused
//! for another session: a client that still writes after its session has ended writes to memory that no
//! thread reads (F11).
//!
//! This protects against accident. Processes of one user can trace each other; shared memory gives no
//! protection against malice of the same user. The server therefore admits only a peer with the same user
//! id ([`pass::same_user`]), and only after it has proved knowledge of the job's token.

pub mod client_lane;
pub mod memory;
pub mod pass;
pub mod server_lane;

pub use client_lane::ShmClientLane;
pub use memory::{
    ApplierEnd, ServerMemory, SessionMemory, ShmAttach, ShmPair, attach, descriptors, pair,
};
pub use server_lane::ShmServerLane;

use tidewater_runtime::mem::MemError;

/// Failure of a client or a server while they set up a session's shared memory; no lane was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// Memory could not be made or mapped, or differs from the peer's description.
    #[error("memory `{memory}` of the session: {source}")]
    Memory {
        /// Name of the memory: public, counters, inbox or mailbox.
        memory: &'static str,
        /// Cause of the failure.
        source: MemError,
    },
    /// The number of descriptors does not match the announced lanes.
    #[error(
        "{got} descriptors came with {lanes} lanes, {expected} are needed: \
         both ends must be the same version of Tidewater"
    )]
    Descriptors {
        /// Number of descriptors needed.
        expected: usize,
        /// Number of descriptors received.
        got: usize,
        /// Number of lanes announced.
        lanes: usize,
    },
    /// A number of the peer is impossible.
    #[error(
        "`{what}` is {value}, but must be {must}: both ends must be the same version of Tidewater"
    )]
    Number {
        /// Name of the number.
        what: &'static str,
        /// Value that the peer sent.
        value: u64,
        /// Condition that the value violates.
        must: &'static str,
    },
    /// A descriptor could not be duplicated for a client in the server's process.
    #[error("descriptors of the session: {0}; raise the limit of open files (ulimit -n)")]
    Duplicate(#[source] std::io::Error),
    /// A waker descriptor is not an eventfd, or `/proc` is not mounted.
    #[error("waker: {0}; mount /proc and run the same version of Tidewater at both ends")]
    Waker(#[source] std::io::Error),
}

#[cfg(test)]
mod tests;

//! Shared memory: the member of the contract for two ends on one host.
//!
//! A client maps the server's memories and does by loads and stores what a NIC would do by DMA: no
//! thread of the server takes part in a read, a write or an atomic. What travels once, when a
//! session attaches, are descriptors (`pass`) and the numbers of [`ShmAttach`].
//!
//! | memory | made by | client maps it | holds |
//! |---|---|---|---|
//! | public | server, one a process | for reading | parameters, version words, META, appliers' parked flags |
//! | counters | server, one a process | for writing | advisory counters |
//! | inbox | server, one a session | for writing | a tail cell, a parked flag and a ring for each lane |
//! | mailbox | server, one a session | for reading | state line, clocks, rejects, reply slots for each lane |
//!
//! All are memfds sealed against resizing, so that neither end can end the other by truncating
//! them; what a client may not write it gets as a read-only descriptor. A session's two memfds are
//! never given to another session: a client that goes on writing after its session has ended
//! writes where nobody reads any more (F11).
//!
//! This protects against accident. Processes of one user can trace each other; against malice of
//! the same user shared memory protects nobody, which is why only a peer with the same user id is
//! let in ([`pass::same_user`]), and only after it has proved to know the job's token.

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

/// What went wrong while a session attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// Memory could not be made or mapped, or is not what the peer said.
    #[error("memory `{memory}` of the session: {source}")]
    Memory {
        /// Which of the four.
        memory: &'static str,
        /// Why.
        source: MemError,
    },
    /// Another number of descriptors than the numbers ask for.
    #[error(
        "{got} descriptors came with {lanes} lanes, {expected} are needed: \
         both ends must be the same version of Tidewater"
    )]
    Descriptors {
        /// Needed.
        expected: usize,
        /// There were.
        got: usize,
        /// Lanes told.
        lanes: usize,
    },
    /// A number that cannot be.
    #[error(
        "`{what}` is {value}, but must be {must}: both ends must be the same version of Tidewater"
    )]
    Number {
        /// Which.
        what: &'static str,
        /// What was said.
        value: u64,
        /// What it must be.
        must: &'static str,
    },
    /// A doorbell that is not one.
    #[error("doorbell: {0}; mount /proc and run the same version of Tidewater at both ends")]
    Waker(#[source] std::io::Error),
}

#[cfg(test)]
mod tests;

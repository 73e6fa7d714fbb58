//! Jobs that share a server, as its appliers tell them apart.
//!
//! A job is known to people and on the wire by the name of its namespace. Where frames are applied
//! a number stands for it: comparing it is all that keeping jobs apart costs there.

use tidewater_protocol::ids::WorkerId;

/// A namespace on one server process, from its first table or session to the end of its job: never
/// given twice, so that whatever is left of a job is not taken for the next one of its name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceId(pub u64);

/// Whose frames come out of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameSender {
    /// The worker.
    pub rank: WorkerId,
    /// Whether its CLOCK frames count for the worker (one session of a worker's).
    pub clocked: bool,
    /// Its job. Tables and clocks of others are not there for it.
    pub namespace: NamespaceId,
}

impl FrameSender {
    /// The session of a worker that ticks, where there is one job only.
    pub fn clocked(rank: WorkerId) -> Self {
        Self {
            rank,
            clocked: true,
            namespace: NamespaceId::default(),
        }
    }
}

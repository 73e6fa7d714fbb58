//! Jobs that share a server, as its appliers distinguish them.
//!
//! Users and the wire name a job by its namespace. Where frames are applied a number stands for it:
//! comparing that is the whole cost of keeping jobs apart there.

use tidewater_protocol::ids::WorkerId;

/// Number of a namespace on one server process, from its first table or session to the end of its
/// job. Never reused, so that remains of a job are not taken for the next one of its name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceId(pub u64);

/// The sender of the frames of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameSender {
    /// Rank of the worker in its job.
    pub rank: WorkerId,
    /// Whether its CLOCK frames count for the worker (true for one session of each worker).
    pub clocked: bool,
    /// Job of the worker. Tables and clocks of other jobs do not exist for it.
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

//! Jobs that share a server, as its appliers distinguish them.
//!
//! Users and the wire name a job by its namespace. Where frames are applied a number stands for it:
//! comparing that is the whole cost of keeping jobs apart there.

use tidewater_protocol::ids::{DomainId, WorkerId, WorkerThread};

/// Number of a namespace on one server process, from its first table or session to the end of its
/// job. Never reused, so that remains of a job are not taken for the next one of its name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceId(pub u64);

/// A clock domain of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DomainKey {
    /// Namespace of the job on this server.
    pub namespace: NamespaceId,
    /// Clock domain of the job.
    pub domain: DomainId,
}

impl DomainKey {
    /// The domain `domain` of the job `namespace`.
    pub const fn new(namespace: NamespaceId, domain: DomainId) -> Self {
        Self { namespace, domain }
    }
}

/// The sender of the frames of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameSender {
    /// Thread of a worker in its job.
    pub thread: WorkerThread,
    /// Job of the worker. Tables and clocks of other jobs do not exist for it.
    pub namespace: NamespaceId,
}

impl FrameSender {
    /// Whether the sender is an observer: it is no member of a clock, and changes nothing.
    pub const fn is_observer(&self) -> bool {
        self.thread.rank.observer().is_some()
    }

    /// The first client of a worker, where there is one job only.
    pub fn first(rank: WorkerId) -> Self {
        Self {
            thread: WorkerThread::first(rank),
            namespace: NamespaceId::default(),
        }
    }
}

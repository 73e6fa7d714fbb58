//! Jobs that share a server, as its appliers distinguish them.
//!
//! Users and the wire name a job by its namespace. Where frames are applied a number stands for it:
//! comparing that is the whole cost of keeping jobs apart there.

use tidewater_protocol::ids::{DomainId, WorkerId, WorkerThread};

/// Number of a job (namespace) on one server process, from its first table or session to its end. Never
/// reused, so that remains of a job are not taken for the next job of its name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceId(pub u64);

/// Clock domain of one job on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DomainKey {
    /// Number of the job on this server.
    pub namespace: NamespaceId,
    /// Clock domain of the job.
    pub domain: DomainId,
}

impl DomainKey {
    /// Creates the key of a clock domain of a job.
    pub const fn new(namespace: NamespaceId, domain: DomainId) -> Self {
        Self { namespace, domain }
    }
}

/// Sender of the frames of a push ring: a worker thread in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameSender {
    /// Thread of a worker in its job.
    pub thread: WorkerThread,
    /// Job of the worker. Tables and clocks of other jobs do not exist for it.
    pub namespace: NamespaceId,
}

impl FrameSender {
    /// Whether the sender is an observer: a client that is no member of a clock and changes nothing.
    pub const fn is_observer(&self) -> bool {
        self.thread.rank.observer().is_some()
    }

    /// Creates the sender for the first thread of a worker, where there is one job only.
    pub fn first(rank: WorkerId) -> Self {
        Self {
            thread: WorkerThread::first(rank),
            namespace: NamespaceId::default(),
        }
    }
}

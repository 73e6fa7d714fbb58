//! Newtypes for identifiers. None of them is a count or a size.

use serde::{Deserialize, Serialize};

use crate::limits::WORKERS_MAX;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// Number of a table, assigned by the coordinator from 1; 0 is never a table.
    TableId(u32)
);
id!(
    /// Number of a partition within its table, `0..partitions`.
    PartitionId(u32)
);
id!(
    /// Number of a server in its cluster, `0..servers`.
    ServerId(u32)
);
id!(
    /// Number of an applier inside its server, `0..appliers`.
    ApplierId(u16)
);
id!(
    /// Rank of a worker, `0..workers`. Ranks from [`WORKERS_MAX`] on are those of observers.
    WorkerId(u32)
);
impl WorkerId {
    /// Rank of an observer: [`WORKERS_MAX`] + `number`. It is above the ranks of all workers, so that each
    /// observer has sessions of its own. `number` is below [`OBSERVERS_MAX`](crate::limits::OBSERVERS_MAX).
    pub const fn of_observer(number: u32) -> Self {
        Self(WORKERS_MAX + number)
    }

    /// Number of the observer with this rank, from 0; `None` if the rank is a worker's.
    pub const fn observer(self) -> Option<u32> {
        self.0.checked_sub(WORKERS_MAX)
    }
}

/// Identity of one client thread: rank of the worker process and number of the thread in it. Ordered by rank,
/// then thread: the order in which contributions to an iteration are added.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct WorkerThread {
    /// Rank of the worker, or of an observer ([`WorkerId::of_observer`]).
    pub rank: WorkerId,
    /// Number of the thread in its worker; 0 for the worker's first client.
    pub thread: u32,
}

impl WorkerThread {
    /// Identity of thread 0 of a worker: its first client.
    pub const fn first(rank: WorkerId) -> Self {
        Self { rank, thread: 0 }
    }

    /// Whether this is thread 0 of its worker: its first client.
    pub const fn is_first(self) -> bool {
        self.thread == 0
    }

    /// Upper bound of a worker's threads in the order of this type: thread `u32::MAX`, for range queries. No
    /// such thread exists.
    pub const fn last(rank: WorkerId) -> Self {
        let thread = u32::MAX;
        Self { rank, thread }
    }
}

impl core::fmt::Display for WorkerThread {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if let Some(number) = self.rank.observer() {
            return write!(f, "observer {number}");
        }
        match self.thread {
            0 => write!(f, "worker {}", self.rank),
            thread => write!(f, "thread {thread} of worker {}", self.rank),
        }
    }
}

id!(
    /// A session (one client thread attached to one server): a random 64-bit nonce.
    SessionId(u64)
);
id!(
    /// Random number of one start of a server process. A restarted server has another one.
    Incarnation(u64)
);
id!(
    /// Random number of a cluster, drawn by the process that starts the coordinator.
    ClusterId(u64)
);
id!(
    /// Number of a clock domain (a set of tables that tick together), `0..64`.
    DomainId(u8)
);
id!(
    /// Key by which a peer names a registered region. Over verbs, the server's key directory maps it to the device's
    /// rkey. The keys of that directory and of the memory of a verbs lane are rkeys themselves.
    RegionKey(u32)
);

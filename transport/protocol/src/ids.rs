//! Newtypes for identifiers. None of them is a count or a size.

use serde::{Deserialize, Serialize};

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
    /// Rank of a worker, `0..workers`.
    WorkerId(u32)
);
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
    /// Number of a clock domain, `0..64`: the set of tables that tick together.
    DomainId(u8)
);
id!(
    /// Key that a peer presents to name a registered region (an rkey, on verbs).
    RegionKey(u32)
);

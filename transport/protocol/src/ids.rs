//! Newtypes for the numbers that name things. None of them is a count or a size.

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
    /// A table, numbered by the coordinator from 1; 0 is never a table.
    TableId(u32)
);
id!(
    /// A partition of a table, `0..partitions`.
    PartitionId(u32)
);
id!(
    /// A server's number, `0..servers`.
    ServerId(u32)
);
id!(
    /// An applier inside its server, `0..appliers`.
    ApplierId(u16)
);
id!(
    /// A worker's rank, `0..workers`.
    WorkerId(u32)
);
id!(
    /// A session (one client thread attached to one server): a random 64-bit incarnation nonce.
    SessionId(u64)
);
id!(
    /// One start of one server process; random, so that a restarted server is another one.
    Incarnation(u64)
);
id!(
    /// A cluster: random, made by whoever starts the coordinator.
    ClusterId(u64)
);
id!(
    /// A set of tables that tick together, `0..64`.
    DomainId(u8)
);
id!(
    /// What a peer presents to name a registered region (an rkey, on verbs).
    RegionKey(u32)
);

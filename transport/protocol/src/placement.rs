//! Maps keys to partitions, and partitions to their owning appliers.

use serde::{Deserialize, Serialize};

use crate::ids::{ApplierId, PartitionId, ServerId};
use crate::layout::hash::mix64;

/// Returns the partition of a sparse key: the high bits of a full 64-bit mix, so that keys which differ
/// in any bits spread evenly. Independent of the number of servers.
#[inline]
pub const fn partition_of_key(key: u64, partitions: u32) -> PartitionId {
    let mixed = mix64(key ^ 0x7469_6465_7761_7465);
    PartitionId(((mixed as u128 * partitions as u128) >> 64) as u32)
}

/// An applier of a server. It owns partitions and is the only writer of their rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// Server that runs the applier.
    pub server: ServerId,
    /// Number of the applier in its server.
    pub applier: ApplierId,
}

/// Owner of every partition of a table, by partition number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement(pub Vec<Owner>);

impl Placement {
    /// Assigns partitions round robin to servers, and to the appliers of each server. `appliers[s]` is
    /// the number of appliers of server `s`, at least 1.
    pub fn round_robin(partitions: u32, appliers: &[u16]) -> Self {
        let servers = appliers.len().max(1);
        let owner = |p: usize| {
            let server = p % servers;
            let n = appliers.get(server).copied().unwrap_or(1).max(1) as usize;
            Owner {
                server: ServerId(server as u32),
                applier: ApplierId(((p / servers) % n) as u16),
            }
        };
        Self((0..partitions as usize).map(owner).collect())
    }

    /// Iterates over the partitions of an owner, ascending.
    pub fn owned_by(&self, owner: Owner) -> impl Iterator<Item = PartitionId> + '_ {
        let mine = self.0.iter().enumerate().filter(move |&(_, o)| *o == owner);
        mine.map(|(p, _)| PartitionId(p as u32))
    }

    /// Returns the owner of a partition; `None` if the table has no such partition.
    #[inline]
    pub fn owner(&self, partition: PartitionId) -> Option<Owner> {
        self.0.get(partition.0 as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids built as `type << 32` or `x << 48` share their low words; each partition must still get
    /// its share.
    #[test]
    fn keys_that_differ_in_few_bits_spread() {
        for shift in [0, 16, 32, 40, 44] {
            let mut load = vec![0u32; 64];
            let n = 1 << 16;
            for k in 0..n as u64 {
                load[partition_of_key(k << shift, 64).0 as usize] += 1;
            }
            let max = *load.iter().max().unwrap();
            assert!(
                f64::from(max) / (f64::from(n) / 64.0) < 1.2,
                "shift {shift}: {max}"
            );
        }
    }

    #[test]
    fn round_robin_gives_every_applier_its_share() {
        let p = Placement::round_robin(256, &[2, 1]);
        let of = |server, applier| {
            p.owned_by(Owner {
                server: ServerId(server),
                applier: ApplierId(applier),
            })
            .count()
        };
        assert_eq!((of(0, 0), of(0, 1), of(1, 0)), (64, 64, 128));
    }
}

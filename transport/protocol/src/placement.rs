//! Maps keys to partitions, and partitions to their owning appliers.

use serde::{Deserialize, Serialize};

use crate::ids::{ApplierId, PartitionId, ServerId};
use crate::layout::hash::mix64;
use crate::limits::{PARTITION_ELEMENTS, PARTITIONS_DEFAULT, PARTITIONS_MAX};
use crate::mutants::{Mutant, on};
use crate::table::{DenseLayout, Shape, TableSpec};

/// Returns the partition of a sparse table's key, in `0..partitions`: the high bits of a 64-bit mix, so that
/// keys that differ in any bits spread evenly. Independent of the number of servers.
#[inline]
pub const fn partition_of_key(key: u64, partitions: u32) -> PartitionId {
    let mixed = mix64(key ^ 0x7469_6465_7761_7465);
    PartitionId(((mixed as u128 * partitions as u128) >> 64) as u32)
}

/// Number of partitions that the coordinator selects for a table with
/// [`PARTITIONS_AUTO`](crate::limits::PARTITIONS_AUTO). `appliers[s]` is the number of appliers of server `s`.
///
/// At least [`PARTITIONS_DEFAULT`], two for each applier, and one for each [`PARTITION_ELEMENTS`] of a dense
/// table up to eight for each applier. Fewer than eight for each applier are rounded up, so that all
/// appliers own equally many. No partition of a dense table is empty.
pub fn default_partitions(spec: &TableSpec, appliers: &[u16]) -> u32 {
    let widest = appliers.iter().max().copied().unwrap_or(1).max(1);
    // Partitions go to servers in turn, and to the appliers of each in turn.
    let slots = appliers.len().max(1) as u64 * u64::from(widest);
    let (elements, units) = match spec.shape {
        Shape::Sparse { .. } => (0, u64::MAX),
        Shape::Dense { rows, cols, layout } => {
            let elements = rows.saturating_mul(cols.into());
            let units = match layout {
                DenseLayout::Rows => rows,
                DenseLayout::Blocks { block_bytes, .. } => {
                    let per_block = u64::from(block_bytes) / spec.dtype.size() as u64;
                    elements.div_ceil(per_block.max(1))
                }
            };
            (elements, units)
        }
    };
    let by_size = elements.div_ceil(PARTITION_ELEMENTS).min(8 * slots);
    let wanted = u64::from(PARTITIONS_DEFAULT).max(2 * slots).max(by_size);
    let even = match wanted < 8 * slots {
        true => wanted.next_multiple_of(slots),
        false => wanted,
    };
    even.min(units).clamp(1, PARTITIONS_MAX.into()) as u32
}

/// An applier, identified by its server and its number there. It owns partitions of a table and is the only
/// writer of their rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// Server that runs the applier.
    pub server: ServerId,
    /// Number of the applier in its server.
    pub applier: ApplierId,
}

/// Owner, an applier of a server, of each partition of a table, indexed by partition number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement(pub Vec<Owner>);

impl Placement {
    /// Assigns partitions round robin to servers, and those of each server round robin to its appliers.
    /// `appliers[s]` is the number of appliers of server `s`, at least 1.
    pub fn round_robin(partitions: u32, appliers: &[u16]) -> Self {
        let servers = appliers.len().max(1);
        let owner = |p: usize| {
            let server = p % servers;
            let n = appliers.get(server).copied().unwrap_or(1).max(1) as usize;
            let turn = match on(Mutant::AppliersByPartition) {
                true => p,
                false => p / servers,
            };
            Owner {
                server: ServerId(server as u32),
                applier: ApplierId((turn % n) as u16),
            }
        };
        Self((0..partitions as usize).map(owner).collect())
    }

    /// Iterates over the numbers of the partitions that `owner` owns, ascending; empty if it owns none. Cost: a scan of
    /// all partitions.
    pub fn owned_by(&self, owner: Owner) -> impl Iterator<Item = PartitionId> + '_ {
        let mine = self.0.iter().enumerate().filter(move |&(_, o)| *o == owner);
        mine.map(|(p, _)| PartitionId(p as u32))
    }

    /// Returns the applier that owns a partition; `None` if the table has no such partition.
    #[inline]
    pub fn owner(&self, partition: PartitionId) -> Option<Owner> {
        self.0.get(partition.0 as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::DomainId;
    use crate::table::{Apply, DType, GradientOptions, Init, KeyOptions, Optimizer};

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

    /// Every applier owns a partition of a default table, and no partition is empty.
    #[test]
    fn default_partitions_leave_no_applier_idle() {
        let mut spec = TableSpec {
            name: "t".into(),
            shape: Shape::Sparse { dim: 8 },
            dtype: DType::F32,
            optimizer: Optimizer::None,
            init: Init::Zeros,
            seed: 0,
            effect: Apply::Immediate,
            finite_check: true,
            domain: DomainId(0),
            partitions: 0,
            gradient: GradientOptions::default(),
            redo: false,
            keys: KeyOptions::default(),
            versions: 2,
            durability: Default::default(),
        };
        let dense = |rows| Shape::Dense {
            rows,
            cols: 1,
            layout: DenseLayout::Rows,
        };
        let small = 1 << 16;
        for (shape, servers, appliers, partitions) in [
            (Shape::Sparse { dim: 8 }, 1, 1, 64),
            (Shape::Sparse { dim: 8 }, 4, 4, 64),
            (Shape::Sparse { dim: 8 }, 3, 3, 72),
            (Shape::Sparse { dim: 8 }, 32, 4, 256),
            (Shape::Sparse { dim: 8 }, 1_024, 8, 4_096),
            (dense(small), 32, 4, 256),
            (dense(5), 32, 4, 5),
            (dense(1 << 27), 4, 4, 128),
            (dense(1 << 27), 32, 4, 256),
            (dense(1 << 40), 32, 4, 1_024),
            (dense(u64::MAX), 1, 1, 64),
        ] {
            spec.shape = shape;
            let appliers = vec![appliers; servers];
            let got = default_partitions(&spec, &appliers);
            assert_eq!(got, partitions, "{shape:?} on {appliers:?}");
            let placement = Placement::round_robin(got, &appliers);
            let owners: std::collections::BTreeSet<_> = placement.0.iter().collect();
            let all = appliers.iter().map(|&n| usize::from(n)).sum::<usize>();
            assert_eq!(owners.len(), all.min(got as usize), "{shape:?}");
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

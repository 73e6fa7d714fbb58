//! Maps keys to partitions, and partitions to their owning appliers.

use serde::{Deserialize, Serialize};

use crate::ids::{ApplierId, PartitionId, ServerId};
use crate::layout::dense::{BlockLayout, Ranges};
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

/// Returns the block geometry of a range table. `None` for other tables, and for one with more elements than
/// `u64::MAX`, which no valid definition has.
#[inline]
pub const fn block_layout(spec: &TableSpec) -> Option<BlockLayout> {
    let Shape::Dense {
        rows,
        cols,
        layout: DenseLayout::Blocks { block_bytes, .. },
    } = spec.shape
    else {
        return None;
    };
    let Some(elements) = rows.checked_mul(cols as u64) else {
        return None;
    };
    Some(BlockLayout {
        elements,
        element_bytes: spec.dtype.size(),
        block_bytes: block_bytes as usize,
    })
}

/// Returns the partitions of a dense table as ranges of its rows, or of the blocks of a range table. `None` for a
/// sparse table. The definition must be valid.
#[inline]
pub fn partition_ranges(spec: &TableSpec) -> Option<Ranges> {
    let (count, unit) = match (block_layout(spec), spec.shape) {
        (Some(layout), _) => (layout.blocks(), layout.block_elements()),
        (None, Shape::Dense { rows, .. }) => (rows, 1),
        (None, Shape::Sparse { .. }) => return None,
    };
    Some(match &spec.partition_starts {
        Some(starts) if !on(Mutant::PartitionStartsIgnored) => {
            Ranges::listed(count, starts.clone(), unit)
        }
        _ => Ranges::new(count, spec.partitions),
    })
}

/// Number of partitions that the coordinator selects for a table with
/// [`PARTITIONS_AUTO`](crate::limits::PARTITIONS_AUTO). `appliers[s]` is the number of appliers of server `s`.
///
/// At least [`PARTITIONS_DEFAULT`], two for each applier, and one for each [`PARTITION_ELEMENTS`] of a dense table
/// up to eight for each applier. Each server counts with as many appliers as the server with the most. A number below
/// eight for each applier is rounded up, so that the appliers of equal servers own equally many. At most
/// [`PARTITIONS_MAX`], and of a dense table at most one for each row or block, so that none is empty. A table with
/// [`TableSpec::partition_servers`] or [`TableSpec::partition_starts`] has a partition for each entry of that list
/// instead, without these bounds.
pub fn default_partitions(spec: &TableSpec, appliers: &[u16]) -> u32 {
    if let Some(listed) = spec.listed_partitions() {
        return listed;
    }
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
    /// Assigns partitions round robin to servers, and the partitions of each server round robin to its appliers.
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

    /// Assigns the partitions of a table: to the servers of [`TableSpec::partition_servers`], and those of each server
    /// round robin to its appliers. Without that list, partitions go round robin to all servers. `appliers[s]` is the
    /// number of appliers of server `s`, at least 1. [`TableSpec::check_servers`] checks before that the listed servers
    /// exist.
    ///
    /// # Examples
    /// See [`Placement::on_servers`].
    pub fn of_table(spec: &TableSpec, appliers: &[u16]) -> Self {
        match &spec.partition_servers {
            Some(servers) if !on(Mutant::PartitionServersIgnored) => {
                Self::on_servers(servers, appliers)
            }
            _ => Self::round_robin(spec.partitions, appliers),
        }
    }

    /// Assigns partition `p` to server `servers[p]`, and the partitions of each server round robin to its appliers, in
    /// the order of their numbers. `appliers[s]` is the number of appliers of server `s`, at least 1. A server without
    /// an entry counts as one with one applier.
    ///
    /// ```
    /// use tidewater_protocol::ids::{ApplierId, ServerId};
    /// use tidewater_protocol::placement::{Owner, Placement};
    ///
    /// let placement = Placement::on_servers(&[0, 1, 1, 1].map(ServerId), &[2, 2]);
    /// let owner = |server, applier| Owner { server: ServerId(server), applier: ApplierId(applier) };
    /// assert_eq!(placement.0, [owner(0, 0), owner(1, 0), owner(1, 1), owner(1, 0)]);
    /// ```
    pub fn on_servers(servers: &[ServerId], appliers: &[u16]) -> Self {
        let mut turns = vec![0_usize; appliers.len()];
        let owner = |&server: &ServerId| {
            let at = server.0 as usize;
            let n = appliers.get(at).copied().unwrap_or(1).max(1) as usize;
            let turn = turns.get_mut(at).map_or(0, |turn| {
                *turn += 1;
                *turn - 1
            });
            Owner {
                server,
                applier: ApplierId((turn % n) as u16),
            }
        };
        Self(servers.iter().map(owner).collect())
    }

    /// Whether every partition is on the server that [`TableSpec::partition_servers`] gives it. True without that list.
    pub fn follows(&self, spec: &TableSpec) -> bool {
        let servers = self.0.iter().map(|owner| owner.server);
        let listed = spec.partition_servers.as_ref();
        listed.is_none_or(|listed| servers.eq(listed.iter().copied()))
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

    fn spec() -> TableSpec {
        TableSpec {
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
            partition_servers: None,
            partition_starts: None,
        }
    }

    /// Every applier owns a partition of a default table, and no partition is empty.
    #[test]
    fn default_partitions_leave_no_applier_idle() {
        let mut spec = spec();
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

    /// A definition with a list of servers has their partitions, which go where the list says.
    #[test]
    fn table_with_listed_servers_is_placed_by_them() {
        let appliers = [1, 2];
        let listed = TableSpec {
            partition_servers: Some([1, 1, 0, 1].map(ServerId).to_vec()),
            partitions: 4,
            ..spec()
        };
        assert_eq!(default_partitions(&listed, &appliers), 4);
        let placement = Placement::of_table(&listed, &appliers);
        assert!(placement.follows(&listed));
        let in_turn = TableSpec {
            partition_servers: None,
            partition_starts: None,
            ..listed.clone()
        };
        let by_turns = Placement::of_table(&in_turn, &appliers);
        assert_eq!(by_turns, Placement::round_robin(4, &appliers));
        assert!(by_turns.follows(&in_turn) && !by_turns.follows(&listed));
    }

    /// Every partition is on the server of the list, and the appliers of each server get equal shares of it.
    #[test]
    fn listed_servers_own_their_partitions() {
        let servers = [3, 0, 0, 1, 0, 3, 0, 0].map(ServerId);
        let placement = Placement::on_servers(&servers, &[2, 1, 4, 2]);
        let found: Vec<_> = placement.0.iter().map(|owner| owner.server).collect();
        assert_eq!(found, servers);
        let appliers: Vec<_> = placement.0.iter().map(|owner| owner.applier.0).collect();
        assert_eq!(appliers, [0, 0, 1, 0, 0, 1, 1, 0]);
    }
}

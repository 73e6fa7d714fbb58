//! Pools of hugepages: the pages that an administrator reserved, and the free ones.

use serde::Serialize;

use super::cores::NumaNode;
use super::sysfs::Root;

/// Hugepages of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HugePool {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Pages that no process has touched; some of them may be reserved.
    pub free: u64,
    /// Free pages that are reserved for mappings.
    pub reserved: u64,
    /// Counts of each node.
    pub nodes: Vec<NodePool>,
}

/// A node's share of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NodePool {
    /// Number of the node.
    pub node: u32,
    /// Pages of the node.
    pub total: u64,
    /// Pages that no process has touched.
    pub free: u64,
}

impl HugePool {
    /// A pool of this many pages, all of them free. For programs that compute hypothetical placements.
    pub const fn of(page_bytes: u64, pages: u64) -> Self {
        Self {
            page_bytes,
            total: pages,
            free: pages,
            reserved: 0,
            nodes: Vec::new(),
        }
    }

    /// Pages that can still be allocated.
    pub const fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }
}

/// The pools of all sizes that the kernel has, the smaller pages first.
pub(super) fn pools(root: &Root, nodes: &[NumaNode]) -> Vec<HugePool> {
    const POOLS: &str = "sys/kernel/mm/hugepages";
    let pool = |name: String| {
        let kib: u64 = name
            .strip_prefix("hugepages-")?
            .strip_suffix("kB")?
            .parse()
            .ok()?;
        let number = |file: &str| root.number::<u64>(format!("{POOLS}/{name}/{file}"));
        let of_node = |node: &NumaNode| {
            let at = format!("sys/devices/system/node/node{}/hugepages/{name}", node.id);
            Some(NodePool {
                node: node.id,
                total: root.number(format!("{at}/nr_hugepages"))?,
                free: root.number(format!("{at}/free_hugepages"))?,
            })
        };
        Some(HugePool {
            page_bytes: kib.checked_mul(1024)?,
            total: number("nr_hugepages")?,
            free: number("free_hugepages")?,
            reserved: number("resv_hugepages").unwrap_or(0),
            nodes: nodes.iter().filter_map(of_node).collect(),
        })
    };
    let mut pools: Vec<HugePool> = root.names(POOLS).into_iter().filter_map(pool).collect();
    pools.sort_by_key(|pool| pool.page_bytes);
    pools
}

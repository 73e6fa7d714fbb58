//! NUMA nodes and logical processors, and the ones that this process may use.

use serde::Serialize;

use super::sysfs::{Root, parse_list};
use tidewater_protocol::limits::{CPUS_MAX, NODES_MAX};

const CPUS: &str = "sys/devices/system/cpu";
const NODES: &str = "sys/devices/system/node";
/// Cache levels and kinds that are searched for the L3 cache.
const CACHES_MAX: u32 = 8;
/// Folders between a process's cgroup and the root that may limit it.
const CGROUP_DEPTH_MAX: usize = 32;

/// A NUMA node: memory, and the processors that are nearest to it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct NumaNode {
    /// Number of the node.
    pub id: u32,
    /// Its processors; none on a node of memory only.
    pub cpus: Vec<u32>,
    /// Bytes of its memory, 0 if not known.
    pub memory_bytes: u64,
    /// Free bytes of its memory.
    pub free_bytes: u64,
    /// Distance to each node, in the order of [`super::Topology::nodes`].
    pub distances: Vec<u32>,
    /// Whether this process may use its memory.
    pub allowed: bool,
}

/// A logical processor: a thread can be pinned to it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Cpu {
    /// Number of the processor.
    pub id: u32,
    /// Number of its NUMA node.
    pub node: u32,
    /// Number of its socket.
    pub package: u32,
    /// The lowest number among the logical processors of its core (SMT siblings).
    pub core: u32,
    /// The lowest number among the processors that share its L3 cache; its own if it has none.
    pub l3: u32,
    /// Whether this process may run on it.
    pub allowed: bool,
}

impl Cpu {
    /// A processor of which only the number is known.
    pub(super) fn alone(id: u32) -> Self {
        Self {
            id,
            core: id,
            l3: id,
            ..Self::default()
        }
    }
}

/// The nodes that are online.
pub(super) fn nodes(root: &Root) -> Vec<NumaNode> {
    let mut ids = root
        .list(format!("{NODES}/online"))
        .unwrap_or_else(|| root.numbered(NODES, "node"));
    ids.truncate(NODES_MAX);
    let mut nodes: Vec<NumaNode> = ids.into_iter().map(|id| node(root, id)).collect();
    if nodes.is_empty() && root.exists(CPUS) {
        // A kernel without NUMA.
        let online = online(root);
        let (memory_bytes, free_bytes) = memory(&root.text("proc/meminfo").unwrap_or_default());
        nodes.push(NumaNode {
            cpus: online,
            memory_bytes,
            free_bytes,
            distances: vec![10],
            ..NumaNode::default()
        });
    }
    nodes
}

fn node(root: &Root, id: u32) -> NumaNode {
    let at = format!("{NODES}/node{id}");
    let (memory_bytes, free_bytes) = memory_of(root, id);
    let distances = root.text(format!("{at}/distance")).unwrap_or_default();
    NumaNode {
        id,
        cpus: root.list(format!("{at}/cpulist")).unwrap_or_default(),
        memory_bytes,
        free_bytes,
        distances: distances
            .split_whitespace()
            .map_while(|d| d.parse().ok())
            .take(NODES_MAX)
            .collect(),
        allowed: false,
    }
}

/// Bytes of a node's memory, and bytes of it that are free.
pub(super) fn memory_of(root: &Root, node: u32) -> (u64, u64) {
    memory(
        &root
            .text(format!("{NODES}/node{node}/meminfo"))
            .unwrap_or_default(),
    )
}

/// `MemTotal` and `MemFree` of a meminfo, in bytes.
fn memory(meminfo: &str) -> (u64, u64) {
    let field = |name: &str| {
        let rest = meminfo.split_once(name)?.1;
        let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
        kib.checked_mul(1024)
    };
    (
        field("MemTotal:").unwrap_or(0),
        field("MemFree:").unwrap_or(0),
    )
}

fn online(root: &Root) -> Vec<u32> {
    let mut ids = root
        .list(format!("{CPUS}/online"))
        .unwrap_or_else(|| root.numbered(CPUS, "cpu"));
    ids.truncate(CPUS_MAX);
    ids
}

/// The processors that are online.
pub(super) fn cpus(root: &Root, nodes: &[NumaNode]) -> Vec<Cpu> {
    let of_node = |id: u32| nodes.iter().find(|n| n.cpus.binary_search(&id).is_ok());
    let online = online(root);
    let cpu = |&id: &u32| {
        let at = format!("{CPUS}/cpu{id}");
        let first = |list: Option<Vec<u32>>| list?.first().copied();
        let siblings = root
            .list(format!("{at}/topology/core_cpus_list"))
            .or_else(|| root.list(format!("{at}/topology/thread_siblings_list")));
        Cpu {
            id,
            node: of_node(id).map_or(0, |n| n.id),
            // -1 where firmware does not report it.
            package: root
                .number(format!("{at}/topology/physical_package_id"))
                .unwrap_or(0),
            core: first(siblings).unwrap_or(id),
            l3: first(l3(root, &at)).unwrap_or(id),
            allowed: false,
        }
    };
    online.iter().map(cpu).collect()
}

/// Processors that share the L3 cache of the processor at `at`.
fn l3(root: &Root, at: &str) -> Option<Vec<u32>> {
    // Usually the fourth: instructions and data of level 1, level 2, level 3.
    let index = (0..CACHES_MAX)
        .rev()
        .find(|i| root.number(format!("{at}/cache/index{i}/level")) == Some(3))?;
    root.list(format!("{at}/cache/index{index}/shared_cpu_list"))
}

/// Processors and nodes that this process may use; `None` is not known, and then all count as allowed.
#[derive(Debug)]
pub(super) struct Allowed {
    pub(super) cpus: Option<Vec<u32>>,
    nodes: Option<Vec<u32>>,
}

impl Allowed {
    pub(super) fn mark(&self, cpus: &mut [Cpu], nodes: &mut [NumaNode]) {
        let ours = |list: &Option<Vec<u32>>, id: u32| {
            list.as_ref()
                .is_none_or(|list| list.binary_search(&id).is_ok())
        };
        for cpu in cpus {
            cpu.allowed = ours(&self.cpus, cpu.id);
        }
        for node in nodes {
            node.allowed = ours(&self.nodes, node.id);
        }
    }
}

/// Limits of the calling thread: its affinity, which is inside of its cgroup's cpuset.
pub(super) fn allowed(root: &Root) -> Allowed {
    let status = root
        .text("proc/thread-self/status")
        .or_else(|| root.text("proc/self/status"));
    let field = |name: &str| {
        let rest = status.as_ref()?.split_once(name)?.1;
        parse_list(rest.lines().next()?.trim())
    };
    Allowed {
        cpus: field("Cpus_allowed_list:").or_else(|| affinity(root)),
        nodes: field("Mems_allowed_list:"),
    }
}

/// The kernel's answer, also where `/proc` is not mounted.
fn affinity(root: &Root) -> Option<Vec<u32>> {
    if !root.is_live() {
        return None;
    }
    let set = rustix::thread::sched_getaffinity(None).ok()?;
    let most = rustix::thread::CpuSet::MAX_CPU as u32;
    Some((0..most).filter(|&id| set.is_set(id as usize)).collect())
}

/// CPU time that the cgroup and its ancestors grant, in processors.
pub(super) fn quota(root: &Root) -> Option<f64> {
    let cgroups = root.text("proc/self/cgroup")?;
    let of_line = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let two = |file: &str| pair(&root.text(file)?);
        match controllers {
            "" => least(path, |at| two(&format!("sys/fs/cgroup{at}/cpu.max"))),
            _ if controllers.split(',').any(|c| c == "cpu") => least(path, |at| {
                let file = |name| format!("sys/fs/cgroup/{controllers}{at}/{name}");
                let quota = root.text(file("cpu.cfs_quota_us"))?;
                let period = root.text(file("cpu.cfs_period_us"))?;
                pair(&format!("{quota} {period}"))
            }),
            _ => None,
        }
    };
    let quotas = cgroups.lines().take(64).filter_map(of_line);
    quotas.reduce(f64::min)
}

/// The least value that `read` returns for a cgroup and its ancestors.
fn least(path: &str, read: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    if path.contains("..") {
        return None; // seen from a namespace that does not hold it
    }
    let above = std::iter::successors(Some(path.trim_end_matches('/')), |at| {
        at.rsplit_once('/').map(|(above, _)| above)
    });
    let grants = above.take(CGROUP_DEPTH_MAX).filter_map(read);
    grants.reduce(f64::min)
}

/// `QUOTA PERIOD` in processors; `max` and negative quotas are no limit.
fn pair(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (u32, u32) = (quota.parse().ok()?, period.trim().parse().ok()?);
    (quota > 0 && period > 0).then(|| f64::from(quota) / f64::from(period))
}

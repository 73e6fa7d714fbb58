//! Nodes and processors of the live machine from hwloc, which knows the quirks of more machines than this
//! crate. It links the system's libhwloc and libudev.

use std::ops::Deref;

use hwlocality::cpu::cpuset::CpuSet;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::distance::DistancesKind;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::Topology;
use hwlocality::topology::builder::BuildFlags;

use super::cores::{Cpu, NumaNode, memory_of};
use super::sysfs::Root;

/// Nodes and processors, not yet marked as allowed; `None` if hwloc fails, which is logged once.
pub(super) fn shape(root: &Root) -> Option<(Vec<NumaNode>, Vec<Cpu>)> {
    // Includes processors that a cgroup forbids: another module marks the allowed ones, for both readers.
    let builder = Topology::builder().with_flags(BuildFlags::INCLUDE_DISALLOWED);
    let built = builder.map(|builder| builder.build());
    let topology = match built {
        Ok(Ok(topology)) => topology,
        Ok(Err(error)) => return unknown(&error),
        Err(error) => return unknown(&error),
    };
    let nodes = nodes(&topology, root);
    let mut cpus: Vec<Cpu> = topology
        .objects_with_type(ObjectType::PU)
        .filter_map(|unit| cpu(unit, &nodes))
        .collect();
    cpus.sort_by_key(|cpu| cpu.id);
    (!cpus.is_empty()).then_some((nodes, cpus))
}

fn unknown<T>(error: &dyn std::error::Error) -> Option<T> {
    tracing::warn!(%error, "hwloc cannot read this machine; reading /sys instead");
    None
}

fn nodes(topology: &Topology, root: &Root) -> Vec<NumaNode> {
    let mut nodes: Vec<NumaNode> = topology
        .objects_with_type(ObjectType::NUMANode)
        .filter_map(|object| {
            let id = u32::try_from(object.os_index()?).ok()?;
            let memory = match object.attributes() {
                Some(ObjectAttributes::NUMANode(numa)) => numa.local_memory(),
                _ => None,
            };
            Some(NumaNode {
                id,
                cpus: object
                    .cpuset()
                    .map(|set| members(&*set))
                    .unwrap_or_default(),
                memory_bytes: memory.map_or(0, u64::from),
                free_bytes: memory_of(root, id).1,
                distances: Vec::new(),
                allowed: false,
            })
        })
        .collect();
    nodes.sort_by_key(|node| node.id);
    measure(topology, &mut nodes);
    nodes
}

/// Fills in the distances, where firmware has reported them to hwloc.
fn measure(topology: &Topology, nodes: &mut [NumaNode]) {
    let kind = DistancesKind::FROM_OS | DistancesKind::MEANS_LATENCY;
    let matrices = topology.distances_with_type(Some(kind), ObjectType::NUMANode);
    let matrix = matrices.ok().and_then(|all| all.into_iter().next());
    let ids: Vec<u32> = nodes.iter().map(|node| node.id).collect();
    for node in nodes.iter_mut() {
        node.distances = ids
            .iter()
            .map(|&to| if to == node.id { 10 } else { 20 })
            .collect();
    }
    let number = |object: Option<&TopologyObject>| {
        let id = u32::try_from(object?.os_index()?).ok()?;
        ids.binary_search(&id).ok()
    };
    for ((from, to), distance) in matrix.iter().flat_map(|matrix| matrix.object_distances()) {
        if let (Some(from), Some(to)) = (number(from), number(to)) {
            nodes[from].distances[to] = u32::try_from(distance).unwrap_or(u32::MAX);
        }
    }
}

fn cpu(unit: &TopologyObject, nodes: &[NumaNode]) -> Option<Cpu> {
    let id = u32::try_from(unit.os_index()?).ok()?;
    let lowest = |kind: ObjectType| {
        let set = unit.first_ancestor_with_type(kind)?.cpuset()?;
        members(&*set).first().copied()
    };
    let package = unit.first_ancestor_with_type(ObjectType::Package);
    let package = package.and_then(TopologyObject::os_index);
    let node = nodes
        .iter()
        .find(|node| node.cpus.binary_search(&id).is_ok());
    Some(Cpu {
        id,
        node: node.map_or(0, |node| node.id),
        package: package.and_then(|p| u32::try_from(p).ok()).unwrap_or(0),
        core: lowest(ObjectType::Core).unwrap_or(id),
        l3: lowest(ObjectType::L3Cache).unwrap_or(id),
        allowed: false,
    })
}

/// The numbers in a set, ascending. Sets of objects are finite.
fn members(set: impl Deref<Target = CpuSet>) -> Vec<u32> {
    let numbers = set.iter_set().map(usize::from);
    let numbers = numbers.take(tidewater_protocol::limits::CPUS_MAX);
    numbers.filter_map(|n| u32::try_from(n).ok()).collect()
}

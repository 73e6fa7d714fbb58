//! The topology of synthetic machines, and the placement on them.

#![allow(
    clippy::unwrap_used,
    reason = "a test crate: its helpers panic as its tests do"
)]

mod devices;
mod fabric;
mod fake;
#[cfg(feature = "hwloc")]
mod hwloc;
mod place;
mod rdma;

use fake::Machine;
use tidewater_topology::{PortWish, Source, Topology, format_list};

#[test]
fn nodes_and_cores_are_read() {
    let machine = Machine::of(2, 4, 2)
        .hugepages(2048, 64, 60)
        .hugepages(1 << 20, 3, 2);
    let topology = machine.read_topology();
    assert_eq!(topology.source, Source::Sysfs);
    let nodes: Vec<_> = topology
        .nodes
        .iter()
        .map(|n| {
            (
                n.id,
                format_list(&n.cpus),
                n.memory_bytes >> 30,
                n.free_bytes >> 30,
                n.allowed,
            )
        })
        .collect();
    let expected = [
        (0, "0-3,8-11".to_owned(), 64, 32, true),
        (1, "4-7,12-15".to_owned(), 64, 32, true),
    ];
    assert_eq!(nodes, expected);
    assert_eq!((topology.distance(0, 0), topology.distance(1, 0)), (10, 21));
    assert_eq!(topology.distance(0, 7), 20, "an unknown node is far");
    let cpu = &topology.cpus[13];
    assert_eq!(
        (cpu.id, cpu.node, cpu.package, cpu.core, cpu.l3),
        (13, 1, 1, 5, 4)
    );
    let pools: Vec<_> = topology
        .hugepages
        .iter()
        .map(|p| (p.page_bytes >> 20, p.total, p.available(), p.nodes.len()))
        .collect();
    assert_eq!(pools, [(2, 64, 60, 2), (1024, 3, 2, 2)]);
}

#[test]
fn promised_hugepages_are_not_available() {
    let machine = Machine::of(1, 2, 1).hugepages(2048, 64, 60);
    let machine = machine.put(
        "sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages",
        "50",
    );
    assert_eq!(
        machine.read_topology().pool(2 << 20).unwrap().available(),
        10
    );
}

#[test]
fn what_is_not_ours_is_marked() {
    let topology = Machine::of(2, 4, 1).allowed("1,3,5", "1").read_topology();
    let ours: Vec<u32> = topology.allowed().map(|cpu| cpu.id).collect();
    assert_eq!(ours, [1, 3, 5]);
    assert_eq!(topology.cpus.len(), 8);
    let nodes: Vec<bool> = topology.nodes.iter().map(|node| node.allowed).collect();
    assert_eq!(nodes, [false, true]);
}

#[test]
fn without_sysfs_the_affinity_is_left() {
    let topology = Machine::empty().allowed("2-3,6", "0").read_topology();
    assert_eq!(topology.source, Source::Affinity);
    let ours: Vec<_> = topology
        .allowed()
        .map(|cpu| (cpu.id, cpu.core, cpu.l3))
        .collect();
    assert_eq!(ours, [(2, 2, 2), (3, 3, 3), (6, 6, 6)]);
    assert!(topology.nodes.is_empty() && topology.nets.is_empty() && topology.rdmas.is_empty());
}

#[test]
fn of_nothing_nothing_is_guessed() {
    let topology = Machine::empty().read_topology();
    assert_eq!((topology.usable(), topology.cpus.len()), (0, 0));
    assert_eq!(topology.quota, None);
}

#[test]
fn a_kernel_without_numa_is_one_node() {
    let machine = Machine::of(1, 4, 1).without("sys/devices/system/node");
    let machine = machine.put("proc/meminfo", "MemTotal:  1048576 kB\nMemFree:  524288 kB");
    let topology = machine.read_topology();
    let node = &topology.nodes[0];
    assert_eq!(
        (topology.nodes.len(), node.id, node.memory_bytes),
        (1, 0, 1 << 30)
    );
    assert_eq!((&node.cpus[..], node.allowed), (&[0, 1, 2, 3][..], true));
}

#[test]
fn the_least_quota_of_the_cgroups_around_us_counts() {
    let machine = Machine::of(1, 8, 1).put("proc/self/cgroup", "0::/job/step");
    assert_eq!(machine.read_topology().quota, None);
    let machine = machine
        .put("sys/fs/cgroup/job/step/cpu.max", "max 100000")
        .put("sys/fs/cgroup/job/cpu.max", "250000 100000")
        .put("sys/fs/cgroup/cpu.max", "700000 100000");
    let topology = machine.read_topology();
    assert_eq!((topology.quota, topology.usable()), (Some(2.5), 3));
    let old = "4:memory:/a\n3:cpu,cpuacct:/a\n0::/";
    let machine = Machine::of(1, 8, 1)
        .put("proc/self/cgroup", old)
        .put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "400000")
        .put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000")
        .put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1")
        .put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
    assert_eq!(machine.read_topology().quota, Some(4.0));
}

#[test]
fn nonsense_is_taken_for_absent() {
    let bytes = "\u{0}\u{fffd}4294967295-".repeat(1000);
    let machine = Machine::of(2, 2, 1)
        .nic("eth0", 0, 1500, [10, 0, 0, 1])
        .roce("mlx5_0", "eth0", [10, 0, 0, 1])
        .infiniband("mlx5_1", "fe80:0000:0000:0000", 5, "100 Gb/sec (4X EDR)")
        .hugepages(2048, 1, 1)
        .put(
            "sys/kernel/mm/hugepages/hugepages-99999999999999999999kB/nr_hugepages",
            "1",
        );
    let everything = walk(machine.root());
    assert!(everything.len() > 50);
    let whole = machine.read_topology();
    assert_eq!(whole.hugepages.len(), 1);
    for path in everything {
        let good = std::fs::read(&path).unwrap();
        for bad in [bytes.as_bytes(), b"", b"-1", b"\xff\xfe"] {
            std::fs::write(&path, bad).unwrap();
            let topology = machine.read_topology();
            assert!(topology.cpus.len() <= 8192 && topology.nodes.len() <= 1024);
            assert!(topology.nets.len() == 1 || path.ends_with("net/eth0/mtu"));
            let ports = topology.rdma_ports(&PortWish::default());
            assert!(ports.candidates.len() + ports.skipped.len() <= 3);
        }
        std::fs::write(&path, good).unwrap();
    }
    assert_eq!(machine.read_topology(), whole);
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = folder
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let inside = |path: std::path::PathBuf| match path.is_dir() {
        true if path.is_symlink() => Vec::new(),
        true => walk(&path),
        false => vec![path],
    };
    entries.flat_map(inside).collect()
}

#[test]
fn this_machine_is_what_the_kernel_says() {
    let topology = Topology::read();
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    let ours = topology.allowed().filter(|cpu| set.is_set(cpu.id as usize));
    assert_eq!(ours.count(), set.count() as usize, "{topology:?}");
    assert_eq!(topology.allowed().count(), set.count() as usize);
    assert!(
        topology
            .nodes
            .iter()
            .any(|node| node.allowed && node.memory_bytes > 0)
    );
    assert!(topology.nets.iter().any(|net| net.name == "lo"));
}

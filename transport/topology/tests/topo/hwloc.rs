//! hwloc and the reader of sysfs give the same result.

use std::process::Command;

use tidewater_topology::{Cpu, NumaNode, Source, Topology};

use super::fake::Machine;

/// Variable for a child that must read this machine by hwloc.
const ROOT: &str = "HWLOC_FSROOT";

/// Values that must agree: not the free memory, which changes.
fn shape(topology: &Topology) -> (Vec<NumaNode>, Vec<Cpu>) {
    let node = |node: &NumaNode| {
        let mut node = node.clone();
        (node.free_bytes, node.allowed) = (0, false);
        node
    };
    let cpu = |cpu: &Cpu| {
        let mut cpu = cpu.clone();
        cpu.allowed = false;
        cpu
    };
    let nodes = topology.nodes.iter().map(node);
    (nodes.collect(), topology.cpus.iter().map(cpu).collect())
}

#[test]
fn on_this_machine() {
    if std::env::var_os(ROOT).is_some() {
        return child();
    }
    // Another name of the root, for which hwloc is not used.
    let (ours, theirs) = (Topology::read_at("/..".as_ref()), Topology::read());
    assert_eq!((ours.source, theirs.source), (Source::Sysfs, Source::Hwloc));
    let (mut ours, mut theirs) = (shape(&ours), shape(&theirs));
    // The memory of this machine may grow between the two reads.
    for node in ours.0.iter_mut().chain(&mut theirs.0) {
        node.memory_bytes = 0;
    }
    assert_eq!(ours, theirs);
}

/// hwloc takes the root from the environment, so each machine needs a child process.
#[test]
fn on_machines_that_nobody_has() {
    let machines = [
        Machine::of(2, 4, 2),
        Machine::with_caches(2, 8, 1, 2),
        Machine::with_caches(1, 4, 2, 2),
        Machine::of(4, 2, 1),
    ];
    for machine in machines.map(Machine::in_detail) {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "hwloc::on_this_machine"])
            .env(ROOT, machine.root());
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }
}

fn child() {
    let root = std::env::var_os(ROOT).unwrap();
    let (ours, theirs) = (Topology::read_at(root.as_ref()), Topology::read());
    assert_eq!((ours.source, theirs.source), (Source::Sysfs, Source::Hwloc));
    assert_eq!(shape(&ours), shape(&theirs));
}

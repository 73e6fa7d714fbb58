//! Placement of appliers on cores, and of memory on nodes.

use proptest::prelude::*;
use tidewater_topology::{CoresWhy, Cpu, NearWhy, NodeWhy, Placement, Room, Topology, Wish};

use super::fake::Machine;

const ONE: Wish = Wish {
    appliers: 1,
    local_rank: 0,
    local_appliers: 1,
    local_clients: 0,
};

fn appliers(appliers: u16) -> Wish {
    Wish {
        appliers,
        local_appliers: appliers.into(),
        ..ONE
    }
}

/// Two nodes of four cores with two siblings, a NIC on each.
fn two_cards() -> Machine {
    Machine::of(2, 4, 2)
        .loopback()
        .nic("eth0", 0, 9000, [10, 0, 0, 7])
        .nic("eth1", 1, 9000, [10, 0, 1, 7])
        .roce("mlx5_0", "eth0", [10, 0, 0, 7])
        .roce("mlx5_1", "eth1", [10, 0, 1, 7])
}

fn placed(topology: &Topology, wish: Wish, listens: &str) -> Placement {
    let near = topology.near(None, Some(listens.parse().unwrap())).unwrap();
    topology.place(wish, &near)
}

#[test]
fn appliers_and_memory_go_where_the_card_is() {
    let topology = two_cards().read_topology();
    let far = placed(&topology, appliers(2), "10.0.1.7");
    assert_eq!(
        (&far.cpus[..], far.cpus_why),
        (&[4, 5][..], CoresWhy::NearNic)
    );
    assert_eq!((far.node, far.node_why), (Some(1), NodeWhy::OfNic));
    let here = placed(&topology, appliers(2), "10.0.0.7");
    assert_eq!((&here.cpus[..], here.node), (&[0, 1][..], Some(0)));
}

#[test]
fn siblings_come_last_on_a_node_and_far_nodes_after_them() {
    let topology = two_cards().read_topology();
    let all = placed(&topology, appliers(16), "10.0.1.7");
    let order = [4, 5, 6, 7, 12, 13, 14, 15, 0, 1, 2, 3, 8, 9, 10, 11];
    assert_eq!(all.cpus, order);
    assert_eq!((all.node, all.room), (Some(1), Room::Full));
}

#[test]
fn l3_caches_take_turns() {
    let topology = Machine::with_caches(1, 8, 2, 4).read_topology();
    let placed = placed(&topology, appliers(6), "127.0.0.1");
    assert_eq!(
        (&placed.cpus[..], placed.cpus_why),
        (&[0, 4, 1, 5, 2, 6][..], CoresWhy::InOrder)
    );
}

#[test]
fn servers_of_one_host_take_cores_side_by_side() {
    let topology = two_cards().read_topology();
    let of = |local_rank| {
        let wish = Wish {
            appliers: 4,
            local_rank,
            local_appliers: 8,
            local_clients: 2,
        };
        let placed = placed(&topology, wish, "127.0.0.1");
        (placed.cpus, placed.node, placed.node_why, placed.room)
    };
    let here = NodeWhy::OfAppliers;
    assert_eq!(of(0), (vec![0, 1, 2, 3], Some(0), here, Room::Ample));
    // The second siblings of node 0 share cores with the first ones: node 1 is better.
    assert_eq!(of(1), (vec![4, 5, 6, 7], Some(1), here, Room::Ample));
}

#[test]
fn appliers_on_two_nodes_leave_memory_to_whoever_touches_it() {
    let topology = Machine::of(2, 2, 1).read_topology();
    let placed = placed(&topology, appliers(4), "127.0.0.1");
    assert_eq!(
        (placed.cpus.len(), placed.node, placed.node_why),
        (4, None, NodeWhy::Spread)
    );
}

#[test]
fn a_cgroup_of_odd_cores_is_kept() {
    // Both siblings of core 5, and only the second one of cores 1 and 3.
    let machine = two_cards().allowed("5,9,11,13", "0-1");
    let topology = machine.read_topology();
    let placed_all = placed(&topology, appliers(4), "10.0.1.7");
    assert_eq!(placed_all.cpus, [5, 13, 9, 11]);
    assert_eq!(placed(&topology, appliers(3), "10.0.0.7").cpus, [9, 11, 5]);
    let five = placed(&topology, appliers(5), "10.0.0.7");
    assert_eq!((&five.cpus[..], five.cpus_why), (&[][..], CoresWhy::TooFew));
}

#[test]
fn where_appliers_outnumber_the_cores_nobody_is_pinned() {
    let topology = Machine::of(1, 2, 1).read_topology();
    let of = |wish: Wish| {
        let placed = placed(&topology, wish, "127.0.0.1");
        (placed.cpus, placed.room)
    };
    assert_eq!(of(appliers(4)), (vec![], Room::Crowded));
    let with_client = Wish {
        local_clients: 1,
        ..appliers(2)
    };
    assert_eq!(of(with_client), (vec![0, 1], Room::Crowded));
    assert_eq!(of(appliers(2)), (vec![0, 1], Room::Full));
    assert_eq!(of(ONE), (vec![0], Room::Ample));
    // A quota counts like missing cores.
    let machine = Machine::of(1, 8, 1)
        .put("proc/self/cgroup", "0::/")
        .put("sys/fs/cgroup/cpu.max", "200000 100000");
    let of = |n| placed(&machine.read_topology(), appliers(n), "127.0.0.1");
    assert_eq!((of(2).cpus, of(2).room), (vec![0, 1], Room::Full));
    assert_eq!(of(3).cpus_why, CoresWhy::TooFew);
}

#[test]
fn of_an_unknown_machine_nothing_is_pinned() {
    let topology = Machine::empty().read_topology();
    let placed_none = placed(&topology, ONE, "127.0.0.1");
    assert_eq!(
        (&placed_none.cpus[..], placed_none.cpus_why),
        (&[][..], CoresWhy::Unknown)
    );
    assert_eq!((placed_none.node, placed_none.room), (None, Room::Crowded));
    let affinity = Machine::empty().allowed("3,5", "0").read_topology();
    assert_eq!(placed(&affinity, appliers(2), "10.0.0.7").cpus, [3, 5]);
}

#[test]
fn memory_that_is_not_ours_is_not_asked_for() {
    let topology = two_cards().allowed("0-15", "0").read_topology();
    let placed = placed(&topology, appliers(2), "10.0.1.7");
    assert_eq!(
        (placed.node, placed.node_why),
        (None, NodeWhy::Forbidden(1))
    );
    assert_eq!(placed.cpus, [4, 5]);
}

#[test]
fn the_card_is_found_by_name_address_or_because_there_is_no_other() {
    let topology = two_cards().read_topology();
    let near = |named, listens: Option<&str>| {
        let near = topology
            .near(named, listens.map(|a| a.parse().unwrap()))
            .unwrap();
        (near.device, near.node, near.why)
    };
    let named = |name: &str, node| (Some(name.to_owned()), Some(node), NearWhy::Named);
    assert_eq!(near(Some("mlx5_1"), None), named("mlx5_1", 1));
    assert_eq!(
        near(Some("mlx5_1:1"), Some("10.0.0.7")),
        named("mlx5_1:1", 1)
    );
    assert_eq!(near(Some("eth0"), None), named("eth0", 0));
    let has = NearWhy::HasAddress("10.0.1.7".parse().unwrap());
    assert_eq!(
        near(None, Some("10.0.1.7")),
        (Some("mlx5_1".into()), Some(1), has)
    );
    assert_eq!(
        near(None, Some("127.0.0.1")),
        (None, None, NearWhy::Loopback)
    );
    assert_eq!(
        near(None, Some("192.0.2.9")),
        (None, None, NearWhy::Unknown)
    );
    assert_eq!(
        near(None, Some("0.0.0.0")),
        (None, None, NearWhy::Several),
        "two NICs"
    );
    assert_eq!(near(None, None), (None, None, NearWhy::Unknown));
    let error = topology.near(Some("mlx5_9"), None).unwrap_err().to_string();
    assert!(
        error.contains("\"mlx5_9\"") && error.contains("mlx5_0, mlx5_1, eth0, eth1"),
        "{error}"
    );
    let long = "x".repeat(100_000);
    assert!(
        topology
            .near(Some(&long), None)
            .unwrap_err()
            .to_string()
            .len()
            < 1000
    );

    let one = Machine::of(2, 2, 1)
        .nic("eth0", 1, 1500, [10, 0, 0, 7])
        .read_topology();
    let near = one.near(None, "::".parse().ok()).unwrap();
    assert_eq!(
        (near.device.as_deref(), near.node, near.why),
        (Some("eth0"), Some(1), NearWhy::OnlyOne)
    );
    let near = one.near(None, "10.0.0.7".parse().ok()).unwrap();
    assert_eq!((near.device.as_deref(), near.node), (Some("eth0"), Some(1)));
}

proptest! {
    #[test]
    fn servers_that_fit_never_share_a_core(
        (nodes, cores, smt) in (1_u32..4, 1_u32..5, 1_u32..3),
        mask in any::<u64>(),
        servers in 1_u32..5,
        appliers in 1_u16..5,
    ) {
        let mut topology = Topology::default();
        for id in 0..nodes * cores * smt {
            let mut cpu = Cpu::default();
            let core = id % (nodes * cores);
            (cpu.id, cpu.core, cpu.node) = (id, core, core / cores);
            (cpu.l3, cpu.allowed) = (core / 2, mask >> id & 1 == 1);
            topology.cpus.push(cpu);
        }
        let ours: Vec<u32> = topology.allowed().map(|cpu| cpu.id).collect();
        let mut taken = Vec::new();
        for local_rank in 0..servers {
            let local_appliers = u32::from(appliers) * servers;
            let wish = Wish { appliers, local_rank, local_appliers, local_clients: 0 };
            let placed = placed(&topology, wish, "127.0.0.1");
            let fits = local_appliers as usize <= ours.len();
            prop_assert_eq!(placed.cpus.len(), if fits { usize::from(appliers) } else { 0 });
            taken.extend(placed.cpus);
        }
        let count = taken.len();
        taken.sort_unstable();
        taken.dedup();
        prop_assert_eq!(taken.len(), count, "nobody shares");
        prop_assert!(taken.iter().all(|cpu| ours.contains(cpu)), "only ours");
    }
}

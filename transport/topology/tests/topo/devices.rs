//! Network and RDMA devices of simulated machines.

use tidewater_topology::{GidKind, LinkLayer, PortState, roce_mtu_of};

use super::fake::Machine;

#[test]
fn network_cards_have_nodes_addresses_and_mtus() {
    let machine = Machine::of(2, 4, 1)
        .loopback()
        .nic("eth0", 0, 1500, [10, 0, 0, 7])
        .nic("eth1", 1, 9000, [10, 0, 1, 7])
        .put("sys/class/net/bonding_masters", "bond0")
        .put(
            "proc/net/if_inet6",
            "fd000000000000000000000000000002 04 40 00 82     eth1\nnonsense",
        );
    let topology = machine.read_topology();
    let nets: Vec<_> = topology
        .nets
        .iter()
        .map(|n| {
            (
                n.name.as_str(),
                n.node,
                n.mtu,
                n.up,
                n.hardware,
                n.addresses.len(),
            )
        })
        .collect();
    let expected = [
        ("eth0", Some(0), 1500, true, true, 1),
        ("eth1", Some(1), 9000, true, true, 2),
        ("lo", None, 65536, true, false, 0),
    ];
    assert_eq!(nets, expected);
    assert_eq!(topology.nets[0].cpus, [0, 1, 2, 3]);
    assert_eq!(topology.nets[1].addresses[0].to_string(), "10.0.1.7");
    assert_eq!(topology.nets[1].addresses[1].to_string(), "fd00::2");
    assert_eq!(topology.nets[1].speed_mbps, Some(100_000));
}

#[test]
fn a_virtio_card_is_where_its_bus_is_and_a_bond_where_its_cards_are() {
    let bus = "sys/devices/pci0000:40/0000:40:01.0";
    let machine = Machine::of(2, 2, 1)
        .put(&format!("{bus}/numa_node"), "1")
        .put(&format!("{bus}/local_cpulist"), "2-3")
        .put("sys/class/net/ens3/mtu", "1500")
        .link("sys/class/net/ens3/device", &format!("{bus}/virtio0"))
        .put("sys/class/net/bond0/mtu", "9000")
        .link("sys/class/net/bond0/lower_ens3", "sys/class/net/ens3");
    let topology = machine.read_topology();
    let nodes: Vec<_> = topology
        .nets
        .iter()
        .map(|n| (&n.name[..], n.node))
        .collect();
    assert_eq!(nodes, [("bond0", Some(1)), ("ens3", Some(1))]);
    let machine = machine
        .nic("eth0", 0, 1500, [10, 0, 0, 1])
        .link("sys/class/net/bond0/lower_eth0", "sys/class/net/eth0");
    assert_eq!(
        machine.read_topology().nets[0].node,
        None,
        "NICs on two nodes"
    );
}

#[test]
fn firmware_that_does_not_say_leaves_the_node_open() {
    let topology = Machine::of(2, 2, 1)
        .nic("eth0", -1, 1500, [10, 0, 0, 1])
        .read_topology();
    assert_eq!(
        (topology.nets[0].node, topology.nets[0].cpus.len()),
        (None, 4)
    );
}

#[test]
fn rdma_devices_have_ports_and_gids() {
    let machine = Machine::of(2, 2, 1)
        .nic("eth1", 1, 9000, [10, 0, 1, 7])
        .roce("mlx5_0", "eth1", [10, 0, 1, 7]);
    let topology = machine.read_topology();
    let [rdma] = &topology.rdmas[..] else {
        panic!("{:?}", topology.rdmas)
    };
    assert_eq!(
        (rdma.node, rdma.uverbs.as_deref()),
        (Some(1), Some("uverbs0"))
    );
    assert_eq!(rdma.node_guid, "0a00:00ff:fe00:0001");
    assert_eq!(rdma.firmware.as_deref(), Some("16.35.2000"));
    let [port] = &rdma.ports[..] else {
        panic!("{:?}", rdma.ports)
    };
    assert_eq!(
        (port.number, port.state, port.link),
        (1, PortState::Active, LinkLayer::Ethernet)
    );
    assert_eq!((port.physical.as_str(), port.lid), ("LinkUp", 0));
    assert_eq!(
        (port.netdev.as_deref(), port.mtu),
        (Some("eth1"), Some(4096))
    );
    let gids: Vec<_> = port
        .gids
        .iter()
        .map(|g| (g.index, g.address().to_string(), g.kind, g.is_routable()))
        .collect();
    let expected = [
        (0, "fe80::a00:ff:fe00:1", GidKind::IbOrRoceV1, false),
        (1, "fe80::a00:ff:fe00:1", GidKind::RoceV2, false),
        (2, "10.0.1.7", GidKind::IbOrRoceV1, true),
        (3, "10.0.1.7", GidKind::RoceV2, true),
    ];
    assert_eq!(gids, expected.map(|(i, a, k, r)| (i, a.to_owned(), k, r)));
}

#[test]
fn soft_roce_is_where_its_network_device_is() {
    let machine = Machine::of(2, 2, 1)
        .nic("eth0", 1, 1500, [10, 0, 0, 7])
        .roce("rxe0", "eth0", [10, 0, 0, 7])
        .without("sys/class/infiniband/rxe0/device");
    let rdma = &machine.read_topology().rdmas[0];
    assert_eq!((rdma.node, rdma.ports[0].mtu), (Some(1), Some(1024)));
}

#[test]
fn infiniband_has_lids_and_no_netdev() {
    let port = "sys/class/infiniband/mlx4_0/ports/1";
    let machine = Machine::of(1, 2, 1)
        .put(&format!("{port}/state"), "2: INIT")
        .put(&format!("{port}/phys_state"), "5: LinkUp")
        .put(&format!("{port}/link_layer"), "InfiniBand")
        .put(&format!("{port}/lid"), "0x1f")
        .put(
            &format!("{port}/gids/0"),
            "fe80:0000:0000:0000:0002:c903:0000:0001",
        )
        .put("sys/class/infiniband/mlx4_0/ports/2/state", "1: DOWN")
        .put("sys/class/infiniband/mlx4_0/ports/x/state", "4: ACTIVE");
    let rdma = &machine.read_topology().rdmas[0];
    let ports: Vec<_> = rdma
        .ports
        .iter()
        .map(|p| (p.number, p.state, p.lid, p.mtu))
        .collect();
    assert_eq!(
        ports,
        [
            (1, PortState::Init, 31, None),
            (2, PortState::Down, 0, None)
        ]
    );
    assert_eq!(rdma.ports[0].gids[0].kind, GidKind::Unknown);
    assert_eq!(
        (rdma.node, &rdma.uverbs, &rdma.firmware),
        (None, &None, &None)
    );
}

#[test]
fn the_rdma_mtu_is_what_the_packet_leaves_room_for() {
    let known = [
        (1500, 1024),
        (4200, 4096),
        (4191, 2048),
        (9000, 4096),
        (2200, 2048),
        (352, 256),
    ];
    for (netdev, rdma) in known {
        assert_eq!(roce_mtu_of(netdev), Some(rdma), "{netdev}");
    }
    assert_eq!((roce_mtu_of(351), roce_mtu_of(0)), (None, None));
}

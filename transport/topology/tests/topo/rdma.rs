//! Which RDMA ports a process uses, on synthetic hosts, and in which pairs.

use std::net::IpAddr;

use tidewater_protocol::wire::control::VerbsPort;
use tidewater_topology::{PortNames, PortPair, PortWish, RankedPorts, rank_pairs};

use crate::fake::Machine;

const NDR: &str = "400 Gb/sec (4X NDR)";
const PREFIX: &str = "fe80:0000:0000:0000";

fn wish(control: &str) -> PortWish<'static> {
    PortWish {
        control: Some(control.parse().unwrap()),
        ..PortWish::default()
    }
}

fn ranked(machine: &Machine, wish: &PortWish<'_>) -> RankedPorts {
    machine.read_topology().rdma_ports(wish)
}

/// Ports and GID indices of the candidates.
fn order(ranked: &RankedPorts) -> Vec<String> {
    let all = ranked.candidates.iter();
    all.map(|c| format!("{}:{}", c.name(), c.gid.index))
        .collect()
}

fn named(machine: &Machine, names: &str, local_rank: u32) -> RankedPorts {
    let names: PortNames = names.parse().unwrap();
    let wish = PortWish {
        names: Some(&names),
        local_rank,
        ..wish("192.0.2.7")
    };
    ranked(machine, &wish)
}

fn offers(ranked: &RankedPorts) -> Vec<VerbsPort> {
    ranked.candidates.iter().map(|c| c.offer()).collect()
}

/// The pairs of ports of a client and a server, as `client-server`.
fn pairs(client: &RankedPorts, server: &RankedPorts) -> Vec<String> {
    let name = |pair: &PortPair| {
        let [c, s] = [
            &client.candidates[pair.client],
            &server.candidates[pair.server],
        ];
        format!("{}-{}", c.name(), s.name())
    };
    let pairs = rank_pairs(&offers(client), &offers(server));
    pairs.iter().map(name).collect()
}

/// A host with one Ethernet NIC for control connections.
fn host(last: u8) -> Machine {
    Machine::of(2, 4, 1)
        .nic("eth0", 0, 1500, [192, 0, 2, last])
        .loopback()
}

/// Eight NDR ports, four on each node, and a 25 Gb/s RoCE bond that has the control address.
fn dgx(last: u8) -> Machine {
    let mut machine = host(last)
        .roce("mlx5_bond_0", "eth0", [192, 0, 2, last])
        .put(
            "sys/class/infiniband/mlx5_bond_0/ports/1/rate",
            "25 Gb/sec (1X EDR)",
        );
    for n in 0..8 {
        let name = format!("mlx5_{n}");
        machine = machine
            .infiniband(&name, PREFIX, u16::from(last) * 8 + n, NDR)
            .on_node(&name, u32::from(n / 4));
    }
    machine
}

#[test]
fn one_infiniband_port_is_taken_whatever_the_address() {
    let machine = host(7).infiniband("mlx5_0", PREFIX, 5, NDR);
    let ranked = ranked(&machine, &wish("192.0.2.7"));
    assert_eq!(order(&ranked), ["mlx5_0:1:0"]);
    assert_eq!(
        ranked.candidates[0].to_string(),
        "mlx5_0:1 (InfiniBand, 400 Gb/s)"
    );
    assert!(ranked.skipped.is_empty() && ranked.warnings.is_empty());
}

#[test]
fn a_management_port_with_the_address_comes_after_eight_faster_ones() {
    let (client, server) = (dgx(7), dgx(8));
    let ranks = [0, 1, 7, 8].map(|local_rank| PortWish {
        local_rank,
        ..wish("192.0.2.7")
    });
    let first = ranks.map(|wish| order(&ranked(&client, &wish)).remove(0));
    assert_eq!(
        first,
        ["mlx5_0:1:0", "mlx5_1:1:0", "mlx5_7:1:0", "mlx5_0:1:0"]
    );
    let client = ranked(&client, &ranks[1]);
    let server = ranked(&server, &wish("192.0.2.8"));
    assert_eq!(client.candidates.len(), 9);
    assert_eq!(client.candidates[8].device, "mlx5_bond_0");
    let pairs = pairs(&client, &server);
    assert_eq!((pairs.len(), &*pairs[0]), (65, "mlx5_1:1-mlx5_1:1"));
    assert_eq!(pairs[64], "mlx5_bond_0:1-mlx5_bond_0:1");
}

#[test]
fn a_process_of_one_node_uses_the_ports_of_that_node() {
    let machine = dgx(7).allowed("4-7", "1");
    let first = [0, 1, 4].map(|local_rank| {
        let wish = PortWish {
            local_rank,
            ..wish("192.0.2.7")
        };
        order(&ranked(&machine, &wish)).remove(0)
    });
    assert_eq!(first, ["mlx5_4:1:0", "mlx5_5:1:0", "mlx5_4:1:0"]);
    let all = ranked(&machine, &wish("192.0.2.7"));
    assert_eq!(
        all.candidates[4].device, "mlx5_0",
        "the far ones come after the near ones"
    );
}

/// Two RoCE ports in one subnet, the second with the control address.
fn two_in_one_subnet(last: u8) -> Machine {
    Machine::of(1, 4, 1)
        .nic("ens1", 0, 9000, [10, 0, 1, last])
        .nic("ens2", 0, 9000, [10, 0, 1, last + 100])
        .roce("mlx5_0", "ens1", [10, 0, 1, last])
        .roce("mlx5_1", "ens2", [10, 0, 1, last + 100])
}

#[test]
fn two_roce_ports_in_one_subnet_begin_with_the_control_port_and_are_spread() {
    let machine = two_in_one_subnet(7);
    let one = ranked(&machine, &wish("10.0.1.107"));
    assert_eq!(order(&one), ["mlx5_1:1:3", "mlx5_0:1:3"]);
    assert!(one.candidates[0].control && !one.candidates[1].control);
    assert_eq!(
        one.candidates[0].to_string(),
        "mlx5_1:1 (RoCE, 100 Gb/s, GID 3 10.0.1.107)"
    );
    let [warning] = &one.warnings[..] else {
        panic!("{:?}", one.warnings)
    };
    assert!(warning.contains("mlx5_1:1 and mlx5_0:1") && warning.contains("arp_ignore=1"));
    let second = PortWish {
        local_rank: 1,
        ..wish("10.0.1.107")
    };
    assert_eq!(
        order(&ranked(&machine, &second)),
        ["mlx5_0:1:3", "mlx5_1:1:3"]
    );
    let other = two_in_one_subnet(8);
    let server = ranked(&other, &wish("10.0.1.108"));
    let expected = [
        "mlx5_1:1-mlx5_1:1",
        "mlx5_1:1-mlx5_0:1",
        "mlx5_0:1-mlx5_0:1",
        "mlx5_0:1-mlx5_1:1",
    ];
    assert_eq!(pairs(&one, &server), expected);
}

#[test]
fn rails_are_paired_within_their_subnets() {
    let rails = |last| {
        let nics = [1, 2].map(|subnet| [10, 0, subnet, last]);
        Machine::of(1, 4, 1)
            .nic("ens1", 0, 9000, nics[0])
            .nic("ens2", 0, 9000, nics[1])
            .roce("mlx5_0", "ens1", nics[0])
            .roce("mlx5_1", "ens2", nics[1])
    };
    let client = ranked(&rails(7), &wish("10.0.2.7"));
    let server = ranked(&rails(8), &wish("10.0.1.8"));
    assert_eq!(order(&client), ["mlx5_1:1:3", "mlx5_0:1:3"]);
    assert!(client.warnings.is_empty(), "{:?}", client.warnings);
    let expected = [
        "mlx5_1:1-mlx5_1:1",
        "mlx5_0:1-mlx5_0:1",
        "mlx5_1:1-mlx5_0:1",
        "mlx5_0:1-mlx5_1:1",
    ];
    assert_eq!(pairs(&client, &server), expected);
}

/// A RoCE port with an IPv4 and a global IPv6 address.
fn dual_stack(last: u8) -> Machine {
    let v6 = format!("2001:0db8:0000:0000:0000:0000:0000:{last:04x}");
    Machine::of(1, 4, 1)
        .nic("eth0", 0, 1500, [192, 0, 2, last])
        .nic("ens1", 0, 9000, [10, 0, 1, last])
        .put(
            "proc/net/if_inet6",
            &format!("{} 03 40 00 80 ens1", v6.replace(':', "")),
        )
        .roce("mlx5_0", "ens1", [10, 0, 1, last])
        .gid("mlx5_0", 5, &v6, "RoCE v2", "ens1")
}

#[test]
fn of_several_gids_the_family_of_the_control_connection_comes_first() {
    let machine = dual_stack(7);
    let by = |control| order(&ranked(&machine, &wish(control)));
    assert_eq!(by("192.0.2.7"), ["mlx5_0:1:3", "mlx5_0:1:5"]);
    assert_eq!(by("2001:db8::7"), ["mlx5_0:1:5", "mlx5_0:1:3"]);
    // A server with IPv6 only.
    let server = ranked(
        &dual_stack(8).without("sys/class/infiniband/mlx5_0/ports/1/gids/3"),
        &wish("192.0.2.8"),
    );
    let client = ranked(&machine, &wish("192.0.2.7"));
    let pairs = rank_pairs(&offers(&client), &offers(&server));
    let only = PortPair {
        client: 1,
        server: 0,
    };
    assert_eq!(pairs, [only]);
    assert_eq!(server.candidates[0].subnet_bits, 64);
    // A link-local GID is offered only where the control connection uses it.
    let local = by("fe80::a00:ff:fe00:1");
    assert_eq!(local[0], "mlx5_0:1:1");
}

#[test]
fn a_gid_is_named_by_its_index_or_address() {
    let machine = dual_stack(7);
    for (name, index) in [
        ("mlx5_0:1:5", "mlx5_0:1:5"),
        ("mlx5_0:1:2001:db8::7", "mlx5_0:1:5"),
        ("mlx5_0:1:10.0.1.7", "mlx5_0:1:3"),
        ("mlx5_0:1:1", "mlx5_0:1:1"),
    ] {
        assert_eq!(order(&named(&machine, name, 0)), [index], "{name}");
    }
}

#[test]
fn the_gid_index_of_the_settings_is_the_only_one_that_is_offered() {
    let machine = dual_stack(7).infiniband("mlx5_1", PREFIX, 5, NDR);
    let names: PortNames = "mlx5_0:1:3".parse().unwrap();
    for names in [None, Some(&names)] {
        let wish = PortWish {
            gid_index: Some(5),
            names,
            ..wish("192.0.2.7")
        };
        let ranked = ranked(&machine, &wish);
        assert_eq!(order(&ranked), ["mlx5_0:1:5"]);
        assert!(ranked.unknown().is_none(), "{:?}", ranked.skipped);
    }
}

#[test]
fn devices_that_are_not_in_the_container_are_skipped_and_the_others_used() {
    let mut machine = dgx(7);
    for n in 0..5 {
        machine = machine.without(&format!("dev/infiniband/uverbs{n}"));
    }
    let ranked = ranked(&machine, &wish("192.0.2.7"));
    assert_eq!(order(&ranked)[0], "mlx5_4:1:0");
    assert_eq!((ranked.candidates.len(), ranked.skipped.len()), (4, 5));
    assert!(
        ranked.reasons().contains(
            "mlx5_0:1 cannot be opened: /dev/infiniband/uverbs1: No such file or directory"
        ),
        "{}",
        ranked.reasons()
    );
}

#[test]
fn ipoib_names_the_port_of_the_control_connection() {
    let machine = host(7)
        .infiniband("mlx5_0", PREFIX, 5, NDR)
        .infiniband("mlx5_1", PREFIX, 6, NDR)
        .ipoib("ib0", "mlx5_1", 1, [10, 9, 0, 7]);
    assert_eq!(
        order(&ranked(&machine, &wish("10.9.0.7"))),
        ["mlx5_1:1:0", "mlx5_0:1:0"]
    );
    assert_eq!(
        order(&ranked(&machine, &wish("192.0.2.7"))),
        ["mlx5_0:1:0", "mlx5_1:1:0"]
    );
    // A child for another partition, and a bond of interfaces.
    let child = machine
        .put("sys/class/net/ib0.8001/type", "32")
        .put("sys/class/net/ib0.8001/mtu", "2044")
        .put("sys/class/net/ib0.8001/parent", "ib0")
        .address("ib0.8001", [10, 8, 0, 7])
        .put("sys/class/net/bond1/type", "32")
        .put("sys/class/net/bond1/mtu", "2044")
        .link("sys/class/net/bond1/lower_ib0", "sys/class/net/ib0")
        .address("bond1", [10, 7, 0, 7]);
    for control in ["10.8.0.7", "10.7.0.7"] {
        let first = order(&ranked(&child, &wish(control))).remove(0);
        assert_eq!(first, "mlx5_1:1:0", "{control}");
    }
}

#[test]
fn two_fabrics_with_the_default_prefix_are_said_and_paired_by_manager() {
    let rails = |last: u8, lids: [u16; 2], managers: [&str; 2]| {
        let at = |n| format!("sys/class/infiniband/mlx5_{n}/ports/1/sm_lid");
        host(last)
            .infiniband("mlx5_0", PREFIX, lids[0], NDR)
            .infiniband("mlx5_1", PREFIX, lids[1], NDR)
            .put(&at(0), managers[0])
            .put(&at(1), managers[1])
    };
    let client = ranked(&rails(7, [5, 6], ["0x1", "0x9"]), &wish("192.0.2.7"));
    let server = ranked(&rails(8, [7, 8], ["0x1", "0x9"]), &wish("192.0.2.8"));
    for end in [&client, &server] {
        let [warning] = &end.warnings[..] else {
            panic!("{:?}", end.warnings)
        };
        assert!(warning.contains("mlx5_0:1 and mlx5_1:1 are in two InfiniBand fabrics"));
        assert!(warning.contains("fe80::/64"), "{warning}");
    }
    let expected = [
        "mlx5_0:1-mlx5_0:1",
        "mlx5_1:1-mlx5_1:1",
        "mlx5_0:1-mlx5_1:1",
        "mlx5_1:1-mlx5_0:1",
    ];
    assert_eq!(pairs(&client, &server), expected);
    // A LID that exists twice proves it, too; and then ports are paired by position.
    let twice = ranked(&rails(7, [5, 5], ["0x1", "0x1"]), &wish("192.0.2.7"));
    assert_eq!(twice.warnings.len(), 1);
    assert_eq!(pairs(&twice, &twice)[0], "mlx5_0:1-mlx5_0:1");
    // One fabric: nothing to say.
    let one = ranked(&rails(7, [5, 6], ["0x1", "0x1"]), &wish("192.0.2.7"));
    assert!(one.warnings.is_empty(), "{:?}", one.warnings);
}

#[test]
fn fast_ports_of_two_subnets_come_after_slow_ones_of_one() {
    let of = |last: u8, prefix: &str| {
        let machine = host(last)
            .roce("mlx5_bond_0", "eth0", [192, 0, 2, last])
            .infiniband("mlx5_0", prefix, u16::from(last), NDR);
        ranked(&machine, &wish(&format!("192.0.2.{last}")))
    };
    let (client, server) = (of(7, PREFIX), of(8, "fec0:0000:0000:0001"));
    let expected = ["mlx5_bond_0:1-mlx5_bond_0:1", "mlx5_0:1-mlx5_0:1"];
    assert_eq!(pairs(&client, &server), expected);
}

#[test]
fn ports_of_different_partitions_are_no_pair() {
    let machine = |last: u8, pkeys: [&str; 2]| {
        let at = "sys/class/infiniband/mlx5_0/ports/1/pkeys";
        host(last)
            .infiniband("mlx5_0", PREFIX, u16::from(last), NDR)
            .put(&format!("{at}/0"), pkeys[0])
            .put(&format!("{at}/1"), pkeys[1])
            .put(&format!("{at}/2"), "0x0000")
    };
    let of = |last, pkeys| ranked(&machine(last, pkeys), &wish("192.0.2.7"));
    // The first full member, not the first entry.
    let both = of(7, ["0x7fff", "0x8012"]);
    assert_eq!(both.candidates[0].pkey, 0x8012);
    assert_eq!(pairs(&both, &of(8, ["0x8012", "0xffff"])).len(), 1);
    assert!(pairs(&both, &of(8, ["0xffff", "0x0000"])).is_empty());
    let limited = of(7, ["0x0012", "0x0013"]);
    assert_eq!(pairs(&limited, &both).len(), 1);
    assert!(pairs(&limited, &limited).is_empty(), "two limited members");
    let wish = |pkey| PortWish {
        pkey: Some(pkey),
        ..wish("192.0.2.7")
    };
    // Full membership, though the limited entry comes first.
    let asked = ranked(&machine(7, ["0x0012", "0x8012"]), &wish(0x0012));
    assert_eq!(asked.candidates[0].pkey, 0x8012);
    let machine = machine(7, ["0x7fff", "0x8012"]);
    let asked = ranked(&machine, &wish(0x7fff));
    assert_eq!(asked.candidates[0].pkey, 0x7fff);
    let none = ranked(&machine, &wish(0x8044));
    let unknown = none.unknown().unwrap();
    assert_eq!(
        (&*unknown.name, &*unknown.why),
        ("mlx5_0:1", "has no P_Key 0x8044; it has 0x7fff, 0x8012")
    );
}

#[test]
fn names_that_stand_for_nothing_are_said_with_what_exists() {
    let machine = dual_stack(7).roce("mlx5_1", "eth0", [192, 0, 2, 7]);
    for (name, says) in [
        (
            "mlx5_9",
            "mlx5_9 does not exist; this host has mlx5_0, mlx5_1",
        ),
        (
            "mlx5_%r",
            "mlx5_4 does not exist; this host has mlx5_0, mlx5_1",
        ),
        (
            "mlx5_0:2",
            "mlx5_0:2 does not exist; this host has mlx5_0:1",
        ),
        (
            "mlx5_0:1:9",
            "mlx5_0:1 has no such GID 9; it has 0: fe80::a00:ff:fe00:1 (RoCE v1), 1: \
             fe80::a00:ff:fe00:1, 2: 10.0.1.7 (RoCE v1), 3: 10.0.1.7, 5: 2001:db8::7",
        ),
        ("mlx5_0:1:10.0.1.9", "mlx5_0:1 has no such GID 10.0.1.9"),
    ] {
        let ranked = named(&machine, name, 4);
        assert!(ranked.candidates.is_empty() && ranked.unknown().is_some());
        assert!(ranked.reasons().contains(says), "{}", ranked.reasons());
    }
    // The others of a list are used.
    let ranked = named(&machine, "mlx5_9,mlx5_1", 0);
    assert_eq!(order(&ranked), ["mlx5_1:1:3"]);
}

#[test]
fn lists_keep_their_order_and_are_rotated_by_the_local_rank() {
    let machine = dgx(7);
    let first = |names, rank| order(&named(&machine, names, rank)).remove(0);
    assert_eq!(first("mlx5_3,mlx5_bond_0", 0), "mlx5_3:1:0");
    assert_eq!(first("mlx5_3,mlx5_bond_0", 1), "mlx5_bond_0:1:3");
    assert_eq!(first("mlx5_3,mlx5_bond_0", 2), "mlx5_3:1:0");
    assert_eq!(first("mlx5_%r", 5), "mlx5_5:1:0");
    let ranked = named(&machine, "mlx5_bond_0,mlx5_3,mlx5_3:1", 0);
    assert_eq!(order(&ranked), ["mlx5_bond_0:1:3", "mlx5_3:1:0"]);
    let server = named(&dgx(8), "mlx5_bond_0,mlx5_3", 0);
    assert_eq!(
        pairs(&ranked, &server),
        ["mlx5_bond_0:1-mlx5_bond_0:1", "mlx5_3:1-mlx5_3:1"],
        "the order of the users, not the rate"
    );
}

#[test]
fn ports_that_carry_no_queue_pairs_are_skipped_with_the_reason() {
    let at = |file: &str| format!("sys/class/infiniband/mlx5_0/{file}");
    let machine = || host(7).roce("mlx5_0", "eth0", [192, 0, 2, 7]);
    let old = "IB/RoCE v1";
    let cases = [
        (
            machine().put(&at("ports/1/state"), "1: DOWN"),
            "mlx5_0:1 is Down (LinkUp)",
        ),
        (
            machine().put(&at("ports/1/link_layer"), "Unspecified"),
            "mlx5_0:1 is neither InfiniBand nor RoCE",
        ),
        (
            machine().put(&at("node_type"), "4: RNIC"),
            "mlx5_0:1 is iWARP",
        ),
        (
            machine().put(&at("ports/1/gid_attrs/types/3"), old),
            "mlx5_0:1 has no RoCE v2 GID of an IP address; it has 0: fe80",
        ),
    ];
    for (machine, says) in cases {
        let ranked = ranked(&machine, &wish("192.0.2.7"));
        assert!(ranked.candidates.is_empty(), "{:?}", ranked.candidates);
        assert!(ranked.reasons().starts_with(says), "{}", ranked.reasons());
        assert_eq!(ranked.unknown(), None);
    }
}

#[test]
fn loopback_and_family_separate_ports() {
    let machine = Machine::of(1, 2, 1)
        .loopback()
        .nic("dummy0", 0, 4200, [10, 9, 0, 1])
        .roce("rxe0", "lo", [127, 0, 0, 1])
        .roce("rxe1", "dummy0", [10, 9, 0, 1]);
    let both = ranked(&machine, &wish("127.0.0.1"));
    assert_eq!(order(&both), ["rxe0:1:3", "rxe1:1:3"]);
    assert_eq!(pairs(&both, &both), ["rxe0:1-rxe0:1", "rxe1:1-rxe1:1"]);
    let address: IpAddr = "10.9.0.1".parse().unwrap();
    let wish = PortWish {
        control: Some(address),
        ..PortWish::default()
    };
    assert_eq!(order(&ranked(&machine, &wish))[0], "rxe1:1:3");
}

#[test]
fn the_fastest_active_port_is_known() {
    let fastest = |machine: Machine| machine.read_topology().fastest_rdma_port();
    let (name, rate) = fastest(dgx(7)).unwrap();
    assert_eq!((name.starts_with("mlx5_"), rate), (true, 400_000));
    assert_eq!(fastest(host(7)), None);
    let down = host(7)
        .infiniband("mlx5_0", PREFIX, 5, NDR)
        .put("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
    assert_eq!(fastest(down), None);
}

#[test]
fn a_message_does_not_grow_with_the_table() {
    let mut machine = host(7).roce("mlx5_0", "eth0", [192, 0, 2, 7]);
    for index in 5..200 {
        let gid = format!("0000:0000:0000:0000:0000:ffff:0a00:{index:04x}");
        machine = machine.gid("mlx5_0", index, &gid, "RoCE v2", "eth0");
    }
    let offered = ranked(&machine, &wish("192.0.2.7"));
    assert_eq!(offered.candidates.len(), 4);
    assert!(offered.candidates[0].control);
    let unknown = named(&machine, "mlx5_0:1:250", 0).reasons();
    assert!(
        unknown.contains("and 191 more") && unknown.len() < 400,
        "{unknown}"
    );
}

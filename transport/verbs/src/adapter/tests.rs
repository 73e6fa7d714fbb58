//! Tests of the choice of a port, over faked trees.

use super::*;
use crate::sysfs::testing::Tree;

/// Two devices, the second with two ports, one of them down.
fn roce() -> Tree {
    let tree = Tree::new();
    tree.port("mlx5_0", 1, "Ethernet", "4: ACTIVE");
    tree.gid(
        "mlx5_0",
        1,
        0,
        "fe80:0000:0000:0000:0202:03ff:fe04:0506",
        "IB/RoCE v1",
        "eth0",
    );
    tree.gid(
        "mlx5_0",
        1,
        1,
        "fe80:0000:0000:0000:0202:03ff:fe04:0506",
        "RoCE v2",
        "eth0",
    );
    tree.gid(
        "mlx5_0",
        1,
        2,
        "0000:0000:0000:0000:0000:ffff:0a00:0001",
        "IB/RoCE v1",
        "eth0",
    );
    tree.gid(
        "mlx5_0",
        1,
        3,
        "0000:0000:0000:0000:0000:ffff:0a00:0001",
        "RoCE v2",
        "eth0",
    );
    tree.port("mlx5_1", 1, "Ethernet", "1: DOWN");
    tree.gid(
        "mlx5_1",
        1,
        0,
        "0000:0000:0000:0000:0000:ffff:0a00:0002",
        "RoCE v2",
        "eth1",
    );
    tree.port("mlx5_1", 2, "Ethernet", "4: ACTIVE");
    tree.gid(
        "mlx5_1",
        2,
        0,
        "2001:0db8:0000:0000:0000:0000:0000:0007",
        "IB/RoCE v1",
        "eth2",
    );
    tree.gid(
        "mlx5_1",
        2,
        5,
        "2001:0db8:0000:0000:0000:0000:0000:0007",
        "RoCE v2",
        "eth2",
    );
    tree
}

fn chosen(tree: &Tree, local: &str, wish: Option<&str>) -> Result<(String, u8, u8), VerbsError> {
    let sysfs = tree.sysfs();
    let local = local.parse().unwrap();
    choose(&sysfs, &sysfs.devices(), local, wish).map(|c| (c.device, c.port, c.gid.index))
}

#[test]
fn the_port_with_the_address_is_taken_and_never_its_v1_entry() {
    let tree = roce();
    let first = ("mlx5_0".to_owned(), 1, 3);
    let second = ("mlx5_1".to_owned(), 2, 5);
    assert_eq!(chosen(&tree, "10.0.0.1", None).unwrap(), first);
    assert_eq!(chosen(&tree, "::ffff:10.0.0.1", None).unwrap(), first);
    assert_eq!(chosen(&tree, "2001:db8::7", None).unwrap(), second);
    assert_eq!(chosen(&tree, "fe80::202:3ff:fe04:506", None).unwrap().2, 1);
    assert_eq!(chosen(&tree, "10.0.0.1", Some("mlx5_0:1")).unwrap(), first);
}

#[test]
fn an_address_that_no_active_port_has_is_refused_with_what_there_is() {
    let tree = roce();
    for local in ["10.0.0.2", "192.0.2.1", "127.0.0.1"] {
        let e = chosen(&tree, local, None).unwrap_err();
        assert!(matches!(e, VerbsError::NoGid { .. }), "{e}");
        let said = e.to_string();
        for part in [
            local,
            "mlx5_0:1 has 10.0.0.1",
            "mlx5_1:1 is down",
            "name the device",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    let empty = Tree::new();
    let e = chosen(&empty, "10.0.0.1", None).unwrap_err();
    assert!(e.to_string().contains("no port is up"), "{e}");
}

#[test]
fn a_named_device_may_be_on_another_network_than_the_control_connection() {
    let tree = roce();
    assert_eq!(chosen(&tree, "192.0.2.1", Some("mlx5_0")).unwrap().2, 3);
    let second = ("mlx5_1".to_owned(), 2, 5);
    assert_eq!(chosen(&tree, "192.0.2.1", Some("mlx5_1")).unwrap(), second);
    // Two routable addresses: the choice is ambiguous.
    tree.gid(
        "mlx5_0",
        1,
        4,
        "0000:0000:0000:0000:0000:ffff:0a00:0009",
        "RoCE v2",
        "eth0.7",
    );
    let e = chosen(&tree, "192.0.2.1", Some("mlx5_0")).unwrap_err();
    assert!(e.to_string().contains("10.0.0.9"), "{e}");
    assert_eq!(chosen(&tree, "10.0.0.9", None).unwrap().2, 4);
}

#[test]
fn a_wish_that_is_not_there_is_refused_with_what_is() {
    let tree = roce();
    for wish in [
        "mlx5_2", "mlx5_0:2", "mlx5_0:", "mlx5_0:x", "", ":1", "mlx5_1:3",
    ] {
        let e = chosen(&tree, "10.0.0.1", Some(wish)).unwrap_err();
        assert!(matches!(e, VerbsError::NoSuchDevice { .. }), "{wish}: {e}");
        assert!(e.to_string().contains("mlx5_0, mlx5_1"), "{e}");
    }
    let e = chosen(&tree, "10.0.0.2", Some("mlx5_1:1")).unwrap_err();
    assert!(e.to_string().contains("mlx5_1:1 is down"), "{e}");
}

#[test]
fn infiniband_needs_no_address_but_a_name_when_there_are_several() {
    let tree = Tree::new();
    tree.port("mlx5_0", 1, "InfiniBand", "4: ACTIVE");
    tree.gid(
        "mlx5_0",
        1,
        0,
        "fe80:0000:0000:0000:0002:c903:00fe:d6f1",
        "IB/RoCE v1",
        "",
    );
    tree.port("mlx5_0", 2, "InfiniBand", "2: INIT");
    tree.gid(
        "mlx5_0",
        2,
        0,
        "fe80:0000:0000:0000:0002:c903:00fe:d6f2",
        "IB/RoCE v1",
        "",
    );
    let one = ("mlx5_0".to_owned(), 1, 0);
    assert_eq!(chosen(&tree, "192.0.2.1", None).unwrap(), one);
    tree.port("mlx5_1", 1, "InfiniBand", "4: ACTIVE");
    tree.gid(
        "mlx5_1",
        1,
        0,
        "fe80:0000:0000:0000:0002:c903:00fe:d6f3",
        "IB/RoCE v1",
        "",
    );
    let e = chosen(&tree, "192.0.2.1", None).unwrap_err();
    assert!(e.to_string().contains("mlx5_1:1"), "{e}");
    assert_eq!(chosen(&tree, "192.0.2.1", Some("mlx5_0")).unwrap(), one);
    // RoCE on the connection's own network comes first.
    tree.port("rxe0", 1, "Ethernet", "4: ACTIVE");
    tree.gid(
        "rxe0",
        1,
        1,
        "0000:0000:0000:0000:0000:ffff:c000:0201",
        "RoCE v2",
        "eth0",
    );
    assert_eq!(chosen(&tree, "192.0.2.1", None).unwrap().0, "rxe0");
}

#[test]
fn a_message_does_not_grow_with_the_table() {
    let tree = Tree::new();
    tree.port("mlx5_0", 1, "Ethernet", "4: ACTIVE");
    for i in 0..200u8 {
        let gid = format!("0000:0000:0000:0000:0000:ffff:0a00:00{i:02x}");
        tree.gid("mlx5_0", 1, i, &gid, "RoCE v2", "eth0");
    }
    let e = chosen(&tree, "192.0.2.1", None).unwrap_err().to_string();
    assert!(
        e.contains("and 192 more") && e.len() < 700,
        "{} {e}",
        e.len()
    );
}

#[test]
fn a_port_that_does_not_take_the_longest_message_is_refused() {
    let device: Arc<str> = Arc::from("mlx5_0");
    let port = |message_bytes| PortState {
        active: true,
        link: Link::Ethernet,
        lid: 0,
        mtu: 1024,
        message_bytes,
    };
    let least = VERBS_SCATTER_BYTES as u32;
    assert!(takes_messages(&device, &port(least)).is_ok());
    let e = takes_messages(&device, &port(least - 1)).unwrap_err();
    let says = "mlx5_0 grants 1048575 bytes in a message, 1048576 are needed";
    assert_eq!(e.to_string(), says);
}

//! Tests of the attributes that a pair is connected with; Soft-RoCE does not report all of them.

use super::*;
use tidewater_topology::{FabricSettings, LinkLayer, Root};

fn peer(gid: &str) -> Peer {
    Peer {
        qpn: 2,
        psn: 0,
        gid: Gid::of(gid.parse().unwrap()),
        lid: 7,
        mtu: 1024,
        reads: 1,
        reads_out: 1,
    }
}

/// Attributes of a route from 10.0.0.1, which has index 5, to `gid`.
fn routed(link: Link, gid: &str) -> ffi::ibv_ah_attr {
    let fabric = FabricSettings {
        traffic_class: Some("160".parse().unwrap()),
        service_level: Some("3".parse().unwrap()),
        static_rate: Some("100".parse().unwrap()),
        flow_label: Some("0x12345".parse().unwrap()),
        ..FabricSettings::UNSET
    };
    let nowhere = tempfile::tempdir().unwrap();
    let root = Root::new(nowhere.path());
    let settings = fabric
        .on_port(&root, "mlx5_0", 1, LinkLayer::Ethernet)
        .unwrap();
    let mut way = ffi::empty_attributes().ah_attr;
    let from = (Gid::of("10.0.0.1".parse().unwrap()), 5);
    route(&mut way, (link, from), &settings, &peer(gid));
    way
}

#[test]
fn route_has_the_settings_of_the_user() {
    for link in [Link::Ethernet, Link::InfiniBand] {
        let way = routed(link, "2001:db8::1");
        assert_eq!((way.sl, way.static_rate, way.dlid), (3, 16, 7));
        assert_eq!((way.is_global, way.grh.sgid_index), (1, 5));
        assert_eq!((way.grh.traffic_class, way.grh.flow_label), (160, 0x1_2345));
    }
    // Within an InfiniBand subnet there is no global header.
    let way = routed(Link::InfiniBand, "10.0.0.2");
    assert_eq!((way.sl, way.static_rate, way.is_global), (3, 16, 0));
}

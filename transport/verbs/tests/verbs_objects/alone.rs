//! Tests of the error on a host without RDMA, and of the port of an address.

use std::path::Path;
use std::sync::Arc;

use tidewater_conformance::test_device::address;
use tidewater_topology::FabricSettings;
use tidewater_verbs::{
    Device, OpenPort, PairAttributes, PairOptions, PairSettings, Path as PortPath,
    ProtectionDomain, VerbsError, devices,
};

use crate::rig::{open_port, options, peer, unconnected_on};

#[test]
fn a_host_without_rdma_says_so_in_words() {
    let has = Path::new("/sys/class/infiniband")
        .read_dir()
        .is_ok_and(|mut d| d.next().is_some());
    match devices() {
        Ok(names) => {
            assert!(has && !names.is_empty());
            println!("devices: {}", names.join(", "));
            let e = Device::open("no such device").unwrap_err();
            assert!(matches!(e, VerbsError::NoSuchDevice { .. }), "{e}");
        }
        Err(e) => {
            assert!(!has, "{e}");
            assert!(matches!(e, VerbsError::NoDevice { .. }), "{e:?}");
            println!("{e}");
            let asked = Device::open("rxe0").unwrap_err();
            assert_eq!(asked, e);
            let asked = OpenPort::for_address(address(), Some("rxe0"));
            assert_eq!(asked.unwrap_err(), e);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn the_adapter_is_the_one_of_the_address() {
    let open_port = open_port();
    let limits = *open_port.device().limits();
    println!(
        "{:?} port {} index {} {} mtu {}: {limits:?}",
        open_port.device(),
        open_port.port(),
        open_port.gid_index(),
        open_port.gid(),
        open_port.mtu()
    );
    assert_eq!(open_port.gid().address(), address());
    assert!((256..=4096).contains(&open_port.mtu()) && open_port.mtu().is_power_of_two());
    assert!(limits.requests > 0 && limits.completions > 0 && limits.elements >= 2);
    assert!(open_port.reads() > 0 && open_port.reads_out() > 0);
    assert!(open_port.device().port(open_port.port()).unwrap().active);
    let beyond = open_port.device().port(200).unwrap_err();
    assert!(matches!(beyond, VerbsError::Call { .. }), "{beyond}");

    let name = open_port.device().name().to_string();
    for wish in [name.clone(), format!("{name}:{}", open_port.port())] {
        let again = OpenPort::for_address(address(), Some(&wish)).unwrap();
        assert!(Arc::ptr_eq(&again, &open_port), "{wish}: shared");
    }
    let e = OpenPort::for_address(address(), Some(&format!("{name}:9")));
    assert!(matches!(e, Err(VerbsError::NoPort { .. })), "{e:?}");
}

/// What the user sets is what the device has, as `ibv_query_qp` answers. Soft-RoCE reports neither service level
/// nor static rate; `route_has_the_settings_of_the_user` shows these.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn settings_reach_the_device() {
    let open_port = open_port();
    let index = open_port.gid_index();
    let pd = ProtectionDomain::new(open_port.device()).unwrap();
    let attributes = |fabric: FabricSettings| {
        let path = PortPath::new(&open_port, &fabric).unwrap();
        let options = PairOptions {
            retry: PairSettings::from(fabric).retry,
            ..options()
        };
        let (near, _) = unconnected_on(&path, &pd, &options, None);
        let (far, _) = unconnected_on(&path, &pd, &options, None);
        assert_eq!(near.ece(), None, "rxe has no ECE");
        near.connect(&peer(&far)).unwrap().attributes().unwrap()
    };
    let usual = PairAttributes {
        traffic_class: 106,
        flow_label: 0,
        gid_index: index,
        service_level: 0,
        static_rate: 0,
        pkey_index: 0,
        timeout: 14,
        retries: 6,
    };
    assert_eq!(attributes(FabricSettings::UNSET), usual);
    let set = FabricSettings {
        timeout: Some("22".parse().unwrap()),
        retries: Some("7".parse().unwrap()),
        traffic_class: Some("160".parse().unwrap()),
        service_level: Some("3".parse().unwrap()),
        pkey: Some("0x7fff".parse().unwrap()),
        gid_index: Some(index.to_string().parse().unwrap()),
        static_rate: Some("10".parse().unwrap()),
        flow_label: Some("0x12345".parse().unwrap()),
        ece: Some("on".parse().unwrap()),
    };
    let expected = PairAttributes {
        traffic_class: 160,
        flow_label: 0x1_2345,
        timeout: 22,
        retries: 7,
        ..usual
    };
    assert_eq!(attributes(set), expected);

    let unknown = FabricSettings {
        pkey: Some("0x8003".parse().unwrap()),
        ..FabricSettings::UNSET
    };
    let e = PortPath::new(&open_port, &unknown).unwrap_err();
    assert!(matches!(e, VerbsError::PKey(_)), "{e:?}");
    assert!(e.to_string().contains("it has 0xffff"), "{e}");
    let empty = FabricSettings {
        gid_index: Some("255".parse().unwrap()),
        ..FabricSettings::UNSET
    };
    let e = PortPath::new(&open_port, &empty).unwrap_err();
    assert!(matches!(e, VerbsError::PortGid { .. }), "{e:?}");
    assert!(
        e.to_string()
            .contains(&format!("127.0.0.1 at index {index}")),
        "{e}"
    );
}

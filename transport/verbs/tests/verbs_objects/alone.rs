//! Tests of the error on a host without RDMA, and of the adapter of an address.

use std::path::Path;
use std::sync::Arc;

use tidewater_verbs::{Adapter, Device, VerbsError, devices};

use crate::rig::{HERE, adapter};

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
            let asked = Adapter::for_address(HERE, Some("rxe0"));
            assert_eq!(asked.unwrap_err(), e);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn the_adapter_is_the_one_of_the_address() {
    let adapter = adapter();
    let limits = *adapter.device().limits();
    println!(
        "{:?} port {} index {} {} mtu {}: {limits:?}",
        adapter.device(),
        adapter.port(),
        adapter.gid_index(),
        adapter.gid(),
        adapter.mtu()
    );
    assert_eq!(adapter.gid().address(), HERE);
    assert!((256..=4096).contains(&adapter.mtu()) && adapter.mtu().is_power_of_two());
    assert!(limits.requests > 0 && limits.completions > 0 && limits.elements >= 2);
    assert!(adapter.reads() > 0 && adapter.reads_out() > 0);
    assert!(adapter.device().port(adapter.port()).unwrap().active);
    let beyond = adapter.device().port(200).unwrap_err();
    assert!(matches!(beyond, VerbsError::Call { .. }), "{beyond}");

    let name = adapter.device().name().to_string();
    for wish in [name.clone(), format!("{name}:{}", adapter.port())] {
        let again = Adapter::for_address(HERE, Some(&wish)).unwrap();
        assert!(Arc::ptr_eq(&again, &adapter), "{wish}: shared");
    }
    let e = Adapter::for_address(HERE, Some(&format!("{name}:9")));
    assert!(matches!(e, Err(VerbsError::NoSuchDevice { .. })), "{e:?}");
}

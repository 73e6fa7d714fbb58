//! Settings of queue pairs: parsed, completed by what a port says, refused with what there is.

use std::time::Duration;

use tidewater_topology::{
    ClassFrom, FabricSettings, LinkLayer, NoPKey, PKey, PortSettings, Root, longest_retry,
};

use super::fake::Machine;

const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";
const CLASS: &str = "sys/class/infiniband/mlx5_0/tc/1/traffic_class";

fn on_port(
    fabric: &FabricSettings,
    machine: &Machine,
    link: LinkLayer,
) -> Result<PortSettings, NoPKey> {
    fabric.on_port(&Root::new(machine.root()), "mlx5_0", 1, link)
}

fn pkeys(values: &[&str]) -> Machine {
    let put = |machine: Machine, (n, value): (usize, &&str)| {
        machine.put(&format!("{PORT}/pkeys/{n}"), value)
    };
    values.iter().enumerate().fold(Machine::empty(), put)
}

#[test]
fn traffic_class_is_the_users_then_the_ports_then_106() {
    let unset = FabricSettings::UNSET;
    let plain = Machine::empty();
    let class = |fabric: &FabricSettings, machine: &Machine, link| {
        let settings = on_port(fabric, machine, link).unwrap();
        (settings.traffic_class, settings.traffic_class_from)
    };
    let (roce, ib) = (LinkLayer::Ethernet, LinkLayer::InfiniBand);
    assert_eq!(class(&unset, &plain, roce), (106, ClassFrom::Usual));
    assert_eq!(class(&unset, &plain, ib), (0, ClassFrom::Usual));
    let configured = Machine::empty().put(CLASS, "Global tclass=160\nsrc_ip=10.0.0.1,tclass=32\n");
    assert_eq!(class(&unset, &configured, roce), (160, ClassFrom::Port));
    // Rules for some packets, and what is no class, are not the port's.
    for other in [
        "src_ip=10.0.0.1,tclass=32",
        "",
        "Global tclass=256",
        "Global tclass=-1",
    ] {
        let machine = Machine::empty().put(CLASS, other);
        assert_eq!(
            class(&unset, &machine, roce),
            (106, ClassFrom::Usual),
            "{other}"
        );
    }
    let set = FabricSettings {
        traffic_class: Some("0".parse().unwrap()),
        ..unset
    };
    assert_eq!(class(&set, &configured, roce), (0, ClassFrom::User));
}

#[test]
fn first_full_membership_is_taken() {
    let key = |values: &[&str], wanted: Option<&str>| {
        let fabric = FabricSettings {
            pkey: wanted.map(|key| key.parse().unwrap()),
            ..FabricSettings::UNSET
        };
        let settings = on_port(&fabric, &pkeys(values), LinkLayer::InfiniBand);
        settings.map(|s| (s.pkey_index, s.pkey.get()))
    };
    assert_eq!(
        key(&["0x7fff", "0x0000", "0x8001", "0xffff"], None),
        Ok((2, 0x8001))
    );
    assert_eq!(key(&["0x0000", "0x7fff", "0x0001"], None), Ok((1, 0x7fff)));
    assert_eq!(
        key(&[], None),
        Ok((0, 0xffff)),
        "a provider without a table"
    );
    // By value, with or without the bit of membership.
    for wanted in ["0x8002", "0x2", "2"] {
        let table = ["0xffff", "0x0002", "0x8002"];
        assert_eq!(key(&table, Some(wanted)), Ok((2, 0x8002)), "{wanted}");
    }
    assert_eq!(key(&["0xffff", "0x0002"], Some("0x8002")), Ok((1, 0x0002)));
    let e = key(&["0xffff", "0x0000", "0x8001"], Some("0x8003"))
        .unwrap_err()
        .to_string();
    for part in ["mlx5_0:1", "0x8003", "0xffff, 0x8001", "--rdma-pkey"] {
        assert!(e.contains(part), "{part}: {e}");
    }
    let e = key(&[], Some("0x8003")).unwrap_err().to_string();
    assert!(e.contains("it has none"), "{e}");
    let e = key(&["0x0000"], None).unwrap_err().to_string();
    assert!(e.contains("no partition"), "{e}");
}

#[test]
fn limited_members_do_not_reach_each_other() {
    let key = |value| PKey::new(value).unwrap();
    let reaches = |ours, theirs| key(ours).reaches(key(theirs));
    assert!(reaches(0x8001, 0x8001) && reaches(0x8001, 0x0001) && reaches(0x0001, 0x8001));
    assert!(!reaches(0x0001, 0x0001), "both are limited members");
    assert!(!reaches(0x8001, 0x8002), "another partition");
    assert_eq!(PKey::new(0x8000), None);
}

#[test]
fn other_settings_reach_the_port_settings() {
    let fabric = FabricSettings {
        service_level: Some("15".parse().unwrap()),
        static_rate: Some("100".parse().unwrap()),
        flow_label: Some("0xfffff".parse().unwrap()),
        ..FabricSettings::UNSET
    };
    let settings = on_port(&fabric, &Machine::empty(), LinkLayer::Ethernet).unwrap();
    assert_eq!(
        (
            settings.service_level,
            settings.static_rate,
            settings.flow_label
        ),
        (15, 16, 0xf_ffff)
    );
    let unset = on_port(
        &FabricSettings::UNSET,
        &Machine::empty(),
        LinkLayer::Ethernet,
    )
    .unwrap();
    assert_eq!(
        (unset.service_level, unset.static_rate, unset.flow_label),
        (0, 0, 0)
    );
}

#[test]
fn longest_retry_follows_from_timeout_and_retries() {
    let usual = FabricSettings::UNSET.longest_retry();
    assert!(
        usual > Duration::from_millis(1_800) && usual < Duration::from_secs(2),
        "{usual:?}"
    );
    let most = FabricSettings {
        timeout: Some("22".parse().unwrap()),
        retries: Some("7".parse().unwrap()),
        ..FabricSettings::UNSET
    };
    assert_eq!(most.longest_retry(), longest_retry(22, 7));
    assert_eq!(most.longest_retry().as_secs(), 549);
}

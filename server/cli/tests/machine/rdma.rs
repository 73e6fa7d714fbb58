//! Faults of RDMA: devices, links, GIDs, packets, locked memory.

use tidewater_cli::doctor::{Check, Machine, Question, Verdict, examine};
use tidewater_topology::FabricSettings;

use super::doctor::{assert_fault, fault, only_fault, question, report};
use super::fake::Machine as Fake;
use super::sound;

const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";

#[test]
fn no_rdma_device() {
    let fake = sound().without("sys/class/infiniband");
    fault(&fake, "rdma-device", Verdict::Fail, "none", "rdma_rxe");
    let welcome = Question {
        rdma: false,
        ..question()
    };
    let check = only_fault(&fake, &welcome);
    assert_fault(
        &check,
        "rdma-device",
        Verdict::Warn,
        "none",
        "--device /dev/infiniband",
    );
    assert!(check.means.contains("TCP"), "{check:?}");
}

#[test]
fn a_device_that_cannot_be_opened() {
    for (missing, found, remedy) in [
        (
            "dev/infiniband/uverbs0",
            "/dev/infiniband/uverbs0: ",
            "udev",
        ),
        (
            "sys/class/infiniband_verbs",
            "no character device",
            "ib_uverbs",
        ),
    ] {
        let report = report(&sound().without(missing), &question());
        let check = |name| report.checks.iter().find(|c| c.name == name).unwrap();
        let access = check("rdma-access");
        assert_fault(access, "rdma-access", Verdict::Fail, found, remedy);
        let port = check("rdma-port");
        assert_eq!(port.verdict, Verdict::Fail);
        assert!(port.found.contains("mlx5_0:1 cannot be opened"), "{port:?}");
    }
}

#[test]
fn where_rdma_is_not_needed_its_faults_are_warnings() {
    let welcome = Question {
        rdma: false,
        ..question()
    };
    let faults = [(
        "rdma-link",
        sound().put(&format!("{PORT}/state"), "1: DOWN"),
    )];
    for (name, fake) in faults {
        let needed = only_fault(&fake, &question());
        assert_eq!((needed.name, needed.verdict), (name, Verdict::Fail));
        let check = only_fault(&fake, &welcome);
        assert_eq!((check.name, check.verdict), (name, Verdict::Warn));
    }
}

#[test]
fn links_that_are_down() {
    let down = |fake: Fake| {
        fake.put(&format!("{PORT}/state"), "1: DOWN")
            .put(&format!("{PORT}/phys_state"), "3: Disabled")
    };
    fault(
        &down(sound()),
        "rdma-link",
        Verdict::Fail,
        "mlx5_0:1 Down (Disabled)",
        "ip link set",
    );
    let init = sound().put(&format!("{PORT}/state"), "2: INIT");
    fault(&init, "rdma-link", Verdict::Fail, "Init", "opensm");
    let second = down(sound().roce("mlx5_1", "ens1", [10, 0, 1, 7]));
    fault(
        &second,
        "rdma-link",
        Verdict::Warn,
        "mlx5_1:1 active",
        "cable",
    );
}

/// The check of the port: its verdict, and what it found.
fn port(fake: &Fake, question: &Question) -> (Verdict, String) {
    let report = report(fake, question);
    let mut checks = report.checks.into_iter();
    let check = checks.find(|check| check.name == "rdma-port").unwrap();
    (check.verdict, check.found)
}

#[test]
fn a_port_on_another_network_than_the_address_is_used() {
    let other = "0000:0000:0000:0000:0000:ffff:0a00:0108";
    let fake = sound().gid("mlx5_0", 3, other, "RoCE v2", "ens1");
    let found = "mlx5_0:1 (RoCE, 100 Gb/s, GID 3 10.0.1.8)".to_owned();
    assert_eq!(port(&fake, &question()), (Verdict::Ok, found));
}

/// The port is selected with the GID index of the settings, as servers and clients do.
#[test]
fn the_port_has_the_gid_that_is_set() {
    let other = "0000:0000:0000:0000:0000:ffff:0a00:0109";
    let fake = sound().gid("mlx5_0", 5, other, "RoCE v2", "ens1");
    let of = |fabric| {
        let asked = question();
        port(&fake, &Question { fabric, ..asked })
    };
    let index = FabricSettings {
        gid_index: Some("5".parse().unwrap()),
        ..FabricSettings::UNSET
    };
    let found = "mlx5_0:1 (RoCE, 100 Gb/s, GID 5 10.0.1.9)".to_owned();
    assert_eq!(of(index), (Verdict::Ok, found));
    let index = FabricSettings {
        gid_index: Some("77".parse().unwrap()),
        ..FabricSettings::UNSET
    };
    let (verdict, found) = of(index);
    assert_eq!(verdict, Verdict::Fail, "{found}");
    assert!(found.contains("no such GID 77"), "{found}");
}

#[test]
fn no_port_of_the_version_that_is_routed() {
    let old = sound().put(&format!("{PORT}/gid_attrs/types/3"), "IB/RoCE v1");
    let says = "none; not used: mlx5_0:1 has no RoCE v2 GID of an IP address";
    fault(&old, "rdma-port", Verdict::Fail, says, "cma_roce_mode");
    // Another port is used then.
    let second = old.roce("mlx5_1", "ens1", [10, 0, 1, 7]);
    let (verdict, found) = port(&second, &question());
    assert_eq!(verdict, Verdict::Ok);
    assert!(found.starts_with("mlx5_1:1") && found.contains("not used: mlx5_0:1"));
}

/// The host of [`sound`] without its RoCE device, and with InfiniBand ports.
fn infiniband(ports: u16) -> Fake {
    let mut fake = sound().without("sys/class/infiniband/mlx5_0");
    for n in 0..ports {
        let rate = "400 Gb/sec (4X NDR)";
        fake = fake.infiniband(&format!("ib_{n}"), "fe80:0000:0000:0000", 5 + n, rate);
    }
    fake
}

#[test]
fn plain_infiniband_passes_whatever_the_address() {
    let fake = infiniband(1);
    let passes = report(&fake, &question());
    assert!(passes.passed(), "{passes}");
    let found = "ib_0:1 (InfiniBand, 400 Gb/s)".to_owned();
    assert_eq!(port(&fake, &question()), (Verdict::Ok, found));
    let (verdict, found) = port(&infiniband(8), &question());
    assert_eq!(verdict, Verdict::Ok);
    assert!(
        found.starts_with("ib_0:1 (InfiniBand, 400 Gb/s), of ib_0:1"),
        "{found}"
    );
    let four = Question {
        servers: 4,
        ..question()
    };
    let (verdict, found) = port(&infiniband(8), &four);
    assert_eq!(verdict, Verdict::Ok);
    let firsts = "for each server: ib_0:1 (InfiniBand, 400 Gb/s), ib_1:1, ib_2:1, ib_3:1";
    assert_eq!(found, firsts);
}

#[test]
fn two_fabrics_of_one_prefix_are_a_warning() {
    let fake = infiniband(2).put("sys/class/infiniband/ib_1/ports/1/sm_lid", "0x9");
    let says = "ib_0:1 and ib_1:1 are in two InfiniBand fabrics";
    fault(&fake, "rdma-port", Verdict::Warn, "ib_0:1", says);
}

#[test]
fn a_name_that_is_not_there_fails_with_what_is() {
    let named = |names: &str| Question {
        rdma_device: names.parse().ok(),
        ..question()
    };
    let (verdict, found) = port(&infiniband(2), &named("ib_7"));
    assert_eq!(verdict, Verdict::Fail);
    assert!(
        found.contains("ib_7 does not exist; this host has ib_0, ib_1"),
        "{found}"
    );
    let (verdict, found) = port(&infiniband(2), &named("ib_7,ib_1"));
    assert_eq!(verdict, Verdict::Warn, "{found}");
    assert!(found.starts_with("ib_1:1"), "{found}");
    assert_eq!(port(&infiniband(2), &named("ib_1:1")).0, Verdict::Ok);
}

#[test]
fn a_container_with_some_of_the_devices_passes() {
    let fake = infiniband(2).without("dev/infiniband/uverbs1");
    let report = report(&fake, &question());
    assert!(report.passed(), "{report}");
    let (verdict, found) = port(&fake, &question());
    assert_eq!(verdict, Verdict::Ok);
    let says = "ib_1:1 (InfiniBand, 400 Gb/s); not used: ib_0:1 cannot be opened";
    assert!(found.starts_with(says), "{found}");
}

#[test]
fn packets_that_are_too_small() {
    let fake = sound().put("sys/class/net/ens1/mtu", "1500");
    let found = "1024 on mlx5_0:1, because ens1 has MTU 1500";
    fault(
        &fake,
        "rdma-mtu",
        Verdict::Warn,
        found,
        "ip link set ens1 mtu 4200",
    );
}

#[test]
fn memory_that_cannot_be_locked() {
    let limits = |memlock: &str| {
        let text =
            format!("Max open files  20000  20000  files\nMax locked memory  {memlock}  bytes");
        sound().put("proc/self/limits", &text)
    };
    let low = limits("65536  65536");
    fault(
        &low,
        "memlock",
        Verdict::Fail,
        "64 KiB",
        "ulimit -l unlimited",
    );
    fault(
        &limits("1073741824  unlimited"),
        "memlock",
        Verdict::Warn,
        "1 GiB",
        "LimitMEMLOCK",
    );
    let capable = low.put(
        "proc/self/status",
        "CapEff:\t0000000000004000\nCpus_allowed_list:\t0-15\nMems_allowed_list:\t0-1",
    );
    assert!(
        report(&capable, &question())
            .to_string()
            .contains("lifted by CAP_IPC_LOCK")
    );
    let unknown = sound().put("proc/self/limits", "Max open files  20000  20000  files");
    fault(
        &unknown,
        "memlock",
        Verdict::Warn,
        "not known",
        "mount /proc",
    );
    // Without RDMA no process locks memory.
    let welcome = Question {
        rdma: false,
        ..question()
    };
    let alone = limits("65536  65536").without("sys/class/infiniband");
    assert_eq!(only_fault(&alone, &welcome).name, "rdma-device");
}

/// Settings of queue pairs on the sound host's port, as flags give them.
fn settings(fake: &Fake, flags: FabricSettings) -> Check {
    let question = Question {
        fabric: flags,
        ..question()
    };
    let report = examine(&Machine::read_at(fake.root()), &question).unwrap();
    let mut checks = report.checks.into_iter();
    checks.find(|check| check.name == "rdma-settings").unwrap()
}

#[test]
fn settings_of_queue_pairs_are_shown() {
    let shown = |fake: &Fake, flags| {
        let check = settings(fake, flags);
        assert_eq!(check.verdict, Verdict::Ok, "{check:?}");
        check.found
    };
    let unset = shown(&sound(), FabricSettings::UNSET);
    for part in [
        "mlx5_0:1 traffic class 106 (DSCP 26, default of RoCE)",
        "service level 0",
        "P_Key 0xffff (index 0)",
        "timeout 14 with 6 retries: a lane breaks 0.5 to 1.9 s",
        "ECE where both ends have it",
    ] {
        assert!(unset.contains(part), "{part}: {unset}");
    }
    let configured = sound()
        .put(
            "sys/class/infiniband/mlx5_0/tc/1/traffic_class",
            "Global tclass=160",
        )
        .put(&format!("{PORT}/pkeys/0"), "0x7fff")
        .put(&format!("{PORT}/pkeys/1"), "0x8001");
    let ports = shown(&configured, FabricSettings::UNSET);
    assert!(ports.contains("class 160 (DSCP 40, the port's)"), "{ports}");
    assert!(ports.contains("P_Key 0x8001 (index 1)"), "{ports}");
    let flags = FabricSettings {
        traffic_class: Some("104".parse().unwrap()),
        service_level: Some("3".parse().unwrap()),
        pkey: Some("0x7fff".parse().unwrap()),
        gid_index: Some("3".parse().unwrap()),
        static_rate: Some("100".parse().unwrap()),
        flow_label: Some("9".parse().unwrap()),
        ece: Some("off".parse().unwrap()),
        timeout: Some("20".parse().unwrap()),
        retries: Some("7".parse().unwrap()),
    };
    let set = shown(&configured, flags);
    for part in [
        "class 104 (DSCP 26, as set)",
        "service level 3",
        "P_Key 0x7fff (index 0)",
        "static rate code 16",
        "flow label 0x9",
        "timeout 20 with 7 retries",
        "no ECE",
    ] {
        assert!(set.contains(part), "{part}: {set}");
    }
}

#[test]
fn settings_that_the_port_lacks_are_named() {
    let fake = sound().put(&format!("{PORT}/pkeys/0"), "0xffff");
    let pkey = FabricSettings {
        pkey: Some("0x8003".parse().unwrap()),
        ..FabricSettings::UNSET
    };
    let check = settings(&fake, pkey);
    assert_eq!(check.verdict, Verdict::Fail);
    for part in ["mlx5_0:1", "no P_Key 0x8003", "it has 0xffff"] {
        assert!(check.found.contains(part), "{part}: {check:?}");
    }
    // Index 2 has the address as RoCE v1.
    for index in ["2", "77"] {
        let gid = FabricSettings {
            gid_index: Some(index.parse().unwrap()),
            ..FabricSettings::UNSET
        };
        let check = settings(&fake, gid);
        assert_eq!(check.verdict, Verdict::Fail);
        assert!(check.found.contains(&format!("index {index}")), "{check:?}");
        assert!(check.found.contains("3 (10.0.1.7)"), "{check:?}");
    }
}

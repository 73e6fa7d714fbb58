//! Faults of RDMA: devices, links, GIDs, packets, locked memory.

use tidewater_cli::doctor::{Question, Verdict};

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
    let fake = sound().without("dev/infiniband/uverbs0");
    fault(
        &fake,
        "rdma-access",
        Verdict::Fail,
        "/dev/infiniband/uverbs0: ",
        "udev",
    );
    let fake = sound().without("sys/class/infiniband_verbs");
    fault(
        &fake,
        "rdma-access",
        Verdict::Fail,
        "no character device",
        "ib_uverbs",
    );
}

#[test]
fn where_rdma_is_not_needed_its_faults_are_warnings() {
    let welcome = Question {
        rdma: false,
        ..question()
    };
    let faults = [
        (
            "rdma-link",
            sound().put(&format!("{PORT}/state"), "1: DOWN"),
        ),
        ("rdma-access", sound().without("dev/infiniband/uverbs0")),
    ];
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

#[test]
fn no_gid_for_the_address() {
    let other = "0000:0000:0000:0000:0000:ffff:0a00:0108";
    let fake = sound().gid("mlx5_0", 3, other, "RoCE v2", "ens1");
    let found = "no RoCE v2 GID of 10.0.1.7; there are 10.0.1.8";
    fault(
        &fake,
        "rdma-gid",
        Verdict::Fail,
        found,
        "listen on the address of",
    );
    // The GID is there, but of the version that is not routed.
    let old = sound().put(&format!("{PORT}/gid_attrs/types/3"), "IB/RoCE v1");
    fault(
        &old,
        "rdma-gid",
        Verdict::Fail,
        "there is none at all",
        "this address",
    );
    // For any listening address.
    let any = Question {
        listens: "0.0.0.0".parse().ok(),
        nic: Some("mlx5_0".into()),
        ..question()
    };
    let check = only_fault(&old, &any);
    assert_fault(
        &check,
        "rdma-gid",
        Verdict::Fail,
        "mlx5_0:1",
        "cma_roce_mode",
    );
    let second = old.roce("mlx5_1", "ens1", [10, 0, 1, 7]);
    let check = only_fault(&second, &any);
    assert_fault(
        &check,
        "rdma-gid",
        Verdict::Warn,
        "on mlx5_0:1",
        "ip addr add",
    );
}

#[test]
fn infiniband_needs_no_gid() {
    let fake = sound()
        .put(&format!("{PORT}/link_layer"), "InfiniBand")
        .put(&format!("{PORT}/gid_attrs/types/3"), "IB/RoCE v1");
    let any = Question {
        listens: "0.0.0.0".parse().ok(),
        nic: Some("ens1".into()),
        ..question()
    };
    let report = report(&fake, &any);
    assert!(report.passed(), "{report}");
    let told = report.to_string();
    assert!(
        told.contains("by their LID") && told.contains("ibv_devinfo"),
        "{told}"
    );
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

//! The output of `tidewater info` and the findings of `tidewater doctor`, on synthetic hosts.

#![allow(
    clippy::unwrap_used,
    reason = "a test crate: its helpers panic as its tests do"
)]

mod doctor;
#[path = "../../../../transport/topology/tests/topo/fake.rs"]
mod fake;
mod program;
mod rdma;
mod rdma_check;
mod system;

use fake::Machine as Fake;
use tidewater_cli::doctor::{Machine, Question, choose, draw};

/// A host without a fault: two nodes of four cores with two siblings, a NIC on each.
fn sound() -> Fake {
    Fake::with_caches(2, 4, 2, 2)
        .loopback()
        .nic("eth0", 0, 1500, [192, 0, 2, 7])
        .nic("ens1", 1, 9000, [10, 0, 1, 7])
        .roce("mlx5_0", "ens1", [10, 0, 1, 7])
        .hugepages(2048, 65_536, 65_536)
        .hugepages(1 << 20, 4, 4)
        .put("proc/sys/kernel/hostname", "node17")
        .put("proc/sys/kernel/osrelease", "6.1.0-28-amd64")
        .put(
            "proc/self/limits",
            "Max open files  20000  20000  files\nMax locked memory  unlimited  unlimited  bytes",
        )
        .put(
            "proc/self/mounts",
            "tmpfs /dev/shm tmpfs rw,size=33554432k 0 0",
        )
        .put(
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            "tsc",
        )
        .put(
            "sys/devices/system/clocksource/clocksource0/available_clocksource",
            "tsc hpet",
        )
}

/// Compares with a file in this folder; `TIDEWATER_TEST_BLESS=1` writes it again.
fn golden(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/machine")
        .join(name);
    assert!(
        text.lines()
            .all(|line| line.len() <= 100 && line.is_ascii()),
        "{text}"
    );
    assert!(!text.lines().any(|line| line.ends_with(' ')), "{text}");
    if std::env::var_os("TIDEWATER_TEST_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{text}");
}

fn drawn(fake: &Fake, question: &Question) -> String {
    let machine = Machine::read_at(fake.root());
    draw(&machine, question, &choose(&machine, question).unwrap())
}

#[test]
fn two_nodes_are_drawn() {
    let question = Question {
        servers: 2,
        appliers: Some(3),
        clients: 4,
        capacity: 4 << 30,
        listens: "10.0.1.7".parse().ok(),
        ..Question::default()
    };
    golden("two-nodes.txt", &drawn(&sound(), &question));
}

#[test]
fn odd_cores_of_a_cgroup_are_drawn() {
    let fake = sound()
        .allowed("1,5,7,13", "0")
        .put("proc/self/cgroup", "0::/job")
        .put("sys/fs/cgroup/job/cpu.max", "250000 100000")
        .put("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
        .put(
            "sys/class/infiniband/mlx5_0/ports/1/phys_state",
            "2: Polling",
        )
        .put("sys/class/net/veth7/mtu", "1500");
    let question = Question {
        appliers: Some(2),
        clients: 1,
        nic: Some("mlx5_0".into()),
        ..Question::default()
    };
    golden("odd-cores.txt", &drawn(&fake, &question));
}

#[test]
fn nothing_is_drawn_of_nothing() {
    golden("nothing.txt", &drawn(&Fake::empty(), &Question::default()));
}

#[test]
fn many_processors_take_many_lines_and_many_gids_are_counted() {
    let mut fake = Fake::with_caches(1, 48, 2, 16)
        .nic("eth0", 0, 1500, [10, 0, 0, 1])
        .roce("mlx5_0", "eth0", [10, 0, 0, 1]);
    for index in 5..40 {
        let gid = format!("0000:0000:0000:0000:0000:ffff:0a00:{index:04x}");
        fake = fake.gid("mlx5_0", index, &gid, "RoCE v2", "eth0");
    }
    let text = drawn(
        &fake,
        &Question {
            servers: 30,
            ..Question::default()
        },
    );
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    assert!(text.contains("and 31 more GIDs"), "{text}");
    for cpu in 0..96 {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit());
        assert!(numbers.any(|n| n == cpu.to_string()), "{cpu}: {text}");
    }
}

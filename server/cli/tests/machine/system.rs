//! Faults that concern every server: memory, loopback, kernel, cores, clock, files.

use tidewater_cli::doctor::{Machine, Question, Verdict, examine};
use tidewater_engine::store::Hugepages;
use tidewater_runtime::mem::Pages;

use super::doctor::{assert_fault, fault, only_fault, question, report};
use super::sound;

#[test]
fn hugepages_that_are_not_there() {
    let pool = "sys/kernel/mm/hugepages/hugepages-2048kB";
    let few = || sound().put(&format!("{pool}/free_hugepages"), "100");
    let command = "echo 69532 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let found = "100 of 2 MiB, and --capacity twice takes 4096";
    fault(&few(), "hugepages", Verdict::Warn, found, command);
    let with = |hugepages, capacity| Question {
        hugepages,
        capacity,
        ..question()
    };
    let asked = Hugepages::Of(Pages::Huge2M);
    let check = only_fault(&few(), &with(asked, 4 << 30));
    assert_fault(&check, "hugepages", Verdict::Fail, found, command);
    let check = only_fault(&few(), &with(Hugepages::Auto, 1 << 40));
    let less = "2048 GiB are more than there is";
    assert_fault(&check, "hugepages", Verdict::Warn, "takes 1048576", less);
    assert!(
        !check.remedies.iter().any(|r| r.contains("echo")),
        "{check:?}"
    );
    let check = only_fault(
        &sound().without("sys/kernel/mm/hugepages/hugepages-1048576kB"),
        &with(Hugepages::Of(Pages::Huge1G), 1 << 30),
    );
    assert_fault(
        &check,
        "hugepages",
        Verdict::Fail,
        "0 of 1 GiB",
        "boot with hugepagesz=1G",
    );
    let well = |question| {
        report(&few(), &question)
            .checks
            .iter()
            .all(|c| c.verdict == Verdict::Ok)
    };
    assert!(well(with(Hugepages::Off, 4 << 30)));
    assert!(
        well(with(Hugepages::Auto, 2 << 30)),
        "two pages of 1 GiB twice"
    );
}

#[test]
fn a_small_dev_shm_or_none() {
    let docker = sound().put("proc/self/mounts", "shm /dev/shm tmpfs rw,size=65536k 0 0");
    fault(&docker, "dev-shm", Verdict::Warn, "64 MiB", "--shm-size");
    let none = sound().put("proc/self/mounts", "proc /proc proc rw 0 0");
    fault(
        &none,
        "dev-shm",
        Verdict::Warn,
        "not mounted",
        "mount -o remount",
    );
}

#[test]
fn a_loopback_that_does_not_work() {
    let down = sound().put("sys/class/net/lo/flags", "0x8");
    fault(
        &down,
        "tcp-loopback",
        Verdict::Fail,
        "lo is down",
        "ip link set lo up",
    );
    let none = sound().without("sys/class/net/lo");
    fault(
        &none,
        "tcp-loopback",
        Verdict::Fail,
        "no device lo",
        "ip link set lo up",
    );
    let fake = sound();
    let mut machine = Machine::read_at(fake.root());
    machine.loopback_error = Some("connection timed out".into());
    let report = examine(&machine, &question()).unwrap();
    let check = report
        .checks
        .iter()
        .find(|c| c.name == "tcp-loopback")
        .unwrap();
    assert_fault(
        check,
        "tcp-loopback",
        Verdict::Fail,
        "timed out",
        "nft list ruleset",
    );
}

#[test]
fn kernels_that_are_old() {
    let with = |release: &str| sound().put("proc/sys/kernel/osrelease", release);
    fault(
        &with("5.13.19"),
        "kernel",
        Verdict::Warn,
        "5.13.19",
        "5.14 or later",
    );
    fault(
        &with("4.18.0-553.el8"),
        "kernel",
        Verdict::Fail,
        "lacks waitid(P_PIDFD), F_SEAL_FUTURE_WRITE, MADV_POPULATE_WRITE",
        "5.14 or later",
    );
    fault(
        &with("5.3.0"),
        "kernel",
        Verdict::Fail,
        "lacks waitid(P_PIDFD), MADV_POPULATE_WRITE",
        "5.14 or later",
    );
    fault(
        &with("a kernel"),
        "kernel",
        Verdict::Warn,
        "a kernel",
        "5.14",
    );
    fault(&with(""), "kernel", Verdict::Warn, "not known", "5.14");
    assert!(report(&with("5.14.0-503.el9"), &question()).passed());
}

#[test]
fn cores_that_are_too_few() {
    let with = |appliers, clients| Question {
        appliers: Some(appliers),
        clients,
        ..question()
    };
    let check = only_fault(&sound(), &with(17, 0));
    assert_fault(
        &check,
        "cores",
        Verdict::Warn,
        "usable 16, appliers 17",
        "fewer --appliers",
    );
    assert!(check.means.contains("no thread is pinned"), "{check:?}");
    let check = only_fault(&sound(), &with(2, 15));
    assert_fault(&check, "cores", Verdict::Warn, "clients 15", "cpuset");
    let limited = sound()
        .put("proc/self/cgroup", "0::/")
        .put("sys/fs/cgroup/cpu.max", "150000 100000");
    fault(
        &limited,
        "cores",
        Verdict::Warn,
        "usable 2, appliers 2, clients 4 (cgroup grants 1.5)",
        "CPU limit",
    );
    let fake = sound()
        .without("sys/devices/system")
        .without("proc/self/status");
    let report = report(&fake, &question());
    let check = report.checks.iter().find(|c| c.name == "cores").unwrap();
    assert_fault(
        check,
        "cores",
        Verdict::Fail,
        "usable 0",
        "mount /proc and /sys",
    );
}

#[test]
fn memory_or_cores_that_are_far_from_the_card() {
    let memory = sound().allowed("0-15", "0");
    fault(
        &memory,
        "numa",
        Verdict::Warn,
        "node 1 is not ours",
        "cpuset",
    );
    let cores = sound().allowed("0-3,8-11", "0-1");
    fault(
        &cores,
        "numa",
        Verdict::Warn,
        "appliers on 0,2; memory: node 1",
        "--nic",
    );
}

#[test]
fn clocks_that_are_slow() {
    let clock = "sys/devices/system/clocksource/clocksource0";
    let slow = sound().put(&format!("{clock}/current_clocksource"), "hpet");
    fault(
        &slow,
        "clock-source",
        Verdict::Warn,
        "hpet",
        "boot with clocksource=tsc",
    );
    let only = slow.put(&format!("{clock}/available_clocksource"), "hpet acpi_pm");
    fault(&only, "clock-source", Verdict::Warn, "hpet", "dmesg");
    let none = sound().without(clock);
    fault(&none, "clock-source", Verdict::Warn, "not known", "dmesg");
}

#[test]
fn files_that_are_too_few() {
    let with = |files: &str| {
        let text = format!("{files}\nMax locked memory  unlimited  unlimited  bytes");
        sound().put("proc/self/limits", &text)
    };
    let at = |n: u32| with(&format!("Max open files  {n}  {n}  files"));
    fault(
        &at(80),
        "open-files",
        Verdict::Fail,
        "80; a server with 4 clients opens 88",
        "ulimit -n",
    );
    fault(&at(1000), "open-files", Verdict::Warn, "1000", "nofile");
    fault(
        &with("Max processes 1 1"),
        "open-files",
        Verdict::Warn,
        "not known",
        "mount /proc",
    );
    assert!(report(&with("Max open files  unlimited  unlimited"), &question()).passed());
}

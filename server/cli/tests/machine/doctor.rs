//! Each check fails, or warns, on a host with just its defect.

use tidewater_cli::doctor::{Check, Machine, Question, Report, Verdict, examine};

use super::fake::Machine as Fake;
use super::{golden, sound};

/// Question for a server of a cluster that uses RDMA.
pub(crate) fn question() -> Question {
    Question {
        appliers: Some(2),
        clients: 4,
        capacity: 4 << 30,
        listens: "10.0.1.7".parse().ok(),
        rdma: true,
        ..Question::default()
    }
}

pub(crate) fn report(fake: &Fake, question: &Question) -> Report {
    examine(&Machine::read_at(fake.root()), question).unwrap()
}

/// The only check with a fault; all others are well.
pub(crate) fn only_fault(fake: &Fake, question: &Question) -> Check {
    let report = report(fake, question);
    let mut bad: Vec<Check> = report
        .checks
        .iter()
        .filter(|c| c.verdict != Verdict::Ok)
        .cloned()
        .collect();
    assert_eq!(bad.len(), 1, "{report}");
    let check = bad.remove(0);
    assert!(
        !check.means.is_empty() && !check.remedies.is_empty(),
        "{check:?}"
    );
    assert_eq!(report.passed(), check.verdict != Verdict::Fail);
    check
}

/// Asserts the check's name, verdict, finding and remedy.
pub(crate) fn assert_fault(check: &Check, name: &str, verdict: Verdict, found: &str, remedy: &str) {
    assert_eq!((check.name, check.verdict), (name, verdict), "{check:?}");
    assert!(check.found.contains(found), "{found}: {check:?}");
    let remedies = &check.remedies;
    assert!(
        remedies.iter().any(|r| r.contains(remedy)),
        "{remedy}: {check:?}"
    );
}

pub(crate) fn fault(fake: &Fake, name: &str, verdict: Verdict, found: &str, remedy: &str) {
    assert_fault(&only_fault(fake, &question()), name, verdict, found, remedy);
}

#[test]
fn of_a_sound_machine_all_is_well() {
    let report = report(&sound(), &question());
    assert!(report.passed());
    assert!(
        report.checks.iter().all(|c| c.verdict == Verdict::Ok),
        "{report}"
    );
    assert_eq!(
        report.checks.len(),
        15,
        "a check that is new needs its faults below"
    );
    golden("sound.txt", &report.to_string());
}

#[test]
fn a_machine_with_many_faults_is_told_all_of_them() {
    let fake = sound()
        .put("sys/class/net/ens1/mtu", "1500")
        .put("sys/class/net/lo/flags", "0x8")
        .put("proc/sys/kernel/osrelease", "4.18.0-553.el8_10.x86_64")
        .put(
            "proc/self/limits",
            "Max open files  64  64  files\nMax locked memory  65536  65536  bytes",
        )
        .put("proc/self/mounts", "proc /proc proc rw 0 0")
        .put(
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            "hpet",
        )
        .put(
            "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
            "12",
        )
        .gid(
            "mlx5_0",
            3,
            "0000:0000:0000:0000:0000:ffff:0a00:0108",
            "RoCE v2",
            "ens1",
        )
        .without("dev/infiniband/uverbs0");
    let question = Question {
        clients: 32,
        ..question()
    };
    let report = report(&fake, &question);
    assert!(!report.passed());
    golden("faults.txt", &report.to_string());
}

#[test]
fn of_nothing_it_says_what_is_not_known() {
    let report = report(&Fake::empty(), &Question::default());
    assert!(!report.passed());
    let unknown = report
        .checks
        .iter()
        .filter(|c| c.found.contains("not known"));
    assert!(unknown.count() >= 4, "{report}");
}

#[test]
fn a_device_that_does_not_exist() {
    let fake = sound();
    let question = Question {
        nic: Some("mlx5_7".into()),
        ..question()
    };
    let error = examine(&Machine::read_at(fake.root()), &question)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("mlx5_7") && error.contains("mlx5_0, ens1, eth0, lo"),
        "{error}"
    );
}

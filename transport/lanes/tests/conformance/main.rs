//! The contract of `fabric`, clause by clause, on every transport. Prints clause x transport x result; a
//! clause without a test fails `coverage`. The tests themselves are in `tidewater-conformance`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "the table is the report")]

#[allow(unsafe_code, reason = "a counting allocator")]
mod alloc;

use tidewater_conformance::{DEFECTS, Outcome, Seen, Subject, clauses};
use tidewater_lanes::fabric::{CLAUSES, TransportKind};
use tidewater_lanes::here;
use tidewater_lanes::sim::{Faults, Here, seeds};

use alloc::allocations;

const TRANSPORTS: &[TransportKind] = &[
    TransportKind::Shm,
    TransportKind::Tcp,
    TransportKind::Verbs,
    TransportKind::Sim,
];

/// Runs all clauses on the subjects of one transport, prints the column, and fails if one failed.
fn conform(subjects: &[Subject]) {
    let kind = subjects[0].kind();
    let mut failed = Vec::new();
    for clause in clauses() {
        let name = clause.name;
        if let Some((_, reason)) = clause.not_on.iter().find(|(k, _)| *k == kind) {
            println!("{name} {kind:5} not applicable: {reason}");
            continue;
        }
        let bad = subjects
            .iter()
            .map(|subject| (subject, clause.check(subject)))
            .find(|(_, outcome)| *outcome != Outcome::Passed);
        match bad {
            None => println!("{name} {kind:5} ok ({} runs)", subjects.len()),
            Some((subject, outcome)) => {
                println!("{name} {kind:5} FAILED ({}): {outcome:?}", subject.label());
                println!("{}", subject.repeat());
                failed.push(name);
            }
        }
    }
    assert!(failed.is_empty(), "{kind} breaks the contract: {failed:?}");
}

fn worlds(here: Here, count: u64) -> Vec<Subject> {
    let kinds = [
        ("calm", Faults::calm()),
        ("rough", Faults::rough()),
        ("hostile", Faults::hostile().unbroken()),
    ];
    let world = |seed| kinds.map(|(name, faults)| Subject::sim(seed, name, faults, here));
    seeds(0..count).flat_map(world).collect()
}

fn real(kind: TransportKind) -> [Subject; 2] {
    [false, true].map(|awake| Subject::real(kind, awake, allocations))
}

#[test]
fn sim() {
    conform(&worlds(here!(), 6));
}

#[test]
fn shm() {
    conform(&real(TransportKind::Shm));
}

#[test]
fn tcp() {
    conform(&real(TransportKind::Tcp));
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn verbs() {
    conform(&[device()]);
}

/// The RDMA device of the tests; panics without one.
#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
fn device() -> Subject {
    use tidewater_conformance::test_device;
    let (address, device) = (test_device::address(), test_device::device());
    Subject::verbs(address, device.as_deref(), None, Some(allocations))
        .unwrap_or_else(|why| panic!("no verbs here: {why}"))
}

#[cfg(not(any(feature = "verbs", feature = "verbs-dlopen")))]
fn device() -> Subject {
    panic!("built without the features `verbs` and `verbs-dlopen`")
}

#[test]
fn coverage() {
    let names: Vec<_> = clauses().iter().map(|c| c.name).collect();
    assert_eq!(names, CLAUSES, "each clause has one test, in order");
    for clause in clauses() {
        let column = |kind: &TransportKind| match clause.not_on.iter().find(|(k, _)| k == kind) {
            None => format!("{kind}: test"),
            Some((_, reason)) => format!("{kind}: not applicable ({reason})"),
        };
        let row: Vec<_> = TRANSPORTS.iter().map(column).collect();
        println!("{}  {}", clause.name, row.join("  "));
    }
}

/// A test that cannot fail shows nothing: each detects a transport that breaks its clause.
#[test]
fn defects_are_noticed() {
    let worlds = worlds(here!(), 4);
    let shm = [Subject::real(TransportKind::Shm, false, allocations)];
    for (defect, name) in DEFECTS {
        let clause = clauses().iter().find(|c| c.name == *name).unwrap();
        let subjects: &[Subject] = if clause.not_on.is_empty() {
            &worlds
        } else {
            &shm
        };
        let caught = subjects.iter().any(|s| clause.notices(*defect, s));
        println!("{name} notices {defect:?}: {caught}");
        assert!(caught, "{name} does not notice {defect:?}");
    }
}

/// Number of rows to read; more with `TIDEWATER_READS`.
fn reads(usual: u64) -> u64 {
    let asked = std::env::var("TIDEWATER_READS").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(usual)
}

fn torn_rows(subjects: &[Subject], usual: u64) {
    let share = reads(usual) / subjects.len() as u64;
    let mut all = Seen::default();
    for subject in subjects {
        let seen = subject.torn_rows(share);
        assert_eq!(
            seen.torn,
            0,
            "{}: torn rows were accepted: {seen:?}\n{}",
            subject.label(),
            subject.repeat()
        );
        all.accepted += seen.accepted;
        all.rejected += seen.rejected;
    }
    let kind = subjects[0].kind();
    println!(
        "{kind}: accepted {}, of them torn 0, rejected {}",
        all.accepted, all.rejected
    );
    assert!(all.accepted > 0 && all.rejected > 0, "{all:?}");
}

#[test]
fn torn_rows_sim() {
    torn_rows(&worlds(here!(), 20), 60_000);
}

#[test]
fn torn_rows_shm() {
    torn_rows(
        &[Subject::real(TransportKind::Shm, false, allocations)],
        400_000,
    );
}

#[test]
fn torn_rows_tcp() {
    torn_rows(
        &[Subject::real(TransportKind::Tcp, false, allocations)],
        100_000,
    );
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn torn_rows_verbs() {
    torn_rows(&[device()], 20_000);
}

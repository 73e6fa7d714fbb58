//! The contract of `fabric`, clause by clause, on every transport. Prints clause x transport x result; a
//! clause without a test fails `coverage`. A new transport adds a `Rig` and a column.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "the table is the report")]

#[allow(unsafe_code, reason = "a counting allocator")]
mod alloc;
mod breaks;
mod defects;
mod reads;
mod rig;
mod sim_rig;
mod tcp_rig;
mod threads;
mod torn;
mod verbs_rig;
mod writes;

use std::panic::{AssertUnwindSafe, catch_unwind};

use tidewater_lanes::fabric::{CLAUSES, TransportKind};
use tidewater_lanes::here;
use tidewater_lanes::sim::{Faults, Here, seeds};

use rig::Rig;
use sim_rig::SimRig;

type Test = fn(&dyn Rig);

/// A clause, its test, and the transports that it does not apply to, with the reason.
struct Clause {
    name: &'static str,
    test: Test,
    not_on: &'static [(TransportKind, &'static str)],
}

const fn clause(name: &'static str, test: Test) -> Clause {
    let not_on = &[];
    Clause { name, test, not_on }
}

const TESTS: &[Clause] = &[
    clause("F01", reads::exact),
    clause("F02", reads::torn_bytes_are_real),
    clause("F03", reads::fence),
    clause("F04", writes::in_order),
    clause("F05", writes::atomic_after_writes),
    clause("F06", writes::signal_wakes),
    clause("F07", writes::source_is_copied),
    clause("F08", writes::atomics),
    clause("F09", breaks::access),
    clause("F10", breaks::nothing_after_the_break),
    clause("F11", breaks::destroyed),
    clause("F12", reads::deadline),
    clause("F13", reads::deadline),
    clause("F14", reads::owned_batches),
    clause("F15", writes::mail_in_order),
    clause("F16", breaks::others_live),
    clause("F17", writes::sleeping),
    Clause {
        name: "F18",
        test: breaks::allocations_none,
        not_on: &[(TransportKind::Sim, "packets in flight are on the heap")],
    },
];

const TRANSPORTS: &[TransportKind] = &[
    TransportKind::Shm,
    TransportKind::Tcp,
    TransportKind::Verbs,
    TransportKind::Sim,
];

/// Runs all clauses on the rigs of one transport, prints the column, and fails if one failed.
fn conform(rigs: &[&dyn Rig]) {
    let kind = rigs[0].kind();
    let mut failed = Vec::new();
    for clause in TESTS {
        let reason = clause.not_on.iter().find(|(k, _)| *k == kind);
        if let Some((_, reason)) = reason {
            println!("{} {kind:5} not applicable: {reason}", clause.name);
            continue;
        }
        let bad = rigs
            .iter()
            .find(|rig| catch_unwind(AssertUnwindSafe(|| (clause.test)(**rig))).is_err());
        match bad {
            None => println!("{} {kind:5} ok ({} runs)", clause.name, rigs.len()),
            Some(rig) => {
                println!("{} {kind:5} FAILED ({})", clause.name, rig.label());
                println!("{}", rig.repeat());
                failed.push(clause.name);
            }
        }
    }
    assert!(failed.is_empty(), "{kind} breaks the contract: {failed:?}");
}

fn sim_rigs(here: Here, count: u64) -> Vec<SimRig> {
    let kinds = [
        ("calm", Faults::calm()),
        ("rough", Faults::rough()),
        ("hostile", Faults::hostile().unbroken()),
    ];
    let rig = |seed| {
        kinds.map(|(name, faults)| SimRig {
            seed,
            name,
            faults,
            here,
        })
    };
    seeds(0..count).flat_map(rig).collect()
}

#[test]
fn sim() {
    let rigs = sim_rigs(here!(), 6);
    conform(&rigs.iter().map(|r| r as &dyn Rig).collect::<Vec<_>>());
}

#[test]
fn shm() {
    conform(&[&threads::SHM, &awake(threads::SHM)]);
}

#[test]
fn tcp() {
    conform(&[&tcp_rig::TCP, &awake(tcp_rig::TCP)]);
}

/// A rig with an owner that never sleeps.
fn awake(rig: threads::ThreadRig) -> threads::ThreadRig {
    let awake = true;
    threads::ThreadRig { awake, ..rig }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn verbs() {
    conform(&[&verbs_rig::here()]);
}

#[test]
fn coverage() {
    let names: Vec<_> = TESTS.iter().map(|c| c.name).collect();
    assert_eq!(
        names, CLAUSES,
        "each clause has one entry in TESTS, in order"
    );
    if let Err(why) = verbs_rig::rig() {
        println!("verbs skipped here: {why}");
    }
    for clause in TESTS {
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
    let rigs = sim_rigs(here!(), 4);
    for (defect, name) in defects::ALL {
        let clause = TESTS.iter().find(|c| c.name == *name).unwrap();
        let noticed = |rig: &dyn Rig| {
            let rig = defects::Defective {
                rig,
                defect: *defect,
            };
            catch_unwind(AssertUnwindSafe(|| (clause.test)(&rig))).is_err()
        };
        let on_sim = || rigs.iter().any(|rig| noticed(rig));
        let caught = if clause.not_on.is_empty() {
            on_sim()
        } else {
            noticed(&threads::SHM)
        };
        println!("{name} notices {defect:?}: {caught}");
        assert!(caught, "{name} does not notice {defect:?}");
    }
}

/// Number of rows to read; more with `TIDEWATER_READS`.
fn reads(usual: u64) -> u64 {
    let asked = std::env::var("TIDEWATER_READS").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(usual)
}

fn torn_rows(rigs: &[&dyn Rig], usual: u64) {
    let share = reads(usual) / rigs.len() as u64;
    let mut all = torn::Seen::default();
    for rig in rigs {
        let seen = torn::rows(*rig, share);
        assert_eq!(
            seen.torn,
            0,
            "{}: torn rows were accepted: {seen:?}\n{}",
            rig.label(),
            rig.repeat()
        );
        all.accepted += seen.accepted;
        all.rejected += seen.rejected;
    }
    let kind = rigs[0].kind();
    println!(
        "{kind}: accepted {}, of them torn 0, rejected {}",
        all.accepted, all.rejected
    );
    assert!(all.accepted > 0 && all.rejected > 0, "{all:?}");
}

#[test]
fn torn_rows_sim() {
    let rigs = sim_rigs(here!(), 20);
    torn_rows(
        &rigs.iter().map(|r| r as &dyn Rig).collect::<Vec<_>>(),
        60_000,
    );
}

#[test]
fn torn_rows_shm() {
    torn_rows(&[&threads::SHM], 400_000);
}

#[test]
fn torn_rows_tcp() {
    torn_rows(&[&tcp_rig::TCP], 100_000);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn torn_rows_verbs() {
    torn_rows(&[&verbs_rig::here()], 20_000);
}

//! The tests of the lane contract (`tidewater_lanes::fabric`), clause by clause, callable from a program.
//!
//! A [`Subject`] is a transport under test. [`clauses`] lists the tests, [`Clause::check`] runs one. The
//! tests of `tidewater-lanes` run them on each transport; `tidewater rdma-check` runs them on the RDMA
//! device of a host. A new transport adds a rig and a constructor of [`Subject`].
//!
//! A test reports a broken clause by a panic, as tests do; [`Clause::check`] catches it. The message goes
//! through the panic hook of the program first.

#![cfg_attr(not(test), forbid(unsafe_code))]
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on fails; Clause::check catches it"
)]

mod breaks;
mod defects;
pub mod faults;
mod reads;
mod rig;
mod sim_rig;
mod tcp_rig;
pub mod test_device;
mod threads;
mod torn;
#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
mod verbs_rig;
mod writes;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidewater_lanes::fabric::TransportKind;
use tidewater_lanes::sim::{Faults, Here};

pub use defects::{ALL as DEFECTS, Defect};
pub use torn::Seen;

use rig::Rig;
use sim_rig::SimRig;
use threads::ThreadRig;

type Test = fn(&dyn Rig);

/// A clause, its test, and the transports that it does not apply to, with the reason.
#[derive(Debug)]
pub struct Clause {
    /// Number of the clause, as in `F01`.
    pub name: &'static str,
    /// Transports that it does not apply to, each with the reason.
    pub not_on: &'static [(TransportKind, &'static str)],
    test: Test,
}

const fn clause(name: &'static str, test: Test) -> Clause {
    let not_on = &[];
    Clause { name, not_on, test }
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
        name: ALLOCATES_NOTHING,
        test: breaks::allocations_none,
        not_on: &[(TransportKind::Sim, "packets in flight are on the heap")],
    },
];

/// The clause that needs a program that counts its allocations.
const ALLOCATES_NOTHING: &str = "F18";

/// The tests of all clauses, in the order of the contract.
pub const fn clauses() -> &'static [Clause] {
    TESTS
}

/// Result of a clause's test.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The transport keeps the clause.
    Passed,
    /// The test was not run, for this reason.
    NotRun(&'static str),
    /// The transport breaks the clause: the message of the test.
    Failed(String),
}

impl Clause {
    /// Runs the test on a transport. Cost: up to some seconds; threads that end with it.
    pub fn check(&self, subject: &Subject) -> Outcome {
        let kind = subject.kind();
        if let Some((_, reason)) = self.not_on.iter().find(|(k, _)| *k == kind) {
            return Outcome::NotRun(reason);
        }
        if self.name == ALLOCATES_NOTHING && subject.0.allocations().is_none() {
            return Outcome::NotRun("this program does not count its allocations");
        }
        self.run(&*subject.0)
    }

    /// Whether the test fails on the transport with a defect, as it must for the defects of its clause.
    pub fn notices(&self, defect: Defect, subject: &Subject) -> bool {
        let rig = defects::Defective {
            rig: &*subject.0,
            defect,
        };
        matches!(self.run(&rig), Outcome::Failed(_))
    }

    fn run(&self, rig: &dyn Rig) -> Outcome {
        match catch_unwind(AssertUnwindSafe(|| (self.test)(rig))) {
            Ok(()) => Outcome::Passed,
            Err(panic) => Outcome::Failed(message(&*panic)),
        }
    }
}

/// Text of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = literal.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}

/// A transport under test.
pub struct Subject(Box<dyn Rig>);

impl Subject {
    /// Verbs: both ends on the RDMA device that has `address`, or that `device` names (`rxe0`,
    /// `mlx5_0:2`). `rounds`: length of the tests, default 60; these take seconds on a slow device.
    /// `allocations`: counter of the calling thread's allocations, if the program has one.
    ///
    /// # Errors
    /// The device cannot be used.
    #[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
    pub fn verbs(
        address: std::net::IpAddr,
        device: Option<&str>,
        rounds: Option<u64>,
        allocations: Option<fn() -> u64>,
    ) -> Result<Self, tidewater_verbs::VerbsError> {
        let mut rig = verbs_rig::rig(address, device)?;
        rig.rounds = rounds.unwrap_or(rig.rounds);
        rig.allocations = allocations;
        Ok(Self(Box::new(rig)))
    }

    /// A world of the simulator. `name` describes `faults`, `here` the test that repeats the run.
    pub fn sim(seed: u64, name: &'static str, faults: Faults, here: Here) -> Self {
        Self(Box::new(SimRig {
            seed,
            name,
            faults,
            here,
        }))
    }

    /// Shared memory or TCP over this host's loopback, in a program that counts the allocations of each
    /// thread. `awake`: the owner never sleeps.
    ///
    /// # Panics
    /// For another transport.
    pub fn real(kind: TransportKind, awake: bool, allocations: fn() -> u64) -> Self {
        let rig = match kind {
            TransportKind::Shm => threads::shm(),
            TransportKind::Tcp => tcp_rig::tcp(),
            other => panic!("{other} has a constructor of its own"),
        };
        Self(Box::new(ThreadRig {
            awake,
            allocations: Some(allocations),
            ..rig
        }))
    }

    /// Kind of the transport.
    pub fn kind(&self) -> TransportKind {
        self.0.kind()
    }

    /// Seed and faults of the run, or how its threads sleep.
    pub fn label(&self) -> String {
        self.0.label()
    }

    /// Command that runs it again, if a repetition gives the same run.
    pub fn repeat(&self) -> String {
        self.0.repeat()
    }

    /// Reads about `reads` rows that a writer rewrites at full speed.
    pub fn torn_rows(&self, reads: u64) -> Seen {
        torn::rows(&*self.0, reads)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subject({}, {})", self.kind(), self.label())
    }
}

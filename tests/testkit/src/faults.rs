//! What a random test reads of the environment, and lanes that fail at random.

use tidewater_lanes::fabric::TransportKind;

pub use tidewater_conformance::faults::{Faults, Rng};

/// The seed of a random test: `TIDEWATER_SEED`, or a fixed one.
pub fn seed() -> u64 {
    let given = std::env::var("TIDEWATER_SEED").ok();
    given.map_or(20_260, |s| s.parse().expect("TIDEWATER_SEED is a number"))
}

/// Whether the larger counts were requested.
pub fn full() -> bool {
    std::env::var("TIDEWATER_TEST_FULL").is_ok_and(|v| v == "1")
}

/// Transports of tests that run on each: those that every host has, or the one that
/// `TIDEWATER_TEST_TRANSPORT` names.
pub fn transports() -> Vec<TransportKind> {
    let all = [TransportKind::Shm, TransportKind::Tcp, TransportKind::Verbs];
    match std::env::var("TIDEWATER_TEST_TRANSPORT") {
        Err(_) => all[..2].to_vec(),
        Ok(name) => {
            let named = all.into_iter().find(|kind| kind.to_string() == name);
            vec![named.expect("TIDEWATER_TEST_TRANSPORT is shm, tcp or verbs")]
        }
    }
}

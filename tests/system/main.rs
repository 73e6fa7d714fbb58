//! Jobs of real processes, started, disturbed and observed from outside, like a user or an operator.
//! Subjects: one-sided pulls, idle cost, survivors of a death, errors of bad input.

#![allow(
    clippy::unwrap_used,
    reason = "a test crate: its helpers panic as its tests do"
)]
#![allow(clippy::print_stdout, reason = "tests say the times they measured")]

mod bad_input;
mod bits;
mod busy;
mod by_hand;
mod checkpoints;
mod coordinator_restarts;
mod crowded;
mod deaths;
mod hosts;
mod idle;
mod increments;
mod joins;
mod killed;
mod kills;
mod launched;
mod locked;
mod model;
#[cfg(feature = "wasm")]
mod modules;
mod namespaces;
mod one_sided;
mod pages;
mod proc;
mod program;
mod restarts;
mod rig;
mod saves;
mod service;
mod signals;
mod status;
mod times;
mod transports;
mod wakeups;
mod warm;

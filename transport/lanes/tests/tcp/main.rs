//! The TCP transport against the contract, over real sockets of this host's loopback.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test's helpers"
)]

mod faults;
mod harness;
mod hostile;
mod lent;
mod reads;
mod speed;
mod taken;
mod wakes;
mod writes;

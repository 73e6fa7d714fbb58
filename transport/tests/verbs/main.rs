//! The verbs member over a real device: counts that no emulator blurs, rights, credit, recovery.
//!
//! Needs an RDMA device that has this host's loopback address (rxe on `lo`, in the guest of
//! `ci/softroce.sh`); elsewhere each test says why it was skipped. With `TIDEWATER_NEED=verbs`
//! there has to be one.
#![cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test's helpers"
)]

mod counts;
mod credit;
mod harness;
mod recovery;
mod rights;

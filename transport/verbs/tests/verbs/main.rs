//! The verbs transport on a real device: counts that do not depend on an emulator, rights, credit,
//! recovery.
//!
//! The tests need an RDMA device that has this host's loopback address, such as rxe on `lo` in the
//! guest of `ci/softroce.sh`. By default they are ignored.
#![cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test's helpers"
)]

mod counts;
mod credit;
mod fences;
mod harness;
mod path;
mod recovery;
mod rights;
mod scatter;
mod speed;
mod tails;

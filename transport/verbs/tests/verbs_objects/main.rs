//! The verbs objects on a real device: two connected pairs in one process, every operation, every
//! refusal with its message, and how they end. Runs where an RDMA device has the address 127.0.0.1 (the
//! guest of `ci/softroce.sh`); elsewhere it prints why it does nothing.
#![cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(
    clippy::print_stdout,
    reason = "what was found, and why nothing was run"
)]

mod alone;
mod ends;
mod operations;
mod refusals;
mod rig;
mod wakes;

#[allow(unsafe_code, reason = "a counting allocator")]
#[path = "../../../lanes/tests/conformance/alloc.rs"]
mod alloc;

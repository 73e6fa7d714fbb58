//! A server process's control plane and the client's way to it, over real sockets on loopback and
//! over shared memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "tests say the times they measured")]

mod arrivals;
mod auth;
mod buffers;
mod disconnects;
mod hostile;
mod jobs;
mod kept;
mod tables;
mod transports;
#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
mod verbs;

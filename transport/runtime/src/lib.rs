//! Runtime foundation of all crates: registered memory, shared words, the model checker's atomics, the
//! clock, and threads that park.
//!
//! This crate has all `unsafe` access to shared memory and all atomics. The exceptions are lanes that map
//! memory of another process or post to a device. With `--cfg loom` the crate builds on loom's atomics, and
//! its tests explore all their orders.

#[cfg(not(loom))]
pub mod clock;
pub mod delays;
#[cfg(not(loom))]
#[allow(
    unsafe_code,
    reason = "the thread's list of robust futexes is the kernel's by address"
)]
pub mod liveness;
#[allow(unsafe_code, reason = "shared memory is reached through raw pointers")]
pub mod mem;
pub mod parked_flag;
#[cfg(not(loom))]
pub mod socket_options;
pub mod sync;
#[cfg(not(loom))]
pub mod wait;
#[cfg(not(loom))]
pub mod yield_backoff;

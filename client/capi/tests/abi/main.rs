//! The calls of `tidewater.h` against a real cluster, as C makes them. They are right, or wrong in
//! every way that a pointer, a handle, a size, a type or a thread can be.

#![allow(unsafe_code, reason = "calls the C functions")]
#![allow(
    clippy::unwrap_used,
    clippy::multiple_unsafe_ops_per_block,
    clippy::too_many_lines,
    reason = "call after call, as C makes them"
)]

mod buffers;
mod callbacks;
mod calls;
mod collective;
mod functions;
mod keys;
mod rig;
mod right;
mod tasks;
mod threads;
mod vectors;
mod wrong;

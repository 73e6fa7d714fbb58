//! Lanes: how bytes move between a client thread and an applier.
//!
//! [`fabric`] is the contract that every lane keeps, and its numbered clauses; [`shm`], [`tcp`] and
//! [`sim`] keep it over shared memory, sockets and a simulated network. RDMA is the crate `tidewater-verbs`.
//!
//! # Thread safety
//! Shared memory is read and written as 64-bit relaxed atomics, through `tidewater_runtime::mem` only; order
//! comes from the fences of the protocols. The ends of a lane are used by one thread each.
//!
//! # Resource clean-up
//! Regions unmap, sockets and wakers close when they are dropped. A port says so when it is destroyed:
//! nothing of its lane lands after that.
//!
//! # Cost
//! Warm lanes allocate nothing. [`tidewater_protocol::limits`] bounds everything that a peer could make grow.

#![forbid(unsafe_code)]

pub mod fabric;
pub mod num;
mod region_table;
pub mod shm;
pub mod sim;
pub mod tcp;
pub mod wake;

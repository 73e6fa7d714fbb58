//! Lanes: the transports that move bytes between a client thread and an applier.
//!
//! [`fabric`] defines the contract of every lane in numbered clauses. [`shm`], [`tcp`] and [`sim`]
//! implement it over shared memory, sockets and a simulated network. The crate `tidewater-verbs` implements
//! it over RDMA.
//!
//! # Thread safety
//! Shared memory is read and written as 64-bit relaxed atomics, through `tidewater_runtime::mem` only. The
//! fences of the protocols provide order. Each end of a lane is used by one thread.
//!
//! # Resource clean-up
//! Dropping a region unmaps it; dropping a socket or waker closes it. After [`fabric::ServerLane::destroy`]
//! returns, no byte of that lane is placed any more.
//!
//! # Cost
//! Warm lanes allocate nothing. [`tidewater_protocol::limits`] bounds everything that a peer could make
//! grow.

#![forbid(unsafe_code)]

pub mod fabric;
pub mod num;
mod region_table;
pub mod shm;
pub mod sim;
pub mod tcp;
pub mod wake;

//! Tidewater's server: table partitions in registered memory, the appliers that alone write them,
//! and the coordinator.
//!
//! Most programs need none of this: they link `tidewater` and run under `tidewater run`. Start from
//! [`embedded::Cluster`] for a cluster inside a program, from [`process::ServerProcess`] and
//! [`coordinator::serve()`] for processes of another design. The launcher is in the crate
//! `tidewater-cli`.
//!
//! # Thread safety
//! [`server::ServerHandle`] may be used from any thread: it sends commands to the appliers by
//! channels. An applier's tables, rings and lanes belong to its thread alone; none of them is
//! locked.
//!
//! # Resource clean-up
//! Dropping an [`embedded::Cluster`], a [`process::ServerProcess`] or a [`server::Server`] ends its
//! threads and frees its memory. Memory that clients have mapped stays with them until they unmap
//! it.
//!
//! # Cost
//! A server reserves its capacity twice and pays by the page. An idle one sleeps in `epoll_wait`.

#![cfg_attr(not(test), forbid(unsafe_code))]

pub mod coordinator;
pub mod coordinator_client;
pub mod embedded;
pub mod holder;
pub mod launched;
mod model_files;
mod panics;
pub mod process;
pub mod server;
mod warn_limit;

//! Tidewater's server: partitions of tables in registered memory, and the appliers that alone
//! write them; the coordinator; and the launcher that starts both.
//!
//! Most programs need none of this: they link `tidewater` and run under `tidewater run`. Start
//! from [`embedded::Cluster`] for a cluster inside a program, from [`process::ServerProcess`] and
//! [`coordinator::serve()`] for processes of another make, from [`launcher::run`] for a launcher.
//!
//! # Thread safety
//! [`server::ServerHandle`] may be used from any thread: it asks the appliers by channels. An applier's
//! tables, rings and ports are its thread's alone; nothing of them is locked.
//!
//! # Resource clean-up
//! Dropping a [`embedded::Cluster`], a [`process::ServerProcess`] or a [`server::Server`] ends its threads and
//! gives back its memory. Memory that clients have mapped stays with them until they let go.
//!
//! # Cost
//! A server reserves its capacity twice and pays by the page. An idle one sleeps in `epoll_wait`.

#![cfg_attr(not(test), forbid(unsafe_code))]

pub mod checkpoint;
pub mod coordinator;
pub mod coordinator_client;
pub mod embedded;
pub mod launched;
pub mod process;
pub mod server;
mod warn_limit;

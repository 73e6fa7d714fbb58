//! What the tests of the whole system share. Each cluster is one of appliers and clients of this repository, with as much
//! of the rest as its tests need:
//!
//! | module | appliers | connections | control plane |
//! |---|---|---|---|
//! | [`threads`] | threads | shared memory, TCP, verbs | none: clients are wired by hand |
//! | [`sim`] | tasks of the simulator | those of the adversary | none |
//! | [`sockets`] | threads of a server in this process | shared memory, TCP, verbs | of one server |
//!
//! Clusters of processes are in the test target `system`, the only one that starts them. [`proxy`] cuts and delays
//! connections, [`faults`] lanes; [`sim::ledger`] judges the sums of what was pushed.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a rig that cannot be built fails its test"
)]

pub mod faults;
pub mod proxy;
pub mod sim;
pub mod sockets;
pub mod threads;

//! The TCP member against the contract, over real sockets of this host's loopback.

mod faults;
mod harness;
mod reads;
mod speed;
mod wakes;
mod writes;

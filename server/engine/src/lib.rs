//! The engine of a server: memory and tables, optimizers, and the appliers that alone write them.
//!
//! It has no control connections and no transports: an applier reads rings and answers through
//! server lanes that the crate `tidewater-service` gives it.
//!
//! # Thread safety
//! An applier's tables, rings and lanes belong to its thread alone; none of them is locked.
//!
//! # Cost
//! A server reserves address space of its capacity twice, for public and for private memory. Ordinary pages cost
//! nothing until they are touched.

#![forbid(unsafe_code)]

pub mod apply;
pub mod ring_reader;
pub mod store;

pub use tidewater_clocks::namespace;

//! The engine of a server: memory and tables, optimizers, and the appliers that alone write them.
//!
//! No control connections and no carriers: an applier reads rings and answers through ends of lanes that the
//! crate `tidewater-service` gives it.
//!
//! # Thread safety
//! An applier's tables, rings and ports are its thread's alone; nothing of them is locked.
//!
//! # Cost
//! A server reserves its capacity twice and pays by the page.

#![forbid(unsafe_code)]

pub mod apply;
pub mod clocks;
pub mod inbox;
pub mod namespace;
pub mod store;

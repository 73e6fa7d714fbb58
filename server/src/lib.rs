//! Tidewater's server: partitions of tables in registered memory, and the appliers that alone
//! write them; the coordinator; and the launcher that starts both.

pub mod apply;
pub mod clocks;
pub mod inbox;
pub mod launcher;
pub mod node;
pub mod store;

//! Tidewater's server: partitions of tables in registered memory, and the appliers that alone
//! write them; the coordinator; and the launcher that starts both.

pub mod agent;
pub mod apply;
pub mod checkpoint;
pub mod clocks;
pub mod coordinator;
pub mod embedded;
pub mod inbox;
pub mod launcher;
pub mod node;
pub mod process;
pub mod store;

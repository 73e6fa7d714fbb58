//! Tidewater's server: partitions of tables in registered memory, and the appliers that alone
//! write them.

pub mod apply;
pub mod store;

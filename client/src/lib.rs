//! Tidewater.

pub mod data;
pub mod train;

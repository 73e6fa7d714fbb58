//! Tidewater.

pub mod data;

//! Tidewater.

pub mod apply;

//! Tidewater.

//! Rooflines: the machine's limits without Tidewater, measured by the same core in the same minute.
//!
//! | roofline | is the limit of |
//! |---|---|
//! | [`Memcpy`] | pulls over shared memory |
//! | [`Gather`] | pulls of many rows over shared memory |
//! | [`Ping`] | pushes over shared memory |
//! | [`Echo`] | one call over TCP |
//! | [`Stream`] | many calls over TCP |
//! | [`RemoteRows`] | pulls of many rows over TCP |
//! | [`Passes`] | dense BSP steps over shared memory |

mod dense;
mod memory;
mod ping;
mod rows;
mod socket;

pub use dense::{PassRate, Passes};
pub use memory::{Gather, Memcpy, copy_speed};
pub use ping::Ping;
pub use rows::{RemoteRows, RowShape};
pub use socket::{Echo, Flow, ROLE, Stream, serve};

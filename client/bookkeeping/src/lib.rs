//! What a client remembers between calls, without I/O: the [`locations`] of rows that it has
//! read, the [refusals](rejects) of its frames, the [rows of one push](combine) before they are sent, and
//! [since when](stall_detector) a lane has been silent.

#![forbid(unsafe_code)]

pub mod combine;
pub mod locations;
pub mod rejects;
pub mod stall_detector;

//! Pushes: frames written into rings, and tickets that report when they are applied.

#![deny(clippy::cast_possible_truncation)]

pub(crate) mod feedback;
pub mod options;
pub mod ring;
pub mod ticket;

pub use options::PushOptions;
pub use ticket::Ticket;

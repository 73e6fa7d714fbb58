//! Pushes: frames written into rings, and tickets that report when they are applied.

#![deny(clippy::cast_possible_truncation)]

pub mod ring;
pub mod ticket;

pub use ticket::Ticket;
pub use tidewater_bookkeeping::push_options::PushOptions;

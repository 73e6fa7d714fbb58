//! Pushes: frames written into inbox rings, tickets that say when they are applied.

#![deny(clippy::cast_possible_truncation)]

pub mod combine;
pub mod rejects;
pub mod ring;
pub mod ticket;

pub use ticket::Ticket;

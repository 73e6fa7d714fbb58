//! Tidewater's client: typed tables, one-sided pulls, pushes, clocks.

pub mod clock;
pub mod connect;
pub mod counters;
pub mod data;
#[cfg(feature = "embedded")]
pub mod embedded;
pub mod error;
mod lanes;
pub mod link;
pub mod pull;
pub mod push;
mod replies;
pub mod session;
pub mod table;
pub mod train;

pub use clock::Sync;
pub use connect::Job;
pub use counters::Counters;
#[cfg(feature = "embedded")]
pub use embedded::Embedded;
pub use error::ClientError;
pub use pull::{Missing, PullMode, PullOptions, PullTicket};
pub use push::Ticket;
pub use session::{Client, Parts};
pub use table::{Element, Table, TableBuilder};

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}

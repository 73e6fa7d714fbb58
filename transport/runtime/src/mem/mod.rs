//! Registered memory: regions, and the only code that accesses words with concurrent writers.

#[cfg(not(loom))]
pub mod buffer;
#[cfg(all(feature = "mutants", not(loom)))]
pub mod crash;
#[cfg(not(loom))]
pub mod fork;
#[cfg(not(loom))]
pub mod io;
mod line;
mod many;
#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
pub mod pages;
pub mod publish;
#[cfg(not(loom))]
pub mod region;
pub mod rows;
pub mod sequence;
pub mod shared;
pub mod versioned;

#[cfg(not(loom))]
pub use buffer::Buffer;
#[cfg(not(loom))]
pub use fork::{ForkGuard, fork_single_threaded};
#[cfg(not(loom))]
pub use pages::{Pages, page_bytes};
#[cfg(not(loom))]
pub use region::{MemError, Region};
pub use shared::{Words, WordsMut, prefetch};

//! Model state in registered memory: rows, keys, index, optimizer state.
//!
//! Everything lives in two memfds and is found by offset from self-describing headers: `public`
//! (what clients read) and `private` (what they must not). This module is independent of frames,
//! lanes and clocks.

mod admission;
pub mod changes;
pub(crate) mod closing;
pub mod cursor;
pub mod cut;
mod deletion;
pub mod dense_blocks;
pub mod dense_rows;
pub mod error;
mod expiry;
mod extent_records;
pub mod extents;
pub mod files;
pub mod hugepages;
pub mod index;
pub(crate) mod journal;
pub mod memory;
pub mod prealloc;
pub mod redo;
pub mod redo_block;
mod release;
pub mod rows;
pub mod sparse;
mod sparse_resume;
pub mod status;

pub use error::StoreError;
pub use files::{MemoryFile, MemoryFiles, ResumeError};
pub use hugepages::{Backing, Hugepages, NoHugepages};
pub use memory::{ServerMemory, ShardId};

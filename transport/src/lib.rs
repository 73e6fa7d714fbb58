//! What both ends of Tidewater agree on, and how bytes move.
//!
//! `layout` and `wire` are pure: byte-exact formats and total codecs, no I/O and no `unsafe`.
//! `mem` owns registered memory and is the only code that touches shared words. `fabric` is the
//! contract that every transport (`shm`, `tcp`, `sim`) keeps.

#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
pub mod conn;
#[cfg(not(loom))]
pub mod dial;
pub mod doze;
#[cfg(not(loom))]
mod exports;
#[cfg(not(loom))]
pub mod fabric;
#[cfg(not(loom))]
pub mod host;
pub mod ids;
pub mod launch;
pub mod layout;
pub mod limits;
pub mod mem;
pub mod placement;
pub mod planted;
#[cfg(not(loom))]
pub mod shm;
#[cfg(not(loom))]
pub mod sim;
pub mod sync;
pub mod table;
#[cfg(not(loom))]
pub mod tcp;
#[cfg(not(loom))]
pub mod wait;
#[cfg(not(loom))]
pub mod wake;
pub mod wire;

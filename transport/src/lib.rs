//! What both ends of Tidewater agree on, and how bytes move.
//!
//! `layout` and `wire` are pure: byte-exact formats and total codecs, no I/O and no `unsafe`.
//! `mem` owns registered memory and is the only code that touches shared words. `fabric` is the
//! contract that every transport (`shm`, `tcp`, `sim`) keeps.
//!
//! Programs use it for the words of a table ([`table`], [`ids`]) and for [`launch`]; the rest is for
//! client and server. `docs/PROTOCOL.md` describes every byte and why it is sound.
//!
//! # Thread safety
//! Shared memory is read and written as 64-bit relaxed atomics, through `mem` only; order comes from
//! the fences of the protocols. The ends of a lane are used by one thread each.
//!
//! # Resource clean-up
//! Regions unmap, sockets and bells close when they are dropped. A port says so when it is destroyed:
//! nothing of its lane lands after that.
//!
//! # Cost
//! Warm lanes allocate nothing. [`limits`] bounds everything that a peer could make grow.

#[cfg(not(loom))]
mod exports;
#[cfg(not(loom))]
pub mod fabric;
pub mod num;
#[cfg(not(loom))]
pub mod shm;
#[cfg(not(loom))]
pub mod sim;
#[cfg(not(loom))]
pub mod tcp;
#[cfg(all(any(feature = "verbs", feature = "verbs-dlopen"), not(loom)))]
pub mod verbs;
#[cfg(not(loom))]
pub mod wake;

//! What both ends of Tidewater agree on, and how bytes move.
//!
//! `layout` and `wire` are pure: byte-exact formats and total codecs, no I/O and no `unsafe`.
//! `mem` owns registered memory and is the only code that touches shared words. `fabric` is the
//! contract that every transport (`shm`, `tcp`, `sim`) keeps.

pub mod clock;
pub mod ids;
pub mod layout;
pub mod limits;
pub mod planted;
pub mod table;

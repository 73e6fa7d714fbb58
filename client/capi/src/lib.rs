//! Tidewater's client for C, C++ and Fortran.
//!
//! The C declarations, with the description of each call, are in `include/tidewater.h`, which cbindgen
//! writes from the calls ([`abi`]) and their types ([`types`]). `docs/BINDINGS.md` is the manual. This crate
//! adds nothing to the client: a call checks the arguments from C, and makes one call of [`tidewater::Client`].
//!
//! # Rules of the boundary
//! - No panic crosses it: each call is caught, and the session answers `TW_ERR_PANIC` from then on.
//! - No pointer is trusted further than its use. Null, closed sessions, handles of other sessions,
//!   misaligned or overlapping arrays, and wrong element types are statuses with a text.
//! - Handles of tables, pushes and pulls are numbers, checked against their session. Only the session
//!   is a pointer, with a word that marks it as one.
//! - Structs begin with their size, and may grow. For an older caller the rest is default; for a newer
//!   one the rest must be zero.
//! - No global state: all belongs to a session, except the last error's text, one per thread, and the
//!   recorded signals, which belong to the process.
//! - Nothing at exit; no signal handler and no thread unless requested.

#[allow(unsafe_code, reason = "pointers of C callers")]
pub mod abi;
mod convert;
mod error;
mod handles;
mod open;
mod progress;
#[allow(unsafe_code, reason = "pointers of C callers")]
mod raw;
mod session;
pub mod types;
mod values;

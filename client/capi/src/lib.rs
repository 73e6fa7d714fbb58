//! Tidewater's client for C, C++ and Fortran.
//!
//! The C declarations, with what each call does, are in `include/tidewater.h`, which is written by
//! cbindgen from the module [`abi`]; `docs/BINDINGS.md` is the manual. Nothing here adds to the
//! client: a call checks what C may get wrong, and makes one call of [`tidewater::Client`].
//!
//! # Rules of the boundary
//! - No panic crosses it: each call is caught, and the session answers `TW_ERR_PANIC` from then on.
//! - No pointer is trusted further than its use: null, closed sessions, handles of other sessions,
//!   misaligned or overlapping arrays, and wrong element types are statuses with a text.
//! - Handles of tables, pushes and pulls are numbers, checked against their session; only the
//!   session is a pointer, with a word that says what it is.
//! - Structs begin with their size, and may grow: of an older caller the rest is default, of a newer
//!   one the rest must be zero.
//! - No global state: all belongs to a session, but for the last error's text, one per thread, and
//!   for what is noted of signals, which are the process's.
//! - Nothing at exit; no signal handler and no thread unless one is asked for.

#[allow(unsafe_code, reason = "pointers of C callers")]
pub mod abi;
mod convert;
mod error;
mod handles;
mod progress;
#[allow(unsafe_code, reason = "pointers of C callers")]
mod raw;
mod session;
mod values;

//! What C sees: the types and the calls of `tidewater.h`.
//!
//! # Safety
//! All calls have one contract, which the head of the header says in C's words: a pointer is null or
//! to what its parameter names, as large as the call is told; arrays are not changed by others, and
//! arrays that are written are not looked at, during the call; a session is not freed during a call
//! of it, and not used by the copy of a pointer that was freed.

#![allow(
    clippy::missing_safety_doc,
    reason = "one contract for all, in this module's documentation"
)]

pub mod clock;
pub mod data;
pub mod library;
pub mod session;
pub mod table;
pub mod types;
pub mod walltime;

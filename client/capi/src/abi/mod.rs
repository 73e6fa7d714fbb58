//! The interface that C sees: the calls of `tidewater.h`.
//!
//! # Safety
//! All calls have one contract, which the head of the header states for C. A pointer is null or points
//! to what its parameter names, as large as the call's arguments say. During the call, nothing else
//! changes the arrays, and nothing else reads arrays that are written. A session is not freed during a
//! call of it, and not used by the copy of a pointer that was freed.

#![allow(
    clippy::missing_safety_doc,
    reason = "one contract for all, in this module's documentation"
)]

pub mod buffer;
pub mod call;
pub mod callback;
pub mod clock;
pub mod collective;
pub mod data;
pub mod function;
pub mod keys;
pub mod library;
pub mod schedule;
pub mod session;
pub mod table;
pub mod tasks;
pub mod vector;
pub mod walltime;

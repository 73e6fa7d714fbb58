//! Control connections: a blocking connection with a deadline for each message, and how one is dialed.
//!
//! An event loop does not need this crate: it feeds bytes to
//! [`ControlPeer`](tidewater_protocol::wire::peer::ControlPeer).

#![forbid(unsafe_code)]

pub mod conn;
pub mod coordinator;
pub mod dial;
pub mod set_up;

//! Control messages of a connection, before and in parallel to the data.
//!
//! Everything here is pure. Bytes go in; messages, bytes to send or typed errors come out. There is no socket,
//! clock or random source. Every decoder is total: no input makes it panic, index out of range, or hold more
//! memory than its limit.
//!
//! | module | holds |
//! |---|---|
//! | [`frame`] | the 16-byte header and the incremental [`frame::Decoder`] |
//! | [`hello`] | the fixed layouts of the handshake's five messages |
//! | [`handshake`] | [`handshake::ClientHandshake`] and [`handshake::ServerHandshake`] |
//! | [`refusal`] | refusal codes, their numbers and remedies |
//! | [`spec`] | `TableSpec::validate` |
//! | [`control`] | requests, answers, commands, notices |
//! | [`peer`] | [`peer::ControlPeer`]: a connection's buffers for an event loop |
//! | [`decoders`] | the list of the decoders of these modules, which the fuzzers read |

pub mod control;
pub mod decoders;
pub mod error;
pub mod frame;
pub mod handshake;
pub mod hello;
pub mod peer;
pub mod refusal;
pub mod spec;

pub use error::WireError;

/// Version of all control messages after the handshake's fixed prefix. Peers of different versions close the
/// connection with an error that names both versions.
pub const PROTOCOL_VERSION: u32 = 1;

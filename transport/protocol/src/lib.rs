//! The formats that both ends of Tidewater agree on: identifiers, tables, placement, the layout of
//! registered memory, control messages, and the limits of all of them.
//!
//! Everything here is pure: byte-exact formats and total codecs. No I/O, no clock, no environment (but
//! for [`mutants`]) and no `unsafe` code. `docs/PROTOCOL.md` describes every byte and why it is sound.

#![forbid(unsafe_code)]

pub mod ids;
pub mod layout;
pub mod limits;
pub mod math;
pub mod mutants;
pub mod placement;
pub mod scale;
pub mod table;
pub mod wire;

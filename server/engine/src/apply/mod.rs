//! Applying pushes: what an applier does with a frame once it is out of its ring.
//!
//! Applying is a pure function of (state, frame): no clock, no random source, no dependence on how
//! frames were batched. Each frame that takes effect has a number, `lsn`, in the applier's total
//! order.

mod admission;
pub mod applier;
pub mod command;
mod deletion;
mod describe;
pub mod engine;
mod expiry;
mod function;
mod gather;
pub mod pending;
mod push;
mod push_values;
pub mod records;
mod reduce;
mod row_sums;
pub mod save;
mod scan;
mod settings;
pub mod status;
mod sums;
pub mod table;
mod tasks;
mod tick;
mod tick_blocks;
mod tick_functions;
mod tick_steps;
mod warm;
mod warm_ticks;

use tidewater_protocol::layout::reject::RejectReason;

/// Reason why a frame is refused; the client gets it as a reject record.
pub type Refusal = RejectReason;

//! State machines by which the lanes of a session are set up. They do no I/O: client, server and the model of
//! a connect storm (the tests of this module) drive the same code.
//!
//! A client asks for the lanes of a session in one message. A device makes queue pairs at a rate of some hundred
//! a second, so the request of a client that starts together with thousands of others waits for many seconds.
//! Four rules keep such a storm from repeating its own work:
//!
//! - The server answers first come, first served, and sends each waiting client news every [`NEWS_EVERY`].
//! - News extend the client's attempt up to the deadline of its call ([`Attempt`]). Only a silent server is
//!   given up, and only then the request is repeated.
//! - The server drops a request at the head of its queue when the client is gone or has recovered the lane since
//!   ([`Turn::Void`]). No queue pair is made for it.
//! - A lane belongs to at most one request: its nonce is used up while it is connected ([`LaneGrants`]).

mod attempt;
mod lane_grants;
mod lane_queue;
#[cfg(test)]
mod tests;

pub use attempt::{ATTEMPT, Attempt, Pauses};
pub use lane_grants::{Lane, LaneGrants};
pub use lane_queue::{LaneQueue, NEWS_EVERY, Next, Ticket, Turn};

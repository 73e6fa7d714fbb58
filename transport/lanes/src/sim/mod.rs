//! The adversarial simulator: a deterministic NIC and machine that keep the contract of `fabric`
//! to the letter and not one promise more.
//!
//! A [`World`] holds tasks (ordinary blocking code on real threads, one at a time), virtual time,
//! and links between tasks. Calls on lanes, ports and parkers are its yield points; between any
//! two of them the seeded adversary may run other tasks, land pieces of packets in any allowed
//! order, mix old and new bytes of one word, stall a task, or break a link with unknown outcome
//! and late packets. One seed gives one run: [`Outcome::trace`] proves it, and [`sweep`] prints
//! the command that repeats a failing seed.
//!
//! What the adversary does with each clause:
//!
//! | clause | beyond the promise |
//! |---|---|
//! | F02 | lines are sampled at different times in any order; some twice, with bytes of both times |
//! | F04, F15 | words of one write land in any order and torn; writes that do not overlap land in any order, also past signals |
//! | F06 | a plain write never wakes; a ring is heard only between `prepare_park` and `cancel_park` |
//! | F10, F11 | after a break up to a dozen more pieces land, until the port is destroyed |
//! | F12 | some breaks are silent for up to ten seconds |
//! | F13 | the landing of a failed read is scribbled over before the call returns |
//!
//! The NIC is one-sided: it executes without the port being polled, as verbs and shared memory do.
//! Tasks must not block on anything else (a mutex held over a yield point, a channel, a join);
//! [`SimQueue`] is the channel to use, and [`World::pause`] the sleep.

mod client_lane;
mod core;
mod faults;
mod link;
mod nic;
mod parker;
mod queue;
mod read;
mod rng;
mod sweep;
mod world;

pub use self::core::Failure;
pub use client_lane::{SimClientLane, SimServerLane};
pub use faults::Faults;
pub use link::LinkId;
pub use parker::{SimParker, SimWaker};
pub use queue::SimQueue;
pub use rng::Rng;
pub use sweep::{Here, Swept, seeds, sweep};
pub use world::{LinkSpec, Outcome, World};

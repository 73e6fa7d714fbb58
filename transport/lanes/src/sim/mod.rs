//! The adversarial simulator: a deterministic NIC and machine that fulfil the contract of `fabric` and give
//! no further guarantee.
//!
//! A [`World`] holds tasks (ordinary blocking code on real threads, one at a time), virtual time, and
//! links between tasks. Calls on lanes and parkers are its yield points. Between any two of them the
//! seeded adversary may run other tasks, place pieces of packets in any allowed order, or mix old and
//! new bytes of one word. It may also stall a task, or break a link with unknown outcome and late
//! packets. One seed gives one run: [`Outcome::trace`] proves it, and [`sweep`] prints the command that
//! repeats a failing seed.
//!
//! Behaviour of the adversary under each clause:
//!
//! | clause | behaviour |
//! |---|---|
//! | F02 | lines are sampled at different times in any order; some twice, with bytes of both times |
//! | F04, F15 | words of one write are placed in any order and torn; writes that do not overlap are placed in any order, also past signals |
//! | F06 | a plain write never wakes; a wake-up has an effect only between `prepare_park` and `cancel_park` |
//! | F10, F11 | after a break up to ten more pieces a direction are placed, until the server lane is destroyed |
//! | F12 | some breaks are silent for up to ten seconds |
//! | F13 | the destination of a failed read is overwritten before the call returns |
//!
//! The NIC is one-sided: it executes without a poll of the server lane, as verbs and shared memory do.
//! Tasks must not block on anything else (a mutex held over a yield point, a channel, a join); [`SimQueue`]
//! is the channel to use, and [`World::pause`] the sleep.

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
pub use faults::{Distance, Faults};
pub use link::LinkId;
pub use parker::{SimParker, SimWaker};
pub use queue::SimQueue;
pub use rng::Rng;
pub use sweep::{Here, Swept, seeds, sweep};
pub use world::{LinkSpec, Outcome, World};

//! All of Tidewater under the adversary: appliers and clients of this repository in a deterministic
//! world. The adversary delays, reorders, tears, stalls and fails whatever its contract allows. Each
//! test sweeps fixed seeds; a failing seed prints the command that repeats it.
//! `TIDEWATER_SEEDS=n` sweeps more of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "a sweep says what it ran")]

mod storm;

#[path = "sim/chaos.rs"]
mod chaos;
#[path = "sim/clocks.rs"]
mod clocks;
#[path = "sim/collectives.rs"]
mod collectives;
#[path = "sim/exactly_once.rs"]
mod exactly_once;
#[path = "sim/functions.rs"]
mod functions;
#[path = "sim/keys.rs"]
mod keys;
#[path = "sim/members.rs"]
mod members;
#[path = "sim/pulls.rs"]
mod pulls;
#[path = "sim/round_trips.rs"]
mod round_trips;
#[path = "sim/siblings.rs"]
mod siblings;
#[path = "sim/slots.rs"]
mod slots;
#[path = "sim/status.rs"]
mod status;
#[path = "sim/torn_reads.rs"]
mod torn_reads;

//! What a client remembers between calls, without I/O: the [`locations`] of rows that it has
//! read, the [refusals](rejects) of its frames [in words](reject_text), the [replies] that they wait for, the
//! [rows of one push](combine) before they are sent, what its [encoding leaves out](feedback), the
//! [pairs of RDMA ports](paths) that carry no packets, [since when](stall_detector) a lane has been silent, the
//! [versions] that a pull has read, the [frames](frame_runs) of a push, and the rows of [collective] calls. Also the
//! [schedules](schedule) of rates, the [sizes](lane_memory) of rings, the [bytes](in_flight) that a call reads ahead, and
//! the rule of [slow](pace) workers; the [verdict](validation) on rows that were read, the [pieces] of a table that
//! frames of a function cover, and the rows of [positions](position) in a worker's data.

#![forbid(unsafe_code)]

pub mod collective;
pub mod combine;
pub mod counters;
pub mod feedback;
pub mod frame_runs;
pub mod in_flight;
pub mod lane_memory;
pub mod locations;
pub mod pace;
pub mod paths;
pub mod pieces;
pub mod position;
pub mod push_options;
pub mod reject_text;
pub mod rejects;
pub mod replies;
pub mod schedule;
pub mod stall_detector;
pub mod validation;
pub mod versions;

//! The coordinator: membership, table catalogue, placement, barriers, saves, and the end of jobs.
//! No parameter passes through it.
//!
//! ```text
//! bytes -- serve (epoll, sockets) --> messages --> state (no I/O, no clock) --> actions --> bytes
//!                                                    |  tables   made by which servers, awaited
//!                                                    |  barriers waiters and their deadlines
//!                                                    |  models   saves and loads
//!                                                    |  tasks    queues of tasks, and requests that wait
//!                                                    +- jobs     workers of one namespace
//! ```
//! [`state::Coordinator`] is a state machine: tests without sockets reach all of its behaviour.
//! [`serve::serve`] adds a listener, one thread, and the files of a save. With a [`Journal`] the durable part of
//! the state outlives the process.
//!
//! **A job is a namespace.** Tables, barriers, ranks and failures of one job do not touch another.

mod admissions;
mod barriers;
mod checkpoints;
mod ends;
mod file_threads;
mod files;
mod functions;
mod increments;
mod jobs;
mod losses;
mod member_barriers;
mod members;
mod models;
mod operators;
mod recovery;
mod rendezvous;
mod resume;
mod scheduled;
pub mod serve;
pub mod state;
mod status;
mod successors;
mod tables;
mod tasks;
#[cfg(test)]
mod tests;

pub use checkpoints::{CheckpointPolicy, Every};
pub use recovery::RETURN_GRACE;
pub use serve::{Listening, ServeConfig, ServeError, serve};
pub use state::{
    Action, Coordinator, CoordinatorConfig, FileDone, FileTask, Lifetime, Links, LostWorker, PeerId,
};
pub use tidewater_clocks::membership;
pub use tidewater_journal::{Journal, JournalError};

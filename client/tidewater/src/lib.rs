//! Tidewater's client: typed tables, one-sided pulls, pushes, clocks.
//!
//! # Quick start
//! [`Job::from_env`] joins the job that `tidewater run` started; `Embedded` (feature `embedded`, on
//! by default) runs a cluster inside the program. Either gives a [`Client`].
//!
//! ```no_run
//! use tidewater::{Client, ClientError, Job, PullOptions, PushOp, SyncMode, TableBuilder};
//!
//! fn count(keys: &[u64]) -> Result<(), ClientError> {
//!     let job = Job::from_env()?.ok_or_else(|| {
//!         ClientError::Environment("start this under `tidewater run`".into())
//!     })?;
//!     let mut client: Client = job.sync(SyncMode::Asp).connect()?;
//!     let table = client.create_table::<i64>(TableBuilder::sparse::<i64>("counts", 1).spec())?;
//!     let ticket = client.push_rows(&table, keys, &vec![1; keys.len()], PushOp::Sum)?;
//!     client.wait_applied(&ticket)?;
//!     let mut counts = vec![0; keys.len()];
//!     client.pull_rows(&table, keys, &mut counts, PullOptions::default())?;
//!     client.finish()
//! }
//! ```
//!
//! | type | for |
//! |---|---|
//! | [`TableBuilder`], [`Table`], [`AnyTable`] | table definitions; typed and untyped handles |
//! | [`PullOptions`], [`PullMode`], [`PullTicket`] | guarantees of a pull; pulls that are finished later |
//! | [`RegisteredBuffer`] | memory that pulls over verbs fill without a copy |
//! | [`CachedTable`] | rows that are pulled again only when they are older than the staleness allows |
//! | [`PushBuffer`] | updates that are added up by key and pushed together |
//! | [`Ticket`] | whether a push is applied, or the reason of its rejection |
//! | [`SyncMode`] | BSP, SSP, ASP |
//! | [`collective`], [`ReduceOp`] | values that all workers exchange: gather, reduce, broadcast |
//! | [`walltime::Walltime`] | a common last step of all workers before the batch system ends the job |
//! | [`Counters`] | counts that show which path ran |
//!
//! # Thread safety
//! A [`Client`] belongs to the thread that made it: every call takes `&mut self`, and nothing in it is
//! locked. Each thread of a worker makes its own client. Only one thread of a worker may tick, or push
//! to tables that take effect at the clock.
//!
//! # Resource clean-up
//! Dropping a client ends its sessions and frees its memory. Pushed data stays pushed; failures that no
//! ticket waited for are lost. [`Client::finish`] reports that the worker is done, so that no clock
//! waits for it. [`Client::fail`] reports that it cannot go on, with the reason. Drop clients before
//! their `Embedded`.
//!
//! # Cost
//! Over shared memory a warm pull is loads, a hash and a copy: no system call, no server thread, no
//! allocation. Over TCP it costs a system call at either end and a wake-up. A push is two copies, and a
//! wake-up of its applier if that sleeps. For each applier, a client has a staging ring of 1 MiB and a
//! mailbox of 2.1 MiB of address space. `docs/PERFORMANCE.md` has figures.

#![forbid(unsafe_code)]

mod buffer;
pub mod clock;
pub mod collective;
pub mod connect;
pub mod counters;
#[cfg(feature = "embedded")]
pub mod embedded;
pub mod error;
pub mod function;
pub mod interrupt;
mod lanes;
#[cfg(feature = "embedded")]
pub mod launched;
pub mod link;
pub mod pull;
pub mod push;
mod replies;
pub mod session;
pub mod table;
pub mod vector;
pub mod walltime;

pub use buffer::RegisteredBuffer;
pub use clock::SyncMode;
pub use collective::{CollectiveError, ReduceOp};
pub use connect::Job;
pub use counters::Counters;
#[cfg(feature = "embedded")]
pub use embedded::Embedded;
pub use error::ClientError;
pub use function::{Expression, FunctionArgs, Reduction, Scalar};
#[cfg(feature = "embedded")]
pub use launched::{Launch, LaunchRole};
pub use link::Loaded;
pub use pull::{Missing, PullMode, PullOptions, PullTicket};
pub use push::Ticket;
pub use session::{CachedTable, Client, Parts, PushBuffer};
pub use table::{AnyTable, Element, Table, TableBuilder};
/// Functions by name, for programs that are servers themselves.
#[cfg(feature = "embedded")]
pub use tidewater_engine::functions;
pub use tidewater_launch::TransportChoice;
pub use tidewater_protocol::table::{
    Apply, DType, Init, Optimizer, PushOp, Reduce, Shape, TableSpec,
};
pub use vector::{Evaluation, Vector, VectorId, VectorSpace};

/// Compiles the example of the README.
#[cfg(all(doctest, feature = "embedded"))]
#[doc = include_str!("../../../README.md")]
mod readme {}

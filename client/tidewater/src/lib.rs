//! Tidewater's client: typed tables, one-sided pulls, pushes, clocks.
//!
//! # Quick start
//! [`JoinOptions::join`] joins the job of this process: the one that `tidewater run`, `mpirun` or `srun`
//! started, that of a running service, or a cluster inside the process (feature `embedded`, on by
//! default). [`Job::client`] then gives a [`Client`].
//!
//! ```
//! use tidewater::{ClientError, JoinOptions, Joined, PullOptions, PushOp, SyncMode, TableBuilder};
//!
//! fn main() -> Result<(), ClientError> {
//!     let options = JoinOptions::embedded(1, 1); // in a launched job: JoinOptions::default()
//!     let Joined::Worker(job) = options.join()? else {
//!         return Ok(()); // this process was a server of the job
//!     };
//!     let mut client = job.client(SyncMode::Asp)?;
//!     let table = client.create_table::<i64>(TableBuilder::sparse::<i64>("counts", 1).spec())?;
//!     let keys = [3, 1 << 40];
//!     let ticket = client.push_rows(&table, &keys, &[1; 2], PushOp::Sum)?;
//!     client.wait_applied(&ticket)?;
//!     let mut counts = [0; 2];
//!     client.pull_rows(&table, &keys, &mut counts, PullOptions::default())?;
//!     assert_eq!(counts, [1, 1]);
//!     client.finish()?;
//!     job.leave()
//! }
//! ```
//!
//! | type | for |
//! |---|---|
//! | [`JoinOptions`], [`Joined`], [`Job`] | the job of this process, and its clients |
//! | [`TableBuilder`], [`Table`], [`AnyTable`] | table definitions; typed and untyped handles |
//! | [`PullOptions`], [`PullMode`], [`PullTicket`] | guarantees of a pull; pulls that are finished later |
//! | [`PushOptions`], [`PushEncoding`] | weight of a push; encoding of its values |
//! | [`RegisteredBuffer`] | memory that pulls over verbs fill without a copy |
//! | [`PendingCall`] | a creation, barrier, save or load that was started and is finished later |
//! | [`CachedTable`] | rows that are pulled again only when they are older than the staleness allows |
//! | [`PushBuffer`] | updates that are added up by key and pushed together |
//! | [`Ticket`] | whether a push is applied, or the reason of its rejection |
//! | [`SyncMode`] | BSP, SSP, ASP |
//! | [`collective`], [`ReduceOp`] | values that all workers exchange: gather, reduce, broadcast |
//! | [`walltime::Walltime`] | a common last step of all workers before the batch system ends the job |
//! | [`Counters`] | counts that show which path ran |
//!
//! # Thread safety
//! A [`Client`] is used by one thread at a time: every call takes `&mut self`, and nothing is locked but what
//! siblings share. Threads that work in parallel have a client each: that of another worker, with a rank of its
//! own, or a sibling of the worker's first client ([`Client::sibling`]).
//!
//! # Resource clean-up
//! Dropping a client ends its sessions and frees its memory. Pushed data stays pushed; failures that no
//! ticket waited for are lost. [`Client::finish`] reports that the worker is done, so that no clock
//! waits for it. [`Client::fail`] reports that it cannot go on, with the reason. [`Job::leave`] comes
//! after the clients: it waits for the other processes where this one keeps a part of the job.
//!
//! # Cost
//! Over shared memory a warm pull is loads, a hash and a copy: no system call, no server thread, no
//! allocation. Over TCP it costs a system call at either end and a wake-up. A push is two copies, and a
//! wake-up of its applier if that sleeps. For each applier, a client has a staging ring of 1 MiB and a
//! mailbox of 2.1 MiB of address space, or less: [`JoinOptions::memory_budget`]. `docs/PERFORMANCE.md` has figures.

#![forbid(unsafe_code)]

mod buffer;
pub mod clock;
pub mod collective;
pub mod connect;
pub mod error;
mod ids;
pub mod interrupt;
mod lanes;
pub mod link;
pub mod pull;
pub mod push;
pub mod session;
pub mod table;
pub mod walltime;

pub use buffer::RegisteredBuffer;
pub use clock::SyncMode;
pub use collective::{CollectiveError, ReduceOp};
pub use connect::{Job, JoinOptions, Joined};
pub use error::ClientError;
pub use link::{Loaded, Saved};
pub use pull::{Missing, PullMode, PullOptions, PullTicket, Pulled, RangeVersions};
pub use push::{PushOptions, Ticket};
pub use session::function::{Expression, FunctionArgs, Reduction, Scalar};
pub use session::{
    AnyFunctionArgs, AnyPushBuffer, CachedTable, Client, GroupRange, Partitioner, Parts,
    PendingCall, PushBuffer, ScanCursor, SlowWorker,
};
pub use table::{AnyTable, Element, Table, TableBuilder};
#[doc(inline)]
pub use tidewater_bookkeeping::counters;
pub use tidewater_bookkeeping::counters::Counters;
#[doc(inline)]
pub use tidewater_bookkeeping::schedule;
#[doc(inline)]
pub use tidewater_bookkeeping::schedule::{Schedule, ScheduleError};
/// Functions by name, for programs that are servers themselves.
#[cfg(feature = "embedded")]
pub use tidewater_functions as functions;
pub use tidewater_launch::{FabricSettings, RdmaDevice, TransportChoice};
pub use tidewater_protocol::ids::{ApplierId, DomainId, ServerId};
pub use tidewater_protocol::layout::encoding::PushEncoding;
pub use tidewater_protocol::placement::Owner;
pub use tidewater_protocol::table::{
    Apply, DType, Durability, GradientOptions, Init, KeyOptions, Optimizer, PushOp, Reduce, Shape,
    TableSpec,
};
pub use tidewater_protocol::wire::control::Resumed;
/// Messages about tasks; the crate `tidewater-tasks` has the calls for programs.
pub use tidewater_protocol::wire::control::{TaskAnswer, TaskRequest};
#[cfg(feature = "embedded")]
pub use tidewater_service::embedded::ClusterConfig;

/// Doctest that compiles the example of the README.
#[cfg(all(doctest, feature = "embedded"))]
#[doc = include_str!("../../../README.md")]
mod readme {}

/// Doctests that compile and run the programs in `docs/from`.
#[cfg(all(doctest, feature = "embedded"))]
mod from {
    #[doc = include_str!("../../../docs/from/angel.md")]
    mod angel {}
    #[doc = include_str!("../../../docs/from/elasticdl.md")]
    mod elasticdl {}
    #[doc = include_str!("../../../docs/from/ps-lite.md")]
    mod ps_lite {}
}

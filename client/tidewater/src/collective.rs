//! Collective calls: each worker gives a few values, and every worker receives a result of all.
//!
//! [`Client::all_gather`], [`Client::all_reduce`] and [`Client::broadcast`] are for what workers agree
//! on between steps: sums of losses, numbers of batches, a seed. They move no clock, so that they work
//! alike under BSP, SSP and ASP. Parameters belong in tables.
//!
//! # Protocol
//! The values travel through two tables of the job with immediate effect; the coordinator moves no data.
//! A call consists of rounds. In round `g` a worker assigns its rows of buffer `g mod 2`, waits at a
//! barrier, and reads the rows of all. It cannot overwrite them before barrier `g + 1` is open, at which
//! each worker arrives after its reads of round `g`. Two buffers are therefore enough for any number of
//! calls.
//!
//! In a job of open size a call is one of the members that the coordinator counts when it opens the barrier. Its
//! answer has their ranks and rounds. A worker at its first call takes the number of the round from the others.
//!
//! Each row carries its round, call and length. A row of another round is no value: its worker has left,
//! or made other calls. The first round carries up to 480 bytes, each further one up to 31.5 KiB.
//!
//! # Cost
//! A round is a push, a request to the coordinator, and a read of a row of each worker. Memory of the
//! servers: 1 KiB for each worker, and 64 KiB more after the first call of more than 480 bytes. A job
//! without such calls has neither table.
//!
//! ```
//! use tidewater::{ClientError, JoinOptions, ReduceOp, SyncMode};
//!
//! # fn main() -> Result<(), ClientError> {
//! let job = JoinOptions::embedded(1, 2).join()?.into_job().expect("a worker");
//! let work = |rank: u32| -> Result<(), ClientError> {
//!     let mut client = job.client_of(rank, SyncMode::Asp)?;
//!     let mut sums = [f64::from(rank), 1.0];
//!     client.all_reduce(&mut sums, ReduceOp::Sum)?;
//!     assert_eq!(sums, [1.0, 2.0]);
//!     assert_eq!(client.all_gather(&[i64::from(rank)])?, [0, 1]);
//!     let mut seed = [i64::from(rank) + 7];
//!     client.broadcast(1, &mut seed)?;
//!     assert_eq!(seed, [8]);
//!     client.finish()
//! };
//! std::thread::scope(|scope| {
//!     let other = scope.spawn(|| work(1));
//!     work(0)?;
//!     other.join().expect("the worker does not panic")
//! })
//! # }
//! ```
//!
//! [`Client::all_gather`]: crate::Client::all_gather
//! [`Client::all_reduce`]: crate::Client::all_reduce
//! [`Client::broadcast`]: crate::Client::broadcast

pub(crate) use tidewater_bookkeeping::collective::{
    Call, Header, Kind, RowsOf, agree, fold, in_step,
};
pub use tidewater_bookkeeping::collective::{CollectiveError, ReduceOp};

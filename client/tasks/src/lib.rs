//! Tasks: pieces of a data set that the coordinator hands to whichever worker is alive, and takes back from
//! those that are lost, hang or fail.
//!
//! ```
//! use std::sync::Arc;
//! use tidewater::{JoinOptions, PushOp, SyncMode, TableBuilder};
//! use tidewater_data::{MemorySource, ReadOptions};
//! use tidewater_tasks::{QueueOptions, Tasks};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
//! # let mut client = job.client(SyncMode::Asp)?;
//! let table = client.create_table::<f64>(TableBuilder::sparse::<f64>("w", 1).spec())?;
//! let lines = ["1 1:1", "-1 2:1", "1 3:1"].map(|line| line.as_bytes().to_vec());
//! let source = Arc::new(MemorySource::new("lines", lines.into()));
//! let mut tasks = Tasks::open(&mut client, source, &QueueOptions::new("train", 2))?;
//! while let Some(task) = tasks.next(&mut client)? {
//!     let mut rows = task.rows(&ReadOptions::default())?;
//!     let mut records = 0;
//!     while rows.advance()? {
//!         let row = rows.row();
//!         let steps = vec![f64::from(row.label); row.keys.len()];
//!         drop(client.push_rows(&table, row.keys, &steps, PushOp::Sum)?);
//!         records += 1;
//!     }
//!     tasks.done(&mut client, task, records)?;
//! }
//! assert_eq!(tasks.status(&mut client)?.counters.records, 3);
//! # client.finish()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//! With [`Delivery::ExactlyOnce`] servers hold the pushes of a task until the coordinator has decided that it is
//! finished. Then all of them apply them, or none does: the worker was lost before, the task was taken back, or
//! another worker has finished it first. Pulls see the pushes of a task when [`Tasks::done`] has returned. Calls
//! that take effect at once fail inside a task. This holds for tables with immediate effect and for tables of
//! ticks, under every [`SyncMode`](tidewater::SyncMode).
//!
//! With [`Delivery::AtLeastOnce`] pushes take effect on arrival, and all calls are allowed. A task of a worker
//! that was lost is given again in full, so that some of its pushes may count twice.
//!
//! # Batches over several tasks
//! [`Tasks::next`] gives one task after another. A [`RecordFeed`] gives their records one after another, takes the next
//! task ahead of time, and reports tasks by the number of records that are done, so that a batch may be of several
//! tasks. It needs [`Delivery::AtLeastOnce`].

mod error;
mod feed;
mod numbers;
mod options;
mod permutation;
mod tasks;

pub use error::TaskError;
pub use feed::{Next, RecordFeed, TaskRecords};
pub use numbers::RecordNumbers;
pub use options::{Delivery, QueueOptions};
pub use tasks::{CurrentTask, Tasks};
pub use tidewater_protocol::wire::control::{LeftOut, QueueCounters, QueueStatus, TaskKind};

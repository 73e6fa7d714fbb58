//! Queues of tasks, without I/O and clock: the coordinator gives each request and the time.
//!
//! ```text
//! shards --cut--> tasks of a pass --take--> given to a worker --done--> being applied --settle--> finished
//!                   ^                          |
//!                   +--- lost, late, failed ---+        failed too often --> left out, with its reason
//! ```
//! A *delivery* is a task in the hands of one worker. Its number is used once, so that a late report names a
//! delivery that is no more, never the next one of the same task. A task may have two deliveries: that of a
//! straggler and a second one. The first report that counts ends the other.
//!
//! A report that is repeated, since its answer was lost, has the result of the first one.
//!
//! The state is serializable: a coordinator that starts again continues with it ([`Queue::resume`]).

mod history;
mod order;
mod queue;
mod queues;
mod replay;
mod reports;
#[cfg(test)]
mod tests;

pub use queue::{Done, DoneReport, Queue, Released, Report, Taken};
pub use queues::{QueueError, Queues};
pub use replay::QueueCall;
pub use reports::WorkerKey;

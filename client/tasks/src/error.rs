//! Errors of taking, reading and reporting tasks.

use std::path::PathBuf;

use tidewater::ClientError;
use tidewater_data::DataError;
use tidewater_protocol::wire::control::LeftOut;

/// Why a task cannot be taken, read or reported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The coordinator, a server, or a push of the task.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The records of the task.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A path that the coordinator cannot pass on.
    #[error("the path {path:?} is not UTF-8; rename it, or give another name to its directory")]
    Path {
        /// Path of the file.
        path: PathBuf,
    },
    /// A task without records is read.
    #[error(
        "task {number} has no records: it is of kind {kind}; look at its kind before it is read"
    )]
    NoRecords {
        /// Number of the task.
        number: u64,
        /// Kind of the task.
        kind: &'static str,
    },
    /// A task is reported as finished that is not open: another one was taken since, or it has failed. Its pushes
    /// are dropped, and it is given again.
    #[error(
        "task {number} is not open any more, and its pushes are dropped; report each task before the next one is \
         taken"
    )]
    NotOpen {
        /// Number of the task.
        number: u64,
    },
    /// A task is to be taken while the client has one of another queue open.
    #[error(
        "a task of another queue is open; report it before a task of queue \"{queue}\" is taken"
    )]
    OtherTask {
        /// Name of the queue.
        queue: String,
    },
    /// The queue was opened by another client, or before this one rejoined its job.
    #[error(
        "queue \"{queue}\" was opened by another client, or before this one rejoined its job; open the queue again"
    )]
    OtherClient {
        /// Name of the queue.
        queue: String,
    },
    /// Tasks are left out because they failed too often. All others are finished.
    #[error(
        "{count} tasks of queue \"{queue}\" are left out, the first one is [{}, {}) of {:?}: {}; repair the \
         data, or allow that tasks are left out", first.shard.first, first.shard.end, first.shard.path,
        first.reason
    )]
    LeftOut {
        /// Name of the queue.
        queue: String,
        /// Number of tasks that are left out.
        count: u64,
        /// The first one, with the reason of its last failure.
        first: Box<LeftOut>,
    },
    /// Single records of files are to be shuffled.
    #[error(
        "queue \"{queue}\": records of files are read from the start of their task, so that single ones cannot be \
         shuffled; shuffle small tasks (`shuffled`), or open a number of records with `Tasks::count` and read them \
         by number"
    )]
    ShuffledSource {
        /// Name of the queue.
        queue: String,
    },
    /// The records of a task have no numbers: its range is in bytes.
    #[error(
        "task {number} is the bytes [{first}, {end}) of {path:?}, and its records have no numbers; read them with \
         `rows` or `records`"
    )]
    NoNumbers {
        /// Number of the task.
        number: u64,
        /// First byte of the task's range.
        first: u64,
        /// End of the bytes.
        end: u64,
        /// Path of the file.
        path: PathBuf,
    },
    /// A record feed over a queue with exactly-once delivery.
    #[error(
        "queue \"{queue}\": a batch of a record feed may be of several tasks, and with `Delivery::ExactlyOnce` pushes \
         belong to one; open the queue with `Delivery::AtLeastOnce`, or take its tasks with `Tasks::next`"
    )]
    FeedDelivery {
        /// Name of the queue.
        queue: String,
    },
    /// More records are reported as done than a record feed has given and not seen reported.
    #[error("{count} records are reported as done, and {read} are read and not reported yet")]
    NotRead {
        /// Number of records in the report.
        count: u64,
        /// Number of records that are read and not reported.
        read: u64,
    },
    /// A record of a program's own [`TaskRecords`](crate::TaskRecords) cannot be read.
    #[error("a record cannot be read: {source}")]
    Record {
        /// Cause of the program.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The coordinator answers with something else.
    #[error("the coordinator answers {operation} with something else; is it of another release?")]
    Protocol {
        /// Operation that was asked for.
        operation: &'static str,
    },
}

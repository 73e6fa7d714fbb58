//! Errors of client calls.

use tidewater_bookkeeping::reject_text::describe;
use tidewater_bookkeeping::schedule::ScheduleError;
use tidewater_control::conn::ConnError;
use tidewater_control::dial::DialError;
use tidewater_lanes::fabric::LaneError;
use tidewater_protocol::ids::{DomainId, Incarnation, ServerId, WorkerThread};
use tidewater_protocol::layout::lines::Reject;
use tidewater_protocol::wire::refusal::Refusal;

use crate::collective::CollectiveError;

/// Error of another layer, boxed. It can be downcast, for example to [`std::io::Error`] or [`SystemError`].
///
/// # Example
/// ```
/// use std::io;
/// use tidewater::error::Cause;
///
/// /// Kind of the system's error, for a program that tries again.
/// fn kind(cause: &Cause) -> Option<io::ErrorKind> {
///     cause.downcast_ref::<io::Error>().map(io::Error::kind)
/// }
///
/// let cause = Cause::from(io::Error::from(io::ErrorKind::PermissionDenied));
/// assert_eq!(kind(&cause), Some(io::ErrorKind::PermissionDenied));
/// assert_eq!(kind(&Cause::from("no file")), None);
/// ```
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Error of a failed operating-system call, with its purpose and a remedy.
///
/// # Example
/// ```
/// use std::io;
/// use tidewater::ClientError;
/// use tidewater::error::SystemError;
///
/// let source = io::Error::other("no descriptors");
/// let error = SystemError { op: "make an epoll", source, remedy: Some("raise ulimit -n") };
/// assert_eq!(error.to_string(), "cannot make an epoll: no descriptors; raise ulimit -n");
/// let ClientError::Environment(cause) = ClientError::Environment(error.into()) else { unreachable!() };
/// assert!(cause.is::<SystemError>());
/// ```
#[derive(Debug, thiserror::Error)]
#[error("cannot {op}: {source}{}", .remedy.map_or_else(String::new, |remedy| format!("; {remedy}")))]
pub struct SystemError {
    /// What the call was to do.
    pub op: &'static str,
    /// Error of the system.
    #[source]
    pub source: std::io::Error,
    /// What the user can do about it.
    pub remedy: Option<&'static str>,
}

/// Failure of a control connection to the coordinator or a server.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::connect::{JoinConfig, NetCoordinatorLink};
/// # use tidewater::{ClientError, error::ControlFailure};
/// # use tidewater_protocol::wire::handshake::JobToken;
/// # use tidewater_runtime::clock::Deadline;
/// let config = JoinConfig::new("127.0.0.1:1", JobToken::new([7; 32])); // no coordinator listens here
/// let deadline = Deadline::after(Duration::from_millis(100));
/// match NetCoordinatorLink::join(&config, deadline) {
///     Err(ClientError::Control { peer, source: ControlFailure::Dial(_) }) => {
///         assert_eq!(peer, "coordinator at 127.0.0.1:1");
///     }
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlFailure {
    /// The connection could not be made.
    #[error(transparent)]
    Dial(#[from] Box<DialError>),
    /// The connection failed in a call.
    #[error(transparent)]
    Conn(#[from] Box<ConnError>),
    /// The peer sent the answer to another request.
    #[error("it answers {op} with something else; is it of another release?")]
    OtherAnswer {
        /// Name of the request.
        op: &'static str,
    },
}

/// Reason why a [`RegisteredBuffer`](crate::RegisteredBuffer) could not be made.
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, SyncMode, error::MemoryError};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// match client.buffer::<f64>(usize::MAX) {
///     Err(ClientError::Memory { source: MemoryError::TooLarge { limit }, .. }) => {
///         assert!(limit >= 1 << 30);
///     }
///     other => panic!("{other:?}"),
/// }
/// # client.finish()
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The buffer is larger than the limit.
    #[error("a buffer has at most {limit}")]
    TooLarge {
        /// Most bytes of a buffer.
        limit: usize,
    },
    /// The client has as many buffers as it can have.
    #[error("{buffers} buffers are there, the most of a client; drop some")]
    TooMany {
        /// Number of buffers of the client.
        buffers: usize,
    },
    /// The system gives no memory.
    #[error(transparent)]
    Allocate(#[from] tidewater_runtime::mem::MemError),
    /// A device does not take the memory.
    #[error("{0}")]
    Register(#[source] Cause),
}

/// Error of a client's call. Unless the variant or the call says otherwise, the call has changed nothing.
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, PullOptions, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let table = client.create_table::<f32>(TableBuilder::rows::<f32>("w", 4, 2).spec())?;
/// let mut row = [0.0; 3]; // a row has two elements
/// match client.pull_rows(&table, &[1], &mut row, PullOptions::default()) {
///     Err(ClientError::Argument { op, table, what }) => {
///         assert_eq!((op, table.as_str()), ("pull_rows", "w"));
///         println!("{what}");
///     }
///     other => panic!("{other:?}"),
/// }
/// # client.finish()
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A server refused one frame of a push. The rows of that frame were not applied; those of other
    /// servers may have been.
    #[error("table \"{table}\" at {server}: {}", describe(.reject.reason))]
    Rejected {
        /// Name of the table.
        table: String,
        /// Name of the refusing server.
        server: String,
        /// Frame, table and reason.
        reject: Reject,
    },
    /// Frames of a lane were refused so many refusals ago that the reasons are no longer kept, and the push has a
    /// frame between `first` and `last`. That frame was not applied; if not `certain`, this is unknown.
    #[error(
        "table \"{table}\" at {server}: the push {} (frames {} to {}), so many refused frames ago \
         that the reason is forgotten; wait for tickets sooner",
        if *.certain { "was refused" } else { "was perhaps refused" }, .first, .last
    )]
    RejectForgotten {
        /// Name of the table.
        table: String,
        /// Name of the refusing server.
        server: String,
        /// Sequence number on the lane of the first of these frames.
        first: u64,
        /// Sequence number on the lane of the last of these frames.
        last: u64,
        /// Whether all frames from `first` to `last` were refused, the push's too; false if only some were.
        certain: bool,
    },
    /// A callback ([`Client::on_applied`](crate::Client::on_applied)) runs without an answer to its push, and none
    /// can arrive any more. Only callbacks receive this.
    #[error("table \"{table}\": {why}; whether the push was applied is unknown")]
    Unanswered {
        /// Name of the table.
        table: String,
        /// Why there is no answer, and the remedy if there is one.
        why: &'static str,
    },
    /// The deadline of a call passed.
    #[error("{op} did not finish before its deadline: {missing}")]
    Deadline {
        /// Name of the call.
        op: &'static str,
        /// Servers, workers or events that the call still waited for.
        missing: String,
    },
    /// The program asked the call to end ([`interrupt`](crate::interrupt)). As after a deadline, the
    /// call may be repeated.
    #[error("{op} was interrupted")]
    Interrupted {
        /// Name of the call.
        op: &'static str,
    },
    /// A server cannot be reached, and recovery did not help.
    #[error("server {server} is unreachable: {op}: {source}; is the process alive?")]
    ServerLost {
        /// Name of the lost server.
        server: String,
        /// Name of the last attempt.
        op: &'static str,
        /// Error of the last attempt.
        #[source]
        source: Cause,
    },
    /// Coordinator or server refused the request.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The control connection to a peer failed.
    #[error("control connection to {peer}: {source}")]
    Control {
        /// Name of the peer.
        peer: String,
        /// Failure of the connection.
        #[source]
        source: ControlFailure,
    },
    /// The job file cannot be used: unreadable, open to others, or stale, which names both coordinators.
    #[error(transparent)]
    JobFile(#[from] tidewater_launch::JobFileError),
    /// Arguments that do not fit the table or the call.
    #[error("{op} on table \"{table}\": {what}")]
    Argument {
        /// Name of the call.
        op: &'static str,
        /// Name or number of the table; `-` or empty if the call concerns none.
        table: String,
        /// What is wrong and what would be right.
        what: String,
    },
    /// The call does not fit the threads of this worker ([`Client::sibling`](crate::Client::sibling)): only
    /// its first client makes it, or it waits for another thread of the worker.
    #[error("{op} by {thread}: {what}")]
    Thread {
        /// Name of the call.
        op: &'static str,
        /// Thread of the client that was called.
        thread: WorkerThread,
        /// Why it does not fit, and the remedy.
        what: String,
    },
    /// The call would change the model or a clock, and the client is an observer
    /// ([`Job::observer`](crate::Job::observer)). Nothing was sent.
    #[error(
        "{op}: this client is an observer, which only reads; connect as a worker (Job::client) to {op}"
    )]
    Observer {
        /// Name of the call.
        op: &'static str,
    },
    /// The client of another thread of this worker was dropped before it finished, which is the loss of
    /// the worker.
    #[error(
        "{thread} has ended before it finished, so the worker is lost to its job; call finish() on \
         each sibling"
    )]
    ThreadLost {
        /// Thread of the client that was dropped.
        thread: WorkerThread,
    },
    /// The job follows a membership file in which this worker was lost, and the call would tick beyond that. The
    /// clock has not moved. End the process, or finish the client: the others go on.
    #[error(
        "the membership file says that this worker was lost after {clock} ticks of clock domain {domain}; \
         end its process, and the others go on"
    )]
    StayOver {
        /// Domain of the tick.
        domain: DomainId,
        /// Ticks that this worker has ended there.
        clock: u64,
    },
    /// The workers' calls of a collective operation do not fit together, or a worker is missing.
    #[error("{op}: {source}")]
    Collective {
        /// Name of the call.
        op: &'static str,
        /// Cause, with the ranks of the workers.
        #[source]
        source: CollectiveError,
    },
    /// A server sent an invalid message; the server or the network is broken.
    #[error("protocol error from server {server}: {what}")]
    Protocol {
        /// Name of the sending server.
        server: String,
        /// What is wrong with the message.
        what: String,
    },
    /// The job's environment is incomplete or contradicts itself.
    #[error("{0}")]
    Environment(#[source] Cause),
    /// This process is alone: neither a launcher nor a `TIDEWATER_*` variable gives it a job. A program
    /// may start a cluster of its own then
    /// ([`JoinOptions::embedded`](crate::JoinOptions::embedded)).
    #[error("{0}")]
    NoJob(String),
    /// The processes of a launch do not meet, which names the missing ones, or not as a job; or a server in this
    /// process has failed.
    #[error("{0}")]
    Launch(#[source] Cause),
    /// Memory for a [`RegisteredBuffer`](crate::RegisteredBuffer) cannot be allocated or registered.
    #[error("a buffer of {bytes} bytes: {source}")]
    Memory {
        /// Requested size in bytes.
        bytes: usize,
        /// The exceeded limit, or the error of the system.
        #[source]
        source: MemoryError,
    },
    /// A text is not an expression of the element type.
    #[error("expression {text:?}: {source}")]
    Expression {
        /// Text of the expression.
        text: String,
        /// Defect, with its position in bytes.
        source: tidewater_expression::ExpressionError,
    },
    /// A lane failed in a way that recovery cannot repair.
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// A version of a table is not kept any more, or not complete yet.
    #[error(
        "version {version} of table \"{table}\" is not kept: the servers keep versions {oldest} to \
         {newest}, and pinned ones; pin a version before it is replaced, or create the table with more \
         versions"
    )]
    VersionGone {
        /// Name of the table.
        table: String,
        /// Version that the call asked for.
        version: u64,
        /// Oldest version that is kept without a pin; all versions from it to `newest` are kept.
        oldest: u64,
        /// Newest complete version of the table.
        newest: u64,
    },
    /// A server has ended, and its successor began without its memory. Every table of the job is gone, what
    /// was pushed to them is lost, and the clocks of the job are 0. Handles, tickets and calls under way are
    /// invalid. All workers get this error, once each call until they rejoin
    /// ([`Client::rejoin`](crate::Client::rejoin)).
    #[error(
        "{end}; incarnation {after} has taken the place of {before} without its memory: the tables of the \
         job are gone, and its clocks are 0; create or load the tables again"
    )]
    ServerRestarted {
        /// Number of the server.
        server: ServerId,
        /// Incarnation that has ended.
        before: Incarnation,
        /// Incarnation of the successor.
        after: Incarnation,
        /// Server, process id, host, and exit status or signal.
        end: String,
    },
}

/// Makes the `ClientError::Rejected` of a request that `server` answered with the refusal `reject`.
pub(crate) fn rejected(table: &str, server: &str, reject: Reject) -> ClientError {
    ClientError::Rejected {
        table: table.to_owned(),
        server: server.to_owned(),
        reject,
    }
}

impl From<ScheduleError> for ClientError {
    fn from(error: ScheduleError) -> Self {
        Self::Argument {
            op: "schedule",
            table: String::new(),
            what: error.to_string(),
        }
    }
}

//! What a client call can fail with.

use tidewater_lanes::fabric::LaneError;
use tidewater_protocol::layout::lines::Reject;
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::wire::refusal::Refusal;

/// Why a call failed. Unless it says otherwise nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A server refused one frame of a push: the rows of that frame were not applied, those of
    /// other servers may have been.
    #[error("table \"{table}\" at {server}: {}", describe(.reject.reason))]
    Rejected {
        /// Name of the table.
        table: String,
        /// Which server.
        server: String,
        /// Frame, table and reason.
        reject: Reject,
    },
    /// A server refused frames of this lane so long ago that the reason is not kept any more, and a
    /// frame of the push is among them, or may be: it was not applied, or that is not known.
    #[error(
        "table \"{table}\" at {server}: the push {} (frames {} to {}), so many refused frames ago \
         that the reason is forgotten; wait for tickets sooner",
        if *.certain { "was refused" } else { "was perhaps refused" }, .frames.0, .frames.1
    )]
    RejectForgotten {
        /// Name of the table.
        table: String,
        /// Which server.
        server: String,
        /// First and last of the lane's frames that were refused.
        frames: (u64, u64),
        /// Whether the push was refused for sure.
        certain: bool,
    },
    /// The deadline passed.
    #[error("{op} did not finish before its deadline: {missing}")]
    Deadline {
        /// The call.
        op: &'static str,
        /// What or who is missing.
        missing: String,
    },
    /// The program asked the call to end ([`interrupt`](crate::interrupt)). As after a deadline, the call may be
    /// repeated.
    #[error("{op} was interrupted")]
    Interrupted {
        /// The call.
        op: &'static str,
    },
    /// A server cannot be reached, and recovery did not help.
    #[error("server {server} is unreachable: {why}; is the process alive?")]
    ServerLost {
        /// Which.
        server: String,
        /// The last attempt's words.
        why: String,
    },
    /// Coordinator or server said no.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The control connection failed.
    #[error("control connection to {peer}: {why}")]
    Control {
        /// The other end.
        peer: String,
        /// What happened.
        why: String,
    },
    /// Arguments that do not fit the table.
    #[error("{op} on table \"{table}\": {what}")]
    Argument {
        /// The call.
        op: &'static str,
        /// Name of the table.
        table: String,
        /// What is wrong and what would be right.
        what: String,
    },
    /// What a server told makes no sense; it or the network is broken.
    #[error("server {server} told nonsense: {what}")]
    Protocol {
        /// Which.
        server: String,
        /// What.
        what: String,
    },
    /// The job's environment is incomplete or contradicts itself.
    #[error("{0}")]
    Environment(String),
    /// The processes of a launch do not come together, or not as a job; names who is missing.
    #[error("{0}")]
    Launch(String),
    /// Memory for a [`RegisteredBuffer`](crate::RegisteredBuffer) cannot be had.
    #[error("a buffer of {bytes} bytes: {why}")]
    Memory {
        /// Its bytes.
        bytes: usize,
        /// The system's words, or the limit; what to do.
        why: String,
    },
    /// A lane broke in a way that recovery cannot mend.
    #[error(transparent)]
    Lane(#[from] LaneError),
}

/// A reject in words.
fn describe(reason: RejectReason) -> String {
    match reason {
        RejectReason::UnknownTable { table } => {
            format!("no table {table} there; was it created on this cluster?")
        }
        RejectReason::TableReleased { .. } => "the table was released".into(),
        RejectReason::IndexOutOfRange { index, size } => {
            format!("index {index} is past the end ({size})")
        }
        RejectReason::WrongDType { frame, table } => {
            format!("values have type code {frame}, the table has {table}")
        }
        RejectReason::NotFinite { row, key } => format!(
            "row {row} (key {key}) holds NaN or infinity; mend the gradient, or create the table with \
             finite_check = false"
        ),
        RejectReason::WrongLength { bytes, expected } => {
            format!("{bytes} bytes where {expected} are due")
        }
        RejectReason::WrongOwner { first, count: 1 } => {
            format!("key {first} belongs to another applier: placement is stale")
        }
        RejectReason::WrongOwner { first, count } => {
            format!("elements {first}..+{count} belong to another applier: placement is stale")
        }
        RejectReason::WrongOperation { kind, op } => format!(
            "operation {op} in a frame of kind {kind} is not one of this table's (a gradient needs an \
             optimizer, a range needs layout blocks)"
        ),
        RejectReason::NoMemory { used, capacity } => {
            format!("{used} of {capacity} bytes in use; raise the server's --capacity")
        }
        RejectReason::PendingFull { needed, limit } => format!(
            "workers that are ahead of their turn in the iteration need {needed} bytes, an applier \
             holds {limit}: raise the server's --pending-bytes, for all such workers together (a push \
             cannot wait for its turn where a job uses several clock domains)"
        ),
        RejectReason::ReplyTooLarge { bytes, slot } => {
            format!("a reply of {bytes} bytes does not fit a slot of {slot}")
        }
        RejectReason::BadClock { clock, expected } => {
            format!("clock {clock} where {expected} is due")
        }
        _ => format!("refused: {reason:?}"),
    }
}

/// The error of a refusal inside a reply.
pub(crate) fn rejected(
    table: &str,
    server: &str,
    (seq, table_id): (u64, u32),
    reason: RejectReason,
) -> ClientError {
    let reject = Reject {
        seq,
        table: table_id,
        reason,
    };
    ClientError::Rejected {
        table: table.to_owned(),
        server: server.to_owned(),
        reject,
    }
}

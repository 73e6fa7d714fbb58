//! What a client call can fail with.

use tidewater_transport::fabric::LaneError;
use tidewater_transport::layout::lines::{Reject, RejectCode};
use tidewater_transport::wire::refusal::Refusal;

/// Why a call failed. Unless it says otherwise nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A server refused one frame of a push: the rows of that frame were not applied, those of
    /// other servers may have been.
    #[error("table \"{table}\" at {server}: {}", describe(.reject))]
    Rejected {
        /// Name of the table.
        table: String,
        /// Which server.
        server: String,
        /// Frame, code and numbers.
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
fn describe(r: &Reject) -> String {
    let [a, b] = r.numbers;
    match r.code {
        RejectCode::UnknownTable => format!("no table {a} there; was it created on this cluster?"),
        RejectCode::TableReleased => "the table was released".into(),
        RejectCode::IndexOutOfRange => format!("index {a} is past the end ({b})"),
        RejectCode::WrongDType => format!("values have type code {a}, the table has {b}"),
        RejectCode::NotFinite => format!(
            "row {a} (key {b}) holds NaN or infinity; mend the gradient, or create the table with \
             finite_check = false"
        ),
        RejectCode::WrongLength => format!("{a} bytes where {b} are due"),
        RejectCode::WrongOwner => {
            format!("key {a} (partition {b}) belongs to another applier: placement is stale")
        }
        RejectCode::WrongOperation => format!(
            "operation {a} is not one of this table's (a gradient needs an optimizer, a range \
             needs layout blocks)"
        ),
        RejectCode::NoMemory => format!("{a} of {b} bytes in use; raise the server's --capacity"),
        RejectCode::PendingFull => format!(
            "{a} bytes are held back for the open iteration, the limit is {b}: a worker is far \
             behind, or iterations are too long"
        ),
        RejectCode::ReplyTooLarge => format!("a reply of {a} bytes does not fit a slot of {b}"),
        RejectCode::BadClock => format!("clock {a} where {b} is due"),
        _ => format!("refused with code {:?} ({a}, {b})", r.code),
    }
}

/// The error of a refusal inside a reply.
pub(crate) fn rejected(
    table: &str,
    server: &str,
    (seq, table_id): (u64, u32),
    code: RejectCode,
    numbers: [u64; 2],
) -> ClientError {
    let reject = Reject {
        seq,
        code,
        table: table_id,
        numbers,
    };
    ClientError::Rejected {
        table: table.to_owned(),
        server: server.to_owned(),
        reject,
    }
}

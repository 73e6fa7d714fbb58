//! Control messages: requests and their answers, commands, notices.
//!
//! A body is a little-endian u64 request id, then the message in postcard's encoding. An answer carries its
//! request's id; a notice carries 0. The encoding changes with [`super::PROTOCOL_VERSION`] and with nothing else.
//! The sender and the receiver both validate every message against the limits. Decoding a message takes
//! at most about 20 times its bytes, so at most 20 MiB: lists grow with the received elements, not with
//! the claimed length.
//!
//! | sender and receiver | request | answer |
//! |---|---|---|
//! | any other process to the coordinator | [`CoordinatorRequest`] | [`CoordinatorAnswer`] |
//! | coordinator to a server | [`Command`] | [`CommandReply`] |
//! | worker or observer to a server | [`ServerRequest`] | [`ServerAnswer`] |
//! | coordinator to a worker, observer or server | [`Notice`] | none |

mod coordinator;
mod members;
mod rendezvous;
#[cfg(test)]
pub(super) mod samples;
mod server;
mod status;
mod tasks;
#[cfg(test)]
mod tests;
mod verbs;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use coordinator::{
    CheckpointMark, Command, CommandReply, CoordinatorAnswer, CoordinatorRequest, Join, Joined,
    ModuleBytes, Notice, Resumed, SavedPart, TableInfo, TableSetting,
};
pub use members::{
    Arrival, DomainClock, Endpoints, MemberBarrier, Members, ServerEnd, ServerMember,
    ServerRestart, SlowMember, ThreadClock, WorkerClock, WorkerMember, WorkerState,
};
pub use rendezvous::{Part, Register, Roster};
pub use server::{
    ApplierPart, Attach, Attached, LaneGrant, PartitionDescriptor, Recovered, Remote, ServerAnswer,
    ServerRequest, ShmAttach, TableDescriptor, Transport,
};
pub use status::{
    AbsentServer, ApplierStatus, ClockStatus, ClusterStatus, JobStatus, ServerStatus,
    SessionStatus, status_text,
};
pub use tasks::{
    LeftOut, QueueCounters, QueueSpec, QueueStatus, QueueSummary, Task, TaskAnswer, TaskKind,
    TaskRequest, TaskShard, TaskUnit,
};
pub use verbs::{
    PairAddr, VERBS_DIRECTORY_CELL_BYTES, VerbsConnect, VerbsConnected, VerbsEce, VerbsEnd,
    VerbsLink, VerbsPath, VerbsPort, VerbsTails,
};

use super::WireError;
use super::frame::{self, Frame};
use super::refusal::Refusal;

/// A control message, which is the body of a control frame of one kind.
pub trait Message: Serialize + DeserializeOwned {
    /// Wire code of the frame's kind.
    const KIND: u16;
    /// Name of the message in error texts.
    const NAME: &'static str;

    /// Checks that every limited field is within its limit and valid. The sender and the receiver both call it.
    ///
    /// # Errors
    /// Names the first field that is not.
    fn validate(&self) -> Result<(), WireError>;
}

/// A control message that the receiver answers.
pub trait Request: Message {
    /// Type of the message that answers this request.
    type Answer: Answer;
}

/// A control message that answers a request, with the request's id.
pub trait Answer: Message {
    /// Returns the answer unchanged, unless it is a refusal.
    ///
    /// # Errors
    /// The refusal that the answer carries.
    fn accepted(self) -> Result<Self, Refusal>;

    /// Whether this is an interim report on a request under way: the final answer, with the same id, is still to
    /// come. `false` by default.
    fn is_news(&self) -> bool {
        false
    }
}

/// Validates `message` and appends it to `out` as a control frame. `id` is the number of a request on its connection:
/// that of this request, or of the one that is answered; 0 for a notice. On an error `out` is unchanged.
///
/// # Errors
/// A field has a value that the message does not allow, such as an empty name or an invalid table definition. A field,
/// or the complete message, is over its limit.
pub fn encode<M: Message>(id: u64, message: &M, out: &mut Vec<u8>) -> Result<(), WireError> {
    message.validate()?;
    frame::append_with(out, M::KIND, |out| {
        out.extend_from_slice(&id.to_le_bytes());
        // Writing to a vector cannot fail; only a type without a known length can.
        postcard::to_io(message, out)
            .map(|_| ())
            .map_err(|_| malformed::<M>("cannot be encoded"))
    })
}

/// Decodes and validates the message in a control frame. Returns the request's id and the message.
///
/// # Errors
/// The frame is of another kind or malformed, or a field has a value that the message does not allow or is over its limit.
pub fn decode<M: Message>(frame: &Frame<'_>) -> Result<(u64, M), WireError> {
    check_kind::<M>(frame.kind())?;
    decode_body(frame.body())
}

/// Decodes and validates an answer from the kind and body of a received frame, which the caller kept. The id at the
/// start of the body is dropped.
///
/// # Errors
/// `kind` is not that of the answer, the body is malformed, or a field has a value that the message does not allow
/// or is over its limit.
pub fn decode_answer<A: Answer>(kind: u16, body: &[u8]) -> Result<A, WireError> {
    check_kind::<A>(kind)?;
    Ok(decode_body(body)?.1)
}

const fn check_kind<M: Message>(found: u16) -> Result<(), WireError> {
    match found == M::KIND {
        true => Ok(()),
        false => Err(WireError::Kind {
            found,
            expected: M::KIND,
        }),
    }
}

/// Decodes and validates the message in a frame's body, which must end with it. Returns the request's id and the
/// message.
pub(crate) fn decode_body<M: Message>(body: &[u8]) -> Result<(u64, M), WireError> {
    let (id, body) = body
        .split_first_chunk()
        .ok_or_else(|| malformed::<M>("has no id"))?;
    let (message, rest) =
        postcard::take_from_bytes::<M>(body).map_err(|_| malformed::<M>("cannot be decoded"))?;
    if !rest.is_empty() {
        return Err(malformed::<M>("is followed by bytes"));
    }
    message.validate()?;
    Ok((u64::from_le_bytes(*id), message))
}

const fn malformed<M: Message>(why: &'static str) -> WireError {
    WireError::Malformed { what: M::NAME, why }
}

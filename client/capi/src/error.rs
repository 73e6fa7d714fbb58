//! Failures as C receives them: a status, and a text that stays with the thread.

use std::cell::RefCell;
use std::ffi::c_char;
use std::fmt::Display;

use tidewater::{ClientError, CollectiveError};
use tidewater_lanes::fabric::LaneError;
use tidewater_protocol::table::DType;
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_tasks::TaskError;

use crate::types::tw_status;

/// Bytes of an error's text, its NUL included: the longest errors name 16 missing servers.
const TEXT_BYTES: usize = 1024;

/// Status and text of a failed call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: tw_status,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(status: tw_status, text: impl Display) -> Self {
        let text = text.to_string();
        Self { status, text }
    }

    pub(crate) fn null(what: &str) -> Self {
        Self::new(tw_status::TW_ERR_NULL, format_args!("{what} is null"))
    }

    pub(crate) fn argument(text: impl Display) -> Self {
        Self::new(tw_status::TW_ERR_ARGUMENT, text)
    }

    pub(crate) fn dtype(table: DType, given: DType) -> Self {
        Self::argument(format_args!(
            "the array holds {}, the table {}",
            dtype_name(given),
            dtype_name(table)
        ))
    }

    pub(crate) fn panicked() -> Self {
        let text = "an earlier call of this session failed inside the library, and what it left \
                    cannot be trusted; close the session. This is a defect: please report it";
        Self::new(tw_status::TW_ERR_PANIC, text)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let status = match &error {
            ClientError::Rejected { .. } | ClientError::RejectForgotten { .. } => {
                tw_status::TW_ERR_REJECTED
            }
            ClientError::Deadline { .. }
            | ClientError::Interrupted { .. }
            | ClientError::Lane(LaneError::Deadline { .. } | LaneError::Late { .. }) => {
                tw_status::TW_ERR_DEADLINE
            }
            ClientError::Refused(refusal) => match refusal.code {
                // The end of another process, reported as a refusal.
                RefusalCode::PeerFailed | RefusalCode::ShuttingDown => tw_status::TW_ERR_LOST,
                _ => tw_status::TW_ERR_REFUSED,
            },
            ClientError::Collective {
                source: CollectiveError::Left { .. } | CollectiveError::OutOfStep { .. },
                ..
            } => tw_status::TW_ERR_LOST,
            ClientError::Argument { .. }
            | ClientError::Collective { .. }
            | ClientError::Expression { .. }
            | ClientError::VersionGone { .. } => tw_status::TW_ERR_ARGUMENT,
            ClientError::Thread { .. } => tw_status::TW_ERR_THREAD,
            ClientError::Observer { .. } | ClientError::StayOver { .. } => {
                tw_status::TW_ERR_REFUSED
            }
            ClientError::Protocol { .. } => tw_status::TW_ERR_PROTOCOL,
            ClientError::Environment(_) | ClientError::NoJob(_) | ClientError::JobFile(_) => {
                tw_status::TW_ERR_ENVIRONMENT
            }
            _ => tw_status::TW_ERR_LOST,
        };
        Self::new(status, error)
    }
}

impl From<TaskError> for Failure {
    fn from(error: TaskError) -> Self {
        let status = match error {
            TaskError::Client(error) => return error.into(),
            TaskError::LeftOut { .. } => tw_status::TW_ERR_REFUSED,
            TaskError::Protocol { .. } => tw_status::TW_ERR_PROTOCOL,
            _ => tw_status::TW_ERR_ARGUMENT,
        };
        Self::new(status, error)
    }
}

/// Name of an element type in the header, without the prefix.
pub(crate) const fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::I32 => "i32",
        DType::I64 => "i64",
    }
}

/// The text of a thread's last failure. It has no destructor, so that the library can be closed
/// (`dlclose`) while threads live that used it.
struct LastError([u8; TEXT_BYTES]);

thread_local! {
    static LAST: RefCell<LastError> = const { RefCell::new(LastError([0; TEXT_BYTES])) };
}

/// Stores `call: text` for [`last`].
pub(crate) fn remember(call: &str, failure: &Failure) {
    LAST.with_borrow_mut(|last| last.set(&format!("{call}: {}", failure.text)));
}

/// The text of this thread's last failure, NUL-terminated; empty if there was none.
pub(crate) fn last() -> *const c_char {
    LAST.with(|last| last.as_ptr().cast_const().cast())
}

/// A number that no other living thread has.
pub(crate) fn thread_number() -> usize {
    LAST.with(|last| last.as_ptr().addr())
}

impl LastError {
    fn set(&mut self, text: &str) {
        let end = text.floor_char_boundary(TEXT_BYTES - 1);
        let text = text.as_bytes().get(..end).unwrap_or_default();
        // A NUL inside would hide the text after it.
        for (to, &byte) in self.0.iter_mut().zip(text) {
            *to = if byte == 0 { b' ' } else { byte };
        }
        if let Some(after) = self.0.get_mut(end) {
            *after = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_lanes_are_deadlines() {
        use tidewater_lanes::fabric::TransportKind::Tcp;
        let (peer, op) = (String::from("server 3"), "read");
        let late = LaneError::Late {
            transport: Tcp,
            peer: peer.clone(),
            op,
        };
        let deadline = LaneError::Deadline {
            transport: Tcp,
            peer: peer.clone(),
            op,
        };
        let broken = LaneError::Broken {
            transport: Tcp,
            peer,
            op,
            why: "cut".into(),
        };
        let status = |e| Failure::from(ClientError::Lane(e)).status;
        assert_eq!(status(late), tw_status::TW_ERR_DEADLINE);
        assert_eq!(status(deadline), tw_status::TW_ERR_DEADLINE);
        assert_eq!(status(broken), tw_status::TW_ERR_LOST);
    }

    fn set(text: &str) -> String {
        let mut last = LastError([b'x'; TEXT_BYTES]);
        last.set(text);
        let end = last.0.iter().position(|&b| b == 0).unwrap();
        String::from_utf8(last.0[..end].to_vec()).unwrap()
    }

    #[test]
    fn texts_end_and_are_whole_characters() {
        assert_eq!(set(""), "");
        assert_eq!(set("a\0b"), "a b");
        let long = "\u{20ac}".repeat(TEXT_BYTES);
        let kept = set(&long);
        assert_eq!(kept.len(), (TEXT_BYTES - 1) / 3 * 3);
        assert!(long.starts_with(&kept));
    }

    #[test]
    fn the_text_of_a_thread_needs_no_destructor() {
        assert!(!std::mem::needs_drop::<RefCell<LastError>>());
    }
}

//! Why bytes are not a message.

use super::spec::SpecError;

/// Bytes that are no message, or a message that must not be sent.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The stream does not start with the control magic: another program, or a lost position.
    #[error(
        "control stream: {found:#010x} where the magic {expected:#010x} belongs; \
         close the connection and check that the address is a Tidewater one"
    )]
    Magic {
        /// What was read.
        found: u32,
        /// What belongs there.
        expected: u32,
    },
    /// Reserved bits are set, which only another version would do.
    #[error("{what}: reserved bits are {bits:#x}, must be zero; the peer speaks another version")]
    Reserved {
        /// Where.
        what: &'static str,
        /// The bits found.
        bits: u64,
    },
    /// The header's check does not match the bytes: damaged on the way.
    #[error(
        "control frame of kind {kind}: check {found:#010x}, computed {computed:#010x}; reconnect"
    )]
    Check {
        /// Kind in the damaged frame.
        kind: u16,
        /// Check in the frame.
        found: u32,
        /// Check of its bytes.
        computed: u32,
    },
    /// Something is longer or larger than its limit.
    #[error("{what}: {value} is over the limit of {max}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// Its size or number.
        value: u64,
        /// The most that is taken.
        max: u64,
    },
    /// The frame is of a kind that does not belong here.
    #[error("control frame of kind {found} where kind {expected} belongs; the peer broke protocol")]
    Kind {
        /// Kind found.
        found: u16,
        /// Kind that belongs here.
        expected: u16,
    },
    /// The body is not a message of its kind.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// Which message.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A table's definition does not hold.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// `value` of `what` is at most `max`.
pub(crate) fn at_most(what: &'static str, value: u64, max: u64) -> Result<(), WireError> {
    if value > max {
        return Err(WireError::Limit { what, value, max });
    }
    Ok(())
}

/// `text` is at most `max` bytes and has no control characters: it will stand in a log line.
pub(crate) fn text_at_most(what: &'static str, text: &str, max: usize) -> Result<(), WireError> {
    at_most(what, text.len() as u64, max as u64)?;
    if text.chars().any(char::is_control) {
        return Err(WireError::Malformed {
            what,
            why: "holds control characters",
        });
    }
    Ok(())
}

/// As [`text_at_most`], and not empty.
pub(crate) fn name_at_most(what: &'static str, text: &str, max: usize) -> Result<(), WireError> {
    if text.is_empty() {
        return Err(WireError::Malformed {
            what,
            why: "is empty",
        });
    }
    text_at_most(what, text, max)
}

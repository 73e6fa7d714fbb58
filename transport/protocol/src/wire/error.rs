//! Errors of bytes that are not a valid message.

use super::spec::SpecError;

/// Error of received bytes that are no valid control message, or of a message that must not be sent.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The stream does not start with the control magic: another program, or a lost position.
    #[error(
        "control stream: {found:#010x} where the magic {expected:#010x} belongs; \
         close the connection and check that the address is a Tidewater one"
    )]
    Magic {
        /// Magic in the stream.
        found: u32,
        /// Magic of this protocol.
        expected: u32,
    },
    /// Reserved bits are set, which only another version does.
    #[error("{what}: reserved bits are {bits:#x}, must be zero; the peer speaks another version")]
    Reserved {
        /// Name of the message with the reserved bits.
        what: &'static str,
        /// The reserved bits as a number, not 0.
        bits: u64,
    },
    /// The checksum in the header does not match header and body: the frame was damaged in transit.
    #[error(
        "control frame of kind {kind}: check {found:#010x}, computed {computed:#010x}; reconnect"
    )]
    Check {
        /// Kind in the damaged frame.
        kind: u16,
        /// Checksum in the frame's header.
        found: u32,
        /// Checksum computed from the received header and body.
        computed: u32,
    },
    /// A field is longer or larger than its limit.
    #[error("{what}: {value} is over the limit of {max}")]
    Limit {
        /// Name of the limited field.
        what: &'static str,
        /// Value of a numeric field, or length of another field in bytes or entries.
        value: u64,
        /// Largest valid `value`.
        max: u64,
    },
    /// The frame is of a kind that does not belong here.
    #[error("control frame of kind {found} where kind {expected} belongs; the peer broke protocol")]
    Kind {
        /// Kind in the frame.
        found: u16,
        /// Kind that belongs here.
        expected: u16,
    },
    /// The body is not a message of its kind, or a field has a value that is not allowed.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// Name of the message or of its field.
        what: &'static str,
        /// Defect of that message or field.
        why: &'static str,
    },
    /// A table's definition is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// Checks that `value` is at most `max`; else returns [`WireError::Limit`] with `what` as the field's name.
pub(crate) fn at_most(what: &'static str, value: u64, max: u64) -> Result<(), WireError> {
    if value > max {
        return Err(WireError::Limit { what, value, max });
    }
    Ok(())
}

/// Checks that `text` has at most `max` bytes and no control characters, so that it is fit for a log line; empty is
/// valid. Else returns [`WireError::Limit`] or [`WireError::Malformed`], with `what` as the field's name.
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

/// Checks that `text` has 1 to `max` bytes and no control characters. Else returns [`WireError::Limit`] or
/// [`WireError::Malformed`], with `what` as the field's name.
pub(crate) fn name_at_most(what: &'static str, text: &str, max: usize) -> Result<(), WireError> {
    if text.is_empty() {
        return Err(WireError::Malformed {
            what,
            why: "is empty",
        });
    }
    text_at_most(what, text, max)
}

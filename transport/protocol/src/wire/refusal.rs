//! Typed refusals: a stable number, a sentence, a remedy, and explaining numbers.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::WireError;
use super::error::text_at_most;
use crate::limits::TEXT_BYTES_MAX;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $says:literal, $remedy:literal;)*) => {
        /// Code of the reason for which a peer refuses a request or a connection. Codes are wire format and never
        /// change meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(from = "u16", into = "u16")]
        #[non_exhaustive]
        pub enum RefusalCode {
            $($(#[$doc])* $name,)*
            /// A code that this version does not know.
            Unknown(u16),
        }

        impl RefusalCode {
            /// Every code that this version knows, without [`RefusalCode::Unknown`].
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the wire number of this code.
            pub const fn code(self) -> u16 {
                match self { $(Self::$name => $code,)* Self::Unknown(code) => code }
            }

            /// Returns the meaning of the code as a clause for an error message, without the numbers.
            pub const fn says(self) -> &'static str {
                match self { $(Self::$name => $says,)* Self::Unknown(_) => "refused for a reason this version does not know" }
            }

            /// Returns what the user can do about the refusal, as a clause for an error message.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy,)* Self::Unknown(_) => "compare the versions of both ends" }
            }
        }

        impl From<u16> for RefusalCode {
            fn from(code: u16) -> Self {
                match code { $($code => Self::$name,)* _ => Self::Unknown(code) }
            }
        }
    };
}

codes! {
    /// The only reason that an unauthenticated peer receives, except [`RefusalCode::Version`].
    Refused = 1, "refused", "check that both ends were given the same job token (TIDEWATER_TOKEN_FILE)";
    /// Numbers: version of the refusing end, version of the other.
    Version = 2, "the two ends speak different protocol versions", "install the same release on both ends";
    /// Numbers: bit mask of the features that one end requires and the other does not offer.
    Features = 3, "a required feature is missing at the other end", "install the same release, built with the same cargo features, on both ends";
    /// Numbers: cluster asked for, cluster here.
    WrongCluster = 4, "the peer belongs to another cluster", "check the coordinator's address (TIDEWATER_COORDINATOR)";
    /// Numbers: epoch asked for, epoch here.
    WrongEpoch = 5, "the peer's view of the membership is out of date", "ask the coordinator for the members and connect again";
    /// Numbers: incarnation that the peer asked for or used, incarnation now; both 0 if not stated.
    WrongIncarnation = 6, "the server was restarted since the peer learned of it", "ask the coordinator for the members and attach again";
    /// The namespace is not served here. The text is its name.
    WrongNamespace = 7, "the namespace is not served here", "check the namespace that the job was started with";
    /// Numbers: wire code of the peer's role.
    RoleNotAllowed = 8, "the role may not connect here", "workers join through the coordinator and attach to servers; check the address";
    /// Numbers: session asked for.
    UnknownSession = 9, "no such session", "attach again";
    /// Numbers: applier asked for, appliers here.
    UnknownApplier = 10, "no such applier", "ask the coordinator for the members and attach again";
    /// Another process has the rank, or the cluster has no such server number. Numbers: the rank or number asked
    /// for.
    RankTaken = 11, "another live process has this rank", "start each rank once";
    /// Numbers: the count that exists or is needed, the limit; for a launch the limits of servers and of workers.
    TooMany = 12, "the limit is reached", "use fewer of them, or raise the limit where it is settable";
    /// No table of this number or name. Numbers: number of the table; 0 if it was asked for by name, or is missing in
    /// the memory of the previous server process.
    UnknownTable = 13, "no such table", "create it, or check the name and the namespace";
    /// Numbers: number of the table.
    TableReleased = 14, "the table was released", "create it again under a name of its own";
    /// The name exists with another definition. Numbers: table id; 0 if the request loads a model.
    TableDiffers = 15, "a table of this name exists with another definition", "open it, or use another name";
    /// The table's definition is invalid.
    BadSpec = 16, "the table's definition is refused", "correct the field that is named";
    /// Numbers: at a barrier the first four of the missing ranks; the seconds of a save's time limit; else 0.
    Timeout = 17, "not everybody came in time", "look at the ranks that are named, or wait longer";
    /// Numbers: bytes asked for; 0 if not known.
    OutOfMemory = 18, "the server's memory is used up", "start servers with more memory, or more servers";
    /// An operating system call failed. Numbers: errno; 0 if not known.
    Io = 19, "an operation of the operating system failed", "see the text";
    /// The request is well formed and invalid in this state. The text explains the numbers, if there are any.
    BadRequest = 20, "the request makes no sense here", "report it: the client and the server disagree";
    /// A worker, server or launched process failed, which the request or the whole job cannot survive. Numbers: the
    /// rank or server number of that process; 0 if not known or if several failed.
    PeerFailed = 21, "another process of the job failed", "look at its output";
    /// The cluster is being shut down.
    ShuttingDown = 22, "the cluster is shutting down", "nothing to do";
    /// Numbers: bytes asked for.
    BadRing = 23, "the ring's size is refused", "use a power of two within the limits";
    /// The transport is not offered here. Numbers: position of the transport in [`super::control::Transport`], from
    /// 0.
    BadTransport = 24, "the transport is not offered here", "choose another with TIDEWATER_TRANSPORT";
    /// A saved model is damaged or of another version.
    BadCheckpoint = 25, "the saved model cannot be read", "see the text; restore it from another copy";
    /// A module does not become a function.
    BadFunction = 26, "the function cannot be loaded", "see the text";
    /// An observer asked for a change. Numbers: number of the observer.
    Observer = 27, "an observer only reads", "join as a worker";
    /// A checkpoint extends an earlier one, and the server has not noted all changes since the earlier one. Numbers:
    /// number of the table.
    ChangesUnknown = 28, "the changes since the checkpoint before are not known", "nothing to do: the next checkpoint holds all rows";
}

impl From<RefusalCode> for u16 {
    fn from(code: RefusalCode) -> Self {
        code.code()
    }
}

/// Typed refusal of a request or connection: a code, numbers that explain it, and a text. The end that refuses makes
/// it; the other end receives it or, where the connection fails before, makes an equal one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Refusal {
    /// Code of the reason.
    pub code: RefusalCode,
    /// Details in words; may be empty.
    pub text: String,
    /// Numbers that the variant of `code` documents, from index 0; the rest is zero.
    pub numbers: [u64; 4],
}

impl Refusal {
    /// Returns a refusal with an empty text; `numbers` are those that the variant of `code` documents.
    pub const fn new(code: RefusalCode, numbers: [u64; 4]) -> Self {
        Self {
            code,
            text: String::new(),
            numbers,
        }
    }

    /// Replaces the refusal's text with `text`, in a form that can be sent: control characters become spaces, and
    /// the text is truncated to at most [`TEXT_BYTES_MAX`] bytes, between characters.
    #[must_use]
    pub fn with_text(mut self, text: impl fmt::Display) -> Self {
        let mut clean: String = text
            .to_string()
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        clean.truncate(clean.floor_char_boundary(TEXT_BYTES_MAX));
        self.text = clean;
        self
    }

    pub(crate) fn validate(&self) -> Result<(), WireError> {
        text_at_most("refusal text", &self.text, TEXT_BYTES_MAX)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code.says())?;
        if !self.text.is_empty() {
            write!(f, ": {}", self.text)?;
        }
        let used = self
            .numbers
            .iter()
            .rposition(|&n| n != 0)
            .map_or(0, |last| last + 1);
        if used > 0 {
            write!(f, " {:?}", &self.numbers[..used])?;
        }
        write!(f, " (code {}; {})", self.code.code(), self.code.remedy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_dense_and_round_trip() {
        for (index, &code) in RefusalCode::ALL.iter().enumerate() {
            assert_eq!(usize::from(code.code()), index + 1, "{code:?}");
            assert_eq!(RefusalCode::from(code.code()), code);
        }
        assert_eq!(RefusalCode::from(999), RefusalCode::Unknown(999));
    }

    #[test]
    fn texts_are_made_fit() {
        let refusal = Refusal::new(RefusalCode::Io, [28, 0, 0, 0])
            .with_text(format!("no\nspace {}", "\u{e9}".repeat(TEXT_BYTES_MAX)));
        refusal.validate().unwrap();
        assert!(refusal.text.starts_with("no space"));
        assert!(refusal.to_string().contains("[28] (code 19;"), "{refusal}");
    }
}

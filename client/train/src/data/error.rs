//! Errors of training files, with their remedies.

use std::io;
use std::path::PathBuf;

use tidewater_protocol::limits;

/// Why a training file was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The system refused an operation on the file.
    #[error("{}: cannot {operation}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The operation that failed.
        operation: &'static str,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The path is not a regular file: it has no size to split by.
    #[error(
        "{}: not a regular file; workers split a file by its size, so write pipes to a file first",
        path.display()
    )]
    NotAFile {
        /// Path that was given.
        path: PathBuf,
    },
    /// A line of the file is malformed.
    #[error("{}:{line}:{}: {fault}", path.display(), fault.column)]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line number from 1, counted from the start of the file whichever part was being read.
        line: u64,
        /// Fault, and its column in the line.
        fault: LineFault,
    },
    /// The file became shorter while it was read.
    #[error(
        "{}: ends at byte {read_bytes}, but had {size_bytes} bytes when it was opened; \
         start again when nobody writes to it",
        path.display()
    )]
    Shrunk {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file at the start, in bytes.
        size_bytes: u64,
        /// Offset at which it ended.
        read_bytes: u64,
    },
    /// One worker's part holds too many rows.
    #[error("{}: part {part} of {parts} has more than {limit} rows; use more workers", path.display())]
    TooManyRows {
        /// Path of the file.
        path: PathBuf,
        /// Number of the part, from 0.
        part: u32,
        /// Number of parts of the file.
        parts: u32,
        /// Most rows of a part.
        limit: usize,
    },
    /// The requested part does not exist.
    #[error("there is no part {part} of {parts}; parts count from 0")]
    NoSuchPart {
        /// Number of the requested part.
        part: u32,
        /// Number of parts of the file.
        parts: u32,
    },
    /// A row added by a program breaks a rule of [`Dataset`](super::Dataset).
    #[error("row {row}: {problem}")]
    Row {
        /// Number of the row in the set, from 0.
        row: usize,
        /// The rule that it breaks.
        problem: LineProblem,
    },
}

/// A line's fault: column, offending text, expected text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("found `{found}`: {problem}")]
pub struct LineFault {
    /// Byte of the line, from 1, at which the offending text starts.
    pub column: usize,
    /// The offending text: escaped, and cut to [`LineFault::FOUND_BYTES_MAX`] bytes.
    pub found: String,
    /// The rule that the text breaks.
    pub problem: LineProblem,
}

impl LineFault {
    /// Most bytes of offending text shown: enough to find it, short enough for a log line.
    pub const FOUND_BYTES_MAX: usize = 40;

    pub(crate) fn new(column: usize, text: &[u8], problem: LineProblem) -> Self {
        let shown = &text[..text.len().min(Self::FOUND_BYTES_MAX)];
        let mut found = shown.escape_ascii().to_string();
        if shown.len() < text.len() {
            found.push_str("...");
        }
        Self {
            column,
            found,
            problem,
        }
    }
}

/// The rules that a line can break. Each text ends with the expected form or the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineProblem {
    /// The label is not a finite number.
    #[error("a line starts with its label, a finite number such as -1, 0, 1 or a class number")]
    Label,
    /// The label is not one of two classes.
    #[error(
        "labels of a two-class set are -1, 0 or +1; for a set of more classes say which class \
         is the positive one"
    )]
    LabelNotBinary,
    /// A LIBSVM feature has no colon.
    #[error("expected `index:value`; a file of bare indices is of format dummy")]
    NoColon,
    /// A dummy feature has a colon.
    #[error(
        "expected an index alone (its value is 1); a file of `index:value` is of format libsvm"
    )]
    Colon,
    /// The index is not a sequence of digits.
    #[error("expected a feature index, digits only")]
    Index,
    /// A file that counts from 1 has an index 0.
    #[error("LIBSVM indices begin at 1; read a file that begins at 0 as format libsvm0")]
    IndexZero,
    /// The key would not be below the limit.
    #[error(
        "the feature index is too large; 0-based indices are below 2^63: hash or renumber them"
    )]
    IndexTooLarge,
    /// A feature occurs twice in a row.
    #[error("this feature is given twice in one row; keep one of them")]
    Duplicate,
    /// Keys of a row are not ascending (rows added by a program; files are sorted when read).
    #[error("keys of a row ascend strictly; sort them and combine duplicates")]
    NotAscending,
    /// Keys and values differ in number.
    #[error("a row has one value for each key")]
    KeysValuesMismatch,
    /// The value is no finite 32-bit number.
    #[error("expected a finite number (at most 3.4e38) as the feature's value")]
    Value,
    /// The group number is not a sequence of digits.
    #[error("expected `qid:` and digits; they are ignored, but must be a number")]
    Qid,
    /// The line exceeds the length limit.
    #[error(
        "the line is longer than {} bytes; is this a text file of one row a line?",
        limits::DATA_LINE_BYTES_MAX
    )]
    LineTooLong,
    /// The row has too many features.
    #[error(
        "the row has more than {} features; drop or hash the rare ones",
        limits::DATA_ROW_FEATURES_MAX
    )]
    TooManyFeatures,
}

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
    #[error("{}:{line}:{}: {fault} (byte {offset})", path.display(), fault.column)]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line number from 1, counted from the start of the file whichever part was being read.
        line: u64,
        /// Offset of the line in the file; in the decompressed bytes of a compressed one.
        offset: u64,
        /// Fault, and its column in the line.
        fault: LineFault,
    },
    /// A record of a RecordIO file, or of a source in memory, is malformed.
    #[error("{}: record {record} at byte {offset}, column {}: {fault}", path.display(), fault.column)]
    Record {
        /// Path of the file, or name of the source.
        path: PathBuf,
        /// Number of the record from 0.
        record: u64,
        /// Offset of the record, or of the chunk that contains it.
        offset: u64,
        /// Fault, and its column in the record.
        fault: LineFault,
    },
    /// The bytes between records are damaged: where the next record starts is unknown.
    #[error("{}: damaged at byte {offset}: {fault}; copy the file again from where it was written", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Offset of the damage, in the decompressed bytes of a compressed file.
        offset: u64,
        /// Rule of the format that does not hold.
        fault: FileFault,
    },
    /// Too many records are malformed.
    #[error(
        "{bad} of {records} records are malformed, more than the ratio {ratio} that is allowed; the first: {first}"
    )]
    TooManyBad {
        /// Number of malformed records.
        bad: u64,
        /// Number of records read, malformed ones included.
        records: u64,
        /// Largest ratio that is allowed.
        ratio: f64,
        /// The first malformed record.
        first: Box<DataError>,
    },
    /// A directory or pattern has no file.
    #[error("{}: no file; files with names that begin with `.` or `_` do not count", path.display())]
    NoFiles {
        /// Directory or pattern without a file.
        path: PathBuf,
    },
    /// The pattern that names files is malformed.
    #[error("{}: not a pattern: {what}; `*`, `?` and `[...]` stand for parts of a name", path.display())]
    Pattern {
        /// Pattern as it was given.
        path: PathBuf,
        /// The rule that it breaks.
        what: &'static str,
    },
    /// CSV files have no schema, or other files have one.
    #[error("{}: {}", path.display(), match csv {
        true => "a CSV file needs a schema, which names its columns and the label",
        false => "a schema is for format csv",
    })]
    Schema {
        /// Path of the file.
        path: PathBuf,
        /// Whether the format is CSV.
        csv: bool,
    },
    /// The file that rows are moved to failed.
    #[error(
        "cannot {operation} the temporary file of the rows: {source}; free space, or choose another TMPDIR"
    )]
    Spill {
        /// The operation that failed.
        operation: &'static str,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The file became shorter while it was read.
    #[error(
        "{}: ends at byte {read_bytes}, but had {size_bytes} bytes when it was opened; \
         start again when no process writes to it",
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
    /// The requested shard is none of the source's.
    #[error("{}: no shard {first} to {end} of this source; open its shards or parts of them", path.display())]
    NoSuchShard {
        /// Path of the requested shard.
        path: PathBuf,
        /// Start of the requested shard.
        first: u64,
        /// End of the requested shard.
        end: u64,
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

/// The rules of a file format that a damaged file breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileFault {
    /// A record or chunk does not begin with the number of its format.
    #[error("expected the number {expected:#x}, found {found:#x}")]
    Magic {
        /// Number that the format begins with.
        expected: u32,
        /// The bytes in its place.
        found: u32,
    },
    /// The file ends within a record or chunk.
    #[error("the file ends within it")]
    Truncated,
    /// The parts of a record are not in order.
    #[error("a part of a record is out of order (flag {0})")]
    Part(u32),
    /// The payload does not have its checksum.
    #[error("the checksum is {found:#x}, the header has {expected:#x}")]
    Checksum {
        /// Checksum in the header.
        expected: u32,
        /// Checksum of the bytes.
        found: u32,
    },
    /// The compressor of a chunk is unknown.
    #[error("compressor {0} is unknown; there are 0 (none), 1 (snappy) and 2 (gzip)")]
    Compressor(u32),
    /// The payload cannot be decompressed.
    #[error("the payload cannot be decompressed")]
    Decompress,
    /// Records of a chunk do not fill it.
    #[error("its {records} records end at byte {end} of {bytes}")]
    Records {
        /// Number of records in the header.
        records: u32,
        /// Byte of the payload at which they end.
        end: usize,
        /// Size of the payload, in bytes.
        bytes: usize,
    },
    /// A record or chunk is longer than the limit.
    #[error("it has more than {limit} bytes")]
    TooLong {
        /// Largest number of bytes.
        limit: usize,
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
    /// The mapping makes no finite number of the label.
    #[error("the label is not a finite number once mapped; look at the number of the mapping")]
    LabelNotMapped,
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
    /// A dense row has another number of values than the first one.
    #[error("the row has {values} values, the rows before have {width}")]
    Width {
        /// Number of values of the row.
        values: usize,
        /// Number of values of the first row that was read.
        width: usize,
    },
    /// A CSV record has another number of fields than there are columns.
    #[error("the record has {fields} fields, and there are {columns} columns")]
    FieldCount {
        /// Number of fields of the record.
        fields: usize,
        /// Number of columns of the schema or the header.
        columns: usize,
    },
    /// The number of the row does not fit 32 bits.
    #[error("more rows than numbers of 32 bits; divide them among more workers")]
    TooManyRows,
    /// The bytes are not one CSV record.
    #[error("this is not one CSV record; is a quote left open?")]
    Csv,
    /// The header lacks a column of the schema.
    #[error("the schema has this column, and the header does not")]
    ColumnMissing,
    /// The schema lacks a column of the header.
    #[error("the schema has no such column; name it, or add `*:skip`")]
    ColumnUnknown,
    /// The header has a column twice.
    #[error("the header has this column twice")]
    ColumnTwice,
    /// The header is not that of the first file.
    #[error("the header differs from that of the first file; files of one set have equal columns")]
    HeaderDiffers,
}

//! Reads files into [`Dataset`]s.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;

use tidewater_protocol::limits;

use super::dataset::Dataset;
use super::error::{DataError, LineFault, LineProblem};
use super::line::{Format, LabelMap, LineParser, first_feature_has_colon};
use super::split::{LineReader, RawLine, byte_range, count_newlines};

/// Bytes of a read: large enough for a parallel file system, small compared with the resulting rows.
const READ_BYTES: usize = 256 << 10;

/// Options of reading a file.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ReadOptions {
    /// Format of the file; `None` means detected by [`detect_format`].
    pub format: Option<Format>,
    /// Mapping of the labels.
    pub labels: LabelMap,
}

/// Reads a whole file. See [`read_part`].
///
/// # Errors
/// As [`read_part`].
pub fn read(path: &Path, options: &ReadOptions) -> Result<Dataset, DataError> {
    read_part(path, 0, 1, options)
}

/// Reads the rows with lines that start in part `part` of `parts` equal byte ranges of a file, in file
/// order. All parts together are the whole file, each line once; a part may be empty.
///
/// Costs one pass over the part and 12 bytes of memory for each of its features. A fault costs one more
/// pass over the bytes before it, to number its line.
///
/// # Errors
/// The first bad line with its number, counted from the start of the file; any error of the system; a
/// path that is no regular file; a part that does not exist.
pub fn read_part(
    path: &Path,
    part: u32,
    parts: u32,
    options: &ReadOptions,
) -> Result<Dataset, DataError> {
    if part >= parts {
        return Err(DataError::NoSuchPart { part, parts });
    }
    let (file, size) = open(path)?;
    let format = match options.format {
        Some(format) => format,
        None => detect_format(path)?,
    };
    let range = byte_range(size, part, parts);
    let mut lines = line_reader(path, file, range.clone())?;
    let mut parser = LineParser::new(format, options.labels);
    let mut data = Dataset::new();
    while let Some(line) = lines.next_line().map_err(|e| io_error(path, "read", e))? {
        let offset = line.offset;
        let is_row = parse(&mut parser, &line).map_err(|fault| bad_line(path, offset, fault))?;
        if !is_row {
            continue;
        }
        if data.rows() == limits::DATA_PART_ROWS_MAX {
            return Err(DataError::TooManyRows {
                path: path.to_owned(),
                part,
                parts,
                limit: limits::DATA_PART_ROWS_MAX,
            });
        }
        data.push_checked(parser.label(), parser.keys(), parser.values());
    }
    if lines.position() < range.end {
        return Err(DataError::Shrunk {
            path: path.to_owned(),
            size_bytes: size,
            read_bytes: lines.position(),
        });
    }
    data.shrink();
    Ok(data)
}

/// Detects a file's format by its first feature: with a colon [`Format::Libsvm`], without
/// [`Format::Dummy`]. A file without features reads alike in both and counts as LIBSVM. Indices that
/// begin at 0 cannot be detected; [`Format::LibsvmZeroBased`] must be requested.
///
/// Reads only the first [`limits::DATA_DETECT_BYTES_MAX`] bytes, whatever part is read afterwards, so
/// that all workers find the same.
///
/// # Errors
/// Any error of the system; a path that is no regular file.
pub fn detect_format(path: &Path) -> Result<Format, DataError> {
    let (file, size) = open(path)?;
    let mut lines = line_reader(path, file, 0..size.min(limits::DATA_DETECT_BYTES_MAX))?;
    while let Some(line) = lines.next_line().map_err(|e| io_error(path, "read", e))? {
        match first_feature_has_colon(line.text) {
            Some(true) => return Ok(Format::Libsvm),
            Some(false) => return Ok(Format::Dummy),
            // Reading the file reports the line and its number.
            None if line.too_long => break,
            None => {}
        }
    }
    Ok(Format::Libsvm)
}

fn parse(parser: &mut LineParser, line: &RawLine<'_>) -> Result<bool, LineFault> {
    if line.too_long {
        return Err(LineFault::new(1, line.text, LineProblem::LineTooLong));
    }
    parser.parse(line.text)
}

/// Opens a regular file; returns it with its size. Checks the type first: opening a pipe would wait for
/// a writer.
fn open(path: &Path) -> Result<(File, u64), DataError> {
    let metadata = fs::metadata(path).map_err(|e| io_error(path, "open", e))?;
    if !metadata.is_file() {
        return Err(DataError::NotAFile {
            path: path.to_owned(),
        });
    }
    let file = File::open(path).map_err(|e| io_error(path, "open", e))?;
    Ok((file, metadata.len()))
}

fn line_reader(
    path: &Path,
    file: File,
    range: std::ops::Range<u64>,
) -> Result<LineReader<BufReader<File>>, DataError> {
    let source = BufReader::with_capacity(READ_BYTES, file);
    LineReader::new(source, range, limits::DATA_LINE_BYTES_MAX)
        .map_err(|e| io_error(path, "seek in", e))
}

/// Makes the error of a line that starts at `offset`.
fn bad_line(path: &Path, offset: u64, fault: LineFault) -> DataError {
    let counted = File::open(path)
        .and_then(|file| count_newlines(BufReader::with_capacity(READ_BYTES, file), offset));
    match counted {
        Ok(before) => DataError::Line {
            path: path.to_owned(),
            line: before + 1,
            fault,
        },
        Err(e) => io_error(path, "number the lines of", e),
    }
}

fn io_error(path: &Path, operation: &'static str, source: io::Error) -> DataError {
    DataError::Io {
        path: path.to_owned(),
        operation,
        source,
    }
}

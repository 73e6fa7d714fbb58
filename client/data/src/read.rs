//! Reads the rows of a source.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use tidewater_protocol::limits;

use super::csv::{CsvParser, Schema};
use super::dataset::{Dataset, Row};
use super::error::{DataError, LineFault};
use super::line::{Format, LabelMap, LineParser, first_feature_has_colon};
use super::source::{DataSource, FileSource, Records, Shard};

/// Options of reading files.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReadOptions {
    /// Format of the records; `None` means CSV with a schema, and otherwise detected by [`detect_format`].
    pub format: Option<Format>,
    /// Mapping of the labels.
    pub labels: LabelMap,
    /// Columns of CSV files.
    pub schema: Option<Schema>,
    /// What a malformed record leads to.
    pub bad_records: BadRecords,
}

/// What a malformed record leads to. Damage between records is always an error.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum BadRecords {
    /// The first one is an error.
    #[default]
    Fail,
    /// They are left out and counted. A part of which a larger ratio is malformed is an error, at its end.
    Skip {
        /// Largest ratio of malformed records, 0 to 1.
        ratio: f64,
    },
}

/// Error of a text that is no policy for malformed records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no policy; use fail, or skip:RATIO with a ratio from 0 to 1, for example skip:0.001"
)]
pub struct UnknownPolicy(pub String);

impl FromStr for BadRecords {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let unknown = || UnknownPolicy(text.to_owned());
        if text == "fail" {
            return Ok(Self::Fail);
        }
        let ratio = text.strip_prefix("skip:").and_then(|r| r.parse().ok());
        match ratio {
            Some(ratio) if (0.0..=1.0).contains(&ratio) => Ok(Self::Skip { ratio }),
            _ => Err(unknown()),
        }
    }
}

/// Parser of one format.
#[derive(Debug)]
enum RowParser {
    Line(LineParser),
    Csv(Box<CsvParser>),
}

impl RowParser {
    fn parse(&mut self, record: &[u8]) -> Result<bool, LineFault> {
        match self {
            Self::Line(parser) => parser.parse(record),
            Self::Csv(parser) => parser.parse(record),
        }
    }

    /// Number of values of each record; `None` for sparse formats, and before the first record.
    fn width(&self) -> Option<u64> {
        match self {
            Self::Line(parser) => parser.width(),
            Self::Csv(parser) => parser.width(),
        }
    }

    fn row(&self) -> Row<'_> {
        let (label, keys, values) = match self {
            Self::Line(parser) => (parser.label(), parser.keys(), parser.values()),
            Self::Csv(parser) => (parser.label(), parser.keys(), parser.values()),
        };
        Row {
            label,
            keys,
            values,
        }
    }
}

/// A record that [`RowReader::next_record`] moved to.
#[derive(Debug)]
pub enum Record {
    /// A row, which [`RowReader::row`] returns.
    Row,
    /// A malformed record, which the policy leaves out of the rows.
    Malformed(DataError),
}

/// Cursor over the rows of shards, with one row in memory.
pub struct RowReader {
    source: Arc<dyn DataSource>,
    shards: std::vec::IntoIter<Shard>,
    current: Option<Box<dyn Records>>,
    parser: RowParser,
    bad_records: BadRecords,
    records: u64,
    bad: u64,
    first_bad: Option<Box<DataError>>,
}

impl std::fmt::Debug for RowReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let source = &self.source;
        f.debug_struct("RowReader")
            .field("source", source)
            .finish_non_exhaustive()
    }
}

impl RowReader {
    /// Makes a reader of `shards` of a source.
    ///
    /// # Errors
    /// CSV without a schema, a schema without CSV, and the errors of [`detect_format`].
    pub fn new(
        source: Arc<dyn DataSource>,
        shards: Vec<Shard>,
        options: &ReadOptions,
    ) -> Result<Self, DataError> {
        let format = match (options.format, &options.schema) {
            (Some(format), _) => format,
            (None, Some(_)) => Format::Csv,
            (None, None) => detect(&*source)?,
        };
        let parser = match (format, &options.schema) {
            (Format::Csv, Some(schema)) => {
                RowParser::Csv(Box::new(CsvParser::new(schema.clone(), options.labels)))
            }
            (Format::Csv, None) | (_, Some(_)) => {
                // A source of no shards has no path to name.
                let path = source
                    .shards()
                    .first()
                    .map(|shard| shard.path.to_path_buf());
                return Err(DataError::Schema {
                    path: path.unwrap_or_default(),
                    csv: format == Format::Csv,
                });
            }
            (format, None) => RowParser::Line(LineParser::new(format, options.labels)),
        };
        Ok(Self {
            source,
            shards: shards.into_iter(),
            current: None,
            parser,
            bad_records: options.bad_records,
            records: 0,
            bad: 0,
            first_bad: None,
        })
    }

    /// Moves to the next row; `false` after the last one.
    ///
    /// # Errors
    /// A malformed record, too many of them at the end, and all errors of [`Records::advance`].
    pub fn advance(&mut self) -> Result<bool, DataError> {
        loop {
            match self.step(|_, _| ())? {
                Step::End => return Ok(false),
                Step::Row => return Ok(true),
                Step::Malformed(()) => {}
            }
        }
    }

    /// Moves to the next record, also to a malformed one that the policy leaves out; `None` after the last one.
    /// A malformed record costs another pass over a text file, which numbers its line.
    ///
    /// # Errors
    /// As [`RowReader::advance`].
    pub fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        Ok(match self.step(|records, fault| records.fault(fault))? {
            Step::End => None,
            Step::Row => Some(Record::Row),
            Step::Malformed(fault) => Some(Record::Malformed(fault)),
        })
    }

    /// Moves to the next record that holds or should hold a row. `name` makes the result of a fault.
    fn step<F>(
        &mut self,
        name: impl FnOnce(&dyn Records, LineFault) -> F,
    ) -> Result<Step<F>, DataError> {
        loop {
            let Some(records) = &mut self.current else {
                match self.shards.next() {
                    Some(shard) => self.current = Some(self.open(&shard)?),
                    None => return self.check().map(|()| Step::End),
                }
                continue;
            };
            if !records.advance()? {
                self.current = None;
                continue;
            }
            match self.parser.parse(records.bytes()) {
                Ok(false) => {}
                Ok(true) => {
                    self.records += 1;
                    return Ok(Step::Row);
                }
                Err(fault) => {
                    if self.bad_records == BadRecords::Fail {
                        return Err(records.fault(fault));
                    }
                    if self.first_bad.is_none() {
                        self.first_bad = Some(Box::new(records.fault(fault.clone())));
                    }
                    self.records += 1;
                    self.bad += 1;
                    return Ok(Step::Malformed(name(&**records, fault)));
                }
            }
        }
    }

    /// Opens a shard behind the header of its file.
    fn open(&mut self, shard: &Shard) -> Result<Box<dyn Records>, DataError> {
        let RowParser::Csv(parser) = &mut self.parser else {
            return self.source.open(shard);
        };
        if !parser.has_header() {
            return self.source.open(shard);
        }
        let file = Shard {
            first: 0,
            ..shard.clone()
        };
        let mut records = self.source.open(&file)?;
        if records.advance()? {
            let read = parser.read_header(records.bytes());
            read.map_err(|fault| records.fault(fault))?;
        }
        match shard.first {
            0 => Ok(records),
            _ => self.source.open(shard),
        }
    }

    fn check(&mut self) -> Result<(), DataError> {
        let (BadRecords::Skip { ratio }, Some(first)) = (self.bad_records, &mut self.first_bad)
        else {
            return Ok(());
        };
        if self.bad as f64 <= ratio * self.records as f64 {
            return Ok(());
        }
        let path = std::path::PathBuf::new();
        Err(DataError::TooManyBad {
            bad: self.bad,
            records: self.records,
            ratio,
            first: std::mem::replace(first, Box::new(DataError::NoFiles { path })),
        })
    }

    /// The row that [`RowReader::advance`] moved to.
    pub fn row(&self) -> Row<'_> {
        self.parser.row()
    }

    /// Number of values of each record; `None` for sparse formats, and before the first record.
    pub fn width(&self) -> Option<u64> {
        self.parser.width()
    }

    /// Number of malformed records that were left out so far.
    pub fn bad(&self) -> u64 {
        self.bad
    }
}

/// Result of a move to the next record.
enum Step<F> {
    End,
    Row,
    Malformed(F),
}

/// Reads all rows of a path. See [`read_part`].
///
/// # Errors
/// As [`read_part`].
pub fn read(path: &Path, options: &ReadOptions) -> Result<Dataset, DataError> {
    read_part(path, 0, 1, options)
}

/// Reads the rows of part `part` of `parts` of a file, a directory or a pattern, in the order of files and records.
/// All parts together are all rows, each once; a part may be empty. See [`FileSource::new`] and
/// [`DataSource::part`].
///
/// Costs one pass over the part and 12 bytes of memory for each of its features. A compressed file, and a CSV file
/// with quotes, are read from their start. A fault costs one more pass over the bytes before it, to number its line.
///
/// # Errors
/// A malformed record with its file, number, offset and column; any error of the system; a path that is no regular
/// file; a part that does not exist.
pub fn read_part(
    path: &Path,
    part: u32,
    parts: u32,
    options: &ReadOptions,
) -> Result<Dataset, DataError> {
    if part >= parts {
        return Err(DataError::NoSuchPart { part, parts });
    }
    let source = Arc::new(FileSource::new(path, options.schema.as_ref())?);
    let shards = source.part(part, parts)?;
    let mut rows = RowReader::new(source, shards, options)?;
    let mut data = Dataset::new();
    while rows.advance()? {
        if data.rows() == limits::DATA_PART_ROWS_MAX {
            return Err(DataError::TooManyRows {
                path: path.to_owned(),
                part,
                parts,
                limit: limits::DATA_PART_ROWS_MAX,
            });
        }
        let row = rows.row();
        data.push_checked(row.label, row.keys, row.values);
    }
    data.finish(rows.bad(), rows.width());
    Ok(data)
}

/// Detects the format of a path's files by their first feature: with a colon [`Format::Libsvm`], without
/// [`Format::Dummy`]. Files without features read alike in both and count as LIBSVM. All other formats must be
/// requested.
///
/// Reads only the first [`limits::DATA_DETECT_BYTES_MAX`] bytes of records, whatever part is read afterwards, so
/// that all workers find the same.
///
/// # Errors
/// Those of [`FileSource::new`] and of [`Records::advance`].
pub fn detect_format(path: &Path) -> Result<Format, DataError> {
    detect(&FileSource::new(path, None)?)
}

fn detect(source: &dyn DataSource) -> Result<Format, DataError> {
    let mut left = limits::DATA_DETECT_BYTES_MAX;
    for shard in source.shards() {
        let mut records = source.open(shard)?;
        while records.advance()? {
            let record = records.bytes();
            // Reading the file reports a line that is too long, and its number.
            if record.len() > limits::DATA_LINE_BYTES_MAX {
                return Ok(Format::Libsvm);
            }
            match first_feature_has_colon(record) {
                Some(true) => return Ok(Format::Libsvm),
                Some(false) => return Ok(Format::Dummy),
                None => {}
            }
            match left.checked_sub(record.len() as u64 + 1) {
                Some(rest) => left = rest,
                None => return Ok(Format::Libsvm),
            }
        }
    }
    Ok(Format::Libsvm)
}

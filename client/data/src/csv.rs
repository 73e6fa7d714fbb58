//! CSV: the schema of a file, where its records end, and their fields as rows.
//!
//! A schema is text of items between blanks, for example
//! `header income:label id:skip city:category *:number` or `y:label x:number*123`.

use std::collections::HashMap;
use std::str::FromStr;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder, Terminator};
use tidewater_protocol::layout::hash::H64;
use tidewater_protocol::limits;

use super::error::{LineFault, LineProblem};
use super::line::{LabelMap, one_byte, parse_f32, trim_blanks};

/// Role of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// The label: a number.
    Label,
    /// A feature that is a number. 0 and an empty field have no entry in the row.
    Number,
    /// A feature that is text. Each value of the column is a key of its own, a hash of the column's name and
    /// the value; the entry is 1. An empty field has no entry.
    Category,
    /// A column that is not read.
    Skip,
}

/// A column of a [`Schema`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name of the column, as in the header if there is one.
    pub name: String,
    /// Role of the column.
    pub kind: ColumnKind,
}

/// Columns, delimiter and quote of CSV files.
///
/// Items of its text, between blanks or line ends:
/// - `NAME:TYPE` is a column, with the types `label`, `number`, `category` and `skip`. One column is the label.
/// - `NAME:TYPE*N` is N columns, named NAME0 to NAME(N-1).
/// - `header`: the first record of each file has the names of the columns, in any order.
/// - `*:TYPE`, with `header`: the columns that the schema does not name. Otherwise they are an error.
/// - `delimiter=C` is the byte between fields [default: `,`]; `delimiter=tab` and `delimiter=space` too.
/// - `quote=C` is the quote [default: `"`]; `quote=none`: fields are not quoted, and a line is a record.
///
/// Numbers have keys from 0 in the order of the schema, and columns of `*` after them in that of the file.
///
/// ```
/// let schema: tidewater_data::Schema = "header income:label id:skip city:category *:number".parse()?;
/// assert_eq!(schema.columns().len(), 3);
/// # Ok::<(), tidewater_data::SchemaError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    delimiter: u8,
    quote: Option<u8>,
    header: bool,
    columns: Vec<Column>,
    others: Option<ColumnKind>,
}

/// Reason for which a text is no schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// An item is none of the known ones.
    #[error(
        "`{0}` is no item of a schema; there are NAME:TYPE, NAME:TYPE*N, *:TYPE, header, delimiter=C, quote=C, \
         quote=none, and the types are label, number, category and skip"
    )]
    Item(String),
    /// The schema has no label, or several.
    #[error("the schema has {0} columns of the type label; it has one")]
    Labels(usize),
    /// Two columns have one name.
    #[error("the schema has the column `{0}` twice")]
    Twice(String),
    /// Columns are left open, and files have no header that would name them.
    #[error("`*:TYPE` is for files with a header; add `header`, or name the columns")]
    OthersWithoutHeader,
    /// The schema has too many columns.
    #[error("the schema has more than {max} columns", max = limits::DATA_ROW_FEATURES_MAX)]
    TooManyColumns,
    /// Delimiter and quote are one byte, or a line end.
    #[error("delimiter and quote differ, and neither is a line end")]
    Delimiter,
}

impl Schema {
    /// The named columns, in the order of the schema.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Whether the first record of a file names its columns.
    pub fn header(&self) -> bool {
        self.header
    }

    /// How records end; `None` if each line is one.
    pub(crate) fn quoting(&self) -> Option<Quoting> {
        Some(Quoting {
            quote: self.quote?,
            delimiter: self.delimiter,
        })
    }

    fn add(&mut self, item: &str) -> Result<(), SchemaError> {
        let wrong = || SchemaError::Item(item.to_owned());
        if item == "header" {
            self.header = true;
        } else if let Some(text) = item.strip_prefix("delimiter=") {
            self.delimiter = one_byte(text).ok_or_else(wrong)?;
        } else if let Some(text) = item.strip_prefix("quote=") {
            self.quote = match text {
                "none" => None,
                text => Some(one_byte(text).ok_or_else(wrong)?),
            };
        } else {
            let (name, kind) = item.rsplit_once(':').ok_or_else(wrong)?;
            let (kind, count) = match kind.split_once('*') {
                None => (kind, None),
                Some((kind, count)) => (kind, Some(count.parse::<usize>().map_err(|_| wrong())?)),
            };
            let kind = kind_of(kind).ok_or_else(wrong)?;
            match (name, count) {
                ("", _) | ("*", Some(_)) => return Err(wrong()),
                ("*", None) => self.others = Some(kind),
                (name, None) => self.column(name.to_owned(), kind)?,
                (name, Some(count)) => {
                    for number in 0..count {
                        self.column(format!("{name}{number}"), kind)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn column(&mut self, name: String, kind: ColumnKind) -> Result<(), SchemaError> {
        if self.columns.len() == limits::DATA_ROW_FEATURES_MAX {
            return Err(SchemaError::TooManyColumns);
        }
        self.columns.push(Column { name, kind });
        Ok(())
    }

    fn check(&self) -> Result<(), SchemaError> {
        let labels = self.columns.iter().filter(|c| c.kind == ColumnKind::Label);
        let labels = labels.count() + usize::from(self.others == Some(ColumnKind::Label));
        if labels != 1 || self.others == Some(ColumnKind::Label) {
            return Err(SchemaError::Labels(labels));
        }
        let mut names: Vec<&str> = self.columns.iter().map(|c| c.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(SchemaError::Twice(twice[0].to_owned()));
        }
        if self.others.is_some() && !self.header {
            return Err(SchemaError::OthersWithoutHeader);
        }
        let ends = |byte| byte == b'\n' || byte == b'\r';
        if self.quote == Some(self.delimiter)
            || ends(self.delimiter)
            || self.quote.is_some_and(ends)
        {
            return Err(SchemaError::Delimiter);
        }
        Ok(())
    }
}

impl FromStr for Schema {
    type Err = SchemaError;

    fn from_str(text: &str) -> Result<Self, SchemaError> {
        let mut schema = Self {
            delimiter: b',',
            quote: Some(b'"'),
            header: false,
            columns: Vec::new(),
            others: None,
        };
        for item in text.split_whitespace() {
            schema.add(item)?;
        }
        schema.check()?;
        Ok(schema)
    }
}

fn kind_of(text: &str) -> Option<ColumnKind> {
    Some(match text {
        "label" => ColumnKind::Label,
        "number" => ColumnKind::Number,
        "category" => ColumnKind::Category,
        "skip" => ColumnKind::Skip,
        _ => return None,
    })
}

/// Quote and delimiter of records that may contain line ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quoting {
    quote: u8,
    delimiter: u8,
}

/// Finds the newline that ends a record: the first one outside of quotes (RFC 4180).
#[derive(Debug)]
pub(crate) struct RecordEnd {
    quoting: Quoting,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    FieldStart,
    Unquoted,
    Quoted,
    /// After a quote within quotes: it ends the quotes, or the next quote makes it one of the text.
    AfterQuote,
}

impl RecordEnd {
    pub(crate) fn new(quoting: Quoting) -> Self {
        Self {
            quoting,
            state: State::FieldStart,
        }
    }

    /// Prepares for the next record.
    pub(crate) fn restart(&mut self) {
        self.state = State::FieldStart;
    }

    /// Whether the bytes are one record: no newline outside of quotes, and none of them open.
    fn is_record(&mut self, bytes: &[u8]) -> bool {
        self.restart();
        self.find(bytes).is_none() && !matches!(self.state, State::Quoted)
    }

    /// Position of the newline that ends the record, `None` if it does not end in `chunk`.
    pub(crate) fn find(&mut self, chunk: &[u8]) -> Option<usize> {
        for (at, &byte) in chunk.iter().enumerate() {
            let quote = byte == self.quoting.quote;
            self.state = match self.state {
                State::Quoted if quote => State::AfterQuote,
                State::Quoted => State::Quoted,
                _ if byte == b'\n' => return Some(at),
                State::FieldStart | State::AfterQuote if quote => State::Quoted,
                _ if byte == self.quoting.delimiter => State::FieldStart,
                _ => State::Unquoted,
            };
        }
        None
    }
}

/// Use of a field of a record.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Slot {
    Label,
    Number(u64),
    /// Index of the column in the parser's names.
    Category(usize),
    Skip,
}

/// Keys of categories have this bit; those of numbers are small.
const CATEGORY_BIT: u64 = limits::DATA_KEY_LIMIT >> 1;

/// Parses CSV records into rows, with buffers that it keeps.
#[derive(Debug)]
pub(crate) struct CsvParser {
    schema: Schema,
    /// Position in the schema of each name.
    index: HashMap<String, usize>,
    labels: LabelMap,
    reader: Reader,
    record_end: Option<RecordEnd>,
    slots: Vec<Slot>,
    names: Vec<String>,
    /// Header of the first file, which the others repeat.
    header: Option<Vec<u8>>,
    fields: Vec<u8>,
    ends: Vec<usize>,
    entries: Vec<(u64, f32)>,
    label: f32,
    keys: Vec<u64>,
    values: Vec<f32>,
}

impl CsvParser {
    pub(crate) fn new(schema: Schema, labels: LabelMap) -> Self {
        let mut builder = ReaderBuilder::new();
        builder
            .delimiter(schema.delimiter)
            .terminator(Terminator::Any(b'\n'))
            .quoting(schema.quote.is_some())
            .quote(schema.quote.unwrap_or(b'"'));
        let columns = schema.columns.clone();
        let names = columns.iter().enumerate();
        let mut parser = Self {
            index: names.map(|(at, c)| (c.name.clone(), at)).collect(),
            reader: builder.build(),
            record_end: schema.quoting().map(RecordEnd::new),
            slots: Vec::new(),
            names: Vec::new(),
            header: None,
            fields: Vec::new(),
            ends: Vec::new(),
            entries: Vec::new(),
            label: 0.0,
            keys: Vec::new(),
            values: Vec::new(),
            labels,
            schema,
        };
        parser.assign(columns);
        parser
    }

    /// Whether the first record of a file is a header.
    pub(crate) fn has_header(&self) -> bool {
        self.schema.header
    }

    /// Reads the header of a file.
    ///
    /// # Errors
    /// A column of the schema that it lacks; a column that the schema does not know; a header that differs from
    /// that of an earlier file.
    pub(crate) fn read_header(&mut self, record: &[u8]) -> Result<(), LineFault> {
        if let Some(first) = &self.header {
            return match first == record {
                true => Ok(()),
                false => Err(LineFault::new(1, record, LineProblem::HeaderDiffers)),
            };
        }
        let count = self.split(record)?;
        let mut columns = Vec::with_capacity(count);
        let mut seen = vec![false; self.schema.columns.len()];
        for field in 0..count {
            let text = trim_blanks(self.field(field));
            let name = String::from_utf8_lossy(text).into_owned();
            let fault = |problem| LineFault::new(field + 1, text, problem);
            let kind = match (self.index.get(&name), self.schema.others) {
                (Some(&at), _) if std::mem::replace(&mut seen[at], true) => {
                    return Err(fault(LineProblem::ColumnTwice));
                }
                (Some(&at), _) => self.schema.columns[at].kind,
                (None, Some(kind)) => kind,
                (None, None) => return Err(fault(LineProblem::ColumnUnknown)),
            };
            columns.push(Column { name, kind });
        }
        if let Some(missing) = seen.iter().position(|seen| !seen) {
            let name = self.schema.columns[missing].name.as_bytes();
            return Err(LineFault::new(1, name, LineProblem::ColumnMissing));
        }
        self.assign(columns);
        self.header = Some(record.to_vec());
        Ok(())
    }

    /// Sets the use of each field. Numbers that the schema names have keys in its order; others follow.
    fn assign(&mut self, columns: Vec<Column>) {
        let mut next = 0;
        let mut key_of = |kind| match kind {
            ColumnKind::Number => {
                next += 1;
                next - 1
            }
            _ => 0,
        };
        let keys: Vec<u64> = self.schema.columns.iter().map(|c| key_of(c.kind)).collect();
        let slots = columns
            .iter()
            .enumerate()
            .map(|(at, column)| match column.kind {
                ColumnKind::Label => Slot::Label,
                ColumnKind::Skip => Slot::Skip,
                ColumnKind::Category => Slot::Category(at),
                ColumnKind::Number => Slot::Number(match self.index.get(&column.name) {
                    Some(&known) => keys[known],
                    None => key_of(column.kind),
                }),
            });
        self.slots = slots.collect();
        self.names = columns.into_iter().map(|column| column.name).collect();
    }

    /// Splits a record without its line end into fields; returns their number.
    fn split(&mut self, record: &[u8]) -> Result<usize, LineFault> {
        if record.len() > limits::DATA_LINE_BYTES_MAX {
            return Err(LineFault::new(1, record, LineProblem::LineTooLong));
        }
        let one = match &mut self.record_end {
            Some(end) => end.is_record(record),
            None => !record.contains(&b'\n'),
        };
        if !one {
            return Err(LineFault::new(1, record, LineProblem::Csv));
        }
        // Unescaped fields are not longer than the record, and the last one ends without a delimiter.
        self.fields.resize(record.len(), 0);
        self.ends.resize(record.len() + 1, 0);
        self.reader.reset();
        let (mut input, mut written, mut ended) = (record, 0, 0);
        loop {
            let (fields, ends) = (&mut self.fields[written..], &mut self.ends[ended..]);
            let (result, read, out, count) = self.reader.read_record(input, fields, ends);
            input = &input[read..];
            written += out;
            ended += count;
            match result {
                // An empty input ends the record.
                ReadRecordResult::InputEmpty if !input.is_empty() || read > 0 => {}
                ReadRecordResult::Record | ReadRecordResult::End if input.is_empty() => {
                    return Ok(ended);
                }
                _ => return Err(LineFault::new(1, record, LineProblem::Csv)),
            }
        }
    }

    /// Field `index` of the record that was split last.
    fn field(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.fields[start..self.ends[index]]
    }

    /// Parses a record; `false` for an empty one.
    ///
    /// # Errors
    /// The first fault of the record. Its column is the number of the field.
    pub(crate) fn parse(&mut self, record: &[u8]) -> Result<bool, LineFault> {
        if record.is_empty() {
            return Ok(false);
        }
        let count = self.split(record)?;
        if count != self.slots.len() {
            let problem = LineProblem::FieldCount {
                fields: count,
                columns: self.slots.len(),
            };
            return Err(LineFault::new(1, record, problem));
        }
        self.entries.clear();
        for index in 0..count {
            let text = trim_blanks(self.field(index));
            let fault = |problem| LineFault::new(index + 1, text, problem);
            match self.slots[index] {
                Slot::Skip => {}
                Slot::Label => {
                    let label = parse_f32(text).ok_or_else(|| fault(LineProblem::Label))?;
                    let label = self.labels.map(label);
                    self.label = label.ok_or_else(|| fault(self.labels.problem()))?;
                }
                Slot::Number(_) | Slot::Category(_) if text.is_empty() => {}
                Slot::Number(key) => {
                    let value = parse_f32(text).ok_or_else(|| fault(LineProblem::Value))?;
                    if value != 0.0 {
                        self.entries.push((key, value));
                    }
                }
                Slot::Category(name) => {
                    let key = category(self.names[name].as_bytes(), text);
                    self.entries.push((key, 1.0));
                }
            }
        }
        self.entries.sort_unstable_by_key(|(key, _)| *key);
        let mut pairs = self.entries.windows(2);
        if self.entries.len() > limits::DATA_ROW_FEATURES_MAX {
            return Err(LineFault::new(1, record, LineProblem::TooManyFeatures));
        }
        if pairs.any(|pair| pair[0].0 == pair[1].0) {
            return Err(LineFault::new(1, record, LineProblem::Duplicate));
        }
        self.keys.clear();
        self.values.clear();
        self.keys.extend(self.entries.iter().map(|(key, _)| *key));
        self.values
            .extend(self.entries.iter().map(|(_, value)| *value));
        Ok(true)
    }

    /// Number of columns that are numbers; `None` with categories, and before the header.
    pub(crate) fn width(&self) -> Option<u64> {
        let is_open = |slot: &Slot| matches!(slot, Slot::Category(_));
        if self.slots.is_empty() || self.slots.iter().any(is_open) {
            return None;
        }
        let numbers = self.slots.iter();
        let numbers = numbers.filter(|slot| matches!(slot, Slot::Number(_)));
        Some(numbers.count() as u64)
    }

    pub(crate) fn label(&self) -> f32 {
        self.label
    }

    pub(crate) fn keys(&self) -> &[u64] {
        &self.keys
    }

    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }
}

/// Key of a value of a column of categories. Part of the meaning of saved models: it does not change.
fn category(column: &[u8], value: &[u8]) -> u64 {
    let hash = |seed, bytes: &[u8]| H64::new([seed, bytes.len() as u64, 0, 0]).finish_bytes(bytes);
    let hash = hash(hash(0, column), value);
    CATEGORY_BIT | (hash & (CATEGORY_BIT - 1))
}

#[cfg(test)]
#[path = "csv_tests.rs"]
mod tests;

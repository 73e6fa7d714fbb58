//! Parses one line of a training file into one row: total, bounded, and without allocation once warm.

use std::str::FromStr;

use tidewater_protocol::limits;
use tidewater_protocol::mutants::{self, Mutant};

use super::error::{LineFault, LineProblem};

/// Notation of the features of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `label index:value ...`, indices from 1.
    Libsvm,
    /// `label index:value ...`, indices from 0, as some tools write.
    LibsvmZeroBased,
    /// `label index ...`, indices from 0, each with the value 1.
    Dummy,
    /// `label index ...`, indices from 1, each with the value 1: LIBSVM without values. It looks like
    /// [`Format::Dummy`], so that it must be requested.
    LibsvmBare,
    /// `label value value ...`, the value of each feature from 0. 0 has no entry in the row.
    Dense(Separator),
    /// Records with the columns of a [`Schema`](super::Schema).
    Csv,
}

/// Separator of the values of a dense line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Separator {
    /// Runs of blanks and tabs; `#` starts a comment.
    Blanks,
    /// One of this byte. Blanks around values are ignored, and an empty value is an error.
    Byte(u8),
}

impl Format {
    /// Name of the format on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Libsvm => "libsvm",
            Self::LibsvmZeroBased => "libsvm0",
            Self::Dummy => "dummy",
            Self::LibsvmBare => "libsvm-bare",
            Self::Dense(_) => "dense",
            Self::Csv => "csv",
        }
    }
}

/// Error of a name that no format has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no data format is called `{0}`; there are libsvm (indices from 1), libsvm0 (from 0), libsvm-bare (from 1, \
     without values), dummy (from 0, without values), dense (between blanks), dense:C (between C, or tab), csv"
)]
pub struct UnknownFormat(pub String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let unknown = || UnknownFormat(name.to_owned());
        if let Some(separator) = name.strip_prefix("dense:") {
            let byte = one_byte(separator).filter(|byte| !b" \r\n".contains(byte));
            return Ok(Self::Dense(Separator::Byte(byte.ok_or_else(unknown)?)));
        }
        [
            Self::Libsvm,
            Self::LibsvmZeroBased,
            Self::Dummy,
            Self::LibsvmBare,
            Self::Dense(Separator::Blanks),
            Self::Csv,
        ]
        .into_iter()
        .find(|format| format.name() == name)
        .ok_or_else(unknown)
    }
}

/// Mapping of labels. It never depends on the labels of a single part of the file.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum LabelMap {
    /// Two classes: +1 to 1, -1 and 0 to 0; any other label is an error.
    #[default]
    Binary,
    /// This class becomes 1, all others 0.
    OneVsRest(f32),
    /// Labels are kept as written.
    Raw,
    /// 1 for labels above this number, 0 for all others.
    Above(f32),
    /// +1 for labels above this number, -1 for all others.
    SignAbove(f32),
    /// This number is added, for example -1 where classes are counted from 1.
    Shift(f32),
}

impl LabelMap {
    /// The stored label; `None` for one that is not of two classes, or that a shift makes infinite, and for a threshold
    /// that is no number.
    pub fn map(self, label: f32) -> Option<f32> {
        let is_above =
            |bound| label > bound || (label == bound && mutants::on(Mutant::LabelAtThreshold));
        match self {
            Self::Above(bound) | Self::SignAbove(bound) if bound.is_nan() => None,
            Self::Binary if label == 1.0 => Some(1.0),
            Self::Binary if label == 0.0 || label == -1.0 => Some(0.0),
            Self::Binary => None,
            Self::OneVsRest(class) => Some(f32::from(u8::from(label == class))),
            Self::Raw => Some(label),
            Self::Above(bound) => Some(f32::from(u8::from(is_above(bound)))),
            Self::SignAbove(bound) if is_above(bound) => Some(1.0),
            Self::SignAbove(_) => Some(-1.0),
            Self::Shift(number) => Some(label + number).filter(|shifted| shifted.is_finite()),
        }
    }

    /// What is wrong with a label that is not mapped.
    pub(crate) const fn problem(self) -> LineProblem {
        match self {
            Self::Binary => LineProblem::LabelNotBinary,
            _ => LineProblem::LabelNotMapped,
        }
    }
}

/// Error of a text that names no mapping of labels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no mapping of labels; there are raw, binary (-1, 0 and +1, as 0 and 1), above:T (1 above T, else 0), \
     sign:T (+1 above T, else -1), shift:N (N is added); T and N are finite numbers"
)]
pub struct UnknownLabels(pub String);

impl FromStr for LabelMap {
    type Err = UnknownLabels;

    fn from_str(text: &str) -> Result<Self, UnknownLabels> {
        let unknown = || UnknownLabels(text.to_owned());
        let Some((name, number)) = text.split_once(':') else {
            return match text {
                "raw" => Ok(Self::Raw),
                "binary" => Ok(Self::Binary),
                _ => Err(unknown()),
            };
        };
        let number = number
            .parse()
            .ok()
            .filter(|number: &f32| number.is_finite());
        let number = number.ok_or_else(unknown)?;
        match name {
            "above" => Ok(Self::Above(number)),
            "sign" => Ok(Self::SignAbove(number)),
            "shift" => Ok(Self::Shift(number)),
            _ => Err(unknown()),
        }
    }
}

/// Parses lines into one row, with buffers that it keeps.
///
/// After a line was accepted, keys ascend strictly: a line with indices in another order is sorted
/// (`O(n log n)`), and a repeated index is refused.
#[derive(Debug)]
pub struct LineParser {
    format: Format,
    labels: LabelMap,
    label: f32,
    keys: Vec<u64>,
    values: Vec<f32>,
    /// Column of each feature, for faults found only after the line was read.
    columns: Vec<usize>,
    /// Scratch memory of the sort.
    order: Vec<(u64, usize)>,
    /// Number of values of a dense line, from the first one on.
    width: Option<usize>,
}

impl LineParser {
    /// Makes a parser of one format. Records of [`Format::Csv`] need a schema: a line parser refuses them.
    pub fn new(format: Format, labels: LabelMap) -> Self {
        Self {
            format,
            labels,
            label: 0.0,
            keys: Vec::new(),
            values: Vec::new(),
            columns: Vec::new(),
            order: Vec::new(),
            width: None,
        }
    }

    /// Parses a line without its line end. Returns `false` for a line without a row: blank or a
    /// comment.
    ///
    /// # Errors
    /// The first fault of the line; the row of the last accepted line is lost.
    pub fn parse(&mut self, line: &[u8]) -> Result<bool, LineFault> {
        self.keys.clear();
        self.values.clear();
        self.columns.clear();
        if line.len() > limits::DATA_LINE_BYTES_MAX {
            return Err(LineFault::new(1, line, LineProblem::LineTooLong));
        }
        match self.format {
            Format::Dense(separator) => return self.parse_dense(separator, line),
            Format::Csv => return Err(LineFault::new(1, line, LineProblem::Csv)),
            _ => {}
        }
        let mut fields = Fields::new(line).peekable();
        let Some(label) = fields.next() else {
            return Ok(false);
        };
        self.label = self.parse_label(label)?;
        if let Some(qid) = fields.next_if(Field::is_qid) {
            qid.check_qid()?;
        }
        for field in fields {
            self.parse_feature(field)?;
        }
        if !self.keys.is_sorted_by(|a, b| a < b) {
            self.sort(line)?;
        }
        Ok(true)
    }

    fn parse_dense(&mut self, separator: Separator, line: &[u8]) -> Result<bool, LineFault> {
        let values = match separator {
            Separator::Blanks => {
                let mut fields = Fields::new(line);
                let Some(label) = fields.next() else {
                    return Ok(false);
                };
                self.label = self.parse_label(label)?;
                self.parse_values(fields)?
            }
            Separator::Byte(byte) => {
                if trim_blanks(line).is_empty() {
                    return Ok(false);
                }
                let mut start = 0;
                let mut fields = line.split(|&b| b == byte).map(|text| {
                    let column = start + 1;
                    start += text.len() + 1;
                    let text = trim_blanks(text);
                    Field { column, text }
                });
                let label = fields.next().unwrap_or(Field {
                    column: 1,
                    text: b"",
                });
                self.label = self.parse_label(label)?;
                self.parse_values(fields)?
            }
        };
        let width = *self.width.get_or_insert(values);
        if values != width {
            let problem = LineProblem::Width { values, width };
            return Err(LineFault::new(1, line, problem));
        }
        Ok(true)
    }

    /// Parses the values of a dense line; returns their number.
    fn parse_values<'a>(
        &mut self,
        fields: impl Iterator<Item = Field<'a>>,
    ) -> Result<usize, LineFault> {
        let mut count = 0;
        for field in fields {
            if count == limits::DATA_ROW_FEATURES_MAX {
                return Err(field.fault(LineProblem::TooManyFeatures));
            }
            let value = parse_f32(field.text).ok_or_else(|| field.fault(LineProblem::Value))?;
            if value != 0.0 {
                self.keys.push(count as u64);
                self.values.push(value);
            }
            count += 1;
        }
        Ok(count)
    }

    /// Label of the accepted line, mapped.
    pub fn label(&self) -> f32 {
        self.label
    }

    /// Keys of the accepted line, strictly ascending, all below [`limits::DATA_KEY_LIMIT`].
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// The values, aligned with the keys; finite.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Number of values of each dense line, once there was one.
    pub(crate) fn width(&self) -> Option<u64> {
        self.width.map(|width| width as u64)
    }

    fn parse_label(&self, field: Field<'_>) -> Result<f32, LineFault> {
        let label = parse_f32(field.text).ok_or_else(|| field.fault(LineProblem::Label))?;
        self.labels
            .map(label)
            .ok_or_else(|| field.fault(self.labels.problem()))
    }

    fn parse_feature(&mut self, field: Field<'_>) -> Result<(), LineFault> {
        if self.keys.len() == limits::DATA_ROW_FEATURES_MAX {
            return Err(field.fault(LineProblem::TooManyFeatures));
        }
        let colon = field.text.iter().position(|&b| b == b':');
        let (key, value) = match (self.format, colon) {
            (Format::Dummy, None) => (parse_key(field, 0)?, 1.0),
            (Format::LibsvmBare, None) => (parse_key(field, 1)?, 1.0),
            (Format::Dummy | Format::LibsvmBare, Some(_)) => {
                return Err(field.fault(LineProblem::Colon));
            }
            (_, None) => return Err(field.fault(LineProblem::NoColon)),
            (format, Some(colon)) => {
                let (index, value) = field.split(colon);
                let from_1 = format == Format::Libsvm && !mutants::on(Mutant::LibsvmIndexKept);
                let base = u64::from(from_1);
                let number = parse_f32(value.text);
                let number = number.ok_or_else(|| value.fault(LineProblem::Value))?;
                (parse_key(index, base)?, number)
            }
        };
        self.keys.push(key);
        self.values.push(value);
        self.columns.push(field.column);
        Ok(())
    }

    /// Sorts the row into ascending order and refuses duplicates.
    fn sort(&mut self, line: &[u8]) -> Result<(), LineFault> {
        self.order.clear();
        let numbered = self.keys.iter().enumerate().map(|(at, &key)| (key, at));
        self.order.extend(numbered);
        self.order.sort_unstable();
        if let Some(twice) = self.order.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let column = self.columns[twice[1].1];
            let text = Fields::starting_at(line, column).next();
            let text = text.map_or(&[][..], |field| field.text);
            return Err(LineFault::new(column, text, LineProblem::Duplicate));
        }
        // Values move as the keys do; the old ones are at the end of the same vector meanwhile.
        let count = self.values.len();
        self.values.extend_from_within(..);
        for (at, &(key, from)) in self.order.iter().enumerate() {
            self.keys[at] = key;
            self.values[at] = self.values[count + from];
        }
        self.values.truncate(count);
        Ok(())
    }
}

/// A run of bytes between blanks, and its column from 1.
#[derive(Debug, Clone, Copy)]
struct Field<'a> {
    column: usize,
    text: &'a [u8],
}

impl<'a> Field<'a> {
    fn fault(self, problem: LineProblem) -> LineFault {
        LineFault::new(self.column, self.text, problem)
    }

    fn is_qid(&self) -> bool {
        self.text.starts_with(b"qid:")
    }

    fn check_qid(self) -> Result<(), LineFault> {
        match &self.text[b"qid:".len()..] {
            [] => Err(self.fault(LineProblem::Qid)),
            digits if digits.iter().all(u8::is_ascii_digit) => Ok(()),
            _ => Err(self.fault(LineProblem::Qid)),
        }
    }

    /// Splits the field at the colon at byte `colon`.
    fn split(self, colon: usize) -> (Self, Self) {
        let (index, value) = (&self.text[..colon], &self.text[colon + 1..]);
        let value = Field {
            column: self.column + colon + 1,
            text: value,
        };
        (
            Field {
                text: index,
                ..self
            },
            value,
        )
    }
}

/// The fields of a line up to its comment.
struct Fields<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn new(line: &'a [u8]) -> Self {
        Self::starting_at(line, 1)
    }

    fn starting_at(line: &'a [u8], column: usize) -> Self {
        let end = line.iter().position(|&b| b == b'#').unwrap_or(line.len());
        Self {
            line: &line[..end],
            at: column - 1,
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        let is_blank = |&b: &u8| b == b' ' || b == b'\t';
        let rest = self.line.get(self.at..)?;
        let start = self.at + rest.iter().position(|b| !is_blank(b))?;
        let rest = &self.line[start..];
        let length = rest.iter().position(is_blank).unwrap_or(rest.len());
        self.at = start + length;
        Some(Field {
            column: start + 1,
            text: &rest[..length],
        })
    }
}

/// Whether the first feature of a line has a colon, which distinguishes LIBSVM from dummy. `None` for a
/// line without features.
pub(crate) fn first_feature_has_colon(line: &[u8]) -> Option<bool> {
    let mut features = Fields::new(line).skip(1).skip_while(Field::is_qid);
    features.next().map(|field| field.text.contains(&b':'))
}

/// Parses a key from an index that counts from `base`.
fn parse_key(field: Field<'_>, base: u64) -> Result<u64, LineFault> {
    if field.text.is_empty() {
        return Err(field.fault(LineProblem::Index));
    }
    let mut index: Option<u64> = Some(0);
    for &byte in field.text {
        if !byte.is_ascii_digit() {
            return Err(field.fault(LineProblem::Index));
        }
        let digit = u64::from(byte - b'0');
        index = index.and_then(|i| i.checked_mul(10)?.checked_add(digit));
    }
    let index = index.ok_or_else(|| field.fault(LineProblem::IndexTooLarge))?;
    match index.checked_sub(base) {
        None => Err(field.fault(LineProblem::IndexZero)),
        Some(key) if key >= limits::DATA_KEY_LIMIT => Err(field.fault(LineProblem::IndexTooLarge)),
        Some(key) => Ok(key),
    }
}

/// A delimiter or quote as a command line gives it.
pub(crate) fn one_byte(text: &str) -> Option<u8> {
    match text.as_bytes() {
        b"tab" => Some(b'\t'),
        b"space" => Some(b' '),
        &[byte] => Some(byte),
        _ => None,
    }
}

/// Removes blanks and tabs at both ends.
pub(crate) fn trim_blanks(text: &[u8]) -> &[u8] {
    let is_blank = |b: &u8| *b == b' ' || *b == b'\t';
    let start = text.iter().position(|b| !is_blank(b)).unwrap_or(text.len());
    let end = text
        .iter()
        .rposition(|b| !is_blank(b))
        .map_or(start, |at| at + 1);
    &text[start..end]
}

/// Parses a finite number; `1` and `0`, most of what such files hold, need no general parser.
pub(crate) fn parse_f32(text: &[u8]) -> Option<f32> {
    match text {
        b"1" | b"+1" => Some(1.0),
        b"0" => Some(0.0),
        _ => {
            let number: f32 = std::str::from_utf8(text).ok()?.parse().ok()?;
            number.is_finite().then_some(number)
        }
    }
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;

//! The results as a table, as JSON and as CSV.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::args::Mode;
use crate::error::BenchError;
use crate::fingerprint::Fingerprint;
use crate::measure::{Op, Section};
use crate::stats::Figures;
use crate::subject::Kind;

/// Name and version of the JSON layout; the number changes when a key goes or changes its meaning.
pub const SCHEMA: &str = "tidewater-bench/1";

const COLUMNS: [&str; 11] = [
    "size",
    "ops",
    "p50(us)",
    "p90(us)",
    "p99(us)",
    "p99.9(us)",
    "max(us)",
    "avg(us)",
    "MB/s",
    "Mops/s",
    "#wrong",
];

/// One size of one section.
#[derive(Debug, Clone)]
pub struct Row {
    /// Direction.
    pub op: Op,
    /// Kind of table.
    pub table: Kind,
    /// How pulls read; none for pushes.
    pub mode: Option<Mode>,
    /// Bytes of a message.
    pub size: u64,
    /// Payload bytes of a call.
    pub bytes_per_call: u64,
    /// Calls timed together.
    pub calls_per_sample: u64,
    /// Times and rates.
    pub figures: Figures,
    /// Values that were not what they must be.
    pub wrong: u64,
    /// Reads repeated.
    pub retries: u64,
    /// Pulls that the server had to finish.
    pub fallbacks: u64,
}

/// A row as JSON and CSV have it.
#[derive(Debug, Serialize)]
struct Record {
    op: Op,
    table: Kind,
    mode: Option<Mode>,
    size: u64,
    bytes_per_call: u64,
    calls_per_sample: u64,
    ops: u64,
    samples: u64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    avg_us: f64,
    mb_per_s: f64,
    mops_per_s: f64,
    retries: u64,
    fallbacks: u64,
    wrong: u64,
}

impl From<&Row> for Record {
    fn from(row: &Row) -> Self {
        let f = row.figures;
        Self {
            op: row.op,
            table: row.table,
            mode: row.mode,
            size: row.size,
            bytes_per_call: row.bytes_per_call,
            calls_per_sample: row.calls_per_sample,
            ops: f.ops,
            samples: f.samples,
            p50_us: f.p50_us,
            p90_us: f.p90_us,
            p99_us: f.p99_us,
            p999_us: f.p999_us,
            max_us: f.max_us,
            avg_us: f.avg_us,
            mb_per_s: f.mb_per_s,
            mops_per_s: f.mops_per_s,
            retries: row.retries,
            fallbacks: row.fallbacks,
            wrong: row.wrong,
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    fingerprint: &'a Fingerprint,
    rows: Vec<Record>,
}

/// Prints the header: everything about the run, each line behind a `#`.
///
/// # Errors
/// The writer's.
pub fn header(out: &mut impl Write, fingerprint: &Fingerprint) -> io::Result<()> {
    writeln!(out, "# Tidewater {} test", fingerprint.what.name())?;
    for (name, value) in fingerprint.lines() {
        writeln!(out, "# {name}: {value}")?;
    }
    out.flush()
}

/// Prints the title and the columns of a section.
///
/// # Errors
/// The writer's.
pub fn section(out: &mut impl Write, section: Section, batch: u64) -> io::Result<()> {
    let (op, table) = (section.op.name(), section.kind.name());
    let mode = match (section.op, section.mode) {
        (Op::Push, _) => "until applied",
        (Op::Pull, Mode::Consistent) => "consistent",
        (Op::Pull, Mode::Hogwild) => "hogwild",
        (Op::Pull, Mode::Gather) => "gather",
    };
    writeln!(out, "#\n# {op} {table}, {mode}, {batch} messages a call")?;
    write!(out, "#{:>9}", COLUMNS[0])?;
    for column in &COLUMNS[1..] {
        write!(out, " {column:>10}")?;
    }
    writeln!(out)?;
    out.flush()
}

/// Prints a row.
///
/// # Errors
/// The writer's.
pub fn row(out: &mut impl Write, row: &Row) -> io::Result<()> {
    let f = &row.figures;
    write!(out, "{:>10} {:>10}", row.size, f.ops)?;
    for us in [f.p50_us, f.p90_us, f.p99_us, f.p999_us, f.max_us, f.avg_us] {
        write!(out, " {us:>10.3}")?;
    }
    writeln!(
        out,
        " {:>10.1} {:>10.4} {:>10}",
        f.mb_per_s, f.mops_per_s, row.wrong
    )?;
    out.flush()
}

/// Writes all rows as JSON.
///
/// # Errors
/// [`BenchError::Write`].
pub fn json(path: &Path, fingerprint: &Fingerprint, rows: &[Row]) -> Result<(), BenchError> {
    let document = Document {
        schema: SCHEMA,
        fingerprint,
        rows: rows.iter().map(Record::from).collect(),
    };
    let mut text =
        serde_json::to_vec_pretty(&document).map_err(|e| failed(path, io::Error::other(e)))?;
    text.push(b'\n');
    std::fs::write(path, text).map_err(|e| failed(path, e))
}

/// Writes all rows as CSV: the keys of the JSON's rows are the columns.
///
/// # Errors
/// [`BenchError::Write`].
pub fn csv(path: &Path, rows: &[Row]) -> Result<(), BenchError> {
    let text = csv_text(rows).map_err(|e| failed(path, io::Error::other(e)))?;
    std::fs::write(path, text).map_err(|e| failed(path, e))
}

fn failed(path: &Path, source: io::Error) -> BenchError {
    BenchError::Write {
        path: path.to_owned(),
        source,
    }
}

const CSV_HEADER: &str = "op,table,mode,size,bytes_per_call,calls_per_sample,ops,samples,p50_us,\
p90_us,p99_us,p999_us,max_us,avg_us,mb_per_s,mops_per_s,retries,fallbacks,wrong";

fn csv_text(rows: &[Row]) -> Result<String, serde_json::Error> {
    let mut text = format!("{CSV_HEADER}\n");
    for row in rows {
        let value = serde_json::to_value(Record::from(row))?;
        let cells = CSV_HEADER.split(',').map(|column| match &value[column] {
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Null => String::new(),
            number => number.to_string(),
        });
        text += &cells.collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_has_every_key_of_the_json() {
        let row = Row {
            op: Op::Push,
            table: Kind::Rows,
            mode: None,
            size: 8,
            bytes_per_call: 16,
            calls_per_sample: 1,
            figures: crate::stats::Samples::new(std::time::Duration::ZERO).figures(8),
            wrong: 3,
            retries: 1,
            fallbacks: 0,
        };
        let value = serde_json::to_value(Record::from(&row)).unwrap();
        let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(|k| &**k).collect();
        let mut columns: Vec<&str> = CSV_HEADER.split(',').collect();
        keys.sort_unstable();
        columns.sort_unstable();
        assert_eq!(keys, columns);
        let text = csv_text(&[row]).unwrap();
        let line = text.lines().nth(1).unwrap();
        assert!(
            line.starts_with("push,rows,,8,16,1,") && line.ends_with(",1,0,3"),
            "{line}"
        );
    }
}

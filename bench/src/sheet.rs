//! The results of a run: a table while it runs, JSON and CSV at its end, and the failures.

use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::contest::{Absent, Ratio};
use crate::error::BenchError;
use crate::fingerprint::Fingerprint;
use crate::options::Common;
use crate::row::Row;

/// Name and version of the JSON layout; the number changes if a key is removed or changes its meaning.
pub const SCHEMA: &str = "tidewater-bench/1";

const COLUMNS: [&str; 15] = [
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
    "eff%",
    "cpu-c(us)",
    "cpu-s(us)",
    "allocs/op",
    "#wrong",
];

/// Content of a file of results.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Document {
    /// Layout of the file: [`SCHEMA`].
    pub schema: String,
    /// Origin of the figures.
    pub fingerprint: Fingerprint,
    /// Rows in the order they were measured.
    pub rows: Vec<Row>,
    /// Results of `compare`; empty otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ratios: Vec<Ratio>,
    /// Measurements that `compare` could not make, with the causes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<Absent>,
}

/// Reasons to fail a run that was measured to its end; exit code 1.
pub type Failures = Vec<String>;

/// Results of a run under way.
#[derive(Debug)]
pub struct Sheet<'a> {
    common: &'a Common,
    document: Document,
}

impl<'a> Sheet<'a> {
    /// Prints the header, which is the run's fingerprint, each line after a `#`. Creates a sheet without rows.
    ///
    /// # Errors
    /// If standard output is closed.
    pub fn new(common: &'a Common, fingerprint: Fingerprint) -> Result<Self, BenchError> {
        print(&fingerprint.header(&format!("{} test", fingerprint.what)))?;
        Ok(Self {
            common,
            document: Document {
                schema: SCHEMA.into(),
                fingerprint,
                rows: Vec::new(),
                ratios: Vec::new(),
                absent: Vec::new(),
            },
        })
    }

    /// Prints the title and the columns of a section; `first` names the first column.
    ///
    /// # Errors
    /// If standard output is closed.
    pub fn section(&self, title: &str, first: &str) -> Result<(), BenchError> {
        let mut text = format!("#\n# {title}\n#{first:>9}");
        for column in &COLUMNS[1..] {
            text += &format!(" {column:>10}");
        }
        print(&(text + "\n"))
    }

    /// Prints a row and keeps it for the files.
    ///
    /// # Errors
    /// If standard output is closed.
    pub fn row(&mut self, row: Row) -> Result<(), BenchError> {
        print(&line(&row))?;
        self.document.rows.push(row);
        Ok(())
    }

    /// Prints a remark after a `#`.
    ///
    /// # Errors
    /// If standard output is closed.
    pub fn remark(&self, text: &str) -> Result<(), BenchError> {
        print(&format!("# {text}\n"))
    }

    /// Writes the files of `--json` and `--csv`; returns the failures of the run: wrong values, and rows that
    /// miss `--max-p99` or `--min-bw`.
    ///
    /// # Errors
    /// [`BenchError::File`] if a file cannot be written.
    pub fn finish(self) -> Result<Failures, BenchError> {
        if let Some(path) = &self.common.json {
            write_json(path, &self.document)?;
        }
        if let Some(path) = &self.common.csv {
            let text = csv_text(&self.document.rows);
            std::fs::write(path, text).map_err(|e| BenchError::file(path, e))?;
        }
        Ok(self.failures())
    }

    fn failures(&self) -> Failures {
        let rows = &self.document.rows;
        let mut failures = Failures::new();
        let wrong: u64 = rows.iter().map(|row| row.wrong).sum();
        if wrong > 0 {
            failures.push(format!("{wrong} values were wrong"));
        }
        for row in rows {
            let name = format!("{} {} of {}", row.op, row.table, row.size);
            let f = &row.figures;
            if let Some(most) = self.common.max_p99.filter(|most| f.p99_us > *most) {
                let is = f.p99_us;
                failures.push(format!("{name}: p99 of {is:.3} us is above {most} us"));
            }
            if let Some(least) = self.common.min_bw.filter(|least| f.mb_per_s < *least) {
                let is = f.mb_per_s;
                failures.push(format!("{name}: {is:.1} MB/s are below {least} MB/s"));
            }
        }
        failures
    }
}

/// Prints text to standard output and flushes; adds no line end.
///
/// # Errors
/// If standard output is closed.
pub fn print(text: &str) -> Result<(), BenchError> {
    let out = &mut io::stdout().lock();
    let done = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    done.map_err(|e| BenchError::system("print the results", e))
}

fn line(row: &Row) -> String {
    let f = &row.figures;
    let mut text = format!("{:>10} {:>10}", row.size, f.ops);
    for us in [f.p50_us, f.p90_us, f.p99_us, f.p999_us, f.max_us, f.avg_us] {
        text += &format!(" {us:>10.3}");
    }
    text += &format!(" {:>10.1} {:>10.4}", f.mb_per_s, f.mops_per_s);
    let allocs = row.allocs_client.zip(row.allocs_server);
    for (value, digits) in [
        (row.eff_percent, 1),
        (row.cpu_client_us, 3),
        (row.cpu_server_us, 3),
        (allocs.map(|(c, s)| c + s), 3),
    ] {
        match value {
            Some(value) => text += &format!(" {value:>10.digits$}"),
            None => text += &format!(" {:>10}", "-"),
        }
    }
    text + &format!(" {:>10}\n", row.wrong)
}

/// Writes a file of results.
///
/// # Errors
/// [`BenchError::File`] if the file cannot be written.
pub fn write_json(path: &Path, document: &Document) -> Result<(), BenchError> {
    let text = serde_json::to_vec_pretty(document);
    let mut text = text.map_err(|e| BenchError::file(path, e))?;
    text.push(b'\n');
    std::fs::write(path, text).map_err(|e| BenchError::file(path, e))
}

/// Reads a file of results.
///
/// # Errors
/// [`BenchError::File`] if the file cannot be read or parsed, or its layout is not [`SCHEMA`].
pub fn read_json(path: &Path) -> Result<Document, BenchError> {
    let text = std::fs::read(path).map_err(|e| BenchError::file(path, e))?;
    let document: Document =
        serde_json::from_slice(&text).map_err(|e| BenchError::file(path, e))?;
    if document.schema == SCHEMA {
        return Ok(document);
    }
    let layout = document.schema;
    let text = format!("layout {layout}, not {SCHEMA}");
    Err(BenchError::file(path, text))
}

/// Columns of the CSV: the keys of a JSON row; `ceiling` is the roofline's name.
const CSV_HEADER: &str = "test,op,table,mode,pace,size,bytes_per_call,calls_per_sample,ops,samples,\
p50_us,p90_us,p99_us,p999_us,max_us,avg_us,mb_per_s,mops_per_s,cpu_client_us,cpu_server_us,\
allocs_client,allocs_server,ceiling,eff_percent,retries,fallbacks,checked,wrong";

fn csv_text(rows: &[Row]) -> String {
    let mut text = format!("{CSV_HEADER}\n");
    for row in rows {
        let value = serde_json::to_value(row).unwrap_or_default();
        let cells = CSV_HEADER.split(',').map(|column| match &value[column] {
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Null => String::new(),
            serde_json::Value::Object(object) => object
                .get("name")
                .and_then(|name| name.as_str())
                .unwrap_or_default()
                .to_owned(),
            number => number.to_string(),
        });
        text += &cells.collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Figures;

    fn row() -> Row {
        Row {
            test: "latency".into(),
            op: "push".into(),
            table: "rows".into(),
            mode: None,
            pace: "closed".into(),
            size: 8,
            bytes_per_call: 16,
            calls_per_sample: 1,
            figures: Figures::default(),
            cpu_client_us: Some(1.0),
            cpu_server_us: Some(2.0),
            allocs_client: Some(0.0),
            allocs_server: Some(0.0),
            roofline: None,
            eff_percent: None,
            retries: 1,
            fallbacks: 0,
            checked: 1,
            wrong: 3,
        }
    }

    #[test]
    fn csv_has_every_key_of_the_json() {
        let value = serde_json::to_value(row()).unwrap();
        let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(|k| &**k).collect();
        let mut columns: Vec<&str> = CSV_HEADER.split(',').collect();
        keys.sort_unstable();
        columns.sort_unstable();
        assert_eq!(keys, columns);
        let text = csv_text(&[row()]);
        let line = text.lines().nth(1).unwrap();
        assert!(
            line.starts_with("latency,push,rows,,closed,8,16,1,"),
            "{line}"
        );
        assert!(line.ends_with(",1,0,1,3"), "{line}");
    }

    #[test]
    fn a_line_has_a_cell_for_every_column() {
        assert_eq!(line(&row()).split_whitespace().count(), COLUMNS.len());
    }
}

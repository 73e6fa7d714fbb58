//! Readers of training data. `tidewater.data` has the classes for users.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use numpy::PyArray1;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tidewater_data::{
    DataError, DataSource as _, FileSource, LabelMap, ReadOptions, Records, Row, RowReader, Shard,
};

/// Files of the system are `OSError`, all others `ValueError`.
pub(crate) fn raised(error: DataError) -> PyErr {
    let text = error.to_string();
    match error {
        DataError::Io { .. } | DataError::NoFiles { .. } | DataError::Shrunk { .. } => {
            PyOSError::new_err(text)
        }
        _ => PyValueError::new_err(text),
    }
}

fn wrong(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Labels, row starts, keys and values of a batch.
pub(crate) type Batch<'py> = (
    Bound<'py, PyArray1<f32>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<u64>>,
    Bound<'py, PyArray1<f32>>,
);

/// Options of reading from the arguments of a Python call.
pub(crate) fn read_options(
    format: Option<&str>,
    schema: Option<&str>,
    labels: &str,
    positive: Option<f32>,
    bad_records: &str,
) -> PyResult<ReadOptions> {
    let labels = match (labels, positive) {
        (labels, None) => labels.parse().map_err(wrong)?,
        ("raw" | "binary", Some(class)) => LabelMap::OneVsRest(class),
        _ => {
            let text =
                format!("labels is '{labels}', and positive is another mapping; give one of them");
            return Err(PyValueError::new_err(text));
        }
    };
    Ok(ReadOptions {
        format: format.map(str::parse).transpose().map_err(wrong)?,
        labels,
        schema: schema.map(str::parse).transpose().map_err(wrong)?,
        bad_records: bad_records.parse().map_err(wrong)?,
    })
}

/// Rows that were read, a column each.
#[derive(Default)]
pub(crate) struct Columns {
    labels: Vec<f32>,
    starts: Vec<i64>,
    keys: Vec<u64>,
    values: Vec<f32>,
}

/// Reads the next rows, at most `rows`.
pub(crate) fn read_rows(reader: &mut RowReader, rows: usize) -> Result<Columns, DataError> {
    let mut read = Columns::default();
    while read.rows() < rows && reader.advance()? {
        read.push(reader.row());
    }
    Ok(read)
}

impl Columns {
    /// Adds a row to the end.
    pub(crate) fn push(&mut self, row: Row<'_>) {
        if self.starts.is_empty() {
            self.starts.push(0);
        }
        self.labels.push(row.label);
        self.keys.extend_from_slice(row.keys);
        self.values.extend_from_slice(row.values);
        self.starts.push(self.keys.len() as i64);
    }

    /// Number of rows.
    pub(crate) const fn rows(&self) -> usize {
        self.labels.len()
    }

    /// The rows as arrays; `None` if there are none.
    pub(crate) fn batch(self, py: Python<'_>) -> Option<Batch<'_>> {
        (!self.labels.is_empty()).then(|| {
            (
                PyArray1::from_vec(py, self.labels),
                PyArray1::from_vec(py, self.starts),
                PyArray1::from_vec(py, self.keys),
                PyArray1::from_vec(py, self.values),
            )
        })
    }
}

/// Cursor over the rows of a part.
#[pyclass(frozen, module = "tidewater")]
pub(crate) struct RowCursor(Mutex<RowReader>);

#[pymethods]
impl RowCursor {
    #[new]
    #[pyo3(signature = (path, part, parts, format, schema, labels, positive, bad_records))]
    #[allow(clippy::too_many_arguments, reason = "the arguments of a Python call")]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        part: u32,
        parts: u32,
        format: Option<&str>,
        schema: Option<&str>,
        labels: &str,
        positive: Option<f32>,
        bad_records: &str,
    ) -> PyResult<Self> {
        let options = read_options(format, schema, labels, positive, bad_records)?;
        let reader = py.detach(|| {
            let source = Arc::new(FileSource::new(&path, options.schema.as_ref())?);
            let shards = source.part(part, parts)?;
            RowReader::new(source, shards, &options)
        });
        Ok(Self(Mutex::new(reader.map_err(raised)?)))
    }

    /// Returns the next rows, at most `rows`; `None` after the last one.
    fn next_batch<'py>(&self, py: Python<'py>, rows: usize) -> PyResult<Option<Batch<'py>>> {
        let read = || {
            let mut reader = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            read_rows(&mut reader, rows)
        };
        py.detach(read).map_err(raised).map(|read| read.batch(py))
    }

    /// Number of malformed records that were left out so far.
    #[getter]
    fn skipped(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).bad()
    }
}

/// Cursor over the records of a part, as bytes.
#[pyclass(frozen, module = "tidewater")]
pub(crate) struct RecordCursor(Mutex<Position>);

struct Position {
    source: FileSource,
    shards: std::vec::IntoIter<Shard>,
    current: Option<Box<dyn Records>>,
}

#[pymethods]
impl RecordCursor {
    #[new]
    fn open(py: Python<'_>, path: PathBuf, part: u32, parts: u32) -> PyResult<Self> {
        let opened = py.detach(|| {
            let source = FileSource::new(&path, None)?;
            let shards = source.part(part, parts)?.into_iter();
            let current = None;
            Ok(Position {
                source,
                shards,
                current,
            })
        });
        Ok(Self(Mutex::new(opened.map_err(raised)?)))
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let mut at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(records) = &mut at.current {
                if records.advance().map_err(raised)? {
                    return Ok(Some(PyBytes::new(py, records.bytes())));
                }
                at.current = None;
            }
            let Some(shard) = at.shards.next() else {
                return Ok(None);
            };
            at.current = Some(at.source.open(&shard).map_err(raised)?);
        }
    }
}

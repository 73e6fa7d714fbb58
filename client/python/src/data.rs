//! Readers of training data. `tidewater.data` has the classes for users.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use numpy::PyArray1;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tidewater_data::{
    DataError, DataSource as _, FileSource, LabelMap, ReadOptions, Records, RowReader, Shard,
};

/// Files of the system are `OSError`, all others `ValueError`.
fn raised(error: DataError) -> PyErr {
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
type Batch<'py> = (
    Bound<'py, PyArray1<f32>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<u64>>,
    Bound<'py, PyArray1<f32>>,
);

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
        let labels = match (labels, positive) {
            ("raw", None) => LabelMap::Raw,
            ("binary", None) => LabelMap::Binary,
            ("raw" | "binary", Some(class)) => LabelMap::OneVsRest(class),
            _ => {
                let text = format!("labels is '{labels}'; it is one of 'raw', 'binary'");
                return Err(PyValueError::new_err(text));
            }
        };
        let options = ReadOptions {
            format: format.map(str::parse).transpose().map_err(wrong)?,
            labels,
            schema: schema.map(str::parse).transpose().map_err(wrong)?,
            bad_records: bad_records.parse().map_err(wrong)?,
        };
        let reader = py.detach(|| {
            let source = Arc::new(FileSource::new(&path, options.schema.as_ref())?);
            let shards = source.part(part, parts)?;
            RowReader::new(source, shards, &options)
        });
        Ok(Self(Mutex::new(reader.map_err(raised)?)))
    }

    /// Returns the next rows, at most `rows`; `None` after the last one.
    fn next_batch<'py>(&self, py: Python<'py>, rows: usize) -> PyResult<Option<Batch<'py>>> {
        let read = || -> Result<_, DataError> {
            let mut reader = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let (mut labels, mut starts) = (Vec::new(), vec![0i64]);
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            while labels.len() < rows && reader.advance()? {
                let row = reader.row();
                labels.push(row.label);
                keys.extend_from_slice(row.keys);
                values.extend_from_slice(row.values);
                starts.push(keys.len() as i64);
            }
            Ok((labels, starts, keys, values))
        };
        let (labels, starts, keys, values) = py.detach(read).map_err(raised)?;
        Ok((!labels.is_empty()).then(|| {
            (
                PyArray1::from_vec(py, labels),
                PyArray1::from_vec(py, starts),
                PyArray1::from_vec(py, keys),
                PyArray1::from_vec(py, values),
            )
        }))
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

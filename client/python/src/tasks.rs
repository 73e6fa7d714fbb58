//! Tasks of training data. `tidewater.data` has the classes for users.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use numpy::PyArray1;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tidewater::DomainId;
use tidewater_data::{FileSource, ReadOptions, RowReader};
use tidewater_tasks::{
    CurrentTask, Delivery, Next, QueueOptions, QueueStatus, RecordFeed, RecordNumbers, TaskError,
    TaskKind, Tasks,
};

use crate::data::{self, Batch, Columns};
use crate::failure::{self, Error};
use crate::session::Session;

fn raised(error: TaskError) -> PyErr {
    match error {
        TaskError::Client(error) => failure::raised(error),
        TaskError::Data(error) => data::raised(error),
        error => Error::new_err(error.to_string()),
    }
}

fn no_task() -> PyErr {
    PyValueError::new_err("there is no task; take one first")
}

fn kind(name: &str) -> PyResult<TaskKind> {
    Ok(match name {
        "train" => TaskKind::Train,
        "evaluate" => TaskKind::Evaluate,
        "predict" => TaskKind::Predict,
        "save" => TaskKind::Save,
        "end" => TaskKind::End,
        _ => {
            let text = format!(
                "kind is '{name}'; it is one of 'train', 'evaluate', 'predict', 'save', 'end'"
            );
            return Err(PyValueError::new_err(text));
        }
    })
}

const fn name(kind: TaskKind) -> &'static str {
    match kind {
        TaskKind::Train => "train",
        TaskKind::Evaluate => "evaluate",
        TaskKind::Predict => "predict",
        TaskKind::Save => "save",
        TaskKind::End => "end",
    }
}

/// Number, kind, pass, failures, path, first and end of a task.
type Described = (u64, &'static str, u32, u32, String, u64, u64);

/// The tasks of a queue, and the one that the session has.
#[pyclass(frozen, module = "tidewater")]
pub(crate) struct TaskQueue {
    session: Py<Session>,
    options: ReadOptions,
    exactly_once: bool,
    /// Whether the program reads the records by number.
    is_counted: bool,
    state: Mutex<State>,
}

/// The data of a queue: a number of records, or files.
#[derive(FromPyObject)]
enum Data {
    Records(u64),
    Path(PathBuf),
}

struct State {
    /// `None`: a feed has them.
    tasks: Option<Tasks>,
    current: Option<CurrentTask>,
    rows: Option<RowReader>,
    records: u64,
}

impl State {
    fn tasks(&mut self) -> PyResult<&mut Tasks> {
        let gone =
            || PyValueError::new_err("a feed has these tasks; use it, or open the queue again");
        self.tasks.as_mut().ok_or_else(gone)
    }
}

impl TaskQueue {
    /// The state, unless another thread waits for a task.
    fn state(&self) -> PyResult<MutexGuard<'_, State>> {
        self.state.try_lock().map_err(|_| {
            PyValueError::new_err(
                "another thread uses these tasks; give each thread its own session",
            )
        })
    }

    /// Calls `body` with the client of the session, without the interpreter lock.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut tidewater::Client) -> Result<R, TaskError> + Send,
    ) -> PyResult<R> {
        let done = self.session.get().with(py, |client| Ok(body(client)))?;
        done.map_err(raised)
    }
}

#[pymethods]
impl TaskQueue {
    #[new]
    #[pyo3(signature = (session, data, queue, task_size, reading, *, kind, epochs, strict_epochs, seed, record_seed,
        finals, failures_max, timeout, exactly_once, ticks, allow_left_out))]
    #[allow(clippy::too_many_arguments, reason = "the arguments of a Python call")]
    fn open(
        session: &Bound<'_, Session>,
        data: Data,
        queue: &str,
        task_size: u64,
        reading: (Option<String>, Option<String>, String, Option<f32>, String),
        kind: &str,
        epochs: u32,
        strict_epochs: bool,
        seed: Option<u64>,
        record_seed: Option<u64>,
        finals: Vec<String>,
        failures_max: u32,
        timeout: f64,
        exactly_once: bool,
        ticks: Option<u8>,
        allow_left_out: u64,
    ) -> PyResult<Self> {
        let (format, schema, labels, positive, bad_records) = reading;
        let read = data::read_options(
            format.as_deref(),
            schema.as_deref(),
            &labels,
            positive,
            &bad_records,
        )?;
        let timeout = Duration::try_from_secs_f64(timeout)
            .map_err(|error| PyValueError::new_err(format!("timeout: {error}")))?;
        let mut options = QueueOptions::new(queue, task_size)
            .kind(self::kind(kind)?)
            .epochs(epochs)
            .failures_max(failures_max)
            .timeout(timeout, 10)
            .allow_left_out(allow_left_out);
        if strict_epochs {
            options = options.strict_epochs();
        }
        if let Some(seed) = seed {
            options = options.shuffled(seed);
        }
        if let Some(seed) = record_seed {
            options = options.shuffled_records(seed);
        }
        for last in finals {
            options = options.then(self::kind(&last)?);
        }
        if !exactly_once {
            options = options.delivery(Delivery::AtLeastOnce);
        }
        if let Some(domain) = ticks {
            options = options.ticking(DomainId(domain));
        }
        let is_counted = matches!(data, Data::Records(_));
        let opened = session.get().with(session.py(), |client| {
            let path = match data {
                Data::Records(records) => return Ok(Tasks::count(client, records, &options)),
                Data::Path(path) => path,
            };
            let source = match FileSource::new(&path, read.schema.as_ref()) {
                Ok(source) => Arc::new(source),
                Err(error) => return Ok(Err(error.into())),
            };
            Ok(Tasks::open(client, source, &options))
        })?;
        Ok(Self {
            session: session.clone().unbind(),
            options: read,
            exactly_once,
            is_counted,
            state: Mutex::new(State {
                tasks: Some(opened.map_err(raised)?),
                current: None,
                rows: None,
                records: 0,
            }),
        })
    }

    /// Takes the next task; `None` after the last one.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Described>> {
        let mut state = self.state()?;
        let state = &mut *state;
        (state.current, state.rows, state.records) = (None, None, 0);
        let tasks = state.tasks()?;
        let task = self.with(py, |client| tasks.next(client))?;
        let described = task.as_ref().map(|task| {
            let shard = task.shard();
            let path = shard.path.to_string_lossy().into_owned();
            let of_task = (
                task.number(),
                name(task.kind()),
                task.epoch(),
                task.failures(),
            );
            let (number, kind, epoch, failures) = of_task;
            (number, kind, epoch, failures, path, shard.first, shard.end)
        });
        state.current = task;
        Ok(described)
    }

    /// Returns the next rows of the task, at most `rows`; `None` after the last one.
    fn next_batch<'py>(&self, py: Python<'py>, rows: usize) -> PyResult<Option<Batch<'py>>> {
        let mut state = self.state()?;
        let state = &mut *state;
        let Some(task) = &state.current else {
            return Err(no_task());
        };
        if !matches!(task.kind(), TaskKind::Save | TaskKind::End) {
            if state.rows.is_none() {
                let read = py.detach(|| task.rows(&self.options));
                state.rows = Some(read.map_err(raised)?);
            }
            if let Some(reader) = &mut state.rows {
                let read = py.detach(|| data::read_rows(reader, rows));
                let read = read.map_err(data::raised)?;
                state.records += read.rows() as u64;
                return Ok(read.batch(py));
            }
        }
        Ok(None)
    }

    /// The record numbers of the task.
    fn record_numbers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let state = self.state()?;
        let Some(task) = &state.current else {
            return Err(no_task());
        };
        let of_task = task.record_numbers().map_err(raised)?;
        let mut numbers = Vec::new();
        // A task can have any number of records: the program may not want all at once.
        usize::try_from(task.shard().size())
            .ok()
            .and_then(|size| numbers.try_reserve_exact(size).ok())
            .ok_or_else(|| {
                let records = task.shard().size();
                PyMemoryError::new_err(format!(
                    "no memory for the {records} record numbers of a task; make task_size smaller"
                ))
            })?;
        py.detach(|| numbers.extend(of_task));
        Ok(PyArray1::from_vec(py, numbers))
    }

    /// Whether the program reads the records by number.
    #[getter]
    const fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// Makes a feed of the tasks, which the queue has no more.
    fn feed(&self, py: Python<'_>) -> PyResult<TaskFeed> {
        if self.exactly_once {
            return Err(PyValueError::new_err(
                "a batch of a feed may be of several tasks, and pushes belong to one: open the queue with \
                 exactly_once=False",
            ));
        }
        let mut state = self.state()?;
        state.tasks()?;
        (state.current, state.rows) = (None, None);
        let Some(tasks) = state.tasks.take() else {
            unreachable!("the line above has found them");
        };
        let feed = match self.is_counted {
            true => RecordFeed::numbers(tasks).map(Feed::Numbers),
            false => RecordFeed::rows(tasks, &self.options).map(Feed::Rows),
        };
        Ok(TaskFeed {
            session: self.session.clone_ref(py),
            state: Mutex::new(FeedState {
                feed: feed.map_err(raised)?,
                rows: Columns::default(),
                numbers: Vec::new(),
            }),
        })
    }

    /// Reports the task as finished; returns whether it counts. Repeats a report that got no answer.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let mut state = self.state()?;
        let state = &mut *state;
        let read = state.records;
        let current = state.current.take();
        let tasks = state.tasks()?;
        let counted = match current {
            Some(task) => {
                let records = match self.is_counted {
                    true => task.shard().size(),
                    false => read,
                };
                Some(self.with(py, |client| tasks.done(client, task, records))?)
            }
            None => self.with(py, |client| tasks.repeat_report(client))?,
        };
        counted.ok_or_else(no_task)
    }

    /// Reports that the task failed by itself. After a deadline it can be called again.
    fn failed(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let mut state = self.state()?;
        let state = &mut *state;
        let tasks = state.tasks()?;
        if !self.with(py, |client| tasks.fail_current(client, reason))? {
            return Err(no_task());
        }
        state.current = None;
        Ok(())
    }

    /// Counters of the queue, and the tasks that are left out.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut state = self.state()?;
        let tasks = state.tasks()?;
        described(py, self.with(py, |client| tasks.status(client))?)
    }
}

/// The state of a queue as a dictionary.
fn described(py: Python<'_>, status: QueueStatus) -> PyResult<Bound<'_, PyDict>> {
    let (counters, out) = (status.counters, PyDict::new(py));
    for (name, count) in [
        ("tasks", counters.tasks),
        ("epochs", counters.epochs.into()),
        ("finished", counters.finished),
        ("records", counters.records),
        ("given", counters.given),
        ("open", counters.open),
        ("recovered", counters.recovered),
        ("timeouts", counters.timeouts),
        ("stragglers", counters.stragglers),
        ("failures", counters.failures),
        ("late", counters.late),
        ("left_out", counters.left_out),
    ] {
        out.set_item(name, count)?;
    }
    let left_out = status.left_out.into_iter().map(|task| {
        let shard = task.shard;
        (task.number, shard.path, shard.first, shard.end, task.reason)
    });
    out.set_item("reasons", left_out.collect::<Vec<_>>())?;
    Ok(out)
}
/// Records of a queue in batches over its tasks.
#[pyclass(frozen, module = "tidewater")]
pub(crate) struct TaskFeed {
    session: Py<Session>,
    state: Mutex<FeedState>,
}

enum Feed {
    Rows(RecordFeed<RowReader>),
    Numbers(RecordFeed<RecordNumbers>),
}

struct FeedState {
    feed: Feed,
    /// The batch that is read; it stays when a call fails.
    rows: Columns,
    numbers: Vec<u64>,
}

/// Final task, rows and record numbers: one of them.
type FeedBatch<'py> = (
    Option<&'static str>,
    Option<Batch<'py>>,
    Option<Bound<'py, PyArray1<u64>>>,
);

impl FeedState {
    /// Reads until the batch has `size` records, or none can be had before these are done.
    fn fill(&mut self, client: &mut tidewater::Client, size: usize) -> Result<Next<()>, TaskError> {
        loop {
            let next = match &mut self.feed {
                Feed::Rows(feed) => without_record(feed.next(client)?, |row| self.rows.push(row)),
                Feed::Numbers(feed) => {
                    without_record(feed.next(client)?, |number| self.numbers.push(number))
                }
            };
            if next != Next::Record(()) || self.rows.rows() + self.numbers.len() >= size {
                return Ok(next);
            }
        }
    }
}

fn without_record<T>(next: Next<T>, keep: impl FnOnce(T)) -> Next<()> {
    match next {
        Next::Record(record) => Next::Record(keep(record)),
        Next::Flush => Next::Flush,
        Next::Final(kind) => Next::Final(kind),
        Next::End => Next::End,
    }
}

impl TaskFeed {
    /// Calls `body` with the client of the session and the state, without the interpreter lock.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut tidewater::Client, &mut FeedState) -> Result<R, TaskError> + Send,
    ) -> PyResult<R> {
        let mut state = self.state.try_lock().map_err(|_| {
            PyValueError::new_err("another thread uses this feed; give each thread its own session")
        })?;
        let state = &mut *state;
        let done = self
            .session
            .get()
            .with(py, |client| Ok(body(client, state)))?;
        done.map_err(raised)
    }
}

#[pymethods]
impl TaskFeed {
    /// Returns the next batch, or the kind of a final task; `None` when the queue is over.
    fn next_batch<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Option<FeedBatch<'py>>> {
        let next = self.with(py, |client, state| {
            let next = state.fill(client, size)?;
            let numbers = std::mem::take(&mut state.numbers);
            Ok((next, std::mem::take(&mut state.rows), numbers))
        });
        Ok(match next? {
            (Next::End, ..) => None,
            (Next::Final(kind), ..) => Some((Some(name(kind)), None, None)),
            (_, rows, numbers) => {
                let numbers = (!numbers.is_empty()).then(|| PyArray1::from_vec(py, numbers));
                Some((None, rows.batch(py), numbers))
            }
        })
    }

    /// Reports all records that the program has got as done, also after a call that failed; returns the number of
    /// tasks that are finished by it. Records of a batch that is not complete are not the program's yet.
    fn done(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |client, state| {
            let kept = (state.rows.rows() + state.numbers.len()) as u64;
            match &mut state.feed {
                Feed::Rows(feed) => feed.done(client, feed.undone().saturating_sub(kept)),
                Feed::Numbers(feed) => feed.done(client, feed.undone().saturating_sub(kept)),
            }
        })
    }

    /// Counters of the queue, and the tasks that are left out.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let status = self.with(py, |client, state| match &state.feed {
            Feed::Rows(feed) => feed.status(client),
            Feed::Numbers(feed) => feed.status(client),
        });
        described(py, status?)
    }
}

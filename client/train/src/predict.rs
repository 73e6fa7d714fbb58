//! Predictions by a saved model: one line a record, in files that appear when they are complete.
//!
//! The data is cut into parts, which do not depend on the workers. A part's lines are in the order of its
//! records: the probability of label 1, or `malformed: ` and the fault of a record that the policy leaves out.
//! The file of a part is written under a hidden name and renamed, so that a file is complete or absent.
//!
//! A worker first predicts its share of the parts, then those without a file: their worker may have
//! died. A model that is not trained meanwhile gives each part one content, so it does not matter which of two
//! workers finishes a part first, and a second run completes what a first one has left.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::clock::{self, Deadline};

use super::error::{PredictError, TrainError};
use super::metrics::MetricsError;
use super::saved::{self, Described};
use super::scorer::{BATCH_ROWS, Scorer};
use super::settings_check::hash_bytes;
use crate::data::{
    BatchPlan, DataSource as _, Dataset, FileSource, ReadOptions, Record, RowReader,
};
use tidewater::session::Client;
use tidewater::table::Table;

/// Parts for each worker, if their number is not given.
const PARTS_A_WORKER: u32 = 4;
/// Name of the file that describes the output.
const DESCRIPTION: &str = "_prediction";
const BEGIN: &str = "tidewater-prediction 1";
/// Beginning of the names of files that are being written.
const TEMPORARY: &str = ".part-";
/// Least time that a worker waits for the parts of others before it predicts them too, and the pause between
/// two looks.
const TAKEOVER_AFTER_MIN: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(20);

/// What to predict, and where to.
#[derive(Debug, Clone, PartialEq)]
pub struct PredictConfig {
    /// File, directory or pattern. Records have a label, which is ignored.
    pub data: PathBuf,
    /// Format and schema, and what malformed records lead to.
    pub read: ReadOptions,
    /// Directory of the output, which all workers see. It is made if it does not exist.
    pub out: PathBuf,
    /// Number of parts; `None`: that of the output that is continued, or four for each worker.
    pub parts: Option<NonZeroU32>,
    /// File for all parts, one after another, if it is wanted.
    pub merged: Option<PathBuf>,
    /// Directory of the saved model to load; `None`: the model is in the cluster.
    pub load: Option<String>,
}

/// A part that a worker has predicted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartReport {
    /// Number of the part, from 0.
    pub part: u32,
    /// Rank of the worker.
    pub worker: u32,
    /// Number of lines: one for each record.
    pub lines: u64,
    /// Number of lines of malformed records.
    pub malformed: u64,
    /// Time since the worker began.
    pub since_start: Duration,
    /// Duration of the part.
    pub took: Duration,
}

/// Result of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Predicted {
    /// Number of parts of the output. All of them are complete.
    pub parts: u32,
    /// Parts that this worker has predicted.
    pub own: Vec<PartReport>,
}

/// Predicts all records of the data. All workers of the job call it with equal settings, and each returns when all
/// parts are complete. The worker with the lowest rank that has not left merges them if asked for. `done` is called
/// after each part of this worker.
///
/// # Errors
/// Malformed data under the policy; a model of another kind, or data that does not fit it; an output directory with
/// other content; failures of the cluster and of the file system.
pub fn predict(
    client: &mut Client,
    config: &PredictConfig,
    done: &mut dyn FnMut(&PartReport) -> Result<(), TrainError>,
) -> Result<Predicted, TrainError> {
    let start = clock::now();
    let source = FileSource::new(&config.data, config.read.schema.as_ref())?;
    let (rank, workers) = (client.rank().0, client.workers().max(1));
    let settings = Description::settings(config, &source);
    if rank == 0 {
        let parts = workers.saturating_mul(PARTS_A_WORKER);
        Description::begin(config, settings, parts)?;
    }
    // All wait for rank 0 in it.
    let (weights, described) = saved::load(client, config.load.as_deref())?;
    let description = Description::read(&config.out)?;
    if description.settings != settings {
        return Err(TrainError::Differs {
            flag: "--data, --format or --schema",
            rank,
            given: "one".into(),
            other: "another one".into(),
        });
    }
    let mut work = Work {
        config,
        source: Arc::new(source),
        parts: description.parts,
        rank,
        weights,
        described,
        scorer: Scorer::of_saved(),
        start,
        own: Vec::new(),
    };
    for part in (rank..work.parts).step_by(workers as usize) {
        work.part(client, part, false, done)?;
    }
    work.complete(client, done)?;
    if client.leads()? {
        work.tidy()?;
        if let Some(merged) = &config.merged {
            work.merge(merged)?;
        }
    }
    Ok(Predicted {
        parts: work.parts,
        own: work.own,
    })
}

/// What an output directory is the prediction of.
#[derive(Debug, PartialEq, Eq)]
struct Description {
    /// Hash of the files' names and sizes and of their format.
    settings: u64,
    /// Hash of the model's manifest; 0 for a model that is not loaded from files.
    model: u64,
    parts: u32,
}

impl Description {
    fn settings(config: &PredictConfig, source: &FileSource) -> u64 {
        hash_bytes(format!("{:?} {:?}", config.read, source.shards()).as_bytes())
    }

    /// Makes the directory, or finds one of the same prediction, of which the complete parts are kept.
    fn begin(config: &PredictConfig, settings: u64, parts: u32) -> Result<(), PredictError> {
        let dir = &config.out;
        let model = match &config.load {
            None => 0,
            Some(model) => {
                let path = Path::new(model).join(tidewater_checkpoint::MANIFEST_NAME);
                hash_bytes(&fs::read(&path).map_err(failed("read", &path))?)
            }
        };
        fs::create_dir_all(dir).map_err(failed("make", dir))?;
        let path = dir.join(DESCRIPTION);
        if path.exists() {
            let found = Self::read(dir)?;
            let wanted = config.parts.map_or(found.parts, NonZeroU32::get);
            let other = if model == 0 || found.model != model {
                Some("predictions of another model")
            } else if found.settings != settings {
                Some("predictions of other data")
            } else if found.parts != wanted {
                Some("predictions in another number of parts")
            } else {
                None
            };
            return match other {
                Some(found) => Err(occupied(dir, found.to_owned())),
                None => clear(dir),
            };
        }
        let mut files = fs::read_dir(dir).map_err(failed("list", dir))?;
        if let Some(file) = files.next() {
            let file = file.map_err(failed("list", dir))?;
            return Err(occupied(dir, file.file_name().display().to_string()));
        }
        let parts = config.parts.map_or(parts, NonZeroU32::get);
        let text =
            format!("{BEGIN}\nsettings {settings:016x}\nmodel {model:016x}\nparts {parts}\n");
        let new = dir.join(format!("{TEMPORARY}description"));
        fs::write(&new, text).map_err(failed("write", &new))?;
        fs::rename(&new, &path).map_err(failed("rename", &path))
    }

    fn read(dir: &Path) -> Result<Self, PredictError> {
        let path = dir.join(DESCRIPTION);
        let text = fs::read_to_string(&path).map_err(failed("read", &path))?;
        let mut lines = text.lines();
        let mut next = |name: &str| {
            let line = lines.next()?.strip_prefix(name)?;
            Some(line.strip_prefix(' ').unwrap_or(line))
        };
        let mut read = || {
            next(BEGIN)?;
            Some(Self {
                settings: u64::from_str_radix(next("settings")?, 16).ok()?,
                model: u64::from_str_radix(next("model")?, 16).ok()?,
                parts: next("parts")?.parse().ok().filter(|&parts| parts > 0)?,
            })
        };
        read().ok_or_else(|| occupied(dir, format!("a damaged {DESCRIPTION}")))
    }
}

/// Removes what processes have left that ended while they wrote.
fn clear(dir: &Path) -> Result<(), PredictError> {
    for file in fs::read_dir(dir).map_err(failed("list", dir))? {
        let file = file.map_err(failed("list", dir))?;
        let name = file.file_name();
        if name.as_encoded_bytes().starts_with(TEMPORARY.as_bytes()) {
            match fs::remove_file(file.path()) {
                // Its writer was faster.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(failed("remove", &file.path()))?,
            }
        }
    }
    Ok(())
}

/// State of a worker.
struct Work<'a> {
    config: &'a PredictConfig,
    source: Arc<FileSource>,
    parts: u32,
    rank: u32,
    weights: Table<f32>,
    described: Described,
    scorer: Scorer,
    start: Instant,
    own: Vec<PartReport>,
}

impl Work<'_> {
    fn path(&self, part: u32) -> PathBuf {
        let (dir, parts) = (&self.config.out, self.parts);
        dir.join(format!("part-{part:05}-of-{parts:05}"))
    }

    /// Predicts a part unless its file is there.
    fn part(
        &mut self,
        client: &mut Client,
        part: u32,
        takes_over: bool,
        done: &mut dyn FnMut(&PartReport) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let path = self.path(part);
        if path.exists() {
            return Ok(());
        }
        let (rank, pid) = (self.rank, std::process::id());
        let temporary = match mutants::on(Mutant::PartWrittenInPlace) {
            true => path.clone(),
            false => {
                let name = format!("{TEMPORARY}{part:05}.{rank}.{pid}");
                self.config.out.join(name)
            }
        };
        let written = self.write(client, part, &temporary, takes_over);
        if !matches!(written, Ok(Some(_))) {
            // The first error is the one to return.
            let _ = fs::remove_file(&temporary);
        }
        let Some(report) = written? else {
            return Ok(());
        };
        match fs::rename(&temporary, &path) {
            // Another worker has completed the part, and the output is tidied.
            Err(e) if e.kind() == io::ErrorKind::NotFound && path.exists() => return Ok(()),
            renamed => renamed.map_err(failed("rename", &temporary))?,
        }
        done(&report)?;
        self.own.push(report);
        Ok(())
    }

    /// Writes the lines of a part; `None` if another worker has completed it meanwhile.
    fn write(
        &mut self,
        client: &mut Client,
        part: u32,
        path: &Path,
        takes_over: bool,
    ) -> Result<Option<PartReport>, TrainError> {
        let began = clock::now();
        let file = File::create(path).map_err(failed("create", path))?;
        let mut file = BufWriter::new(file);
        let shards = self.source.part(part, self.parts)?;
        let mut rows = RowReader::new(self.source.clone(), shards, &self.config.read)?;
        let (mut lines, mut malformed) = (0, 0);
        loop {
            let batch = Lines::read(&mut rows)?;
            let data = &batch.rows;
            let width = rows.width().filter(|_| data.rows() > 0);
            self.described
                .check(&self.config.data, width, data.max_key())?;
            lines += batch.write(client, &self.weights, &mut self.scorer, |line| {
                writeln!(file, "{line}").map_err(failed("write", path))
            })?;
            malformed += batch.faults.len() as u64;
            if batch.is_last {
                break;
            }
            if takes_over && self.path(part).exists() {
                return Ok(None);
            }
        }
        let file = file.into_inner().map_err(io::IntoInnerError::into_error);
        let synced = file.and_then(|file| file.sync_all());
        synced.map_err(failed("write", path))?;
        Ok(Some(PartReport {
            part,
            worker: self.rank,
            lines,
            malformed,
            since_start: clock::now() - self.start,
            took: clock::now() - began,
        }))
    }

    /// Waits for the parts of other workers, and predicts those that do not appear within twice the mean time of
    /// a part of this worker.
    fn complete(
        &mut self,
        client: &mut Client,
        done: &mut dyn FnMut(&PartReport) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let took: Duration = self.own.iter().map(|part| part.took).sum();
        let mean = took / u32::try_from(self.own.len()).unwrap_or(u32::MAX).max(1);
        loop {
            let until = Deadline::after(TAKEOVER_AFTER_MIN.max(2 * mean));
            let before = self.missing();
            while !until.passed() && self.missing().len() == before.len() && !before.is_empty() {
                client.check_job()?;
                client.progress()?;
                std::thread::sleep(LOOK);
            }
            let missing = self.missing();
            if missing.is_empty() {
                return Ok(());
            }
            if missing.len() == before.len() {
                // Workers that take over begin at different parts.
                let at = self.rank as usize % missing.len();
                self.part(client, missing[at], true, done)?;
            }
        }
    }

    fn missing(&self) -> Vec<u32> {
        (0..self.parts)
            .filter(|&part| !self.path(part).exists())
            .collect()
    }

    /// Removes what workers have left that died, or were slower.
    fn tidy(&self) -> Result<(), PredictError> {
        clear(&self.config.out)
    }

    /// Writes all parts into one file, one after another.
    fn merge(&self, merged: &Path) -> Result<(), PredictError> {
        // A path without a name is a directory: the file cannot take its place, which is an error below.
        let name = merged.file_name().unwrap_or_default().to_owned();
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(&name);
        // Rank and process: workers on two hosts may both merge, and may have one process id.
        hidden.push(format!(".{}.{}.tmp", self.rank, std::process::id()));
        let temporary = merged.with_file_name(hidden);
        let mut file = File::create(&temporary).map_err(failed("create", &temporary))?;
        for part in 0..self.parts {
            let path = self.path(part);
            let mut input = File::open(&path).map_err(failed("open", &path))?;
            io::copy(&mut input, &mut file).map_err(failed("write", &temporary))?;
        }
        let synced = file
            .sync_all()
            .and_then(|()| fs::rename(&temporary, merged));
        synced.map_err(failed("write", merged))
    }
}

/// Records of a part: some rows, and malformed records between them.
struct Lines {
    rows: Dataset,
    /// The malformed records in order: number of rows before each, and its fault.
    faults: Vec<(usize, String)>,
    is_last: bool,
}

impl Lines {
    fn read(reader: &mut RowReader) -> Result<Self, TrainError> {
        let mut lines = Self {
            rows: Dataset::new(),
            faults: Vec::new(),
            is_last: false,
        };
        while lines.rows.rows() + lines.faults.len() < BATCH_ROWS.get() {
            match reader.next_record()? {
                None => {
                    lines.is_last = true;
                    break;
                }
                Some(Record::Malformed(fault)) => {
                    lines.faults.push((lines.rows.rows(), fault.to_string()));
                }
                Some(Record::Row) => {
                    let row = reader.row();
                    lines.rows.push(row.label, row.keys, row.values)?;
                }
            }
        }
        Ok(lines)
    }

    /// Passes the line of each record to `out`, in their order; returns their number.
    fn write(
        &self,
        client: &mut Client,
        weights: &Table<f32>,
        scorer: &mut Scorer,
        mut out: impl FnMut(&dyn std::fmt::Display) -> Result<(), PredictError>,
    ) -> Result<u64, TrainError> {
        let plan = BatchPlan::new(&self.rows, BATCH_ROWS);
        let probabilities = match plan.is_empty() {
            true => &[],
            false => scorer.score(client, weights, &plan.batch(0))?,
        };
        let mut lines = 0;
        let mut faults = self.faults.iter().peekable();
        for (row, &probability) in probabilities.iter().enumerate() {
            while let Some((_, fault)) = faults.next_if(|(before, _)| *before <= row) {
                out(&format_args!("malformed: {fault}"))?;
                lines += 1;
            }
            if !probability.is_finite() {
                let (row, score) = (row as u64, probability);
                return Err(MetricsError::NotFinite { row, score }.into());
            }
            out(&probability)?;
            lines += 1;
        }
        for (_, fault) in faults {
            out(&format_args!("malformed: {fault}"))?;
            lines += 1;
        }
        Ok(lines)
    }
}

fn occupied(dir: &Path, found: String) -> PredictError {
    let dir = dir.to_owned();
    PredictError::Occupied { dir, found }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PredictError {
    let path = path.to_owned();
    move |source| PredictError::Io {
        operation,
        path,
        source,
    }
}

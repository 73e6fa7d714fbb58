//! A file of one JSON object a line: epochs, evaluations and predicted parts.
//!
//! ```text
//! {"event":"evaluation","epoch":1,"step":100,"clocks":[100,100],"seconds":0.41,"took":0.02,"records":16281,
//!  "skipped":0,"metrics":{"rows":16281,"log_loss":0.33,...},"rates":{"rows_per_second":...},"parts":[...]}
//! ```

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::error::TrainError;
use super::evaluate::{EvaluationReport, PartCount, Quality};
use super::host::EpochReport;
use super::predict::PartReport;

/// A line of the file. Fields that an event does not have are left out.
#[derive(Debug, Serialize)]
struct Line<'a> {
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// Ticks at the first and at the last weight that was read.
    clocks: Option<[u64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<u32>,
    /// Seconds since the run began.
    seconds: f64,
    /// Seconds that this took.
    took: f64,
    records: u64,
    skipped: u64,
    metrics: Metrics,
    rates: Rates,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    parts: &'a [PartCount],
}

/// Figures of an event.
#[derive(Debug, Default, Serialize)]
struct Metrics {
    /// Mean log-loss of the rows of an epoch, each computed before its step.
    #[serde(skip_serializing_if = "Option::is_none")]
    train_log_loss: Option<f64>,
    /// Figures on held-out data.
    #[serde(flatten)]
    test: Option<Quality>,
}

#[derive(Debug, Serialize)]
struct Rates {
    rows_per_second: f64,
}

impl Rates {
    fn new(rows: u64, took: Duration) -> Self {
        let seconds = took.as_secs_f64();
        let rows_per_second = if seconds > 0.0 {
            rows as f64 / seconds
        } else {
            0.0
        };
        Self { rows_per_second }
    }
}

/// A file that lines are appended to. Several processes may append to one file: each line is one write.
#[derive(Debug)]
pub struct EventLog {
    path: PathBuf,
    file: File,
}

impl EventLog {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// [`TrainError::Report`] with the error of the system.
    pub fn open(path: &Path) -> Result<Self, TrainError> {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let file = opened.map_err(|source| failed(path, source))?;
        let path = path.to_owned();
        Ok(Self { path, file })
    }

    /// Appends the line of an epoch.
    ///
    /// # Errors
    /// As [`EventLog::open`].
    pub fn epoch(&mut self, epoch: &EpochReport) -> Result<(), TrainError> {
        self.append(&Line {
            event: "epoch",
            epoch: Some(epoch.epoch),
            step: Some(epoch.step),
            clocks: Some([epoch.clock; 2]),
            part: None,
            worker: None,
            seconds: epoch.since_start.as_secs_f64(),
            took: epoch.took.as_secs_f64(),
            records: epoch.rows,
            skipped: skipped(&epoch.parts),
            metrics: Metrics {
                train_log_loss: Some(epoch.log_loss),
                test: epoch.test,
            },
            rates: Rates::new(epoch.rows, epoch.took),
            parts: &epoch.parts,
        })
    }

    /// Appends the line of an evaluation.
    ///
    /// # Errors
    /// As [`EventLog::open`].
    pub fn evaluation(&mut self, report: &EvaluationReport) -> Result<(), TrainError> {
        let of_training = |number: u64| (report.epoch > 0).then_some(number);
        self.append(&Line {
            event: "evaluation",
            epoch: of_training(report.epoch),
            step: of_training(report.step),
            clocks: Some([report.first_clock, report.last_clock]),
            part: None,
            worker: None,
            seconds: report.since_start.as_secs_f64(),
            took: report.took.as_secs_f64(),
            records: report.quality.rows,
            skipped: skipped(&report.parts),
            metrics: Metrics {
                train_log_loss: None,
                test: Some(report.quality),
            },
            rates: Rates::new(report.quality.rows, report.took),
            parts: &report.parts,
        })
    }

    /// Appends the line of a predicted part.
    ///
    /// # Errors
    /// As [`EventLog::open`].
    pub fn part(&mut self, part: &PartReport) -> Result<(), TrainError> {
        self.append(&Line {
            event: "part",
            epoch: None,
            step: None,
            clocks: None,
            part: Some(part.part),
            worker: Some(part.worker),
            seconds: part.since_start.as_secs_f64(),
            took: part.took.as_secs_f64(),
            records: part.lines,
            skipped: part.malformed,
            metrics: Metrics::default(),
            rates: Rates::new(part.lines, part.took),
            parts: &[],
        })
    }

    fn append(&mut self, line: &Line<'_>) -> Result<(), TrainError> {
        let written = serde_json::to_vec(line).map_err(std::io::Error::from);
        let written = written.and_then(|mut text| {
            text.push(b'\n');
            self.file.write_all(&text)
        });
        written.map_err(|source| failed(&self.path, source))
    }
}

fn skipped(parts: &[PartCount]) -> u64 {
    parts.iter().map(|part| part.skipped).sum()
}

fn failed(path: &Path, source: std::io::Error) -> TrainError {
    let path = path.to_owned();
    TrainError::Report { path, source }
}

//! Signals and progress lines of the program.

use std::fmt;
use std::path::Path;

use tidewater::walltime::Signals;
use tidewater_train::event_log::EventLog;
use tidewater_train::{
    EpochReport, EvaluationReport, Host, Quality, Report, Resumed, TrainError, exit,
};

use crate::{Failure, say};

/// The program around the training loop.
pub(crate) struct Console {
    signals: Signals,
    log: Option<EventLog>,
    /// The first failure of the log, which ends no training.
    failure: Option<TrainError>,
}

impl Console {
    /// Starts to record SIGTERM and SIGUSR1, which no longer end the process by themselves.
    pub(crate) fn new(log: Option<&Path>) -> Result<Self, Failure> {
        let signals = Signals::catch().map_err(|e| Failure::new(exit::ENVIRONMENT, e))?;
        Ok(Self {
            signals,
            log: log.map(EventLog::open).transpose()?,
            failure: None,
        })
    }

    /// Ends the log.
    ///
    /// # Errors
    /// The first line that could not be written.
    pub(crate) fn close(&mut self) -> Result<(), TrainError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    fn write(&mut self, line: impl FnOnce(&mut EventLog) -> Result<(), TrainError>) {
        if let Some(log) = &mut self.log
            && let Err(failure) = line(log)
        {
            self.failure.get_or_insert(failure);
        }
    }
}

impl Host for Console {
    fn signal(&mut self) -> Option<i32> {
        self.signals.came()
    }

    fn resumed(&mut self, resumed: &Resumed) {
        let (epoch, step, steps) = (resumed.epoch, resumed.step, resumed.steps);
        match &resumed.differs {
            None => say(format_args!(
                "goes on at epoch {epoch}, step {step} of {steps}"
            )),
            Some(differs) => say(format_args!(
                "the model was trained with {differs}: goes on at the beginning of epoch {epoch}, and \
                 its bits are not those of one run"
            )),
        }
    }

    fn epoch_done(&mut self, epoch: &EpochReport) {
        let seconds = epoch.took.as_secs_f64();
        let rate = epoch.rows as f64 / seconds.max(1e-9);
        let (n, of, rows, loss) = (epoch.epoch, epoch.epochs, epoch.rows, epoch.log_loss);
        let test = epoch.test.map(|quality| format!("; test: {}", Of(quality)));
        let test = test.unwrap_or_default();
        say(format_args!(
            "epoch {n}/{of}: {rows} rows in {seconds:.2} s, {rate:.0} rows/s, log-loss {loss:.4}{test}"
        ));
        self.write(|log| log.epoch(epoch));
    }

    fn evaluated(&mut self, evaluation: &EvaluationReport) {
        self.write(|log| log.evaluation(evaluation));
    }
}

/// Formats a quality in words.
pub(crate) struct Of(pub(crate) Quality);

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.auc {
            Some(auc) => write!(f, "AUC {auc:.4}, ")?,
            None => write!(f, "no AUC of rows of one class, ")?,
        }
        let Quality {
            log_loss,
            accuracy,
            rmse,
            ..
        } = self.0;
        write!(
            f,
            "log-loss {log_loss:.4}, accuracy {accuracy:.4}, RMSE {rmse:.4}"
        )
    }
}

/// Prints the last lines of rank 0.
pub(crate) fn conclude(report: &Report) {
    let quality = report.log_loss.zip(report.accuracy);
    if let Some((log_loss, accuracy)) = quality {
        let quality = Quality {
            rows: report.test_rows,
            log_loss,
            auc: report.auc,
            accuracy,
            rmse: report.rmse.unwrap_or(f64::NAN),
            positives: report.test_positives,
        };
        say(format_args!(
            "test: {}; {} rows",
            Of(quality),
            report.test_rows
        ));
    }
    let share = 100.0 * report.zeros;
    say(format_args!(
        "model: {} weights, {share:.1} % of them exactly zero; {:.0} rows/s ({}, {}, {} servers, \
         {} workers)",
        report.weights,
        report.rows_per_second,
        report.sync,
        report.transport,
        report.servers,
        report.workers,
    ));
}

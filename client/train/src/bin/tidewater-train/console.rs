//! Signals and progress lines of the program.

use std::fmt;

use tidewater::walltime::Signals;
use tidewater_train::{EpochReport, Host, Quality, Report, Resumed, exit};

use crate::{Failure, say};

/// The program around the training loop.
pub(crate) struct Console {
    signals: Signals,
}

impl Console {
    /// Starts to record SIGTERM and SIGUSR1, which no longer end the process by themselves.
    pub(crate) fn new() -> Result<Self, Failure> {
        let signals = Signals::catch().map_err(|e| Failure::new(exit::ENVIRONMENT, e))?;
        Ok(Self { signals })
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
    }
}

/// Formats a quality in words.
struct Of(Quality);

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.auc {
            Some(auc) => write!(f, "AUC {auc:.4}, ")?,
            None => write!(f, "no AUC of rows of one class, ")?,
        }
        let Quality {
            log_loss, accuracy, ..
        } = self.0;
        write!(f, "log-loss {log_loss:.4}, accuracy {accuracy:.4}")
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

//! Errors of a training run, and their exit codes.

use std::path::PathBuf;

use tidewater_protocol::layout::lines::RejectCode;
use tidewater_protocol::table::{Apply, TableSpec};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::metrics::MetricsError;
use super::model::ModelError;
use crate::data::DataError;
use tidewater::error::ClientError;

/// Why predictions are not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The directory of the output holds something else.
    #[error("{}: holds {found}, which is no output of this prediction; name a new directory", dir.display())]
    Occupied {
        /// Directory of the output.
        dir: PathBuf,
        /// Name of a file in it, or the setting that differs.
        found: String,
    },
    /// An operation on a file of the output failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
}

/// Why a run ended without a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A training or test file could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A training or test file has no rows.
    #[error("{}: holds no rows; is it the right file?", path.display())]
    NoRows {
        /// Path of the file.
        path: PathBuf,
    },
    /// Two workers of the run have different settings.
    #[error(
        "{flag} differs: worker 0 was given {given} and worker {rank} {other}; give all workers of a \
         job the same"
    )]
    Differs {
        /// Flag of the setting.
        flag: &'static str,
        /// The first worker with another value than worker 0.
        rank: u32,
        /// Value at worker 0.
        given: String,
        /// Value at the other worker.
        other: String,
    },
    /// A batch does not fit the model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Predictions cannot be measured.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The loaded model was trained with other settings than these.
    #[error(
        "the model in {dir} was trained with other settings, and goes on or is evaluated only with \
         its own: {why}; {remedy}"
    )]
    OtherTraining {
        /// Directory of the loaded model.
        dir: String,
        /// Fields in which its table differs.
        why: String,
        /// Flags that match its training.
        remedy: String,
    },
    /// The position of the loaded model in its training set is invalid.
    #[error(
        "the model in {dir} has no usable position in its training set: {what}; load it with the \
         release that saved it, or restore it from a copy"
    )]
    Position {
        /// Directory of the loaded model.
        dir: String,
        /// Condition that does not hold.
        what: String,
    },
    /// The model is of another kind than those of this program.
    #[error(
        "the model in {dir} is not of this program: {what}; give the directory of `tidewater-train --save`"
    )]
    OtherModel {
        /// Directory of the model.
        dir: String,
        /// Property that it lacks.
        what: String,
    },
    /// Records of the data have other features than those that the model was trained on.
    #[error(
        "{}: has {found} features, and the model was trained on {model}; give data with the columns of the \
         training set",
        path.display()
    )]
    Width {
        /// Path of the data.
        path: PathBuf,
        /// Number of features of the data.
        found: u64,
        /// Number of features of the training set.
        model: u64,
    },
    /// Predictions could not be written.
    #[error(transparent)]
    Predict(#[from] PredictError),
    /// Evaluations by time need a step that all workers have in common.
    #[error(
        "evaluations by time need a bound on staleness, and asp has none; evaluate after steps or epochs, or by an \
         observer: tidewater-train evaluate --observe"
    )]
    NoCommonStep,
    /// A call to the cluster failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The figures could not be written.
    #[error("cannot write the figures to {}: {source}", path.display())]
    Report {
        /// Path of the output file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
}

/// Exit codes of Tidewater's programs; 128+n is for signal n.
pub mod exit {
    /// A check failed: the model diverged, or a peer found an invalid state.
    pub const CHECK: u8 = 1;
    /// The command line is wrong.
    pub const USAGE: u8 = 2;
    /// The machine or the environment does not allow the run.
    pub const ENVIRONMENT: u8 = 3;
    /// Another process is missing, silent or refuses.
    pub const PEER: u8 = 4;
    /// A data file is wrong.
    pub const DATA: u8 = 5;
}

impl TrainError {
    /// Makes the error of a model's table that the coordinator refused for `why`, from its loaded and
    /// its wanted definition.
    pub(super) fn other_training(
        dir: &str,
        why: &Refusal,
        have: Option<&TableSpec>,
        want: &TableSpec,
    ) -> Self {
        let mut flags = Vec::new();
        if let Some(have) = have {
            // `Config::table`: only under BSP do pushes take effect at the tick.
            match have.effect {
                effect if effect == want.effect => {}
                Apply::AtTick(_) => flags.push("--sync bsp"),
                Apply::Immediate => flags.push("--sync asp or --sync ssp:S"),
            }
            if have.optimizer != want.optimizer {
                flags.push("the optimizer of its training (lr or ftrl, and their flags)");
            }
        }
        let remedy = match flags[..] {
            [] => "was it saved by another program?".into(),
            _ => format!("give {}", flags.join(" and ")),
        };
        let (dir, why) = (dir.to_owned(), why.text.clone());
        Self::OtherTraining { dir, why, remedy }
    }

    /// The exit code of the process for this error.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Data(_)
            | Self::NoRows { .. }
            | Self::Position { .. }
            | Self::OtherModel { .. }
            | Self::Width { .. } => exit::DATA,
            Self::Model(_) | Self::Metrics(_) => exit::CHECK,
            Self::OtherTraining { .. } | Self::Differs { .. } | Self::NoCommonStep => exit::USAGE,
            Self::Client(e) => client_code(e),
            Self::Report { .. } | Self::Predict(PredictError::Io { .. }) => exit::ENVIRONMENT,
            Self::Predict(PredictError::Occupied { .. }) => exit::USAGE,
        }
    }
}

const fn client_code(e: &ClientError) -> u8 {
    match e {
        ClientError::Rejected { reject, .. } => match reject.code() {
            RejectCode::NoMemory | RejectCode::TableFull => exit::ENVIRONMENT,
            _ => exit::CHECK,
        },
        ClientError::RejectForgotten { .. } | ClientError::Argument { .. } => exit::CHECK,
        ClientError::Environment(_) | ClientError::NoJob(_) | ClientError::JobFile(_) => {
            exit::ENVIRONMENT
        }
        ClientError::Refused(refusal) => match refusal.code {
            // The command line asks for a table that differs in the cluster or in a saved model.
            RefusalCode::TableDiffers | RefusalCode::BadSpec => exit::USAGE,
            RefusalCode::Io | RefusalCode::OutOfMemory => exit::ENVIRONMENT,
            RefusalCode::BadCheckpoint => exit::DATA,
            _ => exit::PEER,
        },
        _ => exit::PEER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, defaults};
    use tidewater::clock::SyncMode;

    #[test]
    fn each_kind_of_error_has_its_exit_code() {
        let path = PathBuf::from("a9a");
        let no_rows = TrainError::NoRows { path };
        assert_eq!(no_rows.exit_code(), 5);
        assert_eq!(
            no_rows.to_string(),
            "a9a: holds no rows; is it the right file?"
        );
        let refused =
            |code| TrainError::from(ClientError::from(Refusal::new(code, [0; 4]))).exit_code();
        assert_eq!(refused(RefusalCode::TableDiffers), 2);
        assert_eq!(refused(RefusalCode::Io), 3);
        assert_eq!(refused(RefusalCode::PeerFailed), 4);
        assert_eq!(refused(RefusalCode::BadCheckpoint), 5);
        let alone = ClientError::Environment("no memlock".into());
        assert_eq!(TrainError::from(alone).exit_code(), 3);
        let lost = ClientError::ServerLost {
            server: "server 1".into(),
            op: "connect",
            source: "connection refused".into(),
        };
        assert_eq!(TrainError::from(lost).exit_code(), 4);
    }

    #[test]
    fn a_model_of_another_training_says_which_settings_are_its_own() {
        let table = |sync, optimizer| {
            let mut config = Config::new("a9a");
            (config.sync, config.optimizer) = (sync, optimizer);
            config.table()
        };
        let bsp = table(SyncMode::Bsp, defaults::ADAGRAD);
        let ssp = table(SyncMode::Ssp(2), defaults::ADAGRAD);
        let ftrl = table(SyncMode::Bsp, defaults::FTRL);
        let why = Refusal::new(RefusalCode::TableDiffers, [3, 0, 0, 0]).with_text("table \"w\"");
        for (have, want, says) in [
            (Some(&bsp), &ssp, "give --sync bsp"),
            (Some(&ssp), &bsp, "give --sync asp or --sync ssp:S"),
            (Some(&ftrl), &bsp, "give the optimizer of its training"),
            (Some(&ftrl), &ssp, "give --sync bsp and the optimizer of"),
            (None, &bsp, "saved by another program?"),
        ] {
            let error = TrainError::other_training("m", &why, have, want);
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            assert!(
                text.contains(says) && text.contains("table \"w\""),
                "{text}"
            );
        }
    }
}

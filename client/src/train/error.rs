//! What ends a training run.

use std::path::PathBuf;

use tidewater_transport::layout::lines::RejectCode;
use tidewater_transport::wire::refusal::RefusalCode;

use super::metrics::MetricsError;
use super::model::ModelError;
use crate::data::DataError;
use crate::error::ClientError;

/// Why a run ended without a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A training or test file.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A file without rows.
    #[error("{}: holds no rows; is it the right file?", path.display())]
    NoRows {
        /// The file.
        path: PathBuf,
    },
    /// A batch that does not fit the model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Predictions that cannot be measured.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The cluster.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The figures could not be written.
    #[error("cannot write the figures to {}: {source}", path.display())]
    Report {
        /// Where to.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

/// Exit codes of Tidewater's programs; 128+n is for signal n.
pub mod exit {
    /// A check failed: the model diverged, or a peer found what should not be.
    pub const CHECK: u8 = 1;
    /// The command line is wrong.
    pub const USAGE: u8 = 2;
    /// The machine or the environment does not allow it.
    pub const ENVIRONMENT: u8 = 3;
    /// Another process is missing, silent or unwilling.
    pub const PEER: u8 = 4;
    /// A data file is wrong.
    pub const DATA: u8 = 5;
}

impl TrainError {
    /// The process's exit code for it.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Data(_) | Self::NoRows { .. } => exit::DATA,
            Self::Model(_) | Self::Metrics(_) => exit::CHECK,
            Self::Client(e) => client_code(e),
            Self::Report { .. } => exit::ENVIRONMENT,
        }
    }
}

const fn client_code(e: &ClientError) -> u8 {
    match e {
        ClientError::Rejected { reject, .. } => match reject.code {
            RejectCode::NoMemory => exit::ENVIRONMENT,
            _ => exit::CHECK,
        },
        ClientError::Argument { .. } => exit::CHECK,
        ClientError::Environment(_) => exit::ENVIRONMENT,
        ClientError::Refused(refusal) => match refusal.code {
            // The command line asks for a table that the cluster, or a saved model, has otherwise.
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
    use tidewater_transport::wire::refusal::Refusal;

    use super::*;

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
            why: "connection refused".into(),
        };
        assert_eq!(TrainError::from(lost).exit_code(), 4);
    }
}

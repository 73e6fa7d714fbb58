//! Failures of a subcommand: each names its cause and the remedy.

use std::io;

/// Reason for which a subcommand ends with exit code 1.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A file could not be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// "read" or "write".
        action: &'static str,
        /// Path as the user would type it from the root.
        path: String,
        #[source]
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot run {program}: {source}; is it installed and on PATH?")]
    Start {
        program: String,
        #[source]
        source: io::Error,
    },
    /// A program ended with an error.
    #[error("{command} failed: {message}")]
    Command { command: String, message: String },
    /// A file or an answer does not have the expected form.
    #[error("{subject}: {problem}; {remedy}")]
    Malformed {
        subject: String,
        problem: String,
        remedy: String,
    },
    /// A check read nothing, so that its verdict would say nothing.
    #[error("no {0} to check: run it in a checkout of the project")]
    NothingRead(&'static str),
    /// The sources break a rule; the findings are printed already.
    #[error("{count} {what}; {remedy}")]
    Findings {
        count: usize,
        what: &'static str,
        remedy: String,
    },
}

/// Result of a subcommand.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

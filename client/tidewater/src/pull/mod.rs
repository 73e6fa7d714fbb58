//! Pulls: one-sided reads that prove themselves, and what to do when they do not.

#![deny(clippy::cast_possible_truncation)]

mod async_pull;
mod batched_ranges;
mod blocks;
mod direct;
mod gather;
mod rows;
mod validation;

use std::time::Duration;

use tidewater_protocol::limits::DATA_DEADLINE;
use tidewater_runtime::clock::Deadline;

pub(crate) use async_pull::LaterPulls;
pub use async_pull::PullTicket;
pub(crate) use blocks::{BlockScratch, pull as pull_blocks};
pub(crate) use gather::request;
pub(crate) use rows::{RowScratch, pull as pull_rows, read_ops};

/// When a pull gives up. The clock is read when the first wait begins, not before: most pulls from
/// memory that is mapped never wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Timeout {
    /// So long after its first wait begins.
    In(Duration),
    /// Then.
    At(Deadline),
}

impl Timeout {
    /// The deadline of a wait that begins now.
    fn deadline(self) -> Deadline {
        match self {
            Self::In(timeout) => Deadline::after(timeout),
            Self::At(deadline) => deadline,
        }
    }
}

/// How a pull reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PullMode {
    /// Every row or block is one committed version: read one-sidedly, verified, read again when it
    /// was being written, and gathered by the server after a bounded number of tries.
    #[default]
    Consistent,
    /// Whatever is there: rows may mix two versions. Only that the slot still holds the same
    /// generation is checked, and by one row or version word of each server that the table is
    /// still there.
    Hogwild,
    /// The whole range as of one tick (tables made with `snapshot`; of these the two modes above are
    /// this one too).
    Snapshot,
    /// The server copies the rows together.
    Gather,
}

/// What a pull of a key without a row does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Missing {
    /// Creates the row with its first values (training).
    #[default]
    Create,
    /// Answers the first values and stores nothing (evaluation).
    Initial,
}

/// Options of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullOptions {
    /// How to read.
    pub mode: PullMode,
    /// What to do with unknown keys.
    pub missing: Missing,
    /// Longest time that it may wait.
    pub timeout: Duration,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            mode: PullMode::default(),
            missing: Missing::default(),
            timeout: DATA_DEADLINE,
        }
    }
}

impl PullOptions {
    /// With another mode.
    #[must_use]
    pub const fn mode(mut self, mode: PullMode) -> Self {
        self.mode = mode;
        self
    }

    /// With another treatment of unknown keys.
    #[must_use]
    pub const fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }
}

//! Pulls: self-validating one-sided reads, their repetition, and the fallback to the server.

#![deny(clippy::cast_possible_truncation)]

mod async_pull;
mod async_ranges;
mod batched_ranges;
mod blocks;
mod direct;
mod gather;
mod lane_reads;
mod rows;

use std::time::Duration;

use tidewater_protocol::limits::DATA_DEADLINE;
use tidewater_runtime::clock::Deadline;

pub use async_pull::PullTicket;
pub(crate) use async_pull::{AsyncPulls, RangeRequest};
pub(crate) use blocks::{BlockScratch, Reading, Want, newest_version, pull as pull_blocks};
pub(crate) use gather::request;
pub(crate) use lane_reads::{CallDest, LaneReads, read_lanes};
pub(crate) use rows::{RowScratch, pull as pull_rows};
pub(crate) use tidewater_bookkeeping::versions::Seen;
pub use tidewater_bookkeeping::versions::{Pulled, RangeVersions};

/// Time limit of a pull: a duration from its first wait on, or a deadline. The clock is not read before that wait,
/// as most pulls from mapped memory never wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Timeout {
    /// This long after its first wait begins.
    In(Duration),
    /// At this point in time.
    At(Deadline),
}

impl Timeout {
    /// Deadline of a wait that begins now: the given one, or the given duration from now on.
    fn deadline(self) -> Deadline {
        match self {
            Self::In(timeout) => Deadline::after(timeout),
            Self::At(deadline) => deadline,
        }
    }
}

/// Read mode of a pull, and the consistency that it guarantees.
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, PullMode, PullOptions, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let table = client.create_table::<f32>(TableBuilder::rows::<f32>("w", 4, 1).spec())?;
/// for mode in [PullMode::Consistent, PullMode::Hogwild, PullMode::Gather] {
///     let mut row = [1.0];
///     client.pull_rows(&table, &[2], &mut row, PullOptions::default().mode(mode))?;
///     assert_eq!(row, [0.0]);
/// }
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PullMode {
    /// Every row or block is one committed version. It is read one-sidedly and verified, read again if
    /// it was being written, and gathered by the server after a bounded number of tries.
    #[default]
    Consistent,
    /// Rows or blocks are read without validation and may mix versions. Only the generation of a row's slot
    /// is checked and, by one row of each applier or a version word of each read, that the table still exists.
    Hogwild,
    /// The whole range as of one tick (tables made with `snapshot`; for these the two modes above do
    /// the same).
    Snapshot,
    /// The server copies the rows or blocks into a reply; each is one committed version.
    Gather,
}

/// Action of a pull for a key that has no row.
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, Missing, PullOptions, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let table = client.create_table::<f32>(TableBuilder::sparse::<f32>("w", 1).spec())?;
/// let (mut row, mut exists) = ([1.0], Vec::new());
/// for missing in [Missing::Initial, Missing::Create] {
///     client.pull_rows(&table, &[7], &mut row, PullOptions::default().missing(missing))?;
///     exists.extend(client.exists(&table, &[7])?);
/// }
/// assert_eq!(exists, [false, true]);
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Missing {
    /// Creates the row with its initial values (training).
    #[default]
    Create,
    /// Returns the initial values and stores nothing (evaluation).
    Initial,
}

/// Options of a pull: mode, action for missing keys, time limit.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::{ClientError, JoinOptions, Missing, PullMode};
/// # use tidewater::{PullOptions, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let table = client.create_table::<f32>(TableBuilder::sparse::<f32>("w", 1).spec())?;
/// let mut options = PullOptions::default().mode(PullMode::Gather).missing(Missing::Initial);
/// options.timeout = Duration::from_secs(5);
/// let mut row = [1.0];
/// client.pull_rows(&table, &[7], &mut row, options)?;
/// assert_eq!(row, [0.0]);
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullOptions {
    /// Reading method and guarantee.
    pub mode: PullMode,
    /// Action on unknown keys.
    pub missing: Missing,
    /// Longest time that the pull may wait.
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
    /// Sets the read mode, with its guarantee.
    #[must_use]
    pub const fn mode(mut self, mode: PullMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the action for keys that have no row.
    #[must_use]
    pub const fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }
}

//! How a program continues from a checkpoint: what the job was resumed from, and the worker's position in
//! its data.
//!
//! A position is a row of a table of the job, by rank. Under BSP and SSP it takes effect at the tick, like
//! the pushes of its iteration: a checkpoint holds the position that belongs to its parameters.

use tidewater_bookkeeping::position::{COLUMNS, WORDS, decode, encode};
use tidewater_protocol::limits::POSITION_BYTES_MAX;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::{LIBRARY_TABLES, PushOp, Reduce};
use tidewater_protocol::wire::control::Resumed;
use tidewater_protocol::wire::refusal::RefusalCode;

use super::Client;
use super::threads::first_only;
use crate::error::ClientError;
use crate::pull::{Missing, PullOptions};
use crate::table::{Table, TableBuilder};

/// Sparse table that holds each worker's data position, by rank.
const NAME: &str = LIBRARY_TABLES[2];

/// State of a client for resuming: whether the job takes checkpoints, which one it continues from, and the table of
/// positions.
#[derive(Debug, Default)]
pub(super) struct ResumeState {
    has_checkpoints: bool,
    resumed: Option<Resumed>,
    /// The table of positions, once it is open.
    pub(super) table: Option<Table<i64>>,
}

impl Client {
    pub(crate) fn continues(&mut self, has_checkpoints: bool, resumed: Option<Resumed>) {
        self.resume.has_checkpoints = has_checkpoints;
        self.resume.resumed = resumed;
    }

    /// Whether the job takes checkpoints (`tidewater run --checkpoint DIR`). A client from [`Client::from_parts`] returns
    /// false.
    pub const fn has_checkpoints(&self) -> bool {
        self.resume.has_checkpoints
    }

    /// Checkpoint that the job was resumed from, with the clocks at which it was taken; `None` for a job that
    /// begins. The tables of a resumed job exist: [`Client::create_table`] with the same definition opens them.
    /// Clocks of the job begin at 0 in either case.
    ///
    /// # Examples
    /// ```
    /// # use tidewater::{ClientError, JoinOptions, SyncMode};
    /// # fn main() -> Result<(), ClientError> {
    /// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
    /// let mut client = job.client(SyncMode::Bsp)?;
    /// let first = match client.position()? {
    ///     Some(bytes) => u64::from_le_bytes(bytes.try_into().expect("8 bytes")),
    ///     None => 0,
    /// };
    /// for step in first..3 {
    ///     // pull, compute, push
    ///     client.set_position(&(step + 1).to_le_bytes())?;
    ///     client.tick()?;
    /// }
    /// assert!(client.resumed().is_none());
    /// # client.finish()
    /// # }
    /// ```
    pub const fn resumed(&self) -> Option<&Resumed> {
        self.resume.resumed.as_ref()
    }

    /// Stores this worker's position in its data at the servers: up to 256 bytes that a restarted worker gets from
    /// [`Client::position`]. Under BSP and SSP it takes effect with the next tick, otherwise at once. Cost: a push
    /// of one row; the first call creates a table.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for more bytes; [`ClientError::Thread`] for a sibling; as [`Client::push_rows`].
    pub fn set_position(&mut self, position: &[u8]) -> Result<(), ClientError> {
        let op = "set_position";
        self.check_worker(op)?;
        first_only(op, self.guard.thread())?;
        let row = encode(position).ok_or_else(|| ClientError::Argument {
            op,
            table: NAME.into(),
            what: format!(
                "{} bytes are more than {POSITION_BYTES_MAX}; keep the rest in a table",
                position.len()
            ),
        })?;
        let table = self.position_table()?;
        let pushed = self.push_rows(&table, &[self.rank.0.into()], &row, PushOp::Assign);
        self.resume.table = Some(table);
        pushed.map(drop)
    }

    /// Position of this worker in its data, as the servers hold it. In a resumed job it is that of the checkpoint;
    /// in place of a lost worker, the one that the last worker of this rank set. `None` if none was set.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a row of another program; as [`Client::pull_rows`].
    pub fn position(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        let op = "position";
        first_only(op, self.guard.thread())?;
        let table = match self.resume.table.take() {
            Some(table) => table,
            None => match self.open_table(NAME) {
                Ok(table) => table,
                Err(ClientError::Refused(why)) if why.code == RefusalCode::UnknownTable => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            },
        };
        let mut row = [0; WORDS];
        let options = PullOptions::default().missing(Missing::Initial);
        let pulled = self.pull_rows(&table, &[self.rank.0.into()], &mut row, options);
        self.resume.table = Some(table);
        pulled?;
        decode(&row).map_err(|length| ClientError::Argument {
            op,
            table: NAME.into(),
            what: format!("a position of {length} bytes; is the table one of another program?"),
        })
    }

    fn position_table(&mut self) -> Result<Table<i64>, ClientError> {
        if let Some(table) = self.resume.table.take() {
            return Ok(table);
        }
        let spec = TableBuilder::sparse::<i64>(NAME, COLUMNS).partitions(1);
        let is_at_tick = self.clock.is_bounded(tidewater_protocol::ids::DomainId(0));
        let spec = match is_at_tick && !on(Mutant::PositionOnArrival) {
            true => spec.at_clock(Reduce::Sum),
            false => spec,
        };
        self.create_table(spec.spec())
    }
}

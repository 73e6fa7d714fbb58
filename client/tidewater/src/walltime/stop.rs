//! Ends a run early, with all workers at the same step.
//!
//! A signal reaches one worker or all of them, at different steps, and none may stop while another
//! waits for its clock. A worker that is to stop therefore writes the signal's number into a shared
//! cell. When the lowest rank that has not left finds one, it writes the clock at which all stop. This
//! is the present clock, plus the staleness, plus one, rounded up to a step with a check.
//!
//! An iteration at clock `k` sees every push of iterations before `k - s` (the guarantee of SSP; BSP is
//! `s = 0`). Each worker has therefore seen the second cell when it reaches that clock, and none stops
//! before it. Without a bound on staleness no worker waits for another's clock. Each then stops when it
//! sees the first cell, at a step of its own. Workers that meet between steps (at the end of an epoch)
//! then have to announce there which of them stop.

use tidewater_protocol::limits::CLOCK_DEADLINE;
use tidewater_protocol::table::PushOp;

use crate::error::ClientError;
use crate::pull::PullOptions;
use crate::session::Client;
use crate::table::{Table, TableBuilder};

/// Row of the signal's number, which any worker writes. The row `CLOCK` holds the clock at which all stop, which the
/// lowest rank writes.
const SIGNAL: u64 = 0;
const CLOCK: u64 = 1;

/// Agreement of all workers to stop at one step, through two rows of a table. [`Walltime`](super::Walltime) uses it
/// with the signals of a batch system. A program with other reasons to stop makes its own.
///
/// # Example
/// ```
/// # use tidewater::walltime::StopSign;
/// # use tidewater::{ClientError, JoinOptions, SyncMode};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let mut sign = StopSign::new(&mut client, "converged", 1)?;
/// let mut loss = 1.0;
/// while !sign.look(&mut client, || (loss < 0.1).then_some(1))? {
///     loss /= 2.0; // pull, compute, push
///     client.tick()?;
/// }
/// assert_eq!(sign.settle(&mut client, || None)?, Some(1));
/// sign.release(&mut client)?;
/// # client.finish()
/// # }
/// ```
#[derive(Debug)]
pub struct StopSign {
    table: Table<i64>,
    name: &'static str,
    every: u64,
    staleness: Option<u64>,
    asked: bool,
}

impl StopSign {
    /// Makes an agreement, with a table and a barrier named `name`; all workers call it. `every` (above 0) is the
    /// number of steps between two checks. A check is a read of two short rows, which over TCP costs as much as a
    /// step's pull.
    ///
    /// # Errors
    /// A pull or push fails, or a deadline passes.
    pub fn new(client: &mut Client, name: &'static str, every: u64) -> Result<Self, ClientError> {
        // In the default domain: reading it waits for the clock as reading weights does.
        let spec = TableBuilder::rows::<i64>(name, 2, 1).partitions(1);
        Ok(Self {
            table: client.create_table(spec.spec())?,
            name,
            every,
            staleness: client.sync().staleness(),
            asked: false,
        })
    }

    /// Returns whether the run ends before this step. Every worker calls it at the start of each step; it reads
    /// the table at each `every`-th, and returns false at the others. `signal` returns the number (not 0) of a
    /// signal that this worker has received; the first one is written to the table.
    ///
    /// # Errors
    /// A pull or push fails, or a deadline passes.
    pub fn look(
        &mut self,
        client: &mut Client,
        signal: impl FnOnce() -> Option<i32>,
    ) -> Result<bool, ClientError> {
        let clock = client.clock();
        if !self.is_check(client) {
            return Ok(false);
        }
        self.ask(client, signal)?;
        let (signal, stop_at) = self.read(client)?;
        let Some(staleness) = self.staleness else {
            return Ok(signal.is_some());
        };
        if stop_at == 0 && signal.is_some() && client.leads()? && self.read(client)?.1 == 0 {
            let at = (clock + staleness + 1).next_multiple_of(self.every);
            self.write(client, CLOCK, i64::try_from(at).unwrap_or(i64::MAX))?;
        }
        Ok(stop_at != 0 && clock >= stop_at)
    }

    /// Whether the client's clock is a step at which [`StopSign::look`] reads the table.
    pub fn is_check(&self, client: &Client) -> bool {
        client.clock().is_multiple_of(self.every)
    }

    /// Returns the number of the signal that ended the run, the same at every worker; `None` without one. All
    /// workers call it after the last step; it blocks until all have. `signal` is as in [`StopSign::look`].
    ///
    /// # Errors
    /// A pull or push fails, or a deadline passes.
    pub fn settle(
        &mut self,
        client: &mut Client,
        signal: impl FnOnce() -> Option<i32>,
    ) -> Result<Option<i32>, ClientError> {
        self.ask(client, signal)?;
        client.barrier(self.name, CLOCK_DEADLINE)?;
        Ok(self.read(client)?.0)
    }

    /// Clears the recorded signal and stop clock; one worker calls it, before the others check.
    ///
    /// # Errors
    /// A pull or push fails, or a deadline passes.
    pub fn clear(&self, client: &mut Client) -> Result<(), ClientError> {
        self.write(client, SIGNAL, 0)?;
        self.write(client, CLOCK, 0)
    }

    /// Lets this worker write a signal again, after an agreement that was cleared.
    pub const fn renew(&mut self) {
        self.asked = false;
    }

    /// Releases the agreement's table; one worker calls it, when no worker uses the table any more.
    ///
    /// # Errors
    /// The coordinator's refusal, or a deadline.
    pub fn release(self, client: &mut Client) -> Result<(), ClientError> {
        client.release_table(self.table)
    }

    fn ask(
        &mut self,
        client: &mut Client,
        signal: impl FnOnce() -> Option<i32>,
    ) -> Result<(), ClientError> {
        if self.asked {
            return Ok(());
        }
        if let Some(number) = signal() {
            self.write(client, SIGNAL, i64::from(number))?;
            self.asked = true;
        }
        Ok(())
    }

    fn write(&self, client: &mut Client, cell: u64, value: i64) -> Result<(), ClientError> {
        let ticket = client.push_rows(&self.table, &[cell], &[value], PushOp::Assign)?;
        client.wait_applied(&ticket)
    }

    fn read(&self, client: &mut Client) -> Result<(Option<i32>, u64), ClientError> {
        let mut cells = [0i64; 2];
        let keys = [SIGNAL, CLOCK];
        client.pull_rows(&self.table, &keys, &mut cells, PullOptions::default())?;
        let signal = i32::try_from(cells[0]).ok().filter(|&n| n != 0);
        Ok((signal, u64::try_from(cells[1]).unwrap_or_default()))
    }
}

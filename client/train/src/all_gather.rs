//! All-gather of numbers among the workers of a run: a small table and barriers.
//!
//! The coordinator moves no data. What workers agree on (steps of an epoch, sums of losses) therefore
//! travels like parameters. Each worker assigns a row of an `i64` table, all wait for all, and each
//! reads all rows. Every worker then computes the same result from the same rows in rank order.
//!
//! The table is in a clock domain of its own that never ticks, so reading it waits for no clock.

use std::time::Duration;

use tidewater_protocol::ids::DomainId;
use tidewater_protocol::limits::CLOCK_DEADLINE;
use tidewater_protocol::table::PushOp;

use tidewater::error::ClientError;
use tidewater::pull::PullOptions;
use tidewater::push::Ticket;
use tidewater::session::Client;
use tidewater::table::{Table, TableBuilder};

/// Numbers in a worker's row.
pub(crate) const WIDTH: usize = 40;

/// Clock domain of the trainer's own tables.
pub(crate) const ASIDE: DomainId = DomainId(1);

/// Longest wait for the other workers: as long as for a clock, since the same things delay both.
const MEET_TIMEOUT: Duration = CLOCK_DEADLINE;

pub(crate) const NAME: &str = "tidewater-train/board";

/// Numbers that a worker gives to the others.
pub(crate) type Row = [i64; WIDTH];

/// An all-gather of one row a worker.
#[derive(Debug)]
pub(crate) struct AllGather {
    table: Table<i64>,
}

impl AllGather {
    pub(crate) fn new(client: &mut Client) -> Result<Self, ClientError> {
        let workers = u64::from(client.workers());
        let spec = TableBuilder::rows::<i64>(NAME, workers, WIDTH as u32)
            .domain(ASIDE)
            .partitions(1);
        let table = client.create_table(spec.spec())?;
        Ok(Self { table })
    }

    /// Waits until all workers call it.
    pub(crate) fn meet(&self, client: &mut Client) -> Result<(), ClientError> {
        meet(client)
    }

    /// Gives `row` to the others and returns the rows of all workers, in rank order. Everything that
    /// any worker waited for before is visible to all after it. Cost: a push, a pull, two barriers.
    pub(crate) fn exchange(&self, client: &mut Client, row: &Row) -> Result<Vec<Row>, ClientError> {
        let mine = [u64::from(client.rank().0)];
        let ticket = client.push_rows(&self.table, &mine, row, PushOp::Assign)?;
        client.wait_applied(&ticket)?;
        self.meet(client)?;
        let keys: Vec<u64> = (0..u64::from(client.workers())).collect();
        let mut rows = vec![[0; WIDTH]; keys.len()];
        client.pull_rows(
            &self.table,
            &keys,
            rows.as_flattened_mut(),
            PullOptions::default(),
        )?;
        // No worker writes its next row before all have read this one.
        self.meet(client)?;
        Ok(rows)
    }

    /// Removes the table; one worker calls it, when no worker uses it any more.
    pub(crate) fn release(self, client: &mut Client) -> Result<(), ClientError> {
        client.release_table(self.table)
    }
}

/// Waits for all workers of the job.
pub(crate) fn meet(client: &mut Client) -> Result<(), ClientError> {
    client.barrier("tidewater-train", MEET_TIMEOUT)
}

/// Merges the tickets of several pushes to a table into one.
pub(crate) fn join(all: &mut Option<Ticket>, next: Ticket) {
    match all {
        Some(all) => all.merge(&next),
        None => *all = Some(next),
    }
}

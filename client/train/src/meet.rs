//! What the workers of a run do together: meet at a barrier, exchange rows of numbers, and use tables
//! of the trainer's own.
//!
//! Those tables are in a clock domain that never ticks, so that reading them waits for no clock.

use std::time::Duration;

use tidewater_protocol::ids::DomainId;
use tidewater_protocol::limits::CLOCK_DEADLINE;

use tidewater::error::ClientError;
use tidewater::push::Ticket;
use tidewater::session::Client;

/// Clock domain of the trainer's own tables.
pub(crate) const ASIDE: DomainId = DomainId(1);

/// Longest wait for the other workers: as long as for a clock, since the same things delay both.
const PATIENCE: Duration = CLOCK_DEADLINE;

/// Waits for all workers of the job.
pub(crate) fn meet(client: &mut Client) -> Result<(), ClientError> {
    client.barrier("tidewater-train", PATIENCE)
}

/// Gives `row` to the others and returns the rows of all workers, in rank order. Everything that any
/// worker waited for before is visible to all after it.
pub(crate) fn exchange<const N: usize>(
    client: &mut Client,
    row: [i64; N],
) -> Result<Vec<[i64; N]>, ClientError> {
    let all = client.all_gather(&row)?;
    Ok(all.as_chunks::<N>().0.to_vec())
}

/// Merges the tickets of several pushes to a table into one.
pub(crate) fn join(all: &mut Option<Ticket>, next: Ticket) {
    match all {
        Some(all) => all.merge(&next),
        None => *all = Some(next),
    }
}

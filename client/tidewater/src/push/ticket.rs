//! Tickets: the results of pushes.

use tidewater_bookkeeping::frame_runs::{FrameRuns, LaneSeqs};
use tidewater_lanes::num::count;
use tidewater_protocol::ids::TableId;
use tidewater_protocol::mutants::{Mutant, on};

use crate::ids::ClientNumber;

/// Handle to the result of a push: the sequence numbers of its frames on each lane. Dropping it is allowed and does
/// not stop the push. If the push is refused, the next [`flush`](crate::Client::flush), tick, barrier or finish
/// fails. A ticket frees nothing and owns no memory of the push.
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, PushOp, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let table = client.create_table::<i64>(TableBuilder::sparse::<i64>("counts", 1).spec())?;
/// let mut ticket = client.push_rows(&table, &[3], &[1], PushOp::Sum)?;
/// ticket.merge(&client.push_rows(&table, &[7], &[1], PushOp::Sum)?);
/// client.wait_applied(&ticket)?; // both pushes
/// assert_eq!(client.exists(&table, &[3, 7])?, [true, true]);
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "without waiting for it, that a push was refused is known at the next flush or tick"]
pub struct Ticket {
    /// Number of the client that pushed, 0 for an empty ticket. The upper half is that of another
    /// client with a merged ticket.
    owner: u64,
    table: u32,
    runs: FrameRuns,
}

impl Ticket {
    pub(crate) fn new(table: u32) -> Self {
        Self {
            table,
            ..Self::default()
        }
    }

    /// Makes an empty ticket for a push of a client to a table; frames are added later.
    pub(crate) fn of(client: ClientNumber, table: TableId) -> Self {
        Self {
            owner: client.0.into(),
            ..Self::new(table.0)
        }
    }

    /// Whether a client may wait for the ticket: all of its frames are this client's, or it is empty.
    #[inline]
    pub(crate) fn is_of(&self, client: ClientNumber) -> bool {
        self.owner == u64::from(client.0) || self.owner == 0
    }

    /// Text that names the clients that pushed the frames, for an error.
    pub(crate) fn owners(&self) -> String {
        let (first, other) = (self.owner & u64::from(u32::MAX), self.owner >> 32);
        match other {
            0 => format!("client {first}"),
            _ => format!("clients {first} and {other}, merged"),
        }
    }

    /// Number of the table that was pushed to, unique in the cluster: of a merged ticket, that of its first
    /// push. 0 for a ticket of no push (`Ticket::default()`).
    pub const fn table(&self) -> u32 {
        self.table
    }

    /// Adds a frame by lane and sequence number; extends the run that it continues, if there is one.
    pub(crate) fn add(&mut self, lane: usize, seq: u64) {
        self.runs.add(LaneSeqs {
            lane: count(lane),
            first: seq,
            last: seq,
        });
    }

    /// Removes the runs of frames for which `keep` returns false.
    pub(crate) fn retain(&mut self, keep: impl FnMut(LaneSeqs) -> bool) {
        self.runs.retain(keep);
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = LaneSeqs> + '_ {
        self.runs.iter()
    }

    /// Adds the frames of another ticket. Waiting for this ticket then waits for both pushes, and for nothing pushed
    /// in between. A merged ticket of two clients belongs to none: waiting for it is an error.
    pub fn merge(&mut self, other: &Self) {
        if self.owner == 0 {
            (self.owner, self.table) = (other.owner, other.table);
        } else if other.owner != 0 && other.owner != self.owner {
            let theirs = [other.owner & u64::from(u32::MAX), other.owner >> 32];
            let mine = self.owner & u64::from(u32::MAX);
            let foreign = theirs.into_iter().find(|&n| n != 0 && n != mine);
            self.owner = mine | foreign.unwrap_or(0) << 32;
        }
        if on(Mutant::MergeKeepsOne) {
            return;
        }
        for part in other.parts() {
            self.runs.add(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_tickets_hold_their_own_frames_in_any_order() {
        let of = |seqs: [u64; 2]| {
            let mut ticket = Ticket::new(1);
            seqs.iter().for_each(|&seq| ticket.add(0, seq));
            ticket
        };
        let (early, late) = (of([1, 2]), of([5, 6]));
        for (mut to, from) in [(early.clone(), &late), (late.clone(), &early)] {
            to.merge(from);
            let mut runs: Vec<_> = to.parts().map(|p| (p.first, p.last)).collect();
            runs.sort_unstable();
            assert_eq!(runs, [(1, 2), (5, 6)], "3 and 4 belong to another push");
        }
    }
}

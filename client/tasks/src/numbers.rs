//! The record numbers of a task.

use std::ops::Range;

use crate::permutation::Permutation;

/// Iterator over the record numbers of a task, from
/// [`CurrentTask::record_numbers`](crate::CurrentTask::record_numbers).
///
/// ```
/// use tidewater::{JoinOptions, SyncMode};
/// use tidewater_tasks::{QueueOptions, Tasks};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let mut tasks = Tasks::count(&mut client, 5, &QueueOptions::new("images", 3))?;
/// let task = tasks.next(&mut client)?.expect("a task");
/// let numbers = task.record_numbers()?;
/// assert_eq!(numbers.len(), 3);
/// assert_eq!(numbers.collect::<Vec<_>>(), [0, 1, 2]);
/// # tasks.done(&mut client, task, 3)?;
/// # client.finish()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RecordNumbers {
    positions: Range<u64>,
    /// `None`: positions are numbers.
    order: Option<Permutation>,
    /// The number that was given last.
    last: u64,
}

impl RecordNumbers {
    /// The numbers at positions of an order, which has all of them.
    pub(crate) const fn new(positions: Range<u64>, order: Option<Permutation>) -> Self {
        Self {
            positions,
            order,
            last: 0,
        }
    }

    /// Number of records that are left.
    pub const fn len(&self) -> u64 {
        self.positions.end.saturating_sub(self.positions.start)
    }

    /// Whether no record is left.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number that was given last.
    pub(crate) const fn last_given(&self) -> u64 {
        self.last
    }
}

impl Iterator for RecordNumbers {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let position = self.positions.next()?;
        self.last = self.order.map_or(position, |order| order.at(position));
        Some(self.last)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.positions.size_hint()
    }
}

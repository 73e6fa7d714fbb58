//! Merging of updates across pushes.

use std::collections::HashMap;

use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::PushOp;
use zerocopy::IntoBytes;

use super::Client;
use crate::collective::{ReduceOp, fold};
use crate::error::ClientError;
use crate::push::{PushOptions, Ticket};
use crate::table::{Element, Table};
use tidewater_bookkeeping::combine::{add, magnitude};

/// Number of rows at which a buffer is pushed, by default.
const ROWS_MAX: usize = 16 << 10;
/// Bytes of keys and values at which a buffer is pushed, by default.
const BYTES_MAX: usize = 4 << 20;

/// Buffer of updates of a table's rows: merges them by key, and pushes them together.
///
/// For a program that makes many small updates: each is an addition in local memory, and one push
/// carries the sum of all that name a row. The table holds what direct pushes of sums would give;
/// floating-point sums in another order. An optimizer sees the sum of several gradients as one. Of least or
/// greatest values ([`min`](Self::min), [`max`](Self::max)) it holds those of all updates.
///
/// The buffer is pushed when it reaches [`rows_max`](Self::rows_max) or [`bytes_max`](Self::bytes_max),
/// and by [`flush`](Self::flush). Its rows belong to the iteration in which they are pushed: flush it
/// before the tick that is to close them. Pulls see nothing of it before, not even those of this client.
///
/// It is for tables by rows (sparse, or dense by rows).
///
/// # Resource clean-up
/// Dropping a buffer with rows loses them, and logs a warning with their number.
/// [`clear`](Self::clear) drops them on purpose.
///
/// # Examples
/// ```
/// use tidewater::{ClientError, JoinOptions, PullOptions, PushBuffer, SyncMode, TableBuilder};
///
/// # fn main() -> Result<(), ClientError> {
/// let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// let mut client = job.client_of(0, SyncMode::Asp)?;
/// let table = client.create_table::<i64>(TableBuilder::sparse::<i64>("counts", 1).spec())?;
/// let mut buffer = PushBuffer::sum(&table);
/// for word in [7, 3, 7, 7] {
///     buffer.add(&mut client, &[word], &[1])?;
/// }
/// let ticket = buffer.flush(&mut client)?;
/// client.wait_applied(&ticket)?;
/// let mut counts = [0; 2];
/// client.pull_rows(&table, &[7, 3], &mut counts, PullOptions::default())?;
/// assert_eq!(counts, [3, 1]);
/// # client.finish()
/// # }
/// ```
#[derive(Debug)]
#[must_use = "rows that no flush has pushed are lost"]
pub struct PushBuffer<T: Element> {
    table: Table<T>,
    op: PushOp,
    rows_max: usize,
    bytes_max: usize,
    threshold: f64,
    options: PushOptions,
    /// Index of a key's row in `keys` and `values`.
    index: HashMap<u64, usize>,
    keys: Vec<u64>,
    values: Vec<T>,
    /// Pushes since the last flush, without those that are known to be applied.
    sent: Ticket,
}

impl<T: Element> PushBuffer<T> {
    fn new(table: &Table<T>, op: PushOp) -> Self {
        Self {
            table: *table,
            op,
            rows_max: ROWS_MAX,
            bytes_max: BYTES_MAX,
            threshold: 0.0,
            options: PushOptions::default(),
            index: HashMap::new(),
            keys: Vec::new(),
            values: Vec::new(),
            sent: Ticket::default(),
        }
    }

    /// Makes an empty buffer of values that pushes add to those of the table ([`PushOp::Sum`]).
    pub fn sum(table: &Table<T>) -> Self {
        Self::new(table, PushOp::Sum)
    }

    /// Makes an empty buffer of gradients for the table's optimizer ([`PushOp::Gradient`]).
    pub fn gradient(table: &Table<T>) -> Self {
        Self::new(table, PushOp::Gradient)
    }

    /// Makes an empty buffer of values; a push sets each value of the table to the minimum of both
    /// ([`PushOp::Min`]). The table must have immediate effect; flushes to another fail.
    pub fn min(table: &Table<T>) -> Self {
        Self::new(table, PushOp::Min)
    }

    /// Makes an empty buffer of values; a push sets each value of the table to the maximum of both
    /// ([`PushOp::Max`]). The table must have immediate effect; flushes to another fail.
    pub fn max(table: &Table<T>) -> Self {
        Self::new(table, PushOp::Max)
    }

    /// Sets the weight of each push (default 1), as [`PushOptions::weight`]: with 1/n the sum of the buffers of n
    /// workers is their average. The threshold is compared with unweighted values.
    pub const fn weight(mut self, weight: f64) -> Self {
        self.options.weight = weight;
        self
    }

    /// Sets the number of rows at which [`add`](Self::add) pushes the buffer (default 16,384).
    pub const fn rows_max(mut self, rows: usize) -> Self {
        self.rows_max = rows;
        self
    }

    /// Sets the bytes of keys and values at which [`add`](Self::add) pushes the buffer (default 4 MiB).
    pub const fn bytes_max(mut self, bytes: usize) -> Self {
        self.bytes_max = bytes;
        self
    }

    /// Sets the least magnitude of the rows that a flush pushes (default 0). A row without an element of that
    /// magnitude stays in the buffer, and later updates are added to it. NaN counts as infinite. A buffer that is
    /// full is pushed whatever its magnitudes.
    pub const fn threshold(mut self, magnitude: f64) -> Self {
        self.threshold = magnitude;
        self
    }

    /// Number of distinct rows that are buffered and not pushed.
    pub const fn rows(&self) -> usize {
        self.keys.len()
    }

    /// Bytes of the buffered keys and values.
    pub const fn bytes(&self) -> usize {
        size_of_val(self.keys.as_slice()) + size_of_val(self.values.as_slice())
    }

    /// Merges updates of rows into the buffer: `values` holds a row for each key. Pushes the buffer when it is full,
    /// and then waits for nothing but room in the rings.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for lengths that do not fit; nothing was added then. The refusal of an earlier push
    /// of this buffer, and all errors of [`Client::push_rows`]; the updates are in the buffer then, and the next
    /// call or flush pushes what has not been.
    pub fn add(
        &mut self,
        client: &mut Client,
        keys: &[u64],
        values: &[T],
    ) -> Result<(), ClientError> {
        let dim = self.table.dim();
        client.check_rows("add", &self.table, keys, values.len())?;
        for (&key, row) in keys.iter().zip(values.chunks_exact(dim)) {
            match self.index.get(&key) {
                Some(&at) => {
                    let merged = self.values[at * dim..(at + 1) * dim].as_mut_bytes();
                    match self.op {
                        PushOp::Min | PushOp::Max if on(Mutant::ExtremesAdded) => {
                            add(T::DTYPE, merged, row.as_bytes());
                        }
                        PushOp::Min => fold(T::DTYPE, ReduceOp::Min, merged, row.as_bytes()),
                        PushOp::Max => fold(T::DTYPE, ReduceOp::Max, merged, row.as_bytes()),
                        _ => add(T::DTYPE, merged, row.as_bytes()),
                    }
                }
                None => {
                    self.index.insert(key, self.keys.len());
                    self.keys.push(key);
                    self.values.extend_from_slice(row);
                }
            }
        }
        if self.rows() < self.rows_max && self.bytes() < self.bytes_max {
            return Ok(());
        }
        self.settle(client)?;
        self.send(client, 0.0)
    }

    /// Pushes the buffered rows with a magnitude of at least the [`threshold`](Self::threshold). The ticket is that
    /// of all pushes since the last flush, automatic ones included; without any it is empty.
    ///
    /// # Errors
    /// As [`Client::push_rows`]. Rows that were not passed on stay in the buffer, so that a repeated flush pushes
    /// each row once. The repeated flush's ticket does not cover the frames of the failed one: a refusal of those is
    /// returned by [`Client::flush`].
    pub fn flush(&mut self, client: &mut Client) -> Result<Ticket, ClientError> {
        self.send(client, self.threshold)?;
        Ok(std::mem::take(&mut self.sent))
    }

    /// Pushes all buffered rows, whatever their magnitude. The ticket is that of all pushes since the last flush,
    /// automatic ones included; without any it is empty.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn flush_all(&mut self, client: &mut Client) -> Result<Ticket, ClientError> {
        self.send(client, 0.0)?;
        Ok(std::mem::take(&mut self.sent))
    }

    /// Drops all buffered rows without pushing them; returns their number.
    pub fn clear(&mut self) -> usize {
        let rows = self.rows();
        self.index.clear();
        self.keys.clear();
        self.values.clear();
        rows
    }

    /// Removes the answered pushes from the buffer's ticket, so that it stays short. Fails with their refusal,
    /// once: the ticket is then emptied, also of unanswered pushes. Does not wait.
    fn settle(&mut self, client: &mut Client) -> Result<(), ClientError> {
        let applied = match client.try_applied(&self.sent) {
            Ok(false) => client.drop_answered(&mut self.sent).map(|()| false),
            applied => applied,
        };
        match applied {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.sent = Ticket::default();
                Ok(())
            }
            Err(refused @ (ClientError::Rejected { .. } | ClientError::RejectForgotten { .. })) => {
                self.sent = Ticket::default();
                Err(refused)
            }
            Err(e) => Err(e),
        }
    }

    /// Pushes the buffered rows with an element of at least this magnitude, and removes those that were built into
    /// frames, also after an error. Without such rows it does nothing.
    fn send(&mut self, client: &mut Client, least: f64) -> Result<(), ClientError> {
        let dim = self.table.dim();
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (&key, row) in self.keys.iter().zip(self.values.chunks_exact(dim)) {
            // A threshold of NaN keeps nothing back.
            let is_small = least > 0.0 && magnitude(T::DTYPE, row.as_bytes()) < least;
            if !is_small {
                keys.push(key);
                values.extend_from_slice(row);
            }
        }
        if keys.is_empty() {
            return Ok(());
        }
        let before = client.counters().frames;
        match client.push_rows_with(&self.table, &keys, &values, self.op, self.options) {
            Ok(ticket) => {
                self.sent.merge(&ticket);
                match on(Mutant::RemainderForgotten) {
                    true => self.remove(self.keys.clone()),
                    false => self.remove(keys),
                }
                Ok(())
            }
            Err(e) => {
                // Frames that are built are sent later, and must not be pushed again.
                let built = client.counters().frames - before;
                if built > 0 && !on(Mutant::FailedFlushAgain) {
                    self.remove(client.built_keys());
                }
                Err(e)
            }
        }
    }

    /// Removes the rows of these keys from the buffer: they were pushed.
    fn remove(&mut self, mut gone: Vec<u64>) {
        if gone.len() == self.keys.len() {
            self.clear();
            return;
        }
        let dim = self.table.dim();
        gone.sort_unstable();
        let keys = std::mem::take(&mut self.keys);
        let values = std::mem::take(&mut self.values);
        self.index.clear();
        for (key, row) in keys.into_iter().zip(values.chunks_exact(dim)) {
            if gone.binary_search(&key).is_err() {
                self.index.insert(key, self.keys.len());
                self.keys.push(key);
                self.values.extend_from_slice(row);
            }
        }
    }
}

impl<T: Element> Drop for PushBuffer<T> {
    fn drop(&mut self) {
        if !self.keys.is_empty() {
            let (rows, table) = (self.keys.len(), self.table.id());
            tracing::warn!(rows, %table, "push buffer dropped with rows that no flush has pushed");
        }
    }
}

//! Rows of a table kept at the client for as long as SSP allows.

use std::collections::HashMap;

use tidewater_bookkeeping::combine::add_scaled;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::PushOp;
use zerocopy::IntoBytes;

use super::Client;
use crate::error::ClientError;
use crate::pull::PullOptions;
use crate::push::{PushOptions, Ticket};
use crate::table::{Element, Table};

/// Client-side cache of rows under BSP and SSP: a row is pulled again when it is older than the staleness allows.
///
/// A pull at clock `c` under `SSP(s)` must show the iterations before `c - s`. A row that was read when
/// the slowest worker was at clock `g` shows all before `g`, and stays in use up to clock `g + s`. Under
/// BSP (`s = 0`) a row is therefore pulled once an iteration, and has the values of a direct pull of a
/// table that takes effect at the tick. Under ASP nothing bounds the age of a row: every call pulls.
///
/// **Read your writes is not given.** A row shows this client's pushes up to the time at which it was
/// pulled; [`forget`](Self::forget) makes the next call pull it, and pushes by
/// [`push_rows`](Self::push_rows) are added to the rows in the cache. Rows of a call may be of different
/// ages, each within the bound.
///
/// The cache holds a bounded number of rows; the row that entered it first gives way, also if it was pulled
/// again since.
///
/// # Examples
/// ```
/// use tidewater::{CachedTable, ClientError, JoinOptions, PullOptions, SyncMode, TableBuilder};
///
/// # fn main() -> Result<(), ClientError> {
/// let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// let mut client = job.client_of(0, SyncMode::Ssp(2))?;
/// let table = client.create_table::<f32>(TableBuilder::sparse::<f32>("weights", 2).spec())?;
/// let mut cached = CachedTable::new(&table, 1_000);
/// let mut row = [1.0; 2];
/// for _ in 0..6 {
///     cached.pull_rows(&mut client, &[7], &mut row, PullOptions::default())?;
///     client.tick()?;
/// }
/// assert!(cached.hits() > 0);
/// # client.finish()
/// # }
/// ```
#[derive(Debug)]
pub struct CachedTable<T: Element> {
    table: Table<T>,
    capacity: usize,
    /// Slot of each cached key.
    index: HashMap<u64, usize>,
    slots: Vec<Slot>,
    values: Vec<T>,
    /// Slot that is reused next, once all are in use.
    oldest: usize,
    hits: u64,
    misses: u64,
}

/// Slot of a cached row: its key, and the last clock at which it may be used.
#[derive(Debug, Clone, Copy)]
struct Slot {
    key: u64,
    /// Clock up to which the row may be used.
    usable_to: u64,
}

impl<T: Element> CachedTable<T> {
    /// Makes an empty cache for at most `rows` rows of a table of rows.
    pub fn new(table: &Table<T>, rows: usize) -> Self {
        Self {
            table: *table,
            capacity: rows,
            index: HashMap::new(),
            slots: Vec::new(),
            values: Vec::new(),
            oldest: 0,
            hits: 0,
            misses: 0,
        }
    }

    /// Pulls rows into `out`, in the order of `keys`. Cached rows that are recent enough are copied from the
    /// cache; the others are pulled by [`Client::pull_rows`] and, under BSP and SSP, cached.
    ///
    /// # Errors
    /// As [`Client::pull_rows`].
    pub fn pull_rows(
        &mut self,
        client: &mut Client,
        keys: &[u64],
        out: &mut [T],
        options: PullOptions,
    ) -> Result<(), ClientError> {
        let dim = self.table.dim();
        client.check_rows("pull_rows", &self.table, keys, out.len())?;
        let (clock, usable_to) = client.usable_to(&self.table)?;
        let mut missing = Vec::new();
        for (&key, row) in keys.iter().zip(out.chunks_exact_mut(dim)) {
            match self.index.get(&key) {
                Some(&slot) if self.is_usable(slot, clock) => {
                    row.copy_from_slice(&self.values[slot * dim..(slot + 1) * dim]);
                }
                _ => missing.push(key),
            }
        }
        self.hits += (keys.len() - missing.len()) as u64;
        self.misses += missing.len() as u64;
        if missing.is_empty() {
            return Ok(());
        }
        missing.sort_unstable();
        missing.dedup();
        let mut rows = vec![T::default(); missing.len() * dim];
        client.pull_rows(&self.table, &missing, &mut rows, options)?;
        for (&key, row) in keys.iter().zip(out.chunks_exact_mut(dim)) {
            if let Ok(at) = missing.binary_search(&key) {
                row.copy_from_slice(&rows[at * dim..(at + 1) * dim]);
            }
        }
        if let Some(usable_to) = usable_to {
            for (&key, row) in missing.iter().zip(rows.chunks_exact(dim)) {
                self.keep(key, row, usable_to);
            }
        }
        Ok(())
    }

    /// Pushes values that the servers add up ([`PushOp::Sum`]) like [`Client::push_rows_with`], and adds them, times
    /// the weight, to the rows in the cache (local echo): this worker sees its own pushes before it pulls the rows
    /// again. Rows that are not in the cache stay out of it.
    ///
    /// A row with an echo is an estimate. It lacks what others have pushed since it was pulled, as before, but its
    /// bits are not those of any version of the table: sums are added in another order, an encoding is not applied to
    /// the echo, and a refused push stays in the row. The next pull of the row replaces all of it, within the
    /// staleness. Use [`Client::push_rows`] where reads must be exact.
    ///
    /// # Errors
    /// As [`Client::push_rows_with`]. The cache is unchanged then, also if a part was sent.
    ///
    /// # Example
    /// ```
    /// use tidewater::{CachedTable, ClientError, JoinOptions, PullOptions, PushOptions, SyncMode, TableBuilder};
    ///
    /// # fn main() -> Result<(), ClientError> {
    /// let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
    /// let mut client = job.client_of(0, SyncMode::Ssp(2))?;
    /// let table = client.create_table::<f32>(TableBuilder::sparse::<f32>("weights", 2).spec())?;
    /// let mut cached = CachedTable::new(&table, 1_000);
    /// let mut row = [0.0; 2];
    /// cached.pull_rows(&mut client, &[7], &mut row, PullOptions::default())?;
    /// // Each of four workers does this: the table holds their average.
    /// let average = PushOptions::default().weight(0.25);
    /// cached.push_rows(&mut client, &[7], &[4.0, 8.0], average)?;
    /// cached.pull_rows(&mut client, &[7], &mut row, PullOptions::default())?;
    /// assert_eq!(row, [1.0, 2.0]);
    /// # client.finish()
    /// # }
    /// ```
    pub fn push_rows(
        &mut self,
        client: &mut Client,
        keys: &[u64],
        values: &[T],
        options: PushOptions,
    ) -> Result<Ticket, ClientError> {
        let ticket = client.push_rows_with(&self.table, keys, values, PushOp::Sum, options)?;
        let dim = self.table.dim();
        let weight = match on(Mutant::EchoUnweighted) {
            true => 1.0,
            false => options.weight,
        };
        for (key, row) in keys.iter().zip(values.chunks_exact(dim)) {
            if let Some(&slot) = self.index.get(key) {
                let cached = self.values[slot * dim..(slot + 1) * dim].as_mut_bytes();
                add_scaled(T::DTYPE, cached, row.as_bytes(), weight);
            }
        }
        Ok(ticket)
    }

    /// Removes rows from the cache, so that the next call pulls them: for example rows that this client has pushed
    /// to.
    pub fn forget(&mut self, keys: &[u64]) {
        for key in keys {
            self.index.remove(key);
        }
    }

    /// Number of rows that calls have taken from the cache so far.
    pub const fn hits(&self) -> u64 {
        self.hits
    }

    /// Number of rows that calls had to pull so far, repeated keys included.
    pub const fn misses(&self) -> u64 {
        self.misses
    }

    /// Number of rows in the cache, also those that are too old to be used.
    pub fn rows(&self) -> usize {
        self.index.len()
    }

    fn is_usable(&self, slot: usize, clock: u64) -> bool {
        clock <= self.slots[slot].usable_to || on(Mutant::CachedRowsNeverAge)
    }

    /// Stores a pulled row in the cache: in place of its older version, else in a new slot, else in the slot
    /// that was assigned first. `usable_to` is the last clock at which the row may be used. Nothing is stored at
    /// capacity 0.
    fn keep(&mut self, key: u64, row: &[T], usable_to: u64) {
        let dim = self.table.dim();
        let slot = match self.index.get(&key) {
            Some(&slot) => slot,
            None if self.slots.len() < self.capacity => {
                self.values.extend_from_slice(row);
                self.slots.push(Slot { key, usable_to });
                self.slots.len() - 1
            }
            None if self.capacity == 0 => return,
            None => {
                let slot = self.oldest;
                self.oldest = (slot + 1) % self.capacity;
                // A forgotten key may have got another slot since.
                let old = self.slots[slot].key;
                if self.index.get(&old) == Some(&slot) {
                    self.index.remove(&old);
                }
                slot
            }
        };
        self.index.insert(key, slot);
        self.slots[slot] = Slot { key, usable_to };
        self.values[slot * dim..(slot + 1) * dim].copy_from_slice(row);
    }
}

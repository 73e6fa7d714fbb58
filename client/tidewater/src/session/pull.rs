//! Pull calls of the client.

use tidewater_protocol::mutants::{Mutant, on};
use tidewater_runtime::clock::Deadline;
use zerocopy::IntoBytes;

use super::Client;
use crate::error::ClientError;
use crate::pull::{
    self, Missing, PullMode, PullOptions, PullTicket, Pulled, RangeRequest, Reading, Timeout, Want,
};
use crate::table::{Element, Table};

impl Client {
    /// Options of a pull as this client may use them: those of an observer, which creates no rows, get
    /// `Missing::Initial`; those of a worker are unchanged.
    fn creates_nothing(&self, options: PullOptions) -> PullOptions {
        match self.is_observer() {
            true => options.missing(Missing::Initial),
            false => options,
        }
    }

    /// Pulls rows by key (sparse) or index (layout `rows`) into `out`, in the order of `keys`, and blocks until they
    /// are there. Keys may be unsorted and may repeat. On an error `out` is unspecified. Returns the versions of the
    /// rows, as far as they are known.
    ///
    /// # Errors
    /// [`ClientError::Argument`] when `out` is not `keys.len() x dim` elements, an index is past the end, the table is
    /// by ranges or the mode is `Snapshot`; deadlines; a server's refusal.
    pub fn pull_rows<T: Element>(
        &mut self,
        table: &Table<T>,
        keys: &[u64],
        out: &mut [T],
        options: PullOptions,
    ) -> Result<Pulled, ClientError> {
        let op = "pull_rows";
        let options = self.creates_nothing(options);
        let state = self.tables.find_mut(op, table.named())?;
        if keys.len().checked_mul(table.dim) != Some(out.len()) || !is_countable(keys) {
            return Err(state.wrong(op, sizes(out.len(), keys, table.dim)));
        }
        if options.mode == PullMode::Snapshot {
            return Err(state.wrong(op, "snapshots are of ranges; use pull_range".into()));
        }
        if state.is_blocks() {
            return Err(state.wrong(op, "the table is by ranges; use pull_range".into()));
        }
        self.clock.gate(&mut self.lanes, state.spec.domain)?;
        pull::pull_rows(
            &mut self.lanes,
            state,
            &mut self.scratch,
            keys,
            out.as_mut_bytes(),
            options,
            Timeout::In(options.timeout),
        )
    }

    /// Starts a pull of rows without waiting for it; [`Client::finish_pull`] does. Several may be under way, on one
    /// table or many. Under BSP and SSP it first waits for the clock. Rows of unknown location are read when the
    /// pull is finished.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a range table, a snapshot, or too many pulls under way.
    pub fn start_pull_rows<T: Element>(
        &mut self,
        table: &Table<T>,
        keys: &[u64],
        options: PullOptions,
    ) -> Result<PullTicket, ClientError> {
        let deadline = Deadline::after(options.timeout);
        let op = "start_pull";
        let options = self.creates_nothing(options);
        let state = self.tables.find(op, table.named())?;
        if state.is_blocks() || options.mode == PullMode::Snapshot {
            let what = "rows are pulled here; use start_pull_range for ranges".into();
            return Err(state.wrong(op, what));
        }
        if !is_countable(keys) {
            return Err(state.wrong(op, sizes(0, keys, table.dim)));
        }
        self.clock.gate(&mut self.lanes, state.spec.domain)?;
        self.async_pulls.start(
            &mut self.lanes,
            table.named(),
            state,
            keys,
            options,
            deadline,
        )
    }

    /// Starts a pull of `count` elements of a range table, from element `first` on; [`Client::finish_pull`]
    /// waits for it. Under BSP and SSP it first waits for the clock. Its reads, up to 4 MiB of a lane and 16 MiB of
    /// all lanes (of more than 64 lanes: 256 KiB of each), travel while the program goes on and bring what the table
    /// holds at some time before the end of `finish_pull`: each block is one committed version. The rest of a longer
    /// range, ranges of tables with snapshots, and the mode `Gather` are read when the pull is finished.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a table of rows, a range that is not in the table, or too many pulls under way; a
    /// deadline of the clock.
    ///
    /// # Examples
    /// ```
    /// # use tidewater::{ClientError, JoinOptions, PullOptions, SyncMode, TableBuilder};
    /// # fn main() -> Result<(), ClientError> {
    /// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
    /// # let mut client = job.client_of(0, SyncMode::Asp)?;
    /// let table = client.create_table::<f32>(TableBuilder::range::<f32>("w", 1000, 1).spec())?;
    /// let pull = client.start_pull_range(&table, 100, 500, PullOptions::default())?;
    /// let mut elements = [1f32; 500]; // compute meanwhile
    /// client.finish_pull(pull, &mut elements)?;
    /// assert_eq!(elements, [0.0; 500]);
    /// # client.finish()
    /// # }
    /// ```
    pub fn start_pull_range<T: Element>(
        &mut self,
        table: &Table<T>,
        first: u64,
        count: usize,
        options: PullOptions,
    ) -> Result<PullTicket, ClientError> {
        let deadline = Deadline::after(options.timeout);
        let op = "start_pull";
        let state = self.tables.find(op, table.named())?;
        if !state.is_blocks() {
            return Err(state.wrong(op, "the table has rows; use start_pull_rows".into()));
        }
        let Some(bytes) = count.checked_mul(size_of::<T>()) else {
            return Err(state.wrong(op, format!("{count} elements do not fit in memory")));
        };
        self.clock.gate(&mut self.lanes, state.spec.domain)?;
        let request = RangeRequest {
            named: table.named(),
            first,
            bytes,
            options,
        };
        let scratch = &mut self.blocks;
        self.async_pulls
            .start_range(&mut self.lanes, state, scratch, request, deadline)
    }

    /// Whether the reads of a started pull have arrived: [`Client::finish_pull`] would not wait for them. Does not
    /// wait; true for a pull that is over.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a ticket of another client, or of a released table; when a server is lost.
    pub fn try_pull(&mut self, ticket: PullTicket) -> Result<bool, ClientError> {
        self.tables.find("try_pull", ticket.named)?;
        self.progress()?;
        Ok(self.async_pulls.is_ready(&mut self.lanes, ticket))
    }

    /// Blocks until a started pull is complete, and writes its rows to `out` in the order of its keys, or the
    /// elements of its range. The time limit is that of [`Client::set_timeout`], not that of the pull's options.
    ///
    /// # Errors
    /// As [`Client::pull_rows`]. [`ClientError::Argument`] also for a ticket of another client and for an element
    /// type other than the table's. After a deadline, an interrupt, and [`ClientError::Argument`], the pull is still
    /// under way: the call may be repeated, with this buffer or another one. After any other error it is over.
    pub fn finish_pull<T: Element>(
        &mut self,
        ticket: PullTicket,
        out: &mut [T],
    ) -> Result<(), ClientError> {
        let deadline = self.deadline();
        let state = self.tables.find_mut("finish_pull", ticket.named)?;
        if T::DTYPE != ticket.named.dtype && !on(Mutant::ForeignHandle) {
            let (have, given) = (ticket.named.dtype, T::DTYPE);
            let what = format!("the pull is of {have:?}, the buffer of {given:?}");
            return Err(state.wrong("finish_pull", what));
        }
        let bytes = out.as_mut_bytes();
        if self.async_pulls.is_range(ticket) {
            let (lanes, scratch) = (&mut self.lanes, &mut self.blocks);
            let pulls = &mut self.async_pulls;
            return pulls.finish_range(lanes, state, scratch, ticket, bytes, deadline);
        }
        self.async_pulls.finish(
            &mut self.lanes,
            state,
            &mut self.scratch,
            ticket,
            bytes,
            deadline,
        )
    }

    /// Cancels a started pull, and frees its place. Has no effect on one that is finished or cancelled.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a ticket of another client, or of a released table.
    pub fn cancel_pull(&mut self, ticket: PullTicket) -> Result<(), ClientError> {
        self.tables.find("cancel_pull", ticket.named)?;
        self.async_pulls.cancel(ticket);
        Ok(())
    }

    /// Pulls the elements of a range table from `first` on (row-major) into `out`, as many as it holds, and blocks
    /// until they are there. Returns their version or versions, as far as they are known.
    ///
    /// # Errors
    /// [`ClientError::Argument`] when the range is not in the table, the table has rows, or the mode is
    /// `Snapshot` and the table has no snapshots; deadlines; a server's refusal.
    pub fn pull_range<T: Element>(
        &mut self,
        table: &Table<T>,
        first: u64,
        out: &mut [T],
        options: PullOptions,
    ) -> Result<Pulled, ClientError> {
        let state = self.tables.find_mut("pull_range", table.named())?;
        self.clock.gate(&mut self.lanes, state.spec.domain)?;
        let deadline = Deadline::after(options.timeout);
        pull::pull_blocks(
            &mut self.lanes,
            state,
            &mut self.blocks,
            first,
            out.as_mut_bytes(),
            Reading {
                mode: options.mode,
                want: Want::Newest,
            },
            deadline,
        )
    }
}

/// Whether a call may have this many keys: their indexes must fit the 32 bits of the protocol.
pub(super) const fn is_countable(keys: &[u64]) -> bool {
    keys.len() < u32::MAX as usize
}

/// Error text for a number of elements that does not fit `keys` and `dim`, or for too many keys.
#[cold]
pub(super) fn sizes(elements: usize, keys: &[u64], dim: usize) -> String {
    if is_countable(keys) {
        return format!("{elements} elements for {} rows of {dim}", keys.len());
    }
    let most = u32::MAX - 1;
    format!("{} rows in one call; the most is {most}", keys.len())
}

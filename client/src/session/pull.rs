//! Pulls, as calls of the client.

use tidewater_transport::clock::Deadline;
use zerocopy::IntoBytes;

use super::Client;
use crate::error::ClientError;
use crate::pull::{self, Due, PullMode, PullOptions, PullTicket};
use crate::table::{Element, Table};

impl Client {
    /// Pulls rows by key (sparse) or index (layout `rows`) into `out`, row after row in the order
    /// of `keys`; keys may be unsorted and may repeat. On an error `out` is unspecified.
    ///
    /// # Errors
    /// [`ClientError::Argument`] when `out` is not `keys.len() x dim` elements or an index is past
    /// the end; deadlines; a server's refusal.
    pub fn pull_rows<T: Element>(
        &mut self,
        table: &Table<T>,
        keys: &[u64],
        out: &mut [T],
        options: PullOptions,
    ) -> Result<(), ClientError> {
        let due = keys.len() * table.dim;
        if out.len() != due {
            let what = format!(
                "{} elements for {} rows of {}",
                out.len(),
                keys.len(),
                table.dim
            );
            return Err(self.wrong("pull_rows", table.index, what));
        }
        if options.mode == PullMode::Snapshot {
            let what = "snapshots are of ranges; use pull_dense".into();
            return Err(self.wrong("pull_rows", table.index, what));
        }
        let Some(state) = self.tables.get_mut(table.index) else {
            return Ok(());
        };
        if state.is_blocks() {
            let what = "the table is by ranges; use pull_dense".into();
            return Err(self.wrong("pull_rows", table.index, what));
        }
        self.clock.gate(&mut self.lanes, state.spec.domain)?;
        pull::pull_rows(
            &mut self.lanes,
            state,
            &mut self.scratch,
            keys,
            out.as_mut_bytes(),
            options,
            Due::In(options.timeout),
        )
    }

    /// Starts a pull of rows; [`Client::finish_pull`] waits for it. Several may be under way, on
    /// one table or many. Rows whose place is not yet known are read when it is finished.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a table by ranges, a snapshot, or too many pulls under way.
    pub fn start_pull_rows<T: Element>(
        &mut self,
        table: &Table<T>,
        keys: &[u64],
        options: PullOptions,
    ) -> Result<PullTicket, ClientError> {
        let deadline = Deadline::after(options.timeout);
        let Some(state) = self.tables.get(table.index) else {
            return Err(self.wrong("start_pull", table.index, "no such table".into()));
        };
        if state.is_blocks() || options.mode == PullMode::Snapshot {
            let what = "only rows can be pulled later; use pull_dense".into();
            return Err(self.wrong("start_pull", table.index, what));
        }
        self.clock.gate(&mut self.lanes, state.spec.domain)?;
        self.later.start(
            &mut self.lanes,
            (table.index, state),
            keys,
            options,
            deadline,
        )
    }

    /// Whether [`Client::finish_pull`] would return without waiting for reads under way.
    ///
    /// # Errors
    /// When a server is lost.
    pub fn try_pull(&mut self, ticket: PullTicket) -> Result<bool, ClientError> {
        self.progress()?;
        Ok(self.later.is_ready(&mut self.lanes, ticket))
    }

    /// Waits for a pull and writes its rows to `out`, in the order of its keys.
    ///
    /// # Errors
    /// As [`Client::pull_rows`]. After a deadline, and after [`ClientError::Argument`], the pull is still
    /// under way: the call may be repeated, with this buffer or another one. After any other error it
    /// is over.
    pub fn finish_pull<T: Element>(
        &mut self,
        ticket: PullTicket,
        out: &mut [T],
    ) -> Result<(), ClientError> {
        let deadline = self.deadline();
        let Some(state) = self.tables.get_mut(ticket.table) else {
            return Ok(());
        };
        let bytes = out.as_mut_bytes();
        self.later.finish(
            &mut self.lanes,
            state,
            &mut self.scratch,
            ticket,
            bytes,
            deadline,
        )
    }

    /// Gives a pull up.
    pub fn cancel_pull(&mut self, ticket: PullTicket) {
        self.later.cancel(ticket);
    }

    /// Pulls elements `first ..` of a table by ranges (row-major) into `out`.
    ///
    /// # Errors
    /// [`ClientError::Argument`] when the range is not in the table; deadlines; a server's refusal.
    pub fn pull_dense<T: Element>(
        &mut self,
        table: &Table<T>,
        first: u64,
        out: &mut [T],
        options: PullOptions,
    ) -> Result<(), ClientError> {
        let Some(state) = self.tables.get_mut(table.index) else {
            return Ok(());
        };
        self.clock.gate(&mut self.lanes, state.spec.domain)?;
        let deadline = Deadline::after(options.timeout);
        pull::pull_blocks(
            &mut self.lanes,
            state,
            &mut self.blocks,
            first,
            out.as_mut_bytes(),
            options,
            deadline,
        )
    }
}

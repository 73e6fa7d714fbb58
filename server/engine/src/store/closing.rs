//! The position of a tick in the redo area, so that a successor passes over the rows that are stepped.
//!
//! ```text
//! u64 namespace | u64 domain | u64 iteration | u64 frame number before the tick | u64 position | 0
//! ```
//! The position is stored last. Rows of the tick have a name like those of a push while they are stepped. Of the
//! position that is noted and that of the name, the later one holds.

use tidewater_protocol::layout::LINE_BYTES;
use tidewater_runtime::mem::WordsMut;
use tidewater_runtime::sync::{Ordering, fence};

use super::StoreError;
use super::redo::{PushName, Redo};

/// Byte offset of the tick's position in the close line: the cache line of the redo area that names the tick
/// under way.
const CLOSE_AT: usize = 32;

/// Tick that an applier carries out, as the redo area names it, and its position.
///
/// Tables are stepped in ascending order, and rows of a table in an order that depends on the held pushes only. So
/// table and number of its stepped rows say which rows of the tick are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closing {
    /// Number of the job.
    pub(crate) namespace: u64,
    /// Clock domain in which the iteration ends.
    pub(crate) domain: u64,
    /// Number of the iteration that ends.
    pub(crate) iteration: u64,
    /// Number (lsn) of the last step before the tick.
    pub(crate) lsn: u64,
    /// Number of the table (upper half), and number of its rows that are stepped (lower half).
    pub(crate) position: u64,
}

/// Session number in the redo area's name of rows that a tick changes, in place of a client's session. The
/// sequence number of such a name is the tick's position before these rows.
pub(crate) const TICK_SESSION: u64 = u64::MAX;

impl Redo {
    /// Writes the iteration that a tick closes to the redo area, before the tick changes its first row: a
    /// successor learns which tick a crash interrupted. Cost: six stores to one line.
    ///
    /// # Errors
    /// None in practice: the area lies inside the memory of this server.
    pub(crate) fn begin_close(&self, closing: &Closing) -> Result<(), StoreError> {
        let line = self.close_line()?;
        // Nothing is stepped, whatever iteration the line names until it is complete.
        line.store(CLOSE_AT, 0);
        fence(Ordering::Release);
        for (word, value) in (0..4).zip([
            closing.namespace,
            closing.domain,
            closing.iteration,
            closing.lsn,
        ]) {
            line.store(word * 8, value);
        }
        fence(Ordering::Release);
        line.store(CLOSE_AT, closing.position);
        Ok(())
    }

    /// Stores the position that the tick has reached in the redo area. The caller never passes a lower one
    /// than before in the same tick.
    ///
    /// # Errors
    /// None in practice: the area lies inside the memory of this server.
    pub(crate) fn note_close(&self, position: u64) -> Result<(), StoreError> {
        self.close_line()?.store(CLOSE_AT, position);
        fence(Ordering::Release);
        Ok(())
    }

    /// Reads the tick that a dead applier began last, with its position; all fields are 0 if none was begun.
    /// `push` is the push with its number of applied rows that [`Self::interrupted`] returns. A name under
    /// [`TICK_SESSION`] is that of some rows of the tick, and may show a later position than the one noted.
    ///
    /// # Errors
    /// None in practice: the area lies inside the memory of this server.
    pub(crate) fn closing(&self, push: Option<(PushName, u32)>) -> Result<Closing, StoreError> {
        let line = self.close_line()?.as_read();
        let [namespace, domain, iteration, lsn, noted] =
            [0, 8, 16, 24, CLOSE_AT].map(|at| line.load(at));
        let named = push.filter(|(name, _)| name.session == TICK_SESSION && name.lsn > lsn);
        let position = named.map_or(0, |(name, rows)| name.seq + u64::from(rows));
        Ok(Closing {
            namespace,
            domain,
            iteration,
            lsn,
            position: noted.max(position),
        })
    }

    fn close_line(&self) -> Result<WordsMut<'_>, StoreError> {
        let at = self.block.at + self.block.len - 2 * LINE_BYTES;
        Ok(self.memory.private.region().words_mut(at, LINE_BYTES)?)
    }
}

//! Deletions of rows, in the order of the pushes of their sender.
//!
//! On a table of pushes that take effect on arrival, a DELETE frame removes its rows at its place in the
//! ring. On a table of ticks it is held like a push. The order of a tick is that of rank, thread and
//! frame: a deletion drops the sums of the pushes before it, and pushes after it begin with a new row.
//! The tick carries the deletions out before its steps.
//!
//! A tick cannot refuse, and rows of held pushes exist since they were held. The row of a key that has
//! such a push after the deletion therefore keeps its slot and begins again with its initial values.
//! Readers cannot distinguish the two: the pull of a key without a row returns the same values.

use tidewater_protocol::layout::frame::FrameHeader;
use tidewater_protocol::mutants::{self, Mutant};

use super::Refusal;
use super::engine::{Effect, Engine};
use super::push::{word, wrong_operation};
use super::row_sums::RowSums;
use super::sums::Sums;
use super::table::{Store, Table};
use crate::namespace::FrameSender;

impl Engine {
    /// Deletes the rows of the keys of a DELETE frame. On a table that applies pushes at ticks, holds the
    /// frame until its tick instead; `Effect::Wait` leaves it in its ring if it cannot be held yet. Keys
    /// without a row are skipped.
    pub(super) fn delete_frame(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Effect, Refusal> {
        let table = self.known(sender.namespace, header.table)?;
        if !matches!(table.store, Store::Sparse(_)) {
            return Err(wrong_operation(header));
        }
        let at_tick = table.at_clock();
        self.check_keys(sender.namespace, header, payload)?;
        if at_tick {
            let Some(staged) = self.admit(sender, header)? else {
                return Ok(Effect::Wait);
            };
            self.hold(sender, staged, header, payload)?;
        }
        if !at_tick || mutants::on(Mutant::DeletionOnArrival) {
            for row in 0..header.count as usize {
                self.delete_row(header.table, word(payload, row * 8), false);
            }
        }
        Ok(Effect::Applied)
    }

    /// Removes and returns the keys that DELETE frames have named for the open iteration of table `id`: each
    /// once, in descending order. Empty if there are none.
    pub(super) fn noted_deletions(&mut self, id: u32) -> Vec<u64> {
        let noted = match mutants::on(Mutant::DeletionRepeated) {
            true => self.deletions.get(&id).cloned(),
            false => self.deletions.remove(&id),
        };
        // Most iterations delete nothing.
        let mut keys = noted.unwrap_or_default();
        keys.sort_unstable_by(|a, b| b.cmp(a));
        keys.dedup();
        keys
    }

    /// Deletes at most `rows` rows when `iteration` is closed, before its sums are applied: those with the
    /// least keys in `left`, in ascending order. `left` must be in descending order. Removes these keys from
    /// `left`, and subtracts their number from `rows`. A row that held pushes still change is reset to its
    /// initial values, and keeps its slot.
    pub(super) fn delete_some(
        &mut self,
        id: u32,
        iteration: u64,
        left: &mut Vec<u64>,
        rows: &mut usize,
    ) {
        if left.is_empty() {
            return;
        }
        let mut keys = left.split_off(left.len().saturating_sub(*rows));
        keys.reverse();
        self.delete_at_tick(id, iteration, &keys);
        *rows = rows.saturating_sub(keys.len());
    }

    /// Deletes the rows of `keys` in the tick that ends `iteration`, as one step of the applier's total
    /// order. A row that held pushes still change is reset to its initial values, and keeps its slot. A
    /// failure stops the applier.
    pub(super) fn delete_at_tick(&mut self, id: u32, iteration: u64, keys: &[u64]) {
        self.lsn += 1;
        for &key in keys {
            let awaited = match self.sums.get(&id) {
                Some(Sums::Rows(all)) => all
                    .iter()
                    .flatten()
                    .any(|sums| sums.is_awaited(key, iteration)),
                _ => false,
            };
            self.delete_row(id, key, awaited);
        }
    }

    /// Deletes the row of a key. If `awaited`, because held pushes still change it, the row gets its initial
    /// values instead and keeps its slot. No effect on a key without a row. A failure of the store stops the
    /// applier.
    fn delete_row(&mut self, id: u32, key: u64, awaited: bool) {
        let progress = self.progress(0);
        let Some(Store::Sparse(shard)) = self.tables.get_mut(&id).map(|t| &mut t.store) else {
            unreachable!("table {id}, which was found before, is not sparse");
        };
        let done = match awaited {
            true => shard.reset(key, &self.redo, progress),
            false => shard.remove(key, &self.redo),
        };
        if let Err(e) = done {
            self.fail(format_args!(
                "row {key} of table {id} could not be deleted: {e}"
            ));
        }
    }
}

/// Appends the keys of a held DELETE frame to `noted`, to be deleted when the iteration is closed, and drops
/// their `sums` of the pushes before the frame. Called in the order of the tick. A key without a row is not
/// noted: no push of the key was held before, since a held push has a row.
pub(super) fn note_deletions(
    table: &Table,
    sums: &[Option<RowSums>],
    payload: &[u8],
    noted: &mut Vec<u64>,
) {
    let (keys, _) = payload.as_chunks::<8>();
    for key in keys.iter().map(|key| u64::from_le_bytes(*key)) {
        if !mutants::on(Mutant::DeletionKeepsSum) {
            sums.iter().flatten().for_each(|sums| sums.clear(key));
        }
        if table.place(key).is_some() {
            noted.push(key);
        }
    }
}

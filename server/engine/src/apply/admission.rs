//! Pushes and functions of tables that count the pushes of a key before they make its row.

use tidewater_protocol::layout::frame::{FrameHeader, FrameKind, RowsPayload};
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::table::PushOp;

use super::Refusal;
use super::engine::{Effect, Engine};
use super::push::word;
use super::table::Store;
use crate::store::redo::RowPlace;

impl Engine {
    /// Applies a checked push to a sparse table on which a key gets its row only at a later push
    /// (`admit_after`). Keys that have a row, or get one with this push, are applied: a sum multiplied by
    /// `factor`, a gradient at `factor` times the learning rate. Other keys are counted; their values are
    /// acknowledged and dropped. `parts` has the offset of the values in `payload`. Without room for a row the
    /// push is refused and no value changes, but its keys stay counted.
    pub(super) fn push_admitted(
        &mut self,
        header: &FrameHeader,
        op: PushOp,
        factor: f64,
        payload: &[u8],
        parts: RowsPayload,
    ) -> Result<Effect, Refusal> {
        let Some(table) = self.tables.get_mut(&header.table) else {
            unreachable!("table {} has been found", header.table);
        };
        let row_bytes = table.spec.row_bytes();
        let Store::Sparse(shard) = &mut table.store else {
            unreachable!("table {} counts pushes", header.table);
        };
        let (mut rows, mut admitted) = std::mem::take(&mut self.admitted);
        rows.clear();
        let all = 0..header.count;
        rows.extend(all.filter(|&row| shard.admit(word(payload, row as usize * 8))));
        let kept = RowsPayload::new(rows.len(), row_bytes, false);
        admitted.clear();
        admitted.resize(kept.len, 0);
        for (to, &row) in rows.iter().enumerate() {
            let row = row as usize;
            admitted[to * 8..][..8].copy_from_slice(&payload[row * 8..][..8]);
            let values = &payload[parts.values_at + row * row_bytes..][..row_bytes];
            admitted[kept.values_at + to * row_bytes..][..row_bytes].copy_from_slice(values);
        }
        let located = self.locate_rows(header.table, &admitted, kept, rows.len(), false);
        if located.is_ok() && !rows.is_empty() {
            self.store_rows(header.table, op, &admitted[kept.values_at..], factor);
        }
        self.admitted = (rows, admitted);
        located.map(|()| Effect::Applied)
    }

    /// Replaces `self.places` by one place (location in memory) for each of the `count` keys of a function
    /// frame, on a table with an admission threshold. An UPDATE counts as a push of each key without a row; a
    /// key that reaches the threshold gets its row now. Any other key without a row gets a place without a row:
    /// the function sees the initial values of the key, and its new values are dropped.
    pub(super) fn find_admitted(
        &mut self,
        header: &FrameHeader,
        count: usize,
        key: impl Fn(usize) -> u64,
    ) -> Result<(), Refusal> {
        let progress = self.progress(0);
        let Some(Store::Sparse(shard)) = self.tables.get_mut(&header.table).map(|t| &mut t.store)
        else {
            unreachable!("table {} counts pushes", header.table);
        };
        let counts = header.kind == FrameKind::Update;
        self.places.clear();
        let mut found = Ok(());
        for key in (0..count).map(key) {
            let has_row = match counts {
                true => shard.admit(key),
                false => shard.find(key).is_some(),
            };
            if !has_row {
                self.places.push(RowPlace::without_row(key));
                continue;
            }
            let row = |_| (key, RowLocation::NONE);
            let made = shard.find_rows(1, row, &self.redo, progress, &mut self.places);
            found = made.map_err(|e| (key, e));
            if found.is_err() {
                break;
            }
        }
        found.map_err(|(key, e)| self.no_room(header.table, key, &e))
    }
}

//! Pushes: validation of the whole frame, then its rows one after the other.

use tidewater_transport::layout::frame::{FrameHeader, RowsPayload};
use tidewater_transport::layout::lines::RejectCode;
use tidewater_transport::layout::row::Loc;
use tidewater_transport::planted::{self, Plant};
use tidewater_transport::table::{PushOp, Shape};

use super::Refusal;
use super::engine::{Effect, Engine};
use super::table::{Store, Table};
use crate::namespace::FrameSender;

/// Little-endian word at `at` of a payload that was measured before.
pub(super) fn word(payload: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    if let Some(bytes) = payload.get(at..at + 8) {
        raw.copy_from_slice(bytes);
    }
    u64::from_le_bytes(raw)
}

/// Checks what header and table must agree on; the operation.
fn operation(table: &Table, header: &FrameHeader) -> Result<PushOp, Refusal> {
    let told = header.flags.dtype.map_or(0, |d| d.code());
    if told != table.spec.dtype.code() {
        let numbers = [u64::from(told), u64::from(table.spec.dtype.code())];
        return Err((RejectCode::WrongDType, numbers));
    }
    match header.flags.op {
        Some(op) if table.kernel().accepts(op) => Ok(op),
        Some(op) => Err((RejectCode::WrongOperation, [op as u64, 0])),
        None => Err((RejectCode::WrongOperation, [0, 0])),
    }
}

fn check_len(payload: &[u8], expected: usize) -> Result<(), Refusal> {
    if payload.len() == expected {
        return Ok(());
    }
    Err((
        RejectCode::WrongLength,
        [payload.len() as u64, expected as u64],
    ))
}

/// Whether all rows of a push are right; the number of good rows before a bad one with the error.
fn check_rows(
    table: &Table,
    payload: &[u8],
    parts: RowsPayload,
    count: usize,
) -> Result<(), (usize, Refusal)> {
    let row_bytes = table.spec.row_bytes();
    let (keys, _) = payload.as_chunks::<8>();
    let values = payload.get(parts.values_at..).unwrap_or_default();
    // All values at once; only a frame that is refused is asked for the row.
    let all_finite = !table.spec.finite_check || table.kernel().all_finite(values);
    for (row, key) in keys.iter().take(count).enumerate() {
        let key = u64::from_le_bytes(*key);
        table.check_key(key).map_err(|refusal| (row, refusal))?;
        if !all_finite {
            let values = values.get(row * row_bytes..).unwrap_or_default();
            let values = values.get(..row_bytes).unwrap_or_default();
            if !table.kernel().all_finite(values) {
                return Err((row, (RejectCode::NotFinite, [row as u64, key])));
            }
        }
    }
    Ok(())
}

impl Engine {
    pub(super) fn push_rows(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Effect, Refusal> {
        let table = self.known(sender.namespace, header.table)?;
        if matches!(table.store, Store::Blocks(_)) {
            return Err((RejectCode::WrongOperation, [header.kind as u64, 0]));
        }
        let op = operation(table, header)?;
        let count = header.count as usize;
        let row_bytes = table.spec.row_bytes();
        // Before any arithmetic on `count`: more rows than bytes is never a push.
        if count > payload.len() {
            return Err((
                RejectCode::WrongLength,
                [payload.len() as u64, u64::from(header.count)],
            ));
        }
        let parts = RowsPayload::new(count, row_bytes, header.flags.locs);
        check_len(payload, parts.len)?;
        if let Err((good, refusal)) = check_rows(table, payload, parts, count) {
            if planted::on(Plant::ApplyHalfRefusedFrame) {
                self.apply_rows(header.table, op, payload, parts, good, false)?;
            }
            return Err(refusal);
        }
        if table.at_clock() {
            self.check_open(sender, header)?;
            // A tick cannot refuse: rows that are missing are made now, while this push still can
            // be refused.
            if !planted::on(Plant::RowsReservedAtTick) {
                self.locate_rows(header.table, payload, parts, count, header.flags.locs)?;
            }
            self.hold(sender, header, payload)?;
            return Ok(Effect::Applied);
        }
        self.apply_rows(header.table, op, payload, parts, count, header.flags.locs)?;
        Ok(Effect::Applied)
    }

    /// Looks all rows up (creating what is missing), then applies them.
    pub(super) fn apply_rows(
        &mut self,
        table: u32,
        op: PushOp,
        payload: &[u8],
        parts: RowsPayload,
        count: usize,
        hints: bool,
    ) -> Result<(), Refusal> {
        self.locate_rows(table, payload, parts, count, hints)?;
        let progress = self.progress(0);
        if let Some(rows) = self.tables.get_mut(&table).and_then(Table::rows) {
            let values = payload.get(parts.values_at..).unwrap_or_default();
            // Places come from the store itself: they are inside its memory.
            if let Err(e) = rows.apply_all(&self.redo, progress, &self.places, op, values) {
                self.fail(format_args!(
                    "rows of table {table} could not be stored: {e}"
                ));
            }
        }
        Ok(())
    }

    /// Fills `self.places` with the rows of a push, creating those that are missing.
    fn locate_rows(
        &mut self,
        table: u32,
        payload: &[u8],
        parts: RowsPayload,
        count: usize,
        hints: bool,
    ) -> Result<(), Refusal> {
        let (keys, _) = payload.as_chunks::<8>();
        let told = payload.get(parts.locs_at..).filter(|_| hints);
        let (locs, _) = told.unwrap_or_default().as_chunks::<8>();
        let word = |of: &[[u8; 8]], row: usize| of.get(row).map_or(0, |w| u64::from_le_bytes(*w));
        self.find_rows(table, count, |row| (word(keys, row), Loc(word(locs, row))))
    }

    /// Fills `self.places` with the rows of a frame: of each its key, and the client's hint if there
    /// is one.
    pub(super) fn find_rows(
        &mut self,
        table: u32,
        count: usize,
        row: impl Fn(usize) -> (u64, Loc),
    ) -> Result<(), Refusal> {
        let progress = self.progress(0);
        self.places.clear();
        match self.tables.get_mut(&table).map(|table| &mut table.store) {
            Some(Store::Sparse(s)) => s
                .find_rows(count, row, (&self.redo, progress), &mut self.places)
                .map_err(|e| self.no_memory(&e)),
            Some(Store::Rows(rows)) => (0..count).try_for_each(|n| {
                let (key, _) = row(n);
                let refusal = (RejectCode::IndexOutOfRange, [key, 0]);
                self.places.push(rows.place(key).ok_or(refusal)?);
                Ok(())
            }),
            Some(Store::Blocks(_)) | None => Ok(()),
        }
    }

    pub(super) fn push_dense(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Effect, Refusal> {
        let table = self.known(sender.namespace, header.table)?;
        let Store::Blocks(blocks) = &table.store else {
            return Err((RejectCode::WrongOperation, [header.kind as u64, 0]));
        };
        let op = operation(table, header)?;
        let bytes = u64::from(header.count) * table.spec.dtype.size() as u64;
        check_len(payload, 8 + bytes as usize)?;
        let first = word(payload, 0);
        let Shape::Dense { rows, cols, .. } = table.spec.shape else {
            return Err((RejectCode::WrongOperation, [header.kind as u64, 0]));
        };
        let elements = rows.saturating_mul(u64::from(cols));
        let end = first.checked_add(u64::from(header.count));
        if end.is_none_or(|end| end > elements) {
            return Err((RejectCode::IndexOutOfRange, [first, elements]));
        }
        if !blocks.owns_range(first, u64::from(header.count)) {
            return Err((RejectCode::WrongOwner, [first, u64::from(header.partition)]));
        }
        let values = payload.get(8..).unwrap_or_default();
        if table.spec.finite_check && !table.kernel().all_finite(values) {
            return Err((RejectCode::NotFinite, [0, first]));
        }
        if table.at_clock() {
            self.check_open(sender, header)?;
            self.hold(sender, header, payload)?;
            return Ok(Effect::Applied);
        }
        let progress = self.progress(0);
        if let Some(Table {
            store: Store::Blocks(blocks),
            ..
        }) = self.tables.get_mut(&header.table)
            && let Err(e) = blocks.apply_range(&self.redo, progress, first, op, values)
        {
            // The range was checked to be this applier's; blocks before the bad one are stored.
            let table = header.table;
            self.fail(format_args!(
                "a range of table {table} could not be stored: {e}"
            ));
        }
        Ok(Effect::Applied)
    }

    /// Refuses a push at the clock that is not of its worker's open iteration.
    fn check_open(&mut self, sender: FrameSender, header: &FrameHeader) -> Result<(), Refusal> {
        let domain = self.known(sender.namespace, header.table)?.spec.domain;
        let open = self.clocks(sender.namespace).clock(domain, sender.rank);
        if !sender.clocked || open != Some(header.clock) {
            return Err((
                RejectCode::BadClock,
                [header.clock, open.unwrap_or(u64::MAX)],
            ));
        }
        Ok(())
    }

    fn hold(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let domain = self.known(sender.namespace, header.table)?.spec.domain;
        self.pending.hold(domain, sender, *header, payload)
    }
}

//! Pushes: validation of the whole frame, then its rows one after the other.

use tidewater_protocol::ids::DomainId;
use tidewater_protocol::layout::frame::{FrameHeader, RowsPayload};
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::{PushOp, Shape};

use super::Refusal;
use super::engine::{Effect, Engine};
use super::pending::StreamKey;
use super::push_values::{FiniteCheck, scale_sum, split_weight};
use super::table::{Store, Table};
use crate::namespace::FrameSender;
use crate::store::dense_blocks::{BlocksError, DenseBlocks};
use crate::store::redo::RowPlace;
use crate::store::rows::RowWriter;

/// Bytes of a range push's payload before its values: the number of the first element, a `u64`.
pub(super) const FIRST_BYTES: usize = 8;

/// Reads the little-endian 64-bit word at byte `at` of a payload.
///
/// # Panics
/// If the payload ends before it: callers check its length first.
pub(super) fn word(payload: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&payload[at..at + 8]);
    u64::from_le_bytes(raw)
}

/// Returns the places and values of a push without its first `before` rows, which a process that died had
/// applied.
fn rest_of_rows<'a>(
    places: &'a [RowPlace],
    values: &'a [u8],
    before: u32,
    row_bytes: usize,
) -> (&'a [RowPlace], &'a [u8]) {
    let before = places.len().min(before as usize);
    (&places[before..], &values[before * row_bytes..])
}

/// Builds the refusal of a frame with an operation that its table does not have.
pub(super) fn wrong_operation(header: &FrameHeader) -> Refusal {
    RejectReason::WrongOperation {
        kind: header.kind as u64,
        op: header.flags.op.map_or(0, |op| op as u64),
    }
}

/// Checks that the operation, element type, weight and encoding of a push suit its table. Returns the
/// operation.
pub(super) fn operation(table: &Table, header: &FrameHeader) -> Result<PushOp, Refusal> {
    let flags = header.flags;
    // Weights and encodings are of numbers that add up.
    let is_sum_of_floats = table.spec.dtype.is_float() && flags.op.is_some_and(PushOp::adds_up);
    if (flags.weight || flags.encoding.is_some()) && !is_sum_of_floats {
        return Err(wrong_operation(header));
    }
    let dtype_code = header.flags.dtype.map_or(0, |d| d.code());
    if dtype_code != table.spec.dtype.code() {
        return Err(RejectReason::WrongDType {
            frame: dtype_code.into(),
            table: table.spec.dtype.code().into(),
        });
    }
    match header.flags.op {
        Some(op) if table.kernel().accepts(op) && (op.has_ticks() || !table.at_clock()) => Ok(op),
        _ => Err(wrong_operation(header)),
    }
}

/// Builds the refusal of a range push for its first element that is not finite: the element's index in the push,
/// and its number in the table. `first` is the number in the table of the push's first element. Panics if all
/// elements pass.
#[cold]
fn not_finite(table: &Table, first: u64, values: &[u8], check: FiniteCheck) -> Refusal {
    let mut elements = values.chunks_exact(table.spec.dtype.size());
    let row = elements.position(|element| !check.accepts(table, element));
    let Some(row) = row else {
        unreachable!(
            "all of {} bytes from element {first} on are finite",
            values.len()
        );
    };
    let row = row as u64;
    let key = first + row;
    RejectReason::NotFinite { row, key }
}

pub(super) fn check_len(payload: &[u8], expected: usize) -> Result<(), Refusal> {
    if payload.len() == expected {
        return Ok(());
    }
    Err(wrong_length(payload, expected))
}

pub(super) const fn wrong_length(payload: &[u8], expected: usize) -> Refusal {
    RejectReason::WrongLength {
        bytes: payload.len() as u64,
        expected: expected as u64,
    }
}

/// Checks keys and values of all rows of a push. The error has the number of valid rows before the first
/// invalid row, and the refusal for this row.
fn check_rows(
    table: &Table,
    payload: &[u8],
    parts: RowsPayload,
    count: usize,
    check: FiniteCheck,
) -> Result<(), (usize, Refusal)> {
    let row_bytes = table.spec.row_bytes();
    let (keys, _) = payload.as_chunks::<8>();
    // The caller has checked the payload's length.
    let values = &payload[parts.values_at..];
    // All values at once; only a refused frame is searched for the row.
    let all_finite = check.accepts(table, values);
    for (row, key) in keys.iter().take(count).enumerate() {
        let key = u64::from_le_bytes(*key);
        table.check_key(key).map_err(|refusal| (row, refusal))?;
        if !all_finite {
            let values = &values[row * row_bytes..(row + 1) * row_bytes];
            if !check.accepts(table, values) {
                let reason = RejectReason::NotFinite {
                    row: row as u64,
                    key,
                };
                return Err((row, reason));
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
            return Err(wrong_operation(header));
        }
        let op = operation(table, header)?;
        let count = header.count as usize;
        let row_bytes = table.spec.row_bytes();
        // Before any arithmetic on `count`: more rows than bytes is never a push.
        if count > payload.len() {
            return Err(wrong_length(payload, count));
        }
        let parts = RowsPayload::new(count, row_bytes, header.flags.locs);
        let held = payload;
        let (payload, weight) = split_weight(table, header, payload)?;
        check_len(payload, parts.len)?;
        let (hints, values) = (header.flags.locs, &payload[parts.values_at..]);
        let check = FiniteCheck::of(table, op, weight);
        if let Err((good, refusal)) = check_rows(table, payload, parts, count, check) {
            if mutants::on(Mutant::ApplyHalfRefusedFrame) {
                self.locate_rows(header.table, payload, parts, good, false)?;
                self.store_rows(header.table, op, values, 1.0);
            }
            return Err(refusal);
        }
        let counts_pushes = table.counts_pushes();
        if header.flags.task && !mutants::on(Mutant::TaskPushesAtOnce) {
            let waits = table.at_clock();
            self.check_task(sender, header)?;
            self.locate_rows(header.table, payload, parts, count, hints)?;
            if waits {
                self.reserve_row_sums(header.table, op, payload, count, header.clock)?;
            }
            return self.hold_of_task(sender, header, held);
        }
        if table.at_clock() {
            let Some(staged) = self.admit(sender, header)? else {
                return Ok(Effect::Wait);
            };
            // A tick cannot refuse: rows that are missing are made now, while this push still can
            // be refused.
            if !mutants::on(Mutant::RowsReservedAtTick) {
                self.locate_rows(header.table, payload, parts, count, hints)?;
            }
            self.reserve_row_sums(header.table, op, payload, count, header.clock)?;
            self.hold(sender, staged, header, held)?;
            return Ok(Effect::Applied);
        }
        let factor = self.factor(sender, header, op, weight)?;
        if counts_pushes {
            return self.push_admitted(header, op, factor, payload, parts);
        }
        self.locate_rows(header.table, payload, parts, count, hints)?;
        self.store_rows(header.table, op, values, factor);
        Ok(Effect::Applied)
    }

    /// Applies the `values` of a push to the rows in `self.places`, one row's values for each place. A sum is
    /// multiplied by `factor`; a gradient takes a step of `factor` times the learning rate. Skips the first
    /// `self.rows_before` rows, applied before a crash, and sets this number to 0. Renews the time to expiry of
    /// all rows. A failure of the store stops the applier.
    pub(super) fn store_rows(&mut self, table: u32, op: PushOp, values: &[u8], factor: f64) {
        let before = std::mem::take(&mut self.rows_before);
        let progress = self.progress(before as usize);
        let mut scaled = std::mem::take(&mut self.scratch);
        let Some(rows) = self.tables.get_mut(&table) else {
            unreachable!("rows of table {table} have been found");
        };
        let expires = rows.spec.keys.expire_after > 0;
        let (places, values) = rest_of_rows(&self.places, values, before, rows.spec.row_bytes());
        let values = scale_sum(rows.spec.dtype, op, values, factor, &mut scaled);
        let Some(rows) = rows.rows() else {
            unreachable!("table {table}, which was found before, has no rows");
        };
        let redo = &self.redo;
        let apply = |rows: &mut RowWriter| rows.apply_all(redo, progress, places, op, values);
        let done = match factor == 1.0 {
            true => apply(rows),
            false => rows.at_rate(factor, apply),
        };
        self.scratch = scaled;
        // Locations come from the store itself: they are inside its memory.
        if let Err(e) = done {
            self.fail(format_args!(
                "rows of table {table} could not be stored: {e}"
            ));
        }
        if expires {
            self.stamp_rows(table);
        }
    }

    /// Replaces `self.places` by the places (locations in memory) of the rows of a push, and creates missing
    /// rows of a sparse table. `hints` says whether the payload has cached locations from the client. After a
    /// refusal the rows before the one that failed exist.
    pub(super) fn locate_rows(
        &mut self,
        table: u32,
        payload: &[u8],
        parts: RowsPayload,
        count: usize,
        hints: bool,
    ) -> Result<(), Refusal> {
        let (keys, _) = payload.as_chunks::<8>();
        let locs = match hints {
            true => &payload[parts.locs_at..],
            false => &[],
        };
        let (locs, _) = locs.as_chunks::<8>();
        let hint = |row: usize| match hints {
            true => RowLocation(u64::from_le_bytes(locs[row])),
            false => RowLocation(0),
        };
        self.find_rows(table, count, |row| {
            (u64::from_le_bytes(keys[row]), hint(row))
        })
    }

    /// Replaces `self.places` by the places of `count` rows of a frame, and creates missing rows of a sparse
    /// table. `row` returns the key of each, and the client's cached location or `RowLocation::NONE`. After a
    /// refusal the rows before the one that failed exist.
    pub(super) fn find_rows(
        &mut self,
        table: u32,
        count: usize,
        row: impl Fn(usize) -> (u64, RowLocation),
    ) -> Result<(), Refusal> {
        let progress = self.progress(0);
        self.places.clear();
        match self.tables.get_mut(&table).map(|table| &mut table.store) {
            Some(Store::Sparse(s)) => {
                let found = s.find_rows(count, &row, &self.redo, progress, &mut self.places);
                // The places before it were found.
                found.map_err(|e| self.no_room(table, row(self.places.len()).0, &e))
            }
            Some(Store::Rows(rows)) => (0..count).try_for_each(|n| {
                let (key, _) = row(n);
                let refusal = RejectReason::IndexOutOfRange {
                    index: key,
                    size: 0,
                };
                self.places.push(rows.place(key).ok_or(refusal)?);
                Ok(())
            }),
            Some(Store::Blocks(_)) | None => {
                unreachable!("table {table}, which was found before, has no rows")
            }
        }
    }

    pub(super) fn push_range(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Effect, Refusal> {
        let table = self.known(sender.namespace, header.table)?;
        let Store::Blocks(blocks) = &table.store else {
            return Err(wrong_operation(header));
        };
        let op = operation(table, header)?;
        let bytes = u64::from(header.count) * table.spec.dtype.size() as u64;
        let held = payload;
        let (payload, weight) = split_weight(table, header, payload)?;
        check_len(payload, FIRST_BYTES + bytes as usize)?;
        let first = word(payload, 0);
        let Shape::Dense { rows, cols, .. } = table.spec.shape else {
            return Err(wrong_operation(header));
        };
        let elements = rows.saturating_mul(u64::from(cols));
        let end = first.checked_add(u64::from(header.count));
        if end.is_none_or(|end| end > elements) {
            return Err(RejectReason::IndexOutOfRange {
                index: first,
                size: elements,
            });
        }
        if !blocks.owns_range(first, u64::from(header.count)) {
            let count = match mutants::on(Mutant::RejectPartitionForCount) {
                true => header.partition,
                false => header.count,
            };
            let count = count.into();
            return Err(RejectReason::WrongOwner { first, count });
        }
        let values = &payload[FIRST_BYTES..];
        let check = FiniteCheck::of(table, op, weight);
        if !check.accepts(table, values) {
            return Err(not_finite(table, first, values, check));
        }
        let waits = table.at_clock();
        if header.flags.task && !mutants::on(Mutant::TaskPushesAtOnce) {
            self.check_task(sender, header)?;
            self.split_steps(header, op, first)?;
            if waits {
                self.reserve_sums(header.table, op)?;
            }
            return self.hold_of_task(sender, header, held);
        }
        let staged = match waits {
            true => match self.admit(sender, header)? {
                Some(staged) => Some(staged),
                None => return Ok(Effect::Wait),
            },
            false => None,
        };
        self.split_steps(header, op, first)?;
        if let Some(staged) = staged {
            self.reserve_sums(header.table, op)?;
            self.hold(sender, staged, header, held)?;
            return Ok(Effect::Applied);
        }
        let factor = self.factor(sender, header, op, weight)?;
        self.store_range(header.table, first, op, factor, values);
        Ok(Effect::Applied)
    }

    /// Applies the `values` of a push to the elements of a range table from element `first` on. A sum is
    /// multiplied by `factor`; a gradient takes a step of `factor` times the learning rate. Skips the first
    /// `self.rows_before` blocks of the range, applied before a crash, and sets this number to 0. A failure of
    /// the store stops the applier.
    fn store_range(&mut self, table: u32, first: u64, op: PushOp, factor: f64, values: &[u8]) {
        let before = std::mem::take(&mut self.rows_before);
        let progress = self.progress(before as usize);
        let mut scaled = std::mem::take(&mut self.scratch);
        let Some(Table {
            store: Store::Blocks(blocks),
            spec,
            ..
        }) = self.tables.get_mut(&table)
        else {
            unreachable!("table {table} is by ranges");
        };
        let (elements, size) = (values.len() / spec.dtype.size(), spec.dtype.size());
        // The blocks that were applied before a death are left out.
        let rest = blocks.resume_at(first, before).saturating_sub(first);
        let done = elements.min(usize::try_from(rest).unwrap_or(elements));
        let (first, values) = (first + done as u64, &values[done * size..]);
        let values = scale_sum(spec.dtype, op, values, factor, &mut scaled);
        let redo = &self.redo;
        let apply = |b: &mut DenseBlocks| match done < elements {
            true => b.apply_range(redo, progress, first, op, values),
            false => Ok(()),
        };
        let done = match factor == 1.0 {
            true => apply(blocks),
            false => blocks.at_rate(factor, apply),
        };
        self.scratch = scaled;
        if let Err(e) = done {
            // The range was checked to be this applier's; blocks before the bad one are stored.
            self.fail(format_args!(
                "a range of table {table} could not be stored: {e}"
            ));
        }
    }

    /// Checks that a frame is of the iteration that its thread has open in the table's domain, and returns the domain.
    pub(super) fn check_clock(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
    ) -> Result<DomainId, Refusal> {
        let domain = self.known(sender.namespace, header.table)?.spec.domain;
        let clocks = self.clocks(sender.namespace);
        match clocks.clock(domain, sender.thread) {
            Some(open) if open == header.clock => Ok(domain),
            open => Err(RejectReason::BadClock {
                clock: header.clock,
                expected: open.unwrap_or(u64::MAX),
            }),
        }
    }

    /// Decides whether a push can be held now. `Some(true)`: its rank has its turn, since the ranks below it
    /// have ended the iteration, and no tick is under way. `Some(false)`: not so, and the budget of early ranks
    /// has room. `None`: the push waits in its ring, for the end of a tick or for its turn. A push of another
    /// clock than the thread's own is refused.
    ///
    /// A frame waits for its turn only if its job uses no other domain: a CLOCK frame of another domain would
    /// wait behind this frame. With several domains the refusal is `PendingFull`.
    pub(super) fn admit(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
    ) -> Result<Option<bool>, Refusal> {
        let FrameSender { thread, namespace } = sender;
        let domain = self.check_clock(sender, header)?;
        let clocks = self.clocks(namespace);
        let ticked = clocks.ticked(thread) | 1 << domain.0;
        // A thread that is ahead of others of its rank pushes early, like a rank that is ahead.
        let has_turn =
            clocks.min(domain) == header.clock && clocks.turn(domain) == Some(thread.rank);
        let ticks = self.ticks(namespace, domain);
        if has_turn && !ticks {
            return Ok(Some(true));
        }
        let Err(full) = self.pending.room(header.payload_len as usize) else {
            return Ok(Some(false));
        };
        // The tick ends by itself, whatever waits behind this frame.
        if ticks {
            return Ok(None);
        }
        let counts = |t: &&Table| t.namespace == namespace && !t.spec.is_transient();
        let of_job = self.tables.values().filter(counts);
        let domains = of_job.fold(ticked, |seen, t| seen | 1 << t.spec.domain.0);
        let several = domains.count_ones() > 1 && !mutants::on(Mutant::WaitAcrossDomains);
        match several || mutants::on(Mutant::EarlyFrameRefused) {
            true => Err(full),
            false => Ok(None),
        }
    }

    /// Splits the runs of step counts where the range of a gradient begins and ends, so that applying the
    /// gradient later needs no memory. `first` is the number of the range's first element. No effect for other
    /// operations and for an empty range. The refusal is `NoMemory`.
    pub(super) fn split_steps(
        &mut self,
        header: &FrameHeader,
        op: PushOp,
        first: u64,
    ) -> Result<(), Refusal> {
        let table = self.tables.get_mut(&header.table);
        let Some(Store::Blocks(blocks)) = table.map(|table| &mut table.store) else {
            unreachable!("table {} is by ranges", header.table);
        };
        if op != PushOp::Gradient || header.count == 0 {
            return Ok(());
        }
        match blocks.split_steps(&self.redo, first, header.count.into()) {
            Ok(()) => Ok(()),
            Err(BlocksError::Store(e)) => Err(self.no_memory(&e)),
            // The range was checked to be this applier's.
            Err(_) => Err(RejectReason::WrongOwner {
                first,
                count: header.count.into(),
            }),
        }
    }

    pub(super) fn hold(
        &mut self,
        sender: FrameSender,
        staged: bool,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let FrameSender { thread, namespace } = sender;
        let key = StreamKey {
            namespace,
            domain: self.known(namespace, header.table)?.spec.domain,
            iteration: header.clock,
            thread,
        };
        self.pending.hold(key, staged, *header, payload)
    }
}

#[cfg(test)]
mod tests;

//! Pushes: validation of the whole frame, then its rows one after the other.

use tidewater_protocol::layout::frame::{FrameHeader, RowsPayload};
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::{PushOp, Shape};

use super::Refusal;
use super::engine::{Effect, Engine};
use super::pending::StreamKey;
use super::push_values::{scale_sum, split_weight};
use super::table::{Store, Table};
use crate::namespace::FrameSender;
use crate::store::dense_blocks::{BlocksError, DenseBlocks};
use crate::store::rows::RowWriter;

/// Bytes of a range's payload before its values: the first element's number.
pub(super) const FIRST_BYTES: usize = 8;

/// Little-endian word at `at` of a payload.
///
/// # Panics
/// If the payload ends before it: callers check its length first.
pub(super) fn word(payload: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&payload[at..at + 8]);
    u64::from_le_bytes(raw)
}

/// The refusal of an operation that the table does not have.
pub(super) fn wrong_operation(header: &FrameHeader) -> Refusal {
    RejectReason::WrongOperation {
        kind: header.kind as u64,
        op: header.flags.op.map_or(0, |op| op as u64),
    }
}

/// Checks that header and table agree. Returns the operation.
pub(super) fn operation(table: &Table, header: &FrameHeader) -> Result<PushOp, Refusal> {
    let flags = header.flags;
    // Weights and encodings are of numbers that add up.
    let is_sum_of_floats = table.spec.dtype.is_float() && flags.op != Some(PushOp::Assign);
    if (flags.weight || flags.encoding.is_some()) && !is_sum_of_floats {
        return Err(wrong_operation(header));
    }
    let told = header.flags.dtype.map_or(0, |d| d.code());
    if told != table.spec.dtype.code() {
        return Err(RejectReason::WrongDType {
            frame: told.into(),
            table: table.spec.dtype.code().into(),
        });
    }
    match header.flags.op {
        Some(op) if table.kernel().accepts(op) => Ok(op),
        _ => Err(wrong_operation(header)),
    }
}

/// The first element of a range that is not finite.
#[cold]
fn not_finite(table: &Table, first: u64, values: &[u8]) -> Refusal {
    let mut elements = values.chunks_exact(table.spec.dtype.size());
    let row = elements.position(|element| !table.kernel().all_finite(element));
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

/// Checks all rows of a push. The error has the number of good rows before the bad one.
fn check_rows(
    table: &Table,
    payload: &[u8],
    parts: RowsPayload,
    count: usize,
) -> Result<(), (usize, Refusal)> {
    let row_bytes = table.spec.row_bytes();
    let (keys, _) = payload.as_chunks::<8>();
    // The caller has checked the payload's length.
    let values = &payload[parts.values_at..];
    // All values at once; only a refused frame is searched for the row.
    let all_finite = !table.spec.finite_check || table.kernel().all_finite(values);
    for (row, key) in keys.iter().take(count).enumerate() {
        let key = u64::from_le_bytes(*key);
        table.check_key(key).map_err(|refusal| (row, refusal))?;
        if !all_finite {
            let values = &values[row * row_bytes..(row + 1) * row_bytes];
            if !table.kernel().all_finite(values) {
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
        if let Err((good, refusal)) = check_rows(table, payload, parts, count) {
            if mutants::on(Mutant::ApplyHalfRefusedFrame) {
                self.locate_rows(header.table, payload, parts, good, false)?;
                self.store_rows(header.table, op, values, 1.0);
            }
            return Err(refusal);
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
            self.reserve_row_sums(header.table, op, (payload, count), header.clock)?;
            self.hold(sender, staged, header, held)?;
            return Ok(Effect::Applied);
        }
        let factor = self.factor(sender, header, op, weight)?;
        self.locate_rows(header.table, payload, parts, count, hints)?;
        self.store_rows(header.table, op, values, factor);
        Ok(Effect::Applied)
    }

    /// Applies `values` to the rows in `self.places`: sums multiplied by `factor`, gradients at
    /// `factor` times the rate.
    fn store_rows(&mut self, table: u32, op: PushOp, values: &[u8], factor: f64) {
        let progress = self.progress(0);
        let mut scaled = std::mem::take(&mut self.scratch);
        let Some(rows) = self.tables.get_mut(&table) else {
            unreachable!("rows of table {table} have been found");
        };
        let values = scale_sum(rows.spec.dtype, op, values, factor, &mut scaled);
        let Some(rows) = rows.rows() else {
            unreachable!("table {table}, which was found before, has no rows");
        };
        let (redo, places) = (&self.redo, &self.places);
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
    }

    /// Fills `self.places` with the rows of a push, creating missing ones.
    fn locate_rows(
        &mut self,
        table: u32,
        payload: &[u8],
        parts: RowsPayload,
        count: usize,
        hints: bool,
    ) -> Result<(), Refusal> {
        let (keys, _) = payload.as_chunks::<8>();
        let told = match hints {
            true => &payload[parts.locs_at..],
            false => &[],
        };
        let (locs, _) = told.as_chunks::<8>();
        let hint = |row: usize| match hints {
            true => RowLocation(u64::from_le_bytes(locs[row])),
            false => RowLocation(0),
        };
        self.find_rows(table, count, |row| {
            (u64::from_le_bytes(keys[row]), hint(row))
        })
    }

    /// Fills `self.places` with the rows of a frame: of each its key, and the client's cached
    /// location if there is one.
    pub(super) fn find_rows(
        &mut self,
        table: u32,
        count: usize,
        row: impl Fn(usize) -> (u64, RowLocation),
    ) -> Result<(), Refusal> {
        let progress = self.progress(0);
        self.places.clear();
        match self.tables.get_mut(&table).map(|table| &mut table.store) {
            Some(Store::Sparse(s)) => s
                .find_rows(count, row, (&self.redo, progress), &mut self.places)
                .map_err(|e| self.no_memory(&e)),
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

    pub(super) fn push_dense(
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
        if table.spec.finite_check && !table.kernel().all_finite(values) {
            return Err(not_finite(table, first, values));
        }
        let staged = match table.at_clock() {
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
        self.store_range(header.table, first, (op, factor), values);
        Ok(Effect::Applied)
    }

    /// Applies `values` to the elements from `first` on: sums multiplied by `factor`, gradients at
    /// `factor` times the rate.
    fn store_range(&mut self, table: u32, first: u64, (op, factor): (PushOp, f64), values: &[u8]) {
        let progress = self.progress(0);
        let mut scaled = std::mem::take(&mut self.scratch);
        let Some(Table {
            store: Store::Blocks(blocks),
            spec,
            ..
        }) = self.tables.get_mut(&table)
        else {
            unreachable!("table {table} is by ranges");
        };
        let values = scale_sum(spec.dtype, op, values, factor, &mut scaled);
        let redo = &self.redo;
        let apply = |b: &mut DenseBlocks| b.apply_range(redo, progress, first, op, values);
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

    /// Whether a push at the clock can be held now, and whether it is its rank's turn; `None` if it
    /// has to wait for its turn in its ring.
    ///
    /// A frame waits only if no other domain is used: the CLOCK frame of the other domain would
    /// wait behind it.
    pub(super) fn admit(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
    ) -> Result<Option<bool>, Refusal> {
        let FrameSender { thread, namespace } = sender;
        let domain = self.known(namespace, header.table)?.spec.domain;
        let clocks = self.clocks(namespace);
        let open = clocks.clock(domain, thread);
        if open != Some(header.clock) {
            return Err(RejectReason::BadClock {
                clock: header.clock,
                expected: open.unwrap_or(u64::MAX),
            });
        }
        let ticked = clocks.ticked(thread) | 1 << domain.0;
        if clocks.turn(domain) == Some(thread.rank) {
            return Ok(Some(true));
        }
        let Err(full) = self.pending.room(header.payload_len as usize) else {
            return Ok(Some(false));
        };
        let counts = |t: &&Table| t.namespace == namespace && !t.spec.is_transient();
        let of_job = self.tables.values().filter(counts);
        let domains = of_job.fold(ticked, |seen, t| seen | 1 << t.spec.domain.0);
        let several = domains.count_ones() > 1 && !mutants::on(Mutant::WaitAcrossDomains);
        match several || mutants::on(Mutant::EarlyFrameRefused) {
            true => Err(full),
            false => Ok(None),
        }
    }

    /// Makes room for the step counts of a range, so that applying it later needs no memory.
    fn split_steps(&mut self, header: &FrameHeader, op: PushOp, first: u64) -> Result<(), Refusal> {
        let table = self.tables.get_mut(&header.table);
        let Some(Store::Blocks(blocks)) = table.map(|table| &mut table.store) else {
            unreachable!("table {} is by ranges", header.table);
        };
        if op != PushOp::Gradient || header.count == 0 {
            return Ok(());
        }
        match blocks.split_steps(first, header.count.into()) {
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
mod tests {
    use std::sync::Arc;

    use tidewater_protocol::ids::{DomainId, Incarnation, PartitionId, TableId, WorkerId};
    use tidewater_protocol::layout::encoding::EncodingCode;
    use tidewater_protocol::layout::frame::{FrameFlags, FrameKind};
    use tidewater_protocol::layout::function::{FunctionBody, FunctionPayload, FunctionProblem};
    use tidewater_protocol::table::{
        DType, DenseLayout, GradientOptions, Init, Optimizer, Reduce, TableSpec,
    };

    use super::*;
    use crate::store::ServerMemory;
    use crate::store::prepare::Preparer;

    /// Elements of each of the two partitions.
    const PART: u64 = 2 * 1024;

    /// An applier with partition 0 of two.
    fn engine() -> Engine {
        let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(5)).unwrap());
        let spec = Arc::new(TableSpec {
            name: "t".into(),
            shape: Shape::Dense {
                rows: 2 * PART,
                cols: 1,
                layout: DenseLayout::Blocks {
                    block_bytes: 4096,
                    snapshot: false,
                },
            },
            dtype: DType::F32,
            optimizer: Optimizer::None,
            init: Init::Zeros,
            seed: 1,
            effect: tidewater_protocol::table::Apply::Immediate,
            finite_check: true,
            domain: DomainId(0),
            partitions: 2,
            gradient: GradientOptions::default(),
        });
        let mine = [PartitionId(0)].into_iter();
        let table = Table::new(&memory, &Preparer::none(), (TableId(1), 0), &spec, mine);
        let mut engine = Engine::new(memory, 0, [WorkerId(0)]).unwrap();
        engine.add_table(table.unwrap());
        engine
    }

    fn push(engine: &mut Engine, first: u64, values: &[f32]) -> Result<Effect, Refusal> {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let plain = FrameFlags::default();
        push_bytes(engine, first, values.len(), plain, &bytes)
    }

    /// Pushes a sum of `count` elements with the weight and encoding of `flags`.
    fn push_bytes(
        engine: &mut Engine,
        first: u64,
        count: usize,
        flags: FrameFlags,
        bytes: &[u8],
    ) -> Result<Effect, Refusal> {
        let payload = [&first.to_le_bytes(), bytes].concat();
        let header = FrameHeader {
            kind: FrameKind::PushDense,
            flags: FrameFlags {
                op: Some(PushOp::Sum),
                dtype: Some(DType::F32),
                ..flags
            },
            seq: 1,
            session: 0,
            payload_len: payload.len() as u32,
            count: count as u32,
            table: 1,
            partition: 9,
            clock: 0,
            user_tag: 0,
            chk: 0,
        };
        engine.frame(FrameSender::first(WorkerId(0)), &header, &payload)
    }

    /// A refused range is named by its first element and its length.
    #[test]
    fn refused_range_names_its_elements() {
        let mut engine = engine();
        assert_eq!(push(&mut engine, 5, &[1.0; 3]), Ok(Effect::Applied));
        for first in [PART - 1, PART] {
            let refused = push(&mut engine, first, &[1.0; 3]);
            assert_eq!(refused, Err(RejectReason::WrongOwner { first, count: 3 }));
        }
        let refused = push(&mut engine, 2 * PART - 2, &[1.0; 3]);
        let (index, size) = (2 * PART - 2, 2 * PART);
        assert_eq!(refused, Err(RejectReason::IndexOutOfRange { index, size }));
        let refused = push(&mut engine, 5, &[1.0, 2.0, f32::NAN]);
        assert_eq!(refused, Err(RejectReason::NotFinite { row: 2, key: 7 }));
        assert_eq!(values(&mut engine), [0.0, 1.0, 1.0, 1.0]);
    }

    fn values(engine: &mut Engine) -> Vec<f32> {
        let table = engine.table(TableId(1)).unwrap();
        let Store::Blocks(blocks) = &table.store else {
            panic!("a table of blocks");
        };
        let mut out = [0; 16];
        blocks.read_range(4, &mut out).unwrap();
        let (values, _) = out.as_chunks();
        values.iter().map(|raw| f32::from_le_bytes(*raw)).collect()
    }

    /// A client that does not check: weights that are none, and values of another length.
    #[test]
    fn impossible_weights_and_encodings_are_refused() {
        let mut engine = engine();
        let (kind, op) = (FrameKind::PushDense as u64, PushOp::Sum as u64);
        let weighted = FrameFlags {
            weight: true,
            ..FrameFlags::default()
        };
        let row = 2f32.to_le_bytes();
        for weight in [f64::NAN, f64::INFINITY, -1.0, 1e39] {
            let bytes = [&row[..], &weight.to_le_bytes()].concat();
            let refused = push_bytes(&mut engine, 5, 1, weighted, &bytes);
            assert_eq!(refused, Err(RejectReason::WrongOperation { kind, op }));
        }
        let refused = push_bytes(&mut engine, 5, 1, weighted, &row);
        let length = |bytes, expected| Err(RejectReason::WrongLength { bytes, expected });
        assert_eq!(refused, length(4, 12));
        for (code, len, expected) in [
            (EncodingCode::Bf16, 5, 14),
            (EncodingCode::F16, 7, 14),
            (EncodingCode::Int8, 3, 8),
            (EncodingCode::Int8, 12, 8 + 4 + 4 + 3),
        ] {
            let encoded = FrameFlags {
                encoding: Some(code),
                ..FrameFlags::default()
            };
            let bytes = [8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            let refused = push_bytes(&mut engine, 5, 3, encoded, &bytes[..len]);
            assert_eq!(refused, length(8 + len as u64, expected), "{code:?}");
            // More elements than bytes, of any number.
            let refused = push_bytes(&mut engine, 5, u32::MAX as usize, encoded, &bytes[..len]);
            assert_eq!(refused, length(8 + len as u64, u32::MAX.into()), "{code:?}");
        }
        assert_eq!(values(&mut engine), [0.0; 4], "nothing was applied");
        let bytes = [&row[..], &0.75f64.to_le_bytes()].concat();
        let applied = push_bytes(&mut engine, 5, 1, weighted, &bytes);
        assert_eq!(applied, Ok(Effect::Applied));
        assert_eq!(values(&mut engine), [0.0, 1.5, 0.0, 0.0]);
        // An infinity of bf16 is one of the table.
        let infinite = FrameFlags {
            encoding: Some(EncodingCode::Bf16),
            ..FrameFlags::default()
        };
        let refused = push_bytes(&mut engine, 5, 2, infinite, &[0, 0, 0x80, 0x7f]);
        assert_eq!(refused, Err(RejectReason::NotFinite { row: 1, key: 6 }));
    }

    /// An UPDATE that another client sends for a table of ticks is refused, whatever its function.
    #[test]
    fn update_of_table_of_ticks_is_refused() {
        let mut engine = engine();
        let table = engine.table(TableId(1)).unwrap();
        let mut spec = TableSpec::clone(&table.spec);
        spec.effect = tidewater_protocol::table::Apply::AtTick(Reduce::Sum);
        table.spec = Arc::new(spec);
        let body = FunctionBody::Named {
            name: "any",
            arguments: &[],
        };
        let mut payload = FunctionPayload::new(body, 0, &[1], &[]);
        let payload = payload.at(0);
        let header = FrameHeader {
            kind: FrameKind::Update,
            flags: FrameFlags::default(),
            seq: 1,
            session: 0,
            payload_len: payload.len() as u32,
            count: 3,
            table: 1,
            partition: 0,
            clock: 0,
            user_tag: 0,
            chk: 0,
        };
        let refused = engine.frame(FrameSender::clocked(WorkerId(0)), &header, payload);
        assert_eq!(refused, Err(FunctionProblem::AtTick.with(0)));
    }

    /// A request that ends before its first element's number is refused like any other bad length.
    #[test]
    fn short_range_request_is_refused() {
        let mut engine = engine();
        for bytes in [0, 7, 9] {
            let header = FrameHeader {
                kind: FrameKind::Gather,
                flags: FrameFlags::default(),
                seq: 1,
                session: 0,
                payload_len: bytes as u32,
                count: 1,
                table: 1,
                partition: 0,
                clock: 0,
                user_tag: 0,
                chk: 0,
            };
            let sender = FrameSender::first(WorkerId(0));
            let refused = engine.frame(sender, &header, &[0; 9][..bytes]);
            let bytes = bytes as u64;
            let reason = RejectReason::WrongLength { bytes, expected: 8 };
            assert_eq!(refused, Err(reason));
        }
    }
}

//! Functions at the data: runs the function of an UPDATE or REDUCE frame on a piece. (long: one path for all kinds.)
//!
//! A piece is a part of one partition. It is copied out of the store, the function runs on the copy, and an
//! update is stored as an assignment of the complete piece. So a function that fails changes nothing, an update
//! follows the pushes of its ring and is applied once like them, and optimizer state follows as for an assignment.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tidewater_expression::{Evaluator, Partial, Program, Reduction};
use tidewater_protocol::layout::frame::{FrameHeader, FrameKind};
use tidewater_protocol::layout::function::{
    FUNCTION_INPUTS_MAX, FunctionBody, FunctionCall, FunctionProblem, NamedRows,
};
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::layout::reply::REPLY_HEADER_BYTES;
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::layout::session::REPLY_SLOT_BYTES;
use tidewater_protocol::limits::{FRAME_ROWS_MAX, FUNCTION_BYTES_MAX};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::{DType, Durability, PushOp, TableSpec};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Refusal;
use super::engine::{Effect, Engine, observer_refused};
use super::push::{word, wrong_operation};
use super::table::{Store, Table};
use crate::namespace::{FrameSender, NamespaceId};
use crate::store::redo::{Progress, Redo, RowPlace};
use tidewater_functions::{
    Elements, ElementsMut, FunctionFailure, Functions, Piece, ServerFunction, registered,
};

/// Number of elements of a range that an expression copies and evaluates at once: those of three inputs stay in the
/// first cache.
const ELEMENTS_AT_ONCE: usize = 1_024;
/// Largest result of a REDUCE function in bytes. It fits a reply slot.
const RESULT_BYTES_MAX: usize = 64 << 10;
const _: () = assert!(RESULT_BYTES_MAX + REPLY_HEADER_BYTES <= REPLY_SLOT_BYTES);

/// Server functions that one applier can run, and one workspace for each element type.
#[derive(Debug, Default)]
pub(super) struct FunctionRunner {
    /// Registered functions of the server, which all jobs can call.
    registered: Arc<Functions>,
    /// Functions that clients have loaded, by job. Other jobs cannot call them.
    pub(super) loaded: BTreeMap<NamespaceId, Functions>,
    f32: Workspace<f32>,
    f64: Workspace<f64>,
    i32: Workspace<i32>,
    i64: Workspace<i64>,
}

impl FunctionRunner {
    /// Creates a runner with the functions that are registered in this process.
    pub(super) fn new() -> Self {
        Self {
            registered: registered(),
            ..Self::default()
        }
    }

    /// Finds a function by name for a job. Functions of the server come before loaded ones: no client
    /// replaces one. The refusal of an unknown name has the number of functions that the job can call.
    fn find(&self, of: NamespaceId, name: &str) -> Result<Arc<dyn ServerFunction>, Refusal> {
        let loaded = self.loaded.get(&of);
        let found = self.registered.find(name);
        let found = found.or_else(|| loaded.and_then(|loaded| loaded.find(name)));
        let have = self.registered.len() + loaded.map_or(0, Functions::len);
        let unknown = FunctionProblem::Unknown.with(have as u64);
        found.map(Arc::clone).ok_or(unknown)
    }
}

/// Memory of functions on one element type: private copies of the elements of a piece, which grow to the largest
/// piece and are kept, and the last expression's evaluator, which the next call of the same expression reuses.
#[derive(Debug)]
struct Workspace<T> {
    inputs: [Vec<T>; FUNCTION_INPUTS_MAX],
    out: Vec<T>,
    keys: Vec<u64>,
    /// Last expression program, encoded: calls come in many frames.
    program: Vec<u8>,
    /// Parameters of the last expression call.
    parameters: Vec<f64>,
    /// Evaluator that was built from `program` and `parameters`, and the number of inputs of the program.
    evaluator: Option<(Evaluator<T>, usize)>,
}

impl<T> Default for Workspace<T> {
    fn default() -> Self {
        Self {
            inputs: [const { Vec::new() }; FUNCTION_INPUTS_MAX],
            out: Vec::new(),
            keys: Vec::new(),
            program: Vec::new(),
            parameters: Vec::new(),
            evaluator: None,
        }
    }
}

/// Element type of a table: passes typed slices to functions as `Elements`.
trait Element:
    tidewater_expression::Element + FromBytes + IntoBytes + Immutable + Default + Copy
{
    fn elements(values: &[Self]) -> Elements<'_>;
    fn elements_mut(values: &mut [Self]) -> ElementsMut<'_>;
}

macro_rules! element {
    ($type:ty, $variant:ident) => {
        impl Element for $type {
            fn elements(values: &[Self]) -> Elements<'_> {
                Elements::$variant(values)
            }
            fn elements_mut(values: &mut [Self]) -> ElementsMut<'_> {
                ElementsMut::$variant(values)
            }
        }
    };
}
element!(f32, F32);
element!(f64, F64);
element!(i32, I32);
element!(i64, I64);

/// Checked elements that a function frame covers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// First element of a range table, first row of a dense one, first slot of a sparse partition.
    first: u64,
    /// Number of elements that the frame covers: of all columns of its rows.
    elements: usize,
    /// Index that expressions see for the first element; 0 on a sparse table.
    first_index: u64,
    /// Whether the rows are found by key, in `Engine::places`. `first` has no meaning then.
    keyed: bool,
}

impl Span {
    /// Returns the part of the span of a range with at most `elements` elements from element offset `at` on.
    /// `at` must be inside the span. A span of rows can only be taken as a whole.
    fn part(&self, at: usize, elements: usize) -> Self {
        Self {
            first: self.first + at as u64,
            elements: elements.min(self.elements - at),
            first_index: self.first_index + at as u64,
            ..*self
        }
    }
}

impl Engine {
    /// Adds server functions for all jobs. They replace registered functions of the same name.
    pub fn add_functions(&mut self, functions: &Functions) {
        Arc::make_mut(&mut self.functions.registered).extend(functions);
    }

    /// Adds a function that the clients of one job can call until the job ends. A registered function of this
    /// name, which all jobs can call, comes before the loaded one.
    pub fn load_function(
        &mut self,
        job: NamespaceId,
        name: &str,
        function: Arc<dyn ServerFunction>,
    ) {
        let loaded = self.functions.loaded.entry(job).or_default();
        loaded.insert(name, function);
    }

    /// Runs the function of an UPDATE or REDUCE frame. On a table that applies pushes at ticks, an UPDATE
    /// is held until its tick. A warm table refuses each UPDATE. A refused function changes no value, but a
    /// call by keys may have created rows.
    pub(super) fn function(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
        payload: &[u8],
        pause: &mut dyn FnMut(),
    ) -> Result<Effect, Refusal> {
        let malformed = FunctionProblem::Malformed.with(payload.len() as u64);
        let call = FunctionCall::decode(payload).ok_or(malformed)?;
        let table = self.known(sender.namespace, header.table)?;
        if call.body == FunctionBody::Slots {
            return match header.kind {
                FrameKind::Reduce => self.count_slots(header),
                _ => Err(malformed), // it changes nothing
            };
        }
        if sender.is_observer() && matches!(call.body, FunctionBody::NamedRows(_)) {
            // It creates missing rows.
            return Err(observer_refused(header));
        }
        // Of a function that was cut, no record says which elements have their new values.
        if header.kind == FrameKind::Update && table.spec.durability == Durability::Warm {
            return Err(wrong_operation(header));
        }
        let waits = header.kind == FrameKind::Update && table.at_clock();
        let spec = Arc::clone(&table.spec);
        for (n, &input) in (0..).zip(&call.tables[..call.inputs]) {
            let alike = self.known(sender.namespace, input)?;
            let same = input == header.table
                || are_alike(&alike.spec, &spec) && !matches!(alike.store, Store::Sparse(_));
            if !same && !mutants::on(Mutant::FunctionInputsUnlike) {
                return Err(FunctionProblem::Input.with(n));
            }
        }
        if waits && !mutants::on(Mutant::FunctionOnArrival) {
            return self.hold_function(sender, header, &call, payload);
        }
        // Before any row is created.
        let named = match call.body {
            FunctionBody::Named { name, .. } | FunctionBody::NamedRows(NamedRows { name, .. }) => {
                Some(self.functions.find(sender.namespace, name)?)
            }
            FunctionBody::Expression(_) | FunctionBody::Slots => None,
        };
        let named = named.as_deref();
        let span = match call.body {
            FunctionBody::NamedRows(rows) => self.span_of_rows(header, &rows, &spec)?,
            _ => self.span(header, &call, &spec)?,
        };
        self.run_call(header, &call, &span, named, pause)
    }

    /// Checks that the expression of an UPDATE, which is to be held, can be evaluated on the elements of its
    /// frame. Changes no table; replaces `self.places`. Panics for any other call than an expression.
    pub(super) fn check_function(
        &mut self,
        header: &FrameHeader,
        call: &FunctionCall<'_>,
        spec: &TableSpec,
    ) -> Result<(), Refusal> {
        let FunctionBody::Expression(program) = call.body else {
            unreachable!("only expressions wait for a tick");
        };
        self.span(header, call, spec)?;
        let runner = &mut self.functions;
        match spec.dtype {
            DType::F32 => runner.f32.prepare(program, call).map(drop),
            DType::F64 => runner.f64.prepare(program, call).map(drop),
            DType::I32 => runner.i32.prepare(program, call).map(drop),
            DType::I64 => runner.i64.prepare(program, call).map(drop),
        }
    }

    /// Runs the function of a frame on its elements, which [`Self::span`] or [`Self::span_of_rows`] has
    /// checked. `named` is the registered or loaded function, which may call `pause`; `None` for an expression.
    pub(super) fn run_call(
        &mut self,
        header: &FrameHeader,
        call: &FunctionCall<'_>,
        span: &Span,
        named: Option<&dyn ServerFunction>,
        pause: &mut dyn FnMut(),
    ) -> Result<Effect, Refusal> {
        let mut named = named.map(|function| (function, pause));
        let named = &mut named;
        let mut runner = std::mem::take(&mut self.functions);
        let done = match self.tables[&header.table].spec.dtype {
            DType::F32 => self.run(header, call, span, &mut runner.f32, named),
            DType::F64 => self.run(header, call, span, &mut runner.f64, named),
            DType::I32 => self.run(header, call, span, &mut runner.i32, named),
            DType::I64 => self.run(header, call, span, &mut runner.i64, named),
        };
        self.functions = runner;
        done
    }

    fn count_slots(&mut self, header: &FrameHeader) -> Result<Effect, Refusal> {
        let table = self.tables.get(&header.table);
        let Some(Store::Sparse(shard)) = table.map(|table| &table.store) else {
            return Err(wrong_operation(header));
        };
        let not_owned = RejectReason::WrongOwner {
            first: header.partition.into(),
            count: 1,
        };
        let slots = shard.slots(header.partition).ok_or(not_owned)?;
        self.reply.clear();
        self.reply.extend_from_slice(&slots.to_le_bytes());
        Ok(Effect::Reply { count: 1 })
    }

    /// Checks that the elements of a frame are of its table and this applier, at least one and not too many;
    /// returns their span. Replaces `self.places`: one place for each row, of a sparse table for each slot with
    /// a row; empty for a range table.
    pub(super) fn span(
        &mut self,
        header: &FrameHeader,
        call: &FunctionCall<'_>,
        spec: &TableSpec,
    ) -> Result<Span, Refusal> {
        let (first, count) = (call.first, u64::from(header.count));
        let dim = spec.dim();
        let table = &self.tables[&header.table];
        let by_range = matches!(table.store, Store::Blocks(_));
        let most = match by_range {
            true => FUNCTION_BYTES_MAX / spec.dtype.size(),
            false => (FUNCTION_BYTES_MAX / spec.row_bytes()).clamp(1, FRAME_ROWS_MAX),
        };
        if count > most as u64 || count == 0 {
            return Err(FunctionProblem::TooLong.with(most as u64));
        }
        let not_owned = RejectReason::WrongOwner { first, count };
        let end = first.checked_add(count).ok_or(not_owned)?;
        self.places.clear();
        match &table.store {
            Store::Blocks(blocks) if blocks.owns_range(first, count) => {}
            Store::Blocks(_) => return Err(not_owned),
            Store::Rows(rows) => {
                for row in first..end {
                    self.places.push(rows.place(row).ok_or(not_owned)?);
                }
            }
            Store::Sparse(shard) => {
                let slots = shard.slots(header.partition).ok_or(not_owned)?;
                if end > slots {
                    let (index, size) = (first, slots);
                    return Err(RejectReason::IndexOutOfRange { index, size });
                }
                shard.rows_in_slots(header.partition, first..end, &mut self.places);
            }
        }
        let elements = match by_range {
            true => count as usize,
            false => self.places.len() * dim,
        };
        let first_index = match &table.store {
            _ if mutants::on(Mutant::IndexOfFrame) => 0,
            Store::Blocks(_) => first,
            Store::Rows(_) => first * dim as u64,
            Store::Sparse(_) => 0,
        };
        Ok(Span {
            first,
            elements,
            first_index,
            keyed: false,
        })
    }

    /// Checks the keys of a call, which must ascend, and replaces `self.places` by their rows. Missing rows are
    /// created. On a table with an admission threshold an UPDATE counts as a push of each key, a key below
    /// the threshold gets no row, and a REDUCE creates none.
    fn span_of_rows(
        &mut self,
        header: &FrameHeader,
        rows: &NamedRows<'_>,
        spec: &TableSpec,
    ) -> Result<Span, Refusal> {
        let count = rows.rows();
        let table = &self.tables[&header.table];
        let most = (FUNCTION_BYTES_MAX / spec.row_bytes()).clamp(1, FRAME_ROWS_MAX);
        if matches!(table.store, Store::Blocks(_)) {
            return Err(wrong_operation(header));
        }
        if count == 0 || count > most || count != header.count as usize {
            return Err(FunctionProblem::TooLong.with(most as u64));
        }
        let size = spec.dtype.size();
        if !rows.values.len().is_multiple_of(size) {
            return Err(RejectReason::WrongLength {
                bytes: rows.values.len() as u64,
                expected: rows.values.len().next_multiple_of(size) as u64,
            });
        }
        let key = |row: usize| word(rows.keys, row * 8);
        let ordered = (1..count).find(|&row| key(row - 1) >= key(row));
        if let Some(row) = ordered.filter(|_| !mutants::on(Mutant::FunctionKeysUnordered)) {
            return Err(FunctionProblem::Order.with(row as u64));
        }
        (0..count).try_for_each(|row| table.check_key(key(row)))?;
        match table.counts_pushes() {
            true => self.find_admitted(header, count, key)?,
            false => self.find_rows(header.table, count, |row| (key(row), RowLocation::NONE))?,
        }
        Ok(Span {
            first: 0,
            elements: count * spec.dim(),
            first_index: 0,
            keyed: true,
        })
    }

    /// Runs a function on a checked span: stores the new values of an UPDATE, or leaves the result of a
    /// REDUCE in `self.reply`.
    fn run<T: Element>(
        &mut self,
        header: &FrameHeader,
        call: &FunctionCall<'_>,
        span: &Span,
        work: &mut Workspace<T>,
        named: &mut Option<(&dyn ServerFunction, &mut dyn FnMut())>,
    ) -> Result<Effect, Refusal> {
        self.reply.clear();
        match (call.body, named) {
            (FunctionBody::Expression(program), _) => {
                self.evaluate(header, call, program, span, work)?;
            }
            (_, Some((function, pause))) => {
                self.call_named(header, call, *function, span, work, pause)?;
            }
            (_, None) => unreachable!("slots are counted and names are found before"),
        }
        if header.kind == FrameKind::Update {
            self.store_piece(header, span, work.out.as_bytes())?;
            return Ok(Effect::Applied);
        }
        let (bytes, slot) = (self.reply.len() as u64, RESULT_BYTES_MAX as u64);
        if bytes > slot {
            return Err(RejectReason::ReplyTooLarge { bytes, slot });
        }
        Ok(Effect::Reply { count: 1 })
    }

    /// Evaluates an expression on a span. New values of an UPDATE replace `work.out`; the encoded partial
    /// result of a REDUCE is appended to `self.reply`.
    fn evaluate<T: Element>(
        &mut self,
        header: &FrameHeader,
        call: &FunctionCall<'_>,
        program: &[u8],
        span: &Span,
        work: &mut Workspace<T>,
    ) -> Result<(), Refusal> {
        let inputs = work.prepare(program, call)?.1;
        let update = header.kind == FrameKind::Update;
        let reduction = match Reduction::from_code(call.reduction) {
            Some(reduction) => reduction,
            None if update => Reduction::Sum, // of nothing
            None => return Err(FunctionProblem::Reduction.with(call.reduction.into())),
        };
        let mut partial = Partial::empty(reduction, T::DTYPE);
        let Some((mut evaluator, needed)) = work.evaluator.take() else {
            unreachable!("the evaluator was prepared");
        };
        let table = &self.tables[&header.table];
        let all = span.elements.max(1);
        // Elements that are copied at once: those of a range stay in the cache until they are used.
        let (at_once, row) = match &table.store {
            Store::Blocks(_) => (ELEMENTS_AT_ONCE, ELEMENTS_AT_ONCE),
            Store::Rows(_) => (all, all),
            Store::Sparse(_) => (all, table.spec.dim()),
        };
        work.out
            .resize(if update { span.elements } else { 0 }, T::default());
        for at in (0..span.elements).step_by(at_once) {
            let part = span.part(at, at_once);
            for (n, &input) in call.tables[..inputs].iter().enumerate() {
                let input = match mutants::on(Mutant::InputsAreFirst) {
                    true => call.tables[0],
                    false => input,
                };
                work.inputs[n].resize(part.elements, T::default());
                let bytes = work.inputs[n].as_mut_bytes();
                self.copy_piece(input, header.table, &part, bytes);
            }
            for first in (0..part.elements).step_by(row) {
                let cut = first..part.elements.min(first + row);
                let pieces: [&[T]; FUNCTION_INPUTS_MAX] =
                    std::array::from_fn(|n| match n < inputs {
                        true => &work.inputs[n][cut.clone()],
                        false => &[][..],
                    });
                let pieces = &pieces[..inputs];
                if update {
                    let out = &mut work.out[at + cut.start..at + cut.end];
                    evaluator.map(pieces, part.first_index, out);
                } else {
                    let count = cut.len();
                    evaluator.reduce(pieces, part.first_index, count, reduction, &mut partial);
                }
            }
        }
        work.evaluator = Some((evaluator, needed));
        if !update {
            self.reply.extend_from_slice(&partial.encode());
        }
        Ok(())
    }

    /// Calls a registered or loaded function. New values of an UPDATE replace `work.out`; the function writes
    /// the result of a REDUCE to `self.reply`. A panic of the function becomes a refusal.
    fn call_named<T: Element>(
        &mut self,
        header: &FrameHeader,
        call: &FunctionCall<'_>,
        function: &dyn ServerFunction,
        span: &Span,
        work: &mut Workspace<T>,
        pause: &mut dyn FnMut(),
    ) -> Result<(), Refusal> {
        for (n, &input) in call.tables[..call.inputs].iter().enumerate() {
            work.inputs[n].resize(span.elements, T::default());
            self.copy_piece(input, header.table, span, work.inputs[n].as_mut_bytes());
        }
        work.out.resize(span.elements, T::default());
        self.copy_piece(header.table, header.table, span, work.out.as_mut_bytes());
        work.keys.clear();
        work.keys.extend(self.places.iter().map(|place| place.key));
        let (inputs, arguments) = match call.body {
            FunctionBody::Named { arguments, .. } => (call.inputs, arguments),
            FunctionBody::NamedRows(rows) => {
                work.inputs[0].resize(rows.values.len() / size_of::<T>(), T::default());
                work.inputs[0].as_mut_bytes().copy_from_slice(rows.values);
                (1, rows.arguments)
            }
            FunctionBody::Expression(_) | FunctionBody::Slots => {
                unreachable!("a function was found by its name")
            }
        };
        let inputs = work.inputs[..inputs].iter();
        let inputs: Vec<Elements<'_>> = inputs.map(|values| T::elements(values)).collect();
        let piece = Piece {
            first_index: span.first_index,
            dim: self.tables[&header.table].spec.dim(),
            keys: &work.keys,
            inputs: &inputs,
        };
        let (out, reply) = (&mut work.out, &mut self.reply);
        // A panic leaves only private copies half changed, and these are dropped.
        let ran = catch_unwind(AssertUnwindSafe(|| match header.kind {
            FrameKind::Update => function.update(arguments, &piece, T::elements_mut(out), pause),
            _ => function.reduce(arguments, &piece, T::elements(out), reply, pause),
        }));
        match ran {
            Ok(Ok(())) => Ok(()),
            Ok(Err(FunctionFailure { problem, number })) => Err(problem.with(number)),
            Err(_) => Err(FunctionProblem::Panicked.with(0)),
        }
    }

    /// Copies the elements of a span out of table `table` into `out`, which has their length. The span is one of
    /// table `target`; both tables have one shape. A key without a row gives its initial values. Panics if
    /// an element is not on this applier.
    fn copy_piece(&mut self, table: u32, target: u32, span: &Span, out: &mut [u8]) {
        let Some(found) = self.tables.get_mut(&table) else {
            unreachable!("table {table} has been found");
        };
        let row_bytes = found.spec.row_bytes();
        let read = match &mut found.store {
            Store::Blocks(blocks) => blocks
                .read_range(span.first, out)
                .map_err(|e| e.to_string()),
            Store::Rows(rows) if table != target && !span.keyed => {
                let mut chunks = (span.first..).zip(out.chunks_exact_mut(row_bytes));
                chunks.try_for_each(|(row, out)| {
                    let place = rows.place(row).ok_or("another applier's row")?;
                    rows.rows().read(place, out).map_err(|e| e.to_string())
                })
            }
            Store::Rows(_) | Store::Sparse(_) => {
                let rows = found.rows();
                let rows = rows.unwrap_or_else(|| unreachable!("table {table} has rows"));
                let mut chunks = self.places.iter().zip(out.chunks_exact_mut(row_bytes));
                chunks.try_for_each(|(place, out)| match place.has_row() {
                    true => rows.read(*place, out).map_err(|e| e.to_string()),
                    false => {
                        rows.initial(place.key, out);
                        Ok(())
                    }
                })
            }
        };
        assert!(
            read.is_ok(),
            "a piece of table {table} from {}: {read:?}",
            span.first
        );
    }

    /// Stores the new values of an UPDATE as an assignment to the elements of its span. Values that are not
    /// finite are refused, if the table checks that. Values of keys that are not admitted yet, and so have no row,
    /// are dropped. A call by keys renews the time to expiry of its rows. If the store fails, the engine fails.
    fn store_piece(
        &mut self,
        header: &FrameHeader,
        span: &Span,
        values: &[u8],
    ) -> Result<(), Refusal> {
        let progress = self.progress(0);
        let Some(table) = self.tables.get_mut(&header.table) else {
            unreachable!("table {} has been found", header.table);
        };
        let is_checked = table.spec.finite_check && !mutants::on(Mutant::FunctionStoresUnchecked);
        if is_checked && !table.kernel().all_finite(values) {
            return Err(not_finite(table, span, &self.places, values));
        }
        let mut admitted = std::mem::take(&mut self.scratch);
        let values = match self.places.iter().all(RowPlace::has_row) {
            true => values,
            false => {
                admitted.clear();
                let rows = values.chunks_exact(table.spec.row_bytes());
                let with_rows = self
                    .places
                    .iter()
                    .zip(rows)
                    .filter(|(place, _)| place.has_row());
                with_rows.for_each(|(_, row)| admitted.extend_from_slice(row));
                self.places.retain(RowPlace::has_row);
                &admitted
            }
        };
        let stored = store(
            table,
            &self.redo,
            progress,
            span.first,
            &self.places,
            values,
        );
        self.scratch = admitted;
        if let Err(e) = stored {
            let table = header.table;
            self.fail(format_args!(
                "a function's result for table {table} could not be stored: {e}"
            ));
        }
        // A call by keys counts as a push of each. Only rows of sparse tables with an expiry have stamps.
        if span.keyed {
            self.stamp_rows(header.table);
        }
        Ok(())
    }
}

fn store(
    table: &mut Table,
    redo: &Redo,
    progress: Progress,
    first: u64,
    places: &[RowPlace],
    values: &[u8],
) -> Result<(), String> {
    if let Store::Blocks(blocks) = &mut table.store {
        let stored = blocks.apply_range(redo, progress, first, PushOp::Assign, values);
        return stored.map_err(|e| e.to_string());
    }
    let rows = table.rows();
    let rows = rows.unwrap_or_else(|| unreachable!("a table without blocks has rows"));
    let stored = rows.apply_all(redo, progress, places, PushOp::Assign, values);
    stored.map_err(|e| e.to_string())
}

/// Builds the refusal for a result with an element that is not finite: the index of the first such element in
/// `values`, and its key, or on a range table its number in the table.
#[cold]
fn not_finite(table: &Table, span: &Span, places: &[RowPlace], values: &[u8]) -> Refusal {
    let mut elements = values.chunks_exact(table.spec.dtype.size());
    let bad = elements.position(|element| !table.kernel().all_finite(element));
    let Some(at) = bad else {
        unreachable!("all of {} bytes are finite", values.len());
    };
    let key = match places.get(at / table.spec.dim()) {
        Some(place) => place.key,
        None => span.first + at as u64,
    };
    let row = at as u64;
    RejectReason::NotFinite { row, key }
}

/// Whether both tables have one element type, and their elements of equal index lie on the same applier.
fn are_alike(a: &TableSpec, b: &TableSpec) -> bool {
    a.dtype == b.dtype && a.is_placed_like(b)
}

impl<T: Element> Workspace<T> {
    /// Returns the evaluator of an expression program with the call's parameters, and the number of inputs of
    /// the program. Reuses the last evaluator if program and parameters are the same. Refuses a damaged
    /// program, and one with more inputs than the call has.
    fn prepare(
        &mut self,
        program: &[u8],
        call: &FunctionCall<'_>,
    ) -> Result<&mut (Evaluator<T>, usize), Refusal> {
        let parameters = call.parameters();
        let bits = |value: &f64| value.to_bits();
        let same = self.program == program
            && self
                .parameters
                .iter()
                .map(bits)
                .eq(parameters.clone().map(|p| p.to_bits()));
        if !same || self.evaluator.is_none() {
            let problem = FunctionProblem::Expression.with(program.len() as u64);
            self.evaluator = None;
            self.program.clear();
            self.program.extend_from_slice(program);
            self.parameters.clear();
            self.parameters.extend(parameters);
            let decoded = Program::decode(program).map_err(|_| problem)?;
            let evaluator = Evaluator::new(&decoded, &self.parameters).map_err(|_| problem)?;
            self.evaluator = Some((evaluator, decoded.inputs()));
        }
        match &mut self.evaluator {
            Some(prepared) if prepared.1 <= call.inputs => Ok(prepared),
            _ => Err(FunctionProblem::Expression.with(program.len() as u64)),
        }
    }
}

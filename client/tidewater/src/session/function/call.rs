//! Calls of functions that run where the data is.

use std::ops::Range;

use tidewater_bookkeeping::pieces::{FramePiece, by_lane};
use tidewater_expression::Partial;
use tidewater_protocol::ids::TableId;
use tidewater_protocol::layout::frame::{FrameHeader, FrameKind};
use tidewater_protocol::layout::function::{
    AtTickProblem, FUNCTION_BODY_BYTES_MAX, FUNCTION_NAME_BYTES_MAX, FunctionBody, FunctionPayload,
};
use tidewater_protocol::limits::FUNCTION_MODULE_BYTES_MAX;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::{Apply, Shape};
use tidewater_runtime::clock::Deadline;
use zerocopy::IntoBytes;

use crate::error::ClientError;
use crate::lanes::Requests;
use crate::push::Ticket;
use crate::session::Client;
use crate::session::function::exchange::{count_slots, header_of, request_all};
use crate::session::function::keyed::{KeyBytes, RowChunk, RowsScratch, row_chunks, rows_header};
use crate::session::function::pieces::{dense_pieces, slot_pieces};
use crate::session::function::{Expression, FunctionArgs, Reduction, Scalar};
use crate::table::state::TableState;
use crate::table::{Element, Table};

/// Number of built frames of an update after which they are sent, so that appliers begin while the next ones are
/// built.
const SEND_FRAMES: usize = 16;

impl Client {
    /// Sets each element of `target` to the value of an expression, computed at the servers. The call is ordered
    /// like a push: later pushes, functions and reductions of this client come after it, and pulls see it after a
    /// wait for its ticket. It is applied exactly once. It covers the rows that exist when it begins.
    ///
    /// On a dense table of ticks (`TableBuilder::at_clock`) the call belongs to the iteration that this client has
    /// open: it takes effect with its tick, after the pushes of all workers, in the order of rank, thread and call.
    /// Its inputs are then tables of the same ticks, seen with that iteration's pushes. The ticket reports that the
    /// call is accepted.
    ///
    /// A frame of at most 256 KiB of elements changes all of its elements or none. Where a frame is
    /// refused (a NaN in a table with `finite_check`), other frames of the call may have taken effect.
    ///
    /// ```
    /// # use tidewater::{JoinOptions, Expression, FunctionArgs, PullOptions, SyncMode, TableBuilder};
    /// # fn main() -> Result<(), tidewater::ClientError> {
    /// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
    /// # let mut client = job.client_of(0, SyncMode::Asp)?;
    /// let table = TableBuilder::range::<f64>("x", 1, 4);
    /// let table = client.create_table::<f64>(table.spec())?;
    /// let ramp = Expression::parse("p0 * index")?;
    /// let args = FunctionArgs { parameters: &[0.5], ..FunctionArgs::default() };
    /// let ticket = client.update(&table, &ramp, &args)?;
    /// client.wait_applied(&ticket)?;
    /// let mut values = [0.0; 4];
    /// client.pull_range(&table, 0, &mut values, PullOptions::default())?;
    /// assert_eq!(values, [0.0, 0.5, 1.0, 1.5]);
    /// # client.finish()
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Argument`] for inputs unlike the target, a range outside it, missing parameters, or a table of
    /// ticks that is sparse, a snapshot, or checked for NaN and infinity. A deadline when a ring stays full; some
    /// frames may then take effect.
    ///
    /// # Cost
    /// A frame for each 256 KiB of elements (or 2,048 rows); each element is read, computed, and stored
    /// like a pushed one, on its applier.
    pub fn update<T: Element>(
        &mut self,
        target: &Table<T>,
        function: &Expression<T>,
        args: &FunctionArgs<'_, T>,
    ) -> Result<Ticket, ClientError> {
        let op = "update";
        let checked = args.check(function);
        self.check_call(op, target, checked)?;
        let body = FunctionBody::Expression(&function.encoded);
        let sent = self.send_update(op, target, body, args);
        sent.map_err(|e| self.name_turns(Some(target.id()), e))
    }

    /// Computes an expression for each element of `target` at the servers, and combines the values. Blocks; `None`
    /// if there is no element. It sees this client's earlier pushes, and those of others as a pull does; elements
    /// that change meanwhile are seen before or after, in pieces of 256 KiB.
    ///
    /// Sums of floats accumulate in f64 with compensation. The order is fixed by the table's definition, so the
    /// result has the same bits on any number of servers (for sparse tables, up to the order in which rows were
    /// created).
    ///
    /// # Errors
    /// As [`Client::update`]; a server's refusal; `ClientError::Argument` for a sum of integers that does not fit an
    /// i64.
    ///
    /// # Cost
    /// A request for each 256 KiB of elements (or 2,048 rows), eight of a lane under way at once.
    pub fn reduce<T: Element>(
        &mut self,
        target: &Table<T>,
        function: &Expression<T>,
        reduction: Reduction,
        args: &FunctionArgs<'_, T>,
    ) -> Result<Option<Scalar>, ClientError> {
        let op = "reduce";
        let checked = args.check(function);
        self.check_call(op, target, checked)?;
        let body = FunctionBody::Expression(&function.encoded);
        let results = self.request_results(op, target, body, reduction as u8, args)?;
        let mut total = Partial::empty(reduction, T::DTYPE);
        for result in &results {
            let partial = Partial::decode(result, reduction, T::DTYPE);
            let partial = partial.map_err(|_| ClientError::Protocol {
                server: "a server".into(),
                what: format!("a partial result of {} bytes", result.len()),
            })?;
            total.combine(&partial);
        }
        if let (None, Some(sum)) = (total.value(), total.exact_sum()) {
            let state = self.tables.find(op, target.named())?;
            return Err(state.wrong(op, format!("the sum {sum} does not fit an i64")));
        }
        Ok(total.value())
    }

    /// Loads a WebAssembly module on all servers as the function `name`, for all clients of this job; blocks until
    /// all have it. It is called by its name, as a function of the servers' program is. What a module exports is in
    /// `docs/FUNCTIONS.md`. The name stays with the module until the job ends; the same module may be loaded again,
    /// so that all workers may make this call. A barrier makes it visible to those that do not.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a name or a module over the limits. [`ClientError::Refused`] where the servers
    /// load no functions (`--load-functions`), the module is not valid, has imports or lacks an export, or the name
    /// is taken. A server that refuses does not have the function; others may.
    ///
    /// # Cost
    /// A round trip to the coordinator, which sends the module to each server. Each compiles it, about a millisecond
    /// for each KiB, while it serves other clients.
    pub fn load_function(&mut self, name: &str, module: &[u8]) -> Result<(), ClientError> {
        let wrong = |what| ClientError::Argument {
            op: "load_function",
            table: "-".into(),
            what,
        };
        self.check_worker("load_function")?;
        check_name(name).map_err(wrong)?;
        let (bytes, limit) = (module.len(), FUNCTION_MODULE_BYTES_MAX);
        if bytes > limit {
            return Err(wrong(format!(
                "the module has {bytes} bytes; the most are {limit}: remove its debug information (strip)"
            )));
        }
        let deadline = self.deadline();
        self.lanes.send_held(deadline)?;
        self.lanes.coordinator.load_function(name, module, deadline)
    }

    /// Runs the update function `name` of the servers on the elements of `target`. Order, atomicity and exactly-once
    /// as in [`Client::update`]; a function that fails changes nothing of its frame.
    ///
    /// # Errors
    /// As [`Client::update`]; [`ClientError::Argument`] also for every table of ticks. Waiting for the ticket fails
    /// when the servers have no such function, or it refuses.
    pub fn call_update<T: Element>(
        &mut self,
        target: &Table<T>,
        name: &str,
        arguments: &[u8],
        args: &FunctionArgs<'_, T>,
    ) -> Result<Ticket, ClientError> {
        let op = "call_update";
        let checked = check_named(name, arguments).and_then(|()| args.check_named());
        self.check_call(op, target, checked)?;
        self.send_update(op, target, FunctionBody::Named { name, arguments }, args)
    }

    /// Runs the reducing function `name` of the servers on each piece of `target` (at most 256 KiB of elements, or
    /// 2,048 rows, of one partition), and blocks until all have answered. Returns the result bytes of all pieces, in
    /// the order of their elements.
    ///
    /// # Errors
    /// As [`Client::reduce`].
    pub fn call_reduce<T: Element>(
        &mut self,
        target: &Table<T>,
        name: &str,
        arguments: &[u8],
        args: &FunctionArgs<'_, T>,
    ) -> Result<Vec<Vec<u8>>, ClientError> {
        let op = "call_reduce";
        let checked = check_named(name, arguments).and_then(|()| args.check_named());
        self.check_call(op, target, checked)?;
        let body = FunctionBody::Named { name, arguments };
        self.request_results(op, target, body, 0, args)
    }

    /// Runs the update function `name` of the servers on the rows of `keys`, which are created if they are missing.
    /// `values` travel with the keys, equally many for each: the function gets those of its frame as one input. A
    /// server's program thus decides what a push means. Order and exactly-once are those of [`Client::push_rows`].
    ///
    /// # Errors
    /// [`ClientError::Argument`] for keys that are not ascending or repeat, values that are not a multiple of the
    /// keys, a range table, or a table that takes effect at ticks; `ClientError::Observer` from an observer. After a
    /// deadline some frames may have been sent.
    pub fn call_rows<T: Element>(
        &mut self,
        target: &Table<T>,
        name: &str,
        arguments: &[u8],
        keys: &[u64],
        values: &[T],
    ) -> Result<Ticket, ClientError> {
        let op = "call_rows";
        self.check_keyed(op, target, name, arguments, keys, values.len())?;
        let deadline = self.deadline();
        let state = self.tables.find(op, target.named())?;
        check_effect(op, state, false)?;
        self.lanes.counters.pushes += 1;
        let mut ticket = Ticket::of(self.tables.client, state.id);
        let each = values.len() / keys.len().max(1);
        let bytes = KeyBytes {
            sent: each * size_of::<T>(),
            returned: 0,
        };
        let chunks = row_chunks(&mut self.lanes, state, keys, bytes)
            .map_err(|what| state.wrong(op, what))?;
        let mut scratch = RowsScratch::default();
        for chunk in &chunks {
            scratch.fill(keys, values, each, &chunk.rows);
            let call = scratch.call(name, arguments);
            let header = rows_header(state, FrameKind::Update, chunk.rows.len());
            let fill = |to: &mut [u8]| call.encode(to);
            let bytes = call.payload_bytes();
            let seq = self
                .lanes
                .build(chunk.lane, header, bytes, fill, deadline)?;
            ticket.add(chunk.lane, seq);
        }
        self.lanes.send_all(deadline)?;
        Ok(ticket)
    }

    /// Runs the reducing function `name` of the servers on the rows of `keys`, which are created if they are
    /// missing, and blocks for the results. The function returns equally many elements for each key of a frame
    /// (`out.len()` divided by the number of keys); `out` gets them in the order of the keys. A server's program
    /// thus decides what a pull returns.
    ///
    /// # Errors
    /// As [`Client::call_rows`]; [`ClientError::Protocol`] when the function returns another number of elements.
    pub fn call_pull<T: Element>(
        &mut self,
        target: &Table<T>,
        name: &str,
        arguments: &[u8],
        keys: &[u64],
        out: &mut [T],
    ) -> Result<(), ClientError> {
        let op = "call_pull";
        self.check_keyed(op, target, name, arguments, keys, out.len())?;
        let deadline = self.deadline();
        let state = self.tables.find(op, target.named())?;
        self.clock.gate(&mut self.lanes, state.spec.domain)?;
        let state = self.tables.find(op, target.named())?;
        let each = out.len() / keys.len().max(1);
        let bytes = KeyBytes {
            sent: 0,
            returned: each * size_of::<T>(),
        };
        let chunks = row_chunks(&mut self.lanes, state, keys, bytes)
            .map_err(|what| state.wrong(op, what))?;
        let mut requests = KeyedRequests {
            state,
            name,
            arguments,
            keys,
            chunks: &chunks,
            scratch: RowsScratch::default(),
            payload: Vec::new(),
            each: each * size_of::<T>(),
            out: out.as_mut_bytes(),
            element: std::marker::PhantomData::<T>,
        };
        let lanes = &mut self.lanes;
        lanes.request_all("wait for a function's rows", &mut requests, deadline)
    }

    /// Checks the arguments of a call with keys: a table of rows, ascending keys, and a number of elements that is a
    /// multiple of theirs.
    fn check_keyed<T: Element>(
        &self,
        op: &'static str,
        target: &Table<T>,
        name: &str,
        arguments: &[u8],
        keys: &[u64],
        elements: usize,
    ) -> Result<(), ClientError> {
        // They create missing rows.
        self.check_worker(op)?;
        let state = self.tables.find(op, target.named())?;
        let unordered = keys.windows(2).position(|pair| pair[0] >= pair[1]);
        let checked = check_named(name, arguments).and_then(|()| match unordered {
            _ if state.is_blocks() => Err("the table is by ranges; use call_update".into()),
            Some(at) if !on(Mutant::FunctionKeysUnordered) => Err(format!(
                "key {} is not above the one before it; sort the keys and leave out repetitions",
                at + 1
            )),
            _ if keys.is_empty() && elements > 0 || !elements.is_multiple_of(keys.len().max(1)) => {
                Err(format!("{elements} elements for {} keys", keys.len()))
            }
            _ => Ok(()),
        });
        checked.map_err(|what| state.wrong(op, what))
    }

    /// Converts a defect of a call's arguments into `ClientError::Argument` with the name of the target table.
    fn check_call<T: Element>(
        &self,
        op: &'static str,
        target: &Table<T>,
        checked: Result<(), String>,
    ) -> Result<(), ClientError> {
        let state = self.tables.find(op, target.named())?;
        checked.map_err(|what| state.wrong(op, what))
    }

    /// Checks that the input tables of a call have the shape and partitions of its target, on the same servers.
    /// Returns their table numbers. A call without inputs has its target as the input of an expression, and no
    /// input of a named function.
    fn input_ids<T: Element>(
        &self,
        op: &'static str,
        target: &Table<T>,
        body: FunctionBody<'_>,
        args: &FunctionArgs<'_, T>,
    ) -> Result<Vec<u32>, ClientError> {
        let state = self.tables.find(op, target.named())?;
        if args.inputs.is_empty() {
            return Ok(match body {
                FunctionBody::Expression(_) => vec![state.id.0],
                _ => Vec::new(),
            });
        }
        let mut ids = Vec::with_capacity(args.inputs.len());
        for input in args.inputs {
            let other = self.tables.find(op, input.named())?;
            let same = other.id == state.id;
            let alike = other.spec.is_placed_like(&state.spec);
            if !same && (!alike || state.is_sparse()) && !on(Mutant::FunctionInputsUnlike) {
                let what = format!(
                    "input \"{}\" is not like it: elements of one index must lie together, so shape, \
                     block size, number of partitions, partition_servers and partition_starts must be equal, \
                     and sparse tables are not combined",
                    other.name()
                );
                return Err(state.wrong(op, what));
            }
            ids.push(other.id.0);
        }
        Ok(ids)
    }

    /// Cuts the range that a call covers into pieces, each for one frame and one lane. Asks the servers for the
    /// number of slots of a sparse table. Fails for a range outside the table, and for any range of a sparse
    /// table.
    fn pieces<T: Element>(
        &mut self,
        op: &'static str,
        target: &Table<T>,
        range: Option<Range<u64>>,
        deadline: Deadline,
    ) -> Result<Vec<FramePiece>, ClientError> {
        let state = self.tables.find(op, target.named())?;
        let pieces = match (state.spec.shape, range) {
            (Shape::Sparse { .. }, Some(_)) => {
                let what = "a sparse table has no range; leave it out".into();
                return Err(state.wrong(op, what));
            }
            (Shape::Sparse { .. }, None) => {
                let slots = count_slots(&mut self.lanes, state, deadline)?;
                slot_pieces(state, &slots).map_err(|what| state.wrong(op, what))?
            }
            (Shape::Dense { rows, cols, .. }, range) => {
                let (end, what) = match state.is_blocks() {
                    true => (rows * u64::from(cols), "elements"),
                    false => (rows, "rows"),
                };
                let range = range.unwrap_or(0..end);
                if range.end > end || range.start > range.end {
                    let what = format!("{what} {}..{} of {end}", range.start, range.end);
                    return Err(state.wrong(op, what));
                }
                dense_pieces(state, range)
            }
        };
        pieces.ok_or_else(|| state.wrong(op, "a partition has no known owner".into()))
    }

    fn send_update<T: Element>(
        &mut self,
        op: &'static str,
        target: &Table<T>,
        body: FunctionBody<'_>,
        args: &FunctionArgs<'_, T>,
    ) -> Result<Ticket, ClientError> {
        self.check_worker(op)?;
        let deadline = self.deadline();
        let state = self.tables.find(op, target.named())?;
        check_effect(op, state, matches!(body, FunctionBody::Expression(_)))?;
        let clock = match state.spec.effect {
            Apply::AtTick(_) => self.clock.stamp(state.spec.domain),
            Apply::Immediate => 0,
        };
        let tables = self.input_ids(op, target, body, args)?;
        let pieces = self.pieces(op, target, args.range.clone(), deadline)?;
        let state = self.tables.find(op, target.named())?;
        let mut payload = FunctionPayload::new(body, 0, &tables, args.parameters);
        let mut ticket = Ticket::of(self.tables.client, state.id);
        self.lanes.counters.pushes += 1;
        // Pieces of all lanes in turn, so that all appliers work at once.
        let mut queues = by_lane(&pieces, self.lanes.len());
        let mut unsent = 0;
        while queues.iter().any(|queue| !queue.is_empty()) {
            for queue in &mut queues {
                let Some(n) = queue.pop_front() else { continue };
                let piece = pieces[n];
                let mut header = header_of(state, FrameKind::Update, piece);
                header.clock = clock;
                let bytes = payload.at(piece.first);
                let fill = |to: &mut [u8]| to.copy_from_slice(bytes);
                let seq = self
                    .lanes
                    .build(piece.lane, header, bytes.len(), fill, deadline)?;
                ticket.add(piece.lane, seq);
                unsent += 1;
            }
            if unsent >= SEND_FRAMES {
                self.lanes.send_all(deadline)?;
                unsent = 0;
            }
        }
        self.lanes.send_all(deadline)?;
        Ok(ticket)
    }

    fn request_results<T: Element>(
        &mut self,
        op: &'static str,
        target: &Table<T>,
        body: FunctionBody<'_>,
        reduction: u8,
        args: &FunctionArgs<'_, T>,
    ) -> Result<Vec<Vec<u8>>, ClientError> {
        let deadline = self.deadline();
        let state = self.tables.find(op, target.named())?;
        self.clock.gate(&mut self.lanes, state.spec.domain)?;
        let tables = self.input_ids(op, target, body, args)?;
        let pieces = self.pieces(op, target, args.range.clone(), deadline)?;
        let state = self.tables.find(op, target.named())?;
        let mut payload = FunctionPayload::new(body, reduction, &tables, args.parameters);
        request_all(&mut self.lanes, state, &pieces, &mut payload, deadline)
    }
}

/// Checks that a table that takes effect at ticks can hold an update until the tick: `AtTickProblem` names the
/// conditions. A table that applies pushes on arrival passes.
fn check_effect(
    op: &'static str,
    state: &TableState,
    is_expression: bool,
) -> Result<(), ClientError> {
    if !matches!(state.spec.effect, Apply::AtTick(_)) {
        return Ok(());
    }
    match AtTickProblem::of(&state.spec, is_expression) {
        Some(problem) => Err(state.wrong(op, problem.describe().into())),
        None => Ok(()),
    }
}

/// Requests of a reducing function on the rows of keys, with replies placed in `out`.
struct KeyedRequests<'a, T> {
    state: &'a TableState,
    name: &'a str,
    arguments: &'a [u8],
    keys: &'a [u64],
    chunks: &'a [RowChunk],
    scratch: RowsScratch,
    payload: Vec<u8>,
    /// Bytes that are returned for each key.
    each: usize,
    out: &'a mut [u8],
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Requests for KeyedRequests<'_, T> {
    fn table(&self) -> (&str, TableId) {
        (self.state.name(), self.state.id)
    }

    fn len(&self) -> usize {
        self.chunks.len()
    }

    fn lane(&self, n: usize) -> usize {
        self.chunks[n].lane
    }

    fn header(&self, n: usize) -> FrameHeader {
        rows_header(self.state, FrameKind::Reduce, self.chunks[n].rows.len())
    }

    fn payload(&mut self, n: usize) -> &[u8] {
        self.scratch
            .fill::<T>(self.keys, &[], 0, &self.chunks[n].rows);
        let call = self.scratch.call(self.name, self.arguments);
        self.payload.resize(call.payload_bytes(), 0);
        call.encode(&mut self.payload);
        &self.payload
    }

    fn answer(&mut self, n: usize, reply: &[u8]) -> Result<(), String> {
        let (rows, each) = (&self.chunks[n].rows, self.each);
        if reply.len() != rows.len() * each {
            return Err(format!(
                "function \"{}\" returned {} bytes for {} keys; {each} for each are due",
                self.name,
                reply.len(),
                rows.len()
            ));
        }
        for (row, bytes) in rows.iter().zip(reply.chunks_exact(each.max(1))) {
            let at = *row as usize * each;
            self.out[at..at + each].copy_from_slice(bytes);
        }
        Ok(())
    }
}

fn check_name(name: &str) -> Result<(), String> {
    match (1..=FUNCTION_NAME_BYTES_MAX).contains(&name.len()) {
        true => Ok(()),
        false => Err(format!(
            "the name of a function has 1 to {FUNCTION_NAME_BYTES_MAX} bytes, not {}",
            name.len()
        )),
    }
}

fn check_named(name: &str, arguments: &[u8]) -> Result<(), String> {
    check_name(name)?;
    let bytes = 2 + name.len() + arguments.len();
    match bytes <= FUNCTION_BODY_BYTES_MAX {
        true => Ok(()),
        false => Err(format!(
            "name and arguments of {bytes} bytes; the most are {FUNCTION_BODY_BYTES_MAX}"
        )),
    }
}

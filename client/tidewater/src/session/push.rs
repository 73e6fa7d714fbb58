//! Push calls of the client. (long: rows, ranges, and the waits for their tickets.)

use std::ops::Range;

use tidewater_lanes::num::{count, size};
use tidewater_protocol::ids::TableId;
use tidewater_protocol::layout::frame::{FrameFlags, FrameHeader, FrameKind, RowsPayload};
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::limits::FRAME_ROWS_MAX;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::Deadline;
use zerocopy::IntoBytes;

use super::Client;
use super::pull::{is_countable, sizes};
use crate::error::ClientError;
use crate::lanes::{Interrupt, LaneRefusal, Lanes};
use crate::pull;
use crate::push::{PushOptions, Ticket};
use crate::table::opened::Named;
use crate::table::state::TableState;
use crate::table::{Element, Table};
use tidewater_bookkeeping::combine::{Combiner, not_finite};
use tidewater_bookkeeping::feedback::{Feedback, PushForm, RANGE_PAGE, range_pages, range_pieces};
use tidewater_bookkeeping::rejects::Refused;

/// Unsent bytes of a range push at which its frames are sent. The applier begins while the next frames are built.
const SEND_BYTES: u64 = 64 << 10;
/// End of an error text: a value is not finite and cannot be encoded, with the remedy.
const NOT_FINITE: &str = "is not finite; push it without an encoding, or repair it";

impl Client {
    /// Pushes rows to their appliers. Duplicate keys are combined first: sums and gradients are added, the least
    /// or greatest values are taken, and the last assign wins. Returns when the frames are sent, or held by
    /// [`Client::batch_pushes`]; the ticket reports when they are applied.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for lengths that do not fit; nothing was sent then. A deadline when a ring stays
    /// full, which names the ranks with an earlier turn in the iteration: some rows may then have been pushed, and a
    /// repetition pushes them again.
    pub fn push_rows<T: Element>(
        &mut self,
        table: &Table<T>,
        keys: &[u64],
        values: &[T],
        op: PushOp,
    ) -> Result<Ticket, ClientError> {
        self.push_rows_with(table, keys, values, op, PushOptions::default())
    }

    /// Pushes rows like [`Client::push_rows`], with a weight or an encoding of the values.
    ///
    /// # Errors
    /// As [`Client::push_rows`]. [`ClientError::Argument`] for options that the table or the operation
    /// does not take, for an encoded value that is not finite, and for an encoding inside a task; nothing was
    /// sent then.
    ///
    /// # Example
    /// ```
    /// use tidewater::{Client, ClientError, PushEncoding, PushOp, PushOptions, Table};
    ///
    /// /// Pushes the gradient of a batch with the number of its samples as weight.
    /// fn push(client: &mut Client, table: &Table<f32>, g: &[f32], samples: u32) -> Result<(), ClientError> {
    ///     let options = PushOptions::default()
    ///         .weight(samples.into())
    ///         .encoding(PushEncoding::Bf16);
    ///     let ticket = client.push_rows_with(table, &[7], g, PushOp::Gradient, options)?;
    ///     client.wait_applied(&ticket)
    /// }
    /// ```
    pub fn push_rows_with<T: Element>(
        &mut self,
        table: &Table<T>,
        keys: &[u64],
        values: &[T],
        op: PushOp,
        options: PushOptions,
    ) -> Result<Ticket, ClientError> {
        let op_name = "push_rows";
        self.check_worker(op_name)?;
        let state = self.tables.find(op_name, table.named())?;
        let checked = options.check(&state.spec, op);
        checked.map_err(|what| state.wrong(op_name, what))?;
        self.check_options_in_task(op_name, state, &options)?;
        if keys.len().checked_mul(table.dim) != Some(values.len()) || !is_countable(keys) {
            return Err(state.wrong(op_name, sizes(values.len(), keys, table.dim)));
        }
        let deadline = self.deadline();
        self.lanes.counters.pushes += 1;
        self.lane_next.fill(0);
        let row_bytes = state.row.payload_bytes;
        self.combiner
            .combine(state.spec.dtype, op, keys, values.as_bytes(), row_bytes);
        for rows in &mut self.by_lane {
            rows.clear();
        }
        for (row, &key) in self.combiner.keys.iter().enumerate() {
            match state
                .lane_of(key)
                .and_then(|lane| self.by_lane.get_mut(lane))
            {
                Some(rows) => rows.push(count(row)),
                None => {
                    return Err(state.wrong(op_name, format!("row {key} is past the end")));
                }
            }
        }
        if options.is_encoded()
            && let Some(at) = not_finite(state.spec.dtype, &self.combiner.values)
        {
            let row = at / table.dim.max(1);
            let key = self.combiner.keys.get(row).copied().unwrap_or_default();
            return Err(state.wrong(op_name, format!("row {key} {NOT_FINITE}")));
        }
        let sent = self.send_rows(table.named(), op, options, deadline);
        sent.map_err(|e| self.name_turns(Some(table.id()), e))
    }

    fn send_rows(
        &mut self,
        table: Named,
        op: PushOp,
        options: PushOptions,
        deadline: Deadline,
    ) -> Result<Ticket, ClientError> {
        let state = self.tables.find("push_rows", table)?;
        let mut ticket = Ticket::of(self.tables.client, state.id);
        let row_bytes = state.row.payload_bytes;
        let clock = self.clock.stamp(state.spec.domain);
        let combiner = &self.combiner;
        let mut form = PushForm::new((table.handle.number(), op), state.spec.dtype, options);
        if options.is_encoded() {
            let pages = combiner.keys.iter().copied();
            self.feedback.reserve(&mut form, state.spec.dim(), pages);
        }
        loop {
            self.lane_waits.fill(0);
            for (lane, rows) in self.by_lane.iter().enumerate() {
                let most = rows_of_frame(&mut self.lanes, lane, row_bytes);
                let next = &mut self.lane_next[lane];
                let first = *next;
                for chunk in rows[size(first)..].chunks(most) {
                    let locs = state.is_sparse();
                    let parts = RowsPayload::new(chunk.len(), row_bytes, locs);
                    let (kind, n) = (FrameKind::PushRows, chunk.len());
                    let mut header = push_header(state, kind, op, clock, n, locs);
                    form.set_flags(&mut header);
                    let pieces = || combiner.pieces(chunk, row_bytes);
                    let is_encoded = options.is_encoded();
                    let encoded = is_encoded.then(|| self.feedback.encode(&form, pieces()));
                    let values = encoded.map_or(parts.len - parts.values_at, <[u8]>::len);
                    let len = parts.values_at + values + options.weight_bytes();
                    // Encoded values that do not fit yet are encoded again: only `commit` keeps them.
                    if self.lanes.is_full(lane, len) {
                        self.lane_waits[lane] = len;
                        break;
                    }
                    let fill = |to: &mut [u8]| {
                        let to = options.fill_weight(to);
                        fill_keys(to, parts, chunk, combiner, state);
                        match encoded {
                            Some(encoded) => put(to, parts.values_at, encoded),
                            None => fill_values(to, parts, chunk, combiner, row_bytes),
                        }
                    };
                    let seq = self.lanes.build(lane, header, len, fill, deadline)?;
                    if options.is_encoded() {
                        self.feedback.commit(&form);
                    }
                    ticket.add(lane, seq);
                    *next += chunk.len() as u64;
                }
                if *next > first {
                    self.lanes.send_or_hold(lane, deadline)?;
                }
            }
            if !self.lanes.wait_room(&self.lane_waits, deadline)? {
                return Ok(ticket);
            }
        }
    }

    /// Checks an update of rows: fails with `ClientError::Argument` for a range table, if `elements` is not the
    /// number of keys times the row length, and for a key past the end. Sends nothing.
    pub(super) fn check_rows<T: Element>(
        &self,
        op: &'static str,
        table: &Table<T>,
        keys: &[u64],
        elements: usize,
    ) -> Result<(), ClientError> {
        let state = self.tables.find(op, table.named())?;
        if state.is_blocks() {
            return Err(state.wrong(op, "the table is by ranges; use push_range".into()));
        }
        if keys.len().checked_mul(table.dim) != Some(elements) || !is_countable(keys) {
            return Err(state.wrong(op, sizes(elements, keys, table.dim)));
        }
        match keys.iter().find(|&&key| state.lane_of(key).is_none()) {
            Some(key) => Err(state.wrong(op, format!("row {key} is past the end"))),
            None => Ok(()),
        }
    }

    /// Keys of the rows that the last push of rows, also a failed one, has built into frames: these rows are
    /// sent in any case, and a repetition of the push must leave them out.
    pub(super) fn built_keys(&self) -> Vec<u64> {
        let mut keys = Vec::new();
        for (rows, &built) in self.by_lane.iter().zip(&self.lane_next) {
            let key = |&row: &u32| self.combiner.keys.get(row as usize).copied();
            keys.extend(rows.iter().take(size(built)).filter_map(key));
        }
        keys
    }

    /// Pushes elements of a range table from `first` on. Returns when the frames are sent; the ticket reports when
    /// they are applied.
    ///
    /// # Errors
    /// [`ClientError::Argument`] when the range is not in the table; nothing was sent then. A deadline when a ring
    /// stays full, as [`Client::push_rows`]: some elements may then have been pushed.
    pub fn push_range<T: Element>(
        &mut self,
        table: &Table<T>,
        first: u64,
        values: &[T],
        op: PushOp,
    ) -> Result<Ticket, ClientError> {
        self.push_range_with(table, first, values, op, PushOptions::default())
    }

    /// Pushes a range like [`Client::push_range`], with a weight or an encoding of the values.
    ///
    /// # Errors
    /// As [`Client::push_range`]; [`ClientError::Argument`] for options as [`Client::push_rows_with`].
    pub fn push_range_with<T: Element>(
        &mut self,
        table: &Table<T>,
        first: u64,
        values: &[T],
        op: PushOp,
        options: PushOptions,
    ) -> Result<Ticket, ClientError> {
        let sent = self.send_range(table, first, values, op, options);
        sent.map_err(|e| self.name_turns(Some(table.id()), e))
    }

    fn send_range<T: Element>(
        &mut self,
        table: &Table<T>,
        first: u64,
        values: &[T],
        op: PushOp,
        options: PushOptions,
    ) -> Result<Ticket, ClientError> {
        let op_name = "push_range";
        self.check_worker(op_name)?;
        let state = self.tables.find(op_name, table.named())?;
        let checked = options.check(&state.spec, op);
        checked.map_err(|what| state.wrong(op_name, what))?;
        self.check_options_in_task(op_name, state, &options)?;
        let deadline = self.deadline();
        self.lanes.counters.pushes += 1;
        let Some((layout, _)) = state.blocks() else {
            let what = "the table has rows; push them with push_rows".into();
            return Err(state.wrong(op_name, what));
        };
        let end = first
            .checked_add(values.len() as u64)
            .filter(|&e| e <= layout.elements);
        let Some(end) = end else {
            let what = format!("elements {first}+{} of {}", values.len(), layout.elements);
            return Err(state.wrong(op_name, what));
        };
        let key = (table.named().handle.number(), op);
        let mut form = PushForm::new(key, state.spec.dtype, options);
        if options.is_encoded() {
            if let Some(at) = not_finite(state.spec.dtype, values.as_bytes()) {
                let element = first + at as u64;
                return Err(state.wrong(op_name, format!("element {element} {NOT_FINITE}")));
            }
            let pages = range_pages(first, values.len());
            self.feedback.reserve(&mut form, RANGE_PAGE, pages);
        }
        self.send_range_frames(
            table.named(),
            op,
            first..end,
            values.as_bytes(),
            &form,
            deadline,
        )
    }

    /// Builds and sends the frames of a range push, with checked arguments; blocks while rings are full, but lanes
    /// without room do not delay the others. After an error some frames may have been sent.
    fn send_range_frames(
        &mut self,
        table: Named,
        op: PushOp,
        range: Range<u64>,
        values: &[u8],
        form: &PushForm,
        deadline: Deadline,
    ) -> Result<Ticket, ClientError> {
        let op_name = "push_range";
        let state = self.tables.find(op_name, table)?;
        let Some((layout, ranges)) = state.blocks() else {
            unreachable!("{} has been found to be by ranges", state.name());
        };
        let mut ticket = Ticket::of(self.tables.client, state.id);
        let clock = self.clock.stamp(state.spec.domain);
        let (per_block, element) = (layout.block_elements(), layout.element_bytes);
        self.lane_next.fill(range.start);
        loop {
            self.lane_waits.fill(0);
            let mut begin = range.start;
            while begin < range.end {
                let partition = ranges.part_of(begin / per_block);
                let stop = (ranges.start(partition + 1) * per_block).min(range.end);
                let lane = state.lane_of_partition(partition).ok_or_else(|| {
                    state.wrong(op_name, format!("partition {partition} is unknown"))
                })?;
                let mut at = begin.max(self.lane_next[lane]);
                begin = stop;
                while at < stop && self.lane_waits[lane] == 0 {
                    // Frames hold complete blocks where they can: each is written once under its
                    // version.
                    let room = self.lanes.get(lane).ring.payload_bytes_max() - 8;
                    let room = room - form.options.weight_bytes();
                    let blocks = (room / layout.block_bytes).max(1) as u64;
                    let to = ((at / per_block + blocks) * per_block).min(stop);
                    let to = to.min(at + (room / element) as u64);
                    let (kind, n) = (FrameKind::PushDense, size(to - at));
                    let mut header = push_header(state, kind, op, clock, n, false);
                    header.partition = partition;
                    let from = size(at - range.start) * element;
                    let frame = RangeFrame {
                        header,
                        first: at,
                        values: &values[from..from + n * element],
                    };
                    let (lanes, feedback) = (&mut self.lanes, &mut self.feedback);
                    match frame.build(lanes, lane, feedback, form, deadline)? {
                        Ok(seq) => ticket.add(lane, seq),
                        Err(bytes) => {
                            self.lane_waits[lane] = bytes;
                            break;
                        }
                    }
                    if self.lanes.get(lane).ring.unsent() >= SEND_BYTES {
                        self.lanes.send(lane, deadline)?;
                    }
                    at = to;
                    self.lane_next[lane] = at;
                }
            }
            self.lanes.send_all(deadline)?;
            if !self.lanes.wait_room(&self.lane_waits, deadline)? {
                return Ok(ticket);
            }
        }
    }

    /// Blocks until a push is applied: reads that start afterwards see it (of tables `at_clock`: after the tick).
    ///
    /// # Errors
    /// [`ClientError::Rejected`] when a server refused a frame of it, and [`ClientError::RejectForgotten`] when that
    /// reason is no longer kept; both at every call. [`ClientError::Argument`] for a ticket of another client. A
    /// deadline, which names the ranks with an earlier turn in the iteration; the push goes on, and the wait can be
    /// repeated.
    pub fn wait_applied(&mut self, ticket: &Ticket) -> Result<(), ClientError> {
        let deadline = self.deadline();
        self.wait_applied_until(ticket, deadline)
    }

    /// Blocks until a push is applied, as [`Client::wait_applied`] does, but at most until `deadline`.
    ///
    /// # Errors
    /// As [`Client::wait_applied`].
    pub fn wait_applied_until(
        &mut self,
        ticket: &Ticket,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        self.own("wait_applied", ticket)?;
        // Known without a system call where another wait has seen a later status.
        if let Some(done) = self.lanes.try_applied(ticket) {
            self.run_callbacks();
            return done.map_err(|refusal| self.refusal(Some(ticket.table()), refusal));
        }
        let done = self.lanes.wait("wait for a push", deadline, |lanes| {
            Ok::<_, Interrupt>(lanes.try_applied(ticket))
        });
        self.run_callbacks();
        let done = done.map_err(|e| self.name_turns(Some(TableId(ticket.table())), e))?;
        done.map_err(|refusal| self.refusal(Some(ticket.table()), refusal))
    }

    /// Whether the servers have applied all frames of a push: false while some are unanswered. Does not wait for
    /// them; sends held frames, and recovers a broken lane.
    ///
    /// # Errors
    /// As [`Client::wait_applied`], except the deadline.
    pub fn try_applied(&mut self, ticket: &Ticket) -> Result<bool, ClientError> {
        self.own("try_applied", ticket)?;
        self.progress()?;
        match self.lanes.try_applied(ticket) {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(refusal)) => Err(self.refusal(Some(ticket.table()), refusal)),
        }
    }

    /// Removes the answered frames from a ticket of this client, so that it stays short. Fails with the first refusal
    /// among them. Does not wait.
    pub(super) fn drop_answered(&mut self, ticket: &mut Ticket) -> Result<(), ClientError> {
        let answered = self.lanes.drop_answered(ticket);
        answered.map_err(|refusal| self.refusal(Some(ticket.table()), refusal))
    }

    /// Adds to a deadline error the ranks with an earlier turn in the open iteration: servers apply their pushes to
    /// `table` (`None`: to any table) before this client's.
    #[cold]
    pub(super) fn name_turns(&mut self, table: Option<TableId>, e: ClientError) -> ClientError {
        if !matches!(e, ClientError::Deadline { .. }) {
            return e;
        }
        let domains = self.tables.domains_at_clock(table).into_iter();
        let thread = self.guard.thread();
        domains.fold(e, |e, domain| {
            self.clock.name_turn(&mut self.lanes, domain, thread, e)
        })
    }

    /// Checks that a ticket is this client's or empty; otherwise fails with `ClientError::Argument`.
    #[inline]
    pub(super) fn own(&self, op: &'static str, ticket: &Ticket) -> Result<(), ClientError> {
        if ticket.is_of(self.tables.client) || on(Mutant::ForeignHandle) {
            return Ok(());
        }
        let table = self.table_name(ticket.table());
        let what = format!(
            "the ticket is of {}; this is client {}. Wait with the client that pushed",
            ticket.owners(),
            self.tables.client.0
        );
        Err(ClientError::Argument { op, table, what })
    }

    pub(super) fn table_name(&self, number: u32) -> String {
        match self.tables.by_id(TableId(number)) {
            Some(table) => table.name().to_owned(),
            None => format!("number {number}"),
        }
    }

    /// Makes the error of a refused frame. `table` is the push's table, used where the refusal is no longer kept.
    pub(super) fn refusal(&self, table: Option<u32>, refusal: LaneRefusal) -> ClientError {
        let LaneRefusal { lane, refused } = refusal;
        let table = match refused {
            Refused::With(reject) => Some(reject.table),
            Refused::Forgotten { .. } => table,
        };
        let table = table.map_or_else(|| "?".to_owned(), |number| self.table_name(number));
        let server = self.lanes.name(lane).to_owned();
        match refused {
            Refused::With(reject) => ClientError::Rejected {
                table,
                server,
                reject,
            },
            Refused::Forgotten {
                first,
                last,
                certain,
            } => ClientError::RejectForgotten {
                table,
                server,
                first,
                last,
                certain,
            },
        }
    }

    /// Fails with the refusal of the earliest push that no ticket, flush or tick has reported yet, and marks all
    /// refusals of that push as reported: the next call returns that of the next push. Does not wait, and succeeds
    /// while the push is unanswered.
    pub(super) fn check_refusals(&mut self) -> Result<(), ClientError> {
        match self.lanes.claim_refusal() {
            None => Ok(()),
            Some(refusal) => Err(self.refusal(None, refusal)),
        }
    }
}

/// Frame of a range push: header, first element, values.
struct RangeFrame<'a> {
    header: FrameHeader,
    first: u64,
    /// Elements of the table's type.
    values: &'a [u8],
}

impl RangeFrame<'_> {
    /// Builds the frame in the ring of a lane. Returns its sequence number, or `Err` with the payload bytes if the
    /// ring has no room yet. Encoded values are then encoded again: only `commit` keeps their residuals.
    fn build(
        mut self,
        lanes: &mut Lanes,
        lane: usize,
        feedback: &mut Feedback,
        form: &PushForm,
        deadline: Deadline,
    ) -> Result<Result<u64, usize>, ClientError> {
        let options = form.options;
        form.set_flags(&mut self.header);
        let values = match options.is_encoded() {
            true => feedback.encode(
                form,
                range_pieces(self.first, self.values, form.dtype.size()),
            ),
            false => self.values,
        };
        let len = 8 + values.len() + options.weight_bytes();
        if lanes.is_full(lane, len) {
            return Ok(Err(len));
        }
        let fill = |out: &mut [u8]| {
            let (head, body) = options.fill_weight(out).split_at_mut(8);
            head.copy_from_slice(&self.first.to_le_bytes());
            body.copy_from_slice(values);
        };
        let seq = lanes.build(lane, self.header, len, fill, deadline)?;
        if options.is_encoded() {
            feedback.commit(form);
        }
        Ok(Ok(seq))
    }
}

/// Most rows of `row_bytes` bytes that one push frame in a lane's ring takes; at least 1, also if that row does not
/// fit.
#[inline]
fn rows_of_frame(lanes: &mut Lanes, lane: usize, row_bytes: usize) -> usize {
    let room = lanes.get(lane).ring.payload_bytes_max().saturating_sub(128);
    (room / (row_bytes + 16)).clamp(1, FRAME_ROWS_MAX)
}

fn push_header(
    state: &TableState,
    kind: FrameKind,
    op: PushOp,
    clock: u64,
    count: usize,
    locs: bool,
) -> FrameHeader {
    let mut header = pull::request(state, kind, count, false);
    header.flags = FrameFlags {
        op: Some(op),
        dtype: Some(state.spec.dtype),
        locs,
        create: false,
        ..FrameFlags::default()
    };
    header.clock = clock;
    header
}

/// Writes keys and cached locations (for sparse tables) of the rows of one frame to its payload `to`. `rows` are
/// indexes in `combiner`, `parts` has the offsets of the columns.
fn fill_keys(
    to: &mut [u8],
    parts: RowsPayload,
    rows: &[u32],
    combiner: &Combiner,
    state: &TableState,
) {
    // Columns are complete cache lines; the unused end of the last line is zeroed.
    let columns = [(0, parts.locs_at), (parts.locs_at, parts.values_at)];
    for (first, end) in columns {
        if let Some(rest) = to.get_mut(first + rows.len() * 8..end) {
            rest.fill(0);
        }
    }
    for (n, &row) in rows.iter().enumerate() {
        let row = row as usize;
        let key = combiner.keys.get(row).copied().unwrap_or_default();
        put(to, n * 8, &key.to_le_bytes());
        if state.is_sparse() {
            let loc = state.locations.get(key).unwrap_or(RowLocation::NONE);
            put(to, parts.locs_at + n * 8, &loc.0.to_le_bytes());
        }
    }
}

/// Writes the values of the rows of one frame, `row_bytes` each, to its payload `to`. `rows` are indexes in
/// `combiner`, `parts` has the offsets of the columns.
fn fill_values(
    to: &mut [u8],
    parts: RowsPayload,
    rows: &[u32],
    combiner: &Combiner,
    row_bytes: usize,
) {
    for (n, (_, _, values)) in combiner.pieces(rows, row_bytes).enumerate() {
        put(to, parts.values_at + n * row_bytes, values);
    }
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = to.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}

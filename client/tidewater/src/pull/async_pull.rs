// long: the rows of a pull from its start to its end, with an example.

//! Asynchronous pulls: started now, finished later. Here are those of rows; [`super::async_ranges`] has the ranges.
//!
//! The reads are placed in memory of the lanes and of the client, and in the caller's only while the
//! caller waits for them. A ticket is a number. Dropping one frees nothing that is still written. Its
//! memory stays with the client until [`crate::Client::finish_pull`] or [`crate::Client::cancel_pull`],
//! and the number of pulls under way is bounded.

use tidewater_bookkeeping::validation::{RowRead, RowValidator, Verdict};
use tidewater_lanes::fabric::{ReadBatch, ReadOp};
use tidewater_lanes::num::count;
use tidewater_protocol::layout::row::{ROW_HEADER_BYTES, RowVersion, copy_verifying};
use tidewater_protocol::limits::{COORDINATOR_LOOK, PULLS_MAX};
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_runtime::clock::Deadline;

use super::async_ranges::AsyncRange;
use super::blocks::{self, BlockScratch};
use super::{PullMode, PullOptions, Timeout, pull_rows};
use crate::error::ClientError;
use crate::ids::HandleId;
use crate::lanes::{Interrupt, Lanes};
use crate::pull::rows::{LOCATIONS_AHEAD, RowScratch};
use crate::table::opened::Named;
use crate::table::state::TableState;

/// Ticket of an asynchronous pull that was started. A call that finishes or cancels the pull takes it.
///
/// # Example
/// ```
/// # use tidewater::{ClientError, JoinOptions, PullOptions, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let table = client.create_table::<f32>(TableBuilder::rows::<f32>("w", 4, 1).spec())?;
/// let ticket = client.start_pull_rows(&table, &[3, 1], PullOptions::default())?;
/// let mut rows = [1.0_f32; 2]; // meanwhile the program computes
/// client.finish_pull(ticket, &mut rows)?;
/// assert_eq!(rows, [0.0; 2]);
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a pull that is never finished keeps its memory"]
pub struct PullTicket {
    /// Client, table and element type.
    pub(crate) named: Named,
    number: u64,
}

/// Request to pull `bytes` bytes of a range table, from element `first` on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RangeRequest {
    pub(crate) named: Named,
    pub(crate) first: u64,
    pub(crate) bytes: usize,
    pub(crate) options: PullOptions,
}

/// Rows of an asynchronous pull that are read on one lane, with the batch of their reads.
#[derive(Debug, Default)]
struct Part {
    lane: usize,
    /// Count of the lane's replacements when the reads were posted.
    replaced: u64,
    rows: Vec<RowRead>,
    /// The completed read. A spare part keeps here the memory of its next read.
    arrived: Option<ReadBatch>,
    /// Whether the payload was placed in the caller's memory.
    in_place: bool,
}

/// State of one asynchronous pull of rows.
#[derive(Debug, Default)]
pub(crate) struct AsyncPull {
    number: u64,
    /// Handle of the pull's table.
    handle: Option<HandleId>,
    keys: Vec<u64>,
    options: PullOptions,
    parts: Vec<Part>,
    /// Rows that are read at the end: those without a known location at the start, then those that did
    /// not arrive complete.
    rest: Vec<u32>,
    /// Number of rows that were not posted at the start: the first ones of `rest`.
    unplaced: usize,
    /// Whether its rows were judged, and counted, by a call that did not finish it.
    judged: bool,
}

/// All asynchronous pulls of a client that are under way, and spare memory for later ones.
#[derive(Debug, Default)]
pub(crate) struct AsyncPulls {
    next: u64,
    all: Vec<AsyncPull>,
    ranges: Vec<AsyncRange>,
    /// Memory of ended pulls, for later ones.
    spare: Vec<AsyncPull>,
    spare_ranges: Vec<AsyncRange>,
    spare_parts: Vec<Part>,
    /// Number of batches of cancelled pulls that have not arrived.
    cancelled: usize,
}

/// Most rows of a part (the rows of a pull on one lane), and most keys of a pull, with memory that is kept for later
/// pulls. Larger ones are freed.
const SPARE_ROWS_MAX: usize = 4_096;
/// Number of ended range pulls with memory that is kept for later ones. `SPARE_BYTES_MAX` bounds the bytes of each.
const SPARE_RANGES_MAX: usize = 8;
const SPARE_BYTES_MAX: usize = 256 << 10;
/// Number of ended row pulls, and of their parts, with memory that is kept: as many as are usually under way at
/// once.
const SPARE_MAX: usize = 64;

impl AsyncPulls {
    /// Starts an asynchronous pull of rows: posts the reads of all keys with a known location (none in mode
    /// `Gather`), and does not wait for them. A broken lane is recovered before `deadline`. Fails if `PULLS_MAX`
    /// pulls are under way.
    pub(crate) fn start(
        &mut self,
        lanes: &mut Lanes,
        named: Named,
        table: &TableState,
        keys: &[u64],
        options: PullOptions,
        deadline: Deadline,
    ) -> Result<PullTicket, ClientError> {
        self.check_room(table)?;
        self.drop_cancelled(lanes);
        self.next += 1;
        let mut pull = self.spare.pop().unwrap_or_default();
        (pull.number, pull.handle) = (self.next, Some(named.handle));
        pull.options = options;
        pull.keys.clear();
        pull.keys.extend_from_slice(keys);
        pull.plan(lanes, table, &mut self.spare_parts);
        for n in 0..pull.parts.len() {
            pull.post(lanes, table, n, deadline)?;
        }
        self.all.push(pull);
        Ok(PullTicket {
            named,
            number: self.next,
        })
    }

    fn check_room(&self, table: &TableState) -> Result<(), ClientError> {
        if self.all.len() + self.ranges.len() < PULLS_MAX {
            return Ok(());
        }
        Err(ClientError::Argument {
            op: "start_pull",
            table: table.name().to_owned(),
            what: format!("{PULLS_MAX} pulls are under way; finish or cancel some"),
        })
    }

    /// Starts an asynchronous pull of a range: posts its reads and does not wait for them. Fails if `PULLS_MAX`
    /// pulls are under way.
    pub(crate) fn start_range(
        &mut self,
        lanes: &mut Lanes,
        table: &TableState,
        scratch: &mut BlockScratch,
        request: RangeRequest,
        deadline: Deadline,
    ) -> Result<PullTicket, ClientError> {
        self.check_room(table)?;
        self.drop_cancelled(lanes);
        self.next += 1;
        let mut range = self.spare_ranges.pop().unwrap_or_default();
        (range.number, range.handle) = (self.next, Some(request.named.handle));
        (range.first, range.bytes) = (request.first, request.bytes);
        range.options = request.options;
        blocks::start(lanes, table, scratch, &mut range, deadline)?;
        self.ranges.push(range);
        Ok(PullTicket {
            named: request.named,
            number: self.next,
        })
    }

    /// Whether a ticket belongs to a range pull that is under way; false for a pull of rows, and for one that is
    /// over.
    pub(crate) fn is_range(&self, ticket: PullTicket) -> bool {
        self.ranges.iter().any(|r| r.number == ticket.number)
    }

    /// Finishes a range pull: blocks until its bytes are in `out`. After a deadline, an interrupt, or a wrong
    /// argument the pull is under way as before, and nothing writes to `out` any more; after another error it is
    /// over.
    pub(crate) fn finish_range(
        &mut self,
        lanes: &mut Lanes,
        table: &TableState,
        scratch: &mut BlockScratch,
        ticket: PullTicket,
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let of_ticket = |r: &AsyncRange| r.number == ticket.number;
        let n = self.ranges.iter().position(of_ticket);
        let n = n.ok_or_else(|| no_such_pull(table))?;
        let due = self.ranges[n].bytes;
        if due != out.len() {
            return Err(wrong_length(table, out.len(), due));
        }
        self.collect(lanes);
        let mut range = self.ranges.swap_remove(n);
        let done = blocks::finish(lanes, table, scratch, &mut range, out, deadline);
        match goes_on(&done) {
            true => {
                range.leave_to_end();
                self.ranges.push(range);
            }
            false => self.keep_range(range),
        }
        done
    }

    /// Keeps the memory of an ended range pull for later ones, if the range had at most `SPARE_BYTES_MAX` bytes and
    /// `SPARE_RANGES_MAX` are not kept yet; otherwise frees it.
    fn keep_range(&mut self, range: AsyncRange) {
        if self.spare_ranges.len() < SPARE_RANGES_MAX && range.bytes <= SPARE_BYTES_MAX {
            self.spare_ranges.push(range);
        }
    }

    /// Drops all pulls and their memory, after a restart. Numbers of later pulls continue, so that old tickets stay
    /// invalid.
    pub(crate) fn clear(&mut self) {
        let next = self.next;
        *self = Self {
            next,
            ..Self::default()
        };
    }

    fn position(&self, ticket: PullTicket) -> Option<usize> {
        self.all.iter().position(|p| p.number == ticket.number)
    }

    /// Cancels a pull, of rows or a range. Its reads that are under way go to memory that nothing reads. An unknown
    /// ticket is ignored.
    pub(crate) fn cancel(&mut self, ticket: PullTicket) {
        if let Some(n) = self.position(ticket) {
            let pull = self.all.swap_remove(n);
            let is_late = |part: &&Part| part.arrived.is_none();
            self.cancelled += pull.parts.iter().filter(is_late).count();
            self.keep(pull);
        }
        let cancelled = self.ranges.extract_if(.., |r| r.number == ticket.number);
        self.cancelled += cancelled.map(|range| range.under_way()).sum::<usize>();
    }

    /// Cancels every pull of one table handle.
    pub(crate) fn cancel_all(&mut self, handle: HandleId) {
        while let Some(n) = self.all.iter().position(|p| p.handle == Some(handle)) {
            let pull = self.all.swap_remove(n);
            self.keep(pull);
        }
        self.ranges.retain(|r| r.handle != Some(handle));
    }

    /// Keeps the memory of an ended row pull for later ones. A batch that a lane still reads into stays with the
    /// lane.
    fn keep(&mut self, mut pull: AsyncPull) {
        let small = |part: &Part| part.rows.capacity() <= SPARE_ROWS_MAX;
        let room = SPARE_MAX.saturating_sub(self.spare_parts.len());
        let parts = pull.parts.drain(..).filter(small).take(room);
        self.spare_parts.extend(parts);
        if self.spare.len() < SPARE_MAX && pull.keys.capacity() <= SPARE_ROWS_MAX {
            pull.rest.clear();
            pull.judged = false;
            self.spare.push(pull);
        }
    }

    /// Receives and drops batches of cancelled pulls: a program may make no call that does, and their memory
    /// would stay. Polls the lanes only if there are cancelled pulls; always takes the reads that have
    /// completed.
    fn drop_cancelled(&mut self, lanes: &mut Lanes) {
        if self.cancelled > 0 {
            // A lane that fails is marked as broken, and the call that uses it recovers it.
            drop(lanes.poll());
        }
        self.collect(lanes);
    }

    /// Moves the completed read batches of all lanes to the pulls that posted them, without waiting. Batches of ended
    /// pulls are dropped.
    fn collect(&mut self, lanes: &mut Lanes) {
        for lane in 0..lanes.len() {
            while let Some(batch) = lanes.get(lane).finished.pop() {
                let number = batch.tag;
                let pull = self.all.iter_mut().find(|p| p.number == number);
                let part = pull.and_then(|p| p.parts.iter_mut().find(|part| part.lane == lane));
                match part {
                    Some(part) => part.arrived = Some(batch),
                    None => {
                        let mut ranges = self.ranges.iter_mut();
                        match ranges.find(|r| r.number == number) {
                            Some(range) => range.take(lane, batch),
                            None => self.cancelled = self.cancelled.saturating_sub(1),
                        }
                    }
                }
            }
        }
    }

    /// Whether all reads of a pull have completed, or were lost with a replaced lane. Does not wait; true for an
    /// unknown ticket.
    pub(crate) fn is_ready(&mut self, lanes: &mut Lanes, ticket: PullTicket) -> bool {
        self.collect(lanes);
        if let Some(range) = self.ranges.iter().find(|r| r.number == ticket.number) {
            return range.is_ready(lanes);
        }
        let Some(n) = self.position(ticket) else {
            return true;
        };
        self.all[n].late_lane(lanes).is_none()
    }

    /// Blocks until a pull of rows has arrived, and writes its rows to `out`. Rows that fail validation are
    /// pulled again. After a deadline, an interrupt, or a wrong argument, the pull is under way as before, and
    /// nothing writes to `out` any more; after another error the pull is over.
    pub(crate) fn finish(
        &mut self,
        lanes: &mut Lanes,
        table: &mut TableState,
        scratch: &mut RowScratch,
        ticket: PullTicket,
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let row_bytes = table.row.payload_bytes;
        let n = self.position(ticket).ok_or_else(|| no_such_pull(table))?;
        let due = self.all[n].keys.len() * row_bytes;
        if due != out.len() {
            return Err(wrong_length(table, out.len(), due));
        }
        let done = self.finish_known(lanes, table, scratch, ticket, out, deadline);
        let Some(n) = self.position(ticket) else {
            return done;
        };
        if goes_on(&done) && !on(Mutant::FinishForgetsPull) {
            self.all[n].take_back(row_bytes, out);
            return done;
        }
        let pull = self.all.swap_remove(n);
        if done.is_ok() {
            lanes.counters.pulls += 1;
            lanes.counters.bytes_pulled += out.len() as u64;
        }
        self.keep(pull);
        done
    }

    /// Blocks until the posted reads of a pull of rows have completed and copies the valid rows to `out`, then pulls
    /// the other rows with a blocking pull. The pull stays in the list.
    fn finish_known(
        &mut self,
        lanes: &mut Lanes,
        table: &mut TableState,
        scratch: &mut RowScratch,
        ticket: PullTicket,
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        if !self.is_ready(lanes, ticket)
            && let Some(n) = self.position(ticket)
        {
            self.all[n].place_directly(lanes, table, scratch.ops(), out, deadline)?;
        }
        if !self.is_ready(lanes, ticket) {
            let me = &mut *self;
            let waited = lanes.wait("finish a pull", deadline, |lanes| {
                Ok::<_, Interrupt>(me.is_ready(lanes, ticket).then_some(()))
            });
            let late = match (&waited, self.position(ticket)) {
                (Err(ClientError::Deadline { .. }), Some(n)) => self.all[n].late_lane(lanes),
                _ => None,
            };
            match late {
                Some(lane) => return Err(lanes.late_read(lane)),
                None => waited?,
            }
        }
        let n = self.position(ticket).ok_or_else(|| no_such_pull(table))?;
        let pull = &mut self.all[n];
        pull.accept(lanes, table, out);
        pull.finish_rest(lanes, table, scratch, out, deadline)
    }
}

/// Whether a finish with this result leaves the pull under way, for a later call: after a deadline, an interrupt, or
/// a wrong argument.
const fn goes_on(done: &Result<(), ClientError>) -> bool {
    matches!(
        done,
        Err(ClientError::Deadline { .. }
            | ClientError::Interrupted { .. }
            | ClientError::Argument { .. })
    )
}

fn wrong_length(table: &TableState, bytes: usize, due: usize) -> ClientError {
    ClientError::Argument {
        op: "finish_pull",
        table: table.name().to_owned(),
        what: format!("{bytes} bytes where {due} are due"),
    }
}

fn no_such_pull(table: &TableState) -> ClientError {
    ClientError::Argument {
        op: "finish_pull",
        table: table.name().to_owned(),
        what: "there is no such pull: it was finished or cancelled".into(),
    }
}

impl Part {
    /// Replaces the content of `ops` by the read operations of the part's rows. `place(n, row)` maps a row's
    /// index in the part and in its pull to its position (in rows) in the destination.
    fn reads(
        &self,
        table: &TableState,
        ops: &mut Vec<ReadOp>,
        place: impl Fn(usize, usize) -> usize,
    ) {
        let row_bytes = table.row.payload_bytes;
        let read = |(at, row): (usize, &RowRead)| ReadOp {
            from: row.from,
            len: count(table.row.read_bytes()),
            head_len: count(ROW_HEADER_BYTES),
            head_at: at * ROW_HEADER_BYTES,
            body_at: place(at, row.row as usize) * row_bytes,
            fence: false,
        };
        ops.clear();
        ops.extend(self.rows.iter().enumerate().map(read));
    }
}

impl AsyncPull {
    /// Pulls the rows of `rest` into `out` with a blocking pull: those without a known location, and those that
    /// failed validation.
    fn finish_rest(
        &self,
        lanes: &mut Lanes,
        table: &mut TableState,
        scratch: &mut RowScratch,
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let row_bytes = table.row.payload_bytes;
        let keys: Vec<u64> = self
            .rest
            .iter()
            .map(|&row| self.keys[row as usize])
            .collect();
        let mut rows = vec![0; keys.len() * row_bytes];
        pull_rows(
            lanes,
            table,
            scratch,
            &keys,
            &mut rows,
            self.options,
            Timeout::At(deadline),
        )?;
        for (row, bytes) in self.rest.iter().zip(rows.chunks_exact(row_bytes)) {
            let at = *row as usize * row_bytes;
            out[at..at + row_bytes].copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Lane of a part with reads under way: they have not arrived, and the lane was not replaced. `None` if no
    /// part has such.
    fn late_lane(&self, lanes: &mut Lanes) -> Option<usize> {
        let mut parts = self.parts.iter();
        let late = parts.find(|part| {
            part.arrived.is_none() && lanes.get(part.lane).replies.replaced() == part.replaced
        });
        late.map(|part| part.lane)
    }

    /// Assigns the rows of the pull to one part for each lane. Rows without a known location, and in mode
    /// `Gather` all rows, go to `rest`, which is pulled at the end.
    fn plan(&mut self, lanes: &mut Lanes, table: &TableState, spare: &mut Vec<Part>) {
        for (row, &key) in (0u32..).zip(&self.keys) {
            if let Some(&later) = self.keys.get(row as usize + LOCATIONS_AHEAD) {
                table.prefetch(later);
            }
            let known = table
                .locate(key)
                .filter(|_| self.options.mode != PullMode::Gather);
            let Some((source, loc)) = known else {
                self.rest.push(row);
                continue;
            };
            let part = match self.parts.iter_mut().position(|p| p.lane == source.lane) {
                Some(n) => n,
                None => {
                    let replaced = lanes.get(source.lane).replies.replaced();
                    let lane = source.lane;
                    let mut part = spare.pop().unwrap_or_default();
                    part.rows.clear();
                    (part.lane, part.replaced) = (lane, replaced);
                    self.parts.push(part);
                    self.parts.len() - 1
                }
            };
            self.parts[part].rows.push(RowRead {
                key,
                salt: source.salt,
                from: source.from,
                loc,
                row,
                unpacked: None,
                ver: RowVersion::default(),
            });
        }
        self.unplaced = self.rest.len();
    }

    fn post(
        &mut self,
        lanes: &mut Lanes,
        table: &TableState,
        n: usize,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let part = &mut self.parts[n];
        let row_bytes = table.row.payload_bytes;
        // The old contents do not matter: each read fills its memory completely or is repeated.
        let mut batch = part.arrived.take().unwrap_or_default();
        part.in_place = false;
        part.reads(table, &mut batch.ops, |at, _| at);
        batch.head.resize(part.rows.len() * ROW_HEADER_BYTES, 0);
        batch.body.resize(part.rows.len() * row_bytes, 0);
        batch.tag = self.number;
        let lane = lanes.get(part.lane).lane();
        let posted = lane.submit_read(batch).and_then(|()| lane.flush_soon());
        match posted.map_err(|e| lanes.failed(part.lane, e)) {
            Ok(()) => Ok(()),
            // Reads of a replaced lane count as not arrived and are repeated.
            Err(Interrupt::Broken(lane)) => lanes.recover(lane, deadline),
            Err(Interrupt::Failed(e)) => Err(e),
        }
    }

    /// Waits up to `COORDINATOR_LOOK` for reads under way, with the caller's `out` as their destination, which
    /// saves a copy. Reads that do not complete stay under way; a lane that breaks is marked.
    fn place_directly(
        &mut self,
        lanes: &mut Lanes,
        table: &TableState,
        ops: &mut Vec<ReadOp>,
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        // The wait that follows checks whether all processes still live.
        let slice = Deadline::after(COORDINATOR_LOOK).min(deadline);
        for part in &mut self.parts {
            let replaced = lanes.get(part.lane).replies.replaced() != part.replaced;
            if part.arrived.is_some() || replaced || lanes.is_broken(part.lane) {
                continue;
            }
            part.reads(table, ops, |_, row| row);
            let lane = lanes.get(part.lane).lane();
            let mut validator = RowValidator {
                rows: &mut part.rows,
                row_bytes: table.row.payload_bytes,
            };
            match lane.wait_read(self.number, ops, out, Some(&mut validator), slice) {
                Ok(batch) => {
                    part.in_place = batch.is_some();
                    part.arrived = batch;
                }
                Err(e) => match lanes.failed(part.lane, e) {
                    // The wait that follows recovers it.
                    Interrupt::Broken(_) => {}
                    Interrupt::Failed(e) => return Err(e),
                },
            }
        }
        Ok(())
    }

    /// Copies rows that were placed in the caller's memory back to the pull's own: the call ends unfinished, and the
    /// next one may bring another buffer.
    fn take_back(&mut self, row_bytes: usize, out: &[u8]) {
        for part in self.parts.iter_mut().filter(|part| part.in_place) {
            if on(Mutant::FinishForgetsBuffer) {
                continue;
            }
            part.in_place = false;
            let Some(batch) = &mut part.arrived else {
                continue;
            };
            for (to, row) in batch.body.chunks_exact_mut(row_bytes).zip(&part.rows) {
                let at = row.row as usize * row_bytes;
                to.copy_from_slice(&out[at..at + row_bytes]);
            }
        }
    }

    /// Copies arrived rows with a matching checksum to `out`; the others join `rest`. It may run again, with other
    /// memory, after a call that missed its deadline.
    fn accept(&mut self, lanes: &mut Lanes, table: &TableState, out: &mut [u8]) {
        let row_bytes = table.row.payload_bytes;
        self.rest.truncate(self.unplaced);
        let counted = u64::from(!std::mem::replace(&mut self.judged, true));
        for part in &self.parts {
            let in_place = part.in_place;
            for (n, row) in part.rows.iter().enumerate() {
                let (at, from) = (row.row as usize * row_bytes, n * row_bytes);
                let verdict = part.arrived.as_ref().and_then(|batch| {
                    let head = batch.head.get(n * ROW_HEADER_BYTES..)?.first_chunk()?;
                    let copied = batch.body.get(from..from + row_bytes)?;
                    let out = out.get_mut(at..at + row_bytes)?;
                    Some(match row.unpacked {
                        Some(verdict) if in_place => verdict,
                        // It was validated and moved to the batch with the others.
                        Some(verdict) => {
                            out.copy_from_slice(copied);
                            verdict
                        }
                        None if in_place => row.verify(head, out),
                        None => row.judge(copy_verifying(row.salt, row.key, head, copied, out)),
                    })
                });
                if verdict == Some(Verdict::Valid) {
                    lanes.counters.rows_consistent += counted;
                    continue;
                }
                lanes.counters.torn_rejected += counted * u64::from(verdict.is_some());
                lanes.counters.retries += counted;
                self.rest.push(row.row);
            }
        }
    }
}

//! Pulls of rows by key or index.

use tidewater_lanes::fabric::{ClientLane, LaneError, ReadDest, ReadOp, Unpack};
use tidewater_lanes::num::count;
use tidewater_protocol::layout::row::{ROW_HEADER_BYTES, RowLocation, verify_row};
use tidewater_protocol::limits::PULL_RETRIES_MAX;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_runtime::clock::Deadline;

use super::validation::{RowRead, RowValidator, Verdict};
use super::{Missing, PullMode, PullOptions, Timeout, direct};
use crate::error::ClientError;
use crate::lanes::{Interrupt, Lanes};
use crate::table::state::{RowSource, TableState};

/// Memory of a pull, kept between calls so that a warm one allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct RowScratch {
    heads: Vec<u8>,
    todo: Vec<u32>,
    again: Vec<u32>,
    ops: Vec<ReadOp>,
    reads: Vec<LaneReads>,
    missing: Vec<u32>,
    keys: Vec<u64>,
    lines: Vec<u8>,
    last: Vec<u32>,
}

/// The rows that are read from one lane.
#[derive(Debug, Default)]
struct LaneReads {
    ops: Vec<ReadOp>,
    /// In the order of `ops`, until one of those is moved to the end.
    rows: Vec<RowRead>,
}

impl LaneReads {
    #[inline]
    fn add(
        &mut self,
        key: u64,
        row: u32,
        (source, loc): (RowSource, RowLocation),
        row_bytes: usize,
    ) {
        let at = row as usize;
        self.ops.push(ReadOp {
            from: source.from,
            len: count(ROW_HEADER_BYTES + row_bytes),
            head_len: count(ROW_HEADER_BYTES),
            head_at: at * ROW_HEADER_BYTES,
            body_at: at * row_bytes,
            fence: false,
        });
        self.rows.push(RowRead {
            key,
            salt: source.salt,
            from: source.from,
            loc,
            row,
            taken: None,
        });
    }
}

impl RowScratch {
    /// Memory for a list of reads.
    pub(super) const fn ops(&mut self) -> &mut Vec<ReadOp> {
        &mut self.ops
    }
}

/// Distance, in keys, by which cached locations are prefetched.
pub(super) const HINTS_AHEAD: usize = 16;

/// One pull in progress.
struct RowPull<'a> {
    lanes: &'a mut Lanes,
    table: &'a mut TableState,
    keys: &'a [u64],
    out: &'a mut [u8],
    options: PullOptions,
    deadline: Deadline,
}

/// Pulls `keys` into `out`, row after row in the caller's order.
#[inline]
pub(crate) fn pull(
    lanes: &mut Lanes,
    table: &mut TableState,
    scratch: &mut RowScratch,
    keys: &[u64],
    out: &mut [u8],
    options: PullOptions,
    due: Timeout,
) -> Result<(), ClientError> {
    lanes.counters.pulls += 1;
    lanes.counters.bytes_pulled += out.len() as u64;
    scratch.todo.clear();
    if !lanes.any_mapped() || options.mode == PullMode::Gather {
        scratch.todo.extend(0..count(keys.len()));
    } else {
        let left = (&mut scratch.todo, &mut scratch.last);
        let tried = direct::pull(lanes, table, options.mode, keys, out, left);
        match options.mode {
            PullMode::Hogwild => lanes.counters.rows_hogwild += tried.accepted,
            _ => lanes.counters.rows_consistent += tried.accepted,
        }
        if scratch.todo.is_empty() {
            return Ok(());
        }
        lanes.counters.torn_rejected += tried.rejected;
        lanes.counters.retries += tried.rejected;
        pause(0);
    }
    let deadline = due.deadline();
    pull_todo(lanes, table, scratch, keys, out, options, deadline)
}

/// Pulls the rows of `todo` by reads.
#[inline(never)]
fn pull_todo(
    lanes: &mut Lanes,
    table: &mut TableState,
    scratch: &mut RowScratch,
    keys: &[u64],
    out: &mut [u8],
    options: PullOptions,
    deadline: Deadline,
) -> Result<(), ClientError> {
    let mut pull = RowPull {
        lanes,
        table,
        keys,
        out,
        options,
        deadline,
    };
    if options.mode == PullMode::Gather {
        return pull.gather(&mut scratch.keys, &scratch.todo);
    }
    scratch.heads.resize(keys.len() * ROW_HEADER_BYTES, 0);
    for attempt in 0..=PULL_RETRIES_MAX {
        pull.locate(scratch, attempt)?;
        pull.read(scratch, attempt)?;
        if scratch.again.is_empty() {
            return Ok(());
        }
        let rejected = scratch.again.len() as u64;
        pull.lanes.counters.torn_rejected += rejected;
        pull.lanes.counters.retries += rejected;
        std::mem::swap(&mut scratch.todo, &mut scratch.again);
        pause(attempt);
    }
    pull.lanes.counters.gather_fallbacks += 1;
    pull.gather(&mut scratch.keys, &scratch.todo)
}

/// Lets the writer finish: the pause doubles with each try, up to about a microsecond.
fn pause(attempt: u32) {
    for _ in 0..(16u32 << attempt.min(6)) {
        tidewater_runtime::sync::spin_hint();
    }
}

impl RowPull<'_> {
    fn key(&self, row: u32) -> u64 {
        self.keys.get(row as usize).copied().unwrap_or_default()
    }

    fn lane(&self, row: u32) -> Result<usize, ClientError> {
        let key = self.key(row);
        self.table
            .lane_of(key)
            .ok_or_else(|| ClientError::Argument {
                op: "pull_rows",
                table: self.table.name().to_owned(),
                what: format!("row {key} is past the end"),
            })
    }

    /// Finds the location of every row of `todo`. Rows that are answered without a read (initial values
    /// of unknown keys) are completed here and drop out of `reads`.
    fn locate(&mut self, s: &mut RowScratch, attempt: u32) -> Result<(), ClientError> {
        s.reads.resize_with(self.lanes.len(), LaneReads::default);
        for reads in &mut s.reads {
            reads.ops.clear();
            reads.rows.clear();
        }
        s.missing.clear();
        let row_bytes = self.table.row.payload_bytes;
        for (n, &row) in s.todo.iter().enumerate() {
            if let Some(&later) = s.todo.get(n + HINTS_AHEAD) {
                self.table.prefetch(self.key(later));
            }
            let key = self.key(row);
            // A cached location that failed twice is stale, not a row being written: resolve it.
            if attempt >= 2 && self.table.is_sparse() {
                self.table.hints.forget(key);
            }
            let known = self.table.place(key);
            match known.and_then(|place| Some((s.reads.get_mut(place.0.lane)?, place))) {
                Some((reads, place)) => reads.add(key, row, place, row_bytes),
                None => s.missing.push(row),
            }
        }
        if s.missing.is_empty() {
            Ok(())
        } else {
            self.locate_missing(s)
        }
    }

    /// Handles rows without a cached location, or of an unknown extent.
    #[cold]
    fn locate_missing(&mut self, s: &mut RowScratch) -> Result<(), ClientError> {
        let row_bytes = self.table.row.payload_bytes;
        let mut missing = std::mem::take(&mut s.missing);
        if let (Some(&row), false) = (missing.first(), self.table.is_sparse()) {
            self.lane(row)?;
            return Err(self.undescribed());
        }
        for row in missing.drain(..) {
            let key = self.key(row);
            let Some(loc) = self.table.hints.get(key).filter(|l| l.is_some()) else {
                s.missing.push(row);
                continue;
            };
            let lane = self.lane(row)?;
            let source = self.source(&mut s.lines, row, lane, loc)?;
            if let Some(reads) = s.reads.get_mut(lane) {
                reads.add(key, row, (source, loc), row_bytes);
            }
        }
        if s.missing.is_empty() {
            return Ok(());
        }
        self.resolve(s)
    }

    fn undescribed(&self) -> ClientError {
        ClientError::Protocol {
            server: "a server".into(),
            what: format!("no description of a partition of \"{}\"", self.table.name()),
        }
    }

    /// Resolves locations lane by lane.
    #[cold]
    fn resolve(&mut self, s: &mut RowScratch) -> Result<(), ClientError> {
        let create = self.options.missing == Missing::Create;
        let row_bytes = self.table.row.payload_bytes;
        for lane in 0..self.lanes.len() {
            s.keys.clear();
            s.again.clear();
            for &row in &s.missing {
                if self.lane(row)? == lane {
                    s.keys.push(self.key(row));
                    s.again.push(row);
                }
            }
            if s.keys.is_empty() {
                continue;
            }
            let mut locs = vec![RowLocation::NONE; s.keys.len()];
            self.lanes.resolve(
                lane,
                self.table,
                &s.keys,
                create,
                self.deadline,
                |n, loc| {
                    if let Some(slot) = locs.get_mut(n) {
                        *slot = loc;
                    }
                },
            )?;
            let mut initial = Vec::new();
            for (&row, &loc) in s.again.iter().zip(&locs) {
                if loc.is_some() {
                    self.table.hints.put(self.key(row), loc);
                    let source = self.source(&mut s.lines, row, lane, loc)?;
                    if let Some(reads) = s.reads.get_mut(lane) {
                        reads.add(self.key(row), row, (source, loc), row_bytes);
                    }
                } else {
                    initial.push(row);
                }
            }
            if !initial.is_empty() {
                self.gather_lane(lane, &mut s.keys, &initial)?;
            }
        }
        Ok(())
    }

    /// The source of a row; reads the extent table if its extent is new.
    fn source(
        &mut self,
        lines: &mut Vec<u8>,
        row: u32,
        lane: usize,
        loc: RowLocation,
    ) -> Result<RowSource, ClientError> {
        let number = match self.table.sparse_row(lane, loc) {
            Ok(source) => return Ok(source),
            Err(number) => number,
        };
        let nonsense = || ClientError::Protocol {
            server: "a server".into(),
            what: format!(
                "location {:#x}, in extent {number} that there is not",
                loc.0
            ),
        };
        let (op, first) = self.table.extents_op(lane, number).ok_or_else(nonsense)?;
        lines.resize(op.len as usize, 0);
        for _ in 0..=PULL_RETRIES_MAX {
            read_ops(self.lanes, lane, &[op], lines, &mut [], self.deadline)?;
            self.table.learn_extents(lane, first, lines);
            if let Ok(source) = self.table.sparse_row(lane, loc) {
                return Ok(source);
            }
        }
        // No entry of a released table validates any more: then the server refuses.
        self.gather_lane(lane, &mut Vec::new(), &[row])?;
        Err(nonsense())
    }

    /// Performs the reads of `reads`, lane by lane, and validates the rows; those that fail are in
    /// `again`.
    fn read(&mut self, s: &mut RowScratch, attempt: u32) -> Result<(), ClientError> {
        s.again.clear();
        let row_bytes = self.table.row.payload_bytes;
        let hogwild = self.options.mode == PullMode::Hogwild;
        for lane in 0..s.reads.len() {
            let LaneReads { ops, rows } = &mut s.reads[lane];
            if ops.is_empty() {
                continue;
            }
            let (head, deadline) = (&mut s.heads[..], self.deadline);
            if hogwild {
                put_witness_last(ops, attempt);
                read_ops(self.lanes, lane, ops, head, self.out, deadline)?;
            } else {
                let mut prover = RowValidator { rows, row_bytes };
                let landing = (head, &mut *self.out);
                read_unpack(self.lanes, lane, ops, landing, &mut prover, deadline)?;
            }
            let reads = &s.reads[lane];
            let unproven = hogwild && !self.witness_holds(reads, &s.heads);
            for row in &reads.rows {
                if unproven || !self.accept(row, &s.heads, row_bytes) {
                    s.again.push(row.row);
                }
            }
        }
        Ok(())
    }

    /// Whether the last row that was read from a lane has a matching checksum. Then the table still
    /// existed when the other rows were read. Unvalidated rows do not show by themselves that their
    /// memory was given to another table.
    fn witness_holds(&self, reads: &LaneReads, heads: &[u8]) -> bool {
        let Some(op) = reads.ops.last() else {
            return true;
        };
        let row = op.head_at / ROW_HEADER_BYTES;
        let head = heads
            .get(op.head_at..)
            .and_then(|h| h.first_chunk::<ROW_HEADER_BYTES>());
        let payload = self
            .out
            .get(op.body_at..op.body_at + self.table.row.payload_bytes);
        let source = reads.rows.iter().rev().find(|r| r.row as usize == row);
        match (source, head, payload) {
            (Some(row), Some(head), Some(payload)) => {
                verify_row(row.salt, row.key, head, payload).is_some()
            }
            _ => false,
        }
    }

    /// Judges a row that was read, counts the verdict, and returns whether the row is accepted.
    #[inline]
    fn accept(&mut self, row: &RowRead, heads: &[u8], row_bytes: usize) -> bool {
        let hogwild = self.options.mode == PullMode::Hogwild;
        let verdict = match row.taken {
            Some(verdict) => verdict,
            None => self.judge_landed(row, heads, row_bytes),
        };
        match verdict {
            Verdict::Proven if hogwild => self.lanes.counters.rows_hogwild += 1,
            Verdict::Proven => self.lanes.counters.rows_consistent += 1,
            Verdict::Torn => {}
            Verdict::Stale => {
                self.lanes.counters.stale_hints += 1;
                self.table.hints.forget(row.key);
            }
        }
        verdict == Verdict::Proven
    }

    /// Judges a row with head and payload placed apart.
    fn judge_landed(&self, row: &RowRead, heads: &[u8], row_bytes: usize) -> Verdict {
        let at = row.row as usize;
        let (Some(head), Some(payload)) = (
            heads
                .get(at * ROW_HEADER_BYTES..)
                .and_then(|h| h.first_chunk::<ROW_HEADER_BYTES>()),
            self.out.get(at * row_bytes..(at + 1) * row_bytes),
        ) else {
            return Verdict::Torn;
        };
        match self.options.mode {
            PullMode::Hogwild => row.judge_unproven(head),
            _ => row.verify(head, payload),
        }
    }

    fn gather(&mut self, keys: &mut Vec<u64>, todo: &[u32]) -> Result<(), ClientError> {
        for lane in 0..self.lanes.len() {
            let mut rows = Vec::new();
            for &row in todo {
                if self.lane(row)? == lane {
                    rows.push(row);
                }
            }
            if !rows.is_empty() {
                self.gather_lane(lane, keys, &rows)?;
            }
        }
        Ok(())
    }

    fn gather_lane(
        &mut self,
        lane: usize,
        keys: &mut Vec<u64>,
        rows: &[u32],
    ) -> Result<(), ClientError> {
        keys.clear();
        keys.extend(rows.iter().map(|&row| self.key(row)));
        let create = self.options.missing == Missing::Create;
        let row_bytes = self.table.row.payload_bytes;
        let out = &mut *self.out;
        self.lanes
            .gather_rows(lane, self.table, keys, create, self.deadline, |n, bytes| {
                let at = rows[n] as usize * row_bytes;
                if let Some(to) = out.get_mut(at..at + row_bytes) {
                    to.copy_from_slice(bytes);
                }
            })
    }
}

/// Moves one of the reads behind the others, where a fence holds it. Each try moves another one, since
/// the last row may be a hot one.
fn put_witness_last(ops: &mut [ReadOp], attempt: u32) {
    let last = ops.len() - 1;
    ops.swap(last - attempt as usize % ops.len(), last);
    if let Some(op) = ops.last_mut() {
        op.fence = true;
    }
}

/// Reads on a lane; recovers it as often as needed until the deadline.
pub(crate) fn read_ops(
    lanes: &mut Lanes,
    lane: usize,
    ops: &[ReadOp],
    head: &mut [u8],
    body: &mut [u8],
    deadline: Deadline,
) -> Result<(), ClientError> {
    mending(lanes, lane, deadline, |lane| {
        let into = ReadDest { head, body };
        lane.read(ops, into, deadline)
    })
}

/// Like [`read_ops`], but offers arriving data to `taker`.
fn read_unpack(
    lanes: &mut Lanes,
    lane: usize,
    ops: &[ReadOp],
    (head, body): (&mut [u8], &mut [u8]),
    taker: &mut dyn Unpack,
    deadline: Deadline,
) -> Result<(), ClientError> {
    mending(lanes, lane, deadline, |lane| {
        let into = ReadDest { head, body };
        lane.read_unpack(ops, into, taker, deadline)
    })
}

fn mending(
    lanes: &mut Lanes,
    lane: usize,
    deadline: Deadline,
    mut read: impl FnMut(&mut dyn ClientLane) -> Result<(), LaneError>,
) -> Result<(), ClientError> {
    loop {
        // An earlier call may have given the lane up at its deadline, which is not this one's.
        if lanes.is_broken(lane) {
            lanes.mend(lane, deadline)?;
        }
        match read(lanes.get(lane).lane()) {
            Ok(()) => return Ok(()),
            Err(e @ (LaneError::Deadline { .. } | LaneError::Late { .. })) => {
                if e.is_fatal() {
                    lanes.failed(lane, e.clone());
                }
                if on(Mutant::LateReadIsLost) {
                    return Err(e.into());
                }
                return Err(lanes.late_read(lane));
            }
            // A refused read would be refused again: the table was released, or this client is in
            // error.
            Err(e @ LaneError::Access { .. }) => {
                lanes.failed(lane, e.clone());
                return Err(e.into());
            }
            Err(e) => match lanes.failed(lane, e) {
                Interrupt::Failed(e) => return Err(e),
                Interrupt::Broken(_) => lanes.mend(lane, deadline)?,
            },
        }
    }
}

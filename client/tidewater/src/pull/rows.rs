//! Pulls of rows by key or index.

use tidewater_bookkeeping::validation::{RowRead, Verdict};
use tidewater_lanes::fabric::ReadOp;
use tidewater_lanes::num::count;
use tidewater_protocol::layout::row::{ROW_HEADER_BYTES, RowLocation, RowVersion, verify_row};
use tidewater_protocol::limits::PULL_RETRIES_MAX;
use tidewater_runtime::clock::Deadline;

use super::lane_reads::{CallDest, LaneReads, read_lanes};
use super::{Missing, PullMode, PullOptions, Pulled, Seen, Timeout, direct};
use crate::error::ClientError;
use crate::lanes::Lanes;
use crate::table::state::{RowSource, TableState};

/// Buffers of row pulls, kept between calls so that a warm call allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct RowScratch {
    heads: Vec<u8>,
    todo: Vec<u32>,
    again: Vec<u32>,
    ops: Vec<ReadOp>,
    reads: Vec<LaneReads>,
    missing: Vec<u32>,
    /// Rows with a location that a server resolved.
    located: Vec<LocatedRow>,
    extents: ExtentScratch,
    last: Vec<u32>,
}

/// Row of a call, by its index in the keys, with lane and location in the server's memory.
#[derive(Debug, Clone, Copy)]
struct LocatedRow {
    row: u32,
    lane: usize,
    loc: RowLocation,
}

/// Read of entries of a lane's extent table, which gives the addresses of extents (memory areas with the slots of
/// sparse rows).
#[derive(Debug, Clone, Copy)]
struct ExtentRead {
    lane: usize,
    /// Index of the first entry in the extent table.
    first: u16,
    /// Offset in bytes of the entries in [`ExtentScratch::lines`].
    at: usize,
}

/// Buffers for reads of extent tables, kept between calls.
#[derive(Debug, Default)]
struct ExtentScratch {
    reads: Vec<LaneReads>,
    asked: Vec<ExtentRead>,
    lines: Vec<u8>,
}

impl LaneReads {
    /// Adds the read of a row of `row_bytes` payload bytes to the list; `row` is its index in the caller's keys, at
    /// which its header and payload are placed.
    #[inline]
    fn add(&mut self, key: u64, row: u32, source: RowSource, loc: RowLocation, row_bytes: usize) {
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
            unpacked: None,
            ver: RowVersion::default(),
        });
    }
}

impl RowScratch {
    /// Buffer for a list of read operations, kept between calls.
    pub(super) const fn ops(&mut self) -> &mut Vec<ReadOp> {
        &mut self.ops
    }
}

/// Number of keys ahead for which cached locations are prefetched.
pub(super) const LOCATIONS_AHEAD: usize = 16;

/// State of one blocking pull of rows: table, keys, destination, options and deadline.
struct RowPull<'a> {
    lanes: &'a mut Lanes,
    table: &'a mut TableState,
    keys: &'a [u64],
    out: &'a mut [u8],
    options: PullOptions,
    deadline: Deadline,
    seen: Seen,
}

/// Pulls the rows of `keys` into `out`, in the order of the keys, and blocks until all are there. Mapped memory is
/// tried first; the remaining rows are read over the lanes. Returns the versions read. After an error `out` may be
/// partly overwritten.
#[inline]
pub(crate) fn pull(
    lanes: &mut Lanes,
    table: &mut TableState,
    scratch: &mut RowScratch,
    keys: &[u64],
    out: &mut [u8],
    options: PullOptions,
    timeout: Timeout,
) -> Result<Pulled, ClientError> {
    lanes.counters.pulls += 1;
    lanes.counters.bytes_pulled += out.len() as u64;
    scratch.todo.clear();
    let mut seen = Seen::default();
    if !lanes.any_mapped() || options.mode == PullMode::Gather {
        scratch.todo.extend(0..count(keys.len()));
    } else {
        let (todo, last) = (&mut scratch.todo, &mut scratch.last);
        let tried = direct::pull(lanes, table, options.mode, keys, out, todo, last);
        match options.mode {
            PullMode::Hogwild => lanes.counters.rows_hogwild += tried.accepted,
            _ => lanes.counters.rows_consistent += tried.accepted,
        }
        seen = tried.seen;
        if scratch.todo.is_empty() {
            return Ok(seen.pulled());
        }
        lanes.counters.torn_rejected += tried.rejected;
        lanes.counters.retries += tried.rejected;
        pause(0);
    }
    let deadline = timeout.deadline();
    let mut pull = RowPull {
        lanes,
        table,
        keys,
        out,
        options,
        deadline,
        seen,
    };
    pull.pull_todo(scratch)?;
    Ok(pull.seen.pulled())
}

/// Spins so that the writer of a row can finish. The pause doubles with each attempt, from 16 to 1,024 spin
/// hints.
fn pause(attempt: u32) {
    for _ in 0..(16u32 << attempt.min(6)) {
        tidewater_runtime::sync::spin_hint();
    }
}

impl RowPull<'_> {
    /// Pulls the rows of `todo` by one-sided reads over the lanes. Rows that fail validation are read again, at most
    /// `PULL_RETRIES_MAX` times; then the servers copy them.
    #[inline(never)]
    fn pull_todo(&mut self, scratch: &mut RowScratch) -> Result<(), ClientError> {
        if self.options.mode == PullMode::Gather {
            return self.gather(&mut scratch.todo);
        }
        scratch.heads.resize(self.keys.len() * ROW_HEADER_BYTES, 0);
        for attempt in 0..=PULL_RETRIES_MAX {
            self.locate(scratch, attempt)?;
            self.read(scratch, attempt)?;
            if scratch.again.is_empty() {
                return Ok(());
            }
            let rejected = scratch.again.len() as u64;
            self.lanes.counters.torn_rejected += rejected;
            self.lanes.counters.retries += rejected;
            std::mem::swap(&mut scratch.todo, &mut scratch.again);
            pause(attempt);
        }
        self.lanes.counters.gather_fallbacks += 1;
        self.gather(&mut scratch.todo)
    }

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

    /// Finds the location of every row of `todo` and lists its read. `attempt` counts the rounds from 0: from 2 on,
    /// cached locations are stale and are resolved again. Rows that need no read (initial values of missing keys) are
    /// completed here.
    fn locate(&mut self, s: &mut RowScratch, attempt: u32) -> Result<(), ClientError> {
        s.reads.resize_with(self.lanes.len(), LaneReads::default);
        s.reads.iter_mut().for_each(LaneReads::clear);
        s.missing.clear();
        let row_bytes = self.table.row.payload_bytes;
        for (n, &row) in s.todo.iter().enumerate() {
            if let Some(&later) = s.todo.get(n + LOCATIONS_AHEAD) {
                self.table.prefetch(self.key(later));
            }
            let key = self.key(row);
            // A cached location that failed twice is stale, not a row being written: resolve it.
            if attempt >= 2 && self.table.is_sparse() {
                self.table.locations.forget(key);
            }
            let known = self.table.locate(key);
            let of_lane =
                known.and_then(|(source, loc)| Some((s.reads.get_mut(source.lane)?, source, loc)));
            match of_lane {
                Some((reads, source, loc)) => reads.add(key, row, source, loc, row_bytes),
                None => s.missing.push(row),
            }
        }
        if s.missing.is_empty() {
            Ok(())
        } else {
            self.locate_missing(s)
        }
    }

    /// Locates the rows of `missing`, which have no cached location or lie in an extent of unknown address, and lists
    /// their reads. Asks the appliers for locations, then reads the extent tables, on all lanes at once.
    #[cold]
    fn locate_missing(&mut self, s: &mut RowScratch) -> Result<(), ClientError> {
        if let (Some(&row), false) = (s.missing.first(), self.table.is_sparse()) {
            self.lane(row)?;
            return Err(self.undescribed());
        }
        s.located.clear();
        let mut unknown = Vec::new();
        for &row in &s.missing {
            let lane = self.lane(row)?;
            match self.table.locations.get_waiting(self.key(row)) {
                Some(loc) => s.located.push(LocatedRow { row, lane, loc }),
                None => unknown.push((lane, row)),
            }
        }
        self.resolve(&mut s.located, unknown)?;
        self.learn_extents(&s.located, &mut s.extents)?;
        let row_bytes = self.table.row.payload_bytes;
        for &LocatedRow { row, lane, loc } in &s.located {
            let source = self.table.sparse_row(lane, loc);
            let source =
                source.map_err(|number| invalid_location(self.lanes.name(lane), loc, number))?;
            if let Some(reads) = s.reads.get_mut(lane) {
                reads.add(self.key(row), row, source, loc, row_bytes);
            }
        }
        Ok(())
    }

    fn undescribed(&self) -> ClientError {
        ClientError::Protocol {
            server: "a server".into(),
            what: format!("no description of a partition of \"{}\"", self.table.name()),
        }
    }

    /// Resolves the locations of `unknown` rows (lane, index in the keys) by requests to the appliers, caches
    /// them, and adds them to `located`. Keys that still have no row get initial values in `out`.
    fn resolve(
        &mut self,
        located: &mut Vec<LocatedRow>,
        mut unknown: Vec<(usize, u32)>,
    ) -> Result<(), ClientError> {
        if unknown.is_empty() {
            return Ok(());
        }
        unknown.sort_unstable();
        let rows: Vec<u32> = unknown.iter().map(|&(_, row)| row).collect();
        let create = self.options.missing == Missing::Create;
        let (table, deadline) = (&*self.table, self.deadline);
        let mut found = Vec::with_capacity(rows.len());
        self.lanes
            .resolve(table, self.keys, &rows, create, deadline, |row, loc| {
                found.push((row, loc));
            })?;
        let mut initial = Vec::new();
        for (row, loc) in found {
            if loc.is_some() {
                self.table.locations.put(self.key(row), loc);
                let lane = self.lane(row)?;
                located.push(LocatedRow { row, lane, loc });
            } else {
                initial.push(row);
            }
        }
        if initial.is_empty() {
            return Ok(());
        }
        self.gather(&mut initial)
    }

    /// Reads the extent-table entries of located rows in extents without a known address, on all lanes at once. If
    /// an entry does not validate in `PULL_RETRIES_MAX` + 1 reads, the server is asked for its row: it refuses for a
    /// released table. Otherwise the call succeeds with the address unknown, which the caller has to check.
    fn learn_extents(
        &mut self,
        located: &[LocatedRow],
        s: &mut ExtentScratch,
    ) -> Result<(), ClientError> {
        s.reads.resize_with(self.lanes.len(), LaneReads::default);
        for _ in 0..=PULL_RETRIES_MAX {
            s.reads.iter_mut().for_each(LaneReads::clear);
            s.asked.clear();
            let mut bytes = 0;
            for &LocatedRow { lane, loc, .. } in located {
                let Err(number) = self.table.sparse_row(lane, loc) else {
                    continue;
                };
                let op = self.table.extents_op(lane, number);
                let (op, first) =
                    op.ok_or_else(|| invalid_location(self.lanes.name(lane), loc, number))?;
                let is_same = |read: &ExtentRead| read.lane == lane && read.first == first;
                let known = s.asked.iter().any(is_same);
                if let (Some(reads), false) = (s.reads.get_mut(lane), known) {
                    reads.ops.push(ReadOp {
                        head_at: bytes,
                        ..op
                    });
                    s.asked.push(ExtentRead {
                        lane,
                        first,
                        at: bytes,
                    });
                    bytes += op.len as usize;
                }
            }
            if s.asked.is_empty() {
                return Ok(());
            }
            s.lines.resize(bytes, 0);
            let mut dest = CallDest {
                head: &mut s.lines,
                body: &mut [],
                row_bytes: None,
            };
            read_lanes(self.lanes, &mut s.reads, &mut dest, self.deadline)?;
            let ends = s.asked.iter().skip(1).map(|read| read.at).chain([bytes]);
            for (&ExtentRead { lane, first, at }, end) in s.asked.iter().zip(ends) {
                self.table.learn_extents(lane, first, &s.lines[at..end]);
            }
        }
        let lost = |located: &&LocatedRow| {
            let LocatedRow { lane, loc, .. } = **located;
            self.table.sparse_row(lane, loc).is_err()
        };
        match located.iter().find(lost) {
            // No entry of a released table validates any more: then the server refuses.
            Some(located) => self.gather(&mut vec![located.row]),
            None => Ok(()),
        }
    }

    /// Executes the listed reads on all lanes and validates the rows; indexes of those that fail go to `again`.
    fn read(&mut self, s: &mut RowScratch, attempt: u32) -> Result<(), ClientError> {
        s.again.clear();
        let row_bytes = self.table.row.payload_bytes;
        let hogwild = self.options.mode == PullMode::Hogwild;
        if hogwild {
            for reads in &mut s.reads {
                put_sentinel_last(&mut reads.ops, attempt);
            }
        }
        let mut dest = CallDest {
            head: &mut s.heads,
            body: self.out,
            row_bytes: (!hogwild).then_some(row_bytes),
        };
        read_lanes(self.lanes, &mut s.reads, &mut dest, self.deadline)?;
        for reads in &s.reads {
            let is_doubtful = hogwild && !self.sentinel_matches(reads, &s.heads);
            for row in &reads.rows {
                if is_doubtful || !self.accept(row, &s.heads, row_bytes) {
                    s.again.push(row.row);
                }
            }
        }
        Ok(())
    }

    /// Whether the last row read from a lane, the sentinel, has a matching checksum; true if no row was read. If
    /// so, the table still existed when the unvalidated rows before it were read: their memory was not given to
    /// another table.
    fn sentinel_matches(&self, reads: &LaneReads, heads: &[u8]) -> bool {
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

    /// Judges a row that was read, and counts the verdict. Returns true if it is valid. A stale row's cached
    /// location is removed.
    #[inline]
    fn accept(&mut self, row: &RowRead, heads: &[u8], row_bytes: usize) -> bool {
        let hogwild = self.options.mode == PullMode::Hogwild;
        let (verdict, ver) = match row.unpacked {
            Some(verdict) => (verdict, row.ver),
            None => self.judge_placed(row, heads, row_bytes),
        };
        if verdict == Verdict::Valid {
            self.seen.add(ver.counter());
        }
        match verdict {
            Verdict::Valid if hogwild => self.lanes.counters.rows_hogwild += 1,
            Verdict::Valid => self.lanes.counters.rows_consistent += 1,
            Verdict::Torn => {}
            Verdict::Stale => {
                self.lanes.counters.stale_hints += 1;
                self.table.locations.forget(row.key);
            }
        }
        verdict == Verdict::Valid
    }

    /// Judges a row by its header in `heads` and its payload in `out`. In mode `Hogwild` only the header is checked.
    fn judge_placed(&self, row: &RowRead, heads: &[u8], row_bytes: usize) -> (Verdict, RowVersion) {
        let at = row.row as usize;
        let (Some(head), Some(payload)) = (
            heads
                .get(at * ROW_HEADER_BYTES..)
                .and_then(|h| h.first_chunk::<ROW_HEADER_BYTES>()),
            self.out.get(at * row_bytes..(at + 1) * row_bytes),
        ) else {
            return (Verdict::Torn, RowVersion::default());
        };
        let verdict = match self.options.mode {
            PullMode::Hogwild => row.judge_unvalidated(head),
            _ => row.verify(head, payload),
        };
        (verdict, RowVersion::of_head(head))
    }

    /// Requests copies of rows (by index in the keys) from their servers, and blocks until they are in `out`. Sorts
    /// `rows` by lane. The versions of a pull that calls it are unknown from then on.
    fn gather(&mut self, rows: &mut Vec<u32>) -> Result<(), ClientError> {
        self.seen.lose();
        for &row in &*rows {
            self.lane(row)?;
        }
        rows.sort_by_key(|&row| self.lane(row).unwrap_or_default());
        let create = self.options.missing == Missing::Create;
        let row_bytes = self.table.row.payload_bytes;
        let (table, out) = (&*self.table, &mut *self.out);
        let place = |row: u32, bytes: &[u8]| {
            let at = row as usize * row_bytes;
            if let Some(to) = out.get_mut(at..at + row_bytes) {
                to.copy_from_slice(bytes);
            }
        };
        self.lanes
            .gather_rows(table, self.keys, rows, create, self.deadline, place)
    }
}

/// Protocol error for a location that names an extent beyond the server's.
#[cold]
fn invalid_location(server: &str, loc: RowLocation, number: u16) -> ClientError {
    ClientError::Protocol {
        server: server.to_owned(),
        what: format!(
            "location {:#x}, in extent {number} that there is not",
            loc.0
        ),
    }
}

/// Moves one read to the end of the list, behind a fence, as the sentinel: the one row of a Hogwild pull with a
/// validated checksum. Each attempt takes another row, since a frequently written row may never validate.
fn put_sentinel_last(ops: &mut [ReadOp], attempt: u32) {
    let Some(last) = ops.len().checked_sub(1) else {
        return;
    };
    ops.swap(last - attempt as usize % ops.len(), last);
    if let Some(op) = ops.last_mut() {
        op.fence = true;
    }
}

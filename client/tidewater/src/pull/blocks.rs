// long: all modes of a pull share windows, lists and retries.

//! Pulls of element ranges from range tables.

use std::time::Duration;

use tidewater_lanes::fabric::RemoteAddr;
use tidewater_lanes::num::size;
use tidewater_protocol::layout::dense::{BlockLayout, TaggedU32};
use tidewater_protocol::layout::lines::SnapshotLine;
use tidewater_protocol::layout::{LINE_BYTES, line_from_bytes};
use tidewater_protocol::limits::PULL_RETRIES_MAX;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_runtime::clock::Deadline;

use super::async_ranges::AsyncRange;
use super::batched_ranges::{CONSISTENT, Stage, Window, WindowReads};
use super::{PullMode, Pulled, Seen};
use crate::error::ClientError;
use crate::lanes::Lanes;
use crate::table::state::{DensePart, TableState};

/// Largest number of blocks in a window, which is one read of payload. A writer disturbs larger windows more often.
const WINDOW_BLOCKS: u64 = 16;
/// Pause between two attempts to read a partition's snapshot. An applier makes a partition's next version the newest
/// within microseconds, but may have to wait for a core first.
const SNAPSHOT_PAUSE: Duration = Duration::from_micros(50);
/// Number of failed snapshot attempts after which the client asks the server whether the table still exists.
const SNAPSHOT_ASKS: u32 = 16;

/// Run of consecutive elements of a range inside one partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct RangePart {
    pub(super) part: DensePart,
    /// Number of the partition's first block in the table.
    base: u64,
    /// Element range `[first, end)` of the table.
    pub(super) first: u64,
    pub(super) end: u64,
}

/// Selects the version (tick) of a table with snapshots that a pull reads.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Want<'a> {
    /// The newest that all partitions have.
    Newest,
    /// The version of this number.
    At(u64),
    /// A pinned version; `buffers` has the number of its snapshot buffer by lane, `None` at lanes without a pin.
    Pinned {
        version: u64,
        buffers: &'a [Option<usize>],
    },
}

/// Read parameters of a range: mode, and the version for a snapshot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading<'a> {
    pub(crate) mode: PullMode,
    /// The version, for a snapshot.
    pub(crate) want: Want<'a>,
}

/// State of a piece (run of elements in one partition) during a pull of a snapshot: its newest snapshot record, and
/// the version of its elements in the caller's memory.
#[derive(Debug, Clone, Copy, Default)]
struct PieceTry {
    line: Option<SnapshotLine>,
    version: Option<u64>,
}

/// Work lists of a pull of a snapshot: the pieces to read, their windows, and the state of all pieces.
struct PieceLists<'a> {
    /// Pieces that the current attempt reads; each attempt lists them again.
    todo: &'a mut Vec<RangePart>,
    /// Windows of the pieces that are read next.
    windows: &'a mut Vec<RangePart>,
    /// State of all pieces.
    tries: &'a mut Vec<PieceTry>,
}

/// Buffers of range pulls, kept between calls so that a warm call allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct BlockScratch {
    pieces: Vec<RangePart>,
    todo: Vec<RangePart>,
    again: Vec<RangePart>,
    /// State of each piece of a snapshot.
    tries: Vec<PieceTry>,
    pub(super) reads: WindowReads,
}

/// Pulls the elements of a range table from `first` on into `out`, as many as it holds, and blocks until they are
/// there. Returns the versions read. Fails for a table of rows or a range past its end. After another error `out` may
/// be partly overwritten.
pub(crate) fn pull(
    lanes: &mut Lanes,
    table: &TableState,
    scratch: &mut BlockScratch,
    first: u64,
    out: &mut [u8],
    how: Reading<'_>,
    deadline: Deadline,
) -> Result<Pulled, ClientError> {
    lanes.counters.pulls += 1;
    lanes.counters.bytes_pulled += out.len() as u64;
    let Some((layout, _)) = table.blocks() else {
        return Err(ClientError::Argument {
            op: "pull_range",
            table: table.name().to_owned(),
            what: "the table has rows; pull them with pull_rows".into(),
        });
    };
    let mut pieces = std::mem::take(&mut scratch.pieces);
    pieces.clear();
    let mut pull = BlockPull {
        lanes,
        layout,
        table,
        scratch,
        deadline,
    };
    let done = cut(table, first, out.len(), &mut pieces)
        .and_then(|()| pull.pieces(&pieces, first, out, how));
    scratch.pieces = pieces;
    done
}

/// Starts an asynchronous pull of a range: posts the reads of its windows in the modes `Consistent` and `Hogwild`.
/// In other modes, and for tables with snapshots, it posts nothing and leaves all of it to [`finish`].
pub(super) fn start(
    lanes: &mut Lanes,
    table: &TableState,
    scratch: &mut BlockScratch,
    range: &mut AsyncRange,
    deadline: Deadline,
) -> Result<(), ClientError> {
    let Some((layout, _)) = table.blocks() else {
        unreachable!("{} has been found to be by ranges", table.name());
    };
    let (mut pieces, mut windows) = (std::mem::take(&mut scratch.pieces), Vec::new());
    pieces.clear();
    let mut pull = BlockPull {
        lanes,
        layout,
        table,
        scratch,
        deadline,
    };
    let cut = cut(table, range.first, range.bytes, &mut pieces);
    let posted = cut.and_then(|()| {
        let twice = pieces.iter().any(|piece| piece.part.snapshot.is_some());
        let reads = matches!(range.options.mode, PullMode::Consistent | PullMode::Hogwild);
        range.is_unposted = twice || !reads;
        if !range.is_unposted {
            cut_windows(&pieces, layout.block_elements(), &mut windows);
        }
        range.post(&mut pull, &windows)
    });
    scratch.pieces = pieces;
    posted
}

/// Finishes an asynchronous pull of a range: blocks until its elements are in `out`.
pub(super) fn finish(
    lanes: &mut Lanes,
    table: &TableState,
    scratch: &mut BlockScratch,
    range: &mut AsyncRange,
    out: &mut [u8],
    deadline: Deadline,
) -> Result<(), ClientError> {
    let Some((layout, _)) = table.blocks().filter(|_| !range.is_unposted) else {
        let how = Reading {
            mode: range.options.mode,
            want: Want::Newest,
        };
        return pull(lanes, table, scratch, range.first, out, how, deadline).map(drop);
    };
    let mut pull = BlockPull {
        lanes,
        layout,
        table,
        scratch,
        deadline,
    };
    range.finish(&mut pull, out)?;
    lanes.counters.pulls += 1;
    lanes.counters.bytes_pulled += out.len() as u64;
    Ok(())
}

/// Newest version that all partitions of a range have, from their snapshot records. Blocks while a record is being
/// written, up to `deadline`; `None` for an empty range.
pub(crate) fn newest_version(
    lanes: &mut Lanes,
    table: &TableState,
    scratch: &mut BlockScratch,
    first: u64,
    bytes: usize,
    deadline: Deadline,
) -> Result<Option<u64>, ClientError> {
    let mut pieces = Vec::new();
    cut(table, first, bytes, &mut pieces)?;
    let Some((layout, _)) = table.blocks().filter(|_| !pieces.is_empty()) else {
        return Ok(None);
    };
    let mut pull = BlockPull {
        lanes,
        layout,
        table,
        scratch,
        deadline,
    };
    let (mut todo, mut tries) = (Vec::new(), vec![PieceTry::default(); pieces.len()]);
    for attempt in 1u32.. {
        pull.read_records(&pieces, first, &mut [], &mut todo, &mut tries)?;
        if let Some(newest) = newest_of_all(&tries) {
            return Ok(Some(newest));
        }
        if attempt % SNAPSHOT_ASKS == 0 {
            pull.check_exists(&pieces, &tries)?;
        }
        if deadline.passed() {
            break;
        }
        pull.lanes.sleep_briefly(SNAPSHOT_PAUSE);
    }
    Err(ClientError::Deadline {
        op: "look at the version",
        missing: format!("snapshot records of table \"{}\"", table.name()),
    })
}

/// Newest version that all pieces have: the least clock of their snapshot records. `None` if a record was not read,
/// or there is no piece.
fn newest_of_all(tries: &[PieceTry]) -> Option<u64> {
    let newest = |tried: &PieceTry| tried.line.map(|line| line.min_clock);
    tries.iter().map(newest).min().flatten()
}

/// Index in `pieces` (sorted by element) of the piece that a window lies in; the caller cut the window from one of
/// them.
fn number_of(pieces: &[RangePart], window: &RangePart) -> usize {
    pieces.partition_point(|piece| piece.end <= window.first)
}

/// Cuts the range of `bytes` bytes from element `first` on into one piece for each partition, and appends them to
/// `pieces`. Fails if it passes the end of the table.
fn cut(
    table: &TableState,
    first: u64,
    bytes: usize,
    pieces: &mut Vec<RangePart>,
) -> Result<(), ClientError> {
    let argument = |what: String| ClientError::Argument {
        op: "pull_range",
        table: table.name().to_owned(),
        what,
    };
    let Some((layout, ranges)) = table.blocks() else {
        return Err(argument(
            "it is no range table; pull its rows by key".into(),
        ));
    };
    let elements = (bytes / layout.element_bytes) as u64;
    let end = first
        .checked_add(elements)
        .filter(|&end| end <= layout.elements);
    let Some(end) = end else {
        let have = layout.elements;
        return Err(argument(format!(
            "elements {first}+{elements} of a table of {have}"
        )));
    };
    let mut at = first;
    while at < end {
        let block = at / layout.block_elements();
        let partition = ranges.part_of(block);
        let stop = ranges.start(partition + 1) * layout.block_elements();
        let part = table.dense.get(partition as usize).copied().flatten();
        let part = part.ok_or_else(|| argument(format!("partition {partition} is unknown")))?;
        let base = ranges.start(partition);
        let stop = end.min(stop);
        pieces.push(RangePart {
            part,
            base,
            first: at,
            end: stop,
        });
        at = stop;
    }
    Ok(())
}

pub(super) struct BlockPull<'a> {
    pub(super) lanes: &'a mut Lanes,
    pub(super) layout: BlockLayout,
    table: &'a TableState,
    pub(super) scratch: &'a mut BlockScratch,
    pub(super) deadline: Deadline,
}

impl BlockPull<'_> {
    fn pieces(
        &mut self,
        pieces: &[RangePart],
        first: u64,
        out: &mut [u8],
        Reading { mode, want }: Reading<'_>,
    ) -> Result<Pulled, ClientError> {
        // A table with snapshots has two or more copies, and only its snapshot record names the front one. A
        // reader that ignores the record gets an older tick whenever it reads another copy.
        let twice = pieces.iter().any(|piece| piece.part.snapshot.is_some());
        if mode == PullMode::Gather {
            self.gather(pieces, first, out)?;
            return Ok(Pulled::default());
        }
        let mut todo = std::mem::take(&mut self.scratch.todo);
        let mut again = std::mem::take(&mut self.scratch.again);
        let done = if twice || mode == PullMode::Snapshot {
            self.snapshot(pieces, first, out, &mut todo, &mut again, want)
        } else if mode == PullMode::Hogwild {
            self.unchecked(pieces, first, out, &mut todo, &mut again)
                .map(|()| Pulled::default())
        } else {
            self.consistent(pieces, first, out, &mut todo, &mut again)
        };
        (self.scratch.todo, self.scratch.again) = (todo, again);
        done
    }

    /// Reads pieces again as a blocking pull of mode `Consistent`: every block is one committed version.
    pub(super) fn read_again(
        &mut self,
        pieces: &[RangePart],
        first: u64,
        out: &mut [u8],
    ) -> Result<(), ClientError> {
        let mut todo = std::mem::take(&mut self.scratch.todo);
        let mut again = std::mem::take(&mut self.scratch.again);
        let read = self.consistent(pieces, first, out, &mut todo, &mut again);
        (self.scratch.todo, self.scratch.again) = (todo, again);
        read.map(drop)
    }

    /// Offset in bytes of an element from the start of its partition's first block.
    fn offset(&self, piece: &RangePart, element: u64) -> u64 {
        (element - piece.base * self.layout.block_elements()) * self.layout.element_bytes as u64
    }

    /// Payload size of a piece in bytes.
    pub(super) fn bytes(&self, piece: &RangePart) -> usize {
        size(piece.end - piece.first) * self.layout.element_bytes
    }

    /// Number of blocks that a piece touches, also in part.
    pub(super) fn blocks_of(&self, piece: &RangePart) -> usize {
        let per_block = self.layout.block_elements();
        size((piece.end - 1) / per_block + 1 - piece.first / per_block)
    }

    /// Remote address of the version words of a piece's blocks, 8 bytes each. A partition without them is a protocol
    /// error.
    pub(super) fn words_of(&self, piece: &RangePart) -> Result<RemoteAddr, ClientError> {
        let versions = piece.part.versions;
        let versions = versions.ok_or_else(|| self.protocol_error("no version words"))?;
        let block = piece.first / self.layout.block_elements() - piece.base;
        Ok(RemoteAddr {
            key: versions.key,
            addr: versions.addr + block * 8,
        })
    }

    /// Remote address of the snapshot record of a piece's partition. Fails if the table has no snapshots.
    pub(super) fn record_of(&self, piece: &RangePart) -> Result<RemoteAddr, ClientError> {
        piece.part.snapshot.ok_or_else(|| ClientError::Argument {
            op: "pull_range",
            table: self.table.name().to_owned(),
            what: "the table has no snapshots; create it with .snapshot()".into(),
        })
    }

    /// Remote address of a piece's first element.
    pub(super) fn payload_of(&self, piece: &RangePart) -> RemoteAddr {
        let payload = piece.part.payload;
        RemoteAddr {
            key: payload.key,
            addr: payload.addr + self.offset(piece, piece.first),
        }
    }

    /// Reads pieces until every block is validated: equal version words before and after its payload. After
    /// `PULL_RETRIES_MAX` repetitions, the servers copy the remaining blocks into replies. If a reply cannot
    /// hold a block, it repeats the reads until the deadline.
    fn consistent(
        &mut self,
        pieces: &[RangePart],
        first: u64,
        out: &mut [u8],
        todo: &mut Vec<RangePart>,
        again: &mut Vec<RangePart>,
    ) -> Result<Pulled, ClientError> {
        let per_block = self.layout.block_elements();
        cut_windows(pieces, per_block, todo);
        let blocks: usize = todo.iter().map(|window| self.blocks_of(window)).sum();
        self.lanes.counters.blocks_consistent += blocks as u64;
        let mut seen = Seen::default();
        // A reply of a small ring may not hold a block: then reads go on.
        let copies = self.lanes.reply_bytes_max() >= self.layout.element_bytes * size(per_block);
        let mut reads = 0;
        while reads <= PULL_RETRIES_MAX || (!copies && !self.deadline.passed()) {
            reads += 1;
            again.clear();
            self.read_windows(todo, &CONSISTENT, first, out, |pull, window| {
                pull.judge(window, again, &mut seen);
            })?;
            if again.is_empty() {
                return Ok(seen.pulled());
            }
            self.lanes.counters.torn_rejected += again.len() as u64;
            self.lanes.counters.retries += again.len() as u64;
            std::mem::swap(todo, again);
        }
        self.lanes.counters.gather_fallbacks += 1;
        self.gather(todo, first, out)?;
        seen.lose();
        Ok(seen.pulled())
    }

    /// Validates a window: compares the version words of each block before and after its payload. Blocks with a torn,
    /// odd (being written) or changed word go to `again`, one piece each; the store counts of the valid ones go to
    /// `seen`, which holds the versions that the pull returns.
    pub(super) fn judge(&self, window: &Window, again: &mut Vec<RangePart>, seen: &mut Seen) {
        let per_block = self.layout.block_elements();
        let piece = &window.part;
        let first_block = piece.first / per_block;
        for block in 0..self.blocks_of(piece) {
            let before = self.word(window.before + block * 8);
            let after = self.word(window.after + block * 8);
            if before.accepts(after, piece.part.salt) {
                seen.add(before.stores());
            } else {
                let from = (first_block + block as u64) * per_block;
                again.push(RangePart {
                    first: from.max(piece.first),
                    end: (from + per_block).min(piece.end),
                    ..*piece
                });
            }
        }
    }

    /// Version word (of a block's seqlock) at byte offset `at` of the head buffer, where reads of version words are
    /// placed. Past the end of the buffer it returns 0.
    fn word(&self, at: usize) -> TaggedU32 {
        let bytes = self.scratch.reads.head(at).and_then(|b| b.first_chunk());
        TaggedU32(bytes.map_or(0, |b| u64::from_le_bytes(*b)))
    }

    /// Reads pieces without validation (Hogwild): blocks may mix versions. The version word read after each window
    /// shows whether the table still exists; otherwise the server copies the window, or refuses.
    fn unchecked(
        &mut self,
        pieces: &[RangePart],
        first: u64,
        out: &mut [u8],
        todo: &mut Vec<RangePart>,
        again: &mut Vec<RangePart>,
    ) -> Result<(), ClientError> {
        const STAGES: [Stage; 2] = [Stage::Payload, Stage::WordsAgain];
        cut_windows(pieces, self.layout.block_elements(), todo);
        again.clear();
        self.read_windows(todo, &STAGES, first, out, |pull, window| {
            if pull.word(window.after).seq(window.part.part.salt).is_some() {
                pull.lanes.counters.blocks_hogwild += pull.blocks_of(&window.part) as u64;
            } else {
                again.push(window.part);
            }
        })?;
        if again.is_empty() {
            return Ok(());
        }
        // The word is torn, or the table was released: the server knows.
        self.gather(again, first, out)
    }

    fn gather(
        &mut self,
        pieces: &[RangePart],
        first: u64,
        out: &mut [u8],
    ) -> Result<(), ClientError> {
        self.lanes
            .gather_ranges(self.table, pieces, first, out, self.deadline)
    }

    /// Reads all pieces at one version, and returns that version. Repeats until the deadline if the partitions move
    /// on meanwhile. With `Want::At` it fails with `VersionGone` where a partition does not hold that version.
    fn snapshot(
        &mut self,
        pieces: &[RangePart],
        first: u64,
        out: &mut [u8],
        todo: &mut Vec<RangePart>,
        windows: &mut Vec<RangePart>,
        want: Want<'_>,
    ) -> Result<Pulled, ClientError> {
        if pieces.is_empty() {
            return Ok(Pulled::default());
        }
        let mut tries = std::mem::take(&mut self.scratch.tries);
        tries.clear();
        tries.resize(pieces.len(), PieceTry::default());
        let mut lists = PieceLists {
            todo,
            windows,
            tries: &mut tries,
        };
        let done = self.snapshot_until_equal(pieces, first, out, &mut lists, want);
        self.scratch.tries = tries;
        let blocks = (out.len() as u64).div_ceil(self.layout.block_bytes as u64);
        done.map(|version| {
            self.lanes.counters.blocks_snapshot += blocks;
            Pulled::of_version(version)
        })
    }

    fn snapshot_until_equal(
        &mut self,
        pieces: &[RangePart],
        first: u64,
        out: &mut [u8],
        lists: &mut PieceLists<'_>,
        want: Want<'_>,
    ) -> Result<u64, ClientError> {
        for attempt in 1u32.. {
            let tried = match want {
                Want::Pinned { version, buffers } => {
                    self.try_pinned(pieces, first, out, lists, version, buffers)
                }
                _ => self.try_version(pieces, first, out, lists, want),
            };
            match tried {
                Ok(Some(version)) => return Ok(version),
                Ok(None) => {}
                // This read was not slow: all tries together were.
                Err(ClientError::Deadline { .. }) if attempt > 1 => break,
                Err(e) => return Err(e),
            }
            self.lanes.counters.retries += 1;
            if attempt % SNAPSHOT_ASKS == 0 {
                self.check_exists(pieces, lists.tries)?;
            }
            if self.deadline.passed() {
                break;
            }
            self.lanes.sleep_briefly(SNAPSHOT_PAUSE);
        }
        let newest: Vec<_> = lists
            .tries
            .iter()
            .map(|t| t.line.map(|line| line.min_clock))
            .collect();
        Err(ClientError::Deadline {
            op: "pull of a snapshot",
            missing: format!(
                "partitions at one version, not {newest:?}: ticks come faster than this reader reads, \
                 or a worker that was lost had ticked at some of them; pin a version, or give the table \
                 more versions than {}",
                self.table.spec.versions
            ),
        })
    }

    /// Asks the server about a piece with an unreadable snapshot record: the record is being written, or the table
    /// was released. In the latter case the server's refusal is the error.
    #[cold]
    fn check_exists(
        &mut self,
        pieces: &[RangePart],
        tries: &[PieceTry],
    ) -> Result<(), ClientError> {
        let unread = pieces.iter().zip(tries).find(|(_, t)| t.line.is_none());
        let Some((piece, _)) = unread else {
            return Ok(());
        };
        let one = RangePart {
            end: piece.first + 1,
            ..*piece
        };
        let mut element = vec![0; self.layout.element_bytes];
        self.gather(&[one], piece.first, &mut element)
    }

    /// Reads the snapshot records of all pieces into `tries`, and blocks until they have arrived; a torn record gives
    /// `None` there. `out` is not written, `todo` is scratch memory.
    fn read_records(
        &mut self,
        pieces: &[RangePart],
        first: u64,
        out: &mut [u8],
        todo: &mut Vec<RangePart>,
        tries: &mut [PieceTry],
    ) -> Result<(), ClientError> {
        todo.clear();
        todo.extend_from_slice(pieces);
        todo.sort_unstable_by_key(|piece| (piece.part.lane, piece.first));
        self.read_windows(todo, &[Stage::Record], first, out, |pull, window| {
            let line = pull.record(window.before, window.part.part.salt);
            tries[number_of(pieces, &window.part)].line = line;
        })
    }

    /// Makes one attempt to read all pieces at one version: the wanted one, or the newest that all partitions have.
    /// Pieces that already have it are not read. `None` if the version was replaced meanwhile or a record is being
    /// written: the caller tries again. A version of `Want::At` that a partition does not hold is an error.
    fn try_version(
        &mut self,
        pieces: &[RangePart],
        first: u64,
        out: &mut [u8],
        lists: &mut PieceLists<'_>,
        want: Want<'_>,
    ) -> Result<Option<u64>, ClientError> {
        let PieceLists {
            todo,
            windows,
            tries,
        } = lists;
        self.read_records(pieces, first, out, todo, tries)?;
        let Some(newest) = newest_of_all(tries) else {
            return Ok(None);
        };
        let version = match want {
            Want::At(version) => version,
            _ => newest,
        };
        todo.clear();
        for (piece, tried) in pieces.iter().zip(tries.iter_mut()) {
            if tried.version == Some(version) {
                continue;
            }
            tried.version = Some(version);
            let buffer = tried
                .line
                .and_then(|line| line.buffer_of(line.epoch_of(version)));
            match (buffer, tried.line, want) {
                (Some(buffer), ..) => todo.push(self.in_buffer(piece, buffer)?),
                (None, Some(line), Want::At(_)) => return Err(self.gone(version, &line)),
                // Another partition is behind: its record is read again.
                _ => tried.version = None,
            }
        }
        cut_windows(todo, self.layout.block_elements(), windows);
        let stages = [Stage::Payload, Stage::RecordAgain];
        self.read_windows(windows, &stages, first, out, |pull, window| {
            let tried = &mut tries[number_of(pieces, &window.part)];
            let after = pull.record(window.after, window.part.part.salt);
            let is_kept = after.is_some_and(|after| after.holds(after.epoch_of(version)));
            if !is_kept && !on(Mutant::VersionUnchecked) {
                tried.version = None;
            }
        })?;
        let is_complete = tries.iter().all(|tried| tried.version == Some(version));
        Ok(is_complete.then_some(version))
    }

    /// Reads all pieces of a pinned version; no applier writes its buffers. `None` if a snapshot record is torn: the
    /// caller tries again. A record that validates shows that the table still exists.
    fn try_pinned(
        &mut self,
        pieces: &[RangePart],
        first: u64,
        out: &mut [u8],
        lists: &mut PieceLists<'_>,
        version: u64,
        buffers: &[Option<usize>],
    ) -> Result<Option<u64>, ClientError> {
        let PieceLists {
            todo,
            windows,
            tries,
        } = lists;
        todo.clear();
        for piece in pieces {
            let buffer = buffers.get(piece.part.lane).copied().flatten();
            let buffer = buffer.ok_or_else(|| self.protocol_error("a partition without a pin"))?;
            todo.push(self.in_buffer(piece, buffer)?);
        }
        cut_windows(todo, self.layout.block_elements(), windows);
        for tried in tries.iter_mut() {
            tried.version = Some(version);
        }
        let stages = [Stage::Payload, Stage::RecordAgain];
        self.read_windows(windows, &stages, first, out, |pull, window| {
            let tried = &mut tries[number_of(pieces, &window.part)];
            tried.line = pull.record(window.after, window.part.part.salt);
            tried.version = tried.version.filter(|_| tried.line.is_some());
        })?;
        let is_complete = tries.iter().all(|tried| tried.version.is_some());
        Ok(is_complete.then_some(version))
    }

    /// Copy of a piece with the payload address of snapshot buffer number `buffer` of its partition. Fails with a
    /// protocol error if the table has no such buffer.
    fn in_buffer(&self, piece: &RangePart, buffer: usize) -> Result<RangePart, ClientError> {
        let spec = &self.table.spec;
        let payload = piece.part.buffer(buffer, spec, self.layout.block_bytes);
        let mut piece = *piece;
        piece.part.payload =
            payload.ok_or_else(|| self.protocol_error("a buffer that it does not have"))?;
        Ok(piece)
    }

    #[cold]
    fn gone(&self, version: u64, line: &SnapshotLine) -> ClientError {
        let (oldest, newest) = line.versions();
        ClientError::VersionGone {
            table: self.table.name().to_owned(),
            version,
            oldest,
            newest,
        }
    }

    /// Snapshot record (the versions that a partition's buffers hold) at byte offset `at` of the head buffer; `None`
    /// if its checksum, keyed by `salt`, does not match, as in a torn one.
    fn record(&self, at: usize, salt: u64) -> Option<SnapshotLine> {
        let bytes = self.scratch.reads.head(at)?.first_chunk::<LINE_BYTES>()?;
        SnapshotLine::from_line(&line_from_bytes(bytes), salt)
    }

    fn protocol_error(&self, what: &str) -> ClientError {
        ClientError::Protocol {
            server: "a server".into(),
            what: format!("table \"{}\": {what}", self.table.name()),
        }
    }
}

/// Cuts pieces into windows of at most `WINDOW_BLOCKS` blocks. The windows replace the content of `windows`, sorted by
/// lane and then by first element. A window ends at a block boundary or at the end of its piece, so that each block
/// of a piece is validated once.
fn cut_windows(pieces: &[RangePart], per_block: u64, windows: &mut Vec<RangePart>) {
    windows.clear();
    for piece in pieces {
        let mut rest = *piece;
        while rest.first < rest.end {
            let longest = (rest.first / per_block + WINDOW_BLOCKS) * per_block;
            let end = match on(Mutant::LongReadWraps) {
                true => rest.end,
                false => rest.end.min(longest),
            };
            windows.push(RangePart { end, ..rest });
            rest.first = end;
        }
    }
    windows.sort_unstable_by_key(|window| (window.part.lane, window.first));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableBuilder;
    use crate::pull::batched_ranges::payload_read;

    /// Reads cover the range, one behind the other, whatever its length: no bit of one is lost. (The
    /// memory of such a table is not needed for that.)
    #[test]
    fn ranges_past_4_gib_are_read_whole() {
        let elements = 3u64 << 30;
        for (first, count) in [(0, elements), (5, (1 << 30) + (1 << 14)), (elements - 9, 9)] {
            let spec = TableBuilder::range::<f32>("t", elements / 1024, 1024);
            let spec = spec.block_bytes(256 << 10).partitions(1);
            let table = TableState::of_blocks(spec.spec());
            let (mut pieces, mut windows) = (Vec::new(), Vec::new());
            cut(&table, first, size(count) * 4, &mut pieces).unwrap();
            let (layout, _) = table.blocks().unwrap();
            cut_windows(&pieces, layout.block_elements(), &mut windows);
            let mut at = first;
            for piece in &windows {
                assert_eq!(piece.first, at);
                let mut from = piece.part.payload;
                from.addr += at * 4;
                let bytes = size(piece.end - piece.first) * 4;
                let (op, skew) = payload_read(from, bytes, 0, 8);
                assert_eq!(op.len as usize, bytes + skew, "bytes of a read");
                assert_eq!(op.from.addr + skew as u64, from.addr);
                let body = (op.len - op.head_len) as usize;
                assert_eq!(op.body_at + body, 8 + bytes, "its place");
                at = piece.end;
            }
            assert_eq!(at, first + count, "where the reads end");
        }
    }
}

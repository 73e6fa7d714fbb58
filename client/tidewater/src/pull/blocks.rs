//! Pulls of element ranges from range tables.

use std::time::Duration;

use tidewater_lanes::fabric::{ReadOp, RemoteAddr};
use tidewater_lanes::num::{count, size};
use tidewater_protocol::layout::dense::{BlockLayout, TaggedU32};
use tidewater_protocol::layout::lines::SnapshotLine;
use tidewater_protocol::layout::{LINE_BYTES, line_from_bytes};
use tidewater_protocol::limits::PULL_RETRIES_MAX;
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_runtime::clock::Deadline;

use super::batched_ranges::word_op;
use super::rows::read_ops;
use super::{PullMode, PullOptions, batched_ranges};
use crate::error::ClientError;
use crate::lanes::Lanes;
use crate::table::state::{DensePart, TableState};

/// Blocks of one window: version words, payload, version words again. A writer disturbs larger windows
/// more often.
const WINDOW_BLOCKS: u64 = 16;
/// Pause between two tries of a snapshot. A partition is flipped in some microseconds, but its applier
/// may have to wait for a core first.
const SNAPSHOT_NAP: Duration = Duration::from_micros(50);
/// Bytes of a piece, which is one read where it is not cut into windows. Far below the 4 GiB limit of a
/// read.
const PIECE_BYTES: u64 = 1 << 30;
/// Number of tries after which the server is asked whether the table exists.
const SNAPSHOT_ASKS: u32 = 16;

/// A run of elements inside one partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct RangePart {
    pub(super) part: DensePart,
    /// First block of the partition.
    base: u64,
    /// Element range `[first, end)` of the table.
    pub(super) first: u64,
    end: u64,
}

/// Memory of a pull, kept between calls so that a warm one allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct BlockScratch {
    pieces: Vec<RangePart>,
    pub(super) head: Vec<u8>,
    spare: Vec<u8>,
    todo: Vec<RangePart>,
    again: Vec<RangePart>,
}

/// Pulls elements `first ..` of a range table into `out`.
pub(crate) fn pull(
    lanes: &mut Lanes,
    table: &TableState,
    scratch: &mut BlockScratch,
    first: u64,
    out: &mut [u8],
    options: PullOptions,
    deadline: Deadline,
) -> Result<(), ClientError> {
    lanes.counters.pulls += 1;
    lanes.counters.bytes_pulled += out.len() as u64;
    let Some((layout, _)) = table.blocks() else {
        return Err(ClientError::Argument {
            op: "pull_dense",
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
        .and_then(|()| pull.pieces(&pieces, first, out, options.mode));
    scratch.pieces = pieces;
    done
}

/// Cuts the range at partitions, and at blocks so that a piece has at most [`PIECE_BYTES`].
fn cut(
    table: &TableState,
    first: u64,
    bytes: usize,
    pieces: &mut Vec<RangePart>,
) -> Result<(), ClientError> {
    let argument = |what: String| ClientError::Argument {
        op: "pull_dense",
        table: table.name().to_owned(),
        what,
    };
    let Some((layout, ranges)) = table.blocks() else {
        return Ok(());
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
        let longest = (block + PIECE_BYTES / layout.block_bytes as u64) * layout.block_elements();
        let stop = if on(Mutant::LongReadWraps) {
            end.min(stop)
        } else {
            end.min(stop).min(longest)
        };
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

/// The read of `len` bytes, and the number of bytes before them that it also reads. Reads begin at
/// whole words; an element of four bytes need not.
fn payload_read(at: RemoteAddr, len: usize) -> Result<(ReadOp, usize), ClientError> {
    let skew = at.addr % 8;
    let from = RemoteAddr {
        addr: at.addr - skew,
        ..at
    };
    let len = len + size(skew);
    let len = if on(Mutant::LongReadWraps) {
        len & u32::MAX as usize
    } else {
        len
    };
    Ok((ReadOp::of_body(from, len)?, size(skew)))
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
        mode: PullMode,
    ) -> Result<(), ClientError> {
        // A table with snapshots has two copies, and only its snapshot record names the front one. A
        // reader that ignores the record gets the tick before the last, every second time.
        let twice = pieces.iter().any(|piece| piece.part.snapshot.is_some());
        if mode == PullMode::Snapshot || twice && mode != PullMode::Gather {
            return self.snapshot(pieces, first, out);
        }
        if mode == PullMode::Consistent {
            return batched_ranges::pull(self, pieces, first, out);
        }
        for piece in pieces {
            let at = size(piece.first - first) * self.layout.element_bytes;
            let bytes = size(piece.end - piece.first) * self.layout.element_bytes;
            let out = out.get_mut(at..at + bytes).unwrap_or_default();
            match mode {
                PullMode::Hogwild => self.unchecked(piece, out)?,
                _ => self.gather(piece, out)?,
            }
        }
        Ok(())
    }

    /// Bytes from the partition's first block to an element.
    fn offset(&self, piece: &RangePart, element: u64) -> u64 {
        (element - piece.base * self.layout.block_elements()) * self.layout.element_bytes as u64
    }

    /// Number of bytes of a piece.
    pub(super) fn bytes(&self, piece: &RangePart) -> usize {
        size(piece.end - piece.first) * self.layout.element_bytes
    }

    /// Number of blocks that a piece touches.
    pub(super) fn blocks_of(&self, piece: &RangePart) -> usize {
        let per_block = self.layout.block_elements();
        size((piece.end - 1) / per_block + 1 - piece.first / per_block)
    }

    /// Address of the version words of a piece's blocks.
    pub(super) fn words_of(&self, piece: &RangePart) -> Result<RemoteAddr, ClientError> {
        let versions = piece.part.versions;
        let versions = versions.ok_or_else(|| self.nonsense("no version words"))?;
        let block = piece.first / self.layout.block_elements() - piece.base;
        Ok(RemoteAddr {
            key: versions.key,
            addr: versions.addr + block * 8,
        })
    }

    /// The windows of a piece. They end at block boundaries, so that a block is verified once.
    pub(super) fn windows(&self, piece: &RangePart) -> impl Iterator<Item = RangePart> + use<> {
        let (per_block, mut rest) = (self.layout.block_elements(), *piece);
        std::iter::from_fn(move || {
            let end = (rest.first / per_block + WINDOW_BLOCKS) * per_block;
            let window = RangePart {
                end: end.min(rest.end),
                ..rest
            };
            rest.first = window.end;
            (window.first < window.end).then_some(window)
        })
    }

    pub(super) fn consistent(
        &mut self,
        piece: &RangePart,
        out: &mut [u8],
    ) -> Result<(), ClientError> {
        let mut out = out;
        for window in self.windows(piece) {
            let (here, rest) = out.split_at_mut(self.bytes(&window));
            self.window(&window, here)?;
            out = rest;
        }
        Ok(())
    }

    /// Reads one window until every block of it is valid, or has the server copy it.
    pub(super) fn window(&mut self, piece: &RangePart, out: &mut [u8]) -> Result<(), ClientError> {
        let blocks = piece.first / self.layout.block_elements()
            ..(piece.end - 1) / self.layout.block_elements() + 1;
        let mut todo = std::mem::take(&mut self.scratch.todo);
        let mut again = std::mem::take(&mut self.scratch.again);
        todo.clear();
        todo.push(*piece);
        let done = self.window_until(piece, out, &mut todo, &mut again);
        (self.scratch.todo, self.scratch.again) = (todo, again);
        done?;
        self.lanes.counters.blocks_consistent += blocks.end - blocks.start;
        Ok(())
    }

    /// Reads the pieces in `todo` until none is left; after the last try the server copies them.
    fn window_until(
        &mut self,
        piece: &RangePart,
        out: &mut [u8],
        todo: &mut Vec<RangePart>,
        again: &mut Vec<RangePart>,
    ) -> Result<(), ClientError> {
        let bytes = self.layout.element_bytes;
        let place = |part: &RangePart| {
            let at = size(part.first - piece.first) * bytes;
            at..at + size(part.end - part.first) * bytes
        };
        for _ in 0..=PULL_RETRIES_MAX {
            again.clear();
            for part in &*todo {
                let out = out.get_mut(place(part)).unwrap_or_default();
                self.try_window(part, out, again)?;
            }
            if again.is_empty() {
                return Ok(());
            }
            self.lanes.counters.torn_rejected += again.len() as u64;
            self.lanes.counters.retries += again.len() as u64;
            std::mem::swap(todo, again);
        }
        self.lanes.counters.gather_fallbacks += 1;
        for part in &*todo {
            self.gather(part, out.get_mut(place(part)).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Reads version words, payload, version words, each behind a fence. Blocks with a torn, odd or
    /// changed word go to `again`, one piece each.
    fn try_window(
        &mut self,
        piece: &RangePart,
        out: &mut [u8],
        again: &mut Vec<RangePart>,
    ) -> Result<(), ClientError> {
        let words = self.words_of(piece)?;
        let bytes = 8 * self.blocks_of(piece);
        let (payload, skew) = self.payload_op(piece, piece.part.payload, out.len())?;
        let ops = [
            word_op(words, bytes, 0),
            ReadOp {
                fence: true,
                ..payload
            },
            ReadOp {
                fence: true,
                ..word_op(words, bytes, bytes)
            },
        ];
        self.read(piece.part.lane, &ops, 2 * bytes, skew, out)?;
        self.judge(piece, [0, bytes], again);
        Ok(())
    }

    /// Compares the words of a piece's blocks before and after its payload; `words` are their two
    /// offsets in the head. Invalid blocks go to `again`.
    pub(super) fn judge(&self, piece: &RangePart, words: [usize; 2], again: &mut Vec<RangePart>) {
        let per_block = self.layout.block_elements();
        let first_block = piece.first / per_block;
        let word = |at: usize| {
            let bytes = self
                .scratch
                .head
                .get(at..)
                .and_then(|b| b.first_chunk::<8>());
            TaggedU32(bytes.map_or(0, |b| u64::from_le_bytes(*b)))
        };
        for block in 0..self.blocks_of(piece) {
            let [before, after] = words.map(|at| word(at + block * 8));
            if !before.accepts(after, piece.part.salt) {
                let from = (first_block + block as u64) * per_block;
                again.push(RangePart {
                    first: from.max(piece.first),
                    end: (from + per_block).min(piece.end),
                    ..*piece
                });
            }
        }
    }

    /// Reads the payload without validation. One version word behind it shows whether the table still
    /// exists.
    fn unchecked(&mut self, piece: &RangePart, out: &mut [u8]) -> Result<(), ClientError> {
        let (payload, skew) = self.payload_op(piece, piece.part.payload, out.len())?;
        let word = ReadOp {
            fence: true,
            ..word_op(self.words_of(piece)?, 8, 0)
        };
        self.read(piece.part.lane, &[payload, word], 8, skew, out)?;
        let word = self.scratch.head.first_chunk::<8>();
        let word = TaggedU32(word.map_or(0, |b| u64::from_le_bytes(*b)));
        if word.seq(piece.part.salt).is_none() {
            // The word is torn, or the table was released: the server knows.
            return self.gather(piece, out);
        }
        self.lanes.counters.blocks_hogwild +=
            (out.len() as u64).div_ceil(self.layout.block_bytes as u64);
        Ok(())
    }

    fn gather(&mut self, piece: &RangePart, out: &mut [u8]) -> Result<(), ClientError> {
        self.lanes
            .gather_range(piece.part.lane, self.table, piece.first, out, self.deadline)
    }

    /// Address where a piece's payload begins.
    pub(super) fn payload_at(&self, piece: &RangePart, base: RemoteAddr) -> RemoteAddr {
        RemoteAddr {
            key: base.key,
            addr: base.addr + self.offset(piece, piece.first),
        }
    }

    /// The read of a piece's payload, and the number of bytes before it that it also reads.
    pub(super) fn payload_op(
        &self,
        piece: &RangePart,
        base: RemoteAddr,
        len: usize,
    ) -> Result<(ReadOp, usize), ClientError> {
        payload_read(self.payload_at(piece, base), len)
    }

    fn read(
        &mut self,
        lane: usize,
        ops: &[ReadOp],
        head: usize,
        skew: usize,
        out: &mut [u8],
    ) -> Result<(), ClientError> {
        let BlockScratch {
            head: heads, spare, ..
        } = &mut *self.scratch;
        heads.resize(head, 0);
        if skew == 0 {
            return read_ops(self.lanes, lane, ops, heads, out, self.deadline);
        }
        spare.resize(out.len() + skew, 0);
        read_ops(self.lanes, lane, ops, heads, spare, self.deadline)?;
        out.copy_from_slice(spare.get(skew..).unwrap_or_default());
        Ok(())
    }

    /// Reads every piece as of one epoch.
    fn snapshot(
        &mut self,
        pieces: &[RangePart],
        first: u64,
        out: &mut [u8],
    ) -> Result<(), ClientError> {
        let mut epochs: Vec<Option<u64>> = vec![None; pieces.len()];
        'tries: for attempt in 1u32.. {
            let newest = epochs.iter().flatten().max().copied();
            for (piece, epoch) in pieces.iter().zip(&mut epochs) {
                if epoch.is_none() || *epoch != newest {
                    let at = size(piece.first - first) * self.layout.element_bytes;
                    let len = size(piece.end - piece.first) * self.layout.element_bytes;
                    let out = out.get_mut(at..at + len).unwrap_or_default();
                    *epoch = match self.try_snapshot(piece, out) {
                        // This read was not slow: all tries together were.
                        Err(ClientError::Deadline { .. }) if attempt > 1 => {
                            break 'tries;
                        }
                        tried => tried?,
                    };
                }
            }
            if epochs.iter().all(|e| e.is_some() && *e == epochs[0]) {
                let blocks = (out.len() as u64).div_ceil(self.layout.block_bytes as u64);
                self.lanes.counters.blocks_snapshot += blocks;
                return Ok(());
            }
            self.lanes.counters.retries += 1;
            if attempt % SNAPSHOT_ASKS == 0 {
                self.ask_whether_there(pieces, &epochs)?;
            }
            if self.deadline.passed() {
                break;
            }
            self.lanes.nap(SNAPSHOT_NAP);
        }
        Err(ClientError::Deadline {
            op: "pull of a snapshot",
            missing: format!(
                "partitions at one epoch, not {epochs:?}: ticks come faster than this reader reads, \
                 or a worker that was lost had ticked at some of them"
            ),
        })
    }

    /// A descriptor that does not validate is being written, or its table was released: then the server
    /// refuses.
    #[cold]
    fn ask_whether_there(
        &mut self,
        pieces: &[RangePart],
        epochs: &[Option<u64>],
    ) -> Result<(), ClientError> {
        let unread = pieces.iter().zip(epochs).find(|(_, epoch)| epoch.is_none());
        let Some((piece, _)) = unread else {
            return Ok(());
        };
        let mut element = vec![0; self.layout.element_bytes];
        self.gather(piece, &mut element)
    }

    /// Reads the descriptor, the buffer that it names, and the descriptor again. The buffer of epoch e
    /// is first written again while e + 2 is built.
    fn try_snapshot(
        &mut self,
        piece: &RangePart,
        out: &mut [u8],
    ) -> Result<Option<u64>, ClientError> {
        let (Some(line), Some(back)) = (piece.part.snapshot, piece.part.back) else {
            return Err(ClientError::Argument {
                op: "pull_dense",
                table: self.table.name().to_owned(),
                what: "the table has no snapshots; create it with .snapshot()".into(),
            });
        };
        let desc = |head_at: usize, fence: bool| ReadOp {
            from: line,
            len: count(LINE_BYTES),
            head_len: count(LINE_BYTES),
            head_at,
            body_at: 0,
            fence,
        };
        self.read(piece.part.lane, &[desc(0, false)], LINE_BYTES, 0, &mut [])?;
        let Some(before) = self.snapshot_line(0, piece.part.salt) else {
            return Ok(None);
        };
        let buffer = if before.front % 2 == 0 {
            piece.part.payload
        } else {
            back
        };
        let (payload, skew) = self.payload_op(piece, buffer, out.len())?;
        // Fenced: the payload must not be read before the first descriptor.
        let ops = [
            ReadOp {
                fence: true,
                ..payload
            },
            desc(0, true),
        ];
        self.read(piece.part.lane, &ops, LINE_BYTES, skew, out)?;
        let after = self.snapshot_line(0, piece.part.salt);
        Ok(after
            .filter(|after| before.accepts(after))
            .map(|_| before.front))
    }

    fn snapshot_line(&self, at: usize, salt: u64) -> Option<SnapshotLine> {
        let bytes = self.scratch.head.get(at..)?.first_chunk::<LINE_BYTES>()?;
        SnapshotLine::from_line(&line_from_bytes(bytes), salt)
    }

    fn nonsense(&self, what: &str) -> ClientError {
        ClientError::Protocol {
            server: "a server".into(),
            what: format!("table \"{}\": {what}", self.table.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableBuilder;

    /// Reads cover the range, one behind the other, whatever its length: no bit of one is lost. (The
    /// memory of such a table is not needed for that.)
    #[test]
    fn ranges_past_4_gib_are_read_whole() {
        let elements = 3u64 << 30;
        for (first, count) in [(0, elements), (5, (1 << 30) + (1 << 14)), (elements - 9, 9)] {
            let spec = TableBuilder::blocks::<f32>("t", elements / 1024, 1024);
            let spec = spec.block_bytes(256 << 10).partitions(1);
            let table = TableState::of_blocks(spec.spec());
            let mut pieces = Vec::new();
            cut(&table, first, size(count) * 4, &mut pieces).unwrap();
            let mut at = first;
            for piece in &pieces {
                assert_eq!(piece.first, at);
                let mut from = piece.part.payload;
                from.addr += at * 4;
                let bytes = size(piece.end - piece.first) * 4;
                let (op, skew) = payload_read(from, bytes).unwrap();
                assert_eq!(op.len as usize, bytes + skew, "bytes of a read");
                assert_eq!(op.from.addr + skew as u64, from.addr);
                at = piece.end;
            }
            assert_eq!(at, first + count, "where the reads end");
        }
    }
}

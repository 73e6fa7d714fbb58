//! Range pulls: many windows of all lanes in one round trip.
//!
//! A window is read in stages: version words, payload, version words again. A stage may begin when the one
//! before has completed. Where fences are free ([`fences_are_free`]), the fenced stages of many windows are
//! one list of reads, and a pull is one round trip. Elsewhere each stage is a list of its own, over all
//! windows of a round, and a pull is three round trips: a fence would cost one for each window. Either way
//! the reads of all lanes travel together. Blocks that fail validation are read again.
//!
//! Partitions of one applier are adjacent in memory. Where the reads of two windows meet, at the server
//! and in their destination, they become one read. A table of many small partitions then costs as few
//! packets as one of a single partition.

use std::ops::Range;

use tidewater_bookkeeping::in_flight::lane_bytes;
use tidewater_lanes::fabric::{ReadOp, RemoteAddr, TransportKind};
use tidewater_lanes::num::{count, size};
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::mutants::{Mutant, on};

use super::Seen;
use super::blocks::{BlockPull, RangePart};
use super::lane_reads::{CallDest, LaneReads, read_lanes};
use crate::error::ClientError;

/// Payload bytes of a group of windows, all stages of which stand in one list of reads. In so few bytes, writers
/// rarely change a block between its stages.
const GROUP_BYTES: usize = 256 << 10;

/// Stage of the reads of a window. A read has one to three stages; each begins when the one before has completed.
/// A validated read has version words, payload, version words again ([`CONSISTENT`]). A snapshot table has the
/// snapshot record in place of the version words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Version words of the window's blocks, to [`Window::before`].
    Words,
    /// Snapshot record of the partition, to [`Window::before`].
    Record,
    /// The elements, to the caller's memory.
    Payload,
    /// Version words, to [`Window::after`].
    WordsAgain,
    /// Snapshot record, to [`Window::after`].
    RecordAgain,
}

/// Stages of a validated read: version words, payload, version words again (as in a seqlock). A block is untorn
/// if its two words are equal and even.
pub(super) const CONSISTENT: [Stage; 3] = [Stage::Words, Stage::Payload, Stage::WordsAgain];

/// Window of a range in one round of reads, with the offsets (bytes) in the head buffer of its version words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) part: RangePart,
    /// Offset of what is read before the payload.
    pub(super) before: usize,
    /// Offset of what is read after the payload.
    pub(super) after: usize,
    /// Offset of the first word of a payload that does not begin at a word boundary.
    word: usize,
}

impl Window {
    /// Window of a part, with no offsets assigned yet.
    pub(super) const fn of(part: RangePart) -> Self {
        Self {
            part,
            before: 0,
            after: 0,
            word: 0,
        }
    }
}

/// Buffers for the reads of windows, kept between calls so that a warm call allocates nothing.
#[derive(Debug, Default)]
pub(super) struct WindowReads {
    head: Vec<u8>,
    reads: Vec<LaneReads>,
    /// Windows of each lane that are not read yet, as index ranges.
    runs: Vec<Range<usize>>,
    round: Vec<Window>,
}

impl WindowReads {
    /// Bytes of the head buffer from offset `at` on (version words, snapshot records); `None` past its end.
    pub(super) fn head(&self, at: usize) -> Option<&[u8]> {
        self.head.get(at..)
    }
}

/// Whether a transport executes the reads of a lane in order, so that a fence costs nothing (F03): shared memory and
/// TCP.
const fn fences_are_free(kind: TransportKind) -> bool {
    matches!(kind, TransportKind::Shm | TransportKind::Tcp)
}

impl BlockPull<'_> {
    /// Reads the windows of a range, which are sorted by lane, in rounds of bounded size, and blocks until they have
    /// arrived. `out` is the memory of the range that begins at element `first`. `done` is called for each window
    /// when its stages are complete.
    pub(super) fn read_windows(
        &mut self,
        windows: &[RangePart],
        stages: &[Stage],
        first: u64,
        out: &mut [u8],
        mut done: impl FnMut(&mut Self, &Window),
    ) -> Result<(), ClientError> {
        let lanes = self.lanes.len();
        let scratch = &mut self.scratch.reads;
        scratch.reads.resize_with(lanes, LaneReads::default);
        let mut runs = std::mem::take(&mut scratch.runs);
        let mut round = std::mem::take(&mut scratch.round);
        runs.clear();
        for (n, window) in windows.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if windows[run.start].part.lane == window.part.lane => run.end += 1,
                _ => runs.push(n..n + 1),
            }
        }
        let most = lane_bytes(runs.len());
        let mut read = Ok(());
        while read.is_ok() && runs.iter().any(|run| run.start < run.end) {
            round.clear();
            for run in &mut runs {
                let mut bytes = 0;
                while let Some(part) = windows.get(run.clone()).and_then(<[_]>::first) {
                    bytes += self.bytes(part);
                    if bytes > most && bytes > self.bytes(part) {
                        break;
                    }
                    round.push(Window::of(*part));
                    run.start += 1;
                }
            }
            read = self.read_round(&mut round, stages, first, out);
            if read.is_ok() {
                round.iter().for_each(|window| done(self, window));
            }
        }
        (self.scratch.reads.runs, self.scratch.reads.round) = (runs, round);
        read
    }

    /// Reads the windows of one round on all lanes at once: all stages in one list where fences are free, otherwise
    /// one round trip for each stage. Blocks.
    fn read_round(
        &mut self,
        round: &mut [Window],
        stages: &[Stage],
        first: u64,
        out: &mut [u8],
    ) -> Result<(), ClientError> {
        let bytes = self.place_windows(round, stages);
        let mut head = std::mem::take(&mut self.scratch.reads.head);
        let mut reads = std::mem::take(&mut self.scratch.reads.reads);
        head.resize(bytes, 0);
        let mut read = Ok(());
        for n in 0..stages.len() {
            reads.iter_mut().for_each(LaneReads::clear);
            read = self
                .stage_reads(round, stages, n, first, &mut reads)
                .and_then(|()| {
                    let mut dest = CallDest {
                        head: &mut head,
                        body: out,
                        row_bytes: None,
                    };
                    read_lanes(self.lanes, &mut reads, &mut dest, self.deadline)
                });
            if read.is_err() {
                break;
            }
        }
        if read.is_ok() && stages.contains(&Stage::Payload) {
            for window in &*round {
                self.place_first_word(window, first, &head, out);
            }
        }
        (self.scratch.reads.head, self.scratch.reads.reads) = (head, reads);
        read
    }

    /// Assigns the windows of a round their offsets in the head buffer; returns the bytes of head that the round
    /// needs.
    fn place_windows(&self, round: &mut [Window], stages: &[Stage]) -> usize {
        let records = stages.contains(&Stage::Record) || stages.contains(&Stage::RecordAgain);
        let fact_bytes = |part: &RangePart| match records {
            true => LINE_BYTES,
            false => 8 * self.blocks_of(part),
        };
        let facts: usize = round.iter().map(|w| fact_bytes(&w.part)).sum();
        let mut at = 0;
        for (n, window) in round.iter_mut().enumerate() {
            (window.before, window.after) = (at, facts + at);
            window.word = 2 * facts + 8 * n;
            at += fact_bytes(&window.part);
        }
        2 * facts + 8 * round.len()
    }

    /// Appends the validated reads of a round, all stages in one list for each lane, to `reads`, for an
    /// asynchronous pull. Returns the bytes of head buffer that they need. Where fences are not free, each stage
    /// after the first begins with one fence.
    pub(super) fn list_reads(
        &mut self,
        round: &mut [Window],
        first: u64,
        reads: &mut [LaneReads],
    ) -> Result<usize, ClientError> {
        let bytes = self.place_windows(round, &CONSISTENT);
        for n in 0..CONSISTENT.len() {
            let ends: Vec<usize> = reads.iter().map(|of_lane| of_lane.ops.len()).collect();
            self.stage_reads(round, &CONSISTENT, n, first, reads)?;
            for (of_lane, end) in reads.iter_mut().zip(ends) {
                if let Some(op) = of_lane.ops.get_mut(end).filter(|_| n > 0) {
                    op.fence = true;
                }
            }
        }
        Ok(bytes)
    }

    /// Validates the blocks of a round that was read into `head` and `out`. Before, it completes payloads that begin
    /// within a word. Torn blocks are added to `again`.
    pub(super) fn judge_round(
        &mut self,
        round: &[Window],
        first: u64,
        head: &mut Vec<u8>,
        out: &mut [u8],
        again: &mut Vec<RangePart>,
    ) {
        let known = again.len();
        std::mem::swap(head, &mut self.scratch.reads.head);
        for window in round {
            self.place_first_word(window, first, &self.scratch.reads.head, out);
            self.judge(window, again, &mut Seen::default());
            self.lanes.counters.blocks_consistent += self.blocks_of(&window.part) as u64;
        }
        std::mem::swap(head, &mut self.scratch.reads.head);
        self.lanes.counters.torn_rejected += (again.len() - known) as u64;
        self.lanes.counters.retries += (again.len() - known) as u64;
    }

    /// Adds the reads of stage `n` to the lists of the lanes. A lane where a fence costs nothing (`fences_are_free`)
    /// gets the reads of all stages at `n` = 0, and none at the later ones.
    fn stage_reads(
        &mut self,
        round: &[Window],
        stages: &[Stage],
        n: usize,
        first: u64,
        reads: &mut [LaneReads],
    ) -> Result<(), ClientError> {
        let mut rest = round;
        while let Some(window) = rest.first() {
            let lane = window.part.part.lane;
            let free = fences_are_free(self.lanes.get(lane).lane().transport());
            let mut bytes = 0;
            let together = |window: &&Window| {
                bytes += self.bytes(&window.part);
                window.part.part.lane == lane && (bytes <= GROUP_BYTES || !free)
            };
            let len = rest.iter().take_while(together).count().max(1);
            let (group, behind) = rest.split_at(len);
            rest = behind;
            let Some(of_lane) = reads.get_mut(lane) else {
                continue;
            };
            let listed = match (free, n) {
                (true, 0) => stages,
                (true, _) => &[],
                (false, n) => &stages[n..=n],
            };
            for &stage in listed {
                let mut fence = free;
                for window in group {
                    let op = self.stage_op(window, stage, first)?;
                    join(&mut of_lane.ops, ReadOp { fence, ..op });
                    fence = false;
                }
            }
        }
        Ok(())
    }

    /// Read operation of one window in one stage: words and records go to the head buffer, payload to the destination
    /// that begins at element `first`.
    fn stage_op(&self, window: &Window, stage: Stage, first: u64) -> Result<ReadOp, ClientError> {
        let part = &window.part;
        let words = 8 * self.blocks_of(part);
        Ok(match stage {
            Stage::Words => word_op(self.words_of(part)?, words, window.before),
            Stage::WordsAgain => word_op(self.words_of(part)?, words, window.after),
            Stage::Record => word_op(self.record_of(part)?, LINE_BYTES, window.before),
            Stage::RecordAgain => word_op(self.record_of(part)?, LINE_BYTES, window.after),
            Stage::Payload => {
                let body_at = size(part.first - first) * self.layout.element_bytes;
                payload_read(
                    self.payload_of(part),
                    self.bytes(part),
                    window.word,
                    body_at,
                )
                .0
            }
        })
    }

    /// Copies the first bytes of a payload that does not begin at an 8-byte boundary from the head buffer, where its
    /// read placed them, to `out`. Does nothing for an aligned payload.
    fn place_first_word(&self, window: &Window, first: u64, head: &[u8], out: &mut [u8]) {
        let part = &window.part;
        let skew = size(self.payload_of(part).addr % 8);
        if skew == 0 {
            return;
        }
        let bytes = self.bytes(part).min(8 - skew);
        let at = size(part.first - first) * self.layout.element_bytes;
        let from = window.word + skew;
        out[at..at + bytes].copy_from_slice(&head[from..from + bytes]);
    }
}

/// Read operation for `len` bytes to offset `body_at`, and the number of bytes before them that it also reads, 0 to 7.
/// Reads begin at 8-byte boundaries. If the payload does not, its first word goes to offset `head_at` of the head, as
/// a complete word also for a shorter payload.
pub(super) fn payload_read(
    at: RemoteAddr,
    len: usize,
    head_at: usize,
    body_at: usize,
) -> (ReadOp, usize) {
    let skew = size(at.addr % 8);
    let read_bytes = match skew {
        0 => len,
        _ => (len + skew).max(8),
    };
    let read_bytes = match on(Mutant::LongReadWraps) {
        true => read_bytes & u32::MAX as usize,
        false => read_bytes,
    };
    let op = ReadOp {
        from: RemoteAddr {
            addr: at.addr - skew as u64,
            ..at
        },
        len: count(read_bytes),
        head_len: if skew == 0 { 0 } else { 8 },
        head_at,
        body_at: if skew == 0 {
            body_at
        } else {
            body_at + 8 - skew
        },
        fence: false,
    };
    (op, skew)
}

/// Appends a read to a list, or extends the last one if the new one continues it, both at the server and in its
/// destination.
fn join(ops: &mut Vec<ReadOp>, next: ReadOp) {
    let longer = ops.last_mut().and_then(|last| {
        let len = last.len.checked_add(next.len)?;
        let meets = next.from.key == last.from.key
            && next.from.addr == last.from.addr.wrapping_add(u64::from(last.len));
        let (heads, bodies) = (last.head_len > 0, last.len > last.head_len);
        let is_placed_behind = match (next.head_len > 0, next.len > next.head_len) {
            (true, false) if !bodies => next.head_at == last.head_at + last.head_len as usize,
            (false, true) if !heads => next.body_at == last.body_at + last.len as usize,
            _ => false,
        };
        (meets && is_placed_behind && !next.fence).then_some((last, len))
    });
    match longer {
        Some((last, len)) => {
            last.head_len += next.head_len;
            last.len = len;
        }
        None => ops.push(next),
    }
}

/// Read operation for version words or a record, `bytes` bytes to offset `head_at` of the head buffer.
const fn word_op(from: RemoteAddr, bytes: usize, head_at: usize) -> ReadOp {
    ReadOp {
        from,
        len: count(bytes),
        head_len: count(bytes),
        head_at,
        body_at: 0,
        fence: false,
    }
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::ids::RegionKey;

    use super::*;

    fn read(addr: u64, len: u32, body_at: usize) -> ReadOp {
        let key = RegionKey(7);
        ReadOp {
            len,
            body_at,
            ..word_op(RemoteAddr { key, addr }, 0, 0)
        }
    }

    #[test]
    fn reads_that_meet_at_both_ends_are_one() {
        let words = |addr, at| word_op(read(addr, 0, 0).from, 16, at);
        let mut ops = Vec::new();
        for next in [words(64, 0), words(80, 16), words(112, 32), words(128, 48)] {
            join(&mut ops, next);
        }
        assert_eq!(ops.len(), 2, "there is a hole before 112");
        assert_eq!((ops[0].len, ops[0].head_len), (32, 32));
        assert_eq!(
            (ops[1].from.addr, ops[1].head_at, ops[1].len),
            (112, 32, 32)
        );

        let mut ops = vec![read(0, 4096, 0)];
        join(&mut ops, read(4096, 8192, 4096));
        assert_eq!((ops.len(), ops[0].len), (1, 12288));
        let apart = [
            // Another destination, another address, another region, a fence, another kind.
            read(12288, 8, 12296),
            read(12296, 8, 12288),
            ReadOp {
                from: RemoteAddr {
                    key: RegionKey(8),
                    addr: 12288,
                },
                ..read(0, 8, 12288)
            },
            ReadOp {
                fence: true,
                ..read(12288, 8, 12288)
            },
            words(12288, 12288),
        ];
        for next in apart {
            let mut ops = ops.clone();
            join(&mut ops, next);
            assert_eq!(ops.len(), 2, "{next:?}");
        }
        join(&mut ops, read(12288, u32::MAX, 12288));
        assert_eq!(ops.len(), 2, "a read that is too long");
    }
}

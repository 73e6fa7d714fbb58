//! Range pulls over a NIC: many windows in one round trip.
//!
//! The three reads of a window (version words, payload, version words again) take a round trip each, in
//! which nothing else moves. Where reads travel, all windows of a lane therefore go together, up to
//! [`ROUND_BYTES`]. A round reads the first words of all windows, their payload (spread over the lane's
//! queue pairs), and the second words of all. Each of the three is a call of its own, which returns
//! when its reads have completed: this keeps the order of the protocol without a fence. Blocks that
//! fail validation are read again alone, window by window, as everywhere else.
//!
//! Partitions of one applier are adjacent in memory. Where the reads of two windows meet, at the server
//! and in their destination, they become one read. A table of many small partitions then costs as few
//! packets as one of a single partition.

use tidewater_lanes::fabric::{ReadOp, RemoteAddr, TransportKind};
use tidewater_lanes::num::{count, size};

use super::blocks::{BlockPull, RangePart};
use super::rows::read_ops;
use crate::error::ClientError;

/// Payload bytes of a round: their time on the wire is many round trips. A writer that is not very hot
/// leaves most of their blocks alone meanwhile.
const ROUND_BYTES: usize = 1 << 20;
/// Most windows of a round: tables with many small partitions have a window for each.
const ROUND_WINDOWS: usize = 64;

/// Pulls all pieces of a range that begins at element `first` into `out`.
pub(super) fn pull(
    pull: &mut BlockPull<'_>,
    pieces: &[RangePart],
    first: u64,
    out: &mut [u8],
) -> Result<(), ClientError> {
    let mut windows = Vec::new();
    for piece in pieces {
        if pull.travels_whole(piece) {
            windows.extend(pull.windows(piece));
        } else {
            let out = pull.landing(piece, first, out);
            pull.consistent(piece, out)?;
        }
    }
    // A stable sort: each lane's windows stay in their order.
    windows.sort_by_key(|window: &RangePart| window.part.lane);
    let mut rest = &windows[..];
    while !rest.is_empty() {
        let (round, behind) = rest.split_at(pull.round_len(rest));
        pull.round(round, first, out)?;
        rest = behind;
    }
    Ok(())
}

impl BlockPull<'_> {
    /// Whether a piece's reads travel over a NIC, and begin at whole words.
    fn travels_whole(&mut self, piece: &RangePart) -> bool {
        let lane = self.lanes.get(piece.part.lane).lane();
        lane.transport() == TransportKind::Verbs
            && piece.part.versions.is_some()
            && self
                .payload_at(piece, piece.part.payload)
                .addr
                .is_multiple_of(8)
    }

    /// How many of these windows, at least one, are of one lane and fit a round.
    fn round_len(&self, windows: &[RangePart]) -> usize {
        let Some(first) = windows.first() else {
            return 0;
        };
        let mut bytes = 0;
        let fit = windows.iter().take(ROUND_WINDOWS).take_while(|window| {
            bytes += self.bytes(window);
            window.part.lane == first.part.lane && bytes <= ROUND_BYTES
        });
        fit.count().max(1)
    }

    fn round(
        &mut self,
        windows: &[RangePart],
        first: u64,
        out: &mut [u8],
    ) -> Result<(), ClientError> {
        let Some(lane) = windows.first().map(|window| window.part.lane) else {
            return Ok(());
        };
        let blocks: usize = windows.iter().map(|window| self.blocks_of(window)).sum();
        self.scratch.head.resize(2 * 8 * blocks, 0);
        let before = self.word_ops(windows, 0)?;
        let after = self.word_ops(windows, 8 * blocks)?;
        let mut payload = Vec::new();
        for window in windows {
            let bytes = self.bytes(window);
            let (op, _) = self.payload_op(window, window.part.payload, bytes)?;
            let body_at = size(window.first - first) * self.layout.element_bytes;
            join(&mut payload, ReadOp { body_at, ..op });
        }
        let (lanes, deadline) = (&mut *self.lanes, self.deadline);
        let head = &mut self.scratch.head;
        read_ops(lanes, lane, &before, head, &mut [], deadline)?;
        read_ops(lanes, lane, &payload, &mut [], out, deadline)?;
        read_ops(lanes, lane, &after, head, &mut [], deadline)?;
        let mut at = 0;
        let mut again = Vec::new();
        for window in windows {
            let n = self.blocks_of(window);
            self.judge(window, [at, at + 8 * blocks], &mut again);
            at += 8 * n;
        }
        let failed = again.len() as u64;
        self.lanes.counters.blocks_consistent += blocks as u64 - failed;
        self.lanes.counters.torn_rejected += failed;
        self.lanes.counters.retries += failed;
        for block in again {
            let out = self.landing(&block, first, out);
            self.window(&block, out)?;
        }
        Ok(())
    }

    /// Reads of the version words of all windows, one after the other in the head from `at` on.
    fn word_ops(&self, windows: &[RangePart], mut at: usize) -> Result<Vec<ReadOp>, ClientError> {
        let mut ops = Vec::with_capacity(windows.len());
        for window in windows {
            let words = self.words_of(window)?;
            let bytes = 8 * self.blocks_of(window);
            join(&mut ops, word_op(words, bytes, at));
            at += bytes;
        }
        Ok(ops)
    }

    /// The memory of a piece within the memory of its range.
    fn landing<'o>(&self, piece: &RangePart, first: u64, out: &'o mut [u8]) -> &'o mut [u8] {
        let at = size(piece.first - first) * self.layout.element_bytes;
        out.get_mut(at..at + self.bytes(piece)).unwrap_or_default()
    }
}

/// Adds a read. Extends the last one if the new one continues it, in memory and in its destination.
fn join(ops: &mut Vec<ReadOp>, next: ReadOp) {
    let longer = ops.last_mut().and_then(|last| {
        let len = last.len.checked_add(next.len)?;
        let meets = next.from.key == last.from.key
            && next.from.addr == last.from.addr.wrapping_add(u64::from(last.len));
        let (heads, bodies) = (last.head_len > 0, last.len > last.head_len);
        let lands = match (next.head_len > 0, next.len > next.head_len) {
            (true, false) if !bodies => next.head_at == last.head_at + last.head_len as usize,
            (false, true) if !heads => next.body_at == last.body_at + last.len as usize,
            _ => false,
        };
        (meets && lands && !next.fence && !last.fence).then_some((last, len))
    });
    match longer {
        Some((last, len)) => {
            last.head_len += next.head_len;
            last.len = len;
        }
        None => ops.push(next),
    }
}

/// Makes a read of version words into the head.
pub(super) const fn word_op(from: RemoteAddr, bytes: usize, head_at: usize) -> ReadOp {
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

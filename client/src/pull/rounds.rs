//! Ranges over a network card: many windows to a round trip.
//!
//! The three reads of a window (version words, payload, version words again) are a round trip each,
//! in which nothing else moves. So where reads travel, all windows of a lane go together, up to
//! [`ROUND_BYTES`]: the first words of all, then the payload of all, spread over the lane's queue
//! pairs, then the second words of all. Each of the three is a call of its own, which returns when
//! its reads have completed: the order that the protocol asks for, kept without a fence. What did
//! not prove itself is read again alone, window by window, like everywhere else.

use tidewater_transport::fabric::{ReadOp, RemoteAddr, TransportKind};

use super::blocks::{BlockPull, Piece};
use super::rows::read_ops;
use crate::error::ClientError;

/// Payload bytes of a round: their time on the wire is many round trips, and a writer that is not
/// very hot leaves most of their blocks alone meanwhile.
const ROUND_BYTES: usize = 1 << 20;
/// Windows of a round: tables with many small partitions have a window for each.
const ROUND_WINDOWS: usize = 64;

/// Pulls all pieces of a range that begins at element `first` into `out`.
pub(super) fn pull(
    pull: &mut BlockPull<'_>,
    pieces: &[Piece],
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
    // Stable: each lane's windows stay in their order.
    windows.sort_by_key(|window: &Piece| window.part.lane);
    let mut rest = &windows[..];
    while !rest.is_empty() {
        let (round, behind) = rest.split_at(pull.round_len(rest));
        pull.round(round, first, out)?;
        rest = behind;
    }
    Ok(())
}

impl BlockPull<'_> {
    /// Whether a piece's reads travel, and begin at whole words.
    fn travels_whole(&mut self, piece: &Piece) -> bool {
        let lane = self.lanes.get(piece.part.lane).lane();
        lane.transport() == TransportKind::Verbs
            && piece.part.versions.is_some()
            && self.payload_op(piece, piece.part.payload, 0).1 == 0
    }

    /// How many of these windows, at least one, are one lane's and fit a round.
    fn round_len(&self, windows: &[Piece]) -> usize {
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

    fn round(&mut self, windows: &[Piece], first: u64, out: &mut [u8]) -> Result<(), ClientError> {
        let Some(lane) = windows.first().map(|window| window.part.lane) else {
            return Ok(());
        };
        let blocks: usize = windows.iter().map(|window| self.blocks_of(window)).sum();
        self.scratch.head.resize(2 * 8 * blocks, 0);
        let before = self.word_ops(windows, 0)?;
        let after = self.word_ops(windows, 8 * blocks)?;
        let payload = windows.iter().map(|window| {
            let bytes = self.bytes(window);
            let (op, _) = self.payload_op(window, window.part.payload, bytes);
            ReadOp {
                body_at: (window.first - first) as usize * self.layout.element_bytes,
                ..op
            }
        });
        let payload: Vec<ReadOp> = payload.collect();
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
    fn word_ops(&self, windows: &[Piece], mut at: usize) -> Result<Vec<ReadOp>, ClientError> {
        let mut ops = Vec::with_capacity(windows.len());
        for window in windows {
            let words = self.words_of(window)?;
            let bytes = 8 * self.blocks_of(window);
            ops.push(word_op(words, bytes, at));
            at += bytes;
        }
        Ok(ops)
    }

    /// The place of a piece in the memory of its range.
    fn landing<'o>(&self, piece: &Piece, first: u64, out: &'o mut [u8]) -> &'o mut [u8] {
        let at = (piece.first - first) as usize * self.layout.element_bytes;
        out.get_mut(at..at + self.bytes(piece)).unwrap_or_default()
    }
}

/// A read of version words into the head.
pub(super) const fn word_op(from: RemoteAddr, bytes: usize, head_at: usize) -> ReadOp {
    ReadOp {
        from,
        len: bytes as u32,
        head_len: bytes as u32,
        head_at,
        body_at: 0,
        fence: false,
    }
}

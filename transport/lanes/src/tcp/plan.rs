//! Progress of a list of reads: bytes requested and bytes received.

use super::buffer::Fifo;
use super::op::{ENTRY_BYTES, Entry, HEADER_BYTES, Request};
use super::receive::DIRECT_BYTES;
use crate::fabric::{LaneError, ReadOp, Unpack};
use crate::num::count;
use tidewater_protocol::limits::{LANE_READV_BYTES_MAX, LANE_READV_ENTRIES_MAX};
use tidewater_runtime::mem::io::{Place, RecvList};

/// Longest read in bytes that is kept in the input buffer until it is complete, to be offered to an
/// unpacker. A longer one is placed as its bytes arrive and not offered.
const TAKEN_BYTES_MAX: usize = DIRECT_BYTES;

/// Position in a list of reads: the index of a read, and the number of its bytes that come before the
/// position.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    op: usize,
    at: u32,
}

/// A contiguous range of the head or body buffer into which the next bytes of a read go: its byte offset
/// and length.
struct Piece {
    in_head: bool,
    at: usize,
    len: usize,
}

impl Cursor {
    /// Moves the cursor past completed reads and returns the read that contains the next byte; `None` at
    /// the end of the list.
    fn settle<'a>(&mut self, ops: &'a [ReadOp]) -> Option<&'a ReadOp> {
        loop {
            let op = ops.get(self.op)?;
            if self.at < op.len {
                return Some(op);
            }
            *self = Self {
                op: self.op + 1,
                at: 0,
            };
        }
    }

    /// Returns the contiguous destination of the next bytes of the list, to the end of the current head
    /// or body. `None` at the end of the list.
    fn piece(&mut self, ops: &[ReadOp]) -> Option<Piece> {
        let op = self.settle(ops)?;
        let in_head = self.at < op.head_len;
        let (at, len) = if in_head {
            (op.head_at + self.at as usize, op.head_len - self.at)
        } else {
            let skip = self.at - op.head_len;
            (op.body_at + skip as usize, op.len - self.at)
        };
        let len = len as usize;
        Some(Piece { in_head, at, len })
    }
}

/// Progress of a client's list of reads: the bytes requested, the bytes placed, and the number of
/// requests without an answer. The list itself is passed to each call.
#[derive(Debug, Default)]
pub(super) struct Plan {
    asked: Cursor,
    placed: Cursor,
    /// Number of requests without an answer.
    open: usize,
}

impl Plan {
    /// Returns whether requests for all reads of the list were made; their answers may be missing.
    pub(super) const fn is_asked(&self, ops: &[ReadOp]) -> bool {
        self.asked.op >= ops.len()
    }

    /// Returns whether all reads of the list were requested and all answers have arrived completely.
    pub(super) const fn is_done(&self, ops: &[ReadOp]) -> bool {
        self.is_asked(ops) && self.open == 0
    }

    /// Appends one READV request for the next reads of the list to `out`, up to 512 reads and 1 MiB, and
    /// counts it as open. A read that does not fit is split at a multiple of 8 bytes. Returns the number
    /// of bytes that the request asks for. The answer repeats `cookie`. The caller calls again until
    /// `Self::is_asked`.
    pub(super) fn ask(&mut self, ops: &[ReadOp], cookie: u64, out: &mut Fifo) -> u32 {
        let most = ops.len().saturating_sub(self.asked.op);
        let most = most.min(LANE_READV_ENTRIES_MAX);
        let (head, list) = out
            .grow(HEADER_BYTES + most * ENTRY_BYTES)
            .split_at_mut(HEADER_BYTES);
        let list = list.as_chunks_mut::<ENTRY_BYTES>().0;
        let (mut entries, mut bytes) = (0, 0);
        while let (Some(op), Some(place)) = (ops.get(self.asked.op), list.get_mut(entries)) {
            let at = self.asked.at;
            let room = count(LANE_READV_BYTES_MAX) - bytes;
            let complete = op.len - at <= room;
            // A part ends at a whole word, so that the next one is aligned.
            let len = if complete { op.len - at } else { room & !7 };
            if len == 0 && !complete {
                break;
            }
            let entry = Entry {
                key: op.from.key,
                len,
                fence: op.fence && at == 0,
                addr: op.from.addr.wrapping_add(u64::from(at)),
            };
            *place = entry.to_bytes();
            (entries, bytes) = (entries + 1, bytes + len);
            self.asked = match complete {
                true => Cursor {
                    op: self.asked.op + 1,
                    at: 0,
                },
                false => Cursor {
                    at: at + len,
                    ..self.asked
                },
            };
        }
        let header = Request::ReadV {
            entries: count(entries),
            bytes,
            cookie,
        };
        head.copy_from_slice(&header.to_bytes());
        out.cut((most - entries) * ENTRY_BYTES);
        self.open += 1;
        bytes
    }

    /// Copies the bodies that have arrived so far from one body buffer to another, in which the same
    /// reads have other offsets. Each pair is the list of reads and its buffer.
    pub(super) fn move_placed(&self, from: (&[ReadOp], &[u8]), to: (&[ReadOp], &mut [u8])) {
        let Cursor { op: current, at } = self.placed;
        for (n, (was, is)) in from.0.iter().zip(to.0).enumerate().take(current + 1) {
            let placed = if n < current { was.len } else { at };
            let len = placed.saturating_sub(was.head_len) as usize;
            to.1[is.body_at..is.body_at + len]
                .copy_from_slice(&from.1[was.body_at..was.body_at + len]);
        }
    }

    /// Records that the answer to one of the list's requests has arrived completely.
    pub(super) const fn answered(&mut self) {
        self.open = self.open.saturating_sub(1);
    }
}

/// A list of reads with its destination buffers and progress, borrowed while answers are received into
/// the buffers.
pub(super) struct Target<'a> {
    pub(super) plan: &'a mut Plan,
    pub(super) ops: &'a [ReadOp],
    pub(super) head: &'a mut [u8],
    pub(super) body: &'a mut [u8],
    /// Callback to which data is offered before it is placed; `None` if the call has none.
    pub(super) unpacker: Option<&'a mut dyn Unpack>,
}

impl Target<'_> {
    /// Reborrows the list of reads, its buffers and its progress for a shorter lifetime.
    pub(super) fn again(&mut self) -> Target<'_> {
        Target {
            plan: self.plan,
            ops: self.ops,
            head: self.head,
            body: self.body,
            unpacker: reborrow(&mut self.unpacker),
        }
    }

    /// Places the next bytes of an answer or offers them to the unpacker; returns the number of bytes
    /// consumed. `missing` more bytes of the answer are yet to arrive. A short read that is cut is not
    /// consumed: it stays in the input buffer until it is complete, for the unpacker.
    pub(super) fn accept(&mut self, bytes: &[u8], missing: usize) -> usize {
        let mut rest = bytes;
        while !rest.is_empty()
            && let Some(unpacker) = &mut self.unpacker
            && let Some(op) = self.plan.placed.settle(self.ops)
        {
            let Cursor { op: first, at } = self.plan.placed;
            let left = (op.len - at) as usize;
            if at == 0 && left <= TAKEN_BYTES_MAX {
                if left <= rest.len() {
                    let taken = unpacker.unpack(first, rest, self.body);
                    let reads = self.ops.iter().skip(first).take(taken);
                    let bytes: usize = reads.map(|op| op.len as usize).sum();
                    if let (1.., Some(behind)) = (taken, rest.get(bytes..)) {
                        self.plan.placed.op += taken;
                        rest = behind;
                        continue;
                    }
                } else if left <= rest.len() + missing {
                    return bytes.len() - rest.len();
                }
            }
            let (now, behind) = rest.split_at(left.min(rest.len()));
            self.place(now);
            rest = behind;
        }
        self.place(rest);
        bytes.len()
    }

    /// Copies the next bytes of the answer to their destinations in the head and body buffers.
    pub(super) fn place(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty()
            && let Some(piece) = self.plan.placed.piece(self.ops)
        {
            let (now, rest) = bytes.split_at(piece.len.min(bytes.len()));
            let into = if piece.in_head {
                &mut *self.head
            } else {
                &mut *self.body
            };
            into[piece.at..piece.at + now.len()].copy_from_slice(now);
            self.plan.placed.at += count(now.len());
            bytes = rest;
        }
    }

    /// Returns the length in bytes of the longest contiguous destination among the next three, to decide
    /// on a direct receive; 0 at the end. The rest of a row may be short, and so is the head of its
    /// successor.
    pub(super) fn run(&mut self) -> usize {
        let mut cursor = self.plan.placed;
        let next = std::iter::from_fn(|| {
            let piece = cursor.piece(self.ops)?;
            cursor.at += count(piece.len);
            Some(piece.len)
        });
        next.take(3).max().unwrap_or(0)
    }

    /// Calls `receive` with a scatter list of the destinations of the next bytes of the answer, at most
    /// `max`. If all `max` bytes are listed, `spare` follows for the bytes behind them. Returns the
    /// number of destination bytes listed, and the result of `receive`. Progress is unchanged: see
    /// `Self::received`.
    pub(super) fn with_list<T>(
        &mut self,
        max: usize,
        spare: &mut [u8],
        receive: impl FnOnce(&mut RecvList<'_>) -> T,
    ) -> (usize, T) {
        let mut cursor = self.plan.placed;
        let (head, body) = (Place::new(self.head), Place::new(self.body));
        let (room, spare) = (spare.len(), Place::new(spare));
        let mut list = RecvList::new();
        while list.total_bytes() < max
            && let Some(piece) = cursor.piece(self.ops)
        {
            let place = if piece.in_head { &head } else { &body };
            let len = piece.len.min(max - list.total_bytes());
            if !list.piece(place, piece.at, len) {
                break;
            }
            cursor.at += count(len);
        }
        let named = list.total_bytes();
        if named == max {
            list.piece(&spare, 0, room);
        }
        (named, receive(&mut list))
    }

    /// Records that `n` bytes were received directly into the destinations that [`Self::with_list`]
    /// listed.
    pub(super) fn received(&mut self, mut n: usize) {
        while n > 0
            && let Some(piece) = self.plan.placed.piece(self.ops)
        {
            let step = piece.len.min(n);
            self.plan.placed.at += count(step);
            n -= step;
        }
    }
}

/// Reborrows an optional unpacker for a shorter lifetime; `None` stays `None`.
pub(super) fn reborrow<'a>(
    unpacker: &'a mut Option<&mut dyn Unpack>,
) -> Option<&'a mut dyn Unpack> {
    match unpacker {
        Some(unpacker) => Some(&mut **unpacker),
        None => None,
    }
}

/// Checks that all reads fit the head and body buffers, for the call `op`; [`LaneError::Usage`] if one
/// does not.
pub(super) fn fits(
    op: &'static str,
    ops: &[ReadOp],
    head: &[u8],
    body: &[u8],
) -> Result<(), LaneError> {
    if ops.iter().all(|o| o.fits(head.len(), body.len())) {
        return Ok(());
    }
    let what = "a read that does not fit its destination";
    Err(LaneError::Usage { op, what })
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fabric::RemoteAddr;
    use tidewater_protocol::ids::RegionKey;

    proptest! {
        #[test]
        fn requests_cover_every_byte_once_and_replies_find_their_place(
            shapes in proptest::collection::vec((0u32..5, 0u32..300, any::<bool>()), 1..40),
            huge in 0u32..3 << 20,
            cuts in proptest::collection::vec(1usize..5000, 1..50),
        ) {
            let (mut head_at, mut body_at, mut addr) = (0, 0, 0);
            let mut ops = Vec::new();
            for (i, (h, b, fence)) in shapes.into_iter().enumerate() {
                let body = if i == 0 { huge } else { b };
                let head_len = h * 8;
                ops.push(ReadOp {
                    from: RemoteAddr { key: RegionKey(1), addr },
                    len: head_len + body,
                    head_len, head_at, body_at, fence,
                });
                head_at += head_len as usize;
                body_at += body as usize;
                addr += u64::from(head_len + body).next_multiple_of(8);
            }
            let memory: Vec<u8> = (0..addr).map(|i| tidewater_protocol::layout::hash::mix64(i) as u8).collect();
            let mut plan = Plan::default();
            let mut stream = Vec::new();
            while !plan.is_asked(&ops) {
                let mut out = Fifo::default();
                let bytes = plan.ask(&ops, 1, &mut out);
                let raw = out.pending();
                let header = Request::from_bytes(raw.first_chunk().unwrap()).unwrap();
                let list = raw[HEADER_BYTES..].as_chunks::<ENTRY_BYTES>().0;
                prop_assert_eq!(header, Request::ReadV { entries: list.len() as u32, bytes, cookie: 1 });
                for e in list.iter().map(Entry::from_bytes) {
                    prop_assert!(e.addr % 8 == 0);
                    stream.extend_from_slice(&memory[e.addr as usize..][..e.len as usize]);
                }
            }
            let (mut head, mut body) = (vec![0; head_at], vec![0; body_at]);
            let mut target = Target { plan: &mut plan, ops: &ops, head: &mut head, body: &mut body, unpacker: None };
            let (mut rest, mut cuts) = (&stream[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(cuts.next().unwrap() * 7));
                target.place(now);
                rest = later;
            }
            for op in &ops {
                let from = &memory[op.from.addr as usize..][..op.len as usize];
                let (h, b) = from.split_at(op.head_len as usize);
                prop_assert_eq!(&head[op.head_at..][..h.len()], h);
                prop_assert_eq!(&body[op.body_at..][..b.len()], b);
            }
        }
    }
}

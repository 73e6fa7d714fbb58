//! Bounded buffers of a socket, reused for its whole lifetime.

use tidewater_protocol::limits::LANE_IN_BYTES;

/// Greatest number of bytes received with one call behind a long payload that goes straight to its
/// destination: a few headers. A call that looks for the next such payload receives at most as many. A
/// larger part would be copied once more than the payload itself.
const BESIDE_BYTES: usize = 4 << 10;

/// Receive buffer of a lane, [`LANE_IN_BYTES`] (64 KiB) long: bytes received and not yet decoded.
pub(super) struct Input {
    bytes: Box<[u8]>,
    head: usize,
    tail: usize,
}

impl Input {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; LANE_IN_BYTES].into_boxed_slice(),
            head: 0,
            tail: 0,
        }
    }

    /// Returns the bytes that were received and not yet consumed.
    pub(super) fn pending(&self) -> &[u8] {
        &self.bytes[self.head..self.tail]
    }

    pub(super) const fn len(&self) -> usize {
        self.tail - self.head
    }

    /// Removes the first `n` bytes; all of them if there are fewer.
    pub(super) fn consume(&mut self, n: usize) {
        self.head += n.min(self.len());
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
        }
    }

    /// Returns the free space behind the pending bytes, to receive into; empty only when the buffer is
    /// full. Moves pending bytes to the front when less than a quarter of the buffer is left behind them.
    /// The caller reports received bytes to `Self::arrived`.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.head > 0 && self.bytes.len() - self.tail < self.bytes.len() / 4 {
            self.bytes.copy_within(self.head..self.tail, 0);
            (self.head, self.tail) = (0, self.len());
        }
        &mut self.bytes[self.tail..]
    }

    /// Returns the first bytes of the free space, at most [`BESIDE_BYTES`], for the bytes that follow a
    /// long payload.
    pub(super) fn room_beside(&mut self) -> &mut [u8] {
        let room = self.room();
        let len = room.len().min(BESIDE_BYTES);
        &mut room[..len]
    }

    /// Appends the first `n` bytes of [`Self::room`], into which the caller has received them, to the
    /// pending bytes.
    pub(super) fn arrived(&mut self, n: usize) {
        self.tail += n.min(self.bytes.len() - self.tail);
    }
}

/// Send buffer: bytes that wait to be sent, in order. Positions count bytes from the beginning of the
/// stream, so that bytes not yet sent can be found again and changed.
#[derive(Default)]
pub(super) struct Fifo {
    /// Pending bytes are `head..tail`; earlier ones are overwritten, never cleared.
    bytes: Vec<u8>,
    head: usize,
    tail: usize,
    sent: u64,
}

impl Fifo {
    pub(super) fn pending(&self) -> &[u8] {
        &self.bytes[self.head..self.tail]
    }

    pub(super) const fn len(&self) -> usize {
        self.tail - self.head
    }

    /// Returns the stream position behind the last pending byte, at which the next appended one will be.
    pub(super) const fn end(&self) -> u64 {
        self.sent + self.len() as u64
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.grow(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends `len` bytes and returns them for the caller to fill in; until then they hold old contents
    /// of the buffer.
    #[inline]
    pub(super) fn grow(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() - self.tail < len {
            self.make_room(len);
        }
        let at = self.tail;
        self.tail += len;
        &mut self.bytes[at..at + len]
    }

    /// Removes the last `n` pending bytes, which then will not be sent; all if there are fewer.
    pub(super) fn cut(&mut self, n: usize) {
        self.tail -= n.min(self.len());
    }

    /// Returns the pending bytes from a stream position to the end, which the caller may change. `None`
    /// if some of them were sent already, or the position is behind the end.
    pub(super) fn since(&mut self, position: u64) -> Option<&mut [u8]> {
        let at = usize::try_from(position.checked_sub(self.sent)?).ok()?;
        self.bytes.get_mut(self.head.checked_add(at)?..self.tail)
    }

    /// Removes the first `n` pending bytes, which the caller has sent.
    pub(super) fn consume(&mut self, n: usize) {
        let n = n.min(self.len());
        self.head += n;
        self.sent += n as u64;
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
        }
    }

    /// Makes room for `len` more bytes behind the pending ones: reuses the space of sent bytes before it
    /// allocates more memory. Moves the pending bytes.
    #[cold]
    fn make_room(&mut self, len: usize) {
        self.bytes.copy_within(self.head..self.tail, 0);
        (self.head, self.tail) = (0, self.len());
        let need = self.tail + len;
        if self.bytes.len() < need {
            self.bytes.reserve(need - self.bytes.len());
            self.bytes.resize(self.bytes.capacity(), 0);
        }
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn both_are_queues(steps in proptest::collection::vec((any::<bool>(), 0usize..30_000), 1..200)) {
            let (mut input, mut fifo) = (Input::new(), Fifo::default());
            let (mut a, mut b) = (VecDeque::new(), VecDeque::new());
            let mut next = 0u8;
            for (push, n) in steps {
                if push {
                    let bytes: Vec<u8> = (0..n).map(|i| next.wrapping_add(i as u8)).collect();
                    next = next.wrapping_add(n as u8);
                    let room = input.room();
                    let fits = n.min(room.len());
                    room[..fits].copy_from_slice(&bytes[..fits]);
                    input.arrived(fits);
                    a.extend(&bytes[..fits]);
                    let end = fifo.end();
                    fifo.push(&bytes);
                    fifo.push(&bytes);
                    fifo.cut(bytes.len());
                    b.extend(&bytes);
                    prop_assert_eq!(fifo.since(end).unwrap(), &bytes[..]);
                } else {
                    input.consume(n);
                    a.drain(..n.min(a.len()));
                    fifo.consume(n);
                    b.drain(..n.min(b.len()));
                }
                prop_assert!(input.pending().iter().eq(a.iter()));
                prop_assert!(fifo.pending().iter().eq(b.iter()));
                prop_assert_eq!(fifo.len(), b.len());
                prop_assert_eq!(input.room().is_empty(), input.len() == LANE_IN_BYTES);
            }
        }
    }
}

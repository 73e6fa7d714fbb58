//! First-in-first-out allocator in a piece of registered memory. The oldest piece is freed first,
//! because the requests that use it end in order.

/// Pieces begin at multiples of this: no two share a cache line.
const ALIGN: usize = 64;

/// A ring of bytes. A piece never crosses the ring's end; the rest there is skipped.
#[derive(Debug)]
pub(super) struct RingAllocator {
    bytes: u64,
    /// Monotonic: everything below is free again.
    head: u64,
    /// Monotonic: the next piece begins here, or at the ring's start.
    tail: u64,
    /// Offset of `tail` in the ring: stored, because a division for each piece would cost more.
    at: u64,
}

impl RingAllocator {
    /// Creates a ring of `bytes` bytes, a multiple of 64.
    pub(super) const fn new(bytes: usize) -> Self {
        Self {
            bytes: bytes as u64,
            head: 0,
            tail: 0,
            at: 0,
        }
    }

    /// Whether a piece fits now. In an empty ring, any piece up to the ring's length fits.
    pub(super) fn fits(&self, len: usize) -> bool {
        self.place(len).is_some()
    }

    /// Allocates a piece and returns its offset.
    pub(super) fn take(&mut self, len: usize) -> Option<usize> {
        let (head, start, at) = self.place(len)?;
        self.head = head;
        self.tail = start + padded(len);
        let after = at + padded(len);
        self.at = if after == self.bytes { 0 } else { after };
        Some(at as usize)
    }

    /// Returns the end of the newest piece, for [`Self::free_to`].
    pub(super) const fn end(&self) -> u64 {
        self.tail
    }

    /// Frees everything up to an `end`.
    pub(super) fn free_to(&mut self, end: u64) {
        debug_assert!(end <= self.tail, "{end} was never taken");
        self.head = self.head.max(end);
    }

    /// Returns the head to continue with, and the start of a piece of `len` bytes: as a monotonic
    /// position, and as an offset in the ring.
    fn place(&self, len: usize) -> Option<(u64, u64, u64)> {
        let crosses = self.at + padded(len) > self.bytes;
        let (start, at) = if crosses {
            (self.tail + (self.bytes - self.at), 0)
        } else {
            (self.tail, self.at)
        };
        // In an empty ring, skipped bytes are free too.
        let head = if self.head == self.tail {
            start
        } else {
            self.head
        };
        (start + padded(len) - head <= self.bytes).then_some((head, start, at))
    }
}

const fn padded(len: usize) -> u64 {
    len.next_multiple_of(ALIGN) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn a_piece_as_long_as_the_space_fits_when_it_is_empty() {
        let mut space = RingAllocator::new(256);
        assert_eq!(space.take(64), Some(0));
        let first = space.end();
        assert!(!space.fits(256));
        space.free_to(first);
        assert_eq!(space.take(256), Some(0), "it begins at the beginning again");
        assert!(!space.fits(1));
        assert_eq!(space.take(257), None);
    }

    #[test]
    fn what_is_left_at_the_end_is_skipped() {
        let mut space = RingAllocator::new(256);
        space.take(128);
        let first = space.end();
        space.take(64);
        assert!(!space.fits(100), "64 at the end, none at the beginning");
        space.free_to(first);
        assert_eq!(space.take(100), Some(0));
        assert!(!space.fits(1));
    }

    proptest::proptest! {
        /// Allocated pieces never overlap, stay inside, and have the requested length. (One of no bytes
        /// lies anywhere, also inside of another.)
        #[test]
        fn pieces_are_apart(steps in proptest::collection::vec((0usize..400, 0usize..3), 0..300)) {
            const BYTES: usize = 1024;
            let mut space = RingAllocator::new(BYTES);
            let mut taken: VecDeque<(usize, usize, u64)> = VecDeque::new();
            for (len, frees) in steps {
                if let Some(at) = space.take(len) {
                    proptest::prop_assert_eq!(space.at, space.tail % space.bytes);
                    proptest::prop_assert!(at.is_multiple_of(ALIGN) && at + len <= BYTES);
                    for (other, bytes, _) in &taken {
                        let apart = at + len <= *other || other + bytes <= at;
                        proptest::prop_assert!(len == 0 || *bytes == 0 || apart);
                    }
                    taken.push_back((at, len, space.end()));
                } else {
                    proptest::prop_assert!(!taken.is_empty(), "{len} bytes do not fit");
                }
                for _ in 0..frees {
                    if let Some((.., end)) = taken.pop_front() {
                        space.free_to(end);
                    }
                }
            }
        }
    }
}

//! Positions in an inbox ring: monotonic byte counts, masked only for memory accesses.
//!
//! Frames start at multiples of 64 and never cross the wrap point; a PAD frame fills the tail.

use super::LINE_BYTES;

/// Arithmetic of a ring buffer: converts monotonic byte positions to offsets and places frames. The ring's size
/// in bytes is a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingGeometry {
    bytes: u64,
}

/// Result of placing a frame in a ring: where it begins, and the padding before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Bytes of the PAD frame before the placed frame; 0 if there is none.
    pub pad: u64,
    /// Monotonic position in bytes at which the placed frame begins.
    pub at: u64,
}

impl RingGeometry {
    /// Returns the geometry of a ring of `bytes` data bytes; `None` unless that is a power of two and at least
    /// 256.
    pub const fn new(bytes: usize) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= 256 {
            Some(Self {
                bytes: bytes as u64,
            })
        } else {
            None
        }
    }

    /// Returns the size of the ring in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of the largest frame, header included: a quarter of the ring. A frame of this size and its
    /// padding take less than half of the ring, so no frame has to wait for an empty ring.
    pub const fn frame_bytes_max(&self) -> u64 {
        self.bytes / 4
    }

    /// Returns the byte offset in the ring's memory of a monotonic position: the position modulo the size.
    pub const fn offset(&self, position: u64) -> u64 {
        position & (self.bytes - 1)
    }

    /// Returns the number of bytes from `position` to the end of the ring's memory; the complete size if
    /// `position` is at its start.
    pub const fn to_wrap(&self, position: u64) -> u64 {
        self.bytes - self.offset(position)
    }

    /// Places a frame of `len` bytes (a multiple of 64, at most [`Self::frame_bytes_max`]) at or after `tail`, behind a
    /// PAD frame if it would cross the end of the memory. `head` and `tail` are monotonic positions of the reader and
    /// the writer. Writes nothing. Returns `None` while the ring has no room: the writer tries again once `head` has
    /// moved.
    pub const fn place(&self, head: u64, tail: u64, len: u64) -> Option<Placement> {
        let pad = if self.to_wrap(tail) < len {
            self.to_wrap(tail)
        } else {
            0
        };
        if tail + pad + len - head > self.bytes {
            return None;
        }
        Some(Placement {
            pad,
            at: tail + pad,
        })
    }

    /// Whether a tail that the writer claims is possible. The reader ends the session if not. A tail is not before
    /// `consumed`, at most one ring after it, and a multiple of 64. All are monotonic byte positions.
    pub const fn tail_is_sane(&self, consumed: u64, tail: u64) -> bool {
        tail >= consumed && tail - consumed <= self.bytes && tail.is_multiple_of(LINE_BYTES as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_never_cross_the_wrap_nor_overtake_the_head(
            lens in proptest::collection::vec(1u64..=64, 1..400),
            drain in proptest::collection::vec(any::<bool>(), 400),
        ) {
            let ring = RingGeometry::new(16 << 10).unwrap();
            let (mut head, mut tail) = (0u64, 0u64);
            let mut live = std::collections::VecDeque::new();
            for (len, drain) in lens.iter().map(|l| l * 64).zip(drain) {
                if drain && let Some(end) = live.pop_front() {
                    head = end;
                }
                match ring.place(head, tail, len) {
                    Some(p) => {
                        prop_assert!(ring.offset(p.at) + len <= ring.bytes());
                        prop_assert_eq!(p.at, tail + p.pad);
                        tail = p.at + len;
                        prop_assert!(tail - head <= ring.bytes());
                        live.push_back(tail);
                    }
                    None => {
                        let end: u64 = live.pop_front().unwrap();
                        head = end;
                    }
                }
            }
        }
    }

    #[test]
    fn only_possible_tails_are_believed() {
        let ring = RingGeometry::new(1024).unwrap();
        assert!(ring.tail_is_sane(64, 64) && ring.tail_is_sane(64, 1088));
        for bad in [0, 63, 65, 1152, u64::MAX, u64::MAX - 63] {
            assert!(!ring.tail_is_sane(64, bad), "{bad}");
        }
        assert!(RingGeometry::new(1000).is_none() && RingGeometry::new(128).is_none());
    }
}

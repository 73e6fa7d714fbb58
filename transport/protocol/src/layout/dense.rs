//! Dense tables: the rows or blocks of a partition, and the version word of a block.
//!
//! A table with layout `blocks` is one vector of `rows x cols` elements cut into blocks. The last block
//! is short in use but complete in memory. Each block has a version word in a separate array: `{seq
//! u32: even stable, odd being written; tag u32}`. A torn word has a wrong tag.
//! `docs/PROTOCOL.md` describes the protocol of the readers.

use super::hash::mix32;
use super::{pack, unpack};
use crate::table::PartitionStarts;

/// Version word of a block: a self-validating 32-bit sequence number, `seq | tag << 32`. The tag is `mix32(seq ^ low
/// half of salt) ^ high half of salt`. `seq` even: the block is stable; odd: the block is being written (seqlock).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaggedU32(pub u64);

impl TaggedU32 {
    /// Packs a sequence number with its tag under a table's salt.
    #[inline]
    pub const fn new(seq: u32, salt: u64) -> Self {
        Self(pack(seq, Self::tag(seq, salt)))
    }

    /// Returns the sequence number if its tag matches under `salt`; `None` if the word is torn or of another
    /// table.
    #[inline]
    pub const fn seq(self, salt: u64) -> Option<u32> {
        let (seq, tag) = unpack(self.0);
        if tag == Self::tag(seq, salt) {
            Some(seq)
        } else {
            None
        }
    }

    /// Number of completed stores of the block: half of the sequence number, without a check of the tag. The initial
    /// values count as one store. Wraps after 2^31 stores.
    #[inline]
    pub const fn stores(self) -> u64 {
        (unpack(self.0).0 / 2) as u64
    }

    /// Whether the payload of a block that a client read is complete (seqlock). `self` is the version word read
    /// before the payload, `after` the one read afterwards. Both tags must match under `salt`, and both numbers
    /// must be equal and even.
    #[inline]
    pub fn accepts(self, after: Self, salt: u64) -> bool {
        let before = self.seq(salt);
        before.is_some_and(|seq| seq % 2 == 0) && before == after.seq(salt)
    }

    const fn tag(seq: u32, salt: u64) -> u32 {
        mix32(seq ^ salt as u32) ^ (salt >> 32) as u32
    }
}

/// Partition of `count` items into `parts` contiguous ranges. Cuts a dense table's rows or blocks into partitions. The
/// sizes of the ranges differ by at most one, unless a list gives their starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges {
    /// Number of items to cut.
    pub count: u64,
    /// Number of ranges, at least 1.
    pub parts: u32,
    /// Starts of the ranges, if they are not near-equal.
    listed: Option<Listed>,
}

/// Starts of ranges in elements, of which each item has `unit`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    starts: PartitionStarts,
    unit: u64,
}

impl Ranges {
    /// Divides `count` items into `parts` near-equal ranges; 0 ranges count as 1.
    #[inline]
    pub const fn new(count: u64, parts: u32) -> Self {
        let parts = if parts == 0 { 1 } else { parts };
        Self {
            count,
            parts,
            listed: None,
        }
    }

    /// Divides `count` items of `unit` elements each into ranges that begin at the elements `starts`. The list must
    /// begin with 0, ascend strictly, hold multiples of `unit` only and end before `count * unit`.
    /// `TableSpec::validate` checks that.
    pub fn listed(count: u64, starts: PartitionStarts, unit: u64) -> Self {
        Self {
            count,
            parts: starts.len() as u32,
            listed: Some(Listed { starts, unit }),
        }
    }

    /// Whether a list gives the starts of the ranges.
    #[inline]
    pub const fn is_listed(&self) -> bool {
        self.listed.is_some()
    }

    /// Returns the index of the first item of range `part`, which is at most `parts`; `part == parts` gives `count`.
    #[inline]
    pub fn start(&self, part: u32) -> u64 {
        if let Some(listed) = &self.listed {
            let start = listed.starts.get(part as usize);
            return start.map_or(self.count, |start| start / listed.unit);
        }
        match self.count.checked_mul(part as u64) {
            Some(product) => product / self.parts as u64,
            None => ((self.count as u128 * part as u128) / self.parts as u128) as u64,
        }
    }

    /// Returns the number of items in range `part`, which must be below `parts`. 0 if there are fewer items than ranges
    /// and this one is empty.
    #[inline]
    pub fn len(&self, part: u32) -> u64 {
        self.start(part + 1) - self.start(part)
    }

    /// Whether the number of items, `count`, is 0.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of the range that holds item `thing`, which must be below `count`. Cost: a division, or a
    /// binary search of the list.
    #[inline]
    pub fn part_of(&self, thing: u64) -> u32 {
        if let Some(Listed { starts, unit }) = &self.listed {
            let first = thing * unit;
            return (starts.partition_point(|&start| start <= first) - 1) as u32;
        }
        // The largest p with floor(count p / parts) <= thing. Most tables are small enough for the
        // short division, which is several times as fast.
        match (thing + 1).checked_mul(self.parts as u64) {
            Some(product) => ((product - 1) / self.count) as u32,
            None => (((thing as u128 + 1) * self.parts as u128 - 1) / self.count as u128) as u32,
        }
    }
}

/// Precomputed division that estimates `Ranges::part_of`: a multiplication in place of a division. The estimate is at
/// most two below the right range, and never above it; the caller corrects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeIndex {
    /// Number of complete ranges per item: floor(parts / count).
    quotient: u64,
    /// Fraction of a range per item, in units of 2^-64: floor(2^64 (parts mod count) / count).
    rest: u64,
}

impl RangeIndex {
    /// Maximum number of ranges by which [`Self::guess`] is below the right range. A guess is never above that range.
    pub const GUESS_OFF_MAX: u32 = 2;

    /// Precomputes the division of `ranges`, which must be near-equal and not listed. If there are no items, each guess
    /// is range 0.
    pub const fn new(ranges: &Ranges) -> Self {
        let (count, parts) = (ranges.count, ranges.parts as u64);
        if count == 0 {
            return Self {
                quotient: 0,
                rest: 0,
            };
        }
        Self {
            quotient: parts / count,
            rest: ((((parts % count) as u128) << 64) / count as u128) as u64,
        }
    }

    /// Estimates the number of the range that holds item `thing`, which must be below the count: the right one, or at
    /// most [`Self::GUESS_OFF_MAX`] below it, which the caller corrects. With t the thing, of C things in P parts, the
    /// right one is floor((t P + P - 1) / C). A product with `rest` is no more than that with the fraction, and misses
    /// it by less than 1. If P < C, the right one is at most floor(t P / C) + 1. Else, with P = w C + r, it is (t + 1)
    /// w + floor(((t + 1) r - 1) / C).
    #[inline]
    pub const fn guess(&self, thing: u64) -> u32 {
        if self.quotient == 0 {
            return ((thing as u128 * self.rest as u128) >> 64) as u32;
        }
        let next = thing + 1;
        let past = ((next as u128 * self.rest as u128) >> 64) as u64;
        (next * self.quotient + past - 1) as u32
    }
}

/// Sizes of a range table (layout `blocks`): elements of the table, bytes of an element and of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLayout {
    /// Number of elements in the table.
    pub elements: u64,
    /// Bytes of one element.
    pub element_bytes: usize,
    /// Bytes of a block: a power of two.
    pub block_bytes: usize,
}

impl BlockLayout {
    /// Returns the number of elements in a complete block.
    pub const fn block_elements(&self) -> u64 {
        (self.block_bytes / self.element_bytes) as u64
    }

    /// Returns the number of blocks in the table, the last one included, which may be short.
    pub const fn blocks(&self) -> u64 {
        self.elements.div_ceil(self.block_elements())
    }

    /// Returns the number of elements in use in block `block`: fewer than a complete block's only in the last
    /// one, and 0 past it.
    pub const fn used(&self, block: u64) -> u64 {
        let first = block * self.block_elements();
        let left = self.elements.saturating_sub(first);
        if left < self.block_elements() {
            left
        } else {
            self.block_elements()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn torn_words_are_refused() {
        let a = TaggedU32::new(6, 0x1234_5678_9abc_def0);
        let b = TaggedU32::new(8, 0x1234_5678_9abc_def0);
        assert_eq!(a.seq(0x1234_5678_9abc_def0), Some(6));
        for cut in 1..8 {
            let mask = (1u64 << (8 * cut)) - 1;
            let torn = TaggedU32((a.0 & mask) | (b.0 & !mask));
            if torn != a && torn != b {
                assert_eq!(torn.seq(0x1234_5678_9abc_def0), None, "cut at byte {cut}");
            }
        }
    }

    proptest! {
        #[test]
        fn ranges_are_a_partition(
            count in prop_oneof![
                1u64..u64::MAX, 1u64..1 << 40, (u64::MAX >> 12)..(u64::MAX >> 8), 1u64..5000,
            ],
            parts in 1u32..4096, at in any::<u64>(),
        ) {
            let r = Ranges::new(count, parts);
            let thing = at % count;
            let p = r.part_of(thing);
            prop_assert!(p < parts);
            prop_assert!(r.start(p) <= thing && thing < r.start(p + 1));
            prop_assert!(r.len(p) >= count / u64::from(parts));
            prop_assert!(r.len(p) <= count / u64::from(parts) + 1);
            prop_assert_eq!(r.start(parts), count);
            let guess = RangeIndex::new(&r).guess(thing);
            prop_assert!(guess <= p && p - guess <= RangeIndex::GUESS_OFF_MAX, "{} for {}", guess, p);
        }

        /// Each item is in the last range that begins at it or before, whatever the starts.
        #[test]
        fn listed_ranges_are_a_partition(
            sizes in proptest::collection::vec(1u64..1000, 1..50), unit in 1u64..5, rest in 0u64..5,
        ) {
            let mut starts = vec![0];
            for size in &sizes {
                starts.push(starts[starts.len() - 1] + size * unit);
            }
            let end = starts.pop().unwrap() + rest.min(unit - 1);
            let count = end.div_ceil(unit);
            let r = Ranges::listed(count, starts.clone().into(), unit);
            prop_assert_eq!((r.parts as usize, r.start(r.parts)), (sizes.len(), count));
            for (p, &start) in (0..).zip(&starts) {
                prop_assert_eq!(r.start(p), start / unit);
                for item in [r.start(p), r.start(p + 1) - 1] {
                    prop_assert_eq!(r.part_of(item), p);
                }
            }
            let all: u64 = (0..r.parts).map(|p| r.len(p)).sum();
            prop_assert_eq!(all, count);
        }

        #[test]
        fn blocks_cover_every_element(elements in 1u64..10_000_000, shift in 12u32..18) {
            let l = BlockLayout { elements, element_bytes: 4, block_bytes: 1 << shift };
            let used: u64 = (0..l.blocks()).map(|b| l.used(b)).sum();
            prop_assert_eq!(used, elements);
        }
    }
}

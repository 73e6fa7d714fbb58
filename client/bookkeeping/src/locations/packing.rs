//! Entries of the location cache in a cache line.

use tidewater_protocol::layout::Line;
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::limits::{EXTENT_BYTES_MAX, EXTENTS_MAX};
use tidewater_protocol::mutants::{self, Mutant};

use super::PROBES;

/// Bits of a hash in an entry of [`Packing::Five`].
pub(super) const HASH_BITS: u32 = 52;
/// Lines from which the place of an entry implies the other bits of its hash: two keys with the same stored
/// bits have homes more than [`PROBES`] lines apart, so no search for one meets the other.
pub(super) const FIVE_LINES: u64 = (PROBES as u64 + 1) << (u64::BITS - HASH_BITS);

const EXTENT_BITS: u32 = u64::BITS - HASH_BITS;
const SLOT_BITS: u32 = 22;
const GENERATION_BITS: u32 = 16;
const REST_BITS: u32 = SLOT_BITS + GENERATION_BITS;
const EXTENT_MASK: u64 = (1 << EXTENT_BITS) - 1;
/// Slot of a forgotten location: no extent has as many.
const FORGOTTEN_SLOT: u32 = (1 << SLOT_BITS) - 1;
/// Words of a line that hold the hashes of [`Packing::Five`].
const FIVE: usize = 5;

const _: () = assert!(
    FIVE * REST_BITS as usize <= 3 * 64,
    "five entries fit a line"
);
/// The narrowest row has a header of 16 bytes and a payload.
const _: () = assert!(EXTENT_BYTES_MAX / 24 < FORGOTTEN_SLOT as usize);
/// All extents but the last have a number below 2^12.
const _: () = assert!(EXTENTS_MAX <= 1 << EXTENT_BITS);

/// The location of an entry without a known location. The entry keeps its place, because a free
/// place ends searches.
pub(super) const FORGOTTEN: RowLocation = RowLocation::new(0, 1, FORGOTTEN_SLOT);

/// Whether an entry can hold a location. No row of a correct server has another one but those of a table's
/// last extent (number [`EXTENTS_MAX`]).
pub(super) const fn can_hold(loc: RowLocation) -> bool {
    loc.extent() != 0 && loc.extent() as u64 <= EXTENT_MASK && loc.slot() < FORGOTTEN_SLOT
}

/// Layout of the entries of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    /// Four entries: the hash in a word, the location in the next. A location of 0 is a free place.
    Four,
    /// Five entries. Words 0 to 4: 52 bits of the hash over 12 of the extent; extent 0 is a free place.
    /// Words 5 to 7: of each entry 38 bits, generation over slot.
    Five,
}

impl Packing {
    /// The packing of a table of so many lines.
    #[inline]
    pub(super) const fn of(lines: u64) -> Self {
        if lines < FIVE_LINES {
            Self::Four
        } else {
            Self::Five
        }
    }

    /// Entries of a line.
    #[inline]
    pub(super) const fn entries(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Five => FIVE,
        }
    }

    /// The entry of a hash.
    #[inline]
    pub(super) fn find(self, line: &Line, hash: u64) -> Option<usize> {
        match self {
            Self::Four => (0..4).find(|n| is_same(line[2 * n], hash) && line[2 * n + 1] != 0),
            Self::Five => (0..FIVE).find(|&n| {
                let (stored, extent) = (line[n] >> EXTENT_BITS, line[n] & EXTENT_MASK);
                is_same(stored, hash << EXTENT_BITS >> EXTENT_BITS) && extent != 0
            }),
        }
    }

    /// The first free place.
    #[inline]
    pub(super) fn free(self, line: &Line) -> Option<usize> {
        (0..self.entries()).find(|&n| match self {
            Self::Four => line[2 * n + 1] == 0,
            Self::Five => line[n] & EXTENT_MASK == 0,
        })
    }

    /// The location of an entry.
    #[inline]
    pub(super) fn location(self, line: &Line, n: usize) -> RowLocation {
        match self {
            Self::Four => RowLocation(line[2 * n + 1]),
            Self::Five => {
                let rest = rest_of(line, n);
                let generation = (rest >> SLOT_BITS) as u16;
                let slot = rest as u32 & FORGOTTEN_SLOT;
                RowLocation::new(generation, (line[n] & EXTENT_MASK) as u16, slot)
            }
        }
    }

    /// The stored bits of an entry's hash.
    pub(super) const fn hash_bits(self, line: &Line, n: usize) -> u64 {
        match self {
            Self::Four => line[2 * n],
            Self::Five => line[n] >> EXTENT_BITS,
        }
    }

    /// Writes an entry, with a location that [can be held](can_hold).
    pub(super) fn set(self, line: &mut Line, n: usize, hash: u64, loc: RowLocation) {
        match self {
            Self::Four => (line[2 * n], line[2 * n + 1]) = (hash, loc.0),
            Self::Five => {
                line[n] = hash << EXTENT_BITS | u64::from(loc.extent());
                let rest = u64::from(loc.generation()) << SLOT_BITS | u64::from(loc.slot());
                set_rest(line, n, rest);
            }
        }
    }
}

/// Whether the stored bits of two hashes are equal.
#[inline]
fn is_same(a: u64, b: u64) -> bool {
    let differing = a ^ b;
    differing == 0 || (mutants::on(Mutant::LocationByShortHash) && differing.is_multiple_of(16))
}

/// First word and shift of the 38 bits of an entry.
const fn rest_at(n: usize) -> (usize, u32) {
    let bit = n * REST_BITS as usize;
    (FIVE + bit / 64, (bit % 64) as u32)
}

#[inline]
fn rest_of(line: &Line, n: usize) -> u64 {
    let (at, shift) = rest_at(n);
    let above = line.get(at + 1).copied().unwrap_or(0);
    let wide = u128::from(above) << 64 | u128::from(line[at]);
    (wide >> shift) as u64 & ((1 << REST_BITS) - 1)
}

fn set_rest(line: &mut Line, n: usize, rest: u64) {
    let (at, shift) = rest_at(n);
    let mask = u128::from((1u64 << REST_BITS) - 1) << shift;
    let bits = u128::from(rest) << shift;
    line[at] = line[at] & !(mask as u64) | bits as u64;
    if let Some(above) = line.get_mut(at + 1) {
        *above = *above & !((mask >> 64) as u64) | (bits >> 64) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each entry keeps its bits when its neighbours are written, in any order.
    #[test]
    fn entries_of_a_line_are_apart() {
        for packing in [Packing::Four, Packing::Five] {
            let mut line = [0; 8];
            let entry = |n: usize, round: u16| {
                let loc = RowLocation::new(
                    u16::MAX - round,
                    4_095 - n as u16,
                    FORGOTTEN_SLOT - 1 - n as u32,
                );
                (u64::MAX - n as u64, loc)
            };
            for n in 0..packing.entries() {
                assert_eq!(packing.free(&line), Some(n));
                let (hash, loc) = entry(n, 0);
                packing.set(&mut line, n, hash, loc);
            }
            assert_eq!(packing.free(&line), None);
            for n in (0..packing.entries()).rev() {
                let (hash, loc) = entry(n, 7);
                packing.set(&mut line, n, hash, loc);
            }
            for n in 0..packing.entries() {
                let (hash, loc) = entry(n, 7);
                assert!(can_hold(loc));
                assert_eq!(packing.find(&line, hash), Some(n));
                assert_eq!(packing.location(&line, n), loc);
            }
            assert_eq!(packing.find(&line, 1), None);
            // The hash of key 0 is 0, like the words of a free place.
            assert_eq!(packing.find(&[0; 8], 0), None);
        }
        let past = RowLocation::new(0, 4_096, 1);
        assert!(!can_hold(past) && !can_hold(RowLocation::NONE) && !can_hold(FORGOTTEN));
    }
}

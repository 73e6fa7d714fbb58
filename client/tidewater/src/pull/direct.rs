//! The first try of a pull where the server's memory is mapped. Rows are located, copied and validated
//! in one pass, without a list of reads and without reading the clock. It changes no state: whatever
//! fails here is left to the reads, which handle it. Such are unknown locations, stale cached
//! locations, rows being written, and lanes without mapped memory.

use tidewater_lanes::fabric::Mapped;
use tidewater_lanes::num::count;
use tidewater_protocol::layout::row::{RowLocation, RowVersion};
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_runtime::mem::Words;
use tidewater_runtime::mem::publish::read_fence;
use tidewater_runtime::mem::rows::{copy_row, copy_row_unvalidated};

use super::{PullMode, Seen};
use crate::lanes::Lanes;
use crate::table::state::TableState;

/// Rows that are prefetched ahead of the copied one. The core can wait for about this many at a time,
/// and their cache lines are still in the nearest cache when their turn comes.
const AHEAD: usize = 16;

/// Marks a lane without rows.
const NO_ROW: u32 = u32::MAX;

/// Result of the direct try.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// Rows with a matching checksum, or accepted without validation.
    pub(super) accepted: u64,
    /// Rows with a checksum that did not match.
    pub(super) rejected: u64,
    /// Versions of the accepted rows.
    pub(super) seen: Seen,
}

/// A row in mapped memory.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    row: Words<'a>,
    salt: u64,
    loc: RowLocation,
    lane: usize,
}

/// Finds rows in mapped memory.
struct Places<'a> {
    lanes: &'a Lanes,
    table: &'a TableState,
    bytes: usize,
    /// Memory of the lane used last: neighbours are mostly on one lane.
    at_hand: Option<(usize, Mapped<'a>)>,
}

impl<'a> Places<'a> {
    #[inline(always)]
    fn of(&mut self, key: u64) -> Option<Place<'a>> {
        let (source, loc) = self.table.place(key)?;
        let memory = match self.at_hand {
            Some((lane, memory)) if lane == source.lane => memory,
            _ => {
                let memory = self.lanes.mapped(source.lane)?;
                self.at_hand = Some((source.lane, memory));
                memory
            }
        };
        Some(Place {
            row: memory.words(source.from.key, source.from.addr, self.bytes)?,
            salt: source.salt,
            loc,
            lane: source.lane,
        })
    }

    /// Whether a copy is of the row that the cached location meant: its slot was not given to another
    /// key.
    #[inline]
    fn is_meant(&self, place: &Place<'_>, ver: RowVersion) -> bool {
        !place.loc.is_some()
            || ver.generation() == place.loc.generation()
            || on(Mutant::StaleLocationUsed)
    }
}

/// Tries all of `keys`; adds the numbers of the rows that fail to `todo`. `last` is memory for the last
/// row of each lane.
#[inline]
pub(super) fn pull(
    lanes: &Lanes,
    table: &TableState,
    mode: PullMode,
    keys: &[u64],
    out: &mut [u8],
    (todo, last): (&mut Vec<u32>, &mut Vec<u32>),
) -> Tried {
    let mut places = Places {
        lanes,
        table,
        bytes: table.row.read_bytes(),
        at_hand: None,
    };
    let [key] = keys else {
        return pull_many(places, mode, keys, out, (todo, last));
    };
    let mut tried = Tried::default();
    match places.of(*key) {
        // A single row is its own sentinel: validated in one pass it costs less than read twice.
        Some(place) => try_row(&places, &place, (0, *key), out, true, (todo, &mut tried)),
        None => todo.push(0),
    }
    tried
}

/// [`pull`] of any number of rows but one. A separate function, so that one row does not pay for the
/// memory of a group.
#[inline(never)]
fn pull_many(
    mut places: Places<'_>,
    mode: PullMode,
    keys: &[u64],
    out: &mut [u8],
    (todo, last): (&mut Vec<u32>, &mut Vec<u32>),
) -> Tried {
    let mut tried = Tried::default();
    let (lanes, table) = (places.lanes, places.table);
    let proved = mode == PullMode::Consistent;
    let row_bytes = table.row.payload_bytes;
    last.clear();
    last.resize(lanes.len(), NO_ROW);
    let mut group = [None; AHEAD];
    let mut first = 0;
    ask_for_hints(table, keys, first);
    for (keys_of_group, outs) in keys.chunks(AHEAD).zip(out.chunks_mut(AHEAD * row_bytes)) {
        for (place, key) in group.iter_mut().zip(keys_of_group) {
            *place = places.of(*key);
        }
        let rows = || keys_of_group.iter().zip(&group);
        // Only prefetches in this loop: each may wait for an address translation, and the core overlaps
        // several waits only if they follow closely.
        rows()
            .filter_map(|(_, place)| place.as_ref())
            .for_each(|place| place.row.prefetch());
        ask_for_hints(table, keys, first + AHEAD);
        let numbered = (count(first)..).zip(rows());
        for ((n, (key, place)), out) in numbered.zip(outs.chunks_exact_mut(row_bytes)) {
            let Some(place) = place else {
                todo.push(n);
                continue;
            };
            let row = (n, *key);
            try_row(&places, place, row, out, proved, (todo, &mut tried));
            if let Some(last) = last.get_mut(place.lane) {
                *last = n;
            }
        }
        first += AHEAD;
    }
    if !proved && !witnesses_hold(&mut places, keys, out, row_bytes, last) {
        todo.clear();
        todo.extend(0..count(keys.len()));
        tried = Tried::default();
    }
    tried
}

/// Prefetches the cached locations of the group of keys that begins with number `first`.
#[inline]
fn ask_for_hints(table: &TableState, keys: &[u64], first: usize) {
    for key in keys.iter().skip(first).take(AHEAD) {
        table.prefetch(*key);
    }
}

#[inline(always)]
fn try_row(
    places: &Places<'_>,
    place: &Place<'_>,
    (n, key): (u32, u64),
    out: &mut [u8],
    proved: bool,
    (todo, tried): (&mut Vec<u32>, &mut Tried),
) {
    let (ver, whole) = if proved {
        let copy = copy_row(place.row, place.salt, key, out);
        (copy.ver, copy.validated)
    } else {
        let ver = copy_row_unvalidated(place.row, out);
        (ver, ver.is_valid())
    };
    if whole && places.is_meant(place, ver) {
        tried.accepted += 1;
        tried.seen.add(ver.counter());
    } else {
        tried.rejected += u64::from(!whole);
        todo.push(n);
    }
}

/// Whether the `last` row of each lane, read behind a fence, has a matching checksum. Then the table
/// still existed when the other rows were read. Those do not show by themselves that their memory was
/// given to another table.
fn witnesses_hold(
    places: &mut Places<'_>,
    keys: &[u64],
    out: &mut [u8],
    row_bytes: usize,
    last: &[u32],
) -> bool {
    // SYNC: publish. Pairs with the writer's Release fence, as of a read flagged `fence` (F03).
    read_fence();
    last.iter().filter(|&&n| n != NO_ROW).all(|&n| {
        let n = n as usize;
        let (key, out) = (keys.get(n), out.get_mut(n * row_bytes..(n + 1) * row_bytes));
        let (Some(&key), Some(out)) = (key, out) else {
            return false;
        };
        let place = places.of(key);
        place.is_some_and(|place| copy_row(place.row, place.salt, key, out).validated)
    })
}

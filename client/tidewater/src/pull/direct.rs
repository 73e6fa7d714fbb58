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

/// Number of rows that are prefetched ahead of the one being copied. A core can wait for about this many at a time,
/// and their cache lines are still in the L1 cache when they are copied.
const AHEAD: usize = 16;

/// Marker for a lane from which no row was copied.
const NO_ROW: u32 = u32::MAX;

/// Result of the direct attempt of a pull from mapped memory: counts of rows, and versions.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// Number of rows with a matching checksum, or accepted without validation.
    pub(super) accepted: u64,
    /// Number of rows with a checksum that did not match.
    pub(super) rejected: u64,
    /// Versions of the accepted rows.
    pub(super) seen: Seen,
}

/// Row in the mapped memory of a server: its words, checksum salt, location and lane.
#[derive(Debug, Clone, Copy)]
struct MappedRow<'a> {
    words: Words<'a>,
    salt: u64,
    loc: RowLocation,
    lane: usize,
}

/// Finder of rows in mapped memory, by key; it keeps the memory of the lane used last.
struct MappedRows<'a> {
    lanes: &'a Lanes,
    table: &'a TableState,
    bytes: usize,
    /// Memory of the lane used last: neighbours are mostly on one lane.
    last_used: Option<(usize, Mapped<'a>)>,
}

impl<'a> MappedRows<'a> {
    #[inline(always)]
    fn of(&mut self, key: u64) -> Option<MappedRow<'a>> {
        let (source, loc) = self.table.locate(key)?;
        let memory = match self.last_used {
            Some((lane, memory)) if lane == source.lane => memory,
            _ => {
                let memory = self.lanes.mapped(source.lane)?;
                self.last_used = Some((source.lane, memory));
                memory
            }
        };
        Some(MappedRow {
            words: memory.words(source.from.key, source.from.addr, self.bytes)?,
            salt: source.salt,
            loc,
            lane: source.lane,
        })
    }

    /// Whether a copied row is the one that the cached location meant: the generation of its slot is unchanged, so
    /// the slot was not given to another key.
    #[inline]
    fn is_meant(&self, row: &MappedRow<'_>, ver: RowVersion) -> bool {
        !row.loc.is_some()
            || ver.generation() == row.loc.generation()
            || on(Mutant::StaleLocationUsed)
    }
}

/// Copies the rows of `keys` from mapped memory to `out` and validates them, without waiting. Indexes of rows that
/// fail, or are not mapped, are added to `todo`. `last` is scratch memory for the last row of each lane.
#[inline]
pub(super) fn pull(
    lanes: &Lanes,
    table: &TableState,
    mode: PullMode,
    keys: &[u64],
    out: &mut [u8],
    todo: &mut Vec<u32>,
    last: &mut Vec<u32>,
) -> Tried {
    let mut mapped = MappedRows {
        lanes,
        table,
        bytes: table.row.read_bytes(),
        last_used: None,
    };
    let [key] = keys else {
        return pull_many(mapped, mode, keys, out, todo, last);
    };
    let mut tried = Tried::default();
    match mapped.of(*key) {
        // A single row is its own sentinel: validated in one pass it costs less than read twice.
        Some(row) => try_row(&mapped, &row, 0, *key, out, true, todo, &mut tried),
        None => todo.push(0),
    }
    tried
}

/// Copies and validates rows from mapped memory to `out` as [`pull`] does, for any number of keys but one; adds
/// the indexes of rows that fail to `todo`. In mode `Hogwild`, if a sentinel row does not validate, `todo`
/// becomes all rows, and the counts are 0. It is a separate function so that a single row does not pay for the
/// memory of a group.
#[inline(never)]
fn pull_many(
    mut mapped: MappedRows<'_>,
    mode: PullMode,
    keys: &[u64],
    out: &mut [u8],
    todo: &mut Vec<u32>,
    last: &mut Vec<u32>,
) -> Tried {
    let mut tried = Tried::default();
    let (lanes, table) = (mapped.lanes, mapped.table);
    let validate = mode == PullMode::Consistent;
    let row_bytes = table.row.payload_bytes;
    last.clear();
    last.resize(lanes.len(), NO_ROW);
    let mut group = [None; AHEAD];
    let mut first = 0;
    prefetch_locations(table, keys, first);
    for (keys_of_group, outs) in keys.chunks(AHEAD).zip(out.chunks_mut(AHEAD * row_bytes)) {
        for (row, key) in group.iter_mut().zip(keys_of_group) {
            *row = mapped.of(*key);
        }
        let rows = || keys_of_group.iter().zip(&group);
        // Only prefetches in this loop: each may wait for an address translation, and the core overlaps
        // several waits only if they follow closely.
        rows()
            .filter_map(|(_, row)| row.as_ref())
            .for_each(|row| row.words.prefetch());
        prefetch_locations(table, keys, first + AHEAD);
        let numbered = (count(first)..).zip(rows());
        for ((n, (key, row)), out) in numbered.zip(outs.chunks_exact_mut(row_bytes)) {
            let Some(row) = row else {
                todo.push(n);
                continue;
            };
            try_row(&mapped, row, n, *key, out, validate, todo, &mut tried);
            if let Some(last) = last.get_mut(row.lane) {
                *last = n;
            }
        }
        first += AHEAD;
    }
    if !validate && !sentinels_match(&mut mapped, keys, out, row_bytes, last) {
        todo.clear();
        todo.extend(0..count(keys.len()));
        tried = Tried::default();
    }
    tried
}

/// Prefetches the cached locations of the `AHEAD` keys from index `first` on.
#[inline]
fn prefetch_locations(table: &TableState, keys: &[u64], first: usize) {
    for key in keys.iter().skip(first).take(AHEAD) {
        table.prefetch(*key);
    }
}

/// Copies one row to `out`, and validates its checksum, or without `validate` only its version. If it is valid and its
/// slot was not given to another key, counts it as accepted in `tried`. Otherwise adds its index `n` in the keys to
/// `todo`, and counts it as rejected in `tried` if it is not valid.
#[allow(
    clippy::too_many_arguments,
    reason = "inlined; a struct of them would be built for each row"
)]
#[inline(always)]
fn try_row(
    mapped: &MappedRows<'_>,
    row: &MappedRow<'_>,
    n: u32,
    key: u64,
    out: &mut [u8],
    validate: bool,
    todo: &mut Vec<u32>,
    tried: &mut Tried,
) {
    let (ver, is_valid) = if validate {
        let copy = copy_row(row.words, row.salt, key, out);
        (copy.ver, copy.validated)
    } else {
        let ver = copy_row_unvalidated(row.words, out);
        (ver, ver.is_valid())
    };
    if is_valid && mapped.is_meant(row, ver) {
        tried.accepted += 1;
        tried.seen.add(ver.counter());
    } else {
        tried.rejected += u64::from(!is_valid);
        todo.push(n);
    }
}

/// Reads the last row of each lane again, behind a fence, and returns whether their checksums match. If so, the
/// table still existed when the other, unvalidated rows were read: their memory was not given to another table.
fn sentinels_match(
    mapped: &mut MappedRows<'_>,
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
        let row = mapped.of(key);
        row.is_some_and(|row| copy_row(row.words, row.salt, key, out).validated)
    })
}

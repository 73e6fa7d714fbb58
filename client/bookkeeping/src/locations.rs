//! Cache of row locations, shared by the threads of a worker.
//!
//! Rows never move, so a location stays right until its row is removed. The row's checksum, which covers
//! the key, detects a wrong one. Reads without validation rely on this cache, too: an entry is of one key
//! exactly, never of a shorter fingerprint.
//!
//! The table is an array of cache lines. A bijective hash of the key, multiplied by the number of lines,
//! gives the line where a search begins; it goes on through full lines. An entry of a large table has
//! 12.8 bytes: it stores 52 bits of the hash, and its place implies the others (`Packing`). Between 0.83
//! and 0.9 of the entries are used, so that a key takes 14.2 to 15.5 bytes.
//!
//! A full table grows by a sixteenth, in place: entries keep their order, so that they move to higher lines
//! from the end of the table to its beginning. Each put of a new key moves a few lines. No second table
//! exists meanwhile, and memory is appended, never returned.
//!
//! # Threads
//! Writers take a lock: they come from a request to a server, or from a stale location. Readers do not.
//! All words of the table are atomics. Each store of a line, and of the numbers that say where searches
//! begin, is a change of a [`Sequence`]: a lookup that overlaps one is repeated. So a lookup sees complete
//! lines of one geometry. It may miss a key that moves between two stores, and after many tries it gives
//! up: to know nothing is always allowed, and costs a lock, or a request. Lines are never freed before the
//! cache is dropped, so a reader with outdated numbers reads other lines of this table at worst.

mod packing;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tidewater_protocol::ids::TableId;
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::layout::{LINE_BYTES, Line};
use tidewater_protocol::limits::LOCATIONS_MAX;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::mem::sequence::Sequence;
use tidewater_runtime::mem::{Region, Words, WordsMut};
use tidewater_runtime::sync::{Arc, AtomicU64, AtomicUsize, Ordering, spin_hint};

use packing::{FORGOTTEN, HASH_BITS, Packing, can_hold};

/// Lines of a search.
const PROBES: usize = 16;
/// Lines of a new table.
const FIRST_LINES: u64 = 16;
/// Tables with fewer lines are built again at once when they grow.
const SMALL_LINES: u64 = LAST_LINES + MOVED_LINES;
/// A larger one grows by this part of its lines.
const GROWTH_PART: u64 = 16;
/// Lines that one step of a growth moves.
const MOVED_LINES: u64 = 32;
/// A step of a growth for each of so many new keys: it ends while the table gets 1/40 fuller.
const KEYS_A_STEP: usize = 4;
/// The last step moves this many lines at most: lines below would be old and new at the same time.
const LAST_LINES: u64 = GROWTH_PART * (PROBES as u64 + 2) + MOVED_LINES;
/// Fill in 16ths from which a table grows.
const GROW_AT: usize = 14;
/// Fill in 16ths beyond which a new key takes the place of another.
const FULL_AT: usize = 15;
/// Most lines in which an insertion moves an entry.
const RUN_MAX: usize = 512;
/// Most lines of a table: those that [`LOCATIONS_MAX`] entries fill to [`GROW_AT`].
const LINES_MAX: u64 = (LOCATIONS_MAX / 5 * 16 / GROW_AT) as u64;
/// Lines of the first slab; each further one is as large as all before it.
const SLAB_LINES: usize = 64;
const SLABS: usize = 17;
/// Tries of a lookup while the table changes.
const TRIES: usize = 32;
/// [`Geometry::boundary`] of a table that does not grow.
const NO_BOUNDARY: u64 = u64::MAX;

const _: () = assert!(LINES_MAX as usize + PROBES <= SLAB_LINES << (SLABS - 1));

/// Memory that the location caches of a worker may take together.
#[derive(Debug)]
pub struct LocationBudget {
    bytes_max: AtomicUsize,
    used: AtomicUsize,
}

impl Default for LocationBudget {
    /// No bound but [`LOCATIONS_MAX`] keys of each table.
    fn default() -> Self {
        Self {
            bytes_max: AtomicUsize::new(usize::MAX),
            used: AtomicUsize::new(0),
        }
    }
}

impl LocationBudget {
    /// Sets the bound in bytes. A cache that is larger stays as large as it is.
    pub fn set_bytes_max(&self, bytes: usize) {
        // SYNC: none. A number of its own.
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that the caches take.
    pub fn used(&self) -> usize {
        // SYNC: none. A number of its own.
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `lines`, or nothing.
    fn take(&self, lines: u64) -> bool {
        let bytes = lines as usize * LINE_BYTES;
        // SYNC: none. The sum alone matters.
        let max = self.bytes_max.load(Ordering::Relaxed);
        let within = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= max);
        let taken = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within);
        taken.is_ok()
    }

    fn give_back(&self, lines: u64) {
        let bytes = lines as usize * LINE_BYTES;
        // SYNC: none, as in `take`.
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The location caches of a worker's threads: one for each table, and their common bound.
#[derive(Debug, Default)]
pub struct SharedLocations {
    budget: Arc<LocationBudget>,
    tables: Mutex<HashMap<TableId, Weak<Locations>>>,
}

impl SharedLocations {
    /// The cache of a table, which the threads that have the table open share. A number is never given to
    /// another table. Cost: a lock and a map; for the opening of a table.
    pub fn of(&self, table: TableId) -> Arc<Locations> {
        let new = || Arc::new(Locations::new(Arc::clone(&self.budget)));
        if mutants::on(Mutant::LocationsNotShared) {
            return new();
        }
        // A map of weak references is complete after each change.
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tables.get(&table).and_then(Weak::upgrade) {
            return known;
        }
        tables.retain(|_, cache| cache.strong_count() > 0);
        let cache = new();
        tables.insert(table, Arc::downgrade(&cache));
        cache
    }

    /// The memory of all caches.
    pub fn budget(&self) -> &LocationBudget {
        &self.budget
    }
}

/// Numbers that give the line (home) where each search begins, also while the table grows.
#[derive(Debug, Clone, Copy)]
struct Geometry {
    /// Number of lines. [`PROBES`] more take what the last ones have no room for.
    lines: u64,
    /// Number of lines of the table to which it grows.
    next: u64,
    /// First home of `lines` with keys in the larger table.
    boundary: u64,
}

impl Geometry {
    /// The first line of a search, and the packing of the lines.
    #[inline]
    fn home(&self, hash: u64) -> (u64, Packing) {
        let home = scaled(hash, self.lines);
        match home < self.boundary {
            true => (home, Packing::of(self.lines)),
            false => (scaled(hash, self.next), Packing::of(self.next)),
        }
    }

    const fn is_growing(&self) -> bool {
        self.boundary != NO_BOUNDARY
    }
}

/// The hash as a part of `lines`: higher hashes have higher lines.
#[inline]
const fn scaled(hash: u64, lines: u64) -> u64 {
    ((hash as u128 * lines as u128) >> u64::BITS) as u64
}

/// State that only the writer uses.
#[derive(Debug, Default)]
struct Writer {
    /// Number of entries that are in use.
    len: usize,
    /// Entries that are being moved.
    moved: Vec<(u64, RowLocation)>,
}

/// A cache of `key -> RowLocation`. See the [module](self).
#[derive(Debug)]
pub struct Locations {
    sequence: Sequence,
    lines: AtomicU64,
    next: AtomicU64,
    boundary: AtomicU64,
    slabs: [OnceLock<Region>; SLABS],
    writer: Mutex<Writer>,
    budget: Arc<LocationBudget>,
}

impl Default for Locations {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl Drop for Locations {
    fn drop(&mut self) {
        let Geometry { lines, next, .. } = self.geometry();
        self.budget.give_back(lines.max(next));
    }
}

impl Locations {
    /// An empty cache, without memory.
    pub fn new(budget: Arc<LocationBudget>) -> Self {
        Self {
            sequence: Sequence::default(),
            lines: AtomicU64::new(0),
            next: AtomicU64::new(0),
            boundary: AtomicU64::new(NO_BOUNDARY),
            slabs: [const { OnceLock::new() }; SLABS],
            writer: Mutex::default(),
            budget,
        }
    }

    /// The cached location of a key. Takes no lock; `None`, too, if other threads change the cache during
    /// all tries. Cost: mostly one line of the table.
    #[inline]
    pub fn get(&self, key: u64) -> Option<RowLocation> {
        let hash = mix64(key);
        match self.sequence.read(|| self.search(hash)) {
            Some(found) => found,
            None => self.get_again(hash),
        }
    }

    #[cold]
    fn get_again(&self, hash: u64) -> Option<RowLocation> {
        for _ in 0..TRIES {
            spin_hint();
            if let Some(found) = self.sequence.read(|| self.search(hash)) {
                return found;
            }
        }
        None
    }

    /// As [`Self::get`], but waits for a change that is under way: for callers that would ask a server.
    pub fn get_waiting(&self, key: u64) -> Option<RowLocation> {
        let _writer = self.writer();
        self.search(mix64(key))
    }

    /// Prefetches the line where the search for a key begins.
    #[inline]
    pub fn prefetch(&self, key: u64) {
        let (home, _) = self.geometry().home(mix64(key));
        if let Some(line) = self.line(home) {
            line.prefetch();
        }
    }

    /// Stores the location of a key; one that no correct server gives is not kept. Cost: a lock, and a
    /// step of a growth at times (32 lines; the last step up to 370).
    pub fn put(&self, key: u64, loc: RowLocation) {
        if !can_hold(loc) {
            return;
        }
        let mut writer = self.writer();
        self.store(&mut writer, mix64(key), loc);
    }

    /// Forgets the location of a key.
    pub fn forget(&self, key: u64) {
        let _writer = self.writer();
        let hash = mix64(key);
        if let Some(place) = self.find(hash) {
            self.set(&place, hash, FORGOTTEN);
        }
    }

    /// Bytes of the table, without the part of its last slab that was never used.
    pub fn bytes(&self) -> usize {
        let Geometry { lines, next, .. } = self.geometry();
        lines.max(next) as usize * LINE_BYTES
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // A change that panicked leaves complete entries; their number may be wrong.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn geometry(&self) -> Geometry {
        // SYNC: none. The sequence orders them, or the caller holds the writer's lock.
        Geometry {
            lines: self.lines.load(Ordering::Relaxed),
            next: self.next.load(Ordering::Relaxed),
            boundary: self.boundary.load(Ordering::Relaxed),
        }
    }

    fn set_geometry(&self, to: Geometry) {
        // SYNC: none. Within a change of the sequence.
        self.sequence.write(|| {
            self.lines.store(to.lines, Ordering::Relaxed);
            self.next.store(to.next, Ordering::Relaxed);
            self.boundary.store(to.boundary, Ordering::Relaxed);
        });
    }

    /// A line of the table; `None` past its memory.
    #[inline]
    fn line(&self, number: u64) -> Option<Words<'_>> {
        let (slab, at) = slab_of(number);
        self.slabs.get(slab)?.get()?.all_words().get(at, LINE_BYTES)
    }

    fn line_mut(&self, number: u64) -> Option<WordsMut<'_>> {
        let (slab, at) = slab_of(number);
        self.slabs.get(slab)?.get()?.words_mut(at, LINE_BYTES).ok()
    }

    /// Makes the slabs of the lines below `end`. Returns whether there is memory.
    fn make_slabs(&self, end: u64) -> bool {
        let (last, _) = slab_of(end - 1);
        let mut slabs = self.slabs.iter().enumerate().take(last + 1);
        slabs.all(|(n, slab)| {
            if slab.get().is_some() {
                return true;
            }
            // Its pages take memory when they are first written.
            let lines = SLAB_LINES << n.saturating_sub(1);
            match Region::anonymous(lines * LINE_BYTES) {
                Ok(region) => slab.set(region).is_ok(),
                Err(_) => false,
            }
        })
    }

    /// The search of a reader: accepts any numbers and lines, and panics at none.
    #[inline]
    fn search(&self, hash: u64) -> Option<RowLocation> {
        let (home, packing) = self.geometry().home(hash);
        for number in home..home + PROBES as u64 {
            let line = self.line(number)?.line(0);
            if let Some(n) = packing.find(&line, hash) {
                let loc = packing.location(&line, n);
                return (loc != FORGOTTEN).then_some(loc);
            }
            if packing.free(&line).is_some() {
                return None;
            }
        }
        None
    }
}

/// Slab and byte of a line.
#[inline]
const fn slab_of(number: u64) -> (usize, usize) {
    let number = number as usize;
    let slab = (usize::BITS - (number / SLAB_LINES).leading_zeros()) as usize;
    let first = match slab.checked_sub(1) {
        Some(above) if above < SLABS => SLAB_LINES << above,
        _ => 0,
    };
    (slab, (number - first) * LINE_BYTES)
}

/// A place in the table: line, packing, entry.
#[derive(Debug, Clone, Copy)]
struct Place {
    number: u64,
    packing: Packing,
    n: usize,
}

/// Changes. The caller holds the writer's lock. Each store of a line and of the geometry is a change of the
/// sequence; between them a key that is being moved is not found.
impl Locations {
    fn find(&self, hash: u64) -> Option<Place> {
        let (home, packing) = self.geometry().home(hash);
        for number in home..home + PROBES as u64 {
            let line = self.line(number)?.line(0);
            if let Some(n) = packing.find(&line, hash) {
                return Some(Place { number, packing, n });
            }
            packing.free(&line).is_none().then_some(())?;
        }
        None
    }

    fn set(&self, place: &Place, hash: u64, loc: RowLocation) {
        if let Some(to) = self.line_mut(place.number) {
            let mut line = to.as_read().line(0);
            place.packing.set(&mut line, place.n, hash, loc);
            self.store_line(to, &line);
        }
    }

    fn store_line(&self, to: WordsMut<'_>, line: &Line) {
        self.sequence.write(|| to.store_line(0, line));
    }

    fn store(&self, writer: &mut Writer, hash: u64, loc: RowLocation) {
        if let Some(place) = self.find(hash) {
            return self.set(&place, hash, loc);
        }
        self.make_room(writer);
        if self.is_over(writer.len, FULL_AT) {
            // There is no memory. The key that loses its entry costs each of its pulls a request.
            writer.len += usize::from(self.replace(hash, loc));
        } else {
            writer.len += usize::from(self.insert(hash, loc));
        }
    }

    /// Adds an entry behind those of lower hashes: in a full line the greatest hash gives way, and moves to
    /// the next line. Searches stay short in long runs of full lines, because the keys of a run share the
    /// delay. Returns whether there is an entry more; otherwise the run is too long, and its last key has
    /// lost its entry.
    fn insert(&self, mut hash: u64, mut loc: RowLocation) -> bool {
        let geometry = self.geometry();
        let (mut number, packing) = geometry.home(hash);
        for _ in 0..RUN_MAX {
            let Some(to) = self.line_mut(number) else {
                return false;
            };
            let mut line = to.as_read().line(0);
            if let Some(n) = packing.free(&line) {
                packing.set(&mut line, n, hash, loc);
                self.store_line(to, &line);
                return true;
            }
            let lines = match geometry.is_growing() && number > geometry.boundary + PROBES as u64 {
                true => geometry.next,
                false => geometry.lines,
            };
            let of = |n| hash_of(packing.hash_bits(&line, n), packing, number, lines);
            let greatest = (0..packing.entries())
                .filter_map(|n| Some((of(n)?, n)))
                .max();
            if let Some((greater, n)) = greatest.filter(|&(greater, _)| greater > hash) {
                let other = packing.location(&line, n);
                packing.set(&mut line, n, hash, loc);
                self.store_line(to, &line);
                (hash, loc) = (greater, other);
            }
            number += 1;
            if number - geometry.home(hash).0 >= PROBES as u64 {
                return false;
            }
        }
        false
    }

    /// Puts an entry in the place of another one of its first line. Returns whether there is an entry more,
    /// because the line was empty.
    fn replace(&self, hash: u64, loc: RowLocation) -> bool {
        let (number, packing) = self.geometry().home(hash);
        let Some(line) = self.line(number) else {
            return false;
        };
        let used = packing.free(&line.line(0)).unwrap_or(packing.entries());
        let n = (hash as usize).checked_rem(used).unwrap_or(0);
        self.set(&Place { number, packing, n }, hash, loc);
        used == 0
    }

    /// Whether one entry more makes the table more than `parts` 16ths full.
    fn is_over(&self, len: usize, parts: usize) -> bool {
        let Geometry { lines, .. } = self.geometry();
        (len + 1) * 16 > lines as usize * Packing::of(lines).entries() * parts
    }

    /// One new key's share of a growth.
    fn make_room(&self, writer: &mut Writer) {
        let geometry = self.geometry();
        if geometry.is_growing() {
            if writer.len.is_multiple_of(KEYS_A_STEP) {
                self.move_lines(writer, geometry);
            }
            return;
        }
        if !self.is_over(writer.len, GROW_AT) {
            return;
        }
        let lines = geometry.lines;
        let next = match lines {
            0 => FIRST_LINES,
            1..SMALL_LINES => lines + (lines / 4).max(FIRST_LINES),
            SMALL_LINES.. => lines + lines / GROWTH_PART,
        };
        // A smaller step would move entries to lines that are not moved yet.
        if next > LINES_MAX
            || !self.make_slabs(next + PROBES as u64)
            || !self.budget.take(next - lines)
        {
            return;
        }
        let boundary = lines;
        let growing = Geometry {
            lines,
            next,
            boundary,
        };
        self.set_geometry(growing);
        if lines < SMALL_LINES {
            self.move_lines(writer, growing);
        }
    }

    /// One step of a growth: moves the entries with the highest homes that have not moved.
    ///
    /// Moved entries with a home from `b` on are from line `b + b / 16 - 2` on, and the others are below
    /// line `b + PROBES`. So both are apart as long as `b` is at least 16 * (PROBES + 2); the last step
    /// begins above that.
    fn move_lines(&self, writer: &mut Writer, geometry: Geometry) {
        let Geometry {
            lines,
            next,
            boundary: end,
        } = geometry;
        let start = match end.checked_sub(MOVED_LINES) {
            Some(start) if start >= LAST_LINES => start,
            _ => 0,
        };
        let mut moved = std::mem::take(&mut writer.moved);
        moved.clear();
        let packing = Packing::of(lines);
        for number in start..end + PROBES as u64 {
            let Some(from) = self.line_mut(number) else {
                continue;
            };
            let line = from.as_read().line(0);
            for n in 0..packing.entries() {
                let loc = packing.location(&line, n);
                if loc.extent() != 0 {
                    let hash = hash_of(packing.hash_bits(&line, n), packing, number, lines);
                    moved.extend(hash.map(|hash| (hash, loc)));
                }
            }
            self.store_line(from, &[0; 8]);
        }
        writer.len -= moved.len().min(writer.len);
        self.set_geometry(match start {
            0 => Geometry {
                lines: next,
                next,
                boundary: NO_BOUNDARY,
            },
            _ => Geometry {
                lines,
                next,
                boundary: start,
            },
        });
        for &(hash, loc) in &moved {
            // Those with homes below `start` stood behind full lines, and return there.
            writer.len += usize::from(loc != FORGOTTEN && self.insert(hash, loc));
        }
        writer.moved = moved;
    }
}

/// The hash of an entry in a line. The line implies the bits that the packing leaves out: of all hashes with
/// the stored bits, one has a home from which a search reaches the line.
fn hash_of(stored: u64, packing: Packing, number: u64, lines: u64) -> Option<u64> {
    if packing == Packing::Four {
        return Some(stored);
    }
    let guess = (number << (u64::BITS - HASH_BITS)) / lines;
    let mut near = guess.saturating_sub(1)..=guess + 1;
    let above = 1 << (u64::BITS - HASH_BITS);
    near.find_map(|high| {
        let hash = high << HASH_BITS | stored;
        let home = scaled(hash, lines);
        (high < above && home <= number && number < home + PROBES as u64).then_some(hash)
    })
}

#[cfg(test)]
mod tests;

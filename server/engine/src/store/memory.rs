// long: one account of both memories, and the units of it.

//! The server's memories and the allocation of their blocks.
//!
//! ```text
//! public:  +0 superblock record | +64 bytes in use | +4096 parked flag lines, one an applier
//!          (+0 parked flag, +8 liveness word)
//!          +8192 directory, one entry of 64 bytes a block | then blocks
//! private: +0 superblock record | +64 bytes in use | +8192 directory | then blocks
//! counters: ticket records, one an applier
//! ```
//! A block is never moved, split or merged: a freed one goes to a list by size and is handed out again
//! for a request of that size, zeroed unless the caller clears it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use tidewater_lanes::fabric::{AccessFlags, RegionTable, RegisteredRegion};
use tidewater_protocol::ids::{Incarnation, PartitionId, RegionKey, TableId};
use tidewater_protocol::layout::hash::line_checksum;
use tidewater_protocol::layout::{LINE_BYTES, Line};
use tidewater_protocol::limits::MEMORY_BLOCKS_MAX;
use tidewater_runtime::mem::Region;
use tidewater_runtime::mem::pages::give_back;
use tidewater_runtime::sync::device_release_fence;

use super::StoreError;
use super::files::{MemoryFile, MemoryFiles};
use super::hugepages::{Backing, Hugepages, NAMES, NoHugepages};
use super::prealloc::{Pace, STEP_BYTES};
use super::status::StatusLine;

/// Byte offset of the first parked flag line in public memory.
pub const DOZE_AT: usize = 4096;
const DIRECTORY_AT: usize = 8192;
const BLOCKS_AT: usize = DIRECTORY_AT + MEMORY_BLOCKS_MAX * LINE_BYTES;
/// Bytes of pages returned to the system between two readings of the clock.
const RETURNED_BYTES: usize = 1 << 20;
/// Alignment of blocks in bytes, as row slabs need it.
const BLOCK_ALIGN: usize = 64;
/// Byte offset of the word with the number of bytes in use.
pub(super) const USED_AT: usize = 64;
const SUPER: u64 = u64::from_le_bytes(*b"TWMEM001");
const ENTRY: u64 = u64::from_le_bytes(*b"mem-dirE");

/// Size in bytes to reserve for a memory of this capacity: whole pages, and at least twice the bytes in
/// front of its first block.
pub(super) const fn reserved_bytes(capacity: usize) -> usize {
    let least = 2 * BLOCKS_AT;
    let bytes = if capacity < least { least } else { capacity };
    match bytes.checked_next_multiple_of(4096) {
        Some(bytes) => bytes,
        None => usize::MAX - 4095, // refused by the kernel
    }
}

/// Use of a memory block. Its code is in the directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum BlockKind {
    /// Free block, not in use.
    Free = 0,
    /// Rows of a sparse table's extent (public), or their keys and optimizer state (private).
    Extent = 1,
    /// Hash index of a sparse table on one applier (private).
    Index = 2,
    /// Rows or blocks of a dense table (public), or their optimizer state (private).
    Dense = 3,
    /// Version words, snapshot records, extent tables (public), and records of extents for a process that
    /// takes over after a crash (private).
    Meta = 4,
    /// An applier's redo area (private).
    Redo = 5,
    /// Sums of an open iteration, and pages of held frames that end with the process (private).
    Pending = 6,
    /// Status records of rings (public).
    Ring = 7,
    /// An applier's journal (private).
    Journal = 8,
    /// Record of one ring for a process that takes over after a crash, with its refusals (private).
    Session = 9,
    /// Page of held pushes that outlive the process (private).
    Held = 10,
}

/// Identifies one applier's share of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardId {
    /// Number of the table.
    pub table: TableId,
    /// Number of the applier.
    pub applier: u32,
}

impl ShardId {
    /// Creates the identification of the share of `table` on the applier with this number.
    pub const fn new(table: TableId, applier: u32) -> Self {
        Self { table, applier }
    }
}

/// Owner of a memory block, as its directory entry has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockOwner {
    /// Use of the block.
    pub kind: BlockKind,
    /// Number of the table; 0 if the block belongs to no table.
    pub table: u32,
    /// Number of the applier; 0 if the block belongs to none.
    pub applier: u32,
    /// Number of the partition or extent; 0 if the block belongs to none.
    pub part: u32,
}

impl BlockOwner {
    /// Decodes the owner from a directory entry; `None` for an unknown use.
    pub(crate) fn of_words([kind, table, applier, part]: [u32; 4]) -> Option<Self> {
        use BlockKind::{
            Dense, Extent, Free, Held, Index, Journal, Meta, Pending, Redo, Ring, Session,
        };
        let all = [
            Free, Extent, Index, Dense, Meta, Redo, Pending, Ring, Journal, Session, Held,
        ];
        let kind = all.into_iter().find(|known| *known as u32 == kind)?;
        Some(Self {
            kind,
            table,
            applier,
            part,
        })
    }

    /// Creates the owner of a block of a partition in a table's share.
    pub const fn of(shard: ShardId, kind: BlockKind, part: PartitionId) -> Self {
        Self {
            kind,
            table: shard.table.0,
            applier: shard.applier,
            part: part.0,
        }
    }
}

/// Block of the public or the private memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Block {
    /// Byte offset of the block in its memory.
    pub at: usize,
    /// Length in bytes: at least the requested one.
    pub len: usize,
    entry: u32,
}

impl Block {
    /// Creates a block from the numbers of its directory entry.
    pub(super) const fn of_parts(at: usize, len: usize, entry: u32) -> Self {
        Self { at, len, entry }
    }

    /// Number of the block's directory entry.
    pub(super) const fn entry(&self) -> u32 {
        self.entry
    }
}

/// Record at the start of each memory, from which another process finds its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) len: u64,
    pub(super) incarnation: Incarnation,
    pub(super) directory_at: u64,
    pub(super) blocks_at: u64,
}

impl Superblock {
    /// Builds the superblock of a memory as this version writes it.
    pub(super) fn of(region: &Region, incarnation: Incarnation) -> Self {
        Self {
            len: region.len() as u64,
            incarnation,
            directory_at: DIRECTORY_AT as u64,
            blocks_at: BLOCKS_AT as u64,
        }
    }

    /// Reads the superblock of a memory; `None` if there is no valid one.
    pub(super) fn read(region: &Region) -> Option<Self> {
        let line = region.words(0, LINE_BYTES).ok()?.line(0);
        let old = Self {
            len: line[1],
            incarnation: Incarnation(line[2]),
            directory_at: line[3],
            blocks_at: line[4],
        };
        (old.to_line() == line).then_some(old)
    }

    fn to_line(self) -> Line {
        let words = [
            SUPER,
            self.len,
            self.incarnation.0,
            self.directory_at,
            self.blocks_at,
        ];
        let checksum = line_checksum(self.incarnation.0, SUPER, &words);
        let [a, b, c, d, e] = words;
        [a, b, c, d, e, checksum, 0, 0]
    }
}

#[derive(Debug, Default)]
struct AllocatorState {
    used: usize,
    entries: u32,
    free: HashMap<usize, Vec<Block>>,
    /// Free blocks that are zeroed, because no owner has written them; by length.
    clean: HashMap<usize, Vec<Block>>,
}

/// One memory of a server and the allocator of its blocks.
#[derive(Debug)]
pub struct Arena {
    name: &'static str,
    region: Arc<Region>,
    fd: OwnedFd,
    /// Whether blocks are locked in memory when they are allocated.
    locked: bool,
    books: Mutex<AllocatorState>,
}

impl Arena {
    /// Creates a memory without blocks, and writes its superblock.
    pub(super) fn new(
        name: &'static str,
        file: MemoryFile,
        incarnation: Incarnation,
    ) -> Result<Self, StoreError> {
        let superblock = Superblock::of(&file.region, incarnation);
        let words = file.region.words_mut(0, LINE_BYTES)?;
        words.store_line(0, &superblock.to_line());
        Ok(Self::of_file(name, file))
    }

    /// Creates the allocator of a memory without blocks. Writes nothing into the memory.
    pub(super) fn of_file(name: &'static str, MemoryFile { region, fd }: MemoryFile) -> Self {
        let books = Mutex::new(AllocatorState {
            used: BLOCKS_AT,
            ..AllocatorState::default()
        });
        Self {
            name,
            region,
            fd,
            locked: false,
            books,
        }
    }

    /// Returns the mapping of the memory.
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the memory's descriptor, to be passed on (see `mem::region::read_only_fd`).
    pub const fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Locks the used part of the memory against swapping, and every block that is allocated from now on.
    fn lock(&mut self) -> Result<(), StoreError> {
        self.region.lock(0, self.books().used)?;
        self.locked = true;
        Ok(())
    }

    /// Returns the bytes in use (all in front of the end of the last block, free blocks too) and the bytes
    /// reserved.
    pub fn usage(&self) -> (usize, usize) {
        (self.books().used, self.region.len())
    }

    fn books(&self) -> MutexGuard<'_, AllocatorState> {
        match self.books.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// Allocates a zeroed block of `bytes` bytes, rounded up to 64. Not for the data path: takes a lock,
    /// zeroes a block that was used before, and the pages of a new one are not present yet.
    ///
    /// # Errors
    /// [`StoreError::NoMemory`], [`StoreError::Blocks`] when the directory is full, [`StoreError::Mem`]
    /// when the block cannot be locked.
    pub fn alloc(&self, bytes: usize, owner: BlockOwner) -> Result<Block, StoreError> {
        let (block, used) = self.take(bytes, true)?;
        if used {
            let words = self.region.words_mut(block.at, block.len)?;
            words.zero(0, block.len);
        }
        self.write_entry(block, owner)?;
        Ok(block)
    }

    /// Allocates a block without zeroing it: the block may still have the bytes of its last owner. The caller
    /// clears it step by step. For appliers, which have no time to clear much at once.
    ///
    /// # Errors
    /// Those of [`Arena::alloc`]: no memory, a full directory, or a block that cannot be locked.
    pub fn alloc_used(&self, bytes: usize, owner: BlockOwner) -> Result<Block, StoreError> {
        let (block, _) = self.take(bytes, true)?;
        self.write_entry(block, owner)?;
        Ok(block)
    }

    /// Allocates a zeroed block that no owner has written, if there is one or room for one: the kernel zeroes
    /// each page when it is touched. Otherwise zeroes a freed block of that size. For appliers, and blocks that
    /// are too large to be zeroed at once.
    ///
    /// # Errors
    /// Those of [`Arena::alloc`]: no memory, a full directory, or a block that cannot be locked.
    pub fn alloc_untouched(&self, bytes: usize, owner: BlockOwner) -> Result<Block, StoreError> {
        let Ok((block, _)) = self.take(bytes, false) else {
            return self.alloc(bytes, owner);
        };
        self.write_entry(block, owner)?;
        Ok(block)
    }

    /// Allocates a zeroed block with all its pages present, step by step. For the helper thread.
    ///
    /// # Errors
    /// Those of [`Arena::alloc`], and [`StoreError::Mem`] when the system has no memory for the pages. The block
    /// is free again then.
    pub(super) fn alloc_present(
        &self,
        bytes: usize,
        owner: BlockOwner,
        pace: &mut Pace,
    ) -> Result<Block, StoreError> {
        let (block, used) = self.take(bytes, true)?;
        for first in (0..block.len).step_by(STEP_BYTES) {
            let (at, len) = (block.at + first, STEP_BYTES.min(block.len - first));
            let step = || match used {
                true => self.region.words_mut(at, len).map(|w| w.zero(0, len)),
                false => self.region.prefault(at, len),
            };
            if let Err(e) = pace.step(step) {
                self.free(block)?;
                return Err(e.into());
            }
        }
        self.write_entry(block, owner)?;
        Ok(block)
    }

    /// Takes a block off the free lists or from fresh memory. The caller writes its directory entry. Returns the
    /// block, and whether it was used before and is not zeroed; only with `reuse` such a block is taken.
    fn take(&self, bytes: usize, reuse: bool) -> Result<(Block, bool), StoreError> {
        let len = bytes.max(1).next_multiple_of(BLOCK_ALIGN);
        let mut books = self.books();
        if let Some(block) = books.clean.get_mut(&len).and_then(Vec::pop) {
            return Ok((block, false));
        }
        let used = books.free.get_mut(&len).filter(|_| reuse);
        if let Some(block) = used.and_then(Vec::pop) {
            // SYNC: release. What the last owner stored before it freed the block, void versions
            // above all, is ordered by the lock before this fence. This fence is before every store
            // of the new owner. A reader that sees such a store and then fences sees the void
            // versions, see `release_rows`.
            device_release_fence();
            return Ok((block, true));
        }
        let block = self.fresh(&mut books, len)?;
        self.region
            .words_mut(USED_AT, 8)?
            .store(0, books.used as u64);
        Ok((block, false))
    }

    /// Takes over the blocks of a dead process: those of the first `entries` directory entries, up to byte
    /// offset `used` of the memory. Those in `free` become free; the others stay in use.
    pub(super) fn adopt(
        &self,
        entries: u32,
        used: usize,
        free: Vec<Block>,
    ) -> Result<(), StoreError> {
        {
            let mut books = self.books();
            (books.entries, books.used) = (entries, used);
            self.region.words_mut(USED_AT, 8)?.store(0, used as u64);
        }
        free.into_iter().try_for_each(|block| self.free(block))
    }

    fn fresh(&self, books: &mut AllocatorState, len: usize) -> Result<Block, StoreError> {
        let capacity = self.region.len();
        if len > capacity - books.used {
            return Err(StoreError::NoMemory {
                what: "a block",
                memory: self.name,
                bytes: len,
                used: books.used,
                capacity,
            });
        }
        if books.entries as usize >= MEMORY_BLOCKS_MAX {
            return Err(StoreError::Blocks {
                memory: self.name,
                limit: MEMORY_BLOCKS_MAX,
            });
        }
        let block = Block {
            at: books.used,
            len,
            entry: books.entries,
        };
        if self.locked {
            self.region.lock(block.at, block.len)?;
        }
        books.used += len;
        books.entries += 1;
        Ok(block)
    }

    /// Frees a block, to be used again by a request of the same size.
    ///
    /// # Errors
    /// None for a block that this arena has allocated. The caller passes no other.
    pub fn free(&self, block: Block) -> Result<(), StoreError> {
        self.put_back(block, |books| &mut books.free)
    }

    /// Frees a block that was allocated zeroed and never written, which the caller ensures. The next request
    /// of its size gets it unchanged, before any other. So a request that fails for another reason takes no
    /// memory, however often it is repeated.
    ///
    /// # Errors
    /// As [`Self::free`].
    pub(super) fn free_untouched(&self, block: Block) -> Result<(), StoreError> {
        self.put_back(block, |books| &mut books.clean)
    }

    /// Frees a block and returns its pages to the system, step by step: the block takes no memory until it is
    /// allocated and touched again. A block of hugepages is only freed. For the helper thread.
    ///
    /// # Errors
    /// None for a block that this arena has allocated. If the system takes no pages back, the block is only
    /// freed.
    pub(super) fn free_returning(&self, block: Block, pace: &mut Pace) -> Result<(), StoreError> {
        let is_returned = !self.region.pages().are_huge()
            && (0..block.len).step_by(RETURNED_BYTES).all(|first| {
                let (at, len) = (block.at + first, RETURNED_BYTES.min(block.len - first));
                pace.step(|| give_back(&self.fd, at, len)).is_ok()
            });
        match is_returned {
            true => self.free_untouched(block),
            false => self.free(block),
        }
    }

    fn put_back(
        &self,
        block: Block,
        list: impl FnOnce(&mut AllocatorState) -> &mut HashMap<usize, Vec<Block>>,
    ) -> Result<(), StoreError> {
        let none = BlockOwner {
            kind: BlockKind::Free,
            table: 0,
            applier: 0,
            part: 0,
        };
        let mut books = self.books();
        self.write_entry(block, none)?;
        list(&mut books).entry(block.len).or_default().push(block);
        Ok(())
    }

    fn write_entry(&self, block: Block, owner: BlockOwner) -> Result<(), StoreError> {
        let words = [
            u64::from(owner.kind as u32) | u64::from(owner.table) << 32,
            u64::from(owner.applier) | u64::from(owner.part) << 32,
            block.at as u64,
            block.len as u64,
        ];
        let checksum = line_checksum(ENTRY, u64::from(block.entry), &words);
        let at = DIRECTORY_AT + block.entry as usize * LINE_BYTES;
        let [a, b, c, d] = words;
        self.region
            .words_mut(at, LINE_BYTES)?
            .store_line(0, &[a, b, c, d, checksum, 0, 0, 0]);
        Ok(())
    }

    /// Blocks all other allocations and frees of the memory until the guard is dropped.
    #[cfg(test)]
    pub(super) fn stall(&self) -> impl Sized + '_ {
        self.books()
    }

    /// Lists every block in the directory, free ones too, with its owner words: kind, table, applier, part (see
    /// [`BlockOwner`]). In ascending order of offsets. Entries that are not valid are left out. Another process
    /// finds the model by this list.
    ///
    /// # Errors
    /// None in practice: the directory lies inside the memory.
    pub fn directory(&self) -> Result<Vec<(Block, [u32; 4])>, StoreError> {
        let entries = self.books().entries;
        let mut all = Vec::with_capacity(entries as usize);
        for entry in 0..entries {
            all.extend(entry_words(&self.region, entry)?);
        }
        Ok(all)
    }

    /// Reads the block and its owner from a directory entry; `None` for an entry that is not valid, or with a
    /// kind that this version does not know.
    pub(super) fn entry(
        region: &Region,
        entry: u32,
    ) -> Result<Option<(Block, BlockOwner)>, StoreError> {
        let found = entry_words(region, entry)?;
        Ok(found.and_then(|(block, words)| Some((block, BlockOwner::of_words(words)?))))
    }
}

/// Reads a directory entry: the block, with kind, table, applier and part. `None` for an entry that is not
/// valid.
fn entry_words(region: &Region, entry: u32) -> Result<Option<(Block, [u32; 4])>, StoreError> {
    let at = DIRECTORY_AT + entry as usize * LINE_BYTES;
    let line = region.words(at, LINE_BYTES)?.line(0);
    if line_checksum(ENTRY, u64::from(entry), &line[..4]) != line[4] {
        return Ok(None);
    }
    let half = |w: u64| [w as u32, (w >> 32) as u32];
    let ([kind, table], [applier, part]) = (half(line[0]), half(line[1]));
    let block = Block::of_parts(line[2] as usize, line[3] as usize, entry);
    Ok(Some((block, [kind, table, applier, part])))
}

/// All memories of one server: public, private and counters.
#[derive(Debug)]
pub struct ServerMemory {
    /// Memory that clients read.
    pub public: Arena,
    /// Memory that clients cannot read.
    pub private: Arena,
    /// Advisory counters: one ticket record for each applier, which clients may add to.
    pub counters: Arc<Region>,
    /// Descriptor of the memfd of the counters.
    pub counters_fd: OwnedFd,
    /// Region key by which clients access the counters.
    pub counters_key: RegionKey,
    /// Table of the registered regions that clients may access.
    pub exports: Arc<RegionTable>,
    /// Region keys of public blocks, by byte offset. A block keeps its key for ever.
    keys: Mutex<HashMap<usize, RegionKey>>,
    /// Public status records that are free.
    pub(super) free_status: Mutex<Vec<StatusLine>>,
    /// Number of this start of the server.
    pub incarnation: Incarnation,
    /// Whether a holder keeps the memories when this process ends.
    is_held: bool,
}

impl ServerMemory {
    /// Reserves public and private memory of `capacity` bytes each, with ordinary pages, which cost nothing
    /// until they are touched.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(capacity: usize, incarnation: Incarnation) -> Result<Self, StoreError> {
        let backing = Backing {
            hugepages: Hugepages::Off,
            ..Backing::default()
        };
        Ok(Self::with(capacity, incarnation, &backing)?.0)
    }

    /// Reserves public and private memory of `capacity` bytes each, with the pages of `backing`. Also returns
    /// why the pages are not hugepages; `None` if they are, or if hugepages were not wanted. Cost: hugepages are
    /// all allocated and zeroed now, for both memories at the same time.
    ///
    /// # Errors
    /// [`StoreError::Hugepages`]; or when the kernel refuses.
    pub fn with(
        capacity: usize,
        incarnation: Incarnation,
        backing: &Backing,
    ) -> Result<(Self, Option<NoHugepages>), StoreError> {
        let (files, without) = MemoryFiles::reserve(capacity, backing)?;
        let [public, private, counters] = files.into_parts();
        let public = Arena::new(NAMES[0], public, incarnation)?;
        let private = Arena::new(NAMES[1], private, incarnation)?;
        let arenas = [public, private];
        let memory = Self::assemble(arenas, counters, incarnation, incarnation, false)?;
        Ok((memory, without))
    }

    /// Assembles the memories of a server and registers the counters. `keys_of` is the incarnation of the
    /// server that created the memories: region keys stay as long as the memory.
    pub(super) fn assemble(
        [public, private]: [Arena; 2],
        counters: MemoryFile,
        incarnation: Incarnation,
        keys_of: Incarnation,
        is_held: bool,
    ) -> Result<Self, StoreError> {
        let exports = Arc::new(RegionTable::new(keys_of.0 as u8));
        let len = counters.region.len() as u64;
        let export = RegisteredRegion {
            region: Arc::clone(&counters.region),
            start: 0,
            len,
            rights: AccessFlags::Atomic,
            memory: 1,
        };
        let counters_key = exports.add(export)?;
        Ok(Self {
            public,
            private,
            counters: counters.region,
            counters_fd: counters.fd,
            counters_key,
            exports,
            keys: Mutex::default(),
            free_status: Mutex::default(),
            incarnation,
            is_held,
        })
    }

    /// Whether a holder process keeps the memories when this process ends, so that tables can outlive it.
    pub const fn is_held(&self) -> bool {
        self.is_held
    }

    /// Locks both memories against swapping: their present blocks and those allocated later.
    ///
    /// # Errors
    /// [`tidewater_runtime::mem::MemError::Memlock`] when the limit is too low, now or at a later
    /// allocation.
    pub fn lock(&mut self) -> Result<(), StoreError> {
        self.public.lock()?;
        self.private.lock()
    }

    /// Allocates a zeroed block in public memory and registers it. Returns the block, and the region key by
    /// which clients may read it.
    ///
    /// # Errors
    /// [`StoreError`] when memory or keys are used up.
    pub fn public_block(
        &self,
        bytes: usize,
        owner: BlockOwner,
    ) -> Result<(Block, RegionKey), StoreError> {
        let block = self.public.alloc(bytes, owner)?;
        match self.export(block) {
            Ok(key) => Ok((block, key)),
            Err(e) => self.public.free_untouched(block).and(Err(e)),
        }
    }

    /// Registers a public block and returns the region key by which clients may read it. A block that has a
    /// key keeps it.
    ///
    /// # Errors
    /// [`StoreError`] when keys are used up, or a device does not take it; the block is still the
    /// caller's.
    pub(super) fn export(&self, block: Block) -> Result<RegionKey, StoreError> {
        // A freed block keeps its key: a late reader of the former table must find a region (and
        // rows with invalid checksums), not lose its lane.
        let mut keys = match self.keys.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
        if let Some(&key) = keys.get(&block.at) {
            return Ok(key);
        }
        let export = RegisteredRegion {
            region: Arc::clone(self.public.region()),
            start: block.at as u64,
            len: block.len as u64,
            rights: AccessFlags::Read,
            memory: 0,
        };
        // The counters are entry 0. A successor gives each block the same key.
        let key = self.exports.add_at(1 + block.entry, export)?;
        keys.insert(block.at, key);
        Ok(key)
    }

    /// Returns a new pseudo-random salt for checksums. No earlier table or extent of this start of the
    /// server had it.
    pub fn salt(&self) -> u64 {
        static NEXT: Mutex<u64> = Mutex::new(0);
        let mut next = match NEXT.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
        *next += 1;
        tidewater_protocol::layout::hash::mix64(self.incarnation.0 ^ next.rotate_left(40))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: BlockOwner = BlockOwner {
        kind: BlockKind::Extent,
        table: 1,
        applier: 0,
        part: 2,
    };

    #[test]
    fn blocks_are_found_again_and_reused_zeroed() {
        let memory = ServerMemory::new(64 << 20, Incarnation(7)).unwrap();
        let a = memory.public.alloc(1000, OWNER).unwrap();
        let b = memory.public.alloc(64, OWNER).unwrap();
        assert!(b.at >= a.at + a.len && a.len == 1024);
        memory
            .public
            .region()
            .words_mut(a.at, a.len)
            .unwrap()
            .store(8, 9);
        let found = memory.public.directory().unwrap();
        assert_eq!(found, [(a, [1, 1, 0, 2]), (b, [1, 1, 0, 2])]);
        memory.public.free(a).unwrap();
        let c = memory.public.alloc(1024, OWNER).unwrap();
        assert_eq!(c, a);
        assert_eq!(
            memory.public.region().words(c.at, c.len).unwrap().load(8),
            0
        );
    }

    #[test]
    fn used_blocks_come_back_zeroed_or_as_they_were() {
        let memory = ServerMemory::new(16 << 20, Incarnation(7)).unwrap();
        let (arena, bytes) = (&memory.private, 3 * STEP_BYTES / 2);
        let word = |block: Block| {
            arena
                .region()
                .words(block.at, block.len)
                .unwrap()
                .load(STEP_BYTES)
        };
        let mut pace = Pace::default();
        let first = arena.alloc_present(bytes, OWNER, &mut pace).unwrap();
        let again = |alloc: &mut dyn FnMut() -> Block| {
            let words = arena.region().words_mut(first.at, first.len).unwrap();
            words.store(STEP_BYTES, 9);
            arena.free(first).unwrap();
            alloc()
        };
        let block = again(&mut || arena.alloc_present(bytes, OWNER, &mut pace).unwrap());
        assert_eq!((block, word(block)), (first, 0));
        let block = again(&mut || arena.alloc_used(bytes, OWNER).unwrap());
        assert_eq!((block, word(block)), (first, 9));
        let other = again(&mut || arena.alloc_untouched(bytes, OWNER).unwrap());
        assert_ne!(other, first);
        arena.free_untouched(other).unwrap();
        let clean = arena.alloc_untouched(bytes, OWNER).unwrap();
        assert_eq!((clean, word(clean)), (other, 0));
        // There is no room for another: then the used one must do.
        let (used, all) = arena.usage();
        arena.alloc_untouched(all - used, OWNER).unwrap();
        let block = arena.alloc_untouched(bytes, OWNER).unwrap();
        assert_eq!((block, word(block)), (first, 0));
    }

    #[test]
    fn a_full_memory_says_so_and_stays_usable() {
        let memory = ServerMemory::new(16 << 20, Incarnation(7)).unwrap();
        let e = memory.public.alloc(1 << 30, OWNER).unwrap_err();
        assert!(e.to_string().contains("--capacity"), "{e}");
        memory.public.alloc(64, OWNER).unwrap();
    }
}

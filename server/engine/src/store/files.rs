//! The memory files of a server, and how a successor of a dead server takes them over.
//!
//! A server has three files: public memory, private memory and counters. A holder process maps them, keeps
//! the mappings, and forks its servers, which inherit them (docs/adr/0032). The allocator of a memory is on
//! the heap and is made again from the directory: an entry says where a block is and which applier owns it.
//!
//! An entry is written after its block was taken, and again when the block changes its owner. A death in
//! between leaves an entry without a valid checksum. Its block lies between its neighbours, and no owner
//! refers to it: it is free.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tidewater_protocol::ids::Incarnation;
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::hash::line_checksum;
use tidewater_protocol::limits::{APPLIERS_MAX, MEMORY_BLOCKS_MAX};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::mem::{MemError, Region};
use tidewater_runtime::sync::{Ordering, fence};

use super::StoreError;
use super::hugepages::{Backing, NAMES, NoHugepages};
use super::memory::{
    Arena, Block, BlockKind, BlockOwner, DOZE_AT, ServerMemory, Superblock, USED_AT,
};
use super::sparse::ShardError;

/// Version of the layout of everything that a successor reads. It changes with each structure in private
/// memory.
const LAYOUT: u64 = 2;
/// Byte offset of the layout record in private memory.
const LAYOUT_AT: usize = 128;
/// Byte offset in private memory of the incarnation of the server that has the memory.
const INCARNATION_AT: usize = LAYOUT_AT + 32;
const LAYOUT_RECORD: u64 = u64::from_le_bytes(*b"warm-lay");
const COUNTERS: &str = "tidewater-counters";

/// Reason why a successor cannot take over the memory of a dead server. The attempt has changed nothing
/// that another one needs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// A memory has no valid superblock, or private memory no valid layout record.
    #[error(
        "{memory} memory has no valid superblock or layout record: it is not that of a server; start without it"
    )]
    NotMemory {
        /// Name of the memory.
        memory: &'static str,
    },
    /// The server that wrote the memory used another layout.
    #[error(
        "{memory} memory has {what} {found}, this server has {expected}; start the version that wrote it, or \
         start without it from a saved model"
    )]
    Layout {
        /// Name of the memory.
        memory: &'static str,
        /// The number that differs.
        what: &'static str,
        /// Number in the memory.
        found: u64,
        /// Number of this server.
        expected: u64,
    },
    /// The memory was written by another version of the program.
    #[error(
        "the memory was written by version {}, this is version {}; start that one, or start without the \
         memory from a saved model", version_text(*.found), version_text(*.expected)
    )]
    Version {
        /// Version that wrote it: major, minor and patch, 16 bits each, patch lowest.
        found: u64,
        /// Version of this program, in the same form.
        expected: u64,
    },
    /// The successor has the same incarnation as the server that died.
    #[error("incarnation {incarnation:#x} is that of the server that died; draw another one")]
    Incarnation {
        /// Incarnation of both servers.
        incarnation: u64,
    },
    /// The contents of the memory contradict themselves.
    #[error(
        "the memory of the dead server is damaged: {what}; start without it from a saved model"
    )]
    Damaged {
        /// What is wrong, with its numbers.
        what: String,
    },
    /// Memory is used up for what the successor allocates.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The share of a table could not be created or resumed.
    #[error(transparent)]
    Shard(#[from] ShardError),
}

impl From<MemError> for ResumeError {
    fn from(error: MemError) -> Self {
        Self::Store(error.into())
    }
}

/// Encodes the version of this program: major, minor and patch in 16 bits each, patch lowest.
fn version() -> u64 {
    let parts = env!("CARGO_PKG_VERSION").split(['.', '-', '+']).take(3);
    parts.fold(0, |all, part| {
        all << 16 | part.parse::<u64>().unwrap_or(u64::from(u16::MAX))
    })
}

fn version_text(version: u64) -> String {
    format!(
        "{}.{}.{}",
        version >> 32,
        version >> 16 & 0xffff,
        version & 0xffff
    )
}

/// One memory file of a server: its mapping in this process and its descriptor.
#[derive(Debug)]
pub struct MemoryFile {
    /// Mapping of the memory in this process.
    pub region: Arc<Region>,
    /// Descriptor of the memfd.
    pub fd: OwnedFd,
}

/// The three memory files (memfds) of one server, which can outlive its process: public memory, private
/// memory, counters.
#[derive(Debug)]
pub struct MemoryFiles([MemoryFile; 3]);

impl MemoryFiles {
    /// Reserves the files, with `capacity` bytes for public and for private memory each. Also returns why
    /// their pages are not hugepages; `None` if they are, or if hugepages were not wanted. A holder process calls
    /// this function before it forks a server.
    ///
    /// # Errors
    /// [`StoreError::Hugepages`]; or when the kernel refuses.
    pub fn reserve(
        capacity: usize,
        backing: &Backing,
    ) -> Result<(Self, Option<NoHugepages>), StoreError> {
        let counters = Region::memfd(COUNTERS, APPLIERS_MAX as usize * LINE_BYTES)?;
        let ([public, private], without) = backing.reserve(capacity)?;
        let files = [public, private, counters].map(|(region, fd)| MemoryFile {
            region: Arc::new(region),
            fd,
        });
        Ok((Self(files), without))
    }

    /// Duplicates the descriptors of the files for a server process to be forked, with the same mappings; the
    /// holder, the process that keeps the memory, retains its own descriptors.
    ///
    /// # Errors
    /// [`StoreError::Mem`] when there is no descriptor left.
    pub fn share(&self) -> Result<Self, StoreError> {
        let share = |file: &MemoryFile| {
            let fd = file.fd.try_clone().map_err(out_of_fds)?;
            let region = Arc::clone(&file.region);
            Ok::<_, StoreError>(MemoryFile { region, fd })
        };
        let [a, b, c] = &self.0;
        Ok(Self([share(a)?, share(b)?, share(c)?]))
    }

    /// Iterates over the files with number and name: 0 for public memory, 1 for private memory, 2 for
    /// counters.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &'static str, &MemoryFile)> {
        let names = [NAMES[0], NAMES[1], COUNTERS];
        let named = (0..).zip(names).zip(&self.0);
        named.map(|((number, name), file)| (number, name, file))
    }

    pub(super) fn into_parts(self) -> [MemoryFile; 3] {
        self.0
    }
}

fn out_of_fds(source: io::Error) -> MemError {
    MemError::Os {
        call: "dup",
        bytes: 0,
        source,
        remedy: "raise ulimit -n",
    }
}

impl ServerMemory {
    /// Creates new server memories in files that a holder process keeps, so that tables can outlive this
    /// process.
    ///
    /// # Errors
    /// [`StoreError`] when a file is too small for its records, or the counters cannot be registered.
    pub fn held(files: MemoryFiles, incarnation: Incarnation) -> Result<Self, StoreError> {
        let [public, private, counters] = files.into_parts();
        let public = Arena::new(NAMES[0], public, incarnation)?;
        let private = Arena::new(NAMES[1], private, incarnation)?;
        let words = [LAYOUT_RECORD, LAYOUT, version()];
        let checksum = line_checksum(LAYOUT_RECORD, LAYOUT, &words);
        let [a, b, c] = words;
        let at = private.region().words_mut(LAYOUT_AT, LINE_BYTES)?;
        at.store_line(0, &[a, b, c, checksum, incarnation.0, 0, 0, 0]);
        let arenas = [public, private];
        Self::assemble(arenas, counters, incarnation, incarnation, true)
    }

    /// Takes over the memories of a server that died. Region keys stay valid: all public blocks are registered
    /// again. Parked flags are cleared, and all status records become free. The caller resumes every applier of
    /// the server before the first one of them steps.
    ///
    /// # Errors
    /// [`ResumeError`]; where found and expected numbers differ, it has both.
    pub fn resume(files: MemoryFiles, incarnation: Incarnation) -> Result<Self, ResumeError> {
        let [public, private, counters] = files.into_parts();
        check_layout(&private.region)?;
        // One word: superblocks stay as the first server wrote them, so that none of them is ever cut.
        if private.region.words(INCARNATION_AT, 8)?.load(0) == incarnation.0 {
            let incarnation = incarnation.0;
            return Err(ResumeError::Incarnation { incarnation });
        }
        // Checked with the arena.
        let made_by = Superblock::read(&public.region).map_or(incarnation, |old| old.incarnation);
        let keys_of = match mutants::on(Mutant::KeysOfEachStart) {
            true => incarnation,
            false => made_by,
        };
        let public = resume_arena(NAMES[0], public)?;
        let private = resume_arena(NAMES[1], private)?;
        let last = private.region().words_mut(INCARNATION_AT, 8)?;
        last.store(0, incarnation.0);
        let arenas = [public, private];
        let memory = Self::assemble(arenas, counters, incarnation, keys_of, true)?;
        // No thread of the dead process is parked.
        let flags = usize::from(APPLIERS_MAX) * LINE_BYTES;
        let flags = memory.public.region().words_mut(DOZE_AT, flags)?;
        (0..usize::from(APPLIERS_MAX)).for_each(|applier| flags.store(applier * LINE_BYTES, 0));
        memory.resume_status_slabs()?;
        // Free ones too: a late reader must find a region, as in the process before.
        for (block, _) in memory.public.directory()? {
            memory.export(block)?;
        }
        Ok(memory)
    }

    /// Frees all blocks with an owner for which `is_of` is true, unless they are in `kept`: the blocks in use of
    /// public memory, and those of private memory. The freed public blocks are zeroed before any of them has a
    /// new owner, so that late readers find no valid row.
    pub(crate) fn free_others(
        &self,
        is_of: impl Fn(&BlockOwner) -> bool,
        kept: [&[Block]; 2],
    ) -> Result<(), StoreError> {
        let [public, private] = [&self.public, &self.private];
        let mut others = Vec::new();
        for (arena, kept) in [(public, kept[0]), (private, kept[1])] {
            let mut of_arena = arena.directory()?;
            of_arena.retain(|(block, words)| {
                BlockOwner::of_words(*words)
                    .is_some_and(|owner| owner.kind != BlockKind::Free && is_of(&owner))
                    && !kept.contains(block)
            });
            others.push((arena, of_arena));
        }
        for (block, _) in others.iter().take(1).flat_map(|(_, blocks)| blocks) {
            let words = public.region().words_mut(block.at, block.len)?;
            words.zero(0, block.len);
        }
        // SYNC: release. As in `release_rows`: void rows before the memory's next owner.
        fence(Ordering::Release);
        for (arena, blocks) in others {
            for (block, _) in blocks {
                arena.free(block)?;
            }
        }
        Ok(())
    }
}

/// Checks that private memory was written with this layout and by this version of the program.
fn check_layout(private: &Region) -> Result<(), ResumeError> {
    let line = private.words(LAYOUT_AT, LINE_BYTES)?.line(0);
    let memory = NAMES[1];
    if line[0] != LAYOUT_RECORD || line_checksum(LAYOUT_RECORD, line[1], &line[..3]) != line[3] {
        return Err(ResumeError::NotMemory { memory });
    }
    if line[1] != LAYOUT {
        return Err(ResumeError::Layout {
            memory,
            what: "layout",
            found: line[1],
            expected: LAYOUT,
        });
    }
    match line[2] == version() {
        true => Ok(()),
        false => Err(ResumeError::Version {
            found: line[2],
            expected: version(),
        }),
    }
}

/// Rebuilds the allocator of a memory from its directory. Blocks without a valid entry become free.
///
/// # Errors
/// [`ResumeError::NotMemory`], [`ResumeError::Layout`] for a superblock of another layout or size,
/// [`ResumeError::Damaged`] if blocks do not lie one after the other.
fn resume_arena(name: &'static str, file: MemoryFile) -> Result<Arena, ResumeError> {
    let old = Superblock::read(&file.region).ok_or(ResumeError::NotMemory { memory: name })?;
    let own = Superblock::of(&file.region, old.incarnation);
    let differs = |what, found: u64, expected: u64| ResumeError::Layout {
        memory: name,
        what,
        found,
        expected,
    };
    for (what, found, expected) in [
        ("length", old.len, own.len),
        ("directory at", old.directory_at, own.directory_at),
        ("blocks at", old.blocks_at, own.blocks_at),
    ] {
        if found != expected {
            return Err(differs(what, found, expected));
        }
    }
    let used = file.region.words(USED_AT, 8)?.load(0);
    let mut found = Vec::new();
    for entry in 0..MEMORY_BLOCKS_MAX as u32 {
        let owned = Arena::entry(&file.region, entry)?;
        found.push(owned);
        // Blocks lie one after the other, in the order of their entries.
        if owned.is_some_and(|(block, _)| (block.at + block.len) as u64 >= used) {
            break;
        }
    }
    let entries = found.iter().rposition(Option::is_some).map_or(0, |n| n + 1);
    let arena = Arena::of_file(name, file);
    let mut end = own.blocks_at as usize;
    let mut free = Vec::new();
    for (entry, owned) in (0u32..).zip(&found[..entries]) {
        let next = found[entry as usize..entries].iter().flatten().next();
        let Some((next, _)) = next.filter(|(next, _)| next.at >= end) else {
            let what =
                format!("block {entry} of {name} memory lies before {end}, where the last ended");
            return Err(ResumeError::Damaged { what });
        };
        // An entry that was being written: its block goes on to the next one.
        let lost = Block::of_parts(end, next.at - end, entry);
        let block = owned.map_or(lost, |(block, _)| block);
        if block.at != end || block.len > own.len as usize - end {
            let what = format!(
                "block {entry} of {name} memory is at {}, not at {end}",
                block.at
            );
            return Err(ResumeError::Damaged { what });
        }
        end += block.len;
        // One without bytes is behind another lost one, which has them.
        if block.len > 0 && owned.is_none_or(|(_, owner)| owner.kind == BlockKind::Free) {
            free.push(block);
        }
    }
    let mut entries = entries as u32;
    // The entry of the last block was being written. Its memory need not be zero: it is no fresh one.
    if used as usize > end && used <= own.len {
        free.push(Block::of_parts(end, used as usize - end, entries));
        (entries, end) = (entries + 1, used as usize);
    }
    arena.adopt(entries, end, free)?;
    Ok(arena)
}

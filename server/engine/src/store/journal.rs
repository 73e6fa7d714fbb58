//! The journal of an applier: what a successor cannot find in rows, one entry after the other.
//!
//! Entries are bytes to this module. They are numbered without gaps, and each has a checksum over number,
//! length and bytes: an entry that was cut by a death does not count, and ends the journal. When a block is
//! full, the state so far is written to a new block, which counts once its last entry is there. Until then
//! the old block is the journal.
//!
//! ```text
//! entry   u64 number | u64 bytes | u64 checksum | bytes, to a multiple of 8
//! block   entry without bytes (begin) | state | entry without bytes (complete) | entries
//! ```

use std::sync::Arc;

use tidewater_protocol::layout::hash::H64;
use tidewater_protocol::mutants::{self, Mutant};

use super::StoreError;
use super::files::ResumeError;
use super::memory::{Block, BlockKind, BlockOwner, ServerMemory};

const JOURNAL: u64 = u64::from_le_bytes(*b"journal ");
const HEADER_BYTES: usize = 24;
/// Bytes of the smallest block of a journal.
const BLOCK_BYTES: usize = 64 << 10;

/// Write-ahead journal of one applier in private memory, for a process that takes over after a crash.
#[derive(Debug)]
pub(crate) struct Journal {
    memory: Arc<ServerMemory>,
    owner: BlockOwner,
    block: Block,
    /// Byte offset of the next entry in the block.
    at: usize,
    /// Number of the next entry, from 1.
    next: u64,
}

impl Journal {
    /// Creates a journal without entries for an applier, in a new block of private memory.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub(crate) fn new(memory: &Arc<ServerMemory>, applier: u32) -> Result<Self, StoreError> {
        let owner = owner(applier);
        let mut journal = Self {
            memory: Arc::clone(memory),
            owner,
            block: memory.private.alloc(BLOCK_BYTES, owner)?,
            at: 0,
            next: 1,
        };
        journal.write(&[])?;
        journal.write(&[])?;
        Ok(journal)
    }

    /// Reads the journal that a dead process left: the journal, and its entries in order. The newest
    /// complete block counts.
    pub(crate) fn resume(
        memory: &Arc<ServerMemory>,
        applier: u32,
    ) -> Result<(Self, Vec<Vec<u8>>), ResumeError> {
        let owner = owner(applier);
        let mut found = Vec::new();
        for (block, words) in memory.private.directory()? {
            if BlockOwner::of_words(words) != Some(owner) {
                continue;
            }
            found.extend(read(memory, block)?.map(|read| (block, read)));
        }
        let newest = found.into_iter().max_by_key(|(_, read)| read.first);
        let Some((block, read)) = newest else {
            let what = format!("applier {applier} has no complete journal");
            return Err(ResumeError::Damaged { what });
        };
        let (next, at) = (read.first + read.entries, read.end);
        let journal = Self {
            memory: Arc::clone(memory),
            owner,
            block,
            at,
            next,
        };
        Ok((journal, read.state))
    }

    /// Returns the memory block that holds the journal.
    pub(crate) const fn block(&self) -> Block {
        self.block
    }

    /// Appends an entry to the journal. Returns false, with nothing written, if the journal's block has no
    /// room: the caller then calls [`Self::renew`] and appends again.
    ///
    /// # Errors
    /// None in practice: the block lies inside the server's private memory.
    pub(crate) fn append(&mut self, entry: &[u8]) -> Result<bool, StoreError> {
        let has_room = self.at + bytes_of(entry) <= self.block.len;
        if has_room {
            self.write(entry)?;
        }
        Ok(has_room)
    }

    /// Moves the journal to a new block that begins with the entries `state`, which replace all entries so
    /// far. The block has at least twice the size of `state` and `entry` together: the caller appends `entry`
    /// afterwards, which then has room.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up; the journal is as it was.
    pub(crate) fn renew(&mut self, state: &[Vec<u8>], entry: &[u8]) -> Result<(), StoreError> {
        let needed: usize = state.iter().map(|entry| bytes_of(entry)).sum();
        let bytes = 2 * (needed + 2 * HEADER_BYTES + bytes_of(entry));
        let bytes = bytes.next_power_of_two().max(BLOCK_BYTES);
        let block = self.memory.private.alloc(bytes, self.owner)?;
        let old = std::mem::replace(&mut self.block, block);
        self.at = 0;
        self.write(&[])?;
        state.iter().try_for_each(|entry| self.write(entry))?;
        self.write(&[])?;
        self.memory.private.free(old)
    }

    fn write(&mut self, entry: &[u8]) -> Result<(), StoreError> {
        let at = self.block.at + self.at;
        let private = self.memory.private.region();
        let words = private.words_mut(at, bytes_of(entry))?;
        words.store(0, self.next);
        words.store(8, entry.len() as u64);
        words.store(16, checksum(self.next, entry));
        words.copy_in(HEADER_BYTES, entry);
        self.at += bytes_of(entry);
        self.next += 1;
        Ok(())
    }
}

const fn owner(applier: u32) -> BlockOwner {
    BlockOwner {
        kind: BlockKind::Journal,
        table: 0,
        applier,
        part: 0,
    }
}

const fn bytes_of(entry: &[u8]) -> usize {
    HEADER_BYTES + entry.len().next_multiple_of(8)
}

fn checksum(number: u64, entry: &[u8]) -> u64 {
    H64::new([JOURNAL, number, entry.len() as u64, 0]).finish_bytes(entry)
}

/// Result of reading a journal block: its entries and their numbers.
struct Read {
    /// Number of the first entry, and the number of entries.
    first: u64,
    entries: u64,
    /// Byte offset after the last entry.
    end: usize,
    /// Contents of the entries that hold bytes, in order.
    state: Vec<Vec<u8>>,
}

/// Reads the entries of a journal block; `None` for a block that is not complete.
fn read(memory: &ServerMemory, block: Block) -> Result<Option<Read>, StoreError> {
    let words = memory.private.region().words(block.at, block.len)?;
    let first = words.load(0);
    let mut read = Read {
        first,
        entries: 0,
        end: 0,
        state: Vec::new(),
    };
    let mut marks = 0;
    while read.end + HEADER_BYTES <= block.len {
        let number = words.load(read.end);
        let len = words.load(read.end + 8);
        let room = (block.len - read.end - HEADER_BYTES) as u64;
        if number == 0 || number != first + read.entries || len > room {
            break;
        }
        let mut entry = vec![0; len as usize];
        words.copy_out(read.end + HEADER_BYTES, &mut entry);
        let is_complete = checksum(number, &entry) == words.load(read.end + 16);
        if !is_complete && !mutants::on(Mutant::TornJournalUsed) {
            break;
        }
        read.entries += 1;
        read.end += bytes_of(&entry);
        match entry.is_empty() {
            true => marks += 1,
            false => read.state.push(entry),
        }
    }
    Ok((marks == 2).then_some(read))
}

#[cfg(test)]
mod tests {
    use tidewater_protocol::ids::Incarnation;

    use super::*;

    fn entries(n: usize) -> Vec<Vec<u8>> {
        (0..n).map(|n| vec![n as u8; 1 + n * 7 % 90]).collect()
    }

    fn resumed(memory: &Arc<ServerMemory>) -> Vec<Vec<u8>> {
        Journal::resume(memory, 3).unwrap().1
    }

    /// A journal is read as it was written, in one block and after it moved to another, and goes on.
    #[test]
    fn entries_are_found_again_in_order() {
        let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(7)).unwrap());
        let mut journal = Journal::new(&memory, 3).unwrap();
        Journal::new(&memory, 4).unwrap();
        let all = entries(2_000);
        let mut moves = 0;
        for (n, entry) in all.iter().enumerate() {
            if !journal.append(entry).unwrap() {
                journal.renew(&all[..n], entry).unwrap();
                assert!(journal.append(entry).unwrap());
                moves += 1;
            }
            if n % 100 == 0 {
                assert_eq!(resumed(&memory), all[..=n]);
                (journal, _) = Journal::resume(&memory, 3).unwrap();
            }
        }
        assert!(moves > 0);
        assert_eq!(resumed(&memory), all);
    }

    /// A journal that is cut after any word has the entries before the one that was cut.
    #[cfg(feature = "mutants")]
    #[test]
    fn journal_cut_at_any_word_keeps_complete_entries() {
        use tidewater_runtime::mem::crash::run_for;
        for renews in [false, true] {
            for words in 0.. {
                let memory = Arc::new(ServerMemory::new(16 << 20, Incarnation(7)).unwrap());
                let mut journal = Journal::new(&memory, 3).unwrap();
                let before = entries(5);
                for entry in &before {
                    assert!(journal.append(entry).unwrap());
                }
                let entry = vec![9; 77];
                let cut = run_for(words, || match renews {
                    true => journal.renew(&before, &entry),
                    false => journal.append(&entry).map(|_| ()),
                });
                let mut found = resumed(&memory);
                if !renews && cut.is_some() {
                    assert_eq!(found.pop(), Some(entry));
                }
                assert_eq!(found, before, "cut after {words} words");
                if cut.is_some() {
                    break;
                }
            }
        }
    }
}

//! The journal of an applier: what a successor cannot find in rows, one entry after the other.
//!
//! Entries are bytes to this module. They are numbered without gaps, and each has a checksum over number,
//! length and bytes: an entry that was cut by a death does not count, and ends the journal. When a block is
//! full, the state so far is written to another block, which counts once its last entry is there. Until then
//! the old block is the journal. The journal keeps that block, so that it goes on where memory is used up. Entries
//! from the block's earlier use have smaller numbers and do not count.
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
    /// Block to which the journal moves next, unless it needs a larger one; `None` where there was no memory for it.
    spare: Option<Block>,
    /// Byte offset of the next entry in the block.
    at: usize,
    /// Number of the next entry, from 1.
    next: u64,
}

impl Journal {
    /// Creates a journal without entries for an applier, in new blocks of private memory.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub(crate) fn new(memory: &Arc<ServerMemory>, applier: u32) -> Result<Self, StoreError> {
        let owner = owner(applier);
        let mut journal = Self {
            memory: Arc::clone(memory),
            owner,
            block: memory.private.alloc(BLOCK_BYTES, owner)?,
            spare: Some(memory.private.alloc(BLOCK_BYTES, owner)?),
            at: 0,
            next: 1,
        };
        journal.write(&[])?;
        journal.write(&[])?;
        Ok(journal)
    }

    /// Opens the journal that a dead process left. Also returns the bytes of its entries in order: the state with
    /// which its block begins, and the entries appended since. The newest complete block counts.
    ///
    /// # Errors
    /// [`ResumeError::Damaged`] if no block of the applier holds a complete journal.
    pub(crate) fn resume(
        memory: &Arc<ServerMemory>,
        applier: u32,
    ) -> Result<(Self, Vec<Vec<u8>>), ResumeError> {
        let owner = owner(applier);
        let mut found = Vec::new();
        let mut blocks = Vec::new();
        for (block, words) in memory.private.directory()? {
            if BlockOwner::of_words(words) != Some(owner) {
                continue;
            }
            blocks.push(block);
            found.extend(read(memory, block)?.map(|read| (block, read)));
        }
        let newest = found.into_iter().max_by_key(|(_, read)| read.first);
        let Some((block, read)) = newest else {
            let what = format!("applier {applier} has no complete journal");
            return Err(ResumeError::Damaged { what });
        };
        let (next, at) = (read.first + read.entries, read.end);
        let others = blocks.into_iter().filter(|other| *other != block);
        let journal = Self {
            memory: Arc::clone(memory),
            owner,
            block,
            spare: others.max_by_key(|other| other.len),
            at,
            next,
        };
        Ok((journal, read.state))
    }

    /// Returns the memory blocks of the journal: the one that holds it, and the one it moves to next.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Block> {
        std::iter::once(self.block).chain(self.spare)
    }

    /// Appends an entry, which must have bytes, to the journal. Returns false, with nothing written, if the
    /// journal's block has no room: the caller then calls [`Self::renew`] and appends again.
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

    /// Moves the journal to another block that begins with the entries `state`, which replace all entries so
    /// far and must have bytes. The block has at least twice the size of `state` and `entry` together: the caller
    /// appends `entry` afterwards, which then has room. Needs new memory only if the spare block is smaller than
    /// that. After a move to a larger block, tries to make a spare block of the new size.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up and the spare block is too small; the journal is as it was.
    pub(crate) fn renew(&mut self, state: &[Vec<u8>], entry: &[u8]) -> Result<(), StoreError> {
        let needed: usize = state.iter().map(|entry| bytes_of(entry)).sum();
        let bytes = 2 * (needed + 2 * HEADER_BYTES + bytes_of(entry));
        let bytes = bytes.next_power_of_two().max(BLOCK_BYTES);
        let private = &Arc::clone(&self.memory).private;
        let (block, smaller) = match self.spare.take() {
            Some(spare) if spare.len >= bytes && !mutants::on(Mutant::JournalTakesMemory) => {
                (spare, None)
            }
            smaller => match private.alloc(bytes, self.owner) {
                Ok(block) => (block, smaller),
                Err(e) => {
                    self.spare = smaller;
                    return Err(e);
                }
            },
        };
        let old = std::mem::replace(&mut self.block, block);
        self.at = 0;
        self.write(&[])?;
        state.iter().try_for_each(|entry| self.write(entry))?;
        self.write(&[])?;
        self.spare = Some(old);
        if old.len < block.len {
            // The state has grown: the next block has to be as large.
            for block in [Some(old), smaller].into_iter().flatten() {
                private.free(block)?;
            }
            self.spare = private.alloc(block.len, self.owner).ok();
        } else if let Some(smaller) = smaller {
            private.free(smaller)?;
        }
        Ok(())
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
    /// Number of the first entry.
    first: u64,
    /// Number of entries, with those that hold no bytes.
    entries: u64,
    /// Byte offset after the last entry.
    end: usize,
    /// Contents of the entries that hold bytes, in order.
    state: Vec<Vec<u8>>,
}

/// Reads the entries of a journal block, up to the first that is damaged or was not written completely. `None` for a
/// block in which the state at its beginning is not complete.
///
/// # Errors
/// [`StoreError`] if the block does not lie inside private memory.
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

    /// A journal moves between its two blocks when no memory is left, also after a death.
    #[test]
    fn journal_goes_on_where_memory_is_used_up() {
        let memory = Arc::new(ServerMemory::new(16 << 20, Incarnation(7)).unwrap());
        let mut journal = Journal::new(&memory, 3).unwrap();
        let of_index = BlockOwner {
            kind: BlockKind::Index,
            ..owner(9)
        };
        for bits in (6..24).rev() {
            while memory.private.alloc(1 << bits, of_index).is_ok() {}
        }
        let state = entries(20);
        let mut moves = 0;
        for n in 0..10_000_u64 {
            let entry = n.to_le_bytes();
            if !journal.append(&entry).unwrap() {
                journal.renew(&state, &entry).unwrap();
                assert!(journal.append(&entry).unwrap());
                moves += 1;
                let mut found = resumed(&memory);
                assert_eq!(found.pop(), Some(entry.to_vec()));
                assert_eq!(found, state);
                (journal, _) = Journal::resume(&memory, 3).unwrap();
            }
        }
        assert!(moves > 2, "{moves}");
        // A state that needs a larger block is refused, and changes nothing.
        let large = vec![vec![1; BLOCK_BYTES]];
        let before = resumed(&memory);
        assert!(journal.renew(&large, &[2]).is_err());
        assert_eq!(resumed(&memory), before);
        assert!(journal.append(&[3]).unwrap());
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
                // Both blocks have entries of their earlier use.
                for _ in 0..2 {
                    journal.renew(&entries(3), &[]).unwrap();
                    assert!(journal.append(&[7; 40]).unwrap());
                }
                journal.renew(&[], &[]).unwrap();
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

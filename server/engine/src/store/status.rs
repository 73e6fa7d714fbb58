//! Public status records of rings: the copies that clients read when their mailbox shows no
//! progress.
//!
//! Records are allocated from slabs. A slab is one exported block, so that thousands of sessions
//! take few region keys and few registrations of a device.

use std::sync::MutexGuard;

use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::{LINE_BYTES, Line};
use tidewater_protocol::wire::control::Remote;

use super::StoreError;
use super::memory::{BlockKind, BlockOwner, ServerMemory};

/// Number of status records in a slab.
const SLAB_LINES: usize = 512;

/// Location of one public status record of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusLine {
    /// Byte offset of the record in public memory.
    pub at: usize,
    key: RegionKey,
}

impl StatusLine {
    /// Returns address (byte offset in public memory), region key and length by which clients read the record.
    pub const fn remote(&self) -> Remote {
        Remote {
            key: self.key,
            address: self.at as u64,
            len: LINE_BYTES as u64,
        }
    }
}

impl ServerMemory {
    /// Allocates a public status record for one ring, with the content `line`.
    ///
    /// # Errors
    /// [`StoreError`] when memory or keys are used up.
    pub fn status_line(&self, line: &Line) -> Result<StatusLine, StoreError> {
        let mut free = self.free_status_lines();
        let status = match free.pop() {
            Some(status) => status,
            None => self.status_slab(&mut free)?,
        };
        drop(free);
        self.store_status(status, line)?;
        Ok(status)
    }

    /// Frees a status record, and clears it so that no client takes it for a state.
    ///
    /// # Errors
    /// None for a record that this memory has allocated; the caller passes no other.
    pub fn free_status_line(&self, status: StatusLine) -> Result<(), StoreError> {
        self.store_status(status, &Line::default())?;
        self.free_status_lines().push(status);
        Ok(())
    }

    /// Takes the status record at byte offset `at` of public memory off the free list, for a ring that is
    /// resumed. `None` if no record there is free. The content stays.
    pub(crate) fn take_status_line(&self, at: usize) -> Option<StatusLine> {
        let mut free = self.free_status_lines();
        let found = free.iter().position(|status| status.at == at)?;
        Some(free.swap_remove(found))
    }

    /// Allocates a slab of 512 status records in public memory. Returns its first record, and adds the others
    /// to `free`.
    fn status_slab(&self, free: &mut Vec<StatusLine>) -> Result<StatusLine, StoreError> {
        let owner = BlockOwner {
            kind: BlockKind::Ring,
            table: 0,
            applier: 0,
            part: 0,
        };
        let (block, key) = self.public_block(SLAB_LINES * LINE_BYTES, owner)?;
        let line = |n| StatusLine {
            at: block.at + n * LINE_BYTES,
            key,
        };
        free.extend((1..SLAB_LINES).rev().map(line));
        Ok(line(0))
    }

    /// Registers the slabs of a dead process again. All their records become free.
    pub(super) fn resume_status_slabs(&self) -> Result<(), StoreError> {
        let mut free = self.free_status_lines();
        for (block, [kind, ..]) in self.public.directory()? {
            if kind == BlockKind::Ring as u32 {
                let key = self.export(block)?;
                let line = |at| StatusLine { at, key };
                let records = (block.at..block.at + block.len).step_by(LINE_BYTES);
                free.extend(records.rev().map(line));
            }
        }
        Ok(())
    }

    fn store_status(&self, status: StatusLine, line: &Line) -> Result<(), StoreError> {
        let words = self.public.region().words_mut(status.at, LINE_BYTES)?;
        words.store_line(0, line);
        Ok(())
    }

    fn free_status_lines(&self) -> MutexGuard<'_, Vec<StatusLine>> {
        match self.free_status.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidewater_lanes::fabric::AccessFlags;
    use tidewater_protocol::ids::Incarnation;

    use super::*;

    #[test]
    fn state_lines_are_apart_exported_and_used_again() {
        let memory = ServerMemory::new(16 << 20, Incarnation(7)).unwrap();
        let exports = memory.exports.view();
        let line = [5; 8];
        let made: Vec<_> = (0..2 * SLAB_LINES)
            .map(|_| memory.status_line(&line).unwrap())
            .collect();
        let places: BTreeSet<usize> = made.iter().map(|status| status.at).collect();
        assert_eq!(places.len(), made.len());
        let keys: BTreeSet<u32> = made.iter().map(|status| status.key.0).collect();
        assert_eq!(keys.len(), 2, "a key for each slab");
        let mut exports = exports;
        for status in &made {
            let Remote { key, address, len } = status.remote();
            assert!(address.is_multiple_of(LINE_BYTES as u64));
            assert!(exports.check(key, address, len, AccessFlags::Read).is_ok());
            assert!(
                exports
                    .check(key, address, len, AccessFlags::Write)
                    .is_err()
            );
        }
        let used = memory.public.usage();
        for &status in &made {
            memory.free_status_line(status).unwrap();
            let words = memory.public.region().words(status.at, LINE_BYTES).unwrap();
            assert_eq!(words.line(0), Line::default());
        }
        for _ in &made {
            memory.status_line(&line).unwrap();
        }
        assert_eq!(memory.public.usage(), used);
    }
}

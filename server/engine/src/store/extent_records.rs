//! Records of the extents of a table that outlives its process: where rows and keys of each extent are.
//!
//! The extent table that clients read names the rows only, and with region keys of one process. A line here
//! names both blocks, and is written before the extent is used.
//!
//! `rows at u64 | rows bytes u64 | records at u64 | records bytes u64 | entries u32 u32 | slots u64 | salt u64 |
//! checksum u64`

use std::sync::Arc;

use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::hash::line_checksum;
use tidewater_protocol::limits::EXTENTS_MAX;

use super::StoreError;
use super::memory::{Block, BlockKind, BlockOwner, ServerMemory};

const EXTENT: u64 = u64::from_le_bytes(*b"extent-p");

/// Memory blocks, number of slots and salt of one extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExtentRecord {
    pub(super) rows: Block,
    pub(super) records: Block,
    pub(super) slots: u32,
    pub(super) salt: u64,
}

/// Records of the extents of one table on one applier, in private memory, for a process that takes over
/// after a crash.
#[derive(Debug)]
pub(super) struct ExtentRecords {
    memory: Arc<ServerMemory>,
    block: Block,
}

impl ExtentRecords {
    /// Allocates records for as many extents as a table can have.
    pub(super) fn new(memory: &Arc<ServerMemory>, owner: BlockOwner) -> Result<Self, StoreError> {
        let owner = BlockOwner {
            kind: BlockKind::Meta,
            ..owner
        };
        let block = memory.private.alloc(EXTENTS_MAX * LINE_BYTES, owner)?;
        Ok(Self::attach(memory, block))
    }

    /// Opens the records that a dead process left in `block`, for its successor to read.
    pub(super) fn attach(memory: &Arc<ServerMemory>, block: Block) -> Self {
        let memory = Arc::clone(memory);
        Self { memory, block }
    }

    pub(super) const fn block(&self) -> Block {
        self.block
    }

    /// Writes the record of the extent with number `n`, from 0.
    pub(super) fn write(&self, n: usize, extent: ExtentRecord) -> Result<(), StoreError> {
        let ExtentRecord { rows, records, .. } = extent;
        let words = [
            rows.at as u64,
            rows.len as u64,
            records.at as u64,
            records.len as u64,
            u64::from(rows.entry()) | u64::from(records.entry()) << 32,
            u64::from(extent.slots),
            extent.salt,
        ];
        let checksum = line_checksum(EXTENT, n as u64, &words);
        let [a, b, c, d, e, f, g] = words;
        let at = self.block.at + n * LINE_BYTES;
        let line = self.memory.private.region().words_mut(at, LINE_BYTES)?;
        line.store_line(0, &[a, b, c, d, e, f, g, checksum]);
        Ok(())
    }

    /// Reads the record of the extent with number `n`, from 0. `None` without a valid record, so after the
    /// last extent.
    pub(super) fn read(&self, n: usize) -> Result<Option<ExtentRecord>, StoreError> {
        if n >= EXTENTS_MAX {
            return Ok(None);
        }
        let at = self.block.at + n * LINE_BYTES;
        let line = self.memory.private.region().words(at, LINE_BYTES)?.line(0);
        if line_checksum(EXTENT, n as u64, &line[..7]) != line[7] {
            return Ok(None);
        }
        let block = |at: u64, len: u64, entry| Block::of_parts(at as usize, len as usize, entry);
        Ok(Some(ExtentRecord {
            rows: block(line[0], line[1], line[4] as u32),
            records: block(line[2], line[3], (line[4] >> 32) as u32),
            slots: line[5] as u32,
            salt: line[6],
        }))
    }

    /// Frees the memory of all records of the table.
    pub(super) fn release(self) -> Result<(), StoreError> {
        self.memory.private.free(self.block)
    }
}

//! Epochs of a snapshot table: two buffers, and a record that says which of them is complete.
//!
//! Buffer `front & 1` holds epoch `front`. A new epoch is built in the other one, from the front's
//! values, and published by a flip. A reader reads the record, copies buffer `front & 1` and reads
//! the record again. It accepts if both checksums match and the second record says `building <=
//! front + 1`: that buffer is first overwritten when epoch `front + 2` begins.

use tidewater_protocol::layout::lines::SnapshotLine;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::mem::versioned::begin_buffer;

use super::part::{Part, Sizes};
use super::{BlocksError, DenseBlocks};
use crate::store::StoreError;
use crate::store::memory::ServerMemory;

impl DenseBlocks {
    /// Whether the table has snapshots.
    pub const fn is_snapshot(&self) -> bool {
        self.sizes.snapshot
    }

    /// Epoch of the newest complete buffer; 0 at first.
    pub const fn front(&self) -> u64 {
        self.line.front
    }

    /// Sets the epoch and version of the initial values. Called before a client knows the table.
    ///
    /// # Errors
    /// [`BlocksError::Epoch`] when an epoch was begun before.
    pub(crate) fn begin_at(&mut self, min_clock: u64) -> Result<(), BlocksError> {
        if !self.sizes.snapshot {
            return Ok(());
        }
        if self.line != SnapshotLine::default() {
            return Err(BlocksError::Epoch {
                what: "begin_at",
                have: min_clock,
                expected: self.line.front,
            });
        }
        self.line = SnapshotLine {
            front: min_clock,
            building: min_clock,
            min_clock,
            applied: 0,
        };
        for part in self.parts.iter().flatten() {
            part.publish(&self.memory, self.salt, self.line)?;
        }
        Ok(())
    }

    /// Opens the next epoch, `front + 1`: pushes go into it until [`Self::flip`]. The first epoch
    /// may have any number from 1 on, so that it can be that of a running clock. Does nothing when
    /// it is open, so that a caller may begin it again after a failure.
    ///
    /// # Errors
    /// [`BlocksError::Epoch`] for any other epoch, or on a table without snapshot.
    pub fn begin_epoch(&mut self, epoch: u64) -> Result<(), BlocksError> {
        // Before the first epoch both buffers hold the same: either may be the front.
        let first = self.line.building == 0;
        let next = self.line.front.saturating_add(1);
        if !self.sizes.snapshot || epoch == 0 || (epoch != next && !first) {
            return Err(BlocksError::Epoch {
                what: "begin_epoch",
                have: epoch,
                expected: next,
            });
        }
        if self.line.building == epoch {
            return Ok(());
        }
        self.line.front = epoch - 1;
        self.line.building = epoch;
        for part in self.parts.iter_mut().flatten() {
            part.publish(&self.memory, self.salt, self.line)?;
            part.touched[(epoch & 1) as usize].clear();
        }
        begin_buffer();
        Ok(())
    }

    /// Publishes the open epoch. `min_clock` is the domain's clock that it stands for, `applied`
    /// the pushes in it since the table was made. Cost: a copy of each block that the previous
    /// epoch stored and this one did not.
    ///
    /// # Errors
    /// [`BlocksError::Epoch`] when another epoch, or none, is open.
    pub fn flip(&mut self, epoch: u64, min_clock: u64, applied: u64) -> Result<(), BlocksError> {
        if self.line.building != epoch || epoch == self.line.front {
            return Err(BlocksError::Epoch {
                what: "flip",
                have: epoch,
                expected: self.line.building,
            });
        }
        let line = SnapshotLine {
            front: epoch,
            building: epoch,
            min_clock,
            applied,
        };
        for part in self.parts.iter().flatten() {
            if !mutants::on(Mutant::SnapshotWithoutCopyForward) {
                part.copy_forward(&self.memory, self.sizes, epoch, &mut self.window.payload)?;
            }
            part.publish(&self.memory, self.salt, line)?;
        }
        self.line = line;
        Ok(())
    }

    /// Requires an open epoch: a snapshot's buffers are written only then.
    pub(super) const fn demand_epoch(&self, what: &'static str) -> Result<(), BlocksError> {
        if self.sizes.snapshot && self.line.building == self.line.front {
            return Err(BlocksError::Epoch {
                what,
                have: self.line.building,
                expected: self.line.front.saturating_add(1),
            });
        }
        Ok(())
    }
}

impl Part {
    /// Notes that a block was stored in an epoch.
    pub(super) fn touch(&mut self, sizes: Sizes, block: u64, epoch: u64) {
        if !sizes.snapshot {
            return;
        }
        if let Some(stored) = self.stored.get_mut((block - self.first) as usize)
            && *stored != epoch
        {
            *stored = epoch;
            self.touched[(epoch & 1) as usize].push(block);
        }
    }

    /// Copies the blocks that only the previous epoch stored into the buffer of `epoch`. All others
    /// are there: stored in this epoch, or the same in both buffers.
    fn copy_forward(
        &self,
        memory: &ServerMemory,
        sizes: Sizes,
        epoch: u64,
        line: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let region = memory.public.region();
        let front = epoch.wrapping_sub(1);
        for &block in &self.touched[(front & 1) as usize] {
            if self.stored.get((block - self.first) as usize) != Some(&front) {
                continue;
            }
            line.resize(sizes.used_bytes(block), 0);
            let [from, to] = [front, epoch].map(|e| self.payload_at(sizes, block, e));
            region.words(from, line.len())?.copy_out(0, line);
            region.words_mut(to, line.len())?.copy_in(0, line);
        }
        Ok(())
    }
}

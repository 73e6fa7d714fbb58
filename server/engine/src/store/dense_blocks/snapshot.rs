//! Epochs of a snapshot table: two or more buffers, and a record that names the complete ones.
//!
//! A new epoch is built in the buffer with the oldest values (see [`super::rotation`]), from the front's
//! values, and published by a flip. A reader reads the record, copies the buffer of an epoch that it keeps
//! and reads the record again. It accepts if both checksums match and the second record keeps the epoch,
//! too: a record that does not is stored before the buffer is overwritten.

use tidewater_protocol::layout::lines::SnapshotLine;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::mem::versioned::begin_buffer;

use tidewater_protocol::ids::SessionId;

use super::part::{Part, Sizes};
use super::rotation::{PinRefusal, Rotation};
use super::{BlocksError, DenseBlocks};
use crate::store::StoreError;
use crate::store::memory::ServerMemory;

impl DenseBlocks {
    /// Whether the table keeps snapshots: several versions of its values.
    pub const fn is_snapshot(&self) -> bool {
        self.sizes.snapshot
    }

    /// Epoch of the newest complete buffer. It begins with the clock of the table's domain when the table
    /// was created. Always 0 without snapshots.
    pub const fn front(&self) -> u64 {
        self.line.front
    }

    /// Version of the newest complete buffer: the clock of the table's domain that its values stand for. Always 0
    /// without snapshots.
    pub const fn min_clock(&self) -> u64 {
        self.line.min_clock
    }

    /// Sets epoch and version of the initial values to `min_clock`. Called before a client knows the table.
    /// No effect without snapshots.
    ///
    /// # Errors
    /// [`BlocksError::Epoch`] when an epoch was begun, or one other than 0 was set, before.
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
        self.rotation = Rotation::new(self.sizes.buffers, min_clock);
        let (kept, buffers) = self.rotation.kept();
        self.line = SnapshotLine {
            front: min_clock,
            building: min_clock,
            min_clock,
            applied: 0,
            kept,
            buffers,
        };
        for part in self.parts.iter().flatten() {
            part.publish(&self.memory, self.salt, self.line)?;
        }
        Ok(())
    }

    /// Opens the next epoch of a snapshot table, `front + 1`: pushes go into it until [`Self::flip`]. Reuses the
    /// buffer with the oldest values that are not pinned: readers lose its version. No effect if this epoch is
    /// open, so that a caller may begin it again after a failure.
    ///
    /// # Errors
    /// [`BlocksError::Epoch`] for any other epoch, or on a table without snapshot.
    pub fn begin_epoch(&mut self, epoch: u64) -> Result<(), BlocksError> {
        let next = self.line.front.saturating_add(1);
        if !self.sizes.snapshot || epoch != next {
            return Err(BlocksError::Epoch {
                what: "begin_epoch",
                have: epoch,
                expected: next,
            });
        }
        if self.line.building == epoch {
            return Ok(());
        }
        self.rotation.begin();
        self.line.building = epoch;
        (self.line.kept, self.line.buffers) = self.rotation.kept();
        for part in self.parts.iter_mut().flatten() {
            part.publish(&self.memory, self.salt, self.line)?;
            part.touched_mut(epoch).clear();
        }
        begin_buffer();
        Ok(())
    }

    /// Publishes the open epoch to readers, as the new front. `min_clock` is the domain's clock that the epoch
    /// stands for. `applied` goes into the snapshot record; callers pass the lsn of the last step in the epoch.
    /// Cost: a copy of each block that was stored since the values in the reused buffer, but not in this epoch.
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
        if !mutants::on(Mutant::SnapshotWithoutCopyForward) {
            for part in self.parts.iter().flatten() {
                let line = &mut self.window.payload;
                part.copy_forward(&self.memory, line, self.sizes, &self.rotation, epoch)?;
            }
        }
        self.rotation.flip(epoch);
        let (kept, buffers) = self.rotation.kept();
        self.line = SnapshotLine {
            front: epoch,
            building: epoch,
            min_clock,
            applied,
            kept,
            buffers,
        };
        for part in self.parts.iter().flatten() {
            part.publish(&self.memory, self.salt, self.line)?;
        }
        Ok(())
    }

    /// Pins a version for a session and returns the index of its buffer. The buffer is not overwritten before
    /// [`Self::unpin`] or [`Self::unpin_all`]. A second pin of this version by the session returns the same and
    /// has no effect.
    ///
    /// # Errors
    /// [`PinRefusal`], if no buffer holds the version or too many versions are pinned.
    pub fn pin(&mut self, version: u64, session: SessionId) -> Result<usize, PinRefusal> {
        let epoch = self.line.epoch_of(version);
        match self.rotation.pin(epoch, version, session) {
            Some(Ok(buffer)) => Ok(buffer),
            Some(Err((pinned, limit))) => Err(PinRefusal::Full {
                pinned: pinned as u64,
                limit: limit as u64,
            }),
            None => {
                let (oldest, newest) = self.line.versions();
                Err(PinRefusal::NotKept { oldest, newest })
            }
        }
    }

    /// Ends a session's pin of a version. No effect if there is none.
    pub fn unpin(&mut self, version: u64, session: SessionId) {
        self.rotation.unpin(session, version);
    }

    /// Ends all pins of a session, of every version.
    pub fn unpin_all(&mut self, session: SessionId) {
        self.rotation.unpin_all(session);
    }

    /// Number of versions that are pinned by any session.
    pub fn pinned(&self) -> usize {
        self.rotation.pinned()
    }

    /// Checks that an epoch is open on a snapshot table, because its buffers are written only then. Always
    /// `Ok` on a table without snapshots. `what` names the caller's operation in the error.
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
    /// Records that a block was stored in an epoch. No effect without snapshots.
    pub(super) fn touch(&mut self, sizes: Sizes, block: u64, epoch: u64) {
        if !sizes.snapshot {
            return;
        }
        if let Some(stored) = self.stored.get_mut((block - self.first) as usize)
            && *stored != epoch
        {
            *stored = epoch;
            self.touched_mut(epoch).push(block);
        }
    }

    /// Returns the list of blocks stored in an epoch. Only the newest epochs have lists, as many as there are
    /// buffers; for an older one it is the list of a newer epoch.
    fn touched_mut(&mut self, epoch: u64) -> &mut Vec<u64> {
        let count = self.touched.len() as u64;
        &mut self.touched[(epoch % count) as usize]
    }

    /// Copies from the front's buffer into the buffer of `epoch`, which has values of epoch [`Rotation::base`],
    /// the blocks that were stored last after the base and before `epoch`. All other blocks are there: stored in
    /// `epoch`, or equal in both buffers. `line` is working memory. Cost besides the copies: a look at the blocks
    /// that the epochs between stored, or at all blocks if the base is so old, after a pin, that their lists are
    /// gone.
    fn copy_forward(
        &self,
        memory: &ServerMemory,
        line: &mut Vec<u8>,
        sizes: Sizes,
        rotation: &Rotation,
        epoch: u64,
    ) -> Result<(), StoreError> {
        let region = memory.public.region();
        let base = rotation.base();
        let mut copy = |block: u64| {
            line.resize(sizes.used_bytes(block), 0);
            let buffers = [rotation.front(), rotation.building()];
            let [from, to] = buffers.map(|buffer| self.payload_at(sizes, block, buffer));
            region.words(from, line.len())?.copy_out(0, line);
            region.words_mut(to, line.len())?.copy_in(0, line);
            Ok(())
        };
        if epoch - base > self.touched.len() as u64 {
            let stored = (self.first..).zip(&self.stored);
            let mut older = stored.filter(|&(_, &stored)| base < stored && stored < epoch);
            return older.try_for_each(|(block, _)| copy(block));
        }
        for between in base + 1..epoch {
            let touched = &self.touched[(between % self.touched.len() as u64) as usize];
            for &block in touched {
                if self.stored.get((block - self.first) as usize) == Some(&between) {
                    copy(block)?;
                }
            }
        }
        Ok(())
    }
}

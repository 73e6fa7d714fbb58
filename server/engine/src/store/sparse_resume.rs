//! A sparse table's share in the memory of a dead process: index, runs and free slots are made again by one
//! pass over the slots.
//!
//! A slot has a row if the key in its record and the version fit the row's checksum. Every other slot that
//! was ever used is free: its row was removed, or was being made or removed when the process died. Such a
//! slot gets the next generation, so that no cached location of an earlier row counts as valid.

use std::sync::Arc;

use tidewater_protocol::ids::PartitionId;
use tidewater_protocol::layout::row::{RowLocation, RowVersion, checksum_matches, row_checksum};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::TableSpec;

use super::extents::{Extents, ExtentsPlace};
use super::files::ResumeError;
use super::index::Index;
use super::memory::{Block, BlockKind, BlockOwner, ServerMemory};
use super::prealloc::Preallocator;
use super::rows::RowWriter;
use super::sparse::{NO_KEY, Run, SparseShard, own_partitions};
use crate::store::ShardId;

/// Content of a slot of a dead process.
enum Slot {
    /// Row of this key.
    Row(u64),
    /// No row. With the slot's version: 0 if the slot was never used, otherwise that of the next generation.
    Free(RowVersion),
}

impl SparseShard {
    /// Returns the location of the share for a process that takes over after a crash; `None` for a table
    /// that does not outlive its process.
    pub(crate) fn kept_place(&self) -> Option<ExtentsPlace> {
        self.extents.location_of_all()
    }

    /// Lists the memory blocks of the share: in public memory, and in private memory.
    pub(crate) fn blocks(&self) -> [Vec<Block>; 2] {
        let [public, mut private] = self.extents.blocks();
        private.extend(self.index.blocks());
        [public, private]
    }

    /// Resumes the share that a dead process left. The index prepares its growth itself until
    /// [`Self::use_helper`]. Cost: reads and hashes each row.
    ///
    /// # Errors
    /// [`ResumeError::Damaged`] if two rows have one key or a row is of a partition that is not in `partitions`;
    /// others if memory is used up or `place` lies outside it.
    pub(crate) fn resume(
        memory: &Arc<ServerMemory>,
        preallocator: &Preallocator,
        shard_id: ShardId,
        spec: &Arc<TableSpec>,
        partitions: impl Iterator<Item = PartitionId>,
        place: ExtentsPlace,
    ) -> Result<Self, ResumeError> {
        let rows = RowWriter::new(Arc::clone(memory), Arc::clone(spec))
            .map_err(super::sparse::ShardError::from)?;
        let extents = Extents::resume(
            Arc::clone(memory),
            preallocator.clone(),
            shard_id,
            rows.layout(),
            rows.kernel().state_bytes(),
            place,
        )?;
        let owner = BlockOwner::of(shard_id, BlockKind::Index, PartitionId(0));
        // Blocks of the dead process are freed later by what the stores hold then: a block that the helper thread
        // prepares or frees meanwhile would be among them.
        let (keys, numbers) = extents.count_keys()?;
        // One row may have the key 0.
        let room = (keys + 1, numbers);
        let index = Index::with_room(Arc::clone(memory), Preallocator::none(), owner, room)?;
        let own = own_partitions(spec, partitions);
        let mut shard = Self::of_parts(extents, index, own, rows, spec);
        let slots = shard.extents.slots_of_all();
        let mut payload = vec![0; shard.rows().kernel().row_bytes()];
        let mut end = 0;
        let last = slots.len() as u16;
        for (extent, slots) in (1u16..).zip(slots) {
            let is_last = extent == last;
            end = shard.resume_extent(memory, extent, slots, is_last, &mut payload)?;
        }
        shard.extents.end_at(end);
        Ok(shard)
    }

    /// Adds the rows of an extent to the index, and its slots to runs of partitions: all of its `slots` slots, or
    /// in the last extent those up to the last used one. Returns the number of these slots. `payload` is working
    /// memory of a row's length.
    fn resume_extent(
        &mut self,
        memory: &ServerMemory,
        extent: u16,
        slots: u32,
        is_last: bool,
        payload: &mut [u8],
    ) -> Result<u32, ResumeError> {
        let mut all = Vec::with_capacity(slots as usize);
        for slot in 0..slots {
            all.push(self.read_slot(memory, RowLocation::new(0, extent, slot), payload)?);
        }
        let is_used = |slot: &Slot| !matches!(slot, Slot::Free(RowVersion(0)));
        // All slots of an extent are given out before the next one is made.
        let used = match is_last {
            true => all.iter().rposition(is_used).map_or(0, |last| last + 1),
            false => all.len(),
        };
        // Free slots are those of the partition before them, as far as there is one.
        let key_of = |slot: &Slot| match slot {
            Slot::Row(key) => Some(*key),
            Slot::Free(_) => None,
        };
        let first = all.iter().find_map(key_of);
        let none = self.partitions.iter().position(Option::is_some);
        let mut partition = first.map(|key| self.partition_of(key)).or(none);
        let mut run: Option<(usize, Run)> = None;
        for (slot, found) in (0u32..).zip(&all[..used]) {
            let loc = RowLocation::new(0, extent, slot);
            if let Slot::Row(key) = found {
                partition = Some(self.partition_of(*key));
            }
            let p = partition.ok_or_else(|| damaged(loc, "there is no partition for it"))?;
            let Some(rows) = self.partitions.get_mut(p).and_then(Option::as_mut) else {
                return Err(damaged(
                    loc,
                    "it holds a row of a partition of another applier",
                ));
            };
            match found {
                Slot::Row(_) => rows.len += 1,
                Slot::Free(ver) => {
                    let free = RowLocation::new(ver.generation(), extent, slot);
                    rows.vacant.push_back(free);
                }
            }
            match &mut run {
                Some((of, run)) if *of == p => (run.len, run.used) = (run.len + 1, run.used + 1),
                _ => {
                    self.end_run(run.take());
                    let (first, len, used) = (slot, 1, 1);
                    let begun = Run {
                        extent,
                        first,
                        len,
                        used,
                    };
                    run = Some((p, begun));
                }
            }
        }
        self.end_run(run);
        self.index_rows(extent, &all[..used])?;
        Ok(used as u32)
    }

    fn end_run(&mut self, ended: Option<(usize, Run)>) {
        let Some((p, run)) = ended else { return };
        if let Some(rows) = self.partitions.get_mut(p).and_then(Option::as_mut) {
            rows.runs.push(run);
        }
    }

    /// Reads the content of a slot. A slot that was used and has no complete row gets the next generation and
    /// key 0. `payload` is working memory of a row's length.
    fn read_slot(
        &mut self,
        memory: &ServerMemory,
        loc: RowLocation,
        payload: &mut [u8],
    ) -> Result<Slot, ResumeError> {
        let place = self.extents.place(loc);
        let place = place.ok_or_else(|| damaged(loc, "it lies outside its extent"))?;
        let ver = self.rows().version(place)?;
        let checksum = memory.public.region().words(place.row_at, 16)?.load(8);
        self.rows().read(place, payload)?;
        let is_row = checksum_matches(ver, checksum, || {
            row_checksum(place.salt, place.key, ver, payload)
        });
        if is_row || (mutants::on(Mutant::RemovedRowsIndexed) && ver.is_valid()) {
            return Ok(Slot::Row(place.key));
        }
        if ver == RowVersion(0) && place.key == NO_KEY && checksum == 0 {
            return Ok(Slot::Free(ver));
        }
        let next = self.rows().remove(place)?;
        self.extents.set_key(loc, NO_KEY)?;
        Ok(Slot::Free(next))
    }

    /// Lets the index of a resumed share use the helper thread from now on.
    pub(crate) fn use_helper(&mut self, preallocator: &Preallocator) {
        self.index.set_preallocator(preallocator.clone());
    }

    /// Adds the rows of an extent to the index and counts them. In the order of the index's buckets: in the order
    /// of slots each search would miss the caches.
    ///
    /// # Errors
    /// [`ResumeError::Damaged`] if a key is in the index already.
    fn index_rows(&mut self, extent: u16, slots: &[Slot]) -> Result<(), ResumeError> {
        let mut rows: Vec<(u64, u32)> = (0u32..)
            .zip(slots)
            .filter_map(|(slot, found)| match found {
                Slot::Row(key) => Some((*key, slot)),
                Slot::Free(_) => None,
            })
            .collect();
        rows.sort_unstable_by_key(|(key, _)| Index::order_of(*key));
        let extents = &self.extents;
        for (key, slot) in rows {
            let loc = RowLocation::new(0, extent, slot);
            let number = extents.number(loc);
            let number = number.ok_or_else(|| damaged(loc, "it has no number"))?;
            let key_of = |number| extents.key_of(number);
            if !self.index.add_new(key, number, key_of) {
                return Err(damaged(loc, "its key has another row"));
            }
            self.len += 1;
        }
        Ok(())
    }
}

fn damaged(loc: RowLocation, why: &str) -> ResumeError {
    ResumeError::Damaged {
        what: format!("slot {} of extent {}: {why}", loc.slot(), loc.extent()),
    }
}

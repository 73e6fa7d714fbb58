//! Saves: an applier copies its share of a job's tables as of one moment, in steps between frames.
//!
//! Three threads of control, two of them here on the applier:
//!
//! 1. **The cut** ([`Engine::begin_save`], then the first step in which the awaited clocks are reached)
//!    notes in each table that a save is under way. From then on every writer of rows and blocks copies a
//!    record before its first change (`RowWriter::before_write`, `DenseBlocks::before_write`).
//! 2. **The cursor** ([`Engine::save_step`]) copies the records that nothing changes, 32 KiB a step
//!    and the rest of a record, and only while less than 8 MiB wait to be written. A slow file
//!    system therefore delays the cursor, never a push.
//! 3. **The writing thread** owns the file. It takes pieces from the channel, writes them, and frees their
//!    bytes in [`SaveMemory`]. If it fails it cancels the save; the applier notices in its next step.
//!
//! 1 and 2 claim a record in the table's `Cut` before they copy it, so one of them copies it. Both run on
//! the applier's thread, so no record changes between claim and copy. Only `SaveMemory` is shared: its
//! numbers bound memory and order nothing; the bytes themselves travel through the channel.
//!
//! **One moment of all appliers.** An order names clocks. A worker that asks for a save does not tick
//! until it is answered, so no minimum passes its clock. Each applier waits until its minimums have
//! reached these clocks, and cuts there: all appliers cut at the same tick. If the worker is lost, an
//! applier that finds a minimum beyond its clock fails the save.

use std::sync::Arc;

use crossbeam_channel::Sender;
use tidewater_protocol::ids::{DomainId, PartitionId, TableId};
use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::Optimizer;
use tidewater_protocol::wire::control::CheckpointMark;

use super::engine::Engine;
use super::records::Keys;
use super::table::Table;
use crate::store::cut::{Outlet, SaveMemory, SavePiece};

/// Bytes that the cursor of a save copies in one step of its applier, which takes about 10 us. A step ends with
/// the record that reaches this number. It is the longest delay that a save adds to a push, apart from the
/// copies of the rows that the push changes.
const STEP_BYTES: usize = 32 << 10;
/// Bytes that each record counts toward a step in addition to those copied: for the time to find and claim
/// it.
const CLAIM_BYTES: usize = 64;

/// Order to an applier to copy its share of a job's tables, for a checkpoint or a worker's save.
#[derive(Debug)]
pub struct SaveOrder {
    /// Number of the applier, sent with each piece.
    pub applier: u16,
    /// Tables of one job, with the partitions of this applier that are saved.
    pub shares: Vec<(TableId, Vec<PartitionId>)>,
    /// Clock of each domain at which the cut is made: when the job's minimum equals it in all of them.
    pub clocks: Vec<(DomainId, u64)>,
    /// The checkpoint that is taken; `None` for a save that a worker asks for.
    pub mark: Option<CheckpointMark>,
    /// Channel to the thread that writes the file.
    pub out: Sender<(u16, SavePiece)>,
    /// Bounds the bytes of copies that wait to be written, for all appliers of the save.
    pub memory: Arc<SaveMemory>,
}

/// Save that is under way on one applier, with the position of its cursor.
#[derive(Debug)]
pub(super) struct Save {
    order: SaveOrder,
    /// Whether the cut is made in all tables.
    is_cut: bool,
    /// Number of the first tables of `order.shares` in which the cut is made; tables without partitions count.
    cuts: usize,
    /// Position of the cursor: index of the table in `order.shares`.
    table: usize,
    /// Index of the partition in those of the table.
    partition: usize,
    /// Position in the keys of the partition; `None` before its first key.
    keys: Option<Keys>,
}

/// State of a save after one of its steps.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The step has made the cut or copied something.
    Moved,
    /// The save waits for clocks, or for the writing thread.
    Waits,
    /// The save has ended, with success or failure.
    Over,
}

impl Engine {
    /// Begins a save of this applier's share. The cut is made in the next [step](Self::save_step) at the
    /// earliest. All results are reported through the order's channel. A checkpoint of changes that are not
    /// known fails at once.
    pub fn begin_save(&mut self, order: SaveOrder) {
        // Before the clocks are awaited: a checkpoint that cannot be made is begun again in time for its tick.
        for (id, _) in order.shares.iter().filter(|(_, own)| !own.is_empty()) {
            let watch = self.tables.get_mut(&id.0).map(Table::watch);
            if let Some(Err(why)) = watch.map(|watch| watch.check(order.mark)) {
                return order.send(SavePiece::ChangesUnknown { table: *id, why });
            }
        }
        self.saves.push(Save {
            order,
            is_cut: false,
            cuts: 0,
            table: 0,
            partition: 0,
            keys: None,
        });
    }

    /// Makes one step of each save under way: the cut (fixes the moment that is saved), or copies until they have
    /// 32 KiB. Returns whether any save made its cut, copied or ended; false without a save. Never blocks.
    pub fn save_step(&mut self) -> bool {
        let mut moved = false;
        let mut n = 0;
        while n < self.saves.len() {
            let mut save = self.saves.remove(n);
            match self.step_of(&mut save) {
                Step::Over => {
                    self.end_cuts(&save);
                    moved = true;
                    continue;
                }
                step => moved |= step == Step::Moved,
            }
            // To its place: a save of the same tables comes after it.
            self.saves.insert(n, save);
            n += 1;
        }
        moved
    }

    fn step_of(&mut self, save: &mut Save) -> Step {
        if save.order.memory.is_cancelled() {
            return Step::Over;
        }
        if !save.is_cut {
            let reached = self.clocks_reached(&save.order).map_err(failed);
            return match reached.and_then(|reached| reached.then(|| self.cut(save)).transpose()) {
                Ok(None) => Step::Waits,
                Ok(Some(())) => Step::Moved,
                Err(piece) => {
                    save.order.send(piece);
                    Step::Over
                }
            };
        }
        if save.order.memory.is_full() {
            return Step::Waits;
        }
        match self.copy_some(save) {
            // Of a save that was ended during this step, records are missing: see [`Cut::copy`]. A load here
            // that reads `false` comes after those of all copies, which have read it too.
            Ok(_) if save.order.memory.is_cancelled() && !on(Mutant::CancelledSaveIsDone) => {
                Step::Over
            }
            Ok(true) => Step::Moved,
            Ok(false) => {
                save.order.send(SavePiece::Done);
                Step::Over
            }
            Err((table, why)) => {
                save.order.send(SavePiece::Failed { table, why });
                Step::Over
            }
        }
    }

    /// Whether the cut can be made: the minimum clock of the job on this applier equals the ordered clock
    /// in every domain of the order. False while a tick of the job is applied in part. True on an applier
    /// without a table of the job.
    ///
    /// # Errors
    /// A minimum is above its ordered clock. The worker that saves has left, and other appliers may have
    /// cut at another tick.
    fn clocks_reached(&mut self, order: &SaveOrder) -> Result<bool, (TableId, String)> {
        let of = |(id, _): &(TableId, _)| Some((*id, self.tables.get(&id.0)?.namespace));
        // An applier without a table of the job has nothing to cut.
        let Some((table, namespace)) = order.shares.iter().find_map(of) else {
            return Ok(true);
        };
        // Rows of a table with a tick that is half done are of two iterations.
        let mut reached = !self.closes(namespace);
        for &(domain, clock) in &order.clocks {
            let min = self.clock_line(namespace, domain).min;
            if min > clock {
                let why = format!(
                    "the workers have passed clock {clock} of domain {} and are at {min}: the worker \
                     that saves has left; save again",
                    domain.0
                );
                return Err((table, why));
            }
            reached &= min == clock;
        }
        Ok(reached)
    }

    /// Whether a save under way has not made its cut yet, because it waits for its clocks. A tick then stops
    /// between two iterations.
    pub(super) fn awaits_cut(&self) -> bool {
        self.saves.iter().any(|save| !save.is_cut)
    }

    /// Makes the cut of a save: from now on every table with a share here copies records before they change.
    /// Reports clocks and changed hyper-parameters. The error is the last message of the save: a table is missing or in
    /// another save, or its changes are not known.
    fn cut(&mut self, save: &mut Save) -> Result<(), SavePiece> {
        let order = &save.order;
        let mut settings = Vec::new();
        let mut removed = Vec::new();
        let mut namespace = None;
        for (id, partitions) in &order.shares {
            if partitions.is_empty() {
                save.cuts += 1;
                continue;
            }
            let table = self.tables.get_mut(&id.0);
            let table = table.ok_or_else(|| failed(gone(*id)))?;
            if table.watch().is_cut() {
                return Err(failed((
                    *id,
                    "a save of it is under way; wait for it".into(),
                )));
            }
            namespace.get_or_insert(table.namespace);
            let outlet = Outlet {
                table: *id,
                out: order.out.clone(),
                applier: order.applier,
                memory: Arc::clone(&order.memory),
            };
            let keys = table.begin_cut(outlet, order.mark);
            let keys = keys.map_err(|why| SavePiece::ChangesUnknown { table: *id, why })?;
            if !keys.is_empty() {
                removed.push(SavePiece::Removed { table: *id, keys });
            }
            save.cuts += 1;
            settings.extend(setting_of(table).map(|optimizer| (*id, optimizer)));
        }
        let clocks = namespace.map_or_else(Vec::new, |namespace| self.domain_clocks(namespace));
        save.is_cut = true;
        save.order.send(SavePiece::Cut { clocks, settings });
        removed.into_iter().for_each(|piece| save.order.send(piece));
        Ok(())
    }

    /// Advances the cursor of a save until it has copied 32 KiB; each record counts 64 bytes more. Ends the cut
    /// of each table behind its last record. Returns false at the end, when all copies are sent.
    fn copy_some(&mut self, save: &mut Save) -> Result<bool, (TableId, String)> {
        let mut cost = 0;
        while cost < STEP_BYTES {
            let Some((id, partitions)) = save.order.shares.get(save.table) else {
                return Ok(false);
            };
            let id = *id;
            if partitions.is_empty() {
                save.table += 1;
                continue;
            }
            let table = self.tables.get_mut(&id.0).ok_or_else(|| gone(id))?;
            let Some(&partition) = partitions.get(save.partition) else {
                table.watch().end_cut();
                (save.table, save.partition) = (save.table + 1, 0);
                cost += CLAIM_BYTES;
                continue;
            };
            let keys = save
                .keys
                .get_or_insert_with(|| Keys::new(table, partition.0));
            match keys.next(table) {
                Some((key, place)) => {
                    let copied = table.copy_record(key, place);
                    cost += copied.map_err(|why| (id, why))?;
                }
                None => {
                    if let Some(cut) = table.watch().cut() {
                        cut.send_group(partition.0);
                    }
                    save.keys = None;
                    save.partition += 1;
                }
            }
            cost += CLAIM_BYTES;
        }
        Ok(true)
    }

    /// Ends the cuts of the tables in which a save has made its cut: they copy no more records before they change.
    /// Tables in which it has made none keep the cut of another save.
    fn end_cuts(&mut self, save: &Save) {
        for (id, partitions) in &save.order.shares[..save.cuts] {
            if let Some(table) = self.tables.get_mut(&id.0)
                && !partitions.is_empty()
            {
                table.watch().end_cut();
            }
        }
    }
}

impl SaveOrder {
    /// Sends a piece of the save to the writing thread. It is dropped if that thread has gone.
    fn send(&self, piece: SavePiece) {
        // That thread has reported the end of the save, and no manifest names its file. The end of its side cancels
        // the save, which the next step sees.
        let _ = self.out.send((self.applier, piece));
    }
}

fn failed((table, why): (TableId, String)) -> SavePiece {
    SavePiece::Failed { table, why }
}

fn gone(table: TableId) -> (TableId, String) {
    (table, "it is not there; was it released?".into())
}

/// Returns the optimizer of a table if its hyper-parameters differ from the table's definition; otherwise
/// `None`.
fn setting_of(table: &Table) -> Option<Optimizer> {
    let optimizer = table.optimizer();
    (optimizer != table.spec.optimizer).then_some(optimizer)
}

#[cfg(test)]
mod tests;

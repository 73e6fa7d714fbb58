//! Tables that outlive their process: what an applier writes down for its successor, and how that one goes
//! on.
//!
//! Rows, optimizer state and keys are found in the memory. The journal has the rest, an entry for each change
//! and in the order in which the applier makes them: definitions of tables with the places of their memory,
//! releases, hyper-parameters, changes of clocks. An entry is written before its change takes effect.
//!
//! A push that the death cut is applied once: the redo area names it and the rows of it that are stored, and
//! the record of its ring says whether it was done. Its client sends it again, and the rest is applied.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidewater_protocol::ids::{DomainId, PartitionId, SessionId, TableId, WorkerId};
use tidewater_protocol::layout::frame::FrameHeader;
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::{Durability, Optimizer, TableSpec};

use super::engine::Engine;
use super::table::{KeptPlace, Store, Table};
use super::warm_ticks::CloseProgress;
use crate::namespace::{DomainKey, NamespaceId};
use crate::store::ShardId;
use crate::store::journal::Journal;
use crate::store::memory::{Block, BlockKind, BlockOwner};
use crate::store::prealloc::Preallocator;
use crate::store::redo::{PushName, Redo};
use crate::store::{ResumeError, ServerMemory, StoreError};
use tidewater_clocks::{ClockChange, Clocks};

/// Entry of the journal: one change that a successor repeats.
#[derive(Debug, Serialize, Deserialize)]
enum Entry {
    /// A table was created.
    Table(Box<KeptTable>),
    /// A table was released.
    Released { id: u32, namespace: u64 },
    /// A table has new hyper-parameters.
    Rule { id: u32, optimizer: Optimizer },
    /// The clocks of a job change. `frame` has session and sequence number of the CLOCK frame that changes them;
    /// `None` for a change without a frame.
    Clock {
        namespace: u64,
        change: ClockChange,
        frame: Option<(u64, u64)>,
    },
    /// Complete clocks of a job, at the beginning of a journal.
    Clocks { namespace: u64, clocks: Box<Clocks> },
    /// Sequence number of the last frame of a session that changed clocks.
    ClockFrame { session: u64, seq: u64 },
    /// A job has ended.
    JobEnded { namespace: u64 },
    /// All iterations of a domain below this number are closed.
    Closed {
        namespace: u64,
        domain: DomainId,
        iterations: u64,
    },
}

/// Definition of a table in the journal, with the location of its memory.
#[derive(Debug, Serialize, Deserialize)]
struct KeptTable {
    id: u32,
    namespace: u64,
    spec: TableSpec,
    partitions: Vec<u32>,
    place: KeptPlace,
}

/// Push that the crash of the process before this one interrupted. It is kept until its client sends it
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CutPush {
    pub(super) session: u64,
    pub(super) seq: u64,
    /// Number of its rows, or parts of blocks, that were applied.
    pub(super) rows: u32,
}

/// Lost worker, with the first iteration in each domain that it had not ended: its held pushes of this iteration
/// and later ones are dropped.
pub(super) type LostWorker = (NamespaceId, WorkerId, Vec<(DomainId, u64)>);

/// Engine of a dead applier as its successor finds it in memory, and the work that was interrupted.
#[derive(Debug)]
pub(super) struct Resumed {
    pub(super) engine: Engine,
    /// Push that was begun last, with the number of its rows that were applied.
    pub(super) push: Option<(PushName, u32)>,
    /// Worker that the last entry of the journal removes: its pushes may not all be dropped yet. `None` if the
    /// last entry is another one.
    pub(super) lost: Option<LostWorker>,
}

/// State that the entries of a journal add up to.
#[derive(Debug, Default)]
struct Replayed {
    closed: BTreeMap<DomainKey, u64>,
    /// Lost worker that the last entry removes; `None` after any other entry.
    lost: Option<LostWorker>,
    clocks: BTreeMap<NamespaceId, Clocks>,
    clock_frames: BTreeMap<u64, u64>,
    tables: BTreeMap<u32, KeptTable>,
    rules: BTreeMap<u32, Optimizer>,
    released: Vec<(NamespaceId, u32)>,
}

impl Replayed {
    /// Repeats the change of one journal entry. `workers` are the first members of a job's clocks.
    fn replay(&mut self, entry: Entry, workers: &[WorkerId]) {
        self.lost = None;
        match entry {
            Entry::Clock {
                namespace,
                change,
                frame,
            } => {
                let new = || Clocks::new(workers.iter().copied());
                let clocks = self.clocks.entry(NamespaceId(namespace));
                let clocks = clocks.or_insert_with(new);
                // One that has finished is no member any more: what it pushed counts.
                if let ClockChange::Remove(rank) = change
                    && clocks.threads(rank).next().is_some()
                    && !clocks.clone().take_ended(rank)
                {
                    let open = clocks.open_iterations(rank);
                    self.lost = Some((NamespaceId(namespace), rank, open));
                }
                clocks.replay(change);
                self.clock_frames.extend(frame);
            }
            Entry::Clocks { namespace, clocks } => {
                self.clocks.insert(NamespaceId(namespace), *clocks);
            }
            Entry::ClockFrame { session, seq } => {
                self.clock_frames.insert(session, seq);
            }
            Entry::JobEnded { namespace } => {
                self.clocks.remove(&NamespaceId(namespace));
                self.closed.retain(|key, _| key.namespace.0 != namespace);
                self.released.retain(|(of, _)| of.0 != namespace);
            }
            Entry::Table(table) => {
                self.tables.insert(table.id, *table);
            }
            Entry::Released { id, namespace } => {
                self.tables.remove(&id);
                self.rules.remove(&id);
                self.released.push((NamespaceId(namespace), id));
            }
            Entry::Rule { id, optimizer } => {
                self.rules.insert(id, optimizer);
            }
            Entry::Closed {
                namespace,
                domain,
                iterations,
            } => {
                let key = DomainKey::new(NamespaceId(namespace), domain);
                self.closed.insert(key, iterations);
            }
        }
    }
}

impl Engine {
    /// Writes the definition of a new table to the journal, which a successor reads, if the table outlives
    /// the process.
    pub(super) fn note_table(&mut self, table: &Table) {
        if let Some(entry) = entry_of(table) {
            self.note(&entry);
        }
    }

    /// Writes the release of a table to the journal, if the table outlives the process.
    pub(super) fn note_release(&mut self, table: &Table) {
        if table.spec.durability == Durability::Warm {
            let (id, namespace) = (table.id.0, table.namespace.0);
            self.note(&Entry::Released { id, namespace });
        }
    }

    /// Writes new hyper-parameters of a table to the journal, if the table outlives the process.
    pub(super) fn note_rule(&mut self, id: TableId, optimizer: Optimizer) {
        let table = self.tables.get(&id.0);
        if table.is_some_and(|table| table.spec.durability == Durability::Warm) {
            self.note(&Entry::Rule {
                id: id.0,
                optimizer,
            });
        }
    }

    /// Writes a change of a job's clocks to the journal. `frame` is the CLOCK frame that makes it, if any: it
    /// counts as carried out from then on. No effect without a journal, which only memory that outlives the
    /// process has.
    pub(super) fn note_clocks(
        &mut self,
        namespace: NamespaceId,
        change: ClockChange,
        frame: Option<&FrameHeader>,
    ) {
        if self.journal.is_none() {
            return;
        }
        let frame = frame.map(|header| (header.session, header.seq));
        self.note(&Entry::Clock {
            namespace: namespace.0,
            change,
            frame,
        });
        self.clock_frames.extend(frame);
    }

    /// Writes the end of a job to the journal: a successor drops the job. No effect without a journal.
    pub(super) fn note_end(&mut self, NamespaceId(namespace): NamespaceId) {
        self.note(&Entry::JobEnded { namespace });
    }

    /// Whether the process before this one had changed the clocks by this CLOCK frame, and crashed before it
    /// counted the frame in its ring. The frame must not change them again. Forgets the frame: a second call
    /// returns false.
    pub(super) fn was_carried_out(&mut self, header: &FrameHeader) -> bool {
        let frame = (header.session, header.seq);
        let found = self.cut_clocks.iter().position(|cut| *cut == frame);
        if let Some(n) = found {
            self.cut_clocks.swap_remove(n);
        }
        found.is_some()
    }

    /// Writes to the journal that an iteration and all before it are closed, so that a successor drops their
    /// pushes. No effect without a journal.
    pub(super) fn note_closed(&mut self, job: DomainKey, iteration: u64) {
        if self.journal.is_some() {
            self.note(&closed_entry(job, iteration + 1));
            self.closed.insert(job, iteration + 1);
        }
    }

    fn note(&mut self, entry: &Entry) {
        let Some(mut journal) = self.journal.take() else {
            return;
        };
        let written = encode(entry).and_then(|entry| {
            if journal.append(&entry)? {
                return Ok(());
            }
            let state = self.state_so_far()?;
            journal.renew(&state, &entry)?;
            journal.append(&entry).map(|_| ())
        });
        self.journal = Some(journal);
        if let Err(e) = written {
            self.fail(format_args!("the journal could not be written: {e}"));
        }
    }

    /// Encodes the present state as journal entries, which replace all entries so far in a new journal block.
    fn state_so_far(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        let released = self
            .released
            .iter()
            .map(|&(NamespaceId(namespace), id)| encode(&Entry::Released { id, namespace }));
        let tables = self.tables.values().filter_map(entry_of);
        let tables = tables.map(|entry| encode(&entry));
        let warm = |table: &&Table| table.spec.durability == Durability::Warm;
        let rules = self.tables.values().filter(warm).map(|table| {
            encode(&Entry::Rule {
                id: table.id.0,
                optimizer: table.optimizer(),
            })
        });
        let clocks = self.clocks.iter().map(|(&NamespaceId(namespace), clocks)| {
            let clocks = Box::new(clocks.clone());
            encode(&Entry::Clocks { namespace, clocks })
        });
        let closed = self.closed.iter();
        let closed = closed.map(|(&DomainKey { namespace, domain }, &iterations)| {
            encode(&closed_entry(DomainKey::new(namespace, domain), iterations))
        });
        let frames = self.clock_frames.iter();
        let frames = frames.map(|(&session, &seq)| encode(&Entry::ClockFrame { session, seq }));
        let all = released.chain(tables).chain(rules);
        all.chain(clocks).chain(closed).chain(frames).collect()
    }

    /// Writes the name of a push (lsn, session, sequence number) to the redo area, before its first row is
    /// stored: a successor learns which push a crash interrupted. No effect without a journal.
    pub(super) fn name_push(&mut self, header: &FrameHeader) {
        if self.journal.is_none() {
            return;
        }
        let push = PushName {
            lsn: self.lsn,
            session: header.session,
            seq: header.seq,
        };
        if let Err(e) = self.redo.begin(push) {
            self.fail(format_args!("a push could not be named: {e}"));
        }
    }

    /// Number of rows of a push that were applied before a crash interrupted it, which the caller skips; 0
    /// for any other push. Forgets the number: a second call for the push returns 0.
    pub(super) fn take_cut(&mut self, header: &FrameHeader) -> u32 {
        let is_it = |cut: &CutPush| (cut.session, cut.seq) == (header.session, header.seq);
        let found = self.cut_pushes.iter().position(is_it);
        let rows = found.map_or(0, |n| self.cut_pushes.swap_remove(n).rows);
        match mutants::on(Mutant::CutPushFromItsStart) {
            true => 0,
            false => rows,
        }
    }

    /// Prepares for the next frame of a resumed session's ring, the one after `state`, so that the frame is not
    /// applied twice when its client sends it again. The frame's first `rows` rows were applied before the crash
    /// (0 for none); a CLOCK frame may have moved the clocks.
    pub(super) fn expect_cut(&mut self, session: SessionId, state: StateLine, rows: u32) {
        let next = (session.0, state.applied_seq + 1);
        if self.clock_frames.get(&next.0) == Some(&next.1) {
            self.cut_clocks.push(next);
        }
        if rows > 0 {
            self.cut_pushes.push(CutPush {
                session: session.0,
                seq: state.applied_seq + 1,
                rows,
            });
        }
    }

    /// Resumes the engine of a dead applier from the server's memory: its tables and clocks. Held pushes come
    /// later, by [`Self::resume_held`]. Frees all other blocks of the applier, except those of rings and held
    /// pushes.
    pub(super) fn resume(
        memory: &Arc<ServerMemory>,
        applier: u32,
        workers: Vec<WorkerId>,
        preallocator: &Preallocator,
    ) -> Result<Resumed, ResumeError> {
        let redo = redo_of(memory, applier)?;
        let (lsn, push) = redo.interrupted()?;
        let closing = redo.closing(push)?;
        redo.note_close(closing.position)?;
        let of_applier = |owner: &BlockOwner| owner.applier == applier;
        // Made again, and first: there may be no room for two.
        let is_made_again = |owner: &BlockOwner| {
            of_applier(owner) && matches!(owner.kind, BlockKind::Index | BlockKind::Pending)
        };
        memory.free_others(is_made_again, [&[], &[]])?;
        let (journal, entries) = Journal::resume(memory, applier)?;
        let mut replayed = Replayed::default();
        for entry in entries {
            let entry = postcard::from_bytes(&entry).map_err(|e| ResumeError::Damaged {
                what: format!("an entry of the journal of applier {applier}: {e}"),
            })?;
            replayed.replay(entry, &workers);
        }
        let own = std::iter::once(redo.block()).chain(journal.blocks());
        let mut kept = [Vec::new(), own.collect()];
        let mut engine = Self::of_parts(Arc::clone(memory), applier, redo, Some(journal));
        engine.lsn = lsn.max(closing.lsn);
        engine.closing = CloseProgress::resume(closing);
        engine.closed = replayed.closed;
        engine.set_workers(workers);
        engine.released = replayed.released;
        (engine.clocks, engine.clock_frames) = (replayed.clocks, replayed.clock_frames);
        for (id, kept_table) in replayed.tables {
            let spec = Arc::new(kept_table.spec);
            let own = kept_table.partitions.into_iter().map(PartitionId);
            let place = kept_table.place;
            let shard_id = ShardId::new(TableId(id), applier);
            let table = Table::resume(memory, preallocator, shard_id, &spec, own, place)?;
            let mut table = table.of(NamespaceId(kept_table.namespace));
            if let Some(optimizer) = replayed.rules.get(&id).filter(|rule| table.takes(rule)) {
                table
                    .set_optimizer(*optimizer)
                    .map_err(|e| ResumeError::Damaged {
                        what: format!("the rule of table {id}: {e}"),
                    })?;
            }
            let [public, private] = table.blocks();
            kept[0].extend(public);
            kept[1].extend(private);
            engine.tables.insert(id, table);
        }
        // Records of rings have no applier here, nor do their public copies. Held pushes come last.
        let is_other = |owner: &BlockOwner| {
            of_applier(owner)
                && !matches!(
                    owner.kind,
                    BlockKind::Session | BlockKind::Ring | BlockKind::Held
                )
        };
        memory.free_others(is_other, [&kept[0], &kept[1]])?;
        for table in engine.tables.values_mut() {
            if let Store::Sparse(shard) = &mut table.store {
                shard.use_helper(preallocator);
            }
        }
        let lost = replayed.lost;
        Ok(Resumed { engine, push, lost })
    }
}

const fn closed_entry(DomainKey { namespace, domain }: DomainKey, iterations: u64) -> Entry {
    Entry::Closed {
        namespace: namespace.0,
        domain,
        iterations,
    }
}

/// Builds the journal's entry that describes a table; `None` for one that does not outlive its process.
fn entry_of(table: &Table) -> Option<Entry> {
    let place = table.kept_place()?;
    Some(Entry::Table(Box::new(KeptTable {
        id: table.id.0,
        namespace: table.namespace.0,
        spec: TableSpec::clone(&table.spec),
        partitions: table.partitions().to_vec(),
        place,
    })))
}

fn encode(entry: &Entry) -> Result<Vec<u8>, StoreError> {
    postcard::to_stdvec(entry).map_err(|_| StoreError::Limit {
        what: "bytes of a journal entry",
        have: size_of_val(entry) as u64,
        limit: u32::MAX.into(),
    })
}

/// Finds the redo area of a dead applier in the server's private memory. An error if there is none.
fn redo_of(memory: &Arc<ServerMemory>, applier: u32) -> Result<Redo, ResumeError> {
    let blocks = memory.private.directory()?;
    let is_it = |words: [u32; 4]| {
        BlockOwner::of_words(words)
            .is_some_and(|owner| (owner.kind, owner.applier) == (BlockKind::Redo, applier))
    };
    let found: Option<&(Block, _)> = blocks.iter().find(|(_, words)| is_it(*words));
    let (block, _) = found.ok_or_else(|| ResumeError::Damaged {
        what: format!("applier {applier} has no redo area; had the server as many appliers?"),
    })?;
    Ok(Redo::attach(Arc::clone(memory), *block))
}

#[cfg(test)]
#[cfg(feature = "mutants")]
mod tests;

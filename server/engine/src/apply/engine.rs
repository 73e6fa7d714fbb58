//! The engine of one applier: tables, clocks, held-back pushes, and the effect of a frame on them.
//!
//! It is independent of lanes and threads: a frame goes in, state changes or a refusal comes out. A
//! frame is validated completely before its first row is touched (all or nothing).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tidewater_lanes::fabric::ExportError;
use tidewater_protocol::ids::{DomainId, SessionId, TableId, WorkerId, WorkerThread};
use tidewater_protocol::layout::frame::{FrameHeader, FrameKind};
use tidewater_protocol::layout::reject::{RejectReason, RowResource};
use tidewater_protocol::limits::ROW_DIM_MAX;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::Optimizer;

use super::Refusal;
use super::function::FunctionRunner;
use super::pending::Pending;
use super::save::Save;
use super::sums::Sums;
use super::table::{Store, Table};
use super::tick_blocks::Buffers;
use super::tick_steps::{TICK_ROWS, TickWork};
use super::warm::CutPush;
use super::warm_ticks::CloseProgress;
use crate::namespace::{DomainKey, FrameSender, NamespaceId};
use crate::store::dense_blocks::PinRefusal;
use crate::store::journal::Journal;
use crate::store::redo::{Progress, Redo, RowPlace};
use crate::store::{ServerMemory, StoreError};
use tidewater_clocks::pace::Pace;
use tidewater_clocks::{ClockChange, Clocks, Moved};

/// Outcome of a frame that was not refused: what the applier must send to the frame's client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The frame took effect or is held. Nothing but the acknowledgement is sent.
    Applied,
    /// A reply must be posted; its payload is in [`Engine::reply`].
    Reply {
        /// Number of rows, locations or elements in the reply.
        count: u32,
    },
    /// The frame stays in its ring: its rank is early and the budget for early ranks is used up, the clocks of
    /// its job are held, or the iteration that it ends is not closed yet. Offer it again when
    /// [`Engine::changes`] has moved.
    Wait,
    /// A CLOCK frame is carried out: its thread ticked, joined or finished. Domains with a minimum that has moved
    /// and is not announced yet are in [`Engine::moved`].
    Clock,
}

/// Tables, clocks and held pushes of one applier, and the rules by which frames change them.
pub struct Engine {
    pub(super) memory: Arc<ServerMemory>,
    pub(super) tables: HashMap<u32, Table>,
    pub(super) released: Vec<(NamespaceId, u32)>,
    pub(super) redo: Redo,
    pub(super) pending: Pending,
    /// Held functions of open iterations, apart from the pushes. They run when their iteration is closed.
    pub(super) held_functions: Pending,
    pub(super) lsn: u64,
    pub(super) places: Vec<RowPlace>,
    pub(super) scratch: Vec<u8>,
    /// Payload of the last encoded push, decoded. Working memory.
    pub(super) decoded: Vec<u8>,
    pub(super) tick: Buffers,
    /// Sums of open iterations, by number of the table.
    pub(super) sums: HashMap<u32, Sums>,
    /// Optimizers with new hyper-parameters, by number of the table. They take effect when the open
    /// iteration of the table's domain closes.
    pub(super) settings: BTreeMap<u32, Optimizer>,
    /// Members of every clock domain of a job from its start. Empty in a service, where each job
    /// sets its own.
    workers: Vec<WorkerId>,
    pub(super) clocks: BTreeMap<NamespaceId, Clocks>,
    /// Step times of the worker threads of all jobs.
    pub pace: Pace,
    /// Payload of the reply to the last frame with `Effect::Reply`.
    pub reply: Vec<u8>,
    /// Domains with a minimum that has moved and is not announced to clients yet.
    pub moved: Vec<DomainKey>,
    /// Reason why this applier cannot continue: acknowledged work was lost. `None` while it can.
    pub failed: Option<String>,
    pub(super) deferred: Vec<(NamespaceId, Moved)>,
    /// Queue of the work that moved clocks have left.
    pub(super) ticking: VecDeque<TickWork>,
    /// Number of rows that one step of the queued work adds or steps.
    pub(super) tick_rows: usize,
    /// Number of the tick work that was queued last.
    pub(super) last_tick_work: u64,
    /// Threads with a CLOCK frame that has moved their clock and waits in its ring. The value is the number
    /// of the tick work that was queued last when the frame came first.
    pub(super) half_ticked: BTreeMap<(NamespaceId, WorkerThread, DomainId), u64>,
    pub(super) functions: FunctionRunner,
    /// Saves that are under way, each of one job.
    pub(super) saves: Vec<Save>,
    /// Keys that the open iteration deletes, by number of the table; unsorted, may repeat.
    pub(super) deletions: BTreeMap<u32, Vec<u64>>,
    /// Indexes of the admitted rows of a push, and its payload with these rows only. Working memory.
    pub(super) admitted: (Vec<u32>, Vec<u8>),
    /// Journal for a process that takes over after a crash, where the memory outlives the process.
    pub(super) journal: Option<Journal>,
    /// Pushes that the crash of the process before this one interrupted.
    pub(super) cut_pushes: Vec<CutPush>,
    /// Number of rows of the current push that were applied before a crash.
    pub(super) rows_before: u32,
    /// Sequence number of the last frame that changed clocks, by session. Filled only with a journal.
    pub(super) clock_frames: BTreeMap<u64, u64>,
    /// Session and sequence number of the CLOCK frames that the crash of the process before this one interrupted.
    pub(super) cut_clocks: Vec<(u64, u64)>,
    /// Number of closed iterations of each domain. Filled only with a journal.
    pub(super) closed: BTreeMap<DomainKey, u64>,
    /// Progress of the present tick. Filled only with a journal.
    pub(super) closing: CloseProgress,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("lsn", &self.lsn)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Creates an engine without tables. `applier` is the number of its applier. `workers` are members of
    /// every clock domain of every job.
    ///
    /// # Errors
    /// [`StoreError`] when memory is used up.
    pub fn new(
        memory: Arc<ServerMemory>,
        applier: u32,
        workers: impl IntoIterator<Item = WorkerId>,
    ) -> Result<Self, StoreError> {
        let widest = ROW_DIM_MAX as usize * 8;
        // Three slots and a step count, see `Optimizer::AmsGrad`.
        let redo = Redo::new(Arc::clone(&memory), applier, widest, 3 * widest + 16)?;
        let journal = memory.is_held().then(|| Journal::new(&memory, applier));
        let mut engine = Self::of_parts(memory, applier, redo, journal.transpose()?);
        engine.set_workers(workers);
        Ok(engine)
    }

    /// Sets the workers that are members of every clock domain of jobs that begin later.
    pub(super) fn set_workers(&mut self, workers: impl IntoIterator<Item = WorkerId>) {
        self.workers = workers.into_iter().collect();
    }

    /// Creates an engine without tables and workers from its redo area and its journal. `journal` is `None`
    /// where the memory ends with the process.
    pub(super) fn of_parts(
        memory: Arc<ServerMemory>,
        applier: u32,
        redo: Redo,
        journal: Option<Journal>,
    ) -> Self {
        let pending = Pending::new(Arc::clone(&memory), applier);
        let held_functions = Pending::of_process(Arc::clone(&memory), applier);
        Self {
            memory,
            tables: HashMap::new(),
            released: Vec::new(),
            redo,
            pending,
            held_functions,
            lsn: 0,
            places: Vec::new(),
            scratch: Vec::new(),
            decoded: Vec::new(),
            tick: Buffers::default(),
            sums: HashMap::new(),
            settings: BTreeMap::new(),
            workers: Vec::new(),
            clocks: BTreeMap::new(),
            pace: Pace::default(),
            reply: Vec::new(),
            moved: Vec::new(),
            failed: None,
            deferred: Vec::new(),
            ticking: VecDeque::new(),
            tick_rows: TICK_ROWS,
            last_tick_work: 0,
            half_ticked: BTreeMap::new(),
            functions: FunctionRunner::new(),
            saves: Vec::new(),
            deletions: BTreeMap::new(),
            admitted: Default::default(),
            journal,
            cut_pushes: Vec::new(),
            rows_before: 0,
            clock_frames: BTreeMap::new(),
            cut_clocks: Vec::new(),
            closed: BTreeMap::new(),
            closing: CloseProgress::default(),
        }
    }

    /// Number (lsn) of the last step in this applier's total order. Each frame takes a number each time it is
    /// offered, also if it is refused or must wait, and so do steps of ticks and loads. Most frames that an
    /// observer may not send take none.
    pub const fn lsn(&self) -> u64 {
        self.lsn
    }

    /// Adds this applier's share of a new table, and notes a table that outlives the process in the journal.
    /// The minimum clock of the table's domain becomes the version of a snapshot table's initial values, and
    /// the tick count by which rows of a sparse table expire.
    pub fn add_table(&mut self, mut table: Table) {
        let clocks = self.clocks.get(&table.namespace);
        let min_clock = clocks.map_or(0, |clocks| clocks.min_if_used(table.spec.domain));
        match &mut table.store {
            Store::Blocks(blocks) => {
                if let Err(e) = blocks.begin_at(min_clock) {
                    self.fail(format_args!("the first version of table {}: {e}", table.id));
                }
            }
            Store::Sparse(shard) => shard.set_ticks(min_clock),
            Store::Rows(_) => {}
        }
        self.note_table(&table);
        self.tables.insert(table.id.0, table);
        self.pending.changed();
    }

    /// Removes this applier's share of a table and returns the share, which the caller frees; `None` if it is
    /// not here. Later frames for the table are refused, and its held frames and sums are dropped.
    pub fn take_table(&mut self, id: TableId) -> Option<Table> {
        let table = self.tables.remove(&id.0)?;
        self.note_release(&table);
        // A successor must not store a row of it again.
        if let Err(e) = self.redo.void() {
            self.fail(format_args!("the redo area could not be cleared: {e}"));
        }
        self.released.push((table.namespace, id.0));
        self.pending.forget_table(id.0);
        self.held_functions.forget_table(id.0);
        self.settings.remove(&id.0);
        self.deletions.remove(&id.0);
        if let Some(sums) = self.sums.remove(&id.0) {
            sums.release();
        }
        Some(table)
    }

    /// Returns this applier's share of a table; `None` if it is not here.
    pub fn table(&mut self, id: TableId) -> Option<&mut Table> {
        self.tables.get_mut(&id.0)
    }

    /// Removes the row of a key from a sparse table. Returns false if there was none. Its slot is later
    /// reused for another key.
    ///
    /// # Errors
    /// [`Refusal`] for a table that is not here or not sparse.
    pub fn remove_row(&mut self, id: TableId, key: u64) -> Result<bool, Refusal> {
        let namespace = self.tables.get(&id.0).map(|t| t.namespace);
        self.known(namespace.unwrap_or_default(), id.0)?;
        match self.tables.get_mut(&id.0).map(|t| &mut t.store) {
            Some(Store::Sparse(s)) => s.remove(key, &self.redo).map_err(|e| self.no_memory(&e)),
            _ => Err(RejectReason::WrongOperation { kind: 0, op: 0 }),
        }
    }

    /// Iterates over the tables of all jobs on this applier, in no order.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.values()
    }

    /// Iterates over the numbers of the jobs that have clocks on this applier.
    pub fn namespaces(&self) -> impl Iterator<Item = NamespaceId> {
        self.clocks.keys().copied()
    }

    /// Returns the clocks of a job's workers. Creates them, with the engine's workers as members, for a job
    /// without clocks.
    pub fn clocks(&mut self, namespace: NamespaceId) -> &mut Clocks {
        let new = || Clocks::new(self.workers.iter().copied());
        self.clocks.entry(namespace).or_insert_with(new)
    }

    /// Makes workers `0..workers` the members of a job's clocks, and notes this in the journal, which a
    /// successor of this process reads. Only the first call for a job counts.
    pub fn expect_workers(&mut self, namespace: NamespaceId, workers: u32) {
        self.note_clocks(namespace, ClockChange::Expect(workers), None);
        self.clocks(namespace).expect(workers);
    }

    /// Adds a worker to the clocks of its job, unless the number of workers is known, and notes this in the
    /// journal, which a successor of this process reads.
    pub(super) fn join_worker(&mut self, namespace: NamespaceId, rank: WorkerId) {
        self.note_clocks(namespace, ClockChange::Join(rank), None);
        self.clocks(namespace).join(rank);
    }

    /// Holds the clocks of a job and notes this in the journal: CLOCK frames wait in their rings until
    /// [`Engine::admit_worker`], so that a worker can be admitted meanwhile. Returns the furthest clock of
    /// each domain that a worker has ticked in, see [`Clocks::hold`].
    pub(super) fn hold_clocks(&mut self, namespace: NamespaceId) -> Vec<(DomainId, u64)> {
        self.note_clocks(namespace, ClockChange::Hold, None);
        self.clocks(namespace).hold()
    }

    /// Ends a job that has no tables: drops its clocks, held frames and loaded functions. A later job of this
    /// name has another number, so it finds nothing of the ended job.
    pub fn end_job(&mut self, namespace: NamespaceId) {
        self.note_end(namespace);
        self.closed.retain(|key, _| key.namespace != namespace);
        self.clocks.remove(&namespace);
        self.forget_ticks(namespace);
        self.pace.forget_namespace(namespace);
        self.functions.loaded.remove(&namespace);
        self.pending.forget_namespace(namespace);
        self.held_functions.forget_namespace(namespace);
        self.released.retain(|(of, _)| *of != namespace);
        // No client is left to notify.
        self.moved.retain(|key| key.namespace != namespace);
    }

    /// Applies one frame that `sender` pushed, or holds it: [`Engine::frame_with_pauses`] with a `pause` that
    /// does nothing.
    ///
    /// # Errors
    /// [`Refusal`], as [`Engine::frame_with_pauses`] says.
    pub fn frame(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<Effect, Refusal> {
        self.frame_with_pauses(sender, header, payload, &mut || ())
    }

    /// Applies one frame that `sender` pushed, or holds it until its tick or task. Returns what the applier
    /// must send to its client, or `Effect::Wait`. A function from a module calls `pause` while it runs.
    ///
    /// # Errors
    /// [`Refusal`]; no value was changed. Rows may have been created with their initial values, pushes of keys
    /// may have been counted for admission, and the frame has taken a number (lsn), except most of those that an
    /// observer may not send.
    pub fn frame_with_pauses(
        &mut self,
        sender: FrameSender,
        header: &FrameHeader,
        payload: &[u8],
        pause: &mut dyn FnMut(),
    ) -> Result<Effect, Refusal> {
        if sender.is_observer() && !mutants::on(Mutant::ObserverPushes) {
            check_observer(header)?;
        }
        self.lsn += 1;
        if header.kind.is_push() {
            self.rows_before = self.take_cut(header);
            self.name_push(header);
        }
        if header.flags.encoding.is_some() {
            return self.push_encoded(sender, header, payload);
        }
        match header.kind {
            FrameKind::PushRows => self.push_rows(sender, header, payload),
            FrameKind::PushDense => self.push_range(sender, header, payload),
            FrameKind::Gather => self.gather(sender.namespace, header, payload),
            FrameKind::Resolve => self.resolve(sender.namespace, header, payload),
            FrameKind::Clock => self.clock(sender, header),
            FrameKind::Settings => self.settings_frame(sender, header, payload),
            FrameKind::Pad => Ok(Effect::Applied),
            FrameKind::Update | FrameKind::Reduce => self.function(sender, header, payload, pause),
            FrameKind::Delete => self.delete_frame(sender, header, payload),
            FrameKind::Scan => self.scan(sender.namespace, header, payload),
            FrameKind::Pin | FrameKind::Unpin => self.pin(sender.namespace, header),
            FrameKind::Task => self.task_frame(sender, header),
        }
    }

    /// Carries out a PIN or UNPIN frame: pins the version in the frame's clock, of a snapshot table, for the
    /// frame's session, or ends this pin. The reply to a pin is the number of the buffer with the version, a
    /// `u64`. Without the pin an UNPIN has no effect.
    fn pin(&mut self, namespace: NamespaceId, header: &FrameHeader) -> Result<Effect, Refusal> {
        self.known(namespace, header.table)?;
        let store = self.tables.get_mut(&header.table).map(|t| &mut t.store);
        let Some(Store::Blocks(blocks)) = store.filter(|_| header.payload_len == 0) else {
            return Err(wrong_pin(header));
        };
        if !blocks.is_snapshot() {
            return Err(wrong_pin(header));
        }
        let (version, session) = (header.clock, SessionId(header.session));
        if header.kind == FrameKind::Unpin {
            blocks.unpin(version, session);
            return Ok(Effect::Applied);
        }
        let buffer = blocks.pin(version, session).map_err(|no| match no {
            PinRefusal::NotKept { oldest, newest } => RejectReason::NotKept { oldest, newest },
            PinRefusal::Full { pinned, limit } => RejectReason::PinsFull { pinned, limit },
        })?;
        self.reply.clear();
        self.reply.extend_from_slice(&(buffer as u64).to_le_bytes());
        Ok(Effect::Reply { count: 1 })
    }

    /// Ends all pins of a session that is over, and drops what is kept of the session for the recovery from a
    /// crash: its interrupted push, and the number of its last CLOCK frame.
    pub fn end_session(&mut self, session: SessionId) {
        self.cut_pushes.retain(|cut| cut.session != session.0);
        self.cut_clocks.retain(|(of, _)| *of != session.0);
        self.clock_frames.remove(&session.0);
        for table in self.tables.values_mut() {
            if let Store::Blocks(blocks) = &mut table.store {
                blocks.unpin_all(session);
            }
        }
    }

    /// Sets three budgets of `bytes` each: for held pushes of early ranks, for those of tasks, and for held
    /// functions of open iterations.
    pub const fn set_pending_bytes(&mut self, bytes: usize) {
        self.pending.set_limit(bytes);
        self.held_functions.set_limit(bytes);
    }

    /// Counter of the events after which a frame that had to wait may be admitted. Compare it with an
    /// earlier value.
    pub const fn changes(&self) -> u64 {
        self.pending.changes()
    }

    /// Bytes of pushes and functions that are held until their tick or task, with their entries in lists. Where
    /// memory outlives the process, also those of pushes that are in the sums of open iterations.
    pub const fn held_bytes(&self) -> usize {
        self.pending.bytes() + self.held_functions.bytes()
    }

    /// Records why acknowledged work could not be carried out. The applier then stops, and acknowledges
    /// and announces nothing more. Only the first reason is kept.
    pub fn fail(&mut self, why: impl std::fmt::Display) {
        self.failed.get_or_insert_with(|| why.to_string());
    }

    pub(super) const fn progress(&self, row: usize) -> Progress {
        Progress {
            lsn: self.lsn,
            row: row as u32,
        }
    }

    /// Finds the table with the number in a frame. A table of another job counts as absent. The refusal
    /// distinguishes a released table from an unknown one.
    pub(super) fn known(&self, namespace: NamespaceId, table: u32) -> Result<&Table, Refusal> {
        let found = self.tables.get(&table);
        found.filter(|t| t.namespace == namespace).ok_or_else(|| {
            match self.released.contains(&(namespace, table)) {
                true => RejectReason::TableReleased { table },
                false => RejectReason::UnknownTable { table },
            }
        })
    }

    /// Converts the error of creating the row of `key` into a refusal: `TableFull` with the limit that was
    /// reached, otherwise `NoMemory`.
    pub(super) fn no_room(&self, table: u32, key: u64, error: &StoreError) -> Refusal {
        let (resource, limit) = match *error {
            StoreError::Blocks { limit, .. } => (RowResource::Blocks, limit as u64),
            StoreError::TableFull { resource, limit } => (resource, limit),
            StoreError::RegisteredRegion(ExportError::Full { limit }) => {
                (RowResource::Regions, u64::from(limit))
            }
            _ => return self.no_memory(error),
        };
        let store = self.tables.get(&table).map(|table| &table.store);
        let Some(Store::Sparse(shard)) = store else {
            return self.no_memory(error);
        };
        let (_, partition) = shard.owns(key);
        RejectReason::TableFull {
            partition,
            rows: u32::try_from(shard.len()).unwrap_or(u32::MAX),
            resource: resource as u32,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
        }
    }

    /// Converts a store's error into a `NoMemory` refusal with the used bytes and the capacity of the full
    /// memory; for an error other than `StoreError::NoMemory` those of public memory.
    pub(super) fn no_memory(&self, error: &StoreError) -> Refusal {
        let (used, capacity) = match *error {
            StoreError::NoMemory { used, capacity, .. } => (used, capacity),
            _ => self.memory.public.usage(),
        };
        RejectReason::NoMemory {
            used: used as u64,
            capacity: capacity as u64,
        }
    }
}

/// Refuses a frame of an observer that would change the model or a clock. Requests pass, unless their header asks
/// to create rows.
fn check_observer(header: &FrameHeader) -> Result<(), Refusal> {
    let reads = matches!(
        header.kind,
        FrameKind::Gather
            | FrameKind::Resolve
            | FrameKind::Reduce
            | FrameKind::Scan
            | FrameKind::Pin
            | FrameKind::Unpin
            | FrameKind::Pad
    );
    match reads && !header.flags.create {
        true => Ok(()),
        false => Err(observer_refused(header)),
    }
}

/// Builds the refusal of a frame that an observer may not send.
pub(super) const fn observer_refused(header: &FrameHeader) -> Refusal {
    RejectReason::Observer {
        kind: header.kind as u64,
    }
}

const fn wrong_pin(header: &FrameHeader) -> RejectReason {
    RejectReason::WrongOperation {
        kind: header.kind as u64,
        op: 0,
    }
}

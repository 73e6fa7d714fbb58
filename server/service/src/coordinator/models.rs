//! Saves and loads of a job's tables: orders to the servers and their sequence. (long: the steps of one operation.)
//! If a server cannot carry an order out, the module ends the operation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use tidewater_protocol::ids::{DomainId, ServerId, TableId};
use tidewater_protocol::limits::FILE_ORDERS_TIMEOUT;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{
    Command, CommandReply, CoordinatorAnswer, DomainClock, SavedPart,
};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::increments::{Base, Increment};
use super::state::{Action, Asker, Coordinator, FileDone, FileTask, Purpose, bad};
use super::tables::{Stage, refusal_of};
use tidewater_checkpoint::{Manifest, SavedFile, SavedTable, note_settings};
use tidewater_journal::Outcome;

/// A save or load of a job's tables under way; at most one per job.
#[derive(Debug)]
pub(super) struct ModelOp {
    namespace: String,
    dir: String,
    by: By,
    pub(super) deadline: Duration,
    step: Step,
    /// Of a checkpoint, until all parts are written: which one it extends.
    pub(super) increment: Option<Increment>,
    /// Of a checkpoint with all parts written: what the next one can extend.
    base: Option<Base>,
}

/// Origin of a save or load, which gets its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// A worker's request, which gets the answer.
    Worker(Asker),
    /// A periodic checkpoint of the job.
    Checkpoint,
    /// The load of the job's newest checkpoint before its workers join.
    Resume,
}

/// A worker's request for a save or load: the directory, and for a save the worker's clocks.
#[derive(Debug, Clone)]
pub(super) enum Request {
    /// A save at these clocks.
    Save {
        /// Directory of the model.
        dir: String,
        /// Clocks of the worker.
        clocks: Vec<DomainClock>,
    },
    /// A load of a saved model.
    Load {
        /// Directory of the model.
        dir: String,
    },
}

#[derive(Debug)]
pub(super) enum Step {
    /// The directory is being locked, for a save at these clocks.
    BeginSave { clocks: Vec<DomainClock> },
    /// The checkpoints of the job are being listed.
    Finding,
    /// Servers hold the clocks of the job, or are ordered to, for a checkpoint at a tick of these domains. `missing`
    /// have not answered. `furthest` has the greatest clock of each domain in the answers, `refused` the first refusal.
    Holding {
        domains: BTreeSet<DomainId>,
        missing: BTreeSet<ServerId>,
        furthest: BTreeMap<DomainId, u64>,
        refused: Option<Refusal>,
    },
    /// Servers write their parts; those in `missing` have not answered. `refused` is the first refusal.
    Saving {
        tables: Vec<SavedTable>,
        missing: BTreeSet<ServerId>,
        parts: Vec<SavedFile>,
        /// Earliest cut of the parts that are reported, in milliseconds since 1970; `None` before the first report.
        cut_ms: Option<u64>,
        refused: Option<Refusal>,
    },
    /// The manifest of this many tables, rows and bytes is being written.
    Committing { tables: u32, rows: u64, bytes: u64 },
    /// The manifest is being read.
    BeginLoad,
    /// Servers make the tables: those in `missing` are not made yet, those in `made` are.
    Making {
        manifest: Box<Manifest>,
        missing: BTreeSet<TableId>,
        made: Vec<TableId>,
    },
    /// Servers fill the tables `made`; `orders` Load orders are not answered. `refused` is the first refusal.
    Filling {
        manifest: Box<Manifest>,
        orders: usize,
        made: Vec<TableId>,
        refused: Option<Refusal>,
    },
}

impl Coordinator {
    /// Begins a worker's save or load; it waits for a checkpoint under way. Refused for a relative directory,
    /// without all servers, or while another save or load of the job runs.
    pub(super) fn begin_request(
        &mut self,
        asker: Asker,
        namespace: &str,
        request: Request,
    ) -> Result<(), Refusal> {
        let (Request::Save { dir, .. } | Request::Load { dir }) = &request;
        if !Path::new(dir).is_absolute() {
            // Each process would resolve it from its own working directory.
            return Err(bad(&format!(
                "directory \"{dir}\" is relative; give an absolute path"
            )));
        }
        if !self.is_complete() {
            return Err(bad("not all servers have joined; wait for them"));
        }
        if self.queue_behind_checkpoint(asker, namespace, &request) {
            return Ok(());
        }
        let Some(job) = self.jobs.get_mut(namespace) else {
            return Err(bad("no such job"));
        };
        if std::mem::replace(&mut job.busy, true) {
            return Err(bad("a save or load of this job is running; wait for it"));
        }
        let (dir, step, task) = match request {
            Request::Save { dir, clocks } => {
                let task = FileTask::BeginSave(dir.clone());
                (dir, Step::BeginSave { clocks }, task)
            }
            Request::Load { dir } => {
                let task = FileTask::BeginLoad(dir.clone());
                (dir, Step::BeginLoad, task)
            }
        };
        self.begin_op(By::Worker(asker), namespace, dir, step, task);
        Ok(())
    }

    /// Directory of a job's save or load under way; `None` if none runs.
    pub(super) fn directory_of(&self, namespace: &str) -> Option<&str> {
        let mut models = self.models.values();
        let model = models.find(|model| model.namespace == namespace)?;
        Some(&model.dir)
    }

    /// Registers a save or load of a job that has none under way, with its first step, and starts the file task of
    /// that step. Its outcome goes to `by`.
    pub(super) fn begin_op(
        &mut self,
        by: By,
        namespace: &str,
        dir: String,
        step: Step,
        task: FileTask,
    ) {
        self.last_model += 1;
        let (namespace, deadline) = (namespace.to_owned(), self.now + FILE_ORDERS_TIMEOUT);
        self.models.insert(
            self.last_model,
            ModelOp {
                namespace,
                dir,
                by,
                deadline,
                step,
                increment: None,
                base: None,
            },
        );
        self.actions.push(Action::Files(self.last_model, task));
    }

    /// Namespace of the save or load with number `op`; `None` if it has ended.
    pub(super) fn namespace_of(&self, op: u64) -> Option<String> {
        Some(self.models.get(&op)?.namespace.clone())
    }

    /// Current step of the save or load with number `op`; `None` if it has ended.
    pub(super) fn step_of(&mut self, op: u64) -> Option<&mut Step> {
        Some(&mut self.models.get_mut(&op)?.step)
    }

    pub(super) fn set_step(&mut self, op: u64, step: Step) {
        if let Some(model) = self.models.get_mut(&op) {
            model.step = step;
        }
    }

    /// Continues load `op` with the model in `dir`. A resume begins with the directory of a job's checkpoints, and
    /// continues with that of the chosen one.
    pub(super) fn load_from(&mut self, op: u64, dir: String, manifest: Box<Manifest>) {
        if let Some(model) = self.models.get_mut(&op) {
            model.dir = dir;
        }
        self.make_loaded(op, manifest);
    }

    /// Handles the result of the file task of operation `op`. `now` is on the coordinator's clock. An error
    /// ends the operation.
    pub fn files_done(&mut self, now: Duration, op: u64, done: Result<FileDone, Refusal>) {
        self.tick(now);
        self.touch();
        let Some(model) = self.models.get_mut(&op) else {
            return;
        };
        match (&mut model.step, done) {
            (_, Err(refusal)) => self.end_model(op, CoordinatorAnswer::Refused(refusal)),
            (Step::BeginSave { .. }, Ok(FileDone::Begun)) if model.by == By::Checkpoint => {
                self.hold_for_checkpoint(op);
            }
            (Step::BeginSave { .. }, Ok(FileDone::BegunWithoutLinks(why))) => {
                model.increment.iter_mut().for_each(Increment::hold_all);
                let namespace = model.namespace.clone();
                self.cannot_extend(&namespace, &why);
                self.hold_for_checkpoint(op);
            }
            (Step::Finding, Ok(FileDone::Checkpoints(found))) => {
                self.checkpoints_found(op, *found);
            }
            (Step::BeginSave { clocks }, Ok(FileDone::Begun)) => {
                let clocks = std::mem::take(clocks);
                self.order_parts(op, &clocks);
            }
            (
                &mut Step::Committing {
                    tables,
                    rows,
                    bytes,
                },
                Ok(FileDone::Committed),
            ) => {
                self.end_model(
                    op,
                    CoordinatorAnswer::Saved {
                        tables,
                        rows,
                        bytes,
                    },
                );
            }
            (Step::BeginLoad, Ok(FileDone::Manifest(manifest))) => self.make_loaded(op, manifest),
            _ => {}
        }
    }

    pub(super) fn order_parts(&mut self, op: u64, clocks: &[DomainClock]) {
        let servers = self.joined_servers();
        let Some(model) = self.models.get_mut(&op) else {
            return;
        };
        let of_job = self
            .tables
            .values()
            .filter(|table| table.namespace == model.namespace);
        let tables = of_job
            .filter(|table| table.stage == Stage::Ready && !table.info.spec.is_transient())
            .map(|table| SavedTable {
                id: table.info.id.0,
                spec: table.info.spec.clone(),
                optimizer: None,
            });
        let tables: Vec<SavedTable> = tables.collect();
        let increment = model.increment.as_mut();
        let checkpoint = increment.map(|increment| increment.mark(&tables, servers.len()));
        model.step = Step::Saving {
            tables,
            missing: servers.iter().copied().collect(),
            parts: Vec::new(),
            cut_ms: None,
            refused: None,
        };
        if checkpoint.is_some() {
            // It may wait for a tick. Servers limit the time from then on.
            model.deadline = Duration::MAX;
        }
        let (namespace, dir) = (model.namespace.clone(), model.dir.clone());
        for server in servers {
            let order = Command::Save {
                namespace: namespace.clone(),
                dir: dir.clone(),
                clocks: clocks.to_vec(),
                checkpoint,
            };
            self.order(server, Purpose::Save(op), order);
        }
    }

    /// Handles a server's answer to the Save order: its part file, or a refusal. After the last answer the
    /// manifest is written, or the parts are removed.
    pub(super) fn part_saved(&mut self, op: u64, server: ServerId, answer: CommandReply) {
        let Some(model) = self.models.get_mut(&op) else {
            return;
        };
        let Step::Saving {
            tables,
            missing,
            parts,
            cut_ms,
            refused,
        } = &mut model.step
        else {
            return;
        };
        missing.remove(&server);
        match answer {
            CommandReply::Saved(part) => {
                note_settings(tables, &part.settings);
                *cut_ms = Some(cut_ms.map_or(part.cut_ms, |first| part.cut_ms.min(first)));
                parts.push(saved_file(server, part));
            }
            other => {
                refused.get_or_insert(refusal_of(server, other));
            }
        }
        if !missing.is_empty() {
            return;
        }
        parts.sort_by_key(|part| part.server);
        let (tables, mut files) = (std::mem::take(tables), std::mem::take(parts));
        let taken_ms = cut_ms.take().filter(|_| model.by == By::Checkpoint);
        if let Some(job) = self.jobs.get(&model.namespace) {
            add_base(&mut files, &job.base);
        }
        if let Some(refusal) = refused.take() {
            let names = files.into_iter().map(|file| file.file).collect();
            self.actions
                .push(Action::Files(op, FileTask::Abandon(names)));
            self.end_model(op, CoordinatorAnswer::Refused(refusal));
            return;
        }
        let sum = |of: fn(&SavedFile) -> u64| files.iter().map(of).fold(0, u64::saturating_add);
        model.step = Step::Committing {
            tables: tables.len() as u32,
            rows: sum(|file| file.rows),
            bytes: sum(|file| file.bytes),
        };
        model.deadline = self.now + FILE_ORDERS_TIMEOUT;
        if let Some(increment) = model.increment.take() {
            let base = increment.complete(model.dir.clone(), tables.clone(), files);
            files = base.files().to_vec();
            model.base = Some(base);
        }
        let manifest = Box::new(Manifest {
            taken_ms,
            ..Manifest::new(model.namespace.clone(), tables, files)
        });
        let policy = self.checkpoint.as_ref();
        let keep = policy.filter(|_| model.by == By::Checkpoint);
        let keep = keep.map(|policy| policy.keep.max(1));
        self.actions
            .push(Action::Files(op, FileTask::Commit { manifest, keep }));
    }

    fn make_loaded(&mut self, op: u64, manifest: Box<Manifest>) {
        let Some(namespace) = self.models.get(&op).map(|model| model.namespace.clone()) else {
            return;
        };
        let taken = manifest
            .tables
            .iter()
            .find(|table| self.table_named(&namespace, &table.spec.name).is_some());
        if let Some(taken) = taken {
            let text = format!(
                "table \"{}\" exists; load before it is created, or release it \
                 first",
                taken.spec.name
            );
            let refusal = Refusal::new(RefusalCode::TableDiffers, [0; 4]).with_text(text);
            return self.load_failed(op, refusal);
        }
        let mut missing = BTreeSet::new();
        for table in &manifest.tables {
            match self.add_table(&namespace, table.spec.clone(), Some(op)) {
                Ok(id) => missing.insert(id),
                Err(refusal) => {
                    let none = Vec::new;
                    missing
                        .into_iter()
                        .for_each(|id| self.drop_table(id, none(), &refusal));
                    return self.load_failed(op, refusal);
                }
            };
        }
        let ids: Vec<TableId> = missing.iter().copied().collect();
        if let Some(model) = self.models.get_mut(&op) {
            model.step = Step::Making {
                manifest,
                missing,
                made: Vec::new(),
            };
        }
        if ids.is_empty() {
            return self.load_done(op);
        }
        ids.into_iter().for_each(|id| self.make_table(id));
    }

    /// Handles the creation of a table on all servers, for the load `op`. After the last table, orders the
    /// servers to fill the tables. If the load has ended, releases the table.
    pub(super) fn load_table_made(&mut self, op: u64, id: TableId) {
        let servers = self.joined_servers();
        let Some(model) = self.models.get_mut(&op) else {
            return self.release_made(vec![id], &bad("the load was given up"));
        };
        let Step::Making {
            manifest,
            missing,
            made,
        } = &mut model.step
        else {
            return;
        };
        missing.remove(&id);
        made.push(id);
        if !missing.is_empty() {
            return;
        }
        let (manifest, made) = (manifest.clone(), std::mem::take(made));
        let orders = made.len() * servers.len();
        let refused = None;
        model.step = Step::Filling {
            manifest,
            orders,
            made: made.clone(),
            refused,
        };
        let dir = model.dir.clone();
        for id in made {
            let Some(name) = self
                .tables
                .get(&id)
                .map(|table| table.info.spec.name.clone())
            else {
                continue;
            };
            for &server in &servers {
                let order = Command::Load {
                    id,
                    name: name.clone(),
                    dir: dir.clone(),
                };
                self.order(server, Purpose::Load(op), order);
            }
        }
    }

    /// Handles a server's answer to a Load order: its share of a table is filled, or it refuses. The last
    /// answer ends the load.
    pub(super) fn part_loaded(&mut self, op: u64, server: ServerId, answer: CommandReply) {
        let Some(model) = self.models.get_mut(&op) else {
            return;
        };
        let Step::Filling {
            orders, refused, ..
        } = &mut model.step
        else {
            return;
        };
        *orders = orders.saturating_sub(1);
        if answer != CommandReply::Done {
            refused.get_or_insert(refusal_of(server, answer));
        }
        if *orders > 0 {
            return;
        }
        match refused.take() {
            Some(refusal) => self.load_failed(op, refusal),
            None => self.load_done(op),
        }
    }

    fn load_done(&mut self, op: u64) {
        let Some(model) = self.models.get_mut(&op) else {
            return;
        };
        let (manifest, made) = match &mut model.step {
            Step::Making { manifest, made, .. } | Step::Filling { manifest, made, .. } => {
                (manifest.clone(), std::mem::take(made))
            }
            _ => return,
        };
        let namespace = model.namespace.clone();
        made.into_iter().for_each(|id| self.table_ready(id));
        let tables = manifest
            .tables
            .iter()
            .map(|table| table.spec.name.clone())
            .collect();
        let (rows, clocks) = (manifest.rows(), manifest.clocks());
        if let Some(job) = self.jobs.get_mut(&namespace) {
            for entry in &clocks {
                let base = job.base.entry(entry.domain).or_default();
                *base = entry.clock.max(*base);
            }
        }
        self.actions.push(Action::Files(op, FileTask::EndLoad));
        self.end_model(
            op,
            CoordinatorAnswer::Loaded {
                tables,
                rows,
                clocks,
            },
        );
    }

    /// Fails a load: releases the tables that it has created and answers with the refusal. Tables still being
    /// created are released when their servers have answered.
    pub(super) fn load_failed(&mut self, op: u64, refusal: Refusal) {
        let Some(model) = self.models.get_mut(&op) else {
            return;
        };
        let made = match &mut model.step {
            Step::Making { made, .. } | Step::Filling { made, .. } => std::mem::take(made),
            _ => Vec::new(),
        };
        self.release_made(made, &refusal);
        self.actions.push(Action::Files(op, FileTask::EndLoad));
        self.end_model(op, CoordinatorAnswer::Refused(refusal));
    }

    fn release_made(&mut self, made: Vec<TableId>, refusal: &Refusal) {
        for id in made {
            let servers = self.joined_servers();
            self.drop_table(id, servers, refusal);
        }
    }

    pub(super) fn end_model(&mut self, op: u64, answer: CoordinatorAnswer) {
        let Some(model) = self.models.remove(&op) else {
            return;
        };
        if let Some(job) = self.jobs.get_mut(&model.namespace) {
            job.busy = false;
        }
        match model.by {
            By::Worker(asker) => self.model_answered(asker, &model.dir, answer),
            By::Checkpoint => {
                self.checkpoint_ended(&model.namespace, answer, model.increment, model.base);
            }
            By::Resume => self.resume_ended(&model.namespace, answer),
        }
    }

    /// Answers a worker's save or load. A success is journalled, so that a repeated request gets the same
    /// answer.
    fn model_answered(&mut self, asker: Asker, dir: &str, answer: CoordinatorAnswer) {
        match answer {
            CoordinatorAnswer::Saved {
                tables,
                rows,
                bytes,
            } => {
                let outcome = Outcome::Saved {
                    tables,
                    rows,
                    bytes,
                };
                self.answer_once(asker, format!("save {dir}"), outcome);
            }
            CoordinatorAnswer::Loaded {
                tables,
                rows,
                clocks,
            } => {
                let outcome = Outcome::Loaded {
                    tables,
                    rows,
                    clocks,
                };
                self.answer_once(asker, format!("load {dir}"), outcome);
            }
            other => self.answer(asker, other),
        }
    }

    /// Lists the servers that have not answered an order of the operation, for an error text; without any,
    /// the coordinator's file system.
    fn silent(&self, op: u64) -> String {
        let making = match self.models.get(&op).map(|model| &model.step) {
            Some(Step::Making { missing, .. }) => missing.clone(),
            _ => BTreeSet::new(),
        };
        let is_of = |purpose: Purpose| match purpose {
            Purpose::HoldForSave(of) | Purpose::Save(of) | Purpose::Load(of) => of == op,
            Purpose::Create(table) => making.contains(&table),
            _ => false,
        };
        let orders = self.orders.values().filter(|(_, purpose)| is_of(*purpose));
        let ranks = orders.filter_map(|(peer, _)| Some(self.peers.get(peer)?.rank));
        let names: BTreeSet<u32> = ranks.collect();
        match names.len() {
            0 => "the coordinator's file system".into(),
            _ => {
                let names: Vec<String> = names.iter().map(|n| format!("server {n}")).collect();
                names.join(", ")
            }
        }
    }

    /// Aborts save or load `op` and answers it with `refusal`: its job ends, it times out, or it is a
    /// checkpoint that gives way to another operation. Removes tables that it has created, and part files
    /// reported while servers write. A checkpoint's hold of clocks or unwritten parts end too. Does nothing if
    /// it has ended.
    pub(super) fn abort_model(&mut self, op: u64, refusal: Refusal) {
        match self.models.get(&op).map(|model| &model.step) {
            Some(Step::Finding | Step::BeginLoad | Step::Making { .. } | Step::Filling { .. }) => {
                self.load_failed(op, refusal);
            }
            Some(
                step @ (Step::BeginSave { .. }
                | Step::Holding { .. }
                | Step::Saving { .. }
                | Step::Committing { .. }),
            ) => {
                let is_held = matches!(step, Step::Holding { .. });
                let is_open = matches!(step, Step::Saving { .. });
                // Parts that are still being written stay as files without a manifest.
                let names = match step {
                    Step::Saving { parts, .. } => parts.iter().map(|p| p.file.clone()).collect(),
                    _ => Vec::new(),
                };
                let model = self.models.get(&op).map(|m| (m.by, m.namespace.clone()));
                self.actions
                    .push(Action::Files(op, FileTask::Abandon(names)));
                if let Some((By::Checkpoint, namespace)) = model {
                    if is_held {
                        self.release_hold(&namespace);
                    } else if is_open {
                        self.cancel_parts(&namespace);
                    }
                }
                self.end_model(op, CoordinatorAnswer::Refused(refusal));
            }
            None => {}
        }
    }

    pub(super) fn abort_models(&mut self, namespace: &str, refusal: &Refusal) {
        let of_job = self
            .models
            .iter()
            .filter(|(_, model)| model.namespace == namespace);
        for op in of_job.map(|(&op, _)| op).collect::<Vec<_>>() {
            self.abort_model(op, refusal.clone());
        }
    }

    pub(super) fn expire_models(&mut self) {
        if mutants::on(Mutant::HungSaveWaits) {
            return;
        }
        let over = self
            .models
            .iter()
            .filter(|(_, model)| model.deadline <= self.now);
        for op in over.map(|(&op, _)| op).collect::<Vec<_>>() {
            let text = format!(
                "{} did not answer within {} s; look whether it is stopped or its disk hangs",
                self.silent(op),
                FILE_ORDERS_TIMEOUT.as_secs()
            );
            let refusal = Refusal::new(RefusalCode::Timeout, [0; 4]).with_text(text);
            self.abort_model(op, refusal);
            self.touch();
        }
    }
}

/// Adds the clocks of the model that a job has loaded, `base`, to the clocks in the manifest entries of its
/// part files. A domain of `base` that no entry has is added to the first one.
fn add_base(files: &mut [SavedFile], base: &BTreeMap<DomainId, u64>) {
    if mutants::on(Mutant::ModelClocksBeginAgain) {
        return;
    }
    for (&domain, &base) in base {
        let of_domain = |clock: &&mut DomainClock| clock.domain == domain;
        let clocks = files.iter_mut().flat_map(|file| &mut file.clocks);
        let mut own = clocks.filter(of_domain).peekable();
        if own.peek().is_some() {
            own.for_each(|own| own.clock = own.clock.saturating_add(base));
        } else if let Some(first) = files.first_mut() {
            // No worker of this job has ticked in it.
            let clock = base;
            first.clocks.push(DomainClock { domain, clock });
        }
    }
}

fn saved_file(server: ServerId, part: SavedPart) -> SavedFile {
    let SavedPart {
        file,
        rows,
        bytes,
        check,
        clocks,
        settings: _,
        cut_ms: _,
    } = part;
    SavedFile {
        server: server.0,
        file,
        rows,
        bytes,
        check,
        clocks,
        extends: None,
    }
}

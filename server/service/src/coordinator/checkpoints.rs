//! Checkpoints of jobs: when they are taken, at which clocks, and how a job continues from one.
//!
//! ```text
//! due -> BeginSave -> HoldClocks to all servers -> the furthest tick F of each domain; no clock moves
//! Save{clocks: F, checkpoint} to all servers: appliers have the order, then their clocks go on
//! each applier cuts when its minimum is F, and writes while it goes on -> manifest -> old ones removed
//! ```
//! While clocks are held no minimum lies above F, so each applier has the order before it can pass F: all
//! cut at one tick, and no worker waits for a file. A checkpoint every N ticks uses the next multiple of N
//! in place of F: it is ordered when the one before is complete, and waits for its tick in the appliers.
//!
//! A checkpoint gives way: a save or load of a worker, a new table or a released one ends it, and it
//! begins again. One that waits for a tick would otherwise wait for a worker that waits for its save, and a
//! table that is created before the tick would be missing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidewater_journal::CheckpointImage;
use tidewater_protocol::ids::{DomainId, ServerId};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::Apply;
use tidewater_protocol::wire::control::{
    Command, CommandReply, CoordinatorAnswer, DomainClock, Join, Resumed, WorkerState,
};
use tidewater_protocol::wire::refusal::RefusalCode;

use super::increments::{Base, Increment, Increments};
use super::jobs::{Job, Worker};
use super::models::{By, Request, Step};
use super::state::{Action, Asker, Coordinator, FileTask, Phase, Purpose, bad};
use super::tables::Stage;
use tidewater_checkpoint::series::dir_of;

/// Interval at which the alive file of a job is updated, which records that the job runs.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// Pause before a failed checkpoint is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Pause before a checkpoint is tried again that gave way to another operation, or could not begin.
const RETRY_SOON: Duration = Duration::from_millis(100);

/// When checkpoints of a job are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Every {
    /// This time after the previous checkpoint is complete.
    Time(Duration),
    /// At multiples of this number of ticks of domain 0; those during a checkpoint are skipped.
    Ticks(u64),
}

/// Policy of periodic checkpoints: directory, interval and number kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointPolicy {
    /// Absolute directory that all servers and the coordinator see; each namespace has a folder in it.
    pub dir: String,
    /// How often they are taken.
    pub every: Every,
    /// Number of newest complete checkpoints that are kept, or more; 0 counts as 1.
    pub keep: usize,
    /// At least one of so many checkpoints holds all rows, those between hold what has changed since the one
    /// before. 1: all hold all rows.
    pub full_every: usize,
}

/// Progress of loading a job's newest checkpoint before its workers join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resume {
    /// No load runs: not all servers have joined, or the last load has failed.
    Waits,
    /// The newest checkpoint is being loaded.
    Loads,
    /// Nothing is left to load: workers may join.
    Done,
}

/// Checkpoint state of one job.
#[derive(Debug)]
pub(super) struct Durable {
    /// Number of the job in orders that read its clocks.
    pub(super) id: u64,
    /// Directory of its checkpoints.
    pub(super) dir: String,
    pub(super) resume: Resume,
    /// Workers that wait for the end of the resume.
    pub(super) joining: Vec<(Asker, Join)>,
    /// The checkpoint that is being loaded or was loaded.
    pub(super) resumed: Option<Resumed>,
    /// Number of checkpoints that could not be loaded.
    pub(super) skipped: u32,
    /// Number of the next checkpoint.
    pub(super) next: u64,
    /// Time on the coordinator's clock at which the next checkpoint is due.
    pub(super) due: Duration,
    /// Operation number of the checkpoint under way, if any.
    pub(super) op: Option<u64>,
    pub(super) gives_way: bool,
    pub(super) increments: Increments,
    /// Saves and loads of workers that wait for the end of the checkpoint.
    pub(super) waiting: Vec<(Asker, Request)>,
    /// Furthest clock of any worker in each domain, as servers report it, without `Job::base`. The alive file holds the
    /// sum of both.
    pub(super) clocks: BTreeMap<DomainId, u64>,
    /// Number of ReadClocks orders without an answer.
    pub(super) unread: usize,
    pub(super) next_alive: Duration,
}

impl Durable {
    pub(super) fn new(id: u64, dir: String) -> Self {
        Self {
            id,
            dir,
            resume: Resume::Waits,
            joining: Vec::new(),
            resumed: None,
            skipped: 0,
            next: 1,
            due: Duration::ZERO,
            op: None,
            gives_way: false,
            increments: Increments::default(),
            waiting: Vec::new(),
            clocks: BTreeMap::new(),
            unread: 0,
            next_alive: Duration::ZERO,
        }
    }

    /// Makes the part of this state that the journal keeps over a restart of the coordinator: directory, numbers and
    /// what was loaded. `None` before the job has finished resuming (loading its newest checkpoint).
    pub(super) fn image(&self) -> Option<CheckpointImage> {
        (self.resume == Resume::Done).then(|| CheckpointImage {
            dir: self.dir.clone(),
            next: self.next,
            skipped: self.skipped,
            resumed: self.resumed.clone(),
        })
    }

    /// Restores the checkpoint state after a restart of the coordinator. The next checkpoint is due at once,
    /// since the time of the last one is not known.
    pub(super) fn resume(id: u64, image: &CheckpointImage) -> Self {
        Self {
            resume: Resume::Done,
            next: image.next,
            skipped: image.skipped,
            resumed: image.resumed.clone(),
            ..Self::new(id, image.dir.clone())
        }
    }

    /// Removes the requests that wait for the resume or for the checkpoint under way. Returns them, for the caller to
    /// answer.
    pub(super) fn drop_waiting(&mut self) -> Vec<Asker> {
        let joining = self.joining.drain(..).map(|(asker, _)| asker);
        let waiting = self.waiting.drain(..).map(|(asker, _)| asker);
        joining.chain(waiting).collect()
    }
}

impl Coordinator {
    /// Enables periodic checkpoints of all jobs. A job then starts from its newest complete checkpoint.
    pub fn keep_checkpoints(&mut self, policy: CheckpointPolicy) {
        self.checkpoint = Some(policy);
    }

    pub(super) fn durable(&mut self, namespace: &str) -> Option<&mut Durable> {
        self.jobs.get_mut(namespace)?.durable.as_deref_mut()
    }

    /// Time on the coordinator's clock at which [`Self::step_checkpoints`] must run next. `None` if no job
    /// takes checkpoints now.
    pub(super) fn next_checkpoint(&self) -> Option<Duration> {
        if !self.takes_checkpoints() {
            return None;
        }
        let runs = |d: &&Durable| d.resume == Resume::Done;
        let jobs = self.jobs.values().filter(|job| is_kept(job));
        let jobs = jobs.filter_map(|job| job.durable.as_deref());
        let next = |d: &Durable| match d.op {
            None => d.next_alive.min(d.due.max(self.now + RETRY_SOON)),
            Some(_) => d.next_alive,
        };
        jobs.filter(runs).map(next).min()
    }

    fn takes_checkpoints(&self) -> bool {
        self.checkpoint.is_some() && self.phase == Phase::Running && self.is_complete()
    }

    /// Begins the due checkpoints of jobs that have settled tables and no save, load or hold of clocks; updates
    /// the alive files of jobs (when the job last ran, and its clocks). Skips jobs that have failed, have no
    /// live worker or are not resumed yet; does nothing until all servers have joined.
    pub(super) fn step_checkpoints(&mut self) {
        if !self.takes_checkpoints() {
            return;
        }
        let mut alive = Vec::new();
        let mut due = Vec::new();
        for (name, job) in &mut self.jobs {
            if !is_kept(job) {
                continue;
            }
            let Some(durable) = job.durable.as_mut().filter(|d| d.resume == Resume::Done) else {
                continue;
            };
            if durable.next_alive <= self.now {
                durable.next_alive = self.now + ALIVE_EVERY;
                alive.push(name.clone());
            }
            let is_due = durable.due <= self.now && durable.op.is_none();
            if is_due && !job.busy && job.admitting.is_none() && !job.tables.is_empty() {
                due.push(name.clone());
            }
        }
        alive.iter().for_each(|name| self.note_alive(name));
        for name in due
            .into_iter()
            .filter(|name| self.is_settled(name))
            .collect::<Vec<_>>()
        {
            self.begin_checkpoint(&name);
        }
    }

    /// Whether all tables of a job are created on the servers and filled, or being released: a checkpoint may begin.
    fn is_settled(&self, namespace: &str) -> bool {
        let of_job = |t: &&super::tables::TableEntry| t.namespace == namespace;
        let is_made = |stage: &Stage| matches!(stage, Stage::Ready | Stage::Releasing(_));
        self.tables
            .values()
            .filter(of_job)
            .all(|t| is_made(&t.stage))
    }

    fn note_alive(&mut self, namespace: &str) {
        let servers = self.joined_servers();
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        let Some(durable) = job.durable.as_mut() else {
            return;
        };
        let mut all = job.base.clone();
        for (&domain, &clock) in &durable.clocks {
            let base = all.entry(domain).or_default();
            *base = clock.saturating_add(*base);
        }
        let clock = |(domain, clock)| DomainClock { domain, clock };
        let clocks = all.into_iter().map(clock).collect();
        self.actions
            .push(Action::Alive(durable.dir.clone(), clocks));
        if durable.unread > 0 {
            return;
        }
        durable.unread = servers.len();
        let id = durable.id;
        for server in servers {
            let namespace = namespace.to_owned();
            self.order(
                server,
                Purpose::ReadClocks(id),
                Command::ReadClocks { namespace },
            );
        }
    }

    /// Handles a server's answer to ReadClocks: raises the job's highest clocks. A refusal is ignored: the
    /// server has just forgotten the job.
    pub(super) fn clocks_read(&mut self, id: u64, reply: CommandReply) {
        let durables = self
            .jobs
            .values_mut()
            .filter_map(|job| job.durable.as_deref_mut());
        let Some(durable) = durables.into_iter().find(|durable| durable.id == id) else {
            return;
        };
        durable.unread = durable.unread.saturating_sub(1);
        if let CommandReply::Clocks(clocks) = reply {
            for DomainClock { domain, clock } in clocks {
                let furthest = durable.clocks.entry(domain).or_default();
                *furthest = clock.max(*furthest);
            }
        }
    }

    fn begin_checkpoint(&mut self, namespace: &str) {
        let op = self.last_model + 1;
        let Some(job) = self.jobs.get_mut(namespace) else {
            return;
        };
        let Some(durable) = job.durable.as_mut() else {
            return;
        };
        job.busy = true;
        (durable.op, durable.gives_way) = (Some(op), false);
        let full_every = self.checkpoint.as_ref().map_or(1, |p| p.full_every);
        let increment = durable.increments.begin(op, full_every);
        let dir = dir_of(&durable.dir, durable.next);
        let task = FileTask::BeginCheckpoint {
            dir: dir.clone(),
            links: increment.links(),
        };
        let step = Step::BeginSave { clocks: Vec::new() };
        self.begin_op(By::Checkpoint, namespace, dir, step, task);
        if let Some(model) = self.models.get_mut(&op) {
            model.increment = Some(increment);
        }
    }

    /// Orders all servers to hold a job's clocks, so that they consume no tick, for checkpoint `op`. If no
    /// domain needs a common tick, orders the servers' part files at once. Aborts the checkpoint if it has to
    /// give way, or a worker is being admitted or a table created.
    pub(super) fn hold_for_checkpoint(&mut self, op: u64) {
        let Some(namespace) = self.namespace_of(op) else {
            return;
        };
        let is_settled = self.is_settled(&namespace);
        let domains = self.domains_of_checkpoint(&namespace);
        self.last_admission += 1;
        let number = self.last_admission;
        let servers = self.joined_servers();
        let Some(job) = self.jobs.get_mut(&namespace) else {
            return;
        };
        let cannot = !is_settled || job.admitting.is_some();
        let durable = job.durable.as_mut();
        // A worker that joins, or a table that is being made, comes first.
        let gives_way = durable.is_none_or(|durable| {
            durable.gives_way |= cannot;
            durable.gives_way
        });
        if gives_way {
            return self.abort_model(op, bad("the checkpoint gives way"));
        }
        if domains.is_empty() || mutants::on(Mutant::CheckpointWithoutClocks) {
            return self.order_parts(op, &[]);
        }
        job.admitting = Some(number);
        self.set_step(
            op,
            Step::Holding {
                domains,
                missing: servers.iter().copied().collect(),
                furthest: BTreeMap::new(),
                refused: None,
            },
        );
        for server in servers {
            let namespace = namespace.clone();
            self.order(
                server,
                Purpose::HoldForSave(op),
                Command::HoldClocks { namespace },
            );
        }
    }

    /// Clock domains in which a checkpoint of a job needs a common tick: domain 0 for a policy in ticks, else
    /// the domains of the saved tables applied at ticks.
    fn domains_of_checkpoint(&self, namespace: &str) -> BTreeSet<DomainId> {
        if let Some(Every::Ticks(_)) = self.checkpoint.as_ref().map(|p| p.every) {
            return [DomainId(0)].into();
        }
        let of_job = self.tables.values().filter(|t| t.namespace == namespace);
        let ticks = of_job.filter(|t| t.stage == Stage::Ready && !t.info.spec.is_transient());
        let ticks = ticks.filter(|t| matches!(t.info.spec.effect, Apply::AtTick { .. }));
        ticks.map(|t| t.info.spec.domain).collect()
    }

    /// Handles a server's answer to HoldClocks for checkpoint `op`: its held clocks, or a refusal. After the
    /// last answer orders the part files, or aborts the checkpoint if a server refused.
    pub(super) fn clocks_held_for_save(&mut self, op: u64, server: ServerId, reply: CommandReply) {
        let Some(Step::Holding {
            missing,
            furthest,
            refused,
            ..
        }) = self.step_of(op)
        else {
            // It was given up, and with it the hold.
            return;
        };
        missing.remove(&server);
        match reply {
            CommandReply::Clocks(clocks) => {
                for DomainClock { domain, clock } in clocks {
                    let most = furthest.entry(domain).or_default();
                    *most = clock.max(*most);
                }
            }
            CommandReply::Refused(refusal) => {
                refused.get_or_insert(refusal);
            }
            _ => {
                let text = format!("server {server} answers HoldClocks with something else");
                refused.get_or_insert(bad(&text));
            }
        }
        if missing.is_empty() {
            self.order_checkpoint(op);
        }
    }

    /// Chooses the ticks of a checkpoint from the held clocks and orders the servers to write their part files, which
    /// also lets the clocks advance. Aborts the checkpoint if a server refused or another operation has precedence.
    fn order_checkpoint(&mut self, op: u64) {
        let every = self.checkpoint.as_ref().map(|p| p.every);
        let Some(namespace) = self.namespace_of(op) else {
            return;
        };
        let Some(Step::Holding {
            domains,
            furthest,
            refused,
            ..
        }) = self.step_of(op)
        else {
            return;
        };
        let (domains, furthest) = (std::mem::take(domains), std::mem::take(furthest));
        let refused = refused.take();
        let Some(job) = self.jobs.get_mut(&namespace) else {
            return;
        };
        let gives_way = job.durable.as_ref().is_none_or(|durable| durable.gives_way);
        if let Some(refusal) =
            refused.or_else(|| gives_way.then(|| bad("the checkpoint gives way")))
        {
            return self.abort_model(op, refusal);
        }
        let clock = |domain: DomainId| {
            let furthest = furthest.get(&domain).copied().unwrap_or_default();
            let base = job.base.get(&domain).copied().unwrap_or_default();
            match every {
                Some(Every::Ticks(ticks)) => {
                    let all = base.saturating_add(furthest);
                    let ticks = ticks.max(1);
                    let next = (all / ticks).saturating_add(1).saturating_mul(ticks);
                    next.saturating_sub(base)
                }
                _ => furthest,
            }
        };
        let clocks: Vec<DomainClock> = domains
            .into_iter()
            .map(|domain| DomainClock {
                domain,
                clock: clock(domain),
            })
            .collect();
        job.admitting = None;
        self.order_parts(op, &clocks);
        self.after_hold(&namespace);
    }

    /// Sends servers the member notifications that waited while a job's clocks were held, and begins its next
    /// admission.
    fn after_hold(&mut self, namespace: &str) {
        for server in self.joined_servers() {
            self.tell_again(server, namespace);
        }
        self.next_admission(namespace);
    }

    /// Orders all servers to let a job's clocks, which they hold for a checkpoint, advance again. The checkpoint is
    /// given up.
    pub(super) fn release_hold(&mut self, namespace: &str) {
        if let Some(job) = self.jobs.get_mut(namespace) {
            job.admitting = None;
        }
        let members = self.members(namespace);
        for server in self.joined_servers() {
            let order = Command::MembersChanged {
                namespace: namespace.to_owned(),
                members: members.clone(),
                admitted: None,
            };
            self.order(server, Purpose::Cleanup, order);
        }
        self.after_hold(namespace);
    }

    /// Makes the checkpoint of a job that is under way end unfinished in favour of another operation; it is
    /// tried again soon. Does not wait for its end. Does nothing if none is under way or all parts are written.
    pub(super) fn give_way(&mut self, namespace: &str) {
        let Some(durable) = self.durable(namespace) else {
            return;
        };
        let Some(op) = durable.op else {
            return;
        };
        if std::mem::replace(&mut durable.gives_way, true) {
            return;
        }
        if let Some(Step::Saving { .. }) = self.step_of(op) {
            self.cancel_parts(namespace);
        }
    }

    /// Orders all servers to cancel writing part files of a job's checkpoint; ignores answers to this order.
    pub(super) fn cancel_parts(&mut self, namespace: &str) {
        for server in self.joined_servers() {
            let namespace = namespace.to_owned();
            self.order(server, Purpose::Cleanup, Command::CancelSave { namespace });
        }
    }

    /// Makes the checkpoint of a job under way give way, and queues a worker's save or load until then. Returns
    /// `false`, without queueing, if no checkpoint is under way: the caller carries the request out.
    pub(super) fn queue_behind_checkpoint(
        &mut self,
        asker: Asker,
        namespace: &str,
        request: &Request,
    ) -> bool {
        let Some(durable) = self.durable(namespace).filter(|d| d.op.is_some()) else {
            return false;
        };
        durable.waiting.push((asker, request.clone()));
        self.give_way(namespace);
        true
    }

    /// Handles the end of a checkpoint: sets the time of the next one by its outcome, and begins the saves and
    /// loads that waited. `begun` is given unless all parts were written; after `Saved` the next one can extend
    /// `base`.
    pub(super) fn checkpoint_ended(
        &mut self,
        namespace: &str,
        answer: CoordinatorAnswer,
        begun: Option<Increment>,
        base: Option<Base>,
    ) {
        let (now, every) = (self.now, self.checkpoint.as_ref().map(|p| p.every));
        let full_every = self.checkpoint.as_ref().map_or(1, |p| p.full_every);
        let Some(durable) = self.durable(namespace) else {
            return;
        };
        durable.op = None;
        if let Some(begun) = begun {
            durable.increments.give_back(begun);
        }
        let gave_way = std::mem::take(&mut durable.gives_way);
        let number = durable.next;
        let pause = match answer {
            CoordinatorAnswer::Saved {
                tables,
                rows,
                bytes,
            } => {
                let extends = base.as_ref().is_some_and(Base::extends);
                tracing::info!(
                    namespace,
                    number,
                    extends,
                    tables,
                    rows,
                    bytes,
                    "checkpoint"
                );
                durable.next = number.saturating_add(1);
                if let Some(base) = base {
                    durable.increments.complete(base, full_every);
                }
                match every {
                    Some(Every::Time(every)) => every,
                    _ => Duration::ZERO,
                }
            }
            _ if gave_way => RETRY_SOON,
            // A server has started again, or many rows were removed.
            CoordinatorAnswer::Refused(refusal) if refusal.code == RefusalCode::ChangesUnknown => {
                tracing::info!(namespace, number, %refusal, "the next checkpoint holds all rows");
                RETRY_SOON
            }
            CoordinatorAnswer::Refused(refusal) => {
                let dir = &durable.dir;
                tracing::error!(namespace, number, dir, %refusal, "a checkpoint has failed");
                RETRY
            }
            _ => RETRY,
        };
        durable.due = now.saturating_add(pause);
        let waiting = std::mem::take(&mut durable.waiting);
        // There is a directory for it now, and the next run needs a time after that of the cut.
        self.note_alive(namespace);
        for (asker, request) in waiting {
            if let Err(refusal) = self.begin_request(asker, namespace, request) {
                self.answer(asker, CoordinatorAnswer::Refused(refusal));
            }
        }
    }
}

/// Whether checkpoints of a job are taken: it has not failed and has a live worker.
fn is_kept(job: &Job) -> bool {
    let is_live = |worker: &Worker| worker.state == WorkerState::Live;
    job.failed.is_none() && job.workers.values().any(is_live)
}

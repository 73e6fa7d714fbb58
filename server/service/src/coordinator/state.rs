//! The coordinator without its sockets: messages and time in, actions out. (long: all requests and answers pass it.)

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tidewater_protocol::ids::{ServerId, TableId, WorkerId};
use tidewater_protocol::limits::PARKED_MAX;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{
    Command, CommandReply, CoordinatorAnswer, CoordinatorRequest, DomainClock, Notice,
    ServerMember, WorkerState,
};
use tidewater_protocol::wire::hello::Role;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::admissions::Admission;
use super::checkpoints::CheckpointPolicy;
use super::functions::FunctionLoad;
use super::jobs::{EndingJob, Job};
use super::losses::Loss;
use super::member_barriers::Arrival;
use super::membership::Schedule;
use super::models::{ModelOp, Request};
use super::recovery::RecoveryState;
use super::rendezvous::Gathering;
use super::successors::Absent;
use super::tables::TableEntry;
use super::tasks::OpenRequests;
use tidewater_checkpoint::Manifest;
use tidewater_checkpoint::series::Found;
use tidewater_journal::Outcome;

/// Number of a connection, assigned by the event loop and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// Origin of a request that awaits its answer: connection and request id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Asker {
    pub(super) peer: PeerId,
    pub(super) id: u64,
}

/// Reaction to the loss of a worker: its connection ended before it reported that it has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LostWorker {
    /// The job fails, and all of its processes are notified. With [`Lifetime::OneJob`] the cluster ends.
    #[default]
    FailJob,
    /// The job continues without it, and clocks no longer wait for it.
    GoOn,
}

/// Condition on which the coordinator ends the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lifetime {
    /// It has one job, and ends when the job's workers have finished or the job has failed.
    #[default]
    OneJob,
    /// It has one job, and a launcher ends the processes that it started. The launcher recognizes a
    /// failure by the process that ends first.
    Launched,
    /// It runs until it is stopped, and jobs come and go. A job that is over leaves nothing; a later job may
    /// use its name.
    Service,
}

/// Configuration of a cluster: numbers of servers and workers, reaction to losses, lifetime.
#[derive(Debug, Clone)]
pub struct CoordinatorConfig {
    /// Number of servers of the cluster. Tables are created when all have joined.
    pub servers: u32,
    /// Number of workers of each job; 0 if it is unknown, as in a service.
    pub workers: u32,
    /// Reaction to the loss of a worker.
    pub on_lost: LostWorker,
    /// Condition on which the cluster ends.
    pub lifetime: Lifetime,
}

/// Output of the state machine, to be performed by the event loop. Actions for disconnected peers are dropped.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Answers a request of a peer, by the request's id.
    Answer(PeerId, u64, CoordinatorAnswer),
    /// Orders a server to do something, under this request id.
    Command(PeerId, u64, Command),
    /// Notifies a peer, without an answer.
    Notify(PeerId, Notice),
    /// Runs a file task of the operation with this number. [`Coordinator::files_done`] gets the result, if the
    /// task has one.
    Files(u64, FileTask),
    /// Writes a line into the log of members.
    Membership(String),
    /// Writes the alive file in this directory, that of a job's checkpoints, with these clocks.
    Alive(String, Vec<DomainClock>),
}

/// A file system task of a save or load, performed outside the state machine.
#[derive(Debug, Clone, PartialEq)]
pub enum FileTask {
    /// Make the directory and lock it: a save is about to begin.
    BeginSave(String),
    /// Make the directory of a checkpoint and lock it; lock the directory above it too, until the coordinator
    /// ends.
    BeginCheckpoint {
        /// Directory of the checkpoint.
        dir: String,
        /// Parts that it may extend: link them into its directory.
        links: Option<Links>,
    },
    /// All parts are written: write the manifest, remove what it replaces, unlock.
    Commit {
        /// Manifest of the model.
        manifest: Box<Manifest>,
        /// Number of newest complete checkpoints to keep, including this one; `None` if this save is not a
        /// checkpoint.
        keep: Option<usize>,
    },
    /// The save failed: remove these parts, unlock. Reports nothing.
    Abandon(Vec<String>),
    /// Lock the directory against saves and read its manifest.
    BeginLoad(String),
    /// The load is over: unlock. Reports nothing.
    EndLoad,
    /// Find the newest complete checkpoint of a job with a number below `before`, lock it against
    /// saves and read its manifest.
    BeginResume {
        /// Directory of the job's checkpoints.
        dir: String,
        /// Exclusive upper limit of the number.
        before: u64,
    },
}

/// Part files of a checkpoint that the next one extends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Links {
    /// Directory of the checkpoint that has them.
    pub from: String,
    /// Names of the files.
    pub names: Vec<String>,
}

/// Result of a [`FileTask`], reported to [`Coordinator::files_done`].
#[derive(Debug, Clone, PartialEq)]
pub enum FileDone {
    /// The directory is there and locked, and has the parts of [`FileTask::BeginCheckpoint`].
    Begun,
    /// The directory is there and locked. The parts cannot be linked, for this reason: the checkpoint holds all rows.
    BegunWithoutLinks(String),
    /// The manifest is on disk, durably.
    Committed,
    /// The directory is locked; this is its manifest.
    Manifest(Box<Manifest>),
    /// The checkpoints of a job; the newest complete one, if any, is locked.
    Checkpoints(Box<Found>),
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) role: Role,
    pub(super) rank: u32,
    pub(super) namespace: String,
    pub(super) joined: bool,
    /// Numbers of its requests that are not answered.
    pub(super) open: BTreeSet<u64>,
    /// Number of workers that it states for a job of open size that runs; 0 if it states none.
    pub(super) workers: u32,
    /// Whether the end of this worker or server is expected or already reported, so that its disconnection is
    /// not a new loss.
    pub(super) leaving: bool,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) peer: PeerId,
    /// `None` until the server has joined.
    pub(super) member: Option<ServerMember>,
    /// Whether a member notification is under way; there is at most one for each server.
    pub(super) sending: bool,
    /// Jobs of which a member notification is pending, the oldest first.
    pub(super) unsent: VecDeque<String>,
    /// Process id on its host.
    pub(super) pid: u32,
    /// How many more times its holder restarts the server after a signal has ended it.
    pub(super) restarts: u32,
    /// Whether it has started with the memory of its predecessor.
    pub(super) is_kept: bool,
}

/// Purpose of an order to a server, which decides how its answer is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Create(TableId),
    Release(TableId),
    /// The answer does not matter.
    Cleanup,
    Members,
    EndJob(u64),
    Save(u64),
    Load(u64),
    Function(u64),
    Shutdown,
    Status(Asker),
    /// The clocks of a job are held for this admission.
    Hold(u64),
    /// The clocks held for this admission go on, with its worker or without.
    Admit(u64),
    /// Pushes of a finished task, by its delivery.
    Task(u64),
    /// Stays of the schedule of this number.
    Schedule(u64),
    /// The clocks of a job are held for this checkpoint.
    HoldForSave(u64),
    /// The furthest clocks of the job with this `Durable::id`, for its alive file.
    ReadClocks(u64),
    /// The clocks of a lost worker, for this loss.
    Loss(u64),
    /// A table that a successor has in its memory.
    Adopt(TableId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    /// Servers are ordered to shut down; the cluster ends at this time of the coordinator's clock at the
    /// latest.
    Stopping(Duration),
    Ended,
}

/// State machine of the coordinator, without I/O. Times are durations on a monotonic clock of the caller with
/// any origin.
#[derive(Debug)]
pub struct Coordinator {
    pub(super) config: CoordinatorConfig,
    pub(super) now: Duration,
    pub(super) peers: BTreeMap<PeerId, Peer>,
    pub(super) servers: BTreeMap<ServerId, Server>,
    pub(super) jobs: BTreeMap<String, Job>,
    pub(super) ending: BTreeMap<u64, EndingJob>,
    pub(super) last_ending: u64,
    pub(super) tables: BTreeMap<TableId, TableEntry>,
    pub(super) last_table: u32,
    pub(super) orders: BTreeMap<u64, (PeerId, Purpose)>,
    pub(super) last_order: u64,
    pub(super) models: BTreeMap<u64, ModelOp>,
    pub(super) last_model: u64,
    pub(super) functions: BTreeMap<u64, FunctionLoad>,
    pub(super) last_function: u64,
    pub(super) epoch: u64,
    pub(super) revision: u64,
    pub(super) phase: Phase,
    /// Reason why the cluster ends; empty while it runs.
    pub(super) stop_reason: String,
    /// The rendezvous of a launch: under way, complete or failed. `None` if the coordinator was started without one.
    pub(super) gathering: Option<Gathering>,
    /// Workers that are being admitted to running jobs.
    pub(super) admissions: BTreeMap<u64, Admission>,
    pub(super) last_admission: u64,
    /// Losses of workers under way, numbered as admissions are.
    pub(super) losses: BTreeMap<u64, Loss>,
    /// Membership schedules that jobs follow.
    pub(super) schedule: Option<Schedule>,
    pub(super) last_schedule: u64,
    /// Policy of periodic checkpoints, if enabled.
    pub(super) checkpoint: Option<CheckpointPolicy>,
    /// Servers that have ended and are to be restarted by their holder, until their successors join.
    pub(super) absent: BTreeMap<ServerId, Absent>,
    /// Connected workers and observers that have not rejoined since their job began again after the restart of a server
    /// without its memory. Their requests are refused.
    pub(super) outdated: BTreeSet<PeerId>,
    /// Recovery state, if there is a journal.
    pub(super) recovery: Option<Box<RecoveryState>>,
    pub(super) actions: Vec<Action>,
    /// Requests about tasks that are not answered yet.
    pub(super) tasks: OpenRequests,
    /// Operators that wait for the end of a job, with its namespace.
    pub(super) waiting: Vec<(String, Asker)>,
}

impl Coordinator {
    /// Makes the state machine of a cluster without any process.
    pub fn new(config: CoordinatorConfig) -> Self {
        Self {
            config,
            now: Duration::ZERO,
            peers: BTreeMap::new(),
            servers: BTreeMap::new(),
            jobs: BTreeMap::new(),
            ending: BTreeMap::new(),
            last_ending: 0,
            tables: BTreeMap::new(),
            last_table: 0,
            orders: BTreeMap::new(),
            last_order: 0,
            models: BTreeMap::new(),
            last_model: 0,
            functions: BTreeMap::new(),
            last_function: 0,
            epoch: 1,
            revision: 0,
            phase: Phase::Running,
            stop_reason: String::new(),
            gathering: None,
            admissions: BTreeMap::new(),
            last_admission: 0,
            losses: BTreeMap::new(),
            schedule: None,
            last_schedule: 0,
            checkpoint: None,
            absent: BTreeMap::new(),
            outdated: BTreeSet::new(),
            recovery: None,
            actions: Vec::new(),
            tasks: OpenRequests::default(),
            waiting: Vec::new(),
        }
    }

    /// Removes and returns the actions to perform, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Whether the cluster has ended: no action follows, and the event loop flushes its connections and
    /// exits.
    pub fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Epoch of the cluster's membership, which rises when a server leaves or is lost.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Earliest time, on the caller's clock, at which [`Self::tick`] has something to do; `None` if there is
    /// none.
    pub fn next_deadline(&self) -> Option<Duration> {
        let stopping = match self.phase {
            Phase::Stopping(deadline) => Some(deadline),
            _ => None,
        };
        let barriers = self
            .jobs
            .values()
            .filter_map(|job| job.barriers.next_deadline());
        let models = self.models.values().map(|op| op.deadline);
        let models = models.chain(self.next_checkpoint());
        let gathering = self.gathering_deadline();
        let successors = self.successors_due().map(|(_, due)| due);
        barriers
            .chain(self.return_deadline())
            .chain(models)
            .chain(gathering)
            .chain(successors)
            .chain(stopping)
            .chain(self.tasks.next_deadline())
            .min()
    }

    /// Handles a request of a peer, at time `now` on the caller's clock. `id` is the peer's number for the
    /// request. A worker's repeated request gets its earlier answer if the journal holds one. Refused beyond
    /// `PARKED_MAX` unanswered requests of the peer; unknown peers are ignored.
    pub fn request(&mut self, now: Duration, peer: PeerId, id: u64, request: CoordinatorRequest) {
        self.tick(now);
        let asker = Asker { peer, id };
        let Some(peer) = self.peers.get_mut(&peer) else {
            return;
        };
        let have = peer.open.len();
        if have >= PARKED_MAX && !peer.open.contains(&id) {
            let numbers = [have as u64 + 1, PARKED_MAX as u64, 0, 0];
            let refusal =
                Refusal::new(RefusalCode::TooMany, numbers).with_text("requests under way");
            return self.answer(asker, CoordinatorAnswer::Refused(refusal));
        }
        peer.open.insert(id);
        match self.answered_before(asker) {
            Some(answer) => self.answer(asker, answer),
            None => self.dispatch(asker, request),
        }
    }

    /// Handles a request and queues its answer. While the request's job waits for a server's successor, the
    /// request is parked: kept, and handled when the job continues or refused when it begins again.
    pub(super) fn dispatch(&mut self, asker: Asker, request: CoordinatorRequest) {
        use CoordinatorRequest as Ask;
        let changes_nothing = matches!(
            request,
            Ask::Members
                | Ask::Status { .. }
                | Ask::Barrier { .. }
                | Ask::MemberBarrier(_)
                | Ask::OpenTable { .. }
                | Ask::Slow { .. }
                | Ask::Tasks(_)
        );
        if !changes_nothing {
            self.touch();
        }
        let handled = match self.waits_for_restart(asker, &request) {
            Ok(false) => self.handle(asker, request),
            Ok(true) => Ok(None),
            Err(refusal) => Err(refusal),
        };
        match handled {
            Ok(Some(answer)) => self.answer(asker, answer),
            Ok(None) => {}
            Err(refusal) => self.answer(asker, CoordinatorAnswer::Refused(refusal)),
        }
    }

    /// Handles a server's answer to the order `id`, at time `now`. Unknown ids are ignored.
    pub fn answered(&mut self, now: Duration, peer: PeerId, id: u64, answer: CommandReply) {
        self.tick(now);
        // An id that was not issued to this peer counts as unknown.
        let Some(&(_, purpose)) = self.orders.get(&id).filter(|(to, _)| *to == peer) else {
            return;
        };
        self.orders.remove(&id);
        if !matches!(purpose, Purpose::Task(_)) {
            self.touch();
        }
        let Some(server) = self.peers.get(&peer).map(|peer| ServerId(peer.rank)) else {
            return;
        };
        match purpose {
            Purpose::Create(table) => self.table_created(table, server, answer),
            Purpose::Release(table) => self.table_released(table, server),
            Purpose::Cleanup => {}
            Purpose::Members => self.members_sent(server),
            Purpose::EndJob(job) => self.job_let_go(job, server),
            Purpose::Save(op) => self.part_saved(op, server, answer),
            Purpose::Load(op) => self.part_loaded(op, server, answer),
            Purpose::Function(load) => self.function_loaded(load, server, answer),
            Purpose::Status(asker) => self.server_reported(asker, answer),
            Purpose::Hold(number) => self.clocks_held(number, server, answer),
            Purpose::Admit(number) => self.clocks_go_on(number, server, answer),
            Purpose::Task(delivery) => self.task_applied(delivery, server, answer),
            Purpose::Schedule(number) => self.stay_known(number, server),
            Purpose::HoldForSave(op) => self.clocks_held_for_save(op, server, answer),
            Purpose::Loss(number) => self.loss_reported(number, server, answer),
            Purpose::ReadClocks(job) => self.clocks_read(job, answer),
            Purpose::Adopt(table) => self.table_adopted(table, server, answer),
            Purpose::Shutdown => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.leaving = true;
                }
            }
        }
    }

    /// Handles the end of a peer's connection, at time `now`. A worker or server that has not announced its end is
    /// handled as lost. Unknown peers are ignored.
    pub fn closed(&mut self, now: Duration, id: PeerId) {
        self.tick(now);
        let Some(peer) = self.peers.remove(&id) else {
            return;
        };
        self.outdated.remove(&id);
        self.touch();
        match peer.role {
            Role::Server => self.server_gone(&peer),
            Role::Worker => self.worker_gone(id, &peer),
            Role::Coordinator | Role::Admin => {
                self.forget_waiting(id);
                self.gathered_gone(id);
            }
            // No process waits for an observer.
            Role::Observer => {}
        }
        let is_left = self.servers.is_empty() && !self.is_still_sending() && !self.awaits_servers();
        if matches!(self.phase, Phase::Stopping(_)) && is_left {
            self.phase = Phase::Ended;
        }
    }

    /// Advances the time to `now` and acts on passed deadlines.
    pub fn tick(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if matches!(self.phase, Phase::Stopping(deadline) if deadline <= self.now) {
            self.phase = Phase::Ended;
        }
        self.expire_gathering();
        self.expire_absent();
        self.expire_barriers();
        self.expire_models();
        self.expire_tasks();
        self.step_checkpoints();
        self.expire_successors();
    }

    fn handle(
        &mut self,
        asker: Asker,
        request: CoordinatorRequest,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        let Some(peer) = self.peers.get(&asker.peer) else {
            return Err(bad("unknown peer"));
        };
        let namespace = peer.namespace.clone();
        let (role, joined, rank) = (peer.role, peer.joined, peer.rank);
        match self.answer_by_role(asker.peer, &request, role, joined, rank, &namespace)? {
            Some(answer) => Ok(Some(answer)),
            None => self.carry_out(asker, &namespace, request),
        }
    }

    /// Checks whether a peer of this role may make the request, and answers simple requests. `None` means that the
    /// request is permitted and has yet to be carried out. `joined`: whether the peer's Join was accepted.
    fn answer_by_role(
        &mut self,
        id: PeerId,
        request: &CoordinatorRequest,
        role: Role,
        joined: bool,
        rank: u32,
        namespace: &str,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        use CoordinatorRequest as Ask;
        match (request, role, joined) {
            (Ask::Goodbye, ..) => return Ok(Some(self.goodbye(id))),
            (Ask::Members, ..) => {
                let mut members = self.members(namespace);
                if role == Role::Server {
                    // It serves all jobs, and takes the count for the number of workers of each.
                    members.workers = Job::new(self.config.workers).members();
                }
                return Ok(Some(CoordinatorAnswer::Members(members)));
            }
            (Ask::Join(_), Role::Server | Role::Worker | Role::Observer, false) => {}
            (
                Ask::Register(_)
                | Ask::Status { .. }
                | Ask::StopJob { .. }
                | Ask::WaitJob
                | Ask::ServerEnded { .. },
                Role::Admin,
                false,
            ) => {}
            (Ask::Number, Role::Server, false) => {
                return Ok(Some(CoordinatorAnswer::Number(ServerId(rank))));
            }
            (Ask::Join(_), _, true) => return Err(bad("it has joined before")),
            (_, _, false) => return Err(bad("join first")),
            (Ask::StopJob { .. } | Ask::WaitJob, ..) => {
                return Err(bad("only operators ask for this"));
            }
            (Ask::Failed { .. }, Role::Observer, _) => return Err(only_reads(rank)),
            (Ask::Failed { .. }, ..) | (Ask::Finished | Ask::Leaving { .. }, Role::Worker, _) => {}
            (_, Role::Worker, _) | (Ask::OpenTable { .. } | Ask::Rejoin, Role::Observer, _) => {
                self.check_healthy(namespace)?;
            }
            (Ask::Finished, Role::Observer, _) => return Ok(Some(self.goodbye(id))),
            (_, Role::Observer, _) => return Err(only_reads(rank)),
            _ => return Err(bad("only workers ask for this")),
        }
        Ok(None)
    }

    /// Carries out a permitted request. `None` if it is answered later.
    fn carry_out(
        &mut self,
        asker: Asker,
        namespace: &str,
        request: CoordinatorRequest,
    ) -> Result<Option<CoordinatorAnswer>, Refusal> {
        use CoordinatorRequest as Ask;
        let Some(request) = self.defer(asker, request)? else {
            return Ok(None);
        };
        match request {
            Ask::Join(join) => self.join(asker, join),
            Ask::Register(register) => self.rendezvous(asker, register),
            Ask::Status { server } => self.status(asker, server),
            Ask::CreateTable(spec) => self.create_table(asker, namespace, spec),
            Ask::OpenTable { name } => self.open_table(asker, namespace, &name),
            Ask::ReleaseTable { id } => self.release_table(asker, namespace, id),
            Ask::Barrier {
                name,
                count,
                timeout_ms,
            } => {
                let arrival = Arrival::of_count(name, count, timeout_ms);
                self.barrier(asker, namespace, arrival).map(|()| None)
            }
            Ask::MemberBarrier(barrier) => {
                let arrival = Arrival::of_members(barrier)?;
                self.barrier(asker, namespace, arrival).map(|()| None)
            }
            Ask::Save { dir, clocks } => {
                let request = Request::Save { dir, clocks };
                self.begin_request(asker, namespace, request).map(|()| None)
            }
            Ask::Load { dir } => {
                let request = Request::Load { dir };
                self.begin_request(asker, namespace, request).map(|()| None)
            }
            Ask::LoadFunction { name, module } => self
                .load_function(asker, namespace, &name, module)
                .map(|()| None),
            Ask::Leaving { clocks } => {
                self.leaving(asker.peer, &clocks)?;
                self.answer_once(asker, "leave".into(), Outcome::Done);
                Ok(None)
            }
            Ask::StopJob { reason } => self.stop_job(namespace, &reason).map(Some),
            Ask::WaitJob => self.wait_job(asker, namespace),
            Ask::Slow { workers } => Ok(Some(self.log_slow(namespace, &workers))),
            Ask::Tasks(request) => self.task_request(asker, namespace, request),
            Ask::ServerEnded { end, restarts } => Ok(Some(self.server_ended(end, restarts))),
            Ask::Rejoin => Ok(Some(self.rejoin(asker.peer, namespace))),
            Ask::Finished => {
                self.worker_ends(asker.peer, WorkerState::Finished);
                Ok(Some(CoordinatorAnswer::Done))
            }
            Ask::Failed { reason } => {
                self.answer(asker, CoordinatorAnswer::Done);
                self.peer_failed(asker.peer, &reason);
                Ok(None)
            }
            Ask::Members | Ask::Goodbye | Ask::Number => Ok(None),
        }
    }

    /// Refuses requests of a failed job with its failure, and all requests once the cluster ends. The failure
    /// comes first: with a lifetime of one job, a lost worker fails its job and stops the cluster in the same
    /// step.
    pub(super) fn check_healthy(&self, namespace: &str) -> Result<(), Refusal> {
        if mutants::on(Mutant::ShutdownBeforeFailure) {
            self.check_running()?;
        }
        let failed = self.jobs.get(namespace).and_then(|job| job.failed.clone());
        failed.map_or_else(|| self.check_running(), Err)
    }

    /// Refuses all requests once the cluster is stopping, with the reason.
    pub(super) fn check_running(&self) -> Result<(), Refusal> {
        if self.phase == Phase::Running {
            return Ok(());
        }
        let refusal = Refusal::new(RefusalCode::ShuttingDown, [0; 4]);
        Err(refusal.with_text(&self.stop_reason))
    }

    pub(super) fn order(&mut self, number: ServerId, purpose: Purpose, order: Command) {
        if let Some(server) = self.servers.get(&number) {
            self.last_order += 1;
            self.orders.insert(self.last_order, (server.peer, purpose));
            self.actions
                .push(Action::Command(server.peer, self.last_order, order));
        }
    }

    pub(super) fn answer(&mut self, asker: Asker, answer: CoordinatorAnswer) {
        if let Some(peer) = self.peers.get_mut(&asker.peer) {
            peer.open.remove(&asker.id);
            self.actions
                .push(Action::Answer(asker.peer, asker.id, answer));
        }
    }
}

/// Makes the refusal of a request that only workers may make, for the observer of this rank.
fn only_reads(rank: u32) -> Refusal {
    let number = WorkerId(rank).observer();
    let number = number.unwrap_or_else(|| unreachable!("rank {rank} is one of an observer"));
    let refusal = Refusal::new(RefusalCode::Observer, [number.into(), 0, 0, 0]);
    refusal.with_text("the request is one of workers")
}

/// Makes the refusal of an invalid request, with this text.
pub(super) fn bad(why: &str) -> Refusal {
    Refusal::new(RefusalCode::BadRequest, [0; 4]).with_text(why)
}

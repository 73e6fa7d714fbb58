//! Requests to the coordinator, its commands to servers, and its notices to all. (long: all of its messages.)

use core::fmt;

use serde::{Deserialize, Serialize};

use super::members::{
    Arrival, DomainClock, Endpoints, MemberBarrier, Members, ServerEnd, ServerRestart, SlowMember,
    ThreadClock, clocks, hosts, owner, server_id, thread_clocks, thread_number, worker_id,
};
use super::rendezvous::{Register, Roster};
use super::status::{ClusterStatus, ServerStatus};
use super::tasks::{TaskAnswer, TaskRequest};
use super::{Answer, Message, Request};
use crate::ids::{Incarnation, ServerId, TableId, WorkerId};
use crate::layout::function::FUNCTION_NAME_BYTES_MAX;
use crate::limits::{
    APPLIERS_MAX, FUNCTION_MODULE_BYTES_MAX, JOBS_MAX, PARTITIONS_MAX, PATH_BYTES_MAX, SERVERS_MAX,
    TABLE_NAME_BYTES_MAX, TABLES_MAX, TEXT_BYTES_MAX, WORKERS_MAX,
};
use crate::placement::Placement;
use crate::table::{Optimizer, TableSpec};
use crate::wire::WireError;
use crate::wire::error::{at_most, name_at_most, text_at_most};
use crate::wire::frame::kind;
use crate::wire::refusal::Refusal;

/// Request of a worker, observer or server to the coordinator for membership, once on a connection. Role, rank and
/// namespace of the process are those of its handshake. What the fields say of a worker holds for an observer too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Host name of the process, for people.
    pub host: String,
    /// Boot id of its host.
    pub host_id: String,
    /// Process id on that host.
    pub pid: u32,
    /// Incarnation of a server; of a worker a random number, by which a restarted coordinator knows the worker again
    /// when it returns.
    pub incarnation: Incarnation,
    /// Addresses where a server listens; both empty of a worker.
    pub endpoints: Endpoints,
    /// Applier threads of a server; 0 of a worker.
    pub appliers: u16,
    /// Number of workers in the job of a worker, 0 if the worker does not know it; 0 of a server.
    pub workers: u32,
    /// Number of times that the holder of a server will still start a successor if a signal ends the server; 0 of a
    /// worker.
    pub restarts: u32,
    /// Tables that a server has from the memory of the process before it; `None` if it began without such memory,
    /// and of a worker.
    pub kept: Option<Vec<TableId>>,
    /// Whether the process has been admitted before: it returns to a coordinator that was restarted.
    pub returns: bool,
}

/// Answer of the coordinator to [`Join`]: rank or number of the process, the membership, and the clocks to
/// begin with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Rank or number of the process.
    pub rank: u32,
    /// Number of servers that the cluster waits for.
    pub servers_expected: u32,
    /// Number of workers that the job waits for; 0 if it is not known.
    pub workers_expected: u32,
    /// Clocks, in ticks, with which a worker begins; 0 in domains that are missing. Empty, so all 0, for a worker
    /// that is there from the beginning of its job.
    pub clocks: Vec<DomainClock>,
    /// Current membership of the cluster.
    pub members: Members,
    /// Whether the coordinator takes checkpoints of its jobs.
    pub checkpoints: bool,
    /// The checkpoint that the job continues from; `None` if it began without one.
    pub resumed: Option<Resumed>,
    /// Clocks, in ticks, at which a worker ends, by the schedule of a run in which it was lost; 0 in domains that
    /// are missing. `None`: no schedule ends it so.
    pub ends: Option<Vec<DomainClock>>,
}

/// The checkpoint from which a job was resumed: its number, its clocks, and how much work after it is lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// Number of the checkpoint.
    pub number: u64,
    /// Clocks at which the checkpoint was taken, in ticks since the first run of the job.
    pub clocks: Vec<DomainClock>,
    /// Clocks that the last run had reached when it was last seen; empty if that is not known.
    pub seen: Vec<DomainClock>,
    /// Milliseconds from the checkpoint to the last sign of life of the run that took it; `None` if that is not
    /// known. What was pushed in this time is lost.
    pub lost_ms: Option<u64>,
    /// Number of newer checkpoints that were incomplete or damaged, and left out.
    pub skipped: u32,
}

/// Complete description of a created table, as the coordinator sends it to servers and clients: its number, its
/// definition, and the applier that owns each partition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableInfo {
    /// Number of the table.
    pub id: TableId,
    /// Definition of the table.
    pub spec: TableSpec,
    /// Server and applier that own each partition, by partition number.
    pub placement: Placement,
}

/// A WebAssembly module in binary format, the code of a function that clients load. `Debug` shows only its length.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleBytes(pub Vec<u8>);

impl fmt::Debug for ModuleBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModuleBytes({} B)", self.0.len())
    }
}

impl ModuleBytes {
    fn validate(&self) -> Result<(), WireError> {
        at_most(
            "module bytes",
            self.0.len() as u64,
            FUNCTION_MODULE_BYTES_MAX as u64,
        )
    }
}

/// Request of a worker, server, observer, launched process or operator to the coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CoordinatorRequest {
    /// Asks for membership, before all other requests of a worker, observer or server but `Number`, `Members` and
    /// `Goodbye`. Answer: [`CoordinatorAnswer::Joined`].
    Join(Join),
    /// Creates a table, or opens it if the name exists with an equal spec. Answer:
    /// [`CoordinatorAnswer::Table`], when all servers have it.
    CreateTable(TableSpec),
    /// Opens an existing table. Answer: [`CoordinatorAnswer::Table`].
    OpenTable {
        /// Name of the table.
        name: String,
    },
    /// Releases a table at all servers; refused while the table is being made. Answer: [`CoordinatorAnswer::Done`],
    /// when no reader is left.
    ReleaseTable {
        /// Number of the table.
        id: TableId,
    },
    /// Reads the membership: all servers, and the workers of the namespace. Answer: [`CoordinatorAnswer::Members`].
    Members,
    /// Waits until `count` workers are at the barrier of this name, which may be reused at once. If `count` is the
    /// size of the job, workers that have ended are not awaited; another `count` is refused once fewer workers are
    /// left. Answer: [`CoordinatorAnswer::Done`], or after the timeout a refusal that names the missing workers.
    Barrier {
        /// Name of the barrier.
        name: String,
        /// Number of workers that the barrier waits for; 0 is refused.
        count: u32,
        /// Milliseconds after which the coordinator refuses the request.
        timeout_ms: u64,
    },
    /// Saves all tables of the namespace but the transient ones of collective calls. Answer:
    /// [`CoordinatorAnswer::Saved`], when the manifest is on disk.
    Save {
        /// Absolute path of a directory that all servers can access.
        dir: String,
        /// Clocks at which the tables are saved: those of the worker, which does not tick until it has
        /// the answer. Empty: as they are.
        clocks: Vec<DomainClock>,
    },
    /// Creates and fills all tables of a saved model; refused if a table of one of its names exists. Answer:
    /// [`CoordinatorAnswer::Loaded`].
    Load {
        /// Absolute path of the saved model's directory.
        dir: String,
    },
    /// The worker has finished: clocks no longer wait for it, and its tasks are taken back. Answer: Done.
    Finished,
    /// The worker or server cannot continue: a worker counts as lost, a server fails all jobs. Answer: Done.
    Failed {
        /// Cause of the failure, for people.
        reason: String,
    },
    /// The process is about to close; its end is no failure. Answer: Done.
    Goodbye,
    /// Replaces Join for a launched process that has a rank, and no number yet, on a connection of the role
    /// [`crate::wire::hello::Role::Admin`]. Answer: [`CoordinatorAnswer::Roster`], when all processes have
    /// registered, or a refusal that names the missing ranks.
    Register(Register),
    /// Makes a function of a WebAssembly module on all servers, for the namespace. Answer: Done, when
    /// all servers have it.
    LoadFunction {
        /// Name of the function.
        name: String,
        /// The module in binary format.
        module: ModuleBytes,
    },
    /// Reads the state of the cluster, or of one of its servers. Only operators ask
    /// ([`crate::wire::hello::Role::Admin`]). Answer: [`CoordinatorAnswer::Cluster`] or
    /// [`CoordinatorAnswer::Server`].
    Status {
        /// Number of the server; `None` for the cluster.
        server: Option<ServerId>,
    },
    /// The worker is about to leave every domain after these ticks. Answer: Done, or a refusal when the job follows
    /// a schedule in which the worker ends at other clocks.
    Leaving {
        /// Ticks that the worker has completed, without domains in which it has none.
        clocks: Vec<DomainClock>,
    },
    /// These workers are slower than the others. The coordinator logs their names. Answer: Done.
    Slow {
        /// The slow workers; an empty list means that no worker is slow any more.
        workers: Vec<SlowMember>,
    },
    /// Opens or reads a task queue, takes a task, or reports one. Answer: [`CoordinatorAnswer::Tasks`].
    Tasks(TaskRequest),
    /// Asks the workers of the namespace to end at a common step ([`Notice::StopJob`]). Only operators ask. Answer:
    /// Done, when the notices are on their way, or a refusal when the job does not run or has no connected worker.
    StopJob {
        /// Reason, for people.
        reason: String,
    },
    /// Waits for the end of the job of the namespace. Only operators ask. Answer: Done, when all its workers have
    /// ended, or a refusal: that of a failed job, or if all its workers are lost.
    WaitJob,
    /// Reads the number that the coordinator gave to this server, before the server joins: one that connected with
    /// [`crate::wire::hello::RANK_ANY`] does not know it. Answer: [`CoordinatorAnswer::Number`].
    Number,
    /// The holder of a server (its parent process, an operator by role) reports the end of the server. Answer: Done.
    ServerEnded {
        /// The end of the server.
        end: ServerEnd,
        /// Whether the holder starts a successor; if not, all jobs fail.
        restarts: bool,
    },
    /// The worker or observer has read [`Notice::ServerRestarted`]: it no longer uses the tables and sessions that
    /// it had. Until then its other requests are refused (`RefusalCode::WrongIncarnation`), except `Members`,
    /// `Goodbye`, `Finished`, `Failed`, `Leaving` and `Slow`. Answer: [`CoordinatorAnswer::Joined`].
    Rejoin,
    /// Waits until the members of a job of open size are at a barrier; refused in a job with a number of workers.
    /// Answer: [`CoordinatorAnswer::Arrivals`], or a refusal that names the missing workers.
    MemberBarrier(MemberBarrier),
}

/// Answer of the coordinator to a [`CoordinatorRequest`]: the result that the request's variant documents, or a
/// refusal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CoordinatorAnswer {
    /// The request is done.
    Done,
    /// Answer to the requests [`CoordinatorRequest::Join`] and [`CoordinatorRequest::Rejoin`].
    Joined(Joined),
    /// Answer to `CreateTable` and `OpenTable`.
    Table(TableInfo),
    /// Answer to the request [`CoordinatorRequest::Members`].
    Members(Members),
    /// Answer to the request [`CoordinatorRequest::Save`].
    Saved {
        /// Number of tables saved.
        tables: u32,
        /// Number of rows saved.
        rows: u64,
        /// Number of bytes written.
        bytes: u64,
    },
    /// Answer to the request [`CoordinatorRequest::Load`].
    Loaded {
        /// Names of the tables, to be opened.
        tables: Vec<String>,
        /// Number of rows that the servers have read.
        rows: u64,
        /// Clocks at which the model was saved.
        clocks: Vec<DomainClock>,
    },
    /// The request is refused.
    Refused(Refusal),
    /// Answer to the request [`CoordinatorRequest::Register`].
    Roster(Roster),
    /// Answer to the request [`CoordinatorRequest::Status`] for the cluster.
    Cluster(Box<ClusterStatus>),
    /// Answer to the request [`CoordinatorRequest::Status`] for a server.
    Server(Box<ServerStatus>),
    /// Answer to the request [`CoordinatorRequest::Tasks`].
    Tasks(Box<TaskAnswer>),
    /// Answer to the request [`CoordinatorRequest::Number`].
    Number(ServerId),
    /// Answer to the request [`CoordinatorRequest::MemberBarrier`]: the workers that were at the barrier when it
    /// opened, ascending by rank.
    Arrivals(Vec<Arrival>),
}

/// Command of the coordinator to a server: creates, saves, loads or releases tables, changes the members of a job,
/// reads the server's state, or ends the server. It goes over the connection that the server opened, and only after
/// the answer to the server's join.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Creates the server's partitions. Answer: Done, when they can be described, pulled and pushed.
    CreateTable {
        /// Job that owns the table.
        namespace: String,
        /// Definition and placement of the table.
        table: TableInfo,
    },
    /// Releases a table. Answer: Done, when every session has seen the release or is gone.
    ReleaseTable {
        /// Number of the table.
        id: TableId,
    },
    /// Stops the clocks of a namespace, so that a worker can join or a checkpoint can be taken: the server's
    /// appliers consume no tick until `MembersChanged`, or a `Save` with a checkpoint. Answer:
    /// [`CommandReply::Clocks`].
    HoldClocks {
        /// Namespace of the job.
        namespace: String,
    },
    /// The membership changed; clocks that were held go on. Workers that are finished or lost leave the clocks.
    /// Without workers the job has ended: the server ends the job's sessions and clocks. Answer: Done.
    MembersChanged {
        /// Namespace of the job.
        namespace: String,
        /// All servers, and all workers of the job.
        members: Members,
        /// The worker that joins, if any, and its initial clocks.
        admitted: Option<(WorkerId, Vec<DomainClock>)>,
    },
    /// Writes this server's part of a save. Answer: [`CommandReply::Saved`].
    Save {
        /// Namespace of the job.
        namespace: String,
        /// Directory of the saved model.
        dir: String,
        /// Each applier saves its share as it is when its minimum clocks have reached these; empty: at once.
        clocks: Vec<DomainClock>,
        /// The checkpoint that is taken; `None` for a save that a worker asks for. With a checkpoint, held clocks go
        /// on once all appliers have the command, and appliers may take any time to reach `clocks`;
        /// [`Command::CancelSave`] cancels the save.
        checkpoint: Option<CheckpointMark>,
    },
    /// Fills this server's partitions of a table from every saved file that holds rows of these partitions. Answer:
    /// Done.
    Load {
        /// Number of the table, created before.
        id: TableId,
        /// Name of the table in the files.
        name: String,
        /// Directory of the saved model.
        dir: String,
    },
    /// The server applies the complete frames in its rings and exits. Answer: Done, before the exit.
    Shutdown,
    /// Makes a function of a WebAssembly module. Answer: Done, when all appliers of the server have it.
    LoadFunction {
        /// Job that has the function.
        namespace: String,
        /// Name of the function.
        name: String,
        /// The module in binary format.
        module: ModuleBytes,
    },
    /// Reads the state of the server. Answer: [`CommandReply::Status`].
    Status,
    /// Applies the pushes that are held for a finished task of a worker's thread. Answer: Done, when they are
    /// applied, or part of the thread's open iterations. Repeating it changes nothing.
    FinishTask {
        /// Namespace of the job.
        namespace: String,
        /// Rank of the worker.
        worker: WorkerId,
        /// Thread of the worker.
        thread: u32,
        /// Number of the task's delivery.
        delivery: u64,
    },
    /// Cancels the checkpoint of a job that is under way, if there is one: the answer to its `Save` is then a
    /// refusal. Answer: Done.
    CancelSave {
        /// Namespace of the job.
        namespace: String,
    },
    /// Reads the furthest tick in each clock domain of a job, and does not hold the clocks. Answer:
    /// [`CommandReply::Clocks`].
    ReadClocks {
        /// Namespace of the job.
        namespace: String,
    },
    /// Ends the sessions of a worker that is lost, after the complete frames in their rings. The worker stays in the
    /// clocks. Answer: [`CommandReply::ThreadClocks`].
    LoseWorker {
        /// Namespace of the job.
        namespace: String,
        /// Rank of the worker.
        worker: WorkerId,
    },
    /// Completes the last tick of a lost worker's threads, the one to `clocks`, at each applier that lacks only this
    /// tick; also ends threads that have finished at another applier. Answer: Done.
    EndWorker {
        /// Namespace of the job.
        namespace: String,
        /// Rank of the worker.
        worker: WorkerId,
        /// The furthest clocks of the worker's threads at any applier of any server, as
        /// [`CommandReply::ThreadClocks`] reports them.
        clocks: Vec<ThreadClock>,
    },
    /// Serves a table that the server has from the memory of the process before it. It may be repeated. Answer:
    /// Done, or a refusal when that memory has another table or only a part of this one.
    AdoptTable {
        /// Job that owns the table.
        namespace: String,
        /// Definition and placement of the table.
        table: TableInfo,
    },
}

/// Optimizer rule of a table as it is now, if its hyper-parameters differ from the table's definition. Part of a saved
/// model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TableSetting {
    /// Number of the table.
    pub table: TableId,
    /// The rule as it is now.
    pub optimizer: Optimizer,
}

/// Report of one server on its file of a saved model, for the manifest: name, sizes, hash and clocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedPart {
    /// Name of the file inside the directory.
    pub file: String,
    /// Number of rows in the file.
    pub rows: u64,
    /// Number of bytes in the file.
    pub bytes: u64,
    /// Hash of the file's bytes, as the manifest has it.
    pub check: u64,
    /// Clocks at which the server's rows were saved.
    pub clocks: Vec<DomainClock>,
    /// Rules that differ from the definition of their table.
    pub settings: Vec<TableSetting>,
    /// Milliseconds since 1970 at which the first applier fixed the state that it saves, by the server's clock.
    pub cut_ms: u64,
}

/// Which checkpoint a [`Command::Save`] is, and which one it extends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointMark {
    /// Number of this checkpoint. With `notes`, servers note under this number what changes after its cut.
    pub number: u64,
    /// Number of the earlier checkpoint that this one extends: only what has changed since the cut of the earlier
    /// one is written. A server that does not know these changes refuses. `None`: all rows are written.
    pub extends: Option<u64>,
    /// Whether the next checkpoint may extend this one: servers note changes from the cut of this one on.
    pub notes: bool,
}

/// Reply of a server to a [`Command`] of the coordinator: the result that the command's variant documents, or a
/// refusal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CommandReply {
    /// The command is done.
    Done,
    /// Answer to the commands [`Command::HoldClocks`] and [`Command::ReadClocks`]: the furthest tick that any
    /// applier of the server has consumed in each clock domain; domains without ticks are missing.
    Clocks(Vec<DomainClock>),
    /// Answer to the command [`Command::Save`].
    Saved(SavedPart),
    /// The command is refused.
    Refused(Refusal),
    /// Answer to the command [`Command::Status`].
    Status(Box<ServerStatus>),
    /// Answer to the command [`Command::LoseWorker`]: the furthest clock of each thread of the worker in each
    /// domain, at any applier of the server.
    ThreadClocks(Vec<ThreadClock>),
}

/// One-way notice of the coordinator to a worker, observer or server: a change of the membership, a failure, a
/// release of a table, or the end of a server, a job or the cluster. It has no answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Notice {
    /// The membership changed because a worker of the job is lost; the new membership.
    MembersChanged(Members),
    /// The job has failed with this refusal, because a worker or server failed.
    PeerFailed(Refusal),
    /// The cluster shuts down; to an observer also: its job has ended.
    Shutdown {
        /// Reason of the shutdown, for people.
        reason: String,
    },
    /// A table is released: the checksums of its rows no longer match. No process sends this notice at present.
    TableReleased {
        /// Number of the table.
        id: TableId,
    },
    /// An operator asks the workers of the job to end at a common step.
    StopJob {
        /// Reason, for people.
        reason: String,
    },
    /// A server has ended, and its holder starts a successor. Sent again when more is known of how the server ended.
    ServerEnded(ServerEnd),
    /// The successor of a server has joined and the job begins again, because memory of the server is missing: all
    /// servers have ended the sessions and released the tables of the job. The receiver sends
    /// [`CoordinatorRequest::Rejoin`].
    ServerRestarted(ServerRestart),
    /// The successor of a server has joined with the memory of that server, and serves the tables of the job.
    /// Clients attach their sessions again at the successor's addresses ([`super::ServerRequest::Reattach`]).
    ServerResumed {
        /// The end of the server and its successor.
        restart: ServerRestart,
        /// The membership with the successor, and the cluster's new epoch.
        members: Members,
    },
}

impl Message for CoordinatorRequest {
    const KIND: u16 = kind::COORDINATOR_REQUEST;
    const NAME: &'static str = "request to the coordinator";

    fn validate(&self) -> Result<(), WireError> {
        match self {
            Self::Join(join) => {
                hosts(&join.host, &join.host_id)?;
                join.endpoints.validate()?;
                at_most(
                    "appliers",
                    u64::from(join.appliers),
                    u64::from(APPLIERS_MAX),
                )?;
                let kept = join.kept.as_ref().map_or(0, Vec::len);
                at_most("tables", kept as u64, (TABLES_MAX * JOBS_MAX) as u64)?;
                at_most("workers", u64::from(join.workers), u64::from(WORKERS_MAX))
            }
            Self::CreateTable(spec) => Ok(spec.validate_request()?),
            Self::OpenTable { name } => name_at_most("table name", name, TABLE_NAME_BYTES_MAX),
            Self::Barrier {
                name,
                count,
                timeout_ms: _,
            } => {
                text_at_most("barrier name", name, TABLE_NAME_BYTES_MAX)?;
                at_most("barrier count", u64::from(*count), u64::from(WORKERS_MAX))
            }
            Self::Save { dir, clocks: at } => {
                path(dir)?;
                clocks(at)
            }
            Self::Load { dir } => path(dir),
            Self::Leaving { clocks: at } => clocks(at),
            Self::Slow { workers } => {
                at_most("slow workers", workers.len() as u64, u64::from(WORKERS_MAX))?;
                workers.iter().try_for_each(|slow| worker_id(slow.worker))
            }
            Self::Failed { reason } | Self::StopJob { reason } => {
                text_at_most("reason", reason, TEXT_BYTES_MAX)
            }
            Self::Register(register) => register.validate(),
            Self::LoadFunction { name, module } => {
                function(name)?;
                module.validate()
            }
            Self::Status { server } => server.map_or(Ok(()), server_id),
            Self::Tasks(request) => request.validate(),
            Self::ServerEnded { end, restarts: _ } => end.validate(),
            Self::MemberBarrier(barrier) => barrier.validate(),
            Self::ReleaseTable { id: _ }
            | Self::Members
            | Self::Finished
            | Self::Goodbye
            | Self::WaitJob
            | Self::Number
            | Self::Rejoin => Ok(()),
        }
    }
}

impl Request for CoordinatorRequest {
    type Answer = CoordinatorAnswer;
}

impl Message for CoordinatorAnswer {
    const KIND: u16 = kind::COORDINATOR_ANSWER;
    const NAME: &'static str = "answer of the coordinator";

    fn validate(&self) -> Result<(), WireError> {
        match self {
            Self::Done | Self::Saved { .. } => Ok(()),
            Self::Joined(joined) => {
                at_most(
                    "servers",
                    u64::from(joined.servers_expected),
                    u64::from(SERVERS_MAX),
                )?;
                at_most(
                    "workers",
                    u64::from(joined.workers_expected),
                    u64::from(WORKERS_MAX),
                )?;
                clocks(&joined.clocks)?;
                clocks(joined.ends.as_deref().unwrap_or_default())?;
                if let Some(resumed) = &joined.resumed {
                    clocks(&resumed.clocks)?;
                    clocks(&resumed.seen)?;
                }
                joined.members.validate()
            }
            Self::Table(table) => table.validate(),
            Self::Members(members) => members.validate(),
            Self::Loaded {
                tables,
                rows: _,
                clocks: at,
            } => {
                at_most("tables", tables.len() as u64, TABLES_MAX as u64)?;
                clocks(at)?;
                tables
                    .iter()
                    .try_for_each(|n| name_at_most("table name", n, TABLE_NAME_BYTES_MAX))
            }
            Self::Refused(refusal) => refusal.validate(),
            Self::Roster(roster) => roster.validate(),
            Self::Cluster(status) => status.validate(),
            Self::Server(status) => status.validate(),
            Self::Tasks(answer) => answer.validate(),
            Self::Number(number) => server_id(*number),
            Self::Arrivals(arrivals) => {
                at_most("arrivals", arrivals.len() as u64, u64::from(WORKERS_MAX))?;
                arrivals.iter().try_for_each(|at| worker_id(at.rank))
            }
        }
    }
}

impl Answer for CoordinatorAnswer {
    fn accepted(self) -> Result<Self, Refusal> {
        if let Self::Refused(refusal) = self {
            Err(refusal)
        } else {
            Ok(self)
        }
    }
}

impl Message for Command {
    const KIND: u16 = kind::ORDER;
    const NAME: &'static str = "order of the coordinator";

    fn validate(&self) -> Result<(), WireError> {
        match self {
            Self::CreateTable {
                namespace: name,
                table,
            }
            | Self::AdoptTable {
                namespace: name,
                table,
            } => {
                namespace(name)?;
                table.validate()
            }
            Self::HoldClocks { namespace: name }
            | Self::CancelSave { namespace: name }
            | Self::ReadClocks { namespace: name } => namespace(name),
            Self::MembersChanged {
                namespace: name,
                members,
                admitted,
            } => {
                members.validate()?;
                match admitted {
                    Some((worker, at)) => worker_of(name, *worker).and_then(|()| clocks(at)),
                    None => namespace(name),
                }
            }
            Self::Save {
                namespace: name,
                dir,
                clocks: at,
                checkpoint: _,
            } => {
                namespace(name)?;
                path(dir)?;
                clocks(at)
            }
            Self::Load { id: _, name, dir } => {
                name_at_most("table name", name, TABLE_NAME_BYTES_MAX)?;
                path(dir)
            }
            Self::LoadFunction {
                namespace: job,
                name,
                module,
            } => {
                namespace(job)?;
                function(name)?;
                module.validate()
            }
            Self::LoseWorker {
                namespace: name,
                worker,
            } => worker_of(name, *worker),
            Self::EndWorker {
                namespace: name,
                worker,
                clocks: at,
            } => worker_of(name, *worker).and_then(|()| thread_clocks(at)),
            Self::ReleaseTable { id: _ } | Self::Shutdown | Self::Status => Ok(()),
            Self::FinishTask {
                namespace: name,
                worker,
                thread,
                delivery: _,
            } => {
                worker_of(name, *worker)?;
                thread_number(*thread)
            }
        }
    }
}

/// Checks the namespace and the rank by which a command names a worker: both must be within their limits.
fn worker_of(name: &str, worker: WorkerId) -> Result<(), WireError> {
    namespace(name)?;
    worker_id(worker)
}

impl Request for Command {
    type Answer = CommandReply;
}

impl Message for CommandReply {
    const KIND: u16 = kind::ORDER_ANSWER;
    const NAME: &'static str = "answer to an order";

    fn validate(&self) -> Result<(), WireError> {
        match self {
            Self::Done => Ok(()),
            Self::Clocks(at) => clocks(at),
            Self::ThreadClocks(at) => thread_clocks(at),
            Self::Saved(part) => {
                // A bare file name only: the server joins it to the directory.
                if matches!(part.file.as_str(), "." | "..") || part.file.contains('/') {
                    return Err(WireError::Malformed {
                        what: "saved file",
                        why: "is a path",
                    });
                }
                name_at_most("saved file", &part.file, TABLE_NAME_BYTES_MAX)?;
                at_most("settings", part.settings.len() as u64, TABLES_MAX as u64)?;
                clocks(&part.clocks)
            }
            Self::Refused(refusal) => refusal.validate(),
            Self::Status(status) => status.validate(),
        }
    }
}

impl Answer for CommandReply {
    fn accepted(self) -> Result<Self, Refusal> {
        if let Self::Refused(refusal) = self {
            Err(refusal)
        } else {
            Ok(self)
        }
    }
}

impl Message for Notice {
    const KIND: u16 = kind::NOTICE;
    const NAME: &'static str = "notice";

    fn validate(&self) -> Result<(), WireError> {
        match self {
            Self::MembersChanged(members) => members.validate(),
            Self::PeerFailed(refusal) => refusal.validate(),
            Self::Shutdown { reason } | Self::StopJob { reason } => {
                text_at_most("reason", reason, TEXT_BYTES_MAX)
            }
            Self::TableReleased { id: _ } => Ok(()),
            Self::ServerEnded(end) => end.validate(),
            Self::ServerRestarted(restart) => restart.end.validate(),
            Self::ServerResumed { restart, members } => {
                restart.end.validate()?;
                members.validate()
            }
        }
    }
}

impl TableInfo {
    fn validate(&self) -> Result<(), WireError> {
        self.spec.validate()?;
        at_most(
            "partitions",
            self.placement.0.len() as u64,
            u64::from(PARTITIONS_MAX),
        )?;
        if self.placement.0.len() != self.spec.partitions as usize {
            let why = "has not one owner for each partition";
            return Err(WireError::Malformed {
                what: "placement",
                why,
            });
        }
        if !self.placement.follows(&self.spec) {
            let why = "has a partition on another server than the table's definition gives it";
            return Err(WireError::Malformed {
                what: "placement",
                why,
            });
        }
        self.placement.0.iter().try_for_each(owner)
    }
}

fn namespace(name: &str) -> Result<(), WireError> {
    name_at_most("namespace", name, crate::limits::NAMESPACE_BYTES_MAX)
}

fn function(name: &str) -> Result<(), WireError> {
    name_at_most("function name", name, FUNCTION_NAME_BYTES_MAX)
}

fn path(dir: &str) -> Result<(), WireError> {
    name_at_most("directory", dir, PATH_BYTES_MAX)
}

//! What processes ask the coordinator, what it orders servers to do, and what it tells all.

use serde::{Deserialize, Serialize};

use super::members::{DomainClock, Endpoints, Members, clocks, hosts, owner, worker_id};
use super::rendezvous::{Register, Roster};
use super::{Answer, Message, Request};
use crate::ids::{Incarnation, TableId, WorkerId};
use crate::limits::{
    APPLIERS_MAX, PARTITIONS_MAX, PATH_BYTES_MAX, SERVERS_MAX, TABLE_NAME_BYTES_MAX, TABLES_MAX,
    TEXT_BYTES_MAX, WORKERS_MAX,
};
use crate::placement::Placement;
use crate::table::TableSpec;
use crate::wire::WireError;
use crate::wire::error::{at_most, name_at_most, text_at_most};
use crate::wire::frame::kind;
use crate::wire::refusal::Refusal;

/// A process introduces itself. Its role, rank and namespace are those of its handshake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Name of its host, for people.
    pub host: String,
    /// Boot id of its host.
    pub host_id: String,
    /// Its process id there.
    pub pid: u32,
    /// This start of it; of a worker 0.
    pub incarnation: Incarnation,
    /// Where a server listens; both empty of a worker.
    pub endpoints: Endpoints,
    /// Applier threads of a server; 0 of a worker.
    pub appliers: u16,
    /// Workers of a worker's job, 0 if it does not know; of a server 0.
    pub workers: u32,
}

/// The coordinator's answer to [`Join`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The rank or number it has.
    pub rank: u32,
    /// Servers the cluster waits for.
    pub servers_expected: u32,
    /// Workers the job waits for.
    pub workers_expected: u32,
    /// Where a worker's clocks begin: 0 unless it joined a running job.
    pub clocks: Vec<DomainClock>,
    /// The membership now.
    pub members: Members,
}

/// A table and where its partitions are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableInfo {
    /// Its number.
    pub id: TableId,
    /// Its definition.
    pub spec: TableSpec,
    /// The owner of each partition.
    pub placement: Placement,
}

/// Worker or server to coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CoordinatorRequest {
    /// The first on each connection. Answer: [`CoordinatorAnswer::Joined`].
    Join(Join),
    /// Creates a table, or opens it if the name exists with an equal spec. Answer:
    /// [`CoordinatorAnswer::Table`], when all servers have it.
    CreateTable(TableSpec),
    /// Answer: [`CoordinatorAnswer::Table`].
    OpenTable {
        /// Its name.
        name: String,
    },
    /// Releases a table at all servers. Answer: [`CoordinatorAnswer::Done`], when no reader is left.
    ReleaseTable {
        /// The table.
        id: TableId,
    },
    /// Answer: [`CoordinatorAnswer::Members`].
    Members,
    /// Waits until `count` workers are at the barrier of this name, which may be used again at
    /// once. Answer: [`CoordinatorAnswer::Done`], or a refusal that names who is missing.
    Barrier {
        /// Its name.
        name: String,
        /// Workers that it waits for.
        count: u32,
        /// Milliseconds after which the coordinator gives up.
        timeout_ms: u64,
    },
    /// Saves all tables of the namespace at their clocks. Answer: [`CoordinatorAnswer::Saved`],
    /// when the manifest is on disk.
    Save {
        /// A directory that all servers see.
        dir: String,
    },
    /// Creates and fills all tables of a saved model. Answer: [`CoordinatorAnswer::Loaded`].
    Load {
        /// The directory.
        dir: String,
    },
    /// The worker has done its work; from now on clocks do not wait for it. Answer: Done.
    Finished,
    /// The process cannot go on. Answer: Done.
    Failed {
        /// Why, for people.
        reason: String,
    },
    /// The process is about to close; its end is no loss. Answer: Done.
    Goodbye,
    /// Instead of Join, by a process of a launch that has a rank, and no number yet. Answer:
    /// [`CoordinatorAnswer::Roster`], when all have come, or a refusal that names who has not.
    Register(Register),
}

/// Coordinator to worker or server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CoordinatorAnswer {
    /// It is done.
    Done,
    /// To Join.
    Joined(Joined),
    /// To `CreateTable` and `OpenTable`.
    Table(TableInfo),
    /// To Members.
    Members(Members),
    /// To Save.
    Saved {
        /// Tables saved.
        tables: u32,
        /// Rows saved.
        rows: u64,
        /// Bytes written.
        bytes: u64,
    },
    /// To Load.
    Loaded {
        /// Names of the tables, to be opened.
        tables: Vec<String>,
        /// Rows read.
        rows: u64,
        /// Clocks at which the model was saved.
        clocks: Vec<DomainClock>,
    },
    /// No.
    Refused(Refusal),
    /// To Muster.
    Roster(Roster),
}

/// Coordinator to server, over the connection that the server opened, and only after the answer to
/// its Join.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Answer: Done, when its partitions can be described, pulled and pushed.
    CreateTable {
        /// The job that owns it.
        namespace: String,
        /// The table.
        table: TableInfo,
    },
    /// Answer: Done, when every session has seen the release or is gone.
    ReleaseTable {
        /// The table.
        id: TableId,
    },
    /// Stops the clocks of a namespace, so that somebody can join. Answer:
    /// [`CommandReply::Clocks`].
    HoldClocks {
        /// The job.
        namespace: String,
    },
    /// The membership changed; clocks that were held go on. Answer: Done.
    MembersChanged {
        /// The job.
        namespace: String,
        /// All members.
        members: Members,
        /// The worker that joins, if one does, starts at these clocks.
        admitted: Option<(WorkerId, Vec<DomainClock>)>,
    },
    /// Writes this server's part of a save. Answer: [`CommandReply::Saved`].
    Save {
        /// The job.
        namespace: String,
        /// The directory.
        dir: String,
    },
    /// Fills a table's partitions from all files that hold its rows. Answer: Done.
    Load {
        /// The table, created before.
        id: TableId,
        /// Its name in the files.
        name: String,
        /// The directory.
        dir: String,
    },
    /// Finish what is in the rings and exit. Answer: Done, before it does.
    Shutdown,
}

/// One server's part of a save, for the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedPart {
    /// Name of its file inside the directory.
    pub file: String,
    /// Rows in it.
    pub rows: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Hash of its bytes, as the manifest has it.
    pub check: u64,
    /// Clocks at which it was written.
    pub clocks: Vec<DomainClock>,
}

/// Server to coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CommandReply {
    /// It is done.
    Done,
    /// To `HoldClocks`: the furthest tick consumed in each domain.
    Clocks(Vec<DomainClock>),
    /// To Save.
    Saved(SavedPart),
    /// No.
    Refused(Refusal),
}

/// Told by a coordinator or a server; not answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Notice {
    /// The membership changed.
    MembersChanged(Members),
    /// A worker or server failed, and the job ends by policy.
    PeerFailed(Refusal),
    /// The cluster ends.
    Shutdown {
        /// Why, for people.
        reason: String,
    },
    /// A table is released: its rows prove themselves no more.
    TableReleased {
        /// The table.
        id: TableId,
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
                at_most("workers", u64::from(join.workers), u64::from(WORKERS_MAX))
            }
            Self::CreateTable(spec) => Ok(spec.validate()?),
            Self::OpenTable { name } => name_at_most("table name", name, TABLE_NAME_BYTES_MAX),
            Self::Barrier {
                name,
                count,
                timeout_ms: _,
            } => {
                text_at_most("barrier name", name, TABLE_NAME_BYTES_MAX)?;
                at_most("barrier count", u64::from(*count), u64::from(WORKERS_MAX))
            }
            Self::Save { dir } | Self::Load { dir } => path(dir),
            Self::Failed { reason } => text_at_most("reason", reason, TEXT_BYTES_MAX),
            Self::Register(register) => register.validate(),
            Self::ReleaseTable { id: _ } | Self::Members | Self::Finished | Self::Goodbye => Ok(()),
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
            } => {
                namespace(name)?;
                table.validate()
            }
            Self::HoldClocks { namespace: name } => namespace(name),
            Self::MembersChanged {
                namespace: name,
                members,
                admitted,
            } => {
                namespace(name)?;
                members.validate()?;
                let Some((worker, at)) = admitted else {
                    return Ok(());
                };
                worker_id(*worker)?;
                clocks(at)
            }
            Self::Save {
                namespace: name,
                dir,
            } => {
                namespace(name)?;
                path(dir)
            }
            Self::Load { id: _, name, dir } => {
                name_at_most("table name", name, TABLE_NAME_BYTES_MAX)?;
                path(dir)
            }
            Self::ReleaseTable { id: _ } | Self::Shutdown => Ok(()),
        }
    }
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
            Self::Saved(part) => {
                // A bare file name: it is joined to the directory.
                if matches!(part.file.as_str(), "." | "..") || part.file.contains('/') {
                    return Err(WireError::Malformed {
                        what: "saved file",
                        why: "is a path",
                    });
                }
                name_at_most("saved file", &part.file, TABLE_NAME_BYTES_MAX)?;
                clocks(&part.clocks)
            }
            Self::Refused(refusal) => refusal.validate(),
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
            Self::Shutdown { reason } => text_at_most("reason", reason, TEXT_BYTES_MAX),
            Self::TableReleased { id: _ } => Ok(()),
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
        self.placement.0.iter().try_for_each(owner)
    }
}

fn namespace(name: &str) -> Result<(), WireError> {
    name_at_most("namespace", name, crate::limits::NAMESPACE_BYTES_MAX)
}

fn path(dir: &str) -> Result<(), WireError> {
    name_at_most("directory", dir, PATH_BYTES_MAX)
}

//! Rendezvous: the processes of a launch register and receive numbers as servers and workers.

use serde::{Deserialize, Serialize};

use super::members::hosts;
use crate::limits::{LAUNCHED_MAX, SERVERS_MAX, WORKERS_MAX};
use crate::wire::WireError;
use crate::wire::error::at_most;

/// Part of a launched process in its job: server, worker or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Part {
    /// The process owns partitions.
    Server,
    /// The process links the client.
    Worker,
    /// The process links the client, and also owns partitions on threads of its own.
    Both,
}

impl Part {
    /// Returns the part in words, for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Worker => "worker",
            Self::Both => "server and worker",
        }
    }

    /// Whether a process of this part also has the part `other`: both are equal, or `self` is [`Part::Both`]. Not
    /// symmetric.
    pub fn includes(self, other: Self) -> bool {
        self == other || self == Self::Both
    }
}

/// Registration of a launched process with the coordinator, in place of a join. Its connection has the role of
/// an admin, because the process has no number among the servers or workers yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// Rank among all launched processes.
    pub rank: u32,
    /// Number of launched processes.
    pub size: u32,
    /// Part that the process takes.
    pub part: Part,
    /// Name of its host, for people.
    pub host: String,
    /// Boot id of its host.
    pub host_id: String,
    /// Process id on that host.
    pub pid: u32,
    /// Number of processes launched on its host, 0 if not known. It serves to locate processes that are missing.
    pub local_size: u32,
    /// Milliseconds that the process waits for the others; the first process to reach its limit ends the wait of all.
    pub timeout_ms: u64,
}

/// Answer of the coordinator to each registration, sent when the last process has registered: numbers of the
/// receiving process, and sizes of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Number of the process among the workers, from 0 by rank; of one that is a server only, among the servers.
    pub number: u32,
    /// Number of servers in the job.
    pub servers: u32,
    /// Number of workers in the job.
    pub workers: u32,
    /// Number of the process among the workers on its host; of one that is a server only, among the servers
    /// there.
    pub local_number: u32,
    /// Number of servers on the host of the process.
    pub local_servers: u32,
    /// Number of workers on the host of the process.
    pub local_workers: u32,
    /// Number of the process among the servers; 0 also if it is no server.
    pub server: u32,
    /// Number of the process among the servers on its host; 0 also if it is no server.
    pub local_server: u32,
}

impl Register {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        let most = u64::from(LAUNCHED_MAX);
        at_most("rank", u64::from(self.rank), most - 1)?;
        at_most("processes", u64::from(self.size), most)?;
        at_most("processes of a host", u64::from(self.local_size), most)?;
        hosts(&self.host, &self.host_id)
    }
}

impl Roster {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        let number = u64::from(self.number.max(self.local_number));
        at_most("number", number, u64::from(LAUNCHED_MAX) - 1)?;
        let server = u64::from(self.server.max(self.local_server));
        at_most("server number", server, u64::from(SERVERS_MAX) - 1)?;
        let servers = u64::from(self.servers.max(self.local_servers));
        at_most("servers", servers, u64::from(SERVERS_MAX))?;
        let workers = u64::from(self.workers.max(self.local_workers));
        at_most("workers", workers, u64::from(WORKERS_MAX))
    }
}

//! How the processes of a launch become servers and workers with numbers.

use serde::{Deserialize, Serialize};

use super::members::hosts;
use crate::limits::{LAUNCHED_MAX, SERVERS_MAX, WORKERS_MAX};
use crate::wire::WireError;
use crate::wire::error::at_most;

/// What a launched process is going to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Part {
    /// It owns partitions.
    Server,
    /// It links the client.
    Worker,
    /// It links the client, and owns partitions on threads beside; so do all others, or none.
    Both,
}

impl Part {
    /// The word for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Worker => "worker",
            Self::Both => "server and worker",
        }
    }

    /// Whether who is this part is `other`, too.
    pub fn includes(self, other: Self) -> bool {
        self == other || self == Self::Both
    }
}

/// A launched process says who it is. It has come as an admin: it has no number among those of its
/// part yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// Its number among all that were launched.
    pub rank: u32,
    /// How many were launched.
    pub size: u32,
    /// What it is going to be.
    pub part: Part,
    /// Name of its host, for people.
    pub host: String,
    /// Boot id of its host.
    pub host_id: String,
    /// Its process id there.
    pub pid: u32,
    /// Processes that were launched on its host, 0 if it does not know: tells where the missing are.
    pub local_size: u32,
    /// Milliseconds that it waits for the others.
    pub timeout_ms: u64,
}

/// The answer to all, when the last one has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Its number among those of its part.
    pub number: u32,
    /// Servers of the job.
    pub servers: u32,
    /// Workers of the job.
    pub workers: u32,
    /// Its number among those of its part on its host.
    pub local_number: u32,
    /// Servers on its host.
    pub local_servers: u32,
    /// Workers on its host.
    pub local_workers: u32,
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
        let servers = u64::from(self.servers.max(self.local_servers));
        at_most("servers", servers, u64::from(SERVERS_MAX))?;
        let workers = u64::from(self.workers.max(self.local_workers));
        at_most("workers", workers, u64::from(WORKERS_MAX))
    }
}

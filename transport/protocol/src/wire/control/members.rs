//! Who is in the cluster, where, and how far.

use serde::{Deserialize, Serialize};

use crate::ids::{ApplierId, DomainId, Incarnation, ServerId, WorkerId};
use crate::limits::{
    ADDRESS_BYTES_MAX, APPLIERS_MAX, DOMAINS_MAX, HOST_BYTES_MAX, SERVERS_MAX, UNIX_NAME_BYTES_MAX,
    WORKERS_MAX,
};
use crate::placement::Owner;
use crate::wire::WireError;
use crate::wire::error::{at_most, name_at_most, text_at_most};

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// `host:port`; empty if it does not listen on TCP.
    pub tcp: String,
    /// Name of the abstract unix socket, without the leading zero; empty if there is none.
    pub unix: String,
}

/// A server as all see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerMember {
    /// Its number.
    pub id: ServerId,
    /// This start of it.
    pub incarnation: Incarnation,
    /// Name of its host, for people.
    pub host: String,
    /// Boot id of its host: equal means the same kernel, where shared memory works.
    pub host_id: String,
    /// Where it listens.
    pub endpoints: Endpoints,
    /// Its applier threads.
    pub appliers: u16,
}

/// A worker's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WorkerState {
    /// Expected, not yet joined: counts for clocks with 0 ticks.
    Expected,
    /// Joined.
    Live,
    /// Said so: counts for clocks as infinitely far.
    Finished,
    /// Its connection broke before it finished: counts no more.
    Lost,
}

/// A worker as all see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerMember {
    /// Its rank.
    pub id: WorkerId,
    /// Its state.
    pub state: WorkerState,
}

/// The membership at an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Members {
    /// The cluster's epoch: one more with each change of the servers.
    pub epoch: u64,
    /// Counts every change, also of workers: a later one supersedes an earlier one.
    pub revision: u64,
    /// The servers.
    pub servers: Vec<ServerMember>,
    /// The workers.
    pub workers: Vec<WorkerMember>,
}

/// A clock domain's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainClock {
    /// The domain.
    pub domain: DomainId,
    /// Ticks.
    pub clock: u64,
}

/// A worker's ticks in a domain, as one server has consumed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerClock {
    /// The worker.
    pub worker: WorkerId,
    /// Ticks that all appliers of the server have consumed.
    pub clock: u64,
}

impl Endpoints {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        text_at_most("TCP address", &self.tcp, ADDRESS_BYTES_MAX)?;
        text_at_most("unix socket name", &self.unix, UNIX_NAME_BYTES_MAX)
    }
}

impl Members {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        at_most("servers", self.servers.len() as u64, u64::from(SERVERS_MAX))?;
        at_most("workers", self.workers.len() as u64, u64::from(WORKERS_MAX))?;
        for server in &self.servers {
            server_id(server.id)?;
            hosts(&server.host, &server.host_id)?;
            server.endpoints.validate()?;
            at_most(
                "appliers",
                u64::from(server.appliers),
                u64::from(APPLIERS_MAX),
            )?;
        }
        self.workers
            .iter()
            .try_for_each(|worker| worker_id(worker.id))
    }
}

pub(super) fn owner(owner: &Owner) -> Result<(), WireError> {
    server_id(owner.server)?;
    applier_id(owner.applier)
}

pub(super) fn hosts(host: &str, host_id: &str) -> Result<(), WireError> {
    name_at_most("host name", host, HOST_BYTES_MAX)?;
    name_at_most("host id", host_id, HOST_BYTES_MAX)
}

pub(super) fn server_id(id: ServerId) -> Result<(), WireError> {
    at_most("server number", u64::from(id.0), u64::from(SERVERS_MAX) - 1)
}

pub(super) fn applier_id(id: ApplierId) -> Result<(), WireError> {
    at_most(
        "applier number",
        u64::from(id.0),
        u64::from(APPLIERS_MAX) - 1,
    )
}

pub(super) fn worker_id(id: WorkerId) -> Result<(), WireError> {
    at_most("worker rank", u64::from(id.0), u64::from(WORKERS_MAX) - 1)
}

pub(super) fn domain_id(id: DomainId) -> Result<(), WireError> {
    at_most("clock domain", u64::from(id.0), DOMAINS_MAX as u64 - 1)
}

pub(super) fn clocks(clocks: &[DomainClock]) -> Result<(), WireError> {
    at_most("clocks", clocks.len() as u64, DOMAINS_MAX as u64)?;
    clocks.iter().try_for_each(|clock| domain_id(clock.domain))
}

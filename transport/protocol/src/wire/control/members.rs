//! Members of the cluster, their addresses and clocks.

use serde::{Deserialize, Serialize};

use crate::ids::{ApplierId, DomainId, Incarnation, ServerId, WorkerId};
use crate::limits::{
    ADDRESS_BYTES_MAX, APPLIERS_MAX, DOMAINS_MAX, HOST_BYTES_MAX, OBSERVERS_MAX, SERVERS_MAX,
    TABLE_NAME_BYTES_MAX, TEXT_BYTES_MAX, UNIX_NAME_BYTES_MAX, WORKER_THREADS_MAX, WORKERS_MAX,
};
use crate::placement::Owner;
use crate::wire::WireError;
use crate::wire::error::{at_most, name_at_most, text_at_most};

/// Addresses at which a server listens: TCP and abstract unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// `host:port`; empty if the server does not listen on TCP.
    pub tcp: String,
    /// Name of the abstract unix socket, without the leading zero byte; empty if there is none.
    pub unix: String,
}

/// Description of a server that all members receive: its host, addresses and number of appliers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerMember {
    /// Number of the server.
    pub id: ServerId,
    /// Incarnation of this start.
    pub incarnation: Incarnation,
    /// Name of its host, for people.
    pub host: String,
    /// Boot id of its host: equal means the same kernel, where shared memory works.
    pub host_id: String,
    /// Addresses where it listens.
    pub endpoints: Endpoints,
    /// Number of its applier threads.
    pub appliers: u16,
}

/// State of a worker in its job, and so its effect on the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WorkerState {
    /// Expected, not yet joined: counts for clocks with 0 ticks.
    Expected,
    /// Joined and not finished.
    Live,
    /// Finished by its own request: clocks do not wait for it.
    Finished,
    /// Its connection broke, or it reported a failure, before it finished: clocks do not wait for it.
    Lost,
}

/// Rank and state of a worker, as all members receive it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerMember {
    /// Rank of the worker.
    pub id: WorkerId,
    /// State of the worker.
    pub state: WorkerState,
}

/// Membership of the cluster and of one job: all servers, and all workers of the job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Members {
    /// Epoch of the cluster: one more with each change of the servers.
    pub epoch: u64,
    /// Number of all changes so far, of servers and workers. A list with a higher number supersedes one with a
    /// lower.
    pub revision: u64,
    /// All servers that are members now, by number.
    pub servers: Vec<ServerMember>,
    /// All workers of the job.
    pub workers: Vec<WorkerMember>,
}

/// Clock of one clock domain: its number and the count of ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainClock {
    /// Number of the domain.
    pub domain: DomainId,
    /// Ticks of the domain so far.
    pub clock: u64,
}

/// Clock of one worker thread in a domain, as one server has it: the count of consumed ticks, and the time of a
/// step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerClock {
    /// Rank of the worker.
    pub worker: WorkerId,
    /// Number of the thread in its worker; 0 for the worker's first client.
    pub thread: u32,
    /// Ticks that all appliers of the server have consumed.
    pub clock: u64,
    /// Median time of the thread's last steps in microseconds, as the slowest applier sees it; 0 before 8 steps.
    pub step_us: u64,
}

/// Clock of one thread of a worker in one domain: a count of ticks. The worker is known from the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadClock {
    /// Number of the thread in its worker; 0 for the worker's first client.
    pub thread: u32,
    /// Domain of the ticks; 0 of a thread that has finished.
    pub domain: DomainId,
    /// Number of ticks; `u64::MAX` of a thread that has finished.
    pub clock: u64,
}

/// Request of a worker to wait at a barrier of the members of its job. Name and clocks identify the barrier, which
/// opens when all awaited workers are at it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberBarrier {
    /// Name of the barrier.
    pub name: String,
    /// Clocks of the domains in which the worker waits for others. Workers at other clocks are at another barrier.
    /// With an empty `of`, a worker that begins with a later tick is not awaited.
    pub clocks: Vec<DomainClock>,
    /// Number that the worker passes to the others at the barrier: each gets it in an [`Arrival`]. At most
    /// `i64::MAX`.
    pub round: u64,
    /// The awaited workers, ascending, an equal list in each request of the barrier. The barrier fails when a worker of
    /// the list is neither there nor live. Empty: all members that have not ended.
    pub of: Vec<WorkerId>,
    /// Milliseconds after which the coordinator refuses the request.
    pub timeout_ms: u64,
}

impl MemberBarrier {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        text_at_most("barrier name", &self.name, TABLE_NAME_BYTES_MAX)?;
        clocks(&self.clocks)?;
        at_most("workers", self.of.len() as u64, u64::from(WORKERS_MAX))?;
        self.of.iter().try_for_each(|&rank| worker_id(rank))
    }
}

/// Entry of the answer to a barrier that has opened: one worker that was there, and the number that it passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Rank of the worker.
    pub rank: WorkerId,
    /// The number that this worker passed as [`MemberBarrier::round`].
    pub round: u64,
}

/// Report on a worker with longer steps than the others: its median time of a step and that of all threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowMember {
    /// Rank of the worker.
    pub worker: WorkerId,
    /// Median time of its last steps in microseconds.
    pub step_us: u64,
    /// Median of the medians of all threads, in microseconds.
    pub median_us: u64,
}

/// Report on the end of a server process: which one, on which host, and how, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEnd {
    /// Number of the server.
    pub server: ServerId,
    /// Incarnation that has ended; 0 if the reporter does not know it.
    pub incarnation: Incarnation,
    /// Name of its host, for people.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
    /// Exit status or signal in words that complete the sentence "server 1 ...", as "was killed by signal 9".
    pub how: String,
}

impl core::fmt::Display for ServerEnd {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self {
            server,
            host,
            pid,
            how,
            ..
        } = self;
        write!(f, "server {server} (pid {pid} on {host}) {how}")
    }
}

/// Report that a successor has taken the place of a server that ended. `Notice::ServerRestarted` carries it if the
/// successor lacks the server's memory or not all tables of the job are warm: the tables of the job are then gone on
/// all servers, and the job's clocks are 0. `Notice::ServerResumed` carries it if the job continues with that
/// memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRestart {
    /// The end of the server that the successor replaces.
    pub end: ServerEnd,
    /// Incarnation of the successor.
    pub successor: Incarnation,
}

impl ServerEnd {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        server_id(self.server)?;
        name_at_most("host name", &self.host, HOST_BYTES_MAX)?;
        text_at_most("end of a server", &self.how, TEXT_BYTES_MAX)
    }
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

/// Checks the rank of a session: that of a worker or an observer.
pub(super) fn session_rank(id: WorkerId) -> Result<(), WireError> {
    let most = u64::from(WORKERS_MAX) + u64::from(OBSERVERS_MAX) - 1;
    at_most("rank of a session", u64::from(id.0), most)
}

pub(super) fn worker_id(id: WorkerId) -> Result<(), WireError> {
    at_most("worker rank", u64::from(id.0), u64::from(WORKERS_MAX) - 1)
}

pub(super) fn thread_number(thread: u32) -> Result<(), WireError> {
    let most = u64::from(WORKER_THREADS_MAX) - 1;
    at_most("thread number", u64::from(thread), most)
}

pub(super) fn domain_id(id: DomainId) -> Result<(), WireError> {
    at_most("clock domain", u64::from(id.0), DOMAINS_MAX as u64 - 1)
}

pub(super) fn clocks(clocks: &[DomainClock]) -> Result<(), WireError> {
    at_most("clocks", clocks.len() as u64, DOMAINS_MAX as u64)?;
    clocks.iter().try_for_each(|clock| domain_id(clock.domain))
}

pub(super) fn thread_clocks(clocks: &[ThreadClock]) -> Result<(), WireError> {
    let most = u64::from(WORKER_THREADS_MAX) * DOMAINS_MAX as u64;
    at_most("thread clocks", clocks.len() as u64, most)?;
    clocks.iter().try_for_each(|at| {
        thread_number(at.thread)?;
        domain_id(at.domain)
    })
}

//! State of a cluster and its servers at one moment, for operators.

use serde::{Deserialize, Serialize};

use super::members::{
    Members, WorkerMember, applier_id, domain_id, server_id, session_rank, thread_number, worker_id,
};
use super::server::Transport;
use super::tasks::QueueSummary;
use crate::ids::{ApplierId, DomainId, ServerId, WorkerId};
use crate::limits::{
    APPLIERS_MAX, HOST_BYTES_MAX, JOBS_MAX, NAMESPACE_BYTES_MAX, SERVERS_MAX, STATUS_ROWS_MAX,
    STATUS_TEXT_BYTES_MAX, WORKERS_MAX,
};
use crate::wire::WireError;
use crate::wire::error::{at_most, name_at_most, text_at_most};

/// State of the cluster as its coordinator sees it, for operators: servers, jobs and their workers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Version of the coordinator's program.
    pub version: String,
    /// Number of servers that the cluster waits for.
    pub servers_expected: u32,
    /// Servers that have joined, by number. Its list of workers is empty: see `jobs`.
    pub members: Members,
    /// Jobs in ascending order of their namespace.
    pub jobs: Vec<JobStatus>,
    /// Why the cluster ends; empty while it runs.
    pub stopping: String,
    /// Servers of the cluster that are not members now, ascending by number.
    pub absent: Vec<AbsentServer>,
}

/// A server of the cluster that is not a member now: it has not joined, its successor has not, or it has not
/// returned since the coordinator was restarted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbsentServer {
    /// Number of the server.
    pub server: ServerId,
    /// Name of the host on which the server was; empty of one that has not joined.
    pub host: String,
    /// Reason why it is absent, in words.
    pub why: String,
}

/// State of one job of a cluster, for operators: its workers, tables, barriers, saves and task queues.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobStatus {
    /// Namespace of the job.
    pub namespace: String,
    /// Number of workers that the job waits for; 0 if unknown.
    pub workers_expected: u32,
    /// Workers of the job by rank, at most [`STATUS_ROWS_MAX`] of all jobs together.
    pub workers: Vec<WorkerMember>,
    /// Number of workers that `workers` leaves out.
    pub workers_left_out: u32,
    /// Number of its tables.
    pub tables: u32,
    /// Number of workers that wait at barriers.
    pub at_barriers: u32,
    /// Directory of the save or load that runs; empty if there is none.
    pub saving: String,
    /// Why the job has failed; empty if it has not.
    pub failed: String,
    /// Task queues of the job by number, at most [`STATUS_ROWS_MAX`] of all jobs together.
    pub queues: Vec<QueueSummary>,
    /// Number of queues that `queues` leaves out.
    pub queues_left_out: u32,
}

/// State of one server, for operators: bytes of memory, appliers, sessions and clocks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Version of the server's program.
    pub version: String,
    /// Bytes in use for parameters, which clients read.
    pub public_bytes: u64,
    /// Bytes reserved for parameters.
    pub public_capacity: u64,
    /// Bytes in use for keys, indexes and optimizer state.
    pub private_bytes: u64,
    /// Bytes reserved for keys, indexes and optimizer state.
    pub private_capacity: u64,
    /// Number of control connections, authenticated or not; 0, with no sessions, if the control thread was late.
    pub connections: u64,
    /// Its appliers, by number.
    pub appliers: Vec<ApplierStatus>,
    /// Its sessions, at most [`STATUS_ROWS_MAX`], in ascending order of namespace, rank and thread.
    pub sessions: Vec<SessionStatus>,
    /// Number of sessions that `sessions` leaves out.
    pub sessions_left_out: u64,
    /// Clocks of the threads of workers, the slowest first, at most [`STATUS_ROWS_MAX`]: ticks that all appliers
    /// that have answered have consumed.
    pub clocks: Vec<ClockStatus>,
    /// Number of clocks that `clocks` leaves out.
    pub clocks_left_out: u64,
}

/// State of one applier thread of a server, for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplierStatus {
    /// Number of the applier.
    pub applier: ApplierId,
    /// Whether the applier has answered in time. If not, it is in a long step or has ended, and the fields below are
    /// 0.
    pub answered: bool,
    /// Number of steps in the applier's total order so far: frames applied or refused, and steps of ticks and loads.
    pub frames: u64,
    /// Bytes of pushes and function calls that the applier holds until their tick or task.
    pub held_bytes: u64,
    /// Number of saves under way on the applier.
    pub saves: u32,
    /// Number of frames so far that arrived after their tail record, so that the applier waited for them.
    pub late_frames: u64,
}

/// State of one session, the attachment of one client thread to one server, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Namespace of the job.
    pub namespace: String,
    /// Rank of the worker, or of an observer ([`WorkerId::of_observer`]).
    pub worker: WorkerId,
    /// Number of the thread in its worker; 0 of an observer.
    pub thread: u32,
    /// Transport (carrier) of the session's lanes.
    pub transport: Transport,
    /// Why the client took this carrier.
    pub reason: String,
    /// Whether the session's control connection is open.
    pub connected: bool,
    /// Number of times that the control connection was cut.
    pub cuts: u64,
    /// Number of lane recoveries.
    pub recoveries: u64,
    /// Number of the session's frames that appliers have refused.
    pub refused: u64,
}

/// Clock, in ticks, of a worker's thread in one clock domain at one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockStatus {
    /// Namespace of the job.
    pub namespace: String,
    /// Number of the domain.
    pub domain: DomainId,
    /// Rank of the worker.
    pub worker: WorkerId,
    /// Number of the thread in its worker.
    pub thread: u32,
    /// Number of the thread's ticks that all appliers of the server that have answered have consumed.
    pub clock: u64,
}

impl ClusterStatus {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        text_at_most("version", &self.version, STATUS_TEXT_BYTES_MAX)?;
        text_at_most("reason", &self.stopping, STATUS_TEXT_BYTES_MAX)?;
        self.members.validate()?;
        at_most("jobs", self.jobs.len() as u64, JOBS_MAX as u64)?;
        let workers: usize = self.jobs.iter().map(|job| job.workers.len()).sum();
        at_most("listed workers", workers as u64, STATUS_ROWS_MAX as u64)?;
        let queues: usize = self.jobs.iter().map(|job| job.queues.len()).sum();
        at_most("listed queues", queues as u64, STATUS_ROWS_MAX as u64)?;
        at_most("servers", self.absent.len() as u64, u64::from(SERVERS_MAX))?;
        for absent in &self.absent {
            server_id(absent.server)?;
            text_at_most("host", &absent.host, HOST_BYTES_MAX)?;
            text_at_most("reason", &absent.why, STATUS_TEXT_BYTES_MAX)?;
        }
        self.jobs.iter().try_for_each(JobStatus::validate)
    }
}

impl JobStatus {
    fn validate(&self) -> Result<(), WireError> {
        name_at_most("namespace", &self.namespace, NAMESPACE_BYTES_MAX)?;
        let workers = u64::from(self.workers_expected);
        at_most("workers", workers, u64::from(WORKERS_MAX))?;
        text_at_most("directory", &self.saving, STATUS_TEXT_BYTES_MAX)?;
        text_at_most("reason", &self.failed, STATUS_TEXT_BYTES_MAX)?;
        let mut workers = self.workers.iter();
        workers.try_for_each(|worker| worker_id(worker.id))?;
        self.queues.iter().try_for_each(QueueSummary::validate)
    }
}

impl ServerStatus {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        text_at_most("version", &self.version, STATUS_TEXT_BYTES_MAX)?;
        let appliers = self.appliers.len() as u64;
        at_most("appliers", appliers, u64::from(APPLIERS_MAX))?;
        let most = STATUS_ROWS_MAX as u64;
        at_most("listed sessions", self.sessions.len() as u64, most)?;
        at_most("listed clocks", self.clocks.len() as u64, most)?;
        for applier in &self.appliers {
            applier_id(applier.applier)?;
        }
        for session in &self.sessions {
            name_at_most("namespace", &session.namespace, NAMESPACE_BYTES_MAX)?;
            text_at_most("reason", &session.reason, STATUS_TEXT_BYTES_MAX)?;
            session_rank(session.worker)?;
            thread_number(session.thread)?;
        }
        self.clocks.iter().try_for_each(|clock| {
            name_at_most("namespace", &clock.namespace, NAMESPACE_BYTES_MAX)?;
            domain_id(clock.domain)?;
            worker_id(clock.worker)?;
            thread_number(clock.thread)
        })
    }
}

/// Returns the text in a form that a status field accepts: control characters become spaces, and it is truncated to
/// at most [`STATUS_TEXT_BYTES_MAX`] bytes, between characters.
pub fn status_text(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut text: String = text.chars().map(clean).collect();
    text.truncate(text.floor_char_boundary(STATUS_TEXT_BYTES_MAX));
    text
}

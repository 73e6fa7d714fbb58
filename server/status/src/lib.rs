//! The state of a running cluster for operators: as JSON, and as Prometheus text. (long: each form of one report.)
//!
//! ```text
//! tidewater status --json ----+                       +-- each server: appliers, sessions, clocks
//!                             +-- fetch: coordinator --+
//! GET /metrics -- MetricsPage +   (role Admin)        +-- members, jobs, saves
//! ```
//! An operator's connection joins nothing: no clock, barrier or job waits for it. A server reads counts
//! that it keeps anyway, between two frames of each applier.

#![forbid(unsafe_code)]

mod page;
mod prometheus;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tidewater_control::conn::ConnError;
use tidewater_control::dial::{self, Claims, DialError};
use tidewater_protocol::ids::Incarnation;
use tidewater_protocol::wire::control::{
    AbsentServer, ClusterStatus, CoordinatorAnswer, CoordinatorRequest, Endpoints, JobStatus,
    Members, QueueSummary, ServerMember, ServerStatus, Transport, WorkerState,
};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_protocol::wire::hello::{Ids, NAMESPACE_DEFAULT, RANK_ANY, Role};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::Deadline;

pub use page::{MetricsError, MetricsPage};

/// Longest wait for one server. It answers within two seconds, also if an applier does not.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the state of a cluster cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// The coordinator cannot be reached, or refuses the handshake.
    #[error("coordinator: {0}")]
    Dial(#[from] DialError),
    /// The coordinator does not answer.
    #[error("coordinator at {address}: {source}")]
    Coordinator {
        /// Address of the coordinator.
        address: String,
        /// Error of the connection.
        source: ConnError,
    },
    /// The coordinator answers with another message.
    #[error("the coordinator at {address} answers with something else; is it of another release?")]
    Answer {
        /// Address of the coordinator.
        address: String,
    },
}

/// The state of a cluster at one moment. Serialized, it is the format of `tidewater status --json`.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// `HOST:PORT` of the coordinator; empty in the report of one server.
    pub coordinator: String,
    /// Version of the coordinator's program.
    pub version: String,
    /// Number of servers that the cluster waits for.
    pub servers_expected: u32,
    /// Epoch of the membership of servers.
    pub epoch: u64,
    /// Why the cluster ends; empty while it runs.
    pub stopping: String,
    /// Jobs in ascending order of namespace.
    pub jobs: Vec<JobReport>,
    /// Servers that have joined, by number.
    pub servers: Vec<ServerReport>,
}

/// One job of the cluster, which is a namespace.
#[derive(Debug, Clone, Serialize)]
pub struct JobReport {
    /// Namespace of the job.
    pub namespace: String,
    /// Number of its workers; 0 if unknown.
    pub workers_expected: u32,
    /// Its workers, in ascending order of rank.
    pub workers: Vec<WorkerReport>,
    /// Workers that are not listed.
    pub workers_left_out: u32,
    /// Number of its tables.
    pub tables: u32,
    /// Workers that wait at barriers.
    pub at_barriers: u32,
    /// Directory of the save or load that runs; empty if there is none.
    pub saving: String,
    /// Why it has failed; empty if it has not.
    pub failed: String,
    /// Clock domains that have been used.
    pub domains: Vec<DomainReport>,
    /// Its queues of tasks, in the order in which they were opened.
    pub queues: Vec<QueueReport>,
    /// Queues that are not listed.
    pub queues_left_out: u32,
}

/// A queue of tasks of a job. The state of each task that has been given is one of `open`, `finished`, `left_out`,
/// or waiting to be given again.
#[derive(Debug, Clone, Serialize)]
pub struct QueueReport {
    /// Name of the queue.
    pub queue: String,
    /// Tasks of one pass.
    pub tasks: u64,
    /// Passes that have begun.
    pub epochs: u32,
    /// Tasks that workers have now.
    pub open: u64,
    /// Deliveries of tasks to workers, those of tasks that are given again too.
    pub given: u64,
    /// Tasks that are finished; each counts once.
    pub finished: u64,
    /// Records of the finished tasks.
    pub records: u64,
    /// Deliveries taken back from workers that were lost or have left.
    pub recovered: u64,
    /// Deliveries taken back because their time was over.
    pub timeouts: u64,
    /// Deliveries to a second worker.
    pub stragglers: u64,
    /// Failures that workers reported.
    pub failures: u64,
    /// Reports of deliveries that counted no more.
    pub late: u64,
    /// Tasks that are left out.
    pub left_out: u64,
    /// Whether no task will follow.
    pub is_over: bool,
}

/// One worker of a job.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct WorkerReport {
    /// Rank of the worker.
    pub rank: u32,
    /// `expected`, `live`, `finished` or `lost`.
    pub state: &'static str,
}

/// One clock domain of a job.
#[derive(Debug, Clone, Serialize)]
pub struct DomainReport {
    /// Number of the domain.
    pub domain: u8,
    /// Ticks that all threads of workers have completed on all servers.
    pub tick: u64,
    /// Ticks of the fastest thread.
    pub front: u64,
    /// Ranks that hold the others back: those at `tick` while another one is ahead.
    pub awaited: Vec<u32>,
    /// Clocks of the threads of workers.
    pub clocks: Vec<ClockReport>,
}

/// The clock of one thread of a worker.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ClockReport {
    /// Rank of the worker.
    pub rank: u32,
    /// Number of the thread in its worker.
    pub thread: u32,
    /// Ticks that all servers have consumed.
    pub tick: u64,
}

/// One server and what it carries.
#[derive(Debug, Clone, Serialize)]
pub struct ServerReport {
    /// Number of the server.
    pub server: u32,
    /// Name of its host.
    pub host: String,
    /// `HOST:PORT` where it listens.
    pub address: String,
    /// Why the other fields are empty: the server did not answer.
    pub error: Option<String>,
    /// Version of the server's program.
    pub version: String,
    /// Memory of parameters, which clients read.
    pub public: MemoryReport,
    /// Memory of keys, indexes and optimizer state.
    pub private: MemoryReport,
    /// Control connections, authenticated or not.
    pub connections: u64,
    /// Its appliers, in ascending order of number.
    pub appliers: Vec<ApplierReport>,
    /// Its sessions: the carrier of each pair of a worker's thread, or of an observer, and the server.
    pub sessions: Vec<SessionReport>,
    /// Sessions that are not listed.
    pub sessions_left_out: u64,
    /// Clocks that are not listed, of the fastest threads.
    pub clocks_left_out: u64,
}

/// One of a server's memories.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct MemoryReport {
    /// Bytes that are in use.
    pub used_bytes: u64,
    /// Bytes of reserved address space.
    pub capacity_bytes: u64,
}

/// One applier of a server.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ApplierReport {
    /// Number of the applier.
    pub applier: u16,
    /// Whether it has answered within two seconds; if not, its numbers are 0.
    pub answered: bool,
    /// Frames that it has handled.
    pub frames: u64,
    /// Bytes of pushes held back for the turn of their rank.
    pub held_bytes: u64,
    /// Number of saves under way.
    pub saves: u32,
    /// Frames that arrived after their tail, and were waited for: the device does not place data in order.
    pub late_frames: u64,
}

/// One pair of a worker's thread, or of an observer, and a server.
#[derive(Debug, Clone, Serialize)]
pub struct SessionReport {
    /// Namespace of the job.
    pub namespace: String,
    /// Role of the client: `worker` or `observer`.
    pub role: &'static str,
    /// Rank of the worker, or number of the observer.
    pub rank: u32,
    /// Number of the thread in its worker; 0 of an observer.
    pub thread: u32,
    /// Carrier of its lanes: `shm`, `tcp` or `verbs`.
    pub carrier: &'static str,
    /// Why the client took this carrier.
    pub reason: String,
    /// Whether its control connection is there.
    pub connected: bool,
    /// Times that the control connection was cut.
    pub cuts: u64,
    /// Lanes that were recovered.
    pub recoveries: u64,
    /// Frames that appliers have refused.
    pub refused_frames: u64,
}

fn operator(meant: Ids, namespace: &str) -> Claims {
    Claims {
        ids: meant,
        namespace: namespace.to_owned(),
        role: Role::Admin,
        rank: RANK_ANY,
    }
}

/// Asks the workers of the job of `namespace` to end at a common step.
///
/// # Errors
/// [`StatusError`], with the coordinator's refusal when no such job runs.
///
/// # Cost
/// One connection and one request, and a notice to each worker.
pub fn stop_job(
    address: &str,
    token: &JobToken,
    meant: Ids,
    namespace: &str,
    reason: &str,
    deadline: Deadline,
) -> Result<(), StatusError> {
    let reason = reason.to_owned();
    let ask = CoordinatorRequest::StopJob { reason };
    order(address, token, operator(meant, namespace), &ask, deadline)
}

/// How a wait for a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    /// All its workers have ended.
    Done,
    /// The job has failed, or its cluster has ended before it.
    Failed(Refusal),
    /// It runs, and the deadline has passed.
    Running,
}

/// Waits for the end of the job of `namespace`.
///
/// # Errors
/// [`StatusError`], with the coordinator's refusal when no such job runs.
///
/// # Cost
/// One connection for as long as the job runs.
pub fn wait_job(
    address: &str,
    token: &JobToken,
    meant: Ids,
    namespace: &str,
    deadline: Deadline,
) -> Result<JobEnd, StatusError> {
    let ask = CoordinatorRequest::WaitJob;
    match order(address, token, operator(meant, namespace), &ask, deadline) {
        Ok(()) => Ok(JobEnd::Done),
        Err(StatusError::Coordinator {
            source: ConnError::Refused(refusal),
            ..
        }) if refusal.code != RefusalCode::BadRequest => Ok(JobEnd::Failed(refusal)),
        Err(StatusError::Coordinator {
            source: ConnError::TimedOut { .. },
            ..
        }) => Ok(JobEnd::Running),
        Err(StatusError::Dial(error)) if deadline.passed() && is_late(&error) => {
            Ok(JobEnd::Running)
        }
        Err(error) => Err(error),
    }
}

/// Whether a connection was not there in time. A refusal or a closed port is not late.
fn is_late(error: &DialError) -> bool {
    match error {
        DialError::Unreachable { source, .. } => source.kind() == std::io::ErrorKind::TimedOut,
        DialError::Handshake { source, .. } => matches!(source, ConnError::TimedOut { .. }),
        _ => false,
    }
}

fn order(
    address: &str,
    token: &JobToken,
    claims: Claims,
    ask: &CoordinatorRequest,
    deadline: Deadline,
) -> Result<(), StatusError> {
    let mut conn = dial::control(address, token, &claims, deadline)?;
    let address = address.to_owned();
    match conn.call(ask, || deadline.left()) {
        Ok(CoordinatorAnswer::Done) => Ok(()),
        Ok(_) => Err(StatusError::Answer { address }),
        Err(source) => Err(StatusError::Coordinator { address, source }),
    }
}

/// Reads the state of the cluster of the coordinator at `address`, which `meant` names; all 0 for any.
///
/// # Errors
/// [`StatusError`]. A server that does not answer is no error: its report says so.
///
/// # Cost
/// One connection; one request for the cluster and one for each server, which waits up to 5 s.
pub fn fetch(
    address: &str,
    token: &JobToken,
    meant: Ids,
    deadline: Deadline,
) -> Result<Report, StatusError> {
    let claims = operator(meant, NAMESPACE_DEFAULT);
    let mut conn = dial::control(address, token, &claims, deadline)?;
    let ask = CoordinatorRequest::Status { server: None };
    let cluster = match conn.call(&ask, || deadline.left()) {
        Ok(CoordinatorAnswer::Cluster(cluster)) => *cluster,
        Ok(_) => {
            let address = address.to_owned();
            return Err(StatusError::Answer { address });
        }
        Err(source) => {
            let address = address.to_owned();
            return Err(StatusError::Coordinator { address, source });
        }
    };
    let mut members = cluster.members.servers.clone();
    members.sort_by_key(|member| member.id);
    let mut servers = Vec::with_capacity(members.len());
    for member in members {
        let server = Some(member.id);
        let until = deadline.min(Deadline::after(SERVER_TIMEOUT));
        let status = match conn.call(&CoordinatorRequest::Status { server }, || until.left()) {
            Ok(CoordinatorAnswer::Server(status)) => Ok(*status),
            Ok(_) => Err("it answers with something else".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        servers.push((member, status));
    }
    servers.extend(cluster.absent.iter().map(absent));
    Ok(Report::new(address, &cluster, servers))
}

/// The row of a server that is no member now.
fn absent(absent: &AbsentServer) -> (ServerMember, Result<ServerStatus, String>) {
    let member = ServerMember {
        id: absent.server,
        incarnation: Incarnation(0),
        host: absent.host.clone(),
        host_id: String::new(),
        endpoints: Endpoints {
            tcp: String::new(),
            unix: String::new(),
        },
        appliers: 0,
    };
    (member, Err(format!("absent: {}", absent.why)))
}

impl Report {
    /// Combines the answers of a coordinator and its servers.
    pub fn new(
        coordinator: &str,
        cluster: &ClusterStatus,
        servers: Vec<(ServerMember, Result<ServerStatus, String>)>,
    ) -> Self {
        let answered: Vec<&ServerStatus> = servers.iter().flat_map(|(_, s)| s).collect();
        let mut domains = domains(&answered);
        let mut jobs: Vec<JobReport> = cluster.jobs.iter().map(JobReport::of).collect();
        for job in &mut jobs {
            job.domains = domains.remove(&job.namespace).unwrap_or_default();
        }
        // Of a job that has begun since the coordinator answered, or all in the report of one server.
        jobs.extend(domains.into_iter().map(|(namespace, domains)| JobReport {
            domains,
            ..JobReport::of(&JobStatus {
                namespace,
                ..JobStatus::default()
            })
        }));
        Self {
            coordinator: coordinator.to_owned(),
            version: cluster.version.clone(),
            servers_expected: cluster.servers_expected,
            epoch: cluster.members.epoch,
            stopping: cluster.stopping.clone(),
            jobs,
            servers: servers.into_iter().map(ServerReport::of).collect(),
        }
    }

    /// The report of one server, without what the coordinator knows.
    pub fn of_server(member: ServerMember, status: ServerStatus) -> Self {
        let cluster = ClusterStatus {
            version: status.version.clone(),
            members: Members::default(),
            ..ClusterStatus::default()
        };
        Self::new("", &cluster, vec![(member, Ok(status))])
    }

    /// The report in Prometheus' text format, version 0.0.4.
    pub fn prometheus(&self) -> String {
        prometheus::text(self)
    }
}

impl JobReport {
    fn of(job: &JobStatus) -> Self {
        let workers = job.workers.iter().map(|worker| WorkerReport {
            rank: worker.id.0,
            state: match worker.state {
                WorkerState::Expected => "expected",
                WorkerState::Live => "live",
                WorkerState::Finished => "finished",
                WorkerState::Lost => "lost",
            },
        });
        Self {
            namespace: job.namespace.clone(),
            workers_expected: job.workers_expected,
            workers: workers.collect(),
            workers_left_out: job.workers_left_out,
            tables: job.tables,
            at_barriers: job.at_barriers,
            saving: job.saving.clone(),
            failed: job.failed.clone(),
            domains: Vec::new(),
            queues: job.queues.iter().map(QueueReport::of).collect(),
            queues_left_out: job.queues_left_out,
        }
    }
}

impl QueueReport {
    fn of(queue: &QueueSummary) -> Self {
        let counters = &queue.counters;
        Self {
            queue: queue.name.clone(),
            tasks: counters.tasks,
            epochs: counters.epochs,
            open: counters.open,
            given: counters.given,
            finished: counters.finished,
            records: counters.records,
            recovered: counters.recovered,
            timeouts: counters.timeouts,
            stragglers: counters.stragglers,
            failures: counters.failures,
            late: counters.late,
            left_out: counters.left_out,
            is_over: queue.is_over,
        }
    }
}

impl ServerReport {
    fn of((member, status): (ServerMember, Result<ServerStatus, String>)) -> Self {
        let (status, error) = match status {
            Ok(status) => (status, None),
            Err(error) => (ServerStatus::default(), Some(error)),
        };
        let appliers = status.appliers.iter().map(|applier| ApplierReport {
            applier: applier.applier.0,
            answered: applier.answered,
            frames: applier.frames,
            held_bytes: applier.held_bytes,
            saves: applier.saves,
            late_frames: applier.late_frames,
        });
        let sessions = status.sessions.into_iter().map(|session| SessionReport {
            namespace: session.namespace,
            role: match session.worker.observer() {
                None => "worker",
                Some(_) => "observer",
            },
            rank: session.worker.observer().unwrap_or(session.worker.0),
            thread: session.thread,
            carrier: match session.transport {
                Transport::Shm => "shm",
                Transport::Tcp => "tcp",
                Transport::Verbs => "verbs",
                Transport::Sim => "sim",
            },
            reason: session.reason,
            connected: session.connected,
            cuts: session.cuts,
            recoveries: session.recoveries,
            refused_frames: session.refused,
        });
        Self {
            server: member.id.0,
            host: member.host,
            address: member.endpoints.tcp,
            error,
            version: status.version,
            public: MemoryReport {
                used_bytes: status.public_bytes,
                capacity_bytes: status.public_capacity,
            },
            private: MemoryReport {
                used_bytes: status.private_bytes,
                capacity_bytes: status.private_capacity,
            },
            connections: status.connections,
            appliers: appliers.collect(),
            sessions: sessions.collect(),
            sessions_left_out: status.sessions_left_out,
            clocks_left_out: status.clocks_left_out,
        }
    }
}

/// The clock domains of each namespace. The tick of a thread is the least of all servers.
fn domains(servers: &[&ServerStatus]) -> BTreeMap<String, Vec<DomainReport>> {
    let mut least: BTreeMap<(&str, u8, u32, u32), u64> = BTreeMap::new();
    for row in servers.iter().flat_map(|server| &server.clocks) {
        let thread = (
            row.namespace.as_str(),
            row.domain.0,
            row.worker.0,
            row.thread,
        );
        let tick = least.entry(thread).or_insert(u64::MAX);
        *tick = (*tick).min(row.clock);
    }
    let mut domains: BTreeMap<String, Vec<DomainReport>> = BTreeMap::new();
    // In order of namespace and domain: a new domain begins where the one before ends.
    for ((namespace, domain, rank, thread), tick) in least {
        let of_job = domains.entry(namespace.to_owned()).or_default();
        if of_job.last().is_none_or(|last| last.domain != domain) {
            of_job.push(DomainReport {
                domain,
                tick: u64::MAX,
                front: 0,
                awaited: Vec::new(),
                clocks: Vec::new(),
            });
        }
        if let Some(last) = of_job.last_mut() {
            last.tick = last.tick.min(tick);
            last.front = last.front.max(tick);
            last.clocks.push(ClockReport { rank, thread, tick });
        }
    }
    for domain in domains.values_mut().flatten() {
        let (tick, front) = (domain.tick, domain.front);
        let behind = |clock: &&ClockReport| clock.tick == tick && tick < front;
        domain.awaited = domain
            .clocks
            .iter()
            .filter(behind)
            .map(|c| c.rank)
            .collect();
        domain.awaited.dedup();
    }
    domains
}

#[cfg(test)]
mod tests;

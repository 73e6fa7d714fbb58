//! The control connection of a worker to its coordinator. (long: its calls and its notices.) The loss of the
//! coordinator ends the job, unless the coordinator journals its state: then calls that need it wait for its
//! return.

use std::collections::BTreeMap;
use std::time::Duration;

use tidewater_control::conn::ConnError;
use tidewater_control::coordinator::CoordinatorConn;
use tidewater_control::dial::{Claims, DialError};
use tidewater_launch::JobFile;
use tidewater_protocol::ids::{ClusterId, Incarnation, ServerId, TableId};
use tidewater_protocol::limits::{COORDINATOR_LOOK, TEXT_BYTES_MAX};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::TableSpec;
use tidewater_protocol::wire::control::{
    CoordinatorAnswer, CoordinatorRequest, DomainClock, Endpoints, Join, Joined, MemberBarrier,
    Members, Message as _, ModuleBytes, Notice, ServerEnd, ServerRestart, SlowMember, TableInfo,
    WorkerState,
};
use tidewater_protocol::wire::handshake::{HandshakeError, JobToken};
use tidewater_protocol::wire::hello::{Ids, NAMESPACE_DEFAULT, RANK_ANY, Role};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::Deadline;
use tidewater_topology::hostinfo;

use crate::error::{ClientError, ControlFailure};
use crate::interrupt;
use crate::link::{
    BegunCall, CoordinatorCall, CoordinatorLink, CoordinatorReply, Loaded, Saved, blocking_calls,
    unexpected,
};

/// Time limit of the membership request that adds the joined servers and live workers to a deadline error.
const WHO: Duration = Duration::from_secs(1);
/// Time before the caller's deadline at which the coordinator ends a barrier. Its refusal, which names the missing
/// workers, then arrives before the deadline.
const HEAD_START: Duration = Duration::from_millis(200);

/// Parameters of a join: coordinator address, token, namespace, claimed rank and number of workers.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::connect::{JoinConfig, NetCoordinatorLink};
/// # use tidewater_runtime::clock::Deadline;
/// # use tidewater_service::embedded::{Cluster, ClusterConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = Cluster::start(&ClusterConfig::default())?;
/// # let at = cluster.environment();
/// # let deadline = Deadline::after(Duration::from_secs(30));
/// let mut config = JoinConfig::new(&at.coordinator, at.token.clone());
/// config.rank = Some(0);
/// let (link, joined) = NetCoordinatorLink::join(&config, deadline)?;
/// assert_eq!((joined.rank, joined.servers_expected), (0, 1));
/// link.goodbye(deadline)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct JoinConfig {
    /// `HOST:PORT` of the coordinator.
    pub coordinator: String,
    /// Secret token of the job.
    pub token: JobToken,
    /// Namespace of the job in its cluster.
    pub namespace: String,
    /// Rank to claim; `None` takes a free one.
    pub rank: Option<u32>,
    /// Workers of the job; 0 if the caller does not know. A service learns it only from the workers of
    /// its jobs: those of one job give the same number.
    pub workers: u32,
    /// Whether to join as an observer, which has no rank.
    pub observer: bool,
    /// Job file that names the coordinator: a coordinator of another cluster is then an error.
    pub job_file: Option<JobFile>,
}

impl JoinConfig {
    /// Parameters to join the namespace "default" at this coordinator, with a free rank, in a job of unknown size.
    pub fn new(coordinator: impl Into<String>, token: JobToken) -> Self {
        let (coordinator, namespace) = (coordinator.into(), NAMESPACE_DEFAULT.to_owned());
        Self {
            coordinator,
            token,
            namespace,
            rank: None,
            workers: 0,
            observer: false,
            job_file: None,
        }
    }
}

/// Interval between two polls of the control connection for an operator's request to end the job. One poll takes up
/// to a millisecond.
const STOP_LOOK: Duration = Duration::from_millis(100);

/// Control connection of a worker, or an observer, to the coordinator. One thread uses it.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::connect::{JoinConfig, NetCoordinatorLink};
/// # use tidewater_runtime::clock::Deadline;
/// # use tidewater_service::embedded::{Cluster, ClusterConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = Cluster::start(&ClusterConfig::default())?;
/// # let at = cluster.environment();
/// # let deadline = Deadline::after(Duration::from_secs(30));
/// let config = JoinConfig::new(&at.coordinator, at.token.clone());
/// let (mut link, joined) = NetCoordinatorLink::join(&config, deadline)?;
/// let members = link.wait_servers(joined.servers_expected, deadline)?;
/// assert_eq!(members.servers.len(), 1);
/// link.goodbye(deadline)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct NetCoordinatorLink {
    address: String,
    conn: CoordinatorConn,
    /// Reason for the end of the job, once a notice has given it.
    failed: Option<Refusal>,
    members: Option<Members>,
    /// Reason of an operator's request to end the job, once it has arrived.
    stop: Option<String>,
    /// Time of the next poll for an operator's request to end the job.
    stop_look: Deadline,
    restart: Restart,
}

/// State of server restarts, as the coordinator's notices report them.
#[derive(Debug, Default)]
struct Restart {
    /// Servers that have ended and have no successor yet.
    ended: BTreeMap<ServerId, ServerEnd>,
    /// Number of successors that resumed with the memory of their server, since the client rejoined last.
    /// `members` is the membership in the last notice of one.
    resumed: u64,
    members: Members,
    /// The last restart of a server without its memory, until the client rejoins.
    last: Option<ServerRestart>,
    /// Whether a call has failed with `last`, and the client has not rejoined completely.
    reported: bool,
}

impl NetCoordinatorLink {
    /// Joins the job, and blocks until the coordinator has answered. Waits until `deadline` for a coordinator
    /// that is starting; for that of a job file at most 5 s.
    ///
    /// # Errors
    /// [`ClientError::Environment`] when descriptors have run out or `/proc` is not mounted;
    /// [`ClientError::Control`] when the coordinator is unreachable or the handshake fails;
    /// [`ClientError::JobFile`] when the job file is stale; [`ClientError::Refused`] with the coordinator's
    /// reason, also for one given in the handshake; [`ClientError::Deadline`] and [`ClientError::Interrupted`].
    pub fn join(config: &JoinConfig, deadline: Deadline) -> Result<(Self, Joined), ClientError> {
        let mut link = Self::connect(config, deadline)?;
        let joined = link.enter(config, deadline)?;
        Ok((link, joined))
    }

    /// Connects and authenticates without a join: the coordinator reserves the rank until the connection ends,
    /// and does not yet count the worker. Waits until `deadline` for a coordinator that is starting; for that of
    /// a job file at most `JobFile::COORDINATOR_WAIT`. Errors as [`Self::join`].
    pub(super) fn connect(config: &JoinConfig, deadline: Deadline) -> Result<Self, ClientError> {
        let address = config.coordinator.clone();
        let job_file = config.job_file.as_ref();
        let claims = Claims {
            ids: job_file.map_or_else(Ids::default, JobFile::ids),
            namespace: config.namespace.clone(),
            role: match config.observer {
                true => Role::Observer,
                false => Role::Worker,
            },
            rank: config.rank.unwrap_or(RANK_ANY),
        };
        // The coordinator has run before the file was written: it is not awaited.
        let until = match job_file {
            Some(_) => deadline.min(Deadline::after(JobFile::COORDINATOR_WAIT)),
            None => deadline,
        };
        let conn =
            CoordinatorConn::open(&address, &config.token, &claims, until).map_err(|error| {
                if let Some(stale) = job_file.and_then(|file| file.explain(&error)) {
                    return stale.into();
                }
                match error {
                    DialError::Handshake {
                        source:
                            ConnError::Refused(refusal)
                            | ConnError::Handshake(HandshakeError::RefusedByPeer(refusal)),
                        ..
                    } => refusal.into(),
                    other => control(&address, Box::new(other).into()),
                }
            })?;
        Ok(Self {
            address,
            conn,
            failed: None,
            members: None,
            stop: None,
            stop_look: Deadline::after(Duration::ZERO),
            restart: Restart::default(),
        })
    }

    /// Sends the join request on the open connection and blocks until the coordinator answers, `deadline`
    /// passes, or an interrupt is requested. Errors as [`Self::join`].
    pub(super) fn enter(
        &mut self,
        config: &JoinConfig,
        deadline: Deadline,
    ) -> Result<Joined, ClientError> {
        let op = "join";
        let host_id = hostinfo::host_id().map_err(|e| ClientError::Environment(e.into()))?;
        let join = Join {
            host: hostinfo::host_name(),
            host_id,
            pid: std::process::id(),
            incarnation: Incarnation(0),
            endpoints: Endpoints {
                tcp: String::new(),
                unix: String::new(),
            },
            appliers: 0,
            workers: config.workers,
            restarts: 0,
            kept: None,
            returns: false,
        };
        let sent = self.conn.join(join, deadline);
        sent.map_err(|error| self.failure(error))?;
        loop {
            let end = Deadline::after(COORDINATOR_LOOK.min(deadline.left()));
            let joined = self.conn.wait_joined(end);
            if let Some(joined) = self.outcome(joined)? {
                return Ok(joined);
            }
            if interrupt::requested() {
                return Err(ClientError::Interrupted { op });
            }
            if deadline.passed() {
                // A worker that joins a running job waits for all servers.
                let missing = self.no_answer();
                return Err(ClientError::Deadline {
                    op,
                    missing: self.missing_workers(missing),
                });
            }
        }
    }

    /// Identifier of the cluster, as the coordinator sent it in the handshake.
    pub const fn cluster(&self) -> ClusterId {
        self.conn.welcome().ids.cluster
    }

    /// Requests the current membership (servers and workers) from the coordinator, and waits for it.
    ///
    /// # Errors
    /// The connection's failure; [`ClientError::Deadline`] without an answer in time.
    pub fn members(&mut self, deadline: Deadline) -> Result<Members, ClientError> {
        match self.call("members", &CoordinatorRequest::Members, deadline)? {
            CoordinatorAnswer::Members(members) => Ok(members),
            _ => Err(unexpected("members")),
        }
    }

    /// Blocks until `expected` servers have joined; returns the membership of that moment. It polls the coordinator
    /// every 2 to 100 ms.
    ///
    /// # Errors
    /// [`ClientError::Deadline`] with the numbers of the first 16 missing servers, up to 100 ms before
    /// `deadline`; the connection's failure.
    pub fn wait_servers(
        &mut self,
        expected: u32,
        deadline: Deadline,
    ) -> Result<Members, ClientError> {
        let mut pause = Duration::from_millis(2);
        loop {
            let members = self.members(deadline)?;
            if members.servers.len() >= expected as usize {
                return Ok(members);
            }
            if deadline.left() <= pause {
                let missing = missing_servers(&members, expected);
                return Err(ClientError::Deadline {
                    op: "wait for the servers",
                    missing,
                });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    /// Takes the newest membership that arrived in a notice since the last call. `None` if none has arrived. Does
    /// not block.
    pub fn take_members(&mut self) -> Option<Members> {
        self.take_notices();
        self.members.take()
    }

    /// Reports to the coordinator that this process cannot go on, with a reason; the coordinator notifies the
    /// others.
    ///
    /// # Errors
    /// The connection's failure.
    pub fn failed(&mut self, reason: &str, deadline: Deadline) -> Result<(), ClientError> {
        let reason = Refusal::new(RefusalCode::PeerFailed, [0; 4])
            .with_text(reason)
            .text;
        self.done("failed", &CoordinatorRequest::Failed { reason }, deadline)
    }

    /// Announces to the coordinator that the connection ends on purpose, so that it does not count the worker as
    /// lost. The connection closes afterwards.
    ///
    /// # Errors
    /// The connection's failure.
    pub fn goodbye(mut self, deadline: Deadline) -> Result<(), ClientError> {
        self.done("goodbye", &CoordinatorRequest::Goodbye, deadline)
    }

    fn call(
        &mut self,
        op: &'static str,
        request: &CoordinatorRequest,
        deadline: Deadline,
    ) -> Result<CoordinatorAnswer, ClientError> {
        let id = self.start(op, request, deadline)?;
        loop {
            let end = Deadline::after(COORDINATOR_LOOK.min(deadline.left()));
            if let Some(answer) = self.answer(id, end)? {
                return Ok(answer);
            }
            let over = match (interrupt::requested(), deadline.passed()) {
                (true, _) => ClientError::Interrupted { op },
                (false, true) => {
                    let missing = self.no_answer();
                    ClientError::Deadline { op, missing }
                }
                (false, false) => continue,
            };
            self.conn.forget(id);
            return Err(over);
        }
    }

    /// Sends a request to the coordinator without waiting for the answer, or keeps it until a lost coordinator is back.
    /// Returns its number, which [`Self::answer`] takes. A request that is invalid fails with `ClientError::Argument`
    /// and is not sent.
    fn start(
        &mut self,
        op: &'static str,
        request: &CoordinatorRequest,
        deadline: Deadline,
    ) -> Result<u64, ClientError> {
        // An invalid request is the caller's error, not a failure of the connection.
        request.validate().map_err(|wrong| ClientError::Argument {
            op,
            table: table_of(request).to_owned(),
            what: wrong.to_string(),
        })?;
        let started = self.conn.start(request, deadline);
        started.map_err(|error| match error {
            ConnError::TimedOut { .. } => {
                let missing = self.no_answer();
                ClientError::Deadline { op, missing }
            }
            error => self.failure(error),
        })
    }

    /// Waits up to `end` for the answer of started request `id`, and takes the answer. `None` if it has not
    /// arrived; the call may then be repeated. Processes the notices that arrived meanwhile.
    fn answer(&mut self, id: u64, end: Deadline) -> Result<Option<CoordinatorAnswer>, ClientError> {
        let answer = self.conn.poll(id, end);
        self.outcome(answer)
    }

    /// Turns the result of a poll of the connection into that of a call, and processes the notices that arrived. If
    /// the coordinator is absent after it announced the end of the job, the announced reason is the error.
    fn outcome<T>(
        &mut self,
        looked: Result<Option<T>, ConnError>,
    ) -> Result<Option<T>, ClientError> {
        self.take_notices();
        match (looked, &self.failed) {
            (Ok(None), Some(refusal)) if self.conn.is_absent() => Err(refusal.clone().into()),
            (looked, _) => looked.map_err(|error| self.failure(error)),
        }
    }

    fn no_answer(&self) -> String {
        let silent = format!("the coordinator at {} has not answered", self.address);
        match (self.restart.ended.values().next(), self.conn.absence()) {
            (_, Some(absence)) => format!("{silent}; {absence}"),
            (Some(end), None) => format!("{silent}: {end}, and its successor has not joined"),
            (None, None) => silent,
        }
    }

    /// Converts an error of the connection into the client's error. A reason that an earlier notice gave (restart of
    /// a server, end of the job) takes precedence.
    fn failure(&mut self, error: ConnError) -> ClientError {
        match error {
            // The notice is on the connection before the refusals that follow from it.
            ConnError::Refused(refusal) if refusal.code == RefusalCode::WrongIncarnation => {
                self.check_restart().err().unwrap_or(refusal.into())
            }
            // A notice that the job has failed says more than the end of the cluster, which follows
            // from it.
            ConnError::Refused(refusal) => match self.failed.clone() {
                Some(failed)
                    if refusal.code == RefusalCode::ShuttingDown
                        && !mutants::on(Mutant::RefusalBeforeNotice) =>
                {
                    failed.into()
                }
                _ => refusal.into(),
            },
            // A reason that came before the end says more than the end.
            error => match self.failed.clone() {
                Some(refusal) => refusal.into(),
                None => control(&self.address, Box::new(error).into()),
            },
        }
    }

    fn done(
        &mut self,
        op: &'static str,
        request: &CoordinatorRequest,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        match self.call(op, request, deadline)? {
            CoordinatorAnswer::Done => Ok(()),
            _ => Err(unexpected(op)),
        }
    }

    fn perform(
        &mut self,
        call: &CoordinatorCall,
        deadline: Deadline,
    ) -> Result<CoordinatorReply, ClientError> {
        let op = call.op();
        let request = request_of(call, deadline)?;
        let id = self.start(op, &request, deadline)?;
        loop {
            let wait = COORDINATOR_LOOK.min(deadline.left());
            if let Some(reply) = self.poll(op, id, wait)? {
                return Ok(reply);
            }
            if interrupt::requested() {
                self.conn.forget(id);
                return Err(ClientError::Interrupted { op });
            }
            if deadline.passed() {
                let missing = self.abandon(op, id);
                return Err(ClientError::Deadline { op, missing });
            }
        }
    }

    /// Appends the joined servers and the number of live workers to the text `otherwise` of a deadline error;
    /// the creation of a table waits for both. Returns the text unchanged if the coordinator is absent or does
    /// not answer within a second.
    fn missing_workers(&mut self, otherwise: String) -> String {
        if self.conn.is_absent() {
            return otherwise;
        }
        let deadline = Deadline::after(WHO);
        let Ok(members) = self.members(deadline) else {
            return otherwise;
        };
        let joined = members.servers.iter().map(|server| server.id.to_string());
        let joined: Vec<String> = joined.collect();
        let workers = members.workers.iter();
        let live = workers
            .filter(|worker| worker.state == WorkerState::Live)
            .count();
        format!(
            "{otherwise}; servers that have joined: [{}], workers: {live}",
            joined.join(", ")
        )
    }

    /// Fails with `ClientError::ServerRestarted` if a server was restarted without its memory and the client has
    /// not rejoined since. Records that a call has failed with that restart.
    fn check_restart(&mut self) -> Result<(), ClientError> {
        let Some(ServerRestart { end, successor }) = &self.restart.last else {
            return Ok(());
        };
        self.restart.reported = true;
        Err(ClientError::ServerRestarted {
            server: end.server,
            before: end.incarnation,
            after: *successor,
            end: end.to_string(),
        })
    }

    fn take_notices(&mut self) {
        while let Some(notice) = self.conn.take_notice() {
            self.take(notice);
        }
    }

    fn take(&mut self, notice: Notice) {
        match notice {
            Notice::MembersChanged(members) => self.members = Some(members),
            Notice::PeerFailed(refusal) => {
                self.failed.get_or_insert(refusal);
            }
            Notice::Shutdown { reason } => {
                let refusal = Refusal::new(RefusalCode::ShuttingDown, [0; 4]);
                self.failed.get_or_insert(refusal.with_text(reason));
            }
            // Servers send this notice to their sessions.
            Notice::TableReleased { .. } => {}
            Notice::StopJob { reason } => {
                self.stop.get_or_insert(reason);
            }
            Notice::ServerEnded(end) => {
                // The second notice of an end says how.
                if self.restart.ended.insert(end.server, end.clone()).is_none() {
                    tracing::warn!(%end, "a server has ended; its successor is awaited");
                }
            }
            Notice::ServerRestarted(restart) => {
                self.restart.ended.remove(&restart.end.server);
                self.restart.last = Some(restart);
            }
            Notice::ServerResumed { restart, members } => {
                self.restart.ended.remove(&restart.end.server);
                self.restart.resumed += 1;
                self.restart.members = members;
            }
        }
    }
}

/// Milliseconds until the coordinator ends a barrier: the time to `deadline` less `HEAD_START` (200 ms), but at
/// least half of that time.
fn time_of_barrier(deadline: Deadline) -> u64 {
    let left = deadline.left();
    let wait = left.saturating_sub(HEAD_START.min(left / 2));
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

/// Converts a client's call into the coordinator's request; `deadline` sets the time limit of barriers. Directories
/// of models become absolute paths.
fn request_of(
    call: &CoordinatorCall,
    deadline: Deadline,
) -> Result<CoordinatorRequest, ClientError> {
    Ok(match call {
        CoordinatorCall::CreateTable(spec) => CoordinatorRequest::CreateTable(spec.clone()),
        CoordinatorCall::OpenTable { name } => CoordinatorRequest::OpenTable { name: name.clone() },
        CoordinatorCall::ReleaseTable(id) => CoordinatorRequest::ReleaseTable { id: *id },
        CoordinatorCall::Barrier { name, count } => CoordinatorRequest::Barrier {
            name: name.clone(),
            count: *count,
            timeout_ms: time_of_barrier(deadline),
        },
        CoordinatorCall::MemberBarrier(barrier) => {
            CoordinatorRequest::MemberBarrier(MemberBarrier {
                timeout_ms: time_of_barrier(deadline),
                ..barrier.clone()
            })
        }
        CoordinatorCall::Save { dir, clocks } => CoordinatorRequest::Save {
            dir: absolute_directory("save", dir)?,
            clocks: clocks.clone(),
        },
        CoordinatorCall::Load { dir } => CoordinatorRequest::Load {
            dir: absolute_directory("load", dir)?,
        },
        CoordinatorCall::LoadFunction { name, module } => CoordinatorRequest::LoadFunction {
            name: name.clone(),
            module: ModuleBytes(module.clone()),
        },
        CoordinatorCall::Tasks(request) => CoordinatorRequest::Tasks((**request).clone()),
    })
}

impl CoordinatorLink for NetCoordinatorLink {
    blocking_calls!();

    fn begin(
        &mut self,
        call: &CoordinatorCall,
        deadline: Deadline,
    ) -> Result<BegunCall, ClientError> {
        let request = request_of(call, deadline)?;
        self.start(call.op(), &request, deadline)
            .map(BegunCall::UnderWay)
    }

    fn poll(
        &mut self,
        op: &'static str,
        number: u64,
        wait: Duration,
    ) -> Result<Option<CoordinatorReply>, ClientError> {
        let Some(answer) = self.answer(number, Deadline::after(wait))? else {
            return Ok(None);
        };
        Ok(Some(match answer {
            CoordinatorAnswer::Done => CoordinatorReply::Done,
            CoordinatorAnswer::Table(table) => CoordinatorReply::Table(Box::new(table)),
            CoordinatorAnswer::Saved {
                tables: _,
                rows,
                bytes,
            } => CoordinatorReply::Saved(Saved { rows, bytes }),
            CoordinatorAnswer::Loaded {
                tables,
                rows,
                clocks,
            } => CoordinatorReply::Loaded(Loaded {
                tables,
                rows,
                clocks,
            }),
            CoordinatorAnswer::Tasks(answer) => CoordinatorReply::Tasks(answer),
            CoordinatorAnswer::Arrivals(arrivals) => CoordinatorReply::Arrivals(arrivals),
            _ => return Err(unexpected(op)),
        }))
    }

    fn forget(&mut self, number: u64) {
        self.conn.forget(number);
    }

    fn abandon(&mut self, op: &'static str, number: u64) -> String {
        self.conn.forget(number);
        let missing = self.no_answer();
        // Tables wait for servers.
        match op {
            "create table" | "open table" => self.missing_workers(missing),
            _ => missing,
        }
    }

    fn check(&mut self) -> Result<(), ClientError> {
        self.check_within(Duration::from_millis(1))
    }

    fn check_within(&mut self, timeout: Duration) -> Result<(), ClientError> {
        self.check_restart()?;
        let resumed = self.restart.resumed;
        let until = Deadline::after(timeout);
        loop {
            let late = match self.conn.wait_notice(until) {
                Ok(notice) => {
                    self.take(notice);
                    false
                }
                Err(ConnError::TimedOut { .. }) => true,
                Err(error) => return Err(self.failure(error)),
            };
            self.take_notices();
            if let Some(refusal) = &self.failed {
                return Err(refusal.clone().into());
            }
            self.check_restart()?;
            if late || until.passed() || self.restart.resumed != resumed {
                return Ok(());
            }
        }
    }

    fn stop_asked(&mut self) -> Result<Option<String>, ClientError> {
        if self.stop_look.passed() {
            // A look without any time does not read the socket.
            self.check()?;
            self.stop_look = Deadline::after(STOP_LOOK);
        }
        Ok(self.stop.clone())
    }

    fn has_restarted(&self) -> bool {
        self.restart.reported
    }

    fn awaits_successor(&self, server: ServerId) -> bool {
        self.restart.ended.contains_key(&server)
    }

    fn resumed(&self, seen: u64) -> Option<(u64, Members)> {
        let Restart {
            resumed, members, ..
        } = &self.restart;
        (*resumed > seen).then(|| (*resumed, members.clone()))
    }

    fn resumes(&self) -> u64 {
        self.restart.resumed
    }

    fn rejoin(&mut self, deadline: Deadline) -> Result<Joined, ClientError> {
        self.restart.last = None;
        // Sessions are opened with the members of the answer.
        self.restart.resumed = 0;
        match self.call("rejoin", &CoordinatorRequest::Rejoin, deadline)? {
            CoordinatorAnswer::Joined(joined) => {
                // A restart after this one: its notice is behind the answer or before it.
                self.check_restart().map(|()| joined)
            }
            _ => Err(unexpected("rejoin")),
        }
    }

    fn rejoined(&mut self) {
        self.restart.reported = self.restart.last.is_some();
    }

    fn slow(&mut self, workers: &[SlowMember], deadline: Deadline) -> Result<(), ClientError> {
        let workers = workers.to_vec();
        self.done(
            "slow workers",
            &CoordinatorRequest::Slow { workers },
            deadline,
        )
    }

    fn leaving(&mut self, clocks: &[DomainClock], deadline: Deadline) -> Result<(), ClientError> {
        let clocks = clocks.to_vec();
        self.done("finish", &CoordinatorRequest::Leaving { clocks }, deadline)
    }

    fn finished(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        self.done("finished", &CoordinatorRequest::Finished, deadline)
    }

    fn failed(&mut self, reason: &str, deadline: Deadline) -> Result<(), ClientError> {
        let reason = shortened(reason);
        self.done("failed", &CoordinatorRequest::Failed { reason }, deadline)
    }
}

/// Converts the directory of a model into an absolute path, as servers open it. A relative path is relative to the
/// caller's working directory, which is not that of the servers. `op` names the call in errors.
fn absolute_directory(op: &'static str, dir: &str) -> Result<String, ClientError> {
    if mutants::on(Mutant::RelativeModelDirectory) {
        return Ok(dir.to_owned());
    }
    let wrong = |what| ClientError::Argument {
        op,
        table: "-".into(),
        what,
    };
    let absolute = std::path::absolute(dir).map_err(|error| {
        wrong(format!(
            "directory \"{dir}\": {error}; give an absolute path"
        ))
    })?;
    absolute.into_os_string().into_string().map_err(|path| {
        wrong(format!(
            "{path:?} is not UTF-8; give an absolute path that is"
        ))
    })
}

/// Longest prefix of a text that fits in a message, at most `TEXT_BYTES_MAX` bytes, cut at a character boundary.
fn shortened(text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    text.get(..end).unwrap_or_default().to_owned()
}

fn missing_servers(members: &Members, expected: u32) -> String {
    let has_joined = |number: &u32| members.servers.iter().any(|server| server.id.0 == *number);
    let absent: Vec<String> = (0..expected)
        .filter(|n| !has_joined(n))
        .take(16)
        .map(|n| n.to_string())
        .collect();
    format!(
        "{} of {expected} servers have joined; missing among others: {}; look at their output",
        members.servers.len(),
        absent.join(", ")
    )
}

/// Name of the table that a request creates or opens, for error texts; "-" for other requests.
fn table_of(request: &CoordinatorRequest) -> &str {
    match request {
        CoordinatorRequest::CreateTable(spec) => &spec.name,
        CoordinatorRequest::OpenTable { name } => name,
        _ => "-",
    }
}

fn control(address: &str, source: ControlFailure) -> ClientError {
    let peer = format!("coordinator at {address}");
    ClientError::Control { peer, source }
}

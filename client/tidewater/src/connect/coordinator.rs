//! The control connection of a worker to its coordinator. It is not re-established: a lost coordinator
//! ends the job.

use std::net::TcpStream;
use std::time::Duration;

use tidewater_control::conn::{ConnError, ControlConn};
use tidewater_control::dial::{self, Claims, DialError};
use tidewater_protocol::ids::{ClusterId, Incarnation, TableId};
use tidewater_protocol::limits::TEXT_BYTES_MAX;
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::table::TableSpec;
use tidewater_protocol::wire::control::{
    CoordinatorAnswer, CoordinatorRequest, DomainClock, Endpoints, Join, Joined, Members,
    Message as _, ModuleBytes, Notice, TableInfo, WorkerState,
};
use tidewater_protocol::wire::handshake::{HandshakeError, JobToken};
use tidewater_protocol::wire::hello::{Ids, NAMESPACE_DEFAULT, RANK_ANY, Role};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::{Arc, AtomicBool, Ordering};
use tidewater_topology::hostinfo;

use crate::error::ClientError;
use crate::interrupt;
use crate::link::{CoordinatorLink, Loaded};

/// Time limit of the request, after a deadline, for the servers that have joined.
const WHO: Duration = Duration::from_secs(1);
/// Time by which the coordinator ends a barrier before the caller's deadline. Its refusal, which names
/// the missing workers, then arrives in time.
const HEAD_START: Duration = Duration::from_millis(200);

/// The job to join, and the rank and size to claim.
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
}

impl JoinConfig {
    /// Settings to join the namespace "default", with a free rank, in a job of unknown size.
    pub fn new(coordinator: impl Into<String>, token: JobToken) -> Self {
        let (coordinator, namespace) = (coordinator.into(), NAMESPACE_DEFAULT.to_owned());
        Self {
            coordinator,
            token,
            namespace,
            rank: None,
            workers: 0,
        }
    }
}

/// A worker's connection to the coordinator, used by one thread.
#[derive(Debug)]
pub struct NetCoordinatorLink {
    address: String,
    conn: ControlConn<TcpStream>,
    /// Reason for the end of the job, once a notice has given it.
    failed: Option<Refusal>,
    members: Option<Members>,
    /// Ends the wait for an answer when it is set.
    alarm: Option<Arc<AtomicBool>>,
}

impl NetCoordinatorLink {
    /// Joins the job; waits until `deadline` for a coordinator that is starting.
    ///
    /// # Errors
    /// [`ClientError::Environment`] when descriptors have run out or `/proc` is not mounted;
    /// [`ClientError::Control`] when the coordinator is unreachable or the handshake fails;
    /// [`ClientError::Refused`] with the coordinator's reason, also for one given in the handshake.
    pub fn join(config: &JoinConfig, deadline: Deadline) -> Result<(Self, Joined), ClientError> {
        let host_id = hostinfo::host_id().map_err(|e| ClientError::Environment(e.to_string()))?;
        let address = config.coordinator.clone();
        let claims = Claims {
            ids: Ids::default(),
            namespace: config.namespace.clone(),
            role: Role::Worker,
            rank: config.rank.unwrap_or(RANK_ANY),
        };
        let conn =
            dial::control(&address, &config.token, &claims, deadline).map_err(
                |error| match error {
                    DialError::Handshake {
                        source:
                            ConnError::Refused(refusal)
                            | ConnError::Handshake(HandshakeError::RefusedByPeer(refusal)),
                        ..
                    } => refusal.into(),
                    other => control(&address, &other),
                },
            )?;
        let mut link = Self {
            address,
            conn,
            failed: None,
            members: None,
            alarm: None,
        };
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
        };
        match link.call("join", &CoordinatorRequest::Join(join), deadline)? {
            CoordinatorAnswer::Joined(joined) => Ok((link, joined)),
            _ => Err(link.nonsense("join")),
        }
    }

    /// Identifier of the cluster.
    pub const fn cluster(&self) -> ClusterId {
        self.conn.welcome().ids.cluster
    }

    /// Fetches the current membership.
    ///
    /// # Errors
    /// The connection's failure.
    pub fn members(&mut self, deadline: Deadline) -> Result<Members, ClientError> {
        match self.call("members", &CoordinatorRequest::Members, deadline)? {
            CoordinatorAnswer::Members(members) => Ok(members),
            _ => Err(self.nonsense("members")),
        }
    }

    /// Waits until every server has joined; returns the membership then.
    ///
    /// # Errors
    /// [`ClientError::Deadline`] with the numbers of the missing servers; the connection's failure.
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

    /// The newest membership that arrived in a notice.
    pub fn take_members(&mut self) -> Option<Members> {
        self.take_notices();
        self.members.take()
    }

    /// Reports that this process cannot go on; the coordinator notifies the others.
    ///
    /// # Errors
    /// The connection's failure.
    pub fn failed(&mut self, reason: &str, deadline: Deadline) -> Result<(), ClientError> {
        let reason = Refusal::new(RefusalCode::PeerFailed, [0; 4])
            .with_text(reason)
            .text;
        self.done("failed", &CoordinatorRequest::Failed { reason }, deadline)
    }

    /// Announces that the end of the connection, which follows, is no failure.
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
        // An invalid request is the caller's error, not a failure of the connection.
        request.validate().map_err(|wrong| ClientError::Argument {
            op,
            table: table_of(request).to_owned(),
            what: wrong.to_string(),
        })?;
        let mut interrupted = false;
        let alarm = self.alarm.clone();
        // SYNC: thread-lost, with the store in `WorkerState::lose`.
        let is_raised = || alarm.as_ref().is_some_and(|a| a.load(Ordering::Acquire));
        // A request that begins after the alarm reports it.
        let was_raised = is_raised();
        let answer = self.conn.call_while(
            request,
            || deadline.left(),
            || {
                interrupted = interrupt::requested() || (is_raised() && !was_raised);
                !interrupted
            },
        );
        self.take_notices();
        if interrupted {
            return Err(ClientError::Interrupted { op });
        }
        match answer {
            Ok(answer) => Ok(answer),
            // A notice that the job has failed says more than the end of the cluster, which follows
            // from it.
            Err(ConnError::Refused(refusal)) => Err(match self.failed.clone() {
                Some(failed)
                    if refusal.code == RefusalCode::ShuttingDown
                        && !mutants::on(Mutant::RefusalBeforeNotice) =>
                {
                    failed.into()
                }
                _ => refusal.into(),
            }),
            Err(ConnError::TimedOut { .. }) => {
                let missing = format!("the coordinator at {} has not answered", self.address);
                Err(ClientError::Deadline { op, missing })
            }
            // A reason that came before the end says more than the end.
            Err(error) => Err(match self.failed.clone() {
                Some(refusal) => refusal.into(),
                None => control(&self.address, &error),
            }),
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
            _ => Err(self.nonsense(op)),
        }
    }

    fn table(
        &mut self,
        op: &'static str,
        request: &CoordinatorRequest,
        deadline: Deadline,
    ) -> Result<TableInfo, ClientError> {
        match self.call(op, request, deadline) {
            Ok(CoordinatorAnswer::Table(table)) => Ok(table),
            Ok(_) => Err(self.nonsense(op)),
            Err(ClientError::Deadline { op, missing }) => Err(ClientError::Deadline {
                op,
                missing: self.who_is_missing(missing),
            }),
            Err(error) => Err(error),
        }
    }

    /// Adds the joined servers to a deadline error: creating a table waits for servers.
    fn who_is_missing(&mut self, otherwise: String) -> String {
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
        }
    }

    fn nonsense(&self, op: &str) -> ClientError {
        let why = format!("it answers {op} with something else; is it of another release?");
        ClientError::Control {
            peer: self.name(),
            why,
        }
    }

    fn name(&self) -> String {
        format!("coordinator at {}", self.address)
    }
}

impl CoordinatorLink for NetCoordinatorLink {
    fn create_table(
        &mut self,
        spec: &TableSpec,
        deadline: Deadline,
    ) -> Result<TableInfo, ClientError> {
        let request = CoordinatorRequest::CreateTable(spec.clone());
        self.table("create table", &request, deadline)
    }

    fn open_table(&mut self, name: &str, deadline: Deadline) -> Result<TableInfo, ClientError> {
        let request = CoordinatorRequest::OpenTable {
            name: name.to_owned(),
        };
        self.table("open table", &request, deadline)
    }

    fn release_table(&mut self, id: TableId, deadline: Deadline) -> Result<(), ClientError> {
        self.done(
            "release table",
            &CoordinatorRequest::ReleaseTable { id },
            deadline,
        )
    }

    fn barrier(&mut self, name: &str, count: u32, deadline: Deadline) -> Result<(), ClientError> {
        let left = deadline.left();
        let wait = left.saturating_sub(HEAD_START.min(left / 2));
        let timeout_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let name = name.to_owned();
        let request = CoordinatorRequest::Barrier {
            name,
            count,
            timeout_ms,
        };
        self.done("barrier", &request, deadline)
    }

    fn save(
        &mut self,
        dir: &str,
        clocks: &[DomainClock],
        deadline: Deadline,
    ) -> Result<(u64, u64), ClientError> {
        let request = CoordinatorRequest::Save {
            dir: absolute_directory("save", dir)?,
            clocks: clocks.to_vec(),
        };
        match self.call("save", &request, deadline)? {
            CoordinatorAnswer::Saved {
                tables: _,
                rows,
                bytes,
            } => Ok((rows, bytes)),
            _ => Err(self.nonsense("save")),
        }
    }

    fn load(&mut self, dir: &str, deadline: Deadline) -> Result<Loaded, ClientError> {
        let request = CoordinatorRequest::Load {
            dir: absolute_directory("load", dir)?,
        };
        match self.call("load", &request, deadline)? {
            CoordinatorAnswer::Loaded {
                tables,
                rows,
                clocks,
            } => Ok(Loaded {
                tables,
                rows,
                clocks,
            }),
            _ => Err(self.nonsense("load")),
        }
    }

    fn load_function(
        &mut self,
        name: &str,
        module: &[u8],
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let request = CoordinatorRequest::LoadFunction {
            name: name.to_owned(),
            module: ModuleBytes(module.to_vec()),
        };
        self.done("load function", &request, deadline)
    }

    fn check(&mut self) -> Result<(), ClientError> {
        self.check_within(Duration::from_millis(1))
    }

    fn check_within(&mut self, patience: Duration) -> Result<(), ClientError> {
        let until = Deadline::after(patience);
        loop {
            let late = match self.conn.wait_notice(|| until.left()) {
                Ok(notice) => {
                    self.take(notice);
                    false
                }
                Err(ConnError::TimedOut { .. }) => true,
                Err(error) => {
                    // A reason that came before the end says more than the end.
                    let reason = self.failed.clone().map(ClientError::from);
                    return Err(reason.unwrap_or_else(|| control(&self.address, &error)));
                }
            };
            self.take_notices();
            if let Some(refusal) = &self.failed {
                return Err(refusal.clone().into());
            }
            if late || until.passed() {
                return Ok(());
            }
        }
    }

    fn end_waits_on(&mut self, alarm: Arc<AtomicBool>) {
        self.alarm = Some(alarm);
    }

    fn finished(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        self.done("finished", &CoordinatorRequest::Finished, deadline)
    }

    fn failed(&mut self, reason: &str, deadline: Deadline) -> Result<(), ClientError> {
        let reason = shortened(reason);
        self.done("failed", &CoordinatorRequest::Failed { reason }, deadline)
    }
}

/// Makes the directory of a model absolute, as servers open it. A relative path is relative to the
/// caller's working directory, which is not that of the servers.
fn absolute_directory(op: &'static str, dir: &str) -> Result<String, ClientError> {
    if mutants::on(Mutant::RelativeModelDirectory) {
        return Ok(dir.to_owned());
    }
    let wrong = |what| ClientError::Argument {
        op,
        table: "-".into(),
        what,
    };
    let whole = std::path::absolute(dir).map_err(|error| {
        wrong(format!(
            "directory \"{dir}\": {error}; give an absolute path"
        ))
    })?;
    whole.into_os_string().into_string().map_err(|path| {
        wrong(format!(
            "{path:?} is not UTF-8; give an absolute path that is"
        ))
    })
}

/// The longest prefix of a text that a message may hold.
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

/// Name of the table that a request is about, for errors.
fn table_of(request: &CoordinatorRequest) -> &str {
    match request {
        CoordinatorRequest::CreateTable(spec) => &spec.name,
        CoordinatorRequest::OpenTable { name } => name,
        _ => "-",
    }
}

fn control(address: &str, why: &dyn std::fmt::Display) -> ClientError {
    let peer = format!("coordinator at {address}");
    ClientError::Control {
        peer,
        why: why.to_string(),
    }
}

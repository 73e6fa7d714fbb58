// long: a session from its handshake to its recovery, with an example.

//! The control connection of one client thread to one server, and the session on it.
//!
//! Connections may be cut at any byte. Every request can be repeated until the caller's deadline: a
//! session is resumed by its nonce over a new control connection, and a lane is recovered as often as
//! needed.
//!
//! | module | contents |
//! |---|---|
//! | `negotiate` | selection of a session's transport |
//! | `shm` | sessions on one host |
//! | `remote` | sessions between hosts, over tcp and verbs |
//! | `verbs` | the RDMA side; `no_verbs` where it is not built in |

mod negotiate;
mod remote;
mod shm;
#[cfg(not(any(feature = "verbs", feature = "verbs-dlopen")))]
#[path = "no_verbs.rs"]
mod verbs;
#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
mod verbs;

use std::time::Duration;

use tidewater_bookkeeping::paths::Paths;
use tidewater_control::conn::{ConnError, ControlConn};
use tidewater_control::set_up::{ATTEMPT, Attempt as AttemptTime, Pauses};
use tidewater_lanes::fabric::{RemoteAddr, TransportKind};
use tidewater_lanes::shm::pass::PassError;
use tidewater_lanes::wake::{Arms, ParkedFlags, Reactor, Waker};
use tidewater_protocol::ids::{ApplierId, DomainId, SessionId, TableId, WorkerThread};
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::layout::session::TICKET_WORD_BYTES;
use tidewater_protocol::wire::control::{
    Attach, Attached, LaneGrant, Members, Recovered, Remote, ServerAnswer, ServerMember,
    ServerRequest, TableDescriptor, Transport, WorkerClock,
};
use tidewater_protocol::wire::handshake::HandshakeError;
use tidewater_protocol::wire::hello::{Features, Hello, Ids, Purpose, RANDOM_BYTES, Role};
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::{Buffer, Region};
use tidewater_runtime::sync::Arc;

use self::verbs::VerbsSide;
use super::ConnectConfig;
use super::stream::Stream;
use crate::error::{Cause, ClientError};
use crate::link::{OpenLane, ServerLink};

/// Time limit of an attempt to resume a session that a periodic check makes, without a call that needs it.
const CHECK: Duration = Duration::from_secs(1);

/// Failure of one attempt of a request to a server: it decides whether the request is repeated.
#[derive(Debug)]
enum Failure {
    /// The connection failed: the next attempt may succeed.
    Again(Cause),
    /// No process listens there. Of a session's server only the coordinator knows where it may be now.
    Absent(Cause),
    /// This transport is unavailable; another one may work.
    Unfit(Cause),
    /// A repetition would fail in the same way.
    Final(ClientError),
}

type Attempt<T> = Result<T, Failure>;
type Control = ControlConn<Stream>;

impl From<ClientError> for Failure {
    fn from(e: ClientError) -> Self {
        Self::Final(e)
    }
}

/// Link of one client thread to one server: the control connection and the session on it.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// # use tidewater::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
/// # use tidewater::link::ServerLink as _;
/// # use tidewater_lanes::wake::OsParker;
/// # use tidewater_runtime::clock::Deadline;
/// # use tidewater_service::embedded::{Cluster, ClusterConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cluster = Cluster::start(&ClusterConfig::default())?;
/// # let at = cluster.environment();
/// # let deadline = Deadline::after(Duration::from_secs(30));
/// # let join = JoinConfig::new(&at.coordinator, at.token.clone());
/// # let (mut coordinator, _) = NetCoordinatorLink::join(&join, deadline)?;
/// # let members = coordinator.wait_servers(at.servers, deadline)?;
/// # let mut config = ConnectConfig::new(at.token.clone(), coordinator.cluster(), 0);
/// # config.epoch = members.epoch;
/// # let mut parker = OsParker::new(Duration::ZERO)?;
/// let server = &members.servers[0];
/// let (link, lanes) = NetServerLink::open(server, &config, &mut parker, deadline)?;
/// assert_eq!((link.ring_bytes(), lanes.len()), (config.ring_bytes, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct NetServerLink {
    name: String,
    server: ServerMember,
    config: ConnectConfig,
    transport: TransportKind,
    /// Reason for the choice of this transport, for operators.
    reason: String,
    /// Control connection; `None` while it is cut.
    conn: Option<Control>,
    session: SessionId,
    /// Whether the server is the successor of the one that made the session, and the session is not reattached
    /// yet.
    succeeds: bool,
    /// Address of the push counter, by applier; `None` if pushes are not counted there.
    counters: Vec<Option<RemoteAddr>>,
    watch: Reactor,
    waker: Waker,
    arms: Arms,
    parked_flags: ParkedFlags,
    /// Of each lane over shared memory: the parked flag by which its server lane decides whether to
    /// wake.
    parked_flag: Vec<Option<(Arc<Region>, usize)>>,
    /// On verbs, the resources that the lanes share.
    verbs: Option<Arc<VerbsSide>>,
    /// On verbs, the ports of this host and what is known of their paths to the server.
    paths: Paths,
    /// On verbs, whether a lane of the session has proved that its path carries packets.
    path_proved: bool,
}

impl NetServerLink {
    /// Sets the link's transport, and builds its name from the server's number and address.
    fn become_of(&mut self, transport: TransportKind) {
        self.transport = transport;
        let Self { server, .. } = self;
        let address = match transport {
            TransportKind::Shm => &server.host,
            _ => &server.endpoints.tcp,
        };
        self.name = format!("{} ({address})", server.id);
    }

    /// Stores the session number and the addresses of the push counters from the server's answer to `Attach`.
    fn attached(&mut self, attached: &Attached) {
        self.session = attached.session;
        let counter = |lane: &LaneGrant| {
            let Remote { key, address, len } = lane.ticket;
            (len >= TICKET_WORD_BYTES).then_some(RemoteAddr { key, addr: address })
        };
        self.counters = attached.lanes.iter().map(counter).collect();
    }

    fn attach_by(&self, transport: Transport) -> Attach {
        let (ports, failed_paths) = match transport {
            Transport::Verbs => (self.paths.offers(), self.paths.failed()),
            _ => (Vec::new(), Vec::new()),
        };
        Attach {
            transport,
            ring_bytes: u32::try_from(self.config.ring_bytes).unwrap_or(u32::MAX),
            thread: self.config.thread,
            workers: self.config.workers,
            reason: self.reason.clone(),
            ports,
            failed_paths,
        }
    }

    /// Sends `Attach` to the server and returns its answer. Fails unless the granted lanes are in the order of the
    /// appliers.
    fn attach(
        &self,
        conn: &mut Control,
        transport: Transport,
        deadline: Deadline,
    ) -> Attempt<Attached> {
        let request = ServerRequest::Attach(self.attach_by(transport));
        match self.call(conn, &request, deadline)? {
            ServerAnswer::Attached(attached) => {
                let in_order = (0..)
                    .map(ApplierId)
                    .zip(&attached.lanes)
                    .all(|(a, lane)| lane.applier == a);
                if attached.lanes.is_empty() || !in_order {
                    return Err(self.wrong_answer("lanes that are not its appliers'"));
                }
                Ok(attached)
            }
            _ => Err(self.wrong_answer("another answer than to Attach")),
        }
    }

    /// Opens a control or lane connection to the server, over a unix socket or TCP, and authenticates both ends.
    fn connect(&self, purpose: Purpose, deadline: Deadline) -> Attempt<Control> {
        let endpoints = &self.server.endpoints;
        let stream = if self.transport == TransportKind::Shm {
            let stream = Stream::unix(&endpoints.unix, deadline);
            stream.map_err(|e| match &e {
                PassError::Os { source, .. } => not_connected(source.kind(), e.into()),
                _ => Failure::Again(e.into()),
            })?
        } else {
            let stream = Stream::tcp(&endpoints.tcp, deadline);
            Stream::Tcp(stream.map_err(|source| {
                let kind = source.kind();
                let address = endpoints.tcp.clone();
                not_connected(kind, ConnectError { address, source }.into())
            })?)
        };
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random).map_err(|e| ClientError::Environment(e.into()))?;
        let hello = Hello {
            features: Features::default(),
            ids: Ids {
                cluster: self.config.cluster,
                epoch: self.config.epoch,
                incarnation: self.server.incarnation,
            },
            namespace: self.config.namespace.clone(),
            role: match self.config.observer {
                true => Role::Observer,
                false => Role::Worker,
            },
            rank: self.config.rank,
            purpose,
            random,
        };
        let opened = ControlConn::open(stream, &self.config.token, hello, || deadline.left());
        opened.map_err(|e| self.failure(e))
    }

    fn call(
        &self,
        conn: &mut Control,
        request: &ServerRequest,
        deadline: Deadline,
    ) -> Attempt<ServerAnswer> {
        conn.call(request, || deadline.left())
            .map_err(|e| self.failure(e))
    }

    /// Sends a request over the session's control connection and waits for the answer; without a connection it
    /// first resumes the session over a new one. Each progress notice of the server extends the time of the
    /// attempt, at most up to `deadline`.
    fn ask_patiently(
        &mut self,
        request: &ServerRequest,
        deadline: Deadline,
    ) -> Attempt<ServerAnswer> {
        let time = AttemptTime::new(deadline);
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => self.resume(Deadline::after(time.left()))?,
        };
        let answer = conn.call_with_news(
            request,
            || time.left(),
            |news| {
                tracing::debug!(server = self.name, ?news, "lanes are not made yet");
                time.progressed();
            },
        );
        let answer = answer.map_err(|e| self.failure(e));
        self.keep(conn, &answer);
        answer
    }

    /// Keeps the control connection for the next request after an answer or a refusal; drops it after other failures,
    /// so that the next request opens another one.
    fn keep(&mut self, conn: Control, answer: &Attempt<ServerAnswer>) {
        if matches!(answer, Ok(_) | Err(Failure::Final(ClientError::Refused(_)))) {
            self.conn = Some(conn);
        }
    }

    /// Classifies a failure of the control connection: a refusal, a failed handshake or a malformed message is final,
    /// other failures allow another attempt.
    fn failure(&self, e: ConnError) -> Failure {
        match e {
            ConnError::Refused(no) | ConnError::Handshake(HandshakeError::RefusedByPeer(no)) => {
                Failure::Final(ClientError::Refused(no))
            }
            ConnError::Handshake(HandshakeError::Rejected { refusal, .. }) => {
                Failure::Final(ClientError::Refused(refusal))
            }
            ConnError::Handshake(_) | ConnError::Wire(_) => Failure::Final(ClientError::Control {
                peer: self.peer(),
                source: Box::new(e).into(),
            }),
            _ => Failure::Again(e.into()),
        }
    }

    fn peer(&self) -> String {
        format!("server {}", self.name)
    }

    fn wrong_answer(&self, what: &str) -> Failure {
        Failure::Final(ClientError::Protocol {
            server: self.name.clone(),
            what: what.to_owned(),
        })
    }

    /// Sends a request over the session's control connection and waits for the answer. Without a connection it opens
    /// one and resumes the session. One attempt: after `Failure::Again` the server may have carried out the request,
    /// and the caller repeats it.
    fn ask(&mut self, request: &ServerRequest, deadline: Deadline) -> Attempt<ServerAnswer> {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => self.resume(deadline)?,
        };
        let answer = self.call(&mut conn, request, deadline);
        self.keep(conn, &answer);
        answer
    }

    /// Opens a new control connection and resumes the session on it. At the successor of a restarted server it sends
    /// `Reattach` with the transport, otherwise `Resume`.
    fn resume(&mut self, deadline: Deadline) -> Attempt<Control> {
        let mut conn = self.connect(Purpose::Control, deadline)?;
        let session = self.session;
        let request = match self.succeeds {
            true => {
                conn.stream_mut().pass(&self.waker);
                let attach = self.attach_by(match self.transport {
                    TransportKind::Shm => Transport::Shm,
                    TransportKind::Verbs => Transport::Verbs,
                    _ => Transport::Tcp,
                });
                ServerRequest::Reattach { session, attach }
            }
            false => ServerRequest::Resume { session },
        };
        self.call(&mut conn, &request, deadline)
            .map_err(|failure| match failure {
                // The successor's device is not ready yet, or has failed: the session keeps its transport.
                Failure::Final(ClientError::Refused(no))
                    if self.succeeds && no.code == RefusalCode::BadTransport =>
                {
                    Failure::Again(no.into())
                }
                other => other,
            })?;
        self.succeeds = false;
        tracing::debug!(server = self.name, %session, "session resumed");
        Ok(conn)
    }

    fn lost(&self, op: &'static str, source: Cause) -> ClientError {
        ClientError::ServerLost {
            server: self.name.clone(),
            op,
            source,
        }
    }

    /// Repeats `attempt` until it succeeds, fails for good, or `deadline` passes. For requests of an open session:
    /// an unavailable transport is reported as `ClientError::ServerLost`.
    fn retry<T>(
        &mut self,
        op: &'static str,
        deadline: Deadline,
        attempt: impl FnMut(&mut Self, Deadline) -> Attempt<T>,
    ) -> Result<T, ClientError> {
        match self.attempts(op, deadline, attempt) {
            Ok(done) => Ok(done),
            Err(Failure::Final(e)) => Err(e),
            Err(Failure::Again(why) | Failure::Absent(why) | Failure::Unfit(why)) => {
                Err(self.lost(op, why))
            }
        }
    }

    /// Repeats `attempt`, with growing pauses, while it fails with `Failure::Again` or `Failure::Absent`; at
    /// `deadline` the error is `ClientError::ServerLost`. An absent server with an open session is that error at
    /// once. Other failures are returned at once and unchanged. Each attempt gets a deadline at most `ATTEMPT`
    /// ahead.
    fn attempts<T>(
        &mut self,
        op: &'static str,
        deadline: Deadline,
        mut attempt: impl FnMut(&mut Self, Deadline) -> Attempt<T>,
    ) -> Attempt<T> {
        let mut pauses = Pauses::new(deadline);
        loop {
            let why = match attempt(self, deadline.min(Deadline::after(ATTEMPT))) {
                Err(Failure::Absent(why)) if self.session != SessionId(0) => {
                    self.conn = None;
                    return Err(self.lost(op, why).into());
                }
                Err(Failure::Again(why) | Failure::Absent(why)) => why,
                other => return other,
            };
            tracing::debug!(server = self.name, op, %why, "to be tried again");
            self.conn = None;
            let Some(pause) = pauses.after_failure() else {
                return Err(self.lost(op, why).into());
            };
            std::thread::sleep(pause);
        }
    }

    /// Makes one attempt to recover the lane to an applier: the server makes a new lane, and the client connects
    /// to it. The attempt ends at `deadline`; over verbs, progress of the server extends it up to `call`, the
    /// deadline of the caller's call.
    fn try_recover(
        &mut self,
        applier: ApplierId,
        deadline: Deadline,
        call: Deadline,
    ) -> Attempt<OpenLane> {
        let request = ServerRequest::Recover { applier };
        let recovered = match self.ask(&request, deadline)? {
            ServerAnswer::Recovered(recovered) if recovered.lane.applier == applier => recovered,
            _ => return Err(self.wrong_answer("another answer than to Recover")),
        };
        let lane = match (self.transport, &recovered.shm) {
            (TransportKind::Shm, Some(attach)) => self.renewed(usize::from(applier.0), attach)?,
            (TransportKind::Tcp, None) => Box::new(self.tcp_lane(&recovered.lane, deadline)?),
            (TransportKind::Verbs, None) => self.verbs_lane(&recovered.lane, call)?,
            _ => return Err(self.wrong_answer("a lane of another transport")),
        };
        let state = state_of(&recovered);
        let status = Some(status_of(&recovered.lane));
        Ok(OpenLane {
            lane,
            state,
            status,
        })
    }

    /// Ends the session at the server at once; otherwise it ends some time after its connection. The server still
    /// applies complete frames in the rings. Wait for tickets before, to learn of refusals.
    ///
    /// # Errors
    /// The server's refusal, or that it is unreachable before the deadline.
    pub fn detach(mut self, deadline: Deadline) -> Result<(), ClientError> {
        self.end_session(deadline)
    }

    fn try_detach(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        let detached = self.retry("detach", deadline, |link, deadline| {
            link.ask(&ServerRequest::Detach, deadline).map(drop)
        });
        match detached {
            // An earlier attempt detached, and its answer was lost.
            Err(ClientError::Refused(no)) if no.code == RefusalCode::UnknownSession => Ok(()),
            other => other,
        }
    }
}

impl Drop for NetServerLink {
    fn drop(&mut self) {
        for (region, at) in self.parked_flag.drain(..).flatten() {
            self.parked_flags.remove(&region, at);
        }
    }
}

impl ServerLink for NetServerLink {
    fn name(&self) -> &str {
        &self.name
    }

    fn session(&self) -> SessionId {
        self.session
    }

    fn transport(&self) -> TransportKind {
        self.transport
    }

    fn ring_bytes(&self) -> usize {
        self.config.ring_bytes
    }

    fn counter(&self, applier: ApplierId) -> Option<RemoteAddr> {
        *self.counters.get(usize::from(applier.0))?
    }

    fn describe(
        &mut self,
        table: TableId,
        deadline: Deadline,
    ) -> Result<TableDescriptor, ClientError> {
        let request = ServerRequest::Describe { table };
        self.retry("describe", deadline, |link, deadline| {
            match link.ask(&request, deadline)? {
                ServerAnswer::Table(descriptor) if descriptor.id == table => Ok(descriptor),
                _ => Err(link.wrong_answer("another answer than to Describe")),
            }
        })
    }

    fn clocks(
        &mut self,
        domain: DomainId,
        deadline: Deadline,
    ) -> Result<Vec<(WorkerThread, u64)>, ClientError> {
        let clock = |w: WorkerClock| {
            let (rank, thread) = (w.worker, w.thread);
            (WorkerThread { rank, thread }, w.clock)
        };
        let workers = self.paces(domain, deadline)?;
        Ok(workers.into_iter().map(clock).collect())
    }

    fn paces(
        &mut self,
        domain: DomainId,
        deadline: Deadline,
    ) -> Result<Vec<WorkerClock>, ClientError> {
        let request = ServerRequest::Clocks { domain };
        self.retry("clocks", deadline, |link, deadline| {
            match link.ask(&request, deadline)? {
                ServerAnswer::Clocks { workers, .. } => Ok(workers),
                _ => Err(link.wrong_answer("another answer than to Clocks")),
            }
        })
    }

    fn check(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        let conn = self.conn.as_mut();
        if conn.is_some_and(|conn| !conn.stream_mut().is_hung_up()) {
            return Ok(());
        }
        self.conn = None;
        match self.resume(deadline.min(Deadline::after(CHECK))) {
            Ok(conn) => self.conn = Some(conn),
            Err(Failure::Final(e)) => return Err(e),
            Err(Failure::Again(why) | Failure::Absent(why) | Failure::Unfit(why)) => {
                tracing::debug!(server = self.name, why, "session not resumed yet");
            }
        }
        Ok(())
    }

    fn end_session(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        self.try_detach(deadline)
    }

    fn follow(&mut self, members: &Members) -> bool {
        // A membership of before the sessions were opened says nothing new.
        if members.epoch < self.config.epoch {
            return false;
        }
        self.config.epoch = members.epoch;
        let own = |server: &&ServerMember| server.id == self.server.id;
        let now = members.servers.iter().find(own);
        let Some(now) = now.filter(|now| now.incarnation != self.server.incarnation) else {
            return false;
        };
        self.server = now.clone();
        self.become_of(self.transport);
        (self.conn, self.succeeds) = (None, true);
        true
    }

    fn register(&mut self, buffer: &mut Buffer) -> Result<(), Cause> {
        let side = self.verbs.as_ref();
        match side {
            Some(side) => Ok(side.register(buffer)?),
            None => Ok(()),
        }
    }

    fn recover(&mut self, applier: ApplierId, deadline: Deadline) -> Result<OpenLane, ClientError> {
        self.retry("recover", deadline, |link, attempt| {
            // A transport that worked once may work again.
            link.try_recover(applier, attempt, deadline)
                .map_err(|failure| match failure {
                    Failure::Unfit(why) => Failure::Again(why),
                    other => other,
                })
        })
    }
}

/// Error of a TCP connection that was not made, with the address.
#[derive(Debug, thiserror::Error)]
#[error("connect to {address}: {source}")]
struct ConnectError {
    address: String,
    source: std::io::Error,
}

/// Classifies a failed connection attempt: a refused connection means that no process listens (`Absent`), others may
/// be tried again.
fn not_connected(kind: std::io::ErrorKind, why: Cause) -> Failure {
    match kind {
        std::io::ErrorKind::ConnectionRefused => Failure::Absent(why),
        _ => Failure::Again(why),
    }
}

/// Remote address of the public copy of a lane's status record, from the lane's grant.
const fn status_of(grant: &LaneGrant) -> RemoteAddr {
    let Remote { key, address, .. } = grant.status;
    RemoteAddr { key, addr: address }
}

const fn state_of(recovered: &Recovered) -> StateLine {
    StateLine {
        applied_seq: recovered.applied_seq,
        durable_seq: recovered.durable_seq,
        head_bytes: recovered.head_bytes,
        rejected: recovered.rejected,
    }
}

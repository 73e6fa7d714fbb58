//! The control connection of one client thread to one server, and the session on it.
//!
//! Connections may be cut at any byte. What is asked for over them can be asked again: a session is
//! resumed by its nonce over a new control connection, a lane is recovered as often as it takes,
//! until the caller's deadline.

use std::sync::Arc;
use std::time::Duration;

use tidewater_transport::clock::Deadline;
use tidewater_transport::conn::{ConnError, ControlConn};
use tidewater_transport::fabric::{Lane, Mailbox, TransportKind};
use tidewater_transport::host;
use tidewater_transport::ids::{ApplierId, DomainId, SessionId, TableId, WorkerId};
use tidewater_transport::launch::TransportChoice;
use tidewater_transport::layout::lines::StateLine;
use tidewater_transport::layout::session::MAILBOX_BYTES;
use tidewater_transport::mem::Region;
use tidewater_transport::shm::{self, ShmAttach, ShmLane};
use tidewater_transport::tcp::TcpLane;
use tidewater_transport::wake::{Bell, Dozes, OsSleeper, Watch};
use tidewater_transport::wire::control::{
    Attach, Attached, LaneGrant, Recovered, ServerAnswer, ServerMember, ServerRequest,
    TableDescriptor, Transport,
};
use tidewater_transport::wire::handshake::HandshakeError;
use tidewater_transport::wire::hello::{Features, Hello, Ids, Purpose, RANDOM_BYTES, Role};
use tidewater_transport::wire::refusal::RefusalCode;

use super::ConnectConfig;
use super::stream::Stream;
use crate::error::ClientError;
use crate::link::{OpenLane, ServerLink};

/// One attempt may take this long: a silent connection is given up for a new one.
const ATTEMPT: Duration = Duration::from_secs(5);
/// An attempt that nobody has asked for may take this long.
const CHECK: Duration = Duration::from_secs(1);
/// Pause between two attempts: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(200)];

/// Why an attempt failed.
#[derive(Debug)]
enum Failure {
    /// The connection's fault: the next attempt may do better.
    Again(String),
    /// The same would come again.
    Final(ClientError),
}

type Attempt<T> = Result<T, Failure>;

impl From<ClientError> for Failure {
    fn from(e: ClientError) -> Self {
        Self::Final(e)
    }
}

/// A session of one client thread with one server.
#[derive(Debug)]
pub struct NetServerLink {
    name: String,
    server: ServerMember,
    config: ConnectConfig,
    transport: TransportKind,
    /// `None` while it is cut.
    conn: Option<ControlConn<Stream>>,
    session: SessionId,
    watch: Watch,
    bell: Bell,
    dozes: Dozes,
    /// Of each lane over shared memory: the doze word by which its port knows whether to ring.
    doze: Vec<Option<(Arc<Region>, usize)>>,
}

impl NetServerLink {
    /// Attaches the calling thread, which sleeps in `sleeper`, to a server. The lanes come in the
    /// order of the server's appliers. `Auto` takes shared memory where it can be had, and says why
    /// not (level info) where it cannot; another choice is kept or fails.
    ///
    /// # Errors
    /// [`ClientError::Environment`] when the chosen transport cannot be had here;
    /// [`ClientError::Refused`] with the server's reason; [`ClientError::Control`] when the
    /// handshake fails; [`ClientError::ServerLost`] when the deadline passes.
    pub fn open(
        server: &ServerMember,
        config: &ConnectConfig,
        sleeper: &mut OsSleeper,
        deadline: Deadline,
    ) -> Result<(Self, Vec<OpenLane>), ClientError> {
        let obstacle = match config.transport {
            TransportChoice::Tcp => None,
            _ => shm_obstacle(server),
        };
        let transport = match (config.transport, obstacle) {
            (TransportChoice::Tcp, _) => TransportKind::Tcp,
            (_, None) => TransportKind::Shm,
            (TransportChoice::Shm, Some(why)) => return Err(no_shm(server, &why)),
            (_, Some(why)) => {
                tracing::info!(server = %server.id, why, "no shared memory: tcp is used");
                TransportKind::Tcp
            }
        };
        let mut link = Self {
            name: String::new(),
            server: server.clone(),
            config: config.clone(),
            transport,
            conn: None,
            session: SessionId(0),
            watch: sleeper.watch().clone(),
            bell: sleeper.bell().clone(),
            dozes: sleeper.dozes().clone(),
            doze: Vec::new(),
        };
        if transport == TransportKind::Shm {
            link.rename();
            match link.attach_shm(deadline) {
                Ok(lanes) => return Ok((link, lanes)),
                Err(Failure::Final(e)) => return Err(e),
                Err(Failure::Again(why)) if config.transport == TransportChoice::Shm => {
                    return Err(no_shm(server, &why));
                }
                Err(Failure::Again(why)) => {
                    tracing::info!(server = %server.id, why, "no shared memory: tcp is used");
                    (link.transport, link.conn) = (TransportKind::Tcp, None);
                }
            }
        }
        link.rename();
        let lanes = link.attach_tcp(deadline)?;
        Ok((link, lanes))
    }

    fn rename(&mut self) {
        let Self { server, .. } = self;
        let address = match self.transport {
            TransportKind::Tcp => &server.endpoints.tcp,
            _ => &server.host,
        };
        self.name = format!("{} ({address})", server.id);
    }

    /// One attempt, since it is made on one host: what fails there fails again. `Again` means that
    /// shared memory cannot be had.
    fn attach_shm(&mut self, deadline: Deadline) -> Attempt<Vec<OpenLane>> {
        let mut conn = self.connect(Purpose::Control, deadline)?;
        conn.stream_mut().pass(&self.bell);
        let attached = self.attach(&mut conn, Transport::Shm, deadline)?;
        let told = attached.shm.as_ref();
        let told = told.ok_or_else(|| self.nonsense("a session without memory"))?;
        let lanes = self.map(&mut conn, told)?;
        if lanes.len() != attached.lanes.len() {
            return Err(self.nonsense("another number of lanes than of memories"));
        }
        self.conn = Some(conn);
        self.session = attached.session;
        let open = |(a, lane): (usize, ShmLane)| {
            self.set_doze(a, &lane);
            let lane = Box::new(lane) as Box<dyn Lane>;
            let state = StateLine::default();
            OpenLane { lane, state }
        };
        Ok(lanes.into_iter().enumerate().map(open).collect())
    }

    fn attach_tcp(&mut self, deadline: Deadline) -> Result<Vec<OpenLane>, ClientError> {
        if self.server.endpoints.tcp.is_empty() {
            return Err(ClientError::Environment(format!(
                "server {} does not listen on TCP, and shared memory cannot be had or was not \
                 asked for; start the server with a TCP address, or the client on its host",
                self.server.id
            )));
        }
        let mut first = true;
        let attached = self.retry("attach", deadline, |link, deadline| {
            let attempt = link
                .connect(Purpose::Control, deadline)
                .and_then(|mut conn| {
                    let attached = link.attach(&mut conn, Transport::Tcp, deadline)?;
                    link.conn = Some(conn);
                    Ok(attached)
                });
            let again = !std::mem::take(&mut first);
            match attempt {
                // Our own earlier attempt, whose end the server has not yet seen.
                Err(Failure::Final(ClientError::Refused(no)))
                    if again && no.code == RefusalCode::RankTaken =>
                {
                    Err(Failure::Again(no.to_string()))
                }
                other => other,
            }
        })?;
        self.session = attached.session;
        let mut lanes = Vec::with_capacity(attached.lanes.len());
        for grant in attached.lanes {
            let attempt = deadline.min(Deadline::after(ATTEMPT));
            lanes.push(match self.tcp_lane(grant, attempt) {
                Ok(lane) => OpenLane {
                    lane: Box::new(lane),
                    state: StateLine::default(),
                },
                Err(Failure::Again(_)) => self.recover(grant.applier, deadline)?,
                Err(Failure::Final(e)) => return Err(e),
            });
        }
        Ok(lanes)
    }

    /// Asks for a session; the lanes are in the order of the appliers.
    fn attach(
        &self,
        conn: &mut ControlConn<Stream>,
        transport: Transport,
        deadline: Deadline,
    ) -> Attempt<Attached> {
        let attach = Attach {
            transport,
            ring_bytes: u32::try_from(self.config.ring_bytes).unwrap_or(u32::MAX),
            thread: self.config.thread,
            workers: self.config.workers,
        };
        let request = ServerRequest::Attach(attach);
        match self.call(conn, &request, deadline)? {
            ServerAnswer::Attached(attached) => {
                let in_order = (0..)
                    .map(ApplierId)
                    .zip(&attached.lanes)
                    .all(|(a, lane)| lane.applier == a);
                if attached.lanes.is_empty() || !in_order {
                    return Err(self.nonsense("lanes that are not its appliers'"));
                }
                Ok(attached)
            }
            _ => Err(self.nonsense("another answer than to Attach")),
        }
    }

    /// Maps memory whose descriptors came with the last answer.
    fn map(&self, conn: &mut ControlConn<Stream>, told: &ShmAttach) -> Attempt<Vec<ShmLane>> {
        let again = |e: &dyn std::fmt::Display| Failure::Again(e.to_string());
        let fds = conn.stream_mut().take(told.descriptors());
        let fds = fds.map_err(|e| again(&e))?;
        shm::attach(told, fds, &self.name).map_err(|e| again(&e))
    }

    fn set_doze(&mut self, lane: usize, open: &ShmLane) {
        if self.doze.len() <= lane {
            self.doze.resize(lane + 1, None);
        }
        let (region, at) = open.doze();
        self.dozes.add(Arc::clone(&region), at);
        if let Some((region, at)) = self.doze[lane].replace((region, at)) {
            self.dozes.remove(&region, at);
        }
    }

    /// Opens a connection and proves who both ends are.
    fn connect(&self, purpose: Purpose, deadline: Deadline) -> Attempt<ControlConn<Stream>> {
        let endpoints = &self.server.endpoints;
        let stream = if self.transport == TransportKind::Shm {
            let stream = Stream::unix(&endpoints.unix, deadline);
            stream.map_err(|e| Failure::Again(e.to_string()))?
        } else {
            let stream = Stream::tcp(&endpoints.tcp, deadline);
            let why = |e| format!("connect to {}: {e}", endpoints.tcp);
            Stream::Tcp(stream.map_err(|e| Failure::Again(why(e)))?)
        };
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random).map_err(|e| ClientError::Environment(e.to_string()))?;
        let hello = Hello {
            features: Features::default(),
            ids: Ids {
                cluster: self.config.cluster,
                epoch: self.config.epoch,
                incarnation: self.server.incarnation,
            },
            namespace: self.config.namespace.clone(),
            role: Role::Worker,
            rank: self.config.rank,
            purpose,
            random,
        };
        let opened = ControlConn::open(stream, &self.config.token, hello, || deadline.left());
        opened.map_err(|e| self.failure(e))
    }

    fn call(
        &self,
        conn: &mut ControlConn<Stream>,
        request: &ServerRequest,
        deadline: Deadline,
    ) -> Attempt<ServerAnswer> {
        conn.call(request, || deadline.left())
            .map_err(|e| self.failure(e))
    }

    /// What a connection's failure means for the next attempt.
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
                why: e.to_string(),
            }),
            _ => Failure::Again(e.to_string()),
        }
    }

    fn peer(&self) -> String {
        format!("server {}", self.name)
    }

    fn nonsense(&self, what: &str) -> Failure {
        Failure::Final(ClientError::Protocol {
            server: self.name.clone(),
            what: what.to_owned(),
        })
    }

    /// Connects a lane that was granted.
    fn tcp_lane(&self, grant: LaneGrant, deadline: Deadline) -> Attempt<TcpLane> {
        let purpose = Purpose::Lane {
            session: self.session,
            applier: grant.applier,
            nonce: grant.nonce,
        };
        let conn = self.connect(purpose, deadline)?;
        let (Stream::Tcp(stream), rest) = conn.into_parts() else {
            return Err(self.nonsense("a lane over a unix socket"));
        };
        let memory = Region::anonymous(MAILBOX_BYTES).map(Arc::new);
        let mailbox = memory.and_then(|region| Mailbox::new(region, 0, MAILBOX_BYTES));
        let mailbox = mailbox.map_err(|e| ClientError::Environment(e.to_string()))?;
        let timeouts = stream
            .set_read_timeout(None)
            .and_then(|()| stream.set_write_timeout(None));
        timeouts.map_err(|e| Failure::Again(e.to_string()))?;
        TcpLane::new(stream, self.name.clone(), mailbox, self.watch.clone())
            .and_then(|lane| lane.early(&rest))
            .map_err(|e| Failure::Again(e.to_string()))
    }

    /// Asks over the session's control connection, or over a new one if that is cut.
    fn ask(&mut self, request: &ServerRequest, deadline: Deadline) -> Attempt<ServerAnswer> {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => self.resume(deadline)?,
        };
        let answer = self.call(&mut conn, request, deadline);
        // A refusal leaves the connection good.
        if matches!(answer, Ok(_) | Err(Failure::Final(ClientError::Refused(_)))) {
            self.conn = Some(conn);
        }
        answer
    }

    /// A new control connection that has the session.
    fn resume(&self, deadline: Deadline) -> Attempt<ControlConn<Stream>> {
        let mut conn = self.connect(Purpose::Control, deadline)?;
        let session = self.session;
        self.call(&mut conn, &ServerRequest::Resume { session }, deadline)?;
        tracing::debug!(server = self.name, %session, "session resumed");
        Ok(conn)
    }

    /// Repeats attempts until one does not fail by the connection's fault.
    fn retry<T>(
        &mut self,
        op: &'static str,
        deadline: Deadline,
        mut attempt: impl FnMut(&mut Self, Deadline) -> Attempt<T>,
    ) -> Result<T, ClientError> {
        let [mut pause, longest] = PAUSES;
        loop {
            let why = match attempt(self, deadline.min(Deadline::after(ATTEMPT))) {
                Ok(done) => return Ok(done),
                Err(Failure::Final(e)) => return Err(e),
                Err(Failure::Again(why)) => why,
            };
            tracing::debug!(server = self.name, op, why, "to be tried again");
            self.conn = None;
            if deadline.left() <= pause {
                return Err(ClientError::ServerLost {
                    server: self.name.clone(),
                    why: format!("{op}: {why}"),
                });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(longest);
        }
    }

    fn try_recover(&mut self, applier: ApplierId, deadline: Deadline) -> Attempt<OpenLane> {
        let request = ServerRequest::Recover { applier };
        let recovered = match self.ask(&request, deadline)? {
            ServerAnswer::Recovered(recovered) if recovered.lane.applier == applier => recovered,
            _ => return Err(self.nonsense("another answer than to Recover")),
        };
        let lane: Box<dyn Lane> = match (self.transport, &recovered.shm) {
            (TransportKind::Shm, Some(told)) => {
                let Some(mut conn) = self.conn.take() else {
                    return Err(Failure::Again("the connection is cut".into()));
                };
                let mut lanes = self.map(&mut conn, told)?;
                self.conn = Some(conn);
                let (Some(lane), true) = (lanes.pop(), lanes.is_empty()) else {
                    return Err(self.nonsense("not one lane's memory"));
                };
                self.set_doze(usize::from(applier.0), &lane);
                Box::new(lane)
            }
            (TransportKind::Tcp, None) => Box::new(self.tcp_lane(recovered.lane, deadline)?),
            _ => return Err(self.nonsense("a lane of another transport")),
        };
        let state = state_of(&recovered);
        Ok(OpenLane { lane, state })
    }

    /// Ends the session at once, instead of some time after its connection. What is whole in its
    /// rings is applied; wait for tickets before.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be reached before the deadline.
    pub fn detach(mut self, deadline: Deadline) -> Result<(), ClientError> {
        let detached = self.retry("detach", deadline, |link, deadline| {
            link.ask(&ServerRequest::Detach, deadline).map(drop)
        });
        match detached {
            // An earlier attempt did it, and its answer was lost.
            Err(ClientError::Refused(no)) if no.code == RefusalCode::UnknownSession => Ok(()),
            other => other,
        }
    }
}

impl Drop for NetServerLink {
    fn drop(&mut self) {
        for (region, at) in self.doze.drain(..).flatten() {
            self.dozes.remove(&region, at);
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

    fn describe(
        &mut self,
        table: TableId,
        deadline: Deadline,
    ) -> Result<TableDescriptor, ClientError> {
        let request = ServerRequest::Describe { table };
        self.retry("describe", deadline, |link, deadline| {
            match link.ask(&request, deadline)? {
                ServerAnswer::Table(told) if told.id == table => Ok(told),
                _ => Err(link.nonsense("another answer than to Describe")),
            }
        })
    }

    fn clocks(
        &mut self,
        domain: DomainId,
        deadline: Deadline,
    ) -> Result<Vec<(WorkerId, u64)>, ClientError> {
        let request = ServerRequest::Clocks { domain };
        self.retry("clocks", deadline, |link, deadline| {
            match link.ask(&request, deadline)? {
                ServerAnswer::Clocks { workers, .. } => {
                    Ok(workers.into_iter().map(|w| (w.worker, w.clock)).collect())
                }
                _ => Err(link.nonsense("another answer than to Clocks")),
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
            Err(Failure::Again(why)) => {
                tracing::debug!(server = self.name, why, "session not resumed yet");
            }
        }
        Ok(())
    }

    fn recover(&mut self, applier: ApplierId, deadline: Deadline) -> Result<OpenLane, ClientError> {
        self.retry("recover", deadline, |link, deadline| {
            link.try_recover(applier, deadline)
        })
    }
}

const fn state_of(recovered: &Recovered) -> StateLine {
    StateLine {
        applied_seq: recovered.applied_seq,
        durable_seq: recovered.durable_seq,
        head_bytes: recovered.head_bytes,
        rejected: recovered.rejected,
    }
}

/// Why shared memory cannot be had with a server, as far as that is known without asking it.
fn shm_obstacle(server: &ServerMember) -> Option<String> {
    if server.endpoints.unix.is_empty() {
        return Some("the server listens on no unix socket".into());
    }
    if !host::is_here(&server.host_id) {
        let (there, here) = (&server.host, host::host_name());
        return Some(format!(
            "the server runs on {there}, this process on {here}: they share no kernel"
        ));
    }
    None
}

fn no_shm(server: &ServerMember, why: &str) -> ClientError {
    ClientError::Environment(format!(
        "shared memory was asked for (TIDEWATER_TRANSPORT=shm), but server {}: {why}; start both \
         on one host as one user, or use --transport auto or tcp",
        server.id
    ))
}

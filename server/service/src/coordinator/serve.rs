//! The coordinator's event loop: one thread, one `epoll`, a bounded number of connections. (long: the settings,
//! the journal, and the loop that they are of.)

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use tidewater_control::dial;
use tidewater_journal::{Identity, Journal, JournalError};
use tidewater_protocol::ids::{ClusterId, Incarnation};
use tidewater_protocol::limits::{
    HANDSHAKE_TIMEOUT, LEASE_DEFAULT, UNAUTHENTICATED_CONNECTIONS_MAX,
};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{self, Message};
use tidewater_protocol::wire::frame::kind;
use tidewater_protocol::wire::handshake::{JobToken, Namespaces, ServerPolicy};
use tidewater_protocol::wire::hello::{Features, Ids, RANDOM_BYTES, Role, Roles};
use tidewater_protocol::wire::peer::{ControlPeer, PeerEvent};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::socket_options::give_up_after;
use tidewater_topology::hostinfo;

use super::checkpoints::CheckpointPolicy;
use super::file_threads::{FileThreads, Heartbeat};
use super::membership::Schedule;
use super::state::{Action, Coordinator, CoordinatorConfig, PeerId};
use crate::warn_limit::{WARN_EVERY, WarnLimit};

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FILES: u64 = 2;
const FIRST_PEER: u64 = 3;
/// Maximum number of bytes of one read from a connection; other connections are served before the next read.
const READ_BYTES: usize = 64 << 10;
/// Shortest pause in accepting connections after a failed accept, as without file descriptors, or while
/// `UNAUTHENTICATED_CONNECTIONS_MAX` connections are not authenticated.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time limit for sending queued messages after the cluster has ended.
const FLUSH: Duration = Duration::from_secs(1);
/// Longest sleep of the event loop.
const IDLE: Duration = Duration::from_secs(60);

/// Configuration of a coordinator: address, secret, namespaces and cluster.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// `HOST:PORT` or host by which other processes reach the coordinator, if it differs from `listen`.
    pub advertise: Option<String>,
    /// The job's secret, which peers authenticate with.
    pub token: JobToken,
    /// Namespaces of which workers are admitted; an empty list admits all.
    pub namespaces: Vec<String>,
    /// Numbers of servers and workers, and the lifetime of the cluster.
    pub cluster: CoordinatorConfig,
}

/// Reason why the coordinator cannot start or has to end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another port, or 0 for a free one")]
    Listen {
        /// Address to listen on.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A system call failed.
    #[error("coordinator: {operation}: {source}; check the limits of this process (ulimit -n)")]
    System {
        /// Operation that was tried.
        operation: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The system has no random bytes.
    #[error("no random bytes: {0}; check that /dev/urandom exists")]
    Random(getrandom::Error),
    /// The journal cannot be read or written. The last changes are not journalled, and no answer based on
    /// them was sent.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The coordinator has a journal together with a feature that the journal does not cover.
    #[error(
        "a coordinator with --state cannot have {what}: its journal does not hold them; leave out one of the two"
    )]
    NotJournalled {
        /// What the journal does not hold.
        what: &'static str,
    },
}

fn system<E: Into<io::Error>>(operation: &'static str) -> impl FnOnce(E) -> ServeError {
    move |source| ServeError::System {
        operation,
        source: source.into(),
    }
}

/// A coordinator with a bound listening socket that does not serve yet: the builder for [`serve`].
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    address: String,
    policy: ServerPolicy,
    cluster: CoordinatorConfig,
    /// Number of launched processes that register first, and their hosts.
    gathers: Option<(u32, Vec<String>)>,
    /// Membership schedule that jobs follow.
    schedule: Option<Schedule>,
    /// File for membership changes, in the format of a schedule.
    log: Option<File>,
    /// Policy of periodic checkpoints.
    checkpoint: Option<CheckpointPolicy>,
    /// Time without a sign of a server after which the kernel closes its connection.
    lease: Duration,
    /// Journal of the state, and the time that processes have to reconnect after a restart.
    journal: Option<(Journal, Duration)>,
}

impl Listening {
    /// Binds the listening socket and draws a random cluster id.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn bind(config: ServeConfig) -> Result<Self, ServeError> {
        let listen = config.listen;
        let listener = TcpListener::bind(listen).map_err(|source| ServeError::Listen {
            address: listen,
            source,
        })?;
        listener
            .set_nonblocking(true)
            .map_err(system("set up its socket"))?;
        let port = listener
            .local_addr()
            .map_err(system("look at its socket"))?
            .port();
        let address = match config.advertise {
            Some(host) if tidewater_launch::is_address(&host) => host,
            Some(host) => format!("{host}:{port}"),
            None if listen.ip().is_unspecified() => format!("{}:{port}", hostinfo::host_name()),
            None => SocketAddr::new(listen.ip(), port).to_string(),
        };
        let random = || {
            getrandom::u64()
                .map(|id| id.max(1))
                .map_err(ServeError::Random)
        };
        let ids = Ids {
            cluster: ClusterId(random()?),
            epoch: 1,
            incarnation: Incarnation(random()?),
        };
        let policy = ServerPolicy {
            token: config.token,
            features: Features::default(),
            ids,
            role: Role::Coordinator,
            number: 0,
            namespaces: match config.namespaces.is_empty() {
                true => Namespaces::Any,
                false => Namespaces::Only(config.namespaces),
            },
            control_roles: Roles::of(&[Role::Worker, Role::Observer, Role::Server, Role::Admin]),
            lane_roles: Roles::default(),
            tells_ids: true,
        };
        Ok(Self {
            listener,
            address,
            policy,
            cluster: config.cluster,
            gathers: None,
            schedule: None,
            log: None,
            checkpoint: None,
            lease: LEASE_DEFAULT,
            journal: None,
        })
    }

    /// Journals the state of the cluster. If the journal holds a cluster, the coordinator resumes it, and its
    /// processes have `grace` to reconnect. The socket must have the port [`Journal::port`]. Call it after
    /// [`Self::with_checkpoints`], because the journal records the directory of checkpoints.
    ///
    /// # Errors
    /// [`ServeError::Journal`]: the journal is of another cluster, or cannot be written.
    /// [`ServeError::NotJournalled`]: jobs follow a schedule in which a rank joins twice.
    pub fn journalled(mut self, mut journal: Journal, grace: Duration) -> Result<Self, ServeError> {
        self.check_journal(true)?;
        let port = self.port();
        let ids = &mut self.policy.ids;
        if let Some(resumed) = journal.resumed() {
            ids.cluster = resumed.cluster;
        }
        journal.begin(Identity {
            cluster: ids.cluster,
            port,
            servers: self.cluster.servers,
            workers: self.cluster.workers,
            checkpoints: self.checkpoint.as_ref().map(|policy| policy.dir.clone()),
        })?;
        ids.incarnation = journal.incarnation();
        self.policy.features.offered |= Features::RESUMES;
        self.journal = Some((journal, grace));
        Ok(self)
    }

    /// Checks that a schedule with repeated stays is not combined with a journal, which does not record them.
    fn check_journal(&self, has_journal: bool) -> Result<(), ServeError> {
        match &self.schedule {
            Some(schedule) if has_journal && schedule.has_repeated_stays() => {
                let what = "a --membership file in which a rank joins twice";
                Err(ServeError::NotJournalled { what })
            }
            _ => Ok(()),
        }
    }

    /// Makes the coordinator begin with the rendezvous of a launch of `size` processes, which determines the
    /// numbers of servers and workers. `hosts` are the names from the launcher, or empty.
    #[must_use]
    pub fn gathering(mut self, size: u32, hosts: Vec<String>) -> Self {
        self.gathers = Some((size, hosts));
        self
    }

    /// Makes the members of each job follow a schedule: it gives the ranks, and the ticks at which they begin
    /// at every applier. The configured number of workers then has no effect.
    #[must_use]
    pub fn following(mut self, schedule: Schedule) -> Self {
        self.schedule = Some(schedule);
        self
    }

    /// Enables periodic checkpoints of each job. A job starts from its newest complete checkpoint, and its
    /// workers wait until that is loaded. A damaged checkpoint is skipped for the one before; if none can be
    /// loaded the job is refused.
    #[must_use]
    pub fn with_checkpoints(mut self, policy: CheckpointPolicy) -> Self {
        self.checkpoint = Some(policy);
        self
    }

    /// Sets the time without a sign of a server after which its connection is closed (default 15 s).
    #[must_use]
    pub const fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Writes each membership change into `log`, one line each, in the format of [`Schedule::parse`].
    #[must_use]
    pub fn logging_members(mut self, log: File) -> Self {
        self.log = Some(log);
        self
    }

    /// Whether the coordinator resumes a cluster from its journal.
    pub fn resumes(&self) -> bool {
        let journal = self.journal.as_ref();
        journal.is_some_and(|(journal, _)| journal.incarnation() > Incarnation(1))
    }

    /// TCP port on which the coordinator listens; 0 if the system call fails.
    pub fn port(&self) -> u16 {
        self.listener
            .local_addr()
            .map_or(0, |address| address.port())
    }

    /// Address by which processes of this host reach the coordinator: loopback if it listens on all interfaces.
    /// `127.0.0.1:0` if the system call fails.
    pub fn local(&self) -> SocketAddr {
        let bound = self.listener.local_addr();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut address = bound.unwrap_or(any);
        if address.ip().is_unspecified() {
            address.set_ip(match address.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        address
    }

    /// `HOST:PORT` by which other processes reach the coordinator, as the ready line prints it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Random id of the cluster.
    pub const fn cluster(&self) -> ClusterId {
        self.policy.ids.cluster
    }
}

/// Runs the coordinator on the calling thread; blocks until the cluster has ended. If a descriptor of `stop`
/// becomes readable or hangs up, servers are ordered to shut down, and it returns when they have ended or
/// after a grace period. Removes the journal of an ended cluster.
///
/// # Errors
/// [`ServeError`]; no peer can cause one. After [`ServeError::Journal`] the processes wait for a coordinator
/// that resumes.
pub fn serve(listening: Listening, stop: &[BorrowedFd<'_>]) -> Result<(), ServeError> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("make an epoll"))?;
    epoll::add(
        &epoll,
        &listening.listener,
        EventData::new_u64(LISTENER),
        EventFlags::IN,
    )
    .map_err(system("watch its socket"))?;
    // Once: it stays readable for as long as the end takes.
    let once = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
    for fd in stop {
        epoll::add(&epoll, fd, EventData::new_u64(STOP), once)
            .map_err(system("watch for the word to end"))?;
    }
    let files = FileThreads::new().map_err(system("make a waker"))?;
    epoll::add(&epoll, &files, EventData::new_u64(FILES), EventFlags::IN)
        .map_err(system("watch its file tasks"))?;
    listening.check_journal(listening.journal.is_some())?;
    let mut listening = listening;
    let mut journal = listening.journal.take();
    let checkpoints = listening.checkpoint.as_ref().map(|policy| &policy.dir);
    if let Some((journal, _)) = &journal
        && journal.checkpoints() != checkpoints
    {
        let what = "checkpoints that are set after its journal";
        return Err(ServeError::NotJournalled { what });
    }
    let cluster = listening.cluster.clone();
    let mut state = match &mut journal {
        None => Coordinator::new(cluster),
        Some((journal, grace)) => {
            let start = journal.incarnation().0;
            Coordinator::resume(cluster, journal.take_image(), start, *grace)
        }
    };
    if let Some((size, hosts)) = listening.gathers.clone() {
        state.gather(size, hosts);
    }
    if let Some(schedule) = listening.schedule.clone() {
        state.follow(schedule);
    }
    if let Some(policy) = listening.checkpoint.clone() {
        state.keep_checkpoints(policy);
    }
    let mut server = Server {
        state,
        listening,
        epoll,
        conns: BTreeMap::new(),
        next_peer: FIRST_PEER,
        files,
        heartbeat: Heartbeat::default(),
        start: clock::now(),
        paused: None,
        not_accepted: WarnLimit::new(WARN_EVERY),
        scratch: vec![0; READ_BYTES],
        journal: journal.map(|(journal, _)| journal),
        failed: None,
    };
    let ended = server.run();
    server.files.end(Deadline::after(FLUSH));
    if let (Ok(()), Some(journal)) = (&ended, server.journal) {
        journal.end()?;
    }
    ended
}

/// A connection of a peer, in the coordinator's event loop.
#[derive(Debug)]
struct Conn {
    stream: TcpStream,
    peer: ControlPeer,
    /// Deadline of the handshake; `None` once the peer is admitted.
    handshake: Option<Deadline>,
    /// Whether epoll also waits for writability.
    output: bool,
}

#[derive(Debug)]
struct Server {
    listening: Listening,
    state: Coordinator,
    epoll: std::os::fd::OwnedFd,
    conns: BTreeMap<u64, Conn>,
    next_peer: u64,
    files: FileThreads,
    heartbeat: Heartbeat,
    start: Instant,
    /// End of the pause in accepting connections; `None` while they are accepted.
    paused: Option<Deadline>,
    not_accepted: WarnLimit,
    scratch: Vec<u8>,
    journal: Option<Journal>,
    /// Error that ends the event loop.
    failed: Option<ServeError>,
}

impl Server {
    fn run(&mut self) -> Result<(), ServeError> {
        let mut last_words: Option<Deadline> = None;
        loop {
            self.act();
            if let Some(failed) = self.failed.take() {
                return Err(failed);
            }
            if self.state.is_ended() {
                let limit = *last_words.get_or_insert_with(|| Deadline::after(FLUSH));
                let is_flushed = self
                    .conns
                    .values()
                    .all(|conn| conn.peer.outgoing().is_empty());
                if is_flushed || limit.passed() {
                    return Ok(());
                }
            }
            for (token, flags) in self.wait(last_words)? {
                match token {
                    LISTENER => self.accept(),
                    STOP => {
                        let now = self.now();
                        self.state
                            .stop(now, "the coordinator received a request to end");
                    }
                    FILES => {
                        let now = self.now();
                        for (op, done) in self.files.take_done() {
                            self.state.files_done(now, op, done);
                        }
                    }
                    peer => self.serve_peer(peer, flags),
                }
            }
            self.pass_time();
        }
    }

    fn now(&self) -> Duration {
        clock::now().saturating_duration_since(self.start)
    }

    /// Blocks until a descriptor is ready or the earliest deadline passes, at most `IDLE`. `last_words` is the
    /// deadline for the last messages of an ended cluster. Returns the tokens of ready descriptors; empty after a
    /// timeout or signal.
    fn wait(&self, last_words: Option<Deadline>) -> Result<Vec<(u64, EventFlags)>, ServeError> {
        let handshakes = self.conns.values().filter_map(|conn| conn.handshake);
        let due = handshakes
            .chain(self.paused)
            .chain(last_words)
            .map(|at| at.left())
            .min();
        let planned = self
            .state
            .next_deadline()
            .map(|at| at.saturating_sub(self.now()));
        // Rounded up: the kernel's timer must not wake the loop just before its time.
        let left = due
            .into_iter()
            .chain(planned)
            .min()
            .unwrap_or(IDLE)
            .min(IDLE);
        let left = left + Duration::from_millis(1);
        let timeout = rustix::time::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut events = [std::mem::MaybeUninit::uninit(); 64];
        match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok((ready, _)) => Ok(ready.iter().map(|e| (e.data.u64(), e.flags)).collect()),
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(system("wait for events")(error)),
        }
    }

    /// Handles passed deadlines: closes connections with slow handshakes, resumes accepting connections, and
    /// advances the state machine. Pauses accepting while too many connections are not authenticated.
    fn pass_time(&mut self) {
        let late = self
            .conns
            .iter()
            .filter(|(_, c)| c.handshake.is_some_and(|at| at.passed()));
        for token in late.map(|(&token, _)| token).collect::<Vec<_>>() {
            tracing::debug!(token, "a peer did not authenticate in time");
            self.conns.remove(&token);
        }
        let unauthenticated = self
            .conns
            .values()
            .filter(|conn| conn.handshake.is_some())
            .count();
        let room = unauthenticated < UNAUTHENTICATED_CONNECTIONS_MAX;
        let is_over = self.paused.is_some_and(|until| until.passed());
        if room && is_over && !mutants::on(Mutant::AcceptPausedForEver) {
            self.paused = None;
            self.listen(true);
        } else if !room && self.paused.is_none() {
            self.pause();
        }
        let now = self.now();
        self.state.tick(now);
    }

    fn listen(&self, accept: bool) {
        let flags = if accept {
            EventFlags::IN
        } else {
            EventFlags::empty()
        };
        let data = EventData::new_u64(LISTENER);
        if let Err(error) = epoll::modify(&self.epoll, &self.listening.listener, data, flags) {
            tracing::error!(%error, "cannot change what is watched of the listening socket");
        }
    }

    /// Stops accepting connections for at least `ACCEPT_PAUSE`; new connections wait in the socket's backlog.
    fn pause(&mut self) {
        self.paused = Some(Deadline::after(ACCEPT_PAUSE));
        self.listen(false);
    }

    fn accept(&mut self) {
        let (stream, address) = match self.listening.listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
                if !matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted) {
                    if let Some(times) = self.not_accepted.event() {
                        tracing::warn!(
                            %error, times,
                            "cannot accept a connection for now; raise the limit of open files \
                             (ulimit -n)"
                        );
                    }
                    self.pause();
                }
                return;
            }
        };
        match self.take_on(stream) {
            Ok(token) => tracing::debug!(token, %address, "a connection"),
            Err(error) => tracing::warn!(%error, %address, "a connection cannot be served"),
        }
    }

    fn take_on(&mut self, stream: TcpStream) -> io::Result<u64> {
        stream.set_nonblocking(true)?;
        dial::tune(&stream)?;
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let token = self.next_peer;
        self.next_peer += 1;
        let flags = EventFlags::IN | EventFlags::RDHUP;
        epoll::add(&self.epoll, &stream, EventData::new_u64(token), flags)?;
        let conn = Conn {
            stream,
            peer: ControlPeer::accepted(random),
            handshake: Some(Deadline::after(HANDSHAKE_TIMEOUT)),
            output: false,
        };
        self.conns.insert(token, conn);
        Ok(token)
    }

    fn serve_peer(&mut self, token: u64, flags: EventFlags) {
        // Bytes that came before an end are served before the end is.
        let readable = EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        if flags.intersects(readable) {
            let read = self.read(token);
            self.act();
            if let Err(why) = read {
                self.flush(token);
                self.disconnect(token, &why);
                return;
            }
        }
        self.flush(token);
    }

    /// Reads once from a connection and handles the messages that are complete then. The caller disconnects
    /// the peer after an error.
    fn read(&mut self, token: u64) -> Result<(), String> {
        let Some(conn) = self.conns.get_mut(&token) else {
            return Ok(());
        };
        let count = match conn.stream.read(&mut self.scratch) {
            Ok(0) => return Err("closed by the peer".into()),
            Ok(count) => count,
            Err(error) => {
                use io::ErrorKind::{Interrupted, WouldBlock};
                let harmless = matches!(error.kind(), WouldBlock | Interrupted);
                return if harmless {
                    Ok(())
                } else {
                    Err(error.to_string())
                };
            }
        };
        let mut fed = 0;
        while fed < count {
            let Some(conn) = self.conns.get_mut(&token) else {
                return Ok(());
            };
            fed += conn.peer.feed(&self.scratch[fed..count]);
            while self.take_one(token)? {}
        }
        Ok(())
    }

    /// Handles the next complete message of a connection. Returns `false` if there is none. The caller
    /// disconnects the peer after an error.
    ///
    /// # Errors
    /// Reason, as text: the message or the handshake is not valid, or a server's lease cannot be set.
    fn take_one(&mut self, token: u64) -> Result<bool, String> {
        let now = clock::now().saturating_duration_since(self.start);
        let Some(conn) = self.conns.get_mut(&token) else {
            return Ok(false);
        };
        let state = &mut self.state;
        let event = conn
            .peer
            .next(&self.listening.policy, |hello| state.admit(hello));
        match event.map_err(|error| error.to_string())? {
            None => return Ok(false),
            Some(PeerEvent::Admitted(hello)) => {
                conn.handshake = None;
                if hello.role == Role::Server
                    && let Err(error) = give_up_after(&conn.stream, self.listening.lease)
                {
                    return Err(format!("cannot set its lease: {error}"));
                }
                state.connected(PeerId(token), &hello);
            }
            Some(PeerEvent::Message(frame)) if frame.kind() == kind::ORDER_ANSWER => {
                let (id, answer) = control::decode(&frame).map_err(|error| error.to_string())?;
                state.answered(now, PeerId(token), id, answer);
            }
            Some(PeerEvent::Message(frame)) => {
                let (id, request) = control::decode(&frame).map_err(|error| error.to_string())?;
                state.request(now, PeerId(token), id, request);
            }
        }
        Ok(true)
    }

    /// Performs the actions of the state machine, and those that they cause, until none is left. Journals the state
    /// changes first. If that fails, it performs no action and sends no answer, now or later, and the loop ends.
    fn act(&mut self) {
        if self.failed.is_some() {
            // Nothing follows a record that is perhaps not complete.
            return;
        }
        loop {
            let actions = self.state.take_actions();
            let changes = self.state.take_changes();
            if let (Some(journal), Some(image)) = (&mut self.journal, self.state.journalled())
                && !changes.is_empty()
                && let Err(error) = journal.append(&changes, image)
            {
                self.failed = Some(error.into());
            }
            if self.failed.is_some() {
                // No answer leaves that the journal does not hold.
                return;
            }
            if actions.is_empty() {
                self.listening.policy.ids.epoch = self.state.epoch();
                return;
            }
            for action in actions {
                match action {
                    Action::Answer(peer, id, answer) => self.send(peer, id, &answer),
                    Action::Command(peer, id, order) => self.send(peer, id, &order),
                    Action::Notify(peer, notice) => self.send(peer, 0, &notice),
                    Action::Files(op, task) => self.files.perform(op, task),
                    Action::Membership(line) => self.log_members(&line),
                    Action::Alive(dir, clocks) => self.heartbeat.beat(dir, clocks),
                }
            }
        }
    }

    /// Logs a membership change, and appends it to the log file if there is one. After a failed write the
    /// file is given up.
    fn log_members(&mut self, line: &str) {
        tracing::info!(change = line, "members");
        if let Some(log) = &mut self.listening.log
            && let Err(error) = writeln!(log, "{line}")
        {
            tracing::error!(%error, "the log of members cannot be written; it ends here");
            self.listening.log = None;
        }
    }

    fn send<M: Message>(&mut self, peer: PeerId, id: u64, message: &M) {
        let Some(conn) = self.conns.get_mut(&peer.0) else {
            return;
        };
        match conn.peer.queue(id, message) {
            Ok(()) => self.flush(peer.0),
            Err(error) => self.disconnect(peer.0, &error.to_string()),
        }
    }

    /// Writes queued bytes of a connection until the socket accepts no more; epoll continues then.
    /// Disconnects the peer on an error.
    fn flush(&mut self, token: u64) {
        let Some(conn) = self.conns.get_mut(&token) else {
            return;
        };
        while !conn.peer.outgoing().is_empty() {
            match conn.stream.write(conn.peer.outgoing()) {
                Ok(count) => conn.peer.sent(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return self.disconnect(token, &error.to_string()),
            }
        }
        let output = !conn.peer.outgoing().is_empty();
        if output != conn.output {
            conn.output = output;
            let base = EventFlags::IN | EventFlags::RDHUP;
            let flags = if output { base | EventFlags::OUT } else { base };
            let data = EventData::new_u64(token);
            if let Err(error) = epoll::modify(&self.epoll, &conn.stream, data, flags) {
                self.disconnect(token, &error.to_string());
            }
        }
    }

    fn disconnect(&mut self, token: u64, why: &str) {
        if self.conns.remove(&token).is_some() {
            tracing::debug!(token, why, "a connection ended");
            let now = self.now();
            self.state.closed(now, PeerId(token));
        }
    }
}

//! The control thread of a server: one event loop over listening sockets, handshakes and requests.
//!
//! No connection can delay another. Sockets do not block, each turn reads a bounded amount from one
//! connection, and a peer that does not authenticate in time is closed. Waiting for an applier is
//! bounded by what the applier does in one step.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use rustix::event::epoll::{self, EventData, EventFlags};
use tidewater_control::dial;
use tidewater_lanes::shm::pass::same_user;
use tidewater_lanes::wake::Waker;
use tidewater_protocol::ids::{ApplierId, SessionId, WorkerId};
use tidewater_protocol::limits::{
    CONNECTIONS_MAX, KEPT_SESSION_LINGER, UNAUTHENTICATED_CONNECTIONS_MAX,
};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::SessionStatus;
use tidewater_protocol::wire::handshake::ServerPolicy;
use tidewater_protocol::wire::hello::{Hello, Purpose, RANDOM_BYTES};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::socket_options::send_at_once;

use super::conn::{Conn, ConnId, Said, Socket};
use super::connects::Connects;
use super::handle::{NodeStatus, Shared};
use super::listen::Listeners;
use super::recoveries::Recoveries;
use super::requests::{Answer, send};
use super::sessions::Sessions;
use super::{ServerError, error::system};
use crate::warn_limit::{WARN_EVERY, WarnLimit};
use tidewater_engine::namespace::NamespaceId;

/// Maximum number of bytes read from a connection before others are served.
const TURN_BYTES: usize = 16 << 10;
/// Maximum number of connections accepted before others are served.
const TURN_ACCEPTS: usize = 64;
/// Pause in accepting connections after a failed accept, if the oldest unauthenticated connection cannot be
/// closed instead.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest sleep of the event loop.
const IDLE: Duration = Duration::from_secs(60);

const TCP: ConnId = 0;
const UNIX: ConnId = 1;
const WAKER: ConnId = 2;
/// Event token of the RDMA devices, in the place of a connection's number.
pub(super) const DEVICES: ConnId = 3;
const FIRST_CONN: ConnId = 16;

/// Command of another thread to the control thread.
#[derive(Debug)]
pub(super) enum ControlCommand {
    /// The cluster's epoch changed.
    Epoch(u64),
    /// Send how much the server holds.
    Status(Sender<NodeStatus>),
    /// End the sessions of a job that is over; answered when the appliers have been sent their commands.
    EndSessions(NamespaceId, Sender<()>),
    /// End the sessions of a worker's rank; answered when the appliers have been sent their commands, with a channel for
    /// each ring that they drop.
    EndRank(NamespaceId, WorkerId, Sender<Vec<Receiver<()>>>),
    /// Stop the control thread; the owner of the `Server` then stops the appliers.
    Stop,
    /// Send the number of connections and the list of sessions, for operators.
    Sessions(Sender<(u64, Vec<(SessionId, SessionStatus)>)>),
}

/// State of the control thread: sockets, connections, sessions, and deadlines.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) shared: Arc<Shared>,
    policy: ServerPolicy,
    epoll: Arc<OwnedFd>,
    waker: Waker,
    orders: Receiver<ControlCommand>,
    listeners: Listeners,
    /// End of the pause in accepting connections; `None` while they are accepted.
    paused: Option<Deadline>,
    not_accepted: WarnLimit,
    pub(super) conns: HashMap<ConnId, Conn>,
    next: ConnId,
    /// Handshake deadlines of connections, oldest first; connections that have authenticated since are
    /// skipped.
    unauthenticated: VecDeque<(Deadline, ConnId)>,
    unauthenticated_count: usize,
    pub(super) sessions: Sessions,
    /// Requests for verbs lanes that are waiting or running.
    pub(super) connects: Connects,
    /// Lane recoveries that wait for their appliers.
    pub(super) recoveries: Recoveries,
    /// Sessions without connection, in the order in which they end, with the number of their cut.
    lingering: VecDeque<(Deadline, SessionId, u64)>,
    stopped: bool,
    /// Time at which sessions of the previous server process end unless their clients have returned.
    kept_until: Option<Deadline>,
}

impl Control {
    pub(super) fn new(
        shared: Arc<Shared>,
        policy: ServerPolicy,
        listeners: Listeners,
        waker: Waker,
        orders: Receiver<ControlCommand>,
    ) -> Result<Self, ServerError> {
        let failed = "watch the listening sockets";
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system(failed))?;
        let epoll = Arc::new(epoll);
        let resumes = shared.config.memory.as_ref().is_some_and(|m| m.resumes());
        let kept_until = resumes.then(|| Deadline::after(KEPT_SESSION_LINGER));
        let control = Self {
            sessions: Sessions::new(Arc::clone(&shared), Arc::clone(&epoll), waker.clone())?,
            shared,
            policy,
            epoll,
            connects: Connects::new(waker.clone()),
            recoveries: Recoveries::new(waker.clone()),
            waker,
            orders,
            listeners,
            paused: None,
            not_accepted: WarnLimit::new(WARN_EVERY),
            conns: HashMap::new(),
            next: FIRST_CONN,
            unauthenticated: VecDeque::new(),
            unauthenticated_count: 0,
            lingering: VecDeque::new(),
            stopped: false,
            kept_until,
        };
        control
            .watch(&control.waker, WAKER)
            .map_err(system(failed))?;
        control.listen().map_err(system(failed))?;
        Ok(control)
    }

    fn watch(&self, fd: impl AsFd, id: ConnId) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP;
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(id), flags)?)
    }

    fn listen(&self) -> io::Result<()> {
        if let Some(tcp) = &self.listeners.tcp {
            self.watch(tcp, TCP)?;
        }
        if let Some(unix) = &self.listeners.unix {
            self.watch(unix, UNIX)?;
        }
        Ok(())
    }

    /// Runs the event loop on the calling thread until the command to stop.
    pub(super) fn run(&mut self) {
        while !self.stopped {
            let left = self.next_deadline().left();
            let timeout = rustix::time::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let mut events = [const { MaybeUninit::uninit() }; 64];
            let ready: Vec<(ConnId, EventFlags)> =
                match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
                    Ok((events, _)) => events.iter().map(|e| (e.data.u64(), e.flags)).collect(),
                    // Interrupted: check deadlines and commands.
                    Err(_) => Vec::new(),
                };
            for (id, flags) in ready {
                match id {
                    TCP | UNIX => self.accept(id),
                    WAKER => self.obey(),
                    DEVICES => self.sessions.hear_devices(),
                    _ => self.serve(id, flags),
                }
            }
            self.expire();
            // Last: the connection that was just read from is in the table again.
            self.go_connects();
        }
    }

    fn next_deadline(&self) -> Deadline {
        let mut next = Deadline::after(IDLE);
        let unauthenticated = self.unauthenticated.front().map(|(d, _)| *d);
        let lingering = self.lingering.front().map(|(d, ..)| *d);
        let news = self.connects.news_at();
        let deadlines = [
            unauthenticated,
            lingering,
            self.paused,
            self.kept_until,
            news,
        ];
        for deadline in deadlines.into_iter().flatten() {
            next = next.min(deadline);
        }
        next
    }

    fn obey(&mut self) {
        self.waker.drain();
        while let Ok(order) = self.orders.try_recv() {
            match order {
                ControlCommand::Epoch(epoch) => self.policy.ids.epoch = epoch,
                ControlCommand::Status(tx) => {
                    let _ = tx.send(NodeStatus {
                        sessions: self.sessions.len(),
                        connections: self.conns.len(),
                        public_bytes: self.shared.memory.public.usage(),
                    });
                }
                ControlCommand::EndSessions(job, tx) => {
                    self.sessions.end_all(job);
                    let _ = tx.send(());
                }
                ControlCommand::EndRank(job, rank, tx) => {
                    // A caller that has gone needs no rings: the sessions end in any case.
                    let _ = tx.send(self.sessions.end_rank(job, rank));
                }
                ControlCommand::Stop => self.stopped = true,
                ControlCommand::Sessions(tx) => {
                    let _ = tx.send((self.conns.len() as u64, self.sessions.report()));
                }
            }
        }
        self.finish_connects();
        self.finish_recoveries();
    }

    /// Handles passed deadlines: unauthenticated connections, sessions without connection, kept sessions, and
    /// the pause in accepting.
    fn expire(&mut self) {
        while let Some((_, id)) = self.unauthenticated.pop_front_if(|(d, _)| d.passed()) {
            self.close_unauthenticated(id, "it did not authenticate in time");
        }
        while let Some((_, id, cut)) = self.lingering.pop_front_if(|(d, ..)| d.passed()) {
            self.sessions.expire(id, cut);
        }
        if self.kept_until.take_if(|d| d.passed()).is_some() {
            self.sessions.end_kept();
        }
        let is_over = self.paused.is_some_and(|d| d.passed());
        if is_over && !mutants::on(Mutant::AcceptPausedForEver) {
            self.paused = None;
            if self.listen().is_err() {
                self.pause();
            }
        }
    }

    /// Closes a connection that has not authenticated or was refused. Returns whether it did.
    fn close_unauthenticated(&mut self, id: ConnId, why: &str) -> bool {
        let is_due = |c: &Conn| c.hello.is_none() || c.refused;
        let due = self.conns.get(&id).is_some_and(is_due);
        if due {
            self.close(id, why);
        }
        due
    }

    fn pause(&mut self) {
        for listener in [
            self.listeners.tcp.as_ref().map(AsFd::as_fd),
            self.listeners.unix.as_ref().map(AsFd::as_fd),
        ] {
            let _ = listener.map(|fd| epoll::delete(&self.epoll, fd));
        }
        self.paused = Some(Deadline::after(ACCEPT_PAUSE));
    }

    fn accept(&mut self, listener: ConnId) {
        for _ in 0..TURN_ACCEPTS {
            let accepted = match listener {
                TCP => self.listeners.accept_tcp(),
                _ => self.listeners.accept_unix(),
            };
            match accepted {
                Ok(Some((socket, from))) => self.admit(socket, from),
                Ok(None) => return,
                Err(e) => {
                    if let Some(times) = self.not_accepted.event() {
                        tracing::warn!(
                            error = %e, times,
                            "cannot accept; raise the limit of open files (ulimit -n)"
                        );
                    }
                    let oldest = self.unauthenticated.pop_front();
                    if !oldest.is_some_and(|(_, id)| {
                        self.close_unauthenticated(id, "descriptors ran out")
                    }) {
                        self.pause();
                        return;
                    }
                }
            }
        }
    }

    /// Adds an accepted connection. Closes it if it is a unix peer of another user. Beyond the limit of
    /// unauthenticated connections, closes the oldest of them.
    fn admit(&mut self, socket: Socket, from: String) {
        if let Socket::Unix(s) = &socket
            && let Err(e) = same_user(s)
        {
            tracing::info!(from, error = %e, "connection closed");
            return;
        }
        let mut random = [0; RANDOM_BYTES];
        if getrandom::fill(&mut random).is_err() {
            return;
        }
        while self.unauthenticated_count >= UNAUTHENTICATED_CONNECTIONS_MAX {
            let Some((_, id)) = self.unauthenticated.pop_front() else {
                break;
            };
            self.close_unauthenticated(id, "too many connections are not authenticated");
        }
        if self.unauthenticated.len() >= 2 * UNAUTHENTICATED_CONNECTIONS_MAX {
            // A connection that came and went leaves no entry until its handshake would have
            // expired.
            let conns = &self.conns;
            self.unauthenticated
                .retain(|(_, id)| conns.contains_key(id));
        }
        let id = self.next;
        self.next += 1;
        if self.watch(&socket, id).is_ok() {
            self.conns.insert(id, Conn::new(socket, from, random));
            self.unauthenticated_count += 1;
            let deadline = Deadline::after(self.shared.config.handshake);
            self.unauthenticated.push_back((deadline, id));
        }
    }

    /// Closes a connection, if it is open. Its session stays for the linger time, in which the client can resume it
    /// over another one. `why` is logged.
    pub(super) fn close(&mut self, id: ConnId, why: &str) {
        if let Some(conn) = self.conns.remove(&id) {
            self.closed(id, &conn, why);
        }
    }

    fn closed(&mut self, id: ConnId, conn: &Conn, why: &str) {
        tracing::debug!(from = conn.from, why, "connection closed");
        if conn.hello.is_none() {
            self.unauthenticated_count -= 1;
        }
        if let Some(session) = conn.session
            && let Some(cut) = self.sessions.cut(id, session)
        {
            let deadline = Deadline::after(self.shared.config.linger);
            self.lingering.push_back((deadline, session, cut));
        }
    }

    /// Serves a connection that epoll reports: sends queued bytes, and reads once. An error closes the connection. A
    /// connection that turns out to be a lane's goes to its applier.
    fn serve(&mut self, id: ConnId, flags: EventFlags) {
        let Some(mut conn) = self.conns.remove(&id) else {
            return;
        };
        let mut result = Ok(());
        if flags.contains(EventFlags::OUT) {
            result = conn.send().map(drop).map_err(|e| e.to_string());
        }
        if result.is_ok()
            && flags
                .intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
        {
            result = match self.hear(id, &mut conn) {
                Ok(Turn::Go) => Ok(()),
                Ok(Turn::Lane(session, applier)) => {
                    self.hand_over(session, applier, conn);
                    return;
                }
                Err(why) => Err(why),
            };
        }
        match result.and_then(|()| self.settle(id, &mut conn).map_err(|e| e.to_string())) {
            Ok(()) => {
                self.conns.insert(id, conn);
            }
            Err(why) => self.closed(id, &conn, &why),
        }
    }

    /// Sends the answer to request `request` of connection `id` that was not answered at once. Does nothing if
    /// the connection has ended; closes it after an error.
    pub(super) fn tell(&mut self, id: ConnId, request: u64, answer: Answer) {
        let Some(mut conn) = self.conns.remove(&id) else {
            return;
        };
        let answered = send(&mut conn, request, answer);
        match answered.and_then(|()| self.settle(id, &mut conn).map_err(|e| e.to_string())) {
            Ok(()) => {
                self.conns.insert(id, conn);
            }
            Err(why) => self.closed(id, &conn, &why),
        }
    }

    /// Sends queued bytes, and lets epoll wait for writability if some remain.
    fn settle(&self, id: ConnId, conn: &mut Conn) -> io::Result<()> {
        let wants_room = !conn.send()?;
        if wants_room != conn.wants_room {
            conn.wants_room = wants_room;
            let mut flags = EventFlags::IN | EventFlags::RDHUP;
            if wants_room {
                flags |= EventFlags::OUT;
            }
            epoll::modify(&self.epoll, &conn.socket, EventData::new_u64(id), flags)?;
        }
        Ok(())
    }

    /// Reads once from a connection and handles the complete messages. The caller closes the connection after
    /// an error.
    fn hear(&mut self, id: ConnId, conn: &mut Conn) -> Result<Turn, String> {
        let mut buffer = vec![0; TURN_BYTES];
        let count = match conn.receive(&mut buffer).map_err(|e| e.to_string())? {
            None => return Ok(Turn::Go),
            Some(0) => return Err("the peer closed it".into()),
            Some(count) => count,
        };
        if conn.refused {
            return Ok(Turn::Go);
        }
        let mut bytes = &buffer[..count];
        while !bytes.is_empty() {
            let taken = conn.feed(bytes);
            bytes = &bytes[taken..];
            let before = bytes.len();
            while let Some(said) = self.next(conn)? {
                match said {
                    Said::Hello(hello) => {
                        if let Some(turn) = self.welcome(conn, hello, before == 0)? {
                            return Ok(turn);
                        }
                    }
                    Said::Request(number, request) => self.request(id, conn, number, request)?,
                }
            }
            if conn.refused {
                return Ok(Turn::Go);
            }
        }
        Ok(Turn::Go)
    }

    /// Decodes the next message of a connection; `None` if none is complete. After a failed handshake the
    /// peer gets the reason.
    fn next(&self, conn: &mut Conn) -> Result<Option<Said>, String> {
        let is_unix = matches!(conn.socket, Socket::Unix(_));
        let authenticated = self.conns.len() - self.unauthenticated_count.min(self.conns.len());
        let admit = |hello: &Hello| match hello.purpose {
            Purpose::Control if authenticated >= CONNECTIONS_MAX => {
                let numbers = [authenticated as u64, CONNECTIONS_MAX as u64, 0, 0];
                Err(Refusal::new(RefusalCode::TooMany, numbers).with_text("connections"))
            }
            Purpose::Control => Ok(()),
            Purpose::Lane { .. } if is_unix => Err(super::sessions::bad("lanes come over TCP")),
            Purpose::Lane {
                session,
                applier,
                nonce,
            } => self.sessions.check_lane(hello, session, applier, nonce),
        };
        match conn.next(&self.policy, admit) {
            Ok(said) => Ok(said),
            Err(e) if conn.hello.is_none() => {
                tracing::info!(from = conn.from, error = %e, "peer refused");
                conn.send().map_err(|e| e.to_string())?;
                conn.finish();
                Ok(None)
            }
            Err(e) => Err(e.to_string()),
        }
    }

    /// Completes the admission of an authenticated peer. Returns a turn only for the connection of a lane.
    /// `quiet`: no bytes followed the handshake.
    fn welcome(
        &mut self,
        conn: &mut Conn,
        hello: Hello,
        quiet: bool,
    ) -> Result<Option<Turn>, String> {
        self.unauthenticated_count -= 1;
        let purpose = hello.purpose;
        tracing::debug!(from = conn.from, role = ?hello.role, rank = hello.rank, ?purpose, "peer");
        conn.hello = Some(hello);
        let Purpose::Lane {
            session, applier, ..
        } = purpose
        else {
            // A host that vanishes says no goodbye: its session must not wait for one. (A lane ends
            // with its session, and may be silent for as long as its client computes.)
            if let Socket::Tcp(stream) = &conn.socket {
                dial::tune(stream).map_err(|e| e.to_string())?;
            }
            return Ok(None);
        };
        let sent = conn.send().map_err(|e| e.to_string())?;
        if !sent || !quiet {
            return Err("a lane's client spoke before it was welcomed".into());
        }
        Ok(Some(Turn::Lane(session, applier)))
    }

    /// Hands the connection of a lane over to the lane's applier. Closes it if it is no TCP connection or has bytes
    /// in its buffers: the client then finds the lane broken.
    fn hand_over(&mut self, session: SessionId, applier: ApplierId, conn: Conn) {
        let _ = epoll::delete(&self.epoll, &conn.socket);
        let from = conn.from.clone();
        if let (Socket::Tcp(stream), true) = conn.into_lane()
            && let Err(e) = self.sessions.connect_lane(session, applier, stream, from)
        {
            tracing::warn!(%session, error = %e, "lane not opened");
        }
    }
}

/// Outcome of reading from a connection once.
#[derive(Debug)]
enum Turn {
    /// The connection stays with the control thread.
    Go,
    /// The connection belongs to a lane of this session.
    Lane(SessionId, ApplierId),
}

impl Listeners {
    fn accept_tcp(&self) -> io::Result<Option<(Socket, String)>> {
        let Some(listener) = &self.tcp else {
            return Ok(None);
        };
        let ready = |(stream, from): (TcpStream, std::net::SocketAddr)| {
            stream.set_nonblocking(true)?;
            // Answers are small and a client waits for each.
            send_at_once(&stream)?;
            Ok((Socket::Tcp(stream), from.to_string()))
        };
        accepted(listener.accept(), ready)
    }

    fn accept_unix(&self) -> io::Result<Option<(Socket, String)>> {
        let Some(listener) = &self.unix else {
            return Ok(None);
        };
        let ready = |(stream, _): (UnixStream, _)| {
            stream.set_nonblocking(true)?;
            Ok((Socket::Unix(stream), "this host".to_owned()))
        };
        accepted(listener.accept(), ready)
    }
}

/// Converts the result of an accept call. `None` if no connection waits, the peer has hung up or a signal
/// interrupted the call: the caller waits for the next event.
fn accepted<S>(
    accepted: io::Result<S>,
    ready: impl FnOnce(S) -> io::Result<(Socket, String)>,
) -> io::Result<Option<(Socket, String)>> {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    match accepted.and_then(ready) {
        Ok(conn) => Ok(Some(conn)),
        Err(e) if matches!(e.kind(), WouldBlock | Interrupted | ConnectionAborted) => Ok(None),
        Err(e) => Err(e),
    }
}

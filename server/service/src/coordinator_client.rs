//! Connection of a server process to its coordinator. The server joins over it and then carries out orders.
//!
//! ```text
//! Agent::connect   authenticates, and learns the cluster's numbers, which the server needs for clients
//! (the server starts: it listens, so that its endpoints are known)
//! Agent::join      the coordinator knows the server
//! Enlisted::obey   orders, one after the other, until one of them, or the caller, says "end"
//! ```
//! Orders are carried out on the calling thread: creating a table may take long, and meanwhile the
//! server's own threads serve clients. Saves and loads are carried out on other threads
//! (`model_files`), and are answered when they are done.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use tidewater_control::conn::{ConnError, ControlConn};
use tidewater_control::dial::{self, Claims, DialError};
use tidewater_lanes::wake::Waker;
use tidewater_protocol::ids::{DomainId, ServerId, TableId, WorkerId};
use tidewater_protocol::limits::{COORDINATOR_ABSENCE_MAX, DATA_DEADLINE};
use tidewater_protocol::wire::WireError;
use tidewater_protocol::wire::control::{
    self, Command, CommandReply, CoordinatorAnswer, CoordinatorRequest, Join, Joined, Message,
    Notice, ServerMember, TableInfo,
};
use tidewater_protocol::wire::frame::kind;
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_protocol::wire::hello::{Features, Ids, NAMESPACE_DEFAULT, RANK_ANY, Role};
use tidewater_protocol::wire::peer::ControlPeer;
use tidewater_protocol::wire::refusal::Refusal;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::socket_options::give_up_after;

use crate::model_files::ModelFiles;

/// A worker that a server has admitted: namespace, rank, and first clocks by domain.
type Admitted = (String, WorkerId, Vec<(DomainId, u64)>);

/// Time limit for sending the last message to the coordinator, and for its answer.
const FAREWELL: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 64 << 10;
const NONSENSE: &str = "it answers with something else; is it of another release?";

mod orders;
mod reconnect;
#[cfg(test)]
mod tests;

pub use orders::Orders;
use reconnect::ReturnAddress;

/// Reason why the connection to a coordinator ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LostCause {
    /// The coordinator closed it, or sent what the protocol does not allow here.
    #[error("{0}")]
    Peer(&'static str),
    /// A message could not be written or read.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The connection failed while it was used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The coordinator did not return after a restart.
    #[error("it has not returned within {seconds} s: {last}")]
    NotReturned {
        /// Time limit that passed, in seconds.
        seconds: u64,
        /// Result of the last attempt.
        last: String,
    },
}

impl From<&'static str> for LostCause {
    fn from(text: &'static str) -> Self {
        Self::Peer(text)
    }
}

/// Reason why a server could not join its cluster, or had to leave it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The coordinator cannot be reached, or refuses the handshake.
    #[error("coordinator: {0}")]
    Dial(#[from] DialError),
    /// The coordinator refuses to let the server join.
    #[error("coordinator at {address}: {source}")]
    Join {
        /// Address of the coordinator.
        address: String,
        /// Error of the connection.
        source: ConnError,
    },
    /// The connection to the coordinator ended.
    #[error("lost the coordinator at {address}: {source}; look at its output")]
    Lost {
        /// Address of the coordinator.
        address: String,
        /// How the connection ended.
        source: LostCause,
    },
    /// The job has failed, although this server is healthy.
    #[error("{0}")]
    JobFailed(Refusal),
    /// This server itself has failed; the coordinator has the reason.
    #[error("{0}; the job ends")]
    ServerFailed(String),
    /// A system call failed.
    #[error("waiting for the coordinator at {address}: {source}")]
    Wait {
        /// Address of the coordinator.
        address: String,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Reason why [`Enlisted::obey`] returned without an error; the caller must shut the server down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The coordinator ordered the end.
    ByOrder,
    /// One of the caller's descriptors ended it; the coordinator got a goodbye.
    ByCaller,
}

/// An authenticated connection to the coordinator, of a server that has not joined.
#[derive(Debug)]
pub struct Agent {
    address: String,
    token: JobToken,
    /// Silence of the coordinator's host after which the kernel closes the connection, if set.
    lease: Option<Duration>,
    conn: ControlConn<TcpStream>,
    number: ServerId,
    workers: u32,
}

impl Agent {
    /// Connects to the coordinator as server `number`; `None` takes the lowest free one. `meant` names the
    /// expected coordinator, all 0 for any. Blocks until `deadline` while the coordinator is starting.
    ///
    /// # Errors
    /// [`AgentError::Dial`]; [`AgentError::Join`]: refused, or no number is free; `Lost`: an unexpected answer.
    pub fn connect(
        address: &str,
        token: &JobToken,
        meant: Ids,
        number: Option<ServerId>,
        deadline: Deadline,
    ) -> Result<Self, AgentError> {
        let namespace = NAMESPACE_DEFAULT.to_owned();
        let claims = Claims {
            ids: meant,
            namespace,
            role: Role::Server,
            rank: number.map_or(RANK_ANY, |number| number.0),
        };
        let conn = dial::control(address, token, &claims, deadline)?;
        let mut agent = Self {
            address: address.to_owned(),
            token: token.clone(),
            lease: None,
            conn,
            number: ServerId(0),
            workers: 0,
        };
        agent.number = match number {
            Some(number) => number,
            None => match agent.ask(&CoordinatorRequest::Number, deadline)? {
                CoordinatorAnswer::Number(number) => number,
                _ => return Err(agent.lost(NONSENSE)),
            },
        };
        agent.workers = match agent.ask(&CoordinatorRequest::Members, deadline)? {
            CoordinatorAnswer::Members(members) => members.workers.len() as u32,
            _ => return Err(agent.lost(NONSENSE)),
        };
        Ok(agent)
    }

    /// Sends a request before the server has joined; blocks until its answer or `deadline`. Errors are all `Join`.
    fn ask(
        &mut self,
        request: &CoordinatorRequest,
        deadline: Deadline,
    ) -> Result<CoordinatorAnswer, AgentError> {
        let asked = self.conn.call(request, || deadline.left());
        asked.map_err(|source| AgentError::Join {
            address: self.address.clone(),
            source,
        })
    }

    /// Local IP address of this connection: the one by which the coordinator's network is reached.
    ///
    /// # Errors
    /// [`AgentError::Wait`].
    pub fn local(&mut self) -> Result<IpAddr, AgentError> {
        let local = self.conn.stream_mut().local_addr();
        let failed = |source| AgentError::Wait {
            address: self.address.clone(),
            source,
        };
        local.map(|at| at.ip().to_canonical()).map_err(failed)
    }

    /// Number of this server.
    pub const fn number(&self) -> ServerId {
        self.number
    }

    /// Number of workers of each job of the cluster; 0 when unknown, as in a service.
    pub const fn workers(&self) -> u32 {
        self.workers
    }

    /// Ids of the cluster and its epoch at the handshake, and the coordinator's incarnation.
    pub const fn ids(&self) -> Ids {
        self.conn.welcome().ids
    }

    /// Makes the kernel close the connection after this silence of the coordinator's host.
    ///
    /// # Errors
    /// [`AgentError::Wait`].
    pub fn set_lease(&mut self, lease: Duration) -> Result<(), AgentError> {
        self.lease = Some(lease);
        let set = give_up_after(self.conn.stream_mut(), lease);
        set.map_err(|source| AgentError::Wait {
            address: self.address.clone(),
            source,
        })
    }

    /// Joins the cluster as server `member`; blocks until the answer. `restarts`: how often its holder
    /// restarts it after a signal. `kept`: tables from its predecessor's memory, if it has that.
    ///
    /// # Errors
    /// [`AgentError`]: refused, no answer in time, or a failed connection. The connection is then closed.
    pub fn join(
        mut self,
        member: &ServerMember,
        restarts: u32,
        kept: Option<Vec<TableId>>,
    ) -> Result<(Enlisted, Joined), AgentError> {
        let limit = Deadline::after(COORDINATOR_ABSENCE_MAX);
        // Before the cluster counts this server as ready: it opens no descriptor later.
        let address = self.address.clone();
        let files_waker = Waker::new().map_err(|source| AgentError::Wait { address, source })?;
        let join = Join {
            host: member.host.clone(),
            host_id: member.host_id.clone(),
            pid: std::process::id(),
            incarnation: member.incarnation,
            endpoints: member.endpoints.clone(),
            appliers: member.appliers,
            workers: 0,
            restarts,
            kept,
            returns: false,
        };
        let request = CoordinatorRequest::Join(join.clone());
        let joined = loop {
            match self.ask(&request, Deadline::after(DATA_DEADLINE)) {
                Ok(CoordinatorAnswer::Joined(joined)) => break joined,
                Ok(_) => return Err(self.lost(NONSENSE)),
                // It may have taken long to read the memory. A coordinator with a journal returns meanwhile, and
                // knows a process that has joined by its incarnation.
                Err(AgentError::Join {
                    source: ConnError::Io { .. } | ConnError::Closed { .. },
                    ..
                }) if self.resumes() && !limit.passed() => self.dial_again(limit)?,
                Err(error) => return Err(error),
            }
        };
        let number = ServerId(joined.rank);
        let welcome = *self.conn.welcome();
        let return_address = self.resumes().then_some(ReturnAddress {
            token: self.token,
            lease: self.lease,
            ids: welcome.ids,
            join: Join {
                incarnation: member.incarnation,
                ..join
            },
        });
        let (stream, peer) = self.conn.into_peer();
        let enlisted = Enlisted {
            address: self.address,
            return_address,
            admitted: BTreeSet::new(),
            stream,
            peer,
            number,
            files_waker,
            tables: BTreeMap::new(),
            removed: BTreeSet::new(),
            held: BTreeSet::new(),
            adopted: BTreeSet::new(),
            admits: BTreeSet::new(),
            failed: None,
        };
        Ok((enlisted, joined))
    }

    /// Whether the coordinator has a journal, so that it can return after a restart.
    const fn resumes(&self) -> bool {
        self.conn.welcome().features.offered & Features::RESUMES != 0
    }

    fn lost(&self, cause: &'static str) -> AgentError {
        AgentError::Lost {
            address: self.address.clone(),
            source: cause.into(),
        }
    }
}

/// A server that has joined its cluster, with its connection to the coordinator.
#[derive(Debug)]
pub struct Enlisted {
    address: String,
    stream: TcpStream,
    peer: ControlPeer,
    number: ServerId,
    /// How to return to a coordinator that was restarted; `None` if it has no journal.
    return_address: Option<ReturnAddress>,
    /// Workers admitted at these clocks and not removed since: a restarted coordinator repeats such orders.
    admitted: BTreeSet<Admitted>,
    /// Wakes this thread when a save or load is done.
    files_waker: Waker,
    /// Tables of this server, each with the namespace of its job.
    tables: BTreeMap<TableId, (String, TableInfo)>,
    /// Workers that the server was ordered to remove and that have not joined again.
    removed: BTreeSet<(String, WorkerId)>,
    /// Namespaces of the jobs with held clocks.
    held: BTreeSet<String>,
    /// Jobs of adopted tables, until the first order about their members: their clocks are held if the predecessor
    /// of this server held them.
    adopted: BTreeSet<String>,
    /// Jobs with clocks held since the last admission: the next order to admit a worker is new.
    admits: BTreeSet<String>,
    /// Reason why the job has failed, if the coordinator has reported that.
    failed: Option<Refusal>,
}

impl Enlisted {
    /// Carries out the coordinator's orders on the calling thread. Returns when it orders the end, or when
    /// one of `stop` becomes readable or hangs up. In every case the caller must then shut the server down.
    ///
    /// If the connection breaks and the coordinator keeps a journal, the server waits for the coordinator's return,
    /// joins again, and continues. If the coordinator that returns is about to end, that counts as an order to end.
    ///
    /// # Errors
    /// The coordinator is lost and keeps no journal, or does not return in time. The one that returns has an older
    /// journal, or refuses this server. The job of a foreign launcher has failed. This server has failed: the
    /// coordinator, and through it every client, gets the reason, unless the coordinator is absent.
    pub fn obey(mut self, node: &dyn Orders, stop: &[BorrowedFd<'_>]) -> Result<Ended, AgentError> {
        let mut files = ModelFiles::new(self.number, self.files_waker.clone());
        let ended = self.obey_with(node, &mut files, stop);
        files.end(Deadline::after(FAREWELL));
        ended
    }

    fn obey_with(
        &mut self,
        node: &dyn Orders,
        files: &mut ModelFiles,
        stop: &[BorrowedFd<'_>],
    ) -> Result<Ended, AgentError> {
        loop {
            match self.obey_connection(node, files, stop) {
                Err(AgentError::Lost { source, .. }) if self.return_address.is_some() => {
                    if let Some(ended) = self.reconnect(node, stop, &source)? {
                        return Ok(ended);
                    }
                }
                ended => return ended,
            }
        }
    }

    /// Carries out orders over the current connection. If it breaks, returns `Lost`; the caller may then reconnect.
    fn obey_connection(
        &mut self,
        node: &dyn Orders,
        files: &mut ModelFiles,
        stop: &[BorrowedFd<'_>],
    ) -> Result<Ended, AgentError> {
        self.stream
            .set_nonblocking(true)
            .map_err(|source| self.wait_error(source))?;
        let mut scratch = vec![0; READ_BYTES];
        // Messages that came together with the answer to Join.
        if self.take_messages(node, files)? {
            return Ok(Ended::ByOrder);
        }
        loop {
            let own = [node.failure_descriptor(), files.descriptor()];
            let stopped = self.wait(own, stop)?;
            if let Some(why) = node.failure() {
                let reason = why.to_owned();
                self.say(&CoordinatorRequest::Failed { reason }, &mut scratch);
                return Err(AgentError::ServerFailed(why.to_owned()));
            }
            if stopped {
                self.say(&CoordinatorRequest::Goodbye, &mut scratch);
                return Ok(Ended::ByCaller);
            }
            for (id, reply) in files.take_done() {
                let queued = self.peer.queue(id, &reply);
                queued.map_err(|error| self.lost(error))?;
            }
            self.flush()?;
            let count = self.read(&mut scratch)?;
            let mut fed = 0;
            while fed < count {
                fed += self.peer.feed(&scratch[fed..count]);
                if self.take_messages(node, files)? {
                    return Ok(Ended::ByOrder);
                }
            }
        }
    }

    /// Blocks until the coordinator or a descriptor of `own` or `stop` is ready. Returns whether one of `stop`
    /// is.
    fn wait(&self, own: [BorrowedFd<'_>; 2], stop: &[BorrowedFd<'_>]) -> Result<bool, AgentError> {
        let mut wanted = PollFlags::IN | PollFlags::RDHUP;
        if !self.peer.outgoing().is_empty() {
            wanted |= PollFlags::OUT;
        }
        let mut fds = vec![PollFd::new(&self.stream, wanted)];
        fds.extend(own.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.extend(
            stop.iter()
                .map(|fd| PollFd::new(fd, PollFlags::IN | PollFlags::RDHUP)),
        );
        match rustix::event::poll(&mut fds, None) {
            Ok(_) => Ok(fds
                .iter()
                .skip(1 + own.len())
                .any(|fd| !fd.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(self.wait_error(error.into())),
        }
    }

    fn read(&mut self, scratch: &mut [u8]) -> Result<usize, AgentError> {
        match self.stream.read(scratch) {
            Ok(0) => Err(self.lost("it closed the connection")),
            Ok(count) => Ok(count),
            Err(error) if is_harmless(&error) => Ok(0),
            Err(error) => Err(self.lost(error)),
        }
    }

    /// Handles the complete messages received so far. Returns `true` after the order to shut down, or the error
    /// `JobFailed` if the coordinator has reported that before.
    fn take_messages(
        &mut self,
        node: &dyn Orders,
        files: &mut ModelFiles,
    ) -> Result<bool, AgentError> {
        loop {
            let frame = self.peer.next_message();
            let (id, order) = match frame {
                Ok(None) => return Ok(false),
                Ok(Some(frame)) if frame.kind() == Command::KIND => {
                    match control::decode::<Command>(&frame) {
                        Ok(order) => order,
                        Err(error) => return Err(self.lost(error)),
                    }
                }
                Ok(Some(frame)) if frame.kind() == Notice::KIND => {
                    // Other notices concern workers.
                    if let Ok((_, Notice::PeerFailed(refusal))) = control::decode(&frame) {
                        self.failed.get_or_insert(refusal);
                    }
                    continue;
                }
                // Late answers concern workers too.
                Ok(Some(frame)) if frame.kind() == kind::COORDINATOR_ANSWER => continue,
                Ok(Some(frame)) => {
                    let (found, expected) = (frame.kind(), Command::KIND);
                    return Err(self.lost(WireError::Kind { found, expected }));
                }
                Err(error) => return Err(self.lost(error)),
            };
            let is_end = order == Command::Shutdown;
            tracing::debug!(id, ?order, "an order");
            let done = self.carry_out(node, files, id, order);
            let answer = done.unwrap_or_else(|refusal| {
                tracing::warn!(%refusal, "an order cannot be carried out");
                Some(CommandReply::Refused(refusal))
            });
            if let Some(answer) = answer {
                let queued = self.peer.queue(id, &answer);
                queued.map_err(|error| self.lost(error))?;
            }
            self.flush()?;
            if is_end {
                self.flush_within(FAREWELL);
                return match self.failed.take() {
                    Some(refusal) => Err(AgentError::JobFailed(refusal)),
                    None => Ok(true),
                };
            }
        }
    }

    /// Writes queued bytes until the socket accepts no more. Does not block.
    fn flush(&mut self) -> Result<(), AgentError> {
        while !self.peer.outgoing().is_empty() {
            match self.stream.write(self.peer.outgoing()) {
                Ok(count) => self.peer.sent(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(self.lost(error)),
            }
        }
        Ok(())
    }

    /// Writes all queued bytes; blocks for at most `time`. Ignores errors.
    fn flush_within(&mut self, time: Duration) {
        let deadline = Deadline::after(time);
        while !self.peer.outgoing().is_empty() && !deadline.passed() && self.flush().is_ok() {
            let mut fds = [PollFd::new(&self.stream, PollFlags::OUT)];
            let _ = rustix::event::poll(&mut fds, deadline.left().try_into().ok().as_ref());
        }
    }

    /// Sends `last`, a goodbye or the failure, and waits up to `FAREWELL` for the answer. Ignores errors.
    fn say(&mut self, last: &CoordinatorRequest, scratch: &mut [u8]) {
        if self.peer.queue(u64::MAX, last).is_err() {
            return;
        }
        self.flush_within(FAREWELL);
        let deadline = Deadline::after(FAREWELL);
        while !deadline.passed() {
            let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, deadline.left().try_into().ok().as_ref());
            let Ok(count) = self.read(scratch) else {
                return;
            };
            let _ = self.peer.feed(&scratch[..count]);
            while let Ok(Some(frame)) = self.peer.next_message() {
                if frame.kind() == kind::COORDINATOR_ANSWER {
                    return;
                }
            }
        }
    }

    fn lost(&self, cause: impl Into<LostCause>) -> AgentError {
        AgentError::Lost {
            address: self.address.clone(),
            source: cause.into(),
        }
    }

    fn wait_error(&self, source: io::Error) -> AgentError {
        AgentError::Wait {
            address: self.address.clone(),
            source,
        }
    }
}

fn is_harmless(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

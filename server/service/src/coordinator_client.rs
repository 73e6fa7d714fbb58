// long: the orders, and the connection that they come over.

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
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use tidewater_control::conn::{ConnError, ControlConn};
use tidewater_control::dial::{self, Claims, DialError};
use tidewater_lanes::wake::Waker;
use tidewater_protocol::ids::{DomainId, ServerId, TableId, WorkerId, WorkerThread};
use tidewater_protocol::limits::{COORDINATOR_ABSENCE_MAX, DATA_DEADLINE};
use tidewater_protocol::wire::WireError;
use tidewater_protocol::wire::control::{
    self, Command, CommandReply, CoordinatorAnswer, CoordinatorRequest, DomainClock, Join, Joined,
    Members, Message, Notice, ServerMember, ServerStatus, TableInfo, ThreadClock, WorkerState,
};
use tidewater_protocol::wire::frame::kind;
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_protocol::wire::hello::{Features, Ids, NAMESPACE_DEFAULT, RANK_ANY, Role};
use tidewater_protocol::wire::peer::ControlPeer;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::socket_options::give_up_after;

use crate::checkpoint::Appliers;
use crate::model_files::{FileOrder, ModelFiles};

/// A worker that a server has admitted: namespace, rank, and first clocks by domain.
type Admitted = (String, WorkerId, Vec<(DomainId, u64)>);

/// Time limit for sending the last message to the coordinator, and for its answer.
const FAREWELL: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 64 << 10;
const NONSENSE: &str = "it answers with something else; is it of another release?";

mod reconnect;
#[cfg(test)]
mod tests;

use reconnect::ReturnAddress;

/// Operations by which a server carries out the coordinator's orders. Each call blocks until its work is done.
pub trait Orders {
    /// Returns access to the appliers, for the thread of a save or load.
    fn appliers(&self) -> Box<dyn Appliers + Send>;

    /// Creates this server's share of a table.
    ///
    /// # Errors
    /// The refusal that the coordinator gets; nothing is left of the table.
    fn create_table(&self, namespace: &str, table: &TableInfo) -> Result<(), Refusal>;

    /// Serves this server's share of a table again, from memory that its dead predecessor process has left.
    ///
    /// # Errors
    /// The refusal that the coordinator gets. The share stays in memory until the table is released.
    fn adopt_table(&self, namespace: &str, table: &TableInfo) -> Result<(), Refusal>;

    /// Releases this server's share of a table and frees its memory.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn release_table(&self, id: TableId) -> Result<(), Refusal>;

    /// Loads a function from a module, for a job.
    ///
    /// # Errors
    /// The refusal that the coordinator gets; the server does not have the function then.
    fn load_function(&self, namespace: &str, name: &str, module: &[u8]) -> Result<(), Refusal>;

    /// Removes a worker from its job, so that no clock waits for it.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn remove_worker(&self, namespace: &str, worker: WorkerId) -> Result<(), Refusal>;

    /// Applies the pushes, held until now, of a task that `thread` has finished. `delivery` numbers the task.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn finish_task(
        &self,
        namespace: &str,
        thread: WorkerThread,
        delivery: u64,
    ) -> Result<(), Refusal>;

    /// Ends the sessions of a lost worker. Returns the highest clock of each of its threads.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn lose_worker(&self, namespace: &str, worker: WorkerId) -> Result<Vec<ThreadClock>, Refusal>;

    /// Raises a lost worker's clocks to `clocks` on appliers where they are lower, so that all count equal ticks.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn end_worker(
        &self,
        namespace: &str,
        worker: WorkerId,
        clocks: &[ThreadClock],
    ) -> Result<(), Refusal>;

    /// Holds a job's clocks: appliers consume no tick until `Self::admit`. Returns the highest clock by domain.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn hold_clocks(&self, namespace: &str) -> Result<Vec<DomainClock>, Refusal>;

    /// Returns the highest clock of each domain of a job, without holding them.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn read_clocks(&self, namespace: &str) -> Result<Vec<DomainClock>, Refusal>;

    /// Lets a job's held (stopped) clocks advance. `admitted`: a new member, if any, with its first clocks.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn admit(
        &self,
        namespace: &str,
        admitted: Option<(WorkerId, Vec<DomainClock>)>,
    ) -> Result<(), Refusal>;

    /// Ends a job's sessions and clocks; the next job of that name starts with new clocks.
    ///
    /// # Errors
    /// The refusal that the coordinator gets.
    fn end_job(&self, namespace: &str) -> Result<(), Refusal>;

    /// Reason why this server cannot continue; `None` while it can.
    fn failure(&self) -> Option<&str>;

    /// Descriptor that is readable once [`Self::failure`] returns a reason.
    fn failure_descriptor(&self) -> BorrowedFd<'_>;

    /// Sets the cluster's epoch, which rises when a server leaves. Peers that connect later must know it.
    fn set_epoch(&self, epoch: u64);

    /// Returns a closure that collects the server's status for operators. It may block for seconds.
    fn reporter(&self) -> Box<dyn FnOnce() -> ServerStatus + Send>;
}

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
    /// Workers that the server was ordered to remove.
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
    /// # Errors
    /// The coordinator is lost, the job of a foreign launcher has failed, or this server has failed. In the last case
    /// the coordinator, and through it every client, gets the reason.
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

    /// Handles the complete messages received so far. Returns `true` after the order to shut down.
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

    fn make_table(
        &mut self,
        node: &dyn Orders,
        namespace: String,
        table: TableInfo,
    ) -> Result<(), Refusal> {
        node.create_table(&namespace, &table)?;
        self.tables.insert(table.id, (namespace, table));
        Ok(())
    }

    /// Carries an order out. `None` if a thread of `files` makes the reply: its `take_done` returns it later.
    fn carry_out(
        &mut self,
        node: &dyn Orders,
        files: &mut ModelFiles,
        id: u64,
        order: Command,
    ) -> Result<Option<CommandReply>, Refusal> {
        match order {
            Command::CreateTable { namespace, table } => self.make_table(node, namespace, table)?,
            Command::AdoptTable { namespace, table } => {
                self.adopt_table(node, namespace, table)?;
            }
            Command::ReleaseTable { id } => {
                self.tables.remove(&id);
                node.release_table(id)?;
            }
            Command::LoadFunction {
                namespace,
                name,
                module,
            } => node.load_function(&namespace, &name, &module.0)?,
            Command::MembersChanged {
                namespace,
                members,
                admitted,
            } => {
                if members.workers.is_empty() {
                    files.end_job(&namespace);
                }
                // Before other workers are removed: the clocks that were held have not moved.
                self.admit(node, &namespace, admitted)?;
                self.members_changed(node, &namespace, &members)?;
            }
            Command::HoldClocks { namespace } => {
                let clocks = node.hold_clocks(&namespace)?;
                self.admits.insert(namespace.clone());
                self.held.insert(namespace);
                return Ok(Some(CommandReply::Clocks(clocks)));
            }
            Command::Save {
                namespace,
                dir,
                clocks,
                checkpoint,
            } => {
                let order = self.save(&namespace, dir, clocks);
                if checkpoint {
                    self.held.remove(&namespace);
                    files.begin_checkpoint(id, &namespace, order, || node.appliers())?;
                } else {
                    files.order(id, &namespace, order, || node.appliers())?;
                }
                return Ok(None);
            }
            Command::CancelSave { namespace } => files.cancel_checkpoint(&namespace),
            Command::Load {
                id: table,
                name,
                dir,
            } => {
                let (namespace, order) = self.load(table, &name, dir)?;
                files.order(id, namespace, order, || node.appliers())?;
                return Ok(None);
            }
            Command::Shutdown => {}
            of_workers @ (Command::LoseWorker { .. }
            | Command::EndWorker { .. }
            | Command::ReadClocks { .. }
            | Command::FinishTask { .. }) => return about_workers(node, of_workers).map(Some),
            Command::Status => {
                // It may wait for seconds: clocks that are held must go on meanwhile.
                let report = node.reporter();
                files.answer_apart(id, || CommandReply::Status(Box::new(report())))?;
                return Ok(None);
            }
        }
        Ok(Some(CommandReply::Done))
    }

    /// Serves a table of the predecessor's memory again. A repeated order changes nothing.
    fn adopt_table(
        &mut self,
        node: &dyn Orders,
        namespace: String,
        table: TableInfo,
    ) -> Result<(), Refusal> {
        node.adopt_table(&namespace, &table)?;
        let known = self.tables.insert(table.id, (namespace.clone(), table));
        if known.is_none() {
            self.adopted.insert(namespace);
        }
        Ok(())
    }

    /// Lets a job's held (stopped) clocks advance, with the new member `admitted` if there is one; or adds a
    /// scheduled stay (join-to-leave interval). Skips orders that a restarted coordinator repeats.
    fn admit(
        &mut self,
        node: &dyn Orders,
        namespace: &str,
        admitted: Option<(WorkerId, Vec<DomainClock>)>,
    ) -> Result<(), Refusal> {
        let was_held = self.held.remove(namespace);
        let was_adopted = self.adopted.remove(namespace);
        if !was_held && !was_adopted && admitted.is_none() {
            return Ok(());
        }
        if let Some((rank, clocks)) = &admitted {
            let clocks = clocks.iter().map(|at| (at.domain, at.clock)).collect();
            let is_new = self.admits.remove(namespace);
            if !self.admitted.insert((namespace.to_owned(), *rank, clocks)) && !is_new {
                // The order was carried out before the coordinator was restarted.
                return Ok(());
            }
            // The loss of the rank's member before may not have been announced. Without a hold this is a stay
            // of a schedule, and the member may be alive.
            if was_held || (is_new && self.return_address.is_some()) {
                node.remove_worker(namespace, *rank)?;
            }
            self.removed.remove(&(namespace.to_owned(), *rank));
        }
        node.admit(namespace, admitted)
    }

    fn members_changed(
        &mut self,
        node: &dyn Orders,
        namespace: &str,
        members: &Members,
    ) -> Result<(), Refusal> {
        node.set_epoch(members.epoch);
        if members.workers.is_empty() {
            self.removed.retain(|(job, _)| job != namespace);
            self.admitted.retain(|(job, ..)| job != namespace);
            return node.end_job(namespace);
        }
        for worker in take_ended(&mut self.removed, namespace, members) {
            self.admitted
                .retain(|(job, rank, _)| job != namespace || *rank != worker);
            node.remove_worker(namespace, worker)?;
        }
        Ok(())
    }

    fn save(&self, namespace: &str, dir: String, clocks: Vec<DomainClock>) -> FileOrder {
        let of_job = self.tables.values().filter(|(job, _)| job == namespace);
        let tables = of_job.map(|(_, table)| table.clone());
        FileOrder::Save {
            tables: tables.filter(|t| !t.spec.is_transient()).collect(),
            clocks,
            dir: PathBuf::from(dir),
            begun: None,
        }
    }

    fn load(&self, id: TableId, name: &str, dir: String) -> Result<(&str, FileOrder), Refusal> {
        let table = self
            .tables
            .get(&id)
            .filter(|(_, table)| table.spec.name == name);
        let numbers = [u64::from(id.0), 0, 0, 0];
        let found = table.ok_or_else(|| Refusal::new(RefusalCode::UnknownTable, numbers))?;
        let (namespace, table) = (&found.0, found.1.clone());
        let dir = PathBuf::from(dir);
        Ok((namespace, FileOrder::Load { table, dir }))
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

/// Carries out an order about workers: their loss, their clocks, or a finished task.
fn about_workers(node: &dyn Orders, order: Command) -> Result<CommandReply, Refusal> {
    match order {
        Command::LoseWorker { namespace, worker } => node
            .lose_worker(&namespace, worker)
            .map(CommandReply::ThreadClocks),
        Command::EndWorker {
            namespace,
            worker,
            clocks,
        } => node
            .end_worker(&namespace, worker, &clocks)
            .map(|()| CommandReply::Done),
        Command::ReadClocks { namespace } => node.read_clocks(&namespace).map(CommandReply::Clocks),
        Command::FinishTask {
            namespace,
            worker,
            thread,
            delivery,
        } => {
            let thread = WorkerThread {
                rank: worker,
                thread,
            };
            node.finish_task(&namespace, thread, delivery)
                .map(|()| CommandReply::Done)
        }
        other => unreachable!("{other:?} is no order about workers"),
    }
}

/// Returns the workers of a job that have ended and are not yet in `removed`, the set of those already taken from the
/// clocks, and adds them to it. Takes a live worker out of `removed`: its rank has joined again.
fn take_ended(
    removed: &mut BTreeSet<(String, WorkerId)>,
    namespace: &str,
    members: &Members,
) -> Vec<WorkerId> {
    let mut ended = Vec::new();
    for worker in &members.workers {
        let key = (namespace.to_owned(), worker.id);
        match worker.state {
            WorkerState::Expected => {}
            WorkerState::Live => {
                removed.remove(&key);
            }
            WorkerState::Finished | WorkerState::Lost => {
                if removed.insert(key) {
                    ended.push(worker.id);
                }
            }
        }
    }
    ended
}

fn is_harmless(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

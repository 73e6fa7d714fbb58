//! Control-plane links of a client, as traits: the simulator, the embedded cluster and sockets serve
//! the same client.

use std::time::Duration;

use tidewater_lanes::fabric::{ClientLane, Parker, RemoteAddr, TransportKind};
use tidewater_protocol::ids::{ApplierId, DomainId, ServerId, SessionId, TableId, WorkerThread};
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::table::TableSpec;
use tidewater_protocol::wire::control::{
    Arrival, DomainClock, Joined, MemberBarrier, Members, SlowMember, TableDescriptor, TableInfo,
    TaskAnswer, TaskRequest, WorkerClock,
};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Buffer;
use tidewater_runtime::sync::Arc;

use crate::error::{Cause, ClientError, ControlFailure};

/// A lane at the beginning of its session, or after recovery.
pub struct OpenLane {
    /// Client's end of the lane.
    pub lane: Box<dyn ClientLane>,
    /// Progress of the lane's ring at the server.
    pub state: StateLine,
    /// Public copy of its status record, read when the mailbox shows no progress; `None` where the
    /// server has none.
    pub status: Option<RemoteAddr>,
}

/// The control connection to one server, and the session on it.
pub trait ServerLink: Send {
    /// Name of the server for messages.
    fn name(&self) -> &str;

    /// Identifier of the session on this connection.
    fn session(&self) -> SessionId;

    /// Transport that carries the lanes.
    fn transport(&self) -> TransportKind;

    /// Size of each lane's ring in bytes.
    fn ring_bytes(&self) -> usize;

    /// Address of the word in which this session's clients count the pushes sent to an applier. `None`
    /// if pushes are not counted.
    fn counter(&self, _applier: ApplierId) -> Option<RemoteAddr> {
        None
    }

    /// Fetches the server's part of a table.
    ///
    /// # Errors
    /// The server's refusal, or the connection's failure.
    fn describe(
        &mut self,
        table: TableId,
        deadline: Deadline,
    ) -> Result<TableDescriptor, ClientError>;

    /// Ticks of the threads of workers that count in a domain, as consumed by this server. They name the
    /// threads that a clock wait waits for.
    ///
    /// # Errors
    /// The server's refusal, or the connection's failure.
    fn clocks(
        &mut self,
        domain: DomainId,
        deadline: Deadline,
    ) -> Result<Vec<(WorkerThread, u64)>, ClientError>;

    /// Step times of the threads of workers in a domain, as this server sees them. Empty where the
    /// server has none.
    ///
    /// # Errors
    /// The server's refusal, or the connection's failure.
    fn paces(
        &mut self,
        _domain: DomainId,
        _deadline: Deadline,
    ) -> Result<Vec<WorkerClock>, ClientError> {
        Ok(Vec::new())
    }

    /// Keeps the session alive between calls. If the control connection was cut, it reconnects before
    /// the server ends the session. Takes at most a second; an unreachable server is tried again at the
    /// next call.
    ///
    /// # Errors
    /// The server's refusal when the session has ended.
    fn check(&mut self, _deadline: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    /// Ends the session at once, instead of some time after its connection. Complete frames in its rings
    /// are applied. May be repeated.
    ///
    /// # Errors
    /// The server's refusal, or that the server is unreachable.
    fn end_session(&mut self, _deadline: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    /// Registers a buffer with the NIC of its lanes, if there is one.
    ///
    /// # Errors
    /// Error of the NIC or the system.
    fn register(&mut self, _buffer: &mut Buffer) -> Result<(), Cause> {
        Ok(())
    }

    /// Re-establishes a broken lane. Idempotent: an interrupted call is repeated.
    ///
    /// # Errors
    /// The server's refusal, or that the server is unreachable.
    fn recover(&mut self, applier: ApplierId, deadline: Deadline) -> Result<OpenLane, ClientError>;

    /// Learns the epoch of a membership. Returns whether its server is another process there, which has the session:
    /// every lane is then to be recovered.
    fn follow(&mut self, _members: &Members) -> bool {
        false
    }
}

/// Connections of a further thread of a worker.
pub struct ThreadLinks {
    /// Each server with its lanes, in the order of the server numbers.
    pub servers: Vec<(Box<dyn ServerLink>, Vec<OpenLane>)>,
    /// Parker in which the thread sleeps while it waits.
    pub parker: Box<dyn Parker>,
}

/// Opens sessions of further threads of one worker.
pub trait ConnectThread: Send + Sync {
    /// Opens a session with every server for thread number `thread` of the worker.
    ///
    /// # Errors
    /// The refusal of a server, or that it is unreachable.
    fn connect(&self, thread: u32, deadline: Deadline) -> Result<ThreadLinks, ClientError>;

    /// The same for the servers of a later membership; `None` where servers have no successors.
    fn renewed(&self, _members: &Members) -> Option<Arc<dyn ConnectThread>> {
        None
    }
}

/// Amount of a saved model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// Number of rows and blocks saved.
    pub rows: u64,
    /// Number of bytes written.
    pub bytes: u64,
}

/// Result of loading a saved model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Names of its tables, to be opened.
    pub tables: Vec<String>,
    /// Number of rows and blocks read.
    pub rows: u64,
    /// Clocks at which it was saved; [`Loaded::clock`] looks one up.
    pub clocks: Vec<DomainClock>,
}

impl Loaded {
    /// Iterations of a clock domain that the model has seen, in all jobs that led to it. It is 0 for a
    /// domain without ticks. A resumed program continues at this iteration; the clocks of its job begin
    /// at 0.
    pub fn clock(&self, domain: DomainId) -> u64 {
        let its = self.clocks.iter().find(|clock| clock.domain == domain);
        its.map_or(0, |clock| clock.clock)
    }
}

/// A request to the coordinator that may be under way while its thread goes on.
#[derive(Debug, Clone, PartialEq)]
pub enum CoordinatorCall {
    /// Creates a table, or opens an equal one: [`CoordinatorLink::create_table`].
    CreateTable(TableSpec),
    /// Opens an existing table: [`CoordinatorLink::open_table`].
    OpenTable {
        /// Name of the table.
        name: String,
    },
    /// Releases a table on all servers: [`CoordinatorLink::release_table`].
    ReleaseTable(TableId),
    /// Arrives at a barrier: [`CoordinatorLink::barrier`].
    Barrier {
        /// Name of the barrier.
        name: String,
        /// Number of workers that open it.
        count: u32,
    },
    /// Saves all tables of the job: [`CoordinatorLink::save`].
    Save {
        /// Directory of the model.
        dir: String,
        /// Clocks of the cut; empty: the tables as they are.
        clocks: Vec<DomainClock>,
    },
    /// Loads the tables of a model: [`CoordinatorLink::load`].
    Load {
        /// Directory of the model.
        dir: String,
    },
    /// Makes a function of a module: [`CoordinatorLink::load_function`].
    LoadFunction {
        /// Name of the function.
        name: String,
        /// Bytes of the module.
        module: Vec<u8>,
    },
    /// Takes a task, or reports one. Only a coordinator with a connection has tasks.
    Tasks(Box<TaskRequest>),
    /// Arrives at a barrier of members, with the time of the call. Only a coordinator with a connection has them.
    MemberBarrier(MemberBarrier),
}

impl CoordinatorCall {
    /// Name of the call in errors.
    pub const fn op(&self) -> &'static str {
        match self {
            Self::CreateTable(_) => "create table",
            Self::OpenTable { .. } => "open table",
            Self::ReleaseTable(_) => "release table",
            Self::Barrier { .. } | Self::MemberBarrier(_) => "barrier",
            Self::Save { .. } => "save",
            Self::Load { .. } => "load",
            Self::LoadFunction { .. } => "load function",
            Self::Tasks(_) => "tasks",
        }
    }
}

/// Result of a [`CoordinatorCall`].
#[derive(Debug, Clone, PartialEq)]
pub enum CoordinatorReply {
    /// Result of a release, a barrier, or a loaded function.
    Done,
    /// The table that was created or opened.
    Table(TableInfo),
    /// Result of a save.
    Saved(Saved),
    /// Result of a load.
    Loaded(Loaded),
    /// Answer to a request about tasks.
    Tasks(Box<TaskAnswer>),
    /// The workers for which a barrier of members has opened.
    Arrivals(Vec<Arrival>),
}

impl CoordinatorReply {
    pub(crate) fn done(self, op: &'static str) -> Result<(), ClientError> {
        match self {
            Self::Done | Self::Arrivals(_) => Ok(()),
            _ => Err(unexpected(op)),
        }
    }

    pub(crate) fn table(self, op: &'static str) -> Result<TableInfo, ClientError> {
        match self {
            Self::Table(table) => Ok(table),
            _ => Err(unexpected(op)),
        }
    }

    pub(crate) fn saved(self, op: &'static str) -> Result<Saved, ClientError> {
        match self {
            Self::Saved(saved) => Ok(saved),
            _ => Err(unexpected(op)),
        }
    }

    pub(crate) fn tasks(self, op: &'static str) -> Result<TaskAnswer, ClientError> {
        match self {
            Self::Tasks(answer) => Ok(*answer),
            _ => Err(unexpected(op)),
        }
    }

    pub(crate) fn arrivals(self, op: &'static str) -> Result<Vec<Arrival>, ClientError> {
        match self {
            Self::Arrivals(arrivals) => Ok(arrivals),
            _ => Err(unexpected(op)),
        }
    }

    pub(crate) fn loaded(self, op: &'static str) -> Result<Loaded, ClientError> {
        match self {
            Self::Loaded(loaded) => Ok(loaded),
            _ => Err(unexpected(op)),
        }
    }
}

/// The error of an answer that belongs to another request.
pub(crate) fn unexpected(op: &'static str) -> ClientError {
    ClientError::Control {
        peer: "the coordinator".into(),
        source: ControlFailure::OtherAnswer { op },
    }
}

/// The blocking calls of a [`CoordinatorLink`] with calls under way, by its function
/// `perform(&mut self, CoordinatorCall, Deadline) -> Result<CoordinatorReply, ClientError>`.
macro_rules! blocking_calls {
    () => {
        fn create_table(
            &mut self,
            spec: &TableSpec,
            deadline: Deadline,
        ) -> Result<TableInfo, ClientError> {
            let call = CoordinatorCall::CreateTable(spec.clone());
            self.perform(&call, deadline)?.table(call.op())
        }

        fn open_table(&mut self, name: &str, deadline: Deadline) -> Result<TableInfo, ClientError> {
            let name = name.to_owned();
            let call = CoordinatorCall::OpenTable { name };
            self.perform(&call, deadline)?.table(call.op())
        }

        fn release_table(&mut self, id: TableId, deadline: Deadline) -> Result<(), ClientError> {
            let call = CoordinatorCall::ReleaseTable(id);
            self.perform(&call, deadline)?.done(call.op())
        }

        fn barrier(
            &mut self,
            name: &str,
            count: u32,
            deadline: Deadline,
        ) -> Result<(), ClientError> {
            let name = name.to_owned();
            let call = CoordinatorCall::Barrier { name, count };
            self.perform(&call, deadline)?.done(call.op())
        }

        fn save(
            &mut self,
            dir: &str,
            clocks: &[DomainClock],
            deadline: Deadline,
        ) -> Result<Saved, ClientError> {
            let (dir, clocks) = (dir.to_owned(), clocks.to_vec());
            let call = CoordinatorCall::Save { dir, clocks };
            self.perform(&call, deadline)?.saved(call.op())
        }

        fn load(&mut self, dir: &str, deadline: Deadline) -> Result<Loaded, ClientError> {
            let dir = dir.to_owned();
            let call = CoordinatorCall::Load { dir };
            self.perform(&call, deadline)?.loaded(call.op())
        }

        fn load_function(
            &mut self,
            name: &str,
            module: &[u8],
            deadline: Deadline,
        ) -> Result<(), ClientError> {
            let (name, module) = (name.to_owned(), module.to_vec());
            let call = CoordinatorCall::LoadFunction { name, module };
            self.perform(&call, deadline)?.done(call.op())
        }
    };
}
pub(crate) use blocking_calls;

/// A [`CoordinatorCall`] that has begun.
#[derive(Debug, Clone, PartialEq)]
pub enum BegunCall {
    /// [`CoordinatorLink::poll`] returns its result by this number.
    UnderWay(u64),
    /// It is already done.
    Done(Box<CoordinatorReply>),
}

/// The control connection to the coordinator.
pub trait CoordinatorLink: Send {
    /// Creates a table, or opens it if it exists with an equal spec.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn create_table(
        &mut self,
        spec: &TableSpec,
        deadline: Deadline,
    ) -> Result<TableInfo, ClientError>;

    /// Opens an existing table.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn open_table(&mut self, name: &str, deadline: Deadline) -> Result<TableInfo, ClientError>;

    /// Releases a table on all servers.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn release_table(&mut self, id: TableId, deadline: Deadline) -> Result<(), ClientError>;

    /// Waits until `count` workers have reached the barrier `name`.
    ///
    /// # Errors
    /// A refusal that names the missing workers, or the connection's failure.
    fn barrier(&mut self, name: &str, count: u32, deadline: Deadline) -> Result<(), ClientError>;

    /// Saves all tables at these clocks (empty: as they are) into a directory that all servers see;
    /// returns what was written. A relative path is relative to this process's working directory.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn save(
        &mut self,
        dir: &str,
        clocks: &[DomainClock],
        deadline: Deadline,
    ) -> Result<Saved, ClientError>;

    /// Loads all tables of a saved model.
    ///
    /// # Errors
    /// The coordinator's refusal, or the connection's failure.
    fn load(&mut self, dir: &str, deadline: Deadline) -> Result<Loaded, ClientError>;

    /// Makes a function of a WebAssembly module on all servers.
    ///
    /// # Errors
    /// The coordinator's refusal with that of a server, or the connection's failure.
    fn load_function(
        &mut self,
        name: &str,
        module: &[u8],
        deadline: Deadline,
    ) -> Result<(), ClientError>;

    /// Reports workers that are slower than the others, for the coordinator's log.
    ///
    /// # Errors
    /// The connection's failure.
    fn slow(&mut self, _workers: &[SlowMember], _deadline: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    /// Announces that the worker leaves every domain after these ticks, before its servers have it.
    ///
    /// # Errors
    /// The coordinator's refusal when the job follows a schedule with others; the worker has not left
    /// then. The connection's failure.
    fn leaving(&mut self, _clocks: &[DomainClock], _deadline: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    /// Fails if the coordinator has announced the end of the job. Called now and then during a wait;
    /// returns within milliseconds. A coordinator in this process, which is never lost, announces
    /// nothing.
    ///
    /// # Errors
    /// The failure of another process, the end of the cluster, or the connection's failure.
    fn check(&mut self) -> Result<(), ClientError> {
        Ok(())
    }

    /// Like [`Self::check`], but waits up to `_timeout`: for a caller that saw a connection end
    /// without a cause.
    ///
    /// # Errors
    /// As [`Self::check`].
    fn check_within(&mut self, _timeout: Duration) -> Result<(), ClientError> {
        self.check()
    }

    /// Reason for which an operator asks the job to end, if one does. Waits up to 1 ms.
    ///
    /// # Errors
    /// As [`Self::check`].
    fn stop_asked(&mut self) -> Result<Option<String>, ClientError> {
        Ok(None)
    }
    /// Whether a call has failed with [`ClientError::ServerRestarted`], and the client has not rejoined.
    fn has_restarted(&self) -> bool {
        false
    }

    /// Whether a server has ended, and its successor is awaited.
    fn awaits_successor(&self, _server: ServerId) -> bool {
        false
    }

    /// The membership in which a successor has come with the memory of its server, and the number of such
    /// successors so far; `None` if it is no more than `seen`.
    fn resumed(&self, _seen: u64) -> Option<(u64, Members)> {
        None
    }

    /// Confirms that this client uses nothing of before the restart of a server. Returns the membership.
    ///
    /// # Errors
    /// The coordinator's refusal, a later restart, or the connection's failure.
    fn rejoin(&mut self, _deadline: Deadline) -> Result<Joined, ClientError> {
        Err(unexpected("rejoin"))
    }

    /// Notes that the sessions with the members of [`Self::rejoin`] are open.
    fn rejoined(&mut self) {}

    /// Sends a request without a wait for its answer. The default makes the blocking call, for a
    /// coordinator without a connection.
    ///
    /// # Errors
    /// As of the blocking call.
    fn begin(
        &mut self,
        call: &CoordinatorCall,
        deadline: Deadline,
    ) -> Result<BegunCall, ClientError> {
        let reply = match call {
            CoordinatorCall::CreateTable(spec) => {
                CoordinatorReply::Table(self.create_table(spec, deadline)?)
            }
            CoordinatorCall::OpenTable { name } => {
                CoordinatorReply::Table(self.open_table(name, deadline)?)
            }
            CoordinatorCall::ReleaseTable(id) => {
                self.release_table(*id, deadline)?;
                CoordinatorReply::Done
            }
            CoordinatorCall::Barrier { name, count } => {
                self.barrier(name, *count, deadline)?;
                CoordinatorReply::Done
            }
            CoordinatorCall::Save { dir, clocks } => {
                CoordinatorReply::Saved(self.save(dir, clocks, deadline)?)
            }
            CoordinatorCall::Load { dir } => CoordinatorReply::Loaded(self.load(dir, deadline)?),
            CoordinatorCall::LoadFunction { name, module } => {
                self.load_function(name, module, deadline)?;
                CoordinatorReply::Done
            }
            CoordinatorCall::Tasks(_) | CoordinatorCall::MemberBarrier(_) => {
                return Err(unexpected(call.op()));
            }
        };
        Ok(BegunCall::Done(Box::new(reply)))
    }

    /// Waits up to `wait` for the result of a call under way, which then is none any more. `None`: it has
    /// not arrived; another message may have ended the wait.
    ///
    /// # Errors
    /// As of the blocking call.
    fn poll(
        &mut self,
        op: &'static str,
        number: u64,
        _wait: Duration,
    ) -> Result<Option<CoordinatorReply>, ClientError> {
        unreachable!("{op} {number} was done when it began")
    }

    /// Drops the result of a call under way, which itself goes on. Returns what it still waits for.
    fn abandon(&mut self, op: &'static str, number: u64) -> String {
        unreachable!("{op} {number} was done when it began")
    }

    /// Reports that this worker is done: no worker waits for it any more.
    ///
    /// # Errors
    /// The connection's failure.
    fn finished(&mut self, deadline: Deadline) -> Result<(), ClientError>;

    /// Reports that this worker cannot go on: the job ends, and its error names `reason`.
    ///
    /// # Errors
    /// The connection's failure.
    fn failed(&mut self, reason: &str, deadline: Deadline) -> Result<(), ClientError>;
}

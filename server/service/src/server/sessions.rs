//! The client sessions of a server, on the control thread: attached, cut off, resumed, recovered, ended.

mod kept;
mod lanes;

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};
use tidewater_control::set_up::LaneGrants;
use tidewater_lanes::fabric::Inbox;
use tidewater_lanes::shm::{self, SessionMemory};
use tidewater_lanes::wake::Waker;
use tidewater_protocol::ids::{ApplierId, SessionId, WorkerId, WorkerThread};
use tidewater_protocol::limits::{OBSERVERS_MAX, SESSIONS_MAX, WORKERS_MAX};
use tidewater_protocol::mutants::{self, Mutant};
use tidewater_protocol::wire::control::{Attach, Attached, Remote, SessionStatus, Transport};
use tidewater_protocol::wire::hello::{Hello, RANK_ANY, Role};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};

use super::ServerError;
use super::conn::ConnId;
use super::handle::Shared;
use super::verbs::{Verbs, VerbsSession};
use tidewater_engine::apply::command::Command;
use tidewater_engine::namespace::NamespaceId;

/// Transport of a session's lanes, with its resources.
#[derive(Debug)]
enum Carrier {
    /// Shared memory, with the waker of the client.
    Shm(Waker),
    /// One TCP connection for each lane.
    Tcp,
    /// One set of queue pairs for each lane.
    Verbs(VerbsSession),
    /// None: a session of the previous server process, before its client returns.
    Kept,
}

/// Session of one client thread that is attached to this server.
#[derive(Debug)]
struct Session {
    namespace: String,
    job: NamespaceId,
    thread: WorkerThread,
    ring_bytes: usize,
    carrier: Carrier,
    /// Lanes that the client may connect now (TCP, verbs).
    grants: LaneGrants,
    /// For each lane, location of its status record in public memory.
    status: Vec<Remote>,
    presence: Presence,
    /// Transport of the lanes, and why the client chose it.
    chosen: (Transport, String),
    /// Number of lane recoveries so far.
    recoveries: u64,
    /// For a session of the previous server process: whether its frames carry a checksum, and the memory of its rings.
    kept: Option<(bool, Vec<Inbox>)>,
}

/// Control connection of a session, and the number of its cuts: losses of that connection. After a cut the session
/// stays for the linger time.
#[derive(Debug, Default)]
struct Presence {
    /// The control connection; `None` while the session has none.
    owner: Option<ConnId>,
    /// Number of cuts so far, so that the linger time of an earlier cut does not end the session during a
    /// later one.
    cuts: u64,
}

impl Presence {
    /// Gives the session the control connection `owner`. Returns the connection that this replaces; `None` if
    /// there was none or it was `owner`.
    fn resume(&mut self, owner: ConnId) -> Option<ConnId> {
        let before = self.owner.replace(owner);
        before.filter(|&before| before != owner)
    }

    /// Notes that the connection `owner` has ended. Returns the number of this cut; `None` if the session has
    /// another connection.
    fn cut(&mut self, owner: ConnId) -> Option<u64> {
        if self.owner != Some(owner) {
            return None;
        }
        self.owner = None;
        self.cuts += 1;
        Some(self.cuts)
    }

    /// Whether the session ends, now that the linger time after cut number `cut` (a loss of its connection) is
    /// over: it has no connection, and no later cut has happened.
    fn has_ended(&self, cut: u64) -> bool {
        self.owner.is_none() && (self.cuts == cut || mutants::on(Mutant::LingerOfEarlierCut))
    }
}

impl Session {
    /// Whether the session belongs to this worker, by namespace and rank.
    fn is_of(&self, hello: &Hello) -> bool {
        (&self.namespace, self.thread.rank.0) == (&hello.namespace, hello.rank)
    }

    /// Names the session's client for log and error texts.
    fn peer(&self) -> String {
        format!("{} of \"{}\"", self.thread, self.namespace)
    }
}

/// A result, and session memory of which the file descriptors are sent along, if any.
pub(super) type WithMemory<T> = (T, Option<SessionMemory>);

/// All sessions of this server, by id.
#[derive(Debug)]
pub(super) struct Sessions {
    shared: Arc<Shared>,
    memory: Arc<shm::ServerMemory>,
    verbs: Verbs,
    all: HashMap<SessionId, Session>,
}

impl Sessions {
    /// Makes the set with the sessions of the previous server process, if any. `epoll` will watch the RDMA devices of
    /// sessions under the token `DEVICES`; `waker` wakes the control thread.
    pub(super) fn new(
        shared: Arc<Shared>,
        epoll: Arc<OwnedFd>,
        waker: Waker,
    ) -> Result<Self, ServerError> {
        let m = &shared.memory;
        let dup = super::error::system("duplicate a descriptor");
        let counters = (
            Arc::clone(&m.counters),
            m.counters_fd.try_clone().map_err(dup)?,
        );
        let public = (Arc::clone(m.public.region()), m.public.fd());
        let memory = shm::ServerMemory::new(public, counters, m.exports.check_bits())?;
        let kept = std::mem::take(&mut shared.catalogue().kept_sessions);
        let mut sessions = Self {
            shared,
            memory: Arc::new(memory),
            verbs: Verbs::new(epoll, waker),
            all: HashMap::new(),
        };
        for (id, session) in kept {
            sessions.keep(id, session);
        }
        Ok(sessions)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether a registration of server memory with an RDMA device has ended, well or not, since the last
    /// call.
    pub(super) fn memory_was_registered(&self) -> bool {
        self.verbs.memory_was_registered()
    }

    /// Logs the pending asynchronous events of RDMA devices.
    pub(super) fn hear_devices(&mut self) {
        self.verbs.hear();
    }

    /// Creates a session for the client thread on connection `owner`. `local` is the server address that the
    /// client reached, `None` over the unix socket. `fds` are the descriptors it sent. Returns the lane
    /// grants, and over shared memory the memory to share.
    pub(super) fn attach(
        &mut self,
        owner: ConnId,
        local: Option<IpAddr>,
        hello: &Hello,
        attach: Attach,
        fds: Vec<OwnedFd>,
    ) -> Result<WithMemory<Attached>, Refusal> {
        let carrier = self.carrier(&attach, local, &hello.namespace, fds)?;
        self.make_room(hello, thread_of(hello, attach.thread))?;
        // An observer does not know its job's number of workers.
        let workers = match hello.role {
            Role::Observer => 0,
            _ => attach.workers,
        };
        let id = SessionId(random()?);
        let lanes = self.shared.appliers.len();
        let mut session = Session {
            namespace: hello.namespace.clone(),
            job: self.job(&hello.namespace, workers)?,
            thread: thread_of(hello, attach.thread),
            ring_bytes: attach.ring_bytes as usize,
            carrier,
            grants: LaneGrants::new(lanes),
            status: Vec::with_capacity(lanes),
            presence: Presence {
                owner: Some(owner),
                cuts: 0,
            },
            chosen: (attach.transport, attach.reason),
            recoveries: 0,
            kept: None,
        };
        let memory = self.add_rings(id, &mut session)?;
        if memory.is_none() {
            for applier in (0..lanes as u16).map(ApplierId) {
                session.grants.grant(applier, Some(random()?));
            }
        }
        let path = match &session.carrier {
            Carrier::Verbs(verbs) => Some(verbs.path()),
            Carrier::Shm(_) | Carrier::Tcp | Carrier::Kept => None,
        };
        let grants = (0..lanes as u16).map(|a| self.grant(a, &session)).collect();
        self.all.insert(id, session);
        let shm = memory.as_ref().map(SessionMemory::numbers);
        let attached = Attached {
            session: id,
            lanes: grants,
            shm,
            path,
        };
        Ok((attached, memory))
    }

    /// Prepares the transport of a session's lanes that the client asks for. Refused if transport, socket and
    /// descriptors do not fit.
    fn carrier(
        &mut self,
        attach: &Attach,
        local: Option<IpAddr>,
        namespace: &str,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Carrier, Refusal> {
        let transport = attach.transport;
        match (transport, local, fds.pop()) {
            (Transport::Shm, None, Some(fd)) if fds.is_empty() => {
                Ok(Carrier::Shm(Waker::from_peer(fd).map_err(io)?))
            }
            (Transport::Tcp, _, None) => Ok(Carrier::Tcp),
            (Transport::Verbs, Some(local), None) => {
                let session = self.verbs.attach(&self.shared, local, namespace, attach)?;
                Ok(Carrier::Verbs(session))
            }
            (Transport::Shm | Transport::Tcp | Transport::Verbs, ..) => Err(bad(
                "shm comes with one waker, over the unix socket; tcp with none; verbs with none, \
                 over TCP",
            )),
            (Transport::Sim, ..) => {
                let numbers = [transport as u64, 0, 0, 0];
                Err(Refusal::new(RefusalCode::BadTransport, numbers))
            }
        }
    }

    /// Makes room for a new session: refuses a client thread that already has a connected session, or a session
    /// beyond the limits. Ends an earlier session of the thread that has lost its connection. Opens the job if
    /// it is new. Also refuses a rank that does not fit the peer's role.
    fn make_room(&mut self, hello: &Hello, thread: WorkerThread) -> Result<(), Refusal> {
        if hello.rank == RANK_ANY {
            return Err(bad(
                "a session belongs to a rank: ask the coordinator for one",
            ));
        }
        check_rank(hello, thread)?;
        // Also for a session of the process before, which has no name yet.
        let mut catalogue = self.shared.catalogue();
        let job = catalogue.open_job(&hello.namespace);
        let job = job.map_err(|e| e.refusal())?.id;
        drop(catalogue);
        let same = |s: &Session| (s.job, s.thread) == (job, thread);
        let twin = self.all.iter().find(|(_, s)| same(s));
        if let Some((&id, twin)) = twin {
            if twin.presence.owner.is_some() {
                let numbers = [u64::from(hello.rank), u64::from(thread.thread), 0, 0];
                return Err(Refusal::new(RefusalCode::RankTaken, numbers));
            }
            self.end(id);
        }
        let is_observer = hello.role == Role::Observer;
        let of_role = |s: &&Session| s.thread.rank.observer().is_some() == is_observer;
        let have = self.all.values().filter(of_role).count();
        let (most, what) = match is_observer {
            true => (OBSERVERS_MAX as usize, "sessions of observers"),
            false => (SESSIONS_MAX, "sessions"),
        };
        if have >= most {
            let numbers = [have as u64, most as u64, 0, 0];
            return Err(Refusal::new(RefusalCode::TooMany, numbers).with_text(what));
        }
        Ok(())
    }

    /// Returns the number of a session's job, which it opens if need be. The job's number of workers comes from
    /// the configuration, or in a service from the first session that reports it. Refused if `workers` is
    /// neither 0 nor that number.
    fn job(&self, namespace: &str, workers: u32) -> Result<NamespaceId, Refusal> {
        let mut catalogue = self.shared.catalogue();
        let job = catalogue.open_job(namespace).map_err(|e| e.refusal())?;
        if job.workers == 0 {
            job.workers = self.shared.config.workers;
        }
        if job.workers == 0 && workers > 0 {
            job.workers = workers;
            for crew in &self.shared.appliers {
                // Commands are handled in order: this one is done before the session's ring is
                // there. An applier that has ended needs none: its end stops the server.
                let _ = crew
                    .handle
                    .send(Command::Expect(job.id, workers, bounded(1).0));
            }
        }
        if workers > 0 && workers != job.workers {
            let what = format!("this job is made of {} workers, not {workers}", job.workers);
            return Err(bad(&what));
        }
        Ok(job.id)
    }

    /// Gives session `id` to the new control connection `owner`. Returns its earlier connection, if that has
    /// not ended, for the caller to close. Refused if the session is not of this worker. A shared memory
    /// session is resumed over the unix socket only, another one over TCP only.
    pub(super) fn resume(
        &mut self,
        owner: ConnId,
        hello: &Hello,
        id: SessionId,
        is_unix: bool,
    ) -> Result<Option<ConnId>, Refusal> {
        let session = self.all.get_mut(&id);
        let session = session
            .filter(|s| s.is_of(hello))
            .ok_or_else(|| unknown(id))?;
        if matches!(session.carrier, Carrier::Shm(_)) != is_unix {
            return Err(bad(
                "a session is resumed over the kind of socket it was made on",
            ));
        }
        Ok(session.presence.resume(owner))
    }

    /// Notes that the control connection `owner` of a session has ended. Returns the number of this cut, for
    /// [`Self::expire`]; `None` if the session has another connection or does not exist.
    pub(super) fn cut(&mut self, owner: ConnId, id: SessionId) -> Option<u64> {
        self.all.get_mut(&id)?.presence.cut(owner)
    }

    /// Ends a session that was not resumed since cut number `cut`, a loss of its control connection. The caller calls
    /// it when the linger time after that cut is over. Does nothing for a session that was resumed or has ended.
    pub(super) fn expire(&mut self, id: SessionId, cut: u64) {
        let over = |s: &Session| s.presence.has_ended(cut);
        if self.all.get(&id).is_some_and(over) {
            tracing::info!(session = %id, "session ends: its connection did not come back");
            self.end(id);
        }
    }

    /// Ends a session: appliers first apply the complete frames in its rings. Its memory is freed when they have
    /// released it. Does not wait for the appliers: each of the returned channels has an entry when one has dropped its
    /// ring, or closes with the applier.
    pub(super) fn end(&mut self, id: SessionId) -> Vec<Receiver<()>> {
        if self.all.remove(&id).is_none() {
            return Vec::new();
        }
        let mut rings = Vec::new();
        for crew in &self.shared.appliers {
            let (tx, dropped) = bounded(1);
            // An applier that is gone has released everything, and drops the sender.
            let _ = crew.handle.send(Command::Recover(id, Box::new(|_| {})));
            let _ = crew.handle.send(Command::DropRing(id, tx));
            rings.push(dropped);
        }
        rings
    }

    /// Rows of all sessions for operators, without the counts that appliers have.
    pub(super) fn report(&self) -> Vec<(SessionId, SessionStatus)> {
        let row = |(&id, session): (&SessionId, &Session)| {
            let row = SessionStatus {
                namespace: session.namespace.clone(),
                worker: session.thread.rank,
                thread: session.thread.thread,
                transport: session.chosen.0,
                reason: session.chosen.1.clone(),
                connected: session.presence.owner.is_some(),
                cuts: session.presence.cuts,
                recoveries: session.recoveries,
                refused: 0,
            };
            (id, row)
        };
        self.all.iter().map(row).collect()
    }

    /// Ends the sessions of all threads of a worker's rank in a job. Each returned channel closes or has an entry when an
    /// applier has dropped a ring: a device may end a lane later than this call, and until then place frames.
    pub(super) fn end_rank(&mut self, job: NamespaceId, rank: WorkerId) -> Vec<Receiver<()>> {
        let of_rank = |s: &Session| (s.job, s.thread.rank) == (job, rank);
        let those = self.all.iter().filter(|(_, session)| of_rank(session));
        let those: Vec<SessionId> = those.map(|(&id, _)| id).collect();
        those.into_iter().flat_map(|id| self.end(id)).collect()
    }

    /// Ends all sessions of a job.
    pub(super) fn end_all(&mut self, job: NamespaceId) {
        let of_job = self.all.iter().filter(|(_, session)| session.job == job);
        for id in of_job.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.end(id);
        }
    }
}

/// Checks that a rank fits the peer's role: observers' ranks are above those of workers. An observer has only
/// the first thread.
fn check_rank(hello: &Hello, thread: WorkerThread) -> Result<(), Refusal> {
    let number = thread.rank.observer();
    let fits = match hello.role {
        Role::Observer => number.is_some_and(|n| n < OBSERVERS_MAX) && thread.is_first(),
        _ => number.is_none(),
    };
    if fits {
        return Ok(());
    }
    let numbers = [u64::from(hello.rank), u64::from(thread.thread), 0, 0];
    let refusal = Refusal::new(RefusalCode::BadRequest, numbers);
    Err(refusal.with_text(format!(
        "rank {} is none of a peer with role {:?}: workers have those below {WORKERS_MAX}, observers the \
         {OBSERVERS_MAX} above",
        hello.rank, hello.role
    )))
}

fn thread_of(hello: &Hello, thread: u32) -> WorkerThread {
    let rank = WorkerId(hello.rank);
    WorkerThread { rank, thread }
}

fn random() -> Result<u64, Refusal> {
    getrandom::u64().map(|n| n.max(1)).map_err(io)
}

fn io(e: impl core::fmt::Display) -> Refusal {
    Refusal::new(RefusalCode::Io, [0; 4]).with_text(e)
}

pub(super) fn bad(why: &str) -> Refusal {
    Refusal::new(RefusalCode::BadRequest, [0; 4]).with_text(why)
}

fn unknown(id: SessionId) -> Refusal {
    Refusal::new(RefusalCode::UnknownSession, [id.0, 0, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that is cut, resumed and cut again has the full linger of its last cut.
    #[test]
    fn linger_of_an_earlier_cut_ends_nothing() {
        let mut presence = Presence::default();
        assert_eq!(presence.resume(7), None);
        let first = presence.cut(7).unwrap();
        assert!(presence.has_ended(first));
        assert_eq!(presence.resume(8), None);
        assert!(!presence.has_ended(first), "it is connected");
        assert_eq!(
            presence.cut(7),
            None,
            "the connection before is not its own"
        );
        let second = presence.cut(8).unwrap();
        assert!(!presence.has_ended(first), "its second linger runs");
        assert!(presence.has_ended(second));
        // A new connection replaces one that is not known to be gone.
        assert_eq!(presence.resume(9), None);
        assert_eq!(presence.resume(10), Some(9));
        assert_eq!(presence.cut(9), None);
        assert!(!presence.has_ended(second));
    }
}

//! The sessions of a server: made, cut, resumed, recovered, ended. Used by the control thread.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_channel::bounded;
use tidewater_transport::fabric::Inbox;
use tidewater_transport::ids::{ApplierId, SessionId, WorkerId};
use tidewater_transport::layout::lines::StateLine;
use tidewater_transport::layout::ring::RingGeometry;
use tidewater_transport::layout::session::inbox_bytes;
use tidewater_transport::limits::SESSIONS_MAX;
use tidewater_transport::mem::Region;
use tidewater_transport::shm::{self, ApplierEnd, SessionMemory};
use tidewater_transport::tcp::TcpPort;
use tidewater_transport::wake::Bell;
use tidewater_transport::wire::control::{
    Attach, Attached, LaneGrant, Recovered, ShmAttach, Transport,
};
use tidewater_transport::wire::hello::{Hello, RANK_ANY};
use tidewater_transport::wire::refusal::{Refusal, RefusalCode};

use super::conn::ConnId;
use super::handle::{Shared, ticket};
use super::{NodeError, doze_at};
use crate::apply::command::Command;
use crate::inbox::{Ring, RingOwner};
use crate::namespace::{FrameSender, NamespaceId};

/// One client thread attached to this server.
#[derive(Debug)]
struct Session {
    namespace: String,
    job: NamespaceId,
    rank: u32,
    thread: u32,
    ring_bytes: usize,
    /// The client's doorbell, on shm.
    bell: Option<Bell>,
    /// For each lane the nonce that its next connection presents, once (tcp).
    nonces: Vec<Option<u64>>,
    /// Its control connection; `None` while that is cut.
    owner: Option<ConnId>,
    /// Counts cuts, so that the end of an earlier linger does not end a later one.
    cuts: u64,
}

impl Session {
    /// Names the client in messages.
    fn peer(&self) -> String {
        format!("worker {} of \"{}\"", self.rank, self.namespace)
    }
}

/// An answer, and the memory whose descriptors go with it.
pub(super) type WithMemory<T> = (T, Option<SessionMemory>);

/// All sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    shared: Arc<Shared>,
    memory: Arc<shm::ServerMemory>,
    all: HashMap<SessionId, Session>,
}

impl Sessions {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Self, NodeError> {
        let m = &shared.memory;
        let dup = super::error::system("duplicate a descriptor");
        let counters = (
            Arc::clone(&m.counters),
            m.counters_fd.try_clone().map_err(dup)?,
        );
        let public = (Arc::clone(m.public.region()), m.public.fd());
        let memory = shm::ServerMemory::new(public, counters, m.exports.check_bits())?;
        Ok(Self {
            shared,
            memory: Arc::new(memory),
            all: HashMap::new(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Makes a session for the client thread at the other end of `owner`. `fds` came along.
    pub(super) fn attach(
        &mut self,
        owner: ConnId,
        hello: &Hello,
        attach: Attach,
        mut fds: Vec<OwnedFd>,
    ) -> Result<WithMemory<Attached>, Refusal> {
        let bell = match (attach.transport, fds.pop()) {
            (Transport::Shm, Some(fd)) if fds.is_empty() => Some(Bell::from_peer(fd).map_err(io)?),
            (Transport::Tcp, None) => None,
            (Transport::Shm | Transport::Tcp, _) => {
                return Err(bad(
                    "shm comes with one doorbell, over the unix socket; tcp with none",
                ));
            }
            _ => {
                return Err(Refusal::new(
                    RefusalCode::BadTransport,
                    [attach.transport as u64, 0, 0, 0],
                ));
            }
        };
        self.make_room(hello, attach.thread)?;
        let id = SessionId(random()?);
        let lanes = self.shared.appliers.len();
        let mut session = Session {
            namespace: hello.namespace.clone(),
            job: self.job(&hello.namespace, attach.workers)?,
            rank: hello.rank,
            thread: attach.thread,
            ring_bytes: attach.ring_bytes as usize,
            bell,
            nonces: vec![None; lanes],
            owner: Some(owner),
            cuts: 0,
        };
        let memory = self.add_rings(id, &session)?;
        if memory.is_none() {
            for nonce in &mut session.nonces {
                *nonce = Some(random()?);
            }
        }
        let grants = (0..lanes as u16).map(|a| self.grant(a, &session)).collect();
        self.all.insert(id, session);
        let shm = memory.as_ref().map(SessionMemory::numbers);
        let attached = Attached {
            session: id,
            lanes: grants,
            shm,
        };
        Ok((attached, memory))
    }

    /// Refuses a thread that has a live session; one whose connection is cut makes way.
    fn make_room(&mut self, hello: &Hello, thread: u32) -> Result<(), Refusal> {
        if hello.rank == RANK_ANY {
            return Err(bad(
                "a session belongs to a rank: ask the coordinator for one",
            ));
        }
        let same = |s: &Session| {
            (&s.namespace, s.rank, s.thread) == (&hello.namespace, hello.rank, thread)
        };
        let twin = self.all.iter().find(|(_, s)| same(s));
        if let Some((&id, twin)) = twin {
            if twin.owner.is_some() {
                let numbers = [u64::from(hello.rank), u64::from(thread), 0, 0];
                return Err(Refusal::new(RefusalCode::RankTaken, numbers));
            }
            self.end(id);
        }
        let have = self.all.len() as u64;
        if have >= SESSIONS_MAX as u64 {
            let numbers = [have, SESSIONS_MAX as u64, 0, 0];
            return Err(Refusal::new(RefusalCode::TooMany, numbers).with_text("sessions"));
        }
        Ok(())
    }

    /// The job of a session. The cluster says of how many workers a job is made; in a service the
    /// first of its sessions that knows.
    fn job(&self, namespace: &str, workers: u32) -> Result<NamespaceId, Refusal> {
        let mut catalogue = self.shared.catalogue();
        let job = catalogue.open_job(namespace).map_err(|e| e.refusal())?;
        if job.workers == 0 {
            job.workers = self.shared.config.workers;
        }
        if job.workers == 0 && workers > 0 {
            job.workers = workers;
            for crew in &self.shared.appliers {
                // In the order of commands: it is done before the session's ring is there.
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

    /// One ring at each applier, all or none. On shm they come with their ports.
    fn add_rings(
        &self,
        id: SessionId,
        session: &Session,
    ) -> Result<Option<SessionMemory>, Refusal> {
        let memory = match session.bell {
            Some(_) => {
                let ends: Vec<_> = (0..session.nonces.len() as u16)
                    .map(|a| self.end_of(a))
                    .collect();
                let made = SessionMemory::create(&self.memory, &ends, session.ring_bytes, id.0);
                Some(made.map_err(io)?)
            }
            None => None,
        };
        let mut rings = Vec::new();
        for a in 0..session.nonces.len() {
            match self.ring(a, id, session, memory.as_ref()) {
                Ok(ring) => rings.push(Box::new(ring)),
                Err(e) => {
                    for ring in rings {
                        // A ring of this memory: giving it back does not fail.
                        let _ = ring.release(&self.shared.memory);
                    }
                    return Err(e);
                }
            }
        }
        let mut rings = rings.into_iter();
        let added = self.shared.ask_all(|_, tx| match rings.next() {
            Some(ring) => Command::AddRing(ring, tx),
            None => Command::DropRing(id, tx),
        });
        added.map_err(|e| e.refusal())?;
        Ok(memory)
    }

    /// The ring of lane `a`.
    fn ring(
        &self,
        a: usize,
        id: SessionId,
        session: &Session,
        memory: Option<&SessionMemory>,
    ) -> Result<Ring, Refusal> {
        let owner = RingOwner {
            session: id,
            sender: FrameSender {
                rank: WorkerId(session.rank),
                clocked: session.thread == 0,
                namespace: session.job,
            },
            check_frames: false,
        };
        let inbox = match memory {
            Some(memory) => memory.inbox(a).map_err(io)?,
            None => private_inbox(session.ring_bytes, id)?,
        };
        let port = match (memory, &session.bell) {
            (Some(memory), Some(bell)) => Some(memory.port(a, &session.peer(), bell).map_err(io)?),
            _ => None,
        };
        let ring = Ring::new(owner, inbox, &self.shared.memory, a as u32);
        let mut ring = ring.map_err(|e| NodeError::from(e).refusal())?;
        if let Some(port) = port {
            ring.attach(Box::new(port)).map_err(io)?;
        }
        Ok(ring)
    }

    fn end_of(&self, applier: u16) -> ApplierEnd {
        let bell = self.shared.appliers[usize::from(applier)].bell.clone();
        ApplierEnd {
            doze_at: doze_at(applier) as u64,
            bell,
        }
    }

    fn grant(&self, applier: u16, session: &Session) -> LaneGrant {
        let nonce = session.nonces.get(usize::from(applier)).copied();
        LaneGrant {
            applier: ApplierId(applier),
            nonce: nonce.flatten().unwrap_or(0),
            ticket: ticket(&self.shared.memory, applier),
        }
    }

    /// Gives a session to a new control connection; the one it had before, if that lives still.
    pub(super) fn resume(
        &mut self,
        owner: ConnId,
        hello: &Hello,
        id: SessionId,
        is_unix: bool,
    ) -> Result<Option<ConnId>, Refusal> {
        let session = self.all.get_mut(&id);
        let session = session
            .filter(|s| (&s.namespace, s.rank) == (&hello.namespace, hello.rank))
            .ok_or_else(|| unknown(id))?;
        if session.bell.is_some() != is_unix {
            return Err(bad(
                "a session is resumed over the kind of socket it was made on",
            ));
        }
        Ok(session
            .owner
            .replace(owner)
            .filter(|&before| before != owner))
    }

    /// The control connection is gone; the number of this cut, for [`Self::expire`].
    pub(super) fn cut(&mut self, owner: ConnId, id: SessionId) -> Option<u64> {
        let session = self.all.get_mut(&id)?;
        if session.owner != Some(owner) {
            return None;
        }
        session.owner = None;
        session.cuts += 1;
        Some(session.cuts)
    }

    /// The linger of a cut is over.
    pub(super) fn expire(&mut self, id: SessionId, cut: u64) {
        let over = |s: &Session| s.owner.is_none() && s.cuts == cut;
        if self.all.get(&id).is_some_and(over) {
            tracing::info!(session = %id, "session ends: its connection did not come back");
            self.end(id);
        }
    }

    /// Ends a session, after what is whole in its rings. Its memory goes when the appliers have let
    /// go of it.
    pub(super) fn end(&mut self, id: SessionId) {
        if self.all.remove(&id).is_some() {
            for crew in &self.shared.appliers {
                // Nobody waits: an applier that is gone has let go of everything.
                let _ = crew.handle.send(Command::Recover(id, bounded(1).0));
                let _ = crew.handle.send(Command::DropRing(id, bounded(1).0));
            }
        }
    }

    /// Ends all sessions of a job.
    pub(super) fn end_all(&mut self, job: NamespaceId) {
        let of_job = self.all.iter().filter(|(_, session)| session.job == job);
        for id in of_job.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.end(id);
        }
    }

    /// Recovers a lane. May be repeated: it ends what it made before.
    pub(super) fn recover(
        &mut self,
        id: SessionId,
        applier: ApplierId,
    ) -> Result<WithMemory<Recovered>, Refusal> {
        let session = self.all.get(&id).ok_or_else(|| unknown(id))?;
        let a = usize::from(applier.0);
        let crew = self.shared.appliers.get(a).ok_or_else(|| {
            let numbers = [
                u64::from(applier.0),
                self.shared.appliers.len() as u64,
                0,
                0,
            ];
            Refusal::new(RefusalCode::UnknownApplier, numbers)
        })?;
        let ended = |_| Refusal::new(RefusalCode::ShuttingDown, [0; 4]);
        let state = crew
            .handle
            .ask(|tx| Command::Recover(id, tx))
            .map_err(ended)?;
        let state = state.ok_or_else(|| unknown(id))?;
        let memory = match &session.bell {
            Some(bell) => {
                let (bytes, end) = (session.ring_bytes, self.end_of(applier.0));
                let memory =
                    SessionMemory::create(&self.memory, &[end], bytes, id.0).map_err(io)?;
                let inbox = memory.inbox(0).map_err(io)?;
                let port = Box::new(memory.port(0, &session.peer(), bell).map_err(io)?);
                let renewed = crew.handle.ask(|tx| Command::Renew(id, inbox, port, tx));
                if !renewed.map_err(ended)? {
                    return Err(unknown(id));
                }
                Some(memory)
            }
            None => None,
        };
        let nonce = if memory.is_none() {
            Some(random()?)
        } else {
            None
        };
        if let Some(place) = self.all.get_mut(&id).and_then(|s| s.nonces.get_mut(a)) {
            *place = nonce;
        }
        let lane = LaneGrant {
            applier,
            nonce: nonce.unwrap_or(0),
            ticket: ticket(&self.shared.memory, applier.0),
        };
        let shm = memory.as_ref().map(SessionMemory::numbers);
        Ok((recovered(lane, shm, state), memory))
    }

    /// Whether the connection of a lane is the one that was granted.
    pub(super) fn check_lane(
        &self,
        hello: &Hello,
        (id, applier, nonce): (SessionId, ApplierId, u64),
    ) -> Result<(), Refusal> {
        let session = self.all.get(&id);
        let session = session
            .filter(|s| (&s.namespace, s.rank) == (&hello.namespace, hello.rank))
            .ok_or_else(|| unknown(id))?;
        match session.nonces.get(usize::from(applier.0)) {
            None => {
                let numbers = [u64::from(applier.0), session.nonces.len() as u64, 0, 0];
                Err(Refusal::new(RefusalCode::UnknownApplier, numbers))
            }
            Some(&Some(granted)) if granted == nonce => Ok(()),
            Some(_) => Err(bad(
                "the lane was granted anew since, or is connected: recover it",
            )),
        }
    }

    /// Hands the connection of a lane, which was checked, to its applier.
    pub(super) fn connect_lane(
        &mut self,
        (id, applier): (SessionId, ApplierId),
        stream: std::net::TcpStream,
        from: String,
    ) -> Result<(), NodeError> {
        let a = usize::from(applier.0);
        let nonce = self.all.get_mut(&id).and_then(|s| s.nonces.get_mut(a));
        let (Some(nonce), Some(crew)) = (nonce, self.shared.appliers.get(a)) else {
            return Ok(());
        };
        *nonce = None;
        let failed = super::error::system("open a lane");
        let port = TcpPort::new(stream, from, crew.watch.clone());
        let port = port.map_err(|e| failed(std::io::Error::other(e)))?;
        // If the applier does not take it, the client finds the lane broken and recovers it.
        crew.handle
            .send(Command::AttachPort(id, Box::new(port), bounded(1).0))?;
        Ok(())
    }
}

fn recovered(lane: LaneGrant, shm: Option<ShmAttach>, state: StateLine) -> Recovered {
    Recovered {
        lane,
        shm,
        applied_seq: state.applied_seq,
        durable_seq: state.durable_seq,
        head_bytes: state.head_bytes,
        rejected: state.rejected,
    }
}

/// Memory of a lane that its client does not map.
fn private_inbox(ring_bytes: usize, id: SessionId) -> Result<Inbox, Refusal> {
    let ring = RingGeometry::new(ring_bytes)
        .ok_or_else(|| Refusal::new(RefusalCode::BadRing, [ring_bytes as u64, 0, 0, 0]))?;
    let region = Region::anonymous(inbox_bytes(ring_bytes)).map_err(io)?;
    Inbox::new(Arc::new(region), 0, ring, id.0).map_err(io)
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

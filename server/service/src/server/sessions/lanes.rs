//! The lanes of a session: their rings, and how they are granted, connected and recovered.
//!
//! On shm a lane exists from its session's start. Elsewhere it is granted a nonce, with which its
//! client connects it once: over a connection of its own (tcp) or with queue pairs (verbs).

use std::net::TcpStream;
use std::sync::Arc;

use crossbeam_channel::bounded;
use tidewater_control::set_up::Lane;
use tidewater_lanes::fabric::Inbox;
use tidewater_lanes::shm::{ApplierEnd, SessionMemory};
use tidewater_lanes::tcp::TcpServerLane;
use tidewater_protocol::ids::{ApplierId, SessionId};
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::inbox_bytes;
use tidewater_protocol::wire::control::{
    LaneGrant, Recovered, ShmAttach, VerbsConnect, VerbsConnected,
};
use tidewater_protocol::wire::hello::Hello;
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::mem::Region;

use super::{Carrier, Session, Sessions, WithMemory, bad, io, random, unknown};
use crate::server::ServerError;
use crate::server::connects::{Asked, End, Make};
use crate::server::handle::{ApplierControl, Counts, ticket};
use crate::server::parked_flag_at;
use tidewater_engine::apply::command::{Command, Reply};
use tidewater_engine::namespace::FrameSender;
use tidewater_engine::ring_reader::{Ring, RingOwner};

impl Sessions {
    /// Adds a ring (buffer for the client's frames) for the session at each applier, all or none; blocks until all
    /// have it. Over shared memory the lanes exist at once, and the memory to share is returned; else `None`.
    pub(super) fn add_rings(
        &self,
        id: SessionId,
        session: &mut Session,
    ) -> Result<Option<SessionMemory>, Refusal> {
        let memory = match session.carrier {
            Carrier::Shm(_) => {
                let ends: Vec<_> = (0..session.grants.len() as u16)
                    .map(|a| self.end_of(a))
                    .collect();
                let made = SessionMemory::create(&self.memory, &ends, session.ring_bytes, id.0);
                Some(made.map_err(io)?)
            }
            Carrier::Tcp | Carrier::Verbs(_) | Carrier::Kept => None,
        };
        let mut rings = Vec::new();
        for a in 0..session.grants.len() {
            match self.ring(a, id, session, memory.as_ref()) {
                Ok(ring) => rings.push(Box::new(ring)),
                Err(e) => {
                    for ring in rings {
                        // The ring is of this memory, so releasing it does not fail.
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

    /// Makes the ring of lane `a`, in shared memory with its lane if `memory` is given, else in private memory.
    /// Adds its status record, and for verbs its memory, to `session`.
    fn ring(
        &self,
        a: usize,
        id: SessionId,
        session: &mut Session,
        memory: Option<&SessionMemory>,
    ) -> Result<Ring, Refusal> {
        let owner = RingOwner {
            session: id,
            sender: FrameSender {
                thread: session.thread,
                namespace: session.job,
            },
            // A NIC may place the bytes of a frame after those of its tail.
            check_frames: matches!(session.carrier, Carrier::Verbs(_)),
        };
        let inbox = match memory {
            Some(memory) => memory.inbox(a).map_err(io)?,
            None => private_inbox(session.ring_bytes, id)?,
        };
        let port = match (memory, &session.carrier) {
            (Some(memory), Carrier::Shm(waker)) => {
                Some(memory.port(a, &session.peer(), waker).map_err(io)?)
            }
            _ => None,
        };
        if let Carrier::Verbs(verbs) = &mut session.carrier {
            verbs.keep(&inbox);
        }
        let ring = Ring::new(owner, inbox, &self.shared.memory);
        let mut ring = ring.map_err(|e| ServerError::from(e).refusal())?;
        session.status.push(ring.status());
        if let Some(port) = port {
            ring.attach(Box::new(port)).map_err(io)?;
        }
        Ok(ring)
    }

    fn end_of(&self, applier: u16) -> ApplierEnd {
        let waker = self.shared.appliers[usize::from(applier)].waker.clone();
        ApplierEnd {
            parked_flag_at: parked_flag_at(applier) as u64,
            waker,
        }
    }

    /// Describes lane `applier` to the client: the nonce with which the client connects it (0 if none is granted),
    /// and the locations of push counter and status record.
    pub(super) fn grant(&self, applier: u16, session: &Session) -> LaneGrant {
        let counts = match session.carrier {
            Carrier::Shm(_) | Carrier::Tcp | Carrier::Kept => Counts::Processors,
            Carrier::Verbs(_) => Counts::Nics,
        };
        LaneGrant {
            applier: ApplierId(applier),
            nonce: session.grants.nonce(ApplierId(applier)).unwrap_or(0),
            ticket: ticket(&self.shared, applier, counts),
            status: session.status[usize::from(applier)],
        }
    }

    /// Handle of an applier; refused if the number is out of range.
    fn crew(&self, applier: ApplierId) -> Result<&ApplierControl, Refusal> {
        let crews = &self.shared.appliers;
        crews.get(usize::from(applier.0)).ok_or_else(|| {
            let numbers = [u64::from(applier.0), crews.len() as u64, 0, 0];
            Refusal::new(RefusalCode::UnknownApplier, numbers)
        })
    }

    /// Begins the recovery of a lane (connecting a broken one again): orders its applier to end it and to call
    /// `reply` with the ring's position, or with `None` if the applier lacks the session. The lane's grant ends
    /// at once. May be repeated. Does not wait for the applier. Refused if the session or the applier is
    /// unknown, or the applier has ended.
    pub(in crate::server) fn begin_recovery(
        &mut self,
        id: SessionId,
        applier: ApplierId,
        reply: Reply<Option<StateLine>>,
    ) -> Result<(), Refusal> {
        let session = self.all.get_mut(&id).ok_or_else(|| unknown(id))?;
        if matches!(session.carrier, Carrier::Kept) {
            return Err(unknown(id));
        }
        // A lane that is still being connected comes too late: its applier would take it for the one that ends.
        session.grants.grant(applier, None);
        let crew = self.crew(applier)?;
        let sent = crew.handle.send(Command::Recover(id, reply));
        sent.map_err(|_| self.shared.gone().refusal())
    }

    /// Completes the recovery of a lane after its applier has ended it: grants it to the client again, over shared
    /// memory with new memory, which is returned. `state` is the ring's position, `None` if the applier lacks the
    /// session.
    pub(in crate::server) fn finish_recovery(
        &mut self,
        id: SessionId,
        applier: ApplierId,
        state: Option<StateLine>,
    ) -> Result<WithMemory<Recovered>, Refusal> {
        let session = self.all.get(&id).ok_or_else(|| unknown(id))?;
        let crew = self.crew(applier)?;
        let ended = |_| self.shared.gone().refusal();
        let state = state.ok_or_else(|| unknown(id))?;
        let memory = match &session.carrier {
            Carrier::Shm(waker) => {
                let (bytes, end) = (session.ring_bytes, self.end_of(applier.0));
                let memory =
                    SessionMemory::create(&self.memory, &[end], bytes, id.0).map_err(io)?;
                let inbox = memory.inbox(0).map_err(io)?;
                let port = Box::new(memory.port(0, &session.peer(), waker).map_err(io)?);
                let renewed = crew.handle.ask(|tx| Command::Renew(id, inbox, port, tx));
                if !renewed.map_err(ended)? {
                    return Err(unknown(id));
                }
                Some(memory)
            }
            Carrier::Tcp | Carrier::Verbs(_) => None,
            Carrier::Kept => return Err(unknown(id)),
        };
        let nonce = if memory.is_none() {
            Some(random()?)
        } else {
            None
        };
        let session = self.all.get_mut(&id).ok_or_else(|| unknown(id))?;
        session.grants.grant(applier, nonce);
        session.recoveries += 1;
        let session = self.all.get(&id).ok_or_else(|| unknown(id))?;
        let lane = self.grant(applier.0, session);
        let shm = memory.as_ref().map(SessionMemory::numbers);
        Ok((recovered(lane, shm, state), memory))
    }

    /// Checks that the connection of a TCP lane comes from the session's client with the granted nonce. Changes
    /// nothing: `Self::connect_lane` uses the nonce up.
    pub(in crate::server) fn check_lane(
        &self,
        hello: &Hello,
        id: SessionId,
        applier: ApplierId,
        nonce: u64,
    ) -> Result<(), Refusal> {
        let session = self.all.get(&id);
        let session = session
            .filter(|s| s.is_of(hello))
            .ok_or_else(|| unknown(id))?;
        if matches!(session.carrier, Carrier::Verbs(_)) {
            return Err(bad("a lane over verbs is connected by its queue pairs"));
        }
        self.crew(applier)?;
        match session.grants.is_granted(Lane { applier, nonce }) {
            true => Ok(()),
            false => Err(used()),
        }
    }

    /// Hands the checked connection of a TCP lane to its applier, and uses the granted nonce up. Does nothing
    /// if the session has ended or the applier is unknown.
    pub(in crate::server) fn connect_lane(
        &mut self,
        id: SessionId,
        applier: ApplierId,
        stream: TcpStream,
        from: String,
    ) -> Result<(), ServerError> {
        let a = usize::from(applier.0);
        let (Some(session), Some(crew)) = (self.all.get_mut(&id), self.shared.appliers.get(a))
        else {
            return Ok(());
        };
        session.grants.grant(applier, None);
        let failed = crate::server::error::system("open a lane");
        let port = TcpServerLane::new(stream, from, crew.watch.clone());
        let port = port.map_err(|e| failed(std::io::Error::other(e)))?;
        // If the applier does not take it, the client finds the lane broken and recovers it.
        crew.handle
            .send(Command::AttachPort(id, Box::new(port), bounded(1).0))?;
        Ok(())
    }

    /// Reserves the verbs lanes of a session that the client offers to connect, for one request. First opens a
    /// failed device again. Until [`Self::connected`] or `Self::not_connected` other requests for them are
    /// refused. Refused if a nonce is not the granted one, the applier is unknown or the session has no verbs
    /// lanes.
    pub(in crate::server) fn connect_verbs(
        &mut self,
        id: SessionId,
        offers: &[VerbsConnect],
    ) -> Result<Vec<Lane>, Refusal> {
        let session = self.all.get_mut(&id).ok_or_else(|| unknown(id))?;
        let Carrier::Verbs(verbs) = &mut session.carrier else {
            return Err(bad("the session's lanes are not over verbs"));
        };
        self.verbs.renew(&self.shared, verbs)?;
        for offer in offers {
            self.crew(offer.applier)?;
        }
        let lane = |offer: &VerbsConnect| Lane {
            applier: offer.applier,
            nonce: offer.nonce,
        };
        let lanes: Vec<_> = offers.iter().map(lane).collect();
        let session = self.all.get_mut(&id).ok_or_else(|| unknown(id))?;
        match session.grants.begin(&lanes) {
            true => Ok(lanes),
            false => Err(used()),
        }
    }

    /// Returns the closure that makes the server's ends of the lanes of request `asked`; it may run on any thread. It
    /// uses the session's current device and protection domain.
    pub(in crate::server) fn accept(
        &self,
        asked: &Asked,
        offers: Vec<VerbsConnect>,
    ) -> Result<Make, Refusal> {
        let session = self.all.get(&asked.session);
        let session = session.ok_or_else(|| unknown(asked.session))?;
        match &session.carrier {
            Carrier::Verbs(verbs) => verbs.accept(offers, &session.peer()),
            _ => Err(bad("the session's lanes are not over verbs")),
        }
    }

    /// Whether the lanes of a request are still reserved for it: its session exists, and none was recovered since. If
    /// not, the request is void.
    pub(in crate::server) fn is_connecting(&self, asked: &Asked) -> bool {
        let session = self.all.get(&asked.session);
        session.is_some_and(|session| session.grants.is_connecting(&asked.lanes))
    }

    /// Whether the request's lanes can be made now; `false` while server memory is being registered. Opens a failed
    /// device again. Also `true` where making them fails: the request is refused then.
    pub(in crate::server) fn is_ready(&mut self, asked: &Asked) -> bool {
        let session = self.all.get_mut(&asked.session);
        let Some(Carrier::Verbs(verbs)) = session.map(|session| &mut session.carrier) else {
            return true;
        };
        // One that cannot be opened refuses the request when its lanes are made.
        if verbs.device_has_failed() && self.verbs.renew(&self.shared, verbs).is_err() {
            return true;
        }
        verbs.is_ready()
    }

    /// Releases the reservation of a request of which no lane was made, so that the client can retry. Returns the
    /// refusal, for the caller to send.
    pub(in crate::server) fn not_connected(&mut self, asked: &Asked) -> Refusal {
        if let Some(session) = self.all.get_mut(&asked.session) {
            session.grants.finish(&asked.lanes, false);
        }
        bad("the lane was recovered while it was connected")
    }

    /// Completes a request for verbs lanes: hands the server's ends to their appliers and returns the
    /// answers. Refused if a lane was recovered or the session ended meanwhile. If none was made the client
    /// can retry.
    pub(in crate::server) fn connected(
        &mut self,
        asked: &Asked,
        made: Result<Vec<End>, Refusal>,
    ) -> Result<Vec<VerbsConnected>, Refusal> {
        let id = asked.session;
        let session = self.all.get_mut(&id).ok_or_else(|| unknown(id))?;
        if !session.grants.is_connecting(&asked.lanes) {
            return Err(self.not_connected(asked));
        }
        session.grants.finish(&asked.lanes, made.is_ok());
        let ended = |_| self.shared.gone().refusal();
        let mut answers = Vec::with_capacity(asked.lanes.len());
        for (port, connected) in made? {
            let command = Command::AttachPort(id, port, bounded(1).0);
            let crew = self.crew(connected.applier)?;
            crew.handle.send(command).map_err(ended)?;
            answers.push(connected);
        }
        Ok(answers)
    }
}

fn used() -> Refusal {
    bad("the lane was granted again since, or is connected: recover it")
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

/// Allocates ring memory for a lane that its client does not map (TCP or verbs).
fn private_inbox(ring_bytes: usize, id: SessionId) -> Result<Inbox, Refusal> {
    let ring = RingGeometry::new(ring_bytes)
        .ok_or_else(|| Refusal::new(RefusalCode::BadRing, [ring_bytes as u64, 0, 0, 0]))?;
    let region = Region::anonymous(inbox_bytes(ring_bytes)).map_err(io)?;
    Inbox::new(Arc::new(region), 0, ring, id.0).map_err(io)
}

//! The lanes of a session: their rings, how they are granted, connected and recovered.
//!
//! On shm a lane exists from its session's start. Elsewhere it is granted a nonce, with which its
//! client connects it once: over a connection of its own (tcp) or with queue pairs (verbs).

use std::net::TcpStream;
use std::sync::Arc;

use crossbeam_channel::bounded;
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
use tidewater_engine::apply::command::Command;
use tidewater_engine::inbox::{Ring, RingOwner};
use tidewater_engine::namespace::FrameSender;

impl Sessions {
    /// Adds one ring at each applier, all or none. On shm they come with their lanes.
    pub(super) fn add_rings(
        &self,
        id: SessionId,
        session: &mut Session,
    ) -> Result<Option<SessionMemory>, Refusal> {
        let memory = match session.carrier {
            Carrier::Shm(_) => {
                let ends: Vec<_> = (0..session.nonces.len() as u16)
                    .map(|a| self.end_of(a))
                    .collect();
                let made = SessionMemory::create(&self.memory, &ends, session.ring_bytes, id.0);
                Some(made.map_err(io)?)
            }
            Carrier::Tcp | Carrier::Verbs(_) => None,
        };
        let mut rings = Vec::new();
        for a in 0..session.nonces.len() {
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

    /// Makes the ring of lane `a`.
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

    /// Describes lane `applier` as it is now.
    pub(super) fn grant(&self, applier: u16, session: &Session) -> LaneGrant {
        let nonce = session.nonces.get(usize::from(applier)).copied();
        let counts = match session.carrier {
            Carrier::Shm(_) | Carrier::Tcp => Counts::Processors,
            Carrier::Verbs(_) => Counts::Nics,
        };
        LaneGrant {
            applier: ApplierId(applier),
            nonce: nonce.flatten().unwrap_or(0),
            ticket: ticket(&self.shared, applier, counts),
            status: session.status[usize::from(applier)],
        }
    }

    /// The control handle of an applier.
    fn crew(&self, applier: ApplierId) -> Result<&ApplierControl, Refusal> {
        let crews = &self.shared.appliers;
        crews.get(usize::from(applier.0)).ok_or_else(|| {
            let numbers = [u64::from(applier.0), crews.len() as u64, 0, 0];
            Refusal::new(RefusalCode::UnknownApplier, numbers)
        })
    }

    /// Recovers a lane. May be repeated: it ends the lane that it made before.
    pub(in crate::server) fn recover(
        &mut self,
        id: SessionId,
        applier: ApplierId,
    ) -> Result<WithMemory<Recovered>, Refusal> {
        let session = self.all.get(&id).ok_or_else(|| unknown(id))?;
        let crew = self.crew(applier)?;
        let ended = |_| self.shared.gone().refusal();
        let state = crew
            .handle
            .ask(|tx| Command::Recover(id, tx))
            .map_err(ended)?;
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
        };
        let nonce = if memory.is_none() {
            Some(random()?)
        } else {
            None
        };
        let session = self.all.get_mut(&id).ok_or_else(|| unknown(id))?;
        let a = usize::from(applier.0);
        if let (Some(granted), Some(connecting)) =
            (session.nonces.get_mut(a), session.connecting.get_mut(a))
        {
            // A lane that is still being connected comes too late.
            (*granted, *connecting) = (nonce, None);
        }
        session.recoveries += 1;
        let session = self.all.get(&id).ok_or_else(|| unknown(id))?;
        let lane = self.grant(applier.0, session);
        let shm = memory.as_ref().map(SessionMemory::numbers);
        Ok((recovered(lane, shm, state), memory))
    }

    /// Checks that the connection of a lane is the one that was granted.
    pub(in crate::server) fn check_lane(
        &self,
        hello: &Hello,
        (id, applier, nonce): (SessionId, ApplierId, u64),
    ) -> Result<(), Refusal> {
        let session = self.all.get(&id);
        let session = session
            .filter(|s| s.is_of(hello))
            .ok_or_else(|| unknown(id))?;
        if matches!(session.carrier, Carrier::Verbs(_)) {
            return Err(bad("a lane over verbs is connected by its queue pairs"));
        }
        self.check_nonce(session, applier, nonce)
    }

    /// Checks that the lane was granted with this nonce, and that the nonce is unused.
    fn check_nonce(
        &self,
        session: &Session,
        applier: ApplierId,
        nonce: u64,
    ) -> Result<(), Refusal> {
        self.crew(applier)?;
        match session.nonces.get(usize::from(applier.0)) {
            Some(&Some(granted)) if granted == nonce => Ok(()),
            _ => Err(bad(
                "the lane was granted again since, or is connected: recover it",
            )),
        }
    }

    /// Hands the connection of a lane, which was checked, to its applier.
    pub(in crate::server) fn connect_lane(
        &mut self,
        (id, applier): (SessionId, ApplierId),
        stream: TcpStream,
        from: String,
    ) -> Result<(), ServerError> {
        let a = usize::from(applier.0);
        let nonce = self.all.get_mut(&id).and_then(|s| s.nonces.get_mut(a));
        let (Some(nonce), Some(crew)) = (nonce, self.shared.appliers.get(a)) else {
            return Ok(());
        };
        *nonce = None;
        let failed = crate::server::error::system("open a lane");
        let port = TcpServerLane::new(stream, from, crew.watch.clone());
        let port = port.map_err(|e| failed(std::io::Error::other(e)))?;
        // If the applier does not take it, the client finds the lane broken and recovers it.
        crew.handle
            .send(Command::AttachPort(id, Box::new(port), bounded(1).0))?;
        Ok(())
    }

    /// Returns the closure that makes the server's end of a verbs lane. The lane then belongs to
    /// this offer: until [`Self::connected`] no other one is accepted for it.
    pub(in crate::server) fn connect_verbs(
        &mut self,
        id: SessionId,
        offer: VerbsConnect,
    ) -> Result<Make, Refusal> {
        let session = self.all.get(&id).ok_or_else(|| unknown(id))?;
        let Carrier::Verbs(verbs) = &session.carrier else {
            return Err(bad("the session's lanes are not over verbs"));
        };
        let (applier, nonce) = (offer.applier, offer.nonce);
        self.check_nonce(session, applier, nonce)?;
        let make = verbs.accept(offer, session.peer())?;
        let session = self.all.get_mut(&id).ok_or_else(|| unknown(id))?;
        let a = usize::from(applier.0);
        if let (Some(granted), Some(now)) =
            (session.nonces.get_mut(a), session.connecting.get_mut(a))
        {
            (*granted, *now) = (None, Some(nonce));
        }
        Ok(make)
    }

    /// Hands a lane's end that was made to its applier, unless the lane was recovered meanwhile or
    /// its session is over. If it could not be made, the client may try again.
    pub(in crate::server) fn connected(
        &mut self,
        asked: &Asked,
        made: Result<End, Refusal>,
    ) -> Result<VerbsConnected, Refusal> {
        let id = asked.session;
        let session = self.all.get_mut(&id).ok_or_else(|| unknown(id))?;
        let a = usize::from(asked.applier.0);
        let connecting = session.connecting.get_mut(a);
        if connecting
            .and_then(|c| c.take_if(|c| *c == asked.nonce))
            .is_none()
        {
            return Err(bad("the lane was recovered while it was connected"));
        }
        let (port, connected) = made.inspect_err(|_| {
            // The client may try again.
            if let Some(nonce) = session.nonces.get_mut(a) {
                *nonce = Some(asked.nonce);
            }
        })?;
        let command = Command::AttachPort(id, port, bounded(1).0);
        let ended = |_| self.shared.gone().refusal();
        let crew = self.crew(asked.applier)?;
        crew.handle.send(command).map_err(ended)?;
        Ok(connected)
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

/// Allocates memory of a lane that its client does not map.
fn private_inbox(ring_bytes: usize, id: SessionId) -> Result<Inbox, Refusal> {
    let ring = RingGeometry::new(ring_bytes)
        .ok_or_else(|| Refusal::new(RefusalCode::BadRing, [ring_bytes as u64, 0, 0, 0]))?;
    let region = Region::anonymous(inbox_bytes(ring_bytes)).map_err(io)?;
    Inbox::new(Arc::new(region), 0, ring, id.0).map_err(io)
}

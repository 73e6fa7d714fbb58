//! Sessions of the previous server process, which wait for their clients after a restart of the server.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use tidewater_control::set_up::LaneGrants;
use tidewater_protocol::ids::SessionId;
use tidewater_protocol::wire::control::{Attach, Transport};
use tidewater_protocol::wire::hello::Hello;
use tidewater_protocol::wire::refusal::Refusal;

use super::{Carrier, Presence, Session, Sessions, bad, thread_of, unknown};
use crate::server::conn::ConnId;
use crate::server::kept::KeptSession;

impl Sessions {
    /// Takes over a session from the previous process's memory; its client has yet to return (`Self::reattach`). A
    /// session without a ring at every applier is ended: it was being created or ended.
    pub(super) fn keep(&mut self, id: SessionId, kept: KeptSession) {
        let lanes = self.shared.appliers.len();
        let is_complete = kept.rings.len() == lanes;
        let (inboxes, status) = kept.rings.into_iter().unzip();
        let session = Session {
            namespace: String::new(),
            job: kept.sender.namespace,
            thread: kept.sender.thread,
            ring_bytes: kept.ring_bytes,
            carrier: Carrier::Kept,
            grants: LaneGrants::new(lanes),
            status,
            presence: Presence::default(),
            chosen: (Transport::Shm, "its server was restarted".to_owned()),
            recoveries: 0,
            kept: Some((kept.check_frames, inboxes)),
        };
        self.all.insert(id, session);
        if !is_complete {
            self.end(id);
        }
    }

    /// Ends the sessions of the previous server process to which no client has returned; appliers first apply
    /// complete frames in their rings.
    pub(in crate::server) fn end_kept(&mut self) {
        let waits = |s: &Session| matches!(s.carrier, Carrier::Kept);
        let those = self.all.iter().filter(|(_, session)| waits(session));
        for id in those.map(|(&id, _)| id).collect::<Vec<_>>() {
            tracing::info!(session = %id, "session ends: its client did not come back after the restart");
            self.end(id);
        }
    }

    /// Gives a session of the previous server process to its returned client, over connection `owner`. May be
    /// repeated. Returns the earlier connection, if that has not ended. The client then recovers each lane. Refused
    /// if the session's thread, job, ring size or kind of transport differs.
    pub(in crate::server) fn reattach(
        &mut self,
        owner: ConnId,
        local: Option<IpAddr>,
        hello: &Hello,
        id: SessionId,
        attach: Attach,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<ConnId>, Refusal> {
        let session = self.all.get(&id).filter(|session| {
            session.thread == thread_of(hello, attach.thread)
                && session.ring_bytes == attach.ring_bytes as usize
        });
        let session = session.ok_or_else(|| unknown(id))?;
        let job = session.job;
        let (checks, inboxes) = session.kept.clone().ok_or_else(|| unknown(id))?;
        if !self.shared.catalogue().adopt_job(&hello.namespace, job) {
            return Err(unknown(id));
        }
        if checks != (attach.transport == Transport::Verbs) {
            return Err(bad(
                "a session over verbs goes on over verbs, another one over shm or tcp",
            ));
        }
        let mut carrier = self.carrier(&attach, local, &hello.namespace, fds)?;
        if let Carrier::Verbs(verbs) = &mut carrier {
            inboxes.iter().for_each(|inbox| verbs.keep(inbox));
        }
        let Some(session) = self.all.get_mut(&id) else {
            return Err(unknown(id));
        };
        session.namespace.clone_from(&hello.namespace);
        session.carrier = carrier;
        session.chosen = (attach.transport, attach.reason);
        Ok(session.presence.resume(owner))
    }
}
